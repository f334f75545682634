//! The rows of docs/posix.md about what FUSE, or the kernel in front of the daemon, carries or refuses.
#![allow(unsafe_code)]
mod common;
use common::{PATIENCE, Place, ccfs_with, run, tool, unmount};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// A mounted volume; `finish` unmounts and checks it.
struct Mounted {
    place: Place,
    image: String,
    dir: String,
}

impl Mounted {
    fn new(size: &str) -> Mounted {
        let place = Place::new();
        let (image, dir) = (place.volume("a.img", size), place.subdir("mnt"));
        let ran = ccfs_with(&["mount", &image, &dir]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        Mounted { place, image, dir }
    }
    fn at(&self, name: &str) -> PathBuf {
        self.place.path("mnt").join(name)
    }
    fn finish(self) {
        unmount(&self.dir);
        tool("e2fsck", &["-fn", &self.image]);
    }
}

/// The error number of a libc call that gives -1.
fn errno(result: impl Into<i64>) -> i32 {
    match result.into() {
        -1 => io::Error::last_os_error().raw_os_error().unwrap_or(0),
        _ => 0,
    }
}

/// `ioctl(fd, number, argument)`; 0 or the error number.
fn ioctl<T>(file: &File, number: u64, argument: &mut T) -> i32 {
    // SAFETY: every caller passes an argument of the size that its ioctl number names, and it outlives the call.
    errno(unsafe { libc::ioctl(file.as_raw_fd(), number, std::ptr::from_mut(argument)) })
}

/// A file of 64 KiB that is on disk.
fn file(path: &PathBuf) -> File {
    fs::write(path, vec![3u8; 64 << 10]).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    file.sync_all().unwrap();
    file
}

#[test]
fn what_fuse_cannot_carry() {
    common::needs_mounts!();
    let m = Mounted::new("64M");
    let f = file(&m.at("f"));
    let g = file(&m.at("g"));
    let mut bytes = [0u8; 256];
    bytes[8..16].fill(0xff);
    assert_eq!(
        ioctl(&f, 0xC020_660B, &mut bytes),
        libc::EOPNOTSUPP,
        "FIEMAP"
    );
    let mut block = 1i32;
    let fibmap = ioctl(&f, 1, &mut block);
    assert!(
        fibmap == libc::EINVAL || (fibmap == 0 && block == 0),
        "FIBMAP {fibmap} {block}"
    );
    // SAFETY: two open files.
    let clone = errno(unsafe { libc::ioctl(f.as_raw_fd(), 0x4004_9409, g.as_raw_fd()) });
    assert_eq!(clone, libc::EOPNOTSUPP, "FICLONE");
    let mut range = [g.as_raw_fd() as u64, 0, 4096, 0];
    assert_eq!(
        ioctl(&f, 0x4020_940D, &mut range),
        libc::EOPNOTSUPP,
        "FICLONERANGE"
    );
    assert_eq!(
        ioctl(&File::open(&m.dir).unwrap(), 0xC004_5877, &mut 0i32),
        libc::EOPNOTSUPP,
        "FIFREEZE"
    );
    // Project ids: read as none, and none can be set.
    let mut attr = [0u8; 28];
    assert_eq!(ioctl(&f, 0x801C_581F, &mut attr), 0, "FSGETXATTR");
    assert_eq!(attr[12..16], [0; 4], "project id");
    attr[12] = 7;
    assert_ne!(
        ioctl(&f, 0x401C_5820, &mut attr),
        0,
        "FSSETXATTR with a project id"
    );
    for (mode, name) in [
        (libc::FALLOC_FL_COLLAPSE_RANGE, "COLLAPSE_RANGE"),
        (libc::FALLOC_FL_INSERT_RANGE, "INSERT_RANGE"),
    ] {
        // SAFETY: an open file and plain numbers.
        let result = errno(unsafe { libc::fallocate(f.as_raw_fd(), mode, 4096, 4096) });
        assert_eq!(result, libc::EOPNOTSUPP, "{name}");
    }
    let part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // RWF_ATOMIC and RWF_DONTCACHE.
    for flag in [0x40, 0x80] {
        // SAFETY: the vector points to a buffer that outlives the call.
        let write = errno(unsafe { libc::pwritev2(f.as_raw_fd(), &part, 1, 0, flag) } as i64);
        assert_eq!(write, libc::EOPNOTSUPP, "{flag:x}");
    }
    // SAFETY: as above; what is read goes nowhere, since the call fails.
    let read = unsafe { libc::preadv2(f.as_raw_fd(), &part, 1, 0, libc::RWF_NOWAIT) };
    assert_eq!(errno(read as i64), libc::EOPNOTSUPP, "RWF_NOWAIT");
    assert_ne!(run(Command::new("swapon").arg(m.at("f"))).code, 0, "swapon");
    // Q_GETFMT of user quotas.
    let mut format = 0u32;
    let root = File::open(&m.dir).unwrap();
    // SAFETY: an open directory and room for the answer.
    let quota = errno(unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            root.as_raw_fd(),
            0x8000_0400u32 as i32,
            0,
            &mut format,
        )
    });
    assert!(
        [libc::ENOSYS, libc::ENODEV, libc::ESRCH].contains(&quota),
        "quotactl: {quota}"
    );
    drop(root);
    drop((f, g));
    assert_eq!(fs::read(m.at("f")).unwrap(), vec![3u8; 64 << 10]);
    m.finish();
}

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

#[test]
fn idmapped_mounts_are_refused() {
    common::needs_mounts!();
    let m = Mounted::new("32M");
    let mut sleeper = Command::new("unshare")
        .args(["--user", "--map-root-user", "sleep", "60"])
        .spawn()
        .unwrap();
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let start = std::time::Instant::now();
    while of(&sleeper.id().to_string()) == of("self") {
        if sleeper.try_wait().unwrap().is_some() {
            println!("skipped: there are no user namespaces here");
            return;
        }
        assert!(start.elapsed().as_secs() < 60, "a user namespace");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let namespace = File::open(format!("/proc/{}/ns/user", sleeper.id()));
    let dir = std::ffi::CString::new(m.dir.as_str()).unwrap();
    // SAFETY: OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC of a valid path; the attributes outlive the call.
    let result = unsafe {
        let tree = libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            dir.as_ptr(),
            1 | libc::O_CLOEXEC,
        );
        assert!(tree >= 0, "open_tree: {}", io::Error::last_os_error());
        let attr = MountAttr {
            set: 0x0010_0000,
            clear: 0,
            propagation: 0,
            userns: namespace.as_ref().unwrap().as_raw_fd() as u64,
        };
        let size = size_of::<MountAttr>();
        let result = libc::syscall(
            libc::SYS_mount_setattr,
            tree,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &attr,
            size,
        );
        let result = errno(result);
        libc::close(tree as i32);
        result
    };
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(result, libc::EINVAL);
    m.finish();
}

/// A write by the kernel's aio and one by io_uring.
fn asynchronous(file: &File) {
    let text = b"by aio";
    // `struct iocb` of io_submit(2): opcode 1 is IOCB_CMD_PWRITE.
    let mut iocb = [0u64; 8];
    iocb[2] = 1 | (file.as_raw_fd() as u64) << 32;
    iocb[3] = text.as_ptr() as u64;
    iocb[4] = text.len() as u64;
    let (mut context, mut done, mut list) = (0u64, [0u64; 4], [iocb.as_mut_ptr()]);
    // SAFETY: context, request, text and room for one event outlive the calls.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &mut context), 0);
        assert_eq!(
            libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()),
            1
        );
        assert_eq!(
            libc::syscall(libc::SYS_io_getevents, context, 1, 1, done.as_mut_ptr(), 0),
            1
        );
        libc::syscall(libc::SYS_io_destroy, context);
    }
    assert_eq!(done[2], text.len() as u64, "aio");
    let mut ring = match io_uring::IoUring::new(4) {
        Ok(ring) => ring,
        Err(e) => return println!("skipped: io_uring: {e}"),
    };
    let text = b"by ring";
    let write =
        io_uring::opcode::Write::new(io_uring::types::Fd(file.as_raw_fd()), text.as_ptr(), 7)
            .offset(6)
            .build();
    // SAFETY: the text and the file outlive the request, which is waited for.
    unsafe { ring.submission().push(&write).unwrap() };
    ring.submit_and_wait(1).unwrap();
    assert_eq!(
        ring.completion().next().map(|c| c.result()),
        Some(7),
        "io_uring"
    );
    let mut read = [0; 13];
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .and_then(|f| f.read_exact_at(&mut read, 0))
        .unwrap();
    assert_eq!(&read, b"by aioby ring");
}

#[test]
fn what_the_kernel_carries() {
    common::needs_mounts!();
    let m = Mounted::new("64M");
    let source = file(&m.at("f"));
    // sendfile
    let copy = File::create(m.at("copy")).unwrap();
    let mut offset: libc::off_t = 0;
    // SAFETY: two open files and an offset that outlives the call.
    let sent =
        unsafe { libc::sendfile(copy.as_raw_fd(), source.as_raw_fd(), &mut offset, 64 << 10) };
    assert_eq!(sent, 64 << 10);
    assert_eq!(fs::read(m.at("copy")).unwrap(), vec![3u8; 64 << 10]);
    // splice through a pipe
    let (mut reader, mut writer) = io::pipe().unwrap();
    // SAFETY: an open file, a pipe, no offset for the pipe.
    let spliced = unsafe {
        let mut at: libc::loff_t = 4096;
        libc::splice(
            source.as_raw_fd(),
            &mut at,
            writer.as_raw_fd(),
            std::ptr::null_mut(),
            4096,
            0,
        )
    };
    assert_eq!(spliced, 4096);
    writer.write_all(b"!").unwrap();
    drop(writer);
    let mut got = Vec::new();
    reader.read_to_end(&mut got).unwrap();
    assert_eq!((got.len(), got[4095], got[4096]), (4097, 3, b'!'));
    // inotify sees calls through the mount
    // SAFETY: plain calls with a valid path.
    let events = unsafe {
        let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
        let path = std::ffi::CString::new(m.dir.as_str()).unwrap();
        assert!(libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_CREATE) >= 0);
        fs::write(m.at("watched"), "x").unwrap();
        let mut buffer = [0u8; 512];
        let n = libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(fd);
        n
    };
    assert!(events > 0, "no event for a creation");
    asynchronous(&copy);
    // SAFETY: an open file and plain numbers.
    let ranged = errno(unsafe {
        libc::sync_file_range(copy.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE)
    });
    assert_eq!(ranged, 0, "sync_file_range");
    drop((source, copy));
    // A bind mount keeps the volume alive.
    let other = m.place.subdir("other");
    tool("mount", &["--bind", &m.dir, &other]);
    assert_eq!(
        fs::read_to_string(m.place.path("other/watched")).unwrap(),
        "x"
    );
    common::umount8(&other);
    m.finish();
}

/// A mark of this kind in a group of this kind, and whether it tells of a file that is written; the error number if there is no mark.
fn marked(dir: &str, group: u32, mark: u32) -> Result<bool, i32> {
    use std::os::fd::{FromRawFd, OwnedFd};
    let path = std::ffi::CString::new(dir).unwrap();
    let mask = libc::FAN_CLOSE_WRITE | libc::FAN_EVENT_ON_CHILD;
    // SAFETY: plain numbers, and a path that outlives the call; the descriptor is nobody else's.
    let (group, added) = unsafe {
        let fd = libc::fanotify_init(group | libc::FAN_NONBLOCK, libc::O_RDONLY as u32);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        let flags = libc::FAN_MARK_ADD | mark;
        let added = libc::fanotify_mark(fd, flags, mask, libc::AT_FDCWD, path.as_ptr());
        (OwnedFd::from_raw_fd(fd), errno(added))
    };
    if added != 0 {
        return Err(added);
    }
    fs::write(format!("{dir}/watched"), "x").unwrap();
    // A child of another test may have the file a little longer, until it becomes its program.
    let mut polled = [rustix::event::PollFd::new(
        &group,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut polled, Some(&PATIENCE.try_into().unwrap())).unwrap();
    let mut event = [0; 4096];
    let read = match rustix::io::read(&group, &mut event) {
        Err(rustix::io::Errno::AGAIN) => 0,
        read => read.unwrap(),
    };
    // Of a group that gets descriptors: the file's, which would keep the mount in use.
    let fd = i32::from_ne_bytes(event[16..20].try_into().unwrap());
    if read > 0 && fd >= 0 {
        // SAFETY: the kernel has opened it for this event.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    Ok(read > 0)
}

#[test]
fn marks_of_fanotify() {
    common::needs_mounts!();
    let m = Mounted::new("32M");
    let (classic, handles) = (libc::FAN_CLASS_NOTIF, libc::FAN_REPORT_FID);
    let (whole, mount) = (libc::FAN_MARK_FILESYSTEM, libc::FAN_MARK_MOUNT);
    for mark in [whole, mount, 0] {
        assert_eq!(marked(&m.dir, classic, mark), Ok(true), "{mark:x}");
    }
    for mark in [whole, mount] {
        let refused = marked(&m.dir, handles, mark);
        assert_eq!(refused, Err(libc::ENODEV), "{mark:x}");
    }
    // Before Linux 6.8 not these either.
    let inode = marked(&m.dir, handles, 0);
    assert!([Ok(true), Err(libc::ENODEV)].contains(&inode), "{inode:?}");
    m.finish();
}

/// Room for a `struct file_handle` with its bytes.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

#[test]
fn file_handles_work() {
    common::needs_mounts!();
    let m = Mounted::new("32M");
    fs::create_dir(m.at("d")).unwrap();
    fs::write(m.at("d/f"), "by handle").unwrap();
    let mut handle = Handle {
        bytes: 128,
        kind: 0,
        data: [0; 128],
    };
    let path = std::ffi::CString::new(m.at("d/f").to_str().unwrap()).unwrap();
    let mut id = 0;
    let raw = std::ptr::from_mut(&mut handle).cast();
    // SAFETY: the handle has room for the 128 bytes that it announces.
    let named =
        errno(unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), raw, &mut id, 0) });
    assert_eq!(named, 0, "name_to_handle_at");
    let open = |handle: &mut Handle, dir: &str| -> Result<String, i32> {
        let at = File::open(dir).unwrap();
        let raw = std::ptr::from_mut(handle).cast();
        // SAFETY: the handle was filled in by the kernel; a descriptor of the mount comes with it.
        let fd = unsafe {
            libc::open_by_handle_at(at.as_raw_fd(), raw, libc::O_RDONLY | libc::O_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let mut file: File = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        Ok(text)
    };
    assert_eq!(open(&mut handle, &m.dir), Ok("by handle".to_string()));
    unmount(&m.dir);
    assert_eq!(ccfs_with(&["mount", &m.image, &m.dir]).code, 0);
    assert_eq!(
        open(&mut handle, &m.dir),
        Ok("by handle".to_string()),
        "after a remount"
    );
    fs::remove_file(m.at("d/f")).unwrap();
    fs::write(m.at("d/next"), "another file").unwrap();
    // The kernel holds an inode until a file's RELEASE is answered, which no close waits for.
    let start = Instant::now();
    let gone = loop {
        match open(&mut handle, &m.dir) {
            Ok(_) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            end => break end,
        }
    };
    assert_eq!(gone, Err(libc::ESTALE), "after the file's end");
    m.finish();
}

#[test]
fn shutdown_stops_the_volume() {
    common::needs_mounts!();
    let m = Mounted::new("32M");
    fs::write(m.at("kept"), "synced").unwrap();
    File::open(m.at("kept")).unwrap().sync_all().unwrap();
    fs::write(m.at("lost"), "not synced").unwrap();
    // FS_IOC_SHUTDOWN with "no log flush".
    assert_eq!(
        ioctl(&File::open(&m.dir).unwrap(), 0x8004_587D, &mut 2u32),
        0
    );
    let error = fs::write(m.at("more"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let status = ccfs_with(&["status", &m.dir]);
    let says = format!("{}{}", status.out, status.err);
    assert!(says.to_lowercase().contains("stopped"), "{says}");
    let ended = common::try_unmount(&m.dir);
    assert!(
        ended.code == 32 && ended.err.contains("ccfs fsck -p"),
        "{}",
        ended.err
    );
    assert_eq!(ccfs_with(&["mount", &m.image, &m.dir]).code, 0);
    assert_eq!(fs::read_to_string(m.at("kept")).unwrap(), "synced");
    assert!(
        !m.at("lost").exists(),
        "the shutdown committed what it should have dropped"
    );
    let f = file(&m.at("after"));
    f.write_all_at(b"x", 0).unwrap();
    assert_eq!(f.metadata().unwrap().size(), 64 << 10);
    drop(f);
    m.finish();
}

/// How many operations a write(2) is: as many as the kernel makes requests of it (the section "What one write is" of docs/using/all-or-nothing.md).
#[test]
fn what_one_write_is() {
    common::needs_mounts!();
    let m = Mounted::new("64M");
    let requests = || {
        let said = ccfs_with(&["status", "--json", &m.dir]);
        let status: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        status["requests"]["WRITE"].as_u64().unwrap_or(0)
    };
    let whole = file(&m.at("f"));
    whole.write_all_at(&vec![1; 3 << 20], 0).unwrap();
    whole.sync_all().unwrap();
    let made_by = |write: &dyn Fn()| {
        // SAFETY: an open file and numbers.
        let dropped = unsafe { libc::posix_fadvise(whole.as_raw_fd(), 0, 0, 4) };
        assert_eq!(dropped, 0, "POSIX_FADV_DONTNEED");
        let before = requests();
        write();
        requests() - before
    };
    let write = |len, at| whole.write_all_at(&vec![2; len], at).unwrap();
    for (len, at) in [(5000, 0), (5000, 8192), (1 << 20, 4096), (100, 5000)] {
        assert_eq!(made_by(&|| write(len, at)), 1, "{len} at {at}");
    }
    // Across the end of a page that the kernel has not got: two today.
    let cut = made_by(&|| write(5000, 5000));
    assert!((1..=2).contains(&cut), "{cut}");
    let read_first = || {
        whole.read_exact_at(&mut [0], 4096).unwrap();
        write(5000, 5000);
    };
    assert_eq!(made_by(&read_first), 1, "with the page in the cache");
    let direct = || {
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_DIRECT);
        let f = options.write(true).open(m.at("f")).unwrap();
        f.write_all_at(&vec![3; (1 << 20) - 4096], 5000).unwrap();
    };
    assert_eq!(made_by(&direct), 1, "O_DIRECT");
    drop(whole);
    m.finish();
}
