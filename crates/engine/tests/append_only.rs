//! Append-only and immutable: no abort and no close takes back what was appended, or changes what was locked meanwhile.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{crash, cx, fsck, image, mount_on, quiet};
use std::sync::Arc;
use std::time::Duration;

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;

/// A volume without background threads, on which a conflict ends a group at once.
fn fresh() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        group_wait: Duration::ZERO,
        ..quiet()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    (dev, v)
}

fn begin(v: &Volume) -> (StreamId, Context) {
    let stream = v.group_begin(StreamId(100), 0, None).unwrap();
    (stream, Context { stream, ..cx(1) })
}

fn file(v: &Volume, c: &Context, dir: Ino, name: &str, bytes: &[u8]) -> Ino {
    let f = v.mknod(c, dir, name.as_bytes(), 0o100644, 0).unwrap();
    write(v, c, f.ino, 0, bytes);
    f.ino
}

fn write(v: &Volume, c: &Context, ino: Ino, at: u64, bytes: &[u8]) {
    let n = v.write(c, ino, at, bytes, WriteFlags::default()).unwrap();
    assert_eq!(n, bytes.len());
}

fn append(v: &Volume, c: &Context, ino: Ino, bytes: &[u8]) -> Result<usize> {
    let end = v.getattr(ino).unwrap().size;
    v.write(c, ino, end, bytes, WriteFlags::default())
}

fn read(v: &Volume, ino: Ino) -> String {
    let mut out = Vec::new();
    v.read(ino, 0, 1 << 20, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn lock(v: &Volume, c: &Context, ino: Ino, flag: u32) {
    let flags = v.getflags(ino).unwrap();
    v.setflags(c, ino, flags | flag).unwrap();
}

fn unlock(v: &Volume, c: &Context, ino: Ino) {
    let flags = v.getflags(ino).unwrap() & !(IMMUTABLE | APPEND);
    v.setflags(c, ino, flags).unwrap();
}

fn errno<T: std::fmt::Debug>(r: std::result::Result<T, Error>) -> i32 {
    r.unwrap_err().errno()
}

/// Content after a crash of now.
fn on_disk(dev: &MemoryDevice, name: &str) -> String {
    let (_, v) = crash(dev);
    let ino = v.lookup(ROOT_INO, name.as_bytes()).unwrap().ino;
    let text = read(&v, ino);
    v.shutdown();
    text
}

#[test]
fn what_is_locked_takes_no_draft() {
    let (dev, v) = fresh();
    let c = cx(5);
    for (name, flag) in [("log", APPEND), ("fixed", IMMUTABLE)] {
        let f = file(&v, &c, ROOT_INO, name, b"first;");
        lock(&v, &c, f, flag);
        assert_eq!(errno(v.open_atomic_file(&c, f, 0)), libc::EPERM, "{name}");
        unlock(&v, &c, f);
        v.open_atomic_file(&c, f, 0).unwrap();
        assert!(!v.close_atomic_file(f));
    }
    v.unmount().unwrap();
    fsck(&dev);
}

/// One user opened it O_ATOMIC before: what he has written then is there, as after a sync, and his close takes nothing back.
#[test]
fn what_becomes_locked_has_no_draft_any_more() {
    let (dev, v) = fresh();
    let (user, root) = (cx(5), cx(6));
    for (name, flag) in [("log", APPEND), ("fixed", IMMUTABLE)] {
        let f = file(&v, &user, ROOT_INO, name, b"first;");
        v.remember(f, 1);
        v.open_atomic_file(&user, f, 0).unwrap();
        write(&v, &user, f, 6, b"user's;");
        lock(&v, &root, f, flag);
        assert_eq!(v.atomic_file_state(f), (false, false), "{name}");
        assert_eq!(errno(v.syncv(&user, &[f], 0)), libc::EINVAL, "{name}");
        assert_eq!(
            errno(v.write(&user, f, 0, b"F", WriteFlags::default())),
            libc::EPERM
        );
        let all = match flag {
            APPEND => {
                append(&v, &root, f, b"root's;").unwrap();
                append(&v, &user, f, b"more;").unwrap();
                "first;user's;root's;more;"
            }
            _ => "first;user's;",
        };
        assert!(!v.close_atomic_file(f), "{name}: something was taken back");
        assert_eq!(read(&v, f), all, "{name}");
        v.fsync(&root, f, false).unwrap();
        assert_eq!(on_disk(&dev, name), all, "{name}");
        v.forget(f, 1);
    }
    // A flag and the content before it are one operation.
    let f = file(&v, &user, ROOT_INO, "both", b"a");
    v.open_atomic_file(&user, f, 0).unwrap();
    write(&v, &user, f, 1, b"b");
    lock(&v, &root, f, APPEND);
    v.streamsync(root.stream).unwrap();
    assert_eq!(on_disk(&dev, "both"), "ab");
    // Nothing was written since its last sync.
    let f = file(&v, &user, ROOT_INO, "unchanged", b"a");
    v.open_atomic_file(&user, f, 0).unwrap();
    lock(&v, &root, f, APPEND);
    assert_eq!(v.atomic_file_state(f), (false, false));
    assert_eq!(read(&v, f), "a");
    // Other flags leave it alone, and a group could take the flag back.
    let f = file(&v, &user, ROOT_INO, "other", b"a");
    v.open_atomic_file(&user, f, 0).unwrap();
    write(&v, &user, f, 0, b"b");
    lock(&v, &root, f, 0x40);
    assert_eq!(v.atomic_file_state(f), (true, true));
    let (group, member) = begin(&v);
    let flags = v.getflags(f).unwrap() | APPEND;
    let refused = v.setflags(&member, f, flags);
    assert_eq!(errno(refused), libc::EBUSY);
    v.group_commit(group, false).unwrap();
    assert!(v.close_atomic_file(f));
    assert_eq!(read(&v, f), "a");
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_group_appends_to_no_append_only_file() {
    let (dev, v) = fresh();
    let c = cx(5);
    let f = file(&v, &c, ROOT_INO, "log", b"first;");
    lock(&v, &c, f, APPEND);
    for commit in [true, false] {
        let (group, member) = begin(&v);
        assert_eq!(errno(append(&v, &member, f, b"member's;")), libc::EPERM);
        let more = v.fallocate(&member, f, Fallocate::Allocate { keep_size: false }, 6, 10);
        assert_eq!(errno(more), libc::EPERM);
        // Others do as ever, and the group stays.
        append(&v, &c, f, b"other's;").unwrap();
        assert!(v.group_is_open(group));
        match commit {
            true => v.group_commit(group, true).unwrap(),
            false => v.group_abort(group).unwrap(),
        }
    }
    let all = "first;other's;other's;";
    assert_eq!(read(&v, f), all);
    // Who is in a group that was taken back is told that.
    let (group, member) = begin(&v);
    v.group_abort(group).unwrap();
    assert_eq!(errno(append(&v, &member, f, b"late;")), libc::ECANCELED);
    v.fsync(&c, f, false).unwrap();
    assert_eq!(on_disk(&dev, "log"), all);
    // A group that has changed it is gone before it is append-only.
    let g = file(&v, &c, ROOT_INO, "later", b"a");
    let (group, member) = begin(&v);
    write(&v, &member, g, 1, b"b");
    lock(&v, &c, g, APPEND);
    assert!(!v.group_is_open(group));
    assert_eq!(read(&v, g), "a");
    v.unmount().unwrap();
    fsck(&dev);
}

/// In an append-only directory names are only added; a group would take them away again.
#[test]
fn a_group_makes_no_names_in_an_append_only_directory() {
    let (dev, v) = fresh();
    let c = cx(5);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let f = file(&v, &c, ROOT_INO, "f", b"x");
    lock(&v, &c, d, APPEND);
    let (group, member) = begin(&v);
    let m = &member;
    let refused = [
        errno(v.mknod(m, d, b"n", 0o100644, 0)),
        errno(v.mkdir(m, d, b"n", 0o755)),
        errno(v.symlink(m, d, b"n", b"to")),
        errno(v.link(m, f, d, b"n")),
        errno(v.rename(m, ROOT_INO, b"f", d, b"n", RenameFlags::default())),
    ];
    assert_eq!(refused, [libc::EPERM; 5]);
    // A file that is there is no name; nor is one that has none.
    v.tmpfile(m, d, 0o600).unwrap();
    let inside = file(&v, &c, d, "by-other", b"");
    write(&v, m, inside, 0, b"content");
    v.group_abort(group).unwrap();
    assert_eq!(v.lookup(d, b"by-other").unwrap().ino, inside);
    v.rename(&c, ROOT_INO, b"f", d, b"n", RenameFlags::default())
        .unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// A directory becomes append-only, or immutable, while a group has changed names in it: no abort changes them afterwards.
#[test]
fn what_a_group_did_in_a_directory_that_becomes_locked() {
    let (dev, v) = fresh();
    let (c, root) = (cx(5), cx(6));
    for flag in [APPEND, IMMUTABLE] {
        let name = format!("d{flag}");
        let d = v.mkdir(&c, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino;
        file(&v, &c, d, "old", b"x");
        let names = || {
            let there = |name: &[u8]| v.lookup(d, name).is_ok();
            [there(b"old"), there(b"new")]
        };
        // Names that were there when the directory was locked stay as they were then.
        let (group, member) = begin(&v);
        file(&v, &member, d, "new", b"y");
        v.unlink(&member, d, b"old").unwrap();
        lock(&v, &root, d, flag);
        let locked = names();
        assert!(!v.group_is_open(group), "{flag:x}");
        assert_eq!(errno(v.group_abort(group)), libc::ECANCELED);
        assert_eq!(names(), locked);
        assert_eq!(locked, [true, false]);
        unlock(&v, &root, d);
        // One that is committed comes first.
        let (group, member) = begin(&v);
        file(&v, &member, d, "new", b"y");
        v.group_commit(group, false).unwrap();
        lock(&v, &root, d, flag);
        assert_eq!(names(), [true, true]);
        unlock(&v, &root, d);
        // Who locks it in the group itself takes that back, too.
        let (group, member) = begin(&v);
        v.unlink(&member, d, b"old").unwrap();
        lock(&v, &member, d, flag);
        v.group_abort(group).unwrap();
        assert_eq!(names(), [true, true]);
        assert_eq!(v.getflags(d).unwrap() & flag, 0);
    }
    v.unmount().unwrap();
    fsck(&dev);
}

/// The kernel sends the parts of a long direct append all at once.
#[test]
fn parts_of_an_append_come_in_any_order() {
    const PART: u64 = 8192;
    let (dev, v) = fresh();
    let c = cx(5);
    let part = WriteFlags {
        part: true,
        whole: true,
        ..WriteFlags::default()
    };
    let f = file(&v, &c, ROOT_INO, "log", b"");
    lock(&v, &c, f, APPEND);
    let put = |n: u64, byte: u8, flags: WriteFlags| {
        let bytes = [byte; PART as usize];
        let done = v.write(&c, f, n * PART, &bytes, flags);
        done.map_err(|e| e.errno())
    };
    for (n, byte) in [(2, b'c'), (0, b'a'), (3, b'd')] {
        assert_eq!(put(n, byte, part), Ok(PART as usize));
    }
    // A gap is filled once, by a part, and not by more than a part of it.
    assert_eq!(put(1, b'x', WriteFlags::default()), Err(libc::EPERM));
    let over = vec![b'x'; PART as usize + 1];
    assert_eq!(errno(v.write(&c, f, PART, &over, part)), libc::EPERM);
    let mapped = WriteFlags {
        writeback: true,
        ..part
    };
    assert_eq!(put(0, b'x', mapped), Err(libc::EPERM));
    assert_eq!(put(1, b'b', part), Ok(PART as usize));
    for n in 0..4 {
        assert_eq!(put(n, b'x', part), Err(libc::EPERM), "{n}");
    }
    let all: String = ['a', 'b', 'c', 'd']
        .iter()
        .flat_map(|c| std::iter::repeat_n(*c, PART as usize))
        .collect();
    assert_eq!(read(&v, f), all);
    // What was not append-only meanwhile is nobody's to fill.
    assert_eq!(put(6, b'g', part), Ok(PART as usize));
    unlock(&v, &c, f);
    assert_eq!(put(4, b'e', WriteFlags::default()), Ok(PART as usize));
    lock(&v, &c, f, APPEND);
    assert_eq!(put(4, b'x', part), Err(libc::EPERM));
    // Who chose the place writes nothing, at the end neither.
    let placed = WriteFlags {
        placed: true,
        ..WriteFlags::default()
    };
    assert_eq!(put(7, b'x', placed), Err(libc::EPERM));
    assert_eq!(put(7, b'h', WriteFlags::default()), Ok(PART as usize));
    v.unmount().unwrap();
    fsck(&dev);
}
