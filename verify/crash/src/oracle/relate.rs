//! Promise C5: which operations of different streams keep their order, and what a history makes of every object.
use super::op::*;
use super::rights::{ACL_ACCESS, is_acl, is_minimal};
use super::tree::*;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// How many operations of each stream survive.
pub type Cut = Vec<u32>;

/// A value that an object had: from the operation `op` on, or from the beginning.
#[derive(Clone, Debug)]
pub struct Version<T> {
    pub op: Option<usize>,
    pub value: T,
}

/// Parts of a directory's inode that streams may change without order among them: the latest survivor's value stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    Mode,
    Uid,
    Gid,
    Flags,
    Mtime,
    Ctime,
    Xattr(Bytes),
}

/// Why two operations are related (C5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// One inode that is no directory.
    Inode,
    /// One name in one directory.
    Name,
    /// The making of a directory, and what is done in or to it.
    Creation,
    /// A change of a directory's mode, owner, ACL or flags, and an entry in it.
    Rights,
    /// An entry change in a directory, and its removal or replacement.
    Removal,
    /// The move of a directory to another parent, and a later one of a directory to below it.
    Move,
}

impl Relation {
    pub const fn name(self) -> &'static str {
        match self {
            Relation::Inode => "inode",
            Relation::Name => "name",
            Relation::Creation => "creation",
            Relation::Rights => "rights",
            Relation::Removal => "removal",
            Relation::Move => "move",
        }
    }
}

/// An accepted operation and what it depends on.
#[derive(Clone, Debug)]
pub struct Placed {
    pub stream: usize,
    /// Index in its stream.
    pub pos: u32,
    /// Operations that this one depends on directly by C5 (earlier ones of any stream).
    pub deps: Vec<usize>,
    /// Why, once for each reason.
    pub relations: Vec<(usize, Relation)>,
    /// Inodes on which this operation is, in the sense of C3 (fsync).
    pub on: Vec<NodeId>,
}

/// What the names of a directory led to.
pub type Names = BTreeMap<Bytes, Vec<Version<Option<NodeId>>>>;

/// A history executed once: the dependencies of C5, and all versions of all objects.
pub struct Analysis {
    pub base: Tree,
    pub history: History,
    pub placed: Vec<Placed>,
    /// All names that a directory ever had, with what they led to.
    pub entries: HashMap<NodeId, Names>,
    /// Fingerprints of non-directories (each operation on one depends on the one before, so its versions are those of the whole history).
    pub files: HashMap<NodeId, Vec<Version<u64>>>,
    pub fields: HashMap<NodeId, HashMap<Field, Vec<Version<u64>>>>,
    /// Compare mtime and ctime.
    pub times: bool,
    /// The tree after all operations.
    pub tree: Tree,
    deps: DependencyState,
}

impl History {
    /// The operations of a stream are those of an atomic group.
    pub fn is_group(&self, stream: usize) -> bool {
        self.groups != 0 && stream >= self.groups
    }
}

#[derive(Default)]
struct DependencyState {
    node: HashMap<NodeId, usize>,
    entry: HashMap<(NodeId, Bytes), usize>,
    created: HashMap<NodeId, usize>,
    /// Changes of mode, owner or ACL, by directory.
    attrs: HashMap<NodeId, Vec<usize>>,
    /// Changes of mode, and of the access list, by directory.
    modes: HashMap<NodeId, Vec<usize>>,
    lists: HashMap<NodeId, Vec<usize>>,
    /// Entry changes, by directory.
    changes: HashMap<NodeId, Vec<usize>>,
    /// The last move to another parent, by directory.
    moved: HashMap<NodeId, usize>,
    length: Vec<u32>,
}

/// What an operation touches, read off the tree before it is executed.
struct Footprint {
    /// Non-directories.
    files: Vec<NodeId>,
    names: Vec<(NodeId, Bytes)>,
    /// Directories whose inode itself is changed.
    dirs: Vec<NodeId>,
    /// ... in mode, owner or ACL.
    dir_attrs: bool,
    /// ... in its mode, in its access list.
    dir_mode: bool,
    dir_list: Option<List>,
    /// Directories that lose their name.
    gone: Vec<NodeId>,
    /// Directories that get another parent, and those on the ways from their new parents to the root.
    moved: Vec<NodeId>,
    above: Vec<NodeId>,
    /// Directories that get entries, or that give rights to a new inode without a name.
    within: Vec<NodeId>,
}

/// What becomes of an access list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Set,
    /// There was none, and it says no more than permission bits do, which it becomes.
    Mode,
    Removed,
}

impl Analysis {
    /// Executes `history` on `base`. Fails with the index of the operation that the model refuses.
    pub fn new(base: Tree, history: History, times: bool) -> Result<Analysis, (usize, Errno)> {
        let mut an = Analysis {
            tree: base.clone(),
            base,
            placed: Vec::with_capacity(history.ops.len()),
            entries: HashMap::new(),
            files: HashMap::new(),
            fields: HashMap::new(),
            times,
            deps: DependencyState {
                length: vec![0; history.streams],
                ..DependencyState::default()
            },
            history: History {
                streams: history.streams,
                groups: history.groups,
                ops: Vec::new(),
                syncs: history.syncs,
                barriers: history.barriers,
            },
        };
        an.start();
        for (i, op) in history.ops.into_iter().enumerate() {
            an.push(op).map_err(|e| (i, e))?;
        }
        Ok(an)
    }

    /// Would this call make operation `i` durable, had it been accepted before (C3)?
    pub fn covers(&self, call: &Sync, i: usize) -> bool {
        let placed = &self.placed[i];
        let own = placed.stream == call.stream;
        match call.kind {
            SyncKind::File(node) => own || placed.on.contains(&node),
            SyncKind::Stream => own,
            SyncKind::Volume => true,
        }
    }

    /// Executes one more operation.
    pub fn push(&mut self, accepted: Accepted) -> Result<(), Errno> {
        let i = self.placed.len();
        let print = self.footprint(&accepted.op);
        self.tree.apply(&accepted.op, &accepted.stamps)?;
        let relations = self.dep(i, &print);
        let mut deps: Vec<usize> = relations.iter().map(|r| r.0).collect();
        deps.dedup();
        // C3 of a directory speaks of its entry changes, not of its own name, owner or times.
        let dirs = print.names.iter().map(|n| n.0);
        let on: Vec<NodeId> = print.files.iter().copied().chain(dirs).collect();
        self.placed.push(Placed {
            stream: accepted.stream,
            pos: self.deps.length[accepted.stream],
            deps,
            relations,
            on,
        });
        self.deps.length[accepted.stream] += 1;
        self.record(i, &print, &accepted);
        self.history.ops.push(accepted);
        Ok(())
    }

    fn footprint(&self, op: &Op) -> Footprint {
        let is_dir = |n: &NodeId| self.tree.nodes.get(n).is_some_and(|n| n.is_dir());
        let names = op.names();
        let mut within: Vec<NodeId> = names.iter().map(|n| n.0).collect();
        if let Op::Tmpfile { parent, .. } = op {
            within.push(*parent);
        }
        let mut inodes: Vec<NodeId> = names
            .iter()
            .filter_map(|(d, n)| self.tree.lookup(*d, n).ok())
            .collect();
        inodes.extend(op.target());
        if let Op::Publish { files } = op {
            inodes.extend(files.iter().map(|f| f.0));
        }
        if let (Some(node), false) = (op.makes(), matches!(op, Op::Mkdir { .. })) {
            inodes.push(node);
        }
        inodes.sort();
        inodes.dedup();
        let dirs: Vec<NodeId> = inodes.iter().copied().filter(is_dir).collect();
        let files = inodes.into_iter().filter(|n| !is_dir(n)).collect();
        let dir_attrs = match op {
            Op::SetAttr { set, .. } => set.mode.is_some() || set.uid.is_some() || set.gid.is_some(),
            Op::SetXattr { name, .. } | Op::RemoveXattr { name, .. } => is_acl(name),
            Op::SetFlags { .. } => true,
            _ => false,
        };
        let dir_mode = matches!(op, Op::SetAttr { set, .. } if set.mode.is_some());
        let dir_list = match op {
            Op::SetXattr { node, name, value } if **name == *ACL_ACCESS => {
                let has_list = |n: &Node| n.xattrs.contains_key(ACL_ACCESS);
                let had = self.tree.get(*node).is_ok_and(has_list);
                Some(match had || !is_minimal(value) {
                    true => List::Set,
                    false => List::Mode,
                })
            }
            Op::RemoveXattr { name, .. } if **name == *ACL_ACCESS => Some(List::Removed),
            _ => None,
        };
        let (mut moved, mut above) = (Vec::new(), Vec::new());
        if let Op::Rename {
            kind,
            from,
            name,
            to,
            new_name,
        } = op
            && from != to
        {
            let mut sides = vec![(*from, name, *to)];
            if matches!(kind, RenameKind::Exchange) {
                sides.push((*to, new_name, *from));
            }
            for (from, name, to) in sides {
                if let Some(dir) = self.tree.lookup(from, name).ok().filter(is_dir) {
                    moved.push(dir);
                    above.extend(self.tree.way_up(to));
                }
            }
        }
        let gone = match op {
            Op::Rmdir { .. } => dirs.clone(),
            Op::Rename {
                kind: RenameKind::Exchange,
                ..
            } => Vec::new(),
            Op::Rename { to, new_name, .. } => {
                let target = self.tree.lookup(*to, new_name).ok().filter(is_dir);
                target.into_iter().collect()
            }
            _ => Vec::new(),
        };
        Footprint {
            files,
            names,
            dirs,
            dir_attrs,
            dir_mode,
            dir_list,
            gone,
            moved,
            above,
            within,
        }
    }

    /// The dependencies of operation `i` (C5) in order, and the state that later ones depend on.
    fn dep(&mut self, i: usize, print: &Footprint) -> Vec<(usize, Relation)> {
        let t = &mut self.deps;
        let mut deps = Vec::new();
        for file in &print.files {
            deps.extend(t.node.insert(*file, i).map(|e| (e, Relation::Inode)));
        }
        for dir in &print.dirs {
            // Not a sentence of C5, but nothing can be done to what does not exist.
            deps.extend(t.created.get(dir).map(|e| (*e, Relation::Creation)));
            if print.dir_attrs {
                t.attrs.entry(*dir).or_default().push(i);
            }
            // Mode and list are one (acl(5)): what chmod does depends on the list, and what a list leaves of the mode on chmod. No sentence
            // of C5, but no other order can be told from what operations do (C1).
            let others = |all: &HashMap<NodeId, Vec<usize>>| all.get(dir).cloned();
            if print.dir_mode {
                let lists = others(&t.lists).into_iter().flatten();
                deps.extend(lists.map(|e| (e, Relation::Rights)));
                t.modes.entry(*dir).or_default().push(i);
            }
            if let Some(list) = print.dir_list {
                let modes = others(&t.modes).filter(|_| list != List::Removed);
                deps.extend(modes.into_iter().flatten().map(|e| (e, Relation::Rights)));
                let changes = match list {
                    List::Mode => &mut t.modes,
                    _ => &mut t.lists,
                };
                changes.entry(*dir).or_default().push(i);
            }
        }
        for gone in &print.gone {
            let changes = t.changes.get(gone).into_iter().flatten();
            deps.extend(changes.map(|e| (*e, Relation::Removal)));
        }
        for (dir, name) in &print.names {
            let last = t.entry.insert((*dir, name.clone()), i);
            deps.extend(last.filter(|e| *e != i).map(|e| (e, Relation::Name)));
            t.changes.entry(*dir).or_default().push(i);
        }
        for dir in &print.within {
            deps.extend(t.created.get(dir).map(|e| (*e, Relation::Creation)));
            let rights = t.attrs.get(dir).into_iter().flatten();
            deps.extend(rights.map(|e| (*e, Relation::Rights)));
        }
        for dir in &print.above {
            deps.extend(t.moved.get(dir).map(|e| (*e, Relation::Move)));
        }
        t.moved.extend(print.moved.iter().map(|dir| (*dir, i)));
        deps.sort();
        deps.dedup();
        deps
    }

    /// Notes the versions of all objects that operation `i` made. Called when the tree has been changed.
    fn record(&mut self, i: usize, print: &Footprint, accepted: &Accepted) {
        for (dir, name) in &print.names {
            let value = self.tree.lookup(*dir, name).ok();
            let list = self
                .entries
                .entry(*dir)
                .or_default()
                .entry(name.clone())
                .or_insert_with(|| vec![start(None)]);
            list.push(Version { op: Some(i), value });
        }
        for file in &print.files {
            // A rename of one link of a file over another does nothing and leaves no whiteout.
            let Some(node) = self.tree.nodes.get(file) else {
                continue;
            };
            let value = node.fingerprint(self.times);
            self.files
                .entry(*file)
                .or_default()
                .push(Version { op: Some(i), value });
        }
        match &accepted.op {
            Op::Mkdir { make, .. } => {
                self.deps.created.insert(make.node, i);
                for (field, value) in self.dir_fields(make.node) {
                    self.set_field(make.node, field, Some(i), value);
                }
            }
            Op::SetAttr { node, set } if self.fields.contains_key(node) => {
                let fields = [
                    (set.mode.is_some(), Field::Mode),
                    (set.uid.is_some(), Field::Uid),
                    (set.gid.is_some(), Field::Gid),
                ];
                for (_, field) in fields.into_iter().filter(|f| f.0) {
                    self.note(*node, field, i);
                }
                if set.mode.is_some() && self.tree.nodes[node].xattrs.contains_key(ACL_ACCESS) {
                    self.note(*node, Field::Xattr(ACL_ACCESS.into()), i);
                }
            }
            Op::SetFlags { node, .. } if self.fields.contains_key(node) => {
                self.note(*node, Field::Flags, i);
            }
            Op::SetXattr { node, name, .. } | Op::RemoveXattr { node, name }
                if self.fields.contains_key(node) =>
            {
                self.note(*node, Field::Xattr(name.clone()), i);
                if **name == *ACL_ACCESS && matches!(accepted.op, Op::SetXattr { .. }) {
                    self.note(*node, Field::Mode, i);
                }
            }
            _ => {}
        }
        for stamp in &accepted.stamps {
            if !self.times
                || accepted.op.makes() == Some(stamp.node)
                || !self.fields.contains_key(&stamp.node)
            {
                continue;
            }
            if stamp.mtime.is_some() {
                self.note(stamp.node, Field::Mtime, i);
            }
            if stamp.ctime.is_some() {
                self.note(stamp.node, Field::Ctime, i);
            }
        }
    }

    fn note(&mut self, dir: NodeId, field: Field, i: usize) {
        let value = field_value(&self.tree.nodes[&dir], &field);
        self.set_field(dir, field, Some(i), value);
    }

    fn set_field(&mut self, dir: NodeId, field: Field, op: Option<usize>, value: u64) {
        let absent = fingerprint(&None::<&Bytes>);
        let list = self
            .fields
            .entry(dir)
            .or_default()
            .entry(field.clone())
            .or_default();
        if list.is_empty() && op.is_some() && matches!(field, Field::Xattr(_)) {
            list.push(start(absent));
        }
        list.push(Version { op, value });
    }

    fn dir_fields(&self, dir: NodeId) -> Vec<(Field, u64)> {
        let node = &self.tree.nodes[&dir];
        let mut fields = vec![Field::Mode, Field::Uid, Field::Gid, Field::Flags];
        if self.times {
            fields.extend([Field::Mtime, Field::Ctime]);
        }
        fields.extend(node.xattrs.keys().map(|k| Field::Xattr(k.clone())));
        fields
            .into_iter()
            .map(|f| (f.clone(), field_value(node, &f)))
            .collect()
    }

    /// The versions that exist before the first operation.
    fn start(&mut self) {
        let nodes: Vec<NodeId> = self.tree.nodes.keys().copied().collect();
        for id in nodes {
            let node = self.tree.nodes[&id].clone();
            if !node.is_dir() {
                self.files
                    .insert(id, vec![start(node.fingerprint(self.times))]);
                continue;
            }
            for (field, value) in self.dir_fields(id) {
                self.set_field(id, field, None, value);
            }
            let names = node
                .entries
                .iter()
                .map(|(name, to)| (name.clone(), vec![start(Some(*to))]))
                .collect();
            self.entries.insert(id, names);
        }
    }
}

fn start<T>(value: T) -> Version<T> {
    Version { op: None, value }
}

/// A directory's field as a number that can be compared.
pub fn field_value(node: &Node, field: &Field) -> u64 {
    match field {
        Field::Mode => u64::from(node.mode),
        Field::Uid => u64::from(node.uid),
        Field::Gid => u64::from(node.gid),
        Field::Flags => u64::from(node.flags),
        Field::Mtime => fingerprint(&node.mtime),
        Field::Ctime => fingerprint(&node.ctime),
        Field::Xattr(name) => fingerprint(&node.xattrs.get(name)),
    }
}

fn fingerprint<T: Hash>(value: &T) -> u64 {
    let mut h = DefaultHasher::new();
    value.hash(&mut h);
    h.finish()
}
