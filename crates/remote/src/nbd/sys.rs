//! libnbd by its C interface (libnbd(3)), opened when an NBD volume is named. What is used is there since version 1.4.
#![allow(unsafe_code)]
use crate::library::{Library, Missing, text};
use ccfs_device::{AlignedBuf, SharedBuf};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// `nbd_completion_callback`: passed by value.
#[repr(C)]
struct Completion {
    callback: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    user_data: *mut c_void,
    free: Option<unsafe extern "C" fn(*mut c_void)>,
}

type Raw = *mut c_void;

struct Functions {
    create: unsafe extern "C" fn() -> Raw,
    close: unsafe extern "C" fn(Raw),
    get_error: unsafe extern "C" fn() -> *const c_char,
    get_errno: unsafe extern "C" fn() -> c_int,
    set_uri_allow_local_file: unsafe extern "C" fn(Raw, bool) -> c_int,
    aio_connect_uri: unsafe extern "C" fn(Raw, *const c_char) -> c_int,
    aio_pread: unsafe extern "C" fn(Raw, *mut c_void, usize, u64, Completion, u32) -> i64,
    aio_pwrite: unsafe extern "C" fn(Raw, *const c_void, usize, u64, Completion, u32) -> i64,
    aio_flush: unsafe extern "C" fn(Raw, Completion, u32) -> i64,
    aio_trim: unsafe extern "C" fn(Raw, u64, u64, Completion, u32) -> i64,
    aio_disconnect: unsafe extern "C" fn(Raw, u32) -> c_int,
    aio_get_fd: unsafe extern "C" fn(Raw) -> c_int,
    aio_get_direction: unsafe extern "C" fn(Raw) -> u32,
    aio_notify_read: unsafe extern "C" fn(Raw) -> c_int,
    aio_notify_write: unsafe extern "C" fn(Raw) -> c_int,
    aio_is_ready: unsafe extern "C" fn(Raw) -> c_int,
    aio_is_processing: unsafe extern "C" fn(Raw) -> c_int,
    aio_is_dead: unsafe extern "C" fn(Raw) -> c_int,
    aio_is_closed: unsafe extern "C" fn(Raw) -> c_int,
    get_size: unsafe extern "C" fn(Raw) -> i64,
    get_block_size: unsafe extern "C" fn(Raw, c_int) -> i64,
    is_read_only: unsafe extern "C" fn(Raw) -> c_int,
    can_flush: unsafe extern "C" fn(Raw) -> c_int,
    can_trim: unsafe extern "C" fn(Raw) -> c_int,
    _library: Library,
}

static FUNCTIONS: OnceLock<Result<Functions, Missing>> = OnceLock::new();

fn functions() -> Result<&'static Functions, Missing> {
    let loaded = FUNCTIONS.get_or_init(|| {
        let library = Library::open(&["libnbd.so.0"], "the package libnbd0")?;
        // SAFETY: the types are those of libnbd.h.
        unsafe {
            Ok(Functions {
                create: library.function("nbd_create")?,
                close: library.function("nbd_close")?,
                get_error: library.function("nbd_get_error")?,
                get_errno: library.function("nbd_get_errno")?,
                set_uri_allow_local_file: library.function("nbd_set_uri_allow_local_file")?,
                aio_connect_uri: library.function("nbd_aio_connect_uri")?,
                aio_pread: library.function("nbd_aio_pread")?,
                aio_pwrite: library.function("nbd_aio_pwrite")?,
                aio_flush: library.function("nbd_aio_flush")?,
                aio_trim: library.function("nbd_aio_trim")?,
                aio_disconnect: library.function("nbd_aio_disconnect")?,
                aio_get_fd: library.function("nbd_aio_get_fd")?,
                aio_get_direction: library.function("nbd_aio_get_direction")?,
                aio_notify_read: library.function("nbd_aio_notify_read")?,
                aio_notify_write: library.function("nbd_aio_notify_write")?,
                aio_is_ready: library.function("nbd_aio_is_ready")?,
                aio_is_processing: library.function("nbd_aio_is_processing")?,
                aio_is_dead: library.function("nbd_aio_is_dead")?,
                aio_is_closed: library.function("nbd_aio_is_closed")?,
                get_size: library.function("nbd_get_size")?,
                get_block_size: library.function("nbd_get_block_size")?,
                is_read_only: library.function("nbd_is_read_only")?,
                can_flush: library.function("nbd_can_flush")?,
                can_trim: library.function("nbd_can_trim")?,
                _library: library,
            })
        }
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// What has ended: its number, the error (errno; 0: none), and of a read the bytes.
pub struct Ended {
    pub number: u64,
    pub error: i32,
    pub data: Option<AlignedBuf>,
}

/// What the library uses until the command has ended.
enum Memory {
    Read(AlignedBuf),
    Written { _data: SharedBuf },
}

/// Filled by callbacks: numbers and errors.
type Notes = Vec<(u64, i32)>;

/// A handle. Only one thread uses it.
pub struct Handle {
    raw: NonNull<c_void>,
    of: &'static Functions,
    /// Filled by callbacks, which run inside of calls of this handle. A stable place: libnbd has its address.
    ended: *mut Notes,
    memory: HashMap<u64, Memory>,
}

// SAFETY: libnbd's handles may go from thread to thread; `ended` is only touched by calls of this handle.
unsafe impl Send for Handle {}

/// What a command's callback needs.
struct Note {
    ended: *mut Notes,
    number: u64,
}

/// The command has ended; 1: forget it.
unsafe extern "C" fn ended(note: *mut c_void, error: *mut c_int) -> c_int {
    // SAFETY: `Handle::completion` made both, and libnbd gives them back unchanged before it frees the note. The handle, which
    // owns the list, is being used by the caller, and by nobody else.
    unsafe {
        let note = &*note.cast::<Note>();
        (*note.ended).push((note.number, *error));
    }
    1
}

unsafe extern "C" fn free(note: *mut c_void) {
    // SAFETY: libnbd calls this once, last of all.
    drop(unsafe { Box::from_raw(note.cast::<Note>()) });
}

/// What libnbd says of its last failure in this thread.
fn failure(of: &Functions) -> std::io::Error {
    // SAFETY: both give what the last call of this thread left; the text is copied before the next.
    let (said, number) = unsafe { (text((of.get_error)()), (of.get_errno)()) };
    let plain = std::io::Error::from_raw_os_error(number);
    match said {
        Some(said) => std::io::Error::new(plain.kind(), said),
        None => plain,
    }
}

impl Handle {
    /// A handle that is not connected.
    pub fn new() -> std::io::Result<Handle> {
        let of = functions().map_err(std::io::Error::other)?;
        // SAFETY: no arguments.
        let raw = NonNull::new(unsafe { (of.create)() }).ok_or_else(|| failure(of))?;
        let ended = Box::into_raw(Box::default());
        Ok(Handle {
            raw,
            of,
            ended,
            memory: HashMap::new(),
        })
    }

    fn done(&self, answer: c_int) -> std::io::Result<bool> {
        match answer {
            -1 => Err(failure(self.of)),
            answer => Ok(answer != 0),
        }
    }

    /// Begins to connect.
    pub fn connect(&mut self, uri: &CStr) -> std::io::Result<()> {
        // SAFETY: an open handle, and a text that ends with zero. Files that a name leads to are the user's own (TLS).
        unsafe {
            self.done((self.of.set_uri_allow_local_file)(self.raw.as_ptr(), true))?;
            self.done((self.of.aio_connect_uri)(self.raw.as_ptr(), uri.as_ptr()))?;
        }
        Ok(())
    }

    fn completion(&self, number: u64) -> Completion {
        let note = Box::new(Note {
            ended: self.ended,
            number,
        });
        Completion {
            callback: Some(ended),
            user_data: Box::into_raw(note).cast(),
            free: Some(free),
        }
    }

    fn started(&self, answer: i64) -> std::io::Result<()> {
        match answer {
            -1 => Err(failure(self.of)),
            _ => Ok(()),
        }
    }

    /// Starts a read into `to`, which comes back when `number` has ended.
    pub fn read(&mut self, mut to: AlignedBuf, at: u64, number: u64) -> std::io::Result<()> {
        let done = self.completion(number);
        let (raw, len) = (to.as_mut_ptr(), to.len());
        // SAFETY: an open handle, and memory that this handle owns until the command has ended. A call that fails frees its completion, too.
        let answer =
            unsafe { (self.of.aio_pread)(self.raw.as_ptr(), raw.cast(), len, at, done, 0) };
        self.started(answer)?;
        self.memory.insert(number, Memory::Read(to));
        Ok(())
    }

    /// Starts a write.
    pub fn write(&mut self, from: SharedBuf, at: u64, number: u64) -> std::io::Result<()> {
        let done = self.completion(number);
        let (raw, len) = (from.as_ptr(), from.len());
        // SAFETY: as in `read`; what is shared like this is not changed by anybody.
        let answer =
            unsafe { (self.of.aio_pwrite)(self.raw.as_ptr(), raw.cast(), len, at, done, 0) };
        self.started(answer)?;
        self.memory.insert(number, Memory::Written { _data: from });
        Ok(())
    }

    /// Starts a flush.
    pub fn flush(&mut self, number: u64) -> std::io::Result<()> {
        let done = self.completion(number);
        // SAFETY: an open handle.
        let answer = unsafe { (self.of.aio_flush)(self.raw.as_ptr(), done, 0) };
        self.started(answer)
    }

    /// Starts a trim.
    pub fn trim(&mut self, len: u64, at: u64, number: u64) -> std::io::Result<()> {
        let done = self.completion(number);
        // SAFETY: an open handle.
        let answer = unsafe { (self.of.aio_trim)(self.raw.as_ptr(), len, at, done, 0) };
        self.started(answer)
    }

    /// Tells the server that this is the end; it goes through what it has first.
    pub fn disconnect(&mut self) {
        // SAFETY: an open handle.
        unsafe { (self.of.aio_disconnect)(self.raw.as_ptr(), 0) };
    }

    /// What has ended since the last time.
    pub fn ended(&mut self) -> Vec<Ended> {
        // SAFETY: nobody else uses the list while no call of the handle runs.
        let notes = std::mem::take(unsafe { &mut *self.ended });
        let ended = notes.into_iter().map(|(number, error)| Ended {
            number,
            error,
            data: match self.memory.remove(&number) {
                Some(Memory::Read(data)) if error == 0 => Some(data),
                _ => None,
            },
        });
        ended.collect()
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: an open handle.
        unsafe { (self.of.aio_get_fd)(self.raw.as_ptr()) }
    }

    /// The socket.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.raw_fd();
        // SAFETY: the handle keeps it open as long as nobody uses the handle, which the borrow sees to.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// What it waits for: (reading, writing).
    pub fn wants(&self) -> (bool, bool) {
        // SAFETY: an open handle.
        let direction = unsafe { (self.of.aio_get_direction)(self.raw.as_ptr()) };
        (direction & 1 != 0, direction & 2 != 0)
    }

    /// The socket can be read from. Errors: the connection is dead.
    pub fn readable(&mut self) -> std::io::Result<()> {
        // SAFETY: an open handle.
        let answer = unsafe { (self.of.aio_notify_read)(self.raw.as_ptr()) };
        self.done(answer).map(|_| ())
    }

    /// The socket can be written to. Errors: the connection is dead.
    pub fn writable(&mut self) -> std::io::Result<()> {
        // SAFETY: an open handle.
        let answer = unsafe { (self.of.aio_notify_write)(self.raw.as_ptr()) };
        self.done(answer).map(|_| ())
    }

    /// Commands are taken.
    pub fn is_connected(&self) -> bool {
        // SAFETY: an open handle.
        unsafe {
            (self.of.aio_is_ready)(self.raw.as_ptr()) == 1
                || (self.of.aio_is_processing)(self.raw.as_ptr()) == 1
        }
    }

    /// The connection has ended.
    pub fn is_over(&self) -> bool {
        // SAFETY: an open handle.
        unsafe {
            (self.of.aio_is_dead)(self.raw.as_ptr()) == 1
                || (self.of.aio_is_closed)(self.raw.as_ptr()) == 1
        }
    }

    /// Bytes.
    pub fn size(&self) -> std::io::Result<u64> {
        // SAFETY: an open handle.
        let size = unsafe { (self.of.get_size)(self.raw.as_ptr()) };
        self.started(size)?;
        Ok(size as u64)
    }

    /// `which`: 0 the least, 2 the most. 0: the server did not say.
    pub fn block_size(&self, which: c_int) -> u64 {
        // SAFETY: an open handle.
        let size = unsafe { (self.of.get_block_size)(self.raw.as_ptr(), which) };
        size.max(0) as u64
    }

    /// It takes no writes.
    pub fn is_read_only(&self) -> bool {
        // SAFETY: an open handle.
        unsafe { (self.of.is_read_only)(self.raw.as_ptr()) == 1 }
    }

    /// It has a cache.
    pub fn can_flush(&self) -> bool {
        // SAFETY: an open handle.
        unsafe { (self.of.can_flush)(self.raw.as_ptr()) == 1 }
    }

    /// It takes trims.
    pub fn can_trim(&self) -> bool {
        // SAFETY: an open handle.
        unsafe { (self.of.can_trim)(self.raw.as_ptr()) == 1 }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: open, and used by nobody else. It frees what has not ended, and calls nothing back afterwards; only then the list goes,
        // and after it the memory.
        unsafe {
            (self.of.close)(self.raw.as_ptr());
            drop(Box::from_raw(self.ended));
        }
    }
}
