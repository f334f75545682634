//! FUSE mounts that are in no mount namespace: only who has the descriptor sees them, and they end with it.
use crate::transport::channel::Channel;
use rustix::fs::FileType;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Makes one; INIT waits in the channel.
pub(crate) fn mount(source: &str) -> io::Result<(Channel, OwnedFd)> {
    let channel = Channel::open()?;
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let mode = format!("{:o}", FileType::Directory.as_raw_mode());
    for (key, value) in [
        ("source", source),
        ("fd", &channel.fd().as_raw_fd().to_string()),
        ("rootmode", &mode),
        ("user_id", "0"),
        ("group_id", "0"),
    ] {
        fsconfig_set_string(&fs, key, value)?;
    }
    fsconfig_create(&fs)?;
    let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attrs)?;
    Ok((channel, mount))
}
