//! The kernel's FUSE protocol, versions 7.34 (Linux 5.15) to 7.45 (Linux 6.18): structures and numbers.
//! Source: the kernel's description of the interface (`linux/fuse.h`, BSD-licensed there). Byte order is the machine's.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the protocol before the dot.
pub const MAJOR: u32 = 7;
/// Newest version that this server speaks.
pub const MINOR: u32 = 45;
/// Oldest version that this server accepts: Linux 5.15.
pub const MINOR_OLDEST: u32 = 34;
/// The root's node id.
pub const ROOT_ID: u64 = 1;

/// Declares structures of the protocol with their sizes, which are checked at compile time.
macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident $size:literal { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[doc = concat!("`", stringify!($name), "`: the structure of linux/fuse.h, `InHeader` for `fuse_in_header`; ", stringify!($size), " bytes.")]
        $(#[doc = ""] #[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs, reason = "fields have the names of linux/fuse.h, which says what they are")]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    InHeader 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    OutHeader 16 { len: u32, error: i32, unique: u64 }
    Attr 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    OpenOut 16 { fh: u64, open_flags: u32, backing_id: u32 }
    ForgetIn 8 { nlookup: u64 }
    BatchForgetIn 8 { count: u32, dummy: u32 }
    ForgetOne 16 { nodeid: u64, nlookup: u64 }
    GetattrIn 16 { flags: u32, dummy: u32, fh: u64 }
    SetattrIn 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn 8 { mode: u32, umask: u32 }
    CreateIn 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    RenameIn 8 { newdir: u64 }
    Rename2In 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn 8 { oldnodeid: u64 }
    OpenIn 8 { flags: u32, open_flags: u32 }
    ReleaseIn 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    ReadIn 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut 8 { size: u32, padding: u32 }
    Kstatfs 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32,
        spare: [u32; 6],
    }
    FsyncIn 16 { fh: u64, fsync_flags: u32, padding: u32 }
    SetxattrIn 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    /// What kernels send that did not agree on SETXATTR_EXT.
    SetxattrInShort 8 { size: u32, flags: u32 }
    GetxattrIn 8 { size: u32, padding: u32 }
    GetxattrOut 8 { size: u32, padding: u32 }
    /// Before 7.36 the request ends after `flags`.
    InitIn 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    }
    InterruptIn 8 { unique: u64 }
    IoctlIn 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    FallocateIn 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut 8 { offset: u64 }
    CopyIn 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    CopyOut 8 { bytes_copied: u64 }
    SyncfsIn 8 { padding: u64 }
    /// The head of an entry of READDIR; the name follows, padded to 8 bytes.
    Dirent 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    StatxIn 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    SxTime 16 { sec: i64, nsec: u32, reserved: i32 }
    Statx 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64, size: u64,
        blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32,
        rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// NOTIFY_INVAL_INODE: a negative `off` invalidates the attributes only.
    InvalInodeOut 24 { ino: u64, off: i64, len: i64 }
    /// At the end of a request's header in io_uring: what identifies its reply, and how much payload there is.
    UringEntry 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// The command's arguments in its submission entry.
    UringCmd 24 { flags: u64, commit_id: u64, qid: u16, padding: [u16; 3] }
    /// NOTIFY_STORE; the bytes follow.
    StoreOut 24 { nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// NOTIFY_INVAL_ENTRY; the name and a NUL follow.
    InvalEntryOut 16 { parent: u64, namelen: u32, flags: u32 }
    /// NOTIFY_PRUNE; so many node ids follow.
    PruneOut 16 { count: u32, padding: u32, spare: u64 }
}

/// Where in a request's header in io_uring the first argument structure stands (after the in header, later the out header), bytes.
pub const URING_OP_AT: usize = 128;
/// Where the entry's own words stand ([`UringEntry`]), bytes.
pub const URING_ENTRY_AT: usize = 256;
/// Size of a request's header, bytes.
pub const URING_HEADER: usize = 288;
/// Command to /dev/fuse in io_uring: here is a buffer for requests.
pub const URING_REGISTER: u32 = 1;
/// The other command: here is a reply, and its buffer is free.
pub const URING_COMMIT_AND_FETCH: u32 = 2;

/// Declares the opcodes, and a table of their names for `status`.
macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// Numbers of requests: `opcode` of [`InHeader`].
        pub mod op { $(#[doc = concat!("`FUSE_", stringify!($name), "` of linux/fuse.h.")] pub const $name: u32 = $number;)* }
        /// An opcode's name; numbers without one share "OTHER".
        pub fn opcode_name(opcode: u32) -> &'static str {
            match opcode { $($number => stringify!($name),)* _ => "OTHER" }
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10, RMDIR = 11,
    RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21,
    GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29,
    FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36, BMAP = 37, DESTROY = 38,
    IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46,
    COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49, SYNCFS = 50, TMPFILE = 51, STATX = 52,
    COPY_FILE_RANGE_64 = 53,
}

/// INIT flags; bits 32 and up travel in `flags2`.
pub mod init {
    /// Reads of one file may come at the same time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// OPEN truncates by itself where O_TRUNC is given.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP takes `.` and `..`, as NFS needs them.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes may be longer than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The kernel leaves the umask to the server.
    pub const DONT_MASK: u64 = 1 << 6;
    /// Directories have ioctls.
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// The kernel drops a file's pages when its size or time has changed.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// There is READDIRPLUS.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Direct transfers may be asynchronous.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The kernel keeps dirty pages.
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    /// OPEN may be left out (answered ENOSYS).
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    /// Lookups and listings of one directory may come at the same time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel knows POSIX access control lists.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` of [`super::InitOut`] counts.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel keeps targets of symbolic links.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// OPENDIR may be left out (answered ENOSYS).
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// The kernel drops pages only where it is told to.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// The server clears set-user-id and set-group-id at writes, truncation and chown.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has the long form ([`super::SetxattrIn`]).
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` counts.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests may come by io_uring.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `SetattrIn::valid`.
pub mod fattr {
    /// `mode` is to be set.
    pub const MODE: u32 = 1 << 0;
    /// `uid` is to be set.
    pub const UID: u32 = 1 << 1;
    /// `gid` is to be set.
    pub const GID: u32 = 1 << 2;
    /// `size` is to be set.
    pub const SIZE: u32 = 1 << 3;
    /// `atime` is to be set.
    pub const ATIME: u32 = 1 << 4;
    /// `mtime` is to be set.
    pub const MTIME: u32 = 1 << 5;
    /// The time of access is to be now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The time of change of the content is to be now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// `ctime` is to be set.
    pub const CTIME: u32 = 1 << 10;
    /// Set-user-id and set-group-id are to be cleared.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `WriteIn::write_flags`: from the kernel's write-back of a mapping, the file handle and the caller are unknown.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `WriteIn::write_flags`, `ReadIn::read_flags`: who locks is named. Only a transfer that passes the page cache by says that.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// The same of `ReadIn::read_flags`.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `WriteIn::write_flags`: set-user-id and set-group-id are to be cleared.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `SetxattrIn::setxattr_flags`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `OpenOut::open_flags`.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// `OpenOut::open_flags`: the kernel keeps the pages that it has.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `OutHeader::error` of a notification (its `unique` is 0).
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Another notification: [`InvalEntryOut`].
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// A flag of it: what the name leads to is asked for again, and nothing else.
pub const EXPIRE_ONLY: u32 = 1;
/// First minor of a kernel that knows it (Linux 6.2).
pub const EXPIRES: u32 = 38;
/// Another notification: [`StoreOut`].
pub const NOTIFY_STORE: i32 = 4;
/// Another notification: [`PruneOut`]. Kernels that do not know it refuse it.
pub const NOTIFY_PRUNE: i32 = 9;
/// `_IOR(229, 0, u32)`: makes this /dev/fuse descriptor another channel of the connection of the given one.
pub const DEV_IOC_CLONE: u32 = 0x8004_E500;
