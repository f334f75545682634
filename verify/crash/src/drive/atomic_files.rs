//! Failure-atomic files in a driven workload. The driver's tree shows their content as everybody sees it; the history, by which crashes are
//! judged, gets it when a sync of the file publishes it, as one operation for all files of the call.
use super::groups::OpenGroup;
use super::{Driver, Ended, is_stop};
use crate::generate::Action;
use crate::observe::inode;
use crate::oracle::*;
use ccfs_engine::{Context, Error, Ino, Volume};

/// A file that is open O_ATOMIC.
#[derive(Clone, Debug)]
pub struct AtomicFile {
    /// What a close takes it back to.
    base: Content,
    changed: bool,
    /// A page of a mapping could not be taken in: nothing more can be synced.
    lost: bool,
}

/// A call on files: an O_ATOMIC open, or a sync of files that are open so, or may be.
#[derive(Clone, Debug)]
pub struct AtomicFileCall {
    stream: usize,
    /// The group that its caller is in.
    group: Option<OpenGroup>,
    pub nodes: Vec<NodeId>,
    inos: Vec<Ino>,
    pub action: Action,
    began: usize,
    cx: Context,
}

impl AtomicFileCall {
    pub fn perform(&self, vol: &Volume) -> Result<(), Error> {
        let cx = Context {
            ignore_fsync: matches!(self.action, Action::IgnoredSync(_)),
            ..self.cx
        };
        match &self.action {
            Action::AtomicFileOpen(_) => vol.open_atomic_file(&cx, self.inos[0], 0),
            Action::Syncv(_) => vol.syncv(&cx, &self.inos, 0),
            _ => vol.fsync(&cx, self.inos[0], false),
        }
    }
}

impl Driver {
    pub(crate) fn atomic_file_act(
        &mut self,
        stream: usize,
        action: &Action,
    ) -> Result<Ended, String> {
        match action {
            Action::AtomicFileOpen(node) => self.open_atomic_file(stream, *node),
            Action::AtomicFileClose(node) => self.close_atomic_file(*node),
            Action::Syncv(nodes) if nodes.iter().all(|n| self.atomic_files.contains_key(n)) => {
                self.publish(stream, nodes, action)
            }
            _ => Ok(Ended::Refused),
        }
    }

    fn open_atomic_file(&mut self, stream: usize, node: NodeId) -> Result<Ended, String> {
        let Some(call) = self.opening(stream, node) else {
            return Ok(Ended::Refused);
        };
        let after = self.history.ops.len();
        let done = call.perform(&self.vol);
        if let Some(refused) = self.not_opened(node, &done)? {
            return Ok(refused);
        }
        self.opened(&call);
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

    /// The call that opens a file O_ATOMIC, if it exists.
    pub(crate) fn opening(&self, stream: usize, node: NodeId) -> Option<AtomicFileCall> {
        self.tree.content(node)?;
        self.atomic_file_call(stream, &[node], &Action::AtomicFileOpen(node))
    }

    /// How an O_ATOMIC open ended that did not succeed.
    pub(crate) fn not_opened(
        &mut self,
        node: NodeId,
        done: &Result<(), Error>,
    ) -> Result<Option<Ended>, String> {
        match done {
            Ok(()) if self.is_locked(node) => {
                Err(format!("O_ATOMIC open of #{}: it is locked", node.0))
            }
            Ok(()) => Ok(None),
            Err(e) if is_stop(e) => Ok(Some(Ended::Stopped)),
            Err(e)
                if e.errno() == libc::EBUSY
                    && (self.atomic_files.contains_key(&node) || !self.groups.is_empty()) =>
            {
                Ok(Some(Ended::Refused))
            }
            Err(e) if e.errno() == libc::EPERM && self.is_locked(node) => {
                self.marks.mark("rights/refused");
                Ok(Some(Ended::Refused))
            }
            Err(e) => Err(format!("O_ATOMIC open of #{}: {e}", node.0)),
        }
    }

    /// From here on what is written to the file waits for a sync.
    pub(crate) fn opened(&mut self, call: &AtomicFileCall) {
        let node = call.nodes[0];
        let Some(base) = self.tree.content(node) else {
            return;
        };
        self.open.push(node);
        let file = AtomicFile {
            base,
            changed: false,
            lost: false,
        };
        self.atomic_files.insert(node, file);
    }

    fn close_atomic_file(&mut self, node: NodeId) -> Result<Ended, String> {
        let Some(file) = self.atomic_files.remove(&node) else {
            return Ok(Ended::Refused);
        };
        let changed = self.vol.close_atomic_file(self.all_inos[&node]);
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
        let Some(call) = self.atomic_file_call(stream, nodes, action) else {
            return Ok(Ended::Refused);
        };
        let done = call.perform(&self.vol);
        if let Err(e) = done {
            return self.not_published(&call, e);
        }
        for sync in self.placed(&call)? {
            if self.keep {
                self.has_synced(sync);
            }
        }
        Ok(Ended::Accepted)
    }

    /// The call of an action on files, all of which exist.
    pub(crate) fn atomic_file_call(
        &self,
        stream: usize,
        nodes: &[NodeId],
        action: &Action,
    ) -> Option<AtomicFileCall> {
        let inos = nodes.iter().map(|n| self.inos.get(n).copied());
        Some(AtomicFileCall {
            stream,
            group: self.groups.get(&stream).copied(),
            nodes: nodes.to_vec(),
            inos: inos.collect::<Option<_>>()?,
            action: action.clone(),
            began: self.events(),
            cx: self.cx(stream),
        })
    }

    /// How a sync of files that are open O_ATOMIC ended that did not succeed, and had not got its place.
    pub(crate) fn not_published(
        &mut self,
        call: &AtomicFileCall,
        e: Error,
    ) -> Result<Ended, String> {
        // A group that had changed the file's name or mode was in the way.
        self.conflicts += u64::from(self.settle_groups()?);
        let lost = |n: &NodeId| self.atomic_files.get(n).is_some_and(|a| a.lost);
        let left = call
            .group
            .is_some_and(|g| !self.is_open_group(call.stream, g));
        match e {
            e if is_stop(&e) => {
                self.published(call);
                Ok(Ended::Stopped)
            }
            e if e.errno() == libc::EBUSY && call.group.is_some() => Ok(Ended::Refused),
            e if e.errno() == libc::ECANCELED && left => Ok(Ended::Refused),
            e if e.errno() == libc::EDQUOT && call.nodes.len() > 1 => Ok(Ended::NoSpace),
            _ if call.nodes.iter().any(lost) => Ok(Ended::Refused),
            e => Err(format!("{:?} failed: {e}", call.action)),
        }
    }

    /// A sync of files has got its place; what it promises when it succeeds.
    pub(crate) fn placed(&mut self, call: &AtomicFileCall) -> Result<Vec<Sync>, String> {
        self.conflicts += u64::from(self.settle_groups()?);
        self.published(call);
        let after = self.history.ops.len();
        let mut promises = Vec::new();
        for node in &call.nodes {
            if self.atomic_files.contains_key(node) {
                self.check_content(*node, "a sync")?;
            }
            promises.push(Sync {
                stream: call.stream,
                kind: SyncKind::File(*node),
                after,
            });
        }
        if matches!(call.action, Action::IgnoredSync(_)) {
            promises.clear();
        }
        Ok(promises)
    }

    /// Immutable or append-only.
    fn is_locked(&self, node: NodeId) -> bool {
        let locks = IMMUTABLE | APPEND;
        self.tree.get(node).is_ok_and(|n| n.flags & locks != 0)
    }

    /// The file open O_ATOMIC that an operation makes immutable or append-only: from there on it is none.
    pub(crate) fn ends_draft(&self, op: &Op) -> Option<NodeId> {
        let Op::SetFlags { node, flags } = op else {
            return None;
        };
        let new = flags & (IMMUTABLE | APPEND) & !self.tree.get(*node).ok()?.flags;
        (new != 0 && self.atomic_files.contains_key(node)).then_some(*node)
    }

    /// Such an operation was accepted: it has published what there was.
    pub(crate) fn draft_ended(&mut self, node: NodeId, stream: usize) -> Result<(), String> {
        self.publish_at(stream, self.events(), &[node]);
        self.atomic_files.remove(&node);
        if let Some(i) = self.open.iter().position(|n| *n == node) {
            self.open.swap_remove(i);
        }
        match self.vol.atomic_file_state(self.ino(node)) {
            (false, false) => Ok(()),
            state => Err(format!("#{} is locked, its draft is {state:?}", node.0)),
        }
    }

    fn published(&mut self, call: &AtomicFileCall) {
        self.publish_at(call.stream, call.began, &call.nodes);
    }

    fn publish_at(&mut self, stream: usize, began: usize, nodes: &[NodeId]) {
        let began = began.max(self.began.last().copied().unwrap_or(0));
        let (mut files, mut stamps) = (Vec::new(), Vec::new());
        for node in nodes {
            let (Some(file), Some(now)) =
                (self.atomic_files.get_mut(node), self.tree.content(*node))
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
            && let Some(file) = self.atomic_files.get_mut(node)
        {
            file.lost |= !is_stop(e);
        }
    }

    pub(crate) fn is_lost(&self, node: &NodeId) -> bool {
        self.atomic_files.get(node).is_some_and(|a| a.lost)
    }

    /// Has the file unsynced changes?
    pub(crate) fn is_drafted(&self, node: &NodeId) -> bool {
        self.atomic_files.get(node).is_some_and(|a| a.changed)
    }

    /// The file open O_ATOMIC whose content this operation changes, if it is about one.
    pub(crate) fn drafts(&self, op: &Op) -> Option<NodeId> {
        let node = op.changes_content_of();
        node.filter(|node| self.atomic_files.contains_key(node))
    }

    pub(crate) fn drafted(&mut self, node: NodeId) {
        if let Some(file) = self.atomic_files.get_mut(&node) {
            file.changed = true;
        }
    }

    /// The times that an operation which is none on content gives to files that are open O_ATOMIC, without their unsynced changes.
    pub(crate) fn committed_stamps(&mut self, op: &Op, mut stamps: Vec<Stamp>) -> Vec<Stamp> {
        let sets = matches!(op, Op::SetAttr { set, .. } if set.mtime.is_some());
        for stamp in &mut stamps {
            let Some(file) = self.atomic_files.get_mut(&stamp.node) else {
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
        for (node, file) in &mut self.atomic_files {
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
