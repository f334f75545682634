//! The rules file: which programs get which streams without asking for one.
//!
//! One rule a line: conditions, `->`, what happens. `#` begins a comment. The first rule whose conditions all hold counts.
//!
//! ```text
//! exe=/usr/bin/git                             -> own, ignore-fsync
//! cgroup=/system.slice/postgresql.service      -> shared
//! uid=1000 exe=/usr/bin/rsync                  -> default
//! ```
use ccfs_client::abi::STREAM_IGNORE_FSYNC;
use std::path::{Component, Path, PathBuf};

/// Rules that one file may have.
const RULES_MAX: usize = 1000;
const SYNTAX: &str =
    "a rule is `exe=PATH|cgroup=PATH|uid=NUMBER ... -> own|shared|default[, ignore-fsync]`";

/// What a rule does with a program that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assign {
    /// A new stream for the program and everything that it starts.
    Own,
    /// One stream for all programs that the rule matches, per user.
    Shared,
    /// The default stream.
    Default,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conditions {
    exe: Option<PathBuf>,
    cgroup: Option<String>,
    uid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    conditions: Conditions,
    pub assign: Assign,
    /// Of the stream: 0 or IGNORE_FSYNC.
    pub flags: u32,
}

/// What can be asked about a process; each answer may cost a look at /proc.
pub trait Facts {
    fn exe(&self) -> Option<PathBuf>;
    fn cgroup(&self) -> Option<String>;
    fn uid(&self) -> Option<u32>;
}

/// The rules of one mount, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Errors: a text that names the line.
    pub fn parse(text: &str) -> Result<Rules, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let rule = parse_rule(line).map_err(|why| format!("line {}: {why}", number + 1))?;
            rules.push(rule);
            if rules.len() > RULES_MAX {
                return Err(format!("line {}: more than {RULES_MAX} rules", number + 1));
            }
        }
        Ok(Rules(rules))
    }

    /// Number of rules, at most `RULES_MAX`.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There is no rule: every caller is the policy's.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first rule that holds, and its number.
    pub fn find(&self, facts: &impl Facts) -> Option<(usize, &Rule)> {
        let (mut exe, mut cgroup, mut uid) = (None, None, None);
        self.0.iter().enumerate().find(|(_, rule)| {
            let c = &rule.conditions;
            // What costs nothing more comes first; each fact is asked for once.
            c.uid
                .is_none_or(|want| *uid.get_or_insert_with(|| facts.uid()) == Some(want))
                && c.exe.as_ref().is_none_or(|want| {
                    exe.get_or_insert_with(|| facts.exe()).as_ref() == Some(want)
                })
                && c.cgroup.as_ref().is_none_or(|want| {
                    let group = cgroup.get_or_insert_with(|| facts.cgroup());
                    group.as_ref().is_some_and(|group| is_within(group, want))
                })
        })
    }
}

/// The group itself or one below it.
fn is_within(group: &str, top: &str) -> bool {
    group
        .strip_prefix(top)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || top == "/")
}

fn parse_rule(line: &str) -> Result<Rule, String> {
    let (conditions, action) = line.split_once("->").ok_or(SYNTAX)?;
    let conditions = parse_conditions(conditions)?;
    let mut words = action.split(',').map(str::trim);
    let assign = match words.next() {
        Some("own") => Assign::Own,
        Some("shared") => Assign::Shared,
        Some("default") => Assign::Default,
        other => {
            return Err(format!(
                "\"{}\" is none of own, shared, default; {SYNTAX}",
                other.unwrap_or("")
            ));
        }
    };
    let mut flags = 0;
    for word in words {
        match word {
            "ignore-fsync" if flags == 0 => flags = STREAM_IGNORE_FSYNC,
            "ignore-fsync" => return Err("ignore-fsync stands there twice".into()),
            _ => return Err(format!("\"{word}\" is unknown; {SYNTAX}")),
        }
    }
    if assign == Assign::Default && flags != 0 {
        return Err("the default stream is everybody's: it cannot ignore fsync".into());
    }
    Ok(Rule {
        conditions,
        assign,
        flags,
    })
}

fn parse_conditions(text: &str) -> Result<Conditions, String> {
    let mut c = Conditions::default();
    for word in text.split_whitespace() {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("\"{word}\" is no condition; {SYNTAX}"))?;
        let twice = match name {
            "exe" => c.exe.replace(absolute(value)?.into()).is_some(),
            "cgroup" => c.cgroup.replace(absolute(value)?.into()).is_some(),
            "uid" => {
                let uid = value.parse().map_err(|_| {
                    format!("uid={value} is no number (`id -u {value}` says which it is)")
                })?;
                c.uid.replace(uid).is_some()
            }
            _ => return Err(format!("the condition {name} is unknown; {SYNTAX}")),
        };
        if twice {
            return Err(format!("{name} stands there twice"));
        }
    }
    if c == Conditions::default() {
        return Err(format!("a rule needs a condition; {SYNTAX}"));
    }
    Ok(c)
}

/// As /proc shows paths: absolute, nothing to resolve.
fn absolute(path: &str) -> Result<&str, String> {
    let plain = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.starts_with('/') && plain && (path == "/" || !path.ends_with('/')) {
        Ok(path)
    } else {
        Err(format!(
            "{path} is not an absolute path without `.`, `..` and a slash at its end"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Process(&'static str, &'static str, u32);

    impl Facts for Process {
        fn exe(&self) -> Option<PathBuf> {
            Some(self.0.into())
        }
        fn cgroup(&self) -> Option<String> {
            Some(self.1.into())
        }
        fn uid(&self) -> Option<u32> {
            Some(self.2)
        }
    }

    #[test]
    fn the_first_rule_that_holds_counts() {
        let text = "# exceptions\n\n\
            exe=/usr/bin/git uid=7 -> default # not this user\n\
            exe=/usr/bin/git->own,ignore-fsync\n\
            cgroup=/a/b -> shared\n";
        let rules = Rules::parse(text).unwrap();
        assert_eq!(rules.len(), 3);
        let found = |p: Process| rules.find(&p).map(|(n, rule)| (n, rule.assign, rule.flags));
        assert_eq!(
            found(Process("/usr/bin/git", "/", 7)),
            Some((0, Assign::Default, 0))
        );
        assert_eq!(
            found(Process("/usr/bin/git", "/", 8)),
            Some((1, Assign::Own, STREAM_IGNORE_FSYNC))
        );
        assert_eq!(
            found(Process("/x", "/a/b", 8)),
            Some((2, Assign::Shared, 0))
        );
        assert_eq!(
            found(Process("/x", "/a/b/c", 8)),
            Some((2, Assign::Shared, 0))
        );
        assert_eq!(found(Process("/x", "/a/bc", 8)), None);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            ("\nexe=/a", "line 2: a rule is"),
            ("-> own", "line 1: a rule needs a condition"),
            ("exe=/a ->", "line 1: \"\" is none of own"),
            ("exe=/a -> mine", "line 1: \"mine\" is none of"),
            ("exe=/a -> own, fast", "line 1: \"fast\" is unknown"),
            ("exe=/a -> own,", "line 1: \"\" is unknown"),
            (
                "exe=/a -> own, ignore-fsync, ignore-fsync",
                "line 1: ignore-fsync stands there twice",
            ),
            (
                "exe=/a -> default, ignore-fsync",
                "line 1: the default stream",
            ),
            ("exe=a -> own", "line 1: a is not an absolute path"),
            ("exe=/a/../b -> own", "line 1: /a/../b is not"),
            ("cgroup=/a/ -> own", "line 1: /a/ is not"),
            ("uid=root -> own", "line 1: uid=root is no number"),
            ("uid=-1 -> own", "line 1: uid=-1 is no number"),
            ("uid=1 uid=2 -> own", "line 1: uid stands there twice"),
            ("pid=1 -> own", "line 1: the condition pid is unknown"),
            ("git -> own", "line 1: \"git\" is no condition"),
        ] {
            let error = Rules::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let many = "uid=1 -> own\n".repeat(RULES_MAX + 1);
        assert!(Rules::parse(&many).unwrap_err().contains("more than"));
        assert!(Rules::parse("").unwrap().is_empty());
    }
}
