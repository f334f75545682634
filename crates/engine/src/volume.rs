//! A mounted volume: the operations.
use crate::types::*;
use ccfs_device::Device;
use std::sync::Arc;
use std::time::Duration;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    pub read_only: bool,
    /// An operation's commit starts at most this long after it (C7).
    pub commit_interval: Duration,
    /// Bytes of uncommitted data before writers wait.
    pub dirty_limit: u64,
    pub noatime: bool,
    /// Clean metadata kept in memory, bytes.
    pub cache_bytes: usize,
    /// Starts background threads (interval commit, checkpoint). Tests on the simulator switch them off and call `Volume::tick`.
    pub background: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            commit_interval: Duration::from_secs(5),
            dirty_limit: 128 << 20,
            noatime: false,
            cache_bytes: 64 << 20,
            background: true,
        }
    }
}

/// A mounted volume. All calls may come from any thread; calls that wait for durability block the calling thread.
pub struct Volume {}

#[allow(unused_variables)]
impl Volume {
    /// Opens a device that holds an ext4 volume: recovers it if a crash left a log, then marks it in flight.
    pub fn mount(dev: Arc<dyn Device>, options: Options) -> Result<Arc<Volume>> { todo!() }
    /// Commits everything, frees nameless files, brings all home, leaves plain ext4. Also stops the background threads.
    pub fn unmount(&self) -> Result<()> { todo!() }
    /// Recovers a crashed volume without mounting it (for fsck): afterwards it is plain ext4. False: there was nothing to do.
    pub fn recover(dev: Arc<dyn Device>) -> Result<bool> { todo!() }
    /// FS_IOC_SHUTDOWN and power-cut tests: stops at once, writes nothing more; every later call fails with EIO.
    pub fn shutdown(&self) { todo!() }

    // --- namespace. Names are raw bytes, 1..=255, without '/' and NUL, never "." or ".." for changes.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> { todo!() }
    pub fn getattr(&self, ino: Ino) -> Result<Attr> { todo!() }
    pub fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> { todo!() }
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> { todo!() }
    /// Any type but directory and symlink; `mode` with S_IFMT. The umask (or the parent's default ACL) is applied here.
    pub fn mknod(&self, cx: &Context, parent: Ino, name: &[u8], mode: u16, rdev: u32) -> Result<Attr> { todo!() }
    pub fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], mode: u16) -> Result<Attr> { todo!() }
    pub fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> { todo!() }
    pub fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> { todo!() }
    pub fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> { todo!() }
    pub fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> { todo!() }
    pub fn rename(&self, cx: &Context, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], flags: RenameFlags) -> Result<()> { todo!() }
    /// A nameless file (O_TMPFILE).
    pub fn tmpfile(&self, cx: &Context, parent: Ino, mode: u16) -> Result<Attr> { todo!() }
    /// Entries with a cookie above `after` (0: from the start, with "." and ".."); `each` returns false when its buffer is full.
    pub fn readdir(&self, dir: Ino, after: u64, each: &mut dyn FnMut(ListEntry) -> bool) -> Result<()> { todo!() }

    // --- the kernel's references. An inode without a name is freed when its count is 0.
    /// Adds references: call for every lookup/create/mkdir/... whose answer goes to the kernel.
    pub fn remember(&self, ino: Ino, count: u64) { todo!() }
    pub fn forget(&self, ino: Ino, count: u64) { todo!() }

    // --- data
    /// Reads up to `len` bytes into `out` (cleared first); short only at end of file. Updates atime by relatime.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> { todo!() }
    /// One operation, whole or not at all (up to 1 MiB; more is split). Returns the bytes accepted.
    pub fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize> { todo!() }
    pub fn fallocate(&self, cx: &Context, ino: Ino, how: Fallocate, offset: u64, len: u64) -> Result<()> { todo!() }
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> { todo!() }
    pub fn copy_range(&self, cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64> { todo!() }

    // --- xattrs: full names ("user.x", "trusted.x", "security.x", "system.posix_acl_access", "system.posix_acl_default")
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> { todo!() }
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> { todo!() }
    /// `create`/`replace` as XATTR_CREATE/XATTR_REPLACE; `kill_sgid` as FUSE_SETXATTR_ACL_KILL_SGID.
    pub fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], create: bool, replace: bool, kill_sgid: bool) -> Result<()> { todo!() }
    pub fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> { todo!() }
    /// FS_IOC_GETFLAGS / FS_IOC_SETFLAGS.
    pub fn getflags(&self, ino: Ino) -> Result<u32> { todo!() }
    pub fn setflags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> { todo!() }

    // --- durability
    pub fn fsync(&self, cx: &Context, ino: Ino, datasync: bool) -> Result<()> { todo!() }
    pub fn syncfs(&self, cx: &Context) -> Result<()> { todo!() }
    pub fn streamsync(&self, stream: StreamId) -> Result<()> { todo!() }
    /// Work that background threads would do, for tests: commits streams that are older than `age`.
    pub fn tick(&self, age: Duration) -> Result<()> { todo!() }
    /// Brings all durable changes home now.
    pub fn checkpoint(&self) -> Result<()> { todo!() }

    // --- the rest
    pub fn statfs(&self) -> Result<StatFs> { todo!() }
    pub fn label(&self) -> Vec<u8> { todo!() }
    pub fn uuid(&self) -> [u8; 16] { todo!() }
    /// FITRIM: discards free blocks in the byte range, pieces of at least `min_len`; returns bytes discarded.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> { todo!() }
    /// A stream with a new id.
    pub fn new_stream(&self) -> StreamId { todo!() }
    pub fn status(&self) -> crate::Status { todo!() }
}
