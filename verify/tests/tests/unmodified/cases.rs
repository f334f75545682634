//! One program with many cases (programs/same): each line that it prints is the same with and without.
use super::{command, compile, source, text, volume};
use ccfs_tests::harness::{Volume, run, run_ok};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What the program says and leaves, by case.
fn cases(v: &Volume, program: &Path, direct: bool, mode: &str, base: &str) -> Results {
    let dir = v.path(base);
    std::fs::create_dir(&dir).expect("a directory");
    let mut started = command(v, direct, &[text(program), text(&dir), mode]);
    let ran = run(started.current_dir(&dir));
    assert_eq!(ran.code, 0, "{mode}, direct {direct}: {}", ran.all());
    let mut results = Results::new();
    let place = |line: &str| line.replace(base, "BASE");
    let said = format!("\n{}", ran.stdout);
    for part in said.split("\n== ").skip(1) {
        let (name, said) = part.split_once('\n').expect("a name");
        let find = "find . -printf '%P %y %m %U:%G %n %l' -type d -printf ' -\\n' -o -printf ' %s\\n' | sort";
        let tree = run_ok(
            "sh",
            &["-c", &format!("cd {}/{name} && {find}", text(&dir))],
        );
        let lines = said.lines().map(place);
        let tree = tree.lines().map(|line| format!("left: {}", place(line)));
        results.insert(name.to_string(), lines.chain(tree).collect());
    }
    assert!(results.len() >= 39, "{}", ran.all());
    results
}

type Results = BTreeMap<String, Vec<String>>;

/// The first lines of each case that differ.
fn differences(mode: &str, plain: &Results, direct: &Results) -> Vec<String> {
    let mut all = Vec::new();
    for (name, expected) in plain {
        let nothing = Vec::new();
        let got = direct.get(name).unwrap_or(&nothing);
        let differ = |i: &usize| expected.get(*i) != got.get(*i);
        let longest = expected.len().max(got.len());
        let shown = (0..longest).filter(differ).take(4).map(|i| {
            let line = |lines: &[String]| lines.get(i).cloned().unwrap_or_default();
            format!(
                "{mode}, {name}: {}\n      direct: {}",
                line(expected),
                line(got)
            )
        });
        all.extend(shown);
    }
    all
}

/// Walks through a tree without end, and reads all of it. Times of reading stay.
const LOOKS: &str = r#"
import os, stat, sys
while True:
    for top, dirs, files in os.walk(sys.argv[1]):
        for name in dirs + files:
            path = os.path.join(top, name)
            # There times of reading are looked at.
            if "/attributes/" in path:
                continue
            try:
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_NOATIME | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                os.pread(fd, 100000, 0)
            finally:
                os.close(fd)
"#;

/// Looks at everything in a directory, again and again, until it is dropped.
pub struct Looker(Child);

impl Looker {
    pub fn at(dir: &Path) -> Looker {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", LOOKS, text(dir)]).stdin(Stdio::null());
        Looker(python.spawn().expect("python3"))
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_of_many_cases_says_the_same() {
    let Some(mut v) = volume("same", 512) else {
        return;
    };
    let names = [
        "main", "io", "names", "tree", "process", "special", "library", "threads",
    ];
    let sources = names.map(|name| source(&format!("same/{name}.c")));
    let program = compile(&v, "program", &sources);
    let mut all = Vec::new();
    for mode in ["absolute", "below", "relative", "known"] {
        let (plain, direct) = std::thread::scope(|both| {
            let plain = both.spawn(|| cases(&v, &program, false, mode, &format!("{mode}-1")));
            let direct = cases(&v, &program, true, mode, &format!("{mode}-2"));
            (plain.join().expect("without"), direct)
        });
        all.extend(differences(mode, &plain, &direct));
        if mode == "absolute" {
            let watched = v.path("absolute-3");
            let looker = Looker::at(v.mnt());
            let direct = cases(&v, &program, true, mode, "absolute-3");
            drop(looker);
            all.extend(differences("absolute, watched", &plain, &direct));
            std::fs::remove_dir_all(watched).expect("remove");
        }
    }
    v.remount();
    v.finish();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
