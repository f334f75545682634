//! What a sync costs while another application has much unwritten data: the ccfs paper's Table 3 and Figure 4.
use crate::disk::{Counters, DiskKind};
use crate::experiment::{Experiment, Group, Measured, Place, STREAMS, in_streams};
use crate::image::Mount;
use crate::stats::{Latencies, Sample};
use crate::system::System;
use crate::workload::{Worker, enter_stream};
use crate::{Because, Result, run};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What the other application does before the sync, bytes.
const PAPER_BYTES: u64 = 100 << 20;
/// Times that a Table 3 run repeats it.
const REPEATS: usize = 3;
const PIECE: u64 = 1 << 20;
/// Figure 4: the other application's rate, bytes a second; the time between syncs; and how many there are.
const RATE: u64 = 20 << 20;
const PERIOD: Duration = Duration::from_secs(5);
const SYNCS: u32 = 12;
/// Measured time below which a run is a test: Figure 4 takes as much less.
const FULL_SECONDS: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Nothing: what a sync costs alone.
    Nothing,
    Append,
    Truncate,
    Overwrite,
}

impl Update {
    fn name(self) -> &'static str {
        match self {
            Update::Nothing => "alone",
            Update::Append => "append",
            Update::Truncate => "truncate",
            Update::Overwrite => "overwrite",
        }
    }

    /// File A as the update finds it.
    fn prepare(self, a: &File, bytes: u64, data: &Worker) -> std::io::Result<()> {
        match self {
            Update::Nothing | Update::Append => a.set_len(0)?,
            Update::Truncate | Update::Overwrite => write(a, bytes, data)?,
        }
        a.sync_all()
    }

    fn make(self, a: &File, bytes: u64, data: &Worker) -> std::io::Result<()> {
        match self {
            Update::Nothing => Ok(()),
            Update::Truncate => a.set_len(0),
            Update::Append | Update::Overwrite => write(a, bytes, data),
        }
    }
}

fn write(a: &File, bytes: u64, data: &Worker) -> std::io::Result<()> {
    for at in (0..bytes).step_by(PIECE as usize) {
        a.write_all_at(data.data(PIECE.min(bytes - at)), at)?;
    }
    Ok(())
}

/// A stream of its own for this thread, if it is to have one.
fn enter(dir: &Path, variant: &str) -> std::io::Result<()> {
    match variant {
        STREAMS => enter_stream(dir),
        _ => Ok(()),
    }
}

fn open(dir: &Path, name: &str) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(dir.join(name)).because(name)
}

/// Table 3: 100 MB to A, a byte to B, and the fsync of B.
pub struct Table3(pub Update);

/// One repetition.
struct Sync {
    seconds: f64,
    /// Written by the sync, and in all, bytes.
    by_sync: Option<f64>,
    total: Option<f64>,
}

impl Experiment for Table3 {
    fn name(&self) -> String {
        format!("table3/{}", self.0.name())
    }
    fn group(&self) -> Group {
        Group::Latency
    }
    fn op(&self) -> String {
        match self.0 {
            Update::Nothing => "a byte written to B and synced, with nothing else to do".into(),
            other => format!("a byte written to B and synced after A's {}", other.name()),
        }
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        in_streams(system)
    }
    fn fits(&self, _disk: DiskKind) -> bool {
        true
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let bytes = (PAPER_BYTES as f64 * (4.0 * place.scale.0).min(1.0)) as u64;
        let (mount, dir) = place.fresh()?;
        let mut all = Vec::new();
        for repeat in 0..REPEATS {
            all.push(self.once(&mount, &dir, variant, bytes, repeat)?);
        }
        mount.end()?;
        let median = |get: &dyn Fn(&Sync) -> Option<f64>| {
            Sample::new(all.iter().filter_map(get).collect()).map(|s| s.median())
        };
        let seconds = median(&|s| Some(s.seconds)).unwrap_or(f64::NAN);
        let mut latencies = Latencies::default();
        all.iter()
            .for_each(|s| latencies.add(Duration::from_secs_f64(s.seconds)));
        let mut measured = Measured::new(1.0 / seconds)
            .with("latency_ms", seconds * 1e3)
            .with("sync_written_bytes", median(&|s| s.by_sync))
            .with("total_written_bytes", median(&|s| s.total));
        measured.latencies = latencies.buckets();
        Ok(measured)
    }
}

impl Table3 {
    fn once(
        &self,
        mount: &Mount,
        dir: &Path,
        variant: &str,
        bytes: u64,
        repeat: usize,
    ) -> Result<Sync> {
        let (a, b) = (open(dir, "a")?, open(dir, "b")?);
        let data = Worker::new(dir, repeat, 7);
        self.0.prepare(&a, bytes, &data).because("file A")?;
        b.write_all_at(&[0; 4096], 0).because("file B")?;
        run::sync(dir)?;
        let before = mount.counters();
        // Threads of their own: a thread stays in its stream.
        let update = || enter(dir, variant).and_then(|()| self.0.make(&a, bytes, &data));
        let made = std::thread::scope(|s| s.spawn(update).join());
        made.map_err(|_| "a thread panicked")?.because("file A")?;
        let at_sync = mount.counters();
        let sync = || -> std::io::Result<f64> {
            enter(dir, variant)?;
            b.write_all_at(&[1 + repeat as u8], 0)?;
            let begun = Instant::now();
            b.sync_all()?;
            Ok(begun.elapsed().as_secs_f64())
        };
        let seconds = std::thread::scope(|s| s.spawn(sync).join());
        let seconds = seconds
            .map_err(|_| "a thread panicked")?
            .because("file B")?;
        let after = mount.counters();
        run::sync(dir)?;
        let total = mount.counters();
        let since = |now: Option<Counters>, then: Option<Counters>| {
            let (now, then) = now.zip(then)?;
            Some(now.since(then).written_bytes as f64)
        };
        Ok(Sync {
            seconds,
            by_sync: since(after, at_sync),
            total: since(total, before),
        })
    }
}

/// Figure 4: a byte to B and fsync every 5 s, while A grows by 20 MB/s and is truncated, or overwritten from its beginning, at 100 MB.
pub struct Figure4(pub Update);

impl Experiment for Figure4 {
    fn name(&self) -> String {
        format!("figure4/{}", self.0.name())
    }
    fn group(&self) -> Group {
        Group::Histogram
    }
    fn op(&self) -> String {
        format!(
            "a byte written to B and synced, each 5 s, while 20 MB/s go to A ({} at 100 MB)",
            self.0.name()
        )
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        match system {
            System::Ext4 | System::Ccfs => in_streams(system),
            _ => Vec::new(),
        }
    }
    fn fits(&self, disk: DiskKind) -> bool {
        matches!(disk, DiskKind::Hdd | DiskKind::Ssd)
    }
    /// A run has many syncs, and takes a minute.
    fn rounds(&self, _asked: u32) -> u32 {
        1
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let share = (place.seconds / FULL_SECONDS).min(1.0);
        let (mount, dir) = place.fresh()?;
        let (a, b) = (open(&dir, "a")?, open(&dir, "b")?);
        let data = Worker::new(&dir, 0, 7);
        let stop = AtomicBool::new(false);
        let limit = (PAPER_BYTES as f64 * (4.0 * place.scale.0).min(1.0)) as u64;
        let outcome = std::thread::scope(|s| {
            let writer = s.spawn(|| {
                enter(&dir, variant)?;
                self.write_on(&a, limit, &data, &stop)
            });
            let syncs = s.spawn(|| {
                enter(&dir, variant)?;
                sync_each(&b, PERIOD.mul_f64(share), SYNCS)
            });
            let syncs = syncs.join();
            stop.store(true, Relaxed);
            (writer.join(), syncs)
        });
        let (writer, syncs) = outcome;
        writer.map_err(|_| "a thread panicked")?.because("file A")?;
        let latencies = syncs.map_err(|_| "a thread panicked")?.because("file B")?;
        drop((a, b));
        mount.end()?;
        let median = latencies.quantile_us(0.5);
        let mut measured = Measured::new(1e6 / median.max(1e-3))
            .with("p50_us", median)
            .with("p99_us", latencies.quantile_us(0.99))
            .with("max_us", latencies.max_us());
        measured.latencies = latencies.buckets();
        Ok(measured)
    }
}

impl Figure4 {
    fn write_on(
        &self,
        a: &File,
        limit: u64,
        data: &Worker,
        stop: &AtomicBool,
    ) -> std::io::Result<()> {
        let (begun, mut written) = (Instant::now(), 0);
        while !stop.load(Relaxed) {
            let due = (begun.elapsed().as_secs_f64() * RATE as f64) as u64;
            if written + PIECE > due {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            let at = written % limit.next_multiple_of(PIECE);
            if at == 0 && self.0 == Update::Truncate {
                a.set_len(0)?;
            }
            a.write_all_at(data.data(PIECE), at)?;
            written += PIECE;
        }
        Ok(())
    }
}

fn sync_each(b: &File, period: Duration, syncs: u32) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let begun = Instant::now();
    for n in 1..=syncs {
        let next = begun + period * n;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        b.write_all_at(&[n as u8], 0)?;
        let asked = Instant::now();
        b.sync_all()?;
        latencies.add(asked.elapsed());
    }
    Ok(latencies)
}
