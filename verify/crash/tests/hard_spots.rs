//! One directed sequence per known hard spot of parallel commits in ext4's structures, and the classic sequences.
use ccfs_crash::explore::{Effort, explore_source};
use ccfs_crash::run::Source;
use ccfs_crash::spots::spots;

/// Explores the sequence of that number, or without a number that title, on its volumes.
fn check(number: u32, title: &str) {
    let spot = spots()
        .into_iter()
        .find(|s| s.number == number && s.title.contains(title))
        .expect("there is such a sequence");
    for volume in spot.volumes {
        let effort = Effort {
            subsets_max: 8,
            directed: true,
            random: 6,
            torn: 4,
            deep_every: if number == 28 { 2 } else { 40 },
            states_max: 200,
            seed: 28,
            mount: number == 26,
            ..Effort::default()
        };
        let source = Source::Text(spot.text.clone());
        if let Err(e) = explore_source(spot.setting(volume), source, &effort) {
            panic!("{}, volume {volume}: {e}", spot.title);
        }
    }
}

macro_rules! numbered {
    ($($name:ident $number:literal)*) => { $(#[test] fn $name() { check($number, ""); })* };
}
numbered! {
    hard_spot_01 1 hard_spot_02 2 hard_spot_03 3 hard_spot_04 4 hard_spot_05 5 hard_spot_06 6 hard_spot_07 7 hard_spot_08 8
    hard_spot_09 9 hard_spot_10 10 hard_spot_11 11 hard_spot_12 12 hard_spot_13 13 hard_spot_14 14 hard_spot_15 15
    hard_spot_16 16 hard_spot_17 17 hard_spot_18 18 hard_spot_19 19 hard_spot_20 20 hard_spot_21 21 hard_spot_22 22
    hard_spot_23 23 hard_spot_24 24 hard_spot_25 25 hard_spot_26 26 hard_spot_27 27 hard_spot_28 28
}

macro_rules! classic {
    ($($name:ident $title:literal)*) => { $(#[test] fn $name() { check(0, $title); })* };
}
classic! {
    create_write_rename "create write rename"
    append_and_overwrite_under_commit "append and overwrite under commit"
    log_wraps "log wraps"
    large_transactions "large transactions"
    rename_over_an_open_file "rename over an open file"
    moves_below_moved_directories "moves to below what another stream moved"
    moves_on_nobodys_way "moves of directories that lie on nobody's way"
    an_entry_depends_on_its_directorys_flags "Flags of a directory"
    a_mode_depends_on_the_access_list "A directory's mode"
    a_whiteout_inherits "Whiteouts inherit"
    bits_copies_and_special_files "Bits that changes"
    a_shared_block_of_attributes "A block of attributes that three"
    the_end_of_a_shared_block "The last two that share"
    block_maps_beside_extents "Files with block maps beside"
    a_linear_directory_gets_its_tree "A linear directory"
    deep_trees_come_and_go "deep trees come and go"
    groups_over_several_files "A group over several files"
    groups_in_anothers_way "What another stream does to an open group"
    ordered_groups "Groups that are ordered"
}

#[test]
fn every_hard_spot_has_a_sequence() {
    let numbers: Vec<u32> = spots()
        .iter()
        .map(|s| s.number)
        .filter(|n| *n > 0)
        .collect();
    assert_eq!(numbers, (1..=28).collect::<Vec<_>>());
}
