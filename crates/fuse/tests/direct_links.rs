//! Other names of new files: Git makes each object under one, and links it to another.
mod common;
use ccfs_client::direct::OpenOptions;
use ccfs_fuse::FsType;
use common::direct::{asked, errno, new_file, session};
use common::{TestMount, can_mount};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[test]
fn nobody_waits_for_the_name_of_a_new_file() {
    if !can_mount("nobody_waits_for_the_name_of_a_new_file") {
        return;
    }
    const FILES: u64 = 500;
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let top = session.root().unwrap().make_dir("top", 0o755).unwrap();
    let (from, to) = (
        top.make_dir("from", 0o755).unwrap(),
        top.make_dir("to", 0o755).unwrap(),
    );
    let before = asked(&m);
    for n in 0..FILES {
        let name = format!("f{n}");
        let file = new_file(&from, &name);
        file.append(name.as_bytes()).unwrap();
        drop(file);
        let into = if n % 5 == 0 { &from } else { &to };
        from.link(&name, into, format!("g{n}")).unwrap();
        assert_eq!(errno(from.link(&name, into, format!("g{n}"))), libc::EEXIST);
        if n % 3 == 0 {
            from.remove_file(&name).unwrap();
            assert_eq!(errno(from.link(&name, &to, "x")), libc::ENOENT);
        }
    }
    let waited = asked(&m) - before;
    // Each second link is refused by an answer.
    assert!(
        waited < FILES + FILES / 2,
        "{waited} answers for {FILES} files"
    );
    for n in 0..FILES {
        let (name, dir) = (format!("f{n}"), if n % 5 == 0 { "from" } else { "to" });
        let other = m.path(&format!("top/{dir}/g{n}"));
        assert_eq!(fs::read(&other).unwrap(), name.as_bytes());
        let (links, first) = (
            fs::metadata(&other).unwrap().nlink(),
            m.path("top/from").join(&name),
        );
        assert_eq!(
            (links, first.exists()),
            if n % 3 == 0 { (1, false) } else { (2, true) }
        );
    }
    drop((from, to, top, session));
    m.unmount();
}

/// Others look all the time at what gets names.
#[test]
fn others_look_at_files_that_get_names() {
    if !can_mount("others_look_at_files_that_get_names") {
        return;
    }
    const ROUNDS: u64 = 60;
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !over.load(Relaxed) {
                n += 1;
                for round in 0..ROUNDS {
                    let path = m.path(&format!("a{round}/f{}", n % 7));
                    if let Ok(seen) = fs::metadata(&path)
                        && let Ok(other) = fs::metadata(m.path(&format!("b{round}/g{}", n % 7)))
                    {
                        assert_eq!(seen.ino(), other.ino());
                    }
                }
            }
        });
        for round in 0..ROUNDS {
            let a = root.make_dir(format!("a{round}"), 0o755).unwrap();
            let b = root.make_dir(format!("b{round}"), 0o755).unwrap();
            for n in 0..7 {
                let name = format!("f{n}");
                drop(a.open(&name, OpenOptions::new_file()).unwrap());
                a.link(&name, &b, format!("g{n}")).unwrap();
            }
            for n in 0..7 {
                assert_eq!(b.stat(format!("g{n}")).unwrap().nlink, 2);
                let names = [
                    m.path(&format!("a{round}/f{n}")),
                    m.path(&format!("b{round}/g{n}")),
                ];
                let [one, other] = names.map(|path| fs::metadata(path).unwrap());
                assert_eq!((one.ino(), one.nlink()), (other.ino(), 2));
            }
        }
        over.store(true, Relaxed);
    });
    drop((root, session));
    m.unmount();
}
