//! Mounting as an ordinary user, by way of fusermount3: a setuid program that mounts for its caller and sends the descriptor of
//! /dev/fuse back through a socket, whose number the environment variable `_FUSE_COMMFD` tells it.
//!
//! Such a mount is of type plain `fuse`: the kernel tells its server nothing of syncfs(2) and sync(2).
use crate::mount_config::{MountConfig, MountError};
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";
const VARIABLE: &str = "_FUSE_COMMFD";

/// True where mounting has to go by way of fusermount3.
pub fn is_needed() -> bool {
    !rustix::process::geteuid().is_root()
}

/// The program, where it is in the PATH or in the usual places.
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from))
        .map(|dir| dir.join(PROGRAM))
        .find(|p| p.is_file())
}

fn program() -> io::Result<PathBuf> {
    find().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "without root this needs fusermount3; install the package fuse3, or use sudo",
        )
    })
}

/// Mounts on `dir` and gives the connection's descriptor; INIT waits in it.
pub fn mount(dir: &Path, config: &MountConfig) -> Result<OwnedFd, MountError> {
    let fail = |e: io::Error| MountError::system(format!("cannot mount on {}", dir.display()), e);
    let program = program().map_err(fail)?;
    // Not close-on-exec: the program inherits its end.
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(|e| fail(e.into()))?;
    rustix::io::fcntl_setfd(&ours, FdFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
    let mut child = Command::new(program)
        .arg("-o")
        .arg(options(config))
        .arg("--")
        .arg(dir)
        .env(VARIABLE, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    drop(theirs);
    let received = receive(&ours);
    let mut said = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        // What cannot be read is only a text.
        let _ = pipe.read_to_string(&mut said);
    }
    let status = child.wait().map_err(fail)?;
    match received.map_err(fail)? {
        Some(fd) if status.success() => Ok(fd),
        _ => Err(fail(io::Error::other(explain(&said, &status.to_string())))),
    }
}

/// What fusermount3 said, and what helps.
fn explain(said: &str, status: &str) -> String {
    let said = said.trim();
    let hint = if said.contains("user_allow_other") {
        "; the administrator can add a line user_allow_other to /etc/fuse.conf; or leave allow_other out"
    } else if said.contains("open /dev/fuse") {
        "; the administrator has to let users open it (mode 0666, as udev sets it)"
    } else if said.contains("no write access") || said.contains("Permission denied") {
        "; the directory must belong to you and be writable"
    } else {
        ""
    };
    match said {
        "" => format!("fusermount3 failed ({status})"),
        said => format!("{said}{hint}"),
    }
}

/// The descriptor that comes through the socket. `None`: the other end was closed without one.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => {
                received?;
                break;
            }
        }
    }
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    Ok(rights)
}

fn options(config: &MountConfig) -> OsString {
    let mut text = b"subtype=ccfs,default_permissions,fsname=".to_vec();
    for byte in config.source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    for (wanted, name) in [
        (config.allow_other, "allow_other"),
        (config.read_only, "ro"),
        (config.noatime, "noatime"),
        (config.nosymfollow, "nosymfollow"),
        (config.nosuid, "nosuid"),
        (config.nodev, "nodev"),
        (config.noexec, "noexec"),
    ] {
        if wanted {
            text.push(b',');
            text.extend_from_slice(name.as_bytes());
        }
    }
    OsString::from_vec(text)
}

/// Unmounts a mount of the calling user; `lazy`: out of the tree now, at an end when its last user leaves.
///
/// Errors: `ResourceBusy`; what fusermount3 says.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let out = Command::new(program()?)
        .arg(if lazy { "-uz" } else { "-u" })
        .arg(OsStr::new("--"))
        .arg(dir)
        .stdin(Stdio::null())
        .output()?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("busy") {
        return Err(rustix::io::Errno::BUSY.into());
    }
    Err(io::Error::other(explain(&said, &out.status.to_string())))
}
