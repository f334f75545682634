//! `ccfs completions`: what bash, zsh and fish need to complete command lines, from the flag table.
use crate::cli::{self, CompletionsArgs};
use crate::sisters;
use ccfs_command::programs::Program;
use ccfs_command::{Context, Outcome, output};
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::path::Path;

/// Each shell with its name and the name of the file that it looks for.
const FILES: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash", "ccfs"),
    (Shell::Zsh, "zsh", "_ccfs"),
    (Shell::Fish, "fish", "ccfs.fish"),
];

/// The flag table, with those of the other programs that are installed.
fn table() -> Command {
    let mut whole = cli::table();
    let commands = whole.get_subcommands().map(|c| c.get_name().to_string());
    // (Each of them, in turn: what is changed goes to the end of the list.)
    for name in commands.collect::<Vec<_>>() {
        let program = sisters::ALL.into_iter().find(|p| name == p.command);
        let table = program.and_then(Program::table);
        whole = whole.mut_subcommand(name, |own| match table {
            Some(table) => table.in_place_of(&own),
            None => own,
        });
    }
    whole
}

fn text(table: &mut Command, shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, table, "ccfs", &mut text);
    text
}

pub fn run(args: &CompletionsArgs) -> Outcome<()> {
    let dir = &args.place;
    // (Paths are compared by their parts: ./bash would be the same.)
    let named = |name: &str| dir.as_os_str() == Path::new(name).as_os_str();
    if let Some((shell, ..)) = FILES.iter().find(|(_, name, _)| named(name)) {
        return output::give(&text(&mut table(), *shell));
    }
    fs::create_dir_all(dir).or_fail(1, format_args!("cannot create {}", dir.display()))?;
    let mut table = table();
    for (shell, _, name) in FILES {
        let path = dir.join(name);
        fs::write(&path, text(&mut table, shell))
            .or_fail(1, format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}
