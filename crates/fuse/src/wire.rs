//! A request as a transport hands it to the server, and the reply that it gets back.
use crate::abi;
use crate::transport::uring::memory::Memory;
pub use ccfs_caller::Errno;
use ccfs_engine::{Attempt, Ino, Wait};
use std::ops::Range;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where a request's arguments lie.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// As /dev/fuse gives them: everything after the header, back to back.
    Whole(&'a [u8]),
    /// As io_uring gives them: the first argument structure in a fixed area, the rest apart.
    Split {
        /// The first argument structure.
        first: &'a [u8],
        /// What follows it.
        rest: &'a [u8],
    },
}

/// A request. Its bytes come from outside: every accessor checks.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header, as it came.
    pub header: abi::InHeader,
    /// The arguments.
    pub body: Body<'a>,
    /// Whether the thread that serves it may wait.
    pub wait: Wait,
}

impl<'a> Request<'a> {
    /// Of a thread that may wait.
    pub fn new(header: abi::InHeader, body: Body<'a>) -> Request<'a> {
        Request {
            header,
            body,
            wait: Wait::Allowed,
        }
    }

    /// The same, of a thread that must not wait.
    pub fn non_blocking(&self) -> Request<'a> {
        Request {
            wait: Wait::Never,
            ..*self
        }
    }

    /// Takes apart what one read of /dev/fuse returned. `None`: not even a header, or its length is a lie.
    pub fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (header, rest) = abi::InHeader::read_from_prefix(bytes).ok()?;
        if header.len as usize != bytes.len() {
            return None;
        }
        // Extensions (of features that we never ask for) stand at the end.
        let extensions = header.total_extlen as usize * 8;
        let body = rest.get(..rest.len().checked_sub(extensions)?)?;
        Some(Request::new(header, Body::Whole(body)))
    }

    /// The argument structure and what follows it.
    pub fn arg_and_rest<T: FromBytes + Immutable + KnownLayout>(
        &self,
    ) -> Result<(T, &'a [u8]), Errno> {
        let (arg, rest) = match self.body {
            Body::Whole(all) => T::read_from_prefix(all).map_err(|_| Errno(libc::EINVAL))?,
            Body::Split { first, rest } => (
                T::read_from_prefix(first)
                    .map_err(|_| Errno(libc::EINVAL))?
                    .0,
                rest,
            ),
        };
        Ok((arg, rest))
    }

    /// The argument structure of a request that consists of nothing else.
    pub fn arg<T: FromBytes + Immutable + KnownLayout>(&self) -> Result<T, Errno> {
        let (arg, rest) = self.arg_and_rest()?;
        if rest.is_empty() {
            Ok(arg)
        } else {
            Err(Errno(libc::EINVAL))
        }
    }

    /// The arguments of a request without an argument structure (names).
    pub fn bare(&self) -> &'a [u8] {
        match self.body {
            Body::Whole(all) => all,
            Body::Split { rest, .. } => rest,
        }
    }
}

/// One name that fills `bytes` up to the NUL at its end.
pub fn one_name(bytes: &[u8]) -> Result<&[u8], Errno> {
    match bytes.split_last() {
        Some((0, name)) => checked_name(name),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Two NUL-terminated strings that fill `bytes`; the second is not checked.
pub fn name_and_string(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes
        .iter()
        .position(|&b| b == 0)
        .ok_or(Errno(libc::EINVAL))?;
    let name = checked_name(&bytes[..end])?;
    match bytes[end + 1..].split_last() {
        Some((0, second)) if !second.contains(&0) => Ok((name, second)),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Entries of listings start at multiples of 8.
pub fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

/// Puts an entry behind what is in a listing. `next`: where the list goes on after it; `kind`: a DT_* value.
pub fn push_dirent(body: &mut Vec<u8>, ino: u64, next: u64, kind: u32, name: &[u8]) {
    let head = abi::Dirent {
        ino,
        off: next,
        namelen: name.len() as u32,
        kind,
    };
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(name);
    body.resize(padded(body.len()), 0);
}

/// What ext4 takes as a name of a directory entry.
pub fn checked_name(name: &[u8]) -> Result<&[u8], Errno> {
    if name.is_empty() || name.contains(&0) || name.contains(&b'/') {
        return Err(Errno(libc::EINVAL));
    }
    if name.len() > 255 {
        Err(Errno(libc::ENAMETOOLONG))
    } else {
        Ok(name)
    }
}

/// A reply under construction; a transport's thread reuses one for all of its requests.
#[derive(Debug, Default)]
pub struct Reply {
    /// Answer to the request (after the out header); empty for errors.
    pub body: Vec<u8>,
    /// 0 or a positive error number.
    pub errno: i32,
    /// FORGET, INTERRUPT: nothing goes back.
    pub silent: bool,
    /// Where a READ's answer may be written at once, if the transport has such a place; then `filled` says how many bytes, and `body` is empty.
    pub window: Option<Memory>,
    /// Bytes of the answer in `window`; `None`: it is in `body`.
    pub filled: Option<usize>,
    /// References that this reply gives to the kernel. They are taken back if it cannot be delivered.
    pub remembered: Vec<Ino>,
    /// The one of them is for locks only: its inode is held.
    pub for_locks: bool,
    /// The same for a file of the directory `.ccfs`.
    pub remembered_text: Option<u64>,
    /// Inodes (as node ids) whose cached attributes the kernel must drop before it sees this reply.
    pub stale_attrs: Vec<u64>,
    /// What it must drop of its page cache before it sees this reply, and for which user. That can take long: see [`Handler::drop_pages`].
    pub stale_pages: Option<(u32, StalePages)>,
}

/// Bytes of a file (by its node id) of which the kernel's pages are out of date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalePages {
    /// The file.
    pub nodeid: u64,
    /// Bytes of the file.
    pub range: Range<u64>,
}

impl Reply {
    /// Empty again, buffers kept.
    pub fn clear(&mut self) {
        self.body.clear();
        self.filled = None;
        self.errno = 0;
        self.silent = false;
        self.remembered.clear();
        self.for_locks = false;
        self.remembered_text = None;
        self.stale_attrs.clear();
        self.stale_pages = None;
    }

    /// Appends a structure to the answer.
    pub fn push<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.body.extend_from_slice(value.as_bytes());
    }

    /// The out header that goes before the answer.
    pub fn header(&self, unique: u64) -> abi::OutHeader {
        abi::OutHeader {
            len: (size_of::<abi::OutHeader>() + self.body.len()) as u32,
            error: -self.errno,
            unique,
        }
    }
}

/// What serves requests, whatever transport they come over.
pub trait Handler: Send + Sync {
    /// True if serving the request may wait long (for durability, for room): the transport then frees the thread's or
    /// the ring's place before it calls `handle`.
    fn may_block(&self, request: &Request<'_>) -> bool;
    /// True if serving the request takes long without waiting for other requests: whoever waits does not keep it from being served.
    fn is_long(&self, _request: &Request<'_>) -> bool {
        false
    }
    /// Serves a request. `reply` comes empty.
    fn handle(&self, request: &Request<'_>, reply: &mut Reply);
    /// As `handle` for a thread that others wait for: what takes a read from the device is left. `Again`: that came up, nothing has been done,
    /// `handle` is to be called by another thread.
    fn handle_non_blocking(&self, request: &Request<'_>, reply: &mut Reply) -> Attempt {
        self.handle(request, reply);
        Attempt::Done(())
    }
    /// Has the kernel drop pages, and then calls `reply`, which sends the reply that asked for it. Waits for nothing; `reply` may run on another thread.
    fn drop_pages(&self, _user: u32, _stale: StalePages, reply: Box<dyn FnOnce() + Send>) {
        reply();
    }
    /// Called every now and then, at least every tenth of a second.
    fn tick(&self) {}
    /// Rests while the kernel gathers FORGETs, for so long at most; not while somebody waits for one.
    fn gather(&self, most: Duration) {
        std::thread::sleep(most);
    }
    /// The kernel did not take this reply (its request was interrupted or the connection is gone).
    fn undelivered(&self, reply: &Reply);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(one_name(b"a\0"), Ok(&b"a"[..]));
        for bad in [&b""[..], b"\0", b"a", b"a\0b\0", b"a/b\0", b"a\0\0"] {
            assert_eq!(one_name(bad), Err(Errno(libc::EINVAL)), "{bad:?}");
        }
        let mut long = vec![b'x'; 256];
        long.push(0);
        assert_eq!(one_name(&long), Err(Errno(libc::ENAMETOOLONG)));
        assert!(one_name(&long[1..]).is_ok());
        assert_eq!(name_and_string(b"a\0b\0"), Ok((&b"a"[..], &b"b"[..])));
        for bad in [&b"a\0b"[..], b"a\0", b"\0b\0", b"a\0b\0c\0", b"a"] {
            assert_eq!(name_and_string(bad), Err(Errno(libc::EINVAL)), "{bad:?}");
        }
    }

    #[test]
    fn headers_are_checked() {
        let mut header = abi::InHeader {
            len: 48,
            ..Default::default()
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&[7; 8]);
        assert_eq!(Request::parse(&bytes).unwrap().bare(), [7; 8]);
        assert!(Request::parse(&bytes[..47]).is_none());
        assert!(Request::parse(&bytes[..10]).is_none());
        header.total_extlen = 1;
        bytes[..40].copy_from_slice(header.as_bytes());
        assert_eq!(Request::parse(&bytes).unwrap().bare(), [0; 0]);
        header.total_extlen = 2;
        bytes[..40].copy_from_slice(header.as_bytes());
        assert!(
            Request::parse(&bytes).is_none(),
            "extensions longer than the request"
        );
    }
}
