//! Calls on a volume without a free block, and what each returns: the same as on the kernel's ext4. What needs no block is done (C9).
use crate::harness::{Fs, Volume};
use crate::posix::ALICE;
use crate::sys::{self, R};
use libc::{
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, O_CREAT, O_RDWR, O_TMPFILE, RENAME_EXCHANGE,
};
use std::path::Path;

/// Name of a call, and its errno (0: done).
pub type Row = (&'static str, i32);

type Call = (&'static str, fn(&Path) -> R<()>);

/// In this order; those before `FREEING` take no block and give none back.
const CALLS: &[Call] = &[
    ("rename in a directory", |p| {
        sys::rename(p.join("d/a"), p.join("d/a2"))
    }),
    ("rename over a file", |p| {
        sys::rename(p.join("d/b"), p.join("d/c"))
    }),
    ("rename to another directory", |p| {
        sys::rename(p.join("d/c"), p.join("e/c"))
    }),
    ("rename of a directory", |p| {
        sys::rename(p.join("d/sub"), p.join("e/sub"))
    }),
    ("exchange", |p| {
        sys::renameat2(p.join("d/a2"), p.join("e/c"), RENAME_EXCHANGE)
    }),
    ("link", |p| sys::link(p.join("d/a2"), p.join("e/link"))),
    ("create", |p| create(&p.join("d/new"))),
    ("mknod", |p| {
        sys::mknod(p.join("d/fifo"), libc::S_IFIFO | 0o644, 0)
    }),
    ("short symlink", |p| {
        sys::symlink("target", p.join("d/short"))
    }),
    ("long symlink", |p| {
        sys::symlink(&"l".repeat(200), p.join("d/long"))
    }),
    ("mkdir", |p| sys::mkdir(p.join("d/dir"), 0o755)),
    ("O_TMPFILE", |p| {
        sys::open(p.join("d"), O_TMPFILE | O_RDWR, 0o644).map(drop)
    }),
    ("chmod", |p| sys::chmod(p.join("d/a2"), 0o600)),
    ("chown", |p| sys::chown(p.join("d/a2"), ALICE, ALICE)),
    ("utimens", |p| sys::utimens(p.join("d/a2"), (1, 2), (3, 4))),
    ("small attribute", |p| {
        sys::setxattr(p.join("d/a2"), "user.small", b"value", 0)
    }),
    ("large attribute", |p| {
        sys::setxattr(p.join("d/a2"), "user.large", &[b'x'; 600], 0)
    }),
    ("longer sparse file", |p| {
        sys::truncate(p.join("d/a2"), 1 << 20)
    }),
    ("overwriting", |p| {
        let f = sys::open(p.join("big"), O_RDWR, 0)?;
        sys::pwrite(&f, &[1; 8192], 4096)?;
        sys::fsync(&f)
    }),
    ("appending", |p| append(&p.join("d/new"))),
    ("rotation of a log", |p| {
        sys::rename(p.join("log.1"), p.join("log.2"))?;
        sys::rename(p.join("log"), p.join("log.1"))?;
        create(&p.join("log"))
    }),
    ("record in the new log", |p| append(&p.join("log"))),
    (FREEING, |p| sys::unlink(p.join("log.2"))),
    ("record in the new log after an unlink", |p| {
        append(&p.join("log"))
    }),
    ("rmdir", |p| sys::rmdir(p.join("gone"))),
    ("mkdir after a rmdir", |p| {
        sys::mkdir(p.join("d/dir"), 0o755)
    }),
    ("punching", |p| {
        let f = sys::open(p.join("big"), O_RDWR, 0)?;
        let how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        sys::fallocate(&f, how, 1 << 20, 1 << 20)
    }),
    ("long symlink after punching", |p| {
        sys::symlink(&"l".repeat(200), p.join("d/long"))
    }),
    ("large attribute after punching", |p| {
        sys::setxattr(p.join("d/a2"), "user.large", &[b'x'; 600], 0)
    }),
];
const FREEING: &str = "unlink";

fn create(path: &Path) -> R<()> {
    sys::open(path, O_CREAT | O_RDWR, 0o644).map(drop)
}

fn append(path: &Path) -> R<()> {
    let f = sys::open(path, O_RDWR | libc::O_APPEND, 0)?;
    sys::write(&f, b"a record\n")?;
    sys::fsync(&f)
}

/// Fills a new volume with blocks of `block` bytes, by a user (root's reserve stays) or by root, and makes the calls.
pub fn calls(fs: Fs, block: &str, by_user: bool) -> Vec<Row> {
    let mut volume = Volume::unformatted(fs, "full-names");
    volume.mke2fs(32, &["-t", "ext4", "-b", block, "-J", "size=4"]);
    volume.mount();
    let mnt = volume.mnt().to_path_buf();
    sys::chmod(&mnt, 0o777).expect("chmod");
    let work = || {
        prepare(&mnt).expect("what the calls work on");
        fill(&mnt);
        let before = free(&mnt);
        let mut rows = Vec::new();
        for (name, call) in CALLS {
            if *name == FREEING {
                assert_eq!(free(&mnt), before, "a call took or gave blocks: {rows:?}");
            }
            rows.push((*name, call(&mnt).err().unwrap_or(0)));
        }
        rows
    };
    let mut rows = match by_user {
        true => sys::as_user(ALICE, ALICE, &[], work),
        false => work(),
    };
    if by_user {
        let made = sys::mkdir(mnt.join("by-root"), 0o755);
        rows.push(("mkdir by root", made.err().unwrap_or(0)));
    }
    volume.umount();
    volume.fsck_clean();
    rows
}

fn prepare(mnt: &Path) -> R<()> {
    for dir in ["d", "e", "gone", "d/sub"] {
        sys::mkdir(mnt.join(dir), 0o755)?;
    }
    for file in ["d/a", "d/b", "d/c", "log", "log.1", "big"] {
        create(&mnt.join(file))?;
    }
    let log = sys::open(mnt.join("log.1"), O_RDWR, 0)?;
    sys::write(&log, &[b'r'; 64 << 10])?;
    sys::fsync(&log)
}

fn free(mnt: &Path) -> u64 {
    let root = sys::open(mnt, libc::O_RDONLY, 0).expect("open");
    sys::syncfs(&root).expect("syncfs");
    sys::statvfs(mnt).expect("statvfs").bfree
}

/// Until neither data nor a directory finds a block.
fn fill(mnt: &Path) {
    let f = sys::open(mnt.join("big"), O_RDWR, 0).expect("open");
    let (mut at, mut before) = (0, u64::MAX);
    while before != at {
        before = at;
        for len in [1 << 20, 64 << 10, 4096, 1024] {
            while let Ok(n) = sys::pwrite(&f, &vec![7; len], at) {
                at += n as u64;
            }
        }
        sys::fsync(&f).expect("fsync");
    }
    let mut left = 0;
    while sys::mkdir(mnt.join(format!("left{left}")), 0o755).is_ok() {
        left += 1;
        assert!(left < 100, "the volume is not full");
    }
}
