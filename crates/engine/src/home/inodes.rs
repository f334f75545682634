//! The inodes in memory, and which of them the kernel knows.
use crate::base::sync::Mutex;
use crate::base::types::*;
use crate::home::Home;
use crate::overlay::objects::{Inode, State};
use ccfs_ext4::Error;
use ccfs_ext4::inode::{FLAG_DIRSYNC, FLAG_SYNC};
use ccfs_image::{Apart, FastMap, InodeAttr, Wait, shard_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARDS: usize = 64;
/// Inodes kept in memory per shard before clean ones are dropped.
const SHARD_INODES_MAX: usize = 1024;

/// Inodes in memory. One that has layers, or that somebody holds, stays; the others can go at any time, but for who wrote last:
/// pages that are mapped can be written back later.
pub struct Inodes {
    shards: Vec<Apart<Mutex<Shard>>>,
    refs: Arc<References>,
    /// Where the next inode begins to number its operations.
    epochs: AtomicU64,
    /// One of those that were in memory has FLAG_SYNC or FLAG_DIRSYNC.
    synchronous: AtomicBool,
}

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
                    if writer != crate::base::types::DEFAULT_STREAM && refs.any(*ino) {
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
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            refs,
            epochs: AtomicU64::new(EPOCH),
            synchronous: AtomicBool::new(false),
        }
    }

    /// A user of the volume may ask for it by its number.
    pub fn is_referred_to(&self, ino: Ino) -> bool {
        self.refs.any(ino)
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
        &self.shards[shard_of(ino, SHARDS)]
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
    shards: Vec<Apart<Mutex<Counts>>>,
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
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Counts> {
        &self.shards[shard_of(ino, SHARDS)]
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

    pub fn count(&self, ino: Ino) -> u64 {
        self.shard(ino).lock().get(ino)
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

impl Home {
    /// The inode, from memory or the image. Errors: ENOENT for a free or impossible number; `WouldBlock`.
    pub(crate) fn inode(&self, ino: Ino, wait: Wait) -> Result<Arc<Inode>> {
        let mut shard = self.inodes.shard(ino).lock();
        // Read under the shard's lock: an inode that is not in memory does not change in the image. The device is waited for without it,
        // since other inodes have the same lock.
        let mut under_lock = Wait::Never;
        let attr = loop {
            if let Some(inode) = shard.map.get(&ino) {
                return Ok(inode.clone());
            }
            match self.image_for(under_lock).read_attr(ino) {
                Err(Error::WouldBlock) => {
                    drop(shard);
                    wait.check()?;
                    if self.image.read_attr(ino).is_err() {
                        under_lock = Wait::Allowed;
                    }
                    shard = self.inodes.shard(ino).lock();
                }
                attr => break attr?,
            }
        };
        let geo = self.image.geometry();
        // Block numbers are computed from sizes everywhere: an impossible one stays outside (C10).
        if attr.size > geo.max_file_size_extents.max(geo.max_file_size_blockmap) {
            return self.image.corrupt(
                ino,
                format!("inode {ino} has a size of {} bytes", attr.size),
            );
        }
        self.inodes.note_flags(attr.flags);
        Ok(shard.load(ino, attr, &self.refs))
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
                crate::base::types::DEFAULT_STREAM
            };
            assert_eq!(inode.state.read().last_writer, expected, "{ino}");
        }
    }
}
