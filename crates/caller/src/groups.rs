//! Atomic groups: who is in one. For identity a group is a stream of a kind: threads and processes that a member starts are members.
use super::streams::{Place, Stream};
use super::{Caller, Callers, Tracker};
use crate::errno::Errno;
use ccfs_engine::{Fate, StreamId};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// A group as a call found it.
pub struct Found {
    /// The group's number among the engine's streams.
    pub id: StreamId,
    stream: Arc<Stream>,
    /// The calling thread is in it.
    member: bool,
}

impl Found {
    /// From here on its members are where it was begun.
    pub fn set_committed(&self) {
        if let Some(group) = &self.stream.group {
            group.committed.store(true, SeqCst);
        }
    }

    /// It was begun by START_ATOMIC_WRITE.
    pub fn is_by_file(&self) -> bool {
        self.stream.group.as_ref().is_some_and(|g| g.by_file)
    }

    /// What became of it.
    pub fn fate(&self) -> Option<&Fate> {
        self.stream.group.as_ref().map(|g| &*g.fate)
    }

    /// [`Found::set_committed`] was called: nothing is done in it any more.
    pub fn is_committed(&self) -> bool {
        let group = self.stream.group.as_ref();
        group.is_some_and(|g| g.committed.load(SeqCst))
    }
}

impl Callers {
    /// The calling thread enters a new group, which the engine has opened; `home` is where it was until now, and `begun` says whether it was
    /// begun on a file, and what becomes of it. Gives its handle.
    /// Errors: ESRCH a caller that cannot be seen, EAGAIN this user has too many, EIO no random numbers.
    pub fn enter_new_group(
        &self,
        tid: u32,
        uid: u32,
        id: StreamId,
        home: Caller,
        begun: (bool, Arc<Fate>),
    ) -> Result<u64, Errno> {
        let handle = crate::errno::random()?;
        let user = self.user(tid, uid);
        let registry = &self.shared.registry;
        let rights = self.proc().rights(tid);
        let stream = registry.make_group(user, id, handle, (home, rights), begun)?;
        let place = Place::chosen(stream, user.is_root, rights);
        self.put(tid, Some(place))
            .inspect_err(|_| registry.unmake_group(id))?;
        Ok(handle)
    }

    /// The calling thread enters the group of a handle. Errors: EINVAL no handle, ENOENT no such group, EPERM another user's, EBUSY the thread
    /// is in one, EALREADY the group has been committed, ESRCH.
    pub fn enter_group(&self, tid: u32, uid: u32, handle: u64) -> Result<(), Errno> {
        if handle == 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.check_not_in_group(tid, uid)?;
        let found = self.group(tid, uid, handle)?;
        if found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        let by_root = self.user(tid, uid).is_root;
        let place = Place::chosen(found.stream, by_root, self.proc().rights(tid));
        self.put(tid, Some(place))
    }

    /// The group of a handle, or of the calling thread (0). Errors: ENOENT, EPERM.
    pub fn group(&self, tid: u32, uid: u32, handle: u64) -> Result<Found, Errno> {
        let of = self.caller(tid, uid).stream;
        let registry = &self.shared.registry;
        let stream = registry.group(self.user(tid, uid), handle, of.0)?;
        Ok(Found {
            id: StreamId(stream.id),
            member: of.0 == stream.id,
            stream,
        })
    }

    /// A group has ended. The calling thread leaves it if it is in it. Other members of a committed one are where it was begun; those of one
    /// that was taken back are told with every change that they try.
    pub fn group_ended(&self, tid: u32, found: &Found) {
        let Some(group) = &found.stream.group else {
            return;
        };
        group.ended.store(true, Relaxed);
        if found.member {
            // A thread that has ended is in nothing.
            let _ = self.put(tid, group.home.clone());
        }
    }

    /// A member of an open group cannot enter another one, or a stream: part of what it does would not be in the group. Error: EBUSY.
    pub(super) fn check_not_in_group(&self, tid: u32, uid: u32) -> Result<(), Errno> {
        match self.caller(tid, uid).stream.is_group() {
            true => Err(Errno(libc::EBUSY)),
            false => Ok(()),
        }
    }

    /// From now on the thread is there; `None`: where the policy puts it.
    pub(super) fn put(&self, tid: u32, place: Option<Place>) -> Result<(), Errno> {
        match self.start() {
            Tracker::Events(tracker) => tracker.set(tid, place),
            Tracker::Proc(tracker) => tracker.set(tid, place),
        }
    }
}
