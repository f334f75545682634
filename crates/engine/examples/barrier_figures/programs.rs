//! Figures 1, 13, 14 and 15.
use crate::barrier_programs::{Journal, Promise, sqlite, varmail};
use crate::virtual_time::*;
use ccfs_device::Device;
use ccfs_disks::{MemoryDevice, Params, Timed};
use ccfs_engine::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Figure 1: a write that is followed by fdatasync, beside what the device takes without any order.
pub fn ordered_against_orderless(base: &MemoryDevice) {
    println!(
        "## Figure 1: 4 KiB at random blocks\n\n| device | orderless, writes/s | each followed by fdatasync | share |\n|---|---|---|---|"
    );
    for device in ["hdd", "ufs", "ssd-plain", "ssd-capacitor"] {
        let limit = device_limit(base, device, crate::COUNT);
        let synced = measure(base, device, 0, Work::Overwrite, After::Sync, crate::COUNT);
        let rate = synced.transferred;
        println!(
            "| {device} | {limit:.0} | {rate:.0} | {:.1} % |",
            100.0 * rate / limit
        );
    }
    println!();
}

/// Figure 13: threads that append 4 KiB to files of their own and sync. Several callers cannot share a clock that does not run by
/// itself, so the device waits for real.
pub fn threads(base: &MemoryDevice) {
    println!(
        "## Figure 13: append of 4 KiB and fsync, threads on files and in streams of their own, real time\n\n| device | 1 thread, syncs/s (flushes for each) | 2 | 3 | 4 |\n|---|---|---|---|---|"
    );
    for (device, _) in DEVICES {
        let rates = [1, 2, 3, 4].map(|n| syncs(base, device, n));
        let rates = rates.map(|(rate, flushes)| format!("{rate:.0} ({flushes:.2})"));
        println!("| {device} | {} |", rates.join(" | "));
    }
    println!();
}

/// Syncs a second, and flushes for each.
fn syncs(base: &MemoryDevice, device: &str, threads: u64) -> (f64, f64) {
    const TIME: Duration = Duration::from_secs(3);
    let params = Params::preset(device).unwrap();
    let dev = Arc::new(Timed::new(Arc::new(base.snapshot()), params));
    let v = Volume::mount(dev as Arc<dyn Device>, Options::default()).unwrap();
    let began = Instant::now();
    let count = std::thread::scope(|s| {
        let run = |n: u64| {
            let v = &v;
            move || {
                let cx = Context {
                    stream: StreamId(100 + n),
                    ..cx()
                };
                let name = format!("f{n}");
                let made = v.mknod(&cx, ROOT_INO, name.as_bytes(), 0o100644, 0);
                let file = made.unwrap().ino;
                let mut count = 0;
                while began.elapsed() < TIME {
                    let flags = WriteFlags::default();
                    v.write(&cx, file, count * 4096, &[n as u8; 4096], flags)
                        .unwrap();
                    v.fsync(&cx, file, false).unwrap();
                    count += 1;
                }
                count
            }
        };
        let all: Vec<_> = (0..threads).map(|n| s.spawn(run(n))).collect();
        all.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    let rate = count as f64 / began.elapsed().as_secs_f64();
    let flushes = v.status().counters.device_flushes;
    v.unmount().unwrap();
    (rate, flushes as f64 / count as f64)
}

/// Figure 14, its half that runs here: varmail. (OLTP needs a MySQL server.)
pub fn mail(base: &MemoryDevice) {
    println!(
        "## Figure 14: varmail, one client, rounds/s\n\n| device | fsync | fsync, flushes switched off | fbarrier | fbarrier, barrier command |\n|---|---|---|---|---|"
    );
    for (device, percent) in DEVICES {
        let rates = [
            After::Sync,
            After::Transfer,
            After::Barrier,
            After::BarrierCommand,
        ]
        .map(|after| {
            let rig = Rig::new(base, device, percent, after);
            format!("{:.0}", varmail(&rig, 3000))
        });
        println!("| {device} | {} |", rates.join(" | "));
    }
    println!();
}

/// Figure 15: SQLite's inserts.
pub fn inserts(base: &MemoryDevice) {
    println!(
        "## Figure 15: SQLite, each row a transaction, rows/s\n\n| device | journal | fdatasync | ordering calls are fdatabarrier | the same, barrier command | all are fdatabarrier | the same, barrier command | fdatasync, flushes switched off |\n|---|---|---|---|---|---|---|---|"
    );
    for (device, percent) in DEVICES {
        for journal in [Journal::Persist, Journal::Wal] {
            let rates = [
                (After::Sync, Promise::Durable),
                (After::Barrier, Promise::Durable),
                (After::BarrierCommand, Promise::Durable),
                (After::Barrier, Promise::Ordered),
                (After::BarrierCommand, Promise::Ordered),
                (After::Transfer, Promise::Ordered),
            ]
            .map(|(after, promise)| {
                let rig = Rig::new(base, device, percent, after);
                format!("{:.0}", sqlite(&rig, journal, promise, 2000))
            });
            println!("| {device} | {journal:?} | {} |", rates.join(" | "));
        }
    }
    println!();
}
