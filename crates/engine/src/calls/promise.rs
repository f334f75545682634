//! Space for operations that are accepted before they get here: what a program posts into memory that it shares with the daemon must not fail.
use crate::base::types::*;
use crate::calls::Calls;
use crate::home::space;

/// Blocks and inode numbers that are there for [`Context::posted`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Blocks.
    pub blocks: u64,
    /// Inode numbers.
    pub inodes: usize,
}

/// What operations of the calling thread have drawn on promises, ever.
pub fn drawn_by_this_thread() -> Promise {
    let (blocks, inodes) = space::drawn();
    Promise { blocks, inodes }
}

/// How often operations of the calling thread have found no inode number, or no blocks where what is promised to others would have been enough.
pub fn lacked_by_this_thread() -> u64 {
    space::lacked()
}

/// How much may be promised of so much that is free, where so much is promised besides.
fn share(free: u64, promised: u64) -> u64 {
    (free / 16).min(((free + promised) / 4).saturating_sub(promised))
}

impl Calls {
    /// Promises so much more, as far as it is there: a sixteenth of what is free at most, and a quarter with what is promised already. Returns
    /// what was promised. All promises together are one: who draws on more than his own takes it from the others, so each bounds what he has
    /// under way.
    pub fn promise(&self, wanted: Promise) -> Promise {
        let promised = self.promised();
        let blocks = share(self.unreserved_blocks(), promised.blocks).min(wanted.blocks);
        let blocks = match self.space().promise(self.image(), blocks) {
            true => blocks,
            false => 0,
        };
        let free = u64::from(self.image().alloc().free_inodes());
        let most = share(free, promised.inodes as u64).min(wanted.inodes as u64);
        let mut inodes = Vec::new();
        while (inodes.len() as u64) < most
            && let Ok(ino) = self.image().alloc().allocate_inode(ROOT_INO, false)
        {
            inodes.push(ino);
        }
        let promised = Promise {
            blocks,
            inodes: inodes.len(),
        };
        self.space().promised_inodes().lock().extend(inodes);
        promised
    }

    /// Takes a promise back, as far as it was not drawn on.
    pub fn take_promise_back(&self, promise: Promise) {
        self.space().take_promise_back(self.image(), promise.blocks);
        let mut held = self.space().promised_inodes().lock();
        let left = held.len().saturating_sub(promise.inodes);
        let back = held.split_off(left);
        drop(held);
        back.into_iter().for_each(|ino| self.give_inode_back(ino));
    }

    /// Whoever knows a directory can say what a new file in it will be: it has its maker's group, or a setgid directory's, and inodes hold
    /// nanoseconds.
    pub fn foretells_births(&self) -> bool {
        !self.options().group_of_directory && self.image().geometry().inode_size > 128
    }

    /// Numbers for inodes that [`Calls::create_born`] makes: up to so many, near a directory, as far as all promises leave them. They are the caller's
    /// until an inode is made, or until he gives them back.
    pub fn grant_numbers(&self, near: Ino, wanted: usize) -> Vec<Ino> {
        let mut numbers = Vec::new();
        // What is promised comes first: that leaves room for as much again.
        let free = u64::from(self.image().alloc().free_inodes());
        let most = share(free, 2 * self.promised().inodes as u64).min(wanted as u64) as usize;
        while numbers.len() < most
            && let Ok(ino) = self.image().alloc().allocate_inode(near, false)
        {
            numbers.push(ino);
        }
        self.space().granted.add(numbers.len() as u64);
        numbers
    }

    /// Takes back what was granted, and no inode was made with.
    pub fn take_numbers_back(&self, numbers: Vec<Ino>) {
        self.space().granted.sub(numbers.len() as u64);
        numbers
            .into_iter()
            .for_each(|ino| self.give_inode_back(ino));
    }

    /// What is left of all promises together, and of what was granted.
    pub fn promised(&self) -> Promise {
        Promise {
            blocks: self.space().promised(),
            inodes: self.space().promised_inodes().lock().len()
                + self.space().granted.get() as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn all_promises_together_are_a_quarter_of_what_is_free_at_most() {
        for all in [0, 1, 15, 16, 100, 8_000, 1 << 30] {
            let (mut free, mut promised) = (all, 0);
            for _ in 0..100 {
                let more = share(free, promised);
                assert!(more <= free / 16);
                (free, promised) = (free - more, promised + more);
            }
            assert!(promised <= all / 4);
            assert!(
                promised >= (all / 4).saturating_sub(16),
                "{promised} of {all}"
            );
        }
        assert_eq!(share(10, 1_000), 0, "much was promised when more was free");
    }
}
