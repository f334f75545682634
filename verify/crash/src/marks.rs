//! What a driven workload did with atomic groups, O_ATOMIC files and barriers: rows that an exploration must have looked at.
use crate::coverage::{Counts, count};
use crate::drive::Driver;
use crate::oracle::*;
use crate::run::Run;
use std::collections::{BTreeSet, HashMap};

/// Rows of [`Marks`], of the history, and of the states themselves.
pub const PROMISES: &[&str] = &[
    // A committed group that changed several inodes; one that was begun while another stream's was open.
    "group/several-files",
    "group/several-streams",
    // Groups that were taken back after so many operations.
    "abort/after-0",
    "abort/after-1",
    "abort/after-2",
    "abort/after-3",
    "abort/after-more",
    // Whose operation took another stream's group back: of a program without groups, or in a group of its own.
    "conflict/legacy",
    "conflict/group",
    // Content of a file that is open O_ATOMIC, written back from a mapping; and a sync of such a file after it.
    "atomic/mapped",
    "atomic/mapped-synced",
    // What a directory gave to a new inode; a list that chmod changed; a change of content, or owner, and the bits that it killed.
    "rights/flags-inherited",
    "rights/acl-inherited",
    "rights/setgid-inherited",
    "rights/acl-chmod",
    "rights/killed",
    // What flags refused; content from a mapping; a copy by the volume itself.
    "rights/refused",
    "file/mapped",
    "file/copied",
    // Three barriers and no sync between; and all subsets of the unflushed writes of such a run.
    "barrier/chain",
    "barrier/every-subset",
    // Crash states of runs with each of them.
    "states/groups",
    "states/atomic",
    "states/barriers",
];
/// Crash states of runs with at least one of the three.
pub const NEW_PROMISES: &str = "states/C11-C13";
/// All states, since these rows are counted: a file of an older exploration has none.
pub const ALL: &str = "states/all";

/// Counted while a workload is driven.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    pub(crate) counts: Counts,
    /// Operations of open groups and the inodes that they touched, by the history's stream.
    groups: HashMap<usize, (u64, BTreeSet<NodeId>)>,
    /// Files with content from a mapping that is not synced.
    mapped: BTreeSet<NodeId>,
}

impl Marks {
    pub(crate) fn mark(&mut self, name: &str) {
        count(&mut self.counts, name, 1);
    }

    pub(crate) fn begun(&mut self, number: usize, others: bool) {
        self.groups.insert(number, Default::default());
        if others {
            self.mark("group/several-streams");
        }
    }

    pub(crate) fn step(&mut self, number: usize, nodes: impl Iterator<Item = NodeId>) {
        if let Some((operations, touched)) = self.groups.get_mut(&number) {
            *operations += 1;
            touched.extend(nodes);
        }
    }

    pub(crate) fn committed(&mut self, number: usize) {
        let group = self.groups.remove(&number);
        if group.is_some_and(|(_, touched)| touched.len() > 1) {
            self.mark("group/several-files");
        }
    }

    pub(crate) fn aborted(&mut self, number: usize) {
        let group = self.groups.remove(&number);
        let name = match group.map_or(0, |(operations, _)| operations) {
            0 => "abort/after-0",
            1 => "abort/after-1",
            2 => "abort/after-2",
            3 => "abort/after-3",
            _ => "abort/after-more",
        };
        self.mark(name);
    }

    pub(crate) fn conflict(&mut self, in_a_group: bool) {
        self.mark(match in_a_group {
            true => "conflict/group",
            false => "conflict/legacy",
        });
    }

    pub(crate) fn mapped(&mut self, node: NodeId) {
        self.mapped.insert(node);
        self.mark("atomic/mapped");
    }

    pub(crate) fn synced(&mut self, node: NodeId) {
        if self.mapped.remove(&node) {
            self.mark("atomic/mapped-synced");
        }
    }
}

impl Driver {
    /// This write comes from a mapping: of a file that is open, within its length. Which ones do is in their bytes.
    pub(crate) fn is_mapped(&self, op: &Op) -> bool {
        let Op::Write {
            node, offset, data, ..
        } = op
        else {
            return false;
        };
        let file = self.tree.get(*node);
        let within = file.is_ok_and(|n| offset + data.len() as u64 <= n.size);
        // What flags forbid is not mapped, but for by those who do not look.
        let is_open = self.atomics.contains_key(node)
            || self.maps
                && self.history.groups == 0
                && self.writers.contains_key(node)
                && file.is_ok_and(|n| n.flags == 0);
        within && is_open && data.first().is_some_and(|b| b & 4 == 0)
    }

    /// Who wrote last to a file that is open: the stream of what its mappings store. Of others nothing is known.
    pub(crate) fn note_writer(&mut self, op: &Op, stream: usize) {
        let node = match op {
            Op::Write { node, .. }
            | Op::Allocate { node, .. }
            | Op::Punch { node, .. }
            | Op::Zero { node, .. } => node,
            Op::SetAttr { node, set } if set.size.is_some() => node,
            _ => return,
        };
        if self.maps && self.history.groups == 0 && self.open.contains(node) {
            self.writers.insert(*node, stream);
        }
    }

    /// Rows of what rights did, once the tree has an operation.
    pub(crate) fn mark_rights(&mut self, op: &Op, bits: bool) {
        let made = op.makes().and_then(|n| self.tree.get(n).ok());
        let inherited = |n: &Node| {
            [
                (n.flags != 0, "rights/flags-inherited"),
                (n.xattrs.contains_key(ACL_ACCESS), "rights/acl-inherited"),
                (
                    n.is_dir() && n.mode & 0o2000 != 0,
                    "rights/setgid-inherited",
                ),
            ]
        };
        let node = op.target().and_then(|n| self.tree.get(n).ok());
        let listed = |n: &Node| n.xattrs.contains_key(ACL_ACCESS);
        let chmod = matches!(op, Op::SetAttr { set, .. } if set.mode.is_some());
        let done = [
            (chmod && node.is_some_and(listed), "rights/acl-chmod"),
            (
                bits && node.is_some_and(|n| !n.has_bits_to_kill()),
                "rights/killed",
            ),
        ];
        let rows: Vec<(bool, &str)> = made
            .map(inherited)
            .into_iter()
            .flatten()
            .chain(done)
            .collect();
        for (_, row) in rows.into_iter().filter(|r| r.0) {
            self.marks.mark(row);
        }
    }
}

/// Three barriers in a row and no sync call between them.
fn has_chain(history: &History) -> bool {
    let between = |from: usize, to: usize| {
        let mut syncs = history.syncs.iter();
        syncs.any(|s| (from..=to).contains(&s.after))
    };
    let barriers = history.barriers.windows(3);
    let mut chains = barriers.filter(|b| !between(b[0].before, b[2].before));
    chains.next().is_some()
}

/// What a run has of each promise; its states are counted under these names.
pub struct Kinds {
    chain: bool,
    states: Vec<&'static str>,
}

impl Kinds {
    pub fn of(run: &Run) -> Kinds {
        let history = &run.an.history;
        let has = |wanted: fn(&Op) -> bool| history.ops.iter().any(|a| wanted(&a.op));
        let kinds = [
            (
                "states/groups",
                run.aborts > 0 || has(|op| matches!(op, Op::Commit { .. })),
            ),
            (
                "states/atomic",
                run.taken_back > 0 || has(|op| matches!(op, Op::Publish { .. })),
            ),
            ("states/barriers", !history.barriers.is_empty()),
        ];
        let mut states: Vec<&str> = kinds.iter().filter(|k| k.1).map(|k| k.0).collect();
        if !states.is_empty() {
            states.push(NEW_PROMISES);
        }
        Kinds {
            chain: has_chain(history),
            states,
        }
    }

    /// What the run itself gives.
    pub(crate) fn count_run(&self, run: &Run, counts: &mut Counts) {
        for (name, n) in &run.marks.counts {
            count(counts, name, *n);
        }
        count(counts, "barrier/chain", self.chain.into());
    }

    /// A distinct state of it; `subset`: of all subsets of what is unflushed one.
    pub(crate) fn count_state(&self, subset: bool, counts: &mut Counts) {
        for name in self.states.iter().chain(&[ALL]) {
            count(counts, name, 1);
        }
        count(
            counts,
            "barrier/every-subset",
            (self.chain && subset).into(),
        );
    }
}
