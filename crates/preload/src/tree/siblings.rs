//! Directories that are found before a program comes to them: who goes through a tree comes to the ones beside the one that it looks for next.
use super::{Id, Node, Tree, Up};
use crate::heads::{Key, Order};
use std::cmp::Ordering;
use std::collections::HashMap;

/// So many are found in advance at a time. Each waits for an answer of up to 128 KiB, of which the ring has room for 32.
const AHEAD: usize = 7;
/// Directories that may be found in vain, whatever was of use: those that a program has not come to yet, on all levels.
const VAIN: u32 = 64;

/// Who has come to so many that were found in advance goes through a tree.
const WALKED: u32 = 16;
/// Levels of a tree at which to look for where a program comes back to.
const LEVELS: usize = 64;

/// What came of it, and in which order a program goes.
#[derive(Default)]
pub struct Siblings {
    order: Order,
    last: Option<(Id, Key)>,
    found: u32,
    used: u32,
}

impl Siblings {
    fn is_due(&self) -> bool {
        self.found <= self.used.saturating_mul(2).saturating_add(VAIN)
    }

    /// One was found in advance.
    pub fn note_found(&mut self) {
        self.found = self.found.saturating_add(1);
    }

    /// A program has come to one that was.
    pub fn note_used(&mut self) {
        self.used = self.used.saturating_add(1);
    }
}

/// Whether a directory is one of those above another one.
fn is_above(nodes: &HashMap<Id, Node>, id: Id, of: Id) -> bool {
    let up = |id: &Id| match nodes.get(id)?.up {
        Up::Held(up) => Some(up),
        Up::Known(_) => None,
    };
    std::iter::successors(Some(of), up)
        .take(LEVELS)
        .any(|up| up == id)
}

impl Tree {
    /// What is to be found in a directory beside this name, which is not known yet. Who looks for one path goes through no tree; who comes back to a
    /// directory for the next one in it does.
    pub(super) fn beside(&mut self, id: Id, name: &[u8]) -> Vec<Box<[u8]>> {
        let Some(node) = self.nodes.get(&id) else {
            return Vec::new();
        };
        let listed = node.listed.as_ref().filter(|_| node.changing == 0);
        let Some((dirs, now)) =
            listed.and_then(|listed| Some((&listed.dirs, listed.dirs.get(name)?)))
        else {
            return Vec::new();
        };
        let siblings = &mut self.siblings;
        let last = siblings.last.replace((id, now.clone()));
        let is_walk = match &last {
            Some((of, last)) if *of == id => {
                siblings.order = siblings.order.next(last, now);
                true
            }
            // It comes back from a directory below.
            Some((of, _)) => is_above(&self.nodes, id, *of),
            None => false,
        };
        let is_walk = is_walk || siblings.used >= WALKED;
        if !is_walk || !siblings.is_due() {
            return Vec::new();
        }
        let order = siblings.order;
        let unknown = |key: &&Key| {
            order.of(key, now) == Ordering::Greater && !node.below.contains_key(&key.name)
        };
        let mut next: Vec<&Key> = dirs.values().filter(unknown).collect();
        next.sort_unstable_by(|a, b| order.of(a, b));
        next.truncate(AHEAD);
        next.into_iter().map(|key| key.name.clone()).collect()
    }
}
