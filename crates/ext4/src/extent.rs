//! Nodes of extent trees. Source: Documentation/filesystems/ext4/ifork.rst ("Extent Tree").

use crate::checksum::crc32c;

/// `eh_magic`: the first two bytes of every node.
pub const MAGIC: u16 = 0xF30A;
/// Deepest tree that the kernel makes.
pub const MAX_DEPTH: u16 = 5;
/// First block number that no file reaches: block numbers of files have 32 bits.
pub const LBLK_END: u64 = 1 << 32;
/// Bytes of a node's header (`ext4_extent_header`).
pub const HEADER: usize = 12;
/// Bytes of an entry, of a leaf (`ext4_extent`) or of an inner node (`ext4_extent_idx`).
pub const ENTRY: usize = 12;
/// Longest extent, in blocks.
pub const MAX_LEN: u32 = 32768;
/// Longest uninitialised extent, in blocks: `ee_len` above `MAX_LEN` says that it is one.
pub const MAX_UNWRITTEN_LEN: u32 = 32767;

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block, counted within the file.
    pub lblk: u32,
    /// Number of blocks, at least 1.
    pub len: u32,
    /// First block, counted within the volume.
    pub pblk: u64,
    /// Allocated but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// First block of the file after it.
    pub fn end(&self) -> u64 {
        u64::from(self.lblk) + u64::from(self.len)
    }
    /// The most blocks that `ee_len` can say.
    pub fn max_len(unwritten: bool) -> u32 {
        if unwritten {
            MAX_UNWRITTEN_LEN
        } else {
            MAX_LEN
        }
    }
    /// Can `next` be appended to this one without becoming too long?
    pub fn joins(&self, next: &Extent) -> bool {
        self.unwritten == next.unwritten
            && self.end() == u64::from(next.lblk)
            && self.pblk + u64::from(self.len) == next.pblk
            && self.len + next.len <= Self::max_len(self.unwritten)
    }
    /// The part of it from `from` up to (not including) `to`, block numbers of the file inside of it.
    pub fn part(&self, from: u64, to: u64) -> Extent {
        let skip = from - u64::from(self.lblk);
        Extent {
            lblk: from as u32,
            len: (to - from) as u32,
            pblk: self.pblk + skip,
            unwritten: self.unwritten,
        }
    }
}

/// An entry of an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// First block of the file below this entry (`ei_block`).
    pub lblk: u32,
    /// Block of the volume that holds the child node (`ei_leaf`).
    pub pblk: u64,
}

fn half(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The bytes of a node: the 60 of `i_block` or a block. Header fields are trusted only after `check`.
#[derive(Clone, Copy)]
pub struct Node<'a>(pub &'a [u8]);

impl Node<'_> {
    /// Entries in use (`eh_entries`).
    pub fn count(&self) -> usize {
        usize::from(half(self.0, 2))
    }
    /// Entries that the node has room for (`eh_max`).
    pub fn max(&self) -> usize {
        usize::from(half(self.0, 4))
    }
    /// Levels below this node; 0 is a leaf (`eh_depth`).
    pub fn depth(&self) -> u16 {
        half(self.0, 6)
    }
    fn at(i: usize) -> usize {
        HEADER + i * ENTRY
    }
    /// First block of the file that entry `i` covers (leaf or inner).
    pub fn key(&self, i: usize) -> u32 {
        word(self.0, Self::at(i))
    }
    /// Entry `i` of a leaf. Panics where `i` lies outside of the node's bytes.
    pub fn extent(&self, i: usize) -> Extent {
        let at = Self::at(i);
        let raw = half(self.0, at + 4);
        let unwritten = raw > MAX_LEN as u16;
        let len = if unwritten { raw - MAX_LEN as u16 } else { raw };
        let pblk = u64::from(word(self.0, at + 8)) | u64::from(half(self.0, at + 6)) << 32;
        Extent {
            lblk: word(self.0, at),
            len: u32::from(len),
            pblk,
            unwritten,
        }
    }
    /// Entry `i` of an inner node. Panics where `i` lies outside of the node's bytes.
    pub fn index(&self, i: usize) -> Index {
        let at = Self::at(i);
        let pblk = u64::from(word(self.0, at + 4)) | u64::from(half(self.0, at + 8)) << 32;
        Index {
            lblk: word(self.0, at),
            pblk,
        }
    }
    /// Number of entries whose key is at most `lblk`; the entry before is the one that may cover it.
    pub fn upper_bound(&self, lblk: u64) -> usize {
        let (mut lo, mut hi) = (0, self.count());
        // Appends look behind the last entry.
        if hi > 0 && u64::from(self.key(hi - 1)) <= lblk {
            return hi;
        }
        while lo < hi {
            let mid = (lo + hi) / 2;
            if u64::from(self.key(mid)) <= lblk {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        lo
    }

    /// Checks header, order and overlaps. `range` is where the parent says the node's keys lie, `pblk_ok(first, len)` whether
    /// blocks may belong to a file.
    pub fn check(
        &self,
        depth: Option<u16>,
        range: std::ops::Range<u64>,
        pblk_ok: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(), &'static str> {
        let room = (self.0.len() - HEADER) / ENTRY;
        if half(self.0, 0) != MAGIC {
            return Err("magic number");
        }
        if self.max() == 0 || self.max() > room || self.count() > self.max() {
            return Err("number of entries");
        }
        if self.depth() > MAX_DEPTH || depth.is_some_and(|d| d != self.depth()) {
            return Err("depth");
        }
        // Only a root may be empty, and only as a leaf.
        if self.count() == 0 && (depth.is_some() || self.depth() > 0) {
            return Err("empty node");
        }
        let mut next = range.start;
        for i in 0..self.count() {
            if u64::from(self.key(i)) < next || u64::from(self.key(i)) >= range.end {
                return Err("order of entries");
            }
            if self.depth() > 0 {
                next = u64::from(self.key(i)) + 1;
                if !pblk_ok(self.index(i).pblk, 1) {
                    return Err("block number of a node");
                }
                continue;
            }
            let e = self.extent(i);
            next = e.end();
            if e.len == 0 || next > range.end {
                return Err("length of an extent");
            }
            if !pblk_ok(e.pblk, u64::from(e.len)) {
                return Err("block number of an extent");
            }
        }
        Ok(())
    }
}

fn set_half(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_le_bytes());
}
fn set_word(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

/// Writes an empty node's header.
pub fn init(b: &mut [u8], depth: u16, max: usize) {
    set_half(b, 0, MAGIC);
    set_half(b, 2, 0);
    set_half(b, 4, max as u16);
    set_half(b, 6, depth);
    set_word(b, 8, 0);
}

/// Entries that fit into a block, the checksum's four bytes behind them. The same with and without checksums.
pub fn block_max(block_size: usize) -> usize {
    (block_size - HEADER) / ENTRY
}
/// Entries of the root in `i_block`.
pub const ROOT_MAX: usize = 4;

/// Writes `eh_entries`.
pub fn set_count(b: &mut [u8], n: usize) {
    set_half(b, 2, n as u16);
}
/// Writes `eh_depth`.
pub fn set_depth(b: &mut [u8], depth: u16) {
    set_half(b, 6, depth);
}
/// Writes the first block of the file that entry `i` covers (leaf or inner).
pub fn set_key(b: &mut [u8], i: usize, lblk: u32) {
    set_word(b, Node::at(i), lblk);
}
/// Writes entry `i` of a leaf.
pub fn put_extent(b: &mut [u8], i: usize, e: &Extent) {
    let at = Node::at(i);
    set_word(b, at, e.lblk);
    set_half(
        b,
        at + 4,
        (e.len + if e.unwritten { MAX_LEN } else { 0 }) as u16,
    );
    set_half(b, at + 6, (e.pblk >> 32) as u16);
    set_word(b, at + 8, e.pblk as u32);
}
/// Writes entry `i` of an inner node.
pub fn put_index(b: &mut [u8], i: usize, x: &Index) {
    let at = Node::at(i);
    set_word(b, at, x.lblk);
    set_word(b, at + 4, x.pblk as u32);
    set_half(b, at + 8, (x.pblk >> 32) as u16);
    set_half(b, at + 10, 0);
}
/// Makes room for an entry at `i`; the caller has checked that there is some.
pub fn open_gap(b: &mut [u8], i: usize) {
    let n = Node(b).count();
    b.copy_within(Node::at(i)..Node::at(n), Node::at(i + 1));
    set_count(b, n + 1);
}
/// Removes entries `from..to`.
pub fn remove(b: &mut [u8], from: usize, to: usize) {
    let n = Node(b).count();
    b.copy_within(Node::at(to)..Node::at(n), Node::at(from));
    set_count(b, n - (to - from));
}
/// The bytes of the entries `from..`.
pub fn tail_entries(b: &[u8], from: usize) -> &[u8] {
    &b[Node::at(from)..Node::at(Node(b).count())]
}
/// Appends raw entries.
pub fn append_entries(b: &mut [u8], entries: &[u8]) {
    let n = Node(b).count();
    b[Node::at(n)..Node::at(n) + entries.len()].copy_from_slice(entries);
    set_count(b, n + entries.len() / ENTRY);
}

/// Where the checksum of a node in a block lies; `None` if the header is impossible.
fn tail_at(b: &[u8]) -> Option<usize> {
    let at = HEADER + Node(b).max() * ENTRY;
    (at + 4 <= b.len()).then_some(at)
}
/// Is the checksum of a node in a block right? `seed` is the inode's.
pub fn checksum_ok(b: &[u8], seed: u32) -> bool {
    tail_at(b).is_some_and(|at| word(b, at) == crc32c(seed, &b[..at]))
}
/// Makes the checksum right.
pub fn seal(b: &mut [u8], seed: u32) {
    if let Some(at) = tail_at(b) {
        let c = crc32c(seed, &b[..at]);
        set_word(b, at, c);
    }
}
