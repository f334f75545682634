//! The simulator: every medium that the guarantees allow, and no other.

use std::collections::HashSet;
use std::time::Instant;

use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_disks::{DISCARDED, MemoryDevice, Outcome, Plan, SimDevice};
use proptest::prelude::*;

/// Few sectors, so that writes overlap often.
const SECTORS: u64 = 24;

fn buf(sectors: u64, byte: u8) -> AlignedBuf {
    AlignedBuf::from_bytes(&vec![byte; (sectors * 512) as usize])
}

fn sectors(dev: &MemoryDevice) -> Vec<u8> {
    let mut all = vec![0; dev.size_bytes() as usize];
    dev.read(0, &mut all).unwrap();
    // Invariant 2: a sector is never mixed.
    assert!(
        all.chunks(512)
            .all(|sector| sector.iter().all(|byte| *byte == sector[0]))
    );
    all.chunks(512).map(|sector| sector[0]).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// (first sector, length) of each write.
    Submit(Vec<(u64, u64)>),
    /// Of the open tickets, this one modulo their number.
    Wait(usize),
    Flush,
    FailedFlush,
    Discard(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let extent = || (0..SECTORS, 1u64..5).prop_map(|(at, len)| (at, len.min(SECTORS - at)));
    prop_oneof![
        6 => proptest::collection::vec(extent(), 1..4).prop_map(Step::Submit),
        4 => (0usize..8).prop_map(Step::Wait),
        2 => Just(Step::Flush),
        1 => Just(Step::FailedFlush),
        1 => extent().prop_map(|(at, len)| Step::Discard(at, len)),
    ]
}

/// One write or discard of the model, in plain words of the guarantees.
#[derive(Debug)]
struct Wrote {
    event: usize,
    at: u64,
    len: u64,
    byte: u8,
    /// Time of submission, of the end of its wait, and of the call of the flush that made it durable.
    begun: usize,
    ended: Option<usize>,
    durable: Option<usize>,
}

/// What a sector may hold if power is cut at `event`: each write that may be the last one to reach the medium, or the old content (0).
fn allowed(writes: &[Wrote], event: usize, sector: u64) -> HashSet<u8> {
    let mine = || {
        writes
            .iter()
            .filter(|w| w.event < event && (w.at..w.at + w.len).contains(&sector))
    };
    let durable = |w: &Wrote| w.durable.is_some_and(|flush| flush < event);
    // Shadowed: a durable write began after this one had ended, so this one is out of the medium for good.
    let shadowed = |w: &Wrote| {
        mine()
            .any(|d| durable(d) && d.event != w.event && w.ended.is_some_and(|end| end <= d.begun))
    };
    let mut bytes: HashSet<u8> = mine().filter(|w| !shadowed(w)).map(|w| w.byte).collect();
    if !mine().any(durable) {
        bytes.insert(0);
    }
    bytes
}

struct Run {
    dev: SimDevice,
    writes: Vec<Wrote>,
    /// Submissions, waits and flushes so far: the model's clock.
    clock: usize,
}

/// Executes the steps; every write has a byte of its own.
fn run(steps: &[Step]) -> Run {
    let flushes = steps
        .iter()
        .filter(|step| matches!(step, Step::Flush | Step::FailedFlush));
    let failing = flushes
        .enumerate()
        .filter(|(_, step)| matches!(step, Step::FailedFlush));
    let fail_flushes = failing.map(|(number, _)| number as u64).collect();
    let plan = Plan {
        fail_flushes,
        ..Plan::default()
    };
    let dev = SimDevice::with_plan(&MemoryDevice::new(SECTORS * 512), plan);
    let mut run = Run {
        dev,
        writes: Vec::new(),
        clock: 0,
    };
    let mut tickets = Vec::new();
    let mut lost = HashSet::new();
    for step in steps {
        run.clock += 1;
        let (clock, event) = (run.clock, run.dev.events());
        let record = |index: usize, at, len, byte, ended| Wrote {
            event: event + index,
            at,
            len,
            byte,
            begun: clock,
            ended,
            durable: None,
        };
        match step {
            Step::Submit(extents) => {
                let mut batch = Vec::new();
                let first = run.writes.len();
                for (index, &(at, len)) in extents.iter().enumerate() {
                    let byte = 1 + (run.writes.len() % 200) as u8;
                    run.writes.push(record(index, at, len, byte, None));
                    batch.push(Write::new(at * 512, buf(len, byte)));
                }
                tickets.push((run.dev.submit(batch), first..run.writes.len()));
            }
            Step::Wait(which) if !tickets.is_empty() => {
                let (ticket, range) = tickets.remove(which % tickets.len());
                run.dev.wait(ticket).unwrap();
                run.writes[range]
                    .iter_mut()
                    .for_each(|write| write.ended = Some(clock));
            }
            Step::Wait(_) => {}
            Step::Flush => {
                run.dev.flush().unwrap();
                for (index, write) in run.writes.iter_mut().enumerate() {
                    if write.ended.is_some() && write.durable.is_none() && !lost.contains(&index) {
                        write.durable = Some(event);
                    }
                }
            }
            Step::FailedFlush => {
                run.dev.flush().unwrap_err();
                lost.extend(
                    (0..run.writes.len()).filter(|&index| run.writes[index].durable.is_none()),
                );
            }
            Step::Discard(at, len) => {
                run.dev.discard(at * 512, len * 512).unwrap();
                run.writes
                    .push(record(0, *at, *len, DISCARDED, Some(clock)));
            }
        }
    }
    // Tickets end here, which matters only to what was in flight to the end.
    std::mem::forget(tickets);
    run
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    /// Flushed data is always there, every other sector is one of the writes that may have reached it or what it was before.
    #[test]
    fn images_are_allowed(steps in proptest::collection::vec(step(), 1..30), seed: u64) {
        let run = run(&steps);
        let events = run.dev.events();
        for event in 0..=events {
            let allowed: Vec<_> = (0..SECTORS).map(|sector| allowed(&run.writes, event, sector)).collect();
            let unflushed = run.dev.unflushed(event);
            let count = run.writes.iter()
                .filter(|w| w.event < event && w.durable.is_none_or(|flush| flush >= event)).count();
            prop_assert_eq!(unflushed, count);
            let seeds = (0..12).map(|n| seed.wrapping_add(n));
            let outcomes = Outcome::directed(unflushed).into_iter()
                .chain(seeds.clone().map(|seed| Outcome::Torn { seed }))
                .chain(seeds.clone().map(|seed| Outcome::Subset { seed }))
                .chain(seeds.map(Outcome::Mask));
            for outcome in outcomes {
                let got = sectors(&run.dev.crash_image(event, &outcome));
                for (sector, byte) in got.iter().enumerate() {
                    prop_assert!(
                        allowed[sector].contains(byte),
                        "event {event}, {outcome:?}: sector {sector} is {byte}, allowed {:?}\n{}",
                        allowed[sector], run.dev.describe(0, events)
                    );
                }
            }
        }
    }

    /// The other direction: whatever is allowed in a sector, some seed shows.
    #[test]
    fn torn_images_reach_everything(steps in proptest::collection::vec(step(), 1..8)) {
        let run = run(&steps);
        let event = run.dev.events();
        let mut seen = vec![HashSet::new(); SECTORS as usize];
        for seed in 0..400 {
            let image = sectors(&run.dev.crash_image(event, &Outcome::Torn { seed }));
            seen.iter_mut().zip(image).for_each(|(seen, byte)| { seen.insert(byte); });
        }
        for sector in 0..SECTORS {
            let mut allowed = allowed(&run.writes, event, sector);
            // Of two writes that overlap in flight the later one, if it is durable, may also stay; the seeds need not find it.
            allowed.retain(|byte| run.writes.iter().all(|w| w.byte != *byte || w.durable.is_none()));
            for byte in allowed {
                prop_assert!(seen[sector as usize].contains(&byte), "sector {sector} never showed {byte}");
            }
        }
    }

    /// Without races among writes in flight, All is what reads see, and so is None after a flush. The order in which images are asked
    /// for does not matter.
    #[test]
    fn nothing_is_lost_without_a_crash(
        writes in proptest::collection::vec((0..SECTORS, 1u64..5, any::<bool>()), 1..80),
        order in any::<u64>(),
    ) {
        let dev = SimDevice::new(&MemoryDevice::new(SECTORS * 512));
        let mut history = vec![(0, dev.live(), true)];
        for (index, &(at, len, flush)) in writes.iter().enumerate() {
            let write = Write::new(at * 512, buf(len.min(SECTORS - at), index as u8 + 1));
            write_all(&dev, vec![write]).unwrap();
            history.push((dev.events(), dev.live(), false));
            if flush {
                dev.flush().unwrap();
                history.push((dev.events(), dev.live(), true));
            }
        }
        let count = history.len();
        for index in 0..count {
            let (event, live, flushed) = &history[(index.wrapping_mul(order as usize | 1)) % count];
            prop_assert!(dev.crash_image(*event, &Outcome::All).same_content(live));
            if *flushed {
                prop_assert!(dev.crash_image(*event, &Outcome::None).same_content(live));
                prop_assert_eq!(dev.unflushed(*event), 0);
            }
        }
    }
}

#[test]
fn late_waits_are_not_covered() {
    let dev = SimDevice::new(&MemoryDevice::new(8192));
    let early = dev.submit(vec![Write::new(0, buf(1, 1))]);
    let late = dev.submit(vec![Write::new(512, buf(1, 2))]);
    dev.wait(early).unwrap();
    dev.flush().unwrap();
    dev.wait(late).unwrap();
    assert_eq!(dev.unflushed(dev.events()), 1);
    assert_eq!(sectors(&dev.crash_image(3, &Outcome::None))[..2], [1, 0]);
    assert_eq!(sectors(&dev.crash_image(3, &Outcome::All))[..2], [1, 2]);
    dev.flush().unwrap();
    assert_eq!(sectors(&dev.crash_image(4, &Outcome::None))[..2], [1, 2]);
    assert_eq!(dev.flush_events(), [2, 3]);
    // Images of the past are as they were.
    assert_eq!(sectors(&dev.crash_image(2, &Outcome::None))[..2], [0, 0]);
    assert_eq!(
        sectors(&dev.crash_image(usize::MAX, &Outcome::None))[..2],
        [1, 2]
    );
}

#[test]
fn planned_errors() {
    let plan = Plan {
        fail_writes: vec![1],
        fail_reads: vec![0],
        fail_flushes: vec![0],
        ..Plan::default()
    };
    let dev = SimDevice::with_plan(&MemoryDevice::new(1 << 20), plan);
    assert_eq!(
        dev.read(0, &mut [0; 512]).unwrap_err().raw_os_error(),
        Some(5)
    );
    dev.read(0, &mut [0; 512]).unwrap();
    let batch = (0..3).map(|index| Write::new(index * 4096, buf(8, index as u8 + 1)));
    assert_eq!(
        write_all(&dev, batch.collect()).unwrap_err().raw_os_error(),
        Some(5)
    );
    assert_eq!(dev.events(), 3);
    dev.flush().unwrap_err();
    dev.flush().unwrap();
    // The failed flush lost track of all three.
    assert_eq!(dev.unflushed(5), 3);
    assert_eq!(sectors(&dev.crash_image(5, &Outcome::None))[..24], [0; 24]);
    // A write after it is durable whatever becomes of the lost ones.
    write_all(&dev, vec![Write::new(0, buf(8, 9))]).unwrap();
    dev.flush().unwrap();
    for seed in 0..50 {
        assert_eq!(
            sectors(&dev.crash_image(7, &Outcome::Torn { seed }))[..8],
            [9; 8]
        );
    }
    dev.set_plan(Plan {
        fail_reads: vec![1],
        ..Plan::default()
    });
    dev.read(0, &mut [0; 512]).unwrap();
    dev.read(0, &mut [0; 512]).unwrap_err();
}

#[test]
fn failed_writes_leave_parts() {
    let mut seen = HashSet::new();
    for seed in 0..100 {
        let plan = Plan {
            fail_writes: vec![0],
            seed,
            ..Plan::default()
        };
        let dev = SimDevice::with_plan(&MemoryDevice::new(4096), plan);
        write_all(&dev, vec![Write::new(0, buf(8, 1))]).unwrap_err();
        dev.flush().unwrap();
        let after = sectors(&dev.crash_image(2, &Outcome::None));
        assert_eq!(after, sectors(&dev.live()));
        seen.insert(after);
    }
    assert!(seen.len() > 20 && seen.contains(&vec![0; 8]) && seen.contains(&vec![1; 8]));
}

#[test]
fn the_power_goes() {
    let plan = Plan {
        vanish_at: Some(2),
        ..Plan::default()
    };
    let dev = SimDevice::with_plan(&MemoryDevice::new(1 << 20), plan);
    let batch = (0..3).map(|index| Write::new(index * 512, buf(1, index as u8 + 1)));
    write_all(&dev, batch.collect()).unwrap_err();
    assert_eq!(dev.events(), 2);
    assert!(dev.flush().is_err() && dev.read(0, &mut [0]).is_err() && dev.discard(0, 512).is_err());
    assert_eq!(sectors(&dev.crash_image(2, &Outcome::All))[..3], [1, 2, 0]);

    let dev = SimDevice::new(&MemoryDevice::new(1 << 20));
    let ticket = dev.submit(vec![Write::new(0, buf(1, 1)), Write::new(512, buf(1, 2))]);
    dev.power_cut();
    assert!(dev.wait(ticket).is_err() && dev.flush().is_err());
    assert_eq!(dev.unflushed(dev.events()), 2);
    dev.restart();
    assert_eq!(dev.events(), 0);
    assert_eq!(sectors(&dev.crash_image(0, &Outcome::None))[..2], [1, 2]);
    write_all(&dev, vec![Write::new(0, buf(1, 3))]).unwrap();
    dev.flush().unwrap();
    assert_eq!(dev.counters().flushes, 1);
}

#[test]
fn directed_outcomes_are_all_for_few_writes() {
    for count in 0..=3u64 {
        let dev = SimDevice::new(&MemoryDevice::new(4096));
        for index in 0..count {
            write_all(&dev, vec![Write::new(index * 512, buf(1, index as u8 + 1))]).unwrap();
        }
        let outcomes = Outcome::directed(count as usize);
        let images: HashSet<_> = outcomes
            .iter()
            .map(|outcome| sectors(&dev.crash_image(count as usize, outcome)))
            .collect();
        assert_eq!(images.len(), 1 << count);
        assert_eq!(images.len(), outcomes.len());
    }
}

/// Thousands of crash images a second, whatever the volume's size.
#[test]
fn crash_images_are_cheap() {
    let base = MemoryDevice::new(64 << 20);
    let step = 1 << 20;
    for offset in (0..base.size_bytes()).step_by(step) {
        write_all(&base, vec![Write::new(offset, buf(step as u64 / 512, 7))]).unwrap();
    }
    let dev = SimDevice::new(&base);
    for round in 0..100u64 {
        for index in 0..3 {
            let block = (round * 7919 + index * 131) % 16384;
            write_all(&dev, vec![Write::new(block * 4096, buf(8, 1))]).unwrap();
        }
        dev.flush().unwrap();
    }
    let (begun, mut count) = (Instant::now(), 0u32);
    for event in 0..=dev.events() {
        for seed in 0..5 {
            let image = dev.crash_image(event, &Outcome::Torn { seed });
            assert_eq!(image.size_bytes(), base.size_bytes());
            count += 1;
        }
    }
    let each = begun.elapsed() / count;
    println!("{count} crash images, {each:?} each");
}
