//! ccfs under other kernels: which checks there are, a run of them in a virtual machine, and the table of what they showed.
//!
//! The host's side ([`host`]) boots a kernel of Debian's over this machine's files (scripts/guest/run.sh) and starts this build's
//! programs in it ([`guest`]), which tell of every check in one line. A check that ends its kernel costs a new boot.

pub mod checks;
pub mod cuts;
pub mod guest;
pub mod host;
pub mod memory;
pub mod own;
pub mod table;

pub use ccfs_testkit::kernel::{Version, release};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One line of at most 300 characters.
pub fn short(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(300).collect()
}

/// The oldest kernel that ccfs works with.
pub const OLDEST: Version = Version(5, 15);

/// What came of a check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "why", rename_all = "kebab-case")]
pub enum Outcome {
    Ok,
    /// Something is wrong.
    Failed(String),
    /// The kernel has it not: since when kernels do.
    NotThere(String),
    /// The machine lacks something: nothing is known.
    Skipped(String),
}

/// One line of a guest, and of the results.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Line {
    pub check: String,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Tests that passed.
    pub tests: u64,
    pub seconds: u64,
    /// Of the run, UTC; the host's side knows it.
    #[serde(default)]
    pub day: String,
    /// Of the kernel, where that has another one by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (check, seconds) = (&self.check, self.seconds);
        match &self.outcome {
            Outcome::Ok => write!(f, "{check}: ok ({} tests, {seconds} s)", self.tests),
            Outcome::Failed(why) => write!(f, "{check}: failed: {why} ({seconds} s)"),
            Outcome::NotThere(why) => write!(f, "{check}: not there: {why}"),
            Outcome::Skipped(why) => write!(f, "{check}: skipped: {why}"),
        }
    }
}

/// What is known of one kernel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kernel {
    pub version: Version,
    /// As uname(1) shows it.
    pub release: String,
    /// Where it is from: `Debian trixie`.
    pub from: String,
    pub lines: Vec<Line>,
}

impl Kernel {
    /// (ok, not there, failed, skipped).
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for line in &self.lines {
            counts[match line.outcome {
                Outcome::Ok => 0,
                Outcome::NotThere(_) => 1,
                Outcome::Failed(_) => 2,
                Outcome::Skipped(_) => 3,
            }] += 1;
        }
        counts
    }
}

/// What the guest's program is given.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Names of checks, in their order.
    pub checks: Vec<String>,
    /// Test programs: (`PACKAGE/TARGET`, path, folder of the package).
    pub programs: Vec<(String, String, String)>,
    /// Longest run of a test program, seconds.
    pub limit_s: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_survives_the_way_out_of_the_guest() {
        for outcome in [
            Outcome::Ok,
            Outcome::Failed("a\nb".into()),
            Outcome::NotThere("Linux 6.14".into()),
        ] {
            let line = Line {
                check: "posix".into(),
                outcome,
                tests: 3,
                seconds: 4,
                day: "2026-01-02".into(),
                release: None,
            };
            let text = serde_json::to_string(&line).unwrap();
            assert!(!text.contains('\n'));
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        }
    }
}
