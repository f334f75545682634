//! Actions of the generator about rights and flags: lists, inheritance, bits that changes of content kill; and what else is rare but for
//! here: special files, copies, mappings.
use crate::generate::{Action, Generator, pattern};
use crate::oracle::*;

impl Generator {
    /// One of them, valid on `tree` at this moment; `None`: none was found.
    pub(crate) fn rights(&mut self, tree: &Tree, stream: usize) -> Option<Action> {
        for _ in 0..8 {
            let found = match self.rng.below(12) {
                0..2 => self.acl(tree, stream),
                2..4 => self.bits(tree, stream),
                4..6 => self.flags(tree, stream),
                6 => self.special_attributes(tree, stream),
                7 | 8 => return self.hold(tree, stream),
                9 => match self.copy(tree, stream) {
                    Some(copy) => return Some(copy),
                    None => continue,
                },
                _ => self.store(tree),
            };
            if let Some(op) = found
                && tree.check(&op).is_ok()
            {
                return Some(Action::Op(op));
            }
        }
        None
    }

    /// A directory, but for the root, or a file that may have such things.
    fn either(&mut self, tree: &Tree, stream: usize, dirs: u64) -> Option<NodeId> {
        let node = match self.rng.chance(dirs) {
            true => self.dir(tree, stream),
            false => self.file(tree, stream)?,
        };
        // 0o600 marks files that began without a name.
        (node != tree.root && tree.nodes[&node].mode != S_IFREG | 0o600).then_some(node)
    }

    fn acl(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = self.either(tree, stream, 70)?;
        let name = match tree.nodes[&node].is_dir() && self.rng.chance(60) {
            true => ACL_DEFAULT,
            false => ACL_ACCESS,
        };
        let name: Bytes = name.into();
        if tree.nodes[&node].xattrs.contains_key(&name) && self.rng.chance(35) {
            return Some(Op::RemoveXattr { node, name });
        }
        let mut entries = Vec::new();
        let mut entry = |tag: u16, perm: u64, id: u32| entries.push((tag, perm as u16, id));
        let bits = self.rng.draw();
        let perm = |n: u32| bits >> (8 * n) & 7;
        let named = self.rng.below(4) as u32;
        entry(1, perm(0) | 6, u32::MAX);
        (0..named).for_each(|i| entry(2, perm(1), 1000 + i));
        entry(4, perm(2), u32::MAX);
        if named > 0 {
            entry(16, perm(3), u32::MAX);
        }
        entry(32, perm(4), u32::MAX);
        let value = list_of(entries);
        Some(Op::SetXattr { node, name, value })
    }

    /// setuid, setgid, sticky.
    fn bits(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = self.either(tree, stream, 60)?;
        let is_dir = tree.nodes[&node].is_dir();
        let mode = match is_dir {
            true => *self.rng.pick(&[0o2755, 0o2750, 0o1777, 0o755]),
            false => *self.rng.pick(&[0o4755, 0o6755, 0o2755, 0o2644, 0o644]),
        };
        let gid = self.rng.chance(30).then(|| self.rng.below(5) as u32);
        let kills = tree.nodes[&node].has_bits_to_kill();
        // Or an owner, which takes the bits with it.
        let set = match kills && self.rng.chance(50) {
            true => Set {
                uid: Some(self.rng.below(3) as u32),
                kill: true,
                ..Set::default()
            },
            false => Set {
                mode: Some(mode),
                gid,
                kill: kills && gid.is_some(),
                ..Set::default()
            },
        };
        Some(Op::SetAttr { node, set })
    }

    fn flags(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = self.either(tree, stream, 60)?;
        let of_node = &tree.nodes[&node];
        let flags = match of_node.flags & (IMMUTABLE | APPEND) {
            // What is fixed is let go soon, or nothing could happen any more.
            0 => *self.rng.pick(&[
                0x8, 0x40, 0x80, 0xc0, 0x10080, IMMUTABLE, APPEND, 0x20040, 0,
            ]),
            _ => *self.rng.pick(&[0, 0, 0, 0x40]),
        };
        let flags = match of_node.is_dir() {
            true => flags,
            false => flags & !FLAGS_OF_DIRS,
        };
        Some(Op::SetFlags { node, flags })
    }

    /// Attributes and names of what is neither a file nor a directory.
    fn special_attributes(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let dir = self.dir(tree, stream);
        let is_special =
            |n: &NodeId| !tree.nodes[n].is_dir() && tree.nodes[n].mode & S_IFMT != S_IFREG;
        let all: Vec<NodeId> = tree.nodes[&dir].entries.values().copied().collect();
        let all: Vec<NodeId> = all.into_iter().filter(is_special).collect();
        if all.is_empty() {
            return None;
        }
        let node = *self.rng.pick(&all);
        let set = |set| Some(Op::SetAttr { node, set });
        let number = self.rng.below(1 << 20);
        match self.rng.below(5) {
            0 => set(Set {
                uid: Some(number as u32),
                ..Set::default()
            }),
            1 => set(Set {
                mtime: Some((number as i64, 7)),
                ..Set::default()
            }),
            2 if tree.nodes[&node].mode & S_IFMT != S_IFLNK => set(Set {
                mode: Some(number as u16 & 0o777),
                ..Set::default()
            }),
            3 => Some(Op::SetXattr {
                node,
                name: b"trusted.t".as_slice().into(),
                value: pattern(number, 0, number as usize % 90),
            }),
            _ => {
                let parent = self.dir(tree, stream);
                let name = format!("n{}", number % self.mix.names).into_bytes().into();
                Some(Op::Link { node, parent, name })
            }
        }
    }

    /// Opens a file, for mappings.
    fn hold(&mut self, tree: &Tree, stream: usize) -> Option<Action> {
        self.open.retain(|n| tree.nodes.contains_key(n));
        let node = self
            .file(tree, stream)
            .filter(|n| !self.open.contains(n) && self.open.len() < 6)?;
        self.open.push(node);
        Some(Action::Open(node))
    }

    /// A page of a file that may be mapped; whether it is one of a mapping is in its bytes (`Driver::is_mapped`).
    fn store(&mut self, tree: &Tree) -> Option<Op> {
        self.open.retain(|n| tree.nodes.contains_key(n));
        if self.open.is_empty() {
            return None;
        }
        let open = self.open.clone();
        let node = *self.rng.pick(&open);
        let file = &tree.nodes[&node];
        let offset = self.rng.below(file.size.div_ceil(4096)) * 4096;
        let len = file.size.saturating_sub(offset).min(4096);
        self.writes += 1;
        (len > 0).then(|| Op::Write {
            node,
            offset,
            data: pattern(self.writes << 8, offset, len as usize),
            kill: false,
        })
    }

    fn copy(&mut self, tree: &Tree, stream: usize) -> Option<Action> {
        let (from, to) = (self.file(tree, stream)?, self.file(tree, stream)?);
        let (source, target) = (tree.nodes[&from].size, tree.nodes[&to].size);
        let from_offset = self.rng.below(source);
        let to_offset = self.rng.below(target + 5000);
        let len = 1 + self.rng.below(self.mix.write_max.min(100 << 10));
        (from != to && source > 0).then_some(Action::Copy {
            from,
            from_offset,
            to,
            to_offset,
            len,
        })
    }
}
