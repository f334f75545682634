//! Streams for those who did not ask for one: the mount's policy and its rules.
//!
//! A policy decides per session, never within one (C1): with `streams=cgroup` and `streams=uid` everything in a session goes where
//! its leader belongs, or, if the leader has ended, who was seen first. A session that was begun outside of the daemon's process id
//! namespace has no number here: its processes are in the default stream with `streams=session`, and each speaks for itself with
//! `cgroup` and `uid`. Rules are the user's exceptions: they look at one process, and count for it and what it starts.
use super::rules::{Assign, Facts, Rules};
use super::streams::{Origin, Registry, Stream};
use crate::procfs::Proc;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Who shares a stream where nobody asked for one (mount option `streams=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// Everybody.
    #[default]
    Shared,
    /// Each session (getsid) has its own.
    Session,
    /// The sessions of a control group.
    Cgroup,
    /// The sessions of a user.
    Uid,
}

impl Grouping {
    /// As the mount option names it.
    pub fn name(self) -> &'static str {
        match self {
            Grouping::Shared => "shared",
            Grouping::Session => "session",
            Grouping::Cgroup => "cgroup",
            Grouping::Uid => "uid",
        }
    }

    /// From the name that the mount option gives; `None`: there is no such policy.
    pub fn parse(name: &str) -> Option<Grouping> {
        let all = [
            Grouping::Shared,
            Grouping::Session,
            Grouping::Cgroup,
            Grouping::Uid,
        ];
        all.into_iter().find(|g| g.name() == name)
    }
}

/// Those who share a stream of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Group {
    Session(u32),
    Cgroup(String),
    User(u32),
}

pub struct Policy {
    pub grouping: Grouping,
    pub rules: Rules,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<u32, Session>,
    groups: HashMap<Group, Weak<Stream>>,
    /// (number of a rule, user) -> the rule's shared stream.
    shared: HashMap<(usize, u32), Weak<Stream>>,
}

/// Where a session goes, for as long as anybody is in that stream.
struct Session {
    stream: Weak<Stream>,
    /// Start time of the leader, clock ticks; `None` if it had ended.
    leader: Option<u64>,
}

impl Session {
    /// The same session, not a later one of that number. (While a session has members its number is not given again.)
    fn is_led_by(&self, leader: Option<u64>) -> bool {
        leader.is_none() || self.leader == leader
    }
}

struct Process<'a>(&'a Proc, u32);

impl Facts for Process<'_> {
    fn exe(&self) -> Option<PathBuf> {
        self.0.exe(self.1)
    }
    fn cgroup(&self) -> Option<String> {
        self.0.cgroup(self.1)
    }
    fn uid(&self) -> Option<u32> {
        self.0.uid(self.1)
    }
}

impl Policy {
    pub fn new(grouping: Grouping, rules: Rules) -> Policy {
        Policy {
            grouping,
            rules,
            state: Mutex::default(),
        }
    }

    /// Everybody is in the default stream until somebody asks for another.
    pub fn is_trivial(&self) -> bool {
        self.grouping == Grouping::Shared && self.rules.is_empty()
    }

    /// The stream that the policy gives to a process.
    pub fn stream_of(&self, proc: &Proc, registry: &Registry, process: u32) -> Arc<Stream> {
        if self.grouping == Grouping::Shared {
            return registry.everybody.clone();
        }
        let session = proc.stat(process).map_or(0, |stat| stat.session);
        let leader = (session != 0)
            .then(|| proc.stat(session).map(|stat| stat.start_ticks))
            .flatten();
        let mut state = self.state.lock();
        let known = state.sessions.get(&session);
        if let Some(stream) = known
            .filter(|s| s.is_led_by(leader))
            .and_then(|s| s.stream.upgrade())
        {
            return stream;
        }
        let Some(group) = self.group(proc, session, process) else {
            return registry.everybody.clone();
        };
        // A later session of the same number has a stream of its own.
        let known = match group {
            Group::Session(_) => None,
            _ => state.groups.get(&group).and_then(Weak::upgrade),
        };
        let stream = match known.map_or_else(|| registry.make(None, 0, Origin::Policy), Ok) {
            Ok(stream) => stream,
            Err(_) => return registry.everybody.clone(),
        };
        state.groups.insert(group, Arc::downgrade(&stream));
        if session != 0 {
            let stream_of = Session {
                stream: Arc::downgrade(&stream),
                leader,
            };
            state.sessions.insert(session, stream_of);
        }
        stream
    }

    /// The process has begun a session: what is known of its number was an earlier one's, unless somebody has asked already.
    pub fn begin_session(&self, proc: &Proc, process: u32) {
        let mut state = self.state.lock();
        let Some(known) = state.sessions.get(&process).map(|s| s.leader) else {
            return;
        };
        let leader = proc.stat(process).map(|stat| stat.start_ticks);
        if known.is_none() || known != leader {
            state.sessions.remove(&process);
        }
    }

    fn group(&self, proc: &Proc, session: u32, process: u32) -> Option<Group> {
        // A session is named by its leader, which may have ended.
        let spokesman = if session == 0 { process } else { session };
        match self.grouping {
            Grouping::Shared => None,
            Grouping::Session => (session != 0).then_some(Group::Session(session)),
            Grouping::Cgroup => proc
                .cgroup(spokesman)
                .or_else(|| proc.cgroup(process))
                .map(Group::Cgroup),
            Grouping::Uid => proc
                .uid(spokesman)
                .or_else(|| proc.uid(process))
                .map(Group::User),
        }
    }

    /// The stream that a rule gives to a process; `None` if no rule holds.
    pub fn by_rule(&self, proc: &Proc, registry: &Registry, process: u32) -> Option<Arc<Stream>> {
        let (number, rule) = self.rules.find(&Process(proc, process))?;
        if rule.assign == Assign::Default {
            return Some(registry.everybody.clone());
        }
        let uid = proc.uid(process)?;
        let make = || registry.make(Some(uid), rule.flags, Origin::Rule).ok();
        if rule.assign == Assign::Own {
            return make();
        }
        let mut state = self.state.lock();
        let known = state.shared.get(&(number, uid)).and_then(Weak::upgrade);
        let stream = known.or_else(make)?;
        state.shared.insert((number, uid), Arc::downgrade(&stream));
        Some(stream)
    }

    /// Forgets groups whose streams have ended. A stream that is not committed yet is held by the registry, so a group that comes
    /// back before that finds it again.
    pub fn sweep(&self) {
        let mut state = self.state.lock();
        let lives = |stream: &Weak<Stream>| stream.strong_count() > 0;
        state.sessions.retain(|_, session| lives(&session.stream));
        state.groups.retain(|_, stream| lives(stream));
        state.shared.retain(|_, stream| lives(stream));
    }
}
