//! What is reserved for names and for new files is enough for what committing and applying them takes (C9).
use super::Volume;
use crate::base::types::*;
use crate::core::options::Options;
use ccfs_device::FlashDevice;
use ccfs_disks::MemoryDevice;
use ccfs_ext4::dirent::record_size;
use ccfs_image::Run;
use ccfs_testkit::Rng;
use std::process::Command;
use std::sync::Arc;

const LONGEST: usize = 255;
/// Which leaf a name falls into hangs on it.
const SEED: &str = "hash_seed=00000000-0000-4000-8000-000000000001";

fn image(args: &[&str], mib: u32) -> Arc<MemoryDevice> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-E", SEED])
        .args(args)
        .arg(&path)
        .arg(format!("{mib}M"))
        .output()
        .expect("mke2fs");
    assert!(made.status.success(), "{made:?}");
    Arc::new(MemoryDevice::from_file(&path).unwrap())
}

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Volume> {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Volume::mount(FlashDevice::or_plain(dev.clone()).unwrap(), options).unwrap()
}

/// The volume after a program has looked at it or changed it.
fn by_program(dev: &MemoryDevice, program: &str, args: &[&str]) -> Arc<MemoryDevice> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    dev.to_file(&path).unwrap();
    let out = Command::new(program).args(args).arg(&path).output();
    let out = out.expect(program);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    Arc::new(MemoryDevice::from_file(&path).unwrap())
}

fn fsck(dev: &MemoryDevice) {
    by_program(dev, "e2fsck", &["-fn"]);
}

/// Directories of more than one block get a tree from now on.
fn with_dir_index(dev: &MemoryDevice) -> Arc<MemoryDevice> {
    by_program(dev, "tune2fs", &["-O", "dir_index"])
}

fn cx(stream: StreamId) -> Context {
    Context {
        umask: 0o022,
        ..Context::root(stream)
    }
}

impl Volume {
    /// All that may be committed is home.
    fn home(&self) {
        self.syncfs(&cx(StreamId(1))).unwrap();
        self.apply_ready().unwrap();
    }

    fn free(&self) -> u64 {
        self.image().alloc().free_blocks()
    }

    /// Leaves nothing but single blocks free: each block that a directory gets is an extent of its own.
    fn fragment(&self) {
        let (alloc, own) = (self.image().alloc(), self.space().own_reserve());
        // What lies in the engine's own reserve as well.
        alloc.unreserve(0, own);
        let mut runs = Vec::new();
        while let Some(run) = alloc.allocate_unreserved(0, 1 << 12) {
            runs.push(run);
        }
        for run in runs {
            for pblk in (run.pblk..run.pblk + run.len).step_by(2) {
                alloc.release(Run { pblk, len: 1 });
            }
        }
        assert!(alloc.reserve(0, own));
    }
}

/// Unique names.
struct Names {
    rng: Rng,
    made: u32,
}

impl Names {
    fn new(seed: u64) -> Names {
        Names {
            rng: Rng::new(seed),
            made: 0,
        }
    }

    /// One of that many bytes, four at least.
    fn of(&mut self, len: usize) -> Vec<u8> {
        let mut n = self.made;
        self.made += 1;
        let mut name = vec![b'-'; len.max(4)];
        for at in &mut name[..4] {
            *at =
                b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[n as usize % 62];
            n /= 62;
        }
        name
    }

    fn between(&mut self, (least, most): (usize, usize)) -> Vec<u8> {
        let len = least + self.rng.below((most - least + 1) as u64) as usize;
        self.of(len)
    }
}

/// A directory of the image, changed there alone: what applying does to it.
struct Dir<'v> {
    v: &'v Volume,
    ino: Ino,
    /// Shortest and longest name.
    lens: (usize, usize),
    names: Names,
    have: Vec<Vec<u8>>,
}

impl Dir<'_> {
    fn blocks(&self) -> u64 {
        self.size() / u64::from(self.v.block_size())
    }

    fn size(&self) -> u64 {
        self.v.image().read_attr(self.ino).unwrap().size
    }

    fn add(&mut self, name: Vec<u8>) {
        let inserted = self.v.image().dir_insert(self.ino, &name, self.ino, 2);
        assert_eq!(inserted.unwrap(), None);
        self.have.push(name);
    }

    fn has_room(&self, name: &[u8]) -> bool {
        self.v.image().dir_has_room(self.ino, name, &[]).unwrap()
    }

    /// Its leaf has room, or the node above for one leaf more.
    fn takes(&self, name: &[u8]) -> bool {
        self.v.image().dir_takes(self.ino, name).unwrap()
    }

    fn grow(&mut self, blocks: u64) {
        while self.blocks() < blocks {
            let name = self.names.between(self.lens);
            self.add(name);
        }
    }

    /// Until hardly a name finds room: in the leaves, or (`nodes`) in the nodes as well.
    fn fill(&mut self, nodes: bool) {
        let mut refused = 0;
        while refused < self.blocks().min(300) {
            let name = self.names.between(self.lens);
            if self.has_room(&name) || nodes && self.takes(&name) {
                self.add(name);
                refused = 0;
            } else {
                refused += 1;
            }
        }
    }

    fn remove_some(&mut self, n: u64) {
        for _ in 0..n.min(self.have.len() as u64 / 2) {
            let at = self.names.rng.below(self.have.len() as u64) as usize;
            let name = self.have.swap_remove(at);
            let removed = self.v.image().dir_remove(self.ino, &name).unwrap();
            assert!(removed.is_some());
        }
    }

    /// A name for whose leaf and node there is no room, if one is found soon; else one for whose leaf there is none.
    fn worst(&mut self) -> Vec<u8> {
        const LOOKS: usize = 12;
        let all: Vec<_> = (0..LOOKS).map(|_| self.names.between(self.lens)).collect();
        let found = all.iter().find(|name| !self.takes(name));
        let found = found.or_else(|| all.iter().find(|name| !self.has_room(name)));
        found.unwrap_or(&all[0]).clone()
    }

    /// Adds names as one transaction does that begins when the directory has `size` bytes. Returns the blocks that they took, and
    /// what would have been reserved.
    fn transaction(&mut self, size: u64, added: u64, worst: bool) -> (u64, u64) {
        let before = self.v.free();
        let mut waiting = 0;
        for _ in 0..added {
            let name = match worst {
                true => self.worst(),
                false => self.names.between(self.lens),
            };
            waiting += record_size(name.len()) as u64;
            self.add(name);
        }
        let most = self.v.names_blocks(added, size, waiting);
        (before - self.v.free(), most)
    }
}

/// Directories of a volume. Returns how near the bound was, per cent.
fn tightest_of(args: &[&str], seed: u64) -> u64 {
    const NODES: u64 = 300;
    let block_size: u64 = args[1].parse().unwrap();
    let v = mount(&image(args, 64));
    let c = cx(StreamId(1));
    let kinds = [(4, 8), (4, LONGEST), (200, LONGEST), (LONGEST, LONGEST)];
    let mut dirs = Vec::new();
    for lens in kinds {
        for blocks in [1, 2, 40 * 1024 / block_size] {
            let name = format!("{lens:?}{blocks}");
            let ino = v.mkdir(&c, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino;
            dirs.push((ino, lens, blocks));
        }
    }
    // So many that there are nodes, of small blocks.
    if block_size == 1024 {
        let ino = v.mkdir(&c, ROOT_INO, b"nodes", 0o755).unwrap().ino;
        dirs.push((ino, (LONGEST, LONGEST), NODES));
    }
    v.home();
    v.fragment();
    let mut tightest = 0;
    for (n, (ino, lens, blocks)) in (0..).zip(dirs) {
        let names = Names::new(seed << 8 | n);
        let have = Vec::new();
        let v = &*v;
        let mut dir = Dir {
            v,
            ino,
            lens,
            names,
            have,
        };
        dir.grow(blocks);
        for (turn, added) in (0..).zip([1, 2, 3, 5, 1, 9, 30, 100, 2]) {
            // Short names would be too many.
            if lens.0 == 4 && added * block_size > 30 << 10 {
                continue;
            }
            dir.fill(blocks == NODES && turn < 4);
            // A commit's removals come first.
            if turn % 3 == 2 {
                dir.remove_some(added);
            }
            let (used, most) = dir.transaction(dir.size(), added, turn % 4 < 3);
            assert!(
                used <= most,
                "{args:?}, seed {seed}, names of {lens:?} bytes: {added} took {used} blocks of {most}; {} blocks",
                dir.blocks()
            );
            tightest = tightest.max(used * 100 / most);
        }
    }
    tightest
}

/// Every leaf full, of small blocks every node as well, free space in single blocks, names that find no room.
#[test]
fn names_take_no_more_blocks_than_reserved() {
    let features = [
        "dir_index",
        "^dir_index",
        "^extent,^64bit",
        "^metadata_csum,^64bit",
    ];
    let mut tightest = Vec::new();
    for (n, size) in (0..).zip(["1024", "2048", "4096"]) {
        for (m, features) in (0..).zip(features) {
            let args = ["-b", size, "-O", features, "-N", "1024"];
            tightest.push(tightest_of(&args, n * 8 + m));
        }
    }
    // It would be seen if the bound were a half of what it is.
    let near = tightest.iter().filter(|&&t| t > 60).count();
    assert!(near >= 3, "{tightest:?} per cent");
}

/// A linear directory gets its tree just before the names come, which were reserved for by its old size; the tree has more leaves.
#[test]
fn a_new_tree_takes_the_names_as_well() {
    for block_size in ["1024", "4096"] {
        for added in [3, 50, 400, 3000] {
            let args = ["-b", block_size, "-N", "1024", "-O", "^dir_index"];
            let mut s = Streams::new(&args, 64, added);
            let file = s.file("file");
            for _ in 0..1200 {
                let name = s.names.between((100, LONGEST));
                s.v.link(&cx(StreamId(2)), file, s.d, &name).unwrap();
            }
            s.v.unmount().unwrap();
            let v = mount(&with_dir_index(&s.dev));
            let mut dir = Dir {
                v: &v,
                ino: s.d,
                lens: (100, LONGEST),
                names: s.names,
                have: Vec::new(),
            };
            let (size, image) = (dir.size(), v.image());
            let tree = image.dir_build_tree(s.d, 1000, true, &|| Ok(()));
            assert!(image.dir_adopt_tree(tree.unwrap().unwrap()).unwrap());
            let leaves = dir.blocks() * u64::from(v.block_size());
            assert!(leaves > size, "{leaves} bytes, {size} before");
            v.fragment();
            let (used, most) = dir.transaction(size, added, true);
            assert!(used <= most, "{block_size}, {added}: {used} of {most}");
        }
    }
}

/// A volume with a directory and a file of its own for each of some streams, which links to it make names of.
struct Streams {
    dev: Arc<MemoryDevice>,
    v: Arc<Volume>,
    d: Ino,
    names: Names,
}

impl Streams {
    fn new(args: &[&str], mib: u32, seed: u64) -> Streams {
        let dev = image(args, mib);
        let v = mount(&dev);
        let d = v
            .mkdir(&cx(StreamId(1)), ROOT_INO, b"d", 0o755)
            .unwrap()
            .ino;
        v.home();
        let names = Names::new(seed);
        Streams { dev, v, d, names }
    }

    fn file(&self, name: &str) -> Ino {
        let c = cx(StreamId(1));
        let made = self.v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0);
        self.v.home();
        made.unwrap().ino
    }

    fn link(&mut self, stream: StreamId, file: Ino) -> Vec<u8> {
        let name = self.names.of(LONGEST);
        self.v.link(&cx(stream), file, self.d, &name).unwrap();
        name
    }

    /// Full leaves, made by another stream.
    fn fill(&mut self, file: Ino, names: usize) {
        let stream = StreamId(2);
        for _ in 0..names {
            self.link(stream, file);
        }
        self.v.home();
        // What finds no room is left out.
        let mut refused = 0;
        while refused < 300 {
            let mut batch: Vec<Vec<u8>> = Vec::new();
            for _ in 0..600 {
                let name = self.names.of(LONGEST);
                let beside: Vec<&[u8]> = batch.iter().map(|name| &name[..]).collect();
                match self.v.image().dir_has_room(self.d, &name, &beside).unwrap() {
                    true => batch.push(name),
                    false => refused += 1,
                }
            }
            for name in batch {
                refused = 0;
                self.v.link(&cx(stream), file, self.d, &name).unwrap();
            }
            self.v.home();
        }
    }
}

/// Open groups have names in a directory that was small when they were made. Another stream fills many leaves before the groups are
/// committed: most of their names need a leaf of their own then. Meanwhile all free blocks went to somebody else, and the groups still have theirs.
#[test]
fn others_may_make_more_leaves_before() {
    const NAMES: [usize; 3] = [250, 20, 130];
    let mut s = Streams::new(&["-b", "4096", "-N", "1024"], 16, 7);
    let (other, data) = (s.file("other"), s.file("data"));
    let mut names = Vec::new();
    let groups = NAMES.map(|count| {
        let own = s.file(&format!("own{count}"));
        let group = s.v.group_begin(StreamId(3), 0, None).unwrap();
        names.extend((0..count).map(|_| s.link(group, own)));
        group
    });
    s.fill(other, 9000);
    let (mut at, block) = (0, vec![1; 4096]);
    let c = cx(StreamId(2));
    while let Ok(n) = s.v.write(&c, data, at, &block, WriteFlags::default()) {
        at += n as u64;
    }
    s.v.home();
    let (reserved, before) = (s.v.space().reserved(), s.v.free());
    for group in groups {
        s.v.group_commit(group, true).unwrap();
        s.v.apply_ready().unwrap();
    }
    let used = before - s.v.free();
    let most = NAMES.iter().sum::<usize>() as u64;
    assert!(used > most / 2, "{used} blocks: the leaves were not full");
    assert!(used <= reserved, "{used} blocks, {reserved} reserved");
    assert_eq!(s.v.space().reserved(), 0);
    names.retain(|name| s.v.lookup(s.d, name).is_err());
    assert!(names.is_empty());
    s.v.unmount().unwrap();
    fsck(&s.dev);
}

/// Streams that add, remove and rename names in one directory, committed in any order: what is reserved for those that wait is always enough.
#[test]
fn what_waits_has_its_blocks() {
    for (seed, size) in (0..).zip(["1024", "2048", "4096", "1024", "2048", "4096"]) {
        let mut s = Streams::new(&["-b", size, "-N", "1024"], 64, seed);
        let files: Vec<_> = (0..4).map(|n| s.file(&format!("f{n}"))).collect();
        let mut have: Vec<Vec<Vec<u8>>> = vec![Vec::new(); files.len()];
        for turn in 0..60 {
            let n = s.names.rng.below(files.len() as u64) as usize;
            let c = cx(StreamId(10 + n as u64));
            for _ in 0..s.names.rng.below(120) {
                let at = s.names.rng.below(have[n].len() as u64 + 1) as usize;
                match s.names.rng.below(8) {
                    0 if at < have[n].len() => {
                        let name = have[n].swap_remove(at);
                        s.v.unlink(&c, s.d, &name).unwrap();
                    }
                    1 if at < have[n].len() => {
                        let flags = RenameFlags::default();
                        let (old, new) = (have[n].swap_remove(at), s.names.between((4, LONGEST)));
                        s.v.rename(&c, s.d, &old, s.d, &new, flags).unwrap();
                        have[n].push(new);
                    }
                    _ => {
                        let name = s.names.between((4, LONGEST));
                        s.v.link(&c, files[n], s.d, &name).unwrap();
                        have[n].push(name);
                    }
                }
            }
            if turn % 3 == 2 {
                let (reserved, before) = (s.v.space().reserved(), s.v.free());
                match s.names.rng.below(4) {
                    0 => s.v.syncfs(&c).unwrap(),
                    _ => s.v.fsync(&c, files[n], false).unwrap(),
                }
                s.v.apply_ready().unwrap();
                let (left, used) = (s.v.space().reserved(), before - s.v.free());
                assert!(
                    used + left <= reserved,
                    "seed {seed}: {used} blocks, {reserved} reserved, {left} left"
                );
            }
        }
        s.v.home();
        assert_eq!(s.v.space().reserved(), 0);
        for name in have.iter().flatten() {
            s.v.lookup(s.d, name).unwrap();
        }
        s.v.unmount().unwrap();
        fsck(&s.dev);
    }
}

/// Files that are new in their transaction, of which next to nothing is reserved while they are small: blocks in every order, preallocation, holes,
/// attributes, other names; free space in single blocks.
#[test]
fn new_files_take_no_more_blocks_than_reserved() {
    let features = ["extent", "^extent,^64bit"];
    for (seed, inode_size) in (0..).zip(["128", "256", "128", "256"]) {
        let features = features[seed as usize / 2];
        let args = ["-b", "1024", "-N", "8192", "-I", inode_size, "-O", features];
        let (v, c) = (mount(&image(&args, 64)), cx(StreamId(1)));
        v.fragment();
        let (mut rng, bs) = (Rng::new(seed), u64::from(v.block_size()));
        for turn in 0..60 {
            // Every other transaction: one write a file, which leaves nothing reserved that others could use.
            let changes = if turn % 2 == 0 { 12 } else { 1 };
            for n in 0..1 + rng.below(40) {
                let name = format!("{turn}-{n}");
                let name = name.as_bytes();
                let ino = v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
                // As many as an inode has room for, or more.
                let blocks = 4 + rng.below(4).min(1) * rng.below(20);
                for _ in 0..rng.below(changes).max(1) {
                    let at = if changes == 1 { 0 } else { rng.below(blocks) };
                    let len = match changes {
                        1 => blocks,
                        _ => 1 + rng.below(blocks - at),
                    };
                    let (from, bytes) = (at * bs + rng.below(2) * 100, len * bs - 100);
                    match rng.below(10).max(10 / changes) {
                        0 => {
                            let how = Fallocate::Allocate { keep_size: true };
                            let _ = v.fallocate(&c, ino, how, from, bytes);
                        }
                        1 => {
                            let how = Fallocate::PunchHole;
                            v.fallocate(&c, ino, how, from, bytes).unwrap();
                        }
                        2 => {
                            let size = SetAttr {
                                size: Some(from),
                                ..SetAttr::default()
                            };
                            v.setattr(&c, ino, &size).unwrap();
                        }
                        3 if rng.chance(30) => {
                            let value = vec![b'x'; 10 + rng.index(700)];
                            let name = b"user.x";
                            v.setxattr(&c, ino, name, &value, false, false, false)
                                .unwrap();
                        }
                        _ => {
                            let bytes = vec![1; bytes as usize];
                            v.write(&c, ino, from, &bytes, WriteFlags::default())
                                .unwrap();
                        }
                    }
                }
                // It takes the place of the one before, or is one of more.
                if n > 0 && rng.chance(20) {
                    let old = format!("{turn}-{}", n - 1);
                    let flags = RenameFlags::default();
                    v.rename(&c, ROOT_INO, name, ROOT_INO, old.as_bytes(), flags)
                        .unwrap();
                }
            }
            let (reserved, before) = (v.space().reserved(), v.free());
            v.home();
            let used = before - v.free();
            assert!(
                used <= reserved,
                "{args:?}, turn {turn}: {used} blocks, {reserved} reserved"
            );
            assert_eq!(v.space().reserved(), 0);
        }
    }
}
