//! The program's part, played by the test: sessions with the real ring, used by threads that do nothing else. What a session holds it
//! calls by handles, as the library does.
use crate::kernel::Kernel;
use ccfs_client::abi::{self as client, DirectBeginArg, DirectCallArg};
use ccfs_client::direct::layout::{
    Attr, BROKEN, BY_CALL, Entry, HEAD, LIMIT_MAX, RING_BYTES, VERSION, WOULD_WAIT, cost, op, word,
};
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::ring::{Asked, Posted, Ring};
use ccfs_crash::oracle::NodeId;
use ccfs_fuse::abi::ROOT_ID;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A thread that is there so that calls can come from it.
pub struct Thread {
    pub tid: u32,
    end: mpsc::Sender<()>,
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    pub fn start() -> Result<Thread, String> {
        let (say, said) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let handle = std::thread::spawn(move || {
            let _ = say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = ends.recv();
        });
        Ok(Thread {
            tid: said.recv().map_err(|e| e.to_string())?,
            end,
            handle: Some(handle),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let _ = self.end.send(());
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    Done,
    /// The hold is broken, and nothing was done.
    Broken,
    /// It may not be posted.
    NotAllowed,
    Failed(i32),
}

/// A reply, with its bytes.
pub type Replied = (Did, Vec<u8>);

/// One session.
pub struct Session {
    id: u64,
    ring: Ring,
    dir: File,
    next: u32,
    /// Handles of what it holds, or held.
    pub handles: BTreeMap<NodeId, u32>,
    /// Directories that it made, all of whose names it knows.
    pub made: BTreeSet<NodeId>,
    /// Cost of all that was posted.
    cost: u64,
    /// Ends of what was published since it was last carried out whole.
    pub pending: Vec<u64>,
}

/// A directory that the daemon takes for the volume's root, by its number and its mount: that of a /proc is always 1.
fn a_root() -> io::Result<File> {
    File::open("/proc")
}

impl Session {
    /// Error: text, or `None` where there can be no session for this process.
    pub fn begin(kernel: &Kernel, tid: u32) -> Result<Option<Session>, String> {
        let (memory, fd) = Memory::make().map_err(|e| format!("memory: {e}"))?;
        let dir = a_root().map_err(|e| format!("/proc: {e}"))?;
        let mut arg = DirectBeginArg {
            version: client::VERSION,
            protocol: VERSION,
            memory: fd.as_raw_fd() as u32,
            directory: dir.as_raw_fd() as u32,
            ..DirectBeginArg::default()
        };
        match kernel.ioctl(tid, ROOT_ID, client::IOC_DIRECT_BEGIN, &mut arg) {
            Ok(()) => {}
            Err(libc::EOPNOTSUPP | libc::EROFS) => return Ok(None),
            Err(errno) => return Err(format!("no session: errno {errno}")),
        }
        Ok(Some(Session {
            id: arg.session,
            ring: Ring::new(memory),
            dir,
            next: 0,
            handles: BTreeMap::new(),
            made: BTreeSet::new(),
            cost: 0,
            pending: Vec::new(),
        }))
    }

    pub fn new_handle(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// What its thread would do now.
    pub fn carry_out(&mut self, kernel: &Kernel) -> Result<(), String> {
        self.pending.clear();
        self.carry_out_to(kernel, self.tail())
    }

    /// The same, for the entries up to one of them.
    pub fn carry_out_to(&self, kernel: &Kernel, tail: u64) -> Result<(), String> {
        if !kernel.by_hand {
            return self.check();
        }
        let done = kernel.server.carry_out_direct(self.id, tail);
        done.map_err(|e| format!("what was posted is not carried out: {e:?}"))?;
        self.check()
    }

    /// Error: the daemon has ended the session, of which there is no reason.
    pub fn check(&self) -> Result<(), String> {
        match self.ring.memory().u32(word::ENDED).load(Ordering::SeqCst) {
            0 => Ok(()),
            errno => Err(format!("the daemon has ended a session: errno {errno}")),
        }
    }

    fn tail(&self) -> u64 {
        self.ring.memory().u64(word::TAIL).load(Ordering::SeqCst)
    }

    fn word(&self, at: usize) -> u64 {
        self.ring.memory().u64(at).load(Ordering::SeqCst)
    }

    /// It has published what is not carried out.
    pub fn is_pending(&self) -> bool {
        self.tail() != self.word(word::HEAD)
    }

    /// Somebody else may know what a handle stands for.
    pub fn is_broken(&self, handle: u32) -> bool {
        self.ring.memory().broken(handle).load(Ordering::SeqCst) != 0
    }

    /// There is no room to publish it before what was posted is carried out; who waited for that would wait for ever.
    fn is_full(&self, entry: &Entry, bytes: usize) -> bool {
        let price = cost(entry.op, bytes);
        let limit = self.word(word::LIMIT).min(LIMIT_MAX);
        let under_way = self.tail() - self.word(word::HEAD);
        let dear = limit >= price && self.cost - self.word(word::SPENT) + price > limit;
        dear || under_way as usize + 2 * (bytes + (8 << 10)) > RING_BYTES / 2
    }

    fn make_room(&mut self, kernel: &Kernel, entry: &Entry, bytes: usize) -> Result<(), String> {
        match kernel.by_hand && self.is_full(entry, bytes) {
            true => self.carry_out(kernel),
            false => Ok(()),
        }
    }

    /// Publishes an entry of a thread's that nobody waits for.
    pub fn post(
        &mut self,
        kernel: &Kernel,
        tid: u32,
        mut entry: Entry,
        parts: &[&[u8]],
    ) -> Result<Did, String> {
        entry.thread = tid;
        let bytes = parts.iter().map(|p| p.len()).sum();
        self.make_room(kernel, &entry, bytes)?;
        let price = cost(entry.op, bytes);
        let posted = self.ring.post(entry, parts, &alive(kernel));
        let posted = posted.map_err(|e| format!("posting: {e}"))?;
        let did = match posted {
            Posted::NotAllowed => return Ok(Did::NotAllowed),
            Posted::Accepted(_) => Did::Done,
            Posted::InDoubt(asked) => {
                self.carry_out_to(kernel, self.tail())?;
                let result = asked.wait_carried_out(&alive(kernel));
                did(result.map_err(|e| format!("in doubt: {e}"))?)
            }
        };
        self.cost += price;
        self.pending.push(self.tail());
        Ok(did)
    }

    /// Publishes an entry and waits for its reply; `by_call`: it is carried out by an ioctl on the root.
    pub fn ask(
        &mut self,
        kernel: &Kernel,
        tid: u32,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
        by_call: bool,
    ) -> Result<Replied, String> {
        entry.thread = tid;
        entry.flags = if by_call { BY_CALL } else { 0 };
        let bytes: usize = parts.iter().map(|p| p.len()).sum();
        self.make_room(kernel, &entry, HEAD + bytes + room)?;
        let asked = self.ring.ask(entry, parts, room, &alive(kernel));
        let asked = asked.map_err(|e| format!("asking: {e}"))?;
        let result = match by_call {
            true => self.call(kernel, tid, &asked)?,
            false => {
                self.carry_out_to(kernel, self.tail())?;
                let (result, _) = asked
                    .wait(&alive(kernel))
                    .map_err(|e| format!("asked: {e}"))?;
                match result {
                    WOULD_WAIT => self.call(kernel, tid, &asked)?,
                    result => result,
                }
            }
        };
        let mut out = vec![0; asked.reply().1.min(room)];
        asked.copy(&mut out);
        drop(asked);
        self.pending.clear();
        self.check()?;
        Ok((did(result), out))
    }

    fn call(&self, kernel: &Kernel, tid: u32, asked: &Asked<'_>) -> Result<i32, String> {
        let mut arg = DirectCallArg {
            version: client::VERSION,
            session: self.id,
            position: asked.position,
            directory: self.dir.as_raw_fd() as u32,
            ..DirectCallArg::default()
        };
        match kernel.ioctl(tid, ROOT_ID, client::IOC_DIRECT_CALL, &mut arg) {
            Ok(()) => Ok(asked.reply().0),
            Err(errno) => Err(format!("a call of a session: errno {errno}")),
        }
    }

    /// A thread uses it from now on, in the stream that it is in.
    pub fn note_thread(&mut self, kernel: &Kernel, tid: u32) -> Result<(), String> {
        let entry = Entry {
            op: op::THREAD,
            ..Entry::default()
        };
        match self
            .ask(kernel, tid, entry, &[], size_of::<Attr>(), true)?
            .0
        {
            Did::Done => Ok(()),
            did => Err(format!("a thread of a session: {did:?}")),
        }
    }

    /// A handle is not used any more.
    pub fn close(&mut self, kernel: &Kernel, tid: u32, node: NodeId) -> Result<(), String> {
        self.made.remove(&node);
        let Some(h) = self.handles.remove(&node) else {
            return Ok(());
        };
        let entry = Entry {
            op: op::CLOSE,
            h,
            ..Entry::default()
        };
        match self.post(kernel, tid, entry, &[])? {
            Did::Done => Ok(()),
            did => Err(format!("close of a handle: {did:?}")),
        }
    }
}

/// Whether to wait for longer: what is carried out by hand is carried out before anybody looks.
fn alive(kernel: &Kernel) -> impl Fn() -> io::Result<()> {
    let by_hand = kernel.by_hand;
    move || match by_hand {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(()),
    }
}

fn did(result: i32) -> Did {
    match result {
        0 => Did::Done,
        BROKEN => Did::Broken,
        errno => Did::Failed(errno),
    }
}
