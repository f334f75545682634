//! The super block in memory.

use ccfs_device::SharedBuf;
use ccfs_ext4::superblock::RawSuper;
use zerocopy::IntoBytes;

/// Its fields, and the block that they lie in.
pub(crate) struct Super {
    pub raw: RawSuper,
    /// The whole block that holds it (boot sector included where blocks are larger than 1024 bytes).
    pub block: SharedBuf,
    pub changed: bool,
    /// Its checksum on disk is wrong, as a torn checkpoint leaves it: recovery must put a right one here.
    pub suspect: bool,
}

impl Super {
    /// Changes what is not the count of anything; the next checkpoint brings it home.
    pub fn change(&mut self, f: impl FnOnce(&mut RawSuper)) {
        f(&mut self.raw);
        self.changed = true;
    }

    /// Puts the fields into the block's bytes.
    pub fn refresh(&mut self) {
        let at = if self.block.len() > 1024 { 1024 } else { 0 };
        self.block.make_mut()[at..at + 1024].copy_from_slice(self.raw.as_bytes());
    }
}
