//! Images, contexts and judges that the engine's tests share.
#![allow(dead_code)]
pub mod barrier_programs;
pub mod faulty;
pub mod flash;
pub mod groups;
pub mod virtual_time;
use ccfs_device::{Device, FlashDevice};
use ccfs_disks::MemoryDevice;
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
    let volume = MemoryDevice::from_file(&path).unwrap();
    match flash::chosen() {
        true => flash::on_flash(&volume),
        false => volume,
    }
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
        umask: 0o022,
        ..Context::root(StreamId(stream))
    }
}

pub fn quiet() -> Options {
    Options {
        background: false,
        ..Options::default()
    }
}

pub fn mount(dev: &Arc<MemoryDevice>) -> Arc<Volume> {
    mount_on(dev.clone(), quiet()).unwrap()
}

/// Mounts the volume on `medium`, or on the flash that is there.
pub fn mount_on(medium: Arc<dyn Device>, options: Options) -> Result<Arc<Volume>> {
    Volume::mount(FlashDevice::or_plain(medium)?, options)
}

/// As `mount_on`; true where there was something to do.
pub fn recover(medium: Arc<dyn Device>) -> Result<bool> {
    Volume::recover(FlashDevice::or_plain(medium)?)
}

/// What a mount after a crash shows.
pub fn crash(dev: &MemoryDevice) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let copy = Arc::new(dev.snapshot());
    recover(copy.clone()).unwrap();
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
    flash::changed(dev, |volume| {
        by_program(volume, "debugfs", &["-w", "-R", command])
    })
}

/// A volume whose directories are indexed from now on.
pub fn with_dir_index(dev: &MemoryDevice) -> MemoryDevice {
    let index = |volume: &MemoryDevice| by_program(volume, "tune2fs", &["-O", "dir_index"]);
    flash::changed(dev, index).0
}

/// The volume after a program has changed it, and what that said.
fn by_program(volume: &MemoryDevice, program: &str, args: &[&str]) -> (MemoryDevice, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    volume.to_file(&path).unwrap();
    let out = Command::new(program)
        .args(args)
        .arg(&path)
        .output()
        .expect(program);
    assert!(out.status.success());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    (MemoryDevice::from_file(&path).unwrap(), text)
}
