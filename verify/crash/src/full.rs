//! Workloads on volumes that are full but for little.
use crate::config::NEARLY_FULL;
use crate::generate::Mix;
use crate::setting::Setting;
use crate::threads::{Disturbance, Work};
use ccfs_testkit::Rng;
use std::time::Duration;

/// The workload that a seed stands for, one action after the other: setting, mix, number of actions.
pub fn workload(seed: u64) -> (Setting, Mix, usize) {
    let mut rng = Rng::new(seed ^ 0x6272_696d);
    let config = &NEARLY_FULL[usize::from(rng.chance(25))];
    let streams = 2 + rng.below(2) as usize;
    let mix = Mix {
        streams,
        own_percent: *rng.pick(&[0, 30, 60]),
        names: *rng.pick(&[12, 40]),
        write_max: *rng.pick(&[20 << 10, 100 << 10, 200 << 10]),
        big_percent: *rng.pick(&[0, 10, 30]),
        size_max: *rng.pick(&[128 << 10, 512 << 10]),
        sync_percent: *rng.pick(&[0, 4, 12]),
        tick_percent: *rng.pick(&[3, 6, 15]),
        pages: rng.chance(70),
        ..Mix::default()
    };
    let setting = Setting {
        dirty_limit: *rng.pick(&[1 << 20, 1 << 20, 256 << 10]),
        unmount: rng.chance(50),
        streams,
        ..Setting::new(config)
    };
    (setting, mix, *rng.pick(&[60, 150, 300]))
}

/// The same by threads, with the engine's own in the background.
pub fn work(seed: u64) -> Work {
    let (setting, mix, length) = workload(seed);
    let mut rng = Rng::new(seed ^ 0x6d69_7262);
    Work {
        setting,
        mix,
        length: length / setting.streams,
        threads_per_stream: 1,
        flush: Duration::from_micros(*rng.pick(&[0, 300, 1500])),
        piece: *rng.pick(&[64 << 10, 8 << 10]),
        wait: Duration::ZERO,
        background: Some(Duration::from_millis(*rng.pick(&[5, 20, 100]))),
        disturbance: Disturbance::None,
        seed,
    }
}
