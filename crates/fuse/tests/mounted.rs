//! The whole way: system calls, kernel, protocol, engine, image file.
mod common;
use ccfs_fuse::FsType;
use ccfs_testkit::kernel::Version;
use common::{TestMount, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn everyday_operations() {
    if !can_mount("everyday_operations") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let file = m.path("file");
    fs::write(&file, b"hello").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"hello");
    // Open with O_TRUNC must not get lost with NO_OPEN.
    File::create(&file).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    OpenOptions::new()
        .append(true)
        .open(&file)
        .unwrap()
        .write_all(b"abc")
        .unwrap();
    OpenOptions::new()
        .append(true)
        .open(&file)
        .unwrap()
        .write_all(b"def")
        .unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"abcdef");
    fs::create_dir_all(m.path("d/e/f")).unwrap();
    fs::rename(&file, m.path("d/e/g")).unwrap();
    assert_eq!(fs::metadata(&file).unwrap_err().kind(), ErrorKind::NotFound);
    fs::hard_link(m.path("d/e/g"), m.path("h")).unwrap();
    assert_eq!(fs::metadata(m.path("d/e/g")).unwrap().nlink(), 2);
    fs::remove_file(m.path("d/e/g")).unwrap();
    assert_eq!(fs::metadata(m.path("h")).unwrap().nlink(), 1);
    symlink("d/e", m.path("s")).unwrap();
    assert_eq!(fs::read_link(m.path("s")).unwrap().to_str(), Some("d/e"));
    assert_eq!(
        fs::remove_dir(m.path("d")).unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
    assert_eq!(fs::metadata(m.path("d")).unwrap().nlink(), 3);
    let mut names: Vec<_> = fs::read_dir(m.mnt())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["d", "h", "lost+found", "s"]);
    File::open(m.path("h")).unwrap().sync_all().unwrap();
    m.unmount();
    m.mount();
    assert_eq!(fs::read(m.path("h")).unwrap(), b"abcdef");
    m.unmount();
}

#[test]
fn plain_fuse() {
    if !can_mount("plain_fuse") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuse);
    fs::write(m.path("a"), b"a").unwrap();
    m.unmount();
    m.mount();
    assert_eq!(fs::read(m.path("a")).unwrap(), b"a");
    m.unmount();
}

#[test]
fn large_files_and_holes() {
    if !can_mount("large_files_and_holes") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let data: Vec<u8> = (0..5 << 20)
        .map(|i: u32| (i.wrapping_mul(2654435761) >> 13) as u8)
        .collect();
    let path = m.path("big");
    fs::write(&path, &data).unwrap();
    assert!(fs::read(&path).unwrap() == data);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(m.path("big"))
        .unwrap();
    file.write_all_at(b"xyz", (5 << 20) + 100_000).unwrap();
    let mut f = &file;
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert!((5 << 20..(5 << 20) + 4096).contains(&hole), "{hole}");
    use rustix::fs::{FallocateFlags, fallocate};
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        8192,
        8192,
    )
    .unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 8 << 20, 1 << 20).unwrap();
    f.seek(SeekFrom::Start(8190)).unwrap();
    let mut four = [9; 4];
    f.read_exact(&mut four).unwrap();
    assert_eq!(four, [data[8190], data[8191], 0, 0]);
    // copy_file_range
    let mut from = File::open(&path).unwrap();
    let mut to = File::create(m.path("copy")).unwrap();
    std::io::copy(&mut from, &mut to).unwrap();
    assert!(fs::read(&path).unwrap() == fs::read(m.path("copy")).unwrap());
    drop((file, from, to));
    let expected = fs::read(m.path("copy")).unwrap();
    m.unmount();
    m.mount();
    assert!(fs::read(m.path("big")).unwrap() == expected);
    m.unmount();
}

#[test]
fn owners_modes_and_times() {
    if !can_mount("owners_modes_and_times") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::set_permissions(m.mnt(), PermissionsExt::from_mode(0o777)).unwrap();
    // Another user's process creates and writes.
    let script = "umask 027; echo a > f; mkdir d; : > d/x; chmod 6755 f; stat -c %a f; echo b >> f; stat -c %a f; \
                  fallocate -l 9000 f; cp f g";
    let out = Command::new("setpriv")
        .args([
            "--reuid=1234",
            "--regid=1235",
            "--clear-groups",
            "sh",
            "-ec",
            script,
        ])
        .current_dir(m.mnt())
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "6755\n755\n");
    let f = fs::metadata(m.path("f")).unwrap();
    assert_eq!(
        (f.uid(), f.gid(), f.mode() & 0o7777, f.len()),
        (1234, 1235, 0o755, 9000)
    );
    assert_eq!(fs::metadata(m.path("d")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(m.path("g")).unwrap().mode() & 0o7777, 0o750);
    // chown clears setuid, root's too.
    fs::set_permissions(m.path("f"), PermissionsExt::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(m.path("f"), Some(7), None).unwrap();
    assert_eq!(fs::metadata(m.path("f")).unwrap().mode() & 0o7777, 0o711);
    // A setgid directory hands its group down.
    fs::set_permissions(m.path("d"), PermissionsExt::from_mode(0o2777)).unwrap();
    fs::create_dir(m.path("d/sub")).unwrap();
    let sub = fs::metadata(m.path("d/sub")).unwrap();
    assert_eq!((sub.gid(), sub.mode() & 0o2000), (1235, 0o2000));
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(5, 123_456_789);
    File::options()
        .write(true)
        .open(m.path("f"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    assert_eq!((f_times(&m, "f")), (5, 123_456_789));
    m.unmount();
    m.mount();
    assert_eq!((f_times(&m, "f")), (5, 123_456_789));
    // statx with the time of birth: Linux asks for it from 6.8 on.
    let birth = fs::metadata(m.path("f")).unwrap().created();
    assert_eq!(birth.is_ok(), Version::running() >= Version(6, 8));
    m.unmount();
}

fn f_times(m: &TestMount, name: &str) -> (i64, i64) {
    let meta = fs::metadata(m.path(name)).unwrap();
    (meta.mtime(), meta.mtime_nsec())
}

#[test]
fn nameless_files() {
    if !can_mount("nameless_files") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(m.path("gone"))
        .unwrap();
    fs::remove_file(m.path("gone")).unwrap();
    open.write_all(&[7; 100_000]).unwrap();
    open.sync_all().unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    let mut back = Vec::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_end(&mut back).unwrap();
    assert!(back == [7; 100_000]);
    drop(open);
    let tmp = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(m.mnt())
        .unwrap();
    (&tmp).write_all(b"tmp").unwrap();
    let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&tmp));
    use rustix::fs::{AtFlags, CWD, linkat};
    linkat(
        CWD,
        proc.as_str(),
        CWD,
        m.path("named").as_path(),
        AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    drop(tmp);
    assert_eq!(fs::read(m.path("named")).unwrap(), b"tmp");
    m.unmount();
}

/// copy_file_range, with the source in the daemon's memory, in the kernel's, in both or in none, and with holes.
#[test]
fn copies() {
    if !can_mount("copies") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let sizes = [1, 4096, 5000, 128 << 10, (128 << 10) + 1, (1 << 20) + 3];
    let content =
        |n: usize| -> Vec<u8> { (0..sizes[n]).map(|i| (i * (n + 7) / 3) as u8).collect() };
    for n in 0..sizes.len() {
        fs::write(m.path(&format!("f{n}")), content(n)).unwrap();
    }
    let holes = File::create(m.path("holes")).unwrap();
    holes.write_all_at(b"end", 70_000).unwrap();
    drop(holes);
    let copy = |m: &TestMount, from: &str, to: &str| {
        let (from, to) = (
            File::open(m.path(from)).unwrap(),
            File::create(m.path(to)).unwrap(),
        );
        let (mut at, mut into) = (0, 100);
        // Until nothing is left, in pieces and to another place within a block.
        loop {
            let piece = 300_000;
            let n = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), piece);
            if n.unwrap() == 0 {
                return;
            }
        }
    };
    let check = |m: &TestMount, to: &str, expected: &[u8]| {
        let all = fs::read(m.path(to)).unwrap();
        assert!(all[..100] == [0; 100] && all[100..] == *expected, "{to}");
    };
    // Not committed; committed; after a mount, when the kernel has nothing; and once it has read them.
    for round in 0..4 {
        match round {
            1 => File::open(m.path("f0")).unwrap().sync_all().unwrap(),
            2 => {
                m.unmount();
                m.mount();
            }
            3 => {
                for n in 0..sizes.len() {
                    assert!(fs::read(m.path(&format!("f{n}"))).unwrap() == content(n));
                }
            }
            _ => {}
        }
        for n in 0..sizes.len() {
            let name = format!("c{round}-{n}");
            copy(&m, &format!("f{n}"), &name);
            check(&m, &name, &content(n));
        }
        copy(&m, "holes", &format!("h{round}"));
    }
    m.unmount();
    m.mount();
    let mut end = vec![0; 70_000];
    end.extend_from_slice(b"end");
    for round in 0..4 {
        for n in 0..sizes.len() {
            check(&m, &format!("c{round}-{n}"), &content(n));
        }
        check(&m, &format!("h{round}"), &end);
    }
    m.unmount();
}

/// What is removed in great numbers is forgotten by the kernel as fast, and all of it reaches the daemon: inodes come back.
#[test]
fn many_files_come_and_go() {
    if !can_mount("many_files_come_and_go") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let free = || rustix::fs::statfs(m.mnt()).unwrap().f_ffree;
    let before = free();
    for round in 0..3 {
        let name = |n| m.path(&format!("f{round}-{n}"));
        // Held open: these are removed when they are forgotten.
        let held: Vec<_> = (0..300).map(|n| File::create(name(n)).unwrap()).collect();
        for n in 300..1500 {
            File::create(name(n)).unwrap();
        }
        assert!(free() < before, "new files have inodes");
        for n in 0..1500 {
            fs::remove_file(name(n)).unwrap();
        }
        drop(held);
        let end = Instant::now() + Duration::from_secs(120);
        while free() != before {
            assert!(Instant::now() < end, "{} inodes of {before}", free());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    m.unmount();
}

#[test]
fn extended_attributes() {
    if !can_mount("extended_attributes") {
        return;
    }
    use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
    let mut m = TestMount::new(FsType::Fuseblk);
    let path = m.path("f");
    fs::write(&path, b"").unwrap();
    setxattr(&path, "user.a", &[5; 3000], XattrFlags::CREATE).unwrap();
    assert!(setxattr(&path, "user.a", b"x", XattrFlags::CREATE).is_err());
    setxattr(&path, "trusted.b", b"", XattrFlags::empty()).unwrap();
    let mut buf = vec![0; 4000];
    assert_eq!(getxattr(&path, "user.a", &mut buf[..]).unwrap(), 3000);
    assert_eq!(
        getxattr(&path, "user.a", &mut buf[..10]).unwrap_err(),
        rustix::io::Errno::RANGE
    );
    assert_eq!(
        getxattr(&path, "user.none", &mut buf[..]).unwrap_err(),
        rustix::io::Errno::NODATA
    );
    let len = listxattr(&path, &mut buf[..]).unwrap();
    let mut names: Vec<_> = buf[..len]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort();
    assert_eq!(names, [&b"trusted.b"[..], b"user.a"]);
    removexattr(&path, "user.a").unwrap();
    m.unmount();
    m.mount();
    assert_eq!(getxattr(&path, "trusted.b", &mut buf[..]).unwrap(), 0);
    m.unmount();
}

#[test]
fn many_entries() {
    if !can_mount("many_entries") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = m.path("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..3000 {
        File::create(dir.join(format!("file-with-a-long-name-{i:05}"))).unwrap();
    }
    let count = |m: &TestMount| {
        let mut names: Vec<_> = fs::read_dir(m.path("many"))
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name(), e.metadata().unwrap().ino()))
            .collect();
        names.sort();
        names.dedup();
        names.len()
    };
    assert_eq!(count(&m), 3000);
    m.unmount();
    m.mount();
    assert_eq!(count(&m), 3000);
    for i in (0..3000).step_by(2) {
        fs::remove_file(dir.join(format!("file-with-a-long-name-{i:05}"))).unwrap();
    }
    assert_eq!(count(&m), 1500);
    m.unmount();
}

#[test]
fn file_handles() {
    if !can_mount("file_handles") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"by handle").unwrap();
    let handle = common::handle_of(&m.path("d/f"));
    m.unmount();
    m.mount();
    let mut text = String::new();
    common::open_handle(&m.mnt(), &handle)
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(text, "by handle");
    fs::remove_file(m.path("d/f")).unwrap();
    let gone = common::open_handle(&m.mnt(), &handle).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ESTALE));
    // Inode numbers in a handle can be made up: the journal's, the boot loader's, one that is not allocated, one that cannot exist.
    for nodeid in [0u64, 2, 5, 8, 10, 4000, 1 << 20, u32::MAX as u64, 1 << 40] {
        let mut forged = handle.clone();
        // struct file_handle: 8 bytes of head, then FUSE's node id as two words, high word first in the second half.
        forged[8..12].copy_from_slice(&((nodeid >> 32) as u32).to_ne_bytes());
        forged[12..16].copy_from_slice(&(nodeid as u32).to_ne_bytes());
        let refused = common::open_handle(&m.mnt(), &forged);
        assert!(refused.is_err(), "{nodeid}");
    }
    m.unmount();
}
