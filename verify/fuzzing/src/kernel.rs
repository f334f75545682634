//! The kernel beside sessions of direct calls: it asks, counts its references, and gives them back.
use ccfs_client::abi::{
    self as client, DirectBeginArg, DirectCallArg, GroupArg, StatusArg, StreamArg,
};
use ccfs_client::direct::layout::VERSION;
use ccfs_client::direct::memory::Memory;
use ccfs_engine::Attempt;
use ccfs_fuse::Server;
use ccfs_fuse::abi::{ForgetIn, InHeader, IoctlIn, ReadIn, op};
use ccfs_fuse::wire::{Body, Handler, Reply, Request};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long anything may take that is waited for, while other processes have the machine, too.
pub const BOUND: Duration = Duration::from_secs(15);
/// Node id of the root.
pub const ROOT: u64 = 1;
/// Directories that may have the number of a volume's root: the daemon asks which one a session is begun on by its number and mount.
static LIKE_ROOT: LazyLock<Vec<File>> = LazyLock::new(|| {
    let places = ["/proc", "/dev/shm", "/sys", "/dev/pts", "/run"];
    let all = places.iter().filter_map(|place| File::open(place).ok());
    all.filter(|dir| dir.metadata().is_ok_and(|about| about.ino() == ROOT))
        .collect()
});
/// User and group of this process.
static USER: LazyLock<(u32, u32)> = LazyLock::new(|| {
    let own = fs::metadata("/proc/self");
    own.map_or((0, 0), |about| (about.uid(), about.gid()))
});

pub struct Kernel<'s> {
    server: &'s Server,
    /// References by node.
    known: BTreeMap<u64, u64>,
    /// The directory by which sessions are begun.
    directory: u32,
    /// Requests are tried first by who must not wait, as transports do.
    pub tries: bool,
}

impl<'s> Kernel<'s> {
    pub fn new(server: &'s Server) -> Kernel<'s> {
        Kernel {
            server,
            known: BTreeMap::new(),
            directory: 0,
            tries: false,
        }
    }

    /// A request of this process. Error: that of the reply.
    pub fn ask(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let header = InHeader {
            opcode,
            nodeid,
            uid: USER.0,
            gid: USER.1,
            pid: std::process::id(),
            unique: 2,
            ..Default::default()
        };
        let request = Request::new(header, Body::Whole(body));
        let mut reply = Reply::default();
        let tried = match self.tries && !self.server.may_block(&request) {
            true => self.server.handle_non_blocking(&request, &mut reply),
            false => Attempt::Again,
        };
        if tried == Attempt::Again {
            self.server.handle(&request, &mut reply);
        }
        for ino in reply.remembered {
            *self.known.entry(ino.into()).or_default() += 1;
        }
        match reply.errno {
            0 => Ok(reply.body),
            errno => {
                assert!((1..=511).contains(&errno), "error number {errno}");
                Err(errno)
            }
        }
    }

    /// A request that ends with a name; whatever comes of it.
    pub fn named(&mut self, opcode: u32, node: u64, arg: &[u8], name: &[u8]) {
        let _ = self.ask(opcode, node, &[arg, name, b"\0"].concat());
    }

    /// Error: that of the reply.
    pub fn look_up(&mut self, node: u64, name: &str) -> Result<u64, i32> {
        let body = [name.as_bytes(), b"\0"].concat();
        let reply = self.ask(op::LOOKUP, node, &body)?;
        match u64::read_from_prefix(&reply) {
            Ok((node, _)) if node != 0 => Ok(node),
            _ => Err(libc::ENOENT),
        }
    }

    pub fn read(&mut self, node: u64, size: u32) -> Result<Vec<u8>, i32> {
        let arg = ReadIn {
            size,
            ..Default::default()
        };
        self.ask(op::READ, node, arg.as_bytes())
    }

    pub fn list(&mut self, node: u64) {
        let arg = ReadIn {
            size: 64 << 10,
            ..Default::default()
        };
        let _ = self.ask(op::READDIRPLUS, node, arg.as_bytes());
    }

    /// One of the nodes that the kernel knows, the root among them.
    pub fn node(&self, n: u8) -> u64 {
        let n = usize::from(n) % (self.known.len() + 1);
        let known = n.checked_sub(1).and_then(|n| self.known.keys().nth(n));
        known.copied().unwrap_or(ROOT)
    }

    /// All references to a node.
    pub fn forget(&mut self, node: u64) {
        if let Some(nlookup) = self.known.remove(&node) {
            let _ = self.ask(op::FORGET, node, ForgetIn { nlookup }.as_bytes());
        }
    }

    pub fn forget_all(&mut self) {
        while let Some(node) = self.known.keys().next().copied() {
            self.forget(node);
        }
    }

    fn ioctl<T: IntoBytes + FromBytes + zerocopy::Immutable>(
        &mut self,
        cmd: u32,
        arg: &mut T,
    ) -> Result<(), i32> {
        let size = size_of::<T>() as u32;
        let head = IoctlIn {
            cmd,
            in_size: size,
            out_size: size,
            ..Default::default()
        };
        let body = [head.as_bytes(), arg.as_bytes()].concat();
        let reply = self.ask(op::IOCTL, ROOT, &body)?;
        let after = reply.len().saturating_sub(size as usize);
        if let Ok(out) = T::read_from_bytes(&reply[after..]) {
            *arg = out;
        }
        Ok(())
    }

    /// A session of this process, if it may have one.
    pub fn begin(&mut self) -> Option<(Memory, u64)> {
        let (memory, fd) = Memory::make().ok()?;
        for directory in LIKE_ROOT.iter() {
            let mut arg = DirectBeginArg {
                version: client::VERSION,
                protocol: VERSION,
                memory: fd.as_raw_fd() as u32,
                directory: directory.as_raw_fd() as u32,
                ..Default::default()
            };
            if self.ioctl(client::IOC_DIRECT_BEGIN, &mut arg).is_ok() {
                self.directory = arg.directory;
                return Some((memory, arg.session));
            }
        }
        None
    }

    /// Has an entry carried out; how the daemon calls the thread.
    pub fn call(&mut self, session: u64, position: u64) -> Result<u32, i32> {
        let mut arg = DirectCallArg {
            version: client::VERSION,
            session,
            position,
            directory: self.directory,
            ..Default::default()
        };
        self.ioctl(client::IOC_DIRECT_CALL, &mut arg)?;
        Ok(arg.thread)
    }

    pub fn group(&mut self, cmd: u32) {
        let _ = self.ioctl(cmd, &mut group());
    }

    /// The thread is in no group from here on.
    pub fn leave_groups(&mut self) {
        while self
            .ioctl(client::IOC_GROUP_COMMIT, &mut group())
            .or_else(|_| self.ioctl(client::IOC_GROUP_ABORT, &mut group()))
            .is_ok()
        {}
    }

    /// The thread goes into a stream of its own.
    pub fn new_stream(&mut self) {
        let mut arg = stream(0);
        if self.ioctl(client::IOC_NEW_STREAM, &mut arg).is_ok() {
            let _ = self.ioctl(client::IOC_SET_STREAM, &mut stream(arg.id));
        }
    }

    pub fn default_stream(&mut self) {
        let _ = self.ioctl(client::IOC_SET_STREAM, &mut stream(client::STREAM_DEFAULT));
    }

    /// What is posted in this stream is durable.
    pub fn await_nothing(&mut self) {
        let _ = self.ioctl(client::IOC_STREAM_SYNC, &mut stream(0));
    }

    /// Both sessions have ended, and left nothing.
    pub fn await_end(&mut self) {
        let begun = Instant::now();
        loop {
            let now = self.status();
            let none = |name| now[name] == 0;
            if none("sessions") {
                assert!(none("held") && none("handles") && none("names"), "{now}");
                return;
            }
            assert!(begun.elapsed() < BOUND, "a session does not end: {now}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn status(&mut self) -> serde_json::Value {
        let (mut text, mut snapshot) = (Vec::new(), 0);
        loop {
            let mut arg = StatusArg::ask(snapshot, text.len() as u64);
            self.ioctl(client::IOC_STATUS, &mut arg)
                .expect("there is a status");
            text.extend_from_slice(&arg.data[..arg.length as usize]);
            snapshot = arg.snapshot;
            if text.len() as u64 >= arg.total {
                break;
            }
        }
        let mut all: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
        all["direct"].take()
    }
}

fn group() -> GroupArg {
    GroupArg {
        version: client::VERSION,
        ..Default::default()
    }
}

fn stream(id: u64) -> StreamArg {
    StreamArg {
        version: client::VERSION,
        id,
        ..Default::default()
    }
}
