//! Device errors while a crashed volume is recovered. A recovery that reports an error can be repeated and then gives all that it would have
//! given at first; one that reports success has done all of it. So whatever fails, the tree is in the end that of a recovery without errors.
use ccfs_crash::config::{CONFIGS, Config, config};
use ccfs_crash::explore::workload;
use ccfs_crash::flash;
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::Tree;
use ccfs_crash::run::{Depth, Run, Source, any_outcome, guarded, mount, root_context};
use ccfs_crash::setting::Setting;
use ccfs_device::Write;
use ccfs_device::{AlignedBuf, Counters, Device, Ticket};
use ccfs_disks::{Fingerprints, MemoryDevice, Outcome, Plan, SimDevice};
use ccfs_engine::ROOT_INO;
use ccfs_image::{Image, OpenOptions};
use ccfs_testkit::Rng;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// What a bad place of the medium spoils, bytes.
const PLACE: u64 = 4096;
const NOWHERE: u64 = u64::MAX;
/// Of what is wrong, so much is shown: e2fsck can say a lot.
const LINES: usize = 3;

// --- the device

/// A simulated device with a bad place, which remembers what is read.
struct Worn {
    inner: Arc<SimDevice>,
    /// Reads that overlap the `PLACE` bytes from here on fail.
    bad: AtomicU64,
    /// Something has failed.
    failed: AtomicBool,
    reads: Mutex<Vec<(u64, u64)>>,
}

impl Worn {
    fn new(medium: &MemoryDevice) -> Arc<Worn> {
        Arc::new(Worn {
            inner: Arc::new(SimDevice::new(medium)),
            bad: AtomicU64::new(NOWHERE),
            failed: AtomicBool::new(false),
            reads: Mutex::default(),
        })
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        self.failed.fetch_or(result.is_err(), Relaxed);
        result
    }

    fn heal(&self) {
        self.bad.store(NOWHERE, Relaxed);
        self.inner.set_plan(Plan::default());
    }
}

impl Device for Worn {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (bad, len) = (self.bad.load(Relaxed), buf.len() as u64);
        if bad != NOWHERE && offset < bad + PLACE && bad < offset + len {
            return self.note(Err(io::Error::from_raw_os_error(libc::EIO)));
        }
        if let Ok(mut reads) = self.reads.lock() {
            reads.push((offset, len));
        }
        self.note(self.inner.read(offset, buf))
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.inner.submit(writes)
    }

    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.note(self.inner.wait(ticket))
    }

    fn flush(&self) -> io::Result<()> {
        self.note(self.inner.flush())
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

// --- what is tried

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Read(u64),
    /// A read that is done for several blocks at once is repeated for one: both must fail.
    TwoReads(u64),
    /// What reads from this offset on for `PLACE` bytes.
    BadPlace(u64),
    Write(u64),
    Flush(u64),
}

impl Fault {
    fn kind(self) -> &'static str {
        match self {
            Fault::Read(_) => "one read",
            Fault::TwoReads(_) => "two reads",
            Fault::BadPlace(_) => "a bad place",
            Fault::Write(_) => "one write",
            Fault::Flush(_) => "one flush",
        }
    }

    fn inject(self, dev: &Worn) {
        let mut plan = Plan {
            seed: 5,
            ..Plan::default()
        };
        match self {
            Fault::Read(n) => plan.fail_reads = vec![n],
            Fault::TwoReads(n) => plan.fail_reads = vec![n, n + 1],
            Fault::BadPlace(offset) => dev.bad.store(offset, Relaxed),
            Fault::Write(n) => plan.fail_writes = vec![n],
            Fault::Flush(n) => plan.fail_flushes = vec![n],
        }
        dev.inner.set_plan(plan);
    }
}

/// How many of each kind are tried at most, evenly spread.
#[derive(Clone, Copy)]
struct Effort {
    reads: usize,
    places: usize,
    writes: usize,
    flushes: usize,
}

/// How a recovery with an error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Failed,
    Succeeded,
    /// It never came to the point where the error was to be.
    Missed,
}

/// What came of all of them.
#[derive(Default)]
struct Tally {
    ends: BTreeMap<(&'static str, End), u64>,
    wrong: Vec<String>,
}

impl Tally {
    fn count(&self, end: End) -> u64 {
        let ends = self.ends.iter().filter(|((_, e), _)| *e == end);
        ends.map(|(_, count)| count).sum()
    }

    /// Both kinds of ends were seen, and nothing was wrong.
    fn assert_good(&self) {
        println!("{:?}", self.ends);
        let mut text = String::new();
        for wrong in self.wrong.iter().take(60) {
            let _ = writeln!(text, "{wrong}");
        }
        let count = self.wrong.len();
        assert!(count == 0, "{count} wrong ends, the first of them:\n{text}");
        assert!(self.count(End::Failed) > 0, "no recovery failed");
        assert!(self.count(End::Succeeded) > 0, "no recovery succeeded");
    }
}

/// At most `count` of them, evenly spread, with the last one.
fn sample<T: Copy>(all: &[T], count: usize) -> Vec<T> {
    if all.len() <= count {
        return all.to_vec();
    }
    (1..=count)
        .map(|i| all[i * all.len() / count - 1])
        .collect()
}

fn numbers(count: u64) -> Vec<u64> {
    (0..count).collect()
}

// --- a crash image, and what its recovery must give

/// What is compared after a recovery.
struct Seen {
    tree: Tree,
    free_inodes: u64,
    free_blocks: u64,
}

struct Case {
    name: String,
    setting: Setting,
    medium: MemoryDevice,
    want: Seen,
    /// What its recovery without errors does.
    reads: Vec<(u64, u64)>,
    writes: u64,
    flushes: u64,
    /// Where the log lies, bytes.
    log: Vec<Range<u64>>,
    prints: Fingerprints,
    /// Media that are known to be good.
    good: Mutex<HashSet<u128>>,
}

/// Recovers as a mount does, from the bytes of the medium alone.
fn recover(setting: &Setting, medium: Arc<dyn Device>) -> Result<(), String> {
    let dev = flash::attach(setting, medium)?;
    ccfs_engine::recover(&dev)
        .map(drop)
        .map_err(|e| e.to_string())
}

/// Recovers where that is to be done, asks e2fsck, and reads the tree.
fn look(setting: &Setting, medium: MemoryDevice) -> Result<Seen, String> {
    let medium = Arc::new(medium);
    recover(setting, medium.clone()).map_err(|e| format!("recovery: {e}"))?;
    flash::fsck(setting, &medium)?;
    let vol = mount(flash::attach(setting, medium)?, setting.options())?;
    let tree = observe(&vol);
    let space = vol.statfs().map_err(|e| e.to_string());
    vol.shutdown();
    let (tree, space) = (tree?, space?);
    Ok(Seen {
        tree,
        free_inodes: space.ffree,
        free_blocks: space.bfree,
    })
}

/// Where the log lies. Nowhere on flash, which does without.
fn log_of(setting: &Setting, medium: &MemoryDevice) -> Result<Vec<Range<u64>>, String> {
    if setting.flash {
        return Ok(Vec::new());
    }
    let image = Image::open(Arc::new(medium.snapshot()), OpenOptions::default());
    let runs = image.and_then(|image| image.journal_blocks().map(|runs| runs.to_vec()));
    let bs = u64::from(setting.config.block_size);
    let bytes = |run: &ccfs_image::Run| run.pblk * bs..(run.pblk + run.len) * bs;
    Ok(runs.map_err(|e| e.to_string())?.iter().map(bytes).collect())
}

impl Case {
    fn new(name: String, setting: Setting, medium: MemoryDevice) -> Result<Case, String> {
        let dev = Worn::new(&medium);
        recover(&setting, dev.clone())?;
        let used = dev.counters();
        let reads = dev.reads.lock().map_err(|e| e.to_string())?.clone();
        let case = Case {
            want: look(&setting, dev.inner.live())?,
            name,
            setting,
            reads,
            writes: used.writes,
            flushes: used.flushes,
            log: log_of(&setting, &medium)?,
            prints: Fingerprints::new(&medium),
            good: Mutex::default(),
            medium,
        };
        case.judge(dev.inner.crash_image(dev.inner.events(), &Outcome::None))?;
        Ok(case)
    }

    /// Does the medium show, after a recovery if there is one to be done, what it has to?
    fn judge(&self, medium: MemoryDevice) -> Result<(), String> {
        let print = self.prints.of(&medium);
        if self.good.lock().is_ok_and(|known| known.contains(&print)) {
            return Ok(());
        }
        let seen = look(&self.setting, medium)?;
        if let Some(difference) = self.want.tree.difference(&seen.tree, true) {
            return Err(difference);
        }
        let (want, free) = (&self.want, (seen.free_inodes, seen.free_blocks));
        if free != (want.free_inodes, want.free_blocks) {
            let all = (want.free_inodes, want.free_blocks);
            return Err(format!(
                "free inodes and blocks: {free:?} instead of {all:?}"
            ));
        }
        self.good.lock().map_err(|e| e.to_string())?.insert(print);
        Ok(())
    }

    /// Recovers with an error.
    fn recover_with(&self, fault: Fault) -> Result<End, String> {
        let dev = Worn::new(&self.medium);
        let sim = &dev.inner;
        fault.inject(&dev);
        let result = guarded(|| Ok(recover(&self.setting, dev.clone())))?;
        let hit = dev.failed.load(Relaxed);
        let failed_at = sim.events();
        dev.heal();
        if let Err(error) = &result {
            if !error.contains("os error 5") {
                // Nothing is damaged: whoever reads otherwise gives data up that could be had.
                return Err(format!(
                    "failed with another error than the device's: {error}"
                ));
            }
            let torn = Outcome::Torn { seed: 7 };
            for outcome in [Outcome::None, Outcome::All, torn] {
                self.judge(sim.crash_image(failed_at, &outcome))
                    .map_err(|e| format!("failed ({error}), then a power cut, {outcome:?}: {e}"))?;
            }
            // Whoever has failed says so and ends: the next one knows only the medium.
            recover(&self.setting, dev.clone())
                .map_err(|e| format!("failed ({error}), and again without an error: {e}"))?;
        } else if hit && matches!(fault, Fault::Flush(_)) {
            return Err("succeeded although a flush has failed".into());
        }
        let how = match &result {
            Ok(()) => "succeeded".to_string(),
            Err(error) => format!("failed ({error}) and was repeated"),
        };
        self.judge(sim.live()).map_err(|e| format!("{how}: {e}"))?;
        self.judge(sim.crash_image(sim.events(), &Outcome::None))
            .map_err(|e| format!("{how}, then a power cut: {e}"))?;
        Ok(match (hit, result) {
            (false, _) => End::Missed,
            (true, Ok(())) => End::Succeeded,
            (true, Err(_)) => End::Failed,
        })
    }

    /// Places that the recovery reads, and fewer of the log, of which the largest part is empty.
    fn places(&self, count: usize) -> Vec<u64> {
        let reads = self.reads.iter();
        let all = reads.flat_map(|(offset, len)| offset / PLACE..(offset + len).div_ceil(PLACE));
        let all: BTreeSet<u64> = all.map(|place| place * PLACE).collect();
        let in_log = |place: &u64| self.log.iter().any(|log| log.contains(place));
        let (mut log, others): (Vec<u64>, Vec<u64>) = all.into_iter().partition(in_log);
        log.retain(|place| self.is_used(*place));
        let mut places = sample(&others, count);
        places.extend(sample(&log, count / 4));
        places
    }

    /// Does the place hold anything but zeros?
    fn is_used(&self, place: u64) -> bool {
        let mut bytes = AlignedBuf::zeroed(PLACE as usize);
        self.medium.read(place, &mut bytes).is_ok() && bytes.iter().any(|b| *b != 0)
    }

    fn faults(&self, effort: &Effort) -> Vec<Fault> {
        let reads = sample(&numbers(self.reads.len() as u64), effort.reads);
        let mut all: Vec<Fault> = Vec::new();
        all.extend(reads.iter().copied().map(Fault::Read));
        all.extend(reads.iter().copied().map(Fault::TwoReads));
        all.extend(self.places(effort.places).into_iter().map(Fault::BadPlace));
        let writes = sample(&numbers(self.writes), effort.writes);
        all.extend(writes.into_iter().map(Fault::Write));
        let flushes = sample(&numbers(self.flushes), effort.flushes);
        all.extend(flushes.into_iter().map(Fault::Flush));
        all
    }

    fn try_all(&self, effort: &Effort, tally: &mut Tally) {
        for fault in self.faults(effort) {
            match self.recover_with(fault) {
                Ok(end) => *tally.ends.entry((fault.kind(), end)).or_default() += 1,
                Err(e) => {
                    let text: Vec<&str> = e.lines().filter(|l| !l.is_empty()).collect();
                    let text = text[..text.len().min(LINES)].join(" / ");
                    let wrong = format!("{}: {fault:?}: {text}", self.name);
                    tally.wrong.push(wrong);
                }
            }
        }
    }
}

fn campaign(cases: impl IntoIterator<Item = Case>, effort: &Effort) {
    let mut tally = Tally::default();
    for case in cases {
        case.try_all(effort, &mut tally);
    }
    tally.assert_good();
}

// --- the workloads

/// A volume with so large a log that no checkpoint comes by itself: recovery applies all that came after the last one.
const DEEP: Config = Config {
    name: "deep",
    size_mib: 32,
    log_mib: 4,
    inodes: 2048,
    ..CONFIGS[0]
};

fn named(volume: &str) -> &'static Config {
    config(volume).expect("there is such a volume")
}

/// `line` with `#` replaced by each number of the range.
fn repeat(range: std::ops::Range<usize>, line: &str) -> String {
    let lines = range.map(|i| line.replace('#', &i.to_string()) + ";");
    lines.collect()
}

/// All that recovery does something about: fields of directories that lie in blocks which nothing else makes it read, data beside the log
/// and in it, directories that get an index, attributes, extents in many pieces, files without a name.
fn rich() -> String {
    let name = "n".repeat(90);
    let lines = [
        // At home before the crash.
        repeat(0..24, "A mkdir d#; A create d#/old; A write d#/old 0 9000"),
        "A mkdir many".into(),
        repeat(0..100, "A mkdir many/#"),
        "A mkdir big; A create pieces; A reserve pieces 0 600000; A create whole; A allocate whole 0 200000".into(),
        repeat(0..20, "A write pieces #7000 900; A create gone#; A write gone# 0 5000"),
        repeat(0..12, &format!("A create big/{name}#")),
        repeat(0..6, "A setxattr d#/old user.long 500; A open gone# %g#; A open gone1# %h#"),
        "A syncfs; A checkpoint".into(),
        // In the log alone: what recovery has to do. Nothing else is said there of most of these directories.
        repeat(0..50, "A chmod many/# 711"),
        repeat(50..90, "B chown many/# 7 8"),
        repeat(90..100, "B utimes many/# 99"),
        repeat(0..4, "A chmod d# 711; B chown d# 7 8"),
        "A utimes d20 777; B chmod d21 1777; A acl d22 default 1:7 2:6:1000 4:5 16:7 32:0; A syncfs".into(),
        repeat(0..6, "A unlink gone#; B unlink gone1#; A tmpfile %t#; A write %t# 0 7000"),
        repeat(0..8, "A write d#/old #00 60; B create d1#/new; B write d1#/new 0 12000"),
        repeat(12..40, &format!("A create big/{name}#")),
        repeat(0..9, "A write pieces #1000 2000; A write whole #0000 300; A punch pieces #9000 3000"),
        "A syncfs".into(),
        repeat(2..6, "A removexattr d#/old user.long; A setxattr d#/old user.b 300"),
        "B rename d17/new top; B rename d23 d22/inner; A unlink d9/old; A rmdir d9; C mkdir d8/sub; B fsync top; C fsync d8/sub".into(),
        // Sent, and perhaps durable.
        repeat(0..5, "A append d#/old 5000; A chmod d# 750; B append d1#/new 100; B tick"),
        "A link top d0/link; A truncate whole 50000; C symlink s 200; A tick; B tick; C tick".into(),
    ];
    lines.join(";")
}

/// What depends on single reads, which nothing else in a recovery repeats.
fn corners() -> String {
    let name = "n".repeat(200);
    let pieces = |range: Range<u32>| -> String {
        range
            .flat_map(|piece| (0..3).map(move |file| (file, piece * 3072)))
            .map(|(file, at)| format!("A reserve deep{file} {at} 900;"))
            .collect()
    };
    let lines = [
        // Data has its place before directories find one for what they need. In the log it comes later, and nothing but the log says that
        // its place is taken.
        repeat(0..6, "A mkdir w#; A create w#/f; A write w#/f 0 5000"),
        // Blocks behind the end of file, in so many pieces that where the end is decides what e2fsck makes of their tree.
        repeat(0..3, "A create deep#"),
        pieces(0..450),
        "A syncfs; A checkpoint".into(),
        pieces(450..650),
        "A syncfs; A checkpoint".into(),
        (0..6)
            .map(|d| repeat(0..24, &format!("A create w{d}/{name}#")))
            .collect(),
        repeat(0..6, "B append w#/f 9000") + "A syncfs",
        "A truncate deep0 500000; A truncate deep1 1300000; A truncate deep2 1400000; A syncfs"
            .into(),
    ];
    lines.join(";")
}

/// Crash images of a run: its end, and `more` moments in its second half.
fn images(name: &str, run: &Run, more: usize, seed: u64) -> Result<Vec<Case>, String> {
    let end = run.dev.events();
    let mut points = vec![(end, Outcome::All)];
    if run.dev.unflushed(end) > 0 {
        points.push((end, Outcome::None));
    }
    let mut rng = Rng::new(seed);
    for i in 1..=more {
        let at = end - end / 2 * i / (more + 1);
        points.push((at, any_outcome(&mut rng, run.dev.unflushed(at))));
    }
    let case = |(at, outcome): (usize, Outcome)| {
        run.check(at, &outcome, Depth::Fsck)?;
        let name = format!("{name}, event {at} of {end}, {outcome:?}");
        Case::new(name, run.setting, run.dev.crash_image(at, &outcome))
    };
    points.into_iter().map(case).collect()
}

/// Crash images of a workload on one volume.
fn made(text: String, config: &'static Config, flash: bool, more: usize) -> Vec<Case> {
    let setting = Setting {
        unmount: false,
        streams: 3,
        flash,
        ..Setting::new(config)
    };
    let run = Run::record(setting, Source::Text(text));
    let name = format!("{}{}", config.name, if flash { " on flash" } else { "" });
    run.and_then(|run| images(&name, &run, more, 11))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn errors_while_a_rich_volume_is_recovered() {
    let effort = Effort {
        reads: 30,
        places: 60,
        writes: 8,
        flushes: 8,
    };
    let volumes = [
        (&DEEP, 2),
        (named("1k"), 1),
        (named("4k"), 1),
        (named("ext3"), 1),
    ];
    let cases = |(config, more)| made(rich(), config, false, more);
    campaign(volumes.into_iter().flat_map(cases), &effort);
}

#[test]
fn errors_of_reads_that_are_done_once_in_a_recovery() {
    let effort = Effort {
        reads: 200,
        places: 100,
        writes: 4,
        flushes: 4,
    };
    campaign(made(corners(), &DEEP, false, 0), &effort);
}

fn rich_on_flash() -> impl Iterator<Item = Case> {
    let volumes = ["1k", "4k"].into_iter();
    volumes.flat_map(|volume| made(rich(), named(volume), true, 1))
}

#[test]
fn errors_while_a_flash_is_recovered() {
    let effort = Effort {
        reads: 40,
        places: 60,
        writes: 12,
        flushes: 0,
    };
    campaign(rich_on_flash(), &effort);
}

#[test]
fn failed_flushes_while_a_flash_is_recovered() {
    let effort = Effort {
        reads: 4,
        places: 0,
        writes: 0,
        flushes: 20,
    };
    campaign(rich_on_flash(), &effort);
}

#[test]
fn errors_while_volumes_of_random_workloads_are_recovered() {
    let effort = Effort {
        reads: 12,
        places: 12,
        writes: 6,
        flushes: 6,
    };
    let cases = |seed| {
        let (setting, mix, length) = workload(seed);
        let setting = Setting {
            unmount: false,
            ..setting
        };
        let run = Run::record(setting, Source::Random(seed, mix, length));
        let cases = run.and_then(|run| images(&format!("seed {seed}"), &run, 1, seed));
        cases.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    };
    campaign((9100..9108).flat_map(cases), &effort);
}

/// More than the smallest log can list, so that recovery searches the tables of inodes for them.
const NAMELESS: u32 = 33_500;

/// A volume for so many files with the smallest log.
const WIDE: Config = Config {
    name: "wide",
    size_mib: 64,
    inodes: 60_000,
    ..CONFIGS[0]
};

fn with_nameless_files() -> Result<Case, String> {
    let setting = Setting::new(&WIDE);
    let dev = Arc::new(image::base(&WIDE)?);
    let vol = mount(dev.clone(), setting.options())?;
    let cx = root_context(&vol);
    let make = |i: u32| -> Result<(), ccfs_engine::Error> {
        vol.tmpfile(&cx, ROOT_INO, 0o600)?;
        match i % 500 {
            0 => vol.syncfs(&cx),
            _ => Ok(()),
        }
    };
    (0..NAMELESS)
        .try_for_each(make)
        .and_then(|()| vol.syncfs(&cx))
        .and_then(|()| vol.checkpoint())
        .map_err(|e| e.to_string())?;
    let medium = dev.snapshot();
    vol.shutdown();
    Case::new("many files without a name".into(), setting, medium)
}

#[test]
fn errors_while_recovery_searches_for_nameless_files() {
    let effort = Effort {
        reads: 8,
        places: 8,
        writes: 2,
        flushes: 2,
    };
    let case = with_nameless_files().unwrap_or_else(|e| panic!("{e}"));
    campaign([case], &effort);
}
