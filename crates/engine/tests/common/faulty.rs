//! A device over another one that fails, stops, is slow or calls back, as a test wants it.
use ccfs_device::{Counters, Device, Slice, Ticket, Write};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Hook = Box<dyn FnMut(&[u8]) + Send>;

pub struct Faulty {
    inner: Arc<dyn Device>,
    bytes: AtomicI64,
    loud: AtomicBool,
    /// The next flush fails, and takes long enough for others to wait behind it.
    pub fail_flush: AtomicBool,
    /// A flush has failed.
    pub failed: AtomicBool,
    /// Time that a flush takes, microseconds.
    pub flush_us: AtomicU64,
    pub fail_reads: AtomicBool,
    pub panic_reads: AtomicBool,
    /// Reads wait while this is set; how many do.
    pub hold_reads: AtomicBool,
    pub held: AtomicU64,
    /// Flushes wait while this is set.
    pub hold_flushes: AtomicBool,
    hook: Mutex<Option<Hook>>,
}

impl Faulty {
    /// Works as the other one does.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            bytes: AtomicI64::new(i64::MAX),
            loud: AtomicBool::new(true),
            fail_flush: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            flush_us: AtomicU64::new(0),
            fail_reads: AtomicBool::new(false),
            panic_reads: AtomicBool::new(false),
            hold_reads: AtomicBool::new(false),
            held: AtomicU64::new(0),
            hold_flushes: AtomicBool::new(false),
            hook: Mutex::new(None),
        })
    }

    /// After `bytes` more bytes nothing arrives any more, and (`loud`) the device says so.
    pub fn cut_after(&self, bytes: i64, loud: bool) {
        self.bytes.store(bytes, SeqCst);
        self.loud.store(loud, SeqCst);
    }

    /// Calls `f` with the first bytes of every write after it was submitted, until it is replaced. Not called from within itself.
    pub fn on_write(&self, f: impl FnMut(&[u8]) + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(f));
    }

    fn fail(what: &str) -> io::Error {
        io::Error::other(what.to_string())
    }
}

impl Device for Faulty {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(!self.panic_reads.load(SeqCst), "the test's panic");
        self.held.fetch_add(1, SeqCst);
        while self.hold_reads.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.held.fetch_sub(1, SeqCst);
        if self.fail_reads.load(SeqCst) {
            return Err(Self::fail("read"));
        }
        self.inner.read(offset, buf)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let first: Vec<Vec<u8>> = writes
            .iter()
            .filter_map(|w| w.parts.first())
            .map(|p| p.buf[p.start..p.start + p.len.min(16)].to_vec())
            .collect();
        let mut lost = false;
        let mut kept = Vec::new();
        for w in writes {
            let mut parts = Vec::new();
            for p in w.parts {
                let left = self.bytes.fetch_sub(p.len as i64, SeqCst).max(0) as usize;
                let len = p.len.min(left / 512 * 512);
                lost |= len < p.len;
                if len > 0 {
                    parts.push(Slice { len, ..p });
                }
            }
            if !parts.is_empty() {
                kept.push(Write {
                    offset: w.offset,
                    parts,
                });
            }
        }
        let done = ccfs_device::write_all(&*self.inner, kept);
        let hook = self.hook.lock().unwrap().take();
        if let Some(mut hook) = hook {
            first.iter().for_each(|bytes| hook(bytes));
            self.hook.lock().unwrap().get_or_insert(hook);
        }
        Ticket::done(if lost && self.loud.load(SeqCst) {
            Err(Self::fail("cut"))
        } else {
            done
        })
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.inner.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        if self.fail_flush.swap(false, SeqCst) {
            std::thread::sleep(Duration::from_millis(200));
            self.failed.store(true, SeqCst);
            return Err(Self::fail("flush"));
        }
        if self.loud.load(SeqCst) && self.bytes.load(SeqCst) < 0 {
            return Err(Self::fail("cut"));
        }
        while self.hold_flushes.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let us = self.flush_us.load(SeqCst);
        if us > 0 {
            std::thread::sleep(Duration::from_micros(us));
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
        false
    }
}
