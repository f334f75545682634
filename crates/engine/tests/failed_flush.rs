//! A flush fails and drops what it could not write, as operating systems do, and the daemon starts again without a power cut: all of that can
//! still be read, and no later flush will write it. Whatever the next mount shows and syncs must be there after a power cut all the same.
mod common;
use ccfs_disks::{MemoryDevice, Outcome, Plan, SimDevice};
use ccfs_engine::*;
use common::flash::{is_about_the_log, on_flash};
use common::{cx, fsck, image, mount_on, quiet, recover};
use std::sync::Arc;

/// What is lost.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// The content of files that were empty.
    New,
    /// What comes behind old content.
    Append,
    /// A few bytes here and there of old content, which go through the log.
    Patch,
}

/// How the second mount makes durable what it shows.
#[derive(Clone, Copy, Debug)]
enum Sync {
    Files,
    Volume,
    Unmount,
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i * seed + seed) as u8).collect()
}

fn put(v: &Volume, ino: Ino, at: usize, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let (at, rest) = ((at + done) as u64, &bytes[done..]);
        done += v
            .write(&cx(1), ino, at, rest, WriteFlags::default())
            .unwrap();
    }
}

fn get(v: &Volume, ino: Ino) -> Vec<u8> {
    let size = v.getattr(ino).unwrap().size;
    let mut out = Vec::new();
    while (out.len() as u64) < size {
        let mut part = Vec::new();
        v.read(ino, out.len() as u64, 1 << 20, &mut part).unwrap();
        assert!(!part.is_empty(), "a read before the end of file is empty");
        out.append(&mut part);
    }
    out
}

/// What there is before the flush that fails, and then its change.
fn old(change: Change, seed: usize, len: usize) -> Vec<u8> {
    match change {
        Change::New => Vec::new(),
        Change::Append => bytes(seed + 1, 5000),
        Change::Patch => bytes(seed + 1, len),
    }
}

fn make(v: &Volume, change: Change, ino: Ino, seed: usize, len: usize) {
    match change {
        Change::New => put(v, ino, 0, &bytes(seed, len)),
        Change::Append => put(v, ino, 5000, &bytes(seed, len)),
        Change::Patch => (0..len)
            .step_by(20_000)
            .for_each(|at| put(v, ino, at, &bytes(seed, 60.min(len - at)))),
    }
}

/// True: the second mount showed the change of some file. An error: what it showed and synced was not there later.
fn case(
    base: &MemoryDevice,
    change: Change,
    sync: Sync,
    sizes: &[usize],
) -> std::result::Result<bool, String> {
    let (count, first) = (sizes.len(), sizes[0]);
    let what = format!("{change:?}, {sync:?}, {count} files, the first of {first} bytes");
    let sim = Arc::new(SimDevice::new(base));
    let v = mount_on(sim.clone(), quiet()).unwrap();
    let mut files = Vec::new();
    for (i, len) in sizes.iter().enumerate() {
        let name = format!("f{i}");
        let ino = v
            .mknod(&cx(1), ROOT_INO, name.as_bytes(), 0o100644, 0)
            .unwrap()
            .ino;
        put(&v, ino, 0, &old(change, i, *len));
        files.push(ino);
    }
    v.syncfs(&cx(1)).unwrap();
    for (i, ino) in files.iter().enumerate() {
        make(&v, change, *ino, i, sizes[i]);
    }
    sim.set_plan(Plan {
        fail_flushes: vec![0],
        ..Plan::default()
    });
    let lost = v.fsync(&cx(1), files[0], false);
    assert_eq!(lost.unwrap_err().errno(), libc::EIO, "{what}");
    v.shutdown();
    sim.set_plan(Plan::default());

    let w = mount_on(sim.clone(), quiet()).unwrap();
    let shown: Vec<Vec<u8>> = files.iter().map(|ino| get(&w, *ino)).collect();
    match sync {
        Sync::Files => {
            for ino in &files {
                w.fsync(&cx(1), *ino, false).unwrap();
            }
        }
        Sync::Volume => w.syncfs(&cx(1)).unwrap(),
        Sync::Unmount => w.unmount().unwrap(),
    }
    let end = sim.events();
    w.shutdown();

    let medium = Arc::new(sim.crash_image(end, &Outcome::None));
    let wrong = |text: String| Err(format!("{what}: {text}"));
    if let Err(e) = recover(medium.clone()) {
        return wrong(format!("recovery: {e}"));
    }
    fsck(&medium);
    let w = mount_on(medium, quiet()).unwrap();
    let mut changed = false;
    for (i, (ino, shown)) in files.iter().zip(&shown).enumerate() {
        let now = get(&w, *ino);
        if now != *shown {
            let same = now.iter().zip(shown).take_while(|(a, b)| a == b).count();
            let (shown, now) = (shown.len(), now.len());
            return wrong(format!(
                "f{i} was synced with {shown} bytes and has {now}, the same up to byte {same}"
            ));
        }
        changed |= *shown != old(change, i, sizes[i]);
    }
    Ok(changed)
}

/// All kinds of changes and syncs on one volume.
fn judge(base: &MemoryDevice) {
    const KIB: usize = 1 << 10;
    let sizes: [&[usize]; 7] = [
        &[4 * KIB],
        &[16 * KIB],
        &[100_000],
        &[1024 * KIB],
        &[8192 * KIB],
        &[16 * KIB, 5, 300 * KIB, 4 * KIB, 2048 * KIB],
        &[700; 40],
    ];
    let (mut shown, mut wrong) = (0, Vec::new());
    for change in [Change::New, Change::Append, Change::Patch] {
        for sync in [Sync::Files, Sync::Volume, Sync::Unmount] {
            for sizes in sizes {
                match case(base, change, sync, sizes) {
                    Ok(changed) => shown += u32::from(changed),
                    Err(e) => wrong.push(e),
                }
            }
        }
    }
    println!("{shown} mounts showed what an fsync could not promise");
    let count = wrong.len();
    assert!(count == 0, "{count} wrong:\n{}", wrong.join("\n"));
}

#[test]
fn what_a_mount_after_a_failed_flush_shows_and_syncs_is_there_for_good() {
    let test = "what_a_mount_after_a_failed_flush_shows_and_syncs_is_there_for_good";
    if is_about_the_log(test, "a test of its own is about flash") {
        return;
    }
    judge(&image(&["-b", "4096"], "64M"));
}

#[test]
fn what_a_mount_after_a_failed_flush_shows_and_syncs_is_there_for_good_with_small_blocks() {
    let test =
        "what_a_mount_after_a_failed_flush_shows_and_syncs_is_there_for_good_with_small_blocks";
    if is_about_the_log(test, "a test of its own is about flash") {
        return;
    }
    judge(&image(&["-b", "1024", "-J", "size=4"], "64M"));
}

/// The same of the flash, which keeps its own map of what it has written.
#[test]
fn what_a_mount_after_a_failed_flush_shows_and_syncs_is_there_for_good_on_flash() {
    judge(&on_flash(&image(&["-b", "4096"], "64M")));
}
