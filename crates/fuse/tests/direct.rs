//! Calls through shared memory, and what others see of them through the mount.
mod common;
use ccfs_client::direct::{Dir, File, OpenOptions, Session};
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

fn session(m: &TestMount) -> Session {
    let session = Session::begin(fs::File::open(m.mnt()).unwrap()).unwrap();
    assert!(session.is_direct(), "{:?}", session.why_not());
    session
}

fn new_file(dir: &Dir, name: &str) -> File {
    dir.open(name, OpenOptions::new_file()).unwrap()
}

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
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
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

/// A file that is there consists of whole parts in their order.
fn check(path: &Path) -> bool {
    let Ok(file) = fs::File::open(path) else {
        return false;
    };
    let size = file.metadata().unwrap().len() as usize;
    let mut bytes = vec![9; 6000];
    let n = file.read_at(&mut bytes, 0).unwrap();
    assert!(n >= size, "{n} bytes of {size}");
    assert_eq!(n % 1000, 0, "half a part");
    for (at, part) in bytes[..n].chunks(1000).enumerate() {
        assert!(part.iter().all(|b| usize::from(*b) == at), "part {at}");
    }
    true
}
