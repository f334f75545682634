//! Plain files: a log of records, a file that is replaced by rename, a directory as a queue.
use super::{Finding, Judged, Known, cannot, damaged, lost};
use crate::record::version;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Reads a file. `None`: there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Finding> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => damaged(format!("{} cannot be read: {e}", path.display())),
    }
}

/// A file as the tree before or after the run has it. The outer `None`: the tree is not known.
fn of_tree(tree: &Option<PathBuf>, path: &Path) -> Result<Option<Option<Vec<u8>>>, Finding> {
    tree.as_ref().map(|tree| read(&tree.join(path))).transpose()
}

/// What a careless eye sees of wrong contents.
fn describe(bytes: &[u8]) -> String {
    let zeros = bytes.iter().rev().take_while(|b| **b == 0).count();
    match (bytes.len(), zeros) {
        (0, _) => "it is empty".into(),
        (all, zeros) if all == zeros => format!("it is {all} bytes of zeros"),
        (all, zeros) if zeros > 0 => format!("the last {zeros} of its {all} bytes are zeros"),
        (all, _) => format!("it has {all} bytes"),
    }
}

/// Every crash leaves a beginning of what the log is at the end, with what it was at the beginning. The last record may be torn: a reader of a
/// log passes over a line without an end.
pub fn log(path: &Path, known: &Known) -> Judged {
    let shown = path.display();
    let found = read(&known.at(path))?.unwrap_or_default();
    let (before, after) = (of_tree(&known.before, path)?, of_tree(&known.after, path)?);
    if let (Some(Some(before)), Some(after)) = (&before, &after)
        && !after
            .as_ref()
            .is_some_and(|after| after.starts_with(before))
    {
        return Err(cannot(format!(
            "{shown} is no log that only grows: the program changed its beginning"
        )));
    }
    if let Some(after) = &after {
        let after = after.as_deref().unwrap_or_default();
        let same = found.iter().zip(after).take_while(|(a, b)| a == b).count();
        if same < found.len() {
            let line = 1 + after[..same].iter().filter(|b| **b == b'\n').count();
            return damaged(format!(
                "{shown}: record {line} is not what was written (byte {same}): {}",
                describe(&found)
            ));
        }
    } else if found.contains(&0) {
        return damaged(format!("{shown} holds zeros: {}", describe(&found)));
    }
    if let Some(Some(before)) = &before
        && found.len() < before.len()
    {
        return damaged(format!(
            "{shown} lost records that it had before: {}",
            describe(&found)
        ));
    }
    let whole = found
        .split_inclusive(|b| *b == b'\n')
        .filter_map(|l| l.strip_suffix(b"\n"));
    let records: std::collections::HashSet<&[u8]> = whole.collect();
    let mut answered = known.answered("record");
    match answered.find(|r| !records.contains(r.as_bytes())) {
        Some(record) => lost(shown, &format!("record {record}")),
        None => Ok(()),
    }
}

/// Every crash leaves one of the versions: that before the run, those that were marked, that after it.
pub fn replaced(path: &Path, known: &Known) -> Judged {
    let shown = path.display();
    let found = read(&known.at(path))?;
    let marked = |marks: &[String]| -> Vec<String> {
        let of_path = marks
            .iter()
            .filter_map(|m| m.strip_prefix("file ")?.split_once(' '));
        let plain = |p: &Path| {
            p.components()
                .filter(|c| *c != Component::CurDir)
                .collect::<PathBuf>()
        };
        let same = |name: &str| plain(Path::new(name)) == plain(path);
        let versions = of_path.filter(|(_, name)| same(name));
        versions.map(|(version, _)| version.to_string()).collect()
    };
    let (all, reached) = (marked(&known.marks), marked(&known.reached));
    let (before, after) = (of_tree(&known.before, path)?, of_tree(&known.after, path)?);
    if after.is_none() && all.is_empty() {
        return Err(cannot(format!(
            "no version of {shown} is known: no tree after the run, and no mark"
        )));
    }
    // The oldest first; none at all is a version, too.
    let mut versions: Vec<Option<String>> = Vec::new();
    let of = |contents: Option<Vec<u8>>| contents.map(|bytes| version(&bytes));
    versions.push(before.and_then(of));
    versions.extend(all.into_iter().map(Some));
    versions.extend(after.map(of));
    let now = found.as_deref().map(version);
    let Some(index) = versions.iter().rposition(|v| *v == now) else {
        let how = found.as_deref().map_or("it is missing".into(), describe);
        return damaged(format!(
            "{shown} is none of its {} versions: {how}",
            versions.len()
        ));
    };
    if index < reached.len() {
        return Err(Finding::Lost(format!(
            "{shown} is version {index}; version {} was answered for",
            reached.len()
        )));
    }
    Ok(())
}

/// The entries of a queue with their contents. Hidden ones, and those that say that they are not ready, are not in it.
fn entries(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, Finding> {
    let fail = |e: io::Error| damaged(format!("{} cannot be read: {e}", dir.display()));
    let mut all = BTreeMap::new();
    let listed = match std::fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(all),
        Err(e) => return fail(e),
    };
    for entry in listed {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => return fail(e),
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        let unready = name.starts_with('.') || name.ends_with(".tmp") || name.ends_with('~');
        if !unready && !entry.path().is_dir() {
            all.insert(name, read(&entry.path())?.unwrap_or_default());
        }
    }
    Ok(all)
}

/// Entries come and go as a whole and in the order of their names.
pub fn queue(dir: &Path, known: &Known) -> Judged {
    let shown = dir.display();
    let found = entries(&known.at(dir))?;
    let tree = |tree: &Option<PathBuf>| tree.as_ref().map(|t| entries(&t.join(dir))).transpose();
    let (before, after) = (tree(&known.before)?, tree(&known.after)?);
    for (name, bytes) in &found {
        let of = [&before, &after]
            .into_iter()
            .flatten()
            .find_map(|t| t.get(name));
        match of {
            Some(right) if right != bytes => {
                return damaged(format!(
                    "{shown}/{name} is not what was put in: {}",
                    describe(bytes)
                ));
            }
            // It came and went while the program ran.
            None if bytes.is_empty() || bytes.ends_with(&[0]) => {
                return damaged(format!("{shown}/{name} is not whole: {}", describe(bytes)));
            }
            _ => {}
        }
    }
    if let (Some(before), Some(after)) = (&before, &after) {
        let kept = before
            .keys()
            .find(|n| after.contains_key(*n) && !found.contains_key(*n));
        if let Some(name) = kept {
            return damaged(format!("{shown}/{name} is lost: nothing took it out"));
        }
        let (gone, new): (Vec<_>, Vec<_>) = (
            before.keys().filter(|n| !after.contains_key(*n)).collect(),
            after.keys().filter(|n| !before.contains_key(*n)).collect(),
        );
        // Of those that went the ones that are there are the last; of those that came, the first.
        let mut still = gone.iter().skip_while(|n| !found.contains_key(**n));
        if let Some(name) = still.find(|n| !found.contains_key(**n)) {
            return damaged(format!(
                "{shown}/{name} is out, and an earlier entry is still in"
            ));
        }
        let mut later = new.iter().skip_while(|n| found.contains_key(**n));
        if let Some(name) = later.find(|n| found.contains_key(**n)) {
            return damaged(format!("{shown}/{name} is in, and an earlier entry is not"));
        }
    }
    let out: Vec<&str> = known.answered("out").collect();
    if let Some(name) = out.iter().find(|n| found.contains_key(**n)) {
        return Err(Finding::Lost(format!(
            "{shown}/{name} was answered to be out, and is in again"
        )));
    }
    let went = |name: &str| {
        let out = known
            .marks
            .iter()
            .any(|m| super::behind(m, "out") == Some(name));
        out || after
            .as_ref()
            .is_some_and(|after| !after.contains_key(name))
    };
    let mut answered = known.answered("in");
    match answered.find(|n| !found.contains_key(*n) && !went(n)) {
        Some(name) => Err(Finding::Lost(format!(
            "{shown}/{name} was answered to be in, and is lost"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::version_mark;

    /// The image, and the trees before and after the run.
    struct Trees(tempfile::TempDir);

    /// `name: contents` of each tree.
    type Files<'a> = &'a [(&'a str, &'a str)];

    impl Trees {
        fn new(now: Files, before: Files, after: Files) -> Trees {
            let dir = tempfile::tempdir().unwrap();
            for (tree, files) in [("now", now), ("before", before), ("after", after)] {
                let tree = dir.path().join(tree);
                std::fs::create_dir_all(tree.join("q")).unwrap();
                for (name, text) in files {
                    std::fs::write(tree.join(name), text).unwrap();
                }
            }
            Trees(dir)
        }

        fn known(&self, marks: &[&str], reached: usize) -> Known {
            let marks: Vec<String> = marks.iter().map(|m| m.to_string()).collect();
            Known {
                root: self.0.path().join("now"),
                reached: marks[..reached].to_vec(),
                marks,
                before: Some(self.0.path().join("before")),
                after: Some(self.0.path().join("after")),
            }
        }
    }

    /// `None`: consistent; else the exit code.
    fn code(judged: Judged) -> Option<u8> {
        judged.err().map(|f| f.code())
    }

    fn judge_log(now: Option<&str>, marks: &[&str]) -> Option<u8> {
        let now: Vec<_> = now.iter().map(|text| ("log", *text)).collect();
        let trees = Trees::new(&now, &[("log", "a\n")], &[("log", "a\nbc\nd\n")]);
        code(log(Path::new("log"), &trees.known(marks, marks.len())))
    }

    #[test]
    fn a_log_is_a_beginning_of_what_it_becomes() {
        for good in ["a\n", "a\nb", "a\nbc\n", "a\nbc\nd\n"] {
            assert_eq!(judge_log(Some(good), &[]), None, "{good}");
        }
        for bad in ["", "a", "a\nd\n", "a\n\0\0\0d\n", "a\nbc\nd\ne", "a\nb\0"] {
            assert_eq!(judge_log(Some(bad), &[]), Some(1), "{bad}");
        }
        assert_eq!(judge_log(None, &[]), Some(1));
        assert_eq!(judge_log(Some("a\nbc\n"), &["record bc"]), None);
        // A torn record is no record.
        assert_eq!(judge_log(Some("a\nbc"), &["record bc"]), Some(3));
        let trees = Trees::new(&[], &[("log", "a\n")], &[("log", "b\n")]);
        assert_eq!(code(log(Path::new("log"), &trees.known(&[], 0))), Some(126));
        // A volume after a real crash: only what every log keeps.
        let known = |text| {
            let trees = Trees::new(&[("log", text)], &[], &[]);
            let known = Known {
                before: None,
                after: None,
                ..trees.known(&[], 0)
            };
            code(log(Path::new("log"), &known))
        };
        assert_eq!((known("a\nb"), known("a\n\0\0")), (None, Some(1)));
    }

    #[test]
    fn a_replaced_file_is_one_version_and_no_older_one_than_answered() {
        let marks = [
            version_mark("f", b"one"),
            version_mark("./f", b"two"),
            version_mark("g", b"x"),
        ];
        let marks: Vec<&str> = marks.iter().map(String::as_str).collect();
        let judge = |now: Option<&str>, reached: usize| {
            let now: Vec<_> = now.iter().map(|text| ("f", *text)).collect();
            let trees = Trees::new(&now, &[("f", "zero")], &[("f", "three")]);
            code(replaced(Path::new("f"), &trees.known(&marks, reached)))
        };
        for (text, version) in [("zero", 0), ("one", 1), ("two", 2), ("three", 3)] {
            for reached in 0..=3 {
                let old = version < reached.min(2);
                assert_eq!(
                    judge(Some(text), reached),
                    old.then_some(3),
                    "{text} {reached}"
                );
            }
        }
        for bad in [
            Some(""),
            Some("\0\0\0"),
            Some("on"),
            Some("onetwo"),
            Some("x"),
            None,
        ] {
            assert_eq!(judge(bad, 0), Some(1), "{bad:?}");
        }
        // Where there was none before, none is a version; where nothing is known, nothing is judged.
        let trees = Trees::new(&[], &[], &[("f", "new")]);
        assert_eq!(code(replaced(Path::new("f"), &trees.known(&[], 0))), None);
        assert_eq!(code(replaced(Path::new("f"), &Known::default())), Some(126));
    }

    #[test]
    fn a_queue_keeps_its_order_and_its_entries_whole() {
        let before = [("q/1", "a"), ("q/2", "b"), ("q/3", "c")];
        let after = [("q/3", "c"), ("q/4", "d"), ("q/5", "e")];
        let judge = |now: Files, marks: &[&str]| {
            let trees = Trees::new(now, &before, &after);
            code(queue(Path::new("q"), &trees.known(marks, marks.len())))
        };
        let of = |names: &str| -> Vec<(String, String)> {
            let text = |n: char| {
                before
                    .iter()
                    .chain(&after)
                    .find(|(name, _)| name.ends_with(n))
            };
            let entry = |n: char| {
                (
                    format!("q/{n}"),
                    text(n).map_or("x", |(_, t)| t).to_string(),
                )
            };
            names.chars().map(entry).collect()
        };
        let judge_names = |names: &str, marks: &[&str]| {
            let files = of(names);
            let files: Vec<_> = files
                .iter()
                .map(|(n, t)| (n.as_str(), t.as_str()))
                .collect();
            judge(&files, marks)
        };
        // What was taken out may come back, and what was put in may not be there yet; `6` came and went.
        for good in ["123", "23", "3", "34", "345", "1234", "12345", "36"] {
            assert_eq!(judge_names(good, &[]), None, "{good}");
        }
        for bad in ["", "12", "13", "35", "125"] {
            assert_eq!(judge_names(bad, &[]), Some(1), "{bad}");
        }
        for (names, marks) in [
            ("123", &["out 1"][..]),
            ("3", &["in 4"]),
            ("34", &["in 4", "in 5"]),
        ] {
            assert_eq!(judge_names(names, marks), Some(3), "{names} {marks:?}");
        }
        assert_eq!(judge_names("34", &["in 4", "out 1", "out 2"]), None);
        assert_eq!(judge_names("3", &["in 6", "out 6"]), None);
        for text in ["", "c\0", "C"] {
            assert_eq!(judge(&[("q/3", text)], &[]), Some(1), "{text}");
        }
        assert_eq!(judge(&[("q/3", "c"), ("q/6", "")], &[]), Some(1));
        assert_eq!(
            judge(&[("q/3", "c"), ("q/.6", ""), ("q/7.tmp", "")], &[]),
            None
        );
    }
}
