//! Access control lists as extended attributes have them (posix_acl_xattr.h of Linux).

use crate::program;

/// Names of the two lists.
const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// Tags of the entries that each list has, in this order.
const OWNER: u16 = 1;
const GROUP: u16 = 4;
const OTHERS: u16 = 0x20;

/// Bytes of a list that says no more than permission bits.
const PLAIN: u64 = 4 + 3 * 8;

/// The permission bits that a call sets, which sets an attribute to this value.
pub fn bits_of_call(name: u64, value: u64, len: u64, flags: u64) -> Option<u32> {
    let is_access = program::path(name).ok()? == ACCESS;
    match is_access && flags == 0 && len == PLAIN {
        true => bits(program::bytes(value, len).ok()?),
        false => None,
    }
}

/// The permission bits that a list stands for, if it says no more than these.
fn bits(list: &[u8]) -> Option<u32> {
    let (version, entries) = list.split_at_checked(4)?;
    if version != VERSION.to_le_bytes() || entries.len() != 3 * 8 {
        return None;
    }
    let mut bits = 0;
    for (entry, tag) in entries.chunks_exact(8).zip([OWNER, GROUP, OTHERS]) {
        let word = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        if word(0) != tag || word(2) > 7 {
            return None;
        }
        bits = bits << 3 | u32::from(word(2));
    }
    Some(bits)
}
