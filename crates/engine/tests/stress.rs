//! Threads of several streams on one tree, with crashes at any instant; errors of the device; hostile sizes.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use ccfs_testkit::Rng;
use common::faulty::Faulty;
use common::flash::on_flash;
use common::{cx, debugfs, fsck, image, mount_on, quiet, recover};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// The directory of that name in the root; the root where there is none.
fn directory(v: &Volume, name: &str) -> Ino {
    v.lookup(ROOT_INO, name.as_bytes())
        .map_or(ROOT_INO, |a| a.ino)
}

/// An operation that `r` chooses.
fn one(v: &Volume, r: &mut Rng, stream: u64) -> Result<()> {
    let c = cx(stream);
    let dirs = [ROOT_INO, ROOT_INO, ROOT_INO];
    let mut dir = dirs[r.below(3) as usize];
    for _ in 0..r.below(3) {
        let name = format!("d{}", r.below(4));
        if let Ok(a) = v.lookup(dir, name.as_bytes()) {
            dir = a.ino;
        }
    }
    let d = format!("d{}", r.below(4));
    let f = format!("f{}", r.below(6));
    let ino = v.lookup(dir, f.as_bytes()).map(|a| a.ino);
    let at = r.below(100_000);
    let len = 1 + r.below(20_000);
    match r.below(20) {
        0 => drop(v.mkdir(&c, dir, d.as_bytes(), 0o755)?),
        1 => v.rmdir(&c, dir, d.as_bytes())?,
        2 | 3 => drop(v.mknod(&c, dir, f.as_bytes(), 0o100644, 0)?),
        4 => v.unlink(&c, dir, f.as_bytes())?,
        5 => {
            let to = directory(v, &d);
            let flags = RenameFlags {
                exchange: r.below(3) == 0,
                ..RenameFlags::default()
            };
            let name = format!("f{}", r.below(6));
            v.rename(&c, dir, f.as_bytes(), to, name.as_bytes(), flags)?;
        }
        6 => {
            let to = directory(v, &format!("d{}", r.below(4)));
            let (name, flags) = (format!("d{}", r.below(4)), RenameFlags::default());
            v.rename(&c, dir, d.as_bytes(), to, name.as_bytes(), flags)?;
        }
        7 => drop(v.link(&c, ino?, dir, format!("f{}", r.below(6)).as_bytes())?),
        8 => drop(v.symlink(
            &c,
            dir,
            f.as_bytes(),
            &vec![b'x'; 1 + r.below(200) as usize],
        )?),
        9 => drop(v.setattr(
            &c,
            ino?,
            &SetAttr {
                size: Some(at),
                ..SetAttr::default()
            },
        )?),
        10 => drop(v.setattr(
            &c,
            dir,
            &SetAttr {
                mode: Some(0o755),
                ..SetAttr::default()
            },
        )?),
        11 => v.setxattr(
            &c,
            if r.below(2) == 0 { dir } else { ino? },
            b"user.a",
            &vec![1; r.below(300) as usize],
            false,
            false,
            false,
        )?,
        12 => {
            let how = match r.below(3) {
                0 => Fallocate::PunchHole,
                1 => Fallocate::ZeroRange {
                    keep_size: r.below(2) == 0,
                },
                _ => Fallocate::Allocate {
                    keep_size: r.below(2) == 0,
                },
            };
            v.fallocate(&c, ino?, how, at, len)?;
        }
        13 => v.fsync(&c, ino?, false)?,
        14 => v.fsync(&c, dir, false)?,
        15 => {
            let ino = ino?;
            v.remember(ino, 1);
            let _ = v.unlink(&c, dir, f.as_bytes());
            let _ = v.write(&c, ino, at, &[9; 100], WriteFlags::default());
            v.forget(ino, 1);
        }
        16 => {
            let mut out = Vec::new();
            v.read(ino?, at / 2, len as usize, &mut out)?;
        }
        17 => v.readdir(dir, 0, &mut |_| true)?,
        _ => drop(v.write(
            &c,
            ino?,
            at,
            &vec![stream as u8; len as usize],
            WriteFlags::default(),
        )?),
    }
    Ok(())
}

/// Everything that a user can see, directories' sizes and access times aside.
fn dump(v: &Volume, dir: Ino, path: &str, out: &mut Vec<String>) {
    let mut names = Vec::new();
    v.readdir(dir, 0, &mut |e| {
        names.push((e.name, e.ino, e.dtype));
        true
    })
    .unwrap();
    names.sort();
    for (name, ino, dtype) in names {
        if name == b"." || name == b".." {
            continue;
        }
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        let a = v.lookup(dir, &name).unwrap();
        assert_eq!(a.ino, ino);
        let kind = u32::from(a.mode) & libc::S_IFMT;
        let mut data = Vec::new();
        match kind {
            libc::S_IFREG => v.read(ino, 0, 1 << 20, &mut data).unwrap(),
            libc::S_IFLNK => data = v.readlink(ino).unwrap(),
            _ => {}
        }
        let hash = data.iter().fold(0u64, |h, b| {
            h.wrapping_mul(1_000_003).wrapping_add(u64::from(*b))
        });
        let x = v.getxattr(ino, b"user.a").ok().map(|x| x.len());
        let size = if kind == libc::S_IFDIR { 0 } else { a.size };
        out.push(format!(
            "{path} {dtype} {:o} {size} {} {:?} {:?} {hash:x} {x:?}",
            a.mode, a.nlink, a.mtime, a.ctime
        ));
        if kind == libc::S_IFDIR {
            dump(v, ino, &path, out);
        }
    }
}

fn stress(args: &[&str], seed: u64, threads: u64) {
    stress_on(image(args, "48M"), seed, threads);
}

fn stress_on(medium: MemoryDevice, seed: u64, threads: u64) {
    let dev = Arc::new(medium);
    let options = Options {
        background: true,
        commit_interval: Duration::from_millis(60),
        dirty_limit: 4 << 20,
        ..Options::default()
    };
    let slow = Faulty::new(dev.clone());
    slow.flush_us.store(300, Ordering::Relaxed);
    let v = mount_on(slow, options).unwrap();
    let done = AtomicBool::new(false);
    let count = AtomicU64::new(0);
    let shots = std::thread::scope(|s| {
        for t in 0..threads {
            let (v, done, count) = (&v, &done, &count);
            s.spawn(move || {
                let mut r = Rng::new((seed * 100 + t + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                while !done.load(Ordering::Relaxed) {
                    match one(v, &mut r, 2 + t) {
                        Ok(()) => drop(count.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::Errno(n)) if n != libc::EIO && n != libc::EROFS => {}
                        Err(e) => {
                            done.store(true, Ordering::Relaxed);
                            panic!("{e}: {}", v.status().stopped);
                        }
                    }
                }
            });
        }
        let start = Instant::now();
        let mut shots = Vec::new();
        while start.elapsed() < Duration::from_secs(4) && !done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(230));
            shots.push(dev.snapshot());
        }
        done.store(true, Ordering::Relaxed);
        shots
    });
    assert_eq!(v.status().stopped, "");
    v.syncfs(&cx(1)).unwrap();
    let shot = Arc::new(dev.snapshot());
    let (mut live, mut back) = (Vec::new(), Vec::new());
    dump(&v, ROOT_INO, "", &mut live);
    let w = mount_on(shot, quiet()).unwrap();
    dump(&w, ROOT_INO, "", &mut back);
    assert_eq!(live, back);
    w.unmount().unwrap();
    eprintln!(
        "{} operations, {:?}",
        count.load(Ordering::Relaxed),
        v.status().counters
    );
    for shot in shots {
        let shot = Arc::new(shot);
        recover(shot.clone()).unwrap();
        fsck(&shot);
    }
    v.unmount().unwrap();
    drop(v);
    fsck(&dev);
}

/// `CCFS_SEEDS=100` for a long run.
#[test]
fn threads_many_seeds() {
    let seeds = std::env::var("CCFS_SEEDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    for seed in 10..10 + seeds {
        let args: &[&str] = match seed % 3 {
            0 => &["-b", "4096"],
            1 => &["-b", "1024", "-J", "size=1"],
            _ => &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"],
        };
        stress(args, seed, 2 + seed % 5);
    }
}

#[test]
fn threads_4k() {
    stress(&["-b", "4096"], 1, 6);
}

#[test]
fn threads_tiny_log() {
    stress(&["-b", "1024", "-J", "size=1"], 2, 4);
}

#[test]
fn threads_old_volume() {
    stress(
        &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"],
        3,
        6,
    );
}

/// A device that commits by itself, and no log.
#[test]
fn threads_on_flash() {
    stress_on(on_flash(&image(&["-b", "4096"], "48M")), 4, 6);
}

#[test]
fn threads_on_flash_with_small_blocks() {
    stress_on(on_flash(&image(&["-b", "1024"], "48M")), 5, 4);
}

/// A small volume that is full most of the time: ENOSPC is an answer, never the end.
fn full(args: &[&str], size: &str, seed: u64) {
    full_on(image(args, size), seed);
}

fn full_on(medium: MemoryDevice, seed: u64) {
    let dev = Arc::new(medium);
    let options = Options {
        background: true,
        commit_interval: Duration::from_millis(30),
        dirty_limit: 2 << 20,
        ..Options::default()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    let before = v.statfs().unwrap();
    let start = Instant::now();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let v = &v;
            s.spawn(move || {
                let mut r = Rng::new((seed * 100 + t + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                let c = Context {
                    privileged: t % 2 == 0,
                    posted: false,
                    time: None,
                    ..cx(2 + t)
                };
                while start.elapsed() < Duration::from_secs(5) {
                    let name = format!("t{t}-{}", r.below(12));
                    let at = r.below(2_000_000);
                    let done = match v.lookup(ROOT_INO, name.as_bytes()) {
                        Err(_) => v
                            .mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0)
                            .map(drop),
                        Ok(f) => match r.below(40) {
                            0 => v
                                .unlink(&c, ROOT_INO, name.as_bytes())
                                .map_err(|e| panic!("unlink: {e}")),
                            1 => v
                                .setattr(
                                    &c,
                                    f.ino,
                                    &SetAttr {
                                        size: Some(at),
                                        ..SetAttr::default()
                                    },
                                )
                                .map(drop)
                                .map_err(|e| panic!("truncate: {e}")),
                            2 => {
                                let kind = Fallocate::Allocate { keep_size: true };
                                v.fallocate(&c, f.ino, kind, at, 300_000)
                            }
                            3 => v.fallocate(&c, f.ino, Fallocate::PunchHole, at, 3000),
                            4 => v.fsync(&c, f.ino, false),
                            _ => v
                                .write(
                                    &c,
                                    f.ino,
                                    at,
                                    &vec![5; 1 + r.below(4000) as usize],
                                    WriteFlags::default(),
                                )
                                .map(drop),
                        },
                    };
                    match done {
                        Ok(()) | Err(Error::Errno(libc::ENOSPC | libc::EOPNOTSUPP)) => {}
                        Err(e) => panic!("{e}: {}", v.status().stopped),
                    }
                }
            });
        }
    });
    assert_eq!(v.status().stopped, "");
    v.syncfs(&cx(1)).unwrap();
    let shot = Arc::new(dev.snapshot());
    recover(shot.clone()).unwrap();
    fsck(&shot);
    for t in 0..4 {
        for i in 0..12 {
            let _ = v.unlink(&cx(1), ROOT_INO, format!("t{t}-{i}").as_bytes());
        }
    }
    v.syncfs(&cx(1)).unwrap();
    v.unmount().unwrap();
    drop(v);
    fsck(&dev);
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let after = v.statfs().unwrap();
    assert_eq!(before.ffree, after.ffree);
    assert!(
        before.bfree.abs_diff(after.bfree) < 8,
        "{before:?} {after:?}"
    );
    v.unmount().unwrap();
}

#[test]
fn full_4k() {
    full(&["-b", "4096"], "24M", 1);
}

#[test]
fn full_on_flash() {
    full_on(on_flash(&image(&["-b", "4096"], "24M")), 4);
}

#[test]
fn full_1k() {
    full(&["-b", "1024", "-J", "size=1"], "8M", 2);
}

#[test]
fn full_old_volume() {
    full(
        &[
            "-b",
            "1024",
            "-J",
            "size=1",
            "-O",
            "^extents,^64bit,^metadata_csum",
        ],
        "8M",
        3,
    );
}

#[test]
fn nobody_succeeds_after_a_failed_flush() {
    for _ in 0..20 {
        let dev = Faulty::new(Arc::new(image(&["-b", "4096"], "16M")));
        let v = mount_on(dev.clone(), quiet()).unwrap();
        let files: Vec<_> = (0..8u64)
            .map(|i| {
                v.mknod(
                    &cx(2 + i),
                    ROOT_INO,
                    format!("f{i}").as_bytes(),
                    0o100644,
                    0,
                )
                .unwrap()
            })
            .collect();
        dev.fail_flush.store(true, Ordering::SeqCst);
        std::thread::scope(|s| {
            for (i, f) in files.iter().enumerate() {
                let (v, dev) = (&v, &dev);
                s.spawn(move || {
                    std::thread::sleep(Duration::from_millis(i as u64 * 5));
                    let synced = v.fsync(&cx(2 + i as u64), f.ino, false);
                    assert!(
                        synced.is_err() || !dev.failed.load(Ordering::SeqCst),
                        "file {i}"
                    );
                });
            }
        });
    }
}

#[test]
fn an_impossible_size_is_no_panic() {
    let dev = Arc::new(image(&["-b", "4096"], "16M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.write(&c, f.ino, 0, &[1; 5000], WriteFlags::default())
        .unwrap();
    v.unmount().unwrap();
    for size in ["0x7fffffffffffffff", "0xffffffffffffffff", "0x100000000001"] {
        let bad = Arc::new(debugfs(&dev, &format!("sif /f size {size}")));
        let v = mount_on(bad, quiet()).unwrap();
        let Ok(f) = v.lookup(ROOT_INO, b"f") else {
            continue;
        };
        let mut out = Vec::new();
        for at in [0, 1 << 44, 1 << 45, f.size - 1, u64::MAX] {
            let _ = v.read(f.ino, at, 4096, &mut out);
            let _ = v.seek(f.ino, at, Seek::Hole);
            let _ = v.seek(f.ino, at, Seek::Data);
            let _ = v.write(&c, f.ino, at, b"x", WriteFlags::default());
            let _ = v.write(
                &c,
                f.ino,
                at,
                b"x",
                WriteFlags {
                    append: true,
                    ..WriteFlags::default()
                },
            );
            let _ = v.copy_range(&c, f.ino, at, f.ino, 0, 10);
        }
        let _ = v.setattr(
            &c,
            f.ino,
            &SetAttr {
                size: Some(100),
                ..SetAttr::default()
            },
        );
        let _ = v.syncfs(&c);
    }
}

#[test]
fn names_of_reserved_inodes_do_no_harm() {
    for ino in [1, 3, 7, 8] {
        let dev = image(&["-b", "4096"], "32M");
        let bad = Arc::new(debugfs(&dev, &format!("ln <{ino}> /x")));
        let v = mount_on(bad.clone(), quiet()).unwrap();
        let c = cx(1);
        v.mknod(&c, ROOT_INO, b"y", 0o100644, 0).unwrap();
        v.syncfs(&c).unwrap();
        if let Ok(x) = v.lookup(ROOT_INO, b"x") {
            let w = v.write(&c, x.ino, 8192, &[0xff; 100_000], WriteFlags::default());
            let t = v.setattr(
                &c,
                x.ino,
                &SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                },
            );
            eprintln!("inode {ino}: {w:?} {t:?}");
        }
        eprintln!("{:?}", v.unlink(&c, ROOT_INO, b"x"));
        v.syncfs(&c).unwrap();
        v.mknod(&c, ROOT_INO, b"z", 0o100644, 0).unwrap();
        v.syncfs(&c).unwrap();
        let shot = Arc::new(bad.snapshot());
        recover(shot.clone()).unwrap();
        let w = mount_on(shot, quiet()).unwrap();
        w.lookup(ROOT_INO, b"z").unwrap();
        v.unmount().unwrap();
    }
}

/// One long run replaces thousands of fragments in many groups: a record that touches more than a tiny log's checkpoint holds.
#[test]
fn a_long_run_over_fragments_with_a_tiny_log() {
    let dev = Arc::new(image(
        &["-b", "1024", "-J", "size=1", "-g", "1024", "-N", "4096"],
        "64M",
    ));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    // Other files between, so that each block of `f` lies somewhere else.
    let dirs: Vec<_> = (0..32)
        .map(|i| {
            v.mkdir(&c, ROOT_INO, format!("d{i}").as_bytes(), 0o755)
                .unwrap()
                .ino
        })
        .collect();
    for i in 0..1024u64 {
        let g = v
            .mknod(
                &c,
                dirs[i as usize % 32],
                format!("g{i}").as_bytes(),
                0o100644,
                0,
            )
            .unwrap();
        v.write(&c, g.ino, 0, &[1; 40 << 10], WriteFlags::default())
            .unwrap();
        v.write(
            &c,
            f.ino,
            (i * 37 % 1024) * 1024,
            &[2; 1024],
            WriteFlags::default(),
        )
        .unwrap();
        v.streamsync(StreamId(1)).unwrap();
        if i % 2 == 1 {
            v.unlink(&c, dirs[i as usize % 32], format!("g{i}").as_bytes())
                .unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let mut at = 0;
    while at < 1 << 20 {
        at += v
            .write(
                &c,
                f.ino,
                at,
                &vec![3; (1 << 20) - at as usize],
                WriteFlags::default(),
            )
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// Threads that make, rename and remove one name all the time, so that a number is another inode's soon after it was looked up.
#[test]
fn one_name_that_comes_and_goes() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let free = v.statfs().unwrap().ffree;
    let c = cx(5);
    let (a, b) = (b"a".as_slice(), b"b".as_slice());
    let end = Instant::now() + Duration::from_secs(8);
    // Whatever the others make of it.
    let remove = |name| {
        let _ = v.unlink(&c, ROOT_INO, name);
        let _ = v.rmdir(&c, ROOT_INO, name);
    };
    let make = || {
        let _ = v.mkdir(&c, ROOT_INO, a, 0o755);
        if let Ok(f) = v.mknod(&c, ROOT_INO, a, 0o100644, 0) {
            let _ = v.write(&c, f.ino, 0, b"x", WriteFlags::default());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < end {
                    make();
                }
            });
            scope.spawn(|| {
                while Instant::now() < end {
                    remove(a);
                    let _ = v.rename(&c, ROOT_INO, a, ROOT_INO, b, RenameFlags::default());
                    remove(b);
                }
            });
        }
        while Instant::now() < end && v.syncfs(&c).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(v.status().stopped, "");
    remove(a);
    remove(b);
    v.syncfs(&c).unwrap();
    assert_eq!(v.statfs().unwrap().ffree, free);
    v.unmount().unwrap();
    fsck(&dev);
}

/// One thread makes files in two directories, and then each of two removes those of one, all in one stream: the transaction has to forget each
/// of these inodes, and no other.
#[test]
fn two_threads_remove_what_one_has_just_made() {
    const FILES: usize = 200;
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let c = cx(5);
    let names: Vec<String> = (0..FILES).map(|n| format!("f{n}")).collect();
    let dirs = ["d0", "d1"].map(|d| v.mkdir(&c, ROOT_INO, d.as_bytes(), 0o755).unwrap().ino);
    v.syncfs(&c).unwrap();
    let free = v.statfs().unwrap().ffree;
    let end = Instant::now() + Duration::from_secs(4);
    let (made, removed) = (Barrier::new(2), Barrier::new(2));
    let over = AtomicBool::new(false);
    let remove = |dir, seed| {
        let mut left: Vec<&String> = names.iter().collect();
        let mut r = Rng::new(seed);
        while !left.is_empty() {
            let name = left.swap_remove(r.index(left.len()));
            v.unlink(&c, dir, name.as_bytes()).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 0.. {
                made.wait();
                if over.load(Ordering::Relaxed) {
                    break;
                }
                remove(dirs[1], seed);
                removed.wait();
            }
        });
        for seed in 0.. {
            for (dir, name) in names.iter().flat_map(|name| dirs.map(|dir| (dir, name))) {
                v.mknod(&c, dir, name.as_bytes(), 0o100644, 0).unwrap();
            }
            over.store(Instant::now() >= end, Ordering::Relaxed);
            made.wait();
            remove(dirs[0], 1000 + seed);
            if over.load(Ordering::Relaxed) {
                break;
            }
            removed.wait();
            v.syncfs(&c).unwrap();
        }
    });
    remove(dirs[1], 0);
    v.syncfs(&c).unwrap();
    assert_eq!(v.status().stopped, "");
    assert_eq!(v.statfs().unwrap().ffree, free);
    v.unmount().unwrap();
    fsck(&dev);
}
