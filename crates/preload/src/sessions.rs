//! Sessions with the daemons of volumes.
use crate::count::{self, Reason};
use crate::mounts::mounts;
use ccfs_client::direct::Session;
use rustix::fs::{Mode, OFlags, fstat, open};

/// On the root of a mount: from there all of it can be reached.
pub fn begin(device: u64) -> Option<Session> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let roots = mounts().of_device(device).filter_map(|mount| {
        let root = open(&mount.path, flags, Mode::empty()).ok()?;
        (fstat(&root).ok()?.st_dev == device).then_some(root)
    });
    let mut sessions = roots.filter_map(|root| Session::begin(root).ok());
    let session = sessions.find(Session::is_direct);
    count::left(match session {
        Some(_) => Reason::Sessions,
        None => Reason::NoSession,
    });
    session
}
