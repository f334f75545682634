//! umount2(2) by a process of its own, which has nothing open.
//!
//! The kernel's end of a mount waits for its server (dirty pages, DESTROY), uninterruptibly. A server that unmounts its own mount and is
//! killed in that moment could not end: the thread that waits keeps the process's descriptors of /dev/fuse, and with them the
//! connection whose end it waits for. Another process has none, so the server's death ends the connection, and the wait.
//!
//! That process has to run a program anew. One that was only forked would share or copy the memory, and a mapped ring keeps its
//! io_uring, which keeps the connection.
use rustix::mount::{UnmountFlags, unmount as unmount_here};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
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

/// Unmounts what is on top at `dir`; returns when that has ended, as umount2(2) does. Where the other process did not come to it (too little
/// memory, no /proc) this one does, if `is_there` says that there is something left to do.
pub(crate) fn unmount(
    dir: &Path,
    flags: UnmountFlags,
    is_there: impl Fn() -> bool,
) -> io::Result<()> {
    let ended = AGAIN.get().map(|again| {
        let mut command = Command::new(PROGRAM);
        command.arg0(&again.name).args(&again.args);
        command.arg(flags.bits().to_string()).arg("--").arg(dir);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status()
    });
    let why = match &ended {
        None => String::new(),
        Some(Err(e)) => e.to_string(),
        Some(Ok(status)) => match status.code() {
            Some(0) => return Ok(()),
            Some(errno @ 1..=ERRNO_MAX) => return Err(io::Error::from_raw_os_error(errno)),
            _ if !is_there() => return Ok(()),
            _ => status.to_string(),
        },
    };
    tracing::debug!("no other process unmounts {}: {why}", dir.display());
    Ok(unmount_here(dir, flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other process is this one's program, which does not know the option and says nothing of an unmount.
    #[test]
    fn what_another_process_does_not_do_is_done_here() {
        unmount_by_running_again("test", &["--no-such-option"]);
        let dir = tempfile::tempdir().unwrap();
        let error = unmount(dir.path(), UnmountFlags::NOFOLLOW, || true).unwrap_err();
        // No mount point; or no right to unmount anything.
        let errno = error.raw_os_error();
        assert!(matches!(errno, Some(libc::EINVAL | libc::EPERM)), "{error}");
        unmount(dir.path(), UnmountFlags::NOFOLLOW, || false).unwrap();
    }
}
