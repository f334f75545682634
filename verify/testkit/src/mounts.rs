//! What is mounted on this machine, and what can be.
use crate::run::{PATIENCE, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A line of a shell for a mount namespace of its own, before anything else: the copies of others' volumes go. A volume that is mounted there
/// still could not be made anew, checked, nor mounted, while that namespace lives. Those on `$KEEP` stay.
const LET_VOLUMES_GO: &str = r#"awk '/[.]ccfs | \/dev\/loop/ && $5 != "/" && $5 != ENVIRON["KEEP"] { print $5 }' /proc/self/mountinfo | xargs -r umount -l"#;

/// A command, which takes further arguments, in a mount namespace of its own without the volumes of others; with options of unshare(1).
/// Every test that begins a namespace does it with this one.
pub fn apart(options: &[&str], command: &[&str]) -> Command {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["-m", "--propagation", "private"])
        .args(options)
        .args(["sh", "-c", &format!("{LET_VOLUMES_GO}; exec \"$@\""), "sh"])
        .args(command);
    unshare
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
        if let Some(why) = $crate::mounts::no_mounts() {
            println!("skipped: {why}");
            return;
        }
    };
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

/// Unmounts with umount(8), and waits until a loop device that goes with the kernel's ext4 has gone. umount(8) returns before that
/// where another mount namespace has a copy of the mount (a daemon that is just starting copies all): its last write comes later then.
pub fn umount8(dir: &str) {
    let device = ext4_device(dir);
    let file = device.as_deref().map(file_behind);
    for attempt in 0.. {
        let ran = run(Command::new("umount").arg(dir));
        if ran.code == 0 {
            break;
        }
        assert!(ran.err.contains("busy") && attempt < 1200, "{}", ran.err);
        std::thread::sleep(Duration::from_millis(50));
    }
    if let (Some(device), Some(file)) = (device, file) {
        let start = Instant::now();
        while !file.is_empty() && file_behind(&device) == file {
            assert!(start.elapsed() < PATIENCE, "{dir}: {file} stays in use");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The file of a loop device in sysfs; empty where there is none.
fn file_behind(device: &Path) -> String {
    std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default()
}

/// The block device, in sysfs, of a kernel's ext4 on `dir`, if it is a loop device that the last user detaches.
fn ext4_device(dir: &str) -> Option<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = table
        .lines()
        .rfind(|l| l.split(' ').nth(4) == Some(dir) && l.contains(" - ext4 "))?;
    let device = Path::new("/sys/dev/block").join(line.split(' ').nth(2)?);
    let auto = std::fs::read_to_string(device.join("loop/autoclear")).ok()?;
    (auto.trim() == "1").then_some(device)
}

/// Mount points at or below `dir`, in the order in which they were mounted.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|l| l.split(' ').nth(4));
    points
        .map(PathBuf::from)
        .filter(|p| p.starts_with(dir))
        .collect()
}

/// Loop devices over files below `dir`.
pub fn loops_below(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    let backed = all.filter(|entry| {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        let file = file.unwrap_or_default();
        let file = file.trim().trim_end_matches(" (deleted)");
        !file.is_empty() && Path::new(file).starts_with(dir)
    });
    backed
        .map(|entry| format!("/dev/{}", entry.file_name().to_string_lossy()))
        .collect()
}

/// How many mounts there are on a directory.
pub fn mounts_on(dir: &str) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dirs = table.lines().map(|l| l.split(' ').nth(4));
    dirs.filter(|d| *d == Some(dir)).count()
}

/// Whether something is mounted on a directory.
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
