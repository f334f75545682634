//! One recorded run of a workload on the simulator, and the check of one crash state of it.
use crate::drive::{Driver, Ended};
use crate::flash;
use crate::generate::{Action, Generator, Mix};
use crate::image;
use crate::marks::Marks;
use crate::observe::observe;
use crate::oracle::*;
use crate::script::Script;
use crate::setting::{FIRST_NODE, Setting};
use crate::watermarks::Watermarks;
use ccfs_device::{Device, SECTOR};
use ccfs_disks::{MemoryDevice, Outcome, SimDevice, Summary};
use ccfs_engine::{Context, Options, Row, Volume};
use ccfs_testkit::Rng;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Where the actions come from.
pub enum Source {
    Text(String),
    Actions(Vec<(usize, Action)>),
    /// Seed, mix, number of actions.
    Random(u64, Mix, usize),
}

/// A workload that was performed once.
pub struct Run {
    pub setting: Setting,
    pub dev: Arc<SimDevice>,
    pub an: Analysis,
    pub actions: Vec<(usize, Action)>,
    /// Device events when the mount had returned.
    pub mounted: usize,
    /// Device events when operation i began, and when sync call i had returned.
    pub began: Vec<usize>,
    pub synced: Vec<usize>,
    pub no_space: u64,
    /// Atomic groups that were taken back, and those of them that were in another stream's way.
    pub aborts: u64,
    pub conflicts: u64,
    pub taken_back: u64,
    pub marks: Marks,
    /// False where the seed does not give the same events again: a failure then saves its crash image and all events in the
    /// directory for temporary files.
    pub replays: bool,
}

/// How thoroughly a crash state is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Mount, read, judge.
    Read,
    /// Recover, e2fsck, mount, read, judge.
    Fsck,
    /// A durable frame of the log is damaged: the volume is refused and left as it is, or shows a state that was legal once.
    Damage { seed: u64 },
    /// Recover, e2fsck, mount, read, judge, go on working, unmount, e2fsck, mount, compare.
    Live { seed: u64 },
    /// Mount with recording; crash in the recovery, and in the recovery of that.
    Again { seed: u64 },
}

impl Depth {
    /// A word for statistics.
    pub fn name(self) -> &'static str {
        match self {
            Depth::Read => "read",
            Depth::Fsck => "fsck",
            Depth::Damage { .. } => "damage",
            Depth::Live { .. } => "live",
            Depth::Again { .. } => "again",
        }
    }
}

/// Transactions that recoveries met, by row of their decision table (`Row::ALL`).
pub type Rows = [u64; Row::ALL.len()];

/// Turns a panic into an error.
pub fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|p| {
        let text = p.downcast_ref::<String>().cloned();
        let text = text.or_else(|| p.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

/// A simulated device with a fresh volume, mounted. Errors: text.
pub fn begin(setting: &Setting) -> Result<(Arc<SimDevice>, Arc<Volume>), String> {
    let base = match setting.flash {
        true => flash::base(setting.config)?,
        false => image::base(setting.config)?,
    };
    let dev = Arc::new(match setting.ordered {
        true => SimDevice::ordered(&base),
        false => SimDevice::new(&base),
    });
    let vol = mount(flash::attach(setting, dev.clone())?, setting.options())?;
    Ok((dev, vol))
}

/// Mounts; the error is text.
pub fn mount(dev: Arc<dyn Device>, options: Options) -> Result<Arc<Volume>, String> {
    Volume::mount(dev, options).map_err(|e| format!("mount: {e}"))
}

/// Root in a stream of its own.
pub fn root_context(vol: &Volume) -> Context {
    Context::root(vol.new_stream())
}

/// Recovers and counts what it met.
fn recover(dev: Arc<dyn Device>, rows: &mut Rows) -> Result<(), String> {
    let done = ccfs_engine::recover(&dev).map_err(|e| format!("recovery: {e}"))?;
    for (sum, n) in rows.iter_mut().zip(done.iter().flat_map(|d| d.rows)) {
        *sum += n;
    }
    Ok(())
}

impl Run {
    /// Performs a workload on a fresh volume. The error says which promise was broken without any crash.
    pub fn record(setting: Setting, source: Source) -> Result<Run, String> {
        Self::record_into(setting, source, &mut Vec::new())
    }

    /// The same; `actions` are those that were begun, also where it failed.
    pub fn record_into(
        setting: Setting,
        source: Source,
        actions: &mut Vec<(usize, Action)>,
    ) -> Result<Run, String> {
        let run = guarded(|| Self::perform(setting, source, actions));
        run.map_err(|e| {
            format!(
                "{e}\n  after {} actions, the last: {:?}",
                actions.len(),
                actions.last()
            )
        })
    }

    fn perform(
        setting: Setting,
        mut source: Source,
        done: &mut Vec<(usize, Action)>,
    ) -> Result<Run, String> {
        let (dev, vol) = begin(&setting)?;
        let mounted = dev.events();
        let base = observe(&vol)?;
        let mut driver = Driver::new(vol, Some(dev.clone()), &base, setting.streams);
        driver.maps = setting.maps;
        let mut next = source.start();
        while let Some((stream, action)) = next(&driver.tree)? {
            done.push((stream, action.clone()));
            if driver.act(stream, &action)? == Ended::Stopped {
                return Err("the volume stopped although no device error was injected".into());
            }
        }
        let seen = observe(&driver.vol)?;
        if let Some(d) = driver.tree.difference(&seen, true) {
            return Err(format!("before the unmount the tree is wrong: {d}"));
        }
        if setting.unmount {
            driver.abort_groups()?;
            let after = driver.history.ops.len();
            driver.vol.unmount().map_err(|e| format!("unmount: {e}"))?;
            driver.history.syncs.push(Sync {
                stream: 0,
                kind: SyncKind::Volume,
                after,
            });
            driver.synced.push(dev.events());
        }
        let an = Analysis::new(base, driver.history, setting.config.times)
            .map_err(|(i, e)| format!("the model refuses operation {i}: {e}"))?;
        Ok(Run {
            setting,
            dev,
            an,
            actions: done.clone(),
            mounted,
            began: driver.began,
            synced: driver.synced,
            no_space: driver.no_space,
            aborts: driver.aborts,
            conflicts: driver.conflicts,
            taken_back: driver.taken_back,
            marks: driver.marks,
            replays: true,
        })
    }

    /// What the oracle may assume of a crash before event `at`.
    pub fn crash(&self, at: usize) -> Crash {
        Crash {
            accepted: self.began.partition_point(|b| *b <= at),
            synced: self.synced.partition_point(|s| *s <= at),
        }
    }

    /// Checks one crash state. The error is a report.
    pub fn check(&self, at: usize, outcome: &Outcome, depth: Depth) -> Result<Rows, String> {
        self.check_image(self.dev.crash_image(at, outcome), at, outcome, depth)
    }

    /// The same, where its medium is at hand.
    pub fn check_image(
        &self,
        image: MemoryDevice,
        at: usize,
        outcome: &Outcome,
        depth: Depth,
    ) -> Result<Rows, String> {
        let mut rows = Rows::default();
        let checked = guarded(|| match depth {
            Depth::Read => self.read(Arc::new(image), at, &mut rows).map(drop),
            Depth::Fsck => self.fsck(image, at, &mut rows),
            Depth::Live { seed } => self.live(image, at, seed),
            Depth::Again { seed } => self.again(&image, at, seed, 2, &mut rows),
            Depth::Damage { seed } => self.damage(image, at, seed, &mut rows),
        });
        checked.map(|()| rows).map_err(|e| {
            // Who looks for planted bugs wants them found, and nothing of them.
            let saved = if self.replays || cfg!(feature = "planted") {
                String::new()
            } else {
                self.save(at, outcome)
            };
            self.report(at, outcome, depth, &e) + &saved
        })
    }

    /// Keeps what no seed brings back. The text says where.
    fn save(&self, at: usize, outcome: &Outcome) -> String {
        let name = format!("ccfs-crash-{}-{at}", std::process::id());
        let (image, events) = (
            std::env::temp_dir().join(format!("{name}.img")),
            std::env::temp_dir().join(format!("{name}.events")),
        );
        let saved = self
            .dev
            .crash_image(at, outcome)
            .to_file(&image)
            .and_then(|()| std::fs::write(&events, self.dev.describe(0, self.dev.events())));
        match saved {
            Ok(()) => format!("  saved: {} and {}\n", image.display(), events.display()),
            Err(e) => format!("  the crash image could not be saved: {e}\n"),
        }
    }

    /// The least survivors that explain what a mount shows after a crash.
    pub fn survivors(&self, at: usize, outcome: &Outcome) -> Result<Cut, String> {
        let image = Arc::new(self.dev.crash_image(at, outcome));
        let seen = self.read(image, at, &mut Rows::default())?;
        judge(&self.an, &self.crash(at), &seen).map_err(|v| v.to_string())
    }

    /// Mounts, reads and judges; leaves as a crash does.
    fn read(&self, image: Arc<dyn Device>, at: usize, rows: &mut Rows) -> Result<Tree, String> {
        let image = flash::attach(&self.setting, image)?;
        recover(image.clone(), rows)?;
        let vol = mount(image, self.setting.options())?;
        let seen = observe(&vol);
        vol.shutdown();
        let seen = seen?;
        judge(&self.an, &self.crash(at), &seen).map_err(|v| v.to_string())?;
        Ok(seen)
    }

    /// Recovers; what it leaves must be plain ext4 (C8).
    fn fsck(&self, image: MemoryDevice, at: usize, rows: &mut Rows) -> Result<(), String> {
        let image = Arc::new(image);
        recover(flash::attach(&self.setting, image.clone())?, rows)?;
        flash::fsck(&self.setting, &image).map_err(|e| format!("after recovery: {e}"))?;
        self.read(image, at, rows).map(drop)
    }

    /// One sector of a frame that a later flush made durable is zeroed. C9: what was durable is never dropped silently; only the last
    /// transactions, those of the last flush before the newest frame that is there, may be missing.
    fn damage(
        &self,
        image: MemoryDevice,
        at: usize,
        seed: u64,
        rows: &mut Rows,
    ) -> Result<(), String> {
        if self.setting.flash {
            return self.damage_flash(image, at, seed, rows);
        }
        // Magic of a frame; kind "transaction" (docs/format.md, section 5).
        let is_txn =
            |w: &Summary| w.head.starts_with(b"ccFR") && w.head.get(44..46) == Some(&[1, 0]);
        let mut rng = Rng::new(seed);
        let flushed = self.dev.flushed_writes(at);
        let frames: Vec<&Summary> = flushed.iter().filter(|w| is_txn(w)).collect();
        if frames.is_empty() {
            return self.read(Arc::new(image), at, rows).map(drop);
        }
        let recent = frames.len().saturating_sub(12);
        let victim = rng.pick(&frames[recent..]);
        let sector = victim.offset + rng.below(victim.sectors) * SECTOR;
        let bs = u64::from(self.setting.config.block_size);
        let mut head = [0; 64];
        let read = image.read(sector - sector % bs, &mut head);
        read.map_err(|e| e.to_string())?;
        // The ring's next turn may have taken the place.
        let hit = Watermarks::id(&head).unwrap_or(u64::MAX);
        let vouched = match self.replays {
            true => Watermarks::of(&self.dev).vouched_before(at, hit),
            // Of threads nobody knows which of them a flush found at an end.
            false => 0,
        };
        image.fill(sector, SECTOR, 0).map_err(|e| e.to_string())?;
        let image = Arc::new(image);
        match Volume::mount(image.clone(), self.setting.options()) {
            // A pending checkpoint may have been repeated before, which loses nothing: the log still says the same.
            Err(e) => {
                let first = e.to_string();
                match Volume::recover(image) {
                    Err(e) if e.to_string() == first => {
                        rows[Row::Damaged as usize] += 1;
                        Ok(())
                    }
                    other => Err(format!(
                        "damage at {sector}: refused ({first}), then {other:?}"
                    )),
                }
            }
            Ok(vol) => {
                let seen = observe(&vol);
                vol.shutdown();
                let mut crash = self.crash(at);
                // What a later flush vouches for is there, unless it was home before.
                if hit > vouched {
                    crash.synced = 0;
                }
                judge(&self.an, &crash, &seen?)
                    .map(drop)
                    .map_err(|v| format!("damage of transaction {hit} at {sector}: {v}"))
            }
        }
    }

    /// One sector of the flash that a flush had covered is zeroed: the volume or a file of it is refused, or what it shows was legal once.
    fn damage_flash(
        &self,
        image: MemoryDevice,
        at: usize,
        seed: u64,
        rows: &mut Rows,
    ) -> Result<(), String> {
        let Some(sector) = flash::damage(&self.dev, &image, at, seed) else {
            return self.read(Arc::new(image), at, rows).map(drop);
        };
        let seen = flash::attach(&self.setting, Arc::new(image))
            .and_then(|dev| mount(dev, self.setting.options()))
            .and_then(|vol| {
                let seen = observe(&vol);
                vol.shutdown();
                seen
            });
        let Ok(seen) = seen else {
            rows[Row::Damaged as usize] += 1;
            return Ok(());
        };
        let crash = Crash {
            synced: 0,
            ..self.crash(at)
        };
        let judged = judge(&self.an, &crash, &seen).map(drop);
        judged.map_err(|v| format!("damage at {sector}: {v}"))
    }

    /// Life after the crash: the volume is plain ext4 once recovered, and can be worked on.
    fn live(&self, image: MemoryDevice, at: usize, seed: u64) -> Result<(), String> {
        let image = Arc::new(image);
        let attached = flash::attach(&self.setting, image.clone())?;
        Volume::recover(attached).map_err(|e| format!("recover: {e}"))?;
        flash::fsck(&self.setting, &image).map_err(|e| format!("after recovery: {e}"))?;
        let attached = flash::attach(&self.setting, image.clone())?;
        let vol = mount(attached, self.setting.options())?;
        let seen = observe(&vol)?;
        judge(&self.an, &self.crash(at), &seen).map_err(|v| v.to_string())?;
        let mut driver = Driver::new(vol, None, &seen, self.setting.streams);
        driver.maps = self.setting.maps;
        let mix = Mix {
            streams: self.setting.streams,
            rights_percent: if self.setting.maps { 20 } else { 0 },
            ..Mix::default()
        };
        let mut generator = Generator::new(seed, mix, FIRST_NODE * 2);
        let mut log = String::new();
        for _ in 0..25 {
            let (stream, action) = generator.next(&driver.tree);
            let _ = match &action {
                Action::Op(op) => writeln!(log, "    {stream}: {op}"),
                other => writeln!(log, "    {stream}: {other:?}"),
            };
            driver
                .act(stream, &action)
                .map_err(|e| format!("after recovery: {e}"))?;
        }
        driver
            .vol
            .unmount()
            .map_err(|e| format!("unmount after recovery: {e}"))?;
        drop(driver.vol);
        flash::fsck(&self.setting, &image)
            .map_err(|e| format!("after recovery, work and unmount: {e}"))?;
        let vol = mount(flash::attach(&self.setting, image)?, self.setting.options())?;
        let seen = observe(&vol)?;
        vol.shutdown();
        match driver.tree.difference(&seen, self.setting.config.times) {
            Some(d) => Err(format!(
                "after recovery, work and remount: {d}\n  the work:\n{log}"
            )),
            None => Ok(()),
        }
    }

    /// Crashes in the recovery of this image, and so on.
    fn again(
        &self,
        image: &MemoryDevice,
        at: usize,
        seed: u64,
        levels: u32,
        rows: &mut Rows,
    ) -> Result<(), String> {
        let dev = Arc::new(SimDevice::new(image));
        let attached = flash::attach(&self.setting, dev.clone())?;
        let vol = mount(attached, self.setting.options())?;
        let mounted = dev.events();
        let seen = observe(&vol)?;
        vol.shutdown();
        judge(&self.an, &self.crash(at), &seen).map_err(|v| v.to_string())?;
        let mut rng = Rng::new(seed);
        for _ in 0..4 {
            let event = rng.below(dev.events() as u64 + 1) as usize;
            let outcome = any_outcome(&mut rng, dev.unflushed(event));
            let inner = dev.crash_image(event, &outcome);
            let context = |e: String| {
                let events = dev.describe(event.saturating_sub(30), event);
                format!(
                    "crash in recovery at event {event} of {mounted}, {outcome:?}: {e}\n recovery's events:\n{events}"
                )
            };
            if levels > 1 && rng.chance(30) {
                self.again(&inner, at, rng.draw(), levels - 1, rows)
                    .map_err(context)?;
                continue;
            }
            let tree = self.read(Arc::new(inner), at, rows).map_err(context)?;
            // What a finished mount showed is what every later mount shows.
            if event >= mounted
                && let Some(d) = seen.difference(&tree, self.setting.config.times)
            {
                return Err(context(format!("a finished recovery was undone: {d}")));
            }
        }
        Ok(())
    }

    /// What is needed to understand a failure.
    fn report(&self, at: usize, outcome: &Outcome, depth: Depth, error: &str) -> String {
        let crash = self.crash(at);
        let mut text = format!(
            "{error}\n  crash before event {at} of {}, {outcome:?}, {depth:?}",
            self.dev.events()
        );
        let _ = writeln!(
            text,
            ", {} operations accepted, {} sync calls returned",
            crash.accepted, crash.synced
        );
        let ops = &self.an.history.ops[..crash.accepted];
        let skip = ops.len().saturating_sub(60);
        for (i, a) in ops.iter().enumerate().skip(skip) {
            for (k, s) in self.an.history.syncs[..crash.synced]
                .iter()
                .enumerate()
                .filter(|s| s.1.after == i)
            {
                let _ = writeln!(
                    text,
                    "       (event {:4}) stream {} {:?}",
                    self.synced[k], s.stream, s.kind
                );
            }
            let _ = writeln!(
                text,
                "  {i:4} (event {:4}) stream {} {}",
                self.began[i], a.stream, a.op
            );
        }
        for (k, s) in self.an.history.syncs[..crash.synced]
            .iter()
            .enumerate()
            .filter(|s| s.1.after == ops.len())
        {
            let _ = writeln!(
                text,
                "       (event {:4}) stream {} {:?}",
                self.synced[k], s.stream, s.kind
            );
        }
        let from = self
            .dev
            .flush_events()
            .into_iter()
            .rev()
            .find(|f| *f < at)
            .unwrap_or(0);
        text + &self.dev.describe(from.max(at.saturating_sub(40)), at)
    }
}

impl Source {
    #[allow(clippy::type_complexity)]
    fn start(&mut self) -> Box<dyn FnMut(&Tree) -> Result<Option<(usize, Action)>, String> + '_> {
        match self {
            Source::Text(text) => {
                let mut script = Script::new(text, FIRST_NODE);
                Box::new(move |tree| script.next(tree))
            }
            Source::Actions(actions) => {
                let mut rest = std::mem::take(actions).into_iter();
                Box::new(move |_| Ok(rest.next()))
            }
            Source::Random(seed, mix, length) => {
                let mut generator = Generator::new(*seed, mix.clone(), FIRST_NODE);
                let mut left = *length;
                Box::new(move |tree| {
                    left = left.saturating_sub(1);
                    Ok((left > 0).then(|| generator.next(tree)))
                })
            }
        }
    }
}

/// A random outcome for so many unflushed writes.
pub fn any_outcome(rng: &mut Rng, unflushed: usize) -> Outcome {
    let n = unflushed.max(1) as u64;
    match rng.below(10) {
        0 => Outcome::None,
        1 => Outcome::All,
        2 | 3 => Outcome::Prefix(rng.below(n) as usize),
        4 | 5 => Outcome::AllBut(rng.below(n) as usize),
        6 => Outcome::Only(rng.below(n) as usize),
        7 => Outcome::Subset { seed: rng.draw() },
        _ => Outcome::Torn { seed: rng.draw() },
    }
}
