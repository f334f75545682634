//! What an fsync costs beside one write and one flush of the same image file, by turns in one run, and what it writes.
//!
//! `cargo run --release -p ccfs-engine --example fsync_cost -- DIRECTORY [SECONDS]`: makes a volume in DIRECTORY (mke2fs) and removes
//! it. Cases: 4 KiB over old data, 4 KiB appended, a new file of 4 KiB; the same beside a stream that writes all the time; and how
//! long a writer of the same stream waits while another thread syncs (the ccfs paper's T_LOCKED).
use ccfs_device::{AlignedBuf, Device, FileDevice, OpenMode, SharedBuf, Slice, Write};
use ccfs_engine::watch::What;
use ccfs_engine::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const BLOCK: usize = 4096;
/// Blocks of the file that is written over.
const BLOCKS: u64 = 4096;
/// Syncs, and bare writes, before the other one's turn.
const TURN: u64 = 20;
const SIZE: u64 = 3 << 30;

fn cx(stream: u64) -> Context {
    Context {
        umask: 0o022,
        ..Context::root(StreamId(stream))
    }
}

/// Latencies, microseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn time<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let out = f();
        self.0.push(start.elapsed().as_secs_f64() * 1e6);
        out
    }

    fn quantile(&mut self, q: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let last = self.0.len().saturating_sub(1);
        self.0
            .get((last as f64 * q) as usize)
            .copied()
            .unwrap_or(0.0)
    }
}

/// A volume on an image file, and a second file beside it for the bare writes: same disk, same way of opening, fully allocated.
struct Bench {
    volume: Arc<Volume>,
    bare: FileDevice,
    /// Of each case and of the bare writes.
    time: Duration,
}

impl Bench {
    fn new(dir: &Path, time: Duration) -> Outcome<Bench> {
        let image = dir.join("fsync_cost.img");
        let bare = dir.join("fsync_cost.bare");
        for path in [&image, &bare] {
            let file = std::fs::File::create(path)?;
            let zeros = vec![0u8; 1 << 20];
            let len = if path == &image { SIZE } else { 64 << 20 };
            for at in 0..len >> 20 {
                std::os::unix::fs::FileExt::write_all_at(&file, &zeros, at << 20)?;
            }
            file.sync_all()?;
        }
        let made = std::process::Command::new("mke2fs")
            .args("-q -F -t ext4 -b 4096 -i 4096 -E nodiscard".split(' '))
            // Else the host notes for each block of the log that it is written for the first time.
            .env("UNIX_IO_NOZEROOUT", "1")
            .arg(&image)
            .status()?;
        if !made.success() {
            return Err("mke2fs failed".into());
        }
        let device = Arc::new(FileDevice::open(&image, OpenMode::ReadWrite)?);
        let volume = Volume::mount(device, Options::default())?;
        let bare = FileDevice::open(&bare, OpenMode::ReadWrite)?;
        Ok(Bench { volume, bare, time })
    }

    fn bare_write(&self, number: u64) -> Outcome<()> {
        let offset = number * 7919 % BLOCKS * BLOCK as u64;
        let buf = SharedBuf::from(AlignedBuf::from_bytes(&[number as u8; BLOCK]));
        let write = Write {
            offset,
            parts: vec![Slice::whole(buf)],
        };
        ccfs_device::write_all(&self.bare, vec![write])?;
        Ok(self.bare.flush()?)
    }

    fn file(&self, stream: u64, name: &str) -> Outcome<Ino> {
        let made = self
            .volume
            .mknod(&cx(stream), ROOT_INO, name.as_bytes(), 0o100644, 0)?;
        Ok(made.ino)
    }

    fn write(&self, stream: u64, ino: Ino, block: u64) -> Outcome<()> {
        let bytes = [block as u8; BLOCK];
        let at = block * BLOCK as u64;
        self.volume
            .write(&cx(stream), ino, at, &bytes, WriteFlags::default())?;
        Ok(())
    }

    /// One case: `op(n)` changes something and returns what to sync.
    fn case(&self, name: &str, op: impl Fn(u64) -> Outcome<Ino>) -> Outcome<()> {
        let v = &self.volume;
        v.syncfs(&cx(2))?;
        let (mut sync, mut bare) = (Times::default(), Times::default());
        let before = v.status().counters;
        let mut written = 0;
        let start = Instant::now();
        let mut n = 0;
        while start.elapsed() < self.time {
            for _ in 0..TURN {
                let ino = op(n)?;
                sync.time(|| v.fsync(&cx(2), ino, false))?;
                n += 1;
            }
            for i in 0..TURN {
                bare.time(|| self.bare_write(n + i))?;
            }
            written += TURN;
        }
        let c = v.status().counters;
        let each = |a: u64, b: u64| (a - b) as f64 / written as f64;
        let (p50, p99) = (sync.quantile(0.5), sync.quantile(0.99));
        let (bare50, bare99) = (bare.quantile(0.5), bare.quantile(0.99));
        println!(
            "{name:<28} fsync {p50:>6.0} us (p99 {p99:>6.0}, {:>4.1} x)   bare {bare50:>6.0} us (p99 {bare99:>6.0})   ratio {:.2}   per fsync: {:.2} flushes, {:.2} writes, {:.0} bytes, {:.0} logged",
            p99 / p50,
            p50 / bare50,
            each(c.device_flushes, before.device_flushes),
            each(c.device_writes, before.device_writes),
            each(c.device_written_bytes, before.device_written_bytes),
            each(c.logged_bytes, before.logged_bytes),
        );
        Ok(())
    }

    fn cases(&self, suffix: &str) -> Outcome<()> {
        let old = self.file(2, &format!("old{suffix}"))?;
        (0..BLOCKS).try_for_each(|b| self.write(2, old, b))?;
        let grown = self.file(2, &format!("grown{suffix}"))?;
        self.case(&format!("overwrite 4K{suffix}"), |n| {
            self.write(2, old, n * 7919 % BLOCKS).map(|()| old)
        })?;
        self.case(&format!("append 4K{suffix}"), |n| {
            self.write(2, grown, n).map(|()| grown)
        })?;
        self.case(&format!("new file of 4K{suffix}"), |n| {
            let ino = self.file(2, &format!("f{n}{suffix}"))?;
            self.write(2, ino, 0).map(|()| ino)
        })
    }

    /// Another stream makes, fills and removes files until `stop`.
    fn load(&self, stop: &AtomicBool) -> Outcome<()> {
        let mut n = 0u64;
        while !stop.load(Ordering::Relaxed) {
            let ino = self.file(3, &format!("l{n}"))?;
            (0..16).try_for_each(|b| self.write(3, ino, b))?;
            if n >= 500 {
                self.volume
                    .unlink(&cx(3), ROOT_INO, format!("l{}", n - 500).as_bytes())?;
            }
            if n.is_multiple_of(64) {
                self.volume.streamsync(StreamId(3))?;
            }
            n += 1;
        }
        Ok(())
    }

    /// How long a write waits while another thread of its stream syncs all the time.
    fn stall(&self) -> Outcome<()> {
        let stop = AtomicBool::new(false);
        let ino = self.file(4, "stalled")?;
        let mut times = Times::default();
        std::thread::scope(|s| -> Outcome<()> {
            let syncer = s.spawn(|| {
                let mut syncs = 0u64;
                while !stop.load(Ordering::Relaxed) && self.volume.streamsync(StreamId(4)).is_ok() {
                    syncs += 1;
                }
                syncs
            });
            let start = Instant::now();
            let mut n = 0;
            while start.elapsed() < self.time {
                times.time(|| self.write(4, ino, n % BLOCKS))?;
                n += 1;
            }
            stop.store(true, Ordering::Relaxed);
            let syncs = syncer.join().map_err(|_| "the syncing thread panicked")?;
            let (events, _) = self.volume.events(0, usize::MAX);
            let placing = events.iter().filter_map(|e| match e.what {
                What::Commit(c) if c.stream == StreamId(4) => Some((c.data_bytes, c.data_time)),
                _ => None,
            });
            let (bytes, longest) = placing.max_by_key(|p| p.1).unwrap_or_default();
            println!(
                "writes of 4K beside {syncs} syncs of their stream: median {:.1} us, p99 {:.1} us, p99.9 {:.1} us, longest {:.0} us; longest placing of a commit {:.0} us ({} KiB, flush of large data included)",
                times.quantile(0.5),
                times.quantile(0.99),
                times.quantile(0.999),
                times.quantile(1.0),
                longest.as_secs_f64() * 1e6,
                bytes >> 10
            );
            Ok(())
        })
    }

    /// Threads that append 4 KiB and sync, each in its stream.
    fn together(&self, threads: u64) -> Outcome<()> {
        let before = self.volume.status().counters;
        std::thread::scope(|s| -> Outcome<()> {
            let work = |t: u64| -> Outcome<()> {
                let ino = self.file(10 + t, &format!("together{threads}.{t}"))?;
                let start = Instant::now();
                let mut n = 0;
                while start.elapsed() < self.time {
                    self.write(10 + t, ino, n)?;
                    self.volume.fsync(&cx(10 + t), ino, false)?;
                    n += 1;
                }
                Ok(())
            };
            let spawn = |t| s.spawn(move || work(t).map_err(|e| e.to_string()));
            let running: Vec<_> = (0..threads).map(spawn).collect();
            for thread in running {
                thread.join().map_err(|_| "a thread panicked")??;
            }
            Ok(())
        })?;
        let c = self.volume.status().counters;
        let syncs = (c.syncs - before.syncs) as f64;
        println!(
            "{threads} threads that append and sync: {:.0} syncs a second, {:.2} flushes per sync",
            syncs / self.time.as_secs_f64(),
            (c.device_flushes - before.device_flushes) as f64 / syncs
        );
        Ok(())
    }

    /// Filebench's varmail, one thread: remove; create, append, fsync; read, append, fsync; read. 13 operations as it counts them,
    /// opens and closes among them; 16 KiB each.
    fn varmail(&self) -> Outcome<()> {
        let v = &self.volume;
        let before = v.status().counters;
        let start = Instant::now();
        let (mut n, mut out) = (0u64, Vec::new());
        while start.elapsed() < self.time {
            let name = |n: u64| format!("mail{n}");
            if n >= 200 {
                v.unlink(&cx(2), ROOT_INO, name(n - 200).as_bytes())?;
            }
            let ino = self.file(2, &name(n))?;
            for (first, end) in [(0, 4), (4, 8)] {
                (first..end).try_for_each(|b| self.write(2, ino, b))?;
                v.fsync(&cx(2), ino, false)?;
                v.read(ino, 0, 8 * BLOCK, &mut out)?;
            }
            n += 1;
        }
        let c = v.status().counters;
        let each = |bytes: u64| bytes as f64 / (n * 13) as f64;
        println!(
            "varmail: {:.0} bytes logged per operation, {:.0} with checkpoints; {:.2} flushes per fsync",
            each(c.logged_bytes - before.logged_bytes),
            each(
                c.logged_bytes + c.checkpoint_bytes - before.logged_bytes - before.checkpoint_bytes
            ),
            (c.device_flushes - before.device_flushes) as f64 / (2 * n) as f64
        );
        Ok(())
    }
}

fn run(dir: &Path, time: Duration) -> Outcome<()> {
    let bench = Bench::new(dir, time)?;
    bench.cases("")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| -> Outcome<()> {
        let load = s.spawn(|| bench.load(&stop).map_err(|e| e.to_string()));
        let result = bench.cases(", beside a writer");
        stop.store(true, Ordering::Relaxed);
        load.join().map_err(|_| "the load panicked")??;
        result
    })?;
    for threads in [1, 2, 4, 8] {
        bench.together(threads)?;
    }
    bench.varmail()?;
    bench.stall()?;
    let c = bench.volume.status().counters;
    println!("{} checkpoints, {} commits", c.checkpoints, c.commits);
    Ok(bench.volume.unmount()?)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        return Err("usage: fsync_cost DIRECTORY [SECONDS]".into());
    };
    let dir = Path::new(&dir);
    let seconds = args.next().map_or(Ok(3), |s| s.parse())?;
    let result = run(dir, Duration::from_secs(seconds));
    for name in ["fsync_cost.img", "fsync_cost.bare"] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    result
}
