//! BarrierFS's figures (FAST 2018) at the engine's interface, on its emulated devices, in virtual time: the same on any machine.
//! `cargo run --release -p ccfs-engine --example barrier_figures` prints the tables of docs/results/2026-11-23-barriers.md; with `-- 1 9 latency 13 14 15` some of them.
#[path = "../../tests/common/barrier_programs.rs"]
mod barrier_programs;
mod programs;
#[path = "../../tests/common/virtual_time.rs"]
mod virtual_time;
use ccfs_disks::MemoryDevice;
use std::process::Command;
use std::time::Duration;
use virtual_time::*;

const COUNT: u64 = 10_000;

/// Prints tables, from volumes that begin as the image.
type Part = fn(&MemoryDevice);

fn image() -> MemoryDevice {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("img");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=64"])
        .arg(&path)
        .arg("512M");
    assert!(mke2fs.output().unwrap().status.success());
    MemoryDevice::from_file(&path).unwrap()
}

fn us(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e6)
}

/// The latency that so many of a thousand thousand stay below.
fn quantile(sorted: &[Duration], millionths: usize) -> Duration {
    let at = sorted.len() * millionths / 1_000_000;
    sorted[at.min(sorted.len() - 1)]
}

fn main() {
    let base = image();
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let parts: [(&str, Part); 6] = [
        ("1", programs::ordered_against_orderless),
        ("9", random_writes),
        ("latency", latencies),
        ("13", programs::threads),
        ("14", programs::mail),
        ("15", programs::inserts),
    ];
    for (name, part) in parts {
        if asked.is_empty() || asked.iter().any(|a| a == name) {
            part(&base);
        }
    }
}

/// Figures 9, 10 and 12: what order costs, and how many commands the device has meanwhile.
fn random_writes(base: &MemoryDevice) {
    let all = [
        After::Sync,
        After::Transfer,
        After::Barrier,
        After::BarrierCommand,
        After::Nothing,
    ];
    for work in [Work::Overwrite, Work::Append] {
        println!("## {work:?}: {COUNT} writes of 4 KiB, each followed by ...\n");
        println!(
            "| device | after each write | writes/s | of orderless | and durable at the end | commands under way: mean, most | commits | flushes | KiB to the log, in place |\n|---|---|---|---|---|---|---|---|---|"
        );
        for (device, percent) in DEVICES {
            let limit = device_limit(base, device, COUNT);
            println!("| {device} | the device alone, orderless | {limit:.0} | 100 % | | | | | |");
            for after in all {
                let f = measure(base, device, percent, work, after, COUNT);
                let rate = match after {
                    After::Nothing => "in memory".into(),
                    _ => format!("{:.0}", f.transferred),
                };
                let share = match after {
                    After::Nothing => "-".into(),
                    _ => format!("{:.1} %", 100.0 * f.transferred / limit),
                };
                println!(
                    "| {device} | {after:?} | {rate} | {share} | {:.0} | {:.1}, {} | {} | {} | {}, {} |",
                    f.durable,
                    f.depth.0,
                    f.depth.1,
                    f.commits,
                    f.flushes,
                    f.logged >> 10,
                    f.direct >> 10
                );
            }
        }
        println!();
    }
}

/// The paper's Table 1.
fn latencies(base: &MemoryDevice) {
    println!("## Latency of the call after an append of 4 KiB, microseconds\n");
    println!(
        "| device | call | mean | median | 99 % | 99.9 % | 99.99 % |\n|---|---|---|---|---|---|---|"
    );
    for (device, percent) in DEVICES {
        for after in [After::Sync, After::Barrier, After::BarrierCommand] {
            let f = measure(base, device, percent, Work::Append, after, COUNT);
            let mean = f.latencies.iter().sum::<Duration>() / COUNT as u32;
            let rest = [500_000, 990_000, 999_000, 999_900].map(|q| us(quantile(&f.latencies, q)));
            println!(
                "| {device} | {after:?} | {} | {} |",
                us(mean),
                rest.join(" | ")
            );
        }
    }
    println!();
}
