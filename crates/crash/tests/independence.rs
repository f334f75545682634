//! Promise C4: a sync call of stream B writes none of stream A's operations unless they are tied, whatever disk blocks they share.
use ccfs_crash::drive::Driver;
use ccfs_crash::generate::Action;
use ccfs_crash::image::{self, CONFIGS};
use ccfs_crash::observe::observe;
use ccfs_crash::run::{FIRST_NODE, Run, Setting, Source, mount};
use ccfs_crash::script::Script;
use ccfs_device::{Device, Outcome, SimDevice};
use std::sync::Arc;

/// Performs `before` (synced), then `text`, whose last line is a sync call of B; of A's operations exactly `survive` of those
/// after `before` are in the log then.
fn check(before: &str, text: &str, survive: u32) {
    for config in &CONFIGS[..2] {
        let setting = Setting {
            unmount: false,
            streams: 3,
            ..Setting::new(config)
        };
        let run =
            Run::record(setting, Source::Text(format!("{before}; A syncfs; {text}"))).unwrap();
        let cut = run.survivors(run.dev.events(), &Outcome::All).unwrap();
        let first = run.an.history.syncs[0].after;
        let synced = run.an.placed[..first]
            .iter()
            .filter(|p| p.stream == 0)
            .count() as u32;
        assert_eq!(
            cut[0],
            synced + survive,
            "volume {}: {before}; {text}",
            config.name
        );
    }
}

#[test]
fn one_directory_and_one_inode_table_block() {
    check(
        "A create x",
        "A create a; A write a 0 3000; B create b; B write b 0 3000; B fsync b",
        0,
    );
    check(
        "A create x",
        "A create a; A unlink x; B create b; B streamsync",
        0,
    );
}

#[test]
fn frees_and_allocations_in_one_bitmap() {
    check(
        "A create x; A write x 0 60000; B create y",
        "A truncate x 0; A create a; B write y 0 90000; B fsync y",
        0,
    );
}

#[test]
fn directories_and_counts() {
    check(
        "A mkdir d",
        "A mkdir d/a; A utimes d 5; B mkdir d/b; B fsync d/b",
        0,
    );
}

#[test]
fn growth_of_a_directory() {
    let long = "g".repeat(200);
    let fill: String = (0..40).map(|i| format!("A create d/{i}{long};")).collect();
    check(
        "A mkdir d",
        &format!("{fill} B create d/b; B create d/bb{long}; B fsync d/b"),
        0,
    );
}

#[test]
fn ties_take_the_prefix_and_no_more() {
    // Up to where B touched what A had changed; not what A did later.
    check(
        "A create f",
        "A create a; A write f 0 100; A create c; B write f 50 100; A create e; B fsync f",
        3,
    );
    check(
        "A mkdir d",
        "A create a; A chmod d 700; A create c; B create d/x; B fsync d/x",
        3,
    );
    check(
        "A mkdir d; A create d/x",
        "A unlink d/x; A create c; B rmdir d; B streamsync",
        2,
    );
}

#[test]
fn an_fsync_writes_little_while_another_stream_has_much() {
    let setting = Setting::new(&CONFIGS[7]);
    let dev = Arc::new(SimDevice::new(&image::base(setting.config).unwrap()));
    let vol = mount(dev.clone(), setting.options()).unwrap();
    let base = observe(&vol).unwrap();
    let mut driver = Driver::new(vol, None, &base, 2);
    let mut text = String::from("B create b; B write b 0 4096; A create a;");
    text.extend((0..12).map(|i| format!("A write a {} 1000000;", i * 1_000_000)));
    let mut script = Script::new(&text, FIRST_NODE);
    while let Some((stream, action)) = script.next(&driver.tree).unwrap() {
        driver.act(stream, &action).unwrap();
    }
    let before = dev.counters();
    let node = driver.tree.lookup(driver.tree.root, b"b").unwrap();
    driver
        .act(
            1,
            &Action::Fsync {
                node,
                data_only: false,
            },
        )
        .unwrap();
    let after = dev.counters();
    let written = after.written_bytes - before.written_bytes;
    assert!(written < 100 << 10, "{written} bytes");
    assert!(
        after.flushes - before.flushes <= 2,
        "{} flushes",
        after.flushes - before.flushes
    );
    driver.vol.shutdown();
}
