//! The operations without crashes: engine against model, with remounts and e2fsck. A million operations in all;
//! CCFS_CRASH_OPS sets another number, CCFS_CRASH_SEED another seed.
use ccfs_crash::config::CONFIGS;
use ccfs_crash::drive::{Driver, Ended};
use ccfs_crash::explore::remount_seed;
use ccfs_crash::generate::{Generator, Mix};
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::run::{guarded, mount};
use ccfs_crash::seeds::number;
use ccfs_crash::setting::{FIRST_NODE, Setting};
use std::sync::Arc;
use std::time::Duration;

/// `ops` actions on one volume, remounted eight times.
fn exercise(index: usize, ops: u64) -> Result<(), String> {
    let config = &CONFIGS[index];
    let setting = Setting::new(config);
    let seed = number("CCFS_CRASH_SEED", 1) + index as u64;
    let dev = Arc::new(image::base(config)?);
    let mut first_node = FIRST_NODE;
    for round in 0..8u64 {
        let mix = Mix {
            streams: 4,
            names: [6, 12, 30][round as usize % 3],
            depth: 4,
            wrong_percent: 5,
            sync_percent: 1,
            tick_percent: 1,
            size_max: 256 << 10,
            long_names: round % 2 == 1,
            rights_percent: if round % 3 == 1 { 10 } else { 0 },
            ..Mix::default()
        };
        let vol = mount(dev.clone(), setting.options())?;
        let base = observe(&vol)?;
        let mut driver = Driver::new(vol, None, &base, mix.streams);
        driver.keep = false;
        let mut generator = Generator::new(seed << 8 | round, mix, first_node);
        for n in 0..ops / 8 {
            let (stream, action) = generator.next(&driver.tree);
            // Who makes direct calls reads what he wrote from the engine's memory.
            if round % 2 == 1 && n % 100 == 0 {
                driver
                    .inos
                    .values()
                    .for_each(|ino| driver.vol.note_direct(*ino));
            }
            match driver.act(stream, &action) {
                Ok(Ended::Stopped) => {
                    return Err(format!("round {round}, action {n}: the volume stopped"));
                }
                Ok(_) => {}
                Err(e) => return Err(format!("round {round}, action {n}: {e}")),
            }
            if n % 5_000 == 0 {
                compare(&driver, true).map_err(|e| format!("round {round}, action {n}: {e}"))?;
            }
        }
        compare(&driver, true)?;
        driver.vol.unmount().map_err(|e| format!("unmount: {e}"))?;
        image::fsck(&dev).map_err(|e| format!("round {round}: {e}"))?;
        let vol = mount(dev.clone(), setting.options())?;
        let seen = observe(&vol)?;
        vol.unmount().map_err(|e| format!("unmount: {e}"))?;
        if let Some(d) = driver.tree.difference(&seen, config.times) {
            return Err(format!("round {round}, after remount: {d}"));
        }
        first_node += 1 << 32;
    }
    Ok(())
}

fn compare(driver: &Driver, times: bool) -> Result<(), String> {
    match driver.tree.difference(&observe(&driver.vol)?, times) {
        Some(d) => Err(d),
        None => Ok(()),
    }
}

fn run(index: usize) {
    let ops = number("CCFS_CRASH_OPS", 1_000_000) / CONFIGS.len() as u64;
    if let Err(e) = guarded(|| exercise(index, ops)) {
        panic!("volume {}: {e}", CONFIGS[index].name);
    }
}

/// Many short lives of a volume: what was done right before an unmount is not hidden by what came later.
#[test]
fn short_lives() {
    for seed in 0..number("CCFS_CRASH_LIVES", 800) {
        let config = &CONFIGS[seed as usize % CONFIGS.len()];
        let length = if seed % 5 == 0 { 300 } else { 40 };
        if let Err(e) = remount_seed(seed, config, length, Duration::from_secs(20)) {
            panic!("{e}");
        }
    }
}

macro_rules! volumes {
    ($($name:ident $index:literal)*) => { $(#[test] fn $name() { run($index); })* };
}
volumes! {
    exercise_1k 0 exercise_4k 1 exercise_tiny 2 exercise_2k 3 exercise_small_inodes 4 exercise_no_checksums 5
    exercise_ext3 6 exercise_large_log 7
}
