//! Damage that was met while the volume is open, and its mark in the super block: `e2fsck -p` checks a file system that has one.
//!
//! The mark is structure: it changes the super block in memory, and the next checkpoint brings it home. Each damaged place counts once,
//! however often it is met. Blocks that belong to no inode (descriptors, bitmaps) and inodes are noted where they are verified, so also where the
//! error is dealt with and nobody hears of it; all else where a call's error leaves the image (`Image::met`).

use crate::super_block::Super;
use crate::{Ino, Pblk};
use ccfs_ext4::Corruption;
use ccfs_ext4::errors::ErrorFields;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// Damaged places that are told apart. Those beyond count as one.
const PLACES_MAX: usize = 4096;

/// A damaged place that nobody was told of yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// 0: it is no inode's.
    pub ino: Ino,
    /// 0: no single block.
    pub pblk: Pblk,
    /// The structure and what is wrong with it, for people.
    pub what: String,
}

/// The damaged places of an open volume.
#[derive(Default)]
pub struct Damages {
    places: Mutex<Places>,
    count: AtomicU64,
}

#[derive(Default)]
struct Places {
    known: HashSet<(Ino, Pblk, String)>,
    news: Vec<Met>,
    /// So many of `count` are in the super block at home.
    marked: u64,
}

impl Damages {
    /// Notes what is corrupt in the super block. `ino` is 0 for what is no inode's.
    pub(crate) fn note(&self, ino: Ino, met: &Corruption, sup: &Mutex<Super>) {
        let mut places = self.places.lock();
        // A block is one place, whoever looks at it.
        let key = match met.block {
            0 => (ino, 0, met.what.clone()),
            block => (0, block, met.what.clone()),
        };
        if places.known.len() >= PLACES_MAX || !places.known.insert(key) {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let error = ErrorFields::of(met, ino, now.map_or(0, |d| d.as_secs()));
        sup.lock().change(|raw| raw.note_error(&error));
        self.count.fetch_add(1, Relaxed);
        places.news.push(Met {
            ino,
            pblk: met.block,
            what: met.what.clone(),
        });
    }

    /// Places met since the volume was opened.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Places that nobody was told of yet.
    pub fn take_news(&self) -> Vec<Met> {
        std::mem::take(&mut self.places.lock().news)
    }

    /// Some are not yet in the super block at home.
    pub fn has_unmarked(&self) -> bool {
        self.count() > 0 && self.marked() < self.count()
    }

    /// So many of them are in the super block at home.
    pub fn marked(&self) -> u64 {
        self.places.lock().marked
    }

    /// The first `count` are in the super block at home.
    pub fn mark(&self, count: u64) {
        let mut places = self.places.lock();
        places.marked = places.marked.max(count);
    }
}
