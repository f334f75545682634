//! Writes the first inputs of every fuzz target into a folder each.
use ccfs_fuzzing::{TARGETS, seeds};
use std::path::Path;
use std::process::ExitCode;

fn write(dir: &Path) -> std::io::Result<()> {
    for (name, _) in TARGETS {
        let folder = dir.join(name);
        std::fs::create_dir_all(&folder)?;
        for (n, seed) in seeds::of(name).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{n:04}")), seed)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: ccfs-fuzz-seeds DIR");
        return ExitCode::from(2);
    };
    match write(Path::new(&dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}: {e}", Path::new(&dir).display());
            ExitCode::FAILURE
        }
    }
}
