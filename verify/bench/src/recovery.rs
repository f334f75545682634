//! How long a recovery takes: the daemon is killed with a log of some size as full as it may be, and the volume is mounted again.
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::image::Mount;
use crate::system::System;
use crate::workload::Scale;
use crate::{Because, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The log is filled to this share of its ring: at half a checkpoint begins.
const FULL_PERCENT: u64 = 45;
/// Bytes of a write, and writes over the same few blocks between two syncs. They go through the log: a run of 64 KiB would not.
const WRITE: usize = 4096;
const WRITES: u64 = 16;
/// Files made and removed between two syncs.
const FILES: u64 = 4;
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
        place.image.mkfs(place.work, place.system, &["-J", &size])?;
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

/// Durable transactions until the log is as full as it may be; gives the bytes of it that are in use.
fn fill(mount: &Mount, longest: Duration) -> Result<u64> {
    let path = |name: &str| mount.dir().join(name);
    let write = |file: &File, n: u64| {
        let at = n * 2 * WRITE as u64;
        file.write_all_at(&[n as u8; WRITE], at)
    };
    let over = File::create_new(path("over")).because("over")?;
    (0..WRITES)
        .try_for_each(|n| write(&over, n))
        .and_then(|()| over.sync_all())
        .because("over")?;
    let root = ccfs_client::open(mount.dir()).because("the volume")?;
    let begun = Instant::now();
    let mut used = 0;
    while begun.elapsed() < longest {
        let turn = || -> io::Result<()> {
            (0..WRITES).try_for_each(|n| write(&over, n))?;
            for n in 0..FILES {
                let path = path(&format!("file-{n}"));
                File::create_new(&path)?;
                std::fs::remove_file(&path)?;
            }
            over.sync_all()
        };
        turn().because(mount.dir().display())?;
        let text = ccfs_client::status_json(&root).because("the volume's status")?;
        let status: serde_json::Value =
            serde_json::from_str(&text).because("the volume's status")?;
        let number = |name: &str| status.get(name).and_then(|v| v.as_u64()).unwrap_or(0);
        let (frames, all) = (number("log_frames_used"), number("log_frames"));
        used = frames * number("block_size");
        if all > 0 && frames * 100 >= all * FULL_PERCENT {
            break;
        }
    }
    Ok(used)
}
