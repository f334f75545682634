//! A short campaign (promises C9 and C10); `make faults` runs the long one.
use ccfs_crash::config::config;
use ccfs_faults::table::Table;
use ccfs_faults::{Outcome, flips, host, inject};

fn no_violation(table: &Table) {
    assert!(table.wrong.is_empty(), "{}", table.wrong.join("\n\n"));
}

#[test]
fn a_failing_device_stops_the_volume_and_loses_nothing() {
    let mut table = Table::default();
    inject::campaign(&mut table, 40..46, 15);
    no_violation(&table);
    for (fault, ..) in inject::KINDS {
        assert!(table.injected(fault) > 5, "{fault}\n{}", table.markdown());
    }
    // What a write or a flush has not done is known to nobody: the volume must not go on.
    for fault in [
        "all writes fail",
        "one flush fails",
        "all flushes fail",
        "host disk full",
    ] {
        assert_eq!(
            table.sum(fault, &Outcome::Stopped),
            table.injected(fault),
            "{}",
            table.markdown()
        );
    }
    let failed = table.sum("all reads fail", &Outcome::Failed);
    assert!(failed > 0, "{}", table.markdown());
}

#[test]
fn flipped_bits_of_a_volume_at_rest_are_found_or_harmless() {
    let mut table = Table::default();
    for (name, seed) in [("1k", 50), ("4k", 51), ("128", 52)] {
        flips::campaign_at_rest(&mut table, config(name).unwrap(), seed, 10);
    }
    flips::campaign_at_rest(&mut table, config("ext3").unwrap(), 53, 10);
    no_violation(&table);
    let rows = [
        "super block",
        "group descriptors",
        "block bitmap",
        "inode bitmap",
        "inode table",
        "extent block",
        "directory block",
        "attribute block",
    ];
    for row in rows {
        let fault = format!("bit flip at rest: {row}");
        assert!(
            table.injected(&fault) >= 10,
            "{fault}\n{}",
            table.markdown()
        );
    }
    // These are read whole, and their checksums cover nearly all of their bytes.
    for row in ["extent block", "directory block", "attribute block"] {
        let fault = format!("bit flip at rest: {row}");
        let found = table.sum(&fault, &Outcome::Detected) + table.sum(&fault, &Outcome::Latent);
        assert!(
            found * 10 >= table.injected(&fault) * 7,
            "{}",
            table.markdown()
        );
    }
}

#[test]
fn flipped_bits_of_a_crashed_volume_never_show_another_tree() {
    let mut table = Table::default();
    for (name, seed) in [("1k", 60), ("4k", 61), ("tiny", 62), ("1k", 1)] {
        flips::campaign_log(&mut table, config(name).unwrap(), seed, 4, 30);
    }
    no_violation(&table);
    assert!(table.injected("bit flip in a crashed volume") > 300);
    assert!(
        table.sum("bit flip in a crashed volume", &Outcome::Detected) > 50,
        "{}",
        table.markdown()
    );
}

#[test]
fn a_host_that_runs_full_stops_the_volume_and_loses_nothing() {
    let mut table = Table::default();
    host::campaign(&mut table, 3);
    for why in &table.skipped {
        println!("skipped: {why}");
    }
    no_violation(&table);
}
