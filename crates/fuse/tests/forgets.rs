//! Space of files that were removed is there for the next call, however late their FORGETs are.
mod common;
use ccfs_device::{FileDevice, FlashDevice, OpenMode};
use ccfs_engine::{Attempt, Context, Options, StreamId, Volume};
use ccfs_fuse::abi::{init, op};
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::transport::uring::Rings;
use ccfs_fuse::wire::{Handler, Reply, Request};
use ccfs_fuse::{CallerConfig, MountInfo, Server, Transport};
use common::gate::mount_gate;
use common::{can_mount, make_image, transport};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The server, which gets FORGETs late.
struct Late {
    server: Arc<Server>,
    held_back: AtomicU64,
}

/// Longer than any call takes that does not wait for it.
const LATE: Duration = Duration::from_millis(300);

impl Handler for Late {
    fn may_block(&self, request: &Request<'_>) -> bool {
        let forget = matches!(request.header.opcode, op::FORGET | op::BATCH_FORGET);
        forget || self.server.may_block(request)
    }

    fn is_long(&self, request: &Request<'_>) -> bool {
        self.server.is_long(request)
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        if matches!(request.header.opcode, op::FORGET | op::BATCH_FORGET) {
            std::thread::sleep(LATE);
            self.held_back.fetch_add(1, SeqCst);
        }
        self.server.handle(request, reply);
    }

    fn handle_non_blocking(&self, request: &Request<'_>, reply: &mut Reply) -> Attempt {
        self.server.handle_non_blocking(request, reply)
    }

    fn undelivered(&self, reply: &Reply) {
        self.server.undelivered(reply);
    }
}

struct Mount {
    dir: tempfile::TempDir,
    volume: Arc<Volume>,
    late: Arc<Late>,
    pool: Arc<Pool>,
    rings: Option<Rings>,
}

impl Mount {
    /// A volume of 64 MiB on a mount whose closes are seen or not.
    fn new(atomic_files: bool) -> Mount {
        let work = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = work.path().join("image");
        make_image(&image);
        let device = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
        let device = FlashDevice::or_plain(Arc::new(device)).unwrap();
        let volume = Volume::mount(device, Options::default()).unwrap();
        let mut rings = match transport() {
            Transport::Dev => None,
            _ => prepare_rings(None).ok(),
        };
        let wanted = WANTED
            | if rings.is_some() {
                init::OVER_IO_URING
            } else {
                0
            };
        let (dir, channel, agreed) = mount_gate(wanted);
        let info = MountInfo {
            atomic_files,
            ..MountInfo::default()
        };
        let server = Server::new(volume.clone(), agreed, info, CallerConfig::default()).unwrap();
        server.start_notifying(channel.clone()).unwrap();
        let late = Arc::new(Late {
            server: Arc::new(server),
            held_back: AtomicU64::new(0),
        });
        let pool = Pool::start(channel.clone(), late.clone(), PoolConfig::default()).unwrap();
        if let Some(rings) = &mut rings {
            rings.start(&channel, late.clone(), 512).unwrap();
            pool.expect_forgets();
        }
        Mount {
            dir,
            volume,
            late,
            pool,
            rings,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn fill(&self, file: &mut File) {
        let block = vec![7; 1 << 16];
        let mut last = u64::MAX;
        // What is promised for more than is used comes back with each sync.
        while last != 0 {
            last = 0;
            while let Ok(n) = file.write(&block) {
                last += n as u64;
            }
            file.sync_all().unwrap();
        }
    }

    /// All of it, and applied.
    fn sync(&self) {
        let everybody = Context::root(StreamId(0));
        self.volume.syncfs(&everybody).unwrap();
    }

    fn held_back(&self) -> u64 {
        self.late.held_back.load(SeqCst)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
        self.pool.wait();
        if let Some(rings) = self.rings.take() {
            rings.end();
        }
        let ended = self.late.server.end();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn write(path: PathBuf) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(&[1; 200_000])
}

fn space_is_there_at_once(test: &str, atomic_files: bool) {
    if !can_mount(test) {
        return;
    }
    let m = Mount::new(atomic_files);
    for round in 0..2 {
        m.fill(&mut File::create(m.path("big")).unwrap());
        std::fs::remove_file(m.path("big")).unwrap();
        write(m.path("small")).unwrap_or_else(|e| panic!("round {round}, after an unlink: {e}"));
        assert!(m.held_back() > 0, "no FORGET was held back");

        let mut file = File::create(m.path("big")).unwrap();
        m.fill(&mut file);
        std::fs::remove_file(m.path("big")).unwrap();
        assert!(write(m.path("small")).is_err(), "it is open");
        drop(file);
        write(m.path("small")).unwrap_or_else(|e| panic!("round {round}, after a close: {e}"));

        let how = OFlags::TMPFILE | OFlags::RDWR;
        let nameless: OwnedFd = open(m.dir.path(), how, Mode::RUSR | Mode::WUSR).unwrap();
        m.fill(&mut File::from(nameless));
        write(m.path("small")).unwrap_or_else(|e| panic!("round {round}, O_TMPFILE: {e}"));

        File::create(m.path("third")).unwrap();
        let mut small = OpenOptions::new()
            .append(true)
            .open(m.path("small"))
            .unwrap();
        m.fill(&mut small);
        std::fs::create_dir(m.path("dir")).ok();
        std::fs::write(m.path("other"), b"other").ok();
        std::fs::rename(m.path("small"), m.path("other")).unwrap();
        drop(small);
        std::fs::write(m.path("small"), b"").unwrap();
        // Nothing but the rename, which needs no block, is uncommitted when more space is wanted.
        m.sync();
        std::fs::rename(m.path("small"), m.path("other")).unwrap();
        write(m.path("third")).unwrap_or_else(|e| panic!("round {round}, replaced: {e}"));
        std::fs::remove_file(m.path("third")).unwrap();
        std::fs::remove_file(m.path("other")).unwrap();
        std::fs::remove_dir(m.path("dir")).ok();
    }
}

#[test]
fn space_of_removed_files_is_there_at_once() {
    space_is_there_at_once("space_of_removed_files_is_there_at_once", false);
}

#[test]
fn space_of_removed_files_is_there_at_once_where_closes_are_seen() {
    let test = "space_of_removed_files_is_there_at_once_where_closes_are_seen";
    space_is_there_at_once(test, true);
}
