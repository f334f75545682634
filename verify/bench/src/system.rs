//! The systems that are compared, and what each needs.
use crate::{Because, Result, guard};
use ccfs_command::programs::{self, in_path};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing is left for the background, and no image gets holes.
const MKE2FS_EXTENDED: &str = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
/// The program under which sync calls do nothing, and its package.
pub const EATMYDATA: &str = "eatmydata";
/// The mount option of ccfs that chooses how requests travel.
const TRANSPORT_OPTION: &str = "transport";
/// And the one by which calls through shared memory are allowed.
const DIRECT_OPTION: &str = "direct";
/// Bytes for each inode. The default, 16 KiB, has no room for a directory of 100,000 files on the smallest images.
const BYTES_PER_INODE: &str = "8192";
/// Longest that a mount whose file server ended stays in the list.
const DYING_MOUNTS: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The kernel's ext4, data=ordered
    Ext4,
    /// The kernel's ext4, data=journal
    Ext4Journal,
    /// As ext4; programs run under eatmydata
    Ext4Eatmydata,
    Xfs,
    Btrfs,
    /// e2fsprogs' ext4 in FUSE
    Fuse2fs,
    /// ccfs on an image file
    Ccfs,
    /// ccfs on a block device
    CcfsDevice,
    /// ccfs on an image file, requests through /dev/fuse only
    CcfsDev,
    /// ccfs on an image file, requests through io_uring
    CcfsUring,
    /// ccfs on an image file, programs call through shared memory (libccfs)
    CcfsLib,
    /// ccfs on an image file, unmodified programs call through shared memory (ccfs direct)
    CcfsDirect,
    /// A FUSE server over io_uring that throws data away: what FUSE itself costs
    Null,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            System::Ext4 => "ext4",
            System::Ext4Journal => "ext4-journal",
            System::Ext4Eatmydata => "ext4-eatmydata",
            System::Xfs => "xfs",
            System::Btrfs => "btrfs",
            System::Fuse2fs => "fuse2fs",
            System::Ccfs => "ccfs",
            System::CcfsDevice => "ccfs-device",
            System::CcfsDev => "ccfs-dev",
            System::CcfsUring => "ccfs-uring",
            System::CcfsLib => "ccfs-lib",
            System::CcfsDirect => "ccfs-direct",
            System::Null => "null",
        }
    }

    /// Any way of using ccfs.
    pub fn is_ccfs(self) -> bool {
        matches!(
            self,
            System::Ccfs
                | System::CcfsDevice
                | System::CcfsDev
                | System::CcfsUring
                | System::CcfsLib
                | System::CcfsDirect
        )
    }

    /// Served by a process.
    pub fn is_fuse(self) -> bool {
        self.is_ccfs() || matches!(self, System::Fuse2fs | System::Null)
    }

    /// Gets the image file itself; the others a loop device on it.
    pub fn takes_file(self) -> bool {
        self == System::Null || self.is_ccfs() && self != System::CcfsDevice
    }

    /// The name that mount(8) knows, and options, of the kernel's own file systems.
    pub fn kernel_type(self) -> Option<(&'static str, &'static str)> {
        match self {
            System::Ext4 | System::Ext4Eatmydata => Some(("ext4", "data=ordered")),
            System::Ext4Journal => Some(("ext4", "data=journal")),
            System::Xfs => Some(("xfs", "defaults")),
            System::Btrfs => Some(("btrfs", "defaults")),
            _ => None,
        }
    }

    /// What `-o` of `ccfs mount` gets to choose the way of calls.
    pub fn transport(self) -> Option<String> {
        match self {
            System::CcfsLib | System::CcfsDirect => Some(format!("{DIRECT_OPTION}=on")),
            System::CcfsDev => Some(format!("{TRANSPORT_OPTION}=dev")),
            System::CcfsUring => Some(format!("{TRANSPORT_OPTION}=uring")),
            _ => None,
        }
    }

    /// Why this machine cannot mount it.
    pub fn missing(self) -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("mounting needs root".into());
        }
        if self.is_fuse() && !Path::new("/dev/fuse").exists() {
            return Some("there is no /dev/fuse".into());
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("there are no loop devices".into());
        }
        if self == System::Ext4Eatmydata && in_path(EATMYDATA).is_none() {
            return Some(format!("{EATMYDATA} is not installed"));
        }
        let (tool, package) = match self {
            System::Ext4 | System::Ext4Journal | System::Ext4Eatmydata => ("mke2fs", "e2fsprogs"),
            System::Xfs => ("mkfs.xfs", "xfsprogs"),
            System::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
            System::Fuse2fs => ("fuse2fs", "fuse2fs"),
            System::Null => {
                let rings = ccfs_fuse::transport::prepare_rings(None);
                return bench_program().err().or(rings.err());
            }
            System::CcfsDirect => return self.no_transport().or_else(no_direct),
            _ => return ccfs_program().err().or_else(|| self.no_transport()),
        };
        if in_path(tool).is_none() {
            return Some(format!("{tool} is not installed (package {package})"));
        }
        let (kind, _) = self.kernel_type()?;
        (!kernel_has(kind)).then(|| format!("this kernel has no {kind}"))
    }

    /// A program as it is started on this system.
    pub fn start(self, program: impl AsRef<OsStr>) -> Result<Command> {
        match self {
            System::Ext4Eatmydata => {
                let mut command = command(EATMYDATA);
                command.arg(program);
                Ok(command)
            }
            System::CcfsDirect => direct(&[], program),
            _ => Ok(Command::new(program)),
        }
    }

    fn no_transport(self) -> Option<String> {
        let option = self.transport()?;
        let help = ccfs_program().map(|p| output_of(Command::new(p).args(["mount", "--help"])));
        let name = option.split('=').next().unwrap_or_default();
        let known = help.is_ok_and(|h| h.contains(&format!("{name}=")));
        (!known).then(|| format!("this ccfs has no mount option {option}"))
    }

    /// Which version, in a few words.
    pub fn version(self) -> String {
        let output = match self {
            System::Fuse2fs => output_of(command("fuse2fs").arg("-V")),
            _ if self.is_ccfs() => ccfs_program()
                .map(|p| output_of(Command::new(p).arg("version")))
                .unwrap_or_default(),
            System::Null => return "no disk".into(),
            _ => return "the kernel's".into(),
        };
        let own = output.lines().find(|l| l.starts_with(self.name()));
        let line = own.or(output.lines().next());
        line.unwrap_or("?").trim().to_string()
    }

    /// Makes an empty file system on a file or device. `sparse`: the file's holes stay. `extra`: further options for the program that does it.
    pub fn mkfs(self, target: &Path, sparse: bool, extra: &[&str]) -> Result<()> {
        let ext4 = [
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-E",
            MKE2FS_EXTENDED,
        ];
        // What has holes is for size and time: there the default stays.
        let inodes = (!sparse).then_some(["-i", BYTES_PER_INODE]);
        let inodes = inodes.iter().flatten();
        let mut make = match self {
            System::Null => return Ok(()),
            System::Ext4 | System::Ext4Journal | System::Ext4Eatmydata | System::Fuse2fs => {
                let mut c = command("mke2fs");
                c.args(ext4).args(inodes);
                c
            }
            System::Xfs => {
                let mut c = command("mkfs.xfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
            System::Btrfs => {
                let mut c = command("mkfs.btrfs");
                c.args(["-q", "-f", "-K"]);
                c
            }
            _ => {
                let mut c = Command::new(ccfs_program()?);
                c.args(["mkfs", "--force"]);
                c.args(sparse.then_some("--sparse")).arg(target);
                c.args(["--", "-E", MKE2FS_EXTENDED]).args(inodes);
                c.args(extra);
                return check(&mut c).map(drop);
            }
        };
        make.args(extra).arg(target);
        let end = Instant::now() + DYING_MOUNTS;
        loop {
            match check(&mut make) {
                // mkfs.btrfs looks at the image behind every loop device that is mounted, also where its file server is just ending.
                Err(e) if e.contains("cannot check mount status") && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                made => return made.map(drop),
            }
        }
    }
}

/// Why `ccfs direct` cannot start programs here.
fn no_direct() -> Option<String> {
    let started = System::CcfsDirect.start("true");
    started.and_then(|mut command| check(&mut command)).err()
}

fn kernel_has(kind: &str) -> bool {
    // A module is loaded by its first use.
    let _ = command("modprobe").arg(kind).output();
    let all = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    all.lines().any(|l| l.split('\t').next_back() == Some(kind))
}

/// What a program prints, on stdout or else on stderr; nothing where it cannot be run.
pub fn output_of(command: &mut Command) -> String {
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

/// Which of these programs this machine lacks, if any.
pub fn not_installed(programs: &[&str]) -> Option<String> {
    let absent = programs.iter().find(|p| in_path(p).is_none());
    absent.map(|p| format!("{p} is not installed"))
}

/// A command for a program of another package.
pub fn command(program: &str) -> Command {
    Command::new(in_path(program).unwrap_or_else(|| program.into()))
}

/// A program under `ccfs direct` with these options.
pub fn direct(options: &[&str], program: impl AsRef<OsStr>) -> Result<Command> {
    let mut command = Command::new(ccfs_program()?);
    command.arg("direct").args(options).arg("--").arg(program);
    Ok(command)
}

/// The program `ccfs`: see [`programs::ccfs`].
pub fn ccfs_program() -> Result<PathBuf> {
    programs::ccfs().map_err(|e| e.text)
}

/// The program `ccfs-bench`, which serves modelled disks and the null server.
pub fn bench_program() -> Result<PathBuf> {
    built("ccfs-bench")
}

/// The program `ccfs-bench-work`, which does workloads as any other program would.
pub fn work_program() -> Result<PathBuf> {
    built("ccfs-bench-work")
}

fn built(name: &str) -> Result<PathBuf> {
    let program = programs::beside(name);
    program.ok_or_else(|| format!("{name} is not built: cargo build --release -p ccfs-bench"))
}

/// Waits for the end of a program whose standard error is a pipe; its error is what it said.
pub fn succeeded(child: Child, what: &str) -> Result<()> {
    let out = child.wait_with_output().because(what)?;
    match out.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&out.stderr);
            Err(format!("{what}: {}: {}", out.status, said.trim()))
        }
    }
}

/// Runs a program; its error is what it said.
pub fn check(command: &mut Command) -> Result<String> {
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
