//! Shares: bounds that several users draw on (docs/design/memory.md, "Users who share a volume").
//!
//! One user may take all of a bound, as if he were alone. Above the bound lies a reserve, for who holds little of it: so who comes later
//! finds room, whatever one other user holds. Root gets all of the reserve.
use crate::base::sync::Mutex;
use crate::base::types::{Context, StreamId, Time};
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Who makes a change: the stream that it belongs to, the user whose share it takes, and when, if not now.
#[derive(Clone, Copy)]
pub(crate) struct By {
    pub stream: StreamId,
    pub uid: u32,
    pub time: Option<Time>,
}

impl From<&Context> for By {
    fn from(cx: &Context) -> By {
        By {
            stream: cx.stream,
            uid: cx.uid,
            time: cx.time,
        }
    }
}

/// The engine's own work.
impl From<StreamId> for By {
    fn from(stream: StreamId) -> By {
        By {
            stream,
            uid: 0,
            time: None,
        }
    }
}

/// The reserve is this part of a bound, and what one user may hold of a bound to draw on the reserve.
const RESERVE: u64 = 4;
const LITTLE: u64 = 8;

/// May user `uid`, who holds `own` of the `all` that everybody holds, take more of a bound?
pub fn fits(bound: u64, uid: u32, own: u64, all: u64) -> bool {
    let little = match uid {
        0 => bound / RESERVE,
        _ => bound / LITTLE,
    };
    all <= bound || own <= little && all <= bound + bound / RESERVE
}

/// A count with the part of each user, for what changes rarely.
#[derive(Default)]
pub(crate) struct ByUser {
    all: AtomicU64,
    parts: Mutex<HashMap<u32, u64>>,
}

impl ByUser {
    pub fn add(&self, uid: u32, n: u64) {
        self.change(uid, |part| part.wrapping_add(n));
        self.all.fetch_add(n, Relaxed);
    }

    pub fn sub(&self, uid: u32, n: u64) {
        self.change(uid, |part| part.wrapping_sub(n));
        self.all.fetch_sub(n, Relaxed);
    }

    fn change(&self, uid: u32, f: impl Fn(u64) -> u64) {
        let mut parts = self.parts.lock();
        let part = parts.entry(uid).or_default();
        *part = f(*part);
        if *part == 0 {
            parts.remove(&uid);
        }
    }

    pub fn all(&self) -> u64 {
        self.all.load(Relaxed)
    }

    pub fn of(&self, uid: u32) -> u64 {
        self.parts.lock().get(&uid).copied().unwrap_or(0)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn one_user_takes_all_of_a_bound_and_nothing_of_the_reserve() {
        assert!(fits(800, 7, 800, 800));
        assert!(!fits(800, 7, 801, 801));
        // Another one, who holds little.
        assert!(fits(800, 8, 100, 900));
        assert!(!fits(800, 8, 101, 901));
        assert!(fits(800, 8, 1, 1000));
        assert!(!fits(800, 8, 1, 1001));
        assert!(fits(800, 0, 200, 1000), "root has all of the reserve");
        assert!(!fits(800, 0, 201, 1000));
    }

    #[test]
    fn parts_are_forgotten_with_the_last_of_them() {
        let count = ByUser::default();
        count.add(5, 10);
        count.add(6, 1);
        count.sub(5, 4);
        assert_eq!((count.all(), count.of(5), count.of(6)), (7, 6, 1));
        count.sub(5, 6);
        count.sub(6, 1);
        assert_eq!((count.all(), count.parts.lock().len()), (0, 0));
    }
}
