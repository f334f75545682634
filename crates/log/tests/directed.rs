//! Single situations: headers torn in each state, full rings, holes, old epochs, errors of the device, hostile bytes.

#[allow(dead_code, reason = "each test program uses a part of it")]
mod common;

use std::sync::Arc;

use ccfs_device::{Device, write_all};
use ccfs_disks::{MemoryDevice, Outcome, Plan, SimDevice};
use ccfs_ext4::Error;
use ccfs_log::{Geometry, Kind, Log, Meta, Scan, Slot, TxnId};
use common::{Rng, SMALL, base_device, geometry, put};

const BS: u32 = 1024;
fn straight(blocks: u64) -> Geometry {
    Geometry {
        block_size: BS,
        runs: vec![(3, blocks)],
    }
}

fn meta(slot: &Slot, watermark: TxnId) -> Meta {
    Meta {
        kind: slot.kind,
        id: slot.id,
        watermark,
        deps: vec![],
        flags: 0,
    }
}

/// Takes a slot for and writes a group that fills `frames` frames, without a flush.
fn write_group(dev: &dyn Device, log: &Log, kind: Kind, frames: u64) -> Slot {
    let slot = log.take_slot(frames, kind).expect("room");
    let len = frames as usize * log.payload_per_frame();
    let payload = vec![slot.first as u8; len];
    write_all(
        dev,
        log.encode(&slot, &meta(&slot, 0), &[&payload]).unwrap(),
    )
    .unwrap();
    slot
}

fn ids(scan: &Scan) -> Vec<TxnId> {
    scan.txns.iter().map(|f| f.meta.id).collect()
}

fn sim_with_log(geo: &Geometry) -> (Arc<SimDevice>, Log) {
    let sim = Arc::new(SimDevice::new(&base_device(&mut Rng::new(1), geo)));
    let log = Log::create_in(sim.clone(), geo.clone(), 1, SMALL).unwrap();
    sim.restart();
    (sim, log)
}

fn open(image: MemoryDevice, geo: &Geometry) -> ccfs_ext4::Result<(Log, Scan)> {
    Log::open(Arc::new(image), geo.clone())
}

/// Destroys sector `sector` of header block 1 or 2 of a straight journal.
fn destroy(dev: &MemoryDevice, header: u64, sector: u64) {
    put(
        dev,
        (3 + header) * u64::from(BS) + 512 * sector,
        &[0x5a; 512],
    );
}

#[test]
fn headers_torn_in_each_state() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    for step in 0..6u64 {
        let header = log.header();
        // `create` wrote block 1 or 2 last; every header goes to the other one.
        let newest = (1..=2).find(|&h| {
            let image = sim.live();
            destroy(&image, 3 - h, 0);
            open(image, &geo).unwrap().0.header() == header
        });
        let newest = newest.expect("one of the blocks holds the header");
        let image = sim.live();
        destroy(&image, 3 - newest, 0);
        assert_eq!(open(image, &geo).unwrap().0.header(), header);
        let image = sim.live();
        destroy(&image, newest, 0);
        // Before the next lap the previous header is good enough; what it did not free is still there.
        let (old, scan) = open(image, &geo).unwrap();
        assert_eq!(old.header().seq, header.seq - 1);
        assert_eq!(ids(&scan), if step > 0 { vec![step] } else { vec![] });
        let image = sim.live();
        destroy(&image, 1, 0);
        destroy(&image, 2, 0);
        assert!(matches!(open(image, &geo), Err(Error::Corrupt(_))));
        // A header is one sector.
        let image = sim.live();
        destroy(&image, 1, 1);
        destroy(&image, 2, 1);
        assert_eq!(open(image, &geo).unwrap().0.header(), header);
        write_group(&*sim, &log, Kind::Txn, 3);
        log.set_tail(log.head(), step + 1, 0).unwrap();
    }
}

#[test]
fn a_lost_header_is_noticed_after_a_lap() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    let third = log.ring_len() / 3;
    for _ in 0..2 {
        write_group(&*sim, &log, Kind::Txn, third);
    }
    log.set_tail(log.tail_after(2), 2, 0).unwrap();
    for _ in 0..2 {
        write_group(&*sim, &log, Kind::Txn, third);
    }
    assert_eq!(ids(&open(sim.live(), &geo).unwrap().1), [3, 4]);
    let seq = log.header().seq;
    for header in 1..=2 {
        let image = sim.live();
        destroy(&image, header, 0);
        match open(image, &geo) {
            Ok((log, scan)) => assert_eq!((log.header().seq, ids(&scan)), (seq, vec![3, 4])),
            Err(e) => assert!(e.to_string().contains("header that is lost"), "{e}"),
        }
    }
}

#[test]
fn unknown_headers_are_refused_by_number() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    let text = |at: usize, value: u32| {
        let image = sim.live();
        for block in 1..=2u64 {
            let mut bytes = vec![0; BS as usize];
            image.read((3 + block) * u64::from(BS), &mut bytes).unwrap();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            bytes[16..20].fill(0);
            let crc = crc32c::crc32c(&bytes[..512]);
            bytes[16..20].copy_from_slice(&crc.to_le_bytes());
            put(&image, (3 + block) * u64::from(BS), &bytes);
        }
        match open(image, &geo) {
            Ok(_) => panic!("opened"),
            Err(Error::Refused(text)) => text,
            Err(e) => panic!("{e}"),
        }
    };
    assert_eq!(log.header().version, 1);
    assert!(text(8, 7).contains("version 7"));
    assert!(text(12, 0x40).contains("0x40"));
}

/// `create` over the remains of another log: whenever the power fails, one of the two can be opened, and the new one is empty.
#[test]
fn create_can_be_cut_anywhere() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    for _ in 0..5 {
        write_group(&*sim, &log, Kind::Txn, 4);
    }
    log.set_tail(log.head(), 5, 0).unwrap();
    let old_nonce = log.header().nonce;
    sim.restart();
    let new = Log::create_in(sim.clone(), geo.clone(), 6, SMALL).unwrap();
    assert_ne!(new.header().nonce, old_nonce);
    for at in 0..=sim.events() {
        let outcomes = Outcome::directed(sim.unflushed(at))
            .into_iter()
            .chain((0..20).map(|seed| Outcome::Torn { seed }));
        for outcome in outcomes {
            let (log, scan) = open(sim.crash_image(at, &outcome), &geo).unwrap();
            assert_eq!(
                (ids(&scan), log.next_id(), log.header().applied_id),
                (vec![], 6, 5)
            );
            assert!(scan.home.is_none() && scan.pending.is_none() && scan.torn.is_empty());
        }
    }
    // Frames of the old epoch, wherever they lie, are no frames.
    let scan = open(sim.live(), &geo).unwrap().1;
    assert_eq!((scan.counts.old_epoch, scan.counts.live), (20, 0));
}

#[test]
fn set_tail_can_be_cut_anywhere() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    write_group(&*sim, &log, Kind::Txn, 4);
    write_group(&*sim, &log, Kind::Txn, 4);
    write_group(&*sim, &log, Kind::Checkpoint, 5);
    sim.flush().unwrap();
    let begin = sim.events();
    log.set_tail(log.tail_after(1), 1, 7).unwrap();
    let end = sim.events();
    for at in begin..=end {
        let outcomes = Outcome::directed(sim.unflushed(at))
            .into_iter()
            .chain((0..20).map(|seed| Outcome::Torn { seed }));
        for outcome in outcomes {
            let (log, scan) = open(sim.crash_image(at, &outcome), &geo).unwrap();
            let header = log.header();
            match header.applied_id {
                0 => assert!(
                    at < end
                        && ids(&scan) == [1, 2]
                        && scan.pending.is_some()
                        && scan.home.is_none()
                ),
                1 => assert!(
                    header.applied_records == 7
                        && ids(&scan) == [2]
                        && scan.pending.is_none()
                        && scan.home.is_some()
                ),
                id => panic!("{id}"),
            }
            // The next life can end the checkpoint, or has ended it.
            log.set_tail(log.tail_after(2), 2, 0).unwrap();
            assert_eq!(log.header().checkpoint_seq, 1);
        }
    }
}

#[test]
fn a_failed_header_frees_nothing() {
    let geo = straight(100);
    for plan in [
        Plan {
            fail_writes: [0].into(),
            ..Plan::default()
        },
        Plan {
            fail_flushes: [0].into(),
            ..Plan::default()
        },
    ] {
        let (sim, log) = sim_with_log(&geo);
        write_group(&*sim, &log, Kind::Txn, 4);
        sim.flush().unwrap();
        let (free, header) = (log.free_frames(), log.header());
        sim.set_plan(plan);
        assert!(matches!(log.set_tail(log.head(), 1, 0), Err(Error::Io(_))));
        assert_eq!((log.free_frames(), log.header()), (free, header));
        log.set_tail(log.head(), 1, 0).unwrap();
        assert_eq!(log.free_frames(), log.ring_len());
    }
}

#[test]
fn set_tail_refuses_what_goes_back_or_too_far() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    for _ in 0..4 {
        write_group(&*sim, &log, Kind::Txn, 2);
    }
    log.set_tail(4, 2, 5).unwrap();
    for (tail, id, records) in [(3, 2, 5), (4, 2, 4), (4, 1, 9), (9, 4, 0), (8, 5, 0)] {
        assert!(
            matches!(log.set_tail(tail, id, records), Err(Error::Refused(_))),
            "{tail} {id} {records}"
        );
    }
    log.set_tail(8, 4, 0).unwrap();
}

#[test]
fn a_full_ring_still_takes_a_checkpoint() {
    let geo = straight(200);
    let (sim, mut log) = sim_with_log(&geo);
    let mut rng = Rng::new(7);
    for life in 0..20 {
        while let Some(slot) = log
            .take_slot(1 + rng.below(9), Kind::Txn)
            .or_else(|| log.take_slot(1, Kind::Txn))
        {
            let payload = vec![1; (slot.frames as usize - 1) * log.payload_per_frame() + 1];
            write_all(
                &*sim,
                log.encode(&slot, &meta(&slot, 0), &[&payload]).unwrap(),
            )
            .unwrap();
        }
        assert_eq!(log.free_frames(), 0);
        assert!(log.take_slot(1, Kind::Txn).is_none());
        let whole = log.reserve_len();
        assert!(log.take_slot(whole + 1, Kind::Checkpoint).is_none());
        write_group(&*sim, &log, Kind::Checkpoint, whole);
        sim.flush().unwrap();
        // Cut in the middle of the next ones, again and again: there is always room for one more.
        for seed in 0..4 {
            let events = sim.events();
            log.set_tail(
                log.tail_after(log.header().applied_id),
                log.header().applied_id,
                life,
            )
            .unwrap();
            write_group(&*sim, &log, Kind::Checkpoint, whole);
            let image = sim.crash_image(
                events + 1 + seed,
                &Outcome::Torn {
                    seed: seed as u64 + life,
                },
            );
            let next = SimDevice::new(&image);
            let (again, _) = Log::open(Arc::new(next), geo.clone()).unwrap();
            assert_eq!(again.free_frames(), 0);
            assert!(again.take_slot(whole, Kind::Checkpoint).is_some());
        }
        let (next, scan) = Log::open(sim.clone(), geo.clone()).unwrap();
        log = next;
        let last = *ids(&scan).last().unwrap();
        log.set_tail(log.tail_after(last), last, 0).unwrap();
        assert_eq!(log.free_frames(), log.ring_len());
    }
    assert!(log.head() > 10 * log.ring_len(), "no laps");
}

#[test]
fn intact_transactions_behind_holes_of_any_length() {
    let geo = straight(200);
    for hole in [1, 2, 50, 120] {
        for written in [false, true] {
            let (sim, log) = sim_with_log(&geo);
            write_group(&*sim, &log, Kind::Txn, 2);
            let slot = log.take_slot(hole, Kind::Txn).unwrap();
            let payload = vec![7; hole as usize * log.payload_per_frame()];
            let writes = log.encode(&slot, &meta(&slot, 0), &[&payload]).unwrap();
            if written && hole > 1 {
                // All but its first frame.
                let mut write = writes.into_iter().next().unwrap();
                write.offset += u64::from(BS);
                write.parts[0].start += BS as usize;
                write.parts[0].len -= BS as usize;
                write_all(&*sim, vec![write]).unwrap();
            }
            write_group(&*sim, &log, Kind::Txn, 5);
            let (next, scan) = open(sim.live(), &geo).unwrap();
            assert_eq!(
                (ids(&scan), next.next_id(), next.head()),
                (vec![1, 3], 4, log.head())
            );
            assert_eq!(scan.torn.len(), usize::from(written && hole > 1));
            assert_eq!(
                next.tail_after(1),
                if written && hole > 1 { 2 } else { 2 + hole }
            );
        }
    }
}

#[test]
fn frames_are_large_writes() {
    let geo = straight(1024);
    let (sim, log) = sim_with_log(&geo);
    let ring = log.ring_len();
    let lens = |frames: u64| {
        let slot = log.take_slot(frames, Kind::Txn).unwrap();
        let payload = vec![1; frames as usize * log.payload_per_frame()];
        let writes = log.encode(&slot, &meta(&slot, 0), &[&payload]).unwrap();
        writes
            .iter()
            .map(|w| w.parts.iter().map(|p| p.len as u64).sum::<u64>() / u64::from(BS))
            .collect::<Vec<_>>()
    };
    assert_eq!(lens(ring - 100), [ring - 100]);
    log.set_tail(log.head(), 1, 0).unwrap();
    assert_eq!(lens(150), [100, 50]);
    drop(sim);
}

#[test]
fn limits_of_the_journal() {
    let create = |geo: Geometry| {
        let dev = base_device(&mut Rng::new(3), &geo);
        Log::create(Arc::new(dev), geo, 1)
    };
    let text = create(straight(1023)).err().unwrap().to_string();
    assert!(
        text.contains("1023") && text.contains("1024") && text.contains("tune2fs"),
        "{text}"
    );
    let log = create(straight(1024)).unwrap();
    assert_eq!(log.ring_len() + 2 * log.reserve_len(), 1021);
    let large = Geometry {
        block_size: 4096,
        runs: vec![(1, 1 << 18)],
    };
    let log = create(large).unwrap();
    assert_eq!((log.ring_len() + 2 * log.reserve_len()) * 4096, 128 << 20);
    assert!(log.reserve_len() * 4 <= log.ring_len() && log.reserve_len() * 5 > log.ring_len());
    assert_eq!(log.frames_for(0, 0), 1);
    assert_eq!(log.frames_for(4000, 0), 1);
    assert_eq!(log.frames_for(4000, 1), 2);
    assert_eq!(log.frames_for(u64::MAX, 9), u64::MAX);
    let dirty = straight(100);
    let dev = base_device(&mut Rng::new(3), &dirty);
    let mut block = vec![0; 512];
    dev.read(3 * u64::from(BS), &mut block).unwrap();
    block[31] = 1;
    put(&dev, 3 * u64::from(BS), &block);
    let err = Log::create_in(Arc::new(dev), dirty, 1, SMALL)
        .err()
        .unwrap();
    assert!(err.to_string().contains("e2fsck"), "{err}");
}

#[test]
fn another_map_of_the_journal_is_refused() {
    let geo = Geometry {
        block_size: BS,
        runs: vec![(3, 50), (60, 50)],
    };
    let (sim, _log) = sim_with_log(&geo);
    let other = Geometry {
        block_size: BS,
        runs: vec![(3, 50), (61, 50)],
    };
    assert!(matches!(
        Log::open(sim.clone(), other),
        Err(Error::Corrupt(_))
    ));
    assert!(Log::open(sim, geo).is_ok());
}

/// Random damage with checksums made good again: an error or a smaller log, never a panic.
#[test]
fn hostile_bytes() {
    let mut rng = Rng::new(99);
    let mut opened = 0;
    for round in 0..3000 {
        let blocks = 40 + rng.below(60);
        let geo = geometry(&mut rng, BS, blocks, 3);
        let dev = base_device(&mut rng, &geo);
        let dev = Arc::new(dev);
        let log = Log::create_in(dev.clone(), geo.clone(), 1, SMALL).unwrap();
        for _ in 0..rng.below(5) {
            write_group(&*dev, &log, Kind::Txn, 1 + rng.below(4));
        }
        write_group(&*dev, &log, Kind::Checkpoint, 1 + rng.below(3));
        for _ in 0..1 + rng.below(3) {
            let (pblk, len) = geo.runs[rng.below(geo.runs.len() as u64) as usize];
            let at = (pblk + rng.below(len.min(12))) * u64::from(BS);
            let mut block = vec![0; BS as usize];
            dev.read(at, &mut block).unwrap();
            let header = block.starts_with(b"ccfsHEAD");
            let crc_at = if header { 16 } else { 4 };
            let field = 24 + rng.below(if header { 88 } else { 72 }) as usize;
            let value = [
                rng.draw(),
                rng.below(9),
                u64::MAX,
                1 << 62,
                (1 << 62) - 1,
                1 << 31,
            ][rng.below(6) as usize];
            let width = [1, 4, 8][rng.below(3) as usize].min(96 - field.min(92));
            block[field..field + width].copy_from_slice(&value.to_le_bytes()[..width]);
            block[crc_at..crc_at + 4].fill(0);
            let crc = crc32c::crc32c(&block[..if header { 512 } else { BS as usize }]);
            block[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
            put(&*dev, at, &block);
        }
        let Ok((log, scan)) = Log::open(dev.clone(), geo.clone()) else {
            continue;
        };
        opened += 1;
        for found in scan.txns.iter().chain(&scan.home).chain(&scan.pending) {
            assert_eq!(
                log.read_payload(found).unwrap().len() as u64,
                found.payload_len
            );
        }
        // What was accepted can be worked with.
        if let Some(slot) = log.take_slot(2, Kind::Txn) {
            log.encode(&slot, &meta(&slot, 0), &[&[1; 1000]]).unwrap();
            log.abandon(slot);
        }
        if log.take_slot(1, Kind::Checkpoint).is_some() {
            let last = log.next_id() - 1;
            log.set_tail(log.tail_after(last), last, 0).unwrap();
            Log::open(dev, geo).map(|_| ()).unwrap_or_else(|e| {
                assert!(e.to_string().contains("checkpoint"), "round {round}: {e}")
            });
        }
    }
    assert!((300..2990).contains(&opened), "{opened}");
}

/// Recoveries that never get as far as the header write one checkpoint after the other; the newest intact one counts.
#[test]
fn the_newest_of_several_pending_checkpoints_counts() {
    let geo = straight(100);
    let (sim, mut log) = sim_with_log(&geo);
    let area = log.reserve_len();
    for number in 1..9 {
        assert_eq!(
            write_group(&*sim, &log, Kind::Checkpoint, 2).first,
            number * area
        );
        sim.flush().unwrap();
        let (next, scan) = Log::open(sim.clone(), geo.clone()).unwrap();
        assert_eq!(scan.pending.map(|p| p.first), Some(number * area));
        assert_eq!((next.header().checkpoint_seq, scan.home), (0, None));
        log = next;
    }
    log.set_tail(0, 0, 1).unwrap();
    let (next, scan) = Log::open(sim, geo).unwrap();
    assert_eq!((next.header().checkpoint_seq, scan.pending), (8, None));
    assert_eq!(scan.home.map(|p| p.first), Some(8 * area));
}

/// A damaged checkpoint that the header relies on is an error, not a forgotten list of orphans.
#[test]
fn a_damaged_home_checkpoint_is_noticed() {
    let geo = straight(100);
    let (sim, log) = sim_with_log(&geo);
    write_group(&*sim, &log, Kind::Checkpoint, 2);
    sim.flush().unwrap();
    log.set_tail(0, 0, 1).unwrap();
    let image = sim.live();
    put(
        &image,
        (3 + 3 + log.ring_len() + log.reserve_len()) * u64::from(BS) + 512,
        &[1; 512],
    );
    let err = open(image, &geo).err().unwrap().to_string();
    assert!(err.contains("checkpoint 1 is damaged"), "{err}");
}

/// The first life's frame lacks one sector; the second life's write of the same slot brings just that sector.
#[test]
fn what_was_torn_never_becomes_whole() {
    let geo = straight(100);
    for kind in [Kind::Txn, Kind::Checkpoint] {
        let (sim, log) = sim_with_log(&geo);
        let keep = |log: &Log, flags: u32, sectors: std::ops::Range<usize>| {
            let slot = log.take_slot(1, kind).unwrap();
            let meta = Meta {
                flags,
                ..meta(&slot, 0)
            };
            let mut write = log
                .encode(&slot, &meta, &[&[1; 40]])
                .unwrap()
                .pop()
                .unwrap();
            write.offset += 512 * sectors.start as u64;
            write.parts[0].start += 512 * sectors.start;
            write.parts[0].len = 512 * sectors.len();
            write_all(&*sim, vec![write]).unwrap();
        };
        keep(&log, 1, 0..1);
        let (log, scan) = Log::open(sim.clone(), geo.clone()).unwrap();
        assert!(scan.txns.is_empty() && scan.pending.is_none() && scan.counts.damaged == 1);
        keep(&log, 2, 1..2);
        let (log, scan) = Log::open(sim.clone(), geo.clone()).unwrap();
        assert!(scan.txns.is_empty() && scan.pending.is_none(), "{scan:?}");
        keep(&log, 3, 0..2);
        let (_, scan) = Log::open(sim.clone(), geo.clone()).unwrap();
        let found: Vec<u32> = scan
            .txns
            .iter()
            .chain(&scan.pending)
            .map(|f| f.meta.flags)
            .collect();
        assert_eq!(found, [3]);
    }
}

#[test]
fn threads_get_disjoint_slots_in_the_order_of_ids() {
    let geo = straight(1024);
    let (sim, log) = sim_with_log(&geo);
    let slots = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (slots, log, sim) = (&slots, &log, &sim);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                while let Some(slot) = log.take_slot(1 + rng.below(4), Kind::Txn) {
                    let payload = vec![
                        slot.id as u8;
                        (slot.frames as usize - 1) * log.payload_per_frame() + 9
                    ];
                    write_all(
                        &**sim,
                        log.encode(&slot, &meta(&slot, 0), &[&payload]).unwrap(),
                    )
                    .unwrap();
                    slots.lock().unwrap().push(slot);
                }
            });
        }
    });
    let mut slots = slots.into_inner().unwrap();
    slots.sort_by_key(|s| s.id);
    assert!(
        slots
            .windows(2)
            .all(|w| w[0].id + 1 == w[1].id && w[0].first + w[0].frames == w[1].first)
    );
    let (log, scan) = open(sim.live(), &geo).unwrap();
    assert_eq!(ids(&scan), (1..=slots.len() as u64).collect::<Vec<_>>());
    for found in &scan.txns {
        assert!(
            log.read_payload(found)
                .unwrap()
                .iter()
                .all(|b| *b == found.meta.id as u8)
        );
    }
}
