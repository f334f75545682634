//! What the tests of the program share: running it, and volumes that clean up after themselves.
#![allow(dead_code)]
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program under test.
pub fn ccfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccfs"));
    // What the daemon says is nothing for the log of this machine's kernel.
    command
        .stdin(Stdio::null())
        .env("CCFS_LOG_KMSG", "/dev/null");
    command
}

/// What a run gave.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn run(command: &mut Command) -> Ran {
    let start = Instant::now();
    let Output {
        status,
        stdout,
        stderr,
    } = loop {
        match command.output() {
            // A program that was just written is still open in another thread's child, before that runs its own.
            Err(e)
                if e.kind() == std::io::ErrorKind::ExecutableFileBusy
                    && start.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            started => break started.expect("the command starts"),
        }
    };
    Ran {
        code: status
            .code()
            .expect("the command was not ended by a signal"),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Waits for the end of a program; one that does not end is killed, and the test has failed.
pub fn wait_for(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if start.elapsed() > PATIENCE {
            // Not waited for: it may be where no signal reaches it.
            let _ = child.kill();
            panic!("process {} does not end", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `ccfs` with these arguments.
/// A mount goes by the transport that `CCFS_TEST_TRANSPORT` names (auto, uring, dev), if it does.
pub fn ccfs_with(args: &[&str]) -> Ran {
    match (args, std::env::var("CCFS_TEST_TRANSPORT")) {
        (["mount", rest @ ..], Ok(way)) => {
            let option = format!("transport={way}");
            run(ccfs().args(["mount", "-o", &option]).args(rest))
        }
        _ => run(ccfs().args(args)),
    }
}

/// Runs a tool of the system that must succeed.
pub fn tool(name: &str, args: &[&str]) -> String {
    let ran = run(Command::new(name).args(args).stdin(Stdio::null()));
    assert_eq!(ran.code, 0, "{name} {args:?}: {}{}", ran.out, ran.err);
    ran.out
}

/// Mounts an image with the kernel's ext4. mount(8) picks a free loop device; a test beside may be faster.
pub fn kernel_mount(image: &str, dir: &str, options: &str) {
    for attempt in 0.. {
        let ran = run(Command::new("mount").args(["-o", options, "-t", "ext4", image, dir]));
        if ran.code == 0 {
            return;
        }
        assert!(ran.err.contains("busy") && attempt < 1200, "{}", ran.err);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Why tests with mounts cannot run here; `None` if they can.
pub fn no_mounts() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no /dev/loop-control");
    }
    None
}

/// Says so and ends the test where mounts are impossible.
#[macro_export]
macro_rules! needs_mounts {
    () => {
        if let Some(why) = common::no_mounts() {
            println!("skipped: {why}");
            return;
        }
    };
}

/// A directory for a test's files; unmounts what is left mounted in it, and removes it.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::Builder::new()
            .prefix("ccfs-test-")
            .tempdir()
            .expect("a directory for the test");
        Place { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as text, for command lines.
    pub fn text(&self, name: &str) -> String {
        self.path(name)
            .to_str()
            .expect("a path in UTF-8")
            .to_string()
    }

    /// A fresh directory.
    pub fn subdir(&self, name: &str) -> String {
        std::fs::create_dir(self.path(name)).expect("a directory");
        self.text(name)
    }

    /// A fresh volume made by `ccfs mkfs`.
    pub fn volume(&self, name: &str, size: &str) -> String {
        let path = self.text(name);
        let made = ccfs_with(&["mkfs", "-s", size, &path]);
        assert_eq!(made.code, 0, "{}", made.err);
        path
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let dirs = table
            .lines()
            .filter_map(|l| l.split(' ').nth(4))
            .map(PathBuf::from);
        let mut below: Vec<PathBuf> = dirs.filter(|d| d.starts_with(self.dir.path())).collect();
        below.reverse();
        below
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for dir in self.mounts() {
            let _ = Command::new("umount").arg("-l").arg(dir).status();
        }
    }
}

/// Makes the volume look as a crash leaves it: sets the bit for "in flight" and the super block's checksum.
pub fn set_feature_bit_30(image: &str) {
    let ran = run(Command::new("debugfs").args(["-w", "-R", "feature +FEATURE_I30", image]));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// The command failed with this code and told so with these words, and did not just fall over.
pub fn refused(name: &str, ran: &Ran, code: i32, words: &[&str]) {
    let said = format!("{}{}", ran.out, ran.err);
    assert_eq!(ran.code, code, "{name}: {said}");
    assert!(!said.contains("panicked"), "{name}: {said}");
    assert!(
        words.iter().any(|w| said.contains(w)),
        "{name}: {said:?} lacks all of {words:?}"
    );
}

/// Unmounts with umount(8).
pub fn umount8(dir: &str) {
    for attempt in 0.. {
        let ran = run(Command::new("umount").arg(dir));
        if ran.code == 0 {
            return;
        }
        assert!(ran.err.contains("busy") && attempt < 1200, "{}", ran.err);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Unmounts, whatever the outcome. A test of another thread that is just starting a program can hold a copy of our
/// descriptors for an instant.
pub fn try_unmount(dir: &str) -> Ran {
    let mut attempt = 0;
    loop {
        let ran = ccfs_with(&["umount", dir]);
        if !ran.err.contains("in use by") || attempt == 600 {
            return ran;
        }
        attempt += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Unmounts; the volume is at rest.
pub fn unmount(dir: &str) {
    let ran = try_unmount(dir);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Fills a volume with something to lose, by way of debugfs.
pub fn filled(place: &Place, name: &str) -> String {
    let image = place.volume(name, "32M");
    let payload = place.text("payload");
    std::fs::write(&payload, vec![7u8; 300_000]).unwrap();
    let script = place.text("script");
    let lines: String = (0..40)
        .map(|n| format!("mkdir d{n}\nwrite {payload} d{n}/f{n}\n"))
        .collect();
    std::fs::write(&script, lines).unwrap();
    tool("debugfs", &["-w", "-f", &script, &image]);
    tool("e2fsck", &["-fn", &image]);
    image
}

/// Mounts a volume, which has to succeed.
pub fn mount(image: &str, dir: &str) {
    let ran = ccfs_with(&["mount", image, dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// The daemon's process id, as `status` tells it.
pub fn daemon(dir: &str) -> u32 {
    let status = ccfs_with(&["status", "--json", dir]);
    let value: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    value["mount"]["pid"].as_u64().unwrap() as u32
}

pub fn signal(pid: u32, name: &str) {
    tool("kill", &[&format!("-{name}"), &pid.to_string()]);
}

/// Whether a process has not ended yet.
pub fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

/// Waits until the process is gone.
pub fn wait_for_end(pid: u32) {
    let start = Instant::now();
    while is_running(pid) {
        assert!(start.elapsed() < PATIENCE, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How many mounts there are on a directory.
pub fn mounts_on(dir: &str) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dirs = table.lines().map(|l| l.split(' ').nth(4));
    dirs.filter(|d| *d == Some(dir)).count()
}

pub fn is_mounted(dir: &str) -> bool {
    mounts_on(dir) > 0
}

/// Loop devices over the file of this name, which need not be the file itself (`ccfs_fuse::sentinel`).
pub fn loops_of(image: &str) -> String {
    let disks = std::fs::read_dir("/sys/block").unwrap().flatten();
    let over = disks.filter(|disk| {
        let behind = std::fs::read_to_string(disk.path().join("loop/backing_file"));
        behind.is_ok_and(|behind| behind.trim_end_matches('\n') == image)
    });
    let names: Vec<String> = over.map(|disk| format!("{:?}", disk.file_name())).collect();
    names.join(" ")
}

/// The kernel detaches a loop device with its last user: programs that other tests are just starting have copies of all descriptors for an
/// instant.
pub fn wait_for_no_loops(image: &str) {
    let start = Instant::now();
    while !loops_of(image).is_empty() {
        assert!(start.elapsed() < PATIENCE, "{}", loops_of(image));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// At rest: e2fsck finds nothing, and the kernel shows the same.
pub fn plain_ext4(place: &Place, image: &str) -> Vec<String> {
    tool("e2fsck", &["-fn", image]);
    let dir = place.text("kernel");
    let _ = std::fs::create_dir(&dir);
    kernel_mount(image, &dir, "loop,ro");
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != "lost+found")
        .collect();
    names.sort();
    umount8(&dir);
    names
}

/// Makes /usr/sbin a directory that holds `mount.ccfs` (under all its names) and links to everything that was there; in this namespace only.
const HELPER_IN_PLACE: &str = r#"
set -eu
mkdir "$PLACE/sbin-before" "$PLACE/sbin-now"
mount --bind /usr/sbin "$PLACE/sbin-before"
for tool in "$PLACE"/sbin-before/*; do ln -s "$tool" "$PLACE/sbin-now/"; done
for name in ccfs fuse.ccfs fuseblk.ccfs; do ln -sf "$PROGRAM" "$PLACE/sbin-now/mount.$name"; done
for name in fuse.ccfs fuseblk.ccfs; do ln -sf "$PROGRAM" "$PLACE/sbin-now/umount.$name"; done
mount --bind "$PLACE/sbin-now" /usr/sbin
trap 'umount -l "$PLACE/mnt" 2>/dev/null || :; umount -l "$PLACE/other" 2>/dev/null || :' EXIT
options() { awk -v dir="$1" '$5 == dir { print $6 }' /proc/self/mountinfo; }
"#;

/// Runs a script as root in a mount namespace of its own, in which mount(8) finds the helpers. Gives what it said.
pub fn in_namespace(place: &Place, script: &str) -> String {
    let whole = format!("{HELPER_IN_PLACE}\n{script}");
    let mut command = Command::new("unshare");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", &whole])
        .env("PLACE", place.text("").trim_end_matches('/'))
        .env("PROGRAM", env!("CARGO_BIN_EXE_ccfs"))
        .env("CCFS_LOG_KMSG", "/dev/null")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null());
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // What a mount says on a machine without a system log.
    let said = ran.out + &ran.err;
    let lines = said
        .lines()
        .filter(|l| !l.contains("there is no system log"));
    lines.map(|line| format!("{line}\n")).collect()
}
