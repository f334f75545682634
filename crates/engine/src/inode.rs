//! Inodes in memory: the current state, and the layers that transactions have put over the image.
use crate::atomic::Draft;
use crate::noted::NotedImage;
use crate::ranges::{PlaceMap, RangeSet};
use crate::record::XattrSet;
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::txn::{Name, Phase, Txn};
use crate::types::{Ino, Result, StreamId};
use ccfs_device::AlignedBuf;
use ccfs_ext4::inode::{FLAG_DIRSYNC, FLAG_SYNC, S_IFDIR, S_IFLNK, S_IFREG, file_type};
use ccfs_image::{FastMap, InodeAttr, Lblk, at_hand, may_wait, shard_of, waits};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Memory of an inode's layer besides its pages, with the names and tables that go with it, roughly, bytes; counts against the dirty
/// limit. Measured: 1.8 KB for each of many small new files.
pub(crate) const LAYER_BYTES: u64 = 2048;

/// A page (file system block) that a transaction wrote: whole content, and which bytes of it are new.
#[derive(Clone)]
pub struct Page {
    pub buf: Arc<AlignedBuf>,
    /// Bytes `[start, end)` that the transaction changed.
    pub start: u32,
    pub end: u32,
    /// What it lies over when it was first written by this transaction.
    pub over: Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Nothing: needs a block (promised).
    Hole,
    /// A block; `promised`: another one is promised, so that it may be remapped.
    Block { promised: bool },
}

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
    /// Some change of content has no blocks of structure promised: it must not cut extents.
    pub tight: bool,
    /// What it writes goes to new blocks, as far as some are promised.
    pub remap: bool,
    /// Allocated here without content (fallocate); blocks promised.
    pub prealloc: RangeSet,
    pub pages: BTreeMap<Lblk, Page>,
    pub xattrs: Option<Arc<XattrSet>>,
    pub target: Option<Arc<[u8]>>,
    /// Blocks of structure promised for what is said here, as far as that is known.
    pub structure: u64,
    /// The blocks that were written last without a gap, and how many of `structure` are for them.
    pub last_run: (Lblk, Lblk, u64),
    /// Where commit put pages and preallocated blocks.
    pub placed: PlaceMap,
}

impl LayerBody {
    /// First block above `at` that this layer allocates.
    pub fn next_allocated(&self, at: Lblk) -> Option<Lblk> {
        let page = self.pages.range(at + 1..).next().map(|(l, _)| *l);
        page.into_iter().chain(self.prealloc.next_start(at)).min()
    }
}

/// A transaction's changes to one inode. Immutable once the transaction is sealed and quiet, but for `placed`.
pub struct FileLayer {
    pub serial: u64,
    pub body: RwLock<LayerBody>,
}

/// A name changed by a transaction that is not applied.
pub struct Overlay {
    pub value: Option<(Ino, u8)>,
    pub txn: Arc<Txn>,
}

/// What streams have changed in a directory.
#[derive(Default)]
pub struct DirState {
    pub overlay: HashMap<Name, Overlay>,
    /// The overlay's names that exist, in readdir order.
    pub present: BTreeSet<(u64, Name)>,
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

impl DirState {
    /// Notes that `txn` changed entries or fields.
    pub fn changed_by(&mut self, txn: &Arc<Txn>) {
        note(&mut self.changers, txn);
    }

    /// Notes that `txn` changed mode, owner or ACL.
    pub fn rights_changed_by(&mut self, txn: &Arc<Txn>) {
        note(&mut self.attr_changers, txn);
    }
}

fn note(list: &mut Vec<Arc<Txn>>, txn: &Arc<Txn>) {
    if !list.iter().any(|t| t.serial == txn.serial) {
        list.retain(|t| t.phase() != Phase::Applied);
        list.push(txn.clone());
    }
}

pub struct State {
    pub attr: InodeAttr,
    /// Last transaction that touched it and is not applied (C5). For directories: the one that created it.
    pub last: Option<Arc<Txn>>,
    /// Oldest first.
    pub layers: Vec<Arc<FileLayer>>,
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
    seq: u64,
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

impl State {
    pub fn is_dir(&self) -> bool {
        file_type(self.attr.mode) == S_IFDIR
    }
    pub fn is_file(&self) -> bool {
        file_type(self.attr.mode) == S_IFREG
    }
    pub fn is_symlink(&self) -> bool {
        file_type(self.attr.mode) == S_IFLNK
    }
    /// The directory's changes, made when first needed.
    pub fn dir(&mut self) -> &mut DirState {
        self.dir.get_or_insert_default()
    }
    /// Pages that the kernel writes back are to be dropped: they hold what a group that is taken back had written.
    pub fn is_being_dropped(&self) -> bool {
        let condemned = |t: &Arc<Txn>| t.group.as_ref().is_some_and(|g| g.is_condemned());
        // Content of a file that is open O_ATOMIC is no group's.
        self.draft.is_none() && (self.stale_pages > 0 || self.last.as_ref().is_some_and(condemned))
    }
    /// Nothing here that the image does not say.
    fn clean(&self) -> bool {
        !self.dead
            && self.stale_pages == 0
            && self.reborn == 0
            && self.draft.is_none()
            && self.layers.is_empty()
            && self.last.is_none()
            && self
                .dir
                .as_ref()
                .is_none_or(|d| d.overlay.is_empty() && d.changers.is_empty())
    }
}

pub struct Inode {
    pub ino: Ino,
    /// A directory in which it has or had a name, 0 if unknown. Only for showing paths.
    pub parent_hint: AtomicU32,
    /// Bytes of it were read or written from outside, so whoever did may keep them in a cache. A hint.
    pub seen: AtomicBool,
    /// The kernel has written back what a shared mapping had stored.
    pub stored_to: AtomicBool,
    /// Up to where the kernel may have read it since it gave its pages back, bytes.
    pub read_end: AtomicU64,
    /// Bytes `[from, to)` of the page that the end of file was in, which the file got when its size was set: what the kernel has in that page
    /// there is not content. To the end of the page; 0 where there are none.
    pub void_from: AtomicU64,
    pub void_to: AtomicU64,
    pub state: RwLock<State>,
}

/// Locks are held for microseconds, but by who reads from the device meanwhile.
const LOCK_WAIT: Duration = Duration::from_millis(1);

impl Inode {
    /// The state, to look at. Errors: EAGAIN, this thread waits for no device, and the lock's holder seems to.
    pub fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        if !waits() {
            match self.state.try_read_for(LOCK_WAIT) {
                Some(state) => return Ok(state),
                None => may_wait()?,
            }
        }
        Ok(self.state.read())
    }

    /// The state, to change it. Errors: as for `read`.
    pub fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        if !waits() {
            match self.state.try_write_for(LOCK_WAIT) {
                Some(state) => return Ok(state),
                None => may_wait()?,
            }
        }
        Ok(self.state.write())
    }

    /// The state, to change it. `None`: this thread waits for no device, and somebody holds it.
    pub fn write_if_free(&self) -> Option<RwLockWriteGuard<'_, State>> {
        match waits() {
            true => Some(self.state.write()),
            false => self.state.try_write_for(LOCK_WAIT),
        }
    }

    pub fn new(ino: Ino, attr: InodeAttr) -> Arc<Inode> {
        Arc::new(Inode {
            ino,
            parent_hint: AtomicU32::new(0),
            seen: AtomicBool::new(false),
            stored_to: AtomicBool::new(false),
            read_end: AtomicU64::new(0),
            void_from: AtomicU64::new(0),
            void_to: AtomicU64::new(0),
            state: RwLock::new(State {
                attr,
                last: None,
                layers: Vec::new(),
                xattrs: None,
                target: None,
                dir: None,
                last_writer: crate::types::DEFAULT_STREAM,
                dead: false,
                parent: None,
                seq: 0,
                stale_pages: 0,
                reborn: 0,
                draft: None,
                gaps: None,
            }),
        })
    }
}

const SHARDS: usize = 64;
/// Inodes kept in memory per shard before clean ones are dropped.
const SHARD_INODES_MAX: usize = 1024;

/// Inodes in memory. One that has layers, or that somebody holds, stays; the others can go at any time, but for who wrote last:
/// pages that are mapped can be written back later.
pub struct Inodes {
    shards: Vec<Padded<Shard>>,
    refs: Arc<References>,
    /// Where the next inode begins to number its operations.
    epochs: AtomicU64,
    /// One of those that were in memory has FLAG_SYNC or FLAG_DIRSYNC.
    synchronous: AtomicBool,
}

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(Mutex<T>);

/// Numbers that an inode takes at once.
const EPOCH: u64 = 1 << 24;

#[derive(Default)]
struct Shard {
    map: FastMap<Ino, Arc<Inode>>,
    /// Size at which the next search for what can go is worth its time.
    limit: usize,
    /// Last writers (not the default stream) of inodes that were dropped and that the kernel may still know.
    writers: FastMap<Ino, StreamId>,
}

impl Shard {
    /// Puts an inode as the image has it.
    fn load(&mut self, ino: Ino, attr: InodeAttr, refs: &References) -> Arc<Inode> {
        let inode = Inode::new(ino, attr);
        if let Some(writer) = self.writers.remove(&ino) {
            inode.state.write().last_writer = writer;
        }
        if refs.any(ino) {
            // It was in memory before, and may have been read then.
            inode.note_read(0, u64::MAX);
        }
        self.insert(inode.clone(), refs);
        inode
    }

    fn insert(&mut self, inode: Arc<Inode>, refs: &References) {
        self.writers.remove(&inode.ino);
        if self.map.len() >= self.limit.max(SHARD_INODES_MAX) {
            self.shrink(refs);
        }
        self.map.insert(inode.ino, inode);
    }

    /// Drops about half of what can go.
    fn shrink(&mut self, refs: &References) {
        let mut keep = false;
        let writers = &mut self.writers;
        self.map.retain(|ino, inode| {
            let idle = match inode.state.try_read() {
                Some(st) if Arc::strong_count(inode) == 1 && st.clean() => Some(st.last_writer),
                _ => None,
            };
            keep = !keep;
            match idle {
                Some(writer) if !keep => {
                    if writer != crate::types::DEFAULT_STREAM && refs.any(*ino) {
                        writers.insert(*ino, writer);
                    }
                    false
                }
                _ => true,
            }
        });
        self.limit = self.map.len() * 2;
    }
}

impl Inodes {
    pub fn new(refs: Arc<References>) -> Self {
        Inodes {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
            refs,
            epochs: AtomicU64::new(EPOCH),
            synchronous: AtomicBool::new(false),
        }
    }

    /// An inode has these flags.
    pub fn note_flags(&self, flags: u32) {
        if flags & (FLAG_SYNC | FLAG_DIRSYNC) != 0 {
            self.synchronous.store(true, Ordering::Relaxed);
        }
    }

    /// Flags for synchronous changes were met so far.
    pub fn some_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::Relaxed)
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[shard_of(ino, SHARDS)].0
    }

    /// A number for an operation on a directory whose lock the caller holds: above those of all earlier ones on it, also of ones
    /// before it left memory. Nothing is shared but once in `EPOCH` operations.
    pub fn next_seq(&self, st: &mut State) -> u64 {
        if st.seq.is_multiple_of(EPOCH) {
            st.seq = self.epochs.fetch_add(EPOCH, Ordering::Relaxed);
        }
        st.seq += 1;
        st.seq
    }

    /// The inode, from memory or the image. Errors: ENOENT for a free or impossible number.
    pub fn get(&self, image: &NotedImage, ino: Ino) -> Result<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        let mut readable = true;
        let attr = loop {
            if let Some(inode) = shard.map.get(&ino) {
                return Ok(inode.clone());
            }
            // Read under the shard's lock: an inode that is not in memory does not change in the image. The device is waited for without it,
            // since other inodes have the same lock.
            match readable {
                true => match at_hand(|| image.read_attr(ino)) {
                    Some(attr) => break attr?,
                    None => {
                        drop(shard);
                        may_wait()?;
                        readable = image.read_attr(ino).is_ok();
                        shard = self.shard(ino).lock();
                    }
                },
                false => break image.read_attr(ino)?,
            }
        };
        let geo = image.geometry();
        // Block numbers are computed from sizes everywhere: an impossible one stays outside (C10).
        if attr.size > geo.max_file_size_extents.max(geo.max_file_size_blockmap) {
            return image.corrupt(
                ino,
                format!("inode {ino} has a size of {} bytes", attr.size),
            );
        }
        self.note_flags(attr.flags);
        Ok(shard.load(ino, attr, &self.refs))
    }

    /// In memory or not at all.
    pub fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.shard(ino).lock().map.get(&ino).cloned()
    }

    pub fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).lock().insert(inode, &self.refs);
    }

    pub fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        shard.map.remove(&ino);
        shard.writers.remove(&ino);
    }

    /// The kernel has forgotten the inode: no page of it is left to be written back.
    pub fn forget_writer(&self, ino: Ino) {
        self.shard(ino).lock().writers.remove(&ino);
    }
}

/// Counts of the kernel's references.
pub struct References {
    shards: Vec<Padded<Counts>>,
}

/// The kernel can know every inode of a volume, so a count is small; one that does not fit says `u32::MAX`, and is in `large`.
#[derive(Default)]
struct Counts {
    small: FastMap<Ino, u32>,
    large: FastMap<Ino, u64>,
}

impl Counts {
    fn get(&self, ino: Ino) -> u64 {
        match self.small.get(&ino) {
            Some(&u32::MAX) => self.large.get(&ino).copied().unwrap_or_default(),
            Some(&small) => u64::from(small),
            None => 0,
        }
    }

    fn set(&mut self, ino: Ino, count: u64) {
        if self.small.get(&ino) == Some(&u32::MAX) {
            self.large.remove(&ino);
        }
        if count == 0 {
            self.small.remove(&ino);
            return;
        }
        let small = u32::try_from(count).unwrap_or(u32::MAX);
        self.small.insert(ino, small);
        if small == u32::MAX {
            self.large.insert(ino, count);
        }
    }
}

impl References {
    pub fn new() -> Self {
        References {
            shards: (0..SHARDS).map(|_| Padded::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Counts> {
        &self.shards[shard_of(ino, SHARDS)].0
    }

    pub fn add(&self, ino: Ino, count: u64) {
        let mut shard = self.shard(ino).lock();
        let have = shard.get(ino);
        shard.set(ino, have.saturating_add(count));
    }

    /// True when none is left.
    pub fn take_away(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let left = shard.get(ino).saturating_sub(count);
        shard.set(ino, left);
        left == 0
    }

    pub fn any(&self, ino: Ino) -> bool {
        self.shard(ino).lock().small.contains_key(&ino)
    }

    /// At unmount the kernel has none.
    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.0.lock() = Counts::default();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn references_of_any_number_are_counted() {
        let refs = References::new();
        let most = u64::from(u32::MAX);
        for at in [1, most - 2, most - 1, most, most + 1, 3 * most] {
            refs.add(7, 1);
            refs.add(7, at - 1);
            assert!(!refs.take_away(7, 0) && refs.any(7), "{at}");
            refs.add(7, 2);
            assert!(!refs.take_away(7, 3) || at == 1, "{at}");
            assert_eq!(refs.any(7), at > 1);
            assert!(refs.take_away(7, at - 1) && !refs.any(7), "{at}");
            assert!(refs.take_away(7, 1) && !refs.any(7));
        }
        refs.add(8, 2 * most);
        assert!(!refs.take_away(8, 2 * most - 1) && refs.any(8));
        refs.clear();
        assert!(!refs.any(8));
    }

    #[test]
    fn the_last_writer_of_a_dropped_inode_is_kept_while_the_kernel_knows_it() {
        let (refs, writer) = (References::new(), StreamId(77));
        let mut shard = Shard::default();
        let count = SHARD_INODES_MAX as Ino;
        for ino in 1..=count {
            // Every third one is not known to the kernel.
            if ino % 3 != 0 {
                refs.add(ino, 1);
            }
            let inode = shard.load(ino, InodeAttr::default(), &refs);
            inode.state.write().last_writer = writer;
        }
        assert!(shard.writers.is_empty());
        shard.load(count + 1, InodeAttr::default(), &refs);
        let dropped: Vec<Ino> = (1..=count).filter(|i| !shard.map.contains_key(i)).collect();
        assert!(dropped.len() as Ino >= count / 3);
        let known = dropped.iter().filter(|ino| refs.any(**ino)).count();
        assert!(known > 0 && known < dropped.len());
        assert_eq!(shard.writers.len(), known);
        for ino in dropped {
            let inode = shard.load(ino, InodeAttr::default(), &refs);
            let expected = if refs.any(ino) {
                writer
            } else {
                crate::types::DEFAULT_STREAM
            };
            assert_eq!(inode.state.read().last_writer, expected, "{ino}");
        }
    }
}
