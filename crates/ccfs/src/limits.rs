//! Limits of the shell that mounts (ulimit, setrlimit(2)). They are none of the volume's: the daemon lifts them as far as it may, and where that
//! is too little the mount is refused, since a daemon that meets one later stops the volume.
use crate::codes::mount_code;
use crate::signals;
use ccfs_command::{Failure, Outcome, size};
use ccfs_engine::Options;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::Metadata;
use std::path::Path;

/// Open files that a daemon needs: the volume, the kernel's connection, rings and a loop device on a small machine, /proc of its callers. With fewer the
/// first thing to fail is the loop device, and what is mounted then never hears of syncfs.
const FILES_MIN: u64 = 64;
/// Asked for where a limit on open files may be raised: each possible processor takes three.
const FILES_WANTED: u64 = 4096;

/// Address space besides what the options allow for data and metadata: the program, the stacks of its threads, and what allocators keep, bytes.
const SPACE_MIN: u64 = 256 << 20;

/// Errors: what is left is too little for a volume in `target`, mounted like this.
pub fn lift(target: &Path, options: &Options) -> Outcome<()> {
    // What is refused for its size is an error of the one write then, not the daemon's end: its log file can meet the limit.
    signals::ignore_file_size();
    for resource in [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data] {
        lift_one(resource, None);
    }
    lift_one(Resource::Nofile, Some(FILES_WANTED));
    let left = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
    if let Some(seconds) = getrlimit(Resource::Cpu).current {
        return refuse(format!(
            "the limit on processor time is {seconds} s, and a daemon goes on as long as its mount: ulimit -t unlimited"
        ));
    }
    let files = left(Resource::Nofile);
    if files < FILES_MIN {
        return refuse(format!(
            "the limit on open files is {files}, a mount needs {FILES_MIN}: ulimit -n {FILES_MIN}"
        ));
    }
    let space = left(Resource::As).min(left(Resource::Data));
    // What lies beside what is read, and the ends of files, besides structure (`Options::cache_bytes`).
    let cached = options.cache_bytes as u64 * 9 / 4;
    let held = options.dirty_limit.max(options.dirty_most) + cached;
    if space < SPACE_MIN + held {
        return refuse(format!(
            "the limit on memory is {}, this mount can need {}: ulimit -v unlimited -d unlimited, or smaller dirty= and cache=",
            size::show(space),
            size::show(SPACE_MIN + held)
        ));
    }
    let bytes = left(Resource::Fsize);
    let image = target.metadata().ok().filter(Metadata::is_file);
    match image.filter(|image| image.len() > bytes && !options.read_only) {
        Some(image) => refuse(format!(
            "the limit on the size of files is {}, the image has {}: ulimit -f unlimited",
            size::show(bytes),
            size::show(image.len())
        )),
        None => Ok(()),
    }
}

fn refuse(why: String) -> Outcome<()> {
    Err(Failure::new(mount_code::SYSTEM, why))
}

/// Raises a limit to what is wanted (`None`: no limit); who may not raise it does what is allowed.
fn lift_one(resource: Resource, wanted: Option<u64>) {
    let now = getrlimit(resource);
    let reached = |has: Option<u64>| has.is_none_or(|has| wanted.is_some_and(|w| has >= w));
    let all = Rlimit {
        current: wanted,
        maximum: match reached(now.maximum) {
            true => now.maximum,
            false => wanted,
        },
    };
    if !reached(now.current) && setrlimit(resource, all).is_err() {
        let allowed = Rlimit {
            current: now.maximum,
            maximum: now.maximum,
        };
        let _ = setrlimit(resource, allowed);
    }
}
