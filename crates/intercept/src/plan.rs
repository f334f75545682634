//! What is to be changed in a library: a file that is read without an allocation.
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first bytes of a plan, with its version.
pub const MAGIC: [u8; 8] = *b"ccfsplan";
/// The format that this file describes. A plan is kept for as long as this stays, so it changes as well where `find` looks otherwise.
pub const VERSION: u32 = 3;
/// Most bytes of a library's build id.
pub const ID_MAX: usize = 32;
/// Bytes of the jump that takes a place: so many are replaced at least.
pub const JUMP: usize = 5;
/// Most bytes that are replaced at a place.
pub const WINDOW_MAX: usize = 24;
/// No number: the call's is known only when it is made.
pub const ANY: u32 = u32::MAX;

/// A kind of [`Site`]: `syscall`, and instructions before it or around it.
pub const INSTRUCTION: u32 = 0;
/// A kind of [`Site`]: a `call` of the function in which cancellable calls are made. `syscall` there is not led by itself: what cancels a thread compares
/// its program counter with that function, from a look at whether it is cancelled to the call.
pub const CALLER: u32 = 1;

/// The head of a plan; its sites follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// How many sites there are.
    pub sites: u32,
    /// The library's build id (ELF note NT_GNU_BUILD_ID), and how many bytes it has.
    pub id: [u8; ID_MAX],
    /// See `id`.
    pub id_len: u32,
    /// Zero.
    pub unused: u32,
}

/// A `syscall`, and what is replaced by a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Site {
    /// Where the replaced bytes begin, relative to where the library is loaded.
    pub start: u64,
    /// How many these are.
    pub len: u32,
    /// Where `syscall` is among them; `len`: right behind them, and it stays.
    pub call: u32,
    /// The number of the system call, or [`ANY`].
    pub number: u32,
    /// What is there; zeros behind it.
    pub bytes: [u8; WINDOW_MAX],
    /// [`INSTRUCTION`] or [`CALLER`].
    pub kind: u32,
}

/// A plan as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Its head.
    pub head: &'a Head,
    /// Its sites, in the order of their places.
    pub sites: &'a [Site],
}

impl<'a> Plan<'a> {
    /// Reads one. `None`: it is none, or of another version.
    pub fn read(bytes: &'a [u8]) -> Option<Plan<'a>> {
        let (head, rest) = Head::ref_from_prefix(bytes).ok()?;
        if head.magic != MAGIC || head.version != VERSION || head.id_len as usize > ID_MAX {
            return None;
        }
        let sites = <[Site]>::ref_from_bytes_with_elems(rest, head.sites as usize).ok()?;
        // The two bytes of `syscall` are replaced as a whole, or not at all.
        let right = |s: &Site| {
            let call = s.call == s.len || s.call < s.len - 1;
            let kind = s.kind == INSTRUCTION || s.kind == CALLER && s.len == JUMP as u32;
            (JUMP as u32..=WINDOW_MAX as u32).contains(&s.len) && call && kind
        };
        sites.iter().all(right).then_some(Plan { head, sites })
    }

    /// The build id of the library that it is for.
    pub fn id(&self) -> &'a [u8] {
        &self.head.id[..self.head.id_len as usize]
    }
}

/// A plan's bytes. Panics where the id is longer than [`ID_MAX`].
pub fn write(id: &[u8], sites: &[Site]) -> Vec<u8> {
    let mut head = Head {
        magic: MAGIC,
        version: VERSION,
        sites: sites.len() as u32,
        id: [0; ID_MAX],
        id_len: id.len() as u32,
        unused: 0,
    };
    head.id[..id.len()].copy_from_slice(id);
    [head.as_bytes(), sites.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let site = Site {
            start: 0x1234,
            len: 5,
            call: 5,
            number: 1,
            bytes: [7; WINDOW_MAX],
            kind: INSTRUCTION,
        };
        let bytes = write(&[1, 2, 3], &[site, site]);
        let plan = Plan::read(&bytes).expect("a plan");
        assert_eq!((plan.id(), plan.sites), (&[1, 2, 3][..], &[site, site][..]));
        assert!(Plan::read(&bytes[..bytes.len() - 1]).is_none(), "cut");
        for (at, value) in [
            (0, 0),
            (8, 9),
            (12, 3),
            (48, 200),
            (64, 4),
            (64, 25),
            (68, 4),
            (68, 6),
            (100, 2),
        ] {
            let mut other = bytes.clone();
            other[at] = value;
            assert!(Plan::read(&other).is_none(), "byte {at}");
        }
        assert!(Plan::read(&[]).is_none());
    }
}
