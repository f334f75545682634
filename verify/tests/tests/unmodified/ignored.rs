//! `ccfs direct --ignore-fsync`: sync calls cost nothing, whichever way the program's calls go, for the user who said so and for nobody else.
use super::{command, text, volume};
use ccfs_tests::harness::{Volume, ccfs_program, run};

/// Reads much, so that its calls become the kernel's, and syncs after that. Asked for with a number, it becomes that user before it syncs:
/// itself, or ("child") a program that it starts.
const PROGRAM: &str = "
import os, subprocess, sys
name, user, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if how != 'begun':
    os.mkdir(name)
    os.chmod(name, 0o777)
file = os.open(name + '/file', os.O_RDWR | os.O_CREAT, 0o666)
if how != 'begun':
    os.fchmod(file, 0o666)
    os.pwrite(file, bytes(1 << 20), 0)
    for _ in range(200):
        os.pread(file, 1 << 17, 0)
if how == 'child':
    subprocess.run([sys.executable, sys.argv[0], name, '0', 'begun'], user=user, check=True)
    sys.exit()
if user:
    os.seteuid(user)
for n in range(50):
    os.pwrite(file, b'x', n)
    os.fsync(file)
    os.fdatasync(file)
";

/// Syncs that reached the daemon while the program ran.
fn syncs(v: &Volume, name: &str, user: &str, how: &str) -> u64 {
    let count = || v.status()["counters"]["syncs"].as_u64().expect("a counter");
    let before = count();
    let (program, script) = (ccfs_program(), v.outside("program.py"));
    std::fs::write(&script, PROGRAM).expect("write");
    let dir = v.path(name);
    let direct = [program, "direct", "--ignore-fsync", "--"];
    let python = ["/usr/bin/python3", text(&script), text(&dir), user, how];
    let out = run(&mut command(v, false, &[&direct[..], &python].concat()));
    assert_eq!(out.code, 0, "{how}: {}", out.all());
    count() - before
}

#[test]
fn syncs_are_ignored_by_the_kernels_way_too() {
    let Some(v) = volume("ignored", 64) else {
        return;
    };
    assert_eq!(syncs(&v, "a", "0", "itself"), 0);
    v.finish();
}

/// `--ignore-fsync` never crosses to another user.
#[test]
fn another_user_is_not_ignored() {
    let Some(v) = volume("not-ignored", 64) else {
        return;
    };
    assert_eq!(syncs(&v, "b", "1234", "itself"), 100);
    assert_eq!(syncs(&v, "c", "1234", "child"), 100);
    v.finish();
}
