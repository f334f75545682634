//! The machine that a figure belongs to.
use crate::system::{System, command, output_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Above this share of the processors' time somebody else was at work: figures are marked.
const BUSY_SHARE: f64 = 0.15;
/// How long that is looked at. (The load average still has what was compiled a minute ago.)
const LOOK: Duration = Duration::from_millis(500);

/// What has to be known beside a figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub kernel: String,
    pub processor: String,
    pub cores: usize,
    pub memory_mib: u64,
    /// Share of the processors' time that others took before the first measurement, 0 to 1.
    pub busy_before: f64,
    /// UTC.
    pub date: String,
    pub versions: BTreeMap<String, String>,
}

impl Machine {
    pub fn look(systems: &[System]) -> Machine {
        let name = rustix::system::uname();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name"));
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"));
        let total = total.and_then(|t| t.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        let versions = systems.iter().map(|s| (s.name().into(), s.version()));
        Machine {
            kernel: name.release().to_string_lossy().into_owned(),
            // Not every kind of processor says its name there.
            processor: model.map_or(name.machine().to_string_lossy().into_owned(), |m| {
                m.trim_matches([' ', '\t', ':']).into()
            }),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: total.unwrap_or(0) >> 10,
            busy_before: busy_share(),
            date: output_of(command("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))
                .trim()
                .into(),
            versions: versions.collect(),
        }
    }

    /// Others used the processors: the figures are worth nothing.
    pub fn was_busy(&self) -> bool {
        self.busy_before > BUSY_SHARE
    }

    /// In one paragraph.
    pub fn text(&self) -> String {
        let mut all = format!(
            "{}; {} with {} cores, {} MiB of memory, Linux {}; others took {:.0} % of the processors before",
            self.date,
            self.processor,
            self.cores,
            self.memory_mib,
            self.kernel,
            100.0 * self.busy_before
        );
        for (name, version) in &self.versions {
            if version != "the kernel's" {
                all += &format!("; {name}: {version}");
            }
        }
        if self.was_busy() {
            all += ". **The machine was busy with other work: these figures are worth nothing**";
        }
        all
    }
}

/// Largest memory of a process so far, bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>();
    Some(kib.ok()? << 10)
}

fn busy_share() -> f64 {
    let (before, begun) = (cpu_seconds(), Instant::now());
    std::thread::sleep(LOOK);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let used = cpu_seconds().zip(before).map_or(0.0, |(now, b)| now - b);
    used / (begun.elapsed().as_secs_f64() * cores as f64)
}

/// Time that the machine's processors spent on anything, user and kernel, since it started, seconds (to a hundredth).
pub fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
    // user, nice, system, then idle, iowait, irq, softirq.
    let busy = ticks.get(..3)?.iter().sum::<f64>() + ticks.get(5..7)?.iter().sum::<f64>();
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(busy / per_second)
}
