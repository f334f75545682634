//! The functions of `include/ccfs.h`, and what is unsafe about C: pointers, descriptors, errno.
#![allow(unsafe_code)]
use super::abi::STREAM_CHOSEN;
use super::{
    GroupCall, Place, barrier, begin, get, group, guarded, is_supported, make_atomic, new, set,
    sync,
};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::raw::{c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

unsafe extern "C" {
    /// glibc and musl have it; the libc crate does not declare it.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// An environment variable that is not empty; nothing in set-user-id programs, whose caller chose it.
pub fn secure_env(name: &str) -> Option<PathBuf> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a NUL; the result, if any, is a string that lives until the environment is changed, which C
    // forbids while another thread reads it.
    let value = unsafe {
        let value = secure_getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value).to_bytes()
    };
    (!value.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(value)))
}

pub fn set_errno(number: i32) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = number };
}

/// 0, or -1 and errno.
pub fn status(result: Result<(), i32>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(number) => {
            set_errno(number);
            -1
        }
    }
}

/// The stream or handle, or 0 and errno.
fn stream(result: Result<u64, i32>) -> u64 {
    result.unwrap_or_else(|number| {
        set_errno(number);
        0
    })
}

pub fn bad(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

pub fn of_fd<'a>(fd: c_int) -> io::Result<Place<'a>> {
    if fd < 0 {
        return Err(bad(libc::EBADF));
    }
    // SAFETY: only used for the length of one call. A number that is not open gives EBADF from the kernel, no more.
    Ok(Place::Fd(unsafe { BorrowedFd::borrow_raw(fd) }))
}

/// # Safety
/// `path` is NULL or points to a string that ends with a NUL and lives during the call.
unsafe fn of_path<'a>(path: *const c_char) -> io::Result<Place<'a>> {
    if path.is_null() {
        return Err(bad(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if bytes.is_empty() {
        return Err(bad(libc::ENOENT));
    }
    Ok(Place::Path(Path::new(OsStr::from_bytes(bytes))))
}

/// # Safety
/// `flags` is NULL or can be written.
unsafe fn get_with_flags(place: io::Result<Place<'_>>, flags: *mut c_uint) -> u64 {
    let result = guarded(|| get(place?)).map(|s| {
        if !flags.is_null() {
            // SAFETY: the caller's promise.
            unsafe { *flags = s.flags | if s.chosen { STREAM_CHOSEN } else { 0 } };
        }
        s.id
    });
    stream(result)
}

// SAFETY of the names below: no other function of these names may be linked; ccfs.h is their only declaration.

#[unsafe(no_mangle)]
pub extern "C" fn setstream(id: u64, flags: c_uint) -> c_int {
    status(guarded(|| set(Place::Usual, id, flags)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_setstream_fd(fd: c_int, id: u64, flags: c_uint) -> c_int {
    status(guarded(|| set(of_fd(fd)?, id, flags)))
}

/// # Safety
/// `path` as C strings are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_setstream_path(path: *const c_char, id: u64, flags: c_uint) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| set(unsafe { of_path(path) }?, id, flags)))
}

#[unsafe(no_mangle)]
pub extern "C" fn getstream() -> u64 {
    stream(guarded(|| get(Place::Usual)).map(|s| s.id))
}

/// # Safety
/// `flags` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_getstream_fd(fd: c_int, flags: *mut c_uint) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { get_with_flags(of_fd(fd), flags) }
}

/// # Safety
/// `path` as C strings are; `flags` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_getstream_path(path: *const c_char, flags: *mut c_uint) -> u64 {
    // SAFETY: the caller's promises.
    unsafe { get_with_flags(of_path(path), flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn newstream(flags: c_uint) -> u64 {
    stream(guarded(|| new(Place::Usual, flags)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_newstream_fd(fd: c_int, flags: c_uint) -> u64 {
    stream(guarded(|| new(of_fd(fd)?, flags)))
}

/// # Safety
/// `path` as C strings are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_newstream_path(path: *const c_char, flags: c_uint) -> u64 {
    // SAFETY: the caller's promise.
    stream(guarded(|| new(unsafe { of_path(path) }?, flags)))
}

#[unsafe(no_mangle)]
pub extern "C" fn streamsync() -> c_int {
    status(guarded(|| sync(Place::Usual, 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_streamsync_fd(fd: c_int, id: u64) -> c_int {
    status(guarded(|| sync(of_fd(fd)?, id)))
}

/// # Safety
/// `path` as C strings are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_streamsync_path(path: *const c_char, id: u64) -> c_int {
    // SAFETY: the caller's promise.
    status(guarded(|| sync(unsafe { of_path(path) }?, id)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_syncfs(fd: c_int) -> c_int {
    status(guarded(|| ccfs_client::sync_volume(of_fd(fd)?.open()?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fbarrier(fd: c_int) -> c_int {
    status(guarded(|| barrier(of_fd(fd)?, false)))
}

#[unsafe(no_mangle)]
pub extern "C" fn fdatabarrier(fd: c_int) -> c_int {
    status(guarded(|| barrier(of_fd(fd)?, true)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cfs_begin() -> c_int {
    status(guarded(|| begin(Place::Usual, 0).map(drop)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_begin_fd(fd: c_int, timeout_ms: u64) -> u64 {
    stream(guarded(|| begin(of_fd(fd)?, timeout_ms)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cfs_commit() -> c_int {
    let call = GroupCall::Commit { flags: 0 };
    status(guarded(|| group(Place::Usual, 0, call)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_commit_fd(fd: c_int, handle: u64, flags: c_uint) -> c_int {
    let call = GroupCall::Commit { flags };
    status(guarded(|| group(of_fd(fd)?, handle, call)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cfs_abort() -> c_int {
    status(guarded(|| group(Place::Usual, 0, GroupCall::Abort)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_abort_fd(fd: c_int, handle: u64) -> c_int {
    status(guarded(|| group(of_fd(fd)?, handle, GroupCall::Abort)))
}

/// Lives until the thread's next commit or abort.
#[unsafe(no_mangle)]
pub extern "C" fn ccfs_taken_back() -> *const c_char {
    let text = super::WHY.try_with(|noted| {
        let noted = noted.borrow();
        noted
            .as_ref()
            .map_or(std::ptr::null(), |text| text.as_ptr())
    });
    text.unwrap_or(std::ptr::null())
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_enter_fd(fd: c_int, handle: u64) -> c_int {
    status(guarded(|| group(of_fd(fd)?, handle, GroupCall::Enter)))
}

/// # Safety
/// `path` as C strings are.
unsafe fn open_atomic(path: *const c_char, flags: c_int, mode: c_uint) -> io::Result<OwnedFd> {
    if path.is_null() {
        return Err(bad(libc::EFAULT));
    }
    // SAFETY: the caller's promise.
    let name = Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(path) }.to_bytes(),
    ));
    // Truncation is content: it comes when the file is O_ATOMIC.
    let (fd, made) = ccfs_client::open_or_make(flags & !libc::O_TRUNC, |flags| {
        // SAFETY: the caller's promise.
        let fd = unsafe { libc::open(path, flags, mode) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    })?;
    make_atomic(Place::Fd(fd.as_fd())).inspect_err(|_| {
        if made {
            ccfs_client::take_back(name, &fd);
        }
    })?;
    if flags & libc::O_TRUNC == 0 {
        return Ok(fd);
    }
    let file = std::fs::File::from(fd);
    file.set_len(0)?;
    Ok(file.into())
}

/// # Safety
/// `path` as C strings are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_open_atomic(
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the caller's promise.
    match guarded(|| unsafe { open_atomic(path, flags, mode) }) {
        Ok(fd) => fd.into_raw_fd(),
        Err(number) => status(Err(number)),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_make_atomic(fd: c_int) -> c_int {
    status(guarded(|| make_atomic(of_fd(fd)?)))
}

/// # Safety
/// `fds` points to `count` descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_syncv(fds: *const c_int, count: c_int) -> c_int {
    status(guarded(|| {
        let count = usize::try_from(count).map_err(|_| bad(libc::EINVAL))?;
        if count == 0 {
            return ccfs_client::syncv(&[] as &[BorrowedFd<'_>]);
        }
        if fds.is_null() {
            return Err(bad(libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        let fds = unsafe { std::slice::from_raw_parts(fds, count) };
        let open = |fd: &c_int| match *fd {
            0.. => Ok(()),
            _ => Err(bad(libc::EBADF)),
        };
        fds.iter().try_for_each(open)?;
        // SAFETY: only used for the length of one call. A number that is not open gives EBADF from the kernel, no more.
        let fds = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
        ccfs_client::syncv(&fds.collect::<Vec<_>>())
    }))
}

/// 1, 0, or -1 and errno.
pub fn answer(result: Result<bool, i32>) -> c_int {
    result.map_or_else(|number| status(Err(number)), c_int::from)
}

/// # Safety
/// `path` as C strings are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ccfs_is_supported(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    answer(guarded(|| is_supported(unsafe { of_path(path) }?)))
}

#[unsafe(no_mangle)]
pub extern "C" fn ccfs_is_supported_fd(fd: c_int) -> c_int {
    answer(guarded(|| is_supported(of_fd(fd)?)))
}
