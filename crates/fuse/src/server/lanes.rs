//! Lanes: work that may take long, in order by what it is about, and fair by user.
//!
//! *Order.* A lane ([`Key`]) has one task under way at most, and its tasks are done in the order in which they came. Lanes know nothing of
//! each other.
//!
//! *Threads* are started when a lane has work that nobody is free for, and end when they had nothing to do for [`IDLE`]. A task may hold its
//! thread for ever. So there is a bound for all, a share that no user exceeds, and a reserve that only who holds little draws on.
//!
//! *Fairness.* The next task is one of the user with the fewest under way. Those of the kind that others can hold up for ever
//! ([`Key::can_be_held`]) never take all of a user's share, and a part of it is for [`Key::Stores`].
use ccfs_engine::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(1);
/// Lanes for which memory is kept when there are none.
const KEPT: usize = 1024;
/// While somebody waits for many lanes, they are looked at so often.
const LOOK: Duration = Duration::from_millis(2);

/// What work is about, and in the way of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The names in a directory.
    Names(Ino),
    /// The attributes of a directory, and the pages with its listing.
    Listing(Ino),
    /// The attributes and pages of another inode.
    Inode(Ino),
    /// What mappings have stored to an inode. A WRITE may wait for it while work on the pages waits for a page of that WRITE.
    Stores(Ino),
}

impl Key {
    /// For as long as somebody likes: he lists the directory to memory that he never gets. That holds its lock, or a page of its listing.
    fn can_be_held(self) -> bool {
        matches!(self, Key::Names(_) | Key::Listing(_))
    }
}

/// How many threads there may be.
#[derive(Clone, Copy)]
pub struct Limits {
    pub threads: usize,
    /// So many of them are for users with less than `little` tasks under way.
    pub reserve: usize,
    pub little: usize,
    /// For one user; of these for what can be held, and kept for stores, which are waited for briefly.
    pub share: usize,
    pub held: usize,
    pub stores: usize,
}

pub const LIMITS: Limits = Limits {
    threads: 64,
    reserve: 16,
    little: 2,
    share: 16,
    held: 12,
    stores: 2,
};

type Run<T> = Arc<dyn Fn(T) + Send + Sync>;

pub struct Lanes<T>(Arc<Shared<T>>);

struct Shared<T> {
    limits: Limits,
    state: Mutex<State<T>>,
    /// There is work, or there will be no more.
    work: Condvar,
    /// A task is done.
    done: Condvar,
}

struct State<T> {
    /// What does the work; `None`: nothing is taken in.
    run: Option<Run<T>>,
    lanes: HashMap<Key, Lane<T>>,
    users: BTreeMap<u32, User>,
    threads: usize,
    /// Threads that have nothing to do, or have just been started.
    idle: usize,
    busy: usize,
    last: u64,
    /// Who was served last.
    served: u32,
}

struct Lane<T> {
    waiting: VecDeque<Entry<T>>,
    /// The number of the task under way.
    running: Option<u64>,
}

struct Entry<T> {
    /// Numbers rise in the order in which tasks come.
    number: u64,
    user: u32,
    weight: usize,
    task: T,
}

/// A user with work.
#[derive(Default)]
struct User {
    /// Lanes whose next task is his, of which none is under way.
    held: VecDeque<Key>,
    inodes: VecDeque<Key>,
    stores: VecDeque<Key>,
    running: usize,
    running_held: usize,
    running_stores: usize,
    /// Of his tasks that are not done.
    tasks: usize,
    weight: usize,
}

impl User {
    fn ready(&mut self, key: Key) -> &mut VecDeque<Key> {
        match key {
            Key::Names(_) | Key::Listing(_) => &mut self.held,
            Key::Inode(_) => &mut self.inodes,
            Key::Stores(_) => &mut self.stores,
        }
    }

    /// How many more of his lanes could be worked at.
    fn wants(&self, limits: &Limits) -> usize {
        let held = limits.held.saturating_sub(self.running_held);
        let others = self.running - self.running_stores;
        let others = (limits.share - limits.stores).saturating_sub(others);
        let others = others.min(self.held.len().min(held) + self.inodes.len());
        (others + self.stores.len()).min(limits.share.saturating_sub(self.running))
    }
}

impl<T: Send + 'static> Lanes<T> {
    pub fn new(limits: Limits) -> Lanes<T> {
        Lanes(Arc::new(Shared {
            limits,
            state: Mutex::new(State {
                run: None,
                lanes: HashMap::new(),
                users: BTreeMap::new(),
                threads: 0,
                idle: 0,
                busy: 0,
                last: 0,
                served: 0,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
        }))
    }

    /// From here on there is work. Errors: no thread can be started.
    pub fn start(&self, run: impl Fn(T) + Send + Sync + 'static) -> std::io::Result<()> {
        let mut state = self.0.state.lock();
        state.run = Some(Arc::new(run));
        let started = self.0.start_thread(&mut state);
        if started.is_err() {
            state.run = None;
        }
        started
    }

    /// Takes no more in; what is there is done. Nobody is waited for: a task may hold its thread until the connection ends.
    pub fn stop(&self) {
        self.0.state.lock().run = None;
        self.0.work.notify_all();
        self.0.done.notify_all();
    }

    pub fn are_open(&self) -> bool {
        self.0.state.lock().run.is_some()
    }

    /// Takes a task in, of this user's. `Err`: no more.
    pub fn add(&self, key: Key, user: u32, weight: usize, task: T) -> Result<(), T> {
        let mut state = self.0.state.lock();
        if state.run.is_none() {
            return Err(task);
        }
        state.last += 1;
        let entry = Entry {
            number: state.last,
            user,
            weight,
            task,
        };
        let owner = state.users.entry(user).or_default();
        owner.tasks += 1;
        owner.weight += weight;
        let lane = state.lanes.entry(key).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            running: None,
        });
        let first = lane.waiting.is_empty() && lane.running.is_none();
        lane.waiting.push_back(entry);
        if first {
            state
                .users
                .entry(user)
                .or_default()
                .ready(key)
                .push_back(key);
        }
        self.0.call(&mut state);
        Ok(())
    }

    /// Lets a task that waits in a lane take in what would be another one: the first that says so. False: there is none.
    pub fn join(&self, key: Key, joins: impl FnMut(&mut T) -> bool) -> bool {
        let mut state = self.0.state.lock();
        let lane = state.lanes.get_mut(&key);
        let mut tasks = lane
            .into_iter()
            .flat_map(|l| l.waiting.iter_mut().map(|e| &mut e.task));
        tasks.any(joins)
    }

    /// How many tasks wait in a lane.
    pub fn waiting(&self, key: Key) -> usize {
        self.0
            .state
            .lock()
            .lanes
            .get(&key)
            .map_or(0, |l| l.waiting.len())
    }

    /// The weight of a user's tasks that are not done.
    pub fn weight(&self, user: u32) -> usize {
        self.0.state.lock().users.get(&user).map_or(0, |u| u.weight)
    }

    /// What has come so far: for `wait`.
    pub fn now(&self) -> u64 {
        self.0.state.lock().last
    }

    /// Waits until all is done that had come to these lanes at `then` (`now`), as long as some of it gets done within `patience`, and no
    /// longer than `most`. False: it is not.
    pub fn wait(&self, keys: &[Key], then: u64, patience: Duration, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut keys = keys.to_vec();
        let (mut owed, mut since) = (usize::MAX, Instant::now());
        let mut state = self.0.state.lock();
        loop {
            let mut now = 0;
            keys.retain(|key| {
                let n = state.owed(*key, then);
                now += n;
                n > 0
            });
            if now == 0 {
                return true;
            }
            if now < owed {
                (owed, since) = (now, Instant::now());
            }
            let end = end.min(since + patience);
            if Instant::now() >= end || state.run.is_none() {
                return false;
            }
            let look = Instant::now() + LOOK;
            self.0.done.wait_until(&mut state, end);
            // A look costs as much as there are lanes.
            while keys.len() > 64 && Instant::now() < look.min(end) {
                self.0.done.wait_until(&mut state, look.min(end));
            }
        }
    }

    /// Starts a thread that is missing, since none could be started when it was wanted. To be called from time to time.
    pub fn tick(&self) {
        self.0.call(&mut self.0.state.lock());
    }
}

impl<T: Send + 'static> Shared<T> {
    /// Sees to it that a thread takes the work that there is.
    fn call(self: &Arc<Self>, state: &mut State<T>) {
        let wanted = state.wanted(&self.limits);
        if wanted > 0 {
            self.work.notify_one();
        }
        // Without one the next call tries again.
        if wanted > state.idle && state.threads < self.limits.threads {
            let _ = self.start_thread(state);
        }
    }

    fn start_thread(self: &Arc<Self>, state: &mut State<T>) -> std::io::Result<()> {
        let shared = self.clone();
        // It is not waited for: a task may hold it until the connection ends.
        std::thread::Builder::new()
            .name("fuse-notify".into())
            .spawn(move || shared.work())?;
        state.threads += 1;
        state.idle += 1;
        Ok(())
    }

    /// A thread.
    fn work(&self) {
        let mut state = self.state.lock();
        let mut run = state.run.clone();
        loop {
            let Some((key, entry)) = state.take(&self.limits) else {
                let open = state.run.is_some();
                let late = open && self.work.wait_for(&mut state, IDLE).timed_out();
                if (late || !open) && state.wanted(&self.limits) == 0 {
                    state.threads -= 1;
                    state.idle -= 1;
                    return;
                }
                continue;
            };
            state.idle -= 1;
            if let Some(newer) = &state.run {
                run = Some(newer.clone());
            }
            drop(state);
            let Entry {
                user, weight, task, ..
            } = entry;
            if let Some(run) = &run {
                // A bug there stops the volume; who waits for a lane is not to be held by it.
                let _ = catch_unwind(AssertUnwindSafe(|| run(task)));
            }
            state = self.state.lock();
            state.finish(key, user, weight);
            state.idle += 1;
            self.done.notify_all();
        }
    }
}

impl<T> State<T> {
    /// May this user have one more task under way?
    fn may(&self, user: &User, limits: &Limits) -> bool {
        let common = limits.threads - limits.reserve;
        self.busy < common || user.running < limits.little && self.busy < limits.threads
    }

    /// Lanes that can be worked at now.
    fn wanted(&self, limits: &Limits) -> usize {
        let users = self.users.values().filter(|u| self.may(u, limits));
        let wanted: usize = users.map(|u| u.wants(limits)).sum();
        wanted.min(limits.threads - self.busy)
    }

    /// The next task, which is under way from here on.
    fn take(&mut self, limits: &Limits) -> Option<(Key, Entry<T>)> {
        let served = self.served;
        let candidates = self
            .users
            .iter()
            .filter(|(_, u)| u.wants(limits) > 0 && self.may(u, limits));
        // Of those with as few under way, the next one by number.
        let user = candidates.min_by_key(|(uid, u)| (u.running, **uid <= served, **uid));
        let uid = *user?.0;
        self.served = uid;
        let user = self.users.get_mut(&uid)?;
        let held = user.running_held < limits.held && !user.held.is_empty();
        let few = 2 * user.running_held <= user.running;
        let key = match user.stores.pop_front() {
            Some(key) => key,
            None if held && (few || user.inodes.is_empty()) => user.held.pop_front()?,
            None => user.inodes.pop_front()?,
        };
        user.running += 1;
        user.running_held += usize::from(key.can_be_held());
        user.running_stores += usize::from(matches!(key, Key::Stores(_)));
        self.busy += 1;
        let lane = self.lanes.get_mut(&key)?;
        let entry = lane.waiting.pop_front()?;
        lane.running = Some(entry.number);
        Some((key, entry))
    }

    fn finish(&mut self, key: Key, uid: u32, weight: usize) {
        self.busy -= 1;
        if let Some(user) = self.users.get_mut(&uid) {
            user.running -= 1;
            user.running_held -= usize::from(key.can_be_held());
            user.running_stores -= usize::from(matches!(key, Key::Stores(_)));
            user.tasks -= 1;
            user.weight -= weight;
            if user.tasks == 0 {
                self.users.remove(&uid);
            }
        }
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        lane.running = None;
        match lane.waiting.front().map(|next| next.user) {
            Some(next) => {
                let user = self.users.entry(next).or_default();
                user.ready(key).push_back(key);
            }
            None => drop(self.lanes.remove(&key)),
        }
        if self.lanes.is_empty() && self.lanes.capacity() > KEPT {
            self.lanes = HashMap::new();
        }
    }

    /// Tasks of a lane, up to that number, that are not done.
    fn owed(&self, key: Key, upto: u64) -> usize {
        let Some(lane) = self.lanes.get(&key) else {
            return 0;
        };
        let running = lane.running.is_some_and(|n| n <= upto);
        usize::from(running) + lane.waiting.partition_point(|e| e.number <= upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(60);
    const FEW: Limits = Limits {
        threads: 8,
        reserve: 2,
        little: 1,
        share: 4,
        held: 2,
        stores: 1,
    };

    /// Says what it is when it begins, and ends when it is told so.
    struct Task {
        name: u32,
        hold: Option<Receiver<()>>,
    }

    fn lanes() -> (Lanes<Task>, Receiver<u32>) {
        let (says, said) = channel();
        let lanes = Lanes::new(FEW);
        let run = move |task: Task| {
            let _ = says.send(task.name);
            if let Some(hold) = task.hold {
                let _ = hold.recv();
            }
        };
        lanes.start(run).unwrap();
        (lanes, said)
    }

    fn quick(name: u32) -> Task {
        Task { name, hold: None }
    }

    /// A task that does not end before its other half is dropped.
    fn held(name: u32) -> (Task, Sender<()>) {
        let (free, hold) = channel();
        let hold = Some(hold);
        (Task { name, hold }, free)
    }

    fn add(lanes: &Lanes<Task>, key: Key, user: u32, task: Task) {
        assert!(lanes.add(key, user, 1, task).is_ok());
    }

    fn all_done(lanes: &Lanes<Task>, keys: &[Key]) -> bool {
        lanes.wait(keys, lanes.now(), LONG, LONG)
    }

    #[test]
    fn a_lane_keeps_its_order() {
        let (lanes, said) = lanes();
        let (first, free) = held(0);
        add(&lanes, Key::Inode(1), 7, first);
        (1..100).for_each(|n| add(&lanes, Key::Inode(1), n % 3, quick(n)));
        assert_eq!(said.recv_timeout(LONG), Ok(0));
        assert!(!lanes.wait(
            &[Key::Inode(1)],
            lanes.now(),
            Duration::from_millis(10),
            LONG
        ));
        drop(free);
        assert!(all_done(&lanes, &[Key::Inode(1)]));
        assert!(said.try_iter().eq(1..100));
    }

    /// Whatever he does: the others' work is done, that of his own pages too, and he holds no more than his share.
    #[test]
    fn a_user_whose_work_is_stuck_holds_his_share() {
        let (lanes, said) = lanes();
        let mut frees = Vec::new();
        let key = |n| match n % 2 {
            0 => Key::Names(n),
            _ => Key::Listing(n),
        };
        for n in 0..100 {
            let (task, free) = held(n);
            add(&lanes, key(n), 7, task);
            frees.push(free);
        }
        for n in 0..FEW.held as u32 {
            assert_eq!(said.recv_timeout(LONG), Ok(n));
        }
        add(&lanes, Key::Inode(1000), 7, quick(1000));
        assert!(all_done(&lanes, &[Key::Inode(1000)]));
        // Nor do pages that are held up take what stores need.
        let (task, free) = held(1001);
        add(&lanes, Key::Inode(1001), 7, task);
        frees.push(free);
        while said.recv_timeout(LONG) != Ok(1001) {}
        add(&lanes, Key::Inode(1002), 7, quick(1002));
        add(&lanes, Key::Stores(1001), 7, quick(1003));
        assert!(all_done(&lanes, &[Key::Stores(1001)]));
        assert_eq!(lanes.waiting(Key::Inode(1002)), 1, "it waits for its turn");
        for n in 0..20 {
            let (key, other) = (Key::Names(2000 + n), 8 + n % 2);
            add(&lanes, key, other, quick(2000 + n));
            assert!(all_done(&lanes, &[key]), "another's");
        }
        assert_eq!(said.try_iter().filter(|n| *n < 1000).count(), 0);
        assert_eq!(lanes.weight(7), 102);
        drop(frees);
        let inodes = [1001, 1002].map(Key::Inode);
        let all: Vec<_> = (0..100).map(key).chain(inodes).collect();
        assert!(all_done(&lanes, &all));
        assert_eq!(lanes.weight(7), 0);
    }

    /// Several users together leave a reserve for who has nothing under way. The third of these may have to draw on it himself, where the
    /// others came with all of theirs before he did; a fourth would take the rest.
    #[test]
    fn there_is_a_reserve() {
        let (lanes, said) = lanes();
        let mut frees = Vec::new();
        for user in 1..=3 {
            for n in 0..4 {
                let (task, free) = held(user);
                add(&lanes, Key::Inode(100 * user + n), user, task);
                frees.push(free);
            }
        }
        // Whoever came first may have had several by then.
        let mut seen = Vec::new();
        while !(1..=3).all(|user| seen.contains(&user)) {
            seen.push(said.recv_timeout(LONG).expect("all of them are served"));
        }
        add(&lanes, Key::Names(9), 9, quick(9));
        assert!(all_done(&lanes, &[Key::Names(9)]));
        drop(frees);
    }

    #[test]
    fn threads_end_when_there_is_nothing_to_do() {
        let (lanes, _said) = lanes();
        let mut frees = Vec::new();
        for n in 0..3 {
            let (task, free) = held(n);
            add(&lanes, Key::Inode(n), 7, task);
            frees.push(free);
        }
        let threads = || lanes.0.state.lock().threads;
        assert!(threads() >= 3);
        drop(frees);
        let end = Instant::now() + LONG;
        while threads() > 0 {
            assert!(Instant::now() < end, "{} threads stay", threads());
            std::thread::sleep(Duration::from_millis(20));
        }
        // And come back.
        add(&lanes, Key::Inode(1), 7, quick(1));
        assert!(all_done(&lanes, &[Key::Inode(1)]));
        assert!(lanes.0.state.lock().users.is_empty());
    }

    #[test]
    fn what_is_there_at_the_end_is_done() {
        let (lanes, said) = lanes();
        let (task, free) = held(0);
        add(&lanes, Key::Inode(1), 7, task);
        (1..9).for_each(|n| add(&lanes, Key::Inode(1), 7, quick(n)));
        assert_eq!(said.recv_timeout(LONG), Ok(0));
        lanes.stop();
        assert!(lanes.add(Key::Inode(2), 7, 1, quick(9)).is_err());
        drop(free);
        (1..9).for_each(|n| assert_eq!(said.recv_timeout(LONG), Ok(n)));
    }

    #[test]
    fn tasks_join_those_that_wait() {
        let (lanes, said) = lanes();
        let (task, free) = held(0);
        add(&lanes, Key::Inode(1), 7, task);
        assert_eq!(said.recv_timeout(LONG), Ok(0));
        let rename = |task: &mut Task| {
            task.name += 10;
            true
        };
        assert!(
            !lanes.join(Key::Inode(1), rename),
            "what is under way joins nothing"
        );
        add(&lanes, Key::Inode(1), 7, quick(1));
        assert!(lanes.join(Key::Inode(1), rename));
        assert_eq!(lanes.waiting(Key::Inode(1)), 1);
        drop(free);
        assert_eq!(said.recv_timeout(LONG), Ok(11));
    }
}
