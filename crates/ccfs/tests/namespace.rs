//! Mount namespaces: the daemon is in none that has its mount, so that each can end, with and without the daemon.
//!
//! A daemon that were would never end once it is killed, and take the machine along; so before anything is killed here, it is looked at.
mod common;
use ccfs_testkit::mounts::apart;
use common::{
    Place, Ran, ccfs_with, daemon, is_running, kernel_mount, loops_of, mount, plain_ext4, run,
    signal, tool, umount8, unmount, wait_for, wait_for_end, wait_for_no_loops, wait_until,
};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// `$CCFS`, `$WAY` (an option of the mount), `$IMAGE` and `$DIR` are set in it.
fn script(place: &Place, text: &str) -> Command {
    let way = std::env::var("CCFS_TEST_TRANSPORT").unwrap_or("auto".into());
    let mut command = Command::new("sh");
    command
        .args(["-ec", text])
        .env("CCFS", env!("CARGO_BIN_EXE_ccfs"))
        .env("WAY", format!("transport={way}"))
        .env("IMAGE", place.text("a.img"))
        .env("DIR", place.text("mnt"))
        .stdin(Stdio::null());
    command
}

/// In a mount namespace of its own, without the volumes of others; further options of unshare(1).
fn in_space(place: &Place, options: &[&str], text: &str) -> Command {
    inside(apart(options, &[]), script(place, text))
}

/// Where a process is.
fn in_space_of(process: &Child, place: &Place, text: &str) -> Command {
    let pid = process.id().to_string();
    behind(&["nsenter", "-t", &pid, "-m", "--"], script(place, text))
}

fn behind(before: &[&str], inner: Command) -> Command {
    let mut command = Command::new(before[0]);
    command.args(&before[1..]);
    inside(command, inner)
}

fn inside(mut command: Command, inner: Command) -> Command {
    command.arg(inner.get_program());
    command.args(inner.get_args()).stdin(Stdio::null());
    for (name, value) in inner.get_envs() {
        command.env(name, value.unwrap());
    }
    command
}

/// A script that says `ready` and goes on until its input ends.
fn started(mut command: Command) -> Child {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn place() -> Place {
    let place = Place::new();
    place.volume("a.img", "32M");
    place.subdir("mnt");
    place
}

/// The daemon of the volume; `None`: it has ended.
fn found(image: &str) -> Option<u32> {
    let ran = run(Command::new("pgrep").args(["-f", &format!("^@ccfs .*-- {image}")]));
    ran.out.lines().next().map(|pid| pid.parse().unwrap())
}

/// Whatever of ccfs' is mounted where a process is.
fn seen_by(pid: u32) -> Vec<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let ours = table.lines().filter(|l| l.contains(".ccfs "));
    ours.map(str::to_string).collect()
}

/// It can be killed without harm.
fn is_apart(pid: u32) {
    assert_eq!(seen_by(pid), [""; 0], "the daemon sees its mount");
    for fd in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let to = fs::read_link(fd.path()).unwrap_or_default();
        assert!(
            !to.to_string_lossy().starts_with("mnt:"),
            "a namespace is kept"
        );
    }
}

fn ended(image: &str) {
    wait_until("the daemon ends", || found(image).is_none());
}

fn good(ran: &Ran) -> &str {
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    &ran.out
}

/// A mount namespace with the volume in it, and a process that keeps it until this is dropped.
struct Space {
    keeper: Child,
    place: Place,
    daemon: u32,
}

impl Space {
    fn new(options: &str, then: &str) -> Space {
        let place = place();
        let text = format!(
            "\"$CCFS\" mount -o \"$WAY{options}\" \"$IMAGE\" \"$DIR\"; {then} echo ready; exec cat"
        );
        let keeper = started(in_space(&place, &[], &text));
        let daemon = found(&place.text("a.img")).unwrap();
        Space {
            keeper,
            place,
            daemon,
        }
    }

    fn run(&self, text: &str) -> Ran {
        run(&mut in_space_of(&self.keeper, &self.place, text))
    }

    fn has_mounts(&self) -> usize {
        seen_by(self.keeper.id()).len()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// The namespace ends, and the volume with it: clean, though nobody has unmounted it.
#[test]
fn a_volume_ends_with_its_namespace() {
    common::needs_mounts!();
    let place = place();
    let image = place.text("a.img");
    let mount = "\"$CCFS\" mount -o \"$WAY\" \"$IMAGE\" \"$DIR\"; echo kept > \"$DIR/f\"";
    good(&run(&mut in_space(&place, &[], mount)));
    ended(&image);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
    wait_for_no_loops(&image);
}

/// The daemon is killed, and then the namespace ends; the first process of a process id namespace ends, and all in it is killed.
#[test]
fn a_namespace_ends_without_its_daemon() {
    common::needs_mounts!();
    let place = place();
    let image = place.text("a.img");
    let mount =
        "\"$CCFS\" mount -o \"$WAY\" \"$IMAGE\" \"$DIR\"; echo kept > \"$DIR/f\"; sync \"$DIR/f\"";
    let pid = "pid=$(pgrep -f \"^@ccfs .*-- $IMAGE\"); if grep '[.]ccfs ' /proc/$pid/mountinfo; then exit 9; fi";
    let killed = format!("{mount}; {pid}; kill -9 $pid");
    good(&run(&mut in_space(&place, &[], &killed)));
    ended(&image);
    let checked = ccfs_with(&["fsck", "-p", &image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
    let first = format!("{mount}; {pid}; rm \"$DIR/f\"; echo more > \"$DIR/g\"; sync -f \"$DIR\"");
    good(&run(&mut in_space(
        &place,
        &["-p", "-f", "--mount-proc"],
        &first,
    )));
    ended(&image);
    let checked = ccfs_with(&["fsck", "-p", &image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
    assert_eq!(plain_ext4(&place, &image), ["g"]);
    wait_for_no_loops(&image);
}

/// What others unmount while a daemon runs is unmounted: its copy of their mounts is gone.
#[test]
fn a_daemon_keeps_no_other_mount() {
    common::needs_mounts!();
    let place = place();
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let (other, second) = (place.volume("b.img", "32M"), place.subdir("mnt2"));
    let (foreign, third, memory) = (
        place.text("c.img"),
        place.subdir("mnt3"),
        place.subdir("mnt4"),
    );
    tool("truncate", &["-s", "16M", &foreign]);
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &foreign]);
    kernel_mount(&foreign, &third, "loop");
    tool("mount", &["-t", "tmpfs", "none", &memory]);
    mount(&other, &second);
    mount(&image, &dir);
    let pid = daemon(&dir);
    is_apart(pid);
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    assert!(!table.contains(place.path("").to_str().unwrap()), "{table}");
    for dir in [&second, &third, &memory] {
        umount8(dir);
    }
    // At once, as without the other daemon.
    assert!(plain_ext4(&place, &other).is_empty());
    wait_for_no_loops(&other);
    wait_for_no_loops(&foreign);
    tool("e2fsck", &["-fn", &foreign]);
    assert!(is_running(pid) && !loops_of(&image).is_empty());
    // And the other way round: one that was mounted first is not kept by a later one.
    mount(&other, &second);
    umount8(&dir);
    assert!(plain_ext4(&place, &image).is_empty());
    wait_for_end(pid);
    unmount(&second);
}

/// What a mount lies on is in use by the daemon, as it is by any program that has a file of it open.
#[test]
fn a_daemon_keeps_what_its_image_lies_on() {
    common::needs_mounts!();
    let place = Place::new();
    let (host, below) = (place.text("host.img"), place.subdir("host"));
    tool("truncate", &["-s", "64M", &host]);
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &host]);
    kernel_mount(&host, &below, "loop");
    let (image, dir) = (place.volume("host/a.img", "16M"), place.subdir("mnt"));
    mount(&image, &dir);
    let ran = run(Command::new("umount").arg(&below));
    assert!(ran.code != 0 && ran.err.contains("busy"), "{}", ran.err);
    unmount(&dir);
    umount8(&below);
}

/// The daemon finds its mount where it is, though it does not see it.
#[test]
fn a_signal_unmounts_in_another_namespace() {
    common::needs_mounts!();
    let space = Space::new("", "");
    is_apart(space.daemon);
    good(&space.run("echo kept > \"$DIR/f\""));
    assert_eq!(space.has_mounts(), 1);
    signal(space.daemon, "TERM");
    wait_for_end(space.daemon);
    assert_eq!(space.has_mounts(), 0);
    assert_eq!(plain_ext4(&space.place, &space.place.text("a.img")), ["f"]);
}

/// A file for messages, where the namespaces of a test do not matter.
fn log_of(place: &Place) -> impl Fn() -> String {
    let path = place.text("log");
    move || fs::read_to_string(&path).unwrap_or_default()
}

/// Told where: then the second signal takes all mounts away.
#[test]
fn signals_to_a_volume_that_is_mounted_twice() {
    common::needs_mounts!();
    let logs = Place::new();
    let said = log_of(&logs);
    let space = Space::new(&format!(",log={}", logs.text("log")), "");
    let other = space.place.subdir("other");
    // One in the same namespace, one in another, where somebody has a file open.
    good(&space.run(&format!("mount --bind \"$DIR\" {other}")));
    let copy =
        "exec unshare -m --propagation private sh -ec 'exec 9>\"$DIR/f\"; echo ready; exec cat'";
    let mut user = started(in_space_of(&space.keeper, &space.place, copy));
    let seen = || (space.has_mounts(), seen_by(user.id()).len());
    assert_eq!(seen(), (2, 2));
    signal(space.daemon, "TERM");
    wait_until("it is said", || said().contains("serving goes on"));
    assert!(
        said().contains(&other) && said().contains("(pid "),
        "{}",
        said()
    );
    assert_eq!(seen(), (1, 2));
    signal(space.daemon, "TERM");
    wait_until("all mounts are gone", || seen() == (0, 0));
    assert!(is_running(space.daemon), "a file is open");
    drop(user.stdin.take());
    wait_for(&mut user);
    wait_for_end(space.daemon);
    assert_eq!(plain_ext4(&space.place, &space.place.text("a.img")), ["f"]);
}

/// In use by somebody who is named, wherever that is.
#[test]
fn a_signal_names_who_uses_the_volume() {
    common::needs_mounts!();
    let logs = Place::new();
    let said = log_of(&logs);
    let mut space = Space::new(&format!(",log={}", logs.text("log")), "cd \"$DIR\";");
    signal(space.daemon, "TERM");
    wait_until("it is said", || said().contains("A second signal"));
    let user = format!("(pid {})", space.keeper.id());
    assert!(
        said().contains("in use by") && said().contains(&user),
        "{}",
        said()
    );
    drop(space.keeper.stdin.take());
    wait_for(&mut space.keeper);
    wait_for_end(space.daemon);
}

/// A process in the foreground keeps its namespace, as any other does: a container's first process is asked for by name (`nsenter`).
#[test]
fn a_foreground_mount_keeps_its_namespace() {
    common::needs_mounts!();
    let place = place();
    let image = place.text("a.img");
    let mut command = in_space(
        &place,
        &[],
        "exec \"$CCFS\" mount -f -o \"$WAY\" \"$IMAGE\" \"$DIR\"",
    );
    let mut in_front = || {
        let child = command.spawn().unwrap();
        let mounts = || fs::read_to_string(format!("/proc/{}/mountinfo", child.id())).unwrap();
        wait_until("it mounts", || {
            mounts().contains(&format!(" {} ", place.text("mnt")))
        });
        let is_served = || run(&mut in_space_of(&child, &place, ": >\"$DIR/f\"")).code == 0;
        wait_until("it serves", is_served);
        let daemon = found(&image).unwrap();
        is_apart(daemon);
        (child, daemon)
    };
    // A signal that comes to one of both, or to both.
    for to in ["front", "daemon", "both"] {
        let (mut child, daemon) = in_front();
        if to != "daemon" {
            signal(child.id(), "TERM");
        }
        if to != "front" {
            signal(daemon, "TERM");
        }
        assert!(wait_for(&mut child).success(), "{to}");
        assert_eq!(plain_ext4(&place, &image), ["f"], "{to}");
    }
    // In use: both are asked once, and then once more.
    let (mut child, daemon) = in_front();
    let inside = in_space_of(&child, &place, "exec 9>\"$DIR/f\"; echo ready; exec cat");
    let mut user = started(inside);
    let ask = || [child.id(), daemon].map(|pid| signal(pid, "INT"));
    ask();
    // Longer than a signal takes to be handed on.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(seen_by(user.id()).len(), 1, "asked once");
    ask();
    wait_until("it is detached", || seen_by(user.id()).is_empty());
    drop(user.stdin.take());
    wait_for(&mut user);
    assert!(wait_for(&mut child).success());
    // The one is killed with the other.
    let (mut child, daemon) = in_front();
    child.kill().unwrap();
    wait_for(&mut child);
    wait_for_end(daemon);
    let (mut child, daemon) = in_front();
    signal(daemon, "KILL");
    assert_eq!(wait_for(&mut child).code(), Some(2));
    ended(&image);
    let checked = ccfs_with(&["fsck", "-p", &image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
}

/// In a chroot the whole namespace is not seen, and not kept all the same.
#[test]
fn a_daemon_leaves_from_a_chroot() {
    common::needs_mounts!();
    let place = place();
    let image = place.text("a.img");
    let root = place.subdir("root");
    let text = format!(
        "mount -t tmpfs none {0}; mkdir {0}/top; mount --rbind / {0}/top; cd {0}; mkdir inner; mount --bind / inner\n\
         exec chroot top sh -ec '\"$CCFS\" mount -o \"$WAY\" \"$IMAGE\" \"$DIR\"; echo kept >\"$DIR/f\"; pid=$(pgrep -f \"^@ccfs .*-- $IMAGE\"); \
         cat /proc/$pid/mountinfo'",
        root
    );
    let ran = run(&mut in_space(&place, &[], &text));
    let seen = good(&ran);
    assert!(
        !seen.contains(".ccfs ") && !seen.contains("/inner"),
        "{seen}"
    );
    ended(&image);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
}

/// Where nobody may leave: it is said, and the volume is served all the same.
#[test]
fn a_daemon_that_may_not_leave_says_so() {
    common::needs_mounts!();
    let place = place();
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_chroot", "--inh-caps", "-sys_chroot"]);
    command.args([env!("CARGO_BIN_EXE_ccfs"), "mount", &image, &dir]);
    let ran = run(command.stdin(Stdio::null()));
    good(&ran);
    assert!(
        ran.err.contains("a mount namespace of its own"),
        "{}",
        ran.err
    );
    fs::write(place.path("mnt/f"), "kept").unwrap();
    let pid = daemon(&dir);
    signal(pid, "TERM");
    wait_for_end(pid);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
}

/// Where the namespace of the mount has ended, and a copy of the mount lives on in another one, that is what a signal unmounts.
#[test]
fn a_signal_unmounts_what_is_left_of_the_mount() {
    common::needs_mounts!();
    let mut space = Space::new("", "");
    let copy = "exec unshare -m --propagation private sh -ec 'echo ready; exec cat'";
    let mut other = started(in_space_of(&space.keeper, &space.place, copy));
    good(&space.run("echo kept > \"$DIR/f\""));
    drop(space.keeper.stdin.take());
    wait_for(&mut space.keeper);
    assert_eq!(seen_by(other.id()).len(), 1);
    assert!(is_running(space.daemon));
    signal(space.daemon, "TERM");
    wait_until("the copy is unmounted", || seen_by(other.id()).is_empty());
    wait_for_end(space.daemon);
    drop(other.stdin.take());
    wait_for(&mut other);
    assert_eq!(plain_ext4(&space.place, &space.place.text("a.img")), ["f"]);
}

/// The root of a namespace is in use: the kernel would not unmount it, but make it read-only.
#[test]
fn a_signal_leaves_the_root_of_a_namespace_as_it_is() {
    common::needs_mounts!();
    let logs = Place::new();
    let said = log_of(&logs);
    let place = place();
    let options = format!("$WAY,log={}", logs.text("log"));
    let text = format!(
        "\"$CCFS\" mount -o \"{options}\" \"$IMAGE\" \"$DIR\"; cd \"$DIR\"; mkdir old; pivot_root . old\n\
         echo ready; read -r end"
    );
    let mut keeper = started(in_space(&place, &[], &text));
    let pid = found(&place.text("a.img")).unwrap();
    let roots = || -> Vec<String> {
        let ours = seen_by(keeper.id());
        let is_root = |l: &&String| l.split(' ').nth(4) == Some("/");
        ours.iter().filter(is_root).cloned().collect()
    };
    let is_writable = |line: &String| {
        let options = line.split(' ').next_back().unwrap_or_default();
        options.starts_with("rw")
    };
    assert!(roots().len() == 1 && roots().iter().all(is_writable));
    signal(pid, "TERM");
    wait_until("it is said", || said().contains("A second signal"));
    let root_of = format!("(pid {})", keeper.id());
    assert!(said().contains("it is the root of"), "{}", said());
    assert!(said().contains(&root_of), "{}", said());
    assert!(
        roots().len() == 1 && roots().iter().all(is_writable),
        "{:?}",
        roots()
    );
    signal(pid, "TERM");
    wait_until("it is detached", || roots().is_empty());
    assert!(is_running(pid), "somebody's root");
    drop(keeper.stdin.take());
    wait_for(&mut keeper);
    wait_for_end(pid);
    tool("e2fsck", &["-fn", &place.text("a.img")]);
}

/// Who may not look at other processes finds no mount of theirs, and says so.
#[test]
fn a_daemon_that_may_not_look_says_so() {
    common::needs_mounts!();
    let (place, logs) = (place(), Place::new());
    let said = log_of(&logs);
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]);
    command.args([env!("CARGO_BIN_EXE_ccfs"), "mount", "-o"]);
    command.args([&format!("log={}", logs.text("log")), &image, &dir]);
    good(&run(command.stdin(Stdio::null())));
    let pid = daemon(&dir);
    is_apart(pid);
    signal(pid, "TERM");
    wait_until("it is said", || said().contains("serving goes on"));
    assert!(said().contains("CAP_SYS_PTRACE"), "{}", said());
    assert!(said().contains(&format!("ccfs umount {dir}")), "{}", said());
    unmount(&dir);
    wait_for_end(pid);
    assert!(plain_ext4(&place, &image).is_empty());
}

/// Service managers send SIGHUP together with SIGTERM.
#[test]
fn signals_that_come_together_ask_once() {
    common::needs_mounts!();
    let logs = Place::new();
    let said = log_of(&logs);
    let mut space = Space::new(&format!(",log={}", logs.text("log")), "cd \"$DIR\";");
    let start = Instant::now();
    signal(space.daemon, "TERM");
    wait_until("it is said", || said().contains("A second signal"));
    signal(space.daemon, "HUP");
    if start.elapsed() > Duration::from_millis(900) {
        return println!("skipped: this machine is too slow for two signals in a second");
    }
    // Longer than it takes to be unmounted for good.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!said().contains("out of the tree;"), "{}", said());
    assert_eq!(space.has_mounts(), 1);
    signal(space.daemon, "HUP");
    wait_until("it is detached", || space.has_mounts() == 0);
    drop(space.keeper.stdin.take());
    wait_for(&mut space.keeper);
    wait_for_end(space.daemon);
}

/// A copy of the mount in another namespace: it is said for whom `umount` waits, and what to do; and where the volume is mounted.
#[test]
fn umount_says_for_whom_it_waits() {
    common::needs_mounts!();
    let place = place();
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let copy = |place: &Place| {
        let mut copying = in_space(place, &[], "echo ready; exec cat");
        copying.env("KEEP", place.text("mnt"));
        started(copying)
    };
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), "kept").unwrap();
    let mut keeper = copy(&place);
    let who = format!("cat (pid {})", keeper.id());
    let namespace = fs::read_link(format!("/proc/{}/ns/mnt", keeper.id())).unwrap();
    let namespace = namespace.to_str().unwrap();
    let left = ccfs_with(&["umount", "--timeout", "2", &dir]);
    let way_out = format!("nsenter -t {} -m umount {dir}", keeper.id());
    for said in [
        &who,
        namespace,
        &way_out,
        "still mounted in another mount namespace",
    ] {
        assert_eq!(left.code, 32, "{}", left.err);
        assert!(left.err.contains(said), "{said}: {}", left.err);
    }
    let other = place.subdir("other");
    for args in [
        &["fsck", "-n", &image][..],
        &["fsck", "-p", &image],
        &["release", &image],
        &["inspect", &image],
        &["mkfs", "--force", &image],
        &["ls", &image],
        &["mount", &image, &other],
    ] {
        let ran = ccfs_with(args);
        let said = format!("mounted in another mount namespace on {dir}, as {who} sees it");
        assert!(
            ran.code != 0 && ran.err.contains(&said),
            "{args:?}: {}",
            ran.err
        );
        assert!(ran.err.contains(&way_out), "{args:?}: {}", ran.err);
    }
    good(&run(Command::new("sh").args(["-c", &way_out])));
    assert_eq!(plain_ext4(&place, &image), ["f"]);
    drop(keeper.stdin.take());
    wait_for(&mut keeper);
    // Without a limit it waits for the namespace's end.
    mount(&image, &dir);
    let mut keeper = copy(&place);
    let mut waiting = common::ccfs();
    waiting.args(["umount", &dir]).stderr(Stdio::piped());
    let mut waiting = waiting.spawn().unwrap();
    let mut line = String::new();
    let said = waiting.stderr.as_mut().unwrap();
    BufReader::new(said).read_line(&mut line).unwrap();
    assert!(line.contains(&format!("(pid {})", keeper.id())), "{line}");
    assert!(line.ends_with("waiting for its end\n"), "{line}");
    assert!(waiting.try_wait().unwrap().is_none());
    drop(keeper.stdin.take());
    wait_for(&mut keeper);
    assert!(wait_for(&mut waiting).success());
    assert_eq!(plain_ext4(&place, &image), ["f"]);
}
