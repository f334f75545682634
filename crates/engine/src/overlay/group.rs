//! What makes a transaction an atomic group: its state, until it is committed or taken back.
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::*;
use crate::overlay::objects::Group;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GroupState {
    Open = 0,
    Committed = 1,
    /// Nothing is accepted into it; its changes are being taken back, or are gone.
    Aborting = 2,
}

impl Group {
    pub fn new(id: StreamId, uid: u32, timeout: Option<Duration>) -> Group {
        Group {
            id,
            uid,
            state: AtomicU8::new(GroupState::Open as u8),
            spoilt: AtomicI32::new(0),
            deadline: timeout.and_then(|t| Instant::now().checked_add(t)),
            undo: Mutex::default(),
            ended: Mutex::default(),
            end: Condvar::new(),
        }
    }

    fn is(&self, state: GroupState) -> bool {
        self.state.load(Ordering::Acquire) == state as u8
    }

    pub fn is_open(&self) -> bool {
        self.is(GroupState::Open)
    }

    pub fn is_committed(&self) -> bool {
        self.is(GroupState::Committed)
    }

    /// It is, or was, taken back.
    pub fn is_condemned(&self) -> bool {
        self.state.load(Ordering::Acquire) >= GroupState::Aborting as u8
    }

    /// The first reason counts. Under the mutex of what makes transactions.
    pub fn spoil(&self, errno: i32) {
        if self.spoilt().is_none() {
            self.spoilt.store(errno, Ordering::Release);
        }
    }

    pub fn spoilt(&self) -> Option<i32> {
        Some(self.spoilt.load(Ordering::Acquire)).filter(|e| *e != 0)
    }

    /// An open group becomes committed or condemned, once.
    pub fn close(&self, state: GroupState) -> bool {
        let open = GroupState::Open as u8;
        self.state
            .compare_exchange(open, state as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub fn announce_end(&self) {
        *self.ended.lock() = true;
        self.end.notify_all();
    }

    /// Waits for its end, not longer than `limit`.
    pub fn wait_end(&self, limit: Duration) {
        let mut ended = self.ended.lock();
        if !*ended {
            self.end.wait_for(&mut ended, limit);
        }
    }
}
