//! POSIX access control lists (POSIX.1e draft 17, acl(5)): the system calls' form (version 2), ext4's form (version 1), and
//! what creation and chmod do with them.

use crate::{Error, Result};

/// Tag of the entry for the owner (`ACL_USER_OBJ`).
pub const USER_OBJ: u16 = 0x01;
/// Tag of an entry for a named user (`ACL_USER`).
pub const USER: u16 = 0x02;
/// Tag of the entry for the owning group (`ACL_GROUP_OBJ`).
pub const GROUP_OBJ: u16 = 0x04;
/// Tag of an entry for a named group (`ACL_GROUP`).
pub const GROUP: u16 = 0x08;
/// Tag of the entry that bounds what named users and all groups get (`ACL_MASK`).
pub const MASK: u16 = 0x10;
/// Tag of the entry for everybody else (`ACL_OTHER`).
pub const OTHER: u16 = 0x20;

/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;
const SYSCALL_VERSION: u32 = 2;
const DISK_VERSION: u32 = 1;

/// One entry: a class or a named user or group, with permission bits rwx (4, 2, 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// One of `USER_OBJ` to `OTHER`.
    pub tag: u16,
    /// Permission bits: read 4, write 2, execute 1.
    pub perm: u16,
    /// uid or gid of `USER` and `GROUP` entries; `u32::MAX` for the others.
    pub id: u32,
}

impl AclEntry {
    fn named(&self) -> bool {
        matches!(self.tag, USER | GROUP)
    }
}

/// A valid list: owner, named users, owning group, named groups, mask (there when anybody is named), others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Acl {
    /// A list from its entries, in the order of the classes. `None`: it breaks a rule of acl(5).
    pub fn new(entries: Vec<AclEntry>) -> Option<Acl> {
        let (mut last, mut seen) = (0, 0);
        for entry in &entries {
            let known = matches!(
                entry.tag,
                USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER
            );
            let repeated = entry.tag == last && !entry.named();
            if !known
                || repeated
                || entry.tag < last
                || entry.perm > 7
                || (entry.named() && entry.id == NO_ID)
            {
                return None;
            }
            last = entry.tag;
            seen |= entry.tag;
        }
        let needed = if seen & (USER | GROUP) != 0 {
            USER_OBJ | GROUP_OBJ | OTHER | MASK
        } else {
            USER_OBJ | GROUP_OBJ | OTHER
        };
        let entries = entries
            .into_iter()
            .map(|e| AclEntry {
                id: if e.named() { e.id } else { NO_ID },
                ..e
            })
            .collect();
        (seen & needed == needed).then_some(Acl { entries })
    }

    /// The entries, sorted by tag.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// From the value of setxattr(2). `None`: no entries, which removes the list. EOPNOTSUPP for another version, else EINVAL.
    pub fn from_syscall(value: &[u8]) -> Result<Option<Acl>> {
        let invalid = || Error::Errno(libc::EINVAL);
        if value.len() < 4 {
            return Err(invalid());
        }
        if u32_at(value, 0) != SYSCALL_VERSION {
            return Err(Error::Errno(libc::EOPNOTSUPP));
        }
        if !(value.len() - 4).is_multiple_of(8) {
            return Err(invalid());
        }
        let read = |e: &[u8]| AclEntry {
            tag: u16_at(e, 0),
            perm: u16_at(e, 2),
            id: u32_at(e, 4),
        };
        let entries: Vec<AclEntry> = value[4..].chunks_exact(8).map(read).collect();
        if entries.is_empty() {
            return Ok(None);
        }
        Acl::new(entries).map(Some).ok_or_else(invalid)
    }

    /// The value that getxattr(2) returns.
    pub fn to_syscall(&self) -> Vec<u8> {
        let mut out = SYSCALL_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            out.extend(entry.tag.to_le_bytes());
            out.extend(entry.perm.to_le_bytes());
            out.extend(entry.id.to_le_bytes());
        }
        out
    }

    /// From the value of ext4's attribute (version 1: only named entries carry an id).
    pub fn from_disk(value: &[u8]) -> Result<Acl> {
        let bad = || Error::corrupt("malformed access control list".into());
        if value.len() < 4 || u32_at(value, 0) != DISK_VERSION {
            return Err(bad());
        }
        let mut entries = Vec::new();
        let mut at = 4;
        while at < value.len() {
            if value.len() - at < 4 {
                return Err(bad());
            }
            let mut entry = AclEntry {
                tag: u16_at(value, at),
                perm: u16_at(value, at + 2),
                id: NO_ID,
            };
            at += 4;
            if entry.named() {
                if value.len() - at < 4 {
                    return Err(bad());
                }
                entry.id = u32_at(value, at);
                at += 4;
            }
            entries.push(entry);
        }
        Acl::new(entries).ok_or_else(bad)
    }

    /// The value of ext4's attribute.
    pub fn to_disk(&self) -> Vec<u8> {
        let mut out = DISK_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            out.extend(entry.tag.to_le_bytes());
            out.extend(entry.perm.to_le_bytes());
            if entry.named() {
                out.extend(entry.id.to_le_bytes());
            }
        }
        out
    }

    /// The minimal list that says what the permission bits say.
    pub fn from_mode(mode: u16) -> Acl {
        let entry = |tag, shift: u32| AclEntry {
            tag,
            perm: (mode >> shift) & 7,
            id: NO_ID,
        };
        Acl {
            entries: vec![entry(USER_OBJ, 6), entry(GROUP_OBJ, 3), entry(OTHER, 0)],
        }
    }

    /// True when permission bits say all that this list says.
    pub fn is_minimal(&self) -> bool {
        self.entries
            .iter()
            .all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The permission bits of `mode` as this access list wants them: the group's bits are the mask where there is one.
    /// The flag tells that the bits say everything, so that the list need not be stored.
    pub fn equiv_mode(&self, mode: u16) -> (u16, bool) {
        let bits = self
            .classes()
            .map(|(tag, shift)| self.perm(tag).unwrap_or(0) << shift);
        let bits = bits.into_iter().fold(0, |all, bits| all | bits);
        ((mode & !0o777) | bits, self.is_minimal())
    }

    /// What a new file in a directory with this default list gets, when it is asked for with `mode` (the umask plays no role):
    /// its access list (`None`: the bits suffice) and its mode. Each class gets what both the list and the request grant.
    pub fn create_masq(&self, mode: u16) -> (Option<Acl>, u16) {
        let mut access = self.clone();
        for (tag, shift) in self.classes() {
            access.update(tag, |perm| perm & (mode >> shift));
        }
        let (mode, minimal) = access.equiv_mode(mode);
        ((!minimal).then_some(access), mode)
    }

    /// The access list after chmod: the group's bits set the mask where there is one, else the owning group.
    pub fn chmod_masq(&self, mode: u16) -> Acl {
        let mut changed = self.clone();
        for (tag, shift) in self.classes() {
            changed.update(tag, |_| (mode >> shift) & 7);
        }
        changed
    }

    /// Whose permissions the mode's bits are, and where they stand in it: the group's bits are the mask where there is one.
    fn classes(&self) -> [(u16, u32); 3] {
        let masked = self.perm(MASK).is_some();
        let group = if masked { MASK } else { GROUP_OBJ };
        [(USER_OBJ, 6), (group, 3), (OTHER, 0)]
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn update(&mut self, tag: u16, f: impl Fn(u16) -> u16) {
        for entry in self.entries.iter_mut().filter(|e| e.tag == tag) {
            entry.perm = f(entry.perm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u16, perm: u16, id: u32) -> AclEntry {
        AclEntry { tag, perm, id }
    }

    fn extended() -> Acl {
        Acl::new(vec![
            entry(USER_OBJ, 7, NO_ID),
            entry(USER, 6, 1000),
            entry(USER, 4, 1001),
            entry(GROUP_OBJ, 5, NO_ID),
            entry(GROUP, 7, 50),
            entry(MASK, 6, NO_ID),
            entry(OTHER, 4, NO_ID),
        ])
        .unwrap()
    }

    #[test]
    fn both_forms_round_trip() {
        for acl in [extended(), Acl::from_mode(0o640)] {
            assert_eq!(
                Acl::from_syscall(&acl.to_syscall()).unwrap(),
                Some(acl.clone())
            );
            assert_eq!(Acl::from_disk(&acl.to_disk()).unwrap(), acl);
        }
        assert_eq!(extended().to_disk().len(), 4 + 4 * 4 + 3 * 8);
        assert_eq!(extended().to_syscall().len(), 4 + 7 * 8);
        assert_eq!(Acl::from_syscall(&[2, 0, 0, 0]).unwrap(), None);
    }

    #[test]
    fn rules_are_checked() {
        let (u, g, o) = (
            entry(USER_OBJ, 7, 0),
            entry(GROUP_OBJ, 7, 0),
            entry(OTHER, 7, 0),
        );
        assert!(Acl::new(vec![u, g, o]).is_some());
        let bad = [
            vec![],
            vec![u, g],
            vec![g, u, o],
            vec![u, u, g, o],
            vec![u, g, o, o],
            vec![u, entry(USER, 7, 3), g, o],
            vec![u, entry(USER, 7, NO_ID), g, entry(MASK, 7, 0), o],
            vec![u, g, entry(0x40, 7, 0), o],
            vec![u, g, entry(OTHER, 8, 0)],
            vec![u, g, entry(3, 7, 0), o],
        ];
        for list in bad {
            assert!(Acl::new(list.clone()).is_none(), "{list:?}");
        }
        assert_eq!(
            Acl::from_syscall(&[2, 0, 0]).unwrap_err().errno(),
            libc::EINVAL
        );
        assert_eq!(
            Acl::from_syscall(&[1, 0, 0, 0]).unwrap_err().errno(),
            libc::EOPNOTSUPP
        );
        let mut cut = extended().to_syscall();
        cut.pop();
        assert_eq!(Acl::from_syscall(&cut).unwrap_err().errno(), libc::EINVAL);
        let disk = extended().to_disk();
        for len in 0..disk.len() {
            assert!(
                matches!(Acl::from_disk(&disk[..len]), Err(Error::Corrupt(_))),
                "{len}"
            );
        }
    }

    #[test]
    fn modes() {
        assert_eq!(Acl::from_mode(0o640).equiv_mode(0o100777), (0o100640, true));
        assert_eq!(extended().equiv_mode(0o100000), (0o100764, false));
        let (acl, mode) = extended().create_masq(0o100644);
        assert_eq!(mode, 0o100644);
        let acl = acl.unwrap();
        assert_eq!(
            (
                acl.perm(USER_OBJ),
                acl.perm(MASK),
                acl.perm(GROUP_OBJ),
                acl.perm(OTHER)
            ),
            (Some(6), Some(4), Some(5), Some(4))
        );
        assert_eq!(
            Acl::from_mode(0o750).create_masq(0o100666),
            (None, 0o100640)
        );
        let changed = extended().chmod_masq(0o100421);
        assert_eq!(
            (changed.perm(MASK), changed.perm(GROUP_OBJ)),
            (Some(2), Some(5))
        );
        assert_eq!(changed.equiv_mode(0).0, 0o421);
        assert_eq!(
            Acl::from_mode(0o777).chmod_masq(0o640),
            Acl::from_mode(0o640)
        );
    }
}
