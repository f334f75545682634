//! The kernel's part, played by the test: requests as it sends them for system calls, and what it knows of the volume. It asks by
//! LOOKUP for what it does not know, as long as it has to, and that breaks holds.
use ccfs_client::abi as client;
use ccfs_crash::oracle::*;
use ccfs_engine::Volume;
use ccfs_fuse::abi::{self, fattr, op};
use ccfs_fuse::server::DirectAllowed;
use ccfs_fuse::server::init::{Negotiation, WANTED, negotiate};
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use ccfs_fuse::{CallerConfig, Forks, MountInfo, Server};
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An error number, or what the daemon answered.
pub type Answer = Result<Vec<u8>, i32>;

/// One request: its number, the node that it is about, and its bytes.
type Call = (u32, u64, Vec<u8>);

/// A mount without a kernel.
pub struct Kernel {
    pub server: Server,
    /// Of the inodes that it knows: node id and references.
    known: HashMap<NodeId, (u64, u64)>,
    root: NodeId,
    /// Sessions' threads carry out only what they are told to.
    pub by_hand: bool,
}

impl Kernel {
    pub fn new(vol: &Arc<Volume>, root: NodeId, by_hand: bool) -> Result<Kernel, String> {
        let init = [7u32, 45, 0, u32::MAX, u32::MAX];
        let Negotiation::Agreed(agreed, _) = negotiate(init.as_bytes(), WANTED) else {
            return Err("no protocol was agreed on".into());
        };
        // Without the process connector, which belongs to the machine.
        let callers = CallerConfig {
            forks: Forks::Proc,
            ..CallerConfig::default()
        };
        let mount = MountInfo {
            direct: DirectAllowed {
                on: true,
                others: false,
                by_hand,
            },
            ..MountInfo::default()
        };
        let server = Server::new(vol.clone(), agreed, mount, callers).map_err(|e| e.to_string())?;
        // Nobody has anything in a cache that he would have to be told of.
        let nobody = File::options().write(true).open("/dev/null");
        let nobody = nobody.map_err(|e| e.to_string())?;
        let started = server.start_notifying(Channel::from_fd(nobody.into()));
        started.map_err(|e| e.to_string())?;
        Ok(Kernel {
            server,
            known: HashMap::from([(root, (abi::ROOT_ID, 1))]),
            root,
            by_hand,
        })
    }

    /// A request of a thread's, as the transports serve it: first by a thread that must not wait, if that may do.
    pub fn request(&self, tid: u32, (opcode, nodeid, bytes): Call) -> Answer {
        let header = abi::InHeader {
            opcode,
            nodeid,
            pid: tid,
            unique: 2,
            ..Default::default()
        };
        let request = Request::new(header, Body::Whole(&bytes));
        let mut reply = Reply::default();
        let waits = self.server.may_block(&request);
        if waits
            || self.server.handle_non_blocking(&request, &mut reply) == ccfs_engine::Attempt::Again
        {
            self.server.handle(&request, &mut reply);
        }
        match reply.errno {
            0 => Ok(reply.body),
            errno => Err(errno),
        }
    }

    /// ioctl(2) on an inode; `arg` goes in and comes out.
    pub fn ioctl<T: IntoBytes + FromBytes + Immutable>(
        &self,
        tid: u32,
        nodeid: u64,
        cmd: u32,
        arg: &mut T,
    ) -> Result<(), i32> {
        let size = size_of::<T>() as u32;
        let head = abi::IoctlIn {
            cmd,
            in_size: size,
            out_size: size,
            ..Default::default()
        };
        let bytes = [head.as_bytes(), arg.as_bytes()].concat();
        let answer = self.request(tid, (op::IOCTL, nodeid, bytes))?;
        let (out, rest) = abi::IoctlOut::read_from_prefix(&answer).map_err(|_| libc::EPROTO)?;
        if out.result != 0 {
            return Err(-out.result);
        }
        *arg = T::read_from_bytes(rest).map_err(|_| libc::EPROTO)?;
        Ok(())
    }

    pub fn knows(&self, node: NodeId) -> bool {
        self.known.contains_key(&node)
    }

    fn id(&self, node: NodeId) -> Result<u64, i32> {
        self.known.get(&node).map(|k| k.0).ok_or(libc::ESTALE)
    }

    /// The reply of LOOKUP, MKNOD ... is a reference.
    fn meets(&mut self, node: NodeId, answer: &[u8]) -> Result<(), i32> {
        let (entry, _) = abi::EntryOut::read_from_prefix(answer).map_err(|_| libc::EPROTO)?;
        if entry.nodeid == 0 {
            return Err(libc::ENOENT);
        }
        let known = self.known.entry(node).or_insert((entry.nodeid, 0));
        known.1 += 1;
        match known.0 == entry.nodeid {
            true => Ok(()),
            // Two names of what the model takes for one inode.
            false => Err(libc::EUCLEAN),
        }
    }

    pub fn look_up(&mut self, tid: u32, dir: NodeId, name: &[u8], node: NodeId) -> Result<(), i32> {
        let answer = self.request(tid, (op::LOOKUP, self.id(dir)?, terminated(name)))?;
        self.meets(node, &answer)
    }

    /// Gets to know an inode by a path of the tree, from the root. False: it has no name.
    pub fn walk(&mut self, tid: u32, tree: &Tree, node: NodeId) -> Result<bool, i32> {
        if self.knows(node) {
            return Ok(true);
        }
        let Some((dir, name)) = a_name(tree, node) else {
            return Ok(false);
        };
        if !self.walk(tid, tree, dir)? {
            return Ok(false);
        }
        self.look_up(tid, dir, &name, node).map(|()| true)
    }

    /// It needs an inode no more.
    pub fn forget(&mut self, node: NodeId) {
        if node == self.root {
            return;
        }
        if let Some((nodeid, nlookup)) = self.known.remove(&node) {
            let arg = abi::ForgetIn { nlookup };
            let _ = self.request(0, (op::FORGET, nodeid, arg.as_bytes().to_vec()));
        }
    }

    /// An operation by its system call. All that it speaks of is known. A short write shortens it.
    pub fn perform(&mut self, tid: u32, op: &mut Op) -> Result<(), i32> {
        let call = self.call(op)?;
        let answer = self.request(tid, call)?;
        match op {
            Op::Mknod { make, .. }
            | Op::Mkdir { make, .. }
            | Op::Symlink { make, .. }
            | Op::Tmpfile { make, .. } => self.meets(make.node, &answer),
            Op::Link { node, .. } => self.meets(*node, &answer),
            Op::Write { data, .. } => {
                let out = abi::WriteOut::read_from_bytes(&answer).map_err(|_| libc::EPROTO)?;
                if (out.size as usize) < data.len() {
                    *data = data[..out.size as usize].into();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn call(&self, op: &Op) -> Result<Call, i32> {
        match op {
            Op::Mknod {
                parent,
                name,
                make,
                rdev,
            } => {
                let arg = abi::MknodIn {
                    mode: make.mode.into(),
                    rdev: *rdev,
                    ..Default::default()
                };
                Ok((op::MKNOD, self.id(*parent)?, with_name(&arg, name)))
            }
            Op::Mkdir { parent, name, make } => {
                let arg = abi::MkdirIn {
                    mode: make.mode.into(),
                    umask: 0,
                };
                Ok((op::MKDIR, self.id(*parent)?, with_name(&arg, name)))
            }
            Op::Symlink {
                parent,
                name,
                target,
                ..
            } => {
                let bytes = [terminated(name), terminated(target)].concat();
                Ok((op::SYMLINK, self.id(*parent)?, bytes))
            }
            Op::Tmpfile { parent, make } => {
                let arg = abi::CreateIn {
                    flags: (libc::O_TMPFILE | libc::O_RDWR) as u32,
                    mode: make.mode.into(),
                    ..Default::default()
                };
                Ok((op::TMPFILE, self.id(*parent)?, with_name(&arg, b"#1")))
            }
            Op::Link { node, parent, name } => {
                let arg = abi::LinkIn {
                    oldnodeid: self.id(*node)?,
                };
                Ok((op::LINK, self.id(*parent)?, with_name(&arg, name)))
            }
            Op::Unlink { parent, name } => Ok((op::UNLINK, self.id(*parent)?, terminated(name))),
            Op::Rmdir { parent, name } => Ok((op::RMDIR, self.id(*parent)?, terminated(name))),
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => {
                let arg = abi::Rename2In {
                    newdir: self.id(*to)?,
                    flags: match kind {
                        RenameKind::Plain => 0,
                        RenameKind::NoReplace => libc::RENAME_NOREPLACE,
                        RenameKind::Exchange => libc::RENAME_EXCHANGE,
                        RenameKind::Whiteout(_) => libc::RENAME_WHITEOUT,
                    },
                    padding: 0,
                };
                let bytes = [with_name(&arg, name), terminated(new_name)].concat();
                Ok((op::RENAME2, self.id(*from)?, bytes))
            }
            _ => self.call_on_file(op),
        }
    }

    fn call_on_file(&self, op: &Op) -> Result<Call, i32> {
        let fallocate = |node: &NodeId, mode: i32, offset, length| {
            let arg = abi::FallocateIn {
                offset,
                length,
                mode: mode as u32,
                ..Default::default()
            };
            Ok((op::FALLOCATE, self.id(*node)?, arg.as_bytes().to_vec()))
        };
        let keep = |is_set| match is_set {
            true => libc::FALLOC_FL_KEEP_SIZE,
            false => 0,
        };
        match op {
            Op::Write {
                node, offset, data, ..
            } => {
                let arg = abi::WriteIn {
                    offset: *offset,
                    size: data.len() as u32,
                    flags: libc::O_RDWR as u32,
                    ..Default::default()
                };
                Ok((op::WRITE, self.id(*node)?, [arg.as_bytes(), data].concat()))
            }
            Op::Allocate {
                node,
                offset,
                len,
                keep_size,
            } => fallocate(node, keep(*keep_size), *offset, *len),
            Op::Zero {
                node,
                offset,
                len,
                keep_size,
            } => fallocate(
                node,
                libc::FALLOC_FL_ZERO_RANGE | keep(*keep_size),
                *offset,
                *len,
            ),
            Op::Punch { node, offset, len } => fallocate(
                node,
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                *offset,
                *len,
            ),
            Op::SetAttr { node, set } => Ok((
                op::SETATTR,
                self.id(*node)?,
                setattr_of(set).as_bytes().to_vec(),
            )),
            Op::SetXattr { node, name, value } => {
                let arg = abi::SetxattrIn {
                    size: value.len() as u32,
                    ..Default::default()
                };
                let bytes = [&with_name(&arg, name)[..], value].concat();
                Ok((op::SETXATTR, self.id(*node)?, bytes))
            }
            Op::RemoveXattr { node, name } => {
                Ok((op::REMOVEXATTR, self.id(*node)?, terminated(name)))
            }
            // Flags, groups and failure-atomic files are no business of sessions.
            _ => Err(libc::ENOSYS),
        }
    }

    /// fsync(2), fdatasync(2).
    pub fn fsync(&self, tid: u32, node: NodeId, is_dir: bool, data_only: bool) -> Result<(), i32> {
        let arg = abi::FsyncIn {
            fsync_flags: data_only.into(),
            ..Default::default()
        };
        let opcode = match is_dir {
            true => op::FSYNCDIR,
            false => op::FSYNC,
        };
        let call = (opcode, self.id(node)?, arg.as_bytes().to_vec());
        self.request(tid, call).map(drop)
    }

    /// syncfs(2): from nobody in particular.
    pub fn syncfs(&self) -> Result<(), i32> {
        let arg = abi::SyncfsIn::default().as_bytes().to_vec();
        self.request(0, (op::SYNCFS, abi::ROOT_ID, arg)).map(drop)
    }

    pub fn new_stream(&self, tid: u32) -> Result<u64, String> {
        let mut arg = stream_arg(0);
        let made = self.ioctl(tid, abi::ROOT_ID, client::IOC_NEW_STREAM, &mut arg);
        made.map_err(|e| format!("a new stream: errno {e}"))?;
        Ok(arg.id)
    }

    /// A thread enters a stream.
    pub fn set_stream(&self, tid: u32, id: u64) -> Result<(), String> {
        let set = self.ioctl(
            tid,
            abi::ROOT_ID,
            client::IOC_SET_STREAM,
            &mut stream_arg(id),
        );
        set.map_err(|e| format!("a thread's stream: errno {e}"))
    }

    pub fn streamsync(&self, tid: u32) -> Result<(), i32> {
        let mut arg = stream_arg(0);
        self.ioctl(tid, abi::ROOT_ID, client::IOC_STREAM_SYNC, &mut arg)
    }

    pub fn barrier(&self, tid: u32, node: NodeId) -> Result<(), i32> {
        let mut arg = client::BarrierArg {
            version: client::VERSION,
            flags: 0,
        };
        self.ioctl(tid, self.id(node)?, client::IOC_BARRIER, &mut arg)
    }
}

fn stream_arg(id: u64) -> client::StreamArg {
    client::StreamArg {
        version: client::VERSION,
        flags: 0,
        id,
    }
}

/// A name of an inode, always the same one.
fn a_name(tree: &Tree, node: NodeId) -> Option<(NodeId, Bytes)> {
    let named = |(dir, there): (&NodeId, &Arc<Node>)| {
        let mut entries = there.entries.iter();
        let found = entries.find(|(_, child)| **child == node)?;
        (there.nlink > 0).then(|| (*dir, found.0.clone()))
    };
    tree.nodes.iter().filter_map(named).min_by_key(|n| n.0)
}

fn terminated(name: &[u8]) -> Vec<u8> {
    [name, b"\0"].concat()
}

fn with_name(arg: &(impl IntoBytes + Immutable), name: &[u8]) -> Vec<u8> {
    [arg.as_bytes(), &terminated(name)].concat()
}

fn setattr_of(set: &Set) -> abi::SetattrIn {
    let valid = |is_set, bit| if is_set { bit } else { 0 };
    let (seconds, nanoseconds) = set.mtime.unwrap_or_default();
    abi::SetattrIn {
        valid: valid(set.mode.is_some(), fattr::MODE)
            | valid(set.uid.is_some(), fattr::UID)
            | valid(set.gid.is_some(), fattr::GID)
            | valid(set.size.is_some(), fattr::SIZE)
            | valid(set.mtime.is_some(), fattr::MTIME),
        mode: set.mode.unwrap_or_default().into(),
        uid: set.uid.unwrap_or_default(),
        gid: set.gid.unwrap_or_default(),
        size: set.size.unwrap_or_default(),
        mtime: seconds as u64,
        mtimensec: nanoseconds,
        ..Default::default()
    }
}
