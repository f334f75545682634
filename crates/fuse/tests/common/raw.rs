//! Sessions without the library: what is in their memory a test decides.
use super::{TestMount, any_ioctl};
use ccfs_client::abi::{self, DirectBeginArg, DirectCallArg};
use ccfs_client::direct::layout::{
    ALIGN, ASKED, BY_CALL, DONE, Entry, HEAD, RESULT, RING_BYTES, VERSION, op, word,
};
use ccfs_client::direct::memory::Memory;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

pub fn ioctl<T: IntoBytes + FromBytes>(file: &File, number: u32, arg: &mut T) -> Result<(), i32> {
    any_ioctl(file, number, arg.as_mut_bytes()).map_err(|e| e.raw_os_error().unwrap())
}

pub fn begin(dir: &File, memory: impl AsFd) -> Result<u64, i32> {
    let mut arg = DirectBeginArg {
        version: abi::VERSION,
        protocol: VERSION,
        memory: memory.as_fd().as_raw_fd() as u32,
        directory: dir.as_raw_fd() as u32,
        ..DirectBeginArg::default()
    };
    ioctl(dir, abi::IOC_DIRECT_BEGIN, &mut arg)?;
    Ok(arg.session)
}

pub fn call(dir: &File, session: u64, position: u64) -> Result<u32, i32> {
    let mut arg = DirectCallArg {
        version: abi::VERSION,
        session,
        position,
        directory: dir.as_raw_fd() as u32,
        ..DirectCallArg::default()
    };
    ioctl(dir, abi::IOC_DIRECT_CALL, &mut arg)?;
    Ok(arg.thread)
}

/// A session without the library, that has a directory `made`: handle 1.
pub struct Raw {
    pub memory: Memory,
    pub thread: u32,
    pub tail: u64,
    _dir: File,
}

impl Raw {
    pub fn begin(m: &TestMount) -> Raw {
        Raw::begin_with(m, "made")
    }

    /// The same, with another name.
    pub fn begin_with(m: &TestMount, name: &str) -> Raw {
        let dir = File::open(m.mnt()).unwrap();
        let (memory, fd) = Memory::make().unwrap();
        let session = begin(&dir, &fd).unwrap();
        let mut raw = Raw {
            memory,
            thread: 0,
            tail: 0,
            _dir: dir,
        };
        let mut asked = |entry, name, len| {
            let at = raw.put(entry, name, len);
            raw.publish();
            raw.thread = call(&raw._dir, session, at).unwrap();
        };
        let known = Entry {
            op: op::THREAD,
            flags: ASKED | BY_CALL,
            ..Entry::default()
        };
        asked(known, "", 64);
        let made = Entry {
            op: op::MKDIR,
            h: u32::MAX,
            h2: 1,
            b: 0o777,
            ..known
        };
        asked(made, name, 256);
        raw
    }

    /// Where it is; it has so many bytes.
    pub fn put(&mut self, entry: Entry, name: &str, len: u32) -> u64 {
        self.put_bytes(entry, name.as_bytes(), len)
    }

    pub fn put_bytes(&mut self, entry: Entry, name: &[u8], len: u32) -> u64 {
        // What is left at the ring's end may be too short.
        let left = RING_BYTES as u64 - self.tail % RING_BYTES as u64;
        if left < u64::from(len) {
            let pad = Entry {
                len: left as u32,
                op: op::PAD,
                ..Entry::default()
            };
            self.memory.copy_in(self.tail, 0, pad.as_bytes());
            self.tail += left;
        }
        let at = self.tail;
        let entry = Entry {
            len,
            bytes: name.len() as u32,
            thread: self.thread,
            ..entry
        };
        self.memory.copy_in(at, 0, entry.as_bytes());
        self.memory.copy_in(at, HEAD, name);
        self.tail += u64::from(len);
        at
    }

    /// Asks for something, and waits for its result.
    pub fn ask(&mut self, op: u16, (h, h2): (u32, u32), (a, b): (u64, u64), bytes: &[u8]) -> i32 {
        let entry = Entry {
            op,
            flags: ASKED,
            h,
            h2,
            a,
            b,
            ..Entry::default()
        };
        let len = (HEAD + bytes.len() + 4096 + 200).next_multiple_of(ALIGN) as u32;
        let at = self.put_bytes(entry, bytes, len);
        self.publish();
        let begun = Instant::now();
        while self.memory.entry_u32(at, DONE).load(Ordering::SeqCst) != 1 {
            let ended = self.memory.u32(word::ENDED).load(Ordering::SeqCst);
            let patience = Duration::from_secs(if ended == 0 { 60 } else { 5 });
            assert!(begun.elapsed() < patience, "{entry:?}, ended {ended}");
            std::thread::yield_now();
        }
        self.memory.entry_u32(at, RESULT).load(Ordering::SeqCst) as i32
    }

    pub fn publish(&self) {
        self.memory
            .u64(word::TAIL)
            .store(self.tail, Ordering::SeqCst);
    }
}
