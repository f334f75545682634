//! Where directories are: in which one, and by what name.
use super::{Node, Tree, Up};
use crate::place::Id;

impl Tree {
    /// Makes a directory known where it is; another one that was known there is not any more.
    pub(super) fn link(&mut self, id: Id) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (up, name) = (node.up, node.name.clone());
        let before = match up {
            Up::Held(up) => self
                .nodes
                .get_mut(&up)
                .and_then(|n| n.below.insert(name, id)),
            Up::Known(parent) => {
                let before = self.tops.insert((parent, name.clone()), id);
                if before.is_none() {
                    *self.names.entry(name).or_default() += 1;
                }
                before
            }
        };
        if let Some(before) = before.filter(|before| *before != id) {
            self.drop_tree(before);
        }
    }

    /// What was taken in it while the kernel knew it is in it now.
    pub(super) fn adopt(&mut self, id: Id) {
        let Some(at) = self.nodes.get(&id).map(|node| node.at) else {
            return;
        };
        let tops = self.tops.iter().filter(|((parent, _), _)| *parent == at);
        for top in tops.map(|(_, top)| *top).collect::<Vec<_>>() {
            self.unlink(top);
            if let Some(node) = self.nodes.get_mut(&top) {
                node.up = Up::Held(id);
            }
            self.link(top);
        }
    }

    fn unlink(&mut self, id: Id) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (up, name) = (node.up, node.name.clone());
        match up {
            Up::Held(up) => {
                if let Some(up) = self.nodes.get_mut(&up)
                    && up.below.get(&name) == Some(&id)
                {
                    up.below.remove(&name);
                }
            }
            Up::Known(parent) => {
                let place = (parent, name);
                if self.tops.get(&place) == Some(&id) {
                    self.tops.remove(&place);
                    if let Some(count) = self.names.get_mut(&place.1) {
                        *count -= 1;
                        if *count == 0 {
                            self.names.remove(&place.1);
                        }
                    }
                }
            }
        }
    }

    /// The kernel knows a directory by now: what is in it may be held still.
    pub(super) fn forget(&mut self, id: Id) {
        self.unlink(id);
        let Some(node) = self.remove(id) else {
            return;
        };
        for below in node.below.into_values() {
            if let Some(one) = self.nodes.get_mut(&below) {
                one.up = Up::Known(node.at);
                self.link(below);
            }
        }
    }

    fn remove(&mut self, id: Id) -> Option<Node> {
        let node = self.nodes.remove(&id)?;
        let place = (node.at.device, node.at.ino);
        if self.places.get(&place) == Some(&id) {
            self.places.remove(&place);
        }
        Some(node)
    }

    /// A directory has gone, and nothing is in it.
    pub fn removed(&mut self, id: Id) {
        self.unlink(id);
        self.drop_tree(id);
    }

    fn drop_tree(&mut self, id: Id) {
        let mut all = vec![id];
        while let Some(id) = all.pop() {
            if let Some(node) = self.remove(id) {
                all.extend(node.below.into_values());
            }
        }
    }

    /// A name has become another one, of this directory or another.
    pub fn renamed(&mut self, from: Id, name: &[u8], to: Id, new_name: &[u8]) {
        // What is above it may be another directory now.
        self.last = None;
        let moved = self
            .nodes
            .get(&from)
            .and_then(|n| n.below.get(name).copied());
        let replaced = self
            .nodes
            .get(&to)
            .and_then(|n| n.below.get(new_name).copied());
        if let Some(replaced) = replaced.filter(|r| Some(*r) != moved) {
            self.removed(replaced);
        }
        if let Some(id) = moved {
            self.unlink(id);
            if let Some(node) = self.nodes.get_mut(&id) {
                (node.exact, node.names) = (false, None);
                node.up = Up::Held(to);
                node.name = new_name.into();
            }
            self.link(id);
        }
    }

    /// Half of those that have nothing below them. Where they are in held directories they are found again by their names.
    pub(super) fn forget_old(&mut self) {
        let is_leaf = |n: &Node| n.below.is_empty();
        let leaves = self.nodes.iter().filter(|(_, n)| is_leaf(n));
        let mut old: Vec<_> = leaves.map(|(id, n)| (n.used, *id)).collect();
        old.sort_unstable();
        old.truncate(old.len().div_ceil(2));
        for (_, id) in old {
            self.removed(id);
        }
    }
}
