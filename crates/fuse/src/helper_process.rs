//! What a process of its own does for a server, which has no way to the kernel open.
//!
//! *umount2(2).* The kernel's end of a mount waits for its server (dirty pages, DESTROY), uninterruptibly. A server that unmounts its own mount and is
//! killed in that moment could not end: the thread that waits keeps the process's descriptors of /dev/fuse, and with them the
//! connection whose end it waits for. Another process has none, so the server's death ends the connection, and the wait.
//!
//! That process has to run a program anew. One that was only forked would share or copy the memory, and a mapped ring keeps its
//! io_uring, which keeps the connection.
//!
//! It also looks for the mount: the server is in none of the mount namespaces that have it ([`crate::Home`]).
//!
//! *The end of a killed server.* A thread that tells the kernel something (a notification) can wait there, uninterruptibly, for a page or a
//! directory that the caller of another request has locked. It keeps /dev/fuse open, so the server's death does not end the
//! connection, the request is never answered, and the thread waits for ever. Another process sees the death and aborts the connection.
//!
//! *Pages of the loop device that this server serves itself* ([`crate::sentinel`]): to make one dirty can wait for the server.
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::io::{Read, Write};
use std::num::ParseIntError;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// This program, also when its file was replaced or removed since.
const PROGRAM: &str = "/proc/self/exe";
/// It exits with an errno if it could not unmount; none of umount2(2)'s is larger.
const ERRNO_MAX: i32 = libc::ELOOP;
/// An unmount that takes longer is not waited for: a file system that does not answer may hold it.
const HELD: Duration = Duration::from_secs(10);
/// To make a page dirty that is in memory takes no time; who waits longer waits for this process.
const DIRTY_WAIT: Duration = Duration::from_secs(10);
/// What the other process answers when a page is dirty.
pub const DIRTIED: u8 = 1;

struct Again {
    name: OsString,
    args: Vec<OsString>,
}

static AGAIN: OnceLock<Again> = OnceLock::new();

/// From now on this process has its own program run again, with the name `name` (`argv[0]`) and these arguments, behind which come a
/// [`Task`] and a [`Target`] as text. Without that, this process unmounts its mounts by itself.
pub fn run_again_as(name: &str, args: &[&str]) {
    let _ = AGAIN.set(Again {
        name: name.into(),
        args: args.iter().map(OsString::from).collect(),
    });
}

/// What the program that is run again does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// umount2(2) with these flags. It exits with 0 or an errno, and says on its standard output where the volume is still mounted, or who
    /// uses it.
    Unmount(UnmountFlags),
    /// It writes a line when it is ready, and if its parent's first thread ends and the process does not it aborts the connection.
    AbortIfKilled,
    /// Its standard input is a block device. Through its standard output, a socket, come offsets of pages (u64, the machine's byte order), which it makes
    /// dirty one after the other, and answers each with [`DIRTIED`] or another byte, after a first byte that says that it is ready. It ends with
    /// the socket.
    Dirty,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Task::Unmount(flags) => write!(f, "{}", flags.bits()),
            Task::AbortIfKilled => f.write_str("abort"),
            Task::Dirty => f.write_str("dirty"),
        }
    }
}

impl FromStr for Task {
    type Err = ParseIntError;
    fn from_str(text: &str) -> Result<Task, ParseIntError> {
        match text {
            "abort" => Ok(Task::AbortIfKilled),
            "dirty" => Ok(Task::Dirty),
            flags => Ok(Task::Unmount(UnmountFlags::from_bits_retain(
                flags.parse()?,
            ))),
        }
    }
}

/// A mount, wherever it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Numbers of the file system's device, `MAJOR:MINOR`.
    pub device: String,
    /// The kernel's number of the mount; 0 where the kernel does not tell.
    pub id: u64,
    /// The device of the mount that the server serves beside it, in the same form; empty: there is none ([`crate::sentinel`]).
    pub beside: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.device, self.id, self.beside)
    }
}

impl FromStr for Target {
    type Err = ParseIntError;
    fn from_str(text: &str) -> Result<Target, ParseIntError> {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default();
        Ok(Target {
            device: next().into(),
            id: next().parse()?,
            beside: next().into(),
        })
    }
}

/// What came of an unmount. Errors: EBUSY; ENOENT, the mount is in no namespace that is found, or another one covers it.
#[derive(Debug)]
pub struct Outcome {
    /// What unmounting answered.
    pub result: io::Result<()>,
    /// Where else the volume is mounted, or who uses it; empty: nothing is known.
    pub more: String,
}

impl Outcome {
    fn new(result: io::Result<()>, said: &[u8]) -> Outcome {
        let more = String::from_utf8_lossy(said).trim_end().to_string();
        Outcome { result, more }
    }
}

impl From<io::Result<()>> for Outcome {
    fn from(result: io::Result<()>) -> Outcome {
        let more = String::new();
        Outcome { result, more }
    }
}

fn command(task: Task, target: &Target) -> Option<Command> {
    let again = AGAIN.get()?;
    let mut command = Command::new(PROGRAM);
    command.arg0(&again.name).args(&again.args);
    command.args([&task.to_string(), "--", &target.to_string()]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Some(command)
}

/// Starts the process that ends the connection if this one is killed; returns when it is ready. For the process's first thread, which must
/// not be one that can wait in the kernel. Without it such a kill can leave a connection that somebody has to abort by hand.
pub(crate) fn end_if_killed(target: &Target) {
    let Some(mut command) = command(Task::AbortIfKilled, target) else {
        return;
    };
    let mut said = String::new();
    let ready = command.stdout(Stdio::piped()).spawn().and_then(|child| {
        let out = child.stdout.map(|mut out| out.read_to_string(&mut said));
        out.transpose().map(|_| !said.is_empty())
    });
    match ready {
        Ok(true) => {}
        Ok(false) => tracing::debug!("nobody aborts the connection of {target} after a kill"),
        Err(e) => tracing::debug!("nobody aborts the connection of {target} after a kill: {e}"),
    }
}

/// Whether this process can have its program run again.
pub(crate) fn is_possible() -> bool {
    AGAIN.get().is_some()
}

/// The process that makes pages dirty; it ends with this.
pub(crate) struct Dirtier {
    socket: UnixStream,
    process: Child,
    /// Answers that are still to come.
    owed: u32,
}

/// Starts it; returns when it is ready, and waits for nothing but pages. `device`: the block device; this process does not keep it open.
pub(crate) fn start_dirtier(target: &Target, device: OwnedFd) -> io::Result<Dirtier> {
    let mut command = command(Task::Dirty, target).ok_or(io::ErrorKind::Unsupported)?;
    let (mut socket, theirs) = UnixStream::pair()?;
    socket.set_read_timeout(Some(DIRTY_WAIT))?;
    socket.set_write_timeout(Some(DIRTY_WAIT))?;
    command.stdin(device).stdout(OwnedFd::from(theirs));
    let process = command.spawn()?;
    // With it go the device and the other end of the socket: only the process has them then.
    drop(command);
    socket.read_exact(&mut [0])?;
    Ok(Dirtier {
        socket,
        process,
        owed: 0,
    })
}

impl Dirtier {
    /// One whose work a test does, at the other end of the socket.
    #[cfg(test)]
    pub(crate) fn pretended() -> io::Result<(Dirtier, UnixStream)> {
        let (socket, theirs) = UnixStream::pair()?;
        let dirtier = Dirtier {
            socket,
            process: Command::new("true").spawn()?,
            owed: 0,
        };
        Ok((dirtier, theirs))
    }

    /// Makes the page at `offset` dirty. Error WouldBlock: it takes long, and will be done when the process goes on.
    pub(crate) fn dirty(&mut self, offset: u64) -> io::Result<()> {
        let mut answer = [0];
        self.socket.write_all(&offset.to_ne_bytes())?;
        self.owed += 1;
        // Those to earlier calls come first, which have not waited until their end.
        while self.owed > 0 {
            self.socket.read_exact(&mut answer)?;
            self.owed -= 1;
        }
        match answer {
            [DIRTIED] => Ok(()),
            _ => Err(io::Error::other("the loop device takes no writes")),
        }
    }
}

impl Drop for Dirtier {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        // It holds the loop device until then. One that waits there ends when the mount does.
        let _ = self.process.try_wait();
    }
}

/// Has the other process unmount; returns when that has ended, as umount2(2) does. With DETACH: all mounts of the device, in all namespaces
/// that are found. `None`: the other process did not come to it (too little memory, no /proc). ETIMEDOUT: it goes on.
pub(crate) fn unmount(target: &Target, flags: UnmountFlags) -> Option<Outcome> {
    let mut command = command(Task::Unmount(flags), target)?;
    let started = command.stdout(Stdio::piped()).spawn();
    let why = match started.and_then(|child| ended(child, HELD)) {
        Err(e) if e.raw_os_error() == Some(libc::ETIMEDOUT) => return Some(Err(e).into()),
        Err(e) => e.to_string(),
        Ok((status, said)) => match status.code() {
            Some(0) => return Some(Outcome::new(Ok(()), &said)),
            Some(errno @ 1..=ERRNO_MAX) => {
                let e = io::Error::from_raw_os_error(errno);
                return Some(Outcome::new(Err(e), &said));
            }
            _ => status.to_string(),
        },
    };
    tracing::debug!("no other process unmounts {target}: {why}");
    None
}

/// How a process ended, and what it said on its standard output. Error: ETIMEDOUT, it has not ended; it is waited for all the same.
fn ended(mut child: Child, within: Duration) -> io::Result<(ExitStatus, Vec<u8>)> {
    let (mut said, end) = (Vec::new(), Instant::now() + within);
    // Its end closes the pipe.
    while let Some(out) = &mut child.stdout {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut fds = [PollFd::new(out, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) => {
                std::thread::Builder::new().spawn(move || child.wait())?;
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            Ok(_) => {
                let mut bytes = [0; 4096];
                match out.read(&mut bytes)? {
                    0 => break,
                    count => said.extend_from_slice(&bytes[..count]),
                }
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok((child.wait()?, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_as_it_is_written() {
        let device = String::from("7:0");
        for beside in ["", "0:40"] {
            let target = Target {
                device: String::clone(&device),
                id: 98,
                beside: beside.into(),
            };
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        assert!("7:0".parse::<Target>().is_err());
    }

    #[test]
    fn a_task_is_read_as_it_is_written() {
        for task in [
            Task::AbortIfKilled,
            Task::Dirty,
            Task::Unmount(UnmountFlags::DETACH),
        ] {
            assert_eq!(task.to_string().parse(), Ok(task));
        }
        assert!("abort!".parse::<Task>().is_err());
    }

    #[test]
    fn a_process_that_is_held_is_not_waited_for() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped());
            command.stdout(Stdio::piped()).spawn().unwrap()
        };
        let (status, said) = ended(start("echo said; exit 3"), HELD).unwrap();
        assert_eq!((status.code(), said.as_slice()), (Some(3), &b"said\n"[..]));
        let mut held = start("read end");
        let let_go = held.stdin.take();
        let e = ended(held, Duration::from_millis(20)).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ETIMEDOUT));
        drop(let_go);
    }

    /// The other process is this one's program, which does not know the option and says nothing of an unmount.
    #[test]
    fn what_another_process_does_not_do_is_not_done() {
        let device = "0:0".into();
        let target = Target {
            device,
            id: 1,
            ..Target::default()
        };
        assert!(unmount(&target, UnmountFlags::NOFOLLOW).is_none());
        run_again_as("test", &["--no-such-option"]);
        assert!(unmount(&target, UnmountFlags::NOFOLLOW).is_none());
    }
}
