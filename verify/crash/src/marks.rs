//! What a driven workload did with atomic groups, O_ATOMIC files and barriers: rows that an exploration must have looked at.
use crate::counts::{Counts, count};
use crate::oracle::NodeId;
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
