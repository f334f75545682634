//! Mounting: mount(2) as `fuseblk` over a block device, or as `fuse` where that is impossible; without root by way of fusermount3.
//!
//! Only a `fuseblk` mount is told of syncfs(2) and sync(2) (from Linux 6.18 on), and of its end (DESTROY), so that umount(8) returns when the
//! volume is plain ext4. So a block device is mounted as it is, an image file by way of a loop device. On earlier kernels both are mounted
//! over a loop device by which sync calls come to the daemon ([`crate::sentinel`]); where that fails, as on later ones.
//!
//! With `bdev_allow_write_mounted=0` the kernel lets nobody write to a mounted device, and so mounts none that this process writes to. A block
//! device is mounted over a loop device then, too, and claimed by this process.
use crate::helper_process::{self, Outcome, Target};
use crate::home::Home;
use crate::loopdev::{self, LoopDevice};
use crate::mount_config::{FsType, MountConfig, MountError};
use crate::sentinel::{self, Opening, Sentinel};
use crate::transport::channel::Channel;
use crate::usermount;
use ccfs_device::stand_in;
use ccfs_engine::Volume;
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, StatxFlags, memfd_create, open, statx,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Share of the machine's dirty page limit that mapped writes of one mount may take, percent (the kernel gives FUSE 1).
const MAX_RATIO_PERCENT: u32 = 40;
/// Read-ahead, KiB: one READ request of the largest size.
const READ_AHEAD_KIB: u32 = 1024;

/// How often, and after which pause, a device is mounted again that is busy.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How often nobody may claim a busy device until that is taken for the kernel's rule about writers.
const NO_WRITER_TRIES: u32 = 3;

/// A mount in the tree.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The directory, as the mount table names it.
    pub mountpoint: PathBuf,
    /// What the mount table shows.
    pub source: PathBuf,
    /// It is a `fuseblk` mount, else a plain `fuse` one.
    pub fuseblk: bool,
    /// Made by fusermount3, and unmounted by it.
    by_user: bool,
    /// This process is in another mount namespace.
    away: bool,
    /// Where it is, as the kernel numbers it.
    target: Target,
    /// What the loop device is that it is mounted over, if it is one by which sync calls come.
    sentinel: Option<Arc<Sentinel>>,
    /// The volume's block device where the mount does not claim it, until the end.
    claim: Arc<Mutex<Option<OwnedFd>>>,
}

/// What becomes the mount's block device in order that sync calls come here.
struct Watch {
    sentinel: Arc<Sentinel>,
    opening: Opening,
}

/// The block device of a fuseblk mount.
struct Blocks {
    path: PathBuf,
    sentinel: Option<Arc<Sentinel>>,
    claim: Option<OwnedFd>,
}

impl Mounted {
    /// Makes the mount and gives the way to the kernel, in which INIT waits. `block_size`: the volume's, bytes.
    pub fn make(
        dir: &Path,
        config: &MountConfig,
        block_size: u32,
    ) -> Result<(Channel, Mounted), MountError> {
        Mounted::make_from(Home::stay(), dir, config, block_size)
    }

    /// As [`Mounted::make`], in a namespace that this process has left, and lets go of now: nobody may be told of the mount's end before.
    pub(crate) fn make_from(
        home: Home,
        dir: &Path,
        config: &MountConfig,
        block_size: u32,
    ) -> Result<(Channel, Mounted), MountError> {
        let watch = watch(config);
        let made = home.within(|| Mounted::make_here(dir, config, block_size, watch));
        let (channel, mut mounted) =
            made.map_err(|e| MountError::system("cannot go back to the mount namespace", e))??;
        mounted.away = home.is_left();
        Ok((channel, mounted))
    }

    fn make_here(
        dir: &Path,
        config: &MountConfig,
        block_size: u32,
        watch: Option<Watch>,
    ) -> Result<(Channel, Mounted), MountError> {
        clear_dead(dir)?;
        let mountpoint = dir
            .canonicalize()
            .map_err(|e| MountError::system(dir.display().to_string(), e))?;
        let by_user = usermount::is_needed();
        let (channel, blocks) = if by_user {
            (
                Channel::from_fd(usermount::mount(&mountpoint, config)?),
                None,
            )
        } else {
            as_root(&mountpoint, config, block_size, watch)?
        };
        let fuseblk = blocks.is_some();
        let blocks = blocks.unwrap_or_else(|| Blocks {
            path: config.source.clone(),
            sentinel: None,
            claim: None,
        });
        let mut mounted = Mounted {
            mountpoint,
            source: blocks.path,
            fuseblk,
            by_user,
            away: false,
            target: Target::default(),
            sentinel: blocks.sentinel,
            claim: Arc::new(Mutex::new(blocks.claim)),
        };
        match mounted.describe() {
            Ok(target) => {
                tune(&target.device, fuseblk);
                mounted.target = target;
                Ok((channel, mounted))
            }
            Err(e) => {
                // INIT was not answered: nobody is told of the end.
                drop(channel);
                let _ = mounted.take_out(UnmountFlags::DETACH);
                Err(MountError::system("cannot look at the mount", e))
            }
        }
    }

    /// What is on top of the mount point. Asks the kernel only, not the server.
    fn describe(&self) -> io::Result<Target> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = statx(CWD, &self.mountpoint, flags, StatxFlags::MNT_ID)?;
        let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        Ok(Target {
            device: format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor),
            id: if told { stat.stx_mnt_id } else { 0 },
            beside: String::new(),
        })
    }

    /// Whether this mount is what this process sees at the mount point.
    fn is_on_top(&self) -> bool {
        self.describe().is_ok_and(|seen| seen == self.target)
    }

    /// Numbers of the file system's device, `MAJOR:MINOR`.
    pub fn device(&self) -> &str {
        &self.target.device
    }

    /// From now on sync calls come by way of the sentinel. Errors: NotFound, there is none; ResourceBusy, the kernel lets nobody write to a
    /// mounted device.
    pub(crate) fn arm(&self, volume: &Arc<Volume>) -> io::Result<Arc<Sentinel>> {
        let sentinel = self.sentinel.as_ref().ok_or(io::ErrorKind::NotFound)?;
        sentinel.arm(volume, &self.target)?;
        Ok(sentinel.clone())
    }

    /// After the mount's end: returns when its loop device has ended as well.
    pub(crate) fn wait(&self) {
        if let Some(sentinel) = &self.sentinel {
            sentinel.wait();
        }
        drop(self.claim.lock().take());
    }

    /// See [`helper_process::end_if_killed`].
    pub(crate) fn end_if_killed(&self) {
        let beside = self.sentinel.as_ref().map(|sentinel| sentinel.device_of());
        helper_process::end_if_killed(&Target {
            beside: beside.unwrap_or_default(),
            ..self.target.clone()
        });
    }

    /// umount(8). `fuseblk`: returns when the server has served DESTROY. The server itself may call it.
    pub fn unmount(&self) -> Outcome {
        self.leave(UnmountFlags::empty())
    }

    /// umount -l of this mount and, as far as they are found, of all others of the volume: out of the tree now, at an end when the
    /// last user leaves.
    pub fn detach(&self) -> Outcome {
        self.leave(UnmountFlags::DETACH)
    }

    fn leave(&self, how: UnmountFlags) -> Outcome {
        if self.by_user {
            return self.leave_here(how).into();
        }
        match helper_process::unmount(&self.target, how | UnmountFlags::NOFOLLOW) {
            Some(outcome) => outcome,
            None if self.away => {
                Err(io::Error::other("the program cannot be run again for it")).into()
            }
            None => self.leave_here(how).into(),
        }
    }

    /// In this process's namespace, by this process.
    fn leave_here(&self, how: UnmountFlags) -> io::Result<()> {
        match self.is_on_top() {
            true => self.take_out(how),
            false => Err(Errno::NOENT.into()),
        }
    }

    /// What is on top at the mount point.
    fn take_out(&self, how: UnmountFlags) -> io::Result<()> {
        match self.by_user {
            true => usermount::unmount(&self.mountpoint, how.contains(UnmountFlags::DETACH)),
            false => Ok(unmount(&self.mountpoint, how | UnmountFlags::NOFOLLOW)?),
        }
    }

    /// Takes away a mount that is not served, or no longer: ends its connection first, so that nobody is asked. (By fusermount3 it is a plain
    /// mount, whose server is not told of the end.) One that is covered by another mount stays, dead.
    pub(crate) fn discard(&self) {
        let how = UnmountFlags::DETACH | UnmountFlags::FORCE;
        let gone = match self.away {
            true => self.leave(how).result,
            false => self.leave_here(how),
        };
        if let Err(e) = gone {
            tracing::debug!("{} stays, dead: {e}", self.mountpoint.display());
        }
    }
}

/// The private mount that a sentinel needs, where one is needed and can be had.
fn watch(config: &MountConfig) -> Option<Watch> {
    let is_wanted = (config.old_kernel || sentinel::is_needed())
        && config.fstype != FsType::Fuse
        && !config.read_only
        && !usermount::is_needed()
        && helper_process::is_possible();
    if !is_wanted {
        return None;
    }
    let shown = match config.store_bytes {
        Some(_) => Path::new("/").join(stand_in(&config.source.to_string_lossy())),
        None => config.source.clone(),
    };
    match Sentinel::start(&shown) {
        Ok((sentinel, opening)) => Some(Watch { sentinel, opening }),
        Err(e) => {
            tracing::info!("sync calls do not reach the daemon: {e}");
            None
        }
    }
}

/// Mounts with mount(2). Gives the block device of a fuseblk mount.
fn as_root(
    mountpoint: &Path,
    config: &MountConfig,
    block_size: u32,
    watch: Option<Watch>,
) -> Result<(Channel, Option<Blocks>), MountError> {
    let channel = Channel::open().map_err(|e| MountError::system("cannot open /dev/fuse", e))?;
    if let Some(watch) = watch {
        match mount_blocks(&channel, mountpoint, config, block_size, Some(&watch)) {
            Ok(blocks) => return Ok((channel, Some(blocks))),
            Err(e) => tracing::info!("sync calls do not reach the daemon: {e}"),
        }
    }
    let mount = || mount_blocks(&channel, mountpoint, config, block_size, None);
    let blocks = match config.fstype {
        FsType::Fuse => None,
        FsType::Fuseblk => Some(mount()?),
        FsType::Auto => match mount() {
            Ok(blocks) => Some(blocks),
            // Somebody else claims it by now: the kernel's own mount, say. Serving it all the same would be a second user.
            Err(e) if e.is_busy() && is_block(config).unwrap_or(true) => return Err(e),
            Err(e) => {
                tracing::warn!("{e}");
                None
            }
        },
    };
    if blocks.is_none() {
        mount_plain(&channel, mountpoint, config)?;
    }
    Ok((channel, blocks))
}

/// Takes away the mounts of killed daemons at `dir`, and with them their loop devices. Before the volume is opened: a loop device
/// in use keeps it busy.
pub fn clear_dead(dir: &Path) -> Result<(), MountError> {
    // With io_uring the kernel notices a moment after the death; what was on its way to the daemon then gets INTR, later requests CANCELED.
    while let Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) =
        retry_on_intr(|| rustix::fs::stat(dir))
    {
        let cleared = match usermount::is_needed() {
            true => usermount::unmount(dir, true),
            false => unmount(dir, UnmountFlags::DETACH).map_err(io::Error::from),
        };
        cleared.map_err(|e| {
            MountError::system(
                format!("cannot clear the dead mount on {}", dir.display()),
                e,
            )
        })?;
    }
    Ok(())
}

/// Mounts as fuseblk; gives the block device.
fn mount_blocks(
    channel: &Channel,
    dir: &Path,
    config: &MountConfig,
    block_size: u32,
    watch: Option<&Watch>,
) -> Result<Blocks, MountError> {
    let volume = &config.source;
    let fail = |e| {
        MountError::system(
            format!("cannot mount {} as a block device", volume.display()),
            e,
        )
    };
    let block_size = match watch {
        Some(_) => sentinel::page_bytes(),
        None => block_size,
    };
    let options = format!("{},blksize={block_size}", options(channel, config));
    let over = |device: &Path| mount_patiently(device, dir, config, &options);
    let is_block = is_block(config).map_err(fail)?;
    // Otherwise it is the mount that keeps others away.
    let claim = || is_block.then(|| claimed(volume)).transpose();
    let attach = || match config.store_bytes {
        Some(bytes) => attach_stand_in(volume, bytes, config.read_only),
        None => loopdev::attach(volume, config.read_only),
    };
    let (claim, attached) = match watch {
        Some(watch) => (
            claim().map_err(fail)?,
            attach_watched(watch, config).map_err(fail)?,
        ),
        None if is_block => match over(volume) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && takes_no_writer(volume) => {
                (claim().map_err(fail)?, attach().map_err(fail)?)
            }
            mounted => {
                mounted.map_err(fail)?;
                return Ok(Blocks {
                    path: volume.clone(),
                    sentinel: None,
                    claim: None,
                });
            }
        },
        None => (None, attach().map_err(fail)?),
    };
    over(&attached.path).map_err(fail)?;
    let sentinel = watch.map(|watch| watch.sentinel.clone());
    match &sentinel {
        Some(sentinel) => sentinel.take_device(&attached.path),
        None if claim.is_some() => tracing::warn!(
            "this kernel lets nobody write to a mounted device (bdev_allow_write_mounted=0), so {} is mounted over {}: \
             nothing keeps other programs from writing to {0}",
            volume.display(),
            attached.path.display()
        ),
        None => {}
    }
    Ok(Blocks {
        path: attached.path,
        sentinel,
        claim,
    })
}

/// Who looks whether a device is in use claims it for an instant, and it is busy.
fn mount_patiently(
    device: &Path,
    dir: &Path,
    config: &MountConfig,
    options: &str,
) -> io::Result<()> {
    let mut refused = 0;
    for _ in 0..BUSY_TRIES {
        match system_mount(device, dir, "fuseblk.ccfs", config, options) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                refused = match takes_no_writer(device) {
                    true => refused + 1,
                    false => 0,
                };
                if refused == NO_WRITER_TRIES {
                    return Err(e);
                }
                std::thread::sleep(BUSY_PAUSE);
            }
            mounted => return mounted,
        }
    }
    Err(Errno::BUSY.into())
}

/// Of a device that is busy for a mount: whether the reason is that somebody has it open for writing, and not that somebody claims it.
fn takes_no_writer(device: &Path) -> bool {
    claimed(device).is_ok()
}

/// A block device that no other may claim as long as this is open.
fn claimed(device: &Path) -> io::Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(open(device, how, Mode::empty())?)
}

/// The sentinel's loop device, of the volume's size.
fn attach_watched(watch: &Watch, config: &MountConfig) -> io::Result<LoopDevice> {
    let volume = &config.source;
    let size = match config.store_bytes {
        Some(bytes) => bytes,
        None => File::open(volume)?.seek(SeekFrom::End(0))?,
    };
    let file = watch.opening.open(&watch.sentinel, size)?;
    loopdev::attach_file(&file, volume, 0, sentinel::page_bytes())
}

/// A loop device over nothing: the mount needs a block device, and reads none of it.
fn attach_stand_in(store: &Path, bytes: u64, read_only: bool) -> io::Result<LoopDevice> {
    let name = stand_in(&store.to_string_lossy());
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.set_len(bytes)?;
    loopdev::attach_file(&file, store, loopdev::flags(read_only), 0)
}

fn is_block(config: &MountConfig) -> io::Result<bool> {
    match config.store_bytes {
        Some(_) => Ok(false),
        None => Ok(config.source.metadata()?.file_type().is_block_device()),
    }
}

fn mount_plain(channel: &Channel, dir: &Path, config: &MountConfig) -> Result<(), MountError> {
    system_mount(
        &config.source,
        dir,
        "fuse.ccfs",
        config,
        &options(channel, config),
    )
    .map_err(|e| MountError::system(format!("cannot mount on {}", dir.display()), e))
}

fn options(channel: &Channel, config: &MountConfig) -> String {
    let other = if config.allow_other {
        ",allow_other"
    } else {
        ""
    };
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let rootmode = FileType::Directory.as_raw_mode();
    let fd = channel.fd().as_raw_fd();
    format!("fd={fd},rootmode={rootmode:o},user_id={uid},group_id={gid},default_permissions{other}")
}

fn system_mount(
    source: &Path,
    dir: &Path,
    fstype: &str,
    config: &MountConfig,
    options: &str,
) -> io::Result<()> {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, config.read_only);
    flags.set(MountFlags::NOATIME, config.noatime);
    flags.set(MountFlags::NODIRATIME, config.nodiratime);
    flags.set(MountFlags::SYNCHRONOUS, config.sync);
    flags.set(MountFlags::DIRSYNC, config.dirsync);
    flags.set(MountFlags::NOSYMFOLLOW, config.nosymfollow);
    flags.set(MountFlags::NOSUID, config.nosuid);
    flags.set(MountFlags::NODEV, config.nodev);
    flags.set(MountFlags::NOEXEC, config.noexec);
    let source = CString::new(source.as_os_str().as_bytes())?;
    let options = CString::new(options)?;
    Ok(mount(&source, dir, fstype, flags, options.as_c_str())?)
}

/// Mapped writes and read-ahead, which FUSE's defaults keep small. Not being allowed to is no failure.
fn tune(device: &str, fuseblk: bool) {
    let suffix = if fuseblk { "-fuseblk" } else { "" };
    let dir = PathBuf::from(format!("/sys/class/bdi/{device}{suffix}"));
    for (name, value) in [
        ("max_ratio", MAX_RATIO_PERCENT),
        ("read_ahead_kb", READ_AHEAD_KIB),
    ] {
        if let Err(e) = std::fs::write(dir.join(name), value.to_string()) {
            tracing::debug!("cannot set {name} in {}: {e}", dir.display());
        }
    }
}
