//! Atomic groups: the calls, and the kernel's caches after an abort; and what the kernel keeps of a mapping.
//!
//! When a group is taken back, the kernel still has what it showed: pages, sizes, names. A thread of its own tells it to forget them; that can wait for
//! locks which callers of requests under way hold, so nobody who serves a request waits for it, but the call that asked for the abort, which holds
//! none. Pages that the kernel writes back meanwhile are dropped (engine).
use super::ioctl::{F2FS_ABORT, F2FS_COMMIT, F2FS_START, put_line, trace_arg, versioned};
use super::{Answer, Server, node_of};
use crate::show::Paths;
use crate::transport::channel::Channel;
use crate::wire::{Errno, Reply, Request};
use ccfs_client::abi::{self as client, GroupArg};
use ccfs_engine::{Aborted, Ino, Volume};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the call that asked for an abort waits for the kernel to forget what it knew.
pub(super) const FORGET_WAIT: Duration = Duration::from_secs(30);

enum Message {
    Aborted(Aborted),
    /// Names that a request which had to wait may have left wrong in the kernel.
    Names(Vec<(Ino, Vec<u8>)>),
    /// An inode whose pages are wrong in the kernel.
    Pages(Ino),
    /// A range of an inode of which the kernel may keep what a mapping has written, if somebody waits for it; told when it begins and ends.
    Range(Ino, Range<u64>, SyncSender<()>),
    /// Everything before it is done.
    Barrier(SyncSender<()>),
}

/// Aborts whose traces the kernel had forgotten at some instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look(u64);

#[derive(Default)]
struct Shared {
    sender: Mutex<Option<Sender<Message>>>,
    /// Aborts whose traces the kernel has forgotten.
    done: AtomicU64,
    /// Files whose length the kernel may have wrong until it asks.
    resized: Mutex<HashSet<Ino>>,
    /// Inodes of which a message says that their pages are wrong: one each is enough.
    wrong_pages: Mutex<HashSet<Ino>>,
}

/// Tells the kernel what to forget.
#[derive(Default)]
pub struct Notifier(Arc<Shared>);

impl Notifier {
    /// Starts the thread; from here on groups can be opened.
    pub fn start(&self, volume: &Arc<Volume>, kernel: Channel) -> std::io::Result<()> {
        let (sender, receiver) = channel();
        let (weak, shared) = (Arc::downgrade(volume), self.0.clone());
        // It is not waited for: the kernel may hold it until the connection ends.
        std::thread::Builder::new()
            .name("fuse-notify".into())
            .spawn(move || notify(&weak, &kernel, &receiver, &shared))?;
        *self.0.sender.lock() = Some(sender);
        let shared = self.0.clone();
        volume.listen_to_aborts(Box::new(move |aborted| {
            shared.resized.lock().extend(aborted.inodes.iter().copied());
            shared.send(Message::Aborted(aborted));
        }));
        Ok(())
    }

    /// Groups can be opened.
    pub fn works(&self) -> bool {
        self.0.sender.lock().is_some()
    }

    /// What to compare with after an operation.
    pub fn look(&self) -> Look {
        Look(self.0.done.load(Ordering::SeqCst))
    }

    /// A group was, or is, taken back, and at `before` the kernel had not forgotten it: what the kernel's callers believed then may be wrong.
    pub fn is_stale(&self, volume: &Volume, before: Look) -> bool {
        volume.aborts_begun() != before.0
    }

    /// The kernel may be wrong about the length of this file.
    pub fn is_doubtful(&self, volume: &Volume, ino: Ino, before: Look) -> bool {
        let begun = volume.aborts_begun();
        begun != 0 && (begun != before.0 || self.0.resized.lock().contains(&ino))
    }

    /// The kernel has let go of an inode.
    pub fn forgotten(&self, volume: &Volume, ino: Ino) {
        if volume.aborts_begun() != 0 && !volume.is_remembered(ino) {
            self.0.resized.lock().remove(&ino);
        }
    }

    pub fn names(&self, names: Vec<(Ino, Vec<u8>)>) {
        self.0.send(Message::Names(names));
    }

    /// The pages of an inode are wrong in the kernel.
    pub fn pages(&self, ino: Ino) {
        if self.0.wrong_pages.lock().insert(ino) {
            self.0.send(Message::Pages(ino));
        }
    }

    /// Has the kernel write back what mappings have written to a range, and give those pages back; waits so long once it has begun. The caller
    /// holds no page, or waits for a short time, and serves no queue. False: the kernel is busy with others. It will not be asked later, when
    /// it could be in the way of another call.
    pub fn write_back(&self, ino: Ino, range: Range<u64>, within: Duration) -> bool {
        let (steps, wait) = sync_channel(2);
        self.0.send(Message::Range(ino, range, steps));
        // If not, there is no thread any more, or the kernel takes long; then the answer is that of a moment ago.
        let began = wait.recv_timeout(FORGET_WAIT).is_ok();
        if began {
            let _ = wait.recv_timeout(within);
        }
        began
    }

    /// Whether all that was sent before is done within this time.
    fn is_told(&self, within: Duration) -> bool {
        let (done, wait) = sync_channel(1);
        self.0.send(Message::Barrier(done));
        wait.recv_timeout(within).is_ok()
    }

    /// Waits until the kernel has forgotten all groups that anybody began to take back before the call.
    pub fn settle(&self, volume: &Volume) {
        let (begun, end) = (volume.aborts_begun(), Instant::now() + FORGET_WAIT);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let told = self.is_told(left);
            if self.0.done.load(Ordering::SeqCst) >= begun || !self.works() || volume.is_stopped() {
                return;
            }
            if !told || left.is_zero() {
                tracing::warn!("the kernel takes long to forget what an atomic group had changed");
                return;
            }
            // Whoever takes that group back has not got so far.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// No more notifications.
    pub fn stop(&self) {
        *self.0.sender.lock() = None;
    }
}

impl Shared {
    fn send(&self, message: Message) {
        if let Some(sender) = &*self.sender.lock() {
            let _ = sender.send(message);
        }
    }
}

fn notify(volume: &Weak<Volume>, kernel: &Channel, messages: &Receiver<Message>, shared: &Shared) {
    let forget_names = |names: &[(Ino, Vec<u8>)]| {
        for (parent, name) in names {
            kernel.invalidate_entry(node_of(*parent), name);
        }
    };
    while let Ok(message) = messages.recv() {
        match message {
            Message::Aborted(Aborted { inodes, names }) => {
                forget_names(&names);
                for ino in inodes {
                    forget_inode(volume, kernel, ino);
                }
                shared.done.fetch_add(1, Ordering::SeqCst);
            }
            Message::Names(names) => forget_names(&names),
            Message::Pages(ino) => {
                shared.wrong_pages.lock().remove(&ino);
                kernel.invalidate_inode(node_of(ino));
            }
            Message::Range(ino, range, steps) => {
                if steps.send(()).is_ok() {
                    kernel.invalidate_range(node_of(ino), range);
                    let _ = steps.send(());
                }
            }
            Message::Barrier(done) => drop(done.send(())),
        }
    }
}

/// Attributes, length and pages.
fn forget_inode(volume: &Weak<Volume>, kernel: &Channel, ino: Ino) {
    let Some(volume) = volume.upgrade() else {
        return;
    };
    // A file that is longer again: a mapping of it must not end where it ended in the group, and nobody asks for attributes before an access
    // through a mapping. (One that is shorter: the first read that comes back short tells the kernel.)
    if let Ok(attr) = volume.getattr(ino)
        && u32::from(attr.mode) & libc::S_IFMT == libc::S_IFREG
        && attr.size > 0
    {
        let (mut last, at) = (Vec::new(), attr.size - 1);
        if volume.read(ino, at, 1, &mut last).is_ok() && last.len() == 1 {
            kernel.store(node_of(ino), at, &last);
        }
    }
    kernel.invalidate_inode(node_of(ino));
    volume.pages_dropped(ino);
}

impl Server {
    /// Whoever serves requests of a kernel starts this. Without it there are no atomic groups, pages beside asynchronous direct writes can
    /// stay, and the space of removed files may come late.
    pub fn start_notifying(&self, kernel: Channel) -> std::io::Result<()> {
        self.pages.start(kernel.clone())?;
        let closes_are_seen = self.mount.atomic_files;
        self.asker
            .start(&self.volume, kernel.clone(), closes_are_seen)?;
        self.notifier.start(&self.volume, kernel)
    }

    /// Lets go of the kernel.
    pub fn stop_notifying(&self) {
        self.notifier.stop();
        self.pages.stop();
        self.asker.stop();
    }

    pub(super) fn group_ioctl(
        &self,
        request: &Request<'_>,
        number: u32,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut arg = versioned::<GroupArg>(input)?;
        let flags = match number {
            client::IOC_GROUP_COMMIT => client::GROUP_ORDERED,
            _ => 0,
        };
        let timed = arg.timeout_ms != 0 && number != client::IOC_GROUP_BEGIN;
        if arg.flags & !flags != 0 || timed {
            return Err(Errno(libc::EINVAL));
        }
        let (tid, uid) = (request.header.pid, request.header.uid);
        match number {
            client::IOC_GROUP_BEGIN => {
                arg.handle = self.group_begin(tid, uid, arg.timeout_ms, false)?;
            }
            client::IOC_GROUP_ENTER => self.callers.enter_group(tid, uid, arg.handle)?,
            client::IOC_GROUP_COMMIT => {
                let durable = arg.flags & client::GROUP_ORDERED == 0;
                self.group_commit(tid, uid, arg.handle, durable)?;
            }
            _ => self.group_abort(tid, uid, arg.handle)?,
        }
        reply.push(&arg);
        Ok(())
    }

    /// What F2FS has, and SQLite uses where it is built for it: what the calling thread changes between start and commit. Within a group
    /// that somebody began otherwise a commit waits for that group's, and an abort takes all of that group back.
    pub(super) fn atomic_write(&self, request: &Request<'_>, number: u32) -> Answer {
        let (tid, uid) = (request.header.pid, request.header.uid);
        let mode = self.volume.getattr(self.target(request)?)?.mode;
        if number == F2FS_START && u32::from(mode) & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno(libc::EINVAL));
        }
        let inside = match self.callers.group(tid, uid, 0) {
            Ok(found) => Some(found),
            Err(Errno(libc::ENOENT)) => None,
            Err(e) => return Err(e),
        };
        match (number, inside) {
            (F2FS_START, None) => self.group_begin(tid, uid, 0, true).map(drop),
            (F2FS_START, Some(group)) if group.is_by_file() => Err(Errno(libc::EBUSY)),
            (_, None) => Err(Errno(libc::EINVAL)),
            (F2FS_ABORT, Some(group)) if group.is_by_file() => self.group_abort(tid, uid, 0),
            (F2FS_ABORT, Some(group)) => match self.volume.group_abort(group.id) {
                // Its owner and the other members are told with their next change.
                Ok(()) | Err(ccfs_engine::Error::Errno(libc::ECANCELED)) => {
                    self.notifier.settle(&self.volume);
                    Ok(())
                }
                Err(e) => Err(e.into()),
            },
            (F2FS_COMMIT, Some(group)) if group.is_by_file() => {
                self.group_commit(tid, uid, 0, true)
            }
            (_, Some(group)) if self.volume.group_is_open(group.id) => Ok(()),
            (_, Some(_)) => Err(Errno(libc::ECANCELED)),
        }
    }

    fn group_begin(
        &self,
        tid: u32,
        uid: u32,
        timeout_ms: u64,
        by_file: bool,
    ) -> Result<u64, Errno> {
        if !self.notifier.works() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if tid == 0 {
            return Err(Errno(libc::ESRCH));
        }
        let home = self.callers.caller(tid, uid);
        if home.stream.is_group() {
            return Err(Errno(libc::EBUSY));
        }
        let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let id = self.volume.group_begin(home.stream, uid, timeout)?;
        let entered = self.callers.enter_new_group(tid, uid, id, home, by_file);
        if entered.is_err() {
            self.volume.group_abort(id)?;
        }
        entered
    }

    fn group_commit(&self, tid: u32, uid: u32, handle: u64, durable: bool) -> Answer {
        let found = self.callers.group(tid, uid, handle)?;
        if found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        let ended = self
            .volume
            .group_commit_telling(found.id, durable, &|| found.set_committed());
        self.callers.group_ended(tid, &found);
        if ended.is_err() {
            self.notifier.settle(&self.volume);
        }
        Ok(ended?)
    }

    /// One that was taken back already is as its owner wants it.
    fn group_abort(&self, tid: u32, uid: u32, handle: u64) -> Answer {
        let found = self.callers.group(tid, uid, handle)?;
        if found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        let ended = self.volume.group_abort(found.id).map_err(Errno::from);
        if ended.is_err() && found.is_committed() {
            return Err(Errno(libc::EALREADY));
        }
        self.callers.group_ended(tid, &found);
        self.notifier.settle(&self.volume);
        match ended {
            Err(Errno(libc::ECANCELED)) => Ok(()),
            ended => ended,
        }
    }

    /// Lines of what a group has changed so far: names, and files by inode number.
    pub(super) fn group_changes(
        &self,
        request: &Request<'_>,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut arg = trace_arg(input)?;
        let (tid, uid) = (request.header.pid, request.header.uid);
        let found = self.callers.group(tid, uid, arg.lost)?;
        let changes = self.volume.group_changes(found.id)?;
        (arg.length, arg.data) = (0, [0; client::STATUS_CHUNK]);
        let paths = Paths::new(&self.volume, self.user(request));
        let names = changes
            .names
            .iter()
            .map(|(dir, name)| Change::Name(*dir, name));
        let files = changes.inodes.iter().map(|ino| Change::File(*ino));
        let first = usize::try_from(arg.next).unwrap_or(usize::MAX);
        for change in names.chain(files).skip(first) {
            let line = self.line_of(&paths, change);
            // The next part has paths again.
            let spent = paths.is_spent() && arg.length > 0;
            if line.is_some_and(|line| spent || !put_line(&mut arg, &line)) {
                break;
            }
            arg.next += 1;
        }
        reply.push(&arg);
        Ok(())
    }

    /// `None`: a directory, of which its names speak.
    fn line_of(&self, paths: &Paths, change: Change) -> Option<String> {
        let path = |ino: Ino| paths.of(ino).unwrap_or_else(|| format!("inode {ino}"));
        match change {
            Change::Name(dir, name) => {
                let there = match self.volume.lookup(dir, name) {
                    Ok(_) => "set",
                    Err(_) => "removed",
                };
                let name = String::from_utf8_lossy(name).replace('\n', "?");
                let path = format!("{}/{name}", path(dir));
                Some(format!("{there} {}\n", path.trim_start_matches('/')))
            }
            Change::File(ino) => {
                let attr = self.volume.getattr(ino).ok()?;
                let is_dir = u32::from(attr.mode) & libc::S_IFMT == libc::S_IFDIR;
                let line = || format!("changed {}\n", path(ino).replace('\n', "?"));
                (!is_dir).then(line)
            }
        }
    }

    /// Runs a request on names. If a group was taken back meanwhile, the kernel may have changed its names by what the group had
    /// made of them: it looks them up again.
    pub(super) fn with_names<T>(
        &self,
        names: &[(Ino, &[u8])],
        f: impl FnOnce() -> Result<T, ccfs_engine::Error>,
    ) -> Result<T, ccfs_engine::Error> {
        let before = self.notifier.look();
        let done = f();
        if self.notifier.is_stale(&self.volume, before) {
            let names = names.iter().map(|(dir, name)| (*dir, name.to_vec()));
            self.notifier.names(names.collect());
        }
        done
    }
}

/// Something that a group has changed.
enum Change<'a> {
    Name(Ino, &'a [u8]),
    File(Ino),
}
