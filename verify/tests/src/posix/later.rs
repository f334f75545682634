//! Asynchronous direct writes, and whoever looks at the file beside them.

use super::*;
use crate::sys::{self, Calls, Direct, Later, Map};
use libc::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PART: usize = 16 << 10;
const PARTS: usize = 40;
const FILE: usize = PART * PARTS;
const ROUNDS: usize = 60;
/// Two calls that wait for each other do so until the daemon gives one up, after 30 s.
const VAIN: Duration = Duration::from_secs(20);

pub fn asynchronous_direct(c: &mut Checks) {
    for calls in [Calls::Aio, Calls::Ring] {
        sizes(c, calls);
        beside_readers(c, calls);
        beside_others(c, calls);
    }
}

fn queue(depth: usize, calls: Calls) -> Later {
    Later::new(calls, depth as u32).expect("a queue for asynchronous I/O")
}

/// Ends the threads beside a check, also when that panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// What has completed counts for the size.
fn sizes(c: &mut Checks, calls: Calls) {
    let f = c.at(&format!("sizes-{calls:?}"));
    let fd = sys::open(&f, O_CREAT | O_RDWR | O_DIRECT, 0o644).expect("create");
    let mut later = queue(PARTS, calls);
    let mut buf = Direct::new(FILE);
    for (n, part) in buf.bytes().chunks_mut(PART).enumerate() {
        part.fill(n as u8 + 1);
    }
    let all = vec![Ok(PART); PARTS];
    let end = (FILE + PART) as u64;
    let written = later.write(&fd, buf.bytes(), PART, PART as u64, 0);
    c.eq("writes that make the file longer", written, all.clone());
    c.eq("size", sys::fstat(&fd).map(|s| s.size), Ok(end));
    c.eq("SEEK_END", sys::lseek(&fd, 0, SEEK_END), Ok(end));
    let a = sys::open(&f, O_WRONLY | O_DIRECT | O_APPEND, 0).expect("open");
    let appended = later.write(&a, buf.bytes(), PART, 0, 0);
    c.eq("appends, all at once", appended, all);
    let end = end + FILE as u64;
    c.eq("size after them", sys::fstat(&fd).map(|s| s.size), Ok(end));
    let bytes = bytes_of(&f);
    c.that("a hole before", bytes[..PART].iter().all(|b| *b == 0));
    c.that("bytes", bytes[PART..][..FILE] == *buf.bytes());
    let mut parts: Vec<u8> = Vec::new();
    for part in bytes[PART + FILE..].chunks(PART) {
        c.that("an append is whole", part.iter().all(|b| *b == part[0]));
        parts.push(part[0]);
    }
    parts.sort_unstable();
    c.eq("and there once", parts, (1..=PARTS as u8).collect());
}

/// Who reads through the page cache after writes have completed gets the new bytes, whatever others have read meanwhile.
fn beside_readers(c: &mut Checks, calls: Calls) {
    let f = c.at(&format!("read-{calls:?}"));
    let fd = sys::open(&f, O_CREAT | O_RDWR | O_DIRECT, 0o644).expect("create");
    sys::ftruncate(&fd, FILE as i64).expect("ftruncate");
    let (mut later, mut buf) = (queue(PARTS, calls), Direct::new(FILE));
    let reader = sys::open(&f, O_RDONLY, 0).expect("open");
    let map = Map::new(&reader, 0, FILE, false).expect("mmap");
    let (stop, mut seen) = (AtomicBool::new(false), vec![0; FILE]);
    let (mut stale, mut mapped) = (0, 0);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut seen = vec![0; FILE];
                while !stop.load(Relaxed) {
                    let fd = sys::open(&f, O_RDONLY, 0).expect("open");
                    sys::pread(&fd, &mut seen, 0).expect("read");
                }
            });
        }
        for round in 0..ROUNDS {
            buf.bytes().fill(round as u8);
            let written = later.write(&fd, buf.bytes(), PART, 0, 0);
            let read = sys::pread(&reader, &mut seen, 0);
            let whole = written.iter().all(|w| *w == Ok(PART)) && read == Ok(FILE);
            stale += usize::from(!whole || seen != buf.bytes());
            map.load(0, &mut seen);
            mapped += usize::from(seen != buf.bytes());
        }
    });
    c.eq(&format!("{calls:?}: rounds with old bytes"), stale, 0);
    c.eq(&format!("{calls:?}: the same, mapped"), mapped, 0);
}

/// Buffered writes, stores, truncations and syncs beside them: nothing waits for ever, and in the end all agree on the content.
fn beside_others(c: &mut Checks, calls: Calls) {
    let f = c.at(&format!("mixed-{calls:?}"));
    let fd = sys::open(&f, O_CREAT | O_RDWR | O_DIRECT, 0o644).expect("create");
    sys::ftruncate(&fd, FILE as i64).expect("ftruncate");
    let (mut later, mut buf) = (queue(PARTS, calls), Direct::new(FILE));
    let (stop, f) = (AtomicBool::new(false), &f);
    let slowest = Mutex::new(Duration::ZERO);
    let repeat = |work: &dyn Fn(usize)| {
        let mut n = 0;
        while !stop.load(Relaxed) {
            work(n);
            n += 1;
        }
    };
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let fd = sys::open(f, O_RDWR, 0).expect("open");
            let map = Map::new(&fd, 0, PART, true).expect("mmap");
            repeat(&|n| map.store(n * 999 % PART, b"s"));
        });
        scope.spawn(|| {
            let fd = sys::open(f, O_RDWR, 0).expect("open");
            // Never past the end: the file keeps the length of `buf`.
            let buffered = [b'b'; 5000];
            let at = |n| (n * 7777 % (FILE - buffered.len())) as u64;
            repeat(&|n| {
                let begun = Instant::now();
                drop(sys::pwrite(&fd, &buffered, at(n)));
                let mut slowest = slowest.lock().unwrap();
                *slowest = begun.elapsed().max(*slowest);
            });
        });
        scope.spawn(|| {
            let fd = sys::open(f, O_RDWR, 0).expect("open");
            let mut seen = vec![0; FILE];
            repeat(&|_| drop(sys::fdatasync(&fd)));
            let _ = sys::pread(&fd, &mut seen, 0);
        });
        scope.spawn(|| {
            let fd = sys::open(f, O_RDWR, 0).expect("open");
            // The mapping above is never cut off.
            repeat(&|n| {
                let cut = PART + n * 4096 % (FILE - PART);
                sys::ftruncate(&fd, cut as i64).expect("ftruncate");
                sys::ftruncate(&fd, FILE as i64).expect("ftruncate");
                bytes_of(f);
            });
        });
        for round in 0..ROUNDS / 4 {
            buf.bytes().fill(round as u8);
            let flags = [0, RWF_DSYNC][round % 2];
            let written = later.write(&fd, buf.bytes(), PART, 0, flags);
            // ext4 makes an error of a page that it could not drop for a direct write.
            let ended = |w: &R<usize>| *w == Ok(PART) || c.fs == Fs::Ext4 && *w == Err(EIO);
            let all = written.iter().all(ended);
            c.that("all complete", all);
        }
    });
    let slowest = slowest.into_inner().unwrap();
    c.that("no write waits for one that waits for it", slowest < VAIN);
    let cached = bytes_of(f);
    c.eq(
        "direct read",
        sys::pread(&fd, buf.bytes(), 0),
        Ok(cached.len()),
    );
    let same = buf.bytes()[..cached.len()] == *cached;
    c.that("cache and disk agree", same);
}
