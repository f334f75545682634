//! One descriptor of /dev/fuse: receives requests, sends replies and notifications.
//!
//! A reply must go to the descriptor that its request came from: each keeps its own list of requests under way.
use crate::abi::{
    EXPIRE_ONLY, InHeader, InvalEntryOut, InvalInodeOut, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE,
    NOTIFY_PRUNE, NOTIFY_STORE, OutHeader, PruneOut, StoreOut, op,
};
use crate::server::init::{Agreed, MAX_WRITE, Negotiation, negotiate};
use crate::sys;
use crate::wire::{Body, Handler, Reply, Request};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Room for the largest request: a WRITE with its headers.
pub const REQUEST_MAX: usize = MAX_WRITE as usize + 4096;

/// A way to the kernel.
#[derive(Clone, Debug)]
pub struct Channel(Arc<OwnedFd>);

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// Unmounted or aborted: no request will ever come.
    Closed,
}

impl Channel {
    /// A descriptor that belongs to no mount yet.
    pub fn open() -> io::Result<Channel> {
        let fd = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Channel(Arc::new(fd)))
    }

    /// The way that fusermount3 made.
    pub fn from_fd(fd: OwnedFd) -> Channel {
        Channel(Arc::new(fd))
    }

    /// Another descriptor of the same connection. Where the kernel has no more, the same one is shared.
    pub fn another(&self) -> Channel {
        let cloned =
            Channel::open().and_then(|new| sys::clone_channel(&new.0, &self.0).map(|()| new));
        cloned.unwrap_or_else(|_| self.clone())
    }

    /// The descriptor of /dev/fuse, for system calls of others.
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Waits for a request; `buf` has at least [`REQUEST_MAX`] bytes.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&*self.0, &mut *buf) {
                Ok(len) => return Ok(Received::Request(len)),
                // NOENT: the caller was killed before the request was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(Received::Closed),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends a reply after the notifications that it needs. What the kernel does not take goes back to the handler.
    pub fn send(&self, unique: u64, reply: &Reply, handler: &dyn Handler) {
        for &nodeid in &reply.stale_attrs {
            self.invalidate_attrs(nodeid);
        }
        if reply.silent {
            return;
        }
        let header = reply.header(unique);
        match rustix::io::writev(
            &*self.0,
            &[IoSlice::new(header.as_bytes()), IoSlice::new(&reply.body)],
        ) {
            Ok(_) => {}
            // The request was aborted, or the connection is gone.
            Err(Errno::NOENT | Errno::NODEV) => handler.undelivered(reply),
            Err(e) => {
                tracing::error!(
                    "the kernel does not take a reply of {} bytes, errno {}: {e}",
                    header.len,
                    reply.errno
                );
                handler.undelivered(reply);
            }
        }
    }

    /// The kernel forgets an inode's attributes, not its pages. (Attributes only: that never waits for a lock of a page or an
    /// inode that the caller of the request in hand may hold.)
    pub fn invalidate_attrs(&self, nodeid: u64) {
        let _ = self.invalidate(nodeid, -1, 0);
    }

    /// The kernel forgets an inode's attributes and pages. It waits for requests under way that hold pages of it, so this is for a
    /// thread that serves none.
    pub fn invalidate_inode(&self, nodeid: u64) {
        let _ = self.invalidate(nodeid, 0, 0);
    }

    /// As `invalidate_inode`, for a range. What a mapping has written there is written back first.
    pub fn invalidate_range(&self, nodeid: u64, range: Range<u64>) {
        let len = range.end.saturating_sub(range.start);
        if len > 0 {
            let len = len.min(i64::MAX as u64) as i64;
            let _ = self.invalidate(nodeid, range.start as i64, len);
        }
    }

    /// Whether the kernel has an inode; one that it is giving up is waited for. (It forgets the attributes.)
    pub fn has_inode(&self, nodeid: u64) -> bool {
        self.invalidate(nodeid, -1, 0) != Err(Errno::NOENT)
    }

    /// NOENT: the kernel does not have the inode at all.
    fn invalidate(&self, nodeid: u64, off: i64, len: i64) -> rustix::io::Result<()> {
        let body = InvalInodeOut {
            ino: nodeid,
            off,
            len,
        };
        let sent = self.notify(NOTIFY_INVAL_INODE, body.as_bytes(), b"");
        sent.map(drop)
    }

    /// The kernel forgets what a name leads to. It waits for the directory's lock, so this is for a thread that serves no request.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) {
        self.tell_of_entry(parent, name, 0);
    }

    /// As `invalidate_entry`, but what the name leads to only has to be asked for again: nothing is unmounted below it. From 7.38 (Linux 6.2) on.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) {
        self.tell_of_entry(parent, name, EXPIRE_ONLY);
    }

    fn tell_of_entry(&self, parent: u64, name: &[u8], flags: u32) {
        let body = InvalEntryOut {
            parent,
            namelen: name.len() as u32,
            flags,
        };
        let name = [name, b"\0"].concat();
        let _ = self.notify(NOTIFY_INVAL_ENTRY, body.as_bytes(), &name);
    }

    /// The kernel gives inodes up, unless somebody uses one: has it open, or something mounted on it. False: it has one of them still, or kernels of this
    /// age cannot be asked. For a thread that serves no request.
    pub fn prune(&self, nodeids: &[u64]) -> bool {
        let body = PruneOut {
            count: nodeids.len() as u32,
            ..PruneOut::default()
        };
        let asked = self.notify(NOTIFY_PRUNE, body.as_bytes(), nodeids.as_bytes());
        asked.is_ok() && !nodeids.iter().any(|nodeid| self.has_inode(*nodeid))
    }

    /// The kernel believes a file to be at least as long as to the end of these bytes, which it takes for the file's at `offset`. For a thread
    /// that serves no request.
    pub fn store(&self, nodeid: u64, offset: u64, bytes: &[u8]) {
        let body = StoreOut {
            nodeid,
            offset,
            size: bytes.len() as u32,
            padding: 0,
        };
        let _ = self.notify(NOTIFY_STORE, body.as_bytes(), bytes);
    }

    fn notify(&self, code: i32, body: &[u8], more: &[u8]) -> rustix::io::Result<usize> {
        let header = OutHeader {
            len: (size_of::<OutHeader>() + body.len() + more.len()) as u32,
            error: code,
            unique: 0,
        };
        let parts = [
            IoSlice::new(header.as_bytes()),
            IoSlice::new(body),
            IoSlice::new(more),
        ];
        rustix::io::writev(&*self.0, &parts)
    }

    /// Answers INIT, the first request of a mount. `write_max`: largest WRITE that the volume takes as one operation, bytes.
    pub fn handshake(&self, wanted: u64, write_max: usize) -> io::Result<Agreed> {
        let mut buf = vec![0; REQUEST_MAX];
        loop {
            let Received::Request(len) = self.receive(&mut buf)? else {
                return Err(io::Error::other("unmounted before it was ready"));
            };
            let Some(request) = Request::parse(&buf[..len]) else {
                return Err(io::Error::other("the kernel's first request is damaged"));
            };
            let (InHeader { opcode, unique, .. }, Body::Whole(body)) =
                (request.header, request.body)
            else {
                return Err(io::Error::other("the kernel's first request is damaged"));
            };
            if opcode != op::INIT {
                self.answer(unique, libc::EIO, &[])?;
                continue;
            }
            match negotiate(body, wanted) {
                Negotiation::Agreed(agreed, mut out) => {
                    out.max_write = out.max_write.min(write_max as u32);
                    self.answer(unique, 0, out.as_bytes())?;
                    return Ok(agreed);
                }
                Negotiation::AskAgain(out) => self.answer(unique, 0, out.as_bytes())?,
                Negotiation::Refused(why) => {
                    self.answer(unique, libc::EPROTO, &[])?;
                    return Err(io::Error::other(why));
                }
            }
        }
    }

    /// Sends a reply that needs nothing else.
    pub(crate) fn answer(&self, unique: u64, errno: i32, body: &[u8]) -> io::Result<()> {
        let reply = Reply {
            body: body.to_vec(),
            errno,
            ..Default::default()
        };
        let header = reply.header(unique);
        rustix::io::writev(
            &*self.0,
            &[IoSlice::new(header.as_bytes()), IoSlice::new(&reply.body)],
        )?;
        Ok(())
    }
}
