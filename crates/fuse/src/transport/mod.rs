//! How requests come from the kernel and replies go back.
pub mod channel;
pub mod dev;
pub mod share;
pub mod uring;

use parking_lot::Mutex;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use uring::Rings;

/// The switch of the kernel (6.14 and later).
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const NO_URING: &str = "this kernel has no FUSE over io_uring (Linux 6.14 does)";

/// Which way requests shall come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring; /dev/fuse where that is not to be had.
    #[default]
    Auto,
    /// io_uring or no mount at all.
    Uring,
    /// /dev/fuse.
    Dev,
}

impl Transport {
    pub(crate) fn wants_rings(self) -> bool {
        self != Transport::Dev
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
    /// By io_uring.
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

    /// Why it is not io_uring; `None` where it is, or was not asked for.
    pub fn why(&self) -> Option<String> {
        self.0.lock().why.clone()
    }
}

/// Whether requests can come by io_uring here; nothing is switched on. Errors: why not.
pub fn try_rings() -> Result<(), String> {
    let _ = channel::Channel::open();
    let state = std::fs::read_to_string(ENABLE_URING).map_err(|_| NO_URING.to_string())?;
    let is_root = rustix::process::geteuid().is_root();
    if state.trim() != "Y" && !is_root {
        return Err(format!(
            "FUSE over io_uring is switched off (`echo Y >{ENABLE_URING}` as root)"
        ));
    }
    Rings::prepare(None).map(drop)
}

/// Before the mount is made: makes the rings, and then switches io_uring on in the kernel if need be. Errors: why it cannot be; nothing was
/// switched on then.
pub fn prepare_rings(queues: Option<&[u16]>) -> Result<Rings, String> {
    let switch = Path::new(ENABLE_URING);
    if !switch.exists() {
        // The module may not be loaded yet; opening the device loads it.
        let _ = channel::Channel::open();
    }
    switched_on(switch, || Rings::prepare(queues))
}

/// What `prepare` makes, with the switch on. It is a setting of the whole system, so it is left alone where `prepare` fails.
fn switched_on<T>(switch: &Path, prepare: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let state = std::fs::read_to_string(switch).map_err(|_| NO_URING.to_string())?;
    if state.trim() == "Y" {
        return prepare();
    }
    let name = switch.display();
    let refused = |e: std::io::Error| {
        format!("FUSE over io_uring is switched off (`echo Y >{name}` as root): {e}")
    };
    let mut file = File::options().write(true).open(switch).map_err(refused)?;
    let prepared = prepare()?;
    file.write_all(b"Y").map_err(refused)?;
    // Others see it, too.
    tracing::warn!("switched FUSE over io_uring on ({name})");
    Ok(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch() {
        let dir = tempfile::tempdir().unwrap();
        let switch = dir.path().join("enable_uring");
        let switch_on = |path: &Path| switched_on(path, || Ok(()));
        let old_kernel = switch_on(&switch).unwrap_err();
        assert!(old_kernel.contains("has no FUSE over io_uring"));
        for state in ["N\n", "Y\n"] {
            std::fs::write(&switch, state).unwrap();
            switch_on(&switch).unwrap();
            let now = std::fs::read_to_string(&switch).unwrap();
            assert_eq!(now.trim(), "Y");
        }
        // Rings are impossible: the system stays as it is.
        std::fs::write(&switch, "N\n").unwrap();
        let no_rings = switched_on(&switch, || Err::<(), _>("no rings".into()));
        assert_eq!(no_rings, Err("no rings".into()));
        assert_eq!(std::fs::read_to_string(&switch).unwrap(), "N\n");
        // Nobody writes there: as in a container.
        let refused = switch_on(Path::new("/proc/self/stat")).unwrap_err();
        assert!(refused.contains("is switched off"), "{refused}");
    }
}
