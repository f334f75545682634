//! Calls on a descriptor that this library stands for.
use crate::acl;
use crate::answer::{Answer, Stop};
use crate::attributes::{mode, owner, put_stat, put_statx, times};
use crate::count::Reason;
use crate::listing;
use crate::program;
use crate::real;
use crate::region::region;
use crate::state::State;
use crate::table::{Open, What};
use ccfs_client::direct::layout::{SetAttr, set};
use ccfs_client::direct::{Attr, File};
use std::sync::Arc;

/// Bytes that a call reads or writes at most (MAX_RW_COUNT).
const MOST: u64 = 0x7fff_f000;
/// Bytes of several buffers that are written at a time.
const JOINED: u64 = 4 << 20;
/// Bytes that are copied at a time.
const COPY: u64 = 128 << 10;
/// Buffers of a call at most (UIO_MAXIOV).
const BUFFERS: u64 = 1024;

/// One call on something that is open.
pub struct On<'s> {
    pub state: &'s State,
    pub open: Arc<Open>,
}

/// Where it reads or writes.
#[derive(Clone, Copy)]
pub enum At {
    /// Where the last call ended.
    Position,
    Offset(i64),
}

impl On<'_> {
    /// Makes it real, and lets the kernel make the call.
    pub fn leave(&self, why: Reason) -> Answer {
        real::make(self.state, &self.open, why)?;
        Err(Stop::Kernel)
    }

    fn file(&self) -> Result<&File, Stop> {
        match &self.open.what {
            What::File(file) => Ok(file),
            What::Dir(..) => Err(Stop::Errno(libc::EISDIR)),
        }
    }

    /// The kernel knows it by now, and need not be kept from it.
    fn left_behind(&self) {
        if !self.is_held() {
            let _ = real::make(self.state, &self.open, Reason::BrokenHold);
        }
    }

    pub fn read(&self, buffers: &[(u64, u64)], at: At) -> Answer {
        if !self.open.read {
            return Err(Stop::Errno(libc::EBADF));
        }
        let file = self.file()?;
        let from = |offset: u64| {
            let mut done = 0;
            for (address, len) in buffers {
                let out = program::room(*address, *len)?;
                let n = self.read_at(file, out, offset + done)?;
                done += n as u64;
                if n < out.len() {
                    break;
                }
            }
            Ok::<u64, Stop>(done)
        };
        let done = match at {
            At::Offset(offset) => {
                let place = self.open.place();
                if place.gone {
                    return Err(Stop::Kernel);
                }
                from(offset_of(offset)?)?
            }
            At::Position => {
                let mut place = self.open.place_mut();
                if place.gone {
                    return Err(Stop::Kernel);
                }
                self.settle(file, &mut place)?;
                let done = from(place.offset)?;
                place.offset += done;
                done
            }
        };
        self.left_behind();
        Ok(done as i64)
    }

    /// Nobody else has looked at it.
    pub fn is_held(&self) -> bool {
        match &self.open.what {
            What::File(file) => file.is_direct(),
            What::Dir(dir, _) => dir.is_direct(),
        }
    }

    /// Its size, bytes. Error: it is the kernel's, or no file.
    pub fn size(&self) -> Result<u64, Stop> {
        self.file()?;
        Ok(self.attr()?.size)
    }

    /// Reads from an offset, bytes, for the library's own use. Error: as `size`, or as pread(2).
    pub fn read_from(&self, out: &mut [u8], offset: u64) -> Result<usize, Stop> {
        let place = self.open.place();
        match place.gone {
            true => Err(Stop::Kernel),
            false => Ok(self.file()?.read_at(out, offset)?),
        }
    }

    fn read_at(&self, file: &File, out: &mut [u8], offset: u64) -> Result<usize, Stop> {
        if let Some(attr) = self.found() {
            let head = self.open.found.as_ref().map_or(&[][..], |f| &*f.head);
            let rest = usize::try_from(offset).ok().and_then(|at| head.get(at..));
            let rest = rest.unwrap_or_default();
            let left = attr.size.saturating_sub(offset);
            // All that is asked for is there, or all that is left of the file.
            if out.len() <= rest.len() || left <= rest.len() as u64 {
                let n = out.len().min(rest.len());
                out[..n].copy_from_slice(&rest[..n]);
                return Ok(n);
            }
        }
        let read = file.read_at(out, offset)?;
        if let Some(region) = region() {
            region.gain.note_read(read);
        }
        Ok(read)
    }

    /// What it was found with, if nothing has changed since.
    fn found(&self) -> Option<Attr> {
        let found = self.open.found.as_ref()?;
        // A new file has nothing to be read, which leaves its time of access alone.
        let same = !self.open.is_changed() && self.state.changes.none_since(found.seen);
        let held = matches!(&self.open.what, What::File(file) if file.is_direct());
        (same && held).then_some(found.attr)
    }

    pub fn write(&self, buffers: &[(u64, u64)], at: At) -> Answer {
        if !self.open.write {
            return Err(Stop::Errno(libc::EBADF));
        }
        let file = self.file()?;
        let append = self.open.flags() & libc::O_APPEND != 0;
        self.settle_others()?;
        let joined;
        let data = match buffers {
            [] => &[][..],
            [(address, len)] => program::bytes(*address, *len)?,
            // The kernel may write less as well.
            many => {
                let mut all = Vec::new();
                for (address, len) in many {
                    let len = (*len).min(JOINED.saturating_sub(all.len() as u64));
                    all.extend_from_slice(program::bytes(*address, len)?);
                }
                joined = all;
                &joined
            }
        };
        self.open.note_changed();
        let done = match at {
            At::Offset(offset) => {
                let place = self.open.place();
                if place.gone {
                    return Err(Stop::Kernel);
                }
                put(file, data, offset_of(offset)?, append)?
            }
            At::Position => {
                let mut place = self.open.place_mut();
                if place.gone {
                    return Err(Stop::Kernel);
                }
                if !append {
                    self.settle(file, &mut place)?;
                }
                let done = put(file, data, place.offset, append)?;
                // After an append it is at the end, which is asked for if somebody wants to know.
                match append {
                    true if !place.after_append => {
                        place.after_append = true;
                        self.state.note_appended(&self.open);
                    }
                    true => {}
                    false => place.offset += done as u64,
                }
                done
            }
        };
        self.left_behind();
        Ok(done as i64)
    }

    /// copy_file_range(2) from the positions of both. What else it can do is the kernel's.
    pub fn copy_to(&self, to: &On<'_>, from_at: u64, to_at: u64, len: u64) -> Answer {
        let simple = from_at == 0 && to_at == 0 && !self.open.may_be_same(&to.open);
        let both = matches!(
            (&self.open.what, &to.open.what),
            (What::File(_), What::File(_))
        );
        let may = self.open.read && to.open.write && to.open.flags() & libc::O_APPEND == 0;
        if !(simple && both && may && self.open.device == to.open.device) {
            real::make(self.state, &self.open, Reason::Control)?;
            return to.leave(Reason::Control);
        }
        to.settle_others()?;
        let (source, target) = (self.file()?, to.file()?);
        // Two that copy in opposite directions lock in the same order.
        let (mut from, mut into) = match Arc::as_ptr(&self.open) < Arc::as_ptr(&to.open) {
            true => {
                let from = self.open.place_mut();
                (from, to.open.place_mut())
            }
            false => {
                let into = to.open.place_mut();
                (self.open.place_mut(), into)
            }
        };
        if from.gone || into.gone {
            drop((from, into));
            real::make(self.state, &self.open, Reason::Control)?;
            return to.leave(Reason::Control);
        }
        self.settle(source, &mut from)?;
        to.settle(target, &mut into)?;
        to.open.note_changed();
        let left = |attr: Attr| attr.size.saturating_sub(from.offset);
        let len = len.min(COPY).min(self.found().map_or(COPY, left));
        let n = self.state.with_buffer(len as usize, |data| {
            let n = self.read_at(source, data, from.offset)?;
            target.write_at(&data[..n], into.offset)?;
            Ok::<usize, Stop>(n)
        })?;
        from.offset += n as u64;
        into.offset += n as u64;
        Ok(n as i64)
    }

    pub fn seek(&self, offset: i64, whence: u64) -> Answer {
        let mut place = self.open.place_mut();
        if place.gone {
            return Err(Stop::Kernel);
        }
        let file = match &self.open.what {
            What::File(file) => file,
            What::Dir(..) => {
                let done = listing::seek(&mut place, offset, whence);
                drop(place);
                return match done {
                    Err(Stop::Kernel) => self.leave(Reason::Control),
                    done => done,
                };
            }
        };
        self.settle(file, &mut place)?;
        let attr = |found: Option<Attr>| -> Result<Attr, Stop> {
            match found {
                Some(attr) => Ok(attr),
                None => Ok(file.stat()?),
            }
        };
        let to = match whence as i32 {
            libc::SEEK_SET => Some(offset),
            libc::SEEK_CUR => (place.offset as i64).checked_add(offset),
            libc::SEEK_END => (attr(self.found())?.size as i64).checked_add(offset),
            // All of it is data, and a hole is at its end.
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let attr = attr(self.found())?;
                let size = attr.size as i64;
                // Where there are holes is the kernel's to say.
                if attr.blocks * 512 < attr.size {
                    drop(place);
                    return self.leave(Reason::Control);
                }
                if !(0..size).contains(&offset) {
                    return Err(Stop::Errno(libc::ENXIO));
                }
                Some(if whence as i32 == libc::SEEK_DATA {
                    offset
                } else {
                    size
                })
            }
            _ => return Err(Stop::Errno(libc::EINVAL)),
        };
        match to {
            Some(to) if to >= 0 => {
                place.offset = to as u64;
                Ok(to)
            }
            _ => Err(Stop::Errno(libc::EINVAL)),
        }
    }

    /// Positions after appends are found out before somebody else changes what may be the same file.
    fn settle_others(&self) -> Result<(), Stop> {
        for other in self.state.take_appended(&self.open) {
            let on = On {
                state: self.state,
                open: other,
            };
            let mut place = on.open.place_mut();
            if !place.gone {
                on.settle(on.file()?, &mut place)?;
            }
        }
        Ok(())
    }

    /// The position after an append.
    fn settle(&self, file: &File, place: &mut crate::table::Place) -> Result<(), Stop> {
        if place.after_append {
            place.offset = file.stat()?.size;
            place.after_append = false;
        }
        Ok(())
    }

    fn attr(&self) -> Result<Attr, Stop> {
        let place = self.open.place();
        if place.gone {
            return Err(Stop::Kernel);
        }
        if let Some(attr) = self.found() {
            return Ok(attr);
        }
        Ok(match &self.open.what {
            What::File(file) => file.stat()?,
            What::Dir(dir, id) => {
                let mut tree = self.state.tree();
                match tree.found(*id).is_some() && dir.is_direct() {
                    true => tree.attr(*id)?,
                    false => dir.attr()?,
                }
            }
        })
    }

    pub fn stat(&self, to: u64) -> Answer {
        put_stat(to, &self.attr()?, self.open.device)
    }

    pub fn statx(&self, to: u64) -> Answer {
        put_statx(to, &self.attr()?, self.open.device)
    }

    pub fn truncate(&self, size: i64) -> Answer {
        let What::File(file) = &self.open.what else {
            return Err(Stop::Errno(libc::EINVAL));
        };
        self.settle_others()?;
        let mut place = self.open.place_mut();
        if place.gone {
            return Err(Stop::Kernel);
        }
        self.settle(file, &mut place)?;
        if size < 0 || !self.open.write {
            return Err(Stop::Errno(libc::EINVAL));
        }
        self.open.note_changed();
        file.truncate(size as u64)?;
        Ok(0)
    }

    pub fn sync(&self) -> Answer {
        let place = self.open.place();
        if place.gone {
            return Err(Stop::Kernel);
        }
        drop(place);
        match &self.open.what {
            What::File(file) => file.sync()?,
            What::Dir(dir, _) => dir.sync()?,
        }
        Ok(0)
    }

    /// `by_name`: of a descriptor that names it only, too.
    fn set(&self, what: &SetAttr, by_name: bool) -> Answer {
        let mut place = self.open.place_mut();
        if place.gone {
            return Err(Stop::Kernel);
        }
        if self.open.is_path() && !by_name {
            return Err(Stop::Errno(libc::EBADF));
        }
        place.high_bits = match what.mask {
            set::MODE => Some(what.mode & 0o7000),
            mask if mask & (set::UID | set::GID) != 0 => None,
            _ => place.high_bits,
        };
        match &self.open.what {
            What::File(file) => {
                self.open.note_changed();
                // Of one that was made for writing nobody has found anything.
                let is_known = !(self.open.made && self.open.write);
                let change = || {
                    if is_known {
                        self.state.changes.note_written();
                    }
                };
                change();
                let done = file.set_attr(what);
                change();
                done?;
            }
            What::Dir(_, id) => {
                let mut tree = self.state.tree();
                if tree.found(*id).is_none() {
                    // It may be known by another number.
                    drop((tree, place));
                    return self.leave(Reason::Control);
                }
                tree.set_attr(*id, what)?;
            }
        }
        Ok(0)
    }

    pub fn chmod(&self, bits: u64, by_name: bool) -> Answer {
        self.set(&mode(bits), by_name)
    }

    pub fn chown(&self, uid: u64, gid: u64, by_name: bool) -> Answer {
        match owner(uid, gid) {
            Some(set) => self.set(&set, by_name),
            None => self.leave(Reason::Control),
        }
    }

    pub fn set_times(&self, at: u64, by_name: bool) -> Answer {
        match times(at)? {
            Some(set) => self.set(&set, by_name),
            None => Ok(0),
        }
    }

    /// fsetxattr(2): an ACL that says no more than permission bits do is these bits.
    pub fn set_attribute(&self, name: u64, value: u64, len: u64, flags: u64) -> Answer {
        let bits = acl::bits_of_call(name, value, len, flags);
        let held = matches!(&self.open.what, What::File(file) if file.is_direct());
        let Some(bits) = bits.filter(|_| held && self.open.plain) else {
            return self.leave(Reason::Control);
        };
        let known = self.open.place().high_bits;
        let high = match known {
            Some(high) => high,
            None => self.attr()?.mode & 0o7000,
        };
        self.chmod(u64::from(high | bits), false)
    }

    pub fn list(&self, to: u64, len: u64) -> Answer {
        let What::Dir(dir, id) = &self.open.what else {
            return Err(Stop::Errno(libc::ENOTDIR));
        };
        let mut place = self.open.place_mut();
        if place.gone {
            return Err(Stop::Kernel);
        }
        let given = listing::give(self.state, (dir, *id), &mut place, to, len);
        drop(place);
        match given {
            // It is not held any more: the kernel goes on at the same place.
            Err(Stop::Kernel) => self.leave(Reason::BrokenHold),
            given => given,
        }
    }

    /// An attribute of a file that has none: `nothing`.
    pub fn attribute(&self, nothing: Answer) -> Answer {
        let held = match &self.open.what {
            What::File(file) => file.is_direct(),
            What::Dir(dir, _) => dir.is_direct(),
        };
        match self.open.plain && held {
            true => nothing,
            false => self.leave(Reason::Control),
        }
    }

    /// F_GETFL and F_SETFL. `None`: it is neither.
    pub fn status_flags(&self, command: u64, argument: u64) -> Option<Answer> {
        let mut place = self.open.place_mut();
        if place.gone {
            return Some(Err(Stop::Kernel));
        }
        if let What::File(file) = &self.open.what
            && let Err(e) = self.settle(file, &mut place)
        {
            return Some(Err(e));
        }
        match command as i32 {
            libc::F_GETFL => Some(Ok(self.open.flags().into())),
            libc::F_SETFL => {
                const MAY_CHANGE: i32 = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME;
                const OTHERS: i32 = libc::O_ASYNC | libc::O_DIRECT;
                let flags = argument as i32;
                if flags & OTHERS != 0 {
                    return None;
                }
                let kept = self.open.flags() & !MAY_CHANGE;
                self.open.set_flags(kept | flags & MAY_CHANGE);
                Some(Ok(0))
            }
            _ => None,
        }
    }
}

/// Writes all, or as much as there is room for: so many bytes.
fn put(file: &File, data: &[u8], at: u64, append: bool) -> Result<usize, Stop> {
    let mut done = 0;
    while done < data.len() || data.is_empty() {
        let part = &data[done..(done + COPY as usize).min(data.len())];
        let put = match append {
            true => file.append(part),
            false => file.write_at(part, at + done as u64),
        };
        match put {
            Ok(()) => done += part.len(),
            Err(_) if done > 0 => break,
            Err(e) => return Err(e.into()),
        }
        if data.is_empty() {
            break;
        }
    }
    Ok(done)
}

fn offset_of(offset: i64) -> Result<u64, Stop> {
    u64::try_from(offset).map_err(|_| Stop::Errno(libc::EINVAL))
}

/// One buffer, cut to what a call may have.
pub fn one_buffer(at: u64, len: u64) -> Result<[(u64, u64); 1], Stop> {
    match len > i64::MAX as u64 {
        true => Err(Stop::Errno(libc::EINVAL)),
        false => Ok([(at, len.min(MOST))]),
    }
}

/// Buffers of a vector.
pub fn buffers(at: u64, count: u64) -> Result<Vec<(u64, u64)>, Stop> {
    if count > BUFFERS {
        return Err(Stop::Errno(libc::EINVAL));
    }
    let (mut all, mut left) = (Vec::new(), MOST);
    for n in 0..count {
        let one: libc::iovec = program::read(at + n * size_of::<libc::iovec>() as u64)?;
        if one.iov_len > isize::MAX as usize {
            return Err(Stop::Errno(libc::EINVAL));
        }
        let len = (one.iov_len as u64).min(left);
        left -= len;
        all.push((one.iov_base as u64, len));
    }
    Ok(all)
}
