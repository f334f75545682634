//! Modelled disks: a block device with the timing of a hard disk, an SSD or a phone's flash.
//!
//! A process of its own serves it ([`serve`], `ccfs-bench disk`): ccfs's virtual disk over memory, with the timing module's delays. It
//! ends with its stdin, and what it mounted lies below the working directory, which takes everything with it.
use crate::guard::WorkDir;
use crate::system::bench_program;
use crate::{Because, Result};
use ccfs_device::{Device, OpenMode};
use ccfs_disks::{MemoryDevice, Params, Timed};
use ccfs_evidence::vdisk::VirtualDisk;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

/// Where the image lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskKind {
    /// A file on this machine's disk
    Real,
    /// A 5400 rpm disk, modelled
    Hdd,
    /// A consumer NVMe disk, modelled
    Ssd,
    /// A phone's flash, modelled
    Ufs,
    /// An image of a store on another machine (`--device`)
    #[value(skip)]
    Store,
}

impl DiskKind {
    pub fn name(self) -> &'static str {
        match self {
            DiskKind::Real => "real",
            DiskKind::Hdd => "hdd",
            DiskKind::Ssd => "ssd",
            DiskKind::Ufs => "ufs",
            DiskKind::Store => "store",
        }
    }

    /// It is what it is, and takes its own time.
    pub fn is_real(self) -> bool {
        matches!(self, DiskKind::Real | DiskKind::Store)
    }

    /// The preset of the timing module.
    pub fn timing(self) -> Option<&'static str> {
        (!self.is_real()).then_some(self.name())
    }

    /// What follows a workload's name.
    pub fn suffix(self) -> String {
        match self {
            DiskKind::Real => String::new(),
            other => format!("@{}", other.name()),
        }
    }
}

/// What a device was told since some moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub written_bytes: u64,
    pub flushes: u64,
}

impl Counters {
    /// What came after `then`.
    pub fn since(self, then: Counters) -> Counters {
        Counters {
            written_bytes: self.written_bytes.saturating_sub(then.written_bytes),
            flushes: self.flushes.saturating_sub(then.flushes),
        }
    }
}

/// What is served as a block device.
pub enum Source<'a> {
    /// Memory with the timing of a disk.
    Modelled { timing: &'a str, bytes: u64 },
    /// A store, by its name.
    Store(&'a str),
}

/// The other process's end.
pub struct Served {
    pub device: PathBuf,
    child: Child,
    pipes: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Served {
    /// `below`: a directory to make, for its mount.
    pub fn start(work: &WorkDir, source: Source<'_>, below: &Path) -> Result<Served> {
        std::fs::create_dir_all(below).because(below.display())?;
        let mut command = Command::new(bench_program()?);
        command.arg("disk");
        match source {
            Source::Modelled { timing, bytes } => {
                command.args(["--timing", timing, "--bytes", &bytes.to_string()])
            }
            Source::Store(name) => command.args(["--store", name]),
        };
        command.arg(below);
        crate::sys::in_its_own_session(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = work.spawn(&mut command, "cannot start a modelled disk")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or("a modelled disk without pipes")?;
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line).because("a modelled disk")?;
        if line.trim().is_empty() {
            let _ = child.wait();
            return Err("the modelled disk did not start; its message is above".into());
        }
        Ok(Served {
            device: PathBuf::from(line.trim()),
            child,
            pipes: Mutex::new(Some((stdin, stdout))),
        })
    }

    /// What the disk was told so far.
    pub fn counters(&self) -> Result<Counters> {
        let mut pipes = self.pipes.lock().unwrap_or_else(|e| e.into_inner());
        let (stdin, stdout) = pipes.as_mut().ok_or("the modelled disk has ended")?;
        writeln!(stdin, "counters").because("a modelled disk")?;
        let mut line = String::new();
        stdout.read_line(&mut line).because("a modelled disk")?;
        let mut numbers = line.split_whitespace().flat_map(str::parse);
        let pair = numbers.next().zip(numbers.next());
        let (written_bytes, flushes) = pair.ok_or("a modelled disk tells no numbers")?;
        Ok(Counters {
            written_bytes,
            flushes,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its end; it then takes its mount away.
        drop(
            self.pipes
                .get_mut()
                .unwrap_or_else(|e| e.into_inner())
                .take(),
        );
        let _ = self.child.wait();
    }
}

/// `ccfs-bench disk`: prints the block device, answers `counters` with two numbers, and ends with its stdin.
pub fn serve(source: Source<'_>, below: &Path) -> Result<()> {
    ccfs_fuse::prepare_process();
    let device: Arc<dyn Device> = match source {
        Source::Modelled { timing, bytes } => {
            let params = Params::preset(timing);
            let params = params.ok_or_else(|| format!("there is no disk {timing}"))?;
            Arc::new(Timed::new(Arc::new(MemoryDevice::new(bytes)), params))
        }
        Source::Store(name) => {
            let settings = ccfs_remote::Settings::default();
            ccfs_remote::open(Path::new(name), OpenMode::ReadWrite, settings)
                .because("cannot serve a store")?
        }
    };
    let disk = VirtualDisk::attach(device.clone(), below).because("a modelled disk")?;
    println!("{}", disk.path().display());
    for line in std::io::stdin().lines() {
        if line.because("stdin")? == "counters" {
            let now = device.counters();
            println!("{} {}", now.written_bytes, now.flushes);
        }
    }
    drop(disk);
    ccfs_remote::let_go();
    Ok(())
}
