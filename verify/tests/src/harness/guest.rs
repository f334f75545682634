//! Tests under another kernel: this test program, run again in a virtual machine.

use super::cmd::{Output, run};
use std::path::Path;
use std::process::Command;

/// Runs the named tests of this very program under the kernel of a Debian suite (scripts/guest/run.sh), `seconds` at most.
///
/// `None`, and a line `skipped: why`, where there is no kernel or no qemu: without network, for instance. With the environment
/// variable `CI` that is a panic: nobody would miss a test that never runs.
pub fn in_guest(suite: &str, tests: &[&str], seconds: u64) -> Option<Output> {
    let program = std::env::current_exe().expect("own path");
    // TARGET/release/deps/PROGRAM
    let target = program.ancestors().nth(3).expect("the target folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/guest/run.sh");
    let mut command = Command::new(script);
    command
        .args(["-t", &seconds.to_string(), suite])
        .arg(&program)
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .args(tests)
        .env("CARGO_TARGET_DIR", target)
        .env_remove("CCFS_TEST_TRANSPORT");
    let out = run(&mut command);
    const NOTHING_TO_RUN: i32 = 126;
    if out.code == NOTHING_TO_RUN {
        let why = format!("no guest with the kernel of {suite}: {}", out.stderr);
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("skipped: {tests:?}: {why}");
        return None;
    }
    Some(out)
}
