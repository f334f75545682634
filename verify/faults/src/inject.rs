//! Device errors at every point of a workload: the volume goes on, or stops with EIO; a mount of the medium afterwards shows what a
//! power cut at that point may leave.
use crate::device::{Fault, Faulty};
use crate::table::Table;
use crate::{Outcome, case};
use ccfs_crash::config::CONFIGS;
use ccfs_crash::drive::{Driver, Ended};
use ccfs_crash::generate::{Action, Generator, Mix};
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::*;
use ccfs_crash::run::{any_outcome, mount, root_context};
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_crash::watermarks::Watermarks;
use ccfs_device::Device;
use ccfs_disks::{Plan, SimDevice};
use ccfs_engine::Options;
use ccfs_testkit::Rng;
use std::sync::Arc;

/// What is injected; the number counts from the end of the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// One of them fails; what of a write reaches the medium is left to the seed.
    OneRead(u64),
    OneWrite(u64),
    OneFlush(u64),
    /// The device vanishes: nothing works any more.
    Vanish(usize),
    Lasting(Fault),
}

/// What a run used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
}

/// One kind of fault: its name, how often it can happen in a run, the fault at one of these points.
type Kind = (&'static str, fn(&Used) -> u64, fn(u64) -> Injected);

pub const KINDS: [Kind; 10] = [
    ("one read fails", |u| u.reads, Injected::OneRead),
    (
        "one read is short",
        |u| u.reads,
        |n| Injected::Lasting(Fault::ShortRead(n)),
    ),
    (
        "all reads fail from one on",
        |u| u.reads,
        |n| Injected::Lasting(Fault::Reads(n)),
    ),
    (
        "all reads are short from one on",
        |u| u.reads,
        |n| Injected::Lasting(Fault::ShortReads(n)),
    ),
    ("one write fails", |u| u.writes, Injected::OneWrite),
    (
        "all writes fail from one on",
        |u| u.writes,
        |n| Injected::Lasting(Fault::Writes(n)),
    ),
    (
        "host disk full from a write on",
        |u| u.writes,
        |n| Injected::Lasting(Fault::HostFull(n)),
    ),
    ("one flush fails", |u| u.flushes, Injected::OneFlush),
    (
        "all flushes fail from one on",
        |u| u.flushes,
        |n| Injected::Lasting(Fault::Flushes(n)),
    ),
    (
        "the device vanishes",
        |u| u.writes + u.flushes,
        |n| Injected::Vanish(n as usize),
    ),
];

/// Runs every kind of fault at up to `points` points of the workloads of the seeds.
pub fn campaign(table: &mut Table, seeds: std::ops::Range<u64>, points: u64) {
    for seed in seeds {
        let used = match run(seed, None) {
            Ok((_, used)) => used,
            Err(e) => {
                table.count("none", &format!("seed {seed}"), Outcome::Wrong(e));
                continue;
            }
        };
        for (name, count, make) in KINDS {
            let total = count(&used);
            let step = (total / points).max(1);
            let mut n = seed % step;
            while n < total {
                let injected = make(n);
                let outcome = case(move || run(seed, Some(injected)).map(|(outcome, _)| outcome));
                table.count(name, &format!("seed {seed}, {injected:?}"), outcome);
                n += step;
            }
        }
    }
}

fn inject(dev: &SimDevice, faulty: &Faulty, injected: Injected, seed: u64) {
    let mut plan = Plan {
        seed,
        ..Plan::default()
    };
    match injected {
        Injected::OneRead(n) => plan.fail_reads.push(n),
        Injected::OneWrite(n) => plan.fail_writes.push(n),
        Injected::OneFlush(n) => plan.fail_flushes.push(n),
        Injected::Vanish(n) => plan.vanish_at = Some(n + dev.events()),
        Injected::Lasting(fault) => return faulty.set(Some(fault)),
    }
    dev.set_plan(plan);
}

/// Runs a workload with a fault after the mount. An error is a violation.
fn run(seed: u64, injected: Option<Injected>) -> Result<(Outcome, Used), String> {
    let config = &CONFIGS[(seed % 3) as usize];
    let setting = Setting {
        streams: 3,
        // Nothing beside what is asked for is read, or much.
        cache_bytes: [64 << 10, 1 << 20][(seed / 3 % 2) as usize],
        ..Setting::new(config)
    };
    // Every fourth workload has the daemon's own threads at work.
    let options = Options {
        background: seed % 4 == 3,
        ..setting.options()
    };
    let dev = Arc::new(SimDevice::new(&image::base(config)?));
    let faulty = Arc::new(Faulty::new(dev.clone()));
    let vol = mount(faulty.clone(), options)?;
    let base = observe(&vol)?;
    let before = dev.counters();
    if let Some(injected) = injected {
        inject(&dev, &faulty, injected, seed);
    }
    let mut driver = Driver::new(vol, Some(dev.clone()), &base, setting.streams);
    let failed = work(&mut driver, seed, injected.is_some())?;
    let counters = dev.counters();
    let used = Used {
        reads: counters.reads - before.reads,
        writes: counters.writes - before.writes,
        flushes: counters.flushes - before.flushes,
    };
    let stopped = !driver.vol.status().stopped.is_empty();
    if stopped && driver.vol.syncfs(&root_context(&driver.vol)).is_ok() {
        return Err("syncfs succeeds on a stopped volume".into());
    }
    let unmounted = driver.vol.unmount().is_ok();
    let stopped = !driver.vol.status().stopped.is_empty();
    if stopped && unmounted {
        return Err("a stopped volume was unmounted as if nothing had happened".into());
    }
    driver.vol.shutdown();
    judge_media(setting, &dev, driver, base, seed, unmounted)?;
    Watermarks::of(&dev).check(false)?;
    let outcome = match (stopped, failed || !unmounted) {
        (true, _) => Outcome::Stopped,
        (false, true) => Outcome::Failed,
        (false, false) => Outcome::Nothing,
    };
    Ok((outcome, used))
}

/// Performs the seed's workload until a call fails by the fault. True: one did.
fn work(driver: &mut Driver, seed: u64, faulty: bool) -> Result<bool, String> {
    let mix = Mix {
        sync_percent: 25,
        tick_percent: 8,
        // Every second workload has more than sync calls.
        barrier_percent: [0, 40][(seed % 2) as usize],
        ignore_percent: [0, 10][(seed % 2) as usize],
        ..Mix::default()
    };
    let mut generator = Generator::new(seed, mix, FIRST_NODE);
    for _ in 0..120 {
        let (stream, action) = generator.next(&driver.tree);
        let result = driver.act(stream, &action);
        match result {
            Ok(Ended::Stopped) if faulty => return Ok(true),
            Ok(Ended::Stopped) => return Err("the volume stopped without a fault".into()),
            Ok(_) => {}
            // What the driver reads to compare may fail as well; a trim's discard fails alone.
            Err(e) if faulty && is_device_error(&e) => return Ok(true),
            Err(e) => return Err(format!("{}: {e}", describe(&action))),
        }
    }
    Ok(false)
}

fn is_device_error(text: &str) -> bool {
    [
        "Input/output error",
        "device error",
        "No space left",
        "end of file",
        "Read-only",
    ]
    .iter()
    .any(|known| text.contains(known))
}

fn describe(action: &Action) -> String {
    match action {
        Action::Op(op) => op.to_string(),
        other => format!("{other:?}"),
    }
}

/// Judges the media that the end of the run may leave.
fn judge_media(
    setting: Setting,
    dev: &SimDevice,
    driver: Driver,
    base: Tree,
    seed: u64,
    unmounted: bool,
) -> Result<(), String> {
    let tree = driver.tree.clone();
    let (accepted, synced) = (driver.history.ops.len(), driver.history.syncs.len());
    let an = Analysis::new(base, driver.history, false)
        .map_err(|(i, e)| format!("operation {i}: {e}"))?;
    let mut rng = Rng::new(seed);
    let at = dev.events();
    for _ in 0..3 {
        let outcome = any_outcome(&mut rng, dev.unflushed(at));
        let vol = mount(Arc::new(dev.crash_image(at, &outcome)), setting.options())?;
        let seen = observe(&vol)?;
        vol.shutdown();
        judge(&an, &Crash { accepted, synced }, &seen).map_err(|v| format!("{outcome:?}: {v}"))?;
        if let (true, Some(d)) = (unmounted, tree.difference(&seen, false)) {
            return Err(format!("the unmount succeeded, but {d}"));
        }
    }
    Ok(())
}
