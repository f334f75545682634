//! Small cases, exhaustively: twelve writes that no flush covers, and each of the 4,096 subsets of them.
use ccfs_crash::config::config;
use ccfs_crash::explore::{Effort, explore};
use ccfs_crash::run::{Run, Source};
use ccfs_crash::setting::Setting;

/// Writes of which all subsets are tried.
const WRITES: usize = 12;

fn check(text: &str) {
    let setting = Setting {
        unmount: false,
        ..Setting::new(config("1k").unwrap())
    };
    let run = Run::record(setting, Source::Text(text.into())).unwrap();
    let events = 0..=run.dev.events();
    let most = events.map(|at| run.dev.unflushed(at)).max();
    assert!(most >= Some(WRITES), "only {most:?} unflushed writes");
    let effort = Effort {
        subsets_max: WRITES,
        random: 0,
        torn: 0,
        deep_every: 400,
        after_syncs: 1,
        states_max: usize::MAX / 2,
        ..Effort::default()
    };
    let seen = explore(&run, &effort).unwrap_or_else(|e| panic!("{e}"));
    // Writes differ from each other, so nearly all subsets are states of their own.
    let masks = seen.outcomes.get("mask").copied().unwrap_or(0);
    assert!(masks > 1 << (WRITES - 1), "{masks} states of subsets");
}

/// One stream: each transaction needs the one before it.
#[test]
fn of_a_chain() {
    check(
        "A create f; A write f 0 3000; A syncfs; A write f 0 2048; A fbarrier f; A append f 1024; A fbarrier f; A rename f g; \
         A fbarrier g; A write g 1024 1024; A setxattr g user.a 30; A fbarrier g; A truncate g 500; A fbarrier g; A append g 2048; \
         A fbarrier g; A create h; A fbarrier h; A write h 0 1024; A fbarrier h",
    );
}

/// Two, which come in each other's way now and then.
#[test]
fn of_two_streams() {
    check(
        "A mkdir d; A create d/f; A create e; A syncfs; A write d/f 0 1024; B write e 0 1024; A fbarrier d/f; B fbarrier e; \
         B create d/g; B fbarrier d/g; A unlink d/f; A fbarrier d; B rename e d/f; B fbarrier d/f; A append d/f 1024; A fbarrier d/f; \
         B chmod d 700; B fbarrier d; A create d/h; A fbarrier d/h; B link d/h i; B fbarrier i",
    );
}
