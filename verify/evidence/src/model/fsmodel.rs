//! What a file system promises of the order and the atomicity of calls, as a text file.
//!
//! ```text
//! # ext4, data=ordered
//! name = ext4-ordered
//! unit = 4096              # bytes of a write that are atomic; 0: whole writes
//! order = metadata         # all: everything in order; metadata: names and sizes; none
//! appends = ordered        # ordered: what is appended to one file; any
//! replace = flushed        # flushed: a file's data before its rename over another one; plain
//! fsync = file+metadata    # what it makes durable: file (with its name), file+metadata (and all earlier of these), all
//! ```
use crate::Fail;
use std::path::Path;

/// Which changes keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    All,
    Metadata,
    None,
}

/// What fsync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    File,
    FileAndMetadata,
    All,
}

/// A model.
#[derive(Clone, Debug)]
pub struct Model {
    pub name: String,
    /// Bytes; 0: whole writes.
    pub unit: usize,
    pub order: Order,
    pub appends_ordered: bool,
    pub replace_flushed: bool,
    pub fsync: Fsync,
}

const BUILT_IN: [(&str, &str); 5] = [
    (
        "ext4-ordered",
        include_str!("../../models/ext4-ordered.txt"),
    ),
    (
        "ext4-journal",
        include_str!("../../models/ext4-journal.txt"),
    ),
    ("btrfs", include_str!("../../models/btrfs.txt")),
    ("xfs", include_str!("../../models/xfs.txt")),
    ("ccfs", include_str!("../../models/ccfs.txt")),
];

impl Model {
    /// A built-in model, or a file.
    pub fn load(name: &str) -> Result<Model, Fail> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) {
            return Model::parse(text);
        }
        let text = std::fs::read_to_string(Path::new(name)).map_err(|e| {
            let names = BUILT_IN.map(|(n, _)| n).join(", ");
            Fail::new(format!(
                "model {name}: {e}; there are {names}, or give a file"
            ))
        })?;
        Model::parse(&text)
    }

    /// Every line once; what is unknown is refused.
    pub fn parse(text: &str) -> Result<Model, Fail> {
        let value = |wanted: &str| -> Result<String, Fail> {
            let lines = text
                .lines()
                .map(|l| l.split('#').next().unwrap_or("").trim());
            let mut found = lines
                .filter_map(|l| l.split_once('='))
                .filter(|(name, _)| name.trim() == wanted);
            match (found.next(), found.next()) {
                (Some((_, value)), None) => Ok(value.trim().to_string()),
                _ => Err(Fail::new(format!(
                    "a model needs one line `{wanted} = ...`"
                ))),
            }
        };
        const NAMES: [&str; 6] = ["name", "unit", "order", "appends", "replace", "fsync"];
        for line in text
            .lines()
            .map(|l| l.split('#').next().unwrap_or("").trim())
        {
            let name = line.split('=').next().unwrap_or("").trim();
            if !line.is_empty() && !NAMES.contains(&name) {
                return Err(Fail::new(format!("`{line}` is no line of a model")));
            }
        }
        let bad = |name: &str, value: &str| Fail::new(format!("`{name} = {value}` is not known"));
        let one_of = |name: &str, yes: &str, no: &str| -> Result<bool, Fail> {
            match value(name)? {
                v if v == yes => Ok(true),
                v if v == no => Ok(false),
                v => Err(bad(name, &v)),
            }
        };
        let unit = value("unit")?;
        Ok(Model {
            name: value("name")?,
            unit: unit.parse().map_err(|_| bad("unit", &unit))?,
            order: match value("order")?.as_str() {
                "all" => Order::All,
                "metadata" => Order::Metadata,
                "none" => Order::None,
                v => return Err(bad("order", v)),
            },
            appends_ordered: one_of("appends", "ordered", "any")?,
            replace_flushed: one_of("replace", "flushed", "plain")?,
            fsync: match value("fsync")?.as_str() {
                "file" => Fsync::File,
                "file+metadata" => Fsync::FileAndMetadata,
                "all" => Fsync::All,
                v => return Err(bad("fsync", v)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_read_and_checked() {
        for (name, text) in BUILT_IN {
            assert_eq!(Model::parse(text).unwrap().name, name);
        }
        let text = BUILT_IN[0].1;
        assert!(Model::parse(&text.replace("order = metadata", "order = some")).is_err());
        assert!(Model::parse(&text.replace("unit = 4096", "")).is_err());
        assert!(Model::parse(&format!("{text}\nspeed = 3")).is_err());
        assert!(Model::load("/nonexistent").is_err());
    }
}
