//! Memory of the program, by the addresses that its calls give.
//!
//! An address that no program can have is EFAULT, as the kernel says; another one that is wrong ends the program with SIGSEGV.
#![allow(unsafe_code)]
use crate::answer::Stop;
use std::ffi::CStr;
use std::slice;

/// Programs have no memory below and from there on.
const LOWEST: u64 = 1 << 12;
const HIGHEST: u64 = (1 << 47) - (1 << 12);

fn check(at: u64, len: u64) -> Result<(), Stop> {
    match at.checked_add(len) {
        Some(end) if (LOWEST..HIGHEST).contains(&at) && end <= HIGHEST => Ok(()),
        _ => Err(Stop::Errno(libc::EFAULT)),
    }
}

/// A path.
pub fn path<'p>(at: u64) -> Result<&'p [u8], Stop> {
    check(at, 1)?;
    // SAFETY: the program says that there is a string, which ends with a zero and which it does not change during its call.
    let path = unsafe { CStr::from_ptr(at as *const _) }.to_bytes();
    match path.len() < libc::PATH_MAX as usize {
        true => Ok(path),
        false => Err(Stop::Errno(libc::ENAMETOOLONG)),
    }
}

/// What it writes.
pub fn bytes<'p>(at: u64, len: u64) -> Result<&'p [u8], Stop> {
    if len == 0 {
        return Ok(&[]);
    }
    check(at, len)?;
    // SAFETY: as `path`.
    Ok(unsafe { slice::from_raw_parts(at as *const u8, len as usize) })
}

/// Where it reads to.
pub fn room<'p>(at: u64, len: u64) -> Result<&'p mut [u8], Stop> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(at, len)?;
    // SAFETY: as `path`; the program gives this memory to its call.
    Ok(unsafe { slice::from_raw_parts_mut(at as *mut u8, len as usize) })
}

/// A structure of it.
pub fn read<T: Copy>(at: u64) -> Result<T, Stop> {
    check(at, size_of::<T>() as u64)?;
    // SAFETY: as `path`; only structures of the kernel's are read, for which all bits are valid.
    Ok(unsafe { (at as *const T).read_unaligned() })
}

/// Writes a structure to it.
pub fn write<T: Copy>(at: u64, value: &T) -> Result<(), Stop> {
    check(at, size_of::<T>() as u64)?;
    // SAFETY: as `room`.
    unsafe { (at as *mut T).write_unaligned(*value) };
    Ok(())
}

/// A structure of the kernel's, all zeros.
pub fn zeros<T: Copy>() -> T {
    // SAFETY: as `read`.
    unsafe { std::mem::zeroed() }
}
