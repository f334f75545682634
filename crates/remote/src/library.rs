//! Libraries that are there or not: opened when they are needed.
#![allow(unsafe_code)]
use std::ffi::{CStr, CString, c_void};
use std::process::Command;
use std::ptr::NonNull;

/// An open library. It stays open: what it started may run until the process ends.
#[derive(Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: a handle of dlopen(3) may be used by any thread.
unsafe impl Send for Library {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for Library {}

/// A library, or a function of it, is not there. The text is meant for the user.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

impl Library {
    /// The first that opens of some names, or else any version that the loader knows of the last one. `package`: of Debian.
    pub fn open(names: &[&str], package: &str) -> Result<Library, Missing> {
        let mut all: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        all.extend(names.last().map(|name| versions(name)).unwrap_or_default());
        let open = |name: &String| {
            let name = CString::new(name.as_str()).ok()?;
            // SAFETY: the name ends with a zero byte; a library's initialisation runs code that whoever installed it as root trusts.
            NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
        };
        let found = all.iter().find_map(open).map(Library);
        found.ok_or_else(|| Missing(format!("{} is missing; install {package}", names[0])))
    }

    /// A function of it.
    ///
    /// # Safety
    ///
    /// `F` is the type of a pointer to that function, as the library's header declares it.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, Missing> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let text = CString::new(name).map_err(|e| Missing(e.to_string()))?;
        // SAFETY: the library is open and the name ends with a zero byte.
        let found = unsafe { libc::dlsym(self.0.as_ptr(), text.as_ptr()) };
        if found.is_null() {
            return Err(Missing(format!("the library has no {name}")));
        }
        // SAFETY: a pointer to a function of type `F`, as the caller promises, of the same size.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

/// What `ldconfig -p` has of a name without version.
fn versions(name: &str) -> Vec<String> {
    let places = ["/usr/sbin/ldconfig", "/sbin/ldconfig"];
    let there = places
        .iter()
        .find(|place| std::path::Path::new(place).exists());
    let said = Command::new(there.unwrap_or(&"ldconfig"))
        .arg("-p")
        .output();
    let said = said.map(|out| out.stdout).unwrap_or_default();
    let of_name = |line: &str| {
        let word = line.split_whitespace().next()?;
        word.starts_with(&format!("{name}."))
            .then(|| word.to_string())
    };
    String::from_utf8_lossy(&said)
        .lines()
        .filter_map(of_name)
        .collect()
}

/// A text that a library owns, copied.
///
/// # Safety
///
/// `text` is null, or points to bytes that end with zero.
pub unsafe fn text(text: *const libc::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null here, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}
