//! A device that takes writes and forgets them: what a mount would do, tried without changing a byte.
use ccfs_device::{Counters, Device, Ticket, Write};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

const SECTOR: u64 = 512;

/// Reads come from the volume below, or from what was written since.
pub struct Rehearsal {
    below: Arc<dyn Device>,
    written: Mutex<HashMap<u64, [u8; SECTOR as usize]>>,
}

impl Rehearsal {
    pub fn new(below: Arc<dyn Device>) -> Self {
        Rehearsal {
            below,
            written: Mutex::default(),
        }
    }

    fn take(&self, writes: &[Write]) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for write in writes {
            let end = write.offset.checked_add(write.len());
            if !write.offset.is_multiple_of(SECTOR) || end.is_none_or(|e| e > self.size_bytes()) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let sectors = write.parts.iter().flat_map(|part| {
                let (whole, _) = part.bytes().as_chunks::<{ SECTOR as usize }>();
                whole
            });
            for (n, sector) in sectors.enumerate() {
                written.insert(write.offset / SECTOR + n as u64, *sector);
            }
        }
        Ok(())
    }
}

impl Device for Rehearsal {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read(offset, buf)?;
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let end = offset + buf.len() as u64;
        for number in offset / SECTOR..end.div_ceil(SECTOR) {
            let Some(sector) = written.get(&number) else {
                continue;
            };
            let start = number * SECTOR;
            let (from, to) = (start.max(offset), (start + SECTOR).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sector[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        Ticket::done(self.take(&writes))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn read_only(&self) -> bool {
        false
    }

    /// Nothing is written.
    fn counts_mounts(&self) -> bool {
        true
    }

    fn min_io(&self) -> u64 {
        self.below.min_io()
    }
}
