//! LevelDB and RocksDB: both have the same calls in C, with names that begin differently (leveldb/c.h, rocksdb/c.h).
#![allow(unsafe_code)]
use super::{Judged, Known, cannot, damaged, lost, no_database};
use ccfs_remote::{Library, text};
use libc::{c_char, c_uchar, c_void, size_t};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

/// One of the two.
pub struct Api {
    prefix: &'static str,
    libraries: &'static [&'static str],
    package: &'static str,
}

pub const LEVELDB: Api = Api {
    prefix: "leveldb",
    libraries: &["libleveldb.so.1d", "libleveldb.so.1", "libleveldb.so"],
    package: "libleveldb1d",
};

pub const ROCKSDB: Api = Api {
    prefix: "rocksdb",
    libraries: &["librocksdb.so"],
    package: "rocksdb-tools",
};

type New = unsafe extern "C" fn() -> *mut c_void;
type Set = unsafe extern "C" fn(*mut c_void, c_uchar);
type End = unsafe extern "C" fn(*mut c_void);
type Fault = *mut *mut c_char;
type Open = unsafe extern "C" fn(*const c_void, *const c_char, Fault) -> *mut c_void;
type Put =
    unsafe extern "C" fn(*mut c_void, *const c_void, *const u8, size_t, *const u8, size_t, Fault);
type Delete = unsafe extern "C" fn(*mut c_void, *const c_void, *const u8, size_t, Fault);
type Get = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const u8,
    size_t,
    *mut size_t,
    Fault,
) -> *mut c_char;
type Iterate = unsafe extern "C" fn(*mut c_void, *const c_void) -> *mut c_void;
type Valid = unsafe extern "C" fn(*const c_void) -> c_uchar;
type Why = unsafe extern "C" fn(*const c_void, Fault);

const OWN: &[u8] = b"ccfs crash check";

/// It opens, strictly; every entry can be read and has the right checksum; it takes a key and its removal; and keys that marks answered for
/// are there.
pub fn check(api: &Api, path: &Path, known: &Known) -> Judged {
    let shown = path.display().to_string();
    // A database has this file from its making on.
    let current = path.join("CURRENT");
    if !known.at(&current).exists() {
        return no_database(shown, &current, known);
    }
    let library = Library::open(api.libraries, api.package)?;
    let name =
        CString::new(known.at(path).as_os_str().as_bytes()).map_err(|e| cannot(e.to_string()))?;
    let call = |what: &str| format!("{}_{what}", api.prefix);
    // SAFETY: the types are those of the headers; each object is used by its own functions, and none after its end; lengths are those of
    // what the pointers point to, and `fault` gets a text that the library allocated or stays null.
    unsafe {
        let new = |what: &str| library.function::<New>(&call(what)).map(|make| make());
        let set = |what: &str, object, value| {
            library
                .function::<Set>(&call(what))
                .map(|set| set(object, value))
        };
        let mut fault: *mut c_char = null_mut();
        let options = new("options_create")?;
        set("options_set_paranoid_checks", options, 1)?;
        let db = library.function::<Open>(&call("open"))?(options, name.as_ptr(), &mut fault);
        failed(&shown, "cannot be opened", fault)?;
        let reading = new("readoptions_create")?;
        set("readoptions_set_verify_checksums", reading, 1)?;
        let all = library.function::<Iterate>(&call("create_iterator"))?(db, reading);
        library.function::<End>(&call("iter_seek_to_first"))?(all);
        let valid = library.function::<Valid>(&call("iter_valid"))?;
        let next = library.function::<End>(&call("iter_next"))?;
        while valid(all) != 0 {
            next(all);
        }
        library.function::<Why>(&call("iter_get_error"))?(all, &mut fault);
        failed(&shown, "cannot be read", fault)?;
        library.function::<End>(&call("iter_destroy"))?(all);
        let writing = new("writeoptions_create")?;
        let (own, len) = (OWN.as_ptr(), OWN.len());
        library.function::<Put>(&call("put"))?(db, writing, own, len, own, len, &mut fault);
        failed(&shown, "takes no key", fault)?;
        library.function::<Delete>(&call("delete"))?(db, writing, own, len, &mut fault);
        failed(&shown, "takes no removal", fault)?;
        let get = library.function::<Get>(&call("get"))?;
        for key in known.answered("key") {
            let mut len = 0;
            let value = get(db, reading, key.as_ptr(), key.len(), &mut len, &mut fault);
            failed(&shown, "cannot be read", fault)?;
            if value.is_null() {
                return lost(shown, &format!("key {key}"));
            }
        }
        library.function::<End>(&call("close"))?(db);
    }
    Ok(())
}

/// # Safety
///
/// `fault` is null, or a text that ends with a zero byte.
unsafe fn failed(shown: &str, what: &str, fault: *const c_char) -> Judged {
    // SAFETY: as the caller promises.
    match unsafe { text(fault) } {
        Some(why) => damaged(format!("{shown} {what}: {why}")),
        None => Ok(()),
    }
}
