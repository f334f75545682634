//! The pool of threads under requests that wait, with a made-up file system in place of the server.
mod common;
use ccfs_fuse::abi::{self, op};
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::wire::{Handler, Reply, Request, one_name};
use common::can_mount;
use parking_lot::{Condvar, Mutex};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A directory in which every name is an empty file. FSYNC waits at the gate and says so beforehand; names that begin with "slow"
/// are looked up at the gate, too, without a word.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: Mutex<usize>,
}

impl Gate {
    fn pass(&self) {
        *self.waiting.lock() += 1;
        let mut open = self.open.lock();
        while !*open {
            self.opened.wait(&mut open);
        }
        *self.waiting.lock() -= 1;
    }

    fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    fn attr(nodeid: u64) -> abi::Attr {
        let mode = if nodeid == 1 {
            libc::S_IFDIR | 0o777
        } else {
            libc::S_IFREG | 0o666
        };
        abi::Attr {
            ino: nodeid,
            mode,
            nlink: 1,
            ..Default::default()
        }
    }
}

impl Handler for Gate {
    fn may_block(&self, request: &Request<'_>) -> bool {
        request.header.opcode == op::FSYNC
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        match request.header.opcode {
            op::LOOKUP => {
                let name = one_name(request.bare()).unwrap();
                if name.starts_with(b"slow") {
                    self.pass();
                }
                let nodeid = 100 + name.iter().fold(0, |sum, b| sum * 31 + u64::from(*b));
                reply.push(&abi::EntryOut {
                    nodeid,
                    attr: Gate::attr(nodeid),
                    ..Default::default()
                });
            }
            op::GETATTR => reply.push(&abi::AttrOut {
                attr: Gate::attr(request.header.nodeid),
                ..Default::default()
            }),
            op::FSYNC => self.pass(),
            op::FORGET | op::BATCH_FORGET => reply.silent = true,
            _ => reply.errno = libc::ENOSYS,
        }
    }

    fn undelivered(&self, _reply: &Reply) {}
}

struct Mount {
    dir: tempfile::TempDir,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
}

impl Mount {
    fn new(config: PoolConfig) -> Mount {
        let dir = tempfile::tempdir().unwrap();
        let channel = Channel::open().unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            channel.fd().as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        mount(
            c"gate",
            dir.path(),
            c"fuse",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .unwrap();
        channel.handshake(WANTED, 1 << 20).unwrap();
        let gate = Arc::new(Gate::default());
        let pool = Pool::start(channel, gate.clone(), config).unwrap();
        Mount { dir, gate, pool }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(120);
        while !is_so() {
            assert!(
                Instant::now() < end,
                "{what}: {} waiting, {} threads",
                self.gate.waiting.lock(),
                self.pool.threads()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.open();
        unmount(self.dir.path(), UnmountFlags::DETACH).unwrap();
        self.pool.wait();
    }
}

/// Far more waiting syncs than serving threads: other requests are served as if nothing were.
#[test]
fn syncs_hold_no_place() {
    if !can_mount("syncs_hold_no_place") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 2,
        threads_max: 512,
    });
    std::thread::scope(|scope| {
        for i in 0..50 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || std::fs::File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("50 syncs wait at once", || *m.gate.waiting.lock() == 50);
        for i in 0..200 {
            std::fs::metadata(m.path(&format!("other{i}"))).unwrap();
        }
        m.gate.open();
    });
}

/// More syncs than there may be threads: they queue, and all get through.
#[test]
fn the_bound_queues() {
    if !can_mount("the_bound_queues") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 2,
        threads_max: 8,
    });
    std::thread::scope(|scope| {
        for i in 0..40 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || std::fs::File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("threads wait", || *m.gate.waiting.lock() == 8);
        assert_eq!(m.pool.threads(), 8);
        m.gate.open();
    });
    assert_eq!(*m.gate.waiting.lock(), 0);
}

/// Requests that turn out to wait lose their places to others.
#[test]
fn the_watcher_replaces_threads_that_wait() {
    if !can_mount("the_watcher_replaces_threads_that_wait") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 1,
        threads_max: 512,
    });
    std::thread::scope(|scope| {
        for i in 0..10 {
            let path = m.path(&format!("slow{i}"));
            scope.spawn(move || std::fs::metadata(path).unwrap());
        }
        // Lookups in one directory go on at the same time (PARALLEL_DIROPS).
        m.until("10 lookups wait at once", || *m.gate.waiting.lock() == 10);
        std::fs::metadata(m.path("fast")).unwrap();
        m.gate.open();
    });
}
