//! ext4's multiple mount protection (feature mmp; Linux, Documentation/filesystems/ext4, "Multiple Mount Protection"): a block of the volume in
//! which whoever may write counts, for disks that several hosts can reach.
//!
//! As the kernel and e2fsck do it: a volume whose number says *clean* is taken by writing a number of one's own, and is had when that is
//! still there after twice the check interval and a second; else the number is looked at for as long before. The owner writes the next
//! number every update interval. What is special here: an owner who has not looked for longer than the check interval (his host slept)
//! looks before he writes.
use crate::clock;
use ccfs_device::{
    AlignedBuf, Counters, Device, OpenError, OpenMode, Remote, Ticket, Transactions, Write,
    write_all,
};
use ccfs_ext4::checksum::crc32c;
use ccfs_ext4::features::{incompat, ro_compat};
use ccfs_ext4::superblock::{MAGIC, RawSuper, SUPER_OFFSET, SUPER_SIZE};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::FromBytes;

const BLOCK_MAGIC: u32 = 0x004D_4D50;
const CLEAN: u32 = 0xFF4D_4D50;
const FSCK: u32 = 0xE24D_4D50;
const MOST: u32 = 0xE24D_4D4F;
/// Of the structure, bytes.
const SIZE: usize = 1024;
const NODE: std::ops::Range<usize> = 16..80;
const DEVICE: std::ops::Range<usize> = 80..112;
const INTERVAL_AT: usize = 112;
const SUM_AT: usize = 1020;
/// Shortest check interval, seconds.
const CHECK_LEAST: u64 = 5;
/// Longest, seconds.
const CHECK_MOST: u64 = 300;

/// A device whose volume has such a block, and is written to from here.
pub struct MmpDevice {
    shared: Arc<Shared>,
    beats: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    below: Arc<dyn Device>,
    place: Place,
    state: Mutex<State>,
    /// Held while the block is read and written.
    looking: Mutex<()>,
    ended: Condvar,
}

/// Where the block is, and what belongs to it.
struct Place {
    at: u64,
    /// Of the checksum, where there is one.
    seed: Option<u32>,
    update: Duration,
    check: Duration,
}

struct State {
    seq: u32,
    node: String,
    /// [`clock::elapsed`] at the last look that found it in order.
    seen: Duration,
    why_not: Option<String>,
    is_over: bool,
}

#[derive(Clone, PartialEq)]
struct Block {
    seq: u32,
    node: String,
    interval: u16,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let four = &bytes[at..at + 4];
    four.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

impl Place {
    /// `None`: the volume has no such block, or is none.
    fn of(device: &dyn Device) -> io::Result<Option<Place>> {
        if device.size_bytes() < SUPER_OFFSET + SUPER_SIZE as u64 {
            return Ok(None);
        }
        let mut bytes = [0; SUPER_SIZE];
        device.read(SUPER_OFFSET, &mut bytes)?;
        let Ok(sb) = RawSuper::read_from_bytes(&bytes) else {
            return Ok(None);
        };
        if sb.magic.get() != MAGIC || !sb.has_incompat(incompat::MMP) {
            return Ok(None);
        }
        let block_size = 1024u64 << sb.log_block_size.get().min(6);
        let at = sb.mmp_block.get().saturating_mul(block_size);
        if at < SUPER_OFFSET + SUPER_SIZE as u64 || at + SIZE as u64 > device.size_bytes() {
            return Err(io::Error::other(
                "the volume has the feature mmp, and no block for it; e2fsck -f mends that",
            ));
        }
        let seed = match sb.has_incompat(incompat::CSUM_SEED) {
            true => sb.checksum_seed.get(),
            false => crc32c(!0, &sb.uuid),
        };
        let update = u64::from(sb.mmp_interval.get()).clamp(1, CHECK_MOST);
        Ok(Some(Place {
            at,
            seed: sb.has_ro_compat(ro_compat::METADATA_CSUM).then_some(seed),
            update: Duration::from_secs(update),
            check: Duration::from_secs((2 * update).clamp(CHECK_LEAST, CHECK_MOST)),
        }))
    }

    fn read(&self, device: &dyn Device) -> io::Result<Block> {
        let mut bytes = [0; SIZE];
        device.read(self.at, &mut bytes)?;
        let sum = self.seed.map(|seed| crc32c(seed, &bytes[..SUM_AT]));
        if word(&bytes, 0) != BLOCK_MAGIC || sum.is_some_and(|sum| sum != word(&bytes, SUM_AT)) {
            return Err(io::Error::other(
                "the block of the volume's multiple mount protection is damaged; e2fsck -f mends it",
            ));
        }
        let node = bytes[NODE].split(|b| *b == 0).next().unwrap_or_default();
        Ok(Block {
            seq: word(&bytes, 4),
            node: String::from_utf8_lossy(node).into_owned(),
            interval: word(&bytes, INTERVAL_AT) as u16,
        })
    }

    fn write(&self, device: &dyn Device, seq: u32, node: &str) -> io::Result<()> {
        let mut bytes = AlignedBuf::zeroed(SIZE);
        let put = |bytes: &mut [u8], text: &[u8]| {
            let len = text.len().min(bytes.len() - 1);
            bytes[..len].copy_from_slice(&text[..len]);
        };
        bytes[..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&seq.to_le_bytes());
        bytes[8..16].copy_from_slice(&clock::now().to_le_bytes());
        put(&mut bytes[NODE], node.as_bytes());
        put(&mut bytes[DEVICE], b"ccfs");
        let interval = self.check.as_secs() as u16;
        bytes[INTERVAL_AT..INTERVAL_AT + 2].copy_from_slice(&interval.to_le_bytes());
        if let Some(seed) = self.seed {
            let sum = crc32c(seed, &bytes[..SUM_AT]);
            bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        }
        write_all(device, vec![Write::new(self.at, bytes)])?;
        device.flush()
    }

    /// Becomes the one who counts. `Err(Ok)`: who does.
    fn take(
        &self,
        device: &dyn Device,
        node: &str,
        take_over: bool,
    ) -> Result<u32, io::Result<String>> {
        let found = self.read(device).map_err(Err)?;
        let check = u64::from(found.interval).clamp(CHECK_LEAST, CHECK_MOST);
        let wait = Duration::from_secs((2 * check + 1).min(check + 60));
        if found.seq != CLEAN && !take_over {
            // Also of an e2fsck that was killed.
            std::thread::sleep(wait);
            if self.read(device).map_err(Err)? != found {
                let who = if found.seq == FSCK {
                    "e2fsck on host"
                } else {
                    "host"
                };
                return Err(Ok(format!("{who} {}", found.node)));
            }
        }
        let mut random = [0; 4];
        let drawn = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        drawn.map_err(|e| Err(e.into()))?;
        let seq = 1 + u32::from_le_bytes(random) % (MOST - 1);
        self.write(device, seq, node).map_err(Err)?;
        std::thread::sleep(wait);
        let now = self.read(device).map_err(Err)?;
        match now.seq == seq && now.node == node {
            true => Ok(seq),
            false => Err(Ok(format!("host {}", now.node))),
        }
    }
}

/// A device as it is, or, where it is to be written to and its volume has the feature, one that counts.
pub fn guarded(
    device: Arc<dyn Device>,
    name: &Path,
    mode: OpenMode,
    take_over: bool,
) -> Result<Arc<dyn Device>, OpenError> {
    if mode == OpenMode::ReadOnly {
        return Ok(device);
    }
    let failed = |source| OpenError::Io {
        path: name.into(),
        source,
    };
    // What is damaged is for e2fsck, which mends it: the engine writes to no such volume that nobody counts for.
    let place = Place::of(&*device).and_then(|place| {
        if let Some(place) = &place {
            place.read(&*device)?;
        }
        Ok(place)
    });
    let place = match place {
        Ok(Some(place)) => place,
        Ok(None) => return Ok(device),
        Err(e) => {
            tracing::warn!("{}: {e}", name.display());
            return Ok(device);
        }
    };
    let mut node = crate::device::host();
    while node.len() >= NODE.len() {
        node.pop();
    }
    let seq = place
        .take(&*device, &node, take_over)
        .map_err(|e| match e {
            Err(e) => failed(e),
            Ok(who) => OpenError::Busy {
                path: name.into(),
                holder: format!(
                    "{who} counts in its block (feature mmp); --take-over takes it from there"
                ),
            },
        })?;
    let shared = Arc::new(Shared {
        below: device,
        place,
        state: Mutex::new(State {
            seq,
            node,
            seen: clock::elapsed(),
            why_not: None,
            is_over: false,
        }),
        looking: Mutex::new(()),
        ended: Condvar::new(),
    });
    let of_thread = shared.clone();
    let thread = std::thread::Builder::new().name("ccfs-mmp".into());
    let beats = thread.spawn(move || of_thread.count()).map_err(failed)?;
    Ok(Arc::new(MmpDevice {
        shared,
        beats: Mutex::new(Some(beats)),
    }))
}

impl Shared {
    fn count(&self) {
        loop {
            {
                let mut state = self.state.lock();
                if !state.is_over {
                    self.ended.wait_for(&mut state, self.place.update);
                }
                if state.is_over || state.why_not.is_some() {
                    return;
                }
            }
            self.look(true);
        }
    }

    /// Looks, and writes the next number if that is asked for. What is found stays known. One at a time; nobody else waits for it.
    fn look(&self, and_count: bool) {
        let _one = self.looking.lock();
        let (seq, node) = {
            let state = self.state.lock();
            (state.seq, state.node.clone())
        };
        let begun = clock::elapsed();
        let next = if seq >= MOST { 1 } else { seq + 1 };
        let found = self.find(seq, &node).and_then(|()| {
            if !and_count {
                return Ok(seq);
            }
            let written = self.place.write(&*self.below, next, &node);
            written.map_err(in_vain)?;
            // It may have taken the place of another host's number.
            match clock::elapsed() - begun > self.place.check {
                true => Err("a count took too long: another host may have had the volume; nothing more is written from here".into()),
                false => Ok(next),
            }
        });
        let mut state = self.state.lock();
        match found {
            Ok(seq) => (state.seq, state.seen) = (seq, begun),
            Err(why) => {
                tracing::error!("{why}");
                state.why_not = Some(why);
            }
        }
    }

    fn find(&self, seq: u32, node: &str) -> Result<(), String> {
        let now = self.place.read(&*self.below).map_err(in_vain)?;
        match now.seq == seq && now.node == node {
            true => Ok(()),
            false => Err(format!(
                "host {} has taken the volume over; nothing more is written from here",
                now.node
            )),
        }
    }

    fn may_write(&self) -> io::Result<()> {
        let is_late = {
            let state = self.state.lock();
            let late = clock::elapsed() - state.seen > self.place.check;
            late && state.why_not.is_none() && !state.is_over
        };
        if is_late {
            self.look(false);
        }
        match &self.state.lock().why_not {
            Some(why) => Err(io::Error::other(why.clone())),
            // Where others have been let in, what they do is theirs.
            None => Ok(()),
        }
    }
}

fn in_vain(e: io::Error) -> String {
    format!("the volume's multiple mount protection: {e}")
}

impl MmpDevice {
    fn end(&self) {
        let Some(beats) = self.beats.lock().take() else {
            return;
        };
        let shared = &self.shared;
        shared.state.lock().is_over = true;
        shared.ended.notify_all();
        let _ = beats.join();
        let state = shared.state.lock();
        let (below, place) = (&*shared.below, &shared.place);
        let is_mine = || {
            place
                .read(below)
                .is_ok_and(|now| now.seq == state.seq && now.node == state.node)
        };
        if state.why_not.is_none() && is_mine() {
            let left = place.write(below, CLEAN, &state.node);
            if let Err(e) = left {
                tracing::debug!("the volume is not marked as left: {e}");
            }
        }
    }
}

impl Drop for MmpDevice {
    fn drop(&mut self) {
        self.end();
    }
}

impl Device for MmpDevice {
    fn size_bytes(&self) -> u64 {
        self.shared.below.size_bytes()
    }
    fn grow(&self, bytes: u64) -> io::Result<()> {
        self.shared.may_write()?;
        self.shared.below.grow(bytes)
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.shared.below.read(offset, buf)
    }
    fn read_around(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.shared.below.read_around(offset, buf)
    }
    fn read_if_ahead(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.shared.below.read_if_ahead(offset, buf)
    }
    fn give_back_memory(&self) {
        self.shared.below.give_back_memory();
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        match self.shared.may_write() {
            Ok(()) => self.shared.below.submit(writes),
            Err(e) => Ticket::done(Err(e)),
        }
    }
    fn keeps_order(&self) -> bool {
        self.shared.below.keeps_order()
    }
    fn submit_epoch(&self, writes: Vec<Write>) -> Ticket {
        match self.shared.may_write() {
            Ok(()) => self.shared.below.submit_epoch(writes),
            Err(e) => Ticket::done(Err(e)),
        }
    }
    fn flush(&self) -> io::Result<()> {
        self.shared.may_write()?;
        self.shared.below.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.shared.may_write()?;
        self.shared.below.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.shared.below.counters()
    }
    fn read_only(&self) -> bool {
        self.shared.below.read_only()
    }
    fn transactions(&self) -> Option<&dyn Transactions> {
        self.shared.below.transactions()
    }
    fn remote(&self) -> Option<Remote> {
        self.shared.below.remote()
    }
    fn counts_mounts(&self) -> bool {
        true
    }
    fn let_others_in(&self) {
        self.end();
    }
    fn min_io(&self) -> u64 {
        self.shared.below.min_io()
    }
}
