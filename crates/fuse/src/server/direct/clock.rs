//! When entries were posted. Their program says it, and is believed as far as that can be.
use ccfs_engine::Time;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds of a second.
const NS: u64 = 1_000_000_000;
/// How far from what can be a time may be: a program may be stopped, or the clock set, between a look at the clock and what follows.
const SLACK: u64 = NS;

/// What is known of when the entries of a session were posted: times in nanoseconds since the epoch.
#[derive(Default)]
pub struct Clock {
    /// Entries from this position on were not posted before this time.
    older: (u64, u64),
    /// The same, looked up later.
    newer: (u64, u64),
    /// What was asked for was carried out then: what is carried out later does not have an earlier time.
    asked: u64,
}

pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

pub fn time_of(ns: u64) -> Time {
    ((ns / NS) as i64, (ns % NS) as u32)
}

impl Clock {
    /// What is at `tail` and behind it is posted after `now`. All before `head` is carried out.
    pub fn note(&mut self, head: u64, tail: u64, now: u64) {
        if head >= self.newer.0 {
            self.older = self.newer;
            self.newer = (tail, now);
        }
    }

    /// Something that was asked for was carried out.
    pub fn note_asked(&mut self, now: u64) {
        self.asked = now;
    }

    /// When the entry at `position` was posted, by what its program says; `None`: nobody can tell.
    pub fn posted(&self, position: u64, said: u64, now: u64) -> Option<u64> {
        let (_, since) = match position >= self.newer.0 {
            true => self.newer,
            false => self.older,
        };
        let can_be = since.saturating_sub(SLACK)..=now.saturating_add(SLACK);
        (said != 0 && can_be.contains(&said)).then_some(said)
    }

    /// The time of what it changes besides: never earlier than that of what came before it.
    pub fn of_change(&self, posted: u64, now: u64) -> u64 {
        match self.asked <= now {
            true => posted.max(self.asked),
            // The clock was set back.
            false => posted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_believed_if_it_can_be() {
        let mut clock = Clock::default();
        let at = |s: u64| s * NS;
        clock.note(0, 0, at(100));
        assert_eq!(clock.posted(0, 0, at(100)), None);
        for (said, believed) in [
            (98, false),
            (99, true),
            (150, true),
            (201, true),
            (202, false),
        ] {
            let posted = clock.posted(0, at(said), at(200));
            assert_eq!(posted.is_some(), believed, "{said}");
        }
        // What is carried out an hour later was still posted then.
        clock.note(0, 640, at(200));
        assert!(clock.posted(0, at(120), at(3800)).is_some());
        assert!(clock.posted(640, at(120), at(3800)).is_none());
        // Some of it is carried out: what it was posted after does not change by that.
        clock.note(64, 640, at(300));
        assert!(clock.posted(128, at(120), at(3800)).is_some());
        clock.note(640, 640, at(400));
        assert!(clock.posted(640, at(380), at(400)).is_none());
        assert!(clock.posted(640, at(401), at(402)).is_some());
    }

    #[test]
    fn changes_have_no_earlier_time_than_those_before_them() {
        let mut clock = Clock::default();
        clock.note_asked(50);
        assert_eq!(clock.of_change(40, 60), 50);
        assert_eq!(clock.of_change(55, 60), 55);
        assert_eq!(clock.of_change(40, 45), 40, "the clock was set back");
    }
}
