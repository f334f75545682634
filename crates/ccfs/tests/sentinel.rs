//! Sync calls about the whole volume where the kernel tells the daemon nothing of them (`ccfs_fuse::sentinel`). The daemon is told to
//! take this kernel for such a one; `under_linux_6_1` in the tests of mounts looks on one that is.
mod common;
use ccfs_testkit::mounts::apart;
use common::{
    PATIENCE, Place, Ran, ccfs, ccfs_with, daemon, is_running, plain_ext4, run, signal, stop, tool,
    unmount, wait_for, wait_for_end, wait_for_no_loops, wait_until,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn mount_with(options: &str, target: &str, dir: &str) -> Ran {
    let transport = std::env::var("CCFS_TEST_TRANSPORT").unwrap_or("auto".into());
    let options = format!("{options},transport={transport}");
    let mut command = ccfs();
    command.env("CCFS_TEST_OLD_KERNEL", "1");
    run(command.args(["mount", "-o", &options, target, dir]))
}

/// Nothing is committed without a sync call.
fn mount(target: &str, dir: &str) -> u32 {
    let ran = mount_with("commit=3600", target, dir);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.err.contains("sync"), "no warning: {}", ran.err);
    daemon(dir)
}

fn status(dir: &str) -> serde_json::Value {
    let ran = ccfs_with(&["status", "--json", dir]);
    serde_json::from_str(&ran.out).unwrap()
}

/// The source of the mount.
fn source(dir: &str) -> String {
    tool("findmnt", &["-n", "-o", "SOURCE", dir]).trim().into()
}

fn kill(pid: u32) {
    signal(pid, "KILL");
    wait_for_end(pid);
}

/// syncfs(2), which may fail.
fn sync(dir: &str) -> Ran {
    run(Command::new("sync").args(["-f", dir]))
}

/// The process that makes pages dirty for a daemon.
fn dirtier(daemon: u32) -> Option<u32> {
    child(daemon, "ccfs-dirtier")
}

fn child(daemon: u32, name: &str) -> Option<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.find(|pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        stat.contains(&format!("({name})")) && fields.nth(1) == Some(&daemon.to_string())
    })
}

/// A loop device of the test's own.
struct Attached(String);

impl Attached {
    fn new(image: &str) -> Attached {
        let device = tool("losetup", &["--find", "--show", image]);
        Attached(device.trim().to_string())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A daemon that is stopped, and killed whatever becomes of the test: sync(2) of the machine waits for it.
struct Stopped(u32);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-KILL", &self.0.to_string()])
            .status();
    }
}

/// Each of these calls, and the daemon is killed right after it.
fn calls_are_durable(target: &str, dir: &str) {
    type Call = fn(&str);
    let calls: [(&str, Call); 4] = [
        ("syncfs", |dir| {
            rustix::fs::syncfs(File::open(dir).unwrap()).unwrap();
        }),
        ("sync -f", |dir| drop(tool("sync", &["-f", dir]))),
        ("sync", |_| rustix::fs::sync()),
        ("remount", |dir| {
            let flags = rustix::mount::MountFlags::RDONLY;
            rustix::mount::mount_remount(dir, flags, "").unwrap();
        }),
    ];
    for (n, (name, call)) in calls.into_iter().enumerate() {
        let pid = mount(target, dir);
        let told = &status(dir)["mount"];
        assert_eq!(told["syncfs_works"], true, "{told}");
        assert_eq!(told["syncfs_by"], "sentinel", "{told}");
        assert_eq!(told["syncfs_reason"], serde_json::Value::Null, "{told}");
        let file = format!("{dir}/f{n}");
        fs::write(&file, vec![n as u8; 300_000]).unwrap();
        call(dir);
        kill(pid);
        mount(target, dir);
        let found = fs::read(&file).is_ok_and(|found| found == vec![n as u8; 300_000]);
        assert!(found, "durable after {name}");
        unmount(dir);
        let left = dirtier(pid);
        assert_eq!(left, None, "a killed daemon's process stays");
    }
}

#[test]
fn sync_calls_reach_a_daemon_that_the_kernel_does_not_tell() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("an image.img", "32M"), place.subdir("mnt"));
    calls_are_durable(&image, &dir);
    wait_for_no_loops(&image);
    assert_eq!(plain_ext4(&place, &image).len(), 4);
}

/// It is mounted over a loop device then, by which everybody finds it, and claimed by the daemon.
#[test]
fn the_same_of_a_block_device() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let device = Attached::new(&image);
    let device = device.0.as_str();
    let claim = || {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_EXCL).open(device)
    };
    calls_are_durable(device, &dir);
    let pid = mount(device, &dir);
    assert_ne!(source(&dir), device);
    let behind = source(&dir).replace("/dev/", "/sys/block/") + "/loop/backing_file";
    assert_eq!(fs::read_to_string(behind).unwrap().trim(), device);
    let busy = claim().expect_err("nobody else may claim it");
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    let again = mount_with("commit=3600", device, &place.subdir("other"));
    assert!(again.err.contains("already mounted on"), "{}", again.err);
    for command in [&["fsck", "-p", device][..], &["mkfs", "--force", device]] {
        let ran = ccfs_with(command);
        assert_ne!(ran.code, 0, "{command:?}: {}", ran.err);
    }
    let loop_device = source(&dir);
    unmount(&dir);
    // No other than the daemon is waited for, and it has ended.
    let start = Instant::now();
    while claim().is_err() {
        assert!(start.elapsed() < PATIENCE, "it stays claimed");
    }
    wait_for_end(pid);
    tool("e2fsck", &["-fn", device]);
    let behind = loop_device.replace("/dev/", "/sys/block/") + "/loop/backing_file";
    assert_ne!(
        fs::read_to_string(behind).unwrap_or_default().trim(),
        device
    );
}

/// The files that abort a daemon's connections, once each; they are open in the process that does it.
fn aborts(daemon: u32) -> Vec<PathBuf> {
    let aborter = child(daemon, "ccfs-killed").expect("who aborts them");
    let open = fs::read_dir(format!("/proc/{aborter}/fd"))
        .unwrap()
        .flatten();
    let mut aborts = BTreeMap::new();
    for fd in open.map(|fd| fd.path()) {
        if let Ok(file) = fs::read_link(&fd)
            && file.ends_with("abort")
        {
            aborts.insert(file, fd);
        }
    }
    aborts.into_values().collect()
}

/// A killed daemon that cannot end can wait for either of its connections.
#[test]
fn both_connections_are_aborted_after_a_kill() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let aborts = aborts(mount(&image, &dir));
    assert_eq!(aborts.len(), 2, "{aborts:?}");
    unmount(&dir);
    wait_for_no_loops(&image);
}

/// Calls come to nobody then, and succeed but for one: `status` says so.
#[test]
fn an_aborted_connection_is_told() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let pid = mount(&image, &dir);
    fs::write(format!("{dir}/f"), "x").unwrap();
    // The mount's own connection has the loop device's number.
    let loop_device = fs::metadata(&dir).unwrap().dev();
    let (major, minor) = (
        rustix::fs::major(loop_device),
        rustix::fs::minor(loop_device),
    );
    let own = (major << 20 | minor).to_string();
    let is_own = |file: &Path| file.parent().is_some_and(|dir| dir.ends_with(&own));
    let mut others = aborts(pid);
    others.retain(|fd| !is_own(&fs::read_link(fd).unwrap()));
    assert_eq!(others.len(), 1, "{others:?}");
    fs::write(&others[0], "1").unwrap();
    let told = || status(&dir)["mount"].clone();
    wait_until("it is told", || told()["syncfs_works"] == false);
    let why = told()["syncfs_reason"].clone();
    assert!(why.as_str().unwrap().contains("aborted"), "{why}");
    assert_ne!(sync(&dir).code, 0, "the one that finds the page");
    unmount(&dir);
    wait_for_end(pid);
    wait_for_no_loops(&image);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
}

/// Whoever waits in a sync call for a daemon that is killed is told so, soon.
#[test]
fn a_sync_call_in_flight_fails_with_a_killed_daemon() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    for (args, fails) in [(vec!["-f", &dir], true), (vec![], false)] {
        let pid = mount(&image, &dir);
        // From now on this kernel asks for no syncfs.
        tool("sync", &["-f", &dir]);
        fs::write(format!("{dir}/f"), "x").unwrap();
        // What the kernel knows it does not ask when the directory is opened.
        fs::metadata(&dir).unwrap();
        let stopped = Stopped(pid);
        stop(pid);
        let mut sync = Command::new("sync")
            .args(&args)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let waits = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", sync.id())).unwrap();
            stat.contains(") D ")
        };
        wait_until("it does not wait", waits);
        drop(stopped);
        let status = wait_for(&mut sync);
        // sync(2) tells of no error.
        assert_eq!(status.success(), !fails, "sync {args:?}");
        wait_for_end(pid);
        let cleared = ccfs_with(&["umount", &dir]);
        assert!(cleared.err.contains("was killed"), "{}", cleared.err);
        wait_for_no_loops(&image);
        tool("sync", &[]);
    }
    mount(&image, &dir);
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

/// The volume cannot be written: the caller is told.
#[test]
fn a_sync_call_fails_with_the_volume() {
    common::needs_mounts!();
    let place = Place::new();
    let (small, dir) = (place.subdir("small"), place.subdir("mnt"));
    tool("mount", &["-t", "tmpfs", "-o", "size=24M", "none", &small]);
    let image = format!("{small}/a.img");
    let made = ccfs_with(&["mkfs", "-s", "128M", "--sparse", &image]);
    assert_eq!(made.code, 0, "{}", made.err);
    let pid = mount(&image, &dir);
    tool("sync", &["-f", &dir]);
    // More than there is room for.
    let _ = fs::write(format!("{dir}/f"), vec![7; 60 << 20]);
    let first = sync(&dir);
    assert_ne!(first.code, 0, "it succeeded");
    assert!(first.err.contains("error"), "{}", first.err);
    assert_ne!(sync(&dir).code, 0, "the next one succeeded");
    kill(pid);
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
}

/// Without the process that makes pages dirty the next call fails, and `status` says what works.
#[test]
fn a_lost_helper_is_told() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let pid = mount(&image, &dir);
    fs::write(format!("{dir}/f"), "x").unwrap();
    tool("sync", &["-f", &dir]);
    let helper = dirtier(pid).expect("a process that makes pages dirty");
    // Signals to all processes of a service are for the daemon.
    signal(helper, "TERM");
    tool("sync", &["-f", &dir]);
    assert!(is_running(helper));
    kill(helper);
    let told = sync(&dir);
    assert_ne!(told.code, 0, "it succeeded");
    let told = &status(&dir)["mount"];
    assert_eq!(told["syncfs_works"], false, "{told}");
    assert_eq!(told["syncfs_by"], serde_json::Value::Null, "{told}");
    assert!(
        told["syncfs_reason"].as_str().unwrap().contains("dirtier"),
        "{told}"
    );
    let shown = ccfs_with(&["status", &dir]);
    assert!(shown.out.contains("WARNING"), "{}", shown.out);
    unmount(&dir);
    wait_for_end(pid);
    wait_for_no_loops(&image);
    assert_eq!(plain_ext4(&place, &image), ["f"]);
}

/// One that is only stopped holds a call for seconds and fails it; when it goes on sync calls work again.
#[test]
fn a_stopped_helper_goes_on() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let pid = mount(&image, &dir);
    let works = || status(&dir)["mount"]["syncfs_works"] == true;
    let helper = dirtier(pid).expect("a process that makes pages dirty");
    stop(helper);
    fs::write(format!("{dir}/before"), "x").unwrap();
    let told = sync(&dir);
    assert_ne!(told.code, 0, "it succeeded");
    assert!(!works(), "{:?}", status(&dir)["mount"]);
    signal(helper, "CONT");
    // Until it has made the page dirty a call finds nothing to write.
    wait_until("sync calls come again", || {
        tool("sync", &["-f", &dir]);
        works()
    });
    for round in 0..3 {
        fs::write(format!("{dir}/after{round}"), "x").unwrap();
        tool("sync", &["-f", &dir]);
    }
    kill(pid);
    mount(&image, &dir);
    for name in ["before", "after0", "after1", "after2"] {
        assert!(Path::new(&format!("{dir}/{name}")).exists(), "{name}");
    }
    unmount(&dir);
    wait_for_no_loops(&image);
}

/// Many at once: each returns when what its caller did before is durable.
#[test]
fn sync_calls_side_by_side() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    let pid = mount(&image, &dir);
    // In smaller blocks a page comes as several WRITEs where the loop driver does not join them, and somebody waits for himself.
    let queue = source(&dir).replace("/dev/", "/sys/block/") + "/queue";
    let block = fs::read_to_string(format!("{queue}/logical_block_size")).unwrap();
    let page = rustix::param::page_size().to_string();
    assert_eq!(block.trim(), page, "a page is one block");
    let end = Instant::now() + Duration::from_secs(2);
    let count = |n: usize| {
        let root = File::open(&dir).unwrap();
        let mut done = 0u32;
        // A fast machine must not fill the volume.
        while done == 0 || Instant::now() < end && done < 1500 {
            fs::write(format!("{dir}/{n}-{done}"), done.to_string()).unwrap();
            rustix::fs::syncfs(&root).unwrap();
            done += 1;
        }
        done
    };
    let done: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|n| scope.spawn(move || count(n))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    kill(pid);
    mount(&image, &dir);
    assert!(done.iter().all(|n| *n > 0), "{done:?}");
    println!("syncfs calls of six threads in 2 s: {done:?}");
    for (n, done) in done.iter().enumerate() {
        for i in 0..*done {
            let found = fs::read_to_string(format!("{dir}/{n}-{i}"));
            assert_eq!(found.ok(), Some(i.to_string()), "{n}-{i}");
        }
    }
    unmount(&dir);
    wait_for_no_loops(&image);
}

/// Without loop devices it is a plain FUSE mount with its warning, as ever.
#[test]
fn without_loop_devices_it_warns() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let script = r#"set -e
        mount --bind /dev/null /dev/loop-control
        "$0" mount "$1" "$2"
        "$0" status --json "$2"
        "$0" umount "$2""#;
    let program = env!("CARGO_BIN_EXE_ccfs");
    let mut inside = apart(&[], &["sh", "-c", script, program, &image, &dir]);
    inside
        .env("CCFS_TEST_OLD_KERNEL", "1")
        .env("CCFS_LOG_KMSG", "/dev/null");
    let ran = run(&mut inside);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("syncfs(2), sync(2)"), "{}", ran.err);
    let told: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(told["mount"]["syncfs_works"], false, "{told}");
}

/// mount(8) has mount.fuse(8) look after a plain FUSE mount that has no helper of its own, and that runs `ccfs` of the usual places.
#[test]
fn mount_fuse_remounts_a_plain_fuse_mount() {
    common::needs_mounts!();
    if Path::new("/sbin/mount.fuse.ccfs").exists() || !Path::new("/sbin/mount.fuse").exists() {
        println!("skipped: mount(8) does not ask mount.fuse(8) here");
        return;
    }
    let place = Place::new();
    let (image, dir) = (place.volume("an image.img", "32M"), place.subdir("mnt"));
    let script = r#"set -e
        mount --bind /dev/null /dev/loop-control
        mount -t tmpfs none /usr/local/bin
        cp "$2" /usr/local/bin/ccfs
        ccfs mount -o commit=3600 "$0" "$1"
        echo synced >"$1/f"
        mount -o remount,ro "$1"
        grep " $1 fuse.ccfs ro" /proc/mounts
        kill -KILL "$(ccfs status --json "$1" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)"
        ccfs mount "$0" "$1"
        cat "$1/f"
        mount -o remount,noatime,commit=7 "$1"
        ccfs status --json "$1" | grep '"commit": "7"'
        umount -l /usr/local/bin
        if mount -o remount,rw "$1"; then exit 1; fi
        "$2" umount "$1""#;
    let program = env!("CARGO_BIN_EXE_ccfs");
    let mut inside = apart(&[], &["sh", "-c", script, &image, &dir, program]);
    inside.env("CCFS_LOG_KMSG", "/dev/null");
    let ran = run(&mut inside);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("synced"), "{}{}", ran.out, ran.err);
}
