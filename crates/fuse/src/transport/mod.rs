//! How requests come from the kernel and replies go back.
pub mod channel;
pub mod dev;
pub mod uring;

use parking_lot::Mutex;
use std::path::Path;
use uring::Rings;

/// The switch of the kernel (6.14 and later).
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

const AUTO_WANTS_RINGS: bool = false;

/// Which way requests shall come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// What is better as far as it is known; /dev/fuse where the better one is not to be had.
    #[default]
    Auto,
    /// io_uring or no mount at all.
    Uring,
    /// /dev/fuse.
    Dev,
}

impl Transport {
    /// What `Auto` chooses is decided by measurement (docs/performance.md).
    pub(crate) fn wants_rings(self) -> bool {
        match self {
            Transport::Auto => AUTO_WANTS_RINGS,
            Transport::Uring => true,
            Transport::Dev => false,
        }
    }

    /// As `-o transport=` names it.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Uring => "uring",
            Transport::Dev => "dev",
        }
    }

    /// The name in `-o transport=`.
    pub fn parse(name: &str) -> Option<Transport> {
        match name {
            "auto" => Some(Transport::Auto),
            "uring" => Some(Transport::Uring),
            "dev" => Some(Transport::Dev),
            _ => None,
        }
    }
}

/// The way that requests come, and why not the other one.
#[derive(Debug, Default)]
pub struct InUse(Mutex<State>);

#[derive(Clone, Debug, Default)]
struct State {
    uring: bool,
    why: Option<String>,
}

impl InUse {
    pub fn uring() -> InUse {
        let why = None;
        InUse(Mutex::new(State { uring: true, why }))
    }

    /// /dev/fuse; `why` it is not io_uring if that was not asked for.
    pub fn dev(why: Option<String>) -> InUse {
        InUse(Mutex::new(State { uring: false, why }))
    }

    pub(crate) fn fall_back(&self, reason: String) {
        let why = Some(reason);
        *self.0.lock() = State { uring: false, why };
    }

    /// "uring" or "dev".
    pub fn name(&self) -> &'static str {
        if self.0.lock().uring { "uring" } else { "dev" }
    }

    pub fn why(&self) -> Option<String> {
        self.0.lock().why.clone()
    }
}

/// Before the mount is made: switches io_uring on in the kernel if need be, and makes the rings. Errors: why it cannot be.
pub fn prepare_rings(queues: Option<&[u16]>) -> Result<Rings, String> {
    if !Path::new(ENABLE_URING).exists() {
        // The module may not be loaded yet; opening the device loads it.
        let _ = channel::Channel::open();
    }
    let state = std::fs::read_to_string(ENABLE_URING)
        .map_err(|_| "this kernel has no FUSE over io_uring (Linux 6.14 does)".to_string())?;
    if state.trim() != "Y" {
        std::fs::write(ENABLE_URING, "Y").map_err(|e| {
            format!("FUSE over io_uring is switched off (`echo Y >{ENABLE_URING}` as root): {e}")
        })?;
        tracing::info!("switched FUSE over io_uring on ({ENABLE_URING})");
    }
    Rings::prepare(queues)
}
