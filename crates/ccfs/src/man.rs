//! `ccfs man DIR`: the manual pages, from the flag table. The pages in docs/man are made by it; a test compares them. Those of `ccfs bench`
//! are made by the program that has its flags, ccfs-bench.
use crate::cli::{self, ManArgs};
use crate::failure::{Context, Outcome};
use std::fs;

/// Writes one page per subcommand, named as man(1) looks for it (`ccfs-mount.8`).
pub fn run(args: &ManArgs) -> Outcome<()> {
    fs::create_dir_all(&args.dir)
        .or_fail(1, format_args!("cannot create {}", args.dir.display()))?;
    let mut pages = Vec::new();
    collect(cli::table(), None, &mut pages);
    for page in pages {
        let name = page.get_name().to_string();
        let man = clap_mangen::Man::new(page)
            .section("8")
            .date("")
            .source("ccfs")
            .manual("ccfs");
        let mut text = Vec::new();
        man.render(&mut text).or_fail(1, "cannot render a page")?;
        let path = args.dir.join(format!("{name}.8"));
        fs::write(&path, text).or_fail(1, format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The command and its visible subcommands, each under its full name.
fn collect(command: clap::Command, parent: Option<&str>, pages: &mut Vec<clap::Command>) {
    let name = match parent {
        None => command.get_name().to_string(),
        Some(parent) => format!("{parent}-{}", command.get_name()),
    };
    for sub in command
        .get_subcommands()
        .filter(|s| !s.is_hide_set() && !matches!(s.get_name(), "help" | "bench"))
    {
        collect(sub.clone(), Some(&name), pages);
    }
    let usage = name.replace('-', " ");
    pages.push(
        command
            .disable_help_subcommand(true)
            .bin_name(usage)
            .name(name),
    );
}
