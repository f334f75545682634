//! A volume that grows: crashes at every event of it, in its recoveries, and in what comes behind it.
use ccfs_crash::coverage::Coverage;
use ccfs_crash::explore::{Effort, explore_into};
use ccfs_crash::run::{Run, Source};
use ccfs_crash::spots::growing;
use ccfs_crash::standard::{explore_place, first_places, growing_place};
use std::time::Duration;

/// States of each sequence on each volume.
const STATES: usize = 300;

fn explore(title: &str) {
    let mut states = 0;
    let spots = growing();
    let spot = spots.iter().find(|s| s.title.contains(title));
    let spot = spot.expect("there is such a sequence");
    for volume in spot.volumes {
        let effort = Effort {
            subsets_max: 6,
            directed: true,
            random: 4,
            torn: 3,
            sectors: true,
            deep_every: 10,
            fsck_every: 2,
            states_max: STATES,
            seed: 5,
            ..Effort::default()
        };
        let mut coverage = Coverage::default();
        let run = Run::record(spot.setting(volume), Source::Text(spot.text.clone()))
            .unwrap_or_else(|e| panic!("{title}, volume {volume}: {e}"));
        if let Err(e) = explore_into(&run, &effort, &mut coverage) {
            panic!("{title}, volume {volume}: {e}");
        }
        states += coverage.states();
    }
    println!("{title}: {states} states on {} volumes", spot.volumes.len());
    assert!(states > 100);
}

/// As `make test` and `make crash` come by them.
#[test]
fn places_of_the_standard_exploration() {
    let mut coverage = Coverage::default();
    let places = growing_place()..first_places();
    let count = places.clone().count();
    for place in places {
        if let Err(e) = explore_place(place, &mut coverage, Duration::ZERO, false) {
            panic!("{e}");
        }
    }
    println!("{count} places: {} states", coverage.states());
    assert_eq!(count, 10);
}

#[test]
fn within_a_group_and_over_many() {
    explore("within the last group");
}

#[test]
fn two_in_a_row() {
    explore("two in a row");
}

#[test]
fn new_groups_are_used() {
    explore("new groups get directories");
}

#[test]
fn large_groups() {
    explore("large groups");
}
