//! From a program's system calls to micro-operations on a tree.
//!
//! Descriptors are followed through open, dup, fork and close; paths are resolved in the tree as it was at the call. What
//! a program does through mappings is not seen.
use super::fsmodel::Model;
use super::strace::{Call, bytes, descriptor};
use super::tree::{Change, Id, Node, ROOT, Tree};
use std::collections::HashMap;
use std::sync::Arc;

/// One micro-operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Number of the call it is a part of.
    pub call: usize,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    Change(Change),
    /// What is appended to a file, as opposed to overwritten.
    Append(Change),
    /// Makes a file durable (fsync, fdatasync, O_SYNC).
    Sync(Id),
    SyncAll,
    /// What users have seen.
    Output(String),
}

/// What a program did.
#[derive(Default)]
pub struct Program {
    pub ops: Vec<Op>,
    /// Of each call: what to show.
    pub shown: Vec<String>,
    /// Of each call: the place in the source, where it is known.
    pub stacks: Vec<Vec<(String, String, String)>>,
}

struct Open {
    node: Id,
    offset: usize,
    append: bool,
    sync: bool,
}

struct Reader<'a> {
    root: &'a [u8],
    tree: &'a mut Tree,
    program: Program,
    unit: usize,
    opens: Vec<Open>,
    /// Descriptors of each process; threads share a table.
    tables: Vec<HashMap<i64, usize>>,
    processes: HashMap<u32, (usize, Vec<u8>)>,
    call: usize,
}

/// Reads the calls of a program that ran in `root`. `tree`: before it ran; it gets the program's inodes, without names.
pub fn read(calls: &[Call], root: &[u8], tree: &mut Tree, model: &Model) -> Program {
    let before = tree.clone();
    let mut reader = Reader {
        root,
        tree,
        program: Program::default(),
        unit: model.unit,
        opens: Vec::new(),
        tables: vec![HashMap::new()],
        processes: HashMap::new(),
        call: 0,
    };
    // A child's calls can come before its parent's clone has returned.
    let mut parents: HashMap<u32, (u32, bool)> = HashMap::new();
    for call in calls {
        if matches!(call.name.as_str(), "clone" | "clone3" | "fork" | "vfork") && call.result > 0 {
            let shares = call.args.iter().any(|a| a.contains("CLONE_FILES"));
            parents.insert(call.result as u32, (call.pid, shares));
        }
    }
    for call in calls {
        reader.process(call.pid, &parents);
        reader.program.shown.push(String::new());
        reader.program.stacks.push(call.stack.clone());
        if call.result >= 0 {
            reader.step(call);
        }
        reader.call += 1;
    }
    let program = reader.program;
    // Names and contents as before the program; its inodes stay, empty.
    for (id, node) in tree.nodes.iter_mut().enumerate() {
        match (before.nodes.get(id), &mut *node) {
            (Some(old), _) => *node = old.clone(),
            (None, Node::Dir(names)) => names.clear(),
            (None, Node::File { data, .. }) => *data = Arc::default(),
            (None, Node::Link(_)) => {}
        }
    }
    program
}

impl Reader<'_> {
    fn process(&mut self, pid: u32, parents: &HashMap<u32, (u32, bool)>) {
        if self.processes.contains_key(&pid) {
            return;
        }
        let state = match parents.get(&pid) {
            Some((parent, shares)) => {
                if *parent != pid {
                    self.process(*parent, parents);
                }
                let (table, cwd) = self
                    .processes
                    .get(parent)
                    .cloned()
                    .unwrap_or((0, self.root.to_vec()));
                if *shares {
                    (table, cwd)
                } else {
                    self.tables.push(self.tables[table].clone());
                    (self.tables.len() - 1, cwd)
                }
            }
            None => (0, self.root.to_vec()),
        };
        self.processes.insert(pid, state);
    }

    fn table(&mut self, pid: u32) -> &mut HashMap<i64, usize> {
        let table = self.processes[&pid].0;
        &mut self.tables[table]
    }

    fn op(&mut self, what: What) {
        if let What::Change(change) | What::Append(change) = &what {
            self.tree.apply(change);
        }
        self.program.ops.push(Op {
            call: self.call,
            what,
        });
    }

    fn show(&mut self, text: String) {
        self.program.shown[self.call] = text;
    }

    /// Directory and name of a path; `None` outside of the root. Symbolic links in the middle are followed by nobody here.
    fn place(&self, pid: u32, base: Option<&str>, path: &[u8]) -> Option<(Id, Vec<u8>)> {
        let mut whole = Vec::new();
        if !path.starts_with(b"/") {
            match base.map(descriptor) {
                Some((_, at)) if !at.is_empty() => whole.extend(at),
                _ => whole.extend(&self.processes[&pid].1),
            }
            whole.push(b'/');
        }
        whole.extend(path);
        let inside = whole.strip_prefix(self.root)?;
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in inside.split(|b| *b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts.pop()?;
                }
                part => parts.push(part),
            }
        }
        let (name, dirs) = parts.split_last()?;
        let dir = dirs
            .iter()
            .try_fold(ROOT, |dir, n| self.tree.lookup(dir, n))?;
        Some((dir, name.to_vec()))
    }

    fn text(place: &(Id, Vec<u8>)) -> String {
        String::from_utf8_lossy(&place.1).into_owned()
    }

    /// The open file of a descriptor; one that was inherited is found by its path, and appended to.
    fn open_of(&mut self, call: &Call, arg: usize) -> Option<usize> {
        let (number, path) = descriptor(call.args.get(arg)?);
        if let Some(open) = self.table(call.pid).get(&number) {
            return Some(*open);
        }
        let place = self.place(call.pid, None, &path)?;
        let node = self.tree.lookup(place.0, &place.1)?;
        self.opens.push(Open {
            node,
            offset: self.tree.len(node),
            append: true,
            sync: false,
        });
        let open = self.opens.len() - 1;
        self.table(call.pid).insert(number, open);
        Some(open)
    }

    fn step(&mut self, call: &Call) {
        let arg = |n: usize| call.args.get(n).map_or("", String::as_str);
        let number = |n: usize| arg(n).parse::<usize>().unwrap_or(0);
        match call.name.as_str() {
            "open" | "creat" => {
                let flags = if call.name == "creat" {
                    "O_CREAT|O_TRUNC"
                } else {
                    arg(1)
                };
                self.open(call, None, arg(0), flags);
            }
            "openat" => self.open(call, Some(arg(0)), arg(1), arg(2)),
            "close" => {
                let (fd, _) = descriptor(arg(0));
                self.table(call.pid).remove(&fd);
            }
            "dup" | "dup2" | "dup3" => self.dup(call),
            "fcntl" if arg(1).starts_with("F_DUPFD") => self.dup(call),
            "chdir" => self.chdir(call.pid, &bytes(arg(0))),
            "fchdir" => {
                let (_, path) = descriptor(arg(0));
                self.chdir(call.pid, &path);
            }
            "lseek" => {
                if let Some(open) = self.open_of(call, 0) {
                    self.opens[open].offset = call.result as usize;
                }
            }
            "read" | "readv" => {
                if let Some(open) = self.open_of(call, 0) {
                    self.opens[open].offset += call.result as usize;
                }
            }
            "write" | "writev" => self.write(call, arg(1), None),
            "pwrite64" | "pwritev" | "pwritev2" => self.write(call, arg(1), Some(number(3))),
            "ftruncate" => {
                if let Some(open) = self.open_of(call, 0) {
                    self.resize(self.opens[open].node, number(1));
                }
            }
            "truncate" => {
                let place = self.place(call.pid, None, &bytes(arg(0)));
                if let Some(node) = place.and_then(|p| self.tree.lookup(p.0, &p.1)) {
                    self.resize(node, number(1));
                }
            }
            "fallocate" if arg(1) == "0" => {
                let end = number(2) + number(3);
                if let Some(open) = self.open_of(call, 0)
                    && self.tree.len(self.opens[open].node) < end
                {
                    self.resize(self.opens[open].node, end);
                }
            }
            "fsync" | "fdatasync" => {
                if let Some(open) = self.open_of(call, 0) {
                    self.show(call.name.clone());
                    self.op(What::Sync(self.opens[open].node));
                } else {
                    self.sync_dir(call, arg(0));
                }
            }
            "sync" | "syncfs" => {
                self.show(call.name.clone());
                self.op(What::SyncAll);
            }
            _ => self.names(call),
        }
    }

    /// fsync of a directory that was opened without being followed.
    fn sync_dir(&mut self, call: &Call, fd: &str) {
        let (_, path) = descriptor(fd);
        if path == self.root {
            self.show(call.name.clone());
            self.op(What::Sync(ROOT));
        }
    }

    fn names(&mut self, call: &Call) {
        let arg = |n: usize| call.args.get(n).map_or("", String::as_str);
        let place =
            |at: Option<usize>, path: usize| self.place(call.pid, at.map(arg), &bytes(arg(path)));
        match call.name.as_str() {
            "rename" => self.rename(place(None, 0), place(None, 1)),
            "renameat" | "renameat2" => self.rename(place(Some(0), 1), place(Some(2), 3)),
            "link" => self.link(place(None, 0), place(None, 1)),
            "linkat" => self.link(place(Some(0), 1), place(Some(2), 3)),
            "unlink" | "rmdir" => self.remove(&call.name, place(None, 0)),
            "unlinkat" => self.remove(&call.name, place(Some(0), 1)),
            "mkdir" => self.create("mkdir", place(None, 0), Node::Dir(Default::default())),
            "mkdirat" => self.create("mkdir", place(Some(0), 1), Node::Dir(Default::default())),
            "symlink" => self.create("symlink", place(None, 1), Node::Link(bytes(arg(0)))),
            "symlinkat" => self.create("symlink", place(Some(1), 2), Node::Link(bytes(arg(0)))),
            _ => {}
        }
    }

    fn open(&mut self, call: &Call, base: Option<&str>, path: &str, flags: &str) {
        let Some(place) = self.place(call.pid, base, &bytes(path)) else {
            return;
        };
        let node = match self.tree.lookup(place.0, &place.1) {
            Some(node) => {
                if flags.contains("O_TRUNC") && self.tree.len(node) > 0 {
                    self.show(format!("open({}, O_TRUNC)", Self::text(&place)));
                    self.op(What::Change(Change::Size { node, size: 0 }));
                }
                node
            }
            None if flags.contains("O_CREAT") => {
                let mode = call
                    .args
                    .last()
                    .and_then(|m| u32::from_str_radix(m, 8).ok());
                let node = Node::File {
                    data: Arc::default(),
                    mode: mode.unwrap_or(0o644) & 0o755 | 0o400,
                };
                self.create("create", Some(place.clone()), node);
                self.tree.nodes.len() - 1
            }
            None => return,
        };
        self.opens.push(Open {
            node,
            offset: 0,
            append: flags.contains("O_APPEND"),
            sync: flags.contains("O_SYNC") || flags.contains("O_DSYNC"),
        });
        let open = self.opens.len() - 1;
        self.table(call.pid).insert(call.result, open);
    }

    fn dup(&mut self, call: &Call) {
        match self.open_of(call, 0) {
            Some(open) => self.table(call.pid).insert(call.result, open),
            None => self.table(call.pid).remove(&call.result),
        };
    }

    fn chdir(&mut self, pid: u32, path: &[u8]) {
        if let Some((_, cwd)) = self.processes.get_mut(&pid) {
            if path.starts_with(b"/") {
                *cwd = path.to_vec();
            } else {
                cwd.push(b'/');
                cwd.extend(path);
            }
        }
    }

    fn write(&mut self, call: &Call, data: &str, at: Option<usize>) {
        let mut data = bytes(data);
        data.truncate(call.result as usize);
        let Some(open) = self.open_of(call, 0) else {
            if call.args.first().is_some_and(|fd| fd.starts_with("1<")) {
                let text = String::from_utf8_lossy(&data).trim_end().to_string();
                self.show(format!("output \"{text}\""));
                self.op(What::Output(text));
            }
            return;
        };
        let node = self.opens[open].node;
        let end = self.tree.len(node);
        let begin = match at {
            Some(at) => at,
            None if self.opens[open].append => end,
            None => self.opens[open].offset,
        };
        if at.is_none() {
            self.opens[open].offset = begin + data.len();
        }
        self.show(format!("write of {} bytes at {begin}", data.len()));
        let mut from = 0;
        while from < data.len() {
            let place = begin + from;
            let len = match self.unit {
                0 => data.len(),
                unit => (unit - place % unit).min(data.len() - from),
            };
            let change = Change::Data {
                node,
                offset: place,
                bytes: Arc::new(data[from..from + len].to_vec()),
            };
            self.op(if place + len > end {
                What::Append(change)
            } else {
                What::Change(change)
            });
            from += len;
        }
        if self.opens[open].sync {
            self.op(What::Sync(node));
        }
    }

    fn resize(&mut self, node: Id, size: usize) {
        self.show(format!("truncate to {size}"));
        self.op(What::Change(Change::Size { node, size }));
    }

    fn create(&mut self, verb: &str, place: Option<(Id, Vec<u8>)>, node: Node) {
        let Some(place) = place else { return };
        self.show(format!("{verb} {}", Self::text(&place)));
        let node = Some(self.tree.add(node));
        let (dir, name) = place;
        self.op(What::Change(Change::Entry { dir, name, node }));
    }

    fn rename(&mut self, from: Option<(Id, Vec<u8>)>, to: Option<(Id, Vec<u8>)>) {
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let Some(node) = self.tree.lookup(from.0, &from.1) else {
            return;
        };
        self.show(format!(
            "rename {} to {}",
            Self::text(&from),
            Self::text(&to)
        ));
        self.op(What::Change(Change::Rename { from, to, node }));
    }

    fn link(&mut self, from: Option<(Id, Vec<u8>)>, to: Option<(Id, Vec<u8>)>) {
        let (Some(from), Some((dir, name))) = (from, to) else {
            return;
        };
        let node = self.tree.lookup(from.0, &from.1);
        if node.is_some() {
            self.show(format!(
                "link {} as {}",
                Self::text(&from),
                String::from_utf8_lossy(&name)
            ));
            self.op(What::Change(Change::Entry { dir, name, node }));
        }
    }

    fn remove(&mut self, verb: &str, place: Option<(Id, Vec<u8>)>) {
        let Some(place) = place else { return };
        if self.tree.lookup(place.0, &place.1).is_some() {
            self.show(format!(
                "{} {}",
                verb.trim_end_matches("at"),
                Self::text(&place)
            ));
            let (dir, name) = place;
            self.op(What::Change(Change::Entry {
                dir,
                name,
                node: None,
            }));
        }
    }
}
