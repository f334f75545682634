//! How long single writes take while memory is touched for the first time, with and without the thread that prepares it, and what the process then keeps.
//!
//! `cargo run --release -p ccfs-engine --example first_touch -- DIRECTORY [ahead [FILES A SECOND [MEBIBYTES]]]`: makes an image of 2 GiB in DIRECTORY
//! (mke2fs) and removes it. With `ahead` (anything else: no) memory is prepared. Files of 16 KiB are made, 8,000 a second and 96 MiB if nothing is
//! said, so that none of it need be committed. Two bursts, with a rest between them in which memory goes back.
use ccfs_device::{FileDevice, OpenMode};
use ccfs_engine::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const FILE: usize = 16 << 10;
/// Longer than twice the time after which the pool gives memory back.
const REST: Duration = Duration::from_secs(23);

/// Resident now and at most, MiB.
fn resident() -> Outcome<[u64; 2]> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? >> 10)
    };
    let sizes = mib("VmRSS:").zip(mib("VmHWM:")).ok_or("no sizes")?;
    Ok([sizes.0, sizes.1])
}

/// Page faults of this thread.
fn faults() -> Outcome<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat")?;
    let after = stat.rsplit(") ").next().ok_or("no faults")?;
    Ok(after.split(' ').nth(7).ok_or("no faults")?.parse()?)
}

/// Sorted times of the writes.
fn burst(v: &Volume, dir: &str, files: u32, rate: f64) -> Outcome<Vec<Duration>> {
    let cx = Context::root(StreamId(2));
    let dir = v.mkdir(&cx, ROOT_INO, dir.as_bytes(), 0o755)?.ino;
    let bytes = vec![7; FILE];
    let began = Instant::now();
    let mut times = Vec::new();
    for n in 0..files {
        let due = Duration::from_secs_f64(f64::from(n) / rate);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let name = format!("f{n:08}");
        let ino = v.mknod(&cx, dir, name.as_bytes(), 0o100644, 0)?.ino;
        let start = Instant::now();
        v.write(&cx, ino, 0, &bytes, WriteFlags::default())?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times)
}

fn run(image: &Path, rate: f64, files: u32) -> Outcome<()> {
    std::fs::File::create(image)?.set_len(2 << 30)?;
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096"]);
    if !mke2fs.arg(image).status()?.success() {
        return Err("mke2fs failed".into());
    }
    let options = Options {
        dirty_limit: 192 << 20,
        commit_interval: Duration::from_secs(3),
        ..Options::default()
    };
    let v = Volume::mount(
        Arc::new(FileDevice::open(image, OpenMode::ReadWrite)?),
        options,
    )?;
    std::thread::sleep(Duration::from_secs(1));
    println!("mounted: {} MiB", resident()?[0]);
    for name in ["first burst", "second burst"] {
        let before = faults()?;
        let times = burst(&v, name, files, rate)?;
        let faults = faults()? - before;
        let us = |beyond: usize| times[times.len() - 1 - beyond].as_micros();
        let slow = times.iter().filter(|t| t.as_micros() >= 200).count();
        let all: Duration = times.iter().sum();
        let [now, peak] = resident()?;
        std::thread::sleep(REST);
        println!(
            "{name}: {:.2} us a write; slowest {}, 10th {}, 50th {}, 1 of 100 {} us; {slow} of 200 us or more; {faults} faults; {now} MiB (at most {peak}), after {} s {}",
            all.as_secs_f64() * 1e6 / times.len() as f64,
            us(0),
            us(9),
            us(49),
            us(times.len() / 100),
            REST.as_secs(),
            resident()?[0],
        );
    }
    Ok(v.unmount()?)
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next() else {
        return Err("usage: first_touch DIRECTORY [ahead [FILES A SECOND [MEBIBYTES]]]".into());
    };
    if args.next().is_some_and(|word| word == "ahead") {
        ccfs_device::keep_memory_ready()?;
    }
    let rate = args.next().map_or(Ok(8_000.0), |s| s.parse())?;
    let mib: u32 = args.next().map_or(Ok(96), |s| s.parse())?;
    let image = Path::new(&dir).join("first_touch.img");
    let result = run(&image, rate, (mib << 20) / FILE as u32);
    let _ = std::fs::remove_file(&image);
    result
}
