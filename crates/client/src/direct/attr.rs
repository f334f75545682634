//! Attributes, from a reply and from the kernel.
use super::layout::Attr;
use super::ring::Asked;
use zerocopy::{FromZeros, IntoBytes};

pub(super) fn attr_of((asked, _): (Asked<'_>, usize)) -> Attr {
    let mut attr = Attr::new_zeroed();
    asked.copy(attr.as_mut_bytes());
    attr
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
    }
}
