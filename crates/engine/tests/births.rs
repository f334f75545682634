//! Inodes of which somebody was told the number and the times before they were made, and operations that were accepted before they got there.
mod common;
use ccfs_engine::*;
use common::{crash, cx, fsck, image, mount};
use std::sync::Arc;

const TIME: Time = (1_700_000_000, 123_456_789);

fn born(ino: Ino) -> Born {
    Born {
        ino,
        time: Some(TIME),
    }
}

fn times(attr: &Attr) -> [Time; 4] {
    [attr.atime, attr.mtime, attr.ctime, attr.crtime]
}

#[test]
fn files_have_the_numbers_and_times_that_were_granted() {
    let dev = Arc::new(image(&["-b", "1024", "-N", "4096"], "32M"));
    let v = mount(&dev);
    assert!(v.foretells_births());
    let (c, free) = (cx(1), v.statfs().unwrap().ffree);
    let dir = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let mut numbers = v.grant_numbers(dir, 100);
    assert_eq!(numbers.len(), 100);
    assert_eq!(v.promised().inodes, 100);
    let used = numbers.split_off(40);
    for (n, ino) in used.iter().enumerate() {
        let name = format!("f{n}");
        let made = v.create_born(&c, dir, name.as_bytes(), 0o100_666, born(*ino));
        let attr = made.unwrap();
        assert_eq!((attr.ino, attr.mode & 0o777), (*ino, 0o644));
        assert_eq!(times(&attr), [TIME; 4]);
        // Others get other numbers.
        let other = v.mknod(&c, dir, format!("g{n}").as_bytes(), 0o100_600, 0);
        assert!(!numbers.contains(&other.unwrap().ino));
    }
    // Where it fails, the number is still the caller's.
    let again = v.create_born(&c, dir, b"f1", 0o100_666, born(numbers[0]));
    assert_eq!(again.unwrap_err().errno(), libc::EEXIST);
    assert_eq!(v.promised().inodes, 40);
    v.syncfs(&c).unwrap();
    // A crash: nobody has the rest.
    let (copy, after) = crash(&dev);
    for (n, ino) in used.iter().enumerate() {
        let attr = after.lookup(dir, format!("f{n}").as_bytes()).unwrap();
        assert_eq!((attr.ino, times(&attr)), (*ino, [TIME; 4]));
    }
    assert_eq!(after.statfs().unwrap().ffree, free - 121);
    after.unmount().unwrap();
    fsck(&copy);
    v.take_numbers_back(numbers);
    assert_eq!(v.promised(), Promise::default());
    assert_eq!(v.statfs().unwrap().ffree, free - 121);
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn what_is_granted_leaves_room_for_what_is_promised() {
    let dev = Arc::new(image(&["-b", "1024", "-N", "1024"], "16M"));
    let v = mount(&dev);
    let free = v.statfs().unwrap().ffree;
    let mut all = Vec::new();
    for _ in 0..100 {
        all.extend(v.grant_numbers(ROOT_INO, 1000));
    }
    assert!(all.len() as u64 * 5 < free, "{} of {free}", all.len());
    let mut promised = 0;
    for _ in 0..100 {
        let wanted = Promise {
            blocks: 0,
            inodes: 1000,
        };
        promised += v.promise(wanted).inodes;
    }
    assert!(promised > all.len() / 2, "{promised} and {}", all.len());
    assert_eq!(v.promised().inodes, promised + all.len());
    assert!(v.promised().inodes as u64 <= free / 4);
    v.take_promise_back(v.promised());
    v.take_numbers_back(all);
    assert_eq!(v.statfs().unwrap().ffree, free);
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn who_cannot_foretell_a_birth() {
    let dev = Arc::new(image(&["-b", "1024", "-I", "128"], "16M"));
    let v = mount(&dev);
    assert!(!v.foretells_births(), "inodes hold whole seconds");
    v.unmount().unwrap();
    let dev = Arc::new(image(&["-b", "1024"], "16M"));
    let options = Options {
        group_of_directory: true,
        ..common::quiet()
    };
    let v = common::mount_on(dev, options).unwrap();
    assert!(!v.foretells_births(), "groups are the directories'");
    v.unmount().unwrap();
}

/// All that an operation changes has the time at which it was accepted.
#[test]
fn operations_have_the_time_that_they_were_accepted_at() {
    let dev = Arc::new(image(&["-b", "1024"], "16M"));
    let v = mount(&dev);
    let then = Context {
        time: Some(TIME),
        ..cx(1)
    };
    let dir = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap().ino;
    let file = v.mknod(&cx(1), dir, b"f", 0o100_600, 0).unwrap().ino;
    let of = |ino| {
        let attr = v.getattr(ino).unwrap();
        (attr.mtime, attr.ctime)
    };
    v.write(&then, file, 0, b"some", WriteFlags::default())
        .unwrap();
    assert_eq!(of(file), (TIME, TIME));
    assert_ne!(of(dir).0, TIME);
    v.unlink(&then, dir, b"f").unwrap();
    assert_eq!(of(dir), (TIME, TIME));
    v.unmount().unwrap();
    fsck(&dev);
}
