//! The program `ccfs`, as a user runs it.
use crate::run::{Ran, run, sibling};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The program under test.
pub fn ccfs() -> Command {
    let mut command = Command::new(sibling("ccfs"));
    // What the daemon says is nothing for the log of this machine's kernel.
    command
        .stdin(Stdio::null())
        .env("CCFS_LOG_KMSG", "/dev/null");
    command
}

/// Runs `ccfs` with these arguments.
/// A mount goes by the transport that `CCFS_TEST_TRANSPORT` names (auto, uring, dev), if it does.
pub fn ccfs_with(args: &[&str]) -> Ran {
    match (args, std::env::var("CCFS_TEST_TRANSPORT")) {
        (["mount", rest @ ..], Ok(way)) => {
            let option = format!("transport={way}");
            run(ccfs().args(["mount", "-o", &option]).args(rest))
        }
        _ => run(ccfs().args(args)),
    }
}

/// Mounts a volume, which has to succeed.
pub fn mount(image: &str, dir: &str) {
    let ran = ccfs_with(&["mount", image, dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Unmounts, whatever the outcome. A test of another thread that is just starting a program can hold a copy of our
/// descriptors for an instant.
pub fn try_unmount(dir: &str) -> Ran {
    let mut attempt = 0;
    loop {
        let ran = ccfs_with(&["umount", dir]);
        if !ran.err.contains("in use by") || attempt == 600 {
            return ran;
        }
        attempt += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Unmounts; the volume is at rest.
pub fn unmount(dir: &str) {
    let ran = try_unmount(dir);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// The daemon's process id, as `status` tells it.
pub fn daemon(dir: &str) -> u32 {
    let status = ccfs_with(&["status", "--json", dir]);
    let value: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    value["mount"]["pid"].as_u64().unwrap() as u32
}
