//! The guest's side: runs the checks of a plan under the kernel that runs, and tells of each in one line.

use super::checks::{self, Check, Part};
use super::{Line, Outcome, Plan, Version, release, short};
use crate::harness::{WorkDir, ccfs_program, run_ok};
use crate::sys;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Begins a line that is for the host's side.
pub const MARK: &str = "@ccfs-kernels";

/// Runs the plan. Other output than the lines says why something failed.
pub fn run_plan(plan: &Plan) {
    println!("{MARK} kernel {}", release());
    have_on_a_disk(Path::new(ccfs_program()));
    for name in &plan.checks {
        println!("{MARK} begin {name}");
        let start = Instant::now();
        let (outcome, tests) = match checks::named(name) {
            Some(check) => run_check(check, plan),
            None => (Outcome::Failed("there is no such check".into()), 0),
        };
        let line = Line {
            check: name.clone(),
            outcome,
            tests,
            seconds: start.elapsed().as_secs(),
            day: String::new(),
            release: None,
        };
        let text = serde_json::to_string(&line).expect("a line");
        println!("{MARK} end {text}");
    }
}

/// Puts a copy on the guest's own disk in the program's place. Of a read that a kill interrupts 9p gives the pages back while the host may
/// still write to them (seen on 6.1: after kills while memory was short the program's own pages were spoilt).
fn have_on_a_disk(program: &Path) {
    let copy = std::env::temp_dir().join("program");
    fs::copy(program, &copy).expect("copy a program");
    let text = |path: &Path| path.to_str().expect("plain path").to_string();
    run_ok("mount", &["--bind", &text(&copy), &text(program)]);
}

/// All parts, until one is not ok; and how many tests passed.
fn run_check(check: &Check, plan: &Plan) -> (Outcome, u64) {
    if let Some(since) = (check.lacks)() {
        return (Outcome::NotThere(since), 0);
    }
    let mut passed = 0;
    for part in check.parts {
        let outcome = match part {
            Part::Own(f) => {
                passed += 1;
                own(*f)
            }
            Part::Tests(program, names, env) => match tests(program, names, env, plan) {
                Ok(n) => {
                    passed += n;
                    Outcome::Ok
                }
                Err(outcome) => outcome,
            },
        };
        if outcome != Outcome::Ok {
            return (outcome, passed);
        }
    }
    (Outcome::Ok, passed)
}

fn own(f: fn() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Outcome::Failed(short(&text.unwrap_or_else(|| "a panic".into())))
    })
}

/// Runs a test program. How many tests passed, if all did.
fn tests(program: &str, names: &[&str], env: &[(&str, &str)], plan: &Plan) -> Result<u64, Outcome> {
    let failed = |why: &str| Err(Outcome::Failed(format!("{program}: {why}")));
    let Some((_, path, folder)) = plan.programs.iter().find(|(name, ..)| name == program) else {
        return failed("it was not built");
    };
    let place = WorkDir::new("kernels");
    let log = place.path().join("log");
    let file = File::create(&log).expect("a file for the output");
    let mut command = Command::new(path);
    command
        .args(["--nocapture", "--test-threads=1"])
        .args(names);
    if !names.is_empty() {
        command.arg("--exact");
    }
    command
        .current_dir(folder)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second descriptor"))
        .stderr(file)
        .process_group(0);
    let mut child = command.spawn().expect("start a test program");
    let end = Instant::now() + Duration::from_secs(plan.limit_s);
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for a test program") {
            break Some(status);
        }
        if Instant::now() > end {
            let _ = sys::kill_group(child.id() as i32, libc::SIGKILL);
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let verdict = match status {
        Some(status) => judge(&said, status.success(), names.len(), &Running::now()),
        None => Err(Outcome::Failed(format!("no end within {} s", plan.limit_s))),
    };
    verdict.map_err(|outcome| {
        if let Outcome::Failed(why) = outcome {
            let lines: Vec<&str> = said.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
            return Outcome::Failed(format!("{program}: {why}"));
        }
        outcome
    })
}

/// What a test can need of the kernel that runs.
struct Running {
    version: Version,
    /// It has FUSE over io_uring.
    rings: bool,
}

impl Running {
    fn now() -> Running {
        Running {
            version: Version::running(),
            rings: checks::has_rings(),
        }
    }

    /// It has not what a test was skipped for, and nobody has it there: the rest of the check is whole.
    fn lacks(&self, why: &str) -> bool {
        let needed = why.rsplit_once("needs Linux ");
        let needed = needed.and_then(|(_, version)| Version::of(version));
        needed.is_some_and(|needed| self.version < needed)
            || !self.rings && why.contains(": no io_uring: ")
    }
}

/// What a test program's output means. `asked`: how many tests were named, 0 for all that it has.
fn judge(said: &str, success: bool, asked: usize, kernel: &Running) -> Result<u64, Outcome> {
    let result = said.lines().rfind(|l| l.starts_with("test result:"));
    let passed = result.and_then(|l| l.split(" passed").next()?.rsplit(' ').next()?.parse().ok());
    let passed: u64 = passed.unwrap_or(0);
    if !success {
        let lines: Vec<&str> = said.lines().collect();
        let at = lines.iter().position(|l| l.contains(" panicked at "));
        let why = at.map(|at| lines[at..lines.len().min(at + 4)].join(" "));
        let end = lines.last().copied().unwrap_or_default();
        return Err(Outcome::Failed(short(&why.unwrap_or_else(|| end.into()))));
    }
    if passed == 0 || asked as u64 > passed {
        return Err(Outcome::Failed(format!("{passed} of {asked} tests ran")));
    }
    let mut skipped = said
        .lines()
        .filter_map(|l| Some(l.split_once("skipped: ")?.1));
    match skipped.find(|why| !kernel.lacks(why)) {
        Some(why) => Err(Outcome::Skipped(short(why))),
        None => Ok(passed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out";

    #[test]
    fn the_output_of_a_test_program_is_understood() {
        let (old, new) = (
            Running {
                version: Version(6, 12),
                rings: false,
            },
            Running {
                version: Version(6, 18),
                rings: true,
            },
        );
        let all = format!("test a ... ok\n{END}\n");
        assert_eq!(judge(&all, true, 2, &new), Ok(2));
        assert_eq!(judge(END, true, 0, &new), Ok(2));
        let fewer = judge(END, true, 3, &new);
        assert!(matches!(fewer, Err(Outcome::Failed(_))), "{fewer:?}");
        let none = judge("test result: ok. 0 passed; 0 failed", true, 0, &new);
        assert!(matches!(none, Err(Outcome::Failed(_))), "{none:?}");
        let skipped = format!("test a ... skipped: needs gcc\nok\n{END}");
        let skipped = judge(&skipped, true, 2, &old);
        assert_eq!(skipped, Err(Outcome::Skipped("needs gcc".into())));
        for why in [
            "a-uring: no io_uring: exit status: 32",
            "a: needs Linux 6.18",
        ] {
            let without = format!("skipped: {why}\n{END}");
            assert_eq!(judge(&without, true, 2, &old), Ok(2), "{why}");
            let failed = judge(&without, true, 2, &new);
            assert!(matches!(failed, Err(Outcome::Skipped(_))), "{failed:?}");
        }
        let said = "thread 'a' panicked at x.rs:1:\nleft is not right\nmore\n\ntest result: FAILED. 1 passed; 1 failed";
        let Err(Outcome::Failed(why)) = judge(said, false, 2, &new) else {
            panic!("a failure");
        };
        assert!(why.contains("x.rs:1: left is not right"), "{why}");
    }

    #[test]
    fn a_check_that_panics_has_failed() {
        assert_eq!(own(|| panic!("no {}", 1)), Outcome::Failed("no 1".into()));
    }
}
