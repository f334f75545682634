//! Making a recorded program smaller: which of its operations can still be carried out without others, and delta debugging over its calls.
use super::ops::{Op, What};
use super::tree::{Change, Id, Node, ROOT, Tree};
use crate::Fail;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Instant;

/// The operations, by number, that a program of these calls alone can carry out: a write needs the creation of its file, a rename its name.
/// They are as they are then: what was an overwrite can be an append.
pub fn kept(ops: &[Op], tree: &Tree, calls: &BTreeSet<usize>) -> Vec<(usize, Op)> {
    let mut state = Replay::new(ops, tree);
    let mut out = Vec::new();
    let mut call = None;
    let mut ends: HashMap<Id, usize> = HashMap::new();
    for (number, op) in ops.iter().enumerate() {
        if !calls.contains(&op.call) {
            continue;
        }
        if call != Some(op.call) {
            call = Some(op.call);
            ends.clear();
        }
        if !state.can(number, &op.what) {
            continue;
        }
        let mut op = op.clone();
        if let What::Change(change) | What::Append(change) = op.what {
            if let Change::Data {
                node,
                offset,
                bytes,
            } = &change
            {
                // As recorded: against the size before the call.
                let end = *ends.entry(*node).or_insert_with(|| state.tree.len(*node));
                let grows = offset + bytes.len() > end;
                state.tree.apply(&change);
                op.what = match grows {
                    true => What::Append(change),
                    false => What::Change(change),
                };
            } else {
                state.tree.apply(&change);
                op.what = What::Change(change);
            }
        }
        out.push((number, op));
    }
    out
}

struct Replay {
    tree: Tree,
    /// Inodes that there are, with a name or open.
    there: HashSet<Id>,
    /// The operation that makes an inode.
    makers: HashMap<Id, usize>,
}

impl Replay {
    fn new(ops: &[Op], tree: &Tree) -> Replay {
        let mut there = HashSet::from([ROOT]);
        for node in &tree.nodes {
            if let Node::Dir(names) = node {
                there.extend(names.values());
            }
        }
        let mut makers = HashMap::new();
        for (number, op) in ops.iter().enumerate() {
            if let What::Change(Change::Entry { node: Some(n), .. }) = &op.what
                && !there.contains(n)
            {
                makers.entry(*n).or_insert(number);
            }
        }
        Replay {
            tree: tree.clone(),
            there,
            makers,
        }
    }

    fn can(&mut self, number: usize, what: &What) -> bool {
        let change = match what {
            What::Output(_) | What::SyncAll => return true,
            What::Sync(node) => return self.there.contains(node),
            What::Change(change) | What::Append(change) => change,
        };
        match change {
            Change::Data { node, .. } | Change::Size { node, .. } => self.there.contains(node),
            Change::Entry {
                dir,
                name,
                node: Some(node),
            } => {
                let free = self.there.contains(dir) && self.tree.lookup(*dir, name).is_none();
                if free && self.makers.get(node) == Some(&number) {
                    self.there.insert(*node);
                }
                free && self.there.contains(node)
            }
            Change::Entry { dir, name, .. } => {
                let old = self.tree.lookup(*dir, name);
                old.is_some_and(|old| !self.is_full(old))
            }
            Change::Rename { from, to, node } => {
                let old = self.tree.lookup(to.0, &to.1);
                self.there.contains(&to.0)
                    && self.tree.lookup(from.0, &from.1) == Some(*node)
                    && !old.is_some_and(|old| self.is_full(old))
            }
        }
    }

    /// A directory with names in it cannot be removed or replaced.
    fn is_full(&self, node: Id) -> bool {
        matches!(&self.tree.nodes[node], Node::Dir(names) if !names.is_empty())
    }
}

/// The smallest set that was found, and whether nothing more can be left out of it: else the time was over.
pub struct Smallest {
    pub calls: BTreeSet<usize>,
    pub complete: bool,
    pub tries: usize,
}

/// Leaves calls out, halves, quarters, ... single ones, as long as `fails` holds for the rest, until none can be left out or `until` is
/// over. `fails(calls)` is true at the beginning. `progress(calls, tries)` is told after each try.
pub fn smallest(
    calls: BTreeSet<usize>,
    until: Instant,
    mut fails: impl FnMut(&BTreeSet<usize>) -> Result<bool, Fail>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Smallest, Fail> {
    let mut best: Vec<usize> = calls.into_iter().collect();
    let mut tries = 0;
    let mut piece = best.len().div_ceil(2).max(1);
    loop {
        let before = best.len();
        // From the end: what comes late depends on what comes early.
        let mut end = best.len();
        while end > 0 {
            let begin = end.saturating_sub(piece);
            let rest = best[..begin].iter().chain(&best[end..]).copied();
            let rest: BTreeSet<usize> = rest.collect();
            if Instant::now() >= until {
                return Ok(Smallest {
                    calls: best.into_iter().collect(),
                    complete: false,
                    tries,
                });
            }
            tries += 1;
            if fails(&rest)? {
                best = rest.into_iter().collect();
            }
            end = begin.min(best.len());
            progress(best.len(), tries);
        }
        if piece == 1 && best.len() == before {
            break;
        }
        piece = match piece {
            1 => 1,
            _ => piece.div_ceil(2),
        };
    }
    Ok(Smallest {
        calls: best.into_iter().collect(),
        complete: true,
        tries,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn only_what_is_needed_stays() {
        let needed = BTreeSet::from([3, 77, 199]);
        let later = Instant::now() + Duration::from_secs(60);
        let all: BTreeSet<usize> = (0..203).collect();
        let found = smallest(
            all.clone(),
            later,
            |c| Ok(c.is_superset(&needed)),
            |_, _| {},
        )
        .unwrap();
        assert_eq!(found.calls, needed);
        assert!(found.complete && found.tries < 120, "{}", found.tries);
        // Without time everything stays, and it is said.
        let found = smallest(all.clone(), Instant::now(), |_| Ok(true), |_, _| {}).unwrap();
        assert!(!found.complete && found.calls == all);
    }

    #[test]
    fn what_lacks_its_file_or_name_cannot_be_carried_out() {
        let file = |data: &str| Node::File {
            data: Arc::new(data.into()),
            mode: 0o644,
        };
        let mut tree = Tree {
            nodes: vec![
                Node::Dir(BTreeMap::from([(b"old".to_vec(), 1)])),
                file("abc"),
            ],
        };
        let new = tree.add(file(""));
        let entry = |name: &str, node| Change::Entry {
            dir: ROOT,
            name: name.into(),
            node,
        };
        let data = |node, offset| Change::Data {
            node,
            offset,
            bytes: Arc::new(b"xy".to_vec()),
        };
        let rename = Change::Rename {
            from: (ROOT, b"new".to_vec()),
            to: (ROOT, b"old".to_vec()),
            node: new,
        };
        let ops = [
            What::Change(entry("new", Some(new))),
            What::Append(data(new, 0)),
            What::Change(data(new, 0)),
            What::Sync(new),
            What::Change(rename),
            What::Change(entry("link", Some(new))),
            What::Change(data(1, 0)),
            What::Change(entry("link", None)),
        ];
        let ops: Vec<Op> = ops
            .into_iter()
            .enumerate()
            .map(|(call, what)| Op { call, what })
            .collect();
        let left = |calls: &[usize]| {
            let calls = calls.iter().copied().collect();
            kept(&ops, &tree, &calls)
        };
        let numbers = |calls: &[usize]| left(calls).iter().map(|(n, _)| *n).collect::<Vec<_>>();
        assert_eq!(numbers(&[0, 1, 2, 3, 4, 5, 6, 7]), [0, 1, 2, 3, 4, 5, 6, 7]);
        // Without its creation: no writes, no sync, no rename, no link to it.
        assert_eq!(numbers(&[1, 2, 3, 4, 5, 6, 7]), [6]);
        assert_eq!(numbers(&[0, 4, 7]), [0, 4]);
        // An overwrite without the first write is an append.
        assert!(matches!(left(&[0, 2])[1].1.what, What::Append(_)));
        assert!(matches!(left(&[0, 1, 2])[2].1.what, What::Change(_)));
    }
}
