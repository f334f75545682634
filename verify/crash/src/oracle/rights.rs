//! What rights do in the model: access control lists as acl(5) has them, flags of chattr(1), and the bits that a change of content kills.
use super::op::*;
use super::tree::*;

pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Whether an attribute is an access control list.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Nothing of the file changes.
pub const IMMUTABLE: u32 = 0x10;
/// Bytes are added and nothing else changes.
pub const APPEND: u32 = 0x20;
/// Flags that a caller may set: synchronous, immutable, append-only, nodump, noatime, dirsync, top of a hierarchy.
pub const FLAGS: u32 = 0x8 | IMMUTABLE | APPEND | 0x40 | 0x80 | FLAGS_OF_DIRS;
/// Those that only directories have.
pub const FLAGS_OF_DIRS: u32 = DIRSYNC | 0x2_0000;
const DIRSYNC: u32 = 0x1_0000;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o10;

/// Tags of entries.
const USER_OBJ: u16 = 1;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;
/// Version, and the bytes of an entry: tag, permissions, id.
const HEAD: usize = 4;
const ENTRY: usize = 8;

/// The bits of a mode say all that this list says.
pub(super) fn is_minimal(list: &[u8]) -> bool {
    list.len() == HEAD + 3 * ENTRY
}

/// The bytes of a list with these entries: tag, permissions, id.
pub fn list_of(entries: impl IntoIterator<Item = (u16, u16, u32)>) -> Bytes {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out.into()
}

/// An access control list as its attribute holds it: version, entries in order.
struct Acl(Vec<u8>);

impl Acl {
    fn tag(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn entries(&self) -> impl Iterator<Item = usize> + use<> {
        (HEAD..self.0.len()).step_by(ENTRY)
    }

    fn place(&self, tag: u16) -> Option<usize> {
        self.entries().find(|at| self.tag(*at) == tag)
    }

    fn perm(&self, tag: u16) -> u16 {
        self.place(tag).map_or(0, |at| u16::from(self.0[at + 2]))
    }

    /// The group's bits of the mode stand for the mask where there is one.
    fn classes(&self) -> [(u16, u32); 3] {
        let group = match self.place(MASK) {
            Some(_) => MASK,
            None => GROUP_OBJ,
        };
        [(USER_OBJ, 6), (group, 3), (OTHER, 0)]
    }

    fn mode(&self, mode: u16) -> u16 {
        let bits = self.classes().map(|(tag, shift)| self.perm(tag) << shift);
        mode & !0o777 | bits[0] | bits[1] | bits[2]
    }

    fn limit(&mut self, mode: u16, keep: bool) {
        for (tag, shift) in self.classes() {
            if let Some(at) = self.place(tag) {
                let old = if keep { self.0[at + 2] } else { 7 };
                self.0[at + 2] = old & ((mode >> shift) & 7) as u8;
            }
        }
    }
}

impl Node {
    fn set_access(&mut self, acl: Acl) {
        self.mode = acl.mode(self.mode);
        match is_minimal(&acl.0) {
            true => self.xattrs.remove(ACL_ACCESS),
            false => self.xattrs.insert(ACL_ACCESS.into(), acl.0.into()),
        };
    }

    /// A new inode in a directory: its default list, its flags.
    pub(super) fn inherit(&mut self, dir: &Node) {
        // Of what this model lets callers set: synchronous, nodump, noatime; of directories dirsync.
        self.flags = dir.flags
            & match self.mode & S_IFMT {
                S_IFDIR => 0x8 | 0x40 | 0x80 | DIRSYNC,
                S_IFREG => 0x8 | 0x40 | 0x80,
                _ => 0x40 | 0x80,
            };
        let default = dir.xattrs.get(ACL_DEFAULT);
        let Some(default) = default.filter(|_| self.mode & S_IFMT != S_IFLNK) else {
            return;
        };
        let mut access = Acl(default.to_vec());
        access.limit(self.mode, true);
        self.set_access(access);
        if self.is_dir() {
            self.xattrs.insert(ACL_DEFAULT.into(), default.clone());
        }
    }

    /// chmod of a file with an access list changes the list.
    pub(super) fn chmod(&mut self, mode: u16) {
        self.mode = self.mode & S_IFMT | mode & 0o7777;
        if let Some(access) = self.xattrs.get(ACL_ACCESS) {
            let mut access = Acl(access.to_vec());
            access.limit(mode, false);
            self.xattrs.insert(ACL_ACCESS.into(), access.0.into());
        }
    }

    /// A change of content, or of owner, by somebody without privileges takes the bits that lend rights.
    pub(super) fn kill_bits(&mut self) {
        let group = self.mode & GROUP_EXECUTES != 0;
        self.mode &= !(SETUID | if group { SETGID } else { 0 });
    }

    /// Would `kill_bits` do something?
    pub fn has_bits_to_kill(&self) -> bool {
        let group = self.mode & GROUP_EXECUTES != 0;
        self.mode & S_IFMT == S_IFREG && self.mode & (SETUID | if group { SETGID } else { 0 }) != 0
    }

    pub(super) fn set_xattr(&mut self, name: &Bytes, value: &Bytes) -> Result<(), Errno> {
        let is_link = self.mode & S_IFMT == S_IFLNK;
        match &**name {
            ACL_ACCESS | ACL_DEFAULT if is_link => return Err(libc::EOPNOTSUPP),
            ACL_DEFAULT if !self.is_dir() => return Err(libc::EACCES),
            ACL_ACCESS => self.set_access(Acl(value.to_vec())),
            _ => drop(self.xattrs.insert(name.clone(), value.clone())),
        }
        Ok(())
    }

    fn is(&self, flags: u32) -> Result<(), Errno> {
        match self.flags & flags {
            0 => Ok(()),
            _ => Err(libc::EPERM),
        }
    }
}

impl Tree {
    /// Whether flags allow an operation that is possible else. Survivors of a crash are not asked: a change of flags comes before what it
    /// allows in any case, as far as the contract puts it there.
    pub fn permits(&self, op: &Op) -> Result<(), Errno> {
        let whole = IMMUTABLE | APPEND;
        let node = |id: &NodeId| self.get(*id);
        match op {
            Op::Mknod { parent, .. }
            | Op::Mkdir { parent, .. }
            | Op::Symlink { parent, .. }
            | Op::Tmpfile { parent, .. } => node(parent)?.is(IMMUTABLE),
            Op::Link {
                node: file, parent, ..
            } => node(parent)?.is(IMMUTABLE).and(node(file)?.is(whole)),
            Op::Unlink { parent, name } | Op::Rmdir { parent, name } => {
                node(parent)?.is(whole)?;
                let victim = self.lookup(*parent, name)?;
                node(&victim)?.is(whole)
            }
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => {
                let moved = self.lookup(*from, name).ok();
                let target = self.lookup(*to, new_name).ok();
                if moved.is_some() && target == moved {
                    return Ok(());
                }
                node(from)?.is(whole)?;
                moved.map_or(Ok(()), |m| node(&m)?.is(whole))?;
                let in_target = match target.is_some() || *kind == RenameKind::Exchange {
                    true => whole,
                    false => IMMUTABLE,
                };
                node(to)?.is(in_target)?;
                target.map_or(Ok(()), |t| node(&t)?.is(whole))
            }
            Op::Write {
                node: file, offset, ..
            } => {
                let file = node(file)?;
                let within = if *offset < file.size { APPEND } else { 0 };
                file.is(IMMUTABLE | within)
            }
            Op::Allocate {
                node: file,
                keep_size: true,
                ..
            } => node(file)?.is(IMMUTABLE),
            Op::Allocate { node: file, .. }
            | Op::Punch { node: file, .. }
            | Op::Zero { node: file, .. }
            | Op::SetAttr { node: file, .. }
            | Op::SetXattr { node: file, .. }
            | Op::RemoveXattr { node: file, .. } => node(file)?.is(whole),
            Op::SetFlags { .. } | Op::Commit { .. } | Op::Publish { .. } => Ok(()),
        }
    }

    /// Whether an operation may be in an atomic group: what is append-only gets no content and no names that an abort would take back.
    pub fn permits_in_group(&self, op: &Op) -> Result<(), Errno> {
        let node = |id: &NodeId| self.get(*id);
        match op {
            Op::Mknod { parent, .. }
            | Op::Mkdir { parent, .. }
            | Op::Symlink { parent, .. }
            | Op::Link { parent, .. } => node(parent)?.is(APPEND),
            Op::Rename {
                from,
                name,
                to,
                new_name,
                ..
            } => {
                let moved = self.lookup(*from, name).ok();
                if moved.is_some() && self.lookup(*to, new_name).ok() == moved {
                    return Ok(());
                }
                node(to)?.is(APPEND)
            }
            Op::Write { node: file, .. } | Op::Allocate { node: file, .. } => {
                node(file)?.is(APPEND)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Bytes {
        let id = |tag: u16| if tag == 2 { 1000 } else { u32::MAX };
        list_of(entries.iter().map(|(tag, perm)| (*tag, *perm, id(*tag))))
    }

    #[test]
    fn lists_and_modes_go_together() {
        let tree = Tree::empty();
        let mut dir = (*tree.nodes[&ROOT]).clone();
        let list = acl(&[(1, 7), (2, 6), (4, 5), (16, 7), (32, 0)]);
        dir.set_xattr(&ACL_DEFAULT.into(), &list).unwrap();
        let mut file = Node {
            mode: S_IFREG | 0o644,
            ..dir.clone()
        };
        file.xattrs.clear();
        file.inherit(&dir);
        assert_eq!(file.mode, S_IFREG | 0o640);
        let access = acl(&[(1, 6), (2, 6), (4, 5), (16, 4), (32, 0)]);
        assert_eq!(file.xattrs[ACL_ACCESS], access);
        file.chmod(0o2771);
        assert_eq!(
            file.xattrs[ACL_ACCESS],
            acl(&[(1, 7), (2, 6), (4, 5), (16, 7), (32, 1)])
        );
        file.kill_bits();
        assert_eq!(file.mode, S_IFREG | 0o771);
        let minimal = acl(&[(1, 6), (4, 4), (32, 4)]);
        file.set_xattr(&ACL_ACCESS.into(), &minimal).unwrap();
        assert_eq!((file.mode, file.xattrs.len()), (S_IFREG | 0o644, 0));
        assert_eq!(
            file.set_xattr(&ACL_DEFAULT.into(), &minimal),
            Err(libc::EACCES)
        );
    }
}
