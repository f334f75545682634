//! A journal on a simulated device, and a model of what must survive in it.

pub use ccfs_testkit::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

use ccfs_device::{AlignedBuf, SharedBuf, Slice, Write, write_all};
use ccfs_disks::{MemoryDevice, Outcome, SimDevice};
use ccfs_log::{FrameNo, Geometry, Kind, Log, Meta, Scan, Slot, TxnId};

/// Blocks that a test's journal has at least.
pub const SMALL: u64 = 16;

/// `blocks` journal blocks in up to `pieces` runs that are not in order, on a device with some room around them.
pub fn geometry(rng: &mut Rng, block_size: u32, blocks: u64, pieces: u64) -> Geometry {
    let mut cuts: Vec<u64> = (1..pieces)
        .map(|_| 1 + rng.below(blocks - 1))
        .chain([0, blocks])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut lens: Vec<(usize, u64)> = cuts.windows(2).map(|w| w[1] - w[0]).enumerate().collect();
    for i in (1..lens.len()).rev() {
        lens.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut at = 3;
    let mut runs = vec![(0, 0); lens.len()];
    for (i, len) in lens {
        runs[i] = (at, len);
        at += len + rng.below(2);
    }
    Geometry { block_size, runs }
}

/// A device full of junk with an empty jbd2 super block at the journal's start.
pub fn base_device(rng: &mut Rng, geo: &Geometry) -> MemoryDevice {
    let bs = geo.block_size as usize;
    let blocks = geo.runs.iter().map(|r| r.0 + r.1).max().unwrap() + 2;
    let dev = MemoryDevice::new(blocks * bs as u64);
    for &(pblk, len) in &geo.runs {
        dev.fill(pblk * bs as u64, len * bs as u64, rng.draw() as u8)
            .unwrap();
    }
    let mut sb = vec![0u8; bs];
    for (at, v) in [
        (0, 0xc03b_3998u32),
        (4, 4),
        (12, bs as u32),
        (16, 1024),
        (20, 1),
        (24, 1),
    ] {
        sb[at..at + 4].copy_from_slice(&v.to_be_bytes());
    }
    put(&dev, geo.runs[0].0 * bs as u64, &sb);
    dev
}

pub fn put(dev: &dyn ccfs_device::Device, offset: u64, bytes: &[u8]) {
    let part = Slice {
        buf: SharedBuf::from(AlignedBuf::from_bytes(bytes)),
        start: 0,
        len: bytes.len(),
    };
    write_all(
        dev,
        vec![Write {
            offset,
            parts: vec![part],
        }],
    )
    .unwrap();
}

/// How far a group of frames has got. The events are those of the device, before which a crash may be put.
#[derive(Clone, Debug)]
pub struct Written {
    pub slot: Slot,
    pub meta: Meta,
    pub payload: Vec<u8>,
    /// Event from which on some of it may be on the medium.
    pub submitted: Option<usize>,
    /// Event from which on all of it must be.
    pub flushed: Option<usize>,
}

impl Written {
    /// All of it is on the medium after a crash before event `at`.
    fn is_flushed(&self, at: usize) -> bool {
        self.flushed.is_some_and(|f| f <= at)
    }
}

/// A header that may be the durable one.
#[derive(Clone, Debug)]
pub struct Root {
    pub tail: FrameNo,
    pub applied: (TxnId, u64),
    /// First frame of the checkpoint that it says is home; 0: none.
    pub checkpoint: FrameNo,
    /// Events: from when on it may count, from when on it must.
    pub from: usize,
    pub done: Option<usize>,
}

/// One life of a log (from `create` or `open` to a crash), and what must be there after it.
pub struct World {
    pub geo: Geometry,
    pub sim: Arc<SimDevice>,
    pub log: Log,
    pub txns: BTreeMap<TxnId, Written>,
    pub checkpoints: Vec<Written>,
    pub roots: Vec<Root>,
    pub applied: TxnId,
    /// Every id up to here was found by a recovery or was discarded by it.
    pub settled: TxnId,
    /// What the last `open` found; it may be in frames that the model has forgotten.
    pub seen_watermark: TxnId,
    pub lives: u32,
}

impl World {
    pub fn new(rng: &mut Rng, geo: Geometry) -> World {
        let base = base_device(rng, &geo);
        let sim = Arc::new(SimDevice::new(&base));
        let log = Log::create_in(sim.clone(), geo.clone(), 1, SMALL).unwrap();
        sim.restart();
        let root = Root {
            tail: 0,
            applied: (0, 0),
            checkpoint: 0,
            from: 0,
            done: Some(0),
        };
        let (txns, checkpoints, roots) = (BTreeMap::new(), Vec::new(), vec![root]);
        World {
            geo,
            sim,
            log,
            txns,
            checkpoints,
            roots,
            applied: 0,
            settled: 0,
            seen_watermark: 0,
            lives: 0,
        }
    }

    /// All ids up to this one are durable or gone for good.
    pub fn watermark(&self) -> TxnId {
        let next = self.log.next_id();
        let open = self
            .txns
            .iter()
            .find(|(_, w)| w.flushed.is_none())
            .map_or(next, |(id, _)| *id);
        (open - 1).max(self.settled)
    }

    /// Takes a slot and encodes; nothing is written yet.
    pub fn begin(
        &mut self,
        rng: &mut Rng,
        kind: Kind,
        bytes: u64,
        dep_count: usize,
    ) -> Option<Written> {
        let deps_max = if kind == Kind::Txn {
            self.log.next_id() - 1
        } else {
            0
        };
        let dep_count = if deps_max == 0 { 0 } else { dep_count };
        let frames = self.log.frames_for(bytes, dep_count)
            + if kind == Kind::Txn {
                rng.below(8) / 7
            } else {
                0
            };
        let watermark = self.watermark();
        let slot = self.log.take_slot(frames, kind)?;
        let deps = (0..dep_count).map(|_| 1 + rng.below(deps_max)).collect();
        let payload = self.payload(rng, bytes);
        let meta = Meta {
            kind,
            id: slot.id,
            watermark,
            deps,
            flags: rng.draw() as u32,
        };
        Some(Written {
            slot,
            meta,
            payload,
            submitted: None,
            flushed: None,
        })
    }

    /// Random bytes, sometimes a copy of what lies in the log: a forgery as good as a file can hold.
    fn payload(&self, rng: &mut Rng, bytes: u64) -> Vec<u8> {
        let mut payload = vec![rng.draw() as u8; bytes as usize];
        let bs = self.geo.block_size as usize;
        if rng.below(2) == 0 {
            let pieces: u64 = self.geo.runs.iter().map(|r| r.1).max().unwrap();
            for block in payload.chunks_exact_mut(bs) {
                let &(pblk, len) = &self.geo.runs[rng.below(self.geo.runs.len() as u64) as usize];
                let at = (pblk + rng.below(len.min(pieces))) * bs as u64;
                ccfs_device::Device::read(&*self.sim, at, block).unwrap();
            }
        }
        payload
    }

    /// Submits the frames, piece by piece in random order. Returns the event before the first.
    pub fn submit(&self, rng: &mut Rng, w: &mut Written) {
        let (a, b) = w
            .payload
            .split_at(rng.below(w.payload.len() as u64 + 1) as usize);
        let mut writes = self.log.encode(&w.slot, &w.meta, &[a, b]).unwrap();
        w.submitted = Some(self.sim.events());
        while !writes.is_empty() {
            let write = writes.swap_remove(rng.below(writes.len() as u64) as usize);
            write_all(&*self.sim, vec![write]).unwrap();
        }
    }

    pub fn flush(&mut self) {
        ccfs_device::Device::flush(&*self.sim).unwrap();
        let now = self.sim.events();
        for w in self.txns.values_mut().chain(&mut self.checkpoints) {
            if w.submitted.is_some() && w.flushed.is_none() {
                w.flushed = Some(now);
            }
        }
    }

    /// A whole checkpoint: frames, flush, home (not modelled), header. `applied` may stop short of all that is durable.
    pub fn checkpoint(&mut self, rng: &mut Rng, bytes: u64) {
        let bytes = bytes.min(self.log.reserve_len() * self.log.payload_per_frame() as u64);
        let Some(mut w) = self.begin(rng, Kind::Checkpoint, bytes, 0) else {
            panic!("a checkpoint always has room")
        };
        if rng.below(8) == 0 {
            self.log.abandon(w.slot);
            return self.checkpoint(rng, bytes);
        }
        assert!(
            self.log.take_slot(1, Kind::Checkpoint).is_none(),
            "one at a time"
        );
        self.submit(rng, &mut w);
        self.checkpoints.push(w);
        self.flush();
        self.set_tail(rng);
    }

    pub fn set_tail(&mut self, rng: &mut Rng) {
        // What is below the durable tail is nobody's any more; no later crash goes back behind this call.
        let dead = self.roots.last().unwrap().tail;
        self.txns.retain(|_, w| w.slot.first >= dead);
        let top = self.watermark();
        self.applied += rng.below(top + 1 - self.applied.min(top))
            + u64::from(rng.below(2) == 0) * (top - self.applied.min(top));
        self.applied = self.applied.min(top);
        let tail = self.log.tail_after(self.applied);
        assert!(
            self.txns
                .range(self.applied + 1..)
                .all(|(_, w)| w.slot.first >= tail),
            "tail {tail} passes what is not applied"
        );
        let old = self.roots.last().unwrap().applied;
        let records = if self.applied == old.0 {
            old.1 + rng.below(3)
        } else {
            rng.below(3)
        };
        let checkpoint = self.checkpoints.last().map_or(0, |w| w.slot.first);
        let root = Root {
            tail,
            applied: (self.applied, records),
            checkpoint,
            from: self.sim.events(),
            done: None,
        };
        self.roots.push(root);
        self.log.set_tail(tail, self.applied, records).unwrap();
        let root = self.roots.last_mut().unwrap();
        root.done = Some(self.sim.events());
    }

    /// Cuts the power before event `at`, opens what is left, checks it, and goes on with it.
    pub fn crash(self, at: usize, outcome: &Outcome) -> World {
        let image = self.sim.crash_image(at, outcome);
        let sim = Arc::new(SimDevice::new(&image));
        let (log, scan) = Log::open(sim.clone(), self.geo.clone())
            .unwrap_or_else(|e| panic!("open: {e}\n{}", self.sim.describe(0, at)));
        let again = Log::open(sim.clone(), self.geo.clone()).unwrap().1;
        let counts = |s: &Scan| format!("{:?} {:?} {:?} {:?}", s.header, s.txns, s.pending, s.home);
        assert_eq!(
            counts(&scan),
            counts(&again),
            "opening changes nothing that counts"
        );
        sim.restart();
        self.adopt(at, sim, log, &scan)
    }

    /// Checks what was found after a crash before event `at`, and goes on with it.
    fn adopt(self, at: usize, sim: Arc<SimDevice>, log: Log, scan: &Scan) -> World {
        let root = self.root_of(at, scan);
        let txns = self.found_transactions(at, &log, scan, &root);
        self.check_watermark(at, scan, &root);
        assert!(txns.keys().all(|&id| id < log.next_id()) && log.next_id() > scan.watermark);
        assert!(txns.values().all(|w| w.slot.first
            + log.frames_for(w.payload.len() as u64, w.meta.deps.len())
            <= log.head()));
        let checkpoints = self.found_checkpoints(at, &log, scan, &root);
        let applied = root.applied.0;
        let roots = vec![Root {
            from: 0,
            done: Some(0),
            ..root
        }];
        let settled = log.next_id() - 1;
        World {
            geo: self.geo,
            sim,
            log,
            txns,
            checkpoints,
            roots,
            applied,
            settled,
            seen_watermark: scan.watermark,
            lives: self.lives + 1,
        }
    }

    /// The root that the header says: none older than the last that was durable.
    fn root_of(&self, at: usize, scan: &Scan) -> Root {
        let h = &scan.header;
        let header = (
            h.tail,
            (h.applied_id, h.applied_records),
            h.checkpoint_seq * h.area_len,
        );
        let must = self
            .roots
            .iter()
            .rposition(|r| r.done.is_some_and(|d| d <= at))
            .expect("a root");
        let fits = |r: &&Root| {
            (r.tail, r.applied, r.checkpoint) == header && (r.from < at || r.done == Some(0))
        };
        self.roots[must..]
            .iter()
            .rev()
            .find(fits)
            .unwrap_or_else(|| panic!("header {header:?}: {:?}", self.roots))
            .clone()
    }

    /// The transactions found: all were written, and none that was flushed and is not home is lost.
    fn found_transactions(
        &self,
        at: usize,
        log: &Log,
        scan: &Scan,
        root: &Root,
    ) -> BTreeMap<u64, Written> {
        let mut txns = BTreeMap::new();
        for found in &scan.txns {
            let Some(w) = self.txns.get(&found.meta.id) else {
                panic!("{found:?} was never given out, or was dead")
            };
            assert_eq!((&found.meta, found.first), (&w.meta, w.slot.first));
            assert!(
                w.submitted.is_some_and(|s| s < at || w.flushed == Some(0)),
                "{found:?} was not written yet"
            );
            assert!(
                log.read_payload(found).unwrap() == w.payload,
                "payload of {}",
                w.meta.id
            );
            txns.insert(
                found.meta.id,
                Written {
                    submitted: Some(0),
                    flushed: Some(0),
                    ..w.clone()
                },
            );
        }
        for w in self
            .txns
            .values()
            .filter(|w| w.is_flushed(at))
            .filter(|w| w.slot.first >= root.tail)
        {
            assert!(
                txns.contains_key(&w.meta.id),
                "transaction {} was flushed and is lost: {:?}",
                w.meta.id,
                scan.torn
            );
        }
        txns
    }

    /// The watermark is one that a flushed frame has at least, and that a submitted one has at most.
    fn check_watermark(&self, at: usize, scan: &Scan, root: &Root) {
        let all = || self.txns.values().chain(&self.checkpoints);
        let newest = self.checkpoints.iter().rfind(|w| w.is_flushed(at));
        let low = all()
            .filter(|w| w.is_flushed(at))
            .filter(|w| w.slot.kind != Kind::Checkpoint && w.slot.first >= root.tail)
            .chain(newest)
            .map(|w| w.meta.watermark)
            .max()
            .unwrap_or(0);
        let high = all()
            .filter(|w| w.submitted.is_some_and(|s| s < at || s == 0))
            .map(|w| w.meta.watermark)
            .max()
            .unwrap_or(0);
        assert!(
            scan.watermark >= low
                && scan.watermark <= high.max(scan.header.applied_id).max(self.seen_watermark),
            "{low} {} {high}",
            scan.watermark
        );
    }

    /// The checkpoints found: both were written, and none that was flushed is lost.
    fn found_checkpoints(&self, at: usize, log: &Log, scan: &Scan, root: &Root) -> Vec<Written> {
        let mut checkpoints = Vec::new();
        let shown = [&scan.home, &scan.pending];
        for found in shown.into_iter().flatten() {
            let same = |w: &&Written| {
                w.slot.first == found.first
                    && w.payload == log.read_payload(found).unwrap()
                    && w.meta == found.meta
            };
            let w = self
                .checkpoints
                .iter()
                .rfind(same)
                .expect("a checkpoint that was written");
            checkpoints.push(Written {
                submitted: Some(0),
                flushed: Some(0),
                ..w.clone()
            });
        }
        let newest = self.checkpoints.iter().rfind(|w| w.is_flushed(at));
        let newest = newest.map_or(0, |w| w.slot.first);
        assert!(
            checkpoints.last().map_or(0, |w| w.slot.first) >= newest,
            "a flushed checkpoint is lost"
        );
        let home = root.checkpoint;
        assert!(
            scan.home.as_ref().is_none_or(|f| f.first == home)
                && scan.pending.as_ref().is_none_or(|f| f.first > home)
        );
        checkpoints
    }
}
