//! Manual pages, from the table of a program's commands and options.
use crate::failure::{Context, Outcome};
use std::fs;
use std::path::Path;

/// Writes one page per visible command, named as man(1) looks for it (`ccfs-mount.8`). `elsewhere`: commands whose pages another
/// program writes. `sections`: what a page has at its end, by its name, as roff.
pub fn write(
    program: clap::Command,
    elsewhere: &[&str],
    sections: &dyn Fn(&str) -> String,
    dir: &Path,
) -> Outcome<()> {
    fs::create_dir_all(dir).or_fail(1, format_args!("cannot create {}", dir.display()))?;
    let mut pages = Vec::new();
    collect(program, None, elsewhere, &mut pages);
    for page in pages {
        let name = page.get_name().to_string();
        let man = clap_mangen::Man::new(page)
            .section("8")
            .date("")
            .source("ccfs")
            .manual("ccfs");
        let mut text = Vec::new();
        man.render(&mut text).or_fail(1, "cannot render a page")?;
        text.extend(sections(&name).bytes());
        let path = dir.join(format!("{name}.8"));
        fs::write(&path, text).or_fail(1, format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The command and its visible subcommands, each under its full name.
fn collect(
    command: clap::Command,
    parent: Option<&str>,
    elsewhere: &[&str],
    pages: &mut Vec<clap::Command>,
) {
    let name = match parent {
        None => command.get_name().to_string(),
        Some(parent) => format!("{parent}-{}", command.get_name()),
    };
    let is_here = |sub: &&clap::Command| {
        let other = sub.get_name() == "help" || elsewhere.contains(&sub.get_name());
        !sub.is_hide_set() && !other
    };
    for sub in command.get_subcommands().filter(is_here) {
        collect(sub.clone(), Some(&name), elsewhere, pages);
    }
    let usage = name.replace('-', " ");
    pages.push(
        command
            .disable_help_subcommand(true)
            .bin_name(usage)
            .name(name),
    );
}
