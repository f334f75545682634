//! The modelled disks against the papers' figures: what ext4's fsync of an appended block takes on each, in the model's own time.
//!
//! ext4 runs on a recorded virtual disk; the requests of each fsync are then put to the model one after the other, each when those had ended
//! that the file system had waited for. So the machine's own speed, and FUSE's, does not count.
use crate::images::History;
use crate::record::{self, Config, record};
use crate::trace::{Kind, Trace};
use crate::{Fail, fs};
use ccfs_disks::{Params, Virtual};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Size of the disk on which fsyncs are measured, bytes.
const SIZE: u64 = 256 << 20;
/// Of the hard disk of the ccfs paper.
const HDD_SIZE: u64 = 160_000_000_000;

/// A figure beside the paper's.
#[derive(Clone, Debug)]
pub struct Line {
    pub what: String,
    pub unit: &'static str,
    pub paper: f64,
    pub model: f64,
}

impl Line {
    /// Deviation from the paper's figure, percent.
    pub fn off_percent(&self) -> f64 {
        (self.model / self.paper - 1.0) * 100.0
    }
}

/// The recorded program: appends a block and syncs, `count` times, with marks around each.
pub fn append(path: &Path, count: usize) -> Result<(), Fail> {
    let fail = |e: std::io::Error| Fail::new(format!("{}: {e}", path.display()));
    let mut file = std::fs::File::create(path).map_err(fail)?;
    for number in 0..count {
        file.write_all(&[number as u8; 4096]).map_err(fail)?;
        record::mark(&format!("begin {number}"))?;
        file.sync_all().map_err(fail)?;
        record::mark(&format!("end {number}"))?;
    }
    Ok(())
}

/// All lines. `append`: a command that runs [`append`] on its last argument.
pub fn calibrate(append: &[std::ffi::OsString], ccfs: &Path) -> Result<Vec<Line>, Fail> {
    let dir = record::scratch()?;
    let trace = dir.path().join("trace");
    let recorded = record(&Config {
        fs: fs::Kind::Ext4,
        size: SIZE,
        setup: None,
        output: trace.clone(),
        command: append.to_vec(),
        limit: None,
        aside: false,
        linger: Duration::ZERO,
        timing: None,
        ccfs: ccfs.to_path_buf(),
    })?;
    if recorded.code != 0 {
        return Err(Fail::new("the recorded program failed"));
    }
    let history = History::new(Trace::open(&trace)?)?;
    let mut lines = Vec::new();
    for (name, title, paper) in [
        ("ufs", "UFS", 1.20),
        ("ssd-plain", "plain SSD", 5.43),
        ("ssd-capacitor", "SSD with capacitor", 0.15),
    ] {
        lines.push(Line {
            what: format!("{title}: ext4's fsync of an appended 4K, median"),
            unit: "ms",
            paper,
            model: median_fsync_ms(&history, preset(name)?)?,
        });
    }
    let (in_order, sorted) = random_writes_s(preset("hdd")?);
    lines.push(hdd("in order", 192.56, in_order));
    lines.push(hdd("sorted", 25.82, sorted));
    Ok(lines)
}

fn hdd(how: &str, paper: f64, model: f64) -> Line {
    Line {
        what: format!("HDD: 25,600 random writes of 4K in a file of 2 GB, {how}"),
        unit: "s",
        paper,
        model,
    }
}

fn preset(name: &str) -> Result<Params, Fail> {
    Params::preset(name).ok_or_else(|| Fail::new(format!("there is no disk {name}")))
}

fn median_fsync_ms(history: &History, params: Params) -> Result<f64, Fail> {
    let entries = &history.trace.entries;
    let mut disk = Virtual::new(params, SIZE);
    let mut ends = vec![0u64; entries.len()];
    let (mut now, mut begun, mut times) = (0, None, Vec::new());
    for (number, entry) in entries.iter().enumerate().skip(history.first) {
        // What had ended when this request began has ended in the model's time too.
        let seen = (entry.seen as usize).clamp(history.first, number);
        let ready = ends[history.first..seen].iter().copied().max().unwrap_or(0);
        let at = ready.max(begun.unwrap_or(now));
        ends[number] = match &entry.kind {
            Kind::Write { .. } => disk.write(at, &mut [(entry.offset, entry.len)]),
            Kind::Flush => disk.flush(at),
            Kind::Discard => at,
            Kind::Mark(text) => {
                if text.starts_with("begin ") {
                    begun = Some(now);
                } else if let (true, Some(since)) = (text.starts_with("end "), begun.take()) {
                    times.push(now - since);
                }
                now
            }
        };
        now = now.max(ends[number]);
    }
    times.sort_unstable();
    let median = times
        .get(times.len() / 2)
        .ok_or_else(|| Fail::new("no fsync was recorded"))?;
    Ok(*median as f64 / 1e6)
}

/// Seconds for the writes of the ccfs paper's Table 1: each before the next, and all at once.
fn random_writes_s(params: Params) -> (f64, f64) {
    let mut rng = ccfs_testkit::Rng::new(1);
    let mut batch: Vec<(u64, u64)> = (0..25_600)
        .map(|_| (rng.below(2 << 18) * 4096, 4096))
        .collect();
    let mut disk = Virtual::new(params.clone(), HDD_SIZE);
    let in_order = batch.iter().fold(0, |now, extent| {
        let written = disk.write(now, &mut [*extent]);
        disk.flush(written)
    });
    let mut disk = Virtual::new(params, HDD_SIZE);
    let written = disk.write(0, &mut batch);
    let sorted = disk.flush(written);
    (in_order as f64 / 1e9, sorted as f64 / 1e9)
}
