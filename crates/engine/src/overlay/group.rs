//! What makes a transaction an atomic group: its state, until it is committed or taken back.
use crate::base::fate::{Fate, Reason};
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::*;
use crate::overlay::objects::{Group, Inode};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

impl Group {
    /// `time`: how long it may stay open, and whose limit that is.
    pub fn new(id: StreamId, uid: u32, time: Option<(Duration, Reason)>) -> Group {
        let deadline = |(time, whose)| Some((Instant::now().checked_add(time)?, whose));
        Group {
            id,
            uid,
            fate: Arc::new(Fate::new(time.map(|(time, _)| time))),
            spoilt: AtomicI32::new(0),
            deadline: time.and_then(deadline),
            undo: Mutex::default(),
            ended: Mutex::default(),
            end: Condvar::new(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.fate.is_open()
    }

    pub fn is_committed(&self) -> bool {
        self.fate.is_committed()
    }

    /// It is, or was, taken back.
    pub fn is_condemned(&self) -> bool {
        self.fate.taken_back().is_some()
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

    /// Gives what its end is to free.
    pub fn announce_end(&self) -> Vec<Arc<Inode>> {
        let mut ended = self.ended.lock();
        ended.has = true;
        let nameless = std::mem::take(&mut ended.nameless);
        drop(ended);
        self.end.notify_all();
        nameless.into_values().collect()
    }

    /// An inode that nobody knows any more, and that the group keeps from being freed, is for its end. False: it has ended.
    pub fn leave_to_end(&self, inode: &Arc<Inode>) -> bool {
        let mut ended = self.ended.lock();
        if !ended.has {
            ended.nameless.insert(inode.ino, inode.clone());
        }
        !ended.has
    }

    /// Waits for its end, not longer than `limit`.
    pub fn wait_end(&self, limit: Duration) {
        let mut ended = self.ended.lock();
        if !ended.has {
            self.end.wait_for(&mut ended, limit);
        }
    }
}
