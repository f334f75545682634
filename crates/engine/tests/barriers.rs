//! Order without durability (C13): what a barrier closes, how it goes out, and what a power cut leaves.
mod common;
use ccfs_device::{AlignedBuf, Device, Ticket, Write, write_all};
use ccfs_disks::{MemoryDevice, Outcome, Params, Plan, SimDevice, Timed};
use ccfs_engine::*;
use common::*;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

fn small() -> MemoryDevice {
    image(&["-b", "4096", "-J", "size=8", "-g", "8192"], "96M")
}

fn gathering(gather: usize) -> Options {
    Options { gather, ..quiet() }
}

fn barrier(v: &Volume, stream: u64, ino: Ino) {
    v.barrier(&cx(stream), SyncCall::File(ino), 0).unwrap();
}

fn append(v: &Volume, stream: u64, ino: Ino, at: u64, byte: u8, len: usize) {
    let data = vec![byte; len];
    v.write(&cx(stream), ino, at, &data, WriteFlags::default())
        .unwrap();
}

fn read(v: &Volume, ino: Ino, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    v.read(ino, 0, len, &mut out).unwrap();
    out
}

fn create(v: &Volume, stream: u64, name: &[u8]) -> Ino {
    v.mknod(&cx(stream), ROOT_INO, name, 0o100644, 0)
        .unwrap()
        .ino
}

/// Bytes that go into the log, where there is one.
fn in_log(bytes: u64) -> u64 {
    if flash::chosen() { 0 } else { bytes }
}

/// A barrier neither flushes nor waits; a sync after many makes all of them durable with one flush.
#[test]
fn many_barriers_and_one_flush() {
    let dev = Arc::new(small());
    let v = mount_on(dev.clone(), gathering(16)).unwrap();
    let f = create(&v, 5, b"f");
    v.fsync(&cx(5), f, false).unwrap();
    let before = v.status().counters;
    for i in 0..160 {
        append(&v, 5, f, i * 4096, i as u8 + 1, 4096);
        barrier(&v, 5, f);
    }
    let after = v.status().counters;
    assert_eq!(after.barriers - before.barriers, 160);
    assert_eq!(after.device_flushes, before.device_flushes);
    // Ten bundles of sixteen: each takes one block of the log, not sixteen, or one transaction of the flash.
    assert_eq!(after.commits - before.commits, 10);
    assert_eq!(after.logged_bytes - before.logged_bytes, in_log(10 * 4096));
    assert_eq!(after.direct_bytes - before.direct_bytes, 160 * 4096);
    append(&v, 5, f, 160 * 4096, 200, 100);
    v.fsync(&cx(5), f, false).unwrap();
    let synced = v.status().counters;
    assert_eq!(synced.device_flushes - after.device_flushes, 1);
    let (_, back) = crash(&dev);
    assert_eq!(back.getattr(f).unwrap().size, 160 * 4096 + 100);
    back.unmount().unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// What gathered and was never ordered is committed by whoever needs it: a sync of the same stream, of the file, of the volume, the
/// interval, and the unmount.
#[test]
fn what_gathers_is_never_forgotten() {
    for way in 0..5 {
        let dev = Arc::new(small());
        let v = mount_on(dev.clone(), gathering(1000)).unwrap();
        let f = create(&v, 5, b"f");
        for i in 0..20 {
            append(&v, 5, f, i * 100, 7, 100);
            barrier(&v, 5, f);
        }
        match way {
            0 => v.fsync(&cx(5), f, false).unwrap(),
            1 => v.fsync(&cx(6), f, false).unwrap(),
            2 => v.syncfs(&cx(6)).unwrap(),
            3 => v.tick(Duration::ZERO).unwrap(),
            _ => v.unmount().unwrap(),
        }
        let (_, back) = crash(&dev);
        assert_eq!(back.getattr(f).unwrap().size, 2000, "way {way}");
        back.unmount().unwrap();
    }
}

/// Every prefix of the unflushed writes, and all but each: what survives is a prefix of the barriers, whichever writes are lost.
#[test]
fn whatever_is_lost_a_prefix_survives() {
    for (gather, count) in [(1, 4u8), (3, 6)] {
        let dev = Arc::new(SimDevice::new(&small()));
        let v = mount_on(dev.clone(), gathering(gather)).unwrap();
        let files: Vec<Ino> = (0..count).map(|i| create(&v, 5, &[b'a' + i])).collect();
        v.syncfs(&cx(5)).unwrap();
        let from = dev.events();
        for &f in &files {
            append(&v, 5, f, 0, 9, 4096);
            barrier(&v, 5, f);
        }
        let (at, open) = (dev.events(), dev.events() - from);
        assert!((4..=12).contains(&open), "{open} writes are under way");
        let mut lengths = std::collections::BTreeSet::new();
        for mask in 0..1u64 << open {
            let state = Arc::new(dev.crash_image(at, &Outcome::Mask(mask)));
            let back = mount_on(state, quiet()).unwrap();
            let size = |f: &Ino| back.getattr(*f).unwrap().size;
            let whole = files.iter().take_while(|f| size(f) == 4096).count();
            assert!(
                files[whole..].iter().all(|f| size(f) == 0),
                "gather {gather}, writes {mask:b}"
            );
            for f in &files[..whole] {
                let data = read(&back, *f, 4096);
                assert!(data.iter().all(|b| *b == 9), "gather {gather}, {mask:b}");
            }
            lengths.insert(whole);
        }
        let want: Vec<usize> = (0..=files.len()).step_by(gather).collect();
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), want);
        v.shutdown();
    }
}

/// What another stream did to the file comes first, although the two share nothing else.
#[test]
fn a_barrier_orders_what_others_did_to_the_file() {
    let dev = Arc::new(small());
    let v = mount_on(dev.clone(), gathering(100)).unwrap();
    let (f, g) = (create(&v, 5, b"f"), create(&v, 5, b"g"));
    v.syncfs(&cx(5)).unwrap();
    append(&v, 6, f, 0, 1, 5000);
    barrier(&v, 5, f);
    append(&v, 5, g, 0, 2, 5000);
    v.fsync(&cx(5), g, false).unwrap();
    let (_, back) = crash(&dev);
    assert_eq!(back.getattr(f).unwrap().size, 5000);
    assert_eq!(back.getattr(g).unwrap().size, 5000);
    // Without the barrier the sync of one says nothing about the other.
    append(&v, 6, f, 5000, 1, 1000);
    append(&v, 5, g, 5000, 1, 1000);
    v.fsync(&cx(5), g, false).unwrap();
    let (_, back) = crash(&dev);
    assert_eq!(back.getattr(f).unwrap().size, 5000);
    // A sync right after the barrier, with nothing between, takes along what it put first.
    barrier(&v, 5, f);
    v.streamsync(StreamId(5)).unwrap();
    let (_, back) = crash(&dev);
    assert_eq!(back.getattr(f).unwrap().size, 6000);
}

/// A memory device whose transfers end when they are told to.
struct Slow {
    inner: MemoryDevice,
    open: Arc<(Mutex<bool>, Condvar)>,
    submits: AtomicU64,
    slow: AtomicBool,
}

struct Transfer(Arc<(Mutex<bool>, Condvar)>, Ticket);

impl ccfs_device::Pending for Transfer {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
        drop(open);
        self.1.finish()
    }
    fn is_ready(&self) -> bool {
        *self.0.0.lock().unwrap() && self.1.is_ready()
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let ticket = self.inner.submit(writes);
        if !self.slow.load(Ordering::SeqCst) {
            return ticket;
        }
        self.submits.fetch_add(1, Ordering::SeqCst);
        Ticket::pending(Box::new(Transfer(self.open.clone(), ticket)))
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn counters(&self) -> ccfs_device::Counters {
        self.inner.counters()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// With background threads: callers go on while no transfer ends at all; what they close gathers, and goes out in few batches.
#[test]
fn callers_never_wait_for_transfers() {
    let dev = Arc::new(Slow {
        inner: small(),
        open: Arc::default(),
        submits: AtomicU64::new(0),
        slow: AtomicBool::new(false),
    });
    let v = mount_on(dev.clone(), in_background()).unwrap();
    let f = create(&v, 5, b"f");
    v.fsync(&cx(5), f, false).unwrap();
    dev.slow.store(true, Ordering::SeqCst);
    for i in 0..500 {
        append(&v, 5, f, i * 4096, 3, 4096);
        barrier(&v, 5, f);
    }
    // No transfer has ended; two batches are under way, one may be in the making, and a checkpoint may have begun.
    assert!(dev.submits.load(Ordering::SeqCst) <= 4);
    *dev.open.0.lock().unwrap() = true;
    dev.open.1.notify_all();
    v.fsync(&cx(5), f, false).unwrap();
    let batches = dev.submits.load(Ordering::SeqCst);
    assert!(batches <= 20, "{batches} batches for 500 barriers");
    let copy = Arc::new(dev.inner.snapshot());
    let back = mount_on(copy, quiet()).unwrap();
    assert_eq!(back.getattr(f).unwrap().size, 500 * 4096);
    v.unmount().unwrap();
    fsck(&dev.inner);
}

/// A copy with one bit changed in the frame that names `name`.
fn damaged(medium: &MemoryDevice, name: &[u8]) -> Arc<MemoryDevice> {
    let copy = Arc::new(medium.snapshot());
    let mut all = AlignedBuf::zeroed(copy.size_bytes() as usize);
    copy.read(0, &mut all).unwrap();
    let mut frames = (0..all.len()).step_by(1024);
    let named = |block: usize| {
        let frame = all[block..block + 1024].starts_with(b"ccFR");
        let mut parts = all[block..block + 1024].windows(name.len());
        frame.then(|| parts.position(|w| w == name).map(|at| block + at))
    };
    let at = frames.find_map(|block| named(block).flatten()).unwrap();
    let start = at - at % 512;
    let mut sector = AlignedBuf::from_bytes(&all[start..start + 512]);
    sector[at - start] ^= 1;
    write_all(&*copy, vec![Write::new(start as u64, sector)]).unwrap();
    copy
}

/// Whether a volume that crashed like this is refused, with one bit changed in the frame that names `name`.
fn is_refused_without(medium: &MemoryDevice, name: &[u8]) -> bool {
    match Volume::recover(damaged(medium, name)) {
        Ok(_) => false,
        Err(e) => e.to_string().contains("was durable"),
    }
}

/// A volume that is looked through in no time: long before a checkpoint.
fn smallest() -> MemoryDevice {
    image(&["-b", "1024", "-J", "size=1"], "8M")
}

/// With background threads, and long until they commit by themselves.
fn in_background() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        ..Options::default()
    }
}

/// Nobody syncs what a stream's barriers closed. Flushes for another stream make it durable all the same, and its frames say so: else one
/// damaged sector could take a file away that had been synced long before.
#[test]
fn a_flush_vouches_for_all_that_it_covers() {
    let test = "a_flush_vouches_for_all_that_it_covers";
    if flash::is_about_the_log(test, "flash has no frames") {
        return;
    }
    let dev = Arc::new(smallest());
    let v = mount_on(dev.clone(), in_background()).unwrap();
    for (n, name) in [(1, b"a1"), (2, b"a2")] {
        let f = create(&v, 5, name);
        barrier(&v, 5, f);
        while v.status().counters.commits < n {
            std::thread::yield_now();
        }
    }
    let synced = |name: String| {
        let f = create(&v, 6, name.as_bytes());
        v.fsync(&cx(6), f, false).unwrap();
    };
    (0..10).for_each(|n| synced(format!("synced-{n}")));
    // The thread that orders may not have said yet that it has.
    for n in 0..30 {
        if is_refused_without(&dev, b"synced-7") {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        synced(format!("later-{n}"));
    }
    for n in 0..8 {
        let name = format!("synced-{n}");
        assert!(is_refused_without(&dev, name.as_bytes()), "{name}");
    }
    v.unmount().unwrap();
}

/// A transfer that has not ended holds up no sync of another stream, and nothing vouches for it before it has.
#[test]
fn a_flush_waits_for_nobody_elses_transfer() {
    let test = "a_flush_waits_for_nobody_elses_transfer";
    if flash::is_about_the_log(test, "flash has no frames") {
        return;
    }
    let dev = Arc::new(Slow {
        inner: smallest(),
        open: Arc::default(),
        submits: AtomicU64::new(0),
        slow: AtomicBool::new(false),
    });
    let v = mount_on(dev.clone(), in_background()).unwrap();
    dev.slow.store(true, Ordering::SeqCst);
    let f = create(&v, 5, b"under-way");
    barrier(&v, 5, f);
    while dev.submits.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    dev.slow.store(false, Ordering::SeqCst);
    let synced = |n: u32| {
        let f = create(&v, 6, format!("synced-{n}").as_bytes());
        v.fsync(&cx(6), f, false).unwrap();
    };
    (0..4).for_each(synced);
    assert!(!is_refused_without(&dev.inner, b"under-way"));
    // Nothing vouches for what was synced meanwhile, either; so what came after it in its stream goes with it.
    let v_without = mount_on(damaged(&dev.inner, b"synced-1"), quiet()).unwrap();
    let there = |name: &str| v_without.lookup(ROOT_INO, name.as_bytes()).is_ok();
    let left = ["synced-0", "synced-1", "synced-2", "synced-3"].map(there);
    assert_eq!(left, [true, false, false, false]);
    v_without.unmount().unwrap();
    *dev.open.0.lock().unwrap() = true;
    dev.open.1.notify_all();
    // Whoever flushes next may not have seen the end of the transfer yet.
    let vouched = |n| {
        synced(n);
        is_refused_without(&dev.inner, b"under-way")
    };
    assert!((4..100).any(vouched));
    for name in ["under-way", "synced-0", "synced-3"] {
        assert!(is_refused_without(&dev.inner, name.as_bytes()), "{name}");
    }
    v.unmount().unwrap();
}

/// A device whose transfers end when somebody waits for them, and not before.
struct Unready(Arc<SimDevice>);

struct NotYet(Ticket);

impl ccfs_device::Pending for NotYet {
    fn finish(self: Box<Self>) -> io::Result<()> {
        self.0.finish()
    }
    fn is_ready(&self) -> bool {
        false
    }
}

impl Device for Unready {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, buf)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        Ticket::pending(Box::new(NotYet(self.0.submit(writes))))
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.discard(offset, len)
    }
    fn counters(&self) -> ccfs_device::Counters {
        self.0.counters()
    }
    fn read_only(&self) -> bool {
        false
    }
}

/// A bundle survives whole or not at all, so a sync of its first transaction needs what a later one depends on.
#[test]
fn a_sync_of_a_part_of_a_bundle_needs_what_all_of_it_depends_on() {
    let sim = Arc::new(SimDevice::new(&small()));
    let v = mount_on(Arc::new(Unready(sim.clone())), gathering(3)).unwrap();
    let [f, g, h] = [b"f", b"g", b"h"].map(|name| create(&v, 5, name));
    v.syncfs(&cx(5)).unwrap();
    append(&v, 5, f, 0, 1, 4096);
    barrier(&v, 5, f);
    append(&v, 6, g, 0, 2, 4096);
    barrier(&v, 6, g);
    // What stream 5 does from here on comes after what the other one did.
    barrier(&v, 5, g);
    append(&v, 5, h, 0, 3, 4096);
    barrier(&v, 5, h);
    v.fsync(&cx(7), f, false).unwrap();
    let state = sim.crash_image(sim.events(), &Outcome::None);
    let back = mount_on(Arc::new(state), quiet()).unwrap();
    assert_eq!(back.getattr(f).unwrap().size, 4096);
    assert!(read(&back, f, 4096).iter().all(|b| *b == 1));
    v.unmount().unwrap();
}

/// Overwriting behind barriers while nothing is flushed: each version stays whole, the log does not take the data twice.
#[test]
fn overwrites_go_to_new_blocks() {
    let dev = Arc::new(small());
    let v = mount_on(dev.clone(), gathering(8)).unwrap();
    let f = create(&v, 5, b"f");
    append(&v, 5, f, 0, 1, 64 * 4096);
    v.fsync(&cx(5), f, false).unwrap();
    let before = v.status().counters;
    for i in 0..64u64 {
        append(&v, 5, f, (i * 37 % 64) * 4096, 2, 4096);
        barrier(&v, 5, f);
    }
    let after = v.status().counters;
    if flash::chosen() {
        // There every write goes to a new place: the blocks, once, and with each bundle the inode.
        let home = after.home_bytes - before.home_bytes;
        assert!((64 * 4096..=72 * 4096).contains(&home), "{home}");
    } else {
        assert_eq!(after.direct_bytes - before.direct_bytes, 64 * 4096);
        assert_eq!(after.logged_bytes - before.logged_bytes, 8 * 4096);
    }
    v.fsync(&cx(5), f, false).unwrap();
    let (_, back) = crash(&dev);
    assert!(read(&back, f, 64 * 4096).iter().all(|b| *b == 2));
    v.unmount().unwrap();
    fsck(&dev);
}

/// A failed write of what nobody waits for stops the volume, and the next sync says so.
#[test]
fn a_failed_transfer_is_told_by_the_next_sync() {
    let base = small();
    let sim = Arc::new(SimDevice::new(&base));
    let v = mount_on(sim.clone(), gathering(1)).unwrap();
    let f = create(&v, 5, b"f");
    v.fsync(&cx(5), f, false).unwrap();
    sim.set_plan(ccfs_disks::Plan {
        fail_writes: (0..1000).collect(),
        ..Default::default()
    });
    append(&v, 5, f, 0, 1, 4096);
    let _ = v.barrier(&cx(5), SyncCall::File(f), 0);
    let error = v.fsync(&cx(5), f, false).unwrap_err();
    assert_eq!(error.errno(), libc::EIO);
    assert!(!v.status().stopped.is_empty());
}

/// Many threads, each with its stream, over a device as slow as a phone's: barriers, syncs and the background threads at once.
#[test]
fn threads_over_a_slow_device() {
    let memory = Arc::new(small());
    let params = Params::preset("ufs").unwrap();
    let dev: Arc<dyn Device> = Arc::new(Timed::new(memory.clone(), params));
    let v = mount_on(dev, Options::default()).unwrap();
    let files: Vec<Ino> = (0..4)
        .map(|i| create(&v, 10 + i, &[b'a' + i as u8]))
        .collect();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (v, files) = (&v, &files);
            scope.spawn(move || {
                for i in 0..100u64 {
                    let own = files[t as usize];
                    append(v, 10 + t, own, i * 4096, 1, 4096);
                    // Also files of the others: bundles that depend on each other.
                    let f = files[((t + i) % 4) as usize];
                    barrier(v, 10 + t, if i % 3 == 0 { f } else { own });
                    if i % 25 == 24 {
                        v.fsync(&cx(10 + t), f, false).unwrap();
                    }
                }
            });
        }
    });
    v.syncfs(&cx(1)).unwrap();
    let (_, back) = crash(&memory);
    for f in &files {
        assert_eq!(back.getattr(*f).unwrap().size, 100 * 4096);
    }
    v.unmount().unwrap();
    fsck(&memory);
}

/// On the emulated devices, in virtual time: barriers reach 80 % of what the device takes without any order, and never flush.
#[test]
fn barriers_are_nearly_as_fast_as_no_order() {
    use common::virtual_time::*;
    let test = "barriers_are_nearly_as_fast_as_no_order";
    if flash::is_about_the_log(test, "the figure is of the log's writes") {
        return;
    }
    let base = image(&["-b", "4096", "-J", "size=64"], "512M");
    const COUNT: u64 = 4000;
    for (device, percent) in DEVICES {
        let limit = device_limit(&base, device, COUNT);
        for work in [Work::Overwrite, Work::Append] {
            for after in [After::Barrier, After::BarrierCommand] {
                let f = measure(&base, device, percent, work, after, COUNT);
                let share = f.transferred / limit;
                assert!(share >= 0.8, "{device} {work:?} {after:?}: {share} {f:?}");
            }
            let synced = measure(&base, device, percent, work, After::Sync, 500);
            assert!(synced.transferred / limit < 0.5, "{device}: {synced:?}");
            assert!(synced.flushes >= 500, "{synced:?}");
        }
    }
}

/// Programs that need order more often than durability gain what BarrierFS's authors say (FAST 2018, figures 14 and 15), and more.
#[test]
fn programs_gain_from_barriers() {
    use common::barrier_programs::*;
    use common::virtual_time::*;
    let test = "programs_gain_from_barriers";
    if flash::is_about_the_log(test, "the figures are of the log's writes") {
        return;
    }
    let base = image(&["-b", "4096", "-J", "size=64"], "512M");
    for (device, gain_ordered, gain_durable) in [("ssd-plain", 36.0, 2.0), ("ufs", 2.8, 1.75)] {
        for journal in [Journal::Persist, Journal::Wal] {
            let rows = |after, promise| {
                let rig = Rig::new(&base, device, 0, after);
                sqlite(&rig, journal, promise, 300)
            };
            let synced = rows(After::Sync, Promise::Durable);
            let durable = rows(After::Barrier, Promise::Durable);
            let ordered = rows(After::Barrier, Promise::Ordered);
            assert!(ordered > gain_ordered * synced, "{ordered} {synced}");
            // The write-ahead log has no order to ask for but that of its checkpoints.
            let least = if journal == Journal::Wal {
                0.95
            } else {
                gain_durable
            };
            assert!(durable > least * synced, "{durable} {synced}");
        }
        let rounds = |after| varmail(&Rig::new(&base, device, 0, after), 300);
        let (synced, ordered) = (rounds(After::Sync), rounds(After::Barrier));
        assert!(ordered > gain_ordered * synced, "{ordered} {synced}");
    }
}

/// A device with a barrier command, of whose epochs a prefix survives: no checksums are needed, whatever is lost.
#[test]
fn epochs_of_the_device_take_the_place_of_checksums() {
    let test = "epochs_of_the_device_take_the_place_of_checksums";
    if flash::is_about_the_log(test, "commits of the flash carry their order themselves") {
        return;
    }
    let dev = Arc::new(SimDevice::ordered(&small()));
    let v = mount_on(dev.clone(), gathering(1)).unwrap();
    let files: Vec<Ino> = (0..4u8).map(|i| create(&v, 5, &[b'a' + i])).collect();
    v.syncfs(&cx(5)).unwrap();
    let from = dev.events();
    for &f in &files {
        append(&v, 5, f, 0, 9, 4096);
        barrier(&v, 5, f);
    }
    let (at, open) = (dev.events(), dev.events() - from);
    assert_eq!(open, 8, "data and frames of four transactions");
    let mut lengths = std::collections::BTreeSet::new();
    for mask in 0..1u64 << open {
        let state = Arc::new(dev.crash_image(at, &Outcome::Mask(mask)));
        let back = mount_on(state, quiet()).unwrap();
        let size = |f: &Ino| back.getattr(*f).unwrap().size;
        let whole = files.iter().take_while(|f| size(f) == 4096).count();
        assert!(files[whole..].iter().all(|f| size(f) == 0), "{mask:b}");
        for f in &files[..whole] {
            assert!(read(&back, *f, 4096).iter().all(|b| *b == 9), "{mask:b}");
        }
        // In order: as many as the mask keeps from the first one on.
        assert_eq!(whole as u32, mask.trailing_ones() / 2, "{mask:b}");
        lengths.insert(whole);
    }
    assert_eq!(lengths.len(), 5);
    v.unmount().unwrap();
    fsck(&dev.live());
}

/// Small overwrites, which go through the log: what gathers is never more than the log takes at once.
#[test]
fn a_bundle_fits_the_smallest_log() {
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1"], "64M"));
    let v = mount_on(dev.clone(), gathering(64)).unwrap();
    let f = create(&v, 5, b"f");
    append(&v, 5, f, 0, 1, 50_000);
    v.syncfs(&cx(5)).unwrap();
    for byte in 2..70 {
        // Not whole blocks, and fewer than are worth another place.
        append(&v, 5, f, 1, byte, 49_998);
        barrier(&v, 5, f);
    }
    v.fsync(&cx(5), f, false).unwrap();
    let (_, back) = crash(&dev);
    assert_eq!(read(&back, f, 50_000)[1..49_999], [69; 49_998]);
    back.unmount().unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// Data that the device could not take: the frames behind it, in the next epoch, would vouch for it.
#[test]
fn nothing_survives_an_epoch_that_failed() {
    let test = "nothing_survives_an_epoch_that_failed";
    if flash::is_about_the_log(test, "commits of the flash carry their order themselves") {
        return;
    }
    let dev = Arc::new(SimDevice::ordered(&small()));
    let v = mount_on(dev.clone(), gathering(1)).unwrap();
    let f = create(&v, 5, b"f");
    v.syncfs(&cx(5)).unwrap();
    append(&v, 5, f, 0, 9, 16384);
    dev.set_plan(Plan {
        fail_writes: vec![0],
        ..Plan::default()
    });
    assert!(v.fsync(&cx(5), f, false).is_err());
    v.shutdown();
    let state = Arc::new(dev.crash_image(dev.events(), &Outcome::All));
    let back = mount_on(state, quiet()).unwrap();
    assert_eq!(back.getattr(f).unwrap().size, 0);
}
