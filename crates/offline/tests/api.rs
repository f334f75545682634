//! Single files: paths in all their forms, contents, errors.
mod common;
use ccfs_offline::{Access, Error, Offline};
use common::{Place, e2fsck, names, open};

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> i32 {
    result.unwrap_err().errno()
}

fn sample(place: &Place) -> Offline {
    let volume = open(&place.image("a.img"));
    volume.mkdir_all("/a/b/c").unwrap();
    volume.write("/a/file", b"content").unwrap();
    volume.symlink(b"b/c", "/a/to-c").unwrap();
    volume.symlink(b"/a/file", "/to-file").unwrap();
    volume.symlink(b"nowhere", "/dangling").unwrap();
    volume.symlink(b"loop", "/loop").unwrap();
    volume
}

#[test]
fn paths_lead_where_they_do_on_a_mount() {
    let place = Place::new();
    let volume = sample(&place);
    let ino = |path: &str| volume.stat(path).map(|a| a.ino);
    let c = ino("/a/b/c").unwrap();
    for path in [
        "a/b/c",
        "/a//b///c",
        "/a/b/c/",
        "/a/b/c/.",
        "/a/./b/../b/c",
        "/a/to-c",
        "/a/to-c/",
        "/a/to-c/../c",
        "../../a/b/c",
        "/a/b/c/../../../a/b/c/./",
    ] {
        assert_eq!(ino(path).unwrap(), c, "{path}");
    }
    for root in ["", "/", ".", "..", "/..", "/a/..", "//"] {
        assert_eq!(ino(root).unwrap(), 2, "{root}");
    }
    assert_eq!(ino("/to-file").unwrap(), ino("/a/file").unwrap());
    for (path, error) in [
        ("/a/file/", libc::ENOTDIR),
        ("/a/file/.", libc::ENOTDIR),
        ("/a/file/..", libc::ENOTDIR),
        ("/to-file/", libc::ENOTDIR),
        ("/missing", libc::ENOENT),
        ("/missing/x", libc::ENOENT),
        ("/missing/..", libc::ENOENT),
        ("/dangling", libc::ENOENT),
        ("/loop", libc::ELOOP),
        ("/loop/x", libc::ELOOP),
    ] {
        assert_eq!(code(volume.stat(path)), error, "{path}");
    }
    let long = format!("/{}", "n".repeat(256));
    assert_eq!(code(volume.stat(&long)), libc::ENAMETOOLONG);
    assert_eq!(code(volume.write(&long, b"")), libc::ENAMETOOLONG);
    assert!(volume.lstat("/dangling").is_ok() && volume.lstat("/loop").is_ok());
    assert_eq!(volume.read_link("/a/to-c").unwrap(), b"b/c");
}

#[test]
fn what_changes_names_is_strict_about_dots_and_slashes() {
    let place = Place::new();
    let volume = sample(&place);
    for (path, error) in [
        ("/", libc::EBUSY),
        ("/a/.", libc::EINVAL),
        ("/a/b/..", libc::EINVAL),
        ("/a/to-c/", libc::ENOTDIR),
        ("/a/file/", libc::ENOTDIR),
        ("/a", libc::ENOTEMPTY),
        ("/missing", libc::ENOENT),
        ("/missing/", libc::ENOENT),
    ] {
        assert_eq!(code(volume.remove(path)), error, "remove {path}");
    }
    for path in ["/", "/a/.", "/a/b/..", "/a/to-c/", "/a/file/", "/missing"] {
        volume.remove_all(path).unwrap_err();
    }
    assert_eq!(
        names(&volume, "/a"),
        ["b", "file", "to-c"],
        "nothing is gone"
    );
    for path in ["/a", "/a/", "/a/.", "/a/..", "/", "/dangling", "/a/file"] {
        volume.mkdir(path).unwrap_err();
    }
    assert_eq!(code(volume.mkdir("/x/.")), libc::ENOENT);
    volume.mkdir("/new/").unwrap();
    volume.mkdir_all("/x/./y//z/../w/").unwrap();
    assert_eq!(names(&volume, "/x/y"), ["w", "z"]);
    volume.mkdir_all("/x/y").unwrap();
    assert_eq!(code(volume.mkdir_all("/a/file")), libc::EEXIST);
    assert_eq!(code(volume.mkdir_all("/a/file/x")), libc::ENOTDIR);
    assert_eq!(code(volume.write("/a/", b"")), libc::EISDIR);
    assert_eq!(code(volume.write("/fresh/", b"")), libc::EISDIR);
    // A symlink is gone, not what it leads to.
    volume.remove_all("/a/to-c").unwrap();
    assert_eq!(names(&volume, "/a/b"), ["c"]);
    volume.remove_all("/a/").unwrap();
    assert_eq!(code(volume.stat("/a")), libc::ENOENT);
    volume.close().unwrap();
    e2fsck(&place.path("a.img"));
}

#[test]
fn directories_do_not_move_into_themselves() {
    let place = Place::new();
    let volume = sample(&place);
    assert_eq!(code(volume.rename("/a", "/a/b/c/a")), libc::EINVAL);
    assert_eq!(code(volume.rename("/a/b/c", "/a/b")), libc::ENOTEMPTY);
    assert_eq!(code(volume.rename("/a/file", "/a/b")), libc::EISDIR);
    assert_eq!(code(volume.rename("/a/b", "/a/file")), libc::ENOTDIR);
    assert_eq!(code(volume.rename("/a/file", "/new/")), libc::ENOTDIR);
    assert_eq!(code(volume.rename("/", "/new")), libc::EBUSY);
    volume.rename("/a/file", "/a/file").unwrap();
    volume.rename("/a/b/", "/b/").unwrap();
    volume.link("/a/file", "/a/second").unwrap();
    volume.rename("/a/file", "/a/second").unwrap();
    assert_eq!(volume.stat("/a/second").unwrap().nlink, 2);
    volume.close().unwrap();
    e2fsck(&place.path("a.img"));
}

#[test]
fn files_are_replaced_whole() {
    let place = Place::new();
    let image = place.image("a.img");
    let volume = open(&image);
    let large: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    volume.write("/f", &large).unwrap();
    assert_eq!(volume.read("/f").unwrap(), large);
    volume.link("/f", "/other-name").unwrap();
    volume.symlink(b"f", "/link").unwrap();
    volume.write("/link", b"short").unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"short");
    assert_eq!(volume.read("/other-name").unwrap(), large);
    volume.symlink(b"made", "/to-made").unwrap();
    volume.write("/to-made", b"through a symlink").unwrap();
    assert_eq!(volume.read("/made").unwrap(), b"through a symlink");
    assert_eq!(code(volume.read("/")), libc::EISDIR);
    // Names that replacing could want for itself are somebody's.
    let own = [".ccfs-new", ".ccfs-new-1"];
    for name in own {
        volume.write(name, name.as_bytes()).unwrap();
    }
    volume.write("/f", b"again").unwrap();
    volume.write(own[0], b"replaced").unwrap();
    assert_eq!(volume.read("/f").unwrap(), b"again");
    assert_eq!(volume.read(own[0]).unwrap(), b"replaced");
    assert_eq!(volume.read(own[1]).unwrap(), own[1].as_bytes());
    volume.close().unwrap();
    e2fsck(&image);
    let volume = Offline::open(&image, Access::ReadOnly).unwrap();
    assert_eq!(volume.read("/other-name").unwrap(), large);
    assert_eq!(
        names(&volume, "/"),
        [
            own[0],
            own[1],
            "f",
            "link",
            "lost+found",
            "made",
            "other-name",
            "to-made"
        ]
    );
    assert_eq!(code(volume.write("/f", b"")), libc::EROFS);
}

#[test]
fn one_writer_or_several_readers() {
    let place = Place::new();
    let image = place.image("a.img");
    let writer = open(&image);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let refused = Offline::open(&image, access).map(drop).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY, "{refused}");
    }
    drop(writer);
    let one = Offline::open(&image, Access::ReadOnly).unwrap();
    let two = Offline::open(&image, Access::ReadOnly).unwrap();
    assert!(matches!(
        Offline::open(&image, Access::ReadWrite),
        Err(Error::Open(_))
    ));
    drop((one, two));
    e2fsck(&image);
    std::fs::write(
        place.path("text"),
        "no volume at all, but long enough for one",
    )
    .unwrap();
    for wrong in ["text", "missing", ""] {
        assert!(Offline::open(place.path(wrong), Access::ReadWrite).is_err());
    }
}

#[test]
fn a_full_volume_says_so_and_stays_whole() {
    let place = Place::new();
    let image = place.image_with("a.img", "16M", &["-b", "1024"]);
    let volume = open(&image);
    volume.write("/kept", b"kept").unwrap();
    let full = (0..100).find_map(|n| volume.write(format!("/f{n}"), &vec![1; 1 << 20]).err());
    assert_eq!(full.unwrap().errno(), libc::ENOSPC);
    assert_eq!(
        code(volume.write("/kept", &vec![2; 32 << 20])),
        libc::ENOSPC
    );
    assert_eq!(volume.read("/kept").unwrap(), b"kept");
    for n in 0..100 {
        let _ = volume.remove(format!("/f{n}"));
    }
    volume.write("/again", &vec![3; 4 << 20]).unwrap();
    volume.close().unwrap();
    e2fsck(&image);
}
