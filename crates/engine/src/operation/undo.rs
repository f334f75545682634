//! Taking an atomic group back: every object becomes what it is without the group's operations.
//!
//! The image holds nothing of an open group, and no other stream has built on it, so what goes is its own layers, names and fields.
//! What lies below comes to light again: the layer of an older transaction, or, where that has been applied meanwhile, the image. Fields of
//! directories have no order among streams: the latest one that was accepted without the group stands (C1).
use crate::base::name::NameMap;
use crate::base::planted::{self, Bug};
use crate::base::record::DirField;
use crate::base::sync::RwLockWriteGuard;
use crate::base::types::*;
use crate::home::apply::Applier;
use crate::operation::Operations;
use crate::overlay::inode::unborn;
use crate::overlay::objects::{
    Before, Body, FileLayer, Inode, Over, Overlay, Phase, State, Txn, Undo,
};
use crate::overlay::txn::same;
use ccfs_ext4::dirent::TYPE_DIR;
use ccfs_ext4::inode::{LINK_MAX, is_dir};
use ccfs_image::InodeAttr;
use std::collections::HashMap;
use std::sync::Arc;

/// A transaction that something may still have to come after.
fn unapplied<T: AsRef<Txn>>(txn: Option<T>) -> Option<T> {
    txn.filter(|t| t.as_ref().phase() != Phase::Applied)
}

impl Operations {
    /// Takes a condemned, quiet group back, all of it at one instant for everybody who locks an inode.
    pub(crate) fn undo(&self, txn: &Arc<Txn>) -> Result<()> {
        let Some(group) = &txn.group else {
            return Ok(());
        };
        let stale = self.abort_listener.lock().is_some();
        // While nobody applies, what is applied and what is not does not change.
        let applier = self.applier().lock();
        let body = txn.take_body();
        let mut undo = group.undo.lock().taken();
        // Held until all parents are what they were: whoever moves a directory looks at them under it, before he locks them.
        let moves = (!undo.parents.is_empty()).then(|| self.moves.lock());
        let mut inodes: Vec<Arc<Inode>> = body.dirs.values().cloned().collect();
        let files = txn.take_files();
        let mut layers: HashMap<Ino, Arc<FileLayer>> = HashMap::new();
        for (inode, layer) in files {
            layers.insert(inode.ino, layer);
            inodes.push(inode);
        }
        inodes.sort_by_key(|i| i.ino);
        inodes.dedup_by_key(|i| i.ino);
        let mut locked: Vec<RwLockWriteGuard<State>> =
            inodes.iter().map(|i| i.state.write()).collect();
        // If it fails the volume stops before anybody sees an inode that still has what the group made of it.
        let result = self.or_stop("an abort", || {
            let mut result = Ok(());
            for (inode, st) in inodes.iter().zip(&mut locked) {
                let layer = layers.remove(&inode.ino);
                let done = self.undo_inode(&applier, txn, (inode, st), layer, &mut undo, &body);
                st.stale_pages += u32::from(stale && st.is_file() && !st.dead);
                result = result.and(done);
            }
            result
        });
        drop(locked);
        drop(moves);
        drop(applier);
        *group.undo.lock() = Undo::default();
        self.dir_fields().sub(body.dir_fields.len() as u64);
        self.give_back_blocks(txn);
        result
    }

    fn undo_inode(
        &self,
        applier: &Applier,
        txn: &Arc<Txn>,
        (inode, st): (&Arc<Inode>, &mut State),
        layer: Option<Arc<FileLayer>>,
        undo: &mut Undo,
        body: &Body,
    ) -> Result<()> {
        let ino = inode.ino;
        if let Some(layer) = &layer {
            self.undo_layer(st, layer);
            if layer.body.read().created.is_some() {
                self.uncreate(inode, st);
                return Ok(());
            }
        }
        if same(&st.last, txn) {
            st.last = unapplied(undo.last.remove(&ino).flatten());
        }
        if let Some(writer) = undo.writers.remove(&ino) {
            st.last_writer = writer;
        }
        planted::also(Bug::GroupSpace, || {
            layer.as_ref().and_then(|_| st.layers.pop())
        });
        if layer.is_some_and(|l| l.body.read().xattrs.is_some()) {
            let below = st.layers.iter().rev();
            st.xattrs = below.flat_map(|l| l.body.read().xattrs.clone()).next();
        }
        if !st.is_dir() {
            let attr = self.attr_below(ino, st)?;
            st.set_committed_attr(attr);
            return Ok(());
        }
        if let Some(d) = &mut st.dir {
            d.changers.retain(|t| t.serial != txn.serial);
            d.attr_changers.retain(|t| t.serial != txn.serial);
            if same(&d.xattr_last, txn) {
                d.xattr_last = unapplied(undo.xattr_last.remove(&ino).flatten());
            }
        }
        if let Some((parent, moved)) = undo.parents.remove(&ino) {
            st.parent = parent;
            st.dir().moved = unapplied(moved);
        }
        if let Some(links) = undo.links.remove(&ino) {
            st.attr.nlink = links;
            // The kernel holds the removed directory for dead as long as it knows it: what comes back must look like another one.
            st.reborn = st.reborn.wrapping_add(txn.serial as u32 | 1);
        }
        let names = undo.names.remove(&ino).unwrap_or_default();
        self.undo_names(txn, st, names);
        self.undo_fields(applier, ino, st, body)
    }

    /// The group's layer of an inode goes, with what was counted for it.
    fn undo_layer(&self, st: &mut State, layer: &FileLayer) {
        st.layers.retain(|l| l.serial != layer.serial);
        let body = layer.body.read();
        let pages = body.pages.len() as u64 * u64::from(self.block_size());
        self.dirty().sub(pages + crate::overlay::inode::LAYER_BYTES);
        let remaps = body.pages.values();
        let remaps = remaps.filter(|p| p.over == Over::Block { reserved: true });
        self.space().remaps.sub(remaps.count() as u64);
        if body.dead {
            st.dead = false;
            self.pending_inodes().sub(1);
        }
    }

    /// An inode that the group made: it never was. Its number is kept from others while the kernel could still send requests to it.
    fn uncreate(&self, inode: &Arc<Inode>, st: &mut State) {
        st.dead = true;
        st.last = None;
        st.dir = None;
        st.layers.clear();
        let ino = inode.ino;
        if self.refs().any(ino) {
            self.ghosts.lock().insert(ino);
            // Forgotten just now: then nobody else will release it.
            if self.refs().any(ino) {
                return;
            }
            if !self.ghosts.lock().remove(&ino) {
                return;
            }
        }
        self.inodes().remove(ino);
        self.image().alloc().drop_window(u64::from(ino));
        self.image().alloc().release_inode(ino);
    }

    /// Attributes of an inode that is no directory, as the newest layer that is left has them, else the image.
    fn attr_below(&self, ino: Ino, st: &State) -> Result<InodeAttr> {
        let layers = st.layers.iter().rev();
        match layers.flat_map(|l| l.body.read().attr.clone()).next() {
            Some(attr) => Ok(attr),
            None => self.image().read_attr(ino),
        }
    }

    fn undo_names(&self, txn: &Arc<Txn>, st: &mut State, names: NameMap<Before>) {
        let mut links = 0i64;
        for (name, before) in names {
            let dir = st.dir();
            let Some(over) = dir.overlay.get(&name).filter(|o| same_txn(&o.txn, txn)) else {
                continue;
            };
            links += i64::from(self.leads_to_dir(before.value)) - i64::from(names_dir(over.value));
            if planted::is(Bug::GroupNames) {
                continue;
            }
            let cookie = |name: &[u8]| self.image().cookie_of(name);
            match unapplied(before.txn) {
                Some(txn) => {
                    let value = before.value;
                    dir.overlay.insert(name, Overlay { value, txn }, cookie);
                }
                None => dir.overlay.remove(&name, cookie),
            }
        }
        // From `LINK_MAX` on the count is 1 and stays so.
        if st.attr.nlink > 1 {
            let links = (i64::from(st.attr.nlink) + links).max(2);
            let many = links > i64::from(LINK_MAX);
            st.attr.nlink = if many { 1 } else { links as u32 };
        }
    }

    fn leads_to_dir(&self, value: Option<(Ino, u8)>) -> bool {
        match value {
            // Volumes without file types in entries: only the image has such entries.
            Some((ino, 0)) => {
                let attr = self.image().read_attr(ino);
                attr.is_ok_and(|a| is_dir(a.mode))
            }
            other => names_dir(other),
        }
    }

    /// The fields of a directory: each has the value of the latest operation on it that is not the group's.
    fn undo_fields(&self, a: &Applier, ino: Ino, st: &mut State, body: &Body) -> Result<()> {
        let unborn = unborn(st);
        let mut base = if unborn {
            self.attr_below(ino, st)?
        } else {
            self.image().read_attr(ino)?
        };
        if st.layers.is_empty() {
            (st.attr.size, st.attr.blocks512) = (base.size, base.blocks512);
        }
        let fields = DirField::ALL.into_iter();
        for field in fields.filter(|_| !planted::is(Bug::GroupTimes)) {
            let own = body.dir_fields.contains_key(&(ino, field));
            // A removal changes the time in memory only: it is nobody's to see but its owner's.
            if !own && !matches!(field, DirField::Mtime | DirField::Ctime) {
                continue;
            }
            // Where a device commits, the image can have what memory holds in layers yet: then these say all of it.
            let applied = match unborn {
                true => 0,
                false => a.dir_seqs.get(&(ino, field)).copied().unwrap_or(0),
            };
            let mut best = (applied, None);
            for other in st.dir.iter().flat_map(|d| &d.changers) {
                let value = other.body(ino).dir_fields.get(&(ino, field)).copied();
                if let Some(value) = value.filter(|v| v.seq > best.0) {
                    best = (value.seq, Some(value));
                }
            }
            if let Some(value) = best.1 {
                field.put(&mut base, (value.value, value.nanos));
            }
            field.put(&mut st.attr, field.of(&base));
        }
        Ok(())
    }
}

fn same_txn(a: &Txn, b: &Txn) -> bool {
    a.serial == b.serial
}

fn names_dir(value: Option<(Ino, u8)>) -> bool {
    value.is_some_and(|(_, ftype)| ftype == TYPE_DIR)
}
