//! Names of an open directory, as getdents64(2) gives them.
use crate::answer::{Answer, Stop};
use crate::attrs::{Attrs, KEPT};
use crate::place::Id;
use crate::program;
use crate::state::State;
use crate::table::{Listing, Place};
use ccfs_client::direct::{Dir, Listed};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Where in a struct linux_dirent64 the name begins.
const NAME: usize = 19;

/// Writes as many names as there is room for: how many bytes.
pub fn give(state: &State, (dir, id): (&Dir, Id), place: &mut Place, at: u64, len: u64) -> Answer {
    let out = program::room(at, len)?;
    if place.listing.is_none() {
        let kept = match place.offset {
            0 if dir.is_direct() => state.tree().kept_names(id),
            _ => None,
        };
        let names = match kept {
            Some(names) => names,
            None => list(state, dir, id, place.offset, false)?.ok_or(Stop::Kernel)?,
        };
        place.listing = Some(Listing { names, given: 0 });
    }
    let Some(listing) = &mut place.listing else {
        return Err(Stop::Kernel);
    };
    let mut used = 0;
    while let Some(Listed { entry, next, .. }) = listing.names.get(listing.given) {
        let name = entry.name.as_bytes();
        let bytes = (NAME + name.len() + 1).next_multiple_of(8);
        let Some(to) = out.get_mut(used..used + bytes) else {
            break;
        };
        to.fill(0);
        to[..8].copy_from_slice(&entry.ino.to_ne_bytes());
        to[8..16].copy_from_slice(&next.to_ne_bytes());
        to[16..18].copy_from_slice(&(bytes as u16).to_ne_bytes());
        to[18] = entry.kind;
        to[NAME..NAME + name.len()].copy_from_slice(name);
        used += bytes;
        place.offset = *next;
        listing.given += 1;
    }
    match used == 0 && listing.given < listing.names.len() {
        true => Err(Stop::Errno(libc::EINVAL)),
        false => Ok(used as i64),
    }
}

/// All names of a directory from a position on; attributes of its files are known from here on. `asked`: these are what is wanted. `None`: it is not
/// held.
pub fn list(
    state: &State,
    dir: &Dir,
    id: Id,
    from: u64,
    asked: bool,
) -> Result<Option<Arc<Vec<Listed>>>, Stop> {
    let seen = state.changes.now();
    let (changes, quiet) = {
        let tree = state.tree();
        let place = tree.place(id);
        let quiet = place.is_some_and(|place| !state.table.writers.may_be_in(place));
        (tree.changes(id), quiet)
    };
    let Some(names) = dir.list_held(from)? else {
        return Ok(None);
    };
    if from == 0 {
        state.tree().note_wanted(id);
    }
    let names = Arc::new(names);
    let Some(changes) = changes.filter(|_| names.len() <= KEPT) else {
        return Ok(Some(names));
    };
    if from == 0 {
        state.tree().keep_names(id, changes, names.clone());
    }
    if !quiet {
        return Ok(Some(names));
    }
    let attrs = Attrs::of(&names, seen, asked);
    state.tree().note_listed(id, changes, attrs);
    Ok(Some(names))
}

/// As lseek(2): the next names are those from there on, as they are then.
pub fn seek(place: &mut Place, offset: i64, whence: u64) -> Answer {
    let base = match whence as i32 {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => place.offset as i64,
        _ => return Err(Stop::Kernel),
    };
    match base.checked_add(offset) {
        Some(at) if at >= 0 => {
            if at as u64 != place.offset || at == 0 {
                place.listing = None;
            }
            place.offset = at as u64;
            Ok(at)
        }
        _ => Err(Stop::Errno(libc::EINVAL)),
    }
}
