//! Garbage collection: blocks in which little is needed are emptied, and wear is levelled.
use super::FlashBug;
use super::format::*;
use super::ftl::{BlockState, Change, Ftl, tag};
use std::io;

/// Difference in erases from which on a block that nobody rewrites is emptied all the same.
const WEAR_SPREAD: u32 = 64;
/// Rounds that gain nothing before the device counts as full.
const VAIN_ROUNDS: u32 = 3;

impl Ftl {
    /// Sees to it that `pages` can be programmed and the collector still has its reserve.
    pub fn make_room(&mut self, pages: u32) -> io::Result<()> {
        let want = pages + self.g.reserve();
        let mut vain = 0;
        let mut most = self.free_pages();
        while self.free_pages() < want {
            self.collect(want)?;
            if self.free_pages() > most {
                (most, vain) = (self.free_pages(), 0);
            } else {
                vain += 1;
            }
            if vain >= VAIN_ROUNDS {
                return Err(self.full(pages));
            }
        }
        Ok(())
    }

    pub fn full(&self, pages: u32) -> io::Error {
        let open: usize = self.txns.values().map(|t| t.len()).sum();
        io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "the flash has no room for {pages} pages more: of {} pages {} are free, and transactions that are not committed \
                 have {open}; commit or abort some, or trim what is not needed",
                self.g.pages(),
                self.free_pages(),
            ),
        )
    }

    /// One round: empties blocks, cheapest first, as many as the free pages allow copying for; the snapshot at its end frees them.
    fn collect(&mut self, want: u32) -> io::Result<()> {
        let mut budget = self.free_pages().saturating_sub(self.g.snapshot_pages());
        let mut missing = want.saturating_sub(self.free_pages()) + 2 * self.g.block_pages;
        let used = |b: &u32| self.state[*b as usize] == BlockState::Used && *b != self.active;
        let mut victims: Vec<u32> = (ANCHORS..self.g.blocks).filter(used).collect();
        victims.sort_unstable_by_key(|b| (self.valid[*b as usize], self.erases[*b as usize]));
        let idle = victims
            .iter()
            .copied()
            .min_by_key(|b| self.erases[*b as usize]);
        for block in victims {
            let valid = self.valid[block as usize];
            if valid > budget || valid == self.g.block_pages || missing == 0 {
                break;
            }
            self.empty(block)?;
            if self.bug(FlashBug::EarlyErase) && self.valid[block as usize] == 0 {
                self.state[block as usize] = BlockState::Free;
                self.free.push_front(block);
            }
            budget -= valid;
            missing = missing.saturating_sub(self.g.block_pages - valid);
        }
        if let Some(block) = idle {
            let most = self.erases[ANCHORS as usize..].iter().max().copied();
            let spread = most.unwrap_or(0) - self.erases[block as usize];
            let valid = self.valid[block as usize];
            if spread > WEAR_SPREAD && valid > 0 && valid <= budget {
                self.empty(block)?;
            }
        }
        self.snapshot()
    }

    /// Copies what is needed of a block elsewhere. Pages of tables are written anew by the snapshot.
    fn empty(&mut self, block: u32) -> io::Result<()> {
        let first = block * self.g.block_pages;
        let needed: Vec<u32> = (first..first + self.g.block_pages)
            .filter(|ppn| self.owner[*ppn as usize] != NONE)
            .collect();
        let mut moved: Vec<(u32, u32, Vec<u8>)> = Vec::new();
        for ppn in needed {
            let owner = self.owner[ppn as usize];
            if owner >= TABLE_OWNER {
                self.dirty.insert(owner - TABLE_OWNER);
                continue;
            }
            if self.bug(FlashBug::OpenPagesLost) && self.open_of.contains_key(&ppn) {
                self.drop_page(ppn);
                continue;
            }
            let (slot, found) = self.slot(ppn)?;
            if found.is_none_or(|t| t.kind != Kind::Data || t.index != owner) {
                return Err(damaged_page(owner, ppn));
            }
            moved.push((ppn, owner, slot));
        }
        let list: Vec<(Tag, &[u8])> = moved
            .iter()
            .map(|(_, lpn, slot)| (tag(Kind::Data, *lpn, 1, 0), &slot[..PAGE]))
            .collect();
        let places = self.program(&list)?;
        self.count.moved_pages += moved.len() as u64;
        for ((old, lpn, _), (ppn, seq)) in moved.iter().zip(places) {
            let txn = self.open_of.get(old).copied();
            self.drop_page(*old);
            self.owner[ppn as usize] = *lpn;
            self.valid[self.g.block_of(ppn) as usize] += 1;
            match txn {
                Some(txn) => {
                    self.open_of.insert(ppn, txn);
                    let table = self.txns.get_mut(&txn).expect("its page is open");
                    table.insert(*lpn, Change::At { ppn, seq });
                }
                None => {
                    self.map[*lpn as usize] = ppn;
                    self.dirty.insert(lpn / MAP_ENTRIES);
                }
            }
        }
        Ok(())
    }
}

pub(super) fn damaged_page(lpn: u32, ppn: u32) -> io::Error {
    corrupt(format!(
        "the flash has lost page {lpn}: flash page {ppn} does not hold it (wrong checksum or another page)"
    ))
}
