//! The emulated transactional flash against a model: transactions, power cuts at every event, garbage collection, damage.
use ccfs_device::{
    AlignedBuf, Device, FLASH_PAGE, FlashBug, FlashDevice, FlashGeometry, Transactions, Tuning,
    Write,
};
use ccfs_disks::{MemoryDevice, Outcome, SimDevice};
use ccfs_testkit::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

const PAGES: u64 = 256;

/// Stamps of pages; a page without one holds zeros.
type Content = BTreeMap<u64, u64>;

fn geometry() -> FlashGeometry {
    FlashGeometry::with_spare(PAGES * FLASH_PAGE as u64, 8, 5, 24).unwrap()
}

fn formatted() -> MemoryDevice {
    let dev = Arc::new(MemoryDevice::new(geometry().file_bytes()));
    FlashDevice::format(dev.clone(), geometry(), 77).unwrap();
    dev.snapshot()
}

fn page(stamp: u64) -> AlignedBuf {
    let bytes: Vec<u8> = stamp.to_le_bytes().repeat(FLASH_PAGE / 8);
    AlignedBuf::from_bytes(&bytes)
}

fn write(lpn: u64, stamp: u64) -> Write {
    Write::new(lpn * FLASH_PAGE as u64, page(stamp))
}

/// Everything that a reader sees. The error tells of a page that is not whole.
fn content(flash: &FlashDevice) -> Result<Content, String> {
    let mut all = vec![0; flash.size_bytes() as usize];
    flash.read(0, &mut all).map_err(|e| e.to_string())?;
    let mut found = Content::new();
    for (lpn, bytes) in (0u64..).zip(all.chunks_exact(FLASH_PAGE)) {
        let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        if bytes != &page(stamp)[..] {
            return Err(format!("page {lpn} is a mixture"));
        }
        if stamp != 0 {
            found.insert(lpn, stamp);
        }
    }
    Ok(found)
}

/// What must be there from some call on.
struct State {
    began: usize,
    returned: usize,
    durable: bool,
    content: Content,
}

/// A flash on the simulator, and what it must hold.
struct Model {
    sim: Arc<SimDevice>,
    flash: FlashDevice,
    committed: Content,
    plain: BTreeMap<u64, u64>,
    txns: BTreeMap<u64, BTreeMap<u64, u64>>,
    next_txn: u64,
    stamp: u64,
    states: Vec<State>,
}

impl Model {
    fn new(tuning: Tuning) -> Model {
        let sim = Arc::new(SimDevice::new(&formatted()));
        let flash = FlashDevice::open_tuned(sim.clone(), tuning).unwrap();
        let empty = State {
            began: 0,
            returned: 0,
            durable: true,
            content: Content::new(),
        };
        Model {
            sim,
            flash,
            committed: Content::new(),
            plain: BTreeMap::new(),
            txns: BTreeMap::new(),
            next_txn: 1,
            stamp: 1,
            states: vec![empty],
        }
    }

    fn fresh(&mut self, rng: &mut Rng) -> Vec<(u64, u64)> {
        let count = 1 + rng.below(8);
        let some = (0..count).map(|_| {
            self.stamp += 1;
            (rng.below(PAGES), self.stamp)
        });
        some.collect()
    }

    fn step(&mut self, rng: &mut Rng) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        let open: Vec<u64> = self.txns.keys().copied().collect();
        let held = self.txns.values().map(BTreeMap::len).sum::<usize>() + self.plain.len();
        let turn = if held > 40 { 9 } else { rng.below(10) };
        match turn {
            0 | 1 => {
                let some = self.fresh(rng);
                let writes = some.iter().map(|(lpn, s)| write(*lpn, *s)).collect();
                ccfs_device::write_all(&self.flash, writes).map_err(text)?;
                self.plain.extend(some);
            }
            2..=5 => {
                let txn = match open.len() {
                    0..2 => {
                        self.next_txn += 1;
                        self.next_txn
                    }
                    n => open[rng.below(n as u64) as usize],
                };
                let some = self.fresh(rng);
                let writes = some.iter().map(|(lpn, s)| write(*lpn, *s)).collect();
                self.flash.write_in(txn, writes).map_err(text)?;
                self.txns.entry(txn).or_default().extend(some);
            }
            6 => {
                let (from, len) = (rng.below(PAGES), 1 + rng.below(6));
                let len = len.min(PAGES - from);
                let bytes = FLASH_PAGE as u64;
                let txn = open.first().copied().filter(|_| rng.below(2) == 0);
                match txn {
                    Some(txn) => self.flash.discard_in(txn, from * bytes, len * bytes),
                    None => self.flash.discard(from * bytes, len * bytes),
                }
                .map_err(text)?;
                let table = txn.map_or(&mut self.plain, |t| self.txns.get_mut(&t).unwrap());
                table.extend((from..from + len).map(|lpn| (lpn, 0)));
            }
            7 if !open.is_empty() && rng.below(3) == 0 => {
                self.flash.abort(open[0]).map_err(text)?;
                self.txns.remove(&open[0]);
            }
            _ => self.end(rng, open.first().copied())?,
        }
        let mut seen = self.committed.clone();
        merge(&mut seen, &self.plain);
        match content(&self.flash)? == seen {
            true => Ok(()),
            false => Err("a reader sees something else than was written".into()),
        }
    }

    /// Commits a transaction, or flushes.
    fn end(&mut self, rng: &mut Rng, txn: Option<u64>) -> Result<(), String> {
        let began = self.sim.events();
        let plain = std::mem::take(&mut self.plain);
        merge(&mut self.committed, &plain);
        if let Some(txn) = txn {
            let table = self.txns.remove(&txn).unwrap();
            merge(&mut self.committed, &table);
        }
        let content = self.committed.clone();
        let durable = txn.is_none() || rng.below(3) > 0;
        // Before the call: a crash may find it done.
        self.states.push(State {
            began,
            returned: usize::MAX,
            durable,
            content,
        });
        let done = match txn {
            None => self.flash.flush(),
            Some(txn) if durable => self.flash.commit(txn),
            Some(txn) => self.flash.commit_ordered(txn),
        };
        done.map_err(|e| e.to_string())?;
        self.states.last_mut().unwrap().returned = self.sim.events();
        Ok(())
    }

    /// Which states a power cut before event `at` may leave.
    fn allowed(&self, at: usize) -> std::ops::RangeInclusive<usize> {
        let least = |s: &State| s.durable && s.returned <= at;
        let first = self.states.iter().rposition(least).unwrap();
        let last = self.states.iter().rposition(|s| s.began <= at).unwrap();
        first..=last
    }

    fn check(&self, at: usize, outcome: &Outcome, tuning: Tuning) -> Result<(), String> {
        let image = self.sim.crash_image(at, outcome);
        let context = |e: String| format!("before event {at}, {outcome:?}: {e}");
        let open = |image: MemoryDevice| {
            let sim = Arc::new(SimDevice::new(&image));
            let flash = FlashDevice::open_tuned(sim.clone(), tuning);
            (sim, flash)
        };
        let (sim, flash) = open(image);
        let flash = flash.map_err(|e| context(e.to_string()))?;
        let found = content(&flash).map_err(context)?;
        let allowed = self.allowed(at);
        if !self.states[allowed.clone()]
            .iter()
            .any(|s| s.content == found)
        {
            return Err(context(format!("not one of the states {allowed:?}")));
        }
        // A power cut in the recovery changes nothing.
        if at.is_multiple_of(7) {
            let event = (at * 31) % (sim.events() + 1);
            for outcome in [Outcome::None, Outcome::Torn { seed: at as u64 }] {
                let (_, again) = open(sim.crash_image(event, &outcome));
                let again = again.map_err(|e| context(format!("in recovery: {e}")))?;
                if content(&again).map_err(context)? != found {
                    return Err(context(format!(
                        "another state after a crash at {event} in recovery"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// 0 stands for a page without content.
fn merge(content: &mut Content, changes: &BTreeMap<u64, u64>) {
    content.extend(changes);
    content.retain(|_, stamp| *stamp != 0);
}

/// A run of `steps`, then power cuts before every `every`-th event.
fn explore(seed: u64, steps: u64, every: usize, tuning: Tuning) -> Result<usize, String> {
    let mut rng = Rng::new(seed);
    let mut model = Model::new(tuning);
    for step in 0..steps {
        let done = model.step(&mut rng);
        done.map_err(|e| format!("seed {seed}, step {step}: {e}"))?;
    }
    let mut states = 0;
    for at in (0..=model.sim.events()).step_by(every) {
        let open = model.sim.unflushed(at);
        let mut outcomes = vec![Outcome::None, Outcome::All];
        if open > 1 {
            let which = rng.below(open as u64) as usize;
            outcomes.extend([Outcome::AllBut(which), Outcome::Prefix(which)]);
            outcomes.push(Outcome::Subset {
                seed: rng.below(1 << 40),
            });
            outcomes.push(Outcome::Torn {
                seed: rng.below(1 << 40),
            });
            outcomes.push(Outcome::Torn {
                seed: rng.below(1 << 40),
            });
        }
        for outcome in outcomes {
            let checked = model.check(at, &outcome, tuning);
            checked.map_err(|e| format!("seed {seed}, {e}"))?;
            states += 1;
        }
    }
    Ok(states)
}

const EAGER: Tuning = Tuning {
    snapshot_every: 60,
    bug: None,
};

#[test]
fn a_power_cut_leaves_every_commit_that_returned_and_no_part_of_any() {
    let mut states = 0;
    for seed in 0..6 {
        let tuning = match seed % 2 {
            0 => EAGER,
            _ => Tuning::default(),
        };
        states += explore(seed, 120, 5, tuning).unwrap();
    }
    assert!(states > 1000, "{states}");
}

#[test]
fn what_is_read_is_what_was_written_through_much_garbage() {
    let mut rng = Rng::new(5);
    let mut model = Model::new(EAGER);
    let mut half_way = 0;
    for step in 0..1500 {
        model
            .step(&mut rng)
            .unwrap_or_else(|e| panic!("step {step}: {e}"));
        if step == 750 {
            half_way = model.flash.flash_counters().life_erases;
        }
    }
    let c = model.flash.flash_counters();
    assert!(c.moved_pages > 0 && c.erases > 100 && c.aborts > 0, "{c:?}");
    assert!(c.write_amplification() > 1.0, "{c:?}");
    assert!(c.wear_most - c.wear_least < 100, "{c:?}");
    assert!(c.life_programmed >= c.programmed && c.life_host_pages >= c.host_pages);
    model.flash.flush().unwrap();
    let before = content(&model.flash).unwrap();
    let again = FlashDevice::open(Arc::new(model.sim.live())).unwrap();
    assert_eq!(content(&again).unwrap(), before);
    // Of its life it knows what the newest root knew.
    let life_erases = again.flash_counters().life_erases;
    assert!(half_way < life_erases && life_erases <= c.life_erases + 1);
}

#[test]
fn planted_bugs_are_found() {
    // The last one shows without a crash, after much garbage.
    let bugs = [
        (FlashBug::UncheckedPages, 150, 3),
        (FlashBug::EarlyErase, 150, 3),
        (FlashBug::UnflushedTables, 150, 3),
        (FlashBug::SkippedFlush, 150, 3),
        (FlashBug::OpenPagesLost, 1500, usize::MAX),
    ];
    for (bug, steps, every) in bugs {
        let tuning = Tuning {
            bug: Some(bug),
            ..EAGER
        };
        let found = (0..60).find(|seed| {
            let run = || explore(*seed, steps, every, tuning).is_err();
            std::panic::catch_unwind(run).unwrap_or(true)
        });
        println!("{bug:?}: seed {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

#[test]
fn a_full_device_can_be_overwritten_for_ever() {
    let flash = FlashDevice::open_tuned(Arc::new(formatted()), EAGER).unwrap();
    let most = flash.transaction_max() / FLASH_PAGE as u64;
    assert!(most >= 24, "{most}");
    for lpn in 0..PAGES {
        ccfs_device::write_all(&flash, vec![write(lpn, lpn + 1)]).unwrap();
    }
    flash.flush().unwrap();
    let mut rng = Rng::new(9);
    let mut wanted: Content = (0..PAGES).map(|lpn| (lpn, lpn + 1)).collect();
    for txn in 1..300 {
        // Of the largest size, all over the device.
        for n in 0..most {
            let (lpn, stamp) = (rng.below(PAGES), txn * 1000 + n);
            flash.write_in(txn, vec![write(lpn, stamp)]).unwrap();
            wanted.insert(lpn, stamp);
        }
        flash.commit(txn).unwrap();
    }
    assert_eq!(content(&flash).unwrap(), wanted);
    let c = flash.flash_counters();
    assert_eq!(c.commits, 300);
    assert!(c.wear_most - c.wear_least <= 80, "{c:?}");
}

#[test]
fn a_transaction_that_has_no_room_says_so_and_can_be_taken_back() {
    let flash = FlashDevice::open(Arc::new(formatted())).unwrap();
    for lpn in 0..PAGES {
        ccfs_device::write_all(&flash, vec![write(lpn, 7)]).unwrap();
    }
    flash.flush().unwrap();
    let mut refused = None;
    for turn in 0..20 {
        for lpn in 0..PAGES {
            // Each transaction holds its pages until it ends.
            let done = flash.write_in(1 + turn, vec![write(lpn, 8)]);
            refused = refused.or(done.err());
        }
    }
    let error = refused.expect("the device took more than it has");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("not committed"), "{error}");
    for turn in 0..20 {
        flash.abort(1 + turn).unwrap();
    }
    flash.write_in(99, vec![write(3, 9)]).unwrap();
    flash.commit(99).unwrap();
    let seen = content(&flash).unwrap();
    assert_eq!((seen[&3], seen[&4]), (9, 7));
}

#[test]
fn parts_of_pages_are_written_and_read() {
    let flash = FlashDevice::open(Arc::new(formatted())).unwrap();
    let sector = |b: u8| AlignedBuf::from_bytes(&[b; 512]);
    let writes = vec![Write::new(512, sector(1)), Write::new(1024, sector(2))];
    flash.write_in(5, writes).unwrap();
    let mut buf = [9; 2048];
    flash.read(0, &mut buf).unwrap();
    assert_eq!(buf, [0; 2048], "nobody reads what is not committed");
    flash
        .write_in(5, vec![Write::new(1024, sector(3))])
        .unwrap();
    flash.commit(5).unwrap();
    flash.read(256, &mut buf[..1400]).unwrap();
    assert_eq!(
        (buf[0], buf[255], buf[256], buf[767], buf[768]),
        (0, 0, 1, 1, 3)
    );
    assert!(flash.commit(0).is_err(), "0 is no transaction");
    let far = flash.size_bytes();
    assert!(flash.write_in(6, vec![Write::new(far, sector(1))]).is_err());
}

#[test]
fn damage_gives_a_clear_error_and_never_other_content() {
    let base = Arc::new(formatted());
    let flash = FlashDevice::open(base.clone()).unwrap();
    for txn in 1..40 {
        let writes = (0..5).map(|n| write((txn * 5 + n) % PAGES, txn)).collect();
        flash.write_in(txn, writes).unwrap();
        flash.commit(txn).unwrap();
    }
    let good = content(&flash).unwrap();
    drop(flash);
    // With a root that covers all of it.
    drop(FlashDevice::open(base.clone()).unwrap());
    let mut rng = Rng::new(1);
    let mut errors = 0;
    for sector in 0..geometry().file_bytes() / 512 {
        let image = base.snapshot();
        let at = sector * 512 + rng.below(40);
        let mut byte = [0];
        image.read(at, &mut byte).unwrap();
        image.fill(at, 1, byte[0] ^ 0x10).unwrap();
        let seen = FlashDevice::open(Arc::new(image))
            .map_err(|e| e.to_string())
            .and_then(|flash| content(&flash));
        match seen {
            Ok(seen) => assert_eq!(seen, good, "sector {sector}"),
            Err(text) => {
                errors += 1;
                assert!(text.contains("flash"), "{text}");
            }
        }
    }
    assert!(errors > 100, "{errors}");
    // Cut, empty, and something else.
    let short = MemoryDevice::new(geometry().file_bytes() - 512);
    let mut head = vec![0; 4096];
    base.read(0, &mut head).unwrap();
    ccfs_device::write_all(&short, vec![Write::new(0, AlignedBuf::from_bytes(&head))]).unwrap();
    for (dev, text) in [
        (short, "cut"),
        (MemoryDevice::new(8192), "magic"),
        (MemoryDevice::new(512), "short"),
    ] {
        let error = FlashDevice::open(Arc::new(dev)).err().unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_failed_write_or_flush_stops_it_and_reading_goes_on() {
    let sim = Arc::new(SimDevice::new(&formatted()));
    let flash = FlashDevice::open(sim.clone()).unwrap();
    flash.write_in(1, vec![write(1, 5)]).unwrap();
    flash.commit(1).unwrap();
    sim.set_plan(ccfs_disks::Plan {
        fail_flushes: vec![0],
        ..ccfs_disks::Plan::default()
    });
    flash.write_in(2, vec![write(1, 6)]).unwrap();
    assert!(flash.commit(2).is_err());
    let error = flash.write_in(3, vec![write(2, 6)]).unwrap_err();
    assert!(error.to_string().contains("stopped"), "{error}");
    assert!(flash.flush().is_err() && content(&flash).is_ok());
}
