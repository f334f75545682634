//! Why an atomic group was taken back.
use crate::abi::{self, GroupArg};
use std::fmt;
use std::io;
use std::time::Duration;

/// What ended a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Somebody asked for it: its owner, or who has its handle.
    Asked,
    /// Its last member ended without a commit.
    Left,
    /// It was open for longer than its owner allowed.
    OwnTime(Duration),
    /// It was open for longer than the mount option `group_timeout=` allows.
    MountTime(Duration),
    /// Another program wanted to change the same, and had waited.
    Waited,
    /// Another program wanted to change the same, and waiting would have held up others.
    WaitsForNobody,
    /// What was stored through a mapping did not fit into it.
    StoresTooLarge,
    /// A page of what was stored through a mapping was lost otherwise.
    StoresLost,
    /// The volume was unmounted.
    Unmounted,
}

/// What a group was too large for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Memory of all open groups and unsynced O_ATOMIC files, bytes.
    Memory(u64),
    /// Records of one transaction in the log, bytes.
    Log(u64),
    /// Names that a group may change.
    Names(u64),
}

/// Why a group was taken back, and what was refused before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBack {
    /// Why.
    pub cause: Cause,
    /// A change of it was refused with `EDQUOT` for this limit.
    pub refused: Option<Limit>,
}

impl TakenBack {
    /// From the answer to COMMIT or ABORT. `None`: it does not say.
    pub(crate) fn of(answer: &GroupArg) -> Option<TakenBack> {
        let value = answer.timeout_ms;
        let time = Duration::from_millis(value);
        let cause = match answer.flags & abi::GROUP_CAUSE {
            abi::GROUP_ASKED => Cause::Asked,
            abi::GROUP_LEFT => Cause::Left,
            abi::GROUP_OWN_TIME => Cause::OwnTime(time),
            abi::GROUP_MOUNT_TIME => Cause::MountTime(time),
            abi::GROUP_WAITED => Cause::Waited,
            abi::GROUP_WAITS_FOR_NOBODY => Cause::WaitsForNobody,
            abi::GROUP_STORES_TOO_LARGE => Cause::StoresTooLarge,
            abi::GROUP_STORES_LOST => Cause::StoresLost,
            abi::GROUP_UNMOUNTED => Cause::Unmounted,
            _ => return None,
        };
        let refused = match answer.flags & !abi::GROUP_CAUSE {
            abi::GROUP_MEMORY => Some(Limit::Memory(value)),
            abi::GROUP_LOG => Some(Limit::Log(value)),
            abi::GROUP_NAMES => Some(Limit::Names(value)),
            _ => None,
        };
        Some(TakenBack { cause, refused })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |t: &Duration| t.as_millis() as f64 / 1000.0;
        match self {
            Cause::Asked => write!(f, "it was asked for"),
            Cause::Left => write!(f, "its last process ended without a commit"),
            Cause::OwnTime(t) => write!(f, "its time of {} s was up", seconds(t)),
            Cause::MountTime(t) => write!(
                f,
                "the time of {} s was up that the mount option group_timeout= gives",
                seconds(t)
            ),
            Cause::Waited => write!(f, "another program changed the same files"),
            Cause::WaitsForNobody => write!(
                f,
                "another program changed names in a directory that others may write to, or moved something between directories"
            ),
            Cause::StoresTooLarge => write!(f, "what was stored through a mapping did not fit"),
            Cause::StoresLost => write!(f, "a page that was stored through a mapping was lost"),
            Cause::Unmounted => write!(f, "the volume was unmounted"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: &u64| format!("{:.1} MiB", *bytes as f64 / f64::from(1 << 20));
        match self {
            Limit::Memory(bytes) => write!(
                f,
                "all atomic groups together may hold {}: more by the mount option dirty=, of which that is half",
                mib(bytes)
            ),
            Limit::Log(bytes) => write!(
                f,
                "a group may need {} of the log: a volume with a larger log (ccfs mkfs DEVICE -- -J size=128) takes more",
                mib(bytes)
            ),
            Limit::Names(names) => write!(
                f,
                "a group may change {names} names: a volume with a larger log (ccfs mkfs DEVICE -- -J size=128) takes more"
            ),
        }
    }
}

impl fmt::Display for TakenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.refused {
            None => self.cause.fmt(f),
            Some(limit) => write!(f, "{}, and was too large: {limit}", self.cause),
        }
    }
}

/// A commit that failed.
#[derive(Debug)]
pub struct NotCommitted {
    /// What COMMIT answered.
    pub error: io::Error,
    /// The group was taken back, nothing of it is there. `None`: that is not known.
    pub why: Option<TakenBack>,
}

impl From<NotCommitted> for io::Error {
    fn from(e: NotCommitted) -> io::Error {
        e.error
    }
}

impl fmt::Display for NotCommitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Some(why) => write!(f, "the atomic group was taken back: {why}"),
            None => self.error.fmt(f),
        }
    }
}

impl std::error::Error for NotCommitted {}
