//! File data that went through the log and is not home yet.
use crate::base::sync::RwLock;
use ccfs_device::SharedBuf;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A block of file data that went through the log and is not home yet.
pub struct HomePage {
    pub buf: SharedBuf,
    /// First transaction whose bytes are not home.
    pub since: u64,
}

/// Such blocks, by physical block.
#[derive(Default)]
pub struct HomePages {
    pub pages: RwLock<BTreeMap<u64, HomePage>>,
    count: AtomicUsize,
}

impl HomePages {
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn insert(&self, pblk: u64, buf: SharedBuf, id: u64) {
        let mut pages = self.pages.write();
        let since = pages.get(&pblk).map_or(id, |p| p.since);
        pages.insert(pblk, HomePage { buf, since });
        self.count.store(pages.len(), Ordering::Relaxed);
    }

    pub fn remove(&self, from: u64, len: u64) {
        if self.len() == 0 {
            return;
        }
        let mut pages = self.pages.write();
        let doomed: Vec<u64> = pages.range(from..from + len).map(|(p, _)| *p).collect();
        for pblk in doomed {
            pages.remove(&pblk);
        }
        self.count.store(pages.len(), Ordering::Relaxed);
    }
}
