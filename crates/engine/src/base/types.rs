//! What callers of the engine exchange with it.
use ccfs_ext4::Error;
pub use ccfs_image::Ino;

/// What calls of the engine return.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn errno<T, E: From<Error>>(n: i32) -> std::result::Result<T, E> {
    Err(Error::Errno(n).into())
}

/// What came of trying something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt<T = ()> {
    /// It was done.
    Done(T),
    /// It has to be tried again, as the function that was called says.
    Again,
}

/// A stream of operations (ccfs paper, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct StreamId(pub u64);

/// Numbers of atomic groups have this bit; no stream may.
pub const GROUP_BIT: u64 = 1 << 62;

impl StreamId {
    pub(crate) fn of_group(number: u64) -> StreamId {
        StreamId(GROUP_BIT | number)
    }

    /// Operations of this "stream" belong to an atomic group.
    pub fn is_group(self) -> bool {
        self.0 & GROUP_BIT != 0
    }
}

/// The stream of the engine's own work (freeing of nameless files). No caller may enter it.
pub const SYSTEM_STREAM: StreamId = StreamId(0);
/// The stream of threads that never set one.
pub const DEFAULT_STREAM: StreamId = StreamId(1);
/// Root directory.
pub const ROOT_INO: Ino = 2;

/// On whose behalf an operation runs.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The stream that the operation becomes a part of.
    pub stream: StreamId,
    /// The caller's user: owner of new inodes.
    pub uid: u32,
    /// Group of new inodes, where the directory does not give them its own.
    pub gid: u32,
    /// Permission bits that new inodes do not get, where no default list of the directory says which they get.
    pub umask: u32,
    /// Sync calls of this caller return at once (the stream's IGNORE_FSYNC).
    pub ignore_fsync: bool,
    /// The caller may change immutable/append-only flags and is exempt from root's reserve limit.
    pub privileged: bool,
    /// It was accepted before it got here: where there is no space, it gets what was promised ([`Calls::promise`]).
    ///
    /// [`Calls::promise`]: crate::Calls::promise
    pub posted: bool,
    /// When it was accepted, where that was before it got here; `None`: now. All that it changes has this time.
    pub time: Option<Time>,
}

impl Context {
    /// Root, in a stream.
    pub const fn root(stream: StreamId) -> Context {
        Context {
            stream,
            uid: 0,
            gid: 0,
            umask: 0,
            ignore_fsync: false,
            privileged: true,
            posted: false,
            time: None,
        }
    }
}

/// Attributes as stat(2) shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Tells uses of one inode number apart.
    pub generation: u32,
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks512: u64,
    /// Hard links; 1 for a directory with too many subdirectories to count (dir_nlink).
    pub nlink: u32,
    /// Of a block or character device: its number, in Linux's 32-bit encoding.
    pub rdev: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// When it was created.
    pub crtime: Time,
    /// i_flags visible to FS_IOC_GETFLAGS.
    pub flags: u32,
}

impl Attr {
    /// What it is: one of the C library's `S_IF*`.
    pub fn file_type(&self) -> u32 {
        u32::from(ccfs_ext4::inode::file_type(self.mode))
    }

    /// Is it a directory?
    pub fn is_dir(&self) -> bool {
        ccfs_ext4::inode::is_dir(self.mode)
    }

    /// Is it a regular file?
    pub fn is_file(&self) -> bool {
        self.file_type() == u32::from(ccfs_ext4::inode::S_IFREG)
    }
}

/// Seconds and nanoseconds since the epoch.
pub type Time = (i64, u32);

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// When the operation is accepted.
    Now,
    /// This time; what the inode cannot hold is cut to the nearest that it can.
    At(Time),
}

/// What setattr changes; `None` leaves a field.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits; the type stays.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: truncates, or extends by a hole.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; `None`: the operation's own time.
    pub ctime: Option<SetTime>,
    /// Clear setuid, and setgid where the group may execute, as a write by an unprivileged caller does (FUSE_HANDLE_KILLPRIV_V2).
    pub kill_suidgid: bool,
    /// Clear setgid also where the group may not execute: the caller is not of the file's group.
    pub kill_sgid: bool,
}

/// How a write is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteFlags {
    /// At the end of file, whatever the offset says (O_APPEND is resolved by the kernel; this is for callers without one).
    pub append: bool,
    /// As [`SetAttr::kill_suidgid`].
    pub kill_suidgid: bool,
    /// As [`SetAttr::kill_sgid`].
    pub kill_sgid: bool,
    /// From the kernel's write-back of a shared mapping: goes to the stream of the inode's last writer, `Context::stream` is ignored.
    pub writeback: bool,
    /// All of it or ENOSPC: the caller cannot pass on that a full volume took a part. (The kernel's write-back never can.)
    pub whole: bool,
    /// The caller chose the place (no O_APPEND), which is nothing for an append-only file, be it the end.
    pub placed: bool,
    /// It may be a part of a longer append, whose parts come in any order: it may leave a gap before it, which a later part fills.
    pub part: bool,
}

/// rename(2) flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// RENAME_NOREPLACE: the new name must not exist.
    pub noreplace: bool,
    /// RENAME_EXCHANGE: both names must exist, and change places.
    pub exchange: bool,
    /// RENAME_WHITEOUT: the old name becomes that of a character device 0:0.
    pub whiteout: bool,
}

/// lseek whence for holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// SEEK_DATA: the next data.
    Data,
    /// SEEK_HOLE: the next hole; the end of file is one.
    Hole,
}

/// fallocate(2) modes that FUSE carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocate; `keep_size` leaves the size.
    Allocate {
        /// The size stays.
        keep_size: bool,
    },
    /// Free the blocks of the range: it reads as zeros. The size stays.
    PunchHole,
    /// The range reads as zeros and keeps its blocks, or gets some.
    ZeroRange {
        /// The size stays.
        keep_size: bool,
    },
}

/// statfs(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct StatFs {
    /// Bytes of a block, the unit of the counts of blocks.
    pub block_size: u32,
    /// Blocks of the volume; without those of the file system's own structures, unless `df_with_overhead`.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Those of them that the unprivileged may have.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Longest name, bytes.
    pub name_max: u32,
}

/// An entry of a directory listing.
#[derive(Clone, Debug)]
pub struct ListEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: Ino,
    /// DT_* value (as d_type of readdir).
    pub dtype: u8,
    /// Cookie to continue after this entry.
    pub next: u64,
}
