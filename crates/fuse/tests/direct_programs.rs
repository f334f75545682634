//! Direct calls as unmodified programs need them (tar, cp, rm, git): attributes, links, and directories that were there before.
mod common;
use ccfs_client::direct::layout::{PLAIN, set};
use ccfs_client::direct::{Attr, OpenOptions, SetAttr};
use ccfs_fuse::FsType;
use common::direct::{count, drop_caches, errno, gives_up, new_file, once_unused, session};
use common::{TestMount, can_mount};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, setxattr,
};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// What the same call through the mount does: chown(2), chmod(2), utimensat(2).
fn set_by_path(path: &Path, set: &SetAttr) {
    let has = |bit| set.mask & bit != 0;
    let id = |bit, id| Some(id).filter(|id| has(bit) && *id != u32::MAX);
    if has(set::UID | set::GID) {
        let (uid, gid) = (id(set::UID, set.uid), id(set::GID, set.gid));
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(CWD, path, uid, gid, AtFlags::empty()).unwrap();
    }
    if has(set::MODE) {
        rustix::fs::chmod(path, Mode::from_raw_mode(set.mode)).unwrap();
    }
    let time = |given, now, tv_sec, ns: u32| match (has(given), has(now)) {
        (_, true) => (0, UTIME_NOW),
        (true, _) => (tv_sec, ns.into()),
        _ => (0, UTIME_OMIT),
    };
    let of = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: of(time(set::ATIME, set::ATIME_NOW, set.atime, set.atime_ns)),
        last_modification: of(time(set::MTIME, set::MTIME_NOW, set.mtime, set.mtime_ns)),
    };
    if has(set::ATIME | set::ATIME_NOW | set::MTIME | set::MTIME_NOW) {
        rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
    }
}

/// Mode, owner, group, and the times that were given.
fn seen(path: &Path, set: &SetAttr) -> String {
    let stat = fs::metadata(path).unwrap();
    let given = |given, now, time| {
        let is_given = set.mask & given != 0 && set.mask & now == 0;
        is_given.then_some(time)
    };
    let times = [
        given(
            set::ATIME,
            set::ATIME_NOW,
            (stat.atime(), stat.atime_nsec()),
        ),
        given(
            set::MTIME,
            set::MTIME_NOW,
            (stat.mtime(), stat.mtime_nsec()),
        ),
    ];
    let (uid, gid) = (stat.uid(), stat.gid());
    format!("{:o} {uid}:{gid} {times:?}", stat.mode())
}

fn changes() -> Vec<SetAttr> {
    let of = |mask, mode, uid, gid| SetAttr {
        mask,
        mode,
        uid,
        gid,
        ..SetAttr::default()
    };
    let times = |mask, atime, mtime, ns| SetAttr {
        mask,
        atime,
        mtime,
        atime_ns: ns,
        mtime_ns: ns / 2,
        ..SetAttr::default()
    };
    let both = set::ATIME | set::MTIME;
    vec![
        of(set::MODE, 0o6755, 0, 0),
        of(set::UID, 0, 1000, 0),
        of(set::MODE, 0o2644, 0, 0),
        of(set::GID, 0, 0, 1000),
        of(set::MODE, 0o7777, 0, 0),
        of(set::UID | set::GID, 0, 0, 0),
        of(set::UID | set::GID | set::MODE, 0o4711, 7, 8),
        of(set::UID | set::GID, 0, 7, 8),
        of(set::MODE | set::UID | set::GID, 0o100644, u32::MAX, 5),
        times(both, 1_000_000_000, 1_234_567_890, 999_999_999),
        times(both, -5, -1_000_000_000, 1),
        times(both, i64::MAX / 4, i64::MIN / 4, 5),
        times(set::MTIME, 0, 77, 7),
        times(set::ATIME | set::MTIME_NOW, 5, 0, 4),
        times(set::ATIME_NOW | set::MTIME_NOW, 0, 0, 0),
        SetAttr {
            mask: set::ALL & !(set::ATIME_NOW | set::MTIME_NOW),
            mode: 0o640,
            uid: 1,
            gid: 2,
            atime: 3,
            mtime: 4,
            atime_ns: 5,
            mtime_ns: 6,
        },
    ]
}

/// What is set is what the kernel's calls would have set, posted or not, for whoever looks then.
#[test]
fn attributes_are_set_as_by_the_kernel() {
    if !can_mount("attributes_are_set_as_by_the_kernel") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    fs::create_dir(m.path("plain")).unwrap();
    for (n, change) in changes().into_iter().enumerate() {
        for before in [0o644, 0o6755, 0o2644] {
            let at = format!("{n}-{before:o}");
            let dir = root.make_dir(format!("d{at}"), 0o755).unwrap();
            let (file, sub) = (new_file(&dir, "f"), dir.make_dir("s", 0o755).unwrap());
            file.set_mode(before).unwrap();
            let posted = count(&m, "posted");
            file.set_attr(&change).unwrap();
            sub.set_attr(&change).unwrap();
            session.drain().unwrap();
            assert!(count(&m, "posted") >= posted + 2, "{change:?}");
            assert!(file.is_direct() && sub.is_direct());
            let attr = file.stat().unwrap();
            let (real, real_sub) = (
                m.path(&format!("plain/f{at}")),
                m.path(&format!("plain/s{at}")),
            );
            fs::write(&real, "").unwrap();
            fs::set_permissions(&real, fs::Permissions::from_mode(before)).unwrap();
            fs::create_dir(&real_sub).unwrap();
            set_by_path(&real, &change);
            set_by_path(&real_sub, &change);
            for (held, real) in [("f", real), ("s", real_sub)] {
                let held = m.path(&format!("d{at}/{held}"));
                assert_eq!(
                    seen(&held, &change),
                    seen(&real, &change),
                    "{change:?} {before:o}"
                );
            }
            let stat = fs::metadata(m.path(&format!("d{at}/f"))).unwrap();
            let both = |a: &Attr| (a.mode, a.mtime, a.ctime, a.ctime_ns);
            let shown = (
                stat.mode(),
                stat.mtime(),
                stat.ctime(),
                stat.ctime_nsec() as u32,
            );
            assert_eq!(both(&attr), shown);
            // The kernel knows them by now.
            assert!(stat.ctime() > 1_700_000_000);
            file.set_attr(&change).unwrap();
            sub.set_attr(&change).unwrap();
            assert!(!file.is_direct() && !sub.is_direct());
            assert_eq!(
                sub.attr().unwrap().mode,
                fs::metadata(m.path(&format!("d{at}/s"))).unwrap().mode()
            );
        }
    }
    let file = new_file(&root.make_dir("bad", 0o755).unwrap(), "f");
    let nothing = SetAttr::default();
    for (mask, ns, error) in [
        (128, 0, libc::EINVAL),
        (u32::MAX, 0, libc::EINVAL),
        (set::ATIME, 1_000_000_000, libc::EINVAL),
        (set::MTIME, u32::MAX, libc::EINVAL),
        (set::MTIME_NOW, u32::MAX, 0),
        (0, u32::MAX, 0),
    ] {
        let wrong = SetAttr {
            mask,
            atime_ns: ns,
            mtime_ns: ns,
            ..nothing
        };
        assert_eq!(errno(file.set_attr(&wrong)), error, "{wrong:?}");
    }
    drop((file, root, session));
    m.unmount();
}

/// An access list is changed with the mode; it is inherited, and what has one says so.
#[test]
fn access_lists() {
    if !can_mount("access_lists") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let entry = |tag: u16, perm: u16, id: u32| {
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 7, u32::MAX),
        entry(2, 6, 1000),
        entry(4, 5, u32::MAX),
        entry(16, 7, u32::MAX),
        entry(32, 0, u32::MAX),
    ]
    .concat();
    fs::create_dir(m.path("listed")).unwrap();
    let name = "system.posix_acl_default";
    setxattr(m.path("listed"), name, &list, XattrFlags::empty()).unwrap();
    let session = session(&m);
    let root = session.root().unwrap();
    let listed = root.open_dir("listed").unwrap();
    for (parent, plain, at) in [(&listed, false, "listed"), (&root, true, "")] {
        let dir = parent.make_dir("dir", 0o777).unwrap();
        assert_eq!(dir.attr().unwrap().flags & PLAIN != 0, plain);
        let made = dir
            .open_with("f", OpenOptions::new_file(), &mut [])
            .unwrap();
        // What it inherits only the daemon knows.
        assert!(made.made && made.plain == plain && (plain || made.attr.is_none()));
        made.file.set_mode(0o640).unwrap();
        assert_eq!(made.file.stat().unwrap().flags & PLAIN != 0, plain);
        let found = dir.open_with("f", OpenOptions::reading(), &mut []).unwrap();
        assert!(!found.made && found.plain == plain);
        let mode = fs::metadata(m.path(at).join("dir/f")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(count(&m, "failed"), 0);
    }
    let text = fs::metadata(m.path("listed/dir/f")).unwrap().mode();
    assert_eq!(text & 0o777, 0o640);
    drop((listed, root, session));
    m.unmount();
}

#[test]
fn opened_with_what_is_known() {
    if !can_mount("opened_with_what_is_known") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    let create = OpenOptions {
        exclusive: false,
        ..OpenOptions::new_file()
    };
    let mut out = [0; 10];
    for (dir, known) in [(&tree, false), (&root, true)] {
        let made = dir.open_with("f", create, &mut out).unwrap();
        assert!(made.made && made.read == 0);
        assert_eq!(made.attr.is_some(), known);
        made.file.append(b"content").unwrap();
        drop(made);
        let found = dir.open_with("f", create, &mut out).unwrap();
        assert!(!found.made && &out[..found.read] == b"content");
        assert_eq!(found.attr.unwrap().size, 7);
        let write_only = OpenOptions {
            read: false,
            ..create
        };
        assert_eq!(dir.open_with("f", write_only, &mut out).unwrap().read, 0);
        let cut = OpenOptions {
            truncate: true,
            ..create
        };
        let found = dir.open_with("f", cut, &mut out).unwrap();
        assert!(!found.made && found.read == 0);
        assert_eq!(found.file.stat().unwrap().size, 0);
        assert!(found.attr.is_none_or(|a| a.size == 0));
        assert_eq!(
            errno(dir.open_with("f", OpenOptions::new_file(), &mut out)),
            libc::EEXIST
        );
    }
    // A mask for what is made from here on.
    session.set_umask(0o027);
    drop(new_file(&tree, "masked"));
    tree.make_dir("masked_dir", 0o777).unwrap();
    session.set_umask(0);
    drop(new_file(&tree, "open"));
    let mode = |name: &str| fs::metadata(m.path(name)).unwrap().mode() & 0o777;
    assert_eq!(
        (
            mode("tree/masked"),
            mode("tree/masked_dir"),
            mode("tree/open")
        ),
        (0o640, 0o750, 0o666)
    );
    drop((tree, root, session));
    m.unmount();
}

/// Descriptors, by which the object goes on through the mount.
#[test]
fn real_descriptors() {
    if !can_mount("real_descriptors") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    let sub = tree.make_dir("sub", 0o777).unwrap();
    let file = new_file(&sub, "f");
    file.append(b"before").unwrap();
    assert!(tree.is_direct() && sub.is_direct() && file.is_direct());
    let fd = fs::File::from(file.real_descriptor().unwrap());
    assert!(!file.is_direct() && !sub.is_direct());
    assert_eq!(fd.metadata().unwrap().len(), 6);
    file.append(b", after").unwrap();
    let dir = sub.real_descriptor().unwrap();
    rustix::fs::statat(dir.as_fd(), "f", AtFlags::empty()).unwrap();
    let flags = rustix::io::fcntl_getfd(&dir).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    assert_eq!(fd.metadata().unwrap().len(), 13);
    drop(dir);
    let dir = tree.real_descriptor().unwrap();
    assert_eq!(
        rustix::fs::fstat(&dir).unwrap().st_ino,
        tree.attr().unwrap().ino
    );
    drop((fd, dir, file, sub, tree, session));
    m.unmount();
}

/// Several names of one file, all of them held; whoever looks at one sees what the others did.
#[test]
fn links() {
    if !can_mount("links") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let (a, b) = (
        root.make_dir("a", 0o777).unwrap(),
        root.make_dir("b", 0o777).unwrap(),
    );
    let c = b.make_dir("c", 0o777).unwrap();
    let file = new_file(&a, "f");
    file.append(b"one").unwrap();
    a.link("f", &a, "g").unwrap();
    a.link("g", &b, "f").unwrap();
    assert_eq!(errno(a.link("f", &b, "f")), libc::EEXIST);
    assert_eq!(errno(a.link("none", &b, "x")), libc::ENOENT);
    assert_eq!(file.stat().unwrap().nlink, 3);
    // The same file: this does nothing.
    a.rename("f", &a, "g").unwrap();
    a.rename("f", &b, "f").unwrap();
    assert_eq!(errno(a.open("f", OpenOptions::new_file())), libc::EEXIST);
    assert_eq!(errno(a.rename_with("f", &b, "f", true)), libc::EEXIST);
    a.rename("g", &c, "h").unwrap();
    assert!(a.is_direct() && b.is_direct() && c.is_direct() && file.is_direct());
    drop(file);
    // Somebody looks at one of them.
    let looked = m.path("a/f");
    assert_eq!(fs::metadata(&looked).unwrap().nlink(), 3);
    assert!(!a.is_direct() && !b.is_direct() && !c.is_direct());
    b.remove_file("f").unwrap();
    assert_eq!(fs::metadata(&looked).unwrap().nlink(), 2);
    c.remove_file("h").unwrap();
    assert_eq!(fs::metadata(&looked).unwrap().nlink(), 1);
    assert_eq!(fs::read(&looked).unwrap(), b"one");
    // Listed with attributes, a name that somebody may look at, whose other name is still held.
    let (d, e) = (
        root.make_dir("d", 0o777).unwrap(),
        root.make_dir("e", 0o777).unwrap(),
    );
    drop(new_file(&d, "f"));
    d.link("f", &e, "f").unwrap();
    for entry in fs::read_dir(m.path("d")).unwrap() {
        entry.unwrap();
    }
    assert!(!d.is_direct() && e.is_direct());
    assert_eq!(fs::metadata(m.path("d/f")).unwrap().nlink(), 2);
    e.remove_file("f").unwrap();
    assert_eq!(fs::metadata(m.path("d/f")).unwrap().nlink(), 1);
    // What has no links but those that it had; a directory; a symbolic link.
    assert_eq!(errno(root.link("d", &e, "x")), libc::EPERM);
    let g = root.make_dir("g", 0o777).unwrap();
    g.symlink("to/nowhere", "s").unwrap();
    g.link("s", &g, "t").unwrap();
    assert_eq!(
        fs::read_link(m.path("g/t")).unwrap(),
        Path::new("to/nowhere")
    );
    drop((a, b, c, d, e, g, root, session));
    m.unmount();
}

/// A directory with a file that has another name elsewhere is not held: whoever looks there would not be told.
#[test]
fn links_that_were_there_before() {
    if !can_mount("links_that_were_there_before") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    for name in ["linked", "alone"] {
        let dir = tree.make_dir(name, 0o777).unwrap();
        drop(new_file(&dir, "f"));
    }
    drop(tree);
    fs::hard_link(m.path("tree/linked/f"), m.path("other")).unwrap();
    drop_caches();
    let looked = m.path("other");
    assert_eq!(fs::metadata(&looked).unwrap().nlink(), 2);
    if !gives_up("links_that_were_there_before") {
        return;
    }
    let tree = once_unused(|| root.take_dir("tree"));
    assert!(tree.is_direct());
    let alone = tree.open_dir("alone").unwrap();
    assert!(alone.is_direct());
    let linked = tree.open_dir("linked").unwrap();
    assert!(!linked.is_direct());
    linked.remove_file("f").unwrap();
    assert_eq!(fs::metadata(&looked).unwrap().nlink(), 1);
    drop((alone, linked, tree, root, session));
    m.unmount();
}

#[test]
fn symbolic_links() {
    if !can_mount("symbolic_links") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    let long = "x/".repeat(400);
    for (dir, at) in [(&tree, "tree"), (&root, "")] {
        dir.symlink("target", "short").unwrap();
        dir.symlink(&long, "long").unwrap();
        assert_eq!(errno(dir.symlink("x", "short")), libc::EEXIST);
        assert_eq!(errno(dir.symlink("", "empty")), libc::ENOENT);
        assert_eq!(
            errno(dir.symlink("x".repeat(4096), "much")),
            libc::ENAMETOOLONG
        );
        assert_eq!(dir.read_link("short").unwrap(), "target");
        assert_eq!(dir.read_link("long").unwrap(), long.as_str());
        drop(new_file(dir, "file"));
        assert_eq!(errno(dir.read_link("file")), libc::EINVAL);
        assert_eq!(errno(dir.read_link("none")), libc::ENOENT);
        assert_eq!(
            errno(dir.open("short", OpenOptions::reading())),
            libc::ELOOP
        );
        assert_eq!(
            errno(dir.open("short", OpenOptions::new_file())),
            libc::EEXIST
        );
        assert_eq!(
            errno(dir.take_dir("short")),
            if at.is_empty() {
                libc::ENOTDIR
            } else {
                libc::EBUSY
            }
        );
        assert_eq!(dir.stat("short").unwrap().mode, 0o120777);
        dir.symlink("gone", "gone").unwrap();
        dir.remove_file("gone").unwrap();
        assert_eq!(errno(dir.stat("gone")), libc::ENOENT);
        assert_eq!(dir.is_direct(), !at.is_empty());
        let read = |name| fs::read_link(m.path(at).join(name)).unwrap();
        assert_eq!(
            (read("short").to_str(), read("long").to_str()),
            (Some("target"), Some(&*long))
        );
    }
    drop((tree, root, session));
    m.unmount();
}

#[test]
fn renamed_only_where_nothing_is() {
    if !can_mount("renamed_only_where_nothing_is") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    let sub = tree.make_dir("sub", 0o777).unwrap();
    for dir in [&tree, &root] {
        drop((new_file(dir, "a"), new_file(dir, "b")));
        assert_eq!(errno(dir.rename_with("a", dir, "b", true)), libc::EEXIST);
        assert_eq!(errno(dir.rename_with("a", dir, "a", true)), libc::EEXIST);
        assert_eq!(errno(dir.rename_with("none", dir, "b", true)), libc::ENOENT);
        dir.rename_with("a", dir, "c", true).unwrap();
        dir.rename_with("c", dir, "b", false).unwrap();
    }
    drop(new_file(&sub, "b"));
    assert_eq!(errno(tree.rename_with("b", &sub, "b", true)), libc::EEXIST);
    // A directory below itself, which is there: as the kernel has it.
    assert_eq!(
        errno(tree.rename_with("sub", &sub, "b", true)),
        libc::EEXIST
    );
    assert_eq!(
        errno(tree.rename_with("sub", &sub, "x", true)),
        libc::EINVAL
    );
    tree.rename_with("b", &sub, "c", true).unwrap();
    assert!(tree.is_direct() && sub.is_direct());
    let names = fs::read_dir(m.path("tree/sub")).unwrap().count();
    assert_eq!(names, 2);
    drop((sub, tree, root, session));
    m.unmount();
}

/// What is listed is known, and so its removal is posted; nothing else is taken for known.
#[test]
fn listed_names_are_known() {
    if !can_mount("listed_names_are_known") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    {
        let dir = tree.make_dir("dir", 0o777).unwrap();
        for n in 0..300 {
            drop(new_file(&dir, &format!("f{n}")));
        }
        dir.symlink("x", "link").unwrap();
        dir.make_dir("sub", 0o777).unwrap();
    }
    let dir = tree.open_dir("dir").unwrap();
    assert!(dir.is_direct());
    let remove = |name: &str| dir.remove_file(name).unwrap();
    remove("f0");
    let posted = count(&m, "posted");
    remove("f1");
    assert!(
        count(&m, "posted") <= posted + 1,
        "its names are not known yet"
    );
    assert_eq!(dir.read_dir().unwrap().len(), 300);
    session.drain().unwrap();
    let (posted, asked) = (count(&m, "posted"), count(&m, "asked"));
    (2..200).for_each(|n| remove(&format!("f{n}")));
    remove("link");
    session.drain().unwrap();
    assert!(count(&m, "posted") >= posted + 199);
    assert!(count(&m, "asked") <= asked + 2);
    assert_eq!(errno(dir.remove_file("f1")), libc::ENOENT);
    assert_eq!(errno(dir.remove_file("sub")), libc::EISDIR);
    assert_eq!(
        errno(dir.open("f200", OpenOptions::new_file())),
        libc::EEXIST
    );
    drop(new_file(&dir, "new"));
    assert_eq!(
        errno(dir.open("new", OpenOptions::new_file())),
        libc::EEXIST
    );
    dir.remove_file("new").unwrap();
    assert!(dir.is_direct());
    // Others change it: what was known is not believed any more.
    fs::write(m.path("tree/dir/theirs"), "x").unwrap();
    assert_eq!(dir.read_dir().unwrap().len(), 102);
    fs::remove_file(m.path("tree/dir/f200")).unwrap();
    drop(new_file(&dir, "f200"));
    dir.remove_file("theirs").unwrap();
    assert_eq!(errno(fs::metadata(m.path("tree/dir/theirs"))), libc::ENOENT);
    assert_eq!(count(&m, "failed"), 0);
    drop((dir, tree, root, session));
    m.unmount();
}

/// That the kernel remembers what is not there keeps nobody from taking the directory.
#[test]
fn directories_with_missed_names_are_taken() {
    if !can_mount("missed_names") || !gives_up("missed_names") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::create_dir_all(m.path("d/sub")).unwrap();
    let session = session(&m);
    let root = session.root().unwrap();
    for name in ["none", "none", "sub/none", "other"] {
        assert_eq!(errno(fs::metadata(m.path("d").join(name))), libc::ENOENT);
    }
    // One of them is there by now, and somebody is in it: it stays where it is.
    fs::create_dir(m.path("d/other")).unwrap();
    fs::write(m.path("d/gone"), "g").unwrap();
    fs::remove_file(m.path("d/gone")).unwrap();
    let inside = fs::File::open(m.path("d/other")).unwrap();
    assert_eq!(errno(root.take_dir("d")), libc::EBUSY);
    let link = fs::read_link(format!("/proc/self/fd/{}", inside.as_raw_fd())).unwrap();
    assert_eq!(link, m.path("d/other"));
    drop(inside);
    fs::remove_dir(m.path("d/other")).unwrap();
    let dir = root.take_dir("d").unwrap();
    assert!(dir.is_direct());
    assert_eq!(dir.read_dir().unwrap().len(), 1);
    drop((dir, root, session));
    m.unmount();
}

/// A directory that the kernel knows is held once the kernel has forgotten it, with all that is in it.
#[test]
fn directories_are_taken() {
    if !can_mount("directories_are_taken") || !gives_up("directories_are_taken") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::create_dir_all(m.path("d/sub")).unwrap();
    fs::write(m.path("d/f"), "f").unwrap();
    fs::write(m.path("d/sub/g"), "g").unwrap();
    fs::write(m.path("file"), "g").unwrap();
    symlink("d", m.path("link")).unwrap();
    let session = session(&m);
    let root = session.root().unwrap();
    for (name, error) in [
        ("none", libc::ENOENT),
        ("file", libc::ENOTDIR),
        ("link", libc::ENOTDIR),
        (".ccfs", libc::EPERM),
    ] {
        assert_eq!(errno(root.take_dir(name)), error, "{name}");
    }
    let busy = |what: &str| {
        drop_caches();
        assert_eq!(errno(root.take_dir("d")), libc::EBUSY, "{what}");
    };
    let user = fs::File::open(m.path("d")).unwrap();
    busy("it is open");
    drop(user);
    let user = fs::File::open(m.path("d/sub/g")).unwrap();
    busy("something below it is open");
    drop(user);
    let dir = once_unused(|| root.take_dir("d"));
    assert!(dir.is_direct());
    let again = root.take_dir("d").unwrap();
    assert!(again.is_direct());
    drop(again);
    assert_eq!(dir.read_dir().unwrap().len(), 2);
    let sub = dir.open_dir("sub").unwrap();
    assert!(sub.is_direct());
    sub.remove_file("g").unwrap();
    dir.remove_dir("sub").unwrap();
    assert_eq!(errno(root.remove_dir("d")), libc::ENOTEMPTY);
    assert!(!dir.is_direct());
    dir.remove_file("f").unwrap();
    drop((sub, dir));
    root.remove_dir("d").unwrap();
    assert_eq!(errno(fs::metadata(m.path("d"))), libc::ENOENT);
    // By a file handle the kernel knows what is in a directory that it does not know.
    fs::create_dir(m.path("e")).unwrap();
    fs::write(m.path("e/f"), "f").unwrap();
    let handle = common::handle_of(&m.path("e/f"));
    drop_caches();
    let opened = common::open_handle(&m.mnt(), &handle).unwrap();
    drop_caches();
    match root.take_dir("e") {
        Ok(dir) => {
            // The kernel has found its directory as well, perhaps, and forgotten it.
            dir.remove_file("f").unwrap();
        }
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(libc::EBUSY));
            fs::remove_file(m.path("e/f")).unwrap();
        }
    }
    assert_eq!(opened.metadata().unwrap().nlink(), 0);
    drop((opened, root, session));
    m.unmount();
}
