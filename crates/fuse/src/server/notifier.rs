//! What the kernel is told without having asked: names, attributes and pages that it must not believe any more.
//!
//! A notification waits, for as long as somebody likes who lists a directory into memory that he never gets, for the lock of a directory, or
//! for that of a page until a request under way is answered. So no thread that serves requests sends one, and who waits here does so for a
//! bounded time. Threads of their own send them ([`super::lanes`]): for a directory that is held, or a user whose directories are, nobody else waits.
//!
//! *What cannot be told*, or not soon, is right as follows:
//!
//! | notification | meanwhile, and if it never gets through |
//! |---|---|
//! | pages and size of an inode after an abort | write-back of its pages is dropped, appends go to the real end |
//! | names after an abort | they stay as the group had made them, in a directory that somebody holds: nobody else can change them meanwhile, either |
//! | pages beside a direct write | its reply waits; past a bound it goes out, and old pages are shown for that long |
//! | pages of a mapping, before a call that needs what it stored | the call does without those stores; the kernel is asked again for the next one, if it was not asked |
//!
//! *Bounds.* What concerns an inode joins what waits for it already, so there is no more of it than inodes that the kernel knows. Names
//! count for the user whose group changed them: above [`NAMES_MAX`] he can begin no group.
use super::lanes::{Key, LIMITS, Lanes};
use super::node_of;
use crate::transport::channel::Channel;
use crate::wire::StalePages;
use ccfs_engine::{Aborted, Error, Ino, StreamId, Volume};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a call waits at most for the kernel to be told something that concerns the call. (For pages twice: until they are asked for, and
/// until they come.)
pub const TELL_WAIT: Duration = Duration::from_secs(30);
/// And, after an abort, while none of it is told: somebody holds what it waits for.
pub const STUCK: Duration = Duration::from_secs(1);
/// How long an abort that somebody else makes is waited for between two looks at the volume.
const LOOK: Duration = Duration::from_millis(10);
/// Names of one user that the kernel has not been told, bytes with [`NAME_BYTES`] for each.
const NAMES_MAX: usize = 16 << 20;
/// Memory that a name takes besides its own bytes.
const NAME_BYTES: usize = 128;
/// Ranges of one inode that wait.
const RANGES_MAX: usize = 256;
/// Groups that were taken back of which it is known what the kernel was to be told, and lanes of them: somebody may still ask.
const GROUPS_MAX: usize = 1024;
const KEYS_MAX: usize = 1 << 18;
/// A name that is not there.
const NOBODYS: &[u8] = b".ccfs-direct-";
/// Names for which memory is kept when there are none.
const KEPT: usize = 1024;

/// Called when pages have been dropped.
pub type Done = Box<dyn FnOnce() + Send>;

enum Task {
    Name(Ino, Vec<u8>),
    /// An inode that the kernel gives up unless somebody uses it, and who waits for whether it has.
    Prune(Vec<Ino>, SyncSender<bool>),
    /// The kernel need not remember that there is no such name, until then.
    Missed(Ino, Box<[u8]>, Instant),
    /// A name that is about to be made, while somebody waits for that. Whoever makes it by the kernel meanwhile holds the directory's lock.
    Comes(Ino, Box<[u8]>, Weak<()>),
    /// A name that was made, and its directory; the name need not be told where it is the one that is nobody's. First the name: that waits for a listing under way, which could bring the old pages back.
    Made(Ino, Vec<u8>),
    /// Attributes, size and pages of an inode that so many aborts have touched.
    Restored(Ino, u32),
    /// An inode whose pages are wrong in the kernel.
    Pages(Ino),
    /// A range of an inode of which the kernel may keep what a mapping has written, if somebody waits for it; told when it begins and ends.
    Range(Ino, Range<u64>, SyncSender<()>),
    Drop(StalePages, Done),
}

/// Aborts that had been reported at some instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look(u64);

struct Shared {
    lanes: Lanes<Task>,
    /// How many aborts were reported, and which.
    reported: AtomicU64,
    reports: Mutex<Reports>,
    report: Condvar,
    /// Files whose length the kernel may have wrong until it asks.
    resized: Mutex<HashSet<Ino>>,
    /// There was one: nobody looks further before.
    any_resized: AtomicBool,
    /// Names that it has not been told, by their hash.
    names: Mutex<HashMap<u64, u32>>,
    hash: RandomState,
    /// It was said that the kernel takes long.
    warned: AtomicBool,
    /// The kernel can be told to ask for a name again.
    expires: AtomicBool,
}

#[derive(Default)]
struct Reports {
    /// All aborts with smaller numbers were reported, and these.
    below: u64,
    beyond: BTreeSet<u64>,
    /// What the last groups that were taken back gave to do: the lanes, and how far.
    groups: VecDeque<(StreamId, Arc<[Key]>, u64)>,
    keys: usize,
}

/// Tells the kernel what to forget.
#[derive(Clone)]
pub struct Notifier(Arc<Shared>);

impl Default for Notifier {
    fn default() -> Self {
        Notifier(Arc::new(Shared {
            lanes: Lanes::new(LIMITS),
            reported: AtomicU64::new(0),
            reports: Mutex::default(),
            report: Condvar::new(),
            resized: Mutex::default(),
            any_resized: AtomicBool::new(false),
            names: Mutex::default(),
            hash: RandomState::new(),
            warned: AtomicBool::new(false),
            expires: AtomicBool::new(false),
        }))
    }
}

impl Notifier {
    /// From here on the kernel is told, and groups can be opened. `expires`: it knows [`crate::abi::EXPIRE_ONLY`]. Errors: no thread can be started.
    pub fn start(
        &self,
        volume: &Arc<Volume>,
        kernel: Channel,
        expires: bool,
    ) -> std::io::Result<()> {
        self.0.expires.store(expires, SeqCst);
        let (weak, shared) = (Arc::downgrade(volume), Arc::downgrade(&self.0));
        self.0.lanes.start(move |task| {
            if let Some(shared) = shared.upgrade() {
                shared.tell(task, &weak, &kernel);
            }
        })?;
        let (weak, shared) = (Arc::downgrade(volume), Arc::downgrade(&self.0));
        volume.listen_to_aborts(Box::new(move |aborted| {
            if let (Some(volume), Some(shared)) = (weak.upgrade(), shared.upgrade()) {
                shared.aborted(&volume, aborted);
            }
        }));
        Ok(())
    }

    /// Groups can be opened.
    pub fn works(&self) -> bool {
        self.0.lanes.are_open()
    }

    /// No more notifications.
    pub fn stop(&self) {
        self.0.lanes.stop();
    }

    /// To be called from time to time.
    pub fn tick(&self) {
        self.0.lanes.tick();
    }

    /// So much of what this user's groups had changed is not told that he may begin no other one.
    pub fn owes_much_to(&self, user: u32) -> bool {
        self.0.lanes.weight(user) > NAMES_MAX
    }

    /// What to compare with after an operation.
    pub fn look(&self) -> Look {
        Look(self.0.reported.load(SeqCst))
    }

    /// An abort was, or is, under way since `before`: what it changed is not known yet, or was not then.
    fn was_aborting(volume: &Volume, before: Look) -> bool {
        volume.aborts_begun() != before.0
    }

    /// A rename was answered. What it moved in the kernel can be what a group had made there, and that was taken back: then both names are wrong.
    /// Not so with other calls: theirs are the group's own names. (Whoever changes names holds the lock of the directory, so the kernel
    /// had not been told of these before, and is told afterwards.)
    pub fn renamed(&self, volume: &Volume, before: Look, user: u32, names: [(Ino, &[u8]); 2]) {
        if volume.aborts_begun() == 0 {
            return;
        }
        let wrong = Notifier::was_aborting(volume, before) || {
            let untold = self.0.names.lock();
            let mut hashes = names.iter().map(|(dir, name)| self.0.hash_of(*dir, name));
            hashes.any(|h| untold.contains_key(&h))
        };
        if wrong && !self.owes_much_to(user) {
            for (dir, name) in names {
                self.0.name(user, dir, name.to_vec());
            }
        }
    }

    /// The kernel may be wrong about the length of this file.
    pub fn is_doubtful(&self, volume: &Volume, ino: Ino, before: Look) -> bool {
        volume.aborts_begun() != 0 && Notifier::was_aborting(volume, before)
            || self.0.any_resized.load(SeqCst) && self.0.resized.lock().contains(&ino)
    }

    /// It was changed without the kernel's knowledge while that knew it.
    pub fn size_is_doubtful(&self, ino: Ino) {
        self.0.note_resized([ino]);
    }

    /// The kernel has let go of an inode.
    pub fn forgotten(&self, volume: &Volume, ino: Ino) {
        if self.0.any_resized.load(SeqCst) && !volume.is_remembered(ino) {
            self.0.resized.lock().remove(&ino);
        }
    }

    /// The pages of a file are wrong in the kernel.
    pub fn pages(&self, user: u32, ino: Ino) {
        self.pages_of(user, Key::Inode(ino), ino);
    }

    fn pages_of(&self, user: u32, key: Key, ino: Ino) {
        let same = |task: &mut Task| matches!(task, Task::Pages(_) | Task::Restored(..));
        if !self.0.lanes.join(key, same) {
            let _ = self.0.lanes.add(key, user, 0, Task::Pages(ino));
        }
    }

    /// The same of a directory that was moved. It is waited for as long as that takes where nothing is in the way; who has moved it holds locks of the kernel.
    pub fn moved(&self, user: u32, dir: Ino) {
        const PATIENCE: Duration = Duration::from_millis(100);
        let key = Key::Listing(dir);
        self.pages_of(user, key, dir);
        let now = self.0.lanes.now();
        self.0.lanes.wait(&[key], now, PATIENCE, PATIENCE);
    }

    /// A name is about to be made: the kernel forgets that it was not there. Waits until that is told, but not long where somebody holds the directory;
    /// false: it is not told.
    pub fn name_comes(&self, user: u32, dir: Ino, name: &[u8]) -> bool {
        let (key, weight) = (Key::Names(dir), NAME_BYTES + name.len());
        let waits = Arc::new(());
        let task = Task::Comes(dir, name.into(), Arc::downgrade(&waits));
        let lanes = &self.0.lanes;
        lanes.add(key, user, weight, task).is_ok()
            && lanes.wait(&[key], lanes.now(), STUCK, TELL_WAIT)
    }

    /// A name was made that the kernel may believe not to be there, unless it has `forgotten` that, and its directory has changed. Waits until it is told, as
    /// `TELL_WAIT` says; where somebody holds the directory it may be told later.
    pub fn name_made(&self, user: u32, dir: Ino, name: &[u8], forgotten: bool) {
        let (key, weight) = (Key::Names(dir), NAME_BYTES + name.len());
        // By now it may be in use, or a mount point.
        let name = match forgotten && !self.0.expires.load(SeqCst) {
            true => NOBODYS,
            false => name,
        };
        let task = Task::Made(dir, name.to_vec());
        if self.0.lanes.add(key, user, weight, task).is_ok() {
            self.wait(&[key], self.0.lanes.now());
        }
    }

    /// The kernel is to forget a name, some time.
    pub fn name_gone(&self, user: u32, dir: Ino, name: &[u8]) {
        self.0.name(user, dir, name.to_vec());
    }

    /// Has the kernel forget that these names are not there, as they keep it from giving up their directories. It is not waited for longer than that:
    /// somebody may hold a directory.
    pub fn missed(&self, user: u32, names: Vec<(Ino, Box<[u8]>)>, patience: Duration) {
        let mut keys: Vec<Key> = names.iter().map(|(dir, _)| Key::Names(*dir)).collect();
        keys.dedup();
        let end = Instant::now() + patience;
        for (dir, name) in names {
            let weight = NAME_BYTES + name.len();
            let task = Task::Missed(dir, name, end);
            let _ = self.0.lanes.add(Key::Names(dir), user, weight, task);
        }
        let now = self.0.lanes.now();
        self.0.lanes.wait(&keys, now, patience, patience);
    }

    /// Has the kernel give inodes up, unless somebody uses them; FORGETs follow. False: somebody does, the kernel is too old to be asked, or it takes
    /// longer than `STUCK`.
    pub fn prune(&self, user: u32, inos: Vec<Ino>) -> bool {
        let Some(&first) = inos.first() else {
            return true;
        };
        let (tell, told) = sync_channel(1);
        let task = Task::Prune(inos, tell);
        self.0.lanes.add(Key::Inode(first), user, 0, task).is_ok()
            && told.recv_timeout(STUCK).unwrap_or(false)
    }

    /// Has the kernel drop pages, and then calls `done` on another thread. `Err`: there is none any more.
    pub fn drop_pages(&self, user: u32, stale: StalePages, done: Done) -> Result<(), Done> {
        let Ok(ino) = super::ino_of(stale.nodeid) else {
            return Err(done);
        };
        let task = Task::Drop(stale, done);
        match self.0.lanes.add(Key::Inode(ino), user, 0, task) {
            Err(Task::Drop(_, done)) => Err(done),
            _ => Ok(()),
        }
    }

    /// Has the kernel write back what mappings have written to a range, and give those pages back; waits so long until it begins, and so long from then on.
    /// The caller serves no queue, and holds no page of the range. False: the kernel is busy with the file. It will not be asked later, when it could
    /// be in the way of another call.
    pub fn write_back(&self, user: u32, ino: Ino, range: Range<u64>, within: Duration) -> bool {
        self.write_back_in(Key::Inode(ino), user, ino, range, within)
    }

    /// As `write_back`, for a caller who may hold other pages of the file: drops of these, and what waits behind them in their lane, wait for him. So
    /// this is a lane of its own, and he waits for a short time.
    pub fn write_back_beside(
        &self,
        user: u32,
        ino: Ino,
        range: Range<u64>,
        within: Duration,
    ) -> bool {
        self.write_back_in(Key::Stores(ino), user, ino, range, within)
    }

    fn write_back_in(
        &self,
        key: Key,
        user: u32,
        ino: Ino,
        range: Range<u64>,
        within: Duration,
    ) -> bool {
        if self.0.lanes.waiting(key) >= RANGES_MAX {
            return false;
        }
        let (steps, wait) = sync_channel(2);
        let task = Task::Range(ino, range, steps);
        if self.0.lanes.add(key, user, 0, task).is_err() {
            return false;
        }
        let began = wait.recv_timeout(within).is_ok();
        if began {
            let _ = wait.recv_timeout(within);
        }
        began
    }

    /// Waits until the kernel has forgotten what a group had changed that was, or is, taken back. Not for what somebody holds.
    pub fn settle_group(&self, volume: &Volume, group: StreamId) {
        self.wait_reported(volume);
        let find = |groups: &VecDeque<(StreamId, Arc<[Key]>, u64)>| {
            let found = groups.iter().rev().find(|g| g.0 == group);
            found.map(|(_, keys, then)| (keys.clone(), *then))
        };
        let found = find(&self.0.reports.lock().groups);
        if let Some((keys, then)) = found {
            self.wait(&keys, then);
        }
    }

    /// As `settle_group`, for a draft of this file.
    pub fn settle_file(&self, volume: &Volume, ino: Ino) {
        self.wait_reported(volume);
        self.wait(&[Key::Inode(ino)], self.0.lanes.now());
    }

    fn wait(&self, keys: &[Key], then: u64) {
        let told = self.0.lanes.wait(keys, then, STUCK, TELL_WAIT);
        if !told && self.works() && !self.0.warned.swap(true, SeqCst) {
            tracing::warn!(
                "somebody keeps a directory locked, or a page: the kernel still has names or pages of an atomic group that was taken back"
            );
        }
    }

    /// Waits until all aborts that had begun are reported: whoever makes one may not have got so far.
    fn wait_reported(&self, volume: &Volume) {
        let (begun, end) = (volume.aborts_begun(), Instant::now() + TELL_WAIT);
        let mut reports = self.0.reports.lock();
        while reports.below < begun && self.works() && !volume.is_stopped() && Instant::now() < end
        {
            self.0.report.wait_for(&mut reports, LOOK);
        }
    }
}

impl Shared {
    fn note_resized(&self, inodes: impl IntoIterator<Item = Ino>) {
        self.resized.lock().extend(inodes);
        self.any_resized.store(true, SeqCst);
    }

    fn hash_of(&self, dir: Ino, name: &[u8]) -> u64 {
        self.hash.hash_one((dir, name))
    }

    fn name(&self, user: u32, dir: Ino, name: Vec<u8>) {
        let hash = self.hash_of(dir, &name);
        *self.names.lock().entry(hash).or_default() += 1;
        let weight = NAME_BYTES + name.len();
        let task = Task::Name(dir, name);
        if self.lanes.add(Key::Names(dir), user, weight, task).is_err() {
            self.told(hash);
        }
    }

    fn told(&self, hash: u64) {
        let mut names = self.names.lock();
        if let Some(count) = names.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                names.remove(&hash);
            }
        }
        if names.is_empty() && names.capacity() > KEPT {
            *names = HashMap::new();
        }
    }

    /// A group, or a draft, was taken back.
    fn aborted(&self, volume: &Volume, aborted: Aborted) {
        let user = aborted.user;
        let known = aborted.inodes.iter().copied();
        let known: Vec<Ino> = known.filter(|ino| volume.is_remembered(*ino)).collect();
        self.note_resized(known);
        let mut keys: Vec<Key> = Vec::with_capacity(aborted.inodes.len());
        for (dir, name) in aborted.names {
            let key = Key::Names(dir);
            if keys.last() != Some(&key) {
                keys.push(key);
            }
            self.name(user, dir, name);
        }
        for ino in aborted.inodes {
            let key = match aborted.dirs.binary_search(&ino) {
                Ok(_) => Key::Listing(ino),
                Err(_) => Key::Inode(ino),
            };
            keys.push(key);
            let one_more = |task: &mut Task| match task {
                Task::Restored(_, aborts) => {
                    *aborts += 1;
                    true
                }
                _ => false,
            };
            if !self.lanes.join(key, one_more) {
                let _ = self.lanes.add(key, user, 0, Task::Restored(ino, 1));
            }
        }
        let now = self.lanes.now();
        let mut reports = self.reports.lock();
        if let Some(group) = aborted.group {
            reports.keys += keys.len();
            reports.groups.push_back((group, keys.into(), now));
            while reports.groups.len() > GROUPS_MAX || reports.keys > KEYS_MAX {
                let Some((_, keys, _)) = reports.groups.pop_front() else {
                    break;
                };
                reports.keys -= keys.len();
            }
        }
        reports.beyond.insert(aborted.number);
        let mut below = reports.below;
        while reports.beyond.remove(&below) {
            below += 1;
        }
        reports.below = below;
        self.reported.fetch_add(1, SeqCst);
        self.report.notify_all();
    }

    fn tell(&self, task: Task, volume: &Weak<Volume>, kernel: &Channel) {
        match task {
            Task::Name(dir, name) => {
                kernel.invalidate_entry(node_of(dir), &name);
                self.told(self.hash_of(dir, &name));
            }
            Task::Missed(dir, name, end) => {
                // One that was made meanwhile may be in use, or a mount point.
                let found = volume.upgrade().map(|volume| volume.lookup(dir, &name));
                let is_missed = matches!(found, Some(Err(Error::Errno(libc::ENOENT))));
                if is_missed && Instant::now() < end {
                    kernel.invalidate_entry(node_of(dir), &name);
                }
            }
            Task::Prune(inos, given_up) => {
                let nodes: Vec<_> = inos.into_iter().map(node_of).collect();
                let _ = given_up.send(kernel.prune(&nodes));
            }
            // It is made by now, and told after this.
            Task::Comes(_, _, waits) if waits.strong_count() == 0 => {}
            Task::Comes(dir, name, _) => {
                // One that is there may be in use, or a mount point. The lock is waited for in any case.
                let is_there = || {
                    let found = volume.upgrade().map(|volume| volume.lookup(dir, &name));
                    matches!(found, Some(Ok(_)))
                };
                let expires = self.expires.load(SeqCst);
                let name = if !expires && is_there() {
                    NOBODYS
                } else {
                    &name
                };
                self.forget_name(kernel, dir, name);
            }
            Task::Made(dir, name) => {
                self.forget_name(kernel, dir, &name);
                kernel.invalidate_inode(node_of(dir));
            }
            Task::Restored(ino, aborts) => restored(volume, kernel, ino, aborts),
            Task::Pages(ino) => kernel.invalidate_inode(node_of(ino)),
            Task::Range(ino, range, steps) => {
                // Whoever does not wait any more wants nothing.
                if steps.send(()).is_ok() {
                    kernel.invalidate_range(node_of(ino), range);
                    let _ = steps.send(());
                }
            }
            Task::Drop(stale, done) => {
                kernel.invalidate_range(stale.nodeid, stale.range);
                done();
            }
        }
    }
}

impl Shared {
    /// The kernel asks for a name again, by a way that unmounts nothing if it can.
    fn forget_name(&self, kernel: &Channel, dir: Ino, name: &[u8]) {
        match self.expires.load(SeqCst) {
            true => kernel.expire_entry(node_of(dir), name),
            false => kernel.invalidate_entry(node_of(dir), name),
        }
    }
}

/// Attributes, length and pages.
fn restored(volume: &Weak<Volume>, kernel: &Channel, ino: Ino, aborts: u32) {
    let Some(volume) = volume.upgrade() else {
        return;
    };
    // A file that is longer again: a mapping of it must not end where it ended in the group, and nobody asks for attributes before an access
    // through a mapping. (One that is shorter: the first read that comes back short tells the kernel.)
    if let Ok(attr) = volume.getattr(ino)
        && attr.is_file()
        && attr.size > 0
    {
        let (mut last, at) = (Vec::new(), attr.size - 1);
        if volume.read(ino, at, 1, &mut last).is_ok() && last.len() == 1 {
            kernel.store(node_of(ino), at, &last);
        }
    }
    kernel.invalidate_inode(node_of(ino));
    (0..aborts).for_each(|_| volume.pages_dropped(ino));
}
