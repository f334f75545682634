//! What was measured so far, one JSON object a line in a file, so that an interrupted run goes on where it was.
use crate::experiment::Measured;
use crate::machine::Machine;
use crate::{Because, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

const SCHEMA: u32 = 1;

/// What has to be equal for figures to belong together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub rounds: u32,
    pub seconds: f64,
    pub scale: f64,
}

/// One measurement's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// With the disk, if it is a modelled one: `varmail@hdd`.
    pub workload: String,
    /// With the variant: `ccfs+streams`.
    pub system: String,
    pub round: u32,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub key: Key,
    /// What is counted.
    pub op: String,
    pub measured: Option<Measured>,
    pub failure: Option<String>,
}

impl Record {
    pub fn new(key: Key, op: String, outcome: Result<Measured>) -> Record {
        let (measured, failure) = match outcome {
            Ok(measured) => (Some(measured), None),
            Err(e) => (None, Some(e)),
        };
        Record {
            key,
            op,
            measured,
            failure,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    schema: u32,
    settings: Settings,
    machine: Machine,
}

/// The records of a run, kept in a file if there is one.
#[derive(Default)]
pub struct State {
    path: Option<PathBuf>,
    header: Option<Header>,
    file: Option<File>,
    /// The file has these records and nothing else.
    clean: bool,
    pub records: Vec<Record>,
}

impl State {
    /// As `open`, or `in_memory` without a file.
    pub fn at(path: Option<&Path>) -> Result<State> {
        path.map_or_else(|| Ok(State::in_memory()), State::open)
    }

    /// Nothing is kept.
    pub fn in_memory() -> State {
        State::default()
    }

    /// Reads what an earlier run left; a line that it could not finish is measured again, and so is what failed.
    pub fn open(path: &Path) -> Result<State> {
        let mut state = State {
            path: Some(path.to_path_buf()),
            ..State::default()
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(state),
            Err(e) => return Err(e).because(path.display()),
        };
        let mut lines = text.lines();
        let Some(first) = lines.next() else {
            return Ok(state);
        };
        let header: Header = serde_json::from_str(first)
            .because(format_args!("{} is no state of ccfs bench", path.display()))?;
        if header.schema != SCHEMA {
            return Err(format!(
                "{} is of another version of ccfs bench; remove it to measure anew",
                path.display()
            ));
        }
        state.header = Some(header);
        let count = lines.clone().count();
        state.records = lines
            .filter_map(|l| serde_json::from_str::<Record>(l).ok())
            .filter(|r| r.failure.is_none())
            .collect();
        state.clean = count == state.records.len() && text.ends_with('\n');
        Ok(state)
    }

    /// Begins with these settings, or goes on with them.
    ///
    /// Errors: the state was made with others; the file cannot be written.
    pub fn begin(&mut self, settings: &Settings, machine: Machine) -> Result<()> {
        if let Some(header) = self.header.as_ref().filter(|h| h.settings != *settings) {
            let path = self.path.clone().unwrap_or_default();
            return Err(format!(
                "{} was made with other settings ({} rounds, {} s, scale {}): remove it to measure anew, or use the same ones",
                path.display(),
                header.settings.rounds,
                header.settings.seconds,
                header.settings.scale
            ));
        }
        let header = self.header.get_or_insert(Header {
            schema: SCHEMA,
            settings: settings.clone(),
            machine,
        });
        let Some(path) = &self.path else {
            return Ok(());
        };
        if !self.clean {
            // Written anew, whole lines only, and put in the place of the old one.
            let mut text = json_line(header)?;
            for record in &self.records {
                text += &json_line(record)?;
            }
            let fresh = path.with_extension("new");
            std::fs::write(&fresh, text).because(fresh.display())?;
            std::fs::rename(&fresh, path).because(path.display())?;
        }
        let file = File::options().append(true).open(path);
        self.file = Some(file.because(path.display())?);
        Ok(())
    }

    pub fn machine(&self) -> Machine {
        let machine = self.header.as_ref().map(|h| h.machine.clone());
        machine.unwrap_or_default()
    }

    pub fn settings(&self) -> Settings {
        let settings = self.header.as_ref().map(|h| h.settings.clone());
        settings.unwrap_or_default()
    }

    pub fn has(&self, key: &Key) -> bool {
        self.records.iter().any(|r| r.key == *key)
    }

    /// What failed in one round is not tried in the next.
    pub fn failed(&self, key: &Key) -> bool {
        self.records.iter().any(|r| {
            r.failure.is_some() && (&r.key.workload, &r.key.system) == (&key.workload, &key.system)
        })
    }

    pub fn add(&mut self, record: Record) -> Result<()> {
        if let Some(file) = &mut self.file {
            let line = json_line(&record)?;
            file.write_all(line.as_bytes()).because("the state file")?;
        }
        self.records.push(record);
        Ok(())
    }
}

fn json_line(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(value).because("JSON")? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(system: &str, round: u32, outcome: Result<Measured>) -> Record {
        let key = Key {
            workload: "w".into(),
            system: system.into(),
            round,
        };
        Record::new(key, "a thing".into(), outcome)
    }

    #[test]
    fn goes_on_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let settings = Settings {
            rounds: 2,
            seconds: 0.5,
            scale: 1.0,
        };
        let mut state = State::open(&path).unwrap();
        state.begin(&settings, Machine::default()).unwrap();
        let figures = Measured::new(2.5).with("p50_us", 3.0);
        let made = record("ext4", 0, Ok(figures));
        state.add(made.clone()).unwrap();
        state
            .add(record("ccfs", 0, Err("no space".into())))
            .unwrap();
        assert!(state.failed(&record("ccfs", 1, Ok(Measured::default())).key));
        drop(state);
        // Killed in the middle of a line.
        let mut text = std::fs::read_to_string(&path).unwrap();
        text += "{\"workload\":\"w\",\"system\":\"ex";
        std::fs::write(&path, text).unwrap();

        let mut state = State::open(&path).unwrap();
        assert_eq!(state.records, std::slice::from_ref(&made));
        assert!(state.has(&made.key));
        assert!(!state.failed(&record("ccfs", 1, Ok(Measured::default())).key));
        state.begin(&settings, Machine::default()).unwrap();
        state
            .add(record("ccfs", 0, Ok(Measured::new(1.0))))
            .unwrap();
        assert_eq!(State::open(&path).unwrap().records.len(), 2);

        let other = Settings {
            rounds: 3,
            ..settings
        };
        let refused = State::open(&path)
            .unwrap()
            .begin(&other, Machine::default());
        assert!(refused.unwrap_err().contains("other settings"));
        std::fs::write(&path, "a letter to keep\n").unwrap();
        assert!(State::open(&path).is_err());
    }
}
