//! Every kind of work, tiny, by the engine's calls on an image and by system calls below a directory: both leave the very same files.
use super::load::{Job, Load};
use super::target::{EngineCalls, SystemCalls};
use super::worker::{Figures, measure, prepare};
use crate::system::command;
use crate::workload::Scale;
use crate::{Because, Result};
use ccfs_device::{FileDevice, OpenMode};
use ccfs_engine::{ListEntry, Options, ROOT_INO, Volume};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Contents by path.
type Tree = BTreeMap<String, Vec<u8>>;

const TINY: Scale = Scale(0.002);
const IMAGE: &str = "64M";

fn load(job: Job, threads: u64, streams: bool) -> Load {
    Load {
        streams,
        seed: 7,
        ..Load::new(job, threads, TINY)
    }
}

fn by_system_calls(root: &Path, load: Load) -> (Figures, Tree) {
    let open = || SystemCalls::open(root).because("open");
    prepare(load, true, open).unwrap();
    let figures = measure(load, true, open, || Ok(())).unwrap();
    let mut tree = Tree::new();
    for dir in std::fs::read_dir(root).unwrap() {
        let dir = dir.unwrap();
        for file in std::fs::read_dir(dir.path()).unwrap() {
            let file = file.unwrap();
            let names = [dir.file_name(), file.file_name()];
            let path = names.map(|n| n.into_string().unwrap()).join("/");
            tree.insert(path, std::fs::read(file.path()).unwrap());
        }
    }
    (figures, tree)
}

fn by_the_engine(image: &Path, load: Load) -> (Figures, Tree) {
    let made = command("mke2fs")
        .args("-q -F -t ext4 -b 4096 -i 8192".split(' '))
        .arg(image)
        .arg(IMAGE)
        .output();
    assert!(made.unwrap().status.success());
    let open = || EngineCalls::open(image).because("open");
    prepare(load, true, open).unwrap();
    let figures = measure(load, true, open, || Ok(())).unwrap();
    let checked = command("e2fsck").args(["-f", "-n"]).arg(image).output();
    let checked = checked.unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{said}");
    (figures, tree_of(image))
}

fn tree_of(image: &Path) -> Tree {
    let device = FileDevice::open(image, OpenMode::ReadOnly).unwrap();
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let volume = Volume::mount(Arc::new(device), options).unwrap();
    let names = |dir| -> Vec<(String, u32)> {
        let mut names = Vec::new();
        let each = &mut |entry: ListEntry| {
            names.push((String::from_utf8(entry.name).unwrap(), entry.ino));
            true
        };
        volume.readdir(dir, 0, each).unwrap();
        names.retain(|(name, _)| ![".", "..", "lost+found"].contains(&name.as_str()));
        names
    };
    let mut tree = Tree::new();
    for (dir, ino) in names(ROOT_INO) {
        for (file, ino) in names(ino) {
            let size = volume.getattr(ino).unwrap().size;
            let mut content = Vec::new();
            volume.read(ino, 0, size as usize, &mut content).unwrap();
            tree.insert(format!("{dir}/{file}"), content);
        }
    }
    volume.unmount().unwrap();
    tree
}

/// Files of a set.
fn of_set(tree: &Tree, set: u64) -> Vec<&Vec<u8>> {
    let start = format!("s{set}-");
    let those = tree.iter().filter(|(path, _)| path.starts_with(&start));
    those.map(|(_, content)| content).collect()
}

/// What a set of files has to be after all turns.
fn check(load: &Load, files: &[&Vec<u8>]) {
    let total: usize = files.iter().map(|f| f.len()).sum();
    let (threads, turns) = (load.threads, load.turns);
    let (count, bytes) = match load.job {
        Job::Create => (threads * turns, threads * turns * 16384),
        Job::Append => (threads, threads * turns * 4096),
        Job::Overwrite => (threads, threads * load.blocks * 4096),
        Job::Unlink => (0, 0),
        // As many as before, of random sizes.
        Job::Varmail | Job::Fileserver => (threads * load.files, total as u64),
    };
    assert_eq!(
        (files.len() as u64, total as u64),
        (count, bytes),
        "{load:?}"
    );
    let least = match load.job {
        Job::Varmail => 8 << 10,
        Job::Fileserver => 64 << 10,
        _ => 0,
    };
    assert!(files.iter().all(|f| f.len() >= least), "{load:?}");
}

/// Operations that the engine has to accept for it.
fn changes(load: &Load) -> u64 {
    let of_turn = match load.job {
        Job::Append | Job::Overwrite | Job::Unlink => 1,
        Job::Create => 2,
        // A removal, a new file and its content, an append.
        Job::Varmail | Job::Fileserver => 4,
    };
    load.threads * load.turns * of_turn
}

#[test]
fn both_ways_leave_the_same_files() {
    for job in Job::value_variants() {
        for (threads, streams) in [(1, false), (2, false), (2, true)] {
            let load = load(*job, threads, streams);
            let dir = tempfile::tempdir().unwrap();
            let (root, image) = (dir.path().join("root"), dir.path().join("image"));
            std::fs::create_dir(&root).unwrap();
            let (calls, files) = by_system_calls(&root, load);
            let (engine, same) = by_the_engine(&image, load);
            assert!(files == same, "{load:?}: the files differ");
            let expected = load.threads * load.turns * job.ops();
            assert_eq!((calls.ops, engine.ops), (expected, expected), "{load:?}");
            assert_eq!(engine.changes, Some(changes(&load)), "{load:?}");
            assert!(engine.written_bytes.unwrap() > 0 && engine.flushes.unwrap() > 0);
            for figures in [&calls, &engine] {
                let (run, all) = (figures.run_cpu_s, figures.process_cpu_s);
                assert!(0.0 < run && run <= all, "{figures:?}");
                assert!(figures.seconds > 0.0, "{figures:?}");
            }
            assert_eq!((calls.changes, calls.flushes), (None, None));
            // The first pass was the same work on files of its own.
            for set in 0..2 {
                check(&load, &of_set(&files, set));
            }
        }
    }
}

#[test]
fn what_is_not_prepared_is_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let open = || -> Result<SystemCalls> { SystemCalls::open(dir.path()).because("open") };
    let load = load(Job::Unlink, 1, false);
    let ready = || panic!("ready without files");
    let outcome = measure(load, false, open, ready);
    assert!(outcome.unwrap_err().contains("preparation"));
}

#[test]
fn threads_share_what_is_done() {
    for job in Job::value_variants() {
        let of = |threads| Load::new(*job, threads, Scale(1.0));
        for threads in [1, 2, 4] {
            assert_eq!(of(threads).turns * threads, of(1).turns, "{job:?}");
        }
        assert_eq!(job.name(), job.to_possible_value().unwrap().get_name());
    }
}
