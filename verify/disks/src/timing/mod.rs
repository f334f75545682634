//! Any device, with the timing of another kind of device.
//!
//! The data goes to the inner device at once; what the model adds is when a call returns. It is a model, made to compare designs by the
//! commands that they send, not to predict a product's benchmark.

mod clock;
mod model;
mod params;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccfs_device::{Counters, Device, Pending, Ticket, Write};
use parking_lot::Mutex;

pub use clock::{Ordering, VirtualTime};
use model::{Model, Nanos};
pub use params::{ParamError, Params};

/// The last part of a pause, which is spent awake: a sleep ends late by about as much.
const AWAKE: Duration = Duration::from_micros(80);

/// A device that is as slow as its parameters say (or as slow as the inner one, whichever is slower).
pub struct Timed {
    inner: Arc<dyn Device>,
    model: Mutex<Model>,
    begun: Instant,
}

impl Timed {
    pub fn new(inner: Arc<dyn Device>, params: Params) -> Self {
        let model = Mutex::new(Model::new(params, inner.size_bytes()));
        Timed {
            inner,
            model,
            begun: Instant::now(),
        }
    }

    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Asks the model when a call that arrives now ends.
    fn ask(&self, question: impl FnOnce(&mut Model, Nanos) -> Nanos) -> Instant {
        // Under the lock, so that time does not go back from one question to the next.
        let mut model = self.model.lock();
        let now = self.begun.elapsed().as_nanos() as Nanos;
        self.begun + Duration::from_nanos(question(&mut model, now))
    }
}

impl Device for Timed {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = self.ask(|model, now| model.read(now, offset, buf.len() as u64));
        let result = self.inner.read(offset, buf);
        sleep_until(end);
        result
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let mut extents: Vec<_> = writes
            .iter()
            .map(|write| (write.offset, write.len()))
            .collect();
        let end = self.ask(|model, now| model.write(now, &mut extents));
        let ticket = self.inner.submit(writes);
        Ticket::pending(Box::new(Paused { ticket, end }))
    }

    fn flush(&self) -> io::Result<()> {
        let end = self.ask(Model::flush);
        let result = self.inner.flush();
        sleep_until(end);
        result
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = self.ask(|model, now| model.discard(now));
        let result = self.inner.discard(offset, len);
        sleep_until(end);
        result
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

/// The model without a clock: tells times instead of spending them. Calls come in order of time; all times are nanoseconds.
pub struct Virtual(Model);

impl Virtual {
    /// `size` of the device, bytes.
    pub fn new(params: Params, size: u64) -> Self {
        Virtual(Model::new(params, size))
    }

    /// When a read that arrives at `now` ends.
    pub fn read(&mut self, now: u64, offset: u64, len: u64) -> u64 {
        self.0.read(now, offset, len)
    }

    /// When the last write of a batch of (offset, length) that arrives at `now` is in the cache.
    pub fn write(&mut self, now: u64, extents: &mut [(u64, u64)]) -> u64 {
        self.0.write(now, extents)
    }

    /// When a flush that arrives at `now` ends.
    pub fn flush(&mut self, now: u64) -> u64 {
        self.0.flush(now)
    }
}

struct Paused {
    ticket: Ticket,
    end: Instant,
}

impl Pending for Paused {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let result = self.ticket.finish();
        sleep_until(self.end);
        result
    }

    fn is_ready(&self) -> bool {
        Instant::now() >= self.end && self.ticket.is_ready()
    }
}

/// Returns at `end`, to a few microseconds on an idle machine.
fn sleep_until(end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match left.checked_sub(AWAKE) {
            Some(asleep) if !asleep.is_zero() => std::thread::sleep(asleep),
            // Others may have work for this processor.
            _ => std::thread::yield_now(),
        }
    }
}
