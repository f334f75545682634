//! Setuid and setgid: which bits a caller may not have, as the kernel's own file systems refuse them.
use super::Server;
use crate::wire::{Errno, Request};
use ccfs_engine::{Attr, Ino};

/// Linux capability: setgid stays where the caller is not of the group.
const CAP_FSETID: u32 = 4;
/// First protocol, 7.x, whose kernels (Linux 6.1) take setgid away before they ask us. 6.0 does, too, and has an older one.
const TAKEN_BY_THE_KERNEL: u32 = 37;

const SETGID: u16 = libc::S_ISGID as u16;
const SETGID_EXECUTABLE: u16 = (libc::S_ISGID | libc::S_IXGRP) as u16;

impl Server {
    /// The mode that the caller gets for a new file of `parent`, no directory, for which it asked for `mode`: a setgid executable of a directory's
    /// group is made only by who is of that group. (Elsewhere the group is the caller's. chmod(2) and ACLs are seen to by every kernel.)
    pub(super) fn mode_of_new(
        &self,
        request: &Request<'_>,
        parent: Ino,
        mode: u16,
    ) -> Result<u16, Errno> {
        if mode & SETGID_EXECUTABLE != SETGID_EXECUTABLE {
            return Ok(mode);
        }
        let dir = self.volume_for(request).getattr(parent)?;
        let foreign = dir.mode & SETGID != 0 && !self.may_act_for_group(request, &dir);
        Ok(if foreign { mode & !SETGID } else { mode })
    }

    /// Whether the caller is of the group of `dir`, or has a capability in its place.
    fn may_act_for_group(&self, request: &Request<'_>, dir: &Attr) -> bool {
        let (header, proc) = (&request.header, self.callers.proc());
        if header.gid == dir.gid {
            return true;
        }
        match proc.credentials(header.pid) {
            Some(who) if (who.uid, who.gid) == (header.uid, header.gid) => {
                who.groups.contains(&dir.gid)
                    || who.can(CAP_FSETID)
                        && proc.has_in_user_namespace(header.pid, dir.uid, dir.gid)
            }
            // Nobody that we see, or who acts for another one (overlayfs, an NFS server).
            _ => header.uid == 0 || self.agreed.minor >= TAKEN_BY_THE_KERNEL,
        }
    }

    /// A setgid file whose group may not execute it, changed by somebody who is not of that group, or not known to be: setgid goes, too (Linux
    /// since 6.2). The caller has no CAP_FSETID.
    pub(super) fn is_foreign_setgid(&self, request: &Request<'_>, attr: &Attr) -> bool {
        let (header, proc) = (&request.header, self.callers.proc());
        attr.mode & SETGID_EXECUTABLE == SETGID
            && attr.gid != header.gid
            && !proc
                .credentials(header.pid)
                .is_some_and(|who| who.groups.contains(&attr.gid))
    }
}
