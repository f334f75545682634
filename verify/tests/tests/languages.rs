//! examples/ordered.*, barriers.*, atomic.* and syncv.* in C, C++, Rust and Python: the same program, killed in the middle or with its disk, keeps its order (C1, C3), or all of a change or nothing (C11).
use ccfs_tests::harness::{Fs, Volume, WorkDir, ccfs_program, have, run, run_ok, sibling};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

/// Installs the libraries below `place/usr`.
fn install(place: &Path) {
    let build = sibling("libccfs.so");
    let mut command = Command::new(source("scripts/install-libs.sh"));
    command
        .arg(build.parent().expect("a directory"))
        .env("PREFIX", place.join("usr"))
        .env_remove("DESTDIR")
        .env_remove("LIBDIR");
    let out = run(&mut command);
    assert_eq!(out.code, 0, "install-libs.sh: {}", out.all());
}

/// What pkg-config says for the installed library.
fn pkg_config(place: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("ccfs");
    command.env("PKG_CONFIG_PATH", place.join("usr/lib/pkgconfig"));
    let out = run(&mut command);
    assert_eq!(out.code, 0, "pkg-config: {}", out.all());
    out.stdout.split_whitespace().map(str::to_string).collect()
}

/// Compiles an example against the installed library; `None` where a tool is missing.
fn compile(place: &Path, compiler: &str, example: &str, linking: Linking) -> Option<PathBuf> {
    if let Some(missing) = [compiler, "pkg-config"].iter().find(|p| !have(p)) {
        println!("skipped: {example}: needs {missing}");
        return None;
    }
    let name = Path::new(example).file_name().expect("a name");
    let program = place.join(format!("{}-{linking:?}", name.display()));
    let lib = place.join("usr/lib");
    let mut command = Command::new(compiler);
    command
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source(example)])
        .args(pkg_config(place, &["--cflags"]));
    match linking {
        Linking::Shared => command
            .args(pkg_config(place, &["--libs"]))
            .arg(format!("-Wl,-rpath,{}", text(&lib))),
        Linking::Static => command.arg(lib.join("libccfs.a")).args(
            pkg_config(place, &["--libs", "--static"])
                .iter()
                .filter(|w| *w != "-lccfs"),
        ),
    };
    let out = run(&mut command);
    assert_eq!(out.code, 0, "{compiler} {example}: {}", out.all());
    Some(program)
}

#[derive(Clone, Copy, Debug)]
enum Linking {
    Shared,
    Static,
}

/// What an example prints: at first, and before the number of a round that is durable.
struct Says {
    first: &'static str,
    round: &'static str,
}
const ORDERED: Says = Says {
    first: "ordered\n",
    round: "synced ",
};
const ATOMIC: Says = Says {
    first: "atomic\n",
    round: "committed ",
};

/// Starts the program and reads until it has acknowledged at least `rounds`.
fn start(
    words: &[&str],
    says: &Says,
    dir: &Path,
    rounds: u64,
) -> (Child, BufReader<ChildStdout>, u64) {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .arg(dir)
        .arg("100000000")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{words:?}: {e}"));
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    assert_eq!(line, says.first, "{words:?}");
    let mut acknowledged = 0;
    while acknowledged < rounds {
        line.clear();
        let read = out.read_line(&mut line).expect("a line");
        assert!(read > 0, "{words:?} ended after {acknowledged}");
        acknowledged = number(says, &line);
    }
    (child, out, acknowledged)
}

fn number(says: &Says, line: &str) -> u64 {
    let n = line.trim_end().strip_prefix(says.round);
    n.and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("not an acknowledgement: {line:?}"))
}

/// Records in the log, and the round that the state names. Panics if one of them is not whole.
fn look(dir: &Path) -> (u64, u64) {
    let log = std::fs::read_to_string(dir.join("log")).expect("the log");
    let mut records = 0;
    for line in log.lines() {
        records += 1;
        assert_eq!(line, format!("record {records}"), "C1: a record");
    }
    assert!(log.ends_with('\n'), "C2: a torn record");
    let state = std::fs::read_to_string(dir.join("state")).expect("the state");
    let state = state.strip_suffix('\n').and_then(|s| s.parse().ok());
    (records, state.expect("C1: the state is whole"))
}

/// Kills the daemon under the program, looks, and does it again elsewhere. `check` gets the directory and the last round that was
/// acknowledged.
fn killed(words: &[&str], says: &Says, check: impl Fn(&Path, u64)) {
    killed_on("commit=600", words, says, check);
}

fn killed_on(options: &str, words: &[&str], says: &Says, check: impl Fn(&Path, u64)) {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("languages") {
        return;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, "languages").options(options);
    v.mkfs(128);
    v.mount();
    for rounds in [10, 70, 150] {
        let dir = v.path(&format!("after-{rounds}"));
        std::fs::create_dir(&dir).expect("mkdir");
        let (mut child, out, acknowledged) = start(words, says, &dir, rounds);
        v.adopt(child.id());
        v.kill9();
        // What it had still acknowledged when the daemon died counts as well.
        let last = out.lines().map_while(Result::ok).last();
        let acknowledged = last.map_or(acknowledged, |l| number(says, &l));
        let status = child.wait().expect("wait");
        assert!(!status.success(), "{words:?} did not notice the crash");
        v.mount();
        check(&dir, acknowledged);
    }
    v.finish();
}

/// C1 and C3 of the programs that keep an order.
fn in_order(dir: &Path, acknowledged: u64) {
    let (records, state) = look(dir);
    assert!(
        state >= acknowledged && records >= acknowledged,
        "C3: {acknowledged} acknowledged; log {records}, state {state}"
    );
    assert!(
        state == records || state + 1 == records,
        "C1: the log has {records} records, the state says {state}"
    );
}

/// C11 of the programs that have atomic groups: all files speak of one round, which is the last one that was acknowledged or the next.
fn in_agreement(dir: &Path, acknowledged: u64) {
    let lines = |name: &str| -> Vec<u64> {
        let text = std::fs::read_to_string(dir.join(name)).expect("a file");
        let number = |l: &str| l.parse().unwrap_or_else(|_| panic!("torn: {l:?}"));
        text.lines().map(number).collect()
    };
    let log = lines("log");
    let last = log.len() as u64;
    assert_eq!(log, (1..=last).collect::<Vec<_>>(), "C11: the log");
    assert!(
        last >= acknowledged,
        "C11: {acknowledged} acknowledged, {last} there"
    );
    for name in ["counter", "copy"] {
        assert_eq!(lines(name), [last], "C11: {name}");
    }
    assert!(!dir.join("copy.new").exists(), "C11: of an aborted group");
}

/// A program with atomic groups, killed with the daemon, and elsewhere.
fn atomic(words: &[&str]) {
    let place = WorkDir::new("plain-atomic");
    let arguments: Vec<&str> = words[1..]
        .iter()
        .copied()
        .chain([text(place.path()), "2"])
        .collect();
    let said = run_ok(words[0], &arguments);
    assert_eq!(said, "plain\ncommitted 1\ncommitted 2\n", "{words:?}");
    killed(words, &ATOMIC, in_agreement);
}

/// A program with failure-atomic files, killed with the daemon, and elsewhere (C12): both files hold the same round, the last one that
/// was acknowledged or the next.
fn failure_atomic(words: &[&str]) {
    let place = WorkDir::new("plain-syncv");
    let arguments: Vec<&str> = words[1..]
        .iter()
        .copied()
        .chain([text(place.path()), "2"])
        .collect();
    let said = run_ok(words[0], &arguments);
    assert_eq!(said, "plain\ncommitted 1\ncommitted 2\n", "{words:?}");
    killed_on(
        "commit=600,atomic_files=on",
        words,
        &ATOMIC,
        |dir, acknowledged| {
            let number = |name: &str| -> u64 {
                let text = std::fs::read_to_string(dir.join(name)).expect("a file");
                let number = text.strip_suffix('\n').and_then(|n| n.parse().ok());
                number.unwrap_or_else(|| panic!("C12: torn: {text:?}"))
            };
            let both = (number("counter"), number("copy"));
            assert_eq!(both.0, both.1, "C12: apart");
            assert!(
                (acknowledged..=acknowledged + 1).contains(&both.0),
                "C12: {acknowledged}, {both:?}"
            );
        },
    );
    imaged(words, CHECK_ATOMIC);
}

/// Elsewhere the calls do no harm: the program goes its slow way and ends well.
fn plain(words: &[&str]) {
    let place = WorkDir::new("plain");
    let dir = text(place.path());
    let arguments: Vec<&str> = words[1..].iter().copied().chain([dir, "20"]).collect();
    let said = run_ok(words[0], &arguments);
    assert_eq!(said, "plain\nsynced 10\nsynced 20\n", "{words:?}");
    assert_eq!(look(place.path()), (20, 20));
}

/// The rule of `look`, for images of a disk that power left at any point; 60 rounds, of which every tenth is synced.
const CHECK: &str = r#"
[ -e log ] || { [ ! -e state ]; exit; }
awk '$0 != "record " NR { exit 1 }' log || { echo "a record"; exit 1; }
records=$(wc -l <log); state=$(cat state 2>/dev/null || echo 0)
[ "$state" = "$records" ] || [ $((state + 1)) = "$records" ] || { echo "log $records, state $state"; exit 1; }
"#;

/// The same of the programs with O_ATOMIC files: both are of one round, and whole.
const CHECK_ATOMIC: &str = r#"
counter=$(cat counter 2>/dev/null) || :; copy=$(cat copy 2>/dev/null) || :
[ "$counter" = "$copy" ] || { echo "C12: counter $counter, copy $copy"; exit 1; }
case $counter in *[!0-9]*) echo "C12: torn: $counter"; exit 1 ;; esac
"#;

/// Records what the program does to a disk, and looks at what power cuts may leave of it: crash points at each write and flush.
fn imaged(words: &[&str], check: &str) {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("languages") {
        return;
    }
    let place = WorkDir::new("imaged");
    let trace = place.path().join("trace");
    let ccfs = |args: &[&str], more: &[&str]| {
        let mut command = Command::new(ccfs_program());
        command.env("TMPDIR", place.path()).arg("crash");
        run(command.args(args).args(more))
    };
    let program: Vec<&str> = words.iter().copied().chain([".", "60"]).collect();
    let record = ["record", "--fs", "ccfs", "-o", text(&trace), "--"];
    let out = ccfs(&record, &program);
    assert_eq!(out.code, 0, "{words:?}: {}", out.all());
    let explore = ["explore", text(&trace), "--check", check];
    let out = ccfs(&explore, &["--reorder", "--images", "40", "--json"]);
    let found: serde_json::Value =
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", out.all()));
    let number = |name: &str| found["summary"][name].as_u64().expect("a number");
    println!("{} images of {words:?}", number("total"));
    assert!(number("total") >= 20, "{found}");
    assert_eq!(number("consistent"), number("total"), "{found}");
}

fn all(words: &[&str]) {
    plain(words);
    killed(words, &ORDERED, in_order);
    imaged(words, CHECK);
}

/// Builds an example with what is installed, and has it tried.
fn example(name: &str, compiler: &str, source: &str, linking: Linking, then: impl FnOnce(&str)) {
    let place = WorkDir::new(name);
    install(place.path());
    if let Some(program) = compile(place.path(), compiler, source, linking) {
        then(text(&program));
    }
}

#[test]
fn c_shared() {
    let source = "examples/ordered.c";
    example("c-shared", "gcc", source, Linking::Shared, |program| {
        let needed = run_ok("readelf", &["-d", program]);
        assert!(needed.contains("[libccfs.so.1]"), "soname: {needed}");
        all(&[program]);
    });
}

/// The program with barriers instead of a stream; the default stream keeps its order.
#[test]
fn c_barriers() {
    let source = "examples/barriers.c";
    example("c-barriers", "gcc", source, Linking::Shared, |p| all(&[p]));
}

#[test]
fn c_atomic() {
    let source = "examples/atomic.c";
    example("c-atomic", "gcc", source, Linking::Shared, |p| atomic(&[p]));
}

#[test]
fn c_syncv() {
    let source = "examples/syncv.c";
    example("c-syncv", "gcc", source, Linking::Shared, |p| {
        failure_atomic(&[p])
    });
}

#[test]
fn c_static() {
    let source = "examples/ordered.c";
    example("c-static", "gcc", source, Linking::Static, |program| {
        let needed = run_ok("readelf", &["-d", program]);
        assert!(!needed.contains("libccfs"), "not static: {needed}");
        all(&[program]);
    });
}

/// Every function, its errors, threads and children, on a volume and elsewhere.
#[test]
fn c_calls() {
    let place = WorkDir::new("c-calls");
    install(place.path());
    let calls = "crates/libccfs/tests/calls.c";
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("c_calls") {
        return;
    }
    if let Some(program) = compile(place.path(), "gcc", calls, Linking::Shared) {
        let v = Volume::new(Fs::Ccfs, "c-calls", 64);
        let mut command = Command::new(&program);
        command.arg(v.mnt()).arg("/").current_dir("/");
        let out = run(command.env_remove("CCFS_MOUNT"));
        assert_eq!(out.code, 0, "{}", out.all());
        assert_eq!(out.stdout, "all calls\n");
        v.finish();
    }
}

/// The direct calls of C and C++ beside ordinary system calls: with and without `direct=on`, and elsewhere.
#[test]
fn c_direct_calls() {
    let place = WorkDir::new("c-direct");
    install(place.path());
    let calls = "crates/libccfs/tests/direct.c";
    // The same source in the other language, by its name.
    let other = place.path().join("direct.cc");
    std::fs::copy(source(calls), &other).expect("copy");
    let header = "crates/libccfs/tests/check.h";
    std::fs::copy(source(header), place.path().join("check.h")).expect("copy");
    for (compiler, calls) in [("gcc", calls), ("g++", text(&other))] {
        let Some(program) = compile(place.path(), compiler, calls, Linking::Shared) else {
            continue;
        };
        let in_directory = |dir: &Path, direct: &str| {
            let out = run(Command::new(&program).arg(dir).arg(direct));
            assert_eq!(out.code, 0, "{compiler}, {direct}: {}", out.all());
            assert_eq!(out.stdout, "all direct calls\n");
        };
        let elsewhere = place.path().join(format!("elsewhere-{compiler}"));
        std::fs::create_dir(&elsewhere).expect("mkdir");
        in_directory(&elsewhere, "0");
        if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("c_direct_calls") {
            continue;
        }
        for (options, direct) in [("direct=on", "1"), ("direct=off", "0")] {
            let mut v = Volume::unformatted(Fs::Ccfs, "c-direct").options(options);
            v.mkfs(64);
            v.mount();
            in_directory(v.mnt(), direct);
            v.finish();
        }
    }
}

#[test]
fn cplusplus() {
    let source = "examples/ordered.cc";
    example("cplusplus", "g++", source, Linking::Shared, |p| all(&[p]));
}

#[test]
fn rust() {
    all(&[text(&sibling("ccfs-example-ordered"))]);
}

/// Builds the wheel without a network, unpacks it, and runs the package's tests and the example from it.
#[test]
fn python() {
    // Debian's own, which has the packages that build wheels.
    let python = "/usr/bin/python3";
    let tools = format!("{python} -c 'import setuptools, wheel'");
    if run(Command::new("sh").args(["-c", &tools])).code != 0 {
        println!("skipped: python: needs python3-setuptools and python3-wheel");
        return;
    }
    let place = WorkDir::new("python");
    let copy = place.path().join("python");
    run_ok("cp", &["-r", text(&source("python")), text(&copy)]);
    let setup = "from setuptools import setup; setup()";
    let mut command = Command::new(python);
    command.args(["-c", setup, "-q", "bdist_wheel"]);
    let out = run(command.current_dir(&copy));
    assert_eq!(out.code, 0, "bdist_wheel: {}", out.all());
    let wheel = copy.join("dist/ccfs-0.1.0-py3-none-any.whl");
    let unpacked = place.path().join("site");
    run_ok(
        python,
        &["-m", "zipfile", "-e", text(&wheel), text(&unpacked)],
    );
    assert!(unpacked.join("ccfs/py.typed").is_file(), "it is typed");
    let path = format!("PYTHONPATH={}", text(&unpacked));
    let example = source("examples/ordered.py");
    all(&["env", &path, python, "-B", text(&example)]);
    let barriers = source("examples/barriers.py");
    all(&["env", &path, python, "-B", text(&barriers)]);
    let groups = source("examples/atomic.py");
    atomic(&["env", &path, python, "-B", text(&groups)]);
    let syncv = source("examples/syncv.py");
    failure_atomic(&["env", &path, python, "-B", text(&syncv)]);
    package_tests(python, &path, &copy);
}

/// python/tests on a volume, or without one.
fn package_tests(python: &str, path: &str, copy: &Path) {
    let volume = (Fs::under_test() == Fs::Ccfs && Fs::Ccfs.ready("python")).then(|| {
        let mut v = Volume::unformatted(Fs::Ccfs, "python").options("atomic_files=on,direct=on");
        v.mkfs(64);
        v.mount();
        v
    });
    let mount = volume.as_ref().map_or("", |v| text(v.mnt()));
    let mount = format!("CCFS_TEST_MOUNT={mount}");
    let header = source("crates/libccfs/include/ccfs.h");
    let header = format!("CCFS_H={}", text(&header));
    let library = format!("CCFS_LIBRARY={}", text(&sibling("libccfs.so")));
    let tests = copy.join("tests");
    let program = [python, "-B", "-m", "unittest", "discover", "-s"];
    let words = [
        &[path, &mount, &header, &library],
        &program[..],
        &[text(&tests)],
    ]
    .concat();
    let out = run(Command::new("env").args(&words));
    assert_eq!(out.code, 0, "{}", out.all());
    assert!(out.all().contains("OK"), "{}", out.all());
    if let Some(v) = volume {
        v.finish();
    }
}
