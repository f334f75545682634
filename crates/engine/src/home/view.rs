//! What a file's block is now: the newest layer that speaks about it, else the image.
use crate::base::types::*;
use crate::home::Home;
use crate::overlay::objects::{FileLayer, Inode, State};
use ccfs_device::SharedBuf;
use ccfs_ext4::extent::LBLK_END;
use ccfs_image::Wait;

/// Content of a block, as a reader sees it.
#[derive(Clone)]
pub enum Where {
    Page(SharedBuf),
    /// Zeros; `allocated`: a block exists or is reserved.
    Zero {
        allocated: bool,
    },
    /// On the device; `unwritten` reads as zeros.
    Block {
        pblk: u64,
        unwritten: bool,
    },
}

/// Where a block lies on the device below a certain layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    pub pblk: u64,
    pub unwritten: bool,
    pub len: u64,
    /// A layer says so, not the image.
    pub layered: bool,
}

impl Home {
    pub(crate) fn split(&self, at: u64) -> (u64, usize) {
        let bs = u64::from(self.block_size());
        (at / bs, (at % bs) as usize)
    }

    /// The view of `lblk`, and for how many blocks (at most `max`, at least 1) it holds; pages one by one.
    pub(crate) fn view(
        &self,
        inode: &Inode,
        st: &State,
        lblk: u64,
        max: u64,
        wait: Wait,
    ) -> Result<(Where, u64)> {
        let mut limit = max.min(LBLK_END - lblk);
        for layer in st.newest_first() {
            let body = layer.body.read();
            if let Some(page) = body.pages.get(lblk) {
                return Ok((Where::Page(page.buf.clone()), 1));
            }
            let next_page = body.pages.range(lblk + 1..).next().map(|(l, _)| l);
            for start in [
                next_page,
                body.prealloc.next_start(lblk),
                body.holes.next_start(lblk),
            ]
            .into_iter()
            .flatten()
            {
                limit = limit.min(start - lblk);
            }
            if let Some(end) = body.prealloc.range_at(lblk) {
                return Ok((Where::Zero { allocated: true }, limit.min(end - lblk)));
            }
            if let Some(end) = body.holes.range_at(lblk) {
                return Ok((Where::Zero { allocated: false }, limit.min(end - lblk)));
            }
            if body.created.is_some() {
                return Ok((Where::Zero { allocated: false }, limit));
            }
        }
        let m = self.image_for(wait).lookup(inode.ino, lblk)?;
        let len = limit.min(m.len).max(1);
        Ok(match m.pblk {
            Some(pblk) => (
                Where::Block {
                    pblk,
                    unwritten: m.unwritten,
                },
                len,
            ),
            None => (Where::Zero { allocated: false }, len),
        })
    }

    /// Where `lblk` lies according to the layers below `serial` and the image. Those layers have been placed already (a
    /// transaction is ordered after the ones that it depends on).
    pub(crate) fn locate_below(
        &self,
        inode: &Inode,
        st: &State,
        serial: u64,
        lblk: u64,
    ) -> Result<Option<Located>> {
        let mut limit = LBLK_END - lblk;
        let below = st
            .layers
            .iter()
            .rev()
            .skip_while(|l| l.serial != serial)
            .skip(1);
        for layer in below {
            if let Some(answer) = located_in(layer, lblk, &mut limit) {
                return Ok(answer);
            }
        }
        let m = self.image.lookup(inode.ino, lblk)?;
        Ok(m.pblk.map(|pblk| Located {
            pblk,
            unwritten: m.unwritten,
            len: limit.min(m.len).max(1),
            layered: false,
        }))
    }
}

/// `Some(answer)`: this layer decides. `None`: look further down, for at most `limit` blocks.
fn located_in(layer: &FileLayer, lblk: u64, limit: &mut u64) -> Option<Option<Located>> {
    let body = layer.body.read();
    if let Some(p) = body.placed.get(lblk) {
        return Some(Some(Located {
            pblk: p.pblk,
            unwritten: p.unwritten,
            len: p.len.min(*limit),
            layered: true,
        }));
    }
    if body.holes.contains(lblk) || body.created.is_some() {
        return Some(None);
    }
    for start in [body.placed.next_start(lblk), body.holes.next_start(lblk)]
        .into_iter()
        .flatten()
    {
        *limit = (*limit).min(start - lblk);
    }
    None
}
