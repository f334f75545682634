//! The server: requests become operations of the engine. It knows no transport.
//!
//! # What the kernel may cache, and who invalidates it
//! Names and attributes are valid for ever: every change goes through this kernel, which itself drops the attributes that an
//! operation changes on the side (parents of created and removed entries, ctime and nlink of the file behind a removed name,
//! mtime and size after a write, fallocate or copy_file_range, the mode after an ACL was set, atime after a read). What
//! it does not know of is told to it with a notification before the reply (`Reply::stale_attrs`): setuid and setgid bits that
//! a write, fallocate or copy_file_range cleared, the atime of what a copy_file_range read, and the ctime after a change of inode flags.
//!
//! # Opens
//! OPEN and OPENDIR are answered ENOSYS once (NO_OPEN): no open and no close of a file costs a request. CREATE is
//! answered ENOSYS too: the kernel then sends MKNOD, and no RELEASE. Only O_TMPFILE has handles, which mean nothing. With `atomic_files=on` OPEN is
//! answered, and closes are seen (`atomic_files.rs`). So opening an immutable
//! file for writing, or an append-only one without O_APPEND, cannot be refused, as ext4 does, but there; the write is.
mod atomic_files;
mod data;
mod direct;
mod forgets;
mod freeze;
mod groups;
pub mod init;
mod ioctl;
mod lanes;
mod mapped;
mod namespace;
mod notifier;
mod pages;
mod resize;
mod scrub;
mod serve;
mod setgid;
mod snapshots;
mod status_dir;
mod streams;
pub mod syncfs;
mod synchronous;
mod who;
mod xattr;

pub use direct::Allowed as DirectAllowed;

use crate::abi;
use crate::metrics::Metrics;
use crate::sentinel::Sentinel;
use crate::show::recent::Recent;
use crate::show::{Messages, Syncers};
use crate::transport::InUse;
use crate::wire::{Errno, Reply, Request};
use ccfs_caller::procfs::Proc;
use ccfs_caller::{CallerConfig, Callers};
use ccfs_engine::{Attr, Calls, Context, Ino, ROOT_INO, Volume, Wait};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How long the kernel may keep names and attributes, seconds: for ever (136 years).
const FOREVER: u64 = u32::MAX as u64;
/// Largest answer that lists something, bytes.
const LIST_MAX: usize = 1 << 20;

type Answer = Result<(), Errno>;

/// Serves one mounted volume.
pub struct Server {
    volume: Arc<Volume>,
    agreed: init::Agreed,
    block_size: u32,
    callers: Arc<Callers>,
    direct: Arc<direct::Direct>,
    metrics: Metrics,
    recent: Recent,
    syncers: Syncers,
    status_dir: status_dir::StatusDir,
    snapshots: Mutex<snapshots::Snapshots>,
    notifier: notifier::Notifier,
    asker: forgets::Asker,
    handles: atomic_files::Handles,
    pages: pages::Pages,
    /// What `status` says about the mount.
    mount: MountInfo,
    /// DESTROY was served: the volume is unmounted; `Err` says why it is not.
    ended: Mutex<Option<Result<(), String>>>,
    panicked: AtomicBool,
    freezes: freeze::Freezes,
}

/// What `status` says about the mount.
#[derive(Clone, Debug, Default)]
pub struct MountInfo {
    /// The directory that it is mounted on.
    pub mountpoint: String,
    /// The volume: a block device or an image file.
    pub source: String,
    /// Numbers of the file system's device, `MAJOR:MINOR`: no other mount of this kernel has them.
    pub device: String,
    /// Whether the kernel tells of syncfs and sync.
    pub syncfs: syncfs::Syncfs,
    /// By which it is told of them where the kernel does not.
    pub sentinel: Option<Arc<Sentinel>>,
    /// The directory `.ccfs` is wanted.
    pub status_dir: bool,
    /// Closes are to be seen, so that files can be open O_ATOMIC.
    pub atomic_files: bool,
    /// Which way requests come.
    pub transport: Arc<InUse>,
    /// See [`crate::MountConfig::options`].
    pub options: BTreeMap<&'static str, String>,
    /// See [`crate::MountConfig::messages`].
    pub messages: Arc<Messages>,
    /// Whether there can be sessions of direct calls.
    pub direct: direct::Allowed,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Changes are durable when their calls return.
    pub synchronous: bool,
}

impl MountInfo {
    /// How sync calls about the whole volume are told of now.
    fn syncfs_now(&self) -> syncfs::Syncfs {
        match &self.sentinel {
            Some(sentinel) if sentinel.is_broken() => syncfs::Syncfs::SentinelLost,
            _ => self.syncfs,
        }
    }
}

impl Server {
    /// A server of an open volume. Errors: no random numbers, or the volume is damaged.
    pub fn new(
        volume: Arc<Volume>,
        agreed: init::Agreed,
        mount: MountInfo,
        callers: CallerConfig,
    ) -> Result<Self, ccfs_engine::Error> {
        let notifier = notifier::Notifier::default();
        let status_dir = status_dir::StatusDir::new(&volume, mount.status_dir);
        volume.ask_who_waits(serve::gives_up(Proc::new("/proc")));
        let callers = Arc::new(Callers::new(
            Proc::new("/proc"),
            callers,
            Arc::new(streams::Streams(volume.clone())),
        ));
        Ok(Server {
            block_size: volume.statfs()?.block_size,
            direct: direct::Direct::new(
                volume.clone(),
                callers.clone(),
                notifier.clone(),
                mount.direct,
            ),
            callers,
            volume,
            agreed,
            metrics: Metrics::default(),
            recent: Recent::default(),
            syncers: Syncers::new(),
            status_dir,
            snapshots: Mutex::default(),
            pages: pages::Pages::new(notifier.clone()),
            notifier,
            asker: forgets::Asker::new(),
            handles: atomic_files::Handles::default(),
            mount,
            ended: Mutex::new(None),
            panicked: AtomicBool::new(false),
            freezes: freeze::Freezes::default(),
        })
    }

    /// Ends the engine: everything is committed and the volume is plain ext4 afterwards. Once, later calls get the first result.
    pub fn end(&self) -> Result<(), String> {
        let mut ended = self.ended.lock();
        if ended.is_none() {
            // What was posted may wait for that.
            self.volume.thaw();
            self.direct.end();
            self.callers.stop();
            self.stop_notifying();
            if let Some(sentinel) = &self.mount.sentinel {
                sentinel.rest();
            }
            *ended = Some(self.volume.unmount().map_err(|e| e.to_string()));
        }
        ended.clone().unwrap_or(Ok(()))
    }

    /// Requests served so far, by name.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// On whose behalf a request runs.
    fn context(&self, request: &Request<'_>, umask: u32) -> Context {
        let header = &request.header;
        let caller = self.callers.caller(header.pid, header.uid);
        if header.pid != 0 {
            self.recent.note(header.pid, caller.stream);
        }
        Context {
            stream: caller.stream,
            uid: header.uid,
            gid: header.gid,
            umask: umask & 0o777,
            ignore_fsync: caller.ignore_fsync,
            privileged: header.uid == 0,
            posted: false,
            time: None,
        }
    }

    /// The volume for who serves this request, and may wait for that or must not.
    fn volume_for(&self, request: &Request<'_>) -> &Calls {
        match request.wait {
            Wait::Allowed => &self.volume,
            Wait::Never => self.volume.non_blocking(),
        }
    }

    /// The inode that a request is about.
    fn target(&self, request: &Request<'_>) -> Result<Ino, Errno> {
        ino_of(request.header.nodeid)
    }

    /// Appends an inode's entry (LOOKUP, MKDIR ...) and gives the kernel a reference to it. Error: ESTALE, it has been freed since `volume` said so.
    fn push_entry(&self, volume: &Calls, reply: &mut Reply, attr: &Attr) -> Answer {
        volume.remember_this(attr.ino, attr.generation)?;
        self.push_remembered(reply, attr);
        Ok(())
    }

    /// Of an inode to which there is a reference for the kernel.
    fn push_remembered(&self, reply: &mut Reply, attr: &Attr) {
        reply.remembered.push(attr.ino);
        reply.push(&self.entry_of(attr));
    }

    fn entry_of(&self, attr: &Attr) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: node_of(attr.ino),
            generation: attr.generation.into(),
            entry_valid: FOREVER,
            attr_valid: FOREVER,
            attr: self.attr_of(attr),
            ..Default::default()
        }
    }

    /// The kernel may believe them for so many seconds.
    fn push_attr(&self, reply: &mut Reply, attr: &Attr, attr_valid: u64) {
        reply.push(&abi::AttrOut {
            attr_valid,
            attr: self.attr_of(attr),
            ..Default::default()
        });
    }

    fn attr_of(&self, attr: &Attr) -> abi::Attr {
        abi::Attr {
            ino: attr.ino.into(),
            size: attr.size,
            blocks: attr.blocks512,
            atime: attr.atime.0 as u64,
            mtime: attr.mtime.0 as u64,
            ctime: attr.ctime.0 as u64,
            atimensec: attr.atime.1,
            mtimensec: attr.mtime.1,
            ctimensec: attr.ctime.1,
            mode: attr.mode.into(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            blksize: self.block_size,
            flags: 0,
        }
    }
}

/// The inode behind a node id. Numbers that the kernel cannot have from us (file handles can be made up): ESTALE.
fn ino_of(nodeid: u64) -> Result<Ino, Errno> {
    match nodeid {
        abi::ROOT_ID => Ok(ROOT_INO),
        // The reserved inodes of ext4: nobody's files.
        0..=10 => Err(Errno(libc::ESTALE)),
        _ if status_dir::is_ours(nodeid) => Err(Errno(libc::EPERM)),
        _ => Ino::try_from(nodeid).map_err(|_| Errno(libc::ESTALE)),
    }
}

/// Milliseconds of the monotonic clock, as of the last timer tick.
fn monotonic_ms() -> u64 {
    ccfs_caller::monotonic_ms()
}

fn node_of(ino: Ino) -> u64 {
    if ino == ROOT_INO {
        abi::ROOT_ID
    } else {
        ino.into()
    }
}
