//! The guest's side: runs the checks of a plan under the kernel that runs, and tells of each in one line.

use super::checks::{self, Check, OLDEST, Part};
use super::{Line, Outcome, Plan, release};
use crate::harness::{
    Fs, Volume, WorkDir, ccfs_program, kernel_mount, run, run_ok, umount_patiently,
};
use crate::sys;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
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
        };
        let text = serde_json::to_string(&line).expect("a line");
        println!("{MARK} end {text}");
    }
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

/// One line of at most 300 characters.
fn short(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
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
            let _ = sys::kill(-(child.id() as i32), libc::SIGKILL);
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let verdict = match status {
        Some(status) => judge(&said, status.success(), names.len()),
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

/// What a test program's output means. `asked`: how many tests were named, 0 for all that it has.
fn judge(said: &str, success: bool, asked: usize) -> Result<u64, Outcome> {
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
    let skipped = said
        .lines()
        .find_map(|l| Some(l.split_once("skipped: ")?.1));
    match skipped {
        Some(why) => Err(Outcome::Skipped(short(why))),
        None => Ok(passed),
    }
}

/// A kernel that is too old: the refusal says which one is needed, and the image is plain ext4.
pub fn refused() -> Outcome {
    let place = WorkDir::new("refused");
    let (image, dir) = (place.path().join("image"), place.path().join("mnt"));
    fs::create_dir(&dir).expect("a mount point");
    let text = |path: &Path| path.to_str().expect("plain path").to_string();
    run_ok(ccfs_program(), &["mkfs", "-s", "32M", &text(&image)]);
    let out = run(Command::new(ccfs_program()).args(["mount", &text(&image), &text(&dir)]));
    assert_ne!(out.code, 0, "it mounts: {}", out.all());
    let needed = format!("Linux {OLDEST}");
    assert!(out.stderr.contains(&needed), "no {needed}: {}", out.all());
    assert_eq!(out.stderr.lines().count(), 1, "one line: {}", out.all());
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    assert!(!table.contains(&text(&dir)), "a mount is left: {table}");
    run_ok("e2fsck", &["-fn", &text(&image)]);
    kernel_mount(&image, &dir, "rw,loop").expect("plain ext4");
    umount_patiently(&dir);
    Outcome::Ok
}

/// A volume on a block device: work, a killed daemon, recovery, and the kernel's ext4 on the same device.
pub fn block_device() -> Outcome {
    let Ok(device) = std::env::var("GUEST_DISK") else {
        return Outcome::Skipped("GUEST_DISK names no disk".into());
    };
    let mut v = Volume::over(Fs::Ccfs, "device", Path::new(&device)).options("commit=600");
    v.mkfs(64);
    v.mount();
    let file = File::create(v.path("synced")).expect("create");
    fs::write(v.path("synced"), "s").expect("write");
    file.sync_all().expect("fsync");
    drop(file);
    fs::write(v.path("lost"), "l").expect("write");
    v.kill9();
    v.mount();
    assert_eq!(fs::read(v.path("synced")).expect("it survives"), b"s");
    assert!(!v.path("lost").exists(), "nobody has synced it");
    fs::write(v.path("later"), [7; 100_000]).expect("write");
    v.finish();
    Outcome::Ok
}

/// Works, or the kernel has none.
pub fn nameless_files() -> Outcome {
    let v = Volume::new(Fs::Ccfs, "nameless", 32);
    let file = sys::open(v.mnt(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
    let outcome = match &file {
        Err(libc::EOPNOTSUPP) => Outcome::NotThere("Linux 6.1".into()),
        Err(errno) => Outcome::Failed(format!("O_TMPFILE: errno {errno}")),
        Ok(file) => {
            sys::pwrite(file, b"x", 0).expect("write");
            sys::link_fd(file, v.path("named")).expect("link");
            assert_eq!(fs::read(v.path("named")).expect("read"), b"x");
            Outcome::Ok
        }
    };
    drop(file);
    v.finish();
    outcome
}

pub fn times_of_birth() -> Outcome {
    let v = Volume::new(Fs::Ccfs, "birth", 32);
    fs::write(v.path("f"), "x").expect("write");
    let made = sys::stat(v.path("f")).expect("stat").mtime;
    sys::utimens(v.path("f"), (1, 2), (3, 4)).expect("utimens");
    let outcome = match sys::birth(v.path("f")).expect("statx") {
        None => Outcome::NotThere("Linux 6.8".into()),
        Some(birth) if (birth.0 - made.0).abs() <= 1 => Outcome::Ok,
        Some(birth) => Outcome::Failed(format!("born at {birth:?}, made at {made:?}")),
    };
    v.finish();
    outcome
}

/// What the kernel itself says of the checks before: no warning, nothing that hangs.
pub fn kernel_log() -> Outcome {
    const BAD: [&str; 6] = [
        "WARNING: ",
        "BUG: ",
        "Oops",
        "blocked for more than",
        "general protection fault",
        "rcu_preempt detected stalls",
    ];
    let mut log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .expect("the kernel's log");
    let mut found = Vec::new();
    let mut record = [0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(n) => {
                let text = String::from_utf8_lossy(&record[..n]);
                let message = text.split_once(';').map_or("", |(_, m)| m);
                if BAD.iter().any(|bad| message.contains(bad)) {
                    found.push(short(message));
                }
            }
            // Older records are gone.
            Err(e) if e.raw_os_error() == Some(libc::EPIPE) => (),
            Err(_) => break,
        }
    }
    match found.is_empty() {
        true => Outcome::Ok,
        false => Outcome::Failed(found.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out";

    #[test]
    fn the_output_of_a_test_program_is_understood() {
        assert_eq!(judge(&format!("test a ... ok\n{END}\n"), true, 2), Ok(2));
        assert_eq!(judge(END, true, 0), Ok(2));
        let fewer = judge(END, true, 3);
        assert!(matches!(fewer, Err(Outcome::Failed(_))), "{fewer:?}");
        let none = judge("test result: ok. 0 passed; 0 failed", true, 0);
        assert!(matches!(none, Err(Outcome::Failed(_))), "{none:?}");
        let skipped = judge(
            &format!("test a ... skipped: needs gcc\nok\n{END}"),
            true,
            2,
        );
        assert_eq!(skipped, Err(Outcome::Skipped("needs gcc".into())));
        let said = "thread 'a' panicked at x.rs:1:\nleft is not right\nmore\n\ntest result: FAILED. 1 passed; 1 failed";
        let Err(Outcome::Failed(why)) = judge(said, false, 2) else {
            panic!("a failure");
        };
        assert!(why.contains("x.rs:1: left is not right"), "{why}");
    }

    #[test]
    fn a_check_that_panics_has_failed() {
        assert_eq!(own(|| panic!("no {}", 1)), Outcome::Failed("no 1".into()));
    }
}
