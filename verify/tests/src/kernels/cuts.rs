//! Power cuts after sync calls. The guest makes each call on a disk whose writes and flushes qemu logs, and then marks the moment by a
//! write to another part of that disk. From the log the host's side makes what a power cut at the mark leaves: all that was
//! written before the last flush, and of what came after it nothing, or a part.

use super::Outcome;
use crate::harness::{
    Fs, Volume, WorkDir, ccfs_program, kernel_mount, run, run_ok, umount_patiently,
};
use crate::sync_calls::{self, CONTENT, Promise};
use crate::sys::{self, Direct};
use ccfs_testkit::Rng;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Parts of the disk, bytes: (from, length). `run.sh` makes the disk.
const VOLUME: (u64, u64) = (1 << 20, 40 << 20);
const MARKS: (u64, u64) = (48 << 20, 1 << 20);
/// An ext4 of the kernel's, which holds an image.
const HOST: (u64, u64) = (56 << 20, 72 << 20);
pub const DISK_BYTES: u64 = 128 << 20;

/// The check's name.
pub const CHECK: &str = "power";

/// The volume's name on that ext4.
const IMAGE: &str = "image";
const SECTOR: u64 = 512;
const MARK_BYTES: usize = 4096;

/// Where the volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Medium {
    /// A block device.
    Device,
    /// An image file.
    Image,
}

/// What a power cut at this moment must leave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Mark {
    medium: Medium,
    call: String,
    file: String,
    promise: Promise,
}

/// In the guest: makes all calls, on a block device and in an image, and marks each.
pub fn in_guest() -> Outcome {
    let Ok(disk) = std::env::var("GUEST_CUT_DISK") else {
        return Outcome::Skipped("GUEST_CUT_DISK names no disk".into());
    };
    for (n, (from, length)) in [VOLUME, MARKS, HOST].into_iter().enumerate() {
        let words = [n as u64 + 1, from / SECTOR, length / SECTOR].map(|n| n.to_string());
        run_ok("addpart", &[&disk, &words[0], &words[1], &words[2]]);
    }
    let part = |n: u32| format!("{disk}{n}");
    let marks = sys::open(part(2), libc::O_WRONLY | libc::O_DIRECT, 0).expect("the part for marks");
    let mut count = 0;
    let mut calls = |mut v: Volume, medium: Medium| {
        v.mkfs(32);
        v.mount();
        sync_calls::each(&mut v, |call, file, promise| {
            let mark = Mark {
                medium,
                call: call.into(),
                file: file.into(),
                promise,
            };
            write_mark(&marks, count, &mark);
            count += 1;
        });
        v.finish();
    };
    let over = |path: &Path| Volume::over(Fs::Ccfs, "cut", path).options("commit=3600");
    calls(over(Path::new(&part(1))), Medium::Device);
    let place = WorkDir::new("cut-host");
    run_ok("mke2fs", &["-q", "-t", "ext4", &part(3)]);
    kernel_mount(Path::new(&part(3)), place.path(), "rw").expect("mount the image's ext4");
    calls(over(&place.path().join(IMAGE)), Medium::Image);
    umount_patiently(place.path());
    Outcome::Ok
}

fn write_mark(marks: &OwnedFd, number: u64, mark: &Mark) {
    let text = serde_json::to_vec(mark).expect("a mark");
    let mut buf = Direct::new(MARK_BYTES);
    buf.bytes().fill(b' ');
    buf.bytes()[..text.len()].copy_from_slice(&text);
    // No flush: it would be the call's.
    let at = number * MARK_BYTES as u64;
    let wrote = sys::pwrite(marks, buf.bytes(), at).expect("mark the moment");
    assert_eq!(wrote, MARK_BYTES);
}

/// One request of the disk's log (its format: log-writes.rst of the kernel's device-mapper documents).
#[derive(Debug)]
struct Entry<'a> {
    /// Bytes.
    at: u64,
    length: u64,
    flags: u64,
    /// Empty: zeros, or nothing.
    data: &'a [u8],
}

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MAGIC: u64 = 0x6a_7366_7773_6872;

fn word(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    field.map_or(0, u64::from_le_bytes)
}

/// All requests, in their order.
fn entries(log: &[u8]) -> Result<Vec<Entry<'_>>, String> {
    let unit = log
        .get(24..28)
        .map_or(0, |b| word(&[b, &[0; 4]].concat(), 0));
    if word(log, 0) != MAGIC || !(512..=65536).contains(&unit) {
        return Err("the disk's log has no head".into());
    }
    let mut found = Vec::new();
    let mut at = unit as usize;
    while at + unit as usize <= log.len() {
        let [sector, sectors, flags] = [0, 8, 16].map(|field| word(log, at + field));
        at += unit as usize;
        if (sectors, flags) == (0, 0) {
            break;
        }
        let length = sectors * unit;
        let stored = if flags & DISCARD == 0 {
            length as usize
        } else {
            0
        };
        let data = log
            .get(at..at + stored)
            .ok_or("the disk's log is cut off")?;
        at += stored;
        found.push(Entry {
            at: sector * unit,
            length,
            flags,
            data,
        });
    }
    Ok(found)
}

/// The disk at one moment: what is durable, and what was written since the last flush.
struct Disk<'a> {
    durable: Vec<u8>,
    pending: Vec<Entry<'a>>,
}

fn put(disk: &mut [u8], entry: &Entry<'_>, sectors: impl Fn(u64) -> bool) {
    for from in (0..entry.length).step_by(SECTOR as usize) {
        let to = (entry.at + from) as usize;
        let Some(place) = disk.get_mut(to..to + SECTOR as usize) else {
            continue;
        };
        if sectors(from / SECTOR) {
            match entry.data.get(from as usize..(from + SECTOR) as usize) {
                Some(bytes) => place.copy_from_slice(bytes),
                None => place.fill(0),
            }
        }
    }
}

impl<'a> Disk<'a> {
    fn take(&mut self, entry: Entry<'a>) {
        if entry.flags & FLUSH != 0 {
            for earlier in std::mem::take(&mut self.pending) {
                put(&mut self.durable, &earlier, |_| true);
            }
        }
        match entry.flags & FUA {
            0 => self.pending.push(entry),
            _ => put(&mut self.durable, &entry, |_| true),
        }
    }
    /// After a power cut: nothing of what no flush has covered, or each of its sectors with an even chance.
    fn after_a_cut(&self, part: Option<&mut Rng>) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        if let Some(rng) = part {
            for entry in &self.pending {
                let kept: Vec<bool> = (0..entry.length / SECTOR).map(|_| rng.chance(50)).collect();
                put(&mut bytes, entry, |n| kept[n as usize]);
            }
        }
        bytes
    }
}

/// On the host: what a cut of the power at each mark leaves is what the call promised. How many states were looked at.
pub fn examine(log: &Path, seed: u64) -> Result<u64, String> {
    let log = fs::read(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut rng = Rng::new(seed);
    let mut disk = Disk {
        durable: vec![0; DISK_BYTES as usize],
        pending: Vec::new(),
    };
    let (mut states, mut media) = (0, [0, 0]);
    for entry in entries(&log)? {
        let mark = (MARKS.0..MARKS.0 + MARKS.1).contains(&entry.at) && !entry.data.is_empty();
        let mark: Option<Mark> = match mark {
            true => Some(serde_json::from_slice(entry.data).map_err(|e| format!("a mark: {e}"))?),
            false => None,
        };
        if let Some(mark) = mark {
            media[mark.medium as usize] += 1;
            for part in [false, true] {
                let left = disk.after_a_cut(part.then_some(&mut rng));
                look(&left, &mark).map_err(|e| {
                    let kept = if part { "a part" } else { "nothing" };
                    let (call, medium) = (&mark.call, mark.medium);
                    format!("{call} ({medium:?}), {kept} of what was not flushed is kept: {e}")
                })?;
                states += 1;
            }
        }
        disk.take(entry);
    }
    if media[0] < 10 || media[0] != media[1] {
        return Err(format!("marks of devices and images: {media:?}"));
    }
    Ok(states)
}

/// Recovers the volume, and looks for the file.
fn look(disk: &[u8], mark: &Mark) -> Result<(), String> {
    let place = WorkDir::new("cut");
    let part = |(from, length): (u64, u64)| &disk[from as usize..(from + length) as usize];
    let image = place.path().join(IMAGE);
    match mark.medium {
        Medium::Device => store(&image, part(VOLUME)),
        Medium::Image => image_of(part(HOST), &place, &image)?,
    }
    let text = image.to_str().expect("plain path");
    let recovered = run(Command::new(ccfs_program()).args(["fsck", "-p", text]));
    if recovered.code > 1 {
        return Err(format!("ccfs fsck -p: {}", recovered.all()));
    }
    let checked = run(Command::new("e2fsck").args(["-fn", text]));
    if checked.code != 0 {
        return Err(format!("e2fsck -fn: {}", checked.all()));
    }
    let path = format!("{text}:/{}", mark.file);
    let found = run(Command::new(ccfs_program()).args(["cat", &path]));
    let (there, whole) = (found.code == 0, found.stdout.as_bytes() == CONTENT);
    let right = match mark.promise {
        Promise::Nothing => !there,
        Promise::Name => there,
        Promise::Content => there && whole,
    };
    match right {
        true => Ok(()),
        false => Err(format!(
            "{:?} is promised; there: {there}, as written: {whole}",
            mark.promise
        )),
    }
}

/// Stores bytes with holes for zeros.
fn store(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    const CHUNK: usize = 64 << 10;
    let file = fs::File::create(path).expect("create");
    file.set_len(bytes.len() as u64).expect("set the length");
    for (n, chunk) in bytes.chunks(CHUNK).enumerate() {
        if chunk.iter().any(|b| *b != 0) {
            file.write_all_at(chunk, (n * CHUNK) as u64).expect("write");
        }
    }
}

/// Takes the image out of the ext4 that holds it, which recovers, too.
fn image_of(part: &[u8], place: &WorkDir, image: &Path) -> Result<(), String> {
    let (host, dir): (PathBuf, PathBuf) = (place.path().join("host"), place.path().join("dir"));
    store(&host, part);
    fs::create_dir(&dir).expect("a mount point");
    kernel_mount(&host, &dir, "loop")?;
    let copied = run(Command::new("cp")
        .arg("--sparse=always")
        .arg(dir.join(IMAGE))
        .arg(image));
    umount_patiently(&dir);
    match copied.code {
        0 => Ok(()),
        _ => Err(copied.all()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[(u64, u64, &[u8])]) -> Vec<u8> {
        let mut log = vec![0; 512];
        log[..8].copy_from_slice(&MAGIC.to_le_bytes());
        log[24..28].copy_from_slice(&512_u32.to_le_bytes());
        for (sector, flags, data) in entries {
            let mut head = vec![0; 512];
            let words = [*sector, data.len() as u64 / 512, *flags];
            for (n, word) in words.iter().enumerate() {
                head[n * 8..n * 8 + 8].copy_from_slice(&word.to_le_bytes());
            }
            log.extend(head);
            log.extend(*data);
        }
        // What qemu has not written yet.
        log.extend([0; 1024]);
        log
    }

    /// The first byte of each of four sectors after all requests.
    fn left(log: &[u8], part: Option<&mut Rng>) -> [u8; 4] {
        let mut disk = Disk {
            durable: vec![0; 4 * 512],
            pending: Vec::new(),
        };
        entries(log).unwrap().into_iter().for_each(|e| disk.take(e));
        let bytes = disk.after_a_cut(part);
        [0, 1, 2, 3].map(|n| bytes[n * 512])
    }

    #[test]
    fn a_cut_takes_what_no_flush_has_covered() {
        let two = [[1_u8; 512], [2; 512]].concat();
        let requests: [(u64, u64, &[u8]); 5] = [
            (0, 0, &two),
            (2, 0, &[3; 512]),
            (0, FLUSH, &[]),
            (3, FUA, &[4; 512]),
            (1, 0, &[9; 512]),
        ];
        assert_eq!(left(&log(&requests), None), [1, 2, 3, 4]);
        assert_eq!(left(&log(&requests[..2]), None), [0; 4]);
        assert!(entries(&[0; 4096]).is_err());
        let mut seen = [false; 2];
        for seed in 0..50 {
            let [a, b, c, d] = left(&log(&requests), Some(&mut Rng::new(seed)));
            assert_eq!((a, c, d), (1, 3, 4));
            seen[usize::from(b == 9)] = true;
        }
        assert_eq!(seen, [true; 2], "each is possible");
    }

    #[test]
    fn what_is_promised_is_looked_for() {
        let place = WorkDir::new("promised");
        let image = place.path().join(IMAGE);
        let text = image.to_str().unwrap();
        let file = place.path().join("f7");
        fs::write(&file, CONTENT).unwrap();
        for put in [true, false] {
            let _ = fs::remove_file(&image);
            run_ok(ccfs_program(), &["mkfs", "-s", "16M", text]);
            if put {
                run_ok(ccfs_program(), &["put", file.to_str().unwrap(), text]);
            }
            let mut disk = vec![0; DISK_BYTES as usize];
            let bytes = fs::read(&image).unwrap();
            disk[VOLUME.0 as usize..][..bytes.len()].copy_from_slice(&bytes);
            for promise in [Promise::Content, Promise::Nothing] {
                let mark = Mark {
                    medium: Medium::Device,
                    call: "fsync".into(),
                    file: "f7".into(),
                    promise,
                };
                let right = look(&disk, &mark).is_ok();
                assert_eq!(right, put == (promise == Promise::Content), "{mark:?}");
            }
        }
    }
}
