//! Inodes without a name that nobody has opened yet are not for whoever frees what a group has left without one.
use super::Volume;
use crate::base::types::*;
use crate::core::options::Options;
use ccfs_disks::MemoryDevice;
use std::process::Command;
use std::sync::Arc;

fn volume() -> Arc<Volume> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(&path)
        .arg("16M")
        .output()
        .expect("mke2fs");
    assert!(made.status.success(), "{made:?}");
    let device = Arc::new(MemoryDevice::from_file(&path).unwrap());
    let options = Options {
        background: false,
        ..Options::default()
    };
    Volume::mount(device, options).unwrap()
}

/// A file that a group made is gone when the group is taken back, and its number is the next new file's: before the abort has come to its end, if
/// that is another thread's.
#[test]
fn a_number_that_is_used_again_is_another_inode() {
    let v = volume();
    let home = StreamId(20);
    let group = v.group_begin(home, 0, None).unwrap();
    let txn = v.streams().group(group).unwrap();
    let made = v
        .mknod(&Context::root(group), ROOT_INO, b"made", 0o100644, 0)
        .unwrap();
    let touched = v.touched(&txn);
    assert!(touched.iter().any(|inode| inode.ino == made.ino));
    v.group_abort(group).unwrap();
    let tries = 0..10_000;
    let mut new = tries.map(|_| v.tmpfile(&Context::root(home), ROOT_INO, 0o600).unwrap());
    let again = new.find(|new| new.ino == made.ino).expect("the number");
    v.free_nameless(&touched);
    assert_eq!(v.getattr(again.ino).unwrap().nlink, 0);
    // What the group has really left without a name does go: nobody has it.
    let inode = v.inodes().peek(again.ino).unwrap();
    v.free_nameless(&[inode]);
    assert!(v.getattr(again.ino).is_err());
    v.unmount().unwrap();
}
