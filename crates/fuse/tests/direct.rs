//! Calls through shared memory, and what others see of them through the mount.
mod common;
use ccfs_client::direct::{File, OpenOptions, Session};
use ccfs_fuse::FsType;
use common::direct::{PATIENCE, new_file, session};
use common::{TestMount, can_mount};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

fn read(file: &File) -> Vec<u8> {
    let mut out = vec![0; file.stat().unwrap().size as usize + 10];
    let n = file.read_at(&mut out, 0).unwrap();
    out.truncate(n);
    out
}

#[test]
fn what_is_made_is_there_for_everybody() {
    if !can_mount("what_is_made_is_there_for_everybody") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    // The kernel believes that it is not there.
    assert!(!m.path("tree").exists());
    assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 1);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o750).unwrap();
    let file = new_file(&tree, "a");
    assert!(file.is_direct());
    file.write_at(b"hello", 0).unwrap();
    file.append(b", world").unwrap();
    assert_eq!(read(&file), b"hello, world");
    assert!(file.is_direct());
    assert_eq!(fs::read_dir(m.mnt()).unwrap().count(), 2);
    assert_eq!(fs::read(m.path("tree/a")).unwrap(), b"hello, world");
    assert_eq!(fs::metadata(m.path("tree")).unwrap().mode() & 0o7777, 0o750);
    // The kernel knows it by now, and everything goes on.
    file.append(b"!").unwrap();
    assert!(!file.is_direct());
    assert_eq!(fs::read(m.path("tree/a")).unwrap(), b"hello, world!");
    fs::write(m.path("tree/a"), b"short").unwrap();
    assert_eq!(read(&file), b"short");
    let other = new_file(&tree, "b");
    other.write_at(b"b", 0).unwrap();
    let mut names: Vec<_> = tree
        .read_dir()
        .unwrap()
        .into_iter()
        .map(|e| e.name)
        .collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(fs::read(m.path("tree/b")).unwrap(), b"b");
    drop((file, other, tree, root, session));
    m.unmount();
    m.mount();
    assert_eq!(fs::read(m.path("tree/a")).unwrap(), b"short");
    m.unmount();
}

#[test]
fn names() {
    if !can_mount("names") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    let sub = tree.make_dir("sub", 0o777).unwrap();
    let exists = |e: io::Error| assert_eq!(e.kind(), ErrorKind::AlreadyExists);
    exists(tree.make_dir("sub", 0o777).map(drop).unwrap_err());
    exists(root.make_dir("tree", 0o777).map(drop).unwrap_err());
    drop(new_file(&tree, "a"));
    exists(
        tree.open("a", OpenOptions::new_file())
            .map(drop)
            .unwrap_err(),
    );
    let gone = |e: io::Error| assert_eq!(e.kind(), ErrorKind::NotFound);
    gone(
        tree.open("none", OpenOptions::reading())
            .map(drop)
            .unwrap_err(),
    );
    gone(tree.remove_file("none").unwrap_err());
    gone(tree.stat("none").map(drop).unwrap_err());
    assert_eq!(
        tree.remove_file("sub").unwrap_err().kind(),
        ErrorKind::IsADirectory
    );
    assert_eq!(
        tree.remove_dir("a").unwrap_err().kind(),
        ErrorKind::NotADirectory
    );
    for bad in ["", ".", "..", "a/b"] {
        assert!(tree.open(bad, OpenOptions::reading()).is_err(), "{bad}");
    }
    tree.rename("a", &sub, "b").unwrap();
    gone(tree.stat("a").map(drop).unwrap_err());
    let ino = sub.stat("b").unwrap().ino;
    assert_eq!(
        root.remove_dir("tree").unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    assert_eq!(fs::metadata(m.path("tree/sub/b")).unwrap().ino(), ino);
    sub.remove_file("b").unwrap();
    assert!(!m.path("tree/sub/b").exists());
    tree.remove_dir("sub").unwrap();
    drop((sub, tree));
    root.remove_dir("tree").unwrap();
    assert!(!m.path("tree").exists());
    drop((root, session));
    m.unmount();
}

/// A file that is removed while it is open can be used as long, also when others look.
#[test]
fn removed_files_stay_open() {
    if !can_mount("removed_files_stay_open") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    let free = || {
        let out = std::process::Command::new("sync")
            .arg("-f")
            .arg(m.mnt())
            .status();
        assert!(out.unwrap().success());
        rustix::fs::statvfs(m.mnt()).unwrap().f_ffree
    };
    let before = free();
    let (held, known) = (new_file(&tree, "held"), new_file(&tree, "known"));
    held.write_at(b"held", 0).unwrap();
    known.write_at(b"known", 0).unwrap();
    assert_eq!(fs::read(m.path("tree/known")).unwrap(), b"known");
    tree.remove_file("held").unwrap();
    tree.remove_file("known").unwrap();
    assert!(!m.path("tree/held").exists());
    for (file, text) in [(&held, "held"), (&known, "known")] {
        assert_eq!(read(file), text.as_bytes());
        file.append(b"!").unwrap();
        assert_eq!(read(file), format!("{text}!").as_bytes());
        assert_eq!(file.stat().unwrap().nlink, 0);
        file.sync().unwrap();
    }
    assert_eq!(free(), before - 2);
    drop((held, known));
    let end = std::time::Instant::now() + PATIENCE;
    while free() != before {
        assert!(std::time::Instant::now() < end);
    }
    drop((tree, session));
    m.unmount();
}

/// What is closed, and was never looked at, is opened again; directories are one object.
#[test]
fn opened_again() {
    if !can_mount("opened_again") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    for n in 0..500 {
        let file = new_file(&tree, &format!("f{n}"));
        file.write_at(format!("{n}").as_bytes(), 0).unwrap();
    }
    tree.make_dir("sub", 0o777).unwrap();
    for n in (0..500).rev() {
        let file = tree.open(format!("f{n}"), OpenOptions::reading()).unwrap();
        assert!(file.is_direct());
        assert_eq!(read(&file), format!("{n}").as_bytes());
        assert_eq!(
            file.write_at(b"x", 0).unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
    }
    let (one, two) = (tree.open_dir("sub").unwrap(), tree.open_dir("sub").unwrap());
    drop(new_file(&one, "x"));
    assert_eq!(
        two.open("x", OpenOptions::new_file())
            .map(drop)
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(tree.read_dir().unwrap().len(), 501);
    assert_eq!(fs::read_dir(m.path("tree")).unwrap().count(), 501);
    drop((one, two, tree, session));
    m.unmount();
}

/// Large data, holes, sizes.
#[test]
fn data() {
    if !can_mount("data") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    let file = new_file(&tree, "f");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    file.write_at(&bytes, 5000).unwrap();
    let mut all = vec![0; 5000];
    all.extend_from_slice(&bytes);
    assert_eq!(read(&file), all);
    file.truncate(70_000).unwrap();
    file.truncate(80_000).unwrap();
    file.append(&bytes[..400_000]).unwrap();
    all.truncate(70_000);
    all.resize(80_000, 0);
    all.extend_from_slice(&bytes[..400_000]);
    assert!(file.is_direct());
    assert_eq!(read(&file), all);
    assert_eq!(file.stat().unwrap().size, all.len() as u64);
    assert_eq!(fs::read(m.path("tree/f")).unwrap(), all);
    file.set_mode(0o600).unwrap();
    assert_eq!(
        fs::metadata(m.path("tree/f")).unwrap().permissions().mode() & 0o7777,
        0o600
    );
    drop((file, tree, session));
    m.unmount();
}

/// Threads of the program, and others who look at any time: nobody sees anything but what was written, in its order.
#[test]
fn many_threads_and_lookers() {
    if !can_mount("many_threads_and_lookers") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mnt = m.mnt();
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut seen = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for dir in 0..4 {
                    let dir = mnt.join(format!("d{dir}"));
                    for n in (0..400).rev().step_by(37) {
                        seen += usize::from(check(&dir.join(format!("f{n}"))));
                    }
                }
            }
            seen
        });
        let writers: Vec<_> = (0..4)
            .map(|d| {
                let root = &root;
                scope.spawn(move || {
                    let dir = root.make_dir(format!("d{d}"), 0o777).unwrap();
                    for n in 0..400 {
                        let file = new_file(&dir, &format!("f{n}"));
                        for part in 0..5u8 {
                            file.append(&[part; 1000]).unwrap();
                        }
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        looker.join().unwrap();
    });
    for dir in 0..4 {
        for n in 0..400 {
            let file = mnt.join(format!("d{dir}/f{n}"));
            assert_eq!(fs::metadata(&file).unwrap().len(), 5000);
            assert!(check(&file));
        }
    }
    drop((root, session));
    m.unmount();
}

/// A file that is there has the beginning of its parts in their order. (Not always whole ones, and not always as much as fstat(2) says: once it is looked
/// up, it is written through the kernel, which cuts an append at a page that it has not read, and shows a size before its read(2) goes so far.)
fn check(path: &Path) -> bool {
    let Ok(file) = fs::File::open(path) else {
        return false;
    };
    let mut bytes = vec![9; 6000];
    let n = file.read_at(&mut bytes, 0).unwrap();
    for (at, part) in bytes[..n].chunks(1000).enumerate() {
        assert!(part.iter().all(|b| usize::from(*b) == at), "part {at}");
    }
    true
}

/// What others change in a directory that a session has made, the session sees at its next call, whatever it believes to know.
#[test]
fn others_change_names() {
    if !can_mount("others_change_names") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("d", 0o777).unwrap();
    drop(new_file(&tree, "a"));
    fs::write(m.path("d/x"), "theirs").unwrap();
    assert_eq!(tree.stat("x").unwrap().size, 6);
    let file = tree.open("x", OpenOptions::reading()).unwrap();
    assert_eq!(read(&file), b"theirs");
    fs::remove_file(m.path("d/a")).unwrap();
    drop(new_file(&tree, "a"));
    tree.remove_file("x").unwrap();
    assert!(!m.path("d/x").exists());
    assert_eq!(file.stat().unwrap().nlink, 0);
    // Another object for the same directory, and a third.
    let other = root.make_dir("e", 0o777).unwrap();
    let again = root.open_dir("e").unwrap();
    drop(new_file(&again, "b"));
    assert_eq!(
        other
            .open("b", OpenOptions::new_file())
            .map(drop)
            .unwrap_err()
            .kind(),
        ErrorKind::AlreadyExists
    );
    // A directory that is moved away and replaced.
    let moved = root.make_dir("f", 0o777).unwrap();
    drop(new_file(&moved, "inside"));
    fs::rename(m.path("f"), m.path("g")).unwrap();
    fs::create_dir(m.path("f")).unwrap();
    drop(new_file(&moved, "more"));
    assert!(m.path("g/inside").exists() && m.path("g/more").exists());
    assert_eq!(fs::read_dir(m.path("f")).unwrap().count(), 0);
    drop((file, tree, other, again, moved, root, session));
    m.unmount();
}

/// One session posts in a stream; what another one asks for comes after that, and a sync of one makes durable what the other has done.
#[test]
fn sessions_in_one_stream() {
    if !can_mount("sessions_in_one_stream") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let (one, two) = (session(&m), session(&m));
    let first = one.root().unwrap().make_dir("one", 0o777).unwrap();
    let second = two.root().unwrap().make_dir("two", 0o777).unwrap();
    let sync = |file: &File| file.sync().unwrap();
    for n in 0..200 {
        let (a, b) = (
            new_file(&first, &format!("f{n}")),
            new_file(&second, &format!("f{n}")),
        );
        a.write_at(format!("a{n}").as_bytes(), 0).unwrap();
        b.write_at(format!("b{n}").as_bytes(), 0).unwrap();
        if n % 20 == 19 {
            sync(if n % 40 == 19 { &a } else { &b });
        }
    }
    let keeps = new_file(&second, "last");
    sync(&keeps);
    // Nothing more is written from here on.
    common::shut_down(&fs::File::open(m.mnt()).unwrap()).unwrap();
    drop((keeps, first, second, one, two));
    m.crash();
    m.mount();
    for n in 0..200 {
        for (dir, letter) in [("one", 'a'), ("two", 'b')] {
            let text = fs::read_to_string(m.path(&format!("{dir}/f{n}"))).unwrap();
            assert_eq!(text, format!("{letter}{n}"));
        }
    }
    m.unmount();
}

/// A full volume says so, at once also where a session has a file open that has no name any more; and goes on when there is room again.
#[test]
fn full() {
    if !can_mount("full") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    let nameless = new_file(&tree, "nameless");
    nameless.write_at(&[1; 5000], 0).unwrap();
    tree.remove_file("nameless").unwrap();
    let full = |e: io::Error| assert_eq!(e.kind(), ErrorKind::StorageFull, "{e}");
    let (mut files, mut accepted) = (Vec::new(), 0u64);
    let begun = std::time::Instant::now();
    'all: for n in 0.. {
        let file = tree.open(format!("f{n}"), OpenOptions::new_file());
        let file = match file {
            Ok(file) => file,
            Err(e) => {
                full(e);
                break;
            }
        };
        for part in 0..64u64 {
            match file.write_at(&[n as u8; 65536], part * 65536) {
                Ok(()) => accepted += 65536,
                Err(e) => {
                    full(e);
                    files.push((file, part * 65536));
                    break 'all;
                }
            }
        }
        files.push((file, 64 * 65536));
    }
    assert!(accepted > 30 << 20, "{accepted}");
    // 10 s for each refusal where the nameless file is waited for.
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
    for (n, (file, size)) in files.iter().enumerate() {
        assert!(file.stat().unwrap().size >= *size, "file {n}");
    }
    assert_eq!(read(&nameless), [1; 5000]);
    drop(files);
    tree.remove_file("f0").unwrap();
    tree.remove_file("f1").unwrap();
    let file = new_file(&tree, "again");
    file.write_at(&[7; 1 << 20], 0).unwrap();
    assert_eq!(fs::read(m.path("tree/again")).unwrap(), [7; 1 << 20]);
    // Of inodes there is an end as well.
    let many = session.root().unwrap().make_dir("many", 0o777).unwrap();
    let made = (0..)
        .take_while(
            |n| match many.open(format!("{n}"), OpenOptions::new_file()) {
                Ok(_) => true,
                Err(e) => {
                    full(e);
                    false
                }
            },
        )
        .count();
    assert!(made > 1000, "{made}");
    assert_eq!(many.read_dir().unwrap().len(), made);
    assert_eq!(fs::read_dir(m.path("many")).unwrap().count(), made);
    drop((file, nameless, tree, many, session));
    m.unmount();
    let image = m.image();
    let fsck = std::process::Command::new("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .unwrap();
    assert!(fsck.status.success(), "{fsck:?}");
}

/// A group takes back all that its member has done by direct calls, for everybody; threads that are in none go on.
#[test]
fn groups() {
    if !can_mount("groups") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    let before = new_file(&tree, "before");
    before.write_at(b"before", 0).unwrap();
    let dir = fs::File::open(m.mnt()).unwrap();
    for commits in [false, true] {
        let handle = ccfs_client::group_begin(&dir, None).unwrap();
        let inside = new_file(&tree, "inside");
        inside.write_at(b"inside", 0).unwrap();
        let sub = tree.make_dir("sub", 0o777).unwrap();
        drop(new_file(&sub, "deep"));
        before.write_at(b"BEFORE", 0).unwrap();
        drop((inside, sub));
        match commits {
            true => ccfs_client::group_commit(&dir, handle, false).unwrap(),
            false => ccfs_client::group_abort(&dir, handle).unwrap(),
        }
        assert_eq!(tree.stat("inside").is_ok(), commits);
        assert_eq!(m.path("tree/sub/deep").exists(), commits);
        let text: &[u8] = if commits { b"BEFORE" } else { b"before" };
        assert_eq!(read(&before), text);
        assert_eq!(fs::read(m.path("tree/before")).unwrap(), text);
    }
    let after = session.root().unwrap().make_dir("after", 0o777).unwrap();
    assert!(new_file(&after, "x").is_direct());
    drop((before, tree, after, dir, session));
    m.unmount();
}

/// By a read-only bind mount nothing is changed, though the daemon could.
#[test]
fn read_only_bind_mounts() {
    if !can_mount("read_only_bind_mounts") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::create_dir(m.path("dir")).unwrap();
    let view = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let ran = std::process::Command::new("mount").args(args).status();
        assert!(ran.unwrap().success(), "{args:?}");
    };
    let (dir, at) = (m.path("dir"), view.path().to_str().unwrap().to_string());
    run(&["--bind", dir.to_str().unwrap(), &at]);
    run(&["-o", "remount,bind,ro", &at]);
    let looked = std::panic::catch_unwind(|| {
        let session = Session::begin(fs::File::open(&at).unwrap()).unwrap();
        let why = session.why_not().map(|e| e.raw_os_error().unwrap());
        assert_eq!(why, Some(libc::EROFS));
        let made = session.root().unwrap().make_dir("x", 0o777).map(drop);
        assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::EROFS));
    });
    common::unmount(view.path());
    looked.unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    m.unmount();
}

/// Opened, looked at and read in one call: what is held, also when it has to be read from the device, and what the kernel knows.
#[test]
fn opened_and_read_at_once() {
    if !can_mount("opened_and_read_at_once") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    {
        let session = session(&m);
        let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
        let content: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
        new_file(&tree, "a").append(&content).unwrap();
        let how = OpenOptions::reading();
        for len in [0, 1, 100, 50_000, 60_000] {
            let mut out = vec![0; len];
            let (file, attr, n) = tree.open_and_read("a", how, &mut out).unwrap();
            assert_eq!((attr.size, n), (50_000, len.min(50_000)));
            assert!(out[..n] == content[..n] && file.is_direct());
        }
        let mut out = [0; 10];
        let cut = OpenOptions {
            truncate: true,
            ..OpenOptions::new_file()
        };
        let (file, attr, n) = tree.open_and_read("a", cut, &mut out).unwrap();
        assert_eq!((attr.size, n), (0, 0));
        file.append(b"after").unwrap();
        drop(file);
        fs::write(m.path("known"), b"known").unwrap();
        let root = session.root().unwrap();
        for name in ["known", "tree"] {
            let found = root.open_and_read(name, how, &mut out);
            match found {
                Ok((file, attr, n)) => {
                    assert_eq!((attr.size, &out[..n]), (5, &b"known"[..]));
                    assert!(!file.is_direct());
                }
                Err(e) => assert_eq!((name, e.raw_os_error()), ("tree", Some(libc::EISDIR))),
            }
        }
        let found = tree.open_and_read("none", how, &mut out);
        assert_eq!(found.err().map(|e| e.kind()), Some(ErrorKind::NotFound));
    }
    m.unmount();
    m.mount();
    // Nothing is in memory: the ring's thread cannot wait for it, and a call does.
    {
        let session = session(&m);
        let tree = session.root().unwrap().make_dir("new", 0o777).unwrap();
        fs::rename(m.path("tree/a"), m.path("new/a")).unwrap();
        let mut out = [0; 10];
        let (_, attr, n) = tree
            .open_and_read("a", OpenOptions::reading(), &mut out)
            .unwrap();
        assert_eq!((attr.size, &out[..n]), (5, &b"after"[..]));
    }
    m.unmount();
}
