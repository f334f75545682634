//! What may be written to an append-only file: at its end, by who said O_APPEND.
//!
//! The kernel cuts an append with O_DIRECT into requests of the largest size, and sends them all at once: a later part can come before an
//! earlier one. It leaves a gap then, whose bytes nobody has written; a part may fill it, once.
use crate::base::types::{Result, WriteFlags, errno};
use crate::overlay::objects::State;
use ccfs_ext4::inode::FLAG_APPEND;

/// Gaps of a file at a time. (A call has at most as many parts as the kernel has requests under way.)
const GAPS_MAX: usize = 1024;

impl State {
    /// Error: EPERM.
    pub(crate) fn check_append(&self, offset: u64, len: usize, flags: &WriteFlags) -> Result<()> {
        if self.attr.flags & FLAG_APPEND == 0 {
            return Ok(());
        }
        let gaps = self.gaps.as_ref().filter(|_| flags.part);
        let fills = || {
            let gap = gaps.and_then(|gaps| gaps.range_at(offset));
            gap.is_some_and(|end| offset + len as u64 <= end)
        };
        let crowded = || gaps.is_some_and(|gaps| gaps.len() >= GAPS_MAX);
        let may = match offset {
            _ if flags.placed => false,
            _ if offset < self.attr.size => fills(),
            _ if offset > self.attr.size && flags.part => !crowded(),
            _ => true,
        };
        if may { Ok(()) } else { errno(libc::EPERM) }
    }

    /// Bytes `[offset, end)` are about to be written.
    pub(crate) fn note_append(&mut self, offset: u64, end: u64, flags: &WriteFlags) {
        if self.attr.flags & FLAG_APPEND == 0 || !flags.part {
            return;
        }
        let size = self.attr.size;
        if offset > size {
            self.gaps.get_or_insert_default().insert(size, offset);
        } else if let Some(gaps) = &mut self.gaps {
            gaps.remove(offset, end);
            if gaps.is_empty() {
                self.gaps = None;
            }
        }
    }
}
