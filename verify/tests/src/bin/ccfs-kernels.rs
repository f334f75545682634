//! ccfs under the kernels that Debian's packages offer: `make test-kernels`. See `--help`.
use ccfs_tests::harness::Fs;
use ccfs_tests::kernels::host::{self, Ran};
use ccfs_tests::kernels::table::Results;
use ccfs_tests::kernels::{Outcome, Version, checks, guest};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Boots each kernel in qemu and runs the checks there. Needs root, qemu and, the first time, a Debian mirror.
#[derive(Parser)]
#[command(name = "ccfs-kernels", version)]
struct Cli {
    /// Kernels, as MAJOR.MINOR, separated by spaces or commas; `all` that the suites offer (default: those of long support, where ccfs
    /// differs, and the newest)
    #[arg(long, default_value = "")]
    kernels: String,
    /// Checks, separated by spaces or commas (default: all; `--list` names them)
    #[arg(long, default_value = "")]
    checks: String,
    /// Names the kernels that are offered, and the checks
    #[arg(long)]
    list: bool,
    /// Where results are kept; those of kernels and checks that do not run this time stay
    #[arg(long, default_value = "docs/kernels.json")]
    results: PathBuf,
    /// Prints the kept results as JSON at the end; what happens meanwhile goes to standard error
    #[arg(long)]
    json: bool,
    /// Puts the table of the kept results between its markers in a document
    #[arg(long)]
    into: Option<PathBuf>,
    /// The guest's side: runs a plan (JSON) under the kernel that runs
    #[arg(long, hide = true)]
    guest: Option<String>,
}

fn words(list: &str) -> Vec<&str> {
    list.split([' ', ',']).filter(|w| !w.is_empty()).collect()
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(plan) = &cli.guest {
        return match serde_json::from_str(plan) {
            Ok(plan) => {
                guest::run_plan(&plan);
                ExitCode::SUCCESS
            }
            Err(e) => refuse(&format!("the plan: {e}")),
        };
    }
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => refuse(&why),
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("ccfs-kernels: {why}");
    ExitCode::from(2)
}

/// The chosen kernels with their suites.
fn chosen(cli: &Cli) -> Result<(Vec<(Version, String)>, String), String> {
    let (offered, unreachable) = host::offered();
    let mut list = Vec::new();
    let usual =
        |v: &Version| checks::USUAL.contains(v) || Some(v) == offered.last().map(|(v, _)| v);
    match &words(&cli.kernels)[..] {
        [] => list.extend(offered.iter().filter(|(v, _)| usual(v)).cloned()),
        ["all"] => list.clone_from(&offered),
        _ => (),
    }
    for word in words(&cli.kernels).into_iter().filter(|w| *w != "all") {
        let version = Version::of(word).ok_or(format!("{word} is no version, such as 6.12"))?;
        let found = offered.iter().find(|(v, _)| *v == version);
        let names: Vec<String> = offered.iter().map(|(v, _)| v.to_string()).collect();
        let names = names.join(" ");
        let none = format!("no Linux {version} among {names}. {unreachable}");
        list.push(found.cloned().ok_or(none)?);
    }
    Ok((list, unreachable))
}

/// False: something failed, or could not be run where that counts.
fn run(cli: &Cli) -> Result<bool, String> {
    let names: Vec<&str> = match &words(&cli.checks)[..] {
        [] => checks::CHECKS.iter().map(|c| c.name).collect(),
        some => some.to_vec(),
    };
    if let Some(name) = names.iter().find(|name| checks::named(name).is_none()) {
        return Err(format!("there is no check {name}; --list names them"));
    }
    let (kernels, unreachable) = chosen(cli)?;
    let tell = |text: &str| match cli.json {
        true => eprintln!("{text}"),
        false => println!("{text}"),
    };
    if cli.list {
        kernels
            .iter()
            .for_each(|(v, suite)| tell(&format!("{v}: {suite}")));
        checks::CHECKS
            .iter()
            .for_each(|c| tell(&format!("{}: {}", c.name, c.title)));
        return Ok(true);
    }
    let mut whole = true;
    for line in unreachable.lines() {
        tell(&format!("SKIPPED: {line}"));
        whole = false;
    }
    if kernels.is_empty() {
        tell("SKIPPED: no kernel at all: a Debian mirror is needed (CCFS_GUEST_MIRROR names one)");
    } else if !Fs::Ccfs.ready("kernels") {
        return Err("needs root, /dev/fuse and loop devices".into());
    }
    let mut results = Results::load(&cli.results)?;
    let mut failed = false;
    let programs = host::programs(&names)?;
    for (version, suite) in &kernels {
        tell(&format!("== Linux {version} ({suite})"));
        let mut keep = |kernel| {
            results.take(kernel);
            if let Err(e) = results.store(&cli.results) {
                tell(&e);
            }
        };
        let mut tell_of = |text: &str| tell(&format!("{version}  {text}"));
        match host::run(suite, &names, &programs, &mut tell_of, &mut keep) {
            Ran::Nothing(why) => {
                tell(&format!("SKIPPED: Linux {version}: {}", why.trim()));
                whole = false;
            }
            Ran::Done(kernel) => {
                let [ok, not_there, bad, skipped] = kernel.counts();
                tell(&format!(
                    "Linux {version}: {ok} ok, {not_there} not there, {bad} failed, {skipped} skipped"
                ));
                failed |= bad > 0;
                whole &= kernel
                    .lines
                    .iter()
                    .all(|l| !matches!(l.outcome, Outcome::Skipped(_)));
                results.take(kernel);
                results.store(&cli.results)?;
            }
        }
    }
    if let Some(path) = &cli.into {
        results.write_into(path)?;
    }
    if cli.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&results).expect("results")
        );
    }
    if !whole {
        tell("SKIPPED: not everything was run (see above)");
    }
    Ok(!failed && (whole || std::env::var_os("CI").is_none()))
}
