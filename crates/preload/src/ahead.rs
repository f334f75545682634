//! Opens of small files of which more are asked for at a time, when a program reads one after the other.
use crate::answer::Stop;
use crate::changes::Seen;
use crate::heads::Kept;
use crate::place::Id;
use crate::state::State;
use crate::table::{Begin, Found};
use ccfs_client::direct::{Dir, File};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

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
    let reading = tree.reading(id);
    let Some(kept) = kept else {
        let (listed, heads) = reading.ok_or(None)?;
        let names = heads
            .next_of(&mut listed.all, &mut listed.reading, name)
            .ok_or(None)?;
        return Err(Some(Wanted {
            names,
            seen,
            changes,
        }));
    };
    if let Some((listed, heads)) = reading {
        heads.note_opened(&listed.all, &mut listed.reading, name);
    }
    Ok(Found {
        attr: kept.head.attr,
        head: Begin::new(kept.head.content),
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
