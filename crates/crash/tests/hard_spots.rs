//! One directed sequence per known hard spot of parallel commits in ext4's structures, and the classic sequences.
use ccfs_crash::explore::{Effort, explore_source};
use ccfs_crash::image::{CONFIGS, Config};
use ccfs_crash::run::{Setting, Source};

/// Explores a script on the two usual volumes.
fn spot(text: &str) {
    for config in &CONFIGS[..2] {
        spot_on(config, text);
    }
}

fn spot_on(config: &'static Config, text: &str) {
    explore(
        Setting {
            streams: 4,
            ..Setting::new(config)
        },
        text,
        600,
    );
}

fn explore(setting: Setting, text: &str, states_max: usize) {
    let effort = Effort {
        subsets_max: 8,
        directed: true,
        random: 6,
        torn: 4,
        deep_every: 40,
        states_max,
        seed: 28,
    };
    if let Err(e) = explore_source(setting, Source::Text(text.into()), &effort) {
        panic!("volume {}: {e}", setting.config.name);
    }
}

/// `line` with `#` replaced by each number of the range.
fn repeat(range: std::ops::Range<usize>, line: &str) -> String {
    range
        .map(|i| line.replace('#', &i.to_string()) + ";")
        .collect()
}

/// Block images with parallel commits: A's inode and B's lie in one block; B alone becomes durable.
#[test]
fn hard_spot_01() {
    spot(
        "A create a; A write a 0 100; B create b; B write b 0 100; B streamsync; A write a 100 100; B write b 100 100; B streamsync; A streamsync",
    );
}

/// Holes in the log: A's large transaction is torn, B's behind it had been synced.
#[test]
fn hard_spot_02() {
    spot(&format!(
        "{} A tick; B create b; B fsync b; {} A tick; B write b 0 100; B fsync b",
        repeat(0..30, "A create a#; A setxattr a# user.x 100"),
        repeat(0..30, "A write a# 0 600")
    ));
}

/// Bitmaps: A frees a bit, B sets its neighbour.
#[test]
fn hard_spot_03() {
    spot(
        "A create a; A write a 0 20000; B create b; B write b 0 20000; A syncfs; A unlink a; B append b 20000; B create c; B fsync b; B write c 0 4000; B fsync c",
    );
}

/// Counters: entries and subdirectories by two streams, checkpoints between.
#[test]
fn hard_spot_04() {
    spot(
        "A mkdir d; A syncfs; A mkdir d/a; B mkdir d/b; B streamsync; B checkpoint; A mkdir d/c; B rmdir d/b; B streamsync; B checkpoint; A rmdir d/a; A streamsync; B mkdir d/e; B checkpoint; B streamsync",
    );
}

/// Group initialisation: both streams take inodes from a group that nobody used.
#[test]
fn hard_spot_05() {
    spot_on(
        &CONFIGS[0],
        &format!(
            "{} A syncfs; {} B streamsync; {}",
            repeat(0..40, "A mkdir d#"),
            repeat(0..40, "A create d#/a; B create d#/b"),
            repeat(0..10, "A write d#/a 0 900; B unlink d#/b")
        ),
    );
}

/// Slots: B uses the rest of a slot whose front A took; a directory block that A added.
#[test]
fn hard_spot_06() {
    let long = "x".repeat(100);
    spot(&format!(
        "A mkdir d; A create d/{long}; A create d/z; A syncfs; A unlink d/{long}; A tick; A create d/a; B create d/bbbbbb; B fsync d; {} B create d/after; B streamsync",
        repeat(0..20, &format!("A create d/#{long}"))
    ));
}

/// A leaf of a hash tree splits while another stream's insertions into it are uncommitted.
#[test]
fn hard_spot_07() {
    let long = "y".repeat(120);
    spot(&format!(
        "A mkdir d; {} A syncfs; {} B streamsync; {} B streamsync; A tick",
        repeat(0..25, &format!("A create d/#{long}")),
        repeat(25..40, &format!("A create d/#{long}; B create d/b#{long}")),
        repeat(0..20, &format!("A unlink d/#{long}; B create d/c#{long}"))
    ));
}

/// A slot is freed and used again inside one transaction, then its leaf splits.
#[test]
fn hard_spot_08() {
    let long = "w".repeat(120);
    spot(&format!(
        "A mkdir d; {} A syncfs; {} {} B streamsync; A streamsync",
        repeat(0..16, &format!("A create d/#{long}")),
        repeat(0..8, &format!("A unlink d/#{long}; A create d/n#{long}")),
        repeat(0..12, &format!("B create d/b#{long}"))
    ));
}

/// rmdir by B of a directory that A emptied, also where A's changes cancel out.
#[test]
fn hard_spot_09() {
    spot(
        "A mkdir d; A create d/x; A syncfs; A unlink d/x; B rmdir d; B streamsync; A mkdir e; A syncfs; A create e/y; A unlink e/y; B rmdir e; B streamsync; A create z; A streamsync",
    );
}

/// Two names of one inode are removed by two streams.
#[test]
fn hard_spot_10() {
    spot(
        "A create a; A write a 0 5000; A link a b; A syncfs; A unlink a; B unlink b; B streamsync; B create c; B write c 0 5000; B fsync c; A create d; A streamsync",
    );
}

/// The last close comes before the unlink is committed.
#[test]
fn hard_spot_11() {
    spot(
        "A create a; A write a 0 30000; A syncfs; A open a %h; A unlink a; B create b; B write b 0 100; B fsync b; A close %h; B write b 100 30000; B fsync b; A tick; B create c; B write c 0 30000; B fsync c",
    );
}

/// Blocks are freed and used again in the next transaction, which writes them directly.
#[test]
fn hard_spot_12() {
    spot_on(
        &CONFIGS[2],
        "A create a; A write a 0 700000; A syncfs; A truncate a 0; A create b; A write b 0 700000; B create c; B write c 0 700000; B fsync c; A fsync b; B unlink c; B streamsync; A write a 0 700000; A fsync a",
    );
}

/// A directory block was in the log, is freed, and becomes file data.
#[test]
fn hard_spot_13() {
    let long = "v".repeat(150);
    spot_on(
        &CONFIGS[2],
        &format!(
            "A mkdir d; {} A syncfs; {} A rmdir d; A syncfs; B create f; B write f 0 900000; B fsync f; A checkpoint; B write f 0 5000; B fsync f",
            repeat(0..30, &format!("A create d/#{long}")),
            repeat(0..30, &format!("A unlink d/#{long}"))
        ),
    );
}

/// Data under a checksum in one record, overwritten or freed by a later one that is already home.
#[test]
fn hard_spot_14() {
    spot(
        "A create a; A write a 0 4096; A fsync a; A write a 0 100; B create b; B streamsync; A fsync a; A checkpoint; A write a 0 4096; A fsync a; A unlink a; A streamsync; B write b 0 4096; B fsync b; B checkpoint; A create c; A write c 0 4096; A fsync c; B fsync b",
    );
}

/// Checkpoint writes are torn at sectors.
#[test]
fn hard_spot_15() {
    spot(&format!(
        "{} A checkpoint; {} A checkpoint; {} A checkpoint; B create z; B streamsync",
        repeat(0..12, "A create a#; B create b#"),
        repeat(0..12, "A unlink a#; B setxattr b# user.q 50"),
        repeat(0..12, "B unlink b#")
    ));
}

/// The tail of the log: A is idle with an uncommitted change while B fills the log several times.
#[test]
fn hard_spot_16() {
    let setting = Setting {
        streams: 2,
        ..Setting::new(&CONFIGS[0])
    };
    let text = format!(
        "A create idle; A write idle 0 5000; {}",
        repeat(
            0..60,
            "B create f#; B write f# 0 30000; B write f# 100 20000; B fsync f#; B write f# 5 7000; B fsync f#; ?B unlink f#"
        )
    );
    explore(setting, &text, 500);
}

/// The log is full while an operation holds directory locks: nothing hangs, also with a small dirty limit.
#[test]
fn hard_spot_17() {
    let setting = Setting {
        streams: 3,
        dirty_limit: 64 << 10,
        cache_bytes: 256 << 10,
        ..Setting::new(&CONFIGS[0])
    };
    let text = format!(
        "A mkdir d; {} A syncfs; {} B streamsync",
        repeat(
            0..60,
            "A create d/a#; A setxattr d/a# user.x 300; B create d/b#; B write d/b# 0 9000"
        ),
        repeat(
            0..60,
            "C rename d/a# d/c#; A write d/b# 10 9000; C unlink d/c#"
        )
    );
    explore(setting, &text, 500);
}

/// A transaction is sealed but not allocated when the next one truncates.
#[test]
fn hard_spot_18() {
    spot(
        "A create a; A write a 0 50000; B link a b; A truncate a 1000; A append a 300; B fsync b; A write a 0 100; B chmod b 600; A truncate a 0; B fsync b; A fsync a",
    );
}

/// Appending to a partly filled block, a crash, and extension: lost bytes never come back.
#[test]
fn hard_spot_19() {
    spot(
        "A create a; A write a 0 700; A fsync a; A append a 2000; A tick; A truncate a 800; A truncate a 9000; A fsync a; A append a 10; A truncate a 300; B link a b; A truncate a 5000; B fsync b; A write a 6000 10; A fsync a",
    );
}

/// ENOSPC with space in uncommitted frees; a preallocated file on a full volume is overwritten.
#[test]
fn hard_spot_20() {
    spot_on(
        &CONFIGS[2],
        &format!(
            "A create p; A allocate p 0 300000; A create a; A write a 0 900000; A syncfs; {} A unlink a; B create b; B write b 0 900000; B fsync b; {} B fsync p",
            repeat(0..2, "A create x#; A write x# 0 400000"),
            repeat(0..20, "B write p #000 3000")
        ),
    );
}

/// Large attributes, shared or not, dropped by two streams.
#[test]
fn hard_spot_21() {
    spot(
        "A create a; A setxattr a user.big 600; B create b; B setxattr b user.big 600; A syncfs; A removexattr a user.big; B removexattr b user.big; B streamsync; A setxattr b user.big 500; B unlink b; B streamsync; A setxattr a user.c 600; A streamsync",
    );
}

/// Two renames that would make a loop without one another.
#[test]
fn hard_spot_22() {
    spot(
        "A mkdir p; A mkdir p/q; A syncfs; A rename p/q q; B rename p q/p; B streamsync; A rename q/p p; C rename q p/q; C streamsync; A create z; A streamsync",
    );
}

/// Times that go backwards, entry changes around them.
#[test]
fn hard_spot_23() {
    spot(
        "A mkdir d; A create d/f; A syncfs; A create d/a; A utimes d 1000; B create d/b; B streamsync; A utimes d 500; B unlink d/b; A utimes d/f 7; B streamsync; B setxattr d user.t 4; A streamsync",
    );
}

/// sync over many streams.
#[test]
fn hard_spot_24() {
    let text = format!(
        "{} A syncfs; {} B syncfs; {}",
        repeat(0..4, "# create f#; # write f# 0 2000"),
        repeat(0..4, "# append f# 3000"),
        repeat(0..4, "# truncate f# 10")
    );
    spot(&text);
}

/// Two streams write one page; each version stays with its transaction.
#[test]
fn hard_spot_25() {
    spot(
        "A create a; A write a 0 4096; B write a 100 100; A write a 200 100; B write a 300 100; B fsync a; A write a 0 4096; B truncate a 50; A append a 4000; A tick; B write a 60 8; B fsync a",
    );
}

/// The feature bit: crash at every event of mount and unmount.
#[test]
fn hard_spot_26() {
    for config in CONFIGS {
        explore(
            Setting {
                streams: 1,
                ..Setting::new(config)
            },
            "",
            800,
        );
        explore(
            Setting {
                streams: 1,
                ..Setting::new(config)
            },
            "A create a; A write a 0 3000",
            800,
        );
    }
}

/// Volumes with block maps, small inodes, without checksums.
#[test]
fn hard_spot_27() {
    for config in CONFIGS {
        spot_on(
            config,
            "A create a; A write a 0 30000; A write a 400000 3000; A syncfs; A punch a 5000 9000; B create b; B write b 0 20000; B fsync b; A truncate a 20000; A allocate a 0 60000; A fsync a; B zero b 100 9000; B unlink a; B streamsync; A mkdir d; A symlink d/s 100; A setxattr b user.a 30",
        );
    }
}

/// Files that were open without a name at the crash; recovery is killed, and killed again.
#[test]
fn hard_spot_28() {
    let text = "A create a; A write a 0 50000; A open a %a; A tmpfile %t; A write %t 0 30000; A syncfs; A unlink a; B create b; B fsync b; A write %a 100 9000; A streamsync; A link %t t; A append t 3000; B tmpfile %u; B write %u 0 9000; B streamsync; A close %a; A tick; B close %u; A fsync t";
    for config in &CONFIGS[..3] {
        let effort = Effort {
            directed: true,
            torn: 4,
            deep_every: 2,
            states_max: 200,
            seed: 28,
            ..Effort::default()
        };
        let setting = Setting {
            streams: 2,
            ..Setting::new(config)
        };
        if let Err(e) = explore_source(setting, Source::Text(text.into()), &effort) {
            panic!("{e}");
        }
    }
}

#[test]
fn create_write_rename() {
    spot(
        "A create f; A write f 0 3000; A syncfs; A create t; A write t 0 5000; A rename t f; A create t; A write t 0 700; A rename t f; B fsync f; A create t; A write t 0 9000; A fsync t; A rename t f",
    );
}

#[test]
fn append_and_overwrite_under_commit() {
    spot(
        "A create f; A append f 1000; A tick; A append f 1000; A write f 500 1000; A tick; A append f 5000; A fsync f; A write f 0 7000; A tick; A write f 3000 200; A write f 100 20; A fdatasync f; A append f 1",
    );
}

#[test]
fn log_wraps() {
    let text = repeat(
        0..90,
        "A create f#; A write f# 0 9000; A fsync f#; B write f# 100 9000; B fsync f#; A unlink f#; A streamsync",
    );
    explore(
        Setting {
            streams: 2,
            ..Setting::new(&CONFIGS[0])
        },
        &text,
        600,
    );
}

#[test]
fn large_transactions() {
    let text = format!(
        "{} A syncfs; {} B streamsync; A checkpoint",
        repeat(0..400, "A create f#; A setxattr f# user.name 200"),
        repeat(0..400, "B rename f# g#; A chmod g# 600")
    );
    explore(
        Setting {
            streams: 2,
            ..Setting::new(&CONFIGS[0])
        },
        &text,
        300,
    );
}

#[test]
fn rename_over_an_open_file() {
    spot(
        "A create f; A write f 0 20000; A syncfs; A open f %f; A create g; A write g 0 100; A rename g f; B create b; B streamsync; A write %f 0 5000; A fsync f; A close %f; A tick; B write b 0 20000; B fsync b",
    );
}

#[test]
fn deep_trees_come_and_go() {
    spot(
        "A mkdir a; A mkdir a/b; A mkdir a/b/c; A create a/b/c/f; A syncfs; A rename a/b/c c; B create c/g; A rmdir a/b; A rmdir a; B fsync c/g; A mkdir a; A rename c a/c; B unlink a/c/f; B unlink a/c/g; C rmdir a/c; C streamsync",
    );
}
