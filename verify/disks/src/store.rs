//! A store on another machine, simulated: its connections break at chosen requests, it is started again without what was not flushed, and it
//! carries out late what came through a connection that is gone.
use crate::MemoryDevice;
use crate::sim::outcome::mix;
use ccfs_device::{AlignedBuf, Device, SECTOR, SharedBuf, Write, write_all};
use ccfs_remote::{Answer, Done, Geometry, Refusal, Request, Session, Store};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Done,
    /// The connection breaks before it is carried out.
    LostBefore,
    /// It is carried out, and the connection breaks before the answer.
    LostAfter,
    /// The connection breaks, and it is carried out so much later all the same. Never, where that would be after the second time: who
    /// waits for so long (as `Settings::settle` says) finds everything done.
    LostAndLate(Duration, Duration),
    /// The server is started again, before it; of what was not flushed each sector is kept or lost by chance.
    Restart,
    /// The same, after it was carried out and before the answer.
    RestartAfter,
    /// It is carried out, and the answer comes so much later.
    AnsweredLate(Duration),
    /// It is carried out, and never answered.
    Silent,
    /// It is refused with this errno.
    Refused(i32),
}

type Plan = dyn Fn(u64, &Request) -> Fate + Send + Sync;

/// The store: what outlives its connections.
pub struct SimStore {
    /// What reads see.
    visible: RwLock<MemoryDevice>,
    unsafe_part: Mutex<Unsafe>,
    plan: Box<Plan>,
    min_io: u64,
    requests: AtomicU64,
    refused: AtomicU32,
    late: AtomicU32,
    connections: AtomicU64,
}

/// What a restart loses.
struct Unsafe {
    durable: MemoryDevice,
    unflushed: Vec<(u64, SharedBuf)>,
    /// Of the next restart.
    seed: u64,
}

impl SimStore {
    /// Zeros; `plan` says what becomes of each request, by its number from the beginning on.
    pub fn new(
        bytes: u64,
        seed: u64,
        plan: impl Fn(u64, &Request) -> Fate + Send + Sync + 'static,
    ) -> Arc<SimStore> {
        Self::with_units(SECTOR, bytes, seed, plan)
    }

    /// As `new`, of a store that takes whole units only.
    pub fn with_units(
        min_io: u64,
        bytes: u64,
        seed: u64,
        plan: impl Fn(u64, &Request) -> Fate + Send + Sync + 'static,
    ) -> Arc<SimStore> {
        Arc::new(SimStore {
            min_io,
            visible: RwLock::new(MemoryDevice::new(bytes)),
            unsafe_part: Mutex::new(Unsafe {
                durable: MemoryDevice::new(bytes),
                unflushed: Vec::new(),
                seed,
            }),
            plan: Box::new(plan),
            requests: AtomicU64::new(0),
            refused: AtomicU32::new(0),
            late: AtomicU32::new(0),
            connections: AtomicU64::new(0),
        })
    }

    /// The next connections are refused.
    pub fn refuse_connections(&self, number: u32) {
        self.refused.store(number, Ordering::Relaxed);
    }

    /// So many connections were made.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Waits for what is carried out late.
    pub fn settle(&self) {
        while self.late.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A way to it, for who opens it.
    pub fn way(self: &Arc<Self>) -> Box<dyn Store> {
        Box::new(Way(self.clone()))
    }

    /// What a restart at this moment would leave: a device of its own.
    pub fn after_a_crash(&self) -> MemoryDevice {
        let part = self.unsafe_part.lock();
        let left = part.durable.snapshot();
        part.lose(&left);
        left
    }

    /// What it holds now.
    pub fn content(&self) -> MemoryDevice {
        self.visible.read().snapshot()
    }

    fn restart(&self) {
        let mut visible = self.visible.write();
        let mut part = self.unsafe_part.lock();
        part.seed = part.lose(&part.durable);
        part.unflushed.clear();
        *visible = part.durable.snapshot();
    }

    fn carry_out(&self, request: &Request) -> Answer {
        self.carry_out_on(&self.visible.read(), request)
    }

    /// Beside nothing else, and before `end` or never.
    fn carry_out_before(&self, end: Instant, request: &Request) {
        let visible = self.visible.write();
        if Instant::now() < end {
            let _ = self.carry_out_on(&visible, request);
        }
    }

    /// `visible` is held: what comes later is later in all that there is.
    fn carry_out_on(&self, visible: &MemoryDevice, request: &Request) -> Answer {
        match request {
            Request::Read { offset, len } => {
                let mut data = AlignedBuf::zeroed(*len);
                let read = visible.read(*offset, &mut data);
                read.map(|()| Some(data)).map_err(Refusal::Store)
            }
            Request::Write { offset, data } => {
                put(visible, *offset, AlignedBuf::from_bytes(data));
                let mut part = self.unsafe_part.lock();
                part.unflushed.push((*offset, data.clone()));
                Ok(None)
            }
            Request::Flush => {
                let mut part = self.unsafe_part.lock();
                for (offset, data) in std::mem::take(&mut part.unflushed) {
                    put(&part.durable, offset, AlignedBuf::from_bytes(&data));
                }
                Ok(None)
            }
            // Nothing of value: it may stay.
            Request::Discard { .. } => Ok(None),
        }
    }

    fn later(self: &Arc<Self>, after: Duration, work: impl FnOnce(&SimStore) + Send + 'static) {
        self.late.fetch_add(1, Ordering::AcqRel);
        let store = self.clone();
        std::thread::spawn(move || {
            std::thread::sleep(after);
            work(&store);
            store.late.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

impl Unsafe {
    /// Gives `to` what is kept of what was not flushed; the seed for the next time.
    fn lose(&self, to: &MemoryDevice) -> u64 {
        let mut number = 0;
        for (offset, data) in &self.unflushed {
            let (sectors, _) = data.as_chunks::<{ SECTOR as usize }>();
            for (at, sector) in (*offset..).step_by(SECTOR as usize).zip(sectors) {
                if mix(self.seed, number) & 1 == 0 {
                    put(to, at, AlignedBuf::from_bytes(sector));
                }
                number += 1;
            }
        }
        mix(self.seed, number)
    }
}

fn put(device: &MemoryDevice, offset: u64, data: AlignedBuf) {
    write_all(device, vec![Write::new(offset, data)]).expect("within the store");
}

struct Way(Arc<SimStore>);

impl Store for Way {
    fn connect(&self, _wait: Duration, _patience: Duration) -> io::Result<Arc<dyn Session>> {
        let store = &self.0;
        let refused = store.refused.load(Ordering::Relaxed);
        if refused > 0 {
            store.refused.store(refused - 1, Ordering::Relaxed);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        store.connections.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(SimSession {
            store: store.clone(),
            shared: Arc::new(Shared {
                is_gone: AtomicBool::new(false),
                waiting: Mutex::default(),
            }),
        }))
    }

    fn name(&self) -> &str {
        "sim:store"
    }

    fn kind(&self) -> &'static str {
        "sim"
    }
}

struct SimSession {
    store: Arc<SimStore>,
    shared: Arc<Shared>,
}

struct Shared {
    is_gone: AtomicBool,
    /// Answers that have not come.
    waiting: Mutex<HashMap<u64, Done>>,
}

impl Shared {
    fn answer(&self, number: u64, answer: Answer) {
        let done = self.waiting.lock().remove(&number);
        if let Some(done) = done {
            done(answer);
        }
    }

    fn go(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for done in waiting.into_values() {
            done(Err(lost()));
        }
    }
}

fn lost() -> Refusal {
    Refusal::Lost(io::ErrorKind::ConnectionReset.into())
}

impl Session for SimSession {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.store.visible.read().size_bytes(),
            min_io: self.store.min_io,
            max_io: 1 << 20,
            read_only: false,
            has_cache: true,
            flushes: true,
            discards: true,
        }
    }

    fn start(&self, request: Request, done: Done) {
        if self.shared.is_gone.load(Ordering::SeqCst) {
            return done(Err(lost()));
        }
        let store = &self.store;
        let number = store.requests.fetch_add(1, Ordering::SeqCst);
        let fate = (store.plan)(number, &request);
        self.shared.waiting.lock().insert(number, done);
        match fate {
            Fate::Done => {
                let answer = store.carry_out(&request);
                self.shared.answer(number, answer);
            }
            Fate::LostBefore => self.shared.go(),
            Fate::LostAfter => {
                let _ = store.carry_out(&request);
                self.shared.go();
            }
            Fate::LostAndLate(after, within) => {
                // Before the client knows of it, and begins to wait.
                let end = Instant::now() + within;
                store.later(after, move |store| store.carry_out_before(end, &request));
                self.shared.go();
            }
            Fate::Restart => {
                store.restart();
                self.shared.go();
            }
            Fate::RestartAfter => {
                let _ = store.carry_out(&request);
                store.restart();
                self.shared.go();
            }
            Fate::AnsweredLate(after) => {
                let answer = store.carry_out(&request);
                let shared = self.shared.clone();
                store.later(after, move |_| shared.answer(number, answer));
            }
            Fate::Silent => {
                let _ = store.carry_out(&request);
            }
            Fate::Refused(errno) => {
                let e = io::Error::from_raw_os_error(errno);
                self.shared.answer(number, Err(Refusal::Store(e)));
            }
        }
    }

    fn close(&self, _told: bool) {
        self.shared.go();
    }
}
