//! `ccfs-bench personalities`: the rounds.
use crate::cli::PersonalitiesArgs;
use crate::guard::WorkDir;
use crate::report::{self, Cell};
use crate::run;
use crate::system::{Image, System};
use crate::workload::{Kind, PAPER_DIVISOR, Scale};
use crate::{Because, Result};
use clap::ValueEnum;
use std::time::Duration;

/// Measures, prints the table, writes the JSON.
///
/// Errors: nothing could be measured, or some run failed (after all others were made and reported).
pub fn run(args: &PersonalitiesArgs) -> Result<()> {
    let cells = measure(args)?;
    print!("{}", report::table(&cells));
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report::entries(&cells)).because("JSON")?;
        std::fs::write(file, text + "\n").because(file.display())?;
    }
    match cells.iter().filter(|c| c.failure.is_some()).count() {
        0 => Ok(()),
        n => Err(format!("{n} measurements failed")),
    }
}

/// All runs: for each workload, rounds; in each round every system in its turn, on a fresh file system.
pub fn measure(args: &PersonalitiesArgs) -> Result<Vec<Cell>> {
    let systems = usable(&args.fs);
    if systems.is_empty() {
        return Ok(Vec::new());
    }
    let scale = Scale(args.scale);
    print_machine(args, &systems, scale);
    let work = WorkDir::new(&args.dir)?;
    let images = systems
        .iter()
        .map(|&system| Image::new(&work, system, scale.image_bytes()))
        .collect::<Result<Vec<_>>>()?;
    let mut cells = Vec::new();
    for &kind in Kind::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&kind) {
            continue;
        }
        let mut row: Vec<_> = systems.iter().map(|&s| empty(kind, s)).collect();
        for round in 0..args.rounds {
            for (cell, image) in row.iter_mut().zip(&images) {
                if cell.failure.is_some() {
                    continue;
                }
                match one(&work, image, kind, scale, u64::from(round), args.seconds) {
                    Ok((ops_per_s, unmount_s)) => {
                        cell.runs.push(ops_per_s);
                        cell.unmounts_s.push(unmount_s);
                        eprintln!(
                            "{} round {round} {}: {ops_per_s:.0}",
                            kind.name(),
                            image.system.name()
                        );
                    }
                    Err(e) => cell.failure = Some(e),
                }
            }
        }
        cells.extend(row);
    }
    Ok(cells)
}

fn empty(workload: Kind, system: System) -> Cell {
    Cell {
        workload,
        system,
        runs: Vec::new(),
        unmounts_s: Vec::new(),
        failure: None,
    }
}

/// The systems that this machine can mount, each once; a line for each of the others.
fn usable(wanted: &[System]) -> Vec<System> {
    let mut systems = Vec::new();
    for &system in wanted {
        match system.missing() {
            Some(why) => println!("skipped: {}: {why}", system.name()),
            None if systems.contains(&system) => {}
            None => systems.push(system),
        }
    }
    systems
}

/// One run. Gives operations per second, and the seconds that the unmount took.
fn one(
    work: &WorkDir,
    image: &Image,
    kind: Kind,
    scale: Scale,
    seed: u64,
    seconds: f64,
) -> Result<(f64, f64)> {
    image.mkfs()?;
    let mount = image.mount(work)?;
    if mount.direct_io == Some(false) {
        eprintln!(
            "the loop device of ext4 has no direct I/O here: its writes go to the host's page cache"
        );
    }
    let dir = mount.dir().join("run");
    std::fs::create_dir(&dir).because(dir.display())?;
    let workload = kind.make(scale);
    let outcome = run::run(&*workload, &dir, seed, Duration::from_secs_f64(seconds))?;
    let unmount = mount.end()?;
    Ok((outcome.ops_per_s(), unmount.as_secs_f64()))
}

fn print_machine(args: &PersonalitiesArgs, systems: &[System], scale: Scale) {
    let name = rustix::system::uname();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "kernel {}, {cores} cores, load before {}",
        name.release().to_string_lossy(),
        load.split(' ').next().unwrap_or("?")
    );
    for &system in systems {
        println!("{}: {}", system.name(), system.version());
    }
    println!(
        "{} s, {} rounds, 1/{PAPER_DIVISOR} of the paper's sizes x {}, images of {} MiB in {}",
        args.seconds,
        args.rounds,
        args.scale,
        scale.image_bytes() >> 20,
        args.dir.display()
    );
}
