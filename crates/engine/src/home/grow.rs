//! A volume that gets larger while it is mounted, or at rest (docs/design/space.md, "Growing").
//!
//! The structures of new groups lie where the volume does not reach yet: they are written there and flushed. Then one checkpoint, of
//! nothing else, switches from the old size to the new one. Applying waits meanwhile; operations and commits go on.
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::home::Home;
use crate::home::apply::Applier;
use ccfs_ext4::Error;
use ccfs_image::Growth;

/// Blocks of the resize inode that are put right with one checkpoint: fewer than the smallest log takes.
const RESIZE_BLOCKS: u32 = 32;

impl Home {
    /// Makes the volume as large as `bytes` has room for, and the device first if it can. Returns the volume's size in bytes afterwards: somewhat
    /// less than `bytes` where a last group would be too short to be of use. A size that the volume has already changes nothing.
    ///
    /// # Errors
    /// EROFS of a volume that is only read; `Refused`: a smaller size, no room for descriptors (the largest possible size is named), a
    /// device that is too small or cannot grow. `Io`, `Corrupt`: the volume stops where something had changed.
    pub fn grow(&self, bytes: u64) -> Result<u64> {
        let _one = self.growing.lock();
        self.check_running()?;
        if !self.manner.writes {
            return Err(Error::Errno(libc::EROFS));
        }
        let bs = u64::from(self.block_size());
        let (now, goal) = (self.size_bytes(), bytes / bs);
        if goal < now / bs {
            return Err(Error::Refused(format!(
                "the volume has {now} bytes: to make it smaller unmount it first"
            )));
        }
        let Some(blocks) = self.image.size_if_grown(goal)? else {
            return Ok(now);
        };
        if self.manner.applies_first {
            return Err(Error::Refused(
                "the volume lies on transactional flash, which keeps the size that it was made with".into(),
            ));
        }
        self.dev().grow(blocks * bs).map_err(|error| {
            Error::Refused(format!(
                "the device cannot hold {} bytes: {error}",
                blocks * bs
            ))
        })?;
        while let Some(step) = self.image.next_growth(blocks)? {
            self.or_stop("growing", || self.grow_by(&step))?;
        }
        self.or_stop("growing", || {
            let mut a = self.applier.lock();
            self.settle_resize_inode(&mut a)?;
            self.image.renew_old_backups()
        })?;
        tracing::info!(
            "the volume has grown from {now} to {} bytes",
            self.size_bytes()
        );
        Ok(self.size_bytes())
    }

    /// Bytes of the device, which somebody may have made larger.
    ///
    /// # Errors
    /// What the host says.
    pub fn device_bytes(&self) -> Result<u64> {
        if self.manner.writes {
            self.dev().grow(0)?;
        }
        Ok(self.dev().size_bytes())
    }

    /// Bytes of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.image.geometry().blocks_count * u64::from(self.block_size())
    }

    fn grow_by(&self, step: &Growth) -> Result<()> {
        self.image.write_new_groups(step)?;
        // Whatever the switch refers to is there before it.
        if !planted::is(Bug::GrowthUnflushed) {
            self.flush_device()?;
        }
        let mut a = self.applier.lock();
        // What was changed before needs no room in the checkpoint that switches.
        self.check_running()?;
        self.checkpoint_locked(&mut a)?;
        self.image.begin_growth(step)?;
        a.super_last = true;
        self.checkpoint_locked(&mut a)?;
        a.super_last = false;
        self.image.finish_growth(step)
    }

    /// The resize inode follows the size, by parts that fit the log. It says last how many blocks it has: until then a recovery does
    /// this once more.
    pub(crate) fn settle_resize_inode(&self, a: &mut Applier) -> Result<()> {
        match self.image.resize_inode_is_right() {
            // Nothing but e2fsck and the next one who grows the volume reads it.
            Ok(true) | Err(Error::Corrupt(_)) => return Ok(()),
            Ok(false) => {}
            Err(error) => return Err(error),
        }
        let mut next = Some(0);
        while let Some(at) = next {
            next = self.image.settle_resize_inode(at, RESIZE_BLOCKS)?;
            self.checkpoint_locked(a)?;
        }
        Ok(())
    }
}
