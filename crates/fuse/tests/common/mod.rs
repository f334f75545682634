//! A volume on an image file, served by this process.
#![allow(dead_code)] // each test file uses its part
#![allow(unsafe_code)]
pub mod direct;
pub mod gate;
pub mod raw;

use ccfs_device::{Device, FileDevice, FlashDevice, FlashGeometry, OpenMode};
use ccfs_disks::MemoryDevice;
use ccfs_engine::{Options, Volume};
use ccfs_fuse::{FsType, Home, MountConfig, MountError, Transport};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// False, and a line `skipped: why`, where nothing can be mounted.
pub fn can_mount(test: &str) -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "needs root"
    } else if !Path::new("/dev/fuse").exists() {
        "needs /dev/fuse"
    } else if !Path::new("/dev/loop-control").exists() {
        "needs loop devices"
    } else {
        return true;
    };
    println!("skipped: {test}: {why}");
    false
}

/// Which way requests come in these tests: `CCFS_TEST_TRANSPORT` = auto (default), uring or dev.
pub fn transport() -> Transport {
    match std::env::var("CCFS_TEST_TRANSPORT") {
        Ok(name) => Transport::parse(&name).expect("CCFS_TEST_TRANSPORT is auto, uring or dev"),
        Err(_) => Transport::Auto,
    }
}

/// Are volumes of these tests on transactional flash? `CCFS_TEST_BACKEND` = log (default) or flash.
pub fn on_flash() -> bool {
    match std::env::var("CCFS_TEST_BACKEND").as_deref() {
        Ok("flash") => true,
        Ok("log") | Err(_) => false,
        Ok(other) => panic!("CCFS_TEST_BACKEND={other}: log or flash"),
    }
}

/// One mount at a time: a child process that another test starts would hold this one's descriptors for a moment, and
/// with them files, mounts and locks.
static ONE: Mutex<()> = Mutex::new(());

pub struct TestMount {
    _one: MutexGuard<'static, ()>,
    work: tempfile::TempDir,
    server: Option<JoinHandle<Result<(), MountError>>>,
    fstype: FsType,
    /// Of the next mounts.
    pub options: Options,
}

impl TestMount {
    /// A fresh volume of 64 MiB, mounted.
    pub fn new(fstype: FsType) -> TestMount {
        let one = ONE.lock();
        let work = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::create_dir(work.path().join("mnt")).unwrap();
        let image = work.path().join("image");
        make_image(&image);
        let mut this = TestMount {
            _one: one,
            work,
            server: None,
            fstype,
            options: Options::default(),
        };
        this.mount();
        this
    }

    pub fn mount(&mut self) {
        self.mount_over(transport(), |device| Arc::new(device));
    }

    /// As `mount`, by this way, with what `wrap` makes of the image's device.
    pub fn mount_over(
        &mut self,
        transport: Transport,
        wrap: impl FnOnce(FileDevice) -> Arc<dyn Device> + Send + 'static,
    ) {
        let (image, mnt, fstype) = (self.image(), self.mnt(), self.fstype);
        let options = self.options.clone();
        let (ready, is_ready) = channel();
        self.server = Some(std::thread::spawn(move || {
            let device = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
            let device = FlashDevice::or_plain(wrap(device)).unwrap();
            let volume = Volume::mount(device, options)?;
            let config = MountConfig {
                fstype,
                transport,
                direct: Some(true),
                ..MountConfig::new(image)
            };
            ccfs_fuse::serve(volume, Home::stay(), &mnt, &config, |_| {
                ready.send(()).unwrap();
                Ok(())
            })
        }));
        if is_ready.recv().is_err() {
            panic!("{:?}", self.server.take().unwrap().join());
        }
    }

    pub fn image(&self) -> PathBuf {
        self.work.path().join("image")
    }

    pub fn mnt(&self) -> PathBuf {
        self.work.path().join("mnt")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mnt().join(name)
    }

    /// umount(8), then the image must be plain ext4. With fuseblk that holds the moment the system call returns.
    pub fn unmount(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.is_elsewhere() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        unmount(&self.mnt());
        // It may have been copied in between.
        if self.fstype != FsType::Fuse && !self.is_elsewhere() {
            self.fsck();
        }
        self.server.take().unwrap().join().unwrap().unwrap();
        self.fsck();
    }

    /// A mount is at rest only when it has left every mount namespace, and a test of another program that makes one copies all mounts.
    fn is_elsewhere(&self) -> bool {
        let ours = std::fs::read_link("/proc/self/ns/mnt").unwrap();
        let mnt = self.mnt();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.map(|p| p.path()).any(|p| {
            std::fs::read_link(p.join("ns/mnt")).is_ok_and(|ns| ns != ours)
                && std::fs::read_to_string(p.join("mountinfo"))
                    .is_ok_and(|all| all.contains(mnt.to_str().unwrap()))
        })
    }

    /// Ends a mount whose volume was shut down: it must not come to rest as if nothing were.
    pub fn crash(&mut self) {
        unmount(&self.mnt());
        assert!(self.server.take().unwrap().join().unwrap().is_err());
    }

    fn fsck(&self) {
        fsck(&self.image());
    }
}

/// umount(8). A program that another test is just starting holds copies of our descriptors for an instant.
pub fn unmount(dir: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(e) = rustix::mount::unmount(dir, UnmountFlags::empty()) {
        assert!(e == Errno::BUSY && Instant::now() < end, "{e}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs on the first processor that it may: all requests of such threads come by one queue.
pub fn on_one_processor() {
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.unwrap());
    sched_setaffinity(None, &one).unwrap();
}

/// A fresh ext4 of 64 MiB, on flash where these tests are.
pub fn make_image(image: &Path) {
    std::fs::File::create(image)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let args = ["-q", "-F", "-t", "ext4", "-b", "4096", "-L", "label"];
    assert!(
        Command::new("mke2fs")
            .args(args)
            .arg(image)
            .status()
            .unwrap()
            .success()
    );
    if on_flash() {
        put_on_flash(image);
    }
}

fn put_on_flash(image: &Path) {
    let volume = MemoryDevice::from_file(image).unwrap();
    let g = FlashGeometry::for_size(volume.size_bytes(), 12).unwrap();
    let file = std::fs::File::create(image).unwrap();
    file.set_len(g.file_bytes()).unwrap();
    let below: Arc<dyn Device> = Arc::new(FileDevice::open(image, OpenMode::ReadWrite).unwrap());
    FlashDevice::holding(below, g, 0x5eed, &volume).unwrap();
}

/// What a volume in `image` is mounted from.
pub fn open(image: &Path) -> Arc<dyn Device> {
    let file = FileDevice::open(image, OpenMode::ReadWrite).unwrap();
    FlashDevice::or_plain(Arc::new(file)).unwrap()
}

/// The volume at rest in a file as e2fsck takes it: the image, or a copy of what its flash holds.
fn plain(image: &Path) -> PathBuf {
    if !on_flash() {
        return image.to_path_buf();
    }
    // The daemon may hold the file's lock for a moment yet.
    let medium = MemoryDevice::from_file(image).unwrap();
    let flash = FlashDevice::open(Arc::new(medium)).unwrap();
    let volume = MemoryDevice::copy_of(&flash).unwrap();
    let plain = image.with_extension("plain");
    volume.to_file(&plain).unwrap();
    plain
}

/// Has `change` change the volume at rest.
pub fn change_at_rest(image: &Path, change: impl FnOnce(&Path)) {
    let plain = plain(image);
    change(&plain);
    if on_flash() {
        std::fs::rename(&plain, image).unwrap();
        put_on_flash(image);
    }
}

/// e2fsck finds nothing.
pub fn fsck(image: &Path) {
    let image = plain(image);
    let out = Command::new("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = rustix::mount::unmount(self.mnt(), UnmountFlags::DETACH);
            let _ = server.join();
        }
    }
}

/// FS_IOC_GETFSLABEL.
pub fn label(file: &std::fs::File) -> std::io::Result<Vec<u8>> {
    let mut label = vec![0; 256];
    sys::ioctl(file, 0x8100_9431, &mut label)?;
    label.truncate(label.iter().position(|b| *b == 0).unwrap_or(256));
    Ok(label)
}

/// FS_IOC_SHUTDOWN, writing nothing more.
pub fn shut_down(file: &std::fs::File) -> std::io::Result<()> {
    sys::ioctl(file, 0x8004_587d, &mut [2, 0, 0, 0])
}

/// F2FS_IOC_GET_PIN_FILE.
pub fn unknown_ioctl(file: &std::fs::File) -> std::io::Error {
    sys::ioctl(file, 0x8004_f50e, &mut [0; 4]).unwrap_err()
}

/// Any ioctl with an argument of the size that its number states.
pub fn any_ioctl(file: &std::fs::File, number: u32, arg: &mut [u8]) -> std::io::Result<()> {
    sys::ioctl(file, number, arg)
}

/// name_to_handle_at(2): the bytes of a `struct file_handle`.
pub fn handle_of(path: &Path) -> Vec<u8> {
    sys::handle_of(path)
}

/// open_by_handle_at(2) for reading.
pub fn open_handle(mount: &Path, handle: &[u8]) -> std::io::Result<std::fs::File> {
    sys::open_handle(mount, handle)
}

#[allow(unsafe_code)]
mod sys {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// `arg` has the size that the number states.
    pub fn ioctl(file: &File, number: u32, arg: &mut [u8]) -> io::Result<()> {
        assert_eq!(number as usize >> 16 & 0x3fff, arg.len());
        // SAFETY: the kernel reads and writes at most the bytes that the number states (checked above).
        let result = unsafe { libc::ioctl(file.as_raw_fd(), number as _, arg.as_mut_ptr()) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    pub fn handle_of(path: &Path) -> Vec<u8> {
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut handle = vec![0u64; 17];
        let mut mount_id = 0;
        // SAFETY: the buffer has room for the head (8 bytes) and the 128 bytes that handle_bytes states.
        let result = unsafe {
            let head = handle.as_mut_ptr().cast::<libc::file_handle>();
            (*head).handle_bytes = 128;
            libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), head, &mut mount_id, 0)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        let bytes: Vec<u8> = handle.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let len = u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize;
        bytes[..8 + len].to_vec()
    }

    pub fn open_handle(mount: &Path, handle: &[u8]) -> io::Result<File> {
        let mount = File::open(mount)?;
        let mut words = vec![0u64; handle.len().div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(handle.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        // SAFETY: the buffer holds a struct file_handle with as many bytes as its head states; a descriptor that the call
        // returns is ours.
        unsafe {
            let fd = libc::open_by_handle_at(
                mount.as_raw_fd(),
                words.as_mut_ptr().cast(),
                libc::O_RDONLY,
            );
            if fd < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(File::from_raw_fd(fd))
            }
        }
    }
}
