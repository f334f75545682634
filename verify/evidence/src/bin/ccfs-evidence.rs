//! `ccfs-evidence calibrate` compares the modelled disks with the papers'; `ccfs-evidence tables` makes the papers' tables.
#![deny(unsafe_code)]
use ccfs_evidence::tables::{self, Config, Results};
use ccfs_evidence::{Fail, calibrate, sys};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: ccfs-evidence calibrate
       ccfs-evidence tables [--images N] [--cases N] [--kills N] [--only PROGRAM,...] [--jobs N] [--seed S]
                            [--parts images,models,kills]
                            [--results FILE] [--html DIR] [--document FILE]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["calibrate"] => run_calibrate(),
        ["append", path, count] => count
            .parse()
            .map_err(|_| Fail::new(USAGE))
            .and_then(|count| calibrate::append(Path::new(path), count)),
        ["tables", options @ ..] => run_tables(options),
        _ => Err(Fail::new(USAGE)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ccfs-evidence: {e}");
            ExitCode::FAILURE
        }
    }
}

fn me() -> Result<PathBuf, Fail> {
    std::env::current_exe().map_err(|e| Fail::new(e.to_string()))
}

/// The program of the same build.
fn ccfs() -> Result<PathBuf, Fail> {
    let path = me()?.with_file_name("ccfs");
    if path.exists() {
        Ok(path)
    } else {
        Err(Fail::new(
            "ccfs is not built: cargo build --release -p ccfs",
        ))
    }
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

fn run_tables(options: &[&str]) -> Result<(), Fail> {
    let mut config = Config {
        ccfs: ccfs()?,
        images: 200,
        cases: 1000,
        kills: 20,
        only: Vec::new(),
        parts: Vec::new(),
        html: "target/evidence".into(),
        jobs: std::thread::available_parallelism().map_or(2, usize::from),
        seed: 1,
    };
    let mut file = PathBuf::from("target/evidence/results.json");
    let mut document = PathBuf::from("docs/evidence.md");
    for pair in options.chunks(2) {
        let [name, value] = pair else {
            return Err(Fail::new(USAGE));
        };
        let number = || value.parse::<usize>().map_err(|_| Fail::new(USAGE));
        match *name {
            "--images" => config.images = number()?,
            "--cases" => config.cases = number()?,
            "--kills" => config.kills = number()?,
            "--jobs" => config.jobs = number()?,
            "--seed" => config.seed = number()? as u64,
            "--only" => config.only = value.split(',').map(str::to_string).collect(),
            "--parts" => {
                config.parts = value.split(',').map(str::to_string).collect();
                let known = |p: &String| tables::PARTS.contains(&p.as_str());
                if !config.parts.iter().all(known) {
                    return Err(Fail::new(USAGE));
                }
            }
            "--results" => file = value.into(),
            "--html" => config.html = value.into(),
            "--document" => document = value.into(),
            _ => return Err(Fail::new(USAGE)),
        }
    }
    prepare()?;
    let mut results: Results = std::fs::read(&file)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    tables::measure(&config, &mut results, |results| {
        let text = serde_json::to_vec_pretty(results).map_err(|e| Fail::new(e.to_string()))?;
        if let Some(dir) = file.parent() {
            let _ = std::fs::create_dir_all(dir);
        }
        std::fs::write(&file, text).map_err(|e| Fail::new(format!("{}: {e}", file.display())))?;
        tables::insert(&document, &tables::markdown(results))
    })?;
    tables::insert(&document, &tables::markdown(&results))
}
