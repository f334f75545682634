//! Tiny logs, full volumes, counts of blocks.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{crash, cx, fsck, image, mount};
use std::sync::Arc;
use std::time::Duration;

fn tiny() -> Arc<MemoryDevice> {
    Arc::new(image(&["-b", "1024", "-J", "size=1", "-N", "16000"], "64M"))
}

#[test]
fn tiny_log_scattered_overwrites() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    for i in 0..16u64 {
        v.write(&c, f.ino, i << 18, &vec![1; 1 << 18], WriteFlags::default())
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    for i in 0..2000u64 {
        v.write(&c, f.ino, i * 2048, &[2; 1024], WriteFlags::default())
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_holes() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let big = SetAttr {
        size: Some(1 << 30),
        ..SetAttr::default()
    };
    v.setattr(&c, f.ino, &big).unwrap();
    v.syncfs(&c).unwrap();
    for i in 0..60_000u64 {
        v.fallocate(&c, f.ino, Fallocate::PunchHole, i * 2048, 1024)
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_access_times() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let mut inos = Vec::new();
    for i in 0..12_000 {
        let f = v
            .mknod(&c, ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
        v.write(&c, f.ino, 0, b"x", WriteFlags::default()).unwrap();
        inos.push(f.ino);
        if i % 500 == 0 {
            v.syncfs(&c).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    let mut out = Vec::new();
    for ino in inos {
        v.read(ino, 0, 10, &mut out).unwrap();
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_directories_while_another_stream_is_open() {
    let dev = tiny();
    let v = mount(&dev);
    v.mkdir(&cx(9), ROOT_INO, b"open", 0o755).unwrap();
    let c = cx(1);
    let p = v.mkdir(&c, ROOT_INO, b"p", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    v.mkdir(&cx(9), ROOT_INO, b"open2", 0o755).unwrap();
    for i in 0..4000 {
        let d = v
            .mkdir(&c, p.ino, format!("d{i}").as_bytes(), 0o755)
            .unwrap();
        v.mknod(&c, d.ino, b"f", 0o100644, 0).unwrap();
        if i % 100 == 99 {
            v.streamsync(c.stream).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_orphans() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    for i in 0..12_000 {
        v.tmpfile(&c, ROOT_INO, 0o644).unwrap();
        if i % 200 == 0 {
            v.syncfs(&c).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

// --- space

fn user(stream: u64) -> Context {
    Context {
        uid: 1000,
        gid: 1000,
        privileged: false,
        posted: false,
        time: None,
        ..cx(stream)
    }
}

fn fill(v: &Volume, c: &Context, ino: Ino) -> u64 {
    let mut at = 0;
    let block = vec![7u8; 1 << 17];
    loop {
        match v.write(c, ino, at, &block, WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(Error::Errno(libc::ENOSPC)) => return at,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn overwriting_on_a_full_volume_never_lacks_space() {
    for c in [cx(1), user(1)] {
        let dev = Arc::new(image(&["-b", "1024"], "16M"));
        let v = mount(&dev);
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
        v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
        let size = fill(&v, &c, f.ino);
        v.syncfs(&c).unwrap();
        for round in 0..3u8 {
            let mut at = 0;
            while at < size {
                let n = (size - at).min(50_000);
                v.write(
                    &c,
                    f.ino,
                    at,
                    &vec![round; n as usize],
                    WriteFlags::default(),
                )
                .unwrap_or_else(|e| panic!("privileged {} at {at}: {e}", c.privileged));
                at += n;
            }
            v.syncfs(&c).unwrap();
        }
        v.setattr(
            &c,
            f.ino,
            &SetAttr {
                size: Some(1000),
                ..SetAttr::default()
            },
        )
        .unwrap();
        v.unlink(&c, ROOT_INO, b"g").unwrap();
        v.unmount().unwrap();
        fsck(&dev);
    }
}

#[test]
fn reservations_for_overwrites_are_no_lack_of_space() {
    let dev = Arc::new(image(&["-b", "4096", "-m", "0"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let free = v.statfs().unwrap().bavail;
    let half = free * 4096 * 6 / 10;
    let mut at = 0;
    while at < half {
        at += v
            .write(&c, f.ino, at, &[1; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    at = 0;
    while at < half {
        at += v
            .write(&c, f.ino, at, &[2; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    let g = v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
    at = 0;
    while at < half / 4 {
        at += v
            .write(&c, g.ino, at, &[3; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn mixed_reservations_on_a_nearly_full_volume_fit_the_log() {
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1", "-m", "0"], "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let free = v.statfs().unwrap().bavail;
    let size = free * 1024 * 6 / 10;
    let mut at = 0;
    while at < size {
        at += v
            .write(&c, f.ino, at, &[1; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    at = 0;
    while at < size {
        at += v
            .write(&c, f.ino, at, &[2; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn dropped_pages_are_not_counted() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.write(&c, f.ino, 0, &[1; 40960], WriteFlags::default())
        .unwrap();
    let a = v
        .setattr(
            &c,
            f.ino,
            &SetAttr {
                size: Some(0),
                ..SetAttr::default()
            },
        )
        .unwrap();
    assert_eq!(a.blocks512, 0);
}

#[test]
fn statfs_is_what_it_was_after_everything_was_removed() {
    let dev = Arc::new(image(&["-b", "1024"], "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let before = v.statfs().unwrap();
    let mut seed = 1u64;
    let mut next = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    for i in 0..3000u64 {
        let (at, len) = (next(200_000), 1 + next(20_000));
        let s = cx(1 + next(3));
        match next(8) {
            0 => drop(v.fallocate(&s, f.ino, Fallocate::PunchHole, at, len)),
            1 => drop(v.fallocate(
                &s,
                f.ino,
                Fallocate::ZeroRange {
                    keep_size: next(2) == 0,
                },
                at,
                len,
            )),
            2 => drop(v.fallocate(
                &s,
                f.ino,
                Fallocate::Allocate {
                    keep_size: next(2) == 0,
                },
                at,
                len,
            )),
            3 => drop(v.setattr(
                &s,
                f.ino,
                &SetAttr {
                    size: Some(at),
                    ..SetAttr::default()
                },
            )),
            4 if i % 3 == 0 => v.fsync(&s, f.ino, false).unwrap(),
            _ => drop(
                v.write(
                    &s,
                    f.ino,
                    at,
                    &vec![i as u8; len as usize],
                    WriteFlags::default(),
                )
                .unwrap(),
            ),
        }
    }
    v.unlink(&c, ROOT_INO, b"f").unwrap();
    v.syncfs(&c).unwrap();
    v.tick(Duration::ZERO).unwrap();
    let mut after = v.statfs().unwrap();
    for _ in 0..3 {
        v.mknod(&c, ROOT_INO, b"x", 0o100644, 0).unwrap();
        v.unlink(&c, ROOT_INO, b"x").unwrap();
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
        v.tick(Duration::ZERO).unwrap();
        after = v.statfs().unwrap();
    }
    assert_eq!((before.bfree, before.ffree), (after.bfree, after.ffree));
    assert_eq!(v.status().dirty_bytes, 0);
    v.unmount().unwrap();
    fsck(&dev);
}

/// Changes the file and its model alike, in a way that `next` chooses: the range `at`, `len`, or up to it, or nothing but a sync.
fn change_both(
    v: &Volume,
    s: &Context,
    ino: Ino,
    model: &mut Vec<u8>,
    (at, len): (u64, u64),
    step: u64,
    next: &mut impl FnMut(u64) -> u64,
) {
    let (a, e) = (at as usize, (at + len) as usize);
    match next(9) {
        0 => {
            if v.fallocate(s, ino, Fallocate::PunchHole, at, len).is_ok() {
                let n = model.len();
                model[a.min(n)..e.min(n)].fill(0);
            }
        }
        1 => {
            let keep_size = next(2) == 0;
            if v.fallocate(s, ino, Fallocate::ZeroRange { keep_size }, at, len)
                .is_ok()
            {
                if !keep_size && model.len() < e {
                    model.resize(e, 0);
                }
                let n = model.len();
                model[a.min(n)..e.min(n)].fill(0);
            }
        }
        2 => {
            let keep_size = next(2) == 0;
            if v.fallocate(s, ino, Fallocate::Allocate { keep_size }, at, len)
                .is_ok()
                && !keep_size
                && model.len() < e
            {
                model.resize(e, 0);
            }
        }
        3 => {
            v.setattr(
                s,
                ino,
                &SetAttr {
                    size: Some(at),
                    ..SetAttr::default()
                },
            )
            .unwrap();
            model.resize(a, 0);
        }
        4 => match next(4) {
            0 => v.fsync(s, ino, false).unwrap(),
            1 => v.checkpoint().unwrap(),
            2 => v.syncfs(s).unwrap(),
            _ => v.tick(Duration::ZERO).unwrap(),
        },
        _ => {
            let byte = (step % 255) as u8 + 1;
            v.write(s, ino, at, &vec![byte; len as usize], WriteFlags::default())
                .unwrap();
            if model.len() < e {
                model.resize(e, 0);
            }
            model[a..e].fill(byte);
        }
    }
}

/// Content against a model, over all ways to change it, through several layers, with crashes.
#[test]
fn content_agrees_with_a_model() {
    for seed in 1..30u64 {
        let blk = if seed % 2 == 0 { "1024" } else { "4096" };
        let args: &[&str] = if seed % 5 == 0 {
            &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"]
        } else {
            &["-b", blk]
        };
        let dev = Arc::new(image(args, "32M"));
        let v = mount(&dev);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % n
        };
        let c = cx(1);
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
        let mut model: Vec<u8> = Vec::new();
        let mut out = Vec::new();
        for i in 0..400u64 {
            let (at, len) = (next(60_000), 1 + next(9_000));
            let s = cx(1 + next(3));
            change_both(&v, &s, f.ino, &mut model, (at, len), i, &mut next);
            v.read(f.ino, 0, 1 << 20, &mut out).unwrap();
            assert!(
                out == model,
                "seed {seed} step {i}: first difference at {:?} of {} / {}",
                out.iter().zip(&model).position(|(a, b)| a != b),
                out.len(),
                model.len()
            );
            if i % 40 == 39 {
                v.fsync(&s, f.ino, false).unwrap();
                let (_, w) = crash(&dev);
                w.read(f.ino, 0, 1 << 20, &mut out).unwrap();
                assert!(
                    out == model,
                    "seed {seed} step {i}, after the crash: {:?} of {} / {}",
                    out.iter().zip(&model).position(|(a, b)| a != b),
                    out.len(),
                    model.len()
                );
            }
        }
        v.unmount().unwrap();
        fsck(&dev);
    }
}

// --- df at any moment

/// Nothing is committed unless the test says so: what users removed is free at once, and counted once.
#[test]
fn statfs_counts_removed_blocks_once() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let free = |what: &str, want: u64| {
        let now = v.statfs().unwrap().bfree;
        assert!(
            now.abs_diff(want) <= 3,
            "{what}: {now} blocks, {want} wanted"
        );
    };
    let put = |stream: u64, ino: Ino, len: usize| {
        let mut at = 0;
        while at < len {
            let data = vec![stream as u8; len - at];
            at += v
                .write(&cx(stream), ino, at as u64, &data, WriteFlags::default())
                .unwrap();
        }
    };
    let size = |blocks: u64| SetAttr {
        size: Some(blocks * 4096),
        ..SetAttr::default()
    };
    let all = v.statfs().unwrap().bfree;
    for synced in [false, true] {
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
        put(1, f.ino, 1 << 20);
        free("written", all - 256);
        if synced {
            v.syncfs(&c).unwrap();
            free("synced", all - 256);
        }
        put(1, f.ino, 1 << 19);
        free("overwritten", all - 256);
        v.setattr(&c, f.ino, &size(156)).unwrap();
        free("truncated", all - 156);
        v.setattr(&cx(2), f.ino, &size(100)).unwrap();
        free("truncated by another stream", all - 100);
        v.fallocate(&cx(2), f.ino, Fallocate::PunchHole, 0, 50 * 4096)
            .unwrap();
        free("punched", all - 50);
        v.unlink(&cx(3), ROOT_INO, b"f").unwrap();
        free("removed", all);
        v.streamsync(StreamId(2)).unwrap();
        free("its change is committed", all);
        v.syncfs(&c).unwrap();
        free("committed", all);
        v.checkpoint().unwrap();
        free("home", all);
    }
    // Half committed: placed, but not yet in the image when it goes.
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    put(1, f.ino, 1 << 20);
    put(2, f.ino, 1 << 20);
    v.streamsync(StreamId(1)).unwrap();
    free("two versions", all - 256);
    v.unlink(&c, ROOT_INO, b"f").unwrap();
    free("removed with two versions", all);
    v.syncfs(&c).unwrap();
    free("committed with two versions", all);
    assert!(v.lookup(ROOT_INO, b"f").is_err());
    let s = v.symlink(&c, ROOT_INO, b"s", &[b'x'; 200]).unwrap();
    assert_eq!(s.blocks512, 8);
    v.unlink(&cx(2), ROOT_INO, b"s").unwrap();
    free("a slow symlink", all);
    v.unmount().unwrap();
    fsck(&dev);
}

/// Blocks preallocated behind the end of file in so many pieces that their tree has inner nodes: e2fsck 1.47 takes some such trees for
/// damaged, so none is left at unmount or by recovery, wherever the file's size was and on a full volume, too (C8).
#[test]
fn pieces_behind_the_end_of_file_are_sound_to_e2fsck() {
    for full in [false, true] {
        let dev = tiny();
        let v = mount(&dev);
        let c = cx(1);
        let make = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
        let (f, rest) = (make(b"f"), make(b"rest"));
        let ahead = |i: u64| {
            let how = Fallocate::Allocate { keep_size: true };
            v.fallocate(&c, f, how, i * 2048, 1024).unwrap();
        };
        let resize = |to: u64| {
            let size = SetAttr {
                size: Some(to),
                ..SetAttr::default()
            };
            v.setattr(&c, f, &size).unwrap();
        };
        for i in 0..3000 {
            ahead(i);
        }
        if full {
            fill(&v, &c, rest);
        }
        crash(&dev);
        for i in 0..12 {
            // Written behind the end of file, the file grows over what is preallocated.
            let at = i * 500 * 1024 / 2 + 77;
            v.write(&c, f, at, b"end", WriteFlags::default()).unwrap();
            match i % 3 {
                0 => v.syncfs(&c).unwrap(),
                1 => v.fsync(&c, f, false).unwrap(),
                _ => v.checkpoint().unwrap(),
            }
            crash(&dev);
        }
        if !full {
            for i in 3000..3200 {
                ahead(i);
            }
            // Gives back all that lies behind.
            resize(200 << 10);
            v.syncfs(&c).unwrap();
            crash(&dev);
            for i in 101..2000 {
                ahead(i);
            }
            v.syncfs(&c).unwrap();
            crash(&dev);
        }
        v.unmount().unwrap();
        fsck(&dev);
    }
}

/// What a group comes after goes into the log with it: others change its directory in very many streams, and it looks at that each time.
#[test]
fn a_group_comes_after_very_many() {
    let dev = tiny();
    let options = Options {
        background: false,
        ..Options::default()
    };
    let v = common::mount_on(dev.clone(), options).unwrap();
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.mkdir(&c, d.ino, b"a", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    let group = v.group_begin(StreamId(2), 0, None).unwrap();
    let g = Context {
        stream: group,
        ..cx(2)
    };
    let mut refused = None;
    for round in 0..8u64 {
        for n in 0..2000 {
            let set = SetAttr {
                mode: Some(0o700 + (n & 7) as u16),
                ..SetAttr::default()
            };
            v.setattr(&cx(1000 + n), d.ino, &set).unwrap();
        }
        let names: [&[u8]; 2] = [b"a", b"b"];
        let (from, to) = (names[round as usize % 2], names[(round as usize + 1) % 2]);
        if let Err(e) = v.rename(&g, d.ino, from, d.ino, to, RenameFlags::default()) {
            refused = Some(e.errno());
            break;
        }
        v.syncfs(&c).unwrap();
    }
    match refused {
        Some(errno) => assert_eq!(errno, libc::EDQUOT),
        None => v.group_commit(group, true).unwrap(),
    }
    v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}
