//! A volume that gets larger: what e2fsck and resize2fs say of it, with which features, by which steps, and under load.
mod common;
use ccfs_device::{Device, FileDevice, OpenMode};
use ccfs_engine::*;
use common::{cx, quiet};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// No test waits for so long unless it fails.
const NEVER: Duration = Duration::from_secs(120);

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }
    fn made(&self, name: &str, args: &str, bytes: u64) -> PathBuf {
        let path = self.0.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let mut words: Vec<&str> = vec!["-q", "-F"];
        words.extend(args.split_whitespace());
        run("mke2fs", &words, &path);
        path
    }
}

fn run(program: &str, args: &[&str], path: &Path) -> String {
    let out = Command::new(program)
        .args(args)
        .arg(path)
        .output()
        .expect(program);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}{error}");
    text
}

fn open(path: &Path) -> Arc<Volume> {
    let dev = Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap());
    Volume::mount(dev, quiet()).unwrap()
}

/// Lines "name: number" of dumpe2fs that a size decides.
fn numbers(path: &Path) -> BTreeMap<String, String> {
    const WANTED: &[&str] = &[
        "Inode count",
        "Block count",
        "Reserved block count",
        "Overhead clusters",
        "Free blocks",
        "Free inodes",
        "Reserved GDT blocks",
        "First meta block group",
        "Group descriptor size",
    ];
    let text = run("dumpe2fs", &["-h"], path);
    let pair = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let wanted = WANTED.contains(&name);
        wanted.then(|| (name.to_string(), value.trim().to_string()))
    };
    text.lines().filter_map(pair).collect()
}

fn fill(v: &Volume, name: &str, bytes: u64) {
    let f = v
        .mknod(&cx(1), ROOT_INO, name.as_bytes(), 0o100644, 0)
        .unwrap();
    let piece = vec![name.as_bytes()[0]; 256 << 10];
    let (mut at, mut synced) = (0, 0);
    while at < bytes {
        let n = v.write(&cx(1), f.ino, at, &piece, WriteFlags::default());
        at += n.unwrap_or_else(|e| panic!("{name} at {at}: {e}")) as u64;
        if at / (4 * MIB) > synced {
            v.fsync(&cx(1), f.ino, true).unwrap();
            synced = at / (4 * MIB);
        }
    }
}

fn check_filled(v: &Volume, name: &str, bytes: u64) {
    let ino = v.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes {
        out.clear();
        v.read(ino, at, 256 << 10, &mut out).unwrap();
        let whole = !out.is_empty() && out.iter().all(|b| *b == name.as_bytes()[0]);
        assert!(
            whole,
            "{name} at {at}: {} bytes, {:?}",
            out.len(),
            out.first()
        );
        at += out.len() as u64;
    }
}

/// Where ccfs and resize2fs put the metadata of new groups does not matter; how many there are of everything does.
fn alike(ours: &Path, theirs: &Path, what: &str) {
    let (ours, theirs) = (numbers(ours), numbers(theirs));
    for (name, value) in &theirs {
        let mine = &ours[name];
        // The part kept for root is rounded in every step.
        if name == "Reserved block count" {
            let (a, b): (u64, u64) = (mine.parse().unwrap(), value.parse().unwrap());
            assert!(
                a.abs_diff(b) <= 16,
                "{what}: {name}: {mine}, resize2fs: {value}"
            );
            continue;
        }
        // There are files in ours; resize2fs does not touch the overhead that mke2fs noted.
        if name.starts_with("Free") || name == "Overhead clusters" {
            continue;
        }
        assert_eq!(mine, value, "{what}: {name}");
    }
}

const KINDS: &[&str] = &[
    "-t ext4 -b 4096",
    "-t ext4 -b 1024",
    "-t ext4 -b 1024 -O ^64bit",
    "-t ext4 -b 4096 -O ^flex_bg",
    "-t ext4 -b 1024 -O meta_bg,^resize_inode",
    "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
    "-t ext4 -b 2048 -O ^metadata_csum,^uninit_bg",
    "-t ext3 -b 1024",
    "-t ext3 -b 4096 -I 128",
    "-t ext4 -b 1024 -O ^sparse_super,^resize_inode",
    "-t ext4 -b 1024 -O sparse_super2,^resize_inode",
    "-t ext4 -b 4096 -g 2048 -G 8",
];

/// Sizes in KiB, from the first to the last.
const WAYS: &[&[u64]] = &[
    &[20_000, 24_000],
    &[20_000, 200_000],
    &[20_001, 65_533, 65_537, 131_073, 262_144, 262_145],
];

#[test]
fn grown_volumes_are_as_resize2fs_makes_them() {
    let (mut done, mut refused) = (0, 0);
    for kind in KINDS {
        for way in WAYS {
            let what = format!("{kind} {way:?}");
            let dir = Dir::new();
            let path = dir.made("ours", kind, way[0] << 10);
            let theirs = dir.made("theirs", kind, way[0] << 10);
            let v = open(&path);
            fill(&v, "a", MIB);
            let mut last = v.size_bytes();
            for (i, kib) in way[1..].iter().enumerate() {
                match v.grow(kib << 10) {
                    Ok(bytes) => {
                        assert!(bytes >= last && bytes <= kib << 10, "{what}");
                        last = bytes;
                    }
                    Err(Error::Refused(text)) if text.contains("group descriptors") => {
                        refused += 1;
                        break;
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
                fill(&v, &format!("{i}"), MIB);
            }
            v.unmount().unwrap();
            drop(v);
            run("e2fsck", &["-fn"], &path);
            let blocks = last >> 10;
            let out = Command::new("resize2fs")
                .args([theirs.as_os_str(), format!("{blocks}K").as_ref()])
                .output();
            assert!(out.expect("resize2fs").status.success(), "{what}");
            if !kind.contains("sparse_super2") && last > way[0] << 10 {
                alike(&path, &theirs, &what);
            }
            // All of it can be used, and what was there is there.
            let v = open(&path);
            check_filled(&v, "a", MIB);
            let s = v.statfs().unwrap();
            fill(&v, "z", (s.bavail * u64::from(s.block_size)) * 9 / 10);
            check_filled(&v, "a", MIB);
            v.unmount().unwrap();
            drop(v);
            run("e2fsck", &["-fn"], &path);
            done += 1;
        }
    }
    assert!(refused < done / 2, "{refused} of {done} were refused");
    println!("{done} volumes, {refused} of them had no room for descriptors");
}

/// From 8 MiB to 20 GiB: blocks of descriptors are taken, in several steps.
#[test]
fn large_volumes() {
    for (kind, from, to) in [
        ("-t ext4 -b 1024", 8, 2 << 10),
        ("-t ext4 -b 4096", 64, 20 << 10),
        ("-t ext4 -b 4096 -O meta_bg,^resize_inode", 64, 20 << 10),
        ("-t ext3 -b 4096", 64, 20 << 10),
    ] {
        let dir = Dir::new();
        let path = dir.made("ours", kind, from * MIB);
        let v = open(&path);
        fill(&v, "a", MIB);
        assert_eq!(v.grow(to * MIB).unwrap(), to * MIB, "{kind}");
        fill(&v, "b", 32 * MIB);
        v.unmount().unwrap();
        drop(v);
        run("e2fsck", &["-fn"], &path);
        rescue(&path, kind);
        let theirs = dir.made("theirs", kind, from * MIB);
        run_resize(&theirs, to);
        alike(&path, &theirs, kind);
        let v = open(&path);
        check_filled(&v, "a", MIB);
        check_filled(&v, "b", 32 * MIB);
        v.unmount().unwrap();
        drop(v);
    }
}

/// The backups know the new size: e2fsck makes the volume whole from one, and it is as large as before.
fn rescue(path: &Path, kind: &str) {
    let copy = path.with_extension("copy");
    run("cp", &["--sparse=always", path.to_str().unwrap()], &copy);
    let first = if kind.contains("1024") {
        "8193"
    } else {
        "32768"
    };
    let size = if kind.contains("1024") {
        "1024"
    } else {
        "4096"
    };
    let out = Command::new("e2fsck")
        .args(["-fy", "-b", first, "-B", size])
        .arg(&copy)
        .output();
    let text = String::from_utf8_lossy(&out.expect("e2fsck").stdout).into_owned();
    run("e2fsck", &["-fn"], &copy);
    assert!(!text.contains("esize inode"), "{text}");
    let (ours, theirs) = (numbers(path), numbers(&copy));
    for name in [
        "Block count",
        "Inode count",
        "Free inodes",
        "Reserved GDT blocks",
    ] {
        assert_eq!(ours.get(name), theirs.get(name), "{kind}: {name}");
    }
    std::fs::remove_file(copy).unwrap();
}

fn run_resize(path: &Path, mib: u64) {
    let size = format!("{mib}M");
    let out = Command::new("resize2fs")
        .args([path.as_os_str(), size.as_ref()])
        .output();
    assert!(out.expect("resize2fs").status.success());
}

#[test]
fn what_is_refused() {
    let dir = Dir::new();
    let path = dir.made("v", "-t ext4 -b 4096 -O ^resize_inode", 32 * MIB);
    let v = open(&path);
    let refused = |bytes| match v.grow(bytes) {
        Err(Error::Refused(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(refused(16 * MIB).contains("unmount it first"));
    // One block of descriptors: 64 groups of 128 MiB.
    assert!(refused(9 << 30).contains("8589934592 bytes"));
    assert!(refused(u64::MAX).contains("8589934592 bytes"));
    assert_eq!(v.grow(32 * MIB).unwrap(), 32 * MIB);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 32 * MIB);
    v.unmount().unwrap();
    drop(v);
    let dev = Arc::new(FileDevice::open(&path, OpenMode::ReadOnly).unwrap());
    let read_only = Options {
        read_only: true,
        ..quiet()
    };
    let v = Volume::mount(dev, read_only).unwrap();
    assert!(matches!(v.grow(64 * MIB), Err(Error::Errno(libc::EROFS))));
    v.unmount().unwrap();
    drop(v);
    run("e2fsck", &["-fn"], &path);
}

/// A device that somebody made larger, and one that is too small.
#[test]
fn devices_of_a_fixed_size() {
    let dev = common::image(&["-b", "1024"], "32M");
    if common::flash::chosen() {
        return println!("skipped: flash keeps its size");
    }
    let dev: Arc<dyn Device> = Arc::new(dev);
    let v = Volume::mount(dev, quiet()).unwrap();
    let error = v.grow(64 * MIB).unwrap_err().to_string();
    assert!(error.contains("33554432 bytes"), "{error}");
    v.unmount().unwrap();
}

/// Four threads write, sync, read and remove while the volume grows eight times.
#[test]
fn under_load() {
    let dir = Dir::new();
    for kind in ["-t ext4 -b 1024", "-t ext4 -b 4096 -g 4096"] {
        let path = dir.made("v", kind, 40_000 << 10);
        let dev = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite).unwrap());
        let v = Volume::mount(dev, Options::default()).unwrap();
        let (over, files) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for stream in 1..5u64 {
                let (v, over, files) = (&v, &over, &files);
                scope.spawn(move || work(v, stream, over, files));
            }
            for n in 1..9u64 {
                let bytes = (40_000 + n * 37_001) << 10;
                let grown = v.grow(bytes).unwrap();
                assert!(grown + 9 * MIB > bytes);
                let (before, begun) = (files.load(Relaxed), Instant::now());
                std::thread::sleep(Duration::from_millis(60));
                while files.load(Relaxed) < before + 15 && begun.elapsed() < NEVER {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            over.store(true, Relaxed);
        });
        let files = files.into_inner();
        assert_eq!(v.status().damage.met, 0, "{:?}", v.status().damage);
        v.unmount().unwrap();
        drop(v);
        run("e2fsck", &["-fn"], &path);
        println!("{kind}: {files} files");
        assert!(files > 100);
    }
}

fn work(v: &Volume, stream: u64, over: &AtomicBool, files: &AtomicU64) {
    let cx = cx(stream);
    let dir = v
        .mkdir(&cx, ROOT_INO, format!("d{stream}").as_bytes(), 0o755)
        .unwrap()
        .ino;
    let data = vec![stream as u8; 96 << 10];
    let mut made = 0u64;
    while !over.load(Relaxed) {
        let name = format!("f{made}");
        let f = v.mknod(&cx, dir, name.as_bytes(), 0o100644, 0).unwrap();
        v.write(&cx, f.ino, 0, &data, WriteFlags::default())
            .unwrap();
        if made.is_multiple_of(5) {
            v.fsync(&cx, f.ino, false).unwrap();
        }
        if made >= 20 {
            let old = format!("f{}", made - 20);
            let ino = v.lookup(dir, old.as_bytes()).unwrap().ino;
            let mut out = Vec::new();
            v.read(ino, 0, 96 << 10, &mut out).unwrap();
            assert!(out == data, "{old} of stream {stream}");
            v.unlink(&cx, dir, old.as_bytes()).unwrap();
        }
        made += 1;
        files.fetch_add(1, Relaxed);
    }
}
