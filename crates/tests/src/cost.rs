//! What transactions cost a device: pages written, flushes, time.
use crate::harness::{Fs, Volume};
use crate::sys;
use std::fmt;
use std::time::Instant;

/// What one transaction costs.
pub struct Cost {
    pub way: &'static str,
    /// Of 4 KiB, written to the device; all that the unmount writes is counted.
    pub pages: f64,
    pub flushes: f64,
    /// Transactions a second.
    pub rate: f64,
}

/// The lines above a table of costs.
pub const HEADINGS: &str =
    "| way | pages written | flushes | transactions a second |\n|---|---|---|---|";

impl Cost {
    /// Measures `work`, which does so many transactions, on a new volume on a loop device of its own. What `prepare` does is durable before.
    pub fn of<T>(
        way: &'static str,
        fs: Fs,
        transactions: u64,
        prepare: impl FnOnce(&Volume) -> T,
        work: impl FnOnce(&Volume, &T),
    ) -> Cost {
        let mut v = Volume::unformatted(fs, "cost").on_loop_device();
        v.mkfs(256);
        v.mount();
        let with = prepare(&v);
        let fd = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
        sys::syncfs(&fd).expect("syncfs");
        drop(fd);
        let before = (v.device_bytes_written(), v.device_flushes());
        let start = Instant::now();
        work(&v, &with);
        let took = start.elapsed();
        drop(with);
        v.umount();
        let each = |n: u64| n as f64 / transactions as f64;
        Cost {
            way,
            pages: each(v.device_bytes_written() - before.0) / 4096.0,
            flushes: each(v.device_flushes() - before.1),
            rate: transactions as f64 / took.as_secs_f64(),
        }
    }

    /// This way needs less of the device than the other one: the only thing that holds on any machine.
    pub fn assert_less_than(&self, other: &Cost) {
        assert!(self.pages < other.pages, "{self} {other}");
        assert!(self.flushes < other.flushes, "{self} {other}");
    }
}

/// A line of a table.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "| {} | {:.1} | {:.1} | {:.1} |",
            self.way, self.pages, self.flushes, self.rate
        )
    }
}
