//! Long crash explorations: random workloads from consecutive seeds, each with its crash states, until time, seeds or patience end.
//!
//! A failure prints its seed and a shortened sequence of actions; `--seed N --runs 1` replays it. The last line of a run that
//! was stopped names the seed to go on with.
use ccfs_crash::explore::{Coverage, Effort, explore_seed};
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: ccfs-crash-explore [--seed N] [--runs N] [--minutes N] [--threads N] [--states N per run] \
[--deep-every N] [--shrink SECONDS] [--hang SECONDS] [--keep-going]";

struct Args {
    seed: u64,
    runs: u64,
    minutes: u64,
    threads: u64,
    states: u64,
    deep_every: u64,
    shrink: u64,
    hang: u64,
    keep_going: bool,
}

fn parse() -> Result<Args, String> {
    let mut args = Args {
        seed: 1,
        runs: u64::MAX,
        minutes: u64::MAX,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        states: 1000,
        deep_every: 20,
        shrink: 120,
        hang: 900,
        keep_going: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--seed" => &mut args.seed,
            "--runs" => &mut args.runs,
            "--minutes" => &mut args.minutes,
            "--threads" => &mut args.threads,
            "--states" => &mut args.states,
            "--deep-every" => &mut args.deep_every,
            "--shrink" => &mut args.shrink,
            "--hang" => &mut args.hang,
            "--keep-going" => {
                args.keep_going = true;
                continue;
            }
            _ => return Err(USAGE.into()),
        };
        *place = words
            .next()
            .and_then(|v| v.parse().ok())
            .ok_or_else(|| format!("{word}: a number is missing\n{USAGE}"))?;
    }
    Ok(args)
}

fn main() -> ExitCode {
    match parse() {
        Ok(args) => explore(&args),
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}

fn explore(args: &Args) -> ExitCode {
    // A panic of the engine is a failure with a report of its own.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let limit = Duration::from_secs(args.minutes.saturating_mul(60));
    let effort = Effort {
        states_max: args.states as usize,
        deep_every: args.deep_every.max(1) as usize,
        ..Effort::default()
    };
    let (next, stop, failures) = (
        AtomicU64::new(args.seed),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    let total = Mutex::new((Coverage::default(), Instant::now()));
    let running: Mutex<HashMap<u64, Instant>> = Mutex::default();
    let worker = &|| {
        while !stop.load(Ordering::Relaxed) && start.elapsed() < limit {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed - args.seed >= args.runs {
                break;
            }
            if let Ok(mut running) = running.lock() {
                running.insert(seed, Instant::now());
            }
            let explored = explore_seed(seed, &effort, Duration::from_secs(args.shrink));
            if let Ok(mut running) = running.lock() {
                running.remove(&seed);
            }
            match explored {
                Ok(c) => progress(&total, &c, seed, start),
                Err(e) => {
                    println!("FAILED {e}\n");
                    failures.fetch_add(1, Ordering::Relaxed);
                    stop.store(!args.keep_going, Ordering::Relaxed);
                }
            }
        }
    };
    let hang = Duration::from_secs(args.hang);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..args.threads.max(1))
            .map(|_| scope.spawn(worker))
            .collect();
        while workers.iter().any(|w| !w.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
            let stuck = running
                .lock()
                .ok()
                .and_then(|r| r.iter().find(|s| s.1.elapsed() > hang).map(|s| *s.0));
            if let Some(seed) = stuck {
                // Nothing can stop a thread that waits for a lock for ever.
                println!("FAILED seed {seed}: hangs for {} s", args.hang);
                std::process::exit(1);
            }
        }
    });
    if let Ok(total) = total.lock() {
        println!("{}", total.0);
        println!(
            "{:.0} states/s",
            total.0.states as f64 / start.elapsed().as_secs_f64().max(0.001)
        );
    }
    let failed = failures.load(Ordering::Relaxed);
    println!(
        "{failed} failures; go on with --seed {}",
        next.load(Ordering::Relaxed)
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Adds up, and says every ten seconds how far it is.
fn progress(total: &Mutex<(Coverage, Instant)>, c: &Coverage, seed: u64, start: Instant) {
    let Ok(mut total) = total.lock() else { return };
    total.0.add(c);
    if total.1.elapsed() > Duration::from_secs(10) {
        total.1 = Instant::now();
        let rate = total.0.states as f64 / start.elapsed().as_secs_f64();
        println!(
            "seed {seed}: {} runs, {} states, {rate:.0} states/s",
            total.0.runs, total.0.states
        );
    }
}
