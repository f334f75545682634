//! The kept corpus, and everything that fuzzing ever found, on the stable compiler: no panic, and an end (C10).
use ccfs_fuzzing::{TARGETS, Target, seeds};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

/// Bytes of all archives that the repository may hold.
const CORPUS_MAX: u64 = 2 << 20;

/// Panics that somebody caught on the way (the FUSE server does) count too.
static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();
/// The count above is the process's: one target at a time.
static TURN: Mutex<()> = Mutex::new(());

/// An archive for each target, TARGET.tar.gz, with a file for each input.
fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus")
}

/// The kept inputs of a target with their names, which are those of their files in its archive.
fn kept(target: &str) -> Vec<(String, Vec<u8>)> {
    let place = tempfile::tempdir().unwrap();
    let unpacked = Command::new("tar")
        .arg("-xzf")
        .arg(corpus().join(format!("{target}.tar.gz")))
        .arg("-C")
        .arg(place.path())
        .status()
        .unwrap();
    assert!(unpacked.success(), "the corpus of {target}: {unpacked}");
    let mut out: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(place.path()).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{target}/{}", entry.file_name().display());
        out.push((name, fs::read(entry.path()).unwrap()));
    }
    out.sort();
    out
}

fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut out = kept(target);
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
fn direct_memory() {
    replay(target("direct_memory"));
}

#[test]
fn the_corpus_is_small_and_every_archive_has_its_target() {
    let mut bytes = 0;
    for archive in fs::read_dir(corpus()).unwrap() {
        let archive = archive.unwrap();
        // What `make fuzz` has unpacked there is not kept.
        if archive.file_type().unwrap().is_dir() {
            continue;
        }
        let name = archive.file_name().into_string().unwrap();
        assert!(
            TARGETS
                .iter()
                .any(|(target, _)| name == format!("{target}.tar.gz")),
            "fuzz/corpus/{name} has no target"
        );
        bytes += archive.metadata().unwrap().len();
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
