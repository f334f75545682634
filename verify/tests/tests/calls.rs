//! The calls of ccfs in C, Rust and Python: one table of steps, which each language goes through. What a call gives is the same in
//! all of them, and so is what a crash leaves.
//!
//! SQLite's extension makes three of these calls (`the_extension_is_in_the_table`); tests/sqlite.rs has what they do there.
use ccfs_tests::harness::{Fs, Volume, WorkDir, have, run_ok, sibling};
use libc::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A file of a case after the crash.
enum After {
    /// These bytes stand there.
    Has(u64, &'static str),
    Empty,
    Gone,
}
use After::*;

struct Case {
    name: &'static str,
    /// What is done, and the errno that it gives.
    steps: &'static [(&'static str, i32)],
    after: &'static [(&'static str, After)],
}

/// Steps are those of src/bin/ccfs-calls.rs. `d` is the case's directory, `{elsewhere}` one of another file system, `{other}` one of
/// another volume; a slot `closed` or `negative` is no descriptor. A slot that is mapped is not used again: the end of a mapping writes
/// its pages back.
const CASES: &[Case] = &[
    Case {
        name: "syncv-takes-stores-along",
        steps: &[
            ("open_atomic one a", 0),
            ("size one 8192", 0),
            ("map one", 0),
            ("open_atomic two b", 0),
            ("size two 8192", 0),
            ("map two", 0),
            ("store one 0 A1", 0),
            ("write one 4096 A2", 0),
            ("store two 4096 B1", 0),
            ("syncv one two", 0),
            ("store one 0 no", 0),
            ("write two 0 no", 0),
        ],
        after: &[
            ("a", Has(0, "A1")),
            ("a", Has(4096, "A2")),
            ("b", Has(0, "\0\0")),
            ("b", Has(4096, "B1")),
        ],
    },
    Case {
        name: "syncv-of-one-file-twice",
        steps: &[
            ("open_atomic a a", 0),
            ("dup a again", 0),
            ("write a 0 one", 0),
            ("syncv a again a", 0),
            ("write again 0 two", 0),
        ],
        after: &[("a", Has(0, "one"))],
    },
    Case {
        name: "syncv-refuses",
        steps: &[
            ("open_atomic a a", 0),
            ("write a 0 no", 0),
            ("open b b new", 0),
            ("open r a ro", 0),
            ("open x {elsewhere}/x new", 0),
            ("open_atomic o {other}/o", 0),
            ("pipe p", 0),
            ("open path a path", 0),
            ("syncv", EINVAL),
            ("syncv b", EINVAL),
            ("syncv a b", EINVAL),
            // Another open of the same file.
            ("syncv a r", EINVAL),
            ("syncv d", EINVAL),
            ("syncv a o", EINVAL),
            ("syncv a x", EOPNOTSUPP),
            ("syncv x a", EOPNOTSUPP),
            ("syncv a p", EOPNOTSUPP),
            ("syncv a path", EBADF),
            ("syncv a closed", EBADF),
            ("syncv negative", EBADF),
            ("open z z new", 0),
            ("fsync z", 0),
        ],
        after: &[("a", Empty)],
    },
    Case {
        name: "syncv-in-a-group-that-renamed",
        steps: &[
            ("open_atomic a a", 0),
            ("write a 0 one", 0),
            ("syncv a", 0),
            ("begin g", 0),
            ("rename a b", 0),
            ("write a 0 two", 0),
            ("syncv a", EBUSY),
            ("abort g", 0),
            ("syncv a", 0),
        ],
        after: &[("a", Has(0, "two")), ("b", Gone)],
    },
    Case {
        name: "a-close-takes-back",
        steps: &[
            ("open_atomic a a", 0),
            ("write a 0 one", 0),
            ("syncv a", 0),
            ("write a 0 two", 0),
            ("close a", 0),
            ("open_atomic again a", 0),
            ("reads again one", 0),
        ],
        after: &[("a", Has(0, "one"))],
    },
    Case {
        name: "make_atomic",
        steps: &[
            ("open made a new", 0),
            ("size made 8192", 0),
            ("map made", 0),
            ("store made 0 before", 0),
            ("make_atomic made", 0),
            ("store made 4096 after", 0),
            ("open r a ro", 0),
            ("open b b new", 0),
            ("open s b ro", 0),
            ("open x {elsewhere}/x new", 0),
            ("make_atomic s", EBADF),
            ("make_atomic x", EOPNOTSUPP),
            ("make_atomic closed", EBADF),
            ("make_atomic negative", EBADF),
            ("open_atomic n {elsewhere}/none", EOPNOTSUPP),
            ("open n {elsewhere}/none ro", ENOENT),
            ("open_atomic n none/none", ENOENT),
        ],
        after: &[("a", Has(0, "before")), ("a", Has(4096, "\0\0\0\0\0"))],
    },
    Case {
        name: "fbarrier-takes-stores-along",
        steps: &[
            ("open f f new", 0),
            ("size f 8192", 0),
            ("map f", 0),
            ("store f 4096 F1", 0),
            ("fbarrier f", 0),
            ("open g g new", 0),
            ("fsync g", 0),
        ],
        after: &[("f", Has(4096, "F1")), ("g", Empty)],
    },
    Case {
        name: "fdatabarrier-takes-stores-along",
        steps: &[
            ("open e f new", 0),
            ("size e 8192", 0),
            ("map e", 0),
            ("store e 0 F2", 0),
            ("fdatabarrier e", 0),
            ("open g g new", 0),
            ("fsync g", 0),
        ],
        after: &[("f", Has(0, "F2")), ("g", Empty)],
    },
    Case {
        name: "barriers",
        steps: &[
            ("open x {elsewhere}/x new", 0),
            ("pipe p", 0),
            ("open f f new", 0),
            ("open r f ro", 0),
            ("open path f path", 0),
            ("fbarrier d", 0),
            ("fdatabarrier d", 0),
            ("fbarrier r", 0),
            ("fdatabarrier r", 0),
            ("fbarrier x", EOPNOTSUPP),
            ("fdatabarrier x", EOPNOTSUPP),
            ("fbarrier p", EOPNOTSUPP),
            ("fbarrier path", EBADF),
            ("fbarrier closed", EBADF),
            ("fdatabarrier closed", EBADF),
            ("fbarrier negative", EBADF),
        ],
        after: &[],
    },
    Case {
        name: "streams",
        steps: &[
            ("instream default", 0),
            ("newstream s plain", 0),
            ("instream default", 0),
            ("setstream s", 0),
            ("instream s", 0),
            ("open f f new", 0),
            ("write f 0 one", 0),
            ("streamsync own", 0),
            ("newstream i ignore", 0),
            ("setstream i", 0),
            ("open g g new", 0),
            ("write g 0 two", 0),
            ("fsync g", 0),
            ("streamsync i", 0),
            ("setstream default", 0),
            ("instream default", 0),
            ("leave", 0),
            ("streamsync s", 0),
        ],
        after: &[("f", Has(0, "one")), ("g", Has(0, "two"))],
    },
    Case {
        name: "sync_volume",
        steps: &[
            ("newstream s ignore", 0),
            ("setstream s", 0),
            ("open f f new", 0),
            ("write f 0 one", 0),
            ("setstream default", 0),
            ("sync_volume", 0),
        ],
        after: &[("f", Has(0, "one"))],
    },
    Case {
        name: "groups",
        steps: &[
            ("commit own", ENOENT),
            ("commit_ordered own", ENOENT),
            ("abort own", ENOENT),
            ("enter own", EINVAL),
            ("enter unknown", ENOENT),
            ("commit unknown", ENOENT),
            ("newstream s plain", 0),
            ("begin g", 0),
            ("begin again", EBUSY),
            ("enter g", EBUSY),
            ("setstream s", EBUSY),
            ("open f f new", 0),
            ("write f 0 one", 0),
            ("commit own", 0),
            ("commit own", ENOENT),
            ("commit g", EALREADY),
            ("abort g", EALREADY),
            ("enter g", EALREADY),
            ("instream default", 0),
        ],
        after: &[("f", Has(0, "one"))],
    },
    Case {
        name: "a-mapping-in-a-group",
        steps: &[
            ("begin g", 0),
            ("open grouped f new", 0),
            ("size grouped 8192", 0),
            ("map grouped", 0),
            ("store grouped 4096 G1", 0),
            ("fsync grouped", 0),
            ("commit g", 0),
        ],
        after: &[("f", Has(4096, "G1"))],
    },
    Case {
        name: "groups-in-order-and-taken-back",
        steps: &[
            ("begin g", 0),
            ("open f f new", 0),
            ("write f 0 one", 0),
            ("commit_ordered g", 0),
            ("begin h", 0),
            ("open h h new", 0),
            ("abort h", 0),
            ("open h h ro", ENOENT),
            ("open z z new", 0),
            ("fsync z", 0),
        ],
        after: &[("f", Has(0, "one")), ("h", Gone), ("z", Empty)],
    },
    Case {
        name: "places",
        steps: &[
            ("open e {elsewhere} dir", 0),
            ("pipe p", 0),
            ("at e", 0),
            ("newstream s plain", EOPNOTSUPP),
            ("setstream default", EOPNOTSUPP),
            ("instream default", EOPNOTSUPP),
            ("leave", EOPNOTSUPP),
            ("streamsync own", EOPNOTSUPP),
            ("sync_volume", EOPNOTSUPP),
            ("begin g", EOPNOTSUPP),
            ("commit own", EOPNOTSUPP),
            ("abort own", EOPNOTSUPP),
            ("enter unknown", EOPNOTSUPP),
            ("at p", 0),
            ("instream default", EOPNOTSUPP),
            ("begin g", EOPNOTSUPP),
            ("at closed", 0),
            ("newstream s plain", EBADF),
            ("setstream default", EBADF),
            ("instream default", EBADF),
            ("streamsync own", EBADF),
            ("sync_volume", EBADF),
            ("begin g", EBADF),
            ("commit own", EBADF),
            ("abort own", EBADF),
            ("enter unknown", EBADF),
            ("at negative", 0),
            ("instream default", EBADF),
            ("begin g", EBADF),
        ],
        after: &[],
    },
    // The last one: the thread stays in the group.
    Case {
        name: "a-group-that-is-open",
        steps: &[
            ("open z z new", 0),
            ("fsync z", 0),
            ("begin g", 0),
            ("open f f new", 0),
            ("write f 0 no", 0),
        ],
        after: &[("z", Empty), ("f", Gone)],
    },
];

fn top(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

/// A program that takes steps.
struct Driver {
    child: Child,
    steps: Option<ChildStdin>,
    numbers: BufReader<ChildStdout>,
}

impl Driver {
    fn start(mut command: Command) -> Driver {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("start a driver");
        Driver {
            steps: child.stdin.take(),
            numbers: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    fn step(&mut self, line: &str) -> i32 {
        let to = self.steps.as_mut().expect("it is open");
        writeln!(to, "{line}").expect("a step");
        let mut number = String::new();
        self.numbers.read_line(&mut number).expect("a number");
        let number = number.trim_end();
        number
            .parse()
            .unwrap_or_else(|_| panic!("{line}: {number:?}"))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.steps = None;
        let _ = self.child.wait();
    }
}

/// The languages that this machine can run, and their drivers.
fn languages(place: &WorkDir) -> Vec<(&'static str, Command)> {
    let mut all = vec![("rust", Command::new(sibling("ccfs-calls")))];
    if have("gcc") {
        let library = sibling("libccfs.a");
        let program = place.path().join("driver");
        let include = format!("-I{}", text(&top("crates/libccfs/include")));
        let source = top("crates/libccfs/tests/driver.c");
        let flags = ["-O1", "-Wall", "-Wextra", "-Werror", &include, "-o"];
        let files = [text(&program), text(&source), text(&library)];
        // What a Rust library needs (tests/languages.rs has what pkg-config says).
        let system = ["-lgcc_s", "-lpthread", "-lm", "-ldl"];
        run_ok("gcc", &[&flags[..], &files, &system].concat());
        all.push(("c", Command::new(program)));
    } else {
        println!("skipped: the calls of C: needs gcc");
    }
    if have("python3") {
        let mut python = Command::new("python3");
        python.arg("-B").arg(top("python/tests/driver.py"));
        python.env("PYTHONPATH", top("python"));
        all.push(("python", python));
    } else {
        println!("skipped: the calls of Python: needs python3");
    }
    all
}

fn volume(label: &str, size_mib: u64) -> Volume {
    let mut v = Volume::unformatted(Fs::Ccfs, label).options("commit=600,atomic_files=on");
    v.mkfs(size_mib);
    v.mount();
    v
}

fn check(dir: &Path, case: &Case) {
    for (name, after) in case.after {
        let file = std::fs::File::open(dir.join(name));
        let bytes = |at, len| {
            let mut bytes = vec![0; len];
            let file = file.as_ref().expect("it is there");
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        };
        let what = format!("{}/{name}", dir.display());
        match after {
            Has(at, want) => {
                let got = bytes(*at, want.len()).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(String::from_utf8_lossy(&got), *want, "{what} at {at}");
            }
            Empty => {
                let len = file.as_ref().map(|f| f.metadata().map(|m| m.len()).ok());
                assert_eq!(len.ok().flatten(), Some(0), "{what}");
            }
            Gone => assert!(file.is_err(), "{what} is there"),
        }
    }
}

#[test]
fn every_language_does_the_same() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("every_language_does_the_same") {
        return;
    }
    let place = WorkDir::new("calls");
    let (mut v, other) = (volume("calls", 128), volume("calls-other", 32));
    let mut running = Vec::new();
    for (language, command) in languages(&place) {
        let elsewhere = place.path().join(language);
        let beside = other.path(language);
        for dir in [&v.path(language), &elsewhere, &beside] {
            std::fs::create_dir(dir).expect("mkdir");
        }
        let mut driver = Driver::start(command);
        v.adopt(driver.child.id());
        for case in CASES {
            let dir = v.path(language).join(case.name);
            std::fs::create_dir(&dir).expect("mkdir");
            let begin = [&format!("cd {}", text(&dir)), "open d . dir", "at d"];
            for step in begin {
                assert_eq!(driver.step(step), 0, "{language}: {step}");
            }
            for (step, errno) in case.steps {
                let step = step
                    .replace("{elsewhere}", text(&elsewhere))
                    .replace("{other}", text(&beside));
                let got = driver.step(&step);
                assert_eq!(got, *errno, "{language}: {}: {step}", case.name);
            }
        }
        running.push((language, driver));
    }
    v.kill9();
    let ran: Vec<&str> = running.iter().map(|(language, _)| *language).collect();
    drop(running);
    v.mount();
    for language in ran {
        for case in CASES {
            check(&v.path(language).join(case.name), case);
        }
    }
    v.finish();
    other.finish();
}

/// The names in backticks of one column of a table.
fn column(rows: &[&str], number: usize) -> Vec<String> {
    let cells = rows.iter().map(|row| row.split('|').nth(number + 1));
    let cell = |c: Option<&str>| c.expect("a cell").to_string();
    let mut names: Vec<String> = cells.flat_map(|c| quoted(&cell(c))).collect();
    names.sort_unstable();
    names
}

fn quoted(text: &str) -> Vec<String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_string).collect()
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_string).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Every function of a language is in the manual's table of calls, and every name of the table is a function.
#[test]
fn the_manual_has_every_call() {
    let read = |path: &str| std::fs::read_to_string(top(path)).expect(path);
    let section = ccfs_testkit::user_manual::chapter("The calls in each language");
    let lines = section.lines().filter(|l| l.starts_with('|'));
    let rows: Vec<&str> = lines.skip(2).collect();
    let (_, programs) = section.split_once("Rust alone has").expect("the program's");
    let header = read("crates/libccfs/include/ccfs.h");
    let declared = header.lines().filter(|l| l.ends_with(");"));
    let c = declared.filter_map(|l| l.split('(').next()?.split(' ').next_back());
    let c = c.map(|name| name.trim_start_matches('*'));
    assert_eq!(column(&rows, 1), sorted(c));
    let library = read("crates/client/src/lib.rs");
    let own = library.lines().filter_map(|l| {
        let name = l.strip_prefix("pub fn ")?;
        name.split(['(', '<']).next()
    });
    let visible = library.replace("#[doc(hidden)]\npub use", "// use");
    let visible = visible.replace("#[doc(hidden)]\npub fn ", "// fn ");
    let hidden = |name: &&str| visible.contains(&format!("pub fn {name}("));
    let uses = visible.split("\npub use ").skip(1).flat_map(|part| {
        let (list, _) = part.split_once(';').expect("an end");
        let (_, list) = list.split_once("::").expect("a module");
        list.split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
    });
    let uses = uses.filter(|name| !name.is_empty() && !name.starts_with("STREAM_"));
    let rust = sorted(own.filter(hidden).chain(uses).chain(["Scrub"]));
    let said = quoted(programs)
        .into_iter()
        .filter(|name| !name.starts_with("ccfs"));
    let said = said.chain(column(&rows, 2)).collect::<Vec<_>>();
    assert_eq!(sorted(said.iter().map(String::as_str)), rust);
    let package = read("python/ccfs/__init__.py");
    let (_, all) = package.split_once("__all__ = [").expect("a list");
    let (all, _) = all.split_once(']').expect("its end");
    // What is no function.
    let others = ["DEFAULT", "Cancelled", "StreamInfo"];
    let python = all.split('"').skip(1).step_by(2);
    assert_eq!(
        column(&rows, 3),
        sorted(python.filter(|name| !others.contains(name)))
    );
}

/// More files than one call takes: too many words for a step of the table.
#[test]
fn a_limit_of_files() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a_limit_of_files") {
        return;
    }
    let place = WorkDir::new("calls-limit");
    let v = volume("calls-limit", 32);
    for (language, command) in languages(&place) {
        let mut driver = Driver::start(command);
        v.adopt(driver.child.id());
        let open = format!("open_atomic a {}", text(&v.path(language)));
        assert_eq!(driver.step(&open), 0, "{language}");
        for (files, errno) in [(256, 0), (257, EINVAL)] {
            let step = ["syncv"].into_iter().chain(std::iter::repeat_n("a", files));
            let step: Vec<&str> = step.collect();
            assert_eq!(driver.step(&step.join(" ")), errno, "{language}: {files}");
        }
    }
    v.finish();
}

/// What the extension asks of ccfs are calls that the table has, by the numbers of ccfs.h.
#[test]
fn the_extension_is_in_the_table() {
    let source = std::fs::read_to_string(top("sqlite/ccfs_vfs.c")).expect("the extension");
    let mut used: Vec<&str> = source
        .split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
        .filter(|word| word.starts_with("CCFS_IOC_"))
        .collect();
    used.sort_unstable();
    used.dedup();
    let known = [
        ("CCFS_IOC_GET_STREAM", "instream"),
        ("CCFS_IOC_SET_STREAM", "setstream"),
        ("CCFS_IOC_STREAM_SYNC", "streamsync"),
    ];
    assert_eq!(used, known.map(|(number, _)| number));
    for (number, step) in known {
        let mut steps = CASES.iter().flat_map(|case| case.steps);
        let tried = steps.any(|(s, errno)| s.starts_with(step) && *errno == 0);
        assert!(tried, "{number}");
    }
}
