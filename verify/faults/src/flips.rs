//! Bit flips: one bit of a volume at rest, or of a crashed one with its log. Never is another tree shown, unless there are no
//! checksums to tell. What a scrub finds of the same flips is counted apart.
use crate::table::Table;
use crate::{Outcome, case};
use ccfs_crash::config::Config;
use ccfs_crash::drive::{Driver, Ended};
use ccfs_crash::generate::{Generator, Mix};
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::*;
use ccfs_crash::run::{Run, Source, any_outcome, mount, root_context};
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_crash::watermarks::Watermarks;
use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_disks::{MemoryDevice, Outcome as Kept};
use ccfs_engine::{ROOT_INO, Volume, WriteFlags};
use ccfs_image::{Image, OpenOptions, ScrubAt};
use ccfs_testkit::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A volume at rest with every kind of structure, and what it shows.
pub struct Rested {
    pub config: &'static Config,
    pub dev: MemoryDevice,
    pub tree: Tree,
    /// Blocks of structure by kind.
    pub blocks: BTreeMap<&'static str, Vec<u64>>,
}

/// Structures that a random workload on a small volume seldom makes: a large directory, files in pieces, long attributes.
fn fill(vol: &Volume) -> Result<(), ccfs_engine::Error> {
    let cx = root_context(vol);
    let dir = vol.mkdir(&cx, ROOT_INO, b"large", 0o755)?.ino;
    for n in 0..150 {
        let name = format!("a rather long name, so that the directory soon has many blocks, {n}");
        let file = vol.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0)?.ino;
        vol.setxattr(
            &cx,
            file,
            b"user.long",
            &[n as u8; 200],
            false,
            false,
            false,
        )?;
    }
    let file = vol.mknod(&cx, ROOT_INO, b"pieces", 0o100_644, 0)?.ino;
    for n in 0..400u64 {
        vol.write(
            &cx,
            file,
            n * 8192,
            &[n as u8 | 1; 1024],
            WriteFlags::default(),
        )?;
    }
    vol.symlink(&cx, ROOT_INO, b"link", &[b'x'; 300])?;
    Ok(())
}

impl Rested {
    /// Makes one; seeds give different trees.
    pub fn make(config: &'static Config, seed: u64) -> Result<Rested, String> {
        let dev = Arc::new(image::base(config)?);
        let setting = Setting::new(config);
        let vol = mount(dev.clone(), setting.options())?;
        fill(&vol).map_err(|e| e.to_string())?;
        let base = observe(&vol)?;
        let mut driver = Driver::new(vol, None, &base, setting.streams);
        driver.keep = false;
        let mut generator = Generator::new(seed, Mix::default(), FIRST_NODE);
        for _ in 0..150 {
            let (stream, action) = generator.next(&driver.tree);
            driver.act(stream, &action)?;
        }
        driver.vol.unmount().map_err(|e| e.to_string())?;
        let dev = dev.snapshot();
        let vol = mount(Arc::new(dev.snapshot()), setting.options())?;
        let tree = observe(&vol)?;
        vol.shutdown();
        let (blocks, damage) = scrub(&dev).map_err(|e| format!("scrub: {e}"))?;
        match damage.first() {
            Some(d) => Err(format!("scrub of a sound volume finds {d}")),
            None => Ok(Rested {
                config,
                dev,
                tree,
                blocks,
            }),
        }
    }
}

/// Scrubs a volume that is not mounted: blocks of structure by kind, and what is damaged.
#[allow(clippy::type_complexity)]
pub fn scrub(
    dev: &MemoryDevice,
) -> Result<(BTreeMap<&'static str, Vec<u64>>, Vec<String>), String> {
    let image =
        Image::open(Arc::new(dev.snapshot()), OpenOptions::default()).map_err(|e| e.to_string())?;
    let mut blocks: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    let mut damage = Vec::new();
    let mut at = Some(ScrubAt::default());
    let mut steps = 0;
    while let Some(now) = at {
        let step = image.scrub(now, 64, Duration::from_secs(5));
        steps += 1;
        if steps > 1 << 20 || step.next == Some(now) {
            return Err(format!("the scrub does not get on at {now:?}"));
        }
        for v in &step.visited {
            blocks.entry(v.what).or_default().push(v.pblk);
        }
        damage.extend(step.damage.into_iter().map(|d| d.what));
        at = step.next;
    }
    for list in blocks.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    Ok((blocks, damage))
}

/// A bit of a device.
#[derive(Clone, Copy, Debug)]
pub struct Bit {
    pub block: u64,
    /// Bit within the block.
    pub bit: u64,
}

/// A copy with the bit changed.
pub fn flipped(dev: &MemoryDevice, block_size: u64, bit: Bit) -> MemoryDevice {
    let copy = dev.snapshot();
    let mut buf = AlignedBuf::zeroed(block_size as usize);
    let at = bit.block * block_size;
    // A memory device's I/O within its bounds does not fail.
    let _ = copy.read(at, &mut buf);
    buf[bit.bit as usize / 8] ^= 1 << (bit.bit % 8);
    let _ = write_all(&copy, vec![Write::new(at, buf)]);
    copy
}

/// Flips `per_kind` bits in blocks of each kind of structure of a volume at rest.
pub fn campaign_at_rest(table: &mut Table, config: &'static Config, seed: u64, per_kind: u64) {
    let label = format!("{}, seed {seed}", config.name);
    let rested = match Rested::make(config, seed) {
        Ok(rested) => Arc::new(rested),
        Err(e) => return table.count("bit flip", &label, Outcome::Wrong(e)),
    };
    let checksums = !config.features.contains("^metadata_csum");
    let mut rng = Rng::new(seed);
    for (what, list) in &rested.blocks {
        for _ in 0..per_kind {
            let bit = Bit {
                block: *rng.pick(list),
                bit: rng.below(u64::from(config.block_size) * 8),
            };
            let (volume, seed) = (rested.clone(), rng.draw());
            let outcome = case(move || at_rest(&volume, bit, seed, checksums));
            let name = format!("{label}, {bit:?}");
            if checksums {
                table.count(&format!("bit flip at rest: {what}"), &name, outcome);
            } else {
                table.count("bit flip at rest, volume without checksums", &name, outcome);
            }
        }
    }
}

/// One flip: scrub, mount, read all, work, unmount, mount, read all.
fn at_rest(rested: &Rested, bit: Bit, seed: u64, checksums: bool) -> Result<Outcome, String> {
    let dev = flipped(&rested.dev, rested.config.block_size.into(), bit);
    let found = match scrub(&dev) {
        Ok((_, damage)) => !damage.is_empty(),
        // It cannot even be opened.
        Err(_) => true,
    };
    let shown = show_and_work(rested, dev, seed);
    match shown {
        Ok(None) if found => Ok(Outcome::Latent),
        Ok(None) => Ok(Outcome::Nothing),
        Ok(Some(_)) if !checksums => Ok(Outcome::Shown),
        Ok(Some(difference)) => Err(format!("another tree: {difference} (scrub: {found})")),
        Err(_) if found || !checksums => Ok(Outcome::Detected),
        Err(e) => Err(format!("the scrub finds nothing, but: {e}")),
    }
}

/// `Err`: damage was noticed. Some: another tree is shown, without an error.
fn show_and_work(rested: &Rested, dev: MemoryDevice, seed: u64) -> Result<Option<String>, String> {
    let setting = Setting::new(rested.config);
    let dev = Arc::new(dev);
    let vol = mount(dev.clone(), setting.options())?;
    let seen = observe(&vol)?;
    if let Some(d) = rested.tree.difference(&seen, rested.config.times) {
        vol.shutdown();
        return Ok(Some(d));
    }
    let mut driver = Driver::new(vol, None, &seen, setting.streams);
    driver.keep = false;
    let mut generator = Generator::new(seed, Mix::default(), FIRST_NODE * 2);
    for _ in 0..30 {
        let (stream, action) = generator.next(&driver.tree);
        if driver.act(stream, &action)? == Ended::Stopped {
            return Err("the volume stopped".into());
        }
    }
    driver.vol.unmount().map_err(|e| e.to_string())?;
    let vol = mount(dev, setting.options())?;
    let seen = observe(&vol)?;
    vol.shutdown();
    let difference = driver.tree.difference(&seen, rested.config.times);
    Ok(difference.map(|d| format!("after work and an unmount: {d}")))
}

/// A run that crashed: the medium and what may be seen of it.
struct Crashed {
    run: Run,
    at: usize,
    image: MemoryDevice,
    block_size: u64,
    /// Blocks of the log behind its headers.
    ring: Vec<u64>,
    watermarks: Watermarks,
}

/// Flips bits of the log of crashed volumes: `points` power cuts of the seed's workload, `per_point` flips of each.
pub fn campaign_log(
    table: &mut Table,
    config: &'static Config,
    seed: u64,
    points: u64,
    per_point: u64,
) {
    let label = format!("{}, seed {seed}", config.name);
    let fault = "bit flip in a crashed volume";
    let recorded = record(config, seed);
    let run = match recorded {
        Ok(run) => run,
        Err(e) => return table.count(fault, &label, Outcome::Wrong(e)),
    };
    let mut rng = Rng::new(seed ^ 0x10f);
    let mut run = Some(run);
    for _ in 0..points {
        let Some(now) = run.take() else { return };
        let at = rng.below(now.dev.events() as u64 + 1) as usize;
        let kept = match rng.below(3) {
            0 => Kept::All,
            1 => Kept::None,
            _ => any_outcome(&mut rng, now.dev.unflushed(at)),
        };
        let mut crashed = Crashed {
            image: now.dev.crash_image(at, &kept),
            block_size: config.block_size.into(),
            at,
            watermarks: Watermarks::of(&now.dev),
            run: now,
            ring: Vec::new(),
        };
        let targets = log_blocks(&mut crashed);
        let crashed = Arc::new(crashed);
        if let Ok(targets) = targets {
            for _ in 0..per_point {
                let kinds: Vec<_> = targets.iter().filter(|(_, l)| !l.is_empty()).collect();
                let (what, list) = *rng.pick(&kinds);
                let bit = Bit {
                    block: *rng.pick(list),
                    bit: rng.below(crashed.block_size * 8),
                };
                let volume = crashed.clone();
                let outcome = case(move || in_flight(&volume, bit));
                let name = format!("{label}, event {at}, {kept:?}, {bit:?}");
                table.count(&format!("{fault}: {what}"), &name, outcome);
            }
        }
        run = Arc::into_inner(crashed).map(|c| c.run);
    }
}

fn record(config: &'static Config, seed: u64) -> Result<Run, String> {
    let setting = Setting {
        streams: 3,
        unmount: false,
        gather: 1 + (seed % 3) as usize,
        ..Setting::new(config)
    };
    let mix = Mix {
        streams: 3,
        sync_percent: 25,
        tick_percent: 10,
        // Of each three seeds one is about syncs alone.
        barrier_percent: [0, 50, 30][(seed % 3) as usize],
        ignore_percent: [0, 20, 10][(seed % 3) as usize],
        group_percent: [0, 0, 8][(seed % 3) as usize],
        atomic_file_percent: [0, 10, 8][(seed % 3) as usize],
        ..Mix::default()
    };
    Run::record(setting, Source::Random(seed, mix, 250))
}

/// Blocks worth a flip, by kind: the log's used ones, and what is at home.
fn log_blocks(crashed: &mut Crashed) -> Result<BTreeMap<&'static str, Vec<u64>>, String> {
    let base = image::base(crashed.run.setting.config)?;
    let image = Image::open(Arc::new(base), OpenOptions::default()).map_err(|e| e.to_string())?;
    let runs = image.journal_blocks().map_err(|e| e.to_string())?;
    let journal: Vec<u64> = runs
        .iter()
        .flat_map(|run| run.pblk..run.pblk + run.len)
        .collect();
    let mut out: BTreeMap<&'static str, Vec<u64>> = BTreeMap::new();
    out.insert("log header", journal[1..3].to_vec());
    let mut buf = vec![0; crashed.block_size as usize];
    crashed.ring = journal[3..].to_vec();
    for &block in &crashed.ring {
        let _ = crashed.image.read(block * crashed.block_size, &mut buf);
        if buf.starts_with(b"ccFR") {
            // The kind's number in the frame's header (docs/format.md).
            let what = match buf[44] {
                2 => "checkpoint frame",
                _ => "transaction frame",
            };
            out.entry(what).or_default().push(block);
        }
    }
    let (home, _) = scrub(&image_of(crashed)?)?;
    let home = home.into_values().flatten().collect();
    out.insert("home metadata", home);
    Ok(out)
}

/// The volume as it will be when recovered: where its metadata lie.
fn image_of(crashed: &Crashed) -> Result<MemoryDevice, String> {
    let dev = Arc::new(crashed.image.snapshot());
    Volume::recover(dev.clone()).map_err(|e| e.to_string())?;
    Ok(dev.snapshot())
}

/// What a frame of a transaction says (docs/format.md, section 5).
struct Frame {
    id: u64,
    watermark: u64,
    nonce: [u8; 16],
}

/// The frame in a block, if its checksum fits.
fn frame(crashed: &Crashed, dev: &MemoryDevice, block: u64) -> Option<Frame> {
    let mut buf = vec![0; crashed.block_size as usize];
    dev.read(block * crashed.block_size, &mut buf).ok()?;
    let word = |at: usize| Some(u64::from_le_bytes(buf.get(at..at + 8)?.try_into().ok()?));
    let frame = Frame {
        id: word(48)?,
        watermark: word(56)?,
        nonce: buf.get(8..24)?.try_into().ok()?,
    };
    let claimed = u32::from_le_bytes(buf.get(4..8)?.try_into().ok()?);
    let is_frame = buf.starts_with(b"ccFR");
    buf.get_mut(4..8)?.fill(0);
    (is_frame && crc32c::crc32c(&buf) == claimed).then_some(frame)
}

/// The highest id of which some frame that is left says that it was durable.
fn watermark(crashed: &Crashed, dev: &MemoryDevice) -> u64 {
    let frames: Vec<Frame> = crashed
        .ring
        .iter()
        .filter_map(|block| frame(crashed, dev, *block))
        .collect();
    // The newest frames are of this mount; what an earlier one left has another nonce.
    let newest = frames.iter().max_by_key(|f| f.id).map(|f| f.nonce);
    let ours = frames.iter().filter(|f| Some(f.nonce) == newest);
    ours.map(|f| f.watermark).max().unwrap_or(0)
}

fn in_flight(crashed: &Crashed, bit: Bit) -> Result<Outcome, String> {
    let dev = flipped(&crashed.image, crashed.block_size, bit);
    let hit = frame(crashed, &crashed.image, bit.block).map(|f| f.id);
    // What the frames say, and no less than what they have to say.
    let due = crashed
        .watermarks
        .vouched_before(crashed.at, hit.unwrap_or(0));
    let vouched = watermark(crashed, &dev).max(due);
    let Ok(vol) = mount(Arc::new(dev), crashed.run.setting.options()) else {
        return Ok(Outcome::Detected);
    };
    let seen = observe(&vol);
    vol.shutdown();
    let Ok(seen) = seen else {
        return Ok(Outcome::Detected);
    };
    let crash = crashed.run.crash(crashed.at);
    let violation = match judge(&crashed.run.an, &crash, &seen) {
        Ok(_) => return Ok(Outcome::Nothing),
        Err(v) => v,
    };
    // All promises but the one of the sync calls: as if the frames had been torn by the power cut.
    let unsynced = Crash { synced: 0, ..crash };
    match judge(&crashed.run.an, &unsynced, &seen) {
        Ok(_) if hit.is_some_and(|id| id > vouched) => Ok(Outcome::Torn),
        Ok(_) => Err(format!(
            "lost, though frames say that all up to {vouched} were durable (hit: {hit:?}): {violation}"
        )),
        Err(_) => Err(format!("another tree: {violation}")),
    }
}
