//! `ccfs put`, `get` and `cp`.
use super::place::{self, Place};
use super::{CODE, close, explain, open, silent_failure};
use crate::cli::{CatArgs, CpArgs, GetArgs, PutArgs};
use crate::superblock::is_volume;
use ccfs_command::{Failure, Outcome, size, warn};
use ccfs_offline::{Access, CopyOptions, Error, Offline, Progress, Watch};
use ccfs_remote::is_store;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Stands for standard input, or output. A file of that name is `./-`.
const STANDARD: &str = "-";

/// Tells failures at once, and on a terminal how far it is.
struct Teller {
    command: &'static str,
    image: String,
    terminal: bool,
    last: Instant,
    shown: bool,
}

impl Teller {
    fn new(command: &'static str, image: &Path) -> Self {
        // Each level of a deep tree takes a descriptor on the host's side.
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = limit.maximum;
        let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
        Teller {
            command,
            image: image.display().to_string(),
            terminal: std::io::stderr().is_terminal(),
            last: Instant::now(),
            shown: false,
        }
    }

    fn line(&mut self, text: &str) {
        self.clear();
        warn!("{}: {text}", self.command);
    }

    fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
            self.shown = false;
        }
    }

    /// Exit code of a copy that came to its end.
    fn sum_up(&mut self, done: &Progress) -> Outcome<()> {
        self.clear();
        match done.failed {
            0 => Ok(()),
            n => {
                self.line(&format!("{n} left out, as told above"));
                Err(silent_failure())
            }
        }
    }

    fn stopped(&mut self, e: &Error) -> Failure {
        self.clear();
        let advice = match e.errno() {
            libc::ENOSPC => "; no room is left, what came before is there",
            _ => "",
        };
        match e {
            Error::Host { .. } => Failure::new(CODE, format!("{e}{advice}")),
            _ => Failure::new(CODE, format!("{}: {e}{advice}", self.image)),
        }
    }
}

impl Watch for Teller {
    fn progress(&mut self, so_far: &Progress) {
        if self.terminal && self.last.elapsed() > Duration::from_millis(200) {
            self.last = Instant::now();
            self.shown = true;
            let files = so_far.files + so_far.directories;
            eprint!("\r\x1b[K{files} files, {}", size::show(so_far.bytes));
        }
    }
    fn failed(&mut self, error: &Error) {
        self.line(&error.to_string());
    }
    fn warning(&mut self, text: &str) {
        self.line(text);
    }
}

fn options(owner: Option<(u32, u32)>) -> CopyOptions {
    CopyOptions { owner }
}

/// Several sources need a directory to go into.
fn check_goal(volume: &Offline, goal: &Place, sources: usize) -> Outcome<()> {
    let is_dir = volume.stat(&goal.path).is_ok_and(|a| a.is_dir());
    if sources > 1 && !is_dir {
        return Err(Failure::new(
            CODE,
            format!(
                "{}: {} is not a directory; several files need one to go into",
                goal.image.display(),
                goal.shown()
            ),
        ));
    }
    Ok(())
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    if is_store(a.as_os_str()) {
        return a == b;
    }
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

pub fn put(args: &PutArgs) -> Outcome<()> {
    let Some((goal, files)) = args.files.split_last() else {
        return Err(Failure::new(2, "name a file and an image"));
    };
    let goal = Place::parse(goal)?;
    let holds = |file: &&OsString| Path::new(file).is_file() && is_volume(Path::new(file));
    if !is_volume(&goal.image)
        && let Some(image) = files.iter().find(holds)
    {
        return Err(Failure::new(
            2,
            format!(
                "{} holds no volume, and {} does; the image comes last: ccfs put FILE... IMAGE[:PATH]",
                goal.image.display(),
                Path::new(image).display()
            ),
        ));
    }
    let mut volume = open(&goal.image, Access::ReadWrite)?;
    if let Some((uid, gid)) = args.owner {
        volume.set_owner(uid, gid);
    }
    let mut teller = Teller::new("ccfs put", &goal.image);
    let mut all = Progress::default();
    let copied = check_goal(&volume, &goal, files.len()).and_then(|()| {
        for file in files {
            if file == STANDARD {
                put_standard(&volume, &goal)?;
                continue;
            }
            match volume.put(file, &goal.path, &options(args.owner), &mut teller) {
                Ok(done) => all.failed += done.failed,
                Err(e) => return Err(teller.stopped(&e)),
            }
        }
        teller.sum_up(&all)
    });
    // Also after a failure: what came before it stays.
    let closed = close(&goal.image, volume);
    copied.and(closed)
}

/// One file of standard input.
fn put_standard(volume: &Offline, goal: &Place) -> Outcome<()> {
    let is_dir =
        goal.path.as_os_str().is_empty() || volume.stat(&goal.path).is_ok_and(|attr| attr.is_dir());
    if is_dir {
        return Err(Failure::new(
            2,
            format!(
                "{}: {} is a directory; standard input has no name, write IMAGE:PATH of the file",
                goal.image.display(),
                goal.shown()
            ),
        ));
    }
    let written = volume.write_from(&goal.path, &mut std::io::stdin().lock());
    written
        .map(drop)
        .map_err(|e| Failure::new(CODE, explain(&goal.image, &e)))
}

pub fn get(args: &GetArgs) -> Outcome<()> {
    if args.dest == Path::new(STANDARD) {
        let places = vec![args.place.clone()];
        return super::cat(&CatArgs { places });
    }
    let from = Place::parse(&args.place)?;
    let other = Place::parse_host(args.dest.as_os_str())?.image;
    if !is_volume(&from.image) && is_volume(&other) && other.is_file() {
        return Err(Failure::new(
            2,
            format!(
                "{} holds no volume, and {} does; the image comes first: ccfs get IMAGE[:PATH] DEST",
                from.image.display(),
                other.display()
            ),
        ));
    }
    let volume = open(&from.image, Access::ReadOnly)?;
    let mut teller = Teller::new("ccfs get", &from.image);
    let copied = match volume.get(&from.path, &args.dest, &mut teller) {
        Ok(done) => teller.sum_up(&done),
        Err(e) => Err(teller.stopped(&e)),
    };
    copied.and(close(&from.image, volume))
}

pub fn cp(args: &CpArgs) -> Outcome<()> {
    let places = place::all(&args.places)?;
    let Some((goal, sources)) = places.split_last() else {
        return Err(Failure::new(2, "name a source and a destination"));
    };
    // A path of the host was meant.
    let meant = |(text, place): &(&OsString, &Place)| {
        !text.as_bytes().contains(&b':') && !is_volume(&place.image)
    };
    if let Some((text, place)) = args.places.iter().zip(&places).find(meant) {
        let kind = match place.image.is_dir() {
            true => "directory",
            false => "file",
        };
        return Err(Failure::new(
            2,
            format!(
                "{} is a {kind} of this host; `ccfs put` and `ccfs get` copy to and from the host",
                text.to_string_lossy()
            ),
        ));
    }
    let volume = open(&goal.image, Access::ReadWrite)?;
    let mut teller = Teller::new("ccfs cp", &goal.image);
    let mut all = Progress::default();
    let copied = check_goal(&volume, goal, sources.len()).and_then(|()| {
        for source in sources {
            all.failed += copy_one(source, goal, &volume, args, &mut teller)?;
        }
        teller.sum_up(&all)
    });
    let closed = close(&goal.image, volume);
    copied.and(closed)
}

fn copy_one(
    source: &Place,
    goal: &Place,
    into: &Offline,
    args: &CpArgs,
    teller: &mut Teller,
) -> Outcome<u64> {
    let options = options(args.owner);
    if is_same_file(&source.image, &goal.image) {
        let done = into.copy(&source.path, into, &goal.path, &options, teller);
        return done.map(|d| d.failed).map_err(|e| teller.stopped(&e));
    }
    let from = open(&source.image, Access::ReadOnly)?;
    let done = from.copy(&source.path, into, &goal.path, &options, teller);
    let failed = done.map(|d| d.failed).map_err(|e| {
        teller.clear();
        Failure::new(CODE, explain(&source.image, &e))
    });
    let closed = close(&source.image, from);
    failed.and_then(|n| closed.map(|()| n))
}
