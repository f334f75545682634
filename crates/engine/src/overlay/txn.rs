//! Transactions: the unit that becomes durable as a whole (ccfs paper, section 3.3).
//!
//! ```text
//!   Running --seal--> Sealed --order--> Ordered --flush--> Durable --apply--> Applied
//!                        \______________ an I/O error ____________> Failed
//! ```
//! Invariants:
//! * T1 Edges (`deps`) lead to transactions that are sealed; they are added only while the owner runs. So there are no cycles.
//! * T2 A sealed transaction accepts no operation; those accepted before end without touching further objects.
//! * T3 The body is changed only by accepted operations (under their objects' locks) and, after the last of them ended, by the one commit.
use crate::base::cause::Rule;
use crate::base::record::DirField;
use crate::base::sync::{Condvar, Mutex, MutexGuard, RwLock};
use crate::base::types::{Ino, StreamId};
use crate::overlay::objects::{
    Blocks, Body, ChangedFile, Counts, Dependencies, Dependency, FileLayer, Group, Inode, PARTS,
    Phase, Progress, Sums, Txn, Users,
};
use ccfs_device::{Ticket, fetch_early};
use ccfs_image::Apart;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

impl Body {
    /// What `more` says of other inodes.
    fn add(&mut self, more: Body) {
        self.dirs.extend(more.dirs);
        self.dir_fields.extend(more.dir_fields);
        self.entries.extend(more.entries);
        self.parents.extend(more.parents);
        self.atimes.extend(more.atimes);
    }

    /// Keeps an inode in memory until the transaction is applied.
    pub fn pin(&mut self, inode: &Arc<Inode>) {
        let known = self.dirs.entry(inode.ino);
        known.or_insert_with(|| inode.clone());
    }

    /// An inode that this transaction made and freed: nothing is said about it, as no record may name what never exists.
    /// Returns how many fields of a directory that were.
    pub fn forget_inode(&mut self, ino: Ino) -> u64 {
        self.dirs.remove(&ino);
        self.entries.remove(&ino);
        self.parents.remove(&ino);
        self.atimes.remove(&ino);
        let fields = DirField::ALL
            .iter()
            .map(|f| self.dir_fields.remove(&(ino, *f)));
        fields.flatten().count() as u64
    }
}

impl FileLayer {
    pub fn new(serial: u64) -> FileLayer {
        FileLayer {
            serial,
            at: AtomicU32::new(0),
            body: RwLock::default(),
        }
    }

    /// Under the lock of the part that it is in.
    pub(super) fn note_place(&self, at: usize) {
        // A transaction has not so many files: each has a part of the dirty limit.
        self.at.store(at as u32, Ordering::Relaxed);
    }
}

impl Blocks {
    /// What is there is somebody else's from now on.
    pub fn take(&self) -> Blocks {
        let all = |n: &AtomicU64| AtomicU64::new(n.swap(0, Ordering::Relaxed));
        Blocks {
            data: all(&self.data),
            metadata: all(&self.metadata),
            freed: all(&self.freed),
        }
    }
}

/// For who goes through a transaction's files, which nobody has touched for a while, and is at number `at`: a later one is on its way into
/// the caches meanwhile.
pub fn fetch_after(files: &[(Ino, ChangedFile)], at: usize) {
    const AHEAD: usize = 3;
    if let Some((_, (inode, layer))) = files.get(at + AHEAD) {
        fetch_early(&**inode);
        fetch_early(&**layer);
    }
}

/// Takes off up to `n`, and gives how many that were.
pub fn take_off(from: &AtomicU64, n: u64) -> u64 {
    let less = |all: u64| Some(all.saturating_sub(n));
    let before = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    before.unwrap_or(0).min(n)
}

impl Dependency {
    pub fn new(txn: &Arc<Txn>, rule: Rule, inode: Ino) -> Dependency {
        Dependency {
            txn: txn.clone(),
            rule,
            inode,
        }
    }
}

impl Sums {
    /// So many blocks are reserved for the operation.
    pub fn of(data: u64, metadata: u64) -> Sums {
        let sums = Sums::default();
        sums.data.set(data as i64);
        sums.metadata.set(metadata as i64);
        sums
    }
}

/// To a sum that only its operation sees.
pub fn plus(sum: &Cell<i64>, n: u64) {
    sum.set(sum.get() + n as i64);
}

/// From such a sum.
pub fn minus(sum: &Cell<i64>, n: u64) {
    sum.set(sum.get() - n as i64);
}

/// Bytes of a record for each transaction that it comes after.
pub const DEP_BYTES: u64 = 8;
const DEPS_FEW: usize = 64;

impl Dependencies {
    pub fn add(&mut self, dep: &Dependency) {
        if self.serials.insert(dep.txn.serial) {
            self.all.push(dep.clone());
        }
        if self.all.len() > self.most.max(DEPS_FEW) {
            self.retain(|t| t.txn.phase() != Phase::Applied);
            self.most = self.all.len() * 2;
        }
    }

    pub fn retain(&mut self, keep: impl Fn(&Dependency) -> bool) {
        self.all.retain(keep);
        self.serials = self.all.iter().map(|t| t.txn.serial).collect();
    }

    pub fn clear(&mut self) {
        *self = Dependencies::default();
    }

    /// Bytes of the record that names them.
    pub fn bytes(&self) -> u64 {
        self.all.len() as u64 * DEP_BYTES
    }
}

impl std::ops::Deref for Dependencies {
    type Target = [Dependency];
    fn deref(&self) -> &[Dependency] {
        &self.all
    }
}

impl FromIterator<Dependency> for Dependencies {
    fn from_iter<T: IntoIterator<Item = Dependency>>(deps: T) -> Dependencies {
        let mut set = Dependencies::default();
        for dep in deps {
            set.add(&dep);
        }
        set
    }
}

/// Users of a transaction that are told apart.
const USERS_MAX: usize = 16;

impl Users {
    /// An operation of user `uid` has added so many dirty bytes.
    pub fn count(&mut self, uid: u32, dirty: i64) {
        if dirty == 0 {
            return;
        }
        let at = self.0.iter().position(|u| u.0 == uid);
        let at = match at {
            Some(at) => at,
            None if self.0.len() < USERS_MAX => {
                self.0.push((uid, 0));
                self.0.len() - 1
            }
            None => USERS_MAX - 1,
        };
        self.0[at].1 += dirty;
    }
}

impl Progress {
    /// The transactions that it keeps.
    fn take_others(&mut self) -> Vec<Arc<Txn>> {
        let deps = self.deps.all.drain(..).map(|dep| dep.txn);
        let bundle = self.followers.drain(..).chain(self.leader.take());
        deps.chain(bundle).collect()
    }

    /// Where it lies in the log: commit id, number of its first record there, and whether its last one is the last there.
    pub fn place(&self) -> (u64, u64, bool) {
        (self.id, self.first_record, self.last)
    }
}

impl Drop for Progress {
    /// Not one within the other: what a stop leaves behind can be a chain that is longer than the stack.
    fn drop(&mut self) {
        let mut left = self.take_others();
        while let Some(txn) = left.pop() {
            if let Some(mut txn) = Arc::into_inner(txn) {
                left.extend(txn.progress.get_mut().take_others());
            }
        }
    }
}

impl Txn {
    pub fn new(serial: u64, stream: StreamId, deps: Dependencies) -> Self {
        let mut progress = Progress::default();
        progress.deps = deps;
        Txn {
            serial,
            stream,
            started: Instant::now(),
            phase: AtomicU8::new(Phase::Running as u8),
            full: AtomicBool::new(false),
            covered: AtomicBool::new(false),
            group: None,
            counts: Counts::default(),
            parts: Default::default(),
            told_bytes: AtomicI64::new(0),
            files: Mutex::default(),
            bodies: Default::default(),
            written: Mutex::default(),
            progress: Apart(Mutex::new(progress)),
            changed: Condvar::new(),
        }
    }

    /// An atomic group, whose place in `stream` is its commit.
    pub fn of_group(serial: u64, stream: StreamId, group: Group) -> Self {
        Txn {
            group: Some(Box::new(group)),
            ..Txn::new(serial, stream, Dependencies::default())
        }
    }

    /// The stream whose operations it takes: a group's own id.
    pub fn entry(&self) -> StreamId {
        self.group.as_ref().map_or(self.stream, |g| g.id)
    }

    /// A group that is not committed: open, or its changes are being taken back. What refers to it is nobody's to build on.
    pub fn is_open_group(&self) -> bool {
        self.group.as_ref().is_some_and(|g| !g.is_committed())
    }

    /// A group that takes no more.
    pub(super) fn is_ended_group(&self) -> bool {
        self.group.as_ref().is_some_and(|g| !g.is_open())
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Sealed,
            2 => Phase::Ordered,
            3 => Phase::Durable,
            4 => Phase::Applied,
            _ => Phase::Failed,
        }
    }

    /// Durable, applied or failed: nobody needs to wait for it.
    pub fn settled(&self) -> bool {
        self.phase() >= Phase::Durable
    }

    /// What comes after it need not say so. A log can lose what is durable (a damaged sector) and not tell that from a torn write before
    /// a watermark has passed it; so until then what comes after it names it, and is lost with it.
    pub fn needs_no_dependency(&self) -> bool {
        match self.phase() {
            Phase::Applied | Phase::Failed => true,
            Phase::Durable => self.covered.load(Ordering::Acquire),
            _ => false,
        }
    }

    pub fn note_covered(&self) {
        self.covered.store(true, Ordering::Release);
    }

    /// Where it says what it changes in this inode, if that is a directory, and in its names.
    pub fn body(&self, ino: Ino) -> MutexGuard<'_, Body> {
        self.bodies[ino as usize % PARTS].lock()
    }

    /// All that it says.
    pub fn all_bodies(&self) -> [MutexGuard<'_, Body>; PARTS] {
        std::array::from_fn(|n| self.bodies[n].lock())
    }

    /// All that it says; it says nothing any more.
    pub fn take_body(&self) -> Body {
        let mut all = Body::default();
        for body in &mut self.all_bodies() {
            all.add(std::mem::take(body));
        }
        all
    }

    pub fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }

    /// Moves on; wakes whoever waits.
    pub fn set_phase(&self, phase: Phase) {
        match self.phase() {
            Phase::Running => self.without_joins(|| self.move_on(phase)),
            _ => self.move_on(phase),
        }
    }

    fn move_on(&self, phase: Phase) {
        let mut progress = self.progress.lock();
        assert!(self.phase() <= phase, "a transaction never goes back");
        self.phase.store(phase as u8, Ordering::Release);
        if phase >= Phase::Durable {
            progress.deps.clear();
            progress.leader = None;
            progress.followers.clear();
        }
        self.changed.notify_all();
    }

    /// So many blocks of metadata more are reserved for it, which may still run.
    pub fn reserve_metadata(&self, n: u64) {
        self.counts.blocks.metadata.fetch_add(n, Ordering::Relaxed);
    }

    /// Waits for a phase at least `phase` (failure included).
    pub fn wait_phase(&self, phase: Phase) -> Phase {
        let mut progress = self.progress.lock();
        while self.phase() < phase {
            self.changed.wait(&mut progress);
        }
        self.phase()
    }

    /// Waits until its writes have ended (true), or takes their ticket so that the caller waits for them.
    pub fn take_ticket(&self) -> Option<Ticket> {
        let mut progress = self.progress.lock();
        loop {
            if progress.written || self.phase() >= Phase::Durable {
                return None;
            }
            if let Some(ticket) = progress.ticket.take() {
                return Some(ticket);
            }
            self.changed.wait(&mut progress);
        }
    }

    /// Its writes are under way: nobody waits for them, and the device has not ended them.
    pub fn is_transferring(&self) -> bool {
        let progress = self.progress.lock();
        self.phase() == Phase::Ordered
            && !progress.written
            && progress.ticket.as_ref().is_some_and(|t| !t.is_ready())
    }

    /// The ticket of its writes, where they have ended and nobody waits for them. Who gets it has to tell their outcome.
    pub fn take_ended_ticket(&self) -> Option<Ticket> {
        let mut progress = self.progress.lock();
        let ended = progress.ticket.as_ref().is_some_and(Ticket::is_ready);
        progress
            .ticket
            .take_if(|_| ended && self.phase() == Phase::Ordered)
    }

    pub fn set_written(&self) {
        let mut progress = self.progress.lock();
        progress.written = true;
        self.changed.notify_all();
    }
}

/// Is this the same transaction?
pub fn same(a: &Option<impl AsRef<Txn>>, b: &Txn) -> bool {
    a.as_ref().is_some_and(|t| t.as_ref().serial == b.serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deps(first: u64, phase: Phase) -> Vec<Dependency> {
        let txn = |serial| {
            let txn = Arc::new(Txn::new(serial, StreamId(serial), Dependencies::default()));
            txn.set_phase(phase);
            Dependency::new(&txn, Rule::Directory, 2)
        };
        (first..first + 1000).map(txn).collect()
    }

    #[test]
    fn a_long_chain_is_dropped_without_recursion() {
        let drop_chain = || {
            let mut last = None;
            for serial in 0..200_000 {
                let before = last.map(|txn| Dependency::new(&txn, Rule::Stream, 0));
                let deps = before.into_iter().collect();
                let txn = Arc::new(Txn::new(serial, StreamId(1), deps));
                let mut progress = txn.progress();
                progress.leader = progress.deps.first().map(|dep| dep.txn.clone());
                drop(progress);
                last = Some(txn);
            }
        };
        let small = std::thread::Builder::new().stack_size(128 << 10);
        small.spawn(drop_chain).unwrap().join().unwrap();
    }

    /// A group that lives for long comes after ever more: what is applied need not be named, and the rest needs room in its record.
    #[test]
    fn what_a_transaction_comes_after_is_bounded() {
        let group = Txn::new(1, StreamId(1), Dependencies::default());
        for round in 0..100 {
            let applied = deps(10_000 + round * 1000, Phase::Applied);
            assert!(group.join(&applied, 0, 1 << 20).is_some());
            assert_eq!(group.operations(), round + 1);
        }
        assert!(group.progress().deps.len() < 3000);
        let durable = deps(1_000_000, Phase::Durable);
        assert!(group.join(&durable, 0, 1 << 20).is_some());
        assert!(group.join(&durable, 0, 1 << 20).is_some());
        let named = |t: &&Dependency| t.txn.serial >= 1_000_000;
        assert_eq!(group.progress().deps.iter().filter(named).count(), 1000);
        let limit = group.progress().deps.bytes() + 999 * DEP_BYTES;
        let more = deps(2_000_000, Phase::Durable);
        assert_eq!(group.join(&more, 0, limit), None);
        assert!(group.join(&more, 0, limit + DEP_BYTES).is_some());
    }
}
