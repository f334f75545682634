//! Files that are open for writing, and where they can be: what is known of other files need not be doubted.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A directory: st_dev, and inode number.
pub type Place = (u64, u64);

/// Those of a process.
#[derive(Default)]
pub struct Writers(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    /// Those that may have a name in any directory.
    anywhere: u32,
    /// Those that were made when they were opened, by the directory in which each has its only name.
    made: HashMap<Place, u32>,
    /// Names that are about to become others, or to get others besides, and how many did.
    leaving: u32,
    left: u64,
    /// How many there were ever.
    begun: u64,
}

/// Where a file is made.
#[derive(Clone, Copy)]
pub struct Made {
    place: Place,
    left: u64,
}

/// One that is open for writing, until this is dropped.
pub struct Writing {
    writers: Arc<Writers>,
    made: Option<Place>,
}

/// A name of a file becomes another one, until this is dropped.
pub struct Leaving<'w>(&'w Writers, Option<Place>);

impl Writers {
    /// A file is about to be made.
    pub fn making(&self, place: Place) -> Made {
        let left = self.counts().left;
        Made { place, left }
    }

    /// One more; and where it was made, if it was.
    pub fn begin(self: &Arc<Self>, made: Option<Made>) -> Writing {
        let mut counts = self.counts();
        counts.begun += 1;
        // Since then its name may have become another one.
        let made = made.filter(|made| made.left == counts.left);
        let made = made.map(|made| made.place);
        match made {
            Some(place) => *counts.made.entry(place).or_default() += 1,
            None => counts.anywhere += 1,
        }
        Writing {
            writers: self.clone(),
            made,
        }
    }

    /// A name of a file in this directory is about to become another one, or to get one besides. `None`: in any directory.
    pub fn leaving(&self, place: Option<Place>) -> Leaving<'_> {
        self.counts().leaving += 1;
        Leaving(self, place)
    }

    /// Counts those that have begun. One that makes a file begins before that is there.
    pub fn begun(&self) -> u64 {
        self.counts().begun
    }

    /// There are none.
    pub fn are_none(&self) -> bool {
        let counts = self.counts();
        counts.anywhere == 0 && counts.leaving == 0 && counts.made.is_empty()
    }

    /// One of them may have a name in this directory.
    pub fn may_be_in(&self, place: Place) -> bool {
        let counts = self.counts();
        counts.anywhere != 0 || counts.leaving != 0 || counts.made.contains_key(&place)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        counts.leaving -= 1;
        counts.left += 1;
        let gone = match self.1 {
            Some(place) => counts.made.remove(&place).unwrap_or(0),
            None => counts.made.drain().map(|(_, count)| count).sum(),
        };
        counts.anywhere += gone;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut counts = self.writers.counts();
        match self.made.and_then(|p| Some((p, counts.made.get_mut(&p)?))) {
            Some((place, count)) => {
                *count -= 1;
                if *count == 0 {
                    counts.made.remove(&place);
                }
            }
            None => counts.anywhere = counts.anywhere.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = (1, 2);
    const B: Place = (1, 3);

    #[test]
    fn one_that_was_made_is_where_it_was_made_until_names_leave() {
        let writers = Arc::new(Writers::default());
        let may = || (writers.may_be_in(A), writers.may_be_in(B));
        let first = writers.begin(Some(writers.making(A)));
        assert_eq!(may(), (true, false));
        let leaving = writers.leaving(Some(B));
        assert_eq!(may(), (true, true));
        drop(leaving);
        assert_eq!(may(), (true, false));
        drop(writers.leaving(Some(A)));
        assert_eq!(may(), (true, true));
        // Another one of that directory: whichever of the two is closed, the other one counts.
        let second = writers.begin(Some(writers.making(A)));
        drop(first);
        assert_eq!(may(), (true, true));
        drop(second);
        assert_eq!(may(), (false, false));
        let moved_before = writers.making(A);
        drop(writers.leaving(None));
        let third = writers.begin(Some(moved_before));
        assert_eq!(may(), (true, true));
        drop(third);
        assert_eq!(may(), (false, false));
    }

    #[test]
    fn one_that_was_there_may_be_anywhere() {
        let writers = Arc::new(Writers::default());
        let there = writers.begin(None);
        let made = writers.begin(Some(writers.making(A)));
        assert!(writers.may_be_in(A) && writers.may_be_in(B));
        drop(there);
        assert!(writers.may_be_in(A) && !writers.may_be_in(B));
        drop(made);
        assert!(!writers.may_be_in(A));
    }
}
