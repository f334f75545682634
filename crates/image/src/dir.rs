//! Directories: what the engine calls. Linear ones are in dirlinear.rs, indexed ones in htree.rs, the step from one to the other
//! in dirbuild.rs.

use crate::dirblock::{BlockKind, Dir, RoomIn};
use crate::dirbuild;
use crate::htree::{self, Path};
use crate::{DirEntry, Image, Ino};
use ccfs_ext4::checksum::crc32c;
use ccfs_ext4::dirent::{Entry, TAIL, record_size, valid_name};
use ccfs_ext4::hash::{HashVersion, Hasher, NameHash};
use ccfs_ext4::htree::CONTINUED;
use ccfs_ext4::{Error, Result};

/// Smallest cookie of a name; smaller ones are for the front end's `.` and `..`.
const FIRST_COOKIE: u64 = 3;

fn dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// A name's place in the order of readdir: 31 bits of the major hash, 32 of the minor, at least 3, below 2^63-1.
pub(crate) fn cookie(hasher: &Hasher, name: &[u8]) -> u64 {
    cookie_from(hasher, hasher.hash(name), name)
}

fn cookie_from(hasher: &Hasher, hash: NameHash, name: &[u8]) -> u64 {
    // A listing goes on behind a cookie, so names that share one could be lost. The legacy function has no minor hash, and among
    // a few ten thousand names some share the major one.
    let minor = match hasher.version {
        HashVersion::Legacy => crc32c(!0, name),
        HashVersion::HalfMd4 | HashVersion::Tea => hash.minor,
    };
    ((u64::from(hash.major >> 1) << 32) | u64::from(minor)).max(FIRST_COOKIE)
}

/// Hands an entry to the caller of `dir_scan`.
pub(crate) fn give(
    entry: &Entry,
    cookie: u64,
    f: &mut dyn FnMut(DirEntry) -> bool,
) -> Result<bool> {
    if dots(entry.name) {
        return Ok(true);
    }
    entry.check_name()?;
    Ok(f(DirEntry {
        name: entry.name.to_vec(),
        ino: entry.ino,
        ftype: entry.ftype,
        cookie,
    }))
}

/// What a whole-directory listing calls for each entry.
type Each<'f> = &'f mut dyn FnMut(&Entry) -> Result<bool>;

/// Sorts all entries from a cookie on, then hands them out.
pub(crate) fn list_sorted(
    hasher: &Hasher,
    from: u64,
    all: &mut dyn FnMut(Each) -> Result<()>,
    f: &mut dyn FnMut(DirEntry) -> bool,
) -> Result<()> {
    let mut found = Vec::new();
    all(&mut |entry| {
        let cookie = cookie(hasher, entry.name);
        if cookie >= from {
            give(entry, cookie, &mut |entry| {
                found.push(entry);
                true
            })?;
        }
        Ok(true)
    })?;
    found.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
    for entry in found {
        if !f(entry) {
            break;
        }
    }
    Ok(())
}

impl Image {
    /// Makes the first block of a new directory: `.` and `..`. The directory's size is then one block.
    pub fn dir_init(&self, dir: Ino, parent: Ino) -> Result<()> {
        self.linear_indexes().forget(dir);
        self.absent.forget(dir);
        let mut dir = Dir::open(self, dir)?;
        let (format, ino) = (dir.format, dir.ino);
        if dir.blocks == 0 {
            dir.append(BlockKind::Leaf, |block| {
                format.init_dots(block, ino, parent)
            })?;
            return Ok(());
        }
        Err(dir.corrupt("is not new"))
    }

    /// Finds a name, `.` and `..` included: inode and type (0 on volumes without `filetype`). ENOTDIR for other inodes.
    pub fn dir_lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, u8)>> {
        if !dots(name) && self.absent.is_absent(dir, name) {
            return Ok(None);
        }
        let dir = Dir::open_filled(self, dir)?;
        if !valid_name(name) {
            return Ok(None);
        }
        let found = if dir.indexed() && dots(name) {
            dir.find_dot(name)?
        } else {
            dir.find(name)?
        };
        if found.is_none() && !dots(name) {
            self.absent.searched(&dir);
        }
        Ok(found.map(|(_, ino, ftype)| (ino, ftype)))
    }

    /// Adds a name, or gives an existing one another inode; returns inode and type that it had. Grows the directory, makes and splits its
    /// hash tree. EINVAL for names that cannot be stored and for dots; ENOSPC when volume or tree is full.
    pub fn dir_insert(
        &self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        ftype: u8,
    ) -> Result<Option<(Ino, u8)>> {
        let mut dir = Dir::open_filled(self, dir)?;
        if !valid_name(name) || dots(name) || ino == 0 || ino > dir.format.inodes_count {
            return Err(Error::Errno(libc::EINVAL));
        }
        self.absent.add(dir.ino, name, dir.blocks);
        if dir.indexed() {
            return htree::insert(&mut dir, name, ino, ftype);
        }
        match dir.survey_linear(name)? {
            (Some((lblk, ino_before, ftype_before)), _) => {
                dir.replace_linear(lblk, name, ino, ftype)?;
                Ok(Some((ino_before, ftype_before)))
            }
            (None, room) => {
                let done = dir.insert_unindexed(name, ino, ftype, room);
                done.map(|()| None)
            }
        }
    }

    /// Removes a name; returns inode and type that it had. Its room goes to the entry before it; the directory does not shrink.
    pub fn dir_remove(&self, dir: Ino, name: &[u8]) -> Result<Option<(Ino, u8)>> {
        let dir = Dir::open_filled(self, dir)?;
        if !valid_name(name) || dots(name) {
            return Err(Error::Errno(libc::EINVAL));
        }
        let Some((lblk, ino, ftype)) = dir.find(name)? else {
            return Ok(None);
        };
        if !dir.indexed() {
            dir.remove_linear(lblk, name)?;
        } else if !dir.modify(lblk, BlockKind::Leaf, |block| {
            dir.format.remove(block, name)
        })? {
            return Err(dir.corrupt("lost a name"));
        }
        Ok(Some((ino, ftype)))
    }

    /// Changes what `..` says.
    pub fn dir_set_parent(&self, dir: Ino, parent: Ino) -> Result<()> {
        const DIRECTORY: u8 = 2;
        let dir = Dir::open_filled(self, dir)?;
        if dir.indexed() {
            return dir.replace_in(0, dir.first_kind(), b"..", parent, DIRECTORY);
        }
        let (lblk, ..) = dir
            .find_linear(b"..")?
            .ok_or_else(|| dir.corrupt("has no `..`"))?;
        dir.replace_linear(lblk, b"..", parent, DIRECTORY)
    }

    /// Calls `f` for the entries with `cookie >= from`, in rising order of cookie and name, without dots, until it returns
    /// false. An indexed directory is read from the leaf of `from` on; any other is sorted as a whole.
    pub fn dir_scan(&self, dir: Ino, from: u64, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let dir = Dir::open_filled(self, dir)?;
        if !dir.indexed() {
            return dir.list_linear(from, f);
        }
        if htree::root_info(&dir)?.version != dir.hasher.version {
            return list_sorted(
                &dir.hasher,
                from,
                &mut |each| htree::for_each(&dir, each),
                f,
            );
        }
        dir.list_indexed(from, f)
    }

    /// True when there is nothing but `.` and `..`.
    pub fn dir_is_empty(&self, dir: Ino) -> Result<bool> {
        let dir = Dir::open_filled(self, dir)?;
        let mut empty = true;
        dir.for_each(&mut |entry| {
            empty = dots(entry.name);
            Ok(empty)
        })?;
        Ok(empty)
    }

    /// A lower bound of the insertions into this directory that cannot fail because its hash tree is full or it has reached
    /// 4 GiB. (Free blocks are another matter.) Only directories of many thousand blocks are near to it. Any bound that is `enough` will do.
    pub fn dir_headroom(&self, dir: Ino, enough: u64) -> Result<u64> {
        let dir = Dir::open_filled(self, dir)?;
        let by_size = dir.spare_blocks();
        if !dir.indexed() && !self.core.layout.dir_index {
            return Ok(by_size);
        }
        // An insertion takes a leaf at most, and a node now and then.
        Ok(htree::headroom(&dir, enough)?.min(by_size / 2))
    }

    /// Whether this name, which is absent, can be added next, where `dir_headroom` says that not every name can.
    pub fn dir_takes(&self, dir: Ino, name: &[u8]) -> Result<bool> {
        let dir = Dir::open_filled(self, dir)?;
        match dir.indexed() {
            true => htree::takes(&dir, name),
            false => Ok(false),
        }
    }

    /// Whether this name, which is absent, can be added without another block, together with the names `beside` it. May be false where only
    /// the order in which they are added decides.
    pub fn dir_has_room(&self, dir: Ino, name: &[u8], beside: &[&[u8]]) -> Result<bool> {
        let dir = Dir::open_filled(self, dir)?;
        match dir.indexed() {
            true => htree::has_room(&dir, name, beside),
            false => dir.has_room_linear(name, beside),
        }
    }

    /// As `dir_has_room`, of a directory that is not made yet: for all of these names.
    pub fn dir_has_room_new(&self, names: &[&[u8]]) -> bool {
        let l = &self.core.layout;
        let dots = record_size(1) + record_size(2);
        let sizes = names.iter().map(|name| record_size(name.len()));
        let end = l.block_size as usize - if l.metadata_csum { TAIL } else { 0 };
        dots + sizes.sum::<usize>() <= end
    }

    /// The volume's default hash. A number that names none is taken for half MD4, mke2fs's default.
    pub(crate) fn hasher(&self) -> Hasher {
        let layout = &self.core.layout;
        let version =
            HashVersion::from_disk(layout.def_hash_version).unwrap_or(HashVersion::HalfMd4);
        Hasher {
            version,
            unsigned: layout.unsigned_hash,
            seed: layout.hash_seed,
        }
    }

    /// A name's place in the order of `dir_scan`, the same in all directories: the hash by the volume's default function.
    pub fn cookie_of(&self, name: &[u8]) -> u64 {
        cookie(&self.hasher(), name)
    }
}

impl Dir<'_> {
    /// Finds a name: its block, inode and type. Dots are found in linear directories only.
    fn find(&self, name: &[u8]) -> Result<Option<(u32, Ino, u8)>> {
        if self.indexed() {
            htree::find(self, name)
        } else {
            self.find_linear(name)
        }
    }

    /// All entries, `.` and `..` perhaps included, until `f` says that it is enough.
    pub fn for_each(&self, f: &mut dyn FnMut(&Entry) -> Result<bool>) -> Result<()> {
        match self.indexed() {
            true => htree::for_each(self, f),
            false => self.scan_linear(&mut |_, entry| f(entry)),
        }
    }

    fn find_dot(&self, name: &[u8]) -> Result<Option<(u32, Ino, u8)>> {
        let block = self.read(0, self.first_kind())?;
        for entry in self.format.entries_of_index(&block).take(2) {
            let entry = entry?;
            if entry.ino != 0 && entry.name == name {
                return Ok(Some((0, entry.ino, entry.ftype)));
            }
        }
        Ok(None)
    }

    /// Gives a name that is in block `lblk` another inode.
    pub fn replace_in(
        &self,
        lblk: u32,
        kind: BlockKind,
        name: &[u8],
        ino: Ino,
        ftype: u8,
    ) -> Result<()> {
        self.modify(lblk, kind, |block| {
            let mut entries = match kind {
                BlockKind::Leaf => self.format.entries(block),
                BlockKind::Index(_) => self.format.entries_of_index(block),
            };
            let found = entries.find_map(|entry| match entry {
                Ok(entry) => (entry.ino != 0 && entry.name == name).then_some(Ok(entry.offset)),
                Err(error) => Some(Err(error)),
            });
            let offset = found.ok_or_else(|| self.corrupt("lost a name"))??;
            self.format.replace(block, offset, ino, ftype);
            Ok(())
        })
    }

    /// Adds an absent name to a directory that has no tree, into `room` if it was found. One whose only block is full gets a tree; longer ones have to wait for
    /// `Image::dir_build_tree`.
    fn insert_unindexed(
        &mut self,
        name: &[u8],
        ino: Ino,
        ftype: u8,
        room: Option<RoomIn>,
    ) -> Result<()> {
        let wants_tree = self.image.geometry().has_dir_index;
        if self.stale_index() {
            self.set_index_flag(false)?;
        }
        if let Some((lblk, room)) = room {
            let format = self.format;
            return self.modify(lblk, BlockKind::Leaf, |block| {
                format.insert_at(block, room, name, ino, ftype)
            });
        }
        if self.insert_linear(name, ino, ftype)? {
            return Ok(());
        }
        if wants_tree && self.blocks == 1 {
            return self.build_tree(name, ino, ftype);
        }
        self.grow_linear()?;
        match self.insert_linear(name, ino, ftype)? {
            true => Ok(()),
            false => Err(self.corrupt("has no room in a new block")),
        }
    }

    fn build_tree(&mut self, name: &[u8], ino: Ino, ftype: u8) -> Result<()> {
        self.image.linear_indexes().forget(self.ino);
        dirbuild::build(self, name, ino, ftype)
    }

    /// Lists a hash tree in its own order. Leaves that share a hash are sorted together.
    fn list_indexed(&self, from: u64, f: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let start = if from <= FIRST_COOKIE {
            0
        } else {
            u32::try_from(from >> 32).map_or(u32::MAX, |high| high.saturating_mul(2))
        };
        let mut path = Path::to_hash(self, start)?;
        let mut batch: Vec<DirEntry> = Vec::new();
        loop {
            self.read_batch(&path, from, &mut batch)?;
            if path.next_low()?.is_none_or(|low| low & CONTINUED == 0) {
                batch.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
                for entry in batch.drain(..) {
                    if !f(entry) {
                        return Ok(());
                    }
                }
            }
            if !path.advance()? {
                return Ok(());
            }
        }
    }

    /// Adds a leaf's entries from a cookie on to a batch; all must have hashes of this leaf, else the order would be wrong.
    fn read_batch(&self, path: &Path, from: u64, batch: &mut Vec<DirEntry>) -> Result<()> {
        let bounds = path.bounds()?;
        let block = path.read_leaf()?;
        for entry in self.format.entries(&block) {
            let entry = entry.map_err(|e| self.lies_in(path.leaf, e))?;
            if entry.ino == 0 || dots(entry.name) {
                continue;
            }
            let hash = self.hasher.hash(entry.name);
            if !bounds.hold(hash.major) {
                return Err(self.corrupt("has a name in the wrong leaf"));
            }
            let cookie = cookie_from(&self.hasher, hash, entry.name);
            if cookie >= from {
                give(&entry, cookie, &mut |entry| {
                    batch.push(entry);
                    true
                })?;
            }
        }
        Ok(())
    }
}
