//! Attributes: from a reply and from the kernel, and what is set of them.
use super::layout::{Attr, SetAttr, set};
use super::ring::Asked;
use crate::sys::fail;
use rustix::fs::{
    Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, fchmod, fchown, futimens,
};
use std::io;
use std::os::fd::AsFd;
use zerocopy::{FromZeros, IntoBytes};

pub(super) fn attr_of((asked, _): (Asked<'_>, usize)) -> Attr {
    let mut attr = Attr::new_zeroed();
    asked.copy(attr.as_mut_bytes());
    attr
}

/// What an answer of so many bytes says besides.
pub(super) fn behind_attr(asked: &Asked<'_>, bytes: usize) -> Vec<u8> {
    let mut text = vec![0; bytes.saturating_sub(size_of::<Attr>())];
    asked.copy_from(size_of::<Attr>(), &mut text);
    text
}

pub(super) fn attr_of_stat(stat: &rustix::fs::Stat) -> Attr {
    Attr {
        ino: stat.st_ino,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        mode: stat.st_mode,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime: stat.st_atime,
        mtime: stat.st_mtime,
        ctime: stat.st_ctime,
        atime_ns: stat.st_atime_nsec as u32,
        mtime_ns: stat.st_mtime_nsec as u32,
        ctime_ns: stat.st_ctime_nsec as u32,
        generation: 0,
        flags: 0,
        reserved: 0,
    }
}

/// What an inode was when it was opened, which stays so for as long as it is held.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// It has no extended attribute.
    pub plain: bool,
    /// This session has made it: its user is the owner.
    pub own: bool,
    /// Its open was posted: it may turn out that it is not held, so nothing is posted to it.
    pub unsure: bool,
}

/// No user or group.
pub(super) const NOBODY: u32 = u32::MAX;

/// What is set, as far as it means anything; `None`: nothing. Error: EINVAL.
pub(super) fn meant(wanted: &SetAttr) -> io::Result<Option<SetAttr>> {
    let mut set = *wanted;
    let has = |bit| wanted.mask & bit != 0;
    let invalid = |given, now, ns| has(given) && !has(now) && ns >= 1_000_000_000;
    if wanted.mask & !set::ALL != 0
        || invalid(set::ATIME, set::ATIME_NOW, set.atime_ns)
        || invalid(set::MTIME, set::MTIME_NOW, set.mtime_ns)
    {
        return fail(libc::EINVAL);
    }
    // -1 is nobody for chown(2), which still is a call where it changes neither.
    let ids = [(set::UID, set.uid), (set::GID, set.gid)];
    if ids.iter().any(|(bit, id)| has(*bit) && *id != NOBODY) {
        let nobodies = ids.iter().filter(|(_, id)| *id == NOBODY);
        nobodies.for_each(|(bit, _)| set.mask &= !bit);
    }
    Ok((set.mask != 0).then_some(set))
}

/// Sets it through the mount.
pub(super) fn set_by_descriptor(fd: impl AsFd, set: &SetAttr) -> io::Result<()> {
    let has = |bit| set.mask & bit != 0;
    if has(set::UID | set::GID) {
        let id = |bit, id| Some(id).filter(|id| has(bit) && *id != NOBODY);
        let (uid, gid) = (id(set::UID, set.uid), id(set::GID, set.gid));
        fchown(&fd, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
    }
    if has(set::MODE) {
        fchmod(&fd, Mode::from_raw_mode(set.mode & 0o7777))?;
    }
    let time = |given, now, seconds, ns: u32| match (has(given), has(now)) {
        (_, true) => (0, UTIME_NOW),
        (true, _) => (seconds, ns.into()),
        _ => (0, UTIME_OMIT),
    };
    let of = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: of(time(set::ATIME, set::ATIME_NOW, set.atime, set.atime_ns)),
        last_modification: of(time(set::MTIME, set::MTIME_NOW, set.mtime, set.mtime_ns)),
    };
    if has(set::ATIME | set::ATIME_NOW | set::MTIME | set::MTIME_NOW) {
        futimens(&fd, &times)?;
    }
    Ok(())
}
