//! Random operations that make sense on a given tree.
use crate::oracle::*;
use ccfs_testkit::Rng;

/// How a workload looks.
#[derive(Clone, Debug)]
pub struct Mix {
    pub streams: usize,
    /// Percent of operations in the stream's own directory (`s0`, `s1`, ...); the rest is anywhere.
    pub own_percent: u64,
    /// Names per directory.
    pub names: u64,
    /// Directories below the root, levels.
    pub depth: u64,
    /// Longest usual write, bytes.
    pub write_max: u64,
    /// Percent of writes that are eight times as long.
    pub big_percent: u64,
    /// File offsets of writes and truncations stay below this, bytes.
    pub size_max: u64,
    /// Percent of actions that are sync calls.
    pub sync_percent: u64,
    /// Percent of actions that are commits by interval, or checkpoints.
    pub tick_percent: u64,
    /// Percent of sync calls on files that want order only.
    pub barrier_percent: u64,
    /// Percent of sync calls from streams that ignore them.
    pub ignore_percent: u64,
    /// Percent of operations that are meant to fail.
    pub wrong_percent: u64,
    /// Names of up to this many bytes now and then.
    pub long_names: bool,
    /// Percent of actions that begin or end an atomic group.
    pub group_percent: u64,
    /// Percent of actions that open, close or sync files O_ATOMIC.
    pub atomic_file_percent: u64,
    /// Percent of actions about rights and flags, what inherits or kills them, special files, copies and mappings.
    pub rights_percent: u64,
    /// Writes come as the kernel sends them: one that begins inside a page ends with it, and what follows is a request of its own.
    pub pages: bool,
}

impl Default for Mix {
    fn default() -> Self {
        Mix {
            streams: 3,
            own_percent: 60,
            names: 8,
            depth: 2,
            write_max: 12 << 10,
            big_percent: 3,
            size_max: 64 << 10,
            sync_percent: 12,
            tick_percent: 4,
            barrier_percent: 0,
            ignore_percent: 0,
            wrong_percent: 0,
            long_names: false,
            group_percent: 0,
            atomic_file_percent: 0,
            rights_percent: 0,
            pages: false,
        }
    }
}

/// What a driver does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Op(Op),
    Fsync {
        node: NodeId,
        data_only: bool,
    },
    /// fbarrier, fdatabarrier.
    Barrier(NodeId),
    StreamSync,
    VolumeSync,
    /// A sync call of a stream that ignores them: promises nothing.
    IgnoredSync(NodeId),
    /// Commits what is older than nothing: everything.
    Tick,
    Checkpoint,
    /// Discards everything that is free.
    Trim,
    /// The volume gets so many KiB larger, on a device that is.
    Grow(u64),
    /// copy_file_range(2): writes of what the source holds at their moment.
    Copy {
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        len: u64,
    },
    /// The kernel takes a reference (an open file).
    Open(NodeId),
    /// The kernel drops it.
    Close(NodeId),
    /// What the stream does belongs to an atomic group from here on.
    GroupBegin,
    GroupCommit {
        durable: bool,
    },
    GroupAbort,
    /// O_ATOMIC.
    AtomicFileOpen(NodeId),
    AtomicFileClose(NodeId),
    /// Unsynced changes of these files that are open O_ATOMIC become durable together.
    Syncv(Vec<NodeId>),
}

/// A generator of actions. It keeps the numbers of new inodes and the open files; the tree is the driver's.
#[derive(Clone, Debug)]
pub struct Generator {
    pub rng: Rng,
    pub mix: Mix,
    next_node: u64,
    pub(crate) writes: u64,
    pub(crate) open: Vec<NodeId>,
    /// Files that are open O_ATOMIC, or were meant to be.
    atomic: Vec<NodeId>,
    /// Second requests of writes, with their streams.
    pub(crate) rest: Vec<(usize, Op)>,
}

/// Bytes that tell where they come from: word by word the number of the write and the place in the file.
pub fn pattern(write: u64, offset: u64, len: usize) -> Bytes {
    let byte = |at: u64| {
        let word = (write << 24 | (at / 8) & 0xff_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.to_le_bytes()[(at % 8) as usize] | 1
    };
    (offset..offset + len as u64).map(byte).collect()
}

/// Whoever gives a file another size or owner has no privileges, if that makes a difference.
fn unprivileged(mut op: Op, tree: &Tree) -> Op {
    if let Op::SetAttr { node, set } = &mut op
        && (set.size.is_some() || set.uid.is_some() || set.gid.is_some())
    {
        set.kill = tree.nodes[node].has_bits_to_kill();
    }
    op
}

impl Generator {
    /// `first_node` is the first number for a new inode.
    pub fn new(seed: u64, mix: Mix, first_node: u64) -> Generator {
        Generator {
            rng: Rng::new(seed),
            mix,
            next_node: first_node,
            writes: 0,
            open: Vec::new(),
            atomic: Vec::new(),
            rest: Vec::new(),
        }
    }

    /// The next action and its stream.
    pub fn next(&mut self, tree: &Tree) -> (usize, Action) {
        let stream = self.rng.below(self.mix.streams as u64) as usize;
        (stream, self.next_of(tree, stream))
    }

    /// The next action of that stream.
    pub fn next_of(&mut self, tree: &Tree, stream: usize) -> Action {
        if let Some(at) = self.rest.iter().position(|r| r.0 == stream) {
            return Action::Op(self.rest.remove(at).1);
        }
        if self.mix.group_percent > 0 && self.rng.chance(self.mix.group_percent) {
            return match self.rng.below(8) {
                0..4 => Action::GroupBegin,
                4 | 5 => Action::GroupCommit { durable: true },
                6 => Action::GroupCommit { durable: false },
                _ => Action::GroupAbort,
            };
        }
        if self.mix.atomic_file_percent > 0
            && self.rng.chance(self.mix.atomic_file_percent)
            && let Some(action) = self.atomic(tree, stream)
        {
            return action;
        }
        if self.mix.rights_percent > 0
            && self.rng.chance(self.mix.rights_percent)
            && let Some(action) = self.rights(tree, stream)
        {
            return action;
        }
        let roll = self.rng.below(100);
        let (sync, tick) = (self.mix.sync_percent, self.mix.tick_percent);
        if roll < sync {
            self.sync(tree, stream)
        } else if roll < sync + tick {
            match self.rng.below(20) {
                0 | 1 => Action::Trim,
                2..7 => Action::Checkpoint,
                _ => Action::Tick,
            }
        } else if roll == 99 {
            self.open_or_close(tree, stream)
        } else {
            let op = self.op(tree, stream);
            Action::Op(match self.mix.pages {
                true => self.first_request(op, stream),
                false => op,
            })
        }
    }

    /// Something with files that are open O_ATOMIC.
    fn atomic(&mut self, tree: &Tree, stream: usize) -> Option<Action> {
        self.atomic.retain(|n| tree.nodes.contains_key(n));
        let n = self.atomic.len() as u64;
        match self.rng.below(10) {
            _ if n == 0 => {}
            0..2 => {
                let at = self.rng.below(n) as usize;
                return Some(Action::AtomicFileClose(self.atomic.swap_remove(at)));
            }
            2..4 => {
                let node = *self.rng.pick(&self.atomic);
                let data_only = self.rng.chance(30);
                return Some(Action::Fsync { node, data_only });
            }
            4..7 => return Some(Action::Syncv(self.atomic.clone())),
            _ => {}
        }
        let node = self.file(tree, stream)?;
        if n >= 4 || self.atomic.contains(&node) {
            return None;
        }
        self.atomic.push(node);
        Some(Action::AtomicFileOpen(node))
    }

    fn sync(&mut self, tree: &Tree, stream: usize) -> Action {
        let node = match self.rng.below(8) {
            0 => self.dir(tree, stream),
            _ => self.file(tree, stream).unwrap_or(tree.root),
        };
        if self.rng.chance(self.mix.ignore_percent) {
            return Action::IgnoredSync(node);
        }
        if self.mix.barrier_percent > 0 && self.rng.chance(self.mix.barrier_percent) {
            return Action::Barrier(node);
        }
        match self.rng.below(10) {
            0 => Action::VolumeSync,
            1 | 2 => Action::StreamSync,
            _ => Action::Fsync {
                node,
                data_only: self.rng.chance(30),
            },
        }
    }

    fn open_or_close(&mut self, tree: &Tree, stream: usize) -> Action {
        if self.open.len() < 4
            && self.rng.chance(60)
            && let Some(node) = self.file(tree, stream).filter(|n| !self.open.contains(n))
        {
            self.open.push(node);
            return Action::Open(node);
        }
        match self.open.len() {
            0 => Action::Tick,
            n => Action::Close(self.open.swap_remove(self.rng.below(n as u64) as usize)),
        }
    }

    fn fresh(&mut self, mode: u16) -> Make {
        self.next_node += 1;
        let uid = if self.rng.chance(20) { 1000 } else { 0 };
        Make {
            node: NodeId(self.next_node - 1),
            mode,
            uid,
            gid: uid,
        }
    }

    /// A directory, by a random walk from the stream's own or from the root.
    pub(crate) fn dir(&mut self, tree: &Tree, stream: usize) -> NodeId {
        let own = tree.lookup(tree.root, format!("s{stream}").as_bytes()).ok();
        let mut at = match own.filter(|n| tree.nodes[n].is_dir()) {
            Some(own) if self.rng.chance(self.mix.own_percent) => own,
            _ => tree.root,
        };
        while self.rng.chance(50) {
            match self.child(tree, at) {
                Some((_, node)) if tree.nodes[&node].is_dir() && tree.nodes[&node].nlink > 0 => {
                    at = node
                }
                _ => break,
            }
        }
        at
    }

    pub(crate) fn child(&mut self, tree: &Tree, dir: NodeId) -> Option<(Bytes, NodeId)> {
        let entries = &tree.nodes[&dir].entries;
        let nth = self.rng.below(entries.len() as u64) as usize;
        entries
            .iter()
            .nth(nth)
            .map(|(k, v)| (k.clone(), *v))
            .filter(|(k, _)| &**k != b"lost+found")
    }

    /// A regular file with a name or held open.
    pub(crate) fn file(&mut self, tree: &Tree, stream: usize) -> Option<NodeId> {
        if !self.atomic.is_empty() && self.rng.chance(40) {
            let node = *self.rng.pick(&self.atomic);
            if tree.nodes.contains_key(&node) {
                return Some(node);
            }
        }
        if !self.open.is_empty() && self.rng.chance(10) {
            // The making of an unnamed file may have failed for lack of space.
            self.open.retain(|n| tree.nodes.contains_key(n));
            let open = self.open.clone();
            return (!open.is_empty()).then(|| *self.rng.pick(&open));
        }
        for _ in 0..4 {
            let dir = self.dir(tree, stream);
            if let Some((_, node)) = self.child(tree, dir)
                && tree.nodes[&node].mode & S_IFMT == S_IFREG
            {
                return Some(node);
            }
        }
        None
    }

    fn name(&mut self) -> Bytes {
        let n = self.rng.below(self.mix.names);
        let name = format!("n{n}");
        if self.mix.long_names && self.rng.chance(50) {
            let len = 1 + self.rng.below(254) as usize;
            return format!("{name:x<len$}").into_bytes().into();
        }
        name.into_bytes().into()
    }

    fn free_name(&mut self, tree: &Tree, dir: NodeId) -> Option<Bytes> {
        (0..6)
            .map(|_| self.name())
            .find(|n| !tree.nodes[&dir].entries.contains_key(n))
    }

    fn depth(&self, tree: &Tree, dir: NodeId) -> u64 {
        let mut at = dir;
        for depth in 0..64 {
            match tree.nodes.get(&at).and_then(|n| n.parent) {
                Some(up) if up != at => at = up,
                _ => return depth,
            }
        }
        64
    }

    /// An operation; valid on `tree` unless it is meant to fail.
    pub fn op(&mut self, tree: &Tree, stream: usize) -> Op {
        if self.rng.chance(self.mix.wrong_percent) {
            return self.wrong(tree, stream);
        }
        for _ in 0..20 {
            let found = match self.rng.below(100) {
                0..12 => self.create(tree, stream),
                12..17 => self.mkdir(tree, stream),
                17..20 => self.special(tree, stream),
                20..24 => self.link(tree, stream),
                24..33 => self.remove(tree, stream),
                33..45 => self.rename(tree, stream),
                45..78 => self.write(tree, stream),
                78..88 => self.reshape(tree, stream),
                88..94 => self.attributes(tree, stream),
                _ => self.xattr(tree, stream),
            };
            // The model knows best whether it is valid.
            if let Some(op) = found.map(|op| unprivileged(op, tree))
                && tree.check(&op).is_ok()
            {
                return op;
            }
        }
        let set = Set {
            mode: Some(0o700 | self.rng.below(64) as u16),
            ..Set::default()
        };
        Op::SetAttr {
            node: tree.root,
            set,
        }
    }

    /// An operation that fails more often than not; the driver compares the error with the model's.
    fn wrong(&mut self, tree: &Tree, stream: usize) -> Op {
        let (parent, to) = (self.dir(tree, stream), self.dir(tree, stream));
        let (name, new_name) = (self.name(), self.name());
        match self.rng.below(6) {
            0 => Op::Unlink { parent, name },
            1 => Op::Rmdir { parent, name },
            2 => Op::Mkdir {
                parent,
                name,
                make: self.fresh(S_IFDIR | 0o755),
            },
            3 => Op::Mknod {
                parent,
                name,
                make: self.fresh(S_IFREG | 0o644),
                rdev: 0,
            },
            _ => {
                let kind = *self.rng.pick(&[
                    RenameKind::Plain,
                    RenameKind::NoReplace,
                    RenameKind::Exchange,
                ]);
                Op::Rename {
                    from: parent,
                    name,
                    to,
                    new_name,
                    kind,
                }
            }
        }
    }

    fn create(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let parent = self.dir(tree, stream);
        if self.rng.chance(5) {
            let make = self.fresh(S_IFREG | 0o600);
            self.open.push(make.node);
            return Some(Op::Tmpfile { parent, make });
        }
        let name = self.free_name(tree, parent)?;
        Some(Op::Mknod {
            parent,
            name,
            make: self.fresh(S_IFREG | 0o644),
            rdev: 0,
        })
    }

    fn mkdir(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let own = Bytes::from(format!("s{stream}").into_bytes());
        if tree.lookup(tree.root, &own).is_err() {
            return Some(Op::Mkdir {
                parent: tree.root,
                name: own,
                make: self.fresh(S_IFDIR | 0o755),
            });
        }
        let parent = self.dir(tree, stream);
        let name = self.free_name(tree, parent)?;
        if self.depth(tree, parent) >= self.mix.depth {
            return None;
        }
        Some(Op::Mkdir {
            parent,
            name,
            make: self.fresh(S_IFDIR | 0o750),
        })
    }

    fn special(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let parent = self.dir(tree, stream);
        let name = self.free_name(tree, parent)?;
        if self.rng.chance(30) {
            let (mode, rdev) = *self.rng.pick(&[
                (0o010644, 0),
                (0o020600, 0x0103),
                (0o060600, 0x12_0801),
                (0o140755, 0),
            ]);
            return Some(Op::Mknod {
                parent,
                name,
                make: self.fresh(mode),
                rdev,
            });
        }
        let long = self.rng.chance(40);
        let len = if long {
            60 + self.rng.below(400)
        } else {
            1 + self.rng.below(59)
        };
        let target = pattern(self.next_node, 0, len as usize)
            .iter()
            .map(|b| b'a' + b % 26)
            .collect();
        Some(Op::Symlink {
            parent,
            name,
            make: self.fresh(S_IFLNK | 0o777),
            target,
        })
    }

    fn link(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let parent = self.dir(tree, stream);
        let name = self.free_name(tree, parent)?;
        let node = self.file(tree, stream)?;
        // A file that lost its last name cannot get a new one; one that never had a name can (its ctime tells nothing,
        // so only files that are open and unnamed since their making are linked: `linkable`).
        (tree.nodes[&node].nlink > 0 || tree.nodes[&node].mode == S_IFREG | 0o600)
            .then_some(Op::Link { node, parent, name })
    }

    fn remove(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let parent = self.dir(tree, stream);
        let (name, node) = self.child(tree, parent)?;
        let node = &tree.nodes[&node];
        match node.is_dir() {
            true if self.rng.chance(50) => Some(Op::Rmdir { parent, name }),
            true => None,
            // Files of mode 600 began without a name; they keep one, so that `link` need not know their past.
            false if node.mode == S_IFREG | 0o600 && node.nlink == 1 => None,
            false => Some(Op::Unlink { parent, name }),
        }
    }

    fn rename(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let from = self.dir(tree, stream);
        let to = if self.rng.chance(60) {
            from
        } else {
            self.dir(tree, stream)
        };
        let (name, _) = self.child(tree, from)?;
        let new_name = match self.rng.chance(50) {
            true => self.child(tree, to)?.0,
            false => self.name(),
        };
        let kind = match self.rng.below(12) {
            0 => RenameKind::NoReplace,
            1 => RenameKind::Exchange,
            2 => RenameKind::Whiteout(self.fresh(S_IFCHR).node),
            _ => RenameKind::Plain,
        };
        let replaced = tree
            .lookup(to, &new_name)
            .ok()
            .filter(|_| kind != RenameKind::Exchange);
        if replaced
            .is_some_and(|n| tree.nodes[&n].mode == S_IFREG | 0o600 && tree.nodes[&n].nlink == 1)
        {
            return None;
        }
        Some(Op::Rename {
            from,
            name,
            to,
            new_name,
            kind,
        })
    }

    fn write(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = self.file(tree, stream)?;
        let size = tree.nodes[&node].size;
        let big = if self.rng.chance(self.mix.big_percent) {
            8
        } else {
            1
        };
        let mut len = 1 + match self.rng.below(4) {
            0 => self.rng.below(200),
            1 => self.rng.below(5000),
            _ => self.rng.below(self.mix.write_max * big),
        };
        let mut offset = match self.rng.below(10) {
            0..5 => size,
            5..8 => self.rng.below(size),
            _ => self.rng.below(self.mix.size_max),
        };
        if self.rng.chance(40) {
            (offset, len) = (offset & !1023, (len + 1023) & !1023);
        }
        let room = (self.mix.size_max * big).saturating_sub(offset).max(1);
        self.writes += 1;
        let data = pattern(
            self.writes << 8 | stream as u64,
            offset,
            len.min(room) as usize,
        );
        Some(Op::Write {
            node,
            offset,
            data,
            kill: tree.nodes[&node].has_bits_to_kill(),
        })
    }

    fn reshape(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = self.file(tree, stream)?;
        let size = tree.nodes[&node].size;
        let offset = self.rng.below(size.max(4096));
        let len = 1 + self.rng.below(self.mix.write_max * 2);
        let keep_size = self.rng.chance(50);
        Some(match self.rng.below(8) {
            0 => Op::Allocate {
                node,
                offset,
                len,
                keep_size,
            },
            1 => Op::Zero {
                node,
                offset,
                len,
                keep_size,
            },
            2 | 3 => Op::Punch { node, offset, len },
            4 => Op::SetAttr {
                node,
                set: Set {
                    size: Some(self.rng.below(self.mix.size_max)),
                    ..Set::default()
                },
            },
            5 => Op::SetAttr {
                node,
                set: Set {
                    size: Some(0),
                    ..Set::default()
                },
            },
            _ => Op::SetAttr {
                node,
                set: Set {
                    size: Some(offset.min(size)),
                    ..Set::default()
                },
            },
        })
    }

    fn attributes(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = if self.rng.chance(30) {
            self.dir(tree, stream)
        } else {
            self.file(tree, stream)?
        };
        // 0o600 marks files that began without a name.
        let mode = if tree.nodes[&node].mode == S_IFREG | 0o600 {
            None
        } else {
            Some(0o640 | self.rng.below(8) as u16)
        };
        let mut set = Set::default();
        match self.rng.below(4) {
            0 => set.mode = mode.or(Some(0o600)),
            1 => set.uid = Some(self.rng.below(3) as u32 * 70_000),
            2 => (set.gid, set.mode) = (Some(self.rng.below(5) as u32), mode),
            _ => {
                set.mtime = Some((
                    1_000_000_000 + self.rng.below(1 << 30) as i64,
                    self.rng.below(1_000_000_000) as u32,
                ))
            }
        }
        Some(Op::SetAttr { node, set })
    }

    fn xattr(&mut self, tree: &Tree, stream: usize) -> Option<Op> {
        let node = if self.rng.chance(25) {
            self.dir(tree, stream)
        } else {
            self.file(tree, stream)?
        };
        let have: Vec<Bytes> = tree.nodes[&node].xattrs.keys().cloned().collect();
        if !have.is_empty() && self.rng.chance(40) {
            return Some(Op::RemoveXattr {
                node,
                name: self.rng.pick(&have).clone(),
            });
        }
        let names: [&[u8]; 4] = [b"user.a", b"user.longer-name", b"trusted.t", b"security.s"];
        let name: Bytes = (*self.rng.pick(&names)).into();
        let len = if self.rng.chance(70) {
            self.rng.below(40)
        } else {
            self.rng.below(500)
        };
        self.writes += 1;
        let value = pattern(self.writes, 0, len as usize);
        Some(Op::SetXattr { node, name, value })
    }
}
