//! IOCTL: inode flags, trim, shutdown, label, and ccfs's own calls. The kernel copies as many bytes in and out as the ioctl's number
//! states ("restricted" ioctls).
use super::{Answer, Server, monotonic_ms};
use crate::abi;
use crate::show::{self, Viewer};
use crate::wire::{Errno, Reply, Request};
use ccfs_caller::User;
use ccfs_caller::procfs::Credentials;
use ccfs_client::abi::{
    self as client, BarrierArg, ProcessArg, STATUS_CHUNK, StatusArg, StreamArg, StreamNameArg,
    SyncVolumeArg, TraceArg, TuneArg,
};
use ccfs_engine::{FLAG_APPEND, FLAG_IMMUTABLE, StreamId, SyncCall};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_GETFLAGS: u32 = 0x8004_6601;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC32_GETVERSION: u32 = 0x8004_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_GETFSLABEL: u32 = 0x8100_9431;
pub(super) const FITRIM: u32 = 0xc018_5879;
pub(super) const FS_IOC_SHUTDOWN: u32 = 0x8004_587d;
/// Its flags (EXT4_GOING_FLAGS_*): what was accepted is made durable first, in two ways that are one here, or nothing more is written.
const GOING_DEFAULT: u32 = 0;
const GOING_LOGFLUSH: u32 = 1;
const GOING_NOLOGFLUSH: u32 = 2;
/// F2FS_IOC_START_ATOMIC_WRITE, _COMMIT_ATOMIC_WRITE, _ABORT_VOLATILE_WRITE, and _GET_FEATURES with the one feature that is meant.
pub(super) const F2FS_START: u32 = 0xf501;
pub(super) const F2FS_COMMIT: u32 = 0xf502;
pub(super) const F2FS_ABORT: u32 = 0xf505;
const F2FS_GET_FEATURES: u32 = 0x8004_f50c;
const F2FS_FEATURE_ATOMIC_WRITE: u32 = 4;
/// Capabilities (linux/capability.h).
const CAP_LINUX_IMMUTABLE: u32 = 9;
pub(super) const CAP_SYS_ADMIN: u32 = 21;
const FLAGS_NEED_RIGHTS: u32 = FLAG_IMMUTABLE | FLAG_APPEND;
/// Size of FS_IOC_GETFSLABEL's answer, bytes.
const LABEL_LEN: usize = 256;

/// FITRIM's argument: a byte range and the shortest piece worth trimming, bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    min_len: u64,
}

/// FS_IOC_FSGETXATTR's `struct fsxattr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}
const _: () = assert!(size_of::<FsXattr>() == 28 && size_of::<TrimRange>() == 24);

/// (FS_*_FL, FS_XFLAG_*) of the flags that both calls have: sync, immutable, append, nodump, noatime.
const XFLAGS: [(u32, u32); 5] = [
    (0x8, 0x20),
    (0x10, 0x8),
    (0x20, 0x10),
    (0x40, 0x80),
    (0x80, 0x40),
];

/// Such a call changes the flags of an inode.
pub(super) fn changes_flags(number: u32) -> bool {
    matches!(
        number,
        FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS | FS_IOC_FSSETXATTR
    )
}

impl Server {
    pub(super) fn ioctl(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, input) = request.arg_and_rest::<abi::IoctlIn>()?;
        if input.len() != arg.in_size as usize {
            return Err(Errno(libc::EINVAL));
        }
        reply.push(&abi::IoctlOut::default());
        match arg.cmd {
            FS_IOC_GETFLAGS | FS_IOC32_GETFLAGS => {
                reply.push(&self.volume.getflags(self.target(request)?)?);
            }
            FS_IOC_SETFLAGS | FS_IOC32_SETFLAGS => {
                // Some kernels send the 4 bytes that are used, some the 8 that the number states.
                let (flags, _) = u32::read_from_prefix(input).map_err(|_| Errno(libc::EINVAL))?;
                self.change_flags(request, flags, reply)?;
            }
            FS_IOC_FSGETXATTR => self.get_fsxattr(request, reply)?,
            FS_IOC_FSSETXATTR => self.set_fsxattr(request, input, reply)?,
            FS_IOC_GETVERSION | FS_IOC32_GETVERSION => {
                // Callers have an int, whatever the number says.
                reply.push(&self.volume.getattr(self.target(request)?)?.generation);
            }
            FS_IOC_GETFSLABEL => {
                let mut label = self.volume.label();
                label.resize(LABEL_LEN, 0);
                reply.body.extend_from_slice(&label);
            }
            FITRIM => self.trim(request, input, reply)?,
            FS_IOC_SHUTDOWN => self.shut_down(request, arg.arg)?,
            client::IOC_GET_STREAM_OF_PROCESS => self.stream_of_process(request, input, reply)?,
            client::IOC_NAME_STREAM | client::IOC_FIND_STREAM => {
                self.stream_name(request, arg.cmd, input, reply)?;
            }
            client::IOC_TUNE => self.tune(request, input)?,
            client::IOC_SCRUB => self.scrub(request, input, reply)?,
            client::IOC_RESIZE => self.resize(request, input, reply)?,
            client::IOC_FREEZE => self.freeze(request, input, reply)?,
            client::IOC_THAW => self.thaw(request, input, reply)?,
            client::IOC_BARRIER => self.barrier(request, input, reply)?,
            client::IOC_STATUS => self.status_part(self.user(request), input, reply)?,
            client::IOC_TRACE => self.trace(self.user(request), input, reply)?,
            client::IOC_DIRECT_BEGIN => {
                let mut arg = versioned(input)?;
                self.begin_direct(request, &mut arg)?;
                reply.push(&arg);
            }
            client::IOC_DIRECT_CALL => {
                let mut arg = versioned(input)?;
                self.call_direct(request, &mut arg)?;
                reply.push(&arg);
            }
            client::IOC_GROUP_BEGIN
            | client::IOC_GROUP_COMMIT
            | client::IOC_GROUP_ABORT
            | client::IOC_GROUP_ENTER => {
                self.group_ioctl(request, arg.cmd, input, reply)?;
                if self.direct.is_active() {
                    self.direct.enters_group(request.header.pid);
                }
            }
            F2FS_GET_FEATURES => reply.push(&F2FS_FEATURE_ATOMIC_WRITE),
            F2FS_START | F2FS_COMMIT | F2FS_ABORT => {
                self.f2fs_atomic_write(request, arg.cmd)?;
                if arg.cmd == F2FS_START && self.direct.is_active() {
                    self.direct.enters_group(request.header.pid);
                }
            }
            client::IOC_ATOMIC => self.open_atomic_file(request, arg.fh, input, reply)?,
            client::IOC_SYNCV => self.syncv(request, input, reply)?,
            client::IOC_SYNC_VOLUME => self.sync_volume(request, input, reply)?,
            client::IOC_GROUP_CHANGES => self.group_changes(request, input, reply)?,
            client::IOC_SET_STREAM
            | client::IOC_GET_STREAM
            | client::IOC_NEW_STREAM
            | client::IOC_STREAM_SYNC => self.stream_ioctl(request, arg.cmd, input, reply)?,
            _ => return Err(Errno(libc::ENOTTY)),
        }
        // Never more than the caller has room for.
        reply
            .body
            .truncate(size_of::<abi::IoctlOut>() + arg.out_size as usize);
        Ok(())
    }

    /// SETFLAGS changes the ctime behind the kernel's back. The kernel checks rights for the native number only.
    fn change_flags(&self, request: &Request<'_>, flags: u32, reply: &mut Reply) -> Answer {
        let ino = self.target(request)?;
        let mut context = self.context(request, 0);
        if context.uid != 0 && context.uid != self.volume.getattr(ino)?.uid {
            return Err(Errno(libc::EPERM));
        }
        let changed = self.volume.getflags(ino)? ^ flags;
        context.privileged =
            changed & FLAGS_NEED_RIGHTS == 0 || self.needs(request, CAP_LINUX_IMMUTABLE).is_ok();
        if changed & flags & FLAGS_NEED_RIGHTS != 0 && context.privileged {
            self.before_locking(request, ino)?;
        }
        self.volume.setflags(&context, ino, flags)?;
        reply.stale_attrs.push(request.header.nodeid);
        Ok(())
    }

    /// On whose behalf a request is made, where the rights of root matter.
    pub(super) fn user(&self, request: &Request<'_>) -> User {
        self.callers.user(request.header.pid, request.header.uid)
    }

    /// The caller may do to the volume as a whole what he likes: root, and who runs a daemon without root, for he could do the same without a mount.
    pub(super) fn manages(&self, request: &Request<'_>) -> Answer {
        let daemon = rustix::process::geteuid().as_raw();
        match daemon != 0 && daemon == request.header.uid {
            true => Ok(()),
            false => self.needs(request, CAP_SYS_ADMIN),
        }
    }

    /// The caller has this capability on the machine, not just in a user namespace of its own. Error: EPERM, also where that
    /// cannot be seen.
    pub(super) fn needs(&self, request: &Request<'_>, capability: u32) -> Answer {
        let (tid, proc) = (request.header.pid, self.callers.proc());
        let has = |who: Credentials| who.can(capability);
        if self.user(request).is_root && proc.credentials(tid).is_some_and(has) {
            Ok(())
        } else {
            Err(Errno(libc::EPERM))
        }
    }

    fn get_fsxattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let flags = self.volume.getflags(self.target(request)?)?;
        let set = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0);
        reply.push(&FsXattr {
            xflags: set.map(|(_, xflag)| xflag).sum(),
            ..Default::default()
        });
        Ok(())
    }

    /// Only what inode flags can express: no projects, no extent size hints.
    fn set_fsxattr(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        let asked = exactly::<FsXattr>(input)?;
        let known: u32 = XFLAGS.iter().map(|(_, xflag)| xflag).sum();
        if asked.xflags & !known != 0 || asked.extsize | asked.projid | asked.cowextsize != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let mut flags = self.volume.getflags(self.target(request)?)?;
        for (flag, xflag) in XFLAGS {
            flags = if asked.xflags & xflag != 0 {
                flags | flag
            } else {
                flags & !flag
            };
        }
        self.change_flags(request, flags, reply)
    }

    fn trim(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        self.needs(request, CAP_SYS_ADMIN)?;
        let range = exactly::<TrimRange>(input)?;
        let len = self.volume.trim(range.start, range.len, range.min_len)?;
        reply.push(&TrimRange { len, ..range });
        Ok(())
    }

    /// Stops the volume. With two of the three flags what was accepted before the call survives, as on ext4. The number says that the
    /// call returns its argument, so the kernel does not send it: it is read where the caller has it. Errors: EPERM, EFAULT, EINVAL; EIO
    /// what was accepted is not durable.
    fn shut_down(&self, request: &Request<'_>, address: u64) -> Answer {
        self.needs(request, CAP_SYS_ADMIN)?;
        match self
            .callers
            .proc()
            .integer_at(request.header.pid, address)?
        {
            GOING_DEFAULT | GOING_LOGFLUSH if !self.volume.is_stopped() => {
                self.sync(request, &self.context(request, 0), SyncCall::Volume)?;
            }
            GOING_DEFAULT | GOING_LOGFLUSH | GOING_NOLOGFLUSH => {}
            _ => return Err(Errno(libc::EINVAL)),
        }
        self.volume.shutdown();
        Ok(())
    }

    fn stream_ioctl(
        &self,
        request: &Request<'_>,
        number: u32,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut stream = versioned::<StreamArg>(input)?;
        let (tid, uid) = (request.header.pid, request.header.uid);
        let callers = &self.callers;
        match number {
            client::IOC_SET_STREAM => callers.set(tid, uid, stream.id, stream.flags)?,
            client::IOC_GET_STREAM => {
                let (id, flags) = callers.get(tid, uid);
                (stream.id, stream.flags) = (id.0, flags);
            }
            client::IOC_NEW_STREAM => stream.id = callers.make(uid, stream.flags)?.0,
            client::IOC_STREAM_SYNC if stream.flags != 0 => return Err(Errno(libc::EINVAL)),
            client::IOC_STREAM_SYNC => self.stream_sync(request, stream.id)?,
            _ => return Err(Errno(libc::ENOTTY)),
        }
        if number == client::IOC_SET_STREAM && self.direct.is_active() {
            let now = callers.caller(tid, uid).stream;
            self.direct.thread_moved(tid, now);
        }
        reply.push(&stream);
        Ok(())
    }

    fn stream_name(
        &self,
        request: &Request<'_>,
        number: u32,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut arg = versioned::<StreamNameArg>(input)?;
        let length = usize::try_from(arg.length).unwrap_or(usize::MAX);
        let name = arg.name.get(..length).ok_or(Errno(libc::EINVAL))?;
        let (tid, uid) = (request.header.pid, request.header.uid);
        match number {
            client::IOC_NAME_STREAM => self.callers.name(tid, uid, arg.id, name)?,
            _ => arg.id = self.callers.find(self.user(request), name)?,
        }
        reply.push(&arg);
        Ok(())
    }

    fn stream_sync(&self, request: &Request<'_>, id: u64) -> Answer {
        let cx = self.context(request, 0);
        let stream = if id == 0 { cx.stream } else { StreamId(id) };
        if id != 0 && !self.callers.may_use(self.user(request), id) {
            return Err(Errno(libc::EPERM));
        }
        self.sync(request, &cx, SyncCall::Stream(stream))
    }

    /// syncfs(2) for kernels and mounts that do not tell of it.
    fn sync_volume(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        let arg = versioned::<SyncVolumeArg>(input)?;
        if arg.reserved != 0 {
            return Err(Errno(libc::EINVAL));
        }
        self.sync(request, &self.context(request, 0), SyncCall::Volume)?;
        reply.push(&arg);
        Ok(())
    }

    /// Order without durability (C13). It waits for no device, so it needs no thread of its own.
    fn barrier(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        let arg = versioned::<BarrierArg>(input)?;
        if arg.flags & !client::BARRIER_DATA != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (cx, ino) = (self.context(request, 0), self.target(request)?);
        self.syncers.note(request.header.pid);
        let call = SyncCall::File(ino);
        self.volume.barrier(&cx, call, request.header.pid)?;
        reply.push(&arg);
        Ok(())
    }

    /// Whose threads somebody may look at: root's look at all, others' at those of their own user.
    fn stream_of_process(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        let asked = versioned::<ProcessArg>(input)?;
        if asked.reserved != 0 || asked.pid == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (id, flags) = self.callers.stream_of(self.user(request), asked.pid)?;
        reply.push(&ProcessArg {
            id: id.0,
            flags,
            ..asked
        });
        Ok(())
    }

    /// Changes options while the volume is in use.
    fn tune(&self, request: &Request<'_>, input: &[u8]) -> Answer {
        self.needs(request, CAP_SYS_ADMIN)?;
        let asked = versioned::<TuneArg>(input)?;
        let (seconds, bytes) = (asked.commit_seconds, asked.dirty_bytes);
        let bounded = seconds <= 3600 && (bytes == 0 || (1 << 20..=1 << 40).contains(&bytes));
        if !bounded || asked.access_times > client::ACCESS_TIMES_OFF || asked.reserved != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let commit = (seconds != 0).then(|| Duration::from_secs(seconds.into()));
        self.volume.tune(commit, (bytes != 0).then_some(bytes));
        match asked.access_times {
            client::ACCESS_TIMES_KEPT => self.volume.tune_access_times(false, false),
            client::ACCESS_TIMES_OF_FILES => self.volume.tune_access_times(false, true),
            client::ACCESS_TIMES_OFF => self.volume.tune_access_times(true, true),
            _ => {}
        }
        Ok(())
    }

    /// The mount's options, as far as they are the daemon's: they name files, so for root only.
    fn options_json(&self, viewer: Viewer) -> serde_json::Value {
        if !viewer.is_root {
            return json!({});
        }
        let mut options = self.mount.options.clone();
        if !options.is_empty() {
            let seconds = self.volume.commit_interval().as_secs();
            options.insert("commit", seconds.to_string());
            let bytes = self.volume.status().dirty_limit_bytes;
            options.insert("dirty", bytes.to_string());
        }
        json!(options)
    }

    /// Events as lines of JSON, as many as fit.
    fn trace(&self, viewer: Viewer, input: &[u8], reply: &mut Reply) -> Answer {
        /// More events than the shortest lines that fit.
        const EVENTS: usize = 64;
        let mut arg = trace_arg(input)?;
        self.syncers.watch();
        if arg.next == client::TRACE_NEW {
            arg.next = self.volume.next_event();
        }
        let (events, lost) = self.volume.events(arg.next, EVENTS);
        (arg.lost, arg.length, arg.data) = (lost, 0, [0; STATUS_CHUNK]);
        let paths = show::Paths::new(&self.volume, viewer);
        for event in &events {
            let line = show::event(&paths, &self.syncers, event);
            // The next part has paths again.
            let spent = paths.is_spent() && arg.length > 0;
            if spent || !put_line(&mut arg, &format!("{line}\n")) {
                break;
            }
            arg.next = event.number + 1;
        }
        reply.push(&arg);
        Ok(())
    }

    fn status_part(&self, viewer: Viewer, input: &[u8], reply: &mut Reply) -> Answer {
        let asked = versioned::<StatusArg>(input)?;
        let (snapshot, text) = self.snapshot(viewer, asked.snapshot)?;
        let start = usize::try_from(asked.offset)
            .unwrap_or(usize::MAX)
            .min(text.len());
        let part = &text.as_bytes()[start..text.len().min(start + STATUS_CHUNK)];
        let mut answer = StatusArg {
            length: part.len() as u32,
            total: text.len() as u64,
            ..asked
        };
        answer.snapshot = snapshot;
        answer.data = [0; STATUS_CHUNK];
        answer.data[..part.len()].copy_from_slice(part);
        reply.push(&answer);
        Ok(())
    }

    /// A viewer's own snapshot; 0 makes one.
    fn snapshot(&self, viewer: Viewer, number: u64) -> Result<(u64, Arc<str>), Errno> {
        let now = monotonic_ms();
        if number != 0 {
            let text = self.snapshots.lock().find(viewer, number, now)?;
            return Ok((number, text));
        }
        let text: Arc<str> = self.status(viewer).to_string().into();
        let number = self.snapshots.lock().keep(viewer, text.clone(), now);
        Ok((number, text))
    }

    /// The engine's status with what this layer knows, as far as the viewer may see it.
    pub fn status(&self, viewer: Viewer) -> serde_json::Value {
        let requests: serde_json::Map<_, _> = self
            .metrics
            .list()
            .into_iter()
            .map(|(name, n)| (name.to_string(), n.into()))
            .collect();
        let mut status = serde_json::to_value(self.volume.status()).unwrap_or_default();
        if !viewer.is_root {
            // Block numbers are root's business.
            for key in ["first_error", "last_error"] {
                status["damage"][key] = serde_json::Value::Null;
            }
        }
        let syncfs = self.mount.syncfs_now();
        status["mount"] = json!({
            "mountpoint": self.mount.mountpoint,
            "source": self.mount.source,
            "device": self.mount.device,
            "pid": std::process::id(),
            "syncfs_works": syncfs.works(),
            "syncfs_by": syncfs.by(),
            "syncfs_reason": syncfs.why(),
            "status_dir": self.status_dir.is_on(),
            "options": self.options_json(viewer),
            "fuse_protocol": format!("{}.{}", abi::MAJOR, self.agreed.minor),
            "transport": self.mount.transport.name(),
            "transport_reason": self.mount.transport.why(),
        });
        status["space"] = show::space(&self.volume);
        status["store"] = show::store(&self.volume);
        status["direct"] = self.direct.json();
        status["requests"] = requests.into();
        let daemon_uid = rustix::process::geteuid().as_raw();
        status["log"] = self.mount.messages.json(viewer, daemon_uid);
        self.add_streams(&mut status, viewer);
        let paths = show::Paths::new(&self.volume, viewer);
        show::add_streams(&mut status, &paths, &self.recent);
        status
    }
}

/// The argument of a call of ours: every one begins with the version of the interface. Error: EINVAL.
pub(super) fn versioned<T: FromBytes>(input: &[u8]) -> Result<T, Errno> {
    match input.first_chunk() {
        Some(first) if u32::from_ne_bytes(*first) == client::VERSION => exactly(input),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// The call fails for its caller, and has an answer nevertheless.
pub(super) fn set_result(reply: &mut Reply, Errno(errno): Errno) {
    let out = abi::IoctlOut {
        result: -errno,
        ..Default::default()
    };
    let bytes = out.as_bytes();
    reply.body[..bytes.len()].copy_from_slice(bytes);
}

/// The argument of a call that answers with lines. Error: EINVAL.
pub(super) fn trace_arg(input: &[u8]) -> Result<TraceArg, Errno> {
    let arg = versioned::<TraceArg>(input)?;
    match arg.reserved {
        0 => Ok(arg),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Adds a line to an answer. False: it does not fit any more.
pub(super) fn put_line(arg: &mut TraceArg, line: &str) -> bool {
    let at = arg.length as usize;
    let Some(room) = arg.data.get_mut(at..at + line.len()) else {
        return false;
    };
    room.copy_from_slice(line.as_bytes());
    arg.length += line.len() as u32;
    true
}

fn exactly<T: FromBytes>(input: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(input).map_err(|_| Errno(libc::EINVAL))
}
