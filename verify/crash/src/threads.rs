//! Streams on threads of their own: parallel commits, racing sync calls and background threads under power cuts.
//!
//! Operations are performed one at a time, by who has the turn, so that their acceptance order is known. Everything that waits
//! for the device (sync calls, commits by interval, checkpoints) runs without it, all at once: such a call promises what had been
//! accepted when it began, from the device event on that was next when it had returned. A call that has not returned promises
//! nothing. How calls on atomic groups and failure-atomic files get their place is told in `waiting_calls.rs`. Seeds replay what each thread wants to do, not the interleaving; a failure therefore saves its crash image.
use crate::config::CONFIGS;
use crate::coverage::Coverage;
use crate::drive::atomic_files::AtomicFileCall;
use crate::drive::request::Held;
use crate::drive::{Driver, Ended, is_stop};
use crate::explore::{Effort, explore};
use crate::flash;
use crate::generate::{Action, Generator, Mix};
use crate::image;
use crate::observe::observe;
use crate::oracle::*;
use crate::run::{Run, guarded, mount};
use crate::setting::{FIRST_NODE, Setting};
use crate::token::Token;
use ccfs_device::{Counters, Device, Ticket, Write};
use ccfs_disks::{Plan, SimDevice};
use ccfs_engine::{Options, Volume};
use ccfs_testkit::Rng;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest time that a run may take, after which it is called hung.
pub const HANG: Duration = Duration::from_secs(60);

/// What happens to the volume while the threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    None,
    /// Power is cut when so many events were recorded after the mount.
    PowerCut(usize),
    /// `Volume::shutdown` is called then.
    Shutdown(usize),
    /// The write of that number (from the mount) fails, ...
    FailWrite(u64),
    /// ... or the flush.
    FailFlush(u64),
}

/// A workload of one thread per stream.
#[derive(Clone, Debug)]
pub struct Work {
    pub setting: Setting,
    pub mix: Mix,
    /// Actions of each thread.
    pub length: usize,
    /// Threads in each stream.
    pub threads_per_stream: usize,
    /// Longest time that the device goes on with a flush after what it covers is settled.
    pub flush: Duration,
    /// Least piece of paced writes, bytes.
    pub piece: u64,
    /// How long an operation waits for another stream's atomic group, which then is taken back.
    pub wait: Duration,
    /// With the engine's own threads, committing in this interval.
    pub background: Option<Duration>,
    pub disturbance: Disturbance,
    pub seed: u64,
}

/// The workload that a seed stands for, undisturbed.
pub fn work(seed: u64) -> Work {
    let mut rng = Rng::new(seed ^ 0x7472_6564);
    let config = match rng.below(8) {
        0..3 => &CONFIGS[0],
        3..5 => &CONFIGS[1],
        5 => &CONFIGS[2],
        _ => rng.pick(CONFIGS),
    };
    let streams = 2 + rng.below(5) as usize;
    // Small volumes are filled up.
    let full = config.size_mib < 8 && rng.chance(70);
    let mix = Mix {
        streams,
        own_percent: *rng.pick(&[0, 30, 60, 90]),
        names: *rng.pick(&[3, 8, 8, 40]),
        depth: 1 + rng.below(3),
        write_max: *rng.pick(&[300, 6 << 10, 6 << 10, 20 << 10, 100 << 10]),
        big_percent: *rng.pick(&[0, 3, 10]),
        size_max: *rng.pick(&[10 << 10, 64 << 10, 64 << 10, 512 << 10]),
        sync_percent: *rng.pick(&[4, 15, 30, 50]),
        tick_percent: *rng.pick(&[0, 3, 6, 15]),
        ignore_percent: *rng.pick(&[0, 0, 30]),
        barrier_percent: *rng.pick(&[0, 0, 40, 80]),
        ..Mix::default()
    };
    let mix = if full {
        Mix {
            names: 40,
            write_max: 200 << 10,
            big_percent: 10,
            size_max: 1 << 20,
            ..mix
        }
    } else {
        mix
    };
    let setting = Setting {
        dirty_limit: *rng.pick(&[16 << 20, 1 << 20, 128 << 10]),
        cache_bytes: *rng.pick(&[4 << 20, 256 << 10]),
        unmount: rng.chance(50),
        streams,
        gather: *rng.pick(&[1, 1, 3]),
        ..Setting::new(config)
    };
    Work {
        setting,
        mix,
        length: *rng.pick(&[10, 30, 60, 120]),
        background: rng.chance(50).then(|| Duration::from_millis(20)),
        threads_per_stream: *rng.pick(&[1, 1, 2]),
        flush: Duration::from_micros(*rng.pick(&[0, 0, 300, 1500])),
        piece: *rng.pick(&[64 << 10, 8 << 10, 1 << 10]),
        wait: Duration::ZERO,
        disturbance: Disturbance::None,
        seed,
    }
}

/// As `work`, with much to meet: background threads, many sync calls, slow flushes, little that counts as much.
pub fn crowded(seed: u64) -> Work {
    let mut work = work(seed);
    let mut rng = Rng::new(seed ^ 0x63_726f_7764);
    work.mix.sync_percent = *rng.pick(&[30, 50]);
    work.mix.barrier_percent = *rng.pick(&[0, 40]);
    work.mix.ignore_percent = 0;
    work.background = Some(Duration::from_millis(20));
    work.flush = Duration::from_micros(1500);
    if rng.chance(50) {
        // Calls of one stream that come while another of its calls writes.
        (
            work.setting.streams,
            work.mix.streams,
            work.threads_per_stream,
        ) = (2, 2, 4);
    }
    work.piece = 1 << 10;
    work
}

/// As `work` or `crowded`, with atomic groups, failure-atomic files, or both.
pub fn grouped(seed: u64) -> Work {
    let mut rng = Rng::new(seed ^ 0x67_726f_7570);
    let mut work = match rng.chance(50) {
        true => work(seed),
        false => crowded(seed),
    };
    (work.mix.group_percent, work.mix.atomic_file_percent) =
        *rng.pick(&[(12, 0), (20, 0), (0, 25), (8, 15), (15, 10)]);
    work.wait = Duration::from_micros(*rng.pick(&[0, 0, 500, 20_000]));
    work
}

/// A device that takes a while, by chance, so that what can overlap does.
struct Slow {
    dev: Arc<SimDevice>,
    state: AtomicU64,
    flush: Duration,
}

impl Slow {
    fn pause(&self) {
        let state = self.state.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::new(state);
        match rng.below(8) {
            0 | 1 => std::thread::sleep(Duration::from_micros(20 + rng.below(250))),
            2 | 3 => std::thread::yield_now(),
            _ => {}
        }
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.dev.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read(offset, buf)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.pause();
        self.dev.submit(writes)
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.pause();
        self.dev.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        self.pause();
        let done = self.dev.flush();
        self.pause();
        // What is written from here on it does not cover.
        if !self.flush.is_zero() {
            let mut rng = Rng::new(self.state.fetch_add(1, Ordering::Relaxed));
            let us = rng.below(self.flush.as_micros() as u64);
            std::thread::sleep(Duration::from_micros(us));
        }
        done
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dev.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.dev.counters()
    }
    fn read_only(&self) -> bool {
        self.dev.read_only()
    }
}

/// What the threads of a run share.
pub(crate) struct Shared {
    pub(crate) vol: Arc<Volume>,
    pub(crate) dev: Arc<SimDevice>,
    pub(crate) token: Arc<Token>,
    pub(crate) driver: Mutex<Driver>,
    /// With atomic groups or failure-atomic files.
    atomic: bool,
    /// What each thread is doing, for the report of a hang.
    doing: Vec<Mutex<String>>,
    pub(crate) stopped: AtomicBool,
    error: Mutex<Option<String>>,
    left: AtomicUsize,
}

/// A panic elsewhere is reported by whom it happened to.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn work(self: &Arc<Self>, work: &Work, thread: usize) -> Result<(), String> {
        let stream = thread % work.setting.streams;
        let first = FIRST_NODE + ((thread as u64 + 1) << 32);
        let mut generator = Generator::new(work.seed << 8 | thread as u64, work.mix.clone(), first);
        for _ in 0..work.length {
            if self.stopped.load(Ordering::Relaxed) {
                break;
            }
            if !self.step(&mut generator, stream, thread)? {
                self.stopped.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// One action. False: the volume has stopped.
    fn step(
        self: &Arc<Self>,
        generator: &mut Generator,
        stream: usize,
        thread: usize,
    ) -> Result<bool, String> {
        let _turn = self.token.take();
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (action, group) = {
            let mut driver = lock(&self.driver);
            // Who waits now may have ended one group and met another.
            driver.settle_groups()?;
            let action = generator.next_of(&driver.tree, stream);
            (action, driver.groups.get(&stream).copied())
        };
        *lock(&self.doing[thread]) = format!("{action:?}").chars().take(200).collect();
        let ended = match (&action, group) {
            (Action::Op(op), _) if self.atomic => self.operate(stream, op),
            (Action::GroupCommit { durable }, Some(group)) => self.commit(stream, group, *durable),
            _ => match self.files_call(stream, &action) {
                Some(call) => self.sync_files(call),
                None => self.perform(stream, &action),
            },
        };
        let goes_on = ended? != Ended::Stopped;
        if !goes_on {
            // Before anybody else gets the turn: what this operation did nobody knows, so nothing may be built on it.
            self.stopped.store(true, Ordering::Relaxed);
        }
        Ok(goes_on)
    }

    /// The action as a call on files that are open O_ATOMIC, or may be then.
    fn files_call(&self, stream: usize, action: &Action) -> Option<AtomicFileCall> {
        let driver = lock(&self.driver);
        let one = match action {
            Action::AtomicFileOpen(node) => return driver.opening(stream, *node),
            Action::Syncv(nodes) => {
                let open = nodes.iter().all(|n| driver.atomic_files.contains_key(n));
                return driver
                    .atomic_file_call(stream, nodes, action)
                    .filter(|_| open && !nodes.is_empty());
            }
            Action::Fsync { node, .. } | Action::IgnoredSync(node) if self.atomic => *node,
            _ => return None,
        };
        driver.atomic_file_call(stream, &[one], action)
    }

    /// What does not wait, and calls that wait for the device and change nothing.
    fn perform(&self, stream: usize, action: &Action) -> Result<Ended, String> {
        let mut driver = lock(&self.driver);
        let Some(call) = driver.sync_call(stream, action) else {
            return match action {
                Action::AtomicFileOpen(_) | Action::Syncv(_) => Ok(Ended::Refused),
                _ => driver.act(stream, action),
            };
        };
        // As the kernel does: who syncs a file holds it.
        let held = match action {
            Action::Fsync { node, .. } | Action::Barrier(node) | Action::IgnoredSync(node) => {
                driver.hold(&[*node])
            }
            _ => Held::default(),
        };
        let promise = call.sync.map(|sync| driver.promise(sync));
        drop(driver);
        self.token.give();
        let done = call.perform(&self.vol);
        let events = self.dev.events();
        self.token.retake();
        let mut driver = lock(&self.driver);
        driver.release(held);
        let kept = (done.is_ok() && !call.barrier).then_some(events);
        let ordered = promise.and_then(|promise| driver.promise_ends(promise, kept));
        match done {
            Ok(()) => {
                if let Some(ordered) = ordered.filter(|_| call.barrier) {
                    driver.ordered(ordered);
                }
                Ok(Ended::Accepted)
            }
            Err(e) if is_stop(&e) => Ok(Ended::Stopped),
            Err(e) => Err(format!("{action:?} failed: {e}")),
        }
    }

    /// Waits until so many events were recorded. False: the work ended before.
    fn wait_for(&self, event: usize) -> bool {
        while self.dev.events() < event {
            if self.left.load(Ordering::Relaxed) == 0 {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    fn disturb(&self, disturbance: Disturbance, mounted: usize) {
        match disturbance {
            Disturbance::PowerCut(after) if self.wait_for(mounted + after) => self.dev.power_cut(),
            Disturbance::Shutdown(after) if self.wait_for(mounted + after) => self.vol.shutdown(),
            _ => {}
        }
    }

    fn run(self: &Arc<Self>, work: &Work, mounted: usize) {
        std::thread::scope(|scope| {
            for thread in 0..work.setting.streams * work.threads_per_stream {
                scope.spawn(move || {
                    let done = guarded(|| self.work(work, thread));
                    if let Err(e) = done {
                        // After an error of the device whatever is asked may fail with it.
                        let injected = work.disturbance != Disturbance::None
                            && (e.contains("Input/output error") || e.contains("device error"));
                        self.stopped.store(true, Ordering::Relaxed);
                        if !injected {
                            lock(&self.error).get_or_insert(e);
                        }
                    }
                    *lock(&self.doing[thread]) = "ended".into();
                    self.left.fetch_sub(1, Ordering::Relaxed);
                });
            }
            self.disturb(work.disturbance, mounted);
        });
    }
}

/// Performs a workload on a fresh volume; a run that hangs is an error (and leaves its threads behind).
pub fn record(work: &Work) -> Result<Run, String> {
    let (send, receive) = mpsc::channel();
    let (start, watch) = mpsc::channel::<Arc<Shared>>();
    let mine = work.clone();
    let thread = std::thread::spawn(move || {
        let _ = send.send(guarded(|| perform(&mine, &start)));
    });
    match receive.recv_timeout(HANG) {
        Ok(run) => {
            let _ = thread.join();
            run
        }
        Err(RecvTimeoutError::Timeout) => {
            let doing = watch.try_recv().map_or(String::new(), |shared| {
                let all = shared.doing.iter().enumerate();
                all.map(|(i, d)| format!("\n  thread {i}: {}", lock(d)))
                    .collect()
            });
            Err(format!("hangs for {} s{doing}", HANG.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => Err("the run ended without a result".into()),
    }
}

fn perform(work: &Work, started: &mpsc::Sender<Arc<Shared>>) -> Result<Run, String> {
    let config = work.setting.config;
    let base = match work.setting.flash {
        true => flash::base(config)?,
        false => image::base(config)?,
    };
    let dev = Arc::new(SimDevice::new(&base));
    let options = Options {
        background: work.background.is_some(),
        commit_interval: work.background.unwrap_or(Duration::from_secs(5)),
        piece_min: work.piece,
        group_wait: work.wait,
        ..work.setting.options()
    };
    let slow = Arc::new(Slow {
        dev: dev.clone(),
        state: AtomicU64::new(work.seed << 32),
        flush: work.flush,
    });
    let vol = mount(flash::attach(&work.setting, slow)?, options)?;
    let done = perform_on(work, started, &dev, &vol);
    // Ends the background threads, which hold the volume.
    vol.shutdown();
    done
}

fn perform_on(
    work: &Work,
    started: &mpsc::Sender<Arc<Shared>>,
    dev: &Arc<SimDevice>,
    vol: &Arc<Volume>,
) -> Result<Run, String> {
    let base = observe(vol)?;
    let streams = work.setting.streams;
    let threads = streams * work.threads_per_stream;
    let mut plan = Plan {
        seed: work.seed,
        ..Plan::default()
    };
    match work.disturbance {
        Disturbance::FailWrite(n) => plan.fail_writes.push(n),
        Disturbance::FailFlush(n) => plan.fail_flushes.push(n),
        _ => {}
    }
    dev.set_plan(plan);
    let shared = Arc::new(Shared {
        vol: vol.clone(),
        dev: dev.clone(),
        token: Arc::default(),
        driver: Mutex::new(Driver::new(vol.clone(), Some(dev.clone()), &base, streams)),
        atomic: work.mix.group_percent + work.mix.atomic_file_percent > 0,
        doing: (0..threads).map(|_| Mutex::default()).collect(),
        stopped: AtomicBool::new(false),
        error: Mutex::default(),
        left: AtomicUsize::new(threads),
    });
    vol.listen_to_wait_points(Box::new(shared.token.clone().follow()));
    let _ = started.send(shared.clone());
    let mounted = dev.events();
    shared.run(work, mounted);
    if let Some(e) = lock(&shared.error).take() {
        return Err(e);
    }
    let quiet = work.disturbance == Disturbance::None;
    if quiet && shared.stopped.load(Ordering::Relaxed) {
        let reason = vol.status().stopped;
        return Err(format!(
            "the volume stopped without an injected error: {reason}"
        ));
    }
    let driver = &mut *lock(&shared.driver);
    if quiet && let Some(d) = driver.tree.difference(&observe(vol)?, true) {
        return Err(format!("before the unmount the tree is wrong: {d}"));
    }
    if work.setting.unmount {
        let sync = Sync {
            stream: 0,
            kind: SyncKind::Volume,
            after: driver.history.ops.len(),
        };
        match vol.unmount() {
            Ok(()) => driver.has_synced(sync),
            Err(e) if quiet || !is_stop(&e) => return Err(format!("unmount: {e}")),
            Err(_) => {}
        }
    }
    let mut history = std::mem::take(&mut driver.history);
    let mut returned: Vec<(usize, Sync)> = driver.synced.drain(..).zip(history.syncs).collect();
    returned.sort_by_key(|r| r.0);
    history.syncs = returned.iter().map(|r| r.1).collect();
    // The times of what was in progress when the volume stopped are not known.
    let mut setting = work.setting;
    let times = setting.config.times && !shared.stopped.load(Ordering::Relaxed);
    setting.unmount = false;
    let an = Analysis::new(base, history, times)
        .map_err(|(i, e)| format!("the model refuses operation {i}: {e}"))?;
    Ok(Run {
        setting,
        dev: dev.clone(),
        an,
        actions: Vec::new(),
        mounted,
        began: std::mem::take(&mut driver.began),
        synced: returned.into_iter().map(|r| r.0).collect(),
        no_space: driver.no_space,
        aborts: driver.aborts,
        conflicts: driver.conflicts,
        taken_back: driver.taken_back,
        marks: std::mem::take(&mut driver.marks),
        replays: false,
    })
}

/// Records a workload and checks its crash states.
pub fn explore_work(work: &Work, effort: &Effort) -> Result<Coverage, String> {
    let effort = Effort {
        seed: work.seed,
        ..*effort
    };
    let run = record(work).and_then(|run| explore(&run, &effort));
    run.map_err(|e| {
        format!(
            "seed {}, volume {}, {} streams of {} threads, gather {}, barriers {} %, wait {:?}, background {:?}, {:?}: {e}",
            work.seed,
            work.setting.config.name,
            work.setting.streams,
            work.threads_per_stream,
            work.setting.gather,
            work.mix.barrier_percent,
            work.wait,
            work.background,
            work.disturbance
        )
    })
}
