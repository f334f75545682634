//! Names: what is made, found, removed, renamed and listed in the directories that a session holds.
use super::Direct;
use super::checks::Rights;
use super::execute::Opened;
use super::grants::is_birth;
use super::session::{Consumer, Executed, Read, Refused, Session};
use crate::rights;
use crate::wire::Errno;
use ccfs_client::direct::layout::{
    ASKED, Attr, BY_CALL, DATA_MAX, DIRECTORY, HANDLES, IN_ADVANCE, NO_HANDLE, NO_REPLACE, Name,
    READING, WITH_ATTR, WITH_HEADS, WRITING, op, reply_at,
};
use ccfs_engine::{Born, Calls, Ino, ListEntry, RenameFlags};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Longest target of a symbolic link, bytes.
const TARGET_MAX: usize = 4095;

/// Why a directory is listed.
#[derive(Clone, Copy)]
enum Listing {
    /// It is read, from a position on.
    Read { from: u64, with_attr: bool },
    /// It may be read later.
    InAdvance { with_attr: bool },
}

/// Files of which attributes are told, by their places among the names.
type ListedFiles = Vec<(u32, Attr)>;

impl Direct {
    /// A new file or directory in `dir`, with a handle.
    pub fn birth(
        &self,
        session: &Arc<Session>,
        consumer: &mut Consumer,
        read: &Read,
        volume: &Calls,
        dir: Ino,
    ) -> Executed {
        self.check_new_handle(consumer, read)?;
        let attr = self.make(session, read, volume, dir)?;
        if let Some(ino) = read.says.ino {
            consumer.grants.use_up(ino);
        }
        if is_birth(&read.entry) {
            consumer.grants.note_birth(dir);
        }
        let born = Opened {
            newborn: true,
            ..Opened::of(&attr, read.entry.h2, READING | WRITING)
        };
        self.open(session, consumer, volume, born)?;
        Ok(self.attr_of(&attr).as_bytes().to_vec())
    }

    /// Error: EINVAL, the number is none of a handle, or in use.
    pub fn check_new_handle(&self, consumer: &Consumer, read: &Read) -> Result<(), Refused> {
        let number = read.entry.h2;
        match number == 0 || number >= HANDLES || consumer.handles.contains_key(&number) {
            true => Err(Refused::Errno(libc::EINVAL)),
            false => Ok(()),
        }
    }

    /// The operation of it.
    pub fn make(
        &self,
        session: &Session,
        read: &Read,
        volume: &Calls,
        dir: Ino,
    ) -> Result<ccfs_engine::Attr, Refused> {
        let entry = &read.entry;
        let name = checked(&read.bytes)?;
        let cx = self.context(session, read, (entry.b >> 32) as u32);
        let bits = entry.b as u16 & 0o7777;
        let mut mode = bits | libc::S_IFREG as u16;
        if !session.user.may_all {
            let in_dir = Rights::of(session, volume, dir)?;
            in_dir.check(|caller, dir| caller.may(dir, rights::SEARCH))?;
            in_dir.check(|caller, dir| caller.may_create(dir))?;
            mode = in_dir.mode_of_new(mode);
        }
        let born = match (entry.op, entry.a, read.says.ino) {
            (_, 1.., None) => return Err(Refused::Errno(libc::EINVAL)),
            (_, _, ino) => ino.map(|ino| Born {
                ino,
                time: read.says.posted,
            }),
        };
        Ok(match entry.op {
            // What else there is in a mode is no directory's to ask for: mkdir(2).
            op::MKDIR => {
                let bits = bits & 0o1777;
                match born {
                    Some(born) => {
                        volume.create_born(&cx, dir, name, bits | libc::S_IFDIR as u16, born)?
                    }
                    None => volume.mkdir(&cx, dir, name, bits)?,
                }
            }
            _ => match born {
                Some(born) => volume.create_born(&cx, dir, name, mode, born)?,
                None => volume.mknod(&cx, dir, name, mode, 0)?,
            },
        })
    }

    pub fn look_up(
        &self,
        session: &Arc<Session>,
        consumer: &mut Consumer,
        read: &Read,
        volume: &Calls,
        dir: Ino,
    ) -> Executed {
        let number = read.entry.h2;
        self.may(session, volume, dir, rights::SEARCH)?;
        let attr = volume.lookup(dir, checked(&read.bytes)?)?;
        let is_listed = read.entry.b as u32 & DIRECTORY != 0;
        if is_listed && !attr.is_dir() {
            return Err(Refused::Errno(libc::ENOTDIR));
        }
        let mut content = Vec::new();
        if number != NO_HANDLE {
            self.check_new_handle(consumer, read)?;
            let access = read.entry.b as u32 & (READING | WRITING);
            // No directory is opened for writing, whoever asks.
            if attr.is_file() && access != 0 || attr.is_dir() && access == READING {
                let flag = |bit, right| if access & bit != 0 { right } else { 0 };
                let want = flag(READING, rights::READ) | flag(WRITING, rights::WRITE);
                self.may(session, volume, attr.ino, want)?;
            }
            let is_read = attr.is_file() && access & READING != 0 && read.entry.a != 0;
            // The content is read first: whoever has to wait for it has no handle yet.
            if is_read && read.entry.flags & ASKED == 0 {
                // Its program has it already.
                volume.note_access(attr.ino)?;
            } else if is_read {
                let room = read.entry.len as usize - reply_at(read.entry.bytes as usize);
                let most = room.saturating_sub(size_of::<Attr>());
                let most = usize::try_from(read.entry.a).map_or(most, |n| n.min(most));
                volume.read(attr.ino, 0, most, &mut content)?;
            }
            let found = Opened::of(&attr, number, access);
            self.open(session, consumer, volume, found)?;
            let is_waited_for = read.entry.flags & (ASKED | BY_CALL) != 0;
            let is_listed = is_listed && is_waited_for && read.entry.a != 0;
            let is_listed = is_listed && access == READING && attr.nlink != 0;
            // Only what is held is listed: others could change it.
            if is_listed && consumer.held(number).is_ok() {
                let listed = self.listing_in_advance(session, read, volume, attr.ino);
                if listed.is_err() {
                    self.close(session, consumer, number);
                }
                content = listed?;
            }
        }
        let mut out = self.attr_of(&attr).as_bytes().to_vec();
        out.append(&mut content);
        Ok(out)
    }

    pub fn unlink(&self, session: &Session, read: &Read, volume: &Calls, dir: Ino) -> Executed {
        let name = checked(&read.bytes)?;
        let cx = self.context(session, read, 0);
        if !session.user.may_all {
            let in_dir = Rights::of(session, volume, dir)?;
            in_dir.check(|caller, dir| caller.may(dir, rights::SEARCH))?;
            let lost = Rights::of(session, volume, volume.lookup(dir, name)?.ino)?;
            in_dir.check(|caller, dir| caller.may_remove(dir, &lost.object()))?;
        }
        match read.entry.op {
            op::RMDIR => volume.rmdir(&cx, dir, name)?,
            _ => volume.unlink(&cx, dir, name)?,
        }
        Ok(Vec::new())
    }

    pub fn rename(
        &self,
        session: &Session,
        read: &Read,
        volume: &Calls,
        from: Ino,
        to: Ino,
    ) -> Executed {
        let (old, new) = two_names(read)?;
        let noreplace = match read.entry.a {
            0 => false,
            NO_REPLACE => true,
            _ => return Err(Refused::Errno(libc::EINVAL)),
        };
        if from != to || !session.user.may_all {
            self.check_rename(session, volume, (from, old), (to, new), noreplace)?;
        }
        if from != to {
            self.note_renamed(volume, (from, old), to)?;
        }
        let flags = RenameFlags {
            noreplace,
            ..RenameFlags::default()
        };
        let cx = self.context(session, read, 0);
        volume.rename(&cx, from, old, to, new, flags)?;
        Ok(Vec::new())
    }

    /// Another name of a file, in a directory that the session holds as well. Error: EOPNOTSUPP, only the kernel can.
    pub fn link(
        &self,
        session: &Arc<Session>,
        read: &Read,
        volume: &Calls,
        from: Ino,
        to: Ino,
    ) -> Executed {
        const ELSEWHERE: Refused = Refused::Errno(libc::EOPNOTSUPP);
        let (old, new) = two_names(read)?;
        // Whom `fs.protected_hardlinks` concerns the kernel knows.
        if !session.user.may_all {
            return Err(ELSEWHERE);
        }
        let file = volume.lookup(from, old)?;
        if !file.is_file() {
            return Err(ELSEWHERE);
        }
        // First where its names are, then whether the kernel knows it: who breaks its hold has it the other way round.
        let first = self.note_linked(session, file.ino, [from, to])?;
        // What was accepted is done all the same: who breaks its hold looks again where its names are once that is done.
        if self.kernel_knows(file.ino) && read.entry.flags & ASKED != 0 {
            // Else he is about to look where its names are.
            if first {
                self.linked.forget(file.ino);
            }
            return Err(ELSEWHERE);
        }
        volume.link(&self.context(session, read, 0), file.ino, to, new)?;
        Ok(Vec::new())
    }

    pub fn symlink(&self, session: &Session, read: &Read, volume: &Calls, dir: Ino) -> Executed {
        let (name, target) = two_parts(read)?;
        let name = checked(name)?;
        match target.len() {
            0 => return Err(Refused::Errno(libc::ENOENT)),
            1..=TARGET_MAX => {}
            _ => return Err(Refused::Errno(libc::ENAMETOOLONG)),
        }
        if target.contains(&0) {
            return Err(Refused::Errno(libc::EINVAL));
        }
        if !session.user.may_all {
            let in_dir = Rights::of(session, volume, dir)?;
            in_dir.check(|caller, dir| caller.may(dir, rights::SEARCH))?;
            match volume.lookup(dir, name) {
                Ok(_) => return Err(Refused::Errno(libc::EEXIST)),
                Err(e) if e.errno() == libc::ENOENT => {}
                Err(e) => return Err(e.into()),
            }
            in_dir.check(|caller, dir| caller.may_create(dir))?;
        }
        volume.symlink(&self.context(session, read, 0), dir, name, target)?;
        Ok(Vec::new())
    }

    pub fn read_link(&self, session: &Session, read: &Read, volume: &Calls, dir: Ino) -> Executed {
        self.may(session, volume, dir, rights::SEARCH)?;
        let link = volume.lookup(dir, checked(&read.bytes)?)?;
        Ok(volume.readlink(link.ino)?)
    }

    pub fn list(&self, session: &Arc<Session>, read: &Read, volume: &Calls, dir: Ino) -> Executed {
        let entry = &read.entry;
        let room = entry.len as usize - reply_at(entry.bytes as usize);
        let read_from = |with_attr| Listing::Read {
            from: entry.a,
            with_attr,
        };
        let how = match (entry.b, entry.a) {
            (0, _) => read_from(false),
            (WITH_ATTR, _) => read_from(true),
            (IN_ADVANCE, 0) => Listing::InAdvance { with_attr: false },
            _ => return Err(Refused::Errno(libc::EINVAL)),
        };
        Ok(self.listing(session, volume, dir, room, how)?.0)
    }

    /// What somebody who finds a directory may want to know of it later.
    fn listing_in_advance(
        &self,
        session: &Arc<Session>,
        read: &Read,
        volume: &Calls,
        dir: Ino,
    ) -> Executed {
        let entry = &read.entry;
        let room = entry.len as usize - reply_at(entry.bytes as usize);
        let room = room.min(DATA_MAX).saturating_sub(size_of::<Attr>());
        let most = |room| usize::try_from(entry.a).map_or(room, |a| a.min(room));
        let how = Listing::InAdvance { with_attr: true };
        if entry.b as u32 & WITH_HEADS == 0 {
            return Ok(self.listing(session, volume, dir, most(room), how)?.0);
        }
        let mut out = vec![0; size_of::<u64>()];
        let room = room.saturating_sub(out.len());
        let (names, files) = self.listing(session, volume, dir, most(room), how)?;
        out[..size_of::<u64>()].copy_from_slice((names.len() as u64).as_bytes());
        out.extend_from_slice(&names);
        self.contents(session, &files, (&mut out, size_of::<u64>() + room));
        Ok(out)
    }

    /// As many names as there is room for, bytes.
    fn listing(
        &self,
        session: &Arc<Session>,
        volume: &Calls,
        dir: Ino,
        room: usize,
        how: Listing,
    ) -> Result<(Vec<u8>, ListedFiles), Refused> {
        let (Listing::Read { with_attr, .. } | Listing::InAdvance { with_attr }) = how;
        // Who may read a directory may see its names; what they lead to takes the right to search it.
        let tells = with_attr && self.may(session, volume, dir, rights::SEARCH).is_ok();
        let attr_len = if with_attr { size_of::<Attr>() } else { 0 };
        let (mut out, mut places, mut nth) = (Vec::new(), Vec::new(), 0);
        let mut each = |one: ListEntry| {
            let len = one.name.len();
            let bytes = size_of::<Name>() + len.next_multiple_of(8) + attr_len;
            if out.len() + bytes > room {
                return false;
            }
            let head = Name {
                ino: one.ino.into(),
                next: one.next,
                len: len as u32,
                kind: u32::from(one.dtype),
            };
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(&one.name);
            out.resize(out.len().next_multiple_of(8), 0);
            if with_attr {
                if tells && one.dtype != libc::DT_DIR {
                    places.push((nth, out.len(), one.ino));
                }
                out.resize(out.len() + attr_len, 0);
            }
            nth += 1;
            true
        };
        match how {
            Listing::Read { from, .. } => volume.readdir(dir, from, &mut each)?,
            Listing::InAdvance { .. } => volume.readdir_in_advance(dir, &mut each)?,
        }
        let mut files = Vec::new();
        for (nth, place, ino) in places {
            if let Some(attr) = self.attr_of_only(session, volume, dir, ino) {
                out[place..place + attr_len].copy_from_slice(attr.as_bytes());
                files.push((nth, attr));
            }
        }
        Ok((out, files))
    }

    /// The attributes of a file that has one name, in a directory that the session holds: they stay as they are as long as the session changes
    /// nothing. `None`: others may change it, or to know it takes a wait.
    pub fn attr_of_only(
        &self,
        session: &Arc<Session>,
        volume: &Calls,
        dir: Ino,
        ino: Ino,
    ) -> Option<Attr> {
        let holder = self.holder(ino);
        let is_others = holder.is_some_and(|holder| !Arc::ptr_eq(&holder, session));
        if is_others || self.kernel_knows_unheld(ino) {
            return None;
        }
        let attr = volume.entry_attr(dir, ino).ok()?;
        (attr.nlink == 1).then(|| self.attr_of(&attr))
    }
}

/// An entry's bytes: the first `b` ones, and the rest.
fn two_parts(read: &Read) -> Result<(&[u8], &[u8]), Errno> {
    let first = usize::try_from(read.entry.b).unwrap_or(usize::MAX);
    let split = read.bytes.split_at_checked(first);
    split.ok_or(Errno(libc::EINVAL))
}

fn two_names(read: &Read) -> Result<(&[u8], &[u8]), Refused> {
    let (old, new) = two_parts(read)?;
    Ok((checked(old)?, checked(new)?))
}

/// A name of one file, as the kernel would let it through.
pub fn checked(bytes: &[u8]) -> Result<&[u8], Refused> {
    if bytes == b"." || bytes == b".." {
        return Err(Refused::Errno(libc::EINVAL));
    }
    Ok(crate::wire::checked_name(bytes)?)
}
