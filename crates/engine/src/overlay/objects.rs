//! The objects in memory, which refer to each other: transactions with what they change, inodes with the layers over them, groups, drafts.
//!
//! Only what they consist of; what they do is in `txn`, `inode`, `group`, `draft` and `undo`.
use crate::base::block_map::BlockMap;
use crate::base::cause::{Cause, Rule, Syncer};
use crate::base::fate::{Fate, Reason};
use crate::base::name::NameMap;
use crate::base::ranges::{PlaceMap, RangeSet};
use crate::base::record::{DirField, DirValue, XattrSet};
use crate::base::sync::{Condvar, Mutex, RwLock};
use crate::base::types::*;
use crate::overlay::names::{Change, Names};
use ccfs_device::{SharedBuf, Ticket};
use ccfs_image::{Apart, FastMap, InodeAttr, Lblk};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// Unpublished content of a file that is open O_ATOMIC.
pub struct Draft {
    /// The attributes as they are without it.
    pub base: InodeAttr,
    /// Holds what is reserved for its operations, and counts; it is in no stream, and never sealed.
    pub txn: Arc<Txn>,
    pub layer: Arc<FileLayer>,
    pub changed: bool,
    /// Who opened it: it is in his share.
    pub uid: u32,
    /// Why a mapped page could not be taken in. The kernel holds that page for written, so the rest must never become durable.
    pub lost: Option<i32>,
}

/// What makes a transaction a group.
pub struct Group {
    pub id: StreamId,
    /// Whose share it takes.
    pub uid: u32,
    pub fate: Arc<Fate>,
    /// Why it cannot be committed: a page of a mapping that belongs to it was dropped. 0: it can.
    pub(super) spoilt: AtomicI32,
    /// It is taken back when it is open so long, for that reason.
    pub deadline: Option<(Instant, Reason)>,
    pub undo: Mutex<Undo>,
    pub(super) ended: Mutex<Ended>,
    pub(super) end: Condvar,
}

/// Whether a group has ended, and what is to be done then.
#[derive(Default)]
pub struct Ended {
    pub(super) has: bool,
    /// Inodes that nobody knows any more, which could not be freed while it was open.
    pub(super) nameless: HashMap<Ino, Arc<Inode>>,
}

/// A page (file system block) that a transaction wrote: whole content, and which bytes of it are new.
#[derive(Clone)]
pub struct Page {
    pub buf: SharedBuf,
    /// Bytes `[start, end)` that the transaction changed.
    pub start: u32,
    pub end: u32,
    /// What it lies over when it was first written by this transaction.
    pub over: Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Nothing: needs a block (reserved).
    Hole,
    /// A block; `reserved`: another one is reserved, so that it may be remapped.
    Block { reserved: bool },
}

/// Pages of a file, by logical block.
pub type Pages = BlockMap<Page, 4>;

/// What one transaction changes in one inode.
#[derive(Default)]
pub struct LayerBody {
    /// The inode is new in this transaction (its parent, for directories).
    pub created: Option<Ino>,
    /// The inode is freed in this transaction.
    pub dead: bool,
    /// Attributes at the end of its last operation. `None`: untouched (directories say theirs by field).
    pub attr: Option<InodeAttr>,
    /// Older content of these blocks is gone.
    pub holes: RangeSet,
    /// Some change of content has no blocks of metadata reserved: it must not cut extents.
    pub no_split: bool,
    /// What it writes goes to new blocks, as far as some are reserved.
    pub remap: bool,
    /// Allocated here without content (fallocate); blocks reserved.
    pub prealloc: RangeSet,
    pub pages: Pages,
    pub xattrs: Option<Arc<XattrSet>>,
    pub target: Option<Arc<[u8]>>,
    /// Blocks of metadata reserved for what is said here, as far as that is known.
    pub metadata: u64,
    /// The blocks that were written last without a gap, and how many blocks of `metadata` are for them.
    pub last_run: (Lblk, Lblk, u64),
    /// Where commit put pages and preallocated blocks.
    pub placed: PlaceMap,
}

/// A transaction's changes to one inode. Immutable once the transaction is sealed and quiet, but for `placed`.
pub struct FileLayer {
    pub serial: u64,
    /// Its place among the transaction's files: number in a part, times so many, and the part. The number may change while the part's lock
    /// is not held.
    pub(super) at: AtomicU32,
    pub body: RwLock<LayerBody>,
}

/// A transaction, as a thread that is in it hands it on to what it changes there. Its owners are counted for that thread alone: all threads of a
/// stream have the transaction, and would change one count at every turn.
#[derive(Clone)]
#[allow(clippy::redundant_allocation)] // for its count
pub struct TxnRef(Arc<Arc<Txn>>);

impl TxnRef {
    pub fn new(txn: Arc<Txn>) -> TxnRef {
        TxnRef(Arc::new(txn))
    }
}

impl Deref for TxnRef {
    type Target = Arc<Txn>;
    fn deref(&self) -> &Arc<Txn> {
        &self.0
    }
}

impl AsRef<Txn> for TxnRef {
    fn as_ref(&self) -> &Txn {
        self
    }
}

/// A name changed by a transaction that is not applied.
pub struct Overlay {
    pub value: Option<(Ino, u8)>,
    pub txn: TxnRef,
}

impl Change for Overlay {
    fn exists(&self) -> bool {
        self.value.is_some()
    }
}

/// What streams have changed in a directory.
#[derive(Default)]
pub struct DirState {
    pub overlay: Names<Overlay>,
    /// Transactions with changes of entries, times or flags that are not applied (C5: they come before the directory's removal;
    /// C3: fsync of a directory).
    pub changers: Vec<Arc<Txn>>,
    /// Last change of an xattr.
    pub xattr_last: Option<Arc<Txn>>,
    /// Transactions that changed mode, owner or ACL and are not applied (C5).
    pub attr_changers: Vec<Arc<Txn>>,
    /// The last one that gave it another parent and is not applied: who moves a directory below it comes after that (C5).
    pub moved: Option<Arc<Txn>>,
}

pub struct State {
    pub attr: InodeAttr,
    /// Last transaction that touched it and is not applied (C5). For directories: the one that created it.
    pub last: Option<TxnRef>,
    /// Oldest first.
    pub layers: SmallVec<[Arc<FileLayer>; 1]>,
    /// Differs from the image.
    pub xattrs: Option<Arc<XattrSet>>,
    pub target: Option<Arc<[u8]>>,
    pub dir: Option<Box<DirState>>,
    pub last_writer: StreamId,
    /// Freed: every further operation fails with ENOENT.
    pub dead: bool,
    /// A directory's current parent, if known.
    pub parent: Option<Ino>,
    /// Of its last operation that set a field; 0: none since it is in memory.
    pub seq: u64,
    /// A group that had changed it was taken back, and the kernel has not dropped its pages yet: what it writes back has bytes of the
    /// group in it, and is dropped.
    pub stale_pages: u32,
    /// A directory that came back when a group was taken back: the kernel, which holds it for dead, is shown a generation that is so much
    /// larger. What is on disk stays: checksums of the directory's blocks contain it.
    pub reborn: u32,
    /// It is open O_ATOMIC: its content that is not published.
    pub draft: Option<Box<Draft>>,
    /// Of an append-only file: bytes below its end that parts of an append have not filled yet.
    pub gaps: Option<Box<RangeSet>>,
}

pub struct Inode {
    pub ino: Ino,
    /// A directory in which it has or had a name, 0 if unknown. Only for showing paths.
    pub parent_hint: AtomicU32,
    /// Bytes of it were read or written from outside, so whoever did may keep them in a cache. A hint.
    pub seen: AtomicBool,
    /// Who has it open makes direct calls, and has no cache of his own.
    pub direct: AtomicBool,
    /// The kernel has written back what a shared mapping had stored.
    pub stored_to: AtomicBool,
    /// The image has no default ACL of it, and none has come since: every new file asks for its directory's. (`State::xattrs` comes first.)
    pub no_default_acl: AtomicBool,
    /// Up to where the kernel may have read it since it gave its pages back, bytes.
    pub read_end: AtomicU64,
    /// Bytes `[from, to)` of the page that the end of file was in, which the file got when its size was set: what the kernel has in that page
    /// there is not content. To the end of the page; 0 where there are none.
    pub void_from: AtomicU64,
    pub void_to: AtomicU64,
    /// So many wait for the state.
    pub(super) wanted: AtomicU32,
    pub state: RwLock<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    Running = 0,
    Sealed = 1,
    Ordered = 2,
    Durable = 3,
    Applied = 4,
    Failed = 5,
}

/// A name's value at the end of a transaction.
#[derive(Clone, Debug)]
pub struct EntryChange {
    /// `None`: the name is gone.
    pub value: Option<(Ino, u8)>,
    /// The name did not exist before this transaction: removing it again leaves nothing to say.
    pub fresh: bool,
    /// It may take room in the directory.
    pub added: bool,
}

/// The names that a transaction changes in one directory.
#[derive(Default)]
pub struct NameChanges {
    pub changes: NameMap<EntryChange>,
    /// How many of them are `added`.
    pub added: u64,
    /// Blocks of metadata reserved for those.
    pub metadata: u64,
}

/// Blocks of the allocator that a transaction has to do with.
#[derive(Default)]
pub struct Blocks {
    /// Reserved for its data, and for metadata: released or used up by commit and apply.
    pub data: AtomicU64,
    pub metadata: AtomicU64,
    /// It frees so many: for statfs until they really are free.
    pub freed: AtomicU64,
}

/// An inode, and what a transaction changes in it.
pub type ChangedFile = (Arc<Inode>, Arc<FileLayer>);

/// What a transaction changes in some directories, and times of access. Emptied when it was applied.
#[derive(Default)]
pub struct Body {
    pub dirs: FastMap<Ino, Arc<Inode>>,
    pub dir_fields: FastMap<(Ino, DirField), DirValue>,
    pub entries: FastMap<Ino, NameChanges>,
    pub parents: FastMap<Ino, Ino>,
    pub atimes: FastMap<Ino, (i64, u32)>,
}

/// What a commit has made of a transaction.
#[derive(Default)]
pub struct Written {
    /// The encoded records, from commit to apply.
    pub payload: Vec<u8>,
    /// Whole contents of blocks that went through the log, by physical block.
    pub logged_pages: Vec<(u64, SharedBuf)>,
}

/// What an operation adds to its transaction, or removes, all at once when it ends. Until then what is expected of it stands for it, which is as
/// much or more but in rare cases.
#[derive(Default)]
pub struct Sums {
    /// Bytes of pages.
    pub dirty: Cell<i64>,
    /// Memory that its user is answerable for, bytes: these pages, and layers.
    pub held: Cell<i64>,
    pub log_only: Cell<i64>,
    pub record: Cell<i64>,
    pub avoided: Cell<i64>,
    pub fields: Cell<i64>,
    /// Of [`Blocks`].
    pub data: Cell<i64>,
    pub metadata: Cell<i64>,
    pub freed: Cell<i64>,
}

/// Another transaction that something has to come after, and why (C5).
#[derive(Clone)]
pub struct Dependency {
    pub txn: Arc<Txn>,
    pub rule: Rule,
    /// The inode that both touched; 0 where it is not about one.
    pub inode: Ino,
}

/// What a transaction comes after, each other transaction once. What is applied is left out when there are many: a group may live for long.
#[derive(Default)]
pub struct Dependencies {
    pub(super) all: Vec<Dependency>,
    pub(super) serials: HashSet<u64>,
    /// How many there may be before applied ones are looked for.
    pub(super) most: usize,
}

/// How long the steps of a commit took; for those who ask why a sync was slow.
#[derive(Clone, Copy, Default)]
pub struct Steps {
    /// When the commit of it began.
    pub began: Option<Instant>,
    /// Its blocks were placed, and data that had to be durable first was.
    pub built: Duration,
    /// It got its room in the log.
    pub roomy: Duration,
    /// Bytes of its frames, and of data written straight to its place.
    pub logged_bytes: u64,
    pub direct_bytes: u64,
}

/// Users, and the dirty bytes that operations of theirs have added. Of very many users the others count for the last one.
#[derive(Default)]
pub struct Users(pub Vec<(u32, i64)>);

/// Bookkeeping of the commit.
#[derive(Default)]
pub struct Progress {
    /// Of its operations, as far as it is not in its parts, until it is applied.
    pub users: Users,
    pub deps: Dependencies,
    /// Somebody commits it, for this reason.
    pub claimed: Option<Cause>,
    pub steps: Steps,
    /// Commit id, from its order point on.
    pub id: u64,
    /// Log (and small data) writes in flight; whoever waits for durability takes it.
    pub ticket: Option<Ticket>,
    pub written: bool,
    /// A barrier closed it: order is wanted, and nobody waits for it.
    pub barrier: Option<Syncer>,
    /// In a bundle (`bundle.rs`): the first member, for the others, and those for the first, until they are durable.
    pub leader: Option<Arc<Txn>>,
    pub followers: Vec<Arc<Txn>>,
    /// Number of its first record in the bundle's payload, and whether no member follows.
    pub first_record: u64,
    pub last: bool,
}

/// Of a transaction. A stream's threads are few.
pub(super) const PARTS: usize = 4;

/// What the operations of some threads have to do with a transaction (`parts`).
#[derive(Default)]
pub struct Part(pub(super) Apart<Cells>);

#[derive(Default)]
pub(super) struct Cells {
    pub inside: Mutex<Inside>,
    /// Accepted operations that have not ended. Changed under the lock.
    pub active: AtomicU32,
}

#[derive(Default)]
pub(super) struct Inside {
    /// What those that have ended have added. What is held is of user `uid`.
    pub sums: Sums,
    pub uid: u32,
    /// How many were accepted, ever.
    pub operations: u64,
    /// Bytes of the log that those which have not ended may need at most.
    pub expected: i64,
    /// No more is expected and added here, bytes of the log, without a look at the other parts.
    pub bound: i64,
    /// Bytes of pages that the others have not been told of.
    pub untold: i64,
    /// The inodes that they have made layers of, until the commit. Each layer knows its place.
    pub files: Vec<ChangedFile>,
}

pub struct Txn {
    /// Unique in this mount, rising.
    pub serial: u64,
    pub stream: StreamId,
    pub started: Instant,
    pub(super) phase: AtomicU8,
    /// It was sealed because the log takes no larger one.
    pub full: AtomicBool,
    /// The watermark has passed it.
    pub(super) covered: AtomicBool,
    /// It is an atomic group: `stream` is where it gets its place, when it is committed.
    pub group: Option<Box<Group>>,
    pub counts: Counts,
    pub(super) parts: [Part; PARTS],
    /// Bytes of pages that its parts have told of.
    pub(super) told_bytes: AtomicI64,
    /// The inodes that it has layers of, from commit on, by number: those that were made together lie together in memory. Emptied when it was
    /// applied.
    pub files: Mutex<Arc<Vec<(Ino, ChangedFile)>>>,
    /// By inode number: threads that work in different directories do not wait for each other.
    pub(super) bodies: [Apart<Mutex<Body>>; PARTS],
    pub written: Mutex<Written>,
    pub(super) progress: Apart<Mutex<Progress>>,
    pub(super) changed: Condvar,
}

/// What the operations of a transaction have added up, as far as it is not in its parts: all of it when none of them runs any more.
#[derive(Default)]
pub struct Counts {
    /// Bytes of pages held.
    pub dirty_bytes: AtomicU64,
    /// Bytes that must go through the log, because no block is reserved for them.
    pub log_only_bytes: AtomicU64,
    /// Estimate of record bytes.
    pub record_bytes: AtomicU64,
    /// Data of its operations that need not be written, because later ones of it overwrote or removed them.
    pub avoided_bytes: AtomicU64,
    /// Fields of directories that it sets.
    pub fields: AtomicU64,
    pub blocks: Blocks,
}

/// What a name was before the group: its value, and the transaction that gave it, if that was not applied.
pub struct Before {
    pub value: Option<(Ino, u8)>,
    pub txn: Option<TxnRef>,
}

/// What the group replaced and no layer holds.
#[derive(Default)]
pub struct Undo {
    pub last: HashMap<Ino, Option<TxnRef>>,
    pub xattr_last: HashMap<Ino, Option<Arc<Txn>>>,
    pub writers: HashMap<Ino, StreamId>,
    /// A directory's parent, and the transaction that moved it there, if that was not applied.
    pub parents: HashMap<Ino, (Option<Ino>, Option<Arc<Txn>>)>,
    pub links: HashMap<Ino, u32>,
    pub names: HashMap<Ino, NameMap<Before>>,
}
