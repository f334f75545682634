//! BarrierFS's measurements in virtual time: the same figures on any machine, however busy.
use ccfs_device::{AlignedBuf, Device, FlashDevice, SharedBuf, Write};
use ccfs_disks::{MemoryDevice, Ordering, Params, VirtualTime};
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

pub fn cx() -> Context {
    Context::root(StreamId(77))
}

pub fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// A volume on an emulated device, and a program that uses it.
pub struct Rig {
    pub dev: Arc<VirtualTime>,
    pub v: Arc<Volume>,
    pub cx: Context,
    after: After,
}

impl Rig {
    pub fn new(base: &MemoryDevice, device: &str, percent: u32, after: After) -> Rig {
        let ordering = match after {
            After::Transfer => Ordering::NoFlush,
            After::BarrierCommand => Ordering::Epochs { percent },
            _ => Ordering::Flush,
        };
        let params = Params::preset(device).unwrap();
        let inner = Arc::new(base.snapshot());
        let dev = Arc::new(VirtualTime::new(inner, params, ordering));
        let options = Options {
            background: false,
            ..Options::default()
        };
        let v = Volume::mount(FlashDevice::or_plain(dev.clone()).unwrap(), options).unwrap();
        let cx = cx();
        Rig { dev, v, cx, after }
    }

    pub fn create(&self, name: &str) -> Ino {
        self.dev.spend(CALL);
        let made = self
            .v
            .mknod(&self.cx, ROOT_INO, name.as_bytes(), 0o100644, 0);
        made.unwrap().ino
    }

    pub fn write(&self, file: Ino, offset: u64, data: &[u8]) {
        self.dev.spend(CALL);
        let flags = WriteFlags::default();
        self.v.write(&self.cx, file, offset, data, flags).unwrap();
    }

    /// What the rig does where only order matters.
    pub fn order(&self, file: Ino) {
        match self.after {
            After::Sync | After::Transfer => self.sync(file),
            After::Barrier | After::BarrierCommand => {
                self.dev.spend(CALL);
                self.v.barrier(&self.cx, SyncCall::File(file), 0).unwrap();
            }
            After::Nothing => {}
        }
    }

    pub fn sync(&self, file: Ino) {
        self.dev.spend(CALL);
        self.v.fsync(&self.cx, file, true).unwrap();
    }

    /// Everything is durable and home; the time from here on counts.
    pub fn begin(&self) -> Duration {
        self.v.syncfs(&self.cx).unwrap();
        self.v.checkpoint().unwrap();
        self.dev.queue_depth();
        let began = self.dev.drained();
        self.dev.spend(began.saturating_sub(self.dev.now()));
        began
    }

    /// Sends what still waits for the device's room; the time of the last transfer's end.
    pub fn drain(&self, file: Ino) -> Duration {
        if self.after != After::Nothing {
            let left = self.dev.drained().saturating_sub(self.dev.now());
            self.dev.spend(left);
            self.v.barrier(&self.cx, SyncCall::File(file), 0).unwrap();
        }
        self.dev.drained()
    }
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
    let rig = Rig::new(base, device, percent, after);
    let (dev, v) = (&rig.dev, &rig.v);
    let f = rig.create("f");
    if work == Work::Overwrite {
        (0..FILE_BLOCKS).for_each(|block| rig.write(f, block * BLOCK, &[1; BLOCK as usize]));
    }
    let began = rig.begin();
    let before = v.status().counters;
    let mut latencies = Vec::new();
    let mut random = Random(1);
    for n in 0..count {
        let block = match work {
            Work::Overwrite => random.below(FILE_BLOCKS),
            Work::Append => n,
        };
        rig.write(f, block * BLOCK, &[n as u8; BLOCK as usize]);
        let start = dev.now();
        if after != After::Nothing {
            rig.order(f);
            latencies.push(dev.now() - start);
        }
    }
    let transferred = rig.drain(f) - began;
    let depth = dev.queue_depth();
    v.syncfs(&rig.cx).unwrap();
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

/// The same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What the device itself takes a second of random writes of 4 KiB without any order, with as many under way as it likes.
pub fn device_limit(base: &MemoryDevice, device: &str, count: u64) -> f64 {
    let params = Params::preset(device).unwrap();
    let dev = VirtualTime::new(Arc::new(base.snapshot()), params, Ordering::Flush);
    let buf = SharedBuf::from(AlignedBuf::zeroed(BLOCK as usize));
    let writes = (0..count).map(|n| Write::new(n * 7919 % FILE_BLOCKS * BLOCK, buf.clone()));
    dev.wait(dev.submit(writes.collect())).unwrap();
    per_second(count, dev.now())
}
