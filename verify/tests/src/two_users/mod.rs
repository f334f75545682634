//! Two users and root on one volume: while one user attacks, the others measure what their calls take, and count their errors.
//!
//! Each is a process in a session of its own (`ccfs-user`), and the volume is mounted with `streams=uid`: in one stream with the attacker the
//! others' fsync would have to write what he wrote before (C3).
mod attack;
mod probe;
pub mod stalled;
mod table;
mod user;

use crate::harness::{Fs, Volume};
use crate::sys;
use attack::Attack;
use probe::More;
use serde::{Deserialize, Serialize};
use stalled::Stalled;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use table::Table;
use user::{Phase, User};

const ATTACKER: u32 = 64_101;
const BYSTANDER: u32 = 64_102;
const VOLUME_MIB: u64 = 512;

/// Longest time of any call, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(60);
/// For the first line of somebody who has just been started.
const STARTED: Duration = Duration::from_secs(120);
/// After the last attack, before memory is looked at once more.
const REST: Duration = Duration::from_secs(15);
/// What the daemon may have more than before all attacks, bytes: its caches (`cache=`: 64 MiB, as much again and a quarter), and the stacks
/// of threads that have ended (glibc keeps 40 MiB of them).
const KEPT_MAX: u64 = (144 + 40) << 20;
/// As much, and the dirty limit (192 MiB) with what is on its way to the device.
const PEAK_MAX: u64 = 600 << 20;
/// Threads that the daemon may have more than before.
const THREADS_MAX: u64 = 16;

/// One attack, and what the others do meanwhile.
pub struct Scenario {
    /// For the table.
    pub name: &'static str,
    attack: Attack,
    more: &'static [More],
    /// The attacker has a stalled FUSE file.
    stalled: bool,
}

const fn scenario(name: &'static str, attack: Attack, more: &'static [More]) -> Scenario {
    Scenario {
        name,
        attack,
        more,
        stalled: false,
    }
}

/// As `scenario`; he has a stalled FUSE file.
const fn with_stalled(scenario: Scenario) -> Scenario {
    Scenario {
        stalled: true,
        ..scenario
    }
}

/// All of them.
pub const ALL: [Scenario; 9] = [
    scenario("16 groups move directories", attack::moves, &[More::Move]),
    scenario(
        "16 groups and creators in one directory",
        attack::creators,
        &[More::Seek, More::Group],
    ),
    with_stalled(scenario(
        "directories locked by a stalled FUSE file",
        attack::stalled,
        &[More::Seek, More::Group],
    )),
    scenario("groups that hold all memory", attack::hoard, &[More::Group]),
    scenario("960 writers", attack::writers, &[More::Mkdir]),
    scenario("16 loops of barriers", attack::barriers, &[More::Mkdir]),
    scenario(
        "16 groups in a sticky directory",
        attack::sticky,
        &[More::Shared],
    ),
    scenario(
        "a group that maps 120 MiB",
        attack::mapped,
        &[More::Syncfs, More::Group],
    ),
    with_stalled(scenario(
        "aborts that pile up",
        attack::pile,
        &[More::Seek, More::Group],
    )),
];

/// How long each of them is watched, without and with the attack.
pub struct Length {
    pub quiet: Duration,
    pub attack: Duration,
    /// Files that the volume had before.
    pub aged: usize,
    /// Latency and memory are judged as well. Not in tests that run beside others.
    pub judged: bool,
}

impl Length {
    pub fn short() -> Length {
        Length {
            quiet: Duration::from_millis(300),
            attack: Duration::from_secs(1),
            aged: 300,
            judged: false,
        }
    }
    pub fn long(seconds: u64) -> Length {
        Length {
            quiet: Duration::from_secs(seconds.div_ceil(3)),
            attack: Duration::from_secs(seconds),
            aged: 12_000,
            judged: true,
        }
    }
}

/// What `ccfs-user` is to do.
#[derive(Serialize, Deserialize)]
struct Settings {
    /// The attack's place in `ALL`; somebody else otherwise.
    attack: Option<usize>,
    more: Vec<More>,
    mnt: PathBuf,
    own: PathBuf,
    shared: PathBuf,
    stalled: PathBuf,
}

/// The program `ccfs-user`: does as this user what the settings say, and ends when `parent` does.
pub fn as_user(parent: u32, uid: u32, settings: &str) {
    let settings: Settings = serde_json::from_str(settings).expect("settings");
    sys::become_user(uid, uid).expect("become a user");
    sys::die_with(parent).expect("the parent lives");
    let Settings {
        mnt, own, shared, ..
    } = settings;
    match settings.attack {
        Some(number) => {
            let place = attack::Place {
                mnt,
                own,
                shared,
                stalled: settings.stalled,
            };
            attack::run(ALL[number].attack, place);
        }
        None => probe::run(probe::Place { mnt, own, shared }, &settings.more),
    }
}

/// When a call ended.
mod phase {
    pub const QUIET: u8 = 0;
    /// The attack begins: only errors count.
    pub const BETWEEN: u8 = 1;
    pub const ATTACK: u8 = 2;
}

/// Resident size, its peak since the last look (both bytes), and threads of the daemon.
#[derive(Clone, Copy)]
struct Memory {
    resident: u64,
    peak: u64,
    threads: u64,
}

impl Memory {
    fn of(v: &Volume) -> Memory {
        let process = PathBuf::from(format!("/proc/{}", v.daemon_pid().expect("a daemon")));
        let (resident, peak) = v.daemon_rss().expect("the daemon's memory");
        let status = std::fs::read_to_string(process.join("status")).expect("its status");
        let threads = status.lines().find_map(|l| l.strip_prefix("Threads:"));
        let threads = threads.and_then(|n| n.trim().parse().ok());
        // 5: the peak is counted anew (proc_pid_clear_refs(5)).
        std::fs::write(process.join("clear_refs"), "5").expect("reset the peak");
        Memory {
            resident,
            peak,
            threads: threads.expect("its threads"),
        }
    }
    fn shown(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{} MiB (at most {}), {} threads",
            mib(self.resident),
            mib(self.peak),
            self.threads
        )
    }
}

/// Runs these scenarios one after the other on one volume, and prints a table. Returns what is wrong.
pub fn run<'a>(scenarios: impl Iterator<Item = &'a Scenario>, length: &Length) -> Vec<String> {
    let mut v = Volume::unformatted(Fs::Ccfs, "two-users")
        .options("streams=uid")
        .on_flash(false);
    v.mkfs(VOLUME_MIB);
    v.mount();
    let before = Memory::of(&v);
    age(&v, length.aged);
    println!("daemon before: {}\n{}", before.shown(), table::HEAD);
    let mut wrong = Vec::new();
    let mut memory = String::new();
    for scenario in scenarios {
        let bad = one(&v, scenario, length);
        let now = Memory::of(&v);
        memory += &format!("daemon after {}: {}\n", scenario.name, now.shown());
        wrong.extend(bad.iter().map(|bad| format!("{}: {bad}", scenario.name)));
        if length.judged && now.peak > PEAK_MAX {
            wrong.push(format!(
                "{}: the daemon grew: {}",
                scenario.name,
                now.shown()
            ));
        }
    }
    if length.judged {
        std::thread::sleep(REST);
        let after = Memory::of(&v);
        memory += &format!("daemon after {REST:?} of rest: {}\n", after.shown());
        let kept = after.resident > before.resident + KEPT_MAX;
        if kept || after.threads > before.threads + THREADS_MAX {
            wrong.push(format!(
                "the daemon keeps what it does not need: {}, before {}",
                after.shown(),
                before.shown()
            ));
        }
    }
    print!("{memory}");
    v.finish();
    wrong
}

/// Files that come and go, as on any volume that was used.
fn age(v: &Volume, files: usize) {
    let dir = v.path("aged");
    sys::mkdir(&dir, 0o755).expect("mkdir");
    let name = |i: usize| dir.join(format!("file-{i}"));
    for i in 0..files {
        std::fs::write(name(i), [1; 12_000]).expect("write");
    }
    for i in (0..files).filter(|i| i % 3 != 0) {
        std::fs::remove_file(name(i)).expect("remove");
    }
}

/// A directory of this user's.
fn directory(path: &Path, uid: u32, mode: u32) -> PathBuf {
    sys::mkdir(path, 0o700).expect("mkdir");
    sys::chown(path, uid, uid).expect("chown");
    sys::chmod(path, mode).expect("chmod");
    path.to_path_buf()
}

/// One scenario. Returns what is wrong.
fn one(v: &Volume, scenario: &Scenario, length: &Length) -> Vec<String> {
    let number = ALL.iter().position(|s| s.name == scenario.name);
    let number = number.expect("one of them");
    let top = directory(&v.path(&format!("scenario-{number}")), 0, 0o755);
    let shared = directory(&top.join("shared"), 0, 0o1777);
    let point = v.outside("stalled");
    let settings = |attack: Option<usize>, own: PathBuf| {
        let settings = Settings {
            attack,
            more: scenario.more.to_vec(),
            mnt: v.mnt().to_path_buf(),
            own,
            shared: shared.clone(),
            stalled: point.clone(),
        };
        serde_json::to_string(&settings).expect("settings")
    };
    let phase = Phase::default();
    let start = |who, uid| {
        let own = directory(&top.join(who), uid, 0o755);
        (who, User::start(v, uid, &settings(None, own), &phase))
    };
    let mut others = [start("B", BYSTANDER), start("root", 0)];
    // A line of each, however long its start takes.
    let first = others.each_ref().map(|(who, user)| {
        let line = user.line(STARTED);
        line.unwrap_or_else(|| panic!("{}: {who} does nothing", scenario.name))
    });
    std::thread::sleep(length.quiet);

    phase.store(phase::BETWEEN, Relaxed);
    let own = directory(&top.join("attacker"), ATTACKER, 0o755);
    let stalled = scenario
        .stalled
        .then(|| Stalled::mount(point.clone(), ATTACKER, ATTACKER));
    let mut attacker = User::start(v, ATTACKER, &settings(Some(number), own), &phase);
    begun(scenario, &mut attacker);
    phase.store(phase::ATTACK, Relaxed);
    std::thread::sleep(length.attack);
    assert!(attacker.runs(), "{}: the attacker gave up", scenario.name);

    // Their last calls end under the attack, or never.
    let mut wrong = Vec::new();
    let end = Instant::now() + LIMIT;
    for (who, user) in &mut others {
        if !user.end(end.saturating_duration_since(Instant::now())) {
            wrong.push(format!("{who}: a call does not return within {LIMIT:?}"));
        }
    }
    let killed = attacker.kill(Duration::ZERO);
    drop(stalled);
    assert!(
        killed || attacker.kill(LIMIT),
        "{}: the killed attacker does not end",
        scenario.name
    );
    let mut table = Table::default();
    for ((who, user), first) in others.iter_mut().zip(first) {
        assert!(
            user.end(LIMIT),
            "{}: {who}: a call does not return after the attack",
            scenario.name
        );
        measured(&mut table, who, first, user);
    }
    print!("{}", table.rows(scenario.name));
    wrong.extend(table.errors());
    if length.judged {
        wrong.extend(table.late());
    }
    remove(&top);
    wrong
}

/// Waits until the attacker has done something.
fn begun(scenario: &Scenario, attacker: &mut User) {
    let end = Instant::now() + LIMIT;
    while !matches!(attacker.line(LIMIT), Some((_, count)) if count != "0") {
        assert!(
            attacker.runs() && Instant::now() < end,
            "{}: the attack does not begin",
            scenario.name
        );
    }
}

/// Puts what a user wrote into the table.
fn measured(table: &mut Table, who: &'static str, first: (u8, String), user: &User) {
    let mut rounds = [0; 3];
    for (phase, line) in std::iter::once(first).chain(user.rest()) {
        let words: Vec<&str> = line.split('\t').collect();
        let [call, nanos, errno] = words[..] else {
            panic!("{who} wrote {line:?}");
        };
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let (nanos, errno) = (number(nanos), number(errno) as i32);
        let calls = table.calls(who, call);
        match phase {
            phase::QUIET => calls.quiet.add(nanos),
            phase::ATTACK => calls.attacked.add(nanos),
            _ => (),
        }
        rounds[phase as usize] += 1;
        if errno != 0 {
            *calls.errors.entry(errno).or_default() += 1;
        }
    }
    assert!(
        rounds[phase::QUIET as usize] > 0 && rounds[phase::ATTACK as usize] > 0,
        "{who} measured nothing: {rounds:?}"
    );
}

/// Removes a scenario's files. Groups of a killed attacker are taken back meanwhile.
fn remove(top: &Path) {
    let end = Instant::now() + LIMIT;
    while let Err(e) = std::fs::remove_dir_all(top) {
        assert!(Instant::now() < end, "remove {}: {e}", top.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}
