//! Programs and libraries that make system calls of their own, past the C library: what is a descriptor only here they would not know.
#![allow(unsafe_code)]
use ccfs_intercept::own_calls;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How many objects had been loaded when it was looked last. A child has the same.
static LOADED: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicBool = AtomicBool::new(false);

/// One of what is loaded makes calls of its own. Only what was loaded since the last time is looked through.
pub fn make_own_calls() -> bool {
    if FOUND.load(Relaxed) {
        return true;
    }
    let mut search = Search {
        loaded: 0,
        found: false,
    };
    // SAFETY: the callback takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut search).cast()) };
    LOADED.store(search.loaded, Relaxed);
    FOUND.fetch_or(search.found, Relaxed);
    search.found
}

struct Search {
    loaded: u64,
    found: bool,
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: as dl_iterate_phdr(3) promises; `data` is the search above.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    if search.loaded == 0 {
        search.loaded = info.dlpi_adds;
        if info.dlpi_adds == LOADED.load(Relaxed) {
            return 1;
        }
    }
    // SAFETY: a string of the loader's.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    // SAFETY: its program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let code = headers.iter().filter(|h| {
        h.p_type == libc::PT_LOAD
            && h.p_flags & (libc::PF_X | libc::PF_R) == libc::PF_X | libc::PF_R
    });
    for segment in code {
        let start = info.dlpi_addr + segment.p_vaddr;
        let own = each as *const () as u64;
        if own_calls::is_known(name) || (start..start + segment.p_memsz).contains(&own) {
            continue;
        }
        // SAFETY: code that is loaded and can be read.
        let code =
            unsafe { std::slice::from_raw_parts(start as *const u8, segment.p_filesz as usize) };
        if own_calls::makes(code) {
            search.found = true;
            return 1;
        }
    }
    0
}
