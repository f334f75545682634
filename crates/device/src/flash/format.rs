//! What lies where on the emulated flash (docs/format.md, "The flash file").
//!
//! Header page, then one *slot* per flash page: 4096 bytes of data and a sector with the out-of-band tag. A tag's checksum covers
//! data, tag and place, so a torn program, a page of an earlier life of the block and one that lies elsewhere are all found.
use std::io;

/// Bytes of data in a flash page.
pub const PAGE: usize = 4096;
/// Bytes of a page in the file: data and out-of-band sector.
pub(super) const SLOT: usize = PAGE + 512;
/// No page, no block.
pub(super) const NONE: u32 = u32::MAX;
/// Entries of a page of the mapping table.
pub(super) const MAP_ENTRIES: u32 = (PAGE / 4) as u32;
/// Entries of a page of the block table.
pub(super) const BLOCK_ENTRIES: u32 = (PAGE / 8) as u32;
/// Blocks 0 and 1 hold roots, in turn.
pub(super) const ANCHORS: u32 = 2;
/// First bytes of a flash file.
pub const FLASH_MAGIC: [u8; 8] = *b"CCFSXFTL";

const VERSION: u32 = 1;
const TAG_MAGIC: u32 = 0x4741_5058;
const TAG_LEN: usize = 48;
/// Bytes of a record page before its entries.
const RECORD_HEAD: usize = 16;
const RECORD_ENTRIES: usize = (PAGE - RECORD_HEAD) / 16;
/// Fixed part of a root.
const ROOT_HEAD: usize = 64;

/// Sizes of an emulated flash device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashGeometry {
    /// Pages of 4096 bytes that the device offers.
    pub logical_pages: u32,
    /// Pages of an erase block.
    pub block_pages: u32,
    /// Erase blocks, two for roots among them.
    pub blocks: u32,
}

impl FlashGeometry {
    /// For `bytes` of content (rounded up to pages), with `spare_percent` of it as space that the device keeps for itself, but at
    /// least what a transaction of 16 MiB needs on a full device.
    ///
    /// # Errors
    /// `InvalidInput` where the device would be empty or larger than 128 GiB.
    pub fn for_size(bytes: u64, spare_percent: u32) -> io::Result<FlashGeometry> {
        Self::with_spare(bytes, 128, u64::from(spare_percent), 4096)
    }

    /// As `for_size`, with erase blocks of at least `block_pages` pages and room for transactions of `txn_pages` pages.
    pub fn with_spare(
        bytes: u64,
        block_pages: u32,
        spare_percent: u64,
        txn_pages: u64,
    ) -> io::Result<FlashGeometry> {
        let logical = bytes.div_ceil(PAGE as u64);
        if logical == 0 || bytes > 128 << 30 || block_pages < 8 {
            return Err(super::invalid(format!(
                "a flash device holds 4 KiB to 128 GiB in blocks of 8 pages and more, not {bytes} bytes in blocks of {block_pages}"
            )));
        }
        let mut g = FlashGeometry {
            logical_pages: logical as u32,
            block_pages,
            blocks: 0,
        };
        loop {
            let per_block = u64::from(g.block_pages);
            // The tables of blocks depend on the number of blocks, by a little.
            g.blocks = (logical * 2 / per_block) as u32 + 64;
            let needed = u64::from(g.reserve()) + 2 * txn_pages;
            let spare = (logical * spare_percent / 100).max(needed);
            let pages = logical + u64::from(g.tables()) + spare;
            g.blocks = pages.div_ceil(per_block) as u32 + ANCHORS;
            let fits = g.block_tables() <= g.block_pages / 2
                && g.root_pages() * 2 <= g.block_pages
                && u64::from(g.pages()) == u64::from(g.blocks) * per_block;
            if fits {
                return Ok(g);
            }
            g.block_pages *= 2;
        }
    }

    /// Bytes that the host sees.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.logical_pages) * PAGE as u64
    }

    /// Bytes that the flash needs on what it lies on.
    pub fn file_bytes(&self) -> u64 {
        PAGE as u64 + u64::from(self.pages()) * SLOT as u64
    }

    pub(super) fn pages(&self) -> u32 {
        self.blocks.saturating_mul(self.block_pages)
    }

    pub(super) fn map_tables(&self) -> u32 {
        self.logical_pages.div_ceil(MAP_ENTRIES)
    }

    pub(super) fn block_tables(&self) -> u32 {
        self.blocks.div_ceil(BLOCK_ENTRIES)
    }

    pub(super) fn tables(&self) -> u32 {
        self.map_tables() + self.block_tables()
    }

    pub(super) fn root_pages(&self) -> u32 {
        (ROOT_HEAD as u32 + self.tables() * 4).div_ceil(PAGE as u32)
    }

    /// Pages that a snapshot can need at most.
    pub(super) fn snapshot_pages(&self) -> u32 {
        self.tables() + self.block_pages
    }

    /// Free pages that nobody but the collector of garbage may use.
    pub(super) fn reserve(&self) -> u32 {
        2 * self.snapshot_pages() + 3 * self.block_pages
    }

    /// Pages that one transaction may write, also when all that the device offers is in use.
    pub(super) fn txn_pages(&self) -> u32 {
        let usable = (self.blocks - ANCHORS) * self.block_pages;
        let spare = usable.saturating_sub(self.logical_pages + self.tables() + self.reserve());
        spare / 2
    }

    pub(super) fn block_of(&self, ppn: u32) -> u32 {
        ppn / self.block_pages
    }

    pub(super) fn offset(&self, ppn: u32) -> u64 {
        PAGE as u64 + u64::from(ppn) * SLOT as u64
    }
}

/// The header: geometry and the device's random number, twice, a sector each.
pub(super) fn encode_header(g: &FlashGeometry, nonce: u64) -> Vec<u8> {
    let mut out = vec![0; PAGE];
    let mut sector = Vec::with_capacity(512);
    sector.extend(FLASH_MAGIC);
    for n in [
        VERSION,
        PAGE as u32,
        g.block_pages,
        g.blocks,
        g.logical_pages,
    ] {
        sector.extend(n.to_le_bytes());
    }
    sector.extend(nonce.to_le_bytes());
    let sum = crc32c::crc32c(&sector);
    sector.extend(sum.to_le_bytes());
    for at in [0, 512] {
        out[at..at + sector.len()].copy_from_slice(&sector);
    }
    out
}

pub(super) fn decode_header(bytes: &[u8]) -> io::Result<(FlashGeometry, u64)> {
    if bytes[..8] != FLASH_MAGIC && bytes[512..520] != FLASH_MAGIC {
        return Err(corrupt("this is no flash file (its magic is missing)"));
    }
    let good = |s: &&[u8]| s[..8] == FLASH_MAGIC && crc32c::crc32c(&s[..36]) == u32_at(s, 36);
    let Some(s) = [&bytes[..512], &bytes[512..1024]].into_iter().find(good) else {
        return Err(corrupt("the flash file's header is damaged"));
    };
    if (u32_at(s, 8), u32_at(s, 12)) != (VERSION, PAGE as u32) {
        return Err(corrupt(
            "the flash file's version is unknown; a newer ccfs may read it",
        ));
    }
    let g = FlashGeometry {
        block_pages: u32_at(s, 16),
        blocks: u32_at(s, 20),
        logical_pages: u32_at(s, 24),
    };
    let pages = u64::from(g.blocks) * u64::from(g.block_pages);
    let sane = g.block_pages >= 8
        && g.blocks > ANCHORS
        && pages < u64::from(TABLE_OWNER)
        && g.logical_pages > 0
        && u64::from(g.logical_pages) < pages
        && g.root_pages() <= g.block_pages
        && g.block_tables() <= g.block_pages;
    match sane {
        true => Ok((g, u64_at(s, 28))),
        false => Err(corrupt("the flash file's header makes no sense")),
    }
}

/// In the reverse map: page of table number `n` is `TABLE_OWNER + n`.
pub(super) const TABLE_OWNER: u32 = 0xF000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Data = 1,
    Record = 2,
    Table = 3,
    Root = 4,
}

/// What a page's out-of-band bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub kind: Kind,
    /// Logical page, table, or which page of a record or root.
    pub index: u32,
    /// Pages of the record or root.
    pub count: u32,
    /// Number of the program: rising over the device's life.
    pub seq: u64,
    /// Number of the commit or snapshot.
    pub group: u64,
    /// Rises with every opening for writing.
    pub epoch: u64,
}

/// Completes a slot whose first `PAGE` bytes are the data.
pub(super) fn seal(slot: &mut [u8], ppn: u32, nonce: u64, tag: &Tag) {
    let oob = &mut slot[PAGE..];
    oob.fill(0);
    oob[..4].copy_from_slice(&TAG_MAGIC.to_le_bytes());
    oob[4..8].copy_from_slice(&(tag.kind as u32).to_le_bytes());
    oob[8..12].copy_from_slice(&tag.index.to_le_bytes());
    oob[12..16].copy_from_slice(&tag.count.to_le_bytes());
    oob[16..24].copy_from_slice(&tag.seq.to_le_bytes());
    oob[24..32].copy_from_slice(&tag.group.to_le_bytes());
    oob[32..40].copy_from_slice(&tag.epoch.to_le_bytes());
    oob[40..48].copy_from_slice(&nonce.to_le_bytes());
    let sum = slot_sum(slot, ppn);
    slot[PAGE + TAG_LEN..PAGE + TAG_LEN + 4].copy_from_slice(&sum.to_le_bytes());
}

fn slot_sum(slot: &[u8], ppn: u32) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&slot[..PAGE + TAG_LEN]), &ppn.to_le_bytes())
}

/// The tag of an intact page.
pub(super) fn open(slot: &[u8], ppn: u32, nonce: u64) -> Option<Tag> {
    let oob = &slot[PAGE..];
    if u32_at(oob, 0) != TAG_MAGIC
        || u64_at(oob, 40) != nonce
        || u32_at(oob, TAG_LEN) != slot_sum(slot, ppn)
    {
        return None;
    }
    let kind = match u32_at(oob, 4) {
        1 => Kind::Data,
        2 => Kind::Record,
        3 => Kind::Table,
        4 => Kind::Root,
        _ => return None,
    };
    Some(Tag {
        kind,
        index: u32_at(oob, 8),
        count: u32_at(oob, 12),
        seq: u64_at(oob, 16),
        group: u64_at(oob, 24),
        epoch: u64_at(oob, 32),
    })
}

/// One line of a commit's list (the X-L2P table).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The logical page is this flash page, programmed as number `seq`.
    At { lpn: u32, ppn: u32, seq: u64 },
    /// So many logical pages hold nothing any more.
    Gone { lpn: u32, len: u64 },
}

/// Pages of records that so many entries need.
pub(super) fn record_pages(entries: usize) -> u32 {
    entries.div_ceil(RECORD_ENTRIES).max(1) as u32
}

/// A commit's list as pages. `durable`: the last commit that is known to be flushed; `root`: the last snapshot, which is.
pub(super) fn encode_record(entries: &[Entry], durable: u64, root: u64) -> Vec<Vec<u8>> {
    let chunks = entries.chunks(RECORD_ENTRIES);
    chunks
        .map(|chunk| {
            let mut page = Vec::with_capacity(PAGE);
            page.extend(durable.to_le_bytes());
            page.extend((chunk.len() as u32).to_le_bytes());
            page.extend((root as u32).to_le_bytes());
            for entry in chunk {
                let (lpn, ppn, n) = match *entry {
                    Entry::At { lpn, ppn, seq } => (lpn, ppn, seq),
                    Entry::Gone { lpn, len } => (lpn, NONE, len),
                };
                page.extend(lpn.to_le_bytes());
                page.extend(ppn.to_le_bytes());
                page.extend(n.to_le_bytes());
            }
            page.resize(PAGE, 0);
            page
        })
        .collect()
}

/// The last durable commit, the last root (its low bits), and the entries, of one page of a record.
pub(super) fn decode_record(page: &[u8]) -> io::Result<(u64, u32, Vec<Entry>)> {
    let count = u32_at(page, 8) as usize;
    if count > RECORD_ENTRIES {
        return Err(corrupt("a commit's record does not parse"));
    }
    let entry = |i: usize| {
        let at = RECORD_HEAD + i * 16;
        let (lpn, ppn, n) = (u32_at(page, at), u32_at(page, at + 4), u64_at(page, at + 8));
        match ppn {
            NONE => Entry::Gone { lpn, len: n },
            _ => Entry::At { lpn, ppn, seq: n },
        }
    };
    Ok((
        u64_at(page, 0),
        u32_at(page, 12),
        (0..count).map(entry).collect(),
    ))
}

/// What a snapshot says besides the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Root {
    /// All commits up to here are in the tables.
    pub commits: u64,
    /// The next program's number.
    pub seq: u64,
    /// Block being filled (or `NONE`), and its next page.
    pub active: u32,
    pub next: u32,
    pub erases: [u32; ANCHORS as usize],
    /// Pages programmed, erases, pages written by the host: since the device was made.
    pub life: [u64; 3],
    /// Where each page of the tables lies.
    pub tables: Vec<u32>,
}

impl Root {
    pub fn encode(&self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        out.extend(self.commits.to_le_bytes());
        out.extend(self.seq.to_le_bytes());
        for n in [self.active, self.next, self.erases[0], self.erases[1]] {
            out.extend(n.to_le_bytes());
        }
        for n in self.life {
            out.extend(n.to_le_bytes());
        }
        out.resize(ROOT_HEAD, 0);
        for ppn in &self.tables {
            out.extend(ppn.to_le_bytes());
        }
        let pages = out.chunks(PAGE);
        pages
            .map(|p| {
                let mut page = p.to_vec();
                page.resize(PAGE, 0);
                page
            })
            .collect()
    }

    pub fn decode(bytes: &[u8], tables: u32) -> Root {
        Root {
            commits: u64_at(bytes, 0),
            seq: u64_at(bytes, 8),
            active: u32_at(bytes, 16),
            next: u32_at(bytes, 20),
            erases: [u32_at(bytes, 24), u32_at(bytes, 28)],
            life: [32, 40, 48].map(|at| u64_at(bytes, at)),
            tables: (0..tables as usize)
                .map(|i| u32_at(bytes, ROOT_HEAD + i * 4))
                .collect(),
        }
    }
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub(super) fn corrupt(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_good_only_in_its_place_and_whole() {
        let tag = Tag {
            kind: Kind::Data,
            index: 7,
            count: 0,
            seq: 9,
            group: 3,
            epoch: 1,
        };
        let mut slot = vec![5; SLOT];
        seal(&mut slot, 11, 42, &tag);
        assert_eq!(open(&slot, 11, 42), Some(tag));
        assert_eq!((open(&slot, 12, 42), open(&slot, 11, 43)), (None, None));
        for byte in [0, 511, 512, PAGE - 1, PAGE, PAGE + 20, PAGE + 48] {
            let mut torn = slot.clone();
            torn[byte] ^= 1;
            assert_eq!(open(&torn, 11, 42), None, "byte {byte}");
        }
    }

    #[test]
    fn records_roots_and_headers_survive_encoding() {
        let entries: Vec<Entry> = (0..600)
            .map(|n| match n % 3 {
                0 => Entry::Gone { lpn: n, len: 4 },
                _ => Entry::At {
                    lpn: n,
                    ppn: n + 1,
                    seq: u64::from(n) << 33,
                },
            })
            .collect();
        let pages = encode_record(&entries, 17, 3);
        assert_eq!(pages.len() as u32, record_pages(entries.len()));
        let back: Vec<_> = pages.iter().map(|p| decode_record(p).unwrap()).collect();
        assert!(back.iter().all(|b| (b.0, b.1) == (17, 3)));
        assert_eq!(
            back.into_iter().flat_map(|b| b.2).collect::<Vec<_>>(),
            entries
        );
        let root = Root {
            commits: 3,
            seq: 1 << 40,
            active: NONE,
            next: 2,
            erases: [4, 5],
            life: [6, 7, 8],
            tables: (0..3000).collect(),
        };
        assert_eq!(Root::decode(&root.encode().concat(), 3000), root);
        for bytes in [1, 1 << 20, 1 << 30, 128 << 30] {
            let g = FlashGeometry::for_size(bytes, 12).unwrap();
            assert!(g.txn_pages() >= 4000, "{g:?}");
            let header = encode_header(&g, 5);
            assert_eq!(decode_header(&header).unwrap(), (g, 5));
            let mut half = header.clone();
            half[..512].fill(0);
            assert_eq!(decode_header(&half).unwrap(), (g, 5));
            half[540] ^= 1;
            assert!(decode_header(&half).is_err());
        }
        assert!(FlashGeometry::for_size(0, 12).is_err());
        assert!(FlashGeometry::for_size(1 << 40, 12).is_err());
    }
}
