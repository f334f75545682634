//! A store as a [`Device`].
use crate::batch::{Batch, Written};
use crate::clock;
use crate::link::{Guard, Link, SETTLE};
use crate::owner::{self, BEAT, Bare, Found, Half, Holding, PLACE, Sectors};
use crate::session::{Answer, Geometry, Owner, Refusal, Request, Session, Store, Taken};
use ccfs_device::{
    AlignedBuf, Counters, Counting, Device, OpenError, OpenMode, Remote, SECTOR, Slice, Ticket,
    Write, check_range, check_writes,
};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Largest request, bytes.
const PIECE_MOST: u64 = 1 << 20;
/// For what is asked before the device is there.
const OPENING: Duration = Duration::from_secs(20);
/// Steps at the end that the store has to answer: changes that are on their way, a beat, a look, and what gives it back.
const LAST_STEPS: u32 = 4;

/// How a store is used.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For how long a connection that broke is made again, before the volume stops.
    pub patience: Duration,
    /// A live owner is shut out.
    pub take_over: bool,
    /// What is in the place of the owner's claim, and is none, is overwritten.
    pub overwrite: bool,
    /// For how long changes wait that could be undone by what an old connection still carries.
    pub settle: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            patience: Duration::from_secs(60),
            take_over: false,
            overwrite: false,
            settle: SETTLE,
        }
    }
}

/// A store as a block device: it has one writer, and outlives its connections. See the heads of `link/mod.rs` and `owner.rs`.
pub struct RemoteDevice {
    core: Arc<Core>,
    held: Arc<Held>,
}

/// What is given back at the end.
struct Held {
    core: Arc<Core>,
    /// How long the store has to answer a request.
    patience: Duration,
    threads: Mutex<Threads>,
}

/// What there is to end.
struct Threads {
    manager: Option<JoinHandle<()>>,
    beats: Option<Beats>,
}

/// Those of this process, for [`let_go`].
static ALL: Mutex<Vec<Weak<Held>>> = Mutex::new(Vec::new());

struct Core {
    link: Arc<Link>,
    geometry: Geometry,
    size: AtomicU64,
    read_only: bool,
    /// The owner's claim is in the volume, and stays as it is.
    has_claim: bool,
    /// As `status` names it.
    one_writer: &'static str,
    counting: Counting,
    /// Held while a unit is read, changed and written.
    unaligned: Mutex<()>,
}

/// The thread that keeps the claim up.
struct Beats {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
    holding: Arc<Holding>,
}

/// The name of this machine.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().into()
}

fn failed(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io {
        path: path.into(),
        source,
    }
}

fn in_use(path: &Path, e: Taken) -> OpenError {
    match e {
        Taken::Error(source) => failed(path, source),
        Taken::By(who) => OpenError::Busy {
            path: path.into(),
            holder: format!("{who}; --take-over takes it from there"),
        },
    }
}

impl RemoteDevice {
    /// Connects, and becomes the volume's one writer where it is to be written to.
    pub fn open(
        store: Box<dyn Store>,
        mode: OpenMode,
        settings: Settings,
    ) -> Result<RemoteDevice, OpenError> {
        let path = PathBuf::from(store.name());
        let wait = settings.patience.min(OPENING);
        let session = store
            .connect(wait, settings.patience)
            .map_err(|e| failed(&path, e))?;
        let opened = Self::over(store, session.clone(), mode, settings, &path, wait);
        if opened.is_err() {
            session.close(true);
        }
        opened
    }

    fn over(
        store: Box<dyn Store>,
        session: Arc<dyn Session>,
        mode: OpenMode,
        settings: Settings,
        path: &Path,
        wait: Duration,
    ) -> Result<RemoteDevice, OpenError> {
        let mut geometry = session.geometry();
        geometry.min_io = geometry.min_io.max(SECTOR);
        geometry.size -= geometry.size % geometry.min_io;
        if geometry.size < 2 * PLACE {
            return Err(OpenError::Empty {
                path: path.into(),
                bytes: geometry.size,
            });
        }
        let read_only = mode == OpenMode::ReadOnly;
        let holding = hold(&*session, read_only, settings, path, wait)?;
        let link = Link::new(store, session, settings.patience, settings.settle);
        let core = Arc::new(Core {
            link: link.clone(),
            size: AtomicU64::new(geometry.size),
            geometry,
            read_only,
            has_claim: holding.is_some(),
            one_writer: match (&holding, read_only) {
                (Some(_), _) => "heartbeat",
                (None, true) => "none",
                (None, false) => "lock",
            },
            counting: Counting::default(),
            unaligned: Mutex::new(()),
        });
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(work).map_err(|e| failed(path, e))
        };
        let manager = {
            let link = link.clone();
            start("ccfs-link", Box::new(move || link.manage()))?
        };
        let held = Arc::new(Held {
            core: core.clone(),
            patience: settings.patience,
            threads: Mutex::new(Threads {
                manager: Some(manager),
                beats: None,
            }),
        });
        let device = RemoteDevice { core, held };
        if let Some(holding) = holding {
            let holding = Arc::new(holding);
            link.guard(holding.clone());
            let end = Arc::new((Mutex::new(false), Condvar::new()));
            let (core, of_thread, until) = (device.core.clone(), holding.clone(), end.clone());
            let thread = start(
                "ccfs-beat",
                Box::new(move || beat(&core, &of_thread, &until)),
            )?;
            device.held.threads.lock().beats = Some(Beats {
                end,
                thread,
                holding,
            });
        }
        // With all that there is to end.
        let mut all = ALL.lock();
        all.retain(|held| held.strong_count() > 0);
        all.push(Arc::downgrade(&device.held));
        drop(all);
        Ok(device)
    }
}

/// Becomes the one writer, or sees that there is none, where it is only read. `None`: nothing has to be kept up.
fn hold(
    session: &dyn Session,
    read_only: bool,
    settings: Settings,
    path: &Path,
    wait: Duration,
) -> Result<Option<Holding>, OpenError> {
    let geometry = session.geometry();
    if geometry.read_only && !read_only {
        let e = io::Error::from_raw_os_error(libc::EROFS);
        return Err(failed(path, e));
    }
    let me = Owner {
        host: host(),
        pid: std::process::id(),
        since: clock::now(),
    };
    if !geometry.flushes && !read_only {
        let e = io::Error::other(
            "the server takes no flushes, without which nothing can be made durable; mount it with -o ro",
        );
        return Err(failed(path, e));
    }
    let sectors = Bare {
        session,
        patience: wait,
    };
    match session.lock() {
        // Of a snapshot nobody is the writer.
        _ if geometry.read_only => Ok(None),
        Some(fence) if read_only => match fence.owner() {
            Some(who) => Err(in_use(path, Taken::By(who))),
            None => Ok(None),
        },
        Some(fence) => {
            let taken = fence.take(&me, settings.take_over);
            taken.map_err(|e| in_use(path, e))?;
            Ok(None)
        }
        None if read_only => match owner::writer(&sectors).map_err(|e| failed(path, e.into()))? {
            Some(who) => Err(in_use(path, Taken::By(who.to_string()))),
            None => Ok(None),
        },
        None => {
            let taken = owner::take(&sectors, &me, settings.take_over, settings.overwrite);
            taken.map(Some).map_err(|e| in_use(path, e))
        }
    }
}

/// Who has a store, at a glance: its lock's owner, or whose claim is in it.
pub fn owner_of(store: &dyn Store) -> io::Result<Option<String>> {
    let session = store.connect(OPENING, OPENING)?;
    let bare = Bare {
        session: &*session,
        patience: OPENING,
    };
    let owner = match session.lock() {
        Some(fence) => Ok(fence.owner()),
        None => bare
            .look()
            .map_err(io::Error::from)
            .map(|found| match found {
                Found::Somebody(claim, _) => Some(claim.owner.to_string()),
                _ => None,
            }),
    };
    session.close(true);
    owner
}

/// Whether an owner, as [`Owner`] shows him, is a process of this host that runs.
pub fn is_here(owner: &str) -> bool {
    let rest = owner.strip_prefix(&format!("host {} (process ", host()));
    let pid = rest.and_then(|rest| rest.split(',').next());
    pid.is_some_and(|pid| Path::new("/proc").join(pid).join("stat").exists())
}

impl Guard for Holding {
    fn check(&self, session: &dyn Session, patience: Duration) -> Result<(), Refusal> {
        let (bare, begun) = (Bare { session, patience }, clock::elapsed());
        let mine = self.is_mine(&bare.look()?);
        mine.map_err(|whose| Refusal::Store(io::Error::other(whose)))?;
        self.saw(begun);
        // While much is written again nobody else keeps it up.
        bare.put(Some(self.next()), None)
    }

    fn may_write(&self) -> bool {
        Holding::may_write(self)
    }
}

fn beat(core: &Arc<Core>, holding: &Holding, end: &(Mutex<bool>, Condvar)) {
    let mut ended = end.0.lock();
    while !*ended {
        end.1.wait_for(&mut ended, BEAT);
        if *ended {
            break;
        }
        parking_lot::MutexGuard::unlocked(&mut ended, || {
            if let Err(why) = holding.beat(&Through(core)) {
                core.link.die(&why);
            }
        });
    }
}

/// The owner's sectors through the device that has them.
struct Through<'a>(&'a Arc<Core>);

impl Sectors for Through<'_> {
    fn min_io(&self) -> u64 {
        self.0.geometry.min_io
    }

    fn ask(&self, request: Request) -> Answer {
        let one = Batch::of(1);
        self.0.link.start_owners(request, &one);
        one.wait().map_err(Refusal::Store)
    }

    fn put(&self, first: Option<Half>, second: Option<Half>) -> Result<(), Refusal> {
        let held = self
            .are_one()
            .then(|| self.0.unaligned.try_lock_for(BEAT / 4));
        match held {
            // Who changes another part of the unit may wait for the next look: then it is for another beat.
            Some(None) => Ok(()),
            _ => owner::put(self, first, second),
        }
    }
}

impl Core {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn piece(&self) -> u64 {
        let most = self.geometry.max_io.min(PIECE_MOST);
        (most - most % self.geometry.min_io).max(self.geometry.min_io)
    }

    fn is_whole(&self, bytes: u64) -> bool {
        bytes.is_multiple_of(self.geometry.min_io)
    }

    /// An aligned range, in as many requests as it takes, all at once.
    fn read_whole(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let piece = self.piece() as usize;
        let asked: Vec<(Arc<Batch>, &mut [u8])> = (offset..)
            .step_by(piece)
            .zip(buf.chunks_mut(piece))
            .map(|(offset, part)| {
                let one = Batch::of(1);
                let len = part.len();
                self.link.start(vec![Request::Read { offset, len }], &one);
                (one, part)
            })
            .collect();
        let mut result = Ok(());
        for (one, part) in asked {
            match one.wait() {
                Ok(Some(data)) if data.len() == part.len() => part.copy_from_slice(&data),
                Ok(_) => result = Err(io::ErrorKind::UnexpectedEof.into()),
                Err(e) => result = Err(e),
            }
        }
        result
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64;
        if self.is_whole(offset) && self.is_whole(end) {
            return self.read_whole(offset, buf);
        }
        let unit = self.geometry.min_io;
        let start = offset - offset % unit;
        let mut whole = AlignedBuf::zeroed((end.next_multiple_of(unit) - start) as usize);
        self.read_whole(start, &mut whole)?;
        let skip = (offset - start) as usize;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }

    /// The requests of a write whose ends are whole units.
    fn requests(&self, write: &Write, out: &mut Vec<Request>) {
        let piece = self.piece() as usize;
        let push = |out: &mut Vec<Request>, offset, data| {
            out.push(Request::Write { offset, data });
        };
        if let [part] = &write.parts[..]
            && part.start == 0
            && part.len == part.buf.len()
            && part.len <= piece
        {
            return push(out, write.offset, part.buf.clone());
        }
        let (mut at, mut left) = (write.offset, write.len() as usize);
        let mut parts = write.parts.iter().map(Slice::bytes);
        let mut rest: &[u8] = &[];
        while left > 0 {
            let len = left.min(piece);
            let mut data = AlignedBuf::zeroed(len);
            let mut filled = 0;
            while filled < len {
                if rest.is_empty() {
                    rest = parts.next().unwrap_or_default();
                    continue;
                }
                let count = rest.len().min(len - filled);
                data[filled..filled + count].copy_from_slice(&rest[..count]);
                (filled, rest) = (filled + count, &rest[count..]);
            }
            push(out, at, data.into());
            (at, left) = (at + len as u64, left - len);
        }
    }

    /// A write that is not made of whole units: its first and last unit are read, and written with the change.
    fn write_unaligned(&self, write: &Write) -> io::Result<()> {
        let _held = self.unaligned.lock();
        let whole = write.in_units(self.geometry.min_io, |at, unit| self.read_whole(at, unit))?;
        let mut requests = Vec::new();
        self.requests(&whole, &mut requests);
        let batch = Batch::of(requests.len());
        self.link.start(requests, &batch);
        batch.wait().map(|_| ())
    }

    fn write(&self, writes: Vec<Write>) -> io::Result<Ticket> {
        let mut requests = Vec::new();
        for write in writes.iter().filter(|write| !write.is_empty()) {
            let end = write.offset + write.len();
            match self.is_whole(write.offset) && self.is_whole(end) {
                true => self.requests(write, &mut requests),
                false => self.write_unaligned(write)?,
            }
        }
        if requests.is_empty() {
            return Ok(Ticket::done(Ok(())));
        }
        let batch = Batch::of(requests.len());
        self.link.start(requests, &batch);
        Ok(Ticket::pending(Box::new(Written(batch))))
    }

    fn flush(&self) -> io::Result<()> {
        let batch = Batch::of(1);
        self.link.start(vec![Request::Flush], &batch);
        batch.wait().map(|_| ())
    }

    fn refuse_writes(&self) -> io::Result<()> {
        match self.read_only {
            true => Err(io::Error::from_raw_os_error(libc::EROFS)),
            false => Ok(()),
        }
    }
}

/// What of a write lies behind the owner's sectors.
fn behind_the_claim(write: Write) -> Option<Write> {
    if write.offset >= PLACE {
        return Some(write);
    }
    let mut skip = (PLACE - write.offset) as usize;
    let mut parts = write.parts;
    for part in &mut parts {
        let gone = skip.min(part.len);
        (part.start, part.len, skip) = (part.start + gone, part.len - gone, skip - gone);
    }
    parts.retain(|part| part.len > 0);
    let offset = PLACE;
    (!parts.is_empty()).then_some(Write { offset, parts })
}

impl Device for RemoteDevice {
    fn size_bytes(&self) -> u64 {
        self.core.size()
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        let core = &self.core;
        core.refuse_writes()?;
        let now = match core.link.session() {
            Some(session) if session.size() > core.size() => session.size(),
            // Some protocols tell a size at the beginning only.
            _ => core.link.store().connect(OPENING, OPENING).map(|looked| {
                let size = looked.size();
                looked.close(true);
                size
            })?,
        };
        let now = now - now % core.geometry.min_io;
        if now > core.size() {
            if core
                .link
                .session()
                .is_some_and(|session| session.size() < now)
            {
                core.link.connect_anew();
            }
            core.size.fetch_max(now, Ordering::AcqRel);
        }
        match bytes <= core.size() {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the store's image has {} bytes, and has to be made larger first",
                    core.size()
                ),
            )),
        }
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.core.size(), offset, buf.len() as u64)?;
        self.core.read(offset, buf)?;
        self.core.counting.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let core = &self.core;
        let checked = check_writes(core.size(), &writes).and_then(|()| core.refuse_writes());
        if let Err(e) = checked {
            return Ticket::done(Err(e));
        }
        core.counting.wrote(&writes);
        let writes = match core.has_claim {
            true => writes.into_iter().flat_map(behind_the_claim).collect(),
            false => writes,
        };
        let started = core.write(writes);
        started.unwrap_or_else(|e| Ticket::done(Err(e)))
    }

    fn flush(&self) -> io::Result<()> {
        self.core.counting.flush();
        match self.core.read_only {
            true => Ok(()),
            false => self.core.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let core = &self.core;
        check_range(core.size(), offset, len)?;
        core.refuse_writes()?;
        let unit = core.geometry.min_io;
        let (mut at, end) = (offset.next_multiple_of(unit), offset + len);
        let end = end - end % unit;
        if core.has_claim && at < PLACE {
            at = PLACE.next_multiple_of(unit);
        }
        if at >= end || !core.geometry.discards {
            return Ok(());
        }
        /// The largest length that every server takes, bytes (32 bits in NBD).
        const MOST: u64 = 1 << 30;
        let each = (at..end).step_by(MOST as usize);
        let requests: Vec<Request> = each
            .map(|offset| Request::Discard {
                offset,
                len: MOST.min(end - offset),
            })
            .collect();
        let batch = Batch::of(requests.len());
        core.link.start(requests, &batch);
        batch.wait().map(|_| ())
    }

    fn counters(&self) -> Counters {
        self.core.counting.get()
    }

    fn read_only(&self) -> bool {
        self.core.read_only
    }

    fn min_io(&self) -> u64 {
        self.core.geometry.min_io
    }

    fn remote(&self) -> Option<Remote> {
        let link = &self.core.link;
        let shown = link.shown();
        let mean = |(sum, number): &(AtomicU64, AtomicU64)| {
            let number = number.load(Ordering::Relaxed);
            (number > 0).then(|| sum.load(Ordering::Relaxed) as f64 / number as f64)
        };
        let (broken_seconds, why) = match (shown.dead, shown.broken) {
            (Some(why), _) => (None, Some(why)),
            (None, Some((seconds, why))) => (Some(seconds), Some(why)),
            (None, None) => (None, None),
        };
        Some(Remote {
            store: link.store().name().into(),
            kind: link.store().kind(),
            connected: link.session().is_some(),
            broken_seconds,
            why,
            reconnects: link.stats.reconnects.load(Ordering::Relaxed),
            requests: link.stats.requests.load(Ordering::Relaxed),
            in_flight: shown.in_flight as u64,
            unflushed_bytes: shown.kept as u64,
            round_trip_us: mean(&link.stats.small),
            flush_us: mean(&link.stats.flushes),
            one_writer: self.core.one_writer,
        })
    }
}

impl Held {
    /// Nobody writes any more: the claim or the lock is given back, so that the next one need not wait, and the connection ends. Who comes
    /// while another thread does so waits for it: a process that ended meanwhile would end that thread, too.
    fn let_go(&self) {
        let mut threads = self.threads.lock();
        let link = &self.core.link;
        // Nothing of this host's may come behind the claim's end; what waits for the lease needs the heartbeat.
        link.end_changes();
        if let Some(beats) = threads.beats.take() {
            *beats.end.0.lock() = true;
            beats.end.1.notify_all();
            let _ = beats.thread.join();
            let through = Through(&self.core);
            let found = through.settle().and_then(|()| through.look());
            if found.is_ok_and(|found| beats.holding.is_mine(&found).is_ok()) {
                let none = Some([0; SECTOR as usize]);
                let gone = through.put(none, none).and_then(|()| through.settle());
                if let Err(e) = gone {
                    tracing::debug!("the owner's claim stays: {e}");
                }
            }
        }
        let Some(manager) = threads.manager.take() else {
            return;
        };
        if let Some(session) = link.session()
            && let Some(fence) = session.lock()
            && !self.core.read_only
        {
            fence.give_back();
        }
        link.stop();
        let _ = manager.join();
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        self.held.let_go();
    }
}

/// At the end of a process: who still has a device, a thread that is about to end, say, drops it too late or never. A store that does not answer is
/// left as it is after [`LAST_STEPS`] times the time in which it has to.
pub fn let_go() {
    let all = std::mem::take(&mut *ALL.lock());
    for held in all.iter().filter_map(Weak::upgrade) {
        let limit = held.patience * LAST_STEPS;
        let (done, hear) = mpsc::channel();
        let ending = std::thread::Builder::new().name("ccfs-end".into());
        let ending = ending.spawn(move || {
            held.let_go();
            // Whoever waited has gone.
            let _ = done.send(());
        });
        match ending {
            Ok(_) => drop(hear.recv_timeout(limit)),
            Err(e) => tracing::debug!("a store is not given back, there is no thread for it: {e}"),
        }
    }
}
