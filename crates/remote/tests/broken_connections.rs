//! A simulated store loses its connection at every request in turn, is started again without what was not flushed, and answers late, never
//! or with errors: who is told that something was done finds it so, and a volume keeps its order.
use ccfs_device::{AlignedBuf, Device, OpenMode, Write, write_all};
use ccfs_disks::{Fate, MemoryDevice, SimStore};
use ccfs_engine::{Context, DEFAULT_STREAM, Ino, Options, Volume, WriteFlags};
use ccfs_remote::{RemoteDevice, Request, Settings};
use ccfs_testkit::Rng;
use ccfs_testkit::place::Place;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16;
/// The first block has the owner's claim.
const FIRST: u64 = 1;
const ROOT: Ino = 2;
/// Longer than that.
const SETTLE: Duration = Duration::from_millis(250);
/// How late an old connection's write is carried out.
const LATE: Duration = Duration::from_millis(60);
/// Nothing takes so long unless it hangs.
const NEVER: Duration = Duration::from_secs(120);

fn settings(settle: Duration) -> Settings {
    Settings {
        patience: Duration::from_secs(6),
        settle,
        ..Settings::default()
    }
}

fn open(store: &Arc<SimStore>, settle: Duration) -> RemoteDevice {
    RemoteDevice::open(store.way(), OpenMode::ReadWrite, settings(settle)).unwrap()
}

/// A block that tells which write it is of.
fn block(version: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(BLOCK as usize);
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&version.to_le_bytes());
    }
    buf
}

/// The write that a block is of; torn ones are none.
fn version(device: &dyn Device, number: u64) -> Option<u64> {
    let mut buf = [0; BLOCK as usize];
    device.read(number * BLOCK, &mut buf).unwrap();
    let words: Vec<u64> = buf
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    words
        .iter()
        .all(|word| *word == words[0])
        .then_some(words[0])
}

/// Writes, flushes and reads at random; what is read is what was written last. `Err`: what is wrong.
fn works(device: &dyn Device, rng: &mut Rng, operations: u64) -> Result<Vec<Written>, String> {
    let mut blocks = vec![Written::default(); BLOCKS as usize];
    let mut next = 1;
    for _ in 0..operations {
        match rng.below(5) {
            0 => {
                device.flush().map_err(|e| e.to_string())?;
                for one in &mut blocks {
                    one.durable = one.newest;
                }
            }
            1 | 2 => {
                let number = FIRST + rng.below(BLOCKS - FIRST);
                let found = version(device, number);
                let wanted = blocks[number as usize].newest;
                if found != Some(wanted) {
                    return Err(format!(
                        "block {number} is {found:?}, and was written as {wanted}"
                    ));
                }
            }
            _ => {
                let count = 1 + rng.below(4);
                let mut numbers: Vec<u64> = (FIRST..BLOCKS).collect();
                rng.shuffle(&mut numbers);
                numbers.truncate(count as usize);
                let mut batch = Vec::new();
                for number in numbers {
                    batch.push(Write::new(number * BLOCK, block(next)));
                    blocks[number as usize].newest = next;
                    next += 1;
                }
                write_all(device, batch).map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(blocks)
}

#[derive(Clone, Default)]
struct Written {
    newest: u64,
    durable: u64,
}

/// One run with this fate at this request, counted from the device's opening on; then a power cut of the store. `Err`: what is wrong.
fn run(seed: u64, at: u64, fate: Fate, settle: Duration) -> Result<u64, String> {
    let from = Arc::new(AtomicU64::new(u64::MAX));
    let of_plan = from.clone();
    let store = SimStore::new(BLOCKS * BLOCK, seed, move |number, _| {
        match number.checked_sub(of_plan.load(Ordering::SeqCst)) == Some(at) {
            true => fate,
            false => Fate::Done,
        }
    });
    let device = open(&store, settle);
    from.store(store.requests(), Ordering::SeqCst);
    let begun = store.requests();
    let worked = works(&device, &mut Rng::new(seed), 40);
    let requests = store.requests() - begun;
    let blocks = worked?;
    store.settle();
    for number in FIRST..BLOCKS {
        let found = version(&device, number);
        let wanted = blocks[number as usize].newest;
        if found != Some(wanted) {
            return Err(format!(
                "at the end block {number} is {found:?}, and not {wanted}"
            ));
        }
    }
    let left = store.after_a_crash();
    for number in FIRST..BLOCKS {
        let Written { newest, durable } = blocks[number as usize];
        let mut buf = [0; BLOCK as usize];
        left.read(number * BLOCK, &mut buf).unwrap();
        for sector in buf.chunks_exact(512) {
            let found = u64::from_le_bytes(sector[..8].try_into().unwrap());
            if found < durable || found > newest {
                return Err(format!(
                    "after a power cut block {number} has {found}; {durable} was flushed, {newest} written"
                ));
            }
        }
    }
    Ok(requests)
}

/// Runs all at once, as far as that goes: most of each is waiting. Panics with the first that is wrong.
fn all_of<T: std::fmt::Debug + Sync>(cases: &[T], run: impl Fn(&T) -> Result<(), String> + Sync) {
    const AT_ONCE: usize = 48;
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = run(case) {
                        wrong
                            .lock()
                            .unwrap()
                            .get_or_insert(format!("{case:?}: {why}"));
                        next.store(cases.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    if let Some(wrong) = wrong.into_inner().unwrap() {
        panic!("{wrong}");
    }
}

/// Seeds of a test, more in `make crash`.
fn seeds(usual: u64) -> u64 {
    let asked = std::env::var("CCFS_STORE_SEEDS").ok();
    asked.map_or(usual, |n| n.parse().expect("a number"))
}

/// (seed, request, fate)
type Case = (u64, u64, Fate);

#[test]
fn every_request_can_lose_its_connection() {
    let fates = [
        Fate::LostBefore,
        Fate::LostAfter,
        Fate::Restart,
        Fate::RestartAfter,
        Fate::LostAndLate(LATE, SETTLE),
        Fate::AnsweredLate(Duration::from_millis(30)),
    ];
    let settle = |fate: Fate| match fate {
        Fate::LostAndLate(..) => SETTLE,
        _ => Duration::ZERO,
    };
    let mut cases: Vec<Case> = Vec::new();
    for seed in 0..seeds(3) {
        let requests = run(seed, u64::MAX, Fate::Done, Duration::ZERO).unwrap();
        assert!(requests > 20, "{requests}");
        for fate in fates {
            cases.extend((0..requests).map(|at| (seed, at, fate)));
        }
    }
    all_of(&cases, |(seed, at, fate)| {
        run(*seed, *at, *fate, settle(*fate)).map(|_| ())
    });
}

/// The same without the time that changes in doubt are waited for: the test above can fail.
#[test]
fn a_late_write_would_undo_a_newer_one() {
    let found = AtomicBool::new(false);
    let cases: Vec<(u64, u64)> = (0..400).map(|n| (n % 8, n / 8)).collect();
    all_of(&cases, |(seed, at)| {
        if !found.load(Ordering::Relaxed)
            && run(*seed, *at, Fate::LostAndLate(LATE, SETTLE), Duration::ZERO).is_err()
        {
            found.store(true, Ordering::Relaxed);
        }
        Ok(())
    });
    assert!(found.into_inner(), "a write that lands late harms nobody");
}

/// A request that is never answered: the connection counts as broken after a third of the patience, and all is asked for again.
#[test]
fn silence_ends() {
    let silenced = AtomicBool::new(false);
    let store = SimStore::new(BLOCKS * BLOCK, 1, move |_, request| {
        let is_one = matches!(request, Request::Write { offset, .. } if *offset == 5 * BLOCK);
        match is_one && !silenced.swap(true, Ordering::SeqCst) {
            true => Fate::Silent,
            false => Fate::Done,
        }
    });
    let device = open(&store, Duration::ZERO);
    let begun = Instant::now();
    write_all(&device, vec![Write::new(5 * BLOCK, block(7))]).unwrap();
    assert_eq!(version(&device, 5), Some(7));
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(1) && took < NEVER, "{took:?}");
    assert_eq!(device.remote().unwrap().reconnects, 1);
}

/// What the store refuses is an error; it is not asked for again.
#[test]
fn errors_are_told() {
    let store = SimStore::new(BLOCKS * BLOCK, 1, |_, request| match request {
        Request::Write { offset, .. } if *offset == 5 * BLOCK => Fate::Refused(libc::ENOSPC),
        _ => Fate::Done,
    });
    let device = open(&store, Duration::ZERO);
    let answer = write_all(&device, vec![Write::new(5 * BLOCK, block(7))]);
    assert_eq!(answer.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    write_all(&device, vec![Write::new(6 * BLOCK, block(7))]).unwrap();
}

/// A server that does not come back: everybody who waits is told within the patience, and so is who asks later.
#[test]
fn patience_ends() {
    let is_down = Arc::new(AtomicBool::new(false));
    let of_plan = is_down.clone();
    let store = SimStore::new(BLOCKS * BLOCK, 1, move |_, _| {
        match of_plan.load(Ordering::SeqCst) {
            true => Fate::LostBefore,
            false => Fate::Done,
        }
    });
    let device = Arc::new(open(&store, Duration::ZERO));
    is_down.store(true, Ordering::SeqCst);
    store.refuse_connections(u32::MAX);
    let begun = Instant::now();
    let asking: Vec<_> = (1..4)
        .map(|number| {
            let device = device.clone();
            std::thread::spawn(move || -> io::Result<()> {
                write_all(&*device, vec![Write::new(number * BLOCK, block(1))])
            })
        })
        .collect();
    for one in asking {
        let e = one.join().unwrap().unwrap_err();
        assert!(e.to_string().contains("no connection for 6 s"), "{e}");
    }
    let took = begun.elapsed();
    assert!(took < NEVER, "{took:?}");
    let shown = device.remote().unwrap();
    assert!(!shown.connected && shown.why.is_some());
    assert!(device.flush().is_err());
    let begun = Instant::now();
    drop(device);
    assert!(begun.elapsed() < NEVER);
}

/// What a look at the owner's claim is, and a beat.
fn is_look(request: &Request) -> bool {
    matches!(
        request,
        Request::Read {
            offset: 0,
            len: 1024
        }
    )
}

fn is_beat(request: &Request) -> bool {
    matches!(request, Request::Write { offset: 0, data } if data.len() == 512)
}

/// Writes and flushes for a time; every write is in order. Gives how many there were.
fn works_for(device: &dyn Device, time: Duration) -> u64 {
    let begun = Instant::now();
    let mut number = 0;
    while begun.elapsed() < time {
        number += 1;
        let at = FIRST + number % (BLOCKS - FIRST);
        write_all(device, vec![Write::new(at * BLOCK, block(number))]).unwrap();
        device.flush().unwrap();
        assert_eq!(version(device, at), Some(number));
        std::thread::sleep(Duration::from_millis(10));
    }
    number
}

/// A look at the claim takes longer than the lease: changes wait for the next one, nothing is changed by somebody who has not looked for so
/// long, and nothing hangs.
#[test]
fn a_slow_look_holds_changes_back_and_lets_them_go() {
    /// The owner's.
    const LEASE: u64 = 3000;
    let looks = AtomicU64::new(0);
    // The last look, and the changes that came after its lease.
    let last = Mutex::new((Instant::now(), 0));
    let worst = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let of_plan = worst.clone();
    let store = SimStore::new(BLOCKS * BLOCK, 1, move |_, request| {
        if is_look(request) {
            // The first ones are those of the opening.
            let is_late = matches!(looks.fetch_add(1, Ordering::SeqCst), 4 | 7);
            if is_late {
                return Fate::AnsweredLate(Duration::from_millis(4500));
            }
            *last.lock().unwrap() = (Instant::now(), 0);
            return Fate::Done;
        }
        if matches!(request, Request::Write { offset, .. } if *offset >= BLOCK) {
            let mut last = last.lock().unwrap();
            let since = last.0.elapsed().as_millis() as u64;
            last.1 += u64::from(since > LEASE);
            of_plan.0.fetch_max(since, Ordering::SeqCst);
            of_plan.1.fetch_max(last.1, Ordering::SeqCst);
        }
        Fate::Done
    });
    let settings = Settings {
        patience: Duration::from_secs(60),
        ..settings(Duration::ZERO)
    };
    let device = RemoteDevice::open(store.way(), OpenMode::ReadWrite, settings).unwrap();
    let begun = Instant::now();
    assert!(works_for(&device, Duration::from_secs(18)) > 100);
    assert!(begun.elapsed() < NEVER, "{:?}", begun.elapsed());
    assert_eq!(device.remote().unwrap().reconnects, 0);
    let (since, after) = (&worst.0, &worst.1);
    let (since, after) = (since.load(Ordering::SeqCst), after.load(Ordering::SeqCst));
    assert!(since >= 1000, "{since} ms after a look");
    // On a busy machine one that was let go in time comes later.
    assert!(after <= 1, "{after} changes, up to {since} ms after a look");
    let begun = Instant::now();
    drop(device);
    assert!(begun.elapsed() < NEVER);
}

/// Connections break in the middle of heartbeats, again and again: the owner goes on, and another host sees him alive all the time.
#[test]
fn heartbeats_outlive_their_connections() {
    let beats = AtomicU64::new(0);
    let is_bad = Arc::new(AtomicBool::new(true));
    let of_plan = is_bad.clone();
    let store = SimStore::new(BLOCKS * BLOCK, 1, move |_, request| {
        if !is_beat(request) || !of_plan.load(Ordering::SeqCst) {
            return Fate::Done;
        }
        // The first one is the opening's; the others are those of new connections, too.
        let number = beats.fetch_add(1, Ordering::SeqCst);
        match Rng::part(1, number).below(8) {
            0 if number > 1 => Fate::LostAfter,
            1 if number > 1 => Fate::LostAndLate(Duration::from_secs(2), Duration::from_secs(10)),
            _ => Fate::Done,
        }
    });
    let patient = Settings {
        patience: Duration::from_secs(60),
        ..settings(Duration::from_secs(10))
    };
    let device = RemoteDevice::open(store.way(), OpenMode::ReadWrite, patient).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for _ in 0..2 {
                let store = store.way();
                let opened =
                    RemoteDevice::open(store, OpenMode::ReadWrite, settings(Duration::ZERO));
                let why = opened.err().map(|e| e.to_string()).unwrap_or_default();
                assert!(why.contains("is in use: host"), "{why}");
            }
        });
        works_for(&device, Duration::from_secs(14));
        other.join().unwrap();
    });
    assert!(device.remote().unwrap().reconnects > 0);
    is_bad.store(false, Ordering::SeqCst);
    drop(device);
    store.settle();
    // The claim is gone: the next one need not wait.
    let mut place = [0; 1024];
    store.content().read(0, &mut place).unwrap();
    assert!(!ccfs_remote::is_claim(&place));
    drop(open(&store, Duration::ZERO));
}

/// A store with units of 4096 bytes: claim and count are written together, beside changes of the same block; connections break, and one is
/// away for longer than any look may take.
#[test]
fn large_units_outlive_their_connections() {
    let writes = AtomicU64::new(0);
    let store = SimStore::with_units(BLOCK, BLOCKS * BLOCK, 1, move |_, request| {
        let is_first = matches!(request, Request::Write { offset: 0, .. });
        match is_first && writes.fetch_add(1, Ordering::SeqCst) % 9 == 5 {
            true => Fate::LostAfter,
            false => Fate::Done,
        }
    });
    let device = open(&store, Duration::from_secs(2));
    let begun = Instant::now();
    let mut number = 0u64;
    let mut was_away = false;
    while begun.elapsed() < Duration::from_secs(14) {
        number += 1;
        if !was_away && begun.elapsed() > Duration::from_secs(4) {
            was_away = true;
            // 20 ms, 40 ms, ... 1 s: 4 to 5 s.
            store.refuse_connections(9);
        }
        // A part of the block that has the claim.
        let part = AlignedBuf::from_bytes(&[number as u8; 1024]);
        write_all(&device, vec![Write::new(1024, part)]).unwrap();
        device.flush().unwrap();
        let mut found = [0; 1024];
        device.read(1024, &mut found).unwrap();
        assert_eq!(found, [number as u8; 1024]);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(device.remote().unwrap().reconnects > 0);
    drop(device);
}

/// Each new connection breaks at the same request: that ends, too.
#[test]
fn a_request_that_breaks_every_connection_ends() {
    let store = SimStore::new(BLOCKS * BLOCK, 1, move |_, request| match request {
        Request::Write { offset, .. } if *offset == 5 * BLOCK => Fate::LostBefore,
        _ => Fate::Done,
    });
    let patience = Duration::from_secs(3);
    let short = Settings {
        patience,
        ..settings(Duration::ZERO)
    };
    let device = RemoteDevice::open(store.way(), OpenMode::ReadWrite, short).unwrap();
    let begun = Instant::now();
    let answer = write_all(&device, vec![Write::new(5 * BLOCK, block(7))]);
    let why = answer.unwrap_err().to_string();
    assert!(why.contains("has had no answer"), "{why}");
    let took = begun.elapsed();
    assert!(took > patience && took < NEVER, "{took:?}");
}

/// Two at once on a volume that is nobody's, again and again: one of them has it.
#[test]
fn of_two_one_becomes_the_owner() {
    let rounds: Vec<u64> = (0..12).collect();
    all_of(&rounds, |seed| {
        let store = SimStore::new(BLOCKS * BLOCK, *seed, |_, _| Fate::Done);
        let opened: Vec<_> = std::thread::scope(|scope| {
            let one = |_| {
                scope.spawn(|| {
                    let settings = settings(Duration::ZERO);
                    RemoteDevice::open(store.way(), OpenMode::ReadWrite, settings).ok()
                })
            };
            let all: Vec<_> = [0, 1, 2].map(one).into();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        match opened.iter().flatten().count() {
            0 | 1 => Ok(()),
            n => Err(format!("{n} of 3 have it")),
        }
    });
}

/// Files are made one after the other, some are synced; then power fails, here and there. What is there is the beginning of the row, and has
/// all that was synced.
fn volume_run(plain: &MemoryDevice, seed: u64, at: u64, fate: Fate) -> Result<u64, String> {
    const FILES: u64 = 40;
    let from = Arc::new(AtomicU64::new(u64::MAX));
    let of_plan = from.clone();
    let store = SimStore::new(plain.size_bytes(), seed, move |number, _| {
        match number.checked_sub(of_plan.load(Ordering::SeqCst)) == Some(at) {
            true => fate,
            false => Fate::Done,
        }
    });
    let device = open(&store, SETTLE);
    ccfs_device::copy_filled(plain, &device).unwrap();
    device.flush().unwrap();
    let begun = store.requests();
    from.store(begun, Ordering::SeqCst);
    let volume = Volume::mount(Arc::new(device), Options::default()).map_err(|e| e.to_string())?;
    let cx = Context::root(DEFAULT_STREAM);
    let mut rng = Rng::new(seed);
    let mut synced = 0;
    for number in 0..FILES {
        let name = format!("f{number}");
        let fail = |e: ccfs_engine::Error| format!("{name}: {e}");
        let made = volume
            .mknod(&cx, ROOT, name.as_bytes(), 0o100_644, 0)
            .map_err(fail)?;
        let text = name.repeat(900);
        volume
            .write(&cx, made.ino, 0, text.as_bytes(), WriteFlags::default())
            .map_err(fail)?;
        if rng.below(6) == 0 {
            volume.fsync(&cx, made.ino, false).map_err(fail)?;
            synced = number + 1;
        }
    }
    let requests = store.requests() - begun;
    store.settle();
    let left = store.after_a_crash();
    let _ = volume.unmount();
    let volume = Volume::mount(Arc::new(left), Options::default()).map_err(|e| e.to_string())?;
    let there = |number: &u64| volume.lookup(ROOT, format!("f{number}").as_bytes()).is_ok();
    let beginning = (0..FILES).take_while(there).count() as u64;
    let all = (0..FILES).filter(there).count() as u64;
    let _ = volume.unmount();
    if all != beginning {
        return Err(format!("{all} files are there, and f{beginning} is not"));
    }
    match beginning < synced {
        true => Err(format!("{synced} files were synced, {beginning} are there")),
        false => Ok(requests),
    }
}

#[test]
fn a_volume_keeps_its_order_whatever_becomes_of_its_connections() {
    let place = Place::new();
    let plain = MemoryDevice::from_file(place.volume("image", "20M")).unwrap();
    let fates = [
        Fate::LostBefore,
        Fate::Restart,
        Fate::RestartAfter,
        Fate::LostAndLate(LATE, SETTLE),
    ];
    let mut cases: Vec<Case> = Vec::new();
    let each = fates
        .iter()
        .cycle()
        .take(fates.len() * seeds(3).div_ceil(3) as usize);
    for (seed, fate) in (1..).zip(each.copied()) {
        let requests = volume_run(&plain, seed, u64::MAX, Fate::Done).unwrap();
        assert!(requests > 20, "{requests}");
        cases.extend((0..requests).map(|at| (seed, at, fate)));
    }
    all_of(&cases, |(seed, at, fate)| {
        volume_run(&plain, *seed, *at, *fate).map(|_| ())
    });
}
