//! What a store is for this crate: something to connect to, and sessions that answer requests.
use ccfs_device::{AlignedBuf, SharedBuf};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What a session is asked for. Ranges are aligned to [`Geometry::min_io`] and no longer than [`Geometry::max_io`].
#[derive(Clone)]
pub enum Request {
    /// Bytes from there on.
    Read {
        /// Bytes from the beginning.
        offset: u64,
        /// Bytes.
        len: usize,
    },
    /// These bytes, there.
    Write {
        /// Bytes from the beginning.
        offset: u64,
        /// What is written.
        data: SharedBuf,
    },
    /// Writes that were answered before are durable.
    Flush,
    /// The range holds nothing of value.
    Discard {
        /// Bytes from the beginning.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Request {
    /// Begin and end of what it changes, bytes; `None`: it changes nothing.
    pub fn changes(&self) -> Option<(u64, u64)> {
        match self {
            Request::Read { .. } | Request::Flush => None,
            Request::Write { offset, data } => Some((*offset, offset + data.len() as u64)),
            Request::Discard { offset, len } => Some((*offset, offset + len)),
        }
    }

    /// Bytes that go one way or the other.
    pub fn moves(&self) -> usize {
        match self {
            Request::Read { len, .. } => *len,
            other => other.held(),
        }
    }

    /// Bytes of memory that it keeps.
    pub fn held(&self) -> usize {
        match self {
            Request::Write { data, .. } => data.len(),
            _ => 0,
        }
    }
}

/// Why a request was not carried out.
#[derive(Debug)]
pub enum Refusal {
    /// The connection is gone, and nobody knows whether the request was carried out.
    Lost(io::Error),
    /// The store's own answer.
    Store(io::Error),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        match refusal {
            Refusal::Lost(e) | Refusal::Store(e) => e,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Lost(e) | Refusal::Store(e) => e.fmt(f),
        }
    }
}

/// What comes back: of a read its bytes.
pub type Answer = Result<Option<AlignedBuf>, Refusal>;

/// Called once, from any thread, when the request's memory is no longer used.
pub type Done = Box<dyn FnOnce(Answer) + Send>;

/// What a store says of itself when it is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes.
    pub size: u64,
    /// Smallest unit that it takes, bytes.
    pub min_io: u64,
    /// Largest request that it takes, bytes.
    pub max_io: u64,
    /// It refuses every write.
    pub read_only: bool,
    /// It has a volatile cache, which a flush empties; else what was answered is durable.
    pub has_cache: bool,
    /// It takes flushes.
    pub flushes: bool,
    /// It takes discards.
    pub discards: bool,
}

/// A connection to a store.
pub trait Session: Send + Sync {
    /// What the store said.
    fn geometry(&self) -> Geometry;
    /// Its size by now, bytes.
    fn size(&self) -> u64 {
        self.geometry().size
    }
    /// Starts a request. Must not wait for the store.
    fn start(&self, request: Request, done: Done);
    /// Ends the connection: when it returns every request has been answered, nothing more is sent by this host, and nothing that was sent
    /// waits in its buffers. `told`: the store is told that it ends, and carries out what it has.
    fn close(&self, told: bool);
    /// It makes its connections anew by itself, sends again what was not answered, and ends with an error what takes too long.
    fn mends_itself(&self) -> bool {
        false
    }
    /// The store's own lock of a writer, where it has one that keeps others out.
    fn lock(&self) -> Option<&dyn Fence> {
        None
    }
}

/// Who has a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the host.
    pub host: String,
    /// Process there.
    pub pid: u32,
    /// Since when, seconds since 1970 by that host's clock.
    pub since: u64,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "host {} (process {}, since {} UTC)",
            self.host,
            self.pid,
            crate::clock::date(self.since as i64)
        )
    }
}

/// A lock that the store itself enforces: who has lost it writes no more.
pub trait Fence: Send + Sync {
    /// Takes the lock for this session. `take_over`: also from an owner that lives, who is shut out by the store first.
    fn take(&self, owner: &Owner, take_over: bool) -> Result<(), Taken>;
    /// Gives it back.
    fn give_back(&self);
    /// Who has it.
    fn owner(&self) -> Option<String>;
}

/// Why a lock was not had.
#[derive(Debug)]
pub enum Taken {
    /// Somebody has it.
    By(String),
    /// The store said.
    Error(io::Error),
}

impl From<Refusal> for Taken {
    fn from(refusal: Refusal) -> Taken {
        Taken::Error(refusal.into())
    }
}

impl From<io::Error> for Taken {
    fn from(e: io::Error) -> Taken {
        Taken::Error(e)
    }
}

/// What can be connected to.
pub trait Store: Send + Sync {
    /// Connects anew. `wait`: for the whole of it; `patience`: for each request later, where the session ends those that take too long.
    fn connect(&self, wait: Duration, patience: Duration) -> io::Result<Arc<dyn Session>>;
    /// As people name it.
    fn name(&self) -> &str;
    /// `nbd`, `rbd`: for `status`.
    fn kind(&self) -> &'static str;
}

/// Asks and waits, past everything that [`crate::RemoteDevice`] does.
pub(crate) fn ask(session: &dyn Session, request: Request, patience: Duration) -> Answer {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    session.start(
        request,
        Box::new(move |answer| {
            let _ = send.send(answer);
        }),
    );
    let silence = || io::Error::new(io::ErrorKind::TimedOut, "no answer");
    let answer = receive.recv_timeout(patience);
    answer.unwrap_or_else(|_| Err(Refusal::Lost(silence())))
}
