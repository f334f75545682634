//! Stores through a mapping that an atomic group has no room for.
mod common;
use ccfs_engine::*;
use common::{cx, fsck, image, mount_on};
use std::sync::Arc;

const HOME: u64 = 100;
const OTHER: u64 = 200;

fn begin(v: &Volume) -> (StreamId, Context) {
    let id = v.group_begin(StreamId(HOME), 0, None).unwrap();
    let cx = Context {
        stream: id,
        ..cx(1)
    };
    (id, cx)
}

fn file(v: &Volume, c: &Context, name: &str, bytes: &[u8]) -> Attr {
    let f = v.mknod(c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
    if !bytes.is_empty() {
        v.write(c, f.ino, 0, bytes, WriteFlags::default()).unwrap();
    }
    f
}

fn read(v: &Volume, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    v.read(ino, 0, 1 << 20, &mut out).unwrap();
    out
}

fn errno<T: std::fmt::Debug>(r: std::result::Result<T, Error>) -> i32 {
    r.unwrap_err().errno()
}

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
