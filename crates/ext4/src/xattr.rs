//! Extended attributes (ext4 documentation, "Extended Attributes"): a list of entries that grows up and values that grow
//! down, in the rest of a large inode or in one block. Values in inodes of their own (`ea_inode`) are refused.

use crate::dirent::raw_crc32c;
use crate::{Error, Result};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of both forms.
const MAGIC: u32 = 0xea02_0000;
/// Word that ends the entries.
const END: usize = 4;
/// Header of the form in the inode.
const BODY_HEADER: usize = 4;
/// Longest name behind the prefix that the index stands for.
pub const NAME_MAX: usize = 255;

/// First bytes of an attribute block (`ext4_xattr_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    refcount: U32,
    blocks: U32,
    hash: U32,
    checksum: U32,
    reserved: [U32; 3],
}
const HEADER: usize = size_of::<RawHeader>();
const _: () = assert!(HEADER == 32);
/// Where the checksum lies in the header.
const CHECKSUM: usize = 16;

/// An entry without its name (`ext4_xattr_entry`).
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    name_len: u8,
    name_index: u8,
    value_offset: U16,
    value_inode: U32,
    value_size: U32,
    hash: U32,
}
const ENTRY: usize = size_of::<RawEntry>();
const _: () = assert!(ENTRY == 16);

/// An attribute: ext4's name index, the name behind its prefix, the value.
pub type Attr = (u8, Vec<u8>, Vec<u8>);

/// An attribute in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrRef<'a> {
    /// `e_name_index`: the prefix of the name, as a number.
    pub index: u8,
    /// The name behind the prefix.
    pub name: &'a [u8],
    /// The value; may be empty.
    pub value: &'a [u8],
}

fn padded(len: usize) -> usize {
    (len + 3) & !3
}

/// Bytes that an attribute takes in either form.
fn cost(attr: &Attr) -> usize {
    padded(ENTRY + attr.1.len()) + padded(attr.2.len())
}

/// Reads entries from `start`; value offsets count from `base`.
fn parse(region: &[u8], start: usize, base: usize) -> Result<Vec<AttrRef<'_>>> {
    let bad = |what: &str| Error::corrupt(format!("extended attribute {what}"));
    let mut out = Vec::new();
    let (mut at, mut lowest) = (start, region.len());
    loop {
        let rest = region.get(at..).unwrap_or(&[]);
        if rest.get(..END).ok_or_else(|| bad("list without end"))? == [0; END] {
            break;
        }
        let (raw, tail) = RawEntry::read_from_prefix(rest).map_err(|_| bad("overruns its list"))?;
        let name = tail
            .get(..usize::from(raw.name_len))
            .ok_or_else(|| bad("overruns its list"))?;
        if raw.value_inode.get() != 0 {
            return Err(Error::Refused(
                "extended attributes in inodes of their own (ea_inode) are not supported".into(),
            ));
        }
        let (offset, size) = (
            base + usize::from(raw.value_offset.get()),
            raw.value_size.get() as usize,
        );
        let value: &[u8] = if size == 0 {
            &[]
        } else {
            lowest = lowest.min(offset);
            let end = offset
                .checked_add(size)
                .ok_or_else(|| bad("has an impossible value"))?;
            region
                .get(offset..end)
                .ok_or_else(|| bad("has its value outside"))?
        };
        out.push(AttrRef {
            index: raw.name_index,
            name,
            value,
        });
        at += padded(ENTRY + name.len());
    }
    if lowest < at + END {
        return Err(bad("has its value among the names"));
    }
    Ok(out)
}

/// The attributes in an inode; `body` is what follows the inode's fields (i_extra_isize included).
pub fn body_attrs(body: &[u8]) -> Result<Vec<AttrRef<'_>>> {
    if body.len() < BODY_HEADER || body[..BODY_HEADER] != MAGIC.to_le_bytes() {
        return Ok(Vec::new());
    }
    parse(body, BODY_HEADER, BODY_HEADER)
}

fn header(block: &[u8]) -> Result<RawHeader> {
    match RawHeader::read_from_prefix(block) {
        Ok((raw, _))
            if raw.magic.get() == MAGIC && raw.blocks.get() == 1 && raw.refcount.get() > 0 =>
        {
            Ok(raw)
        }
        _ => Err(Error::corrupt(
            "attribute block without a proper header".into(),
        )),
    }
}

/// The attributes in a block.
pub fn block_attrs(block: &[u8]) -> Result<Vec<AttrRef<'_>>> {
    header(block)?;
    parse(block, HEADER, 0)
}

/// Number of inodes that use a block.
pub fn refcount(block: &[u8]) -> Result<u32> {
    header(block).map(|raw| raw.refcount.get())
}

/// Changes the number of inodes that use a block; the checksum must be set afterwards.
pub fn set_refcount(block: &mut [u8], count: u32) {
    block[4..8].copy_from_slice(&count.to_le_bytes());
}

/// An entry's hash over name and value: the name's bytes are unsigned, as all kernels since 6.2 write it and all accept it.
fn entry_hash(attr: &Attr) -> u32 {
    let name = attr
        .1
        .iter()
        .fold(0_u32, |hash, &c| hash.rotate_left(5) ^ u32::from(c));
    attr.2.chunks(4).fold(name, |hash, bytes| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// Writes entries and values into a zeroed region. The caller has checked that they fit.
fn fill(region: &mut [u8], start: usize, base: usize, attrs: &[&Attr]) {
    let (mut at, mut values) = (start, region.len());
    for &attr in attrs {
        let (index, name, value) = attr;
        if !value.is_empty() {
            values -= padded(value.len());
            region[values..values + value.len()].copy_from_slice(value);
        }
        let raw = RawEntry {
            name_len: name.len() as u8,
            name_index: *index,
            value_offset: U16::new(if value.is_empty() {
                0
            } else {
                (values - base) as u16
            }),
            value_inode: U32::ZERO,
            value_size: U32::new(value.len() as u32),
            hash: U32::new(entry_hash(attr)),
        };
        region[at..at + ENTRY].copy_from_slice(raw.as_bytes());
        region[at + ENTRY..at + ENTRY + name.len()].copy_from_slice(name);
        at += padded(ENTRY + name.len());
    }
}

/// Replaces all attributes in an inode's body. The caller has checked with `plan` that they fit.
pub fn write_body(body: &mut [u8], attrs: &[&Attr]) {
    body.fill(0);
    if !attrs.is_empty() {
        // Value offsets need an aligned end.
        let len = body.len() & !3;
        body[..BODY_HEADER].copy_from_slice(&MAGIC.to_le_bytes());
        fill(&mut body[..len], BODY_HEADER, BODY_HEADER, attrs);
    }
}

/// Makes an attribute block that one inode uses; sorted as the kernel wants it (index, length of the name, name).
pub fn write_block(block: &mut [u8], attrs: &[&Attr]) {
    let mut sorted = attrs.to_vec();
    sorted.sort_by(|a, b| (a.0, a.1.len(), &a.1).cmp(&(b.0, b.1.len(), &b.1)));
    block.fill(0);
    fill(block, HEADER, 0, &sorted);
    let hashes: Vec<u32> = sorted.iter().map(|attr| entry_hash(attr)).collect();
    // A block with an entry of hash 0 must not be found by its hash.
    let shared = if hashes.contains(&0) {
        0
    } else {
        hashes.iter().fold(0_u32, |h, e| h.rotate_left(16) ^ e)
    };
    let raw = RawHeader {
        magic: U32::new(MAGIC),
        refcount: U32::new(1),
        blocks: U32::new(1),
        hash: U32::new(shared),
        checksum: U32::ZERO,
        reserved: [U32::ZERO; 3],
    };
    block[..HEADER].copy_from_slice(raw.as_bytes());
}

/// The seed of an attribute block's checksum, from the volume's seed and the block's number in the volume.
pub fn block_seed(volume_seed: u32, pblk: u64) -> u32 {
    raw_crc32c(volume_seed, &pblk.to_le_bytes())
}

fn block_csum(block: &[u8], seed: u32) -> u32 {
    let sum = raw_crc32c(seed, &block[..CHECKSUM]);
    let sum = raw_crc32c(sum, &[0; 4]);
    raw_crc32c(sum, &block[CHECKSUM + 4..])
}

/// Is an attribute block's checksum right (volumes with metadata checksums only)? `seed` is `block_seed`'s.
pub fn csum_ok(block: &[u8], seed: u32) -> bool {
    header(block).is_ok_and(|raw| raw.checksum.get() == block_csum(block, seed))
}

/// Writes an attribute block's checksum (volumes with metadata checksums only).
pub fn set_csum(block: &mut [u8], seed: u32) {
    let sum = block_csum(block, seed);
    block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Which attributes go into the inode and which into the block (indices into the list).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// Of those in the inode, their places in the list given.
    pub body: Vec<usize>,
    /// Of those in the attribute block.
    pub block: Vec<usize>,
}

/// Distributes attributes over a body of `body_len` bytes (0: none) and a block. `None`: no distribution was found; the
/// same list always gets the same answer.
pub fn plan(attrs: &[Attr], body_len: usize, block_size: usize) -> Option<Plan> {
    let body_room = (body_len & !3).saturating_sub(BODY_HEADER + END);
    let block_room = block_size - HEADER - END;
    // What the kernel asks for at every open and write (lists, labels, capabilities) comes first into the inode;
    // where this leaves too much for the block, the largest that fit do. The order of the list comes last: an inode's own list is
    // read in the order of its places, so what another program has placed fits here too.
    let listed: Vec<usize> = (0..attrs.len()).collect();
    let mut wanted = listed.clone();
    wanted.sort_by_key(|&i| (!matches!(attrs[i].0, 2 | 3 | 6), i));
    let mut largest = wanted.clone();
    largest.sort_by_key(|&i| std::cmp::Reverse(cost(&attrs[i])));
    for order in [wanted, largest, listed] {
        let (mut plan, mut body, mut block) = (Plan::default(), 0, 0);
        for i in order {
            let cost = cost(&attrs[i]);
            if body + cost <= body_room {
                body += cost;
                plan.body.push(i);
            } else {
                block += cost;
                plan.block.push(i);
            }
        }
        if block <= block_room {
            return Some(plan);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(index: u8, name: &str, len: usize) -> Attr {
        (
            index,
            name.as_bytes().to_vec(),
            (0..len).map(|i| i as u8).collect(),
        )
    }

    #[test]
    fn both_forms_round_trip() {
        let list = [
            attr(6, "selinux", 30),
            attr(1, "b", 0),
            attr(1, "a", 3),
            attr(2, "", 28),
            attr(1, "größe", 1),
        ];
        let refs: Vec<&Attr> = list.iter().collect();
        let mut body = vec![0xff; 256];
        write_body(&mut body, &refs);
        let back: Vec<Attr> = body_attrs(&body)
            .unwrap()
            .iter()
            .map(|a| (a.index, a.name.to_vec(), a.value.to_vec()))
            .collect();
        assert_eq!(back, list);
        let mut block = vec![0xff; 1024];
        write_block(&mut block, &refs);
        set_csum(&mut block, block_seed(5, 77));
        assert!(csum_ok(&block, block_seed(5, 77)));
        assert!(!csum_ok(&block, block_seed(5, 78)));
        let names: Vec<&[u8]> = block_attrs(&block)
            .unwrap()
            .iter()
            .map(|a| a.name)
            .collect();
        assert_eq!(
            names,
            [&b"a"[..], b"b", "größe".as_bytes(), b"", b"selinux"]
        );
        write_body(&mut body, &[]);
        assert_eq!(body, vec![0; 256]);
    }

    #[test]
    fn plans_are_filled_exactly() {
        let block_size = 1024;
        let full = attr(1, "full", block_size - 32 - 4 - 20);
        assert_eq!(
            plan(std::slice::from_ref(&full), 0, block_size)
                .unwrap()
                .block,
            [0]
        );
        assert_eq!(
            plan(&[attr(1, "full", block_size - 32 - 4 - 19)], 0, block_size),
            None
        );
        let both = [attr(1, "small", 8), full, attr(6, "x", 60)];
        assert_eq!(plan(&both, 96, block_size), None);
        let both = [both[0].clone(), both[1].clone()];
        assert_eq!(
            plan(&both, 96, block_size),
            Some(Plan {
                body: vec![0],
                block: vec![1]
            })
        );
        let mut body = vec![0; 96];
        let exact = attr(1, "abcd", 96 - 8 - 20);
        assert_eq!(
            plan(std::slice::from_ref(&exact), 96, block_size)
                .unwrap()
                .body,
            [0]
        );
        write_body(&mut body, &[&exact]);
        assert_eq!(body_attrs(&body).unwrap().len(), 1);
    }

    #[test]
    fn damage_is_an_error_or_harmless() {
        let list = [attr(6, "selinux", 30), attr(1, "b", 17), attr(1, "a", 3)];
        let refs: Vec<&Attr> = list.iter().collect();
        let mut block = vec![0; 1024];
        write_block(&mut block, &refs);
        let mut errors = 0;
        for at in 0..1024 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = block.clone();
                damaged[at] = value;
                errors += usize::from(block_attrs(&damaged).is_err());
                errors += usize::from(body_attrs(&damaged[..100 + at % 8]).is_err());
            }
        }
        assert!(errors > 50, "{errors}");
        assert!(block_attrs(&[0; 3]).is_err());
    }
}
