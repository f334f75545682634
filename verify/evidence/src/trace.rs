//! The trace of a block device, in the format of the kernel's dm-log-writes, so that its replay tools read it.
//!
//! # Format (little-endian, sectors of 512 bytes)
//! Sector 0: `magic u64, version u64 = 1, entries u64, sector size u32`. Then for each entry one sector, `sector u64, sectors u64, flags u64,
//! data_len u64`, followed by the data of a write. A mark's text (`data_len` bytes) stands in the entry's own sector.
//!
//! dm-log-writes leaves the rest of that sector unused. This crate puts three fields at its end: a magic, the time in nanoseconds
//! since the trace began, and `seen`: how many entries the trace had when the request *began*. A write is in the device's cache from
//! its entry on; between `seen` and its entry it was under way, so a crash may have it already. A flush makes durable the
//! entries below its `seen`. Traces of other recorders lack the fields: there `seen` is the entry's own number and the time is 0.
use crate::Fail;
use ccfs_device::{AlignedBuf, SECTOR, Write, write_all};
use ccfs_disks::MemoryDevice;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const OWN_MAGIC: &[u8; 8] = b"CCFSTRC1";
const VERSION: u64 = 1;
const ENTRY: usize = SECTOR as usize;
const HEAD: usize = 32;
const OWN: usize = 24;
/// Longest text of a mark, bytes.
pub const MARK_MAX: usize = ENTRY - HEAD - OWN;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Writes a trace. All methods may be called from any thread.
pub struct TraceWriter {
    state: Mutex<State>,
    begun: Instant,
}

struct State {
    file: File,
    entries: u64,
    /// Where the next entry goes, bytes.
    end: u64,
    /// The first error; nothing is written after it.
    error: Option<io::Error>,
    closed: bool,
    buf: Vec<u8>,
}

impl TraceWriter {
    /// Creates or replaces the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        let state = State {
            file: File::create(path)?,
            entries: 0,
            end: SECTOR,
            error: None,
            closed: false,
            buf: Vec::new(),
        };
        state.write_super()?;
        Ok(TraceWriter {
            state: Mutex::new(state),
            begun: Instant::now(),
        })
    }

    /// Entries so far: what a request that begins now gives as `seen`.
    pub fn position(&self) -> u64 {
        self.state.lock().entries
    }

    /// A write that has ended. Zeros become a hole of the file.
    pub fn write(&self, offset: u64, parts: &[&[u8]], seen: u64) {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        if parts.iter().all(|p| p.iter().all(|b| *b == 0)) {
            return self.append(offset, len as u64, 0, len as u64, seen, |_| {});
        }
        self.append(offset, len as u64, 0, 0, seen, |state| {
            for part in parts {
                state.buf.extend_from_slice(part);
            }
        });
    }

    /// A discard; reads as zeros afterwards.
    pub fn discard(&self, offset: u64, len: u64, seen: u64) {
        self.append(offset, len, DISCARD, 0, seen, |_| {});
    }

    /// A flush that has ended.
    pub fn flush(&self, seen: u64) {
        self.append(0, 0, FLUSH, 0, seen, |_| {});
    }

    /// A mark; what is longer than [`MARK_MAX`] is cut.
    pub fn mark(&self, text: &str) {
        let mut len = text.len().min(MARK_MAX);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let seen = self.position();
        self.append(0, 0, MARK, 0, seen, |state| {
            let at = state.buf.len() - ENTRY;
            state.buf[at + 24..at + 32].copy_from_slice(&(len as u64).to_le_bytes());
            state.buf[at + HEAD..at + HEAD + len].copy_from_slice(&text.as_bytes()[..len]);
        });
    }

    /// One entry; `body` appends its data, `hole` bytes of zeros are left out of the file.
    fn append(
        &self,
        offset: u64,
        len: u64,
        flags: u64,
        hole: u64,
        seen: u64,
        body: impl FnOnce(&mut State),
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.error.is_some() || state.closed {
            return;
        }
        // Under the lock: times rise with the numbers.
        let time = self.begun.elapsed().as_nanos() as u64;
        let mut head = [0u8; ENTRY];
        for (index, word) in [offset / SECTOR, len / SECTOR, flags, 0].iter().enumerate() {
            head[index * 8..index * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        let own = ENTRY - OWN;
        head[own..own + 8].copy_from_slice(OWN_MAGIC);
        head[own + 8..own + 16].copy_from_slice(&time.to_le_bytes());
        head[own + 16..].copy_from_slice(&seen.to_le_bytes());
        state.buf.clear();
        state.buf.extend_from_slice(&head);
        body(state);
        match state.file.write_all_at(&state.buf, state.end) {
            Ok(()) => {
                state.end += state.buf.len() as u64 + hole;
                state.entries += 1;
            }
            Err(e) => state.error = Some(e),
        }
    }

    /// Ends the trace: later requests are not recorded. Tells the first error of all.
    pub fn close(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.closed = true;
        if let Some(e) = state.error.take() {
            return Err(e);
        }
        state.file.set_len(state.end)?;
        state.write_super()
    }
}

impl State {
    fn write_super(&self) -> io::Result<()> {
        let mut bytes = [0u8; ENTRY];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.entries.to_le_bytes());
        bytes[24..28].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `fua`: durable when it ended.
    Write {
        fua: bool,
    },
    Discard,
    Flush,
    Mark(String),
}

/// An entry of a trace.
#[derive(Clone, Debug)]
pub struct Entry {
    pub kind: Kind,
    /// Bytes.
    pub offset: u64,
    pub len: u64,
    pub time_ns: u64,
    /// See the format.
    pub seen: u64,
    /// Where the data of a write stands in the file.
    data_at: u64,
}

impl Entry {
    /// Whether it changes the medium.
    pub fn is_change(&self) -> bool {
        matches!(self.kind, Kind::Write { .. } | Kind::Discard)
    }
}

/// A trace that is read.
pub struct Trace {
    file: File,
    pub entries: Vec<Entry>,
}

impl Trace {
    pub fn open(path: &Path) -> Result<Trace, Fail> {
        let fail = |why: String| Fail::new(format!("{}: {why}", path.display()));
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        let size = file.metadata().map_err(|e| fail(e.to_string()))?.len();
        let mut head = [0u8; ENTRY];
        file.read_exact_at(&mut head, 0)
            .map_err(|_| fail("not a trace: too short".into()))?;
        if word(&head, 0) != MAGIC {
            return Err(fail(
                "not a trace of dm-log-writes; `ccfs crash record` makes one".into(),
            ));
        }
        let sector = u64::from(u32::from_le_bytes([head[24], head[25], head[26], head[27]]));
        if word(&head, 8) != VERSION || !(512..=65536).contains(&sector) || sector % 512 != 0 {
            return Err(fail("a version of the format that is not known".into()));
        }
        let mut trace = Trace {
            file,
            entries: Vec::new(),
        };
        let mut at = sector;
        for number in 0..word(&head, 16) {
            at = trace
                .read_entry(at, sector, size)
                .map_err(|e| fail(format!("entry {number}: {e}")))?;
        }
        Ok(trace)
    }

    /// Reads the entry at `at`; gives where the next one begins.
    fn read_entry(&mut self, at: u64, sector: u64, size: u64) -> io::Result<u64> {
        let mut head = vec![0u8; sector as usize];
        self.file.read_exact_at(&mut head, at)?;
        let damaged = || io::Error::other("the trace is damaged");
        let flags = word(&head, 16);
        let offset = word(&head, 0).checked_mul(sector).ok_or_else(damaged)?;
        let len = word(&head, 8).checked_mul(sector).ok_or_else(damaged)?;
        offset.checked_add(len).ok_or_else(damaged)?;
        let number = self.entries.len() as u64;
        let own = head.len() - OWN;
        let is_own = &head[own..own + 8] == OWN_MAGIC;
        let mut entry = Entry {
            kind: Kind::Flush,
            offset,
            len,
            time_ns: if is_own { word(&head, own + 8) } else { 0 },
            seen: if is_own {
                word(&head, own + 16).min(number)
            } else {
                number
            },
            data_at: at + sector,
        };
        let mut next = at + sector;
        if flags & MARK != 0 {
            let text = usize::try_from(word(&head, 24)).unwrap_or(usize::MAX);
            let text = head
                .get(HEAD..HEAD.saturating_add(text))
                .ok_or_else(damaged)?;
            let text = text.split(|b| *b == 0).next().unwrap_or_default();
            entry.kind = Kind::Mark(String::from_utf8_lossy(text).into_owned());
            self.entries.push(entry);
            return Ok(next);
        }
        if flags & FLUSH != 0 {
            self.entries.push(entry.clone());
        }
        if flags & DISCARD != 0 {
            entry.kind = Kind::Discard;
            self.entries.push(entry);
        } else if len > 0 {
            entry.kind = Kind::Write {
                fua: flags & FUA != 0,
            };
            next = next
                .checked_add(len)
                .filter(|n| *n <= size)
                .ok_or_else(damaged)?;
            self.entries.push(entry);
        }
        Ok(next)
    }

    /// Carries out entry `number` on a device: the whole of it, or its first `sectors` only.
    pub fn apply(
        &self,
        number: usize,
        sectors: Option<u64>,
        device: &MemoryDevice,
    ) -> Result<(), Fail> {
        let entry = &self.entries[number];
        let len = entry.len.min(sectors.map_or(u64::MAX, |s| s * SECTOR));
        let fail = |e: io::Error| {
            Fail::new(format!(
                "entry {number} of the trace cannot be repeated: {e}"
            ))
        };
        match entry.kind {
            Kind::Discard => device.fill(entry.offset, len, 0).map_err(fail),
            Kind::Write { .. } => {
                let mut data = vec![0; len as usize];
                self.file
                    .read_exact_at(&mut data, entry.data_at)
                    .map_err(fail)?;
                store(device, entry.offset, &data).map_err(fail)
            }
            Kind::Flush | Kind::Mark(_) => Ok(()),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Writes bytes that need not be aligned in memory; zeros take none.
fn store(device: &MemoryDevice, offset: u64, bytes: &[u8]) -> io::Result<()> {
    if bytes.iter().all(|b| *b == 0) {
        return device.fill(offset, bytes.len() as u64, 0);
    }
    write_all(
        device,
        vec![Write::new(offset, AlignedBuf::from_bytes(bytes))],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let writer = TraceWriter::create(&path).unwrap();
        writer.mark("hello");
        writer.write(4096, &[&[1; 512], &[2; 1024]], 0);
        writer.write(4096, &[&[0; 512]], 2);
        writer.flush(2);
        writer.discard(0, 1 << 20, 4);
        writer.mark(&"x".repeat(1000));
        writer.close().unwrap();
        writer.mark("too late");
        let trace = Trace::open(&path).unwrap();
        let kinds: Vec<_> = trace.entries.iter().map(|e| e.kind.clone()).collect();
        assert_eq!(kinds.len(), 6);
        assert_eq!(kinds[0], Kind::Mark("hello".into()));
        assert_eq!(kinds[3], Kind::Flush);
        assert_eq!(kinds[5], Kind::Mark("x".repeat(MARK_MAX)));
        assert_eq!((trace.entries[1].seen, trace.entries[3].seen), (0, 2));
        assert!(trace.entries.is_sorted_by_key(|e| e.time_ns));
        let device = MemoryDevice::new(1 << 20);
        let mut got = [0u8; 1536];
        for number in 0..4 {
            trace.apply(number, None, &device).unwrap();
        }
        ccfs_device::Device::read(&device, 4096, &mut got).unwrap();
        assert_eq!((got[0], got[511], got[512], got[1535]), (0, 0, 2, 2));
        trace.apply(1, Some(1), &device).unwrap();
        ccfs_device::Device::read(&device, 4096, &mut got).unwrap();
        assert_eq!((got[0], got[512]), (1, 2), "one sector of three");
    }

    #[test]
    fn damaged_traces_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let writer = TraceWriter::create(&path).unwrap();
        writer.write(0, &[&[1; 4096]], 0);
        writer.mark("end");
        writer.close().unwrap();
        let good = std::fs::read(&path).unwrap();
        for (at, value) in [
            (0, 0xFF),
            (8, 9),
            (16, 200),
            (24, 7),
            (512 + 15, 0xFF),
            (512 + 8 + 4, 1),
            (512 + 512 + 4096 + 26, 0xFF),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            std::fs::write(&path, &bad).unwrap();
            assert!(Trace::open(&path).is_err(), "byte {at}");
        }
        std::fs::write(&path, &good[..100]).unwrap();
        assert!(Trace::open(&path).is_err());
    }
}
