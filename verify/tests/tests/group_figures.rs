//! What transactions of LevelDB and of dpkg cost the device as atomic groups, against ext4. Prints lines for the tables in
//! docs/results/2026-11-22-atomic.md:
//! `cargo test --release -p ccfs-tests --test batch_atomic --test group_figures pages -- --nocapture`
use ccfs_tests::cost::{Cost, HEADINGS, On};
use ccfs_tests::harness::{Fs, Volume, WorkDir, ccfs_program, have, run, run_ok, sibling};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn ready(test: &str) -> bool {
    Fs::under_test() == Fs::Ccfs && Fs::Ccfs.ready(test) && Fs::Ext4.ready(test)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Builds the program that puts keys; `None`, and a line, where that is impossible.
fn leveldb_program(place: &WorkDir) -> Option<PathBuf> {
    if !have("g++") || !Path::new("/usr/include/leveldb/db.h").exists() {
        println!("skipped: LevelDB: needs g++ and libleveldb-dev");
        return None;
    }
    // By the name under which it is installed.
    for name in ["libccfs.so", "libccfs.so.1"] {
        symlink(sibling("libccfs.so"), place.path().join(name)).expect("symlink");
    }
    let lib = text(place.path());
    let program = place.path().join("leveldb-groups");
    run_ok(
        "g++",
        &[
            "-O1",
            "-Wall",
            &format!("-I{}", text(&source("crates/libccfs/include"))),
            "-o",
            text(&program),
            text(&source("verify/tests/programs/leveldb-groups.cc")),
            &format!("-L{lib}"),
            &format!("-Wl,-rpath,{lib}"),
            "-lccfs",
            "-lleveldb",
            "-lpthread",
        ],
    );
    Some(program)
}

/// A transaction is one key of 120 bytes in one database, and one in each of two.
#[test]
fn pages_and_flushes_of_leveldb() {
    const PUTS: u64 = 300;
    if !ready("pages_and_flushes_of_leveldb") {
        return;
    }
    let place = WorkDir::new("leveldb-groups");
    let Some(program) = leveldb_program(&place) else {
        return;
    };
    let cost = |way, on: On, how: &str, databases: u64| {
        let puts = |v: &Volume, count: u64| {
            let (mnt, count, databases) = (text(v.mnt()), count.to_string(), databases.to_string());
            run_ok(text(&program), &[how, mnt, &databases, &count]);
        };
        Cost::of(way, on, PUTS, |v| puts(v, 1), |v, ()| puts(v, PUTS))
    };
    let one = [
        cost("ext4, LevelDB, sync = true", Fs::Ext4.into(), "sync", 1),
        cost("ccfs, LevelDB, sync = true", Fs::Ccfs.into(), "sync", 1),
        cost("ccfs, LevelDB, atomic group", Fs::Ccfs.into(), "group", 1),
        cost(
            "ccfs on transactional flash, LevelDB, sync = true",
            On::Flash,
            "sync",
            1,
        ),
    ];
    let two = [
        cost(
            "ext4, two LevelDBs, sync = true, not atomic",
            Fs::Ext4.into(),
            "sync",
            2,
        ),
        cost(
            "ccfs, two LevelDBs, atomic group",
            Fs::Ccfs.into(),
            "group",
            2,
        ),
        cost(
            "ccfs on transactional flash, two LevelDBs, atomic group",
            On::Flash,
            "group",
            2,
        ),
    ];
    println!("{HEADINGS}");
    one.iter().chain(&two).for_each(|c| println!("{c}"));
    one[2].assert_less_than(&one[0]);
    two[1].assert_less_than(&two[0]);
}

/// A transaction is the installation of a package of 40 files.
#[test]
fn pages_and_flushes_of_packages() {
    const PACKAGES: u64 = 8;
    if !ready("pages_and_flushes_of_packages") {
        return;
    }
    if !have("dpkg") || !have("dpkg-deb") {
        println!("skipped: packages: needs dpkg and dpkg-deb");
        return;
    }
    let place = WorkDir::new("packages");
    build_packages(place.path(), PACKAGES);
    let prepare = |v: &Volume| {
        let below =
            "mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates root/var/lib/dpkg/triggers
             : >root/var/lib/dpkg/status; : >root/var/lib/dpkg/available";
        assert_eq!(v.script(below).code, 0);
    };
    let cost = |way, on: On, before: &[&str]| {
        Cost::of(way, on, PACKAGES, prepare, |v, ()| {
            for n in 1..=PACKAGES {
                install(v, before, &place.path().join(format!("sample-{n}.deb")));
            }
            let status = std::fs::read_to_string(v.path("root/var/lib/dpkg/status"));
            let installed = status.expect("the database");
            let installed = installed.matches("install ok installed").count() as u64;
            assert_eq!(installed, PACKAGES, "{way}");
        })
    };
    let all = [
        cost("ext4, dpkg", Fs::Ext4.into(), &[]),
        cost("ccfs, dpkg", Fs::Ccfs.into(), &[]),
        cost(
            "ccfs, dpkg, atomic group",
            Fs::Ccfs.into(),
            &[ccfs_program(), "atomic", "--"],
        ),
        cost("ccfs on transactional flash, dpkg", On::Flash, &[]),
        cost(
            "ccfs on transactional flash, dpkg, atomic group",
            On::Flash,
            &[ccfs_program(), "atomic", "--"],
        ),
    ];
    println!("{HEADINGS}");
    all.iter().for_each(|c| println!("{c}"));
    all[2].assert_less_than(&all[0]);
}

fn build_packages(place: &Path, count: u64) {
    let script = format!(
        r#"cd "$1"
        for n in $(seq {count}); do
            mkdir -p build/DEBIAN build/usr/share/sample-$n
            printf 'Package: sample-%s\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: sample\n' $n >build/DEBIAN/control
            for f in $(seq 40); do seq $((f * 50)) >build/usr/share/sample-$n/$f; done
            dpkg-deb --root-owner-group -b build sample-$n.deb >/dev/null
            rm -r build
        done"#
    );
    run_ok("sh", &["-euc", &script, "sh", text(place)]);
}

/// `dpkg -i`, behind the words `before`.
fn install(v: &Volume, before: &[&str], package: &Path) {
    let root = format!("--root={}", text(&v.path("root")));
    let dpkg = [
        "dpkg",
        &root,
        "--log=/dev/null",
        "--force-bad-path",
        "-i",
        text(package),
    ];
    let words = [before, &dpkg].concat();
    let out = run(Command::new(words[0])
        .args(&words[1..])
        .current_dir(v.mnt()));
    assert_eq!(out.code, 0, "{}", out.all());
}
