//! Operations: how a change is admitted, gets its space, is accepted, recorded and, in an atomic group, taken back.
pub(crate) mod admit;
mod bugs;
pub(crate) mod draft;
pub(crate) mod forget;
pub(crate) mod full;
pub(crate) mod group;
pub(crate) mod op;
pub(crate) mod refusal;
pub(crate) mod reservation;
pub(crate) mod turn;
pub(crate) mod undo;
pub(crate) mod wait_point;

use crate::base::clock;
use crate::base::sync::Mutex;
use crate::base::types::Ino;
use crate::base::wait_point::WaitPointListener;
use crate::commit::Committer;
use full::{Asking, GivenUp};
use group::AbortListener;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use turn::Turn;

pub struct Operations {
    committer: Committer,
    /// Held by who changes a directory's parent: nobody else changes ancestry meanwhile.
    moves: Mutex<()>,
    /// Inodes of groups that were taken back that the kernel still knows: their numbers are not free yet.
    ghosts: Mutex<HashSet<Ino>>,
    aborts_begun: AtomicU64,
    abort_listener: Mutex<Option<Arc<AbortListener>>>,
    /// Files that are open O_ATOMIC.
    atomic_files: Mutex<HashSet<Ino>>,
    wait_points: OnceLock<WaitPointListener>,
    turn: Turn,
    /// Whom to ask for files that are about to be forgotten.
    kernel: Mutex<Option<Arc<GivenUp>>>,
    asking: Asking,
    /// Calls of `forget` under way.
    forgetting: AtomicU32,
    /// What generation numbers of new inodes are made from.
    generation: u32,
}

impl Deref for Operations {
    type Target = Committer;
    fn deref(&self) -> &Committer {
        &self.committer
    }
}

impl Operations {
    pub(crate) fn new(committer: Committer) -> Operations {
        let seed = clock::now();
        Operations {
            committer,
            moves: Mutex::default(),
            ghosts: Mutex::default(),
            aborts_begun: AtomicU64::new(0),
            abort_listener: Mutex::default(),
            atomic_files: Mutex::default(),
            wait_points: OnceLock::new(),
            turn: Turn::default(),
            kernel: Mutex::default(),
            asking: Asking::default(),
            forgetting: AtomicU32::new(0),
            generation: seed.1 ^ seed.0 as u32,
        }
    }

    pub(crate) fn moves(&self) -> &Mutex<()> {
        &self.moves
    }

    pub(crate) fn atomic_files(&self) -> &Mutex<HashSet<Ino>> {
        &self.atomic_files
    }

    pub(crate) fn abort_listener(&self) -> Option<Arc<AbortListener>> {
        self.abort_listener.lock().clone()
    }

    /// Another group, or draft, is being taken back: which one it is.
    pub(crate) fn count_abort(&self) -> u64 {
        self.aborts_begun.fetch_add(1, Ordering::SeqCst)
    }
}
