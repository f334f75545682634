//! Whether a call may wait: the image and the engine come as handles that are blocking or non-blocking, and hand this on as a value.
use ccfs_device::Device;
use ccfs_ext4::{Error, Result};

/// Whether a call may wait for the device, for a lock whose holder may wait for it, for room, or for somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Blocking.
    Allowed,
    /// Non-blocking: what is not in memory is an error. The caller is a thread that others wait for; it leaves the work to another one.
    Never,
}

impl Wait {
    /// Before a wait. Errors: `WouldBlock`.
    pub fn check(self) -> Result<()> {
        match self {
            Wait::Allowed => Ok(()),
            Wait::Never => Err(Error::WouldBlock),
        }
    }
}

/// Reads from the device, where that may be waited for; of what lies `together` with its like, from memory if it is there. Errors: the device's;
/// `WouldBlock`.
pub fn read_device(
    dev: &dyn Device,
    wait: Wait,
    offset: u64,
    buf: &mut [u8],
    together: bool,
) -> Result<()> {
    if together && dev.read_if_ahead(offset, buf) {
        return Ok(());
    }
    wait.check()?;
    match together {
        true => dev.read_around(offset, buf)?,
        false => dev.read(offset, buf)?,
    }
    Ok(())
}
