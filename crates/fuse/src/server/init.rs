//! INIT: what this server and the kernel agree on.
use crate::abi::{self, InitIn, InitOut, init};
use zerocopy::FromBytes;

/// Largest WRITE and READ, bytes: 256 pages of 4 KiB, the kernel's default limit.
pub const MAX_WRITE: u32 = 1 << 20;
/// So many pages of the kernel make the largest WRITE. (With pages of 64 KiB 256 of them would be 16 MiB, for each buffer of each queue.)
pub fn max_pages() -> u16 {
    pages_of_write(rustix::param::page_size())
}

fn pages_of_write(page: usize) -> u16 {
    (MAX_WRITE as usize / page).max(1) as u16
}

/// Requests without a waiting caller (read-ahead, write-back) that the kernel keeps in flight.
const MAX_BACKGROUND: u16 = 128;

/// Everything that we want if the kernel has it.
///
/// * `NO_OPEN`, `NO_OPENDIR`: an open costs no request. So never `ATOMIC_O_TRUNC`: the truncation would get lost.
/// * `EXPLICIT_INVAL_DATA`, never `AUTO_INVAL_DATA`: all changes come through this kernel, its page cache is right.
/// * no `WRITEBACK_CACHE`: it loses the order of the updates and who made them.
/// * `DONT_MASK`: the umask is applied here, where the parent's default ACL is known.
/// * no `POSIX_LOCKS`, no `FLOCK_LOCKS`: locks are the kernel's own business.
pub const WANTED: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::HAS_IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::NO_OPEN_SUPPORT
    | init::PARALLEL_DIROPS
    | init::POSIX_ACL
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::NO_OPENDIR_SUPPORT
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT;

/// Without these the file system would be wrong, not only slow. Every kernel from 5.15 on has them.
const NEEDED: u64 = init::BIG_WRITES
    | init::DONT_MASK
    | init::NO_OPEN_SUPPORT
    | init::MAX_PAGES
    | init::HANDLE_KILLPRIV_V2;

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Version of the protocol behind the dot: the lower of both sides.
    pub minor: u32,
    /// Bits of [`init`] that both sides have.
    pub flags: u64,
}

impl Agreed {
    /// Was this bit agreed on?
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// Outcome of an INIT request.
#[derive(Debug, PartialEq, Eq)]
pub enum Negotiation {
    /// The version and the bits, and the reply that says so.
    Agreed(Agreed, InitOut),
    /// A kernel of a later major version: it gets our version and asks again.
    AskAgain(InitOut),
    /// Why this kernel cannot be served; the request is answered with EPROTO.
    Refused(String),
}

/// Answers INIT, whose arguments are `body`; `wanted` is [`WANTED`], for another transport with its flag.
pub fn negotiate(body: &[u8], wanted: u64) -> Negotiation {
    // Requests before 7.36 are shorter, later ones may be longer.
    let mut bytes = [0; size_of::<InitIn>()];
    let len = body.len().min(bytes.len());
    if len < 16 {
        return Negotiation::Refused(format!(
            "the kernel's INIT request has {len} bytes, at least 16 are needed"
        ));
    }
    bytes[..len].copy_from_slice(&body[..len]);
    let Ok(asked) = InitIn::read_from_bytes(&bytes) else {
        return Negotiation::Refused("INIT cannot be decoded".into());
    };
    if asked.major > abi::MAJOR {
        return Negotiation::AskAgain(InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR,
            ..Default::default()
        });
    }
    if asked.major < abi::MAJOR || asked.minor < abi::MINOR_OLDEST {
        return Negotiation::Refused(format!(
            "the kernel speaks FUSE {}.{}; ccfs needs {}.{} (Linux 5.15) or later",
            asked.major,
            asked.minor,
            abi::MAJOR,
            abi::MINOR_OLDEST
        ));
    }
    let mut offered = u64::from(asked.flags);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(asked.flags2) << 32;
    }
    let missing = NEEDED & !offered;
    if missing != 0 {
        return Negotiation::Refused(format!(
            "the kernel's FUSE lacks needed features (INIT flags {missing:#x})"
        ));
    }
    let agreed = Agreed {
        minor: asked.minor.min(abi::MINOR),
        flags: offered & wanted,
    };
    Negotiation::Agreed(agreed, answer(&asked, agreed))
}

fn answer(asked: &InitIn, agreed: Agreed) -> InitOut {
    InitOut {
        major: abi::MAJOR,
        minor: agreed.minor,
        max_readahead: asked.max_readahead.max(MAX_WRITE),
        flags: agreed.flags as u32,
        flags2: (agreed.flags >> 32) as u32,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_WRITE,
        time_gran: 1,
        max_pages: max_pages(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// Flags as Linux 5.15 offers them (7.34): bits 0-26 and 28-29 apart from reserved ones, no INIT_EXT.
    const FLAGS_5_15: u32 = 0x33ff_fffb;

    /// A request is as large whatever a page is.
    #[test]
    fn the_largest_request_is_the_same_with_every_page_size() {
        for (page, pages) in [(4096, 256), (16 << 10, 64), (64 << 10, 16), (4 << 20, 1)] {
            assert_eq!(pages_of_write(page), pages);
        }
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.as_bytes().to_vec()
    }

    fn agreed(body: &[u8]) -> (Agreed, InitOut) {
        match negotiate(body, WANTED) {
            Negotiation::Agreed(agreed, out) => (agreed, out),
            other => panic!("{other:?}"),
        }
    }

    /// 7.34: 16 bytes, no second word of flags.
    #[test]
    fn linux_5_15() {
        let (agreed, out) = agreed(&words(&[7, 34, 131072, FLAGS_5_15]));
        assert_eq!((agreed.minor, out.major, out.minor), (34, 7, 34));
        assert_eq!(agreed.flags, WANTED & !init::INIT_EXT);
        assert_eq!(
            (out.max_write, out.max_pages, out.time_gran, out.flags2),
            (1 << 20, max_pages(), 1, 0)
        );
    }

    /// 7.36 (Linux 5.17): 64 bytes with INIT_EXT; the second word counts only with that flag.
    #[test]
    fn linux_5_17() {
        let mut request = vec![7, 36, 131072, FLAGS_5_15 | 1 << 30, 0b11];
        request.extend([0; 11]);
        let (agreed, out) = agreed(&words(&request));
        assert_eq!((agreed.minor, agreed.flags), (36, WANTED));
        assert_eq!(
            out.flags2, 0,
            "neither security contexts nor DAX were asked for"
        );
    }

    /// 7.38 (Linux 6.2).
    #[test]
    fn linux_6_2() {
        let mut request = vec![7, 38, 131072, 0x7fff_fffb, 0b1011];
        request.extend([0; 11]);
        assert_eq!(
            agreed(&words(&request)).0,
            Agreed {
                minor: 38,
                flags: WANTED
            }
        );
    }

    /// 7.45 (Linux 6.18) with io_uring on offer: taken only by a transport that asks for it.
    #[test]
    fn linux_6_18() {
        let mut request = vec![7, 45, 131072, 0x73ff_fffb, 0x7ff];
        request.extend([0; 11]);
        assert_eq!(
            agreed(&words(&request)).0,
            Agreed {
                minor: 45,
                flags: WANTED
            }
        );
        match negotiate(&words(&request), WANTED | init::OVER_IO_URING) {
            Negotiation::Agreed(agreed, out) => {
                assert!(agreed.has(init::OVER_IO_URING));
                assert_eq!(out.flags2, 1 << 9);
            }
            other => panic!("{other:?}"),
        }
    }

    /// A kernel of the future: later minor, longer request, unknown flags, none of which we echo.
    #[test]
    fn future_minor_and_unknown_flags() {
        let mut request = vec![7, 99, 1 << 22, u32::MAX, u32::MAX];
        request.extend([u32::MAX; 20]);
        let (agreed, out) = agreed(&words(&request));
        assert_eq!((agreed.minor, out.minor, agreed.flags), (45, 45, WANTED));
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, WANTED);
        assert_eq!(out.unused, [0; 11]);
    }

    #[test]
    fn traps_are_never_agreed_on() {
        let (agreed, _) = agreed(&words(&[7, 34, 0, u32::MAX]));
        for trap in [
            init::ATOMIC_O_TRUNC,
            init::AUTO_INVAL_DATA,
            init::WRITEBACK_CACHE,
        ] {
            assert!(!agreed.has(trap));
        }
    }

    #[test]
    fn a_later_major_asks_again() {
        match negotiate(&words(&[8, 0, 0, 0]), WANTED) {
            Negotiation::AskAgain(out) => assert_eq!((out.major, out.minor), (7, 45)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn kernels_that_cannot_be_served() {
        let refusal = |body: &[u8]| match negotiate(body, WANTED) {
            Negotiation::Refused(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(refusal(&words(&[7, 33, 0, u32::MAX])).contains("Linux 5.15"));
        assert!(refusal(&words(&[6, 99, 0, u32::MAX])).contains("Linux 5.15"));
        assert!(refusal(&words(&[7, 34, 0, FLAGS_5_15 & !(1 << 17)])).contains("0x20000"));
        for len in 0..16 {
            assert!(refusal(&vec![0; len]).contains("at least 16"));
        }
    }
}
