//! Overwriting: through the log (and home with a checkpoint), or to new blocks? What each costs on the emulated devices, and what it leaves
//! for sequential reads.
//!
//! `cargo run --release -p ccfs-engine --example overwrites -- [MIB [DEVICE...]]`: a file of 64 MiB, written in order; MIB (64) of it are overwritten at
//! random, aligned places, synced every 100 writes (at least 1 MiB). In virtual time, so the same on any machine; all device time counts, the checkpoints' too.
use ccfs_device::Device;
use ccfs_disks::{MemoryDevice, Ordering, Params, VirtualTime};
use ccfs_engine::*;
use std::process::Command;
use std::sync::Arc;

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DEVICES: [&str; 5] = ["ssd", "ssd-plain", "ssd-capacitor", "ufs", "hdd"];
const SIZES: [usize; 8] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
];
const FILE: u64 = 64 << 20;
const READ: usize = 128 << 10;

/// What a run gave.
struct Figures {
    /// Device time for each write, microseconds.
    us: f64,
    kib: f64,
    /// Sequential reading of the file afterwards, MB/s, and how many pieces it is in.
    read: f64,
    pieces: u64,
}

fn cx() -> Context {
    Context::root(StreamId(77))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mib: u64 = args
        .next()
        .map_or(64, |n| n.parse().expect("MIB: a number"));
    let asked: Vec<String> = args.collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=64"]);
    assert!(
        mke2fs
            .arg(&path)
            .arg("1G")
            .output()
            .unwrap()
            .status
            .success()
    );
    let base = MemoryDevice::from_file(&path).unwrap();
    println!(
        "| device | KiB | log: us/write | remap | KiB/write | remap | read in order afterwards, MB/s | remap | pieces | remap |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for device in DEVICES {
        if !asked.is_empty() && !asked.iter().any(|a| a == device) {
            continue;
        }
        for size in SIZES {
            let [log, remap] =
                [u64::MAX, 0].map(|remap_min| run(&base, device, size, mib, remap_min));
            println!(
                "| {device} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} | {} | {} |",
                size >> 10,
                log.us,
                remap.us,
                log.kib,
                remap.kib,
                log.read,
                remap.read,
                log.pieces,
                remap.pieces
            );
        }
    }
}

fn run(base: &MemoryDevice, device: &str, size: usize, mib: u64, remap_min: u64) -> Figures {
    let params = Params::preset(device).unwrap();
    let dev = Arc::new(VirtualTime::new(
        Arc::new(base.snapshot()),
        params,
        Ordering::Flush,
    ));
    let options = Options {
        background: false,
        remap_min,
        ..Options::default()
    };
    let v = Volume::mount(dev.clone() as Arc<dyn Device>, options).unwrap();
    let ino = v.mknod(&cx(), ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    let bytes = vec![7; 1 << 20];
    for at in (0..FILE).step_by(bytes.len()) {
        v.write(&cx(), ino, at, &bytes, WriteFlags::default())
            .unwrap();
    }
    v.syncfs(&cx()).unwrap();
    v.checkpoint().unwrap();
    let (began, before) = (dev.now(), v.status().counters.device_written_bytes);
    let writes = (mib << 20) / size as u64;
    let every = (100 * size as u64).max(1 << 20) / size as u64;
    let mut random = 1u64;
    for n in 1..=writes {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % (FILE / size as u64) * size as u64;
        v.write(&cx(), ino, at, &bytes[..size], WriteFlags::default())
            .unwrap();
        if n % every == 0 {
            v.fsync(&cx(), ino, false).unwrap();
        }
    }
    v.fsync(&cx(), ino, false).unwrap();
    v.checkpoint().unwrap();
    let (us, kib) = (
        (dev.now() - began).as_secs_f64() * 1e6 / writes as f64,
        (v.status().counters.device_written_bytes - before) as f64 / 1024.0 / writes as f64,
    );
    let (start, reads) = (dev.now(), v.status().counters.device_reads);
    let mut out = Vec::new();
    for at in (0..FILE).step_by(READ) {
        v.read(ino, at, READ, &mut out).unwrap();
    }
    let read = FILE as f64 / 1e6 / (dev.now() - start).as_secs_f64();
    let pieces = v.status().counters.device_reads - reads;
    v.unmount().unwrap();
    Figures {
        us,
        kib,
        read,
        pieces,
    }
}
