//! Barriers (C13): what the oracle makes of them, and chains of them with every subset of the unflushed writes lost.
use ccfs_crash::config::config;
use ccfs_crash::explore::{Effort, explore, explore_source};
use ccfs_crash::oracle::*;
use ccfs_crash::run::{Run, Source};
use ccfs_crash::setting::Setting;
use ccfs_crash::spots::spots;
use std::sync::Arc;

fn file(node: u64, name: &str) -> Op {
    Op::Mknod {
        parent: ROOT,
        name: Arc::from(name.as_bytes()),
        make: Make {
            node: NodeId(node),
            mode: S_IFREG | 0o644,
            uid: 0,
            gid: 0,
        },
        rdev: 0,
    }
}

fn write(node: u64, byte: u8) -> Op {
    Op::Write {
        node: NodeId(node),
        offset: 0,
        data: Arc::from([byte; 10]),
        kill: false,
    }
}

/// What the judge says of the tree that the operations `keep` give.
fn verdict(ops: &[(usize, Op)], barriers: &[Barrier], keep: &[usize]) -> Result<Cut, Promise> {
    let history = History {
        streams: 3,
        ops: ops
            .iter()
            .map(|(stream, op)| Accepted {
                stream: *stream,
                op: op.clone(),
                stamps: Vec::new(),
            })
            .collect(),
        barriers: barriers.to_vec(),
        ..History::default()
    };
    let mut tree = Tree::empty();
    for i in keep {
        tree.apply(&history.ops[*i].op, &[]).unwrap();
    }
    let crash = Crash {
        accepted: ops.len(),
        synced: 0,
    };
    let an = Analysis::new(Tree::empty(), history, false).unwrap();
    judge(&an, &crash, &tree).map_err(|v| v.promise)
}

fn barrier(stream: usize, kind: SyncKind, after: usize, before: usize) -> Barrier {
    let call = Sync {
        stream,
        kind,
        after,
    };
    Barrier { call, before }
}

#[test]
fn what_others_did_to_the_file_comes_before_what_follows_the_barrier() {
    let ops = [
        (0, file(1, "a")),
        (0, write(1, 1)),
        (1, file(2, "b")),
        (1, write(2, 2)),
        (2, file(3, "c")),
    ];
    let on_a = SyncKind::File(NodeId(1));
    // Stream 1 made b, put a barrier on a, and wrote b.
    let ordered = [barrier(1, on_a, 3, 3)];
    for good in [
        &[][..],
        &[2],
        &[0],
        &[0, 2],
        &[0, 1, 2, 3],
        &[0, 1, 2, 3, 4],
        &[4],
        &[0, 1, 4],
    ] {
        assert!(verdict(&ops, &ordered, good).is_ok(), "{good:?}");
    }
    for bad in [&[2, 3][..], &[0, 2, 3], &[2, 3, 4]] {
        assert_eq!(
            verdict(&ops, &ordered, bad),
            Err(Promise::Barrier),
            "{bad:?}"
        );
        assert!(
            verdict(&ops, &[], bad).is_ok(),
            "{bad:?} without the barrier"
        );
    }
    // What stream 0 did to a after the barrier had begun is not ordered.
    let early = [barrier(1, on_a, 1, 3)];
    assert!(verdict(&ops, &early, &[0, 2, 3]).is_ok());
    assert_eq!(verdict(&ops, &early, &[2, 3]), Err(Promise::Barrier));
    // What stream 1 did before the barrier returned is not ordered either.
    let late = [barrier(1, on_a, 2, 4)];
    assert!(verdict(&ops, &late, &[2, 3]).is_ok());
    // A barrier on the stream, and one on everything.
    let own = [barrier(1, SyncKind::Stream, 3, 3)];
    assert!(verdict(&ops, &own, &[2, 3]).is_ok());
    let all = [barrier(2, SyncKind::Volume, 4, 4)];
    assert_eq!(verdict(&ops, &all, &[0, 1, 2, 4]), Err(Promise::Barrier));
    assert!(verdict(&ops, &all, &[0, 1, 2, 3, 4]).is_ok());
}

#[test]
fn a_broken_stream_is_still_called_so() {
    let ops = [(0, file(1, "a")), (0, file(2, "b"))];
    let own = [barrier(0, SyncKind::Stream, 1, 1)];
    assert_eq!(verdict(&ops, &own, &[1]), Err(Promise::Order));
}

/// Chains of barriers between two flushes, with every subset of the writes under way lost.
#[test]
fn chains_with_every_subset_lost() {
    let chains = [
        "A create f; A syncfs; A write f 0 4096; A fbarrier f; A write f 0 4096; A fbarrier f; A append f 100; A fbarrier f; A write f 100 300; A fbarrier f; A append f 9000; A fbarrier f",
        "A create f; A create g; A write f 0 9000; A syncfs; B write f 0 4096; A fbarrier f; A append g 4096; A fbarrier g; B append g 10; B fbarrier f; A append f 4096; B fbarrier g; B create h",
    ];
    let mut states = 0;
    for chain in chains {
        for (gather, ordered) in [(1, false), (2, false), (4, false), (1, true), (3, true)] {
            for volume in ["1k", "4k"] {
                let setting = Setting {
                    gather,
                    ordered,
                    unmount: false,
                    ..Setting::new(config(volume).unwrap())
                };
                let run = Run::record(setting, Source::Text(chain.into())).unwrap();
                let effort = Effort {
                    subsets_max: 11,
                    directed: true,
                    sectors: true,
                    random: 4,
                    torn: 4,
                    states_max: 1500,
                    after_syncs: 1,
                    ..Effort::default()
                };
                let done = explore(&run, &effort);
                let coverage = done.unwrap_or_else(|e| {
                    panic!("gather {gather}, ordered {ordered}, {volume}: {e}")
                });
                // Where all still gathers, nothing is under way to be lost.
                states += coverage.states();
            }
        }
    }
    assert!(states >= 200, "{states} states");
}

#[test]
fn directed_sequences() {
    let directed: Vec<_> = spots()
        .into_iter()
        .filter(|s| s.title.starts_with("barriers"))
        .collect();
    assert!(directed.len() >= 4);
    for spot in directed {
        for volume in spot.volumes {
            let effort = Effort {
                subsets_max: 8,
                directed: true,
                random: 6,
                torn: 4,
                deep_every: 40,
                states_max: 300,
                ..Effort::default()
            };
            let source = Source::Text(spot.text.clone());
            if let Err(e) = explore_source(spot.setting(volume), source, &effort) {
                panic!("{}, volume {volume}: {e}", spot.title);
            }
        }
    }
}
