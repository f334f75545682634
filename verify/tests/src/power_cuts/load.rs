//! Programs that work on O_ATOMIC files, as processes of their own, and the model of what they leave.
use crate::sys::Map;
use ccfs_client as client;
use ccfs_testkit::Rng;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files of one program.
pub const FILES: usize = 3;
/// Length of a mapped file; bytes. What is written grows to this at most.
const SIZE: usize = 96 << 10;
/// Exit code of a program that saw something wrong, and not only its daemon die.
pub const WRONG: i32 = 9;

/// How a program changes its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With write(2) and ftruncate(2), synced by fsync and fdatasync.
    Write,
    /// Through shared mappings, synced by msync.
    Map,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Write => "write",
            Way::Map => "map",
        }
    }
    pub fn of(name: &str) -> Option<Way> {
        [Way::Write, Way::Map]
            .into_iter()
            .find(|w| w.name() == name)
    }
}

/// A change of one file's content.
enum Change {
    Bytes { at: usize, bytes: Vec<u8> },
    Length(usize),
}

/// What ends a round.
enum End {
    /// fsync, fdatasync or msync of one file.
    Sync(usize),
    /// `syncv` of all.
    Together,
    /// The file is closed, which takes back what was not synced, and opened again.
    Reopen(usize),
}

/// Some changes and what becomes of them. The same seed and number give the same round, in the program and in the model.
pub struct Round {
    changes: Vec<(usize, Change)>,
    end: End,
    rng: Rng,
}

impl Round {
    pub fn new(seed: u64, number: u64, way: Way) -> Round {
        let mut rng = Rng::part(seed, number);
        let changes = (0..1 + rng.below(6)).map(|_| {
            let file = rng.below(FILES as u64) as usize;
            if way == Way::Write && rng.chance(15) {
                return (file, Change::Length(rng.below(SIZE as u64) as usize));
            }
            let len = 1 + rng.size(20_000) as usize;
            let at = rng.below((SIZE - len) as u64) as usize;
            (
                file,
                Change::Bytes {
                    at,
                    bytes: rng.bytes(len),
                },
            )
        });
        let changes = changes.collect();
        let file = rng.below(FILES as u64) as usize;
        let end = match rng.below(10) {
            0..=4 => End::Sync(file),
            5..=7 => End::Together,
            _ => End::Reopen(file),
        };
        Round { changes, end, rng }
    }
}

/// What the files hold, and what they hold on the disk.
#[derive(Clone)]
pub struct Model {
    now: Vec<Vec<u8>>,
    pub synced: Vec<Vec<u8>>,
}

impl Model {
    /// What the files hold while nobody has them open O_ATOMIC.
    pub fn read(dir: &Path) -> io::Result<Model> {
        let files: io::Result<Vec<_>> = (0..FILES).map(|n| std::fs::read(path(dir, n))).collect();
        let files = files?;
        Ok(Model {
            now: files.clone(),
            synced: files,
        })
    }
    pub fn apply(&mut self, round: &Round) {
        for (file, change) in &round.changes {
            let now = &mut self.now[*file];
            match change {
                Change::Length(len) => now.resize(*len, 0),
                Change::Bytes { at, bytes } => {
                    let end = at + bytes.len();
                    now.resize(now.len().max(end), 0);
                    now[*at..end].copy_from_slice(bytes);
                }
            }
        }
        match round.end {
            End::Sync(file) => self.synced[file] = self.now[file].clone(),
            End::Together => self.synced = self.now.clone(),
            End::Reopen(file) => self.now[file] = self.synced[file].clone(),
        }
    }
}

fn path(dir: &Path, file: usize) -> PathBuf {
    dir.join(format!("f{file}"))
}

/// Makes the files of a program.
pub fn prepare(dir: &Path, way: Way) -> io::Result<()> {
    std::fs::create_dir(dir)?;
    let len = if way == Way::Map { SIZE } else { 0 };
    (0..FILES).try_for_each(|n| std::fs::write(path(dir, n), vec![0; len]))
}

/// A file that is open O_ATOMIC.
struct Open {
    map: Option<Map>,
    file: File,
}

impl Open {
    /// A close that took something back may still be telling the kernel.
    fn new(path: &Path, way: Way) -> io::Result<Open> {
        let file = loop {
            match client::open_atomic(path, false) {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                other => break other?,
            }
        };
        let map = match way {
            Way::Write => None,
            Way::Map => {
                let fd = OwnedFd::from(file.try_clone()?);
                Some(Map::new(&fd, 0, SIZE, true).map_err(io::Error::from_raw_os_error)?)
            }
        };
        Ok(Open { map, file })
    }
    fn change(&self, change: &Change) -> io::Result<()> {
        match (change, &self.map) {
            (Change::Length(len), _) => self.file.set_len(*len as u64),
            (Change::Bytes { at, bytes }, None) => self.file.write_all_at(bytes, *at as u64),
            (Change::Bytes { at, bytes }, Some(map)) => {
                map.store(*at, bytes);
                Ok(())
            }
        }
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        match &self.map {
            Some(map) => map.sync().map_err(io::Error::from_raw_os_error),
            None if data_only => self.file.sync_data(),
            None => self.file.sync_all(),
        }
    }
}

/// The program: rounds without end. Says `begin N` before the last call of a round and `done N` after it. Returns when a call fails.
pub fn run(dir: &Path, seed: u64, way: Way) -> io::Result<()> {
    let mut model = Model::read(dir)?;
    let open = |n| Open::new(&path(dir, n), way);
    let mut files = (0..FILES).map(open).collect::<io::Result<Vec<Open>>>()?;
    for number in 1.. {
        let mut round = Round::new(seed, number, way);
        model.apply(&round);
        for (file, change) in &round.changes {
            files[*file].change(change)?;
        }
        say("begin", number)?;
        match round.end {
            End::Sync(file) => files[file].sync(round.rng.chance(50))?,
            End::Together => {
                let all: Vec<&File> = files.iter().map(|f| &f.file).collect();
                client::syncv(&all)?;
            }
            End::Reopen(file) => {
                drop(files.remove(file));
                files.insert(file, open(file)?);
                // Kernels from 6.18 on do not wait for the close, but who opens O_ATOMIC again does.
                let seen = std::fs::read(path(dir, file))?;
                let synced = &model.synced[file];
                if &seen != synced {
                    let same = seen.iter().zip(synced).take_while(|(a, b)| a == b).count();
                    eprintln!(
                        "C12: seed {seed}, round {number}: the close of f{file} left {} bytes, {same} of them are those of the last sync, which had {}",
                        seen.len(),
                        synced.len()
                    );
                    std::process::exit(WRONG);
                }
            }
        }
        say("done", number)?;
    }
    Ok(())
}

/// One line, one write: what was said before a crash is said.
fn say(word: &str, number: u64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(format!("{word} {number}\n").as_bytes())?;
    out.flush()
}
