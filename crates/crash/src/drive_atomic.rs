//! Failure-atomic files in a driven workload. The driver's tree shows their content as everybody sees it; the history, by which crashes are
//! judged, gets it when a sync of the file publishes it, as one operation for all files of the call.
use crate::drive::{Driver, Ended, is_stop};
use crate::generate::Action;
use crate::observe::inode;
use crate::oracle::*;
use ccfs_engine::Context;

/// A file that is open O_ATOMIC.
#[derive(Clone, Debug)]
pub struct AtomicFile {
    /// What a close takes it back to.
    base: Content,
    changed: bool,
    /// A page of a mapping could not be taken in: nothing more can be synced.
    lost: bool,
}

impl Driver {
    pub(crate) fn atomic_act(&mut self, stream: usize, action: &Action) -> Result<Ended, String> {
        match action {
            Action::AtomicOpen(node) => self.atomic_open(stream, *node),
            Action::AtomicClose(node) => self.atomic_close(*node),
            Action::Syncv(nodes) if nodes.iter().all(|n| self.atomics.contains_key(n)) => {
                self.publish(stream, nodes, action)
            }
            _ => Ok(Ended::Refused),
        }
    }

    fn atomic_open(&mut self, stream: usize, node: NodeId) -> Result<Ended, String> {
        let (Some(ino), Some(base)) = (self.inos.get(&node), self.tree.content(node)) else {
            return Ok(Ended::Refused);
        };
        let after = self.history.ops.len();
        match self.vol.atomic_open(&self.cx(stream), *ino, 0) {
            Ok(()) => {}
            Err(e) if is_stop(&e) => return Ok(Ended::Stopped),
            Err(e) if e.errno() == libc::EBUSY => {
                return match self.atomics.contains_key(&node) || !self.groups.is_empty() {
                    true => Ok(Ended::Refused),
                    false => Err(format!("O_ATOMIC open of #{}: {e}", node.0)),
                };
            }
            Err(e) => return Err(format!("O_ATOMIC open of #{}: {e}", node.0)),
        }
        self.open.push(node);
        let file = AtomicFile {
            base,
            changed: false,
            lost: false,
        };
        self.atomics.insert(node, file);
        if self.keep {
            let kind = SyncKind::File(node);
            self.has_synced(Sync {
                stream,
                kind,
                after,
            });
        }
        Ok(Ended::Accepted)
    }

    fn atomic_close(&mut self, node: NodeId) -> Result<Ended, String> {
        let Some(file) = self.atomics.remove(&node) else {
            return Ok(Ended::Refused);
        };
        let changed = self.vol.atomic_close(self.all_inos[&node]);
        if changed != file.changed {
            return Err(format!("close of #{}: taken back: {changed}", node.0));
        }
        self.tree.put_content(node, &file.base);
        self.taken_back += u64::from(changed);
        if let Some(i) = self.open.iter().position(|n| *n == node) {
            self.open.swap_remove(i);
        }
        self.forget_dead(&[node]);
        self.check_content(node, "the close")?;
        Ok(Ended::Accepted)
    }

    /// A sync of files that are open O_ATOMIC; one of them has unsynced changes, or there are several.
    pub(crate) fn publish(
        &mut self,
        stream: usize,
        nodes: &[NodeId],
        action: &Action,
    ) -> Result<Ended, String> {
        let (began, cx) = (self.events(), self.cx(stream));
        let inos: Vec<_> = nodes.iter().map(|n| self.all_inos[n]).collect();
        let ignored = matches!(action, Action::IgnoredSync(_));
        let done = match action {
            Action::Syncv(_) => self.vol.syncv(&cx, &inos, 0),
            _ => {
                let cx = Context {
                    ignore_fsync: ignored,
                    ..cx
                };
                self.vol.fsync(&cx, inos[0], false)
            }
        };
        // A group that had changed the file's name or mode was in the way.
        self.conflicts += u64::from(self.settle_groups()?);
        match done {
            Ok(()) => {}
            Err(e) if is_stop(&e) => {
                self.published(stream, nodes, began);
                return Ok(Ended::Stopped);
            }
            Err(e) if e.errno() == libc::EBUSY && self.groups.contains_key(&stream) => {
                return Ok(Ended::Refused);
            }
            Err(e) if e.errno() == libc::EDQUOT && nodes.len() > 1 => return Ok(Ended::NoSpace),
            Err(_) if nodes.iter().any(|n| self.atomics[n].lost) => return Ok(Ended::Refused),
            Err(e) => return Err(format!("{action:?} failed: {e}")),
        }
        self.published(stream, nodes, began);
        for node in nodes {
            self.check_content(*node, "a sync")?;
            if self.keep && !ignored {
                self.has_synced(Sync {
                    stream,
                    kind: SyncKind::File(*node),
                    after: self.history.ops.len(),
                });
            }
        }
        Ok(Ended::Accepted)
    }

    fn published(&mut self, stream: usize, nodes: &[NodeId], began: usize) {
        let (mut files, mut stamps) = (Vec::new(), Vec::new());
        for node in nodes {
            let (Some(file), Some(now)) = (self.atomics.get_mut(node), self.tree.content(*node))
            else {
                continue;
            };
            if !std::mem::take(&mut file.changed) {
                continue;
            }
            stamps.push(Stamp {
                node: *node,
                mtime: Some(now.mtime),
                ctime: Some(now.ctime),
            });
            file.base = now.clone();
            files.push((*node, now));
            self.marks.synced(*node);
        }
        if self.keep && !files.is_empty() {
            self.began.push(began);
            let op = Op::Publish { files };
            self.history.ops.push(Accepted { stream, op, stamps });
        }
    }

    /// Everything that the volume shows of one file against the model.
    fn check_content(&self, node: NodeId, after: &str) -> Result<(), String> {
        let (Some(ino), Ok(want)) = (self.inos.get(&node), self.tree.get(node)) else {
            return Ok(());
        };
        let seen = inode(&self.vol, *ino).map_err(|e| format!("#{}: {e}", node.0))?;
        match want.difference(&seen, true) {
            Some(d) => Err(format!("after {after} of #{} it is wrong: {d}", node.0)),
            None => Ok(()),
        }
    }

    /// A write from a mapping failed: the kernel holds the page for written, and syncs fail from here on.
    pub(crate) fn lost_page(&mut self, op: &Op, e: &ccfs_engine::Error) {
        if let Op::Write { node, .. } = op
            && let Some(file) = self.atomics.get_mut(node)
        {
            file.lost |= !is_stop(e);
        }
    }

    /// Has the file unsynced changes?
    pub(crate) fn is_drafted(&self, node: &NodeId) -> bool {
        self.atomics.get(node).is_some_and(|a| a.changed)
    }

    /// The file open O_ATOMIC whose content this operation changes, if it is about one.
    pub(crate) fn drafts(&self, op: &Op) -> Option<NodeId> {
        let node = match op {
            Op::Write { node, .. }
            | Op::Allocate { node, .. }
            | Op::Punch { node, .. }
            | Op::Zero { node, .. } => node,
            Op::SetAttr { node, set } if set.size.is_some() => node,
            _ => return None,
        };
        self.atomics.contains_key(node).then_some(*node)
    }

    pub(crate) fn drafted(&mut self, node: NodeId) {
        if let Some(file) = self.atomics.get_mut(&node) {
            file.changed = true;
        }
    }

    /// The times that an operation which is none on content gives to files that are open O_ATOMIC, without their unsynced changes.
    pub(crate) fn committed_stamps(&mut self, op: &Op, mut stamps: Vec<Stamp>) -> Vec<Stamp> {
        let sets = matches!(op, Op::SetAttr { set, .. } if set.mtime.is_some());
        for stamp in &mut stamps {
            let Some(file) = self.atomics.get_mut(&stamp.node) else {
                continue;
            };
            file.base.ctime = stamp.ctime.unwrap_or(file.base.ctime);
            match stamp.mtime {
                Some(mtime) if sets => file.base.mtime = mtime,
                Some(_) => stamp.mtime = Some(file.base.mtime),
                None => {}
            }
        }
        stamps
    }

    /// The unsynced content of files, over a tree that was made from the history.
    pub(crate) fn redraft(&mut self, shown: &Tree) {
        for (node, file) in &mut self.atomics {
            let Some(base) = self.tree.content(*node) else {
                continue;
            };
            file.base = base;
            if let Some(content) = shown.content(*node).filter(|_| file.changed) {
                self.tree.put_content(*node, &content);
            }
        }
    }
}
