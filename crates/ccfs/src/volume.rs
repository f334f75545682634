//! A mounted volume, by any directory of it: its daemon is asked, and says why not.
use crate::{mounts, tags, umount};
use ccfs_command::{Context, Failure, Outcome};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::path::Path;

/// Opens a directory of a mounted volume for the stream and status calls: `path`, or the one that holds it. Asks for no
/// attributes, since a stopped volume may not give them; and nothing of a daemon that is stopped, which would be waited for.
/// A tag stands for a directory that its device's volume is mounted on.
pub fn open(path: &Path) -> Outcome<File> {
    let path = &tags::directory(path, 1)?;
    if let Ok(Some(mount)) = mounts::over(path)
        && let Some(pid) = mount.stopped_daemon()
    {
        return Err(umount::stopped(1, &mount, pid));
    }
    let opened = match ccfs_client::open_directory(path) {
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => ccfs_client::open_holder(path),
        opened => opened,
    };
    opened.map_err(|e| explain(path, e))
}

/// Turns an error of the stream and status calls into what the user can do about it.
pub fn explain(path: &Path, e: io::Error) -> Failure {
    let shown = path.display();
    let text = match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) => {
            format!(
                "the daemon of {shown} is gone; mount the volume again: it recovers, and the dead mount is cleared"
            )
        }
        Some(libc::EIO) => format!(
            "{shown}: the volume is stopped; unmount it, and mount it again: what was synced is there"
        ),
        Some(libc::EPERM) => format!("{shown}: the stream belongs to another user"),
        Some(libc::ENOSPC) => format!(
            "{shown}: this user has too many streams; end programs that are in them, or share streams by their ids"
        ),
        _ if e.kind() == io::ErrorKind::Unsupported => match path == Path::new(".") {
            true => {
                "the current directory is not on a mounted ccfs volume; name a directory of one"
                    .into()
            }
            false => format!("{shown} is not on a mounted ccfs volume"),
        },
        _ => format!("{shown}: {e}"),
    };
    Failure::new(1, text)
}

/// What the daemon says of itself and the volume.
pub fn status(path: &Path) -> Outcome<Value> {
    // Opened anew each time: a descriptor that stays would keep the volume from being unmounted.
    let at = open(path)?;
    let text = ccfs_client::status_json(&at).map_err(|e| explain(path, e))?;
    serde_json::from_str(&text).or_fail(1, "the daemon's answer is no JSON")
}
