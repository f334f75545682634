//! Long explorations of the standard list: threads, progress, limits, and a file to go on from.
use crate::coverage::Coverage;
use crate::standard;
use std::collections::{BTreeSet, HashMap};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How far an exploration goes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// First place.
    pub from: u64,
    /// Places at most.
    pub places: u64,
    /// Distinct states after which no further place is begun, those of `state_file` included.
    pub states: u64,
    pub time: Duration,
    pub threads: usize,
    /// Holds what was done; a run with the same file goes on from there.
    pub state_file: Option<PathBuf>,
    /// Something that was never looked at is a failure.
    pub complete: bool,
    /// For shortening a failure.
    pub shrink: Duration,
    /// A place that takes longer hangs.
    pub hang: Duration,
    pub keep_going: bool,
    /// No progress is printed.
    pub quiet: bool,
    /// All workloads on transactional flash.
    pub flash: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            from: 0,
            places: u64::MAX,
            states: standard::LONG_STATES,
            time: Duration::MAX,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            state_file: None,
            complete: false,
            shrink: Duration::from_secs(120),
            hang: Duration::from_secs(1800),
            keep_going: false,
            quiet: false,
            flash: false,
        }
    }
}

/// What is saved: everything below `next` was explored, and so were the places in `beyond`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Done {
    next: u64,
    beyond: BTreeSet<u64>,
    /// Of all earlier runs too.
    seconds: u64,
    coverage: Coverage,
}

/// An exploration.
pub struct Long {
    limits: Limits,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    done: Done,
    /// Next place to begin.
    place: u64,
    begun: u64,
    /// States when this run began.
    before: u64,
    seconds_before: u64,
    running: HashMap<u64, Instant>,
    failures: Vec<String>,
    told: Instant,
}

impl Done {
    fn load(path: &Path) -> Result<Option<Done>, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(format!("{}: {e}", path.display())),
        };
        let mut done = Done::default();
        for line in text.lines() {
            let known = match line.split_once(' ') {
                Some(("next", n)) => n.parse().map(|n| done.next = n).is_ok(),
                Some(("seconds", n)) => n.parse().map(|n| done.seconds = n).is_ok(),
                Some(("beyond", n)) => n.parse().map(|n| done.beyond.insert(n)).is_ok(),
                _ => done.coverage.take_line(line),
            };
            if !known {
                let path = path.display();
                return Err(format!(
                    "{path}: no state of an exploration: `{line}`; remove it to begin anew"
                ));
            }
        }
        Ok(Some(done))
    }

    fn save(&self, path: &Path) -> Result<(), String> {
        let mut text = format!("next {}\nseconds {}\n", self.next, self.seconds);
        for place in &self.beyond {
            text += &format!("beyond {place}\n");
        }
        text += &self.coverage.to_lines();
        let new = path.with_extension("new");
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, path))
            .map_err(|e| format!("{}: {e}", path.display()))
    }

    fn finish(&mut self, place: u64) {
        self.beyond.insert(place);
        while self.beyond.remove(&self.next) {
            self.next += 1;
        }
    }
}

impl Long {
    /// Error: the state file cannot be used.
    pub fn new(limits: Limits) -> Result<Long, String> {
        let loaded = match &limits.state_file {
            Some(path) => Done::load(path)?,
            None => None,
        };
        let done = loaded.unwrap_or_else(|| Done {
            next: limits.from,
            ..Done::default()
        });
        let state = State {
            place: done.next,
            begun: 0,
            before: done.coverage.states(),
            seconds_before: done.seconds,
            done,
            running: HashMap::new(),
            failures: Vec::new(),
            told: Instant::now(),
        };
        Ok(Long {
            limits,
            start: Instant::now(),
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Explores and prints what was found. Error: failures, or what was never looked at.
    pub fn run(&self) -> Result<(), String> {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.limits.threads)
                .map(|_| scope.spawn(|| self.work()))
                .collect();
            while workers.iter().any(|w| !w.is_finished()) {
                std::thread::sleep(Duration::from_millis(100));
                self.watch();
            }
        });
        self.save()?;
        self.report()
    }

    /// What was looked at so far.
    pub fn coverage(&self) -> Coverage {
        self.state().done.coverage.clone()
    }

    pub fn failures(&self) -> Vec<String> {
        self.state().failures.clone()
    }

    fn begin(&self) -> Option<u64> {
        let mut s = self.state();
        let over = s.begun >= self.limits.places
            || s.done.coverage.states() >= self.limits.states
            || self.start.elapsed() > self.limits.time
            || (!s.failures.is_empty() && !self.limits.keep_going);
        if over {
            return None;
        }
        while s.done.beyond.contains(&s.place) {
            s.place += 1;
        }
        let place = s.place;
        (s.place, s.begun) = (place + 1, s.begun + 1);
        s.running.insert(place, Instant::now());
        Some(place)
    }

    fn work(&self) {
        while let Some(place) = self.begin() {
            let mut coverage = Coverage::default();
            let explored = standard::explore_place(
                place,
                &mut coverage,
                self.limits.shrink,
                self.limits.flash,
            );
            let mut s = self.state();
            s.running.remove(&place);
            s.done.coverage.add(&coverage);
            s.done.finish(place);
            if let Err(report) = explored {
                if !self.limits.quiet {
                    println!("FAILED {report}\n");
                }
                s.failures.push(report);
            }
        }
    }

    /// Progress, the state file, and what hangs.
    fn watch(&self) {
        let mut s = self.state();
        if let Some((place, _)) = s.running.iter().find(|r| r.1.elapsed() > self.limits.hang) {
            // Nothing can stop a thread that waits for a lock for ever.
            println!(
                "FAILED place {place}: hangs for {} s",
                self.limits.hang.as_secs()
            );
            std::process::exit(1);
        }
        if s.told.elapsed() < Duration::from_secs(10) {
            return;
        }
        s.told = Instant::now();
        let (states, place) = (s.done.coverage.states(), s.done.next);
        let rate = (states - s.before) as f64 / self.start.elapsed().as_secs_f64();
        drop(s);
        if !self.limits.quiet {
            let left = (self.limits.states.saturating_sub(states)) as f64 / rate.max(1.0) / 60.0;
            let line = format!(
                "place {place}: {states} of {} states, {rate:.0} a second, {left:.0} minutes left",
                self.limits.states
            );
            match std::io::stdout().is_terminal() {
                true => print!("\r{line} "),
                false => println!("{line}"),
            }
        }
        if let Err(e) = self.save() {
            eprintln!("{e}");
        }
    }

    fn save(&self) -> Result<(), String> {
        let mut s = self.state();
        s.done.seconds = s.seconds_before + self.start.elapsed().as_secs();
        match &self.limits.state_file {
            Some(path) => s.done.save(path),
            None => Ok(()),
        }
    }

    fn report(&self) -> Result<(), String> {
        let s = self.state();
        let coverage = &s.done.coverage;
        if !self.limits.quiet {
            let seconds = self.start.elapsed().as_secs_f64().max(0.001);
            let mine = coverage.states() - s.before;
            println!("\n{coverage}");
            println!(
                "{mine} distinct crash states in {seconds:.0} s with {} threads: {:.0} a second; in all runs {} in {} s",
                self.limits.threads,
                mine as f64 / seconds,
                coverage.states(),
                s.done.seconds
            );
            println!(
                "{} failures; what comes next: --from {}",
                s.failures.len(),
                s.done.next
            );
        }
        if !s.failures.is_empty() {
            return Err(s.failures.join("\n\n"));
        }
        let missing = coverage.missing();
        if self.limits.complete && !missing.is_empty() {
            return Err(format!("never looked at: {}", missing.join(", ")));
        }
        let (new, all) = coverage.states_of_new_promises();
        let wanted = all / 5;
        if self.limits.complete && new < wanted {
            return Err(format!(
                "only {new} states with groups, O_ATOMIC files or barriers, of {wanted} that there have to be"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_file_says_where_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert_eq!(Done::load(&path).unwrap(), None);
        let mut done = Done::default();
        for place in [1, 0, 4, 2] {
            done.finish(place);
        }
        assert_eq!((done.next, done.beyond.len()), (3, 1));
        done.coverage.take_line("total states 9");
        done.save(&path).unwrap();
        assert_eq!(Done::load(&path).unwrap(), Some(done));
        std::fs::write(&path, "junk").unwrap();
        assert!(Done::load(&path).unwrap_err().contains("begin anew"));
    }
}
