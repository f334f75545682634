//! `kill -9` of the daemon under programs that work on O_ATOMIC files: what a file holds then is its last sync that returned, or the one
//! that was under way (C12).

pub mod load;

use crate::harness::{Fs, Volume, sibling};
use ccfs_testkit::Rng;
use load::{Model, Round, Way};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest wait for something that has to happen.
const PATIENCE: Duration = Duration::from_secs(300);

/// What several cuts showed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub cuts: u64,
    /// ... planted: when a program was about to sync, or had just synced.
    pub planted: u64,
    /// Rounds of the programs that had ended before a cut.
    pub rounds: u64,
    /// Programs that were in a sync when the daemon died, and how many of those syncs are there all the same.
    pub under_way: u64,
    pub under_way_kept: u64,
}

/// When the daemon dies.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// So long after the programs have begun.
    After(Duration),
    /// When the program has said that it begins, or has done, this round.
    Planted(Way, &'static str, u64),
}

fn moment(rng: &mut Rng) -> Moment {
    let way = *rng.pick(&[Way::Write, Way::Map]);
    match rng.below(4) {
        0 => Moment::Planted(way, "begin", 1 + rng.below(20)),
        1 => Moment::Planted(way, "done", 1 + rng.below(20)),
        _ => Moment::After(Duration::from_micros(rng.size(60_000))),
    }
}

/// A program under way.
struct Program {
    way: Way,
    dir: PathBuf,
    seed: u64,
    before: Model,
    child: Child,
    lines: Receiver<String>,
    begun: u64,
    done: u64,
}

impl Program {
    fn start(volume: &Volume, way: Way, seed: u64) -> Program {
        let dir = volume.path(way.name());
        let before = Model::read(&dir).expect("the files");
        let mut command = Command::new(sibling("ccfs-atomic-load"));
        command.arg(&dir).arg(seed.to_string()).arg(way.name());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a program");
        volume.adopt(child.id());
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Program {
            way,
            dir,
            seed,
            before,
            child,
            lines,
            begun: 0,
            done: 0,
        }
    }
    fn heard(&mut self, line: &str) {
        let (word, number) = line.split_once(' ').expect("two words");
        let number: u64 = number.parse().expect("a number");
        match word {
            "begin" => self.begun = number,
            _ => self.done = number,
        }
    }
    /// Reads until the program has said this.
    fn wait(&mut self, word: &str, number: u64, context: &str) {
        let end = Instant::now() + PATIENCE;
        while (if word == "begin" {
            self.begun
        } else {
            self.done
        }) < number
        {
            let rest = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(rest);
            let line = line
                .unwrap_or_else(|e| panic!("{context}: {:?}: no {word} {number}: {e}", self.way));
            self.heard(&line);
        }
    }
    /// What it had still said, after the daemon's death, which ends it.
    fn end(&mut self, context: &str) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait for a program") {
                break status;
            }
            assert!(
                Instant::now() < end,
                "{context}: it hangs on the dead mount"
            );
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_ne!(
            status.code(),
            Some(load::WRONG),
            "{context}: {:?}",
            self.way
        );
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.heard(&line);
        }
    }
    /// C12. True: the sync that was under way is there.
    fn check(&self, context: &str) -> bool {
        let seen = Model::read(&self.dir)
            .expect("the files after the crash")
            .synced;
        let mut model = self.before.clone();
        for number in 1..=self.done {
            model.apply(&Round::new(self.seed, number, self.way));
        }
        if seen == model.synced {
            return false;
        }
        let last = model.synced.clone();
        if self.begun > self.done {
            model.apply(&Round::new(self.seed, self.begun, self.way));
            if seen == model.synced {
                return true;
            }
        }
        let which: Vec<String> = (0..load::FILES)
            .map(|n| {
                format!(
                    "f{n}: {} bytes, {} synced, the same: {}, as under way: {}",
                    seen[n].len(),
                    last[n].len(),
                    seen[n] == last[n],
                    seen[n] == model.synced[n]
                )
            })
            .collect();
        panic!(
            "{context}: C12: {:?}, seed {}, begun {}, done {}: {}",
            self.way,
            self.seed,
            self.begun,
            self.done,
            which.join("; ")
        );
    }
}

/// Cuts the power of one volume `count` times. Panics with the seed at the first broken promise.
pub fn cuts(seed: u64, count: u64) -> Summary {
    let mut rng = Rng::new(seed);
    let mut volume = Volume::unformatted(Fs::Ccfs, "power-cuts").options("atomic_files=on");
    // Small blocks and a small log in half of the runs: it wraps, and checkpoints come all the time.
    if rng.chance(50) {
        volume.mke2fs(64, &["-t", "ext4", "-b", "1024", "-J", "size=4"]);
    } else {
        volume.mkfs(64);
    }
    volume.mount();
    for way in [Way::Write, Way::Map] {
        load::prepare(&volume.path(way.name()), way).expect("prepare");
    }
    volume.umount();
    let mut sum = Summary::default();
    volume.mount();
    for cut in 0..count {
        let moment = moment(&mut rng);
        let context = format!("seed {seed}, cut {cut}, {moment:?}");
        let mut programs =
            [Way::Write, Way::Map].map(|way| Program::start(&volume, way, rng.draw()));
        for program in &mut programs {
            program.wait("done", 1, &context);
        }
        match moment {
            Moment::After(time) => std::thread::sleep(time),
            Moment::Planted(way, word, number) => {
                sum.planted += 1;
                let program = programs.iter_mut().find(|p| p.way == way);
                program.expect("it runs").wait(word, number, &context);
            }
        }
        volume.kill9();
        for program in &mut programs {
            program.end(&context);
        }
        let options = rng.pick(&["commit=600", "commit=1", "commit=5,dirty=4M"]);
        volume.set_options(&format!("atomic_files=on,{options}"));
        volume.mount();
        sum.cuts += 1;
        for program in &programs {
            let kept = program.check(&context);
            sum.rounds += program.done;
            sum.under_way += u64::from(program.begun > program.done);
            sum.under_way_kept += u64::from(kept);
        }
    }
    volume.finish();
    sum
}
