//! A device that notes in a trace what is done to it.
use crate::trace::TraceWriter;
use ccfs_device::{Counters, Device, Pending, Slice, Ticket, Write};
use std::io;
use std::sync::Arc;

/// Any device, recorded. A write is noted when it has ended, a flush too.
pub struct Recorder {
    inner: Arc<dyn Device>,
    trace: Arc<TraceWriter>,
}

impl Recorder {
    pub fn new(inner: Arc<dyn Device>, trace: Arc<TraceWriter>) -> Self {
        Recorder { inner, trace }
    }
}

impl Device for Recorder {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let under_way = UnderWay {
            written: writes.iter().map(|w| (w.offset, w.parts.clone())).collect(),
            seen: self.trace.position(),
            trace: self.trace.clone(),
            ticket: self.inner.submit(writes),
        };
        Ticket::pending(Box::new(under_way))
    }

    fn flush(&self) -> io::Result<()> {
        let seen = self.trace.position();
        self.inner.flush()?;
        self.trace.flush(seen);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let seen = self.trace.position();
        self.inner.discard(offset, len)?;
        self.trace.discard(offset, len, seen);
        Ok(())
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

struct UnderWay {
    ticket: Ticket,
    written: Vec<(u64, Vec<Slice>)>,
    seen: u64,
    trace: Arc<TraceWriter>,
}

impl Pending for UnderWay {
    fn finish(self: Box<Self>) -> io::Result<()> {
        self.ticket.finish()?;
        for (offset, parts) in &self.written {
            let parts: Vec<&[u8]> = parts.iter().map(Slice::bytes).collect();
            self.trace.write(*offset, &parts, self.seen);
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.ticket.is_ready()
    }
}
