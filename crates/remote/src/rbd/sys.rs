//! librbd and librados by their C interfaces (rbd/librbd.h, rados/librados.h), opened when an RBD image is named.
#![allow(unsafe_code)]
use crate::library::{Library, Missing, text};
use crate::session::{Answer, Done, Refusal, Request};
use ccfs_device::{AlignedBuf, SharedBuf};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;

type Raw = *mut c_void;
type Callback = unsafe extern "C" fn(Raw, *mut c_void);

/// `RBD_LOCK_MODE_EXCLUSIVE`
const EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`
const FEATURE_LOCK: u64 = 1 << 2;

struct Functions {
    rados_create: unsafe extern "C" fn(*mut Raw, *const c_char) -> c_int,
    rados_conf_read_file: unsafe extern "C" fn(Raw, *const c_char) -> c_int,
    rados_conf_parse_env: unsafe extern "C" fn(Raw, *const c_char) -> c_int,
    rados_conf_set: unsafe extern "C" fn(Raw, *const c_char, *const c_char) -> c_int,
    rados_connect: unsafe extern "C" fn(Raw) -> c_int,
    rados_shutdown: unsafe extern "C" fn(Raw),
    rados_ioctx_create: unsafe extern "C" fn(Raw, *const c_char, *mut Raw) -> c_int,
    rados_ioctx_destroy: unsafe extern "C" fn(Raw),
    open: unsafe extern "C" fn(Raw, *const c_char, *mut Raw, *const c_char) -> c_int,
    open_read_only: unsafe extern "C" fn(Raw, *const c_char, *mut Raw, *const c_char) -> c_int,
    close: unsafe extern "C" fn(Raw) -> c_int,
    get_size: unsafe extern "C" fn(Raw, *mut u64) -> c_int,
    get_features: unsafe extern "C" fn(Raw, *mut u64) -> c_int,
    aio_create_completion: unsafe extern "C" fn(*mut c_void, Callback, *mut Raw) -> c_int,
    aio_release: unsafe extern "C" fn(Raw),
    aio_get_return_value: unsafe extern "C" fn(Raw) -> isize,
    aio_read: unsafe extern "C" fn(Raw, u64, usize, *mut c_char, Raw) -> c_int,
    aio_write: unsafe extern "C" fn(Raw, u64, usize, *const c_char, Raw) -> c_int,
    aio_flush: unsafe extern "C" fn(Raw, Raw) -> c_int,
    aio_discard: unsafe extern "C" fn(Raw, u64, u64, Raw) -> c_int,
    lock_acquire: unsafe extern "C" fn(Raw, c_int) -> c_int,
    lock_release: unsafe extern "C" fn(Raw) -> c_int,
    lock_get_owners: unsafe extern "C" fn(Raw, *mut c_int, *mut *mut c_char, *mut usize) -> c_int,
    lock_get_owners_cleanup: unsafe extern "C" fn(*mut *mut c_char, usize),
    lock_break: unsafe extern "C" fn(Raw, c_int, *const c_char) -> c_int,
    is_lock_owner: unsafe extern "C" fn(Raw, *mut c_int) -> c_int,
    metadata_get: unsafe extern "C" fn(Raw, *const c_char, *mut c_char, *mut usize) -> c_int,
    metadata_set: unsafe extern "C" fn(Raw, *const c_char, *const c_char) -> c_int,
    _libraries: [Library; 2],
}

static FUNCTIONS: OnceLock<Result<Functions, Missing>> = OnceLock::new();

fn functions() -> Result<&'static Functions, Missing> {
    let loaded = FUNCTIONS.get_or_init(|| {
        let rados = Library::open(&["librados.so.2"], "the package librbd1")?;
        let rbd = Library::open(&["librbd.so.1"], "the package librbd1")?;
        // SAFETY: the types are those of librados.h and librbd.h.
        unsafe {
            Ok(Functions {
                rados_create: rados.function("rados_create")?,
                rados_conf_read_file: rados.function("rados_conf_read_file")?,
                rados_conf_parse_env: rados.function("rados_conf_parse_env")?,
                rados_conf_set: rados.function("rados_conf_set")?,
                rados_connect: rados.function("rados_connect")?,
                rados_shutdown: rados.function("rados_shutdown")?,
                rados_ioctx_create: rados.function("rados_ioctx_create")?,
                rados_ioctx_destroy: rados.function("rados_ioctx_destroy")?,
                open: rbd.function("rbd_open")?,
                open_read_only: rbd.function("rbd_open_read_only")?,
                close: rbd.function("rbd_close")?,
                get_size: rbd.function("rbd_get_size")?,
                get_features: rbd.function("rbd_get_features")?,
                aio_create_completion: rbd.function("rbd_aio_create_completion")?,
                aio_release: rbd.function("rbd_aio_release")?,
                aio_get_return_value: rbd.function("rbd_aio_get_return_value")?,
                aio_read: rbd.function("rbd_aio_read")?,
                aio_write: rbd.function("rbd_aio_write")?,
                aio_flush: rbd.function("rbd_aio_flush")?,
                aio_discard: rbd.function("rbd_aio_discard")?,
                lock_acquire: rbd.function("rbd_lock_acquire")?,
                lock_release: rbd.function("rbd_lock_release")?,
                lock_get_owners: rbd.function("rbd_lock_get_owners")?,
                lock_get_owners_cleanup: rbd.function("rbd_lock_get_owners_cleanup")?,
                lock_break: rbd.function("rbd_lock_break")?,
                is_lock_owner: rbd.function("rbd_is_exclusive_lock_owner")?,
                metadata_get: rbd.function("rbd_metadata_get")?,
                metadata_set: rbd.function("rbd_metadata_set")?,
                _libraries: [rados, rbd],
            })
        }
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// A negative answer is an error's number.
fn check(answer: c_int) -> io::Result<()> {
    match answer {
        answer if answer < 0 => Err(io::Error::from_raw_os_error(-answer)),
        _ => Ok(()),
    }
}

fn with(what: &str, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// An open image, with its connection to the cluster. The library's functions may be called by any thread at once.
pub struct Image {
    of: &'static Functions,
    cluster: Raw,
    pool: Raw,
    image: Raw,
}

// SAFETY: librbd's and librados's handles are for any thread (librbd.h, librados.h).
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// What is opened, and how.
pub struct Wanted<'a> {
    pub pool: &'a CStr,
    pub image: &'a CStr,
    pub snap: Option<&'a CStr>,
    /// `client.ID`
    pub id: Option<&'a CStr>,
    pub conf: Option<&'a CStr>,
    pub options: &'a [(&'a CStr, CString)],
}

impl Image {
    /// Connects and opens.
    pub fn open(wanted: &Wanted<'_>) -> io::Result<Image> {
        let of = functions().map_err(io::Error::other)?;
        let or_null = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
        let mut this = Image {
            of,
            cluster: ptr::null_mut(),
            pool: ptr::null_mut(),
            image: ptr::null_mut(),
        };
        // SAFETY: places for handles, and texts that end with zero; each handle is used only where the call before it succeeded.
        unsafe {
            check((of.rados_create)(&mut this.cluster, or_null(wanted.id)))?;
            check((of.rados_conf_read_file)(
                this.cluster,
                or_null(wanted.conf),
            ))
            .map_err(|e| with("cannot read ceph.conf", e))?;
            check((of.rados_conf_parse_env)(this.cluster, ptr::null()))?;
            for (name, value) in wanted.options {
                check((of.rados_conf_set)(
                    this.cluster,
                    name.as_ptr(),
                    value.as_ptr(),
                ))?;
            }
            check((of.rados_connect)(this.cluster))
                .map_err(|e| with("cannot connect to the Ceph cluster", e))?;
            check((of.rados_ioctx_create)(
                this.cluster,
                wanted.pool.as_ptr(),
                &mut this.pool,
            ))
            .map_err(|e| with("cannot use the pool", e))?;
            let open = match wanted.snap {
                Some(_) => of.open_read_only,
                None => of.open,
            };
            check(open(
                this.pool,
                wanted.image.as_ptr(),
                &mut this.image,
                or_null(wanted.snap),
            ))
            .map_err(|e| with("cannot open the image", e))?;
        }
        Ok(this)
    }

    /// Bytes.
    pub fn size(&self) -> io::Result<u64> {
        let mut size = 0;
        // SAFETY: an open image.
        check(unsafe { (self.of.get_size)(self.image, &mut size) })?;
        Ok(size)
    }

    /// It can have one writer.
    pub fn has_lock(&self) -> io::Result<bool> {
        let mut features = 0;
        // SAFETY: an open image.
        check(unsafe { (self.of.get_features)(self.image, &mut features) })?;
        Ok(features & FEATURE_LOCK != 0)
    }

    /// Starts a request; `done` is called by a thread of the library, or at once.
    pub fn start(&self, request: Request, done: Done) {
        let mut note = Box::new(Note {
            of: self.of,
            memory: Memory::None,
            done,
        });
        match &request {
            Request::Read { len, .. } => note.memory = Memory::Read(AlignedBuf::zeroed(*len)),
            Request::Write { data, .. } => note.memory = Memory::Written(data.clone()),
            _ => {}
        }
        let (to, from) = match &mut note.memory {
            Memory::Read(data) => (data.as_mut_ptr(), ptr::null()),
            Memory::Written(data) => (ptr::null_mut(), data.as_ptr()),
            Memory::None => (ptr::null_mut(), ptr::null()),
        };
        let mut completion = ptr::null_mut();
        let note = Box::into_raw(note);
        // SAFETY: an open image. The note, and with it the memory, lives until `ended` gets it back, or until a call has failed, which
        // then does not call back.
        let started = unsafe {
            check((self.of.aio_create_completion)(
                note.cast(),
                ended,
                &mut completion,
            ))
            .and_then(|()| {
                let answer = match request {
                    Request::Read { offset, len } => {
                        (self.of.aio_read)(self.image, offset, len, to.cast(), completion)
                    }
                    Request::Write { offset, data } => {
                        (self.of.aio_write)(self.image, offset, data.len(), from.cast(), completion)
                    }
                    Request::Flush => (self.of.aio_flush)(self.image, completion),
                    Request::Discard { offset, len } => {
                        (self.of.aio_discard)(self.image, offset, len, completion)
                    }
                };
                check(answer).inspect_err(|_| (self.of.aio_release)(completion))
            })
        };
        if let Err(e) = started {
            // SAFETY: nobody else has it.
            let note = unsafe { Box::from_raw(note) };
            (note.done)(Err(Refusal::Store(e)));
        }
    }

    /// Takes the exclusive lock for good: others ask for it in vain.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: an open image.
        check(unsafe { (self.of.lock_acquire)(self.image, EXCLUSIVE) })
    }

    /// Gives it back.
    pub fn unlock(&self) -> io::Result<()> {
        // SAFETY: an open image.
        check(unsafe { (self.of.lock_release)(self.image) })
    }

    /// Who has the lock, as the library calls them.
    pub fn owners(&self) -> io::Result<Vec<CString>> {
        const MOST: usize = 8;
        let mut names = [ptr::null_mut(); MOST];
        let (mut number, mut mode) = (MOST, 0);
        // SAFETY: an open image, and room for as many names as are told.
        let answer = unsafe {
            (self.of.lock_get_owners)(self.image, &mut mode, names.as_mut_ptr(), &mut number)
        };
        match check(answer) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Vec::new()),
            checked => checked?,
        }
        let number = number.min(MOST);
        // SAFETY: so many names were given, which this has to free.
        unsafe {
            let copied = names[..number]
                .iter()
                .map(|name| CStr::from_ptr(*name).into());
            let copied = copied.collect();
            (self.of.lock_get_owners_cleanup)(names.as_mut_ptr(), number);
            Ok(copied)
        }
    }

    /// Takes the lock from its owner, whom the cluster then refuses everything (a blocklist entry).
    pub fn break_lock(&self, owner: &CStr) -> io::Result<()> {
        // SAFETY: an open image and a text that ends with zero.
        check(unsafe { (self.of.lock_break)(self.image, EXCLUSIVE, owner.as_ptr()) })
    }

    /// Whether this connection has the lock.
    pub fn has_it(&self) -> io::Result<bool> {
        let mut has = 0;
        // SAFETY: an open image.
        check(unsafe { (self.of.is_lock_owner)(self.image, &mut has) })?;
        Ok(has != 0)
    }

    /// A text that is kept with the image.
    pub fn note(&self, key: &CStr) -> io::Result<String> {
        let mut room = [0 as c_char; 1024];
        let mut len = room.len();
        // SAFETY: an open image, and so much room; the text in it ends with zero.
        unsafe {
            check((self.of.metadata_get)(
                self.image,
                key.as_ptr(),
                room.as_mut_ptr(),
                &mut len,
            ))?;
            room[room.len() - 1] = 0;
            Ok(text(room.as_ptr()).unwrap_or_default())
        }
    }

    /// Keeps it.
    pub fn set_note(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        // SAFETY: an open image, and texts that end with zero.
        check(unsafe { (self.of.metadata_set)(self.image, key.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: what is not null is open, and nobody uses it any more. Closing an image waits for its requests.
        unsafe {
            if !self.image.is_null() {
                (self.of.close)(self.image);
            }
            if !self.pool.is_null() {
                (self.of.rados_ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (self.of.rados_shutdown)(self.cluster);
            }
        }
    }
}

enum Memory {
    Read(AlignedBuf),
    Written(SharedBuf),
    None,
}

struct Note {
    of: &'static Functions,
    memory: Memory,
    done: Done,
}

unsafe extern "C" fn ended(completion: Raw, note: *mut c_void) {
    // SAFETY: the note of `Image::start`, which the library gives back once.
    let note = unsafe { Box::from_raw(note.cast::<Note>()) };
    // SAFETY: the completion has ended, and is not used afterwards.
    let answer = unsafe {
        let answer = (note.of.aio_get_return_value)(completion);
        (note.of.aio_release)(completion);
        answer
    };
    let answer: Answer = match (answer, note.memory) {
        (answer, _) if answer < 0 => {
            let e = io::Error::from_raw_os_error(-answer as i32);
            Err(Refusal::Store(e))
        }
        (_, Memory::Read(data)) => Ok(Some(data)),
        _ => Ok(None),
    };
    (note.done)(answer);
}
