//! `mount -o remount`: changes what the kernel enforces for a mounted volume (ro, rw, nosuid, nodev, noexec, noatime).
//!
//! The daemon goes on as it was started: a volume that it opened read-only stays so, and its own options (commit, dirty, cache, log, status, streams, rules) are those of the
//! mount.
use crate::cli::MountArgs;
use crate::failure::{Context, Failure, Outcome, mount_code};
use crate::options::{self, MountOptions};
use crate::{mounts, stream, umount};
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;

pub fn run(args: &MountArgs) -> Outcome<()> {
    let refuse = |text: String| Err(Failure::new(mount_code::USAGE, text));
    if !rustix::process::geteuid().is_root() {
        return refuse("only root can remount; try with sudo".into());
    }
    let dir = umount::resolve(&args.dir)?;
    let shown = dir.display();
    let mount = mounts::at(&dir).or_fail(mount_code::SYSTEM, "cannot read the mount table")?;
    if !mount.is_some_and(|m| m.is_ccfs() && !m.is_dead()) {
        return refuse(format!("no ccfs volume is mounted on {shown}"));
    }
    let now = rustix::fs::statvfs(&dir)
        .or_fail(
            mount_code::FAILED,
            format_args!("cannot look at the mount on {shown}"),
        )?
        .f_flag;
    let wanted = options::parse_onto(as_mounted(now), &args.options)?;
    if !wanted.engine.read_only && opened_read_only(args)? {
        return refuse(format!(
            "the volume on {shown} was opened read-only; unmount it and mount it again to write to it"
        ));
    }
    if wanted.daemon_options {
        warn!(
            "ccfs mount: commit, dirty, cache, log, status, streams and rules take effect when the volume is mounted the next time"
        );
    }
    // FUSE knows no options of its own here. Going read-only syncs first.
    rustix::mount::mount_remount(&dir, flags(&wanted), "").map_err(|e| {
        let hint = match e {
            rustix::io::Errno::BUSY => "; files are open for writing",
            _ => "",
        };
        Failure::new(
            mount_code::FAILED,
            format!("cannot remount {shown}: {e}{hint}"),
        )
    })
}

/// What is in force, so that options that are not named stay as they are.
fn as_mounted(now: StatVfsMountFlags) -> MountOptions {
    let mut options = MountOptions::default();
    options.engine.read_only = now.contains(StatVfsMountFlags::RDONLY);
    options.engine.noatime = now.contains(StatVfsMountFlags::NOATIME);
    options.nosuid = now.contains(StatVfsMountFlags::NOSUID);
    options.nodev = now.contains(StatVfsMountFlags::NODEV);
    options.noexec = now.contains(StatVfsMountFlags::NOEXEC);
    options
}

fn flags(wanted: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, wanted.engine.read_only);
    flags.set(MountFlags::NOATIME, wanted.engine.noatime);
    flags.set(MountFlags::RELATIME, !wanted.engine.noatime);
    flags.set(MountFlags::NOSUID, wanted.nosuid);
    flags.set(MountFlags::NODEV, wanted.nodev);
    flags.set(MountFlags::NOEXEC, wanted.noexec);
    flags
}

fn opened_read_only(args: &MountArgs) -> Outcome<bool> {
    let at = stream::open(&args.dir)?;
    let text = ccfs_client::status_json(&at).map_err(|e| stream::explain(&args.dir, e))?;
    let status: serde_json::Value = serde_json::from_str(&text)
        .or_fail(mount_code::SYSTEM, "the daemon's answer is no JSON")?;
    Ok(status["read_only"] == true)
}
