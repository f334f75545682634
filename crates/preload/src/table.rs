//! The descriptors that this library stands for.
use crate::changes::Seen;
use crate::place::Id;
use crate::region::region;
use crate::writers::{Made, Writers, Writing};
use ccfs_client::direct::{Attr, Dir, File, Listed};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What open(2) has opened: all descriptors that were made from one have it together.
pub struct Open {
    pub what: What,
    pub read: bool,
    pub write: bool,
    /// It was made when it was opened: nobody has it by another descriptor that was open before.
    pub made: bool,
    /// Counts what is opened.
    number: u64,
    /// It counts as one that is written.
    _writing: Option<Writing>,
    /// As F_GETFL says them.
    flags: AtomicI32,
    place: RwLock<Place>,
    /// What it was found with, or made with.
    pub found: Option<Found>,
    /// It was changed by this. What is known of others [`crate::changes::Changes`] says; of one that was made for writing nobody has found anything.
    changed: AtomicBool,
    /// It was found to have no extended attributes.
    pub plain: bool,
    /// st_dev.
    pub device: u64,
}

/// How something was opened.
#[derive(Default)]
pub struct Opening {
    /// Of open(2).
    pub flags: i32,
    pub device: u64,
    pub made: bool,
    /// Where.
    pub made_in: Option<Made>,
    pub plain: bool,
    pub high_bits: Option<u32>,
    pub found: Option<Found>,
}

pub enum What {
    File(File),
    Dir(Dir, Id),
}

/// What changes with an open file.
#[derive(Default)]
pub struct Place {
    /// Where read(2) and write(2) go on, bytes.
    pub offset: u64,
    /// It is at the end, wherever that is.
    pub after_append: bool,
    /// It is the kernel's by now.
    pub gone: bool,
    /// Its setuid, setgid and sticky bits, if they are known.
    pub high_bits: Option<u32>,
    /// The names of a directory, while they are read.
    pub listing: Option<Listing>,
}

/// All names as they were when the first one was asked for, and how many were given.
pub struct Listing {
    pub names: Arc<Vec<Listed>>,
    pub given: usize,
}

/// What was found when a file was opened, and is so as long as nobody has changed anything.
pub struct Found {
    pub attr: Attr,
    /// Its first bytes.
    pub head: Begin,
    /// What had changed then.
    pub seen: Seen,
}

/// First bytes of a file, as long as it is open.
pub struct Begin(Vec<u8>);

/// Bytes of all of them.
static BEGINS: AtomicUsize = AtomicUsize::new(0);

impl Begin {
    pub fn new(bytes: Vec<u8>) -> Begin {
        BEGINS.fetch_add(bytes.len(), Relaxed);
        Begin(bytes)
    }

    /// So many bytes are kept of all files.
    pub fn all() -> usize {
        BEGINS.load(Relaxed)
    }
}

impl Drop for Begin {
    fn drop(&mut self) {
        BEGINS.fetch_sub(self.0.len(), Relaxed);
    }
}

impl Deref for Begin {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Open {
    pub fn new(writers: &Arc<Writers>, what: What, opened: Opening) -> Arc<Open> {
        const NOT_KEPT: i32 =
            libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY | libc::O_CLOEXEC;
        // As the kernel has it for programs of 64 bits.
        const LARGEFILE: i32 = 0o100_000;
        let access = opened.flags & libc::O_ACCMODE;
        let is_path = opened.flags & libc::O_PATH != 0;
        let write = access != libc::O_RDONLY && !is_path;
        Arc::new(Open {
            _writing: write.then(|| writers.begin(opened.made_in)),
            what,
            read: access != libc::O_WRONLY && !is_path,
            write,
            made: opened.made,
            number: OPENED.fetch_add(1, Relaxed),
            flags: AtomicI32::new(match is_path {
                true => opened.flags & (libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW),
                false => opened.flags & !NOT_KEPT | LARGEFILE,
            }),
            place: RwLock::new(Place {
                high_bits: opened.high_bits,
                ..Place::default()
            }),
            found: opened.found,
            changed: AtomicBool::new(false),
            plain: opened.plain,
            device: opened.device,
        })
    }

    /// It is about to be changed by this: what it was made with is over.
    pub fn note_changed(&self) {
        self.changed.store(true, Relaxed);
    }

    pub fn is_changed(&self) -> bool {
        self.changed.load(Relaxed)
    }

    /// Both may be the same file: neither of them was made after the other one was open.
    pub fn may_be_same(&self, other: &Open) -> bool {
        let later = |made: &Open, other: &Open| made.made && made.number > other.number;
        let both_made = self.made && other.made;
        !(both_made || later(self, other) || later(other, self))
    }

    /// It names something, and can be neither read nor written (O_PATH).
    pub fn is_path(&self) -> bool {
        self.flags() & libc::O_PATH != 0
    }

    pub fn flags(&self) -> i32 {
        self.flags.load(Relaxed)
    }

    pub fn set_flags(&self, flags: i32) {
        self.flags.store(flags, Relaxed);
    }

    pub fn place(&self) -> RwLockReadGuard<'_, Place> {
        self.place.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn place_mut(&self) -> RwLockWriteGuard<'_, Place> {
        self.place.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many files were opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// By number.
#[derive(Default)]
pub struct Table {
    all: RwLock<Vec<Option<Arc<Open>>>>,
    /// Held while descriptors are made, moved or made real: what the kernel has and what is here are the same.
    moves: Mutex<()>,
    /// What is open for writing, or a write to it is not done yet.
    pub writers: Arc<Writers>,
}

impl Table {
    pub fn get(&self, fd: i32) -> Option<Arc<Open>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.get(usize::try_from(fd).ok()?)?.clone()
    }

    /// While this is held nobody else makes, moves or makes real a descriptor.
    pub fn moving(&self) -> MutexGuard<'_, ()> {
        self.moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number was given for it ([`crate::state::State::new_descriptor`]).
    pub fn put(&self, fd: i32, open: Arc<Open>) {
        let (mut all, at) = (self.write(), fd as usize);
        if all.len() <= at {
            all.resize(at + 1, None);
        }
        all[at] = Some(open);
        if let Some(region) = region() {
            region.direct.set(fd, true);
            region.open.fetch_add(1, Relaxed);
        }
    }

    /// What it was, which is closed when it is dropped: not while anything here is locked.
    pub fn remove(&self, fd: i32) -> Option<Arc<Open>> {
        let mut all = self.write();
        let open = all.get_mut(usize::try_from(fd).ok()?)?.take()?;
        if let Some(region) = region() {
            region.direct.set(fd, false);
            region.open.fetch_sub(1, Relaxed);
        }
        Some(open)
    }

    /// All numbers of something that is open.
    pub fn numbers_of(&self, open: &Arc<Open>) -> Vec<i32> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let is_it = |one: &Option<Arc<Open>>| one.as_ref().is_some_and(|o| Arc::ptr_eq(o, open));
        let numbers = all.iter().enumerate().filter(|(_, one)| is_it(one));
        numbers.map(|(fd, _)| fd as i32).collect()
    }

    /// Something that is open of a directory.
    pub fn of_dir(&self, id: Id) -> Option<Arc<Open>> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let is_it = |open: &&Arc<Open>| matches!(&open.what, What::Dir(_, dir) if *dir == id);
        all.iter().flatten().find(is_it).cloned()
    }

    /// All, by number.
    pub fn all(&self) -> Vec<(i32, Arc<Open>)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let open = all.iter().enumerate();
        open.filter_map(|(fd, one)| Some((fd as i32, one.clone()?)))
            .collect()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Option<Arc<Open>>>> {
        self.all.write().unwrap_or_else(PoisonError::into_inner)
    }
}
