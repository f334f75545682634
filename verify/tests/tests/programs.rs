//! Real programs on ccfs and on the kernel's ext4, with equal results.
use ccfs_tests::harness::Fs;
use ccfs_tests::programs::{Size, all, on_both};

fn run(name: &str) {
    let work = all()
        .into_iter()
        .find(|w| w.name == name)
        .expect("a known work");
    on_both(Fs::under_test(), &work, &Size::short(), 1500);
}

#[test]
fn tree_tools() {
    run("tree_tools");
}

#[test]
fn rsync_everything() {
    run("rsync_everything");
}

#[test]
fn git() {
    run("git");
}

#[test]
fn make() {
    run("make");
}

#[test]
fn sqlite() {
    run("sqlite");
}

#[test]
fn leveldb() {
    run("leveldb");
}
