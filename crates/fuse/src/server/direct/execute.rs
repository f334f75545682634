//! Entries become operations of the engine.
use super::grants::{Named, is_birth};
use super::session::{Consumer, Executed, Handle, Read, Refused, Role, Says, Session};
use super::{Direct, clock, count};
use crate::rights;
use crate::server::serve::on_nobodys_behalf;
use crate::wire::Errno;
use ccfs_client::direct::layout::{
    ASKED, Attr, BROKEN, BY_CALL, DONE, IS_THERE, LIMIT_MAX, NOT_ALLOWED, READING, REPLY, RESULT,
    RING_BYTES, SLEPT_ON, WOULD_WAIT, WRITING, cost, op, reply_at,
};
use ccfs_client::direct::sync::wake;
use ccfs_engine::{
    Calls, Context, Ino, Promise, SetAttr, SyncCall, Wait, WriteFlags, drawn_by_this_thread,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Its program is told how far entries are carried out whenever they have taken such a part of the ring, or of what they may cost.
const PART: u64 = 8;

/// What a program was told at last, and what this thread had drawn on promises then.
struct Said {
    head: u64,
    spent: u64,
    drawn: Promise,
}

impl Said {
    fn of(consumer: &Consumer) -> Said {
        Said {
            head: consumer.head,
            spent: consumer.spent,
            drawn: drawn_by_this_thread(),
        }
    }

    fn is_long_ago(&self, consumer: &Consumer) -> bool {
        consumer.head - self.head >= RING_BYTES as u64 / PART
            || consumer.spent - self.spent >= LIMIT_MAX / PART
    }
}

/// What a program gets a handle of.
pub struct Opened {
    pub number: u32,
    pub ino: Ino,
    /// With the number: which inode it is.
    pub generation: u32,
    /// `layout::READING`, `layout::WRITING`.
    pub access: u32,
    /// It was just born in a directory that the session holds.
    pub newborn: bool,
}

impl Opened {
    /// Of an inode that a call spoke of.
    pub fn of(attr: &ccfs_engine::Attr, number: u32, access: u32) -> Opened {
        Opened {
            number,
            ino: attr.ino,
            generation: attr.generation,
            access,
            newborn: false,
        }
    }
}

impl Direct {
    /// Carries out what is published now, after what comes before it. Error: EAGAIN, it would have to wait.
    pub fn carry_out(&self, session: &Arc<Session>, wait: Wait) -> Result<(), Errno> {
        self.carry_out_to(session, session.tail(), wait)
    }

    /// The same, for what was published up to `tail`.
    pub fn carry_out_to(&self, session: &Arc<Session>, tail: u64, wait: Wait) -> Result<(), Errno> {
        self.drain_posters(session, wait)?;
        let mut consumer = session.lock(wait)?;
        // Nobody's call: it is not given up because he is killed who happens to carry it out.
        on_nobodys_behalf(|| self.drain_locked(session, &mut consumer, tail, wait))
    }

    fn drain_locked(
        &self,
        session: &Arc<Session>,
        consumer: &mut Consumer,
        tail: u64,
        wait: Wait,
    ) -> Result<(), Errno> {
        let memory = &session.memory;
        // What is published later is posted later.
        let now = clock::now();
        let published = session.tail().wrapping_sub(consumer.head);
        if published > RING_BYTES as u64 {
            self.fail(session, consumer, libc::EINVAL, "its ring makes no sense");
            return Ok(());
        }
        // Others may have come farther since it was read.
        if tail.wrapping_sub(consumer.head) > published {
            return Ok(());
        }
        let seen = consumer.head.wrapping_add(published);
        consumer.clock.note(consumer.head, seen, now);
        let begun = consumer.head;
        let mut said = Said::of(consumer);
        // All up to `tail` was posted by now: what is promised anew is for what comes later.
        let mut may = session.promised();
        let mut done = Ok(());
        while done.is_ok() {
            let mut read = match consumer.next(memory, tail) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(()) => {
                    self.fail(session, consumer, libc::EINVAL, "its ring makes no sense");
                    break;
                }
            };
            let price = match read.entry.flags & ASKED {
                0 => cost(read.entry.op, read.entry.bytes as usize),
                _ => 0,
            };
            let named = consumer
                .grants
                .named_in(&read.entry, || session.times_stopped());
            // Its program waits: it looks whether it may still post after it has (`Ring::publish`).
            if price > 0 && may.blocks == 0 || named == Named::TakenBack {
                consumer.grants.offer_again(named, memory);
                answer(session, &read, false, Err(Refused::NotAllowed));
                consumer.spent += price;
                consumer.head += u64::from(read.entry.len);
                consumer.buffer = read.bytes;
                continue;
            }
            // What is more would be taken from what other sessions were promised.
            let births = usize::from(is_birth(&read.entry));
            if price > may.blocks || births > may.inodes {
                self.fail(
                    session,
                    consumer,
                    libc::EINVAL,
                    "it posted more than it may",
                );
                break;
            }
            if named == Named::Wrong {
                let why = "it named a number that it was not given";
                self.fail(session, consumer, libc::EINVAL, why);
                break;
            }
            if price > 0 {
                read.says = says(consumer, &read, named);
            }
            let tried = || self.carry_out_entry(session, consumer, &read, wait);
            done = match catch_unwind(AssertUnwindSafe(tried)) {
                Ok(done) => done,
                Err(_) => {
                    self.fail(session, consumer, libc::EIO, "a bug stopped the volume");
                    let _ = catch_unwind(AssertUnwindSafe(|| self.volume.shutdown()));
                    break;
                }
            };
            if done.is_ok() {
                may.blocks -= price;
                may.inodes -= births;
                consumer.spent += price;
                consumer.head += u64::from(read.entry.len);
                consumer.grants.offer_again(named, memory);
                if read.entry.flags & ASKED != 0 {
                    consumer.clock.note_asked(clock::now());
                }
            }
            consumer.buffer = read.bytes;
            // Its program goes on while the rest is carried out.
            let room = session.is_roomy(consumer);
            if room || said.is_long_ago(consumer) {
                self.say(session, consumer, &said, room);
                said = Said::of(consumer);
            }
        }
        if consumer.head != begun {
            let room = consumer.head == session.tail() || session.is_roomy(consumer);
            self.say(session, consumer, &said, room);
        }
        done
    }

    /// Tells the program how far its entries are carried out.
    fn say(&self, session: &Session, consumer: &mut Consumer, before: &Said, room: bool) {
        let now = drawn_by_this_thread();
        let drawn = Promise {
            blocks: now.blocks - before.drawn.blocks,
            inodes: now.inodes - before.drawn.inodes,
        };
        // Less may be allowed from here on, which the program must see before it sees that there is room again.
        if drawn != Promise::default() {
            self.renew_promise(session, drawn);
        }
        if session.role() == Role::Posts && self.may_promise() {
            consumer.grants.renew(&self.volume, &session.memory);
        }
        if consumer.spent != before.spent {
            self.volume.note_posted();
        }
        session.say_head(consumer, room);
    }

    /// The session is over: it has broken the rules, or the volume has failed it.
    fn fail(&self, session: &Session, consumer: &mut Consumer, errno: i32, why: &str) {
        let process = session.user.process;
        tracing::warn!("direct calls of process {process} have ended: {why}");
        consumer.end(session);
        if errno == libc::EIO {
            self.note_failure(session);
        }
        session.say_ended(errno);
    }

    fn carry_out_entry(
        &self,
        session: &Arc<Session>,
        consumer: &mut Consumer,
        read: &Read,
        wait: Wait,
    ) -> Result<(), Errno> {
        let entry = &read.entry;
        if entry.flags & BY_CALL != 0 {
            return Ok(());
        }
        let asked = entry.flags & ASKED != 0;
        let figures = &self.figures;
        count(
            if asked {
                &figures.asked
            } else {
                &figures.posted
            },
            1,
        );
        // Who waits for a reply is told to call; nobody else waits meanwhile.
        let volume = match asked || wait == Wait::Never {
            true => self.volume.non_blocking(),
            false => &self.volume,
        };
        let done = self.execute(session, consumer, read, volume);
        match done {
            Err(Refused::Errno(libc::EAGAIN)) if !asked => return Err(Errno(libc::EAGAIN)),
            // Who has it is told only where he looks: at a handle that was marked.
            Err(Refused::Broken) if !asked && !consumer.may_be_broken(entry) => {
                self.fail(session, consumer, libc::EIO, "its hold was lost");
            }
            Err(Refused::Errno(errno)) if !asked => {
                let what = format!(
                    "entry {} was accepted and failed: {}",
                    entry.op,
                    std::io::Error::from_raw_os_error(errno)
                );
                self.fail(session, consumer, libc::EIO, &what);
            }
            // By a call there may be some again.
            Err(Refused::Errno(libc::ENOSPC)) => {
                answer(session, read, asked, Err(Refused::Errno(libc::EAGAIN)));
            }
            done => answer(session, read, asked, done),
        }
        Ok(())
    }

    /// On whose behalf an entry is carried out.
    pub fn context(&self, session: &Session, read: &Read, umask: u32) -> Context {
        let user = &session.user;
        let caller = session.caller_of(read.entry.thread, &self.callers);
        Context {
            stream: caller.stream,
            uid: user.uid,
            gid: user.gid,
            umask: umask & 0o777,
            ignore_fsync: caller.ignore_fsync,
            privileged: user.uid == 0,
            posted: read.entry.flags & ASKED == 0,
            time: read.says.time,
        }
    }

    /// Carries an entry out. Only a thread that the daemon was told of counts.
    pub fn execute(
        &self,
        session: &Arc<Session>,
        consumer: &mut Consumer,
        read: &Read,
        volume: &Calls,
    ) -> Executed {
        let entry = &read.entry;
        if !session.has_thread(entry.thread) && !matches!(entry.op, op::CLOSE | op::END) {
            return Err(Refused::Errno(libc::EPERM));
        }
        let room = entry.len as usize - reply_at(entry.bytes as usize);
        let replies = matches!(entry.op, op::CREATE | op::MKDIR | op::LOOKUP | op::STAT);
        if entry.flags & ASKED != 0 && replies && room < size_of::<Attr>() {
            return Err(Refused::Errno(libc::EINVAL));
        }
        let dir = || consumer.held(entry.h).map(|h| h.ino);
        let file = |access| match consumer.held(entry.h)? {
            handle if handle.access & access == access => Ok(handle.ino),
            _ => Err(Refused::Errno(libc::EBADF)),
        };
        match entry.op {
            op::CREATE | op::MKDIR => {
                let dir = dir()?;
                self.birth(session, consumer, read, volume, dir)
            }
            op::LOOKUP => {
                let dir = dir()?;
                self.look_up(session, consumer, read, volume, dir)
            }
            op::HEADS => self.heads(session, read, volume, dir()?),
            op::WRITE | op::APPEND => self.write(session, read, volume, file(WRITING)?),
            op::TRUNCATE => {
                let ino = file(WRITING)?;
                let dropped = self.dropped_by_write(session, volume, ino)?;
                let set = SetAttr {
                    size: Some(size(entry.a)?),
                    kill_suidgid: dropped.kill_suidgid,
                    kill_sgid: dropped.kill_sgid,
                    ..SetAttr::default()
                };
                volume.setattr(&self.context(session, read, 0), ino, &set)?;
                Ok(Vec::new())
            }
            op::SETATTR => self.set_attributes(session, read, volume, dir()?),
            op::READ => {
                let ino = file(READING)?;
                let (len, mut out) = ((entry.b as usize).min(room), Vec::new());
                let end = entry.a.checked_add(len as u64).ok_or(Errno(libc::EINVAL))?;
                size(end)?;
                volume.read(ino, entry.a, len, &mut out)?;
                Ok(out)
            }
            op::STAT => Ok(self.attr_of(&volume.getattr(dir()?)?).as_bytes().to_vec()),
            op::READDIR => {
                let dir = dir()?;
                self.may(session, volume, dir, rights::READ)?;
                // As the kernel has it of a directory that was removed.
                if volume.getattr(dir)?.nlink == 0 {
                    return Err(Refused::Errno(libc::ENOENT));
                }
                self.list(session, read, volume, dir)
            }
            op::UNLINK | op::RMDIR => self.unlink(session, read, volume, dir()?),
            op::RENAME => {
                let (from, to) = (dir()?, consumer.held(entry.h2)?.ino);
                self.rename(session, read, volume, from, to)
            }
            op::LINK => {
                let (from, to) = (dir()?, consumer.held(entry.h2)?.ino);
                self.link(session, read, volume, from, to)
            }
            op::SYMLINK => self.symlink(session, read, volume, dir()?),
            op::READLINK => self.read_link(session, read, volume, dir()?),
            op::BARRIER => {
                let cx = self.context(session, read, 0);
                let process = session.user.process;
                volume.barrier(&cx, SyncCall::File(dir()?), process)?;
                Ok(Vec::new())
            }
            op::CLOSE => {
                self.close(session, consumer, entry.h);
                Ok(Vec::new())
            }
            op::DRAIN => Ok(Vec::new()),
            op::END => {
                consumer.end(session);
                Ok(Vec::new())
            }
            _ => Err(Refused::Errno(libc::EINVAL)),
        }
    }

    /// A handle for an inode, held if that can be. Errors: EAGAIN, it would have to wait for the device; ESTALE, somebody has removed it, and its number
    /// may be another one's.
    pub fn open(
        &self,
        session: &Arc<Session>,
        consumer: &mut Consumer,
        volume: &Calls,
        opened: Opened,
    ) -> Result<(), Refused> {
        let Opened { number, ino, .. } = opened;
        let volume_of = if opened.newborn { &self.volume } else { volume };
        volume_of.remember_this(ino, opened.generation)?;
        self.volume.note_direct(ino);
        self.note_open(ino);
        let own = consumer.of_inode.entry(ino).or_default();
        *own += 1;
        let own = u64::from(*own);
        let granted = match opened.newborn {
            true => Ok(self.hold_newborn(session, ino)),
            false if session.is_breaking(ino) => Ok(false),
            false => self.grant(session, volume, ino, own),
        };
        let held = *granted.as_ref().unwrap_or(&false);
        let handle = Handle {
            ino,
            held,
            access: opened.access,
            marked: !held,
        };
        consumer.handles.insert(number, handle);
        let broken = session.memory.broken(number);
        broken.store(u8::from(!held), Ordering::SeqCst);
        if granted.is_err() {
            self.close(session, consumer, number);
        }
        Ok(granted.map(drop)?)
    }

    pub fn close(&self, session: &Arc<Session>, consumer: &mut Consumer, number: u32) {
        let Some(handle) = consumer.handles.remove(&number) else {
            return;
        };
        let left = consumer.of_inode.get_mut(&handle.ino);
        let last = left.is_none_or(|count| {
            *count -= 1;
            *count == 0
        });
        if last {
            consumer.of_inode.remove(&handle.ino);
            self.let_go(session, handle.ino);
        }
        if let Some(token) = consumer.tokens.remove(&number) {
            self.forget_token(session, &token);
        }
        session.memory.broken(number).store(0, Ordering::SeqCst);
        self.note_closed(handle.ino);
        self.volume.forget(handle.ino, 1);
    }

    fn write(&self, session: &Session, read: &Read, volume: &Calls, ino: Ino) -> Executed {
        let entry = &read.entry;
        let append = entry.op == op::APPEND;
        let cx = self.context(session, read, 0);
        let dropped = self.dropped_by_write(session, volume, ino)?;
        let flags = WriteFlags {
            append,
            kill_suidgid: dropped.kill_suidgid,
            kill_sgid: dropped.kill_sgid,
            whole: true,
            placed: !append,
            ..WriteFlags::default()
        };
        let mut at = if append { 0 } else { size(entry.a)? };
        size(
            at.checked_add(read.bytes.len() as u64)
                .ok_or(Errno(libc::EFBIG))?,
        )?;
        let mut rest = &read.bytes[..];
        while !rest.is_empty() {
            let n = volume.write(&cx, ino, at, rest, flags)?;
            if n == 0 {
                return Err(Refused::Errno(libc::EIO));
            }
            rest = &rest[n..];
            at += n as u64;
        }
        Ok(Vec::new())
    }
}

/// What is believed of what an entry says.
fn says(consumer: &Consumer, read: &Read, named: Named) -> Says {
    let now = clock::now();
    let clock = &consumer.clock;
    let posted = clock.posted(read.position, read.entry.time, now);
    Says {
        posted: posted.map(clock::time_of),
        time: posted.map(|posted| clock::time_of(clock.of_change(posted, now))),
        ino: match named {
            Named::By(ino) => Some(ino),
            _ => None,
        },
    }
}

/// Writes what came of an entry where its program looks.
pub fn answer(session: &Session, read: &Read, asked: bool, done: Executed) {
    let (memory, position) = (&session.memory, read.position);
    let entry = &read.entry;
    let at = reply_at(entry.bytes as usize);
    let room = (entry.len as usize).saturating_sub(at);
    let (result, bytes) = match done {
        Ok(bytes) if bytes.len() <= room => (0, bytes),
        Ok(_) if !asked => (0, Vec::new()),
        Ok(_) => (libc::ERANGE, Vec::new()),
        Err(Refused::Broken) => (BROKEN, Vec::new()),
        Err(Refused::NotAllowed) => (NOT_ALLOWED, Vec::new()),
        Err(Refused::Errno(libc::EAGAIN)) if asked => (WOULD_WAIT, Vec::new()),
        Err(Refused::Errno(errno)) => (errno, Vec::new()),
    };
    if !bytes.is_empty() {
        memory.copy_in(position, at, &bytes);
    }
    let set = |within, value| {
        memory
            .entry_u32(position, within)
            .store(value, Ordering::Release);
    };
    set(REPLY, bytes.len() as u32);
    set(RESULT, result as u32);
    if asked {
        let done = memory.entry_u32(position, DONE);
        if done.swap(IS_THERE, Ordering::SeqCst) == SLEPT_ON {
            wake(done);
        }
    }
}

fn size(bytes: u64) -> Result<u64, Errno> {
    match bytes <= i64::MAX as u64 {
        true => Ok(bytes),
        false => Err(Errno(libc::EFBIG)),
    }
}
