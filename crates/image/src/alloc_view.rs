//! What the allocator sees of one group: the image's bitmap and, on top of it, what is held.

use ccfs_ext4::bitmap;
use std::cell::Cell;

/// How many lengths of runs a view remembers places for.
const LENGTHS: usize = 27;

/// The lengths are 1 to 16, 32, 64 and so on.
fn length(i: usize) -> u32 {
    match i {
        0..16 => i as u32 + 1,
        _ => 16 << (i - 15),
    }
}

/// The longest of the lengths that is not above `len`.
fn length_below(len: u32) -> usize {
    let i = match len {
        0..=16 => len.max(1) as usize - 1,
        _ => 11 + len.ilog2() as usize,
    };
    i.min(LENGTHS - 1)
}

/// A group's bits (blocks or inodes) in the allocator's eyes.
///
/// V1: every bit that is set in the image is set here. V2: `held` is the number of bits set here and not in the image.
/// V3: no bit of `soft` is set in `used`. V4: no run of `length(i)` bits or more that are in neither of them begins below `first[i]`.
pub(crate) struct View {
    used: Box<[u64]>,
    bits: u32,
    held: u32,
    /// Bits set aside for the windows of some owners; others take them only when nothing else is left.
    soft: Option<Box<[u64]>>,
    soft_count: u32,
    /// No bit below it is free.
    low: Cell<u32>,
    /// Without it each search would go through all the short runs at the beginning of a group again.
    first: [Cell<u32>; LENGTHS],
}

/// Bits of a piece.
pub(crate) const PIECE: u32 = 16;

/// Some bits of a group that lie together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Piece {
    first: u32,
    free: u16,
}

impl Piece {
    pub fn len(&self) -> u32 {
        self.free.count_ones()
    }

    /// The lowest one.
    pub fn pop(&mut self) -> Option<u32> {
        let at = self.free.trailing_zeros();
        self.free &= self.free.wrapping_sub(1);
        (at < PIECE).then_some(self.first + at)
    }

    /// A bit that belongs to the piece.
    pub fn add(&mut self, bit: u32) {
        self.free |= 1 << (bit - self.first);
    }

    pub fn spans(&self, bit: u32) -> bool {
        (self.first..self.first + PIECE).contains(&bit)
    }
}

/// A run of bits in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BitRun {
    pub from: u32,
    pub len: u32,
}

impl View {
    /// From the image's bitmap block.
    pub fn new(image: &[u8], bits: u32) -> View {
        View {
            used: bitmap::load(image, bits),
            bits,
            held: 0,
            soft: None,
            soft_count: 0,
            low: Cell::new(0),
            first: Default::default(),
        }
    }

    /// The group has grown: the bits that it gains are clear in the image, and held.
    pub fn extend(&mut self, bits: u32) {
        let (from, gained) = (self.bits, bits - self.bits);
        let mut words = bitmap::load(&[], bits);
        words[..self.used.len()].copy_from_slice(&self.used);
        bitmap::set(&mut words, from, gained);
        if let Some(soft) = &mut self.soft {
            let mut wider = vec![0; words.len()].into_boxed_slice();
            wider[..soft.len()].copy_from_slice(soft);
            *soft = wider;
        }
        self.used = words;
        self.bits = bits;
        self.held += gained;
    }

    /// Nothing in it that the image does not say.
    pub fn is_plain(&self) -> bool {
        self.held == 0 && self.soft.is_none()
    }

    pub fn has_soft(&self) -> bool {
        self.soft.is_some()
    }

    /// Holds a range; returns how many bits were free.
    pub fn hold(&mut self, r: BitRun) -> u32 {
        let n = bitmap::set(&mut self.used, r.from, r.len);
        self.held += n;
        self.clear_soft(r);
        n
    }

    /// The image has just set these bits (they were clear in it); returns how many were free here.
    pub fn image_set(&mut self, r: BitRun) -> u32 {
        let n = bitmap::set(&mut self.used, r.from, r.len);
        self.held = self.held.saturating_sub(r.len - n);
        self.clear_soft(r);
        n
    }

    /// The image has just cleared these bits: they are held until they are released.
    pub fn image_cleared(&mut self, r: BitRun) {
        self.held += r.len;
    }

    /// Makes held bits free that are clear in the image; returns how many.
    pub fn release(&mut self, image: &[u64], r: BitRun) -> u32 {
        let end = r.from + r.len;
        let (mut at, mut n) = (r.from, 0);
        while let Some(from) = bitmap::next_clear(|i| image[i], at, end) {
            let to = bitmap::next_set(|i| image[i], from, end).unwrap_or(end);
            n += bitmap::clear(&mut self.used, from, to - from);
            self.freed(from);
            at = to;
        }
        self.held = self.held.saturating_sub(n);
        n
    }

    /// As `release`, for one bit that is clear in the image.
    pub fn release_bit(&mut self, bit: u32) -> u32 {
        let n = bitmap::clear(&mut self.used, bit, 1);
        self.freed(bit);
        self.held = self.held.saturating_sub(n);
        n
    }

    /// Sets free bits aside for a window.
    pub fn soften(&mut self, r: BitRun) {
        let words = self.used.len();
        let soft = self
            .soft
            .get_or_insert_with(|| vec![0; words].into_boxed_slice());
        self.soft_count += bitmap::set(soft, r.from, r.len);
    }

    pub fn unsoften(&mut self, r: BitRun) {
        self.clear_soft(r);
        self.freed(r.from);
    }

    /// Bits from `at` on are free now.
    fn freed(&self, at: u32) {
        self.low.set(self.low.get().min(at));
        for (i, first) in self.first.iter().enumerate() {
            // A longer run that ended there would have been one before.
            first.set(first.get().min(at.saturating_sub(length(i) - 1)));
        }
    }

    fn clear_soft(&mut self, r: BitRun) {
        let Some(soft) = &mut self.soft else { return };
        self.soft_count -= bitmap::clear(soft, r.from, r.len);
        if self.soft_count == 0 {
            self.soft = None;
        }
    }

    fn word(&self, i: usize, avoid_soft: bool) -> u64 {
        match &self.soft {
            Some(soft) if avoid_soft => self.used[i] | soft[i],
            _ => self.used[i],
        }
    }

    /// The free run that begins in `from..end` first, cut to `want`.
    pub fn next_run(&self, from: u32, end: u32, want: u32, avoid_soft: bool) -> Option<BitRun> {
        let word = |i| self.word(i, avoid_soft);
        let low = self.low.get();
        let at = bitmap::next_clear(word, from.max(low), end.min(self.bits))?;
        if from <= low && (self.soft.is_none() || !avoid_soft) {
            self.low.set(at);
        }
        let limit = at.saturating_add(want).min(self.bits);
        let to = bitmap::next_set(word, at, limit).unwrap_or(limit);
        Some(BitRun {
            from: at,
            len: to - at,
        })
    }

    /// Holds all free bits of the first piece of `PIECE` bits in which one of `from..end` is free.
    pub fn take_piece(&mut self, from: u32, end: u32) -> Option<Piece> {
        let run = self.next_run(from, end, 1, false)?;
        let first = run.from / PIECE * PIECE;
        let mut piece = Piece { first, free: 0 };
        for from in run.from..end.min(first + PIECE) {
            if self.hold(BitRun { from, len: 1 }) == 1 {
                piece.add(from);
            }
        }
        Some(piece)
    }

    /// Whether a bit that the image does not have set is held.
    pub fn is_held(&self, bit: u32) -> bool {
        self.used[bit as usize / 64] >> (bit % 64) & 1 != 0
    }

    /// A run of up to `want` bits: the first one of at least `enough` bits from `goal` on, around the end; if there is none the
    /// longest.
    pub fn find(&self, goal: u32, want: u32, enough: u32, avoid_soft: bool) -> Option<BitRun> {
        if (avoid_soft || self.soft.is_none())
            && let found @ Some(_) = self.first_fit(goal, want, enough)
        {
            return found;
        }
        let mut best: Option<BitRun> = None;
        for (start, end) in [(goal, self.bits), (0, goal.min(self.bits))] {
            let mut at = start;
            while let Some(run) = self.next_run(at, end, want, avoid_soft) {
                if run.len >= enough {
                    return Some(run);
                }
                if best.is_none_or(|b| b.len < run.len) {
                    best = Some(run);
                }
                at = run.from + run.len;
            }
        }
        best
    }

    /// As `find`, with no second best.
    fn first_fit(&self, goal: u32, want: u32, enough: u32) -> Option<BitRun> {
        let i = length_below(enough);
        let (first, mut skipped) = (self.first[i].get(), 0);
        for (start, end) in [(goal.max(first), self.bits), (first, goal.min(self.bits))] {
            let mut at = start;
            while let Some(run) = self.next_run(at, end, want, true) {
                if run.len >= enough {
                    if start == first {
                        self.begin_at(run.from, i, skipped);
                    }
                    return Some(run);
                }
                skipped = skipped.max(run.len);
                at = run.from + run.len;
            }
        }
        self.begin_at(self.bits, i, skipped);
        None
    }

    /// From the place remembered for length `i` on there was no run of more than `skipped` bits that begins below `at`.
    fn begin_at(&self, at: u32, i: usize, skipped: u32) {
        for (i, first) in self.first.iter().enumerate().skip(i) {
            if length(i) > skipped {
                first.set(first.get().max(at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: u32, len: u32) -> BitRun {
        BitRun { from, len }
    }

    #[test]
    fn held_bits_come_back_only_when_the_image_is_clear() {
        let mut image = vec![0u8; 16];
        image[0] = 0b11;
        let mut v = View::new(&image, 100);
        assert_eq!(v.find(0, 10, 10, true), Some(run(2, 10)));
        assert_eq!(v.hold(run(2, 10)), 10);
        assert_eq!(v.find(0, 200, 200, true), Some(run(12, 88)));
        bitmap::byte_set(&mut image, 2, 4);
        assert_eq!(v.image_set(run(2, 4)), 0);
        assert_eq!(v.release(&bitmap::load(&image, 100), run(0, 20)), 6);
        assert!(v.is_plain());
        bitmap::byte_clear(&mut image, 0, 2);
        v.image_cleared(run(0, 2));
        assert!(!v.is_plain());
        assert_eq!(v.find(0, 1, 1, true), Some(run(6, 1)));
        assert_eq!(v.release(&bitmap::load(&image, 100), run(0, 2)), 2);
        assert_eq!(v.find(0, 1, 1, true), Some(run(0, 1)));
        assert!(v.is_plain());
    }

    #[test]
    fn windows_are_avoided_until_nothing_else_is_left() {
        let mut v = View::new(&[0u8; 8], 64);
        v.soften(run(0, 32));
        assert_eq!(v.find(0, 8, 8, true), Some(run(32, 8)));
        assert_eq!(v.hold(run(32, 32)), 32);
        assert_eq!(v.find(0, 8, 8, true), None);
        assert_eq!(v.find(0, 8, 8, false), Some(run(0, 8)));
        v.hold(run(0, 8));
        v.unsoften(run(0, 32));
        assert_eq!(v.find(0, 8, 8, true), Some(run(8, 8)));
    }

    /// As `View::find`, from the bits alone.
    fn find_slowly(v: &View, goal: u32, want: u32, enough: u32, avoid_soft: bool) -> Option<u32> {
        let free = |bit: &u32| v.word(*bit as usize / 64, avoid_soft) & (1u64 << (bit % 64)) == 0;
        let fits = |at: u32| (at..at + enough).all(|bit| bit < v.bits && free(&bit));
        assert!(enough <= want);
        (goal..v.bits).chain(0..goal).find(|at| fits(*at))
    }

    #[test]
    fn what_searches_remember_changes_nothing() {
        let mut rng = ccfs_testkit::Rng::new(7);
        let mut next = move |below: u32| rng.below(u64::from(below)) as u32;
        for bits in [200, 1000, 4000] {
            let image = vec![0u8; 512];
            let words = bitmap::load(&image, bits);
            let mut v = View::new(&image, bits);
            for step in 0..6000 {
                let from = next(bits);
                let r = run(from, (1 + next(40)).min(bits - from));
                match next(8) {
                    0 => drop(v.hold(r)),
                    1 => drop(v.release(&words, r)),
                    2 => drop(v.release_bit(from)),
                    3 => {
                        let free =
                            |bit| v.word(bit as usize / 64, true) & (1u64 << (bit % 64)) == 0;
                        if (r.from..r.from + r.len).all(free) {
                            v.soften(r);
                        }
                    }
                    4 => v.unsoften(r),
                    _ => {
                        let enough = 1 + next(60);
                        let (want, avoid_soft) = (enough + next(9), next(4) > 0);
                        let goal = if next(2) == 0 { 0 } else { from };
                        let found = v.find(goal, want, enough, avoid_soft);
                        let fits = found.filter(|r| r.len >= enough).map(|r| r.from);
                        let slowly = find_slowly(&v, goal, want, enough, avoid_soft);
                        assert_eq!(fits, slowly, "step {step} of {bits} bits");
                        if let Some(r) = found.filter(|_| next(3) > 0) {
                            v.hold(r);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_run_is_second_best() {
        let mut v = View::new(&[0u8; 8], 64);
        for bit in [0, 5, 20, 40] {
            v.hold(run(bit, 1));
        }
        assert_eq!(v.find(30, 100, 100, true), Some(run(41, 23)));
        assert_eq!(v.find(6, 14, 14, true), Some(run(6, 14)));
    }

    #[test]
    fn pieces_are_taken_whole_and_once() {
        let mut view = View::new(&[0; 16], 128);
        view.hold(BitRun { from: 35, len: 2 });
        let mut pieces = Vec::new();
        while let Some(mut piece) = view.take_piece(11, 100) {
            let len = piece.len() as usize;
            pieces.push(std::iter::from_fn(|| piece.pop()).collect::<Vec<_>>());
            assert_eq!(pieces.last().map(Vec::len), Some(len));
        }
        let held = |bit: &u32| !(35..37).contains(bit);
        let all: Vec<_> = (11..100).filter(held).collect();
        assert_eq!(pieces.concat(), all);
        assert!(
            pieces
                .iter()
                .all(|p| p[0] / PIECE == p[p.len() - 1] / PIECE)
        );
        assert!((11..100).all(|bit| view.is_held(bit)) && !view.is_held(100));
    }
}
