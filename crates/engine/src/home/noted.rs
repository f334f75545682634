//! The image as the engine sees it: no call's error leaves it before what is corrupt has been noted in the super block (`Image::met`), told
//! and sent on its way home. The image itself can be reached in no other way, so no call can forget that.
use crate::base::types::*;
use crate::core::wakeup::Wakeup;
use ccfs_ext4::Error;
use ccfs_image::{
    Allocator, BlockImage, DirEntry, Flush, Gathered, Geometry, Growth, Image, InodeAttr, Mapping,
    Met, NewTree, Pblk, Run, ScrubAt, ScrubStep,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many messages about damage in so long a time; the others are counted.
const MESSAGES_MAX: u32 = 16;
const MESSAGES_PER: Duration = Duration::from_secs(60);

/// An attribute as the image gives it: index, name, value.
type Attribute = (u8, Vec<u8>, Vec<u8>);

pub(crate) struct NotedImage {
    image: Image,
    wakeup: Arc<Wakeup>,
    /// Nothing is ever written to the device.
    read_only: bool,
    told: Arc<Mutex<Told>>,
}

/// What was said of damage lately.
struct Told {
    since: Instant,
    messages: u32,
    left_out: u64,
}

/// Calls that can meet damage. The first argument is the inode that they are about.
macro_rules! noting {
    ($(fn $name:ident($ino:ident $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        impl NotedImage {
            $(pub fn $name(&self, $ino: Ino $(, $arg: $type)*) -> Result<$out> {
                self.met($ino, self.image.$name($ino $(, $arg)*))
            })*
        }
    };
}

noting! {
    fn read_attr(ino) -> InodeAttr;
    fn blocks512(ino) -> u64;
    fn write_attr(ino, attr: &InodeAttr) -> ();
    fn approach_inode(ino, blocks: u32) -> bool;
    fn create_inode(ino, attr: &InodeAttr) -> ();
    fn clear_inode(ino, dtime: u32) -> ();
    fn set_fast_symlink(ino, target: &[u8]) -> ();
    fn fast_symlink(ino) -> Option<Vec<u8>>;
    fn lookup(ino, lblk: u64) -> Mapping;
    fn next_data(ino, lblk: u64) -> Option<Mapping>;
    fn set(ino, lblk: u64, len: u64, pblk: Pblk, unwritten: bool) -> bool;
    fn clear(ino, lblk: u64, len: u64, budget: usize) -> Option<u64>;
    fn has_deep_extents(ino) -> bool;
    fn settle_extents(ino) -> bool;
    fn dir_init(dir, parent: Ino) -> ();
    fn dir_lookup(dir, name: &[u8]) -> Option<(Ino, u8)>;
    fn dir_insert(dir, name: &[u8], ino: Ino, ftype: u8) -> Option<(Ino, u8)>;
    fn dir_remove(dir, name: &[u8]) -> Option<(Ino, u8)>;
    fn dir_set_parent(dir, parent: Ino) -> ();
    fn dir_scan(dir, from: u64, f: &mut dyn FnMut(DirEntry) -> bool) -> ();
    fn dir_is_empty(dir) -> bool;
    fn dir_headroom(dir, enough: u64) -> u64;
    fn dir_takes(dir, name: &[u8]) -> bool;
    fn dir_has_room(dir, name: &[u8], beside: &[&[u8]]) -> bool;
    fn dir_wants_tree(ino) -> bool;
    fn dir_pieces(ino, most: usize) -> usize;
    fn dir_gather(ino, from: u32, pieces: usize, flush: Flush<'_>) -> Option<Gathered>;
    fn dir_build_tree(ino, pieces_max: usize, spare: bool, flush: Flush<'_>) -> Option<NewTree>;
    fn xattr_get(ino, index: u8, name: &[u8]) -> Option<Vec<u8>>;
    fn xattr_all(ino) -> Vec<Attribute>;
    fn xattr_fits(ino, all: &[Attribute]) -> bool;
    fn xattr_blocks_taken(ino, all: &[Attribute], changed: bool) -> u64;
    fn xattr_replace_all(ino, all: &[Attribute]) -> ();
}

/// Calls about the whole volume.
impl NotedImage {
    pub fn dir_adopt_gathered(&self, gathered: Gathered) -> Result<Option<u32>> {
        self.met(gathered.ino(), self.image.dir_adopt_gathered(gathered))
    }
    pub fn dir_adopt_tree(&self, tree: NewTree) -> Result<bool> {
        self.met(tree.ino(), self.image.dir_adopt_tree(tree))
    }
    pub fn xattr_blocks(&self, ino: Ino) -> u64 {
        self.image.xattr_blocks(ino)
    }
    pub fn xattr_fits_new(&self, all: &[Attribute]) -> Result<bool> {
        self.met(0, self.image.xattr_fits_new(all))
    }
    pub fn xattr_blocks_of_new(&self, all: &[Attribute]) -> Result<u64> {
        self.met(0, self.image.xattr_blocks_of_new(all))
    }
    pub fn nameless_inodes(&self) -> Result<Vec<Ino>> {
        self.met(0, self.image.nameless_inodes())
    }
    pub fn size_if_grown(&self, blocks: u64) -> Result<Option<u64>> {
        self.image.size_if_grown(blocks)
    }
    pub fn next_growth(&self, blocks: u64) -> Result<Option<Growth>> {
        self.image.next_growth(blocks)
    }
    pub fn write_new_groups(&self, step: &Growth) -> Result<()> {
        self.met(0, self.image.write_new_groups(step))
    }
    pub fn begin_growth(&self, step: &Growth) -> Result<()> {
        self.met(0, self.image.begin_growth(step))
    }
    pub fn finish_growth(&self, step: &Growth) -> Result<()> {
        self.met(0, self.image.finish_growth(step))
    }
    pub fn resize_inode_is_right(&self) -> Result<bool> {
        self.met(0, self.image.resize_inode_is_right())
    }
    pub fn settle_resize_inode(&self, at: u32, most: u32) -> Result<Option<u32>> {
        self.met(0, self.image.settle_resize_inode(at, most))
    }
    pub fn renew_old_backups(&self) -> Result<()> {
        self.met(0, self.image.renew_old_backups())
    }
    pub fn write_in_flight(&self, on: bool) -> Result<()> {
        self.met(0, self.image.write_in_flight(on))
    }
    pub fn scrub(&self, at: ScrubAt, blocks: u64, time: Duration) -> ScrubStep {
        let step = self.image.scrub(at, blocks, time);
        self.tell();
        step
    }
    /// What it meets are bitmaps and descriptors, which the image notes itself; they are told with the next word about damage.
    pub fn alloc(&self) -> &Allocator {
        self.image.alloc()
    }
}

/// What meets nothing.
impl NotedImage {
    pub fn geometry(&self) -> &Geometry {
        self.image.geometry()
    }
    pub fn super_block_at(&self) -> Pblk {
        self.image.super_block_at()
    }
    pub fn dir_has_room_new(&self, names: &[&[u8]]) -> bool {
        self.image.dir_has_room_new(names)
    }
    pub fn cookie_of(&self, name: &[u8]) -> u64 {
        self.image.cookie_of(name)
    }
    pub fn take_freed(&self) -> Vec<Run> {
        self.image.take_freed()
    }
    pub fn take_dirty(&self) -> Vec<BlockImage> {
        self.image.take_dirty()
    }
    pub fn take_dirty_but_counts(&self) -> Vec<BlockImage> {
        self.image.take_dirty_but_counts()
    }
    pub fn written(&self, blocks: &[BlockImage]) {
        self.image.written(blocks);
    }
    pub fn dirty_len(&self) -> usize {
        self.image.dirty_len()
    }
}

impl NotedImage {
    pub fn new(image: Image, wakeup: Arc<Wakeup>, read_only: bool) -> NotedImage {
        NotedImage {
            image,
            wakeup,
            read_only,
            told: Arc::new(Mutex::new(Told {
                since: Instant::now(),
                messages: 0,
                left_out: 0,
            })),
        }
    }

    /// See [`Image::non_blocking`].
    pub fn non_blocking(&self) -> NotedImage {
        NotedImage {
            image: self.image.non_blocking(),
            wakeup: self.wakeup.clone(),
            read_only: self.read_only,
            told: self.told.clone(),
        }
    }

    /// A result on its way to a caller: what is corrupt is noted, for `ino` (0: no inode's).
    pub fn met<T>(&self, ino: Ino, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Error::Corrupt(_))) {
            let result = self.image.met(ino, result);
            self.tell();
            return result;
        }
        result
    }

    /// The error of a structure that the engine itself found corrupt.
    #[track_caller]
    pub fn corrupt<T>(&self, ino: Ino, what: String) -> Result<T> {
        self.met(ino, Err(Error::corrupt(what)))
    }

    /// Says what was met since the last call, and has the mark brought home.
    pub fn tell(&self) {
        let news = self.image.damages().take_news();
        if news.is_empty() {
            return;
        }
        let mut told = self.told.lock();
        if told.since.elapsed() >= MESSAGES_PER {
            (told.since, told.messages) = (Instant::now(), 0);
            let left_out = std::mem::take(&mut told.left_out);
            if left_out > 0 {
                tracing::error!("damage: {left_out} more places were met");
            }
        }
        for met in &news {
            if told.messages < MESSAGES_MAX {
                told.messages += 1;
                tracing::error!("damage: {}; {}", place(met), self.advice());
            } else {
                told.left_out += 1;
            }
        }
        drop(told);
        self.wakeup.want(|w| w.apply = true);
    }

    fn advice(&self) -> &'static str {
        match self.read_only {
            true => {
                "the volume is open read-only, so its super block does not remember it; unmount it and run ccfs fsck -f"
            }
            false => "the super block remembers it; unmount the volume and run ccfs fsck",
        }
    }

    /// The mark of damage is not at home yet, and it is the first one (`Some(true)`) or a further one.
    pub fn unmarked(&self) -> Option<bool> {
        self.image
            .damages()
            .has_unmarked()
            .then(|| self.image.damages().marked() == 0)
    }

    /// To be called before dirty blocks are taken; the number is for [`marked`](NotedImage::marked) when they are home.
    pub fn marks(&self) -> u64 {
        self.tell();
        self.image.damages().count()
    }

    pub fn marked(&self, marks: u64) {
        self.image.damages().mark(marks);
    }

    /// For `status`.
    pub fn damage(&self) -> crate::core::status::DamageStatus {
        self.tell();
        let (recorded, errors) = self.image.recorded_errors();
        let (first, last) = errors.unzip();
        crate::core::status::DamageStatus {
            met: self.image.damages().count(),
            error_count: recorded,
            recorded: !self.read_only && self.unmarked().is_none(),
            first_error: first.map(Into::into),
            last_error: last.map(Into::into),
        }
    }
}

/// "directory block 1234: wrong checksum (inode 12, block 1234)".
pub(crate) fn place(met: &Met) -> String {
    let mut places = Vec::new();
    if met.ino != 0 {
        places.push(format!("inode {}", met.ino));
    }
    if met.pblk != 0 {
        places.push(format!("block {}", met.pblk));
    }
    match places.is_empty() {
        true => met.what.clone(),
        false => format!("{} ({})", met.what, places.join(", ")),
    }
}
