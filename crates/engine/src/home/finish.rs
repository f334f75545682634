//! The end of a transaction that is applied: its layers go, and what it had reserved.
use crate::base::name::Name;
use crate::base::types::*;
use crate::home::Home;
use crate::home::recent::Content;
use crate::overlay::objects::{DirState, FileLayer, Inode, LayerBody, Overlay, State, Txn};
use crate::overlay::txn::{fetch_after, same, take_off};
use ccfs_image::Mapping;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// All blocks are kept of files of so many bytes, from transactions that write so many.
const RECENT_FILE: u64 = 256 << 10;
const RECENT_TXN: u64 = 4 << 20;

impl Home {
    /// The image says now what the transaction's layers said: they go.
    pub(super) fn finish_layers(&self, txn: &Arc<Txn>) -> Result<()> {
        let body = txn.take_body();
        // As they lie in the image, and mostly in memory. Each layer goes while it is at hand.
        let files = std::mem::take(&mut *txn.files.lock());
        let files = Arc::unwrap_or_clone(files);
        let mut files = files.into_iter();
        while let Some((_, (inode, layer))) = files.next() {
            fetch_after(files.as_slice(), 0);
            self.finish_layer(txn, &inode, &layer)?;
        }
        for (ino, inode) in &body.dirs {
            let mut st = inode.state.write();
            forget_dir_changes(&mut st, txn);
            if let (Some(names), Some(dir)) = (body.entries.get(ino), &mut st.dir) {
                self.finish_names(txn, names.changes.keys(), dir);
            }
            if !st.dead && (st.is_dir() || st.layers.is_empty()) {
                let on_disk = self.image.read_attr(*ino)?;
                if st.is_dir() {
                    let before = std::mem::replace(&mut st.attr.size, on_disk.size);
                    if let Some(names) = body.entries.get(ino) {
                        let grown = on_disk.size.saturating_sub(before);
                        let used = grown / u64::from(self.block_size());
                        let left = names.metadata.saturating_sub(used);
                        self.hand_names_on(txn, *ino, &st, left);
                    }
                }
                if st.layers.is_empty() {
                    st.set_committed_blocks(on_disk.blocks512);
                }
            }
        }
        self.dir_fields().sub(body.dir_fields.len() as u64);
        self.give_back_blocks(txn);
        self.back_pressure().news();
        Ok(())
    }

    /// Names of other transactions that wait for a directory have reserved what it could need then. `txn` has made more leaves since, and
    /// may have left them full. Its own names have reserved enough for both: of the `left` blocks the others get what they lack now.
    fn hand_names_on(&self, txn: &Txn, dir: Ino, st: &State, mut left: u64) {
        let Some(state) = &st.dir else { return };
        for other in &state.changers {
            if left == 0 {
                return;
            }
            let mut body = other.body(dir);
            let Some(names) = body.entries.get_mut(&dir) else {
                continue;
            };
            let most = self.names_blocks(names.added, st.attr.size, state.overlay.bytes());
            let lack = most.saturating_sub(names.metadata).min(left);
            let more = take_off(&txn.counts.blocks.metadata, lack);
            names.metadata += more;
            if more > 0 {
                other.reserve_metadata(more);
            }
            left -= more;
        }
    }

    /// What the transaction has not used up is everybody's. All that its operations have added is gathered.
    pub(crate) fn give_back_blocks(&self, txn: &Txn) {
        let left = txn.counts.blocks.take();
        self.pending_free.sub(left.freed.into_inner());
        let (data, metadata) = (left.data.into_inner(), left.metadata.into_inner());
        self.space.unreserve(&self.image, data, metadata);
        self.space.keep(&self.image);
    }

    fn finish_layer(&self, txn: &Txn, inode: &Inode, layer: &FileLayer) -> Result<()> {
        let ino = inode.ino;
        let mut st = inode.state.write();
        st.layers.retain(|l| l.serial != txn.serial);
        if same(&st.last, txn) {
            st.last = None;
        }
        forget_dir_changes(&mut st, txn);
        let layer = layer.body.read();
        self.dirty().sub(
            layer.pages.len() as u64 * u64::from(self.block_size())
                + crate::overlay::inode::LAYER_BYTES,
        );
        self.keep_recent(txn, inode, &st, &layer);
        if layer.dead {
            self.pending_inodes.sub(1);
            self.inodes.remove(ino);
            self.image.alloc().drop_window(u64::from(ino));
            self.image.alloc().release_inode(ino);
        } else if st.layers.is_empty() {
            st.xattrs = None;
            st.target = None;
            st.set_committed_blocks(self.image.blocks512(ino)?);
        }
        Ok(())
    }

    /// What a directory's names are is in the image, where nobody has changed them since.
    fn finish_names<'n>(
        &self,
        txn: &Txn,
        names: impl Iterator<Item = &'n Name>,
        dir: &mut DirState,
    ) {
        let own = |o: &Overlay| o.txn.serial == txn.serial;
        // Mostly nobody else has changed any.
        if dir.overlay.values().all(own) {
            dir.overlay.clear();
            return;
        }
        for name in names {
            if dir.overlay.get(name).is_some_and(own) {
                dir.overlay.remove(name, |name| self.image.cookie_of(name));
            }
        }
    }

    /// The image has what the layer says: what is kept of the file's blocks follows.
    fn keep_recent(&self, txn: &Txn, inode: &Inode, st: &State, layer: &LayerBody) {
        let ino = inode.ino;
        let same = layer.pages.is_empty() && layer.holes.is_empty() && layer.prealloc.is_empty();
        if same && !layer.dead {
            return;
        }
        // Who makes a file and closes it does not go on with it as a rule.
        let left = layer.dead || layer.created.is_some() && !self.inodes.is_referred_to(ino);
        let (last, within) = self.split(st.attr.size);
        // Of many files nobody could read most before others take their place.
        let bytes = layer.pages.len() as u64 * u64::from(self.block_size());
        let all = inode.direct.load(Ordering::Relaxed)
            && !layer.dead
            && st.attr.size.max(bytes) <= RECENT_FILE
            && txn.counts.dirty_bytes.load(Ordering::Relaxed) <= RECENT_TXN;
        let wanted = match all {
            true => 0..u64::MAX,
            false if within > 0 && !left => last..last + 1,
            false => 0..0,
        };
        let mut run: Option<(u64, Mapping)> = None;
        let mut place = |lblk: u64| {
            if run.is_none_or(|(start, m)| lblk - start >= m.len) {
                run = self.image.lookup(ino, lblk).ok().map(|m| (lblk, m));
            }
            let (start, m) = run?;
            Some(m.pblk.filter(|_| !m.unwritten)? + (lblk - start))
        };
        let changed = layer.pages.range(wanted).filter_map(|(lblk, page)| {
            let is_short = lblk == last && within <= page.buf.len() / 2;
            let content = match all && !is_short {
                true => Content::Whole(page.buf.clone()),
                false => Content::cut(&page.buf),
            };
            Some((lblk, place(lblk)?, content))
        });
        let changed: SmallVec<[_; 4]> = changed.collect();
        let gone = |lblk| {
            !all || layer.pages.get(lblk).is_some()
                || layer.holes.contains(lblk)
                || layer.prealloc.contains(lblk)
        };
        self.recent.keep(ino, changed.into_iter(), gone);
    }
}

fn forget_dir_changes(st: &mut State, txn: &Txn) {
    if let Some(dir) = &mut st.dir {
        dir.changers.retain(|t| t.serial != txn.serial);
        dir.attr_changers.retain(|t| t.serial != txn.serial);
        if same(&dir.xattr_last, txn) {
            dir.xattr_last = None;
        }
        if same(&dir.moved, txn) {
            dir.moved = None;
        }
    }
}
