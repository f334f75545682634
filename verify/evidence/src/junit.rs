//! Verdicts as JUnit XML, as CI servers read it: a suite for each file system, a case for each kind of crash state.
use crate::explore::Explored;
use crate::report::{command, escape};
use crate::systems::System;
use crate::verdict::Outcome;
use crate::verdicts::{Verdicts, kinds};
use std::fmt::Write;
use std::path::Path;

/// The document. Nothing in it depends on the time of day.
pub fn xml(found: &Verdicts) -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"ccfs crash\">\n",
    );
    for (system, trace, outcome) in &found.systems {
        suite(&mut out, system, trace, outcome, &found.config.check);
    }
    out.push_str("</testsuites>\n");
    out
}

fn suite(out: &mut String, system: &System, trace: &Path, outcome: &Outcome, check: &str) {
    let name = escape(system.name);
    let begin = |out: &mut String, tests: usize, failures: usize, errors: usize, skipped: usize| {
        let _ = writeln!(
            out,
            " <testsuite name=\"{name}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">"
        );
    };
    let case = |kind: &str| format!("  <testcase classname=\"ccfs.crash.{name}\" name=\"{kind}\"");
    match outcome {
        Outcome::Judged(found) => {
            let kinds = kinds(found);
            let failures = kinds.iter().filter(|(_, good, all)| good < all).count();
            begin(out, kinds.len(), failures, 0, 0);
            for (kind, good, all) in kinds {
                out.push_str(&case(kind));
                if good == all {
                    out.push_str("/>\n");
                    continue;
                }
                let _ = writeln!(
                    out,
                    ">\n   <failure type=\"inconsistent\" message=\"{} of {all} images are inconsistent\">{}</failure>\n  </testcase>",
                    all - good,
                    escape(&failures_of(kind, found, trace, check))
                );
            }
        }
        Outcome::Skipped(why) | Outcome::Failed(why) => {
            let skipped = matches!(outcome, Outcome::Skipped(_));
            begin(out, 1, 0, usize::from(!skipped), usize::from(skipped));
            let _ = writeln!(
                out,
                "{}><{} message=\"{}\"/></testcase>",
                case("all"),
                if skipped { "skipped" } else { "error" },
                escape(why)
            );
        }
    }
    out.push_str(" </testsuite>\n");
}

/// The distinct failures that images of a kind have, each with the command that shows it, as far as the least of them is of the kind.
fn failures_of(kind: &str, found: &Explored, trace: &Path, check: &str) -> String {
    let mut out = String::new();
    for d in &found.distinct {
        let has = found.tested.iter().any(|t| {
            let same = t.failure.as_ref().is_some_and(|f| f.is_like(&d.failure));
            same && found.history.kind(&t.spec) == kind
        });
        if has {
            let _ = writeln!(
                out,
                "{}\n  {}",
                d.failure.line,
                command(trace, check, &d.minimal)
            );
        }
    }
    out
}
