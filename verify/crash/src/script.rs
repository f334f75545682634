//! Sequences of actions as text, for directed tests: one action per line or between semicolons.
//!
//! ```text
//! A mkdir d              stream A, B, ... or an index; paths from the root
//! A create d/f; B link d/f g; A unlink g; A rmdir d; A symlink l 20
//! A rename f g           also: exchange f g, noreplace f g, whiteout f g
//! A write f 0 5000       offset, length; append f 100; truncate f 10
//! A allocate f 0 8192    also: reserve (keep size), punch, zero
//! A chmod f 700; A chown f 1 2; A utimes f 12345; A setxattr f user.a 20; A removexattr f user.a
//! A tmpfile %t [d]; A open f %h; A write %h 0 10; A close %h      handles: inodes with or without a name
//! ?A rmdir d             left out if it is impossible at this point
//! A fsync f; A fdatasync f; A fbarrier f; A streamsync; A syncfs; A ignored f; A tick; A checkpoint; A trim
//! A grow 5000          the volume gets so many KiB larger
//! A make d/f 100644 0 0 0 %f     any inode: mode, uid, gid, device number, handle; a handle can begin a path (%d/f)
//! A setattr f 640 - 5 - -        mode, uid, gid, size, mtime (seconds); `-`: left as it is
//! A zerokeep f 0 8192            zero without changing the size
//! A setflags f 20                the flags that can be set, hexadecimal: 10 immutable, 20 append-only ...
//! A acl f access 1:6 2:6:7 4:5 16:6 32:0     also: default; entries are tag:permissions[:id]
//! A write f 0 10 kill; A setattr f - - - 10 - kill     without privileges: setuid and setgid go
//! A copy f 0 g 100 3000          from, offset, to, offset, length
//! A atomic f; A syncv f g; A release f       O_ATOMIC open, sync of several such files, close
//! ```
use crate::generate::{Action, pattern};
use crate::oracle::*;
use std::collections::HashMap;

/// Turns lines into actions; lines are resolved one by one, on the tree of the moment.
pub struct Script {
    lines: Vec<String>,
    next: usize,
    next_node: u64,
    handles: HashMap<String, NodeId>,
}

impl Script {
    /// `first_node` is the first number for new inodes.
    pub fn new(text: &str, first_node: u64) -> Script {
        let lines = text
            .split(['\n', ';'])
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        Script {
            lines: lines.map(String::from).collect(),
            next: 0,
            next_node: first_node,
            handles: HashMap::new(),
        }
    }

    /// The next action and its stream; `None` at the end. An error names the line that makes no sense.
    pub fn next(&mut self, tree: &Tree) -> Result<Option<(usize, Action)>, String> {
        while let Some(line) = self.lines.get(self.next).cloned() {
            self.next += 1;
            let words: Vec<&str> = line.trim_start_matches('?').split_whitespace().collect();
            let action = self.parse(tree, &words);
            let possible = match &action {
                Some((_, Action::Op(op))) => tree.check(op).is_ok(),
                other => other.is_some(),
            };
            match action {
                Some(action) if possible => return Ok(Some(action)),
                _ if line.starts_with('?') => {}
                _ => return Err(format!("script: cannot do: {line}")),
            }
        }
        Ok(None)
    }

    fn make(&mut self, mode: u16) -> Make {
        self.next_node += 1;
        Make {
            node: NodeId(self.next_node - 1),
            mode,
            uid: 0,
            gid: 0,
        }
    }

    fn parse(&mut self, tree: &Tree, words: &[&str]) -> Option<(usize, Action)> {
        let [stream, verb, args @ ..] = words else {
            return None;
        };
        let stream = match stream.as_bytes() {
            [c @ b'A'..=b'H'] => usize::from(c - b'A'),
            _ => stream.parse().ok()?,
        };
        let number = |i: usize| args.get(i)?.parse::<u64>().ok();
        let action = match *verb {
            "streamsync" => Action::StreamSync,
            "syncfs" => Action::VolumeSync,
            "tick" => Action::Tick,
            "trim" => Action::Trim,
            "grow" => Action::Grow(number(0)?),
            "begin" => Action::GroupBegin,
            "commit" => Action::GroupCommit { durable: true },
            "order" => Action::GroupCommit { durable: false },
            "abort" => Action::GroupAbort,
            "checkpoint" => Action::Checkpoint,
            "fsync" => Action::Fsync {
                node: self.find(tree, args.first()?)?,
                data_only: false,
            },
            "fdatasync" => Action::Fsync {
                node: self.find(tree, args.first()?)?,
                data_only: true,
            },
            "fbarrier" | "fdatabarrier" => Action::Barrier(self.find(tree, args.first()?)?),
            "atomic" => Action::AtomicFileOpen(self.find(tree, args.first()?)?),
            "release" => Action::AtomicFileClose(self.find(tree, args.first()?)?),
            "syncv" => {
                let all = args.iter().map(|path| self.find(tree, path));
                Action::Syncv(all.collect::<Option<_>>()?)
            }
            "copy" => Action::Copy {
                from: self.find(tree, args.first()?)?,
                from_offset: number(1)?,
                to: self.find(tree, args.get(2)?)?,
                to_offset: number(3)?,
                len: number(4)?,
            },
            "ignored" => Action::IgnoredSync(self.find(tree, args.first()?)?),
            "open" => {
                let node = self.find(tree, args.first()?)?;
                self.handles.insert(args.get(1)?.to_string(), node);
                Action::Open(node)
            }
            "close" => Action::Close(self.handles.remove(*args.first()?)?),
            "tmpfile" => {
                let make = self.make(S_IFREG | 0o600);
                self.handles.insert(args.first()?.to_string(), make.node);
                let parent = match args.get(1) {
                    Some(dir) => self.find(tree, dir)?,
                    None => tree.root,
                };
                Action::Op(Op::Tmpfile { parent, make })
            }
            "create" | "mkdir" | "symlink" | "make" => Action::Op(self.new_name(tree, verb, args)?),
            "link" | "unlink" | "rmdir" | "rename" | "exchange" | "noreplace" | "whiteout" => {
                Action::Op(self.names(tree, verb, args)?)
            }
            _ => {
                let node = self.find(tree, args.first()?)?;
                Action::Op(self.on_file(tree, node, verb, args, number)?)
            }
        };
        Some((stream, action))
    }

    /// Directory and last name of a path.
    fn place(&self, tree: &Tree, path: &str) -> Option<(NodeId, Bytes)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Some((self.find(tree, dir)?, name.as_bytes().into()))
    }

    fn find(&self, tree: &Tree, path: &str) -> Option<NodeId> {
        let (from, path) = match path.split_once('/') {
            _ if !path.starts_with('%') => (tree.root, path),
            Some((handle, below)) => (*self.handles.get(handle)?, below),
            None => (*self.handles.get(path)?, ""),
        };
        let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
        parts
            .into_iter()
            .try_fold(from, |at, part| tree.lookup(at, part.as_bytes()).ok())
    }

    fn new_name(&mut self, tree: &Tree, verb: &str, args: &[&str]) -> Option<Op> {
        let (parent, name) = self.place(tree, args.first()?)?;
        Some(match verb {
            "create" => Op::Mknod {
                parent,
                name,
                make: self.make(S_IFREG | 0o644),
                rdev: 0,
            },
            "mkdir" => Op::Mkdir {
                parent,
                name,
                make: self.make(S_IFDIR | 0o755),
            },
            "make" => {
                let mut make = self.make(u16::from_str_radix(args.get(1)?, 8).ok()?);
                (make.uid, make.gid) = (args.get(2)?.parse().ok()?, args.get(3)?.parse().ok()?);
                let rdev = args.get(4)?.parse().ok()?;
                self.handles.insert(args.get(5)?.to_string(), make.node);
                if make.mode & S_IFMT == S_IFDIR {
                    Op::Mkdir { parent, name, make }
                } else {
                    Op::Mknod {
                        parent,
                        name,
                        make,
                        rdev,
                    }
                }
            }
            _ => {
                let len = args.get(1)?.parse::<usize>().ok()?;
                let target = pattern(self.next_node, 0, len)
                    .iter()
                    .map(|b| b'a' + b % 26)
                    .collect();
                let make = self.make(S_IFLNK | 0o777);
                if let Some(handle) = args.get(2) {
                    self.handles.insert(handle.to_string(), make.node);
                }
                Op::Symlink {
                    parent,
                    name,
                    make,
                    target,
                }
            }
        })
    }

    fn names(&mut self, tree: &Tree, verb: &str, args: &[&str]) -> Option<Op> {
        if verb == "link" {
            let (parent, name) = self.place(tree, args.get(1)?)?;
            return Some(Op::Link {
                node: self.find(tree, args.first()?)?,
                parent,
                name,
            });
        }
        let (from, name) = self.place(tree, args.first()?)?;
        let kind = match verb {
            "unlink" => return Some(Op::Unlink { parent: from, name }),
            "rmdir" => return Some(Op::Rmdir { parent: from, name }),
            "exchange" => RenameKind::Exchange,
            "noreplace" => RenameKind::NoReplace,
            "whiteout" => RenameKind::Whiteout(self.make(0).node),
            _ => RenameKind::Plain,
        };
        let (to, new_name) = self.place(tree, args.get(1)?)?;
        Some(Op::Rename {
            from,
            name,
            to,
            new_name,
            kind,
        })
    }

    fn on_file(
        &self,
        tree: &Tree,
        node: NodeId,
        verb: &str,
        args: &[&str],
        number: impl Fn(usize) -> Option<u64>,
    ) -> Option<Op> {
        let text = |i: usize| Some(Bytes::from(args.get(i)?.as_bytes()));
        let kill = |i: usize| args.get(i) == Some(&"kill");
        // Bytes that no other line writes.
        let data = |offset, len: u64| pattern(self.next as u64 + 1000, offset, len as usize);
        match verb {
            "write" => {
                let offset = number(1)?;
                Some(Op::Write {
                    node,
                    offset,
                    data: data(offset, number(2)?),
                    kill: kill(3),
                })
            }
            "append" => {
                let offset = tree.get(node).ok()?.size;
                Some(Op::Write {
                    node,
                    offset,
                    data: data(offset, number(1)?),
                    kill: kill(2),
                })
            }
            "allocate" => Some(Op::Allocate {
                node,
                offset: number(1)?,
                len: number(2)?,
                keep_size: false,
            }),
            "reserve" => Some(Op::Allocate {
                node,
                offset: number(1)?,
                len: number(2)?,
                keep_size: true,
            }),
            "punch" => Some(Op::Punch {
                node,
                offset: number(1)?,
                len: number(2)?,
            }),
            "zero" => Some(Op::Zero {
                node,
                offset: number(1)?,
                len: number(2)?,
                keep_size: false,
            }),
            "zerokeep" => Some(Op::Zero {
                node,
                offset: number(1)?,
                len: number(2)?,
                keep_size: true,
            }),
            "truncate" | "setattr" | "chmod" | "chown" | "utimes" => {
                let set = set_of(verb, args, number)?;
                Some(Op::SetAttr { node, set })
            }
            "setflags" => Some(Op::SetFlags {
                node,
                flags: u32::from_str_radix(args.get(1)?, 16).ok()?,
            }),
            "acl" => {
                let name = if *args.get(1)? == "default" {
                    ACL_DEFAULT
                } else {
                    ACL_ACCESS
                };
                Some(Op::SetXattr {
                    node,
                    name: name.into(),
                    value: acl_of(&args[2..])?,
                })
            }
            "setxattr" => Some(Op::SetXattr {
                node,
                name: text(1)?,
                value: data(0, number(2)?),
            }),
            "removexattr" => Some(Op::RemoveXattr {
                node,
                name: text(1)?,
            }),
            _ => None,
        }
    }
}

/// Actions as a script. Bytes of data and attributes come out otherwise than they were.
pub fn render(actions: &[(usize, Action)]) -> String {
    let lines = actions.iter().map(|(s, a)| format!("{s} {}\n", line(a)));
    lines.collect()
}

fn handle(node: &NodeId) -> String {
    // Inodes of the fresh volume: its root is all that a workload touches.
    match node.0 < crate::setting::FIRST_NODE {
        true => ".".into(),
        false => format!("%{}", node.0),
    }
}

fn path(dir: &NodeId, name: &[u8]) -> String {
    format!("{}/{}", handle(dir), String::from_utf8_lossy(name))
}

fn line(action: &Action) -> String {
    match action {
        Action::Op(op) => op_line(op),
        Action::Fsync {
            node,
            data_only: false,
        } => format!("fsync {}", handle(node)),
        Action::Fsync { node, .. } => format!("fdatasync {}", handle(node)),
        Action::Barrier(node) => format!("fbarrier {}", handle(node)),
        Action::Copy {
            from,
            from_offset,
            to,
            to_offset,
            len,
        } => format!(
            "copy {} {from_offset} {} {to_offset} {len}",
            handle(from),
            handle(to)
        ),
        Action::StreamSync => "streamsync".into(),
        Action::VolumeSync => "syncfs".into(),
        Action::IgnoredSync(node) => format!("ignored {}", handle(node)),
        Action::Tick => "tick".into(),
        Action::Checkpoint => "checkpoint".into(),
        Action::Trim => "trim".into(),
        Action::Grow(kib) => format!("grow {kib}"),
        Action::GroupBegin => "begin".into(),
        Action::GroupCommit { durable: true } => "commit".into(),
        Action::GroupCommit { .. } => "order".into(),
        Action::GroupAbort => "abort".into(),
        Action::AtomicFileOpen(node) => format!("atomic {}", handle(node)),
        Action::AtomicFileClose(node) => format!("release {}", handle(node)),
        Action::Syncv(nodes) => {
            let all: Vec<String> = nodes.iter().map(handle).collect();
            format!("syncv {}", all.join(" "))
        }
        Action::Open(node) => format!("open {0} {0}-open", handle(node)),
        Action::Close(node) => format!("close {}-open", handle(node)),
    }
}

fn op_line(op: &Op) -> String {
    let or_dash = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    match op {
        Op::Commit { .. } | Op::Publish { .. } => "order".into(),
        Op::Mknod {
            parent,
            name,
            make,
            rdev,
        } => make_line(parent, name, make, *rdev),
        Op::Mkdir { parent, name, make } => make_line(parent, name, make, 0),
        Op::Symlink {
            parent,
            name,
            make,
            target,
        } => format!(
            "symlink {} {} {}",
            path(parent, name),
            target.len(),
            handle(&make.node)
        ),
        Op::Tmpfile { parent, make } => {
            format!("tmpfile {} {}", handle(&make.node), handle(parent))
        }
        Op::Link { node, parent, name } => format!("link {} {}", handle(node), path(parent, name)),
        Op::Unlink { parent, name } => format!("unlink {}", path(parent, name)),
        Op::Rmdir { parent, name } => format!("rmdir {}", path(parent, name)),
        Op::Rename {
            from,
            name,
            to,
            new_name,
            kind,
        } => {
            let verb = match kind {
                RenameKind::Plain => "rename",
                RenameKind::NoReplace => "noreplace",
                RenameKind::Exchange => "exchange",
                RenameKind::Whiteout(_) => "whiteout",
            };
            format!("{verb} {} {}", path(from, name), path(to, new_name))
        }
        Op::Write {
            node,
            offset,
            data,
            kill,
        } => {
            let kill = if *kill { " kill" } else { "" };
            format!("write {} {offset} {}{kill}", handle(node), data.len())
        }
        Op::Allocate {
            node,
            offset,
            len,
            keep_size,
        } => {
            let verb = if *keep_size { "reserve" } else { "allocate" };
            format!("{verb} {} {offset} {len}", handle(node))
        }
        Op::Punch { node, offset, len } => format!("punch {} {offset} {len}", handle(node)),
        Op::Zero {
            node,
            offset,
            len,
            keep_size,
        } => {
            let verb = if *keep_size { "zerokeep" } else { "zero" };
            format!("{verb} {} {offset} {len}", handle(node))
        }
        Op::SetAttr { node, set } => format!(
            "setattr {} {} {} {} {} {}{}",
            handle(node),
            set.mode.map_or("-".into(), |m| format!("{m:o}")),
            or_dash(set.uid.map(u64::from)),
            or_dash(set.gid.map(u64::from)),
            or_dash(set.size),
            or_dash(set.mtime.map(|t| t.0 as u64)),
            if set.kill { " kill" } else { "" },
        ),
        Op::SetFlags { node, flags } => format!("setflags {} {flags:x}", handle(node)),
        Op::SetXattr { node, name, value } if **name == *ACL_ACCESS => {
            format!("acl {} access{}", handle(node), acl_words(value))
        }
        Op::SetXattr { node, name, value } if **name == *ACL_DEFAULT => {
            format!("acl {} default{}", handle(node), acl_words(value))
        }
        Op::SetXattr { node, name, value } => format!(
            "setxattr {} {} {}",
            handle(node),
            String::from_utf8_lossy(name),
            value.len()
        ),
        Op::RemoveXattr { node, name } => format!(
            "removexattr {} {}",
            handle(node),
            String::from_utf8_lossy(name)
        ),
    }
}

fn make_line(parent: &NodeId, name: &[u8], make: &Make, rdev: u32) -> String {
    format!(
        "make {} {:o} {} {} {rdev} {}",
        path(parent, name),
        make.mode,
        make.uid,
        make.gid,
        handle(&make.node)
    )
}

/// What a verb about attributes sets. `None`: a word is missing or is no number.
fn set_of(verb: &str, args: &[&str], number: impl Fn(usize) -> Option<u64>) -> Option<Set> {
    let octal = |i: usize| u16::from_str_radix(args.get(i)?, 8).ok();
    let mtime = |seconds: u64| (seconds as i64, 123_456_789);
    let set = match verb {
        "truncate" => Set {
            size: number(1),
            ..Set::default()
        },
        "chmod" => {
            args.get(1)?;
            Set {
                mode: octal(1),
                ..Set::default()
            }
        }
        "chown" => Set {
            uid: Some(number(1)? as u32),
            gid: Some(number(2)? as u32),
            ..Set::default()
        },
        "utimes" => Set {
            mtime: Some(mtime(number(1)?)),
            ..Set::default()
        },
        _ => Set {
            mode: octal(1),
            uid: number(2).map(|n| n as u32),
            gid: number(3).map(|n| n as u32),
            size: number(4),
            mtime: number(5).map(mtime),
            kill: args.get(6) == Some(&"kill"),
        },
    };
    Some(set)
}

/// An access control list from entries `tag:permissions[:id]`.
fn acl_of(entries: &[&str]) -> Option<Bytes> {
    let entry = |text: &&str| {
        let mut parts = text.split(':').map(|p| p.parse::<u32>().ok());
        let (tag, perm) = (parts.next()??, parts.next()??);
        let id = parts.next().flatten().unwrap_or(u32::MAX);
        Some((tag as u16, perm as u16, id))
    };
    let entries: Option<Vec<_>> = entries.iter().map(entry).collect();
    entries.map(list_of)
}

fn acl_words(value: &[u8]) -> String {
    let word = |e: &[u8]| {
        let id = u32::from_le_bytes([e[4], e[5], e[6], e[7]]);
        let id = if id == u32::MAX {
            String::new()
        } else {
            format!(":{id}")
        };
        format!(" {}:{}{id}", u16::from_le_bytes([e[0], e[1]]), e[2])
    };
    value[4..].chunks_exact(8).map(word).collect()
}
