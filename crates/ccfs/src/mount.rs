//! `ccfs mount`: recovers if need be, mounts, serves.
use crate::cli::MountArgs;
use crate::failure::{Context, Failure, Outcome, mount_code};
use crate::mountpoint::{self, Turn};
use crate::options::{self, MountOptions};
use crate::{daemon, limits, logging, mounts, remount, superblock, target, umount};
use ccfs_device::{Device, OpenMode};
use ccfs_engine::Volume;
use ccfs_fuse::{MountConfig, MountError, apart, usermount};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn run(args: &MountArgs) -> Outcome<()> {
    let options = options::parse(&args.options)?;
    if options.remount {
        return remount::run(args);
    }
    if args.daemon {
        return run_daemon(args, &options);
    }
    let (target, dir) = prepare(args)?;
    if args.foreground {
        logging::to_terminal();
        return serve(&target, &dir, &options, || {
            daemon::notify_ready();
            Ok(())
        });
    }
    daemon::start(args, &target, &dir)
}

/// The daemon's life. A failure before it was ready goes to the parent, a later one to the log.
fn run_daemon(args: &MountArgs, options: &MountOptions) -> Outcome<()> {
    daemon::detach();
    let mut is_ready = false;
    let served = logging::of_daemon(options.log.as_deref())
        .or_fail(mount_code::USAGE, "cannot open the log file")
        .and_then(|()| {
            serve(&args.target, &args.dir, options, || {
                is_ready = true;
                logging::say_where();
                daemon::ready()
            })
        });
    served.map_err(|failure| {
        if is_ready {
            tracing::error!("{}: {failure}", args.target.display());
        } else {
            daemon::failed(&failure);
        }
        // It has been told; nobody reads this process's stderr.
        Failure::new(failure.code, "")
    })
}

/// Who makes a request, and so its stream and its atomic group, is found by way of /proc: one of another PID namespace would name others.
fn check_proc() -> Outcome<()> {
    match std::fs::read_link("/proc/self") {
        Ok(me) if me != Path::new(&std::process::id().to_string()) => Err(Failure::new(
            mount_code::SYSTEM,
            "/proc shows another PID namespace than this one; mount its own first: mount -t proc proc /proc",
        )),
        _ => Ok(()),
    }
}

/// Checks the arguments and clears what a killed daemon left. Gives absolute paths.
fn prepare(args: &MountArgs) -> Outcome<(PathBuf, PathBuf)> {
    if usermount::is_needed() && usermount::find().is_none() {
        return Err(Failure::new(
            mount_code::USAGE,
            "only root can mount without fusermount3; install the package fuse3, or try with sudo",
        ));
    }
    check_proc()?;
    let target = args.target.canonicalize().or_fail(
        mount_code::FAILED,
        format_args!("cannot use {}", args.target.display()),
    )?;
    let dir = umount::resolve(&args.dir)?;
    for mount in
        mounts::of_target(&target).or_fail(mount_code::SYSTEM, "cannot read the mount table")?
    {
        if !mount.is_ccfs() || !mount.is_dead() {
            return Err(Failure::new(
                mount_code::FAILED,
                format!(
                    "{} is already mounted on {}",
                    target.display(),
                    mount.dir.display()
                ),
            ));
        }
        umount::clear_dead(&mount)?;
    }
    // A dead mount of another volume may be in the way as well, or several on top of each other.
    while let Some(mount) =
        mounts::at(&dir).or_fail(mount_code::SYSTEM, "cannot read the mount table")?
    {
        if !mount.is_dead() {
            if mount.is_ccfs() {
                return Err(mountpoint::taken(&dir));
            }
            break;
        }
        umount::clear_dead(&mount)?;
    }
    let meta = dir.metadata().or_fail(
        mount_code::FAILED,
        format_args!("cannot use {}", dir.display()),
    )?;
    if !meta.is_dir() {
        return Err(Failure::new(
            mount_code::FAILED,
            format!("{} is not a directory", dir.display()),
        ));
    }
    Ok((target, dir))
}

/// Serves the volume until it is unmounted; `ready` is called when it can be used.
fn serve(
    target: &Path,
    dir: &Path,
    options: &MountOptions,
    ready: impl FnOnce() -> Outcome<()>,
) -> Outcome<()> {
    ccfs_fuse::prepare_process();
    apart::unmount_by_running_again(daemon::NAME, &["umount", "--for-daemon"]);
    crate::memory::give_back_soon();
    crate::memory::small_pages();
    limits::lift(target, &options.engine)?;
    let mode = if options.engine.read_only {
        OpenMode::ReadOnly
    } else {
        OpenMode::ReadWrite
    };
    if options.engine.read_only {
        recover_first(target);
    }
    let device = target::open_volume(target, mode, mount_code::FAILED)?;
    if let Ok(sb) = superblock::read(&device)
        && let Some(cut) = superblock::cut_off(&sb, &device, target)
    {
        return Err(Failure::new(
            mount_code::FAILED,
            format!("{}: {cut}", target.display()),
        ));
    }
    let volume = Volume::mount(device, options.engine.clone())
        .map_err(|e| cannot_mount(target, &e, options.engine.read_only))?;
    let config = MountConfig {
        read_only: options.engine.read_only,
        noatime: options.engine.noatime,
        nosuid: options.nosuid,
        nodev: options.nodev,
        noexec: options.noexec,
        status_dir: options.status_dir,
        atomic_files: options.atomic_files,
        callers: options.callers.clone(),
        transport: options.transport,
        options: options.of_daemon(),
        messages: logging::kept(),
        // Of a volume of root's everybody may use what its rights allow, as of any other file system.
        allow_other: options.allow_other || !usermount::is_needed(),
        ..MountConfig::new(target)
    };
    // Only now: recovery can take long, and nobody else has to wait for it.
    let turn = Turn::take(dir).inspect_err(|_| {
        // The reason why it is not mounted is what counts.
        let _ = volume.unmount();
    })?;
    ccfs_fuse::serve(volume, dir, &config, |_| {
        drop(turn);
        ready()
    })
}

impl From<MountError> for Failure {
    fn from(e: MountError) -> Failure {
        Failure::new(mount_code::FAILED, e.to_string())
    }
}

/// A volume in flight cannot be read before its log is applied: as ext4 does, a read-only mount recovers first if the
/// medium lets it. If not, the mount that follows says why.
fn recover_first(target: &Path) {
    let in_flight = |device: &Arc<dyn Device>| {
        superblock::read(device).is_ok_and(|sb| superblock::in_flight(&sb))
    };
    if let Ok(device) = target::open_volume(target, OpenMode::ReadWrite, mount_code::FAILED)
        && in_flight(&device)
        && let Err(e) = Volume::recover(device)
    {
        tracing::warn!("{}: recovery: {e}", target.display());
    }
}

/// What the engine said, and what helps.
fn cannot_mount(target: &Path, e: &ccfs_engine::Error, read_only: bool) -> Failure {
    let refuses_writes = match e {
        ccfs_engine::Error::Io(io) => {
            matches!(
                io.raw_os_error(),
                Some(libc::EPERM | libc::EACCES | libc::EROFS)
            )
        }
        _ => false,
    };
    let hint = match e {
        _ if refuses_writes && !read_only => "; the medium may be read-only, try -o ro",
        ccfs_engine::Error::Corrupt(_) => "; `ccfs fsck -y` repairs what can be repaired",
        _ => "",
    };
    Failure::new(
        mount_code::FAILED,
        format!("{}: {e}{hint}", target.display()),
    )
}
