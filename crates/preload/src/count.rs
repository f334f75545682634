//! Counts for `ccfs direct --report`.
use ccfs_intercept::report::Counters;
pub use ccfs_intercept::report::Reason;
use std::ffi::CStr;
use std::sync::OnceLock;

static COUNTERS: OnceLock<Counters> = OnceLock::new();

/// From here on it is counted there.
pub fn begin(path: &CStr) {
    if let Some(counters) = Counters::open(path) {
        let _ = COUNTERS.set(counters);
    }
    left(Reason::Processes);
}

/// A call of this number was made here.
pub fn made(number: u64) {
    if let Some(counters) = COUNTERS.get() {
        counters.made(number as usize);
    }
}

/// Something went the kernel's way.
pub fn left(reason: Reason) {
    if let Some(counters) = COUNTERS.get() {
        counters.left(reason);
    }
}
