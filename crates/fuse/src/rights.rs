//! What a caller may do to files, as Linux decides it (path_resolution(7), capabilities(7), acl(5), proc_sys_fs(5)). It is for operations
//! that reach the daemon without the kernel; requests of the kernel come checked (`default_permissions`).
//!
//! Nothing is looked up here. Who asks brings the attributes, and sees to it that they are the same when the operation is carried out.
//!
//! A function says what the rights alone say, in the order in which Linux looks at them. *Before* it comes: [`SEARCH`] of each directory
//! of the path, the mount's (the last name's directory too); then whether the names exist (ENOENT, EEXIST), and for a rename whether one is
//! below the other (EINVAL, ENOTEMPTY). *After* it comes what the engine checks: types, unless a function says that it does; full
//! directories; immutable and append-only, which the kernel's FUSE does not know either.
//!
//! Users, groups and capabilities are those of the daemon's user namespace. A caller in another one has no capabilities here
//! ([`Caller::new`]). That can refuse what the kernel permits to root of a container, never the other way round. Mount options (ro, nodev,
//! noexec), security modules, access(2) by the real user, devices (mknod(2)), extended attributes and `fs.protected_symlinks` are not
//! looked at.
use crate::wire::Errno;
use ccfs_caller::procfs::Credentials;
use ccfs_engine::Attr;
use ccfs_engine::acl::{self, Acl};

/// To read a file, or to list a directory.
pub const READ: u16 = 4;
/// To change a file's content, or a directory's names (which takes [`SEARCH`] too).
pub const WRITE: u16 = 2;
/// To execute a file.
pub const EXECUTE: u16 = 1;
/// To look up names in a directory.
pub const SEARCH: u16 = EXECUTE;

/// `Ok`: the caller may. The error is the one that Linux gives.
pub type Answer = Result<(), Errno>;

// linux/capability.h
const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;

const SETUID: u16 = libc::S_ISUID as u16;
const SETGID: u16 = libc::S_ISGID as u16;
const STICKY: u16 = libc::S_ISVTX as u16;
const SETGID_EXECUTABLE: u16 = (libc::S_ISGID | libc::S_IXGRP) as u16;
const GROUP_BITS: u16 = 0o070;
const EXECUTABLE: u16 = 0o111;

/// What rights are about: a file or directory, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The access list (`system.posix_acl_access`), if it has one. It plays no role where [`Caller::asks_acl`] says no.
    pub acl: Option<&'a Acl>,
}

impl<'a> Object<'a> {
    /// From the attributes and the access list.
    pub fn new(attr: &Attr, acl: Option<&'a Acl>) -> Object<'a> {
        Object {
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            acl,
        }
    }

    fn kind(&self) -> u32 {
        u32::from(self.mode) & libc::S_IFMT
    }

    fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
}

/// Settings of the machine that take rights away (proc_sys_fs(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// `fs.protected_hardlinks`: 0 or 1.
    pub protected_hardlinks: u32,
    /// `fs.protected_regular`: 0, 1 or 2.
    pub protected_regular: u32,
    /// `fs.protected_fifos`: 0, 1 or 2.
    pub protected_fifos: u32,
}

/// What a rename is about.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// The directory that loses the old name.
    pub from: Object<'a>,
    /// The directory that gets the new name.
    pub to: Object<'a>,
    /// `from` and `to` are two directories.
    pub other_parent: bool,
    /// What has the old name.
    pub moved: Object<'a>,
    /// What has the new name now. It is not `moved`: a rename to another name of the same file does nothing, for everybody.
    pub target: Option<Object<'a>>,
    /// RENAME_EXCHANGE; there is a target then.
    pub exchange: bool,
}

/// Times that are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// Both become the present: no times are given, or both as UTIME_NOW.
    Now,
    /// At least one is given, or left out.
    Given,
}

/// Which bits of the mode a change takes away; by the names of [`ccfs_engine::SetAttr`] and [`ccfs_engine::WriteFlags`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Setuid, and setgid where the group may execute.
    pub kill_suidgid: bool,
    /// Setgid, also where the group may not execute.
    pub kill_sgid: bool,
}

impl Dropped {
    /// What is left of the mode.
    pub fn of(self, mode: u16) -> u16 {
        let mut kept = mode;
        if self.kill_suidgid {
            kept &= !SETUID;
        }
        let executable = mode & SETGID_EXECUTABLE == SETGID_EXECUTABLE;
        if self.kill_sgid || self.kill_suidgid && executable {
            kept &= !SETGID;
        }
        kept
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    uid: u32,
    gid: u32,
    /// Sorted.
    groups: Vec<u32>,
    capabilities: u64,
}

impl Caller {
    /// By a thread's credentials for files (fsuid, fsgid). `at_home`: it is in the daemon's user namespace, so that its capabilities are good
    /// here.
    pub fn new(who: &Credentials, at_home: bool) -> Caller {
        let mut groups = who.groups.clone();
        groups.sort_unstable();
        Caller {
            uid: who.uid,
            gid: who.gid,
            groups,
            capabilities: if at_home { who.capabilities } else { 0 },
        }
    }

    fn can(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0
    }

    fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.binary_search(&group).is_ok()
    }

    fn owns(&self, object: &Object<'_>) -> bool {
        self.uid == object.uid
    }

    fn acts_as_owner(&self, object: &Object<'_>) -> bool {
        self.owns(object) || self.can(CAP_FOWNER)
    }

    fn acts_for_group(&self, group: u32) -> bool {
        self.is_in(group) || self.can(CAP_FSETID)
    }

    /// Whether the access list says what this caller may do, if there is one. The owner's bits are the owner's. And Linux looks at no list
    /// whose mask, the group's bits, leaves nothing: then a user whom it names has what the bits say, be it those of others.
    pub fn asks_acl(&self, object: &Object<'_>) -> bool {
        !self.owns(object) && object.mode & GROUP_BITS != 0
    }

    /// All of `want`: [`READ`], [`WRITE`], [`EXECUTE`], with `|` between them. EACCES.
    pub fn may(&self, object: &Object<'_>, want: u16) -> Answer {
        if self.is_granted(object, want) || self.overrides(object, want) {
            Ok(())
        } else {
            Err(Errno(libc::EACCES))
        }
    }

    fn is_granted(&self, object: &Object<'_>, want: u16) -> bool {
        let class = match object.acl {
            Some(list) if self.asks_acl(object) => {
                return self.is_granted_by(list, object.gid, want);
            }
            _ if self.owns(object) => object.mode >> 6,
            _ if self.is_in(object.gid) => object.mode >> 3,
            _ => object.mode,
        };
        class & want == want
    }

    /// By the first entry for the user; else by any one for its groups that has all of `want`; the mask bounds both. Others get theirs only
    /// if no entry is for one of their groups.
    fn is_granted_by(&self, list: &Acl, group: u32, want: u16) -> bool {
        let entries = list.entries();
        let mask = entries.iter().find(|e| e.tag == acl::MASK);
        let mask = mask.map_or(READ | WRITE | EXECUTE, |e| e.perm);
        let named = entries
            .iter()
            .find(|e| e.tag == acl::USER && e.id == self.uid);
        if let Some(entry) = named {
            return entry.perm & mask & want == want;
        }
        let mut of_groups = entries
            .iter()
            .filter(|e| match e.tag {
                acl::GROUP_OBJ => self.is_in(group),
                acl::GROUP => self.is_in(e.id),
                _ => false,
            })
            .peekable();
        if of_groups.peek().is_some() {
            return of_groups.any(|e| e.perm & mask & want == want);
        }
        entries
            .iter()
            .any(|e| e.tag == acl::OTHER && e.perm & want == want)
    }

    fn overrides(&self, object: &Object<'_>, want: u16) -> bool {
        let is_dir = object.is_dir();
        let reads = want == READ || is_dir && want & WRITE == 0;
        // What nobody may execute is no program, for root neither.
        let sensible = is_dir || want & EXECUTE == 0 || object.mode & EXECUTABLE != 0;
        reads && self.can(CAP_DAC_READ_SEARCH) || sensible && self.can(CAP_DAC_OVERRIDE)
    }

    /// To put a new name into a directory: of a file, a directory, a link, or none (O_TMPFILE). EACCES.
    pub fn may_create(&self, dir: &Object<'_>) -> Answer {
        self.may(dir, WRITE | SEARCH)
    }

    /// The mode of a new file of any type but directory in `dir`, for which it asks with `mode`: a setgid executable of a directory's group is
    /// made only by who is of that group.
    pub fn mode_of_new(&self, dir: &Object<'_>, mode: u16) -> u16 {
        let inherits = dir.mode & SETGID != 0;
        let program = mode & SETGID_EXECUTABLE == SETGID_EXECUTABLE;
        if inherits && program && !self.acts_for_group(dir.gid) {
            mode & !SETGID
        } else {
            mode
        }
    }

    /// To take the name of `victim` out of `dir`: unlink(2), rmdir(2). EACCES; EPERM in a sticky directory.
    pub fn may_remove(&self, dir: &Object<'_>, victim: &Object<'_>) -> Answer {
        self.may_create(dir)?;
        let sticky = dir.mode & STICKY != 0;
        if sticky && !self.owns(dir) && !self.acts_as_owner(victim) {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }

    /// rename(2). EACCES; EPERM in a sticky directory; ENOTDIR and EISDIR for types that do not go together, which Linux looks at between
    /// rights.
    pub fn may_rename(&self, rename: &Rename<'_>) -> Answer {
        let Rename { moved, target, .. } = rename;
        self.may_remove(&rename.from, moved)?;
        match target {
            None => self.may_create(&rename.to)?,
            Some(target) => {
                self.may_remove(&rename.to, target)?;
                if !rename.exchange && moved.is_dir() != target.is_dir() {
                    let wrong = if moved.is_dir() {
                        libc::ENOTDIR
                    } else {
                        libc::EISDIR
                    };
                    return Err(Errno(wrong));
                }
            }
        }
        // A directory that gets another parent is changed itself: its `..` is.
        let swapped = target.as_ref().filter(|_| rename.exchange);
        for dir in [Some(moved), swapped].into_iter().flatten() {
            if rename.other_parent && dir.is_dir() {
                self.may(dir, WRITE)?;
            }
        }
        Ok(())
    }

    /// link(2) of `file` to a new name in `dir`. EPERM: not one that others may keep alive (`fs.protected_hardlinks`); EACCES.
    pub fn may_link(&self, dir: &Object<'_>, file: &Object<'_>, sysctls: &Sysctls) -> Answer {
        let harmless = || {
            file.is_file()
                && file.mode & SETUID == 0
                && file.mode & SETGID_EXECUTABLE != SETGID_EXECUTABLE
                && self.may(file, READ | WRITE).is_ok()
        };
        if sysctls.protected_hardlinks != 0 && !self.acts_as_owner(file) && !harmless() {
            return Err(Errno(libc::EPERM));
        }
        self.may_create(dir)
    }

    /// open(2) of what is there, with these flags; O_CREAT, O_EXCL and O_TMPFILE play no role. Types are looked at: ENOTDIR, ELOOP (a symbolic
    /// link), EISDIR. EACCES; EPERM for O_NOATIME of another one's file.
    pub fn may_open(&self, object: &Object<'_>, flags: i32) -> Answer {
        let has = |flag: i32| flags & flag != 0;
        if has(libc::O_DIRECTORY) && !object.is_dir() {
            return Err(Errno(libc::ENOTDIR));
        }
        if has(libc::O_PATH) {
            return Ok(());
        }
        let mut want = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            // 3 is neither, but asks for both.
            _ => READ | WRITE,
        };
        if has(libc::O_TRUNC) {
            want |= WRITE;
        }
        match object.kind() {
            libc::S_IFLNK => return Err(Errno(libc::ELOOP)),
            libc::S_IFDIR if want & WRITE != 0 => return Err(Errno(libc::EISDIR)),
            _ => self.may(object, want)?,
        }
        if has(libc::O_NOATIME) && !self.acts_as_owner(object) {
            return Err(Errno(libc::EPERM));
        }
        Ok(())
    }

    /// As [`Caller::may_open`], by a name that was found in `dir`: with O_CREAT also EEXIST (O_EXCL), EISDIR, and EACCES for what somebody else
    /// put into a sticky directory (`fs.protected_regular`, `fs.protected_fifos`). Where the name is not there it is [`Caller::may_create`],
    /// and whoever made the file may do with it what it opened it for.
    pub fn may_open_name(
        &self,
        dir: &Object<'_>,
        object: &Object<'_>,
        flags: i32,
        sysctls: &Sysctls,
    ) -> Answer {
        if flags & libc::O_CREAT != 0 && flags & libc::O_PATH == 0 {
            if flags & libc::O_EXCL != 0 {
                return Err(Errno(libc::EEXIST));
            }
            if object.is_dir() {
                return Err(Errno(libc::EISDIR));
            }
            if self.is_left_by_another(dir, object, sysctls) {
                return Err(Errno(libc::EACCES));
            }
        }
        self.may_open(object, flags)
    }

    /// Neither ours nor the directory's owner's, in a sticky directory in which others could have put it there for us. No capability helps.
    fn is_left_by_another(&self, dir: &Object<'_>, object: &Object<'_>, sysctls: &Sysctls) -> bool {
        let level = match object.kind() {
            libc::S_IFREG => sysctls.protected_regular,
            libc::S_IFIFO => sysctls.protected_fifos,
            // No setting speaks of devices and sockets: always where all may write, never where the group may.
            _ => 1,
        };
        let writers = match level {
            0 => 0,
            1 => 0o002,
            _ => 0o022,
        };
        dir.mode & STICKY != 0
            && object.uid != dir.uid
            && !self.owns(object)
            && dir.mode & writers != 0
    }

    /// chmod(2) to `mode`: the mode that is set. EPERM.
    pub fn may_chmod(&self, object: &Object<'_>, mode: u16) -> Result<u16, Errno> {
        if !self.acts_as_owner(object) {
            return Err(Errno(libc::EPERM));
        }
        let setgid = mode & SETGID != 0 && self.acts_for_group(object.gid);
        Ok(if setgid { mode } else { mode & !SETGID })
    }

    /// chown(2); what is `None` stays as it is. What becomes of the mode is in [`Caller::dropped_by_chown`]. EPERM.
    pub fn may_chown(&self, object: &Object<'_>, uid: Option<u32>, gid: Option<u32>) -> Answer {
        let mine = self.owns(object);
        let user = uid.is_none_or(|uid| mine && uid == object.uid);
        let group = gid.is_none_or(|gid| mine && (gid == object.gid || self.is_in(gid)));
        if user && group || self.can(CAP_CHOWN) {
            Ok(())
        } else {
            Err(Errno(libc::EPERM))
        }
    }

    /// What a chown that changes something, or sets what is there already, takes away; root's too.
    pub fn dropped_by_chown(&self, object: &Object<'_>) -> Dropped {
        let file = !object.is_dir();
        Dropped {
            kill_suidgid: file,
            kill_sgid: file && !self.acts_for_group(object.gid),
        }
    }

    /// What a write to a file takes away, and a change of its size.
    pub fn dropped_by_write(&self, file: &Object<'_>) -> Dropped {
        let unprivileged = !self.can(CAP_FSETID);
        Dropped {
            kill_suidgid: unprivileged,
            kill_sgid: unprivileged && !self.is_in(file.gid),
        }
    }

    /// utimensat(2). Where nothing is set (both UTIME_OMIT) Linux asks nobody. EACCES for the present, EPERM for given times.
    pub fn may_set_times(&self, object: &Object<'_>, times: Times) -> Answer {
        match times {
            _ if self.acts_as_owner(object) => Ok(()),
            Times::Now => self.may(object, WRITE),
            Times::Given => Err(Errno(libc::EPERM)),
        }
    }

    /// truncate(2); a descriptor that is open for writing may change the size without asking. EISDIR, EINVAL (no regular file), EACCES.
    pub fn may_resize(&self, object: &Object<'_>) -> Answer {
        match object.kind() {
            libc::S_IFDIR => Err(Errno(libc::EISDIR)),
            libc::S_IFREG => self.may(object, WRITE),
            _ => Err(Errno(libc::EINVAL)),
        }
    }
}

#[cfg(test)]
mod tests;
