//! ioctls of other people's programs on a mounted volume.
mod common;
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn inode_flags() {
    if !can_mount("inode_flags") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let path = m.path("f");
    let name = path.to_str().unwrap();
    fs::write(&path, b"x").unwrap();
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    run("chattr", &["+i", name]);
    // The kernel had the old ctime in its cache.
    let after = fs::metadata(&path).unwrap();
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    assert!(run("lsattr", &[name]).contains('i'));
    assert!(
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut f| std::io::Write::write_all(&mut f, b"y"))
            .is_err()
    );
    assert!(fs::remove_file(&path).is_err());
    run("chattr", &["-i", name]);
    fs::write(&path, b"yy").unwrap();
    run("chattr", &["+d", m.mnt().to_str().unwrap()]);
    m.unmount();
    m.mount();
    assert!(run("lsattr", &["-d", m.mnt().to_str().unwrap()]).contains('d'));
    m.unmount();
}

#[test]
fn trim_and_label() {
    if !can_mount("trim_and_label") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("f"), vec![1; 1 << 20]).unwrap();
    run("sync", &["-f", m.path("f").to_str().unwrap()]);
    let said = run("fstrim", &["-v", m.mnt().to_str().unwrap()]);
    assert!(said.contains("bytes") || said.contains("iB"), "{said}");
    assert_eq!(fs::read(m.path("f")).unwrap(), vec![1; 1 << 20]);
    assert_eq!(
        common::label(&File::open(m.mnt()).unwrap()).unwrap(),
        b"label"
    );
    assert_eq!(
        common::unknown_ioctl(&File::open(m.mnt()).unwrap()).raw_os_error(),
        Some(libc::ENOTTY)
    );
    m.unmount();
}

/// FS_IOC_SHUTDOWN is a power cut: what was synced survives, and the volume answers EIO until it is mounted again.
#[test]
fn shutdown() {
    if !can_mount("shutdown") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("synced"), b"s").unwrap();
    File::open(m.path("synced")).unwrap().sync_all().unwrap();
    fs::write(m.path("lost"), b"l").unwrap();
    let dir = File::open(m.mnt()).unwrap();
    common::shut_down(&dir).unwrap();
    assert!(fs::write(m.path("later"), b"x").is_err());
    assert!(dir.sync_all().is_err());
    drop(dir);
    m.crash();
    m.mount();
    assert_eq!(fs::read(m.path("synced")).unwrap(), b"s");
    assert!(!m.path("later").exists());
    m.unmount();
}
