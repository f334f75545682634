//! Damage that was met while the volume is open, and its mark in the super block: `e2fsck -p` checks a file system that has one.
//!
//! The mark is structure: it changes the super block in memory, and the next checkpoint brings it home. Each damaged place counts once,
//! however often it is met. Blocks that belong to no inode (descriptors, bitmaps) and inodes are noted where they are verified, so also where the
//! error is dealt with and nobody hears of it; all else where a call's error leaves the image (`Image::met`).

use crate::core::Core;
use crate::{Image, Ino, Pblk};
use ccfs_ext4::errors::ErrorFields;
use ccfs_ext4::{Corruption, Error, Result};
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
    pub what: String,
}

#[derive(Default)]
pub(crate) struct Damages {
    places: Mutex<Places>,
    /// Places met since the volume was opened.
    count: AtomicU64,
}

#[derive(Default)]
struct Places {
    known: HashSet<(Ino, Pblk, String)>,
    news: Vec<Met>,
    /// So many of `count` are in the super block at home.
    marked: u64,
}

impl Core {
    /// Notes what is corrupt in the super block. `ino` is 0 for what is no inode's.
    pub fn met(&self, ino: Ino, met: &Corruption) {
        let damages = &self.damages;
        let mut places = damages.places.lock();
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
        self.change_super(|raw| raw.note_error(&error));
        damages.count.fetch_add(1, Relaxed);
        places.news.push(Met {
            ino,
            pblk: met.block,
            what: met.what.clone(),
        });
    }

    /// As it is, noted where it is corrupt.
    pub fn noting<T>(&self, ino: Ino, result: Result<T>) -> Result<T> {
        if let Err(Error::Corrupt(met)) = &result {
            self.met(ino, met);
        }
        result
    }
}

impl Image {
    /// Where a call's error leaves the image: what is corrupt is noted in the super block, for `ino` (0: no inode's).
    pub fn met<T>(&self, ino: Ino, result: Result<T>) -> Result<T> {
        self.core.noting(ino, result)
    }

    /// Damaged places met since the volume was opened.
    pub fn damage_met(&self) -> u64 {
        self.core.damages.count.load(Relaxed)
    }

    /// Damaged places that nobody was told of yet.
    pub fn take_damage(&self) -> Vec<Met> {
        std::mem::take(&mut self.core.damages.places.lock().news)
    }

    /// Some damage is not yet in the super block at home.
    pub fn has_unmarked_damage(&self) -> bool {
        self.damage_met() > 0 && self.damage_marked_so_far() < self.damage_met()
    }

    /// So many of the places met are in the super block at home.
    pub fn damage_marked_so_far(&self) -> u64 {
        self.core.damages.places.lock().marked
    }

    /// The first `count` places are in the super block at home.
    pub fn damage_marked(&self, count: u64) {
        let mut places = self.core.damages.places.lock();
        places.marked = places.marked.max(count);
    }

    /// Errors in the super block: how many, the first and the last one. Those of before included.
    pub fn recorded_errors(&self) -> (u32, Option<(ErrorFields, ErrorFields)>) {
        let raw = self.core.sup.lock().raw;
        (raw.error_count.get(), raw.errors())
    }

    /// The super block remembers errors: the file system should be checked.
    pub fn has_errors(&self) -> bool {
        self.core.sup.lock().raw.has_errors()
    }
}
