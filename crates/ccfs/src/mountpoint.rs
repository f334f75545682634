//! A directory to mount on: one volume at a time, also where several come in the same moment.
use crate::codes::mount_code;
use crate::mounts;
use ccfs_command::{Context, Failure, Outcome};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Others keep their turn for as long as a mount takes whose volume is open already.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// From the look at the mount table until the mount is there: nobody else mounts a volume on the directory.
///
/// A lock on the directory itself, so nothing stays behind. Who cannot open or lock it goes without, and so does who waits too long: somebody
/// else can have locked it, for a reason of his own.
pub struct Turn {
    _lock: Option<File>,
}

impl Turn {
    /// Errors: a volume is mounted there.
    pub fn take(dir: &Path) -> Outcome<Turn> {
        // First without the lock: what is mounted there would be asked for it, and may not answer.
        refuse_taken(dir)?;
        let lock = lock(dir);
        refuse_taken(dir)?;
        Ok(Turn { _lock: lock })
    }
}

fn refuse_taken(dir: &Path) -> Outcome<()> {
    let there = mounts::at(dir).or_fail(mount_code::SYSTEM, "cannot read the mount table")?;
    match there {
        Some(mount) if mount.is_ccfs() => Err(taken(dir)),
        _ => Ok(()),
    }
}

pub fn taken(dir: &Path) -> Failure {
    Failure::new(
        mount_code::FAILED,
        format!(
            "another volume is mounted on {}; unmount it first, or choose another directory",
            dir.display()
        ),
    )
}

fn lock(dir: &Path) -> Option<File> {
    let mut options = File::options();
    let file = options
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(dir)
        .ok()?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(file),
            Err(Errno::AGAIN | Errno::INTR) if start.elapsed() < PATIENCE => sleep(PAUSE),
            Err(_) => return None,
        }
    }
}
