//! One stream's load on a nearly full volume. It notes what each call returned, short counts too, and looks at what the page cache
//! holds after calls that were cut short or refused.

use crate::kill9::load::{enter_own_stream, is_gone};
use crate::kill9::op::{How, Kind, Model, Op, data};
use crate::sys;
use ccfs_testkit::Rng;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub seed: u64,
    pub stream: usize,
    pub seconds: f64,
    /// Largest write, and files go on to about so much, bytes.
    pub write_max: u64,
    pub size_max: u64,
    pub sync_percent: u64,
    /// The daemon will be killed, so that calls fail in the end.
    pub killed: bool,
}

/// What a call returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Returned {
    /// With success; a write with so many bytes.
    Done(u64),
    /// It was refused: ENOSPC.
    Full,
    /// The volume went away meanwhile.
    Nothing,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub op: Op,
    pub returned: Returned,
}

/// All that a stream did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub settings: Settings,
    pub steps: Vec<Step>,
    /// An error that neither a full volume nor a dead daemon explains, or wrong bytes in the page cache.
    pub unexpected: Option<String>,
}

/// A direct write of so much is one request; the kernel sends those of a larger one all at once, in no order, bytes.
const DIRECT_MAX: u64 = 64 << 10;

/// Most files of a stream.
const FILES: usize = 14;

struct Load<'a> {
    root: &'a Path,
    rng: Rng,
    model: Model,
    names: u64,
    /// The last call found no space.
    full: bool,
    record: Record,
}

/// Runs until the volume goes away, or the time is over.
pub fn run(root: &Path, settings: Settings) -> Record {
    let mut load = Load {
        root,
        rng: Rng::part(settings.seed, 2000 + settings.stream as u64),
        model: Model::default(),
        names: 0,
        full: false,
        record: Record {
            settings,
            steps: Vec::new(),
            unexpected: None,
        },
    };
    let end = Instant::now() + Duration::from_secs_f64(load.record.settings.seconds);
    if enter_own_stream(root) {
        while Instant::now() < end && load.step() {}
    }
    load.record
}

impl Load<'_> {
    /// One operation; false when nothing more can be done.
    fn step(&mut self) -> bool {
        let op = self.choose();
        let seq = self.record.steps.len();
        let (seed, stream) = (self.record.settings.seed, self.record.settings.stream);
        let bytes = data(seed, stream, seq, op.data_len());
        let result = perform(self.root, &op, &bytes);
        let returned = match result {
            Ok(n) => Returned::Done(n),
            Err(libc::ENOSPC) => Returned::Full,
            Err(_) => Returned::Nothing,
        };
        self.record.steps.push(Step {
            op: op.clone(),
            returned,
        });
        if let Err(e) = result
            && e != libc::ENOSPC
        {
            if !is_gone(e) || !self.record.settings.killed {
                self.record.unexpected = Some(format!("seq {seq} {op:?}: errno {e}"));
            }
            return false;
        }
        if let Ok(n) = result {
            self.model.apply(&op, &bytes[..n as usize]);
        }
        let short = result.is_ok_and(|n| n < op.data_len());
        self.full = short || result.is_err();
        if (self.full || self.rng.chance(4)) && self.record.unexpected.is_none() {
            self.record.unexpected = self
                .look(&op)
                .err()
                .map(|e| format!("seq {seq} {op:?}, {returned:?}: {e}"));
        }
        self.record.unexpected.is_none()
    }

    /// What the kernel holds of the file that an operation was about.
    fn look(&self, op: &Op) -> Result<(), String> {
        let Some(path) = op.paths().last().filter(|p| self.model.has(p)).copied() else {
            return Ok(());
        };
        let seen = (|| {
            let fd = sys::open(self.root.join(path), libc::O_RDONLY, 0)?;
            let size = sys::fstat(&fd)?.size;
            let mut bytes = vec![0; size as usize + 1];
            let mut done = 0;
            loop {
                match sys::pread(&fd, &mut bytes[done..], done as u64)? {
                    0 => break,
                    n => done += n,
                }
            }
            bytes.truncate(done);
            Ok((size, bytes))
        })();
        let want = &self.model.node(path).content;
        match seen {
            Err(e) if is_gone(e) => Ok(()),
            Err(e) => Err(format!("reading it again: errno {e}")),
            Ok((size, bytes)) if size == want.len() as u64 && bytes == *want => Ok(()),
            Ok((size, bytes)) => {
                let at = bytes.iter().zip(want).position(|(a, b)| a != b);
                Err(format!(
                    "read again it has {size} bytes ({} could be read) for {}, the first other one is {at:?}",
                    bytes.len(),
                    want.len()
                ))
            }
        }
    }

    fn file(&mut self) -> Option<String> {
        let files: Vec<String> = self.model.names.keys().cloned().collect();
        (!files.is_empty()).then(|| self.rng.pick(&files).clone())
    }

    fn choose(&mut self) -> Op {
        let settings = self.record.settings.clone();
        let count = self.model.names.len();
        let Some(path) = self.file().filter(|_| count >= 3) else {
            return self.create();
        };
        // Who finds no space makes some, often.
        let roll = match self.full && self.rng.chance(45) {
            true => 78 + self.rng.below(22),
            false => self.rng.below(100),
        };
        match roll {
            _ if self.rng.chance(settings.sync_percent) => match self.rng.chance(70) {
                true => Op::Fsync {
                    path,
                    data_only: self.rng.chance(50),
                },
                false => Op::StreamSync,
            },
            0..64 => self.write(path),
            64..70 if count < FILES => self.create(),
            64..74 => self.allocate(path),
            74..78 => self.resize(path, settings.size_max),
            78..88 => {
                let size = self.model.node(&path).content.len() as u64;
                self.resize(path, size)
            }
            88..92 => self.punch(path),
            92..96 => Op::Unlink { path },
            _ => match self.file().filter(|to| *to != path) {
                Some(to) => Op::Rename { from: path, to },
                None => Op::Unlink { path },
            },
        }
    }

    fn create(&mut self) -> Op {
        self.names += 1;
        let path = format!("s{}/f{}", self.record.settings.stream, self.names);
        Op::Create { path, mode: 0o644 }
    }

    fn write(&mut self, path: String) -> Op {
        let settings = &self.record.settings;
        let size = self.model.node(&path).content.len() as u64;
        let mut len = 1 + match self.rng.below(4) {
            0 => self.rng.below(600),
            1 => self.rng.below(9000),
            _ => self.rng.below(settings.write_max),
        };
        let mut at = match self.rng.below(10) {
            0..5 => size,
            5..8 => self.rng.below(size + 1),
            _ => self.rng.below(settings.size_max),
        };
        match self.rng.below(6) {
            0 => (at, len) = (at & !1023, (len + 1023) & !1023),
            1 => at &= !4095,
            _ => {}
        }
        if at > settings.size_max {
            at = self.rng.below(settings.size_max);
        }
        len = len.min(2 * settings.size_max - at);
        let how = match self.rng.below(8) {
            0 => How::Direct,
            _ => How::Cached,
        };
        if how == How::Direct {
            len = len.min(DIRECT_MAX);
        }
        Op::Write { path, at, len, how }
    }

    fn allocate(&mut self, path: String) -> Op {
        let settings = &self.record.settings;
        Op::Allocate {
            path,
            at: self.rng.below(settings.size_max),
            len: 1 + self.rng.below(settings.write_max * 2),
            keep_size: self.rng.chance(50),
            zero: self.rng.chance(30),
        }
    }

    fn resize(&mut self, path: String, max: u64) -> Op {
        let len = self.rng.below(max + 1);
        Op::Truncate { path, len }
    }

    fn punch(&mut self, path: String) -> Op {
        let size = self.model.node(&path).content.len() as u64;
        Op::Punch {
            path,
            at: self.rng.below(size + 1),
            len: 1 + self.rng.below(60_000),
        }
    }
}

/// Does it; how many bytes it took.
fn perform(root: &Path, op: &Op, bytes: &[u8]) -> sys::R<u64> {
    match op {
        Op::Write {
            path,
            at,
            how: How::Direct,
            ..
        } => {
            let fd = sys::open(root.join(path), libc::O_WRONLY | libc::O_DIRECT, 0)?;
            let mut buf = sys::Direct::new(bytes.len());
            buf.bytes().copy_from_slice(bytes);
            sys::pwrite(&fd, buf.bytes(), *at).map(|n| n as u64)
        }
        Op::Write { path, at, .. } => {
            let fd = sys::open(root.join(path), libc::O_WRONLY, 0)?;
            sys::pwrite(&fd, bytes, *at).map(|n| n as u64)
        }
        _ => op.run(root, bytes).map(|()| 0),
    }
}

/// The stream's directory.
pub fn prepare(root: &Path, stream: usize) -> sys::R<()> {
    sys::mkdir(root.join(format!("s{stream}")), 0o755)
}

/// Whether it is a file of a stream, and whose.
pub(super) fn owner(path: &str, kind: Kind) -> Option<usize> {
    let (dir, name) = path.split_once('/')?;
    let stream = dir.strip_prefix('s')?.parse().ok();
    stream.filter(|_| kind == Kind::File && name.starts_with('f'))
}
