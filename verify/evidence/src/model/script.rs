//! A program of few calls as a Python script, which runs where there is no ccfs.
use super::ops::{Op, What};
use super::tree::{Change, Id, Node, ROOT, Tree};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What the script says of itself, line by line, and where the crash is.
pub struct Story<'a> {
    pub head: Vec<String>,
    /// Operations before the crash, and those of them that are lost.
    pub until: usize,
    pub missing: &'a BTreeSet<usize>,
}

/// The script. `tree`: before the program ran.
pub fn script(tree: &Tree, ops: &[Op], story: &Story) -> String {
    let mut out = String::from("#!/usr/bin/env python3\n");
    for line in &story.head {
        let plain: String = line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let _ = writeln!(out, "# {plain}");
    }
    out.push_str("import os, sys\n\n\ndef setup():\n    \"\"\"What was there before the program ran.\"\"\"\n");
    let mut made = Vec::new();
    setup(&mut out, tree, ROOT, b"", &mut made);
    out.push_str("    return\n\n\ndef work():\n");
    let mut now = tree.clone();
    for node in opened(tree, ops) {
        let path = path(tree, node).unwrap_or_default();
        let _ = writeln!(out, "    f{node} = os.open({}, os.O_RDWR)", literal(&path));
    }
    let mut from = 0;
    while from < ops.len() {
        let len = ops[from..]
            .iter()
            .take_while(|o| o.call == ops[from].call)
            .count();
        let part = &ops[from..from + len];
        let lost = (from..from + len)
            .filter(|o| story.missing.contains(o))
            .count();
        let changes = part
            .iter()
            .filter(|o| matches!(o.what, What::Change(_) | What::Append(_)));
        let there = story.until.saturating_sub(from).min(len);
        if lost > 0 && lost == changes.count() {
            out.push_str("    # The crash loses this call:\n");
        } else if lost > 0 {
            out.push_str("    # The crash loses a part of this call:\n");
        } else if there > 0 && there < len {
            let _ = writeln!(
                out,
                "    # The power cut: of this call the first {there} of {len} parts are on the disk."
            );
        }
        call(&mut out, &mut now, part);
        from += len;
        if story.until > from - len && story.until <= from {
            out.push_str("    # ==== The power cut is here. ====\n");
        }
    }
    out.push_str(
        "    return\n\n\nif __name__ == \"__main__\":\n    steps = sys.argv[1:] or [\"setup\", \"work\"]\n    \
         if not set(steps) <= {\"setup\", \"work\"}:\n        sys.exit(\"usage: [setup] [work], in an empty directory\")\n    \
         for step in steps:\n        {\"setup\": setup, \"work\": work}[step]()\n",
    );
    out
}

/// Statements that make what a directory holds.
fn setup(out: &mut String, tree: &Tree, dir: Id, at: &[u8], made: &mut Vec<(Id, Vec<u8>)>) {
    let Node::Dir(names) = &tree.nodes[dir] else {
        return;
    };
    for (name, id) in names {
        let place = join(at, name);
        let name = literal(&place);
        if let Some((_, first)) = made.iter().find(|(other, _)| other == id) {
            let _ = writeln!(out, "    os.link({}, {name})", literal(first));
            continue;
        }
        made.push((*id, place.clone()));
        let _ = match &tree.nodes[*id] {
            Node::Dir(_) => writeln!(out, "    os.mkdir({name})"),
            Node::Link(target) => writeln!(out, "    os.symlink({}, {name})", literal(target)),
            Node::File { data, mode } => writeln!(
                out,
                "    with open({name}, \"wb\") as f:\n        f.write({})\n    os.chmod({name}, 0o{mode:o})",
                literal(data)
            ),
        };
        setup(out, tree, *id, &place, made);
    }
}

/// Files that the program writes and has not made itself.
fn opened(tree: &Tree, ops: &[Op]) -> BTreeSet<Id> {
    let node = |op: &Op| match &op.what {
        What::Change(Change::Data { node, .. } | Change::Size { node, .. })
        | What::Append(Change::Data { node, .. })
        | What::Sync(node) => Some(*node),
        _ => None,
    };
    let is_file = |n: &Id| matches!(tree.nodes[*n], Node::File { .. });
    let nodes = ops.iter().filter_map(node).filter(is_file);
    nodes.filter(|n| path(tree, *n).is_some()).collect()
}

/// The statement, or statements, of one call.
fn call(out: &mut String, now: &mut Tree, ops: &[Op]) {
    let mut ops = ops.iter().peekable();
    while let Some(op) = ops.next() {
        let (What::Change(change) | What::Append(change)) = &op.what else {
            let _ = match &op.what {
                What::Output(text) => {
                    writeln!(
                        out,
                        "    os.write(1, {})",
                        literal(format!("{text}\n").as_bytes())
                    )
                }
                What::Sync(node) if matches!(now.nodes[*node], Node::Dir(_)) => writeln!(
                    out,
                    "    d = os.open({}, os.O_RDONLY)\n    os.fsync(d)\n    os.close(d)",
                    literal(&dot(path(now, *node).unwrap_or_default()))
                ),
                What::Sync(node) => writeln!(out, "    os.fsync(f{node})"),
                _ => writeln!(out, "    os.sync()"),
            };
            continue;
        };
        let name = |now: &Tree, dir: Id, name: &[u8]| {
            literal(&join(&path(now, dir).unwrap_or_default(), name))
        };
        let _ = match change {
            Change::Data {
                node,
                offset,
                bytes,
            } => {
                // The parts of one write, as it was.
                let mut data = bytes.to_vec();
                while let Some(next) = ops.peek().copied() {
                    let (What::Change(c) | What::Append(c)) = &next.what else {
                        break;
                    };
                    match c {
                        Change::Data {
                            node: n,
                            offset: at,
                            bytes,
                        } if n == node && *at == offset + data.len() => {
                            data.extend_from_slice(bytes);
                            now.apply(c);
                            ops.next();
                        }
                        _ => break,
                    }
                }
                writeln!(out, "    os.pwrite(f{node}, {}, {offset})", literal(&data))
            }
            Change::Size { node, size } => writeln!(out, "    os.ftruncate(f{node}, {size})"),
            Change::Rename { from, to, .. } => {
                let (from, to) = (name(now, from.0, &from.1), name(now, to.0, &to.1));
                writeln!(out, "    os.rename({from}, {to})")
            }
            Change::Entry {
                dir,
                name: last,
                node: None,
            } => {
                let old = now.lookup(*dir, last).map(|n| &now.nodes[n]);
                let verb = match old {
                    Some(Node::Dir(_)) => "rmdir",
                    _ => "unlink",
                };
                writeln!(out, "    os.{verb}({})", name(now, *dir, last))
            }
            Change::Entry {
                dir,
                name: last,
                node: Some(node),
            } => {
                let place = name(now, *dir, last);
                match (path(now, *node), &now.nodes[*node]) {
                    (Some(old), _) => writeln!(out, "    os.link({}, {place})", literal(&old)),
                    (None, Node::Dir(_)) => writeln!(out, "    os.mkdir({place})"),
                    (None, Node::Link(target)) => {
                        writeln!(out, "    os.symlink({}, {place})", literal(target))
                    }
                    (None, Node::File { mode, .. }) => writeln!(
                        out,
                        "    f{node} = os.open({place}, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o{mode:o})"
                    ),
                }
            }
        };
        now.apply(change);
    }
}

/// A path of an inode, from the root; the root's own is empty.
fn path(tree: &Tree, node: Id) -> Option<Vec<u8>> {
    fn search(tree: &Tree, dir: Id, node: Id, at: &[u8], depth: usize) -> Option<Vec<u8>> {
        if dir == node {
            return Some(at.to_vec());
        }
        let Node::Dir(names) = &tree.nodes[dir] else {
            return None;
        };
        let mut names = names.iter().filter(|_| depth < 64);
        names.find_map(|(name, id)| search(tree, *id, node, &join(at, name), depth + 1))
    }
    search(tree, ROOT, node, b"", 0)
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
    }
}

fn dot(path: Vec<u8>) -> Vec<u8> {
    if path.is_empty() { b".".to_vec() } else { path }
}

/// Bytes as Python writes them; many equal ones as a product.
fn literal(bytes: &[u8]) -> String {
    if let Some(first) = bytes.first()
        && bytes.len() > 16
        && bytes.iter().all(|b| b == first)
    {
        return format!("{} * {}", literal(&[*first]), bytes.len());
    }
    let mut out = String::from("b\"");
    for b in bytes {
        match b {
            b'\\' | b'"' => out.extend(['\\', *b as char]),
            b'\n' => out.push_str("\\n"),
            0x20..0x7f => out.push(*b as char),
            _ => {
                let _ = write!(out, "\\x{b:02x}");
            }
        }
    }
    out.push('"');
    out
}
