//! Exercisers: one file and a tree against models, mounted and over the engine alone.
use ccfs_tests::exercise::{engine, file, mounted, tree};
use ccfs_tests::harness::{Fs, Volume, number};

/// `CCFS_TEST_SEED` repeats a failed run.
fn seed(of_test: u64) -> u64 {
    number("CCFS_TEST_SEED", of_test)
}

/// A share of the full length (`CCFS_TEST_PERCENT`); the kernel's ext4 only proves the exerciser.
fn length(fs: Fs, full: u64) -> u64 {
    let full = full * number("CCFS_TEST_PERCENT", 100) / 100;
    if fs == Fs::Ext4 { full / 10 } else { full }
}

fn file_on(fs: Fs, of_test: u64, size_max: u64, operations: u64) {
    if !fs.ready("file exerciser") {
        return;
    }
    let mut v = Volume::new(fs, "file", 256);
    let run = file::Run {
        seed: seed(of_test),
        operations: length(fs, operations),
        size_max,
        sync_every: 150,
        refresh_every: 8000,
    };
    file::exercise(&mut mounted::File::new(&mut v, "f"), run);
    v.finish();
}

fn tree_on(fs: Fs, of_test: u64, operations: u64) {
    if !fs.ready("tree exerciser") {
        return;
    }
    let mut v = Volume::new(fs, "tree", 512);
    let target = mounted::Tree::new(v.path("tree"));
    let run = tree::Run {
        seed: seed(of_test),
        threads: 16,
        streams: 4,
        operations: length(fs, operations),
        sync_every: 300,
    };
    let expected = tree::exercise(&target, run);
    expected.compare(target.root());
    v.check_at_rest();
    v.mount();
    expected.compare(target.root());
    v.finish();
}

#[test]
fn file_on_ext4() {
    file_on(Fs::Ext4, 1, 1 << 20, 50_000);
}

#[test]
fn tree_on_ext4() {
    tree_on(Fs::Ext4, 1, 100_000);
}

#[test]
fn file_mounted_small() {
    file_on(Fs::under_test(), 11, 200_000, 50_000);
}

#[test]
fn file_mounted_large() {
    file_on(Fs::under_test(), 12, 8 << 20, 50_000);
}

#[test]
fn tree_mounted() {
    tree_on(Fs::under_test(), 21, 100_000);
}

fn file_in_process(of_test: u64, size_max: u64, operations: u64, mke2fs: &[&str]) {
    let mut f = engine::File::new(engine::Mounted::new("engine-file", 192, mke2fs));
    let run = file::Run {
        seed: seed(of_test),
        operations,
        size_max,
        sync_every: 200,
        refresh_every: 20_000,
    };
    file::exercise(&mut f, run);
    f.mounted.finish(|_| ());
}

#[test]
fn file_in_process_small() {
    file_in_process(31, 100_000, 400_000, &["-b", "4096"]);
}

#[test]
fn file_in_process_large() {
    file_in_process(32, 16 << 20, 200_000, &["-b", "4096"]);
}

#[test]
fn file_in_process_1k_blocks() {
    file_in_process(33, 1 << 20, 400_000, &["-b", "1024"]);
}

fn tree_in_process(of_test: u64, operations: u64, mke2fs: &[&str]) {
    let mut m = engine::Mounted::new("engine-tree", 512, mke2fs);
    let target = engine::EngineTree::new(&m, 4);
    let run = tree::Run {
        seed: seed(of_test),
        threads: 16,
        streams: 4,
        operations,
        sync_every: 500,
    };
    let expected = tree::exercise(&target, run);
    drop(target);
    m.remount();
    m.finish(|root| expected.compare(root));
}

#[test]
fn tree_in_process_4k_blocks() {
    tree_in_process(41, 700_000, &["-b", "4096"]);
}

#[test]
fn tree_in_process_1k_blocks() {
    tree_in_process(42, 300_000, &["-b", "1024"]);
}
