//! Atomic groups in a driven workload: a stream that is in a group does its operations there until it commits or aborts, or until another
//! stream's operation ends the group.
use super::{Driver, Ended, is_stop};
use crate::generate::Action;
use crate::observe::observe;
use crate::oracle::*;
use ccfs_engine::StreamId;

/// A group that is open, in the engine and in the history.
#[derive(Clone, Copy, Debug)]
pub struct OpenGroup {
    pub id: StreamId,
    /// The history's stream that holds its operations.
    pub number: usize,
}

impl Driver {
    pub(crate) fn group_act(&mut self, stream: usize, action: &Action) -> Result<Ended, String> {
        let open = self.groups.get(&stream).copied();
        match (action, open) {
            (Action::GroupBegin, None) => self.group_begin(stream),
            (Action::GroupCommit { durable }, Some(group)) => {
                self.group_commit(stream, group, *durable)
            }
            (Action::GroupAbort, Some(group)) => {
                if let Err(e) = self.vol.group_abort(group.id) {
                    return stopped_or(e, "abort");
                }
                self.settle_groups()?;
                self.check_all("an abort")?;
                Ok(Ended::Accepted)
            }
            _ => Ok(Ended::Refused),
        }
    }

    fn group_begin(&mut self, stream: usize) -> Result<Ended, String> {
        let id = match self.vol.group_begin(self.streams[stream], 0, None) {
            Ok(id) => id,
            Err(e) => return stopped_or(e, "begin"),
        };
        if self.history.groups == 0 {
            self.history.groups = self.history.streams;
        }
        let number = self.history.streams;
        self.history.streams += 1;
        self.marks.begun(number, !self.groups.is_empty());
        self.groups.insert(stream, OpenGroup { id, number });
        Ok(Ended::Accepted)
    }

    fn group_commit(
        &mut self,
        stream: usize,
        group: OpenGroup,
        durable: bool,
    ) -> Result<Ended, String> {
        let call = self.committing(stream, group);
        if let Err(e) = self.vol.group_commit(group.id, durable) {
            return stopped_or(e, "commit");
        }
        if durable {
            self.has_synced(call);
        }
        Ok(Ended::Accepted)
    }

    /// The commit of a group takes its place now; what it promises when it is durable.
    pub(crate) fn committing(&mut self, stream: usize, group: OpenGroup) -> Sync {
        self.groups.remove(&stream);
        self.marks.committed(group.number);
        self.began.push(self.events());
        self.history.ops.push(Accepted {
            stream,
            op: Op::Commit {
                group: group.number,
            },
            stamps: Vec::new(),
        });
        Sync {
            stream,
            kind: SyncKind::Stream,
            after: self.history.ops.len(),
        }
    }

    /// Is this still the group that the stream is in?
    pub(crate) fn is_open_group(&self, stream: usize, group: OpenGroup) -> bool {
        let now = self.groups.get(&stream);
        now.is_some_and(|g| g.number == group.number)
    }

    /// Takes all open groups back.
    pub fn abort_groups(&mut self) -> Result<(), String> {
        for group in self.groups.values() {
            let aborted = self.vol.group_abort(group.id);
            aborted.map_err(|e| format!("abort failed: {e}"))?;
        }
        self.settle_groups()?;
        self.check_all("the abort of all groups")
    }

    /// Groups that the engine has taken back: what they did never was. True: there were some.
    pub(crate) fn settle_groups(&mut self) -> Result<bool, String> {
        let gone = self.groups.iter();
        let gone: Vec<(usize, OpenGroup)> = gone
            .filter(|(_, g)| !self.vol.group_is_open(g.id))
            .map(|(s, g)| (*s, *g))
            .collect();
        for (stream, group) in &gone {
            self.groups.remove(stream);
            let (commit, abort) = (
                self.vol.group_commit(group.id, true),
                self.vol.group_abort(group.id),
            );
            for again in [commit, abort] {
                // A volume that has stopped says so first.
                let ended = again.as_ref().map_err(|e| e.errno()) == Err(libc::ECANCELED);
                if !ended && !self.vol.is_stopped() {
                    return Err(format!("a group ended twice: {again:?}"));
                }
            }
            self.strike(group.number);
            self.marks.aborted(group.number);
            self.aborts += 1;
        }
        if !gone.is_empty() {
            self.rebuild()?;
        }
        Ok(!gone.is_empty())
    }

    /// Strikes the operations of a stream from the history.
    fn strike(&mut self, number: usize) {
        let doomed = |a: &Accepted| a.stream == number;
        for sync in self
            .history
            .syncs
            .iter_mut()
            .chain(self.promised.values_mut())
        {
            let before = &self.history.ops[..sync.after];
            sync.after -= before.iter().filter(|a| doomed(a)).count();
        }
        for barrier in &mut self.history.barriers {
            let ops = &self.history.ops;
            let doomed_before = |n: usize| ops[..n].iter().filter(|a| doomed(a)).count();
            barrier.call.after -= doomed_before(barrier.call.after);
            barrier.before -= doomed_before(barrier.before);
        }
        let mut at = 0;
        self.began.retain(|_| {
            at += 1;
            !doomed(&self.history.ops[at - 1])
        });
        self.history.ops.retain(|a| !doomed(a));
    }

    /// The tree and what is known of its inodes, from the history.
    fn rebuild(&mut self) -> Result<(), String> {
        let shown = std::mem::replace(&mut self.tree, self.base.clone());
        for a in &self.history.ops {
            let done = self.tree.apply(&a.op, &a.stamps);
            done.map_err(|e| format!("{}: impossible without a group, errno {e}", a.op))?;
        }
        self.redraft(&shown);
        let tree = &self.tree;
        let (open, lost): (Vec<_>, Vec<_>) =
            self.open.iter().partition(|n| tree.nodes.contains_key(n));
        self.open = open;
        for node in lost {
            // Opened in the group that made it: the "kernel" lets go of it.
            self.vol.forget(self.all_inos[&node], 1);
        }
        let lives = |n: &NodeId| {
            let node = tree.nodes.get(n);
            node.is_some_and(|node| node.nlink > 0) || node.is_some() && self.open.contains(n)
        };
        let all = self.all_inos.iter();
        self.inos = all
            .filter(|(n, _)| lives(n))
            .map(|(n, i)| (*n, *i))
            .collect();
        Ok(())
    }

    /// Everything that the volume shows against the model.
    pub(crate) fn check_all(&self, after: &str) -> Result<(), String> {
        let seen = observe(&self.vol)?;
        match self.tree.difference(&seen, true) {
            Some(d) => Err(format!("after {after} the tree is wrong: {d}")),
            None => Ok(()),
        }
    }
}

pub(crate) fn stopped_or(e: ccfs_engine::Error, what: &str) -> Result<Ended, String> {
    if is_stop(&e) {
        Ok(Ended::Stopped)
    } else {
        Err(format!("{what} failed: {e}"))
    }
}
