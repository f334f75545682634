//! IOCTL: inode flags, trim, shutdown, label, and ccfs's own calls. The kernel copies as many bytes in and out as the ioctl's number
//! states ("restricted" ioctls).
use super::{Answer, Server};
use crate::abi;
use crate::show::{self, Viewer};
use crate::wire::{Errno, Reply, Request};
use ccfs_client::abi::{self as client, ProcessArg, STATUS_CHUNK, StatusArg, StreamArg, TraceArg};
use ccfs_engine::{StreamId, SyncCall};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
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
/// Size of FS_IOC_GETFSLABEL's answer, bytes.
const LABEL_LEN: usize = 256;

/// Status texts that callers are reading part by part.
#[derive(Default)]
pub struct Snapshots {
    last: u64,
    /// (number, whose, text)
    kept: VecDeque<(u64, u32, Arc<str>)>,
}
const SNAPSHOTS_MAX: usize = 16;

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
                reply.push(&u64::from(
                    self.volume.getattr(self.target(request)?)?.generation,
                ));
            }
            FS_IOC_GETFSLABEL => {
                let mut label = self.volume.label();
                label.resize(LABEL_LEN, 0);
                reply.body.extend_from_slice(&label);
            }
            FITRIM => self.trim(request, input, reply)?,
            FS_IOC_SHUTDOWN => {
                // The argument (which kind of shutdown) does not arrive: the number says that the call returns it.
                root_only(request)?;
                self.volume.shutdown();
            }
            client::IOC_GET_STREAM_OF_PROCESS => self.stream_of_process(request, input, reply)?,
            client::IOC_SET_STREAM..=client::IOC_STATUS | client::IOC_TRACE => {
                self.own_ioctl(request, &arg, input, reply)?
            }
            _ => return Err(Errno(libc::ENOTTY)),
        }
        // Never more than the caller has room for.
        reply
            .body
            .truncate(size_of::<abi::IoctlOut>() + arg.out_size as usize);
        Ok(())
    }

    /// SETFLAGS changes the ctime behind the kernel's back.
    fn change_flags(&self, request: &Request<'_>, flags: u32, reply: &mut Reply) -> Answer {
        self.volume
            .setflags(&self.context(request, 0), self.target(request)?, flags)?;
        reply.stale_attrs.push(request.header.nodeid);
        Ok(())
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
        root_only(request)?;
        let range = exactly::<TrimRange>(input)?;
        let len = self.volume.trim(range.start, range.len, range.min_len)?;
        reply.push(&TrimRange { len, ..range });
        Ok(())
    }

    fn own_ioctl(
        &self,
        request: &Request<'_>,
        arg: &abi::IoctlIn,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let viewer = Viewer {
            uid: request.header.uid,
        };
        match arg.cmd {
            client::IOC_STATUS => return self.status_part(viewer, input, reply),
            client::IOC_TRACE => return self.trace(viewer, input, reply),
            _ => {}
        }
        let mut stream = exactly::<StreamArg>(input)?;
        if stream.version != client::VERSION {
            return Err(Errno(libc::EINVAL));
        }
        let (tid, uid) = (request.header.pid, request.header.uid);
        match arg.cmd {
            client::IOC_SET_STREAM => self.callers.set(tid, uid, stream.id, stream.flags)?,
            client::IOC_GET_STREAM => {
                let (id, flags) = self.callers.get(tid, uid);
                (stream.id, stream.flags) = (id.0, flags);
            }
            client::IOC_NEW_STREAM => {
                stream.id = self
                    .callers
                    .make(uid, stream.flags, || self.volume.new_stream())?
                    .0;
            }
            client::IOC_STREAM_SYNC => self.stream_sync(request, stream.id)?,
            _ => return Err(Errno(libc::ENOTTY)),
        }
        reply.push(&stream);
        Ok(())
    }

    fn stream_sync(&self, request: &Request<'_>, id: u64) -> Answer {
        let cx = self.context(request, 0);
        let stream = if id == 0 { cx.stream } else { StreamId(id) };
        if id != 0 && !self.callers.may_use(cx.uid, id) {
            return Err(Errno(libc::EPERM));
        }
        self.sync(request, &cx, SyncCall::Stream(stream))
    }

    /// Whose threads somebody may look at: root's look at all, others' at those of their own user.
    fn stream_of_process(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        let asked = exactly::<ProcessArg>(input)?;
        if asked.version != client::VERSION || asked.reserved != 0 || asked.pid == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let uid = file_system_uid(asked.pid).ok_or(Errno(libc::ESRCH))?;
        if request.header.uid != 0 && request.header.uid != uid {
            return Err(Errno(libc::EPERM));
        }
        let (id, flags) = self.callers.get(asked.pid, uid);
        reply.push(&ProcessArg {
            id: id.0,
            flags,
            ..asked
        });
        Ok(())
    }

    /// Events as lines of JSON, as many as fit.
    fn trace(&self, viewer: Viewer, input: &[u8], reply: &mut Reply) -> Answer {
        /// More events than the shortest lines that fit.
        const EVENTS: usize = 64;
        let mut arg = exactly::<TraceArg>(input)?;
        if arg.version != client::VERSION {
            return Err(Errno(libc::EINVAL));
        }
        self.syncers.watch();
        if arg.next == client::TRACE_NEW {
            arg.next = self.volume.next_event();
        }
        let (events, lost) = self.volume.events(arg.next, EVENTS);
        (arg.lost, arg.length, arg.data) = (lost, 0, [0; STATUS_CHUNK]);
        for event in &events {
            let line = show::event(&self.volume, &self.syncers, viewer, event);
            let line = format!("{line}\n");
            let at = arg.length as usize;
            let Some(room) = arg.data.get_mut(at..at + line.len()) else {
                break;
            };
            room.copy_from_slice(line.as_bytes());
            arg.length += line.len() as u32;
            arg.next = event.number + 1;
        }
        reply.push(&arg);
        Ok(())
    }

    fn status_part(&self, viewer: Viewer, input: &[u8], reply: &mut Reply) -> Answer {
        let asked = exactly::<StatusArg>(input)?;
        if asked.version != client::VERSION {
            return Err(Errno(libc::EINVAL));
        }
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
        if number != 0 {
            let snapshots = self.snapshots.lock();
            let own = |(n, uid, _): &&(u64, u32, _)| (*n, *uid) == (number, viewer.uid);
            let found = snapshots.kept.iter().find(own);
            return found
                .map(|(n, _, text)| (*n, text.clone()))
                .ok_or(Errno(libc::ESTALE));
        }
        let text: Arc<str> = self.status(viewer).to_string().into();
        let mut snapshots = self.snapshots.lock();
        snapshots.last += 1;
        let number = snapshots.last;
        snapshots.kept.push_back((number, viewer.uid, text.clone()));
        if snapshots.kept.len() > SNAPSHOTS_MAX {
            snapshots.kept.pop_front();
        }
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
        let owners: Vec<_> = self.callers.list().into_iter().map(stream_owner).collect();
        let mut status = serde_json::to_value(self.volume.status()).unwrap_or_default();
        status["mount"] = json!({
            "mountpoint": self.mount.mountpoint,
            "source": self.mount.source,
            "pid": std::process::id(),
            "syncfs_works": self.mount.syncfs,
            "status_dir": self.status_dir.is_on(),
            "fuse_protocol": format!("{}.{}", abi::MAJOR, self.agreed.minor),
        });
        status["requests"] = requests.into();
        status["stream_owners"] = owners.into();
        show::add_streams(&mut status, &self.volume, &self.recent, viewer);
        status
    }
}

fn stream_owner((id, uid, flags): (u64, u32, u32)) -> serde_json::Value {
    json!({ "id": id, "uid": uid, "ignore_fsync": flags & client::STREAM_IGNORE_FSYNC != 0 })
}

/// The uid with which a thread's requests come: the fourth of its `Uid:` line.
fn file_system_uid(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

fn root_only(request: &Request<'_>) -> Answer {
    if request.header.uid == 0 {
        Ok(())
    } else {
        Err(Errno(libc::EPERM))
    }
}

fn exactly<T: FromBytes>(input: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(input).map_err(|_| Errno(libc::EINVAL))
}
