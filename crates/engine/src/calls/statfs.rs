//! What concerns the whole volume.
use crate::base::types::*;
use crate::calls::Calls;
use ccfs_ext4::Error;
use ccfs_image::Run;

impl Calls {
    /// statfs(2). Blocks that uncommitted frees give back count as free.
    pub fn statfs(&self) -> Result<StatFs> {
        self.check_alive()?;
        let geo = self.image().geometry();
        let soon =
            self.pending_free().get() + self.space().pending_blocks() + self.space().remaps.get();
        let free = (self.image().alloc().free_blocks() + soon)
            .saturating_sub(self.space().reserved_data());
        let overhead = match self.options().df_with_overhead {
            true => 0,
            false => geo.overhead_blocks,
        };
        Ok(StatFs {
            block_size: self.block_size(),
            blocks: geo.blocks_count.saturating_sub(overhead),
            bfree: free,
            bavail: free.saturating_sub(geo.root_reserved_blocks + self.space().own_reserve()),
            files: u64::from(geo.inodes_count),
            // What was granted is no inode yet.
            ffree: u64::from(self.image().alloc().free_inodes())
                + self.pending_inodes().get()
                + self.space().granted.get(),
            name_max: ccfs_ext4::dirent::NAME_MAX as u32,
        })
    }

    /// The label of the volume, bytes as they lie there without the zeros at the end.
    pub fn label(&self) -> Vec<u8> {
        self.image().geometry().label.clone()
    }

    /// The UUID of the volume.
    pub fn uuid(&self) -> [u8; 16] {
        self.image().geometry().uuid
    }

    /// Largest write request that is one operation (C2), bytes: 1 MiB unless the log is tiny.
    pub fn write_max(&self) -> usize {
        self.limits().write_max
    }

    /// FITRIM: discards free blocks in the byte range, pieces of at least `min_len`; returns bytes discarded. All three are rounded
    /// down to blocks, as the kernel's ext4 does. Error: EINVAL, no whole block, nothing of the volume, or longer pieces than a group.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let bs = u64::from(self.block_size());
        let (first, blocks, least) = (start / bs, len / bs, min_len / bs);
        let g = self.image().geometry();
        if first >= g.blocks_count || blocks == 0 || least > g.blocks_per_group.into() {
            return Err(Error::Errno(libc::EINVAL));
        }
        self.admit()?;
        let end = first.saturating_add(blocks);
        let discard = &mut |run: Run| Ok(self.dev().discard(run.pblk * bs, run.len * bs)?);
        let alloc = self.image().alloc();
        Ok(alloc.discard_free(first, end, least, discard)? * bs)
    }
}
