//! Damaged and hostile volumes, and traps in the place where files go: an error, and nothing outside is touched.
mod common;
use ccfs_offline::{Access, CopyOptions, Error, Offline, Watch};
use common::{Place, debugfs, open, patch};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[derive(Default)]
struct Told(Vec<String>);

impl Watch for Told {
    fn failed(&mut self, error: &Error) {
        self.0.push(error.to_string());
    }
}

/// A volume that can be changed by hand: no checksums, no hash trees.
fn plain(place: &Place, name: &str) -> std::path::PathBuf {
    place.image_with(name, "64M", &["-O", "^metadata_csum,^dir_index"])
}

/// Everything that reads a whole tree ends, and says what is wrong.
fn visits_end(volume: &Offline, place: &Place, words: &str) {
    let (mut entries, mut errors) = (0, Vec::new());
    volume
        .visit("/", &mut |_, _, entry| match entry {
            Ok(e) => {
                entries += 1;
                errors.extend(e.attr.as_ref().err().map(ToString::to_string));
            }
            Err(e) => errors.push(e.to_string()),
        })
        .unwrap();
    assert!(
        entries < 100 && errors.iter().any(|e| e.contains(words)),
        "{errors:?}"
    );
    let mut told = Told::default();
    let out = place.path("out");
    let got = volume.get("/", &out, &mut told).unwrap();
    assert!(
        got.failed > 0 && told.0.iter().any(|e| e.contains(words)),
        "{:?}",
        told.0
    );
    let mut told = Told::default();
    let other = open(&place.image("other.img"));
    let copied = volume
        .copy("/", &other, "/copy", &CopyOptions::default(), &mut told)
        .unwrap();
    assert!(copied.failed > 0, "{:?}", told.0);
}

#[test]
fn cycles_of_directories_end() {
    let place = Place::new();
    let image = plain(&place, "a.img");
    debugfs(
        &image,
        &[
            "mkdir /a",
            "mkdir /a/b",
            "mkdir /a/b/c",
            "ln /a /a/b/c/up",
            "ln <2> /a/b/root",
            "ln /a/b /twin",
        ],
    );
    let volume = Offline::open(&image, Access::ReadOnly).unwrap();
    visits_end(&volume, &place, "twice");
    // A path through the cycle is as long as it is written, and no longer.
    let deep = format!("/a{}", "/b/c/up".repeat(50));
    assert!(volume.stat(deep).is_ok());
    drop(volume);
    let volume = open(&image);
    assert!(
        volume
            .remove_all("/a")
            .unwrap_err()
            .to_string()
            .contains("twice")
    );
    assert!(
        volume.stat("/a/b/c").is_ok(),
        "nothing above the cycle is emptied"
    );
}

#[test]
fn impossible_names_lead_nowhere() {
    let place = Place::new();
    let victim = place.path("pwned");
    for (n, evil) in [&b"../pwned"[..], b"..//pwne", b"pw\0ned/x", b"/pwnedxx"]
        .into_iter()
        .enumerate()
    {
        let image = plain(&place, &format!("{n}.img"));
        let payload = place.path("payload");
        fs::write(&payload, "evil").unwrap();
        debugfs(
            &image,
            &[
                "mkdir /d",
                &format!("write {} /d/EVILNAME", payload.display()),
                "mkdir /good",
            ],
        );
        patch(&image, b"EVILNAME", evil);
        let volume = Offline::open(&image, Access::ReadOnly).unwrap();
        let error = volume.list("/d").unwrap_err();
        assert!(error.errno() == libc::EUCLEAN, "{error}");
        let dir = place.path(&format!("in{n}"));
        fs::create_dir(&dir).unwrap();
        let mut told = Told::default();
        let got = volume.get("/", dir.join("target"), &mut told).unwrap();
        assert!(got.failed > 0 && !told.0.is_empty(), "{n}");
        assert!(dir.join("target/good").is_dir(), "the rest is there");
        let inside: Vec<_> = fs::read_dir(&dir).unwrap().collect();
        assert_eq!(inside.len(), 1, "{n}: {inside:?}");
        assert!(!victim.exists() && !dir.join("pwned").exists());
    }
}

/// `lnk` is a symlink that leads outside and, a second time in the same directory, a directory with a file.
#[test]
fn a_name_that_is_symlink_and_directory_at_once_writes_nothing_outside() {
    let place = Place::new();
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    let payload = place.path("payload");
    fs::write(&payload, "evil").unwrap();
    for (link, dir) in [("lnk_1", "lnk_2"), ("lnk_2", "lnk_1")] {
        let image = plain(&place, &format!("{link}.img"));
        debugfs(
            &image,
            &[
                &format!("mkdir /{dir}"),
                &format!("write {} /{dir}/pwned", payload.display()),
                &format!("symlink /{link} {}", outside.display()),
            ],
        );
        patch(&image, dir.as_bytes(), link.as_bytes());
        let volume = Offline::open(&image, Access::ReadOnly).unwrap();
        let to = place.path(&format!("to-{link}"));
        // Once into nothing, once over what the first time left.
        for _ in 0..2 {
            let _ = volume.get("/.", &to, &mut Told::default()).unwrap();
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        }
    }
}

#[test]
fn symlinks_in_the_destination_are_not_followed() {
    let place = Place::new();
    let (outside, to) = (place.path("outside"), place.path("to"));
    fs::create_dir_all(outside.join("dir")).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(outside.join("file"), "mine").unwrap();
    symlink(&outside, to.join("d")).unwrap();
    symlink(outside.join("file"), to.join("f")).unwrap();
    symlink("../outside/file", to.join("l")).unwrap();
    let volume = open(&place.image("a.img"));
    volume.mkdir("/d").unwrap();
    volume.write("/d/pwned", b"x").unwrap();
    volume.write("/f", b"new").unwrap();
    volume.symlink(b"f", "/l").unwrap();
    let mut told = Told::default();
    let got = volume.get("/.", &to, &mut told).unwrap();
    assert_eq!((got.failed, told.0.len()), (1, 1), "{:?}", told.0);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"mine");
    assert!(!outside.join("pwned").exists());
    assert_eq!(fs::read(to.join("f")).unwrap(), b"new");
    assert!(
        to.join("f").symlink_metadata().unwrap().is_file(),
        "the symlink was replaced"
    );
    assert_eq!(fs::read_link(to.join("l")).unwrap(), Path::new("f"));
}

#[test]
fn damaged_inodes_cost_only_themselves() {
    let place = Place::new();
    let image = plain(&place, "a.img");
    let payload = place.path("payload");
    fs::write(&payload, "x").unwrap();
    let write = |name: &str| format!("write {} /{name}", payload.display());
    debugfs(
        &image,
        &[
            &write("bad"),
            &write("good"),
            "sif /bad mode 0",
            "mkdir /dir",
            "sif /dir block[0] 0xffffff",
        ],
    );
    let volume = Offline::open(&image, Access::ReadOnly).unwrap();
    let out = place.path("out");
    let mut told = Told::default();
    let got = volume.get("/", &out, &mut told).unwrap();
    assert!(got.failed >= 1, "{:?}", told.0);
    assert_eq!(fs::read(out.join("good")).unwrap(), b"x");
}

#[test]
fn a_deep_tree_is_copied_and_removed_without_recursion() {
    let place = Place::new();
    let volume = open(&place.image("a.img"));
    let mut path = String::new();
    for _ in 0..1500 {
        path += "/d";
    }
    volume.mkdir_all(&path).unwrap();
    volume.write(format!("{path}/f"), b"deep").unwrap();
    let done = volume
        .copy("/d", &volume, "/copy", &CopyOptions::default(), &mut ())
        .unwrap();
    assert_eq!((done.directories, done.files), (1500, 1));
    volume.remove_all("/d").unwrap();
    assert_eq!(volume.list("/copy").unwrap().len(), 1);
    volume.close().unwrap();
    common::e2fsck(&place.path("a.img"));
}

/// Peak memory of this process, MiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    let kib = line.split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

/// A path of 1.5 MB: no copy of it for each of its directories.
#[test]
fn a_deep_tree_of_long_names_takes_little_memory() {
    let place = Place::new();
    let volume = open(&place.image_with("a.img", "256M", &["-N", "20000"]));
    let top = format!("/{}", "d".repeat(250));
    let piece = top.repeat(750);
    volume.mkdir_all(&piece).unwrap();
    let mut path = String::from("/deep");
    volume.mkdir_all(&path).unwrap();
    let options = CopyOptions::default();
    for _ in 0..8 {
        volume
            .copy(&top, &volume, &path, &options, &mut ())
            .unwrap();
        path += &piece;
    }
    let before = peak();
    let mut deepest = 0;
    volume
        .visit("/", &mut |depth, at, entry| {
            entry.unwrap();
            deepest = deepest.max(depth);
            assert!(at.len() <= path.len());
        })
        .unwrap();
    assert_eq!(deepest, 6000);
    let done = volume
        .copy("/deep", &volume, "/copy", &options, &mut ())
        .unwrap();
    assert_eq!(done.directories, 6001);
    volume.remove_all("/deep").unwrap();
    assert!(peak() - before < 1000, "{before} MiB, then {}", peak());
    volume.close().unwrap();
    common::e2fsck(&place.path("a.img"));
}
