//! A made-up file system in place of the server, for tests of how requests travel: some of them wait until they are let through.
use ccfs_fuse::abi::{self, op};
use ccfs_fuse::server::init::Agreed;
use ccfs_fuse::transport::channel::Channel;
use ccfs_fuse::wire::{Handler, Reply, Request, one_name};
use parking_lot::{Condvar, Mutex};
use rustix::mount::{MountFlags, mount};
use rustix::thread::{Uid, set_thread_res_uid};
use std::collections::HashSet;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

pub const MIB: usize = 1 << 20;

/// A directory in which every name is a file of 1 GiB. FSYNC waits at the gate and says so beforehand; names that begin with "slow" or "long"
/// are looked up at the gate, too, the former without a word. A WRITE's bytes are kept, READs give bytes that tell their place.
#[derive(Default)]
pub struct Gate {
    open: Mutex<Passage>,
    opened: Condvar,
    pub waiting: Mutex<usize>,
    /// Of those, or who have passed: names that begin with "long".
    pub long: Mutex<usize>,
    /// Files that were looked up or whose attributes were asked for, in the order of the answers.
    answered: Mutex<Vec<u64>>,
    pub written: Mutex<Vec<(u64, Vec<u8>)>>,
    pub longest_read: Mutex<usize>,
    pub synced: Mutex<usize>,
}

#[derive(Default)]
struct Passage {
    open: bool,
    /// So many may pass while it is closed.
    tickets: usize,
}

/// The calling thread is this user's from now on, and no other one.
pub fn become_user(uid: u32) {
    let uid = Uid::from_raw(uid);
    set_thread_res_uid(uid, uid, uid).unwrap();
}

/// The byte at a place of every file.
pub fn byte_at(offset: usize) -> u8 {
    (offset / 4096 + offset % 251) as u8
}

/// A mount whose requests come by the channel, and what was agreed on.
pub fn mount_gate(wanted: u64) -> (tempfile::TempDir, Channel, Agreed) {
    let dir = tempfile::tempdir().unwrap();
    let channel = Channel::open().unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        channel.fd().as_raw_fd()
    );
    let options = CString::new(options).unwrap();
    let flags = MountFlags::empty();
    mount(c"gate", dir.path(), c"fuse", flags, options.as_c_str()).unwrap();
    let agreed = channel.handshake(wanted, MIB).unwrap();
    (dir, channel, agreed)
}

impl Gate {
    fn pass(&self) {
        *self.waiting.lock() += 1;
        let mut passage = self.open.lock();
        while !passage.open && passage.tickets == 0 {
            self.opened.wait(&mut passage);
        }
        passage.tickets = passage.tickets.saturating_sub(1);
        drop(passage);
        *self.waiting.lock() -= 1;
    }

    pub fn open(&self) {
        self.open.lock().open = true;
        self.opened.notify_all();
    }

    /// One of those who wait passes.
    pub fn let_through(&self) {
        self.open.lock().tickets += 1;
        self.opened.notify_one();
    }

    /// Whoever was let through has passed.
    pub fn all_passed(&self) -> bool {
        self.open.lock().tickets == 0
    }

    /// How many other files somebody was told of before the last word about this one.
    pub fn told_before(&self, name: &str) -> usize {
        let (answered, this) = (self.answered.lock(), Gate::nodeid(name.as_bytes()));
        let end = answered.iter().rposition(|n| *n == this).unwrap();
        let all: HashSet<u64> = answered[..end].iter().copied().collect();
        all.len() - usize::from(all.contains(&this))
    }

    fn nodeid(name: &[u8]) -> u64 {
        100 + name.iter().fold(0, |sum, b| sum * 31 + u64::from(*b))
    }

    /// Waits for a condition; `what` it is stands in the message if it never holds.
    pub fn until(&self, what: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(120);
        while !is_so() {
            if Instant::now() >= end {
                let waiting = *self.waiting.lock();
                // Threads that wait for the gate would wait for ever.
                self.open();
                panic!("{}: {waiting} waiting", what());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn attr(nodeid: u64) -> abi::Attr {
        let (mode, size) = match nodeid {
            1 => (libc::S_IFDIR | 0o777, 0),
            _ => (libc::S_IFREG | 0o666, 1 << 30),
        };
        abi::Attr {
            ino: nodeid,
            mode,
            size,
            nlink: 1,
            ..Default::default()
        }
    }
}

impl Handler for Gate {
    fn may_block(&self, request: &Request<'_>) -> bool {
        request.header.opcode == op::FSYNC
    }

    fn is_long(&self, request: &Request<'_>) -> bool {
        request.header.opcode == op::LOOKUP && request.bare().starts_with(b"long")
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        match request.header.opcode {
            op::LOOKUP => {
                let name = one_name(request.bare()).unwrap();
                if name.starts_with(b"long") {
                    *self.long.lock() += 1;
                }
                if name.starts_with(b"slow") || name.starts_with(b"long") {
                    self.pass();
                }
                let nodeid = Gate::nodeid(name);
                self.answered.lock().push(nodeid);
                reply.push(&abi::EntryOut {
                    nodeid,
                    attr: Gate::attr(nodeid),
                    ..Default::default()
                });
            }
            op::GETATTR => {
                self.answered.lock().push(request.header.nodeid);
                reply.push(&abi::AttrOut {
                    attr: Gate::attr(request.header.nodeid),
                    ..Default::default()
                });
            }
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
