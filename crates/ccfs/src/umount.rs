//! `ccfs umount`: returns when the volume is plain ext4 and nobody holds it.
use crate::cli::UmountArgs;
use crate::codes::mount_code;
use crate::mounts::{self, Daemon, Mount};
use crate::{dirtier, elsewhere, killed, leave, superblock, tags, target};
use ccfs_command::{Context, Failure, Outcome, output::print_json, warn};
use ccfs_device::{FlashDevice, OpenError, OpenMode};
use ccfs_fuse::helper_process::Task;
use ccfs_fuse::usermount;
use ccfs_remote::{Settings, is_store};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often to look whether the daemon has let go.
const POLL: Duration = Duration::from_millis(5);
/// A large backlog on a slow disk takes its time; then say so, and go on waiting.
const PATIENCE: Duration = Duration::from_secs(10);
/// A statfs(2) holds the mount while the daemon answers it: whoever looks as df does, or as long as that, does not use it.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
/// Whoever holds the loop device for longer after the daemon has closed it does not just look at it.
const GLANCE: Duration = Duration::from_secs(1);

pub fn run(args: &UmountArgs) -> Outcome<u8> {
    match args.for_daemon {
        Some(Task::Unmount(flags)) => leave::carry_out(flags, &args.dir),
        Some(Task::AbortIfKilled) => killed::wait_and_abort(&args.dir).map(|()| 0),
        Some(Task::Dirty) => dirtier::serve().map(|()| 0),
        None => {
            let limit = args.timeout.map(Duration::from_secs);
            let begun = Instant::now();
            let (dir, volume) = unmount(&args.dir, limit)?;
            if args.json {
                print_json(&json!({
                    "schema": 1,
                    "directory": dir.to_string_lossy(),
                    "target": volume.to_string_lossy(),
                    "seconds": begun.elapsed().as_secs_f64(),
                }))?;
            }
            Ok(0)
        }
    }
}

/// Gives the directory, and the image file or device that is plain ext4 again.
fn unmount(dir: &Path, limit: Option<Duration>) -> Outcome<(PathBuf, PathBuf)> {
    let dir = resolve(&tags::only_directory(dir, mount_code::FAILED)?)?;
    let Some(mount) =
        mounts::at(&dir).or_fail(mount_code::SYSTEM, "cannot read the mount table")?
    else {
        return Err(Failure::new(
            mount_code::FAILED,
            format!("{} is not a mount point", dir.display()),
        ));
    };
    if !mount.is_ccfs() {
        return Err(Failure::new(
            mount_code::FAILED,
            format!(
                "{} is a mount of type {}, not of ccfs; use umount(8)",
                dir.display(),
                mount.fstype
            ),
        ));
    }
    // A loop device that somebody else attached is the volume itself, and stays.
    let volume = mounts::backing_file(&mount.source)
        .filter(|_| mounts::is_autoclear(&mount.source))
        .unwrap_or_else(|| mount.source.clone());
    match mount.daemon() {
        Daemon::Serves => {}
        Daemon::Stopped(pid) => return Err(stopped(mount_code::FAILED, &mount, pid)),
        Daemon::Gone => {
            clear_dead(&mount)?;
            return Err(Failure::new(
                mount_code::FAILED,
                format!(
                    "the daemon of {} was killed; the mount is cleared. Recover the volume: ccfs fsck -p {}, or mount it again",
                    dir.display(),
                    volume.display()
                ),
            ));
        }
    }
    let others = others_of(&mount);
    detach(&dir, UnmountFlags::empty())?;
    let left = others_of(&mount);
    // One that was there before, since another volume can have got the same device by now.
    if let Some(other) = left.iter().find(|m| others.iter().any(|o| o.id == m.id)) {
        return Err(Failure::new(
            mount_code::FAILED,
            format!(
                "{} is unmounted, but {} is still mounted on {2}; unmount that, too: umount {2}",
                dir.display(),
                volume.display(),
                other.dir.display()
            ),
        ));
    }
    wait_until_released(&mount, &volume, limit)?;
    check_at_rest(&volume)?;
    Ok((dir, volume))
}

/// Nothing can be done with a mount whose daemon, this process, is stopped.
pub fn stopped(code: u8, mount: &Mount, pid: u32) -> Failure {
    Failure::new(
        code,
        format!(
            "the daemon of {} is stopped; let it go on first: kill -CONT {pid}",
            mount.dir.display()
        ),
    )
}

/// The directory with links resolved; a dead mount cannot be looked at, then only its parent is resolved.
pub fn resolve(dir: &Path) -> Outcome<PathBuf> {
    let missing = |e: std::io::Error| {
        Failure::new(
            mount_code::FAILED,
            format!("cannot use {}: {e}", dir.display()),
        )
    };
    match dir.canonicalize() {
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
            ) =>
        {
            let parent = dir
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            let name = dir.file_name().ok_or_else(|| missing(e))?;
            Ok(parent.canonicalize().map_err(missing)?.join(name))
        }
        other => other.map_err(missing),
    }
}

/// For umount(8): waits for nobody but those who only look. `or_read_only`: what is in use is made read-only instead.
pub fn at_once(dir: &Path, how: UnmountFlags, or_read_only: bool) -> Outcome<()> {
    let done = detach(dir, how);
    let remount = || rustix::mount::mount_remount(dir, MountFlags::RDONLY, "");
    match done {
        Err(_) if or_read_only && remount().is_ok() => Ok(()),
        done => done,
    }
}

/// Tries again for a moment where it is in use.
fn try_detach(dir: &Path, how: UnmountFlags) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let unmounted = match usermount::is_needed() {
            true => usermount::unmount(dir, how.contains(UnmountFlags::DETACH)),
            false => rustix::mount::unmount(dir, how).map_err(io::Error::from),
        };
        match unmounted {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && start.elapsed() < BUSY_PATIENCE => {
                sleep(POLL)
            }
            done => return done,
        }
    }
}

fn detach(dir: &Path, how: UnmountFlags) -> Outcome<()> {
    let Err(e) = try_detach(dir, how) else {
        return Ok(());
    };
    match e.raw_os_error() {
        Some(libc::EBUSY) => {
            let users = mounts::users_below(dir);
            let who = if users.is_empty() {
                "a mount below it, or a process in another namespace".to_string()
            } else {
                mounts::show_processes(&users)
            };
            Err(Failure::new(
                mount_code::FAILED,
                format!(
                    "{} is in use by {who}; end that and try again",
                    dir.display()
                ),
            ))
        }
        _ if usermount::is_needed() => Err(Failure::new(
            mount_code::USAGE,
            format!(
                "cannot unmount {}: {e}; you can unmount what you mounted yourself, root everything",
                dir.display()
            ),
        )),
        _ => Err(Failure::new(
            mount_code::FAILED,
            format!("cannot unmount {}: {e}", dir.display()),
        )),
    }
}

/// Bind mounts of it.
fn others_of(mount: &Mount) -> Vec<Mount> {
    let mut all = mounts::all().unwrap_or_default();
    all.retain(|m| m.device == mount.device && m.id != mount.id);
    all
}

/// Takes a mount whose daemon is gone out of the tree, and its loop device with it.
pub fn clear_dead(mount: &Mount) -> Outcome<()> {
    let cleared = match usermount::is_needed() {
        true => usermount::unmount(&mount.dir, true),
        false => {
            rustix::mount::unmount(&mount.dir, UnmountFlags::DETACH).map_err(std::io::Error::from)
        }
    };
    cleared.or_fail(
        mount_code::FAILED,
        format_args!("cannot clear the dead mount on {}", mount.dir.display()),
    )
}

/// Waits until the daemon has closed the volume and its loop device is detached. Somebody who looks at the loop device
/// can delay that; it does not matter for the volume, so patience with it ends. Errors: the limit is over.
fn wait_until_released(mount: &Mount, volume: &Path, limit: Option<Duration>) -> Outcome<()> {
    let start = Instant::now();
    let mut closed_at = None;
    let mut told = false;
    loop {
        // The daemon's lock. A volume that cannot be opened for another reason is nothing to wait for.
        let closed = !target::is_busy(volume);
        // Somebody was quick to mount it again: that is another daemon's lock.
        if !closed && mounts::of_target(volume).is_ok_and(|found| !found.is_empty()) {
            return Ok(());
        }
        let attached = mount.source != volume
            && mounts::backing_file(&mount.source).is_some_and(|file| file == volume);
        let late = start.elapsed() > PATIENCE;
        if closed && !attached {
            return Ok(());
        }
        if closed {
            let since = *closed_at.get_or_insert_with(Instant::now);
            let holders = match since.elapsed() > GLANCE {
                true => mounts::holders_of(&mount.source),
                false => Vec::new(),
            };
            if late || !holders.is_empty() {
                let who = match holders.is_empty() {
                    true => "another program".to_string(),
                    false => mounts::show_processes(&holders),
                };
                warn!(
                    "ccfs umount: {} is still held by {who}",
                    mount.source.display()
                );
                return Ok(());
            }
        }
        let is_alive = !closed && start.elapsed() > GLANCE && mount.is_alive_somewhere();
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Err(not_released(mount, volume, is_alive));
        }
        if (late || is_alive) && !told {
            told = true;
            match is_alive {
                true => warn!(
                    "ccfs umount: {} is {}; waiting for its end",
                    volume.display(),
                    still_mounted(&elsewhere::of_mount(mount))
                ),
                false => warn!("ccfs umount: still writing to {}", volume.display()),
            }
        }
        sleep(POLL);
    }
}

/// By whom, for a message.
fn still_mounted(spaces: &[elsewhere::Space]) -> String {
    let who: Vec<String> = spaces.iter().map(|s| s.show()).collect();
    match who.is_empty() {
        true => "still in use (below an overlay, by an open file of a detached mount, or where this user may not look)".into(),
        false => format!("still mounted in another mount namespace ({})", who.join("; ")),
    }
}

/// The limit is over.
fn not_released(mount: &Mount, volume: &Path, is_alive: bool) -> Failure {
    let (dir, shown) = (mount.dir.display(), volume.display());
    let spaces = elsewhere::of_mount(mount);
    let text = match is_alive || !spaces.is_empty() {
        true => {
            let ways: Vec<String> = spaces.iter().map(|s| s.way_out()).collect();
            let way = match ways.is_empty() {
                true => "end who uses it".to_string(),
                false => format!("unmount it there: {}", ways.join("; ")),
            };
            format!(
                "{dir} is unmounted, but {shown} is {}; {way}",
                still_mounted(&spaces)
            )
        }
        false => format!(
            "{dir} is unmounted, but its daemon still writes to {shown}, and goes on; `ccfs fsck -n {shown}` says when it is at rest"
        ),
    };
    Failure::new(mount_code::FAILED, text)
}

/// Looks at the volume as the next one would who wants to use it.
fn check_at_rest(volume: &Path) -> Outcome<()> {
    let shown = volume.display();
    let opened = ccfs_remote::open(volume, OpenMode::ReadOnly, Settings::default());
    let failed = |text| Err(Failure::new(mount_code::FAILED, text));
    match &opened {
        Err(OpenError::Busy { holder, .. }) if is_store(volume.as_os_str()) => {
            return failed(format!(
                "{shown} is unmounted here, but in use; what had not been synced may be lost: {holder}"
            ));
        }
        // It is mounted again already.
        Err(OpenError::Busy { .. }) => return Ok(()),
        _ => {}
    }
    let looked = opened.map_err(|e| e.to_string()).and_then(|device| {
        let device = FlashDevice::or_plain(device).map_err(|e| e.to_string())?;
        let sb = superblock::read(&*device).map_err(|e| match e {
            ccfs_ext4::Error::Io(e) => e.to_string(),
            _ => "it does not begin with a file system any more".to_string(),
        })?;
        let cut = superblock::cut_off(&sb, &*device, volume);
        Ok((cut, superblock::in_flight(&sb)))
    });
    match looked {
        Ok((None, false)) => Ok(()),
        Ok((Some(cut), _)) => failed(format!("{shown} is unmounted, but {cut}")),
        Ok((None, true)) => failed(format!(
            "{shown} could not be brought to rest, it may have had a write error; run: ccfs fsck -p {shown}"
        )),
        Err(e) => failed(format!(
            "{shown} is unmounted, but whether it is at rest cannot be told: {e}; when it is there again, run: ccfs fsck -p {shown}"
        )),
    }
}
