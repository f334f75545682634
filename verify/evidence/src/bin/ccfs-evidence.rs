//! `ccfs-evidence calibrate` compares the modelled disks with the papers'; `ccfs-evidence tables` makes the papers' tables.
#![deny(unsafe_code)]
use ccfs_command::programs;
use ccfs_evidence::tables::{self, Config, Results};
use ccfs_evidence::{Fail, calibrate, document, sys};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: ccfs-evidence calibrate
       ccfs-evidence tables [--images N] [--cases N] [--kills N] [--only PROGRAM,...] [--jobs N] [--seed S]
                            [--parts images,models,kills] [--fs SYSTEM,...]
                            [--results FILE] [--html DIR] [--document FILE]
       ccfs-evidence needs [the options of tables]

tables measures what --only and --parts choose (all), and changes only that in the document. --fs: images only on these.
needs names the Debian packages for it.";

/// Why it ends without success.
enum Trouble {
    /// A wrong argument: nothing has been touched.
    Usage(String),
    Failed(Fail),
}

impl From<Fail> for Trouble {
    fn from(e: Fail) -> Trouble {
        Trouble::Failed(e)
    }
}

fn usage() -> Trouble {
    Trouble::Usage(USAGE.into())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(words.as_slice()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Trouble::Usage(why)) => {
            eprintln!("ccfs-evidence: {why}");
            ExitCode::from(2)
        }
        Err(Trouble::Failed(e)) => {
            eprintln!("ccfs-evidence: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), Trouble> {
    match words {
        ["calibrate"] => Ok(run_calibrate()?),
        ["append", path, count] => {
            let count = count.parse().map_err(|_| usage())?;
            Ok(calibrate::append(Path::new(path), count)?)
        }
        ["tables", options @ ..] => Ok(run_tables(&parse(options)?)?),
        ["needs", options @ ..] => {
            let all: Vec<_> = parse(options)?.config.packages().into_iter().collect();
            println!("{}", all.join(" "));
            Ok(())
        }
        _ => Err(usage()),
    }
}

fn me() -> Result<PathBuf, Fail> {
    std::env::current_exe().map_err(|e| Fail::new(e.to_string()))
}

/// The program of the same build.
fn ccfs() -> Result<PathBuf, Fail> {
    programs::beside("ccfs")
        .ok_or_else(|| Fail::new("ccfs is not built: cargo build --release -p ccfs"))
}

fn prepare() -> Result<(), Fail> {
    sys::private_mounts()?;
    sys::catch_signals();
    ccfs_fuse::prepare_process();
    Ok(())
}

fn run_calibrate() -> Result<(), Fail> {
    prepare()?;
    let append: Vec<OsString> = vec![
        me()?.into_os_string(),
        "append".into(),
        "file".into(),
        "200".into(),
    ];
    let mut worst: f64 = 0.0;
    for line in calibrate::calibrate(&append, Path::new("ccfs"))? {
        println!(
            "{}: {:.2} {} (paper {:.2}, {:+.0} %)",
            line.what,
            line.model,
            line.unit,
            line.paper,
            line.off_percent()
        );
        worst = worst.max(line.off_percent().abs());
    }
    if worst <= 20.0 {
        Ok(())
    } else {
        Err(Fail::new("a figure is more than 20 % off"))
    }
}

struct Tables {
    config: Config,
    results: PathBuf,
    document: PathBuf,
}

fn parse(options: &[&str]) -> Result<Tables, Trouble> {
    let mut config = Config {
        ccfs: PathBuf::new(),
        images: 200,
        cases: 1000,
        kills: 20,
        only: Vec::new(),
        parts: Vec::new(),
        fs: Vec::new(),
        html: "target/evidence".into(),
        jobs: std::thread::available_parallelism().map_or(2, usize::from),
        seed: 1,
    };
    let mut results = PathBuf::from("target/evidence/results.json");
    let mut document = PathBuf::from("docs/evidence.md");
    for pair in options.chunks(2) {
        let [name, value] = pair else {
            return Err(usage());
        };
        let number = || {
            let why = || Trouble::Usage(format!("{name}: {value} is no number"));
            value.parse::<usize>().map_err(|_| why())
        };
        let list = || value.split(',').map(str::to_string).collect();
        match *name {
            "--images" => config.images = number()?,
            "--cases" => config.cases = number()?,
            "--kills" => config.kills = number()?,
            "--jobs" => config.jobs = number()?,
            "--seed" => config.seed = number()? as u64,
            "--only" => config.only = list(),
            "--parts" => config.parts = list(),
            "--fs" => config.fs = list(),
            "--results" => results = value.into(),
            "--html" => config.html = value.into(),
            "--document" => document = value.into(),
            _ => return Err(usage()),
        }
    }
    config.check().map_err(Trouble::Usage)?;
    Ok(Tables {
        config,
        results,
        document,
    })
}

fn run_tables(tables: &Tables) -> Result<(), Fail> {
    let config = Config {
        ccfs: ccfs()?,
        ..tables.config.clone()
    };
    prepare()?;
    let file = &tables.results;
    let before: Results = std::fs::read(file)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    tables::measure(&config, &mut Results::default(), |results| {
        let mut all = before.clone();
        all.extend(results);
        let text = serde_json::to_vec_pretty(&all).map_err(|e| Fail::new(e.to_string()))?;
        if let Some(dir) = file.parent() {
            let _ = std::fs::create_dir_all(dir);
        }
        std::fs::write(file, text).map_err(|e| Fail::new(format!("{}: {e}", file.display())))?;
        document::enter(&tables.document, results)
    })
}
