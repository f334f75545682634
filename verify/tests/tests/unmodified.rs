//! `ccfs direct -- COMMAND` from outside: programs that know nothing of it do the same with and without, for everybody who looks (C14).
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[path = "unmodified/births.rs"]
mod births;
#[path = "unmodified/cases.rs"]
mod cases;
#[path = "unmodified/checks.rs"]
mod checks;
#[path = "unmodified/developers.rs"]
mod developers;
#[path = "unmodified/ignored.rs"]
mod ignored;
#[path = "unmodified/kills.rs"]
mod kills;
#[path = "unmodified/onlookers.rs"]
mod onlookers;
#[path = "unmodified/random.rs"]
mod random;
#[path = "unmodified/reads.rs"]
mod reads;
#[path = "unmodified/tools.rs"]
mod tools;

use ccfs_testkit::mounts::apart;
use ccfs_testkit::run::{signal, stop};
use ccfs_tests::harness::{Fs, Volume, ccfs_program, number, run, run_ok};
use std::path::{Path, PathBuf};
use std::process::Command;

const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// A volume with direct calls, or none and a line that says why.
fn volume(test: &str, mib: u64) -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(test) {
        return None;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, test).options("direct=on");
    v.mkfs(mib);
    v.mount();
    Some(v)
}

/// A command, with its calls led to the library or not. It sees no volumes but this one: those of other tests may be stopped.
fn command(v: &Volume, direct: bool, words: &[&str]) -> Command {
    let program = ccfs_program();
    let launcher = [program, "direct", "--"];
    // What hangs is a failure, and soon.
    let seconds = (180 * number("CCFS_TEST_SLOWER", 1)).to_string();
    let limit = ["timeout", "-k", "5", &seconds];
    let mut command = match direct {
        true => apart(&[], &[&limit[..], &launcher, words].concat()),
        false => apart(&[], &[&limit[..], words].concat()),
    };
    command
        .env("KEEP", v.mnt())
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("CCFS_LOG_KMSG", "/dev/null")
        .env_remove("LD_PRELOAD");
    command
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}

/// Compiles C sources to a program outside the volume.
fn compile(v: &Volume, name: &str, sources: &[PathBuf]) -> PathBuf {
    compile_with(v, name, sources, &["-O2"])
}

fn compile_with(v: &Volume, name: &str, sources: &[PathBuf], flags: &[&str]) -> PathBuf {
    let to = v.outside(name);
    let mut words = vec!["-w", "-pthread", "-o", text(&to)];
    words.extend(flags);
    words.extend(sources.iter().map(|s| text(s)));
    run_ok("cc", &words);
    to
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Whoever asks a daemon that is stopped waits, so its mount is left out.
#[test]
fn a_daemon_that_is_stopped_keeps_no_command_from_its_work() {
    let Some(v) = volume("stopped", 64) else {
        return;
    };
    let led = "import ctypes; print(ctypes.CDLL(None).syscall(511))";
    let pid = v.daemon_pid().expect("a daemon");
    stop(pid);
    let ran = run(&mut command(&v, true, &["python3", "-c", led]));
    signal(pid, "CONT");
    assert_eq!((ran.code, ran.stdout.trim_end()), (0, "1"), "{}", ran.all());
    v.finish();
}
