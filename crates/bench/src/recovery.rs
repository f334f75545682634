//! How long a recovery takes: the daemon is killed with a log of some size nearly full, and the volume is mounted again.
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::image::Mount;
use crate::system::System;
use crate::workload::{Call, Micro, Scale, Worker, Workload};
use crate::{Because, Result};
use std::fs::File;
use std::time::{Duration, Instant};

/// The log is filled to this share of its ring.
const FULL_PERCENT: u64 = 80;
/// Creates between two syncs, and two looks at the log.
const PER_SYNC: u64 = 256;
/// Filling ends here at the latest: then the log is as full as it gets.
const FILL_MAX: Duration = Duration::from_secs(60);

/// A log of so many MiB (the journal; ccfs uses 128 at most).
pub struct Recovery(u64);

impl Recovery {
    pub fn all(scale: Scale) -> Vec<Recovery> {
        let mib = [4, 16, 64, 128];
        let most = scale.image_bytes() >> 20;
        let fits = mib.into_iter().filter(|m| m * 8 <= most);
        fits.map(Recovery).collect()
    }
}

impl Experiment for Recovery {
    fn name(&self) -> String {
        format!("recovery/log-{}-mib", self.0)
    }
    fn group(&self) -> Group {
        Group::Recovery
    }
    fn op(&self) -> String {
        format!(
            "a mount after the daemon was killed, with a log of {} MiB",
            self.0
        )
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        match system {
            System::Ccfs => vec![""],
            _ => Vec::new(),
        }
    }
    fn measure(&self, place: &Place, _variant: &str) -> Result<Measured> {
        let size = format!("size={}", self.0);
        place.image.mkfs(place.system, &["-J", &size])?;
        let mount = place.mount()?;
        let used = fill(&mount, FILL_MAX.mul_f64((place.seconds / 2.0).min(1.0)))?;
        mount.kill()?;
        let begun = Instant::now();
        let mount = place.mount()?;
        let seconds = begun.elapsed().as_secs_f64();
        let memory = mount.memory_bytes().map(|b| b as f64);
        mount.end()?;
        Ok(Measured::new(1.0 / seconds)
            .with("recovery_ms", seconds * 1e3)
            .with("log_used_bytes", used as f64)
            .with("memory_bytes", memory))
    }
}

/// Durable transactions of one file each, until the log is nearly full; gives the bytes of it that are in use.
fn fill(mount: &Mount, longest: Duration) -> Result<u64> {
    let work = Micro::new(Call::Create, false, Scale(0.01));
    let dir = mount.dir().join("run");
    std::fs::create_dir(&dir).because(dir.display())?;
    work.prepare(&dir).because(dir.display())?;
    let mut worker = Worker::new(&dir, 0, 1);
    let root = ccfs_client::open(mount.dir()).because("the volume")?;
    let begun = Instant::now();
    let mut used = 0;
    while begun.elapsed() < longest {
        for _ in 0..PER_SYNC {
            // No inode is left: the log is as full as it gets.
            if work.step(&mut worker).because(dir.display())?.is_none() {
                return Ok(used);
            }
        }
        File::open(&dir)
            .and_then(|d| d.sync_all())
            .because(dir.display())?;
        let text = ccfs_client::status_json(&root).because("the volume's status")?;
        let status: serde_json::Value =
            serde_json::from_str(&text).because("the volume's status")?;
        let number = |name: &str| status.get(name).and_then(|v| v.as_u64()).unwrap_or(0);
        let (frames, all) = (number("log_frames_used"), number("log_frames"));
        // It never goes down but by a checkpoint: what was before is what a crash then had met.
        used = frames * number("block_size");
        if all > 0 && frames * 100 >= all * FULL_PERCENT {
            break;
        }
    }
    Ok(used)
}
