//! `ccfs scrub`: verifies the metadata of a mounted volume, step by step, and names what is damaged.
use crate::cli::{ProgressWhen, ScrubArgs};
use crate::codes::fsck_code;
use crate::mounts;
use crate::tags;
use crate::volume;
use ccfs_client::{Damage, Scrub};
use ccfs_command::{Context, Failure, Outcome, output::print_json, say};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Blocks of one step.
const STEP_BLOCKS: u32 = 64;
/// After a step the device and the daemon have this much of the step's own time for others, at least and at most.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Damages that are kept; more say no more.
const KEPT: usize = 1000;

/// Schema in docs/json.md.
#[derive(Serialize, Default)]
struct Report {
    schema: u32,
    mountpoint: String,
    blocks: u64,
    newer_in_memory: u64,
    damages: u64,
    damaged: Vec<Damaged>,
    seconds: f64,
}

#[derive(Serialize)]
struct Damaged {
    block: Option<u64>,
    inode: Option<u32>,
    paths: Vec<String>,
    what: String,
}

/// Gives 0 or 4, as fsck(8) does.
pub fn run(args: &ScrubArgs) -> Outcome<u8> {
    let fail = |f: Failure| Failure {
        code: fsck_code::OPERATIONAL,
        ..f
    };
    let at = volume::open(&args.dir).map_err(fail)?;
    let root = mountpoint(&tags::directory(&args.dir, fsck_code::OPERATIONAL)?)?;
    let mut bar = Bar::new(args.progress);
    let start = Instant::now();
    let (mut report, found) = verify(args, &at, &mut bar)?;
    bar.end();
    let inodes: BTreeSet<u64> = found.iter().map(|d| d.inode.into()).collect();
    let paths = paths_of(&root, inodes);
    report.schema = 1;
    report.mountpoint = root.display().to_string();
    report.seconds = start.elapsed().as_secs_f64();
    report.damaged = found.into_iter().map(|d| named(d, &paths)).collect();
    if args.json {
        print_json(&report).map_err(fail)?;
    } else {
        show(&report);
    }
    Ok(if report.damages == 0 {
        0
    } else {
        fsck_code::UNCORRECTED
    })
}

fn verify(args: &ScrubArgs, at: &File, bar: &mut Bar) -> Outcome<(Report, Vec<Damage>)> {
    let mut scrub = Scrub::default();
    let mut report = Report::default();
    let mut found: Vec<Damage> = Vec::new();
    while !scrub.ended() {
        let start = Instant::now();
        let damage = scrub.step(at, STEP_BLOCKS).map_err(|e| explain(args, e))?;
        let (blocks, newer) = scrub.blocks();
        report.blocks += blocks;
        report.newer_in_memory += newer;
        for one in damage {
            // The steps of one large file or directory meet on the way to its blocks.
            if found.contains(&one) {
                continue;
            }
            report.damages += 1;
            if found.len() < KEPT {
                found.push(one);
            }
        }
        let (done, total) = scrub.progress();
        bar.set(done, total, report.damages);
        if !args.fast {
            std::thread::sleep(start.elapsed().clamp(PAUSE_MIN, PAUSE_MAX));
        }
    }
    Ok((report, found))
}

fn explain(args: &ScrubArgs, e: std::io::Error) -> Failure {
    let shown = args.dir.display();
    match e.raw_os_error() {
        Some(libc::EPERM) => Failure::new(
            fsck_code::OPERATIONAL,
            format!("{shown}: only root may scrub a volume; run it with sudo"),
        ),
        _ => Failure {
            code: fsck_code::OPERATIONAL,
            ..volume::explain(&args.dir, e)
        },
    }
}

/// The mount that `dir` is on.
fn mountpoint(dir: &Path) -> Outcome<PathBuf> {
    let full = fs::canonicalize(dir).or_fail(fsck_code::OPERATIONAL, dir.display())?;
    let over =
        mounts::over(&full).or_fail(fsck_code::OPERATIONAL, "cannot read the mount table")?;
    Ok(over.filter(|m| m.is_ccfs()).map_or(full, |m| m.dir.clone()))
}

/// Names of these inodes. What cannot be listed (because it is damaged) is passed over.
fn paths_of(root: &Path, mut wanted: BTreeSet<u64>) -> BTreeMap<u64, Vec<String>> {
    /// ext4's number of the root; FUSE shows it as 1.
    const ROOT: u64 = 2;
    let mut out: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    if wanted.remove(&ROOT) {
        out.insert(ROOT, vec![root.display().to_string()]);
    }
    wanted.remove(&0);
    let Ok(device) = fs::metadata(root).map(|m| m.dev()) else {
        return out;
    };
    let mut todo = vec![root.to_path_buf()];
    while let (Some(dir), false) = (todo.pop(), wanted.is_empty()) {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if wanted.contains(&entry.ino()) {
                let shown = entry.path().display().to_string();
                out.entry(entry.ino()).or_default().push(shown);
            }
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            // Not into what is mounted on it.
            if is_dir && entry.metadata().is_ok_and(|m| m.dev() == device) {
                todo.push(entry.path());
            }
        }
    }
    out
}

fn named(d: Damage, paths: &BTreeMap<u64, Vec<String>>) -> Damaged {
    Damaged {
        block: (d.block != 0).then_some(d.block),
        inode: (d.inode != 0).then_some(d.inode),
        paths: paths.get(&u64::from(d.inode)).cloned().unwrap_or_default(),
        what: d.what,
    }
}

fn show(report: &Report) {
    for d in &report.damaged {
        let place = match (d.inode, d.paths.first()) {
            (_, Some(path)) => path.clone(),
            (Some(inode), None) => format!("inode {inode} (no path found)"),
            (None, None) => "the volume".into(),
        };
        let block = d.block.map_or(String::new(), |b| format!(" (block {b})"));
        say!("DAMAGED  {place}: {}{block}", d.what);
    }
    let more = report.damages - report.damaged.len() as u64;
    if more > 0 {
        say!("... and {more} more");
    }
    say!(
        "{}: {} blocks of metadata verified, {} of them newer in memory, {} damaged",
        report.mountpoint,
        report.blocks,
        report.newer_in_memory,
        report.damages
    );
    if report.damages > 0 {
        say!(
            "Copy what you need from the volume, unmount it, save an image of it, and repair it: ccfs fsck -f -y TARGET; then see to the device"
        );
    }
}

/// A line on stderr that is written over and over.
struct Bar {
    on: bool,
    last: Instant,
}

impl Bar {
    fn new(when: ProgressWhen) -> Bar {
        Bar {
            on: match when {
                ProgressWhen::Auto => std::io::stderr().is_terminal(),
                ProgressWhen::Always => true,
                ProgressWhen::Never => false,
            },
            last: Instant::now(),
        }
    }

    fn set(&mut self, done: u64, total: u64, damages: u64) {
        if !self.on || (done < total && self.last.elapsed() < Duration::from_millis(100)) {
            return;
        }
        self.last = Instant::now();
        let percent = done * 100 / total.max(1);
        let _ = write!(
            std::io::stderr(),
            "\r{percent:3} % verified, {damages} damaged "
        );
    }

    fn end(&self) {
        if self.on {
            let _ = writeln!(std::io::stderr());
        }
    }
}
