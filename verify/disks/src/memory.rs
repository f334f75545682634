//! A sparse device in memory with snapshots that copy on write.
//!
//! Structure: shards (each a lock and a map) of segments (256 KiB, shared) of chunks (4 KiB, shared). A snapshot shares
//! every segment; the first write to a shared segment copies its table of chunks, the first write to a shared chunk
//! copies its bytes. So a snapshot of a 64 MiB volume costs microseconds, and writers in different segments meet no lock.

mod fingerprint;

pub use fingerprint::Fingerprints;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ccfs_device::{
    Counters, Counting, Device, SECTOR, Ticket, Write, check_range, check_writes, copy_filled,
    is_zero,
};
use parking_lot::{Mutex, RwLock};

const CHUNK: usize = 4096;
const CHUNKS: usize = 64;
const SEGMENT: u64 = (CHUNK * CHUNKS) as u64;
const SHARDS: u64 = 64;

type Chunk = [u8; CHUNK];

/// A missing chunk is all zeros.
#[derive(Clone)]
struct Segment([Option<Arc<Chunk>>; CHUNKS]);

type Shard = HashMap<u64, Arc<Segment>>;

/// A sparse in-memory device. Writes are done when they are submitted; nothing is ever lost, so `flush` only counts.
pub struct MemoryDevice {
    size: u64,
    shards: Box<[RwLock<Shard>]>,
    /// Filled chunks that are shared, so that a large `fill` costs no memory.
    filled: Mutex<HashMap<u8, Arc<Chunk>>>,
    counting: Counting,
}

impl MemoryDevice {
    /// `size` bytes of zeros, rounded down to a whole number of sectors.
    pub fn new(size: u64) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        MemoryDevice {
            size: size - size % SECTOR,
            shards,
            filled: Mutex::default(),
            counting: Counting::default(),
        }
    }

    /// The content of another device.
    pub fn copy_of(dev: &dyn Device) -> io::Result<Self> {
        let copy = Self::new(dev.size_bytes());
        copy_filled(dev, &copy)?;
        Ok(copy)
    }

    /// The content of an image file; holes of the file and blocks of zeros take no memory.
    pub fn from_file(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::open(path)?;
        let dev = Self::new(file.metadata()?.len());
        let mut buf = vec![0; SEGMENT as usize];
        for (start, end) in data_ranges(&file, dev.size)? {
            let mut at = start;
            while at < end {
                // Whole segments, so that chunks are found whole.
                let len = (SEGMENT - at % SEGMENT).min(end - at) as usize;
                file.read_exact_at(&mut buf[..len], at)?;
                dev.store_sparse(at, &buf[..len]);
                at += len as u64;
            }
        }
        Ok(dev)
    }

    /// Writes the content to a file, which is made or replaced; what is zero becomes a hole.
    pub fn to_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size)?;
        let snapshot = self.snapshot();
        for shard in &snapshot.shards {
            for (&number, segment) in shard.read().iter() {
                for (index, chunk) in segment.0.iter().enumerate() {
                    let Some(chunk) = chunk else { continue };
                    let offset = number * SEGMENT + (index * CHUNK) as u64;
                    if offset >= self.size || is_zero(&chunk[..]) {
                        continue;
                    }
                    let len = (self.size - offset).min(CHUNK as u64) as usize;
                    file.write_all_at(&chunk[..len], offset)?;
                }
            }
        }
        Ok(())
    }

    /// A device of its own with this one's content at one instant. Counters start at 0.
    pub fn snapshot(&self) -> MemoryDevice {
        // All locks at once: a snapshot is one instant, not one per shard.
        let held: Vec<_> = self.shards.iter().map(|shard| shard.read()).collect();
        let shards = held
            .iter()
            .map(|shard| RwLock::new((*shard).clone()))
            .collect();
        MemoryDevice {
            size: self.size,
            shards,
            filled: Mutex::default(),
            counting: Counting::default(),
        }
    }

    /// Sets every byte of a range. Costs no memory where whole 4 KiB chunks are filled.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> io::Result<()> {
        check_range(self.size, offset, len)?;
        let full = match byte {
            0 => None,
            _ => Some(
                self.filled
                    .lock()
                    .entry(byte)
                    .or_insert_with(|| Arc::new([byte; CHUNK]))
                    .clone(),
            ),
        };
        for_segments(offset, len, |number, start, len, _| {
            let mut shard = self.shard(number).write();
            if byte == 0 && len as u64 == SEGMENT {
                shard.remove(&number);
                return;
            }
            let segment = segment_mut(&mut shard, number);
            for_chunks(start, len, |index, start, len, _| match (len, &full) {
                (CHUNK, _) => segment.0[index] = full.clone(),
                (_, None) if segment.0[index].is_none() => {}
                _ => chunk_mut(&mut segment.0[index])[start..start + len].fill(byte),
            });
        });
        Ok(())
    }

    /// Bytes of memory that hold content of this device, shared or not.
    pub fn used_bytes(&self) -> u64 {
        let chunks = |segment: &Arc<Segment>| segment.0.iter().flatten().count() as u64;
        self.shards
            .iter()
            .map(|shard| shard.read().values().map(chunks).sum::<u64>())
            .sum::<u64>()
            * CHUNK as u64
    }

    /// Whether both devices have the same size and content.
    pub fn same_content(&self, other: &MemoryDevice) -> bool {
        self.first_difference(other).is_none()
    }

    /// Offset in bytes (a multiple of 4096) of some chunk that differs, `Some(0)` if the sizes differ.
    pub fn first_difference(&self, other: &MemoryDevice) -> Option<u64> {
        if self.size != other.size {
            return Some(0);
        }
        let (a, b) = (self.snapshot(), other.snapshot());
        let mut first = None::<u64>;
        for (mine, theirs) in a.shards.iter().zip(&b.shards) {
            let (mine, theirs) = (mine.read(), theirs.read());
            for &number in mine.keys().chain(theirs.keys()) {
                if let Some(index) = differing_chunk(mine.get(&number), theirs.get(&number)) {
                    let offset = number * SEGMENT + (index * CHUNK) as u64;
                    first = Some(first.map_or(offset, |least| least.min(offset)));
                }
            }
        }
        first
    }

    /// Reads without counting; the range must lie within the device.
    pub(crate) fn load(&self, offset: u64, buf: &mut [u8]) {
        for_segments(offset, buf.len() as u64, |number, start, len, done| {
            let out = &mut buf[done..done + len];
            let shard = self.shard(number).read();
            let Some(segment) = shard.get(&number) else {
                return out.fill(0);
            };
            for_chunks(start, len, |index, start, len, done| {
                match &segment.0[index] {
                    Some(chunk) => {
                        out[done..done + len].copy_from_slice(&chunk[start..start + len])
                    }
                    None => out[done..done + len].fill(0),
                }
            });
        });
    }

    /// Writes without counting; the range must lie within the device.
    pub(crate) fn store(&self, offset: u64, bytes: &[u8]) {
        for_segments(offset, bytes.len() as u64, |number, start, len, done| {
            let bytes = &bytes[done..done + len];
            let mut shard = self.shard(number).write();
            let segment = segment_mut(&mut shard, number);
            for_chunks(start, len, |index, start, len, done| {
                store_chunk(&mut segment.0[index], start, &bytes[done..done + len]);
            });
        });
    }

    fn store_sparse(&self, offset: u64, bytes: &[u8]) {
        for_chunks(offset as usize % CHUNK, bytes.len(), |_, _, len, done| {
            let part = &bytes[done..done + len];
            if !is_zero(part) {
                self.store(offset + done as u64, part);
            }
        });
    }

    fn shard(&self, number: u64) -> &RwLock<Shard> {
        &self.shards[(number % SHARDS) as usize]
    }
}

/// Calls `each` with (segment number, start in the segment, length, bytes done before) for the parts of a range.
fn for_segments(offset: u64, len: u64, mut each: impl FnMut(u64, usize, usize, usize)) {
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let start = at % SEGMENT;
        let part = (SEGMENT - start).min(end - at);
        each(
            at / SEGMENT,
            start as usize,
            part as usize,
            (at - offset) as usize,
        );
        at += part;
    }
}

/// Calls `each` with (chunk index, start in the chunk, length, bytes done before).
fn for_chunks(start: usize, len: usize, mut each: impl FnMut(usize, usize, usize, usize)) {
    let (mut at, end) = (start, start + len);
    while at < end {
        let inside = at % CHUNK;
        let part = (CHUNK - inside).min(end - at);
        each(at / CHUNK, inside, part, at - start);
        at += part;
    }
}

fn segment_mut(shard: &mut Shard, number: u64) -> &mut Segment {
    let segment = shard
        .entry(number)
        .or_insert_with(|| Arc::new(Segment([const { None }; CHUNKS])));
    Arc::make_mut(segment)
}

fn chunk_mut(chunk: &mut Option<Arc<Chunk>>) -> &mut Chunk {
    Arc::make_mut(chunk.get_or_insert_with(|| Arc::new([0; CHUNK])))
}

fn store_chunk(chunk: &mut Option<Arc<Chunk>>, start: usize, bytes: &[u8]) {
    // A whole chunk needs no copy of a shared old one.
    if let Ok(whole) = <&Chunk>::try_from(bytes) {
        match chunk.as_mut().and_then(Arc::get_mut) {
            Some(own) => *own = *whole,
            None => *chunk = Some(Arc::new(*whole)),
        }
    } else {
        chunk_mut(chunk)[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

fn differing_chunk(a: Option<&Arc<Segment>>, b: Option<&Arc<Segment>>) -> Option<usize> {
    if let (Some(a), Some(b)) = (a, b)
        && Arc::ptr_eq(a, b)
    {
        return None;
    }
    (0..CHUNKS).find(|&index| {
        let chunk =
            |segment: Option<&Arc<Segment>>| segment.and_then(|segment| segment.0[index].clone());
        match (chunk(a), chunk(b)) {
            (None, None) => false,
            (Some(a), Some(b)) => !Arc::ptr_eq(&a, &b) && a != b,
            (Some(one), None) | (None, Some(one)) => !is_zero(&one[..]),
        }
    })
}

/// The parts of the file's first `size` bytes that are not holes; all of it where the file system cannot tell.
fn data_ranges(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    use rustix::fs::{SeekFrom, seek};
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start.min(size),
            Err(rustix::io::Errno::NXIO) => break,
            Err(rustix::io::Errno::INVAL) => return Ok(vec![(0, size)]),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(size);
        if start < end {
            ranges.push((start, end));
        }
        at = end.max(at + 1);
    }
    Ok(ranges)
}

impl Device for MemoryDevice {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.size, offset, buf.len() as u64)?;
        self.load(offset, buf);
        self.counting.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        if let Err(error) = check_writes(self.size, &writes) {
            return Ticket::done(Err(error));
        }
        for write in &writes {
            let mut at = write.offset;
            for part in &write.parts {
                self.store(at, part.bytes());
                at += part.len as u64;
            }
        }
        self.counting.wrote(&writes);
        Ticket::done(Ok(()))
    }

    fn flush(&self) -> io::Result<()> {
        self.counting.flush();
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fill(offset, len, 0)
    }

    fn counters(&self) -> Counters {
        self.counting.get()
    }

    fn read_only(&self) -> bool {
        false
    }
}
