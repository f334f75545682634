//! Inodes without a name, and groups: what nobody has opened yet is not for the end of a group, and what the group kept from being freed is.
use super::Volume;
use crate::base::types::*;
use crate::core::options::Options;
use ccfs_disks::MemoryDevice;
use std::process::Command;
use std::sync::{Arc, Barrier};

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
    assert!(v.refs().take_away(again.ino, 1));
    v.free_nameless(touched);
    assert_eq!(v.getattr(again.ino).unwrap().nlink, 0);
    // What the group has really left without a name does go: nobody has it.
    let inode = v.inodes().peek(again.ino).unwrap();
    v.free_nameless(vec![inode]);
    assert!(v.getattr(again.ino).is_err());
    v.unmount().unwrap();
}

/// The end of the group comes between the making of a file and the answer to its maker.
#[test]
fn a_file_that_is_about_to_be_opened_is_no_other() {
    let v = volume();
    let group = v.group_begin(StreamId(20), 0, None).unwrap();
    let c = Context::root(group);
    let kept = v.tmpfile(&c, ROOT_INO, 0o600).unwrap().ino;
    v.group_commit(group, false).unwrap();
    assert_eq!(v.getattr(kept).unwrap().nlink, 0);
    v.forget(kept, 1);
    assert!(v.getattr(kept).is_err());

    let group = v.group_begin(StreamId(20), 0, None).unwrap();
    let c = Context::root(group);
    let gone = v.tmpfile(&c, ROOT_INO, 0o600).unwrap().ino;
    v.group_abort(group).unwrap();
    let new = |name: &str| {
        let c = Context::root(StreamId(20));
        let new = v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0);
        new.unwrap().ino
    };
    assert!((0..100).all(|n| new(&format!("a{n}")) != gone));
    v.forget(gone, 1);
    assert!((0..100).any(|n| new(&format!("b{n}")) == gone));
    v.unmount().unwrap();
}

/// A file that is made and gone again, and whose number is another one's, before its maker has counted a reference.
#[test]
fn who_comes_too_late_has_no_reference() {
    let v = volume();
    let c = Context::root(StreamId(20));
    let new = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap();
    let old = new(b"old");
    v.remember_this(old.ino, old.generation).unwrap();
    assert_eq!(v.references(old.ino), 1);
    v.forget(old.ino, 1);
    v.unlink(&c, ROOT_INO, b"old").unwrap();
    let late = |stage: &str| {
        let refused = v.remember_this(old.ino, old.generation).unwrap_err();
        assert_eq!(refused.errno(), libc::ESTALE, "{stage}");
        assert_eq!(v.references(old.ino), 0, "{stage}");
    };
    late("it is gone");
    let again = (0..100).any(|n| new(format!("n{n}").as_bytes()).ino == old.ino);
    assert!(again);
    late("its number is another one's");
    v.unmount().unwrap();
}

/// A group that is as large as groups may be cannot free a file any more. Its end does.
#[test]
fn what_a_group_is_too_large_to_free_goes_with_its_end() {
    static PIECE: [u8; 64 << 10] = [7; 64 << 10];
    for commits in [true, false] {
        let v = volume();
        let home = Context::root(StreamId(20));
        let free = v.statfs().unwrap().bfree;
        let kept = v.tmpfile(&home, ROOT_INO, 0o600).unwrap().ino;
        v.write(&home, kept, 0, &PIECE, WriteFlags::default())
            .unwrap();
        v.syncfs(&home).unwrap();
        let group = v.group_begin(home.stream, 0, None).unwrap();
        let c = Context::root(group);
        let large = v.mknod(&c, ROOT_INO, b"large", 0o100644, 0).unwrap().ino;
        v.write(&c, kept, 0, &PIECE[..4096], WriteFlags::default())
            .unwrap();
        let mut links = (0..).map(|n: u64| {
            let name = format!("{n:0200}");
            v.link(&c, large, ROOT_INO, name.as_bytes())
        });
        let refused = links.find_map(Result::err).unwrap();
        assert_eq!(refused.errno(), libc::EDQUOT);
        v.forget(kept, 1);
        assert_eq!(
            v.getattr(kept).unwrap().nlink,
            0,
            "the group has room for it"
        );
        match commits {
            true => v.group_commit(group, false).unwrap(),
            false => v.group_abort(group).unwrap(),
        }
        assert!(v.getattr(kept).is_err(), "it stays ({commits})");
        assert_eq!(v.getattr(large).is_ok(), commits);
        v.syncfs(&home).unwrap();
        v.checkpoint().unwrap();
        if !commits {
            assert_eq!(v.statfs().unwrap().bfree, free);
        }
        v.unmount().unwrap();
    }
}

/// Members, others and the kernel use nameless files while groups end in both ways: in the end all of them are gone.
#[test]
fn every_nameless_file_goes() {
    let v = volume();
    let home = Context::root(StreamId(20));
    let free = v.statfs().unwrap().ffree;
    for seed in 0..300 {
        let group = v.group_begin(home.stream, 0, None).unwrap();
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (v, start) = (&v, &start);
                let mut rng = ccfs_testkit::Rng::new(seed * 2 + thread);
                let member = Context::root(group);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..20 {
                        let makes = if rng.below(2) == 0 { &member } else { &home };
                        let Ok(file) = v.tmpfile(makes, ROOT_INO, 0o600) else {
                            continue;
                        };
                        // The group may have ended.
                        let _ = v.write(&member, file.ino, 0, b"x", WriteFlags::default());
                        v.forget(file.ino, 1);
                    }
                });
            }
            start.wait();
            match seed % 2 {
                0 => v.group_commit(group, false).unwrap(),
                _ => v.group_abort(group).unwrap(),
            }
        });
        if seed % 10 == 0 {
            v.syncfs(&home).unwrap();
        }
    }
    v.syncfs(&home).unwrap();
    assert_eq!(v.statfs().unwrap().ffree, free);
    v.unmount().unwrap();
}
