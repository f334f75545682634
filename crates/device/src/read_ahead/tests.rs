//! Small things that are read together: never older than what the device holds.
use super::*;
use crate::counters::Counting;
use crate::{SECTOR, check_writes};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const SIZE: u64 = 6 * CHUNK + 64 * 1024;
const FILE: usize = 8 << 10;

/// Plain bytes. (The devices of the crate `disks` are no devices for the unit tests of this crate.)
struct Memory {
    bytes: Mutex<Vec<u8>>,
    counting: Counting,
}

impl Memory {
    fn new(size: u64) -> Arc<Memory> {
        Arc::new(Memory {
            bytes: Mutex::new(vec![0; size as usize]),
            counting: Counting::default(),
        })
    }
    fn size_bytes(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn read(&self, offset: u64, buf: &mut [u8]) {
        buf.copy_from_slice(&self.bytes.lock()[offset as usize..][..buf.len()]);
        self.counting.read(buf.len());
    }
    fn write(&self, write: &Write) {
        let mut at = write.offset as usize;
        for part in &write.parts {
            self.bytes.lock()[at..][..part.len].copy_from_slice(part.bytes());
            at += part.len;
        }
    }
    fn fill(&self, offset: u64, len: u64, byte: u8) {
        self.bytes.lock()[offset as usize..][..len as usize].fill(byte);
    }
    fn counters(&self) -> Counters {
        self.counting.get()
    }
}

/// Writes land, or fail, when they are waited for; reads of a bad range fail.
struct Late {
    below: Arc<Memory>,
    reads: AtomicU64,
    fails: AtomicBool,
    bad: Mutex<Option<Range<u64>>>,
    /// While a read goes on.
    during: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct Landing(Option<Arc<Memory>>, Vec<Write>);

impl Pending for Landing {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let lost = || io::Error::other("a failed write");
        let below = self.0.ok_or_else(lost)?;
        check_writes(below.size_bytes(), &self.1)?;
        self.1.iter().for_each(|write| below.write(write));
        Ok(())
    }
    fn is_ready(&self) -> bool {
        true
    }
}

impl Device for Late {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Relaxed);
        let bad = self.bad.lock().clone();
        if bad.is_some_and(|bad| offset < bad.end && bad.start < offset + buf.len() as u64) {
            return Err(io::Error::other("a bad block"));
        }
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        self.below.read(offset, buf);
        let during = self.during.lock().take();
        during.into_iter().for_each(|during| during());
        Ok(())
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let below = (!self.fails.load(Relaxed)).then(|| self.below.clone());
        Ticket::pending(Box::new(Landing(below, writes)))
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset, len)?;
        self.below.fill(offset, len, 0xdd);
        Ok(())
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn read_only(&self) -> bool {
        false
    }
}

fn devices(kept: u64) -> (Arc<Memory>, Arc<Late>, ReadAheadDevice) {
    devices_of(SIZE, kept)
}

fn devices_of(size: u64, kept: u64) -> (Arc<Memory>, Arc<Late>, ReadAheadDevice) {
    let memory = Memory::new(size);
    for at in (0..size).step_by(4096) {
        memory.fill(at, 4096, (at / 4096) as u8);
    }
    over(memory, kept)
}

fn over(memory: Arc<Memory>, kept: u64) -> (Arc<Memory>, Arc<Late>, ReadAheadDevice) {
    let late = Arc::new(Late {
        below: memory.clone(),
        reads: AtomicU64::new(0),
        fails: AtomicBool::new(false),
        bad: Mutex::default(),
        during: Mutex::default(),
    });
    let near = ReadAheadDevice::over(late.clone(), (kept * CHUNK) as usize);
    (memory, late, near)
}

fn read(near: &ReadAheadDevice, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    near.read_around(at, &mut buf).unwrap();
    buf
}

fn is_near(near: &ReadAheadDevice, at: u64, len: usize) -> bool {
    near.read_if_ahead(at, &mut vec![0; len])
}

fn plainly(memory: &Memory, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    memory.read(at, &mut buf);
    buf
}

fn write(at: u64, len: usize, byte: u8) -> Vec<Write> {
    vec![Write::new(at, AlignedBuf::from_bytes(&vec![byte; len]))]
}

#[test]
fn what_lies_together_is_read_once() {
    let (memory, _, near) = devices(4);
    let before = memory.counters().reads;
    for at in (0..2 * CHUNK).step_by(FILE) {
        assert_eq!(is_near(&near, at, FILE), at % CHUNK != 0);
        assert_eq!(
            read(&near, at, FILE - 100),
            plainly(&memory, at, FILE - 100)
        );
    }
    assert_eq!(memory.counters().reads - before - 32, 2);
    // Over a border, and to the end of the device.
    assert!(is_near(&near, CHUNK - 4096, FILE) && !is_near(&near, 2 * CHUNK - 4096, FILE));
    assert_eq!(
        read(&near, 2 * CHUNK - 4096, FILE),
        plainly(&memory, 2 * CHUNK - 4096, FILE)
    );
    assert!(is_near(&near, 2 * CHUNK, FILE));
    let last = SIZE - FILE as u64;
    assert_eq!(read(&near, last, FILE), plainly(&memory, last, FILE));
    assert!(is_near(&near, last - 4096, FILE));
    for past in [last + 1, SIZE, 100 * SIZE, u64::MAX - 10] {
        let error = near.read_around(past, &mut [0; FILE]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{past}");
    }
    // The one that was used longest ago goes.
    for chunk in 3..5 {
        read(&near, chunk * CHUNK, FILE);
    }
    let kept: Vec<_> = (0..7).filter(|c| is_near(&near, c * CHUNK, 1)).collect();
    assert_eq!(kept, [2, 3, 4, 6]);
}

/// Older bytes than the device's are never kept: of a write in flight, of one that begins while the chunk is read, of a discard.
#[test]
fn what_is_written_is_not_kept() {
    let (memory, late, near) = devices(4);
    let near = Arc::new(near);
    read(&near, 0, FILE);
    let ticket = near.submit(write(4096, 4096, 1));
    assert!(!is_near(&near, 0, FILE), "a write has begun");
    read(&near, 0, FILE);
    assert!(!is_near(&near, 0, FILE), "it is in flight");
    near.wait(ticket).unwrap();
    assert_eq!(read(&near, 4096, 4096), [1; 4096]);
    assert!(is_near(&near, 0, FILE));
    drop(near.submit_epoch(write(4096, 4096, 2)));
    assert_eq!(read(&near, 4096, 4096), [2; 4096]);
    near.discard(4096, 4096).unwrap();
    assert_eq!(read(&near, 4096, 4096), [0xdd; 4096]);

    let during = near.clone();
    *late.during.lock() = Some(Box::new(move || {
        let ticket = during.submit(write(CHUNK, 4096, 3));
        during.wait(ticket).unwrap();
    }));
    read(&near, CHUNK + 8192, 4096);
    assert!(!is_near(&near, CHUNK, FILE), "somebody wrote meanwhile");
    assert_eq!(read(&near, CHUNK, 4096), [3; 4096]);
    assert_eq!(plainly(&memory, CHUNK, 4096), [3; 4096]);

    // It begins while the chunk is read, and ends later, or fails.
    for (fails, after) in [(false, 4), (true, 4)] {
        let (flying, during) = (Arc::new(Mutex::new(None)), near.clone());
        late.fails.store(fails, Relaxed);
        let ticket = flying.clone();
        *late.during.lock() = Some(Box::new(move || {
            *ticket.lock() = Some(during.submit(write(2 * CHUNK, 4096, 4)));
        }));
        near.drop_older(Duration::ZERO);
        read(&near, 2 * CHUNK, 4096);
        assert!(!is_near(&near, 2 * CHUNK, FILE), "spoilt");
        read(&near, 2 * CHUNK, 4096);
        assert!(!is_near(&near, 2 * CHUNK, FILE), "in flight");
        let ticket = flying.lock().take().unwrap();
        assert_eq!(near.wait(ticket).is_err(), fails);
        assert_eq!(read(&near, 2 * CHUNK, 4096), [after; 4096]);
        assert!(is_near(&near, 2 * CHUNK, FILE));
    }
    late.fails.store(false, Relaxed);
    let during = near.clone();
    *late.during.lock() = Some(Box::new(move || {
        during.discard(3 * CHUNK, 4096).unwrap();
    }));
    read(&near, 3 * CHUNK, 4096);
    assert!(!is_near(&near, 3 * CHUNK, FILE));
    // Somebody else reads it: both get it, one keeps it.
    let (during, expected) = (near.clone(), plainly(&memory, 4 * CHUNK, FILE));
    let same = expected.clone();
    *late.during.lock() = Some(Box::new(move || {
        assert_eq!(read(&during, 4 * CHUNK, FILE), same);
        assert!(!is_near(&during, 4 * CHUNK, FILE));
    }));
    assert_eq!(read(&near, 4 * CHUNK, FILE), expected);
    assert!(is_near(&near, 4 * CHUNK, FILE));
    near.discard(0, u64::MAX).unwrap_err();
    assert!(near.state.lock().writing.is_empty());
}

/// Whoever writes a chunk whole has it near afterwards, unless others touch it meanwhile, or it fails.
#[test]
fn what_is_written_whole_is_kept() {
    let (memory, late, near) = devices(4);
    let chunk = CHUNK as usize;
    let reads = || late.reads.load(Relaxed);
    let before = reads();
    // Parts of one write, and of a second one that shares a chunk with it.
    let half = |byte| AlignedBuf::from_bytes(&vec![byte; chunk / 2]);
    let mut first = Write::new(CHUNK / 2, half(1));
    for byte in 2..6 {
        first.parts.extend(Write::new(0, half(byte)).parts);
    }
    let ticket = near.submit(vec![first, Write::new(3 * CHUNK, half(6))]);
    assert!(!is_near(&near, CHUNK, FILE), "it is in flight");
    near.wait(ticket).unwrap();
    assert!(is_near(&near, CHUNK, 2 * chunk));
    assert_eq!(
        read(&near, CHUNK, 2 * chunk),
        plainly(&memory, CHUNK, 2 * chunk)
    );
    assert_eq!(
        read(&near, CHUNK, 1)[0] + read(&near, 3 * CHUNK - 1, 1)[0],
        7
    );
    assert_eq!(reads(), before);
    assert!(!is_near(&near, 0, FILE) && !is_near(&near, 3 * CHUNK, FILE));
    let whole = |byte| near.submit(write(CHUNK, chunk, byte));
    let is_kept = || is_near(&near, CHUNK, FILE);
    // Others write there before, meanwhile, and after.
    let (one, two) = (near.submit(write(CHUNK + 4096, 4096, 7)), whole(8));
    near.wait(two).unwrap();
    assert!(!is_kept());
    near.wait(one).unwrap();
    let (one, two) = (whole(9), near.submit(write(CHUNK + 4096, 4096, 7)));
    near.wait(two).unwrap();
    near.wait(one).unwrap();
    assert!(!is_kept());
    let one = whole(10);
    near.discard(CHUNK, 4096).unwrap();
    near.wait(one).unwrap();
    assert!(!is_kept());
    let twice = [write(CHUNK, chunk, 11), write(CHUNK, 4096, 12)];
    near.wait(near.submit(twice.into_iter().flatten().collect()))
        .unwrap();
    assert!(!is_kept());
    late.fails.store(true, Relaxed);
    near.wait(whole(13)).unwrap_err();
    assert!(!is_kept());
    late.fails.store(false, Relaxed);
    near.wait(whole(14)).unwrap();
    assert!(is_kept());
    near.wait(near.submit(write(CHUNK, 4096, 15))).unwrap();
    assert!(!is_kept() && near.state.lock().fresh.is_empty());
}

/// Who writes much that nobody reads has it written plainly.
#[test]
fn what_nobody_reads_is_not_kept() {
    let (_, _, near) = devices_of(4 * CHUNK, 4);
    let chunk = CHUNK as usize;
    let mut kept = 0;
    for n in 0..2000 {
        near.wait(near.submit(write(n % 4 * CHUNK, chunk, n as u8)))
            .unwrap();
        kept += u64::from(near.state.lock().kept.contains_key(&(n % 4)));
    }
    assert!((256..330).contains(&kept), "{kept}");
}

/// Who asks for a good block gets it, and a bad one beside it is not tried each time.
#[test]
fn a_bad_neighbour_harms_nobody() {
    let (memory, late, near) = devices(4);
    *late.bad.lock() = Some(4096..8192);
    assert!(near.read_around(4096, &mut [0]).is_err());
    let good = |count: u64| {
        let tried = late.reads.load(Relaxed);
        for _ in 0..count {
            assert_eq!(read(&near, 16384, FILE), plainly(&memory, 16384, FILE));
        }
        late.reads.load(Relaxed) - tried
    };
    assert_eq!(good(3), 3, "by itself each time, and nothing besides");
    assert!(near.state.lock().loading.is_empty());
    // Others are read together as ever, which changes nothing here.
    for at in (0..3 * CHUNK).step_by(FILE) {
        read(&near, CHUNK + at, FILE);
    }
    assert!(is_near(&near, 3 * CHUNK, FILE));
    assert_eq!(good(2), 2);
    // Written anew it may be good.
    *late.bad.lock() = None;
    drop(near.submit(write(4096, 4096, 7)));
    assert_eq!(good(5), 1);

    let (_, late, near) = devices_of(200 * CHUNK, 4);
    *late.bad.lock() = Some(0..200 * CHUNK);
    for chunk in 0..200 {
        assert!(near.read_around(chunk * CHUNK, &mut [0]).is_err());
    }
    assert_eq!(near.state.lock().bad, Vec::from_iter(136..200));
}

/// Where nobody reads what lies beside, it is soon not read any more, and the tries become rare. Where somebody does, it always is.
#[test]
fn what_is_not_used_is_not_read() {
    let (memory, _, near) = over(Memory::new(4 << 30), 128);
    let ahead = |reads: std::ops::Range<u64>, step: u64| {
        let before = memory.counters().read_bytes;
        let count = reads.end - reads.start;
        for at in reads {
            read(&near, at * step % (4 << 30), FILE);
        }
        (memory.counters().read_bytes - before) / (count * FILE as u64)
    };
    assert!(ahead(0..1000, CHUNK) < 3, "times what was asked for");
    assert!(ahead(1000..30_000, CHUNK) < 2);
    assert!(ahead(0..40_000, FILE as u64) < 2);
    assert!(is_near(&near, 40_000 * FILE as u64 - CHUNK, FILE));
    near.give_back_memory();
    assert!(is_near(&near, 40_000 * FILE as u64 - CHUNK, FILE));
    near.drop_older(Duration::ZERO);
    assert!(!is_near(&near, 40_000 * FILE as u64 - CHUNK, FILE));
    assert!(near.state.lock().kept.is_empty());
}

#[test]
fn nothing_is_kept_where_there_is_no_memory_for_it() {
    let (memory, _, near) = devices(0);
    assert_eq!(read(&near, 4096, FILE), plainly(&memory, 4096, FILE));
    assert!(!is_near(&near, 4096, FILE));
    drop(near.submit(write(0, 4096, 9)));
    assert_eq!(read(&near, 0, 4096), [9; 4096]);
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64, usize),
    Submit(u64, u64),
    /// A write of those that are in flight is waited for, or dropped.
    Wait(usize),
    Discard(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..(SIZE - (70 << 10)) / SECTOR;
    prop_oneof![
        4 => (at.clone(), 1..70_000usize).prop_map(|(at, len)| Step::Read(at * SECTOR, len)),
        2 => (at.clone(), 1..140u64).prop_map(|(at, n)| Step::Submit(at * SECTOR, n * SECTOR)),
        2 => (0..4u64, 0..2u64, 1..3u64).prop_map(|(at, off, n)| {
            Step::Submit(at * CHUNK + off * SECTOR, n * CHUNK + (1 - off) * SECTOR)
        }),
        2 => any::<usize>().prop_map(Step::Wait),
        1 => (at, 1..140u64).prop_map(|(at, n)| Step::Discard(at * SECTOR, n * SECTOR)),
    ]
}

proptest! {
    /// At every moment it reads what the device would.
    #[test]
    fn it_reads_what_the_device_holds(steps in prop::collection::vec(step(), 1..120)) {
        let (memory, _, near) = devices(3);
        let mut flying = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Read(at, len) => {
                    let (mut there, holds) = (vec![0; len], plainly(&memory, at, len));
                    prop_assert!(!near.read_if_ahead(at, &mut there) || there == holds);
                    prop_assert_eq!(read(&near, at, len), holds);
                    prop_assert!(!near.read_if_ahead(at, &mut there) || there == plainly(&memory, at, len));
                }
                Step::Submit(at, len) => {
                    flying.push(near.submit(write(at, len as usize, number as u8)));
                }
                Step::Wait(which) if !flying.is_empty() => {
                    let ticket = flying.swap_remove(which % flying.len());
                    if which % 3 > 0 {
                        near.wait(ticket).unwrap();
                    }
                }
                Step::Wait(_) => {}
                Step::Discard(at, len) => near.discard(at, len).unwrap(),
            }
        }
        drop(flying);
        prop_assert!(near.state.lock().writing.is_empty());
    }
}
