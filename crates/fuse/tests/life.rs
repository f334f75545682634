//! The daemon's life as a process of its own: signals, kill -9, a dead mount.
mod common;
use ccfs_engine::{Options, Volume};
use ccfs_fuse::{Home, MountConfig, MountError};
use common::can_mount;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const DIR: &str = "CCFS_TEST_SERVE_DIR";

/// Not a test by itself: the process that the tests below start.
#[test]
fn serve_in_child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    ccfs_fuse::prepare_process();
    ccfs_fuse::clear_dead(&dir.join("mnt")).unwrap();
    let volume = Volume::mount(common::open(&dir.join("image")), Options::default()).unwrap();
    let config = MountConfig {
        transport: common::transport(),
        ..MountConfig::new(dir.join("image"))
    };
    let ready = |_: &ccfs_fuse::Session| {
        fs::write(dir.join("ready"), b"").unwrap();
        Ok::<(), MountError>(())
    };
    ccfs_fuse::serve(volume, Home::stay(), &dir.join("mnt"), &config, ready).unwrap();
}

/// The ways that requests can come here; over io_uring only where the kernel has it.
fn ways() -> Vec<&'static str> {
    match ccfs_fuse::transport::prepare_rings(None) {
        Ok(_) => vec!["dev", "uring"],
        Err(why) => {
            println!("skipped: io_uring: {why}");
            vec!["dev"]
        }
    }
}

struct Daemon {
    work: tempfile::TempDir,
    way: &'static str,
    child: Child,
}

impl Daemon {
    fn new(way: &'static str) -> Daemon {
        let work = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::create_dir(work.path().join("mnt")).unwrap();
        common::make_image(&work.path().join("image"));
        let child = start(work.path(), way);
        Daemon { work, way, child }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn ends_well(&mut self) {
        wait("the daemon ends", || self.ended());
        assert!(self.child.wait().unwrap().success());
        common::fsck(&self.path("image"));
        assert!(!mounted(&self.path("mnt")));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = rustix::mount::unmount(self.path("mnt"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn start(dir: &Path, way: &str) -> Child {
    let _ = fs::remove_file(dir.join("ready"));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serve_in_child", "--nocapture"])
        .env(DIR, dir)
        .env("CCFS_TEST_TRANSPORT", way)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait("the daemon is ready", || {
        assert!(child.try_wait().unwrap().is_none(), "the daemon ended");
        dir.join("ready").exists()
    });
    child
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn mounted(dir: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .contains(dir.to_str().unwrap())
}

/// The kernel detaches a loop device with its last user: programs that other tests are just starting have copies of all descriptors for an
/// instant.
fn wait_for_loops(d: &Daemon, count: usize) {
    wait("the image's loop devices", || {
        loops_of(&d.path("image")) == count
    });
}

fn loops_of(image: &Path) -> usize {
    let out = Command::new("losetup")
        .arg("-j")
        .arg(image)
        .output()
        .unwrap();
    String::from_utf8(out.stdout).unwrap().lines().count()
}

#[test]
fn sigterm_unmounts() {
    if can_mount("sigterm_unmounts") {
        ways().into_iter().for_each(sigterm_unmounts_over);
    }
}

fn sigterm_unmounts_over(way: &'static str) {
    let mut d = Daemon::new(way);
    fs::write(d.path("mnt/f"), b"f").unwrap();
    wait_for_loops(&d, 1);
    d.signal(Signal::TERM);
    d.ends_well();
    wait_for_loops(&d, 0);
}

#[test]
fn sigterm_while_in_use() {
    if can_mount("sigterm_while_in_use") {
        ways().into_iter().for_each(sigterm_while_in_use_over);
    }
}

fn sigterm_while_in_use_over(way: &'static str) {
    let mut d = Daemon::new(way);
    let used = File::create(d.path("mnt/used")).unwrap();
    d.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!d.ended() && mounted(&d.path("mnt")));
    fs::write(d.path("mnt/still"), b"served").unwrap();
    d.signal(Signal::INT);
    wait("the mount leaves the tree", || !mounted(&d.path("mnt")));
    std::io::Write::write_all(&mut &used, b"and written").unwrap();
    assert!(!d.ended());
    drop(used);
    d.ends_well();
}

#[test]
fn killed_daemon() {
    if can_mount("killed_daemon") {
        ways().into_iter().for_each(killed_daemon_over);
    }
}

fn killed_daemon_over(way: &'static str) {
    let mut d = Daemon::new(way);
    let file = File::create(d.path("mnt/kept")).unwrap();
    std::io::Write::write_all(&mut &file, b"synced").unwrap();
    file.sync_all().unwrap();
    d.child.kill().unwrap();
    d.child.wait().unwrap();
    // With io_uring the kernel lets go of the connection a moment after the process has ended.
    wait("the kernel notices", || {
        let error = fs::metadata(d.path("mnt")).err();
        error.and_then(|e| e.raw_os_error()) == Some(libc::ENOTCONN)
    });
    drop(file);
    // A new daemon clears the dead mount, and with it its loop device.
    d.child = start(d.work.path(), d.way);
    wait_for_loops(&d, 1);
    assert_eq!(fs::read(d.path("mnt/kept")).unwrap(), b"synced");
    common::unmount(&d.path("mnt"));
    d.ends_well();
    wait_for_loops(&d, 0);
}

/// The kernel can end a connection at any time (/sys/fs/fuse/connections): then all is brought to rest as well.
#[test]
fn aborted_connection() {
    if can_mount("aborted_connection") {
        ways().into_iter().for_each(aborted_connection_over);
    }
}

fn aborted_connection_over(way: &'static str) {
    let mut d = Daemon::new(way);
    fs::write(d.path("mnt/f"), b"f").unwrap();
    let stat = rustix::fs::stat(d.path("mnt")).unwrap();
    // The directory's name is the device number as the kernel packs it.
    let number =
        u64::from(rustix::fs::major(stat.st_dev)) << 20 | u64::from(rustix::fs::minor(stat.st_dev));
    let connections = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount(c"none", connections.path(), c"fusectl", flags, None).unwrap();
    let aborted = fs::write(
        connections.path().join(number.to_string()).join("abort"),
        b"1",
    );
    common::unmount(connections.path());
    aborted.unwrap();
    wait("the daemon ends", || d.ended());
    assert!(d.child.wait().unwrap().success());
    common::fsck(&d.path("image"));
}

/// A loop device of the test's own.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Between the look whether a block device is free and the mount the kernel can mount it: then nobody else serves it, as plain FUSE either.
#[test]
fn a_device_that_the_kernel_claims_meanwhile_is_not_served() {
    if !can_mount("a_device_that_the_kernel_claims_meanwhile_is_not_served") {
        return;
    }
    let work = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, mnt) = (work.path().join("image"), work.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    common::make_image(&image);
    let device = common::open(&image);
    let out = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&image)
        .output()
        .unwrap();
    let node = Loop(String::from_utf8(out.stdout).unwrap().trim().to_string());
    let mut exclusive = File::options();
    std::os::unix::fs::OpenOptionsExt::custom_flags(exclusive.read(true), libc::O_EXCL);
    let claim = exclusive.open(&node.0).unwrap();
    let volume = Volume::mount(device, Options::default()).unwrap();
    let config = MountConfig {
        transport: common::transport(),
        ..MountConfig::new(&node.0)
    };
    let refused = ccfs_fuse::Session::mount(volume.clone(), &mnt, &config).err();
    let text = refused.expect("a second user").to_string();
    assert!(text.contains("resource busy"), "{text}");
    assert!(!mounted(&mnt));
    drop(claim);
    volume.unmount().unwrap();
}
