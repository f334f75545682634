//! Unpublished content of files that are open O_ATOMIC: a layer above all others (docs/design/atomic-files.md).
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::overlay::objects::{Dependencies, Draft, FileLayer, State, Txn};
use ccfs_image::InodeAttr;
use std::sync::Arc;

impl Draft {
    pub fn new(serial: u64, base: InodeAttr, uid: u32) -> Box<Draft> {
        Box::new(Draft {
            base,
            txn: Arc::new(Txn::new(serial, SYSTEM_STREAM, Dependencies::default())),
            layer: Arc::new(FileLayer::new(serial)),
            changed: false,
            uid,
            lost: None,
        })
    }

    fn is_of(&self, txn: &Txn) -> bool {
        self.txn.serial == txn.serial
    }
}

impl State {
    /// The draft's layer, if the operations of `txn` are those of the draft.
    pub(crate) fn own_draft(&self, txn: &Txn) -> Option<Arc<FileLayer>> {
        let draft = self.draft.as_ref().filter(|d| d.is_of(txn))?;
        Some(draft.layer.clone())
    }

    /// All layers, the newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Arc<FileLayer>> {
        let draft = self.draft.as_ref().map(|d| &d.layer);
        draft.into_iter().chain(self.layers.iter().rev())
    }

    /// The attributes that a change other than of content commits: size, blocks and time of change are those without the draft.
    pub(crate) fn committed_attr(&mut self) -> InodeAttr {
        let draft = self.draft.as_mut();
        let Some(draft) = draft.filter(|_| !planted::is(Bug::AtomicAttr)) else {
            return self.attr.clone();
        };
        draft.base = InodeAttr {
            size: draft.base.size,
            blocks512: draft.base.blocks512,
            mtime: draft.base.mtime,
            ..self.attr.clone()
        };
        draft.base.clone()
    }

    /// Somebody has set the time of change, which is not that of the draft then.
    pub(crate) fn mtime_was_set(&mut self) {
        if let Some(draft) = &mut self.draft {
            draft.base.mtime = self.attr.mtime;
        }
    }

    /// The attributes without the draft are these.
    pub(crate) fn set_committed_attr(&mut self, attr: InodeAttr) {
        let shown = self.attr.clone();
        self.attr = attr.clone();
        let Some(draft) = &mut self.draft else { return };
        draft.base = attr;
        if draft.changed {
            self.attr.size = shown.size;
            self.attr.blocks512 = shown.blocks512;
            (self.attr.mtime, self.attr.ctime) = (shown.mtime, shown.ctime);
        }
    }

    /// The image says how many blocks the file has without the draft, by units of 512 bytes.
    pub(crate) fn set_committed_blocks(&mut self, blocks512: u64) {
        let Some(draft) = &mut self.draft else {
            self.attr.blocks512 = blocks512;
            return;
        };
        let shown = (self.attr.blocks512 + blocks512).saturating_sub(draft.base.blocks512);
        draft.base.blocks512 = blocks512;
        self.attr.blocks512 = shown;
    }
}
