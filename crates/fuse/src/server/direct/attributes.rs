//! Attributes: what a program is told of an inode, and what it sets.
use super::Direct;
use super::checks::Rights;
use super::session::{Executed, Read, Refused, Session};
use crate::rights;
use crate::wire::Errno;
use ccfs_client::direct::layout::{self, Attr, PLAIN, set};
use ccfs_engine::{Calls, Ino, SetAttr, SetTime, TIME_MAX, TIME_MIN};
use zerocopy::FromBytes;

/// Nanoseconds of a second.
const NS: u32 = 1_000_000_000;

impl Direct {
    /// What a session's user sets, with the rights that the kernel would look at. Error: EOPNOTSUPP, a change of owner that only the kernel can make.
    pub fn set_attributes(
        &self,
        session: &Session,
        read: &Read,
        volume: &Calls,
        ino: Ino,
    ) -> Executed {
        const INVALID: Refused = Refused::Errno(libc::EINVAL);
        let wanted = layout::SetAttr::read_from_bytes(&read.bytes).map_err(|_| INVALID)?;
        let mut set = changes(&wanted)?;
        if wanted.mask == 0 {
            return Ok(Vec::new());
        }
        // What a session has made is its user's for as long as it is held: changes of the mode are posted.
        if set.uid.is_some() && !session.user.may_all {
            return Err(Refused::Errno(libc::EOPNOTSUPP));
        }
        let rights = Rights::of(session, volume, ino)?;
        if set.uid.is_some() || set.gid.is_some() {
            rights.check(|caller, object| caller.may_chown(object, set.uid, set.gid))?;
            // The mode that is set is the one after it.
            if set.mode.is_none() {
                let dropped = rights.check(|caller, object| Ok(caller.dropped_by_chown(object)))?;
                set.kill_suidgid = dropped.kill_suidgid;
                set.kill_sgid = dropped.kill_sgid;
            }
        }
        if let Some(mode) = set.mode {
            let mode = rights.check(|caller, object| {
                let gid = set.gid.unwrap_or(object.gid);
                caller.may_chmod(&rights::Object { gid, ..*object }, mode)
            })?;
            set.mode = Some(mode);
        }
        if let Some(times) = times(wanted.mask) {
            rights.check(|caller, object| caller.may_set_times(object, times))?;
        }
        volume.setattr(&self.context(session, read, 0), ino, &set)?;
        Ok(Vec::new())
    }

    /// Attributes as a program is told them.
    pub fn attr_of(&self, attr: &ccfs_engine::Attr) -> Attr {
        let plain = self.volume.non_blocking().is_plain(attr.ino);
        layout::Attr {
            ino: attr.ino.into(),
            size: attr.size,
            blocks: attr.blocks512,
            mode: attr.mode.into(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime.0,
            mtime: attr.mtime.0,
            ctime: attr.ctime.0,
            atime_ns: attr.atime.1,
            mtime_ns: attr.mtime.1,
            ctime_ns: attr.ctime.1,
            generation: attr.generation,
            flags: if plain.unwrap_or(false) { PLAIN } else { 0 },
            reserved: 0,
        }
    }
}

/// How utimensat(2) would be asked for these times: `None`, it would not.
fn times(mask: u32) -> Option<rights::Times> {
    const NOW: u32 = set::ATIME_NOW | set::MTIME_NOW;
    match mask & (NOW | set::ATIME | set::MTIME) {
        0 => None,
        some if some & NOW == NOW => Some(rights::Times::Now),
        _ => Some(rights::Times::Given),
    }
}

fn changes(wanted: &layout::SetAttr) -> Result<SetAttr, Errno> {
    const NOBODY: u32 = u32::MAX;
    let has = |bit| wanted.mask & bit != 0;
    let id = |bit, id| match has(bit) {
        true if id == NOBODY => Err(Errno(libc::EINVAL)),
        wanted => Ok(wanted.then_some(id)),
    };
    let time = |given, now, seconds: i64, ns| match (has(given), has(now)) {
        (_, true) => Ok(Some(SetTime::Now)),
        (true, _) if ns >= NS => Err(Errno(libc::EINVAL)),
        (true, _) => Ok(Some(SetTime::At((seconds.clamp(TIME_MIN, TIME_MAX), ns)))),
        _ => Ok(None),
    };
    if wanted.mask & !set::ALL != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(SetAttr {
        mode: has(set::MODE).then_some(wanted.mode as u16 & 0o7777),
        uid: id(set::UID, wanted.uid)?,
        gid: id(set::GID, wanted.gid)?,
        atime: time(set::ATIME, set::ATIME_NOW, wanted.atime, wanted.atime_ns)?,
        mtime: time(set::MTIME, set::MTIME_NOW, wanted.mtime, wanted.mtime_ns)?,
        ..SetAttr::default()
    })
}
