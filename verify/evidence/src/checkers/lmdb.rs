//! An LMDB environment, by liblmdb (lmdb.h).
#![allow(unsafe_code)]
use super::{Judged, Known, cannot, damaged, lost, no_database};
use ccfs_remote::{Library, Missing, text};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

#[repr(C)]
struct Val {
    size: size_t,
    data: *const u8,
}

type CreateEnv = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetMax = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;
type OpenEnv = unsafe extern "C" fn(*mut c_void, *const c_char, c_uint, libc::mode_t) -> c_int;
type Begin = unsafe extern "C" fn(*mut c_void, *mut c_void, c_uint, *mut *mut c_void) -> c_int;
type OpenDb = unsafe extern "C" fn(*mut c_void, *const c_char, c_uint, *mut c_uint) -> c_int;
type OpenCursor = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> c_int;
type Next = unsafe extern "C" fn(*mut c_void, *mut Val, *mut Val, c_int) -> c_int;
type Put = unsafe extern "C" fn(*mut c_void, c_uint, *const Val, *const Val, c_uint) -> c_int;
type Get = unsafe extern "C" fn(*mut c_void, c_uint, *const Val, *mut Val) -> c_int;
type End = unsafe extern "C" fn(*mut c_void);
type Why = unsafe extern "C" fn(c_int) -> *const c_char;

/// `MDB_NOSUBDIR`, `MDB_NEXT`, `MDB_NOTFOUND`.
const NOSUBDIR: c_uint = 0x4000;
const NEXT: c_int = 8;
const NOT_FOUND: c_int = -30798;
/// `MDB_INCOMPATIBLE`: the database is of another kind, or the key names none.
const INCOMPATIBLE: c_int = -30784;
/// That, `MDB_BAD_VALSIZE` (its keys are numbers) and `MDB_MAP_FULL`: a sound database may refuse the checker's key.
const REFUSED: [c_int; 3] = [INCOMPATIBLE, -30781, -30792];
const DATABASES_MAX: c_uint = 256;

/// It opens; every entry of every database can be read; it takes a key; and keys that marks answered for are there.
///
/// liblmdb trusts its file: what is damaged may end this process by a signal, which is a failed check as any other.
pub fn check(path: &Path, known: &Known) -> Judged {
    let shown = path.display().to_string();
    let at = known.at(path);
    let data = match at.is_dir() {
        true => path.join("data.mdb"),
        false => path.to_path_buf(),
    };
    if !known.at(&data).exists() {
        return no_database(shown, &data, known);
    }
    let library = Library::open(&["liblmdb.so.0", "liblmdb.so"], "liblmdb0")?;
    let name = CString::new(at.as_os_str().as_bytes()).map_err(|e| cannot(e.to_string()))?;
    let flags = if at.is_dir() { 0 } else { NOSUBDIR };
    // SAFETY: the types are those of lmdb.h; each object is used while it is open, and values point to what outlives the calls.
    unsafe {
        let why: Why = library.function("mdb_strerror")?;
        let must = |code: c_int, what: &str| match code {
            0 => Ok(()),
            code => damaged(format!(
                "{shown} {what}: {}",
                text(why(code)).unwrap_or_default()
            )),
        };
        let begin: Begin = library.function("mdb_txn_begin")?;
        let open_db: OpenDb = library.function("mdb_dbi_open")?;
        let abort: End = library.function("mdb_txn_abort")?;
        let mut env = null_mut();
        must(
            library.function::<CreateEnv>("mdb_env_create")?(&mut env),
            "cannot be opened",
        )?;
        library.function::<SetMax>("mdb_env_set_maxdbs")?(env, DATABASES_MAX);
        let opened = library.function::<OpenEnv>("mdb_env_open")?(env, name.as_ptr(), flags, 0o600);
        must(opened, "cannot be opened")?;
        // For writing: it takes one, and named databases can be opened.
        let mut txn = null_mut();
        must(begin(env, null_mut(), 0, &mut txn), "takes no transaction")?;
        let mut root = 0;
        must(open_db(txn, null(), 0, &mut root), "cannot be read")?;
        let names = keys(&library, txn, root)
            .or_else(|code| must(code, "cannot be read").map(|()| Vec::new()))?;
        let mut databases = vec![root];
        for name in names {
            let Ok(name) = CString::new(name) else {
                continue;
            };
            let mut database = 0;
            match open_db(txn, name.as_ptr(), 0, &mut database) {
                0 => databases.push(database),
                // Keys of the main database that name none.
                INCOMPATIBLE | NOT_FOUND => continue,
                code => must(code, "cannot be read")?,
            }
            if let Err(code) = keys(&library, txn, database) {
                must(code, "cannot be read")?;
            }
        }
        let get: Get = library.function("mdb_get")?;
        for key in known.answered("key") {
            let wanted = val(key.as_bytes());
            let mut value = val(&[]);
            let mut has = |database: &c_uint| get(txn, *database, &wanted, &mut value) == 0;
            if !databases.iter().any(&mut has) {
                return lost(shown, &format!("key {key}"));
            }
        }
        let own = val(b"ccfs crash check");
        let put = library.function::<Put>("mdb_put")?(txn, root, &own, &own, 0);
        if !REFUSED.contains(&put) {
            must(put, "takes no key")?;
        }
        abort(txn);
    }
    Ok(())
}

fn val(bytes: &[u8]) -> Val {
    Val {
        size: bytes.len(),
        data: bytes.as_ptr(),
    }
}

/// Reads a whole database, values too, and gives its keys: those that may name databases, so short ones.
///
/// # Safety
///
/// The transaction is open, and the database is one that it opened.
unsafe fn keys(
    library: &Library,
    txn: *mut c_void,
    database: c_uint,
) -> Result<Vec<Vec<u8>>, c_int> {
    // SAFETY: as the caller promises; keys and values point into the map and are read before the next change.
    unsafe {
        let missing = |_: Missing| NOT_FOUND - 1;
        let open: OpenCursor = library.function("mdb_cursor_open").map_err(missing)?;
        let next: Next = library.function("mdb_cursor_get").map_err(missing)?;
        let close: End = library.function("mdb_cursor_close").map_err(missing)?;
        let mut cursor = null_mut();
        match open(txn, database, &mut cursor) {
            0 => {}
            code => return Err(code),
        }
        let (mut found, mut sum) = (Vec::new(), 0u8);
        let ended = loop {
            let (mut key, mut value) = (val(&[]), val(&[]));
            match next(cursor, &mut key, &mut value, NEXT) {
                0 => {
                    let key = std::slice::from_raw_parts(key.data, key.size);
                    let value = std::slice::from_raw_parts(value.data, value.size);
                    sum = value.iter().fold(sum, |sum, byte| sum ^ byte);
                    if found.len() < DATABASES_MAX as usize {
                        found.push(key.to_vec());
                    }
                }
                code => break code,
            }
        };
        std::hint::black_box(sum);
        close(cursor);
        match ended {
            NOT_FOUND => Ok(found),
            code => Err(code),
        }
    }
}
