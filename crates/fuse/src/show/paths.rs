//! Paths for one answer to one viewer. A name is found by reading its directory, and anybody can ask for many names in large directories:
//! all of an answer together take no longer than reading a few large directories, and each is looked for once.
use super::Viewer;
use super::recent::cut;
use ccfs_engine::{Attr, Ino, PathSteps, ROOT_INO, Volume};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Longest path that is shown, bytes.
const PATH_MAX: usize = 512;
/// Directory entries and levels that are gone through for an answer. When they are used up, what is left has no path.
const STEPS: usize = 200_000;

/// Looks for paths, as long as its bound of steps allows.
pub struct Paths<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// Whose rights decide which names may be shown.
    pub viewer: Viewer,
    left: Cell<usize>,
    known: RefCell<HashMap<Ino, Option<String>>>,
}

impl<'a> Paths<'a> {
    /// With the whole bound of steps.
    pub fn new(volume: &'a Volume, viewer: Viewer) -> Paths<'a> {
        Paths {
            volume,
            viewer,
            left: Cell::new(STEPS),
            known: RefCell::default(),
        }
    }

    /// What is asked for now may have no path although another answer would have it.
    pub fn is_spent(&self) -> bool {
        self.left.get() == 0
    }

    /// The path of a file if this viewer may know it: its own file, and `ls` would have shown it every name on the way.
    pub fn of(&self, ino: Ino) -> Option<String> {
        if ino == 0 {
            return None;
        }
        if let Some(known) = self.known.borrow().get(&ino) {
            return known.clone();
        }
        let may_see = |attr: &Attr| {
            self.viewer.is(attr.uid)
                || attr.ino == ROOT_INO
                || attr.ino != ino && attr.mode & 0o055 == 0o055
        };
        let mut left = PathSteps(self.left.get());
        let path = self.volume.path(ino, &may_see, &mut left);
        self.left.set(left.0);
        let path = path.map(|path| cut(path, PATH_MAX));
        self.known.borrow_mut().insert(ino, path.clone());
        path
    }
}
