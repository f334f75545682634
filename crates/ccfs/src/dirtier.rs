//! The process that makes pages of a mount's loop device dirty for the daemon that serves what is behind it (`ccfs_fuse::sentinel`). It has no way to the
//! kernel open, so it may wait for the daemon, whose death ends that.
use crate::codes::mount_code;
use ccfs_command::{Failure, Outcome};
use ccfs_fuse::helper_process::DIRTIED;
use rustix::fs::fsync;
use rustix::io::{Errno, pwrite, read, retry_on_intr, write};
use rustix::stdio::{stdin, stdout};

const READY: u8 = 0;
const FAILED: u8 = 0;

/// Returns when the daemon has let go of the socket, or has ended.
pub fn serve() -> Outcome<()> {
    // As for the companion of killed daemons: signals to all processes of a service are for the daemon.
    ccfs_fuse::ignore_end_signals();
    ccfs_fuse::prepare_process();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"ccfs-dirtier");
    // The kernel keeps write errors by the device's number: those of a killed daemon that had it before would be the next sync call's.
    let _ = fsync(stdin());
    if retry_on_intr(|| write(stdout(), &[READY])).is_err() {
        return Ok(());
    }
    // Whole pages: nothing has to be read first.
    let page = vec![0; rustix::param::page_size()];
    let mut offset = [0; 8];
    loop {
        // The socket by which the daemon asks.
        match retry_on_intr(|| read(stdout(), &mut offset)) {
            Ok(8) => {}
            // A short one is no offset.
            Ok(_) | Err(Errno::CONNRESET) => return Ok(()),
            Err(e) => return Err(Failure::new(mount_code::SYSTEM, e.to_string())),
        }
        let at = u64::from_ne_bytes(offset);
        let dirtied = retry_on_intr(|| pwrite(stdin(), &page, at)) == Ok(page.len());
        let answer = [if dirtied { DIRTIED } else { FAILED }];
        if retry_on_intr(|| write(stdout(), &answer)).is_err() {
            return Ok(());
        }
    }
}
