//! Stores through shared mappings, and calls that come after them but before the page is written.

use super::attrs::{flags, set_flags};
use super::{Checks, bytes_of, make};
use crate::harness::Fs;
use crate::sys::{self, Map, R};
use libc::*;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of the file before it grows, bytes. The page that ends it holds more.
const SIZE: u64 = 100;
/// What is stored behind the end of file, and where.
const BEHIND: [(usize, u8); 3] = [(250, 7), (2000, 8), (4095, 9)];
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
/// Ways in which write(2) itself leaves the gap in the page.
const IN_THE_PAGE: [&str; 3] = [
    "pwrite in the page",
    "append, then pwrite in the page",
    "small copy in the page",
];
const DIRECT_BEHIND: &str = "direct write behind it";

/// A way in which a file grows, by name or by a descriptor. It gives what the file has to hold from its old end on.
type Grow = fn(&Path, &OwnedFd) -> R<Vec<u8>>;

fn zeros(size: u64) -> Vec<u8> {
    vec![0; (size - SIZE) as usize]
}

/// Zeros, and at the end what was written at `at`.
fn with(at: u64, bytes: &[u8]) -> Vec<u8> {
    [zeros(at).as_slice(), bytes].concat()
}

fn cut(fd: &OwnedFd, size: u64) -> R<Vec<u8>> {
    sys::ftruncate(fd, size as i64).map(|()| zeros(size))
}

fn allocated(fd: &OwnedFd, mode: i32, at: u64, len: u64) -> R<Vec<u8>> {
    sys::fallocate(fd, mode, at as i64, len as i64).map(|()| zeros(at + len))
}

fn written(fd: &OwnedFd, at: u64, bytes: &[u8]) -> R<Vec<u8>> {
    match sys::pwrite(fd, bytes, at)? {
        n if n == bytes.len() => Ok(with(at, bytes)),
        _ => Err(EMSGSIZE),
    }
}

fn direct(f: &Path, at: u64, len: usize) -> R<Vec<u8>> {
    let fd = sys::open(f, O_RDWR | O_DIRECT, 0)?;
    let mut bytes = sys::Direct::new(len);
    bytes.bytes().fill(5);
    written(&fd, at, bytes.bytes())
}

fn copied(f: &Path, fd: &OwnedFd, at: u64, len: usize) -> R<Vec<u8>> {
    let source = f.with_extension("source");
    make(&source, &vec![6; len]);
    let source = sys::open(&source, O_RDONLY, 0)?;
    let mut done = 0;
    while done < len {
        let (from, to) = (done as u64, at + done as u64);
        match sys::copy_file_range(&source, from, fd, to, len - done)? {
            0 => return Err(EMSGSIZE),
            n => done += n,
        }
    }
    Ok(with(at, &vec![6; len]))
}

const WAYS: &[(&str, Grow)] = &[
    ("ftruncate in the page", |_, fd| cut(fd, 300)),
    ("ftruncate to the page's end", |_, fd| cut(fd, 4096)),
    ("truncate by name, far", |f, _| {
        sys::truncate(f, 10_000).map(|()| zeros(10_000))
    }),
    ("ftruncate twice", |_, fd| cut(fd, 260).and(cut(fd, 5000))),
    ("fallocate from 0", |_, fd| allocated(fd, 0, 0, 4096)),
    ("fallocate in the page", |_, fd| allocated(fd, 0, 200, 100)),
    ("fallocate behind it", |_, fd| allocated(fd, 0, 9000, 100)),
    ("zero range over the end", |_, fd| {
        allocated(fd, FALLOC_FL_ZERO_RANGE, 3000, 3000)
    }),
    ("zero range behind it", |_, fd| {
        allocated(fd, FALLOC_FL_ZERO_RANGE, 8192, 100)
    }),
    ("kept size, then ftruncate", |_, fd| {
        let kept = sys::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 8192);
        kept.and(cut(fd, 8192))
    }),
    ("pwrite in the page", |_, fd| written(fd, 300, b"new")),
    ("pwrite in the next page", |_, fd| written(fd, 5000, b"new")),
    ("pwrite of a far page", |_, fd| {
        written(fd, 8192, &[5; 4096])
    }),
    ("append, then pwrite in the page", |f, fd| {
        let end = sys::open(f, O_WRONLY | O_APPEND, 0)?;
        sys::write(&end, b"more")?;
        let mut all = written(fd, 3000, b"new")?;
        all[..4].copy_from_slice(b"more");
        Ok(all)
    }),
    ("direct write in the page", |f, _| direct(f, 512, 512)),
    (DIRECT_BEHIND, |f, _| direct(f, 8192, 4096)),
    ("small copy in the page", |f, fd| copied(f, fd, 300, 10)),
    ("small copy behind it", |f, fd| copied(f, fd, 5000, 10)),
    ("large copy", |f, fd| copied(f, fd, 8192, 300_000)),
];

/// What becomes of the stores before the file grows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Nothing,
    Synced,
    /// And stored once more: the page is known, and dirty.
    SyncedAndStored,
    Unmapped,
    /// The page has left the cache.
    Dropped,
}

fn grown(c: &mut Checks, number: usize, (what, grow): (&str, Grow), then: Then) {
    let f = c.at(&format!("{number}-{then:?}"));
    make(&f, &[1; SIZE as usize]);
    let fd = sys::open(&f, O_RDWR, 0).expect("open");
    let map = Map::new(&fd, 0, 4096, true).expect("mmap");
    let store = || {
        BEHIND
            .iter()
            .for_each(|(at, byte)| map.store(*at, &[*byte]))
    };
    map.store(10, &[2]);
    store();
    if matches!(then, Then::Synced | Then::SyncedAndStored | Then::Dropped) {
        map.sync().expect("msync");
    }
    if then == Then::SyncedAndStored {
        store();
    }
    let map = Some(map).filter(|_| !matches!(then, Then::Unmapped | Then::Dropped));
    if then == Then::Dropped {
        sys::drop_cache(&fd);
    }
    let Some(tail) = c.ok(what, grow(&f, &fd)) else {
        return;
    };
    // The kernel's own ext4 shows what was stored (Linux 6.18).
    let shown_by_ext4 = c.fs == Fs::Ext4 && what == DIRECT_BEHIND;
    // The daemon cannot have the kernel give back a page that the caller may hold (docs/posix.md).
    let shown_by_ccfs = c.fs == Fs::Ccfs && IN_THE_PAGE.contains(&what);
    if shown_by_ext4 || shown_by_ccfs {
        // On Linux 6.1 the page can differ from what is on disk, until it leaves the cache.
        drop(map);
        sys::fsync(&fd).expect("fsync");
        sys::drop_cache(&fd);
        return;
    }
    let mut want = vec![1; SIZE as usize];
    want[10] = 2;
    want.extend(tail);
    // How long it is, and the first byte that differs.
    let wrong = |got: Vec<u8>| {
        let differ = (0..want.len().max(got.len())).find(|i| want.get(*i) != got.get(*i));
        (got.len(), differ)
    };
    let right = (want.len(), None);
    c.eq(&format!("{what}, {then:?}"), wrong(bytes_of(&f)), right);
    if let Some(map) = map {
        let mut got = vec![0; want.len().min(4096)];
        map.load(0, &mut got);
        c.that(&format!("{what}, {then:?}: mapped"), want.starts_with(&got));
        map.store(20, &[3]);
        want[20] = 3;
    }
    sys::fsync(&fd).expect("fsync");
    sys::drop_cache(&fd);
    let wrong = bytes_of(&f) != want;
    c.that(&format!("{what}, {then:?}: from a cold cache"), !wrong);
}

/// Bytes that were stored behind the end of file never become content, in whatever way the file grows.
pub fn past_the_end(c: &mut Checks) {
    let states = [
        Then::Nothing,
        Then::Synced,
        Then::SyncedAndStored,
        Then::Unmapped,
        Then::Dropped,
    ];
    for (number, way) in WAYS.iter().enumerate() {
        for then in states {
            grown(c, number, *way, then);
        }
    }
}

/// Times and flags that are set after stores, but before the page is written.
pub fn calls_after_stores(c: &mut Checks) {
    const BY_HAND: (sys::Time, sys::Time) = ((1_000_000_000, 1), (1_000_000_000, 2));
    for (name, content) in [("hole", &[][..]), ("content", &[1; 8192])] {
        let f = c.at(name);
        make(&f, content);
        let fd = sys::open(&f, O_RDWR, 0).expect("open");
        sys::ftruncate(&fd, 8192).expect("ftruncate");
        sys::fsync(&fd).expect("fsync");
        sys::drop_cache(&fd);
        let map = Map::new(&fd, 0, 8192, true).expect("mmap");
        let modified = || sys::fstat(&fd).map(|s| s.mtime);
        map.store(5, &[2]);
        sys::utimens(&f, BY_HAND.0, BY_HAND.1).expect("utimens");
        c.eq("a time set by hand", modified(), Ok(BY_HAND.1));
        map.sync().expect("msync");
        c.eq(
            "stays when older stores are written",
            modified(),
            Ok(BY_HAND.1),
        );
        map.store(5000, &[3]);
        map.sync().expect("msync");
        c.that("and goes with later ones", modified() != Ok(BY_HAND.1));
        map.store(6, &[4]);
        sys::utimens(&f, BY_HAND.0, BY_HAND.1).expect("utimens");
        drop(map);
        sys::fsync(&fd).expect("fsync");
        c.eq("stays after the unmapping", modified(), Ok(BY_HAND.1));
        let bytes = bytes_of(&f);
        c.eq(
            "nothing is lost",
            (bytes[5], bytes[6], bytes[5000]),
            (2, 4, 3),
        );
    }
    let f = c.at("frozen");
    make(&f, &[1; 8192]);
    let fd = sys::open(&f, O_RDWR, 0).expect("open");
    let map = Map::new(&fd, 0, 8192, true).expect("mmap");
    // A close writes back, so this comes first.
    let before = flags(&f).expect("flags");
    map.store(5, &[2]);
    c.ok("chattr +i", set_flags(&f, before | IMMUTABLE));
    c.ok("older stores are written", map.sync());
    drop(map);
    sys::drop_cache(&fd);
    c.eq("and stay", bytes_of(&f)[5], 2);
    c.ok("chattr -i", set_flags(&f, before));
}

/// What is immutable or append-only is not changed through a mapping either: ext4 refuses the open; where opens are not seen the stores go.
pub fn stores_to_locked_files(c: &mut Checks) {
    for (name, flag) in [("immutable", IMMUTABLE), ("append-only", APPEND)] {
        let f = c.at(name);
        make(&f, &[1; 8192]);
        let before = flags(&f).expect("flags");
        let reader = sys::open(&f, O_RDONLY, 0).expect("open");
        c.eq(name, bytes_of(&f), vec![1; 8192]);
        c.ok(name, set_flags(&f, before | flag));
        for how in [O_RDWR, O_RDWR | O_APPEND] {
            let mapped = sys::open(&f, how, 0).and_then(|fd| Map::new(&fd, 0, 8192, true));
            match mapped {
                Err(EPERM) => {}
                Err(e) => c.eq(&format!("{name}: mmap"), (e, flag), (EACCES, APPEND)),
                Ok(map) => {
                    map.store(5, &[2]);
                    map.store(5000, &[2]);
                    // Whoever stored may be told of it or not.
                    let _ = map.sync();
                }
            }
        }
        c.ok(&format!("{name}: syncfs by others"), sys::syncfs(&reader));
        let end = Instant::now() + Duration::from_secs(120);
        while bytes_of(&f) != [1; 8192] && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        c.that(&format!("{name}: read"), bytes_of(&f) == [1; 8192]);
        sys::drop_cache(&reader);
        c.that(
            &format!("{name}: from a cold cache"),
            bytes_of(&f) == [1; 8192],
        );
        c.ok(name, set_flags(&f, before));
    }
}
