//! What stands between the caller and a simulated device with a barrier command: the block layer's queue, which decides which command ends an epoch.

use std::collections::BTreeMap;

use ccfs_device::Write;

use super::epoch::{EpochQueue, Order, Priority};

/// The queue, and how far the device has come.
#[derive(Default)]
pub(super) struct Queue {
    scheduler: EpochQueue,
    /// Commands that the device got with the priority *ordered*: the epochs that have ended.
    ended: usize,
}

impl Queue {
    /// Lets a batch through: its writes in the order in which the device gets them, each with the number of its epoch (from 1; 0: it is in none). The device
    /// takes commands at once, so nothing stays in the queue. An epoch is one batch, as [`submit_epoch`](ccfs_device::Device::submit_epoch) says.
    pub fn pass(&mut self, writes: Vec<Write>, epoch: bool) -> Vec<(Write, usize)> {
        let (count, mut waiting) = (writes.len(), BTreeMap::new());
        for (n, write) in writes.into_iter().enumerate() {
            let order = match epoch {
                false => Order::Orderless,
                true if n + 1 == count => Order::Barrier,
                true => Order::Ordered,
            };
            let number = self.scheduler.add(write.offset, write.len(), order);
            waiting.insert(number, write);
        }
        let mut passed = Vec::with_capacity(count);
        while let Some(command) = self.scheduler.dispatch() {
            let number = if epoch { self.ended + 1 } else { 0 };
            let writes = command.writes.iter().filter_map(|w| waiting.remove(w));
            passed.extend(writes.map(|w| (w, number)));
            self.ended += usize::from(command.priority == Priority::Ordered);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccfs_device::AlignedBuf;

    fn write(block: u64) -> Write {
        Write::new(block * 4096, AlignedBuf::zeroed(4096))
    }

    /// Places and epochs of a batch.
    fn passed(queue: &mut Queue, blocks: &[u64], epoch: bool) -> Vec<(u64, usize)> {
        let writes = blocks.iter().map(|b| write(*b)).collect();
        let passed = queue.pass(writes, epoch).into_iter();
        passed.map(|(w, e)| (w.offset / 4096, e)).collect()
    }

    #[test]
    fn each_ordered_batch_is_an_epoch_and_others_are_in_none() {
        let mut queue = Queue::default();
        assert_eq!(
            passed(&mut queue, &[9, 1, 2], true),
            [(1, 1), (2, 1), (9, 1)]
        );
        assert_eq!(passed(&mut queue, &[5, 4], false), [(4, 0), (5, 0)]);
        assert_eq!(passed(&mut queue, &[], true), []);
        assert_eq!(passed(&mut queue, &[3], true), [(3, 2)]);
        assert_eq!(passed(&mut queue, &[7, 8], true), [(7, 3), (8, 3)]);
    }
}
