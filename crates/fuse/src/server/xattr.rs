//! Extended attributes. Permission to each name space was checked by the kernel.
use super::{Answer, Server};
use crate::abi::{self, init};
use crate::wire::{Errno, Reply, Request};

/// Largest value, bytes (XATTR_SIZE_MAX).
const VALUE_MAX: u32 = 65536;

impl Server {
    pub(super) fn setxattr(&self, request: &Request<'_>) -> Answer {
        let (arg, rest) = if self.agreed.has(init::SETXATTR_EXT) {
            request.arg_and_rest::<abi::SetxattrIn>()?
        } else {
            let (short, rest) = request.arg_and_rest::<abi::SetxattrInShort>()?;
            (
                abi::SetxattrIn {
                    size: short.size,
                    flags: short.flags,
                    ..Default::default()
                },
                rest,
            )
        };
        let end = rest
            .iter()
            .position(|&b| b == 0)
            .ok_or(Errno(libc::EINVAL))?;
        let name = xattr_name(&rest[..=end])?;
        let value = &rest[end + 1..];
        if value.len() != arg.size as usize {
            return Err(Errno(libc::EINVAL));
        }
        if arg.size > VALUE_MAX {
            return Err(Errno(libc::E2BIG));
        }
        let create = arg.flags & libc::XATTR_CREATE as u32 != 0;
        let replace = arg.flags & libc::XATTR_REPLACE as u32 != 0;
        let kill_sgid = arg.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
        let cx = self.context(request, 0);
        Ok(self.volume_for(request).setxattr(
            &cx,
            self.target(request)?,
            name,
            value,
            create,
            replace,
            kill_sgid,
        )?)
    }

    pub(super) fn getxattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, rest) = request.arg_and_rest::<abi::GetxattrIn>()?;
        let value = self
            .volume_for(request)
            .getxattr(self.target(request)?, xattr_name(rest)?)?;
        sized_answer(arg.size, value, reply)
    }

    pub(super) fn listxattr(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::GetxattrIn = request.arg()?;
        let mut list = Vec::new();
        let privileged = self.context(request, 0).privileged;
        for name in self.volume_for(request).listxattr(self.target(request)?)? {
            // As ext4: the names of trusted attributes are not for everybody. The kernel checks only their values.
            if !privileged && name.starts_with(b"trusted.") {
                continue;
            }
            list.extend_from_slice(&name);
            list.push(0);
        }
        sized_answer(arg.size, list, reply)
    }

    pub(super) fn removexattr(&self, request: &Request<'_>) -> Answer {
        let name = xattr_name(request.bare())?;
        Ok(self.volume_for(request).removexattr(
            &self.context(request, 0),
            self.target(request)?,
            name,
        )?)
    }
}

/// A NUL-terminated attribute name.
fn xattr_name(bytes: &[u8]) -> Result<&[u8], Errno> {
    match bytes.split_last() {
        Some((0, name)) if !name.is_empty() && !name.contains(&0) => {
            if name.len() > 255 {
                Err(Errno(libc::ERANGE))
            } else {
                Ok(name)
            }
        }
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Size 0 asks how much there is.
fn sized_answer(room: u32, value: Vec<u8>, reply: &mut Reply) -> Answer {
    if room == 0 {
        reply.push(&abi::GetxattrOut {
            size: value.len() as u32,
            padding: 0,
        });
    } else if value.len() > room as usize {
        return Err(Errno(libc::ERANGE));
    } else {
        reply.body = value;
    }
    Ok(())
}
