//! The commands: recording a program's disk, and exploring what a crash leaves of it.
use crate::cli::{self, CheckArgs, Command, ExploreArgs, MarkArgs, ModelArgs, RecordArgs};
use crate::{man, run};
use ccfs_command::output::{self, print_json};
use ccfs_command::table::Table;
use ccfs_command::{Context, Failure, Outcome, manual, programs, say, warn};
use ccfs_disks::Params;
use ccfs_evidence::checkers::Known;
use ccfs_evidence::explore::{self, Config};
use ccfs_evidence::images::Choice;
use ccfs_evidence::programs::{Program, Ready};
use ccfs_evidence::{calls, model, page, record, report, run as shell, sys};
use std::path::Path;
use std::time::Duration;

pub const CODE: u8 = 1;
/// Exit code of explore where images are inconsistent.
pub const INCONSISTENT: u8 = 4;

/// Gives the exit code.
pub fn run(command: &Command) -> Outcome<u8> {
    match command {
        Command::Record(a) => record(a),
        Command::Explore(a) => explore(a),
        Command::Model(a) => model(a),
        Command::Run(a) => run::run(a),
        Command::Check(a) => Ok(check(a)),
        Command::Mark(a) => mark(a),
        Command::Man(a) => manual::write(cli::table(), &[], &man::sections, &a.dir).map(|()| 0),
        Command::Table => print_json(&Table::of(cli::table())).map(|()| 0),
    }
}

/// What every command that mounts has to do first.
pub fn prepare() -> Outcome<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(
            CODE,
            "crash exploration mounts file systems, which only root can; try with sudo",
        ));
    }
    sys::private_mounts()?;
    sys::catch_signals();
    ccfs_fuse::prepare_process();
    Ok(())
}

/// A command of an option that cannot be carried out is a wrong argument: nothing has been touched yet.
pub fn check_commands(option: &str, commands: Option<&str>) -> Outcome<()> {
    match commands.and_then(shell::cannot_begin) {
        Some(why) => Err(Failure::new(2, format!("{option}: {why}"))),
        None => Ok(()),
    }
}

fn mark(args: &MarkArgs) -> Outcome<u8> {
    match (&args.file, &args.text) {
        (Some(file), _) => record::mark_file(file)?,
        (None, text) => record::mark(text.as_deref().unwrap_or_default())?,
    }
    Ok(0)
}

/// Says what is wrong; gives the exit code.
fn check(args: &CheckArgs) -> u8 {
    match args.checker.check(&Known::from_env()) {
        Ok(()) => 0,
        Err(finding) => {
            say!("{finding}");
            finding.code()
        }
    }
}

/// The timing that `--disk` names.
pub fn timing(disk: Option<&str>) -> Outcome<Option<Params>> {
    let Some(name) = disk else {
        return Ok(None);
    };
    Ok(Some(match Params::preset(name) {
        Some(params) => params,
        None => Params::load(name).or_fail(CODE, format_args!("--disk {name}"))?,
    }))
}

/// The files of a program that is shipped, in a directory.
pub fn prepared(program: &Program, dir: &Path) -> Outcome<Ready> {
    program
        .prepare(dir)?
        .map_err(|why| Failure::new(CODE, format!("--program {}: {why}", program.name)))
}

/// `--linger`.
pub fn linger(seconds: f64) -> Outcome<Duration> {
    Duration::try_from_secs_f64(seconds).or_fail(2, "--linger needs a number of seconds")
}

/// `--calls`.
pub fn check_calls(wanted: bool) -> Outcome<()> {
    match wanted && programs::in_path("strace").is_none() {
        true => Err(Failure::new(CODE, "--calls needs strace; install strace")),
        false => Ok(()),
    }
}

fn record(args: &RecordArgs) -> Outcome<u8> {
    check_commands("--setup", args.setup.as_deref())?;
    let linger = linger(args.linger)?;
    let timing = timing(args.disk.as_deref())?;
    check_calls(args.calls)?;
    let output = std::path::absolute(&args.output)
        .or_fail(CODE, format_args!("{}", args.output.display()))?;
    let command = match args.calls {
        true => calls::wrap(&args.command, &output),
        false => args.command.clone(),
    };
    // Calls of an older trace are not this one's.
    let _ = std::fs::remove_file(calls::beside(&output));
    prepare()?;
    let config = record::Config {
        fs: args.fs,
        size: args.size,
        setup: args.setup.clone(),
        output,
        command,
        limit: None,
        aside: false,
        linger,
        timing,
        ccfs: programs::ccfs()?,
    };
    let done = record::record(&config)?;
    warn!(
        "recorded {:.1} s on {}: {} writes ({} KiB), {} flushes; to explore: ccfs crash explore {} --check COMMAND",
        done.seconds,
        args.fs.name(),
        done.writes,
        done.written_bytes >> 10,
        done.flushes,
        args.output.display()
    );
    Ok(done.code.clamp(0, 255) as u8)
}

fn explore(args: &ExploreArgs) -> Outcome<u8> {
    check_commands("--check", Some(&args.check))?;
    prepare()?;
    let config = Config {
        trace: args.trace.clone(),
        check: args.check.clone(),
        fs: args.fs,
        choice: Choice {
            images: args.images.0,
            reorder: args.reorder,
            seed: args.testing.seed,
        },
        forgiven: None,
        jobs: args.testing.jobs(),
        limit: args.testing.limit(),
        until: None,
        progress: true,
        ccfs: programs::ccfs()?,
    };
    if let Some(spec) = &args.image {
        let (tested, output) = explore::one(&config, spec, args.save.as_deref())?;
        output::say_lines(&output);
        return match tested.failure {
            None => {
                say!("consistent");
                Ok(0)
            }
            Some(failure) => {
                say!("inconsistent: {}", failure.line);
                Ok(INCONSISTENT)
            }
        };
    }
    let found = explore::explore(&config)?;
    if let Some(path) = &args.html {
        let part = page::Part::new(&found, &args.trace, &args.check)?;
        std::fs::write(path, page::html(&[part]))
            .or_fail(CODE, format_args!("cannot write {}", path.display()))?;
    }
    if args.json {
        print_json(&report::json(&found, &args.trace, &args.check))?;
    } else {
        let lines = report::lines(&found, &args.trace, &args.check);
        lines.iter().for_each(|line| say!("{line}"));
    }
    let (consistent, total) = found.count("");
    Ok(if consistent == total { 0 } else { INCONSISTENT })
}

fn model(args: &ModelArgs) -> Outcome<u8> {
    check_commands("--setup", args.setup.as_deref())?;
    check_commands("--check", args.check.as_deref())?;
    sys::catch_signals();
    let mut config = model::Config {
        model: model::Model::load(&args.model)?,
        setup: args.setup.clone(),
        check: args.check.clone().unwrap_or_default(),
        command: args.command.clone(),
        mapped: args.mapped.clone(),
        states: args.states,
        jobs: args.jobs.unwrap_or_else(cli::cores),
        limit: Duration::from_secs(args.timeout),
        shrink: args
            .shrink
            .as_ref()
            .map(|_| Duration::from_secs(args.shrink_time)),
    };
    let files = record::scratch()?;
    if let Some(program) = args.program {
        let ready = prepared(program, files.path())?;
        config.setup = Some(ready.command("setup"));
        config.check = ready.command("check");
        config.command = ready.work();
        config.mapped = program.mapped.iter().map(|m| m.to_string()).collect();
    }
    let found = model::model(&config)?;
    if let Some(path) = &args.shrink {
        tell_shrunk(path, args, &found)?;
    }
    if args.json {
        print_json(&report::model_json(&config.model.name, &found))?;
    } else {
        let lines = report::model_lines(&config.model.name, &found);
        lines.iter().for_each(|line| say!("{line}"));
    }
    Ok(if found.vulnerabilities.is_empty() {
        0
    } else {
        INCONSISTENT
    })
}

/// Writes the smallest program, and says how to see its failure.
fn tell_shrunk(path: &Path, args: &ModelArgs, found: &model::Found) -> Outcome<()> {
    let Some(shrunk) = &found.shrunk else {
        warn!(
            "nothing to shrink: no state fails; {} is not written",
            path.display()
        );
        return Ok(());
    };
    std::fs::write(path, &shrunk.script)
        .or_fail(CODE, format_args!("cannot write {}", path.display()))?;
    let path = std::path::absolute(path).or_fail(CODE, format_args!("{}", path.display()))?;
    let file = report::quote(&path.display().to_string());
    warn!(
        "shrunk from {} to {} calls in {} tries{}: {}; to see it again: ccfs crash model --model {} --setup {} --check {} -- python3 {file} work",
        shrunk.from,
        shrunk.to,
        shrunk.tries,
        if shrunk.complete {
            ""
        } else {
            " (the time was over)"
        },
        shrunk.failure,
        report::quote(&args.model),
        report::quote(&format!("python3 {file} setup")),
        report::quote(args.check.as_deref().unwrap_or_default()),
    );
    Ok(())
}
