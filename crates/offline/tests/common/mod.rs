//! Images, and judges, that the tests share.
#![allow(dead_code)]
use ccfs_offline::{Access, Offline};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("ccfs-offline-").tempdir();
        Place(dir.expect("a directory for the test"))
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    /// A fresh image, made with further options for mke2fs.
    pub fn image_with(&self, name: &str, size: &str, options: &[&str]) -> PathBuf {
        let path = self.path(name);
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F", "-t", "ext4"]).args(options);
        tool(command.arg(&path).arg(size));
        path
    }
    pub fn image(&self, name: &str) -> PathBuf {
        self.image_with(name, "64M", &[])
    }
}

pub fn tool(command: &mut Command) -> String {
    let out = command.output().expect("the tool starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {text}{err}");
    text
}

/// debugfs commands that change an image.
pub fn debugfs(image: &Path, commands: &[&str]) {
    for one in commands {
        tool(Command::new("debugfs").args(["-w", "-R", one]).arg(image));
    }
}

pub fn e2fsck(image: &Path) {
    tool(Command::new("e2fsck").arg("-fn").arg(image));
}

pub fn open(image: &Path) -> Offline {
    Offline::open(image, Access::ReadWrite).unwrap()
}

pub fn names(volume: &Offline, path: &str) -> Vec<String> {
    let entries = volume.list(path).unwrap();
    let name = |e: ccfs_offline::Entry| String::from_utf8(e.name).unwrap();
    entries.into_iter().map(name).collect()
}

/// Replaces bytes of an image; they must be there, and as often as they are they are replaced.
pub fn patch(image: &Path, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(image).unwrap();
    let found: Vec<usize> = (0..bytes.len() - from.len())
        .filter(|at| bytes[*at] == from[0] && bytes[*at..].starts_with(from))
        .collect();
    assert!(!found.is_empty(), "{:?} is not in the image", from);
    for at in found {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    std::fs::write(image, bytes).unwrap();
}
