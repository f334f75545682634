//! Attributes as stat(2) and statx(2) give them, and as chmod(2), chown(2) and utimensat(2) ask for them.
use crate::answer::{Answer, Stop};
use crate::program;
use ccfs_client::direct::Attr;
use ccfs_client::direct::layout::{SetAttr, set};
use rustix::fs::{major, minor};

/// Bytes that are best read and written at a time, as the kernel says of these mounts.
const BLOCK: i64 = 4096;

/// Writes a struct stat.
pub fn put_stat(at: u64, attr: &Attr, device: u64) -> Answer {
    let mut stat: libc::stat = program::zeros();
    stat.st_dev = device;
    stat.st_ino = attr.ino;
    stat.st_nlink = attr.nlink.into();
    stat.st_mode = attr.mode;
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_size = attr.size as i64;
    stat.st_blksize = BLOCK;
    stat.st_blocks = attr.blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = (attr.atime, attr.atime_ns.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.mtime, attr.mtime_ns.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.ctime, attr.ctime_ns.into());
    program::write(at, &stat)?;
    Ok(0)
}

/// Writes a struct statx, of what every file system has.
pub fn put_statx(at: u64, attr: &Attr, device: u64) -> Answer {
    let mut stat: libc::statx = program::zeros();
    let time = |seconds, nanoseconds| {
        let mut time: libc::statx_timestamp = program::zeros();
        (time.tv_sec, time.tv_nsec) = (seconds, nanoseconds);
        time
    };
    stat.stx_mask = libc::STATX_BASIC_STATS;
    stat.stx_blksize = BLOCK as u32;
    stat.stx_nlink = attr.nlink;
    stat.stx_uid = attr.uid;
    stat.stx_gid = attr.gid;
    stat.stx_mode = attr.mode as u16;
    stat.stx_ino = attr.ino;
    stat.stx_size = attr.size;
    stat.stx_blocks = attr.blocks;
    stat.stx_atime = time(attr.atime, attr.atime_ns);
    stat.stx_mtime = time(attr.mtime, attr.mtime_ns);
    stat.stx_ctime = time(attr.ctime, attr.ctime_ns);
    (stat.stx_dev_major, stat.stx_dev_minor) = (major(device), minor(device));
    program::write(at, &stat)?;
    Ok(0)
}

pub fn mode(mode: u64) -> SetAttr {
    SetAttr {
        mask: set::MODE,
        mode: mode as u32 & 0o7777,
        ..SetAttr::default()
    }
}

/// An owner or group of -1 stays. `None`: both do, which still is a change of the inode.
pub fn owner(uid: u64, gid: u64) -> Option<SetAttr> {
    let (uid, gid) = (uid as u32, gid as u32);
    let flag = |id, flag| if id == u32::MAX { 0 } else { flag };
    let mask = flag(uid, set::UID) | flag(gid, set::GID);
    (mask != 0).then_some(SetAttr {
        mask,
        uid,
        gid,
        ..SetAttr::default()
    })
}

/// The two times at an address; 0: both are now. `None`: neither changes.
pub fn times(at: u64) -> Result<Option<SetAttr>, Stop> {
    let mut all = SetAttr::default();
    if at == 0 {
        all.mask = set::ATIME | set::MTIME | set::ATIME_NOW | set::MTIME_NOW;
        return Ok(Some(all));
    }
    let [atime, mtime]: [libc::timespec; 2] = program::read(at)?;
    let mut one = |time: libc::timespec, given, now| match time.tv_nsec {
        libc::UTIME_OMIT => Ok((0, 0)),
        libc::UTIME_NOW => {
            all.mask |= given | now;
            Ok((0, 0))
        }
        0..1_000_000_000 => {
            all.mask |= given;
            Ok((time.tv_sec, time.tv_nsec as u32))
        }
        _ => Err(Stop::Errno(libc::EINVAL)),
    };
    let atime = one(atime, set::ATIME, set::ATIME_NOW)?;
    let mtime = one(mtime, set::MTIME, set::MTIME_NOW)?;
    (all.atime, all.atime_ns) = atime;
    (all.mtime, all.mtime_ns) = mtime;
    Ok((all.mask != 0).then_some(all))
}
