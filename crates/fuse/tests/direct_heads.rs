//! What small files begin with, told in advance, and opens of such files that nobody waits for.
mod common;
use ccfs_client::direct::layout::{HEADS_MAX, SMALL, set};
use ccfs_client::direct::{Dir, Head, OpenOptions, SetAttr};
use ccfs_fuse::FsType;
use ccfs_testkit::Rng;
use common::direct::{errno, gives_up, new_file, session, small_and_others};
use common::{TestMount, can_mount};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A counter of the daemon's.
fn count(m: &TestMount, name: &str) -> u64 {
    let text = fs::read_to_string(m.path(".ccfs/status.json")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    status["direct"][name].as_u64().unwrap()
}

fn heads(dir: &Dir, names: &[&str]) -> io::Result<Vec<Option<Head>>> {
    dir.heads(names.iter().map(|name| OsStr::new(*name)))
}

fn head(dir: &Dir, name: &str) -> Head {
    heads(dir, &[name]).unwrap().remove(0).expect(name)
}

fn write(dir: &Dir, name: &str, content: &[u8]) {
    new_file(dir, name).append(content).unwrap();
}

const OLD: SetAttr = SetAttr {
    mask: set::ATIME,
    atime: 1_000_000_000,
    mode: 0,
    uid: 0,
    gid: 0,
    mtime: 0,
    atime_ns: 0,
    mtime_ns: 0,
};

#[test]
fn small_files_are_told_and_opened() {
    if !can_mount("small_files_are_told_and_opened") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    small_and_others(&tree, write);
    let names = ["a", "empty", "most", "none", "large", "one", "link", "sub"];
    let all = heads(&tree, &names).unwrap();
    let sizes: Vec<_> = all
        .iter()
        .map(|h| h.as_ref().map(|h| h.content.len()))
        .collect();
    let expected = [Some(7), Some(0), Some(SMALL)];
    assert_eq!(sizes[..3], expected);
    assert_eq!(sizes[3..], [None; 5]);
    let a = all[0].clone().unwrap();
    assert_eq!((&a.content[..], a.attr.size), (&b"content"[..], 7));
    // What does not fit any more is not told.
    for n in 0..20 {
        write(&tree, &format!("m{n}"), &vec![n; SMALL]);
    }
    let many: Vec<_> = (0..20).map(|n| format!("m{n}")).collect();
    let told = tree.heads(many.iter().map(OsStr::new)).unwrap();
    assert_eq!(told.len(), (128 << 10) / Head::room(SMALL as u64));
    for (n, one) in (0..).zip(&told) {
        assert!(one.as_ref().unwrap().content == vec![n; SMALL]);
    }
    for names in [&["a/b"][..], &["."], &[""], &["a", ".."], &[]] {
        assert_ne!(errno(heads(&tree, names)), 0, "{names:?}");
    }
    assert_eq!(errno(heads(&tree, &["a"; HEADS_MAX + 1])), libc::EINVAL);
    assert!(heads(&tree, &["a"; HEADS_MAX]).unwrap().len() > 100);
    // An open that waits for nothing; only by it the file is read.
    tree.open("a", OpenOptions::default())
        .unwrap()
        .set_attr(&OLD)
        .unwrap();
    let a = head(&tree, "a");
    assert_eq!(tree.stat("a").unwrap().atime, OLD.atime);
    session.drain().unwrap();
    let asked = count(&m, "asked");
    let file = tree.open_known("a", &a.attr).unwrap().unwrap();
    let known = ["none", "sub", "link"].map(|n| tree.open_known(n, &a.attr).unwrap().is_some());
    assert_eq!(known, [false; 3]);
    assert_eq!(count(&m, "asked"), asked);
    assert!(tree.stat("a").unwrap().atime > OLD.atime);
    let mut out = [0; 10];
    assert_eq!(file.read_at(&mut out, 0).unwrap(), 7);
    assert_eq!(errno(file.append(b"x")), libc::EBADF);
    file.set_mode(0o640).unwrap();
    file.barrier().unwrap();
    assert!(file.is_direct() && tree.is_direct());
    // The kernel gets to know it.
    assert_eq!(
        fs::metadata(m.path("tree/a")).unwrap().mode() & 0o777,
        0o640
    );
    assert!(!file.is_direct());
    file.set_mode(0o600).unwrap();
    assert_eq!(
        fs::metadata(m.path("tree/a")).unwrap().mode() & 0o777,
        0o600
    );
    assert_eq!(errno(heads(&tree, &["a"])), libc::EOPNOTSUPP);
    assert!(tree.open_known("a", &a.attr).unwrap().is_none());
    assert_eq!(count(&m, "failed"), 0);
    drop((file, tree, root, session));
    m.unmount();
}

/// Nothing is in memory: a call reads it all.
#[test]
fn files_on_the_device_are_told() {
    if !can_mount("files_on_the_device_are_told") || !gives_up("files_on_the_device_are_told") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::create_dir(m.path("d")).unwrap();
    for n in 0..40 {
        fs::write(m.path("d").join(n.to_string()), vec![n; 3000]).unwrap();
    }
    m.unmount();
    m.mount();
    let session = session(&m);
    let root = session.root().unwrap();
    let dir = root.take_dir("d").unwrap();
    let names: Vec<_> = (0..40).map(|n| n.to_string()).collect();
    let told = dir.heads(names.iter().map(OsStr::new)).unwrap();
    assert_eq!(told.len(), 40);
    for (n, one) in (0..).zip(&told) {
        assert!(one.as_ref().unwrap().content == vec![n; 3000], "{n}");
    }
    // Whether the names are so nobody knows before they were listed.
    let attr = told[0].as_ref().unwrap().attr;
    assert!(dir.open_known("0", &attr).unwrap().is_none());
    dir.read_dir().unwrap();
    assert!(dir.open_known("0", &attr).unwrap().is_some());
    drop((dir, root, session));
    m.unmount();
}

/// Others look files up while they are opened so: what the program does is done, and nothing fails.
#[test]
fn others_look_while_files_are_opened() {
    if !can_mount("others_look_while_files_are_opened") {
        return;
    }
    const FILES: usize = 8;
    const LOOKS: Duration = Duration::from_secs(4);
    const PATIENCE: Duration = Duration::from_secs(60);
    // What others have looked at an older kernel does not give up again.
    let enough = match gives_up("others_look_while_files_are_opened: how many opens are posted") {
        true => 101,
        false => 0,
    };
    let begun = Instant::now();
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let (mnt, stop, round) = (m.mnt(), AtomicBool::new(false), AtomicUsize::new(0));
    let mut posted = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(5);
            while !stop.load(Ordering::SeqCst) && begun.elapsed() < 2 * PATIENCE {
                let dir = mnt.join(format!("d{}", round.load(Ordering::SeqCst)));
                std::thread::sleep(Duration::from_micros(rng.below(300)));
                let _ = fs::read(dir.join(rng.below(FILES as u64).to_string()));
            }
        });
        while begun.elapsed() < LOOKS || posted < enough && begun.elapsed() < PATIENCE {
            let n = round.fetch_add(1, Ordering::SeqCst) + 1;
            let dir = root.make_dir(format!("d{n}"), 0o777).unwrap();
            let names = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| n.to_string());
            names
                .iter()
                .for_each(|name| write(&dir, name, name.as_bytes()));
            let told = dir.heads(names.iter().map(OsStr::new)).unwrap_or_default();
            for (name, one) in names.iter().zip(told) {
                let Some(one) = one else {
                    continue;
                };
                assert_eq!(one.content, name.as_bytes());
                if let Some(file) = dir.open_known(name, &one.attr).unwrap() {
                    posted += 1;
                    file.set_mode(0o400 + posted % 8).unwrap();
                    let at = mnt.join(format!("d{n}")).join(name);
                    if posted % 5 == 0 {
                        let mode = fs::metadata(at).unwrap().mode();
                        assert_eq!(mode & 0o777, 0o400 + posted % 8, "d{n}/{name}");
                    } else {
                        assert_eq!(file.stat().unwrap().mode & 0o777, 0o400 + posted % 8);
                    }
                }
            }
            names.iter().for_each(|n| dir.remove_file(n).unwrap());
            root.remove_dir(format!("d{n}")).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    println!("{posted} opens, {} rounds", round.load(Ordering::SeqCst));
    assert!(posted >= enough);
    assert_eq!(count(&m, "failed"), 0);
    drop((root, session));
    m.unmount();
}
