//! Crash states of a program by model (as ALICE does): from its system calls, not from a disk.
//!
//! Each call is split into micro-operations. A state keeps some of them: all up to a moment, apart from a call that was lost with what has to follow
//! it in the model's order. What a sync call had covered is never lost. A state that fails the check is a vulnerability:
//! of *atomicity* (a call half done), of *order* (a call lost that a later one relied on), of *durability* (lost though the program had told its
//! users). States that a mere kill leaves are tested first; what they fail is the program's own doing on any file system.
mod fsmodel;
mod ops;
mod script;
mod shrink;
mod source;
pub(crate) mod strace;
mod tree;

use crate::failure::{Failure, judge, never_run};
use crate::run::{self, shell};
use crate::{Fail, explore, record, sys};
pub use fsmodel::Model;
use fsmodel::{Fsync, Order};
use ops::{Op, What};
use shrink::{Smallest, kept, smallest};
use source::Sources;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tree::{Change, Id, Tree, concerns, listing, names};

/// The calls that are understood; recording others would only take time. `?`: not every processor has it.
const CALLS: &str = "trace=?open,?creat,openat,close,?dup,?dup2,dup3,fcntl,chdir,fchdir,?lseek,?_llseek,read,readv,write,writev,\
pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,sync,syncfs,?rename,?renameat,renameat2,?link,linkat,\
?unlink,?rmdir,unlinkat,?mkdir,mkdirat,?symlink,symlinkat,clone,?clone3,?fork,?vfork";

/// What to do.
pub struct Config {
    pub model: Model,
    pub setup: Option<String>,
    pub check: String,
    pub command: Vec<OsString>,
    /// Names of files that the program writes through mappings and makes anew after a crash: what is in them does not count.
    pub mapped: Vec<String>,
    /// States at most.
    pub states: usize,
    pub jobs: usize,
    pub limit: Duration,
    /// Whether, and for how long at most, to look for a smaller program that fails.
    pub shrink: Option<Duration>,
}

/// A way to fail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Vulnerability {
    /// `process crash`, `atomicity`, `order` or `durability`.
    pub kind: String,
    /// The call that was lost or half done, with its place in the source.
    pub call: String,
    pub source: String,
    /// Order: the later call that was there; durability: the output that had been seen.
    pub before: String,
    pub before_source: String,
    pub failure: String,
}

/// What came of it.
pub struct Found {
    pub calls: usize,
    pub ops: usize,
    pub states: usize,
    pub vulnerabilities: Vec<Vulnerability>,
    /// If it was asked for, and something fails.
    pub shrunk: Option<Shrunk>,
}

/// The smallest program that was found to fail as the recorded one.
pub struct Shrunk {
    /// Calls of the recorded program, and of this one.
    pub from: usize,
    pub to: usize,
    /// Whether no single call can be left out; else the time was over.
    pub complete: bool,
    /// Smaller programs that were tried.
    pub tries: usize,
    pub failure: String,
    /// A Python script that makes the calls.
    pub script: String,
}

/// Which operations are missing in a crash after so many.
struct State {
    kind: &'static str,
    /// Operations that had been done.
    until: usize,
    missing: BTreeSet<usize>,
    /// Outputs before this operation had been seen.
    seen: usize,
    /// The operation to blame, and the one it goes with.
    blame: usize,
    with: usize,
}

/// Records the program and tests the states. The program runs in a temporary directory on the machine's own file system.
pub fn model(config: &Config) -> Result<Found, Fail> {
    let scratch = record::scratch()?;
    let root = scratch.path().join("root");
    std::fs::create_dir(&root).map_err(|e| Fail::new(format!("{}: {e}", root.display())))?;
    // As the kernel tells it: calls are matched with it.
    let root = root
        .canonicalize()
        .map_err(|e| Fail::new(format!("{}: {e}", root.display())))?;
    if let Some(setup) = &config.setup {
        let ended = shell(setup, &root, &[], scratch.path(), config.limit)?;
        if !ended.ok() {
            return Err(Fail::new(format!(
                "the setup failed: {}",
                ended.text.trim()
            )));
        }
    }
    let mut tree = Tree::load(&root)?;
    let text = trace(config, &root, scratch.path())?;
    let calls = strace::parse(&text);
    let program = ops::read(
        &calls,
        root.as_os_str().as_bytes(),
        &mut tree,
        &config.model,
    );
    let explorer = Explorer {
        config,
        tree: &tree,
        ops: &program.ops,
        scratch: scratch.path(),
    };
    let all = Tree::load(&root)?;
    explorer.same_as_recorded(&all)?;
    let (states, failures) = explorer.explore()?;
    let shrunk = match config.shrink {
        Some(limit) => explorer.shrink(&failures, limit)?,
        None => None,
    };
    let mut found = BTreeMap::new();
    let mut sources = Sources::default();
    for (state, failure) in failures {
        let place = |op: usize, sources: &mut Sources| match program.ops.get(op) {
            Some(op) => (
                program.shown[op.call].clone(),
                sources.of(&program.stacks[op.call]),
            ),
            None => Default::default(),
        };
        let (call, source) = place(state.blame, &mut sources);
        let (before, before_source) = match state.kind {
            "order" | "durability" => place(state.with, &mut sources),
            _ => Default::default(),
        };
        // One for each place in the source, not for each time that it is passed; without lines, one for each kind of call.
        let verb = |call: &str| call.split([' ', '(']).next().unwrap_or("").to_string();
        let key = if source.contains(':') {
            (state.kind, source.clone(), None)
        } else {
            (state.kind, verb(&call), Some(failure.kind.clone()))
        };
        found.entry(key).or_insert(Vulnerability {
            kind: state.kind.to_string(),
            call,
            source,
            before,
            before_source,
            failure: failure.line,
        });
    }
    Ok(Found {
        calls: program
            .ops
            .iter()
            .map(|o| o.call)
            .collect::<HashSet<_>>()
            .len(),
        ops: program.ops.len(),
        states,
        vulnerabilities: found.into_values().collect(),
        shrunk,
    })
}

fn trace(config: &Config, root: &Path, scratch: &Path) -> Result<String, Fail> {
    let file = scratch.join("strace");
    let stdout = scratch.join("stdout");
    let fail = |e: std::io::Error| Fail::new(format!("cannot run strace: {e}; install strace"));
    let mut command = Command::new("strace");
    command
        .args(["-f", "-k", "-y", "-xx", "-s", "16777216"])
        .args(["--seccomp-bpf", "-e", CALLS, "-e", "signal=none", "-o"])
        .arg(&file)
        .arg("--")
        .args(&config.command)
        .current_dir(root)
        .stdin(std::process::Stdio::null())
        .stdout(std::fs::File::create(&stdout).map_err(fail)?);
    let mut child = sys::tie(&mut command, true).spawn().map_err(fail)?;
    let status = run::wait(&mut child, Some(config.limit));
    sys::kill_group(child.id());
    let _ = child.wait();
    match status? {
        Some(status) if status.success() => {}
        Some(status) => {
            return Err(Fail::new(format!(
                "the command failed under strace: {status}"
            )));
        }
        None => return Err(Fail::new("the command did not end in time")),
    }
    let bytes = std::fs::read(&file).map_err(fail)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[derive(Clone, Copy)]
struct Explorer<'a> {
    config: &'a Config,
    tree: &'a Tree,
    ops: &'a [Op],
    scratch: &'a Path,
}

impl Explorer<'_> {
    fn change(&self, op: usize) -> Option<&Change> {
        match &self.ops[op].what {
            What::Change(change) | What::Append(change) => Some(change),
            _ => None,
        }
    }

    /// The calls that were understood have to give what the program left.
    fn same_as_recorded(&self, recorded: &Tree) -> Result<(), Fail> {
        let mut tree = self.tree.clone();
        (0..self.ops.len())
            .filter_map(|op| self.change(op))
            .for_each(|change| tree.apply(change));
        let counts = |tree: &Tree| -> Vec<(String, Vec<u8>)> {
            let mut all = listing(tree);
            let name = |path: &str| path.rsplit('/').next().unwrap_or("").to_string();
            all.retain(|(path, _)| !self.config.mapped.contains(&name(path)));
            all
        };
        let (mine, theirs) = (counts(&tree), counts(recorded));
        match mine.iter().zip(&theirs).find(|(a, b)| a != b) {
            None if mine.len() == theirs.len() => Ok(()),
            differing => Err(Fail::new(format!(
                "the recorded calls do not give what the program left (it may write through mappings): {}",
                differing.map_or("a file more or less".into(), |(a, b)| format!(
                    "{} or {}",
                    a.0, b.0
                ))
            ))),
        }
    }

    /// Whether an operation keeps its place before a later one.
    fn ordered(&self, early: usize, late: usize) -> bool {
        let (Some(a), Some(b)) = (self.change(early), self.change(late)) else {
            return false;
        };
        let model = &self.config.model;
        if model.order == Order::All {
            return true;
        }
        let is_data = |c: &Change| matches!(c, Change::Data { .. });
        if model.order == Order::Metadata && !is_data(a) && !is_data(b) {
            return true;
        }
        // A file's new size is metadata, and comes with the data: after what was before it.
        let grows = matches!(self.ops[late].what, What::Append(_));
        if model.order == Order::Metadata && !is_data(a) && grows {
            return true;
        }
        match (a, b) {
            (
                Change::Data {
                    node: x,
                    offset,
                    bytes,
                },
                Change::Data {
                    node: y,
                    offset: at,
                    bytes: more,
                },
            ) => {
                let overlap = *offset < at + more.len() && *at < offset + bytes.len();
                let appends = matches!(
                    (&self.ops[early].what, &self.ops[late].what),
                    (What::Append(_), What::Append(_))
                );
                x == y && (overlap || (appends && model.appends_ordered))
            }
            (
                Change::Data { node: x, .. } | Change::Size { node: x, .. },
                Change::Rename { node: y, to, .. },
            ) => x == y && model.replace_flushed && self.replaces(late, to),
            (Change::Data { node: x, .. }, Change::Size { node: y, .. })
            | (
                Change::Size { node: x, .. },
                Change::Data { node: y, .. } | Change::Size { node: y, .. },
            ) => x == y,
            _ => names(a).iter().any(|n| names(b).contains(n)),
        }
    }

    /// Whether a rename goes over a name that is there.
    fn replaces(&self, op: usize, to: &(Id, Vec<u8>)) -> bool {
        let mut there = self.tree.lookup(to.0, &to.1).is_some();
        for change in (0..op).filter_map(|o| self.change(o)) {
            match change {
                Change::Entry { dir, name, node } if (*dir, name) == (to.0, &to.1) => {
                    there = node.is_some()
                }
                Change::Rename { to: t, .. } if t == to => there = true,
                Change::Rename { from, .. } if from == to => there = false,
                _ => {}
            }
        }
        there
    }

    /// The operations that sync calls before `until` made durable, with those that they need.
    fn durable(&self, until: usize) -> BTreeSet<usize> {
        let mut durable = BTreeSet::new();
        for op in 0..until {
            let covers = |earlier: usize| -> bool {
                let Some(change) = self.change(earlier) else {
                    return false;
                };
                match (&self.ops[op].what, self.config.model.fsync) {
                    (What::SyncAll, _) | (What::Sync(_), Fsync::All) => true,
                    (What::Sync(file), fsync) => {
                        let is_data = matches!(change, Change::Data { .. });
                        concerns(change, *file) || (fsync == Fsync::FileAndMetadata && !is_data)
                    }
                    _ => false,
                }
            };
            if matches!(self.ops[op].what, What::Sync(_) | What::SyncAll) {
                durable.extend((0..op).filter(|o| covers(*o)));
            }
        }
        for late in (0..until).rev() {
            if durable.contains(&late) {
                let needed: Vec<usize> = (0..late)
                    .filter(|early| self.ordered(*early, late))
                    .collect();
                durable.extend(needed);
            }
        }
        durable
    }

    /// What is missing if `lost` is: also what has to come after it.
    fn closure(&self, lost: &[usize], until: usize) -> BTreeSet<usize> {
        let mut missing: BTreeSet<usize> = lost.iter().copied().collect();
        let Some(first) = lost.first() else {
            return missing;
        };
        for late in first + 1..until {
            if missing
                .iter()
                .any(|early| *early < late && self.ordered(*early, late))
            {
                missing.insert(late);
            }
        }
        missing
    }

    fn explore(&self) -> Result<(usize, Vec<(State, Failure)>), Fail> {
        let ends = self.call_ends();
        let kills = self.kills();
        let mut tested = kills.len();
        let mut failures = self.test_all(kills, true)?;
        let consistent = (failures.len() < tested).then_some(None);
        let outcomes = failures.iter().map(|(_, f)| Some(f)).chain(consistent);
        if let Some(failure) = never_run(outcomes) {
            return Err(Fail::new(format!(
                "the check could be run in no state: {}",
                failure.line
            )));
        }
        // What a kill breaks is not the file system's to keep.
        let killed: HashSet<_> = failures.iter().map(|(_, f)| f.kind.clone()).collect();
        let mut states = self.crash_states(&ends);
        let room = self.config.states.saturating_sub(tested);
        if states.len() > room {
            let mut rng = ccfs_testkit::Rng::new(1);
            rng.shuffle(&mut states);
            states.truncate(room);
            states.sort_by_key(|s| (s.blame, s.with));
        }
        tested += states.len();
        let found = self.test_all(states, true)?;
        failures.extend(found.into_iter().filter(|(_, f)| !killed.contains(&f.kind)));
        failures.sort_by_key(|(s, _)| (s.blame, s.with));
        Ok((tested, failures))
    }

    /// After the last operation of each call.
    fn call_ends(&self) -> Vec<usize> {
        (1..=self.ops.len())
            .filter(|end| {
                self.ops
                    .get(*end)
                    .is_none_or(|next| next.call != self.ops[end - 1].call)
            })
            .collect()
    }

    fn state(
        &self,
        kind: &'static str,
        until: usize,
        missing: BTreeSet<usize>,
        seen: usize,
        blame: usize,
        with: usize,
    ) -> State {
        State {
            kind,
            until,
            missing,
            seen,
            blame,
            with,
        }
    }

    fn crash_states(&self, ends: &[usize]) -> Vec<State> {
        let mut states = Vec::new();
        let mut known = HashSet::new();
        let mut add = |state: State| {
            let kept: Vec<usize> = (0..state.until)
                .filter(|o| !state.missing.contains(o) && self.change(*o).is_some())
                .collect();
            if known.insert((kept, state.kind == "durability")) {
                states.push(state);
            }
        };
        let mut begin = 0;
        let durable: Vec<BTreeSet<usize>> = ends.iter().map(|end| self.durable(*end)).collect();
        for (index, &end) in ends.iter().enumerate() {
            let parts: Vec<usize> = (begin..end).filter(|o| self.change(*o).is_some()).collect();
            // Half of the call: its first part, all but its last, and, where they have no order, without its first.
            if parts.len() > 1 {
                for cut in BTreeSet::from([1, parts.len() / 2, parts.len() - 1]) {
                    add(self.state("atomicity", parts[cut], BTreeSet::new(), begin, parts[0], 0));
                }
                let missing = self.closure(&parts[..1], end);
                if missing.len() < parts.len() {
                    add(self.state("atomicity", end, missing, begin, parts[0], 0));
                }
            }
            // The call lost, later ones there.
            for (later, &until) in ends.iter().enumerate().skip(index + 1) {
                if parts.is_empty() || parts.iter().any(|o| durable[later].contains(o)) {
                    break;
                }
                let missing = self.closure(&parts, until);
                let with = until - 1;
                if !missing.contains(&with) && self.change(with).is_some() {
                    add(self.state("order", until, missing, begin, parts[0], with));
                }
            }
            // An output seen, and what was not durable lost.
            if matches!(self.ops[end - 1].what, What::Output(_)) {
                let lost: Vec<usize> = (0..end)
                    .filter(|o| self.change(*o).is_some() && !durable[index].contains(o))
                    .collect();
                if let Some(first) = lost.first().copied() {
                    let missing = lost.into_iter().collect();
                    add(self.state("durability", end, missing, end, first, end - 1));
                }
            }
            begin = end;
        }
        states
    }

    /// A kill of the program anywhere: everything up to the end of a call. Evenly spread where there are many.
    fn kills(&self) -> Vec<State> {
        let ends = self.call_ends();
        let room = (self.config.states / 4).max(8);
        let step = ends.len().div_ceil(room).max(1);
        let kill = |end: &usize| {
            let blame = end.saturating_sub(1);
            self.state("process crash", *end, BTreeSet::new(), *end, blame, 0)
        };
        ends.iter().step_by(step).map(kill).collect()
    }

    /// Shrinks the program to the first failure of a crash, or else of a kill. `None`: nothing fails.
    fn shrink(
        &self,
        failures: &[(State, Failure)],
        limit: Duration,
    ) -> Result<Option<Shrunk>, Fail> {
        let of_crash = failures.iter().find(|(s, _)| s.kind != "process crash");
        let Some((state, failure)) = of_crash.or(failures.first()) else {
            return Ok(None);
        };
        let all: BTreeSet<usize> = self.ops.iter().map(|o| o.call).collect();
        let show = std::io::stderr().is_terminal();
        let progress = |calls: usize, tries: usize| {
            if show {
                eprint!("\r\x1b[Kshrinking: {calls} calls, {tries} tries");
            }
        };
        // What came after the crash is not needed, most of the time.
        let before: BTreeSet<usize> = self.ops[..state.until].iter().map(|o| o.call).collect();
        let fails = |calls: &BTreeSet<usize>| -> Result<bool, Fail> {
            Ok(self.smaller(calls, state, failure)?.is_some())
        };
        let begin = match fails(&before)? {
            true => before,
            false => all.clone(),
        };
        let until = Instant::now() + limit;
        let Smallest {
            calls,
            complete,
            tries,
        } = smallest(begin, until, fails, progress)?;
        if show {
            eprint!("\r\x1b[K");
        }
        let ops: Vec<Op> = kept(self.ops, self.tree, &calls)
            .into_iter()
            .map(|(_, op)| op)
            .collect();
        let smaller = self.smaller(&calls, state, failure)?;
        let Some(mapped) = smaller else {
            return Err(Fail::new(
                "the failure is not the same each time: nothing to shrink to",
            ));
        };
        let made: HashSet<usize> = ops.iter().map(|o| o.call).collect();
        let story = script::Story {
            head: vec![
                format!("The smallest program that fails like the recorded one: {} of {} calls.", made.len(), all.len()),
                format!("Failure ({}): {}", mapped.kind, failure.line),
                format!("Model: {}. Check: {}", self.config.model.name, self.config.check),
                "It runs in an empty directory: `python3 FILE setup`, then `python3 FILE work`.".into(),
                "The failure again: ccfs crash model --setup 'python3 FILE setup' --model MODEL --check CHECK -- python3 FILE work".into(),
            ],
            until: mapped.until,
            missing: &mapped.missing,
        };
        Ok(Some(Shrunk {
            from: all.len(),
            to: made.len(),
            complete,
            tries,
            failure: failure.line.clone(),
            script: script::script(self.tree, &ops, &story),
        }))
    }

    /// The state of a program of these calls alone, if the model allows it, it fails in the same way, and a mere kill does not.
    fn smaller(
        &self,
        calls: &BTreeSet<usize>,
        state: &State,
        failure: &Failure,
    ) -> Result<Option<State>, Fail> {
        let kept = kept(self.ops, self.tree, calls);
        let place = |op: usize| kept.partition_point(|(number, _)| *number < op);
        let numbers = kept.iter().enumerate();
        let missing = numbers.filter(|(_, (number, _))| state.missing.contains(number));
        let missing: BTreeSet<usize> = missing.map(|(at, _)| at).collect();
        let mapped = self.state(
            state.kind,
            place(state.until),
            missing,
            place(state.seen),
            place(state.blame),
            place(state.with),
        );
        let ops: Vec<Op> = kept.iter().map(|(_, op)| op.clone()).collect();
        let small = Explorer { ops: &ops, ..*self };
        if !small.allows(&mapped) || !small.fails_as(&mapped, failure)? {
            return Ok(None);
        }
        if state.kind != "process crash" {
            let kills = small.test_all(small.kills(), false)?;
            if kills.iter().any(|(_, f)| f.kind == failure.kind) {
                return Ok(None);
            }
        }
        Ok(Some(mapped))
    }

    /// Whether a crash can leave a state: nothing that is durable is missing, and what has to follow what is missing is, too.
    fn allows(&self, state: &State) -> bool {
        let lost: Vec<usize> = state.missing.iter().copied().collect();
        let durable = self.durable(state.until);
        lost.iter().all(|o| !durable.contains(o))
            && self.closure(&lost, state.until) == state.missing
    }

    fn fails_as(&self, state: &State, failure: &Failure) -> Result<bool, Fail> {
        Ok(self.test(state)?.is_some_and(|f| f.kind == failure.kind))
    }

    /// Tests states in several threads; gives those that fail. `tell`: shows the progress, where there is a terminal.
    fn test_all(&self, states: Vec<State>, tell: bool) -> Result<Vec<(State, Failure)>, Fail> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let failures = Mutex::new(Vec::new());
        let error = Mutex::new(None);
        let show = tell && std::io::stderr().is_terminal();
        std::thread::scope(|scope| {
            for _ in 0..self.config.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        let Some(state) = states.get(number) else {
                            return;
                        };
                        match self.test(state) {
                            Ok(None) => {}
                            Ok(Some(failure)) => lock(&failures).push((number, failure)),
                            Err(e) => {
                                lock(&error).get_or_insert(e);
                                return;
                            }
                        }
                        if show {
                            let done = done.fetch_add(1, Relaxed) + 1;
                            let _ = write!(std::io::stderr(), "\r{done}/{} states", states.len());
                        }
                    }
                });
            }
        });
        if show {
            eprint!("\r\x1b[K");
        }
        if let Some(e) = lock(&error).take() {
            return Err(e);
        }
        let mut failures: BTreeMap<usize, Failure> =
            std::mem::take(&mut *lock(&failures)).into_iter().collect();
        let numbered = states.into_iter().enumerate();
        Ok(numbered
            .filter_map(|(number, state)| Some((state, failures.remove(&number)?)))
            .collect())
    }

    fn test(&self, state: &State) -> Result<Option<Failure>, Fail> {
        sys::interrupted()?;
        let mut tree = self.tree.clone();
        for op in (0..state.until).filter(|o| !state.missing.contains(o)) {
            if let Some(change) = self.change(op) {
                tree.apply(change);
            }
        }
        let dir = tempfile::tempdir_in(self.scratch).map_err(|e| Fail::new(e.to_string()))?;
        let root: PathBuf = dir.path().join("root");
        std::fs::create_dir(&root).map_err(|e| Fail::new(e.to_string()))?;
        tree.store(&root)?;
        let outputs: String = self.ops[..state.seen]
            .iter()
            .filter_map(|op| match &op.what {
                What::Output(text) => Some(format!("{text}\n")),
                _ => None,
            })
            .collect();
        let marks = dir.path().join("marks");
        std::fs::write(&marks, outputs).map_err(|e| Fail::new(e.to_string()))?;
        let env = [(explore::MARKS_ENV, marks.as_os_str())];
        let ended = shell(
            &self.config.check,
            &root,
            &env,
            dir.path(),
            self.config.limit,
        )?;
        Ok(judge(&ended))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}
