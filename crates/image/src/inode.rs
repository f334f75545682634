//! Inodes: raw access, attributes, creation and release.

use crate::cache::Kind;
use crate::core::{Core, corrupt};
use crate::open::JOURNAL_INO;
use crate::{Image, Ino, InodeAttr, Pblk, Run, STRUCTURE_FLAGS};
use ccfs_device::SharedBuf;
use ccfs_ext4::checksum::inode_seed;
use ccfs_ext4::group::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use ccfs_ext4::inode::{self as raw, RawInode};
use ccfs_ext4::{Error, Result, bitmap, extent, unless_io};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// The root directory's number.
pub const ROOT_INO: Ino = 2;

/// A snapshot of an inode's bytes.
pub(crate) struct InodeSnap {
    buf: SharedBuf,
    at: Range<usize>,
}

impl InodeSnap {
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.at.clone()]
    }
    pub fn core(&self) -> &RawInode {
        raw::core(self.bytes())
    }
}

/// Bytes of an inode table that are read at once: who asks for one inode of a directory asks for the next ones soon.
const NEAR_BYTES: u64 = 32 << 10;

/// Where an inode lies.
#[derive(Clone, Copy)]
struct Place {
    pblk: Pblk,
    /// First, and behind the last, of the blocks of its table that are read with it.
    near: (Pblk, Pblk),
    slot: u32,
    at: usize,
}

impl Place {
    /// In the set of verified inodes of its block. Blocks larger than 8 KiB have more slots than the set has bits: 0.
    fn bit(&self) -> u64 {
        if self.slot < 64 { 1 << self.slot } else { 0 }
    }
}

impl Core {
    fn inode_place(&self, ino: Ino) -> Result<Place> {
        let l = &self.layout;
        if ino == 0 || ino > l.inodes_count {
            return Err(Error::Errno(libc::ENOENT));
        }
        let index = (ino - 1) % l.inodes_per_group;
        let table = self.group((ino - 1) / l.inodes_per_group)?.inode_table;
        let slot = index % l.inodes_per_block();
        let block = u64::from(index / l.inodes_per_block());
        let pblk = table + block;
        let all = u64::from(l.inodes_per_group.div_ceil(l.inodes_per_block()));
        let window = (NEAR_BYTES / u64::from(l.block_size)).max(1);
        let start = block - block % window;
        Ok(Place {
            pblk,
            near: (table + start, table + (start + window).min(all)),
            slot,
            at: (slot * l.inode_size) as usize,
        })
    }

    /// Group of an inode and its bit there.
    pub fn inode_bit(&self, ino: Ino) -> (u32, u32) {
        (
            (ino - 1) / self.layout.inodes_per_group,
            (ino - 1) % self.layout.inodes_per_group,
        )
    }

    pub fn inode_in_use(&self, ino: Ino) -> Result<bool> {
        if ino == 0 || ino > self.layout.inodes_count {
            return Ok(false);
        }
        let (group, bit) = self.inode_bit(ino);
        Ok(bitmap::byte_get(&self.inode_bitmap(group)?, bit))
    }

    /// A snapshot of an inode in use, verified when its block was read. ENOENT for a free one.
    pub fn inode(&self, ino: Ino) -> Result<InodeSnap> {
        let place = self.inode_place(ino)?;
        let near = place.near;
        let (buf, slots) = self.read_among(place.pblk, Kind::InodeTable, near.0..near.1)?;
        let at = place.at..place.at + self.layout.inode_size as usize;
        // Those that have no bit are verified every time.
        if slots & place.bit() == 0 {
            // Reserved inodes are in use by definition: the journal must be found while a bitmap is torn.
            if ino >= self.layout.first_ino && !self.inode_in_use(ino)? {
                return Err(Error::Errno(libc::ENOENT));
            }
            // Once its blocks are known the journal's map names what no file's may.
            let verified = match ino == JOURNAL_INO && self.journal.get().is_some() {
                true => self.verify_checksum(ino, &buf[at.clone()]),
                false => self.verify_inode(ino, &buf[at.clone()]),
            };
            self.noting(ino, verified.map_err(|e| e.in_block(place.pblk)))?;
            self.cache.slots_verified(place.pblk, &buf, place.bit());
        }
        Ok(InodeSnap { buf, at })
    }

    /// Checksum, and everything in the inode that later code computes with.
    pub fn verify_inode(&self, ino: Ino, bytes: &[u8]) -> Result<()> {
        let core = raw::core(bytes);
        if core.mode.get() == 0 && ino >= self.layout.first_ino {
            return Err(Error::Errno(libc::ENOENT));
        }
        if !raw::extra_isize_ok(bytes) {
            return corrupt(format!("inode {ino}: impossible extra size"));
        }
        self.verify_checksum(ino, bytes)?;
        if core.has_flag(raw::FLAG_INLINE_DATA) || core.has_flag(raw::FLAG_EA_INODE) {
            return corrupt(format!(
                "inode {ino}: inline data or xattr inode without the feature"
            ));
        }
        if core.size() > i64::MAX as u64 {
            return corrupt(format!("inode {ino}: impossible size"));
        }
        let acl = core.file_acl();
        if acl != 0 && !self.may_belong_to_file(acl, 1)? {
            return corrupt(format!("inode {ino}: impossible xattr block {acl}"));
        }
        if is_mapped(core) {
            self.verify_mapping(ino, core)
        } else {
            Ok(())
        }
    }

    pub fn verify_checksum(&self, ino: Ino, bytes: &[u8]) -> Result<()> {
        if raw::checksum_ok(bytes, ino, &self.layout) {
            Ok(())
        } else {
            corrupt(format!("inode {ino}: wrong checksum"))
        }
    }

    fn verify_mapping(&self, ino: Ino, core: &RawInode) -> Result<()> {
        if core.has_flag(raw::FLAG_EXTENTS) {
            return self
                .check_runs(|ok| extent::Node(&core.block).check(None, 0..1 << 32, ok))?
                .or_else(|what| corrupt(format!("inode {ino}: extents: {what}")));
        }
        for c in core.block.chunks_exact(4) {
            let to = u64::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
            if to != 0 && !self.may_belong_to_file(to, 1)? {
                return corrupt(format!("inode {ino}: impossible block {to}"));
            }
        }
        Ok(())
    }

    /// Changes an inode's bytes and makes the checksum right. `f` must not use the image.
    pub fn modify_inode<R>(&self, ino: Ino, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let place = self.inode_place(ino)?;
        let change = self.sealing(ino, place, f);
        let (pblk, bit) = (place.pblk, place.bit());
        let change = match bit {
            // Those are verified every time.
            0 => change,
            _ => match self
                .cache
                .modify_ready(pblk, Kind::InodeTable, bit, 0, change)
            {
                Ok(r) => return Ok(r),
                Err(change) => change,
            },
        };
        // Verifies it, and keeps its block in the cache for the change.
        let InodeSnap { buf, .. } = self.inode(ino)?;
        Ok(self.modify_read(pblk, Kind::InodeTable, buf, (bit, true), change))
    }

    /// A change of an inode as one of its block.
    fn sealing<'a, R, F: FnOnce(&mut [u8]) -> R + 'a>(
        &'a self,
        ino: Ino,
        place: Place,
        f: F,
    ) -> impl FnOnce(&mut [u8]) -> R + 'a {
        move |block| {
            let bytes = &mut block[place.at..place.at + self.layout.inode_size as usize];
            let r = f(bytes);
            raw::seal(bytes, ino, &self.layout);
            r
        }
    }

    /// Makes an inode that need not be valid before.
    fn make_inode(&self, ino: Ino, f: impl FnOnce(&mut [u8])) -> Result<()> {
        let place = self.inode_place(ino)?;
        let (pblk, bit, change) = (place.pblk, place.bit(), self.sealing(ino, place, f));
        self.modify_making(pblk, Kind::InodeTable, bit, change)
    }

    /// i_extra_isize of inodes that ccfs makes; 0 for inodes of 128 bytes.
    pub fn fresh_extra_isize(&self) -> u16 {
        let l = &self.layout;
        let want = if l.want_extra_isize == 0 {
            raw::EXTRA_SIZE as u32
        } else {
            l.want_extra_isize
        };
        want.min(l.inode_size - raw::CORE_SIZE as u32) as u16 & !3
    }

    /// Seed of the checksums of an inode's own blocks.
    pub fn inode_seed(&self, ino: Ino, generation: u32) -> u32 {
        inode_seed(self.layout.csum_seed, ino, generation)
    }

    /// Sets the inode's bit; makes the bitmap and the part of the table up to it real if they never were.
    pub fn take_inode_bit(&self, ino: Ino, dir: bool) -> Result<()> {
        let (group, bit) = self.inode_bit(ino);
        self.initialise(group, bit)?;
        let pblk = self.group(group)?.inode_bitmap;
        let kind = Kind::InodeBitmap { group };
        if self.modify(pblk, kind, |b| bitmap::byte_set(b, bit, 1))? == 0 {
            return corrupt(format!("inode {ino} is created, but in use"));
        }
        self.note_stale(group, true);
        let unused = self.layout.inodes_per_group - bit - 1;
        let uninit = self.layout.has_uninit();
        self.modify_desc(group, |d| {
            d.set_free_inodes(d.free_inodes().saturating_sub(1));
            d.set_used_dirs(d.used_dirs() + u32::from(dir));
            if uninit {
                d.set_flags(d.flags() & !INODE_UNINIT);
                d.set_itable_unused(d.itable_unused().min(unused));
            }
        })?;
        self.free_inodes.fetch_sub(1, Relaxed);
        Ok(())
    }

    /// Makes the inode table real on the way to an inode, so many blocks of it. False: `take_inode_bit` would have to make more than that at once.
    pub fn approach_inode(&self, ino: Ino, blocks: u32) -> Result<bool> {
        let l = &self.layout;
        let ((group, bit), per) = (self.inode_bit(ino), l.inodes_per_block());
        if !l.has_uninit() {
            return Ok(true);
        }
        let (flags, unused) = self.desc(group, |d| (d.flags(), d.itable_unused()))?;
        let used = match flags & INODE_UNINIT {
            0 => l.inodes_per_group.saturating_sub(unused),
            _ => 0,
        };
        let reach = (used / per + blocks) * per;
        if bit < reach {
            return Ok(true);
        }
        self.initialise(group, reach - 1)?;
        // As it is, and real from here on.
        let pblk = self.group(group)?.inode_bitmap;
        self.modify(pblk, Kind::InodeBitmap { group }, |_| ())?;
        self.note_stale(group, true);
        self.modify_desc(group, |d| {
            d.set_flags(d.flags() & !INODE_UNINIT);
            d.set_itable_unused(l.inodes_per_group - reach);
        })?;
        Ok(false)
    }

    /// Makes the group's block bitmap real, and its inode table up to the block that holds `bit`: what was never used of that is zeroed.
    fn initialise(&self, group: u32, bit: u32) -> Result<()> {
        let l = &self.layout;
        if !l.has_uninit() {
            return Ok(());
        }
        let (flags, unused) = self.desc(group, |d| (d.flags(), d.itable_unused()))?;
        if flags & BLOCK_UNINIT != 0 {
            self.initialise_block_bitmap(group)?;
        }
        let unused = if flags & INODE_UNINIT != 0 {
            l.inodes_per_group
        } else {
            unused
        };
        let used = l.inodes_per_group - unused;
        if bit < used {
            return Ok(());
        }
        let table = self.group(group)?.inode_table;
        let per = l.inodes_per_block();
        let mut block = used / per;
        if !used.is_multiple_of(per) {
            // Inodes in front of `used` are real; the rest of their block may be anything.
            if flags & INODE_ZEROED == 0 {
                let from = (used % per * l.inode_size) as usize;
                self.modify(table + u64::from(block), Kind::InodeTable, |b| {
                    b[from..].fill(0)
                })?;
            }
            block += 1;
        }
        for b in block..=bit / per {
            self.create(table + u64::from(b), Kind::InodeTable, |_| ());
        }
        Ok(())
    }

    /// Clears the inode's bit and counts it as free.
    pub fn drop_inode_bit(&self, ino: Ino, dir: bool) -> Result<()> {
        let (group, bit) = self.inode_bit(ino);
        let pblk = self.group(group)?.inode_bitmap;
        self.modify(pblk, Kind::InodeBitmap { group }, |b| {
            bitmap::byte_clear(b, bit, 1)
        })?;
        self.note_stale(group, true);
        self.modify_desc(group, |d| {
            d.set_free_inodes(d.free_inodes() + 1);
            d.set_used_dirs(d.used_dirs().saturating_sub(u32::from(dir)));
        })?;
        self.free_inodes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Adds to the inode's count of blocks (in file system blocks).
    pub fn add_blocks(&self, ino: Ino, blocks: i64) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        if self.modify_inode(ino, |b| self.count_blocks(b, blocks))? {
            return Ok(());
        }
        self.miscounted(ino)
    }

    /// Adds to the count in an inode's bytes (in file system blocks); false when it would become impossible.
    pub fn count_blocks(&self, inode: &mut [u8], blocks: i64) -> bool {
        let core = raw::core_mut(inode);
        let delta = blocks * i64::from(self.layout.block_size / 512);
        let n = core.blocks512(&self.layout).checked_add_signed(delta);
        n.is_some_and(|n| core.set_blocks512(n, &self.layout))
    }

    pub fn miscounted<R>(&self, ino: Ino) -> Result<R> {
        corrupt(format!("inode {ino}: impossible number of blocks"))
    }
}

/// Does `i_block` hold a mapping (and not a device number or a short symlink's text)?
pub(crate) fn is_mapped(core: &RawInode) -> bool {
    core.is_type(raw::S_IFREG) || core.is_type(raw::S_IFDIR) || (core.is_type(raw::S_IFLNK) && !is_fast_symlink(core))
        // Reserved inodes (journal, resize) may have no type.
        || core.mode.get() == 0
}

/// A symlink whose text lies in `i_block`: shorter than 60 bytes. Extents or blocks say otherwise.
fn is_fast_symlink(core: &RawInode) -> bool {
    core.is_type(raw::S_IFLNK)
        && !core.has_flag(raw::FLAG_EXTENTS)
        && core.size() < raw::BLOCK_LEN as u64
}

fn is_device(core: &RawInode) -> bool {
    core.is_type(raw::S_IFBLK) || core.is_type(raw::S_IFCHR)
}

impl Image {
    /// Refuses numbers that no directory entry may name: reserved inodes except the root, and the orphan file.
    pub(crate) fn check_public(&self, ino: Ino) -> Result<()> {
        let l = &self.core.layout;
        if (ino != ROOT_INO && ino != 0 && ino < l.first_ino)
            || (ino != 0 && ino == l.orphan_file_inum)
        {
            return corrupt(format!("inode {ino} is reserved, but named as a file"));
        }
        Ok(())
    }

    /// An inode's attributes.
    ///
    /// # Errors
    /// ENOENT when the inode is free or out of range; `Corrupt`; `Io`.
    pub fn read_attr(&self, ino: Ino) -> Result<InodeAttr> {
        self.check_public(ino)?;
        let snap = self.core.inode(ino)?;
        let core = snap.core();
        let extra = raw::extra(snap.bytes());
        Ok(InodeAttr {
            mode: core.mode.get(),
            uid: u32::from(core.uid_lo.get()) | u32::from(core.uid_hi.get()) << 16,
            gid: u32::from(core.gid_lo.get()) | u32::from(core.gid_hi.get()) << 16,
            size: core.size(),
            nlink: u32::from(core.links_count.get()),
            atime: raw::decode_time(core.atime.get(), extra.atime_extra.get()),
            mtime: raw::decode_time(core.mtime.get(), extra.mtime_extra.get()),
            ctime: raw::decode_time(core.ctime.get(), extra.ctime_extra.get()),
            crtime: raw::decode_time(extra.crtime.get(), extra.crtime_extra.get()),
            flags: core.flags.get(),
            generation: core.generation.get(),
            rdev: if is_device(core) {
                raw::decode_rdev(&core.block)
            } else {
                0
            },
            blocks512: core.blocks512(&self.core.layout),
        })
    }

    /// The `blocks512` of an inode's attributes.
    ///
    /// # Errors
    /// As `read_attr`.
    pub fn blocks512(&self, ino: Ino) -> Result<u64> {
        self.check_public(ino)?;
        Ok(self.core.inode(ino)?.core().blocks512(&self.core.layout))
    }

    /// Blocks of an inode's attributes (extended ones): 0 or 1. An inode that is not there has none.
    pub fn xattr_blocks(&self, ino: Ino) -> u64 {
        let inode = self.check_public(ino).and_then(|()| self.core.inode(ino));
        inode.map_or(0, |inode| u64::from(inode.core().file_acl() != 0))
    }

    /// Writes all attributes but structure (`blocks512`, `STRUCTURE_FLAGS`). Turns on the volume's flags for large files
    /// and uncounted directory links where they are needed.
    ///
    /// # Errors
    /// ENOENT when the inode is free; `Refused` for a change of generation of a file that has blocks with checksums.
    pub fn write_attr(&self, ino: Ino, attr: &InodeAttr) -> Result<()> {
        self.check_public(ino)?;
        let l = &self.core.layout;
        let changed = self.core.modify_inode(ino, |b| {
            let core = raw::core(b);
            if l.metadata_csum
                && core.generation.get() != attr.generation
                && is_mapped(core)
                && core.blocks512(l) > 0
            {
                return false;
            }
            put_attr(b, attr);
            true
        })?;
        if !changed {
            return Err(Error::Refused(format!(
                "the generation of inode {ino} is part of its blocks' checksums"
            )));
        }
        Ok(())
    }

    /// Before `create_inode`, where not much may be changed at once: makes the inode table real up to the inode, so many blocks of it. False: there is more.
    ///
    /// # Errors
    /// ENOENT out of range.
    pub fn approach_inode(&self, ino: Ino, blocks: u32) -> Result<bool> {
        self.check_public(ino)?;
        self.core.inode_place(ino)?;
        self.core.approach_inode(ino, blocks)
    }

    /// Makes a free inode one in use: bit, counts, zeroed table, an empty mapping.
    ///
    /// # Errors
    /// `Corrupt` when the inode is in use; ENOENT out of range.
    pub fn create_inode(&self, ino: Ino, attr: &InodeAttr) -> Result<()> {
        self.check_public(ino)?;
        let core = &self.core;
        let l = &core.layout;
        // A number that has no place is told before anything is changed.
        core.inode_place(ino)?;
        let fmt = raw::file_type(attr.mode);
        self.alloc.use_inode_in_image(ino, fmt == raw::S_IFDIR)?;
        let with_extents = l.extents && matches!(fmt, raw::S_IFREG | raw::S_IFDIR | raw::S_IFLNK);
        let extra_isize = core.fresh_extra_isize();
        core.make_inode(ino, |b| {
            b.fill(0);
            if b.len() > raw::CORE_SIZE {
                b[raw::CORE_SIZE..raw::CORE_SIZE + 2].copy_from_slice(&extra_isize.to_le_bytes());
            }
            if with_extents {
                let c = raw::core_mut(b);
                c.flags = raw::FLAG_EXTENTS.into();
                extent::init(&mut c.block, 0, extent::ROOT_MAX);
            }
            put_attr(b, attr);
        })
    }

    /// Frees an inode whose mapping is empty, and its xattr block with it. The generation stays.
    ///
    /// # Errors
    /// ENOENT when it is free already; `Refused` when blocks are still mapped.
    pub fn clear_inode(&self, ino: Ino, dtime: u32) -> Result<()> {
        self.check_public(ino)?;
        let snap = self.core.inode(ino)?;
        let core = snap.core();
        let dir = core.is_type(raw::S_IFDIR);
        let acl = core.file_acl();
        drop(snap);
        if dir {
            self.absent.forget(ino);
        }
        if acl != 0 {
            self.drop_xattr_block(ino, acl)?;
        }
        let place = self.core.inode_place(ino)?;
        // A deletion time below the number of inodes looks like a link of the orphan list.
        let dtime = dtime.max(self.core.layout.inodes_count);
        let change = self.core.sealing(ino, place, |b| {
            let generation = raw::core(b).generation;
            let extra: [u8; 2] = if b.len() > raw::CORE_SIZE {
                [b[raw::CORE_SIZE], b[raw::CORE_SIZE + 1]]
            } else {
                [0; 2]
            };
            b.fill(0);
            if b.len() > raw::CORE_SIZE {
                b[raw::CORE_SIZE..raw::CORE_SIZE + 2].copy_from_slice(&extra);
            }
            let c = raw::core_mut(b);
            c.generation = generation;
            c.dtime = dtime.into();
        });
        let (buf, slots) = (
            self.core.read(place.pblk, Kind::InodeTable)?,
            (place.bit(), false),
        );
        self.core
            .modify_read(place.pblk, Kind::InodeTable, buf, slots, change);
        self.alloc.free_inode_in_image(ino, dir)
    }

    /// All inodes in use that no directory names, by a search through the inode tables. What is damaged is passed over: it stays for e2fsck.
    ///
    /// # Errors
    /// `Io`: what cannot be read now may hold some.
    pub fn nameless_inodes(&self) -> Result<Vec<Ino>> {
        let l = &self.core.layout;
        let mut found = Vec::new();
        for group in 0..l.groups {
            let bits = match self.core.inode_bitmap(group) {
                Ok(bits) => bits,
                Err(Error::Corrupt(_)) => continue,
                Err(error) => return Err(error),
            };
            let bits = bitmap::load(&bits, l.inodes_per_group);
            let mut at = 0;
            while let Some(bit) = bitmap::next_set(|i| bits[i], at, l.inodes_per_group) {
                let ino = group * l.inodes_per_group + bit + 1;
                at = bit + 1;
                if ino < l.first_ino {
                    continue;
                }
                if unless_io(self.read_attr(ino).map(|a| a.nlink == 0), false)? {
                    found.push(ino);
                }
            }
        }
        Ok(found)
    }

    /// Is the inode's bit set? False out of range.
    pub fn inode_in_use(&self, ino: Ino) -> Result<bool> {
        self.core.inode_in_use(ino)
    }

    /// Stores a symlink's text (shorter than 60 bytes) in the inode.
    ///
    /// # Errors
    /// ENAMETOOLONG when it does not fit; ENOENT for a free inode.
    pub fn set_fast_symlink(&self, ino: Ino, target: &[u8]) -> Result<()> {
        if target.len() >= raw::BLOCK_LEN {
            return Err(Error::Errno(libc::ENAMETOOLONG));
        }
        self.check_public(ino)?;
        self.core.modify_inode(ino, |b| {
            let c = raw::core_mut(b);
            c.flags = (c.flags.get() & !raw::FLAG_EXTENTS).into();
            c.block.fill(0);
            c.block[..target.len()].copy_from_slice(target);
            c.set_size(target.len() as u64);
        })
    }

    /// The text of a symlink that lies in its inode; `None` for one whose text lies in a block.
    ///
    /// # Errors
    /// EINVAL when the inode is no symlink.
    pub fn fast_symlink(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        self.check_public(ino)?;
        let snap = self.core.inode(ino)?;
        let core = snap.core();
        if !core.is_type(raw::S_IFLNK) {
            return Err(Error::Errno(libc::EINVAL));
        }
        Ok(is_fast_symlink(core).then(|| core.block[..core.size() as usize].to_vec()))
    }

    /// Sets the size alone.
    pub(crate) fn set_size(&self, ino: Ino, size: u64) -> Result<()> {
        self.core
            .modify_inode(ino, |b| raw::core_mut(b).set_size(size))
    }

    /// Sets or clears a flag of the inode.
    pub(crate) fn set_inode_flag(&self, ino: Ino, flag: u32, on: bool) -> Result<()> {
        self.core.modify_inode(ino, |b| {
            let c = raw::core_mut(b);
            let flags = if on {
                c.flags.get() | flag
            } else {
                c.flags.get() & !flag
            };
            c.flags = flags.into();
        })
    }

    /// Frees one block of metadata. Counting it off its inode is the caller's work.
    pub(crate) fn free_metadata_block(&self, pblk: Pblk) -> Result<()> {
        self.alloc.free_in_image(Run { pblk, len: 1 })
    }
}

/// Writes everything but structure into an inode's bytes.
fn put_attr(b: &mut [u8], attr: &InodeAttr) {
    let mut extra = raw::extra(b);
    let wide = |end: usize| raw::extra_isize(b) >= end;
    let (atime, a) = raw::encode_time(attr.atime, wide(16));
    let (mtime, m) = raw::encode_time(attr.mtime, wide(12));
    let (ctime, c) = raw::encode_time(attr.ctime, wide(8));
    let (crtime, cr) = raw::encode_time(attr.crtime, wide(24));
    (extra.atime_extra, extra.mtime_extra, extra.ctime_extra) = (a.into(), m.into(), c.into());
    (extra.crtime, extra.crtime_extra) = (crtime.into(), cr.into());
    raw::set_extra(b, &extra);
    let core = raw::core_mut(b);
    (core.atime, core.mtime, core.ctime) = (atime.into(), mtime.into(), ctime.into());
    core.mode = attr.mode.into();
    core.uid_lo = (attr.uid as u16).into();
    core.uid_hi = ((attr.uid >> 16) as u16).into();
    core.gid_lo = (attr.gid as u16).into();
    core.gid_hi = ((attr.gid >> 16) as u16).into();
    core.set_size(attr.size);
    core.links_count = (attr.nlink.min(u32::from(u16::MAX)) as u16).into();
    core.flags = (core.flags.get() & STRUCTURE_FLAGS | attr.flags & !STRUCTURE_FLAGS).into();
    core.generation = attr.generation.into();
    if is_device(core) {
        raw::encode_rdev(&mut core.block, attr.rdev);
    }
}
