//! Random lives of a log: writes in any order, holes, laps, checkpoints; a power cut at any event; the next life goes on.

mod common;

use ccfs_disks::Outcome;
use ccfs_log::Kind;
use common::{Rng, World, Written, geometry};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Action {
    /// Takes a slot for a transaction of about so many thousandths of the ring; its frames wait.
    TakeSlot {
        size: u64,
        deps: usize,
    },
    /// Writes one of those that wait.
    Write(u64),
    Flush,
    Checkpoint {
        bytes: u64,
    },
    SetTail,
    /// Cuts the power so many events before the last one.
    Crash {
        back: usize,
        torn: bool,
    },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (prop_oneof![4 => 0u64..20, 2 => 0u64..200, 1 => 0u64..1000], prop_oneof![3 => 0usize..3, 1 => 0usize..400])
            .prop_map(|(size, deps)| Action::TakeSlot { size, deps }),
        7 => any::<u64>().prop_map(Action::Write),
        2 => Just(Action::Flush),
        2 => (0u64..200_000).prop_map(|bytes| Action::Checkpoint { bytes }),
        1 => Just(Action::SetTail),
        1 => (prop_oneof![Just(0usize), 0usize..12, 0usize..60], any::<bool>()).prop_map(|(back, torn)| Action::Crash { back, torn }),
    ]
}

fn run(seed: u64, block_size: u32, blocks: u64, pieces: u64, actions: &[Action]) -> World {
    let mut rng = Rng::new(seed);
    let geo = geometry(&mut rng, block_size, blocks, pieces);
    let mut world = World::new(&mut rng, geo);
    let mut waiting: Vec<Written> = Vec::new();
    for action in actions {
        match *action {
            Action::TakeSlot { size, deps } => {
                let bytes = world.log.ring_len() * u64::from(block_size) * size / 1000;
                let Some(w) = world.begin(&mut rng, Kind::Txn, bytes, deps) else {
                    continue;
                };
                world.txns.insert(w.slot.id, w.clone());
                waiting.push(w);
            }
            Action::Write(which) if !waiting.is_empty() => {
                let mut w = waiting.swap_remove((which % waiting.len() as u64) as usize);
                // Nobody may use a slot whose transaction was passed by the tail.
                let Some(model) = world.txns.get(&w.slot.id).filter(|m| m.slot == w.slot) else {
                    continue;
                };
                assert!(model.submitted.is_none());
                world.submit(&mut rng, &mut w);
                world.txns.insert(w.slot.id, w);
            }
            Action::Write(_) => {}
            Action::Flush => world.flush(),
            Action::Checkpoint { bytes } => world.checkpoint(&mut rng, bytes),
            Action::SetTail => world.set_tail(&mut rng),
            Action::Crash { back, torn } => {
                let at = world.sim.events().saturating_sub(back);
                // The model has forgotten what was below the tail of the last header but one.
                let known = world.roots.iter().rev().nth(1).unwrap_or(&world.roots[0]);
                let at = at.max(known.done.unwrap());
                let seed = rng.draw();
                let outcome = if torn {
                    Outcome::Torn { seed }
                } else {
                    Outcome::Subset { seed }
                };
                world = world.crash(at, &outcome);
                waiting.clear();
            }
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_logs(seed: u64, size in 0u32..3, blocks in 40u64..300, pieces in 1u64..12, actions in prop::collection::vec(action(), 1..200)) {
        run(seed, 1024 << size, blocks, pieces, &actions);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn journals_of_1024_blocks(seed: u64, size in 0u32..3, pieces in 1u64..5, actions in prop::collection::vec(action(), 1..200)) {
        run(seed, 1024 << size, 1024, pieces, &actions);
    }
}
