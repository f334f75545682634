//! The durable watermark: each frame says exactly what earlier flushes have covered, whoever asked for them (L8 of the log).
use ccfs_crash::config::config;
use ccfs_crash::drive::Driver;
use ccfs_crash::generate::{Generator, Mix};
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::run::{Run, Source, mount, root_context};
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_crash::watermarks::Watermarks;
use ccfs_disks::SimDevice;
use ccfs_engine::{Options, ROOT_INO, Volume, WriteFlags};
use ccfs_testkit::Rng;
use std::sync::Arc;
use std::time::Duration;

const SEEDS: u64 = 120;
const BACKGROUND_SEEDS: u64 = 25;
/// Sync calls of another stream until all that is written must have been found so. Far more than it takes.
const ROUNDS_MAX: u32 = 500;
/// And how many there are in any case.
const ROUNDS_MIN: u32 = 5;

/// Streams with barriers, atomic groups, failure-atomic files, ignored and other sync calls, intervals and checkpoints.
fn work(seed: u64) -> (Setting, Mix) {
    let mut rng = Rng::new(seed);
    let streams = 2 + rng.below(4) as usize;
    let volume: &&str = rng.pick(&["1k", "4k", "tiny"]);
    let setting = Setting {
        streams,
        gather: *rng.pick(&[1, 1, 2, 5]),
        ordered: rng.chance(20),
        dirty_limit: *rng.pick(&[16 << 20, 128 << 10]),
        ..Setting::new(config(volume).unwrap())
    };
    let mix = Mix {
        streams,
        own_percent: 80,
        sync_percent: *rng.pick(&[20, 40]),
        tick_percent: *rng.pick(&[0, 5, 10]),
        barrier_percent: *rng.pick(&[30, 60, 90]),
        ignore_percent: *rng.pick(&[0, 30]),
        group_percent: *rng.pick(&[0, 0, 10]),
        atomic_file_percent: *rng.pick(&[0, 0, 15]),
        ..Mix::default()
    };
    (setting, mix)
}

#[test]
fn each_frame_says_what_flushes_have_covered() {
    let mut vouched = 0;
    for seed in 0..SEEDS {
        let (setting, mix) = work(seed);
        let run = Run::record(setting, Source::Random(seed, mix, 100));
        let run = run.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let watermarks = Watermarks::of(&run.dev);
        let right = watermarks.check(true);
        right.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        vouched += watermarks.durable_before(usize::MAX);
    }
    assert!(vouched > SEEDS * 5, "{vouched} durable transactions");
}

/// The same with the engine's own threads. Nobody syncs again what was done; one stream that has nothing to do with it goes on with
/// sync calls, whose flushes make durable what was written, whoever wrote it.
#[test]
fn flushes_of_one_stream_vouch_for_all() {
    for seed in 0..BACKGROUND_SEEDS {
        if let Err(e) = vouched_in_the_end(seed) {
            panic!("seed {seed}: {e}");
        }
    }
}

fn vouched_in_the_end(seed: u64) -> Result<(), String> {
    let (setting, mix) = work(seed);
    let dev = Arc::new(SimDevice::new(&image::base(setting.config)?));
    let options = Options {
        background: true,
        commit_interval: Duration::from_secs(3600),
        ..setting.options()
    };
    let vol = mount(dev.clone(), options)?;
    let base = observe(&vol)?;
    let mut driver = Driver::new(vol.clone(), Some(dev.clone()), &base, setting.streams);
    let mut generator = Generator::new(seed, mix, FIRST_NODE);
    for _ in 0..60 {
        let (stream, action) = generator.next(&driver.tree);
        driver.act(stream, &action)?;
    }
    driver.abort_groups()?;
    let done = settle(&vol, &dev);
    vol.shutdown();
    done?;
    Watermarks::of(&dev).check(false)
}

/// Syncs a file of a stream of its own until its frames vouch for all that was committed before.
fn settle(vol: &Volume, dev: &SimDevice) -> Result<(), String> {
    let cx = root_context(vol);
    let file = vol.mknod(&cx, ROOT_INO, b"of nobody else", 0o100_644, 0);
    let file = file.map_err(|e| e.to_string())?.ino;
    let mut newest = None;
    for round in 0..ROUNDS_MAX {
        vol.write(&cx, file, 0, b"content", WriteFlags::default())
            .and_then(|_| vol.fsync(&cx, file, false))
            .map_err(|e| e.to_string())?;
        newest = Watermarks::of(dev).newest();
        if round >= ROUNDS_MIN && newest.is_some_and(|(id, watermark)| watermark + 1 == id) {
            return Ok(());
        }
        // The thread that orders what barriers closed may not have had its turn.
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("the newest id and what it vouches for: {newest:?}"))
}
