//! Volumes filled by the kernel are read right, and the kernel reads what the image has written. Needs root and loop devices;
//! says so and does nothing without them.

mod image_common;

use ccfs_device::{Device, Write, write_all};
use ccfs_ext4::inode;
use ccfs_image::{Geometry, Image, Ino};
use ccfs_testkit::mounts::{kernel_mount, umount8};
use ccfs_testkit::needs_mounts;
use image_common::{Rng, Volume, attr, mkfs, run};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mounted volume; unmounted on drop.
struct Mount(PathBuf);

impl Mount {
    fn new(volume: &Path, at: &Path, options: &str) -> Mount {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("loop,{options}");
        kernel_mount(volume.to_str().unwrap(), at.to_str().unwrap(), &options);
        Mount(at.to_path_buf())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = run("umount", &["-l", self.0.to_str().unwrap()]);
        } else {
            umount8(self.0.to_str().unwrap());
        }
    }
}

fn shell(dir: &Path, script: &str) {
    let out = std::process::Command::new("bash")
        .args(["-ec", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(out.status.success(), "{script}: {out:?}");
}

/// What the kernel says of a file, in the image's words.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    nlink: u64,
    times: [(i64, i64); 3],
    rdev: u64,
    blocks: u64,
    content: u64,
}

fn hash(bytes: &[u8], mut h: u64) -> u64 {
    for &b in bytes {
        h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3);
    }
    h
}

/// Blocks of a file that are sampled: all of short files, some of long ones.
fn sampled(size: u64, bs: u64) -> impl Iterator<Item = u64> {
    let blocks = size.div_ceil(bs);
    let step = (blocks / 5000).max(1);
    (0..blocks).filter(move |b| b % step == 0 || *b + 100 > blocks)
}

fn kernel_view(root: &Path, bs: u64) -> BTreeMap<Vec<u8>, Seen> {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for e in std::fs::read_dir(&dir).unwrap() {
            let path = e.unwrap().path();
            let m = std::fs::symlink_metadata(&path).unwrap();
            let content = if m.is_symlink() {
                hash(std::fs::read_link(&path).unwrap().as_os_str().as_bytes(), 1)
            } else if m.is_file() {
                let f = std::fs::File::open(&path).unwrap();
                sampled(m.len(), bs).fold(1, |h, b| {
                    let mut buf = vec![0; (m.len() - b * bs).min(bs) as usize];
                    f.read_exact_at(&mut buf, b * bs).unwrap();
                    hash(&buf, h)
                })
            } else {
                0
            };
            let key = path
                .strip_prefix(root)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec();
            let times = [
                (m.atime(), m.atime_nsec()),
                (m.mtime(), m.mtime_nsec()),
                (m.ctime(), m.ctime_nsec()),
            ];
            // The kernel shows no count for directories of more than 65000; tests make none.
            let seen = Seen {
                mode: m.mode(),
                uid: m.uid(),
                gid: m.gid(),
                size: m.len(),
                nlink: m.nlink(),
                times,
                rdev: m.rdev(),
                blocks: m.blocks(),
                content,
            };
            out.insert(key, seen);
            if m.is_dir() {
                todo.push(path);
            }
        }
    }
    out
}

fn file_hash(image: &Image, dev: &dyn Device, ino: Ino, size: u64, bs: u64) -> u64 {
    sampled(size, bs).fold(1, |h, b| {
        let mut buf = vec![0; bs as usize];
        let m = image.lookup(ino, b).unwrap();
        if let (Some(pblk), false) = (m.pblk, m.unwritten) {
            dev.read(pblk * bs, &mut buf).unwrap();
        }
        hash(&buf[..(size - b * bs).min(bs) as usize], h)
    })
}

fn our_view(image: &Image, dev: &dyn Device) -> BTreeMap<Vec<u8>, Seen> {
    let bs = u64::from(image.geometry().block_size);
    let mut out = BTreeMap::new();
    let mut todo = vec![(Vec::new(), 2)];
    while let Some((prefix, dir)) = todo.pop() {
        let mut entries = Vec::new();
        image
            .dir_scan(dir, 0, &mut |e| {
                entries.push(e);
                true
            })
            .unwrap();
        for e in entries {
            let a = image.read_attr(e.ino).unwrap();
            let mut key: Vec<u8> = prefix.clone();
            if !key.is_empty() {
                key.push(b'/');
            }
            key.extend(&e.name);
            let content = match inode::file_type(a.mode) {
                inode::S_IFREG => file_hash(image, dev, e.ino, a.size, bs),
                inode::S_IFLNK => match image.fast_symlink(e.ino).unwrap() {
                    Some(t) => hash(&t, 1),
                    None => file_hash(image, dev, e.ino, a.size, bs),
                },
                _ => 0,
            };
            // new_encode_dev to the dev_t of user space.
            let (major, minor) = (
                u64::from(a.rdev >> 8 & 0xFFF),
                u64::from(a.rdev & 0xFF | a.rdev >> 12 & 0xF_FF00),
            );
            let rdev = (minor & 0xFF) | major << 8 | (minor & !0xFF) << 12;
            let t = |t: (i64, u32)| (t.0, i64::from(t.1));
            let seen = Seen {
                mode: u32::from(a.mode),
                uid: a.uid,
                gid: a.gid,
                size: a.size,
                nlink: u64::from(a.nlink),
                times: [t(a.atime), t(a.mtime), t(a.ctime)],
                rdev,
                blocks: a.blocks512,
                content,
            };
            if inode::is_dir(a.mode) {
                todo.push((key.clone(), e.ino));
            }
            out.insert(key, seen);
        }
    }
    out
}

fn compare(kernel: &BTreeMap<Vec<u8>, Seen>, ours: &BTreeMap<Vec<u8>, Seen>) {
    for (key, k) in kernel {
        let name = String::from_utf8_lossy(key);
        assert_eq!(Some(k), ours.get(key), "{name}");
    }
    assert_eq!(kernel.len(), ours.len());
}

/// A life of a volume: files of all kinds, holes, preallocation, deletion, fragmentation.
const LIFE: &str = r#"
mkdir -p d/e/f many
for i in $(seq 600); do head -c $((i * 37)) /dev/urandom > many/$i; done
for i in $(seq 1 2 600); do rm many/$i; done
for i in $(seq 80); do head -c 9000 /dev/urandom >> a; head -c 7000 /dev/urandom >> b; sync a b; done
for i in $(seq 0 3 400); do dd if=/dev/urandom of=sparse bs=1024 seek=$((i * 17)) count=1 conv=notrunc status=none; done
head -c 300000 /dev/urandom > trunc; truncate -s 100001 trunc; truncate -s 400000 trunc
fallocate -l 2M prealloc 2>/dev/null || head -c 2M /dev/zero > prealloc
dd if=/dev/urandom of=prealloc bs=4096 seek=3 count=5 conv=notrunc status=none
head -c 3000000 /dev/urandom > punched
for i in $(seq 0 8 700); do fallocate -p -o $((i * 4096)) -l 4096 punched 2>/dev/null || true; done
ln a hard; ln -s short s1
ln -s $(printf 'x%.0s' $(seq 59)) s59; ln -s $(printf 'x%.0s' $(seq 60)) s60; ln -s $(printf 'y%.0s' $(seq 900)) s900
mknod c1 c 5 1; mknod b1 b 259 300; mknod p1 p
chown 70000:80000 a; chmod 6751 b
touch -d @1234567890.5 s1 d/e; touch -h -d @1000000000 s1
touch -d @-1000.25 d/old; touch -d @2147483999.75 d/future
"#;

fn life(args: &[&str], mib: u64, script: &str) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("volume");
    let mnt = temp.path().join("mnt");
    mkfs(&path, mib, args);
    let geometry = geometry(&path);
    let bs = u64::from(geometry.block_size);
    let m = Mount::new(&path, &mnt, "rw");
    let out = run("stat", &["-f", "-c", "%b %f %d", mnt.to_str().unwrap()]);
    let told = String::from_utf8(out.stdout).unwrap();
    let blocks: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(
        geometry.blocks_count - geometry.overhead_blocks,
        blocks,
        "overhead"
    );
    shell(&mnt, script);
    drop(m);
    let m = Mount::new(&path, &mnt, "ro,noatime");
    let kernel = kernel_view(&mnt, bs);
    drop(m);
    let v = Volume::open(temp, path);
    compare(&kernel, &our_view(&v.image, &*v.dev));
    // The volume goes on with us: everything that the kernel made is removed, half of it at least.
    let mut rng = Rng::new(mib);
    rework(&v, &mut rng);
    v.check("reworked");
    let ours = our_view(&v.image, &*v.dev);
    let m = Mount::new(&v.path, &mnt, "ro,noatime");
    let kernel = kernel_view(&mnt, bs);
    drop(m);
    compare(&kernel, &ours);
}

fn geometry(path: &Path) -> Geometry {
    let dev = Arc::new(ccfs_disks::MemoryDevice::from_file(path).unwrap());
    image_common::open(&dev).unwrap().geometry().clone()
}

/// Removes every second file of the root and of `many`, overwrites parts of others, makes new ones.
fn rework(v: &Volume, rng: &mut Rng) {
    let image = &v.image;
    for dir in [2, image.dir_lookup(2, b"many").unwrap().unwrap().0] {
        let mut names = Vec::new();
        image
            .dir_scan(dir, 0, &mut |e| {
                names.push(e);
                true
            })
            .unwrap();
        for e in names.iter().filter(|e| e.ftype != 2) {
            let mut a = image.read_attr(e.ino).unwrap();
            if rng.below(2) == 0 {
                assert!(image.dir_remove(dir, &e.name).unwrap().is_some());
                a.nlink -= 1;
                image.write_attr(e.ino, &a).unwrap();
                if a.nlink == 0 {
                    if inode::file_type(a.mode) == inode::S_IFREG || a.blocks512 > 0 {
                        let mut at = Some(0);
                        while let Some(from) = at {
                            at = image.clear(e.ino, from, u64::MAX, 10).unwrap();
                        }
                    }
                    image.clear_inode(e.ino, 1_700_000_000).unwrap();
                    image.alloc().release_inode(e.ino);
                }
            } else if inode::file_type(a.mode) == inode::S_IFREG && a.size > 0 {
                overwrite(v, e.ino, a.size, rng);
            }
            for run in image.take_freed() {
                image.alloc().release(run);
            }
        }
    }
    fill(v, rng);
}

fn write_block(v: &Volume, pblk: u64, rng: &mut Rng) {
    let bs = v.image.geometry().block_size as usize;
    let mut buf = ccfs_device::AlignedBuf::zeroed(bs);
    for c in buf.chunks_exact_mut(8) {
        c.copy_from_slice(&rng.draw().to_le_bytes());
    }
    write_all(&*v.dev, vec![Write::new(pblk * bs as u64, buf)]).unwrap();
}

/// Remaps some blocks of a file, as a large overwrite does.
fn overwrite(v: &Volume, ino: Ino, size: u64, rng: &mut Rng) {
    let bs = u64::from(v.image.geometry().block_size);
    for _ in 0..5 {
        let lblk = rng.below(size.div_ceil(bs));
        let Some(run) = v.image.alloc().allocate_unreserved(0, 1) else {
            return;
        };
        write_block(v, run.pblk, rng);
        v.image.set(ino, lblk, 1, run.pblk, false).unwrap();
    }
}

fn fill(v: &Volume, rng: &mut Rng) {
    let image = &v.image;
    let bs = u64::from(image.geometry().block_size);
    let dir = image.dir_lookup(2, b"d").unwrap().unwrap().0;
    for i in 0..40u32 {
        let name = format!("new{i}");
        let ino = image.alloc().allocate_inode(dir, false).unwrap();
        let secs = [-5_000_000i64, 1_700_000_000, 2_000_000_000][rng.below(3) as usize];
        let mut a = attr([0o100640, 0o120777, 0o060600, 0o020600][i as usize % 4]);
        (a.uid, a.gid, a.atime, a.mtime) = (i * 5000, i, (secs, 7), (secs + 1, 999_999_999));
        a.rdev = if inode::file_type(a.mode) == inode::S_IFBLK {
            0x0001_0305
        } else {
            0x0501
        };
        if image.geometry().inode_size == 128 {
            (a.atime.1, a.mtime.1, a.crtime) = (0, 0, (0, 0));
        }
        image.create_inode(ino, &a).unwrap();
        let ftype = match i % 4 {
            0 => {
                let blocks = rng.below(40) + 1;
                for lblk in 0..blocks {
                    let lblk = lblk * (1 + rng.below(2));
                    if image.lookup(ino, lblk).unwrap().pblk.is_some() {
                        continue;
                    }
                    let run = image
                        .alloc()
                        .allocate(image.alloc().goal_for(ino), 1, ino.into())
                        .unwrap();
                    write_block(v, run.pblk, rng);
                    image.set(ino, lblk, 1, run.pblk, false).unwrap();
                    a.size = a.size.max((lblk + 1) * bs - 3);
                }
                image.write_attr(ino, &a).unwrap();
                1
            }
            1 => {
                image
                    .set_fast_symlink(ino, format!("to/{i}").as_bytes())
                    .unwrap();
                7
            }
            2 => 4,
            _ => 3,
        };
        image.dir_insert(dir, name.as_bytes(), ino, ftype).unwrap();
        let back = image.read_attr(ino).unwrap();
        assert_eq!(
            (back.uid, back.gid, back.atime, back.mtime),
            (a.uid, a.gid, a.atime, a.mtime)
        );
        assert_eq!(back.crtime, a.crtime);
    }
}

#[test]
fn default_4k() {
    needs_mounts!();
    life(
        &["-b", "4096"],
        128,
        &format!("{LIFE}\ntouch -d @9999999999.123456789 d/far; truncate -s 5G big; echo x >> big"),
    );
}

#[test]
fn default_1k() {
    needs_mounts!();
    life(
        &["-b", "1024"],
        96,
        &format!("{LIFE}\ntouch -d @4294967296.1 d/far"),
    );
}

#[test]
fn small_inodes_and_old_checksums() {
    needs_mounts!();
    life(
        &[
            "-b",
            "2048",
            "-I",
            "128",
            "-O",
            "^metadata_csum,uninit_bg,^64bit",
            "-E",
            "lazy_itable_init=1",
        ],
        96,
        LIFE,
    );
}

#[test]
fn ext3() {
    needs_mounts!();
    life(&["-b", "1024", "-t", "ext3"], 96, LIFE);
}

#[test]
fn ext3_4k() {
    needs_mounts!();
    life(
        &["-b", "4096", "-t", "ext3"],
        128,
        &format!("{LIFE}\ntruncate -s 5G big; echo x >> big"),
    );
}
