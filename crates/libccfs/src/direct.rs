//! Direct calls for C: the part of `include/ccfs.h` about sessions, directories and files. The objects are boxes that C holds by
//! their address; each of them keeps the session alive, so they may be closed in any order.
#![allow(unsafe_code)]
use super::exports::{answer, bad, of_fd, set_errno, status};
use super::{errno_of, guarded};
use ccfs_client::direct::{Attr, Dir, File, OpenOptions, Session};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd};
use std::os::raw::{c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// `ccfs_session`.
pub struct CSession {
    session: Session,
    device: libc::dev_t,
}

/// `ccfs_dir`.
pub struct CDir {
    dir: Dir,
    device: libc::dev_t,
}

/// `ccfs_file`.
pub struct CFile {
    file: File,
    device: libc::dev_t,
}

/// What `ccfs_dir_list` calls for each name.
type Each = unsafe extern "C" fn(*mut c_void, *const c_char, u64, c_uchar) -> c_int;

/// The object, which C owns from here on, or NULL and errno.
fn object<T>(result: Result<T, i32>) -> *mut T {
    match result {
        Ok(made) => Box::into_raw(Box::new(made)),
        Err(number) => {
            set_errno(number);
            std::ptr::null_mut()
        }
    }
}

/// Bytes, or -1 and errno.
fn bytes(result: Result<usize, i32>) -> libc::ssize_t {
    match result {
        Ok(n) => n as libc::ssize_t,
        Err(number) => status(Err(number)) as libc::ssize_t,
    }
}

/// # Safety
/// `object` is NULL or one that a call of this file gave and that is not closed.
unsafe fn of<'a, T>(object: *const T) -> io::Result<&'a T> {
    // SAFETY: the caller's promise. Nobody has a `&mut` to it: all calls take it shared.
    unsafe { object.as_ref() }.ok_or_else(|| bad(libc::EFAULT))
}

/// # Safety
/// As for `of`; nobody uses the object any more.
unsafe fn close<T>(object: *mut T) {
    if !object.is_null() {
        // SAFETY: it came from `Box::into_raw` (`object`), and the caller gives it back.
        let owned = unsafe { Box::from_raw(object) };
        // A close has nobody to tell of an error.
        let _ = guarded(|| {
            drop(owned);
            Ok(())
        });
    }
}

/// # Safety
/// `name` is NULL or points to a string that ends with a NUL and lives during the call.
unsafe fn name_of<'a>(name: *const c_char) -> io::Result<&'a Path> {
    if name.is_null() {
        return Err(bad(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    Ok(Path::new(OsStr::from_bytes(name.to_bytes())))
}

/// A length that the result can say.
fn checked_len(data: *const c_void, len: usize) -> io::Result<()> {
    if isize::try_from(len).is_err() {
        return Err(bad(libc::EINVAL));
    }
    match data.is_null() && len > 0 {
        true => Err(bad(libc::EFAULT)),
        false => Ok(()),
    }
}

/// # Safety
/// `data` is NULL or `len` bytes can be read there during the call.
unsafe fn data_of<'a>(data: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    checked_len(data, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise; it is not NULL, and no longer than memory can be.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

fn offset_of(offset: libc::off_t) -> io::Result<u64> {
    u64::try_from(offset).map_err(|_| bad(libc::EINVAL))
}

/// # Safety
/// `out` is NULL or can be written.
unsafe fn store_stat(attr: &Attr, device: libc::dev_t, out: *mut libc::stat) -> io::Result<()> {
    if out.is_null() {
        return Err(bad(libc::EFAULT));
    }
    // SAFETY: a `struct stat` of zeros is one.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = device;
    stat.st_ino = attr.ino;
    stat.st_mode = attr.mode;
    stat.st_nlink = attr.nlink.into();
    stat.st_uid = attr.uid;
    stat.st_gid = attr.gid;
    stat.st_size = attr.size as libc::off_t;
    stat.st_blksize = 4096;
    stat.st_blocks = attr.blocks as libc::blkcnt_t;
    (stat.st_atime, stat.st_atime_nsec) = (attr.atime, attr.atime_ns.into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.mtime, attr.mtime_ns.into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.ctime, attr.ctime_ns.into());
    // SAFETY: the caller's promise.
    unsafe { out.write(stat) };
    Ok(())
}

/// What the flags of open(2) ask for. Error: EINVAL for those that have no meaning here.
fn options(flags: c_int, mode: libc::mode_t) -> io::Result<OpenOptions> {
    let has = |flag| flags & flag != 0;
    let access = flags & libc::O_ACCMODE;
    let how = OpenOptions {
        read: access != libc::O_WRONLY,
        write: access != libc::O_RDONLY,
        create: has(libc::O_CREAT),
        exclusive: has(libc::O_EXCL),
        truncate: has(libc::O_TRUNC),
        mode: mode & 0o7777,
    };
    let known = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;
    // open(2) says of the last two that nobody knows what they do.
    let is_bad = flags & !known != 0
        || access == libc::O_ACCMODE
        || how.exclusive && !how.create
        || how.truncate && !how.write;
    match is_bad {
        true => Err(bad(libc::EINVAL)),
        false => Ok(how),
    }
}

fn device_of(fd: impl AsFd) -> io::Result<libc::dev_t> {
    // SAFETY: a `struct stat` of zeros is one.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: it fills the structure.
    match unsafe { libc::fstat(fd.as_fd().as_raw_fd(), &raw mut stat) } {
        0 => Ok(stat.st_dev),
        _ => Err(io::Error::last_os_error()),
    }
}

// SAFETY of the names below: no other function of these names may be linked; ccfs.h is their only declaration. Each function asks of
// its pointers what `of`, `close`, `name_of`, `data_of` and `store_stat` ask.

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_session_begin(dirfd: c_int) -> *mut CSession {
    begin(dirfd, |dir| Session::begin(dir))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_session_begin_in_stream(dirfd: c_int) -> *mut CSession {
    begin(dirfd, |dir| Session::begin_in_stream(dir))
}

fn begin(dirfd: c_int, how: impl Fn(BorrowedFd<'_>) -> io::Result<Session>) -> *mut CSession {
    object(guarded(|| {
        let dir = of_fd(dirfd)?.open()?;
        let device = device_of(&dir)?;
        let session = how(dir.as_fd())?;
        // Not a directory, or one that may not be read: better said here than at every call.
        session.root()?;
        Ok(CSession { session, device })
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_session_is_direct(session: *const CSession) -> c_int {
    // SAFETY: the caller's promise.
    answer(guarded(|| Ok(unsafe { of(session) }?.session.is_direct())))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_session_why_not(session: *const CSession) -> c_int {
    let why = guarded(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { of(session) }?;
        Ok(of.session.why_not().map_or(0, errno_of))
    });
    why.unwrap_or_else(|number| status(Err(number)))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_session_root(session: *mut CSession) -> *mut CDir {
    object(guarded(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { of(session) }?;
        let (dir, device) = (of.session.root()?, of.device);
        Ok(CDir { dir, device })
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_session_dir(session: *mut CSession, dirfd: c_int) -> *mut CDir {
    object(guarded(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { of(session) }?;
        let (dir, device) = (of.session.dir(of_fd(dirfd)?.open()?)?, of.device);
        Ok(CDir { dir, device })
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_session_drain(session: *mut CSession) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| unsafe { of(session) }?.session.drain()))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_session_end(session: *mut CSession) {
    // SAFETY: the caller's promise.
    unsafe { close(session) };
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_open(dir: *mut CDir, name: *const c_char) -> *mut CDir {
    object(guarded(|| {
        // SAFETY: the caller's promises.
        let (of, name) = unsafe { (of(dir)?, name_of(name)?) };
        let (dir, device) = (of.dir.open_dir(name)?, of.device);
        Ok(CDir { dir, device })
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_make(
    dir: *mut CDir,
    name: *const c_char,
    mode: libc::mode_t,
) -> *mut CDir {
    object(guarded(|| {
        // SAFETY: the caller's promises.
        let (of, name) = unsafe { (of(dir)?, name_of(name)?) };
        let (dir, device) = (of.dir.make_dir(name, mode)?, of.device);
        Ok(CDir { dir, device })
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_unlink(dir: *mut CDir, name: *const c_char) -> c_int {
    // SAFETY: the caller's promises.
    status(guarded(|| unsafe {
        of(dir)?.dir.remove_file(name_of(name)?)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_rmdir(dir: *mut CDir, name: *const c_char) -> c_int {
    // SAFETY: the caller's promises.
    status(guarded(|| unsafe {
        of(dir)?.dir.remove_dir(name_of(name)?)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_rename(
    dir: *mut CDir,
    name: *const c_char,
    to: *mut CDir,
    new_name: *const c_char,
) -> c_int {
    status(guarded(|| {
        // SAFETY: the caller's promises.
        let (from, name) = unsafe { (of(dir)?, name_of(name)?) };
        // SAFETY: likewise.
        let (to, new_name) = unsafe { (of(to)?, name_of(new_name)?) };
        from.dir.rename(name, &to.dir, new_name)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_stat(
    dir: *mut CDir,
    name: *const c_char,
    out: *mut libc::stat,
) -> c_int {
    status(guarded(|| {
        // SAFETY: the caller's promises.
        let (of, name) = unsafe { (of(dir)?, name_of(name)?) };
        let attr = of.dir.stat(name)?;
        // SAFETY: likewise.
        unsafe { store_stat(&attr, of.device, out) }
    }))
}

/// # Safety
/// See above; `each` can be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_list(
    dir: *mut CDir,
    each: Option<Each>,
    context: *mut c_void,
) -> c_int {
    let listed = guarded(|| {
        let each = each.ok_or_else(|| bad(libc::EFAULT))?;
        // SAFETY: the caller's promise.
        let names = unsafe { of(dir) }?.dir.read_dir()?;
        let names = names.into_iter().map(|entry| {
            let name = CString::new(entry.name.into_vec()).map_err(|_| bad(libc::EIO))?;
            Ok((name, entry.ino, entry.kind))
        });
        Ok((each, names.collect::<io::Result<Vec<_>>>()?))
    });
    let (each, names) = match listed {
        Ok(listed) => listed,
        Err(number) => return status(Err(number)),
    };
    for (name, ino, kind) in &names {
        // SAFETY: the caller's promise. No lock is held: it may make any call.
        let said = unsafe { each(context, name.as_ptr(), *ino, *kind) };
        if said != 0 {
            return said;
        }
    }
    0
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_sync(dir: *mut CDir) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| unsafe { of(dir) }?.dir.sync()))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_dir_close(dir: *mut CDir) {
    // SAFETY: the caller's promise.
    unsafe { close(dir) };
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_open(
    dir: *mut CDir,
    name: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> *mut CFile {
    // SAFETY: the caller's promises.
    unsafe { file_by(dir, name, |dir, name| dir.open(name, options(flags, mode)?)) }
}

/// # Safety
/// As `of` and `name_of` say.
unsafe fn file_by(
    dir: *mut CDir,
    name: *const c_char,
    open: impl Fn(&Dir, &Path) -> io::Result<File>,
) -> *mut CFile {
    object(guarded(|| {
        // SAFETY: the caller's promises.
        let (of, name) = unsafe { (of(dir)?, name_of(name)?) };
        let (file, device) = (open(&of.dir, name)?, of.device);
        Ok(CFile { file, device })
    }))
}

/// # Safety
/// See above; `st` is NULL or can be written, `length` is NULL or can be read and written, and as many bytes as it says can be written at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_open_and_read(
    dir: *mut CDir,
    name: *const c_char,
    flags: c_int,
    st: *mut libc::stat,
    data: *mut c_void,
    length: *mut usize,
) -> *mut CFile {
    object(guarded(|| {
        // SAFETY: the caller's promises.
        let (of, name) = unsafe { (of(dir)?, name_of(name)?) };
        // SAFETY: likewise.
        let length = unsafe { length.as_mut() }.ok_or_else(|| bad(libc::EFAULT))?;
        checked_len(data, *length)?;
        let out: &mut [u8] = match *length {
            0 => &mut [],
            // SAFETY: the caller's promise; it is not NULL, and no longer than memory can be.
            len => unsafe { std::slice::from_raw_parts_mut(data.cast(), len) },
        };
        let (file, attr, read) = of.dir.open_and_read(name, options(flags, 0)?, out)?;
        // SAFETY: the caller's promise.
        unsafe { store_stat(&attr, of.device, st)? };
        *length = read;
        Ok(CFile {
            file,
            device: of.device,
        })
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_take(
    dir: *mut CDir,
    name: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> *mut CFile {
    // SAFETY: the caller's promises.
    unsafe { file_by(dir, name, |dir, name| dir.take(name, options(flags, mode)?)) }
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_descriptor(file: *mut CFile) -> c_int {
    // SAFETY: the caller's promise.
    let opened = guarded(|| unsafe { of(file) }?.file.descriptor());
    match opened {
        Ok(fd) => fd.into_raw_fd(),
        Err(number) => status(Err(number)),
    }
}

/// # Safety
/// See above; `len` bytes can be written at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_read(
    file: *mut CFile,
    data: *mut c_void,
    len: usize,
    offset: libc::off_t,
) -> libc::ssize_t {
    bytes(guarded(|| {
        // SAFETY: the caller's promise.
        let file = unsafe { of(file) }?;
        checked_len(data, len)?;
        let out = match len {
            0 => &mut [][..],
            // SAFETY: the caller's promise; it is not NULL, and no longer than memory can be. What stands there is only written.
            _ => unsafe { std::slice::from_raw_parts_mut(data.cast(), len) },
        };
        file.file.read_at(out, offset_of(offset)?)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_write(
    file: *mut CFile,
    data: *const c_void,
    len: usize,
    offset: libc::off_t,
) -> libc::ssize_t {
    bytes(guarded(|| {
        // SAFETY: the caller's promises.
        let (file, data) = unsafe { (of(file)?, data_of(data, len)?) };
        file.file.write_at(data, offset_of(offset)?)?;
        Ok(len)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_append(
    file: *mut CFile,
    data: *const c_void,
    len: usize,
) -> libc::ssize_t {
    bytes(guarded(|| {
        // SAFETY: the caller's promises.
        let (file, data) = unsafe { (of(file)?, data_of(data, len)?) };
        file.file.append(data)?;
        Ok(len)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_truncate(file: *mut CFile, size: libc::off_t) -> c_int {
    status(guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { of(file) }?.file.truncate(offset_of(size)?)
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_stat(file: *mut CFile, out: *mut libc::stat) -> c_int {
    status(guarded(|| {
        // SAFETY: the caller's promise.
        let of = unsafe { of(file) }?;
        // SAFETY: likewise.
        unsafe { store_stat(&of.file.stat()?, of.device, out) }
    }))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_chmod(file: *mut CFile, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| unsafe { of(file) }?.file.set_mode(mode)))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_sync(file: *mut CFile) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| unsafe { of(file) }?.file.sync()))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_barrier(file: *mut CFile) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| unsafe { of(file) }?.file.barrier()))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_is_direct(file: *const CFile) -> c_int {
    // SAFETY: the caller's promise.
    answer(guarded(|| Ok(unsafe { of(file) }?.file.is_direct())))
}

/// # Safety
/// See above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_file_close(file: *mut CFile) {
    // SAFETY: the caller's promise.
    unsafe { close(file) };
}
