//! Logical records: what a transaction says in the log (docs/format.md, "Records").
//!
//! Every record is an absolute statement about one object. Encoding: a type byte, then fixed-width little-endian fields and
//! length-prefixed byte strings. Decoding checks every length; a record that does not parse is `Error::Corrupt`.
use ccfs_ext4::{Error, Result};
use ccfs_image::{Ino, InodeAttr, Lblk, Pblk};

/// Extended attributes of an inode: (name index, name suffix, value).
pub type XattrSet = Vec<(u8, Vec<u8>, Vec<u8>)>;

/// Bytes of the log for a run of blocks.
pub const RUN_BYTES: u64 = 48;

/// Most bytes of the log that a set takes.
pub fn set_bytes(set: &XattrSet) -> u64 {
    set.iter()
        .map(|(_, n, v)| n.len() + v.len() + 16)
        .sum::<usize>() as u64
}

/// Fields of a directory's inode that change independently of each other, each with the sequence number of the operation that
/// set it: the highest surviving one wins (C1: a directory's times come from its latest survivor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DirField {
    Mode = 0,
    Uid = 1,
    Gid = 2,
    Atime = 3,
    Mtime = 4,
    Ctime = 5,
    Flags = 6,
}
pub const DIR_FIELDS: usize = 7;

impl DirField {
    pub const ALL: [DirField; DIR_FIELDS] = [
        DirField::Mode,
        DirField::Uid,
        DirField::Gid,
        DirField::Atime,
        DirField::Mtime,
        DirField::Ctime,
        DirField::Flags,
    ];

    /// The field as an inode has it: a number, or seconds, and nanoseconds.
    pub fn of(self, attr: &InodeAttr) -> (i64, u32) {
        match self {
            DirField::Mode => (i64::from(attr.mode), 0),
            DirField::Uid => (i64::from(attr.uid), 0),
            DirField::Gid => (i64::from(attr.gid), 0),
            DirField::Atime => attr.atime,
            DirField::Mtime => attr.mtime,
            DirField::Ctime => attr.ctime,
            DirField::Flags => (i64::from(attr.flags), 0),
        }
    }

    pub fn put(self, attr: &mut InodeAttr, (value, nanos): (i64, u32)) {
        match self {
            DirField::Mode => attr.mode = value as u16,
            DirField::Uid => attr.uid = value as u32,
            DirField::Gid => attr.gid = value as u32,
            DirField::Atime => attr.atime = (value, nanos),
            DirField::Mtime => attr.mtime = (value, nanos),
            DirField::Ctime => attr.ctime = (value, nanos),
            DirField::Flags => attr.flags = value as u32,
        }
    }
}

/// One field's value: a number, or seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirValue {
    pub seq: u64,
    pub value: i64,
    pub nanos: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Record<'a> {
    /// A new inode; for directories `parent` is its "..".
    Create {
        ino: Ino,
        parent: Ino,
        attr: InodeAttr,
    },
    /// Attributes of an inode that is no directory.
    Attr {
        ino: Ino,
        attr: InodeAttr,
    },
    /// A field of a directory's inode.
    Dir {
        ino: Ino,
        field: DirField,
        value: DirValue,
    },
    /// The whole set of extended attributes.
    Xattrs {
        ino: Ino,
        set: XattrSet,
    },
    Symlink {
        ino: Ino,
        target: &'a [u8],
    },
    /// The range is a hole now; its blocks are free once this is durable.
    Unmap {
        ino: Ino,
        lblk: Lblk,
        len: u64,
    },
    /// The range lies at `pblk`. `sums`: crc32c of each block's content, to be verified above the watermark (may be empty).
    Map {
        ino: Ino,
        lblk: Lblk,
        pblk: Pblk,
        len: u64,
        unwritten: bool,
        sums: Vec<u32>,
    },
    /// Bytes of a file's block that is brought home by a checkpoint.
    Data {
        pblk: Pblk,
        offset: u32,
        bytes: &'a [u8],
    },
    /// A name: `ino` 0 removes it.
    Entry {
        dir: Ino,
        name: &'a [u8],
        ino: Ino,
        ftype: u8,
    },
    /// A directory's "..".
    Parent {
        dir: Ino,
        parent: Ino,
    },
    /// The inode and all of its blocks are free.
    Free {
        ino: Ino,
    },
    /// Access time, which no promise covers.
    Atime {
        ino: Ino,
        atime: (i64, u32),
    },
}

#[track_caller]
fn corrupt() -> Error {
    Error::corrupt("a log record does not parse".into())
}

/// Appends fields.
struct Out<'b>(&'b mut Vec<u8>);
impl Out<'_> {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn bytes(&mut self, v: &[u8]) {
        self.u32(v.len() as u32);
        self.0.extend_from_slice(v);
    }
    fn time(&mut self, t: (i64, u32)) {
        self.u64(t.0 as u64);
        self.u32(t.1);
    }
    fn attr(&mut self, a: &InodeAttr) {
        self.u32(u32::from(a.mode));
        self.u32(a.uid);
        self.u32(a.gid);
        self.u64(a.size);
        self.u32(a.nlink);
        for t in [a.atime, a.mtime, a.ctime, a.crtime] {
            self.time(t);
        }
        self.u32(a.flags);
        self.u32(a.generation);
        self.u32(a.rdev);
    }
}

/// Takes fields.
struct In<'a>(&'a [u8]);
impl<'a> In<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.0.len() {
            return Err(corrupt());
        }
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        Ok(head)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(
            self.take(4)?.try_into().map_err(|_| corrupt())?,
        ))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(
            self.take(8)?.try_into().map_err(|_| corrupt())?,
        ))
    }
    fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.u32()? as usize;
        self.take(n)
    }
    fn time(&mut self) -> Result<(i64, u32)> {
        Ok((self.u64()? as i64, self.u32()?))
    }
    fn attr(&mut self) -> Result<InodeAttr> {
        Ok(InodeAttr {
            mode: u16::try_from(self.u32()?).map_err(|_| corrupt())?,
            uid: self.u32()?,
            gid: self.u32()?,
            size: self.u64()?,
            nlink: self.u32()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
            crtime: self.time()?,
            flags: self.u32()?,
            generation: self.u32()?,
            rdev: self.u32()?,
            blocks512: 0,
        })
    }
}

impl<'a> Record<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut o = Out(out);
        match self {
            Record::Create { ino, parent, attr } => {
                o.u8(1);
                o.u32(*ino);
                o.u32(*parent);
                o.attr(attr);
            }
            Record::Attr { ino, attr } => {
                o.u8(2);
                o.u32(*ino);
                o.attr(attr);
            }
            Record::Dir { ino, field, value } => {
                o.u8(3);
                o.u32(*ino);
                o.u8(*field as u8);
                o.u64(value.seq);
                o.u64(value.value as u64);
                o.u32(value.nanos);
            }
            Record::Xattrs { ino, set } => {
                o.u8(4);
                o.u32(*ino);
                o.u32(set.len() as u32);
                for (index, name, value) in set {
                    o.u8(*index);
                    o.bytes(name);
                    o.bytes(value);
                }
            }
            Record::Symlink { ino, target } => {
                o.u8(5);
                o.u32(*ino);
                o.bytes(target);
            }
            Record::Unmap { ino, lblk, len } => {
                o.u8(6);
                o.u32(*ino);
                o.u64(*lblk);
                o.u64(*len);
            }
            Record::Map {
                ino,
                lblk,
                pblk,
                len,
                unwritten,
                sums,
            } => {
                o.u8(7);
                o.u32(*ino);
                o.u64(*lblk);
                o.u64(*pblk);
                o.u64(*len);
                o.u8(u8::from(*unwritten));
                o.u32(sums.len() as u32);
                for s in sums {
                    o.u32(*s);
                }
            }
            Record::Data {
                pblk,
                offset,
                bytes,
            } => {
                o.u8(8);
                o.u64(*pblk);
                o.u32(*offset);
                o.bytes(bytes);
            }
            Record::Entry {
                dir,
                name,
                ino,
                ftype,
            } => {
                o.u8(9);
                o.u32(*dir);
                o.u32(*ino);
                o.u8(*ftype);
                o.bytes(name);
            }
            Record::Parent { dir, parent } => {
                o.u8(10);
                o.u32(*dir);
                o.u32(*parent);
            }
            Record::Free { ino } => {
                o.u8(11);
                o.u32(*ino);
            }
            Record::Atime { ino, atime } => {
                o.u8(12);
                o.u32(*ino);
                o.time(*atime);
            }
        }
    }

    fn decode(i: &mut In<'a>) -> Result<Record<'a>> {
        Ok(match i.u8()? {
            1 => Record::Create {
                ino: i.u32()?,
                parent: i.u32()?,
                attr: i.attr()?,
            },
            2 => Record::Attr {
                ino: i.u32()?,
                attr: i.attr()?,
            },
            3 => Record::Dir {
                ino: i.u32()?,
                field: match i.u8()? {
                    0 => DirField::Mode,
                    1 => DirField::Uid,
                    2 => DirField::Gid,
                    3 => DirField::Atime,
                    4 => DirField::Mtime,
                    5 => DirField::Ctime,
                    6 => DirField::Flags,
                    _ => return Err(corrupt()),
                },
                value: DirValue {
                    seq: i.u64()?,
                    value: i.u64()? as i64,
                    nanos: i.u32()?,
                },
            },
            4 => {
                let ino = i.u32()?;
                let n = i.u32()?;
                let mut set = Vec::new();
                for _ in 0..n {
                    set.push((i.u8()?, i.bytes()?.to_vec(), i.bytes()?.to_vec()));
                }
                Record::Xattrs { ino, set }
            }
            5 => Record::Symlink {
                ino: i.u32()?,
                target: i.bytes()?,
            },
            6 => Record::Unmap {
                ino: i.u32()?,
                lblk: i.u64()?,
                len: i.u64()?,
            },
            7 => {
                let (ino, lblk, pblk, len) = (i.u32()?, i.u64()?, i.u64()?, i.u64()?);
                let unwritten = i.u8()? != 0;
                let n = u64::from(i.u32()?);
                if n != 0 && n != len {
                    return Err(corrupt());
                }
                let sums = (0..n).map(|_| i.u32()).collect::<Result<Vec<u32>>>()?;
                Record::Map {
                    ino,
                    lblk,
                    pblk,
                    len,
                    unwritten,
                    sums,
                }
            }
            8 => Record::Data {
                pblk: i.u64()?,
                offset: i.u32()?,
                bytes: i.bytes()?,
            },
            9 => {
                let (dir, ino, ftype) = (i.u32()?, i.u32()?, i.u8()?);
                Record::Entry {
                    dir,
                    ino,
                    ftype,
                    name: i.bytes()?,
                }
            }
            10 => Record::Parent {
                dir: i.u32()?,
                parent: i.u32()?,
            },
            11 => Record::Free { ino: i.u32()? },
            12 => Record::Atime {
                ino: i.u32()?,
                atime: i.time()?,
            },
            _ => return Err(corrupt()),
        })
    }
}

/// The records of a payload, in order; ends after the first one that does not parse.
pub struct Records<'a>(In<'a>);

impl<'a> Records<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Records(In(payload))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.0.is_empty() {
            return None;
        }
        let record = Record::decode(&mut self.0);
        if record.is_err() {
            self.0.0 = &[];
        }
        Some(record)
    }
}

impl Record<'_> {
    /// The inode whose structure the record changes.
    pub fn inode(&self) -> Option<Ino> {
        match self {
            Record::Create { ino, .. }
            | Record::Attr { ino, .. }
            | Record::Dir { ino, .. }
            | Record::Xattrs { ino, .. }
            | Record::Symlink { ino, .. }
            | Record::Unmap { ino, .. }
            | Record::Map { ino, .. }
            | Record::Free { ino }
            | Record::Atime { ino, .. } => Some(*ino),
            Record::Entry { dir, .. } | Record::Parent { dir, .. } => Some(*dir),
            Record::Data { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_survives_encoding_and_no_cut_or_flip_panics() {
        let attr = InodeAttr {
            mode: 0o100644,
            uid: 1,
            gid: 2,
            size: 3,
            nlink: 4,
            mtime: (-5, 6),
            ..InodeAttr::default()
        };
        let all = vec![
            Record::Create {
                ino: 12,
                parent: 2,
                attr: attr.clone(),
            },
            Record::Attr { ino: 12, attr },
            Record::Dir {
                ino: 2,
                field: DirField::Mtime,
                value: DirValue {
                    seq: 9,
                    value: -7,
                    nanos: 8,
                },
            },
            Record::Xattrs {
                ino: 12,
                set: vec![
                    (1, b"a".to_vec(), b"value".to_vec()),
                    (6, b"selinux".to_vec(), vec![]),
                ],
            },
            Record::Symlink {
                ino: 12,
                target: b"a/b",
            },
            Record::Unmap {
                ino: 12,
                lblk: 1 << 40,
                len: 7,
            },
            Record::Map {
                ino: 12,
                lblk: 1,
                pblk: 2,
                len: 3,
                unwritten: false,
                sums: vec![1, 2, 3],
            },
            Record::Data {
                pblk: 99,
                offset: 5,
                bytes: b"hello",
            },
            Record::Entry {
                dir: 2,
                name: b"x",
                ino: 12,
                ftype: 1,
            },
            Record::Parent { dir: 13, parent: 2 },
            Record::Free { ino: 12 },
            Record::Atime {
                ino: 12,
                atime: (1, 2),
            },
        ];
        let mut bytes = Vec::new();
        for r in &all {
            r.encode(&mut bytes);
        }
        let back: Vec<_> = Records::new(&bytes).collect::<Result<_>>().unwrap();
        assert_eq!(back, all);
        for cut in 0..bytes.len() {
            let _ = Records::new(&bytes[..cut]).count();
            let mut flipped = bytes.clone();
            flipped[cut] ^= 0xff;
            let _ = Records::new(&flipped).count();
        }
    }
}
