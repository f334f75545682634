//! Rings of events, told of at every fork, without a system call to hear it: the kernel's performance events, one ring of task events for
//! each processor, mapped into this process. They also tell which *thread* started a thread, which the process connector does not, and
//! of a thread's end before an exec that waited for it.
//!
//! The record of a fork is in its ring before the child runs. Needs CAP_PERFMON (or CAP_SYS_ADMIN). Where it is missing, or for
//! processors that come later, it is not known who started a thread.
#![allow(unsafe_code)]
use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Size of a ring, bytes (a power of two): 4096 forks.
const RING: usize = 128 << 10;
/// Where `struct perf_event_mmap_page` has data_head, data_tail and data_offset.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const DATA_OFFSET: usize = 1040;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_FORK: u32 = 7;
const PERF_RECORD_EXIT: u32 = 4;
/// Bytes of a record's header, and of a FORK or EXIT: header, pid, ppid, tid, ptid, time.
const HEADER: usize = 8;
const FORK_LEN: usize = 32;
/// More than any record takes, bytes.
const RECORD_MAX: usize = 256;
const PERF_FLAG_FD_CLOEXEC: u64 = 8;
/// Records that wait for their event at most; more means that events are not read, and nothing is lost by forgetting.
const WAITING_MAX: usize = 1 << 16;
/// Ends that are remembered at most, and for how long at least if there are more, nanoseconds.
const ENDS_MAX: usize = 1 << 14;
const END_KEPT_NS: u64 = 1_000_000_000;
/// How long the performance events is not relied on after a record was missed, nanoseconds.
const SILENT_NS: u64 = 60_000_000_000;

/// `struct perf_event_attr`, version 3.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
}
const _: () = assert!(size_of::<Attr>() == 96);
const SOFTWARE: u32 = 1;
const DUMMY: u64 = 9;
const TASK: u64 = 1 << 13;
const USE_CLOCKID: u64 = 1 << 25;

struct Ring {
    _event: OwnedFd,
    page: NonNull<u8>,
    len: usize,
    data: usize,
    /// Head up to which records were taken.
    taken: AtomicU64,
    /// Head when `listen` was called last, and at the last `heard`.
    listened: AtomicU64,
    heard: AtomicU64,
}

// SAFETY: the mapping belongs to the Ring and stays until its drop; other threads read its head with atomic loads, and the
// records and the tail are touched under the PerfEvents's mutex only.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: page and len are what mmap gave, and nobody has a pointer into it any more.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), self.len) };
    }
}

impl Ring {
    fn open(cpu: i32) -> io::Result<Ring> {
        let attr = Attr {
            kind: SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: DUMMY,
            flags: TASK | USE_CLOCKID,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attr::default()
        };
        // SAFETY: the kernel reads `size` bytes of attr, which lives through the call; the other arguments are numbers. A
        // descriptor that the call returns is ours.
        let event = unsafe {
            let fd = libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                -1,
                cpu,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            );
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as i32)
        };
        let page_size = rustix::param::page_size();
        let len = page_size + RING;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                event.as_fd(),
                0,
            )?
        };
        let page = NonNull::new(page.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut ring = Ring {
            _event: event,
            page,
            len,
            data: page_size,
            taken: AtomicU64::new(0),
            listened: AtomicU64::new(0),
            heard: AtomicU64::new(0),
        };
        // Before Linux 4.1 the field is 0 and the data follows the page.
        let offset = ring.word(DATA_OFFSET).load(Ordering::Relaxed) as usize;
        if offset != 0 {
            if offset.checked_add(RING) != Some(len) {
                return Err(io::Error::other("a ring of an unknown layout"));
            }
            ring.data = offset;
        }
        Ok(ring)
    }

    /// A 64-bit field of the control page.
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is one of the aligned constants above, inside the first page, which is mapped as long as self lives;
        // the kernel writes such a field with single stores.
        unsafe { &*self.page.as_ptr().add(at).cast::<AtomicU64>() }
    }

    fn rang(&self) -> bool {
        self.word(HEAD).load(Ordering::Acquire) != self.heard.load(Ordering::Acquire)
    }

    /// All new records, back to back; the caller holds the PerfEvents's mutex. True: there was no room for more, and the kernel says only with the
    /// next record that finds room whether others found none.
    fn take(&self, out: &mut Vec<u8>) -> bool {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let mut at = self.taken.load(Ordering::Relaxed);
        let full = head - at > (RING - RECORD_MAX) as u64;
        out.clear();
        while at < head {
            let start = at as usize % RING;
            let len = (RING - start).min((head - at) as usize);
            // SAFETY: start + len <= RING, so this is inside the mapping; between tail and head the kernel writes nothing until
            // the tail is moved below.
            let part = unsafe {
                std::slice::from_raw_parts(self.page.as_ptr().add(self.data + start), len)
            };
            out.extend_from_slice(part);
            at += len as u64;
        }
        self.taken.store(head, Ordering::Relaxed);
        self.word(TAIL).store(head, Ordering::Release);
        full
    }
}

#[derive(Default)]
struct Told {
    /// Started thread -> (when, nanoseconds of the monotonic clock; by whom), oldest first.
    creators: HashMap<u32, VecDeque<(u64, u32)>>,
    len: usize,
    /// (thread, when it ended).
    ends: BTreeSet<(u32, u64)>,
    /// Those of them that nobody took yet.
    fresh_ends: Vec<(u32, u64)>,
    buf: Vec<u8>,
    /// How many ends there may be before old ones are looked for.
    ends_max: usize,
}

pub(super) struct PerfEvents {
    rings: Vec<Ring>,
    told: Mutex<Told>,
    /// The last `take_in` found that records were lost; and up to when some may be, nanoseconds of the monotonic clock.
    lost: AtomicBool,
    lost_ns: AtomicU64,
}

impl PerfEvents {
    /// One ring for each processor that is in use. Errors: no right to it, or a kernel without it.
    pub fn open() -> io::Result<PerfEvents> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        let rings: io::Result<Vec<Ring>> =
            processors(&online).into_iter().map(Ring::open).collect();
        let rings = rings?;
        if rings.is_empty() {
            return Err(io::Error::other("no processors are listed"));
        }
        Ok(PerfEvents {
            rings,
            told: Mutex::default(),
            lost: AtomicBool::new(false),
            lost_ns: AtomicU64::new(0),
        })
    }

    /// One that never tells anything.
    #[cfg(test)]
    pub fn silent() -> PerfEvents {
        PerfEvents {
            rings: Vec::new(),
            told: Mutex::default(),
            lost: AtomicBool::new(false),
            lost_ns: AtomicU64::new(0),
        }
    }

    #[cfg(test)]
    pub fn ring_end(&self, tid: u32, ns: u64) {
        let mut told = self.told.lock();
        told.ends.insert((tid, ns));
        told.fresh_ends.push((tid, ns));
    }

    #[cfg(test)]
    pub fn ring_fork(&self, child: u32, creator: u32, ns: u64) {
        let mut told = self.told.lock();
        told.creators
            .entry(child)
            .or_default()
            .push_back((ns, creator));
        told.len += 1;
    }

    /// Some thread was started or ended since the `listen` before the last `heard`.
    pub fn rang(&self) -> bool {
        self.rings.iter().any(Ring::rang)
    }

    /// What rings up to now is going to be taken in, and what the connector told before.
    pub fn listen(&self) {
        for ring in &self.rings {
            let head = ring.word(HEAD).load(Ordering::Acquire);
            ring.listened.store(head, Ordering::Relaxed);
        }
    }

    /// All consequences of what rang before `listen` have been drawn.
    pub fn heard(&self) {
        for ring in &self.rings {
            let head = ring.listened.load(Ordering::Relaxed);
            ring.heard.store(head, Ordering::Release);
        }
    }

    /// (thread, when) of the ends that were told since this was called last.
    pub fn fresh_ends(&self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.told.lock().fresh_ends)
    }

    /// Takes in what the rings hold.
    pub fn take_in(&self) {
        let mut told = self.told.lock();
        let mut buf = std::mem::take(&mut told.buf);
        let mut lost = false;
        for ring in &self.rings {
            lost |= ring.take(&mut buf);
            lost |= told.read(&buf);
        }
        told.buf = buf;
        told.forget_old_ends();
        if told.len > WAITING_MAX {
            told.creators.clear();
            told.len = 0;
            lost = true;
        }
        self.lost.store(lost, Ordering::Relaxed);
        if lost {
            let now = super::monotonic_ns();
            self.lost_ns.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// A ring may tell nothing.
    pub fn may_be_silent(&self) -> bool {
        self.lost_ns.load(Ordering::Relaxed) > super::monotonic_ns()
    }

    /// No record was lost by a `take_in` since this instant.
    pub fn is_complete_since(&self, ns: u64) -> bool {
        self.lost_ns.load(Ordering::Relaxed) < ns
    }

    /// No record was lost by the last `take_in`.
    pub fn is_complete(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }

    /// Which thread started `child` at the fork that was reported at `ns` of the monotonic clock. Each is told once.
    pub fn creator(&self, child: u32, ns: u64) -> Option<u32> {
        let mut told = self.told.lock();
        let told = &mut *told;
        // Whoever had the number long before; the connector may still tell of an end.
        let long_ago = ns.saturating_sub(END_KEPT_NS);
        while let Some(&end) = told.ends.range((child, 0)..(child, long_ago)).next() {
            told.ends.remove(&end);
        }
        let queue = told.creators.get_mut(&child)?;
        let mut found = None;
        // The kernel reports to the connector first. Records of earlier forks have lost their event.
        while let Some((time, creator)) = queue.pop_front() {
            told.len -= 1;
            if time >= ns {
                found = Some(creator);
                break;
            }
        }
        if queue.is_empty() {
            told.creators.remove(&child);
        }
        found
    }

    /// (when, thread, by whom) of the forks after this instant, nanoseconds of the monotonic clock, that `creator` has not told; in their
    /// order.
    pub fn forks_since(&self, ns: u64) -> Vec<(u64, u32, u32)> {
        let told = self.told.lock();
        let mut forks = Vec::new();
        for (&child, queue) in &told.creators {
            let later = queue.iter().filter(|(time, _)| *time >= ns);
            forks.extend(later.map(|&(time, creator)| (time, child, creator)));
        }
        drop(told);
        forks.sort_unstable();
        forks
    }

    /// A record that must be there by now is not: a ring may be silent, such as that of a processor that came back.
    pub fn has_missed(&self) {
        let until = super::monotonic_ns() + SILENT_NS;
        self.lost_ns.fetch_max(until, Ordering::Relaxed);
    }

    /// A thread of that number ended between these instants, nanoseconds of the monotonic clock. False also if that was long ago.
    pub fn ended_between(&self, tid: u32, since: u64, until: u64) -> bool {
        let told = self.told.lock();
        let first = (tid, since.saturating_add(1));
        first < (tid, until) && told.ends.range(first..(tid, until)).next().is_some()
    }

    /// The end of some thread of that number was told.
    pub fn knows_end(&self, tid: u32) -> bool {
        self.ended_between(tid, 0, u64::MAX)
    }
}

impl Told {
    fn forget_old_ends(&mut self) {
        if self.ends.len() <= self.ends_max.max(ENDS_MAX) {
            return;
        }
        let newest = self.ends.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let since = newest.saturating_sub(END_KEPT_NS);
        self.ends.retain(|(_, end)| *end >= since);
        // All of them may be new: then not at every request.
        self.ends_max = self.ends.len() * 2;
    }

    /// True: records were lost.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut lost = false;
        while let Some((kind, record)) = next_record(&mut bytes) {
            match kind {
                PERF_RECORD_LOST => lost = true,
                PERF_RECORD_FORK | PERF_RECORD_EXIT if record.len() >= FORK_LEN => {
                    let word =
                        |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| record[at + i]));
                    let (tid, ptid) = (word(16), word(20));
                    let time = u64::from_ne_bytes(std::array::from_fn(|i| record[24 + i]));
                    if kind == PERF_RECORD_EXIT {
                        self.ends.insert((tid, time));
                        self.fresh_ends.push((tid, time));
                        continue;
                    }
                    let queue = self.creators.entry(tid).or_default();
                    // Rings of several processors are read one after the other.
                    let place = queue.partition_point(|(earlier, _)| *earlier <= time);
                    queue.insert(place, (time, ptid));
                    self.len += 1;
                }
                _ => {}
            }
        }
        lost
    }
}

/// (type, whole record).
fn next_record<'a>(bytes: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let kind = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
    let len = usize::from(u16::from_ne_bytes(bytes.get(6..HEADER)?.try_into().ok()?));
    if len < HEADER {
        return None;
    }
    let (record, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some((kind, record))
}

/// A list such as `0-3,8`.
fn processors(list: &str) -> Vec<i32> {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<i32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().take(4096).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let record = |kind: u32, tid: u32, ptid: u32, time: u64| {
            let mut record = Vec::new();
            record.extend_from_slice(&kind.to_ne_bytes());
            record.extend_from_slice(&[0, 0]);
            record.extend_from_slice(&(FORK_LEN as u16).to_ne_bytes());
            for word in [tid, ptid, tid, ptid] {
                record.extend_from_slice(&word.to_ne_bytes());
            }
            record.extend_from_slice(&time.to_ne_bytes());
            record
        };
        let fork = |tid, ptid, time| record(PERF_RECORD_FORK, tid, ptid, time);
        let end = |tid, time| record(PERF_RECORD_EXIT, tid, 1, time);
        let bytes = [
            fork(7, 3, 50),
            fork(7, 2, 40),
            end(7, 44),
            fork(9, 1, 1),
            end(9, 5),
        ]
        .concat();
        let told = Mutex::new(Told::default());
        assert!(!told.lock().read(&bytes));
        let perf_events = PerfEvents {
            rings: Vec::new(),
            told,
            lost: AtomicBool::new(false),
            lost_ns: AtomicU64::new(0),
        };
        assert_eq!(
            perf_events.creator(7, 45),
            Some(3),
            "the one of 40 is another fork's"
        );
        assert_eq!(perf_events.creator(7, 0), None);
        assert!(perf_events.knows_end(7) && perf_events.knows_end(9));
        assert!(perf_events.ended_between(9, 4, 6) && perf_events.ended_between(9, 0, 6));
        assert!(!perf_events.ended_between(9, 5, 6) && !perf_events.ended_between(9, 4, 5));
        assert!(!perf_events.ended_between(9, u64::MAX, 0));
        assert_eq!(perf_events.fresh_ends(), [(7, 44), (9, 5)]);
        assert_eq!(perf_events.fresh_ends(), []);
        assert_eq!(perf_events.creator(9, 2), None);
        assert_eq!(perf_events.told.lock().len, 0);
        for cut in 0..bytes.len() {
            Told::default().read(&bytes[..cut]);
        }
        assert_eq!(processors("0-2,7\n"), [0, 1, 2, 7]);
    }

    /// The live rings: a thread's creator is told, be it the first thread or not.
    #[test]
    fn a_threads_creator_is_told() {
        let perf_events = match PerfEvents::open() {
            Ok(perf_events) => perf_events,
            Err(e) => return println!("skipped: no performance events: {e}"),
        };
        let tid = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let (outer, inner) =
            std::thread::spawn(move || (tid(), std::thread::spawn(tid).join().unwrap()))
                .join()
                .unwrap();
        assert!(perf_events.rang());
        perf_events.take_in();
        assert!(perf_events.rang(), "nobody has drawn any consequence yet");
        perf_events.listen();
        perf_events.heard();
        if perf_events.is_complete() {
            assert!(perf_events.knows_end(inner) && !perf_events.knows_end(tid()));
            assert_eq!(perf_events.creator(inner, 0), Some(outer));
            assert_eq!(perf_events.creator(outer, 0), Some(tid()));
        }
    }
}
