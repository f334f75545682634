//! Scrub: all metadata is read from the device once more and verified, in bounded steps, while the volume is in use.
//!
//! A block that memory holds in a newer version is passed over: what lies on the device counts for nothing, the next checkpoint
//! writes it. So nothing may change the image during a step (the engine holds its applier): a block is then either newer in memory
//! or exactly what the last checkpoint wrote, and every checksum fits or there is damage.
//!
//! Order: super blocks, then groups (descriptors, bitmaps), then inodes with what belongs to them: extent and indirect blocks,
//! directory blocks, attribute blocks. File data have no checksums.

use crate::cache::{Checked, Kind};
use crate::dirblock::{BlockKind, Dir};
use crate::inode::{ROOT_INO, is_mapped};
use crate::open::JOURNAL_INO;
use crate::{Image, Ino, Pblk};
use ccfs_device::{AlignedBuf, SharedBuf};
use ccfs_ext4::extent::{self, Node};
use ccfs_ext4::features::ro_compat;
use ccfs_ext4::group::{BLOCK_UNINIT, INODE_UNINIT};
use ccfs_ext4::inode as raw;
use ccfs_ext4::superblock::{MAGIC, RawSuper, SUPER_SIZE};
use ccfs_ext4::{Error, htree};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// A step ends after so many damages.
pub const SCRUB_DAMAGE_MAX: usize = 16;
/// Blocks of a step at least: more than one way from a root to a leaf.
const BLOCKS_MIN: u64 = 16;

const SUPERS: u32 = 0;
const GROUPS: u32 = 1;
const INODES: u32 = 2;

/// Stages of one inode, in the upper bits of `part`; below them a block number of the file.
const STAGE_SHIFT: u32 = 34;
const TABLE: u64 = 0;
const XATTRS: u64 = 1;
const MAP: u64 = 2;
const ENTRIES: u64 = 3;

/// Where a scrub stands. The default is its beginning; every value is safe, whoever made it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubAt {
    /// Which kind of structure is looked at.
    pub phase: u32,
    /// The group or inode in this phase.
    pub item: u64,
    /// What of it: stage, and block of the file.
    pub part: u64,
}

/// A structure that cannot be read or does not verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Block of the volume; 0: no single one.
    pub pblk: Pblk,
    /// The inode that it belongs to; 0: none, it is the volume's.
    pub ino: Ino,
    /// What is wrong, for people.
    pub what: String,
}

/// A block that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The block.
    pub pblk: Pblk,
    /// The inode that it belongs to; 0: none, it is the volume's.
    pub ino: Ino,
    /// "super block", "block bitmap" ...
    pub what: &'static str,
}

/// What one step did.
#[derive(Clone, Debug, Default)]
pub struct ScrubStep {
    /// Where the next step begins; `None`: all is done.
    pub next: Option<ScrubAt>,
    /// Blocks of metadata looked at, those that are newer in memory included.
    pub visited: Vec<Visited>,
    /// How many of them are newer in memory.
    pub newer: u64,
    /// What was found damaged, at most about [`SCRUB_DAMAGE_MAX`].
    pub damage: Vec<Damage>,
    /// Progress in units of no meaning.
    pub done: u64,
    /// What `done` reaches at the end.
    pub total: u64,
}

/// One step on its way.
struct Step<'a> {
    image: &'a Image,
    out: ScrubStep,
    blocks: u64,
    deadline: Instant,
}

impl Image {
    /// Verifies up to `blocks` blocks (at least a few) from `at` on, for `time` at most.
    pub fn scrub(&self, at: ScrubAt, blocks: u64, time: Duration) -> ScrubStep {
        let mut step = Step {
            image: self,
            out: ScrubStep::default(),
            blocks: blocks.max(BLOCKS_MIN),
            deadline: Instant::now() + time,
        };
        let mut at = Some(at);
        while let Some(now) = at {
            at = step.one(now);
            if step.is_over() {
                break;
            }
        }
        step.out.next = at;
        let (supers, groups) = (self.super_count(), u64::from(self.core.layout.groups));
        step.out.total = supers + groups + u64::from(self.core.layout.inodes_count);
        step.out.done = match at {
            None => step.out.total,
            Some(at) => match at.phase {
                SUPERS => at.item,
                GROUPS => supers.saturating_add(at.item),
                _ => (supers + groups).saturating_add(at.item),
            },
        }
        .min(step.out.total);
        step.out
    }

    fn super_count(&self) -> u64 {
        1 + self.core.layout.backup_groups().len() as u64
    }
}

impl Step<'_> {
    fn is_over(&self) -> bool {
        self.is_full() || Instant::now() >= self.deadline
    }

    fn is_full(&self) -> bool {
        self.out.visited.len() as u64 >= self.blocks || self.out.damage.len() >= SCRUB_DAMAGE_MAX
    }

    /// Does the item at `at`, or a part of it; tells what comes next.
    fn one(&mut self, at: ScrubAt) -> Option<ScrubAt> {
        let l = &self.image.core.layout;
        let (limit, phase) = match at.phase {
            SUPERS => (self.image.super_count(), SUPERS),
            GROUPS => (u64::from(l.groups), GROUPS),
            INODES => (u64::from(l.inodes_count), INODES),
            _ => return None,
        };
        if at.item >= limit {
            return Some(ScrubAt {
                phase: phase + 1,
                item: 0,
                part: 0,
            });
        }
        let item = ScrubAt {
            phase,
            item: at.item + 1,
            part: 0,
        };
        match phase {
            SUPERS => self.super_block(at.item),
            GROUPS => self.group(at.item as u32),
            _ => return Some(self.inode_or_more(at)),
        }
        Some(item)
    }

    fn damaged(&mut self, pblk: Pblk, ino: Ino, what: impl Into<String>) {
        let what = what.into();
        // A step that is continued looks at the blocks on its way again.
        let twice = |d: &Damage| d.pblk == pblk && d.ino == ino && d.what == what;
        if !self.out.damage.iter().any(twice) {
            self.out.damage.push(Damage { pblk, ino, what });
        }
    }

    /// As `damaged`, for what was read and is wrong: the super block remembers it.
    fn corrupt(&mut self, pblk: Pblk, ino: Ino, error: Error) {
        let text = error.to_string();
        let _ = self.image.core.noting::<()>(ino, Err(error.in_block(pblk)));
        self.damaged(pblk, ino, text);
    }

    #[track_caller]
    fn wrong(&mut self, pblk: Pblk, ino: Ino, what: String) {
        let _ = self
            .image
            .core
            .noting::<()>(ino, Err(Error::corrupt(what.clone()).in_block(pblk)));
        self.damaged(pblk, ino, what);
    }

    /// Reads a block that memory does not hold newer. `Err`: it was reported, or (`Some`) is newer in memory.
    fn read_device(
        &mut self,
        pblk: Pblk,
        ino: Ino,
        what: &'static str,
    ) -> Result<AlignedBuf, Option<SharedBuf>> {
        let core = &self.image.core;
        self.out.visited.push(Visited { pblk, ino, what });
        if let Some(newer) = core.cache.newer(pblk) {
            self.out.newer += 1;
            return Err(Some(newer));
        }
        let mut buf = AlignedBuf::zeroed(core.block_size());
        match core.dev.read(pblk * core.block_size() as u64, &mut buf) {
            Ok(()) => Ok(buf),
            Err(e) => {
                self.damaged(pblk, ino, format!("{what}: cannot be read: {e}"));
                Err(None)
            }
        }
    }

    /// Reads and verifies a block of metadata: its bytes, unless it is damaged.
    fn check(&mut self, pblk: Pblk, kind: Kind, ino: Ino, what: &'static str) -> Option<SharedBuf> {
        if pblk >= self.image.core.layout.blocks_count {
            return None;
        }
        let buf = match self.read_device(pblk, ino, what) {
            Ok(buf) => buf,
            Err(newer) => return newer,
        };
        match self.image.core.verify(pblk, &kind, &buf) {
            Ok(()) => Some(buf.into()),
            Err(e) => {
                self.corrupt(pblk, ino, e);
                None
            }
        }
    }

    /// Number 0 is the primary, the others are backups.
    fn super_block(&mut self, number: u64) {
        let l = &self.image.core.layout;
        let backup = number
            .checked_sub(1)
            .and_then(|n| l.backup_groups().get(n as usize).copied());
        let (pblk, at) = match backup {
            Some(group) => (l.group_first_block(group), 0),
            None if l.block_size as usize > SUPER_SIZE => {
                (self.image.core.super_block_at(), SUPER_SIZE)
            }
            None => (self.image.core.super_block_at(), 0),
        };
        let uuid = l.uuid;
        let Ok(buf) = self.read_device(pblk, 0, "super block") else {
            return;
        };
        let raw = buf
            .get(at..at + SUPER_SIZE)
            .and_then(|b| RawSuper::read_from_bytes(b).ok());
        let name = backup.map_or("super block".into(), |group| {
            format!("backup super block of group {group}")
        });
        let Some(raw) = raw.filter(|r| r.magic.get() == MAGIC && r.uuid == uuid) else {
            return self.wrong(pblk, 0, format!("{name}: it is none of this volume"));
        };
        if raw.has_ro_compat(ro_compat::METADATA_CSUM) && !raw.checksum_ok() {
            self.wrong(pblk, 0, format!("{name}: wrong checksum"));
        }
    }

    fn group(&mut self, group: u32) {
        let core = &self.image.core;
        let per = core.layout.descs_per_block();
        if group.is_multiple_of(per) {
            let nr = group / per;
            let pblk = core.layout.desc_block(nr);
            self.check(pblk, Kind::Gdt { nr }, 0, "group descriptors");
        }
        let (Ok(info), Ok(flags)) = (core.group(group), core.desc_flags(group)) else {
            // The descriptor does not verify: it was reported with its block.
            return;
        };
        if flags & BLOCK_UNINIT == 0 {
            let kind = Kind::BlockBitmap { group };
            self.check(info.block_bitmap, kind, 0, "block bitmap");
        }
        if flags & INODE_UNINIT == 0 {
            let kind = Kind::InodeBitmap { group };
            self.check(info.inode_bitmap, kind, 0, "inode bitmap");
        }
    }

    /// Inodes of the group that may be in use: those before it were initialised.
    fn inodes_used(&self, group: u32) -> Option<u32> {
        let core = &self.image.core;
        let per = core.layout.inodes_per_group;
        if !core.layout.has_uninit() {
            return Some(per);
        }
        let (flags, unused) = core.desc(group, |d| (d.flags(), d.itable_unused())).ok()?;
        let none = flags & INODE_UNINIT != 0 || unused > per;
        Some(if none { 0 } else { per - unused })
    }

    /// `at.item` is an inode's number less one.
    fn inode_or_more(&mut self, at: ScrubAt) -> ScrubAt {
        let l = &self.image.core.layout;
        let per = u64::from(l.inodes_per_group);
        let to = |item: u64| ScrubAt {
            phase: INODES,
            item,
            part: 0,
        };
        let (group, index) = ((at.item / per) as u32, (at.item % per) as u32);
        let used = self.inodes_used(group);
        // Without a descriptor or a bitmap nothing is known of the group; both were reported.
        let bitmap = self.image.core.inode_bitmap(group);
        let (Some(used), Ok(_)) = (used, bitmap) else {
            return to((u64::from(group) + 1) * per);
        };
        if index >= used {
            return to((u64::from(group) + 1) * per);
        }
        let (stage, lblk) = (at.part >> STAGE_SHIFT, at.part & ((1 << STAGE_SHIFT) - 1));
        if stage == TABLE && index.is_multiple_of(l.inodes_per_block()) {
            self.table_block(group, index, used);
        }
        let next = to(at.item + 1);
        let ino = at.item as Ino + 1;
        if !self.image.core.inode_in_use(ino).unwrap_or(false) {
            return next;
        }
        match self.inode(ino, stage, lblk) {
            Some((stage, lblk)) => ScrubAt {
                part: stage << STAGE_SHIFT | lblk,
                ..at
            },
            None => next,
        }
    }

    /// Verifies the inodes in use of one block of the table.
    fn table_block(&mut self, group: u32, index: u32, used: u32) {
        let core = &self.image.core;
        let (l, first) = (&core.layout, group * core.layout.inodes_per_group + 1);
        let Ok(info) = core.group(group) else { return };
        let per = l.inodes_per_block();
        let pblk = info.inode_table + u64::from(index / per);
        let Ok(buf) = self.read_device(pblk, 0, "inode table") else {
            return;
        };
        for slot in 0..per.min(used.saturating_sub(index)) {
            let ino = first + index + slot;
            let at = (slot * l.inode_size) as usize;
            let bytes = &buf[at..at + l.inode_size as usize];
            let unused_reserved = ino < l.first_ino && bytes.iter().all(|b| *b == 0);
            if unused_reserved || !core.inode_in_use(ino).unwrap_or(false) {
                continue;
            }
            // Its map names what no other file's may.
            let verified = if ino == JOURNAL_INO {
                core.verify_checksum(ino, bytes)
            } else {
                core.verify_inode(ino, bytes)
            };
            match verified {
                Ok(()) => {}
                Err(Error::Errno(_)) => {
                    self.wrong(pblk, ino, format!("inode {ino}: in use, but empty"));
                }
                Err(e) => self.corrupt(pblk, ino, e),
            }
        }
    }

    /// The blocks of an inode from a stage on. Some: stage and block to go on with.
    fn inode(&mut self, ino: Ino, stage: u64, lblk: u64) -> Option<(u64, u64)> {
        // What does not verify was reported with its table block.
        let snap = self.image.core.inode(ino).ok()?;
        let core = snap.core();
        let mut from = if stage <= MAP { lblk } else { 0 };
        if stage <= XATTRS {
            from = 0;
            if core.file_acl() != 0 {
                self.xattr_block(ino, core.file_acl());
            }
        }
        if stage <= MAP && is_mapped(core) && self.has_files_blocks(ino) {
            let rest = if core.has_flag(raw::FLAG_EXTENTS) {
                let seed = self.image.core.inode_seed(ino, core.generation.get());
                self.extents(ino, seed, Node(&core.block), 1 << 32, from)
            } else if ino == JOURNAL_INO {
                // Without checksums there is nothing to tell.
                None
            } else {
                self.indirect_roots(ino, &core.block, from)
            };
            if let Some(lblk) = rest {
                return Some((MAP, lblk));
            }
        }
        if core.is_type(raw::S_IFDIR) {
            let from = if stage == ENTRIES { lblk } else { 0 };
            return self.entries(ino, from).map(|lblk| (ENTRIES, lblk));
        }
        None
    }

    /// Bad blocks lie anywhere, and the resize inode names room for descriptors: those are no file's blocks.
    fn has_files_blocks(&self, ino: Ino) -> bool {
        ino >= self.image.core.layout.first_ino || ino == ROOT_INO || ino == JOURNAL_INO
    }

    fn xattr_block(&mut self, ino: Ino, pblk: Pblk) {
        let kind = self.image.xattr_kind(pblk);
        if let Some(buf) = self.check(pblk, kind, ino, "attribute block")
            && let Err(e) = ccfs_ext4::xattr::block_attrs(&buf)
        {
            self.corrupt(pblk, ino, e);
        }
    }

    /// The nodes below one whose keys end before `end`, from block `from` of the file on. Some: where to go on.
    fn extents(&mut self, ino: Ino, seed: u32, node: Node, end: u64, from: u64) -> Option<u64> {
        if node.depth() == 0 {
            return None;
        }
        for i in 0..node.count() {
            let (index, behind) = (node.index(i), i + 1);
            let next = if behind < node.count() {
                u64::from(node.key(behind))
            } else {
                end
            };
            if next <= from {
                continue;
            }
            if self.is_full() {
                return Some(from.max(u64::from(index.lblk)));
            }
            let kind = if ino == JOURNAL_INO {
                journal_node(seed)
            } else {
                Kind::Extents {
                    seed,
                    depth: node.depth() - 1,
                    from: index.lblk,
                    end: next,
                }
            };
            let Some(buf) = self.check(index.pblk, kind, ino, "extent block") else {
                continue;
            };
            // A node newer in memory was verified when it was read, but maybe as something else; of a node of the journal only the
            // checksum was. Where its blocks lie counts when they are read.
            let child = Node(&buf);
            let range = u64::from(index.lblk)..next;
            if let Err(what) = child.check(Some(node.depth() - 1), range, &mut |_, _| true) {
                self.wrong(index.pblk, ino, format!("extent block: {what}"));
            } else if let Some(rest) = self.extents(ino, seed, child, next, from) {
                return Some(rest);
            }
        }
        None
    }

    fn indirect_roots(&mut self, ino: Ino, block: &[u8], from: u64) -> Option<u64> {
        let per = self.image.core.block_size() as u64 / 4;
        let mut first = 12;
        for depth in 1..=3u32 {
            let pblk = word(block, 11 + depth as usize);
            let len = per.pow(depth);
            if pblk != 0
                && first + len > from
                && let Some(rest) = self.indirect(ino, pblk, depth, first, from)
            {
                return Some(rest);
            }
            first += len;
        }
        None
    }

    /// An indirect block `depth` levels above the data, whose first block of the file is `first`, and those below it.
    fn indirect(&mut self, ino: Ino, pblk: Pblk, depth: u32, first: u64, from: u64) -> Option<u64> {
        if self.is_full() {
            return Some(from.max(first));
        }
        let buf = self.check(pblk, Kind::Indirect, ino, "indirect block")?;
        if depth == 1 {
            return None;
        }
        let len = (buf.len() as u64 / 4).pow(depth - 1);
        for i in 0..buf.len() / 4 {
            let (child, start) = (word(&buf, i), first + i as u64 * len);
            if child != 0
                && start + len > from
                && let Some(rest) = self.indirect(ino, child, depth - 1, start, from)
            {
                return Some(rest);
            }
        }
        None
    }

    /// The blocks of a directory from number `from` on. Some: where to go on.
    fn entries(&mut self, ino: Ino, from: u64) -> Option<u64> {
        let image = self.image;
        let dir = match Dir::open_filled(image, ino) {
            Ok(dir) => dir,
            Err(e) => {
                self.corrupt(0, ino, e);
                return None;
            }
        };
        let nodes = index_nodes(&dir);
        for lblk in u32::try_from(from).unwrap_or(u32::MAX)..dir.blocks {
            if self.is_full() {
                return Some(u64::from(lblk));
            }
            let kind = match lblk {
                0 => dir.first_kind(),
                _ if nodes.contains(&lblk) => BlockKind::Index(htree::Kind::Node),
                _ => BlockKind::Leaf,
            };
            self.directory_block(&dir, lblk, kind);
        }
        None
    }

    fn directory_block(&mut self, dir: &Dir, lblk: u32, kind: BlockKind) {
        let pblk = match dir.place(lblk) {
            Ok(pblk) => pblk,
            Err(e @ Error::Corrupt(_)) => return self.corrupt(0, dir.ino, e),
            // An extent node that cannot be read or does not verify was reported.
            Err(_) => return,
        };
        let Some(buf) = self.check(pblk, dir.checked(kind), dir.ino, "directory block") else {
            return;
        };
        let parsed = match kind {
            BlockKind::Leaf => dir.format.entries(&buf).try_for_each(|e| e.map(drop)),
            BlockKind::Index(kind) => htree::pairs(&dir.format, kind, &buf).map(drop),
        };
        if let Err(e) = parsed {
            self.corrupt(pblk, dir.ino, e);
        }
    }
}

/// Only the checksum counts: the map of the journal was checked when the volume was opened.
fn journal_node(seed: u32) -> Kind {
    static NODE: Checked = Checked::new(
        "extent block of the journal",
        extent::checksum_ok,
        extent::seal,
    );
    Kind::Checked { how: &NODE, seed }
}

fn word(bytes: &[u8], i: usize) -> u64 {
    bytes.get(i * 4..i * 4 + 4).map_or(0, |b| {
        u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    })
}

/// Blocks of a directory that are inner nodes of its hash tree.
fn index_nodes(dir: &Dir) -> Vec<u32> {
    let nodes = || {
        let root = dir.read(0, BlockKind::Index(htree::Kind::Root))?;
        let mut out = Vec::new();
        if htree::root_info(&dir.format, &root)?.levels > 0 {
            let pairs = htree::pairs(&dir.format, htree::Kind::Root, &root)?;
            out.extend(pairs.to_vec().iter().map(|p| p.block));
        }
        Ok::<_, Error>(out)
    };
    if dir.indexed() {
        // A root that does not verify is reported as block 0.
        nodes().unwrap_or_default()
    } else {
        Vec::new()
    }
}
