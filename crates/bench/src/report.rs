//! Results for people and for programs.

use crate::personalities::{Cell, Plan};
use serde_json::{Value, json};

/// A table: a row per personality, a column per file system, with ratios.
pub fn table(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:<12} {:<8} {:>14} {:>9} {:>11}\n",
        "personality", "fs", "operations/s", "to ext4", "to fuse2fs"
    );
    for c in cells {
        let ratio = |r: Option<f64>| r.map_or("-".to_string(), |r| format!("{r:.2}"));
        text += &format!(
            "{:<12} {:<8} {:>14.1} {:>9} {:>11}\n",
            c.personality,
            c.fs,
            c.ops_per_second,
            ratio(c.ratio_to_ext4),
            ratio(c.ratio_to_fuse2fs)
        );
    }
    text
}

/// The whole run as JSON (version 1 of this form).
pub fn json(plan: &Plan, cells: &[Cell]) -> Value {
    let cpus = std::thread::available_parallelism().map_or(0, |n| n.get());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "version": 1,
        "benchmark": "personalities",
        "seconds": plan.seconds,
        "scale": plan.scale,
        "seed": plan.seed,
        "loop_devices": plan.loop_devices,
        "machine": { "cpus": cpus, "kernel": kernel.trim() },
        "results": cells,
    })
}
