//! The options of `mount -o`.
use crate::failure::{Failure, Outcome, mount_code};
use crate::named::{self, For};
use crate::size;
use ccfs_engine::Options;
use ccfs_fuse::{CallerConfig, Forks, Grouping, Rules, Transport};
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
    /// The directory `.ccfs` with status files is there.
    pub status_dir: bool,
    /// Files can be open O_ATOMIC.
    pub atomic_files: bool,
    /// Other users may use what an ordinary user mounts.
    pub allow_other: bool,
    /// Change a volume that is mounted.
    pub remount: bool,
    /// The options that were named and that only the daemon knows (commit, dirty, cache, log, status, streams, rules, identity, transport, group_timeout,
    /// atomic_files), each
    /// written in one way.
    pub named: BTreeMap<&'static str, String>,
    /// Messages of the daemon go here instead of the system log.
    pub log: Option<PathBuf>,
    /// Who is in which stream without having asked for one.
    pub callers: CallerConfig,
    /// Which way requests come from the kernel.
    pub transport: Transport,
    /// Where its rules are from.
    pub rules: Option<PathBuf>,
}

/// Options that only the daemon knows.
const DAEMONS: [&str; 11] = [
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
    "atomic_files",
];

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
            "status" => if self.status_dir { "on" } else { "off" }.into(),
            "streams" => self.callers.grouping.name().into(),
            "rules" => file(&self.rules),
            "atomic_files" => if self.atomic_files { "on" } else { "off" }.into(),
            "identity" => self.callers.forks.name().into(),
            "transport" => self.transport.name().into(),
            _ => {
                let limit = self.engine.group_timeout.unwrap_or_default();
                limit.as_secs().to_string()
            }
        }
    }

    /// All options of the daemon's.
    pub fn of_daemon(&self) -> BTreeMap<&'static str, String> {
        DAEMONS
            .iter()
            .map(|name| (*name, self.value(name)))
            .collect()
    }
}

/// Memory that can be had, bytes; 0: unknown.
fn available_memory() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let available = available.unwrap_or(0).saturating_mul(1 << 10);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    match memory_of_groups(&groups, Path::new("/sys/fs/cgroup")) {
        Some(limit) if available == 0 => limit,
        Some(limit) => available.min(limit),
        None => available,
    }
}

/// The least limit of the control groups that a process is in (`groups`: its /proc/PID/cgroup), and of those above them, bytes; `None`: there is none.
fn memory_of_groups(groups: &str, root: &Path) -> Option<u64> {
    let mut least = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        // Version 2 has one hierarchy, version 1 one for each controller; with both, the second's place is a directory of its own.
        let places = match controllers {
            "" => [root.to_path_buf(), root.join("unified")],
            list if list.split(',').any(|c| c == "memory") => {
                [root.join("memory"), root.join(controllers)]
            }
            _ => continue,
        };
        for top in places {
            let inside = top.join(path.trim_start_matches('/'));
            for dir in inside.ancestors().take_while(|dir| dir.starts_with(&top)) {
                for file in ["memory.max", "memory.limit_in_bytes"] {
                    let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
                    let limit = text.trim().parse::<u64>().ok();
                    least = limit.into_iter().chain(least).min();
                }
            }
        }
    }
    least
}

/// The limit of dirty bytes where `dirty=` does not say it, and what it may rise to: an eighth of the memory that can be had, 128 MiB at
/// least, but never more than a quarter of it. Writing begins at five eighths of the limit: at 192 MiB 100 MB of one stream are not at the device yet while another one syncs.
fn dirty_limits(available: u64) -> (u64, u64) {
    let share = available / 8;
    let least = match available {
        0 => 128 << 20,
        available => (128 << 20).min(available / 4).max(1 << 20),
    };
    (share.clamp(least, 192 << 20), share.min(1 << 30))
}

/// The same for `cache=`: with what it stands for besides (`Options::cache_bytes`) less than an eighth.
fn cache_bytes(available: u64) -> usize {
    let most = Options::default().cache_bytes;
    match (available / 20) as usize {
        0 => most,
        share => share.clamp(1 << 20, most),
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        let available = available_memory();
        let (dirty_limit, dirty_most) = dirty_limits(available);
        MountOptions {
            engine: Options {
                dirty_limit,
                dirty_most,
                cache_bytes: cache_bytes(available),
                ..Options::default()
            },
            nosuid: false,
            nodev: false,
            noexec: false,
            status_dir: true,
            atomic_files: false,
            allow_other: false,
            remount: false,
            named: BTreeMap::new(),
            log: None,
            callers: CallerConfig::default(),
            transport: Transport::default(),
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
    Ok(out)
}

fn apply(out: &mut MountOptions, option: &str) -> Result<(), String> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    set(out, option, name, value)?;
    if let Some(name) = DAEMONS.iter().find(|n| **n == name) {
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
        ("nosuid", None) => out.nosuid = true,
        ("suid", None) => out.nosuid = false,
        ("nodev", None) => out.nodev = true,
        ("dev", None) => out.nodev = false,
        ("noexec", None) => out.noexec = true,
        ("exec", None) => out.noexec = false,
        ("defaults", None) => {}
        // For mount(8), systemd and the kernel's generic layer; nothing for a file system to do.
        (
            "auto" | "noauto" | "user" | "users" | "nouser" | "owner" | "group" | "nofail"
            | "_netdev" | "async" | "loop",
            _,
        ) => {}
        ("allow_other", None) => out.allow_other = true,
        // Always so.
        ("default_permissions", None) => {}
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
        ("errors", Some("remount-ro")) => {}
        ("errors", Some(v)) => {
            return Err(format!(
                "option errors={v} is not supported: after a write error the volume always stops (errors=remount-ro)"
            ));
        }
        ("remount", None) => out.remount = true,
        // What the mount table shows of a FUSE mount, and mount(8) repeats when it remounts.
        ("user_id" | "group_id" | "blksize" | "max_read" | "rootmode", Some(_)) => {}
        ("sync" | "dirsync" | "mand", None) => {
            return Err(format!("option {name} is not supported"));
        }
        (n, _) if n.starts_with("x-") || n.starts_with("X-") || n == "comment" => {}
        _ => {
            return Err(format!(
                "unknown option \"{option}\"; see ccfs mount --help"
            ));
        }
    }
    Ok(())
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
    fn the_dirty_limit_follows_memory() {
        let mib = |available: u64| {
            let (limit, most) = dirty_limits(available << 20);
            (limit >> 20, most >> 20)
        };
        assert_eq!(mib(0), (128, 0));
        assert_eq!(mib(512), (128, 64));
        assert_eq!(mib(1200), (150, 150));
        assert_eq!(mib(4096), (192, 512));
        assert_eq!(mib(65536), (192, 1024));
        // In a small control group.
        assert_eq!(mib(256), (64, 32));
        let cache = |available: u64| cache_bytes(available << 20) >> 20;
        assert_eq!([0, 64, 256, 512, 4096].map(cache), [64, 3, 12, 25, 64]);
    }

    #[test]
    fn control_groups_limit_memory() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let write = |file: &str, text: &str| {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let limit = |groups: &str| memory_of_groups(groups, root);
        assert_eq!(limit("0::/a/b\n"), None);
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(1000), "of one above it");
        assert_eq!(limit("0::/c\n1:name=systemd:/a\nnonsense\n"), None);
        write("unified/c/memory.max", "800\n");
        assert_eq!(limit("0::/c\n"), Some(800));
        write("memory/x/memory.limit_in_bytes", "600\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("4:cpu,memory:/x\n0::/a\n"), Some(600));
        assert_eq!(limit("4:memory:/y\n"), Some(9_223_372_036_854_771_712));
        // What lies outside is none of it.
        write("memory.max", "5\n");
        assert_eq!(limit("4:memory:/x\n"), Some(600));
        assert_eq!(limit("0::/../..\n"), Some(5));
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
    fn nonsense_is_refused() {
        for bad in [
            "commit=-1",
            "commit=x",
            "dirty=1",
            "dirty=",
            "errors=continue",
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
            "group_timeout=-1",
            "group_timeout",
            "group_timeout=700000",
        ] {
            let e = one(bad).unwrap_err();
            assert_eq!(e.code, mount_code::USAGE, "{bad}");
        }
    }
}
