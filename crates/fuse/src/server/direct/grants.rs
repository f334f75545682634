//! Numbers of inodes that a program is told before it makes files with them, so that it need not ask what it has made.
use ccfs_client::direct::layout::{ASKED, Entry, GRANTS_MAX, cost, named_by, op};
use ccfs_client::direct::memory::Memory;
use ccfs_engine::{FastMap, Ino, Volume};
use std::sync::atomic::Ordering;

/// Numbers that are granted for each file that was posted, until there are enough.
const AHEAD: usize = 8;

/// What was granted to a session and is not used. What its memory says counts for nothing.
#[derive(Default)]
pub struct Grants {
    slots: FastMap<Ino, usize>,
    /// Slots that were used and are free again, and how many were ever used.
    free: Vec<usize>,
    ever: usize,
    /// Files that were posted, and where the last one was made.
    births: usize,
    near: Option<Ino>,
}

/// What an entry says of the number of its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Nothing.
    Not,
    /// One that was granted.
    By(Ino),
    /// One that was taken back, perhaps before its program could see that.
    TakenBack,
    /// One that its program was not given, or has used.
    Wrong,
}

impl Grants {
    /// `stops`: how often the program was told to post nothing, without which nothing is taken back.
    pub fn named_in(&self, entry: &Entry, stops: impl FnOnce() -> u32) -> Named {
        if !matches!(entry.op, op::CREATE | op::MKDIR) || entry.a == 0 {
            return Named::Not;
        }
        match named_by(entry.a) {
            _ if entry.flags & ASKED != 0 => Named::Wrong,
            (ino, _) if self.slots.contains_key(&ino) => Named::By(ino),
            (_, seen) if seen != stops() => Named::TakenBack,
            _ => Named::Wrong,
        }
    }

    /// An inode was made with it.
    pub fn use_up(&mut self, ino: Ino) {
        self.free.extend(self.slots.remove(&ino));
    }

    /// The entry that named it was not carried out: its program may name it again.
    pub fn offer_again(&self, named: Named, memory: &Memory) {
        if let Named::By(ino) = named
            && let Some(slot) = self.slots.get(&ino)
        {
            memory.granted(*slot).store(ino, Ordering::SeqCst);
        }
    }

    /// A file or directory was posted, in this directory.
    pub fn note_birth(&mut self, dir: Ino) {
        self.births = (self.births + 1).min(GRANTS_MAX);
        self.near = Some(dir);
    }

    /// Grants as many as the program will need, if it has made files since.
    pub fn renew(&mut self, volume: &Volume, memory: &Memory) {
        let Some(near) = self.near.take() else {
            return;
        };
        let wanted = (AHEAD * self.births).min(GRANTS_MAX);
        let more = wanted.saturating_sub(self.slots.len());
        if more == 0 || !volume.foretells_births() {
            return;
        }
        for ino in volume.grant_numbers(near, more) {
            let slot = self.free.pop().unwrap_or_else(|| {
                self.ever += 1;
                self.ever - 1
            });
            self.slots.insert(ino, slot);
            memory.granted(slot).store(ino, Ordering::SeqCst);
        }
    }

    /// Nothing is granted from here on: the program was told to post nothing, or its session is over.
    pub fn take_back(&mut self, volume: &Volume, memory: &Memory) {
        for slot in self.slots.values() {
            memory.granted(*slot).store(0, Ordering::SeqCst);
            self.free.push(*slot);
        }
        (self.births, self.near) = (0, None);
        let numbers = self.slots.drain().map(|(ino, _)| ino).collect();
        volume.take_numbers_back(numbers);
    }
}

/// An entry that is posted and makes an inode.
pub fn is_birth(entry: &Entry) -> bool {
    let posted = entry.flags & ASKED == 0 && cost(entry.op, 0) > 0;
    posted && matches!(entry.op, op::CREATE | op::MKDIR | op::SYMLINK)
}
