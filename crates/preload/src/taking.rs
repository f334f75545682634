//! Directories that the kernel may know are taken where a program does much in them, or where that is easy.
use crate::answer::Stop;
use crate::count::{self, Reason};
use crate::identity::known;
use crate::path::{Path, may_lead_there, split};
use crate::place::{Base, Id, Place};
use crate::region::{LOOKED_ELSEWHERE, region};
use crate::state::State;
use crate::tree::Tree;
use ccfs_client::direct::Used;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// A directory that the kernel may know is opened: by a program that reads trees, so it is taken.
pub fn take_listed(state: &State, path: &Path<'_>, flags: i32) -> Result<Id, Stop> {
    let Base::At(fd) = path.base else {
        return Err(Stop::Kernel);
    };
    let (parent, name) = split(path.bytes).ok_or(Stop::Kernel)?;
    if !may_lead_there(path.bytes) {
        return Err(Stop::Kernel);
    }
    let at = known(fd, parent)?;
    let mut tree = state.tree();
    if let Some(id) = held(&mut tree, path.base, path.bytes)? {
        return Ok(id);
    }
    if tree.taking.is_in_vain() || flags & libc::O_PATH != 0 {
        return Err(Stop::Kernel);
    }
    let place = tree.known_dir(fd, parent, at).ok_or(Stop::Kernel)?;
    let taken = tree.take_top(&place, name, Used::Some);
    tree.taking.note(&taken);
    if let Err(Stop::Kernel) = taken {
        count::left(Reason::Known);
    }
    taken
}

/// Where the path of a name that is looked at leads: its directory is taken if that can be had for little.
pub fn look<'p>(
    path: &Path<'p>,
) -> Result<(&'static State, MutexGuard<'static, Tree>, Place<'p>), Stop> {
    let state = match State::get() {
        Some(state) => state,
        None => {
            let is_relative = path.bytes.first() != Some(&b'/');
            if is_relative && known(libc::AT_FDCWD, b"").is_err() {
                let region = region().ok_or(Stop::Kernel)?;
                region.looked.store(LOOKED_ELSEWHERE, Relaxed);
                return Err(Stop::Kernel);
            }
            State::make()?
        }
    };
    let mut tree = state.tree();
    let place = match tree.find(path.base, path.bytes) {
        Err(Stop::Kernel) => {
            drop(tree);
            take_where_looked(state, path)?;
            tree = state.tree();
            tree.find(path.base, path.bytes)?
        }
        place => place?,
    };
    Ok((state, tree, place))
}

/// A file is looked for in a directory that nobody here holds: that is taken, if the kernel knows nothing in it. Errors: ENOENT, there is no such
/// directory; `Kernel`: it is not taken.
pub fn take_where_looked(state: &State, path: &Path<'_>) -> Result<(), Stop> {
    let Base::At(libc::AT_FDCWD) = path.base else {
        return Err(Stop::Kernel);
    };
    let (dir, _) = split(path.bytes).ok_or(Stop::Kernel)?;
    let (parent, name) = split(dir).ok_or(Stop::Kernel)?;
    if !may_lead_there(path.bytes) || !state.tree().looking.may_try(dir) {
        return Err(Stop::Kernel);
    }
    let mut at = known(libc::AT_FDCWD, parent)?;
    let mut tree = state.tree();
    if is_held(&mut tree, path) {
        return Ok(());
    }
    if parent.is_empty() {
        // So that it is known what it is from here on.
        at = tree.identity(libc::AT_FDCWD, parent).ok_or(Stop::Kernel)?;
    }
    let place = tree.known_dir(libc::AT_FDCWD, parent, at);
    let place = place.ok_or(Stop::Kernel);
    let taken = place.and_then(|place| tree.take_top(&place, name, Used::Little));
    tree.looking.taking.note(&taken);
    // One of many that are looked for there.
    if is_due(tree.note_used_in(at)) {
        drop(tree);
        let _ = take_known(state, libc::AT_FDCWD, parent, Used::Some);
    }
    // Where there is none the kernel is not asked: it would keep that in mind, and so the directory in which the name is not.
    taken.map(drop)
}

/// Another thread has taken the directory meanwhile.
fn is_held(tree: &mut Tree, path: &Path<'_>) -> bool {
    !matches!(tree.find(path.base, path.bytes), Err(Stop::Kernel))
}

/// Names that are used in a directory that the kernel knows before it is tried to take that.
const USED_MIN: u32 = 4;
/// It is tried again when there are so many times more, up to so many.
const USED_TIMES: u32 = 4;
const USED_MAX: u32 = 256;

fn is_due(used: u32) -> bool {
    let due = std::iter::successors(Some(USED_MIN), |n| Some(n * USED_TIMES));
    due.take_while(|n| *n <= USED_MAX).any(|n| n == used)
}

/// A directory that the kernel knows is taken. Errors: as [`Tree::take_top`].
fn take_known(state: &State, fd: i32, dir: &[u8], used: Used) -> Result<Id, Stop> {
    let (parent, name) = split(dir).ok_or(Stop::Kernel)?;
    let at = known(fd, parent)?;
    let mut tree = state.tree();
    if let Some(id) = held(&mut tree, Base::At(fd), dir)? {
        return Ok(id);
    }
    let place = tree.known_dir(fd, parent, at).ok_or(Stop::Kernel)?;
    tree.take_top(&place, name, used)
}

/// The directory that a path leads to, if it is held: another thread may have taken it meanwhile.
fn held(tree: &mut Tree, base: Base, path: &[u8]) -> Result<Option<Id>, Stop> {
    match tree.find(base, path) {
        Ok(Place {
            dir,
            name: Some(name),
            ..
        }) => tree.below(dir, name).map(Some),
        Ok(place) => Ok(Some(place.dir)),
        Err(Stop::Kernel) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A file or directory may be made: its directory is taken if that is one of many. `Kernel`: it is not.
pub fn take_where_made(state: &State, path: &Path<'_>) -> Result<(), Stop> {
    let Base::At(fd) = path.base else {
        return Err(Stop::Kernel);
    };
    let (dir, _) = split(path.bytes).ok_or(Stop::Kernel)?;
    if !may_lead_there(path.bytes) {
        return Err(Stop::Kernel);
    }
    let at = known(fd, dir)?;
    if !is_due(state.tree().note_used_in(at)) {
        return Err(Stop::Kernel);
    }
    take_known(state, fd, dir, Used::Much).map(drop)
}
