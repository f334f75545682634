//! Stores through a mapping that an atomic group has no room for.
mod common;
use ccfs_engine::*;
use common::groups::{OTHER, begin, errno, file, read};
use common::{cx, fsck, image, mount_on};
use std::sync::Arc;

/// The kernel tells an error of write-back to whoever syncs the volume next. So pages of a mapping that a group has no room for are dropped,
/// and its owner is told: with each further change, and at the commit.
#[test]
fn stores_that_a_group_has_no_room_for_are_its_owners_business() {
    let dev = Arc::new(image(&[], "256M"));
    let options = Options {
        background: false,
        dirty_limit: 64 << 20,
        ..Options::default()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    v.tune(None, Some(8 << 20));
    let c = cx(OTHER);
    let old = file(&v, &c, "old", &[1; 8192]);
    let write_back = WriteFlags {
        writeback: true,
        ..WriteFlags::default()
    };
    // As the front end does it.
    let stored = |ino, offset, bytes: &[u8]| {
        if let Err(e) = v.write(&c, ino, offset, bytes, write_back) {
            assert_eq!(v.refused_page(ino, &e), Refusal::Dropped, "{e}");
        }
    };
    for by_commit in [true, false] {
        let (id, g) = begin(&v);
        let new = file(&v, &g, "new", b"");
        v.remember(new.ino, 1);
        v.write(&g, old.ino, 0, &[2; 100], WriteFlags::default())
            .unwrap();
        for i in 0..16 {
            stored(new.ino, i << 20, &[3; 1 << 20]);
        }
        stored(old.ino, 4096, &[3; 4096]);
        assert_eq!(
            errno(v.write(&g, old.ino, 0, b"more", WriteFlags::default())),
            libc::EDQUOT
        );
        v.syncfs(&c).unwrap();
        match by_commit {
            true => assert_eq!(errno(v.group_commit(id, true)), libc::EDQUOT),
            false => v.group_abort(id).unwrap(),
        }
        assert!(!v.group_is_open(id));
        assert_eq!(errno(v.group_commit(id, true)), libc::ECANCELED);
        assert_eq!(read(&v, old.ino), vec![1; 8192], "all of it is gone");
        assert_eq!(errno(v.lookup(ROOT_INO, b"new")), libc::ENOENT);
        // The kernel knows the file that never was, and may have pages of it.
        stored(new.ino, 0, &[3; 4096]);
        v.forget(new.ino, 1);
        stored(new.ino, 0, &[3; 4096]);
    }
    v.unmount().unwrap();
    fsck(&dev);
}
