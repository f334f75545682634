//! What an exploration looked at, and what it must have looked at to count.
use crate::counts::{Counts, count};
use crate::marks::{ALL, NEW_PROMISES, PROMISES};
use crate::oracle::{Accepted, History, Op, Relation, SyncKind};
use crate::run::{Rows, Run};
use ccfs_engine::Row;
use std::fmt;

/// What was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// `runs`, `states` (distinct ones), `repeated` (not looked at again), `operations`, `ENOSPC`.
    pub totals: Counts,
    /// Operation and how it depends on operations of other streams: `unrelated` or a kind of C5, e.g. `rename/move`.
    pub kinds: Counts,
    pub outcomes: Counts,
    /// How thoroughly states were looked at.
    pub depths: Counts,
    /// Rows of recovery's decision table.
    pub rows: Counts,
    pub syncs: Counts,
    /// Hard spots by number.
    pub spots: Counts,
    /// What was done with groups, O_ATOMIC files and barriers.
    pub promises: Counts,
}

/// Which relations an operation can have with an earlier one of another stream (C5).
const POSSIBLE: &[(&str, &[Relation])] = {
    use Relation::*;
    &[
        ("create", &[Name, Creation, Rights]),
        ("mkdir", &[Name, Creation, Rights]),
        ("symlink", &[Name, Creation, Rights]),
        ("tmpfile", &[Creation, Rights]),
        ("link", &[Inode, Name, Creation, Rights]),
        ("unlink", &[Inode, Name, Creation, Rights]),
        ("rmdir", &[Name, Creation, Rights, Removal]),
        ("rename", &[Inode, Name, Creation, Rights, Removal, Move]),
        ("rename-noreplace", &[Inode, Name, Creation, Rights, Move]),
        ("rename-exchange", &[Inode, Name, Creation, Rights, Move]),
        ("rename-whiteout", &[Inode, Name, Creation, Rights, Move]),
        ("write", &[Inode]),
        ("allocate", &[Inode]),
        ("punch", &[Inode]),
        ("zero", &[Inode]),
        ("truncate", &[Inode]),
        ("setattr", &[Inode, Creation, Rights]),
        ("setxattr", &[Inode, Creation, Rights]),
        ("removexattr", &[Inode, Creation]),
        ("setflags", &[Inode, Creation]),
        ("commit", &[]),
        ("publish", &[Inode]),
    ]
};

const OUTCOMES: &[&str] = &[
    "none", "all", "prefix", "all-but", "only", "mask", "subset", "torn", "torn-at",
];
const DEPTHS: &[&str] = &["read", "fsck", "live", "again", "damage"];
const SYNCS: &[&str] = &["fsync", "streamsync", "syncfs", "fbarrier", "syncv"];
/// What a barrier can order for its stream: its own operations only, or also those of others.
const ORDERED: &[&str] = &["fbarrier/own", "fbarrier/foreign"];

/// A row's name in print.
fn row_name(row: Row) -> String {
    format!("{row:?}")
}

impl Coverage {
    /// The counts with their names, as they are printed and saved.
    pub fn parts(&mut self) -> [(&'static str, &mut Counts); 8] {
        [
            ("total", &mut self.totals),
            ("operation", &mut self.kinds),
            ("outcome", &mut self.outcomes),
            ("depth", &mut self.depths),
            ("recovery", &mut self.rows),
            ("sync", &mut self.syncs),
            ("spot", &mut self.spots),
            ("promise", &mut self.promises),
        ]
    }

    pub fn add(&mut self, other: &Coverage) {
        let mut other = other.clone();
        for ((_, mine), (_, theirs)) in self.parts().into_iter().zip(other.parts()) {
            for (name, n) in theirs.iter() {
                count(mine, name, *n);
            }
        }
    }

    pub fn total(&self, name: &str) -> u64 {
        self.totals.get(name).copied().unwrap_or(0)
    }

    /// Distinct crash states of runs with groups, O_ATOMIC files or barriers; and all states among which these were counted.
    pub fn states_of_new_promises(&self) -> (u64, u64) {
        let states = |name| self.promises.get(name).copied().unwrap_or(0);
        (states(NEW_PROMISES), states(ALL))
    }

    /// Distinct crash states.
    pub fn states(&self) -> u64 {
        self.total("states")
    }

    pub(crate) fn add_rows(&mut self, rows: &Rows) {
        for (row, n) in Row::ALL.into_iter().zip(rows) {
            count(&mut self.rows, &row_name(row), *n);
        }
    }

    /// A run before any of its crash states.
    pub(crate) fn of(run: &Run) -> Coverage {
        let mut c = Coverage::default();
        count(&mut c.totals, "runs", 1);
        count(&mut c.totals, "ENOSPC", run.no_space);
        count(&mut c.totals, "aborts", run.aborts);
        count(&mut c.totals, "aborts-by-conflict", run.conflicts);
        count(&mut c.totals, "taken-back", run.taken_back);
        count(&mut c.totals, "operations", run.an.placed.len() as u64);
        Kinds::of(run).count_run(run, &mut c.promises);
        for (placed, accepted) in run.an.placed.iter().zip(&run.an.history.ops) {
            let foreign = |t: &&(usize, Relation)| run.an.placed[t.0].stream != placed.stream;
            let mut relations: Vec<&str> = placed
                .relations
                .iter()
                .filter(foreign)
                .map(|r| r.1.name())
                .collect();
            relations.sort();
            relations.dedup();
            if relations.is_empty() {
                relations.push("unrelated");
            }
            for relation in relations {
                count(
                    &mut c.kinds,
                    &format!("{}/{relation}", accepted.op.kind()),
                    1,
                );
            }
        }
        let several = |a: &&Accepted| matches!(&a.op, Op::Publish { files } if files.len() > 1);
        let together = run.an.history.ops.iter().filter(several);
        count(&mut c.syncs, "syncv", together.count() as u64);
        for sync in &run.an.history.syncs {
            let kind = match sync.kind {
                SyncKind::File(_) => "fsync",
                SyncKind::Stream => "streamsync",
                SyncKind::Volume => "syncfs",
            };
            count(&mut c.syncs, kind, 1);
        }
        for barrier in &run.an.history.barriers {
            let call = &barrier.call;
            let foreign =
                |i: &usize| run.an.placed[*i].stream != call.stream && run.an.covers(call, *i);
            let kind = match (0..call.after).any(|i| foreign(&i)) {
                true => ORDERED[1],
                false => ORDERED[0],
            };
            count(&mut c.syncs, "fbarrier", 1);
            count(&mut c.syncs, kind, 1);
        }
        c
    }

    /// Everything that must be there and is not.
    pub fn missing(&self) -> Vec<String> {
        let mut all: Vec<(&str, &Counts, String)> = Vec::new();
        for (kind, relations) in POSSIBLE {
            all.push(("operation", &self.kinds, format!("{kind}/unrelated")));
            let names = relations.iter().map(|r| format!("{kind}/{}", r.name()));
            all.extend(names.map(|n| ("operation", &self.kinds, n)));
        }
        all.extend(
            OUTCOMES
                .iter()
                .map(|o| ("outcome", &self.outcomes, o.to_string())),
        );
        all.extend(
            DEPTHS
                .iter()
                .map(|d| ("depth", &self.depths, d.to_string())),
        );
        all.extend(Row::ALL.map(|r| ("recovery", &self.rows, row_name(r))));
        let syncs = SYNCS.iter().chain(ORDERED);
        all.extend(syncs.map(|s| ("sync", &self.syncs, s.to_string())));
        all.extend((1..=28).map(|n| ("spot", &self.spots, format!("{n:02}"))));
        all.extend(
            PROMISES
                .iter()
                .map(|p| ("promise", &self.promises, p.to_string())),
        );
        let totals = ["ENOSPC", "aborts", "aborts-by-conflict", "taken-back"];
        all.extend(totals.map(|t| ("total", &self.totals, t.into())));
        all.retain(|(_, counts, name)| !counts.contains_key(name));
        all.into_iter()
            .map(|(part, _, name)| format!("{part} {name}"))
            .collect()
    }

    /// As lines `PART NAME NUMBER`, for a file.
    pub fn to_lines(&self) -> String {
        let mut copy = self.clone();
        let mut text = String::new();
        for (part, counts) in copy.parts() {
            for (name, n) in counts.iter() {
                text += &format!("{part} {name} {n}\n");
            }
        }
        text
    }

    /// Takes one such line in. False: it is none.
    pub fn take_line(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let [part, name, number] = words[..] else {
            return false;
        };
        let Ok(n) = number.parse() else { return false };
        for (known, counts) in self.parts() {
            if known == part {
                count(counts, name, n);
                return true;
            }
        }
        false
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = self.clone();
        let mut first = true;
        for (part, counts) in copy.parts() {
            let line: Vec<String> = counts.iter().map(|(k, n)| format!("{k} {n}")).collect();
            let end = if std::mem::take(&mut first) { "" } else { "\n" };
            write!(f, "{end}{part}: {}", line.join(", "))?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_give_the_same_coverage_again() {
        let mut c = Coverage::default();
        count(&mut c.totals, "states", 7);
        count(&mut c.kinds, "rename/move", 2);
        let mut back = Coverage::default();
        assert!(c.to_lines().lines().all(|l| back.take_line(l)));
        assert_eq!(c, back);
        assert!(!back.take_line("nonsense x 1") && !back.take_line("total states"));
        assert!(c.missing().contains(&"spot 28".to_string()));
        assert!(!c.missing().contains(&"operation rename/move".to_string()));
    }
}
