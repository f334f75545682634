//! Images, contexts and judges that the engine's tests share.
#![allow(dead_code)]
pub mod barrier_programs;
pub mod faulty;
pub mod flash;
pub mod virtual_time;
use ccfs_device::MemoryDevice;
use ccfs_engine::*;
use std::process::Command;
use std::sync::Arc;

pub fn image(args: &[&str], size: &str) -> MemoryDevice {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    let out = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(args)
        .arg(&path)
        .arg(size)
        .output()
        .expect("mke2fs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    MemoryDevice::from_file(&path).unwrap()
}

pub fn fsck(dev: &MemoryDevice) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    flash::plain(dev).to_file(&path).unwrap();
    let out = Command::new("e2fsck")
        .args(["-fn"])
        .arg(&path)
        .output()
        .expect("e2fsck");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
}

pub fn cx(stream: u64) -> Context {
    Context {
        stream: StreamId(stream),
        uid: 0,
        gid: 0,
        umask: 0o022,
        ignore_fsync: false,
        privileged: true,
    }
}

pub fn quiet() -> Options {
    Options {
        background: false,
        ..Options::default()
    }
}

pub fn mount(dev: &Arc<MemoryDevice>) -> Arc<Volume> {
    Volume::mount(flash::device(dev.clone()), quiet()).unwrap()
}

/// What a mount after a crash shows.
pub fn crash(dev: &MemoryDevice) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let copy = Arc::new(dev.snapshot());
    Volume::recover(flash::device(copy.clone())).unwrap();
    fsck(&copy);
    let v = mount(&copy);
    (copy, v)
}

pub fn mode(m: u16) -> SetAttr {
    SetAttr {
        mode: Some(m),
        ..SetAttr::default()
    }
}

/// A POSIX ACL as setxattr(2) takes it: the three classes, a mask, and so many users.
pub fn acl(users: u32) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    let mut put = |tag: u16, id: u32| {
        out.extend(tag.to_le_bytes());
        out.extend(7u16.to_le_bytes());
        out.extend(id.to_le_bytes());
    };
    put(1, u32::MAX);
    (0..users).for_each(|i| put(2, 1000 + i));
    put(4, u32::MAX);
    put(0x10, u32::MAX);
    put(0x20, u32::MAX);
    out
}

/// The device after debugfs has changed it.
pub fn debugfs(dev: &MemoryDevice, command: &str) -> MemoryDevice {
    let (bytes, _) = debugfs_says(dev, command);
    bytes
}

/// As `debugfs`, with what it says.
pub fn debugfs_says(dev: &MemoryDevice, command: &str) -> (MemoryDevice, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    dev.to_file(&path).unwrap();
    let out = Command::new("debugfs")
        .args(["-w", "-R", command])
        .arg(&path)
        .output()
        .expect("debugfs");
    assert!(out.status.success());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    (MemoryDevice::from_file(&path).unwrap(), text)
}

/// A volume whose directories are indexed from now on.
pub fn with_dir_index(dev: &MemoryDevice) -> MemoryDevice {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    dev.to_file(&path).unwrap();
    let out = Command::new("tune2fs")
        .args(["-O", "dir_index"])
        .arg(&path)
        .output()
        .expect("tune2fs");
    assert!(out.status.success());
    MemoryDevice::from_file(&path).unwrap()
}
