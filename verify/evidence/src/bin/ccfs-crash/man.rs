//! What the manual pages of `ccfs crash` say besides its options.
use ccfs_command::manual::{Extra, exit_status};

const EXIT_CODES: &str = include_str!("../../../../../docs/using/exit-codes.md");

/// Examples by page.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "ccfs-crash-run",
        &[
            (
                "ccfs crash run --fs ext4,ccfs --check /srv/check -- /srv/program",
                "runs a program on a fresh ext4 and a fresh ccfs, and checks what crashes may leave",
            ),
            (
                "ccfs crash run --checker sqlite:app.db --junit crash.xml -- /srv/program",
                "looks after an SQLite database on ext4, xfs, btrfs and ccfs, for a CI server",
            ),
        ],
    ),
    (
        "ccfs-crash-check",
        &[(
            "ccfs crash check git:repo",
            "after a real crash: checks the repository below the working directory",
        )],
    ),
    (
        "ccfs-crash-record",
        &[(
            "ccfs crash record --fs ext4 --linger 7 -o trace -- ./program",
            "runs a program on a fresh ext4, and records what goes to its disk",
        )],
    ),
    (
        "ccfs-crash-explore",
        &[(
            "ccfs crash explore trace --check ./check --reorder --html trace.html",
            "builds the images that a crash may leave, and checks each",
        )],
    ),
    (
        "ccfs-crash-model",
        &[(
            "ccfs crash model --model ext4-ordered --check ./check -- ./program",
            "checks what a model of ext4 allows; needs no root",
        )],
    ),
    (
        "ccfs-crash-mark",
        &[
            (
                "ccfs crash mark committed",
                "in the recorded program: marks this moment",
            ),
            (
                "ccfs crash mark --file config",
                "marks this version of a file, for the checker replaced",
            ),
        ],
    ),
];

/// `page`: its name, such as `ccfs-crash-record`.
pub fn sections(page: &str) -> String {
    let command = page.trim_start_matches("ccfs-").replace('-', " ");
    let examples = EXAMPLES.iter().find(|(of, _)| *of == page);
    Extra {
        examples: examples.map_or(&[], |(_, examples)| examples),
        exit_status: exit_status(EXIT_CODES, &command),
        between: String::new(),
        related: &[("ccfs-crash", 8), ("ccfs", 7)],
    }
    .roff()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn examples_are_lines_that_the_program_understands() {
        for (page, examples) in EXAMPLES {
            for (line, _) in *examples {
                // `ccfs crash` starts this program with what comes behind it.
                let words = ["ccfs-crash"].into_iter().chain(line.split(' ').skip(2));
                let parsed = cli::table().try_get_matches_from(words);
                assert!(parsed.is_ok(), "{page}: {line}: {:?}", parsed.err());
            }
        }
    }

    #[test]
    fn exit_codes_are_those_of_the_document() {
        assert!(sections("ccfs-crash-explore").contains("4 some not"));
        assert!(sections("ccfs-crash-mark").contains("2 usage"));
    }
}
