//! What a call that fails gives its caller.

/// A positive error number of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<ccfs_engine::Error> for Errno {
    fn from(error: ccfs_engine::Error) -> Self {
        Errno(error.errno())
    }
}

/// A number that nobody can guess, for what a program names by it; not 0. Error: EIO, there are no random numbers.
pub fn random() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes).max(1)),
        _ => Err(Errno(libc::EIO)),
    }
}
