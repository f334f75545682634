//! What several small files of a directory begin with, told in one answer: a program that reads a tree need not wait for each.
use super::Direct;
use super::names::checked;
use super::session::{Executed, Read, Refused, Session};
use crate::rights;
use ccfs_client::direct::layout::{Attr, Content, DATA_MAX, HEADS_MAX, SMALL, reply_at};
use ccfs_engine::{Calls, Ino};
use std::sync::Arc;
use zerocopy::IntoBytes;

impl Direct {
    /// Attributes and content of names in `dir`, until the reply is full. Errors: EINVAL there are no names, too many, or some that are none; EACCES.
    pub fn heads(&self, session: &Arc<Session>, read: &Read, volume: &Calls, dir: Ino) -> Executed {
        let entry = &read.entry;
        let room = (entry.len as usize - reply_at(entry.bytes as usize)).min(DATA_MAX);
        let split = || read.bytes.split(|b| *b == 0);
        if split().count() > HEADS_MAX {
            return Err(Refused::Errno(libc::EINVAL));
        }
        self.may(session, volume, dir, rights::SEARCH)?;
        let (mut out, mut content) = (Vec::new(), Vec::new());
        for name in split() {
            let name = checked(name)?;
            content.clear();
            let attr = self.head(session, volume, (dir, name), &mut content)?;
            let bytes = size_of::<Attr>() + content.len().next_multiple_of(8);
            if out.len() + bytes > room {
                break;
            }
            out.extend_from_slice(attr.unwrap_or_default().as_bytes());
            out.extend_from_slice(&content);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        Ok(out)
    }

    /// What is in small files that were listed, each behind its place in the listing, as far as `out` has room for that, and as nothing has to wait for the
    /// device: nobody has asked for any of them yet.
    pub fn contents(
        &self,
        session: &Arc<Session>,
        files: &[(u32, Attr)],
        (out, most): (&mut Vec<u8>, usize),
    ) {
        let volume = self.volume.non_blocking();
        let mut content = Vec::new();
        for (nth, attr) in files {
            let padded = (attr.size as usize).next_multiple_of(8);
            if !attr.is_small_file() || out.len() + size_of::<Content>() + padded > most {
                continue;
            }
            let ino = attr.ino as Ino;
            let told = self.can_be_held(ino)
                && self.may(session, volume, ino, rights::READ).is_ok()
                && volume.read_in_advance(ino, SMALL, &mut content).is_ok()
                && content.len() as u64 == attr.size;
            if told {
                let head = Content {
                    nth: *nth,
                    len: content.len() as u32,
                };
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(&content);
                out.resize(out.len().next_multiple_of(8), 0);
            }
        }
    }

    /// Of one name. `None`: it is not told, and whoever opens the file is told why. Error: EAGAIN, it would have to wait.
    fn head(
        &self,
        session: &Arc<Session>,
        volume: &Calls,
        (dir, name): (Ino, &[u8]),
        content: &mut Vec<u8>,
    ) -> Result<Option<Attr>, Refused> {
        let mut found = || {
            let attr = volume.lookup(dir, name)?;
            if !attr.is_file() || attr.size > SMALL as u64 || !self.can_be_held(attr.ino) {
                return Ok(None);
            }
            self.may(session, volume, attr.ino, rights::READ)?;
            let Some(only) = self.attr_of_only(session, volume, dir, attr.ino) else {
                return Ok(None);
            };
            volume.read_in_advance(attr.ino, SMALL, content)?;
            Ok((content.len() as u64 == only.size).then_some(only))
        };
        match found() {
            Err(Refused::Errno(libc::EAGAIN)) => Err(Refused::Errno(libc::EAGAIN)),
            Ok(Some(attr)) => Ok(Some(attr)),
            Ok(None) | Err(_) => {
                content.clear();
                Ok(None)
            }
        }
    }
}
