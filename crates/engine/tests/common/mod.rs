//! Images, contexts and judges that the engine's tests share.
#![allow(dead_code)]
use ccfs_device::{Device, MemoryDevice};
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
    dev.to_file(&path).unwrap();
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
    Volume::mount(dev.clone() as Arc<dyn Device>, quiet()).unwrap()
}

/// What a mount after a crash shows.
pub fn crash(dev: &MemoryDevice) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let copy = Arc::new(dev.snapshot());
    Volume::recover(copy.clone() as Arc<dyn Device>).unwrap();
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
