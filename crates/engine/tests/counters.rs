//! What the mechanisms save, counted at the device.
mod common;
use ccfs_device::Device;
use ccfs_disks::MemoryDevice;
use ccfs_engine::watch::Cause;
use ccfs_engine::*;
use common::{cx, flash, fsck, image, mount_on, quiet};
use std::process::Command;
use std::sync::Arc;

const MB: u64 = 1 << 20;

fn volume(size: &str) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let dev = Arc::new(image(&["-b", "4096"], size));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    (dev, v)
}

fn create(v: &Volume, stream: u64, name: &str) -> Ino {
    v.mknod(&cx(stream), ROOT_INO, name.as_bytes(), 0o100644, 0)
        .unwrap()
        .ino
}

fn append(v: &Volume, stream: u64, ino: Ino, offset: u64, len: u64) {
    let chunk = vec![0x5au8; (128 << 10).min(len as usize)];
    let mut done = 0;
    while done < len {
        done += v
            .write(
                &cx(stream),
                ino,
                offset + done,
                &chunk,
                WriteFlags::default(),
            )
            .unwrap() as u64;
    }
}

fn written(v: &Volume) -> u64 {
    v.status().counters.device_written_bytes
}

#[test]
fn what_is_unlinked_before_its_commit_is_never_written() {
    let (_dev, v) = volume("512M");
    let before = written(&v);
    let ino = create(&v, 1, "f");
    // On flash the dirty limit is half of what the device takes at once.
    let size = if flash::chosen() { 4 * MB } else { 64 * MB };
    append(&v, 1, ino, 0, size);
    v.unlink(&cx(1), ROOT_INO, b"f").unwrap();
    v.syncfs(&cx(1)).unwrap();
    assert!(
        written(&v) - before < MB,
        "{} bytes written",
        written(&v) - before
    );
    v.unmount().unwrap();
}

#[test]
fn a_large_append_logs_only_pointers() {
    let (dev, v) = volume("512M");
    let ino = create(&v, 1, "f");
    append(&v, 1, ino, 0, 100 * MB);
    v.fsync(&cx(1), ino, false).unwrap();
    let c = v.status().counters;
    assert!(c.logged_bytes < MB, "{c:?}");
    assert_eq!(c.direct_bytes, 100 * MB, "{c:?}");
    v.unmount().unwrap();
    fsck(&dev);
}

/// Places are found by the piece (2048 pages); what is written does not show it, and neither does a crash.
#[test]
fn many_pages_of_a_file_are_placed_by_the_piece_and_stay_together() {
    let (dev, v) = volume("512M");
    let ino = create(&v, 1, "f");
    let pages = 3 * 2048 + 17;
    let content = |page: u64, version: u8| [version ^ (page % 251) as u8; 4096];
    let write = |page: u64, version: u8| {
        let bytes = content(page, version);
        v.write(&cx(1), ino, page * 4096, &bytes, WriteFlags::default())
            .unwrap();
    };
    // Not the last pages of the second piece: a hole at a boundary.
    let hole = |page: u64| (4090..4100).contains(&page);
    (0..pages)
        .filter(|p| !hole(*p))
        .for_each(|p| write(p, 0x55));
    v.fsync(&cx(1), ino, false).unwrap();
    let (copy, after) = common::crash(&dev);
    let check = |v: &Volume, version: u8| {
        let mut out = Vec::new();
        for page in 0..pages {
            v.read(ino, page * 4096, 4096, &mut out).unwrap();
            let expected = match hole(page) {
                true => [0; 4096],
                false => content(page, version),
            };
            assert!(out == expected, "page {page}");
        }
    };
    check(&after, 0x55);
    after.unmount().unwrap();
    let (_, text) = common::debugfs_says(&copy, &format!("dump_extents -l <{ino}>"));
    let extents = text.lines().filter(|l| l.contains('-')).count();
    assert!((2..=4).contains(&extents), "{extents} extents\n{text}");
    (0..pages)
        .filter(|p| !hole(*p))
        .for_each(|p| write(p, 0xaa));
    v.fsync(&cx(1), ino, false).unwrap();
    check(&v, 0xaa);
    let (_, after) = common::crash(&dev);
    check(&after, 0xaa);
    after.unmount().unwrap();
}

/// A tree that is unpacked: small files lie side by side, and go to the device together.
#[test]
fn many_small_files_are_few_writes() {
    let (dev, v) = volume("512M");
    let before = v.status().counters.device_writes;
    for n in 0..3000 {
        let ino = create(&v, 1, &format!("f{n}"));
        append(&v, 1, ino, 0, 4096 + n % 2 * 4096);
    }
    v.syncfs(&cx(1)).unwrap();
    let writes = v.status().counters.device_writes - before;
    assert!(writes < 100, "{writes} writes for 3000 files");
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn parallel_appenders_stay_contiguous() {
    let (dev, v) = volume("2G");
    let files: Vec<Ino> = (0..16).map(|i| create(&v, 1, &format!("f{i}"))).collect();
    for step in 0..64 {
        for &ino in &files {
            append(&v, 1, ino, step * MB, MB);
        }
        v.tick(std::time::Duration::from_millis(200)).unwrap();
    }
    v.unmount().unwrap();
    fsck(&dev);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    flash::plain(&dev).to_file(&path).unwrap();
    for ino in files {
        let out = Command::new("debugfs")
            .args(["-R", &format!("dump_extents -l <{ino}>")])
            .arg(&path)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let extents = text.lines().skip(1).count();
        assert!(
            (1..=4).contains(&extents),
            "inode {ino}: {extents} extents\n{text}"
        );
    }
}

#[test]
fn a_sync_carries_nothing_of_a_stream_that_shares_its_blocks() {
    let (dev, v) = volume("64M");
    // Neighbours in the inode table, in the bitmaps, and in the root directory's one block.
    let a = create(&v, 20, "a");
    let b = create(&v, 21, "b");
    append(&v, 20, a, 0, 8 * MB);
    v.fsync(&cx(21), b, false).unwrap();
    v.shutdown();
    let after = mount_on(Arc::new(dev.snapshot()), quiet()).unwrap();
    assert!(after.lookup(ROOT_INO, b"b").is_ok());
    assert!(after.lookup(ROOT_INO, b"a").is_err());
    after.unmount().unwrap();
}

#[test]
fn many_overwrites_of_a_block_are_logged_once() {
    let (_dev, v) = volume("64M");
    let ino = create(&v, 1, "f");
    append(&v, 1, ino, 0, 4096);
    v.syncfs(&cx(1)).unwrap();
    let before = v.status().counters;
    for i in 0..1000u64 {
        v.write(&cx(1), ino, 0, &[i as u8; 4096], WriteFlags::default())
            .unwrap();
    }
    v.fsync(&cx(1), ino, false).unwrap();
    let after = v.status().counters;
    let logged = after.logged_bytes - before.logged_bytes;
    // On flash the block and its inode are written where they are.
    let home = after.device_written_bytes - before.device_written_bytes;
    let counted = if flash::chosen() { home } else { logged };
    assert!((4096..=12288).contains(&counted), "{counted} bytes");
    assert!(after.avoided_bytes - before.avoided_bytes >= 999 * 4096);
    v.unmount().unwrap();
}

/// What an operation may need at most is reserved for it; what turns out not to be needed must not make others wait for a commit.
#[test]
fn what_is_not_needed_any_more_is_reserved_for_nobody() {
    let (dev, v) = volume("64M");
    let free = v.statfs().unwrap().bfree;
    let kept = create(&v, 1, "kept");
    for i in 0..4000u64 {
        let ino = create(&v, 1, "f");
        append(&v, 1, ino, 0, 1000);
        append(&v, 1, kept, i * 2000, 2000);
        v.unlink(&cx(1), ROOT_INO, b"f").unwrap();
    }
    // 16,384 blocks: one of each would have been too much for ten of them.
    let space = Cause::NAMES.iter().position(|n| *n == "space").unwrap();
    assert_eq!(v.totals().commits_by_cause[space], 0);
    assert_eq!(
        v.statfs().unwrap().bfree,
        free - (4000 * 2000u64).div_ceil(4096)
    );
    v.unmount().unwrap();
    fsck(&dev);
}

/// Bitmaps, tables and counts are never in the log; a checkpoint writes each of their blocks once.
#[test]
fn a_bitmap_that_changes_a_thousand_times_is_written_once_per_checkpoint() {
    let test = "a_bitmap_that_changes_a_thousand_times_is_written_once_per_checkpoint";
    if flash::is_about_the_log(test, "every commit writes what it changed") {
        return;
    }
    let (_dev, v) = volume("64M");
    let ino = create(&v, 1, "f");
    v.syncfs(&cx(1)).unwrap();
    v.checkpoint().unwrap();
    let before = v.status().counters;
    for i in 0..1000 {
        append(&v, 1, ino, i * 4096, 4096);
        v.fsync(&cx(1), ino, false).unwrap();
    }
    v.checkpoint().unwrap();
    let after = v.status().counters;
    // One frame for each sync.
    assert_eq!(after.logged_bytes - before.logged_bytes, 1000 * 4096);
    let checkpoints = after.checkpoints - before.checkpoints;
    assert!((1..=10).contains(&checkpoints), "{checkpoints}");
    // Bitmap, descriptors, inode table, super block, extents, and a head with the counts.
    let images = after.checkpoint_bytes - before.checkpoint_bytes;
    assert!(
        images <= checkpoints * 8 * 4096,
        "{images} in {checkpoints}"
    );
    v.unmount().unwrap();
}

#[test]
fn an_fsync_is_one_flush() {
    let (_dev, v) = volume("64M");
    let ino = create(&v, 1, "f");
    v.syncfs(&cx(1)).unwrap();
    let before = v.status().counters.device_flushes;
    for i in 0..10 {
        append(&v, 1, ino, i * 4096, 4096);
        v.fsync(&cx(1), ino, false).unwrap();
    }
    assert_eq!(v.status().counters.device_flushes - before, 10);
    v.unmount().unwrap();
}

#[test]
fn trim_discards_what_is_free_and_nothing_else() {
    let (dev, v) = volume("64M");
    let ino = create(&v, 1, "f");
    append(&v, 1, ino, 0, 8 * MB);
    v.syncfs(&cx(1)).unwrap();
    let free = v.statfs().unwrap().bfree * 4096;
    let discarded = v.trim(0, u64::MAX, 0).unwrap();
    assert!(
        discarded >= free - 32 * MB && discarded <= free + 8 * MB,
        "{discarded} of {free}"
    );
    assert_eq!(v.statfs().unwrap().bfree * 4096, free);
    let mut out = Vec::new();
    v.read(ino, 4 * MB, 4096, &mut out).unwrap();
    assert_eq!(out, [0x5a; 4096]);
    v.unmount().unwrap();
    fsck(&dev);
}

/// As the kernel's ext4 takes them (the group `posix/arguments` compares).
#[test]
fn trim_takes_whole_blocks_of_the_volume() {
    let (dev, v) = volume("256M");
    let (size, group) = (256 * MB, 128 * MB);
    let refused = |start, len, min_len| {
        let outcome = v.trim(start, len, min_len).map_err(|e| e.errno());
        assert_eq!(outcome, Err(libc::EINVAL), "{start} {len} {min_len}");
    };
    for (start, len, min_len) in [
        (size, u64::MAX, 0),
        (u64::MAX, u64::MAX, 0),
        (0, 0, 0),
        (0, 4095, 0),
        (0, u64::MAX, group + 4096),
    ] {
        refused(start, len, min_len);
    }
    let trimmed = |start, len, min_len| v.trim(start, len, min_len).unwrap();
    assert!(trimmed(size - 1, 4096, 0) <= 4096);
    assert_eq!(trimmed(0, u64::MAX, group + 4095), 0);
    // A run is looked at as a whole, and trimmed to its end.
    let (long, all) = (trimmed(0, u64::MAX, 100 * MB), trimmed(0, u64::MAX, 0));
    assert!(long > 100 * MB && long <= all, "{long} of {all}");
    v.unmount().unwrap();
    fsck(&dev);
}

/// The paper's Table 3 in bytes: 100 MB to A, one byte to B, fsync(B); in one stream and in two.
#[test]
fn table_3_in_bytes() {
    let why = "100 MB are more than the device takes at once";
    if flash::is_about_the_log("table_3_in_bytes", why) {
        return;
    }
    for (case, one_total, two_total) in [
        ("append", 98..=104, 98..=104),
        ("truncate", 98..=104, 0..=1),
        ("overwrite", 196..=304, 98..=104),
    ] {
        for streams in [1u64, 2] {
            let dev = Arc::new(image(&["-b", "4096"], "1G"));
            let options = Options {
                dirty_limit: 512 << 20,
                ..quiet()
            };
            let v = mount_on(dev.clone(), options).unwrap();
            let (a_stream, b_stream) = (30, 29 + streams);
            let (a, b) = (create(&v, a_stream, "a"), create(&v, b_stream, "b"));
            v.syncfs(&cx(1)).unwrap();
            let start = written(&v);
            append(&v, a_stream, a, 0, 100 * MB);
            v.write(&cx(b_stream), b, 0, b"x", WriteFlags::default())
                .unwrap();
            let before = written(&v);
            v.fsync(&cx(b_stream), b, false).unwrap();
            let by_fsync = written(&v) - before;
            match case {
                "truncate" => drop(
                    v.setattr(
                        &cx(a_stream),
                        a,
                        &SetAttr {
                            size: Some(0),
                            ..SetAttr::default()
                        },
                    )
                    .unwrap(),
                ),
                "overwrite" => append(&v, a_stream, a, 0, 100 * MB),
                _ => {}
            }
            v.syncfs(&cx(1)).unwrap();
            let total = (written(&v) - start) / MB;
            println!("{case}, {streams} streams: fsync wrote {by_fsync} bytes, total {total} MB");
            if streams == 2 {
                assert!(by_fsync <= 100_000, "{by_fsync}");
                assert!(two_total.contains(&total), "{case}: {total}");
            } else {
                assert!((98 * MB..=102 * MB).contains(&by_fsync), "{by_fsync}");
                assert!(one_total.contains(&total), "{case}: {total}");
            }
            v.unmount().unwrap();
        }
    }
}

/// The file's content by the volume; all reads of file data below the page cache come this way.
fn content(v: &Volume, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    v.read(ino, 0, 1 << 20, &mut out).unwrap();
    out
}

#[test]
fn the_end_of_a_file_that_was_written_lately_is_not_read_from_the_device() {
    let (dev, v) = volume("64M");
    let ino = create(&v, 1, "f");
    // A user has it open: nothing is kept of a new file that nobody knows.
    v.remember(ino, 1);
    let reads = |v: &Volume| v.status().counters.device_reads;
    let put = |v: &Volume, at: usize, bytes: &[u8]| {
        let done = v.write(&cx(1), ino, at as u64, bytes, WriteFlags::default());
        assert_eq!(done.unwrap(), bytes.len());
    };
    let home = |v: &Volume| {
        v.syncfs(&cx(1)).unwrap();
        v.checkpoint().unwrap();
    };
    let mut expected = Vec::new();
    put(&v, 0, b"begin");
    expected.extend(b"begin");
    home(&v);
    // Small appends, over the ends of blocks: what they go on from is remembered.
    let before = reads(&v);
    for n in 0..40u8 {
        let piece = vec![n | 1; 900];
        put(&v, expected.len(), &piece);
        expected.extend(&piece);
        home(&v);
        let start = expected.len() / 4096 * 4096;
        let mut end = Vec::new();
        v.read(ino, start as u64, 4096, &mut end).unwrap();
        assert_eq!(end, expected[start..]);
    }
    assert_eq!(reads(&v), before);
    // Whatever else happens to the last block is seen.
    let size = |to: u64| SetAttr {
        size: Some(to),
        ..SetAttr::default()
    };
    let resize =
        |v: &Volume, to: usize| v.setattr(&cx(1), ino, &size(to as u64)).map(drop).unwrap();
    for shrink in [100, 5000, 9000] {
        let to = expected.len() - shrink;
        resize(&v, to);
        expected.truncate(to);
        home(&v);
        assert_eq!(content(&v, ino), expected);
        // Growing shows zeros where there were bytes.
        resize(&v, to + 300);
        expected.resize(to + 300, 0);
        home(&v);
        assert_eq!(content(&v, ino), expected);
        put(&v, to - 50, &[0xee; 100]);
        expected[to - 50..to + 50].fill(0xee);
        home(&v);
        assert_eq!(content(&v, ino), expected);
    }
    let last = expected.len() / 4096 * 4096;
    v.fallocate(&cx(1), ino, Fallocate::PunchHole, last as u64, 4096)
        .unwrap();
    expected[last..].fill(0);
    home(&v);
    assert_eq!(content(&v, ino), expected);
    resize(&v, 0);
    home(&v);
    put(&v, 0, b"anew");
    home(&v);
    assert_eq!(content(&v, ino), b"anew");
    v.unmount().unwrap();
    // Nothing is remembered over a mount: this is what the device has.
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let before = reads(&v);
    assert_eq!(content(&v, ino), b"anew");
    assert!(reads(&v) > before);
    v.unmount().unwrap();
    fsck(&dev);
}

/// What stat and df say of blocks that were allocated and then written before any commit, and of ones that go again.
#[test]
fn blocks_that_are_allocated_and_then_written_count_once() {
    let (dev, v) = volume("64M");
    let (f, gone) = (create(&v, 1, "f"), create(&v, 1, "gone"));
    v.syncfs(&cx(1)).unwrap();
    let free = v.statfs().unwrap().bfree;
    let how = Fallocate::Allocate { keep_size: false };
    let blocks = || v.getattr(f).unwrap().blocks512;
    for ino in [f, gone] {
        v.fallocate(&cx(1), ino, how, 0, MB).unwrap();
        append(&v, 1, ino, 0, MB / 2);
    }
    let before = blocks();
    v.unlink(&cx(1), ROOT_INO, b"gone").unwrap();
    let left = free - MB / 4096;
    assert_eq!((before, v.statfs().unwrap().bfree), (MB / 512, left));
    v.syncfs(&cx(1)).unwrap();
    assert_eq!((blocks(), v.statfs().unwrap().bfree), (MB / 512, left));
    v.unmount().unwrap();
    fsck(&dev);
}

/// A tree of extents goes with the content, for stat and df as well; a block of attributes stays.
#[test]
fn an_empty_file_has_no_tree() {
    let (dev, v) = volume("64M");
    let (f, named) = (create(&v, 1, "f"), create(&v, 1, "named"));
    let long = [b'x'; 600];
    v.setxattr(&cx(1), named, b"user.a", &long, false, false, false)
        .unwrap();
    v.syncfs(&cx(1)).unwrap();
    v.checkpoint().unwrap();
    let (blocks, free) = (
        |ino| v.getattr(ino).unwrap().blocks512 / 8,
        || v.statfs().unwrap().bfree,
    );
    let before = free();
    for ino in [f, named] {
        (0..10).for_each(|i| append(&v, 1, ino, i * 8192, 4096));
    }
    v.syncfs(&cx(1)).unwrap();
    v.checkpoint().unwrap();
    assert_eq!((blocks(f), blocks(named), free()), (11, 12, before - 22));
    let empty = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    for ino in [f, named] {
        v.setattr(&cx(1), ino, &empty).unwrap();
    }
    assert_eq!((blocks(f), blocks(named), free()), (0, 1, before));
    // What comes after it counts by itself.
    append(&v, 1, f, 0, 4096);
    assert_eq!((blocks(f), free()), (1, before - 1));
    v.syncfs(&cx(1)).unwrap();
    v.checkpoint().unwrap();
    assert_eq!((blocks(f), blocks(named), free()), (1, 1, before - 1));
    v.unmount().unwrap();
    fsck(&dev);
}

/// Small files that lie beside each other are read together, in whatever order; what changes meanwhile is read as it is, by way of the log
/// and by way of new blocks.
#[test]
fn small_files_are_read_together() {
    const FILES: u64 = 240;
    let size = |i: u64| 3000 + i * 20;
    let content = |i: u64, with: u8| vec![with ^ i as u8; size(i) as usize];
    let (dev, v) = volume("512M");
    let files: Vec<Ino> = (0..FILES)
        .map(|i| create(&v, 1, &format!("f{i}")))
        .collect();
    for (i, ino) in (0..).zip(&files) {
        let flags = WriteFlags::default();
        v.write(&cx(1), *ino, 0, &content(i, 1), flags).unwrap();
    }
    v.unmount().unwrap();
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let read = |i: u64| {
        let mut out = Vec::new();
        let ino = files[i as usize];
        assert!(v.getattr(ino).is_ok());
        v.read(ino, 0, 1 << 20, &mut out).unwrap();
        out
    };
    let mixed = |i: u64| i * 101 % FILES;
    // What lies beside one that was read is there for threads that may not wait for the device.
    read(0);
    let in_memory = (1..20).filter(|i| {
        let ino = files[*i as usize];
        v.getattr(ino).unwrap();
        let read = v.non_blocking().read(ino, 0, 1 << 20, &mut Vec::new());
        read.is_ok()
    });
    let in_memory = in_memory.count();
    assert!(in_memory >= 9 || flash::chosen(), "{in_memory}");
    let before = dev.counters().reads;
    for i in (0..FILES).map(mixed) {
        assert!(read(i) == content(i, 1), "file {i}");
    }
    let reads = dev.counters().reads - before;
    if !flash::chosen() {
        assert!(reads < FILES / 4, "{reads} reads, structure included");
    }
    // Each third is overwritten, each third replaced; the others lie between them.
    for i in 0..FILES {
        let (ino, flags) = (files[i as usize], WriteFlags::default());
        match i % 3 {
            0 => drop(v.write(&cx(1), ino, 0, &content(i, 2), flags).unwrap()),
            1 => {
                let empty = SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                };
                v.setattr(&cx(1), ino, &empty).unwrap();
                v.write(&cx(1), ino, 0, &content(i, 2), flags).unwrap();
            }
            _ => {}
        }
        if i % 40 == 0 {
            v.syncfs(&cx(1)).unwrap();
            v.tick(std::time::Duration::ZERO).unwrap();
            v.checkpoint().unwrap();
        }
        let near = mixed(i);
        let with = if near > i || near % 3 == 2 { 1 } else { 2 };
        assert!(read(near) == content(near, with), "file {near} at {i}");
    }
    v.syncfs(&cx(1)).unwrap();
    v.checkpoint().unwrap();
    for i in (0..FILES).map(mixed) {
        let with = if i % 3 == 2 { 1 } else { 2 };
        assert!(read(i) == content(i, with), "file {i}");
    }
    v.unmount().unwrap();
    fsck(&dev);
}
