//! umount2(2) by a process of its own, which has nothing open.
//!
//! The kernel's end of a mount waits for its server (dirty pages, DESTROY), uninterruptibly. A server that unmounts its own mount and is
//! killed in that moment could not end: the thread that waits keeps the process's descriptors of /dev/fuse, and with them the
//! connection whose end it waits for. Another process has none, so the server's death ends the connection, and the wait.
//!
//! That process has to run a program anew. One that was only forked would share or copy the memory, and a mapped ring keeps its
//! io_uring, which keeps the connection.
use rustix::mount::{UnmountFlags, unmount as unmount_here};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// This program, also when its file was replaced or removed since.
const PROGRAM: &str = "/proc/self/exe";
/// It exits with an errno if it could not unmount; none of umount2(2)'s is larger.
const ERRNO_MAX: i32 = libc::ELOOP;

struct Again {
    name: OsString,
    args: Vec<OsString>,
}

static AGAIN: OnceLock<Again> = OnceLock::new();

/// From now on this process unmounts its mounts by running its own program with the name `name` (`argv[0]`) and these arguments, behind
/// which come flags of umount2(2), as a number, and a directory: what [`carry_out`] takes. Without that, it does so itself.
pub fn unmount_by_running_again(name: &str, args: &[&str]) {
    let _ = AGAIN.set(Again {
        name: name.into(),
        args: args.iter().map(OsString::from).collect(),
    });
}

/// The other process's part: umount2(2). Gives its exit code. A signal to all processes of a service is for the server.
pub fn carry_out(flags: u32, dir: &Path) -> u8 {
    crate::sys::ignore_end_signals();
    match unmount_here(dir, UnmountFlags::from_bits_retain(flags)) {
        Ok(()) => 0,
        Err(e) => e.raw_os_error() as u8,
    }
}

/// Unmounts what is on top at `dir`; returns when that has ended, as umount2(2) does.
pub(crate) fn unmount(dir: &Path, flags: UnmountFlags) -> io::Result<()> {
    let Some(again) = AGAIN.get() else {
        return Ok(unmount_here(dir, flags)?);
    };
    let ended = Command::new(PROGRAM)
        .arg0(&again.name)
        .args(&again.args)
        .arg(flags.bits().to_string())
        .arg(OsStr::new("--"))
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let status = match ended {
        Ok(status) => status,
        Err(e) => {
            tracing::debug!("no process to unmount {}: {e}", dir.display());
            return Ok(unmount_here(dir, flags)?);
        }
    };
    match status.code() {
        Some(0) => Ok(()),
        Some(errno @ 1..=ERRNO_MAX) => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::other(match status.signal() {
            Some(signal) => format!("the process that unmounts was ended by signal {signal}"),
            None => "the process that unmounts could not be run".to_string(),
        })),
    }
}
