//! The sentinel: how sync(2), syncfs(2) and a remount to read-only reach a daemon whose kernel does not tell it of them (before Linux 6.18).
//!
//! Every kernel ends such a call with the dirty pages of the mount's block device: it writes them, and waits. So the volume is mounted over
//! a loop device whose backing file this process serves itself, on a FUSE mount that is in no mount namespace (the *private mount*),
//! and one page of that device is always dirty. The call then comes here as a WRITE, and returns when that is answered:
//!
//! 1. another page is made dirty;
//! 2. everything is committed and flushed;
//! 3. the WRITE is answered, with EIO if 1 or 2 failed.
//!
//! Whoever calls between 1 and 3 waits for the write-back that is under way, whose commit began after his call, or finds the other page. The
//! order is what makes it so. What a WRITE holds is thrown away, and what is read is zeros.
//!
//! The device's blocks are pages, so each page comes as one WRITE. In parts it would come as several, and every second of them would have the
//! page made dirty whose write-back is under way. Who syncs then locks that page and waits for the other parts; the next of them
//! has the page made dirty again, which waits for the lock.
//!
//! Nobody waits for himself. The private mount has one thread, which needs the engine and nothing else. Pages are made dirty by another
//! process (`ccfs-dirtier`, [`crate::helper_process`]): a write to the device can wait, uninterruptibly, for the private mount, and a thread
//! of this process that waits so would keep /dev/fuse open after a kill, and with it the connection that it waits for. Only that process
//! and the mount have the device open. When this process dies the private mount's connection ends, and with it every wait.
//!
//! The private mount shows the volume's own path and size, so the loop device's backing file is the volume for everybody who looks by name.
use crate::abi::{self, op};
use crate::helper_process::{self, Dirtier, Target};
use crate::private;
use crate::server::init::MAX_WRITE;
use crate::transport::channel::{Channel, REQUEST_MAX, Received};
use crate::wire::{Errno, Request};
use ccfs_engine::{Context, DEFAULT_STREAM, Volume};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open, openat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use zerocopy::IntoBytes;

/// First Linux that tells of syncfs. Whether it does is seen by what is agreed on; this saves what is not needed then.
const TOLD_SINCE: (u32, u32) = (6, 18);
/// How long the end of the loop device is waited for after the mount's: somebody may be looking at it.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// Share of the machine's dirty pages that a device may have before the kernel writes them back at once, percent. Kernels without a least share
/// give none to a device that has written little: its page would be written every 5 s instead of every 30.
const MIN_RATIO_PERCENT: u32 = 1;
/// Attributes and names never change.
const FOREVER: u64 = u32::MAX as u64;

/// What is served beside the mount.
#[derive(Debug)]
pub struct Sentinel {
    /// Names on the way from the private mount's root to its one file; an inode's number is that of its name and 2, the root's is 1.
    names: Vec<Vec<u8>>,
    /// Of the file, bytes.
    size: AtomicU64,
    /// The private mount's device, `MAJOR:MINOR`.
    number: Mutex<String>,
    /// Locked while a WRITE is served.
    armed: Mutex<Option<Armed>>,
    /// Calls may have come since that nobody was told of.
    broken: AtomicBool,
    /// The loop device for writing, until the other process has it; or why it cannot be had.
    device: Mutex<Option<io::Result<OwnedFd>>>,
    ended: Mutex<bool>,
    end: Condvar,
}

struct Armed {
    volume: Arc<Volume>,
    dirtier: Dirtier,
    /// `MAJOR:MINOR` of the loop device.
    device: String,
    /// Where the two pages are.
    pages: [u64; 2],
}

impl std::fmt::Debug for Armed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.pages)
    }
}

/// Block size of the loop device and of its mount, so that a page comes as one WRITE: see the head of this file.
pub(crate) fn page_bytes() -> u32 {
    rustix::param::page_size() as u32
}

fn set_min_ratio(device: &str, percent: u32) {
    let path = format!("/sys/class/bdi/{device}/min_ratio");
    if let Err(e) = std::fs::write(&path, percent.to_string()) {
        tracing::debug!("cannot set {path}: {e}");
    }
}

/// Whether the running kernel is one that does not tell of syncfs.
pub fn is_needed() -> bool {
    is_older(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
}

fn is_older(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse::<u32>().ok());
    match (next(), next()) {
        (Some(major), Some(minor)) => (major, minor) < TOLD_SINCE,
        _ => false,
    }
}

impl Sentinel {
    /// Makes the private mount for the volume at the absolute path `shown`, and serves it. Gives its file's [`Opening`].
    pub(crate) fn start(shown: &Path) -> io::Result<(Arc<Sentinel>, Opening)> {
        let sentinel = Arc::new(Sentinel::new(shown));
        if !shown.is_absolute() || sentinel.names.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (channel, mount) = private::mount("ccfs-sync")?;
        channel.handshake(0, MAX_WRITE as usize)?;
        let serving = sentinel.clone();
        std::thread::Builder::new()
            .name("ccfs-sync".into())
            .spawn(move || {
                serving.serve(&channel);
                // The connection ends before anybody is told so.
                drop(channel);
                *serving.ended.lock() = true;
                serving.end.notify_all();
            })?;
        Ok((sentinel, Opening { mount }))
    }

    fn new(shown: &Path) -> Sentinel {
        let parts = shown.iter().skip(1);
        Sentinel {
            names: parts.map(|part| part.as_bytes().to_vec()).collect(),
            size: AtomicU64::new(0),
            number: Mutex::default(),
            armed: Mutex::new(None),
            broken: AtomicBool::new(false),
            device: Mutex::new(None),
            ended: Mutex::new(false),
            end: Condvar::new(),
        }
    }

    /// From now on sync calls make `volume` durable. Errors: ResourceBusy, the kernel lets nobody write to a mounted device.
    pub(crate) fn arm(&self, volume: &Arc<Volume>, target: &Target) -> io::Result<()> {
        let device = self.device.lock().take();
        let device = device.ok_or(io::ErrorKind::NotFound)??;
        let page = u64::from(page_bytes());
        let middle = self.size.load(Relaxed) / 2 / page * page;
        if middle < page {
            return Err(io::Error::other("the volume is too small"));
        }
        let dirtier = helper_process::start_dirtier(target, device)?;
        set_min_ratio(&target.device, MIN_RATIO_PERCENT);
        self.arm_with(Armed {
            volume: volume.clone(),
            dirtier,
            device: target.device.clone(),
            pages: [0, middle],
        })
    }

    /// The kernel can write the first page before this process has heard that it is dirty (a sync(2) of anybody's). That WRITE waits for the lock,
    /// and has the other page made dirty: answered at once it would leave none, and no call would come any more.
    fn arm_with(&self, mut arms: Armed) -> io::Result<()> {
        let mut armed = self.armed.lock();
        arms.dirtier.dirty(arms.pages[0])?;
        *armed = Some(arms);
        Ok(())
    }

    /// The private mount's device, `MAJOR:MINOR`; empty before its file is open.
    pub(crate) fn device_of(&self) -> String {
        self.number.lock().clone()
    }

    /// Opens the mounted loop device for writing, which nothing else in this process may have open.
    pub(crate) fn take_device(&self, path: &Path) {
        let how = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open(path, how, Mode::empty()).map_err(io::Error::from);
        *self.device.lock() = Some(device);
    }

    /// Whether sync calls may have succeeded in vain.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// Before the volume's end: what is written from now on is answered at once. A sync call that is under way is carried through.
    pub fn rest(&self) {
        drop(self.device.lock().take());
        if let Some(armed) = self.armed.lock().take() {
            // The next one to have the device finds it as it was.
            set_min_ratio(&armed.device, 0);
        }
    }

    /// After the mount's end: returns when the loop device has let go, or somebody holds it for long.
    pub(crate) fn wait(&self) {
        self.rest();
        let mut ended = self.ended.lock();
        if !*ended && self.end.wait_for(&mut ended, LAST_LOOK).timed_out() {
            tracing::debug!("the loop device is still in use");
        }
    }

    /// A WRITE of the page at `offset` has come: a sync call, or the kernel's own write-back, which looks the same.
    fn make_durable(&self, offset: u64) -> Result<(), Errno> {
        let mut armed = self.armed.lock();
        let Some(armed) = armed.as_mut() else {
            return Ok(());
        };
        let [first, second] = armed.pages;
        let other = if offset == first { second } else { first };
        let dirtied = armed.dirtier.dirty(other);
        let durable = armed.volume.syncfs(&Context::root(DEFAULT_STREAM));
        // One that was only stopped makes the page dirty when it goes on, and the next call comes here again.
        match (&dirtied, self.broken.swap(dirtied.is_err(), Relaxed)) {
            (Err(e), false) => tracing::error!(
                "sync(2) and syncfs(2) make nothing durable ({e}) unless the process ccfs-dirtier goes on, or the volume is mounted again; \
                 fsync does, and `ccfs stream sync --all`"
            ),
            (Ok(()), true) => tracing::warn!("sync(2) and syncfs(2) make the volume durable again"),
            _ => {}
        }
        if let Err(e) = &durable {
            tracing::debug!("sync call: {e}");
        }
        match (dirtied, durable) {
            (Ok(()), Ok(())) => Ok(()),
            _ => Err(Errno(libc::EIO)),
        }
    }

    /// No call will come any more. One that is under way fails.
    fn lose(&self, why: String) {
        self.broken.store(true, Relaxed);
        if self.armed.lock().take().is_some() {
            tracing::error!(
                "sync(2) and syncfs(2) make nothing durable until the volume is mounted again ({why}); fsync does, and `ccfs stream sync --all`"
            );
        }
    }

    fn serve(&self, channel: &Channel) {
        let mut buf = vec![0; REQUEST_MAX];
        loop {
            let len = match channel.receive(&mut buf) {
                Ok(Received::Request(len)) => len,
                // The file was not released before: somebody has ended the connection.
                Ok(Received::Closed) => return self.lose("its connection was aborted".into()),
                Err(e) => return self.lose(e.to_string()),
            };
            let Some(request) = Request::parse(&buf[..len]) else {
                continue;
            };
            let opcode = request.header.opcode;
            let silent = [op::FORGET, op::BATCH_FORGET, op::INTERRUPT];
            if !silent.contains(&opcode) {
                let (errno, body) = match self.answer(&request) {
                    Ok(body) => (0, body),
                    Err(Errno(errno)) => (errno, Vec::new()),
                };
                if let Err(e) = channel.answer(request.header.unique, errno, &body) {
                    tracing::debug!("reply to the private mount: {e}");
                }
            }
            // Of the file, which only the loop device has open.
            if opcode == op::RELEASE {
                return;
            }
        }
    }

    fn answer(&self, request: &Request<'_>) -> Result<Vec<u8>, Errno> {
        let node = request.header.nodeid;
        match request.header.opcode {
            op::LOOKUP => {
                let name = crate::wire::one_name(request.bare())?;
                let wanted = self.names.get(node.wrapping_sub(1) as usize);
                if wanted.is_none_or(|wanted| wanted != name) {
                    return Err(Errno(libc::ENOENT));
                }
                let entry = abi::EntryOut {
                    nodeid: node + 1,
                    entry_valid: FOREVER,
                    attr_valid: FOREVER,
                    attr: self.attr(node + 1),
                    ..Default::default()
                };
                Ok(entry.as_bytes().to_vec())
            }
            op::GETATTR => {
                let out = abi::AttrOut {
                    attr_valid: FOREVER,
                    attr: self.attr(node),
                    ..Default::default()
                };
                Ok(out.as_bytes().to_vec())
            }
            op::OPEN => {
                // Past the page cache: nothing is kept twice, and a WRITE is one request.
                let out = abi::OpenOut {
                    open_flags: abi::FOPEN_DIRECT_IO,
                    ..Default::default()
                };
                Ok(out.as_bytes().to_vec())
            }
            op::READ => {
                let arg: abi::ReadIn = request.arg()?;
                let left = self.size.load(Relaxed).saturating_sub(arg.offset);
                Ok(vec![0; left.min(arg.size.min(MAX_WRITE).into()) as usize])
            }
            op::WRITE => {
                let (arg, _) = request.arg_and_rest::<abi::WriteIn>()?;
                self.make_durable(arg.offset)?;
                let out = abi::WriteOut {
                    size: arg.size,
                    padding: 0,
                };
                Ok(out.as_bytes().to_vec())
            }
            op::STATFS => Ok(abi::Kstatfs::default().as_bytes().to_vec()),
            op::FLUSH | op::FSYNC | op::RELEASE => Ok(Vec::new()),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn attr(&self, node: u64) -> abi::Attr {
        let is_file = node == self.names.len() as u64 + 1;
        let (kind, size) = match is_file {
            true => (FileType::RegularFile, self.size.load(Relaxed)),
            false => (FileType::Directory, 0),
        };
        abi::Attr {
            ino: node,
            size,
            mode: kind.as_raw_mode() | if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            blksize: 4096,
            ..Default::default()
        }
    }
}

/// The private mount, until its file is open.
#[derive(Debug)]
pub(crate) struct Opening {
    mount: OwnedFd,
}

impl Opening {
    /// The file, of `size` bytes.
    pub(crate) fn open(&self, sentinel: &Sentinel, size: u64) -> io::Result<File> {
        sentinel.size.store(size, Relaxed);
        let names = &sentinel.names;
        let path: Vec<u8> = names.join(&b'/');
        let how = OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(&self.mount, path.as_slice(), how, Mode::empty())?;
        let device = fstat(&file)?.st_dev;
        *sentinel.number.lock() = format!("{}:{}", major(device), minor(device));
        Ok(file.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccfs_disks::MemoryDevice;
    use ccfs_engine::Options;
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsRawFd;
    use std::process::Command;

    #[test]
    fn kernels_that_tell_of_syncfs_need_none() {
        for (release, older) in [
            ("5.15.0-91-generic", true),
            ("6.1.0-41-amd64", true),
            ("6.17.9", true),
            ("6.18.0", false),
            ("6.18-rc1", false),
            ("7.3.1", false),
            ("", false),
        ] {
            assert_eq!(is_older(release), older, "{release}");
        }
    }

    fn volume() -> Arc<Volume> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-qF", "-t", "ext4"]).arg(file.path());
        assert!(mke2fs.arg("16M").status().unwrap().success());
        let device = MemoryDevice::from_file(file.path()).unwrap();
        Volume::mount(Arc::new(device), Options::default()).unwrap()
    }

    /// The kernel writes the first page at once, and nobody has heard yet that it is dirty.
    #[test]
    fn a_write_back_before_it_is_armed_leaves_a_dirty_page() {
        const PAGES: [u64; 2] = [0, 8 << 20];
        let sentinel = Sentinel::new(Path::new("/volume.img"));
        let (dirtier, mut asked) = Dirtier::pretended().unwrap();
        let volume = volume();
        let arms = Armed {
            volume: volume.clone(),
            dirtier,
            device: String::new(),
            pages: PAGES,
        };
        let mut dirtied = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| sentinel.arm_with(arms).unwrap());
            let mut offset = [0; 8];
            asked.read_exact(&mut offset).unwrap();
            dirtied.push(u64::from_ne_bytes(offset));
            let write_back = scope.spawn(|| sentinel.make_durable(PAGES[0]).unwrap());
            // Time enough for one that does not wait.
            std::thread::sleep(Duration::from_millis(100));
            asked.write_all(&[helper_process::DIRTIED]).unwrap();
            asked.set_read_timeout(Some(LAST_LOOK)).unwrap();
            if asked.read_exact(&mut offset).is_ok() {
                dirtied.push(u64::from_ne_bytes(offset));
                asked.write_all(&[helper_process::DIRTIED]).unwrap();
            }
            write_back.join().unwrap();
        });
        assert_eq!(dirtied, PAGES);
        sentinel.rest();
        volume.unmount().unwrap();
    }

    /// It is served by this process alone, shows the path that it was given, and ends with its file.
    #[test]
    fn the_private_mount_shows_a_path_and_ends_with_its_file() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            println!("skipped: it needs root and /dev/fuse");
            return;
        }
        let before = std::fs::read("/proc/self/mountinfo").unwrap();
        let shown = Path::new("/some where/no such dir/volume.img");
        let (sentinel, opening) = Sentinel::start(shown).unwrap();
        let mut file = opening.open(&sentinel, 1 << 20).unwrap();
        drop(opening);
        let after = std::fs::read("/proc/self/mountinfo").unwrap();
        let ours = |table: &[u8]| String::from_utf8_lossy(table).contains("ccfs-sync");
        assert!(!ours(&before) && !ours(&after));
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(std::fs::read_link(link).unwrap(), shown);
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(crate::abort::file(&sentinel.device_of()).is_ok());
        file.write_all(&[7; 4096]).unwrap();
        file.seek(SeekFrom::End(-4096)).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, [0; 4096]);
        assert!(!*sentinel.ended.lock());
        drop(file);
        sentinel.wait();
        assert!(*sentinel.ended.lock());
    }
}
