//! Atomic groups (CFS): what their members change becomes durable together at the owner's commit, or never.
//!
//! A group is a transaction that only its owner's commit seals. Until then it is layers in memory like every running transaction, and
//! everybody sees them: there is no isolation. What would come after it by C5 must not be built on it, as it may yet be taken back:
//! such an operation waits for the group's end, up to `Options::group_wait`; then the group is taken back (`undo.rs`), and what its
//! members do afterwards fails with ECANCELED. Whoever waits holds nothing here. But the kernel holds something for him, and where strangers
//! need that the group is taken back at once ([`Held`]).
use crate::base::cause::{Cause, SyncCall, Syncer};
use crate::base::fate::{Fate, Reason};
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::base::wait_point::WaitPoint;
use crate::operation::Operations;
use crate::operation::refusal::{Refusal, Tried};
use crate::operation::turn::Room;
use crate::overlay::objects::{Dependency, Inode, Phase, State, Txn, Undo};
use crate::overlay::stream::Sizes;
use ccfs_ext4::Error;
use ccfs_ext4::inode::FLAG_APPEND;
use ccfs_image::Wait;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Groups that are open at the same time, at most: a bound that users share.
const GROUPS_MAX: u64 = 64;

/// How often a member that waits for another group looks whether its own is still open.
const OWN_END_SEEN: Duration = Duration::from_millis(50);

/// What the kernel holds for the caller of an operation until it is answered.
#[derive(Clone, Copy)]
pub(crate) enum Held<'a> {
    /// No more than the file that the operation changes.
    File,
    /// The locks of these inodes: whoever looks up or changes a name in one that is a directory waits as well.
    Dirs(&'a [Ino]),
    /// The lock of all renames between directories, anybody's and of whatever.
    Renames,
}

/// What an abort took back, so that caches can be corrected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aborted {
    /// Which abort it is: they are numbered in the order in which they begin (`Volume::aborts_begun`), from 0 on.
    pub number: u64,
    /// The group; `None`: the draft of a failure-atomic file.
    pub group: Option<StreamId>,
    /// Whose it was.
    pub user: u32,
    /// Inodes whose attributes, or content, are what they were before.
    pub inodes: Vec<Ino>,
    /// Those of them that are directories, in order.
    pub dirs: Vec<Ino>,
    /// Names that lead where they led before, by directory.
    pub names: Vec<(Ino, Vec<u8>)>,
}

/// What an open group has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChanges {
    /// Inodes whose attributes, or content, it changed or made.
    pub inodes: Vec<Ino>,
    /// Names that it changed, by directory; none that came and went.
    pub names: Vec<(Ino, Vec<u8>, NameChange)>,
}

/// What became of a name in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// It was not there before, and leads to this inode.
    Created(Ino),
    /// It was there, and leads to this inode now.
    Replaced(Ino),
    /// It was there.
    Removed,
}

/// Told of every abort, by the thread that did it. It must not wait for operations of the volume.
pub type AbortListener = Box<dyn Fn(Aborted) + Send + Sync>;

fn numbers(inodes: &[Arc<Inode>]) -> Vec<Ino> {
    inodes.iter().map(|inode| inode.ino).collect()
}

impl Operations {
    pub(crate) fn sizes(&self, expected: u64) -> Sizes<'_> {
        Sizes {
            expected,
            log: self.limits().txn_log_bytes,
            groups: self.dirty_least() / 2,
            drafts: self.drafts(),
            fields: self.limits().dir_fields_max / 8,
        }
    }

    /// Opens an atomic group of user `uid` whose place in the stream `home` is its commit. Operations whose context has the returned id as its stream
    /// belong to it. It is taken back when it is open for longer than `timeout`.
    ///
    /// # Errors
    /// EAGAIN: too many groups are open; EINVAL: `home` is a group itself; EROFS.
    pub fn group_begin(
        &self,
        home: StreamId,
        uid: u32,
        timeout: Option<Duration>,
    ) -> Result<StreamId> {
        self.check_running()?;
        if self.options().read_only {
            return Err(Error::Errno(libc::EROFS));
        }
        if home.is_group() {
            return Err(Error::Errno(libc::EINVAL));
        }
        let own = timeout.map(|t| (t, Reason::OwnTime));
        let mounts = self.options().group_timeout;
        let mounts = mounts.map(|t| (t, Reason::MountTime));
        let time = own.into_iter().chain(mounts).min_by_key(|(t, _)| *t);
        self.streams()
            .open_group(home, uid, time, GROUPS_MAX)
            .ok_or(Error::Errno(libc::EAGAIN))
    }

    /// Commits a group: all of it survives a crash from here on (`durable`), or it has its place in the order of its stream and is
    /// committed with the next commit.
    ///
    /// # Errors
    /// ECANCELED: it is not open, nothing of it is there any more. EDQUOT: it was taken back now, since what was stored through a mapping was
    /// more than groups may hold. EIO: the volume has stopped.
    pub fn group_commit(&self, id: StreamId, durable: bool) -> Result<()> {
        self.group_commit_telling(id, durable, &|| ())
    }

    /// As [`Volume::group_commit`]; `closed` is called when nothing is accepted into the group any more, before anybody is told so.
    pub fn group_commit_telling(
        &self,
        id: StreamId,
        durable: bool,
        closed: &dyn Fn(),
    ) -> Result<()> {
        self.check_running()?;
        let Some(txn) = self.streams().seal_group(id, closed) else {
            let spoilt = self.streams().group(id).and_then(|txn| {
                let errno = txn.group.as_ref()?.spoilt()?;
                Some((txn, errno))
            });
            let Some((txn, errno)) = spoilt else {
                return Err(Error::Errno(libc::ECANCELED));
            };
            let why = match errno {
                libc::EDQUOT => Reason::StoresTooLarge,
                _ => Reason::StoresLost,
            };
            return Err(Error::Errno(match self.abort(&txn, id, why)? {
                true => errno,
                false => libc::ECANCELED,
            }));
        };
        if let Some(group) = &txn.group {
            *group.undo.lock() = Undo::default();
            self.free_nameless(group.announce_end());
        }
        let unclaimed = |d: &Dependency| d.txn.progress().claimed.is_none();
        planted::also(Bug::GroupClaimed, || txn.progress().deps.retain(unclaimed));
        if durable {
            let who = Syncer {
                call: SyncCall::Stream(txn.stream),
                pid: 0,
                uid: 0,
                stream: txn.stream,
            };
            let _under_way = self.pace().sync_call(who.stream);
            self.commit(vec![txn], Cause::Sync(who)).map(drop)
        } else {
            self.want_commit();
            Ok(())
        }
    }

    /// Takes everything back that the group has changed.
    ///
    /// # Errors
    /// ECANCELED: it was not open any more. EIO: something could not be read, the volume has stopped.
    pub fn group_abort(&self, id: StreamId) -> Result<()> {
        self.group_take_back(id, Reason::Asked)
    }

    /// As [`Volume::group_abort`], for a group whose members have ended.
    pub fn group_abandon(&self, id: StreamId) -> Result<()> {
        self.group_take_back(id, Reason::Left)
    }

    fn group_take_back(&self, id: StreamId, why: Reason) -> Result<()> {
        match self.streams().group(id) {
            Some(txn) if self.abort(&txn, id, why)? => Ok(()),
            _ => Err(Error::Errno(libc::ECANCELED)),
        }
    }

    /// What becomes of a group, for as long as somebody wants to know it. `None`: it is neither open nor being taken back.
    pub fn group_fate(&self, id: StreamId) -> Option<Arc<Fate>> {
        let txn = self.streams().group(id)?;
        txn.group.as_ref().map(|g| g.fate.clone())
    }

    /// Is the group open?
    pub fn group_is_open(&self, id: StreamId) -> bool {
        let txn = self.streams().group(id);
        txn.is_some_and(|t| t.group.as_ref().is_some_and(|g| g.is_open()))
    }

    /// What is append-only takes nothing that an abort would take back: content of a file, names in a directory. Error: EPERM. (Who is in a
    /// group that has ended is told so, or is where it was begun.)
    pub(crate) fn check_lasting(&self, cx: &Context, st: &State) -> Result<()> {
        let append_only = st.attr.flags & FLAG_APPEND != 0;
        match append_only && cx.stream.is_group() && self.group_is_open(cx.stream) {
            true => Err(Error::Errno(libc::EPERM)),
            false => Ok(()),
        }
    }

    /// How many groups, and drafts of failure-atomic files, were, or are being, taken back: counted before the first of their changes goes.
    pub fn aborts_begun(&self) -> u64 {
        self.aborts_begun.load(Ordering::SeqCst)
    }

    /// What an open group has changed so far. Error: ECANCELED, it is not open.
    pub fn group_changes(&self, id: StreamId) -> Result<GroupChanges> {
        let txn = self.streams().group(id);
        let txn = txn.ok_or(Error::Errno(libc::ECANCELED))?;
        let inodes = numbers(&self.touched(&txn));
        let bodies = txn.all_bodies();
        let mut names = Vec::new();
        for (dir, changed) in bodies.iter().flat_map(|body| &body.entries) {
            for (name, change) in &changed.changes {
                let kind = match (change.fresh, change.value) {
                    (true, None) => continue,
                    (true, Some((ino, _))) => NameChange::Created(ino),
                    (false, Some((ino, _))) => NameChange::Replaced(ino),
                    (false, None) => NameChange::Removed,
                };
                names.push((*dir, name.to_vec(), kind));
            }
        }
        names.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        Ok(GroupChanges { inodes, names })
    }

    /// Who is told of aborts: whoever caches what this volume showed. Pages that it writes back of an inode in such a report are dropped
    /// until it says `pages_dropped`.
    pub fn listen_to_aborts(&self, listener: AbortListener) {
        *self.abort_listener.lock() = Some(Arc::new(listener));
    }

    /// The listener has dropped the pages of this inode that it had when the group was taken back.
    pub fn pages_dropped(&self, ino: Ino) {
        if let Some(inode) = self.inodes().peek(ino) {
            let mut st = inode.state.write();
            st.stale_pages = st.stale_pages.saturating_sub(1);
        }
    }

    /// Takes an open group back, on behalf of whoever is in stream `by`. False: somebody else ended it.
    pub(crate) fn abort(&self, txn: &Arc<Txn>, by: StreamId, why: Reason) -> Result<bool> {
        if !self.streams().condemn(txn, by, why) {
            return Ok(false);
        }
        let number = self.count_abort();
        txn.wait_quiet();
        let mut nameless = self.touched(txn);
        let mut report = self.report(txn, numbers(&nameless));
        let guard = self.stop_on_panic("an abort");
        // Others wait for the end of the group, and it for who applies: a checkpoint goes at its own pace only while nobody waits.
        let hurry = self.pace().hurry();
        let undone = self.undo(txn);
        drop((hurry, guard));
        self.streams().drop_group(txn);
        txn.set_phase(Phase::Failed);
        if let Some(group) = &txn.group {
            nameless.extend(group.announce_end());
        }
        undone?;
        // What it had given a name, or had freed, has none again.
        self.free_nameless(nameless);
        let listener = self.abort_listener();
        if let Some(listener) = listener {
            report.inodes.sort_unstable();
            report.number = number;
            listener(report);
        }
        self.back_pressure().news();
        Ok(true)
    }

    /// Takes back the groups that are open for longer than they may be.
    pub(crate) fn abort_expired(&self) -> Result<()> {
        let now = Instant::now();
        for txn in self.streams().groups() {
            let deadline = txn.group.as_ref().and_then(|g| g.deadline);
            if let Some((_, whose)) = deadline.filter(|(at, _)| *at <= now) {
                self.abort(&txn, txn.entry(), whose)?;
            }
        }
        Ok(())
    }

    pub(crate) fn abort_all(&self) -> Result<()> {
        for txn in self.streams().groups() {
            self.abort(&txn, txn.entry(), Reason::Unmounted)?;
        }
        Ok(())
    }

    /// How long an operation waits for a group at most.
    fn patience(&self, cx: &Context, held: Held) -> Duration {
        const WRITE_BY_GROUP: u16 = 0o020;
        const WRITE_BY_OTHERS: u16 = 0o002;
        let strangers = match held {
            Held::File => false,
            Held::Dirs(inos) => inos.iter().any(|ino| {
                let Ok(inode) = self.inode(*ino, Wait::Allowed) else {
                    return false;
                };
                let st = inode.state.read();
                let (attr, is_dir) = (&st.attr, st.is_dir());
                let group = attr.mode & WRITE_BY_GROUP != 0 && attr.gid != cx.gid;
                is_dir && (attr.uid != cx.uid || group || attr.mode & WRITE_BY_OTHERS != 0)
            }),
            Held::Renames => true,
        };
        match strangers {
            true => Duration::ZERO,
            false => self.options().group_wait,
        }
    }

    /// Tries an operation until no group is in its way, and nobody has his turn alone. A group that is in its way for too long is taken back.
    pub(crate) fn unblocked<T>(
        &self,
        cx: &Context,
        wait: Wait,
        held: Held,
        room: &Room,
        f: impl Fn(&Room) -> Tried<T>,
    ) -> Result<T> {
        let by = cx.stream;
        let mut waited: Option<(u64, Instant)> = None;
        loop {
            planted::note_wait(waited.is_some());
            room.note_lack(None);
            let refused = match f(room) {
                Ok(done) => return Ok(done),
                Err(Refusal::Final(error)) => return Err(error),
                Err(Refusal::AnothersTurn) => None,
                Err(Refusal::Blocked(txn)) => Some(txn),
            };
            self.check_running()?;
            wait.check()?;
            let Some(txn) = refused else {
                self.await_turn(room);
                continue;
            };
            // Its own group has ended meanwhile, and the other one may stay open for ever.
            if by.is_group() && !self.group_is_open(by) {
                return Err(Error::Errno(libc::ECANCELED));
            }
            let mut open = self.streams().groups().into_iter();
            if !open.any(|group| group.serial == txn.serial) {
                continue;
            }
            let since = match waited {
                Some((serial, since)) if serial == txn.serial => since,
                _ => Instant::now(),
            };
            waited = Some((txn.serial, since));
            let patience = self.patience(cx, held);
            let why = match patience.is_zero() && !self.options().group_wait.is_zero() {
                true => Reason::WaitsForNobody,
                false => Reason::Waited,
            };
            let limit = patience.saturating_sub(since.elapsed());
            if limit.is_zero() && self.abort(&txn, by, why)? {
                continue;
            }
            // Not open any more, or somebody else takes it back right now.
            let most = match by.is_group() {
                true => OWN_END_SEEN,
                false => Duration::MAX,
            };
            if let Some(group) = &txn.group {
                room.let_others_in();
                self.at(WaitPoint::Blocked);
                group.wait_end(limit.clamp(Duration::from_millis(1), most));
                self.at(WaitPoint::Resumed);
            }
        }
    }

    /// Inodes that a group has touched.
    pub(crate) fn touched(&self, txn: &Txn) -> Vec<Arc<Inode>> {
        let bodies = txn.all_bodies();
        let dirs = bodies.iter().flat_map(|body| body.dirs.values());
        let mut all: Vec<Arc<Inode>> = dirs.cloned().collect();
        drop(bodies);
        // Somebody may commit it already.
        all.extend(txn.file_inodes());
        all.sort_unstable_by_key(|inode| inode.ino);
        all.dedup_by_key(|inode| inode.ino);
        all
    }

    fn report(&self, txn: &Txn, inodes: Vec<Ino>) -> Aborted {
        let bodies = txn.all_bodies();
        let mut names: Vec<(Ino, Vec<u8>)> = Vec::new();
        for (dir, changed) in bodies.iter().flat_map(|body| &body.entries) {
            names.extend(changed.changes.keys().map(|name| (*dir, name.to_vec())));
        }
        names.sort();
        let dirs = bodies.iter().flat_map(|body| body.dirs.keys());
        let mut dirs: Vec<Ino> = dirs.copied().collect();
        dirs.sort_unstable();
        let group = txn.group.as_ref();
        Aborted {
            number: 0,
            group: group.map(|g| g.id),
            user: group.map_or(0, |g| g.uid),
            inodes,
            dirs,
            names,
        }
    }
}
