//! `ccfs crash`: finds what ext4 does to Git in its default configuration, and nothing on ccfs; leaves nothing behind.
use ccfs_testkit::mounts::{loops_below, no_mounts};
use ccfs_testkit::needs_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs;
use ccfs_testkit::run::{Ran, no_strace, run};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// A program of the crate's collection, as a shell command.
fn program(name: &str, verb: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let dir = dir.canonicalize().unwrap();
    format!("sh '{}/{name}' {verb}", dir.display())
}

fn record(place: &Place, fs: &str, args: &[&str], setup: &str, work: &str) -> Ran {
    run(ccfs()
        .env("TMPDIR", place.path("."))
        .args(["crash", "record", "--fs", fs, "--setup", setup, "-o"])
        .arg(place.path("trace"))
        .args(args)
        .args(["--", "sh", "-c", work]))
}

fn explore(place: &Place, check: &str, args: &[&str]) -> Ran {
    run(ccfs()
        .env("TMPDIR", place.path("."))
        .args(["crash", "explore"])
        .arg(place.path("trace"))
        .args(["--timeout", "600", "--check", check])
        .args(args))
}

/// Consistent images and all, and the rest of what explore says as JSON.
fn summary(ran: &Ran) -> (u64, u64, Value) {
    let value: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {} {}", ran.out, ran.err));
    let number = |name: &str| value["summary"][name].as_u64().unwrap();
    (number("consistent"), number("total"), value.clone())
}

/// Git syncs no loose objects. After the commit interval ext4 has their names but not their data.
fn git(fs: &str) -> Option<(Place, u64, u64, Value)> {
    let place = Place::new();
    let done = record(
        &place,
        fs,
        &["--linger", "7", "--size", "256M"],
        &program("git.sh", "setup"),
        &program("git.sh", "work"),
    );
    if done.err.contains("this kernel has no") {
        println!("skipped: {}", done.err);
        return None;
    }
    assert_eq!(done.code, 0, "{}", done.err);
    let found = explore(
        &place,
        &program("git.sh", "check"),
        &["--reorder", "--images", "50", "--json"],
    );
    let (consistent, total, value) = summary(&found);
    assert!(total >= 40, "{value}");
    assert_eq!(found.code, if consistent == total { 0 } else { 4 });
    Some((place, consistent, total, value))
}

#[test]
fn git_is_inconsistent_on_ext4() {
    if let Some(why) = no_mounts() {
        return println!("skipped: {why}");
    }
    let Some((place, consistent, total, value)) = git("ext4") else {
        return;
    };
    println!("ext4: {consistent} of {total}");
    assert!(consistent < total, "{value}");
    assert!(!value["windows"].as_array().unwrap().is_empty(), "{value}");
    // The image that is named fails when it is tried alone, as the command says.
    let failure = &value["failures"][0];
    let image = failure["image"].as_str().unwrap();
    let saved = place.path("image");
    let again = explore(
        &place,
        &program("git.sh", "check"),
        &["--image", image, "--save", saved.to_str().unwrap()],
    );
    assert_eq!(again.code, 4, "{image}: {}{}", again.out, again.err);
    assert_eq!(saved.metadata().unwrap().len(), 256 << 20);
}

#[test]
fn git_is_consistent_on_ccfs() {
    if let Some(why) = no_mounts() {
        return println!("skipped: {why}");
    }
    let Some((_place, consistent, total, value)) = git("ccfs") else {
        return;
    };
    println!("ccfs: {consistent} of {total}");
    assert_eq!(consistent, total, "{value}");
}

/// A check that sees the marks: what was synced before a mark is there after it, on every file system that is here.
#[test]
fn synced_data_survives_everywhere() {
    if let Some(why) = no_mounts() {
        return println!("skipped: {why}");
    }
    for fs in ["ccfs", "ext4", "ext4-journal", "xfs", "btrfs"] {
        let place = Place::new();
        let work = "for i in 1 2 3; do echo text $i >f$i; sync f$i .; \"$CCFS\" crash mark \"synced $i\"; done";
        let done = record(&place, fs, &[], "true", work);
        if done.err.contains("is missing; install") || done.err.contains("this kernel has no") {
            println!("skipped: {}", done.err);
            continue;
        }
        assert_eq!(done.code, 0, "{fs}: {}", done.err);
        let check = "\"$CCFS\" version >/dev/null || exit 1; for i in $(sed -n 's/^synced //p' \"$CCFS_MARKS\"); do grep -qx \"text $i\" f$i || { echo \"f$i is lost\"; exit 1; }; done";
        let found = explore(&place, check, &["--images", "16", "--json"]);
        let (consistent, total, value) = summary(&found);
        assert!(total >= 6, "{fs}: {value}");
        assert_eq!(consistent, total, "{fs}: {value}");
        // The same without the marks' help has to fail: at the beginning no file is there.
        let found = explore(&place, "test -e f1", &["--images", "8", "--json"]);
        let (consistent, total, value) = summary(&found);
        assert!(0 < consistent && consistent < total, "{fs}: {value}");
    }
}

/// A recorder that a signal ends takes its mounts, its loop device and the program with it.
#[test]
fn signals_leave_nothing_behind() {
    if let Some(why) = no_mounts() {
        return println!("skipped: {why}");
    }
    use rustix::process::Signal;
    for signal in [Signal::INT, Signal::KILL] {
        let place = Place::new();
        let started = place.path("started");
        let mut child = ccfs()
            .env("TMPDIR", place.path("."))
            .args(["crash", "record", "--fs", "ext4", "-o"])
            .arg(place.path("trace"))
            .args(["--", "sh", "-c"])
            .arg(format!(
                "echo $$ >{0}.new && mv {0}.new {0}; exec sleep 100000",
                started.display()
            ))
            .spawn()
            .unwrap();
        let wait_for = |what: &str, done: &mut dyn FnMut() -> bool| {
            let begun = Instant::now();
            while !done() {
                assert!(begun.elapsed() < Duration::from_secs(180), "{what}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        wait_for("the program starts", &mut || started.exists());
        let program = std::fs::read_to_string(&started).unwrap();
        assert!(!loops_below(&place.path("")).is_empty());
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success());
        wait_for("the loop device goes", &mut || {
            loops_below(&place.path("")).is_empty()
        });
        let proc = format!("/proc/{}/cmdline", program.trim());
        wait_for("the program goes", &mut || {
            !std::fs::read_to_string(&proc).is_ok_and(|line| line.contains("100000"))
        });
        if signal == Signal::INT {
            let left: Vec<_> = std::fs::read_dir(place.path("."))
                .unwrap()
                .flatten()
                .filter(|e| e.file_name().to_string_lossy().starts_with("ccfs-crash"))
                .collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

/// By the model of ext4 the rename can come before the data, and the source line is told; by that of ccfs nothing happens.
#[test]
fn models_find_the_line_in_the_source() {
    let works = |program: &str, args: &[&str]| {
        std::process::Command::new(program)
            .args(args)
            .output()
            .is_ok_and(|out| out.status.success())
    };
    for (program, args) in [
        ("strace", &["-k", "true"] as &[&str]),
        ("gcc", &["--version"]),
        ("addr2line", &["--version"]),
    ] {
        if !works(program, args) {
            return println!("skipped: {program} does not work here");
        }
    }
    let place = Place::new();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let built = run(std::process::Command::new("gcc")
        .args(["-g", "-O0", "-o"])
        .arg(place.path("save"))
        .arg(programs.join("save.c")));
    assert_eq!(built.code, 0, "{}", built.err);
    let model = |name: &str| {
        let ran = run(ccfs()
            .env("TMPDIR", place.path("."))
            .args([
                "crash",
                "model",
                "--json",
                "--model",
                name,
                "--timeout",
                "600",
                "--check",
            ])
            .arg(program("save-check.sh", ""))
            .arg("--")
            .arg(place.path("save")));
        let value: Value = serde_json::from_str(&ran.out)
            .unwrap_or_else(|e| panic!("{e}: {} {}", ran.out, ran.err));
        let found = value["vulnerabilities"].as_array().unwrap().clone();
        assert_eq!(ran.code, if found.is_empty() { 0 } else { 4 });
        found
    };
    let text = std::fs::read_to_string(programs.join("save.c")).unwrap();
    let line = 1 + text
        .lines()
        .position(|l| l.contains("if (write(fd, buf"))
        .unwrap();
    let ext4 = model("ext4-ordered");
    let order = ext4.iter().find(|v| v["kind"] == "order");
    let order = order.unwrap_or_else(|| panic!("{ext4:?}"));
    assert_eq!(order["source"], format!("save.c:{line}"), "{order}");
    assert!(
        order["before"]
            .as_str()
            .unwrap()
            .contains("rename config.tmp")
    );
    for name in ["ccfs", "ext4-journal"] {
        assert_eq!(model(name), Vec::<Value>::new(), "{name}");
    }
}

#[test]
fn bad_arguments_say_what_to_do() {
    let place = Place::new();
    let says = |args: &[&str], code: i32, text: &str| {
        let ran = run(ccfs().arg("crash").args(args));
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(text), "{args:?}: {}", ran.err);
    };
    let trace = place.text("trace");
    std::fs::write(&trace, [0u8; 4096]).unwrap();
    says(&["mark", "x"], 1, "not run by `ccfs crash record`");
    says(
        &["record", "--fs", "fat", "-o", &trace, "--", "true"],
        2,
        "one of ccfs",
    );
    says(
        &["explore", &trace, "--check", "true", "--images", "0"],
        2,
        "or `all`",
    );
    says(
        &["explore", &trace, "--check", "true", "--image", "x"],
        2,
        "is no image",
    );
    // A command that there is not is no inconsistent image.
    let missing = "there is no command nosuch-command";
    let check = ["--check", "nosuch-command -x"];
    says(&[&["explore", &trace][..], &check].concat(), 2, missing);
    says(
        &[&["model"][..], &check, &["--", "true"]].concat(),
        2,
        missing,
    );
    let broken = ["--check", "if true", "--", "true"];
    says(&[&["model"][..], &broken].concat(), 2, "yntax");
    let setup = ["--setup", "nosuch-command", "-o", &trace, "--", "true"];
    says(
        &[&["record", "--fs", "ext4"][..], &setup].concat(),
        2,
        missing,
    );
    let setup = ["--setup", "nosuch-command", "--check", "true", "--", "true"];
    says(&[&["model"][..], &setup].concat(), 2, missing);
    if no_mounts().is_none() {
        says(&["explore", &trace, "--check", "true"], 1, "not a trace");
    }
}

/// While a program is recorded, others' volumes can be unmounted: no copy of theirs is held.
#[test]
fn other_volumes_are_let_go() {
    needs_mounts!();
    let (place, other) = (Place::new(), Place::new());
    let (image, dir) = (other.volume("a.img", "32M"), other.subdir("mnt"));
    let mounted = run(ccfs().args(["mount", &image, &dir]));
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    let (runs, ends) = (place.path("runs"), place.path("ends"));
    let wait = format!(
        "touch {}; n=0; while ! [ -e {} ] && [ $n -lt 1200 ]; do sleep 0.1; n=$((n+1)); done",
        runs.display(),
        ends.display()
    );
    std::thread::scope(|scope| {
        let recording = scope.spawn(|| record(&place, "ext4", &[], "true", &wait));
        let start = Instant::now();
        while !runs.exists() {
            assert!(start.elapsed() < Duration::from_secs(120) && !recording.is_finished());
            std::thread::sleep(Duration::from_millis(10));
        }
        let unmounted = run(ccfs().args(["umount", &dir]));
        let recorded_on = !recording.is_finished();
        std::fs::write(&ends, "").unwrap();
        assert_eq!(unmounted.code, 0, "{}", unmounted.err);
        assert!(recorded_on, "it was unmounted during the recording");
        let ran = recording.join().unwrap();
        assert_eq!(ran.code, 0, "{}", ran.err);
    });
}

/// What is written through a mapping is in no call: that is said, unless the file is named as one that does not count.
#[test]
fn files_that_are_mapped_have_to_be_named() {
    let works = |program: &str, args: &[&str]| {
        let out = std::process::Command::new(program).args(args).output();
        out.is_ok_and(|out| out.status.success())
    };
    if !works("strace", &["-k", "true"]) || !works("gcc", &["--version"]) {
        return println!("skipped: strace -k or gcc does not work here");
    }
    let place = Place::new();
    let source = "#include <fcntl.h>\n#include <sys/mman.h>\n#include <unistd.h>\nint main(void) {\n\
        int fd = open(\"shared\", O_RDWR | O_CREAT, 0644);\n if (ftruncate(fd, 4096)) return 1;\n\
        *(char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) = 1; return 0; }\n";
    std::fs::write(place.path("map.c"), source).unwrap();
    let built = run(std::process::Command::new("gcc")
        .arg("-o")
        .args([place.path("map"), place.path("map.c")]));
    assert_eq!(built.code, 0, "{}", built.err);
    let model = |options: &[&str]| {
        run(ccfs()
            .env("TMPDIR", place.path("."))
            .args(["crash", "model", "--model", "ccfs", "--timeout", "1800"])
            .args(options)
            .args(["--check", "true", "--"])
            .arg(place.path("map")))
    };
    let unnamed = model(&[]);
    assert_eq!(unnamed.code, 1, "{} {}", unnamed.out, unnamed.err);
    assert!(unnamed.err.contains("mappings"), "{}", unnamed.err);
    let named = model(&["--mapped", "shared"]);
    assert_eq!(named.code, 0, "{} {}", named.out, named.err);
}

/// The shell's name for a file whose writes and fsync the model can part.
const WORK: &str = "echo 1 >a; echo 2 >b; mv b c";

/// What is told of a failure is what the check said, line by line, with its numbers.
#[test]
fn reports_have_lines_and_numbers() {
    if let Some(why) = no_strace() {
        return println!("skipped: {why}");
    }
    let place = Place::new();
    let model = |check: &str, json: &[&str]| {
        run(ccfs()
            .env("TMPDIR", place.path("."))
            .args(["crash", "model", "--timeout", "600", "--check", check])
            .args(json)
            .args(["--", "sh", "-c", WORK]))
    };
    // Of every state that has the file but not its content.
    let check = "test ! -e c || test -s c || { printf 'looking\\tat c\\nerror 17 of cafe1234 (os error 2)\\033[2J\\n'; exit 1; }";
    let said = "error 17 of cafe1234 (os error 2)";
    let ran = model(check, &[]);
    assert_eq!(ran.code, 4, "{} {}", ran.out, ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(
        lines[0].contains("vulnerabilities on ext4-ordered"),
        "{}",
        ran.out
    );
    assert!(lines.len() > 1, "{}", ran.out);
    let told = lines[1..]
        .iter()
        .all(|l| l.ends_with(&format!("{said}?[2J")));
    assert!(told, "{}", ran.out);
    let value: Value = serde_json::from_str(&model(check, &["--json"]).out).unwrap();
    let failure = value["vulnerabilities"][0]["failure"].as_str().unwrap();
    assert!(failure.starts_with(said), "{value}");
    let silent = model("test ! -e c || test -s c || exit 3", &[]);
    assert!(silent.out.contains(": exit code 3"), "{}", silent.out);
    // Later commands of a check are known when it runs.
    let never = model("test -d . && nosuch-command", &[]);
    assert_eq!(never.code, 1, "{} {}", never.out, never.err);
    assert!(
        never.err.contains("in no state") && never.err.contains("nosuch-command"),
        "{}",
        never.err
    );
}

#[test]
fn explorations_report_lines_and_numbers() {
    needs_mounts!();
    let place = Place::new();
    let done = record(
        &place,
        "ext4",
        &["--size", "64M"],
        "true",
        "echo 1 >f1; sync f1; echo 2 >f2; sync f2",
    );
    assert_eq!(done.code, 0, "{}", done.err);
    let check =
        "test -e f2 || { printf 'a\\tb\\nerror 17: f2 is missing (os error 2)\\n'; exit 5; }";
    let said = "error 17: f2 is missing (os error 2)";
    let ran = explore(&place, check, &["--images", "4"]);
    assert_eq!(ran.code, 4, "{} {}", ran.out, ran.err);
    assert!(ran.out.lines().count() > 4, "{}", ran.out);
    assert!(ran.out.lines().any(|l| l.ends_with(said)), "{}", ran.out);
    let (_, _, value) = summary(&explore(&place, check, &["--images", "4", "--json"]));
    let failure = &value["failures"][0];
    assert_eq!(failure["failure"], said);
    assert_eq!(value["windows"][0]["failure"], said);
    let image = failure["image"].as_str().unwrap();
    let one = explore(&place, check, &["--image", image]);
    let lines: Vec<&str> = one.out.lines().collect();
    assert_eq!(lines, ["a\tb", said, &format!("inconsistent: {said}")]);
    let silent = explore(&place, "test -e f2 || exit 5", &["--image", image]);
    assert_eq!(silent.out, "inconsistent: exit code 5\n");
    // Its command is not there in any image, and is the first word of no check.
    let never = explore(&place, "cd . && nosuch-command", &["--images", "4"]);
    assert_eq!(never.code, 1, "{} {}", never.out, never.err);
    assert!(never.err.contains("in no image"), "{}", never.err);
}
