//! `ccfs mount`: recovers if need be, mounts, serves.
use crate::cli::MountArgs;
use crate::codes::mount_code;
use crate::mountpoint::{self, Turn};
use crate::options::{self, MountOptions};
use crate::{daemon, limits, logging, mounts, remount, superblock, tags, target, umount, volume};
use ccfs_command::{Context, Failure, Outcome, output::print_json, warn};
use ccfs_device::{Device, OpenMode};
use ccfs_engine::Volume;
use ccfs_fuse::{Home, MountConfig, MountError, helper_process, usermount};
use ccfs_remote::{Settings, is_store};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// For tests: with this variable set, as on a kernel that tells nothing of sync(2).
const OLD_KERNEL: &str = "CCFS_TEST_OLD_KERNEL";

pub fn run(args: &MountArgs) -> Outcome<()> {
    let options = options::parse(&args.options)?;
    if args.daemon {
        return run_daemon(args, &options);
    }
    if !options.silent && !args.json {
        options.notes.iter().for_each(|n| warn!("ccfs mount: {n}"));
    }
    if options.remount {
        remount::run(args)?;
        return match args.json {
            true => report(&args.target, &umount::resolve(&args.dir)?, &options),
            false => Ok(()),
        };
    }
    let (target, dir) = prepare(args)?;
    let daemon = daemon::start(args, &target, &dir)?;
    if args.json {
        return report(&target, &dir, &options);
    }
    if !args.foreground {
        return Ok(());
    }
    daemon::notify_ready();
    daemon.stay()
}

/// What `--json` prints of a mount that is there.
fn report(target: &Path, dir: &Path, options: &MountOptions) -> Outcome<()> {
    let status = volume::status(dir)?;
    let mount = &status["mount"];
    print_json(&json!({
        "schema": 1,
        "target": target.to_string_lossy(),
        "directory": dir.to_string_lossy(),
        "uuid": status["uuid"],
        "label": status["label"],
        "pid": mount["pid"],
        "read_only": status["read_only"] == true || options.engine.read_only,
        "transport": mount["transport"],
        "syncfs_works": mount["syncfs_works"],
        "notes": options.notes,
    }))
}

/// The daemon's life. A failure before it was ready goes to the parent, a later one to the log.
fn run_daemon(args: &MountArgs, options: &MountOptions) -> Outcome<()> {
    daemon::detach();
    let log = match args.foreground {
        true => {
            ccfs_fuse::signals_are_handed_on();
            logging::to_terminal();
            Ok(())
        }
        false => logging::of_daemon(options.log.as_deref()),
    };
    let mut is_ready = false;
    let served = log
        .or_fail(mount_code::USAGE, "cannot open the log file")
        .and_then(|()| {
            serve(&args.target, &args.dir, options, || {
                is_ready = true;
                if !args.foreground {
                    logging::say_where();
                }
                daemon::ready(args.foreground)
            })
        });
    served.map_err(|failure| {
        match is_ready {
            true if args.foreground => return failure,
            true => tracing::error!("{}: {failure}", args.target.display()),
            false => daemon::failed(&failure),
        }
        // It has been told; nobody reads this process's stderr.
        Failure::new(failure.code, "")
    })
}

/// Before any thread is started. Who may not leave goes on all the same.
fn leave_home() -> Outcome<Home> {
    if usermount::is_needed() {
        return Ok(Home::stay());
    }
    let home = Home::leave(&logging::ways())
        .or_fail(mount_code::SYSTEM, "cannot go back to the mount namespace")?;
    if let Some(why) = home.why_stayed() {
        tracing::warn!(
            "the daemon cannot have a mount namespace of its own ({why}): if it is killed as the last process of a \
             container, the container does not end, and sync(2) waits for it"
        );
    }
    Ok(home)
}

/// In the mount namespace that was left.
fn within<T: Send>(home: &Home, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    home.within(work)
        .or_fail(mount_code::SYSTEM, "cannot go back to the mount namespace")?
}

/// Who makes a request, and so its stream and its atomic group, is found by way of /proc: one of another PID namespace would name others.
pub fn check_proc() -> Outcome<()> {
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
    let target = tags::device(&args.target, mount_code::FAILED)?;
    let target = mounts::absolute(&target).or_fail(
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
    if !ccfs_fuse::prepare_process() {
        tracing::info!(
            "the daemon has no CAP_SYS_RESOURCE: when memory is short it can wait for itself"
        );
    }
    helper_process::run_again_as(daemon::NAME, &["umount", "--for-daemon"]);
    crate::memory::give_back_soon();
    ccfs_device::small_pages();
    limits::lift(target, &options.engine)?;
    let home = leave_home()?;
    let mode = if options.engine.read_only {
        OpenMode::ReadOnly
    } else {
        OpenMode::ReadWrite
    };
    if options.engine.read_only && !options.noload {
        recover_first(&home, target, options.store);
    }
    let device = open(&home, target, mode, options.store)?;
    if let Err(e) = ccfs_device::keep_memory_ready() {
        tracing::info!("memory is touched when it is needed: {e}");
    }
    let store_bytes = is_store(target.as_os_str()).then(|| device.size_bytes());
    let volume = Volume::mount(device, options.engine.clone())
        .map_err(|e| cannot_mount(target, &e, options))?;
    let config = MountConfig {
        read_only: options.engine.read_only,
        noatime: options.engine.noatime,
        nodiratime: options.engine.nodiratime,
        sync: options.engine.sync,
        dirsync: options.engine.dirsync,
        nosymfollow: options.nosymfollow,
        nosuid: options.nosuid,
        nodev: options.nodev,
        noexec: options.noexec,
        status_dir: options.status_dir,
        atomic_files: options.atomic_files,
        direct: options.direct,
        callers: options.callers.clone(),
        transport: options.transport,
        store_bytes,
        options: options.of_daemon(),
        messages: logging::kept(),
        old_kernel: std::env::var_os(OLD_KERNEL).is_some(),
        allow_other: options.for_others(),
        ..MountConfig::new(target)
    };
    // Only now: recovery can take long, and nobody else has to wait for it.
    let turn = within(&home, || Turn::take(dir)).inspect_err(|_| {
        // The reason why it is not mounted is what counts.
        let _ = volume.unmount();
    })?;
    let served = ccfs_fuse::serve(volume, home, dir, &config, |_| {
        drop(turn);
        ready().map_err(Ended)
    });
    served.map_err(|Ended(why)| why)
}

/// Why a mount ended that was served.
struct Ended(Failure);

impl From<MountError> for Ended {
    fn from(e: MountError) -> Ended {
        Ended(Failure::new(mount_code::FAILED, e.to_string()))
    }
}

fn open(home: &Home, target: &Path, mode: OpenMode, store: Settings) -> Outcome<Arc<dyn Device>> {
    let device = target::open_volume_from(home, target, mode, store, mount_code::FAILED)?;
    match superblock::read(&*device) {
        Ok(sb) => match superblock::cut_off(&sb, &*device, target) {
            Some(cut) => Err(Failure::new(
                mount_code::FAILED,
                format!("{}: {cut}", target.display()),
            )),
            None => Ok(device),
        },
        Err(_) => Ok(device),
    }
}

/// A volume in flight cannot be read before its log is applied: as ext4 does, a read-only mount recovers first if the
/// medium lets it. If not, the mount that follows says why.
fn recover_first(home: &Home, target: &Path, store: Settings) {
    let in_flight = |device: &Arc<dyn Device>| {
        superblock::read(&**device).is_ok_and(|sb| superblock::in_flight(&sb))
    };
    let opened =
        target::open_volume_from(home, target, OpenMode::ReadWrite, store, mount_code::FAILED);
    if let Ok(device) = opened
        && in_flight(&device)
        && let Err(e) = Volume::recover(device)
    {
        tracing::warn!("{}: recovery: {e}", target.display());
    }
}

/// What the engine said, and what helps.
fn cannot_mount(target: &Path, e: &ccfs_engine::Error, options: &MountOptions) -> Failure {
    let read_only = options.engine.read_only;
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
        ccfs_engine::Error::Refused(_) if options.noload => "; leave noload out",
        _ if refuses_writes && !read_only => "; the medium may be read-only, try -o ro",
        ccfs_engine::Error::Corrupt(_) => "; `ccfs fsck -y` repairs what can be repaired",
        _ => "",
    };
    Failure::new(
        mount_code::FAILED,
        format!("{}: {e}{hint}", target.display()),
    )
}
