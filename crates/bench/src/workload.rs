//! The six Filebench personalities of the ccfs paper (section 5.3, Figure 5), scaled by one factor.
//!
//! An operation is one of Filebench's flowops: open, create, read of a whole file, append, write, fsync, close, delete, stat.

use ccfs_tests::rng::Rng;
use ccfs_tests::sys::{self, R};
use serde::Serialize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Personality {
    Varmail,
    Randwrite,
    Createfiles,
    Seqwrite,
    Fileserver,
    Webserver,
}

pub const ALL: [Personality; 6] = [
    Personality::Varmail,
    Personality::Randwrite,
    Personality::Createfiles,
    Personality::Seqwrite,
    Personality::Fileserver,
    Personality::Webserver,
];

/// Mean sizes, bytes.
const MEAN_SMALL: u64 = 16 << 10;
const MEAN_FILESERVER: u64 = 128 << 10;
const APPEND: u64 = 16 << 10;

impl Personality {
    pub fn name(self) -> &'static str {
        match self {
            Personality::Varmail => "varmail",
            Personality::Randwrite => "randwrite",
            Personality::Createfiles => "createfiles",
            Personality::Seqwrite => "seqwrite",
            Personality::Fileserver => "fileserver",
            Personality::Webserver => "webserver",
        }
    }
    pub fn from_name(name: &str) -> Option<Personality> {
        ALL.into_iter().find(|p| p.name() == name)
    }
    /// Threads of the paper (and of Filebench where it is silent).
    fn threads(self) -> u64 {
        match self {
            Personality::Varmail => 16,
            Personality::Randwrite | Personality::Seqwrite => 1,
            Personality::Createfiles => 64,
            Personality::Fileserver => 50,
            Personality::Webserver => 100,
        }
    }
    /// Files (or bytes of the one file) at scale 1.
    fn full_size(self) -> u64 {
        match self {
            Personality::Varmail => 8_000,
            Personality::Randwrite => 10 << 30,
            Personality::Createfiles => 1_000_000,
            Personality::Seqwrite => 32 << 30,
            Personality::Fileserver => 80_000,
            Personality::Webserver => 50_000,
        }
    }
    /// Space that the volume needs at a scale, MiB, rounded up generously.
    pub fn space_mib(self, scale: f64) -> u64 {
        let size = self.full_size() as f64 * scale;
        let bytes = match self {
            Personality::Randwrite | Personality::Seqwrite => size,
            Personality::Fileserver => size * (MEAN_FILESERVER + APPEND) as f64,
            _ => size * (MEAN_SMALL + APPEND) as f64,
        };
        1024 + (bytes * 1.6) as u64 / (1 << 20)
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Outcome {
    pub operations: u64,
    pub seconds: f64,
    pub ops_per_second: f64,
}

struct Shared<'a> {
    dir: &'a Path,
    stop: AtomicBool,
    operations: AtomicU64,
    /// Work that is left, for personalities with a fixed amount.
    left: AtomicU64,
    size: u64,
    deadline: Duration,
}

/// Fills `dir` and runs for `seconds` or until the personality's amount is done.
pub fn run(
    personality: Personality,
    dir: &Path,
    scale: f64,
    seconds: f64,
    seed: u64,
) -> R<Outcome> {
    let size = ((personality.full_size() as f64 * scale) as u64).max(64);
    prepare(personality, dir, size, seed)?;
    sys::syncfs(&sys::open(dir, libc::O_RDONLY, 0)?)?;
    let shared = Shared {
        dir,
        stop: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        left: AtomicU64::new(size),
        size,
        deadline: Duration::from_secs_f64(seconds),
    };
    let threads = personality.threads();
    let barrier = Barrier::new(threads as usize + 1);
    let (elapsed, result) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|id| {
                let (shared, barrier) = (&shared, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    Thread {
                        id,
                        threads,
                        rng: Rng::part(seed, id),
                        shared,
                        buf: vec![0x5A; 1 << 20],
                    }
                    .run(personality)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        while start.elapsed() < shared.deadline && !workers.iter().all(|w| w.is_finished()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        shared.stop.store(true, Ordering::Relaxed);
        let mut result = Ok(());
        for worker in workers {
            result = result.and(worker.join().unwrap_or(Err(libc::EIO)));
        }
        (start.elapsed(), result)
    });
    result?;
    let operations = shared.operations.load(Ordering::Relaxed);
    let seconds = elapsed.as_secs_f64();
    Ok(Outcome {
        operations,
        seconds,
        ops_per_second: operations as f64 / seconds,
    })
}

fn file(dir: &Path, n: u64, width: u64) -> PathBuf {
    if width == 0 {
        dir.join(format!("{n:08}"))
    } else {
        dir.join(format!("d{:05}/{n:08}", n / width))
    }
}

/// Entries per directory; 0: all in one.
fn width(personality: Personality) -> u64 {
    match personality {
        Personality::Createfiles => 100,
        Personality::Fileserver | Personality::Webserver => 20,
        _ => 0,
    }
}

fn prepare(personality: Personality, dir: &Path, size: u64, seed: u64) -> R<()> {
    let (width, mut rng) = (width(personality), Rng::new(seed));
    let mean = if personality == Personality::Fileserver {
        MEAN_FILESERVER
    } else {
        MEAN_SMALL
    };
    match personality {
        Personality::Seqwrite => {
            return sys::open(dir.join("file"), libc::O_CREAT | libc::O_WRONLY, 0o644).map(drop);
        }
        Personality::Randwrite => {
            let fd = sys::open(dir.join("file"), libc::O_CREAT | libc::O_WRONLY, 0o644)?;
            let buf = vec![1u8; 1 << 20];
            for at in (0..size).step_by(buf.len()) {
                sys::pwrite(&fd, &buf, at)?;
            }
            return sys::fsync(&fd);
        }
        _ => {}
    }
    for d in 0..if width == 0 { 0 } else { size.div_ceil(width) } {
        sys::mkdir(dir.join(format!("d{d:05}")), 0o755)?;
    }
    if personality == Personality::Webserver {
        sys::open(dir.join("log"), libc::O_CREAT | libc::O_WRONLY, 0o644)?;
    }
    if personality != Personality::Createfiles {
        for n in 0..size {
            // Varmail and fileserver delete and create: a fifth of the names is free at the start.
            if personality != Personality::Webserver && n % 5 == 4 {
                continue;
            }
            let fd = sys::open(file(dir, n, width), libc::O_CREAT | libc::O_WRONLY, 0o644)?;
            sys::pwrite(&fd, &vec![2u8; gamma(&mut rng, mean) as usize], 0)?;
        }
    }
    Ok(())
}

/// A size around `mean` (0.5 to 1.5 times): Filebench's gamma is not worth its code here.
fn gamma(rng: &mut Rng, mean: u64) -> u64 {
    mean / 2 + rng.below(mean)
}

struct Thread<'a> {
    id: u64,
    threads: u64,
    rng: Rng,
    shared: &'a Shared<'a>,
    buf: Vec<u8>,
}

impl Thread<'_> {
    fn run(mut self, personality: Personality) -> R<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let done = match personality {
                Personality::Varmail => self.varmail()?,
                Personality::Randwrite => self.randwrite()?,
                Personality::Createfiles => self.createfiles()?,
                Personality::Seqwrite => self.seqwrite()?,
                Personality::Fileserver => self.fileserver()?,
                Personality::Webserver => self.webserver()?,
            };
            if done == 0 {
                break;
            }
            self.shared.operations.fetch_add(done, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A name of this thread's own share of the files.
    fn name(&mut self, width: u64) -> PathBuf {
        let mine = (self.shared.size / self.threads).max(1);
        let n = self.rng.below(mine) * self.threads + self.id;
        file(self.shared.dir, n.min(self.shared.size - 1), width)
    }

    fn open(&self, path: &Path, flags: i32) -> R<Option<OwnedFd>> {
        match sys::open(path, flags, 0o644) {
            Ok(fd) => Ok(Some(fd)),
            Err(libc::ENOENT | libc::EEXIST) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn read_whole(&mut self, fd: &OwnedFd) -> R<()> {
        let mut at = 0;
        loop {
            match sys::pread(fd, &mut self.buf, at)? {
                0 => return Ok(()),
                n => at += n as u64,
            }
        }
    }

    fn append(&mut self, fd: &OwnedFd, mean: u64) -> R<()> {
        let n = gamma(&mut self.rng, mean) as usize;
        sys::write(fd, &self.buf[..n]).map(drop)
    }

    fn delete(&mut self, width: u64) -> R<u64> {
        match sys::unlink(self.name(width)) {
            Ok(()) => Ok(1),
            Err(libc::ENOENT) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Delete; create, append, fsync; open, read, append, fsync; open, read.
    fn varmail(&mut self) -> R<u64> {
        let mut done = self.delete(0)?;
        let path = self.name(0);
        if let Some(fd) = self.open(&path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY)? {
            self.append(&fd, APPEND)?;
            sys::fsync(&fd)?;
            done += 4;
        }
        let path = self.name(0);
        if let Some(fd) = self.open(&path, libc::O_RDWR | libc::O_APPEND)? {
            self.read_whole(&fd)?;
            self.append(&fd, APPEND)?;
            sys::fsync(&fd)?;
            done += 5;
        }
        let path = self.name(0);
        if let Some(fd) = self.open(&path, libc::O_RDONLY)? {
            self.read_whole(&fd)?;
            done += 3;
        }
        Ok(done.max(1))
    }

    /// 100 random 4K overwrites and an fsync.
    fn randwrite(&mut self) -> R<u64> {
        let fd = sys::open(self.shared.dir.join("file"), libc::O_WRONLY, 0)?;
        for _ in 0..100 {
            let block = self.rng.below(self.shared.size / 4096);
            sys::pwrite(&fd, &self.buf[..4096], block * 4096)?;
        }
        sys::fsync(&fd)?;
        Ok(101)
    }

    /// Create, write, close; every name once.
    fn createfiles(&mut self) -> R<u64> {
        let Ok(left) = self
            .shared
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        else {
            return Ok(0);
        };
        let path = file(
            self.shared.dir,
            self.shared.size - left,
            width(Personality::Createfiles),
        );
        let fd = sys::open(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644)?;
        self.append(&fd, MEAN_SMALL)?;
        Ok(3)
    }

    /// One append of 1 MiB.
    fn seqwrite(&mut self) -> R<u64> {
        let fd = sys::open(
            self.shared.dir.join("file"),
            libc::O_WRONLY | libc::O_APPEND,
            0,
        )?;
        let mut done = 0;
        while !self.shared.stop.load(Ordering::Relaxed) {
            if self.shared.left.fetch_sub(1 << 20, Ordering::Relaxed) <= 1 << 20 {
                // The amount is written: begin again.
                sys::ftruncate(&fd, 0)?;
                self.shared.left.store(self.shared.size, Ordering::Relaxed);
            }
            sys::write(&fd, &self.buf)?;
            done += 1;
        }
        Ok(done)
    }

    /// Create and write; open and append; open and read; delete; stat.
    fn fileserver(&mut self) -> R<u64> {
        let width = width(Personality::Fileserver);
        let mut done = 0;
        let path = self.name(width);
        if let Some(fd) = self.open(&path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY)? {
            self.append(&fd, MEAN_FILESERVER)?;
            done += 3;
        }
        let path = self.name(width);
        if let Some(fd) = self.open(&path, libc::O_WRONLY | libc::O_APPEND)? {
            self.append(&fd, APPEND)?;
            done += 3;
        }
        let path = self.name(width);
        if let Some(fd) = self.open(&path, libc::O_RDONLY)? {
            self.read_whole(&fd)?;
            done += 3;
        }
        done += self.delete(width)?;
        let _ = sys::stat(self.name(width));
        Ok(done + 1)
    }

    /// Ten times open, read, close; then an append to the log.
    fn webserver(&mut self) -> R<u64> {
        for _ in 0..10 {
            let path = self.name(width(Personality::Webserver));
            if let Some(fd) = self.open(&path, libc::O_RDONLY)? {
                self.read_whole(&fd)?;
            }
        }
        let log = sys::open(
            self.shared.dir.join("log"),
            libc::O_WRONLY | libc::O_APPEND,
            0,
        )?;
        self.append(&log, APPEND)?;
        Ok(32)
    }
}
