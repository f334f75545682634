//! Entries that are carried out by a system call of the program: they wait, or the kernel knows their directory.
use super::execute::{Opened, answer};
use super::holds::{ENTRIES_MAX, Entries};
use super::session::{Handle, Read, Refused, Role, Session, read_at};
use super::{Direct, Displaces, Server, Token, clock, confined, count, names};
use crate::rights;
use crate::server::Answer;
use crate::wire::{Errno, Request};
use ccfs_client::abi::{DIRECT_SHORT, DirectCallArg};
use ccfs_client::direct::layout::{
    ASKED, BUSY, DIRECTORY, FOR_LOCKS, NO_HANDLE, READING, UNUSED, WRITING, op,
};
use ccfs_engine::{Ino, ROOT_INO, StreamId, SyncCall, Wait};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Directories on the way to a session's first one.
const DEPTH_MAX: usize = 4096;
/// Entries of a directory of files for which it is worth it to have the kernel give them up.
const WORTH: usize = 64;
/// Entries of a directory that the kernel is asked to give up at a time.
const PRUNED_MAX: usize = 1024;
/// How long it may take until the daemon hears that the kernel has given a file up.
const FORGETS: Duration = Duration::from_millis(20);
/// And where it is not worth much.
const FORGETS_IF_EASY: Duration = Duration::from_millis(2);
/// And to forget that names are not there, which takes the lock of their directory.
const MISSED: Duration = Duration::from_millis(5);
/// Names of a directory that is looked through for that.
const NAMES_IF_EASY: usize = 256;

impl Server {
    /// `IOC_DIRECT_CALL`: what came of it stands in the entry.
    pub(in crate::server) fn call_direct(
        &self,
        request: &Request<'_>,
        arg: &mut DirectCallArg,
    ) -> Answer {
        let (direct, header) = (&self.direct, &request.header);
        let session = direct.session(arg.session, header.uid)?;
        arg.thread = header.pid;
        if arg.flags & !DIRECT_SHORT != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let stream = session.place_of(header.pid, &self.callers).stream;
        let read = direct.before_call(&session, stream, arg.position, request.wait)?;
        let before = direct.space_before();
        let mut done = self.carry_out_call(request, arg, &session, &read);
        let is_full = done == Err(Refused::Errno(libc::ENOSPC));
        if request.wait == Wait::Never && (is_full || done == Err(Refused::Errno(libc::EAGAIN))) {
            return Err(Errno(libc::EAGAIN));
        }
        if is_full && direct.gives_space_back(before) {
            done = self.carry_out_call(request, arg, &session, &read);
        }
        count(&direct.figures.calls, 1);
        answer(&session, &read, true, done);
        Ok(())
    }

    fn carry_out_call(
        &self,
        request: &Request<'_>,
        arg: &DirectCallArg,
        session: &Arc<Session>,
        read: &Read,
    ) -> Result<Vec<u8>, Refused> {
        let (direct, header) = (&self.direct, &request.header);
        if request.wait == Wait::Never && !is_short(read) {
            return Err(Refused::Errno(libc::EAGAIN));
        }
        match read.entry.op {
            op::THREAD => self.note_thread(session, header.pid),
            // The thread that calls, not one that the entry names.
            _ if read.entry.thread != header.pid => Err(Refused::Errno(libc::EPERM)),
            op::SYNC => self.sync_direct(request, session, read),
            op::NAME => direct.name(session, read),
            op::PATH => direct.path(session, read),
            op::CREATE | op::MKDIR | op::LOOKUP if read.entry.h == NO_HANDLE => {
                let dir = self.target(request)?;
                session.note_writable(|known| {
                    confined::check_writable(&self.callers, header.pid, arg.directory, dir, known)
                })?;
                if self.status_dir.is_name(header.nodeid, &read.bytes) {
                    return Err(Refused::Errno(libc::EPERM));
                }
                match read.entry.op {
                    op::LOOKUP => self.take_from_kernel(header.pid, session, read, dir),
                    _ => self.birth_in_known(request, session, read, dir),
                }
            }
            _ => {
                let mut consumer = session.lock(request.wait)?;
                let volume = match request.wait {
                    Wait::Never => direct.volume.non_blocking(),
                    Wait::Allowed => &direct.volume,
                };
                if consumer.over {
                    return Err(Refused::Errno(libc::EBADF));
                }
                let done = direct.execute(session, &mut consumer, read, volume);
                consumer.clock.note_asked(clock::now());
                done
            }
        }
    }

    fn note_thread(&self, session: &Arc<Session>, tid: u32) -> Result<Vec<u8>, Refused> {
        if self.callers.proc().process(tid) != Some(session.user.process) {
            return Err(Refused::Errno(libc::EPERM));
        }
        let now = session.place_of(tid, &self.callers);
        session.note_thread(tid, now, &self.callers)?;
        // It is about to work: who does not may have the right to post.
        if session.note_stream(now.stream) || session.role() != Role::Posts {
            self.direct.claim(session, Displaces::Idle);
        }
        if now.stream.is_group() {
            self.direct.enters_group(tid);
        }
        Ok(Vec::new())
    }

    /// A file or directory of a directory that the kernel knows is to be held: the kernel is asked to forget it, which it does unless somebody has it open.
    fn take_from_kernel(
        &self,
        tid: u32,
        session: &Arc<Session>,
        read: &Read,
        dir: Ino,
    ) -> Result<Vec<u8>, Refused> {
        let direct = &self.direct;
        // It is opened by this, and who has confined himself since may not open everything any more.
        if self.callers.proc().is_confined(tid) {
            return Err(Refused::Errno(libc::EOPNOTSUPP));
        }
        direct.may(session, &direct.volume, dir, rights::SEARCH)?;
        let attr = direct.volume.lookup(dir, &read.bytes)?;
        let wanted = match read.entry.b as u32 & DIRECTORY {
            0 => libc::S_IFREG,
            _ => libc::S_IFDIR,
        };
        match attr.mode as u32 & libc::S_IFMT {
            kind if kind == wanted => {}
            _ if wanted == libc::S_IFDIR => return Err(Refused::Errno(libc::ENOTDIR)),
            libc::S_IFLNK => return Err(Refused::Errno(libc::ELOOP)),
            libc::S_IFDIR => return Err(Refused::Errno(libc::EISDIR)),
            _ => return Err(Refused::Errno(libc::EOPNOTSUPP)),
        }
        // Somebody else's: he looks it up as anybody does.
        let holder = direct.holder(attr.ino);
        let if_easy = read.entry.b as u32 & UNUSED != 0;
        let others = holder
            .as_ref()
            .is_some_and(|holder| !Arc::ptr_eq(holder, session));
        if if_easy && (others || !direct.is_unused(session, attr.ino).unwrap_or(false)) {
            return Err(Refused::Errno(libc::EBUSY));
        }
        // From here on ENOENT is about something in it, or something else.
        let not_here = |e: Errno| match e {
            Errno(libc::ENOENT) => Errno(libc::EBUSY),
            e => e,
        };
        if others {
            let known = direct.volume.remember_this(attr.ino, attr.generation);
            known.map_err(|_| Errno(libc::EBUSY))?;
            let broken = direct.break_hold(attr.ino, Wait::Allowed);
            direct.volume.forget(attr.ino, 1);
            broken.map_err(not_here)?;
        }
        // What is in it keeps the kernel from giving it up.
        if attr.is_dir() && !if_easy {
            let is_busy = read.entry.b as u32 & BUSY != 0;
            let known = direct.entries_to_give_up(session, attr.ino, is_busy);
            let known = known.map_err(not_here)?;
            let known = known.ok_or(Refused::Errno(libc::EBUSY))?;
            if !direct.have_given_up(session, known, FORGETS) {
                return Err(Refused::Errno(libc::EBUSY));
            }
        }
        if direct.kernel_knows_unheld(attr.ino) {
            let patience = if if_easy { FORGETS_IF_EASY } else { FORGETS };
            direct.have_given_up(session, vec![attr.ino], patience);
        }
        let mut consumer = session.lock(Wait::Allowed)?;
        match consumer.over {
            true => Err(Refused::Errno(libc::EBADF)),
            false => direct.look_up(session, &mut consumer, read, &direct.volume, dir),
        }
    }

    fn sync_direct(
        &self,
        request: &Request<'_>,
        session: &Session,
        read: &Read,
    ) -> Result<Vec<u8>, Refused> {
        let ino = self.direct.inode_of(session, read)?;
        let cx = self.direct.context(session, read, 0);
        self.sync(request, &cx, SyncCall::File(ino))?;
        Ok(Vec::new())
    }

    /// A file or directory is born in a directory that the kernel knows. The kernel may know that the name was not there, and forgets that before; and
    /// it is told of the directory's change before the program is.
    fn birth_in_known(
        &self,
        request: &Request<'_>,
        session: &Arc<Session>,
        read: &Read,
        dir: Ino,
    ) -> Result<Vec<u8>, Refused> {
        let direct = &self.direct;
        direct.check_new_handle(&*session.lock(Wait::Allowed)?, read)?;
        // The kernel is not told of what cannot be.
        let name = names::checked(&read.bytes)?;
        direct.may(session, &direct.volume, dir, rights::SEARCH | rights::WRITE)?;
        let user = session.user.uid;
        let (forgotten, made) = {
            let _coming = direct.coming.begin(dir, name);
            let forgotten = direct.notifier.name_comes(user, dir, name);
            let made = direct.make(session, read, &direct.volume, dir);
            (forgotten, made)
        };
        let attr = made?;
        let born = Opened::of(&attr, read.entry.h2, READING | WRITING);
        let opened = direct.open_born(session, read, born);
        // It is there, whatever came of that.
        direct.notifier.name_made(user, dir, name, forgotten);
        opened?;
        let synced = match direct.volume.is_synchronous(dir) {
            true => self.sync(request, &self.context(request, 0), SyncCall::File(dir)),
            false => Ok(()),
        };
        let now = direct.volume.getattr(attr.ino);
        match synced.and(now.map_err(Errno::from)) {
            Ok(now) => Ok(direct.attr_of(&now).as_bytes().to_vec()),
            Err(e) => {
                let mut consumer = session.lock(Wait::Allowed)?;
                direct.close(session, &mut consumer, read.entry.h2);
                Err(e.into())
            }
        }
    }
}

/// It waits only where data has to be read, or for room.
fn is_short(read: &Read) -> bool {
    match read.entry.op {
        op::THREAD | op::SYNC | op::NAME | op::PATH => false,
        op::CREATE | op::MKDIR | op::LOOKUP => read.entry.h != NO_HANDLE,
        _ => true,
    }
}

impl Direct {
    /// What the kernel has to give up before a directory can be held. `None`: it would not, or that would not be worth it.
    fn entries_to_give_up(
        &self,
        session: &Session,
        dir: Ino,
        is_busy: bool,
    ) -> Result<Option<Vec<Ino>>, Errno> {
        let known = |dir| self.known_entries(session, &self.volume, dir, ENTRIES_MAX);
        let Some(Entries {
            known: all,
            count,
            unfit,
        }) = known(dir)?
        else {
            return Ok(None);
        };
        if unfit || all.len() > PRUNED_MAX {
            return Ok(None);
        }
        let dirs = all.iter().filter(|(_, is_dir)| *is_dir);
        let mut any_dir = false;
        for (dir, _) in dirs {
            any_dir = true;
            if known(*dir)?.is_none_or(|entries| !entries.known.is_empty()) {
                return Ok(None);
            }
        }
        // By the kernel a few files are faster than that they are given up.
        let worth = all.is_empty() || any_dir || is_busy || count >= WORTH;
        Ok(worth.then(|| all.into_iter().map(|(ino, _)| ino).collect()))
    }

    /// The kernel knows nothing in a directory, as far as the daemon can see, and all of it can be held.
    fn is_unused(&self, session: &Session, dir: Ino) -> Result<bool, Errno> {
        if self.kernel_knows(dir) && self.absent.contains(dir) {
            return Ok(false);
        }
        let entries = self.known_entries(session, &self.volume, dir, NAMES_IF_EASY)?;
        Ok(entries.is_some_and(|entries| entries.known.is_empty() && !entries.unfit))
    }

    /// The kernel is asked to give inodes up. False: it keeps one.
    fn have_given_up(&self, session: &Session, inos: Vec<Ino>, patience: Duration) -> bool {
        if inos.is_empty() {
            return true;
        }
        let known = || inos.iter().any(|ino| self.kernel_knows_unheld(*ino));
        // That a name is not there keeps its directory as well.
        let missed = inos.iter().flat_map(|dir| {
            let names = self.absent.take_names(*dir).into_iter();
            names.map(|name| (*dir, name))
        });
        let missed: Vec<_> = missed.collect();
        if !missed.is_empty() {
            self.notifier.missed(session.user.uid, missed, MISSED);
        }
        if !self.notifier.prune(session.user.uid, inos.clone()) {
            return false;
        }
        self.forgets.wait_while(known, patience);
        !known()
    }

    /// The entry that a call is about; what comes before it is carried out.
    fn before_call(
        &self,
        session: &Arc<Session>,
        stream: StreamId,
        position: u64,
        wait: Wait,
    ) -> Result<Read, Errno> {
        self.drain_stream(stream, wait)?;
        self.carry_out(session, wait)?;
        if session.lock(wait)?.over {
            return Err(Errno(libc::EBADF));
        }
        let tail = session.tail();
        let read =
            read_at(&session.memory, position, tail, Vec::new()).ok_or(Errno(libc::EINVAL))?;
        match read.entry.flags & ASKED {
            0 => Err(Errno(libc::EINVAL)),
            _ => Ok(read),
        }
    }

    /// A handle of what was made by a call. Error: ESTALE, somebody has removed it, and its number may be another one's.
    fn open_born(&self, session: &Arc<Session>, read: &Read, born: Opened) -> Result<(), Refused> {
        let mut consumer = session.lock(Wait::Allowed)?;
        if consumer.over || self.check_new_handle(&consumer, read).is_err() {
            return Err(Refused::Errno(libc::EBADF));
        }
        self.open(session, &mut consumer, &self.volume, born)
    }

    fn inode_of(&self, session: &Session, read: &Read) -> Result<Ino, Refused> {
        Ok(self.handle_of(session, read)?.ino)
    }

    fn handle_of(&self, session: &Session, read: &Read) -> Result<Handle, Refused> {
        let consumer = session.lock(Wait::Allowed)?;
        let handle = consumer.handles.get(&read.entry.h);
        handle.copied().ok_or(Refused::Errno(libc::EBADF))
    }

    /// A name by which a file can be opened, once.
    fn name(&self, session: &Session, read: &Read) -> Result<Vec<u8>, Refused> {
        let Handle { ino, access, .. } = self.handle_of(session, read)?;
        let user = &session.user;
        let token = self.new_token(Token {
            ino,
            for_locks: read.entry.b == FOR_LOCKS,
            keeps: (!user.may_all).then_some((user.uid, access)),
        })?;
        let mut consumer = session.lock(Wait::Allowed)?;
        let handle = consumer.handles.get(&read.entry.h);
        // It may be closed by now, or the session be over: nobody would forget the name then.
        let is_open = !consumer.over && handle.is_some_and(|h| h.ino == ino);
        let lost = match is_open {
            true => consumer.tokens.insert(read.entry.h, token.clone()),
            false => Some(token.clone()),
        };
        drop(consumer);
        if let Some(lost) = lost {
            self.forget_token(session, &lost);
        }
        match is_open {
            true => Ok(token.into_bytes()),
            false => Err(Refused::Errno(libc::EBADF)),
        }
    }

    /// A directory's number, and its path below the session's.
    fn path(&self, session: &Session, read: &Read) -> Result<Vec<u8>, Refused> {
        let ino = self.inode_of(session, read)?;
        if self.volume.getattr(ino)?.nlink == 0 {
            return Err(Refused::Errno(libc::ENOENT));
        }
        let (mut parts, mut at) = (Vec::new(), ino);
        while at != session.root {
            if at == ROOT_INO || parts.len() > DEPTH_MAX {
                return Err(Refused::Errno(libc::ESTALE));
            }
            let parent = self.volume.lookup(at, b"..")?.ino;
            let mut found = None;
            self.volume.readdir(parent, 0, &mut |entry| {
                let is_it = entry.ino == at && entry.name != b"." && entry.name != b"..";
                if is_it {
                    found = Some(entry.name.to_vec());
                }
                !is_it
            })?;
            parts.push(found.ok_or(Refused::Errno(libc::ESTALE))?);
            at = parent;
        }
        parts.reverse();
        let mut out = u64::from(ino).as_bytes().to_vec();
        out.extend_from_slice(&parts.join(&b'/'));
        Ok(out)
    }
}
