//! Why transactions are committed, and why one comes after another.
use crate::base::types::{Ino, StreamId};

/// Why one transaction has to come after another (C5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Both changed the same inode that is no directory.
    File,
    /// Both changed the same name in a directory.
    Name,
    /// The directory was created, or its mode, owner, ACL or attributes changed, before its entries did.
    Directory,
    /// The directory's entries changed before it was removed or replaced.
    Removal,
    /// Both moved a directory to another parent.
    Move,
    /// It is the same stream.
    Stream,
    /// A barrier of the later one's stream stands between them (C13).
    Barrier,
}

impl Rule {
    /// Its name in `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Rule::File => "file",
            Rule::Name => "name",
            Rule::Directory => "directory",
            Rule::Removal => "removal",
            Rule::Move => "move",
            Rule::Stream => "stream",
            Rule::Barrier => "barrier",
        }
    }
}

/// What a caller wants durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncCall {
    /// fsync, fdatasync, O_SYNC, O_DSYNC.
    File(Ino),
    /// syncfs, sync.
    Volume,
    /// streamsync.
    Stream(StreamId),
}

impl SyncCall {
    /// Its name in `--json`.
    pub fn name(self) -> &'static str {
        match self {
            SyncCall::File(_) => "fsync",
            SyncCall::Volume => "syncfs",
            SyncCall::Stream(_) => "streamsync",
        }
    }
}

/// Who called for a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncer {
    /// The system call, and what it is about.
    pub call: SyncCall,
    /// Thread id of the caller, 0 if unknown.
    pub pid: u32,
    /// The caller's user.
    pub uid: u32,
    /// The caller's stream.
    pub stream: StreamId,
}

/// Why a transaction was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A sync call wanted it.
    Sync(Syncer),
    /// A transaction of stream `to` was committed that has to come after this one.
    Dependency {
        /// The stream that it has to come before.
        to: StreamId,
        /// Which rule of C5 ties the two.
        rule: Rule,
        /// What both touched.
        inode: Ino,
    },
    /// It was old enough (C7).
    Interval,
    /// Too much data in memory.
    DirtyLimit,
    /// The log takes no larger transaction.
    LogLimit,
    /// An operation found no free space; uncommitted frees become space.
    Space,
    /// The volume is unmounted.
    Unmount,
    /// A barrier closed it (C13).
    Barrier,
}

impl Cause {
    /// Every name, in the order of `Totals::commits_by_cause`.
    pub const NAMES: [&'static str; 8] = [
        "sync",
        "dependency",
        "interval",
        "dirty limit",
        "log limit",
        "space",
        "unmount",
        "barrier",
    ];

    pub(crate) fn index(self) -> usize {
        match self {
            Cause::Sync(_) => 0,
            Cause::Dependency { .. } => 1,
            Cause::Interval => 2,
            Cause::DirtyLimit => 3,
            Cause::LogLimit => 4,
            Cause::Space => 5,
            Cause::Unmount => 6,
            Cause::Barrier => 7,
        }
    }

    /// Its name in `--json`.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }
}
