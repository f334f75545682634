//! Directory blocks (ext4 documentation, "Linear (Classic) Directories"): records that fill the block, each with an inode
//! number (0: free), its length, a name and a type byte. On volumes with metadata checksums the last 12 bytes look like a
//! free record and hold the checksum.

use crate::{Error, Result, inode};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Type byte of a record whose type is not told, as on volumes without `filetype`. The others follow.
pub const TYPE_UNKNOWN: u8 = 0;
/// A regular file.
pub const TYPE_FILE: u8 = 1;
/// A directory.
pub const TYPE_DIR: u8 = 2;
/// A character device.
pub const TYPE_CHAR_DEVICE: u8 = 3;
/// A block device.
pub const TYPE_BLOCK_DEVICE: u8 = 4;
/// A FIFO.
pub const TYPE_FIFO: u8 = 5;
/// A socket.
pub const TYPE_SOCKET: u8 = 6;
/// A symbolic link.
pub const TYPE_SYMLINK: u8 = 7;

/// The type byte for an inode of this mode.
pub fn type_of(mode: u16) -> u8 {
    match inode::file_type(mode) {
        inode::S_IFREG => TYPE_FILE,
        inode::S_IFDIR => TYPE_DIR,
        inode::S_IFCHR => TYPE_CHAR_DEVICE,
        inode::S_IFBLK => TYPE_BLOCK_DEVICE,
        inode::S_IFIFO => TYPE_FIFO,
        inode::S_IFSOCK => TYPE_SOCKET,
        inode::S_IFLNK => TYPE_SYMLINK,
        _ => TYPE_UNKNOWN,
    }
}

/// Bytes of a record before its name.
pub const HEADER: usize = 8;
/// Bytes of the record that holds the checksum.
pub const TAIL: usize = 12;
/// Shortest record: one character.
const MIN_RECORD: usize = 12;
/// The type byte of the checksum's record.
const TAIL_TYPE: u8 = 0xde;

/// A record's first 8 bytes (`ext4_dir_entry_2`; without the feature `filetype` the type byte is the high half of the name's length).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    ino: U32,
    rec_len: U16,
    name_len: u8,
    ftype: u8,
}
const _: () = assert!(size_of::<RawHeader>() == HEADER);

/// The checksum's record (`ext4_dir_entry_tail`).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTail {
    zero_ino: U32,
    rec_len: U16,
    zero_name_len: u8,
    ftype: u8,
    checksum: U32,
}
const _: () = assert!(size_of::<RawTail>() == TAIL);

/// What the volume says about all directory blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirFormat {
    /// Bytes.
    pub block_size: usize,
    /// Feature `filetype`.
    pub filetype: bool,
    /// Feature `metadata_csum`: blocks end with a checksum.
    pub csum: bool,
    /// Largest inode number that an entry may name.
    pub inodes_count: u32,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Byte offset in the block.
    pub offset: usize,
    /// Bytes up to the next record.
    pub rec_len: usize,
    /// 0: the record is free.
    pub ino: u32,
    /// 0 on volumes without `filetype`.
    pub ftype: u8,
    /// The name as it lies there; [`Entry::check_name`] says whether it can be one.
    pub name: &'a [u8],
}

impl Entry<'_> {
    /// An error where the name has characters that no name can have. Not part of the check of every record, because
    /// a search never finds such a name; whoever gives names out calls it.
    pub fn check_name(&self) -> Result<()> {
        if valid_name(self.name) {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "directory entry at byte {} has an impossible name",
            self.offset
        )))
    }
}

/// A checked record's numbers.
#[derive(Clone, Copy)]
struct Record {
    offset: usize,
    rec_len: usize,
    ino: u32,
    ftype: u8,
    name_len: usize,
}

impl Record {
    #[inline(always)]
    fn is(&self, block: &[u8], name: &[u8]) -> bool {
        if self.name_len != name.len() || self.ino == 0 {
            return false;
        }
        let own = self.entry(block).name;
        // Names that are alike mostly differ at the end.
        own.last() == name.last() && own == name
    }

    /// Bytes that a new record could take from this one.
    #[inline(always)]
    fn spare(&self) -> usize {
        if self.ino == 0 {
            self.rec_len
        } else {
            self.rec_len - record_size(self.name_len)
        }
    }

    #[inline(always)]
    fn entry<'a>(&self, block: &'a [u8]) -> Entry<'a> {
        let start = self.offset + HEADER;
        Entry {
            offset: self.offset,
            rec_len: self.rec_len,
            ino: self.ino,
            ftype: self.ftype,
            name: &block[start..start + self.name_len],
        }
    }
}

/// A record with room for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    offset: usize,
    rec_len: usize,
    spare: usize,
}

/// Bytes that a record with a name of `name_len` bytes needs.
#[inline(always)]
pub fn record_size(name_len: usize) -> usize {
    (HEADER + name_len + 3) & !3
}

/// True when a name can be stored: 1 to 255 bytes without `/` and NUL.
pub fn valid_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.iter().any(|&c| c == 0 || c == b'/')
}

/// Decodes a record length: 64 KiB blocks use 0 and 65535 for a whole block and keep bits 16 and 17 in the lowest two.
#[inline(always)]
pub fn decode_rec_len(raw: u16, block_size: usize) -> usize {
    let raw = usize::from(raw);
    match (block_size < 65536, raw) {
        (true, _) => raw,
        (false, 0 | 65535) => block_size,
        (false, _) => (raw & 0xfffc) | ((raw & 3) << 16),
    }
}

/// Encodes a record length (a multiple of 4, at most the block size).
pub fn encode_rec_len(len: usize, block_size: usize) -> u16 {
    if len < 65536 {
        len as u16
    } else if len == block_size {
        if block_size == 65536 { 65535 } else { 0 }
    } else {
        ((len & 0xfffc) | ((len >> 16) & 3)) as u16
    }
}

fn header(block: &[u8], offset: usize) -> Option<RawHeader> {
    RawHeader::read_from_prefix(block.get(offset..)?)
        .ok()
        .map(|(raw, _)| raw)
}

impl DirFormat {
    /// Where the records of a leaf end.
    pub fn end(&self) -> usize {
        if self.csum {
            self.block_size - TAIL
        } else {
            self.block_size
        }
    }

    /// The records of a leaf in order. After an error the iterator ends.
    pub fn entries<'a>(&self, block: &'a [u8]) -> Entries<'a> {
        Entries {
            format: *self,
            block,
            end: self.end(),
            offset: 0,
        }
    }

    /// The records of a block of an index (without checksum record), as programs without knowledge of hash trees see them.
    pub fn entries_of_index<'a>(&self, block: &'a [u8]) -> Entries<'a> {
        Entries {
            format: *self,
            block,
            end: self.block_size,
            offset: 0,
        }
    }

    /// Decodes the record at `offset`, which is below `end`. `None`: it is damaged.
    #[inline(always)]
    fn record(&self, block: &[u8], offset: usize, end: usize) -> Option<Record> {
        let head: &[u8; HEADER] = block.get(offset..)?.first_chunk()?;
        let head = u64::from_le_bytes(*head);
        let ino = head as u32;
        let rec_len = decode_rec_len((head >> 32) as u16, self.block_size);
        let (name_len, ftype) = if self.filetype {
            ((head >> 48) as usize & 0xff, (head >> 56) as u8)
        } else {
            ((head >> 48) as usize, 0)
        };
        let bad = rec_len < MIN_RECORD
            || rec_len & 3 != 0
            || rec_len > end - offset
            || name_len > NAME_MAX
            || HEADER + name_len > rec_len
            || ino > self.inodes_count
            || (ino != 0 && name_len == 0);
        (!bad).then_some(Record {
            offset,
            rec_len,
            ino,
            ftype,
            name_len,
        })
    }

    /// What is wrong with a record that `record` did not accept.
    #[cold]
    fn damage(&self, block: &[u8], offset: usize, end: usize) -> Error {
        let what = match header(block, offset) {
            None => "overruns the block",
            Some(raw) => {
                let rec_len = decode_rec_len(raw.rec_len.get(), self.block_size);
                if rec_len < MIN_RECORD || rec_len & 3 != 0 {
                    "has an impossible length"
                } else if rec_len > end.saturating_sub(offset) {
                    "overruns the block"
                } else if raw.ino.get() > self.inodes_count {
                    "names an inode that the volume does not have"
                } else {
                    "has a name of impossible length"
                }
            }
        };
        Error::corrupt(format!("directory entry at byte {offset} {what}"))
    }

    /// Calls `f` with the records of a leaf until it returns false.
    #[inline(always)]
    fn walk(&self, block: &[u8], mut f: impl FnMut(&Record) -> bool) -> Result<()> {
        let (mut offset, end) = (0, self.end());
        while offset < end {
            let Some(record) = self.record(block, offset, end) else {
                return Err(self.damage(block, offset, end));
            };
            if !f(&record) {
                break;
            }
            offset += record.rec_len;
        }
        Ok(())
    }

    fn put(
        &self,
        block: &mut [u8],
        offset: usize,
        rec_len: usize,
        ino: u32,
        ftype: u8,
        name: &[u8],
    ) {
        let raw = RawHeader {
            ino: U32::new(ino),
            rec_len: U16::new(encode_rec_len(rec_len, self.block_size)),
            name_len: name.len() as u8,
            ftype: if self.filetype { ftype } else { 0 },
        };
        block[offset..offset + HEADER].copy_from_slice(raw.as_bytes());
        let end = offset + HEADER + name.len();
        block[offset + HEADER..end].copy_from_slice(name);
        block[end..offset + record_size(name.len()).max(HEADER)].fill(0);
    }

    fn put_rec_len(&self, block: &mut [u8], offset: usize, rec_len: usize) {
        block[offset + 4..offset + 6]
            .copy_from_slice(&encode_rec_len(rec_len, self.block_size).to_le_bytes());
    }

    /// Makes a leaf without entries.
    pub fn init_empty(&self, block: &mut [u8]) {
        block.fill(0);
        self.put(block, 0, self.end(), 0, 0, b"");
        self.init_tail(block);
    }

    /// Makes the first block of a new directory: `.` and `..`.
    pub fn init_dots(&self, block: &mut [u8], dir: u32, parent: u32) {
        const DIRECTORY: u8 = 2;
        block.fill(0);
        self.put(block, 0, MIN_RECORD, dir, DIRECTORY, b".");
        self.put(
            block,
            MIN_RECORD,
            self.end() - MIN_RECORD,
            parent,
            DIRECTORY,
            b"..",
        );
        self.init_tail(block);
    }

    /// Writes the empty checksum record, where the volume has one.
    pub fn init_tail(&self, block: &mut [u8]) {
        if self.csum {
            let tail = RawTail {
                zero_ino: U32::ZERO,
                rec_len: U16::new(TAIL as u16),
                zero_name_len: 0,
                ftype: TAIL_TYPE,
                checksum: U32::ZERO,
            };
            block[self.end()..].copy_from_slice(tail.as_bytes());
        }
    }

    /// Finds a name in a leaf. The block is checked only up to the entry found.
    pub fn find<'a>(&self, block: &'a [u8], name: &[u8]) -> Result<Option<Entry<'a>>> {
        let mut found = None;
        self.walk(block, |record| {
            if record.is(block, name) {
                found = Some(record.entry(block));
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Bytes of the largest record that `insert` could place in this leaf.
    pub fn max_free(&self, block: &[u8]) -> Result<usize> {
        let mut max = 0;
        self.walk(block, |record| {
            max = record.spare().max(max);
            true
        })?;
        Ok(max)
    }

    /// Looks for a name, and for the first place where it could be put if it is absent: both in one pass.
    pub fn survey<'a>(
        &self,
        block: &'a [u8],
        name: &[u8],
    ) -> Result<(Option<Entry<'a>>, Option<Room>)> {
        let need = record_size(name.len());
        let (mut found, mut room) = (None, None);
        self.walk(block, |record| {
            if record.is(block, name) {
                found = Some(record.entry(block));
            }
            if room.is_none() && record.spare() >= need {
                room = Some(Room {
                    offset: record.offset,
                    rec_len: record.rec_len,
                    spare: record.spare(),
                });
            }
            found.is_none()
        })?;
        Ok((found, room))
    }

    /// Puts a new name into the first record with room. False: no room. The caller has checked that the name is absent and valid.
    pub fn insert(&self, block: &mut [u8], name: &[u8], ino: u32, ftype: u8) -> Result<bool> {
        match self.survey(block, name)?.1 {
            Some(room) => self.insert_at(block, room, name, ino, ftype).map(|()| true),
            None => Ok(false),
        }
    }

    /// Puts a new name where `survey` found room in this very block. `Corrupt` when the block was changed since.
    pub fn insert_at(
        &self,
        block: &mut [u8],
        room: Room,
        name: &[u8],
        ino: u32,
        ftype: u8,
    ) -> Result<()> {
        let now = self.record(block, room.offset, self.end());
        if now.is_none_or(|r| r.rec_len != room.rec_len || r.spare() != room.spare)
            || room.spare < record_size(name.len())
        {
            return Err(Error::corrupt(
                "a directory block changed during an insertion".into(),
            ));
        }
        let used = room.rec_len - room.spare;
        if used > 0 {
            self.put_rec_len(block, room.offset, used);
        }
        self.put(block, room.offset + used, room.spare, ino, ftype, name);
        Ok(())
    }

    /// Gives the entry at `offset` another inode.
    pub fn replace(&self, block: &mut [u8], offset: usize, ino: u32, ftype: u8) {
        block[offset..offset + 4].copy_from_slice(&ino.to_le_bytes());
        if self.filetype {
            block[offset + 7] = ftype;
        }
    }

    /// Removes a name from a leaf: its room goes to the record before it, or it becomes a free record where it is the first.
    pub fn remove(&self, block: &mut [u8], name: &[u8]) -> Result<bool> {
        let mut before: Option<(usize, usize)> = None;
        let mut found = None;
        self.walk(block, |record| {
            let place = (record.offset, record.rec_len);
            if record.is(block, name) {
                found = Some(place);
            } else {
                before = Some(place);
            }
            found.is_none()
        })?;
        let Some((offset, rec_len)) = found else {
            return Ok(false);
        };
        match before {
            Some((at, len)) => {
                // No part of a removed name stays on the volume.
                block[offset..offset + rec_len].fill(0);
                self.put_rec_len(block, at, len + rec_len);
            }
            None => {
                block[offset..offset + rec_len].fill(0);
                self.put(block, offset, rec_len, 0, 0, b"");
            }
        }
        Ok(true)
    }

    /// Fills a leaf with the given entries (name, inode, type), packed. `None`: they do not fit.
    pub fn pack<'a>(
        &self,
        block: &mut [u8],
        entries: impl Iterator<Item = (&'a [u8], u32, u8)>,
    ) -> Option<()> {
        self.init_empty(block);
        let (mut offset, mut last) = (0, 0);
        for (name, ino, ftype) in entries {
            let size = record_size(name.len());
            if offset + size > self.end() {
                return None;
            }
            self.put(block, offset, size, ino, ftype, name);
            last = offset;
            offset += size;
        }
        self.put_rec_len(block, last, self.end() - last);
        Some(())
    }

    /// Where the checksum lies, if the block ends with a proper checksum record.
    fn tail_at(&self, block: &[u8]) -> Option<usize> {
        let (tail, _) = RawTail::read_from_prefix(block.get(self.end()..)?).ok()?;
        let proper = tail.zero_ino.get() == 0
            && tail.rec_len.get() == TAIL as u16
            && tail.zero_name_len == 0
            && tail.ftype == TAIL_TYPE;
        proper.then_some(self.end() + 8)
    }

    /// Is a leaf's checksum right? `seed` is the directory inode's (volume, number, generation). True without the feature.
    pub fn csum_ok(&self, block: &[u8], seed: u32) -> bool {
        if !self.csum {
            return true;
        }
        let Some(at) = self.tail_at(block) else {
            return false;
        };
        block[at..at + 4] == raw_crc32c(seed, &block[..self.end()]).to_le_bytes()
    }

    /// Writes a leaf's checksum.
    pub fn set_csum(&self, block: &mut [u8], seed: u32) {
        if self.csum {
            let sum = raw_crc32c(seed, &block[..self.end()]);
            let at = self.end() + 8;
            block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// ext4's CRC: CRC-32C continued from `seed`, without the final inversion.
pub(crate) fn raw_crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Iterator over a block's records; every record is checked before it is given out.
#[derive(Clone)]
pub struct Entries<'a> {
    format: DirFormat,
    block: &'a [u8],
    end: usize,
    offset: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.end {
            return None;
        }
        let offset = self.offset;
        match self.format.record(self.block, offset, self.end) {
            Some(record) => {
                self.offset += record.rec_len;
                Some(Ok(record.entry(self.block)))
            }
            None => {
                self.offset = self.end;
                Some(Err(self.format.damage(self.block, offset, self.end)))
            }
        }
    }
}
