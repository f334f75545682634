//! What transactions cost a device: pages written, flushes, time.
use crate::harness::{Fs, Volume};
use crate::sys;
use std::fmt;
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Fs(Fs),
    /// ccfs on emulated transactional flash, without a log.
    Flash,
}

impl From<Fs> for On {
    fn from(fs: Fs) -> On {
        On::Fs(fs)
    }
}

/// Bytes of a flash page in the image: its data and a sector that says what it is.
const FLASH_SLOT: f64 = 4608.0;

/// What one transaction costs.
pub struct Cost {
    pub way: &'static str,
    /// Of 4 KiB, written to the device (flash: programmed by it); all that the unmount writes is counted.
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
        on: impl Into<On>,
        transactions: u64,
        prepare: impl FnOnce(&Volume) -> T,
        work: impl FnOnce(&Volume, &T),
    ) -> Cost {
        let (mut v, page) = match on.into() {
            On::Fs(fs) => (Volume::unformatted(fs, "cost").on_flash(false), 4096.0),
            On::Flash => (
                Volume::unformatted(Fs::Ccfs, "flash-cost").on_flash(true),
                FLASH_SLOT,
            ),
        };
        v = v.on_loop_device();
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
            pages: each(v.device_bytes_written() - before.0) / page,
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
