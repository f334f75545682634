//! Manual pages that a program makes of its own commands and options: that they are complete, and that man(1) reads them.
use crate::run::{Ran, run};
use std::path::Path;
use std::process::Command;

/// The commands that a text of `--help` lists, `help` aside.
pub fn commands(help: &str) -> Vec<String> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| line.starts_with("  "));
    // What a line has no room for goes on further to the right.
    lines
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(String::from)
        .collect()
}

/// The long names of the options that a text of `--help` describes; not that of `--version`, which every command has.
fn options(help: &str) -> Vec<String> {
    let list = help.split("Options:\n").nth(1).unwrap_or_default();
    let lines = list.lines().map(str::trim_start);
    lines
        .filter(|line| line.starts_with('-'))
        .filter_map(|line| line.split("--").nth(1))
        .filter_map(|rest| rest.split([' ', ',', '[']).next())
        .filter(|name| *name != "version")
        .map(String::from)
        .collect()
}

/// What is wrong with the pages in `dir` of the command `name` (such as `ccfs-crash`) and of all that are below it. `program` runs it;
/// `elsewhere`: commands whose pages another program makes.
pub fn complaints(
    dir: &Path,
    name: &str,
    elsewhere: &[&str],
    program: &dyn Fn(&[&str]) -> Ran,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut open = vec![Vec::<String>::new()];
    let mut expected = 0;
    while let Some(words) = open.pop() {
        let line: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
        let help = program(&line).out;
        let below = commands(&help);
        open.extend(
            below
                .into_iter()
                .filter(|c| !elsewhere.contains(&c.as_str()))
                .map(|c| [&words[..], &[c]].concat()),
        );
        let page = [&[name.to_string()], &words[..]].concat().join("-") + ".8";
        expected += 1;
        let Ok(text) = std::fs::read_to_string(dir.join(&page)) else {
            wrong.push(format!("there is no {page}"));
            continue;
        };
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "\"EXIT STATUS\"",
            "\"SEE ALSO\"",
        ] {
            if !text.contains(&format!(".SH {section}\n")) {
                wrong.push(format!("{page} has no {section}"));
            }
        }
        for option in options(&help) {
            let written = format!("\\-\\-{}", option.replace('-', "\\-"));
            if !text.contains(&written) {
                wrong.push(format!("{page} does not have --{option}"));
            }
        }
        wrong.extend(unreadable(&dir.join(&page)));
    }
    let is_of_a_command = |entry: &std::fs::DirEntry| {
        let file = entry.file_name();
        let file = file.to_string_lossy();
        file.starts_with(name) && file.ends_with(".8")
    };
    let made = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let made = made.filter(is_of_a_command).count();
    if made != expected {
        wrong.push(format!("{made} pages are made, of {expected} commands"));
    }
    wrong
}

/// What man(1) says of a page, as lintian asks it; nothing where it is not installed.
fn unreadable(page: &Path) -> Option<String> {
    let is_here = run(Command::new("sh").args(["-c", "command -v man"])).code == 0;
    if !is_here {
        println!("skipped: there is no man(1) to read {}", page.display());
        return None;
    }
    let mut man = Command::new("man");
    man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
        .arg(page)
        .env("MANROFFSEQ", "")
        .env("MANWIDTH", "80")
        .env("LC_ALL", "C.UTF-8");
    let read = run(&mut man);
    let said = read.err.trim();
    (read.code != 0 || !said.is_empty()).then(|| format!("{}: {said}", page.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "Does it\n\nUsage: x [OPTIONS] <COMMAND>\n\nCommands:\n  one   Does one\n  two\n          Does two\n  \
        help  Prints\n\nOptions:\n  -o, --output <FILE>\n          Where --to\n      --dry-run[=<HOW>]\n          Nothing\n  -V, --version\n";

    #[test]
    fn help_is_read() {
        assert_eq!(commands(HELP), ["one", "two"]);
        assert_eq!(options(HELP), ["output", "dry-run"]);
    }

    #[test]
    fn what_is_missing_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let program = |words: &[&str]| Ran {
            code: 0,
            out: if words.len() == 1 { HELP } else { "" }.into(),
            err: String::new(),
        };
        let text =
            ".TH x 8\n.SH NAME\nx \\- does\n.SH SYNOPSIS\nx\n.SH DESCRIPTION\n\\-\\-output\n";
        std::fs::write(dir.path().join("x.8"), text).unwrap();
        std::fs::write(
            dir.path().join("x-two.8"),
            ".TH x 8\n.SH NAME\nx \\- does\n",
        )
        .unwrap();
        let wrong = complaints(dir.path(), "x", &[], &program);
        let tells = |text: &str| wrong.iter().any(|w| w.contains(text));
        assert!(tells("there is no x-one.8"), "{wrong:?}");
        assert!(tells("x.8 does not have --dry-run"), "{wrong:?}");
        assert!(tells("x-two.8 has no SYNOPSIS"), "{wrong:?}");
        assert!(tells("2 pages are made, of 3"), "{wrong:?}");
    }
}
