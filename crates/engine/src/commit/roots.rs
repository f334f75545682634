//! What a sync call or a barrier has to make durable, or to order.
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::commit::Committer;
use crate::overlay::objects::Txn;
use ccfs_image::Wait;
use std::sync::Arc;

impl Committer {
    /// The last changes of a file by anybody; what an open atomic group did is not among them, what was there before it is.
    pub(crate) fn last_changes(&self, ino: Ino) -> Vec<Arc<Txn>> {
        let mut last = Vec::new();
        if let (Ok(inode), false) = (
            self.inode(ino, Wait::Allowed),
            planted::is(Bug::FsyncOwnStream),
        ) {
            let st = inode.state.read();
            let part = |t: &Arc<Txn>| self.durable_part(t, ino, false);
            last.extend(st.last.as_deref().and_then(part));
            if let Some(d) = &st.dir {
                let changes = d.changers.iter().chain(&d.attr_changers);
                // Each of them is in these lists itself.
                last.extend(changes.filter(|t| !t.is_open_group()).cloned());
                let part = |t: &Arc<Txn>| self.durable_part(t, ino, true);
                last.extend(d.xattr_last.iter().filter_map(part));
            }
        }
        last.retain(|t| !t.settled());
        last
    }

    /// The last changes of files by anybody, and what the caller's stream has.
    pub(crate) fn fsync_roots(&self, stream: StreamId, inos: &[Ino]) -> Vec<Arc<Txn>> {
        let last = inos.iter().flat_map(|ino| self.last_changes(*ino));
        let mut roots: Vec<_> = last.collect();
        roots.extend(self.stream_roots(stream));
        roots
    }

    /// What the stream has, and what its barriers put before whatever it does next.
    pub(crate) fn stream_roots(&self, stream: StreamId) -> Vec<Arc<Txn>> {
        let mut roots = self.streams().ordered_before(stream);
        roots.extend(self.streams().seal_stream(stream));
        roots
    }

    /// The stream in which a group gets its place: what is earlier there can be synced while the group is open.
    pub(crate) fn home_of(&self, stream: StreamId) -> StreamId {
        match stream.is_group() {
            true => self.streams().group(stream).map_or(stream, |t| t.stream),
            false => stream,
        }
    }

    /// What fsync of an object must make durable where `txn` changed it last: of an open group nothing, but what was there before.
    pub(crate) fn durable_part(&self, txn: &Arc<Txn>, ino: Ino, xattrs: bool) -> Option<Arc<Txn>> {
        match &txn.group {
            Some(group) if txn.is_open_group() && !planted::is(Bug::GroupSync) => {
                let before = group.undo.lock().before(ino, xattrs);
                // Once it is committed it knows no more what was before it, but comes after that itself.
                match txn.is_open_group() {
                    true => before,
                    false => Some(txn.clone()),
                }
            }
            _ => Some(txn.clone()),
        }
    }
}
