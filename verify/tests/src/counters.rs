//! What reaches the device, counted by the kernel at a loop device and by the daemon (C4; ccfs paper, Table 3).

use crate::harness::{Fs, Volume, run_ok};
use crate::sys;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc;

/// Decimal, as the paper counts.
pub const MB: u64 = 1_000_000;

/// A volume on a loop device, where nothing is committed unless asked for.
fn volume(label: &str, size_mib: u64) -> Volume {
    let mut v = Volume::unformatted(Fs::Ccfs, label)
        .options("commit=600,dirty=512M")
        .on_loop_device();
    v.mkfs(size_mib);
    v.mount();
    v
}

/// A thread in a stream of its own that does what it is told, one thing after another.
pub struct Worker {
    jobs: mpsc::Sender<Box<dyn FnOnce() + Send>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// In a new stream; with `None` in the default stream.
    pub fn new(mount: Option<&Path>) -> Worker {
        let fd = mount.map(|m| sys::open(m, libc::O_RDONLY, 0).expect("open"));
        let (jobs, queue) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let thread = std::thread::spawn(move || {
            if let Some(fd) = fd {
                let id = ccfs_client::new_stream(&fd, 0).expect("a new stream");
                ccfs_client::set_stream(&fd, id, None).expect("enter it");
            }
            queue.into_iter().for_each(|job| job());
        });
        Worker {
            jobs,
            thread: Some(thread),
        }
    }
    /// Runs `job` on the thread and waits for it.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.jobs
            .send(Box::new(move || drop(done.send(job()))))
            .expect("the thread lives");
        result.recv().expect("the job ended")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (nobody, _) = mpsc::channel();
        self.jobs = nobody;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn create(path: &Path) -> OwnedFd {
    sys::open(path, libc::O_CREAT | libc::O_RDWR, 0o644).expect("create")
}

/// `bytes` bytes at `at`, in pieces of 100,000.
fn write(fd: &OwnedFd, at: u64, bytes: u64, fill: u8) {
    let piece = vec![fill; 100_000];
    let mut done = 0;
    while done < bytes {
        let n = (bytes - done).min(piece.len() as u64);
        done += sys::pwrite(fd, &piece[..n as usize], at + done).expect("write") as u64;
    }
}

fn counter(v: &Volume, name: &str) -> u64 {
    let status = v.status();
    status["counters"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {name} in {status}"))
}

/// What stream A does to its 100 MB around B's fsync (the paper's three cases).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    Append,
    Truncate,
    Overwrite,
}

/// Bytes written to the device: by B's fsync, and in all (unmount included).
#[derive(Debug)]
pub struct Written {
    pub fsync: u64,
    pub total: u64,
    pub latency: std::time::Duration,
}

/// One row of Table 3: 100 MB to A, 1 byte to B, fsync(B), with one stream for both or two.
pub fn table3(case: Case, streams: usize) -> Written {
    let mut v = volume("table3", 700);
    let (path_a, path_b) = (v.path("a"), v.path("b"));
    let a = Worker::new((streams == 2).then(|| v.mnt()));
    let b = if streams == 2 {
        Some(Worker::new(Some(v.mnt())))
    } else {
        None
    };
    // The files exist, so that only what the paper counts is counted.
    a.run({
        let path = path_a.clone();
        move || drop(create(&path))
    });
    b.as_ref().unwrap_or(&a).run({
        let path = path_b.clone();
        move || drop(create(&path))
    });
    run_ok("sync", &["-f", v.mnt().to_str().expect("plain path")]);
    let start = v.device_bytes_written();
    let fd = a.run(move || {
        let fd = create(&path_a);
        write(&fd, 0, 100 * MB, 1);
        fd
    });
    let before = v.device_bytes_written();
    let latency = b.as_ref().unwrap_or(&a).run(move || {
        let fd = create(&path_b);
        sys::pwrite(&fd, b"1", 0).expect("write");
        let start = std::time::Instant::now();
        sys::fsync(&fd).expect("fsync");
        start.elapsed()
    });
    let fsync = v.device_bytes_written() - before;
    a.run(move || match case {
        Case::Append => {}
        Case::Truncate => sys::ftruncate(&fd, 0).expect("truncate"),
        Case::Overwrite => write(&fd, 0, 100 * MB, 2),
    });
    drop((a, b));
    v.umount();
    let total = v.device_bytes_written() - start;
    v.fsck_clean();
    Written {
        fsync,
        total,
        latency,
    }
}

/// C4 with 200 MB dirty in A: the bytes that B's fsync of one byte writes, and that nothing of A survives a crash then.
pub fn independence() -> u64 {
    let mut v = volume("independence", 700);
    let (a, b) = (Worker::new(Some(v.mnt())), Worker::new(Some(v.mnt())));
    let (path_a, path_b) = (v.path("a"), v.path("b"));
    run_ok("sync", &["-f", v.mnt().to_str().expect("plain path")]);
    a.run(move || write(&create(&path_a), 0, 200 * MB, 1));
    let before = v.device_bytes_written();
    b.run(move || {
        let fd = create(&path_b);
        sys::pwrite(&fd, b"1", 0).expect("write");
        sys::fsync(&fd).expect("fsync");
    });
    let written = v.device_bytes_written() - before;
    v.kill9();
    drop((a, b));
    v.mount();
    assert_eq!(
        std::fs::read(v.path("b")).ok(),
        Some(b"1".to_vec()),
        "C3: B's file survives its fsync"
    );
    assert_eq!(
        sys::lstat(v.path("a")),
        Err(libc::ENOENT),
        "C4: B's fsync committed A's file"
    );
    v.finish();
    written
}

/// Created, written and removed before any commit: bytes to the device, unmount included.
pub fn short_lived_file() -> u64 {
    let mut v = volume("shortlived", 256);
    run_ok("sync", &["-f", v.mnt().to_str().expect("plain path")]);
    let before = v.device_bytes_written();
    let path = v.path("f");
    write(&create(&path), 0, 64 << 20, 3);
    sys::unlink(&path).expect("unlink");
    v.umount();
    let written = v.device_bytes_written() - before;
    v.fsck_clean();
    written
}

/// 100 MB appended to a new file and synced: bytes of log.
pub fn log_of_an_append() -> u64 {
    let v = volume("appendlog", 400);
    let before = counter(&v, "logged_bytes");
    let fd = create(&v.path("f"));
    write(&fd, 0, 100 * MB, 3);
    sys::fsync(&fd).expect("fsync");
    let logged = counter(&v, "logged_bytes") - before;
    drop(fd);
    v.finish();
    logged
}

/// 1,000 overwrites of one block between two commits: bytes of log.
pub fn overwrites_of_a_block() -> u64 {
    let v = volume("overwrites", 64);
    let fd = create(&v.path("f"));
    write(&fd, 0, 65_536, 1);
    sys::fsync(&fd).expect("fsync");
    let before = counter(&v, "logged_bytes");
    for i in 0..1000u32 {
        sys::pwrite(&fd, &[i as u8; 4096], 8192).expect("write");
    }
    sys::fsync(&fd).expect("fsync");
    let logged = counter(&v, "logged_bytes") - before;
    drop(fd);
    v.finish();
    logged
}

/// 16 files that grow to 64 MiB each, in turn, with commits meanwhile: the most extents that one of them has.
pub fn extents_of_appenders() -> usize {
    let mut v = Volume::unformatted(Fs::Ccfs, "appenders").options("commit=600,dirty=64M");
    v.mkfs(1600);
    v.mount();
    let files: Vec<OwnedFd> = (0..16).map(|i| create(&v.path(&format!("f{i}")))).collect();
    let piece = vec![5u8; 256 << 10];
    for step in 0..256u64 {
        for fd in &files {
            sys::pwrite(fd, &piece, step * piece.len() as u64).expect("write");
        }
    }
    drop(files);
    v.umount();
    v.fsck_clean();
    v.with_kernel(|root| {
        let count = |i: usize| {
            let text = run_ok(
                "filefrag",
                &[root.join(format!("f{i}")).to_str().expect("plain path")],
            );
            let words: Vec<&str> = text.split_whitespace().collect();
            let at = words
                .iter()
                .position(|w| w.starts_with("extent"))
                .expect("a count of extents");
            words[at - 1].parse::<usize>().expect("a count of extents")
        };
        (0..16).map(count).max().unwrap_or(0)
    })
}
