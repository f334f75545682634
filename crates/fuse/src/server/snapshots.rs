//! Status texts that callers read part by part. A text belongs to the user that asked for it; number, age and size are bounded.
use crate::show::Viewer;
use crate::wire::Errno;
use std::collections::VecDeque;
use std::sync::Arc;

/// Texts that are kept for one user, and for all.
const PER_USER: usize = 4;
const ALL: usize = 64;
/// Bytes of all texts.
const BYTES: usize = 16 << 20;
/// How long a text is kept, milliseconds.
const AGE_MS: u64 = 60_000;

#[derive(Default)]
pub struct Snapshots {
    last: u64,
    /// Oldest first.
    kept: VecDeque<Snapshot>,
    bytes: usize,
}

struct Snapshot {
    number: u64,
    viewer: Viewer,
    taken_ms: u64,
    text: Arc<str>,
}

impl Snapshots {
    /// Keeps a text for a user; gives its number. Older ones go.
    pub fn keep(&mut self, viewer: Viewer, text: Arc<str>, now_ms: u64) -> u64 {
        self.drop_old(now_ms);
        if self.kept.iter().filter(|s| s.viewer == viewer).count() >= PER_USER {
            self.drop_first(|s| s.viewer == viewer);
        }
        while !self.kept.is_empty() && (self.kept.len() >= ALL || self.bytes + text.len() > BYTES) {
            self.drop_first(|_| true);
        }
        self.last += 1;
        self.bytes += text.len();
        self.kept.push_back(Snapshot {
            number: self.last,
            viewer,
            taken_ms: now_ms,
            text,
        });
        self.last
    }

    /// A text that this user asked for before. Error: ESTALE, whether it is no longer kept or somebody else's.
    pub fn find(&mut self, viewer: Viewer, number: u64, now_ms: u64) -> Result<Arc<str>, Errno> {
        self.drop_old(now_ms);
        let found = self
            .kept
            .iter()
            .find(|s| s.number == number && s.viewer == viewer);
        found.map(|s| s.text.clone()).ok_or(Errno(libc::ESTALE))
    }

    fn drop_old(&mut self, now_ms: u64) {
        while self
            .kept
            .front()
            .is_some_and(|s| now_ms.saturating_sub(s.taken_ms) > AGE_MS)
        {
            self.drop_first(|_| true);
        }
    }

    fn drop_first(&mut self, which: impl Fn(&Snapshot) -> bool) {
        if let Some(index) = self.kept.iter().position(which)
            && let Some(gone) = self.kept.remove(index)
        {
            self.bytes -= gone.text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Viewer {
        Viewer {
            uid,
            is_root: false,
        }
    }

    #[test]
    fn texts_belong_to_who_asked() {
        let mut s = Snapshots::default();
        let (mine, yours) = (
            s.keep(user(1), "mine".into(), 0),
            s.keep(user(2), "yours".into(), 0),
        );
        assert_eq!(s.find(user(1), mine, 0).as_deref(), Ok("mine"));
        assert_eq!(s.find(user(2), mine, 0), Err(Errno(libc::ESTALE)));
        assert_eq!(s.find(user(0), yours, 0), Err(Errno(libc::ESTALE)));
        let with_more_rights = Viewer {
            is_root: true,
            ..user(2)
        };
        assert!(s.find(with_more_rights, yours, 0).is_err());
        assert_eq!(s.find(user(2), yours, 0).as_deref(), Ok("yours"));
    }

    #[test]
    fn number_age_and_size_are_bounded() {
        let mut s = Snapshots::default();
        let numbers: Vec<u64> = (0..=PER_USER)
            .map(|_| s.keep(user(1), "x".into(), 0))
            .collect();
        assert_eq!(s.find(user(1), numbers[0], 0), Err(Errno(libc::ESTALE)));
        assert!(s.find(user(1), numbers[1], AGE_MS).is_ok());
        assert!(s.find(user(1), numbers[1], AGE_MS + 1).is_err());
        assert_eq!((s.kept.len(), s.bytes), (0, 0));
        for uid in 0..ALL as u32 * 2 {
            s.keep(user(uid), "x".into(), 0);
        }
        assert_eq!(s.kept.len(), ALL);
        let large: Arc<str> = "y".repeat(BYTES - 10).into();
        let number = s.keep(user(7), large, 0);
        assert!(s.bytes <= BYTES && s.find(user(7), number, 0).is_ok());
    }
}
