//! The host's side: finds kernels, boots one, and takes in what its guest tells.

use super::{Kernel, Line, Outcome, Plan, Version, checks, cuts, guest};
use crate::harness::WorkDir;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Longest run of all checks under one kernel, seconds.
const GUEST_S: u64 = 7200;
/// Longest run of one test program there, seconds.
const LIMIT_S: u64 = 1200;
/// Of scripts/guest/run.sh: there is no such kernel here, or no qemu.
pub const NOTHING_TO_RUN: i32 = 126;
const KILLED: i32 = 124;
const MEMORY_MIB: &str = "1536";

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Of scripts/guest.
pub fn script(name: &str) -> PathBuf {
    top().join("scripts/guest").join(name)
}

/// TARGET, of TARGET/release/... or TARGET/release/deps/...
pub fn target() -> PathBuf {
    let program = std::env::current_exe().expect("own path");
    let release = program.ancestors().find(|p| p.ends_with("release"));
    let folder = release.and_then(Path::parent).map(Path::to_path_buf);
    folder.expect("a release build")
}

/// What Debian's suites offer: (version, suite as run.sh takes it), oldest first; and what cannot be reached.
pub fn offered() -> (Vec<(Version, String)>, String) {
    let mut list = Command::new(script("kernels.sh"));
    let out = list.arg(target().join("guest")).stdin(Stdio::null());
    let out = out.output().expect("start kernels.sh");
    let line = |line: &str| {
        let (version, suite) = line.split_once(' ')?;
        Some((Version::of(version)?, suite.to_string()))
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let missing = String::from_utf8_lossy(&out.stderr).into_owned();
    (text.lines().filter_map(line).collect(), missing)
}

/// The test programs of these checks by `PACKAGE/TARGET`: cargo builds what is not built yet.
pub fn programs(names: &[&str]) -> Result<Vec<(String, String, String)>, String> {
    let chosen = checks::CHECKS.iter().filter(|c| names.contains(&c.name));
    let of_tests = chosen.flat_map(|c| c.parts).filter_map(|part| match part {
        checks::Part::Tests(program, ..) => Some(*program),
        checks::Part::Own(_) => None,
    });
    let wanted: BTreeSet<&str> = of_tests.collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    // Of all packages: which are built together decides on the features of what they need, and so on what is built anew.
    cargo.args(["test", "--release", "--workspace", "--no-run"]);
    cargo.arg("--message-format=json");
    let name_of = |program: &&'static str| program.split_once('/').expect("PACKAGE/TARGET").1;
    let targets: BTreeSet<&str> = wanted.iter().map(name_of).collect();
    cargo.args(targets.into_iter().flat_map(|target| ["--test", target]));
    let cargo = cargo.current_dir(top()).env("CARGO_TARGET_DIR", target());
    let out = cargo.stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("cargo: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let found: Vec<_> = text.lines().filter_map(test_program).collect();
    match wanted
        .iter()
        .find(|name| found.iter().all(|(known, ..)| known != *name))
    {
        Some(name) => Err(format!("cargo builds no test program {name}")),
        None => Ok(found),
    }
}

/// A test program that cargo's message names.
fn test_program(message: &str) -> Option<(String, String, String)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if message["target"]["kind"][0] != "test" {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    // PATH#VERSION, or PATH#NAME@VERSION where the folder has another name.
    let (place, end) = message["package_id"].as_str()?.split_once('#')?;
    let package = match end.split_once('@') {
        Some((package, _)) => package,
        None => place.rsplit('/').next()?,
    };
    let name = format!("{package}/{}", message["target"]["name"].as_str()?);
    let path = message["executable"].as_str()?.to_string();
    Some((name, path, folder.to_str()?.to_string()))
}

/// How a kernel's run ended.
#[derive(Debug)]
pub enum Ran {
    Done(Kernel),
    /// No such kernel here, or nothing to run it with: why.
    Nothing(String),
}

/// Runs these checks under the kernel of a suite. `tell` is given every line as it comes, `keep` the kernel with each check that has ended.
pub fn run(
    suite: &str,
    checks: &[&str],
    programs: &[(String, String, String)],
    tell: &mut dyn FnMut(&str),
    keep: &mut dyn FnMut(Kernel),
) -> Ran {
    let mut rest: Vec<String> = checks.iter().map(ToString::to_string).collect();
    let mut kernel = Kernel {
        version: suite
            .rsplit('/')
            .next()
            .and_then(Version::of)
            .unwrap_or(Version(0, 0)),
        release: String::new(),
        from: format!("Debian {}", suite.split('/').next().unwrap_or_default()),
        lines: Vec::new(),
    };
    let from = kernel.from.clone();
    let mut keep_line = |release: &str, line: &Line| {
        keep(Kernel {
            version: Version::of(release).expect("a kernel that runs"),
            release: release.into(),
            from: from.clone(),
            lines: vec![line.clone()],
        });
    };
    let mut boots_again = true;
    while !rest.is_empty() {
        let plan = Plan {
            checks: rest.clone(),
            programs: programs.to_vec(),
            limit_s: LIMIT_S,
        };
        let boot = Boot::run(suite, &plan, tell, &mut keep_line);
        if boot.code == NOTHING_TO_RUN {
            return Ran::Nothing(boot.console);
        }
        // Seen once in some 40 boots of an emulated machine, of 7.3: it ends before it has started anything.
        if boot.release.is_none() && std::mem::take(&mut boots_again) {
            tell("it has not come up; once more");
            continue;
        }
        kernel.release = boot.release.clone().unwrap_or(kernel.release);
        let before = kernel.lines.len();
        kernel.lines.extend(boot.lines);
        rest.retain(|name| kernel.lines.iter().all(|l| l.check != *name));
        // The check that was under way has ended its guest; without one nothing runs here at all.
        if !rest.is_empty() {
            let name = boot.begun.filter(|n| rest.contains(n));
            let why = match boot.code {
                KILLED => format!("no end within {GUEST_S} s"),
                code => format!("the kernel ended ({code}): {}", last_lines(&boot.console)),
            };
            let line = |check: &String| Line {
                check: check.clone(),
                outcome: Outcome::Failed(why.clone()),
                tests: 0,
                seconds: 0,
                day: today(),
                release: None,
            };
            let over = kernel.lines.len() == before && name.is_none();
            let ended: Vec<String> = match name {
                Some(name) if !over => vec![name],
                _ => rest.clone(),
            };
            for line in ended.iter().map(line) {
                tell(&line.to_string());
                kernel.lines.push(line);
            }
            rest.retain(|name| !ended.contains(name));
        }
    }
    kernel.version = Version::of(&kernel.release).unwrap_or(kernel.version);
    Ran::Done(kernel)
}

/// What one boot gave.
struct Boot {
    code: i32,
    release: Option<String>,
    lines: Vec<Line>,
    /// The check that began last.
    begun: Option<String>,
    console: String,
}

impl Boot {
    fn run(
        suite: &str,
        plan: &Plan,
        tell: &mut dyn FnMut(&str),
        keep: &mut dyn FnMut(&str, &Line),
    ) -> Boot {
        let place = WorkDir::new("kernels");
        let program = crate::harness::sibling("ccfs-kernels");
        // It ends with us, and the machine with it, also if we are killed.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(script("run.sh"))
            .args(["-t", &GUEST_S.to_string(), "-m", MEMORY_MIB, suite])
            .arg(program)
            .arg("--guest")
            .arg(serde_json::to_string(plan).expect("a plan"))
            .current_dir(top())
            .env("CARGO_TARGET_DIR", target())
            .env("GUEST_CUT", place.path())
            .env("GUEST_CUT_BYTES", cuts::DISK_BYTES.to_string())
            .env_remove("CCFS_TEST_TRANSPORT")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("start run.sh");
        place.adopt(child.id());
        let mut console = child.stderr.take().expect("piped");
        let console = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = console.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let mut boot = Boot {
            code: 0,
            release: None,
            lines: Vec::new(),
            begun: None,
            console: String::new(),
        };
        let (start, mut kept) = (Instant::now(), 0);
        let out = BufReader::new(child.stdout.take().expect("piped"));
        for bytes in out.split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_end_matches('\r');
            match text.split_once(guest::MARK) {
                Some((_, words)) => boot.heard(words.trim(), start, tell),
                None => tell(text),
            }
            // Whoever ends us after hours keeps what is known. What power cuts leave is seen last.
            if let (Some(release), Some(line)) = (&boot.release, boot.lines.get(kept)) {
                if line.check != cuts::CHECK {
                    keep(release, line);
                }
                kept += 1;
            }
        }
        boot.code = child.wait().ok().and_then(|s| s.code()).unwrap_or(-1);
        boot.console = console.join().unwrap_or_default();
        boot.judge_cuts(&place.path().join("log"), tell);
        boot
    }

    fn heard(&mut self, words: &str, start: Instant, tell: &mut dyn FnMut(&str)) {
        let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
        match word {
            "kernel" => {
                tell(&format!("{rest}, up after {} s", start.elapsed().as_secs()));
                self.release = Some(rest.to_string());
            }
            "begin" => self.begun = Some(rest.to_string()),
            "end" => match serde_json::from_str::<Line>(rest) {
                Ok(mut line) => {
                    tell(&line.to_string());
                    line.day = today();
                    self.lines.push(line);
                }
                Err(e) => tell(&format!("a line of the guest: {e}: {rest}")),
            },
            _ => tell(words),
        }
    }

    /// The guest has made the calls; what power cuts leave is seen here.
    fn judge_cuts(&mut self, log: &Path, tell: &mut dyn FnMut(&str)) {
        let made = |line: &&mut Line| line.check == cuts::CHECK && line.outcome == Outcome::Ok;
        let Some(line) = self.lines.iter_mut().find(made) else {
            return;
        };
        match cuts::examine(log, 1) {
            Ok(states) => line.tests = states,
            Err(why) => line.outcome = Outcome::Failed(why),
        }
        tell(&line.to_string());
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" ")
}

/// UTC.
fn today() -> String {
    let out = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
    text.unwrap_or_default()
}
