//! The volume gets larger while it is mounted.
use super::ioctl::{set_result, versioned};
use super::{Answer, Server};
use crate::wire::{Errno, Reply, Request};
use ccfs_client::abi::{RESIZE_TEXT, ResizeArg};
use ccfs_engine::Error;

impl Server {
    pub(super) fn resize(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        self.manages(request)?;
        let mut arg = versioned::<ResizeArg>(input)?;
        if arg.length != 0 {
            return Err(Errno(libc::EINVAL));
        }
        arg.before = self.volume.size_bytes();
        let grown = match arg.bytes {
            0 => self.volume.device_bytes(),
            bytes => Ok(bytes),
        };
        match grown.and_then(|bytes| self.volume.grow(bytes)) {
            Ok(bytes) => arg.bytes = bytes,
            Err(Error::Refused(why)) => {
                let mut length = why.len().min(RESIZE_TEXT);
                while !why.is_char_boundary(length) {
                    length -= 1;
                }
                arg.text[..length].copy_from_slice(&why.as_bytes()[..length]);
                arg.length = length as u32;
                set_result(reply, Errno(libc::EINVAL));
            }
            Err(error) => return Err(error.into()),
        }
        reply.push(&arg);
        Ok(())
    }
}
