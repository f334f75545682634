//! Images that earlier versions left behind in a crash stay recoverable: one for each released version of the log's format.
//!
//! A fixture is made once, by `CCFS_MAKE_FIXTURE=1 cargo test -p ccfs-engine --test fixture`, when the format gets a new version.
mod common;
use ccfs_device::Device;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{cx, fsck, image, quiet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn path(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/crashed-v{version}.img.gz"))
}

/// Synced work of two streams (everything that the log has records for), then some that is not; no checkpoint since.
fn make(version: u32) {
    let dev = Arc::new(image(&["-b", "1024", "-N", "256", "-J", "size=1"], "8M"));
    let v = Volume::mount(dev.clone() as Arc<dyn Device>, quiet()).unwrap();
    let (a, b) = (cx(20), cx(21));
    let dir = v.mkdir(&a, ROOT_INO, b"dir", 0o750).unwrap().ino;
    let f = v.mknod(&a, dir, b"file", 0o100640, 0).unwrap().ino;
    v.write(&a, f, 0, &[1; 5000], WriteFlags::default())
        .unwrap();
    v.syncfs(&a).unwrap();
    v.write(&a, f, 1000, b"overwritten", WriteFlags::default())
        .unwrap();
    v.fallocate(&a, f, Fallocate::PunchHole, 2048, 1024)
        .unwrap();
    v.fallocate(&a, f, Fallocate::Allocate { keep_size: true }, 8192, 4096)
        .unwrap();
    v.setxattr(&b, dir, b"user.note", b"kept", false, false, false)
        .unwrap();
    v.symlink(&b, ROOT_INO, b"link", b"dir/file").unwrap();
    v.link(&b, f, ROOT_INO, b"second").unwrap();
    v.rename(
        &b,
        ROOT_INO,
        b"dir",
        ROOT_INO,
        b"renamed",
        RenameFlags::default(),
    )
    .unwrap();
    v.mknod(&b, ROOT_INO, b"pipe", 0o010600, 0).unwrap();
    let gone = v.mknod(&b, ROOT_INO, b"open", 0o100600, 0).unwrap().ino;
    v.remember(gone, 1);
    v.write(&b, gone, 0, &[2; 3000], WriteFlags::default())
        .unwrap();
    v.unlink(&b, ROOT_INO, b"open").unwrap();
    v.syncfs(&b).unwrap();
    v.mknod(&a, ROOT_INO, b"not-synced", 0o100600, 0).unwrap();
    v.shutdown();
    let raw = path(version).with_extension("");
    std::fs::create_dir_all(raw.parent().unwrap()).unwrap();
    dev.to_file(&raw).unwrap();
    assert!(
        Command::new("gzip")
            .args(["-9", "-n", "-f"])
            .arg(&raw)
            .status()
            .unwrap()
            .success()
    );
}

fn load(version: u32) -> Arc<MemoryDevice> {
    let out = Command::new("gzip")
        .arg("-dc")
        .arg(path(version))
        .output()
        .unwrap();
    assert!(out.status.success());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("img");
    std::fs::write(&file, out.stdout).unwrap();
    Arc::new(MemoryDevice::from_file(&file).unwrap())
}

#[test]
fn version_1_is_recovered() {
    let why = "the fixture is of the log's format";
    if common::flash::is_about_the_log("version_1_is_recovered", why) {
        return;
    }
    if std::env::var_os("CCFS_MAKE_FIXTURE").is_some() {
        make(1);
    }
    let dev = load(1);
    let done = recover(&(dev.clone() as Arc<dyn Device>))
        .unwrap()
        .expect("the image is in flight");
    assert!(done.applied >= 2 && done.freed_inodes == 1, "{done:?}");
    fsck(&dev);
    let v = Volume::mount(dev.clone() as Arc<dyn Device>, quiet()).unwrap();
    let dir = v.lookup(ROOT_INO, b"renamed").unwrap();
    assert_eq!(v.getxattr(dir.ino, b"user.note").unwrap(), b"kept");
    let f = v.lookup(dir.ino, b"file").unwrap();
    assert_eq!((f.size, f.nlink, f.mode), (5000, 2, 0o100640));
    let mut expected = vec![1u8; 5000];
    expected[1000..1011].copy_from_slice(b"overwritten");
    expected[2048..3072].fill(0);
    let mut got = Vec::new();
    v.read(f.ino, 0, 10_000, &mut got).unwrap();
    assert_eq!(got, expected);
    assert_eq!(
        v.readlink(v.lookup(ROOT_INO, b"link").unwrap().ino)
            .unwrap(),
        b"dir/file"
    );
    assert!(v.lookup(ROOT_INO, b"pipe").is_ok());
    assert!(v.lookup(ROOT_INO, b"not-synced").is_err());
    v.unmount().unwrap();
    fsck(&dev);
}
