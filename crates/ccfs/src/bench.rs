//! `ccfs bench`: becomes the program `ccfs-bench`. Workloads and peers are none of a mounted volume's business, so they are not in here.
use crate::cli::BenchArgs;
use crate::failure::{Context, Failure, Outcome};
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const PROGRAM: &str = "ccfs-bench";

pub fn run(args: &BenchArgs) -> Outcome<u8> {
    let me = std::env::current_exe().or_fail(1, "cannot find this program")?;
    let near = me.with_file_name(PROGRAM);
    let program = if near.is_file() {
        near.as_os_str()
    } else {
        OsStr::new(PROGRAM)
    };
    // It measures the program that was called, not another one that lies in PATH.
    let error = Command::new(program)
        .args(&args.args)
        .env("CCFS_BIN", &me)
        .exec();
    let place = me.parent().unwrap_or(&me).display();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::new(
            127,
            format!(
                "ccfs-bench is neither in {place} nor in PATH; build it: cargo build --release -p ccfs-bench"
            ),
        ),
        _ => Failure::new(126, format!("cannot run {PROGRAM}: {error}")),
    })
}
