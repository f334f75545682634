//! The streams that exist: who made them, and when they end.
//!
//! A stream ends by itself when no thread is in it and the engine has committed all of it. One that was made and never entered is
//! kept for [`UNUSED_MS`].
use super::Caller;
use crate::errno::Errno;
use crate::procfs::Rights;
use ccfs_client::abi::{STREAM_FLAGS, STREAM_IGNORE_FSYNC, STREAM_KEEP_FLAGS};
use ccfs_engine::{DEFAULT_STREAM, Fate, StreamId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::JoinHandle;

/// Streams that one user may have made at a time.
pub(super) const STREAMS_MAX: usize = 4096;
/// Atomic groups that one user may have open at a time; root may have all that there can be.
const GROUPS_MAX: usize = 16;
/// How long a stream is kept that nobody ever entered, milliseconds.
const UNUSED_MS: u64 = 600_000;

/// What the engine knows of streams, and what the process around it gives.
pub trait Engine: Send + Sync {
    /// An id that no stream has had since the mount.
    fn fresh_id(&self) -> u64;
    /// Everything that the stream did is committed.
    fn is_settled(&self, id: u64) -> bool;
    /// Commits what streams did.
    fn settle(&self, ids: &[u64]) -> Result<(), ccfs_engine::Error>;
    /// Nobody is in this atomic group any more: if it is open, it is taken back.
    fn abandon(&self, id: u64);
    /// Starts a thread; the one that asks may be bound to a processor, or wait for idle ones.
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name.into()).spawn(run)
    }
    /// Many streams have ended: memory that is not in use may go back to the system.
    fn give_back_memory(&self) {}
}

/// How a stream came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default stream.
    Default,
    /// A program asked for it.
    Program,
    /// The mount's policy (`streams=`) gave it to a session, a control group or a user.
    Policy,
    /// A rule of the rules file.
    Rule,
    /// It is an atomic group.
    Group,
}

impl Origin {
    /// The name in `status` and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::Program => "program",
            Origin::Policy => "policy",
            Origin::Rule => "rule",
            Origin::Group => "group",
        }
    }
}

#[derive(Debug)]
pub struct Stream {
    pub id: u64,
    /// `None`: nobody's and so everybody's (the default stream and those of the policy).
    pub owner: Option<u32>,
    pub flags: AtomicU32,
    pub origin: Origin,
    /// What its user calls it; empty: it has no name.
    name: Mutex<String>,
    /// Somebody was in it.
    pub entered: AtomicBool,
    /// What makes it an atomic group.
    pub group: Option<Membership>,
    made_ms: u64,
}

/// What the members of an atomic group have in common.
#[derive(Debug)]
pub struct Membership {
    /// Nobody can guess it.
    pub handle: u64,
    /// Where it was begun, and where its members are when it has been committed; `None`: where the policy puts them.
    pub home: Option<Place>,
    /// Begun by START_ATOMIC_WRITE on a file.
    pub by_file: bool,
    /// Root made it: who runs as another user stays in it.
    pub by_root: bool,
    pub committed: AtomicBool,
    pub ended: AtomicBool,
    /// As the engine knows it.
    pub fate: Arc<Fate>,
}

impl Stream {
    fn new(id: u64, owner: Option<u32>, flags: u32, origin: Origin) -> Arc<Stream> {
        Arc::new(Stream {
            id,
            owner,
            flags: AtomicU32::new(flags),
            origin,
            name: Mutex::default(),
            entered: AtomicBool::new(false),
            group: None,
            made_ms: super::monotonic_ms(),
        })
    }
}

/// On whose behalf a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user, in the daemon's own user namespace.
    pub uid: u32,
    /// Uid 0 of the daemon's own user namespace. In another one (a container) uid 0 can be the same user; it has no other rights
    /// than that user.
    pub is_root: bool,
}

impl User {
    /// What is this uid's may be shown to him.
    pub fn is(self, uid: u32) -> bool {
        self.is_root || self.uid == uid
    }
}

/// Where a thread is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub stream: Arc<Stream>,
    /// Chosen by a program or a rule: what the thread starts inherits it.
    pub explicit: bool,
    /// Root chose it, so root is in it too, whoever it belongs to.
    pub by_root: bool,
    /// What the program could do that chose it, as far as that was seen.
    pub rights: Option<Rights>,
}

impl Place {
    /// Where the policy puts a thread.
    pub fn of_policy(stream: Arc<Stream>) -> Place {
        Place {
            stream,
            explicit: false,
            by_root: false,
            rights: None,
        }
    }

    /// Where a program or a rule puts a thread.
    pub fn chosen(stream: Arc<Stream>, by_root: bool, rights: Option<Rights>) -> Place {
        Place {
            stream,
            explicit: true,
            by_root,
            rights,
        }
    }

    /// A program with these rights is not the business of whoever chose the place: it can do more than he could. Root cannot gain anything;
    /// and in a group that root began everybody stays.
    pub fn is_left_with(&self, now: &Rights) -> bool {
        let of_root = self.stream.group.as_ref().is_some_and(|g| g.by_root);
        let by_root = self.by_root && now.by_root;
        self.explicit && !of_root && !by_root && now.exceed(self.rights.as_ref())
    }

    /// The uid rule (C10): `None` where the stream is another user's.
    pub fn seen_by(&self, uid: u32) -> Option<Caller> {
        let stream = &self.stream;
        let of_root = stream.group.as_ref().is_some_and(|g| g.by_root);
        let ignore_fsync = match stream.owner {
            None => false,
            Some(_) if of_root => false,
            Some(owner) if owner == uid => stream.flags.load(Relaxed) & STREAM_IGNORE_FSYNC != 0,
            Some(_) if uid == 0 && self.by_root => false,
            Some(_) => return None,
        };
        if let Some(group) = stream.group.as_ref().filter(|g| g.committed.load(SeqCst)) {
            return group.home.as_ref()?.seen_by(uid);
        }
        Some(Caller {
            stream: StreamId(stream.id),
            ignore_fsync,
            chosen: self.explicit,
        })
    }
}

/// A stream as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The number that programs see.
    pub id: u64,
    /// The user who may enter it; `None`: everybody may.
    pub owner: Option<u32>,
    /// `STREAM_*` flags of [`ccfs_client::abi`].
    pub flags: u32,
    /// How it came to be.
    pub origin: Origin,
    /// What its user calls it; empty: it has no name.
    pub name: String,
    /// Threads in it that are known.
    pub threads: u64,
}

pub struct Registry {
    engine: Arc<dyn Engine>,
    /// The default stream.
    pub everybody: Arc<Stream>,
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
}

impl Registry {
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub fn new(engine: Arc<dyn Engine>) -> Registry {
        Registry {
            engine,
            everybody: Stream::new(DEFAULT_STREAM.0, None, 0, Origin::Default),
            streams: Mutex::default(),
        }
    }

    /// A new stream with a fresh id. Errors: EINVAL flags, ENOSPC too many.
    pub fn make(
        &self,
        owner: Option<u32>,
        flags: u32,
        origin: Origin,
    ) -> Result<Arc<Stream>, Errno> {
        if flags & !STREAM_FLAGS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut streams = self.streams.lock();
        if let (Some(uid), Origin::Program) = (owner, origin) {
            check_room(&streams, uid)?;
        }
        let id = loop {
            let id = self.engine.fresh_id();
            // Somebody can have chosen that number.
            if id > DEFAULT_STREAM.0 && !streams.contains_key(&id) && self.engine.is_settled(id) {
                break id;
            }
        };
        let stream = Stream::new(id, owner, flags, origin);
        streams.insert(id, stream.clone());
        Ok(stream)
    }

    /// Registers an atomic group, begun by a thread that is in the stream `home`. Error: EAGAIN, this user has too many.
    pub fn make_group(
        &self,
        user: User,
        id: StreamId,
        handle: u64,
        (home, rights): (Caller, Option<Rights>),
        (by_file, fate): (bool, Arc<Fate>),
    ) -> Result<Arc<Stream>, Errno> {
        let mut streams = self.streams.lock();
        let own = |s: &&Arc<Stream>| {
            let open = s.group.as_ref().is_some_and(|g| !g.ended.load(Relaxed));
            open && s.owner == Some(user.uid)
        };
        if !user.is_root && streams.values().filter(own).count() >= GROUPS_MAX {
            return Err(Errno(libc::EAGAIN));
        }
        let chosen = match home.stream {
            DEFAULT_STREAM => Some(self.everybody.clone()),
            id => streams.get(&id.0).cloned(),
        };
        let chosen = chosen.filter(|_| home.chosen);
        let home = chosen.map(|stream| Place::chosen(stream, user.is_root, rights));
        let stream = Arc::new(Stream {
            id: id.0,
            owner: Some(user.uid),
            flags: AtomicU32::new(0),
            origin: Origin::Group,
            name: Mutex::default(),
            entered: AtomicBool::new(false),
            group: Some(Membership {
                handle,
                home,
                by_file,
                by_root: user.is_root,
                committed: AtomicBool::new(false),
                ended: AtomicBool::new(false),
                fate,
            }),
            made_ms: super::monotonic_ms(),
        });
        streams.insert(id.0, stream.clone());
        Ok(stream)
    }

    /// A group that nobody could enter.
    pub fn unmake_group(&self, id: StreamId) {
        self.streams.lock().remove(&id.0);
    }

    /// The group of a handle, or that of a stream, which this user may use. Errors: ENOENT there is none, EPERM another user's.
    pub fn group(&self, user: User, handle: u64, of: u64) -> Result<Arc<Stream>, Errno> {
        let streams = self.streams.lock();
        let found = match handle {
            0 => streams.get(&of).filter(|s| s.group.is_some()),
            _ => {
                let is = |s: &&Arc<Stream>| s.group.as_ref().is_some_and(|g| g.handle == handle);
                streams.values().find(is)
            }
        };
        let stream = found.ok_or(Errno(libc::ENOENT))?;
        if !user.is_root && stream.owner != Some(user.uid) {
            return Err(Errno(libc::EPERM));
        }
        Ok(stream.clone())
    }

    /// Takes back the groups that everybody has left without a commit: their members have ended.
    pub fn abandon_groups(&self) {
        let left: Vec<Arc<Stream>> = {
            let streams = self.streams.lock();
            let left = |s: &&Arc<Stream>| {
                let open = s.group.as_ref().is_some_and(|g| !g.ended.load(Relaxed));
                open && s.entered.load(Relaxed) && Arc::strong_count(s) == 1
            };
            streams.values().filter(left).cloned().collect()
        };
        for stream in left {
            if let Some(group) = &stream.group {
                group.ended.store(true, Relaxed);
            }
            self.engine.abandon(stream.id);
        }
    }

    /// The stream of that number that a user wants to enter, made if nobody has it. Errors: EINVAL flags, ENOSPC too many, EPERM
    /// another user's, or root would change another user's flags.
    pub fn enter(&self, user: User, id: u64, flags: u32) -> Result<Arc<Stream>, Errno> {
        let keep = flags & STREAM_KEEP_FLAGS != 0;
        let flags = flags & !STREAM_KEEP_FLAGS;
        if flags & !STREAM_FLAGS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if StreamId(id).is_group() {
            // A group is entered by its handle, which nobody can guess.
            return Err(Errno(libc::EPERM));
        }
        if id == DEFAULT_STREAM.0 {
            return match flags {
                0 => Ok(self.everybody.clone()),
                _ => Err(Errno(libc::EINVAL)),
            };
        }
        let uid = user.uid;
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(&id) {
            let everybodys = stream.owner.is_none();
            if everybodys && flags != 0 {
                return Err(Errno(libc::EINVAL));
            }
            if !user.is_root && !everybodys && stream.owner != Some(uid) {
                return Err(Errno(libc::EPERM));
            }
            if stream.owner == Some(uid) {
                if !keep {
                    stream.flags.store(flags, Relaxed);
                }
            } else if !keep && flags != stream.flags.load(Relaxed) {
                // Root enters any stream; what fsync means in it is its owner's to say (C10).
                return Err(Errno(libc::EPERM));
            }
            return Ok(stream.clone());
        }
        if !user.is_root && !self.engine.is_settled(id) {
            // What another user did in it is on its way.
            return Err(Errno(libc::EPERM));
        }
        check_room(&streams, uid)?;
        let stream = Stream::new(id, Some(uid), flags, Origin::Program);
        streams.insert(id, stream.clone());
        Ok(stream)
    }

    /// Gives a stream a name; an empty one takes it away. Errors: EPERM another user's, or nobody's; EINVAL the default stream; ENOENT there is no
    /// such stream; EEXIST another one of its user has that name.
    pub fn name(&self, user: User, id: u64, name: &str) -> Result<(), Errno> {
        if id == DEFAULT_STREAM.0 {
            return Err(Errno(libc::EINVAL));
        }
        // Two that want one name come one after the other.
        let streams = self.streams.lock();
        let stream = streams.get(&id).ok_or(Errno(libc::ENOENT))?;
        if !user.is_root && stream.owner != Some(user.uid) {
            return Err(Errno(libc::EPERM));
        }
        let taken = |s: &Arc<Stream>| {
            s.id != id && s.owner == stream.owner && !name.is_empty() && *s.name.lock() == name
        };
        if streams.values().any(taken) {
            return Err(Errno(libc::EEXIST));
        }
        *stream.name.lock() = name.into();
        Ok(())
    }

    /// The stream that this user calls so; for root, if none of his own is, anybody's. Errors: ENOENT there is none, ENOTUNIQ there are several.
    pub fn find(&self, user: User, name: &str) -> Result<u64, Errno> {
        let streams = self.streams.lock();
        let named = || streams.values().filter(|s| *s.name.lock() == name);
        let own = named().find(|s| s.owner == Some(user.uid));
        let mut others = named().filter(|_| user.is_root);
        match (own, others.next(), others.next()) {
            (Some(own), ..) => Ok(own.id),
            (None, Some(one), None) => Ok(one.id),
            (None, None, _) => Err(Errno(libc::ENOENT)),
            (None, Some(_), Some(_)) => Err(Errno(libc::ENOTUNIQ)),
        }
    }

    /// Whether this user may name the stream in a call: its own, everybody's, one that has ended, or as root any.
    pub fn may_use(&self, user: User, id: u64) -> bool {
        if user.is_root || id == DEFAULT_STREAM.0 {
            return true;
        }
        let streams = self.streams.lock();
        match streams.get(&id) {
            Some(stream) => stream.owner.is_none_or(|owner| owner == user.uid),
            None => self.engine.is_settled(id),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.streams.lock().len()
    }

    /// All of them but the default stream, by id.
    pub fn list(&self) -> Vec<StreamInfo> {
        let streams = self.streams.lock();
        let mut list: Vec<_> = streams
            .values()
            .map(|s| StreamInfo {
                id: s.id,
                owner: s.owner,
                flags: s.flags.load(Relaxed),
                origin: s.origin,
                name: s.name.lock().clone(),
                threads: Arc::strong_count(s) as u64 - 1,
            })
            .collect();
        list.sort_unstable_by_key(|s| s.id);
        list
    }

    /// Commits what is left of streams that nobody is in.
    pub fn settle(&self) -> Result<(), ccfs_engine::Error> {
        let left: Vec<u64> = {
            let streams = self.streams.lock();
            let left = streams.values().filter(|s| Arc::strong_count(s) == 1);
            left.map(|s| s.id).collect()
        };
        self.engine.settle(&left)
    }

    /// Ends the streams that nobody is in. Returns how many are left.
    pub fn sweep(&self) -> usize {
        let now = super::monotonic_ms();
        let mut streams = self.streams.lock();
        streams.retain(|id, stream| {
            let unused = !stream.entered.load(Relaxed);
            Arc::strong_count(stream) > 1
                || (unused && now.saturating_sub(stream.made_ms) < UNUSED_MS)
                || !self.engine.is_settled(*id)
        });
        if streams.capacity() > 1024 && streams.len() < streams.capacity() / 8 {
            streams.shrink_to_fit();
        }
        streams.len()
    }
}

fn check_room(streams: &HashMap<u64, Arc<Stream>>, uid: u32) -> Result<(), Errno> {
    if streams.len() < STREAMS_MAX {
        return Ok(());
    }
    let own = |s: &&Arc<Stream>| s.owner == Some(uid) && s.origin == Origin::Program;
    match streams.values().filter(own).count() {
        0..STREAMS_MAX => Ok(()),
        _ => Err(Errno(libc::ENOSPC)),
    }
}
