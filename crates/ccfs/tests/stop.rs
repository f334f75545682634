//! A stop with a time limit: SIGTERM, and SIGKILL while the daemon unmounts. The process ends, and what was synced is there. And SIGKILL
//! while a thread of the daemon waits in the kernel.
mod common;
use common::{PATIENCE, Place, ccfs_with, daemon, is_mounted, plain_ext4, run, signal, tool};
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process that was killed is gone after this, however busy the machine.
const SOON: Duration = Duration::from_secs(20);

/// An ext4 file system of its own for the images, which can be frozen: who writes to it then waits, uninterruptibly.
struct Host {
    dir: String,
    /// The control file system of FUSE, to end what a failed test leaves.
    control: String,
}

impl Host {
    fn new(place: &Place) -> Host {
        let (image, dir) = (place.text("host.img"), place.subdir("host"));
        let control = place.subdir("control");
        tool("truncate", &["-s", "512M", &image]);
        tool("mke2fs", &["-q", "-F", "-t", "ext4", &image]);
        common::kernel_mount(&image, &dir, "loop");
        tool("mount", &["-t", "fusectl", "none", &control]);
        Host { dir, control }
    }

    fn volume(&self, size: &str) -> String {
        let image = format!("{}/a.img", self.dir);
        let made = ccfs_with(&["mkfs", "-s", size, &image]);
        assert_eq!(made.code, 0, "{}", made.err);
        image
    }

    fn mount(&self, options: &str, image: &str, dir: &str) -> u32 {
        let ran = ccfs_with(&["mount", "-o", options, image, dir]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        daemon(dir)
    }

    fn freeze(&self) -> Frozen {
        tool("fsfreeze", &["-f", &self.dir]);
        Frozen(self.dir.clone())
    }

    /// Ends the connections of daemons whose loop device has a file here.
    fn end_all(&self) {
        for entry in fs::read_dir(&self.control).unwrap().map(Result::unwrap) {
            let number = entry
                .file_name()
                .into_string()
                .unwrap()
                .parse()
                .unwrap_or(0);
            let minor = format!("/sys/block/loop{}/loop/backing_file", number & 0xf_ffff);
            let ours = |file: String| file.starts_with(&self.dir);
            if number >> 20 == 7 && fs::read_to_string(minor).is_ok_and(ours) {
                let _ = fs::write(entry.path().join("abort"), "1");
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end_all();
    }
}

struct Frozen(String);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").args(["-u", &self.0]).status();
    }
}

/// Kills a process and waits until it is gone; false: it stays.
fn killed(pid: u32) -> bool {
    // It may have ended meanwhile.
    run(Command::new("kill").args(["-KILL", &pid.to_string()]));
    let start = Instant::now();
    while common::is_running(pid) {
        if start.elapsed() > SOON {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The volume can be recovered, mounted and unmounted, and these files are there.
fn recovers(place: &Place, image: &str, dir: &str, files: &[(String, Vec<u8>)]) {
    if is_mounted(dir) {
        let ran = ccfs_with(&["umount", dir]);
        assert_eq!(ran.code, 32, "{}", ran.err);
    }
    assert!(!is_mounted(dir));
    let checked = ccfs_with(&["fsck", "-p", image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
    plain_ext4(place, image);
    common::mount(image, dir);
    for (name, bytes) in files {
        assert!(
            fs::read(format!("{dir}/{name}")).unwrap() == *bytes,
            "{name}"
        );
    }
    common::unmount(dir);
    plain_ext4(place, image);
}

fn needs(program: &str) -> bool {
    let found = run(Command::new("sh").args(["-c", &format!("command -v {program}")])).code == 0;
    if !found {
        println!("skipped: there is no {program}");
    }
    found
}

/// The worst moment, made certain: the daemon cannot finish its unmount while the image's host is frozen.
#[test]
fn a_daemon_that_is_killed_while_it_unmounts_ends() {
    common::needs_mounts!();
    if !needs("fsfreeze") {
        return;
    }
    for options in ["transport=dev", "transport=auto"] {
        let place = Place::new();
        let host = Host::new(&place);
        let (image, dir) = (host.volume("64M"), place.subdir("mnt"));
        let pid = host.mount(options, &image, &dir);
        let bytes = vec![7u8; 3 << 20];
        fs::write(place.path("mnt/f"), &bytes).unwrap();
        tool("sync", &["-f", &dir]);
        let frozen = host.freeze();
        signal(pid, "TERM");
        let start = Instant::now();
        while is_mounted(&dir) {
            assert!(start.elapsed() < PATIENCE, "the signal is not heard");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(300));
        signal(pid, "KILL");
        std::thread::sleep(Duration::from_millis(100));
        drop(frozen);
        assert!(killed(pid), "{options}: the daemon stays");
        recovers(&place, &image, &dir, &[("f".into(), bytes)]);
    }
}

/// A thread of the process waits in a notification, uninterruptibly.
fn waits_in_a_notification(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    tasks.flatten().any(|task| {
        let wchan = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        wchan.contains("fuse_reverse_inval")
    })
}

/// The abort of a group makes the daemon tell the kernel of a directory that the caller of another request has locked.
#[test]
fn a_daemon_that_is_killed_while_it_tells_the_kernel_ends() {
    common::needs_mounts!();
    for options in ["transport=dev", "transport=auto"] {
        let mut met = false;
        for _ in 0..5 {
            met = met || killed_while_it_tells(options);
        }
        assert!(met, "{options}: it was never seen to wait");
    }
}

fn killed_while_it_tells(options: &str) -> bool {
    let place = Place::new();
    let host = Host::new(&place);
    let (image, dir) = (host.volume("64M"), place.subdir("mnt"));
    let pid = host.mount(options, &image, &dir);
    fs::create_dir(place.path("mnt/d")).unwrap();
    let group = |text: &str| {
        let mut command = common::ccfs();
        command.args(["atomic", "--on", &dir, "--", "sh", "-c", text]);
        command
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let out = child.stdout.as_mut().unwrap();
        assert_eq!(out.read(&mut [0; 8]).unwrap(), 2);
        child
    };
    let begun = "echo 1 > d/$0 && echo . && read end; exit 1";
    let holder = group(&begun.replace("$0", "held"));
    let mut aborted = group(&begun.replace("$0", "taken-back"));
    // It waits for the first group, with the directory locked.
    let remover = Command::new("rm")
        .arg(place.path("mnt/d/held"))
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(aborted.stdin.take());
    let start = Instant::now();
    while !waits_in_a_notification(pid) && start.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let met = waits_in_a_notification(pid);
    assert!(killed(pid), "{options}: the daemon stays");
    for mut child in [holder, aborted, remover] {
        drop(child.stdin.take());
        common::wait_for(&mut child);
    }
    recovers(&place, &image, &dir, &[]);
    met
}

/// Those who hold a directory have requests on their way, which the last thread that takes any may have left behind; the daemon waits for the
/// directory to tell the kernel of a name in it.
#[test]
fn a_daemon_that_is_killed_beside_creators_and_aborts_ends() {
    common::needs_mounts!();
    for options in ["transport=dev", "transport=auto"] {
        let met = (0..12).filter(|_| killed_beside_creators(options)).count();
        assert!(met > 0, "{options}: it was never seen to wait");
    }
}

fn killed_beside_creators(options: &str) -> bool {
    let place = Place::new();
    let host = Host::new(&place);
    let (image, dir) = (host.volume("64M"), place.subdir("mnt"));
    let pid = host.mount(options, &image, &dir);
    fs::create_dir(place.path("mnt/d")).unwrap();
    let shell = |text: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", text]).arg(env!("CARGO_BIN_EXE_ccfs"));
        command.current_dir(&dir).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let create = "while : > d/$$-$((i = i + 1)); do :; done";
    let abort =
        "while \"$0\" atomic --on . -- sh -c ': > d/group$$; exit 7'; [ $? = 7 ]; do :; done";
    let texts = [create, create, create, create, abort, abort];
    let callers: Vec<Child> = texts.into_iter().map(shell).collect();
    let start = Instant::now();
    while !waits_in_a_notification(pid) && start.elapsed() < Duration::from_secs(1) {
        std::thread::yield_now();
    }
    let met = waits_in_a_notification(pid);
    assert!(killed(pid), "{options}: the daemon stays");
    for mut caller in callers {
        common::wait_for(&mut caller);
    }
    recovers(&place, &image, &dir, &[]);
    met
}

/// As a service manager does it, at several moments: while the daemon still commits, and while it unmounts.
#[test]
fn a_stop_with_a_time_limit_keeps_what_was_synced() {
    common::needs_mounts!();
    let place = Place::new();
    let host = Host::new(&place);
    let (image, dir) = (host.volume("200M"), place.subdir("mnt"));
    let mut synced = Vec::new();
    let mut while_unmounting = 0;
    // Milliseconds after the signal; after the mount has left the table.
    let moments = [(0, false), (30, false), (0, true), (2, true), (10, true)];
    for (round, (after, gone)) in moments.into_iter().enumerate() {
        let pid = host.mount("dirty=128M,commit=3600", &image, &dir);
        let bytes = vec![round as u8; 2 << 20];
        let name = format!("synced{round}");
        fs::write(place.path("mnt").join(&name), &bytes).unwrap();
        tool("sync", &[&format!("{dir}/{name}")]);
        synced.push((name, bytes));
        for n in 0..40 {
            fs::write(
                place.path("mnt").join(format!("dirty{n}")),
                vec![n; 1 << 20],
            )
            .unwrap();
        }
        signal(pid, "TERM");
        let start = Instant::now();
        while gone && is_mounted(&dir) {
            assert!(start.elapsed() < PATIENCE, "the signal is not heard");
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_millis(after));
        // It may be fast enough to have ended by itself.
        if fs::metadata(format!("/proc/{pid}")).is_ok() {
            while_unmounting += usize::from(gone);
            assert!(killed(pid), "{after} ms after: the daemon stays");
        }
        recovers(&place, &image, &dir, &synced);
    }
    println!("{while_unmounting} of 3 were killed while they unmounted");
}
