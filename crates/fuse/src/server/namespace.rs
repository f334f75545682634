//! Names, attributes and directory listings.
use super::data::check_range;
use super::direct::Token;
use super::{Answer, FOREVER, LIST_MAX, Server, ino_of};
use crate::abi::{self, fattr, op};
use crate::wire::{
    Errno, Reply, Request, checked_name, name_and_string, one_name, padded, push_dirent,
};
use ccfs_engine::{
    Attr, Error, Ino, ListEntry, RenameFlags, SetAttr, SetTime, TIME_MAX, TIME_MIN, Time,
};

/// Longest target of a symlink, bytes (PATH_MAX without its NUL).
const SYMLINK_MAX: usize = 4095;

impl Server {
    /// LOOKUP. "." and ".." come from file handles (EXPORT_SUPPORT), for node ids that the kernel has forgotten or made up.
    pub(super) fn lookup(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let parent = self.target(request)?;
        let name = one_name(request.bare())?;
        if name == b"." {
            return self.lookup_handle(request, parent, reply);
        }
        if self.status_dir.is_name(request.header.nodeid, name) {
            return self.lookup_status_dir(reply);
        }
        if let Some(token) = self.direct.token(name) {
            return self.lookup_token(request, token, name, reply);
        }
        let active = self.direct.is_active();
        let before = self.direct.look_for_coming(parent, name);
        match self.volume_for(request).lookup(parent, name) {
            Ok(attr) => {
                self.push_entry(self.volume_for(request), reply, &attr)?;
                if active || self.direct.is_active() {
                    // From here on nobody holds it, and nothing of it changes but by what the kernel knows of: what it is, is read now.
                    self.direct.break_hold(attr.ino, request.wait)?;
                    let attr = self.volume_for(request).getattr(attr.ino)?;
                    reply.body.clear();
                    reply.push(&self.entry_of(&attr));
                }
            }
            // Node id 0: the kernel remembers that there is no such name.
            Err(Error::Errno(libc::ENOENT)) => {
                self.direct.note_absent(parent, name);
                let absence = self.direct.absence(before);
                reply.push(&abi::EntryOut {
                    entry_valid: absence.as_secs(),
                    entry_valid_nsec: absence.subsec_nanos(),
                    ..Default::default()
                });
            }
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// A file that a session of direct calls hands over: by a name that is good for once.
    fn lookup_token(
        &self,
        request: &Request<'_>,
        token: Token,
        name: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let ino = token.ino;
        let stays_held = token.for_locks && self.direct.known_for_locks(ino);
        if !stays_held {
            self.volume.remember(ino, 1);
        }
        reply.remembered.push(ino);
        reply.for_locks = stays_held;
        if !stays_held {
            self.direct.break_hold(ino, request.wait)?;
        }
        if !self.direct.use_token(name) {
            return Err(Errno(libc::ENOENT));
        }
        let attr = self.volume.getattr(ino).map_err(stale)?;
        let who = (request.header.pid, request.header.uid);
        let is_asked_again = self.direct.keeps_access(who, name, token, &attr);
        let entry = self.entry_of(&attr);
        reply.push(&abi::EntryOut {
            entry_valid: 0,
            attr_valid: match stays_held || is_asked_again {
                true => 0,
                false => entry.attr_valid,
            },
            ..entry
        });
        Ok(())
    }

    /// A node id that the kernel may not hold a reference to: take one first, so that the inode cannot vanish in between.
    fn lookup_handle(&self, request: &Request<'_>, ino: Ino, reply: &mut Reply) -> Answer {
        self.volume_for(request).getattr(ino).map_err(stale)?;
        self.volume.remember(ino, 1);
        if self.direct.is_active()
            && let Err(e) = self.direct.break_hold(ino, request.wait)
        {
            self.volume.forget(ino, 1);
            return Err(e);
        }
        let answer = match self.volume.getattr(ino) {
            // Nameless and not known to the kernel: nobody has it open, it is about to be freed.
            Ok(attr) if attr.nlink == 0 => Err(Errno(libc::ESTALE)),
            Ok(attr) => {
                reply.remembered.push(ino);
                reply.push(&self.entry_of(&attr));
                return Ok(());
            }
            Err(e) => Err(stale(e)),
        };
        // It may be freed now.
        self.volume.forget(ino, 1);
        answer
    }

    pub(super) fn forget(&self, request: &Request<'_>) -> Answer {
        if request.header.opcode == op::FORGET {
            let arg: abi::ForgetIn = request.arg()?;
            let ino = self.target(request)?;
            self.direct.forgotten(ino, arg.nlookup);
            self.volume.forget(ino, arg.nlookup);
            self.direct.note_forgotten(ino);
            self.notifier.forgotten(&self.volume, ino);
            self.pages.forgotten(&self.volume, ino);
            self.direct.note_forgets();
            return Ok(());
        }
        let (head, mut rest) = request.arg_and_rest::<abi::BatchForgetIn>()?;
        for _ in 0..head.count {
            let one: abi::ForgetOne;
            (one, rest) =
                zerocopy::FromBytes::read_from_prefix(rest).map_err(|_| Errno(libc::EINVAL))?;
            match ino_of(one.nodeid) {
                Ok(ino) => {
                    self.direct.forgotten(ino, one.nlookup);
                    self.volume.forget(ino, one.nlookup);
                    self.direct.note_forgotten(ino);
                    self.notifier.forgotten(&self.volume, ino);
                    self.pages.forgotten(&self.volume, ino);
                }
                Err(_) => self.status_dir.forget(one.nodeid, one.nlookup),
            }
        }
        self.direct.note_forgets();
        Ok(())
    }

    pub(super) fn getattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let ino = self.target(request)?;
        let mut valid = self.attr_valid(request, ino)?;
        let mut attr = self.volume_for(request).getattr(ino)?;
        if let Some(mode) = self.direct.mode_to_open(request.header.pid, &attr) {
            (attr.mode, valid) = (mode, 0);
        }
        self.push_attr(reply, &attr, valid);
        Ok(())
    }

    /// How long the kernel may believe attributes that are read from now on.
    fn attr_valid(&self, request: &Request<'_>, ino: Ino) -> Result<u64, Errno> {
        Ok(match self.direct.is_changing(ino, request.wait)? {
            true => 0,
            false => FOREVER,
        })
    }

    pub(super) fn statx(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        request.arg::<abi::StatxIn>()?;
        let ino = self.target(request)?;
        let attr_valid = self.attr_valid(request, ino)?;
        let attr = self.volume_for(request).getattr(ino)?;
        let stat = self.statx_of(&attr);
        reply.push(&abi::StatxOut {
            attr_valid,
            attr_valid_nsec: 0,
            flags: 0,
            spare: [0; 2],
            stat,
        });
        Ok(())
    }

    pub(super) fn statx_of(&self, attr: &Attr) -> abi::Statx {
        // FS_*_FL and STATX_ATTR_* have the same values for these four: compressed, immutable, append, nodump.
        const ATTRIBUTES: u64 = 0x4 | 0x10 | 0x20 | 0x40;
        /// STATX_BASIC_STATS and STATX_BTIME.
        const MASK: u32 = 0x7ff | 0x800;
        let time = |t: Time| abi::SxTime {
            sec: t.0,
            nsec: t.1,
            reserved: 0,
        };
        abi::Statx {
            mask: MASK,
            blksize: self.block_size,
            attributes: u64::from(attr.flags) & ATTRIBUTES,
            attributes_mask: ATTRIBUTES,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode,
            ino: attr.ino.into(),
            size: attr.size,
            blocks: attr.blocks512,
            atime: time(attr.atime),
            btime: time(attr.crtime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: (attr.rdev >> 8) & 0xfff,
            rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
            ..Default::default()
        }
    }

    pub(super) fn setattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::SetattrIn = request.arg()?;
        let ino = self.target(request)?;
        let mut set = changes(&arg)?;
        // HANDLE_KILLPRIV_V2: a change of owner clears setuid and setgid of everything but directories, root's too.
        let chown = set.uid.is_some() || set.gid.is_some();
        if chown || set.kill_suidgid {
            let attr = self.volume_for(request).getattr(ino)?;
            let unprivileged = !chown || request.header.uid != 0;
            set.kill_sgid = unprivileged && self.is_foreign_setgid(request, &attr);
            set.kill_suidgid |= !attr.is_dir();
        }
        self.before_setattr(request, ino, &set)?;
        let before = self.notifier.look();
        let attr = self
            .volume_for(request)
            .setattr(&self.context(request, 0), ino, &set)?;
        if set.size.is_some() && self.notifier.is_doubtful(&self.volume, ino, before) {
            self.volume.was_as_long(ino);
        }
        self.push_attr(reply, &attr, FOREVER);
        Ok(())
    }

    pub(super) fn readlink(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        reply.body = self.volume_for(request).readlink(self.target(request)?)?;
        Ok(())
    }

    pub(super) fn symlink(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (name, target) = name_and_string(request.bare())?;
        match target.len() {
            0 => return Err(Errno(libc::ENOENT)),
            1..=SYMLINK_MAX => {}
            _ => return Err(Errno(libc::ENAMETOOLONG)),
        }
        let (cx, parent) = (self.context(request, 0), self.target(request)?);
        let name = self.changeable(request.header.nodeid, name)?;
        let attr = self
            .volume_for(request)
            .symlink(&cx, parent, name, target)?;
        self.push_entry(&self.volume, reply, &attr)
    }

    pub(super) fn mknod(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, rest) = request.arg_and_rest::<abi::MknodIn>()?;
        let name = self.changeable(request.header.nodeid, one_name(rest)?)?;
        let mode = mode_of(arg.mode)?;
        match u32::from(mode) & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK => {}
            _ => return Err(Errno(libc::EINVAL)),
        }
        let cx = self.context(request, arg.umask);
        let parent = self.target(request)?;
        let mode = self.mode_of_new(request, parent, mode)?;
        let made = self
            .volume_for(request)
            .mknod(&cx, parent, name, mode, arg.rdev);
        let attr = made.map_err(|e| match e.errno() {
            // A program's session has made it since the kernel has looked. For ESTALE the kernel looks again, and opens it, or says that it exists.
            libc::EEXIST if u32::from(mode) & libc::S_IFMT == libc::S_IFREG => Errno(libc::ESTALE),
            _ => e.into(),
        })?;
        self.push_entry(&self.volume, reply, &attr)
    }

    pub(super) fn mkdir(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, rest) = request.arg_and_rest::<abi::MkdirIn>()?;
        let name = self.changeable(request.header.nodeid, one_name(rest)?)?;
        let mode = (arg.mode & 0o7777) as u16 | libc::S_IFDIR as u16;
        let (cx, parent) = (self.context(request, arg.umask), self.target(request)?);
        let attr = self.volume_for(request).mkdir(&cx, parent, name, mode)?;
        self.push_entry(&self.volume, reply, &attr)
    }

    /// O_TMPFILE. Kernels send a made-up name along.
    pub(super) fn tmpfile(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, _) = request.arg_and_rest::<abi::CreateIn>()?;
        let (cx, parent) = (self.context(request, arg.umask), self.target(request)?);
        let mode = (arg.mode & 0o7777) as u16 | libc::S_IFREG as u16;
        let mode = self.mode_of_new(request, parent, mode)?;
        let attr = self.volume_for(request).tmpfile(&cx, parent, mode)?;
        self.push_remembered(reply, &attr);
        reply.push(&self.opened(arg.flags));
        Ok(())
    }

    pub(super) fn unlink(&self, request: &Request<'_>) -> Answer {
        let name = self.changeable(request.header.nodeid, one_name(request.bare())?)?;
        let (cx, parent) = (self.context(request, 0), self.target(request)?);
        self.volume_for(request).unlink(&cx, parent, name)?;
        // The kernel remembers the name as one that is not there.
        self.direct.note_absent(parent, name);
        Ok(())
    }

    pub(super) fn rmdir(&self, request: &Request<'_>) -> Answer {
        let name = self.changeable(request.header.nodeid, one_name(request.bare())?)?;
        let (cx, parent) = (self.context(request, 0), self.target(request)?);
        self.volume_for(request).rmdir(&cx, parent, name)?;
        // The kernel remembers the name as one that is not there.
        self.direct.note_absent(parent, name);
        Ok(())
    }

    /// RENAME gives a directory another parent, of which the kernel is told while the call waits.
    pub(super) fn moves_directory(&self, request: &Request<'_>) -> bool {
        let Ok(arg) = rename_args(request) else {
            return false;
        };
        let volume = self.volume.non_blocking();
        let is_dir = |dir, name| match volume.lookup(dir, name) {
            Ok(attr) => attr.is_dir(),
            Err(e) => e.errno() == libc::EAGAIN,
        };
        let (Ok(from), Ok(to)) = (self.target(request), ino_of(arg.to)) else {
            return false;
        };
        let exchanges = arg.flags & libc::RENAME_EXCHANGE != 0;
        from != to && (is_dir(from, arg.name) || exchanges && is_dir(to, arg.new_name))
    }

    pub(super) fn rename(&self, request: &Request<'_>) -> Answer {
        let RenameArgs {
            to,
            flags,
            name,
            new_name,
        } = rename_args(request)?;
        let new_name = self.changeable(to, checked_name(new_name)?)?;
        let flags = rename_flags(flags)?;
        let cx = self.context(request, 0);
        let (from, to) = (self.target(request)?, ino_of(to)?);
        let name = self.changeable(request.header.nodeid, name)?;
        let before = self.notifier.look();
        self.volume_for(request)
            .rename(&cx, from, name, to, new_name, flags)?;
        let names = [(from, name), (to, new_name)];
        self.notifier.renamed(&self.volume, before, cx.uid, names);
        if from != to {
            let exchanged = flags.exchange.then_some((from, name));
            for (dir, name) in [(to, new_name)].into_iter().chain(exchanged) {
                self.tell_moved(cx.uid, dir, name);
            }
        }
        Ok(())
    }

    /// A directory has come to another one: what the kernel has listed of it has the old "..", which it does not notice by its times.
    fn tell_moved(&self, user: u32, dir: Ino, name: &[u8]) {
        if let Ok(attr) = self.volume.lookup(dir, name)
            && attr.is_dir()
        {
            self.notifier.moved(user, attr.ino);
        }
    }

    pub(super) fn link(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, rest) = request.arg_and_rest::<abi::LinkIn>()?;
        let name = self.changeable(request.header.nodeid, one_name(rest)?)?;
        let cx = self.context(request, 0);
        let (ino, parent) = (ino_of(arg.oldnodeid)?, self.target(request)?);
        self.direct.note_linked_by_kernel(ino);
        let attr = self.volume_for(request).link(&cx, ino, parent, name)?;
        self.push_entry(&self.volume, reply, &attr)
    }

    pub(super) fn readdir(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::ReadIn = request.arg()?;
        check_range(arg.offset, 0)?;
        let room = (arg.size as usize).min(LIST_MAX);
        let body = &mut reply.body;
        self.volume_for(request)
            .readdir(self.target(request)?, arg.offset, &mut |entry| {
                if body.len() + padded(size_of::<abi::Dirent>() + entry.name.len()) > room {
                    return false;
                }
                push_entry_of(body, &entry);
                true
            })?;
        Ok(())
    }

    /// As READDIR with the inode's attributes; each entry but "." and ".." is a reference for the kernel.
    pub(super) fn readdirplus(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        const FIXED: usize = size_of::<abi::EntryOut>() + size_of::<abi::Dirent>();
        let arg: abi::ReadIn = request.arg()?;
        check_range(arg.offset, 0)?;
        let room = (arg.size as usize).min(LIST_MAX);
        let dir = self.target(request)?;
        let mut taken = 0;
        let mut entries = Vec::new();
        // Collected first: the engine may hold the directory while it calls back.
        self.volume_for(request)
            .readdir(dir, arg.offset, &mut |entry| {
                taken += padded(FIXED + entry.name.len());
                if taken <= room {
                    entries.push(entry);
                }
                taken <= room
            })?;
        // What has to be read is found out before there are references: one that is taken back could be the last of an inode.
        for entry in &entries {
            self.volume_for(request).check_in_memory(entry.ino)?;
        }
        for entry in &entries {
            let dots = entry.name == b"." || entry.name == b"..";
            // What a session of direct calls holds the kernel does not get to know by a listing. It is looked at with a reference: from then on nobody
            // can hold it.
            let active = self.direct.is_active() && !dots;
            if active {
                self.volume.remember(entry.ino, 1);
            }
            let held = active && self.direct.is_secret(entry.ino);
            let known = || {
                let attr = self.volume.entry_attr(dir, entry.ino).ok()?;
                let known = self.volume.remember_this(attr.ino, attr.generation);
                known.is_ok().then_some(attr)
            };
            let attr = match dots || held {
                true => None,
                false => known(),
            };
            match attr {
                Some(attr) => self.push_remembered(reply, &attr),
                // Node id 0: a name without attributes.
                None => reply.push(&abi::EntryOut::default()),
            }
            if active {
                // That of the reply is counted by itself.
                self.volume.forget(entry.ino, 1);
            }
            push_entry_of(&mut reply.body, entry);
        }
        Ok(())
    }

    /// No operation changes "." or "..", or the directory `.ccfs`.
    fn changeable<'a>(&self, parent: u64, name: &'a [u8]) -> Result<&'a [u8], Errno> {
        if name == b"." || name == b".." {
            Err(Errno(libc::EINVAL))
        } else if self.status_dir.is_name(parent, name) {
            Err(Errno(libc::EPERM))
        } else {
            Ok(name)
        }
    }

    pub(super) fn statfs(&self, reply: &mut Reply) -> Answer {
        let s = self.volume.statfs()?;
        reply.push(&abi::Kstatfs {
            blocks: s.blocks,
            bfree: s.bfree,
            bavail: s.bavail,
            files: s.files,
            ffree: s.ffree,
            bsize: s.block_size,
            namelen: s.name_max,
            frsize: s.block_size,
            ..Default::default()
        });
        Ok(())
    }
}

/// An inode that does not exist (any more) behind a file handle.
fn stale(error: Error) -> Errno {
    match error.errno() {
        libc::ENOENT => Errno(libc::ESTALE),
        other => Errno(other),
    }
}

fn mode_of(mode: u32) -> Result<u16, Errno> {
    u16::try_from(mode).map_err(|_| Errno(libc::EINVAL))
}

/// What RENAME and RENAME2 bring.
struct RenameArgs<'r> {
    /// The node of the other directory.
    to: u64,
    flags: u32,
    name: &'r [u8],
    new_name: &'r [u8],
}

fn rename_args<'r>(request: &Request<'r>) -> Result<RenameArgs<'r>, Errno> {
    let (to, flags, rest) = if request.header.opcode == op::RENAME {
        let (arg, rest) = request.arg_and_rest::<abi::RenameIn>()?;
        (arg.newdir, 0, rest)
    } else {
        let (arg, rest) = request.arg_and_rest::<abi::Rename2In>()?;
        (arg.newdir, arg.flags, rest)
    };
    let (name, new_name) = name_and_string(rest)?;
    Ok(RenameArgs {
        to,
        flags,
        name,
        new_name,
    })
}

fn rename_flags(flags: u32) -> Result<RenameFlags, Errno> {
    if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let exchange = flags & libc::RENAME_EXCHANGE != 0;
    if exchange && flags != libc::RENAME_EXCHANGE {
        return Err(Errno(libc::EINVAL));
    }
    Ok(RenameFlags {
        noreplace: flags & libc::RENAME_NOREPLACE != 0,
        exchange,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

fn changes(arg: &abi::SetattrIn) -> Result<SetAttr, Errno> {
    let has = |flag| arg.valid & flag != 0;
    let time = |seconds: u64, nanoseconds: u32| {
        if nanoseconds >= 1_000_000_000 {
            return Err(Errno(libc::EINVAL));
        }
        Ok(SetTime::At((
            (seconds as i64).clamp(TIME_MIN, TIME_MAX),
            nanoseconds,
        )))
    };
    let set_time = |is_set, is_now, seconds, nanoseconds| match (has(is_set), has(is_now)) {
        (_, true) => Ok(Some(SetTime::Now)),
        (true, false) => time(seconds, nanoseconds).map(Some),
        (false, false) => Ok(None),
    };
    if has(fattr::SIZE) && arg.size > i64::MAX as u64 {
        return Err(Errno(libc::EFBIG));
    }
    Ok(SetAttr {
        // The kernel sends the type along.
        mode: has(fattr::MODE).then_some((arg.mode & 0o7777) as u16),
        uid: has(fattr::UID).then_some(arg.uid),
        gid: has(fattr::GID).then_some(arg.gid),
        size: has(fattr::SIZE).then_some(arg.size),
        atime: set_time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec)?,
        mtime: set_time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec)?,
        ctime: if has(fattr::CTIME) {
            Some(time(arg.ctime, arg.ctimensec)?)
        } else {
            None
        },
        kill_suidgid: has(fattr::KILL_SUIDGID),
        kill_sgid: false,
    })
}

fn push_entry_of(body: &mut Vec<u8>, entry: &ListEntry) {
    let (ino, kind) = (entry.ino.into(), entry.dtype.into());
    push_dirent(body, ino, entry.next, kind, &entry.name);
}
