//! System calls as the tests need them: one function per call, the errno as the error, nothing retried or hidden.
#![allow(unsafe_code)]

pub use later::{Calls, Later};
pub use objects::{Dir, Direct, Map};
pub use process::{
    as_user, become_user, die_with, geteuid, gettid, kill, kill_group, on_termination, umask,
    umount_abort, umount_lazy,
};

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Outcome of a call: the error is the errno.
pub type R<T> = Result<T, i32>;

/// The calling thread's errno.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn c(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).expect("test paths have no NUL")
}

fn name_c(name: &str) -> CString {
    CString::new(name).expect("test names have no NUL")
}

macro_rules! call {
    ($e:expr) => {{
        // SAFETY: every pointer comes from a live CString, slice or local of the wrapper, with that object's own length.
        let r = unsafe { $e };
        if r as i64 == -1 { Err(errno()) } else { Ok(r) }
    }};
}

mod later;
mod objects;
mod process;

pub fn open(path: impl AsRef<Path>, flags: i32, mode: u32) -> R<OwnedFd> {
    let fd = call!(libc::open(c(path).as_ptr(), flags | libc::O_CLOEXEC, mode))?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn openat(dir: &OwnedFd, name: &str, flags: i32, mode: u32) -> R<OwnedFd> {
    let fd = call!(libc::openat(
        dir.as_raw_fd(),
        name_c(name).as_ptr(),
        flags | libc::O_CLOEXEC,
        mode
    ))?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The reading end of a pipe.
pub fn pipe() -> R<OwnedFd> {
    let mut fds = [0i32; 2];
    call!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))?;
    // SAFETY: fresh descriptors, owned by nobody else.
    let [reader, _] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(reader)
}

/// Closes and tells what close(2) said.
pub fn close(fd: OwnedFd) -> R<()> {
    use std::os::fd::IntoRawFd;
    call!(libc::close(fd.into_raw_fd())).map(drop)
}

pub fn pread(fd: &OwnedFd, buf: &mut [u8], at: u64) -> R<usize> {
    call!(libc::pread(
        fd.as_raw_fd(),
        buf.as_mut_ptr().cast(),
        buf.len(),
        at as i64
    ))
    .map(|n| n as usize)
}

pub fn read(fd: &OwnedFd, buf: &mut [u8]) -> R<usize> {
    call!(libc::read(
        fd.as_raw_fd(),
        buf.as_mut_ptr().cast(),
        buf.len()
    ))
    .map(|n| n as usize)
}

pub fn pwrite(fd: &OwnedFd, buf: &[u8], at: u64) -> R<usize> {
    call!(libc::pwrite(
        fd.as_raw_fd(),
        buf.as_ptr().cast(),
        buf.len(),
        at as i64
    ))
    .map(|n| n as usize)
}

/// pwritev2 with `RWF_*` flags.
pub fn pwrite_flags(fd: &OwnedFd, buf: &[u8], at: u64, flags: i32) -> R<usize> {
    let part = libc::iovec {
        iov_base: buf.as_ptr().cast_mut().cast(),
        iov_len: buf.len(),
    };
    call!(libc::pwritev2(fd.as_raw_fd(), &part, 1, at as i64, flags)).map(|n| n as usize)
}

pub fn write(fd: &OwnedFd, buf: &[u8]) -> R<usize> {
    call!(libc::write(fd.as_raw_fd(), buf.as_ptr().cast(), buf.len())).map(|n| n as usize)
}

pub fn lseek(fd: &OwnedFd, at: i64, whence: i32) -> R<u64> {
    call!(libc::lseek(fd.as_raw_fd(), at, whence)).map(|n| n as u64)
}

pub fn ftruncate(fd: &OwnedFd, len: i64) -> R<()> {
    call!(libc::ftruncate(fd.as_raw_fd(), len)).map(drop)
}

pub fn truncate(path: impl AsRef<Path>, len: i64) -> R<()> {
    call!(libc::truncate(c(path).as_ptr(), len)).map(drop)
}

pub fn fallocate(fd: &OwnedFd, mode: i32, at: i64, len: i64) -> R<()> {
    call!(libc::fallocate(fd.as_raw_fd(), mode, at, len)).map(drop)
}

pub fn fsync(fd: &OwnedFd) -> R<()> {
    call!(libc::fsync(fd.as_raw_fd())).map(drop)
}

pub fn fdatasync(fd: &OwnedFd) -> R<()> {
    call!(libc::fdatasync(fd.as_raw_fd())).map(drop)
}

pub fn syncfs(fd: &OwnedFd) -> R<()> {
    call!(libc::syncfs(fd.as_raw_fd())).map(drop)
}

/// sync(2): all file systems of the machine.
pub fn sync_all() {
    // SAFETY: no arguments.
    unsafe { libc::sync() };
}

/// mount(2) with MS_REMOUNT and MS_RDONLY: what mount(8) does where no helper is installed.
pub fn remount_read_only(path: impl AsRef<Path>) -> R<()> {
    let (none, target) = (std::ptr::null(), c(path));
    let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
    call!(libc::mount(none, target.as_ptr(), none, flags, none.cast())).map(drop)
}

/// mount(2) of a FUSE file system that `device` (/dev/fuse) serves, for one user alone, as fusermount3 does it.
pub fn mount_fuse(device: &OwnedFd, path: impl AsRef<Path>, uid: u32, gid: u32) -> R<()> {
    let options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid}",
        device.as_raw_fd()
    );
    let (kind, target, options) = (name_c("fuse"), c(path), name_c(&options));
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    call!(libc::mount(
        kind.as_ptr(),
        target.as_ptr(),
        kind.as_ptr(),
        flags,
        options.as_ptr().cast()
    ))
    .map(drop)
}

/// posix_fadvise(DONTNEED) on the whole file: later reads come from the file system again.
pub fn drop_cache(fd: &OwnedFd) {
    // SAFETY: no pointers.
    unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

pub fn mkdir(path: impl AsRef<Path>, mode: u32) -> R<()> {
    call!(libc::mkdir(c(path).as_ptr(), mode)).map(drop)
}

pub fn rmdir(path: impl AsRef<Path>) -> R<()> {
    call!(libc::rmdir(c(path).as_ptr())).map(drop)
}

pub fn unlink(path: impl AsRef<Path>) -> R<()> {
    call!(libc::unlink(c(path).as_ptr())).map(drop)
}

pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> R<()> {
    call!(libc::rename(c(from).as_ptr(), c(to).as_ptr())).map(drop)
}

/// `flags`: RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT.
pub fn renameat2(from: impl AsRef<Path>, to: impl AsRef<Path>, flags: u32) -> R<()> {
    let (from, to) = (c(from), c(to));
    call!(libc::renameat2(
        libc::AT_FDCWD,
        from.as_ptr(),
        libc::AT_FDCWD,
        to.as_ptr(),
        flags
    ))
    .map(drop)
}

pub fn link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> R<()> {
    call!(libc::link(c(from).as_ptr(), c(to).as_ptr())).map(drop)
}

/// Gives a name to the file behind `fd` (O_TMPFILE).
pub fn link_fd(fd: &OwnedFd, to: impl AsRef<Path>) -> R<()> {
    let from = name_c(&format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let to = c(to);
    call!(libc::linkat(
        libc::AT_FDCWD,
        from.as_ptr(),
        libc::AT_FDCWD,
        to.as_ptr(),
        libc::AT_SYMLINK_FOLLOW
    ))
    .map(drop)
}

pub fn symlink(target: &str, path: impl AsRef<Path>) -> R<()> {
    call!(libc::symlink(name_c(target).as_ptr(), c(path).as_ptr())).map(drop)
}

pub fn readlink(path: impl AsRef<Path>) -> R<Vec<u8>> {
    let mut buf = vec![0u8; 5000];
    let n = call!(libc::readlink(
        c(path).as_ptr(),
        buf.as_mut_ptr().cast(),
        buf.len()
    ))?;
    buf.truncate(n as usize);
    Ok(buf)
}

/// `mode` with the type bits.
pub fn mknod(path: impl AsRef<Path>, mode: u32, dev: u64) -> R<()> {
    call!(libc::mknod(c(path).as_ptr(), mode, dev)).map(drop)
}

pub fn chmod(path: impl AsRef<Path>, mode: u32) -> R<()> {
    call!(libc::chmod(c(path).as_ptr(), mode)).map(drop)
}

pub fn fchmod(fd: &OwnedFd, mode: u32) -> R<()> {
    call!(libc::fchmod(fd.as_raw_fd(), mode)).map(drop)
}

/// `u32::MAX`: leave alone.
pub fn chown(path: impl AsRef<Path>, uid: u32, gid: u32) -> R<()> {
    call!(libc::chown(c(path).as_ptr(), uid, gid)).map(drop)
}

pub fn lchown(path: impl AsRef<Path>, uid: u32, gid: u32) -> R<()> {
    call!(libc::lchown(c(path).as_ptr(), uid, gid)).map(drop)
}

pub fn access(path: impl AsRef<Path>, mode: i32) -> R<()> {
    call!(libc::access(c(path).as_ptr(), mode)).map(drop)
}

/// (seconds, nanoseconds); nanoseconds may be UTIME_NOW or UTIME_OMIT.
pub type Time = (i64, i64);

/// Sets atime and mtime; does not follow a symlink.
pub fn utimens(path: impl AsRef<Path>, atime: Time, mtime: Time) -> R<()> {
    let times = [
        libc::timespec {
            tv_sec: atime.0,
            tv_nsec: atime.1,
        },
        libc::timespec {
            tv_sec: mtime.0,
            tv_nsec: mtime.1,
        },
    ];
    call!(libc::utimensat(
        libc::AT_FDCWD,
        c(path).as_ptr(),
        times.as_ptr(),
        libc::AT_SYMLINK_NOFOLLOW
    ))
    .map(drop)
}

/// What stat tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    /// 512-byte units.
    pub blocks: u64,
    pub blksize: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
}

impl Stat {
    // Some fields are narrower on other processors.
    #[allow(clippy::useless_conversion)]
    fn from(s: &libc::stat) -> Self {
        Stat {
            dev: s.st_dev,
            ino: s.st_ino,
            mode: s.st_mode,
            nlink: s.st_nlink.into(),
            uid: s.st_uid,
            gid: s.st_gid,
            rdev: s.st_rdev,
            size: s.st_size as u64,
            blocks: s.st_blocks as u64,
            blksize: s.st_blksize as u64,
            atime: (s.st_atime, s.st_atime_nsec),
            mtime: (s.st_mtime, s.st_mtime_nsec),
            ctime: (s.st_ctime, s.st_ctime_nsec),
        }
    }
    /// S_IFMT part of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
    /// Permission bits with setuid, setgid and sticky.
    pub fn perm(&self) -> u32 {
        self.mode & 0o7777
    }
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }
}

fn zero_stat() -> libc::stat {
    // SAFETY: a struct of integers; all zeros is a value of it.
    unsafe { std::mem::zeroed() }
}

pub fn lstat(path: impl AsRef<Path>) -> R<Stat> {
    let mut s = zero_stat();
    call!(libc::lstat(c(path).as_ptr(), &mut s))?;
    Ok(Stat::from(&s))
}

pub fn stat(path: impl AsRef<Path>) -> R<Stat> {
    let mut s = zero_stat();
    call!(libc::stat(c(path).as_ptr(), &mut s))?;
    Ok(Stat::from(&s))
}

pub fn fstat(fd: &OwnedFd) -> R<Stat> {
    let mut s = zero_stat();
    call!(libc::fstat(fd.as_raw_fd(), &mut s))?;
    Ok(Stat::from(&s))
}

/// Time of birth (statx), where the kernel has one: FUSE asks for it from Linux 6.8 on. Does not follow a symlink.
pub fn birth(path: impl AsRef<Path>) -> R<Option<Time>> {
    // SAFETY: a struct of integers; all zeros is a value of it.
    let mut s: libc::statx = unsafe { std::mem::zeroed() };
    call!(libc::statx(
        libc::AT_FDCWD,
        c(path).as_ptr(),
        libc::AT_SYMLINK_NOFOLLOW,
        libc::STATX_BTIME,
        &mut s
    ))?;
    let known = s.stx_mask & libc::STATX_BTIME != 0;
    Ok(known.then(|| (s.stx_btime.tv_sec, s.stx_btime.tv_nsec.into())))
}

/// What statvfs tells; blocks in units of `frsize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatVfs {
    pub bsize: u64,
    pub frsize: u64,
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub namemax: u64,
    pub flags: u64,
}

pub fn statvfs(path: impl AsRef<Path>) -> R<StatVfs> {
    // SAFETY: a struct of integers; all zeros is a value of it.
    let mut s: libc::statvfs = unsafe { std::mem::zeroed() };
    call!(libc::statvfs(c(path).as_ptr(), &mut s))?;
    Ok(StatVfs {
        bsize: s.f_bsize,
        frsize: s.f_frsize,
        blocks: s.f_blocks,
        bfree: s.f_bfree,
        bavail: s.f_bavail,
        files: s.f_files,
        ffree: s.f_ffree,
        namemax: s.f_namemax,
        flags: s.f_flag,
    })
}

/// Does not follow a symlink. `flags`: XATTR_CREATE, XATTR_REPLACE.
pub fn setxattr(path: impl AsRef<Path>, name: &str, value: &[u8], flags: i32) -> R<()> {
    let (path, name) = (c(path), name_c(name));
    call!(libc::lsetxattr(
        path.as_ptr(),
        name.as_ptr(),
        value.as_ptr().cast(),
        value.len(),
        flags
    ))
    .map(drop)
}

pub fn getxattr(path: impl AsRef<Path>, name: &str) -> R<Vec<u8>> {
    let mut buf = vec![0u8; 66_000];
    let (path, name) = (c(path), name_c(name));
    let n = call!(libc::lgetxattr(
        path.as_ptr(),
        name.as_ptr(),
        buf.as_mut_ptr().cast(),
        buf.len()
    ))?;
    buf.truncate(n as usize);
    Ok(buf)
}

/// getxattr with a buffer of `room` bytes; 0 asks for the size.
pub fn getxattr_room(path: impl AsRef<Path>, name: &str, room: usize) -> R<usize> {
    let mut buf = vec![0u8; room];
    let (path, name) = (c(path), name_c(name));
    call!(libc::lgetxattr(
        path.as_ptr(),
        name.as_ptr(),
        buf.as_mut_ptr().cast(),
        room
    ))
    .map(|n| n as usize)
}

pub fn listxattr(path: impl AsRef<Path>) -> R<Vec<String>> {
    let mut buf = vec![0u8; 66_000];
    let n = call!(libc::llistxattr(
        c(path).as_ptr(),
        buf.as_mut_ptr().cast(),
        buf.len()
    ))?;
    let names = buf[..n as usize]
        .split(|b| *b == 0)
        .filter(|s| !s.is_empty());
    Ok(names
        .map(|s| String::from_utf8_lossy(s).into_owned())
        .collect())
}

pub fn removexattr(path: impl AsRef<Path>, name: &str) -> R<()> {
    let (path, name) = (c(path), name_c(name));
    call!(libc::lremovexattr(path.as_ptr(), name.as_ptr())).map(drop)
}

pub fn copy_file_range(
    from: &OwnedFd,
    from_at: u64,
    to: &OwnedFd,
    to_at: u64,
    len: usize,
) -> R<usize> {
    let (mut a, mut b) = (from_at as i64, to_at as i64);
    call!(libc::copy_file_range(
        from.as_raw_fd(),
        &mut a,
        to.as_raw_fd(),
        &mut b,
        len,
        0
    ))
    .map(|n| n as usize)
}

/// An ioctl whose argument is an in-out buffer.
pub fn ioctl(fd: &OwnedFd, request: u64, arg: &mut [u8]) -> R<i32> {
    call!(libc::ioctl(
        fd.as_raw_fd(),
        request as libc::Ioctl,
        arg.as_mut_ptr()
    ))
}

/// An ioctl whose argument should be where nothing is: in the first page of memory.
pub fn ioctl_nowhere(fd: &OwnedFd, request: u64) -> R<i32> {
    call!(libc::ioctl(
        fd.as_raw_fd(),
        request as libc::Ioctl,
        std::ptr::without_provenance_mut::<u8>(8)
    ))
}

/// A descriptor that nobody has open.
pub fn not_open() -> BorrowedFd<'static> {
    // SAFETY: nothing is behind the number, so that nothing can be closed behind its back.
    unsafe { BorrowedFd::borrow_raw(987_654) }
}

/// flock(2); `how`: LOCK_SH, LOCK_EX, LOCK_UN, with LOCK_NB.
pub fn flock(fd: &OwnedFd, how: i32) -> R<()> {
    call!(libc::flock(fd.as_raw_fd(), how)).map(drop)
}

/// A record lock. `cmd`: F_SETLK, F_OFD_SETLK, F_GETLK, F_OFD_GETLK; `kind`: F_RDLCK, F_WRLCK, F_UNLCK. Returns the kind that came back.
pub fn lock(fd: &OwnedFd, cmd: i32, kind: i32, start: i64, len: i64) -> R<i32> {
    // SAFETY: a struct of integers; all zeros is a value of it.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = kind as i16;
    l.l_whence = libc::SEEK_SET as i16;
    l.l_start = start;
    l.l_len = len;
    call!(libc::fcntl(fd.as_raw_fd(), cmd, &mut l))?;
    Ok(l.l_type as i32)
}

/// The current time of the clock that file systems stamp with (coarse realtime).
pub fn now_coarse() -> Time {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut t) };
    (t.tv_sec, t.tv_nsec)
}
