//! BarrierFS's measurements in virtual time: the same figures on any machine, however busy.
use ccfs_device::{AlignedBuf, Device, MemoryDevice, Ordering, Params, VirtualTime, Write};
use ccfs_engine::*;
use std::sync::Arc;
use std::time::Duration;

/// What a program's write or sync call takes of the processor.
pub const CALL: Duration = Duration::from_micros(2);
const FILE_BLOCKS: u64 = 8192;
const BLOCK: u64 = 4096;

/// The emulated devices, and what the paper's authors charge for a barrier command on them, percent.
pub const DEVICES: [(&str, u32); 3] = [("ssd-plain", 5), ("ssd-capacitor", 0), ("ufs", 0)];

/// What comes after each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// fdatasync: transfer and flush.
    Sync,
    /// fdatasync where flushes do nothing: transfer only.
    Transfer,
    /// fdatabarrier, on a device without barrier command.
    Barrier,
    /// fdatabarrier, on a device with one.
    BarrierCommand,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Blocks of a file that is there.
    Overwrite,
    Append,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Writes a second until the last transfer had ended, and until a last sync had returned.
    pub transferred: f64,
    pub durable: f64,
    /// Commands on the device after a submission: mean and most.
    pub depth: (f64, u64),
    /// How long each call after a write took, sorted.
    pub latencies: Vec<Duration>,
    pub commits: u64,
    pub flushes: u64,
    /// Bytes written to the log and straight to their place.
    pub logged: u64,
    pub direct: u64,
}

fn cx() -> Context {
    Context {
        stream: StreamId(77),
        uid: 0,
        gid: 0,
        umask: 0,
        ignore_fsync: false,
        privileged: true,
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// `count` writes of 4 KiB at random blocks, each followed by `after`, in one thread.
pub fn measure(
    base: &MemoryDevice,
    device: &str,
    percent: u32,
    work: Work,
    after: After,
    count: u64,
) -> Figures {
    let ordering = match after {
        After::Transfer => Ordering::NoFlush,
        After::BarrierCommand => Ordering::Epochs { percent },
        _ => Ordering::Flush,
    };
    let params = Params::preset(device).unwrap();
    let dev = Arc::new(VirtualTime::new(
        Arc::new(base.snapshot()),
        params,
        ordering,
    ));
    let options = Options {
        background: false,
        ..Options::default()
    };
    let v = Volume::mount(dev.clone() as Arc<dyn Device>, options).unwrap();
    let cx = cx();
    let f = v.mknod(&cx, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    let write = |block: u64, byte: u8| {
        let data = [byte; BLOCK as usize];
        v.write(&cx, f, block * BLOCK, &data, WriteFlags::default())
            .unwrap();
    };
    if work == Work::Overwrite {
        (0..FILE_BLOCKS).for_each(|block| write(block, 1));
    }
    v.syncfs(&cx).unwrap();
    v.checkpoint().unwrap();
    dev.queue_depth();
    let (began, before) = (dev.drained(), v.status().counters);
    dev.spend(began.saturating_sub(dev.now()));
    let mut latencies = Vec::new();
    let mut random = 1u64;
    for n in 0..count {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let block = match work {
            Work::Overwrite => (random >> 33) % FILE_BLOCKS,
            Work::Append => n,
        };
        dev.spend(CALL);
        write(block, n as u8);
        let start = dev.now();
        match after {
            After::Sync | After::Transfer => v.fsync(&cx, f, true).unwrap(),
            After::Barrier | After::BarrierCommand => {
                v.barrier(&cx, SyncCall::File(f), 0).unwrap();
            }
            After::Nothing => continue,
        }
        dev.spend(CALL);
        latencies.push(dev.now() - start);
    }
    // What still waits for the device goes out when it has room.
    if after != After::Nothing {
        dev.spend(dev.drained().saturating_sub(dev.now()));
        v.barrier(&cx, SyncCall::File(f), 0).unwrap();
    }
    let depth = dev.queue_depth();
    let transferred = dev.drained() - began;
    v.syncfs(&cx).unwrap();
    let durable = dev.now() - began;
    let after_all = v.status().counters;
    v.unmount().unwrap();
    latencies.sort();
    Figures {
        transferred: per_second(count, transferred),
        durable: per_second(count, durable),
        depth,
        latencies,
        commits: after_all.commits - before.commits,
        flushes: after_all.device_flushes - before.device_flushes,
        logged: after_all.logged_bytes - before.logged_bytes,
        direct: after_all.direct_bytes - before.direct_bytes,
    }
}

/// What the device itself takes a second of random writes of 4 KiB without any order, with as many under way as it likes.
pub fn device_limit(base: &MemoryDevice, device: &str, count: u64) -> f64 {
    let params = Params::preset(device).unwrap();
    let dev = VirtualTime::new(Arc::new(base.snapshot()), params, Ordering::Flush);
    let buf = Arc::new(AlignedBuf::zeroed(BLOCK as usize));
    let writes = (0..count).map(|n| Write::new(n * 7919 % FILE_BLOCKS * BLOCK, buf.clone()));
    dev.wait(dev.submit(writes.collect())).unwrap();
    per_second(count, dev.now())
}
