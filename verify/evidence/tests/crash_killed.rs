//! `ccfs crash` that is killed with its whole process group, in the middle of what its kernel file system does: nothing is left that cannot be killed,
//! and nobody else waits for it.
use ccfs_testkit::mounts::no_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs;
use ccfs_testkit::run::{PATIENCE, run, tool};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for sync(2); that it takes longer is only said.
const SOON: Duration = Duration::from_secs(30);
/// File systems, and how often each is killed while a program is recorded, and while images are explored.
const KINDS: [(&str, u64); 4] = [("ext4", 10), ("xfs", 4), ("btrfs", 4), ("ccfs", 4)];

/// Loop devices whose files lie below `dir`.
fn has_loops(dir: &Path) -> bool {
    let all = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut files = all.filter_map(|e| fs::read(e.path().join("loop/backing_file")).ok());
    files.any(|file| String::from_utf8_lossy(&file).contains(dir.to_str().unwrap()))
}

fn namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

fn others_in(namespace_of_run: &PathBuf) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let here = |pid: &String| namespace(pid).as_ref() == Some(namespace_of_run);
    pids.filter(|pid| pid.bytes().all(|b| b.is_ascii_digit()))
        .filter(here)
        .collect()
}

/// A run, and what it serves. What it leaves is ended by hand: a test that fails must not take the machine along.
struct Run {
    child: Child,
    namespace: PathBuf,
    /// Devices of what it serves, as far as they were seen.
    disks: BTreeSet<String>,
    /// The control file system of FUSE, to end what a failed test leaves.
    control: PathBuf,
}

impl Run {
    /// It has begun when `begun` exists.
    fn start(place: &Place, begun: &Path, args: &[&str]) -> Run {
        let mut command = ccfs();
        command
            .env("TMPDIR", place.path("."))
            .arg("crash")
            .args(args);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.process_group(0).spawn().unwrap();
        let start = Instant::now();
        while !begun.exists() {
            assert!(start.elapsed() < PATIENCE, "it does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut run = Run {
            namespace: namespace(&child.id().to_string()).unwrap(),
            child,
            disks: BTreeSet::new(),
            control: place.path("control"),
        };
        run.look();
        run
    }

    fn look(&mut self) {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.child.id()));
        for line in table.unwrap_or_default().lines() {
            if line.contains(" fuse.ccfs ccfs-") {
                self.disks
                    .extend(line.split(' ').nth(2).map(str::to_string));
            }
        }
    }

    /// Kills the process group, and waits until nothing is left.
    fn kill_all(mut self, place: &Place, what: &str) {
        self.look();
        let group = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        let start = Instant::now();
        let soon = |what: &str| {
            std::thread::sleep(Duration::from_millis(5));
            assert!(start.elapsed() < PATIENCE, "{what}");
        };
        while self.child.try_wait().unwrap().is_none() {
            soon(&format!("{what}: the process stays"));
        }
        while let Some(pid) = others_in(&self.namespace).first() {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            soon(&format!("{what}: {} stays", name.trim()));
        }
        while has_loops(&place.path("")) {
            soon(&format!("{what}: a loop device stays"));
        }
        let bdi = |disk: &String| Path::new("/sys/class/bdi").join(disk).exists();
        while self.disks.iter().any(bdi) {
            soon(&format!("{what}: a virtual disk stays"));
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for disk in &self.disks {
            let number = disk.trim_start_matches("0:");
            let _ = fs::write(self.control.join(number).join("abort"), "1");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// sync(2) of the whole machine has nothing of ours to wait for, and is seen to end. (Other volumes of this machine may be held, by tests that stop
/// their daemons.)
fn syncs(what: &str) {
    let mut command = Command::new("sync");
    let mut sync = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while sync.try_wait().unwrap().is_none() {
        if start.elapsed() > SOON {
            let _ = sync.kill();
            return println!("{what}: sync waits, for a volume of somebody else");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_missing(kind: &str) -> bool {
    let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let tool = format!("command -v mkfs.{kind}");
    !kernel.lines().any(|l| l.trim() == kind)
        || run(Command::new("sh").args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin; {tool}")])).code
            != 0
}

#[test]
fn a_killed_group_leaves_nothing() {
    if let Some(why) = no_mounts() {
        return println!("skipped: {why}");
    }
    for (kind, rounds) in KINDS {
        if kind != "ccfs" && is_missing(kind) {
            println!("skipped: there is no {kind}");
            continue;
        }
        let place = Place::new();
        let control = place.subdir("control");
        tool("mount", &["-t", "fusectl", "none", &control]);
        let (trace, begun) = (place.text("trace"), place.path("begun"));
        let touch = format!("touch {}", begun.display());
        let write = "dd if=/dev/zero of=f$n bs=64k count=16 conv=fsync 2>/dev/null; dd if=/dev/zero of=g bs=64k count=64 2>/dev/null";
        let load = format!("{touch}; n=0; while :; do n=$((n+1)); {write}; done");
        let short = format!("for n in 1 2 3 4; do {write}; done");
        for round in 0..rounds {
            let what = format!("{kind}: round {round}");
            let _ = fs::remove_file(&begun);
            let work = ["--", "sh", "-c", &load];
            let args = [&["record", "--fs", kind, "-o", &trace][..], &work].concat();
            let run = Run::start(&place, &begun, &args);
            // No moment is like the other.
            std::thread::sleep(Duration::from_millis(37 * round));
            run.kill_all(&place, &what);
        }
        let mut recorded = ccfs();
        let args = [
            "crash", "record", "--fs", kind, "-o", &trace, "--", "sh", "-c",
        ];
        let recorded = recorded.args(args).arg(&short);
        assert_eq!(run(recorded.env("TMPDIR", place.path("."))).code, 0);
        for round in 0..rounds {
            let what = format!("{kind}: exploring, round {round}");
            let _ = fs::remove_file(&begun);
            let args = ["explore", &trace, "--images", "5000", "--check", &touch];
            let run = Run::start(&place, &begun, &args);
            std::thread::sleep(Duration::from_millis(61 * round));
            run.kill_all(&place, &what);
        }
        syncs(kind);
    }
}
