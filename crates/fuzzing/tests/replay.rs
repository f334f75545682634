//! The kept corpus, and everything that fuzzing ever found, on the stable compiler: no panic, and an end (C10).
use ccfs_fuzzing::{TARGETS, Target, seeds};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

/// Bytes of all inputs that the repository may hold.
const CORPUS_MAX: u64 = 20 << 20;

/// Panics that somebody caught on the way (the FUSE server does) count too.
static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();
/// The count above is the process's: one target at a time.
static TURN: Mutex<()> = Mutex::new(());

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut out: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(corpus().join(target)).into_iter().flatten() {
        let path = entry.unwrap().path();
        out.push((path.display().to_string(), fs::read(&path).unwrap()));
    }
    out.sort();
    let seeds = seeds::of(target).into_iter().enumerate();
    out.extend(seeds.map(|(n, seed)| (format!("seed {n} of {target}"), seed)));
    out
}

fn replay((name, body): Target) {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            print(info);
        }));
    });
    let all = inputs(name);
    assert!(all.len() > 20, "the corpus of {name} is gone");
    for (input, bytes) in &all {
        let before = PANICS.load(Ordering::Relaxed);
        let ended = catch_unwind(AssertUnwindSafe(|| body(bytes)));
        let after = PANICS.load(Ordering::Relaxed);
        assert!(
            ended.is_ok() && before == after,
            "{input} makes {name} panic"
        );
    }
}

fn target(name: &str) -> Target {
    *TARGETS.iter().find(|(n, _)| *n == name).unwrap()
}

#[test]
fn hostile_image() {
    replay(target("hostile_image"));
}

#[test]
fn log_recovery() {
    replay(target("log_recovery"));
}

#[test]
fn structures() {
    replay(target("structures"));
}

#[test]
fn fuse_requests() {
    replay(target("fuse_requests"));
}

#[test]
fn ioctls() {
    replay(target("ioctls"));
}

#[test]
fn the_corpus_is_small_and_every_folder_has_its_target() {
    let mut bytes = 0;
    for folder in fs::read_dir(corpus()).into_iter().flatten() {
        let folder = folder.unwrap();
        let name = folder.file_name().into_string().unwrap();
        assert!(
            TARGETS.iter().any(|(n, _)| *n == name),
            "fuzz/corpus/{name} has no target"
        );
        for file in fs::read_dir(folder.path()).unwrap() {
            bytes += file.unwrap().metadata().unwrap().len();
        }
    }
    assert!(bytes <= CORPUS_MAX, "{bytes} bytes");
    let manifest = fs::read_to_string(corpus().join("../Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "fuzz/Cargo.toml lacks {name}"
        );
    }
}
