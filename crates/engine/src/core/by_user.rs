//! Dirty bytes by user.
use crate::base::sync::Mutex;
use crate::core::Core;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long it is believed what users hold: adding it up takes as long as there are transactions.
const BELIEVED: Duration = Duration::from_millis(10);

/// Dirty bytes of each user, as they were a moment ago.
#[derive(Default)]
pub(crate) struct DirtyByUser(Mutex<Option<(Instant, HashMap<u32, u64>)>>);

impl Core {
    /// Dirty bytes of a user, drafts and open groups aside, as they were a moment ago. For who has to wait: it looks at all transactions.
    pub(crate) fn dirty_of(&self, uid: u32) -> u64 {
        let mut known = self.dirty_by_user.0.lock();
        match &*known {
            Some((at, parts)) if at.elapsed() < BELIEVED => {
                return parts.get(&uid).copied().unwrap_or(0);
            }
            _ => {}
        }
        let mut txns = self.streams.uncommitted();
        // What is durable holds its memory until it is applied.
        txns.extend(self.queue.lock().ordered.iter().cloned());
        txns.sort_by_key(|t| t.serial);
        txns.dedup_by_key(|t| t.serial);
        let mut parts: HashMap<u32, u64> = HashMap::new();
        for txn in txns {
            for (uid, bytes) in txn.users() {
                *parts.entry(uid).or_default() += bytes;
            }
        }
        let own = parts.get(&uid).copied().unwrap_or(0);
        *known = Some((Instant::now(), parts));
        own
    }
}
