//! The systems that are compared: how each is made, mounted and unmounted.
use crate::guard::{self, WorkDir, loops_below, mounts_below};
use crate::{Because, Result};
use clap::ValueEnum;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest mount, unmount or end of a daemon. An unmount brings home what the run left in memory.
const PATIENCE: Duration = Duration::from_secs(300);

/// Nothing is left for the background, and no image gets holes.
const MKE2FS_EXTENDED: &str = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum System {
    Ccfs,
    /// e2fsprogs' ext4 in FUSE.
    Fuse2fs,
    /// The kernel's ext4, data=ordered, on a loop device with direct I/O where it can be had.
    Ext4,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            System::Ccfs => "ccfs",
            System::Fuse2fs => "fuse2fs",
            System::Ext4 => "ext4",
        }
    }

    /// Why this machine cannot mount it.
    pub fn missing(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("mounting needs root".into());
        }
        if self != System::Ext4 && !Path::new("/dev/fuse").exists() {
            return Some("there is no /dev/fuse".into());
        }
        if self != System::Fuse2fs && !Path::new("/dev/loop-control").exists() {
            return Some("there are no loop devices".into());
        }
        match self {
            System::Ccfs => ccfs_program().err(),
            System::Fuse2fs => {
                (!have("fuse2fs")).then(|| "fuse2fs is not installed (package fuse2fs)".into())
            }
            System::Ext4 => (!have("mke2fs")).then(|| "mke2fs is not installed".into()),
        }
    }

    /// Which version, in a few words.
    pub fn version(self) -> String {
        let output = match self {
            System::Ccfs => ccfs_program().map(|p| output_of(Command::new(p).arg("version"))),
            System::Fuse2fs => Ok(output_of(Command::new("fuse2fs").arg("-V"))),
            System::Ext4 => return "the kernel's".into(),
        };
        let text = output.unwrap_or_default();
        text.lines().next().unwrap_or("?").trim().to_string()
    }
}

fn output_of(command: &mut Command) -> String {
    let Ok(out) = command.stdin(Stdio::null()).output() else {
        return String::new();
    };
    let text = if out.stdout.is_empty() {
        out.stderr
    } else {
        out.stdout
    };
    String::from_utf8_lossy(&text).into_owned()
}

/// A program in PATH or in the sbin directories.
pub fn have(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':')
        .any(|d| Path::new(d).join(program).is_file())
}

/// The program `ccfs`: `CCFS_BIN`, or what the same build made (beside this program or, for tests, one directory up).
pub fn ccfs_program() -> Result<PathBuf> {
    if let Some(set) = std::env::var_os("CCFS_BIN") {
        return Ok(PathBuf::from(set));
    }
    let me = std::env::current_exe().because("own path")?;
    let beside = me.ancestors().skip(1).take(2).map(|d| d.join("ccfs"));
    beside
        .into_iter()
        .find(|p| p.is_file())
        .ok_or_else(|| "ccfs is not built: cargo build --release -p ccfs".into())
}

/// Runs a program; its error is what it said.
fn check(command: &mut Command) -> Result<String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let held = guard::hold();
    let out = command.stdin(Stdio::null()).output().because(&shown)?;
    drop(held);
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&out.stderr);
    Err(format!("{shown}: {}: {stdout}{stderr}", out.status))
}

/// An image of one system. Its blocks are allocated and written once; every mkfs uses them again.
pub struct Image {
    pub system: System,
    image: PathBuf,
    mnt: PathBuf,
    log: PathBuf,
}

impl Image {
    pub fn new(work: &WorkDir, system: System, bytes: u64) -> Result<Image> {
        let at = |suffix: &str| work.path().join(format!("{}{suffix}", system.name()));
        let image = Image {
            system,
            image: at(".img"),
            mnt: at(""),
            log: at(".log"),
        };
        std::fs::create_dir(&image.mnt).because(image.mnt.display())?;
        // Written, not only reserved: the host file system would have to convert reserved extents during the first round.
        let mut file = File::create_new(&image.image).because(image.image.display())?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            file.write_all(&zeros).because("filling an image")?;
        }
        file.sync_all().because("filling an image")?;
        Ok(image)
    }

    /// A fresh, empty file system.
    pub fn mkfs(&self) -> Result<()> {
        match self.system {
            System::Ccfs => check(
                Command::new(ccfs_program()?)
                    .args(["mkfs", "--force"])
                    .arg(&self.image)
                    .args(["--", "-E", MKE2FS_EXTENDED]),
            )?,
            System::Ext4 | System::Fuse2fs => check(
                Command::new("mke2fs")
                    .args([
                        "-q",
                        "-F",
                        "-t",
                        "ext4",
                        "-b",
                        "4096",
                        "-E",
                        MKE2FS_EXTENDED,
                    ])
                    .arg(&self.image),
            )?,
        };
        Ok(())
    }

    pub fn mount(&self, work: &WorkDir) -> Result<Mount<'_>> {
        let mut mount = Mount {
            image: self,
            daemon: None,
            direct_io: None,
        };
        match self.system {
            System::Ext4 => {
                let losetup = ["--find", "--show", "--direct-io=on"];
                let device = check(Command::new("losetup").args(losetup).arg(&self.image))?;
                let device = device.trim();
                mount.direct_io = Some(is_direct(device));
                let options = ["-t", "ext4", "-o", "data=ordered"];
                check(
                    Command::new("mount")
                        .args(options)
                        .arg(device)
                        .arg(&self.mnt),
                )?;
            }
            System::Fuse2fs => {
                let mut command = Command::new("fuse2fs");
                command.arg("-f").arg(&self.image).arg(&self.mnt);
                command.args(["-o", "rw,allow_other,default_permissions"]);
                mount.spawn(command, work)?;
            }
            System::Ccfs => {
                let mut command = Command::new(ccfs_program()?);
                command
                    .args(["mount", "-f"])
                    .arg(&self.image)
                    .arg(&self.mnt);
                mount.spawn(command, work)?;
            }
        }
        Ok(mount)
    }

    fn last_words(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Whether a loop device bypasses the page cache of the file below it.
fn is_direct(device: &str) -> bool {
    let name = device.trim_start_matches("/dev/");
    let flag = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio"));
    flag.is_ok_and(|f| f.trim() == "1")
}

/// A mounted image. [`Mount::end`] unmounts cleanly; dropping it takes it away by force.
pub struct Mount<'a> {
    image: &'a Image,
    daemon: Option<Child>,
    /// Of ext4's loop device.
    pub direct_io: Option<bool>,
}

impl Mount<'_> {
    pub fn dir(&self) -> &Path {
        &self.image.mnt
    }

    fn spawn(&mut self, mut command: Command, work: &WorkDir) -> Result<()> {
        use std::os::unix::process::CommandExt;
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.image.log);
        let log = log.because("log file")?;
        // A group of its own: ctrl-C is for us, we end it.
        command.process_group(0).stdin(Stdio::null());
        command
            .stdout(log.try_clone().because("log file")?)
            .stderr(log);
        let held = guard::hold();
        let child = command.spawn().because("cannot start the daemon")?;
        let child = self.daemon.insert(child);
        work.adopt(child.id())?;
        drop(held);
        let end = Instant::now() + PATIENCE;
        while !is_mounted(&self.image.mnt) {
            if let Some(status) = child.try_wait().because("wait")? {
                let words = self.image.last_words();
                return Err(format!("the daemon ended with {status}: {words}"));
            }
            if Instant::now() > end {
                return Err("the daemon does not mount".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Unmounts, and returns when everything is on the disk. Gives the time that took.
    pub fn end(mut self) -> Result<Duration> {
        let begun = Instant::now();
        let image = self.image;
        if image.system == System::Ccfs {
            check(Command::new(ccfs_program()?).arg("umount").arg(&image.mnt))?;
        } else {
            check(Command::new("umount").arg(&image.mnt))?;
        }
        if let Some(mut child) = self.daemon.take() {
            let end = begun + PATIENCE;
            loop {
                match child.try_wait().because("wait")? {
                    Some(status) if status.success() => break,
                    Some(status) => {
                        let words = image.last_words();
                        return Err(format!("the daemon ended with {status}: {words}"));
                    }
                    None if Instant::now() > end => {
                        self.daemon = Some(child);
                        return Err("the daemon outlives its mount".into());
                    }
                    None => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        }
        // What a system left in the host's page cache belongs to its unmount, and is not to disturb the next one.
        let file = File::open(&image.image).because("image")?;
        file.sync_all().because("image")?;
        Ok(begun.elapsed())
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        for point in mounts_below(&self.image.mnt).iter().rev() {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for device in loops_below(&self.image.image) {
            let _ = Command::new("losetup").args(["-d", &device]).output();
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    mounts_below(dir).iter().any(|p| p == dir) && rustix::fs::statvfs(dir).is_ok()
}
