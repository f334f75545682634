//! Trees in and out: everything that a file has comes along.
mod common;
use ccfs_offline::{Access, CopyOptions, Error, Offline, Progress, Watch};
use common::{Place, e2fsck, names, open, tool};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

#[derive(Default)]
struct Told(Vec<String>);

impl Watch for Told {
    fn failed(&mut self, error: &Error) {
        self.0.push(error.to_string());
    }
    fn warning(&mut self, text: &str) {
        self.0.push(text.to_string());
    }
}

/// A tree of the host with everything that an ordinary user can make.
fn sample(top: &Path) {
    fs::create_dir_all(top.join("sub/deeper")).unwrap();
    fs::write(top.join("sub/plain"), "plain").unwrap();
    fs::write(top.join("sub/large"), vec![7u8; 3_000_000]).unwrap();
    fs::write(top.join("empty"), "").unwrap();
    fs::write(top.join("name with ü and \n"), "odd").unwrap();
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    use std::os::unix::fs::FileExt;
    sparse.write_all_at(b"middle", 10 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    symlink("sub/plain", top.join("link")).unwrap();
    symlink("/nowhere", top.join("dangling")).unwrap();
    fs::hard_link(top.join("sub/plain"), top.join("sub/deeper/second-name")).unwrap();
    tool(Command::new("mkfifo").arg(top.join("pipe")));
    tool(
        Command::new("setfattr")
            .args(["-n", "user.note", "-v", "kept"])
            .arg(top.join("sub/plain")),
    );
    tool(
        Command::new("setfattr")
            .args(["-n", "user.dir", "-v", "kept"])
            .arg(top.join("sub")),
    );
    tool(
        Command::new("setfacl")
            .args(["-m", "u:12345:rw"])
            .arg(top.join("empty")),
    );
    tool(
        Command::new("setfacl")
            .args(["-d", "-m", "g:54321:rx"])
            .arg(top.join("sub/deeper")),
    );
    for (name, mode) in [
        ("sub/plain", 0o640),
        ("sub/deeper", 0o1750),
        ("sub/large", 0o4711),
        ("sub", 0o555),
    ] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, time) in [
        ("sub/plain", "2001-02-03 04:05:06.789"),
        ("sub", "1999-12-31"),
        ("link", "2010-10-10"),
        ("sub/deeper", "2030-01-01"),
    ] {
        tool(
            Command::new("touch")
                .args(["-h", "-d", time])
                .arg(top.join(name)),
        );
    }
}

/// Everything below `top` as text: names, kinds, rights, times, contents, links, attributes.
fn describe(top: &Path) -> String {
    let find = "%P|%y|%m|%n|%s|%T@|%l\\n";
    let listed = tool(
        Command::new("find")
            .arg(top)
            .args(["-mindepth", "1", "-printf", find]),
    );
    let mut lines: Vec<String> = listed
        .lines()
        // A directory's size and times of fifos' links differ from file system to file system.
        .map(|l| {
            let mut parts: Vec<&str> = l.split('|').collect();
            if parts.get(1) == Some(&"d") {
                parts[4] = "";
            }
            parts.join("|")
        })
        .collect();
    lines.sort();
    let mut acl = Command::new("getfacl");
    lines.push(tool(acl.current_dir(top).args(["-R", "-n", "-P", "."])));
    for script in [
        "find . ! -type l ! -type p -print0 | sort -z | xargs -0 getfattr -d",
        "find . -type f -print0 | sort -z | xargs -0 sha256sum",
    ] {
        let mut shell = Command::new("sh");
        lines.push(tool(shell.current_dir(top).args(["-c", script])));
    }
    lines.join("\n")
}

fn has_xattrs(place: &Place) -> bool {
    let probe = place.path("probe");
    fs::write(&probe, "").unwrap();
    let set = Command::new("setfattr")
        .args(["-n", "user.x", "-v", "y"])
        .arg(&probe)
        .output();
    let acl = Command::new("setfacl")
        .args(["-m", "u:1:r"])
        .arg(&probe)
        .output();
    set.is_ok_and(|o| o.status.success()) && acl.is_ok_and(|o| o.status.success())
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let place = Place::new();
    if !has_xattrs(&place) {
        println!("skipped: the directory for temporary files has no extended attributes or ACLs");
        return;
    }
    let tree = place.path("tree");
    sample(&tree);
    let before = describe(&tree);
    let image = place.image_with("a.img", "64M", &["-I", "256"]);
    let volume = open(&image);
    let mut told = Told::default();
    let put = volume
        .put(&tree, "/", &CopyOptions::default(), &mut told)
        .unwrap();
    assert_eq!((put.failed, told.0.len()), (0, 0), "{:?}", told.0);
    assert_eq!((put.directories, put.files), (3, 9));
    let sparse = volume.stat("/tree/sparse").unwrap();
    assert!(
        sparse.size == 20 << 20 && sparse.blocks512 < 1000,
        "{sparse:?}"
    );
    // Within the volume, and to another one.
    volume
        .copy(
            "/tree",
            &volume,
            "/copy",
            &CopyOptions::default(),
            &mut told,
        )
        .unwrap();
    let other = open(&place.image("b.img"));
    volume
        .copy(
            "/copy/.",
            &other,
            "/third",
            &CopyOptions::default(),
            &mut told,
        )
        .unwrap();
    assert_eq!(told.0.len(), 0, "{:?}", told.0);
    volume.close().unwrap();
    other.close().unwrap();
    e2fsck(&image);
    e2fsck(&place.path("b.img"));
    for (image, path) in [("a.img", "/tree"), ("a.img", "copy"), ("b.img", "/third/")] {
        let out = place.path(&format!("out-{image}-{}", path.trim_matches('/')));
        let volume = Offline::open(place.path(image), Access::ReadOnly).unwrap();
        let got = volume.get(path, &out, &mut told).unwrap();
        assert_eq!((got.failed, told.0.len()), (0, 0), "{:?}", told.0);
        assert_eq!(describe(&out), before, "{image}:{path}");
        let (a, b) = (out.join("sub/plain"), out.join("sub/deeper/second-name"));
        assert_eq!(a.metadata().unwrap().ino(), b.metadata().unwrap().ino());
        assert!(out.join("sparse").metadata().unwrap().blocks() < 1000);
        // A second time over what is there: nothing changes, and nothing temporary stays.
        let again = volume.get(format!("{path}/."), &out, &mut told).unwrap();
        assert_eq!((again.failed, told.0.len()), (0, 0), "{:?}", told.0);
        assert_eq!(describe(&out), before, "{image}:{path} again");
    }
}

#[test]
fn copies_go_where_cp_puts_them() {
    let place = Place::new();
    let volume = open(&place.image("a.img"));
    fs::create_dir_all(place.path("d/e")).unwrap();
    fs::write(place.path("d/e/f"), "f").unwrap();
    let put = |from: &str, to: &str| {
        let from = format!("{}/{from}", place.path("").display());
        volume.put(from, to, &CopyOptions::default(), &mut ())
    };
    put("d", "/").unwrap();
    assert_eq!(names(&volume, "/d/e"), ["f"]);
    put("d/", "/new").unwrap();
    assert_eq!(names(&volume, "/new"), ["e"]);
    put("d/.", "/merged/").unwrap();
    assert_eq!(names(&volume, "/merged"), ["e"]);
    put("d/e/..", "/dots").unwrap();
    assert_eq!(names(&volume, "/dots"), ["e"]);
    put("d", "/new").unwrap();
    assert_eq!(names(&volume, "/new"), ["d", "e"]);
    put("d/e/f", "/file").unwrap();
    put("d/e/f", "/new/").unwrap();
    assert_eq!(names(&volume, "/new"), ["d", "e", "f"]);
    for (from, to, error) in [
        ("d", "/file", libc::ENOTDIR),
        ("d/e/f", "/missing/", libc::ENOENT),
        ("d/e/f", "/missing/x", libc::ENOENT),
        ("d/e/f", "/file/", libc::ENOTDIR),
        ("nothing", "/", libc::ENOENT),
        ("d/e/f/", "/", libc::ENOTDIR),
    ] {
        assert_eq!(put(from, to).unwrap_err().errno(), error, "{from} {to}");
    }
    let copy =
        |from: &str, to: &str| volume.copy(from, &volume, to, &CopyOptions::default(), &mut ());
    for to in ["/new", "/new/", "/new/x", "/new/e/.", "/new/e/y"] {
        assert_eq!(copy("/new", to).unwrap_err().errno(), libc::EINVAL, "{to}");
    }
    assert_eq!(copy("/file", "/file").unwrap_err().errno(), libc::EEXIST);
    copy("/new/.", "/all").unwrap();
    assert_eq!(names(&volume, "/all"), ["d", "e", "f"]);
    let get = |from: &str, to: &str| volume.get(from, place.path(to), &mut ());
    get("/file", "out").unwrap();
    assert_eq!(fs::read(place.path("out")).unwrap(), b"f");
    get("/all", "there").unwrap();
    get("/all", "there").unwrap();
    get("", "everything").unwrap();
    assert!(place.path("there/all/d/e/f").exists() && place.path("everything/new/f").exists());
    assert!(!place.path("everything/lost+found").exists());
    assert_eq!(get("/all", "out").unwrap_err().errno(), libc::ENOTDIR);
    assert_eq!(get("/file", "none/").unwrap_err().errno(), libc::ENOENT);
    volume.close().unwrap();
    e2fsck(&place.path("a.img"));
}

#[test]
fn what_cannot_be_copied_is_told_and_the_rest_goes_on() {
    let place = Place::new();
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("clash")).unwrap();
    for name in ["a", "b", "z"] {
        fs::write(tree.join(name), name).unwrap();
    }
    let image = tree.join("m.img");
    fs::rename(place.image("m.img"), &image).unwrap();
    let volume = open(&image);
    volume.mkdir_all("/tree/b").unwrap();
    volume
        .write("/tree/clash", b"a file where a directory should go")
        .unwrap();
    let mut told = Told::default();
    let done: Progress = volume
        .put(
            &tree,
            "/",
            &CopyOptions {
                owner: Some((7, 8)),
            },
            &mut told,
        )
        .unwrap();
    assert_eq!((done.failed, told.0.len()), (3, 3), "{:?}", told.0);
    assert!(
        told.0
            .iter()
            .any(|t| t.contains("m.img") && t.contains("image itself")),
        "{:?}",
        told.0
    );
    assert_eq!(names(&volume, "/tree"), ["a", "b", "clash", "z"]);
    let z = volume.stat("/tree/z").unwrap();
    assert_eq!((z.uid, z.gid), (7, 8));
    // Back over the image itself: it is not replaced.
    volume.write("/tree/m.img", b"not you").unwrap();
    let mut told = Told::default();
    let done = volume.get("/tree/m.img", &tree, &mut told).unwrap();
    assert_eq!(done.failed, 1, "{:?}", told.0);
    volume.close().unwrap();
    e2fsck(&image);
    assert_eq!(
        fs::read_dir(&tree).unwrap().count(),
        5,
        "no temporary file is left"
    );
}
