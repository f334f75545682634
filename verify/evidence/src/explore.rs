//! Exploring a trace: images of crashes, each mounted (recovery included) and checked by the user's command.
pub use crate::failure::Failure;
use crate::failure::{Mask, judge, never_run};
use crate::fs::{Kind, Mount};
use crate::images::{Builder, Choice, History, Spec, choose};
use crate::record::scratch;
use crate::run;
use crate::trace::Trace;
use crate::{Fail, fs, sys};
use ccfs_disks::MemoryDevice;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where a check finds the marks that had been reached: the name of a file with one a line.
pub const MARKS_ENV: &str = "CCFS_MARKS";
/// The same with all marks of the run, reached or not.
pub const ALL_MARKS_ENV: &str = "CCFS_ALL_MARKS";
/// Directories with what was there before the recorded program ran, and after it.
pub const BEFORE_ENV: &str = "CCFS_BEFORE";
pub const AFTER_ENV: &str = "CCFS_AFTER";
/// With a bound on time: how often the images are gone through, each time in the order of the crashes, so that none of them is left out for its place.
const PASSES: usize = 8;
/// Distinct failures that are made minimal, and the tries for each.
const MINIMISED: usize = 8;
const TRIES: usize = 80;

/// What to explore, and how.
#[derive(Clone, Debug)]
pub struct Config {
    pub trace: PathBuf,
    /// Shell command, run in the root of each image; exit code 0: consistent.
    pub check: String,
    /// Where the trace does not say it.
    pub fs: Option<Kind>,
    pub choice: Choice,
    /// An exit code of the check that is as good as 0, and counted.
    pub forgiven: Option<i32>,
    pub jobs: usize,
    /// Longest time of one check.
    pub limit: Duration,
    /// When to end: images that have not been tried by then are left, and failures are not made smaller.
    pub until: Option<Instant>,
    pub progress: bool,
    /// The program `ccfs`, for the check: `$CCFS`.
    pub ccfs: PathBuf,
}

/// One image's outcome.
#[derive(Clone, Debug)]
pub struct Tested {
    pub spec: Spec,
    /// `None`: consistent.
    pub failure: Option<Failure>,
}

/// A distinct failure, with the least that has to be lost for it.
#[derive(Clone, Debug)]
pub struct Distinct {
    /// As the image `minimal` fails.
    pub failure: Failure,
    pub images: usize,
    pub minimal: Spec,
}

/// What came of it.
pub struct Explored {
    pub history: History,
    pub fs: Kind,
    /// By crash point.
    pub tested: Vec<Tested>,
    pub distinct: Vec<Distinct>,
    /// Images whose check ended with the exit code that is forgiven; they count as consistent.
    pub forgiven: usize,
    /// Images that were chosen, and not tried because the time was over.
    pub left: usize,
}

/// A time in which a crash is harmful, seconds from the start.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Window {
    pub from_s: f64,
    pub to_s: f64,
    /// The telling line of the first image in it.
    pub failure: String,
    #[serde(skip)]
    kind: Mask,
    /// Only if the crash also loses, or tears, writes that no flush has covered yet.
    pub loses: bool,
}

impl Explored {
    /// Consistent images and all, of one kind or (`""`) of all.
    pub fn count(&self, kind: &str) -> (usize, usize) {
        let of_kind = self
            .tested
            .iter()
            .filter(|t| kind.is_empty() || t.spec.kind() == kind);
        let good = of_kind.clone().filter(|t| t.failure.is_none()).count();
        (good, of_kind.count())
    }

    /// The same by the four kinds of [`History::kind`].
    pub fn count_of(&self, kind: &str) -> (usize, usize) {
        let images = self.tested.iter();
        let images = images.filter(|t| self.history.kind(&t.spec) == kind);
        let good = images.clone().filter(|t| t.failure.is_none()).count();
        (good, images.count())
    }

    /// What makes the check itself suspect: it fails where there was no crash. Where images were left nothing is said: those may be among them.
    pub fn hint(&self) -> Option<String> {
        let in_order = |t: &&Tested| t.spec == Spec::in_order(t.spec.at) && self.left == 0;
        let mut in_order = self.tested.iter().filter(in_order);
        let mut line = |last: bool| {
            let tested = match last {
                false => in_order.next(),
                true => in_order.next_back(),
            };
            Some(tested?.failure.as_ref()?.line.as_str())
        };
        let (what, line) = match (line(false), line(true)) {
            (_, Some(line)) => ("what the program left at its end, without a crash", line),
            (Some(line), None) => ("what was there before the program began", line),
            (None, None) => return None,
        };
        Some(format!("the check also fails on {what}: {line}"))
    }

    /// Recorded time, seconds.
    pub fn seconds(&self) -> f64 {
        self.history.time_s(self.history.end())
    }

    /// The images in order, each valid from its time until the next one's.
    fn spans(&self) -> Vec<(f64, f64, Option<&Failure>)> {
        let in_order: Vec<_> = self
            .tested
            .iter()
            .filter(|t| t.spec.kind() == "in order")
            .map(|t| (self.history.time_s(t.spec.at), t.failure.as_ref()))
            .collect();
        let ends = in_order.iter().skip(1).map(|s| s.0);
        let ends = ends.chain([self.seconds()]);
        in_order
            .iter()
            .zip(ends)
            .map(|((from, failure), to)| (*from, to.max(*from), *failure))
            .collect()
    }

    /// Times in which a crash is harmful: with nothing lost that was written, and (`loses`) with what a crash may lose, as far as it was
    /// tried.
    pub fn windows(&self) -> Vec<Window> {
        let mut windows = self.windows_in_order();
        windows.extend(self.windows_with_losses());
        windows.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        windows
    }

    /// An image that lost writes is there until a flush covers the first of them.
    fn windows_with_losses(&self) -> Vec<Window> {
        let mut windows: Vec<Window> = Vec::new();
        let others = self.tested.iter().filter(|t| t.spec.kind() != "in order");
        for tested in others {
            let Some(failure) = &tested.failure else {
                continue;
            };
            let until = self.history.possible_until(&tested.spec);
            let from_s = self
                .history
                .time_s(self.history.possible_from(&tested.spec));
            let to_s = self.history.time_s(until).max(from_s);
            // In the order of crash points.
            let same = windows.iter_mut().rev();
            let mut same = same.filter(|w| w.kind == failure.kind);
            match same.next() {
                Some(last) if from_s <= last.to_s => {
                    last.from_s = last.from_s.min(from_s);
                    last.to_s = last.to_s.max(to_s);
                }
                _ => windows.push(Window {
                    from_s,
                    to_s,
                    failure: failure.line.clone(),
                    kind: failure.kind.clone(),
                    loses: true,
                }),
            }
        }
        windows
    }

    fn windows_in_order(&self) -> Vec<Window> {
        let mut windows: Vec<Window> = Vec::new();
        let mut open = false;
        for (from_s, to_s, failure) in self.spans() {
            match (failure, windows.last_mut()) {
                (None, _) => open = false,
                (Some(failure), Some(last)) if open && last.kind == failure.kind => {
                    last.to_s = to_s;
                }
                (Some(failure), _) => {
                    open = true;
                    windows.push(Window {
                        from_s,
                        to_s,
                        failure: failure.line.clone(),
                        kind: failure.kind.clone(),
                        loses: false,
                    });
                }
            }
        }
        windows
    }

    /// Seconds in which a crash is harmless that loses nothing.
    pub fn consistent_s(&self) -> f64 {
        let bad: f64 = self
            .windows_in_order()
            .iter()
            .map(|w| w.to_s - w.from_s)
            .sum();
        self.seconds() - bad
    }
}

/// Explores. The caller has made [`sys::private_mounts`] and [`sys::catch_signals`].
pub fn explore(config: &Config) -> Result<Explored, Fail> {
    let (history, fs) = open(config)?;
    let scratch = scratch()?;
    let run = WholeRun::of(&history, fs, scratch.path())?;
    let tester = Tester {
        config,
        history: &history,
        fs,
        whole_run: &run,
        scratch: scratch.path(),
    };
    let mut specs = choose(&history, config.choice);
    if config.until.is_some() {
        specs = in_passes(specs);
    }
    let mut tested = tester.test_all(&specs)?;
    tested.sort_by(|a, b| (a.spec.at, &a.spec.lost).cmp(&(b.spec.at, &b.spec.lost)));
    if let Some(failure) = never_run(tested.iter().map(|t| t.failure.as_ref())) {
        return Err(Fail::new(format!(
            "the check could be run in no image: {}",
            failure.line
        )));
    }
    let forgiven = forgive(&mut tested, config.forgiven);
    let distinct = tester.distinct(&tested)?;
    let left = specs.len() - tested.len();
    Ok(Explored {
        history,
        fs,
        tested,
        distinct,
        forgiven,
        left,
    })
}

/// Every [`PASSES`]th, then the ones behind those, and so on.
fn in_passes(specs: Vec<Spec>) -> Vec<Spec> {
    let pass = |n: usize| specs.iter().skip(n).step_by(PASSES).cloned();
    (0..PASSES).flat_map(pass).collect()
}

/// What checks are told of the whole run: copies of what was there before the program ran, and after it (`None` where that cannot be mounted, such
/// as before the mkfs of a foreign trace), and a file with all marks.
struct WholeRun {
    marks: tempfile::NamedTempFile,
    before: Option<PathBuf>,
    after: Option<PathBuf>,
}

impl WholeRun {
    fn of(history: &History, fs: Kind, scratch: &Path) -> Result<WholeRun, Fail> {
        let tree = |name: &str, at: usize| {
            let image = Builder::new(history).build(&Spec::in_order(at))?;
            let Ok(mount) = Mount::new(fs, Arc::new(image), scratch) else {
                return Ok(None);
            };
            let copy = scratch.join(name);
            let copied = fs::tool("cp")
                .arg("-a")
                .args([mount.root.as_path(), &copy])
                .output()
                .map_err(|e| Fail::new(format!("cannot run cp: {e}")))?;
            if !copied.status.success() {
                let text = String::from_utf8_lossy(&copied.stderr).trim().to_string();
                return Err(Fail::new(format!(
                    "cannot copy the tree {name} the run: {text}"
                )));
            }
            Ok(Some(copy))
        };
        Ok(WholeRun {
            marks: marks_file(history, history.end(), scratch)?,
            before: tree("before", history.first)?,
            after: tree("after", history.end())?,
        })
    }
}

/// A file with the marks that a crash at `at` had reached, one a line.
fn marks_file(
    history: &History,
    at: usize,
    scratch: &Path,
) -> Result<tempfile::NamedTempFile, Fail> {
    let cannot = |e: std::io::Error| Fail::new(format!("cannot write the marks: {e}"));
    let file = tempfile::NamedTempFile::new_in(scratch).map_err(cannot)?;
    let marks = history.marks(at);
    let text: String = marks.iter().map(|m| format!("{m}\n")).collect();
    std::fs::write(file.path(), text).map_err(cannot)?;
    Ok(file)
}

/// Takes back the failures whose check ended with this exit code, and gives their number.
fn forgive(tested: &mut [Tested], code: Option<i32>) -> usize {
    let Some(code) = code else {
        return 0;
    };
    let mut count = 0;
    for one in tested {
        if one.failure.take_if(|f| f.code == Some(code)).is_some() {
            count += 1;
        }
    }
    count
}

fn open(config: &Config) -> Result<(History, Kind), Fail> {
    let history = History::new(Trace::open(&config.trace)?)?;
    let named = history.fs.as_deref().and_then(Kind::parse);
    let fs = config.fs.or(named).ok_or_else(|| {
        Fail::new("the trace does not say which file system it is of; name it with --fs")
    })?;
    match fs.missing() {
        Some(why) => Err(Fail::new(why)),
        None => Ok((history, fs)),
    }
}

/// Tests one image and tells all of the check's output. With `save` the image (before its recovery) goes to a file.
pub fn one(config: &Config, spec: &Spec, save: Option<&Path>) -> Result<(Tested, String), Fail> {
    let (history, fs) = open(config)?;
    history.check(spec)?;
    let scratch = scratch()?;
    let image = Builder::new(&history).build(spec)?;
    if let Some(path) = save {
        image
            .to_file(path)
            .map_err(|e| Fail::new(format!("{}: {e}", path.display())))?;
    }
    let run = WholeRun::of(&history, fs, scratch.path())?;
    let tester = Tester {
        config,
        history: &history,
        fs,
        whole_run: &run,
        scratch: scratch.path(),
    };
    let (failure, text) = tester.test(spec, image)?;
    let spec = spec.clone();
    Ok((Tested { spec, failure }, text))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|p| p.into_inner())
}

struct Shared {
    tested: Mutex<Vec<Tested>>,
    error: Mutex<Option<Fail>>,
    stop: AtomicBool,
    bad: AtomicUsize,
    total: usize,
    progress: bool,
}

impl Shared {
    fn fail(&self, e: Fail) {
        lock(&self.error).get_or_insert(e);
        self.stop.store(true, Relaxed);
    }

    fn done(&self, tested: Tested) {
        if tested.failure.is_some() {
            self.bad.fetch_add(1, Relaxed);
        }
        let mut all = lock(&self.tested);
        all.push(tested);
        if self.progress {
            let (done, total, bad) = (all.len(), self.total, self.bad.load(Relaxed));
            let filled = done * 40 / total.max(1);
            let _ = write!(
                std::io::stderr(),
                "\r[{}{}] {done}/{total} images, {bad} inconsistent",
                "#".repeat(filled),
                ".".repeat(40 - filled)
            );
        }
    }
}

struct Tester<'a> {
    config: &'a Config,
    history: &'a History,
    fs: Kind,
    whole_run: &'a WholeRun,
    scratch: &'a Path,
}

impl Tester<'_> {
    /// Builds the images in one thread and tests them in others.
    fn test_all(&self, specs: &[Spec]) -> Result<Vec<Tested>, Fail> {
        let config = self.config;
        let jobs = match self.fs {
            Kind::Btrfs => 1,
            _ => config.jobs.max(1),
        };
        let (sender, receiver) = sync_channel::<(Spec, MemoryDevice)>(jobs);
        let receiver = Mutex::new(receiver);
        let shared = Shared {
            tested: Mutex::new(Vec::with_capacity(specs.len())),
            error: Mutex::new(None),
            stop: AtomicBool::new(false),
            bad: AtomicUsize::new(0),
            total: specs.len(),
            progress: config.progress && std::io::stderr().is_terminal(),
        };
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| self.work(&receiver, &shared));
            }
            let mut builder = Builder::new(self.history);
            for spec in specs {
                if shared.stop.load(Relaxed) || self.is_over() {
                    break;
                }
                match builder.build(spec) {
                    Ok(image) => {
                        if sender.send((spec.clone(), image)).is_err() {
                            break;
                        }
                    }
                    Err(e) => {
                        shared.fail(e);
                        break;
                    }
                }
            }
            drop(sender);
        });
        if shared.progress {
            eprint!("\r\x1b[K");
        }
        match lock(&shared.error).take() {
            Some(e) => Err(e),
            None => Ok(std::mem::take(&mut *lock(&shared.tested))),
        }
    }

    fn is_over(&self) -> bool {
        self.config
            .until
            .is_some_and(|until| Instant::now() >= until)
    }

    /// The earliest crash that leaves what an image has lost lost.
    fn not_before(&self, spec: &Spec) -> usize {
        spec.lost.last().map_or(self.history.first, |n| n + 1)
    }

    fn work(&self, receiver: &Mutex<Receiver<(Spec, MemoryDevice)>>, shared: &Shared) {
        loop {
            let next = lock(receiver).recv();
            let Ok((spec, image)) = next else {
                return;
            };
            if shared.stop.load(Relaxed) {
                // The builder may be waiting for room.
                continue;
            }
            match self.test(&spec, image) {
                Ok((failure, _)) => shared.done(Tested { spec, failure }),
                Err(e) => shared.fail(e),
            }
        }
    }

    /// Mounts an image and runs the check. Also gives the output.
    fn test(&self, spec: &Spec, image: MemoryDevice) -> Result<(Option<Failure>, String), Fail> {
        sys::interrupted()?;
        let marks = marks_file(self.history, spec.at, self.scratch)?;
        let mount = match Mount::new(self.fs, Arc::new(image), self.scratch) {
            Ok(mount) => mount,
            Err(e) => {
                let failure = Failure::of(&format!("cannot be mounted: {e}"));
                return Ok((Some(failure), e.to_string()));
            }
        };
        let run = self.whole_run;
        let mut env = vec![
            (MARKS_ENV, marks.path().as_os_str()),
            (ALL_MARKS_ENV, run.marks.path().as_os_str()),
            ("CCFS", self.config.ccfs.as_os_str()),
        ];
        env.extend(run.before.iter().map(|tree| (BEFORE_ENV, tree.as_os_str())));
        env.extend(run.after.iter().map(|tree| (AFTER_ENV, tree.as_os_str())));
        let ended = run::shell(
            &self.config.check,
            &mount.root,
            &env,
            self.scratch,
            self.config.limit,
        )?;
        drop(mount);
        Ok((judge(&ended), ended.text))
    }

    /// The failures that differ, each made minimal.
    fn distinct(&self, tested: &[Tested]) -> Result<Vec<Distinct>, Fail> {
        let mut kinds: BTreeMap<&Mask, Vec<(&Spec, &Failure)>> = BTreeMap::new();
        for Tested { spec, failure } in tested {
            if let Some(failure) = failure {
                kinds
                    .entry(&failure.kind)
                    .or_default()
                    .push((spec, failure));
            }
        }
        let mut kinds: Vec<_> = kinds.into_values().collect();
        kinds.sort_by_key(|images| std::cmp::Reverse(images.len()));
        let mut out = Vec::new();
        for (index, images) in kinds.into_iter().enumerate() {
            let size = |spec: &Spec| (spec.lost.len() + spec.torn.is_some() as usize, spec.at);
            let Some((spec, failure)) = images.iter().min_by_key(|(spec, _)| size(spec)) else {
                continue;
            };
            let (minimal, failure) = match index < MINIMISED {
                true => self.minimise(spec, failure)?,
                false => ((*spec).clone(), (*failure).clone()),
            };
            out.push(Distinct {
                failure,
                images: images.len(),
                minimal,
            });
        }
        Ok(out)
    }

    /// Takes lost writes back as long as the failure stays: halves, quarters, ... single ones. Then it moves the crash to an earlier time.
    fn minimise(&self, spec: &Spec, failure: &Failure) -> Result<(Spec, Failure), Fail> {
        let mut best = spec.clone();
        let mut shown = failure.clone();
        let mut tries = 0;
        let mut still_fails = |spec: &Spec| -> Result<bool, Fail> {
            tries += 1;
            if tries > TRIES || self.is_over() {
                return Ok(false);
            }
            let image = Builder::new(self.history).build(spec)?;
            let (found, _) = self.test(spec, image)?;
            let Some(same) = found.filter(|f| f.kind == failure.kind) else {
                return Ok(false);
            };
            shown = same;
            Ok(true)
        };
        if best.torn.is_some() || best.early.is_some() {
            let plain = Spec {
                torn: None,
                early: None,
                ..best.clone()
            };
            if still_fails(&plain)? {
                best = plain;
            }
        }
        let mut piece = best.lost.len();
        while piece > 0 {
            let mut from = 0;
            while from < best.lost.len() {
                let mut fewer = best.clone();
                fewer.lost.drain(from..(from + piece).min(best.lost.len()));
                if still_fails(&fewer)? {
                    best = fewer;
                } else {
                    from += piece;
                }
            }
            piece /= 2;
        }
        if best.torn.is_none() && best.early.is_none() {
            // Between a cut at which it does not fail, or is another image, and one at which it does.
            let (mut low, mut high) = (self.not_before(&best), best.at);
            while low < high {
                let middle = Spec {
                    at: low + (high - low) / 2,
                    ..best.clone()
                };
                if still_fails(&middle)? {
                    high = middle.at;
                    best = middle;
                } else {
                    low = middle.at + 1;
                }
            }
        }
        Ok((best, shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two writes at 1 and 2 s, a flush that ends at 5 s and covers them, a write at 6 s and its flush at 7 s.
    #[test]
    fn a_crash_is_harmful_until_a_flush_covers_what_it_loses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let writer = crate::trace::TraceWriter::create(&path).unwrap();
        writer.write(0, &[&[1; 512]], 0);
        writer.write(512, &[&[2; 512]], 0);
        writer.flush(2);
        writer.write(0, &[&[3; 512]], 3);
        writer.flush(4);
        writer.close().unwrap();
        let mut trace = Trace::open(&path).unwrap();
        for (entry, seconds) in trace.entries.iter_mut().zip([1, 2, 5, 6, 7]) {
            // Times count from the first entry.
            entry.time_ns = (seconds - 1) * 1_000_000_000;
        }
        let tested = |spec: &str, bad: bool| Tested {
            spec: spec.parse().unwrap(),
            failure: bad.then(|| Failure::of("broken")),
        };
        let explored = Explored {
            history: History::new(trace).unwrap(),
            fs: Kind::Ccfs,
            tested: vec![
                tested("1", false),
                tested("2", false),
                tested("2-0", true),
                // Without the second write too: as from the first one on.
                tested("2-1", true),
                tested("3", false),
                tested("4", true),
                tested("4-3", false),
                tested("5", false),
            ],
            distinct: Vec::new(),
            forgiven: 0,
            left: 0,
        };
        let windows = explored.windows();
        let windows: Vec<_> = windows
            .iter()
            .map(|w| (w.from_s, w.to_s, w.loses))
            .collect();
        assert_eq!(windows, [(0.0, 4.0, true), (5.0, 6.0, false)]);
        assert_eq!((explored.seconds(), explored.consistent_s()), (6.0, 5.0));
    }

    #[test]
    fn only_one_exit_code_is_forgiven() {
        let tested = |code: Option<i32>| Tested {
            spec: "1".parse().unwrap(),
            failure: Some(Failure {
                code,
                ..Failure::of("broken")
            }),
        };
        let mut all = [Some(1), Some(3), None, Some(3)].map(tested);
        let failed = |all: &[Tested]| all.iter().map(|t| t.failure.is_some()).collect::<Vec<_>>();
        assert_eq!(forgive(&mut all, None), 0);
        assert_eq!(failed(&all), [true; 4]);
        assert_eq!(forgive(&mut all, Some(3)), 2);
        assert_eq!(failed(&all), [true, false, true, false]);
    }
}
