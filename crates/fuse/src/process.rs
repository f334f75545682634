//! A process of somebody else's, for as long as it lives.
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;

/// It stands for this process, whoever has its number later.
pub(crate) struct Process(OwnedFd);

impl Process {
    /// `None`: it has ended, or cannot be seen from here.
    pub fn of(pid: u32) -> Option<Process> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Process)
    }

    /// Does not wait.
    pub fn has_ended(&self) -> bool {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&at_once)) == Ok(1)
    }
}
