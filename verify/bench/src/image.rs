//! The image that all systems use in turn, and how each is mounted on it and unmounted.
//!
//! There is one image per disk: every system's blocks are the very same ones.
use crate::disk::{Counters, DiskKind, Served, Source};
use crate::guard::WorkDir;
use crate::system::{System, bench_program, ccfs_program, check, command};
use crate::{Because, Result, machine};
use ccfs_testkit::mounts::{loops_below, mounts_below};
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest mount, unmount or end of a daemon. An unmount brings home what the run left in memory.
const PATIENCE: Duration = Duration::from_secs(600);
/// The one mount option of the null server: what is written is kept in memory.
pub const KEEP: &str = "keep";

/// A disk of one size.
pub struct Image {
    /// The image file, the block device of a modelled disk, or a store's name.
    target: PathBuf,
    mnt: PathBuf,
    log: PathBuf,
    /// Of a modelled disk, always; of a store while another file system than ccfs is on it.
    served: Mutex<Option<Arc<Served>>>,
    store: Option<Store>,
    /// A file with holes, which are to stay.
    sparse: bool,
    pub bytes: u64,
}

/// A store on another machine.
struct Store {
    name: String,
    /// For the mount that shows it.
    below: PathBuf,
}

impl Image {
    /// A store, by its name.
    pub fn store(work: &WorkDir, name: &str, bytes: u64) -> Result<Image> {
        let at = |suffix: &str| work.path().join(format!("store{suffix}"));
        std::fs::create_dir(at(".mnt")).because(name)?;
        Ok(Image {
            target: name.into(),
            mnt: at(".mnt"),
            log: at(".log"),
            served: Mutex::new(None),
            store: Some(Store {
                name: name.into(),
                below: at(".disk"),
            }),
            sparse: false,
            bytes,
        })
    }

    fn served(&self) -> Option<Arc<Served>> {
        self.served
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }

    /// What a system is told to use: a store has one user at a time, and the kernel's file systems need a block device.
    fn place(&self, work: &WorkDir, system: System) -> Result<PathBuf> {
        let Some(store) = &self.store else {
            return Ok(self.target.clone());
        };
        let mut served = self.served.lock().unwrap_or_else(|e| e.into_inner());
        if system.is_ccfs() {
            *served = None;
            return Ok(self.target.clone());
        }
        if served.is_none() {
            let started = Served::start(work, Source::Store(&store.name), &store.below)?;
            *served = Some(Arc::new(started));
        }
        let device = served.as_ref().map(|served| served.device.clone());
        Ok(device.unwrap_or_default())
    }

    /// The real disk: a file in the working directory, written in full. Modelled ones: a block device.
    pub fn new(work: &WorkDir, disk: DiskKind, bytes: u64) -> Result<Image> {
        let at = |suffix: &str| work.path().join(format!("{}{suffix}", disk.name()));
        let (mnt, log) = (at(".mnt"), at(".log"));
        std::fs::create_dir(&mnt).because(mnt.display())?;
        let served = match disk.timing() {
            Some(timing) => {
                let source = Source::Modelled { timing, bytes };
                Some(Arc::new(Served::start(work, source, &at(".disk"))?))
            }
            None => None,
        };
        let target = match &served {
            Some(served) => served.device.clone(),
            None => {
                fill(&at(".img"), bytes)?;
                at(".img")
            }
        };
        Ok(Image {
            target,
            mnt,
            log,
            served: Mutex::new(served),
            store: None,
            sparse: false,
            bytes,
        })
    }

    /// A file with holes, for volumes that are larger than the disk.
    pub fn sparse(work: &WorkDir, name: &str, bytes: u64) -> Result<Image> {
        let at = |suffix: &str| work.path().join(format!("{name}{suffix}"));
        std::fs::create_dir(at(".mnt")).because(name)?;
        let file = File::create_new(at(".img")).because(name)?;
        file.set_len(bytes).because(name)?;
        Ok(Image {
            target: at(".img"),
            mnt: at(".mnt"),
            log: at(".log"),
            served: Mutex::new(None),
            store: None,
            sparse: true,
            bytes,
        })
    }

    fn is_file(&self) -> bool {
        self.store.is_none() && self.served().is_none()
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// A fresh, empty file system, and nothing of it waiting in the host's memory.
    pub fn mkfs(&self, work: &WorkDir, system: System, extra: &[&str]) -> Result<()> {
        system.mkfs(&self.place(work, system)?, self.sparse, extra)?;
        self.settle()
    }

    /// What a system left in the host's page cache goes to the disk and out of memory: it is not to disturb the next one.
    pub fn settle(&self) -> Result<()> {
        if self.store.is_some() {
            return Ok(());
        }
        let file = File::open(&self.target).because(self.target.display())?;
        file.sync_all().because(self.target.display())?;
        fadvise(&file, 0, None, Advice::DontNeed).because(self.target.display())
    }

    pub fn mount(&self, work: &WorkDir, system: System, options: &[&str]) -> Result<Mount<'_>> {
        let mut mount = Mount {
            image: self,
            system,
            daemon: None,
            loop_device: None,
        };
        let mut target = self.place(work, system)?;
        if self.is_file() && !system.takes_file() {
            target = attach(&self.target)?;
            mount.loop_device = Some(target.clone());
        }
        let all = |own: &str| {
            let mut all = vec![own.to_string()];
            all.extend(options.iter().map(|o| o.to_string()));
            all.retain(|o| !o.is_empty());
            all.join(",")
        };
        if let Some((kind, own)) = system.kernel_type() {
            let mut run = command("mount");
            run.args(["-t", kind, "-o", &all(own)]);
            check(run.arg(&target).arg(&self.mnt))?;
        } else if system == System::Fuse2fs {
            let mut run = command("fuse2fs");
            run.arg("-f").arg(&target).arg(&self.mnt);
            run.args(["-o", &all("rw,allow_other,default_permissions")]);
            mount.spawn(run, work)?;
        } else if system == System::Null {
            let mut run = Command::new(bench_program()?);
            run.arg("null").arg(&self.mnt);
            run.args(options.contains(&KEEP).then_some("--keep"));
            mount.spawn(run, work)?;
        } else {
            let mut run = Command::new(ccfs_program()?);
            run.args(["mount", "-f"]).arg(&target).arg(&self.mnt);
            let own = all(&system.transport().unwrap_or_default());
            if !own.is_empty() {
                run.args(["-o", &own]);
            }
            mount.spawn(run, work)?;
        }
        Ok(mount)
    }

    fn last_words(&self) -> String {
        let all = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = all.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }
}

/// Written, not only reserved: the host file system would have to convert reserved extents during the first round.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create_new(path).because(path.display())?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeros).because("filling an image")?;
    }
    file.sync_all().because("filling an image")
}

/// A mounted image. [`Mount::end`] unmounts cleanly; dropping it takes it away by force.
pub struct Mount<'a> {
    image: &'a Image,
    pub system: System,
    daemon: Option<Child>,
    loop_device: Option<PathBuf>,
}

impl Mount<'_> {
    pub fn dir(&self) -> &Path {
        &self.image.mnt
    }

    /// Whether the loop device bypasses the host's page cache; `None` without one.
    pub fn direct_io(&self) -> Option<bool> {
        let flag = std::fs::read_to_string(block(self.loop_device.as_ref()?)?.join("loop/dio"));
        Some(flag.is_ok_and(|f| f.trim() == "1"))
    }

    /// Of the daemon, which ccfs has started as a process of its own.
    pub fn pid(&self) -> Option<u32> {
        let started = self.daemon.as_ref()?.id();
        Some(child_of(started).unwrap_or(started))
    }

    /// Largest memory of the daemon so far, bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        machine::peak_memory(self.pid()?)
    }

    /// What the device was told so far. Of the kernel's file systems, on a loop device, the block layer counts. None of fuse2fs:
    /// the kernel does not forward syncfs to it, so what a run has left to write is not known before the unmount.
    pub fn counters(&self) -> Option<Counters> {
        if matches!(self.system, System::Fuse2fs | System::Null) {
            return None;
        }
        if let Some(served) = self.image.served() {
            return served.counters().ok();
        }
        if let Some(device) = &self.loop_device {
            let text = std::fs::read_to_string(block(device)?.join("stat")).ok()?;
            let fields: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
            return Some(Counters {
                written_bytes: fields.get(6)? * 512,
                flushes: *fields.get(15)?,
            });
        }
        let root = ccfs_client::open(self.dir()).ok()?;
        let status: serde_json::Value =
            serde_json::from_str(&ccfs_client::status_json(&root).ok()?).ok()?;
        let number = |name: &str| status.get("counters")?.get(name)?.as_u64();
        Some(Counters {
            written_bytes: number("device_written_bytes")?,
            flushes: number("device_flushes")?,
        })
    }

    fn spawn(&mut self, mut command: Command, work: &WorkDir) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.image.log);
        let log = log.because("log file")?;
        crate::sys::in_its_own_session(&mut command);
        command.stdin(Stdio::null());
        command
            .stdout(log.try_clone().because("log file")?)
            .stderr(log);
        let child = work.spawn(&mut command, "cannot start the daemon")?;
        let child = self.daemon.insert(child);
        let end = Instant::now() + PATIENCE;
        while !is_mounted(&self.image.mnt) {
            if let Some(status) = child.try_wait().because("wait")? {
                let words = self.image.last_words();
                return Err(format!("the daemon ended with {status}: {words}"));
            }
            if Instant::now() > end {
                return Err("the daemon does not mount".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Unmounts, and returns when everything is on the disk. Gives the time that took.
    pub fn end(mut self) -> Result<Duration> {
        let begun = Instant::now();
        let image = self.image;
        if self.system.is_ccfs() {
            check(Command::new(ccfs_program()?).arg("umount").arg(&image.mnt))?;
        } else {
            unmount(&image.mnt, begun + PATIENCE)?;
        }
        if let Some(mut child) = self.daemon.take() {
            match wait(&mut child, begun + PATIENCE)? {
                Some(status) if status.success() => {}
                Some(status) => {
                    let words = image.last_words();
                    return Err(format!("the daemon ended with {status}: {words}"));
                }
                None => {
                    self.daemon = Some(child);
                    return Err("the daemon outlives its mount".into());
                }
            }
        }
        image.settle()?;
        let took = begun.elapsed();
        self.detach(begun + PATIENCE)?;
        Ok(took)
    }

    /// Takes the loop device away and waits until it is gone: somebody's copy of the mount may hold it for a moment, and with it the
    /// file system that was.
    fn detach(&self, end: Instant) -> Result<()> {
        while self.image.is_file() {
            let left = loops_below(&self.image.target);
            if left.is_empty() {
                break;
            }
            if Instant::now() > end {
                return Err(format!("{} stays attached", left.join(", ")));
            }
            for device in left {
                let _ = command("losetup").args(["-d", &device]).output();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Kills the daemon as a crash of the program would, and clears the dead mount.
    pub fn kill(mut self) -> Result<()> {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid as i32)) {
            kill_process(pid, Signal::KILL).because("kill")?;
        }
        if let Some(mut child) = self.daemon.take() {
            child.wait().because("wait")?;
        }
        drop(self);
        Ok(())
    }
}

/// A loop device with direct I/O. Who looks for a free one at the same time may be faster: then it is tried again.
fn attach(file: &Path) -> Result<PathBuf> {
    let end = Instant::now() + PATIENCE;
    loop {
        let arguments = ["--find", "--show", "--direct-io=on"];
        match check(command("losetup").args(arguments).arg(file)) {
            Err(e) if Instant::now() < end && (e.contains("busy") || e.contains("temporarily")) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            device => return device.map(|d| PathBuf::from(d.trim())),
        }
    }
}

/// While the mount is in use (a process that ends, a desktop that looks at it) it is tried again.
fn unmount(dir: &Path, end: Instant) -> Result<()> {
    loop {
        match check(command("umount").arg(dir)) {
            Err(e) if e.contains("busy") && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other.map(drop),
        }
    }
}

fn wait(child: &mut Child, end: Instant) -> Result<Option<std::process::ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait().because("wait")? {
            return Ok(Some(status));
        }
        if Instant::now() > end {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The process that was started by this one.
fn child_of(parent: u32) -> Option<u32> {
    let of_parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(") ").next().unwrap_or_default();
        fields.split(' ').nth(1) == Some(parent.to_string().as_str())
    };
    let all = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.find(of_parent)
}

/// The directory of a block device in sysfs.
fn block(device: &Path) -> Option<PathBuf> {
    Some(Path::new("/sys/block").join(device.file_name()?))
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
        // Of a modelled disk the device stays.
        if self.image.is_file() {
            for device in loops_below(&self.image.target) {
                let _ = command("losetup").args(["-d", &device]).output();
            }
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    mounts_below(dir).iter().any(|p| p == dir) && rustix::fs::statvfs(dir).is_ok()
}
