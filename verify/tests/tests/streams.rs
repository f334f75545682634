//! Streams of unmodified programs: `ccfs stream run`.
use ccfs_tests::harness::{Fs, Volume, ccfs_program, run};
use ccfs_tests::sys;
use std::process::Command;

fn volume() -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("streams") {
        return None;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, "streams").options("commit=600");
    v.mkfs(64);
    v.mount();
    Some(v)
}

/// Runs a shell command below the mount with `ccfs stream run`.
fn in_stream(v: &Volume, options: &[&str], script: &str) {
    let mut command = Command::new(ccfs_program());
    command
        .args(["stream", "run"])
        .args(options)
        .args(["--", "sh", "-euc", script])
        .current_dir(v.mnt());
    let out = run(&mut command);
    assert_eq!(out.code, 0, "{script}: {}", out.all());
}

/// A program and its children are one stream: its sync carries all of it and nothing of others.
#[test]
fn program_and_children_in_a_stream_of_their_own() {
    let Some(mut v) = volume() else { return };
    std::fs::write(v.path("outside-before"), b"1").expect("write");
    in_stream(
        &v,
        &[],
        "echo a >inside-1; sh -c 'echo b >inside-2; (echo c >inside-3)'; sync inside-3",
    );
    std::fs::write(v.path("outside-after"), b"2").expect("write");
    v.kill9();
    v.mount();
    for (name, text) in [
        ("inside-1", "a\n"),
        ("inside-2", "b\n"),
        ("inside-3", "c\n"),
    ] {
        assert_eq!(
            std::fs::read_to_string(v.path(name)).ok().as_deref(),
            Some(text),
            "C3: {name}"
        );
    }
    for name in ["outside-before", "outside-after"] {
        assert_eq!(
            sys::lstat(v.path(name)),
            Err(libc::ENOENT),
            "C4: {name} belongs to another stream"
        );
    }
    v.finish();
}

/// With --ignore-fsync the program's syncs return at once; order is kept, durability is not promised.
#[test]
fn ignored_fsync() {
    let Some(mut v) = volume() else { return };
    let before = v.status()["counters"]["device_flushes"]
        .as_u64()
        .expect("a counter");
    in_stream(
        &v,
        &["--ignore-fsync"],
        "for i in $(seq 50); do echo $i >f$i; sync f$i; done",
    );
    let after = v.status()["counters"]["device_flushes"]
        .as_u64()
        .expect("a counter");
    assert!(
        after - before <= 2,
        "50 ignored syncs flushed the device {} times",
        after - before
    );
    // A sync of the volume by somebody else is not ignored.
    let fd = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
    sys::syncfs(&fd).expect("syncfs");
    drop(fd);
    v.kill9();
    v.mount();
    assert_eq!(
        std::fs::read_to_string(v.path("f50")).ok().as_deref(),
        Some("50\n")
    );
    v.finish();
}

/// The exit code of the program is the exit code of `ccfs stream run`.
#[test]
fn exit_code_is_the_programs() {
    let Some(v) = volume() else { return };
    let mut command = Command::new(ccfs_program());
    let out = run(command
        .args(["stream", "run", "--", "sh", "-c", "exit 7"])
        .current_dir(v.mnt()));
    assert_eq!(out.code, 7, "{}", out.all());
    v.finish();
}
