//! Calls: what a front end asks for.
pub(crate) mod access;
pub(crate) mod atomic_files;
pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod durable;
pub(crate) mod file;
pub(crate) mod freeze;
pub(crate) mod mapped;
pub(crate) mod namespace;
pub(crate) mod path;
pub(crate) mod promise;
pub(crate) mod rename;
pub(crate) mod resize;
pub(crate) mod statfs;
pub(crate) mod write_plan;

use crate::base::sync::Mutex;
use crate::base::types::{Context, Ino, Result};
use crate::core::back_pressure::LetIn;
use crate::home::noted::NotedImage;
use crate::home::space;
use crate::home::view::Where;
use crate::operation::Operations;
use crate::operation::group::Held;
use crate::operation::refusal::Tried;
use crate::operation::turn::Room;
use crate::overlay::objects::{Inode, State};
use ccfs_image::{FastMap, Wait};
use std::ops::Deref;
use std::sync::Arc;

/// A volume as a front end sees it: a handle, whose calls may wait for the device and for others or not ([`Volume::non_blocking`]).
///
/// # Errors
/// Every call can fail with `Io` (the device), with `Corrupt` (a damaged structure), with ENOENT (the inode is gone) and, where it
/// must not wait, with `WouldBlock`. A call that changes something can fail with EROFS (a read-only or a stopped volume), with EPERM
/// (an immutable or append-only file), with ENOSPC and, by a member of an atomic group, with ECANCELED (the group has ended) and
/// EDQUOT (it would be too large). A sync call of a stopped volume fails with EIO. Only other errors are named at a call.
///
/// [`Volume::non_blocking`]: crate::Volume::non_blocking
pub struct Calls {
    operations: Arc<Operations>,
    wait: Wait,
    /// Inodes whose access time waits to be logged until what is uncommitted about them is applied.
    unlogged_atimes: Arc<Mutex<FastMap<Ino, Arc<Inode>>>>,
}

impl Deref for Calls {
    type Target = Operations;
    fn deref(&self) -> &Operations {
        &self.operations
    }
}

impl Calls {
    pub(crate) fn new(operations: Operations) -> Calls {
        Calls {
            operations: Arc::new(operations),
            wait: Wait::Allowed,
            unlogged_atimes: Arc::default(),
        }
    }

    /// The same volume, for calls that may wait or must not.
    pub(crate) fn with(&self, wait: Wait) -> Calls {
        Calls {
            operations: self.operations.clone(),
            wait,
            unlogged_atimes: self.unlogged_atimes.clone(),
        }
    }
}

/// What the floors below do for who may wait or must not, in this handle's way. An operation that was accepted waits in any case: it goes
/// on with its `Op::vol`.
impl Calls {
    fn image(&self) -> &NotedImage {
        self.operations.image_for(self.wait)
    }

    fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.operations.inode(ino, self.wait)
    }

    fn view(&self, inode: &Inode, st: &State, lblk: u64, max: u64) -> Result<(Where, u64)> {
        self.operations.view(inode, st, lblk, max, self.wait)
    }

    fn read_blocks(&self, pblk: u64, within: usize, out: &mut [u8], small: bool) -> Result<()> {
        self.operations
            .read_blocks(pblk, within, out, small, self.wait)
    }

    fn admit_to(&self, cx: &Context) -> Result<LetIn<'_>> {
        self.operations.admit_to(cx, self.wait)
    }

    /// An operation that needs no space.
    fn unblocked<T>(&self, cx: &Context, held: Held, f: impl Fn(&Room) -> Tried<T>) -> Result<T> {
        let let_in = self.admit_to(cx)?;
        let room = Room::admitted(&let_in);
        self.operations.unblocked(cx, self.wait, held, &room, f)
    }

    fn with_space<T>(&self, cx: &Context, held: Held, f: impl Fn(&Room) -> Tried<T>) -> Result<T> {
        self.operations.with_space(cx, self.wait, held, true, f)
    }

    /// A number for a new inode. Error: ENOSPC there is none, which is noted.
    fn new_number(&self, parent: Ino, is_dir: bool) -> ccfs_ext4::Result<Ino> {
        let allocated = self.image().alloc().allocate_inode(parent, is_dir);
        if matches!(allocated, Err(ccfs_ext4::Error::Errno(libc::ENOSPC))) {
            space::note_lack();
        }
        allocated
    }

    /// A number that was allocated for an operation which is not accepted. It must not stay held, so this waits.
    fn give_inode_back(&self, ino: Ino) {
        self.operations.image().alloc().release_inode(ino);
    }
}
