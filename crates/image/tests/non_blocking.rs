//! Calls that must not wait for the device.

mod image_common;

use ccfs_device::Device;
use ccfs_ext4::Error;
use ccfs_ext4::inode::FLAG_EXTENTS;
use ccfs_image::{InodeAttr, Wait};
use image_common::{Volume, attr, open};

fn would_block<T: std::fmt::Debug>(result: ccfs_ext4::Result<T>) {
    assert!(matches!(result, Err(Error::WouldBlock)), "{result:?}");
}

#[test]
fn what_is_not_in_memory_is_an_error() {
    let v = Volume::make(40, &["-b", "1024", "-I", "256"]);
    v.image.create_inode(20, &attr(0o100_600)).unwrap();
    v.home();
    let image = open(&v.dev).unwrap();
    let quick = image.non_blocking();
    assert_eq!((image.wait(), quick.wait()), (Wait::Allowed, Wait::Never));
    let reads = v.dev.counters().reads;
    would_block(quick.read_attr(20));
    would_block(quick.dir_lookup(2, b"lost+found"));
    would_block(quick.alloc().allocate_inode(2, false));
    assert_eq!(v.dev.counters().reads, reads);
    // What one handle has read is there for the other one.
    let there = image.read_attr(20).unwrap();
    assert_eq!(quick.read_attr(20).unwrap(), there);
    let found = image.dir_lookup(2, b"lost+found").unwrap();
    assert_eq!(quick.dir_lookup(2, b"lost+found").unwrap(), found);
    let ino = image.alloc().allocate_inode(2, false).unwrap();
    let next = quick.alloc().allocate_inode(2, false).unwrap();
    assert_ne!(ino, next);
    let reads = v.dev.counters().reads;
    quick.read_attr(20).unwrap();
    assert_eq!(v.dev.counters().reads, reads);
}

/// An inode that is in memory is verified with descriptors that are not: that is no damage.
#[test]
fn what_cannot_be_verified_now_is_not_damaged() {
    // Groups of 1 MiB; a block has the descriptors of 16 or 32.
    let shape = ["-b", "1024", "-g", "1024", "-N", "8192"];
    for (extra, flags) in [("extents", FLAG_EXTENTS), ("^extents,^64bit", 0)] {
        let features = format!("^flex_bg,^has_journal,{extra}");
        let args = [&shape[..], &["-O", &features]].concat();
        let v = Volume::make(40, &args);
        let far = 36 * 1024 + 500;
        for ino in [20, 21] {
            let attr = InodeAttr {
                flags,
                ..attr(0o100_600)
            };
            v.image.create_inode(ino, &attr).unwrap();
        }
        let run = v.image.alloc().allocate(far, 1, 21).unwrap();
        assert!(run.pblk >= 32 * 1024, "{run:?}");
        v.image.set(21, 0, 1, run.pblk, false).unwrap();
        v.home();
        let image = open(&v.dev).unwrap();
        image.read_attr(20).unwrap();
        would_block(image.non_blocking().read_attr(21));
        assert_eq!(image.damages().count(), 0);
        image.read_attr(21).unwrap();
        image.non_blocking().read_attr(21).unwrap();
    }
}
