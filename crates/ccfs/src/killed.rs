//! What a daemon has another process do if it is killed: abort its connection to the kernel, where its death alone does not end it
//! (`ccfs_fuse::apart`).
//!
//! A process with a thread that cannot end does not end either, so nobody is told of its death. But the end of its first thread, which
//! started this process, is told (PR_SET_PDEATHSIG), and a killed process's other threads end as well or wait for the connection's end.
use crate::codes::mount_code;
use crate::signals::ParentsEnd;
use crate::{daemon, mounts};
use ccfs_command::{Failure, Outcome, say};
use ccfs_fuse::abort;
use ccfs_fuse::helper_process::Target;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::path::Path;

/// A killed process that can end has ended by then.
const GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Returns when the parent has ended. Says on stdout when it is ready.
///
/// Errors: the connection cannot be aborted by this process; nothing was said.
pub fn wait_and_abort(what: &Path) -> Outcome<()> {
    // A signal to all processes of a service is for the daemon, which then unmounts, and a kill of its group finds it alone.
    ccfs_fuse::ignore_end_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"ccfs-killed");
    let cannot = |e: &dyn std::fmt::Display| Failure::new(mount_code::SYSTEM, e.to_string());
    let target: Target = what.to_string_lossy().parse().map_err(|e| cannot(&e))?;
    let end = ParentsEnd::watch().map_err(|e| cannot(&e))?;
    let parent = getppid().ok_or_else(|| cannot(&"the parent is gone"))?;
    let process = pidfd_open(parent, PidfdFlags::empty()).map_err(|e| cannot(&e))?;
    // Open from now on: a later connection can get the same number, but not this file.
    let file = abort::file(&target.device).map_err(|e| cannot(&e))?;
    let beside = match target.beside.as_str() {
        "" => None,
        device => Some(abort::file(device).map_err(|e| cannot(&e))?),
    };
    say!("ready");
    daemon::let_go(false)?;
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    while first_thread_lives(parent) {
        end.wait();
        // It also bridges the instant between the signal and the moment from which on the thread counts as ended.
        if poll(&mut fds, Some(&GRACE)).is_ok_and(|ready| ready > 0) {
            return Ok(());
        }
    }
    // A thread that waits for the loop device's pages can have locked a ring, and the abort of the mount's connection waits for that.
    if let Some(beside) = &beside {
        abort::now(beside);
    }
    abort::now(&file);
    Ok(())
}

/// False also where it was gone before the signal was asked for. Where nothing is known of it (no /proc) it lives: a connection that is in
/// use must not be aborted.
fn first_thread_lives(parent: Pid) -> bool {
    let state = mounts::state_of(parent.as_raw_nonzero().get() as u32);
    getppid() == Some(parent) && !matches!(state, Some('Z' | 'X'))
}
