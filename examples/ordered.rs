//! The program of ordered.c in Rust, with a scope for the stream. It is built with the workspace: `ccfs-example-ordered`.
//!
//! usage: ordered DIR ROUNDS
#![forbid(unsafe_code)]
use ccfs_client::{Entered, STREAM_IGNORE_FSYNC};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(dir), Some(rounds)) = (args.get(1), args.get(2).and_then(|r| r.parse().ok())) else {
        eprintln!("usage: ordered DIR ROUNDS");
        std::process::exit(2);
    };
    let dir = Path::new(dir);
    let stream = match Entered::new(dir, STREAM_IGNORE_FSYNC) {
        Ok(stream) => Some(stream),
        Err(e) if e.kind() == io::ErrorKind::Unsupported => None,
        Err(e) => return Err(e),
    };
    println!("{}", if stream.is_some() { "ordered" } else { "plain" });
    let mut log = File::options()
        .append(true)
        .create(true)
        .open(dir.join("log"))?;
    for round in 1..=rounds {
        step(dir, &mut log, round, stream.is_some())?;
        if round % 10 == 0 {
            match &stream {
                Some(stream) => stream.sync()?,
                None => File::open(dir)?.sync_all()?,
            }
            println!("synced {round}");
        }
    }
    Ok(())
}

/// One record, and the state that names it. Without order each step waits for the one before.
fn step(dir: &Path, log: &mut File, round: u64, ordered: bool) -> io::Result<()> {
    log.write_all(format!("record {round}\n").as_bytes())?;
    let mut state = File::create(dir.join("state.new"))?;
    state.write_all(format!("{round}\n").as_bytes())?;
    if !ordered {
        log.sync_all()?;
        state.sync_all()?;
    }
    fs::rename(dir.join("state.new"), dir.join("state"))
}
