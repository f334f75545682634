//! One file against a byte array: reads, writes, truncates, holes, copies, mappings, direct I/O, in any order.

use super::History;
use crate::sys::R;
use ccfs_testkit::Rng;

/// Ways to do I/O; a target may not know all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Cached,
    Direct,
    Mapped,
}

/// fallocate's modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    Allocate { keep_size: bool },
    Punch,
    Zero { keep_size: bool },
}

/// A file under test.
pub trait Target {
    fn knows(&self, way: Way) -> bool;
    fn size(&mut self) -> R<u64>;
    /// Up to `len` bytes; fewer only at the end of file.
    fn read(&mut self, way: Way, at: u64, len: usize) -> R<Vec<u8>>;
    /// All of the bytes.
    fn write(&mut self, way: Way, at: u64, bytes: &[u8]) -> R<()>;
    fn append(&mut self, bytes: &[u8]) -> R<()>;
    fn truncate(&mut self, len: u64) -> R<()>;
    fn space(&mut self, how: Space, at: u64, len: u64) -> R<()>;
    /// Copies within the file (ranges do not overlap); returns the bytes copied.
    fn copy(&mut self, from: u64, to: u64, len: u64) -> R<u64>;
    /// SEEK_DATA or SEEK_HOLE.
    fn seek(&mut self, at: u64, data: bool) -> R<u64>;
    fn sync(&mut self, data_only: bool) -> R<()>;
    /// Whatever makes later reads come from below: drops caches, reopens, remounts.
    fn refresh(&mut self, deep: bool);
    /// What may explain a failure.
    fn diagnosis(&self) -> String {
        String::new()
    }
}

/// Settings of a run.
#[derive(Clone, Copy)]
pub struct Run {
    pub seed: u64,
    pub operations: u64,
    /// Largest size of the file, bytes.
    pub size_max: u64,
    /// One in so many operations is a sync.
    pub sync_every: u64,
    /// One in so many operations is a deep refresh (a remount); 0: never.
    pub refresh_every: u64,
}

struct State<'a> {
    target: &'a mut dyn Target,
    model: Vec<u8>,
    rng: Rng,
    run: Run,
    history: History,
    count: u64,
}

/// Runs. Panics with the seed and the last calls at the first difference.
pub fn exercise(target: &mut dyn Target, run: Run) {
    let mut s = State {
        target,
        model: Vec::new(),
        rng: Rng::new(run.seed),
        run,
        history: History::new(),
        count: 0,
    };
    while s.count < run.operations {
        s.count += 1;
        s.step();
        if s.count.is_multiple_of(997) {
            s.check_all();
        }
    }
    s.check_all();
    s.target.refresh(run.refresh_every > 0);
    s.check_all();
}

impl State<'_> {
    fn fail(&self, what: String) -> ! {
        panic!(
            "file exerciser, seed {}, operation {}: {what}\n{}\nlast operations:\n{}",
            self.run.seed,
            self.count,
            self.target.diagnosis(),
            self.history.text()
        );
    }
    fn expect<T>(&self, what: &str, got: R<T>) -> T {
        got.unwrap_or_else(|e| self.fail(format!("{what}: errno {e}")))
    }
    fn size(&self) -> u64 {
        self.model.len() as u64
    }
    /// An offset: anywhere, at a block's edge, or near the end.
    fn offset(&mut self, max: u64) -> u64 {
        match self.rng.below(4) {
            0 => self.rng.below(max / 4096 + 1) * 4096,
            1 => self.size().min(max).saturating_sub(self.rng.below(5000)),
            _ => self.rng.below(max + 1),
        }
    }
    fn way(&mut self, writing: bool) -> Way {
        let way = match self.rng.below(10) {
            0 => Way::Direct,
            1 | 2 if !writing || self.size() > 0 => Way::Mapped,
            _ => Way::Cached,
        };
        if self.target.knows(way) {
            way
        } else {
            Way::Cached
        }
    }

    fn step(&mut self) {
        if self.rng.below(self.run.sync_every) == 0 {
            let data_only = self.rng.chance(50);
            self.history.note(format!("sync {data_only}"));
            let got = self.target.sync(data_only);
            return self.expect("sync", got);
        }
        if self.run.refresh_every > 0 && self.rng.below(self.run.refresh_every) == 0 {
            self.history.note("remount".into());
            self.target.refresh(true);
            return self.check_all();
        }
        match self.rng.below(100) {
            0..30 => self.read(),
            30..62 => self.write(),
            62..68 => self.append(),
            68..76 => self.truncate(),
            76..80 => self.space(Space::Allocate { keep_size: false }),
            80..82 => self.space(Space::Allocate { keep_size: true }),
            82..86 => self.space(Space::Punch),
            86..88 => self.space(Space::Zero { keep_size: false }),
            88..90 => self.space(Space::Zero { keep_size: true }),
            90..94 => self.copy(),
            94..98 => self.seek(),
            98 => {
                self.history.note("refresh".into());
                self.target.refresh(false);
            }
            _ => {
                let size = self.target.size();
                let size = self.expect("size", size);
                if size != self.size() {
                    self.fail(format!("size {size}, expected {}", self.size()));
                }
            }
        }
    }

    fn compare(&self, at: u64, got: &[u8]) {
        let want = &self.model[at.min(self.size()) as usize..];
        let want = &want[..want.len().min(got.len())];
        if got.len() > want.len() {
            self.fail(format!(
                "read at {at} returned {} bytes past the end",
                got.len() - want.len()
            ));
        }
        if let Some(i) = (0..got.len()).find(|i| got[*i] != want[*i]) {
            let n = (i..got.len()).take_while(|j| got[*j] != want[*j]).count();
            let (g, w) = (
                &got[i..got.len().min(i + 16)],
                &want[i..want.len().min(i + 16)],
            );
            self.fail(format!(
                "byte {} differs ({n} in a row): got {g:x?}, expected {w:x?}",
                at + i as u64
            ));
        }
    }

    fn read(&mut self) {
        let at = self.offset(self.size() + 5000);
        let len = 1 + self.rng.size(200_000) as usize;
        let way = self.way(false);
        let (at, len) = if way == Way::Direct {
            (at & !4095, (len + 4095) & !4095)
        } else {
            (at, len)
        };
        // A mapping must not reach past the end.
        let len = if way == Way::Mapped {
            len.min(self.size().saturating_sub(at) as usize)
        } else {
            len
        };
        if len == 0 {
            return;
        }
        self.history.note(format!("read {way:?} {at}+{len}"));
        let got = self.target.read(way, at, len);
        let got = self.expect("read", got);
        let want = (self.size().saturating_sub(at)).min(len as u64);
        if got.len() as u64 != want {
            self.fail(format!(
                "read of {len} at {at} gave {} bytes, expected {want}",
                got.len()
            ));
        }
        self.compare(at, &got);
    }

    fn write(&mut self) {
        let way = self.way(true);
        let max = self.run.size_max;
        let (mut at, mut len) = (self.offset(max - 1), 1 + self.rng.size(130_000));
        match way {
            Way::Direct => (at, len) = (at & !4095, (len + 4095) & !4095),
            Way::Mapped => {
                at = at.min(self.size() - 1);
                len = len.min(self.size() - at);
            }
            Way::Cached => len = len.min(max - at),
        }
        if at + len > max {
            return;
        }
        let bytes = self.rng.bytes(len as usize);
        self.history.note(format!("write {way:?} {at}+{len}"));
        let got = self.target.write(way, at, &bytes);
        self.expect("write", got);
        self.put(at, &bytes);
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let end = at as usize + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at as usize..end].copy_from_slice(bytes);
    }

    fn append(&mut self) {
        let len = 1 + self.rng.size(20_000);
        if self.size() + len > self.run.size_max {
            return;
        }
        let bytes = self.rng.bytes(len as usize);
        self.history
            .note(format!("append {len} at {}", self.size()));
        let got = self.target.append(&bytes);
        self.expect("append", got);
        self.put(self.size(), &bytes);
    }

    fn truncate(&mut self) {
        let len = match self.rng.below(8) {
            0 => 0,
            1 => self.run.size_max,
            _ => self.offset(self.run.size_max),
        };
        self.history
            .note(format!("truncate {} -> {len}", self.size()));
        let got = self.target.truncate(len);
        self.expect("truncate", got);
        self.model.resize(len as usize, 0);
    }

    fn space(&mut self, how: Space) {
        let at = self.offset(self.run.size_max - 1);
        let len = 1 + self.rng.size(300_000).min(self.run.size_max - at - 1);
        self.history
            .note(format!("{how:?} {at}+{len}, size {}", self.size()));
        let got = self.target.space(how, at, len);
        self.expect("fallocate", got);
        let end = at + len;
        if matches!(
            how,
            Space::Allocate { keep_size: false } | Space::Zero { keep_size: false }
        ) && end > self.size()
        {
            self.model.resize(end as usize, 0);
        }
        if !matches!(how, Space::Allocate { .. }) {
            let (from, to) = (at.min(self.size()), end.min(self.size()));
            self.model[from as usize..to as usize].fill(0);
        }
    }

    fn copy(&mut self) {
        let (from, to) = (self.offset(self.size()), self.offset(self.run.size_max - 1));
        let len = (1 + self.rng.size(200_000)).min(self.run.size_max - to);
        if from < to + len && to < from + len {
            return;
        }
        self.history
            .note(format!("copy {from}+{len} to {to}, size {}", self.size()));
        let got = self.target.copy(from, to, len);
        let done = self.expect("copy", got);
        let there = self.size().saturating_sub(from).min(len);
        if done > there || (done == 0 && there > 0) {
            self.fail(format!("copied {done} of {there}"));
        }
        let bytes = self.model[from.min(self.size()) as usize..][..done as usize].to_vec();
        if done > 0 {
            self.put(to, &bytes);
        }
    }

    /// Holes must read as zeros; where they are is the file system's business.
    fn seek(&mut self) {
        let at = self.offset(self.size() + 100);
        let data = self.rng.chance(50);
        self.history.note(format!("seek data {data} {at}"));
        let got = self.target.seek(at, data);
        let size = self.size();
        let zeros = |from: u64, to: u64| {
            self.model[from as usize..to as usize]
                .iter()
                .all(|b| *b == 0)
        };
        match got {
            Err(libc::ENXIO) if at >= size => {}
            Err(libc::ENXIO) if data && zeros(at, size) => {}
            Ok(found) if data && found >= at && found < size && zeros(at, found) => {}
            Ok(found) if !data && at < size && found >= at && found <= size => {
                // A hole lasts at least to the end of its kibibyte (the smallest block) or of the file.
                let end = ((found | 1023) + 1).min(size);
                if !zeros(found, end) {
                    self.fail(format!("a hole at {found} with data in it"));
                }
            }
            other => self.fail(format!("seek(data: {data}) at {at} of {size}: {other:?}")),
        }
    }

    fn check_all(&mut self) {
        let size = self.target.size();
        let size = self.expect("size", size);
        if size != self.size() {
            self.fail(format!("size {size}, expected {}", self.size()));
        }
        let mut at = 0;
        while at < size {
            let got = self.target.read(Way::Cached, at, 1 << 20);
            let got = self.expect("read", got);
            if got.is_empty() {
                self.fail(format!("the file ends at {at} of {size}"));
            }
            self.compare(at, &got);
            at += got.len() as u64;
        }
    }
}
