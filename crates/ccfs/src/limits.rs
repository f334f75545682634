//! Limits of the shell that mounts (ulimit, setrlimit(2)). They are none of the volume's: the daemon lifts them as far as it may, and where that
//! is too little the mount is refused, since a daemon that meets one later stops the volume.
use crate::failure::{Failure, Outcome, mount_code};
use crate::{signals, size};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::Metadata;
use std::path::Path;

/// Open files that a daemon needs: the volume, the kernel's connection, rings and a loop device on a small machine, /proc of its callers. With fewer the
/// first thing to fail is the loop device, and what is mounted then never hears of syncfs.
const FILES_MIN: u64 = 64;
/// Asked for where a limit on open files may be raised: each possible processor takes three.
const FILES_WANTED: u64 = 4096;

/// Errors: what is left is too little for a volume in `target`.
pub fn lift(target: &Path, read_only: bool) -> Outcome<()> {
    // What is refused for its size is an error of the one write then, not the daemon's end: its log file can meet the limit.
    signals::ignore_file_size();
    for resource in [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data] {
        lift_one(resource, None);
    }
    lift_one(Resource::Nofile, Some(FILES_WANTED));
    let left = |resource| getrlimit(resource).current.unwrap_or(u64::MAX);
    let (bytes, files) = (left(Resource::Fsize), left(Resource::Nofile));
    if files < FILES_MIN {
        return Err(Failure::new(
            mount_code::SYSTEM,
            format!(
                "the limit on open files is {files}, a mount needs {FILES_MIN}: ulimit -n {FILES_MIN}"
            ),
        ));
    }
    let image = target.metadata().ok().filter(Metadata::is_file);
    match image.filter(|image| image.len() > bytes && !read_only) {
        Some(image) => Err(Failure::new(
            mount_code::SYSTEM,
            format!(
                "the limit on the size of files is {}, the image has {}: ulimit -f unlimited",
                size::show(bytes),
                size::show(image.len())
            ),
        )),
        None => Ok(()),
    }
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
