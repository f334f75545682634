//! Long crash explorations: the standard list of workloads from a place on, until enough distinct crash states were looked at.
//!
//! A failure prints its place and a shortened sequence of actions with the command that replays it. With `--state-file` an
//! interrupted run goes on where it was.
use ccfs_crash::config::{self, Config};
use ccfs_crash::coverage::Coverage;
use ccfs_crash::explore::{Effort, explore_into};
use ccfs_crash::long::{Limits, Long};
use ccfs_crash::run::{Run, Source};
use ccfs_crash::setting::Setting;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A crash state is millions of small allocations, on all threads at once.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: ccfs-crash-explore [--from PLACE] [--places N] [--states N] [--minutes N] [--threads N]
       [--state-file FILE] [--complete] [--shrink SECONDS] [--hang SECONDS] [--keep-going] [--flash]
       ccfs-crash-explore --script FILE|- [--volume NAME] [--states N] [--flash]
       ccfs-crash-explore --bugs NAME,...|all [--states N]     (a build with `--features planted`)

The first form explores the standard workloads from PLACE (0) on. --complete: it fails if something was never looked at.
--flash: all of it on transactional flash, which commits without a log.
The second performs the actions of a script. The third looks for planted bugs, each within N (20000) states.";

struct Args {
    limits: Limits,
    /// The text of `--script`.
    script: Option<String>,
    volume: &'static Config,
    bugs: Option<String>,
}

fn parse() -> Result<Args, String> {
    let mut args = Args {
        limits: Limits::default(),
        script: None,
        volume: volume("1k")?,
        bugs: None,
    };
    let limits = &mut args.limits;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .ok_or_else(|| format!("{word}: a value is missing\n\n{USAGE}"))
        };
        let number = |text: String| {
            text.parse::<u64>()
                .map_err(|_| format!("{word}: {text} is no number\n\n{USAGE}"))
        };
        match word.as_str() {
            "--from" => limits.from = number(value()?)?,
            "--places" => limits.places = number(value()?)?,
            "--states" => limits.states = number(value()?)?,
            "--minutes" => limits.time = Duration::from_secs(number(value()?)?.saturating_mul(60)),
            "--threads" => limits.threads = number(value()?)?.clamp(1, 256) as usize,
            "--state-file" => limits.state_file = Some(PathBuf::from(value()?)),
            "--complete" => limits.complete = true,
            "--shrink" => limits.shrink = Duration::from_secs(number(value()?)?),
            "--hang" => limits.hang = Duration::from_secs(number(value()?)?),
            "--keep-going" => limits.keep_going = true,
            "--flash" => limits.flash = true,
            "--script" => args.script = Some(read(&value()?)?),
            "--volume" => args.volume = volume(&value()?)?,
            "--bugs" => {
                let names = value()?;
                check_bugs(&names)?;
                args.bugs = Some(names);
            }
            _ => return Err(USAGE.into()),
        }
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
    // A panic of the engine is a failure with a report of its own.
    std::panic::set_hook(Box::new(|_| {}));
    let done = match (&args.script, &args.bugs) {
        (Some(text), _) => script(&args, text),
        (None, Some(names)) => bugs(names, &args.limits),
        (None, None) => Long::new(args.limits.clone()).and_then(|long| long.run()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn volume(name: &str) -> Result<&'static Config, String> {
    config::config(name).ok_or_else(|| {
        let names: Vec<&str> = config::CONFIGS.iter().map(|c| c.name).collect();
        format!(
            "--volume {name}: there is none; the volumes are {}",
            names.join(", ")
        )
    })
}

fn read(file: &str) -> Result<String, String> {
    let text = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        _ => std::fs::read_to_string(file),
    };
    text.map_err(|e| format!("--script {file}: {e}"))
}

fn script(args: &Args, text: &str) -> Result<(), String> {
    let start = Instant::now();
    let run = {
        let setting = Setting {
            flash: args.limits.flash,
            ..Setting::new(args.volume)
        };
        Run::record(setting, Source::Text(text.into()))?
    };
    let mut coverage = Coverage::default();
    let effort = Effort {
        subsets_max: 8,
        directed: true,
        sectors: true,
        random: 8,
        fsck_every: 20,
        damage_every: 50,
        states_max: args.limits.states.min(20_000) as usize,
        ..Effort::default()
    };
    explore_into(&run, &effort, &mut coverage)?;
    println!("{coverage}\n{:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

#[cfg(feature = "planted")]
fn check_bugs(names: &str) -> Result<(), String> {
    ccfs_crash::fish::check(names)
}

#[cfg(feature = "planted")]
fn bugs(names: &str, limits: &Limits) -> Result<(), String> {
    ccfs_crash::fish::catch(names, limits)
}

#[cfg(not(feature = "planted"))]
fn check_bugs(_: &str) -> Result<(), String> {
    Err("--bugs needs a build with planted bugs: cargo run --release -p ccfs-crash --features planted --bin ccfs-crash-explore -- --bugs all".into())
}

#[cfg(not(feature = "planted"))]
fn bugs(names: &str, _: &Limits) -> Result<(), String> {
    check_bugs(names)
}
