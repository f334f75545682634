//! The load: one thread per stream, each in its own directory, in a directory that all share (own names), and on shared
//! objects. What was started, in which order, and which syncs returned is kept outside the volume.

use super::op::{Entry, How, Kind, Model, Op, data, one_request};
use crate::sys;
use ccfs_testkit::Rng;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What the load does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub seed: u64,
    pub streams: usize,
    /// Operations per stream at most.
    pub ops: usize,
    pub seconds: f64,
    /// Share of syncs and of operations on shared objects, percent.
    pub sync_percent: u64,
    pub shared_percent: u64,
    /// Largest write, bytes.
    pub write_max: u64,
}

/// A sync that returned: at least so many operations of each stream survive.
pub type Promise = Vec<(usize, usize)>;

/// What the load tells when it ends.
#[derive(Serialize, Deserialize)]
pub struct Record {
    pub settings: Settings,
    /// Per stream: every operation that was started; the last one may have failed.
    pub streams: Vec<Vec<Entry>>,
    /// Per stream: operations that had returned.
    pub completed: Vec<usize>,
    pub promises: Vec<(Promise, String)>,
    /// An error that a dead daemon does not explain.
    pub unexpected: Option<String>,
}

/// Operations on shared objects, in order; the lock is held around each operation.
#[derive(Default)]
struct Shared {
    model: Model,
    /// (stream, seq, paths) by place in the order.
    chain: Vec<(usize, usize, Vec<String>)>,
    /// The last operation failed: the volume is gone, and what the kernel's caches still answer means nothing.
    gone: bool,
}

struct Common<'a> {
    root: &'a Path,
    settings: &'a Settings,
    shared: Mutex<Shared>,
    completed: Vec<AtomicUsize>,
    promises: Mutex<Vec<(Promise, String)>>,
    unexpected: Mutex<Option<String>>,
    end: Instant,
}

/// Directories that exist before the load starts.
pub fn prepare(root: &Path, streams: usize) -> sys::R<()> {
    sys::mkdir(root, 0o755)?;
    sys::mkdir(root.join("all"), 0o755)?;
    sys::mkdir(root.join("shared"), 0o755)?;
    (0..streams).try_for_each(|s| sys::mkdir(root.join(format!("s{s}")), 0o755))
}

/// Runs until the file system goes away, or the limits.
pub fn run(root: &Path, settings: &Settings) -> Record {
    let common = Common {
        root,
        settings,
        shared: Mutex::new(Shared::default()),
        completed: (0..settings.streams).map(|_| AtomicUsize::new(0)).collect(),
        promises: Mutex::new(Vec::new()),
        unexpected: Mutex::new(None),
        end: Instant::now() + Duration::from_secs_f64(settings.seconds),
    };
    let streams = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..settings.streams)
            .map(|id| {
                let common = &common;
                scope.spawn(move || Stream::new(id, common).run())
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a stream's thread"))
            .collect()
    });
    Record {
        settings: settings.clone(),
        streams,
        completed: common
            .completed
            .iter()
            .map(|c| c.load(Ordering::SeqCst))
            .collect(),
        promises: common.promises.into_inner().expect("lock"),
        unexpected: common.unexpected.into_inner().expect("lock"),
    }
}

struct Stream<'a> {
    id: usize,
    common: &'a Common<'a>,
    rng: Rng,
    model: Model,
    log: Vec<Entry>,
    names: u64,
}

impl<'a> Stream<'a> {
    fn new(id: usize, common: &'a Common<'a>) -> Self {
        let rng = Rng::part(common.settings.seed, 1000 + id as u64);
        Stream {
            id,
            common,
            rng,
            model: Model::default(),
            log: Vec::new(),
            names: 0,
        }
    }

    fn run(mut self) -> Vec<Entry> {
        if !enter_own_stream(self.common.root) {
            return self.log;
        }
        while self.log.len() < self.common.settings.ops && Instant::now() < self.common.end {
            let roll = self.rng.below(100);
            let settings = self.common.settings;
            let goes_on = if roll < settings.sync_percent {
                self.sync()
            } else if roll < settings.sync_percent + settings.shared_percent {
                // A private operation follows, so that the checker can tell how far the stream came.
                self.shared() && self.private()
            } else {
                self.private()
            };
            if !goes_on {
                break;
            }
        }
        self.log
    }

    /// Starts and ends one operation; false when the volume is gone.
    fn execute(&mut self, op: Op, shared: Option<u64>) -> bool {
        let seq = self.log.len();
        let bytes = data(self.common.settings.seed, self.id, seq, op.data_len());
        self.log.push(Entry {
            op: op.clone(),
            shared,
        });
        match op.run(self.common.root, &bytes) {
            Ok(()) => {
                self.common.completed[self.id].store(seq + 1, Ordering::SeqCst);
                if let Op::Write {
                    how: How::Dsync, ..
                } = op
                {
                    self.promise(vec![(self.id, seq + 1)], "O_DSYNC write");
                }
                true
            }
            Err(e) => {
                if !is_gone(e) {
                    let text = format!("stream {} seq {seq} {op:?}: errno {e}", self.id);
                    self.common
                        .unexpected
                        .lock()
                        .expect("lock")
                        .get_or_insert(text);
                }
                false
            }
        }
    }

    fn promise(&self, promise: Promise, what: &str) {
        let what = format!("{what} of stream {} at {}", self.id, self.log.len());
        self.common
            .promises
            .lock()
            .expect("lock")
            .push((promise, what));
    }

    fn private(&mut self) -> bool {
        let op = self.choose();
        let bytes = data(
            self.common.settings.seed,
            self.id,
            self.log.len(),
            op.data_len(),
        );
        self.model.apply(&op, &bytes);
        self.execute(op, None)
    }

    fn sync(&mut self) -> bool {
        let at = self.log.len();
        let mut promise: Promise = vec![(self.id, at)];
        let (op, what) = match self.rng.below(10) {
            0..4 => match self.any(Kind::File) {
                Some(path) => (
                    Op::Fsync {
                        path,
                        data_only: self.rng.chance(40),
                    },
                    "fsync",
                ),
                None => (
                    Op::Fsync {
                        path: format!("s{}", self.id),
                        data_only: false,
                    },
                    "fsync of the directory",
                ),
            },
            4 => (
                Op::Fsync {
                    path: "all".into(),
                    data_only: false,
                },
                "fsync of the common directory",
            ),
            5..7 => (Op::StreamSync, "streamsync"),
            7 => {
                let done = self
                    .common
                    .completed
                    .iter()
                    .map(|c| c.load(Ordering::SeqCst));
                promise.extend(done.enumerate());
                (Op::SyncFs, "syncfs")
            }
            _ => {
                // Every earlier operation on the file by any stream, with all that comes before in those streams.
                let path = format!("shared/x{}", self.rng.below(3));
                let shared = self.common.shared.lock().expect("lock");
                if !shared.model.has(&path) {
                    return true;
                }
                let earlier = shared
                    .chain
                    .iter()
                    .filter(|(_, _, paths)| paths.contains(&path));
                promise.extend(earlier.map(|(stream, seq, _)| (*stream, seq + 1)));
                drop(shared);
                let name = Op::Fsync {
                    path,
                    data_only: false,
                };
                // The name may be gone by now, or be another file: then there is no promise.
                return self.fsync_shared(name, promise);
            }
        };
        let ok = self.execute(op, None);
        if ok {
            self.promise(promise, what);
        }
        ok
    }

    fn fsync_shared(&mut self, op: Op, mut promise: Promise) -> bool {
        let Op::Fsync { path, .. } = &op else {
            return true;
        };
        let opened = sys::open(self.common.root.join(path), libc::O_RDONLY, 0);
        let Ok(fd) = opened else {
            return opened.is_err_and(|e| e == libc::ENOENT);
        };
        self.log.push(Entry {
            op: op.clone(),
            shared: None,
        });
        if sys::fsync(&fd).is_err() {
            return false;
        }
        self.common.completed[self.id].store(self.log.len(), Ordering::SeqCst);
        if sys::fstat(&fd).map(|s| s.nlink) != Ok(1) {
            promise.truncate(1);
        }
        self.promise(promise, "fsync of a shared file");
        true
    }

    /// A path of this stream with a node of this kind.
    fn any(&mut self, kind: Kind) -> Option<String> {
        let fits =
            |(n, id): (&String, &u64)| (self.model.nodes[id].kind == kind).then(|| n.clone());
        let all: Vec<String> = self.model.names.iter().filter_map(fits).collect();
        if all.is_empty() {
            None
        } else {
            Some(self.rng.pick(&all).clone())
        }
    }

    /// A new name: own directory, a directory in it, or the directory that all streams share.
    fn fresh(&mut self) -> String {
        self.names += 1;
        let n = self.names;
        match self.rng.below(10) {
            0..3 => format!("all/s{}-{n}", self.id),
            3..6 => match self.any(Kind::Dir) {
                Some(dir) => format!("{dir}/f{n}"),
                None => format!("s{}/f{n}", self.id),
            },
            _ => format!("s{}/f{n}", self.id),
        }
    }

    fn create(&mut self) -> Op {
        let mode = *self.rng.pick(&[0o644, 0o600, 0o755, 0o640]);
        Op::Create {
            path: self.fresh(),
            mode,
        }
    }

    fn choose(&mut self) -> Op {
        let Some(file) = self.any(Kind::File) else {
            return self.create();
        };
        let crowded = self.model.names.len() > 60;
        let size = self.model.node(&file).content.len() as u64;
        match self.rng.below(100) {
            0..18 if !crowded => self.create(),
            18..58 => self.write(file, size),
            58..63 => Op::Truncate {
                path: file,
                len: self.rng.size(size.max(20_000)),
            },
            63..66 => Op::Punch {
                path: file,
                at: self.rng.below(size + 1),
                len: 1 + self.rng.size(30_000),
            },
            66..69 => Op::Chmod {
                path: file,
                mode: *self.rng.pick(&[0o600, 0o644, 0o755, 0o444, 0o666]),
            },
            69..72 => Op::Xattr {
                path: file,
                len: 1 + self.rng.below(90),
            },
            72..74 => Op::Utimes {
                path: file,
                mtime: 1 + self.rng.below(1 << 30) as i64,
            },
            74..77 if !crowded => Op::Link {
                from: file,
                to: self.fresh(),
            },
            77..83 => self.rename(file),
            83..85 => match self.any(Kind::File) {
                Some(b) if b != file => Op::Exchange { a: file, b },
                _ => self.create(),
            },
            85..87 if !crowded => {
                let target = format!("t{}-{}", self.id, self.log.len());
                Op::Symlink {
                    path: self.fresh(),
                    target,
                }
            }
            87..91 => self.directories(),
            91..93 => match self.any(Kind::Symlink) {
                Some(path) => Op::Unlink { path },
                None => Op::Unlink { path: file },
            },
            _ => Op::Unlink { path: file },
        }
    }

    fn write(&mut self, path: String, size: u64) -> Op {
        let max = self.common.settings.write_max.min(128 << 10);
        let (at, len) = match self.rng.below(10) {
            0..5 if size < 100_000 => (size, 1 + self.rng.size(max.min(9000))),
            5..9 => (self.rng.below(size + 1), 1 + self.rng.size(max)),
            _ => (size + self.rng.below(10_000), 1 + self.rng.size(5000)),
        };
        let (at, len) = one_request(at.min(200_000), len);
        match self.rng.below(40) {
            0 => Op::Write {
                path,
                at: at & !4095,
                len: (len + 4095) & !4095,
                how: How::Direct,
            },
            1 => Op::Write {
                path,
                at,
                len,
                how: How::Dsync,
            },
            _ => Op::Write {
                path,
                at,
                len,
                how: How::Cached,
            },
        }
    }

    fn rename(&mut self, from: String) -> Op {
        let to = if self.rng.chance(50) {
            self.any(Kind::File).unwrap_or_default()
        } else {
            self.fresh()
        };
        // A rename onto another name of the same inode does nothing; the model knows, but it proves nothing.
        let same = self.model.names.get(&to) == self.model.names.get(&from);
        Op::Rename {
            to: if same { self.fresh() } else { to },
            from,
        }
    }

    fn directories(&mut self) -> Op {
        self.names += 1;
        let fresh = format!("s{}/d{}", self.id, self.names);
        let Some(dir) = self.any(Kind::Dir) else {
            return Op::Mkdir { path: fresh };
        };
        let prefix = format!("{dir}/");
        let empty = !self.model.names.keys().any(|n| n.starts_with(&prefix));
        let shallow = dir.matches('/').count() < 3;
        match self.rng.below(10) {
            0..4 if empty => Op::Rmdir { path: dir },
            4..7 => match self.any(Kind::Dir) {
                Some(other)
                    if other != dir
                        && !other.starts_with(&prefix)
                        && other.matches('/').count() < 3 =>
                {
                    Op::Rename {
                        from: dir,
                        to: format!("{other}/d{}", self.names),
                    }
                }
                _ => Op::Rename {
                    from: dir,
                    to: fresh,
                },
            },
            7 if shallow => Op::Mkdir {
                path: format!("{dir}/d{}", self.names),
            },
            _ => Op::Mkdir { path: fresh },
        }
    }

    /// An operation on an object that the streams share; the lock makes the order known.
    fn shared(&mut self) -> bool {
        // The lock outlives `self.execute`, so it must not borrow from self.
        let common = self.common;
        let mut shared = common.shared.lock().expect("lock");
        if shared.gone {
            return false;
        }
        let Some(op) = self.choose_shared(&shared.model) else {
            return true;
        };
        let place = shared.chain.len() as u64;
        let seq = self.log.len();
        let bytes = data(common.settings.seed, self.id, seq, op.data_len());
        let paths = op.paths().iter().map(|p| p.to_string()).collect();
        shared.chain.push((self.id, seq, paths));
        match &op {
            Op::Rename { from, to } => {
                let node = self.model.node(from).clone();
                self.model.remove(from);
                shared.model.adopt(to, node);
            }
            _ => drop(shared.model.apply(&op, &bytes)),
        }
        shared.gone = !self.execute(op, Some(place));
        !shared.gone
    }

    fn choose_shared(&mut self, model: &Model) -> Option<Op> {
        let place = self.log.len();
        match self.rng.below(10) {
            0..5 => {
                let path = format!("shared/x{}", self.rng.below(3));
                if !model.has(&path) {
                    return Some(Op::Create { path, mode: 0o644 });
                }
                let size = model.node(&path).content.len() as u64;
                Some(match self.rng.below(20) {
                    0 => Op::Truncate {
                        path,
                        len: self.rng.below(size + 1),
                    },
                    1 => Op::Xattr {
                        path,
                        len: 1 + self.rng.below(60),
                    },
                    2 => Op::Chmod {
                        path,
                        mode: *self.rng.pick(&[0o600, 0o644, 0o660]),
                    },
                    3 if size > 60_000 => Op::Unlink { path },
                    4..10 => {
                        let (at, len) =
                            one_request(self.rng.below(size + 1), 1 + self.rng.below(3000));
                        Op::Write {
                            path,
                            at,
                            len,
                            how: How::Cached,
                        }
                    }
                    _ => {
                        let (at, len) = one_request(size, 1 + self.rng.below(3000));
                        Op::Write {
                            path,
                            at,
                            len,
                            how: How::Cached,
                        }
                    }
                })
            }
            5..8 => {
                let path = format!("shared/n{}", self.rng.below(3));
                let mine = self
                    .any(Kind::File)
                    .filter(|f| self.model.node(f).names.len() == 1);
                match (self.rng.below(4), mine) {
                    (0..3, Some(from)) => Some(Op::Rename { from, to: path }),
                    _ if model.has(&path) => Some(Op::Unlink { path }),
                    _ => Some(Op::Symlink {
                        path,
                        target: format!("by-{}-{place}", self.id),
                    }),
                }
            }
            _ => {
                let dir = format!("shared/d{}", self.rng.below(2));
                if !model.has(&dir) {
                    return Some(Op::Mkdir { path: dir });
                }
                let prefix = format!("{dir}/");
                let inside: Vec<&String> = model
                    .names
                    .keys()
                    .filter(|n| n.starts_with(&prefix))
                    .collect();
                match self.rng.below(10) {
                    0..5 => Some(Op::Create {
                        path: format!("{dir}/e{}-{place}", self.id),
                        mode: 0o600,
                    }),
                    5..9 if !inside.is_empty() => Some(Op::Unlink {
                        path: self.rng.pick(&inside).to_string(),
                    }),
                    _ if inside.is_empty() => Some(Op::Rmdir { path: dir }),
                    _ => None,
                }
            }
        }
    }
}

/// What a call of a volume says whose daemon is gone.
pub fn is_gone(errno: i32) -> bool {
    const GONE: [i32; 8] = [
        // Over io_uring: the daemon was killed while the kernel handed it this request, or took the reply. EAGAIN where it wanted the
        // daemon's address space at that moment (get_user_pages, mmap_read_lock_killable).
        libc::EINTR,
        libc::EAGAIN,
        libc::ENOTCONN,
        libc::ECONNABORTED,
        libc::ECANCELED,
        libc::EIO,
        libc::ENODEV,
        libc::EROFS,
    ];
    GONE.contains(&errno)
}

/// Moves the thread into a stream of its own where the file system has streams. False if the volume is gone.
pub(super) fn enter_own_stream(root: &Path) -> bool {
    let Ok(fd) = sys::open(root, libc::O_RDONLY, 0) else {
        return false;
    };
    match ccfs_client::new_stream(&fd, 0) {
        Ok(id) => ccfs_client::set_stream(&fd, id, None).is_ok(),
        Err(e) => e.kind() == std::io::ErrorKind::Unsupported,
    }
}
