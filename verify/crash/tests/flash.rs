//! The promises on a device that commits by itself: directed sequences and random workloads on transactional flash, judged as ever.
use ccfs_crash::explore::{Effort, explore, workload};
use ccfs_crash::run::{Run, Source};
use ccfs_crash::setting::Setting;
use ccfs_crash::spots::spots;

/// Explores few states of each: the standard exploration has random workloads on flash as well, `ccfs-crash-explore --flash` all.
fn effort(states: usize, seed: u64) -> Effort {
    Effort {
        subsets_max: 4,
        random: 3,
        directed: true,
        torn: 2,
        sectors: true,
        deep_every: 11,
        fsck_every: 13,
        damage_every: 17,
        states_max: states,
        seed,
        ..Effort::default()
    }
}

#[test]
fn directed_sequences() {
    let mut states = 0;
    for spot in spots() {
        let Some(volume) = spot.volumes.first() else {
            continue;
        };
        let setting = Setting {
            flash: true,
            ..spot.setting(volume)
        };
        let done = Run::record(setting, Source::Text(spot.text.clone()))
            .and_then(|run| explore(&run, &effort(12, u64::from(spot.number))));
        states += done
            .unwrap_or_else(|e| panic!("{}: {e}", spot.title))
            .states();
    }
    assert!(states > 300, "{states} states");
}

#[test]
fn random_workloads() {
    let mut states = 0;
    for seed in 7000..7006 {
        let (setting, mix, length) = workload(seed);
        let setting = Setting {
            flash: true,
            ..setting
        };
        let run = Run::record(setting, Source::Random(seed, mix, length.min(100)));
        let done = run.and_then(|run| explore(&run, &effort(60, seed)));
        states += done.unwrap_or_else(|e| panic!("seed {seed}: {e}")).states();
    }
    assert!(states > 150, "{states} states");
}
