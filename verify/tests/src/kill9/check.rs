//! The checker: from the tree after a crash and the load's record alone it decides C1, C2, C3 and C5.

use super::load::Record;
use super::op::{Kind, Model, Node, Op, Seen, data};
use crate::harness::{Entry, Tree};
use crate::sys;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// More combinations than this say nothing; the load is made so that there are few.
const COMBINATIONS_MAX: usize = 200_000;

/// How many operations of each stream survived.
pub type Survivors = Vec<usize>;

/// The tree below the load's directory. A directory that is not there has nothing in it.
pub fn look(root: &Path) -> BTreeMap<String, Seen> {
    if sys::lstat(root) == Err(libc::ENOENT) {
        return BTreeMap::new();
    }
    let tree = Tree::read(root);
    tree.0
        .into_iter()
        .map(|(name, entry)| (name, seen(entry)))
        .collect()
}

/// One path, as `look` shows it.
pub fn seen_of(path: &Path) -> Result<Seen, i32> {
    sys::lstat(path)?;
    Ok(seen(Entry::read(path)))
}

fn seen(entry: Entry) -> Seen {
    let kind = match entry.stat.kind() {
        libc::S_IFDIR => Kind::Dir,
        libc::S_IFLNK => Kind::Symlink,
        _ => Kind::File,
    };
    let xattr = entry.xattrs.get("user.load").cloned();
    let s = entry.stat;
    Seen {
        kind,
        content: entry.content,
        len: s.size,
        mode: s.perm(),
        xattr,
        mtime: s.mtime,
        nlink: s.nlink,
    }
}

/// Whose a path is: a stream's, or shared.
fn owner(path: &str) -> Option<usize> {
    let rest = path.strip_prefix("all/").unwrap_or(path);
    let digits: String = rest
        .strip_prefix('s')?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// Judges. `Err` says which promise is broken, and how.
pub fn check(record: &Record, seen: &BTreeMap<String, Seen>) -> Result<Survivors, String> {
    if let Some(error) = &record.unexpected {
        return Err(format!("the load met an error of its own: {error}"));
    }
    let streams = record.streams.len();
    let own_dirs: BTreeSet<String> = (0..streams).map(|s| format!("s{s}")).collect();
    let mut private: Vec<BTreeMap<&str, &Seen>> = vec![BTreeMap::new(); streams];
    let mut shared: BTreeMap<&str, &Seen> = BTreeMap::new();
    for (path, s) in seen {
        if ["", "all", "shared"].contains(&path.as_str()) || own_dirs.contains(path) {
            continue;
        }
        match owner(path) {
            Some(stream) if stream < streams => drop(private[stream].insert(path, s)),
            _ if path.starts_with("shared/") => drop(shared.insert(path, s)),
            _ => return Err(format!("C1: nobody made {path}")),
        }
    }
    let mut synced = vec![(0, "nothing"); streams];
    for (promise, what) in &record.promises {
        for (stream, count) in promise {
            if *count > synced[*stream].0 {
                synced[*stream] = (*count, what);
            }
        }
    }
    let mut candidates = Vec::new();
    let mut moved: HashMap<(usize, usize), Node> = HashMap::new();
    for stream in 0..streams {
        let all = private_candidates(record, stream, &private[stream], &mut moved)?;
        let (least, what) = synced[stream];
        let kept: Vec<usize> = all.iter().copied().filter(|n| *n >= least).collect();
        if kept.is_empty() {
            return Err(format!(
                "C3: stream {stream} shows {all:?} operations, but {what} promised {least}"
            ));
        }
        candidates.push(kept);
    }
    shared_candidates(record, &candidates, &shared, &moved)
}

/// All n for which the stream's own paths are what its first n operations leave.
fn private_candidates(
    record: &Record,
    stream: usize,
    seen: &BTreeMap<&str, &Seen>,
    moved: &mut HashMap<(usize, usize), Node>,
) -> Result<Vec<usize>, String> {
    let log = &record.streams[stream];
    let mut model = Model::default();
    let mut wrong: BTreeSet<String> = seen.keys().map(|p| p.to_string()).collect();
    let mut fits = Vec::new();
    let mut nearest = (usize::MAX, 0, String::new());
    for n in 0..=log.len() {
        if wrong.is_empty() {
            fits.push(n);
        } else if wrong.len() < nearest.0 {
            let lines: Vec<String> = wrong
                .iter()
                .take(6)
                .map(|p| model.explain(p, seen.get(p.as_str()).copied()))
                .collect();
            nearest = (wrong.len(), n, lines.join("\n  "));
        }
        let Some(entry) = log.get(n) else { break };
        let bytes = data(record.settings.seed, stream, n, entry.op.data_len());
        let touched = match (&entry.op, entry.shared) {
            (Op::Rename { from, .. }, Some(_)) => {
                moved.insert((stream, n), model.node(from).clone());
                model.remove(from);
                vec![from.clone()]
            }
            (_, Some(_)) => vec![],
            (op, None) => model.apply(op, &bytes),
        };
        for path in touched {
            if model.agrees(&path, seen.get(path.as_str()).copied()) {
                wrong.remove(&path);
            } else {
                wrong.insert(path);
            }
        }
    }
    if fits.is_empty() {
        let (count, n, lines) = nearest;
        let around: Vec<String> = (n.saturating_sub(3)..(n + 3).min(log.len()))
            .map(|i| format!("{i}: {:?}", log[i].op))
            .collect();
        return Err(format!(
            "C1/C2: stream {stream} shows no prefix of its {} operations; nearest: the first {n}, {count} paths differ:\n  \
             {lines}\n  operations there:\n  {}",
            log.len(),
            around.join("\n  ")
        ));
    }
    Ok(fits)
}

/// The combination of prefixes for which the shared objects are closed under C5 and look as they should.
fn shared_candidates(
    record: &Record,
    candidates: &[Vec<usize>],
    seen: &BTreeMap<&str, &Seen>,
    moved: &HashMap<(usize, usize), Node>,
) -> Result<Survivors, String> {
    let mut chain: Vec<(u64, usize, usize)> = Vec::new();
    for (stream, log) in record.streams.iter().enumerate() {
        chain.extend(
            log.iter()
                .enumerate()
                .filter_map(|(seq, e)| e.shared.map(|place| (place, stream, seq))),
        );
    }
    chain.sort();
    let combinations: usize = candidates.iter().map(Vec::len).product();
    if combinations > COMBINATIONS_MAX {
        return Err(format!(
            "the checker cannot decide: {combinations} combinations"
        ));
    }
    let mut first = None;
    for mut index in (0..combinations).rev() {
        let n: Survivors = candidates
            .iter()
            .map(|c| {
                let pick = c[index % c.len()];
                index /= c.len();
                pick
            })
            .collect();
        match shared_state(record, &chain, &n, seen, moved) {
            Ok(()) => return Ok(n),
            Err(e) => drop(first.get_or_insert(e)),
        }
    }
    Err(first.unwrap_or_else(|| "no combination".into()))
}

fn shared_state(
    record: &Record,
    chain: &[(u64, usize, usize)],
    n: &Survivors,
    seen: &BTreeMap<&str, &Seen>,
    moved: &HashMap<(usize, usize), Node>,
) -> Result<(), String> {
    let mut model = Model::default();
    // Paths, and directories' entries, of which an operation is lost.
    let mut lost: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lost_inside: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, (_, stream, seq)) in chain.iter().enumerate() {
        let op = &record.streams[*stream][*seq].op;
        let path = *op.paths().last().expect("a shared operation has a path");
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        if *seq >= n[*stream] {
            lost.entry(path).or_insert(index);
            lost_inside.entry(dir).or_insert(index);
            continue;
        }
        let earlier = lost.get(path).or(lost.get(dir));
        let earlier = earlier.or(if matches!(op, Op::Rmdir { .. }) {
            lost_inside.get(path)
        } else {
            None
        });
        if let Some(earlier) = earlier {
            let (_, s, q) = chain[*earlier];
            return Err(format!(
                "C5: stream {stream} seq {seq} {op:?} survives without stream {s} seq {q} {:?} (survivors {n:?})",
                record.streams[s][q].op
            ));
        }
        match op {
            Op::Rename { to, .. } => model.adopt(to, moved[&(*stream, *seq)].clone()),
            _ => {
                let bytes = data(record.settings.seed, *stream, *seq, op.data_len());
                model.apply(op, &bytes);
            }
        }
    }
    let paths: BTreeSet<&str> = seen
        .keys()
        .copied()
        .chain(model.names.keys().map(String::as_str))
        .collect();
    for path in paths {
        if !model.agrees(path, seen.get(path).copied()) {
            let line = model.explain(path, seen.get(path).copied());
            return Err(format!("C1/C2: a shared object (survivors {n:?}): {line}"));
        }
    }
    Ok(())
}
