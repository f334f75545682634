//! A program is killed at any moment: what it has reported as done is there, and of the call after that all or a part (C1, C2, C8).
use super::{command, compile, source, text, volume};
use ccfs_testkit::Rng;
use ccfs_testkit::run::signal;
use ccfs_tests::harness::{Compare, Tree, number};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// What is in the tree: directories, names of files, and the files' bytes.
#[derive(Clone, Default)]
struct Model {
    dirs: BTreeSet<String>,
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
    slots: BTreeMap<String, usize>,
}

impl Model {
    /// A call that succeeded; of a write so many bytes.
    fn apply(&mut self, call: &str, got: usize) {
        let words: Vec<&str> = call.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        match words[..] {
            ["open", slot, path] => {
                let files = &mut self.files;
                let new = || {
                    files.push(Vec::new());
                    files.len() - 1
                };
                let id = *self.names.entry(path.into()).or_insert_with(new);
                self.slots.insert(slot.into(), id);
            }
            ["close", slot] => {
                self.slots.remove(slot);
            }
            ["write", slot, ..] => {
                let file = &mut self.files[self.slots[slot]];
                file.resize(file.len() + got, number(3) as u8);
            }
            ["truncate", slot, _] => self.files[self.slots[slot]].resize(number(2), 0),
            // Two names of one file: nothing happens.
            ["rename", a, b] if self.names.get(a) == self.names.get(b) => {}
            ["rename", a, b] => {
                let id = self.names.remove(a).expect("a name");
                self.names.insert(b.into(), id);
            }
            ["link", a, b] => {
                self.names.insert(b.into(), self.names[a]);
            }
            ["unlink", a] => {
                self.names.remove(a).expect("a name");
            }
            ["mkdir", d] => assert!(self.dirs.insert(d.into())),
            ["rmdir", d] => assert!(self.dirs.remove(d)),
            _ => panic!("{call}"),
        }
    }

    /// Whether the call can succeed here.
    fn can(&self, call: &str) -> bool {
        let words: Vec<&str> = call.split(' ').collect();
        let dir = |path: &str| self.dirs.contains(&path[..2]);
        match words[..] {
            ["open", _, path] => dir(path),
            ["rename", a, b] => self.names.contains_key(a) && dir(b),
            ["link", a, b] => self.names.contains_key(a) && dir(b) && !self.names.contains_key(b),
            ["unlink", a] => self.names.contains_key(a),
            ["mkdir", d] => !self.dirs.contains(d),
            ["rmdir", d] => self.dirs.contains(d) && !self.names.keys().any(|n| n.starts_with(d)),
            ["write" | "truncate" | "close", slot, ..] => self.slots.contains_key(slot),
            _ => panic!("{call}"),
        }
    }

    /// What differs, or nothing.
    fn differs(&self, root: &Path) -> Option<String> {
        let mut seen = (BTreeSet::new(), BTreeMap::new());
        for dir in std::fs::read_dir(root).expect("list") {
            let dir = dir.expect("a directory").file_name();
            let dir = dir.to_str().expect("a plain name");
            seen.0.insert(dir.to_string());
            for file in std::fs::read_dir(root.join(dir)).expect("list") {
                let file = file.expect("a file");
                let bytes = std::fs::read(file.path()).expect("read");
                let name = file.file_name();
                seen.1
                    .insert(format!("{dir}/{}", name.to_str().expect("plain")), bytes);
            }
        }
        if seen.0 != self.dirs {
            return Some(format!("{:?}, not {:?}", seen.0, self.dirs));
        }
        let names = |n: &BTreeSet<&String>| format!("{n:?}");
        let (there, expected) = (seen.1.keys().collect(), self.names.keys().collect());
        if there != expected {
            return Some(format!("{}, not {}", names(&there), names(&expected)));
        }
        let wrong = seen
            .1
            .iter()
            .find(|(n, b)| self.files[self.names[*n]] != **b);
        wrong.map(|(name, bytes)| {
            let expected = &self.files[self.names[name]];
            let same = bytes
                .iter()
                .zip(expected)
                .take_while(|(a, b)| a == b)
                .count();
            let (len, want) = (bytes.len(), expected.len());
            format!("{name}: {len} bytes, not {want}; the first {same} are right")
        })
    }
}

/// All that was reported, and the call without an answer; how many calls were done.
fn check(root: &Path, said: &str, context: &str) -> usize {
    let mut model = Model::default();
    let (mut pending, mut done) = (None, 0);
    for line in said.lines() {
        let Some(got) = line.strip_prefix("= ") else {
            pending = Some(line);
            continue;
        };
        let call = pending.take().expect("a call");
        let could = model.can(call);
        assert_eq!(got != "-1", could, "{context}: {call} gave {got}");
        if let Ok(got) = got.parse::<usize>() {
            model.apply(call, got);
            done += 1;
        }
    }
    let Some(why) = model.differs(root) else {
        return done;
    };
    if let Some(call) = pending.filter(|call| model.can(call)) {
        // A write in parts: those before the signal.
        let words: Vec<&str> = call.split(' ').collect();
        let most = match words[..] {
            ["write", _, len, _] => len.parse().expect("a length"),
            _ => 0,
        };
        let after = |got: usize| {
            let mut model = model.clone();
            model.apply(call, got);
            model.differs(root).is_none()
        };
        if (0..=most).rev().any(after) {
            return done;
        }
    }
    let tail: Vec<&str> = said.lines().rev().take(30).collect();
    panic!("{context}: {why}\nlast first: {}", tail.join("; "));
}

/// The program itself, not the one that limits its time.
fn kill(launcher: u32) {
    let file = format!("/proc/{launcher}/task/{launcher}/children");
    let child = std::fs::read_to_string(file).expect("its children");
    signal(child.trim().parse().expect("one child"), "KILL");
}

struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls that prove something, and rounds that may be added for them.
const CALLS: usize = 1000;
const MORE_ROUNDS: u64 = 1000;

#[test]
fn what_was_reported_is_there_after_a_kill() {
    let Some(mut v) = volume("kills", 512) else {
        return;
    };
    let program = compile(&v, "reports", &[source("reports.c")]);
    let seed = number("CCFS_TEST_SEED", 17);
    let mut rng = Rng::new(seed);
    let rounds = number("CCFS_TEST_ROUNDS", 30);
    let (mut calls, mut round) = (0, 0);
    // More of them where the machine is slow.
    while round < rounds || calls <= CALLS {
        assert!(
            round < rounds + MORE_ROUNDS,
            "calls that prove nothing: {calls}"
        );
        let base = v.path(&format!("base{round}"));
        std::fs::create_dir(&base).expect("a directory");
        let each = (seed + round).to_string();
        let words = [text(&program), text(&base), &each];
        let mut started = command(&v, true, &words);
        started.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut victim = Victim(started.spawn().expect("start"));
        let mut out = victim.0.stdout.take().expect("its output");
        let (first, began) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let (mut all, mut part) = (Vec::new(), [0; 65536]);
            while let Ok(n @ 1..) = out.read(&mut part) {
                all.extend_from_slice(&part[..n]);
                let _ = first.send(());
            }
            String::from_utf8(all).expect("text")
        });
        began
            .recv_timeout(Duration::from_secs(120))
            .expect("a first line");
        std::thread::sleep(Duration::from_micros(rng.below(40_000)));
        kill(victim.0.id());
        drop(victim);
        let said = reader.join().expect("its reports");
        calls += check(&base, &said, &format!("seed {seed}, round {round}"));
        round += 1;
    }
    println!("{calls} calls that were reported, in {round} rounds");
    let before = Tree::read(v.mnt());
    v.remount();
    let changed = before.differences(&Tree::read(v.mnt()), Compare::everything());
    assert!(
        changed.is_empty(),
        "a remount changes:\n{}",
        changed.join("\n")
    );
    v.finish();
}
