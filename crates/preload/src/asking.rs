//! How many files of a directory are asked for one by one before all of them are, in one answer; and whether a directory is listed when it is found.

/// So many, as long as nothing is known of the program.
const ASKED_MIN: u32 = 3;
/// Directories that were listed for that before it counts what came of it.
const LISTED_MIN: u32 = 4;
/// Attributes that were of use for each of them, if the first file is to list the next one.
const USED_MIN: u32 = 3;

/// What came of it so far.
#[derive(Default)]
pub struct Asking {
    listed: u32,
    used: u32,
}

impl Asking {
    /// A directory of which so many files were asked for since it was listed, so many `times`, is to be listed. Files that were made meanwhile are no reason to do
    /// that again and again.
    pub fn is_due(&self, asked: u32, times: u32) -> bool {
        let is_worth_it = self.listed >= LISTED_MIN && self.used / USED_MIN >= self.listed;
        match is_worth_it && times == 0 {
            true => asked == 1,
            false => asked == ASKED_MIN << (2 * times).min(24),
        }
    }

    /// One was listed.
    pub fn note_listed(&mut self) {
        self.listed = self.listed.saturating_add(1);
    }

    /// Attributes that were listed were asked for.
    pub fn note_used(&mut self) {
        self.used = self.used.saturating_add(1);
    }
}

/// Directories that were told with what is in them before it counts what came of it.
const TOLD_MIN: u32 = 4;

/// Whether directories are listed when they are found, and what came of it so far.
#[derive(Default)]
pub struct Finding {
    told: u32,
    used: u32,
    /// Those with more in them than could be told.
    large: u32,
}

impl Finding {
    /// The next one is to be: half of them were of use, and few too large.
    pub fn is_due(&self) -> bool {
        let is_of_use = self.told < TOLD_MIN || self.used >= self.told / 2;
        is_of_use && self.large <= self.told.saturating_add(TOLD_MIN)
    }

    /// One was, or had too much in it.
    pub fn note_told(&mut self, whole: bool) {
        let count = if whole {
            &mut self.told
        } else {
            &mut self.large
        };
        *count = count.saturating_add(1);
    }

    /// Somebody wanted to know what is in it, or in one of which nothing was told.
    pub fn note_used(&mut self) {
        self.used = self.used.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_reads_a_directory_is_told_of_few() {
        let mut finding = Finding::default();
        for _ in 0..TOLD_MIN {
            assert!(finding.is_due());
            finding.note_told(true);
        }
        assert!(!finding.is_due());
        (0..TOLD_MIN / 2).for_each(|_| finding.note_used());
        assert!(finding.is_due());
        (0..3 * TOLD_MIN).for_each(|_| finding.note_told(false));
        assert!(!finding.is_due(), "most are too large");
    }

    #[test]
    fn who_asks_for_all_files_is_told_at_once() {
        let mut asking = Asking::default();
        for _ in 0..LISTED_MIN {
            assert!(!asking.is_due(1, 0) && asking.is_due(ASKED_MIN, 0));
            asking.note_listed();
            (0..USED_MIN).for_each(|_| asking.note_used());
        }
        assert!(asking.is_due(1, 0) && !asking.is_due(ASKED_MIN, 0));
        assert!(!asking.is_due(1, 1) && !asking.is_due(ASKED_MIN, 1));
        assert!(asking.is_due(4 * ASKED_MIN, 1));
        asking.note_listed();
        assert!(!asking.is_due(1, 0), "the last one was of no use");
    }
}
