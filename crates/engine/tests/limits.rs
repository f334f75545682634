//! Bounds: nothing is accepted that cannot be applied, or recovered, on the smallest log and the fullest volume.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{acl, crash, cx, debugfs, fsck, image, mode, mount};
use std::sync::Arc;

const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

fn tiny() -> Arc<MemoryDevice> {
    Arc::new(image(&["-b", "1024", "-J", "size=1", "-N", "60000"], "64M"))
}

fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    match result {
        Err(Error::Errno(n)) => n,
        other => panic!("{other:?}"),
    }
}

/// Ends well, and so does a crash at this moment.
fn judge(v: &Volume, dev: &MemoryDevice) {
    assert_eq!(v.status().stopped, "");
    v.syncfs(&cx(1)).unwrap();
    crash(dev);
    v.unmount().unwrap();
    fsck(dev);
}

// --- attributes

#[test]
fn inherited_acls_that_do_not_fit_are_refused_before_they_are_accepted() {
    for kind in [&["-b", "1024"][..], &["-b", "1024", "-I", "128"]] {
        let dev = Arc::new(image(kind, "16M"));
        let v = mount(&dev);
        let c = cx(1);
        let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
        v.setxattr(&c, d.ino, ACL_DEFAULT, &acl(100), false, false, false)
            .unwrap();
        // Twice in a directory: its own rights, and what it hands on.
        assert_eq!(errno(v.mkdir(&c, d.ino, b"sub", 0o777)), libc::ENOSPC);
        let f = v.mknod(&c, d.ino, b"f", 0o100666, 0).unwrap();
        assert_eq!(v.getxattr(f.ino, ACL_ACCESS).unwrap().len(), acl(100).len());
        v.tmpfile(&c, d.ino, 0o666).unwrap();
        judge(&v, &dev);
    }
}

/// Two lists of this size fit into a directory, and many directories into one transaction of a tiny log only if they are counted.
#[test]
fn inherited_acls_count_in_the_transaction() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.setxattr(&c, d.ino, ACL_DEFAULT, &acl(50), false, false, false)
        .unwrap();
    for i in 0..3000 {
        v.mkdir(&c, d.ino, format!("n{i}").as_bytes(), 0o777)
            .unwrap();
    }
    judge(&v, &dev);
}

#[test]
fn chmod_with_large_acls_counts_in_the_transaction() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let mut files = Vec::new();
    for i in 0..1500 {
        let f = v
            .mknod(&c, ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
        v.setxattr(&c, f.ino, ACL_ACCESS, &acl(100), false, false, false)
            .unwrap();
        files.push(f.ino);
    }
    for ino in files {
        v.setattr(&c, ino, &mode(0o600)).unwrap();
    }
    judge(&v, &dev);
}

/// debugfs places attributes in its own way; a change of mode rewrites them where they fit.
#[test]
fn chmod_of_a_file_with_attributes_that_others_placed() {
    let dev = Arc::new(image(&["-b", "1024"], "16M"));
    let v = mount(&dev);
    let f = v.mknod(&cx(1), ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.unmount().unwrap();
    let mut bytes = debugfs(
        &dev,
        "ea_set /f user.aaaa 0123456789012345678901234567890123456789",
    );
    let long = "x".repeat(850);
    bytes = debugfs(&bytes, &format!("ea_set /f user.b {long}"));
    let dev = Arc::new(bytes);
    let v = mount(&dev);
    for users in 1..20 {
        match v.setxattr(&cx(1), f.ino, ACL_ACCESS, &acl(users), false, false, false) {
            Ok(()) | Err(Error::Errno(libc::ENOSPC)) => {}
            Err(e) => panic!("{e}"),
        }
        v.setattr(&cx(1), f.ino, &mode(0o600 + users as u16 % 8))
            .unwrap();
        v.syncfs(&cx(1)).unwrap();
    }
    judge(&v, &dev);
}

// --- lists in a checkpoint

#[test]
fn more_nameless_files_than_a_tiny_log_can_list() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let free = v.statfs().unwrap().ffree;
    for i in 0..50_000 {
        v.tmpfile(&c, ROOT_INO, 0o644).unwrap();
        if i % 500 == 0 {
            v.syncfs(&c).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    assert_eq!(v.status().stopped, "");
    // A crash with all of them: recovery finds and frees them.
    let (_, w) = crash(&dev);
    assert_eq!(w.statfs().unwrap().ffree, free);
    judge(&v, &dev);
    assert_eq!(mount(&dev).statfs().unwrap().ffree, free);
}

/// Directories that one stream has changed and not committed, changed later by another one that has: a checkpoint must say which
/// operation set which field last.
#[test]
fn fields_of_many_directories_that_two_streams_change() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let mut dirs = Vec::new();
    for i in 0..12_000 {
        let d = v
            .mkdir(&c, ROOT_INO, format!("d{i}").as_bytes(), 0o755)
            .unwrap();
        dirs.push(d.ino);
    }
    v.syncfs(&c).unwrap();
    for (i, dir) in dirs.iter().enumerate() {
        v.setattr(&cx(2), *dir, &mode(0o700)).unwrap();
        v.setattr(&cx(3), *dir, &mode(0o711)).unwrap();
        if i % 50 == 49 {
            v.streamsync(StreamId(3)).unwrap();
        }
    }
    v.streamsync(StreamId(3)).unwrap();
    v.streamsync(StreamId(2)).unwrap();
    assert_eq!(v.status().stopped, "");
    let (_, w) = crash(&dev);
    for dir in dirs {
        assert_eq!(w.getattr(dir).unwrap().mode & 0o777, 0o711);
    }
    judge(&v, &dev);
}

// --- what the volume's features allow

#[test]
fn without_large_file_a_file_ends_at_2_gib() {
    let kind = ["-b", "4096", "-O", "^large_file,^resize_inode"];
    let dev = Arc::new(image(&kind, "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let end = (1u64 << 31) - 1;
    v.write(&c, f.ino, end - 1, b"x", WriteFlags::default())
        .unwrap();
    let past = v.write(&c, f.ino, end, b"x", WriteFlags::default());
    assert_eq!(errno(past), libc::EFBIG);
    let set = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    assert_eq!(errno(v.setattr(&c, f.ino, &set(end + 1))), libc::EFBIG);
    let how = Fallocate::Allocate { keep_size: true };
    assert_eq!(errno(v.fallocate(&c, f.ino, how, end, 1)), libc::EFBIG);
    // What begins below is cut there (POSIX).
    let cut = v.write(&c, f.ino, end - 2, b"abcd", WriteFlags::default());
    assert_eq!(cut.unwrap(), 2);
    judge(&v, &dev);
}

#[test]
fn without_dir_nlink_a_directory_has_65000_links() {
    for (feature, full) in [("dir_nlink", false), ("^dir_nlink", true)] {
        let dev = Arc::new(image(&["-b", "4096", "-O", feature], "32M"));
        let v = mount(&dev);
        let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap();
        v.unmount().unwrap();
        let dev = Arc::new(debugfs(&dev, "sif /d links_count 64999"));
        let v = mount(&dev);
        let c = cx(1);
        v.mkdir(&c, d.ino, b"last", 0o755).unwrap();
        assert_eq!(v.getattr(d.ino).unwrap().nlink, 65_000);
        let more = v.mkdir(&c, d.ino, b"more", 0o755);
        if full {
            assert_eq!(errno(more), libc::EMLINK);
        } else {
            more.unwrap();
            assert_eq!(v.getattr(d.ino).unwrap().nlink, 1);
        }
        v.syncfs(&c).unwrap();
        v.unmount().unwrap();
    }
}

/// An exchange of a directory with a file gives one side a subdirectory more.
#[test]
fn an_exchange_does_not_exceed_the_links_of_a_directory() {
    let dev = Arc::new(image(&["-b", "4096", "-O", "^dir_nlink"], "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let a = v.mkdir(&c, ROOT_INO, b"a", 0o755).unwrap().ino;
    let b = v.mkdir(&c, ROOT_INO, b"b", 0o755).unwrap().ino;
    v.mknod(&c, a, b"file", 0o100644, 0).unwrap();
    v.mkdir(&c, b, b"dir", 0o755).unwrap();
    v.unmount().unwrap();
    let dev = Arc::new(debugfs(&dev, "sif /a links_count 65000"));
    let v = mount(&dev);
    let flags = RenameFlags {
        exchange: true,
        ..RenameFlags::default()
    };
    assert_eq!(
        errno(v.rename(&c, b, b"dir", a, b"file", flags)),
        libc::EMLINK
    );
    assert_eq!(
        errno(v.rename(&c, a, b"file", b, b"dir", flags)),
        libc::EMLINK
    );
    assert_eq!(v.getattr(a).unwrap().nlink, 65_000);
}

/// All inodes are in use, then some are not: the removals need not be committed by anybody else.
#[test]
fn freed_inodes_are_found_when_none_is_left() {
    let dev = Arc::new(image(&["-b", "1024", "-N", "64"], "16M"));
    let v = mount(&dev);
    let free = v.statfs().unwrap().ffree;
    for i in 0..free {
        v.mknod(&cx(1), ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
    }
    assert_eq!(v.statfs().unwrap().ffree, 0);
    assert_eq!(
        errno(v.mknod(&cx(1), ROOT_INO, b"x", 0o100644, 0)),
        libc::ENOSPC
    );
    v.syncfs(&cx(1)).unwrap();
    v.unlink(&cx(2), ROOT_INO, b"f0").unwrap();
    v.unlink(&cx(3), ROOT_INO, b"f1").unwrap();
    assert_eq!(v.statfs().unwrap().ffree, 2);
    v.mknod(&cx(1), ROOT_INO, b"x", 0o100644, 0).unwrap();
    v.mknod(&cx(1), ROOT_INO, b"y", 0o100644, 0).unwrap();
    assert_eq!(v.statfs().unwrap().ffree, 0);
    judge(&v, &dev);
}

// --- extents

fn write(v: &Volume, ino: Ino, at: u64, data: &[u8]) -> Result<usize> {
    v.write(&cx(1), ino, at, data, WriteFlags::default())
}

/// Takes all space that is left.
fn fill(v: &Volume, ino: Ino) {
    let mut at = 0;
    loop {
        match write(v, ino, at, &[7; 1 << 16]) {
            Ok(n) => at += n as u64,
            Err(Error::Errno(libc::ENOSPC)) => return,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Every second block of an unwritten extent: each write would cut it, and nothing is free for the nodes of its tree.
#[test]
fn overwriting_preallocated_blocks_of_a_full_volume_never_lacks_space() {
    let dev = Arc::new(image(&["-b", "1024", "-m", "0"], "24M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let g = v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
    let blocks = v.statfs().unwrap().bavail * 9 / 10;
    let how = Fallocate::Allocate { keep_size: false };
    v.fallocate(&c, f.ino, how, 0, blocks * 1024).unwrap();
    v.syncfs(&c).unwrap();
    fill(&v, g.ino);
    v.syncfs(&c).unwrap();
    let before = v.status().counters.direct_bytes;
    for i in (0..blocks).step_by(2) {
        let data = [i as u8 | 1; 700];
        let n = write(&v, f.ino, i * 1024 + 100, &data)
            .unwrap_or_else(|e| panic!("block {i} of {blocks}: {e}, {}", v.status().stopped));
        assert_eq!(n, 700);
        if i % 512 == 0 {
            v.syncfs(&c).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    assert_eq!(v.status().stopped, "");
    // Some were written with what lies around them.
    let direct = v.status().counters.direct_bytes - before;
    assert!(direct > blocks / 2 * 1024, "{direct} bytes for {blocks}");
    let (_, w) = crash(&dev);
    let mut out = Vec::new();
    for i in 0..blocks {
        w.read(f.ino, i * 1024, 1024, &mut out).unwrap();
        let byte = if i % 2 == 0 { i as u8 | 1 } else { 0 };
        assert!(out[..100].iter().all(|b| *b == 0), "block {i}");
        assert!(out[100..800].iter().all(|b| *b == byte), "block {i}");
        assert!(out[800..].iter().all(|b| *b == 0), "block {i}");
    }
    judge(&v, &dev);
}

/// The same where the extent goes on behind the end of file: a write may lack space, but what was accepted is applied.
#[test]
fn writing_into_many_extents_behind_the_end_of_file_of_a_full_volume() {
    let dev = Arc::new(image(&["-b", "1024", "-m", "0", "-N", "4000"], "16M"));
    let v = mount(&dev);
    let c = cx(1);
    let mut files = Vec::new();
    for i in 0..1200u64 {
        let f = v
            .mknod(&c, ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
        // Four extents each: the inode's own root is full.
        for k in 0..4 {
            let how = Fallocate::Allocate { keep_size: true };
            v.fallocate(&c, f.ino, how, k * 8192, 2048).unwrap();
        }
        files.push(f.ino);
    }
    let g = v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
    v.syncfs(&c).unwrap();
    fill(&v, g.ino);
    v.syncfs(&c).unwrap();
    let mut lacking = 0;
    for ino in files {
        match write(&v, ino, 8192, &[1; 1024]) {
            Ok(_) => {}
            Err(Error::Errno(libc::ENOSPC)) => lacking += 1,
            Err(e) => panic!("{e}: {}", v.status().stopped),
        }
    }
    assert!(lacking < 1200);
    judge(&v, &dev);
}

/// Every second block is free: what is allocated in one piece becomes as many runs as blocks, and each of them is a record.
#[test]
fn allocation_in_the_worst_of_free_spaces() {
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1", "-m", "0"], "48M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    fill(&v, f.ino);
    v.syncfs(&c).unwrap();
    let blocks = v.getattr(f.ino).unwrap().size / 1024;
    // The first ones make room for the nodes that the others need.
    v.fallocate(&c, f.ino, Fallocate::PunchHole, 0, 3000 * 1024)
        .unwrap();
    for i in (3001..blocks).step_by(2) {
        v.fallocate(&c, f.ino, Fallocate::PunchHole, i * 1024, 1024)
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let g = v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
    let want = v.statfs().unwrap().bavail * 8 / 10;
    assert!(want > 15_000, "{want} blocks");
    let how = Fallocate::Allocate { keep_size: false };
    v.fallocate(&c, g.ino, how, 0, want * 1024).unwrap();
    v.syncfs(&c).unwrap();
    assert_eq!(v.getattr(g.ino).unwrap().size, want * 1024);
    let zero = Fallocate::ZeroRange { keep_size: true };
    match v.fallocate(&c, g.ino, zero, 512, want * 1024 / 2) {
        Ok(()) | Err(Error::Errno(libc::ENOSPC)) => {}
        Err(e) => panic!("{e}"),
    }
    for i in 0..2000 {
        write(&v, g.ino, i * 3 * 1024, &[5; 1024]).unwrap();
    }
    judge(&v, &dev);
}

/// A write takes the unwritten extent around it along, but not what its own transaction has made a hole.
#[test]
fn holes_beside_a_write_into_an_unwritten_extent_of_a_full_volume() {
    let dev = Arc::new(image(&["-b", "1024", "-m", "0"], "24M"));
    let v = mount(&dev);
    let c = cx(1);
    let make = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
    let (g, h) = (make(b"g"), make(b"h"));
    let how = Fallocate::Allocate { keep_size: false };
    v.fallocate(&c, h, how, 0, 1000 * 1024).unwrap();
    // Four extents each: the inode's own root is full, and a cut takes a block.
    let mut files = Vec::new();
    for i in 0..600 {
        let f = make(format!("f{i}").as_bytes());
        for k in 0..4 {
            v.fallocate(&c, f, how, k * 8192, 2048).unwrap();
        }
        files.push(f);
    }
    v.syncfs(&c).unwrap();
    fill(&v, g);
    v.syncfs(&c).unwrap();
    // Until nothing is left for nodes, the engine's own reserve included.
    for f in files {
        assert_eq!(write(&v, f, 8192, &[1; 1024]).unwrap(), 1024);
        v.syncfs(&c).unwrap();
    }
    let before = v.status().counters.direct_bytes;
    write(&v, h, 500 * 1024, &[2; 1024]).unwrap();
    for at in [0, 992] {
        let at = at * 1024;
        v.fallocate(&c, h, Fallocate::PunchHole, at, 8 * 1024)
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    let whole = v.status().counters.direct_bytes - before;
    assert!(whole > 900 << 10, "there was space for a cut");
    let (_, w) = crash(&dev);
    assert_eq!(w.getattr(h).unwrap().blocks512, (1000 - 16) * 2);
    let mut out = Vec::new();
    for i in 0..1000 {
        w.read(h, i * 1024, 1024, &mut out).unwrap();
        assert!(out.iter().all(|b| *b == u8::from(i == 500) * 2), "{i}");
    }
    judge(&v, &dev);
}

/// One call is one operation (C2) wherever it begins, unless it is too long for the log.
#[test]
fn a_short_fallocate_is_one_operation_wherever_it_begins() {
    const STEP: u64 = 64 << 10;
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    let operations = || v.status().counters.operations;
    for how in [
        Fallocate::Allocate { keep_size: false },
        Fallocate::ZeroRange { keep_size: false },
    ] {
        let before = operations();
        for i in 0..256 {
            v.fallocate(&c, f, how, i * STEP + 512, STEP).unwrap();
        }
        assert_eq!(operations() - before, 256, "{how:?}");
    }
    let before = operations();
    let how = Fallocate::Allocate { keep_size: false };
    v.fallocate(&c, f, how, 20 << 20, 16 << 20).unwrap();
    assert!(operations() - before > 1);
    judge(&v, &dev);
}

/// Blocks that a range touches in part are allocated too, as fallocate(2) says: at its beginning, at its end, and within one block.
#[test]
fn zero_range_allocates_the_blocks_that_it_touches_in_part() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    for (i, (offset, len, blocks)) in [
        (0, 100, 1),
        (0, 1024, 1),
        (100, 100, 1),
        (100, 924, 1),
        (0, 1025, 2),
        (1023, 2, 2),
        (1000, 2000, 3),
        (1024, 3000, 3),
    ]
    .into_iter()
    .enumerate()
    {
        for keep_size in [false, true] {
            let name = format!("{i}{keep_size}");
            let f = v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
            let how = Fallocate::ZeroRange { keep_size };
            v.fallocate(&c, f.ino, how, offset, len).unwrap();
            let attr = v.getattr(f.ino).unwrap();
            assert_eq!(attr.blocks512, blocks * 2, "{offset} {len} {keep_size}");
            assert_eq!(attr.size, if keep_size { 0 } else { offset + len });
        }
    }
    judge(&v, &dev);
}

/// A write over many blocks of which one is new: where that one does not fit, the others do.
#[test]
fn a_write_that_mostly_overwrites_is_shortened() {
    const LEN: u64 = 1 << 20;
    let dev = Arc::new(image(&["-b", "1024", "-m", "0", "-J", "size=8"], "48M"));
    let v = mount(&dev);
    let c = cx(1);
    let make = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
    let (f, g, h) = (make(b"f"), make(b"g"), make(b"h"));
    let written = write(&v, f, 0, &vec![1; LEN as usize - 1024]).unwrap();
    assert_eq!(written as u64, LEN - 1024);
    write(&v, h, 0, &[1; 64 << 10]).unwrap();
    v.syncfs(&c).unwrap();
    fill(&v, g);
    let mut short = 0;
    for left in (0..64).rev() {
        let size = SetAttr {
            size: Some(left * 1024),
            ..SetAttr::default()
        };
        v.setattr(&c, h, &size).unwrap();
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
        let n = write(&v, f, 0, &vec![2; LEN as usize])
            .unwrap_or_else(|e| panic!("{left} blocks are not free yet: {e}"));
        if n as u64 == LEN {
            break;
        }
        assert!(n > 0);
        short += 1;
    }
    assert!(short > 0);
    judge(&v, &dev);
}

/// The engine's reserve takes what there is, also where that is less than it should have.
#[test]
fn the_reserve_is_filled_as_far_as_there_is_space() {
    let dev = Arc::new(image(&["-b", "1024", "-m", "0"], "24M"));
    let v = mount(&dev);
    let c = cx(1);
    let make = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
    let (f, g, h) = (make(b"f"), make(b"g"), make(b"h"));
    let how = Fallocate::Allocate { keep_size: false };
    v.fallocate(&c, f, how, 0, 2000 * 1024).unwrap();
    fill(&v, g);
    v.unmount().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("x");
    std::fs::write(&source, vec![b'x'; 250 << 10]).unwrap();
    let dev = Arc::new(debugfs(&dev, &format!("write {} x", source.display())));
    let v = mount(&dev);
    // Nothing of it is for new data ...
    assert_eq!(errno(write(&v, h, 0, &[1; 20 << 10])), libc::ENOSPC);
    // ... but all for changes that must not fail.
    for i in 0..200 {
        assert_eq!(write(&v, f, i * 2048, &[1; 700]).unwrap(), 700);
    }
    v.unlink(&c, ROOT_INO, b"x").unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    match write(&v, h, 0, &[1; 200 << 10]) {
        Ok(n) => assert!(n < 50 << 10, "{n} bytes of the reserve"),
        Err(e) => assert_eq!(e.errno(), libc::ENOSPC),
    }
    judge(&v, &dev);
}

/// Who cannot pass on that only a part was taken gets all of it taken, or ENOSPC: direct writes, and the kernel's write-back of pages.
#[test]
fn a_write_that_cannot_be_cut_short_is_whole_or_refused() {
    let dev = Arc::new(image(&["-b", "1024", "-m", "0", "-J", "size=1"], "24M"));
    let v = mount(&dev);
    let c = cx(1);
    let make = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
    let (f, g) = (make(b"f"), make(b"g"));
    write(&v, f, 0, &[1; 3000]).unwrap();
    fill(&v, g);
    v.fallocate(&c, g, Fallocate::PunchHole, 100 << 10, 20 << 10)
        .unwrap();
    let (whole, writeback) = (true, true);
    let direct = WriteFlags {
        whole,
        ..WriteFlags::default()
    };
    let mapped = WriteFlags {
        writeback,
        ..WriteFlags::default()
    };
    let before = v.getattr(f).unwrap();
    for flags in [direct, mapped] {
        let refused = v.write(&c, f, 1000, &[2; 64 << 10], flags);
        assert_eq!(errno(refused), libc::ENOSPC);
    }
    let mut bytes = Vec::new();
    v.read(f, 0, 4096, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 3000]);
    assert_eq!(v.getattr(f).unwrap().mtime, before.mtime);
    assert_eq!(v.write(&c, f, 1000, &[2; 4000], direct).unwrap(), 4000);
    assert_eq!(v.write(&c, f, 5000, &[2; 4000], mapped).unwrap(), 4000);
    let taken = write(&v, f, 9000, &[3; 64 << 10]).unwrap();
    assert!((1024..64 << 10).contains(&taken), "{taken} bytes");
    judge(&v, &dev);
}

/// Each group that a freed run lies in has a bitmap of its own to change: with small groups one extent lies in many, and one step of freeing
/// must still fit a checkpoint of the smallest log.
#[test]
fn long_extents_over_many_small_groups_are_freed_in_steps() {
    const BLOCKS: u64 = 80 << 10;
    let kind = [
        "-b",
        "1024",
        "-g",
        "256",
        "-G",
        "512",
        "-J",
        "size=1",
        "-N",
        "4096",
        "-O",
        "sparse_super2,^resize_inode",
    ];
    // What is left of the file's blocks: from, to (the first of them removed).
    for (from, to) in [(0, BLOCKS), (700, BLOCKS), (700, 79 << 10), (0, 79 << 10)] {
        let dev = Arc::new(image(&kind, "96M"));
        let v = mount(&dev);
        let c = cx(1);
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
        let how = Fallocate::Allocate { keep_size: false };
        v.fallocate(&c, f.ino, how, 0, BLOCKS * 1024).unwrap();
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
        match (from, to) {
            (0, BLOCKS) => v.unlink(&c, ROOT_INO, b"f").unwrap(),
            (_, BLOCKS) => {
                let size = SetAttr {
                    size: Some(from * 1024),
                    ..SetAttr::default()
                };
                v.setattr(&c, f.ino, &size).map(drop).unwrap();
            }
            _ => v
                .fallocate(
                    &c,
                    f.ino,
                    Fallocate::PunchHole,
                    from * 1024,
                    (to - from) * 1024,
                )
                .unwrap(),
        }
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
        assert_eq!(v.status().stopped, "", "{from} to {to}");
        if (from, to) != (0, BLOCKS) {
            let left = v.getattr(f.ino).unwrap().blocks512 / 2;
            let want = BLOCKS - (to - from);
            assert!((want..want + 8).contains(&left), "{left} and not {want}");
        }
        judge(&v, &dev);
    }
}
