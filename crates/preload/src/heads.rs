//! What small files of listed directories begin with, and which ones to ask for next.
//!
//! What is known of a name is forgotten by [`crate::tree::Tree::change`], and believed as long as no file was written since it was asked for. A name that was listed
//! is none of a file that was open for writing then, nor of one that was made later: so who has something open does not matter.
use crate::changes::Seen;
use ccfs_client::direct::layout::{DATA_MAX, HEADS_MAX};
use ccfs_client::direct::{Attr, Head};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

/// Bytes of files that are kept at most.
const KEPT: usize = 4 << 20;
/// Files that are looked at for one that was not asked for.
const LOOKS: usize = 256;
/// What one takes besides its content, about.
const OVERHEAD: usize = 256;
/// Files that may be asked for in vain, whatever was of use.
const VAIN: u32 = 64;

/// A directory of the tree.
type Id = u64;

/// Files of a directory, by name.
pub type Files = HashMap<Box<[u8]>, ListedFile>;

/// A file of a directory, as it was listed.
pub struct ListedFile {
    pub attr: Attr,
    /// Its place in the listing.
    nth: u32,
    /// It was asked for.
    pub asked: bool,
}

impl ListedFile {
    pub fn new(attr: Attr, nth: u32) -> ListedFile {
        ListedFile {
            attr,
            nth,
            asked: false,
        }
    }

    fn is_small(&self) -> bool {
        self.attr.nlink == 1 && self.attr.is_small_file()
    }
}

/// In what order programs read files: they go by name, by inode number, or as they are listed.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Listed,
    Number,
    Name,
}

/// What an order goes by.
#[derive(Clone)]
pub struct Key {
    pub name: Box<[u8]>,
    pub number: u64,
    pub nth: u32,
}

impl Order {
    /// One in which this comes next after the last one.
    pub fn next(self, last: &Key, now: &Key) -> Order {
        let fits = |order: &Order| order.of(last, now) == Ordering::Less;
        let orders = [self, Order::Name, Order::Number, Order::Listed];
        orders.into_iter().find(fits).unwrap_or(self)
    }

    pub fn of(self, a: &Key, b: &Key) -> Ordering {
        match self {
            Order::Listed => a.nth.cmp(&b.nth),
            Order::Number => (a.number, a.nth).cmp(&(b.number, b.nth)),
            Order::Name => a.name.cmp(&b.name),
        }
    }
}

/// How the files of a listed directory are read.
#[derive(Default)]
pub struct Reading {
    last: Option<Key>,
    /// All of them, in an order.
    sorted: Option<(Order, Vec<Key>)>,
    /// Small ones that were not asked for; `None`: nobody has counted them.
    left: Option<usize>,
}

/// What is known of files, and how often that was of use.
#[derive(Default)]
pub struct Heads {
    all: HashMap<Id, HashMap<Box<[u8]>, Kept>>,
    /// The oldest first; some of them are used by now.
    queue: VecDeque<(Id, Box<[u8]>, u64)>,
    count: usize,
    bytes: usize,
    next: u64,
    pub used: u32,
    pub vain: u32,
    /// Several files of one directory were read.
    reads_trees: bool,
    order: Order,
}

pub struct Kept {
    pub head: Head,
    pub seen: Seen,
    number: u64,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.head.content.len() + OVERHEAD
    }
}

impl Heads {
    pub fn remove(&mut self, id: Id, name: &[u8]) -> Option<Kept> {
        let its = self.all.get_mut(&id)?;
        let kept = its.remove(name)?;
        if its.is_empty() {
            self.all.remove(&id);
        }
        self.bytes -= kept.bytes();
        self.count -= 1;
        Some(kept)
    }

    /// It is not what it was.
    pub fn forget(&mut self, id: Id, name: &[u8]) {
        if self.remove(id, name).is_some() {
            self.vain += 1;
        }
    }

    pub fn put(&mut self, id: Id, name: &[u8], head: Head, seen: Seen) {
        self.forget(id, name);
        self.next += 1;
        let number = self.next;
        let kept = Kept { head, seen, number };
        self.bytes += kept.bytes();
        self.count += 1;
        self.all.entry(id).or_default().insert(name.into(), kept);
        self.queue.push_back((id, name.into(), number));
        while self.bytes > KEPT
            && let Some((id, name, number)) = self.queue.pop_front()
        {
            if self.has(id, &name, number) {
                self.forget(id, &name);
            }
        }
        if self.queue.len() > 2 * self.count + 64 {
            let mut queue = std::mem::take(&mut self.queue);
            queue.retain(|(id, name, number)| self.has(*id, name, *number));
            self.queue = queue;
        }
    }

    fn has(&self, id: Id, name: &[u8], number: u64) -> bool {
        let kept = self.all.get(&id).and_then(|its| its.get(name));
        kept.is_some_and(|kept| kept.number == number)
    }

    /// Who finds a directory will read what is in it.
    pub fn are_of_use(&self) -> bool {
        self.reads_trees && self.vain <= self.used.saturating_add(VAIN)
    }

    /// A file is opened: others of its directory are to be asked for. Which: its own name first.
    pub fn next_of(
        &mut self,
        all: &mut Files,
        reading: &mut Reading,
        name: &[u8],
    ) -> Option<Vec<Box<[u8]>>> {
        let file = all.get(name).filter(|file| file.is_small())?;
        let (size, now) = (file.attr.size, key(name, file));
        let is_second = reading.last.is_some();
        self.note_opened(all, reading, name);
        self.reads_trees |= is_second;
        if !self.are_of_use() {
            return None;
        }
        let mut left = match reading.left {
            Some(left) => left,
            None => {
                let left = |file: &&ListedFile| file.is_small() && !file.asked;
                all.values().filter(left).count()
            }
        };
        if let Some(file) = all.get_mut(name)
            && !std::mem::replace(&mut file.asked, true)
        {
            left = left.saturating_sub(1);
        }
        reading.left = Some(left);
        if left == 0 {
            return None;
        }
        let order = self.order;
        let sorted = match reading.sorted.take() {
            Some((as_now, sorted)) if as_now == order => sorted,
            _ => {
                let small = all.iter().filter(|(_, file)| file.is_small());
                let mut keys: Vec<Key> = small.map(|(name, file)| key(name, file)).collect();
                keys.sort_unstable_by(|a, b| order.of(a, b));
                keys
            }
        };
        let from = sorted.partition_point(|one| order.of(one, &now) != Ordering::Greater);
        let mut room = DATA_MAX - Head::room(size);
        let mut names: Vec<Box<[u8]>> = vec![name.into()];
        for one in sorted[from..].iter().chain(&sorted[..from]).take(LOOKS) {
            let file = all.get_mut(&one.name).filter(|file| !file.asked);
            let Some(file) = file.filter(|_| *one.name != *name) else {
                continue;
            };
            let bytes = Head::room(file.attr.size);
            if bytes > room || names.len() == HEADS_MAX {
                break;
            }
            room -= bytes;
            reading.left = reading.left.map(|left| left.saturating_sub(1));
            file.asked = true;
            names.push(one.name.clone());
        }
        reading.sorted = Some((order, sorted));
        (names.len() > 1).then_some(names)
    }

    /// A file is opened: in which order is that?
    pub fn note_opened(&mut self, all: &Files, reading: &mut Reading, name: &[u8]) {
        let Some(now) = all.get(name).map(|file| key(name, file)) else {
            return;
        };
        if let Some(last) = &reading.last {
            self.order = self.order.next(last, &now);
        }
        reading.last = Some(now);
    }
}

fn key(name: &[u8], file: &ListedFile) -> Key {
    Key {
        name: name.into(),
        number: file.attr.ino,
        nth: file.nth,
    }
}
