//! `mount -o remount`: changes what the kernel enforces for a mounted volume (ro, rw, nosuid, nodev, noexec, nosymfollow), and commit=,
//! dirty=, noatime and nodiratime of the daemon.
//!
//! For the rest the daemon goes on as it was started: a volume that it opened read-only stays so, and its other options are those of the
//! mount. Whoever asks for other ones is told. (mount(8) repeats what fstab has: what is in force already is no change.)
use crate::cli::MountArgs;
use crate::codes::mount_code;
use crate::mounts::{self, Daemon};
use crate::options::{self, MountOptions};
use crate::{umount, volume};
use ccfs_client::AccessTimes;
use ccfs_command::{Context, Failure, Outcome};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use serde_json::Value;
use std::fs::File;

/// Of statvfs(3): `ST_NOSYMFOLLOW`.
const NOSYMFOLLOW: StatVfsMountFlags = StatVfsMountFlags::from_bits_retain(0x2000);

pub fn run(args: &MountArgs) -> Outcome<()> {
    let refuse = |text: String| Err(Failure::new(mount_code::USAGE, text));
    if !rustix::process::geteuid().is_root() {
        return refuse("only root can remount; try with sudo".into());
    }
    let dir = umount::resolve(&args.dir)?;
    let shown = dir.display();
    let mount = mounts::at(&dir).or_fail(mount_code::SYSTEM, "cannot read the mount table")?;
    let mount = mount.filter(|m| m.is_ccfs());
    match mount.as_ref().map(|m| (m, m.daemon())) {
        Some((_, Daemon::Serves)) => {}
        Some((m, Daemon::Stopped(pid))) => {
            return Err(umount::stopped(mount_code::FAILED, m, pid));
        }
        Some((_, Daemon::Gone)) | None => {
            return refuse(format!("no ccfs volume is mounted on {shown}"));
        }
    }
    let now = rustix::fs::statvfs(&dir)
        .or_fail(
            mount_code::FAILED,
            format_args!("cannot look at the mount on {shown}"),
        )?
        .f_flag;
    let wanted = options::parse_onto(as_mounted(now), &args.options)?;
    let at = volume::open(&args.dir)?;
    let status = status(args, &at)?;
    if !wanted.engine.read_only && status["read_only"] == true {
        return refuse(format!(
            "the volume on {shown} was opened read-only; unmount it and mount it again to write to it"
        ));
    }
    let in_force = &status["mount"]["options"];
    let (commit, dirty) = changes(&wanted, in_force)?;
    let times = access_times(&wanted);
    let times = (times != access_times(&as_mounted(now))).then_some(times);
    drop(at);
    // FUSE knows no options of its own here.
    rustix::mount::mount_remount(&dir, flags(&wanted, in_force), "").map_err(|e| {
        let hint = match e {
            rustix::io::Errno::BUSY => "; files are open for writing",
            _ => "",
        };
        Failure::new(
            mount_code::FAILED,
            format!("cannot remount {shown}: {e}{hint}"),
        )
    })?;
    // The kernel has synced before; but not every kernel tells the daemon of that, and from now on nobody changes anything.
    if wanted.engine.read_only && !as_mounted(now).engine.read_only {
        ccfs_client::sync_volume(volume::open(&args.dir)?)
            .map_err(|e| volume::explain(&args.dir, e))?;
    }
    // Last, since it cannot be refused as the kernel's part can: what fails changes nothing.
    if (commit, dirty, times) != (0, 0, None) {
        let at = volume::open(&args.dir)?;
        ccfs_client::tune(&at, commit, dirty, times).or_fail(
            mount_code::FAILED,
            format_args!("cannot change options of the volume on {shown}"),
        )?;
    }
    Ok(())
}

/// What is in force, so that options that are not named stay as they are.
fn as_mounted(now: StatVfsMountFlags) -> MountOptions {
    let mut options = MountOptions::default();
    options.engine.read_only = now.contains(StatVfsMountFlags::RDONLY);
    options.engine.noatime = now.contains(StatVfsMountFlags::NOATIME);
    options.engine.nodiratime = now.contains(StatVfsMountFlags::NODIRATIME);
    options.nosymfollow = now.contains(NOSYMFOLLOW);
    options.nosuid = now.contains(StatVfsMountFlags::NOSUID);
    options.nodev = now.contains(StatVfsMountFlags::NODEV);
    options.noexec = now.contains(StatVfsMountFlags::NOEXEC);
    options
}

fn access_times(options: &MountOptions) -> AccessTimes {
    match (options.engine.noatime, options.engine.nodiratime) {
        (true, _) => AccessTimes::Off,
        (false, true) => AccessTimes::OfFiles,
        (false, false) => AccessTimes::Kept,
    }
}

fn flags(wanted: &MountOptions, in_force: &Value) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, wanted.engine.read_only);
    flags.set(MountFlags::NOATIME, wanted.engine.noatime);
    flags.set(MountFlags::RELATIME, !wanted.engine.noatime);
    flags.set(MountFlags::NODIRATIME, wanted.engine.nodiratime);
    flags.set(MountFlags::NOSYMFOLLOW, wanted.nosymfollow);
    // The daemon's, which do not change.
    flags.set(MountFlags::SYNCHRONOUS, in_force["sync"] == "on");
    flags.set(MountFlags::DIRSYNC, in_force["dirsync"] == "on");
    flags.set(MountFlags::NOSUID, wanted.nosuid);
    flags.set(MountFlags::NODEV, wanted.nodev);
    flags.set(MountFlags::NOEXEC, wanted.noexec);
    flags
}

/// What the daemon can change (seconds of commit=, bytes of dirty=, 0: nothing). Errors: an option that it cannot.
fn changes(wanted: &MountOptions, in_force: &Value) -> Outcome<(u32, u64)> {
    let (mut commit, mut dirty) = (0, 0);
    for (name, value) in &wanted.named {
        let now = in_force[name].as_str().unwrap_or("unknown");
        match *name {
            // Also where the limit is that now: from here on it is fixed.
            "dirty" => dirty = wanted.engine.dirty_limit,
            _ if now == value => {}
            "commit" => commit = wanted.engine.commit_interval.as_secs() as u32,
            _ => {
                let now = if now.is_empty() { "not set" } else { now };
                return Err(Failure::new(
                    mount_code::USAGE,
                    format!(
                        "{name}={value} cannot be changed while the volume is mounted (it is {now}): unmount it, and mount it again"
                    ),
                ));
            }
        }
    }
    Ok((commit, dirty))
}

fn status(args: &MountArgs, at: &File) -> Outcome<Value> {
    let text = ccfs_client::status_json(at).map_err(|e| volume::explain(&args.dir, e))?;
    serde_json::from_str(&text).or_fail(mount_code::SYSTEM, "the daemon's answer is no JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_force_is_no_change_and_what_cannot_change_is_named() {
        let wanted = |text: &str| options::parse(&[text.to_string()]).unwrap();
        let in_force = serde_json::json!(wanted("commit=9,streams=uid").of_daemon());
        let changed = |text: &str| changes(&wanted(text), &in_force);
        assert_eq!(
            changed("rw,commit=9,streams=uid,cache=64M").unwrap(),
            (0, 0)
        );
        assert_eq!(changed("commit=3,dirty=2M").unwrap(), (3, 2 << 20));
        // The limit that is in force now may move by itself; one that was asked for does not.
        assert_eq!(changed("dirty=128M").unwrap(), (0, 128 << 20));
        for (refused, word) in [
            ("streams=session", "it is uid"),
            ("cache=1M", "cache=1048576"),
            ("log=/var/log/x", "not set"),
            ("status=off", "it is on"),
            ("rules=/dev/null", "not set"),
            ("identity=proc", "it is auto"),
        ] {
            let e = changed(refused).unwrap_err();
            assert_eq!(e.code, mount_code::USAGE);
            assert!(e.text.contains(word), "{}", e.text);
        }
    }
}
