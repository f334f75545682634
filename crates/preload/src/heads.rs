//! Small files of a listed directory, asked for together when a program reads one after the other.
//!
//! What is known of a name is forgotten by [`crate::tree::Tree::change`], and believed as long as no file was written since it was asked for. A name that was listed
//! is none of a file that was open for writing then, nor of one that was made later: so who has something open does not matter.
use crate::answer::Stop;
use crate::changes::Seen;
use crate::state::State;
use crate::table::Found;
use crate::tree::{Attrs, Id};
use ccfs_client::direct::layout::{DATA_MAX, HEADS_MAX, SMALL};
use ccfs_client::direct::{Attr, Dir, File, Head};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Bytes of files that are kept at most.
const KEPT: usize = 1 << 20;
/// What one takes besides its content, about.
const OVERHEAD: usize = 256;
/// Files that may be asked for in vain, whatever was of use.
const VAIN: u32 = 64;

/// A file of a directory, as it was listed.
pub struct ListedFile {
    pub attr: Attr,
    /// Its place in the listing.
    nth: u32,
    /// It was asked for.
    asked: bool,
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
        let is_file = self.attr.mode & libc::S_IFMT == libc::S_IFREG;
        is_file && self.attr.nlink == 1 && self.attr.size <= SMALL as u64
    }
}

/// In what order programs read files: they go by name, by inode number, or as they are listed.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Order {
    #[default]
    Listed,
    Number,
    Name,
}

/// What an order goes by.
struct Key {
    name: Box<[u8]>,
    number: u64,
    nth: u32,
}

impl Order {
    fn of(self, a: &Key, b: &Key) -> Ordering {
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
    used: u32,
    vain: u32,
    /// Several files of one directory were read.
    reads_trees: bool,
    order: Order,
}

struct Kept {
    head: Head,
    seen: Seen,
    number: u64,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.head.content.len() + OVERHEAD
    }
}

impl Heads {
    fn remove(&mut self, id: Id, name: &[u8]) -> Option<Kept> {
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

    fn put(&mut self, id: Id, name: &[u8], head: Head, seen: Seen) {
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

    /// A file is opened: others of its directory are to be asked for. Which: its own name first.
    fn next_of(&mut self, listed: &mut Attrs, name: &[u8]) -> Option<Vec<Box<[u8]>>> {
        let file = listed.all.get(name).filter(|file| file.is_small())?;
        let (size, now) = (file.attr.size, key(name, file));
        let is_second = listed.reading.last.is_some();
        self.note_opened(listed, name);
        let is_vain = self.vain > self.used.saturating_add(VAIN);
        if is_vain || !(self.reads_trees || is_second) {
            return None;
        }
        self.reads_trees = true;
        let order = self.order;
        let sorted = match listed.reading.sorted.take() {
            Some((as_now, sorted)) if as_now == order => sorted,
            _ => {
                let small = listed.all.iter().filter(|(_, file)| file.is_small());
                let mut all: Vec<Key> = small.map(|(name, file)| key(name, file)).collect();
                all.sort_unstable_by(|a, b| order.of(a, b));
                all
            }
        };
        let from = sorted.partition_point(|one| order.of(one, &now) != Ordering::Greater);
        let mut room = DATA_MAX - Head::room(size);
        let mut names: Vec<Box<[u8]>> = vec![name.into()];
        for one in sorted[from..].iter().chain(&sorted[..from]) {
            let file = listed.all.get_mut(&one.name).filter(|file| !file.asked);
            let Some(file) = file.filter(|_| *one.name != *name) else {
                continue;
            };
            let bytes = Head::room(file.attr.size);
            if bytes > room || names.len() == HEADS_MAX {
                break;
            }
            room -= bytes;
            file.asked = true;
            names.push(one.name.clone());
        }
        listed.reading.sorted = Some((order, sorted));
        (names.len() > 1).then_some(names)
    }

    /// A file is opened: in which order is that?
    fn note_opened(&mut self, listed: &mut Attrs, name: &[u8]) {
        let Some(now) = listed.all.get(name).map(|file| key(name, file)) else {
            return;
        };
        if let Some(last) = &listed.reading.last {
            let fits = |order: Order| order.of(last, &now) == Ordering::Less;
            let orders = [self.order, Order::Name, Order::Number, Order::Listed];
            let fitting = orders.into_iter().find(|order| fits(*order));
            self.order = fitting.unwrap_or(self.order);
        }
        listed.reading.last = Some(now);
    }
}

fn key(name: &[u8], file: &ListedFile) -> Key {
    Key {
        name: name.into(),
        number: file.attr.ino,
        nth: file.nth,
    }
}

/// Names for which to ask, and what had changed when it was known that they can be believed.
struct Wanted {
    names: Vec<Box<[u8]>>,
    seen: Seen,
    changes: Option<u64>,
}

/// Opens a small file for reading, if it surely is what it was. `None`: it has to be asked for by itself.
pub fn open(
    state: &State,
    (dir, id): (&Dir, Id),
    name: &[u8],
) -> Result<Option<(File, Found)>, Stop> {
    let found = match known(state, id, name) {
        Ok(found) => Some(found),
        Err(Some(wanted)) if ask(state, (dir, id), &wanted) => known(state, id, name).ok(),
        Err(_) => None,
    };
    let Some(found) = found else {
        return Ok(None);
    };
    let opened = dir.open_known(OsStr::from_bytes(name), &found.attr)?;
    // What was opened could be another file, if the name was another one's in between.
    let opened = opened.filter(|_| state.changes.none_since(found.seen));
    let heads = &mut state.tree().heads;
    match opened {
        Some(_) => heads.used += 1,
        None => heads.vain += 1,
    }
    Ok(opened.map(|file| (file, found)))
}

/// What is known of a file. Error: what to ask for.
fn known(state: &State, id: Id, name: &[u8]) -> Result<Found, Option<Wanted>> {
    let mut tree = state.tree();
    // Changes that come later are noted after this.
    let (seen, changes) = (state.changes.now(), tree.changes(id));
    let is_so = |kept: &Kept| changes.is_some() && kept.seen.is_of_same_content(seen);
    let kept = match tree.heads.remove(id, name) {
        Some(kept) if !is_so(&kept) => {
            tree.heads.vain += 1;
            None
        }
        kept => kept,
    };
    let reading = tree.reading(id, &state.changes);
    let Some(kept) = kept else {
        let (listed, heads) = reading.ok_or(None)?;
        let names = heads.next_of(listed, name).ok_or(None)?;
        return Err(Some(Wanted {
            names,
            seen,
            changes,
        }));
    };
    if let Some((listed, heads)) = reading {
        heads.note_opened(listed, name);
    }
    Ok(Found {
        attr: kept.head.attr,
        head: kept.head.content,
        seen,
    })
}

/// Asks for files. False: nothing is known of them.
fn ask(state: &State, (dir, id): (&Dir, Id), wanted: &Wanted) -> bool {
    let names = wanted.names.iter().map(|name| OsStr::from_bytes(name));
    let Ok(heads) = dir.heads(names) else {
        return false;
    };
    let mut tree = state.tree();
    if wanted.changes.is_none() || tree.changes(id) != wanted.changes {
        return false;
    }
    for (name, head) in wanted.names.iter().zip(heads) {
        if let Some(head) = head {
            tree.heads.put(id, name, head, wanted.seen);
        }
    }
    true
}
