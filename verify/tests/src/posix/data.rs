//! Bytes of files.

use super::*;
use crate::sys;
use ccfs_testkit::Rng;
use libc::*;

const KEEP: i32 = FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = FALLOC_FL_ZERO_RANGE;

pub fn truncate(c: &mut Checks) {
    let f = c.at("f");
    make(&f, &[0xAB; 10_000]);
    for len in [9999, 8192, 8191, 4097, 4096, 1, 0] {
        c.ok("shrink", sys::truncate(&f, len));
        c.eq("bytes left", bytes_of(&f), vec![0xAB; len as usize]);
    }
    for len in [1, 100, 4096, 4097, 70_000] {
        c.ok("grow", sys::truncate(&f, len));
        c.that("zeros", bytes_of(&f) == vec![0; len as usize]);
    }
    make(&f, &[0xCD; 5000]);
    sys::truncate(&f, 100).expect("truncate");
    sys::truncate(&f, 5000).expect("truncate");
    let b = bytes_of(&f);
    c.that(
        "what was cut off comes back as zeros",
        b[..100] == [0xCD; 100] && b[100..].iter().all(|x| *x == 0),
    );
    sys::truncate(&f, 0).expect("truncate");
    c.eq("no blocks left", sys::stat(&f).map(|s| s.blocks), Ok(0));
    c.err("negative", sys::truncate(&f, -1), EINVAL);
    c.err("of a directory", sys::truncate(c.dir(), 0), EISDIR);
    c.err("missing", sys::truncate(c.at("no"), 0), ENOENT);
    sys::mknod(c.at("p"), S_IFIFO | 0o644, 0).expect("mkfifo");
    c.err("of a fifo", sys::truncate(c.at("p"), 0), EINVAL);
    let fd = sys::open(&f, O_RDWR, 0).expect("open");
    c.err("ftruncate negative", sys::ftruncate(&fd, -5), EINVAL);
    c.ok("ftruncate", sys::ftruncate(&fd, 12_345));
    c.eq("size", sys::fstat(&fd).map(|s| s.size), Ok(12_345));
}

pub fn holes(c: &mut Checks) {
    let f = c.at("f");
    let fd = sys::open(&f, O_CREAT | O_RDWR, 0o644).expect("create");
    sys::pwrite(&fd, &[1; 4096], 1 << 20).expect("write");
    sys::pwrite(&fd, &[2; 4096], 3 << 20).expect("write");
    sys::ftruncate(&fd, 4 << 20).expect("ftruncate");
    sys::fsync(&fd).expect("fsync");
    let s = sys::fstat(&fd).expect("stat");
    c.eq("size", s.size, 4 << 20);
    c.that("few blocks", s.blocks >= 16 && s.blocks <= 64);
    let mut b = vec![9; 4096];
    c.eq("a hole reads", sys::pread(&fd, &mut b, 2 << 20), Ok(4096));
    c.that("as zeros", b.iter().all(|x| *x == 0));
    c.eq("first data", sys::lseek(&fd, 0, SEEK_DATA), Ok(1 << 20));
    c.eq("hole at 0", sys::lseek(&fd, 0, SEEK_HOLE), Ok(0));
    c.eq(
        "hole after data",
        sys::lseek(&fd, 1 << 20, SEEK_HOLE),
        Ok((1 << 20) + 4096),
    );
    c.eq(
        "inside data",
        sys::lseek(&fd, (1 << 20) + 10, SEEK_DATA),
        Ok((1 << 20) + 10),
    );
    c.eq(
        "next data",
        sys::lseek(&fd, (1 << 20) + 4096, SEEK_DATA),
        Ok(3 << 20),
    );
    c.err(
        "no data after",
        sys::lseek(&fd, (3 << 20) + 4096, SEEK_DATA),
        ENXIO,
    );
    c.eq(
        "hole after the last",
        sys::lseek(&fd, 3 << 20, SEEK_HOLE),
        Ok((3 << 20) + 4096),
    );
    c.err(
        "SEEK_DATA at the end",
        sys::lseek(&fd, 4 << 20, SEEK_DATA),
        ENXIO,
    );
    c.err(
        "SEEK_HOLE at the end",
        sys::lseek(&fd, 4 << 20, SEEK_HOLE),
        ENXIO,
    );
    c.err(
        "SEEK_HOLE beyond",
        sys::lseek(&fd, 5 << 20, SEEK_HOLE),
        ENXIO,
    );
    for at in [-1, i64::MIN, i64::MAX] {
        c.err("SEEK_DATA far out", sys::lseek(&fd, at, SEEK_DATA), ENXIO);
        c.err("SEEK_HOLE far out", sys::lseek(&fd, at, SEEK_HOLE), ENXIO);
    }
    sys::ftruncate(&fd, (3 << 20) + 100).expect("ftruncate");
    c.eq(
        "the end is a hole",
        sys::lseek(&fd, 3 << 20, SEEK_HOLE),
        Ok((3 << 20) + 100),
    );
    c.eq(
        "SEEK_END",
        sys::lseek(&fd, 0, SEEK_END),
        Ok((3 << 20) + 100),
    );
    let g = sys::open(c.at("g"), O_CREAT | O_RDWR, 0o644).expect("create");
    c.err("empty: data", sys::lseek(&g, 0, SEEK_DATA), ENXIO);
    c.err("empty: hole", sys::lseek(&g, 0, SEEK_HOLE), ENXIO);
    sys::pwrite(&g, &[1; 8192], 0).expect("write");
    c.eq("unsynced data is data", sys::lseek(&g, 0, SEEK_DATA), Ok(0));
    c.eq(
        "unsynced hole at the end",
        sys::lseek(&g, 0, SEEK_HOLE),
        Ok(8192),
    );
}

pub fn fallocate(c: &mut Checks) {
    let fd = sys::open(c.at("f"), O_CREAT | O_RDWR, 0o644).expect("create");
    c.ok("plain", sys::fallocate(&fd, 0, 0, 100_000));
    let s = sys::fstat(&fd).expect("stat");
    c.eq("size", s.size, 100_000);
    c.that("blocks are there", s.blocks * 512 >= 100_000);
    c.that("zeros", bytes_of(c.at("f")) == vec![0; 100_000]);
    c.ok("KEEP_SIZE", sys::fallocate(&fd, KEEP, 100_000, 400_000));
    let s = sys::fstat(&fd).expect("stat");
    c.eq("size kept", s.size, 100_000);
    c.that("blocks beyond the end", s.blocks * 512 >= 500_000);
    sys::pwrite(&fd, &[5; 100_000], 0).expect("write");
    c.ok("over existing data", sys::fallocate(&fd, 0, 0, 100_000));
    c.that("data stays", bytes_of(c.at("f")) == vec![5; 100_000]);
    c.ok("punch unaligned", sys::fallocate(&fd, PUNCH, 1000, 10_000));
    let b = bytes_of(c.at("f"));
    c.that(
        "punched",
        b[..1000] == [5; 1000] && b[1000..11_000].iter().all(|x| *x == 0),
    );
    c.that(
        "around it",
        b[11_000..].iter().all(|x| *x == 5) && b.len() == 100_000,
    );
    let before = sys::fstat(&fd).expect("stat").blocks;
    c.ok("punch aligned", sys::fallocate(&fd, PUNCH, 40_960, 40_960));
    sys::fsync(&fd).expect("fsync");
    c.that(
        "gives blocks back",
        sys::fstat(&fd).expect("stat").blocks <= before - 80,
    );
    c.eq("is a hole", sys::lseek(&fd, 30_000, SEEK_HOLE), Ok(40_960));
    c.ok(
        "punch beyond the end",
        sys::fallocate(&fd, PUNCH, 1 << 20, 1 << 20),
    );
    c.eq("size kept", sys::fstat(&fd).map(|s| s.size), Ok(100_000));
    c.ok("ZERO_RANGE", sys::fallocate(&fd, ZERO, 90_000, 20_000));
    let b = bytes_of(c.at("f"));
    c.eq("extends", b.len(), 110_000);
    c.that(
        "zeroed",
        b[90_000..].iter().all(|x| *x == 0) && b[89_999] == 5,
    );
    c.ok(
        "ZERO_RANGE|KEEP_SIZE",
        sys::fallocate(&fd, ZERO | KEEP, 105_000, 50_000),
    );
    c.eq("size kept", sys::fstat(&fd).map(|s| s.size), Ok(110_000));
    c.err("length 0", sys::fallocate(&fd, 0, 0, 0), EINVAL);
    c.err("negative offset", sys::fallocate(&fd, 0, -1, 10), EINVAL);
    c.err(
        "PUNCH without KEEP_SIZE",
        sys::fallocate(&fd, FALLOC_FL_PUNCH_HOLE, 0, 10),
        EOPNOTSUPP,
    );
    let r = sys::open(c.at("f"), O_RDONLY, 0).expect("open");
    c.err("read-only descriptor", sys::fallocate(&r, 0, 0, 10), EBADF);
    let d = sys::open(c.dir(), O_RDONLY, 0).expect("open");
    c.err("a directory", sys::fallocate(&d, 0, 0, 10), EBADF);
}

pub fn copy_file_range(c: &mut Checks) {
    let mut rng = Rng::new(7);
    let data = rng.bytes(300_000);
    make(c.at("a"), &data);
    make(c.at("b"), b"");
    let a = sys::open(c.at("a"), O_RDWR, 0).expect("open");
    let b = sys::open(c.at("b"), O_RDWR, 0).expect("open");
    let mut done = 0;
    while done < data.len() {
        match sys::copy_file_range(&a, done as u64, &b, done as u64, data.len() - done) {
            Ok(n) if n > 0 => done += n,
            other => {
                c.that(&format!("copies everything: {other:?} at {done}"), false);
                break;
            }
        }
    }
    c.that("equal", bytes_of(c.at("b")) == data);
    c.eq(
        "unaligned",
        sys::copy_file_range(&a, 1001, &b, 333, 777),
        Ok(777),
    );
    c.that(
        "its bytes",
        bytes_of(c.at("b"))[333..333 + 777] == data[1001..1001 + 777],
    );
    c.eq(
        "beyond the source's end",
        sys::copy_file_range(&a, 400_000, &b, 0, 10),
        Ok(0),
    );
    c.eq(
        "short at the source's end",
        sys::copy_file_range(&a, 299_990, &b, 0, 100),
        Ok(10),
    );
    c.eq(
        "behind the target's end",
        sys::copy_file_range(&a, 0, &b, 400_000, 100),
        Ok(100),
    );
    c.eq("size", sys::fstat(&b).map(|s| s.size), Ok(400_100));
    c.that(
        "zeros between",
        bytes_of(c.at("b"))[300_000..400_000]
            .iter()
            .all(|x| *x == 0),
    );
    c.eq(
        "within a file",
        sys::copy_file_range(&a, 0, &a, 100_000, 50_000),
        Ok(50_000),
    );
    c.err(
        "overlapping",
        sys::copy_file_range(&a, 0, &a, 10, 100),
        EINVAL,
    );
    let ap = sys::open(c.at("b"), O_WRONLY | O_APPEND, 0).expect("open");
    c.err(
        "to O_APPEND",
        sys::copy_file_range(&a, 0, &ap, 0, 10),
        EBADF,
    );
    let ro = sys::open(c.at("b"), O_RDONLY, 0).expect("open");
    c.err(
        "to a read-only descriptor",
        sys::copy_file_range(&a, 0, &ro, 0, 10),
        EBADF,
    );
}

pub fn append_direct_sync(c: &mut Checks) {
    let f = c.at("f");
    let a = sys::open(&f, O_CREAT | O_WRONLY | O_APPEND, 0o644).expect("create");
    let b = sys::open(&f, O_WRONLY | O_APPEND, 0).expect("open");
    for i in 0..10u8 {
        let fd = if i % 2 == 0 { &a } else { &b };
        sys::write(fd, &[b'0' + i; 3]).expect("append");
    }
    c.eq(
        "appends in turn",
        bytes_of(&f),
        (0..10u8).flat_map(|i| [b'0' + i; 3]).collect(),
    );
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let g = c.at("g");
            s.spawn(move || {
                let fd = sys::open(g, O_CREAT | O_WRONLY | O_APPEND, 0o644).expect("open");
                for _ in 0..200 {
                    sys::write(&fd, &[t; 100]).expect("append");
                }
            });
        }
    });
    let g = bytes_of(c.at("g"));
    c.eq("parallel appends lose nothing", g.len(), 80_000);
    c.that(
        "and keep each write whole",
        g.chunks(100).all(|r| r.iter().all(|x| *x == r[0])),
    );
    let d = sys::open(c.at("d"), O_CREAT | O_RDWR | O_DIRECT, 0o644).expect("O_DIRECT");
    let mut buf = sys::Direct::new(65_536);
    buf.bytes().fill(0x5A);
    c.eq(
        "direct write",
        sys::pwrite(&d, buf.bytes(), 4096),
        Ok(65_536),
    );
    buf.bytes().fill(0);
    c.eq("direct read", sys::pread(&d, buf.bytes(), 4096), Ok(65_536));
    c.that("its bytes", buf.bytes().iter().all(|x| *x == 0x5A));
    let n = bytes_of(c.at("d"));
    c.that(
        "seen through the cache",
        n.len() == 69_632 && n[..4096] == [0; 4096] && n[4096] == 0x5A,
    );
    std::fs::File::options()
        .write(true)
        .open(c.at("d"))
        .and_then(|f| std::os::unix::fs::FileExt::write_at(&f, &[1; 4096], 0))
        .expect("write");
    c.eq(
        "cached write, direct read",
        sys::pread(&d, &mut buf.bytes()[..4096], 0),
        Ok(4096),
    );
    c.eq("coherent", buf.bytes()[0], 1);
    c.eq(
        "direct read past the end",
        sys::pread(&d, &mut buf.bytes()[..4096], 1 << 20),
        Ok(0),
    );
    for flag in [O_SYNC, O_DSYNC] {
        let s = sys::open(c.at("s"), O_CREAT | O_RDWR | flag, 0o644).expect("open");
        c.eq("synchronous write", sys::pwrite(&s, b"sync", 0), Ok(4));
        c.eq(
            "synchronous unaligned write",
            sys::pwrite(&s, &[7; 5000], 4000),
            Ok(5000),
        );
    }
}

pub fn large_files(c: &mut Checks) {
    let bsize = sys::statvfs(c.dir()).expect("statvfs").bsize;
    // ext4's limit for extents: 2^32 - 1 blocks.
    let limit = bsize * 0xFFFF_FFFF;
    let f = c.at("f");
    make(&f, b"");
    let fd = sys::open(&f, O_RDWR, 0).expect("open");
    c.ok("the largest size", sys::ftruncate(&fd, limit as i64));
    c.eq(
        "size",
        sys::fstat(&fd).map(|s| (s.size, s.blocks)),
        Ok((limit, 0)),
    );
    c.err(
        "one byte more",
        sys::ftruncate(&fd, limit as i64 + 1),
        EFBIG,
    );
    c.eq(
        "write near the end",
        sys::pwrite(&fd, b"end", limit - 3),
        Ok(3),
    );
    c.err("write at the end", sys::pwrite(&fd, b"x", limit), EFBIG);
    c.eq(
        "a write across the end is short",
        sys::pwrite(&fd, b"abcdef", limit - 2),
        Ok(2),
    );
    let mut b = [0; 8];
    c.eq(
        "read near the end",
        sys::pread(&fd, &mut b, limit - 3),
        Ok(3),
    );
    c.eq("bytes", b[..3].to_vec(), b"eab".to_vec());
    c.eq(
        "data at the end",
        sys::lseek(&fd, 0, SEEK_DATA),
        Ok((limit - 1) / bsize * bsize),
    );
    c.err(
        "fallocate beyond",
        sys::fallocate(&fd, 0, limit as i64, 4096),
        EFBIG,
    );
    c.ok("write in the middle", sys::pwrite(&fd, b"mid", 10 << 40));
    c.ok("cut at 15 TiB", sys::ftruncate(&fd, 15 << 40));
    c.ok("write at 15 TiB", sys::pwrite(&fd, b"15T", (15 << 40) - 1));
    c.ok("shrink to nothing", sys::ftruncate(&fd, 0));
    c.eq("no blocks", sys::fstat(&fd).map(|s| s.blocks), Ok(0));
}

/// What a mapping has written to holes is found by SEEK_DATA before anybody syncs it (cp and tar go by that).
fn stores_are_data(c: &mut Checks) {
    const MIB: u64 = 1 << 20;
    let f = c.at("sparse");
    let fd = sys::open(&f, O_RDWR | O_CREAT, 0o600).expect("open");
    sys::ftruncate(&fd, 4 * MIB as i64).expect("ftruncate");
    sys::pwrite(&fd, &[1; 4096], MIB).expect("write");
    let map = sys::Map::new(&fd, 0, 4 * MIB as usize, true).expect("mmap");
    let seek = |at, whence| sys::lseek(&fd, at, whence);
    c.eq("one block", seek(0, libc::SEEK_DATA), Ok(MIB));
    map.store(65_536, b"before it");
    map.store(3 << 20, b"behind it");
    c.eq("a store is data", seek(0, libc::SEEK_DATA), Ok(65_536));
    c.eq("up to its end", seek(65_536, libc::SEEK_HOLE), Ok(69_632));
    c.eq("another one", seek(2 << 20, libc::SEEK_DATA), Ok(3 * MIB));
    map.store((1 << 20) + 4096, b"beside it");
    c.eq(
        "the hole moves",
        seek(1 << 20, libc::SEEK_HOLE),
        Ok(MIB + 8192),
    );
    c.eq(
        "no more data",
        seek((3 << 20) + 4096, libc::SEEK_DATA),
        Err(libc::ENXIO),
    );
    let mut b = [0; 9];
    map.load(65_536, &mut b);
    c.eq("the mapping has it", &b, b"before it");
    c.eq("and read", sys::pread(&fd, &mut b, 3 << 20), Ok(9));
    c.eq("bytes", &b, b"behind it");
}

pub fn mmap(c: &mut Checks) {
    let f = c.at("f");
    make(&f, &[1; 20_000]);
    let fd = sys::open(&f, O_RDWR, 0).expect("open");
    let map = sys::Map::new(&fd, 0, 20_480, true).expect("mmap");
    let other = sys::Map::new(&fd, 0, 20_480, false).expect("mmap");
    let mut b = [0; 6];
    map.load(5000, &mut b);
    c.eq("a mapping shows the file", b, [1; 6]);
    sys::pwrite(&fd, b"pwrite", 6000).expect("write");
    map.load(6000, &mut b);
    c.eq("and later writes", &b, b"pwrite");
    map.store(7000, b"stored");
    c.eq("read sees stores", sys::pread(&fd, &mut b, 7000), Ok(6));
    c.eq("bytes", &b, b"stored");
    other.load(7000, &mut b);
    c.eq("another mapping sees stores", &b, b"stored");
    c.ok("msync", map.sync());
    map.store(20_000 - 3, b"end");
    map.store(20_100, b"past the end");
    c.ok("msync with bytes past the end", map.sync());
    c.eq(
        "size is not changed by stores",
        sys::fstat(&fd).map(|s| s.size),
        Ok(20_000),
    );
    sys::ftruncate(&fd, 20_480).expect("ftruncate");
    let bytes = bytes_of(&f);
    c.that(
        "bytes past the end never appear",
        bytes[19_997..20_000] == *b"end" && bytes[20_000..].iter().all(|x| *x == 0),
    );
    stores_are_data(c);
    sys::ftruncate(&fd, 100_000).expect("ftruncate");
    let hole = sys::Map::new(&fd, 40_960, 8192, true).expect("mmap");
    hole.store(4000, &[9; 200]);
    c.ok("stores into a hole", hole.sync());
    let bytes = bytes_of(&f);
    c.that(
        "are there",
        bytes[44_960..45_160] == [9; 200] && bytes[44_959] == 0 && bytes[45_160] == 0,
    );
    sys::fallocate(&fd, PUNCH, 40_960, 8192).expect("punch");
    let mut b = [7; 8];
    hole.load(4000, &mut b);
    c.eq(
        "a punched page reads as zeros through the mapping",
        b,
        [0; 8],
    );
    drop((map, other, hole));
    let ro = sys::open(&f, O_RDONLY, 0).expect("open");
    c.err(
        "writable mapping of a read-only descriptor",
        sys::Map::new(&ro, 0, 4096, true).map(drop),
        EACCES,
    );
    let m = sys::Map::new(&fd, 0, 4096, true).expect("mmap");
    sys::unlink(&f).expect("unlink");
    m.store(0, b"unlinked");
    c.ok("msync of an unlinked file", m.sync());
    let mut b = [0; 8];
    sys::pread(&fd, &mut b, 0).expect("read");
    c.eq("stores to an unlinked file", &b, b"unlinked");
}

pub fn unlinked_open(c: &mut Checks) {
    let f = c.at("f");
    make(&f, &[1; 100_000]);
    let fd = sys::open(&f, O_RDWR, 0).expect("open");
    sys::unlink(&f).expect("unlink");
    c.eq("nlink 0", sys::fstat(&fd).map(|s| s.nlink), Ok(0));
    c.eq("write", sys::pwrite(&fd, &[2; 50_000], 80_000), Ok(50_000));
    let mut b = vec![0; 130_000];
    c.eq("read", sys::pread(&fd, &mut b, 0), Ok(130_000));
    c.that(
        "bytes",
        b[..80_000] == [1; 80_000] && b[80_000..] == [2; 50_000],
    );
    c.ok("ftruncate", sys::ftruncate(&fd, 1000));
    c.ok("fchmod", sys::fchmod(&fd, 0o600));
    c.ok("fsync", sys::fsync(&fd));
    c.ok("fallocate", sys::fallocate(&fd, 0, 0, 1 << 20));
    make(&f, b"another");
    c.that(
        "the name is a new file",
        sys::stat(&f).map(|s| s.ino) != sys::fstat(&fd).map(|s| s.ino),
    );
    let before = sys::statvfs(c.dir()).expect("statvfs");
    drop(fd);
    // The kernel forgets the inode in its own time.
    let mut after = before.clone();
    for _ in 0..4000 {
        after = sys::statvfs(c.dir()).expect("statvfs");
        if after.ffree > before.ffree && after.bfree >= before.bfree + (900 << 10) / after.frsize {
            break;
        }
        let _ = sys::syncfs(&sys::open(c.dir(), O_RDONLY, 0).expect("open"));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    c.that("the last close frees the inode", after.ffree > before.ffree);
    c.that(
        "and its space",
        after.bfree >= before.bfree + (900 << 10) / after.frsize,
    );
}
