//! The mount's daemon: started as a new process that detaches itself and tells its parent when the volume can be used.
//!
//! The child is a fresh run of this program, not a fork of a running one, so no lock or thread is inherited. Its stdout
//! is a pipe to the parent: `ok`, or an exit code and a text. Its name begins with '@': systemd's shutdown then leaves it
//! running until its volume is unmounted.
//!
//! In the foreground the parent stays: it keeps the mount namespace that the daemon leaves (`ccfs_fuse::Home`), which a container's first
//! process has to do, hands signals on, and ends with the daemon. If it is killed so is the daemon.
use crate::cli::MountArgs;
use crate::codes::mount_code;
use crate::{logging, signals};
use ccfs_command::{Context, Failure, Outcome};
use ccfs_intercept::environment;
use rustix::fs::{Mode, OFlags};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// First byte of the daemon's name (systemd's rule for daemons of root file systems).
pub const NAME: &str = "@ccfs";
const READY: &str = "ok\n";

/// A daemon that serves.
pub struct Daemon(Child);

/// Starts the daemon and waits until it serves. `target` and `dir` are absolute, for it changes its directory.
pub fn start(args: &MountArgs, target: &Path, dir: &Path) -> Outcome<Daemon> {
    let program =
        std::env::current_exe().or_fail(mount_code::SYSTEM, "cannot find this program")?;
    let mut command = Command::new(program);
    command.arg0(NAME).arg("mount").arg("--daemon");
    // Who mounts under `ccfs direct` does not mean the daemon.
    command.env_remove(environment::name(environment::PLAN));
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    if args.take_over {
        command.args(["-o", "take_over"]);
    }
    if args.foreground {
        command.arg("-f");
        signals::end_with_parent(&mut command);
    }
    command.arg("--").arg(target).arg(dir);
    ccfs_fuse::keep_descriptors();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .or_fail(mount_code::SYSTEM, "cannot start the daemon")?;
    if args.foreground {
        signals::hand_on_to(child.id());
    }
    let mut answer = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut answer)
            .or_fail(mount_code::SYSTEM, "the daemon's answer is lost")?;
    }
    if answer == READY {
        return Ok(Daemon(child));
    }
    let status = child
        .wait()
        .or_fail(mount_code::SYSTEM, "the daemon is lost")?;
    match answer.split_once('\n') {
        Some((code, text)) => Err(Failure::new(
            code.parse().unwrap_or(mount_code::FAILED),
            text,
        )),
        None => Err(Failure::new(
            mount_code::SYSTEM,
            format!("the daemon ended before the mount was ready ({status})"),
        )),
    }
}

impl Daemon {
    /// Until it ends; it says itself why it failed.
    pub fn stay(mut self) -> Outcome<()> {
        let status = self
            .0
            .wait()
            .or_fail(mount_code::SYSTEM, "the daemon is lost")?;
        match status.code() {
            Some(0) => Ok(()),
            Some(code) => Err(Failure::new(code as u8, "")),
            None => Err(Failure::new(
                mount_code::SYSTEM,
                format!("the daemon was killed ({status})"),
            )),
        }
    }
}

/// In the child, before anything else: a session of its own, so that no terminal's end reaches it.
pub fn detach() {
    // Fails only for a process that leads a group already, which a freshly started child does not.
    let _ = rustix::process::setsid();
}

/// In the child: the volume is mounted. Lets go of the parent, its terminal (unless it stays in the foreground) and its working directory.
pub fn ready(foreground: bool) -> Outcome<()> {
    answer(READY)?;
    logging::detached();
    let_go(!foreground)?;
    rustix::process::chdir("/").or_fail(mount_code::SYSTEM, "cannot leave the working directory")
}

/// Stdout, which was the way to who waits for this process, goes nowhere from now on, and stderr too if it is said.
pub fn let_go(stderr: bool) -> Outcome<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .or_fail(mount_code::SYSTEM, "cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).or_fail(mount_code::SYSTEM, "cannot let go of stdout")?;
    if stderr {
        rustix::stdio::dup2_stderr(&null).or_fail(mount_code::SYSTEM, "cannot let go of stderr")?;
    }
    Ok(())
}

/// In the child: the mount failed. The exit code goes with the text, since the parent speaks to the user.
pub fn failed(failure: &Failure) {
    // When the parent is gone, so is everybody who wanted to know.
    let _ = answer(&format!("{}\n{}", failure.code, failure.text));
}

fn answer(text: &str) -> Outcome<()> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .or_fail(mount_code::SYSTEM, "the parent is gone")
}

/// Tells a service manager that waits for it (systemd, `Type=notify`) that the volume can be used.
pub fn notify_ready() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(rest) => SocketAddr::from_abstract_name(rest),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(e) = sent {
        tracing::warn!("cannot tell the service manager: {e}");
    }
}
