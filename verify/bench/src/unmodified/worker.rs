//! The process that does it: `ccfs-bench-work`. It prepares, measures, and says the figures as JSON.
//!
//! `ccfs direct` takes no program that makes system calls past the C library. So nothing that this one reaches uses rustix, not even
//! to read the arguments (clap asks for the terminal's width).
use super::job::Job;
use crate::experiment::{Measured, figures};
use crate::outputs::say;
use crate::workload::Scale;
use crate::{Because, Result, run};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// One run of a workload, and what it starts with.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkArgs {
    pub job: Job,
    pub scale: f64,
    pub seed: u64,
    pub seconds: f64,
    pub dir: PathBuf,
}

impl WorkArgs {
    /// All are needed, in any order.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<WorkArgs> {
        let (mut job, mut scale, mut seed, mut seconds, mut dir) = (None, None, None, None, None);
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let name = arg.to_str().filter(|a| a.starts_with('-'));
            let Some(name) = name else {
                if dir.replace(PathBuf::from(&arg)).is_some() {
                    return Err(format!("one directory only: {}", arg.display()));
                }
                continue;
            };
            let given = args.next().and_then(|v| v.into_string().ok());
            let value = given.ok_or_else(|| format!("{name} is unknown, or lacks a value"))?;
            match name {
                "--job" => job = Some(Job::from_str(&value, false).because(&value)?),
                "--scale" => scale = Some(positive(&value)?),
                "--seed" => seed = Some(u64::from_str(&value).because(&value)?),
                "--seconds" => seconds = Some(positive(&value)?),
                _ => return Err(format!("{name} is unknown")),
            }
        }
        Ok(WorkArgs {
            job: job.ok_or("--job is missing")?,
            scale: scale.ok_or("--scale is missing")?,
            seed: seed.ok_or("--seed is missing")?,
            seconds: seconds.ok_or("--seconds is missing")?,
            dir: dir.ok_or("the directory is missing")?,
        })
    }
}

fn positive(text: &str) -> Result<f64> {
    let number = text.parse().ok().filter(|n| *n > 0.0 && *n <= 1e6);
    number.ok_or_else(|| format!("{text}: a number above 0 is needed, 1000000 at most"))
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Worked {
    /// Making what the run starts with.
    pub prepare_s: f64,
    pub ops: u64,
    /// All there was to do was done; else it went on for the time given.
    pub has_end: bool,
    pub measured: Measured,
}

pub fn serve(args: &WorkArgs) -> Result<()> {
    let workload = args.job.make(Scale(args.scale));
    let begun = Instant::now();
    run::prepare(&*workload, &args.dir)?;
    let prepare_s = begun.elapsed().as_secs_f64();
    let time = Duration::from_secs_f64(args.seconds);
    let outcome = run::measure(&*workload, &args.dir, args.seed, time, &|| ())?;
    let worked = Worked {
        prepare_s,
        ops: outcome.ops,
        has_end: !workload.warms_up(),
        measured: figures(&outcome),
    };
    say(serde_json::to_string(&worked).because("JSON")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<WorkArgs> {
        WorkArgs::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_come_in_any_order_and_all_are_needed() {
        let args = parse("dir --job append-4k --scale 0.5 --seed 7 --seconds 2").unwrap();
        assert_eq!(
            args,
            WorkArgs {
                job: Job::Append,
                scale: 0.5,
                seed: 7,
                seconds: 2.0,
                dir: "dir".into()
            }
        );
        let other = parse("--seconds 2 --seed 7 --scale 0.5 --job append-4k dir");
        assert_eq!(other.unwrap(), args);
        for (line, why) in [
            ("", "--job is missing"),
            (
                "--job unlink --scale 1 --seed 1 --seconds 1",
                "the directory is missing",
            ),
            ("a b", "one directory only: b"),
            ("--job nothing", "nothing: "),
            ("--scale 0", "above 0"),
            ("--seconds NaN", "above 0"),
            ("--seed -1", "-1: "),
            ("--seed", "lacks a value"),
            ("--other 1", "--other is unknown"),
        ] {
            let said = parse(line).unwrap_err();
            assert!(said.contains(why), "{line}: {said}");
        }
    }
}
