//! Every personality at least as fast as fuse2fs on equal images (short; the goals are measured elsewhere).
use ccfs_bench::personalities::{Plan, run};
use ccfs_bench::{report, workload};
use ccfs_tests::harness::Fs;

#[test]
fn no_personality_below_fuse2fs() {
    if !Fs::Ccfs.ready("personalities") || !Fs::Fuse2fs.ready("personalities") {
        return;
    }
    let plan = Plan {
        personalities: workload::ALL.to_vec(),
        systems: vec![Fs::Ccfs, Fs::Fuse2fs, Fs::Ext4],
        seconds: 2.0,
        scale: 0.01,
        rounds: 1,
        seed: 1,
        loop_devices: true,
    };
    let cells = run(&plan, &mut |_| ());
    print!("{}", report::table(&cells));
    let below = |c: &&ccfs_bench::personalities::Cell| {
        c.fs == "ccfs" && c.ratio_to_fuse2fs.is_some_and(|r| r < 1.0)
    };
    let slow: Vec<_> = cells.iter().filter(below).map(|c| c.personality).collect();
    assert!(slow.is_empty(), "slower than fuse2fs: {slow:?}");
}
