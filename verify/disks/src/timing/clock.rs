//! A device in virtual time: it waits for nothing, and says how long everything would have taken. The same calls give the same times on any
//! machine, however busy. For one caller at a time: its waits move the clock on, and so does what it says that its own work takes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ccfs_device::{Counters, Device, Pending, Ticket, Write};
use parking_lot::Mutex;

use super::Params;
use super::model::{Model, Nanos};

/// What the device is asked to do about order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// It flushes, and keeps no order.
    Flush,
    /// Flushes cost nothing and do nothing (a mount with `nobarrier`): nothing is safe, but transfers are waited for.
    NoFlush,
    /// It has a barrier command (in-order recovery); an epoch's transfer takes so many percent longer.
    Epochs { percent: u32 },
}

struct Clock {
    model: Model,
    now: Nanos,
    /// When the batches under way end, and their commands.
    open: Vec<(Nanos, u64)>,
    /// Commands under way after each submission, summed up; and how many submissions there were.
    depths: (u64, u64),
    depth_max: u64,
}

/// See the module.
pub struct VirtualTime {
    inner: Arc<dyn Device>,
    clock: Arc<Mutex<Clock>>,
    ordering: Ordering,
}

struct Transfer {
    ticket: Ticket,
    end: Nanos,
    clock: Arc<Mutex<Clock>>,
}

impl Pending for Transfer {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let mut clock = self.clock.lock();
        clock.now = clock.now.max(self.end);
        drop(clock);
        self.ticket.finish()
    }

    fn is_ready(&self) -> bool {
        let due = self.clock.lock().now >= self.end;
        due && self.ticket.is_ready()
    }
}

impl VirtualTime {
    pub fn new(inner: Arc<dyn Device>, params: Params, ordering: Ordering) -> Self {
        let clock = Clock {
            model: Model::new(params, inner.size_bytes()),
            now: 0,
            open: Vec::new(),
            depths: (0, 0),
            depth_max: 0,
        };
        VirtualTime {
            inner,
            clock: Arc::new(Mutex::new(clock)),
            ordering,
        }
    }

    /// Time since the device was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.lock().now)
    }

    /// When all transfers that are under way have ended.
    pub fn drained(&self) -> Duration {
        let clock = self.clock.lock();
        let ends = clock.open.iter().map(|(end, _)| *end);
        Duration::from_nanos(ends.fold(clock.now, Nanos::max))
    }

    /// The caller works for so long.
    pub fn spend(&self, time: Duration) {
        self.clock.lock().now += time.as_nanos() as Nanos;
    }

    /// Commands under way right after a submission, on average and at most, since the last call.
    pub fn queue_depth(&self) -> (f64, u64) {
        let mut clock = self.clock.lock();
        let (sum, count) = std::mem::take(&mut clock.depths);
        (
            sum as f64 / count.max(1) as f64,
            std::mem::take(&mut clock.depth_max),
        )
    }

    fn start(&self, writes: Vec<Write>, percent: u64) -> Ticket {
        let mut extents: Vec<_> = writes.iter().map(|w| (w.offset, w.len())).collect();
        let mut clock = self.clock.lock();
        let now = clock.now;
        let end = clock.model.write(now, &mut extents);
        let end = end + (end - now) * percent / 100;
        clock.open.retain(|(end, _)| *end > now);
        clock.open.push((end, extents.len() as u64));
        let depth = clock.open.iter().map(|(_, commands)| commands).sum();
        clock.depths.0 += depth;
        clock.depths.1 += 1;
        clock.depth_max = clock.depth_max.max(depth);
        drop(clock);
        Ticket::pending(Box::new(Transfer {
            ticket: self.inner.submit(writes),
            end,
            clock: self.clock.clone(),
        }))
    }
}

impl Device for VirtualTime {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut clock = self.clock.lock();
        let now = clock.now;
        clock.now = clock.model.read(now, offset, buf.len() as u64);
        drop(clock);
        self.inner.read(offset, buf)
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.start(writes, 0)
    }

    fn submit_epoch(&self, writes: Vec<Write>) -> Ticket {
        match self.ordering {
            Ordering::Epochs { percent } => self.start(writes, percent.into()),
            _ => self.start(writes, 0),
        }
    }

    fn keeps_order(&self) -> bool {
        matches!(self.ordering, Ordering::Epochs { .. })
    }

    fn flush(&self) -> io::Result<()> {
        if self.ordering != Ordering::NoFlush {
            let mut clock = self.clock.lock();
            let now = clock.now;
            clock.now = clock.model.flush(now);
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn min_io(&self) -> u64 {
        self.inner.min_io()
    }
}
