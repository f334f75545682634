//! Performs actions by direct calls and beside them, and keeps the history that the oracle judges by. A posted operation is accepted when
//! it is published, any other one with its reply.
use crate::entries::{Wanted, entry_of};
use crate::kernel::Kernel;
use crate::session::{Did, Session, Thread};
use ccfs_client::direct::layout::{Attr, Entry, READING, WRITING, op};
use ccfs_crash::counts::Counts;
use ccfs_crash::drive::Ended;
use ccfs_crash::generate::Action;
use ccfs_crash::oracle::*;
use ccfs_disks::SimDevice;
use ccfs_engine::Volume;
use ccfs_testkit::Rng;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// A thread, its stream, and the session that it has.
pub struct Place {
    pub thread: Thread,
    pub stream: usize,
    pub session: Option<usize>,
}

pub struct Driver {
    pub vol: Arc<Volume>,
    pub dev: Arc<SimDevice>,
    pub kernel: Kernel,
    pub sessions: Vec<Session>,
    pub places: Vec<Place>,
    /// The streams' numbers.
    pub streams: Vec<u64>,
    pub seed: u64,
    pub tree: Tree,
    pub history: History,
    /// Device events when operation i began, and when sync call i had returned.
    pub began: Vec<usize>,
    pub synced: Vec<usize>,
    /// Open files of the kernel's.
    pub open: Vec<NodeId>,
    /// Calls by the way that they took.
    pub ways: Counts,
    /// How often an action was performed.
    pub met: HashMap<String, u64>,
}

/// A failure, as text.
type Done<T> = Result<T, String>;

impl Driver {
    pub fn events(&self) -> usize {
        self.dev.events()
    }

    pub fn count(&mut self, way: &str) {
        *self.ways.entry(way.into()).or_default() += 1;
    }

    /// What chance decides about an action stays the same where others before it are left out.
    fn chances_of(&mut self, stream: usize, action: &Action) -> Rng {
        let what = match action {
            Action::Op(op) => format!("{stream} {op}"),
            other => format!("{stream} {other:?}"),
        };
        let mut hasher = DefaultHasher::new();
        let before = self.met.entry(what.clone()).or_default();
        (&what, *before).hash(&mut hasher);
        *before += 1;
        Rng::new(self.seed ^ hasher.finish())
    }

    pub fn act(&mut self, stream: usize, action: &Action) -> Done<Ended> {
        let rng = &mut self.chances_of(stream, action);
        self.meanwhile(rng)?;
        let place = self.who(stream, action, rng);
        match action {
            Action::Op(op) => self.operate(place, op, rng),
            Action::Fsync { node, data_only } => self.fsync(place, *node, *data_only, rng),
            Action::Barrier(node) => self.barrier(place, *node, rng),
            Action::StreamSync => {
                let tid = self.tid(place);
                self.sync(place, SyncKind::Stream, |d| d.kernel.streamsync(tid))
            }
            Action::VolumeSync => self.sync(place, SyncKind::Volume, |d| d.kernel.syncfs()),
            Action::Tick => self.engine(|vol| vol.tick(Duration::ZERO)),
            Action::Checkpoint => self.engine(|vol| vol.checkpoint()),
            Action::Trim => self.engine(|vol| vol.trim(0, u64::MAX, 0).map(drop)),
            Action::Open(node) => {
                let known = self.kernel_knows(place, *node, rng)?;
                if known && !self.open.contains(node) {
                    self.open.push(*node);
                }
                Ok(if known {
                    Ended::Accepted
                } else {
                    Ended::Refused
                })
            }
            Action::Close(node) => {
                self.open.retain(|n| n != node);
                self.drop_dead(&[*node]);
                Ok(Ended::Accepted)
            }
            other => Err(format!("script: cannot do: {other:?}")),
        }
    }

    /// A thread of the stream, mostly one whose session has what the action is about.
    fn who(&self, stream: usize, action: &Action, rng: &mut Rng) -> usize {
        let about = match action {
            Action::Op(op) => op.nodes(),
            Action::Fsync { node, .. } | Action::Barrier(node) => vec![*node],
            _ => Vec::new(),
        };
        let has = |place: &usize| {
            let session = self.places[*place].session.map(|s| &self.sessions[s]);
            session.is_some_and(|s| about.iter().any(|node| s.handles.contains_key(node)))
        };
        let all = 0..self.places.len();
        let mine: Vec<usize> = all.filter(|p| self.places[*p].stream == stream).collect();
        let holders: Vec<usize> = mine.iter().copied().filter(has).collect();
        match holders.is_empty() || rng.chance(10) {
            true => *rng.pick(&mine),
            false => *rng.pick(&holders),
        }
    }

    fn tid(&self, place: usize) -> u32 {
        self.places[place].thread.tid
    }

    /// The session of a thread.
    fn session_of(&mut self, place: usize) -> Option<(&mut Session, &Kernel, u32)> {
        let Place {
            thread, session, ..
        } = &self.places[place];
        Some((&mut self.sessions[(*session)?], &self.kernel, thread.tid))
    }

    fn engine(&self, call: impl FnOnce(&Volume) -> Result<(), ccfs_engine::Error>) -> Done<Ended> {
        call(&self.vol).map_err(|e| e.to_string())?;
        Ok(Ended::Accepted)
    }

    /// What may happen between two calls: sessions' threads come to it, or to a part of it; somebody looks; the kernel forgets; programs
    /// read and close.
    fn meanwhile(&mut self, rng: &mut Rng) -> Done<()> {
        for session in &mut self.sessions {
            if rng.chance(5) {
                session.carry_out(&self.kernel)?;
            } else if rng.chance(8) && !session.pending.is_empty() {
                let tail = *rng.pick(&session.pending);
                session.carry_out_to(&self.kernel, tail)?;
                *self.ways.entry("carried out in part".into()).or_default() += 1;
            }
        }
        let place = rng.index(self.places.len());
        let mut nodes: Vec<NodeId> = self.tree.nodes.keys().copied().collect();
        nodes.sort();
        let node = *rng.pick(&nodes);
        let is_file = self.tree.content(node).is_some();
        match rng.below(100) {
            0..2 => self.kernel_knows(place, node, rng).map(drop),
            2..6 if is_file && !self.open.contains(&node) => {
                self.kernel.forget(node);
                Ok(())
            }
            6..10 => self.compare_read(place, rng),
            10..13 => self.close_one(place, rng),
            13 => self.move_on(place, rng),
            _ => Ok(()),
        }
    }

    /// A program reads what it holds.
    fn compare_read(&mut self, place: usize, rng: &mut Rng) -> Done<()> {
        let tree = self.tree.clone();
        let Some((session, kernel, tid)) = self.session_of(place) else {
            return Ok(());
        };
        let files: Vec<(NodeId, u32)> = session.handles.iter().map(|(n, h)| (*n, *h)).collect();
        let Some((node, h)) = (!files.is_empty()).then(|| *rng.pick(&files)) else {
            return Ok(());
        };
        let Some(content) = tree.content(node) else {
            return Ok(());
        };
        let (offset, len) = (rng.below(content.size + 1), 1 + rng.below(20_000) as usize);
        let entry = Entry {
            op: op::READ,
            h,
            a: offset,
            b: len as u64,
            ..Entry::default()
        };
        let broken = session.is_broken(h);
        let by_call = rng.chance(30);
        let (did, bytes) = session.ask(kernel, tid, entry, &[], len, by_call)?;
        let want = content
            .data
            .read(offset, len.min((content.size - offset) as usize));
        match did {
            Did::Done if !broken && bytes == want => {}
            Did::Broken if broken => {}
            did => {
                return Err(format!(
                    "read of #{} at {offset}: {did:?}, wrong bytes",
                    node.0
                ));
            }
        }
        self.count("read");
        Ok(())
    }

    /// A thread goes to another stream, if it leaves somebody in its own.
    fn move_on(&mut self, place: usize, rng: &mut Rng) -> Done<()> {
        let (from, to) = (self.places[place].stream, rng.index(self.streams.len()));
        let left = self.places.iter().filter(|p| p.stream == from).count();
        if left > 1 && to != from {
            self.kernel.set_stream(self.tid(place), self.streams[to])?;
            self.places[place].stream = to;
            self.count("moved to another stream");
        }
        Ok(())
    }

    fn close_one(&mut self, place: usize, rng: &mut Rng) -> Done<()> {
        let tree = self.tree.clone();
        let Some((session, kernel, tid)) = self.session_of(place) else {
            return Ok(());
        };
        let is_file = |n: &&NodeId| tree.get(**n).is_ok_and(|n| !n.is_dir());
        let files: Vec<NodeId> = session.handles.keys().filter(is_file).copied().collect();
        match files.is_empty() {
            true => Ok(()),
            false => session.close(kernel, tid, *rng.pick(&files)),
        }
    }

    /// The kernel knows it from here on: by its path, or by a name for once. False: nobody can say what it is.
    fn kernel_knows(&mut self, place: usize, node: NodeId, rng: &mut Rng) -> Done<bool> {
        if self.kernel.knows(node) {
            return Ok(true);
        }
        let holder = self
            .sessions
            .iter()
            .position(|s| s.handles.contains_key(&node));
        let named = self.tree.get(node).is_ok_and(|n| n.nlink > 0);
        if holder.is_some() {
            self.count("broken");
        }
        if self.sessions.iter().any(Session::is_pending) {
            self.count("looked up while something was posted");
        }
        if self.tree.content(node).is_some() && (!named || rng.chance(20)) {
            let user = self
                .places
                .iter()
                .position(|p| p.session == holder && holder.is_some());
            return match user {
                Some(user) => self.by_token(user, node),
                None => Ok(false),
            };
        }
        let (tid, kernel) = (self.tid(place), &mut self.kernel);
        kernel
            .walk(tid, &self.tree, node)
            .map_err(|e| format!("the kernel looks for #{}: errno {e}", node.0))
    }

    /// A program goes on with a file through the mount.
    fn by_token(&mut self, place: usize, node: NodeId) -> Done<bool> {
        let Some((session, kernel, tid)) = self.session_of(place) else {
            return Ok(false);
        };
        let entry = Entry {
            op: op::NAME,
            h: session.handles[&node],
            ..Entry::default()
        };
        let (did, name) = session.ask(kernel, tid, entry, &[], 64, true)?;
        if did != Did::Done {
            return Err(format!("no name for #{}: {did:?}", node.0));
        }
        let root = self.tree.root;
        let met = self.kernel.look_up(tid, root, &name, node);
        met.map_err(|e| format!("the name of #{} leads nowhere: errno {e}", node.0))?;
        self.count("by a name for once");
        Ok(true)
    }

    fn operate(&mut self, place: usize, op: &Op, rng: &mut Rng) -> Done<Ended> {
        let by_others = match op {
            Op::Write { kill, .. } => *kill,
            Op::SetAttr { set, .. } => set.kill,
            Op::SetFlags { .. } => true,
            Op::SetXattr { name, .. } | Op::RemoveXattr { name, .. } => {
                name.starts_with(b"system.")
            }
            _ => false,
        };
        if by_others {
            return Err(format!("script: cannot do: {op}"));
        }
        if self.tree.check(op).is_err() {
            // A shortened script has lost what it is about.
            return Ok(Ended::Refused);
        }
        if self.places[place].session.is_some() && !rng.chance(5) {
            self.take_handles(place, op, rng)?;
            if let Some(ended) = self.directly(place, op, rng)? {
                return Ok(ended);
            }
        }
        self.mounted(place, &mut op.clone(), rng)
    }

    /// Before an operation: handles of what the kernel knows by now are closed, unless the program has not looked; and a file of a held
    /// directory is opened.
    fn take_handles(&mut self, place: usize, op: &Op, rng: &mut Rng) -> Done<()> {
        let named = op.target().and_then(|node| {
            let mut dirs = self.tree.nodes.iter();
            dirs.find_map(|(dir, n)| {
                let mut entries = n.entries.iter();
                let found = entries.find(|(_, child)| **child == node)?;
                Some((node, *dir, found.0.clone()))
            })
        });
        let Some((session, kernel, tid)) = self.session_of(place) else {
            return Ok(());
        };
        for node in op.nodes() {
            let broken = session
                .handles
                .get(&node)
                .is_some_and(|h| session.is_broken(*h));
            if broken && rng.chance(70) {
                session.close(kernel, tid, node)?;
            }
        }
        let Some((node, dir, name)) = named else {
            return Ok(());
        };
        let held = session
            .handles
            .get(&dir)
            .filter(|h| !session.is_broken(**h));
        let Some(dir) = held
            .copied()
            .filter(|_| !session.handles.contains_key(&node))
        else {
            return Ok(());
        };
        let h2 = session.new_handle();
        let entry = Entry {
            op: op::LOOKUP,
            h: dir,
            h2,
            b: (READING | WRITING).into(),
            ..Entry::default()
        };
        let room = size_of::<Attr>();
        let by_call = rng.chance(30);
        match session.ask(kernel, tid, entry, &[&name], room, by_call)?.0 {
            Did::Done => session.handles.insert(node, h2),
            did => return Err(format!("lookup of #{}: {did:?}", node.0)),
        };
        self.count("opened by a session");
        Ok(())
    }

    /// The operation by the program's session. `None`: it has to go through the mount.
    fn directly(&mut self, place: usize, op: &Op, rng: &mut Rng) -> Done<Option<Ended>> {
        let tree = self.tree.clone();
        let Some((session, ..)) = self.session_of(place) else {
            return Ok(None);
        };
        let Some(wanted) = entry_of(session, &tree, op, rng) else {
            return Ok(None);
        };
        let began = self.events();
        let (did, way) = self.send(place, &wanted, rng)?;
        match did {
            Did::Done => {
                if let (Some((session, ..)), Some(node)) = (self.session_of(place), wanted.born) {
                    session.handles.insert(node, wanted.entry.h2);
                    if matches!(op, Op::Mkdir { .. }) {
                        session.made.insert(node);
                    }
                }
                self.count(&format!("{way} {}", op.kind()));
                self.count(way);
                self.accept(began, place, op)?;
                Ok(Some(Ended::Accepted))
            }
            Did::Failed(libc::ENOSPC) if may_lack_space(op) => Ok(Some(Ended::NoSpace)),
            Did::Broken => Ok(None),
            // Not a regular file's name, say.
            Did::Failed(libc::EOPNOTSUPP) if matches!(op, Op::Link { .. }) => Ok(None),
            did => Err(format!("{op}: {way}, {did:?}")),
        }
    }

    /// Sends an entry, and compares what the daemon says of its handles with what the program could see.
    fn send(&mut self, place: usize, wanted: &Wanted, rng: &mut Rng) -> Done<(Did, &'static str)> {
        let Some((session, kernel, tid)) = self.session_of(place) else {
            return Ok((Did::NotAllowed, "nobody"));
        };
        let handles = wanted.about.iter().filter_map(|n| session.handles.get(n));
        let broken = handles.copied().any(|h| session.is_broken(h));
        let parts: Vec<&[u8]> = wanted.parts.iter().map(|p| &p[..]).collect();
        let entry = wanted.entry;
        let mut sent = (Did::NotAllowed, "posted");
        if wanted.post && rng.chance(80) {
            sent.0 = session.post(kernel, tid, entry, &parts)?;
        }
        if sent.0 == Did::NotAllowed {
            let by_call = !wanted.ask || rng.chance(30);
            let (did, _) = session.ask(kernel, tid, entry, &parts, wanted.room, by_call)?;
            sent = (did, if by_call { "called" } else { "asked" });
        }
        match (sent.0, broken) {
            (Did::Done, true) => Err("an entry about what the kernel knows was carried out".into()),
            (Did::Broken, false) => Err("an entry about what is held was refused".into()),
            (Did::Broken, true) => {
                self.count("refused after a break");
                Ok(sent)
            }
            _ => Ok(sent),
        }
    }

    fn mounted(&mut self, place: usize, op: &mut Op, rng: &mut Rng) -> Done<Ended> {
        for node in op.nodes().into_iter().chain(self.victims(op)) {
            if !self.kernel_knows(place, node, rng)? {
                return Ok(Ended::Refused);
            }
        }
        let (began, tid) = (self.events(), self.tid(place));
        if self.is_stream_pending(place) {
            self.count("mounted after something posted");
        }
        match self.kernel.perform(tid, op) {
            Ok(()) => {
                self.count("mounted");
                self.accept(began, place, op)?;
                Ok(Ended::Accepted)
            }
            Err(libc::ENOSPC) if may_lack_space(op) => Ok(Ended::NoSpace),
            Err(errno) => Err(format!("{op}: failed with errno {errno}")),
        }
    }

    /// A session that has a thread in the stream of this one has published something.
    fn is_stream_pending(&self, place: usize) -> bool {
        let stream = self.places[place].stream;
        let mut others = self.places.iter().filter(|p| p.stream == stream);
        others.any(|p| p.session.is_some_and(|s| self.sessions[s].is_pending()))
    }

    fn accept(&mut self, began: usize, place: usize, op: &Op) -> Done<()> {
        let (touches, victims) = (self.tree.touches(op), self.victims(op));
        let done = self.tree.apply(op, &[]);
        done.map_err(|e| format!("{op}: accepted, the model says errno {e}"))?;
        // A rename between two names of one file is no operation: Linux does not even pass it on.
        if !touches.is_empty() {
            self.began.push(began);
            self.history.ops.push(Accepted {
                stream: self.places[place].stream,
                op: op.clone(),
                stamps: Vec::new(),
            });
        }
        self.drop_dead(&victims);
        Ok(())
    }

    /// Inodes that may lose their last name.
    fn victims(&self, op: &Op) -> Vec<NodeId> {
        match op {
            Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => {
                let names = op.names().into_iter();
                names
                    .filter_map(|(d, n)| self.tree.lookup(d, &n).ok())
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The kernel lets go of what has no name and is not open.
    fn drop_dead(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            let dead = self.tree.get(*node).is_ok_and(|n| n.nlink == 0);
            if dead && !self.open.contains(node) {
                self.kernel.forget(*node);
            }
        }
    }

    /// A sync call, which promises what was accepted when it began.
    fn sync(
        &mut self,
        place: usize,
        kind: SyncKind,
        call: impl FnOnce(&mut Driver) -> Result<(), i32>,
    ) -> Done<Ended> {
        let after = self.history.ops.len();
        if self.is_stream_pending(place) {
            self.count("synced after something posted");
        }
        call(self).map_err(|e| format!("{kind:?}: errno {e}"))?;
        self.history.syncs.push(Sync {
            stream: self.places[place].stream,
            kind,
            after,
        });
        self.synced.push(self.events());
        Ok(Ended::Accepted)
    }

    fn fsync(&mut self, place: usize, node: NodeId, data_only: bool, rng: &mut Rng) -> Done<Ended> {
        let Ok(is_dir) = self.tree.get(node).map(|n| n.is_dir()) else {
            return Ok(Ended::Refused);
        };
        let (kind, tid) = (SyncKind::File(node), self.tid(place));
        let by_session = rng.chance(85);
        let handle = self
            .session_of(place)
            .and_then(|(session, ..)| session.handles.get(&node).copied());
        if let Some(h) = handle.filter(|_| by_session) {
            let entry = Entry {
                op: op::SYNC,
                h,
                ..Entry::default()
            };
            self.count("synced by a session");
            let mut failed = Ok(());
            return self
                .sync(place, kind, |d| {
                    let Some((session, kernel, tid)) = d.session_of(place) else {
                        return Err(libc::EBADF);
                    };
                    match session.ask(kernel, tid, entry, &[], 0, true) {
                        Ok((Did::Done, _)) => Ok(()),
                        Ok((did, _)) => {
                            failed = Err(format!("sync of a handle: {did:?}"));
                            Err(libc::EIO)
                        }
                        Err(e) => {
                            failed = Err(e);
                            Err(libc::EIO)
                        }
                    }
                })
                .and_then(|ended| failed.map(|()| ended));
        }
        if !self.kernel_knows(place, node, rng)? {
            return Ok(Ended::Refused);
        }
        self.sync(place, kind, |d| {
            d.kernel.fsync(tid, node, is_dir, data_only)
        })
    }

    fn barrier(&mut self, place: usize, node: NodeId, rng: &mut Rng) -> Done<Ended> {
        if self.tree.get(node).is_err() {
            return Ok(Ended::Refused);
        }
        let ordered = |d: &mut Driver| {
            let before = d.history.ops.len();
            let call = Sync {
                stream: d.places[place].stream,
                kind: SyncKind::File(node),
                after: before,
            };
            d.history.barriers.push(Barrier { call, before });
            Ended::Accepted
        };
        let handle = self
            .session_of(place)
            .and_then(|(session, ..)| session.handles.get(&node).copied());
        if let Some(h) = handle {
            let wanted = Wanted {
                entry: Entry {
                    op: op::BARRIER,
                    h,
                    ..Entry::default()
                },
                parts: Vec::new(),
                room: 0,
                post: true,
                ask: true,
                about: vec![node],
                born: None,
            };
            match self.send(place, &wanted, rng)? {
                (Did::Done, way) => {
                    self.count(&format!("{way} barrier"));
                    return Ok(ordered(self));
                }
                (Did::Broken, _) => {}
                (did, way) => return Err(format!("barrier: {way}, {did:?}")),
            }
        }
        if !self.kernel_knows(place, node, rng)? {
            return Ok(Ended::Refused);
        }
        let done = self.kernel.barrier(self.tid(place), node);
        done.map_err(|e| format!("barrier: errno {e}"))?;
        Ok(ordered(self))
    }
}

/// C9: unlinking and shrinking never give ENOSPC. (What shrinks is not told apart from what grows here.)
fn may_lack_space(op: &Op) -> bool {
    !matches!(op, Op::Unlink { .. } | Op::Rmdir { .. })
}
