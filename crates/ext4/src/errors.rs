//! The super block's error fields: what was found damaged since the last check. While they are set `e2fsck -p` checks everything, and
//! only e2fsck clears them. Source: the kernel's Documentation/filesystems/ext4/super.rst (s_error_count to s_last_error_errcode).

use crate::Corruption;
use crate::superblock::{RawSuper, STATE_ERROR};

/// Value of `s_first_error_errcode` and `s_last_error_errcode` for EFSBADCRC: a checksum is wrong.
pub const CODE_CHECKSUM: u8 = 4;
/// The same for EFSCORRUPTED: another damage.
pub const CODE_CORRUPTED: u8 = 5;

/// Bytes of the name of the function that found an error, a zero at its end included where it fits.
const FUNC_LEN: usize = 32;

/// One of the two errors that the super block remembers, the first or the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorFields {
    /// Seconds since 1970.
    pub time: u64,
    /// 0: it is no inode's.
    pub inode: u32,
    /// 0: no single one.
    pub block: u64,
    /// The kernel's function that found it, or ccfs's source file.
    pub function: String,
    /// Line of the source where it was found; the kernel's or ccfs's.
    pub line: u32,
    /// The kernel's `EXT4_ERR_*`; 0 from kernels before 5.10.
    pub code: u8,
}

impl ErrorFields {
    /// For damage of `inode` (0: none) that was met at `time`, seconds since 1970.
    pub fn of(met: &Corruption, inode: u32, time: u64) -> ErrorFields {
        let file = met.at.file();
        let file = file
            .split_once("crates/")
            .map_or(file, |(_, inside)| inside);
        let checksum = met.what.contains("checksum");
        ErrorFields {
            time,
            inode,
            block: met.block,
            function: format!("ccfs {}", file.replace("/src/", "/")),
            line: met.at.line(),
            code: if checksum {
                CODE_CHECKSUM
            } else {
                CODE_CORRUPTED
            },
        }
    }

    fn func(&self) -> [u8; FUNC_LEN] {
        let mut out = [0; FUNC_LEN];
        let len = self.function.len().min(FUNC_LEN - 1);
        out[..len].copy_from_slice(&self.function.as_bytes()[..len]);
        out
    }
}

fn text(func: &[u8; FUNC_LEN]) -> String {
    let end = func.iter().position(|b| *b == 0).unwrap_or(FUNC_LEN);
    String::from_utf8_lossy(&func[..end]).into_owned()
}

impl RawSuper {
    /// Does the super block remember errors?
    pub fn has_errors(&self) -> bool {
        self.state.get() & STATE_ERROR != 0 || self.error_count.get() > 0
    }

    /// Counts one more error and remembers it as the last one, and as the first one where there was none.
    pub fn note_error(&mut self, error: &ErrorFields) {
        self.state = (self.state.get() | STATE_ERROR).into();
        let (low, high) = (error.time as u32, (error.time >> 32) as u8);
        if self.first_error_time.get() == 0 && self.first_error_time_hi == 0 {
            (self.first_error_time, self.first_error_time_hi) = (low.into(), high);
            self.first_error_ino = error.inode.into();
            self.first_error_block = error.block.into();
            self.first_error_func = error.func();
            self.first_error_line = error.line.into();
            self.first_error_code = error.code;
        }
        (self.last_error_time, self.last_error_time_hi) = (low.into(), high);
        self.last_error_ino = error.inode.into();
        self.last_error_block = error.block.into();
        self.last_error_func = error.func();
        self.last_error_line = error.line.into();
        self.last_error_code = error.code;
        self.error_count = self.error_count.get().saturating_add(1).into();
    }

    /// The first error and the last one, where there are any.
    pub fn errors(&self) -> Option<(ErrorFields, ErrorFields)> {
        if self.error_count.get() == 0 {
            return None;
        }
        let time = |low: u32, high: u8| u64::from(low) | u64::from(high) << 32;
        let first = ErrorFields {
            time: time(self.first_error_time.get(), self.first_error_time_hi),
            inode: self.first_error_ino.get(),
            block: self.first_error_block.get(),
            function: text(&self.first_error_func),
            line: self.first_error_line.get(),
            code: self.first_error_code,
        };
        let last = ErrorFields {
            time: time(self.last_error_time.get(), self.last_error_time_hi),
            inode: self.last_error_ino.get(),
            block: self.last_error_block.get(),
            function: text(&self.last_error_func),
            line: self.last_error_line.get(),
            code: self.last_error_code,
        };
        Some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use zerocopy::FromZeros;

    fn met(what: &str, block: u64) -> Corruption {
        match Error::corrupt(what.into()).in_block(block).in_block(99) {
            Error::Corrupt(met) => met,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_first_error_stays_and_the_last_one_follows() {
        let mut raw = RawSuper::new_zeroed();
        assert!(!raw.has_errors() && raw.errors().is_none());
        let late = 0x01_8000_0007;
        let one = ErrorFields::of(&met("wrong checksum", 7), 12, late);
        let two = ErrorFields::of(&met("impossible size", 0), 13, late + 1);
        raw.note_error(&one);
        raw.note_error(&two);
        assert_eq!((one.block, one.code, two.code), (7, 4, 5));
        assert_eq!((two.block, one.line > 0), (99, true));
        assert!(one.function.starts_with("ccfs ext4/errors"), "{one:?}");
        assert_eq!(raw.errors(), Some((one, two)));
        assert_eq!((raw.error_count.get(), raw.state.get()), (2, STATE_ERROR));
        raw.error_count = u32::MAX.into();
        raw.note_error(&ErrorFields::default());
        assert_eq!(raw.error_count.get(), u32::MAX);
    }
}
