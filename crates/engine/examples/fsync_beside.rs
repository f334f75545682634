//! How long an fsync of 4 KiB takes in one stream while another stream writes much, with and without pacing, on the disk here and on
//! emulated ones.
//!
//! `cargo run --release -p ccfs-engine --example fsync_beside -- DIRECTORY [SECONDS [ROUNDS [DEVICE[=MB]...]]]`: makes an image of 1 GiB in DIRECTORY
//! (mke2fs) and removes it. The other stream writes over a file of 256 MiB at 100 MB/s, on the hard disk at 20 MB/s, or as it is said, in pieces of 64 KiB,
//! and never syncs; the first one appends, syncs and rests for a millisecond. In real time: only on an idle machine are latencies the device's.
use ccfs_device::{Device, FileDevice, OpenMode};
use ccfs_disks::{MemoryDevice, Params, Timed};
use ccfs_engine::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The disk here, and the emulated ones; megabytes that the other stream writes in a second.
const DEVICES: [(&str, f64); 6] = [
    ("disk", 100.0),
    ("ssd", 100.0),
    ("ssd-capacitor", 100.0),
    ("ssd-plain", 100.0),
    ("ufs", 100.0),
    ("hdd", 20.0),
];
const PIECE: usize = 64 << 10;
const FILE: u64 = 256 << 20;

fn cx(stream: u64) -> Context {
    Context {
        umask: 0o022,
        ..Context::root(StreamId(stream))
    }
}

fn file(v: &Volume, stream: u64, name: &str) -> Outcome<Ino> {
    let made = v.mknod(&cx(stream), ROOT_INO, name.as_bytes(), 0o100644, 0)?;
    Ok(made.ino)
}

/// Writes at a rate until it is told to stop; counts bytes.
fn load(v: &Volume, rate: f64, stop: &AtomicBool, written: &AtomicU64) -> Outcome<()> {
    let ino = file(v, 3, "much")?;
    let bytes = vec![7; PIECE];
    let began = Instant::now();
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        v.write(&cx(3), ino, at % FILE, &bytes, WriteFlags::default())?;
        at += PIECE as u64;
        written.store(at, Ordering::Relaxed);
        let due = Duration::from_secs_f64(at as f64 / (rate * 1e6));
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    Ok(())
}

/// One run; prints a row.
fn run(device: Arc<dyn Device>, name: &str, rate: f64, paced: bool, time: Duration) -> Outcome<()> {
    let options = Options {
        paced,
        ..Options::default()
    };
    let v = Volume::mount(device, options)?;
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut times = Vec::new();
    std::thread::scope(|s| -> Outcome<()> {
        let other = s.spawn(|| load(&v, rate, &stop, &written).map_err(|e| e.to_string()));
        let ino = file(&v, 2, "little")?;
        let began = Instant::now();
        while began.elapsed() < time {
            let at = times.len() as u64 * 4096;
            v.write(&cx(2), ino, at, &[5; 4096], WriteFlags::default())?;
            let start = Instant::now();
            v.fsync(&cx(2), ino, false)?;
            times.push(start.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        Ok(other.join().map_err(|_| "the load panicked")??)
    })?;
    times.sort();
    let ms = |q: f64| {
        let at = ((times.len() - 1) as f64 * q) as usize;
        times[at].as_secs_f64() * 1e3
    };
    let c = v.status().counters;
    println!(
        "| {name} | {} | {} | {:.2} | {:.2} | {:.1} | {:.2} | {:.0} | {} | {} | {:.2} |",
        if paced { "paced" } else { "as one" },
        times.len(),
        ms(0.5),
        ms(0.99),
        ms(0.99) / ms(0.5),
        ms(1.0),
        written.load(Ordering::Relaxed) as f64 / 1e6 / time.as_secs_f64(),
        c.device_flushes,
        c.checkpoints,
        c.longest_stall_us as f64 / 1e3,
    );
    Ok(v.unmount()?)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        return Err("usage: fsync_beside DIRECTORY [SECONDS [ROUNDS [DEVICE[=MB]...]]]".into());
    };
    let seconds = args.next().map_or(Ok(6), |s| s.parse())?;
    let rounds: u32 = args.next().map_or(Ok(2), |s| s.parse())?;
    let asked: Vec<String> = args.collect();
    let image = Path::new(&dir).join("fsync_beside.img");
    let result = all(&image, Duration::from_secs(seconds), rounds, &asked);
    let _ = std::fs::remove_file(&image);
    result
}

fn all(image: &Path, time: Duration, rounds: u32, asked: &[String]) -> Outcome<()> {
    let make = || -> Outcome<()> {
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "nodiscard"]);
        match mke2fs.arg(image).status()?.success() {
            true => Ok(()),
            false => Err("mke2fs failed".into()),
        }
    };
    let disk = std::fs::File::create(image)?;
    disk.set_len(1 << 30)?;
    make()?;
    let base = MemoryDevice::from_file(image)?;
    // Every block of it is there before it is measured.
    let zeros = vec![0; 1 << 20];
    (0..1024).try_for_each(|n| std::os::unix::fs::FileExt::write_all_at(&disk, &zeros, n << 20))?;
    disk.sync_all()?;
    println!(
        "| device | writes | syncs | median ms | 99 % ms | ratio | longest ms | other stream MB/s | flushes | checkpoints | longest stall ms |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for (name, usual) in DEVICES {
        let ask = asked.iter().find_map(|a| {
            let (device, rate) = a.split_once('=').unwrap_or((a, ""));
            (device == name).then(|| match rate {
                "" => Ok(usual),
                rate => rate.parse(),
            })
        });
        let rate = match ask {
            Some(rate) => rate?,
            None if asked.is_empty() => usual,
            None => continue,
        };
        for _ in 0..rounds {
            for paced in [false, true] {
                let device: Arc<dyn Device> = match name {
                    "disk" => {
                        make()?;
                        Arc::new(FileDevice::open(image, OpenMode::ReadWrite)?)
                    }
                    _ => {
                        let params = Params::preset(name).ok_or("no such device")?;
                        Arc::new(Timed::new(Arc::new(base.snapshot()), params))
                    }
                };
                run(device, name, rate, paced, time)?;
            }
        }
    }
    Ok(())
}
