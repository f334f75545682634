//! `ccfs completions`: what bash, zsh and fish need to complete command lines, from the flag table.
use crate::cli::{self, CompletionsArgs};
use crate::failure::{Context, Outcome};
use crate::output;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Each shell with its name and the name of the file that it looks for.
const FILES: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash", "ccfs"),
    (Shell::Zsh, "zsh", "_ccfs"),
    (Shell::Fish, "fish", "ccfs.fish"),
];

fn text(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut cli::table(), "ccfs", &mut text);
    text
}

pub fn run(args: &CompletionsArgs) -> Outcome<()> {
    let dir = &args.place;
    // (Paths are compared by their parts: ./bash would be the same.)
    let named = |name: &str| dir.as_os_str() == Path::new(name).as_os_str();
    if let Some((shell, ..)) = FILES.iter().find(|(_, name, _)| named(name)) {
        return output::give(&text(*shell));
    }
    fs::create_dir_all(dir).or_fail(1, format_args!("cannot create {}", dir.display()))?;
    for (shell, _, name) in FILES {
        let path = dir.join(name);
        fs::write(&path, text(shell))
            .or_fail(1, format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}
