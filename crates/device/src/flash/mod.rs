//! Transactional flash, emulated over any device (X-FTL, on which the CFS paper builds): pages that are programmed once per erase, a
//! map from logical to flash pages, and transactions - `write(txid, page)`, `commit(txid)`, `abort(txid)` - that cost one page for the list
//! of what they wrote (the X-L2P table) and nothing else, since every write goes to a new place anyway.
//!
//! # Guarantees
//! * A commit is there whole after a power cut, or not at all; none is there without all that were made before it.
//! * [`Transactions::commit`] is durable when it returns; [`Transactions::commit_ordered`] when a later commit or flush has returned.
//! * Until its commit nobody reads what a transaction wrote, and an abort leaves nothing of it.
//! * What is written outside of transactions is read at once, becomes durable with the next flush or commit of anybody, and then as a whole.
//! * A page that the flash has lost is found by its checksum, and reading it is an error.
//!
//! What lies below need not be flash: a file, or the simulator, whose crash states tear pages and lose any of them that no flush covers.
mod format;
mod ftl;
mod gc;
mod recover;

use crate::counters::Counting;
use crate::{Counters, Device, Remote, Ticket, Write, check_range, check_writes, invalid};
pub use format::{FLASH_MAGIC, FlashGeometry, PAGE as FLASH_PAGE};
use format::{NONE, SLOT, encode_header, open};
use ftl::{Ftl, Pages};
use parking_lot::RwLock;
use std::io;
use std::sync::Arc;

/// Pages of one batch that are programmed at a time: bounds the memory that a large write takes.
const BATCH_PAGES: usize = 1024;

/// A device's own transactions. A transaction begins with its first write; numbers are the caller's, and not 0. Writes outside of
/// transactions count as made before the next commit.
pub trait Transactions: Send + Sync {
    /// Writes within a transaction. Later writes of a range win over earlier ones.
    ///
    /// # Errors
    /// `StorageFull` where the device has no room for it; the transaction can still be aborted.
    fn write_in(&self, txn: u64, writes: Vec<Write>) -> io::Result<()>;
    /// The whole pages of the range hold nothing any more, from the commit on; they read as zeros.
    fn discard_in(&self, txn: u64, offset: u64, len: u64) -> io::Result<()>;
    /// Makes the transaction, and all commits before it, durable.
    fn commit(&self, txn: u64) -> io::Result<()>;
    /// Gives the transaction its place in the order of commits, without waiting for a flush.
    fn commit_ordered(&self, txn: u64) -> io::Result<()>;
    /// Forgets all that the transaction wrote and discarded; one that did nothing is no error.
    fn abort(&self, txn: u64) -> io::Result<()>;
    /// Bytes that one transaction may write, however full the device is.
    fn transaction_max(&self) -> u64;
    /// What the flash did since it was opened, and how it stands.
    fn flash_counters(&self) -> FlashCounters;
}

/// What a flash device did since it was opened, and how it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashCounters {
    /// Pages that the host wrote.
    pub host_pages: u64,
    /// Pages programmed: the host's, those that garbage collection moved, records of commits, tables and roots.
    pub programmed: u64,
    /// Of those: moved by garbage collection.
    pub moved_pages: u64,
    /// Of those: records of commits.
    pub record_pages: u64,
    /// Of those: tables of the mapping, and roots.
    pub table_pages: u64,
    /// Blocks that were erased.
    pub erases: u64,
    /// Flushes of what the flash lies on.
    pub flushes: u64,
    /// Transactions that were committed, in order or durably.
    pub commits: u64,
    /// Transactions that were forgotten.
    pub aborts: u64,
    /// Snapshots of the mapping that were written: tables and a root.
    pub snapshots: u64,
    /// Pages of the flash.
    pub pages: u64,
    /// Pages that hold something.
    pub used_pages: u64,
    /// Pages that can be programmed without collecting garbage.
    pub free_pages: u64,
    /// Erases of the least worn block.
    pub wear_least: u64,
    /// Erases of the most worn block.
    pub wear_most: u64,
    /// Pages programmed since the device was made; what came after the newest root is not counted when it is opened again.
    pub life_programmed: u64,
    /// Blocks erased since the device was made.
    pub life_erases: u64,
    /// Pages that the host wrote since the device was made.
    pub life_host_pages: u64,
}

impl FlashCounters {
    /// Pages programmed for each page that the host wrote.
    pub fn write_amplification(&self) -> f64 {
        self.programmed as f64 / self.host_pages.max(1) as f64
    }
}

/// Errors in the design that tests must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashBug {
    /// Recovery takes a commit without looking at its pages.
    UncheckedPages,
    /// Blocks are used again before the root that calls them free is durable.
    EarlyErase,
    /// A root can be there without the tables that it names.
    UnflushedTables,
    /// A durable commit returns without a flush.
    SkippedFlush,
    /// Garbage collection takes pages of open transactions for garbage.
    OpenPagesLost,
}

/// For tests.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// Pages programmed between two snapshots at most: what recovery has to look through.
    pub snapshot_every: u32,
    /// The mistake to make; `None`: none.
    pub bug: Option<FlashBug>,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            snapshot_every: 8192,
            bug: None,
        }
    }
}

/// See the module.
pub struct FlashDevice {
    below: Arc<dyn Device>,
    geometry: FlashGeometry,
    ftl: RwLock<Ftl>,
    /// Counted apart, as readers hold no lock that would let them count.
    counting: Counting,
}

impl FlashDevice {
    /// Makes an empty flash on `dev`; what was there is lost. `nonce`: a random number that no other flash has.
    ///
    /// # Errors
    /// `InvalidInput` where `dev` is shorter than `FlashGeometry::file_bytes`; I/O.
    pub fn format(dev: Arc<dyn Device>, g: FlashGeometry, nonce: u64) -> io::Result<()> {
        check_range(dev.size_bytes(), 0, g.file_bytes())?;
        dev.discard(0, g.file_bytes())?;
        let header = crate::AlignedBuf::from_bytes(&encode_header(&g, nonce));
        let mut ftl = Ftl::blank(dev.clone(), g, nonce, Tuning::default());
        for anchor in [1, 0] {
            ftl.anchor = anchor;
            ftl.erase_anchor()?;
        }
        ftl.snapshot()?;
        crate::write_all(&*dev, vec![Write::new(0, header)])?;
        dev.flush()
    }

    /// Makes a flash, as `format`, that has the content of `volume`, durably.
    ///
    /// # Errors
    /// As `format`; errors of reading `volume`.
    pub fn holding(
        dev: Arc<dyn Device>,
        g: FlashGeometry,
        nonce: u64,
        volume: &dyn Device,
    ) -> io::Result<FlashDevice> {
        Self::format(dev.clone(), g, nonce)?;
        let flash = Self::open(dev)?;
        crate::copy_filled(volume, &flash)?;
        flash.flush()?;
        Ok(flash)
    }

    /// Is there a flash on `dev`?
    pub fn is_flash(dev: &dyn Device) -> io::Result<bool> {
        let mut magic = [0; 8];
        if dev.size_bytes() < 8 {
            return Ok(false);
        }
        dev.read(0, &mut magic)?;
        Ok(magic == FLASH_MAGIC)
    }

    /// What a volume on `dev` is read from and written to: the flash, where `dev` holds one, else `dev` itself.
    ///
    /// # Errors
    /// As `open`.
    pub fn or_plain(dev: Arc<dyn Device>) -> io::Result<Arc<dyn Device>> {
        match Self::is_flash(&*dev)? {
            true => Ok(Arc::new(Self::open(dev)?)),
            false => Ok(dev),
        }
    }

    /// Opens a flash, after a power cut too.
    ///
    /// # Errors
    /// `InvalidData` that says what is damaged; I/O.
    pub fn open(dev: Arc<dyn Device>) -> io::Result<FlashDevice> {
        Self::open_tuned(dev, Tuning::default())
    }

    /// For tests.
    pub fn open_tuned(dev: Arc<dyn Device>, tuning: Tuning) -> io::Result<FlashDevice> {
        let ftl = Ftl::open(dev.clone(), tuning)?;
        Ok(FlashDevice {
            below: dev,
            geometry: ftl.g,
            ftl: RwLock::new(ftl),
            counting: Counting::default(),
        })
    }

    /// How the flash is divided.
    pub fn geometry(&self) -> FlashGeometry {
        self.geometry
    }

    /// What the flash lies on.
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }

    /// Reads through a map: `buf` from `offset` on.
    fn read_as(&self, ftl: &Ftl, txn: u64, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let page = FLASH_PAGE as u64;
        let (mut at, end) = (offset, offset + buf.len() as u64);
        let mut slots = Vec::new();
        while at < end {
            let lpn = (at / page) as u32;
            let first = ftl.locate_in(txn, lpn);
            let last = ((end - 1) / page) as u32;
            let mut run = 1;
            while first != NONE
                && run < 128
                && lpn + run <= last
                && ftl.locate_in(txn, lpn + run) == first + run
            {
                run += 1;
            }
            let stop = ((u64::from(lpn + run)) * page).min(end);
            let out = &mut buf[(at - offset) as usize..(stop - offset) as usize];
            if first == NONE {
                out.fill(0);
            } else {
                slots.resize(run as usize * SLOT, 0);
                self.below.read(self.geometry.offset(first), &mut slots)?;
                let mut from = at;
                for (i, slot) in (0u32..).zip(slots.chunks_exact(SLOT)) {
                    let good = open(slot, first + i, ftl.nonce);
                    if good.is_none_or(|t| t.index != lpn + i) {
                        return Err(gc::damaged_page(lpn + i, first + i));
                    }
                    let upto = (u64::from(lpn + i + 1) * page).min(stop);
                    let inside = (from % page) as usize;
                    let len = (upto - from) as usize;
                    out[(from - at) as usize..(upto - at) as usize]
                        .copy_from_slice(&slot[inside..inside + len]);
                    from = upto;
                }
            }
            at = stop;
        }
        Ok(())
    }

    fn write_as(&self, txn: u64, writes: &[Write]) -> io::Result<()> {
        check_writes(self.size_bytes(), writes)?;
        let mut ftl = self.ftl.write();
        ftl.check()?;
        let mut pages = Pages::new();
        for write in writes {
            let mut at = write.offset;
            for part in &write.parts {
                let mut bytes = part.bytes();
                while !bytes.is_empty() {
                    let (lpn, inside) = (at / FLASH_PAGE as u64, at as usize % FLASH_PAGE);
                    let (some, rest) = bytes.split_at(bytes.len().min(FLASH_PAGE - inside));
                    self.put_bytes(&ftl, txn, &mut pages, (lpn as u32, inside), some)?;
                    at += some.len() as u64;
                    bytes = rest;
                    if pages.len() >= BATCH_PAGES {
                        ftl.write(txn, &pages)?;
                        pages.clear();
                    }
                }
            }
        }
        if !pages.is_empty() {
            ftl.write(txn, &pages)?;
        }
        drop(ftl);
        self.counting.wrote(writes);
        Ok(())
    }

    /// Bytes into one page of a batch; a page that is written in part is read first.
    fn put_bytes(
        &self,
        ftl: &Ftl,
        txn: u64,
        pages: &mut Pages,
        (lpn, inside): (u32, usize),
        bytes: &[u8],
    ) -> io::Result<()> {
        let page = match pages.entry(lpn) {
            std::collections::btree_map::Entry::Occupied(page) => page.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let mut page = vec![0; FLASH_PAGE].into_boxed_slice();
                if bytes.len() < FLASH_PAGE {
                    let start = u64::from(lpn) * FLASH_PAGE as u64;
                    self.read_as(ftl, txn, start, &mut page)?;
                }
                free.insert(page)
            }
        };
        page[inside..inside + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn trim_as(&self, txn: u64, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset, len)?;
        let page = FLASH_PAGE as u64;
        let (first, end) = (offset.div_ceil(page), (offset + len) / page);
        let mut ftl = self.ftl.write();
        ftl.check()?;
        if first < end {
            ftl.trim(txn, first as u32..end as u32);
        }
        Ok(())
    }

    /// Flushes what was committed up to now. Nobody waits for the lock meanwhile.
    fn flush_upto(&self, number: u64) -> io::Result<()> {
        if self.ftl.read().durable >= number {
            return Ok(());
        }
        let result = self.below.flush();
        let mut ftl = self.ftl.write();
        ftl.count.flushes += 1;
        match &result {
            Ok(()) => ftl.flushed(number),
            Err(_) => ftl.failed = true,
        }
        result
    }
}

impl Transactions for FlashDevice {
    fn write_in(&self, txn: u64, writes: Vec<Write>) -> io::Result<()> {
        check_number(txn)?;
        self.write_as(txn, &writes)
    }

    fn discard_in(&self, txn: u64, offset: u64, len: u64) -> io::Result<()> {
        check_number(txn)?;
        self.trim_as(txn, offset, len)
    }

    fn commit(&self, txn: u64) -> io::Result<()> {
        check_number(txn)?;
        self.counting.flush();
        let (number, skipped) = {
            let mut ftl = self.ftl.write();
            (ftl.commit(txn)?, ftl.bug(FlashBug::SkippedFlush))
        };
        match skipped {
            true => Ok(()),
            false => self.flush_upto(number),
        }
    }

    fn commit_ordered(&self, txn: u64) -> io::Result<()> {
        check_number(txn)?;
        self.ftl.write().commit(txn).map(drop)
    }

    fn abort(&self, txn: u64) -> io::Result<()> {
        check_number(txn)?;
        self.ftl.write().abort(txn);
        Ok(())
    }

    fn transaction_max(&self) -> u64 {
        u64::from(self.geometry.txn_pages()) * FLASH_PAGE as u64
    }

    fn flash_counters(&self) -> FlashCounters {
        let ftl = self.ftl.read();
        let wear = &ftl.erases[format::ANCHORS as usize..];
        FlashCounters {
            pages: u64::from(self.geometry.pages()),
            used_pages: ftl.valid.iter().map(|n| u64::from(*n)).sum(),
            free_pages: u64::from(ftl.free_pages()),
            wear_least: wear.iter().min().map_or(0, |n| u64::from(*n)),
            wear_most: wear.iter().max().map_or(0, |n| u64::from(*n)),
            life_programmed: ftl.life[0],
            life_erases: ftl.life[1],
            life_host_pages: ftl.life[2],
            ..ftl.count
        }
    }
}

impl Device for FlashDevice {
    fn size_bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        self.counting.read(buf.len());
        // Held while the flash is read: what the map says is not erased meanwhile.
        let ftl = self.ftl.read();
        self.read_as(&ftl, 0, offset, buf)
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        Ticket::done(self.write_as(0, &writes))
    }

    fn flush(&self) -> io::Result<()> {
        self.counting.flush();
        let number = self.ftl.write().commit(0)?;
        self.flush_upto(number)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.trim_as(0, offset, len)
    }

    fn counters(&self) -> Counters {
        self.counting.get()
    }

    fn read_only(&self) -> bool {
        self.below.read_only()
    }

    fn transactions(&self) -> Option<&dyn Transactions> {
        Some(self)
    }

    fn remote(&self) -> Option<Remote> {
        self.below.remote()
    }
}

fn check_number(txn: u64) -> io::Result<()> {
    match txn {
        0 => Err(invalid("transactions are numbered from 1".into())),
        _ => Ok(()),
    }
}
