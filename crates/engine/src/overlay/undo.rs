//! What an open group has replaced and no layer holds, so that it can be taken back.
use crate::base::name::Name;
use crate::base::types::*;
use crate::overlay::objects::{Before, Txn, TxnRef, Undo};
use std::sync::Arc;

impl Undo {
    pub fn last_was(&mut self, ino: Ino, last: &Option<TxnRef>) {
        self.last.entry(ino).or_insert_with(|| last.clone());
    }
    pub fn xattr_last_was(&mut self, ino: Ino, last: &Option<Arc<Txn>>) {
        self.xattr_last.entry(ino).or_insert_with(|| last.clone());
    }
    pub fn writer_was(&mut self, ino: Ino, writer: StreamId) {
        self.writers.entry(ino).or_insert(writer);
    }
    pub fn parent_was(&mut self, ino: Ino, parent: Option<Ino>, moved: Option<Arc<Txn>>) {
        self.parents.entry(ino).or_insert((parent, moved));
    }
    pub fn links_were(&mut self, ino: Ino, links: u32) {
        self.links.entry(ino).or_insert(links);
    }
    pub fn name_was(
        &mut self,
        dir: Ino,
        name: &[u8],
        value: Option<(Ino, u8)>,
        txn: Option<TxnRef>,
    ) {
        let names = self.names.entry(dir).or_default();
        let name = Name::from(name);
        names.entry(name).or_insert(Before { value, txn });
    }

    /// An inode that the group made and freed again: it never was.
    pub fn forget_inode(&mut self, ino: Ino) {
        self.last.remove(&ino);
        self.xattr_last.remove(&ino);
        self.writers.remove(&ino);
        self.parents.remove(&ino);
        self.links.remove(&ino);
        self.names.remove(&ino);
    }

    /// All of it; what `before` says stays until every inode says so itself.
    pub fn taken(&mut self) -> Undo {
        let all = std::mem::take(self);
        self.last.clone_from(&all.last);
        self.xattr_last.clone_from(&all.xattr_last);
        all
    }

    /// The transaction that changed an inode (or a directory's xattrs) last before the group.
    pub fn before(&self, ino: Ino, xattrs: bool) -> Option<Arc<Txn>> {
        if xattrs {
            return self.xattr_last.get(&ino).cloned().flatten();
        }
        let last = self.last.get(&ino).and_then(Option::as_deref);
        last.cloned()
    }
}
