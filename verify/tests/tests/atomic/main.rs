//! Atomic groups through a mount (C11): abort restores everything, the kernel's caches included; commit survives a crash whole.
mod command;
mod common;
mod files;
mod members;
mod random;
mod recipes;

use ccfs_client as client;
use ccfs_tests::harness::{Tree, Volume};
use ccfs_tests::sys::{self, Map};
use common::{assert_same, errno, on_a_thread, on_each_transport, read, root, volume, write};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

const PAGE: usize = 4096;

fn populate(v: &Volume) {
    write(v, "longer", b"short");
    write(v, "shorter", &[7; 5 * PAGE]);
    write(v, "same", &[1; 3 * PAGE]);
    write(v, "removed", b"still needed");
    write(v, "replaced", b"the old one");
    write(v, "moved", b"from here");
    write(v, "linked", b"one name");
    fs::create_dir(v.path("dir")).expect("mkdir");
    write(v, "dir/inside", b"in a directory");
    fs::create_dir(v.path("empty")).expect("mkdir");
    fs::create_dir(v.path("target")).expect("mkdir");
    sys::symlink("same", v.path("symlink")).expect("symlink");
    sys::setxattr(v.path("same"), "user.x", b"before", 0).expect("setxattr");
}

/// All kinds of changes.
fn change(v: &Volume) {
    write(v, "new", &[9; 100_000]);
    fs::create_dir(v.path("new-dir")).expect("mkdir");
    write(v, "new-dir/below", b"x");
    write(v, "longer", &[3; 4 * PAGE]);
    write(v, "shorter", b"tiny");
    let same = File::options().write(true).open(v.path("same"));
    same.expect("open")
        .write_all_at(&[2; 100], 5000)
        .expect("write");
    fs::remove_file(v.path("removed")).expect("unlink");
    write(v, "replacement", b"the new one");
    fs::rename(v.path("replacement"), v.path("replaced")).expect("rename");
    fs::rename(v.path("moved"), v.path("new-dir/there")).expect("rename");
    fs::hard_link(v.path("linked"), v.path("new-name")).expect("link");
    fs::remove_dir(v.path("empty")).expect("rmdir");
    fs::rename(v.path("dir"), v.path("target")).expect("rename of a directory");
    write(v, "target/added", b"y");
    fs::remove_file(v.path("symlink")).expect("unlink");
    sys::symlink("elsewhere", v.path("symlink")).expect("symlink");
    fs::set_permissions(v.path("same"), PermissionsExt::from_mode(0o600)).expect("chmod");
    sys::setxattr(v.path("same"), "user.x", b"after", 0).expect("setxattr");
    sys::chown(v.path("linked"), 1234, 1234).expect("chown");
}

/// What the kernel had cached of a group's changes is gone with them: names, sizes, attributes, pages, mappings.
#[test]
fn abort_restores_everything() {
    on_each_transport("abort_restores_everything", |mut v| {
        populate(&v);
        let before = Tree::read(v.mnt());
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            change(&v);
            let changed = Tree::read(v.mnt());
            assert!(changed.0.contains_key("target/added"), "its own to see");
            client::group_abort(&at, 0).expect("abort");
        });
        assert_same("after the abort", &before, &Tree::read(v.mnt()));
        // All of it can be used again.
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            change(&v);
            client::group_abort(&at, 0).expect("abort");
        });
        assert_same("after another one", &before, &Tree::read(v.mnt()));
        write(&v, "empty/created", b"in a directory that was removed");
        write(&v, "dir/created", b"in one that was moved");
        change_back(&v);
        v.remount();
        assert_same(
            "after a remount",
            &before,
            &without_times(&before, Tree::read(v.mnt())),
        );
        v.finish();
    });
}

fn change_back(v: &Volume) {
    fs::remove_file(v.path("empty/created")).expect("unlink");
    fs::remove_file(v.path("dir/created")).expect("unlink");
}

/// The times of the two directories are new.
fn without_times(before: &Tree, mut after: Tree) -> Tree {
    for name in ["empty", "dir"] {
        if let (Some(a), Some(b)) = (before.0.get(name), after.0.get_mut(name)) {
            (b.stat.mtime, b.stat.ctime) = (a.stat.mtime, a.stat.ctime);
        }
    }
    after
}

/// Descriptors and mappings that were open all the time.
#[test]
fn abort_and_open_files() {
    on_each_transport("abort_and_open_files", |v| {
        populate(&v);
        let fd = |name: &str| sys::open(v.path(name), libc::O_RDWR, 0).expect("open");
        let (longer, shorter, same) = (fd("longer"), fd("shorter"), fd("same"));
        let whole = Map::new(&shorter, 0, 5 * PAGE, true).expect("mmap");
        let middle = Map::new(&same, 0, 3 * PAGE, true).expect("mmap");
        let removed = fd("removed");
        let mut byte = [0];
        whole.load(4 * PAGE, &mut byte);
        assert_eq!(byte, [7]);
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            change(&v);
            // Stores of a member through a mapping that somebody else has as well.
            middle.store(0, &[4; 10]);
            middle.store(2 * PAGE, &[4; 10]);
            middle.sync().expect("msync");
            middle.store(PAGE, &[5; 10]);
            assert_eq!(sys::fstat(&removed).expect("stat").nlink, 0);
            client::group_abort(&at, 0).expect("abort");
        });
        // The mapping does not end where the file ended in the group.
        whole.load(4 * PAGE, &mut byte);
        assert_eq!(byte, [7], "a page of the mapping");
        let mut pages = vec![0; 3 * PAGE];
        middle.load(0, &mut pages);
        assert_eq!(pages, vec![1; 3 * PAGE], "a mapped page");
        let mut bytes = [0; 100];
        assert_eq!(
            sys::pread(&longer, &mut bytes, 0),
            Ok(5),
            "it is short again"
        );
        assert_eq!(&bytes[..5], b"short");
        assert_eq!(sys::lseek(&shorter, 0, libc::SEEK_END), Ok(5 * PAGE as u64));
        assert_eq!(sys::fstat(&removed).expect("stat").nlink, 1);
        middle.store(8, b"kept");
        middle.sync().expect("msync");
        assert_eq!(&read(&v, "same")[8..12], b"kept", "stores count again");
        drop((whole, middle, longer, shorter, same, removed));
        v.finish();
    });
}

/// The kernel appends where it believes the end to be; after an abort that can be wrong.
#[test]
fn append_after_an_abort() {
    on_each_transport("append_after_an_abort", |v| {
        write(&v, "log", b"one\n");
        write(&v, "cut", b"one\ntwo\n");
        let open = |name: &str| {
            let file = File::options().append(true).open(v.path(name));
            file.expect("open")
        };
        let (mut log, mut cut) = (open("log"), open("cut"));
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            let mut member = open("log");
            member.write_all(&[b'x'; 10_000]).expect("write");
            cut.set_len(1).expect("truncate");
            client::group_abort(&at, 0).expect("abort");
        });
        log.write_all(b"two\n").expect("write");
        cut.write_all(b"three\n").expect("write");
        assert_eq!(read(&v, "log"), b"one\ntwo\n");
        assert_eq!(read(&v, "cut"), b"one\ntwo\nthree\n");
        log.write_all(b"three\n").expect("write");
        assert_eq!(read(&v, "log"), b"one\ntwo\nthree\n");
        drop((log, cut));
        v.finish();
    });
}

/// Commit and kill -9: all of it. Open and kill -9: nothing of it.
#[test]
fn commit_and_kill() {
    on_each_transport("commit_and_kill", |mut v| {
        populate(&v);
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            change(&v);
            client::group_commit(&at, 0, false).expect("commit");
        });
        let committed = Tree::read(v.mnt());
        on_a_thread(|| {
            client::group_begin(root(&v), None).expect("begin");
            write(&v, "never", b"was");
            fs::remove_file(v.path("same")).expect("unlink");
            // What others sync is theirs.
            root(&v).sync_all().expect("fsync");
            v_sync(&v);
        });
        v.kill9();
        v.mount();
        assert!(committed.0.contains_key("target/added"));
        assert_same("C11: after the crash", &committed, &Tree::read(v.mnt()));
        v.finish();
    });
}

/// syncfs, of this volume only.
fn v_sync(v: &Volume) {
    let fd = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
    sys::syncfs(&fd).expect("syncfs");
}

/// An ordered commit costs nothing and has its place: a later sync of the stream makes it durable.
#[test]
fn ordered_commit() {
    let Some(mut v) = volume("ordered_commit", "") else {
        return;
    };
    on_a_thread(|| {
        let at = root(&v);
        let id = client::new_stream(&at, 0).expect("new stream");
        client::set_stream(&at, id, None).expect("set stream");
        client::group_begin(&at, None).expect("begin");
        write(&v, "a", b"1");
        write(&v, "b", b"1");
        client::group_commit(&at, 0, true).expect("commit");
        assert_eq!(client::get_stream(&at).expect("stream").id, id, "back");
        write(&v, "later", b"1");
        client::stream_sync(&at, 0).expect("sync");
    });
    v.kill9();
    v.mount();
    for name in ["a", "b", "later"] {
        assert_eq!(read(&v, name), b"1", "C11: {name}");
    }
    v.finish();
}

/// A group that becomes too large says so, and can be taken back.
#[test]
fn too_large() {
    let Some(mut v) = volume("too_large", ",dirty=4M") else {
        return;
    };
    populate(&v);
    // What is applied later takes no blocks any more.
    v.remount();
    let before = Tree::read(v.mnt());
    let free = || sys::statvfs(v.mnt()).expect("statfs").bfree;
    let was = free();
    on_a_thread(|| {
        let at = root(&v);
        client::group_begin(&at, None).expect("begin");
        let file = File::create(v.path("large")).expect("create");
        let mut at_byte = 0;
        let refused = loop {
            match file.write_all_at(&[1; 65536], at_byte) {
                Ok(()) => at_byte += 65536,
                Err(e) => break e,
            }
            assert!(at_byte < 100 << 20, "no bound");
        };
        assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT));
        drop(file);
        client::group_abort(&at, 0).expect("abort");
    });
    assert_same("after the abort", &before, &Tree::read(v.mnt()));
    // What the kernel still had of the file counts until it forgets it.
    common::until("the space is free again", || free() >= was);
    v.finish();
}

/// What a mapping stores and the group has no room for is its owner's error: nobody's syncfs fails (the kernel tells the errors of
/// write-back to whoever syncs the volume next).
#[test]
fn too_large_by_stores() {
    const STORED: usize = 12 << 20;
    for end in ["commit", "abort"] {
        let Some(v) = volume(&format!("too_large_by_stores-{end}"), ",dirty=4M") else {
            return;
        };
        write(&v, "old", b"old");
        let whole = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("the root");
        let stored = on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            fs::write(v.path("old"), b"new").expect("write");
            let file = sys::open(v.path("mapped"), libc::O_CREAT | libc::O_RDWR, 0o644);
            let file = file.expect("create");
            sys::ftruncate(&file, STORED as i64).expect("truncate");
            let map = Map::new(&file, 0, STORED, true).expect("mmap");
            for page in 0..STORED / PAGE {
                map.store(page * PAGE, &[1; PAGE]);
            }
            on_a_thread(|| assert_eq!(sys::syncfs(&whole), Ok(()), "somebody else's"));
            match end {
                "commit" => {
                    let refused = client::group_commit(&at, 0, false);
                    assert_eq!(common::errno(refused), libc::EDQUOT);
                }
                _ => client::group_abort(&at, 0).expect("abort"),
            }
            // Pages that the kernel has not sent yet.
            map
        });
        assert_eq!(sys::syncfs(&whole), Ok(()));
        drop(stored);
        assert_eq!(sys::syncfs(&whole), Ok(()));
        assert_eq!(read(&v, "old"), b"old");
        assert!(!v.path("mapped").exists());
        drop(whole);
        v.finish();
    }
}

/// Stores through a mapping of a file that the group changed go with it, whoever made them (the kernel does not say who it was); those of
/// other files, and later ones, count.
#[test]
fn mapped_by_others() {
    let Some(v) = volume("mapped_by_others", "") else {
        return;
    };
    write(&v, "shared", &[0; 2 * PAGE]);
    write(&v, "apart", &[0; PAGE]);
    let fd = |name: &str| sys::open(v.path(name), libc::O_RDWR, 0).expect("open");
    let map = |name: &str, len| Map::new(&fd(name), 0, len, true).expect("mmap");
    let (shared, apart) = (map("shared", 2 * PAGE), map("apart", PAGE));
    on_a_thread(|| {
        let at = root(&v);
        client::group_begin(&at, None).expect("begin");
        let file = File::options().write(true).open(v.path("shared"));
        file.expect("open")
            .write_all_at(b"group", 0)
            .expect("write");
        on_a_thread(|| {
            shared.store(PAGE, b"other");
            shared.sync().expect("msync");
            apart.store(0, b"other");
            apart.sync().expect("msync");
        });
        client::group_abort(&at, 0).expect("abort");
    });
    assert_eq!(read(&v, "shared"), [0; 2 * PAGE], "all of it, or nothing");
    assert_eq!(
        &read(&v, "apart")[..5],
        b"other",
        "a file apart is not touched"
    );
    shared.store(0, b"again");
    shared.sync().expect("msync");
    assert_eq!(&read(&v, "shared")[..5], b"again");
    drop((shared, apart));
    v.finish();
}

/// The directory is the one that it was, for whoever stands in it.
#[test]
fn working_directories() {
    let Some(v) = volume("working_directories", "") else {
        return;
    };
    fs::create_dir(v.path("here")).expect("mkdir");
    let dir = File::open(v.path("here")).expect("open");
    on_a_thread(|| {
        let at = root(&v);
        client::group_begin(&at, None).expect("begin");
        fs::rename(v.path("here"), v.path("there")).expect("rename");
        client::group_abort(&at, 0).expect("abort");
    });
    write(&v, "here/file", b"x");
    let seen = fs::read_link(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&dir)
    ));
    assert_eq!(seen.expect("a path"), v.path("here"));
    assert_eq!(
        dir.metadata().expect("stat").ino(),
        fs::metadata(v.path("here")).expect("stat").ino()
    );
    drop(dir);
    v.finish();
}

/// Calls that make no sense.
#[test]
fn refusals() {
    let Some(v) = volume("refusals", "") else {
        return;
    };
    on_a_thread(|| {
        let at = root(&v);
        assert_eq!(errno(client::group_commit(&at, 0, false)), libc::ENOENT);
        assert_eq!(errno(client::group_abort(&at, 0)), libc::ENOENT);
        assert_eq!(errno(client::group_enter(&at, 0)), libc::EINVAL);
        assert_eq!(errno(client::group_enter(&at, 12345)), libc::ENOENT);
        assert_eq!(errno(client::group_changes(&at, 0)), libc::ENOENT);
        let handle = client::group_begin(&at, None).expect("begin");
        assert_eq!(errno(client::group_begin(&at, None)), libc::EBUSY);
        assert_eq!(errno(client::group_enter(&at, handle)), libc::EBUSY);
        assert_eq!(errno(client::set_stream(&at, 77, None)), libc::EBUSY);
        let id = client::get_stream(&at).expect("stream").id;
        on_a_thread_of_its_own(&at, id);
        client::group_commit(&at, handle, false).expect("commit");
        let gone = errno(client::group_commit(&at, handle, false));
        assert!([libc::ENOENT, libc::EALREADY].contains(&gone), "{gone}");
        client::set_stream(&at, 77, None).expect("set stream");
    });
    v.finish();
}

/// A group's number is no stream to be entered.
fn on_a_thread_of_its_own(at: &File, id: u64) {
    let refused = sys::as_user(1234, 1234, &[], || errno(client::set_stream(at, id, None)));
    // A member still, since root began it; or, where it is not known who started it, none.
    assert!([libc::EBUSY, libc::EPERM].contains(&refused), "{refused}");
}

/// A group that changed many files of a large directory: the list of its changes names all of them, whatever finding the names costs.
#[test]
fn many_changes_have_paths() {
    let Some(v) = volume("many-changes", "") else {
        return;
    };
    fs::create_dir(v.path("large")).expect("a directory");
    let name = |n: u32| v.path(&format!("large/f{n}"));
    (0..6000).for_each(|n| fs::write(name(n), "old").expect("a file"));
    on_a_thread(|| {
        let at = root(&v);
        let handle = client::group_begin(&at, None).expect("begin");
        (0..200).for_each(|n| fs::write(name(n * 30), "new").expect("a file"));
        let changes = client::group_changes(&at, 0).expect("changes");
        let mut lines: Vec<&str> = changes.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        let named = |l: &&&str| l.starts_with("changed large/f");
        assert_eq!(lines.iter().filter(named).count(), 200, "{changes}");
        assert!(!changes.contains("inode "), "{changes}");
        client::group_abort(&at, handle).expect("abort");
    });
    v.finish();
}
