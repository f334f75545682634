//! The standard exploration: an endless list of workloads. Each *place* in it stands for one, always the same.
//!
//! The first places hold the directed sequences, all short sequences of one operation, and random workloads, mixed; `make test`
//! comes to their end. Behind them come all sequences of two operations, random ones of three, further random workloads, and the sequences
//! of one operation again with all subsets of what is unflushed.
use crate::ace;
use crate::config::CONFIGS;
use crate::counts::count;
use crate::coverage::Coverage;
use crate::explore::{Effort, explore_into, thorough, workload};
use crate::generate::Action;
use crate::run::{Run, Source};
use crate::setting::Setting;
use crate::shrink::shortened;
use crate::spots::{Spot, growing, spots};
use ccfs_testkit::Rng;
use std::sync::LazyLock;
use std::time::Duration;

/// Distinct crash states that `make test` explores.
pub const TEST_STATES: u64 = 100_000;
/// ... and `make crash`.
pub const LONG_STATES: u64 = 5_000_000;
/// Random workloads among the first places.
const RANDOM_FIRST: u64 = 360;

/// What a place holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A directed sequence (index in `spots()`) on a volume.
    Spot(usize, &'static str),
    /// A short sequence: operations, number.
    Ace(u32, u64),
    /// One of the short sequences of one operation, with all subsets wherever no more than twelve writes are unflushed.
    Whole(u64),
    Random(u64),
}

/// Those that came later stand at the end of the first places: the others keep theirs.
static SPOTS: LazyLock<Vec<Spot>> = LazyLock::new(|| [spots(), growing()].concat());

/// The first places.
static FIRST: LazyLock<Vec<Work>> = LazyLock::new(|| {
    let directed = SPOTS
        .iter()
        .enumerate()
        .flat_map(|(i, s)| s.volumes.iter().map(move |v| Work::Spot(i, v)));
    let (later, directed): (Vec<Work>, Vec<Work>) = directed.partition(Work::is_growing);
    let short: Vec<Work> = (0..ace::sequences(1)).map(|n| Work::Ace(1, n)).collect();
    let random: Vec<Work> = (0..RANDOM_FIRST).map(Work::Random).collect();
    // Mixed evenly, the directed ones in the first eighth.
    let mut all: Vec<(u64, Work)> = Vec::new();
    for (part, works) in [(8, directed), (1, short), (1, random)] {
        let len = works.len() as u64;
        let place = |i: usize| (i as u64 * 1_000_000) / (len * part);
        all.extend(works.into_iter().enumerate().map(|(i, w)| (place(i), w)));
    }
    all.sort_by_key(|(key, _)| *key);
    let all = all.into_iter().map(|(_, work)| work);
    all.chain(later).collect()
});

/// The first place where a volume grows.
pub fn growing_place() -> u64 {
    let place = FIRST.iter().position(Work::is_growing);
    place.unwrap_or(FIRST.len()) as u64
}

/// Number of the first places.
pub fn first_places() -> u64 {
    FIRST.len() as u64
}

/// What is at a place.
pub fn work(place: u64) -> Work {
    if let Some(work) = FIRST.get(place as usize) {
        return work.clone();
    }
    let n = place - first_places();
    let (turn, within) = (n / 9, n % 9);
    let pair = turn * 8 + within;
    match within {
        8 if turn % 4 == 2 && turn / 4 < ace::sequences(1) => Work::Whole(turn / 4),
        8 if turn % 4 == 0 => Work::Ace(3, Rng::new(place).below(ace::sequences(3))),
        8 => Work::Random(RANDOM_FIRST + turn),
        // A step through all of them that has no factor with their number.
        _ if pair < ace::sequences(2) => Work::Ace(2, (pair * 7919) % ace::sequences(2)),
        _ => Work::Random((1 << 32) + n),
    }
}

impl Work {
    fn is_growing(&self) -> bool {
        matches!(self, Work::Spot(i, _) if SPOTS[*i].title.starts_with("growing"))
    }

    fn setting(&self) -> (Setting, Source) {
        match self {
            Work::Spot(i, volume) => {
                let spot = &SPOTS[*i];
                (spot.setting(volume), Source::Text(spot.text.clone()))
            }
            Work::Whole(number) => Work::Ace(1, *number).setting(),
            Work::Ace(length, number) => {
                let config = &CONFIGS[(number / 2 % 2) as usize];
                let setting = Setting {
                    streams: 2,
                    unmount: number % 3 == 0,
                    ..Setting::new(config)
                };
                (setting, Source::Text(ace::sequence(*length, *number)))
            }
            Work::Random(seed) => {
                let (setting, mix, length) = workload(*seed);
                // A share of them on a device that commits by itself.
                let setting = Setting {
                    flash: seed % 24 == 5,
                    ..setting
                };
                (setting, Source::Random(*seed, mix, length))
            }
        }
    }

    fn effort(&self, place: u64) -> Effort {
        let effort = Effort {
            subsets_max: 4,
            random: 3,
            directed: true,
            torn: 1,
            sectors: true,
            mount: false,
            deep_every: 40,
            fsck_every: 20,
            damage_every: 50,
            seed: place,
            ..Effort::default()
        };
        // The limit is one that none comes to.
        let whole = Effort {
            subsets_max: 12,
            states_max: 20_000,
            after_syncs: ace::SETUP_SYNCS,
            ..effort
        };
        match self {
            Work::Spot(i, _) => self.directed(&SPOTS[*i], effort),
            // A small case in each twenty, and later all of them: all subsets.
            Work::Whole(_) => whole,
            Work::Ace(1, n) if n % 20 == 7 => whole,
            Work::Ace(length, _) => Effort {
                states_max: if *length == 1 { 50 } else { 25 },
                after_syncs: ace::SETUP_SYNCS,
                ..effort
            },
            Work::Random(_) => Effort {
                states_max: 220,
                ..effort
            },
        }
    }
}

impl Work {
    fn directed(&self, spot: &Spot, effort: Effort) -> Effort {
        // Recovery is what these are about.
        if spot.title.starts_with("recovery") {
            return Effort {
                subsets_max: 0,
                random: 0,
                directed: false,
                torn: 0,
                after_syncs: 1,
                deep_every: 1,
                fsck_every: 0,
                states_max: 300,
                ..effort
            };
        }
        if spot.title.starts_with("growing") {
            return Effort {
                states_max: 400,
                deep_every: 12,
                fsck_every: 2,
                ..effort
            };
        }
        Effort {
            states_max: 130,
            mount: spot.number == 26,
            deep_every: if spot.number == 28 { 4 } else { 40 },
            ..effort
        }
    }
}

/// Explores the workload at a place; adds to `coverage` what was looked at, also up to a failure. The error is a report with a
/// shortened workload. `flash`: on a device that commits by itself, whatever the place says.
pub fn explore_place(
    place: u64,
    coverage: &mut Coverage,
    shrink_for: Duration,
    flash: bool,
) -> Result<(), String> {
    let work = work(place);
    let (setting, source) = work.setting();
    let setting = Setting {
        flash: flash || setting.flash,
        ..setting
    };
    let effort = work.effort(place);
    let mut actions: Vec<(usize, Action)> = Vec::new();
    let done = Run::record_into(setting, source, &mut actions)
        .and_then(|run| explore_into(&run, &effort, coverage));
    match (&work, done) {
        // Some short sequences make no sense, e.g. two that make the same name.
        (Work::Ace(..) | Work::Whole(_), Err(e)) if e.starts_with("script: cannot do") => {
            count(&mut coverage.totals, "impossible", 1);
            Ok(())
        }
        (Work::Spot(i, _), Ok(())) => {
            let number = format!("{:02}", SPOTS[*i].number);
            count(&mut coverage.spots, &number, 1);
            Ok(())
        }
        (_, Ok(())) => Ok(()),
        (_, Err(e)) => {
            let again = |source| {
                let run = Run::record(setting, source)?;
                explore_into(&run, &thorough(&effort), &mut Coverage::default())
            };
            let text = shortened(&e, setting, &actions, shrink_for, again);
            Err(format!(
                "place {place} ({work:?}; `ccfs-crash-explore --from {place} --places 1` replays it), {text}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_list_holds_every_short_sequence_and_every_spot_once() {
        let first: Vec<Work> = (0..first_places()).map(work).collect();
        let short = first
            .iter()
            .filter(|w| matches!(w, Work::Ace(1, _)))
            .count();
        assert_eq!(short as u64, ace::sequences(1));
        let numbers: HashSet<u32> = first
            .iter()
            .filter_map(|w| match w {
                Work::Spot(i, _) => Some(SPOTS[*i].number),
                _ => None,
            })
            .collect();
        assert!((1..=28).all(|n| numbers.contains(&n)));
        let end = first_places() + ace::sequences(2) / 8 * 9 + 9;
        let pairs: HashSet<u64> = (first_places()..end)
            .filter_map(|p| match work(p) {
                Work::Ace(2, n) => Some(n),
                _ => None,
            })
            .collect();
        assert_eq!(pairs.len() as u64, ace::sequences(2));
        let whole: HashSet<u64> = (first_places()..end)
            .filter_map(|p| match work(p) {
                Work::Whole(n) => Some(n),
                _ => None,
            })
            .collect();
        assert_eq!(whole.len() as u64, ace::sequences(1));
    }
}
