//! Image files and block devices. Loop devices are used where the tests may make them (root), and skipped elsewhere.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ccfs_device::{
    AlignedBuf, Device, FileDevice, OpenError, OpenMode, SharedBuf, Slice, Write, write_all,
};
use ccfs_testkit::Rng;

const SIZE: u64 = 8 << 20;

/// A file of `size` bytes in `dir`.
fn image(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("image");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn pattern(len: usize, seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    Rng::new(seed).fill(&mut buf);
    buf
}

struct Random(u64);
impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Random batches and unaligned reads against a model, then the file's bytes themselves.
fn exercise(dev: &FileDevice, path: &Path, seed: u64) {
    let size = dev.size_bytes();
    let mut model = vec![0u8; size as usize];
    dev.read(0, &mut model).unwrap();
    let mut random = Random(seed);
    for round in 0..40 {
        let count = [1, 2, 7, 40][random.below(4) as usize];
        let stripe = size / count / 512 * 512;
        let mut writes = Vec::new();
        for index in 0..count {
            let sectors = 1 + random.below(stripe.min(64 << 10) / 512);
            let sector = random.below((stripe / 512 - sectors).max(1));
            let offset = index * stripe + sector * 512;
            let buf = SharedBuf::from(pattern((sectors * 512) as usize, round * 1000 + index));
            model[offset as usize..][..buf.len()].copy_from_slice(&buf);
            // In two parts, of which the first may be empty.
            let cut = (random.below(sectors) * 512) as usize;
            let parts = vec![
                Slice {
                    buf: buf.clone(),
                    start: 0,
                    len: cut,
                },
                Slice {
                    buf: buf.clone(),
                    start: cut,
                    len: buf.len() - cut,
                },
            ];
            writes.push(Write { offset, parts });
        }
        let ticket = dev.submit(writes);
        if random.below(4) == 0 {
            drop(ticket);
        } else {
            dev.wait(ticket).unwrap();
        }
        let offset = random.below(size - 10_000);
        let mut buf = vec![0; 1 + random.below(9_999) as usize];
        dev.read(offset, &mut buf).unwrap();
        assert!(
            buf == model[offset as usize..][..buf.len()],
            "seed {seed}, round {round}"
        );
    }
    dev.flush().unwrap();
    let mut all = vec![1; size as usize];
    dev.read(0, &mut all).unwrap();
    assert!(all == model);
    assert!(std::fs::read(path).unwrap()[..size as usize] == model);
}

#[test]
fn image_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE + 300);
    let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    assert_eq!(dev.size_bytes(), SIZE);
    exercise(&dev, &path, 1);
    assert_eq!(dev.counters().flushes, 1);
    assert!(dev.counters().writes >= 40);
    // What lies past the last sector is not ours.
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE + 300);
}

#[test]
fn tmpfs() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let path = image(dir.path(), SIZE);
    let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    exercise(&dev, &path, 2);
    dev.discard(4096, 100_000).unwrap();
}

/// More parts than one call takes, more writes than a ring holds.
#[test]
fn large_batches() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    // Every second sector of the buffer, so that the parts cannot be joined.
    let buf = SharedBuf::from(pattern(3000 * 1024, 5));
    let part = |index: usize| Slice {
        buf: buf.clone(),
        start: index * 1024,
        len: 512,
    };
    let parts = |range: std::ops::Range<usize>| range.map(part).collect::<Vec<_>>();
    let check = |offset: u64| {
        let mut got = vec![0; 3000 * 512];
        dev.read(offset, &mut got).unwrap();
        assert!(
            got.chunks(512)
                .zip(buf.chunks(1024))
                .all(|(got, want)| got == &want[..512])
        );
    };
    write_all(
        &dev,
        vec![Write {
            offset: 512,
            parts: parts(0..3000),
        }],
    )
    .unwrap();
    check(512);
    let two = vec![
        Write {
            offset: 4 << 20,
            parts: parts(0..2000),
        },
        Write {
            offset: (4 << 20) + 2000 * 512,
            parts: parts(2000..3000),
        },
    ];
    write_all(&dev, two).unwrap();
    check(4 << 20);
    let many = (0..3000).map(|index| Write {
        offset: 1024 + index as u64 * 512,
        parts: vec![part(index)],
    });
    write_all(&dev, many.collect()).unwrap();
    check(1024);
}

#[test]
fn parallel_batches() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let dev = &dev;
            scope.spawn(move || {
                for round in 0..8u64 {
                    let write = |index: u64| {
                        let block = round * 256 + index * 4 + thread;
                        Write::new(block * 4096, pattern(4096, block))
                    };
                    let first = dev.submit((0..32).map(write).collect());
                    let second = dev.submit((32..64).map(write).collect());
                    // Waited for in another order and by another thread.
                    std::thread::scope(|inner| inner.spawn(|| dev.wait(second)).join().unwrap())
                        .unwrap();
                    dev.wait(first).unwrap();
                    dev.flush().unwrap();
                }
            });
        }
    });
    let mut block = [0; 4096];
    for number in 0..SIZE / 4096 {
        dev.read(number * 4096, &mut block).unwrap();
        assert!(block == pattern(4096, number)[..], "block {number}");
    }
}

/// The thread that submits may end before the batch does.
#[test]
fn submitter_ends_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    for round in 0..10u64 {
        let write = |index: u64| Write::new(index * 65536, pattern(65536, round * 128 + index));
        let submit = || dev.submit((0..128).map(write).collect());
        let ticket = std::thread::scope(|scope| scope.spawn(submit).join().unwrap());
        dev.wait(ticket).unwrap();
        let mut block = vec![0; 65536];
        for index in 0..128 {
            dev.read(index * 65536, &mut block).unwrap();
            assert!(block == pattern(65536, round * 128 + index)[..]);
        }
    }
}

#[test]
fn locks_exclude() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let busy = |mode| match FileDevice::open(&path, mode) {
        Err(error @ OpenError::Busy { .. }) => error.to_string().contains("another ccfs"),
        _ => false,
    };
    let writer = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    assert!(busy(OpenMode::ReadWrite));
    assert!(busy(OpenMode::ReadOnly));
    drop(writer);
    let reader = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    let other = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert!(busy(OpenMode::ReadWrite));
    drop((reader, other));
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
}

#[test]
fn read_only_refuses_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let dev = FileDevice::open(&path, OpenMode::ReadOnly).unwrap();
    assert!(dev.read_only());
    let error = write_all(&dev, vec![Write::new(0, pattern(512, 1))]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(dev.discard(0, 4096).is_err());
    dev.flush().unwrap();
}

#[test]
fn what_is_no_volume_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = |path: &Path| {
        FileDevice::open(path, OpenMode::ReadWrite)
            .err()
            .unwrap()
            .to_string()
    };
    assert!(text(dir.path()).contains("is a directory"));
    assert!(text(Path::new("/dev/null")).contains("is a character device"));
    assert!(text(&dir.path().join("absent")).contains("cannot open"));
    assert!(text(&image(dir.path(), 100)).contains("has 100 bytes"));
    let fifo = dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    assert!(text(&fifo).contains("is a pipe"));
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(text(&socket).contains("is a socket"));
}

#[test]
fn writes_outside_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let dev = FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
    let outside = vec![
        Write::new(0, pattern(512, 1)),
        Write::new(SIZE - 512, pattern(1024, 1)),
    ];
    assert!(write_all(&dev, outside).is_err());
    assert!(dev.read(SIZE - 1, &mut [0; 2]).is_err());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
    assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
}

/// A loop device over an image; detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(image: &Path, sector: u32) -> Option<Loop> {
        Loop::with(&["--sector-size", &sector.to_string()], image)
    }

    fn with(arguments: &[&str], image: &Path) -> Option<Loop> {
        let out = Command::new("losetup")
            .args(["--find", "--show"])
            .args(arguments)
            .arg(image)
            .output()
            .ok()?;
        let name = String::from_utf8(out.stdout).ok()?;
        (out.status.success() && !name.trim().is_empty()).then(|| Loop(name.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn block_devices_with_both_sector_sizes() {
    for sector in [512, 4096] {
        let dir = tempfile::tempdir().unwrap();
        let path = image(dir.path(), SIZE);
        let Some(node) = Loop::new(&path, sector) else {
            let _ = writeln!(std::io::stderr(), "skipped: no loop devices here");
            return;
        };
        let dev = FileDevice::open(&node.0, OpenMode::ReadWrite).unwrap();
        assert!(dev.is_block_device() && dev.direct());
        assert_eq!(dev.size_bytes(), SIZE);
        assert_eq!(dev.min_io(), u64::from(sector));
        exercise(&dev, &path, u64::from(sector));
        dev.discard(1 << 20, 1 << 20).unwrap();
        // Neighbouring parts of one unit, written at once.
        std::thread::scope(|scope| {
            for part in 0..8u64 {
                let dev = &dev;
                let write =
                    move || write_all(dev, vec![Write::new(8192 + part * 512, pattern(512, part))]);
                scope.spawn(move || (0..20).for_each(|_| write().unwrap()));
            }
        });
        let mut unit = [0; 4096];
        dev.read(8192, &mut unit).unwrap();
        assert!(
            unit.chunks(512)
                .enumerate()
                .all(|(part, got)| got == &pattern(512, part as u64)[..])
        );
    }
}

/// An exclusive open is what a mount does.
fn claim(node: &Loop) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), 0o200); // O_EXCL
    options.open(&node.0).unwrap()
}

/// An image file can be attached any number of times, and whoever opens it by one of its names must see who has it by another one.
#[test]
fn a_file_and_its_loop_devices_are_one_volume() {
    let dir = tempfile::tempdir().unwrap();
    // A name that is no UTF-8.
    let path = dir
        .path()
        .join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"im\xffage"));
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let (Some(one), Some(two)) = (Loop::with(&[], &path), Loop::with(&[], &path)) else {
        let _ = writeln!(std::io::stderr(), "skipped: no loop devices here");
        return;
    };
    let refusal = |target: &Path, mode| match FileDevice::open(target, mode) {
        Err(error @ OpenError::Busy { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{} was opened a second time", target.display()),
    };
    use OpenMode::{ReadOnly, ReadWrite};
    let writer = FileDevice::open(&path, ReadWrite).unwrap();
    assert!(refusal(&one.0, ReadWrite).contains("another ccfs"));
    refusal(&two.0, ReadOnly);
    drop(writer);
    let writer = FileDevice::open(&one.0, ReadWrite).unwrap();
    refusal(&two.0, ReadWrite);
    refusal(&path, ReadOnly);
    drop(writer);
    let readers = [&path, &one.0, &two.0].map(|target| FileDevice::open(target, ReadOnly).unwrap());
    refusal(&two.0, ReadWrite);
    drop(readers);
    let claimed = claim(&one);
    for target in [&path, &two.0] {
        assert!(refusal(target, ReadWrite).contains("the kernel uses it"));
    }
    drop(claimed);
    FileDevice::open(&two.0, ReadWrite).unwrap();
}

/// Parts of a file that have nothing in common, as partitions, are volumes of their own.
#[test]
fn parts_of_a_file_are_volumes_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let half = (SIZE / 2).to_string();
    let (Some(first), Some(second)) = (
        Loop::with(&["--sizelimit", &half], &path),
        Loop::with(&["--offset", &half], &path),
    ) else {
        let _ = writeln!(std::io::stderr(), "skipped: no loop devices here");
        return;
    };
    let claimed = claim(&first);
    let other = FileDevice::open(&second.0, OpenMode::ReadWrite).unwrap();
    drop(claimed);
    let both = FileDevice::open(&first.0, OpenMode::ReadWrite).unwrap();
    assert_eq!(both.size_bytes(), SIZE / 2);
    drop(both);
    let whole = FileDevice::open(&path, OpenMode::ReadOnly);
    assert!(matches!(whole, Err(OpenError::Busy { .. })));
    drop(other);
    FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
}

#[test]
fn what_the_kernel_has_claimed_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), SIZE);
    let Some(node) = Loop::new(&path, 512) else {
        return;
    };
    // Not claimed: both ways of opening work.
    drop(FileDevice::open(&path, OpenMode::ReadWrite).unwrap());
    let claim = claim(&node);
    for target in [&path, &node.0] {
        let error = FileDevice::open(target, OpenMode::ReadWrite)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("kernel uses it"), "{error}");
        FileDevice::open(target, OpenMode::ReadOnly).unwrap();
    }
    drop(claim);
    FileDevice::open(&node.0, OpenMode::ReadWrite).unwrap();
}
