//! Volumes filled to the brim under SIGKILL of the daemon (C1, C2, C3, C9). CCFS_TEST_SEED is the first seed, CCFS_TEST_ROUNDS the number of
//! seeds.
use ccfs_tests::full_names;
use ccfs_tests::harness::{Fs, number};
use ccfs_tests::kill9::full::{self, Summary};

#[test]
fn direct_writes_that_find_too_little_space() {
    if Fs::under_test() == Fs::Ccfs && Fs::Ccfs.ready("direct writes") {
        full::direct_writes();
    }
}

#[test]
fn mapped_stores_that_find_too_little_space() {
    if Fs::under_test() == Fs::Ccfs && Fs::Ccfs.ready("mapped stores") {
        full::mapped_stores();
    }
}

#[test]
fn killed_on_a_full_volume() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("killed_on_a_full_volume") {
        return;
    }
    let first = number("CCFS_TEST_SEED", 0) + 700;
    let rounds = number("CCFS_TEST_ROUNDS", 5);
    let mut sum = Summary::default();
    for seed in first..first + rounds {
        println!("seed {seed}");
        if let Err(e) = full::round(seed, &mut sum) {
            panic!("{e}\n({sum:?})");
        }
    }
    println!("full volumes: {sum:?}");
    let full = sum.short + sum.refused;
    assert!(
        full > 0 && sum.lossy > 0,
        "rounds that prove nothing: {sum:?}"
    );
}

/// Each call on a full volume returns what it returns on the kernel's ext4: to root and to a user, with blocks of 1 KiB and 4 KiB.
#[test]
fn calls_on_a_full_volume_are_as_on_ext4() {
    let test = "calls on a full volume";
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(test) || !Fs::Ext4.ready(test) {
        return;
    }
    for (block, by_user) in [
        ("1024", false),
        ("1024", true),
        ("4096", false),
        ("4096", true),
    ] {
        let rows = |fs| full_names::calls(fs, block, by_user);
        assert_eq!(
            rows(Fs::Ccfs),
            rows(Fs::Ext4),
            "blocks of {block}, by a user: {by_user}"
        );
    }
}
