//! Manual pages, from the table of a program's commands and options.
use crate::failure::{Context, Outcome};
use crate::markdown::{plain, rows, words};
use std::fs;
use std::path::Path;

/// The row of docs/using/exit-codes.md for all commands without one.
const THE_REST: &str = "the rest";

/// What a page says besides the table of options.
pub struct Extra<'a> {
    /// Lines as they are typed, with what they do.
    pub examples: &'a [(&'a str, &'a str)],
    /// As the documents write it.
    pub exit_status: String,
    /// More sections, as roff.
    pub between: String,
    /// Other pages: name and section.
    pub related: &'a [(&'a str, u8)],
}

impl Extra<'_> {
    /// The sections.
    pub fn roff(&self) -> String {
        let mut out = String::new();
        if !self.examples.is_empty() {
            out += ".SH EXAMPLES\n";
        }
        for (line, what) in self.examples {
            out += &format!(".TP\n\\fB{}\\fR\n{}\n", plain(line), words(what));
        }
        out += &format!(".SH \"EXIT STATUS\"\n{}\n", words(&self.exit_status));
        out += &self.between;
        let related = self.related.iter();
        let related: Vec<String> = related
            .map(|(name, section)| format!(".BR {} ({section})", plain(name)))
            .collect();
        out + &format!(".SH \"SEE ALSO\"\n{}\n", related.join(",\n"))
    }
}

/// What the table of exit codes (docs/using/exit-codes.md) says of a command, such as `stream run`.
pub fn exit_status(document: &str, command: &str) -> String {
    let rows = rows(document);
    let names = |row: &Vec<String>| -> Vec<String> {
        let quoted = row[0].split('`').skip(1).step_by(2);
        quoted.map(String::from).collect()
    };
    let own = rows
        .iter()
        .find(|row| names(row).iter().any(|n| n == command));
    let row = own.or_else(|| rows.iter().find(|row| row[0] == THE_REST));
    row.map(|row| row[1].clone()).unwrap_or_default()
}

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
