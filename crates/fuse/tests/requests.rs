//! How many requests a system call costs on a live mount, by the daemon's own counters: the table of docs/requests.md.
mod common;
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use rustix::fs::{self, FallocateFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::{pread, pwrite};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a row does: it prepares things in an empty directory, and gives what is counted.
type Prepare = fn(&Path) -> Box<dyn FnOnce()>;

struct Row {
    call: &'static str,
    /// Requests by name in the alphabet's order, each as often as it comes.
    requests: &'static str,
    prepare: Prepare,
}

const fn row(call: &'static str, requests: &'static str, prepare: Prepare) -> Row {
    Row {
        call,
        requests,
        prepare,
    }
}

fn create(path: &Path) -> OwnedFd {
    let flags = OFlags::CREATE | OFlags::RDWR;
    fs::open(path, flags, Mode::from_raw_mode(0o644)).unwrap()
}

/// A file with so many bytes that nobody has looked at since.
fn filled(path: &Path, len: usize) -> OwnedFd {
    let fd = create(path);
    assert_eq!(pwrite(&fd, &vec![7; len], 0), Ok(len));
    fd
}

/// `n` files of one byte, whose names the kernel knows.
fn many(dir: &Path, n: usize) {
    for i in 0..n {
        filled(&dir.join(format!("f{i:03}")), 1);
    }
}

fn list(dir: &Path, with_attributes: bool) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if with_attributes {
            fs::lstat(entry.path()).unwrap();
        }
    }
}

/// A program as a user and its group.
fn run(program: &str, path: &Path, user: u32) {
    let mut command = Command::new(program);
    command.arg(path).uid(user).gid(user);
    assert!(command.output().unwrap().status.success());
}

/// A directory whose attributes the row's preparation leaves as they are.
fn subdirectory(dir: &Path) -> PathBuf {
    let sub = dir.join("sub");
    fs::mkdir(&sub, Mode::from_raw_mode(0o755)).unwrap();
    sub
}

const OPEN: OFlags = OFlags::RDONLY;
const NONE: Mode = Mode::empty();
const NOW: Timestamps = {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: fs::UTIME_NOW as _,
    };
    Timestamps {
        last_access: now,
        last_modification: now,
    }
};

const ROWS: &[Row] = &[
    row(
        "stat, access, open, close of a name that was used before",
        "",
        |d| {
            let f = d.join("f");
            create(&f);
            Box::new(move || {
                fs::stat(&f).unwrap();
                fs::access(&f, fs::Access::READ_OK).unwrap();
                drop(fs::open(&f, OPEN, NONE).unwrap());
            })
        },
    ),
    row(
        "any path through a directory in which a name was made, changed or removed since: one more",
        "GETATTR",
        |d| {
            let f = subdirectory(d).join("f");
            create(&f);
            Box::new(move || assert!(fs::stat(&f).is_ok()))
        },
    ),
    row(
        "stat after a write, fallocate or copy_file_range",
        "GETATTR",
        |d| {
            let fd = filled(&d.join("f"), 100);
            Box::new(move || assert!(fs::fstat(&fd).is_ok()))
        },
    ),
    row(
        "a name that does not exist, the first time",
        "LOOKUP",
        |d| {
            let f = d.join("f");
            Box::new(move || assert!(fs::stat(&f).is_err()))
        },
    ),
    row("a name that does not exist, again", "", |d| {
        let f = d.join("f");
        assert!(fs::stat(&f).is_err());
        Box::new(move || assert!(fs::stat(&f).is_err()))
    }),
    row("open with O_TRUNC, close", "SETATTR", |d| {
        let f = d.join("f");
        filled(&f, 100);
        Box::new(move || drop(fs::open(&f, OFlags::WRONLY | OFlags::TRUNC, NONE).unwrap()))
    }),
    row(
        "open with O_CREAT of a new name, close",
        "LOOKUP, MKNOD",
        |d| {
            let f = d.join("f");
            Box::new(move || drop(create(&f)))
        },
    ),
    row(
        "the same where the name was looked for before",
        "MKNOD",
        |d| {
            let f = d.join("f");
            assert!(fs::stat(&f).is_err());
            Box::new(move || drop(create(&f)))
        },
    ),
    row(
        "the same after an unlink of the name",
        "LOOKUP, MKNOD",
        |d| {
            let f = d.join("f");
            create(&f);
            fs::unlink(&f).unwrap();
            Box::new(move || drop(create(&f)))
        },
    ),
    row(
        "open with O_CREAT of one new name after the other in a directory, each",
        "GETATTR, LOOKUP, MKNOD",
        |d| {
            let d = subdirectory(d);
            create(&d.join("f"));
            Box::new(move || drop(create(&d.join("g"))))
        },
    ),
    row("mkdir", "LOOKUP, MKDIR", |d| {
        let d = d.join("d");
        Box::new(move || fs::mkdir(&d, Mode::from_raw_mode(0o755)).unwrap())
    }),
    row("open with O_TMPFILE, close", "TMPFILE", |d| {
        let d = d.to_path_buf();
        Box::new(move || {
            let flags = OFlags::TMPFILE | OFlags::RDWR;
            drop(fs::open(&d, flags, Mode::from_raw_mode(0o600)).unwrap())
        })
    }),
    row("link", "LINK, LOOKUP", |d| {
        let (f, g) = (d.join("f"), d.join("g"));
        create(&f);
        Box::new(move || fs::link(&f, &g).unwrap())
    }),
    row("symlink", "LOOKUP, SYMLINK", |d| {
        let f = d.join("f");
        Box::new(move || fs::symlink("target", &f).unwrap())
    }),
    row("readlink twice", "READLINK", |d| {
        let f = d.join("f");
        fs::symlink("target", &f).unwrap();
        Box::new(move || {
            for _ in 0..2 {
                assert_eq!(fs::readlink(&f, []).unwrap().as_bytes(), b"target");
            }
        })
    }),
    row("rename to a new name", "LOOKUP, RENAME", |d| {
        let (f, g) = (d.join("f"), d.join("g"));
        create(&f);
        Box::new(move || fs::rename(&f, &g).unwrap())
    }),
    row("rename over a file", "LOOKUP, RENAME", |d| {
        let (f, g) = (d.join("f"), d.join("g"));
        create(&f);
        create(&g);
        Box::new(move || fs::rename(&f, &g).unwrap())
    }),
    row("unlink", "UNLINK", |d| {
        let f = d.join("f");
        create(&f);
        Box::new(move || fs::unlink(&f).unwrap())
    }),
    row("rmdir", "RMDIR", |d| {
        let f = d.join("f");
        fs::mkdir(&f, Mode::from_raw_mode(0o755)).unwrap();
        Box::new(move || fs::rmdir(&f).unwrap())
    }),
    row("chmod, chown, utimensat, truncate: each", "SETATTR", |d| {
        let f = d.join("f");
        create(&f);
        Box::new(move || fs::chmod(&f, Mode::from_raw_mode(0o600)).unwrap())
    }),
    row(
        "write to a new file, the first one",
        "GETXATTR, WRITE",
        |d| {
            let fd = create(&d.join("f"));
            Box::new(move || assert_eq!(pwrite(&fd, &[1; 8192], 0), Ok(8192)))
        },
    ),
    row("write of up to 1 MiB, each further one", "WRITE", |d| {
        let fd = filled(&d.join("f"), 100);
        Box::new(move || assert_eq!(pwrite(&fd, &vec![1; 250_000], 4096), Ok(250_000)))
    }),
    row(
        "write, the first one after a GETATTR",
        "GETXATTR, WRITE",
        |d| {
            let fd = filled(&d.join("f"), 100);
            fs::fstat(&fd).unwrap();
            Box::new(move || assert_eq!(pwrite(&fd, &[1; 8192], 0), Ok(8192)))
        },
    ),
    row(
        "append that begins within a page that was not read",
        "WRITE, WRITE",
        |d| {
            let fd = filled(&d.join("f"), 100);
            Box::new(move || assert_eq!(pwrite(&fd, &[1; 16384], 100), Ok(16384)))
        },
    ),
    row(
        "append that begins within a page that was read",
        "WRITE",
        |d| {
            let fd = filled(&d.join("f"), 100);
            assert_eq!(pread(&fd, &mut [0; 100][..], 0), Ok(100));
            assert_eq!(pwrite(&fd, &[1; 1], 0), Ok(1));
            Box::new(move || assert_eq!(pwrite(&fd, &[1; 16384], 100), Ok(16384)))
        },
    ),
    row("read of whole pages that were written", "", |d| {
        let fd = filled(&d.join("f"), 8192);
        Box::new(move || assert_eq!(pread(&fd, &mut [0; 8192][..], 0), Ok(8192)))
    }),
    row(
        "read up to the end of file, the first one after a write",
        "GETATTR",
        |d| {
            let fd = filled(&d.join("f"), 8192);
            Box::new(move || assert_eq!(pread(&fd, &mut [0; 10_000][..], 0), Ok(8192)))
        },
    ),
    row(
        "the same where the last page is a part of one",
        "GETATTR, READ",
        |d| {
            let fd = filled(&d.join("f"), 5000);
            Box::new(move || assert_eq!(pread(&fd, &mut [0; 10_000][..], 0), Ok(5000)))
        },
    ),
    row("open, read up to the end of file, close, again", "", |d| {
        let f = d.join("f");
        let fd = filled(&f, 5000);
        assert_eq!(pread(&fd, &mut [0; 10_000][..], 0), Ok(5000));
        Box::new(move || {
            let fd = fs::open(&f, OPEN, NONE).unwrap();
            assert_eq!(pread(&fd, &mut [0; 10_000][..], 0), Ok(5000));
        })
    }),
    row("read of what was read before, after a touch", "", |d| {
        let fd = filled(&d.join("f"), 5000);
        assert_eq!(pread(&fd, &mut [0; 10_000][..], 0), Ok(5000));
        fs::futimens(&fd, &NOW).unwrap();
        Box::new(move || assert_eq!(pread(&fd, &mut [0; 5000][..], 0), Ok(5000)))
    }),
    row("fsync, fdatasync: each", "FSYNC", |d| {
        let fd = filled(&d.join("f"), 100);
        Box::new(move || fs::fdatasync(&fd).unwrap())
    }),
    row("fsync of a directory", "FSYNCDIR", |d| {
        let dir = File::open(d).unwrap();
        create(&d.join("f"));
        Box::new(move || dir.sync_all().unwrap())
    }),
    row("syncfs", "SYNCFS", |d| {
        let fd = create(&d.join("f"));
        Box::new(move || fs::syncfs(&fd).unwrap())
    }),
    row("fallocate", "FALLOCATE", |d| {
        let fd = filled(&d.join("f"), 100);
        Box::new(move || fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, 1 << 16).unwrap())
    }),
    row("lseek with SEEK_DATA", "LSEEK", |d| {
        let fd = filled(&d.join("f"), 100);
        Box::new(move || assert_eq!(fs::seek(&fd, SeekFrom::Data(0)), Ok(0)))
    }),
    row("statfs", "STATFS", |d| {
        let d = d.to_path_buf();
        Box::new(move || assert!(fs::statfs(&d).is_ok()))
    }),
    row(
        "getxattr, setxattr, listxattr, removexattr: each",
        "GETXATTR",
        |d| {
            let f = d.join("f");
            create(&f);
            Box::new(move || assert!(fs::getxattr(&f, "user.a", &mut [0; 10][..]).is_err()))
        },
    ),
    row(
        "opendir, a list of 100 names, closedir",
        "READDIR, READDIRPLUS",
        |d| {
            let d = d.to_path_buf();
            many(&d, 100);
            Box::new(move || list(&d, false))
        },
    ),
    row("the same list again, nothing changed", "", |d| {
        let d = d.to_path_buf();
        many(&d, 100);
        list(&d, false);
        Box::new(move || list(&d, false))
    }),
    row("stat of 100 listed names, unchanged", "", |d| {
        let d = d.to_path_buf();
        many(&d, 100);
        list(&d, true);
        Box::new(move || list(&d, true))
    }),
    row(
        "stat(1), which asks for the time of birth, the first time",
        "STATX",
        |d| {
            let f = d.join("f");
            create(&f);
            Box::new(move || run("/usr/bin/stat", &f, 0))
        },
    ),
    row(
        "access by another user than the owner, the first time: the file and each directory of the path",
        "GETXATTR, GETXATTR, GETXATTR",
        |d| {
            let f = seen_by_all(d);
            Box::new(move || run("/usr/bin/cat", &f, 65534))
        },
    ),
];

/// A file of root's whose content and attributes the kernel knows.
fn seen_by_all(dir: &Path) -> PathBuf {
    let f = dir.join("f");
    let fd = filled(&f, 1);
    fs::chmod(dir, Mode::from_raw_mode(0o755)).unwrap();
    fs::chmod(&f, Mode::from_raw_mode(0o644)).unwrap();
    assert_eq!(pread(&fd, &mut [0; 10][..], 0), Ok(1));
    fs::stat(&f).unwrap();
    f
}

/// The daemon's counters.
fn counters(mount: &File) -> BTreeMap<String, u64> {
    let status = ccfs_client::status_json(mount).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let mut all: BTreeMap<String, u64> =
        serde_json::from_value(status["requests"].clone()).unwrap();
    // The question itself, and what nobody waits for.
    for name in ["IOCTL", "FORGET", "BATCH_FORGET", "INTERRUPT", "RELEASE"] {
        all.remove(name);
    }
    all
}

fn counted(mount: &File, act: Box<dyn FnOnce()>) -> Vec<String> {
    let before = counters(mount);
    act();
    let mut requests = Vec::new();
    for (name, n) in counters(mount) {
        let n = n - before.get(&name).copied().unwrap_or(0);
        requests.extend((0..n).map(|_| name.clone()));
    }
    requests
}

/// The table's lines, as the document has them.
fn line(row: &Row) -> String {
    let n = row.requests.split(", ").filter(|r| !r.is_empty()).count();
    format!("| {} | {n} | {} |", row.call, row.requests)
}

#[test]
fn the_document_has_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/requests.md");
    let text = std::fs::read_to_string(file).unwrap();
    for row in ROWS {
        let line = line(row);
        assert!(text.lines().any(|l| l == line), "missing: {line}");
    }
}

#[test]
fn requests_of_system_calls() {
    if !can_mount("requests_of_system_calls") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    // For the other user's sake.
    fs::chmod(m.mnt().parent().unwrap(), Mode::from_raw_mode(0o755)).unwrap();
    let mount = File::open(m.mnt()).unwrap();
    let status = ccfs_client::status_json(&mount).unwrap();
    // What other kernels ask may differ.
    let is_known = status.contains(r#""fuse_protocol":"7.45""#);
    let mut more = Vec::new();
    for (i, row) in ROWS.iter().enumerate() {
        // Others of this machine may look at the mount meanwhile: the least of some tries counts.
        let mut least: Option<Vec<String>> = None;
        for n in 0..5 {
            let dir = m.path(&format!("d{i}.{n}"));
            std::fs::create_dir(&dir).unwrap();
            let act = (row.prepare)(&dir);
            // What the preparation made the kernel forget of the directory itself is not the row's.
            fs::stat(dir.join(".")).unwrap();
            let requests = counted(&mount, act);
            if least.as_ref().is_none_or(|l| requests.len() < l.len()) {
                least = Some(requests);
            }
        }
        let least = least.unwrap_or_default();
        println!("| {} | {} | {} |", row.call, least.len(), least.join(", "));
        if least.len() > row.requests.split(", ").filter(|r| !r.is_empty()).count() {
            more.push(format!("{}: {least:?}", line(row)));
        }
    }
    drop(mount);
    m.unmount();
    if is_known {
        assert!(more.is_empty(), "more requests than documented: {more:#?}");
    }
}
