//! Volumes made by mke2fs, changed through `Image` beside a simple model, judged by e2fsck.
#![allow(dead_code)]

use ccfs_device::{Device, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_ext4::Result;
use ccfs_image::{Image, Ino, InodeAttr, OpenOptions};
pub use ccfs_testkit::Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use tempfile::TempDir;

/// Every shape of volume that the tests go through: name, MiB, arguments of mke2fs.
pub const SHAPES: &[(&str, u64, &[&str])] = &[
    ("default 4K", 64, &["-b", "4096"]),
    ("default 1K", 40, &["-b", "1024"]),
    ("default 2K", 64, &["-b", "2048"]),
    (
        "groups of 1K",
        24,
        &["-b", "1024", "-g", "2048", "-N", "4096"],
    ),
    (
        "no 64bit, 128-byte inodes",
        32,
        &["-b", "1024", "-I", "128", "-O", "^64bit"],
    ),
    ("1024-byte inodes", 48, &["-b", "4096", "-I", "1024"]),
    (
        "uninit_bg",
        48,
        &[
            "-b",
            "1024",
            "-O",
            "^metadata_csum,uninit_bg",
            "-E",
            "lazy_itable_init=1",
        ],
    ),
    (
        "lazy tables",
        48,
        &["-b", "1024", "-E", "lazy_itable_init=1"],
    ),
    (
        "no checksums",
        32,
        &["-b", "1024", "-O", "^metadata_csum,^uninit_bg"],
    ),
    ("no flex_bg", 32, &["-b", "1024", "-O", "^flex_bg"]),
    (
        "meta_bg",
        48,
        &[
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode",
            "-g",
            "1024",
            "-N",
            "8192",
        ],
    ),
    (
        "sparse_super2",
        48,
        &["-b", "1024", "-O", "sparse_super2,^resize_inode"],
    ),
    (
        "no sparse_super",
        48,
        &["-b", "1024", "-O", "^sparse_super,^resize_inode"],
    ),
    (
        "packed metadata",
        48,
        &["-b", "1024", "-E", "packed_meta_blocks=1"],
    ),
    (
        "flex groups of 4",
        48,
        &["-b", "1024", "-g", "1024", "-G", "4", "-N", "8192"],
    ),
    (
        "stable inodes, raid",
        48,
        &[
            "-b",
            "4096",
            "-O",
            "stable_inodes",
            "-E",
            "stride=8,stripe_width=64",
        ],
    ),
    (
        "csum seed, orphan file",
        32,
        &["-b", "4096", "-O", "metadata_csum_seed,orphan_file"],
    ),
    ("ext3 1K", 32, &["-b", "1024", "-t", "ext3"]),
    ("ext3 4K", 64, &["-b", "4096", "-t", "ext3"]),
    ("ext2", 32, &["-b", "1024", "-t", "ext2"]),
];

pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Makes a volume's file.
pub fn mkfs(path: &Path, mib: u64, args: &[&str]) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(mib << 20)
        .unwrap();
    let mut all = vec!["-q", "-F"];
    if !args.contains(&"-t") {
        all.extend(["-t", "ext4"]);
    }
    all.extend(args);
    all.push(path.to_str().unwrap());
    let out = run("mke2fs", &all);
    assert!(out.status.success(), "mke2fs {args:?}: {out:?}");
}

/// Lines of e2fsck that are advice and not complaints.
fn is_advice(line: &str) -> bool {
    line.contains("could be narrower") || line.contains("could be shorter")
}

pub struct Volume {
    pub temp: TempDir,
    pub path: PathBuf,
    pub dev: Arc<MemoryDevice>,
    pub image: Image,
}

impl Volume {
    pub fn make(mib: u64, args: &[&str]) -> Volume {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("volume");
        mkfs(&path, mib, args);
        Volume::open(temp, path)
    }

    pub fn open(temp: TempDir, path: PathBuf) -> Volume {
        let dev = Arc::new(MemoryDevice::from_file(&path).unwrap());
        let image = open(&dev).unwrap();
        Volume {
            temp,
            path,
            dev,
            image,
        }
    }

    /// Brings everything home.
    pub fn home(&self) {
        home(&self.image, &self.dev);
    }

    /// Everything home, then e2fsck must find nothing.
    pub fn check(&self, what: &str) {
        self.home();
        self.dev.to_file(&self.path).unwrap();
        fsck(&self.path, what);
    }

    pub fn debugfs(&self, command: &str) -> String {
        let out = run("debugfs", &["-R", command, self.path.to_str().unwrap()]);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }
}

pub fn open(dev: &Arc<MemoryDevice>) -> Result<Image> {
    Image::open(
        dev.clone() as Arc<dyn Device>,
        OpenOptions {
            cache_bytes: 1 << 20,
            ..OpenOptions::default()
        },
    )
}

pub fn home(image: &Image, dev: &MemoryDevice) {
    let bound = image.dirty_len();
    let blocks = image.take_dirty();
    assert!(
        blocks.len() <= bound,
        "{} blocks, dirty_len said {bound}",
        blocks.len()
    );
    assert!(blocks.windows(2).all(|w| w[0].0 < w[1].0));
    let bs = u64::from(image.geometry().block_size);
    let writes = blocks
        .iter()
        .map(|(pblk, buf)| Write::new(pblk * bs, buf.clone()))
        .collect();
    write_all(dev, writes).unwrap();
    image.written(&blocks);
}

pub fn fsck(path: &Path, what: &str) {
    let out = run("e2fsck", &["-fn", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let complaint = text.lines().any(|l| l.contains('?') && !is_advice(l));
    if !out.status.success() || complaint {
        let keep = std::env::temp_dir().join("ccfs-image-failed");
        if std::env::var_os("CCFS_KEEP").is_some() {
            std::fs::copy(path, &keep).unwrap();
        }
        panic!("{what}: {text}\n{}", String::from_utf8_lossy(&out.stderr));
    }
}

pub fn attr(mode: u16) -> InodeAttr {
    InodeAttr {
        mode,
        nlink: 1,
        atime: (1, 0),
        mtime: (2, 0),
        ctime: (3, 0),
        crtime: (4, 0),
        ..InodeAttr::default()
    }
}

/// What a file is thought to be.
#[derive(Clone, Default)]
pub struct File {
    pub name: Vec<u8>,
    /// Block of the file -> (block of the volume, unwritten).
    pub blocks: BTreeMap<u64, (u64, bool)>,
}

/// A volume with regular files in the root, and what they should be.
pub struct Model<'a> {
    pub image: &'a Image,
    pub rng: Rng,
    pub files: BTreeMap<Ino, File>,
    /// Largest block number of a file that is used.
    pub span: u64,
    pub unwritten: bool,
    next_name: u64,
}

impl<'a> Model<'a> {
    pub fn new(image: &'a Image, seed: u64) -> Model<'a> {
        let g = image.geometry();
        let span = if g.has_extents {
            1 << 31
        } else {
            g.max_file_size_blockmap / u64::from(g.block_size)
        };
        Model {
            image,
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            span,
            unwritten: g.has_extents,
            next_name: 0,
        }
    }

    pub fn create(&mut self) {
        let Ok(ino) = self.image.alloc().allocate_inode(2, false) else {
            return;
        };
        self.next_name += 1;
        let name = format!("file{}", self.next_name).into_bytes();
        self.image.create_inode(ino, &attr(0o100644)).unwrap();
        self.image.dir_insert(2, &name, ino, 1).unwrap();
        let known = self.files.insert(
            ino,
            File {
                name,
                blocks: BTreeMap::new(),
            },
        );
        assert!(known.is_none(), "inode {ino} was given out twice");
    }

    fn any(&mut self) -> Option<Ino> {
        let n = self.rng.below(self.files.len() as u64) as usize;
        self.files.keys().nth(n).copied()
    }

    /// A place in a file: behind its end, in the middle, or far away.
    fn place(&mut self, ino: Ino) -> u64 {
        let end = self.files[&ino]
            .blocks
            .keys()
            .next_back()
            .map_or(0, |b| b + 1);
        match self.rng.below(10) {
            0 => self.rng.below(self.span - 200),
            1..5 => end.min(self.span - 200),
            5 => (end + self.rng.below(50)).min(self.span - 200),
            _ => self.rng.below(end.max(1)).min(self.span - 200),
        }
    }

    pub fn write(&mut self) {
        let Some(ino) = self.any() else { return };
        let lblk = self.place(ino);
        let want = 1 + if self.rng.below(20) == 0 {
            self.rng.below(150)
        } else {
            self.rng.below(6)
        };
        // A reservation for nodes as well, as the engine makes it.
        if !self.image.alloc().reserve(want, 40) {
            return;
        }
        let unwritten = self.unwritten && self.rng.below(4) == 0;
        let mut at = 0;
        while at < want {
            let goal = self.image.alloc().goal_for(ino);
            let run = self
                .image
                .alloc()
                .allocate(goal, want - at, u64::from(ino))
                .unwrap();
            assert!(run.len >= 1 && run.len <= want - at);
            self.image
                .set(ino, lblk + at, run.len, run.pblk, unwritten)
                .unwrap();
            let f = self.files.get_mut(&ino).unwrap();
            for i in 0..run.len {
                f.blocks.insert(lblk + at + i, (run.pblk + i, unwritten));
            }
            at += run.len;
        }
        self.image.alloc().unreserve(0, 40);
        self.note_size(ino);
    }

    /// Makes unwritten blocks written.
    pub fn convert(&mut self) {
        let Some(ino) = self.any() else { return };
        let from = self.place(ino);
        let Some((&lblk, &(pblk, unwritten))) = self.files[&ino].blocks.range(from..).next() else {
            return;
        };
        let f = self.files.get_mut(&ino).unwrap();
        let mut n = 0;
        let most = self.rng.below(4) + 1;
        while n < most && f.blocks.get(&(lblk + n)).is_some_and(|b| b.0 == pblk + n) {
            f.blocks.get_mut(&(lblk + n)).unwrap().1 = false;
            n += 1;
        }
        let _ = unwritten;
        self.image.set(ino, lblk, n, pblk, false).unwrap();
    }

    pub fn clear(&mut self, all_of: Option<Ino>) {
        let Some(ino) = all_of.or_else(|| self.any()) else {
            return;
        };
        let (from, len) = match (all_of, self.rng.below(3)) {
            (Some(_), _) => (0, u64::MAX),
            (None, 0) => (self.place(ino), u64::MAX),
            (None, _) => (self.place(ino), 1 + self.rng.below(20)),
        };
        let mut at = Some(from);
        let mut rounds = 0;
        while let Some(lblk) = at {
            let budget = 1 + self.rng.below(30) as usize;
            let end = from.saturating_add(len);
            at = self.image.clear(ino, lblk, end - lblk, budget).unwrap();
            assert!(at.is_none_or(|a| a >= lblk && a < end));
            rounds += 1;
            assert!(rounds < 1_000_000);
        }
        self.files
            .get_mut(&ino)
            .unwrap()
            .blocks
            .retain(|&b, _| b < from || b >= from.saturating_add(len));
        self.note_size(ino);
    }

    fn note_size(&mut self, ino: Ino) {
        let bs = u64::from(self.image.geometry().block_size);
        let mut a = self.image.read_attr(ino).unwrap();
        a.size = self.files[&ino]
            .blocks
            .keys()
            .next_back()
            .map_or(0, |b| (b + 1) * bs);
        self.image.write_attr(ino, &a).unwrap();
    }

    pub fn delete(&mut self) {
        let Some(ino) = self.any() else { return };
        self.clear(Some(ino));
        let f = self.files.remove(&ino).unwrap();
        assert!(self.image.dir_remove(2, &f.name).unwrap().is_some());
        self.image.clear_inode(ino, 77).unwrap();
        assert_eq!(self.image.read_attr(ino).unwrap_err().errno(), 2);
        self.image.alloc().release_inode(ino);
    }

    /// What the engine does after a checkpoint.
    pub fn release(&mut self) {
        for run in self.image.take_freed() {
            self.image.alloc().release(run);
        }
    }

    pub fn step(&mut self) {
        match self.rng.below(100) {
            0..8 => self.create(),
            8..60 => self.write(),
            60..72 => self.convert(),
            72..92 => self.clear(None),
            92..95 => self.delete(),
            _ => self.release(),
        }
    }

    /// Every file maps exactly what the model says, by `lookup` and by `next_data`.
    pub fn compare(&self, image: &Image) {
        for (&ino, f) in &self.files {
            let mut seen = BTreeMap::new();
            let mut at = 0;
            while let Some(m) = image.next_data(ino, at).unwrap() {
                assert!(m.len > 0 && m.lblk >= at);
                for i in 0..m.len {
                    seen.insert(m.lblk + i, (m.pblk.unwrap() + i, m.unwritten));
                }
                at = m.lblk + m.len;
            }
            assert!(
                seen == f.blocks,
                "inode {ino}: {:?} instead of {:?}",
                seen.len(),
                f.blocks.len()
            );
            for (&lblk, &(pblk, unwritten)) in f.blocks.iter().step_by(7) {
                let m = image.lookup(ino, lblk).unwrap();
                assert_eq!((m.pblk, m.unwritten), (Some(pblk), unwritten));
                if !f.blocks.contains_key(&(lblk + 1)) {
                    let hole = image.lookup(ino, lblk + 1).unwrap();
                    let next = f.blocks.range(lblk + 1..).next().map(|(b, _)| *b);
                    assert!(hole.pblk.is_none());
                    assert!(
                        next.is_none_or(|n| lblk + 1 + hole.len <= n),
                        "inode {ino}: hole at {}",
                        lblk + 1
                    );
                }
            }
        }
    }
}
