//! Writes of 4 KiB to a file of DIR, each followed by nothing, by fdatabarrier or by fdatasync: calls a second, latencies, and how often the
//! calling thread had to give up the processor (BarrierFS's Figures 9, 11 and its latency table, on any directory).
//! `cargo run --release -p ccfs-client --example barrier_rate -- DIR [COUNT]`
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// Times that this thread waited for something.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

type Call = fn(&File) -> io::Result<()>;

/// Prints a row; false where the call is not supported.
fn row(path: &std::path::Path, name: &str, count: u64, call: Call) -> io::Result<bool> {
    let file = File::create(path)?;
    if let Err(e) = call(&file) {
        return match e.kind() {
            io::ErrorKind::Unsupported => Ok(false),
            _ => Err(e),
        };
    }
    let data = [7; BLOCK];
    let mut latencies = Vec::with_capacity(count as usize);
    let (begun, before) = (Instant::now(), switches());
    for n in 0..count {
        file.write_all_at(&data, n * BLOCK as u64)?;
        let start = Instant::now();
        call(&file)?;
        latencies.push(start.elapsed());
    }
    let (took, waits) = (begun.elapsed(), switches() - before);
    file.sync_all()?;
    let durable = begun.elapsed();
    latencies.sort();
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    let at = |millionths: usize| {
        let last = latencies.len() - 1;
        let at = latencies[(latencies.len() * millionths / 1_000_000).min(last)];
        format!("{:.3}", at.as_secs_f64() * 1e3)
    };
    println!(
        "| {name} | {:.0} | {:.0} | {:.2} | {} | {} | {} | {} |",
        rate(took),
        rate(durable),
        waits as f64 / count as f64,
        at(500_000),
        at(990_000),
        at(999_000),
        at(999_900)
    );
    Ok(true)
}

fn main() -> io::Result<()> {
    let mut words = std::env::args_os().skip(1);
    let Some(dir) = words.next() else {
        eprintln!("usage: barrier_rate DIR [COUNT]");
        std::process::exit(2);
    };
    let count = words.next().and_then(|n| n.to_str()?.parse().ok());
    let count = count.unwrap_or(2000);
    let path = std::path::Path::new(&dir).join("barrier-rate");
    println!(
        "| after each write | writes/s | with a last fsync | waits of the thread per write | call, ms: median | 99 % | 99.9 % | 99.99 % |\n|---|---|---|---|---|---|---|---|"
    );
    let calls: [(&str, Call); 3] = [
        ("nothing", |_| Ok(())),
        ("fdatabarrier", |file| ccfs_client::fdatabarrier(file)),
        ("fdatasync", |file| file.sync_data()),
    ];
    for (name, call) in calls {
        if !row(&path, name, count, call)? {
            println!("| {name} | not supported here | | | | | | |");
        }
    }
    std::fs::remove_file(&path)
}
