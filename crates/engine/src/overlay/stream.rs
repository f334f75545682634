//! Streams and acceptance (ccfs paper, sections 3.2 and 3.5; hard spots of dependencies: docs/design/engine.md, "Transactions").
//!
//! Acceptance is one instant: under the lock of a part of its running transaction an operation that already holds the locks of its objects joins
//! that transaction (`parts`). Nothing of it is shared with other streams. What concerns several transactions (a new one, sealing, a dependency on
//! one that still runs) happens under one mutex.
//! Order of locks: that mutex, the shard of a stream, a transaction's list of files, its parts, its progress.
use crate::base::cause::Rule;
use crate::base::fate::{Limit, Reason};
use crate::base::planted::{self, Bug};
use crate::base::share::{self, ByUser};
use crate::base::sync::{Mutex, MutexGuard};
use crate::base::types::StreamId;
use crate::overlay::bugs;
use crate::overlay::joined::{self, Joined, StreamsId};
use crate::overlay::objects::{Dependency, Group, Phase, Txn, TxnRef};
use crate::overlay::parts::Place;
use crate::overlay::txn::DEP_BYTES;
use ccfs_image::Apart;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[derive(Default)]
struct Inner {
    serial: u64,
    next_stream: u64,
    next_group: u64,
    /// The last sealed transaction of each stream, as long as it is not settled.
    previous: HashMap<StreamId, Arc<Txn>>,
    /// Sealed transactions that are not settled, oldest first.
    sealed: Vec<Arc<Txn>>,
    /// What the stream's next transaction has to come after, by a barrier.
    after: HashMap<StreamId, Vec<Dependency>>,
    /// Atomic groups that are open, or whose changes are being taken back; they are among the running ones as well.
    groups: HashMap<StreamId, Arc<Txn>>,
}

impl Inner {
    /// What all open groups hold, and those of a user.
    fn held_by_groups(&self, uid: u32, held: impl Fn(&Txn) -> u64) -> (u64, u64) {
        let mut sum = (0, 0);
        for txn in self.groups.values() {
            let own = txn.group.as_ref().is_some_and(|g| g.uid == uid);
            let held = held(txn);
            sum.0 += held;
            sum.1 += if own { held } else { 0 };
        }
        sum
    }
}

/// Why an operation is not accepted.
pub enum Refused {
    /// It would change what this open group has changed.
    Blocked(Arc<Txn>),
    /// Its own group is not open any more.
    Cancelled,
    /// Its own group would become larger than groups may be.
    TooLarge,
}

/// How large an operation and its transaction may be.
pub struct Sizes<'v> {
    /// Most bytes of the log that the operation needs.
    pub expected: u64,
    /// Bytes of the log from which on a transaction is sealed; a group must not reach it.
    pub log: u64,
    /// Most memory that all open groups may take with drafts, bytes: a bound that users share. And those drafts.
    pub groups: u64,
    pub drafts: &'v ByUser,
    /// Most fields of directories that one group may set, and half of what all may: a bound that users share.
    pub fields: u64,
}

const SHARDS: u64 = 64;

/// Running transactions of some streams.
type Running = Mutex<HashMap<StreamId, Arc<Txn>>>;

pub struct Streams {
    id: StreamsId,
    /// Changed only under the mutex.
    running: Vec<Apart<Running>>,
    inner: Mutex<Inner>,
    /// How many groups there are, for whoever wants to know it often.
    groups: AtomicUsize,
}

/// An operation's place.
pub struct Accepted {
    pub txn: Joined,
    pub place: Place,
    /// The stream's transaction before was sealed because it was full.
    pub sealed_full: bool,
}

/// A stream's state for `status`.
pub struct StreamView {
    pub id: StreamId,
    pub running: Option<Arc<Txn>>,
    /// Sealed, not settled; oldest first.
    pub committing: Vec<Arc<Txn>>,
}

impl Streams {
    pub fn new() -> Self {
        // Ids below 16 are the engine's.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Streams {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            running: (0..SHARDS).map(|_| Apart::default()).collect(),
            inner: Mutex::new(Inner {
                next_stream: 16,
                ..Inner::default()
            }),
            groups: AtomicUsize::new(0),
        }
    }

    /// A stream id that nobody has.
    pub fn fresh_id(&self) -> StreamId {
        let mut inner = self.inner.lock();
        inner.next_stream += 1;
        // Far from ids that people choose by hand.
        StreamId((1 << 32) + inner.next_stream)
    }

    fn shard(&self, stream: StreamId) -> MutexGuard<'_, HashMap<StreamId, Arc<Txn>>> {
        self.running[(stream.0 % SHARDS) as usize].lock()
    }

    fn running(&self, stream: StreamId) -> Option<Arc<Txn>> {
        self.shard(stream).get(&stream).cloned()
    }

    /// Memory that the stream's running transaction holds, bytes.
    pub fn running_memory(&self, stream: StreamId) -> u64 {
        self.running(stream).map_or(0, |t| t.memory())
    }

    /// Memory of all running transactions, bytes.
    pub fn all_running_memory(&self) -> u64 {
        self.all_running().iter().map(|t| t.memory()).sum()
    }

    /// All but the atomic groups.
    fn all_running(&self) -> Vec<Arc<Txn>> {
        let shards = self.running.iter();
        let all = shards.flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>());
        all.filter(|t| t.group.is_none()).collect()
    }

    /// The stream's running transaction, made if there is none.
    fn run(&self, inner: &mut Inner, stream: StreamId) -> Arc<Txn> {
        if let Some(txn) = self.running(stream) {
            return txn;
        }
        inner.serial += 1;
        let deps = inner
            .previous
            .get(&stream)
            .filter(|t| !t.needs_no_dependency() && !planted::is(Bug::DependencyStream))
            .map(|t| Dependency::new(t, Rule::Stream, 0));
        let after = inner.after.remove(&stream).into_iter().flatten();
        let deps = after
            .filter(|t| !t.txn.needs_no_dependency())
            .chain(deps)
            .collect();
        let txn = Arc::new(Txn::new(inner.serial, stream, deps));
        self.shard(stream).insert(stream, txn.clone());
        txn
    }

    fn seal_one(&self, inner: &mut Inner, txn: &Arc<Txn>) {
        // An open group is sealed by its owner's commit and by nobody else.
        if txn.phase() != Phase::Running || txn.is_open_group() {
            return;
        }
        // From here on nobody joins it.
        txn.set_phase(Phase::Sealed);
        self.shard(txn.entry()).remove(&txn.entry());
        inner.previous.insert(txn.stream, txn.clone());
        inner.sealed.retain(|t| !t.settled());
        inner.sealed.push(txn.clone());
    }

    /// The acceptance of an operation of `stream` on objects last touched by `dependencies`. A transaction that could become too large for
    /// the log by it is sealed first.
    pub fn accept(
        &self,
        stream: StreamId,
        deps: impl Iterator<Item = Dependency>,
        sizes: &Sizes,
    ) -> Result<Accepted, Refused> {
        let txn =
            joined::last_of(self.id, stream).or_else(|| self.running(stream).map(TxnRef::new));
        let own = txn.as_ref().map_or(0, |t| t.serial);
        // A dependency on `own` needs nothing, also when `own` is sealed by now: the stream's next transaction comes after it anyway.
        let needed = |t: &Dependency| {
            t.txn.serial != own && !t.txn.needs_no_dependency() && !bugs::is_left_out(&t.txn)
        };
        let deps: Vec<Dependency> = deps.filter(needed).collect();
        // The caller holds the locks of the objects: a group that changed them can be committed meanwhile, but not taken back.
        if let Some(dep) = deps.iter().find(|t| t.txn.is_open_group()) {
            return Err(Refused::Blocked(dep.txn.clone()));
        }
        if stream.is_group() {
            return self.accept_in_group(txn, deps, sizes);
        }
        if let Some(txn) = txn
            && let Some(place) = txn.join(&deps, sizes.expected, sizes.log)
        {
            return Ok(Accepted {
                txn: Joined::of_stream(txn, self.id),
                place,
                sealed_full: false,
            });
        }
        Ok(self.accept_slowly(stream, deps, sizes.expected, sizes.log))
    }

    fn accept_in_group(
        &self,
        txn: Option<TxnRef>,
        deps: Vec<Dependency>,
        sizes: &Sizes,
    ) -> Result<Accepted, Refused> {
        let txn = txn.ok_or(Refused::Cancelled)?;
        let mut inner = self.inner.lock();
        let uid = txn.group.as_ref().map_or(0, |g| g.uid);
        let (memory, own) = inner.held_by_groups(uid, Txn::memory);
        let (memory, own) = (memory + sizes.drafts.all(), own + sizes.drafts.of(uid));
        let (all_fields, own_fields) = inner.held_by_groups(uid, Txn::fields);
        let dep_bytes = txn.progress().deps.bytes() + deps.len() as u64 * DEP_BYTES;
        let limit = if txn.log_bytes_max() + dep_bytes + sizes.expected > sizes.log {
            Some((Limit::Log, sizes.log))
        } else if !share::fits(sizes.groups, uid, own, memory) {
            Some((Limit::Memory, sizes.groups))
        } else if txn.fields() > sizes.fields
            // Where all of them together reach the volume's limit, others would wait for their end.
            || !share::fits(2 * sizes.fields, uid, own_fields, all_fields)
        {
            Some((Limit::Names, sizes.fields))
        } else {
            None
        };
        if let Some(group) = &txn.group {
            if let Some((limit, size)) = limit {
                group.fate.note_refused(limit, size);
            }
            if limit.is_some() || group.spoilt().is_some() {
                return Err(Refused::TooLarge);
            }
        }
        for dep in &deps {
            self.seal_one(&mut inner, &dep.txn);
        }
        // Only its end keeps it from taking one more.
        let place = txn.join(&deps, sizes.expected, u64::MAX);
        Ok(Accepted {
            place: place.ok_or(Refused::Cancelled)?,
            txn: Joined::alone(txn),
            sealed_full: false,
        })
    }

    fn accept_slowly(
        &self,
        stream: StreamId,
        mut deps: Vec<Dependency>,
        expected: u64,
        limit: u64,
    ) -> Accepted {
        let mut inner = self.inner.lock();
        let named = deps.len() as u64 * DEP_BYTES;
        let full = self
            .running(stream)
            .filter(|t| t.log_bytes_max() + t.progress().deps.bytes() + named + expected > limit);
        if let Some(full) = &full {
            full.full.store(true, Ordering::Relaxed);
            self.seal_one(&mut inner, full);
        }
        let txn = self.run(&mut inner, stream);
        deps.retain(|t| t.txn.serial != txn.serial);
        // T1: the other side is sealed before the edge exists, and `txn` itself runs, so nothing leads to it yet.
        for dep in &deps {
            self.seal_one(&mut inner, &dep.txn);
        }
        let place = txn.join(&deps, expected, u64::MAX);
        Accepted {
            place: place.expect("nobody else seals it, and all dependencies are sealed"),
            txn: Joined::of_stream(TxnRef::new(txn), self.id),
            sealed_full: full.is_some(),
        }
    }

    pub fn seal(&self, txn: &Arc<Txn>) {
        if txn.phase() == Phase::Running {
            self.seal_one(&mut self.inner.lock(), txn);
        }
    }

    /// A barrier: seals what the stream has, and `dependencies`; whatever the stream does from now on comes after all of it.
    /// Returns the stream's last transaction that is not settled.
    pub fn barrier(&self, stream: StreamId, deps: Vec<Dependency>) -> Option<Arc<Txn>> {
        let mut inner = self.inner.lock();
        if let Some(txn) = self.running(stream) {
            self.seal_one(&mut inner, &txn);
        }
        for dep in deps {
            // T1: the stream's next transaction does not exist yet, so nothing leads to it.
            self.seal_one(&mut inner, &dep.txn);
            let after = inner.after.entry(stream).or_default();
            let known = |t: &Dependency| t.txn.serial == dep.txn.serial;
            let own = dep.txn.stream == stream;
            if !own
                && !dep.txn.needs_no_dependency()
                && !after.iter().any(known)
                && !planted::is(Bug::DependencyBarrier)
            {
                after.push(dep);
            }
        }
        let previous = inner.previous.get(&stream);
        previous.filter(|t| !t.settled()).cloned()
    }

    /// What the stream's next transaction has to come after, besides its own.
    pub fn ordered_before(&self, stream: StreamId) -> Vec<Arc<Txn>> {
        let inner = self.inner.lock();
        let after = inner.after.get(&stream).into_iter().flatten();
        after
            .map(|t| t.txn.clone())
            .filter(|t| !t.settled())
            .collect()
    }

    /// Seals what the stream has; returns its last transaction that is not settled.
    pub fn seal_stream(&self, stream: StreamId) -> Option<Arc<Txn>> {
        let mut inner = self.inner.lock();
        if let Some(txn) = self.running(stream) {
            self.seal_one(&mut inner, &txn);
        }
        inner
            .previous
            .get(&stream)
            .filter(|t| !t.settled())
            .cloned()
    }

    /// Nothing of the stream is uncommitted.
    pub fn is_settled(&self, stream: StreamId) -> bool {
        let inner = self.inner.lock();
        self.running(stream).is_none() && inner.previous.get(&stream).is_none_or(|t| t.settled())
    }

    /// Seals everything that runs now, once, and returns all that is not settled.
    pub fn seal_all(&self) -> Vec<Arc<Txn>> {
        self.seal_older(Duration::ZERO)
    }

    /// Seals running transactions at least `age` old; returns all sealed ones that are not settled.
    pub fn seal_older(&self, age: Duration) -> Vec<Arc<Txn>> {
        let mut inner = self.inner.lock();
        let mut old = self.all_running();
        old.retain(|t| t.started.elapsed() >= age);
        old.sort_by_key(|t| t.serial);
        for txn in &old {
            self.seal_one(&mut inner, txn);
        }
        inner.sealed.retain(|t| !t.settled());
        inner.sealed.clone()
    }

    /// Seals the running transaction that holds most memory.
    pub fn seal_largest(&self) -> Option<Arc<Txn>> {
        let mut inner = self.inner.lock();
        let all = self.all_running().into_iter();
        let txn = all.max_by_key(|t| t.memory())?;
        self.seal_one(&mut inner, &txn);
        Some(txn)
    }

    /// Forgets what is settled, so that ended streams cost nothing.
    pub fn prune(&self) {
        let mut inner = self.inner.lock();
        inner.sealed.retain(|t| !t.settled());
        inner.previous.retain(|_, t| !t.needs_no_dependency());
        inner.after.retain(|_, deps| {
            deps.retain(|t| !t.txn.needs_no_dependency());
            !deps.is_empty()
        });
    }

    /// Opens a group of user `uid` whose place will be in the stream `home`. `None`: there are `max` already, which users share.
    pub fn open_group(
        &self,
        home: StreamId,
        uid: u32,
        time: Option<(Duration, Reason)>,
        max: u64,
    ) -> Option<StreamId> {
        let mut inner = self.inner.lock();
        let (all, own) = inner.held_by_groups(uid, |_| 1);
        if !share::fits(max, uid, own + 1, all + 1) {
            return None;
        }
        inner.serial += 1;
        inner.next_group += 1;
        let id = StreamId::of_group(inner.next_group);
        let txn = Txn::of_group(inner.serial, home, Group::new(id, uid, time));
        let txn = Arc::new(txn);
        self.shard(id).insert(id, txn.clone());
        inner.groups.insert(id, txn);
        self.groups.store(inner.groups.len(), Ordering::SeqCst);
        Some(id)
    }

    /// An open group, or one whose changes are being taken back.
    pub fn group(&self, id: StreamId) -> Option<Arc<Txn>> {
        self.inner.lock().groups.get(&id).cloned()
    }

    pub fn groups_open(&self) -> usize {
        self.groups.load(Ordering::SeqCst)
    }

    /// A number for what is no transaction of a stream.
    pub fn serial(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.serial += 1;
        inner.serial
    }

    /// Memory of all open groups, and of those of a user, bytes.
    pub fn group_memory(&self, uid: u32) -> (u64, u64) {
        self.inner.lock().held_by_groups(uid, Txn::memory)
    }

    /// What is not durable, open groups aside.
    pub fn uncommitted(&self) -> Vec<Arc<Txn>> {
        let inner = self.inner.lock();
        let mut all = self.all_running();
        all.extend(inner.sealed.iter().filter(|t| !t.settled()).cloned());
        all
    }

    pub fn groups(&self) -> Vec<Arc<Txn>> {
        self.inner.lock().groups.values().cloned().collect()
    }

    /// The commit of a group: it becomes the last transaction of its stream. `None`: it is not open. `closed` is called before anybody can
    /// find it closed.
    pub fn seal_group(&self, id: StreamId, closed: &dyn Fn()) -> Option<Arc<Txn>> {
        let mut inner = self.inner.lock();
        let txn = inner.groups.get(&id)?.clone();
        let group = txn.group.as_ref();
        let group = group.filter(|g| g.is_open() && g.spoilt().is_none())?;
        if let Some(running) = self.running(txn.stream) {
            self.seal_one(&mut inner, &running);
        }
        if let Some(before) = inner.previous.get(&txn.stream)
            && !before.needs_no_dependency()
            && !planted::is(Bug::GroupPlace)
        {
            let before = Dependency::new(before, Rule::Stream, 0);
            txn.progress().deps.add(&before);
        }
        // What a barrier put before all that the stream does later.
        let ordered = inner.after.remove(&txn.stream).into_iter().flatten();
        for dep in ordered.filter(|t| !t.txn.needs_no_dependency()) {
            txn.progress().deps.add(&dep);
        }
        // Whoever was a member and learns by `closed` where he is now must not get there before the group.
        group.fate.commit();
        closed();
        inner.groups.remove(&id);
        self.groups.store(inner.groups.len(), Ordering::SeqCst);
        self.seal_one(&mut inner, &txn);
        Some(txn)
    }

    /// The group can only be taken back from here on. False: it is not open.
    pub fn spoil(&self, txn: &Txn, errno: i32) -> bool {
        let _inner = self.inner.lock();
        let open = txn.group.as_ref().filter(|g| g.is_open());
        open.inspect(|g| g.spoil(errno)).is_some()
    }

    /// From here on nothing is accepted into the group, which must be taken back. False: it is not open (any more), or whoever
    /// asks is in a group (`by`) that is not open itself.
    pub fn condemn(&self, txn: &Txn, by: StreamId, why: Reason) -> bool {
        let inner = self.inner.lock();
        let open = |t: &Arc<Txn>| t.group.as_ref().is_some_and(|g| g.is_open());
        if by.is_group() && by != txn.entry() && !inner.groups.get(&by).is_some_and(open) {
            return false;
        }
        txn.group.as_ref().is_some_and(|g| g.fate.take_back(why))
    }

    /// The group's changes are gone.
    pub fn drop_group(&self, txn: &Txn) {
        let mut inner = self.inner.lock();
        inner.groups.remove(&txn.entry());
        self.groups.store(inner.groups.len(), Ordering::SeqCst);
        self.shard(txn.entry()).remove(&txn.entry());
    }

    pub fn view(&self) -> Vec<StreamView> {
        let inner = self.inner.lock();
        let mut views: HashMap<StreamId, StreamView> = HashMap::new();
        for txn in self.all_running() {
            let view = StreamView {
                id: txn.stream,
                running: Some(txn.clone()),
                committing: Vec::new(),
            };
            views.insert(txn.stream, view);
        }
        for txn in inner.sealed.iter().filter(|t| !t.settled()) {
            let fresh = StreamView {
                id: txn.stream,
                running: None,
                committing: Vec::new(),
            };
            let view = views.entry(txn.stream).or_insert(fresh);
            view.committing.push(txn.clone());
        }
        let mut list: Vec<_> = views.into_values().collect();
        list.sort_by_key(|v| v.id);
        list
    }
}
