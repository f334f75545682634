//! `ccfs check`: what this machine lets a mount do, what is missing and what that costs. Each thing is tried by the code that a mount
//! uses; nothing is changed.
use crate::cli::CheckArgs;
use crate::options::MountOptions;
use crate::{limits, mount, tools};
use ccfs_command::{Outcome, output::print_json, say, size};
use ccfs_fuse::{transport, usermount};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::json;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;

/// Linux that can be used at all, and from when on there is more.
const LEAST: (u32, u32) = (5, 15);
const WITH_FUSE_URING: (u32, u32) = (6, 14);
const WITH_SYNCFS: (u32, u32) = (6, 18);
/// Major and minor number of /dev/fuse.
const FUSE_DEVICE: (u32, u32) = (10, 229);
/// What rings and performance events may lock on kernels that count it, bytes.
const LOCKED_WANTED: u64 = 8 << 20;

/// Schema in docs/json.md.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// Without it there is no mount.
    needed: bool,
    found: String,
    costs: &'static str,
    next: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Missing,
}

fn good(name: &'static str, found: impl Into<String>) -> Check {
    Check {
        name,
        state: State::Ok,
        needed: false,
        found: found.into(),
        costs: "",
        next: String::new(),
    }
}

fn missing(
    name: &'static str,
    found: impl ToString,
    costs: &'static str,
    next: impl Into<String>,
) -> Check {
    Check {
        name,
        state: State::Missing,
        needed: false,
        found: found.to_string(),
        costs,
        next: next.into(),
    }
}

/// A mount cannot be made without it.
fn needed(check: Check) -> Check {
    Check {
        needed: true,
        ..check
    }
}

/// Gives 0 if a volume can be mounted here by this user, else 1.
pub fn run(args: &CheckArgs) -> Outcome<u8> {
    let checks = all();
    let is_lost = |c: &Check| c.needed && c.state == State::Missing;
    let can_mount = !checks.iter().any(is_lost);
    if args.json {
        print_json(&json!({ "schema": 1, "can_mount": can_mount, "checks": checks }))?;
    } else {
        checks.iter().for_each(show);
        say!("");
        match can_mount {
            true => say!("volumes can be mounted here"),
            false => say!("no volume can be mounted here: see MISSING above"),
        }
    }
    Ok(u8::from(!can_mount))
}

fn show(check: &Check) {
    let word = match (check.state, check.needed) {
        (State::Ok, _) => "ok",
        (State::Missing, true) => "MISSING",
        (State::Missing, false) => "missing",
    };
    say!("{word:<8} {:<20} {}", check.name, check.found);
    if check.state == State::Missing {
        say!("{:<8} {:<20} {}", "", "  costs", check.costs);
        say!("{:<8} {:<20} {}", "", "  do", check.next);
    }
}

fn all() -> Vec<Check> {
    let is_root = !usermount::is_needed();
    let mut checks = vec![kernel(), fuse(), right_to_mount(is_root)];
    if !is_root {
        checks.push(allow_other());
    }
    checks.extend([
        limits_of_shell(),
        locked_memory(),
        io_uring(),
        fuse_over_io_uring(),
        sync_calls(is_root),
        connector(),
        performance_events(),
        own_proc(),
        others_processes(),
        sys(),
        io_flusher(),
        system_log(),
    ]);
    let e2fsprogs = "mkfs, fsck, adopt and release need it; mounts do not";
    checks.push(program("mke2fs", "e2fsprogs", e2fsprogs));
    checks.push(program("e2fsck", "e2fsprogs", e2fsprogs));
    checks
}

/// The first two numbers of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_string()
}

fn kernel() -> Check {
    const NAME: &str = "kernel";
    let release = release();
    needed(match version(&release) {
        Some(v) if v < LEAST => missing(
            NAME,
            release,
            "a mount is refused",
            "boot Linux 5.15 or later",
        ),
        _ => good(NAME, format!("Linux {release}")),
    })
}

fn fuse() -> Check {
    const NAME: &str = "/dev/fuse";
    let opened = fs::File::options().read(true).write(true).open(NAME);
    let numbers = |rdev| (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let is_it = |file: fs::File| match numbers(file.metadata()?.rdev()) {
        FUSE_DEVICE => Ok(()),
        _ => Err(io::Error::other("it is another device")),
    };
    needed(match opened.and_then(is_it) {
        Ok(()) => good(NAME, "can be opened"),
        Err(e) => missing(
            NAME,
            e,
            "no volume can be mounted; commands that work without a mount do (ccfs ls, put, get, fsck)",
            "modprobe fuse; for a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
    })
}

/// Of the effective set of this process.
fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set >> number & 1 == 1)
}

fn right_to_mount(is_root: bool) -> Check {
    const NAME: &str = "right to mount";
    const CAP_SYS_ADMIN: u32 = 21;
    needed(match (is_root, usermount::find()) {
        (true, _) if has_capability(CAP_SYS_ADMIN) => good(NAME, "root"),
        (true, _) => missing(
            NAME,
            "root without CAP_SYS_ADMIN",
            "no volume can be mounted",
            "give the container --cap-add SYS_ADMIN",
        ),
        (false, Some(program)) => good(NAME, format!("by way of {}", program.display())),
        (false, None) => missing(
            NAME,
            "no fusermount3",
            "only root can mount",
            "apt install fuse3",
        ),
    })
}

fn allow_other() -> Check {
    const NAME: &str = "user_allow_other";
    let text = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    match text.lines().any(|l| l.trim() == NAME) {
        true => good(NAME, "in /etc/fuse.conf"),
        false => missing(
            NAME,
            "not in /etc/fuse.conf",
            "-o allow_other is refused: other users cannot use what this user mounts",
            "echo user_allow_other >>/etc/fuse.conf, as root",
        ),
    }
}

fn limits_of_shell() -> Check {
    const NAME: &str = "limits";
    // As a mount does it: of this process only, which ends.
    let lifted = limits::lift(Path::new("/dev/null"), &MountOptions::default().engine);
    needed(match lifted {
        Ok(()) => {
            let files = getrlimit(Resource::Nofile).current;
            let files = files.map_or("unlimited".into(), |n| n.to_string());
            good(NAME, format!("enough; open files: {files}"))
        }
        Err(failure) => missing(
            NAME,
            failure.text,
            "a mount is refused",
            "raise it in the shell, the unit or /etc/security/limits.conf",
        ),
    })
}

fn locked_memory() -> Check {
    const NAME: &str = "locked memory";
    const CAP_IPC_LOCK: u32 = 14;
    match getrlimit(Resource::Memlock).current {
        Some(bytes) if bytes < LOCKED_WANTED && !has_capability(CAP_IPC_LOCK) => missing(
            NAME,
            format!("limit of {}", size::show(bytes)),
            "performance events, and rings of older kernels, can be refused",
            "ulimit -l 8192, or LimitMEMLOCK=8M in the unit",
        ),
        Some(bytes) => good(NAME, format!("limit of {}", size::show(bytes))),
        None => good(NAME, "no limit"),
    }
}

fn io_uring() -> Check {
    const NAME: &str = "io_uring";
    match ccfs_device::try_ring() {
        Ok(()) => good(NAME, "works"),
        Err(e) => missing(
            NAME,
            e,
            "writes go to the device one after the other, and requests come by /dev/fuse: slower",
            "sysctl kernel.io_uring_disabled=0; in a container, a seccomp profile that allows it",
        ),
    }
}

fn fuse_over_io_uring() -> Check {
    const NAME: &str = "FUSE over io_uring";
    let old = version(&release()).is_some_and(|v| v < WITH_FUSE_URING);
    match transport::try_rings() {
        Ok(()) => good(NAME, "works"),
        Err(why) => missing(
            NAME,
            why,
            "requests come by /dev/fuse: fewer small requests a second",
            match old {
                true => "boot Linux 6.14 or later",
                false => "docs/using/options.md, \"Transport\", says what it needs",
            },
        ),
    }
}

fn sync_calls(is_root: bool) -> Check {
    const NAME: &str = "sync(2), syncfs(2)";
    const CONTROL: &str = "/dev/loop-control";
    const COSTS: &str = "sync(2) and syncfs(2) make nothing durable on a mount; fsync(2) does";
    if !is_root {
        return missing(
            NAME,
            "not told to users' mounts",
            COSTS,
            "mount as root, or call ccfs stream sync --all",
        );
    }
    let control = fs::File::options().read(true).write(true).open(CONTROL);
    match (version(&release()), control) {
        (_, Ok(_)) => good(NAME, "reach the daemon"),
        (Some(v), Err(_)) if v >= WITH_SYNCFS => good(
            NAME,
            "reach the daemon of a block device; an image file needs a loop device",
        ),
        (_, Err(e)) => missing(
            NAME,
            format!("{CONTROL}: {e}"),
            COSTS,
            "modprobe loop; for a container: --device /dev/loop-control and loop devices",
        ),
    }
}

fn connector() -> Check {
    const NAME: &str = "process connector";
    match ccfs_fuse::try_connector() {
        Ok(()) => good(NAME, "works"),
        Err(e) => missing(
            NAME,
            e,
            "who is in which stream is found out from /proc, less exactly",
            "mount as root, outside of containers (CAP_NET_ADMIN, the first namespaces)",
        ),
    }
}

fn performance_events() -> Check {
    const NAME: &str = "performance events";
    match ccfs_fuse::try_perf_events() {
        Ok(()) => good(NAME, "work"),
        Err(e) => missing(
            NAME,
            e,
            "which thread started a thread is not known: it counts as started by the process's first one",
            "mount as root (CAP_PERFMON), or sysctl kernel.perf_event_paranoid=-1",
        ),
    }
}

fn own_proc() -> Check {
    const NAME: &str = "/proc";
    needed(match mount::check_proc() {
        Ok(()) if Path::new("/proc/self/status").exists() => good(NAME, "of this PID namespace"),
        Ok(()) => missing(
            NAME,
            "not mounted",
            "no volume can be mounted",
            "mount -t proc proc /proc",
        ),
        Err(failure) => missing(
            NAME,
            failure.text,
            "a mount is refused",
            "mount -t proc proc /proc",
        ),
    })
}

fn others_processes() -> Check {
    const NAME: &str = "others' processes";
    match Path::new("/proc/1").exists() {
        true => good(NAME, "can be seen"),
        false => missing(
            NAME,
            "hidden (hidepid)",
            "programs of other users are in the default stream where the connector is missing, too",
            "mount -o remount,hidepid=0 /proc, or mount volumes as root",
        ),
    }
}

fn sys() -> Check {
    const NAME: &str = "/sys";
    match Path::new("/sys/class/bdi").exists() {
        true => good(NAME, "mounted"),
        false => missing(
            NAME,
            "not mounted",
            "the file behind a loop device is not found: ccfs umount cannot tell whether an image is at rest",
            "mount -t sysfs sysfs /sys",
        ),
    }
}

fn io_flusher() -> Check {
    const NAME: &str = "memory when it is short";
    match ccfs_fuse::prepare_process() {
        true => good(NAME, "the daemon does not wait for itself"),
        false => missing(
            NAME,
            "no CAP_SYS_RESOURCE",
            "when memory is short the daemon can wait for itself",
            "mount as root; for a container: --cap-add SYS_RESOURCE",
        ),
    }
}

fn system_log() -> Check {
    const NAME: &str = "system log";
    match Path::new("/dev/log").exists() {
        true => good(NAME, "/dev/log"),
        false => missing(
            NAME,
            "no /dev/log",
            "a daemon's messages go to the kernel's log (dmesg), and ccfs status shows the last ones",
            "apt install rsyslog, or mount with -o log=FILE",
        ),
    }
}

/// A program that is there says its version.
fn program(name: &'static str, package: &str, costs: &'static str) -> Check {
    let mut command = tools::command(name);
    let command = command.arg("-V").stdin(Stdio::null());
    match command.output() {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stderr);
            good(name, text.lines().next().unwrap_or("").trim())
        }
        Err(e) => missing(name, e, costs, format!("apt install {package}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for (release, expected) in [
            ("6.18.5", Some((6, 18))),
            ("5.15.0-91-generic", Some((5, 15))),
            ("7.3-rc1", Some((7, 3))),
            ("6", None),
            ("odd", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
        assert!(version("6.9.1") < version("6.14.0"));
    }
}
