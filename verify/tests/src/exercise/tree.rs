//! Random namespace and file operations by many threads in several streams, each thread against its own model.
//!
//! Every thread has a directory of its own, and owns names of its own in directories that all threads change. There the
//! model is exact. A few names are everybody's; about those only invariants hold.

use super::History;
use crate::hash::hash;
use crate::kill9::check::look;
use crate::kill9::op::{How, Kind, Model, Op, Seen, data};
use crate::sys::R;
use ccfs_testkit::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Directories that all threads share.
const PUBLIC: [&str; 3] = ["pub0", "pub1", "pub2"];
/// Length of the records that contended files hold.
const RECORD: u64 = 4096;

/// A tree under test.
pub trait Target: Sync {
    /// Called once by each thread: enters one of the streams.
    fn enter(&self, stream: usize);
    /// `stream` as in `enter`.
    fn run(&self, stream: usize, op: &Op, bytes: &[u8]) -> R<()>;
    /// What a path shows; `None` if it is not there.
    fn seen(&self, path: &str) -> R<Option<Seen>>;
    /// Names in a directory, without "." and "..".
    fn list(&self, dir: &str) -> R<Vec<String>>;
    /// What may explain a failure.
    fn diagnosis(&self) -> String {
        String::new()
    }
}

#[derive(Clone, Copy)]
pub struct Run {
    pub seed: u64,
    pub threads: usize,
    pub streams: usize,
    /// Of all threads together.
    pub operations: u64,
    /// One in so many operations is an fsync.
    pub sync_every: u64,
}

/// What the tree has to show.
pub struct Expected(Vec<Model>);

/// Runs. Panics with the seed at the first difference.
pub fn exercise(target: &dyn Target, run: Run) -> Expected {
    for thread in 0..run.threads {
        let op = Op::Mkdir {
            path: format!("t{thread}"),
        };
        target.run(0, &op, &[]).expect("mkdir");
    }
    for dir in PUBLIC {
        target
            .run(0, &Op::Mkdir { path: dir.into() }, &[])
            .expect("mkdir");
    }
    // The first failure ends the run; the others would only be its echo.
    let stop = AtomicBool::new(false);
    let models = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..run.threads)
            .map(|id| {
                let stop = &stop;
                scope.spawn(move || Thread::new(id, target, run, stop).run())
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
        ended
            .into_iter()
            .map(|r| r.unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect()
    });
    Expected(models)
}

impl Expected {
    /// Compares a whole tree, as a mount shows it, with the models.
    pub fn compare(&self, root: &Path) {
        let seen = look(root);
        let mut wrong = Vec::new();
        for (thread, model) in self.0.iter().enumerate() {
            for path in model.names.keys() {
                if !model.agrees(path, seen.get(path)) {
                    let bytes = first_difference(model, path, &root.join(path));
                    wrong.push(model.explain(path, seen.get(path)) + &bytes);
                }
            }
            let mine = seen.keys().filter(|p| owned(p, thread) && !model.has(p));
            wrong.extend(mine.map(|p| format!("{p}: nobody made it")));
        }
        wrong.truncate(20);
        assert!(
            wrong.is_empty(),
            "the tree is not what the models say:\n{}",
            wrong.join("\n")
        );
        check_contended(&seen);
    }
}

/// Where a file's bytes differ from the model's.
fn first_difference(model: &Model, path: &str, file: &Path) -> String {
    let (true, Ok(got)) = (model.has(path), std::fs::read(file)) else {
        return String::new();
    };
    let want = &model.node(path).content;
    let differ: Vec<usize> = (0..got.len().min(want.len()))
        .filter(|i| got[*i] != want[*i])
        .collect();
    let (Some(first), Some(last)) = (differ.first(), differ.last()) else {
        return String::new();
    };
    let zeros = got[*first..=*last].iter().all(|b| *b == 0);
    let should = want[*first..=*last].iter().all(|b| *b == 0);
    format!(
        "; bytes {first}..={last} differ (found all zero: {zeros}, expected all zero: {should})"
    )
}

/// Whether a path is below the thread's directory or one of its names in the public ones.
fn owned(path: &str, thread: usize) -> bool {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    if rest.is_empty() {
        return false;
    }
    first == format!("t{thread}")
        || rest
            .split('/')
            .next()
            .is_some_and(|n| n.starts_with(&format!("m{thread}-")))
}

/// Contended files hold one writer's whole record (or nothing).
fn check_contended(seen: &BTreeMap<String, Seen>) {
    for (path, s) in seen {
        let name = path.split_once('/').map_or("", |(_, n)| n);
        if !name.starts_with('c') || s.kind != Kind::File {
            continue;
        }
        let whole = s.len == 0
            || (0..=255u8).any(|tag| hash(&[tag; RECORD as usize]) == s.content && s.len == RECORD);
        assert!(whole, "{path}: {} bytes that no single write leaves", s.len);
        assert!(s.nlink >= 1 && s.nlink <= 64, "{path}: nlink {}", s.nlink);
    }
}

struct Thread<'a> {
    id: usize,
    stream: usize,
    target: &'a dyn Target,
    run: Run,
    rng: Rng,
    model: Model,
    history: History,
    count: usize,
    stop: &'a AtomicBool,
}

impl<'a> Thread<'a> {
    fn new(id: usize, target: &'a dyn Target, run: Run, stop: &'a AtomicBool) -> Self {
        let rng = Rng::part(run.seed, id as u64);
        let (model, history) = (Model::default(), History::new());
        Thread {
            id,
            stream: id % run.streams.max(1),
            target,
            run,
            rng,
            model,
            history,
            count: 0,
            stop,
        }
    }

    fn run(mut self) -> Model {
        self.target.enter(self.stream);
        let mine = self.run.operations / self.run.threads as u64;
        while (self.count as u64) < mine && !self.stop.load(Ordering::Relaxed) {
            self.count += 1;
            if self.rng.below(self.run.sync_every) == 0 {
                self.sync();
            } else if self.rng.chance(6) {
                self.contend();
            } else {
                self.operate();
            }
            if self.rng.below(20) == 0 {
                self.look_at_one();
            }
            if self.rng.below(500) == 0 {
                self.look_at_directory();
            }
        }
        self.model
    }

    fn fail(&self, what: String) -> ! {
        if self.stop.swap(true, Ordering::SeqCst) {
            panic!("another thread failed first");
        }
        panic!(
            "tree exerciser, seed {}, thread {}, operation {}: {what}\n{}\nlast operations of the thread:\n{}",
            self.run.seed,
            self.id,
            self.count,
            self.target.diagnosis(),
            self.history.text()
        );
    }

    fn operate(&mut self) {
        let op = self.choose();
        let bytes = data(self.run.seed, self.id, self.count, op.data_len());
        let want = expected(&self.model, &op, self.id);
        self.history.note(format!("{op:?}"));
        let got = self.target.run(self.stream, &op, &bytes);
        if got != want {
            self.fail(format!("{op:?}: got {got:?}, expected {want:?}"));
        }
        if got.is_ok() {
            self.model.apply(&op, &bytes);
        }
    }

    fn sync(&mut self) {
        let path = match self.any(|k| k != Kind::Symlink) {
            Some(path) => path,
            None => format!("t{}", self.id),
        };
        self.history.note(format!("fsync {path}"));
        let op = Op::Fsync {
            path,
            data_only: self.rng.chance(30),
        };
        if let Err(e) = self.target.run(self.stream, &op, &[]) {
            self.fail(format!("{op:?}: errno {e}"));
        }
    }

    /// A name that all threads fight for: any outcome but an odd error.
    fn contend(&mut self) {
        let path = format!("{}/c{}", self.rng.pick(&PUBLIC), self.rng.below(6));
        let other = format!("{}/c{}", self.rng.pick(&PUBLIC), self.rng.below(6));
        let op = match self.rng.below(10) {
            0..2 => Op::Create { path, mode: 0o644 },
            2..4 => Op::Unlink { path },
            4 => Op::Mkdir { path },
            5 => Op::Rmdir { path },
            6 => Op::Rename {
                from: path,
                to: other,
            },
            7 => Op::Exchange { a: path, b: other },
            8 => Op::Link {
                from: path,
                to: other,
            },
            _ => Op::Write {
                path,
                at: 0,
                len: RECORD,
                how: How::Cached,
            },
        };
        let bytes = vec![self.rng.below(256) as u8; op.data_len() as usize];
        match self.target.run(self.stream, &op, &bytes) {
            Ok(()) => {}
            Err(
                libc::ENOENT
                | libc::EEXIST
                | libc::ENOTDIR
                | libc::EISDIR
                | libc::ENOTEMPTY
                | libc::EPERM,
            ) => {}
            // A directory cannot go into itself, and a file can be gone between two steps of a call.
            Err(libc::EINVAL | libc::ESTALE)
                if matches!(op, Op::Rename { .. } | Op::Exchange { .. }) => {}
            Err(e) => self.fail(format!("{op:?} (contended): errno {e}")),
        }
    }

    fn look_at_one(&mut self) {
        let Some(path) = self.any(|_| true) else {
            return;
        };
        let seen = self.target.seen(&path);
        let seen = seen.unwrap_or_else(|e| self.fail(format!("looking at {path}: errno {e}")));
        if !self.model.agrees(&path, seen.as_ref()) {
            // Whether a reader was misled for a moment or something is lost makes a difference to who looks for it.
            std::thread::sleep(Duration::from_millis(300));
            let later = self.target.seen(&path).ok().flatten();
            let later = if self.model.agrees(&path, later.as_ref()) {
                "right"
            } else {
                "as wrong"
            };
            self.fail(format!(
                "{}; 0.3 s later: {later}",
                self.model.explain(&path, seen.as_ref())
            ));
        }
    }

    fn look_at_directory(&mut self) {
        let mut dirs: Vec<String> = PUBLIC.iter().map(|d| d.to_string()).collect();
        dirs.push(format!("t{}", self.id));
        dirs.extend(self.any(|k| k == Kind::Dir));
        let dir = self.rng.pick(&dirs).clone();
        let listed = self.target.list(&dir);
        let listed = listed.unwrap_or_else(|e| self.fail(format!("listing {dir}: errno {e}")));
        let all: BTreeSet<&String> = listed.iter().collect();
        if all.len() != listed.len() {
            self.fail(format!("{dir} lists a name twice"));
        }
        let prefix = format!("{dir}/");
        let direct = |n: &&String| n.starts_with(&prefix) && !n[prefix.len()..].contains('/');
        let want: BTreeSet<String> = self
            .model
            .names
            .keys()
            .filter(direct)
            .map(|n| n[prefix.len()..].to_string())
            .collect();
        let got: BTreeSet<String> = listed
            .iter()
            .filter(|n| owned(&format!("{dir}/{n}"), self.id))
            .cloned()
            .collect();
        if got != want {
            let missing: Vec<_> = want.difference(&got).take(5).collect();
            let extra: Vec<_> = got.difference(&want).take(5).collect();
            self.fail(format!("{dir} lists without {missing:?}, with {extra:?}"));
        }
    }

    fn any(&mut self, fits: impl Fn(Kind) -> bool) -> Option<String> {
        let len = self.model.names.len() as u64;
        if len == 0 {
            return None;
        }
        // A few draws, then the first that fits.
        for _ in 0..8 {
            let nth = self.rng.below(len) as usize;
            let (name, id) = self.model.names.iter().nth(nth).expect("below the length");
            if fits(self.model.nodes[id].kind) {
                return Some(name.clone());
            }
        }
        self.model
            .names
            .iter()
            .find(|(_, id)| fits(self.model.nodes[*id].kind))
            .map(|(n, _)| n.clone())
    }

    /// A name, mostly new, in a directory that is mostly there.
    fn name(&mut self) -> String {
        let dir = match self.rng.below(10) {
            0..3 => format!("{}/m{}-", self.rng.pick(&PUBLIC), self.id),
            3..7 => {
                self.any(|k| k == Kind::Dir)
                    .unwrap_or(format!("t{}", self.id))
                    + "/"
            }
            7 => self.any(|_| true).unwrap_or(format!("t{}", self.id)) + "/",
            _ => format!("t{}/", self.id),
        };
        let short = self.rng.below(40);
        if dir.matches('/').count() > 6 {
            return format!("t{}/n{short}", self.id);
        }
        match self.rng.below(20) {
            0 => format!("{dir}{}{short}", "long".repeat(50)),
            _ => format!("{dir}n{short}"),
        }
    }

    /// A path of the kind that the call wants, most of the time.
    fn existing(&mut self, kind: Kind) -> String {
        let found = if self.rng.chance(92) {
            self.any(|k| k == kind)
        } else {
            self.any(|_| true)
        };
        match found {
            Some(path) if !self.rng.chance(3) => path,
            _ => self.name(),
        }
    }

    fn choose(&mut self) -> Op {
        let many = self.model.names.len() > 150;
        match self.rng.below(100) {
            0..22 if !many => Op::Create {
                path: self.name(),
                mode: *self.rng.pick(&[0o644, 0o600, 0o755]),
            },
            22..27 if !many => Op::Mkdir { path: self.name() },
            27..31 if !many => {
                let len = 1 + self.rng.size(300) as usize;
                Op::Symlink {
                    path: self.name(),
                    target: "x/".repeat(len)[..len].to_string(),
                }
            }
            31..36 if !many => Op::Link {
                from: self.existing(Kind::File),
                to: self.name(),
            },
            36..50 => {
                let path = self.existing(Kind::File);
                Op::Write {
                    path,
                    at: self.rng.size(100_000),
                    len: 1 + self.rng.size(20_000),
                    how: How::Cached,
                }
            }
            50..54 => Op::Truncate {
                path: self.existing(Kind::File),
                len: self.rng.size(120_000),
            },
            54..57 => Op::Chmod {
                path: self.existing(Kind::File),
                mode: *self.rng.pick(&[0o600, 0o644, 0o777]),
            },
            57..60 => Op::Xattr {
                path: self.existing(Kind::File),
                len: 1 + self.rng.size(200),
            },
            60..62 => Op::Utimes {
                path: self.existing(Kind::File),
                mtime: 1 + self.rng.below(1 << 31) as i64,
            },
            62..72 => {
                let kind = *self
                    .rng
                    .pick(&[Kind::File, Kind::File, Kind::Dir, Kind::Symlink]);
                let from = self.existing(kind);
                let to = if self.rng.chance(50) {
                    self.name()
                } else {
                    self.existing(kind)
                };
                Op::Rename { from, to }
            }
            72..75 => {
                let kind = *self.rng.pick(&[Kind::File, Kind::Dir]);
                Op::Exchange {
                    a: self.existing(kind),
                    b: self.existing(Kind::File),
                }
            }
            75..80 => Op::Rmdir {
                path: self.existing(Kind::Dir),
            },
            _ => {
                let kind = *self
                    .rng
                    .pick(&[Kind::File, Kind::File, Kind::File, Kind::Symlink]);
                Op::Unlink {
                    path: self.existing(kind),
                }
            }
        }
    }
}

/// The outcome that Linux gives, in its order of checks.
fn expected(model: &Model, op: &Op, thread: usize) -> R<()> {
    let kind = |p: &str| model.names.get(p).map(|id| model.nodes[id].kind);
    let full = |p: &str| {
        let prefix = format!("{p}/");
        model
            .names
            .range(prefix.clone()..)
            .next()
            .is_some_and(|(n, _)| n.starts_with(&prefix))
    };
    // The first component on the way that is not a directory decides.
    let parent = |p: &str| -> R<()> {
        let parts: Vec<&str> = p.split('/').collect();
        for n in 2..parts.len() {
            match kind(&parts[..n].join("/")) {
                Some(Kind::Dir) => {}
                Some(Kind::File) => return Err(libc::ENOTDIR),
                // Dangling, as all symlinks of this test are.
                Some(Kind::Symlink) | None => return Err(libc::ENOENT),
            }
        }
        let known = PUBLIC.contains(&parts[0]) || parts[0] == format!("t{thread}");
        if known && parts.len() > 1 {
            Ok(())
        } else {
            Err(libc::ENOENT)
        }
    };
    let is_new = |p: &str| {
        parent(p).and(if kind(p).is_some() {
            Err(libc::EEXIST)
        } else {
            Ok(())
        })
    };
    let exists = |p: &str| parent(p).and(kind(p).ok_or(libc::ENOENT));
    // Calls that follow a symlink meet a dangling one.
    let followed = |p: &str| match exists(p)? {
        Kind::Symlink => Err(libc::ENOENT),
        other => Ok(other),
    };
    match op {
        Op::Create { path, .. } | Op::Mkdir { path } | Op::Symlink { path, .. } => is_new(path),
        Op::Link { from, to } => {
            let kind = exists(from)?;
            is_new(to)?;
            if kind == Kind::Dir {
                Err(libc::EPERM)
            } else {
                Ok(())
            }
        }
        Op::Unlink { path } => match exists(path)? {
            Kind::Dir => Err(libc::EISDIR),
            _ => Ok(()),
        },
        Op::Rmdir { path } => match exists(path)? {
            Kind::Dir if full(path) => Err(libc::ENOTEMPTY),
            Kind::Dir => Ok(()),
            _ => Err(libc::ENOTDIR),
        },
        Op::Write { path, .. } | Op::Truncate { path, .. } => match followed(path)? {
            Kind::Dir => Err(libc::EISDIR),
            _ => Ok(()),
        },
        Op::Chmod { path, .. } => followed(path).map(drop),
        // These do not follow; user attributes are for files and directories.
        Op::Xattr { path, .. } => match exists(path)? {
            Kind::Symlink => Err(libc::EPERM),
            _ => Ok(()),
        },
        Op::Utimes { path, .. } => exists(path).map(drop),
        Op::Rename { from, to } => rename(model, from, to, &parent, &kind, &full),
        Op::Exchange { a, b } => {
            parent(a)?;
            parent(b)?;
            kind(a).ok_or(libc::ENOENT)?;
            kind(b).ok_or(libc::ENOENT)?;
            let inside = |x: &str, y: &str| x.starts_with(&format!("{y}/"));
            if inside(a, b) || inside(b, a) {
                Err(libc::EINVAL)
            } else {
                Ok(())
            }
        }
        Op::Punch { .. } | Op::Allocate { .. } | Op::Fsync { .. } | Op::StreamSync | Op::SyncFs => {
            Ok(())
        }
    }
}

fn rename(
    model: &Model,
    from: &str,
    to: &str,
    parent: &dyn Fn(&str) -> R<()>,
    kind: &dyn Fn(&str) -> Option<Kind>,
    full: &dyn Fn(&str) -> bool,
) -> R<()> {
    parent(from)?;
    parent(to)?;
    let moved = kind(from).ok_or(libc::ENOENT)?;
    if to.starts_with(&format!("{from}/")) {
        return Err(libc::EINVAL);
    }
    if from.starts_with(&format!("{to}/")) {
        return Err(libc::ENOTEMPTY);
    }
    if model.names.get(from) == model.names.get(to) {
        return Ok(());
    }
    match (moved, kind(to)) {
        (_, None) => Ok(()),
        (Kind::Dir, Some(Kind::Dir)) if full(to) => Err(libc::ENOTEMPTY),
        (Kind::Dir, Some(Kind::Dir)) => Ok(()),
        (Kind::Dir, Some(_)) => Err(libc::ENOTDIR),
        (_, Some(Kind::Dir)) => Err(libc::EISDIR),
        _ => Ok(()),
    }
}
