//! Several mounts on one directory in the same moment: one volume is mounted, the others are refused and at rest.
mod common;
use common::{Place, ccfs, ccfs_with, mounts_on, tool, unmount};
use rustix::fs::{FlockOperation, flock};
use std::fs;
use std::process::{Child, Stdio};

fn mounted_at_once(images: &[String], dir: &str) -> Vec<(Option<i32>, String)> {
    let started: Vec<Child> = images
        .iter()
        .map(|image| {
            let mut command = ccfs();
            command.args(["mount", image, dir]).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let ended = started.into_iter().map(|child| {
        let out = child.wait_with_output().unwrap();
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    });
    ended.collect()
}

#[test]
fn of_mounts_in_one_moment_one_is_made() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = place.subdir("mnt");
    let names = ["a.img", "b.img", "c.img"];
    let images: Vec<String> = names.iter().map(|n| place.volume(n, "16M")).collect();
    for round in 0..15 {
        let ended = mounted_at_once(&images, &dir);
        let there = mounts_on(&dir);
        let made = ended.iter().filter(|(code, _)| *code == Some(0)).count();
        assert_eq!((there, made), (1, 1), "round {round}: {ended:?}");
        for (code, told) in ended.iter().filter(|(code, _)| *code != Some(0)) {
            assert_eq!(*code, Some(32), "{told}");
            assert!(told.contains("another volume is mounted on"), "{told}");
        }
        fs::write(place.path("mnt/f"), "kept").unwrap();
        unmount(&dir);
        for image in &images {
            tool("e2fsck", &["-fn", image]);
        }
    }
}

/// Whoever has locked the directory for a reason of his own delays a mount, and does not prevent it.
#[test]
fn a_locked_directory_can_be_mounted_on() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "16M"), place.subdir("mnt"));
    let locked = fs::File::open(&dir).unwrap();
    flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
    let ran = ccfs_with(&["mount", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(mounts_on(&dir), 1);
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
    drop(locked);
}
