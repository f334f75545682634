//! Users share what serves requests that wait (docs/design/memory.md, "Users who share a volume"):
//! threads, and memory for requests that wait for one.
use crate::abi::InHeader;
use ccfs_engine::fits_share;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

/// Stands for a user where a request is nobody's call: pages that the kernel writes back.
const NOBODY: u32 = u32::MAX;

/// Whose share a request takes.
pub fn user_of(header: &InHeader) -> u32 {
    match (header.uid, header.pid) {
        (0, 0) => NOBODY,
        (uid, _) => uid,
    }
}

/// An empty queue is kept for the next user, unless it has been longer.
const SPARE_MAX: usize = 64;

/// What users have taken of a bound.
pub struct Taken {
    bound: u64,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    all: u64,
    of: HashMap<u32, u64>,
}

impl Taken {
    /// Nothing taken of `bound`.
    pub fn new(bound: usize) -> Taken {
        Taken {
            bound: bound as u64,
            parts: Mutex::default(),
        }
    }

    /// False: the user may not have so much more.
    pub fn take(&self, uid: u32, n: usize) -> bool {
        let mut parts = self.parts.lock();
        let own = parts.of.get(&uid).copied().unwrap_or(0) + n as u64;
        let fits = fits_share(self.bound, uid, own, parts.all + n as u64);
        if fits {
            parts.add(uid, n as u64);
        }
        fits
    }

    /// As `take`, for what no bound applies to.
    pub fn take_anyhow(&self, uid: u32, n: usize) {
        self.parts.lock().add(uid, n as u64);
    }

    /// Of what the user took so much is free again.
    pub fn give_back(&self, uid: u32, n: usize) {
        let mut parts = self.parts.lock();
        parts.all -= n as u64;
        let own = parts.of.entry(uid).or_default();
        *own -= n as u64;
        if *own == 0 {
            parts.of.remove(&uid);
        }
    }
}

impl Parts {
    fn add(&mut self, uid: u32, n: u64) {
        self.all += n;
        *self.of.entry(uid).or_default() += n;
    }
}

/// Requests that wait for a thread. Users take turns, so nobody waits behind all of another one's.
pub struct Queued<T> {
    /// Those of whom something waits; the first one's turn is next.
    turns: VecDeque<(u32, VecDeque<T>)>,
    /// Of one who has been here, for the next one.
    spare: VecDeque<T>,
}

impl<T> Default for Queued<T> {
    fn default() -> Self {
        Queued {
            turns: VecDeque::new(),
            spare: VecDeque::new(),
        }
    }
}

impl<T> Queued<T> {
    /// One more request of this user.
    pub fn push(&mut self, uid: u32, request: T) {
        match self.turns.iter_mut().find(|(u, _)| *u == uid) {
            Some((_, requests)) => requests.push_back(request),
            None => {
                let mut requests = std::mem::take(&mut self.spare);
                requests.push_back(request);
                self.turns.push_back((uid, requests));
            }
        }
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The next request.
    pub fn next_of_all(&mut self) -> Option<T> {
        self.next(|_| true).map(|(_, request)| request)
    }

    /// The next request of a user who may have one served.
    pub fn next(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<(u32, T)> {
        let at = self.turns.iter().position(|(uid, _)| may(*uid))?;
        let (uid, mut requests) = self.turns.remove(at)?;
        let request = requests.pop_front()?;
        match requests.is_empty() {
            true if requests.capacity() <= SPARE_MAX => self.spare = requests,
            true => {}
            false => self.turns.push_back((uid, requests)),
        }
        Some((uid, request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_the_reserve_to_others() {
        let taken = Taken::new(16);
        assert!((0..16).all(|_| taken.take(7, 1)));
        assert!(!taken.take(7, 1));
        assert!((0..2).all(|_| taken.take(8, 1)));
        assert!(!taken.take(8, 1), "an eighth");
        taken.give_back(7, 1);
        assert!(!taken.take(7, 1), "there are still more than the bound");
        taken.give_back(8, 2);
        assert!(taken.take(7, 1));
        assert!((0..4).all(|_| taken.take(0, 1)));
        assert!(!taken.take(9, 1) && !taken.take(0, 1), "all is taken");
        taken.give_back(0, 4);
        taken.give_back(7, 16);
        let parts = taken.parts.lock();
        assert!(parts.all == 0 && parts.of.is_empty());
    }

    #[test]
    fn users_take_turns() {
        let mut queued = Queued::default();
        for n in 0..4 {
            queued.push(7, n);
        }
        queued.push(8, 10);
        queued.push(9, 20);
        assert_eq!(queued.next(|uid| uid == 9), Some((9, 20)));
        let all: Vec<_> = std::iter::from_fn(|| queued.next(|_| true)).collect();
        assert_eq!(all, [(7, 0), (8, 10), (7, 1), (7, 2), (7, 3)]);
    }

    #[test]
    fn pages_that_the_kernel_writes_back_are_not_roots() {
        let header = |uid, pid| InHeader {
            uid,
            pid,
            ..InHeader::default()
        };
        assert_eq!(user_of(&header(0, 5)), 0);
        assert_eq!(user_of(&header(0, 0)), NOBODY);
        // Seen from a namespace that does not have its thread.
        assert_eq!(user_of(&header(7, 0)), 7);
    }
}
