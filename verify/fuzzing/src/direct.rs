//! Direct calls: a program that keeps no rule about the memory that it shares with the daemon, beside one that does, and what the
//! kernel asks in between. All are this process; there is no mount.
use crate::base::ROOMY;
use crate::bytes::Input;
use crate::honest::Honest;
use crate::kernel::{BOUND, Kernel};
use crate::requests::server_on;
use ccfs_client::abi as client;
use ccfs_client::direct::layout::{
    ALIGN, ASKED, BY_CALL, DATA_MAX, Entry, HANDLES, HEAD, NO_HANDLE, RING_BYTES, op, reply_at,
    word,
};
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::sync::wake;
use ccfs_crash::image::fsck;
use ccfs_device::Device;
use ccfs_engine::Promise;
use ccfs_fuse::MountInfo;
use ccfs_fuse::abi::{self, op as request};
use ccfs_fuse::server::DirectAllowed;
use ccfs_image::{Image, OpenOptions, ScrubAt};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Steps of an input, and entries of all of them.
const STEPS_MAX: usize = 48;
const ENTRIES_MAX: usize = 3000;
/// One input of so many is judged by e2fsck, which takes ten times as long as the rest.
const FSCKED: u64 = 128;
/// Words of the memory that the daemon owns, with their sizes; the last ones are the program's.
const WORDS: [(usize, usize); 12] = [
    (word::HEAD, 8),
    (word::SPENT, 8),
    (word::LIMIT, 8),
    (word::SIZE_MAX, 8),
    (word::ENDED, 4),
    (word::SLEEPS, 4),
    (word::REPLIES, 4),
    (word::WAITERS, 4),
    (word::FULL, 4),
    (word::ROOM_AT, 8),
    (word::ROOM_SPENT, 8),
    (word::TAIL, 8),
];
const NAMES: [&[u8]; 12] = [
    b"a",
    b"b",
    b"dir",
    b"file",
    b"..",
    b".",
    b"a/b",
    b"",
    b"x\0y",
    b"second name",
    b"ab",
    &[b'n'; 256],
];

/// The hostile program.
struct Program<'m> {
    memory: &'m Memory,
    session: u64,
    thread: u32,
    /// Where its next entry begins.
    at: u64,
    /// Where its last entries began.
    entries: Vec<u64>,
    /// For names that nobody has.
    fresh: u32,
}

impl Program<'_> {
    /// Writes an entry, after what a true program puts at the ring's end.
    fn write(&mut self, entry: &Entry, data: &[u8], len: u64) {
        let left = RING_BYTES as u64 - self.at % RING_BYTES as u64;
        if len > left {
            let pad = Entry {
                len: left as u32,
                ..Entry::default()
            };
            self.memory.copy_in(self.at, 0, pad.as_bytes());
            self.at += left;
        }
        self.memory.copy_in(self.at, 0, entry.as_bytes());
        self.memory.copy_in(self.at, HEAD, data);
        self.entries.push(self.at);
        self.at += len;
    }

    fn publish(&self) {
        self.memory.u64(word::TAIL).store(self.at, SeqCst);
        let sleeps = self.memory.u32(word::SLEEPS);
        if sleeps.swap(0, SeqCst) != 0 {
            wake(sleeps);
        }
    }

    fn call(&mut self, kernel: &mut Kernel<'_>, position: u64) {
        if let Ok(thread) = kernel.call(self.session, position) {
            self.thread = thread;
        }
    }

    /// What a true program does first: its thread makes itself known, and it makes a directory, which it holds.
    fn begin(&mut self, kernel: &mut Kernel<'_>) {
        let known = Entry {
            len: 64,
            op: op::THREAD,
            flags: ASKED | BY_CALL,
            ..Entry::default()
        };
        self.write(&known, &[], 64);
        self.publish();
        self.call(kernel, 0);
        let dir = Entry {
            len: 256,
            op: op::MKDIR,
            h: NO_HANDLE,
            h2: 1,
            bytes: 4,
            b: 0o777,
            thread: self.thread,
            ..known
        };
        self.write(&dir, b"held", 256);
        self.publish();
        self.call(kernel, 64);
    }

    /// An entry: operation (1), bits (1), handles (1 each), shape of its bytes (1), `a` and `b` (2 each, or 8), bytes.
    fn entry(&mut self, input: &mut Input<'_>, kernel: &mut Kernel<'_>) {
        let (op, bits) = (u16::from(input.u8() % 26), input.u8());
        let is = |bit: u8| bits & 1 << bit != 0;
        let (h, h2) = (handle(input), handle(input));
        let shape = input.u8();
        let mut number = || match is(5) {
            true => input.u64(),
            false => input.u16().into(),
        };
        let (a, b) = (number(), number());
        let data = match shape {
            64..128 => input.take(usize::from(shape - 64)),
            128.. => &[][..],
            _ => NAMES[usize::from(shape) % NAMES.len()],
        };
        let mut entry = Entry {
            op,
            flags: u16::from(bits) & (ASKED | BY_CALL),
            thread: if is(6) { input.u32() } else { self.thread },
            h,
            h2,
            bytes: data.len() as u32,
            a,
            b,
            ..Entry::default()
        };
        if shape >= 128 {
            // Whatever lies there.
            entry.bytes = (u32::from(shape - 127) * 1024).min(DATA_MAX as u32);
        }
        let room = if is(0) { 4096 } else { 128 };
        let len = (reply_at(entry.bytes as usize) + room).next_multiple_of(ALIGN) as u64;
        entry.len = len as u32;
        if is(4) {
            (entry.len, entry.bytes) = (input.u32(), input.u32());
        }
        let times = if is(7) { u32::from(input.u8()) + 1 } else { 1 };
        for n in 0..times {
            if self.entries.len() >= ENTRIES_MAX {
                break;
            }
            let fresh = format!("n{}", self.fresh);
            self.fresh += 1;
            if (32..64).contains(&shape) {
                entry.bytes = fresh.len() as u32;
                self.write(&entry, fresh.as_bytes(), len);
            } else {
                self.write(&entry, data, len);
            }
            // Some of it is published while the rest is written, as there is room.
            if n % 64 == 63 && is(2) {
                self.publish();
            }
            entry.h2 = entry.h2.wrapping_add(u32::from(times > 1));
        }
        if is(2) {
            self.publish();
        }
        if is(3) {
            self.call(kernel, self.entries.last().copied().unwrap_or_default());
        }
    }

    /// One of the last entries, or any place.
    fn position(&self, input: &mut Input<'_>) -> u64 {
        match input.u8() {
            255 => input.u64(),
            n => {
                let at = self.entries.len().checked_sub(1 + usize::from(n));
                at.map_or(0, |at| self.entries[at])
            }
        }
    }

    fn word(&self, input: &mut Input<'_>) {
        let (at, size) = WORDS[usize::from(input.u8()) % WORDS.len()];
        match size {
            4 => self.memory.u32(at).store(input.u32(), SeqCst),
            _ => self.memory.u64(at).store(input.u64(), SeqCst),
        }
    }

    /// What the kernel asks: which request (1), node (1), name or number (1).
    fn request(&self, input: &mut Input<'_>, kernel: &mut Kernel<'_>) {
        let (which, node, n) = (input.u8(), input.u8(), input.u8());
        kernel.tries = which & 128 != 0;
        let name = match n {
            // As the daemon named a file for one open.
            240.. => {
                let mut name = [0; 45];
                let position = self.position(input) % RING_BYTES as u64;
                if position + 256 <= RING_BYTES as u64 {
                    self.memory.copy_out(position, HEAD, &mut name);
                }
                name.to_vec()
            }
            200.. => format!("n{}", n - 200).into_bytes(),
            100.. => b"held".to_vec(),
            _ => NAMES[usize::from(n) % NAMES.len()].to_vec(),
        };
        let node = kernel.node(node);
        match which % 10 {
            0 | 1 => kernel.named(request::LOOKUP, node, &[], &name),
            2 | 3 => kernel.list(node),
            4 => kernel.forget(node),
            5 => {
                let arg = abi::MknodIn {
                    mode: 0o100_666,
                    ..Default::default()
                };
                kernel.named(request::MKNOD, node, arg.as_bytes(), &name);
            }
            6 => kernel.named(request::UNLINK, node, &[], &name),
            7 => {
                let arg = abi::WriteIn {
                    size: name.len() as u32,
                    offset: u64::from(n) * 100,
                    ..Default::default()
                };
                let _ = kernel.ask(request::WRITE, node, &[arg.as_bytes(), &name].concat());
            }
            8 => {
                let _ = kernel.ask(request::FSYNC, node, abi::FsyncIn::default().as_bytes());
            }
            _ => {
                let arg = abi::RenameIn { newdir: 1 };
                let names = [&name[..], b"\0moved\0"].concat();
                let _ = kernel.ask(request::RENAME, node, &[arg.as_bytes(), &names].concat());
            }
        }
        kernel.tries = false;
    }

    /// Bytes of the ring that no entry says, near its last entry.
    fn bytes(&self, input: &mut Input<'_>) {
        let back = u64::from(input.u16());
        let len = usize::from(input.u8());
        let at = self.at.saturating_sub(back) % RING_BYTES as u64;
        let len = len.min(RING_BYTES - at as usize);
        self.memory.copy_in(at, 0, input.take(len));
    }

    fn await_head(&self) {
        let end = Instant::now() + Duration::from_millis(2);
        while self.memory.u64(word::HEAD).load(SeqCst) < self.at && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    /// It breaks the rules for good, however far it came.
    fn end(&self) {
        self.memory.u64(word::TAIL).store(u64::MAX, SeqCst);
        let sleeps = self.memory.u32(word::SLEEPS);
        sleeps.store(0, SeqCst);
        wake(sleeps);
    }
}

fn handle(input: &mut Input<'_>) -> u32 {
    match input.u8() {
        255 => NO_HANDLE,
        254 => input.u32(),
        n @ 240.. => HANDLES - u32::from(n - 240),
        n => n.into(),
    }
}

/// Changes what the daemon reads, again and again: bytes of the last entries become others and are put back, and TAIL, too.
fn flip(memory: &Memory, seed: u8, stop: &AtomicBool) {
    let mut draw = u64::from(seed) | 0x9e37_79b9_0000;
    while !stop.load(Relaxed) {
        // xorshift64
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        let tail = memory.u64(word::TAIL);
        let now = tail.load(Relaxed);
        let back = draw % 2048;
        let place = now.wrapping_sub(back + 1) % RING_BYTES as u64;
        let mut byte = [0];
        memory.copy_out(place, 0, &mut byte);
        memory.copy_in(place, 0, &[byte[0] ^ 1 << (draw >> 20 & 7)]);
        if seed & 1 != 0 {
            // An entry less, or half of one, and then as it was; unless the program has published more.
            let _ = tail.compare_exchange(now, now.saturating_sub(back), SeqCst, SeqCst);
            let _ = tail.compare_exchange(now.saturating_sub(back), now, SeqCst, SeqCst);
        }
        for _ in 0..draw >> 30 & 15 {
            std::hint::spin_loop();
        }
        memory.copy_in(place, 0, &byte);
        if draw >> 40 & 15 == 0 {
            std::thread::yield_now();
        }
    }
}

fn steps(
    program: &mut Program<'_>,
    kernel: &mut Kernel<'_>,
    honest: &mut Honest,
    input: &mut Input<'_>,
) {
    let mut rounds = 0;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            return;
        }
        match input.u8() % 16 {
            0..8 => program.entry(input, kernel),
            8 => {
                let moved = i64::from(input.u16() as i16) * 16;
                let tail = program.at.wrapping_add_signed(moved);
                program.memory.u64(word::TAIL).store(tail, SeqCst);
            }
            9 => program.word(input),
            10 => {
                let position = program.position(input);
                program.call(kernel, position);
            }
            11 | 12 => program.request(input, kernel),
            13 => match input.u8() % 8 {
                0..2 => kernel.group(client::IOC_GROUP_BEGIN),
                2 => kernel.group(client::IOC_GROUP_COMMIT),
                3 => kernel.group(client::IOC_GROUP_ABORT),
                4 | 5 => kernel.new_stream(),
                6 => kernel.default_stream(),
                _ => kernel.await_nothing(),
            },
            14 => program.bytes(input),
            _ => match input.u8() % 4 {
                0 if rounds < 2 => {
                    rounds += 1;
                    kernel.leave_groups();
                    honest.round(kernel);
                }
                // So far that the ring's end is near.
                1 => {
                    let len = u64::from(input.u16()) * ALIGN as u64;
                    let left = RING_BYTES as u64 - program.at % RING_BYTES as u64;
                    let pad = Entry {
                        len: len.clamp(ALIGN as u64, left) as u32,
                        ..Entry::default()
                    };
                    program.write(&pad, &[], pad.len.into());
                    program.publish();
                }
                _ => program.await_head(),
            },
        }
    }
}

/// Modes (1 byte: the honest program begins first, bytes flip, without a beginning as it should be, flips), then steps of the
/// hostile program: what (1 byte), and as `steps` says.
pub fn direct_memory(data: &[u8]) {
    let dev = Arc::new(ROOMY.snapshot());
    let mount = MountInfo {
        direct: DirectAllowed {
            on: true,
            others: false,
            by_hand: false,
        },
        ..MountInfo::default()
    };
    let Some((vol, server)) = server_on(dev.clone(), mount) else {
        return;
    };
    let mut input = Input(data);
    let modes = input.u8();
    let mut kernel = Kernel::new(&server);
    let first = (modes & 1 != 0).then(|| Honest::begin(&mut kernel));
    let Some((memory, session)) = kernel.begin() else {
        // Not for this process (seccomp, for instance): nothing can be tried.
        let _ = server.end();
        return;
    };
    let mut honest = first.unwrap_or_else(|| Honest::begin(&mut kernel));
    let mut program = Program {
        memory: &memory,
        session,
        thread: 0,
        at: 0,
        entries: Vec::new(),
        fresh: 0,
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if modes & 4 == 0 {
            program.begin(&mut kernel);
        }
        if modes & 2 != 0 {
            scope.spawn(|| flip(&memory, modes >> 3, &stop));
        }
        // So that a panic here does not wait for the flips.
        let stop = Stop(&stop);
        steps(&mut program, &mut kernel, &mut honest, &mut input);
        kernel.leave_groups();
        honest.round(&mut kernel);
        drop(stop);
    });
    program.end();
    honest.end();
    kernel.await_end();
    assert_eq!(vol.promised(), Promise::default(), "promised for ever");
    kernel.forget_all();
    assert_eq!(server.end(), Ok(()), "the volume has stopped");
    drop((server, vol));
    check(&dev, data);
}

/// The volume is sound.
fn check(dev: &Arc<ccfs_disks::MemoryDevice>, data: &[u8]) {
    let device: Arc<dyn Device> = dev.clone();
    let image = Image::open(device, OpenOptions::default()).expect("it was unmounted");
    let mut at = Some(ScrubAt::default());
    while let Some(now) = at {
        let step = image.scrub(now, 4096, BOUND);
        assert!(step.damage.is_empty(), "{:?}", step.damage);
        at = step.next;
    }
    drop(image);
    let sum = data.iter().fold(7u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    if sum.is_multiple_of(FSCKED) {
        fsck(dev).expect("e2fsck finds nothing");
    }
}

/// Sets it when it goes.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
