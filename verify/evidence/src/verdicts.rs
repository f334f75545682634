//! The verdicts of all systems together: for people, for programs, and what the report is made of.
use crate::Fail;
use crate::explore::Explored;
use crate::page::{KINDS, Part};
use crate::report::{command, failure_json};
use crate::systems::System;
use crate::verdict::{Config, Outcome, remove};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The outcomes of all systems.
pub struct Verdicts {
    pub config: Config,
    /// For the report and the traces.
    directory: PathBuf,
    pub systems: Vec<(&'static System, PathBuf, Outcome)>,
}

impl Verdicts {
    pub fn new(config: Config, directory: &Path) -> Verdicts {
        Verdicts {
            config,
            directory: directory.to_path_buf(),
            systems: Vec::new(),
        }
    }

    pub fn trace(&self, system: &System) -> PathBuf {
        self.directory.join(format!("{}.trace", system.name))
    }

    pub fn report(&self) -> PathBuf {
        self.directory.join("report.html")
    }

    pub fn add(&mut self, system: &'static System, outcome: Outcome) {
        let trace = self.trace(system);
        self.systems.push((system, trace, outcome));
    }

    /// Those that were judged.
    pub fn judged(&self) -> impl Iterator<Item = (&'static System, &Path, &Explored)> {
        self.systems
            .iter()
            .filter_map(|(system, trace, outcome)| match outcome {
                Outcome::Judged(found) => Some((*system, trace.as_path(), &**found)),
                _ => None,
            })
    }

    /// Whether a check failed somewhere.
    pub fn inconsistent(&self) -> bool {
        self.judged()
            .any(|(_, _, found)| !found.distinct.is_empty())
    }

    /// Whether one could not be judged that should have been, or none was.
    pub fn failed(&self) -> bool {
        let failed = |o: &Outcome| matches!(o, Outcome::Failed(_));
        self.judged().next().is_none() || self.systems.iter().any(|(_, _, o)| failed(o))
    }

    /// For the report. The caller has made [`crate::sys::private_mounts`].
    pub fn parts(&self) -> Result<Vec<Part<'_>>, Fail> {
        let mut parts = Vec::new();
        for (system, trace, found) in self.judged() {
            let part = Part::new(found, trace, &self.config.check)?;
            parts.push(part.called(system.name));
        }
        Ok(parts)
    }

    /// Removes all traces: there will be no report.
    pub fn remove_traces(&self) {
        self.systems.iter().for_each(|(_, trace, _)| remove(trace));
    }

    /// Removes the traces with which nothing can be seen any more, after the report is made.
    pub fn tidy(&self) {
        for (_, trace, outcome) in &self.systems {
            let shows = matches!(outcome, Outcome::Judged(t) if !t.distinct.is_empty());
            if !shows {
                remove(trace);
            }
        }
    }

    /// For people, line by line.
    pub fn lines(&self) -> Vec<String> {
        let width = self.systems.iter().map(|(s, ..)| s.name.len()).max();
        let width = width.unwrap_or(0);
        let mut out: Vec<String> = self
            .systems
            .iter()
            .map(|(system, _, outcome)| format!("{:<width$}  {}", system.name, outcome.line()))
            .collect();
        for (system, trace, found) in self.judged() {
            let hint = found.hint();
            out.extend(hint.map(|hint| format!("{}: {}", system.name, hint)));
            for d in &found.distinct {
                out.push(String::new());
                out.push(format!(
                    "{}: {} of {} images: {}",
                    system.name,
                    d.images,
                    found.tested.len(),
                    d.failure.line
                ));
                out.push(format!(
                    "  {}",
                    command(trace, &self.config.check, &d.minimal)
                ));
            }
        }
        out
    }

    /// For programs; the schema is in docs/json.md.
    pub fn json(&self) -> Value {
        let words = self.config.command.iter();
        let words: Vec<_> = words.map(|w| w.to_string_lossy()).collect();
        let systems = self.systems.iter();
        let systems: Vec<_> = systems
            .map(|(system, trace, outcome)| self.system_json(system, trace, outcome))
            .collect();
        json!({
            "schema": 1,
            "command": words,
            "check": self.config.check,
            "report": self.report().display().to_string(),
            "systems": systems,
        })
    }

    fn system_json(&self, system: &System, trace: &Path, outcome: &Outcome) -> Value {
        let mut value = json!({
            "name": system.name,
            "verdict": outcome.verdict(),
            "reason": outcome.reason(),
            "hint": null,
            "trace": null,
            "recorded_s": null,
            "left": null,
            "images": null,
            "failures": [],
        });
        let Outcome::Judged(found) = outcome else {
            return value;
        };
        let failure = |d| failure_json(d, trace, &self.config.check);
        let failures: Vec<_> = found.distinct.iter().map(failure).collect();
        value["hint"] = json!(found.hint());
        value["recorded_s"] = json!(found.seconds());
        value["left"] = json!(found.left);
        value["images"] = kinds(found)
            .into_iter()
            .map(|(kind, consistent, total)| json!({"kind": kind, "consistent": consistent, "total": total}))
            .collect();
        if !failures.is_empty() {
            value["trace"] = json!(trace.display().to_string());
        }
        value["failures"] = Value::Array(failures);
        value
    }
}

/// Kinds of crash states that were tried: consistent images, and all.
pub fn kinds(found: &Explored) -> Vec<(&'static str, usize, usize)> {
    let counted = KINDS.iter().map(|(kind, _)| {
        let (good, all) = found.count_of(kind);
        (*kind, good, all)
    });
    counted.filter(|(_, _, all)| *all > 0).collect()
}

impl Outcome {
    /// As JSON and JUnit call it.
    pub fn verdict(&self) -> &'static str {
        match self {
            Outcome::Judged(t) if t.distinct.is_empty() => "consistent",
            Outcome::Judged(_) => "inconsistent",
            Outcome::Skipped(_) => "skipped",
            Outcome::Failed(_) => "failed",
        }
    }

    /// Why it was not judged.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Outcome::Judged(_) => None,
            Outcome::Skipped(why) | Outcome::Failed(why) => Some(why),
        }
    }

    fn line(&self) -> String {
        let Outcome::Judged(found) = self else {
            let why = self.reason().unwrap_or_default();
            return format!("{}: {}", self.verdict(), why);
        };
        let (good, all) = found.count("");
        let left = match found.left {
            0 => String::new(),
            left => format!("; the time was over, {left} images were not tried"),
        };
        match all - good {
            0 => format!("{}: all {all} images{left}", self.verdict()),
            bad => format!("{}: {bad} of {all} images{left}", self.verdict()),
        }
    }
}
