//! The life of a mount, from the command line: daemon, helpers, crash, recovery, unmount.
mod common;
use common::{
    PATIENCE, Place, ccfs_with, daemon, is_mounted, loops_of, mount, plain_ext4, run, signal, stop,
    tool, unmount, wait_for, wait_for_end, wait_for_no_loops, wait_until,
};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn umount_leaves_plain_ext4_and_no_loop_device() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (
        place.volume("an image.img", "32M"),
        place.subdir("a mount point"),
    );
    for (round, own) in [(0, true), (1, false)] {
        mount(&image, &dir);
        let pid = daemon(&dir);
        assert!(
            !loops_of(&image).is_empty(),
            "an image is mounted by way of a loop device"
        );
        fs::write(place.path(&format!("a mount point/f{round}")), "x").unwrap();
        if own {
            unmount(&dir);
        } else {
            common::umount8(&dir);
        }
        assert_eq!(plain_ext4(&place, &image).len(), round + 1);
        wait_for_no_loops(&image);
        wait_for_end(pid);
    }
}

/// A loop device that goes with its last user, who is somebody else: the volume is at rest, and nobody waits for that.
#[test]
fn umount_does_not_wait_for_somebody_elses_loop_device() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let device = tool("losetup", &["--find", "--show", &image]);
    let device = device.trim();
    let held = fs::File::open(device).unwrap();
    tool("losetup", &["-d", device]);
    mount(device, &dir);
    let start = Instant::now();
    let ran = ccfs_with(&["umount", &dir]);
    let took = start.elapsed();
    let own = format!("(pid {})", std::process::id());
    assert_eq!(ran.code, 0, "{}", ran.err);
    // Where the mount has a loop device of its own (before Linux 6.18) it is not looked at.
    let is_source = std::env::var_os("CCFS_TEST_OLD_KERNEL").is_none();
    assert_eq!(
        ran.err.contains("still held by") && ran.err.contains(&own),
        is_source,
        "{}",
        ran.err
    );
    // The patience with a device that is only looked at is ten seconds.
    assert!(took < Duration::from_secs(8), "{took:?}");
    drop(held);
    wait_for_no_loops(&image);
    tool("e2fsck", &["-fn", &image]);
}

/// Who asks for the volume's size now and then, as df and monitors do, does not use it.
#[test]
fn umount_beside_df() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut asked = 0u64;
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = rustix::fs::statvfs(&dir);
                asked += 1;
                std::thread::sleep(Duration::from_micros(20));
            }
            asked
        });
        let ran: Vec<_> = (0..20)
            .map(|_| {
                mount(&image, &dir);
                let ran = ccfs_with(&["umount", &dir]);
                if ran.code != 0 {
                    unmount(&dir);
                }
                (ran.code, ran.err)
            })
            .collect();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(asked.join().unwrap() > 100);
        let failed: Vec<_> = ran.iter().filter(|(code, _)| *code != 0).collect();
        assert!(failed.is_empty(), "{failed:?}");
    });
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn the_daemon_is_detached_and_named_for_systemd() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    // Relative names, and no descriptor of ours stays with the daemon: `output()` returns.
    // A script may hold locks and pipes by any of its descriptors.
    let script = "exec 9>held 8>&1 && exec \"$0\" mount a.img mnt";
    let ran = run(Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_ccfs")])
        .stdin(Stdio::null())
        .current_dir(place.path("")));
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    let pid = daemon(&dir);
    for fd in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let fd = fd.unwrap().path();
        let to = fs::read_link(&fd).unwrap_or_default();
        let text = to.to_str().unwrap();
        let is_ours = text.starts_with("pipe:") || text.ends_with("/held");
        assert!(!is_ours, "{} is {text}", fd.display());
    }
    let name = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(name.starts_with(b"@"), "{}", String::from_utf8_lossy(&name));
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(),
        Some("/")
    );
    let session = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session: u32 = session
        .rsplit(") ")
        .next()
        .unwrap()
        .split(' ')
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(session, pid, "the daemon leads a session of its own");
    for fd in [1, 2] {
        let to = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        assert_eq!(to.to_str(), Some("/dev/null"));
    }
    unmount(&dir);
    drop(image);
}

#[test]
fn signals_commit_and_unmount() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    for (n, name) in ["TERM", "INT", "HUP"].iter().enumerate() {
        mount(&image, &dir);
        fs::write(place.path(&format!("mnt/{name}")), "before the signal").unwrap();
        let pid = daemon(&dir);
        signal(pid, name);
        wait_for_end(pid);
        assert!(!is_mounted(&dir), "SIG{name}");
        assert_eq!(plain_ext4(&place, &image).len(), n + 1);
    }
}

#[test]
fn a_signal_does_not_pull_the_volume_from_under_a_user() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    let mut open = fs::File::create(place.path("mnt/f")).unwrap();
    let busy = ccfs_with(&["umount", &dir]);
    assert_eq!(busy.code, 32);
    assert!(busy.err.contains("in use by"), "{}", busy.err);
    let pid = daemon(&dir);
    signal(pid, "TERM");
    std::thread::sleep(Duration::from_millis(300));
    open.write_all(b"still served").unwrap();
    // Two signals that arrive together count as one.
    let start = Instant::now();
    while is_mounted(&dir) {
        assert!(start.elapsed() < PATIENCE, "the mount stays in the tree");
        signal(pid, "TERM");
        std::thread::sleep(Duration::from_millis(300));
    }
    open.write_all(b", also detached").unwrap();
    drop(open);
    wait_for_end(pid);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
    mount(&image, &dir);
    assert_eq!(
        fs::read_to_string(place.path("mnt/f")).unwrap(),
        "still served, also detached"
    );
    unmount(&dir);
}

#[test]
fn mount_clears_what_a_killed_daemon_left() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir, other) = (
        place.volume("a.img", "32M"),
        place.subdir("mnt"),
        place.subdir("other"),
    );
    // Somebody stands in the dead mount; nobody does; the next mount is elsewhere.
    for (n, (user, next)) in [(true, &dir), (false, &dir), (false, &other)]
        .into_iter()
        .enumerate()
    {
        mount(&image, &dir);
        fs::write(place.path(&format!("mnt/f{n}")), "synced").unwrap();
        tool("sync", &["-f", &dir]);
        let mut sleeper = user.then(|| {
            Command::new("sleep")
                .arg("60")
                .current_dir(&dir)
                .spawn()
                .unwrap()
        });
        let pid = daemon(&dir);
        signal(pid, "KILL");
        wait_for_end(pid);
        // `mount` is the first to notice.
        mount(&image, next);
        assert_eq!(
            fs::read_to_string(format!("{next}/f{n}")).unwrap(),
            "synced"
        );
        unmount(next);
        if let Some(sleeper) = &mut sleeper {
            sleeper.kill().unwrap();
            wait_for(sleeper);
        }
        assert!(!is_mounted(&dir));
        assert_eq!(plain_ext4(&place, &image).len(), n + 1);
        wait_for_no_loops(&image);
    }
}

/// Lets a process go on, whatever becomes of the test.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        stop(pid);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

/// Whoever asks a daemon that is stopped hangs, and cannot even be killed: nobody does.
#[test]
fn a_stopped_daemon_is_not_asked() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, other) = (place.volume("a.img", "32M"), place.volume("b.img", "32M"));
    let (dir, second) = (place.subdir("mnt"), place.subdir("mnt2"));
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), "kept").unwrap();
    let stopped = Stopped::new(daemon(&dir));
    for (args, code, word) in [
        (&["mount", &image, &second][..], 32, "already mounted"),
        (&["mount", &other, &dir], 32, "another volume"),
        (
            &["mount", "-o", "remount,ro", &image, &dir],
            32,
            "kill -CONT",
        ),
        (&["umount", &dir], 32, "kill -CONT"),
        (&["status", &dir], 1, "kill -CONT"),
        (&["stream", "list", &dir], 1, "kill -CONT"),
        (&["scrub", &dir], 8, "kill -CONT"),
        (&["top", "--once", &dir], 1, "kill -CONT"),
        (&["fsck", "-n", &image], 8, "in use"),
        (&["ls", &image], 1, "mounted on"),
        (&["mkfs", "--force", &image], 1, "mounted on"),
    ] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let ran = std::thread::scope(|scope| {
            scope.spawn(move || sender.send(ccfs_with(args)));
            let ran = receiver.recv_timeout(PATIENCE);
            if ran.is_err() {
                signal(stopped.0, "CONT");
            }
            ran
        });
        let ran = ran.unwrap_or_else(|_| panic!("{args:?} waits for the daemon"));
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(ran.err.contains(word), "{args:?}: {}", ran.err);
    }
    drop(stopped);
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "kept");
    unmount(&dir);
    plain_ext4(&place, &image);
}

#[test]
fn umount_of_a_dead_mount_clears_it_and_names_the_way_out() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), "x").unwrap();
    let pid = daemon(&dir);
    signal(pid, "KILL");
    wait_for_end(pid);
    let status = ccfs_with(&["status", &dir]);
    assert!(
        status.code == 1 && status.err.contains("daemon"),
        "{}",
        status.err
    );
    let ran = ccfs_with(&["umount", &dir]);
    assert!(
        ran.code == 32 && ran.err.contains("ccfs fsck -p"),
        "{}",
        ran.err
    );
    assert!(!is_mounted(&dir));
    // What others say of a volume in flight (docs/using/trouble.md, "After a crash").
    let kernel = run(Command::new("mount").args(["-o", "loop", "-t", "ext4", &image, &dir]));
    assert!(
        kernel.code == 32 && kernel.err.contains("bad superblock"),
        "{}",
        kernel.err
    );
    let e2fsck = run(Command::new("e2fsck").args(["-p", &image]));
    assert!(e2fsck.code & 8 != 0, "e2fsck: {}", e2fsck.code);
    assert!(format!("{}{}", e2fsck.out, e2fsck.err).contains("FEATURE_I30"));
    assert!(tool("blkid", &["-p", &image]).contains("TYPE=\"ext4\""));
    assert_eq!(ccfs_with(&["fsck", "-p", &image]).code, 0);
    assert_eq!(ccfs_with(&["fsck", "-p", &image]).code, 0, "again");
    plain_ext4(&place, &image);
}

#[test]
fn mount_as_the_helper_of_mount_8() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let helper = |name: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccfs"));
        run(command
            .arg0(format!("/sbin/{name}"))
            .args(args)
            .stdin(Stdio::null()))
    };
    let ran = helper(
        "mount.ccfs",
        &[&image, &dir, "-o", "rw,noatime,nosuid,commit=9"],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|l| l.contains(&dir)).unwrap();
    assert!(
        line.contains("nosuid") && line.contains("noatime"),
        "{line}"
    );
    fs::write(place.path("mnt/f"), "x").unwrap();
    common::umount8(&dir);
    assert_eq!(
        helper("mount.ccfs", &[&image, &dir, "-o", "frobnicate"]).code,
        1
    );
    assert_eq!(
        helper("mount.ccfs", &[&image, &dir, "-so", "frobnicate,ro"]).code,
        0
    );
    assert_eq!(
        fs::write(place.path("mnt/g"), "x")
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EROFS)
    );
    common::umount8(&dir);
    assert_eq!(helper("fsck.ccfs", &["-a", "-C0", &image]).code, 0);
    assert_eq!(helper("fsck.ccfs", &["-Q", &image]).code, 16);
    let made = helper(
        "mkfs.ccfs",
        &["-L", "helped", "-s", "32M", &place.text("b.img")],
    );
    assert_eq!(made.code, 0, "{}", made.err);
    plain_ext4(&place, &image);
}

#[test]
fn a_foreground_mount_serves_until_it_is_unmounted() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let mut child = common::ccfs()
        .args(["mount", "-f", &image, &dir])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !is_mounted(&dir) {
        assert!(start.elapsed() < PATIENCE && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(place.path("mnt/f"), "x").unwrap();
    unmount(&dir);
    assert!(wait_for(&mut child).success());
    let said: Vec<String> = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .collect();
    // Nothing but its beginning and its end.
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("ccfs: mounted "), "{said:?}");
    assert!(said[1].starts_with("ccfs: unmounted "), "{said:?}");
    assert_eq!(plain_ext4(&place, &image), ["f"]);
}

#[test]
fn killed_mounts_and_checks_can_be_run_again() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    mount(&image, &dir);
    for n in 0..200 {
        fs::write(place.path(&format!("mnt/f{n}")), vec![n as u8; 20_000]).unwrap();
    }
    tool("sync", &["-f", &dir]);
    let pid = daemon(&dir);
    signal(pid, "KILL");
    wait_for_end(pid);
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    for step in 0..30u64 {
        let command = if step % 2 == 0 {
            ["fsck", "-p"]
        } else {
            ["mount", "-f"]
        };
        let mut child = common::ccfs();
        child
            .args(command)
            .arg(&image)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if step % 2 == 1 {
            child.arg(&dir);
        }
        let mut child = child.spawn().unwrap();
        std::thread::sleep(Duration::from_micros(step * 700));
        child.kill().unwrap();
        wait_for(&mut child);
    }
    mount(&image, &dir);
    for n in 0..200 {
        let bytes = fs::read(place.path(&format!("mnt/f{n}"))).unwrap();
        assert!(bytes == vec![n as u8; 20_000], "f{n}");
    }
    unmount(&dir);
    assert_eq!(plain_ext4(&place, &image).len(), 200);
}

#[test]
fn a_volume_grows_at_rest() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), "before").unwrap();
    let blocks = || {
        tool("stat", &["-f", "-c", "%b", &dir])
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let before = blocks();
    // While it is mounted, nobody else changes it.
    let busy = run(Command::new("resize2fs").args([&image, "128M"]));
    assert_ne!(busy.code, 0);
    unmount(&dir);
    fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(128 << 20)
        .unwrap();
    tool("e2fsck", &["-fp", &image]);
    tool("resize2fs", &[&image]);
    mount(&image, &dir);
    assert!(
        blocks() > before + 15_000,
        "{} blocks, before {before}",
        blocks()
    );
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "before");
    fs::write(place.path("mnt/g"), vec![1u8; 80 << 20]).unwrap();
    unmount(&dir);
    assert_eq!(plain_ext4(&place, &image), ["f", "g"]);
}

/// What is done last is never there without what was done before. The README's example is like it (`readme.rs`).
#[test]
fn order_survives_a_crash() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "256M"), place.subdir("mnt"));
    let ran = ccfs_with(&["mount", "-o", "commit=1", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let script = format!(
        "n=0; while n=$((n+1)); echo \"entry $n\" >> {dir}/journal && echo > {dir}/done.$n; do :; done"
    );
    let mut writer = Command::new("sh")
        .args(["-c", &script])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while !Path::new(&dir).join("done.300").exists() {
        assert!(start.elapsed() < PATIENCE, "300 entries");
        std::thread::sleep(Duration::from_millis(50));
    }
    // What was written by now is durable. A fast writer has filled the volume, and then all is.
    let status = || {
        let status = ccfs_with(&["status", "--json", &dir]).out;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let (commits, dirty) = (&status["counters"]["commits"], &status["dirty_bytes"]);
        (commits.as_u64().unwrap(), dirty.as_u64().unwrap())
    };
    let (before, _) = status();
    wait_until("three commits", || {
        let (commits, dirty) = status();
        commits >= before + 3 || dirty == 0
    });
    let pid = daemon(&dir);
    signal(pid, "KILL");
    wait_for_end(pid);
    wait_for(&mut writer);
    mount(&image, &dir);
    let journal = fs::read_to_string(place.path("mnt/journal")).unwrap();
    let entries = journal.lines().count();
    let done = fs::read_dir(&dir).unwrap().filter(|e| {
        e.as_ref()
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .starts_with("done.")
    });
    let done = done.count();
    println!("{entries} entries, {done} done");
    assert!(
        entries > 100 && (entries == done || entries == done + 1),
        "{entries} entries, {done} done"
    );
    // A write over the end of a page is two requests (C2).
    let whole = journal.ends_with('\n');
    assert!(whole || journal.len().is_multiple_of(4096) && entries == done + 1);
    for (n, line) in journal.split_inclusive('\n').enumerate() {
        let entry = format!("entry {}\n", n + 1);
        assert!(entry.starts_with(line), "{line:?}");
    }
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

/// `ccfs umount`, which has to end; again, while somebody looks at the mount in the same moment.
fn umount_that_ends(dir: &str) -> (Option<i32>, String) {
    loop {
        let mut ends = common::ccfs()
            .args(["umount", dir])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let code = wait_for(&mut ends).code();
        let mut told = String::new();
        ends.stderr
            .take()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        if !told.contains("in use by") {
            return (code, told);
        }
    }
}

/// The volume is not at rest while another mount of it is there.
#[test]
fn umount_tells_of_a_bind_mount() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir, other) = (
        place.volume("a.img", "32M"),
        place.subdir("mnt"),
        place.subdir("other"),
    );
    mount(&image, &dir);
    tool("mount", &["--bind", &dir, &other]);
    let (code, told) = umount_that_ends(&dir);
    assert_eq!(code, Some(32), "{told}");
    assert!(
        told.contains("is still mounted on") && told.contains(&other),
        "{told}"
    );
    assert!(!is_mounted(&dir));
    fs::write(place.path("other/file"), "served").unwrap();
    unmount(&other);
    assert_eq!(plain_ext4(&place, &image), ["file"]);
}

/// Who waits for the unmount can mount the volume again before the one who unmounts has looked: that one has done its work.
#[test]
fn umount_does_not_wait_for_the_next_mount() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    for _ in 0..6 {
        mount(&image, &dir);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                while ccfs_with(&["mount", &image, &dir]).code != 0 {
                    assert!(start.elapsed() < 2 * PATIENCE, "it stays unmounted");
                }
            });
            let (code, told) = umount_that_ends(&dir);
            assert_eq!(code, Some(0), "{told}");
        });
        unmount(&dir);
    }
    assert!(plain_ext4(&place, &image).is_empty());
}
