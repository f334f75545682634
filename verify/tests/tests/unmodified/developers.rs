//! Programs as those who write them run them: with sanitizers, under gdb and strace. The same with and without.
use super::{command, compile_with, source, text, volume};
use ccfs_tests::harness::{Output, Volume, ccfs_program, have, run, run_ok};
use std::path::{Path, PathBuf};

/// What the program ends with.
const CODE: &str = "3";

/// What a command said and left, and how often its calls were direct.
struct Did {
    ran: Output,
    tree: String,
    made: u64,
}

/// Runs a command on a new directory, `$DIR` in it; led or not.
fn did(v: &Volume, direct: bool, words: &[&str]) -> Did {
    let dir = v.path("dir");
    let report = v.outside("report");
    let option = format!("--report={}", text(&report));
    let launcher = [ccfs_program(), "direct", "--json", &option, "--"];
    let words = match direct {
        true => [&launcher[..], words].concat(),
        false => words.to_vec(),
    };
    let ran = run(command(v, false, &words)
        .env("DIR", &dir)
        .current_dir(v.mnt()));
    let find = "cd \"$0\" && find . -printf '%P %y %m %s\\n' | sort && cat f*";
    let tree = run_ok("sh", &["-c", find, text(&dir)]);
    std::fs::remove_dir_all(&dir).expect("what it made");
    let made = match direct {
        true => direct_calls(&report),
        false => 0,
    };
    Did { ran, tree, made }
}

/// The calls for files that were made directly.
fn direct_calls(report: &Path) -> u64 {
    let json = std::fs::read_to_string(report).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    json["made"]["openat"].as_u64().unwrap_or(0)
}

/// Without what differs from one run to the next: numbers of threads and processes, addresses, and when gdb tells of a thread.
fn shown(ran: &Output) -> String {
    let lines = ran.all();
    let lines = lines.lines().filter(|line| !line.contains("Thread 0x"));
    // Tables are as wide as the numbers in them.
    let words = lines.map(|line| line.split(' ').filter(|word| !word.is_empty()));
    let lines = words.map(|line| line.collect::<Vec<_>>().join(" "));
    let mut all = lines.collect::<Vec<_>>().join("\n");
    let is_hex = |c: char| c.is_ascii_hexdigit();
    for before in ["0x", "LWP ", "process "] {
        let mut parts = all.split(before);
        let first = parts.next().unwrap_or_default().to_string();
        all = parts.fold(first, |text, part| {
            text + before + "N" + part.trim_start_matches(is_hex)
        });
    }
    all
}

/// Both ways the same, with the program's exit code. Gives how many files were opened directly.
fn same(what: &str, v: &Volume, words: &[&str]) -> u64 {
    let (plain, direct) = (did(v, false, words), did(v, true, words));
    assert_eq!(
        plain.ran.code.to_string(),
        CODE,
        "{what}: {}",
        plain.ran.all()
    );
    assert_eq!(
        direct.ran.code,
        plain.ran.code,
        "{what}: {}",
        direct.ran.all()
    );
    assert_eq!(shown(&direct.ran), shown(&plain.ran), "{what}");
    assert_eq!(direct.tree, plain.tree, "{what}");
    direct.made
}

/// A volume, where there is this program; else a line that says why not. (Not in CI.)
fn volume_with(test: &str, program: &str) -> Option<Volume> {
    let v = volume(test, 64)?;
    let there = have(program);
    assert!(
        there || std::env::var_os("CI").is_none(),
        "{program} is missing: scripts/deps.sh test"
    );
    if !there {
        println!("skipped: {test}: there is no {program}");
    }
    there.then_some(v)
}

fn works(v: &Volume, name: &str, flags: &[&str]) -> PathBuf {
    compile_with(v, name, &[source("works.c")], flags)
}

#[test]
fn programs_with_sanitizers() {
    let Some(v) = volume("sanitizers", 64) else {
        return;
    };
    let plain = works(&v, "plain", &["-g"]);
    let script = |program: &Path, rest: &str| format!("{} \"$DIR\" {CODE} {rest}", text(program));
    assert!(same("no sanitizer", &v, &["sh", "-c", &script(&plain, "")]) > 80);
    for sanitizer in ["address", "thread", "undefined"] {
        let flag = format!("-fsanitize={sanitizer}");
        let program = works(&v, sanitizer, &["-g", &flag]);
        let run = script(&program, "");
        same(sanitizer, &v, &["sh", "-c", &run]);
        // Who sets its options knows nothing of who loads what into it.
        let options = "export ASAN_OPTIONS=color=never TSAN_OPTIONS=color=never";
        same(sanitizer, &v, &["sh", "-c", &format!("{options}; {run}")]);
        if sanitizer == "address" {
            let overflow = script(&program, "overflow");
            let [plain, direct] = [false, true].map(|way| did(&v, way, &["sh", "-c", &overflow]));
            assert_eq!(
                (direct.ran.code, &direct.tree),
                (plain.ran.code, &plain.tree)
            );
            let found = |did: &Did| did.ran.all().contains("heap-buffer-overflow");
            assert!(found(&plain) && found(&direct), "{}", direct.ran.all());
        }
    }
    v.finish();
}

const GDB: [&str; 5] = ["gdb", "-q", "-nx", "-batch", "-return-child-result"];

/// Commands of gdb as its options.
fn commands<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let first = ["set confirm off", "set debuginfod enabled off"];
    let all = first.iter().chain(lines);
    all.flat_map(|line| ["-ex", *line]).collect()
}

/// gdb with these commands, and what it runs.
fn under<'a>(lines: &[&'a str], rest: &[&'a str]) -> Vec<&'a str> {
    [&GDB[..], &commands(lines), &["--args"], rest].concat()
}

#[test]
fn programs_under_gdb() {
    let Some(v) = volume_with("gdb", "gdb") else {
        return;
    };
    let (dir, program) = (v.path("dir"), works(&v, "program", &["-g", "-O1"]));
    let program = [text(&program), text(&dir), CODE];
    // Not into gdb's own output: which of them is first is chance.
    let said = v.outside("said");
    let runs = format!("run {} {CODE} >{}", text(&dir), text(&said));
    let same_under = |what: &str, lines: &[&str]| {
        let opened = same(what, &v, &under(lines, &program));
        assert!(opened > 80, "{what}: {opened} files are opened directly");
        let said = std::fs::read_to_string(&said).expect("what it says");
        assert_eq!(said, "hello\n80 files, 83 entries, child 5\n", "{what}");
    };
    let steps = [
        "break make_one if n == 2",
        &runs,
        "bt",
        "next",
        "next",
        "next",
        "next",
        "next",
        "next",
        "next",
        "print text",
        "print len",
        "info threads",
        "finish",
        "delete",
        "continue",
    ];
    same_under("steps", &steps);
    let in_library = [
        "break make_one if n == 7",
        &runs,
        "break write",
        "info breakpoints",
        "continue",
        "bt",
        "finish",
        "print n",
        "delete",
        "continue",
    ];
    same_under("a function of the C library", &in_library);
    let called = [
        "break make_one if n == 9",
        &runs,
        "call (int)access(dir, 0)",
        "call (int)access(\"/none\", 0)",
        "watch files",
        "continue",
        "continue",
        "bt",
        "delete",
        "continue",
    ];
    same_under("calls of the debugger's", &called);
    v.finish();
}

#[test]
fn gdb_sees_who_calls_and_follows_the_launcher() {
    let Some(v) = volume_with("gdb-callers", "gdb") else {
        return;
    };
    let (dir, program) = (v.path("dir"), works(&v, "program", &["-g", "-O1"]));
    let program = [text(&program), text(&dir), CODE];
    // In the middle of a call that is made here.
    let middle = [
        "break make_one if n == 5",
        "run",
        "break pthread_setcancelstate",
        "continue",
        "bt",
        "delete",
        "continue",
    ];
    let direct = did(&v, true, &under(&middle, &program));
    let said = direct.ran.all();
    let frame = |function: &str| {
        said.lines()
            .any(|l| l.starts_with('#') && l.contains(function))
    };
    assert_eq!(direct.ran.code.to_string(), CODE, "{said}");
    for function in [
        "pthread_setcancelstate",
        "libccfs_direct",
        "open",
        "make_one",
        "main",
    ] {
        assert!(frame(function), "{function}: {said}");
    }
    let through = [
        "set breakpoint pending on",
        "break make_one if n == 2",
        "run",
        "bt",
        "next",
        "delete",
        "continue",
    ];
    let launched = [&[ccfs_program(), "direct", "--"][..], &program].concat();
    let through = did(&v, false, &under(&through, &launched));
    let said = through.ran.all();
    assert_eq!(through.ran.code.to_string(), CODE, "{said}");
    assert!(said.contains("make_one (dir="), "{said}");
    assert_eq!(through.tree, direct.tree);
    v.finish();
}

#[test]
fn programs_under_strace() {
    let Some(v) = volume_with("strace", "strace") else {
        return;
    };
    let (dir, program) = (v.path("dir"), works(&v, "program", &[]));
    let trace = v.outside("trace");
    let tracer = ["strace", "-f", "-o", text(&trace)];
    let program = [text(&program), text(&dir), CODE];
    let last = || {
        let all = std::fs::read_to_string(&trace).expect("what strace wrote");
        all.lines().last().unwrap_or_default().to_string()
    };
    let opened = same("strace", &v, &[&tracer[..], &program].concat());
    assert!(opened > 80, "{opened} files are opened directly");
    assert!(last().ends_with("+++ exited with 3 +++"), "{}", last());
    let report = v.outside("report");
    let option = format!("--report={}", text(&report));
    let launcher = [ccfs_program(), "direct", "--json", &option, "--"];
    for launcher in [&launcher[..], &[ccfs_program(), "direct", "--"]] {
        let ran = did(&v, false, &[&tracer[..], launcher, &program].concat());
        assert_eq!(ran.ran.code.to_string(), CODE, "{}", ran.ran.all());
        assert!(last().ends_with("+++ exited with 3 +++"), "{}", last());
        assert!(
            ran.ran.stdout.ends_with("80 files, 83 entries, child 5\n"),
            "{}",
            ran.ran.all()
        );
    }
    assert!(direct_calls(&report) > 80);
    v.finish();
}
