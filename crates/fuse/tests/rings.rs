//! The transport over io_uring: parked requests, faults, ends. A made-up file system stands in place of the server.
mod common;
use ccfs_fuse::abi::{self, init, op};
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::transport::uring::Rings;
use ccfs_fuse::wire::{Handler, Reply, Request, one_name};
use common::can_mount;
use parking_lot::{Condvar, Mutex};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A directory in which every name is a file of 1 GiB. FSYNC waits at the gate; a WRITE's bytes are kept, READs give bytes that tell
/// their place.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: Mutex<usize>,
    written: Mutex<Vec<(u64, Vec<u8>)>>,
    longest_read: Mutex<usize>,
    synced: Mutex<usize>,
}

/// The byte at a place of every file.
fn byte_at(offset: usize) -> u8 {
    (offset / 4096 + offset % 251) as u8
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
        let dir = nodeid == 1;
        abi::Attr {
            ino: nodeid,
            mode: if dir {
                libc::S_IFDIR | 0o777
            } else {
                libc::S_IFREG | 0o666
            },
            size: if dir { 0 } else { 1 << 30 },
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
            op::FSYNC => {
                self.pass();
                *self.synced.lock() += 1;
            }
            op::READ => {
                let arg: abi::ReadIn = request.arg().unwrap();
                let (from, len) = (arg.offset as usize, arg.size as usize);
                let mut longest = self.longest_read.lock();
                *longest = longest.max(len);
                let bytes: Vec<u8> = (from..from + len).map(byte_at).collect();
                // Every other one into the buffer itself.
                match &mut reply.window {
                    Some(window) if from / MIB % 2 == 1 => {
                        window[..len].copy_from_slice(&bytes);
                        reply.filled = Some(len);
                    }
                    _ => reply.body = bytes,
                }
            }
            op::WRITE => {
                let (arg, data) = request.arg_and_rest::<abi::WriteIn>().unwrap();
                assert_eq!(arg.size as usize, data.len());
                self.written.lock().push((arg.offset, data.to_vec()));
                let size = arg.size;
                reply.push(&abi::WriteOut { size, padding: 0 });
            }
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
    rings: Option<Rings>,
    /// What `Rings::start` said.
    started: Result<(), String>,
}

impl Mount {
    /// `queues`: as for `Rings::prepare`. `None`, and a line, where there is no io_uring.
    fn new(test: &str, queues: Option<&[u16]>) -> Option<Mount> {
        if !can_mount(test) {
            return None;
        }
        let mut rings = match prepare_rings(queues) {
            Ok(rings) => rings,
            Err(why) => {
                println!("skipped: {test}: {why}");
                return None;
            }
        };
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
        let agreed = channel
            .handshake(WANTED | init::OVER_IO_URING, MIB)
            .unwrap();
        assert!(agreed.has(init::OVER_IO_URING));
        let gate = Arc::new(Gate::default());
        let pool = Pool::start(channel.clone(), gate.clone(), PoolConfig::default()).unwrap();
        let started = rings.start(&channel, gate.clone(), 512);
        Some(Mount {
            dir,
            gate,
            pool,
            rings: Some(rings),
            started,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(120);
        while !is_so() {
            let waiting = *self.gate.waiting.lock();
            assert!(Instant::now() < end, "{what}: {waiting} waiting");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn works(&self) {
        for i in 0..200 {
            std::fs::metadata(self.path(&format!("other{i}"))).unwrap();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.open();
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
        self.pool.wait();
        if let Some(rings) = self.rings.take() {
            rings.end();
        }
    }
}

/// Waiting syncs hold no thread of a queue: others are served as if nothing were.
#[test]
fn syncs_are_parked() {
    let Some(m) = Mount::new("syncs_are_parked", None) else {
        return;
    };
    m.started.clone().unwrap();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("4 syncs wait at once", || *m.gate.waiting.lock() == 4);
        m.works();
        m.gate.open();
    });
    assert_eq!(*m.gate.synced.lock(), 4);
    m.works();
}

/// More than a queue ever has buffers for: they wait in the kernel, and all get through.
#[test]
fn the_bound_queues() {
    let Some(m) = Mount::new("the_bound_queues", None) else {
        return;
    };
    std::thread::scope(|scope| {
        for i in 0..400 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("some wait", || *m.gate.waiting.lock() >= 4);
        m.gate.open();
    });
    assert_eq!(*m.gate.synced.lock(), 400);
    m.works();
}

/// Requests of 1 MiB in both directions, bytes in their places.
#[test]
fn large_requests() {
    let Some(m) = Mount::new("large_requests", None) else {
        return;
    };
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).custom_flags(libc::O_DIRECT);
    let file = direct.open(m.path("f")).unwrap();
    // O_DIRECT wants aligned memory: take an aligned part of a larger vector.
    let mut space = vec![0u8; MIB + 4096];
    let start = space.as_ptr().align_offset(4096);
    let page = &mut space[start..start + MIB];
    for round in 0..20 {
        let at = round * MIB;
        page.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = byte_at(at + i) ^ 0xff);
        file.write_all_at(page, at as u64).unwrap();
        let written = std::mem::take(&mut *m.gate.written.lock());
        let mut total = 0;
        for (offset, bytes) in written {
            let expected = (offset as usize..).map(|i| byte_at(i) ^ 0xff);
            assert!(expected.zip(&bytes).all(|(a, b)| a == *b));
            total += bytes.len();
        }
        assert_eq!(total, MIB);
        file.read_exact_at(page, at as u64).unwrap();
        let expected = (at..).map(byte_at);
        assert!(expected.zip(page.iter()).all(|(a, b)| a == *b));
    }
    assert_eq!(*m.gate.longest_read.lock(), MIB, "one request for 1 MiB");
}

/// A mount that is taken away while requests are in hand ends when they do.
#[test]
fn the_end_waits_for_requests_in_hand() {
    let Some(mut m) = Mount::new("the_end_waits_for_requests_in_hand", None) else {
        return;
    };
    std::thread::scope(|scope| {
        for i in 0..6 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("6 syncs wait at once", || *m.gate.waiting.lock() == 6);
        unmount(m.dir.path(), UnmountFlags::DETACH).unwrap();
        m.gate.open();
    });
    m.pool.wait();
    m.rings.take().unwrap().end();
    assert_eq!(*m.gate.synced.lock(), 6);
}

/// Fewer queues than processors: the kernel must be told, or all requests would wait for ever.
#[test]
fn too_few_queues_fall_back() {
    let Some(m) = Mount::new("too_few_queues_fall_back", Some(&[0])) else {
        return;
    };
    if one_processor() {
        return;
    }
    assert!(m.started.clone().unwrap_err().contains("processor"));
    m.works();
}

/// The kernel takes some queues and refuses another one: everything goes over /dev/fuse.
#[test]
fn refused_half_way() {
    let Some(m) = Mount::new("refused_half_way", Some(&[0, 60_000])) else {
        return;
    };
    if one_processor() {
        return;
    }
    let _ = m.started.clone().unwrap_err();
    m.works();
    std::thread::scope(|scope| {
        let path = m.path("f");
        scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        m.until("a sync waits", || *m.gate.waiting.lock() == 1);
        m.works();
        m.gate.open();
    });
}

fn one_processor() -> bool {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    possible.trim() == "0"
}

/// Rings that were made for nothing leave no threads behind.
#[test]
fn rings_that_are_not_used() {
    if !can_mount("rings_that_are_not_used") {
        return;
    }
    for _ in 0..20 {
        match prepare_rings(None) {
            Ok(rings) => drop(rings),
            Err(why) => return println!("skipped: rings_that_are_not_used: {why}"),
        }
    }
}
