//! What a session's user may do: the server's own check, with what it has to look at.
use super::Direct;
use super::session::{Refused, Session};
use crate::rights;
use crate::wire::Errno;
use ccfs_engine::acl::Acl;
use ccfs_engine::{Calls, Ino, ROOT_INO};

/// The extended attribute that is a list of rights.
const ACL: &[u8] = b"system.posix_acl_access";

impl Direct {
    /// What the kernel looks at before it has a file system rename anything: where the two are, then rights.
    pub fn check_rename(
        &self,
        session: &Session,
        volume: &Calls,
        (from, old): (Ino, &[u8]),
        (to, new): (Ino, &[u8]),
        noreplace: bool,
    ) -> Result<(), Refused> {
        self.may(session, volume, from, rights::SEARCH)?;
        self.may(session, volume, to, rights::SEARCH)?;
        let moved = volume.lookup(from, old)?;
        let target = match volume.lookup(to, new) {
            Ok(target) => Some(target),
            Err(e) if e.errno() == libc::ENOENT => None,
            Err(e) => return Err(e.into()),
        };
        if noreplace && target.is_some() {
            return Err(Refused::Errno(libc::EEXIST));
        }
        if from != to && moved.is_dir() && is_within(volume, to, moved.ino)? {
            return Err(Refused::Errno(libc::EINVAL));
        }
        let above = target.as_ref().filter(|t| from != to && t.is_dir());
        if let Some(above) = above
            && is_within(volume, from, above.ino)?
        {
            return Err(Refused::Errno(libc::ENOTEMPTY));
        }
        if session.user.may_all || target.as_ref().is_some_and(|t| t.ino == moved.ino) {
            return Ok(());
        }
        let of = |ino| Rights::of(session, volume, ino);
        let (from_rights, to_rights, moved) = (of(from)?, of(to)?, of(moved.ino)?);
        let target = target.map(|t| of(t.ino)).transpose()?;
        let rename = rights::Rename {
            from: from_rights.object(),
            to: to_rights.object(),
            other_parent: from != to,
            moved: moved.object(),
            target: target.as_ref().map(|t| t.object()),
            exchange: false,
        };
        Ok(session.user.caller.may_rename(&rename)?)
    }

    /// Checks a right to an object. Errors: EACCES, and those of reading it.
    pub fn may(
        &self,
        session: &Session,
        volume: &Calls,
        ino: Ino,
        want: u16,
    ) -> Result<(), Refused> {
        if session.user.may_all {
            return Ok(());
        }
        let rights = Rights::of(session, volume, ino)?;
        rights.check(|caller, object| caller.may(object, want))
    }

    pub fn dropped_by_write(
        &self,
        session: &Session,
        volume: &Calls,
        ino: Ino,
    ) -> Result<rights::Dropped, Refused> {
        if session.user.may_all {
            return Ok(rights::Dropped::default());
        }
        let rights = Rights::of(session, volume, ino)?;
        Ok(session.user.caller.dropped_by_write(&rights.object()))
    }
}

/// What decides who may do what with an object.
pub struct Rights<'s> {
    caller: &'s rights::Caller,
    attr: ccfs_engine::Attr,
    acl: Option<Acl>,
}

impl<'s> Rights<'s> {
    pub fn of(session: &'s Session, volume: &Calls, ino: Ino) -> Result<Rights<'s>, Refused> {
        let (caller, attr) = (&session.user.caller, volume.getattr(ino)?);
        let asks = !session.user.may_all && caller.asks_acl(&rights::Object::new(&attr, None));
        let acl = match asks.then(|| volume.getxattr(ino, ACL)) {
            None => None,
            Some(Ok(bytes)) => Acl::from_syscall(&bytes)?,
            Some(Err(e)) if e.errno() == libc::ENODATA => None,
            Some(Err(e)) => return Err(e.into()),
        };
        Ok(Rights { caller, attr, acl })
    }

    pub fn object(&self) -> rights::Object<'_> {
        rights::Object::new(&self.attr, self.acl.as_ref())
    }

    pub fn check<T>(
        &self,
        may: impl FnOnce(&rights::Caller, &rights::Object<'_>) -> Result<T, Errno>,
    ) -> Result<T, Refused> {
        Ok(may(self.caller, &self.object())?)
    }

    pub fn mode_of_new(&self, mode: u16) -> u16 {
        self.caller.mode_of_new(&self.object(), mode)
    }
}

/// A directory is this one, or below it.
fn is_within(volume: &Calls, dir: Ino, above: Ino) -> Result<bool, Refused> {
    let mut at = dir;
    while at != above && at != ROOT_INO {
        at = volume.lookup(at, b"..")?.ino;
    }
    Ok(at == above)
}
