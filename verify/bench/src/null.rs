//! The null server: a FUSE server over io_uring that keeps names and sizes in memory, throws data away and has no disk.
//!
//! What the kernel and the transport cost by themselves: no server that gives the kernel the same answers is faster on this machine. Reads
//! give zeros, a sync does nothing. For programs, which read what they wrote, it keeps the data in memory too (`--keep`).
//! `ccfs-bench null DIR` serves it until DIR is unmounted.
use crate::cli::NullArgs;
use crate::{Because, Result};
use ccfs_fuse::abi::{self, op};
use ccfs_fuse::server::init::{MAX_WRITE, WANTED};
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::wire::{
    Errno, Handler, Reply, Request, checked_name, name_and_string, one_name, padded, push_dirent,
};
use ccfs_fuse::{FsType, MountConfig, Mounted};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::FromBytes;

const FOREVER: u64 = u32::MAX as u64;
const SHARDS: u64 = 256;
const BLOCK_BYTES: u32 = 4096;
const NS: u64 = 1_000_000_000;
/// What statfs says is there.
const BLOCKS: u64 = 1 << 28;

/// Serves an empty file system on `dir` until it is unmounted.
pub fn serve(args: &NullArgs) -> Result<()> {
    ccfs_fuse::prepare_process();
    let config = MountConfig {
        fstype: FsType::Fuse,
        ..MountConfig::new("null")
    };
    let mut rings = prepare_rings(None)?;
    let (channel, mounted) =
        Mounted::make(&args.dir, &config, BLOCK_BYTES).map_err(|e| e.to_string())?;
    let wanted = WANTED | abi::init::OVER_IO_URING;
    let handler: Arc<dyn Handler> = Arc::new(Null::new(args.keep));
    let started = channel
        .handshake(wanted, MAX_WRITE as usize)
        .and_then(|_| Pool::start(channel.clone(), handler.clone(), PoolConfig::default()))
        .because("the null server")
        .and_then(|pool| {
            pool.expect_forgets();
            rings.start(&channel, handler, 1).map(|()| pool)
        });
    match started {
        Ok(pool) => {
            pool.wait();
            rings.end();
            Ok(())
        }
        Err(e) => {
            drop(channel);
            let _ = mounted.detach();
            Err(e)
        }
    }
}

/// A file, a directory or a symlink. It is there as long as it has a name or the kernel knows it.
struct Node {
    mode: AtomicU32,
    size: AtomicU64,
    names: Mutex<HashMap<Vec<u8>, u64>>,
    links: AtomicU32,
    lookups: AtomicU64,
    /// When the contents changed last, ns since 1970.
    changed: AtomicU64,
    /// What was written, if it is kept; a symlink's target always is.
    data: Mutex<Vec<u8>>,
}

struct Null {
    keep: bool,
    shards: Vec<Mutex<HashMap<u64, Arc<Node>>>>,
    last: AtomicU64,
}

type Answer = std::result::Result<(), Errno>;

const NOT_THERE: Errno = Errno(libc::ENOENT);

impl Node {
    fn attr(&self, id: u64) -> abi::Attr {
        let (size, changed) = (self.size.load(Relaxed), self.changed.load(Relaxed));
        let (seconds, ns) = (changed / NS, (changed % NS) as u32);
        abi::Attr {
            ino: id,
            size,
            blocks: size.div_ceil(512),
            mtime: seconds,
            ctime: seconds,
            mtimensec: ns,
            ctimensec: ns,
            mode: self.mode.load(Relaxed),
            nlink: self.links.load(Relaxed),
            blksize: BLOCK_BYTES,
            ..Default::default()
        }
    }

    /// The kernel knows it once more.
    fn push_entry(&self, reply: &mut Reply, id: u64) {
        self.lookups.fetch_add(1, Relaxed);
        reply.push(&abi::EntryOut {
            nodeid: id,
            entry_valid: FOREVER,
            attr_valid: FOREVER,
            attr: self.attr(id),
            ..Default::default()
        });
    }

    fn push_attr(&self, reply: &mut Reply, id: u64) {
        reply.push(&abi::AttrOut {
            attr_valid: FOREVER,
            attr: self.attr(id),
            ..Default::default()
        });
    }

    fn touch(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_nanos() as u64);
        self.changed.store(now, Relaxed);
    }
}

impl Null {
    fn new(keep: bool) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let last = AtomicU64::new(abi::ROOT_ID);
        let null = Null { keep, shards, last };
        null.put(abi::ROOT_ID, libc::S_IFDIR | 0o755);
        null
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, Arc<Node>>> {
        self.shards[(id % SHARDS) as usize].lock()
    }

    fn put(&self, id: u64, mode: u32) -> Arc<Node> {
        let node = Arc::new(Node {
            mode: AtomicU32::new(mode),
            size: AtomicU64::new(0),
            names: Mutex::default(),
            links: AtomicU32::new(1),
            lookups: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            data: Mutex::default(),
        });
        node.touch();
        self.shard(id).insert(id, node.clone());
        node
    }

    fn get(&self, id: u64) -> std::result::Result<Arc<Node>, Errno> {
        self.shard(id).get(&id).cloned().ok_or(NOT_THERE)
    }

    fn make(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
    ) -> std::result::Result<(u64, Arc<Node>), Errno> {
        let parent = self.get(parent)?;
        let id = self.last.fetch_add(1, Relaxed) + 1;
        let node = self.put(id, mode);
        parent.names.lock().insert(name.to_vec(), id);
        Ok((id, node))
    }

    /// A node has lost a name.
    fn unlinked(&self, id: u64) {
        if let Ok(node) = self.get(id) {
            node.links.fetch_sub(1, Relaxed);
            self.forget(id, 0);
        }
    }

    fn forget(&self, id: u64, lookups: u64) {
        let mut shard = self.shard(id);
        let Some(node) = shard.get(&id) else { return };
        let left = node.lookups.load(Relaxed).saturating_sub(lookups);
        node.lookups.store(left, Relaxed);
        if left == 0 && node.links.load(Relaxed) == 0 {
            shard.remove(&id);
        }
    }

    fn rename(&self, from: u64, to: u64, names: &[u8]) -> Answer {
        let (name, new_name) = name_and_string(names)?;
        let new_name = checked_name(new_name)?.to_vec();
        let (from, to) = (self.get(from)?, self.get(to)?);
        let moved = from.names.lock().remove(name).ok_or(NOT_THERE)?;
        if let Some(replaced) = to.names.lock().insert(new_name, moved) {
            self.unlinked(replaced);
        }
        Ok(())
    }

    /// The names in order, from the `offset`-th on, as many as there is room for; `plus`: with their attributes.
    fn list(&self, id: u64, arg: &abi::ReadIn, plus: bool, reply: &mut Reply) -> Answer {
        let node = self.get(id)?;
        let mut all: Vec<(Vec<u8>, u64)> = node
            .names
            .lock()
            .iter()
            .map(|(name, id)| (name.clone(), *id))
            .collect();
        all.sort_unstable();
        let room = (arg.size.min(MAX_WRITE)) as usize;
        for (n, (name, id)) in all.iter().enumerate().skip(arg.offset as usize) {
            let node = self.get(*id)?;
            let fixed = size_of::<abi::EntryOut>() * usize::from(plus) + size_of::<abi::Dirent>();
            if reply.body.len() + padded(fixed + name.len()) > room {
                break;
            }
            if plus {
                node.push_entry(reply, *id);
            }
            let kind = (node.mode.load(Relaxed) & libc::S_IFMT) >> 12;
            push_dirent(&mut reply.body, *id, n as u64 + 1, kind, name);
        }
        Ok(())
    }

    fn read(&self, id: u64, arg: &abi::ReadIn, reply: &mut Reply) -> Answer {
        let node = self.get(id)?;
        let left = node.size.load(Relaxed).saturating_sub(arg.offset);
        let len = u64::from(arg.size.min(MAX_WRITE)).min(left) as usize;
        let data = node.data.lock();
        let from = (arg.offset as usize).min(data.len());
        let kept = &data[from..data.len().min(from + len)];
        let fill = |place: &mut [u8]| {
            place[..kept.len()].copy_from_slice(kept);
            place[kept.len()..].fill(0);
        };
        let window = reply.window.as_mut();
        match window.and_then(|window| window.get_mut(..len)) {
            Some(place) => {
                fill(place);
                reply.filled = Some(len);
            }
            None => {
                reply.body.resize(len, 0);
                fill(&mut reply.body);
            }
        }
        Ok(())
    }

    fn write(&self, id: u64, offset: u64, bytes: &[u8]) -> Answer {
        let node = self.get(id)?;
        let end = offset.saturating_add(bytes.len() as u64);
        if self.keep {
            let mut data = node.data.lock();
            if (data.len() as u64) < end {
                data.resize(end as usize, 0);
            }
            data[offset as usize..end as usize].copy_from_slice(bytes);
        }
        node.touch();
        node.size.fetch_max(end, Relaxed);
        Ok(())
    }

    fn set_attr(&self, id: u64, arg: &abi::SetattrIn, reply: &mut Reply) -> Answer {
        let node = self.get(id)?;
        if arg.valid & abi::fattr::SIZE != 0 {
            node.size.store(arg.size, Relaxed);
            node.data.lock().truncate(arg.size as usize);
            node.touch();
        }
        if arg.valid & abi::fattr::MODE != 0 {
            node.mode.store(arg.mode, Relaxed);
        }
        node.push_attr(reply, id);
        Ok(())
    }

    fn dispatch(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let id = request.header.nodeid;
        match request.header.opcode {
            op::LOOKUP => {
                let name = one_name(request.bare())?;
                let found = self.get(id)?.names.lock().get(name).copied();
                match found {
                    Some(found) => self.get(found)?.push_entry(reply, found),
                    // A name that is not there, for ever.
                    None => reply.push(&abi::EntryOut {
                        entry_valid: FOREVER,
                        ..Default::default()
                    }),
                }
            }
            op::GETATTR => self.get(id)?.push_attr(reply, id),
            op::SETATTR => return self.set_attr(id, &request.arg()?, reply),
            op::MKNOD => {
                let (arg, name) = request.arg_and_rest::<abi::MknodIn>()?;
                let (id, node) = self.make(id, one_name(name)?, arg.mode & !arg.umask)?;
                node.push_entry(reply, id);
            }
            op::MKDIR => {
                let (arg, name) = request.arg_and_rest::<abi::MkdirIn>()?;
                let mode = libc::S_IFDIR | arg.mode & !arg.umask;
                let (id, node) = self.make(id, one_name(name)?, mode)?;
                node.push_entry(reply, id);
            }
            op::SYMLINK => {
                let (name, target) = name_and_string(request.bare())?;
                let (id, node) = self.make(id, name, libc::S_IFLNK | 0o777)?;
                node.size.store(target.len() as u64, Relaxed);
                node.data.lock().extend_from_slice(target);
                node.push_entry(reply, id);
            }
            op::READLINK => {
                let node = self.get(id)?;
                reply.body.extend_from_slice(&node.data.lock());
            }
            op::LINK => {
                let (arg, name) = request.arg_and_rest::<abi::LinkIn>()?;
                let node = self.get(arg.oldnodeid)?;
                node.links.fetch_add(1, Relaxed);
                self.get(id)?
                    .names
                    .lock()
                    .insert(one_name(name)?.to_vec(), arg.oldnodeid);
                node.push_entry(reply, arg.oldnodeid);
            }
            op::RENAME => {
                let (arg, names) = request.arg_and_rest::<abi::RenameIn>()?;
                return self.rename(id, arg.newdir, names);
            }
            op::RENAME2 => {
                let (arg, names) = request.arg_and_rest::<abi::Rename2In>()?;
                if arg.flags & !libc::RENAME_NOREPLACE != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                return self.rename(id, arg.newdir, names);
            }
            op::UNLINK | op::RMDIR => {
                let gone = self.get(id)?.names.lock().remove(one_name(request.bare())?);
                self.unlinked(gone.ok_or(NOT_THERE)?);
            }
            op::READ => return self.read(id, &request.arg()?, reply),
            op::WRITE => {
                let (arg, bytes) = request.arg_and_rest::<abi::WriteIn>()?;
                self.write(id, arg.offset, bytes)?;
                reply.push(&abi::WriteOut {
                    size: arg.size,
                    padding: 0,
                });
            }
            op::READDIR => return self.list(id, &request.arg()?, false, reply),
            op::READDIRPLUS => return self.list(id, &request.arg()?, true, reply),
            op::GETXATTR => return Err(Errno(libc::ENODATA)),
            op::FSYNC | op::FSYNCDIR | op::DESTROY => {}
            op::STATFS => reply.push(&empty_volume()),
            op::FORGET => {
                reply.silent = true;
                self.forget(id, request.arg::<abi::ForgetIn>()?.nlookup);
            }
            op::BATCH_FORGET => {
                reply.silent = true;
                let (_, rest) = request.arg_and_rest::<abi::BatchForgetIn>()?;
                for one in rest.chunks_exact(size_of::<abi::ForgetOne>()) {
                    if let Ok(one) = abi::ForgetOne::read_from_bytes(one) {
                        self.forget(one.nodeid, one.nlookup);
                    }
                }
            }
            op::INTERRUPT | op::NOTIFY_REPLY => reply.silent = true,
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }
}

fn empty_volume() -> abi::Kstatfs {
    abi::Kstatfs {
        bsize: BLOCK_BYTES,
        frsize: BLOCK_BYTES,
        namelen: 255,
        blocks: BLOCKS,
        bfree: BLOCKS,
        bavail: BLOCKS,
        ..Default::default()
    }
}

impl Handler for Null {
    fn may_block(&self, _request: &Request<'_>) -> bool {
        false
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        if let Err(Errno(errno)) = self.dispatch(request, reply) {
            reply.body.clear();
            reply.errno = errno;
        }
    }

    fn undelivered(&self, _reply: &Reply) {}
}
