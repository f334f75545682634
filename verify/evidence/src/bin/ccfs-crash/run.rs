//! `ccfs crash run`: from a program to a verdict for each file system.
use crate::cli::RunArgs;
use crate::commands::{
    CODE, INCONSISTENT, check_calls, check_commands, linger, prepare, prepared, timing,
};
use ccfs_command::output::print_json;
use ccfs_command::{Context, Outcome, programs, say, warn};
use ccfs_evidence::systems::System;
use ccfs_evidence::verdict::{self, Config, Outcome as Found};
use ccfs_evidence::verdicts::Verdicts;
use ccfs_evidence::{junit, page, sys};
use std::path::Path;
use std::time::{Duration, Instant};

/// Where `--fs` is not given: those of these that are here.
const DEFAULT: [&str; 4] = ["ext4", "xfs", "btrfs", "ccfs"];

pub fn run(args: &RunArgs) -> Outcome<u8> {
    check_commands("--setup", args.setup.as_deref())?;
    check_commands("--check", args.check.as_deref())?;
    check_calls(args.calls)?;
    let config = Config {
        size: args.size,
        linger: linger(args.linger)?,
        timing: timing(args.disk.as_deref())?,
        calls: args.calls,
        images: args.images.0,
        seed: args.testing.seed,
        jobs: args.testing.jobs(),
        limit: args.testing.limit(),
        ..Config::new(programs::ccfs()?)
    };
    prepare()?;
    let output = std::path::absolute(&args.output)
        .or_fail(CODE, format_args!("{}", args.output.display()))?;
    std::fs::create_dir_all(&output)
        .or_fail(CODE, format_args!("cannot make {}", output.display()))?;
    let found = judge(args, with_program(args, config, &output)?)?;
    write(args, &found)?;
    if args.json {
        print_json(&found.json())?;
    } else {
        found.lines().iter().for_each(|line| say!("{line}"));
        say!("report: {}", found.report().display());
    }
    Ok(match (found.inconsistent(), found.failed()) {
        (true, _) => INCONSISTENT,
        (false, true) => CODE,
        (false, false) => 0,
    })
}

/// The program that is given, or that is shipped: its files go to `output`, for who tries an image again.
fn with_program(args: &RunArgs, config: Config, output: &Path) -> Outcome<Config> {
    let Some(program) = args.program else {
        let mut all: Vec<String> = args.checker.iter().map(|c| c.command()).collect();
        match &args.check {
            // Several commands of it are one.
            Some(check) if !all.is_empty() => all.push(format!("(\n{check}\n)")),
            check => all.extend(check.clone()),
        }
        return Ok(Config {
            setup: args.setup.clone(),
            command: args.command.clone(),
            check: all.join(" && "),
            ..config
        });
    };
    let dir = output.join(program.name);
    std::fs::create_dir_all(&dir).or_fail(CODE, format_args!("cannot make {}", dir.display()))?;
    let ready = prepared(program, &dir)?;
    Ok(Config {
        setup: Some(ready.command("setup")),
        command: ready.work(),
        check: ready.command("check"),
        ..config
    })
}

/// Every file system in turn; each may take its share of the time that is left.
fn judge(args: &RunArgs, config: Config) -> Outcome<Verdicts> {
    let named = !args.fs.is_empty();
    let all = System::all();
    let systems: Vec<_> = match named {
        true => args.fs.clone(),
        false => all.filter(|s| DEFAULT.contains(&s.name)).collect(),
    };
    let begun = Instant::now();
    let mut found = Verdicts::new(config, &args.output);
    for (index, &system) in systems.iter().enumerate() {
        if let (false, Some(why)) = (named, system.missing()) {
            warn!("{}: skipped: {why}", system.name);
            found.add(system, Found::Skipped(why));
            continue;
        }
        warn!("{}: recording, then exploring", system.name);
        let until = (args.time > 0).then(|| {
            let left = Duration::from_secs(args.time).saturating_sub(begun.elapsed());
            Instant::now() + left / (systems.len() - index) as u32
        });
        let outcome = verdict::judge(&found.config, system, &found.trace(system), until);
        found.add(system, outcome);
        if let Err(e) = sys::interrupted() {
            found.remove_traces();
            return Err(e.into());
        }
    }
    Ok(found)
}

/// The report, and what CI reads.
fn write(args: &RunArgs, found: &Verdicts) -> Outcome<()> {
    let cannot = |path: &Path| format!("cannot write {}", path.display());
    let path = found.report();
    std::fs::write(&path, page::html(&found.parts()?)).or_fail(CODE, cannot(&path))?;
    found.tidy();
    if let Some(path) = &args.junit {
        std::fs::write(path, junit::xml(found)).or_fail(CODE, cannot(path))?;
    }
    Ok(())
}
