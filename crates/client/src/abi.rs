//! Numbers and structures of ccfs's own ioctls: the one place where they are defined.
//!
//! Every structure starts with `version` and its size is part of the ioctl number, so that a program and a daemon of
//! different ages refuse each other (`EINVAL`, `ENOTTY`) and never misread each other. The ioctls work on any file or
//! directory of a mounted volume. Byte order is the machine's.
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The `version` that this file describes.
pub const VERSION: u32 = 1;
/// The ioctls' type byte.
const MAGIC: u32 = 0xCC;

/// Linux `_IOWR(MAGIC, nr, size)`.
const fn iowr(nr: u32, size: usize) -> u32 {
    (3 << 30) | ((size as u32) << 16) | (MAGIC << 8) | nr
}

/// Enter a stream: [`StreamArg`].
pub const IOC_SET_STREAM: u32 = iowr(0x80, size_of::<StreamArg>());
/// Which stream the calling thread is in: [`StreamArg`].
pub const IOC_GET_STREAM: u32 = iowr(0x81, size_of::<StreamArg>());
/// Make a stream with a fresh id, owned by the caller, without entering it: [`StreamArg`].
pub const IOC_NEW_STREAM: u32 = iowr(0x82, size_of::<StreamArg>());
/// Make everything durable that a stream did before the call: [`StreamArg`], id 0 is the caller's stream.
pub const IOC_STREAM_SYNC: u32 = iowr(0x83, size_of::<StreamArg>());
/// A part of the status text (JSON): [`StatusArg`].
pub const IOC_STATUS: u32 = iowr(0x84, size_of::<StatusArg>());
/// Which stream a process is in: [`ProcessArg`].
pub const IOC_GET_STREAM_OF_PROCESS: u32 = iowr(0x85, size_of::<ProcessArg>());
/// Give a stream a name, or take it away: [`StreamNameArg`].
pub const IOC_NAME_STREAM: u32 = iowr(0x86, size_of::<StreamNameArg>());
/// The stream of a name: [`StreamNameArg`]; `id` out.
pub const IOC_FIND_STREAM: u32 = iowr(0x87, size_of::<StreamNameArg>());
/// The next events (commits and syncs) as lines of JSON: [`TraceArg`].
pub const IOC_TRACE: u32 = iowr(0x88, size_of::<TraceArg>());
/// Open an atomic group and enter it: [`GroupArg`]; `handle` out.
pub const IOC_GROUP_BEGIN: u32 = iowr(0x8a, size_of::<GroupArg>());
/// Commit a group and leave it: [`GroupArg`], handle 0 is the caller's group.
pub const IOC_GROUP_COMMIT: u32 = iowr(0x8b, size_of::<GroupArg>());
/// Take a group back and leave it: [`GroupArg`], handle 0 is the caller's group.
pub const IOC_GROUP_ABORT: u32 = iowr(0x8c, size_of::<GroupArg>());
/// Enter the group of a handle: [`GroupArg`].
pub const IOC_GROUP_ENTER: u32 = iowr(0x8d, size_of::<GroupArg>());
/// What a group has changed, a part of it as lines of text: [`TraceArg`] (`next`: first line that is wanted, `lost` in: the handle).
pub const IOC_GROUP_CHANGES: u32 = iowr(0x8e, size_of::<TraceArg>());
/// Verify some of the volume's metadata: [`ScrubArg`]. For root.
pub const IOC_SCRUB: u32 = iowr(0x90, size_of::<ScrubArg>());

/// Change options of a mounted volume: [`TuneArg`]. For root.
pub const IOC_TUNE: u32 = iowr(0x91, size_of::<TuneArg>());

/// Make a mounted volume larger: [`ResizeArg`]. For root, and for the user whose daemon it is.
pub const IOC_RESIZE: u32 = iowr(0x92, size_of::<ResizeArg>());

/// Let a mounted volume stand still: [`FreezeArg`], `id` out. For root, and for the user whose daemon it is.
pub const IOC_FREEZE: u32 = iowr(0x93, size_of::<FreezeArg>());
/// End that: [`FreezeArg`], `id` in.
pub const IOC_THAW: u32 = iowr(0x94, size_of::<FreezeArg>());

/// Order without durability for what was done before to the file that the descriptor is of, and by the caller's stream: [`BarrierArg`].
pub const IOC_BARRIER: u32 = iowr(0xa0, size_of::<BarrierArg>());

/// Open the file of the descriptor O_ATOMIC, or ask for its token: [`AtomicArg`].
pub const IOC_ATOMIC: u32 = iowr(0xa1, size_of::<AtomicArg>());
/// Make the changes of several files that are open O_ATOMIC durable together: [`SyncvArg`], on any file of the volume.
pub const IOC_SYNCV: u32 = iowr(0xa2, size_of::<SyncvArg>());

/// Make everything durable that was done on the volume before the call: [`SyncVolumeArg`].
pub const IOC_SYNC_VOLUME: u32 = iowr(0xa3, size_of::<SyncVolumeArg>());

/// Begin a session of calls through shared memory, on a directory: [`DirectBeginArg`].
pub const IOC_DIRECT_BEGIN: u32 = iowr(0xb0, size_of::<DirectBeginArg>());
/// Carry out one of its entries: [`DirectCallArg`].
pub const IOC_DIRECT_CALL: u32 = iowr(0xb1, size_of::<DirectCallArg>());

/// Argument of the call that begins a session ([`crate::direct`]).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DirectBeginArg {
    /// [`VERSION`].
    pub version: u32,
    /// [`crate::direct::layout::VERSION`].
    pub protocol: u32,
    /// In: the descriptor of the memory.
    pub memory: u32,
    /// In: the descriptor of the directory, by which the call is made.
    pub directory: u32,
    /// Out: the session. Nobody can guess it.
    pub session: u64,
    /// In: 0 or [`DIRECT_STAYS`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// DIRECT_BEGIN flag: what the session does belongs to the stream of the thread that begins it, whichever thread calls, and wherever it is then.
pub const DIRECT_STAYS: u32 = 1;

/// DIRECT_CALL flag: what is to be carried out does not wait as a rule, so it is tried by the thread that has taken the call.
pub const DIRECT_SHORT: u32 = 1;

/// Argument of the call that carries out an entry.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DirectCallArg {
    /// [`VERSION`].
    pub version: u32,
    /// In: zero. Out: the calling thread, as the daemon sees it.
    pub thread: u32,
    /// The session.
    pub session: u64,
    /// Where the entry begins.
    pub position: u64,
    /// In: the descriptor of the directory, by which the call is made.
    pub directory: u32,
    /// In: 0 or [`DIRECT_SHORT`].
    pub flags: u32,
}

/// ATOMIC flag: from now on the descriptor's open is O_ATOMIC. Without it the call only tells the token.
pub const ATOMIC_OPEN: u32 = 1;
/// Files of one SYNCV call at most.
pub const SYNCV_MAX: usize = 256;

/// Argument of the call on one file that is, or is to be, open O_ATOMIC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AtomicArg {
    /// [`VERSION`].
    pub version: u32,
    /// 0 or [`ATOMIC_OPEN`].
    pub flags: u32,
    /// Out: what SYNCV calls the file. Nobody can guess it.
    pub token: u64,
    /// Zero.
    pub reserved: u64,
}

/// Argument of the call on several such files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SyncvArg {
    /// [`VERSION`].
    pub version: u32,
    /// How many tokens are valid, from 1 to [`SYNCV_MAX`].
    pub count: u32,
    /// `token` of [`AtomicArg`] of each file; those from `count` on are not looked at.
    pub tokens: [u64; SYNCV_MAX],
}

/// Argument of the call that makes all of a volume durable.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SyncVolumeArg {
    /// [`VERSION`].
    pub version: u32,
    /// Zero.
    pub reserved: u32,
}

/// Barrier flag: of the file only the data matters (fdatabarrier). The order is kept for all of it nevertheless.
pub const BARRIER_DATA: u32 = 1;

/// Argument of the barrier call.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BarrierArg {
    /// [`VERSION`].
    pub version: u32,
    /// 0 or [`BARRIER_DATA`].
    pub flags: u32,
}

/// Stream flag: sync calls made in this stream by its owner return at once (C3 excepts streamsync and syncfs by others).
pub const STREAM_IGNORE_FSYNC: u32 = 1;
/// SET_STREAM: leave the stream's flags as they are.
pub const STREAM_KEEP_FLAGS: u32 = 1 << 31;
/// GET_STREAM: the thread, or who started it, chose this stream; without it the mount's policy put the thread there. SET_STREAM takes
/// no notice of it.
pub const STREAM_CHOSEN: u32 = 1 << 30;
/// Every flag that a stream can have.
pub const STREAM_FLAGS: u32 = STREAM_IGNORE_FSYNC;
/// The stream of threads that never entered one.
pub const STREAM_DEFAULT: u64 = 1;
/// SET_STREAM: where the mount's policy puts the thread, as if it had never entered a stream.
pub const STREAM_POLICY: u64 = 0;

/// Argument of the stream calls.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StreamArg {
    /// [`VERSION`].
    pub version: u32,
    /// `STREAM_*`; in for SET and NEW, out for GET, zero for SYNC.
    pub flags: u32,
    /// SET: the stream to enter ([`STREAM_POLICY`], [`STREAM_DEFAULT`]; an id that nobody uses becomes the caller's own). GET, NEW: out.
    pub id: u64,
}

/// Longest name of a stream, bytes.
pub const STREAM_NAME_MAX: usize = 64;

/// Argument of the calls about a stream's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StreamNameArg {
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of `name` that are valid; NAME: 0 takes the name away.
    pub length: u32,
    /// NAME: the stream, 0 is the caller's. FIND: out.
    pub id: u64,
    /// See [`is_stream_name`].
    pub name: [u8; STREAM_NAME_MAX],
}

/// Whether a stream can have this name: 1 to 64 bytes, ASCII letters, digits and punctuation, no space; neither a number nor `default`, which
/// stand for streams by themselves.
pub fn is_stream_name(name: &[u8]) -> bool {
    (1..=STREAM_NAME_MAX).contains(&name.len())
        && name.iter().all(u8::is_ascii_graphic)
        && !name.iter().all(u8::is_ascii_digit)
        && name != b"default"
}

/// GROUP_COMMIT: the group gets its place in the order and is committed some time later; without it, it is durable when the call returns.
pub const GROUP_ORDERED: u32 = 1;

/// What the answer to ABORT, and to a COMMIT of a group that was taken back, says in `flags`: why that was, in these bits ...
pub const GROUP_CAUSE: u32 = 0xff;
/// Somebody asked for it.
pub const GROUP_ASKED: u32 = 1;
/// Its last member ended.
pub const GROUP_LEFT: u32 = 2;
/// It was open for as long as BEGIN allowed, which `timeout_ms` tells.
pub const GROUP_OWN_TIME: u32 = 3;
/// It was open for as long as the mount allows, which `timeout_ms` tells.
pub const GROUP_MOUNT_TIME: u32 = 4;
/// Another stream changed the same, and had waited.
pub const GROUP_WAITED: u32 = 5;
/// Another stream changed the same, which waits for nobody.
pub const GROUP_WAITS_FOR_NOBODY: u32 = 6;
/// Stores through a mapping did not fit.
pub const GROUP_STORES_TOO_LARGE: u32 = 7;
/// Stores through a mapping were lost otherwise.
pub const GROUP_STORES_LOST: u32 = 8;
/// The volume was unmounted.
pub const GROUP_UNMOUNTED: u32 = 9;
/// ... and which limit a change exceeded that was refused (EDQUOT), with the limit in `timeout_ms`: bytes of memory,
pub const GROUP_MEMORY: u32 = 1 << 8;
/// bytes of the log,
pub const GROUP_LOG: u32 = 2 << 8;
/// names.
pub const GROUP_NAMES: u32 = 3 << 8;

/// Argument of the calls of atomic groups. COMMIT answers with it also where it fails with ECANCELED or EDQUOT.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GroupArg {
    /// [`VERSION`].
    pub version: u32,
    /// In: [`GROUP_ORDERED`] for COMMIT, else 0. Out: as [`GROUP_CAUSE`] says.
    pub flags: u32,
    /// The group. Nobody can guess it; it is worth nothing to another user.
    pub handle: u64,
    /// In, BEGIN: the group is taken back when it is open for so long, milliseconds; 0: it may stay open. Zero for the others. Out:
    /// what `flags` speaks of.
    pub timeout_ms: u64,
}

/// Argument of the question for a process's stream.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ProcessArg {
    /// [`VERSION`].
    pub version: u32,
    /// In: process or thread id, as the daemon sees it.
    pub pid: u32,
    /// Out.
    pub id: u64,
    /// Out: `STREAM_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

/// Argument of the call that changes options.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TuneArg {
    /// [`VERSION`].
    pub version: u32,
    /// Mount option `commit=`, seconds from 1 to 3600; 0 leaves it.
    pub commit_seconds: u32,
    /// Mount option `dirty=`, bytes from 2^20 to 2^40; 0 leaves it.
    pub dirty_bytes: u64,
    /// `ACCESS_TIMES_*`; 0 leaves it.
    pub access_times: u32,
    /// Zero.
    pub reserved: u32,
}

/// Bytes of text that a resize call carries.
pub const RESIZE_TEXT: usize = 232;

/// Argument of the call that makes a volume larger. It is an answer also where the call fails with EINVAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeArg {
    /// [`VERSION`].
    pub version: u32,
    /// In: zero. Out: bytes of `text` that are valid.
    pub length: u32,
    /// In: the size that is wanted, bytes; 0: that of the device. Out: the volume's size now.
    pub bytes: u64,
    /// Out: its size before, bytes.
    pub before: u64,
    /// Out: why the call was refused, for people (UTF-8).
    pub text: [u8; RESIZE_TEXT],
}

/// Longest freeze, milliseconds.
pub const FREEZE_MOST: u64 = 3_600_000;

/// Argument of the calls that let a volume stand still, and go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FreezeArg {
    /// [`VERSION`].
    pub version: u32,
    /// Zero.
    pub reserved: u32,
    /// Freeze: its end at the latest, milliseconds from 1 to [`FREEZE_MOST`]. Thaw: zero.
    pub milliseconds: u64,
    /// Number of the freeze.
    pub id: u64,
}

/// Times of reading are kept (mount option relatime).
pub const ACCESS_TIMES_KEPT: u32 = 1;
/// Those of directories are not (nodiratime).
pub const ACCESS_TIMES_OF_FILES: u32 = 2;
/// None is (noatime).
pub const ACCESS_TIMES_OFF: u32 = 3;

/// Bytes of text that one status call carries.
pub const STATUS_CHUNK: usize = 8192 - 32;

/// Argument of the status call. The first call (`snapshot` 0) fixes a text and returns its first part, the following
/// ones name that snapshot and an offset, until `offset + length == total`. Snapshots that are no longer kept: ESTALE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatusArg {
    /// [`VERSION`].
    pub version: u32,
    /// Out: bytes of `data` that are valid.
    pub length: u32,
    /// In: 0 takes a snapshot. Out: its number.
    pub snapshot: u64,
    /// In: where in the text this part starts, bytes.
    pub offset: u64,
    /// Out: length of the whole text, bytes.
    pub total: u64,
    /// Out: this part of the text (UTF-8, which may be cut anywhere).
    pub data: [u8; STATUS_CHUNK],
}

/// Argument of the trace call: whole lines, as many as fit. An empty answer means that nothing has happened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceArg {
    /// [`VERSION`].
    pub version: u32,
    /// Out: bytes of `data` that are valid.
    pub length: u32,
    /// In: number of the first event that is wanted, [`TRACE_NEW`] for those to come. Out: what to ask for next.
    pub next: u64,
    /// Out: events that were wanted and are no longer kept.
    pub lost: u64,
    /// Zero.
    pub reserved: u64,
    /// Out: the lines (UTF-8).
    pub data: [u8; STATUS_CHUNK],
}

/// `TraceArg::next`: from now on.
pub const TRACE_NEW: u64 = u64::MAX;
/// Bytes of text per damage.
pub const SCRUB_TEXT: usize = 176;
/// Damages that one call reports at most.
pub const SCRUB_DAMAGES: usize = 16;

/// A structure that cannot be read or does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ScrubDamage {
    /// Block of the volume; 0: no single one.
    pub block: u64,
    /// The inode that it belongs to; 0: the volume's own.
    pub inode: u32,
    /// Bytes of `text` that are valid (UTF-8).
    pub length: u32,
    /// What is wrong, for people.
    pub text: [u8; SCRUB_TEXT],
}

/// Argument of the scrub call, one step of a scrub. The position begins as zeros and is handed back unchanged until `ended` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ScrubArg {
    /// [`VERSION`].
    pub version: u32,
    /// In and out: position.
    pub phase: u32,
    /// In and out: position within the phase.
    pub item: u64,
    /// In and out: position within the item.
    pub part: u64,
    /// In: blocks to look at, at most about so many; the daemon has a limit of its own.
    pub blocks: u32,
    /// Out: 1 when the scrub is complete.
    pub ended: u32,
    /// Out: progress in units of no meaning.
    pub done: u64,
    /// Out: what `done` reaches at the end.
    pub total: u64,
    /// Out: blocks of this step.
    pub visited: u32,
    /// Out: how many of them are newer in memory than on the device.
    pub newer: u32,
    /// Out: damages that are valid.
    pub damages: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: what was found, the first `damages` of it.
    pub damage: [ScrubDamage; SCRUB_DAMAGES],
}

const _: () = assert!(size_of::<StreamArg>() == 16);
const _: () = assert!(size_of::<GroupArg>() == 24);
const _: () = assert!(size_of::<AtomicArg>() == 24 && size_of::<SyncvArg>() == 2056);
const _: () = assert!(size_of::<TraceArg>() == 8192);
const _: () = assert!(size_of::<StatusArg>() == 8192);
const _: () = assert!(size_of::<ProcessArg>() == 24);
const _: () = assert!(size_of::<TuneArg>() == 24);
const _: () = assert!(size_of::<ResizeArg>() == 256);
const _: () = assert!(size_of::<ScrubArg>() == 64 + 16 * 192);
// An ioctl number has 14 bits for the size.
const _: () = assert!(size_of::<StatusArg>() < 1 << 14);

impl StatusArg {
    /// The argument that asks for the part at `offset` of `snapshot`.
    pub fn ask(snapshot: u64, offset: u64) -> Self {
        StatusArg {
            version: VERSION,
            snapshot,
            offset,
            ..StatusArg::new_zeroed()
        }
    }
}

impl ScrubArg {
    /// The argument of a first step.
    pub fn begin(blocks: u32) -> Self {
        ScrubArg {
            version: VERSION,
            blocks,
            ..ScrubArg::new_zeroed()
        }
    }
}
