//! Inodes in memory: the current state, and the layers that transactions have put over the image.
use crate::base::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::base::types::*;
use crate::overlay::objects::{DirState, Inode, LayerBody, Phase, State, Txn, TxnRef};
use ccfs_ext4::Error;
use ccfs_ext4::inode::{S_IFDIR, S_IFLNK, S_IFREG, file_type};
use ccfs_image::{InodeAttr, Lblk, Wait};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Memory of an inode's layer besides its pages, with the names and tables that go with it, roughly, bytes; counts against the dirty
/// limit. Measured: 1.8 KB for each of many small new files.
pub(crate) const LAYER_BYTES: u64 = 2048;

impl LayerBody {
    /// First block above `at` that this layer allocates.
    pub fn next_allocated(&self, at: Lblk) -> Option<Lblk> {
        let page = self.pages.range(at + 1..).next().map(|(l, _)| l);
        page.into_iter().chain(self.prealloc.next_start(at)).min()
    }
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
        let condemned = |t: &TxnRef| t.group.as_ref().is_some_and(|g| g.is_condemned());
        // Content of a file that is open O_ATOMIC is no group's.
        self.draft.is_none() && (self.stale_pages > 0 || self.last.as_ref().is_some_and(condemned))
    }
    /// Nothing here that the image does not say.
    pub fn clean(&self) -> bool {
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
    /// A transaction that is not applied sets attributes of it.
    pub fn has_uncommitted_attributes(&self) -> bool {
        let changers = self.dir.as_ref().is_some_and(|d| !d.changers.is_empty());
        self.last.is_some() || changers
    }
}

/// Its creation is not applied: the image knows nothing of it.
pub(crate) fn unborn(st: &State) -> bool {
    st.layers
        .first()
        .is_some_and(|l| l.body.read().created.is_some())
}

/// Locks are held for microseconds, but by who reads from the device meanwhile.
const LOCK_WAIT: Duration = Duration::from_millis(1);

impl Inode {
    /// The state, to look at. Errors: `WouldBlock`, the lock's holder seems to wait for the device.
    pub fn read(&self, wait: Wait) -> Result<RwLockReadGuard<'_, State>> {
        if let Some(state) = self.state.try_read() {
            return Ok(state);
        }
        self.counted(|| match wait {
            Wait::Allowed => Some(self.state.read()),
            Wait::Never => self.state.try_read_for(LOCK_WAIT),
        })
    }

    /// The state, to change it. Errors: as for `read`.
    pub fn write(&self, wait: Wait) -> Result<RwLockWriteGuard<'_, State>> {
        if let Some(state) = self.state.try_write() {
            return Ok(state);
        }
        self.counted(|| match wait {
            Wait::Allowed => Some(self.state.write()),
            Wait::Never => self.state.try_write_for(LOCK_WAIT),
        })
    }

    /// Who waits so is seen by whoever has the lock.
    fn counted<G>(&self, lock: impl FnOnce() -> Option<G>) -> Result<G> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state.ok_or(Error::WouldBlock)
    }

    /// Somebody waits for the state, or does not run yet since the lock is free.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    pub fn new(ino: Ino, attr: InodeAttr) -> Arc<Inode> {
        Arc::new(Inode {
            ino,
            parent_hint: AtomicU32::new(0),
            seen: AtomicBool::new(false),
            direct: AtomicBool::new(false),
            stored_to: AtomicBool::new(false),
            no_default_acl: AtomicBool::new(false),
            read_end: AtomicU64::new(0),
            void_from: AtomicU64::new(0),
            void_to: AtomicU64::new(0),
            wanted: AtomicU32::new(0),
            state: RwLock::new(State {
                attr,
                last: None,
                layers: SmallVec::new(),
                xattrs: None,
                target: None,
                dir: None,
                last_writer: crate::base::types::DEFAULT_STREAM,
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

    /// See [`Inode::seen`]. (All that share the line only read it once it is set.)
    pub(crate) fn note_seen(&self) {
        if !self.seen.load(Ordering::Relaxed) {
            self.seen.store(true, Ordering::Relaxed);
        }
    }

    /// A directory in which it has, or had, a name.
    pub(crate) fn named_in(&self, parent: Ino) {
        self.parent_hint.store(parent, Ordering::Relaxed);
    }
}
