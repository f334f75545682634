//! What age does to a volume: sequential writing and reading of a new file on a fresh volume, and on one that a fileserver has used for long.
//!
//! `cargo run --release -p ccfs-engine --example aged -- [OPERATIONS [FULL]]`: a volume of 1 GiB on emulated devices in virtual time, so the same on any
//! machine. Files of 64 to 192 KiB (Filebench's fileserver, a hundredth of its number) fill FULL (60) percent; OPERATIONS (200,000) of them are removed, made anew and appended to at
//! random by four streams in turn. Then 64 MiB are written and synced, and read.
use ccfs_device::Device;
use ccfs_disks::{MemoryDevice, Ordering, Params, VirtualTime};
use ccfs_engine::*;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FILE: u64 = 64 << 20;
const READ: usize = 128 << 10;
const APPEND: u64 = 16 << 10;
const VOLUME: u64 = 1 << 30;

fn cx(stream: u64) -> Context {
    Context::root(StreamId(stream))
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A file of the server: its name, its inode, its length in bytes.
struct Served(String, Ino, u64);

fn write(v: &Volume, stream: u64, ino: Ino, from: u64, len: u64) {
    let bytes = vec![7; 1 << 20];
    let mut at = from;
    while at < from + len {
        let piece = (from + len - at).min(1 << 20) as usize;
        v.write(&cx(stream), ino, at, &bytes[..piece], WriteFlags::default())
            .unwrap();
        at += piece as u64;
    }
}

fn make(v: &Volume, stream: u64, name: &str) -> Ino {
    let made = v.mknod(&cx(stream), ROOT_INO, name.as_bytes(), 0o100644, 0);
    made.unwrap().ino
}

/// The fileserver, until `operations` are done.
fn age(v: &Volume, operations: u64, full: u64) {
    let mut random = Random(1);
    let (mut files, mut bytes): (Vec<Served>, u64) = (Vec::new(), 0);
    let most = VOLUME / 100 * full;
    for n in 0..operations {
        let stream = 100 + n % 4;
        let size = (64 << 10) + random.below(128 << 10);
        if bytes + size < most && (files.is_empty() || random.below(2) == 0) {
            let name = format!("s{n}");
            let ino = make(v, stream, &name);
            write(v, stream, ino, 0, size);
            files.push(Served(name, ino, size));
            bytes += size;
        } else {
            let at = random.below(files.len() as u64) as usize;
            if bytes + APPEND < most && random.below(2) == 0 {
                let file = &mut files[at];
                write(v, stream, file.1, file.2, APPEND);
                file.2 += APPEND;
                bytes += APPEND;
            } else {
                let Served(name, _, size) = files.swap_remove(at);
                v.unlink(&cx(stream), ROOT_INO, name.as_bytes()).unwrap();
                bytes -= size;
            }
        }
        if n % 200 == 0 {
            // A commit for about 10 MB, as memory and the interval make them.
            v.tick(Duration::ZERO).unwrap();
        }
    }
    v.syncfs(&cx(100)).unwrap();
    v.checkpoint().unwrap();
}

/// MB/s of writing, with the sync, and of reading; and reads of the device.
fn measure(v: &Volume, dev: &VirtualTime) -> (f64, f64, u64) {
    let ino = make(v, 77, "new");
    let rate = |start: Duration| FILE as f64 / 1e6 / (dev.now() - start).as_secs_f64();
    let start = dev.now();
    write(v, 77, ino, 0, FILE);
    v.fsync(&cx(77), ino, false).unwrap();
    let written = rate(start);
    v.checkpoint().unwrap();
    let (start, reads) = (dev.now(), v.status().counters.device_reads);
    let mut out = Vec::new();
    for at in (0..FILE).step_by(READ) {
        v.read(ino, at, READ, &mut out).unwrap();
    }
    (
        written,
        rate(start),
        v.status().counters.device_reads - reads,
    )
}

fn main() {
    let number = |n: String| n.parse().expect("a number");
    let mut args = std::env::args().skip(1).map(number);
    let (operations, full) = (args.next().unwrap_or(200_000), args.next().unwrap_or(60));
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
    let fresh = MemoryDevice::from_file(&path).unwrap();
    let aged = fresh.snapshot();
    let aged = Arc::new(aged);
    let options = || Options {
        background: false,
        ..Options::default()
    };
    let v = Volume::mount(aged.clone() as Arc<dyn Device>, options()).unwrap();
    age(&v, operations, full);
    v.unmount().unwrap();
    println!(
        "| device | fresh: write MB/s | aged | fresh: read MB/s | aged | fresh: pieces | aged |\n|---|---|---|---|---|---|---|"
    );
    for device in ["ssd", "ssd-plain", "ufs", "hdd"] {
        let [fresh, aged] = [&fresh, &*aged].map(|base| {
            let params = Params::preset(device).unwrap();
            let inner = Arc::new(base.snapshot());
            let dev = Arc::new(VirtualTime::new(inner, params, Ordering::Flush));
            let v = Volume::mount(dev.clone() as Arc<dyn Device>, options()).unwrap();
            let figures = measure(&v, &dev);
            v.unmount().unwrap();
            figures
        });
        println!(
            "| {device} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {} |",
            fresh.0, aged.0, fresh.1, aged.1, fresh.2, aged.2
        );
    }
}
