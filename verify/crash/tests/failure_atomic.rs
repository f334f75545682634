//! The test of the AdvFS paper for failure-atomic files: 400 power cuts at random points, and crash points planted at every step of the syncs.
//! `cargo test --release -p ccfs-crash --test failure_atomic -- --nocapture` prints what was tried.
use ccfs_crash::config::config;
use ccfs_crash::explore::{Effort, explore};
use ccfs_crash::generate::Mix;
use ccfs_crash::oracle::Op;
use ccfs_crash::run::{Depth, Run, Source, any_outcome};
use ccfs_crash::setting::Setting;
use ccfs_testkit::Rng;

const CUTS: u64 = 400;
const RUNS: u64 = 20;

fn setting(volume: &str, streams: usize) -> Setting {
    Setting {
        streams,
        ..Setting::new(config(volume).expect("a volume"))
    }
}

/// Syncs of O_ATOMIC files: of one, and of several together.
fn syncs(run: &Run) -> (usize, usize) {
    let files = |op: &Op| match op {
        Op::Publish { files } => files.len(),
        _ => 0,
    };
    let all: Vec<usize> = run.an.history.ops.iter().map(|a| files(&a.op)).collect();
    let count = |wanted: fn(usize) -> bool| all.iter().filter(|n| wanted(**n)).count();
    (count(|n| n == 1), count(|n| n > 1))
}

#[test]
fn power_cuts_at_random_points() {
    let mut rng = Rng::new(2015);
    let (mut single, mut together, mut taken_back) = (0, 0, 0);
    for seed in 0..RUNS {
        let setting = setting(["1k", "4k"][seed as usize % 2], 3);
        let mix = Mix {
            streams: 3,
            names: 4,
            atomic_file_percent: 35,
            ..Mix::default()
        };
        let run = Run::record(setting, Source::Random(seed, mix, 150));
        let run = run.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let (one, several) = syncs(&run);
        (single, together) = (single + one, together + several);
        taken_back += run.taken_back;
        for n in 0..CUTS / RUNS {
            let at = rng.below(run.dev.events() as u64 + 1) as usize;
            let outcome = any_outcome(&mut rng, run.dev.unflushed(at));
            let depth = if n % 5 == 0 { Depth::Fsck } else { Depth::Read };
            if let Err(e) = run.check(at, &outcome, depth) {
                panic!("seed {seed}: {e}");
            }
        }
    }
    println!(
        "{CUTS} power cuts; {single} syncs of one file, {together} of several, {taken_back} closes that took changes back"
    );
    assert!(single >= 50 && together >= 10 && taken_back >= 20);
}

/// Every write and flush of a run is a crash point, with every way in which what was under way can be kept, lost or torn.
#[test]
fn planted_crash_points() {
    let text = "A create a; A write a 0 9000; A create b; A write b 0 5000; A create c; A syncfs; \
                A atomic a; A atomic b; A atomic c; A write a 100 3000; A truncate b 700; A write c 0 20000; A syncv a b c; \
                A write a 5000 9000; B fsync a; A write b 0 6000; A checkpoint; A write c 3000 100; A syncv c b; A write a 0 10; A release a; \
                A write b 0 10; A punch c 0 8000; A fsync c; A checkpoint; A write c 0 500; A syncv b c";
    for volume in ["1k", "4k"] {
        let run = Run::record(setting(volume, 2), Source::Text(text.into()));
        let run = run.unwrap_or_else(|e| panic!("{volume}: {e}"));
        let effort = Effort {
            subsets_max: 6,
            random: 0,
            directed: true,
            torn: 2,
            after_syncs: 1,
            states_max: 700,
            ..Effort::default()
        };
        let coverage = explore(&run, &effort).unwrap_or_else(|e| panic!("{volume}: {e}"));
        let points = run.dev.events();
        println!(
            "{volume}: {points} crash points, {} distinct states",
            coverage.states()
        );
        assert!(points >= 48 && coverage.states() >= 60);
    }
}
