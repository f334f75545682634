//! Readers of structure beside the one who changes it.

mod image_common;

use ccfs_device::{Counters, Device, MemoryDevice, Ticket, Write};
use ccfs_image::{Image, OpenOptions};
use image_common::{attr, home, mkfs};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const READER: &str = "reader";

/// A reader's read ends late: when `go` has been called after it.
struct Late {
    dev: Arc<MemoryDevice>,
    read: AtomicU64,
    go: AtomicU64,
}

impl Late {
    fn until(counter: &AtomicU64, least: u64) {
        let start = Instant::now();
        while counter.load(SeqCst) < least {
            assert!(start.elapsed() < Duration::from_secs(120), "nobody came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Device for Late {
    fn size_bytes(&self) -> u64 {
        self.dev.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read(offset, buf)?;
        if std::thread::current().name() == Some(READER) {
            let number = self.read.fetch_add(1, SeqCst) + 1;
            Late::until(&self.go, number);
        }
        Ok(())
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

/// A bitmap that is read from the device while it is changed and written together with its descriptor: the reader's bytes do not match
/// the descriptor any more, and that is no damage.
#[test]
fn a_bitmap_that_changes_while_it_is_read() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("volume");
    mkfs(&path, 40, &["-b", "1024"]);
    let dev = Arc::new(MemoryDevice::from_file(&path).unwrap());
    // The group has a bitmap on the device; one without is made up.
    let first = image_common::open(&dev).unwrap();
    let ino = 2 * first.geometry().inodes_per_group + 5;
    first.create_inode(ino - 1, &attr(0o100_644)).unwrap();
    home(&first, &dev);
    let late = Arc::new(Late {
        dev: dev.clone(),
        read: AtomicU64::new(0),
        go: AtomicU64::new(0),
    });
    let options = OpenOptions {
        cache_bytes: 1 << 20,
        ..OpenOptions::default()
    };
    let image = Image::open(late.clone() as Arc<dyn Device>, options).unwrap();
    assert!(
        !image
            .inode_in_use(4 * first.geometry().inodes_per_group)
            .unwrap()
    );
    std::thread::scope(|s| {
        let reader = std::thread::Builder::new().name(READER.into());
        let reader = reader.spawn_scoped(s, || image.inode_in_use(ino)).unwrap();
        Late::until(&late.read, 1);
        image.create_inode(ino, &attr(0o100_644)).unwrap();
        home(&image, &dev);
        late.go.store(u64::MAX, SeqCst);
        assert!(reader.join().unwrap().unwrap(), "the inode is in use now");
    });
}
