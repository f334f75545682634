//! Directories without a hash tree. Long ones get an index in memory: names in readdir's order with their blocks, and the room
//! left in every block; so neither lookups nor insertions cost O(directory).

use crate::dirblock::{BlockKind, Dir, RoomIn};
use crate::{DirEntry, Ino};
use ccfs_ext4::Result;
use ccfs_ext4::dirent::{Entry, record_size};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const LEAF: BlockKind = BlockKind::Leaf;
/// Shorter directories are searched block by block.
const INDEX_MIN_BLOCKS: u32 = 4;
/// Names kept in memory for all directories together (about 100 bytes each).
const MAX_NAMES: usize = 1 << 19;

/// Place of a name in readdir's order.
type Key = (u64, Box<[u8]>);

/// A name's block, inode and type.
type Found = (u32, Ino, u8);

/// Names that a listing takes from an index at once.
const PIECE: usize = 256;

/// What the index knows of a directory.
#[derive(Default)]
struct Known {
    names: BTreeMap<Key, Place>,
    /// Per block: the longest record that fits, in bytes.
    room: Vec<usize>,
}

impl Known {
    /// Some names from a place in the order on.
    fn piece(&self, after: Bound<Key>) -> Vec<(Key, Place)> {
        let range = self.names.range((after, Bound::Unbounded));
        range
            .take(PIECE)
            .map(|(key, place)| (key.clone(), *place))
            .collect()
    }
}

#[derive(Clone, Copy)]
struct Place {
    lblk: u32,
    ino: Ino,
    ftype: u8,
}

/// An index, or the knowledge that the directory is too long for one.
enum Slot {
    Known(Known),
    TooLong,
}

/// A directory's index and how many names it has. The number is outside of the lock, so that whoever adds all numbers up
/// waits for nobody.
struct Shared {
    names: AtomicUsize,
    slot: Mutex<Slot>,
}

/// The indexes of all long linear directories of an image.
#[derive(Default)]
pub(crate) struct LinearIndexes {
    slots: Mutex<HashMap<Ino, Arc<Shared>>>,
}

impl Slot {
    fn names(&self) -> usize {
        match self {
            Slot::Known(known) => known.names.len(),
            Slot::TooLong => 0,
        }
    }
}

impl LinearIndexes {
    /// Forgets a directory (its blocks are replaced or gone).
    pub fn forget(&self, ino: Ino) {
        self.slots.lock().remove(&ino);
    }
}

impl Dir<'_> {
    pub fn scan_linear(&self, f: &mut dyn FnMut(u32, &Entry) -> Result<bool>) -> Result<()> {
        for lblk in 0..self.blocks {
            let block = self.read(lblk, LEAF)?;
            for entry in self.format.entries(&block) {
                let entry = entry.map_err(|e| self.lies_in(lblk, e))?;
                if entry.ino != 0 && !f(lblk, &entry)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Long enough for an index.
    fn is_long(&self) -> bool {
        self.blocks >= INDEX_MIN_BLOCKS
    }

    fn key(&self, name: &[u8]) -> Key {
        (crate::dir::cookie(&self.hasher, name), name.into())
    }

    /// Reads the whole directory into an index; `None` where it has too many names.
    fn learn(&self) -> Result<Option<Known>> {
        let mut known = Known::default();
        for lblk in 0..self.blocks {
            let block = self.read(lblk, LEAF)?;
            for entry in self.format.entries(&block) {
                let entry = entry.map_err(|e| self.lies_in(lblk, e))?;
                if entry.ino != 0 {
                    // A name that is there twice is found where a search finds it: at its first place.
                    let place = Place {
                        lblk,
                        ino: entry.ino,
                        ftype: entry.ftype,
                    };
                    known.names.entry(self.key(entry.name)).or_insert(place);
                }
            }
            known.room.push(self.format.max_free(&block)?);
            if known.names.len() > MAX_NAMES {
                return Ok(None);
            }
        }
        Ok(Some(known))
    }

    /// Runs `f` on the directory's index, which is made where it is missing. `None`: short or too long, there is none.
    /// `f` runs under the index's lock and must not use other directories.
    fn with_index<T>(&self, f: impl FnOnce(&mut Known) -> Result<T>) -> Result<Option<T>> {
        if !self.is_long() {
            return Ok(None);
        }
        let indexes = &self.image.linear_indexes();
        let present = indexes.slots.lock().get(&self.ino).cloned();
        let shared = match present {
            Some(shared) => shared,
            None => self.keep(indexes, self.learn()?.map_or(Slot::TooLong, Slot::Known)),
        };
        let mut slot = shared.slot.lock();
        let out = match &mut *slot {
            Slot::Known(known) => f(known).map(Some),
            Slot::TooLong => Ok(None),
        };
        if matches!(&*slot, Slot::Known(known) if known.names.len() > MAX_NAMES) {
            *slot = Slot::TooLong;
        }
        shared.names.store(slot.names(), Relaxed);
        drop(slot);
        if out.is_err() {
            // After an error index and blocks may differ.
            indexes.forget(self.ino);
        }
        out
    }

    /// Stores a new index; the others go where together they are too many names.
    fn keep(&self, indexes: &LinearIndexes, slot: Slot) -> Arc<Shared> {
        let new = slot.names();
        let mut slots = indexes.slots.lock();
        if slots.values().map(|s| s.names.load(Relaxed)).sum::<usize>() + new > MAX_NAMES {
            slots.clear();
        }
        let make = || {
            Arc::new(Shared {
                names: AtomicUsize::new(new),
                slot: Mutex::new(slot),
            })
        };
        slots.entry(self.ino).or_insert_with(make).clone()
    }

    /// Finds a name (`.` and `..` included): its block, inode and type.
    pub fn find_linear(&self, name: &[u8]) -> Result<Option<Found>> {
        let get = |known: &mut Known| Ok(known.names.get(&self.key(name)).copied());
        if let Some(found) = self.with_index(get)? {
            return Ok(found.map(|place| (place.lblk, place.ino, place.ftype)));
        }
        for lblk in 0..self.blocks {
            let block = self.read(lblk, LEAF)?;
            let found = self.format.find(&block, name);
            if let Some(entry) = found.map_err(|e| self.lies_in(lblk, e))? {
                return Ok(Some((lblk, entry.ino, entry.ftype)));
            }
        }
        Ok(None)
    }

    /// Finds a name as `find_linear`; and room for it, where it is absent and there is no index, in the same pass.
    pub fn survey_linear(&self, name: &[u8]) -> Result<(Option<Found>, Option<RoomIn>)> {
        if self.is_long() {
            return Ok((self.find_linear(name)?, None));
        }
        let mut last = None;
        for lblk in 0..self.blocks {
            let block = self.read(lblk, LEAF)?;
            let found = self.format.survey(&block, name);
            let (entry, room) = found.map_err(|e| self.lies_in(lblk, e))?;
            if let Some(entry) = entry {
                return Ok((Some((lblk, entry.ino, entry.ftype)), None));
            }
            // Names are mostly added at the end.
            last = room.map(|room| (lblk, room)).or(last);
        }
        Ok((None, last))
    }

    /// What an index knows of a block's room; short directories have none.
    fn room_for_index(&self, block: &[u8]) -> Result<usize> {
        match self.is_long() {
            true => self.format.max_free(block),
            false => Ok(0),
        }
    }

    /// The first block with room for a record of `need` bytes.
    fn find_room(&self, need: usize) -> Result<Option<u32>> {
        if let Some(found) =
            self.with_index(|known| Ok(known.room.iter().position(|&room| room >= need)))?
        {
            return Ok(found.map(|lblk| lblk as u32));
        }
        // Without an index: names are mostly added at the end.
        for lblk in (0..self.blocks).rev() {
            if self.format.max_free(&self.read(lblk, LEAF)?)? >= need {
                return Ok(Some(lblk));
            }
        }
        Ok(None)
    }

    /// Whether one block has room for an absent name and for the names `beside` it.
    pub fn has_room_linear(&self, name: &[u8], beside: &[&[u8]]) -> Result<bool> {
        let mut need = record_size(name.len());
        for other in beside {
            if self.find_linear(other)?.is_none() {
                need += record_size(other.len());
            }
        }
        Ok(self.find_room(need)?.is_some())
    }

    /// Adds an absent name where a block has room. False: none has.
    pub fn insert_linear(&self, name: &[u8], ino: Ino, ftype: u8) -> Result<bool> {
        let Some(lblk) = self.find_room(record_size(name.len()))? else {
            return Ok(false);
        };
        let (done, room) = self.modify(lblk, LEAF, |block| {
            let done = self.format.insert(block, name, ino, ftype)?;
            Ok((done, self.room_for_index(block)?))
        })?;
        let ftype = if self.format.filetype { ftype } else { 0 };
        self.with_index(|known| {
            known.room[lblk as usize] = room;
            let place = Place { lblk, ino, ftype };
            known.names.insert(self.key(name), place);
            Ok(())
        })?;
        if done {
            Ok(true)
        } else {
            Err(self.corrupt("changed during an insertion"))
        }
    }

    /// Adds an empty leaf.
    pub fn grow_linear(&mut self) -> Result<()> {
        let format = self.format;
        let lblk = self.append(LEAF, |block| format.init_empty(block))?;
        self.with_index(|known| {
            // An index that was made by this very call has already seen the block.
            if known.room.len() == lblk as usize {
                known.room.push(format.end());
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Gives a name in block `lblk` another inode.
    pub fn replace_linear(&self, lblk: u32, name: &[u8], ino: Ino, ftype: u8) -> Result<()> {
        self.replace_in(lblk, LEAF, name, ino, ftype)?;
        let ftype = if self.format.filetype { ftype } else { 0 };
        self.with_index(|known| {
            let place = Place { lblk, ino, ftype };
            known.names.insert(self.key(name), place);
            Ok(())
        })?;
        Ok(())
    }

    /// Removes a name from block `lblk`.
    pub fn remove_linear(&self, lblk: u32, name: &[u8]) -> Result<()> {
        let room = self.modify(lblk, LEAF, |block| {
            if !self.format.remove(block, name)? {
                return Err(self.corrupt("lost a name"));
            }
            self.room_for_index(block)
        })?;
        self.with_index(|known| {
            known.names.remove(&self.key(name));
            known.room[lblk as usize] = room;
            Ok(())
        })?;
        Ok(())
    }

    /// Lists entries from a cookie on in rising order, dots excluded; `f` returns false to stop.
    pub fn list_linear(&self, from: u64, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let mut after = Bound::Included((from, Box::default()));
        // In pieces, since the caller's function must not run under the lock.
        while let Some(piece) = self.with_index(|known| Ok(known.piece(after)))? {
            let Some((last, _)) = piece.last() else {
                return Ok(());
            };
            after = Bound::Excluded(last.clone());
            for ((cookie, name), place) in &piece {
                let (ino, ftype) = (place.ino, place.ftype);
                let entry = Entry {
                    offset: 0,
                    rec_len: 0,
                    ino,
                    ftype,
                    name,
                };
                if !crate::dir::give(&entry, *cookie, f)? {
                    return Ok(());
                }
            }
        }
        crate::dir::list_sorted(
            &self.hasher,
            from,
            &mut |each| self.scan_linear(&mut |_, entry| each(entry)),
            f,
        )
    }
}
