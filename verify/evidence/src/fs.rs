//! The file systems under test: how each is made, mounted and unmounted on a device.
use crate::vdisk::VirtualDisk;
use crate::{Fail, keeper, sys};
use ccfs_command::programs;
use ccfs_device::Device;
use ccfs_engine::{Options, Volume};
use ccfs_fuse::{FsType, MountConfig, Session, Transport};
use parking_lot::{Mutex, MutexGuard};
use rustix::mount::{MountFlags, mount};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A kind of file system, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ccfs,
    Ext4,
    /// `data=journal`.
    Ext4Journal,
    /// `nobarrier`: no flushes.
    Ext4Nobarrier,
    Xfs,
    Btrfs,
}

/// One at a time: volumes with equal UUIDs cannot be mounted together.
static BTRFS: Mutex<()> = Mutex::new(());

impl Kind {
    pub const ALL: [Kind; 6] = [
        Kind::Ccfs,
        Kind::Ext4,
        Kind::Ext4Journal,
        Kind::Ext4Nobarrier,
        Kind::Xfs,
        Kind::Btrfs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Ccfs => "ccfs",
            Kind::Ext4 => "ext4",
            Kind::Ext4Journal => "ext4-journal",
            Kind::Ext4Nobarrier => "ext4-nobarrier",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    pub fn parse(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Type and options for mount(2).
    fn mount_options(self) -> (&'static str, &'static str) {
        match self {
            Kind::Ccfs => ("", ""),
            Kind::Ext4 => ("ext4", "noinit_itable"),
            Kind::Ext4Journal => ("ext4", "noinit_itable,data=journal"),
            Kind::Ext4Nobarrier => ("ext4", "noinit_itable,nobarrier"),
            Kind::Xfs => ("xfs", "nouuid"),
            Kind::Btrfs => ("btrfs", ""),
        }
    }

    /// Whether the kernel and the installed tools have it; if not, why.
    pub fn missing(self) -> Option<String> {
        let (program, package) = match self {
            Kind::Ccfs | Kind::Ext4 | Kind::Ext4Journal | Kind::Ext4Nobarrier => {
                ("mke2fs", "e2fsprogs")
            }
            Kind::Xfs => ("mkfs.xfs", "xfsprogs"),
            Kind::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        };
        let missing = missing_tool(program, package);
        if missing.is_some() {
            return missing;
        }
        if self == Kind::Ccfs {
            return None;
        }
        let kernel = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        let (name, _) = self.mount_options();
        let has = |text: &str| text.lines().any(|l| l.trim() == name);
        if has(&kernel) {
            return None;
        }
        // A module is loaded by its first use.
        let _ = Command::new("modprobe").arg(name).output();
        let kernel = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        (!has(&kernel)).then(|| format!("this kernel has no {name}"))
    }

    /// Makes the file system on a block device. `ccfs`: the program.
    pub fn make(self, device: &Path, ccfs: &Path) -> Result<(), Fail> {
        let mut command = match self {
            Kind::Ccfs => {
                let mut c = Command::new(ccfs);
                c.args(["mkfs", "--force"]);
                c
            }
            Kind::Ext4 | Kind::Ext4Journal | Kind::Ext4Nobarrier => {
                let mut c = tool("mke2fs");
                // The tables of a fresh disk are zeros already.
                c.args(["-q", "-F", "-t", "ext4", "-b", "4096"])
                    .args(["-E", "lazy_itable_init=1,lazy_journal_init=1"]);
                c
            }
            Kind::Xfs => {
                let mut c = tool("mkfs.xfs");
                c.args(["-q", "-f"]);
                c
            }
            Kind::Btrfs => {
                let mut c = tool("mkfs.btrfs");
                c.args(["-q", "-f"]);
                c
            }
        };
        command.arg(device);
        let shown = format!("{command:?}");
        let out = sys::tie(&mut command, false)
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(|e| Fail::new(format!("cannot run {shown}: {e}")))?;
        if out.status.success() {
            Ok(())
        } else {
            let text = String::from_utf8_lossy(&out.stderr).trim().to_string();
            Err(Fail::new(format!("{shown}: {}: {text}", out.status)))
        }
    }
}

/// A system tool; a user's PATH often lacks the directories in which Debian keeps them.
pub fn tool(name: &str) -> Command {
    Command::new(programs::in_path(name).unwrap_or_else(|| PathBuf::from(name)))
}

pub(crate) fn missing_tool(program: &str, package: &str) -> Option<String> {
    let missing = tool(program).get_program() == program;
    missing.then(|| format!("{program} is missing; install {package}"))
}

/// A mounted file system; dropping it unmounts it.
pub struct Mount {
    pub root: PathBuf,
    served: Served,
    _dir: tempfile::TempDir,
    /// Kept to the end: see `BTRFS`.
    _alone: Option<MutexGuard<'static, ()>>,
}

enum Served {
    Kernel {
        kind: Kind,
        disk: Option<VirtualDisk>,
    },
    Here {
        volume: Arc<Volume>,
        thread: Option<JoinHandle<Result<(), String>>>,
        _noted: keeper::Noted,
    },
}

impl Mount {
    /// Mounts `device`, with recovery where it was not at rest. `below`: a directory for the mount points.
    /// Errors: the file system's; for images of a crash that is a finding.
    pub fn new(kind: Kind, device: Arc<dyn Device>, below: &Path) -> Result<Mount, Fail> {
        let dir = tempfile::Builder::new()
            .prefix("root-")
            .tempdir_in(below)
            .map_err(|e| Fail::new(format!("cannot make a directory for a mount: {e}")))?;
        let alone = (kind == Kind::Btrfs).then(|| BTRFS.lock());
        let served = match kind {
            Kind::Ccfs => serve(device, dir.path())?,
            _ => attach(kind, device, below, dir.path())?,
        };
        Ok(Mount {
            root: dir.path().to_path_buf(),
            served,
            _dir: dir,
            _alone: alone,
        })
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<(), Fail> {
        let fail = |e: String| Fail::new(format!("cannot sync: {e}"));
        match &self.served {
            Served::Here { volume, .. } => {
                let context = ccfs_engine::Context::root(ccfs_engine::DEFAULT_STREAM);
                volume.syncfs(&context).map_err(|e| fail(e.to_string()))
            }
            Served::Kernel { .. } => {
                let root = std::fs::File::open(&self.root).map_err(|e| fail(e.to_string()))?;
                rustix::fs::syncfs(&root).map_err(|e| fail(e.to_string()))
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = sys::unmount(&self.root);
        match &mut self.served {
            Served::Here { thread, .. } => {
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            Served::Kernel { kind, disk } => {
                if *kind == Kind::Btrfs
                    && let Some(disk) = disk
                {
                    // Else the kernel refuses an older image of the same volume next time.
                    let _ = tool("btrfs")
                        .args(["device", "scan", "--forget"])
                        .arg(disk.path())
                        .output();
                }
                drop(disk.take());
            }
        }
    }
}

fn attach(kind: Kind, device: Arc<dyn Device>, below: &Path, dir: &Path) -> Result<Served, Fail> {
    let disk = VirtualDisk::attach(device, below)?;
    let (fstype, options) = kind.mount_options();
    let options = CString::new(options).map_err(|e| Fail::new(e.to_string()))?;
    mount(
        disk.path(),
        dir,
        fstype,
        MountFlags::NOATIME,
        options.as_c_str(),
    )
    .map_err(|e| Fail::new(format!("mount -t {fstype}: {e}")))?;
    Ok(Served::Kernel {
        kind,
        disk: Some(disk),
    })
}

fn serve(device: Arc<dyn Device>, dir: &Path) -> Result<Served, Fail> {
    let fail = |e: String| Fail::new(format!("ccfs mount: {e}"));
    let volume = Volume::mount(device, Options::default()).map_err(|e| fail(e.to_string()))?;
    let config = MountConfig {
        fstype: FsType::Fuse,
        noatime: true,
        // A process that is forked here, and goes into the mount before it runs its program, has copies of all descriptors. If this process is killed
        // then, it keeps the connection for whose end it waits. One over /dev/fuse can be aborted; a ring that somebody keeps ends by nothing.
        transport: Transport::Dev,
        // Programs with O_ATOMIC files are recorded as any others.
        atomic_files: true,
        ..MountConfig::new("ccfs-crash")
    };
    let session = Session::mount(volume.clone(), dir, &config).map_err(|e| {
        let _ = volume.unmount();
        fail(e.to_string())
    })?;
    let noted = keeper::note(session.mounted().device());
    let thread = std::thread::spawn(move || session.serve_silently().map_err(|e| e.to_string()));
    Ok(Served::Here {
        volume,
        thread: Some(thread),
        _noted: noted,
    })
}
