//! Little memory: programs change more than there is room for, and what they have changed can go only by way of the daemon, which
//! needs memory as well.

use super::Outcome;
use crate::harness::{Fs, Volume};
use crate::sys::{self, Map, R};
use libc::{O_CREAT, O_RDONLY, O_RDWR};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What is left to the programs, the daemon and the page cache, bytes.
const LEFT: u64 = 320 << 20;
/// Of each file that is written over and over, bytes.
const FILE: u64 = 64 << 20;
const PIECE: usize = 1 << 20;
const WRITERS: usize = 3;
/// Calls of sync(2) and syncfs(2), in turns.
const CALLS: u32 = 16;
/// All calls together: one that has not ended then hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// Sync calls end, and what they covered survives a kill of the daemon.
pub fn little_memory() -> Outcome {
    let mut v = Volume::unformatted(Fs::Ccfs, "memory").options("commit=600");
    v.mkfs(512);
    v.mount();
    // There is no swap: what is touched stays.
    let ballast = vec![1u8; available().saturating_sub(LEFT) as usize];
    let writers_end = Arc::new(AtomicBool::new(false));
    let stores_end = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for n in 0..WRITERS {
        writers.push(start(v.path(&format!("written{n}")), &writers_end, write));
    }
    let storing = start(v.path("mapped"), &stores_end, store);
    let (done, calls) = channel();
    let dir = v.mnt().to_path_buf();
    std::thread::spawn(move || call(&dir, &done));
    let (mut longest, end) = (Duration::ZERO, Instant::now() + PATIENCE);
    for n in 1..=CALLS {
        let left = end.saturating_duration_since(Instant::now());
        match calls.recv_timeout(left) {
            Ok(took) => longest = longest.max(took),
            Err(_) => return Outcome::Failed(format!("sync call {n} does not end")),
        }
    }
    println!("{CALLS} sync calls; the longest took {longest:?}");
    // A store to a mount that is gone is a signal; a write is only an error.
    stores_end.store(true, Relaxed);
    storing.join().expect("a thread").expect("stores");
    v.kill9();
    writers_end.store(true, Relaxed);
    for writer in writers {
        let _ = writer.join().expect("a thread");
    }
    drop(std::hint::black_box(ballast));
    v.mount();
    for n in 1..=CALLS {
        let found = fs::read_to_string(v.path(&format!("call{n}")));
        assert_eq!(found.ok(), Some(n.to_string()), "what call {n} covered");
    }
    v.finish();
    Outcome::Ok
}

/// Memory that programs can have, bytes.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("MemAvailable") << 10
}

type Work = fn(&Path, &AtomicBool) -> R<()>;

fn start(path: PathBuf, end: &Arc<AtomicBool>, work: Work) -> JoinHandle<R<()>> {
    let end = end.clone();
    std::thread::spawn(move || work(&path, &end))
}

fn write(path: &Path, end: &AtomicBool) -> R<()> {
    let file = sys::open(path, O_RDWR | O_CREAT, 0o600)?;
    let piece = vec![7; PIECE];
    let mut at = 0;
    while !end.load(Relaxed) {
        sys::pwrite(&file, &piece, at)?;
        at = (at + PIECE as u64) % FILE;
    }
    Ok(())
}

fn store(path: &Path, end: &AtomicBool) -> R<()> {
    let file = sys::open(path, O_RDWR | O_CREAT, 0o600)?;
    sys::ftruncate(&file, FILE as i64)?;
    let map = Map::new(&file, 0, FILE as usize, true)?;
    let mut round = 0u8;
    while !end.load(Relaxed) {
        round = round.wrapping_add(1);
        for at in (0..FILE as usize).step_by(4096) {
            map.store(at, &[round]);
            if end.load(Relaxed) {
                break;
            }
        }
    }
    Ok(())
}

fn call(dir: &Path, done: &Sender<Duration>) {
    let root = sys::open(dir, O_RDONLY, 0).expect("the root");
    for n in 1..=CALLS {
        fs::write(dir.join(format!("call{n}")), n.to_string()).expect("write");
        let start = Instant::now();
        match n % 2 {
            0 => sys::sync_all(),
            _ => sys::syncfs(&root).expect("syncfs"),
        }
        if done.send(start.elapsed()).is_err() {
            return;
        }
    }
}
