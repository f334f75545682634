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
    // Another thread may have taken it meanwhile.
    match tree.find(path.base, path.bytes) {
        Ok(Place {
            dir, name: None, ..
        }) => return Ok(dir),
        Ok(Place {
            dir,
            name: Some(name),
            ..
        }) => return tree.below(dir, name),
        Err(Stop::Kernel) => {}
        Err(e) => return Err(e),
    }
    if tree.taking.is_in_vain() || flags & libc::O_PATH != 0 {
        return Err(Stop::Kernel);
    }
    let place = tree.known_dir(fd, parent, at).ok_or(Stop::Kernel)?;
    let taken = tree.take_top(&place, name, Used::Some);
    match taken {
        Ok(_) => tree.taking.taken += 1,
        Err(_) => {
            tree.taking.refused += 1;
            count::left(Reason::Known);
        }
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

/// A file is looked for in a directory that nobody here holds: that is taken, if the kernel knows nothing in it. `Kernel`: it is not.
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
    match taken {
        Ok(_) => tree.looking.taking.taken += 1,
        Err(_) => tree.looking.taking.refused += 1,
    }
    taken.map(drop)
}

/// Another thread has taken the directory meanwhile.
fn is_held(tree: &mut Tree, path: &Path<'_>) -> bool {
    !matches!(tree.find(path.base, path.bytes), Err(Stop::Kernel))
}

/// Files that are made in a directory that the kernel knows before it is tried to take that.
const MADE_MIN: u32 = 4;
/// It is tried again when there are so many times more, up to so many times.
const MADE_TIMES: u32 = 4;
const MADE_MAX: u32 = 256;

/// A file may be made: its directory is taken if that is one of many. `Kernel`: it is not.
pub fn take_where_made(state: &State, path: &Path<'_>) -> Result<(), Stop> {
    let Base::At(fd) = path.base else {
        return Err(Stop::Kernel);
    };
    let (dir, _) = split(path.bytes).ok_or(Stop::Kernel)?;
    let (parent, name) = split(dir).ok_or(Stop::Kernel)?;
    if !may_lead_there(path.bytes) {
        return Err(Stop::Kernel);
    }
    let at = known(fd, dir)?;
    let made = state.tree().note_made(at);
    let due = std::iter::successors(Some(MADE_MIN), |n| Some(n * MADE_TIMES));
    if !due.take_while(|n| *n <= MADE_MAX).any(|n| n == made) {
        return Err(Stop::Kernel);
    }
    let at = known(fd, parent)?;
    let mut tree = state.tree();
    if is_held(&mut tree, path) {
        return Ok(());
    }
    let place = tree.known_dir(fd, parent, at).ok_or(Stop::Kernel)?;
    tree.take_top(&place, name, Used::Much).map(drop)
}
