//! How operations join a transaction, and what they add to it.
//!
//! Threads of one stream join the same transaction, and end in it, all the time. Each does so in a *part*, so that they share no lock and no cache line as
//! long as there are as many parts as threads.
//! * P1 An operation is accepted under its part's lock, while the transaction runs; who seals it holds the locks of all parts. So nobody joins a sealed
//!   one.
//! * P2 Each part has a bound for what it may need of the log. The bounds are set under the locks of all parts, and what they add up to, with what is
//!   outside of them, is within the log's. (One operation more may be accepted without a limit; then the others' bounds are what they use.)
//! * P3 Once all operations have ended, all sums are in the transaction's counts and none in the parts (`gather`).
use crate::base::sync::{MutexGuard, thread_number};
use crate::base::types::Ino;
use crate::overlay::objects::{
    Cells, ChangedFile, Counts, Dependency, FileLayer, Inode, Inside, PARTS, Part, Phase, Sums,
    Txn, Users,
};
use crate::overlay::txn::DEP_BYTES;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of pages that a part keeps to itself before it tells the others.
const TOLD: i64 = 1 << 20;

/// What an operation is told that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which operation of the transaction it is. They are not counted in order.
    pub number: u64,
    /// Bytes of pages that operations have added before, as far as they have told.
    pub dirty_bytes: u64,
}

impl Cells {
    /// The caller holds the lock. Gives how many there are now.
    fn count_active(&self, by: i32) -> u32 {
        let now = self.active.load(Ordering::Relaxed).wrapping_add_signed(by);
        self.active.store(now, Ordering::Release);
        now
    }
}

impl Place {
    fn part(number: u64) -> usize {
        number as usize % PARTS
    }
}

impl Inside {
    /// Bytes of the log.
    fn used(&self) -> i64 {
        self.expected + self.sums.record.get() + self.sums.log_only.get()
    }

    fn accept(&mut self, part: usize, expected: u64, told: i64) -> Place {
        self.expected += expected as i64;
        let number = self.operations * PARTS as u64 + part as u64;
        self.operations += 1;
        Place {
            number,
            dirty_bytes: (told + self.untold).max(0) as u64,
        }
    }
}

impl Sums {
    fn fields(&self) -> [&Cell<i64>; 9] {
        [
            &self.dirty,
            &self.held,
            &self.log_only,
            &self.record,
            &self.avoided,
            &self.fields,
            &self.data,
            &self.metadata,
            &self.freed,
        ]
    }

    pub fn add(&self, other: &Sums) {
        for (to, n) in self.fields().into_iter().zip(other.fields()) {
            to.set(to.get() + n.get());
        }
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Counts {
    fn log_bytes(&self) -> u64 {
        load(&self.record_bytes) + load(&self.log_only_bytes)
    }
}

fn to_log(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn change(count: &AtomicU64, by: i64) {
    if by != 0 {
        let less = |all: u64| Some(all.saturating_add_signed(by));
        let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl Txn {
    fn all_parts(&self) -> [MutexGuard<'_, Inside>; PARTS] {
        std::array::from_fn(|part| self.parts[part].0.inside.lock())
    }

    /// Nobody joins meanwhile; who does so later finds what is done meanwhile (P1).
    pub(super) fn without_joins<R>(&self, work: impl FnOnce() -> R) -> R {
        let _all = self.all_parts();
        work()
    }

    /// Accepts an operation that comes after `dependencies`, and counts what it may need of the log. `None`, and nothing
    /// done: it takes no more (a log of `limit` bytes), or one of `dependencies` still runs.
    pub fn join(&self, deps: &[Dependency], expected: u64, limit: u64) -> Option<Place> {
        let own = thread_number() % PARTS;
        let cells = &self.parts[own].0;
        let mut part = cells.inside.lock();
        let within = part.used().saturating_add(to_log(expected)) <= part.bound;
        if !within || !deps.is_empty() {
            drop(part);
            return self.join_all(own, deps, expected, limit);
        }
        if !self.takes_operations() {
            return None;
        }
        cells.count_active(1);
        Some(part.accept(own, expected, self.told()))
    }

    fn told(&self) -> i64 {
        self.told_bytes.load(Ordering::Relaxed)
    }

    fn takes_operations(&self) -> bool {
        self.phase() == Phase::Running && !self.is_ended_group()
    }

    /// As `join`, with a look at all parts, whose bounds are set anew.
    fn join_all(
        &self,
        own: usize,
        deps: &[Dependency],
        expected: u64,
        limit: u64,
    ) -> Option<Place> {
        let mut parts = self.all_parts();
        let running = |t: &Dependency| t.txn.phase() == Phase::Running;
        if !self.takes_operations() || deps.iter().any(running) {
            return None;
        }
        let mut progress = self.progress.lock();
        let named = progress.deps.bytes() + deps.len() as u64 * DEP_BYTES;
        let outside = to_log(self.counts.log_bytes() + named + expected);
        let used: i64 = parts.iter().map(|part| part.used()).sum();
        let rest = to_log(limit).saturating_sub(used.saturating_add(outside));
        if rest < 0 {
            return None;
        }
        for dep in deps {
            progress.deps.add(dep);
        }
        drop(progress);
        // Whoever asks without a limit leaves none for others.
        let each = match limit {
            u64::MAX => 0,
            _ => rest / (2 * PARTS as i64),
        };
        self.parts[own].0.count_active(1);
        let place = parts[own].accept(own, expected, self.told());
        for part in &mut parts {
            part.bound = part.used() + each;
        }
        Some(place)
    }

    /// An accepted operation of user `uid` has ended.
    pub fn end_operation(&self, number: u64, expected: u64, uid: u32, sums: &Sums) {
        let cells = &self.parts[Place::part(number)].0;
        let mut part = cells.inside.lock();
        part.expected -= expected as i64;
        if sums.held.get() != 0 && part.uid != uid {
            let held = part.sums.held.take();
            self.progress.lock().users.count(part.uid, held);
            part.uid = uid;
        }
        part.sums.add(sums);
        part.untold += sums.dirty.get();
        if part.untold.abs() >= TOLD {
            let told = std::mem::take(&mut part.untold);
            self.told_bytes.fetch_add(told, Ordering::Relaxed);
        }
        let left = cells.count_active(-1);
        drop(part);
        // A group that is taken back runs, too, while its end waits for this.
        if left == 0 && (self.phase() != Phase::Running || self.group.is_some()) {
            let _progress = self.progress.lock();
            self.changed.notify_all();
        }
    }

    /// An operation's layer of an inode is the transaction's.
    pub fn add_file(&self, number: u64, inode: &Arc<Inode>, layer: &Arc<FileLayer>) {
        let part = Place::part(number);
        let files = &mut self.parts[part].0.inside.lock().files;
        layer.note_place(files.len() * PARTS + part);
        files.push((inode.clone(), layer.clone()));
    }

    /// This layer's inode was made and freed by the transaction.
    pub fn forget_file(&self, layer: &FileLayer) {
        let place = || layer.at.load(Ordering::Relaxed) as usize;
        // The part stays the same; who removes another one may move this one meanwhile.
        let files = &mut self.parts[place() % PARTS].0.inside.lock().files;
        let at = place();
        // One that was never added is forgotten without harm to another.
        let own = |file: &ChangedFile| std::ptr::eq(&*file.1, layer);
        if !files.get(at / PARTS).is_some_and(own) {
            return;
        }
        files.swap_remove(at / PARTS);
        if let Some((_, moved)) = files.get(at / PARTS) {
            moved.note_place(at);
        }
    }

    /// The inodes that it has layers of; it has none any more.
    pub fn take_files(&self) -> Vec<ChangedFile> {
        let mut parts = self.all_parts();
        let files = parts.iter_mut().map(|part| std::mem::take(&mut part.files));
        // One thread's, as a rule.
        files
            .reduce(|mut all, more| {
                all.extend(more);
                all
            })
            .unwrap_or_default()
    }

    /// The files by number; nothing adds to them any more.
    pub fn sort_files(&self) -> Arc<Vec<(Ino, ChangedFile)>> {
        let mut sorted = self.files.lock();
        let files = self.take_files().into_iter();
        let mut files: Vec<_> = files.map(|file| (file.0.ino, file)).collect();
        files.sort_unstable_by_key(|(ino, _)| *ino);
        *sorted = Arc::new(files);
        sorted.clone()
    }

    /// The inodes that it has layers of, whether it is being committed or not.
    pub fn file_inodes(&self) -> Vec<Arc<Inode>> {
        // Held, so that they do not come from the parts to the list meanwhile.
        let sorted = self.files.lock();
        let parts = self.all_parts();
        let in_parts = parts.iter().flat_map(|part| &part.files);
        let all = sorted.iter().map(|(_, file)| file).chain(in_parts);
        all.map(|file| file.0.clone()).collect()
    }

    /// Waits until the accepted operations of a transaction that takes no more have ended.
    pub fn wait_quiet(&self) {
        let mut progress = self.progress.lock();
        let active = |part: &Part| part.0.active.load(Ordering::Acquire) > 0;
        while self.parts.iter().any(active) {
            self.changed.wait(&mut progress);
        }
        drop(progress);
        self.gather();
    }

    /// Everything that operations have added so far comes to the transaction's counts (P3).
    pub fn gather(&self) {
        let mut parts = self.all_parts();
        let all = Sums::default();
        let mut progress = self.progress.lock();
        for part in &mut parts {
            let sums = std::mem::take(&mut part.sums);
            progress.users.count(part.uid, sums.held.get());
            all.add(&sums);
            // What is outside of the parts now counts against nobody's bound.
            part.bound = part.used();
        }
        let counts = &self.counts;
        change(&counts.dirty_bytes, all.dirty.get());
        change(&counts.log_only_bytes, all.log_only.get());
        change(&counts.record_bytes, all.record.get());
        change(&counts.avoided_bytes, all.avoided.get());
        change(&counts.fields, all.fields.get());
        change(&counts.blocks.data, all.data.get());
        change(&counts.blocks.metadata, all.metadata.get());
        change(&counts.blocks.freed, all.freed.get());
    }

    /// Everything that was counted, and whose the memory is, bytes: somebody else counts it from now on. Nobody changes the transaction any more.
    pub fn give_up(&self) -> (Sums, Vec<(u32, i64)>) {
        self.gather();
        let all = |n: &AtomicU64| Cell::new(n.swap(0, Ordering::Relaxed) as i64);
        let counts = &self.counts;
        let sums = Sums {
            dirty: all(&counts.dirty_bytes),
            held: Cell::default(),
            log_only: all(&counts.log_only_bytes),
            record: all(&counts.record_bytes),
            avoided: all(&counts.avoided_bytes),
            fields: all(&counts.fields),
            data: all(&counts.blocks.data),
            metadata: all(&counts.blocks.metadata),
            freed: all(&counts.blocks.freed),
        };
        let mut progress = self.progress.lock();
        (sums, std::mem::take(&mut progress.users.0))
    }

    /// Dirty bytes by user, of operations that have ended.
    pub fn users(&self) -> Vec<(u32, u64)> {
        let parts = self.all_parts();
        let mut all = Users(self.progress.lock().users.0.clone());
        for part in &parts {
            all.count(part.uid, part.sums.held.get());
        }
        let bytes = all.0.into_iter();
        bytes
            .map(|(uid, bytes)| (uid, bytes.max(0) as u64))
            .collect()
    }

    /// A count, with what is in the parts.
    fn total(&self, counted: impl Fn(&Counts) -> u64, of: impl Fn(&Sums) -> i64) -> u64 {
        // Nothing goes from one to the other meanwhile.
        let parts = self.all_parts();
        let more: i64 = parts.iter().map(|part| of(&part.sums)).sum();
        counted(&self.counts).saturating_add_signed(more)
    }

    /// Operations that were accepted.
    pub fn operations(&self) -> u64 {
        let parts = self.all_parts();
        parts.iter().map(|part| part.operations).sum()
    }

    /// Bytes of pages held.
    pub fn dirty_bytes(&self) -> u64 {
        self.total(|c| load(&c.dirty_bytes), |s| s.dirty.get())
    }

    /// Data of its operations that need not be written.
    pub fn avoided_bytes(&self) -> u64 {
        self.total(|c| load(&c.avoided_bytes), |s| s.avoided.get())
    }

    /// Fields of directories that it sets.
    pub fn fields(&self) -> u64 {
        self.total(|c| load(&c.fields), |s| s.fields.get())
    }

    /// Bytes that it needs in the log, as far as its operations have ended.
    pub fn log_bytes(&self) -> u64 {
        self.total(Counts::log_bytes, |s| s.record.get() + s.log_only.get())
    }

    /// Memory that it holds, roughly, bytes: pages, and layers and names by what they need in the log.
    pub fn memory(&self) -> u64 {
        self.total(
            |c| load(&c.dirty_bytes) + 3 * load(&c.record_bytes),
            |s| s.dirty.get() + 3 * s.record.get(),
        )
    }

    /// Most bytes that it can need in the log.
    pub fn log_bytes_max(&self) -> u64 {
        let parts = self.all_parts();
        let used: i64 = parts.iter().map(|part| part.used()).sum();
        self.counts.log_bytes().saturating_add_signed(used)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::base::types::StreamId;
    use crate::overlay::objects::Dependencies;
    use std::sync::atomic::AtomicBool;

    fn txn() -> Txn {
        Txn::new(1, StreamId(5), Dependencies::default())
    }

    fn sums(record: i64, held: i64) -> Sums {
        let sums = Sums::default();
        sums.record.set(record);
        sums.held.set(held);
        sums
    }

    /// Threads join until the transaction takes no more: it is full then, and never was more than that.
    #[test]
    fn the_bounds_of_all_parts_are_within_the_logs() {
        const LIMIT: u64 = 1 << 20;
        const EXPECTED: u64 = 700;
        for seed in 0..20u64 {
            let txn = txn();
            let ended = std::thread::scope(|scope| {
                let threads = (0..6).map(|thread| {
                    let txn = &txn;
                    scope.spawn(move || {
                        let mut rng = ccfs_testkit::Rng::new(seed * 6 + thread);
                        let (mut under_way, mut ended) = (Vec::new(), 0);
                        while let Some(place) = txn.join(&[], EXPECTED, LIMIT) {
                            assert!(txn.log_bytes_max() <= LIMIT);
                            under_way.push(place.number);
                            if rng.below(3) == 0 {
                                let number = under_way.swap_remove(rng.index(under_way.len()));
                                let need = rng.below(EXPECTED + 1) as i64;
                                txn.end_operation(number, EXPECTED, 0, &sums(need, 0));
                                ended += need;
                            }
                        }
                        for number in under_way {
                            txn.end_operation(number, EXPECTED, 0, &sums(0, 0));
                        }
                        ended
                    })
                });
                let threads: Vec<_> = threads.collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum::<i64>()
            });
            assert_eq!(txn.log_bytes_max(), ended as u64);
            // There is room again, to the last byte.
            let rest = LIMIT - ended as u64;
            assert_eq!(txn.join(&[], rest + 1, LIMIT), None);
            assert!(txn.join(&[], rest, LIMIT).is_some());
            assert_eq!(txn.join(&[], 1, LIMIT), None);
        }
    }

    /// Whoever seals it and waits has everything that was accepted.
    #[test]
    fn nothing_comes_to_a_sealed_transaction_that_is_quiet() {
        for _ in 0..300 {
            let (txn, begun) = (txn(), AtomicBool::new(false));
            let accepted = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for uid in 0..3 {
                    let (txn, begun, accepted) = (&txn, &begun, &accepted);
                    scope.spawn(move || {
                        while let Some(place) = txn.join(&[], 10, u64::MAX / 4) {
                            accepted.fetch_add(1, Ordering::Relaxed);
                            txn.end_operation(place.number, 10, uid, &sums(1, 1));
                            begun.store(true, Ordering::Relaxed);
                        }
                    });
                }
                while !begun.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                txn.set_phase(Phase::Sealed);
                txn.wait_quiet();
                let counted = txn.counts.record_bytes.load(Ordering::Relaxed);
                let held = txn.users().iter().map(|user| user.1).sum::<u64>();
                assert_eq!((counted, held), (txn.operations(), txn.operations()));
            });
            assert_eq!(txn.operations(), accepted.into_inner());
        }
    }

    /// One thread adds what another one takes away.
    #[test]
    fn what_users_hold_is_the_same_whoever_added_it() {
        let txn = txn();
        // The first operation of a part has its number.
        for (part, uid, held) in [
            (1, 7, 1000),
            (0, 7, -1000),
            (0, 8, 50),
            (0, 7, -1),
            (1, 7, 1),
        ] {
            txn.parts[part as usize].0.count_active(1);
            txn.end_operation(part, 0, uid, &sums(0, held));
        }
        let held = |txn: &Txn| {
            let mut users = txn.users();
            users.sort();
            users
        };
        assert_eq!(held(&txn), [(7, 0), (8, 50)]);
        txn.gather();
        assert_eq!(held(&txn), [(7, 0), (8, 50)]);
    }
}
