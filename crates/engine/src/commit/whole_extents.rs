//! Placement where no block is left for the extent tree: an unwritten extent of which a part is written must not be cut, so the rest of
//! it is written as well, with zeros (C9: overwriting allocated bytes never lacks space).
use crate::base::ranges::{Placed, RangeSet};
use crate::base::record::Record;
use crate::base::types::*;
use crate::commit::Committer;
use crate::commit::place::{Built, Under};
use crate::overlay::objects::{LayerBody, Over, Pages};
use ccfs_device::{AlignedBuf, SharedBuf, Slice};
use ccfs_ext4::extent::LBLK_END;

/// Zeros that a device write takes at once, bytes.
const ZEROS: usize = 1 << 20;

impl Committer {
    /// Places those pages of a layer that lie in unwritten blocks. Returns the others.
    pub(crate) fn place_whole_extents(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        under: Under,
        pages: &Pages,
    ) -> Result<Option<Pages>> {
        let (inode, st, serial) = under;
        let mut left = pages.clone();
        let mut done = 0;
        for (lblk, page) in pages.iter() {
            if lblk < done || page.over == Over::Hole || body.holes.contains(lblk) {
                continue;
            }
            match self.locate_below(inode, st, serial, lblk)? {
                Some(at) if at.unwritten => {}
                _ => continue,
            }
            // Nothing behind the end of file is ever written: that cut is the reserve's.
            let size = body.attr.as_ref().map_or(st.attr.size, |a| a.size);
            let eof = size.div_ceil(u64::from(self.block_size())).max(lblk + 1);
            let (from, to) = self.unwritten_around(under, &body.holes, lblk, eof)?;
            let mut at = from;
            while at < to {
                let Some(place) = self.locate_below(inode, st, serial, at)? else {
                    break;
                };
                let len = place.len.min(to - at);
                self.put_with_zeros(b, body, inode.ino, (at, place.pblk, len), pages);
                at += len;
            }
            for (lblk, page) in pages.range(from..to) {
                if page.over == (Over::Block { reserved: true }) {
                    b.unused += 1;
                    self.space().remaps.sub(1);
                }
                left.remove(lblk);
            }
            done = to;
        }
        Ok(Some(left))
    }

    /// The range around `lblk`, up to `end`, of which the tree can hold parts in one unwritten extent. The transaction's own `holes`
    /// are no part of it: their blocks are freed before.
    fn unwritten_around(
        &self,
        under: Under,
        holes: &RangeSet,
        lblk: u64,
        end: u64,
    ) -> Result<(u64, u64)> {
        let (mut from, mut to) = (lblk, lblk + 1);
        while from > 0 && !holes.contains(from - 1) && self.one_extent(under, from - 1)? {
            from -= 1;
        }
        let end = end.min(LBLK_END - 1);
        while to < end && !holes.contains(to) && self.one_extent(under, to - 1)? {
            to += 1;
        }
        Ok((from, to))
    }

    /// Can `lblk` and the next block be parts of one unwritten extent when the transaction is applied?
    fn one_extent(&self, (inode, st, serial): Under, lblk: u64) -> Result<bool> {
        let (a, b) = (
            self.locate_below(inode, st, serial, lblk)?,
            self.locate_below(inode, st, serial, lblk + 1)?,
        );
        let (Some(a), Some(b)) = (a, b) else {
            return Ok(false);
        };
        if !a.unwritten || !b.unwritten || a.pblk + 1 != b.pblk {
            return Ok(false);
        }
        // What a layer placed may be joined with what is there; the image's own extents stay as they are.
        Ok(a.layered || b.layered || self.image().lookup(inode.ino, lblk)?.len > 1)
    }

    /// Writes `len` blocks from `lblk` on to `pblk`: pages, and zeros between them. They are flushed before the commit.
    fn put_with_zeros(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        ino: Ino,
        (lblk, pblk, len): (u64, u64, u64),
        pages: &Pages,
    ) {
        let bs = u64::from(self.block_size());
        b.sums = false;
        let record = Record::Map {
            ino,
            lblk,
            pblk,
            len,
            unwritten: false,
            sums: Vec::new(),
        };
        record.encode(&mut b.payload);
        let zeros = SharedBuf::from(AlignedBuf::zeroed(ZEROS.min((len * bs) as usize)));
        let mut parts = Vec::new();
        let mut at = lblk;
        let fill = |parts: &mut Vec<Slice>, blocks: u64| {
            let mut left = (blocks * bs) as usize;
            while left > 0 {
                let len = left.min(zeros.len());
                parts.push(Slice {
                    buf: zeros.clone(),
                    start: 0,
                    len,
                });
                left -= len;
            }
        };
        for (page_at, page) in pages.range(lblk..lblk + len) {
            fill(&mut parts, page_at - at);
            parts.push(Slice::whole(page.buf.clone()));
            at = page_at + 1;
        }
        fill(&mut parts, lblk + len - at);
        b.put(pblk * bs, len * bs, parts.into_iter());
        body.placed.insert(
            lblk,
            Placed {
                len,
                pblk,
                unwritten: false,
            },
        );
    }
}
