//! A file system under test on an image file.

use super::backend;
use super::cmd::{Output, have, run, run_ok};
use super::guard::WorkDir;
use super::tree::{Compare, Tree};
use crate::sys;
use ccfs_testkit::mounts::{loops_below, mounts_below};
use ccfs_testkit::run::sibling;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest mount (recovery included), unmount or end of a daemon.
const PATIENCE: Duration = Duration::from_secs(120);

pub const FS_IOC_SHUTDOWN: u64 = 0x8004_587D;
/// Its flags: make durable what is there (in two ways, which are one on ccfs), or write nothing more.
pub const GOING_DEFAULT: u32 = 0;
pub const GOING_LOGFLUSH: u32 = 1;
pub const GOING_NOLOGFLUSH: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fs {
    /// The kernel's ext4 on a loop device.
    Ext4,
    Ccfs,
    /// e2fsprogs' ext4 in FUSE.
    Fuse2fs,
}

impl Fs {
    /// What the tests test: `CCFS_TEST_FS` = ccfs (default), ext4 or fuse2fs.
    pub fn under_test() -> Fs {
        match std::env::var("CCFS_TEST_FS").as_deref() {
            Ok("ext4") => Fs::Ext4,
            Ok("fuse2fs") => Fs::Fuse2fs,
            Ok("ccfs") | Err(_) => Fs::Ccfs,
            Ok(other) => panic!("CCFS_TEST_FS={other}: ccfs, ext4 or fuse2fs"),
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Ccfs => "ccfs",
            Fs::Fuse2fs => "fuse2fs",
        }
    }
    /// False, and a line `skipped: why`, where this machine cannot mount it.
    pub fn ready(self, test: &str) -> bool {
        let why = if sys::geteuid() != 0 {
            "needs root"
        } else if self != Fs::Ext4 && !Path::new("/dev/fuse").exists() {
            "needs /dev/fuse"
        } else if !Path::new("/dev/loop-control").exists() {
            "needs loop devices"
        } else if self == Fs::Fuse2fs && !have("fuse2fs") {
            "needs fuse2fs"
        } else {
            return true;
        };
        println!("skipped: {test} on {}: {why}", self.name());
        false
    }
}

/// An image, its mount and its daemon. Dropping it takes everything away.
pub struct Volume {
    fs: Fs,
    image: PathBuf,
    mnt: PathBuf,
    options: String,
    /// Mount the image through a loop device that the test owns, so that the kernel counts its traffic.
    own_loop: bool,
    /// ccfs only: the image holds transactional flash.
    flash: bool,
    /// The kernel's ext4 leaves extent trees that e2fsck would make smaller; ccfs does not.
    kernel_wrote: bool,
    daemon: Option<Child>,
    mounted: bool,
    // Last: it removes the directory after the fields above are gone.
    work: WorkDir,
}

impl Volume {
    /// A new file system of `size_mib`, mounted.
    pub fn new(fs: Fs, label: &str, size_mib: u64) -> Volume {
        let mut v = Volume::unformatted(fs, label);
        v.mkfs(size_mib);
        v.mount();
        v
    }
    /// No file system yet: call `mkfs`, then `mount`.
    pub fn unformatted(fs: Fs, label: &str) -> Volume {
        let work = WorkDir::new(&format!("{}-{label}", fs.name()));
        let (image, mnt) = (work.path().join("image"), work.path().join("mnt"));
        std::fs::create_dir(&mnt).expect("mount point");
        Volume {
            fs,
            image,
            mnt,
            options: String::new(),
            own_loop: false,
            flash: fs == Fs::Ccfs && backend::flash_chosen(),
            kernel_wrote: fs == Fs::Ext4,
            daemon: None,
            mounted: false,
            work,
        }
    }
    /// As `unformatted`, on a block device, or on an image elsewhere, which stays.
    pub fn over(fs: Fs, label: &str, image: &Path) -> Volume {
        let mut v = Volume::unformatted(fs, label);
        v.image = image.to_path_buf();
        v.flash = false;
        v
    }
    /// Mount options of later mounts, as in `-o`.
    pub fn options(mut self, options: &str) -> Volume {
        self.options = options.to_string();
        self
    }
    pub fn set_options(&mut self, options: &str) {
        self.options = options.to_string();
    }
    /// Mounts a loop device instead of the image file: `device_bytes_written` then works for every file system.
    pub fn on_loop_device(mut self) -> Volume {
        self.own_loop = true;
        self
    }
    /// The volume will be on emulated transactional flash, in the image, or on none, whatever the run's volumes are on.
    pub fn on_flash(mut self, flash: bool) -> Volume {
        self.flash = flash;
        self
    }
    pub fn mkfs(&mut self, size_mib: u64) {
        let image = self.image.to_str().expect("plain path").to_string();
        if self.fs == Fs::Ccfs {
            let size = format!("{size_mib}M");
            let mut args = vec!["mkfs", "-s", &size, "--sparse", &image];
            args.extend(self.flash.then_some("--flash"));
            run_ok(ccfs_program(), &args);
        } else {
            self.mke2fs(size_mib, &["-t", "ext4", "-b", "4096"]);
        }
    }
    /// A file system by mke2fs with chosen arguments.
    pub fn mke2fs(&mut self, size_mib: u64, args: &[&str]) {
        let file = File::create(&self.image).expect("image");
        file.set_len(size_mib << 20).expect("image size");
        let image = self.image.to_str().expect("plain path");
        run_ok("mke2fs", &[&["-q", "-F"], args, &[image]].concat());
        if self.flash {
            backend::put_on_flash(&self.image);
        }
    }
    /// A file with the volume at rest as the kernel and e2fsck take it: the image, or a copy of what the flash holds.
    fn plain(&self) -> PathBuf {
        assert!(!self.mounted, "only at rest");
        if !self.flash {
            return self.image.clone();
        }
        let copy = self.outside("plain");
        backend::copy_out(&self.image, &copy);
        copy
    }
    /// From now on e2fsck may find extent trees that could be smaller: the kernel makes such ones.
    pub fn kernel_wrote(&mut self) {
        self.kernel_wrote = true;
    }
    pub fn fs(&self) -> Fs {
        self.fs
    }
    pub fn image(&self) -> &Path {
        &self.image
    }
    pub fn mnt(&self) -> &Path {
        &self.mnt
    }
    pub fn path(&self, below: &str) -> PathBuf {
        self.mnt.join(below)
    }
    /// A path outside the volume that lives as long as it.
    pub fn outside(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }
    pub fn adopt(&self, pid: u32) {
        self.work.adopt(pid);
    }
    /// The daemon's process id (ccfs, while it is mounted).
    pub fn daemon_pid(&self) -> Option<u32> {
        child_of(self.daemon.as_ref()?.id())
    }

    pub fn mount(&mut self) {
        let mut outcome = self.try_mount();
        // A killed daemon's writes go on for as long as the host's disk takes, and its lock with them. A test beside can look at a loop device.
        let end = Instant::now() + PATIENCE;
        while matches!(&outcome, Err(e) if e.contains("holds a lock") || e.contains("is in use"))
            && Instant::now() < end
        {
            outcome = self.try_mount();
        }
        outcome.unwrap_or_else(|e| {
            panic!("mount {} of {}: {e}", self.fs.name(), self.image.display())
        });
    }
    /// Mounts; the error is what the program said.
    pub fn try_mount(&mut self) -> Result<(), String> {
        assert!(!self.mounted, "mounted already");
        let target = if self.own_loop {
            self.attach()
        } else {
            self.image.to_string_lossy().into_owned()
        };
        let mnt = self.mnt.to_string_lossy().into_owned();
        let with = |extra: &str| match (extra, self.options.as_str()) {
            (a, "") => a.to_string(),
            ("", b) => b.to_string(),
            (a, b) => format!("{a},{b}"),
        };
        match self.fs {
            Fs::Ext4 => {
                let options = with(if self.own_loop { "" } else { "loop" });
                let options = if options.is_empty() {
                    "rw".into()
                } else {
                    options
                };
                kernel_mount(Path::new(&target), &self.mnt, &options)?;
            }
            Fs::Fuse2fs => {
                let options = with("rw,allow_other,default_permissions");
                let out = run(Command::new("fuse2fs").args([&target, &mnt, "-o", &options]));
                if out.code != 0 {
                    return Err(out.all());
                }
            }
            Fs::Ccfs => self.spawn_daemon(&target, &mnt)?,
        }
        self.mounted = true;
        Ok(())
    }
    /// The volume on a loop device of the test's own (found again if it is attached already).
    fn attach(&self) -> String {
        if let Some(dev) = loops_below(&self.image).first() {
            return dev.clone();
        }
        let image = self.image.to_str().expect("plain path");
        run_ok("losetup", &["--find", "--show", "--direct-io=on", image])
            .trim()
            .to_string()
    }
    fn spawn_daemon(&mut self, target: &str, mnt: &str) -> Result<(), String> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.outside("daemon.log"))
            .expect("log");
        let mut command = Command::new(ccfs_program());
        command.args(["mount", "-f"]).args(transport_option());
        if !self.options.is_empty() {
            command.args(["-o", &self.options]);
        }
        command.args([target, mnt]).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let mut child = command.spawn().expect("start ccfs");
        self.work.adopt(child.id());
        let end = Instant::now() + PATIENCE;
        while !self.is_mounted() {
            if let Some(status) = child.try_wait().expect("wait for the daemon") {
                return Err(format!(
                    "ccfs mount ended with {status}\n{}",
                    self.daemon_log()
                ));
            }
            if Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("ccfs mount does not mount\n{}", self.daemon_log()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.daemon = Some(child);
        Ok(())
    }
    /// Starts `ccfs mount` and kills it after `after`, mounted or not: a crash during recovery. The mount is taken away.
    pub fn mount_and_kill(&mut self, after: Duration) {
        assert!(self.fs == Fs::Ccfs && !self.mounted);
        let mut command = Command::new(ccfs_program());
        command
            .args(["mount", "-f"])
            .args(transport_option())
            .arg(&self.image)
            .arg(&self.mnt);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("start ccfs");
        self.work.adopt(child.id());
        std::thread::sleep(after);
        let _ = child.kill();
        let _ = child.wait();
        // What it had started by then is gone a moment later.
        let end = Instant::now() + PATIENCE;
        while runs_with(&self.mnt) {
            assert!(Instant::now() < end, "the daemon outlives its parent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Takes a dead mount (and its loop device) away by hand, for what works on a volume at rest.
    pub fn clear_dead_mount(&self) {
        assert!(!self.mounted, "it lives");
        for point in mounts_below(&self.mnt).iter().rev() {
            let _ = sys::umount_lazy(point);
        }
        for dev in loops_below(&self.image) {
            let _ = run(Command::new("losetup").args(["-d", &dev]));
        }
    }
    /// What the daemon printed so far.
    pub fn daemon_log(&self) -> String {
        std::fs::read_to_string(self.outside("daemon.log")).unwrap_or_default()
    }
    fn is_mounted(&self) -> bool {
        // A dead mount of an earlier daemon does not count: it may still answer stat from the kernel's cache, but not statfs.
        mounts_below(&self.mnt).contains(&self.mnt)
            && sys::statvfs(&self.mnt).is_ok()
            && sys::stat(&self.mnt).is_ok_and(|s| s.dev != self.parent_dev())
    }
    fn parent_dev(&self) -> u64 {
        sys::stat(self.work.path()).map_or(0, |s| s.dev)
    }

    /// A clean unmount; returns when the volume is at rest.
    pub fn umount(&mut self) {
        assert!(self.mounted, "not mounted");
        let mnt = self.mnt.to_string_lossy().into_owned();
        let end = Instant::now() + PATIENCE;
        loop {
            let out = if self.fs == Fs::Ccfs {
                run(Command::new(ccfs_program()).args(["umount", &mnt]))
            } else {
                run(Command::new("umount").arg(&mnt))
            };
            if out.code == 0 {
                break;
            }
            // A program that has just ended may still hold a file for a moment.
            assert!(
                Instant::now() < end,
                "umount: {}\n{}",
                out.all(),
                self.daemon_log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.mounted = false;
        if let Some(mut child) = self.daemon.take() {
            let status = wait_for(&mut child, end)
                .unwrap_or_else(|| panic!("the daemon outlives its mount"));
            assert!(
                status.success(),
                "the daemon ended with {status}\n{}",
                self.daemon_log()
            );
        }
        if self.fs == Fs::Fuse2fs {
            // fuse2fs writes its state after the kernel has let go; the lock on the image tells when it is done.
            self.wait_unused(end);
        }
        if self.fs == Fs::Ext4 && !self.own_loop {
            self.wait_detached(end);
        }
    }
    /// The kernel writes ext4's last state when no mount namespace holds the volume any more: another test's private one may.
    fn wait_detached(&self, end: Instant) {
        while !loops_below(&self.image).is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    fn wait_unused(&self, end: Instant) {
        while Instant::now() < end {
            let users = run(Command::new("fuser").arg(&self.image));
            if users.stdout.trim().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("fuse2fs does not end");
    }
    pub fn remount(&mut self) {
        self.umount();
        self.mount();
    }
    /// `kill -9` of the daemon. The dead mount stays, as it would for a user; `mount` has to clear it.
    pub fn kill9(&mut self) {
        let daemon = self.daemon_pid().expect("a daemon to kill");
        let mut child = self.daemon.take().expect("a daemon to kill");
        sys::kill(daemon as i32, libc::SIGKILL).expect("kill -9");
        // It ends when the daemon has.
        child.wait().expect("wait");
        self.mounted = false;
    }
    /// FS_IOC_SHUTDOWN with one of its flags (`EXT4_GOING_FLAGS_*`, or not). The volume stops; the mount stays.
    pub fn shut_down(&self, flag: u32) -> sys::R<()> {
        let root = sys::open(&self.mnt, libc::O_RDONLY, 0)?;
        sys::ioctl(&root, FS_IOC_SHUTDOWN, &mut flag.to_ne_bytes()).map(drop)
    }
    /// Unmounts what was shut down; the daemon may end with an error, but it has to end. Returns when the image is free.
    pub fn umount_stopped(&mut self) {
        let end = Instant::now() + PATIENCE;
        umount_patiently(&self.mnt);
        self.mounted = false;
        if let Some(mut child) = self.daemon.take() {
            wait_for(&mut child, end).unwrap_or_else(|| panic!("the daemon outlives its mount"));
        }
        if self.fs == Fs::Ext4 && !self.own_loop {
            self.wait_detached(end);
        }
    }
    /// Forgets the mount after the daemon has died by itself. True if it had.
    pub fn daemon_died(&mut self) -> bool {
        let dead = self
            .daemon
            .as_mut()
            .is_some_and(|c| c.try_wait().ok().flatten().is_some());
        if dead {
            self.daemon = None;
            self.mounted = false;
        }
        dead
    }

    /// `ccfs status --json`.
    pub fn status(&self) -> serde_json::Value {
        let text = run_ok(
            ccfs_program(),
            &["status", "--json", self.mnt.to_str().expect("plain path")],
        );
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("status --json: {e}\n{text}"))
    }
    /// Runs a shell script in the root of the volume; `$CCFS` is the program.
    pub fn script(&self, text: &str) -> Output {
        let mut command = Command::new("sh");
        command
            .args(["-euc", text])
            .env("CCFS", ccfs_program())
            .current_dir(self.mnt());
        run(&mut command)
    }
    /// Bytes that the loop device was asked to write so far (with `on_loop_device`).
    pub fn device_bytes_written(&self) -> u64 {
        self.device_statistic(6) * 512
    }
    /// Flushes that the loop device was asked for so far (with `on_loop_device`).
    pub fn device_flushes(&self) -> u64 {
        self.device_statistic(15)
    }
    /// A number of /sys/block/DEVICE/stat (Documentation/block/stat.rst), counted from 0.
    fn device_statistic(&self, field: usize) -> u64 {
        let dev = self.attach();
        let stat = std::fs::read_to_string(format!(
            "/sys/block/{}/stat",
            dev.trim_start_matches("/dev/")
        ));
        let stat = stat.expect("statistics of the loop device");
        stat.split_whitespace()
            .nth(field)
            .and_then(|w| w.parse::<u64>().ok())
            .expect("a number")
    }
    /// Resident and peak resident size of the daemon, bytes.
    pub fn daemon_rss(&self) -> Option<(u64, u64)> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.daemon_pid()?)).ok()?;
        let kib = |key: &str| {
            let line = status.lines().find(|l| l.starts_with(key))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        Some((kib("VmRSS:")? << 10, kib("VmHWM:")? << 10))
    }

    /// The volume at rest: e2fsck finds nothing.
    pub fn fsck_clean(&self) {
        let plain = self.plain();
        let out = run(Command::new("e2fsck").args(["-fn", plain.to_str().expect("plain path")]));
        // Pass 1..5 headings and the summary; anything else is a complaint.
        let complaint = out.stdout.lines().find(|l| {
            let quiet = l.is_empty()
                || (self.kernel_wrote && l.ends_with("Optimize? no"))
                || l.starts_with("Pass ")
                || (l.contains(" files (") && l.contains(" blocks"));
            !quiet
        });
        assert!(
            out.code == 0 && complaint.is_none(),
            "e2fsck -fn: exit {}\n{}",
            out.code,
            out.all()
        );
    }
    /// Has `work` change the volume at rest, in a file as the kernel takes it.
    pub fn change_at_rest<T>(&self, work: impl FnOnce(&Path) -> T) -> T {
        let plain = self.plain();
        let done = work(&plain);
        if self.flash {
            std::fs::rename(&plain, &self.image).expect("put the volume back");
            backend::put_on_flash(&self.image);
        }
        done
    }
    /// Runs `look` on the volume as the kernel's ext4 shows it, read-only.
    pub fn with_kernel<T>(&self, look: impl FnOnce(&Path) -> T) -> T {
        let plain = self.plain();
        let dir = self.outside("kernel");
        std::fs::create_dir_all(&dir).expect("mount point");
        kernel_mount(&plain, &dir, "ro,loop")
            .unwrap_or_else(|e| panic!("mount {}: {e}", plain.display()));
        let result = look(&dir);
        umount_patiently(&dir);
        result
    }
    /// The end of a test: clean unmount, e2fsck without complaint, and the kernel shows the same tree, with all that stat showed before.
    pub fn finish(mut self) {
        self.check_at_rest();
    }
    /// As `finish`, and the volume stays for more.
    pub fn check_at_rest(&mut self) {
        let mut seen = Tree::read(&self.mnt);
        seen.look_again(&self.mnt);
        self.umount();
        self.fsck_clean();
        if self.fs == Fs::Ext4 {
            return;
        }
        let kernel = self.with_kernel(Tree::read);
        let differences = seen.differences(&kernel, Compare::at_rest());
        let what = format!(
            "the kernel's ext4 shows another tree than {}",
            self.fs.name()
        );
        assert!(
            differences.is_empty(),
            "{what}:\n{}",
            differences.join("\n")
        );
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() && self.fs == Fs::Ccfs {
            // The directory with it goes away; a volume that stopped says there why.
            eprintln!("the daemon printed: {:?}", self.daemon_log());
        }
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The process that was started by this one: the daemon, by `ccfs mount -f`. One that has ended and is not waited for counts as none.
fn child_of(parent: u32) -> Option<u32> {
    let of_parent = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        fields.next().is_some_and(|state| state != "Z")
            && fields.next() == Some(parent.to_string().as_str())
    };
    let all = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.find(of_parent)
}

/// Whether this directory is an argument of a process.
fn runs_with(dir: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = all.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    let names = |line: Vec<u8>| {
        line.split(|b| *b == 0)
            .any(|arg| arg == dir.as_os_str().as_bytes())
    };
    lines.any(names)
}

/// Which way requests come in mounts of tests: `CCFS_TEST_TRANSPORT` = auto (default), uring or dev.
pub fn transport_option() -> Vec<String> {
    match std::env::var("CCFS_TEST_TRANSPORT") {
        Ok(name) => vec!["-o".into(), format!("transport={name}")],
        Err(_) => Vec::new(),
    }
}

/// Unmounts a kernel mount. A process between fork and exec may hold files of it for a moment.
pub fn umount_patiently(dir: &Path) {
    ccfs_testkit::mounts::umount8(dir.to_str().expect("UTF-8"));
}

fn wait_for(child: &mut Child, end: Instant) -> Option<std::process::ExitStatus> {
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("wait for the daemon") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}

/// The program: `CCFS_BIN`, or what the same build made.
pub fn ccfs_program() -> &'static str {
    static PROGRAM: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| {
        std::env::var("CCFS_BIN")
            .unwrap_or_else(|_| sibling("ccfs").to_str().expect("plain path").to_string())
    })
}

/// Mounts with the kernel's ext4. mount(8) picks a free loop device; who attaches one at the same time may be faster. It takes one that
/// is left of an earlier mount of the file, so for writing it waits until no read-only one is there.
/// The error is what it said.
pub fn kernel_mount(image: &Path, dir: &Path, options: &str) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    let writes = options.split(',').all(|option| option != "ro");
    let read_only = |dev: &String| {
        let place = dev.replace("/dev/", "/sys/block/") + "/ro";
        std::fs::read_to_string(place).is_ok_and(|ro| ro.trim() == "1")
    };
    while writes && loops_below(image).iter().any(read_only) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    loop {
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", options]);
        let out = run(mount.arg(image).arg(dir));
        if out.code == 0 {
            return Ok(());
        }
        if !out.stderr.contains("busy") || Instant::now() > end {
            return Err(out.all());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
