//! Checkers that are shipped: what a crash may leave of a database, a repository, a log, a file that is replaced, a queue.
//!
//! A checker runs in the root of an image (`ccfs crash check`), after the file system's recovery. It opens what it checks as the
//! next program would, which recovers it, reads all of it, and sees that it takes changes. What it knows besides comes from the explorer: the
//! marks of the program, and the trees before and after the program ran.
mod files;
mod git;
mod kv;
mod lmdb;
mod sqlite;

use crate::explore::{AFTER_ENV, ALL_MARKS_ENV, BEFORE_ENV, MARKS_ENV};
use crate::programs::LOST;
use crate::{fs, record};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit code of a check that could not judge: the explorer takes it as a check that could not be run.
pub const CANNOT: u8 = 126;

/// What a checker found wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// It is damaged, or older work is lost while newer work is there.
    #[error("error: {0}")]
    Damaged(String),
    /// It is whole and in order, but work is lost that the program had answered for by a mark.
    #[error("error: {0}")]
    Lost(String),
    /// Nothing was judged, and why.
    #[error("cannot check: {0}")]
    Cannot(String),
}

impl Finding {
    /// The exit code of `ccfs crash check`.
    pub fn code(&self) -> u8 {
        match self {
            Finding::Damaged(_) => 1,
            Finding::Lost(_) => LOST as u8,
            Finding::Cannot(_) => CANNOT,
        }
    }
}

/// What a checker says of one image.
pub type Judged = Result<(), Finding>;

fn damaged<T>(why: impl Into<String>) -> Result<T, Finding> {
    Err(Finding::Damaged(why.into()))
}

/// Of what lies at `shown`, something that a mark had answered for.
fn lost<T>(shown: impl Display, what: &str) -> Result<T, Finding> {
    Err(Finding::Lost(format!(
        "{shown}: {what} that was answered for is lost"
    )))
}

/// A key-value database that is not there, as `file` of it tells: no crash may take away what the run always had, and no key is answered for.
fn no_database(shown: impl Display, file: &Path, known: &Known) -> Judged {
    if known.always_had(file) {
        let name = file.file_name().unwrap_or_default().display();
        return damaged(format!("{shown} has no {name}"));
    }
    match known.answered("key").next() {
        Some(key) => lost(shown, &format!("key {key}")),
        None => Ok(()),
    }
}

impl From<ccfs_remote::Missing> for Finding {
    fn from(missing: ccfs_remote::Missing) -> Finding {
        cannot(missing.to_string())
    }
}

fn cannot(why: impl Into<String>) -> Finding {
    Finding::Cannot(why.into())
}

/// What is known besides the image.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Of the image; empty: the working directory.
    pub root: PathBuf,
    /// Marks that had been reached, in their order.
    pub reached: Vec<String>,
    /// All marks of the run.
    pub marks: Vec<String>,
    /// The trees before and after the program ran; `None`: not known.
    pub before: Option<PathBuf>,
    pub after: Option<PathBuf>,
}

impl Known {
    /// From the environment, as the explorer sets it. Without one (a volume after a real crash) nothing is known.
    pub fn from_env() -> Known {
        let lines = |name: &str| {
            let text = std::env::var_os(name).and_then(|path| std::fs::read(path).ok());
            let text = String::from_utf8_lossy(&text.unwrap_or_default()).into_owned();
            text.lines().map(str::to_string).collect::<Vec<_>>()
        };
        let tree = |name: &str| std::env::var_os(name).map(PathBuf::from);
        Known {
            root: PathBuf::new(),
            reached: lines(MARKS_ENV),
            marks: lines(ALL_MARKS_ENV),
            before: tree(BEFORE_ENV),
            after: tree(AFTER_ENV),
        }
    }

    /// What stands behind a word in the marks that had been reached: `key` gives `42` of `key 42`.
    fn answered(&self, word: &str) -> impl Iterator<Item = &str> {
        self.reached.iter().filter_map(move |m| behind(m, word))
    }

    /// Where a path of the image is.
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    /// Whether the run had it at its beginning and at its end, so that every crash must leave it. What is not known has not.
    fn always_had(&self, path: &Path) -> bool {
        let has = |tree: &Option<PathBuf>| {
            tree.as_ref()
                .is_some_and(|t| t.join(path).symlink_metadata().is_ok())
        };
        has(&self.before) && has(&self.after)
    }
}

fn behind<'a>(mark: &'a str, word: &str) -> Option<&'a str> {
    mark.strip_prefix(word)?.strip_prefix(' ')
}

/// A kind of checker: its name, and what it is for.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    /// What stands behind the name.
    pub argument: &'static str,
    pub about: &'static str,
    check: fn(&Path, &Known) -> Judged,
}

/// All of them.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "sqlite",
        argument: "FILE",
        about: "an SQLite database; marks `sql QUERY`: its first value is true from then on",
        check: sqlite::check,
    },
    Kind {
        name: "git",
        argument: "DIR",
        about: "a Git repository; marks `commit HASH`: a branch or tag has it",
        check: git::check,
    },
    Kind {
        name: "leveldb",
        argument: "DIR",
        about: "a LevelDB database; marks `key KEY`: the key is there",
        check: |path, known| kv::check(&kv::LEVELDB, path, known),
    },
    Kind {
        name: "rocksdb",
        argument: "DIR",
        about: "a RocksDB database; marks `key KEY`: the key is there",
        check: |path, known| kv::check(&kv::ROCKSDB, path, known),
    },
    Kind {
        name: "lmdb",
        argument: "DIR",
        about: "an LMDB environment, or its file; marks `key KEY`: a database has it",
        check: lmdb::check,
    },
    Kind {
        name: "log",
        argument: "FILE",
        about: "a log of records, one a line, that only grows; marks `record TEXT`: it has that line",
        check: files::log,
    },
    Kind {
        name: "replaced",
        argument: "FILE",
        about: "a file replaced by rename: one whole version; marks of `ccfs crash mark --file FILE`: the versions between, and no older one from then on",
        check: files::replaced,
    },
    Kind {
        name: "queue",
        argument: "DIR",
        about: "a directory as a queue, first in, first out by name; marks `in NAME`, `out NAME`: the entry is there, or gone for good",
        check: files::queue,
    },
];

/// A checker and what it checks: `NAME:PATH`.
#[derive(Clone, Debug)]
pub struct Checker {
    kind: &'static Kind,
    /// From the root of the file system.
    path: PathBuf,
}

impl std::str::FromStr for Checker {
    type Err = String;
    fn from_str(text: &str) -> Result<Checker, String> {
        let (name, path) = text.split_once(':').unwrap_or((text, ""));
        let Some(kind) = KINDS.iter().find(|k| k.name == name) else {
            let all: Vec<_> = KINDS
                .iter()
                .map(|k| format!("{}:{}", k.name, k.argument))
                .collect();
            return Err(format!(
                "there is no checker `{name}`; one of {}",
                all.join(", ")
            ));
        };
        let path = Path::new(path);
        let inside = |c: std::path::Component| {
            matches!(
                c,
                std::path::Component::Normal(_) | std::path::Component::CurDir
            )
        };
        if path.as_os_str().is_empty() || !path.components().all(inside) {
            let (name, what) = (kind.name, kind.argument);
            return Err(format!(
                "{name}:{what} wants a path from the root of the file system, without `..`"
            ));
        }
        Ok(Checker {
            kind,
            path: path.to_path_buf(),
        })
    }
}

impl Checker {
    /// Checks one image.
    pub fn check(&self, known: &Known) -> Judged {
        let there = known.at(&self.path).symlink_metadata().is_ok();
        if !there && known.always_had(&self.path) {
            return damaged(format!("{} is missing", self.path.display()));
        }
        (self.kind.check)(&self.path, known)
    }

    /// The shell command that does so: a check as `explore` and `model` take it.
    pub fn command(&self) -> String {
        let spec = format!("{}:{}", self.kind.name, self.path.display());
        format!("\"$CCFS\" crash check {}", crate::report::quote(&spec))
    }
}

/// Runs a tool, with this input, and gives what it printed.
fn tool(name: &str, package: &str, args: &[&std::ffi::OsStr], input: &str) -> Result<Ran, Finding> {
    if let Some(why) = fs::missing_tool(name, package) {
        return Err(cannot(why));
    }
    let fail = |e: std::io::Error| cannot(format!("{name}: {e}"));
    let scratch = record::scratch().map_err(|e| cannot(e.to_string()))?;
    let from = scratch.path().join("input");
    std::fs::write(&from, input).map_err(fail)?;
    let out = Command::new(fs::tool(name).get_program())
        .args(args)
        .env("LC_ALL", "C")
        .env("HOME", scratch.path())
        .stdin(Stdio::from(std::fs::File::open(&from).map_err(fail)?))
        .output()
        .map_err(fail)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    Ok(Ran {
        ok: out.status.success(),
        out: text(&out.stdout),
        err: text(&out.stderr),
    })
}

struct Ran {
    ok: bool,
    out: String,
    err: String,
}

impl Ran {
    /// The first line that it complained with.
    fn complaint(&self) -> &str {
        let mut lines = self.err.lines().chain(self.out.lines());
        lines.find(|l| !l.trim().is_empty()).unwrap_or("it failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checker_is_named_with_a_path_inside() {
        for good in ["sqlite:a/b.db", "git:.", "queue:spool", "log:./x:y"] {
            let checker: Checker = good.parse().unwrap();
            let command = checker.command();
            assert!(command.starts_with("\"$CCFS\" crash check "), "{command}");
        }
        for bad in ["sqlite", "sqlite:", "git:/etc", "log:../x", "nosuch:x", ""] {
            assert!(bad.parse::<Checker>().is_err(), "{bad}");
        }
        let all = "nosuch:x".parse::<Checker>().unwrap_err();
        for kind in KINDS {
            assert!(all.contains(kind.name), "{all}");
        }
    }

    #[test]
    fn what_the_run_always_had_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let tree = |name: &str, file: Option<&str>| {
            let tree = dir.path().join(name);
            std::fs::create_dir(&tree).unwrap();
            if let Some(file) = file {
                std::fs::write(tree.join(file), "x").unwrap();
            }
            Some(tree)
        };
        let (full, empty) = (tree("full", Some("ccfs-no-such")), tree("empty", None));
        let judge = |before: &Option<PathBuf>, after: &Option<PathBuf>| {
            let known = Known {
                before: before.clone(),
                after: after.clone(),
                ..Known::default()
            };
            "replaced:ccfs-no-such"
                .parse::<Checker>()
                .unwrap()
                .check(&known)
        };
        assert!(matches!(judge(&full, &full), Err(Finding::Damaged(_))));
        // Made, or removed, while it ran: a crash may come before and after.
        assert_eq!(judge(&empty, &full), Ok(()));
        assert_eq!(judge(&full, &empty), Ok(()));
    }
}
