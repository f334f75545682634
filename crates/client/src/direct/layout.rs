//! What a session and the daemon say to each other in the memory that they share: the one place where it is defined.
//!
//! ```text
//! 0        one page: `Word`s            who writes: the program or the daemon, never both
//! 4096     a byte for each handle       the daemon: 1, the handle's hold is broken
//! GRANTS   numbers for new inodes       the daemon: a number; the program: 0, it has taken it
//! RING     the ring of entries          the program: entries; the daemon: what came of them
//! ```
//!
//! An entry is an [`Entry`], followed by its bytes (a name, data) and by room for those of the reply, and begins at a multiple of
//! [`ALIGN`]. It never wraps: what is left at the ring's end is an entry of [`op::PAD`]. Positions count all bytes ever, so a position modulo
//! the ring's size is a place.
//!
//! *Posted* entries are accepted when `TAIL` says that they are there; the program waits for nothing. *Asked* ones have the flag
//! [`ASKED`], and `Entry::done` says that there is a reply. Those with [`BY_CALL`] are carried out by the ioctl [`crate::abi::IOC_DIRECT_CALL`], which
//! may wait. Byte order is the machine's. Everything here is read once by the daemon and then checked: the program may be hostile.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol that this file describes.
pub const VERSION: u32 = 8;
/// Handles of a session. 0 is the directory that it was begun on.
pub const HANDLES: u32 = 1 << 15;
/// No handle: of an entry of [`op::CREATE`], [`op::MKDIR`] and [`op::LOOKUP`] with [`BY_CALL`] it stands for the directory that the call is made on.
pub const NO_HANDLE: u32 = u32::MAX;
/// Bytes before the handles.
pub const WORDS: usize = 4096;
/// Where the granted numbers of inodes are, bytes: a u32 each, 0 where there is none.
pub const GRANTS: usize = WORDS + HANDLES as usize;
/// Numbers that are granted at a time, at most: more than files can be under way.
pub const GRANTS_MAX: usize = 1024;
/// Where the ring begins, bytes.
pub const RING: usize = GRANTS + 4 * GRANTS_MAX;
/// Bytes of the ring, a power of two.
pub const RING_BYTES: usize = 4 << 20;
/// Bytes of the whole memory.
pub const MEMORY: usize = RING + RING_BYTES;
/// Entries are aligned to so many bytes.
pub const ALIGN: usize = 64;
/// Most bytes of data that an entry carries, and that a read returns.
pub const DATA_MAX: usize = 128 << 10;
/// Most bytes of a file whose content is told in advance.
pub const SMALL: usize = 16 << 10;
/// Names that [`op::HEADS`] takes at most.
pub const HEADS_MAX: usize = 1024;
/// Blocks that posted entries may cost which are not carried out: an upper bound of what the word `LIMIT` says.
pub const LIMIT_MAX: u64 = 16384;

/// Words of the first page, by their place in bytes; each has a cache line of its own where both sides look often.
pub mod word {
    /// u64, program: bytes of entries that are published.
    pub const TAIL: usize = 0;
    /// u64, daemon: bytes of entries that are carried out.
    pub const HEAD: usize = 64;
    /// u64, daemon: cost of the entries that are carried out ([`super::cost`]).
    pub const SPENT: usize = 72;
    /// u64, daemon: what entries that are not carried out may cost together.
    pub const LIMIT: usize = 80;
    /// u64, daemon: the largest size of a file, bytes.
    pub const SIZE_MAX: usize = 88;
    /// u32, daemon: 0, or the errno with which the session has ended.
    pub const ENDED: usize = 128;
    /// u32, daemon: how often it has taken back that something may be posted, after it has set `LIMIT` to 0.
    pub const STOPS: usize = 132;
    /// u32, daemon: the session's user.
    pub const USER: usize = 136;
    /// u32, daemon: 1, nothing is refused to the user.
    pub const MAY_ALL: usize = 140;
    /// u32, daemon: the processor on which its thread was last, and one more. A program on the same one need not spin.
    pub const PROCESSOR: usize = 144;
    /// u32, daemon: the session's group.
    pub const GROUP: usize = 148;
    /// u32, daemon, a futex: 1 while it sleeps.
    pub const SLEEPS: usize = 192;
    /// u32, daemon, a futex: counts what a waiting program may look at.
    pub const REPLIES: usize = 256;
    /// u32, program: threads that sleep on `REPLIES` until what is posted is carried out.
    pub const WAITERS: usize = 320;
    /// u32, program: threads that sleep on `REPLIES` until there is room, which is when `HEAD` and `SPENT` are what the next two say, or when all is
    /// carried out.
    pub const FULL: usize = 384;
    /// u64, program: see [`FULL`].
    pub const ROOM_AT: usize = 392;
    /// u64, program: see [`FULL`].
    pub const ROOM_SPENT: usize = 400;
}

/// Flag of an entry: somebody waits for its reply.
pub const ASKED: u16 = 1;
/// Flag of an entry: it is carried out by an ioctl.
pub const BY_CALL: u16 = 2;

/// What an entry asks for. `h` is its handle, `h2` its second one.
pub mod op {
    /// Nothing, up to the ring's end.
    pub const PAD: u16 = 0;
    /// A new regular file in the directory `h`, which gets the handle `h2`: name; `b`: mode, its high half the umask. It may be posted.
    /// `a`: 0, or ([`super::named`]) the number of the file, one of those at [`super::GRANTS`]; `Entry::time` is all its times then.
    pub const CREATE: u16 = 1;
    /// A new directory, likewise.
    pub const MKDIR: u16 = 2;
    /// What the name in the directory `h` leads to gets the handle `h2` ([`super::NO_HANDLE`]: none), for `b`: [`super::READING`], [`super::WRITING`]. Reply: [`super::Attr`], and
    /// up to `a` of the first bytes of a regular file that may be read.
    /// Of a directory that is held, with [`super::DIRECTORY`] in `b` and `a` not 0: up to so many bytes of what [`READDIR`] gives with attributes. With
    /// [`super::WITH_HEADS`] as well: how many bytes these are (8 bytes) comes first, and after them [`super::Content`] and all that is in it, padded to 8, of
    /// small files among them, as [`HEADS`] has them, of those for which there is room.
    /// It may be posted of a file that surely may be read: where `a` is not 0, who posts it has its content by [`HEADS`] and reads it now.
    /// With [`super::BY_CALL`] and no `h` the kernel is asked to forget that name of the directory that the call is made on, which is one of a regular
    /// file, or with [`super::DIRECTORY`] in `b` one of a directory.
    pub const LOOKUP: u16 = 3;
    /// Data at the offset `a`. It may be posted.
    pub const WRITE: u16 = 4;
    /// Data at the end. It may be posted.
    pub const APPEND: u16 = 5;
    /// The size becomes `a`. It may be posted.
    pub const TRUNCATE: u16 = 6;
    /// `b` bytes at the offset `a`. Reply: those that there are.
    pub const READ: u16 = 7;
    /// Reply: [`super::Attr`].
    pub const STAT: u16 = 8;
    /// As fsync(2). Only with [`super::BY_CALL`].
    pub const SYNC: u16 = 9;
    /// Order without durability. It may be posted.
    pub const BARRIER: u16 = 10;
    /// The name in the directory `h` goes, if it is none of a directory. It may be posted.
    pub const UNLINK: u16 = 11;
    /// The name in the directory `h` goes, if it is one of an empty directory. It may be posted.
    pub const RMDIR: u16 = 12;
    /// The first name (`b` bytes) in `h` becomes the rest of the bytes in `h2`; `a`: 0, or [`super::NO_REPLACE`].
    pub const RENAME: u16 = 13;
    /// Names from the position `a` on. Reply: [`super::Name`] and its bytes, padded to 8, again and again; each followed by [`super::Attr`] if `b` is
    /// [`super::WITH_ATTR`]. That is zeros of a directory, and of what others may change too. [`super::IN_ADVANCE`]: `a` is 0, and the directory is not
    /// read for its user, whose access time stays.
    pub const READDIR: u16 = 14;
    /// The handle is not used any more. It may be posted.
    pub const CLOSE: u16 = 15;
    /// A name by which the file of the handle can be opened once through the mount, in the session's directory. `b` is 0, or [`super::FOR_LOCKS`]: the hold stays.
    pub const NAME: u16 = 16;
    /// A directory's path below the session's.
    pub const PATH: u16 = 17;
    /// Bytes: [`super::SetAttr`]. It may be posted.
    pub const SETATTR: u16 = 18;
    /// All before it is carried out.
    pub const DRAIN: u16 = 19;
    /// The session ends. Posted.
    pub const END: u16 = 20;
    /// Only with [`super::BY_CALL`]: this thread uses the session from now on.
    pub const THREAD: u16 = 21;
    /// The regular file that the first name (`b` bytes) in `h` leads to gets the rest of the bytes as another name in `h2`. EOPNOTSUPP: only the kernel can.
    /// It may be posted of a file that the session has made, and that has one name.
    pub const LINK: u16 = 22;
    /// A symbolic link in the directory `h`: its name (`b` bytes), and where it leads to.
    pub const SYMLINK: u16 = 23;
    /// The name of a symbolic link in the directory `h`. Reply: where it leads to.
    pub const READLINK: u16 = 24;
    /// What small files begin with, of so many names in the directory `h` as there is room for. Bytes: the names, separated by zeros. Reply: for each name
    /// [`super::Attr`] and the whole content, padded to 8; of what is no small file that may be read, has other names, or that others may change, an
    /// [`super::Attr`] of zeros. Nothing gets a handle, and nothing counts as read.
    pub const HEADS: u16 = 25;
}

/// What [`SetAttr`] sets.
pub mod set {
    /// The permission bits.
    pub const MODE: u32 = 1;
    /// The owner.
    pub const UID: u32 = 2;
    /// The group.
    pub const GID: u32 = 4;
    /// The time of access, as given.
    pub const ATIME: u32 = 8;
    /// The time of change, as given.
    pub const MTIME: u32 = 16;
    /// The time of access, to the present.
    pub const ATIME_NOW: u32 = 32;
    /// The time of change, to the present.
    pub const MTIME_NOW: u32 = 64;
    /// All of them.
    pub const ALL: u32 = 127;
}

/// What a handle is for.
pub const READING: u32 = 1;
/// See [`READING`].
pub const WRITING: u32 = 2;
/// The kernel is to forget a directory, not a file.
pub const DIRECTORY: u32 = 4;
/// Much will be done in the directory: it is taken even if the kernel has to give up a few files for it.
pub const BUSY: u32 = 8;
/// The directory is taken only if that is easy: nobody holds it, and the kernel knows nothing in it.
pub const UNUSED: u32 = 16;
/// Small files of the directory will be read: what is in them is told with its names.
pub const WITH_HEADS: u32 = 32;
/// Names are listed with attributes.
pub const WITH_ATTR: u64 = 1;
/// Names are listed for who may want them later.
pub const IN_ADVANCE: u64 = 2;
/// The kernel is to know the file for its locks: it keeps nothing of it.
pub const FOR_LOCKS: u64 = 1;
/// The new name must not be there.
pub const NO_REPLACE: u64 = 1;
/// Flag of [`Attr`]: the inode has no extended attribute at all, so no access list and no capability either. (Without it, it may have none.)
pub const PLAIN: u32 = 1;

/// Result of an entry: the hold of a handle is broken, and nothing was done.
pub const BROKEN: i32 = i32::MAX;
/// Result of an asked entry: it would have to wait, and nothing was done; an ioctl can.
pub const WOULD_WAIT: i32 = i32::MAX - 1;
/// Result of an entry that was posted when that was not allowed any more: nothing was done, and it may be asked for.
pub const NOT_ALLOWED: i32 = i32::MAX - 2;

/// Head of an entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Entry {
    /// Bytes of the entry, with this head and the room for a reply.
    pub len: u32,
    /// See [`op`].
    pub op: u16,
    /// [`ASKED`], [`BY_CALL`].
    pub flags: u16,
    /// The thread that calls, as the daemon named it.
    pub thread: u32,
    /// The first handle.
    pub h: u32,
    /// The second handle.
    pub h2: u32,
    /// Bytes that follow.
    pub bytes: u32,
    /// As the operation says.
    pub a: u64,
    /// As the operation says.
    pub b: u64,
    /// Reply: 0, an errno, [`BROKEN`], [`WOULD_WAIT`] or [`NOT_ALLOWED`].
    pub result: i32,
    /// Reply: bytes of it, which follow those of the entry at a multiple of 8.
    pub reply: u32,
    /// Reply, a futex: [`IS_THERE`]; before that 0, or [`SLEPT_ON`].
    pub done: u32,
    /// Zero.
    pub reserved: u32,
    /// When it was posted, nanoseconds since the epoch; 0: when it is carried out.
    pub time: u64,
}

/// What `a` of [`op::CREATE`] and [`op::MKDIR`] says: the number of the new inode, and `STOPS` as it was before the number was taken.
pub const fn named(ino: u32, stops: u32) -> u64 {
    ino as u64 | (stops as u64) << 32
}

/// Number and `STOPS`, see [`named`].
pub const fn named_by(a: u64) -> (u32, u32) {
    (a as u32, (a >> 32) as u32)
}

/// The daemon: the reply is there.
pub const IS_THERE: u32 = 1;
/// The program: a thread sleeps until the reply is there.
pub const SLEPT_ON: u32 = 2;

/// Bytes of an entry's head.
pub const HEAD: usize = size_of::<Entry>();
/// Where in an entry `result`, `reply` and `done` are.
pub const RESULT: usize = 40;
/// See [`RESULT`].
pub const REPLY: usize = 44;
/// See [`RESULT`].
pub const DONE: usize = 48;

const _: () = assert!(HEAD == 64 && HEAD <= ALIGN && MEMORY.is_multiple_of(4096));

/// Where the bytes of the reply of an entry with so many bytes begin, from the entry's begin.
pub const fn reply_at(bytes: usize) -> usize {
    HEAD + bytes.next_multiple_of(8)
}

/// Attributes of a file or directory: a reply.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, seconds since the epoch.
    pub atime: i64,
    /// Last change of the content, likewise.
    pub mtime: i64,
    /// Last change of the inode, likewise.
    pub ctime: i64,
    /// Their nanoseconds.
    pub atime_ns: u32,
    /// See `atime_ns`.
    pub mtime_ns: u32,
    /// See `atime_ns`.
    pub ctime_ns: u32,
    /// Tells uses of one inode number apart.
    pub generation: u32,
    /// [`PLAIN`]; 0 where the kernel says what there is.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

impl Attr {
    /// Bytes of its blocks. Of a directory the size says nothing: that is one block, however many it has.
    pub fn allocated(&self) -> u64 {
        self.blocks.saturating_mul(512)
    }

    /// A regular file that is told as a whole ([`op::HEADS`]).
    pub fn is_small_file(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG && self.size <= SMALL as u64
    }
}

/// What is to be set of a file or directory, in this order: owner and group as by chown(2), then the mode as by chmod(2), then times as by utimensat(2).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SetAttr {
    /// What is set: see [`set`].
    pub mask: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, seconds since the epoch.
    pub atime: i64,
    /// Last change of the content, likewise.
    pub mtime: i64,
    /// Their nanoseconds, less than 1,000,000,000.
    pub atime_ns: u32,
    /// See `atime_ns`.
    pub mtime_ns: u32,
}

/// Head of a name in a listing.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Name {
    /// Inode number.
    pub ino: u64,
    /// Where the listing goes on after it.
    pub next: u64,
    /// Bytes of the name.
    pub len: u32,
    /// A DT_* value.
    pub kind: u32,
}

/// Head of what is in a listed file.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Content {
    /// Which of the listed names it is, from 0 on.
    pub nth: u32,
    /// Bytes: all that there are.
    pub len: u32,
}

impl Entry {
    /// Its second handle is of a directory, too, and may be broken.
    pub const fn has_two_directories(&self) -> bool {
        matches!(self.op, op::LINK | op::RENAME)
    }
}

/// What an entry may take of the volume's space at most, blocks of any size from 1 KiB on; 0 for one that changes nothing.
pub const fn cost(op: u16, bytes: usize) -> u64 {
    match op {
        op::CREATE | op::MKDIR | op::RENAME | op::LINK => 12,
        op::SYMLINK => bytes.div_ceil(1024) as u64 + 12,
        op::WRITE | op::APPEND => bytes.div_ceil(1024) as u64 + 10,
        op::TRUNCATE | op::UNLINK | op::RMDIR | op::SETATTR => 10,
        // It draws on nothing; but where others post its place among what they have done is found by asking.
        op::BARRIER => 1,
        _ => 0,
    }
}
