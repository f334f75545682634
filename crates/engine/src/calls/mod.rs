//! Calls: what a front end asks for.
pub(crate) mod access;
pub(crate) mod atomic;
pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod durable;
pub(crate) mod file;
pub(crate) mod mapped;
pub(crate) mod namespace;
pub(crate) mod path;
pub(crate) mod rename;
pub(crate) mod resize;
pub(crate) mod statfs;

use crate::base::sync::Mutex;
use crate::base::types::Ino;
use crate::operation::Operations;
use crate::overlay::objects::Inode;
use ccfs_image::FastMap;
use std::ops::Deref;
use std::sync::Arc;

pub struct Calls {
    operations: Operations,
    /// Inodes whose access time waits to be logged until what is uncommitted about them is applied.
    unlogged_atimes: Mutex<FastMap<Ino, Arc<Inode>>>,
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
            operations,
            unlogged_atimes: Mutex::default(),
        }
    }
}
