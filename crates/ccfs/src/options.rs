//! The options of `mount -o`.
use crate::codes::mount_code;
use crate::ext4_options::{self, Verdict};
use crate::named::{self, For};
use crate::{meant, shares};
use ccfs_command::{Failure, Outcome, size};
use ccfs_engine::Options;
use ccfs_fuse::{CallerConfig, Forks, Grouping, Rules, Transport};
use ccfs_remote::Settings;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What `-o` asks for.
#[derive(Debug, Clone)]
pub struct MountOptions {
    pub engine: Options,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    pub nosymfollow: bool,
    /// What is not recovered is not mounted, and nothing is written.
    pub noload: bool,
    /// Nothing is said of options that change nothing.
    pub silent: bool,
    /// What is said of them.
    pub notes: Vec<String>,
    /// The directory `.ccfs` with status files is there.
    pub status_dir: bool,
    /// Files can be open O_ATOMIC.
    pub atomic_files: bool,
    /// Programs may make calls through shared memory; `None`: only those of a mount's one user.
    pub direct: Option<bool>,
    /// Other users may use what an ordinary user mounts.
    pub allow_other: bool,
    /// Change a volume that is mounted.
    pub remount: bool,
    /// Those of [`DAEMONS`] that were named, each written in one way.
    pub named: BTreeMap<&'static str, String>,
    /// Messages of the daemon go here instead of the system log.
    pub log: Option<PathBuf>,
    /// Who is in which stream without having asked for one.
    pub callers: CallerConfig,
    /// Which way requests come from the kernel.
    pub transport: Transport,
    /// How a store on another machine is used.
    pub store: Settings,
    /// Where its rules are from.
    pub rules: Option<PathBuf>,
}

/// Options that only the daemon knows.
const DAEMONS: [&str; 17] = [
    "commit",
    "dirty",
    "cache",
    "log",
    "status",
    "streams",
    "rules",
    "identity",
    "transport",
    "group_timeout",
    "timeout",
    "atomic_files",
    "direct",
    "sync",
    "dirsync",
    "grpid",
    "minixdf",
];

/// The name under which such an option is kept: others unset it.
fn kept_as(name: &str) -> &str {
    match name {
        "async" => "sync",
        "bsdgroups" | "nogrpid" | "sysvgroups" => "grpid",
        "bsddf" => "minixdf",
        name => name,
    }
}

fn on_or_off(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.into()
}

impl MountOptions {
    /// An option of the daemon's: seconds, bytes, words, or a file's name (empty: none).
    fn value(&self, name: &str) -> String {
        let file = |path: &Option<PathBuf>| {
            let shown = path.as_ref().map(|p| p.display().to_string());
            shown.unwrap_or_default()
        };
        match name {
            "commit" => self.engine.commit_interval.as_secs().to_string(),
            "dirty" => self.engine.dirty_limit.to_string(),
            "cache" => self.engine.cache_bytes.to_string(),
            "log" => file(&self.log),
            "status" => on_or_off(self.status_dir),
            "streams" => self.callers.grouping.name().into(),
            "rules" => file(&self.rules),
            "atomic_files" => on_or_off(self.atomic_files),
            "direct" => on_or_off(self.direct()),
            "sync" => on_or_off(self.engine.sync),
            "dirsync" => on_or_off(self.engine.dirsync),
            "grpid" => on_or_off(self.engine.group_of_directory),
            "minixdf" => on_or_off(self.engine.df_with_overhead),
            "identity" => self.callers.forks.name().into(),
            "transport" => self.transport.name().into(),
            "timeout" => self.store.patience.as_secs().to_string(),
            _ => {
                let limit = self.engine.group_timeout.unwrap_or_default();
                limit.as_secs().to_string()
            }
        }
    }

    /// Others than the mount's owner may use it: of a volume of root's everybody what its rights allow, as of any other file system.
    pub fn for_others(&self) -> bool {
        self.allow_other || !ccfs_fuse::usermount::is_needed()
    }

    fn direct(&self) -> bool {
        self.direct.unwrap_or(!self.for_others())
    }

    /// All options of the daemon's.
    pub fn of_daemon(&self) -> BTreeMap<&'static str, String> {
        DAEMONS
            .iter()
            .map(|name| (*name, self.value(name)))
            .collect()
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        let available = shares::available_memory();
        let (dirty_limit, dirty_most) = shares::dirty_limits(available);
        MountOptions {
            engine: Options {
                dirty_limit,
                dirty_most,
                cache_bytes: shares::cache_bytes(available),
                ..Options::default()
            },
            nosuid: false,
            nodev: false,
            noexec: false,
            nosymfollow: false,
            noload: false,
            silent: false,
            notes: Vec::new(),
            status_dir: true,
            atomic_files: false,
            direct: None,
            allow_other: false,
            remount: false,
            named: BTreeMap::new(),
            log: None,
            callers: CallerConfig::default(),
            transport: Transport::default(),
            store: Settings::default(),
            rules: None,
        }
    }
}

/// Largest rules file, bytes.
const RULES_BYTES: u64 = 1 << 20;

/// Parses all `-o` lists; later options win.
///
/// Errors: exit code 1 for an unknown option, a bad value, or an option that the file system cannot honour.
pub fn parse(lists: &[String]) -> Outcome<MountOptions> {
    parse_onto(MountOptions::default(), lists)
}

/// As [`parse`]; options that are not named are those of `base`.
pub fn parse_onto(base: MountOptions, lists: &[String]) -> Outcome<MountOptions> {
    let mut out = base;
    for option in lists
        .iter()
        .flat_map(|l| l.split(','))
        .filter(|o| !o.is_empty())
    {
        apply(&mut out, option).map_err(|text| Failure::new(mount_code::USAGE, text))?;
    }
    if out.noload && !out.engine.read_only {
        return Err(Failure::new(
            mount_code::USAGE,
            "option noload is for read-only mounts: who writes needs the log; add ro, or leave it out",
        ));
    }
    Ok(out)
}

/// Whether one option by itself can be taken.
pub fn is_taken(option: &str) -> bool {
    apply(&mut MountOptions::default(), option).is_ok()
}

fn apply(out: &mut MountOptions, option: &str) -> Result<(), String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    set(out, option, name, value)?;
    if let Some(name) = DAEMONS.iter().find(|n| **n == kept_as(name)) {
        out.named.insert(name, out.value(name));
    }
    Ok(())
}

fn set(
    out: &mut MountOptions,
    option: &str,
    name: &str,
    value: Option<&str>,
) -> Result<(), String> {
    match (name, value) {
        ("ro", None) => out.engine.read_only = true,
        ("rw", None) => out.engine.read_only = false,
        ("noatime", None) => out.engine.noatime = true,
        ("relatime" | "atime", None) => out.engine.noatime = false,
        ("nodiratime", None) => out.engine.nodiratime = true,
        ("diratime", None) => out.engine.nodiratime = false,
        ("sync", None) => out.engine.sync = true,
        ("async", None) => out.engine.sync = false,
        ("dirsync", None) => out.engine.dirsync = true,
        ("grpid" | "bsdgroups", None) => out.engine.group_of_directory = true,
        ("nogrpid" | "sysvgroups", None) => out.engine.group_of_directory = false,
        ("minixdf", None) => out.engine.df_with_overhead = true,
        ("bsddf", None) => out.engine.df_with_overhead = false,
        ("nosymfollow", None) => out.nosymfollow = true,
        ("symfollow", None) => out.nosymfollow = false,
        ("noload" | "norecovery", None) => out.noload = true,
        ("silent", None) => out.silent = true,
        ("loud", None) => out.silent = false,
        ("nosuid", None) => out.nosuid = true,
        ("suid", None) => out.nosuid = false,
        ("nodev", None) => out.nodev = true,
        ("dev", None) => out.nodev = false,
        ("noexec", None) => out.noexec = true,
        ("exec", None) => out.noexec = false,
        // They imply these, as with mount(8).
        ("user" | "users", None) => (out.nosuid, out.nodev, out.noexec) = (true, true, true),
        ("owner" | "group", None) => (out.nosuid, out.nodev) = (true, true),
        ("allow_other", None) => out.allow_other = true,
        ("commit", Some(v)) => out.engine.commit_interval = commit(v)?,
        ("dirty", Some(v)) => {
            out.engine.dirty_limit = bounded("dirty", v, 1 << 20, 1 << 40)?;
            out.engine.dirty_most = 0;
        }
        ("cache", Some(v)) => {
            out.engine.cache_bytes = bounded("cache", v, 1 << 20, 1 << 40)? as usize
        }
        ("group_timeout", Some(v)) => out.engine.group_timeout = group_timeout(v)?,
        ("log", Some(v)) if v.starts_with('/') => out.log = Some(PathBuf::from(v)),
        ("log", _) => return Err("option log= needs an absolute file name".into()),
        ("status", Some("on")) => out.status_dir = true,
        ("status", Some("off")) => out.status_dir = false,
        ("status", _) => return Err("option status= is on or off".into()),
        ("atomic_files", Some("on")) => out.atomic_files = true,
        ("atomic_files", Some("off")) => out.atomic_files = false,
        ("atomic_files", _) => return Err("option atomic_files= is on or off".into()),
        ("direct", Some("on")) => out.direct = Some(true),
        ("direct", Some("off")) => out.direct = Some(false),
        ("direct", _) => return Err("option direct= is on or off".into()),
        ("transport", Some(v)) => {
            out.transport = Transport::parse(v)
                .ok_or_else(|| format!("transport={v}: give auto, uring or dev"))?;
        }
        ("streams", Some(v)) => {
            out.callers.grouping = Grouping::parse(v)
                .ok_or_else(|| format!("streams={v}: give shared, session, cgroup or uid"))?;
        }
        ("rules", Some(v)) if v.starts_with('/') => {
            out.callers.rules = rules(Path::new(v))?;
            out.rules = Some(PathBuf::from(v));
        }
        ("rules", _) => return Err("option rules= needs an absolute file name".into()),
        ("identity", Some("auto")) => out.callers.forks = Forks::Auto,
        ("identity", Some("proc")) => out.callers.forks = Forks::Proc,
        ("remount", None) => out.remount = true,
        ("timeout", Some(v)) => out.store.patience = timeout(v)?,
        ("take_over", None) => out.store.take_over = true,
        _ => out.notes.extend(of_others(option)?),
    }
    Ok(())
}

/// An option of ext4's or mount(8)'s: what is to be said of it, if anything.
fn of_others(option: &str) -> Result<Option<String>, String> {
    match ext4_options::verdict(option) {
        Some(Verdict::Holds) => Ok(None),
        Some(Verdict::Idle(why)) => Ok(Some(format!("option {option} changes nothing: {why}"))),
        Some(Verdict::Declined(why)) => Err(format!("option {option} is not supported: {why}")),
        Some(Verdict::OfMount(how)) => Err(format!("option {option} is mount(8)'s own: {how}")),
        None => Err(meant::unknown(option)),
    }
}

/// Reads the rules file.
fn rules(path: &Path) -> Result<Rules, String> {
    let shown = path.display();
    let mut text = Vec::new();
    named::open(path, For::Reading)
        .and_then(|file| file.take(RULES_BYTES + 1).read_to_end(&mut text))
        .map_err(|e| format!("cannot read the rules file {shown}: {e}"))?;
    if text.len() as u64 > RULES_BYTES {
        return Err(format!("the rules file {shown} is larger than 1 MiB"));
    }
    let text = String::from_utf8(text)
        .map_err(|_| format!("the rules file {shown} is no text in UTF-8"))?;
    Rules::parse(&text).map_err(|why| format!("{shown}: {why}"))
}

fn commit(value: &str) -> Result<Duration, String> {
    match value.parse::<u64>() {
        // As with ext4, 0 stands for the default.
        Ok(0) => Ok(Options::default().commit_interval),
        Ok(seconds @ 1..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("commit={value}: give seconds from 1 to 3600")),
    }
}

/// For a store whose connection broke.
fn timeout(value: &str) -> Result<Duration, String> {
    match value.parse::<u64>() {
        Ok(seconds @ 5..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("timeout={value}: give seconds from 5 to 86400")),
    }
}

/// 0: none.
fn group_timeout(value: &str) -> Result<Option<Duration>, String> {
    match value.parse::<u64>() {
        Ok(0) => Ok(None),
        Ok(seconds @ 1..=604_800) => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(format!(
            "group_timeout={value}: give seconds from 1 to 604800, or 0 for no limit"
        )),
    }
}

fn bounded(name: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let bytes = size::parse(value)?;
    if (least..=most).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!(
        "{name}={value}: give a size from {} to {}",
        size::show(least),
        size::show(most)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Outcome<MountOptions> {
        parse(&[text.to_string()])
    }

    #[test]
    fn options_are_understood() {
        let o = one(
            "defaults,ro,commit=30,dirty=512M,noatime,nosuid,x-systemd.automount,errors=remount-ro",
        )
        .unwrap();
        assert!(o.engine.read_only && o.engine.noatime && o.nosuid && !o.nodev);
        assert_eq!(
            (o.engine.commit_interval.as_secs(), o.engine.dirty_limit),
            (30, 512 << 20)
        );
        assert_eq!(one("commit=0").unwrap().engine.commit_interval.as_secs(), 5);
        assert!(!parse(&["ro".into(), "rw".into()]).unwrap().engine.read_only);
        let limit = |text: &str| one(text).unwrap().engine.group_timeout;
        assert_eq!(limit("group_timeout=600"), Some(Duration::from_secs(600)));
        assert_eq!(limit("group_timeout=0"), None);
        assert_eq!(one("transport=dev").unwrap().transport, Transport::Dev);
        let o = one("streams=session,identity=proc,rules=/dev/null").unwrap();
        assert_eq!(
            (o.callers.grouping, o.callers.forks, o.callers.rules.len()),
            (Grouping::Session, Forks::Proc, 0)
        );
    }

    #[test]
    fn what_was_named_is_written_in_one_way() {
        let o = one("commit=0,dirty=1M,ro,streams=uid,commit=7").unwrap();
        let named: Vec<_> = o.named.iter().map(|(n, v)| (*n, v.as_str())).collect();
        assert_eq!(
            named,
            [("commit", "7"), ("dirty", "1048576"), ("streams", "uid")]
        );
        let all = o.of_daemon();
        assert_eq!(all.len(), DAEMONS.len());
        assert_eq!(
            (all["log"].as_str(), all["identity"].as_str()),
            ("", "auto")
        );
    }

    #[test]
    fn options_of_ext4_are_decided_by_name() {
        let o =
            one("sync,dirsync,async,nodiratime,nosymfollow,norecovery,ro,grpid,minixdf").unwrap();
        let e = &o.engine;
        assert!(!e.sync && e.dirsync && e.nodiratime && e.group_of_directory && e.df_with_overhead);
        assert!(o.nosymfollow && o.noload && o.notes.is_empty());
        assert_eq!(o.named["sync"], "off");
        let implied = |text: &str| one(text).map(|o| [o.nosuid, o.nodev, o.noexec]).unwrap();
        assert_eq!(implied("user"), [true; 3]);
        assert_eq!(implied("users,exec"), [true, true, false]);
        assert_eq!(implied("owner"), [true, true, false]);
        assert_eq!(implied("user=me"), [false; 3]);
        let notes = one("acl,data=ordered,stripe=8,silent").unwrap().notes;
        assert_eq!(notes.len(), 2);
        assert!(notes[0].starts_with("option data=ordered changes nothing: "));
        let why = |text: &str| one(text).unwrap_err().text;
        assert!(why("usrjquota=aquota.user").contains("there are no quotas"));
        assert!(why("X-mount.subdir=a").contains("mount(8)'s own"));
        assert!(one("x-systemd.automount,X-gvfs-show,usrjquota=").is_ok());
    }

    #[test]
    fn what_may_be_meant_is_taken() {
        for name in meant::PLAIN.split(' ') {
            assert!(is_taken(name), "{name}");
        }
        let values = "5 1M 1M 5 60 /f on on on dev uid /dev/null proc".split(' ');
        for (name, value) in meant::VALUED.split(' ').zip(values) {
            assert!(is_taken(&format!("{name}={value}")), "{name}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "commit=-1",
            "commit=x",
            "dirty=1",
            "dirty=",
            "errors=continue",
            "noload",
            "stripe",
            "acl=1",
            "strictatime",
            "sync=1",
            "remount=1",
            "frobnicate",
            "ro=1",
            "log=x",
            "status=maybe",
            "streams=mine",
            "transport=pigeon",
            "transport",
            "streams",
            "rules=x",
            "rules=/nonexistent/rules",
            "rules=/dev/zero",
            "rules=/",
            "identity=magic",
            "atomic_files",
            "atomic_files=yes",
            "direct",
            "direct=maybe",
            "group_timeout=-1",
            "group_timeout",
            "group_timeout=700000",
            "timeout=4",
            "timeout",
            "take_over=1",
        ] {
            let e = one(bad).unwrap_err();
            assert_eq!(e.code, mount_code::USAGE, "{bad}");
        }
    }
}
