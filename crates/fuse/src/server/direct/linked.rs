//! Files with several names in directories that a session holds: what has to be broken when the kernel gets to know one.
use super::Direct;
use super::session::{Refused, Session};
use ccfs_engine::sync::Mutex;
use ccfs_engine::{Calls, FastMap, Ino};

/// Directories of one file; with more it is linked through the kernel.
const DIRS_MAX: usize = 64;

/// Such files, and the directories in which they have, or had, names.
#[derive(Default)]
pub struct Linked(Mutex<FastMap<Ino, Names>>);

#[derive(Default)]
struct Names {
    /// The session that holds the directories.
    session: u64,
    dirs: Vec<Ino>,
}

impl Names {
    /// False: there are too many.
    fn add(&mut self, dir: Ino) -> bool {
        let is_known = self.dirs.contains(&dir);
        let fits = is_known || self.dirs.len() < DIRS_MAX;
        if fits && !is_known {
            self.dirs.push(dir);
        }
        fits
    }
}

impl Linked {
    /// The directories in which a file may have other names; none where it has got none.
    pub fn dirs_of(&self, ino: Ino) -> Vec<Ino> {
        let all = self.0.lock();
        all.get(&ino).map_or(Vec::new(), |names| names.dirs.clone())
    }

    /// All names of a file are in directories that this session holds, or has held.
    pub fn is_of(&self, session: &Session, ino: Ino) -> bool {
        let all = self.0.lock();
        all.get(&ino).is_some_and(|n| n.session == session.id)
    }

    /// It has got another name.
    pub fn contains(&self, ino: Ino) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// The kernel knows it, or it is another file.
    pub fn forget(&self, ino: Ino) {
        self.0.lock().remove(&ino);
    }

    /// A session holds nothing any more.
    pub fn forget_all_of(&self, session: &Session) {
        self.0.lock().retain(|_, names| names.session != session.id);
    }
}

impl Direct {
    /// The kernel gives a file another name, wherever that may be.
    pub fn note_linked_by_kernel(&self, ino: Ino) {
        self.linked.forget(ino);
    }

    /// A file is about to get another name, in the second directory. True: it is the first that it gets so. Error: EOPNOTSUPP, it has names in too many.
    pub fn note_linked(
        &self,
        session: &Session,
        ino: Ino,
        dirs: [Ino; 2],
    ) -> Result<bool, Refused> {
        let mut all = self.linked.0.lock();
        let first = !all.contains_key(&ino);
        let names = all.entry(ino).or_default();
        names.session = session.id;
        match dirs.into_iter().all(|dir| names.add(dir)) {
            true => Ok(first),
            false => Err(Refused::Errno(libc::EOPNOTSUPP)),
        }
    }

    /// A name goes to another directory. Error: EOPNOTSUPP, it is one of a file with names in too many.
    pub fn note_renamed(
        &self,
        volume: &Calls,
        (from, name): (Ino, &[u8]),
        to: Ino,
    ) -> Result<(), Refused> {
        if self.linked.0.lock().is_empty() {
            return Ok(());
        }
        let ino = volume.lookup(from, name)?.ino;
        let mut all = self.linked.0.lock();
        match all.get_mut(&ino).is_none_or(|names| names.add(to)) {
            true => Ok(()),
            false => Err(Refused::Errno(libc::EOPNOTSUPP)),
        }
    }
}
