//! The oracle against a correct store, wrong stores, and brute force.
use ccfs_crash::generate::{Action, Generator, Mix, pattern};
use ccfs_crash::oracle::*;
use ccfs_testkit::Rng;
use std::collections::HashMap;
use std::sync::Arc;

/// A crash after so many operations and returned sync calls.
fn crash_after(accepted: usize, synced: usize) -> Crash {
    Crash { accepted, synced }
}

fn name(s: &str) -> Bytes {
    s.as_bytes().into()
}

fn file(node: u64, parent: NodeId, n: &str) -> Op {
    let make = Make {
        node: NodeId(node),
        mode: S_IFREG | 0o644,
        uid: 0,
        gid: 0,
    };
    Op::Mknod {
        parent,
        name: name(n),
        make,
        rdev: 0,
    }
}

fn dir(node: u64, parent: NodeId, n: &str) -> Op {
    let make = Make {
        node: NodeId(node),
        mode: S_IFDIR | 0o755,
        uid: 0,
        gid: 0,
    };
    Op::Mkdir {
        parent,
        name: name(n),
        make,
    }
}

fn write(node: u64, offset: u64, text: &str) -> Op {
    Op::Write {
        node: NodeId(node),
        offset,
        data: name(text),
        kill: false,
    }
}

fn rename(from: NodeId, a: &str, to: NodeId, b: &str) -> Op {
    Op::Rename {
        from,
        name: name(a),
        to,
        new_name: name(b),
        kind: RenameKind::Plain,
    }
}

/// A random history with times from a clock, and sync calls.
fn random_history(seed: u64, streams: usize, length: usize, mix: Mix) -> (Tree, History) {
    let mut gen_ = Generator::new(seed, Mix { streams, ..mix }, 1);
    let mut tree = Tree::empty();
    let mut history = History {
        streams,
        ..History::default()
    };
    while history.ops.len() < length {
        let (stream, action) = gen_.next(&tree);
        let after = history.ops.len();
        match action {
            Action::Op(op) => {
                let clock = (1_700_000_000 + after as i64, 5);
                let stamps: Vec<Stamp> = tree
                    .touches(&op)
                    .into_iter()
                    .map(|t| Stamp {
                        node: t.node,
                        mtime: t.mtime.then_some(clock),
                        ctime: t.ctime.then_some(clock),
                    })
                    .collect();
                tree.apply(&op, &stamps).unwrap();
                history.ops.push(Accepted { stream, op, stamps });
            }
            Action::Fsync { node, .. } => history.syncs.push(Sync {
                stream,
                kind: SyncKind::File(node),
                after,
            }),
            Action::StreamSync => history.syncs.push(Sync {
                stream,
                kind: SyncKind::Stream,
                after,
            }),
            Action::VolumeSync => history.syncs.push(Sync {
                stream,
                kind: SyncKind::Volume,
                after,
            }),
            _ => {}
        }
    }
    (Tree::empty(), history)
}

/// Executes those operations that `keep` names; what the model refuses is left out.
fn execute(base: &Tree, history: &History, keep: impl Fn(usize) -> bool) -> Tree {
    let mut tree = base.clone();
    for (_, a) in history.ops.iter().enumerate().filter(|(i, _)| keep(*i)) {
        tree.survive(&a.op, &a.stamps);
    }
    tree
}

/// The same tree with other inode numbers, as an observer would give it.
fn renumbered(tree: &Tree, seed: u64) -> Tree {
    let mut rng = Rng::new(seed);
    let mut ids: Vec<NodeId> = tree.nodes.keys().copied().collect();
    ids.sort();
    let to: HashMap<NodeId, NodeId> = ids.iter().map(|i| (*i, NodeId(rng.draw()))).collect();
    let mut nodes = HashMap::new();
    for (id, node) in &tree.nodes {
        let mut node = (**node).clone();
        node.entries = node
            .entries
            .iter()
            .map(|(k, v)| (k.clone(), to[v]))
            .collect();
        node.parent = None;
        nodes.insert(to[id], Arc::new(node));
    }
    Tree {
        root: to[&tree.root],
        nodes,
    }
}

/// All cuts that are closed under the needs and at least the floor.
fn closed_cuts(order: &Order, floor: &Cut) -> Vec<Cut> {
    let mut cuts = vec![vec![]];
    for (lo, hi) in floor.iter().zip(&order.hi) {
        cuts = cuts
            .iter()
            .flat_map(|c: &Cut| (*lo..=*hi).map(|k| [&c[..], &[k]].concat()))
            .collect();
    }
    let closed = |cut: &Cut| {
        (0..order.pos.len())
            .all(|i| !order.survives(i, cut) || order.need[i].iter().zip(cut).all(|(n, c)| n <= c))
    };
    cuts.retain(closed);
    cuts
}

#[test]
fn legal_states_are_accepted() {
    for seed in 0..300 {
        let streams = 1 + (seed % 4) as usize;
        let (base, history) = random_history(seed, streams, 60, Mix::default());
        let mut rng = Rng::new(seed);
        for times in [true, false] {
            let an = Analysis::new(base.clone(), history.clone(), times).unwrap();
            for _ in 0..6 {
                let accepted = rng.below(history.ops.len() as u64 + 1) as usize;
                let synced = history.syncs.iter().filter(|s| s.after < accepted).count();
                let crash = crash_after(accepted, synced);
                let order = Order::new(&an, accepted, Rules::Contract);
                let (mut cut, _) = floor(&an, &order, synced);
                // A random closed cut: a few random operations with all that they need.
                for _ in 0..rng.below(4) {
                    let op = rng.below(accepted as u64) as usize;
                    if op < accepted {
                        cut = cut
                            .iter()
                            .zip(&order.need[op])
                            .map(|(a, b)| *a.max(b))
                            .collect();
                    }
                }
                let tree = execute(&base, &history, |i| order.survives(i, &cut));
                let verdict = judge(&an, &crash, &renumbered(&tree, seed));
                assert!(verdict.is_ok(), "seed {seed}: {}", verdict.unwrap_err());
            }
        }
    }
}

#[test]
fn judge_agrees_with_brute_force() {
    let mix = Mix {
        names: 2,
        own_percent: 0,
        sync_percent: 10,
        write_max: 30,
        size_max: 100,
        ..Mix::default()
    };
    let (mut legal, mut illegal) = (0, 0);
    for seed in 0..60 {
        let streams = 2 + (seed % 2) as usize;
        let (base, history) = random_history(1000 + seed, streams, 9, mix.clone());
        let an = Analysis::new(base.clone(), history.clone(), seed % 3 == 0).unwrap();
        let synced = history.syncs.len();
        let crash = crash_after(9, synced);
        let order = Order::new(&an, 9, Rules::Contract);
        let (least, _) = floor(&an, &order, crash.synced);
        let trees: Vec<Tree> = closed_cuts(&order, &least)
            .iter()
            .map(|cut| execute(&base, &history, |i| order.survives(i, cut)))
            .collect();
        for set in 0..1u32 << 9 {
            let tree = execute(&base, &history, |i| set >> i & 1 == 1);
            let expect = trees
                .iter()
                .any(|t| t.difference(&tree, an.times).is_none());
            let verdict = judge(&an, &crash, &renumbered(&tree, seed));
            assert_eq!(
                verdict.is_ok(),
                expect,
                "seed {seed} set {set:09b}: {verdict:?}"
            );
            *(if expect { &mut legal } else { &mut illegal }) += 1;
        }
    }
    assert!(legal > 2000 && illegal > 2000, "{legal} {illegal}");
}

/// Judges the state in which exactly the operations `keep` survived.
fn verdict(ops: &[(usize, Op)], syncs: &[Sync], keep: &[usize]) -> Result<Cut, Violation> {
    let streams = 1 + ops.iter().map(|o| o.0).max().unwrap_or(0);
    let ops = ops.iter().map(|(stream, op)| Accepted {
        stream: *stream,
        op: op.clone(),
        stamps: Vec::new(),
    });
    let history = History {
        streams,
        groups: 0,
        ops: ops.collect(),
        syncs: syncs.to_vec(),
        barriers: Vec::new(),
    };
    let tree = execute(&Tree::empty(), &history, |i| keep.contains(&i));
    let (accepted, synced) = (history.ops.len(), history.syncs.len());
    let crash = crash_after(accepted, synced);
    let an = Analysis::new(Tree::empty(), history, false).unwrap();
    judge(&an, &crash, &tree)
}

fn promise(v: Result<Cut, Violation>) -> Promise {
    v.expect_err("the state is illegal").promise
}

#[test]
fn a_reordering_store_is_caught() {
    let ops = [
        (0, file(1, ROOT, "a")),
        (0, file(2, ROOT, "b")),
        (1, file(3, ROOT, "c")),
    ];
    assert_eq!(promise(verdict(&ops, &[], &[1, 2])), Promise::Order);
    assert!(verdict(&ops, &[], &[0, 2]).is_ok());
    assert!(verdict(&ops, &[], &[2]).is_ok());
}

#[test]
fn a_store_that_loses_synced_operations_is_caught() {
    let ops = [
        (0, file(1, ROOT, "a")),
        (1, file(2, ROOT, "b")),
        (1, write(1, 0, "x")),
        (0, write(2, 0, "y")),
    ];
    let sync = |stream, kind| Sync {
        stream,
        kind,
        after: 4,
    };
    let file_1 = SyncKind::File(NodeId(1));
    // Stream 0 syncs file 1: its own operations, and the write of stream 1 to it with all before that.
    assert!(verdict(&ops, &[sync(0, file_1)], &[0, 1, 2, 3]).is_ok());
    assert_eq!(
        promise(verdict(&ops, &[sync(0, file_1)], &[0, 1, 2])),
        Promise::Durability
    );
    // Stream 1 syncs file 1: stream 0's write to file 2 is its own affair.
    assert!(verdict(&ops, &[sync(1, file_1)], &[0, 1, 2]).is_ok());
    assert_eq!(
        promise(verdict(&ops, &[sync(1, file_1)], &[0, 1])),
        Promise::Durability
    );
    assert_eq!(
        promise(verdict(&ops, &[sync(1, SyncKind::Stream)], &[0, 1])),
        Promise::Durability
    );
    assert_eq!(
        promise(verdict(&ops, &[sync(1, SyncKind::Volume)], &[0, 1, 2])),
        Promise::Durability
    );
    // fsync of a directory: its entry changes by any stream.
    assert_eq!(
        promise(verdict(
            &ops[..2],
            &[Sync {
                after: 2,
                ..sync(0, SyncKind::File(ROOT))
            }],
            &[0]
        )),
        Promise::Durability
    );
}

#[test]
fn a_tearing_store_is_caught() {
    let data = pattern(1, 0, 5000);
    let whole = Op::Write {
        node: NodeId(1),
        offset: 0,
        data: data.clone(),
        kill: false,
    };
    let half = Op::Write {
        node: NodeId(1),
        offset: 0,
        data: data[..512].into(),
        kill: false,
    };
    let history = |op| History {
        streams: 1,
        groups: 0,
        ops: vec![
            Accepted {
                stream: 0,
                op: file(1, ROOT, "a"),
                stamps: vec![],
            },
            Accepted {
                stream: 0,
                op,
                stamps: vec![],
            },
        ],
        syncs: vec![],
        barriers: Vec::new(),
    };
    let mut torn = execute(&Tree::empty(), &history(half), |_| true);
    let an = Analysis::new(Tree::empty(), history(whole), false).unwrap();
    let crash = crash_after(2, 0);
    assert_eq!(promise(judge(&an, &crash, &torn)), Promise::Atomicity);
    // The size without the data.
    Arc::make_mut(torn.nodes.get_mut(&NodeId(1)).unwrap()).size = 5000;
    assert_eq!(promise(judge(&an, &crash, &torn)), Promise::Atomicity);
    // Stale bytes behind the data.
    Arc::make_mut(torn.nodes.get_mut(&NodeId(1)).unwrap())
        .data
        .write(512, &data[512..]);
    assert!(judge(&an, &crash, &torn).is_ok());
    Arc::make_mut(torn.nodes.get_mut(&NodeId(1)).unwrap())
        .data
        .write(5000, b"stale");
    assert_eq!(promise(judge(&an, &crash, &torn)), Promise::Atomicity);
    // A name for an inode that nobody made.
    let mut alien = execute(&Tree::empty(), &history(write(1, 0, "")), |i| i == 0);
    let node = alien.nodes[&NodeId(1)].clone();
    alien.nodes.insert(NodeId(9), node);
    Arc::make_mut(alien.nodes.get_mut(&ROOT).unwrap())
        .entries
        .insert(name("z"), NodeId(9));
    assert_eq!(promise(judge(&an, &crash, &alien)), Promise::Atomicity);
}

/// A pair of operations of C5: its name, what stands before and is synced, the earlier, the later.
type Related = (&'static str, Vec<Op>, Op, Op);

/// Sentences of C5 about files.
fn related_by_a_file() -> Vec<Related> {
    let xattr = |v: &str| Op::SetXattr {
        node: NodeId(2),
        name: name("user.a"),
        value: name(v),
    };
    vec![
        (
            "data, data",
            vec![file(2, ROOT, "f")],
            write(2, 0, "abc"),
            write(2, 9, "d"),
        ),
        (
            "data, attributes",
            vec![file(2, ROOT, "f")],
            write(2, 0, "abc"),
            xattr("x"),
        ),
        (
            "data, rename",
            vec![file(2, ROOT, "f")],
            write(2, 0, "abc"),
            rename(ROOT, "f", ROOT, "g"),
        ),
        (
            "data, link",
            vec![file(2, ROOT, "f")],
            xattr("x"),
            Op::Link {
                node: NodeId(2),
                parent: ROOT,
                name: name("l"),
            },
        ),
        (
            "link, unlink",
            vec![file(2, ROOT, "f")],
            Op::Link {
                node: NodeId(2),
                parent: ROOT,
                name: name("l"),
            },
            Op::Unlink {
                parent: ROOT,
                name: name("f"),
            },
        ),
        (
            "same name",
            vec![file(2, ROOT, "f")],
            Op::Unlink {
                parent: ROOT,
                name: name("f"),
            },
            file(3, ROOT, "f"),
        ),
    ]
}

/// Sentences of C5 about directories.
fn related_by_a_directory() -> Vec<Related> {
    let d = NodeId(1);
    let chmod = Op::SetAttr {
        node: d,
        set: Set {
            mode: Some(0o700),
            ..Set::default()
        },
    };
    vec![
        (
            "creation of a directory",
            vec![],
            dir(1, ROOT, "d"),
            file(2, d, "f"),
        ),
        (
            "mode of a directory",
            vec![dir(1, ROOT, "d")],
            chmod,
            file(2, d, "f"),
        ),
        (
            "removal of a directory",
            vec![dir(1, ROOT, "d"), file(2, d, "f"), dir(4, ROOT, "e")],
            rename(d, "f", NodeId(4), "f"),
            Op::Rmdir {
                parent: ROOT,
                name: name("d"),
            },
        ),
        (
            "replacement of a directory",
            vec![dir(1, ROOT, "d"), file(2, d, "f"), dir(4, ROOT, "e")],
            rename(d, "f", ROOT, "f"),
            rename(ROOT, "e", ROOT, "d"),
        ),
        (
            "moves of directories",
            vec![
                dir(1, ROOT, "d"),
                dir(2, d, "p"),
                dir(3, NodeId(2), "q"),
                dir(4, ROOT, "e"),
            ],
            rename(d, "p", ROOT, "p"),
            rename(ROOT, "e", NodeId(3), "e"),
        ),
        (
            "a loop of moves",
            vec![dir(1, ROOT, "d"), dir(2, d, "p"), dir(3, NodeId(2), "q")],
            rename(d, "p", ROOT, "p"),
            rename(ROOT, "d", NodeId(3), "d"),
        ),
    ]
}

/// Each sentence of C5: the later operation (the last one) never survives without the earlier (number 1, stream 1).
#[test]
fn related_operations_keep_their_order() {
    let pairs = [related_by_a_file(), related_by_a_directory()].concat();
    for (what, before, earlier, later) in pairs {
        let n = before.len();
        let mut ops: Vec<(usize, Op)> = before.into_iter().map(|op| (0, op)).collect();
        ops.extend([(1, earlier), (2, later)]);
        let sync = [Sync {
            stream: 0,
            kind: SyncKind::Stream,
            after: n,
        }];
        let mut keep: Vec<usize> = (0..=n).collect();
        assert!(verdict(&ops, &sync, &keep).is_ok(), "{what}: earlier alone");
        keep[n] = n + 1;
        // Where the later one cannot be executed alone the state shows something else that is wrong or nothing at all.
        let alone = verdict(&ops, &sync, &keep);
        // Without the earlier one these cannot be executed at all; then the state shows nothing of either.
        let needs = [
            "creation of a directory",
            "same name",
            "removal of a directory",
            "replacement of a directory",
            "a loop of moves",
        ];
        assert_eq!(alone.is_ok(), needs.contains(&what), "{what}: {alone:?}");
        let order_has_it = {
            let ops = ops.iter().map(|(stream, op)| Accepted {
                stream: *stream,
                op: op.clone(),
                stamps: vec![],
            });
            let history = History {
                streams: 3,
                groups: 0,
                ops: ops.collect(),
                syncs: vec![],
                barriers: Vec::new(),
            };
            let an = Analysis::new(Tree::empty(), history, false).unwrap();
            an.placed[n + 1].deps.contains(&n)
        };
        assert!(order_has_it, "{what}");
        keep.push(n);
        assert!(verdict(&ops, &sync, &keep).is_ok(), "{what}: both");
    }
}

#[test]
fn unrelated_operations_have_no_order() {
    let ops = [
        (0, dir(1, ROOT, "d")),
        (0, file(2, ROOT, "a")),
        (1, file(3, ROOT, "b")),
        (
            2,
            Op::SetAttr {
                node: ROOT,
                set: Set {
                    mtime: Some((5, 0)),
                    ..Set::default()
                },
            },
        ),
        (0, write(2, 0, "x")),
        (1, write(3, 0, "y")),
    ];
    for keep in [&[2][..], &[2, 5], &[0, 1], &[3], &[0, 1, 4, 3], &[]] {
        assert!(verdict(&ops, &[], keep).is_ok(), "{keep:?}");
    }
}

/// Moves of directories that do not go below each other have no order.
#[test]
fn moves_on_nobodys_way_have_no_order() {
    let (a, b, x) = (NodeId(1), NodeId(2), NodeId(3));
    let ops = [
        (0, dir(1, ROOT, "a")),
        (0, dir(2, ROOT, "b")),
        (0, dir(3, a, "x")),
        (0, dir(4, b, "y")),
        (1, rename(a, "x", ROOT, "x")),
        (2, rename(b, "y", ROOT, "y")),
        (3, rename(ROOT, "a", x, "a")),
    ];
    for keep in [&[4][..], &[5], &[4, 5], &[4, 6], &[4, 5, 6]] {
        let keep: Vec<usize> = (0..4).chain(keep.iter().copied()).collect();
        assert!(verdict(&ops, &[], &keep).is_ok(), "{keep:?}");
    }
}

#[test]
fn a_directory_shows_the_times_of_its_latest_accepted_survivor() {
    let stamped = |stream, op: Op, t: i64| {
        let node = op.makes().unwrap();
        let (mtime, ctime) = (Some((t, 0)), Some((t, 0)));
        let stamps = [ROOT, node]
            .map(|node| Stamp { node, mtime, ctime })
            .to_vec();
        Accepted { stream, op, stamps }
    };
    let ops = vec![
        stamped(0, file(1, ROOT, "a"), 10),
        stamped(1, file(2, ROOT, "b"), 20),
    ];
    let history = History {
        streams: 2,
        groups: 0,
        ops,
        syncs: vec![],
        barriers: Vec::new(),
    };
    let an = Analysis::new(Tree::empty(), history.clone(), true).unwrap();
    let crash = crash_after(2, 0);
    let mut both = execute(&Tree::empty(), &history, |_| true);
    assert!(judge(&an, &crash, &both).is_ok());
    let root = Arc::make_mut(both.nodes.get_mut(&ROOT).unwrap());
    (root.mtime, root.ctime) = ((10, 0), (10, 0));
    assert!(judge(&an, &crash, &both).is_err());
    let first = execute(&Tree::empty(), &history, |i| i == 0);
    assert!(judge(&an, &crash, &first).is_ok());
}

/// Long histories of many streams with nothing synced are judged in few steps.
#[test]
fn judging_is_fast() {
    const OPS: usize = 400;
    /// It takes 2 to 9.
    const STEPS: usize = 20;
    let mix = Mix {
        sync_percent: 0,
        ..Mix::default()
    };
    let (base, history) = random_history(7, 6, OPS, mix);
    let an = Analysis::new(base.clone(), history.clone(), false).unwrap();
    let order = Order::new(&an, OPS, Rules::Contract);
    for k in 0..40 {
        let tree = execute(&base, &history, |i| order.survives(i, &order.need[k * 10]));
        let tree = renumbered(&tree, 1);
        judge(&an, &crash_after(OPS, 0), &tree).unwrap();
        let mut search = Search::new(&an, &order, &tree);
        assert!(search.run(vec![0; order.hi.len()]).is_some());
        assert!(search.steps <= STEPS, "{k}: {} steps", search.steps);
    }
}

/// Whoever had the directory open can still name it, and gets ENOENT, as from Linux.
#[test]
fn nothing_comes_into_a_removed_directory() {
    let mut tree = Tree::empty();
    let gone = NodeId(2);
    let before = [
        dir(2, ROOT, "gone"),
        file(3, ROOT, "kept"),
        Op::Rmdir {
            parent: ROOT,
            name: name("gone"),
        },
    ];
    for op in &before {
        tree.apply(op, &[]).unwrap();
    }
    let make = Make {
        node: NodeId(4),
        mode: S_IFREG | 0o600,
        uid: 0,
        gid: 0,
    };
    let refused = [
        file(4, gone, "f"),
        dir(4, gone, "d"),
        rename(ROOT, "kept", gone, "kept"),
        Op::Link {
            node: NodeId(3),
            parent: gone,
            name: name("linked"),
        },
        Op::Tmpfile { parent: gone, make },
    ];
    for op in &refused {
        assert_eq!(tree.check(op), Err(libc::ENOENT), "{op}");
    }
}
