//! The judgement: is an observed tree what some legal set of survivors gives?
//!
//! # How the search works
//! Survivors are described by a *cut*: how many operations of each stream survive. `Order::need[i]` is the least cut
//! with which operation i can survive (its stream's prefix, closed under C5). Legal cuts are closed under these needs,
//! at least the *floor* (C3), at most what had been accepted.
//!
//! Operations on one object depend on each other, so the object's value under a cut is the version of its latest surviving
//! operation, and the surviving ones are a prefix. The search starts at the floor and compares the tree of that cut
//! with the observed one. Where they differ, every legal cut above must reach a *later* version of the object at fault
//! (or of a name that leads to it); the least such version raises the cut. Where only one version can help, that is no
//! guess. Guesses are the rebinding of a name to another inode and fields of directories; those are searched in depth,
//! with memory of the cuts that were tried. What the search accepts is executed once more by the model and compared.
use super::op::*;
use super::relate::*;
use super::tree::*;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Guesses after which the search gives up.
const STEPS_MAX: usize = 200_000;

/// The dependencies in force. The contract's order, or a relaxed one to explain a violation.
pub struct Order {
    pub stream: Vec<usize>,
    pub pos: Vec<u32>,
    pub need: Vec<Cut>,
    /// Operations of each stream among those accepted.
    pub hi: Cut,
    /// Operations of groups that are not committed, and what depends on them: they cannot survive.
    impossible: Vec<bool>,
    /// The operation that committed the group, by stream.
    pub committed: HashMap<usize, usize>,
}

/// What may be dropped from the contract.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    Contract,
    /// Without barriers (C13).
    NoBarriers,
    /// C5 alone: every operation is a stream of its own.
    DependenciesOnly,
}

impl Order {
    /// The order among the first `accepted` operations.
    pub fn new(an: &Analysis, accepted: usize, rules: Rules) -> Order {
        let n = accepted.min(an.placed.len());
        let alone = rules == Rules::DependenciesOnly;
        let streams = if alone { n } else { an.history.streams };
        let mut order = Order {
            stream: Vec::new(),
            pos: Vec::new(),
            need: Vec::new(),
            hi: vec![0; streams],
            impossible: vec![false; n],
            committed: HashMap::new(),
        };
        let mut last: Vec<Option<usize>> = vec![None; streams];
        let barriers = match rules {
            Rules::Contract => &an.history.barriers[..],
            _ => &[],
        };
        let mut barriers = barriers.iter().peekable();
        // What the barriers of a stream put before all that it does later.
        let mut after: Vec<Cut> = vec![vec![0; streams]; an.history.streams];
        for (i, placed) in an.placed[..n].iter().enumerate() {
            let (stream, pos) = if alone {
                (i, 0)
            } else {
                (placed.stream, placed.pos)
            };
            while let Some(barrier) = barriers.next_if(|b| b.before <= i) {
                let call = &barrier.call;
                let covered = (0..call.after)
                    .filter(|j| an.covers(call, *j) && !order.is_open(an, *j, call.after));
                for j in covered {
                    raise(&mut after[barrier.call.stream], &order.need[j]);
                }
            }
            let mut need = vec![0; streams];
            if !alone {
                need.clone_from(&after[stream]);
            }
            order.impossible[i] = !alone && an.history.is_group(stream);
            for before in placed.deps.iter().copied().chain(last[stream]) {
                raise(&mut need, &order.need[before]);
                order.impossible[i] |= order.impossible[before];
            }
            need[stream] = pos + 1;
            if let (Op::Commit { group }, false) = (&an.history.ops[i].op, alone) {
                order.commit(i, *group, &mut need);
            }
            last[stream] = Some(i);
            order.hi[stream] = pos + 1;
            order.stream.push(stream);
            order.pos.push(pos);
            order.need.push(need);
        }
        order
    }

    /// Operation `i` is of a group that was not committed before the operation `at`.
    pub fn is_open(&self, an: &Analysis, i: usize, at: usize) -> bool {
        let stream = an.placed[i].stream;
        an.history.is_group(stream) && self.committed.get(&stream).is_none_or(|c| *c >= at)
    }

    /// The operations of a group survive together with its commit `i`, and all that any of them needs.
    fn commit(&mut self, i: usize, group: usize, need: &mut Cut) {
        self.committed.insert(group, i);
        let members: Vec<usize> = (0..i).filter(|m| self.stream[*m] == group).collect();
        for member in &members {
            raise(need, &self.need[*member]);
        }
        for member in members {
            self.need[member] = need.clone();
            self.impossible[member] = false;
        }
    }

    pub fn survives(&self, op: usize, cut: &Cut) -> bool {
        op < self.pos.len() && self.pos[op] < cut[self.stream[op]]
    }

    fn possible(&self, op: usize) -> bool {
        op < self.need.len() && !self.impossible[op]
    }
}

fn raise(to: &mut Cut, by: &Cut) {
    for (a, b) in to.iter_mut().zip(by) {
        *a = (*a).max(*b);
    }
}

/// Why a cut's tree is not the observed one, and where to go from there.
struct Mismatch {
    text: String,
    /// Least cuts above, at least one of which every legal cut contains.
    ways: Vec<Cut>,
}

/// A search for a legal cut.
pub struct Search<'a> {
    an: &'a Analysis,
    order: &'a Order,
    seen: &'a Tree,
    tried: HashSet<Cut>,
    prints: HashMap<NodeId, u64>,
    fields: HashMap<(NodeId, Field), u64>,
    /// The mismatch at the largest cut that led nowhere.
    pub nearest: Option<(Cut, String)>,
    pub steps: usize,
}

impl<'a> Search<'a> {
    pub fn new(an: &'a Analysis, order: &'a Order, seen: &'a Tree) -> Self {
        Search {
            an,
            order,
            seen,
            tried: HashSet::new(),
            prints: HashMap::new(),
            fields: HashMap::new(),
            nearest: None,
            steps: 0,
        }
    }

    /// The least legal cut not below `floor` that gives the observed tree.
    pub fn run(&mut self, floor: Cut) -> Option<Cut> {
        let mut todo = vec![floor];
        while let Some(cut) = todo.pop() {
            if !self.tried.insert(cut.clone()) {
                continue;
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                self.nearest = Some((cut, "gave up: too many possible survivors".into()));
                return None;
            }
            let Some(mismatch) = self.compare(&cut) else {
                return Some(cut);
            };
            if mismatch.ways.is_empty() {
                let sum = |c: &Cut| c.iter().sum::<u32>();
                if self
                    .nearest
                    .as_ref()
                    .is_none_or(|(c, _)| sum(c) <= sum(&cut))
                {
                    self.nearest = Some((cut, mismatch.text));
                }
                continue;
            }
            // The last one pushed is tried first: the direct cure before the rebinding of names.
            todo.extend(mismatch.ways.into_iter().rev());
        }
        None
    }

    /// The cut raised so that `op` survives.
    fn with(&self, cut: &Cut, op: usize) -> Cut {
        let mut out = cut.clone();
        raise(&mut out, &self.order.need[op]);
        out
    }

    /// Index of the version that the cut shows.
    fn current<T>(&self, versions: &[Version<T>], cut: &Cut) -> Option<usize> {
        versions
            .iter()
            .rposition(|v| v.op.is_none_or(|op| self.order.survives(op, cut)))
    }

    /// The least later version that `good` accepts, as a cut.
    fn later<T>(
        &self,
        versions: &[Version<T>],
        after: usize,
        cut: &Cut,
        good: impl Fn(&T) -> bool,
    ) -> Option<Cut> {
        let v = versions[after..]
            .iter()
            .find(|v| v.op.is_some_and(|op| self.order.possible(op)) && good(&v.value))?;
        v.op.map(|op| self.with(cut, op))
    }

    fn print(&mut self, id: NodeId) -> u64 {
        let (seen, times) = (self.seen, self.an.times);
        *self
            .prints
            .entry(id)
            .or_insert_with(|| seen.nodes.get(&id).map_or(0, |n| n.fingerprint(times)))
    }

    /// Whether an inode of the model can, under some cut, be the observed one.
    fn plausible(&mut self, node: NodeId, seen: NodeId) -> bool {
        let Some(observed) = self.seen.nodes.get(&seen) else {
            return false;
        };
        match self.an.files.get(&node) {
            None => observed.is_dir(),
            Some(_) if observed.is_dir() => false,
            Some(versions) => {
                let print = self.print(seen);
                versions
                    .iter()
                    .any(|v| v.value == print && v.op.is_none_or(|op| self.order.possible(op)))
            }
        }
    }

    /// Compares the tree of `cut` with the observed one; `None`: the same.
    fn compare(&mut self, cut: &Cut) -> Option<Mismatch> {
        // Names on the way down, each with the cut that gives it another meaning that fits the observation.
        let mut others: Vec<Cut> = Vec::new();
        let mut todo = vec![(String::from("/"), self.an.base.root, self.seen.root)];
        let mut visited = HashSet::new();
        while let Some((path, node, seen)) = todo.pop() {
            if !visited.insert((node, seen)) {
                continue;
            }
            if let Some(m) = self.compare_dir(&path, node, seen, cut) {
                return Some(with_others(m, others));
            }
            let names = self.names(node, seen);
            for name in names {
                let child = format!(
                    "{}/{}",
                    path.trim_end_matches('/'),
                    String::from_utf8_lossy(&name)
                );
                match self.compare_name(&child, (node, seen), &name, cut, &mut others) {
                    Ok(Some((a, b))) => todo.push((child, a, b)),
                    Ok(None) => {}
                    Err(m) => return Some(with_others(m, others)),
                }
            }
        }
        // The judge of the judge: execute the survivors.
        let text = self.execute(cut).difference(self.seen, self.an.times)?;
        Some(with_others(
            Mismatch {
                text,
                ways: Vec::new(),
            },
            others,
        ))
    }

    fn names(&self, node: NodeId, seen: NodeId) -> BTreeSet<Bytes> {
        let mut names: BTreeSet<Bytes> = self.seen.nodes[&seen].entries.keys().cloned().collect();
        names.extend(
            self.an
                .entries
                .get(&node)
                .into_iter()
                .flat_map(|m| m.keys().cloned()),
        );
        names
    }

    /// The fields of a directory's inode.
    fn compare_dir(
        &mut self,
        path: &str,
        node: NodeId,
        seen: NodeId,
        cut: &Cut,
    ) -> Option<Mismatch> {
        let observed = &self.seen.nodes[&seen];
        let known = self.an.fields.get(&node)?;
        for name in observed.xattrs.keys() {
            if !known.contains_key(&Field::Xattr(name.clone())) {
                let text = format!(
                    "{path}: unexpected attribute {}",
                    String::from_utf8_lossy(name)
                );
                return Some(Mismatch {
                    text,
                    ways: Vec::new(),
                });
            }
        }
        for (field, versions) in known {
            let key = (seen, field.clone());
            let want = *self
                .fields
                .entry(key)
                .or_insert_with(|| field_value(observed, field));
            let Some(now) = self.current(versions, cut) else {
                continue;
            };
            if versions[now].value == want {
                continue;
            }
            // No order among these: any later version may be the latest survivor.
            let later = versions[now + 1..]
                .iter()
                .filter(|v| v.value == want)
                .filter_map(|v| v.op);
            let ways = later
                .filter(|op| self.order.possible(*op))
                .map(|op| self.with(cut, op))
                .collect();
            let text = format!("{path}: {field:?} is not what the latest surviving operation set");
            return Some(Mismatch { text, ways });
        }
        None
    }

    /// One name of a directory. Gives the pair of directories to go on with.
    #[allow(clippy::type_complexity)]
    fn compare_name(
        &mut self,
        path: &str,
        dirs: (NodeId, NodeId),
        name: &Bytes,
        cut: &Cut,
        others: &mut Vec<Cut>,
    ) -> Result<Option<(NodeId, NodeId)>, Mismatch> {
        let seen = self.seen.nodes[&dirs.1].entries.get(name).copied();
        let Some(versions) = self.an.entries.get(&dirs.0).and_then(|m| m.get(name)) else {
            return Err(Mismatch {
                text: format!("{path}: a name that nobody made"),
                ways: Vec::new(),
            });
        };
        // A list begins with a version without operation, so there is a current one.
        let now = self.current(versions, cut).unwrap_or(0);
        let Some(seen) = seen else {
            return match versions[now].value {
                None => Ok(None),
                Some(_) => Err(Mismatch {
                    text: format!("{path}: expected, not there"),
                    ways: self
                        .later(versions, now + 1, cut, |v| v.is_none())
                        .into_iter()
                        .collect(),
                }),
            };
        };
        let fits: HashSet<NodeId> = versions[now..]
            .iter()
            .filter_map(|v| v.value)
            .filter(|n| self.plausible(*n, seen))
            .collect();
        let other = |s: &Self, not: Option<NodeId>| {
            s.later(versions, now + 1, cut, |v| {
                v.is_some_and(|n| fits.contains(&n) && Some(n) != not)
            })
        };
        let Some(node) = versions[now].value else {
            let ways = other(self, None).into_iter().collect();
            return Err(Mismatch {
                text: format!("{path}: there, not expected (or with other contents)"),
                ways,
            });
        };
        let rebound = other(self, Some(node));
        match self.an.files.get(&node) {
            None if self.seen.nodes[&seen].is_dir() => {
                others.extend(rebound);
                Ok(Some((node, seen)))
            }
            None => Err(Mismatch {
                text: format!("{path}: not the expected directory"),
                ways: rebound.into_iter().collect(),
            }),
            Some(states) => {
                let print = self.print(seen);
                let at = self.current(states, cut).unwrap_or(0);
                if states[at].value == print {
                    others.extend(rebound);
                    return Ok(None);
                }
                let direct = self.later(states, at + 1, cut, |v| *v == print);
                let text = self.describe(path, node, seen, cut);
                Err(Mismatch {
                    text,
                    ways: direct.into_iter().chain(rebound).collect(),
                })
            }
        }
    }

    fn describe(&self, path: &str, node: NodeId, seen: NodeId, cut: &Cut) -> String {
        let tree = self.execute(cut);
        let text = match (tree.nodes.get(&node), self.seen.nodes.get(&seen)) {
            (Some(a), Some(b)) => a.difference(b, self.an.times),
            _ => None,
        };
        format!(
            "{path} (#{}): {}",
            node.0,
            text.unwrap_or_else(|| "another inode".into())
        )
    }

    /// Executes the survivors of `cut` in acceptance order.
    pub fn execute(&self, cut: &Cut) -> Tree {
        let mut tree = self.an.base.clone();
        for (i, a) in self.an.history.ops.iter().enumerate() {
            // A refusal shows as a difference.
            if self.order.survives(i, cut) {
                tree.survive(&a.op, &a.stamps);
            }
        }
        tree
    }
}

fn with_others(mut m: Mismatch, others: Vec<Cut>) -> Mismatch {
    m.ways.extend(others);
    m
}
