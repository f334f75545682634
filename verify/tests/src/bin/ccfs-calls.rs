//! The Rust crate's calls, step by step: one line of stdin is a step, one number on stdout its errno, 0 for success.
//!
//! crates/libccfs/tests/driver.c and python/tests/driver.py do the same with theirs; verify/tests/tests/calls.rs has the steps.
use ccfs_client as client;
use ccfs_tests::sys::{self, Map};
use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of every mapping.
const MAPPED: usize = 8192;

#[derive(Default)]
struct Driver {
    files: HashMap<String, OwnedFd>,
    maps: HashMap<String, Map>,
    /// Whose slots have got others: open until the end.
    kept: Vec<OwnedFd>,
    /// Streams and groups, by the name that the steps give them.
    ids: HashMap<String, u64>,
    /// Where the calls of streams and groups are made.
    place: String,
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn done<T>(result: sys::R<T>) -> io::Result<T> {
    result.map_err(error)
}

impl Driver {
    fn fd(&self, slot: &str) -> BorrowedFd<'_> {
        match slot {
            "closed" | "negative" => sys::not_open(),
            _ => self.files[slot].as_fd(),
        }
    }

    fn put(&mut self, slot: &str, file: OwnedFd) {
        self.kept.extend(self.files.insert(slot.into(), file));
    }

    fn at(&self) -> BorrowedFd<'_> {
        self.fd(&self.place)
    }

    /// "default" and "own" are what the calls have a number for.
    fn id(&self, name: &str) -> u64 {
        match name {
            "default" => client::STREAM_DEFAULT,
            "own" => 0,
            "unknown" => 7,
            _ => self.ids[name],
        }
    }

    fn step(&mut self, words: &[&str]) -> io::Result<()> {
        match *words {
            ["cd", path] => std::env::set_current_dir(path),
            ["at", slot] => {
                self.place = slot.to_string();
                Ok(())
            }
            ["open", slot, path, how] => {
                let flags = match how {
                    "new" => libc::O_RDWR | libc::O_CREAT,
                    "path" => libc::O_PATH,
                    _ => libc::O_RDONLY,
                };
                let file = done(sys::open(path, flags, 0o644))?;
                self.put(slot, file);
                Ok(())
            }
            ["pipe", slot] => {
                self.put(slot, done(sys::pipe())?);
                Ok(())
            }
            ["dup", slot, to] => {
                let copy = self.files[slot].try_clone()?;
                self.put(to, copy);
                Ok(())
            }
            ["close", slot] => {
                self.maps.remove(slot);
                self.files.remove(slot);
                Ok(())
            }
            ["size", slot, bytes] => {
                let bytes = bytes.parse().expect("a number");
                done(sys::ftruncate(&self.files[slot], bytes))
            }
            ["map", slot] => {
                let map = done(Map::new(&self.files[slot], 0, MAPPED, true))?;
                self.maps.insert(slot.into(), map);
                Ok(())
            }
            ["store", slot, at, text] => {
                let at = at.parse().expect("a number");
                self.maps[slot].store(at, text.as_bytes());
                Ok(())
            }
            ["write", slot, at, text] => {
                let at = at.parse().expect("a number");
                done(sys::pwrite(&self.files[slot], text.as_bytes(), at)).map(drop)
            }
            ["reads", slot, text] => {
                let mut bytes = vec![0; text.len()];
                done(sys::pread(&self.files[slot], &mut bytes, 0))?;
                match bytes == text.as_bytes() {
                    true => Ok(()),
                    false => Err(error(libc::EIO)),
                }
            }
            ["rename", from, to] => std::fs::rename(from, to),
            ["fsync", slot] => done(sys::fsync(&self.files[slot])),
            ["open_atomic", slot, path] => {
                let file = client::open_atomic(path, true)?;
                self.put(slot, file.into());
                Ok(())
            }
            ["make_atomic", slot] => client::make_atomic(self.fd(slot)),
            ["syncv", ref slots @ ..] => {
                let files: Vec<_> = slots.iter().map(|slot| self.fd(slot)).collect();
                client::syncv(&files)
            }
            ["fbarrier", slot] => client::fbarrier(self.fd(slot)),
            ["fdatabarrier", slot] => client::fdatabarrier(self.fd(slot)),
            ["newstream", name, flags] => {
                let flags = match flags {
                    "ignore" => client::STREAM_IGNORE_FSYNC,
                    _ => 0,
                };
                let id = client::new_stream(self.at(), flags)?;
                self.ids.insert(name.into(), id);
                Ok(())
            }
            ["setstream", name] => client::set_stream(self.at(), self.id(name), None),
            ["leave"] => client::set_stream(self.at(), client::STREAM_POLICY, None),
            ["instream", name] => match client::get_stream(self.at())?.id == self.id(name) {
                true => Ok(()),
                false => Err(error(libc::EIO)),
            },
            ["sync_volume"] => client::sync_volume(self.at()),
            ["streamsync", name] => client::stream_sync(self.at(), self.id(name)),
            ["begin", name] => {
                let handle = client::group_begin(self.at(), None)?;
                self.ids.insert(name.into(), handle);
                Ok(())
            }
            ["commit", name] => client::group_commit(self.at(), self.id(name), false),
            ["commit_ordered", name] => client::group_commit(self.at(), self.id(name), true),
            ["abort", name] => client::group_abort(self.at(), self.id(name)),
            ["enter", name] => client::group_enter(self.at(), self.id(name)),
            _ => panic!("not a step: {words:?}"),
        }
    }
}

fn errno(e: &io::Error) -> i32 {
    match e.kind() {
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => e.raw_os_error().unwrap_or(-1),
    }
}

fn main() -> io::Result<()> {
    let mut driver = Driver::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let number = driver.step(&words).map_or_else(|e| errno(&e), |()| 0);
        writeln!(io::stdout(), "{number}")?;
    }
    Ok(())
}
