//! ccfs's bit in the super block: while it is set, the journal's blocks hold ccfs's log and nobody else touches the volume.
//!
//! The bit and the super block's checksum lie in different sectors, so a crash may leave any combination of old and new ones:
//!
//! | bit | checksum is right for | counts as |
//! |---|---|---|
//! | off | off | off |
//! | off | on | on (torn) |
//! | on | on | on |
//! | on | off | on (torn) |
//!
//! In the torn states either value would be true: the bit changes only while the log is empty and valid and a valid jbd2
//! journal lies in front of it. They count as *on*, so that recovery, which finds nothing to do, writes the bit again. With the
//! bit on, a checksum that is right for neither is what a torn checkpoint leaves (new counts, old checksum): the super block is
//! then *suspect* until recovery puts the checkpoint's own copy in its place.

use crate::Image;
use crate::core::corrupt;
use ccfs_device::{AlignedBuf, Slice, Write, write_all};
use ccfs_ext4::features::{IN_FLIGHT, ro_compat};
use ccfs_ext4::superblock::{MAGIC, RawSuper, STATE_VALID, SUPER_SIZE};
use ccfs_ext4::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

fn with_bit(mut raw: RawSuper, on: bool) -> RawSuper {
    let word = raw.feature_incompat.get();
    raw.feature_incompat = if on {
        word | IN_FLIGHT
    } else {
        word & !IN_FLIGHT
    }
    .into();
    raw
}

/// Decides the table above: the super block as it counts, and whether it is suspect.
pub(crate) fn judge(raw: RawSuper) -> Result<(RawSuper, bool)> {
    if raw.magic.get() != MAGIC || raw.checksum_ok() {
        return Ok((raw, false));
    }
    let on = raw.has_incompat(IN_FLIGHT);
    if with_bit(raw, !on).checksum_ok() {
        let mut torn = with_bit(raw, true);
        torn.seal();
        return Ok((torn, false));
    }
    if on {
        return Ok((raw, true));
    }
    corrupt("super block: wrong checksum; e2fsck can restore it from a backup")
}

impl Image {
    /// Is the volume in flight (its log may hold what the volume does not)?
    pub fn in_flight(&self) -> bool {
        self.core.sup.lock().raw.has_incompat(IN_FLIGHT)
    }

    /// Writes the bit, backups included, and flushes. Everything handed out by `take_dirty` must be home. A set bit reaches the
    /// primary super block first, a cleared one last: a backup has it only while the primary has it.
    ///
    /// # Errors
    /// `Io`; `Corrupt` when the super block is still suspect after recovery.
    pub fn write_in_flight(&self, on: bool) -> Result<()> {
        self.check_writable()?;
        if on {
            self.write_primary(|raw| with_bit(raw, on))?;
            self.write_backups(on)
        } else {
            self.renew_old_backups()?;
            self.write_backups(on)?;
            self.write_primary(|raw| with_bit(raw, on))
        }
    }

    /// Takes the bit off a volume whose log is not recovered, and with it, in the same sector, the mark of a clean unmount: whatever
    /// happens next, nobody takes the volume for sound before e2fsck has been through all of it.
    ///
    /// # Errors
    /// As [`write_in_flight`](Image::write_in_flight).
    pub fn give_up_log(&self) -> Result<()> {
        self.check_writable()?;
        self.write_backups(false)?;
        self.write_primary(|raw| {
            let mut raw = with_bit(raw, false);
            raw.state = (raw.state.get() & !STATE_VALID).into();
            raw
        })
    }

    fn check_writable(&self) -> Result<()> {
        if self.core.sup.lock().suspect {
            return corrupt("super block: wrong checksum; run e2fsck -f on the volume");
        }
        if self.core.dev.read_only() {
            return Err(Error::Refused("the device is read-only".into()));
        }
        Ok(())
    }

    fn write_primary(&self, change: impl Fn(RawSuper) -> RawSuper) -> Result<()> {
        let at = if self.core.block_size() > SUPER_SIZE {
            SUPER_SIZE
        } else {
            0
        };
        let block = self.core.super_block_at();
        let mut buf = self.read_plain(block)?;
        let Ok(raw) = RawSuper::read_from_bytes(&buf[at..at + SUPER_SIZE]) else {
            return corrupt("super block");
        };
        let mut raw = change(raw);
        raw.seal();
        buf[at..at + SUPER_SIZE].copy_from_slice(raw.as_bytes());
        self.write_plain(vec![(block, buf)])?;
        let mut sup = self.core.sup.lock();
        sup.raw = change(sup.raw);
        sup.raw.seal();
        sup.refresh();
        Ok(())
    }

    /// Backups that are none (wrong magic, uuid or checksum) are left alone: e2fsck would not use them either.
    fn write_backups(&self, on: bool) -> Result<()> {
        let mut list = Vec::new();
        for group in self.core.layout.backup_groups() {
            let block = self.core.layout.group_first_block(group);
            let mut buf = self.read_plain(block)?;
            let Ok(raw) = RawSuper::read_from_bytes(&buf[..SUPER_SIZE]) else {
                continue;
            };
            if !self.is_backup(&raw) {
                continue;
            }
            let mut new = with_bit(raw, on);
            if new.has_ro_compat(ro_compat::METADATA_CSUM) {
                new.seal();
            }
            buf[..SUPER_SIZE].copy_from_slice(new.as_bytes());
            list.push((block, buf));
        }
        if list.is_empty() {
            Ok(())
        } else {
            self.write_plain(list)
        }
    }

    /// Is it one of this volume's?
    pub(crate) fn is_backup(&self, raw: &RawSuper) -> bool {
        let known = raw.checksum_ok() || with_bit(*raw, !raw.has_incompat(IN_FLIGHT)).checksum_ok();
        raw.magic.get() == MAGIC && raw.uuid == self.core.layout.uuid && known
    }

    pub(crate) fn read_plain(&self, block: u64) -> Result<AlignedBuf> {
        let mut buf = AlignedBuf::zeroed(self.core.block_size());
        self.core
            .dev
            .read(block * self.core.block_size() as u64, &mut buf)?;
        Ok(buf)
    }

    fn write_plain(&self, blocks: Vec<(u64, AlignedBuf)>) -> Result<()> {
        let write = |(block, buf): (u64, AlignedBuf)| {
            let len = buf.len();
            Write {
                offset: block * len as u64,
                parts: vec![Slice {
                    buf: buf.into(),
                    start: 0,
                    len,
                }],
            }
        };
        write_all(&*self.core.dev, blocks.into_iter().map(write).collect())?;
        self.core.dev.flush()?;
        Ok(())
    }
}
