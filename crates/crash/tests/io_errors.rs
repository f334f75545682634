//! Device errors at every point of a workload (promise C9): the volume stops with EIO and never panics; what a mount of the
//! medium shows afterwards is legal.
use ccfs_crash::drive::{Driver, Ended};
use ccfs_crash::generate::{Action, Generator, Mix};
use ccfs_crash::image::{self, CONFIGS};
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::*;
use ccfs_crash::rng::Rng;
use ccfs_crash::run::{FIRST_NODE, Setting, any_outcome, guarded, mount};
use ccfs_device::{Device, Plan, SimDevice};
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Write(u64),
    Flush(u64),
    Read(u64),
    Vanish(usize),
}

fn plan(fault: Fault, seed: u64) -> Plan {
    let mut plan = Plan {
        seed,
        ..Plan::default()
    };
    match fault {
        Fault::Write(n) => plan.fail_writes.push(n),
        Fault::Flush(n) => plan.fail_flushes.push(n),
        Fault::Read(n) => plan.fail_reads.push(n),
        Fault::Vanish(n) => plan.vanish_at = Some(n),
    }
    plan
}

/// Runs a workload with a fault after the mount. Gives whether the volume stopped.
fn run(seed: u64, fault: Option<Fault>) -> Result<(bool, ccfs_device::Counters), String> {
    let config = &CONFIGS[(seed % 3) as usize];
    let setting = Setting {
        streams: 3,
        cache_bytes: 64 << 10,
        ..Setting::new(config)
    };
    let dev = Arc::new(SimDevice::new(&image::base(config)?));
    let vol = mount(dev.clone(), setting.options())?;
    let base = observe(&vol)?;
    if let Some(fault) = fault {
        dev.set_plan(match plan(fault, seed) {
            Plan {
                vanish_at: Some(n),
                seed,
                ..
            } => Plan {
                vanish_at: Some(n + dev.events()),
                seed,
                ..Plan::default()
            },
            plan => plan,
        });
    }
    let before = dev.counters();
    let mut driver = Driver::new(vol, Some(dev.clone()), &base, 3);
    let mix = Mix {
        sync_percent: 20,
        tick_percent: 8,
        ..Mix::default()
    };
    let mut generator = Generator::new(seed, mix, FIRST_NODE);
    let mut stopped = false;
    // A discard that fails leaves nothing in doubt: it stops its caller only.
    let mut trimming = false;
    for _ in 0..120 {
        let (stream, action) = generator.next(&driver.tree);
        trimming = action == Action::Trim;
        match driver.act(stream, &action) {
            Ok(Ended::Stopped) => {
                stopped = true;
                break;
            }
            Ok(_) => {}
            // After an error every request may fail with it; what the driver reads in between may too.
            Err(e)
                if fault.is_some()
                    && (e.contains("Input/output error") || e.contains("device error")) =>
            {
                stopped = true;
                break;
            }
            Err(e) => return Err(e),
        }
    }
    if stopped
        && !trimming
        && matches!(fault, Some(Fault::Write(_) | Fault::Flush(_)))
        && driver.vol.syncfs(&context(&driver)).is_ok()
    {
        return Err("syncfs succeeds after a write error".into());
    }
    let counters = dev.counters();
    let used = ccfs_device::Counters {
        writes: counters.writes - before.writes,
        flushes: counters.flushes - before.flushes,
        reads: counters.reads - before.reads,
        ..counters
    };
    let unmounted = driver.vol.unmount().is_ok();
    judge_media(setting, &dev, driver, base, seed, unmounted)?;
    Ok((stopped, used))
}

fn context(driver: &Driver) -> ccfs_engine::Context {
    let stream = driver.vol.new_stream();
    ccfs_engine::Context {
        stream,
        uid: 0,
        gid: 0,
        umask: 0,
        ignore_fsync: false,
        privileged: true,
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
    for _ in 0..4 {
        let outcome = any_outcome(&mut rng, dev.unflushed(at));
        let vol = mount(Arc::new(dev.crash_image(at, &outcome)), setting.options())?;
        let seen = observe(&vol)?;
        vol.shutdown();
        judge(&an, &Crash { accepted, synced }, &seen).map_err(|v| format!("{outcome:?}: {v}"))?;
        if let (true, Some(d)) = (unmounted, tree.difference(&seen, false)) {
            return Err(format!("unmount succeeded, but {d}"));
        }
    }
    Ok(())
}

fn faults(
    make: impl Fn(u64) -> Fault,
    count: impl Fn(&ccfs_device::Counters) -> u64,
    must_stop: bool,
) {
    for seed in 0..6 {
        let (_, used) = guarded(|| run(seed, None)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let total = count(&used);
        let step = (total / 40).max(1);
        let mut stops = 0;
        let mut n = seed % step;
        while n < total {
            let fault = make(n);
            match guarded(|| run(seed, Some(fault))) {
                Ok((stopped, _)) => stops += u64::from(stopped),
                Err(e) => panic!("seed {seed}, {fault:?}: {e}"),
            }
            n += step;
        }
        assert!(
            !must_stop || stops > 0,
            "seed {seed}: no fault had an effect"
        );
    }
}

#[test]
fn failing_writes() {
    faults(Fault::Write, |c| c.writes, true);
}

#[test]
fn failing_flushes() {
    faults(Fault::Flush, |c| c.flushes, true);
}

#[test]
fn failing_reads() {
    faults(Fault::Read, |c| c.reads, false);
}

#[test]
fn vanishing_device() {
    faults(
        |n| Fault::Vanish(n as usize),
        |c| c.writes + c.flushes,
        true,
    );
}
