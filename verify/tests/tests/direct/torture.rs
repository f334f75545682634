//! Two programs with direct calls and one with system calls on the same names, in turns; a plain directory is the model.
use super::actors::{Call, Direct, Plain, answer};
use super::volume;
use ccfs_testkit::Rng;
use ccfs_tests::harness::number;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A program with a session of its own.
struct Program {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Program {
    fn start(base: &Path) -> Program {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["torture::direct_program", "--exact", "--nocapture"]);
        command.env("CCFS_DIRECT_PROGRAM", base);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().expect("its output"));
        Program { child, to, from }
    }

    fn call(&mut self, line: &str) -> String {
        writeln!(self.to.as_mut().expect("its input"), "{line}").expect("send");
        loop {
            let mut got = String::new();
            let n = self.from.read_line(&mut got).expect("receive");
            assert!(n > 0, "the program with the session died at {line}");
            if let Some((_, text)) = got.split_once("@R ") {
                return text.trim_end().to_string();
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: this test's own program, started again.
#[test]
fn direct_program() {
    let Some(base) = std::env::var_os("CCFS_DIRECT_PROGRAM") else {
        return;
    };
    let mut actor = Direct::new(Path::new(&base));
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        println!("@R {}", answer(actor.call(&Call::parse(&line))));
    }
}

/// A call; only the one of system calls (`plain`) makes mappings, and sets times by a name.
fn draw(rng: &mut Rng, plain: bool) -> String {
    let (d, e, f) = (rng.below(5), rng.below(5), rng.below(5));
    let (n, m) = (rng.below(6), rng.below(6));
    let (at, len, tag) = (rng.below(12_000), rng.below(7000), rng.below(256));
    match rng.below(if plain { 51 } else { 48 }) {
        0..=6 => {
            let how = rng.pick(&[
                "r", "rw", "rwc", "rwc", "rwc", "rwce", "rwce", "rwt", "rwct", "rc",
            ]);
            format!("open {d} n{n} {f} {how} 0640")
        }
        // Slot 0 stays the root.
        7..=9 => format!("mkdir {d} n{n} {} 0750", 1 + e % 4),
        10..=12 => format!("opendir {d} n{n} {}", 1 + e % 4),
        13..=14 => format!("unlink {d} n{n}"),
        15 => format!("rmdir {d} n{n}"),
        16..=19 => format!("rename {d} n{n} {e} n{m}"),
        20..=22 => format!("lstat {d} n{n}"),
        23..=24 => format!("list {d}"),
        25..=28 => format!("write {f} {at} {len} {tag}"),
        29..=30 => format!("append {f} {len} {tag}"),
        31..=33 => format!("read {f} {at} {}", len * 2),
        34..=35 => format!("truncate {f} {at}"),
        36..=37 => format!("fstat {f}"),
        38 => format!("chmod {f} {}", rng.pick(&["0600", "0644", "0755"])),
        39 => match rng.below(4) {
            0 => format!("sync {f}"),
            _ => format!("close {f}"),
        },
        40..=41 => format!("link {d} n{n} {e} n{m}"),
        42 => format!("symlink {d} n{n}"),
        43 => format!("readlink {d} n{n}"),
        44 => format!("renamex {d} n{n} {e} n{m}"),
        45 => format!("fchown {f} {n} {m}"),
        46 => match rng.below(3) {
            0 => format!("futimens {f} {at} {len}"),
            1 => format!("futimens {f} now omit"),
            _ => format!("futimens {f} omit {at}"),
        },
        // Not of directories: one that others have looked up and removed has no descriptor.
        47 => format!("fchown {f} 0 {m}"),
        48 => format!("utimens {d} n{n}"),
        _ => format!("map {f} {tag}"),
    }
}

#[test]
fn in_turns() {
    let Some(mut v) = volume("direct in_turns", 256, "") else {
        return;
    };
    let seed = number("CCFS_TEST_SEED", 4711);
    let turns = number("CCFS_DIRECT_TURNS", 10_000);
    let reference = v.outside("reference");
    std::fs::create_dir(&reference).expect("reference");
    std::fs::create_dir(v.path("base")).expect("base");
    let mut direct = [(); 2].map(|()| Program::start(&v.path("base")));
    let mut plain = Plain::new(&v.path("base"));
    let mut expected = [(); 3].map(|()| Plain::new(&reference));
    let mut rng = Rng::new(seed);
    let mut times: HashMap<String, i128> = HashMap::new();
    let mut said: Vec<String> = Vec::new();
    let (mut good, start) = (0, Instant::now());
    for turn in 0..turns {
        let who = rng.below(3) as usize;
        let line = draw(&mut rng, who == 2);
        let want = answer(expected[who].call(&Call::parse(&line)));
        let got = match who {
            2 => answer(plain.call(&Call::parse(&line))),
            _ => direct[who].call(&line),
        };
        said.push(format!("{who}: {line} -> {got}"));
        let compared = |s: &str| s.split('|').next().unwrap_or("").to_string();
        let tail = || {
            let from = said.len().saturating_sub(turns.min(400) as usize);
            said[from..].join("\n")
        };
        assert_eq!(
            compared(&got),
            compared(&want),
            "seed {seed}, turn {turn}: {line} of {who}\n{}",
            tail()
        );
        good += u64::from(got.starts_with("ok"));
        if line.contains("utimens") {
            times.clear();
        }
        if let Some((ino, time)) = got.split_once('|').and_then(|(_, t)| t.split_once(' ')) {
            let time: i128 = time.parse().expect("a time");
            let before = times.insert(ino.to_string(), time).unwrap_or(time);
            // A time that was seen never goes back, but by utimens.
            assert!(
                before <= time,
                "seed {seed}, turn {turn}: mtime of {ino} goes back by {} ns\n{}",
                before - time,
                tail()
            );
        }
    }
    let each = turns as f64 / start.elapsed().as_secs_f64();
    println!("in_turns: {turns} turns, {good} without error, {each:.0} a second");
    assert!(good > turns / 5, "calls that prove nothing");
    drop((direct, plain));
    v.remount();
    let tree = |base: &Path| {
        let script =
            "find . -type f -exec sha256sum {} + | sort; find . -printf '%p %y %m %n\\n' | sort";
        let mut c = Command::new("sh");
        let out = c.args(["-c", script]).current_dir(base).output();
        String::from_utf8_lossy(&out.expect("run find").stdout).into_owned()
    };
    let want = tree(&reference);
    assert_eq!(tree(&v.path("base")), want, "seed {seed}: after a remount");
    v.finish();
}
