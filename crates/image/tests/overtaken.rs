//! Readers of structure beside the one who changes it.

mod image_common;

use ccfs_device::{Counters, Device, Ticket, Write};
use ccfs_disks::MemoryDevice;
use ccfs_image::{Image, OpenOptions};
use image_common::{attr, home, mkfs};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const READER: &str = "reader";

/// A reader's read ends late: when `go` has been called after it. And the byte at `bad` cannot be read. What was read with other things was
/// damaged on the way, if `garbles`.
struct Slow {
    garbles: AtomicBool,
    dev: Arc<MemoryDevice>,
    read: AtomicU64,
    go: AtomicU64,
    bad: AtomicU64,
}

impl Slow {
    fn new(dev: &Arc<MemoryDevice>) -> Arc<Slow> {
        Arc::new(Slow {
            garbles: AtomicBool::new(false),
            dev: dev.clone(),
            read: AtomicU64::new(0),
            go: AtomicU64::new(0),
            bad: AtomicU64::new(u64::MAX),
        })
    }

    fn until(counter: &AtomicU64, least: u64) {
        let start = Instant::now();
        while counter.load(SeqCst) < least {
            assert!(start.elapsed() < Duration::from_secs(120), "nobody came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.dev.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if (offset..offset + buf.len() as u64).contains(&self.bad.load(SeqCst)) {
            return Err(io::Error::other("planned"));
        }
        self.dev.read(offset, buf)?;
        if std::thread::current().name() == Some(READER) {
            let number = self.read.fetch_add(1, SeqCst) + 1;
            Slow::until(&self.go, number);
        }
        Ok(())
    }
    fn read_if_ahead(&self, _: u64, buf: &mut [u8]) -> bool {
        buf.fill(0x5a);
        self.garbles.load(SeqCst)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.dev.submit(writes)
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.dev.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        self.dev.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dev.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.dev.counters()
    }
    fn read_only(&self) -> bool {
        self.dev.read_only()
    }
}

/// A volume of 40 MiB.
fn made(args: &[&str]) -> Arc<MemoryDevice> {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("volume");
    mkfs(&path, 40, args);
    Arc::new(MemoryDevice::from_file(&path).unwrap())
}

/// A bitmap that is read from the device while it is changed and written together with its descriptor: the reader's bytes do not match
/// the descriptor any more, and that is no damage.
#[test]
fn a_bitmap_that_changes_while_it_is_read() {
    let dev = made(&["-b", "1024"]);
    // The group has a bitmap on the device; one without is made up.
    let first = image_common::open(&dev).unwrap();
    let ino = 2 * first.geometry().inodes_per_group + 5;
    first.create_inode(ino - 1, &attr(0o100_644)).unwrap();
    home(&first, &dev);
    let slow = Slow::new(&dev);
    let options = OpenOptions {
        cache_bytes: 1 << 20,
        ..OpenOptions::default()
    };
    let image = Image::open(slow.clone() as Arc<dyn Device>, options).unwrap();
    assert!(
        !image
            .inode_in_use(4 * first.geometry().inodes_per_group)
            .unwrap()
    );
    std::thread::scope(|s| {
        let reader = std::thread::Builder::new().name(READER.into());
        let reader = reader.spawn_scoped(s, || image.inode_in_use(ino)).unwrap();
        Slow::until(&slow.read, 1);
        image.create_inode(ino, &attr(0o100_644)).unwrap();
        home(&image, &dev);
        slow.go.store(u64::MAX, SeqCst);
        assert!(reader.join().unwrap().unwrap(), "the inode is in use now");
    });
}

/// An inode's neighbours in the table come with it. One that is changed and written meanwhile stays as it was changed.
#[test]
fn a_neighbour_that_changes_while_it_is_read_along() {
    let dev = made(&["-b", "1024", "-I", "256"]);
    let first = image_common::open(&dev).unwrap();
    // Behind the reserved ones: 4 inodes in a block.
    let (asked, neighbour) = (40, 60);
    for ino in [asked, neighbour] {
        first.create_inode(ino, &attr(0o100_600)).unwrap();
    }
    home(&first, &dev);
    let slow = Slow::new(&dev);
    let image = Image::open(slow.clone() as Arc<dyn Device>, OpenOptions::default()).unwrap();
    std::thread::scope(|s| {
        let reader = std::thread::Builder::new().name(READER.into());
        let reader = reader.spawn_scoped(s, || image.read_attr(asked)).unwrap();
        Slow::until(&slow.read, 1);
        let mut changed = image.read_attr(neighbour).unwrap();
        changed.mode = 0o100_644;
        image.write_attr(neighbour, &changed).unwrap();
        home(&image, &dev);
        slow.go.store(u64::MAX, SeqCst);
        assert_eq!(reader.join().unwrap().unwrap().mode, 0o100_600);
    });
    assert_eq!(image.read_attr(neighbour).unwrap().mode, 0o100_644);
    assert_eq!(image.read_attr(asked).unwrap().mode, 0o100_600);
}

/// One read brings the inodes of 32 KiB; where a part of that cannot be read the others still can.
#[test]
fn inodes_come_by_the_run() {
    let dev = made(&["-b", "1024", "-I", "256"]);
    let first = image_common::open(&dev).unwrap();
    let inodes = 20..120;
    for ino in inodes.clone() {
        first.create_inode(ino, &attr(0o100_600)).unwrap();
    }
    home(&first, &dev);
    let table = home_of(&dev, 117);
    let slow = Slow::new(&dev);
    let image = Image::open(slow.clone() as Arc<dyn Device>, OpenOptions::default()).unwrap();
    let before = dev.counters().reads;
    for ino in inodes.clone() {
        image.read_attr(ino).unwrap();
    }
    let reads = dev.counters().reads - before;
    // Besides, the bitmap.
    assert!(reads <= 3, "{reads} reads for 25 blocks");
    slow.bad.store(table, SeqCst);
    let image = Image::open(slow as Arc<dyn Device>, OpenOptions::default()).unwrap();
    for ino in inodes {
        // The block of 117 to 120.
        assert_eq!(image.read_attr(ino).is_ok(), ino < 117, "inode {ino}");
    }
}

/// Where the block with an inode of the first group is, bytes.
fn home_of(dev: &MemoryDevice, ino: u64) -> u64 {
    let mut descriptor = [0; 4];
    // Blocks of 1 KiB: the descriptors are in block 2, and the table is the third number there.
    dev.read(2048 + 8, &mut descriptor).unwrap();
    let table = u64::from(u32::from_le_bytes(descriptor));
    (table + (ino - 1) / 4) * 1024
}

/// A block of a directory whose checksum is wrong is read once more by itself before it counts as damaged.
#[test]
fn what_was_damaged_on_the_way_is_read_by_itself() {
    let dev = made(&["-b", "1024", "-O", "metadata_csum"]);
    let slow = Slow::new(&dev);
    slow.garbles.store(true, SeqCst);
    let open = || Image::open(slow.clone() as Arc<dyn Device>, OpenOptions::default()).unwrap();
    let found = open().dir_lookup(2, b"lost+found").unwrap();
    assert_eq!(found.map(|(ino, _)| ino), Some(11));
    // Damage on the device stays what it is.
    let image = open();
    let root = image.lookup(2, 0).unwrap().pblk.unwrap();
    dev.fill(root * 1024 + 500, 4, 0x77).unwrap();
    let error = image.dir_lookup(2, b"lost+found").unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
}
