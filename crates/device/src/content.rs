//! Bytes that are copied from where they lie.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU8;

/// Bytes to copy: one's own, or those of memory that another process may change meanwhile. Then a copy has some of both.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    start: NonNull<u8>,
    len: usize,
    lies: PhantomData<&'a [AtomicU8]>,
}

impl<'a> From<&'a [u8]> for Content<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Content {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            lies: PhantomData,
        }
    }
}

impl<'a> From<&'a [AtomicU8]> for Content<'a> {
    fn from(shared: &'a [AtomicU8]) -> Self {
        Content {
            start: NonNull::from(shared).cast(),
            len: shared.len(),
            lies: PhantomData,
        }
    }
}

impl<'a> Content<'a> {
    /// No bytes.
    pub fn empty() -> Self {
        let none: &[u8] = &[];
        none.into()
    }

    /// How many bytes these are.
    pub fn len(self) -> usize {
        self.len
    }

    /// True without any.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Some of them. Panics where they are not all here.
    pub fn part(self, range: Range<usize>) -> Content<'a> {
        assert!(range.start <= range.end && range.end <= self.len);
        Content {
            // SAFETY: within what `self` stands for, as was checked.
            start: unsafe { self.start.add(range.start) },
            len: range.end - range.start,
            lies: PhantomData,
        }
    }

    /// The same in pieces of `len` bytes; what is left over at the end is left out. Panics where `len` is 0.
    pub fn pieces(self, len: usize) -> impl Iterator<Item = Content<'a>> {
        (0..self.len / len).map(move |n| self.part(n * len..(n + 1) * len))
    }

    /// Copies them to a place of the same length. Panics where that has another one.
    pub fn copy_to(self, place: &mut [u8]) {
        assert_eq!(place.len(), self.len);
        // SAFETY: both have this length; `place` is the caller's alone, so it is nothing that is shared. Whoever changes what is copied is in another
        // process: this one has no reference to those bytes that says they do not change.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), place.as_mut_ptr(), self.len) };
    }

    /// Where they begin.
    pub(crate) fn as_ptr(self) -> *const u8 {
        self.start.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_pieces_are_those_of_the_bytes() {
        let bytes: Vec<u8> = (0..=99).collect();
        let shared: Vec<AtomicU8> = bytes.iter().map(|b| AtomicU8::new(*b)).collect();
        for content in [Content::from(&bytes[..]), Content::from(&shared[..])] {
            let copy = |content: Content<'_>| {
                let mut place = vec![0; content.len()];
                content.copy_to(&mut place);
                place
            };
            assert_eq!(copy(content), bytes);
            assert_eq!(copy(content.part(7..30)), bytes[7..30]);
            assert!(content.part(100..100).is_empty());
            let pieces: Vec<Vec<u8>> = content.part(1..99).pieces(40).map(copy).collect();
            assert_eq!(pieces, [&bytes[1..41], &bytes[41..81]]);
        }
    }
}
