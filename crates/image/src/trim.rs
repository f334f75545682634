//! Telling the device which blocks are free (FITRIM).

use crate::alloc::Allocator;
use crate::{Pblk, Run};
use ccfs_ext4::Result;

/// Longest run held at a time: what is being discarded cannot be allocated meanwhile.
const RUN_MAX: u32 = 8192;

impl Allocator {
    /// Calls `discard` for the free runs of at least `min_len` blocks (a group's at most) in `[from, to)`, in pieces that are held during
    /// the call. Returns the number of blocks. Blocks that were reserved are passed over when space is that short.
    ///
    /// # Errors
    /// What `discard` returns; errors of reading bitmaps.
    pub fn discard_free(
        &self,
        from: Pblk,
        to: Pblk,
        min_len: u64,
        discard: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<u64> {
        let (mut at, mut total) = (from.max(self.core.layout.first_data_block), 0);
        let end = to.min(self.core.layout.blocks_count);
        // A piece shows that a run is long enough.
        let piece = u64::from(RUN_MAX).max(min_len) as u32;
        let mut run_goes_on_at = None;
        while at < end {
            let (run, next) = self.hold_free(at, end, piece)?;
            at = next;
            let Some(run) = run else { continue };
            let result = if run.len >= min_len || run_goes_on_at == Some(run.pblk) {
                run_goes_on_at = Some(next);
                discard(run).map(|()| total += run.len)
            } else {
                Ok(())
            };
            self.release(run);
            result?;
        }
        Ok(total)
    }
}
