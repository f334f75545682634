//! The parameters of a modelled device, as a text file.

use std::path::{Path, PathBuf};

/// Why a parameter file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ParamError {
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("line {line}: {text}")]
    Line { line: usize, text: String },
    #[error("`{0}` is missing")]
    Missing(&'static str),
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// How a device behaves in time. A file has one line `name = number` for each, `#` begins a comment.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Params {
            $($(#[$doc])* pub $name: u32,)*
        }

        impl Params {
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn from_values(mut value: impl FnMut(&'static str) -> Result<u32, ParamError>) -> Result<Self, ParamError> {
                Ok(Params { $($name: value(stringify!($name))?,)* })
            }
        }
    };
}

params! {
    /// Commands that the device works on at once; at least 1.
    queue_depth,
    /// Time of a read before its transfer, in microseconds.
    read_command_us,
    /// Time of a write into the cache before its transfer, in microseconds.
    write_command_us,
    /// Transfer time of 1 KiB read, in nanoseconds. Transfers do not overlap.
    read_kib_ns,
    /// Transfer time of 1 KiB written into the cache, in nanoseconds.
    write_kib_ns,
    /// Time of the shortest seek, in microseconds; none where the head is. A device with `seek_max_us` 0 has no head.
    seek_min_us,
    /// Time of a seek over the whole device, in microseconds; between them it grows with the root of the distance.
    seek_max_us,
    /// Fixed time of a flush, in microseconds.
    flush_us,
    /// Time of a flush for each contiguous run of dirty data, in microseconds.
    flush_run_us,
    /// Time of a flush for each dirty KiB, in nanoseconds.
    flush_kib_ns,
    /// Dirty data that the cache holds, in KiB. Beyond it writes pay what a flush would.
    cache_kib,
    /// After a flush no command begins for this time, in microseconds.
    barrier_us,
}

/// Longest queue that a file may ask for.
const QUEUE_MAX: u32 = 65536;

impl Params {
    /// The presets by name: `hdd`, `ssd`, `ufs`, `ssd-plain`, `ssd-capacitor`.
    pub const PRESETS: [(&str, &str); 5] = [
        ("hdd", include_str!("../../params/hdd.txt")),
        ("ssd", include_str!("../../params/ssd.txt")),
        ("ufs", include_str!("../../params/ufs.txt")),
        ("ssd-plain", include_str!("../../params/ssd-plain.txt")),
        (
            "ssd-capacitor",
            include_str!("../../params/ssd-capacitor.txt"),
        ),
    ];

    /// A preset, or `None` if there is none of that name.
    pub fn preset(name: &str) -> Option<Params> {
        let (_, text) = Self::PRESETS.iter().find(|(preset, _)| *preset == name)?;
        Self::parse(text).ok()
    }

    /// Reads a parameter file.
    pub fn load(path: impl AsRef<Path>) -> Result<Params, ParamError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| ParamError::Io {
            path: path.into(),
            source,
        })?;
        Self::parse(&text)
    }

    /// Every parameter has to be there once; what is unknown is refused.
    pub fn parse(text: &str) -> Result<Params, ParamError> {
        let mut found: Vec<(&str, u32)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |text: String| ParamError::Line {
                line: index + 1,
                text,
            };
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let (name, value) = content
                .split_once('=')
                .ok_or_else(|| fail("not `name = number`".into()))?;
            let (name, value) = (name.trim(), value.trim());
            if !Self::NAMES.contains(&name) {
                return Err(fail(format!(
                    "`{name}` is not known; there are {}",
                    Self::NAMES.join(", ")
                )));
            }
            if found.iter().any(|(other, _)| *other == name) {
                return Err(fail(format!("`{name}` is there twice")));
            }
            let value = value
                .parse()
                .map_err(|_| fail(format!("`{value}` is not a number from 0 to {}", u32::MAX)))?;
            if name == "queue_depth" && !(1..=QUEUE_MAX).contains(&value) {
                return Err(fail(format!("queue_depth has to be from 1 to {QUEUE_MAX}")));
            }
            found.push((name, value));
        }
        Self::from_values(|name| {
            let value = found.iter().find(|(other, _)| *other == name);
            value
                .map(|(_, value)| *value)
                .ok_or(ParamError::Missing(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_complete_and_differ() {
        let all: Vec<_> = Params::PRESETS
            .iter()
            .map(|(name, _)| Params::preset(name).unwrap())
            .collect();
        assert!(all[0] != all[1] && all[1] != all[2]);
        assert_eq!(Params::preset("floppy"), None);
    }

    #[test]
    fn bad_files_are_refused() {
        let good = Params::PRESETS[0].1;
        let error = |text: String| Params::parse(&text).unwrap_err().to_string();
        assert!(error(good.replace("barrier_us = 0", "")).contains("`barrier_us` is missing"));
        assert!(error(format!("{good}\nspeed = 1")).contains("`speed` is not known"));
        assert!(error(format!("{good}\nflush_us = 1")).contains("twice"));
        assert!(error(format!("{good}\nflush_us")).contains("name = number"));
        assert!(error(good.replace("queue_depth = 1", "queue_depth = 0")).contains("from 1"));
        assert!(error(good.replace("queue_depth = 1", "queue_depth = -1")).starts_with("line 2:"));
        assert!(
            Params::load("/nonexistent")
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
    }
}
