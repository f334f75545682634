//! Bytes that reach the device: streams are independent (C4), and work that became pointless is not done.
use ccfs_tests::counters::{self, Case, MB, table3};
use ccfs_tests::harness::{Fs, not_on_flash};

fn ready(test: &str) -> bool {
    Fs::under_test() == Fs::Ccfs && Fs::Ccfs.ready(test)
}

/// For what must stay in memory: on flash the dirty limit is half of what the device commits at once.
fn ready_for_100_mb(test: &str) -> bool {
    ready(test) && !not_on_flash(test, "it keeps 100 MB and more in memory")
}

#[test]
fn table3_of_the_paper_in_bytes() {
    if !ready_for_100_mb("table3_of_the_paper_in_bytes") {
        return;
    }
    let about_100 = 98 * MB..=102 * MB;
    for case in [Case::Append, Case::Truncate, Case::Overwrite] {
        let (one, two) = (table3(case, 1), table3(case, 2));
        println!("{case:?}: one stream {one:?}; two streams {two:?}");
        assert!(
            about_100.contains(&one.fsync),
            "{case:?}, one stream: the fsync wrote {}",
            one.fsync
        );
        assert!(
            two.fsync <= MB / 10,
            "{case:?}, two streams: the fsync wrote {}",
            two.fsync
        );
        let (total_one, total_two) = match case {
            Case::Append => (about_100.clone(), about_100.clone()),
            Case::Truncate => (about_100.clone(), 0..=MB / 2),
            Case::Overwrite => (200 * MB..=302 * MB, about_100.clone()),
        };
        assert!(
            total_one.contains(&one.total),
            "{case:?}, one stream: {} in all",
            one.total
        );
        assert!(
            total_two.contains(&two.total),
            "{case:?}, two streams: {} in all",
            two.total
        );
    }
}

#[test]
fn fsync_beside_200_mb_of_another_stream() {
    if ready_for_100_mb("fsync_beside_200_mb_of_another_stream") {
        let written = counters::independence();
        assert!(written <= MB / 10, "{written} bytes");
    }
}

#[test]
fn file_that_dies_young_is_not_written() {
    if ready_for_100_mb("file_that_dies_young_is_not_written") {
        let written = counters::short_lived_file();
        assert!(written < MB, "{written} bytes");
    }
}

#[test]
fn appended_data_is_not_logged() {
    if ready("log_of_an_append") {
        let logged = counters::log_of_an_append();
        assert!(logged < MB, "{logged} bytes");
    }
}

#[test]
fn overwritten_block_is_logged_once() {
    if ready("overwrites_of_a_block") {
        let logged = counters::overwrites_of_a_block();
        assert!(logged < 32 << 10, "{logged} bytes");
    }
}

#[test]
fn interleaved_appenders_stay_contiguous() {
    if ready("extents_of_appenders") {
        let extents = counters::extents_of_appenders();
        assert!(extents <= 4, "{extents} extents");
    }
}
