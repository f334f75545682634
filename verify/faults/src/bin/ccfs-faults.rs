//! The fault campaign: injects faults by seed and writes the table.
use ccfs_crash::config::config;
use ccfs_faults::table::Table;
use ccfs_faults::{Outcome, flips, host, inject};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: ccfs-faults [--seed N] [--seeds N] [--points N per kind and seed] [--flips N per kind and seed] \
[--hosts N] [--into DOCUMENT]";

struct Args {
    seed: u64,
    seeds: u64,
    points: u64,
    flips: u64,
    hosts: u64,
    into: Option<PathBuf>,
}

fn parse() -> Result<Args, String> {
    let mut args = Args {
        seed: 1,
        seeds: 12,
        points: 40,
        flips: 60,
        hosts: 12,
        into: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words
            .next()
            .ok_or_else(|| format!("{word}: a value is missing\n{USAGE}"))?;
        let place = match word.as_str() {
            "--seed" => &mut args.seed,
            "--seeds" => &mut args.seeds,
            "--points" => &mut args.points,
            "--flips" => &mut args.flips,
            "--hosts" => &mut args.hosts,
            "--into" => {
                // It takes long until it is needed.
                if let Err(e) = std::fs::OpenOptions::new().append(true).open(&value) {
                    return Err(format!("--into {value}: {e}"));
                }
                args.into = Some(value.into());
                continue;
            }
            _ => return Err(USAGE.into()),
        };
        *place = value
            .parse()
            .map_err(|_| format!("{word}: {value} is no number\n{USAGE}"))?;
    }
    Ok(args)
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(args) => args,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    // A panic of the engine is an outcome with a report of its own.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let mut table = Table::default();
    let configs = ["1k", "4k", "2k", "128", "ext3", "nocsum"];
    let seeds = args.seed..args.seed + args.seeds;
    for seed in seeds.clone() {
        inject::campaign(&mut table, seed..seed + 1, args.points);
        let Some(at_rest) = config(configs[(seed % 6) as usize]) else {
            continue;
        };
        flips::campaign_at_rest(&mut table, at_rest, seed, args.flips);
        for name in ["1k", "4k", "tiny"] {
            if let Some(config) = config(name) {
                flips::campaign_log(&mut table, config, seed, 6, args.flips);
            }
        }
        eprintln!("seed {seed}: {} s", start.elapsed().as_secs());
    }
    host::campaign(&mut table, args.hosts);
    println!("{}", table.markdown());
    for text in &table.wrong {
        println!("WRONG: {text}\n");
    }
    let intro = format!(
        "`make faults FAULTS_ARGS=\"--seeds {}\"`, from seed {} on, {} faults in {} seconds; `no effect`: not reached by the run, or in bytes that nobody uses.",
        args.seeds,
        args.seed,
        table.injected(""),
        start.elapsed().as_secs()
    );
    if let Some(path) = &args.into
        && let Err(e) = table.write_into(path, &intro)
    {
        eprintln!("{}: {e}", path.display());
        return ExitCode::FAILURE;
    }
    if table.sum("", &Outcome::Wrong(String::new())) > 0 {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
