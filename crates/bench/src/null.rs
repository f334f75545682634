//! The null server: a FUSE server over io_uring that keeps names and sizes in memory, throws data away and has no disk.
//!
//! What the kernel and the transport cost by themselves: no server that gives the kernel the same answers is faster on this machine. Reads
//! give zeros, lists are empty, a sync does nothing. `ccfs-bench null DIR` serves it until DIR is unmounted.
use crate::{Because, Result};
use ccfs_fuse::abi::{self, op};
use ccfs_fuse::server::init::{MAX_WRITE, WANTED};
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::wire::{Errno, Handler, Reply, Request, one_name};
use ccfs_fuse::{FsType, MountConfig, Mounted};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const FOREVER: u64 = u32::MAX as u64;
const SHARDS: u64 = 256;
const BLOCK_BYTES: u32 = 4096;
/// What statfs says is there.
const BLOCKS: u64 = 1 << 28;

/// Serves an empty file system on `dir` until it is unmounted.
pub fn serve(dir: &Path) -> Result<()> {
    ccfs_fuse::prepare_process();
    let config = MountConfig {
        fstype: FsType::Fuse,
        ..MountConfig::new("null")
    };
    let mut rings = prepare_rings(None)?;
    let (channel, mounted) = Mounted::make(dir, &config, BLOCK_BYTES).map_err(|e| e.to_string())?;
    let wanted = WANTED | abi::init::OVER_IO_URING;
    let handler: Arc<dyn Handler> = Arc::new(Null::default());
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

/// A file or a directory.
struct Node {
    mode: AtomicU32,
    size: AtomicU64,
    names: Mutex<HashMap<Vec<u8>, u64>>,
}

struct Null {
    shards: Vec<Mutex<HashMap<u64, Arc<Node>>>>,
    last: AtomicU64,
}

impl Default for Null {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let last = AtomicU64::new(abi::ROOT_ID);
        let null = Null { shards, last };
        null.put(abi::ROOT_ID, libc::S_IFDIR | 0o755);
        null
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Null {
    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, Arc<Node>>> {
        locked(&self.shards[(id % SHARDS) as usize])
    }

    fn put(&self, id: u64, mode: u32) -> Arc<Node> {
        let node = Arc::new(Node {
            mode: AtomicU32::new(mode),
            size: AtomicU64::new(0),
            names: Mutex::default(),
        });
        self.shard(id).insert(id, node.clone());
        node
    }

    fn get(&self, id: u64) -> std::result::Result<Arc<Node>, Errno> {
        self.shard(id).get(&id).cloned().ok_or(Errno(libc::ENOENT))
    }

    fn attr(id: u64, node: &Node) -> abi::Attr {
        let size = node.size.load(Relaxed);
        abi::Attr {
            ino: id,
            size,
            blocks: size.div_ceil(512),
            mode: node.mode.load(Relaxed),
            nlink: 1,
            blksize: BLOCK_BYTES,
            ..Default::default()
        }
    }

    fn push_entry(reply: &mut Reply, id: u64, node: &Node) {
        reply.push(&abi::EntryOut {
            nodeid: id,
            entry_valid: FOREVER,
            attr_valid: FOREVER,
            attr: Null::attr(id, node),
            ..Default::default()
        });
    }

    fn push_attr(reply: &mut Reply, id: u64, node: &Node) {
        reply.push(&abi::AttrOut {
            attr_valid: FOREVER,
            attr: Null::attr(id, node),
            ..Default::default()
        });
    }

    fn make(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        reply: &mut Reply,
    ) -> std::result::Result<(), Errno> {
        let parent = self.get(parent)?;
        let id = self.last.fetch_add(1, Relaxed) + 1;
        let node = self.put(id, mode);
        locked(&parent.names).insert(name.to_vec(), id);
        Null::push_entry(reply, id, &node);
        Ok(())
    }

    fn dispatch(&self, request: &Request<'_>, reply: &mut Reply) -> std::result::Result<(), Errno> {
        let id = request.header.nodeid;
        match request.header.opcode {
            op::LOOKUP => {
                let name = one_name(request.bare())?;
                let found = locked(&self.get(id)?.names).get(name).copied();
                match found {
                    Some(found) => Null::push_entry(reply, found, &*self.get(found)?),
                    // A name that is not there, for ever.
                    None => reply.push(&abi::EntryOut {
                        entry_valid: FOREVER,
                        ..Default::default()
                    }),
                }
            }
            op::GETATTR => Null::push_attr(reply, id, &*self.get(id)?),
            op::SETATTR => {
                let arg: abi::SetattrIn = request.arg()?;
                let node = self.get(id)?;
                if arg.valid & abi::fattr::SIZE != 0 {
                    node.size.store(arg.size, Relaxed);
                }
                if arg.valid & abi::fattr::MODE != 0 {
                    node.mode.store(arg.mode, Relaxed);
                }
                Null::push_attr(reply, id, &node);
            }
            op::MKNOD => {
                let (arg, name) = request.arg_and_rest::<abi::MknodIn>()?;
                return self.make(id, one_name(name)?, arg.mode & !arg.umask, reply);
            }
            op::MKDIR => {
                let (arg, name) = request.arg_and_rest::<abi::MkdirIn>()?;
                let mode = libc::S_IFDIR | arg.mode & !arg.umask;
                return self.make(id, one_name(name)?, mode, reply);
            }
            op::UNLINK | op::RMDIR => {
                let gone = locked(&self.get(id)?.names).remove(one_name(request.bare())?);
                let gone = gone.ok_or(Errno(libc::ENOENT))?;
                self.shard(gone).remove(&gone);
            }
            op::READ => {
                let arg: abi::ReadIn = request.arg()?;
                let left = self.get(id)?.size.load(Relaxed).saturating_sub(arg.offset);
                let len = u64::from(arg.size.min(MAX_WRITE)).min(left) as usize;
                let window = reply.window.as_mut();
                match window.and_then(|window| window.get_mut(..len)) {
                    Some(place) => {
                        place.fill(0);
                        reply.filled = Some(len);
                    }
                    None => reply.body.resize(len, 0),
                }
            }
            op::WRITE => {
                let (arg, data) = request.arg_and_rest::<abi::WriteIn>()?;
                let end = arg.offset.saturating_add(data.len() as u64);
                self.get(id)?.size.fetch_max(end, Relaxed);
                reply.push(&abi::WriteOut {
                    size: arg.size,
                    padding: 0,
                });
            }
            op::GETXATTR => return Err(Errno(libc::ENODATA)),
            op::READDIR | op::READDIRPLUS | op::FSYNC | op::FSYNCDIR | op::DESTROY => {}
            op::STATFS => reply.push(&abi::Kstatfs {
                bsize: BLOCK_BYTES,
                frsize: BLOCK_BYTES,
                namelen: 255,
                blocks: BLOCKS,
                bfree: BLOCKS,
                bavail: BLOCKS,
                ..Default::default()
            }),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY => reply.silent = true,
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
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
