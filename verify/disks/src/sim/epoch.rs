//! The block layer in front of a device with a barrier command (BarrierFS paper, sections 3.2 to 3.4): epochs, order-preserving
//! dispatch, barrier reassignment.
//!
//! *Ordered* writes belong to epochs; a *barrier* write ends one. Orderless writes belong to none and pass freely. The queue may sort and
//! merge what it holds, but never holds ordered writes of two epochs: when a barrier write has come in, ordered ones behind it wait outside
//! until the epoch has left, and the one that leaves last carries the barrier. The device gets that one with the priority *ordered*
//! (nothing passes it), all others with *simple*.

use std::collections::VecDeque;

/// Longest request that merging makes, bytes.
const REQUEST_MAX: u64 = 512 << 10;

/// What a write asks of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Orderless,
    /// Part of the epoch that the next barrier ends.
    Ordered,
    /// The last of its epoch.
    Barrier,
}

/// How the device takes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Simple,
    /// What the device got before is done before, what it gets later after it.
    Ordered,
}

/// What the device gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub offset: u64,
    pub len: u64,
    /// Numbers of the writes in it, in order of their places.
    pub writes: Vec<u64>,
    pub priority: Priority,
    /// It ends an epoch.
    pub barrier: bool,
}

#[derive(Clone, Debug)]
struct Held {
    offset: u64,
    len: u64,
    writes: Vec<u64>,
    ordered: bool,
}

/// The scheduler's queue. Offsets and lengths are bytes.
#[derive(Default)]
pub struct EpochQueue {
    /// Sorted by place.
    held: Vec<Held>,
    /// Ordered writes behind a barrier that is held, in order of arrival.
    outside: VecDeque<(u64, u64, u64, Order)>,
    /// The epoch of the held ordered writes is complete.
    blocked: bool,
    next: u64,
}

impl EpochQueue {
    /// Takes a write in and returns its number.
    pub fn add(&mut self, offset: u64, len: u64, order: Order) -> u64 {
        let number = self.next;
        self.next += 1;
        // An orderless write never waits for an epoch.
        if self.blocked && order != Order::Orderless {
            self.outside.push_back((number, offset, len, order));
        } else {
            self.hold(number, offset, len, order);
        }
        number
    }

    fn hold(&mut self, number: u64, offset: u64, len: u64, order: Order) {
        self.blocked |= order == Order::Barrier;
        let ordered = order != Order::Orderless;
        let at = self.held.partition_point(|h| h.offset <= offset);
        let held = Held {
            offset,
            len,
            writes: vec![number],
            ordered,
        };
        self.held.insert(at, held);
        self.merge(at);
        self.merge(at.wrapping_sub(1));
    }

    /// Puts the request at `at` and the one behind it together, if they are neighbours. (Writes that overlap have no order among themselves
    /// while both are under way, as everywhere in this crate.)
    fn merge(&mut self, at: usize) {
        let Some([first, second]) = self.held.get(at..at.saturating_add(2)) else {
            return;
        };
        let neighbours = first.offset + first.len == second.offset;
        if neighbours && first.len + second.len <= REQUEST_MAX {
            let second = self.held.remove(at + 1);
            let first = &mut self.held[at];
            first.len += second.len;
            first.writes.extend(second.writes);
            first.ordered |= second.ordered;
        }
    }

    /// The next command for the device: the lowest place first. `None`: nothing is held.
    pub fn dispatch(&mut self) -> Option<Command> {
        if self.held.is_empty() {
            return None;
        }
        let request = self.held.remove(0);
        // Reassignment: whoever leaves last ends the epoch, whichever write asked for it.
        let ends = request.ordered && self.blocked && !self.held.iter().any(|h| h.ordered);
        if ends {
            self.blocked = false;
            while !self.blocked
                && let Some((number, offset, len, order)) = self.outside.pop_front()
            {
                self.hold(number, offset, len, order);
            }
        }
        Some(Command {
            offset: request.offset,
            len: request.len,
            writes: request.writes,
            priority: match ends {
                true => Priority::Ordered,
                false => Priority::Simple,
            },
            barrier: ends,
        })
    }

    /// Writes that are inside or wait outside.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.outside.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut EpochQueue) -> Vec<Command> {
        std::iter::from_fn(|| queue.dispatch()).collect()
    }

    /// The order in which a device may end commands that it got in this order: each simple one freely between the ordered ones around it.
    /// Returns for each command the number of ordered ones that end before it.
    fn ranks(commands: &[Command]) -> Vec<usize> {
        let mut rank = 0;
        let step = |c: &Command| {
            let mine = rank;
            rank += usize::from(c.priority == Priority::Ordered);
            mine
        };
        commands.iter().map(step).collect()
    }

    /// The paper's Figure 6: w1 and w2 ordered, w3 and w5 orderless, w4 the barrier, w6 behind it.
    #[test]
    fn the_barrier_goes_to_whoever_leaves_last() {
        let mut queue = EpochQueue::default();
        let at = |n: u64| n << 20;
        let w1 = queue.add(at(9), 4096, Order::Ordered);
        let w2 = queue.add(at(1), 4096, Order::Ordered);
        let w3 = queue.add(at(2), 4096, Order::Orderless);
        let w5 = queue.add(at(5), 4096, Order::Orderless);
        let w4 = queue.add(at(4), 4096, Order::Barrier);
        let w6 = queue.add(at(0), 4096, Order::Ordered);
        let sent = all(&mut queue);
        let order: Vec<u64> = sent.iter().map(|c| c.writes[0]).collect();
        assert_eq!(order, [w2, w3, w4, w5, w1, w6]);
        let barriers: Vec<bool> = sent.iter().map(|c| c.barrier).collect();
        assert_eq!(barriers, [false, false, false, false, true, false]);
        assert_eq!(sent[4].priority, Priority::Ordered);
    }

    #[test]
    fn neighbours_of_one_epoch_are_one_command() {
        let mut queue = EpochQueue::default();
        for block in [3, 1, 2, 0] {
            queue.add(block * 4096, 4096, Order::Ordered);
        }
        queue.add(4 * 4096, 4096, Order::Barrier);
        // The next epoch's neighbour is not merged into this one.
        queue.add(5 * 4096, 4096, Order::Barrier);
        let sent = all(&mut queue);
        assert_eq!(sent.len(), 2);
        assert_eq!((sent[0].len, sent[0].barrier), (5 * 4096, true));
        assert_eq!(
            (sent[1].writes.as_slice(), sent[1].barrier),
            (&[5][..], true)
        );
    }

    #[test]
    fn orderless_writes_pass() {
        let mut queue = EpochQueue::default();
        queue.add(1 << 30, 4096, Order::Barrier);
        queue.add(2 << 30, 4096, Order::Barrier);
        let free = queue.add(0, 4096, Order::Orderless);
        assert_eq!(queue.dispatch().unwrap().writes, [free]);
        assert!(!queue.is_empty());
        let rest = all(&mut queue);
        assert!(rest.len() == 2 && rest.iter().all(|c| c.barrier));
        assert!(queue.is_empty() && queue.dispatch().is_none());
    }

    /// Random arrivals and departures: whatever the device may reorder, epochs end in order, and every write arrives once.
    #[test]
    fn epochs_keep_their_order() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let (mut queue, mut sent) = (EpochQueue::default(), Vec::new());
            let (mut epoch, mut of) = (0u64, Vec::new());
            for _ in 0..60 {
                let order = [Order::Orderless, Order::Ordered, Order::Barrier][random(3) as usize];
                queue.add(random(64) * 4096, 4096, order);
                of.push((order != Order::Orderless).then_some(epoch));
                epoch += u64::from(order == Order::Barrier);
                if random(3) == 0 {
                    sent.extend(queue.dispatch());
                }
            }
            sent.extend(all(&mut queue));
            assert!(queue.is_empty());
            let mut seen: Vec<u64> = sent.iter().flat_map(|c| c.writes.clone()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..60).collect::<Vec<_>>());
            assert_eq!(sent.iter().filter(|c| c.barrier).count() as u64, epoch);
            for (command, rank) in sent.iter().zip(ranks(&sent)) {
                for write in &command.writes {
                    if let Some(epoch) = of[*write as usize] {
                        assert_eq!(rank as u64, epoch, "write {write}");
                    }
                }
            }
        }
    }
}
