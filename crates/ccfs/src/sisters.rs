//! Commands that are programs of their own: `ccfs` becomes them. What they do is none of a mounted volume's business, so it is not in here.
use ccfs_command::Outcome;
use ccfs_command::programs::Program;
use std::ffi::OsString;

pub const BENCH: Program = Program {
    command: "bench",
    name: "ccfs-bench",
    package: "ccfs-bench",
};
pub const CRASH: Program = Program {
    command: "crash",
    name: "ccfs-crash",
    package: "ccfs-evidence",
};
pub const ALL: [&Program; 2] = [&BENCH, &CRASH];

/// Runs one with these arguments.
pub fn run(program: &Program, args: &[OsString]) -> Outcome<u8> {
    match program.become_it(args)? {}
}

/// `ccfs help COMMAND ...`, which is `COMMAND ... --help`: the program that has the answer, and its arguments. Where that is not
/// installed this one says what it knows.
pub fn asked_for_help(args: &[OsString]) -> Option<(&'static Program, Vec<OsString>)> {
    let [_, help, command, rest @ ..] = args else {
        return None;
    };
    let mut all = ALL.into_iter().filter(|_| help == "help");
    let program = all.find(|p| *command == p.command && p.is_installed())?;
    Some((program, [rest, &["--help".into()]].concat()))
}
