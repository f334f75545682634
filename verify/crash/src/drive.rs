//! Performs actions on a volume and keeps the history that the oracle judges by.
pub(crate) mod atomic_files;
pub(crate) mod groups;
mod marks;
pub mod request;

use crate::generate::Action;
use crate::marks::Marks;
use crate::oracle::*;
use atomic_files::AtomicFile;
use ccfs_disks::SimDevice;
use ccfs_engine::{Attr, Context, Error, FLAG_EXTENTS, Ino, StreamId, Volume};
use groups::OpenGroup;
use request::Request;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A volume and what the model thinks of it.
pub struct Driver {
    pub vol: Arc<Volume>,
    /// Counts events for the marks below.
    pub dev: Option<Arc<SimDevice>>,
    pub tree: Tree,
    pub(crate) base: Tree,
    pub history: History,
    /// Device events when operation i began.
    pub began: Vec<usize>,
    /// Device events when sync call i had returned.
    pub synced: Vec<usize>,
    pub inos: HashMap<NodeId, Ino>,
    /// Of all inodes that ever were.
    pub(crate) all_inos: HashMap<NodeId, Ino>,
    pub(crate) streams: Vec<StreamId>,
    /// Open atomic groups, by stream.
    pub(crate) groups: HashMap<usize, OpenGroup>,
    /// Files that are open O_ATOMIC; they are among `open` as well.
    pub(crate) atomic_files: HashMap<NodeId, AtomicFile>,
    /// Inodes that the "kernel" holds.
    pub(crate) open: Vec<NodeId>,
    /// Requests that failed with ENOSPC.
    pub no_space: u64,
    /// Atomic groups that were taken back, and those of them that were in another stream's way.
    pub aborts: u64,
    pub conflicts: u64,
    /// Closes that took unsynced content back.
    pub taken_back: u64,
    pub marks: Marks,
    /// What calls under way will have promised when they return.
    pub(crate) promised: HashMap<u64, Sync>,
    promises: u64,
    /// Open files are mapped as well (`is_mapped`), and the streams that wrote last to them.
    pub maps: bool,
    pub(crate) writers: HashMap<NodeId, usize>,
    /// Keep the history (needed to judge; not by tests without crashes).
    pub keep: bool,
}

/// A call that waits for the device, with what it promises when it succeeds.
#[derive(Clone, Debug)]
pub struct SyncCall {
    pub action: Action,
    cx: Context,
    ino: Ino,
    pub sync: Option<Sync>,
    /// `sync` says what it orders; it makes nothing durable.
    pub barrier: bool,
}

impl SyncCall {
    pub fn perform(&self, vol: &Volume) -> Result<(), Error> {
        let ignoring = Context {
            ignore_fsync: true,
            ..self.cx
        };
        match &self.action {
            Action::Fsync { data_only, .. } => vol.fsync(&self.cx, self.ino, *data_only),
            Action::IgnoredSync(_) => vol.fsync(&ignoring, self.ino, false),
            Action::Barrier(_) => vol.barrier(&self.cx, ccfs_engine::SyncCall::File(self.ino), 0),
            Action::StreamSync => vol.streamsync(self.cx.stream),
            Action::VolumeSync => vol.syncfs(&self.cx),
            Action::Tick => vol.tick(Duration::ZERO),
            Action::Checkpoint => vol.checkpoint(),
            Action::Trim => vol.trim(0, u64::MAX, 0).map(drop),
            Action::Grow(kib) => match vol.grow(vol.size_bytes() + (kib << 10)) {
                Err(Error::Refused(why)) if why.contains("flash") => Ok(()),
                result => result.map(drop),
            },
            _ => Ok(()),
        }
    }
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Accepted,
    /// Both the engine and the model refused it, or it made no sense on this tree and was not tried.
    Refused,
    NoSpace,
    /// The device failed.
    Stopped,
}

impl Driver {
    /// `base` is the tree of the volume as it is now, its nodes named by inode number.
    pub fn new(
        vol: Arc<Volume>,
        dev: Option<Arc<SimDevice>>,
        base: &Tree,
        streams: usize,
    ) -> Driver {
        let inos: HashMap<NodeId, Ino> = base.nodes.keys().map(|n| (*n, n.0 as Ino)).collect();
        let ids = (0..streams).map(|_| vol.new_stream()).collect();
        Driver {
            vol,
            dev,
            tree: base.clone(),
            base: base.clone(),
            history: History {
                streams,
                ..History::default()
            },
            began: Vec::new(),
            synced: Vec::new(),
            all_inos: inos.clone(),
            inos,
            streams: ids,
            groups: HashMap::new(),
            atomic_files: HashMap::new(),
            open: Vec::new(),
            no_space: 0,
            aborts: 0,
            conflicts: 0,
            taken_back: 0,
            marks: Marks::default(),
            promised: HashMap::new(),
            promises: 0,
            maps: false,
            writers: HashMap::new(),
            keep: true,
        }
    }

    pub(crate) fn events(&self) -> usize {
        self.dev.as_ref().map_or(0, |d| d.events())
    }

    pub(crate) fn cx(&self, stream: usize) -> Context {
        let open = self.groups.get(&stream);
        let stream = open.map_or(self.streams[stream], |g| g.id);
        Context::root(stream)
    }

    pub(crate) fn ino(&self, node: NodeId) -> Ino {
        // Nodes of the model that the engine never made do not pass the model's check before.
        self.inos.get(&node).copied().unwrap_or(0)
    }

    /// Performs an action. An error is a promise broken, as text.
    pub fn act(&mut self, stream: usize, action: &Action) -> Result<Ended, String> {
        match action {
            Action::Op(op) => return self.op(stream, op),
            Action::Copy { .. } => return self.copy(stream, action),
            Action::GroupBegin | Action::GroupCommit { .. } | Action::GroupAbort => {
                return self.group_act(stream, action);
            }
            Action::AtomicFileOpen(_) | Action::AtomicFileClose(_) | Action::Syncv(_) => {
                return self.atomic_file_act(stream, action);
            }
            Action::Fsync { node, .. } | Action::IgnoredSync(node) if self.is_drafted(node) => {
                return self.publish(stream, &[*node], action);
            }
            Action::Open(node) | Action::Close(node) if !self.inos.contains_key(node) => {
                return Ok(Ended::Refused);
            }
            Action::Open(node) => {
                self.vol.remember(self.ino(*node), 1);
                self.open.push(*node);
                return Ok(Ended::Accepted);
            }
            Action::Close(node) => {
                if let Some(i) = self.open.iter().position(|n| n == node) {
                    self.open.swap_remove(i);
                    self.writers.remove(node);
                    self.vol.forget(self.ino(*node), 1);
                    self.forget_dead(&[*node]);
                }
                return Ok(Ended::Accepted);
            }
            _ => {}
        }
        let Some(call) = self.sync_call(stream, action) else {
            return Ok(Ended::Refused);
        };
        match call.perform(&self.vol) {
            Ok(()) => {
                match call.sync.filter(|_| self.keep) {
                    Some(sync) if call.barrier => self.ordered(sync),
                    Some(sync) => self.has_synced(sync),
                    None => {}
                }
                Ok(Ended::Accepted)
            }
            Err(e) if is_stop(&e) => Ok(Ended::Stopped),
            Err(e) => Err(format!("{action:?} failed: {e}")),
        }
    }

    /// A sync call has returned.
    pub(crate) fn has_synced(&mut self, call: Sync) {
        self.history.syncs.push(call);
        self.synced.push(self.events());
    }

    /// A call has begun that promises this when it succeeds. What it covers changes where groups are taken back meanwhile.
    pub fn promise(&mut self, call: Sync) -> u64 {
        self.promises += 1;
        self.promised.insert(self.promises, call);
        self.promises
    }

    /// It has returned; `kept`: with success, when that was the number of device events.
    pub fn promise_ends(&mut self, number: u64, kept: Option<usize>) -> Option<Sync> {
        let call = self.promised.remove(&number)?;
        if let Some(events) = kept {
            self.history.syncs.push(call);
            self.synced.push(events);
        }
        Some(call)
    }

    /// A barrier has returned.
    pub fn ordered(&mut self, call: Sync) {
        let before = self.history.ops.len();
        self.history.barriers.push(Barrier { call, before });
    }

    /// The call that an action stands for, if it is one that waits for the device and changes nothing that a call sees (sync, tick, checkpoint, trim, growing). It
    /// can be performed while other threads use the driver.
    pub fn sync_call(&self, stream: usize, action: &Action) -> Option<SyncCall> {
        let (ino, kind) = match action {
            Action::Fsync { node, .. } | Action::Barrier(node) => {
                (*self.inos.get(node)?, Some(SyncKind::File(*node)))
            }
            Action::IgnoredSync(node) => (*self.inos.get(node)?, None),
            Action::StreamSync => (0, Some(SyncKind::Stream)),
            Action::VolumeSync => (0, Some(SyncKind::Volume)),
            Action::Tick | Action::Checkpoint | Action::Trim | Action::Grow(_) => (0, None),
            _ => return None,
        };
        let after = self.history.ops.len();
        Some(SyncCall {
            action: action.clone(),
            barrier: matches!(action, Action::Barrier(_)),
            cx: self.cx(stream),
            ino,
            sync: kind.map(|kind| Sync {
                stream,
                kind,
                after,
            }),
        })
    }

    fn op(&mut self, stream: usize, op: &Op) -> Result<Ended, String> {
        let Some(mut request) = self.request(stream, op) else {
            return Ok(Ended::Refused);
        };
        let result = request.perform(&self.vol.clone());
        if let (Op::Write { data, .. }, Op::Write { data: done, .. }) = (op, &request.op)
            && done.len() < data.len()
        {
            self.marks.mark("file/shortened");
            if (request.whole || request.mapped) && data.len() <= self.vol.write_max() {
                return Err(format!("{op}: {} bytes of it were taken", done.len()));
            }
        }
        self.answer(request, result)
    }

    /// copy_file_range: for the model a write of what the source holds now, as long as the call says that it is.
    fn copy(&mut self, stream: usize, action: &Action) -> Result<Ended, String> {
        let Action::Copy {
            from,
            from_offset,
            to,
            to_offset,
            len,
        } = action
        else {
            return Ok(Ended::Refused);
        };
        let (Some(source), Some(_)) = (self.tree.content(*from), self.tree.content(*to)) else {
            return Ok(Ended::Refused);
        };
        let len = (*len).min(source.size.saturating_sub(*from_offset));
        let data = source.data.read(*from_offset, len as usize);
        let op = Op::Write {
            node: *to,
            offset: *to_offset,
            data: data.into(),
            kill: false,
        };
        let Some(mut request) = self.request(stream, &op).filter(|_| len > 0) else {
            return Ok(Ended::Refused);
        };
        request.mapped = false;
        let result = request.copy(&self.vol.clone(), self.ino(*from), *from_offset);
        if result.is_ok() {
            self.marks.mark("file/copied");
        }
        self.answer(request, result)
    }

    /// What a request gave, at the moment at which it ended, against the model.
    pub fn answer(
        &mut self,
        mut request: Request,
        result: Result<Option<Attr>, Error>,
    ) -> Result<Ended, String> {
        let held = std::mem::take(&mut request.held);
        let ended = match result {
            Err(e) if e.errno() == libc::ENOENT && held.any() && self.has_no_name(&request.op) => {
                self.settle_groups().map(|_| Ended::Refused)
            }
            result => self.compare_answer(request, result),
        };
        self.release(held);
        ended
    }

    /// The stream that wrote last to what the operation is about.
    fn writer_of(&self, op: &Op) -> Option<usize> {
        let target = op.target();
        self.writers.get(target.as_ref().unwrap_or(&ROOT)).copied()
    }

    /// A new inode has this number.
    fn made(&mut self, op: &Op, attr: Option<Attr>) {
        if let (Some(node), Some(attr)) = (op.makes(), attr) {
            self.inos.insert(node, attr.ino);
            self.all_inos.insert(node, attr.ino);
            if matches!(op, Op::Tmpfile { .. }) {
                self.open.push(node);
            }
        }
    }

    fn note_accepted(&mut self, began: usize, stream: usize, op: Op, stamps: Vec<Stamp>) {
        self.began.push(began);
        self.history.ops.push(Accepted { stream, op, stamps });
    }

    /// Settles the groups. True: the operation was in the way of one, which is gone.
    fn ended_a_group(&mut self, is_in_group: bool) -> Result<bool, String> {
        let ended = self.settle_groups()?;
        self.conflicts += u64::from(ended);
        if ended {
            self.marks.conflict(is_in_group);
        }
        Ok(ended)
    }

    fn compare_answer(
        &mut self,
        request: Request,
        result: Result<Option<Attr>, Error>,
    ) -> Result<Ended, String> {
        let Request {
            stream,
            op,
            group,
            mapped,
            ..
        } = request;
        // Others may have been accepted while it waited.
        let began = request.began.max(self.began.last().copied().unwrap_or(0));
        if let (true, Err(e)) = (mapped, &result) {
            self.lost_page(&op, e);
        }
        // It may have been in the way of a group, which then is gone: what counts is the tree without that.
        let cancelled = self.ended_a_group(group.is_some())?;
        if group.is_some_and(|g| !self.is_open_group(stream, g)) {
            return lost_its_group(&op, result.map(drop));
        }
        let touches = self.tree.touches(&op);
        let targets = self.victims(&op);
        let in_group = group.map_or(Ok(()), |_| self.tree.permits_in_group(&op));
        let forbidden = self.tree.permits(&op).and(in_group) == Err(libc::EPERM);
        let expected = self.check_without(&op).and(in_group);
        let locks = self.ends_draft(&op);
        let stream = self.writer_of(&op).filter(|_| mapped).unwrap_or(stream);
        let place = group.map_or(stream, |g| g.number);
        let target = op.target().and_then(|n| self.tree.get(n).ok());
        let bits = target.is_some_and(Node::has_bits_to_kill);
        let draft = self.drafts(&op);
        match (result, expected) {
            (Ok(attr), Ok(())) => {
                self.made(&op, attr);
                // Of two names of one file none is moved.
                if !touches.is_empty() {
                    self.find_whiteout(&op)?;
                }
                if let Some(node) = locks {
                    self.draft_ended(node, place)?;
                }
                let stamps = self.stamps(&touches);
                self.tree
                    .apply(&op, &stamps)
                    .map_err(|e| format!("{op}: accepted, the model says {}", name(e)))?;
                self.forget_dead(&targets);
                self.forget_dead(locks.as_slice());
                self.compare(&op, &touches)?;
                self.note_writer(&op, stream);
                self.mark_rights(&op, bits);
                // A rename between two names of one file is no operation: Linux does not even pass it on.
                if let Some(node) = draft {
                    self.drafted(node);
                    if mapped {
                        self.marks.mapped(node);
                    }
                } else if self.keep && !touches.is_empty() {
                    if mapped {
                        self.marks.mark("file/mapped");
                    }
                    let stamps = self.committed_stamps(&op, stamps);
                    self.marks.step(place, touches.iter().map(|t| t.node));
                    self.note_accepted(began, place, op, stamps);
                }
                if cancelled {
                    self.check_all("an operation that ended a group")?;
                }
                Ok(Ended::Accepted)
            }
            (Err(e), expected) if is_stop(&e) => {
                // It may have been accepted before the device failed. Its times are not known.
                if self.keep && expected.is_ok() && draft.is_none() {
                    self.note_accepted(began, place, op, Vec::new());
                }
                Ok(Ended::Stopped)
            }
            (Err(e), Ok(())) if e.errno() == libc::ENOSPC && may_lack_space(&op, &self.tree) => {
                self.no_space += 1;
                Ok(Ended::NoSpace)
            }
            (Err(e), Ok(()))
                if e.errno() == libc::EDQUOT && (draft.is_some() || group.is_some()) =>
            {
                Ok(Ended::NoSpace)
            }
            // It would be taken back with the group; or a page of the draft is lost.
            (Err(_), Ok(())) if locks.is_some_and(|n| group.is_some() || self.is_lost(&n)) => {
                Ok(Ended::Refused)
            }
            // Block-mapped files cannot have unwritten blocks (fallocate(2), EOPNOTSUPP).
            (Err(e), Ok(())) if e.errno() == libc::EOPNOTSUPP && self.is_block_mapped(&op) => {
                Ok(Ended::Refused)
            }
            (Err(e), Err(errno)) if same_refusal(e.errno(), errno) => {
                if e.errno() == libc::EPERM && forbidden {
                    self.marks.mark("rights/refused");
                }
                Ok(Ended::Refused)
            }
            (Err(e), Err(_)) if e.errno() == libc::EPERM && forbidden => Ok(Ended::Refused),
            // What it speaks of ended while it waited.
            (Err(_), Err(_)) if !self.known(&op) => Ok(Ended::Refused),
            (Err(e), expected) => Err(format!(
                "{op}: failed with {e}, the model says {:?}",
                expected.map_err(name)
            )),
            (Ok(_), Err(errno)) => Err(format!("{op}: accepted, the model says {}", name(errno))),
        }
    }

    /// What the model says of an operation that ended a group. For the model inodes stay; what the group had made, or given its only
    /// name, is gone for callers.
    fn check_without(&self, op: &Op) -> Result<(), i32> {
        self.tree.check(op)?;
        match self.known(op) {
            true => Ok(()),
            false => Err(libc::ENOENT),
        }
    }

    /// A link to a file that may have lost its last name while the request waited. One that never had one could get it.
    fn has_no_name(&self, op: &Op) -> bool {
        let Op::Link { node, .. } = op else {
            return false;
        };
        self.tree.get(*node).is_ok_and(|n| n.nlink == 0)
    }

    fn is_block_mapped(&self, op: &Op) -> bool {
        let (Op::Allocate { node, .. } | Op::Zero { node, .. }) = op else {
            return false;
        };
        self.vol
            .getflags(self.ino(*node))
            .is_ok_and(|f| f & FLAG_EXTENTS == 0)
    }

    /// Whether all inodes that the operation speaks of exist (a shortened script may have lost their making).
    pub(crate) fn known(&self, op: &Op) -> bool {
        op.nodes().iter().all(|n| self.inos.contains_key(n))
    }

    /// Inodes that may lose their last name.
    fn victims(&self, op: &Op) -> Vec<NodeId> {
        match op {
            Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => op
                .names()
                .iter()
                .filter_map(|(d, n)| self.tree.lookup(*d, n).ok())
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Inodes without a name that nobody holds are gone for the caller.
    pub(crate) fn forget_dead(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            if self.tree.get(*node).is_ok_and(|n| n.nlink == 0) && !self.open.contains(node) {
                self.inos.remove(node);
                if !self.keep {
                    self.tree.nodes.remove(node);
                }
            }
        }
    }

    /// The inode of a whiteout that a rename has left behind.
    fn find_whiteout(&mut self, op: &Op) -> Result<(), String> {
        if let Op::Rename {
            from,
            name,
            kind: RenameKind::Whiteout(node),
            ..
        } = op
        {
            let attr = self
                .vol
                .lookup(self.ino(*from), name)
                .map_err(|e| format!("{op}: no whiteout: {e}"))?;
            self.inos.insert(*node, attr.ino);
            self.all_inos.insert(*node, attr.ino);
        }
        Ok(())
    }

    fn stamps(&self, touches: &[Touch]) -> Vec<Stamp> {
        let stamp = |t: &Touch| {
            let attr = self.vol.getattr(*self.inos.get(&t.node)?).ok()?;
            Some(Stamp {
                node: t.node,
                mtime: t.mtime.then_some(attr.mtime),
                ctime: t.ctime.then_some(attr.ctime),
            })
        };
        touches.iter().filter_map(stamp).collect()
    }

    /// Attributes of the touched inodes as the engine shows them against the model's.
    fn compare(&self, op: &Op, touches: &[Touch]) -> Result<(), String> {
        for t in touches {
            let (Some(ino), Ok(node)) = (self.inos.get(&t.node), self.tree.get(t.node)) else {
                continue;
            };
            let Ok(attr) = self.vol.getattr(*ino) else {
                continue;
            };
            let size = if node.is_dir() { 0 } else { attr.size };
            let flags = attr.flags & FLAGS;
            let seen = (
                attr.mode, attr.uid, attr.gid, size, attr.nlink, attr.rdev, flags,
            );
            let want = (
                node.mode, node.uid, node.gid, node.size, node.nlink, node.rdev, node.flags,
            );
            // What a removed directory shows to those that hold it is nobody's business.
            if seen != want && !(node.is_dir() && node.nlink == 0) {
                return Err(format!(
                    "{op}: inode {ino} shows {seen:?}, the model says {want:?}"
                ));
            }
            if (attr.mtime, attr.ctime) != (node.mtime, node.ctime) {
                let (a, b) = ((attr.mtime, attr.ctime), (node.mtime, node.ctime));
                return Err(format!(
                    "{op}: inode {ino} shows times {a:?}, the model says {b:?}"
                ));
            }
        }
        Ok(())
    }
}

/// The volume has stopped or a read failed.
pub fn is_stop(e: &Error) -> bool {
    e.errno() == libc::EIO || e.errno() == libc::EROFS
}

/// C9: unlinking and shrinking never give ENOSPC.
fn may_lack_space(op: &Op, tree: &Tree) -> bool {
    match op {
        Op::Unlink { .. } | Op::Rmdir { .. } => false,
        Op::SetAttr { node, set } => set
            .size
            .is_none_or(|size| tree.get(*node).is_ok_and(|n| size > n.size)),
        _ => true,
    }
}

/// Its group ended while it waited: nothing is accepted into it any more.
fn lost_its_group(op: &Op, result: Result<(), Error>) -> Result<Ended, String> {
    match result {
        Err(e) if is_stop(&e) => Ok(Ended::Stopped),
        // It may have been refused for another reason before.
        Err(_) => Ok(Ended::Refused),
        Ok(()) => Err(format!("{op}: accepted, but its group has ended")),
    }
}

/// Where two things are wrong with a request either may be named.
fn same_refusal(a: i32, b: i32) -> bool {
    let vague = [
        libc::EEXIST,
        libc::ENOTEMPTY,
        libc::EISDIR,
        libc::ENOTDIR,
        libc::EINVAL,
        libc::EPERM,
    ];
    a == b || vague.contains(&a) && vague.contains(&b)
}

fn name(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
