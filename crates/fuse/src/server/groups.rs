//! Atomic groups: the calls.
//!
//! When a group is taken back, the kernel still has what it showed: pages, sizes, names. It is told to forget them ([`super::notifier`]); nobody
//! who serves a request waits for that, but the call that asked for the abort, which holds no lock. Pages that the kernel writes back meanwhile are
//! dropped (engine).
use super::ioctl::{
    F2FS_ABORT, F2FS_COMMIT, F2FS_START, put_line, set_result, trace_arg, versioned,
};
use super::{Answer, Server};
use crate::abi;
use crate::show::Paths;
use crate::transport::channel::Channel;
use crate::wire::{Errno, Reply, Request};
use ccfs_caller::Found;
use ccfs_client::abi::{self as client, GroupArg};
use ccfs_engine::{Fate, Ino, Limit, NameChange, Reason};
use std::collections::HashSet;
use std::time::Duration;

impl Server {
    /// Whoever serves requests of a kernel starts this. Without it there are no atomic groups, pages beside asynchronous direct writes can
    /// stay, and the space of removed files may come late.
    pub fn start_notifying(&self, kernel: Channel) -> std::io::Result<()> {
        let closes_are_seen = self.mount.atomic_files;
        let direct = std::sync::Arc::downgrade(&self.direct);
        let is_open = move |ino| direct.upgrade().is_some_and(|d| d.is_open(ino));
        self.asker
            .start(&self.volume, kernel.clone(), closes_are_seen, is_open)?;
        let expires = self.agreed.minor >= abi::EXPIRES;
        self.notifier.start(&self.volume, kernel, expires)
    }

    /// Lets go of the kernel.
    pub fn stop_notifying(&self) {
        self.notifier.stop();
        self.asker.stop();
    }

    pub(super) fn group_ioctl(
        &self,
        request: &Request<'_>,
        number: u32,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut arg = versioned::<GroupArg>(input)?;
        let flags = match number {
            client::IOC_GROUP_COMMIT => client::GROUP_ORDERED,
            _ => 0,
        };
        let timed = arg.timeout_ms != 0 && number != client::IOC_GROUP_BEGIN;
        if arg.flags & !flags != 0 || timed {
            return Err(Errno(libc::EINVAL));
        }
        let (tid, uid) = (request.header.pid, request.header.uid);
        match number {
            client::IOC_GROUP_BEGIN => {
                arg.handle = self.group_begin(tid, uid, arg.timeout_ms, false)?;
            }
            client::IOC_GROUP_ENTER => self.callers.enter_group(tid, uid, arg.handle)?,
            client::IOC_GROUP_COMMIT => {
                let durable = arg.flags & client::GROUP_ORDERED == 0;
                let found = self.callers.group(tid, uid, arg.handle)?;
                if let Err(e) = self.group_commit(tid, &found, durable) {
                    // The error goes with an answer.
                    let told = found.fate().is_some_and(|fate| tell(fate, &mut arg));
                    if !told {
                        return Err(e);
                    }
                    set_result(reply, e);
                }
            }
            _ => {
                let found = self.callers.group(tid, uid, arg.handle)?;
                self.group_abort(tid, &found)?;
                found.fate().map(|fate| tell(fate, &mut arg));
            }
        }
        reply.push(&arg);
        Ok(())
    }

    /// What F2FS has, and SQLite uses where it is built for it: what the calling thread changes between start and commit. Within a group
    /// that somebody began otherwise a commit waits for that group's, and an abort takes all of that group back.
    pub(super) fn f2fs_atomic_write(&self, request: &Request<'_>, number: u32) -> Answer {
        let (tid, uid) = (request.header.pid, request.header.uid);
        let attr = self.volume.getattr(self.target(request)?)?;
        if number == F2FS_START && !attr.is_file() {
            return Err(Errno(libc::EINVAL));
        }
        let inside = match self.callers.group(tid, uid, 0) {
            Ok(found) => Some(found),
            Err(Errno(libc::ENOENT)) => None,
            Err(e) => return Err(e),
        };
        match (number, inside) {
            (F2FS_START, None) => self.group_begin(tid, uid, 0, true).map(drop),
            (F2FS_START, Some(group)) if group.is_by_file() => Err(Errno(libc::EBUSY)),
            (_, None) => Err(Errno(libc::EINVAL)),
            (F2FS_ABORT, Some(group)) if group.is_by_file() => self.group_abort(tid, &group),
            (F2FS_ABORT, Some(group)) => match self.volume.group_abort(group.id) {
                // Its owner and the other members are told with their next change.
                Ok(()) | Err(ccfs_engine::Error::Errno(libc::ECANCELED)) => {
                    self.notifier.settle_group(&self.volume, group.id);
                    Ok(())
                }
                Err(e) => Err(e.into()),
            },
            (F2FS_COMMIT, Some(group)) if group.is_by_file() => {
                self.group_commit(tid, &group, true)
            }
            (_, Some(group)) if self.volume.group_is_open(group.id) => Ok(()),
            (_, Some(_)) => Err(Errno(libc::ECANCELED)),
        }
    }

    fn group_begin(
        &self,
        tid: u32,
        uid: u32,
        timeout_ms: u64,
        by_file: bool,
    ) -> Result<u64, Errno> {
        if !self.notifier.works() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if tid == 0 {
            return Err(Errno(libc::ESRCH));
        }
        let home = self.callers.caller(tid, uid);
        if home.stream.is_group() {
            return Err(Errno(libc::EBUSY));
        }
        if self.notifier.owes_much_to(uid) {
            return Err(Errno(libc::EAGAIN));
        }
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let id = self.volume.group_begin(home.stream, uid, timeout)?;
        let fate = self.volume.group_fate(id).unwrap_or_default();
        let begun = (by_file, fate);
        let entered = self.callers.enter_new_group(tid, uid, id, home, begun);
        if entered.is_err() {
            self.volume.group_abort(id)?;
        }
        entered
    }

    fn group_commit(&self, tid: u32, found: &Found, durable: bool) -> Answer {
        if found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        let ended = self
            .volume
            .group_commit_telling(found.id, durable, &|| found.set_committed());
        self.callers.group_ended(tid, found);
        if ended.is_err() {
            self.notifier.settle_group(&self.volume, found.id);
        }
        Ok(ended?)
    }

    /// One that was taken back already is as its owner wants it.
    fn group_abort(&self, tid: u32, found: &Found) -> Answer {
        if found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        let ended = self.volume.group_abort(found.id).map_err(Errno::from);
        if ended.is_err() && found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        self.callers.group_ended(tid, found);
        self.notifier.settle_group(&self.volume, found.id);
        match ended {
            Err(Errno(libc::ECANCELED)) => Ok(()),
            ended => ended,
        }
    }

    /// Lines of what a group has changed so far: names, and files by inode number.
    pub(super) fn group_changes(
        &self,
        request: &Request<'_>,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut arg = trace_arg(input)?;
        let (tid, uid) = (request.header.pid, request.header.uid);
        let found = self.callers.group(tid, uid, arg.lost)?;
        let changes = self.volume.group_changes(found.id)?;
        (arg.length, arg.data) = (0, [0; client::STATUS_CHUNK]);
        let paths = Paths::new(&self.volume, self.user(request));
        let names = changes.names.iter();
        let names = names.map(|(dir, name, change)| Change::Name(*dir, name, *change));
        // Of what was made its name speaks; another name of a file that was there before says nothing of the file.
        let mut made: HashSet<Ino> = HashSet::new();
        made.extend(
            changes
                .names
                .iter()
                .filter_map(|(.., change)| match change {
                    NameChange::Created(ino) | NameChange::Replaced(ino) => Some(*ino),
                    NameChange::Removed => None,
                }),
        );
        let one_name = |ino: Ino| self.volume.getattr(ino).is_ok_and(|attr| attr.nlink == 1);
        let files = changes.inodes.iter();
        let files = files.filter(|ino| !(made.contains(ino) && one_name(**ino)));
        let files = files.map(|ino| Change::File(*ino));
        let first = usize::try_from(arg.next).unwrap_or(usize::MAX);
        for change in names.chain(files).skip(first) {
            let line = self.line_of(&paths, change);
            // The next part has paths again.
            let spent = paths.is_spent() && arg.length > 0;
            if line.is_some_and(|line| spent || !put_line(&mut arg, &line)) {
                break;
            }
            arg.next += 1;
        }
        reply.push(&arg);
        Ok(())
    }

    /// `None`: a directory, of which its names speak; or a file that has none any more, which somebody may have open still.
    fn line_of(&self, paths: &Paths, change: Change) -> Option<String> {
        let path = |ino: Ino| paths.of(ino).unwrap_or_else(|| format!("inode {ino}"));
        match change {
            Change::Name(dir, name, change) => {
                let there = match change {
                    NameChange::Created(_) => "created",
                    NameChange::Replaced(_) => "changed",
                    NameChange::Removed => "removed",
                };
                let name = String::from_utf8_lossy(name).replace('\n', "?");
                let path = format!("{}/{name}", path(dir));
                Some(format!("{there} {}\n", path.trim_start_matches('/')))
            }
            Change::File(ino) => {
                let attr = self.volume.getattr(ino).ok()?;
                let is_told = !attr.is_dir() && attr.nlink > 0;
                let line = || format!("changed {}\n", path(ino).replace('\n', "?"));
                is_told.then(line)
            }
        }
    }
}

/// Says in an answer why a group was taken back. False: it was not.
fn tell(fate: &Fate, arg: &mut GroupArg) -> bool {
    let Some(reason) = fate.taken_back() else {
        return false;
    };
    arg.flags = match reason {
        Reason::Asked => client::GROUP_ASKED,
        Reason::Left => client::GROUP_LEFT,
        Reason::OwnTime => client::GROUP_OWN_TIME,
        Reason::MountTime => client::GROUP_MOUNT_TIME,
        Reason::Waited => client::GROUP_WAITED,
        Reason::WaitsForNobody => client::GROUP_WAITS_FOR_NOBODY,
        Reason::StoresTooLarge => client::GROUP_STORES_TOO_LARGE,
        Reason::StoresLost => client::GROUP_STORES_LOST,
        Reason::Unmounted => client::GROUP_UNMOUNTED,
    };
    arg.timeout_ms = match (reason, fate.time()) {
        (Reason::OwnTime | Reason::MountTime, Some(time)) => time.as_millis() as u64,
        _ => 0,
    };
    // A time that was up is the reason, whatever was refused before.
    if let Some((limit, size)) = fate.refused()
        && arg.timeout_ms == 0
    {
        arg.flags |= match limit {
            Limit::Memory => client::GROUP_MEMORY,
            Limit::Log => client::GROUP_LOG,
            Limit::Names => client::GROUP_NAMES,
        };
        arg.timeout_ms = size;
    }
    true
}

/// Something that a group has changed.
enum Change<'a> {
    Name(Ino, &'a [u8], NameChange),
    File(Ino),
}
