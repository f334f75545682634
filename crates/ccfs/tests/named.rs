//! Files that root names where others may change names: nobody leads the program to another file.
mod common;
use common::{Place, Ran, ccfs_with, is_mounted, tool, unmount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

const USER: u32 = 12345;
const OTHER: u32 = 12346;
const SECRET: &str = "root's own\n";

/// A volume, a file of root's that must stay as it is, a directory of a user's, and one like /tmp.
fn place() -> Place {
    let place = Place::new();
    place.volume("a.img", "32M");
    place.subdir("mnt");
    place.subdir("safe");
    fs::write(place.path("victim"), SECRET).unwrap();
    chown(place.subdir("theirs"), Some(USER), Some(USER)).unwrap();
    let sticky = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(place.subdir("tmp"), sticky).unwrap();
    place
}

fn link(place: &Place, to: &str, name: &str, owner: u32) {
    let path = place.path(name);
    symlink(place.path(to), &path).unwrap();
    lchown(&path, Some(owner), Some(owner)).unwrap();
}

fn file(place: &Place, name: &str, owner: u32) {
    fs::write(place.path(name), "").unwrap();
    chown(place.path(name), Some(owner), Some(owner)).unwrap();
}

fn mount(place: &Place, option: &str, name: &str) -> Ran {
    let options = format!("{option}={}", place.text(name));
    ccfs_with(&[
        "mount",
        "-o",
        &options,
        &place.text("a.img"),
        &place.text("mnt"),
    ])
}

fn is_refused(place: &Place, ran: &Ran, name: &str, why: &str) {
    assert_eq!(ran.code, 1, "{name}: {}", ran.err);
    assert!(ran.err.contains(why), "{name}: {}", ran.err);
    assert_eq!(ran.err.lines().count(), 1, "{name}: {}", ran.err);
    assert!(!is_mounted(&place.text("mnt")), "{name}");
    assert_eq!(fs::read_to_string(place.path("victim")).unwrap(), SECRET);
}

#[test]
fn a_log_file_is_no_strangers_choice() {
    common::needs_mounts!();
    let place = place();
    link(&place, "victim", "theirs/link", USER);
    link(&place, "", "theirs/way", USER);
    fs::hard_link(place.path("victim"), place.path("theirs/hard")).unwrap();
    file(&place, "theirs/of-other", OTHER);
    tool("mkfifo", &[&place.text("theirs/pipe")]);
    link(&place, "victim", "tmp/link", USER);
    link(&place, "no-file-yet", "tmp/dangling", USER);
    file(&place, "tmp/file", USER);
    link(&place, "theirs/link", "safe/to-theirs", 0);
    link(&place, "safe/circle", "safe/circle", 0);
    for (name, why) in [
        ("theirs/link", "is a symbolic link, in a directory that"),
        ("theirs/way/victim", "is a symbolic link"),
        ("theirs/hard", "has other names (hard links)"),
        ("theirs/of-other", "belongs to user 12346"),
        ("theirs/pipe", "no regular file"),
        ("tmp/link", "is a symbolic link"),
        ("tmp/dangling", "is a symbolic link"),
        ("tmp/file", "belongs to user 12345"),
        ("safe/to-theirs", "theirs/link is a symbolic link"),
        ("safe/circle", "Too many levels"),
    ] {
        let ran = mount(&place, "log", name);
        is_refused(&place, &ran, name, "cannot open the log file");
        is_refused(&place, &ran, name, why);
    }
    assert!(!place.path("no-file-yet").exists());
    // The rules are read, and lines of them shown.
    let ran = mount(&place, "rules", "theirs/link");
    is_refused(&place, &ran, "rules", "theirs/link is a symbolic link");
}

/// What root, or the directory's owner, decided is as ever.
#[test]
fn a_log_file_is_where_its_name_leads() {
    common::needs_mounts!();
    let place = place();
    file(&place, "theirs/own", USER);
    file(&place, "tmp/roots", 0);
    link(&place, "safe/log", "safe/link", 0);
    link(&place, "safe/new", "tmp/link", 0);
    symlink("../safe", place.path("safe/around")).unwrap();
    for (name, at) in [
        ("theirs/own", "theirs/own"),
        ("theirs/new", "theirs/new"),
        ("tmp/roots", "tmp/roots"),
        ("safe/link", "safe/log"),
        ("tmp/link", "safe/new"),
        ("safe/around/../theirs/../safe/last", "safe/last"),
    ] {
        let ran = mount(&place, "log", name);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        unmount(&place.text("mnt"));
        let text = fs::read_to_string(place.path(at)).unwrap();
        assert!(text.contains(" mounted "), "{name}: {text}");
    }
}

#[test]
fn a_socket_is_no_strangers_choice() {
    common::needs_mounts!();
    let place = place();
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    common::mount(&image, &dir);
    link(&place, "safe", "theirs/way", USER);
    let listen = |name: &str| {
        let at = format!("unix:{}", place.text(name));
        ccfs_with(&["metrics", "--listen", &at, &dir])
    };
    let ran = listen("theirs/way/socket");
    common::refused("link", &ran, 1, &["theirs/way is a symbolic link"]);
    // A dead socket that another user put there is not root's to replace.
    drop(std::os::unix::net::UnixListener::bind(place.path("tmp/socket")).unwrap());
    chown(place.path("tmp/socket"), Some(USER), Some(USER)).unwrap();
    let ran = listen("tmp/socket");
    common::refused("dead", &ran, 1, &["something else has this name"]);
    assert!(place.path("tmp/socket").exists());
    unmount(&dir);
}
