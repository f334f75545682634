//! How often each request was served.
use crate::abi::opcode_name;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Opcodes from here on share the last counter.
const COUNTERS: usize = 64;

/// Requests by opcode since the mount.
#[derive(Debug)]
pub struct Metrics([AtomicU64; COUNTERS]);

impl Default for Metrics {
    fn default() -> Self {
        Metrics(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Metrics {
    pub fn count(&self, opcode: u32) {
        self.0[(opcode as usize).min(COUNTERS - 1)].fetch_add(1, Relaxed);
    }

    /// (opcode's name, requests), those that never came left out.
    pub fn list(&self) -> Vec<(&'static str, u64)> {
        let all = self.0.iter().enumerate();
        all.map(|(opcode, n)| (opcode_name(opcode as u32), n.load(Relaxed)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }
}
