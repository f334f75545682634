//! `ccfs completions DIR`: what bash, zsh and fish need to complete command lines, from the flag table.
use crate::cli::{self, CompletionsArgs};
use crate::failure::{Context, Outcome};
use clap_complete::Shell;
use std::fs;

/// Each shell with the name that it looks for.
const FILES: [(Shell, &str); 3] = [
    (Shell::Bash, "ccfs"),
    (Shell::Zsh, "_ccfs"),
    (Shell::Fish, "ccfs.fish"),
];

pub fn run(args: &CompletionsArgs) -> Outcome<()> {
    fs::create_dir_all(&args.dir)
        .or_fail(1, format_args!("cannot create {}", args.dir.display()))?;
    for (shell, name) in FILES {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut cli::table(), "ccfs", &mut text);
        let path = args.dir.join(name);
        fs::write(&path, text).or_fail(1, format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}
