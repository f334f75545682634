//! What somebody else does meanwhile, in a process of his own: a line with name, nanoseconds and errno (with tabs between) for each call.
use crate::sys;
use ccfs_client as client;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two rounds: he is no load by himself.
const PAUSE: Duration = Duration::from_millis(5);
const SMALL: [u8; 4096] = [7; 4096];
/// Where the data of a sparse file begin.
const HOLE: u64 = 1 << 20;

/// What one round has besides create, write, fsync, rename, stat and unlink.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum More {
    Mkdir,
    /// A directory goes to another parent.
    Move,
    /// SEEK_DATA on a hole, and a copy that looks for holes, as cp(1) makes it.
    Seek,
    /// A group that is committed, and one that is taken back.
    Group,
    /// A name in the directory that is for everybody.
    Shared,
    Syncfs,
}

/// Where he works.
pub struct Place {
    /// The volume's root.
    pub mnt: PathBuf,
    /// A directory of his own on it.
    pub own: PathBuf,
    /// A sticky one for everybody.
    pub shared: PathBuf,
}

struct Probe {
    place: Place,
    root: File,
    lines: std::io::Stdout,
}

/// Works until standard input ends.
pub fn run(place: Place, more: &[More]) {
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Relaxed);
    });
    let root = File::open(&place.mnt).expect("the mount");
    let mut probe = Probe {
        place,
        root,
        lines: std::io::stdout(),
    };
    for name in ["one", "two"] {
        sys::mkdir(probe.own(name), 0o755).expect("mkdir");
    }
    for n in 0u64.. {
        if ended.load(Relaxed) {
            return;
        }
        probe.files(n);
        more.iter().for_each(|what| probe.more(*what, n));
        // What the machine's scheduler does to him, whatever the volume does.
        probe.timed("(sleep 5 ms)", || {
            std::thread::sleep(PAUSE);
            Ok(())
        });
    }
}

impl Probe {
    fn own(&self, below: &str) -> PathBuf {
        self.place.own.join(below)
    }

    fn timed<T>(&mut self, call: &str, f: impl FnOnce() -> sys::R<T>) -> Option<T> {
        let start = Instant::now();
        let result = f();
        let nanos = start.elapsed().as_nanos();
        let errno = result.as_ref().err().copied().unwrap_or(0);
        writeln!(self.lines, "{call}\t{nanos}\t{errno}").expect("somebody listens");
        result.ok()
    }

    fn create(&mut self, call: &str, path: &Path) -> Option<OwnedFd> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        self.timed(call, || sys::open(path, flags, 0o644))
    }

    fn files(&mut self, n: u64) {
        let (one, two) = (self.own(&format!("one/{n}")), self.own(&format!("two/{n}")));
        let Some(file) = self.create("create", &one) else {
            return;
        };
        self.timed("write", || sys::pwrite(&file, &SMALL, 0));
        self.timed("fsync", || sys::fsync(&file));
        // To another directory: the kernel takes a lock of the whole volume for that.
        let moved = self.timed("rename", || sys::rename(&one, &two));
        let now = if moved.is_some() { two } else { one };
        self.timed("stat", || sys::stat(&now));
        self.timed("unlink", || sys::unlink(&now));
    }

    fn more(&mut self, what: More, n: u64) {
        match what {
            More::Mkdir => {
                let dir = self.own(&format!("dir-{n}"));
                if self.timed("mkdir", || sys::mkdir(&dir, 0o755)).is_some() {
                    self.timed("rmdir", || sys::rmdir(&dir));
                }
            }
            More::Move => self.directory_moved(n),
            More::Seek => self.sparse(n),
            More::Group => {
                self.group("group", n, |root| client::group_commit(root, 0, false));
                self.group("abort", n, |root| client::group_abort(root, 0));
            }
            More::Shared => {
                let name = self.place.shared.join(format!("of-{}-{n}", sys::geteuid()));
                if self.create("shared", &name).is_some() {
                    self.timed("unlink", || sys::unlink(&name));
                }
            }
            More::Syncfs => {
                let root: OwnedFd = self.root.try_clone().expect("a descriptor").into();
                self.timed("syncfs", || sys::syncfs(&root));
            }
        }
    }

    fn directory_moved(&mut self, n: u64) {
        let (one, two) = (
            self.own(&format!("one/d{n}")),
            self.own(&format!("two/d{n}")),
        );
        if self.timed("mkdir", || sys::mkdir(&one, 0o755)).is_none() {
            return;
        }
        let moved = self.timed("move", || sys::rename(&one, &two));
        let now = if moved.is_some() { two } else { one };
        self.timed("rmdir", || sys::rmdir(&now));
    }

    fn sparse(&mut self, n: u64) {
        let (from, to) = (self.own(&format!("sparse-{n}")), self.own("copy"));
        if let Some(file) = self.create("create", &from) {
            self.timed("write", || sys::pwrite(&file, &SMALL, HOLE));
            self.timed("SEEK_DATA", || first_data(&file));
            self.timed("copy", || copy(&file, &to));
            self.timed("unlink", || sys::unlink(&from));
            self.timed("unlink", || sys::unlink(&to));
        }
    }

    /// From its begin to its end.
    fn group(&mut self, call: &str, n: u64, end: impl FnOnce(&File) -> std::io::Result<()>) {
        let (root, name) = (
            self.root.try_clone().expect("a descriptor"),
            self.own(&format!("{call}-{n}")),
        );
        self.timed(call, || {
            client::group_begin(&root, None).map_err(errno)?;
            let made = fill(&name);
            let ended = end(&root).map_err(errno);
            made.and(ended)
        });
        // A group that was committed left it; who gave up half-way is still in one.
        let _ = sys::unlink(&name);
        let _ = client::group_abort(&root, 0);
    }
}

fn errno(e: std::io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

fn fill(name: &Path) -> sys::R<()> {
    let file = sys::open(name, libc::O_CREAT | libc::O_RDWR, 0o644)?;
    (0..16).try_for_each(|i| sys::pwrite(&file, &SMALL, i * 4096).map(drop))
}

/// Where the file has data; EILSEQ if that is not where they were written.
fn first_data(file: &OwnedFd) -> sys::R<()> {
    match sys::lseek(file, 0, libc::SEEK_DATA)? {
        HOLE => Ok(()),
        _ => Err(libc::EILSEQ),
    }
}

fn copy(from: &OwnedFd, to: &Path) -> sys::R<()> {
    let to = sys::open(to, libc::O_CREAT | libc::O_RDWR | libc::O_TRUNC, 0o644)?;
    let mut at = 0;
    loop {
        let data = match sys::lseek(from, at, libc::SEEK_DATA) {
            Err(libc::ENXIO) => return Ok(()),
            result => result?,
        };
        let hole = sys::lseek(from, data as i64, libc::SEEK_HOLE)?;
        let mut bytes = vec![0; (hole - data) as usize];
        sys::pread(from, &mut bytes, data)?;
        sys::pwrite(&to, &bytes, data)?;
        at = hole as i64;
    }
}
