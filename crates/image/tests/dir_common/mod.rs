//! Volumes made by mke2fs, changed through `Image`, judged by e2fsck and debugfs.
#![allow(dead_code, unused_imports)]

use ccfs_device::{Device, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_image::{Image, InodeAttr, OpenOptions};
pub use ccfs_testkit::Rng;
use ccfs_testkit::mounts::apart;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use tempfile::TempDir;

pub const DIR_MODE: u16 = 0o040_755;
pub const FILE_MODE: u16 = 0o100_644;
/// Links that a test gives to one inode at most (ext4 allows 65000).
const LINKS_PER_INODE: u32 = 60_000;
const HASH_SEED: &str = "hash_seed=00000000-0000-4000-8000-000000000001";

pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

pub struct Volume {
    _temp: TempDir,
    pub path: PathBuf,
    pub dev: Arc<MemoryDevice>,
    pub image: Image,
    pub block_size: u64,
}

impl Volume {
    /// A fresh volume of `mib` MiB; `args` go to mke2fs, `hash_alg=...` to tune2fs -E, `hash_seed=...` to mke2fs -E. Which names
    /// fill which leaf hangs on that seed: without one it is always the same, so that a test that fails does so again.
    pub fn make(mib: u64, args: &[&str]) -> Volume {
        Volume::make_then(mib, args, |_| {})
    }

    /// As `make`; `then` may change the file before it is opened.
    pub fn make_then(mib: u64, args: &[&str], then: impl FnOnce(&PathBuf)) -> Volume {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("volume");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(mib << 20)
            .unwrap();
        let (hash, args): (Vec<&str>, Vec<&str>) =
            args.iter().partition(|a| a.starts_with("hash_"));
        let (seed, algorithm): (Vec<&str>, Vec<&str>) =
            hash.iter().partition(|a| a.starts_with("hash_seed="));
        let seed = *seed.first().unwrap_or(&HASH_SEED);
        let mut all = vec!["-q", "-F", "-t", "ext4", "-E", seed];
        all.extend(&args);
        all.push(path.to_str().unwrap());
        let out = run("mke2fs", &all);
        assert!(out.status.success(), "mke2fs {args:?}: {out:?}");
        for algorithm in algorithm {
            let out = run("tune2fs", &["-E", algorithm, path.to_str().unwrap()]);
            assert!(out.status.success(), "tune2fs {algorithm}: {out:?}");
        }
        then(&path);
        Volume::open(temp, path)
    }

    fn open(temp: TempDir, path: PathBuf) -> Volume {
        let dev = Arc::new(MemoryDevice::from_file(&path).unwrap());
        let image = Image::open(dev.clone() as Arc<dyn Device>, OpenOptions::default()).unwrap();
        let block_size = u64::from(image.geometry().block_size);
        image.alloc().reserve(0, 1 << 14);
        Volume {
            _temp: temp,
            path,
            dev,
            image,
            block_size,
        }
    }

    /// Brings all changes home and opens the volume again.
    pub fn reopen(self) -> Volume {
        self.save();
        let Volume { _temp, path, .. } = self;
        Volume::open(_temp, path)
    }

    /// Opens the volume as its file is now; changes since `save` are lost.
    pub fn reopen_from_file(self) -> Volume {
        let Volume { _temp, path, .. } = self;
        Volume::open(_temp, path)
    }

    /// Writes all changes to the device.
    pub fn home(&self) {
        let blocks = self.image.take_dirty();
        let writes = blocks
            .iter()
            .map(|(pblk, buf)| Write::new(pblk * self.block_size, buf.clone()))
            .collect();
        write_all(&*self.dev, writes).unwrap();
        self.image.written(&blocks);
    }

    /// Writes all changes to the file.
    pub fn save(&self) {
        self.home();
        self.dev.to_file(&self.path).unwrap();
    }

    /// Everything home, then e2fsck must find nothing.
    pub fn check(&self) {
        self.save();
        let out = run("e2fsck", &["-fn", self.path.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let complaint = text.lines().any(|l| l.contains('?') || l.contains("no\n"));
        assert!(
            out.status.success() && !complaint,
            "{text}\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }

    pub fn debugfs(&self, command: &str) -> String {
        let out = run("debugfs", &["-R", command, self.path.to_str().unwrap()]);
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// A new inode without a name.
    pub fn inode(&self, parent: u32, mode: u16, nlink: u32) -> u32 {
        let dir = mode & 0o170_000 == 0o040_000;
        let ino = self.image.alloc().allocate_inode(parent, dir).unwrap();
        let time = (1_700_000_000, 0);
        let attr = InodeAttr {
            mode,
            nlink,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            generation: 77,
            ..InodeAttr::default()
        };
        self.image.create_inode(ino, &attr).unwrap();
        ino
    }

    pub fn set_links(&self, ino: u32, nlink: u32) {
        let mut attr = self.image.read_attr(ino).unwrap();
        attr.nlink = nlink;
        self.image.write_attr(ino, &attr).unwrap();
    }

    pub fn mkdir(&self, parent: u32, name: &str) -> u32 {
        let ino = self.inode(parent, DIR_MODE, 2);
        self.image.dir_init(ino, parent).unwrap();
        self.image
            .dir_insert(parent, name.as_bytes(), ino, 2)
            .unwrap();
        self.set_links(parent, self.image.read_attr(parent).unwrap().nlink + 1);
        ino
    }

    /// All entries as `dir_scan` gives them from `from` on; order and cookies are checked.
    pub fn scan(&self, dir: u32, from: u64) -> BTreeMap<Vec<u8>, u32> {
        let mut out = BTreeMap::new();
        let mut last = (0, Vec::new());
        self.image
            .dir_scan(dir, from, &mut |entry| {
                let at = (entry.cookie, entry.name.clone());
                assert!(
                    at > last && entry.cookie >= from.max(3),
                    "{at:?} after {last:?}"
                );
                assert_eq!(entry.cookie, self.image.cookie_of(&entry.name));
                last = at;
                out.insert(entry.name, entry.ino);
                true
            })
            .unwrap();
        out
    }

    /// The names that debugfs lists in a directory, dots excluded.
    pub fn debugfs_ls(&self, path: &str) -> BTreeMap<Vec<u8>, u32> {
        let out = run(
            "debugfs",
            &["-R", &format!("ls -p {path}"), self.path.to_str().unwrap()],
        );
        let mut names = BTreeMap::new();
        for line in out.stdout.split(|&c| c == b'\n') {
            let parts: Vec<&[u8]> = line.split(|&c| c == b'/').collect();
            if parts.len() >= 7 && parts[5] != b"." && parts[5] != b".." {
                let ino = std::str::from_utf8(parts[1]).unwrap().parse().unwrap();
                if ino != 0 {
                    names.insert(parts[5].to_vec(), ino);
                }
            }
        }
        names
    }
}

/// Inodes to which names can be linked, with their counts.
#[derive(Default)]
pub struct Links {
    counts: BTreeMap<u32, u32>,
}

impl Links {
    /// An inode with room for one more name.
    pub fn take(&mut self, volume: &Volume) -> u32 {
        let free = self.counts.iter_mut().find(|(_, n)| **n < LINKS_PER_INODE);
        if let Some((ino, n)) = free {
            *n += 1;
            return *ino;
        }
        let ino = volume.inode(2, FILE_MODE, 1);
        self.counts.insert(ino, 1);
        ino
    }

    pub fn give(&mut self, ino: u32) {
        *self.counts.get_mut(&ino).unwrap() -= 1;
    }

    /// Writes the counts; inodes without names get one in `dir`.
    pub fn settle(&mut self, volume: &Volume, dir: u32) {
        for (ino, n) in &mut self.counts {
            if *n == 0 {
                volume
                    .image
                    .dir_insert(dir, format!("kept{ino}").as_bytes(), *ino, 1)
                    .unwrap();
                *n = 1;
            }
            volume.set_links(*ino, *n);
        }
    }
}

/// Runs a shell script with the volume mounted by the kernel at `$M`, in a mount namespace of its own: nothing stays behind,
/// whatever happens. `None`: this needs root. The script's output otherwise.
pub fn with_kernel(path: &std::path::Path, script: &str) -> Option<Vec<u8>> {
    let id = run("id", &["-u"]);
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return None;
    }
    let mount = tempfile::tempdir().unwrap();
    let whole = format!(
        "set -e; mount -t ext4 -o loop,user_xattr,acl \"$V\" \"$M\"; {script}\ncd /; umount \"$M\""
    );
    let out = apart(&[], &["bash", "-c", &whole])
        .env("V", path)
        .env("M", mount.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    Some(out.stdout)
}
