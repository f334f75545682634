//! The model of a device's time, without any clock of its own: it is told the time and answers with times.
//!
//! A device has `queue_depth` slots, one channel to its medium, a head, and a cache. A command takes the slot that is free first, then
//! its command and seek time; commands in different slots overlap there. The transfers follow one after the other on the channel.
//!
//! A device with seek times has a head that brings the cache home in order of position: to a near place by passing over what lies between, to
//! a far one by a seek. Others pay for each run alike.

use std::collections::BTreeMap;

use super::Params;

/// Nanoseconds since the device was made.
pub(super) type Nanos = u64;

const US: u64 = 1000;
const HOUR: Nanos = 3_600_000_000 * US;

pub(super) struct Model {
    params: Params,
    size: u64,
    /// When each slot is free.
    slots: Vec<Nanos>,
    /// When the channel is free.
    channel: Nanos,
    /// No command begins earlier.
    barrier: Nanos,
    /// Where the last transfer to or from the medium ended, in bytes.
    head: u64,
    /// Written but not flushed.
    dirty_bytes: u64,
    dirty_runs: u64,
    /// Where the last write ended, in bytes.
    run_end: Option<u64>,
    /// What is dirty on a device with a head: offset -> length, bytes.
    extents: BTreeMap<u64, u64>,
}

impl Model {
    pub fn new(params: Params, size: u64) -> Self {
        Model {
            slots: vec![0; params.queue_depth.max(1) as usize],
            params,
            size: size.max(1),
            channel: 0,
            barrier: 0,
            head: 0,
            dirty_bytes: 0,
            dirty_runs: 0,
            run_end: None,
            extents: BTreeMap::new(),
        }
    }

    /// When a read that arrives at `now` ends.
    pub fn read(&mut self, now: Nanos, offset: u64, len: u64) -> Nanos {
        let seek = self.seek(offset);
        self.head = offset.saturating_add(len);
        let command = u64::from(self.params.read_command_us) * US + seek;
        self.command(now, command, cost(len, self.params.read_kib_ns))
    }

    /// When the last write of a batch of (offset, length) that arrives at `now` is in the cache.
    pub fn write(&mut self, now: Nanos, extents: &mut [(u64, u64)]) -> Nanos {
        // The device orders what it has at once.
        extents.sort_unstable();
        let mut end = now;
        for &mut (offset, len) in extents {
            let mut transfer = cost(len, self.params.write_kib_ns);
            if self.run_end != Some(offset) {
                self.dirty_runs += 1;
            }
            self.run_end = Some(offset.saturating_add(len));
            self.dirty_bytes += len;
            if self.has_head() {
                self.extents
                    .entry(offset)
                    .and_modify(|old| *old = len.max(*old))
                    .or_insert(len);
            }
            let over = self
                .dirty_bytes
                .saturating_sub(u64::from(self.params.cache_kib) * 1024);
            if over > 0 {
                // The cache is full: as much as comes in has to go out first, with its share of the runs.
                let share = self.dirty_runs.saturating_mul(over) / self.dirty_bytes;
                transfer += self.home(over, share);
                self.dirty_bytes -= over;
                self.dirty_runs -= share;
            }
            let command = u64::from(self.params.write_command_us) * US;
            end = end.max(self.command(now, command, transfer));
        }
        end
    }

    /// When a flush that arrives at `now` ends. It waits for all commands before it.
    pub fn flush(&mut self, now: Nanos) -> Nanos {
        let begin = self
            .slots
            .iter()
            .fold(now.max(self.channel), |latest, slot| latest.max(*slot));
        let home = self.home(self.dirty_bytes, self.dirty_runs);
        let end = begin + u64::from(self.params.flush_us) * US + home;
        (self.dirty_bytes, self.dirty_runs, self.run_end) = (0, 0, None);
        self.extents.clear();
        self.channel = end;
        self.barrier = end + u64::from(self.params.barrier_us) * US;
        end
    }

    pub fn discard(&mut self, now: Nanos) -> Nanos {
        self.command(now, u64::from(self.params.write_command_us) * US, 0)
    }

    fn has_head(&self) -> bool {
        self.params.seek_max_us > 0
    }

    /// Time to bring cached data home.
    fn home(&mut self, bytes: u64, runs: u64) -> Nanos {
        let runs = runs.saturating_mul(u64::from(self.params.flush_run_us) * US);
        if !self.has_head() {
            return cost(bytes, self.params.flush_kib_ns) + runs.min(HOUR);
        }
        let (mut nanos, mut left) = (runs.min(HOUR), bytes);
        while left > 0 {
            let Some((offset, len)) = self.next_extent() else {
                break;
            };
            let passing = cost(offset.abs_diff(self.head), self.params.flush_kib_ns);
            nanos += self.seek(offset).min(passing) + cost(len, self.params.flush_kib_ns);
            self.head = offset.saturating_add(len);
            left = left.saturating_sub(len);
        }
        nanos
    }

    /// Takes the dirty extent that the head meets next on its way up, then from the beginning.
    fn next_extent(&mut self) -> Option<(u64, u64)> {
        let ahead = self.extents.range(self.head..).next();
        let (&offset, _) = ahead.or_else(|| self.extents.iter().next())?;
        self.extents.remove_entry(&offset)
    }

    fn command(&mut self, now: Nanos, command: Nanos, transfer: Nanos) -> Nanos {
        let slot = self
            .slots
            .iter_mut()
            .min()
            .expect("there is at least one slot");
        let ready = now.max(*slot).max(self.barrier) + command;
        let end = ready.max(self.channel) + transfer;
        *slot = end;
        self.channel = self.channel.max(if transfer > 0 { end } else { 0 });
        end
    }

    /// Time for the head to reach `offset`: none where it is, else it grows with the root of the distance.
    fn seek(&self, offset: u64) -> Nanos {
        let distance = offset.abs_diff(self.head);
        if distance == 0 {
            return 0;
        }
        let (min, max) = (
            u64::from(self.params.seek_min_us) * US,
            u64::from(self.params.seek_max_us) * US,
        );
        let part = (distance as f64 / self.size as f64).min(1.0).sqrt();
        min + (max.saturating_sub(min) as f64 * part) as u64
    }
}

/// Transfer time, at most an hour: absurd parameters must not overflow the clock.
fn cost(bytes: u64, kib_ns: u32) -> Nanos {
    let nanos = u128::from(bytes) * u128::from(kib_ns) / 1024;
    nanos.min(u128::from(HOUR)) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Params {
        Params {
            queue_depth: 4,
            read_command_us: 100,
            write_command_us: 10,
            read_kib_ns: 1000,
            write_kib_ns: 1000,
            seek_min_us: 0,
            seek_max_us: 0,
            flush_us: 500,
            flush_run_us: 50,
            flush_kib_ns: 2000,
            cache_kib: 1024,
            barrier_us: 20,
        }
    }

    #[test]
    fn commands_overlap_and_transfers_do_not() {
        let mut model = Model::new(params(), 1 << 30);
        let ends: Vec<_> = (0..5)
            .map(|index| model.read(0, index << 20, 4096) / US)
            .collect();
        // Four at once, 4 us apart; the fifth waits for the first slot.
        assert_eq!(ends, [104, 108, 112, 116, 208]);
    }

    #[test]
    fn one_slot_is_one_at_a_time() {
        let mut model = Model::new(
            Params {
                queue_depth: 1,
                ..params()
            },
            1 << 30,
        );
        assert_eq!(
            [0, 1, 2].map(|index| model.read(0, index * 4096, 4096) / US),
            [104, 208, 312]
        );
    }

    #[test]
    fn a_flush_pays_for_what_is_dirty() {
        let mut model = Model::new(params(), 1 << 30);
        assert_eq!(model.flush(0) / US, 500);
        // Two runs: the batch is in order after sorting.
        let begin = 10_000 * US;
        let mut batch = [(8192, 4096), (1 << 20, 4096), (4096, 4096)];
        let written = model.write(begin, &mut batch);
        assert_eq!((written - begin) / US, 10 + 3 * 4);
        assert_eq!((model.flush(begin) - written) / US, 500 + 24 + 2 * 50);
        // Nothing begins before the barrier has passed.
        let flushed = model.channel;
        assert_eq!((model.read(begin, 0, 4096) - flushed) / US, 20 + 104);
        let again = model.flush(begin + 10_000 * US);
        assert_eq!((again - begin) / US, 10_500);
    }

    #[test]
    fn a_full_cache_slows_writes_down() {
        let mut model = Model::new(params(), 1 << 30);
        let quick = model.write(0, &mut [(0, 1 << 20)]);
        assert_eq!(quick / US, 10 + 1024);
        let slow = model.write(quick, &mut [(1 << 20, 1 << 20)]);
        assert_eq!((slow - quick) / US, 10 + 1024 + 2048);
        assert_eq!(model.dirty_bytes, 1 << 20);
    }

    #[test]
    fn far_seeks_take_longer() {
        let mut model = Model::new(
            Params {
                seek_min_us: 1000,
                seek_max_us: 9000,
                ..params()
            },
            1 << 30,
        );
        model.read(0, 0, 4096);
        assert_eq!(model.seek(4096), 0);
        let near = model.seek(8192);
        let far = model.seek(1 << 29);
        assert!(near > 1000 * US && near < 1100 * US, "{near}");
        assert!(far > 6000 * US && far < 7000 * US, "{far}");
        assert!(model.seek(u64::MAX) <= 9000 * US);
    }

    /// The disk of the ccfs paper (its Table 1): 25,600 random writes in a file of 2 GB, in order 192.56 s, sorted 25.82 s.
    #[test]
    fn the_hard_disk_sorts_as_the_paper_s_does() {
        let params = Params::preset("hdd").unwrap();
        let mut state = 1u64;
        let places: Vec<u64> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % (2 << 18) * 4096
        })
        .take(25_600)
        .collect();
        let mut model = Model::new(params.clone(), 160_000_000_000);
        let in_order = places.iter().fold(0, |now, place| {
            let written = model.write(now, &mut [(*place, 4096)]);
            model.flush(written)
        });
        let mut model = Model::new(params, 160_000_000_000);
        let mut batch: Vec<_> = places.iter().map(|place| (*place, 4096)).collect();
        let written = model.write(0, &mut batch);
        let sorted = model.flush(written);
        let within = |nanos: u64, seconds: f64| (nanos as f64 / 1e9 / seconds - 1.0).abs() < 0.2;
        assert!(within(in_order, 192.56), "{in_order}");
        assert!(within(sorted, 25.82), "{sorted}");
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let mut model = Model::new(
            Params {
                read_kib_ns: u32::MAX,
                ..params()
            },
            0,
        );
        assert!(model.read(0, u64::MAX, 1 << 40) > 0);
    }
}
