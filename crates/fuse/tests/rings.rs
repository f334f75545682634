//! The transport over io_uring: parked requests, faults, ends. A made-up file system stands in place of the server.
mod common;
use ccfs_fuse::abi::init;
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::transport::uring::Rings;
use common::gate::{Gate, MIB, byte_at, mount_gate};
use common::{can_mount, on_one_processor};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Duration;

struct Mount {
    dir: tempfile::TempDir,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    rings: Option<Rings>,
    /// What `Rings::start` said.
    started: Result<(), String>,
}

impl Mount {
    /// `queues`: as for `Rings::prepare`. `None`, and a line, where there is no io_uring.
    fn new(test: &str, queues: Option<&[u16]>) -> Option<Mount> {
        Mount::with_threads(test, queues, 512)
    }

    fn with_threads(test: &str, queues: Option<&[u16]>, threads_max: usize) -> Option<Mount> {
        if !can_mount(test) {
            return None;
        }
        let mut rings = match prepare_rings(queues) {
            Ok(rings) => rings,
            Err(why) => {
                println!("skipped: {test}: {why}");
                return None;
            }
        };
        let (dir, channel, agreed) = mount_gate(WANTED | init::OVER_IO_URING);
        assert!(agreed.has(init::OVER_IO_URING));
        let gate = Arc::new(Gate::default());
        let pool = Pool::start(channel.clone(), gate.clone(), PoolConfig::default()).unwrap();
        let started = rings.start(&channel, gate.clone(), threads_max);
        Some(Mount {
            dir,
            gate,
            pool,
            rings: Some(rings),
            started,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        self.gate.until(|| what.into(), is_so);
    }

    fn works(&self) {
        for i in 0..200 {
            std::fs::metadata(self.path(&format!("other{i}"))).unwrap();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.open();
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
        self.pool.wait();
        if let Some(rings) = self.rings.take() {
            rings.end();
        }
    }
}

/// Waiting syncs hold no thread of a queue: others are served as if nothing were.
#[test]
fn syncs_are_parked() {
    let Some(m) = Mount::new("syncs_are_parked", None) else {
        return;
    };
    m.started.clone().unwrap();
    std::thread::scope(|scope| {
        for i in 0..4 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("4 syncs wait at once", || *m.gate.waiting.lock() == 4);
        m.works();
        m.gate.open();
    });
    assert_eq!(*m.gate.synced.lock(), 4);
    m.works();
}

/// More syncs than may be parked: what takes long but waits for nobody is served beside them.
#[test]
fn long_requests_do_not_wait_for_parked_ones() {
    let Some(m) = Mount::with_threads("long_requests_do_not_wait_for_parked_ones", None, 0) else {
        return;
    };
    m.started.clone().unwrap();
    let start = Barrier::new(20);
    let (long, other) = (m.path("long"), m.path("other"));
    std::thread::scope(|scope| {
        for i in 0..20 {
            let (path, start) = (m.path(&format!("f{i}")), &start);
            scope.spawn(move || {
                on_one_processor();
                let file = File::open(path).unwrap();
                start.wait();
                file.sync_all().unwrap();
            });
        }
        let parked = || *m.gate.waiting.lock();
        m.until("some syncs are parked", || parked() >= 4);
        std::thread::sleep(Duration::from_millis(100));
        let before = parked();
        m.until("the others queue", || before < 20);
        scope.spawn(move || {
            on_one_processor();
            std::fs::metadata(long).unwrap();
        });
        m.until("the long request is served", || parked() == before + 1);
        let other = scope.spawn(move || {
            on_one_processor();
            std::fs::metadata(other).unwrap();
        });
        m.until("the queue serves others", || other.is_finished());
        m.gate.open();
    });
}

/// 500 syncs that wait on one processor, and a reader there: names, attributes, bytes. They start when the reader has, so that their
/// requests come faster than the queue's thread can take them.
#[test]
fn many_syncs_of_one_processor() {
    let Some(m) = Mount::new("many_syncs_of_one_processor", None) else {
        return;
    };
    m.started.clone().unwrap();
    let start = Barrier::new(500);
    std::thread::scope(|scope| {
        for i in 0..500 {
            let (path, start) = (m.path(&format!("f{i}")), &start);
            scope.spawn(move || {
                on_one_processor();
                let file = File::open(path).unwrap();
                start.wait();
                file.sync_all().unwrap();
            });
        }
        m.until("500 syncs wait at once", || *m.gate.waiting.lock() == 500);
        let dir = m.dir.path();
        let reader = scope.spawn(move || {
            on_one_processor();
            for i in 0..200 {
                std::fs::metadata(dir.join(format!("other{i}"))).unwrap();
            }
            let file = File::open(dir.join("g")).unwrap();
            let mut page = [0; 4096];
            for at in (0..64 * MIB).step_by(MIB) {
                file.read_exact_at(&mut page, at as u64).unwrap();
                let expected = (at..).map(byte_at);
                assert!(expected.zip(page.iter()).all(|(a, b)| a == *b));
            }
        });
        m.until("the reader is through", || reader.is_finished());
        let waiting = *m.gate.waiting.lock();
        m.gate.open();
        assert_eq!(waiting, 500, "they still waited");
    });
    assert_eq!(*m.gate.synced.lock(), 500);
    m.works();
}

/// More syncs on one processor than its queue has buffers: the rest waits in the kernel, callers on other processors do not, and with the
/// first answer all get through.
#[test]
fn the_bound_queues() {
    let Some(m) = Mount::new("the_bound_queues", None) else {
        return;
    };
    std::thread::scope(|scope| {
        for i in 0..600 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || {
                on_one_processor();
                File::open(path).unwrap().sync_all().unwrap();
            });
        }
        m.until("512 wait", || *m.gate.waiting.lock() == 512);
        m.gate.let_through();
        m.until("the next one is there", || {
            *m.gate.synced.lock() == 1 && *m.gate.waiting.lock() == 512
        });
        m.gate.open();
    });
    assert_eq!(*m.gate.synced.lock(), 600);
    m.works();
}

/// Requests of 1 MiB in both directions, bytes in their places.
#[test]
fn large_requests() {
    let Some(m) = Mount::new("large_requests", None) else {
        return;
    };
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).custom_flags(libc::O_DIRECT);
    let file = direct.open(m.path("f")).unwrap();
    // O_DIRECT wants aligned memory: take an aligned part of a larger vector.
    let mut space = vec![0u8; MIB + 4096];
    let start = space.as_ptr().align_offset(4096);
    let page = &mut space[start..start + MIB];
    for round in 0..20 {
        let at = round * MIB;
        page.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = byte_at(at + i) ^ 0xff);
        file.write_all_at(page, at as u64).unwrap();
        let written = std::mem::take(&mut *m.gate.written.lock());
        let mut total = 0;
        for (offset, bytes) in written {
            let expected = (offset as usize..).map(|i| byte_at(i) ^ 0xff);
            assert!(expected.zip(&bytes).all(|(a, b)| a == *b));
            total += bytes.len();
        }
        assert_eq!(total, MIB);
        file.read_exact_at(page, at as u64).unwrap();
        let expected = (at..).map(byte_at);
        assert!(expected.zip(page.iter()).all(|(a, b)| a == *b));
    }
    assert_eq!(*m.gate.longest_read.lock(), MIB, "one request for 1 MiB");
}

/// A mount that is taken away while requests are in hand ends when they do.
#[test]
fn the_end_waits_for_requests_in_hand() {
    let Some(mut m) = Mount::new("the_end_waits_for_requests_in_hand", None) else {
        return;
    };
    std::thread::scope(|scope| {
        for i in 0..6 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("6 syncs wait at once", || *m.gate.waiting.lock() == 6);
        unmount(m.dir.path(), UnmountFlags::DETACH).unwrap();
        m.gate.open();
    });
    m.pool.wait();
    m.rings.take().unwrap().end();
    assert_eq!(*m.gate.synced.lock(), 6);
}

/// Fewer queues than processors: the kernel must be told, or all requests would wait for ever.
#[test]
fn too_few_queues_fall_back() {
    let Some(m) = Mount::new("too_few_queues_fall_back", Some(&[0])) else {
        return;
    };
    if one_processor() {
        return;
    }
    assert!(m.started.clone().unwrap_err().contains("processor"));
    m.works();
}

/// The kernel takes some queues and refuses another one: everything goes over /dev/fuse.
#[test]
fn refused_half_way() {
    let Some(m) = Mount::new("refused_half_way", Some(&[0, 60_000])) else {
        return;
    };
    if one_processor() {
        return;
    }
    let _ = m.started.clone().unwrap_err();
    m.works();
    std::thread::scope(|scope| {
        let path = m.path("f");
        scope.spawn(move || File::open(path).unwrap().sync_all().unwrap());
        m.until("a sync waits", || *m.gate.waiting.lock() == 1);
        m.works();
        m.gate.open();
    });
}

fn one_processor() -> bool {
    let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    possible.trim() == "0"
}

/// A machine with 64 processors: what is reserved for it is not used.
#[test]
fn many_queues_take_little_memory() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        let kib = line.split_whitespace().nth(1).unwrap();
        kib.parse::<u64>().unwrap() << 10
    };
    let queues: Vec<u16> = (0..64).collect();
    let before = resident();
    match Rings::prepare(Some(&queues)) {
        Ok(rings) => {
            let grown = resident().saturating_sub(before);
            println!("64 queues: {grown} bytes resident");
            // Other tests run beside.
            assert!(grown < 300 << 20, "{grown} bytes");
            drop(rings);
        }
        Err(why) => println!("skipped: many_queues_take_little_memory: {why}"),
    }
}

/// Rings that were made for nothing leave no threads behind.
#[test]
fn rings_that_are_not_used() {
    if !can_mount("rings_that_are_not_used") {
        return;
    }
    for _ in 0..20 {
        match prepare_rings(None) {
            Ok(rings) => drop(rings),
            Err(why) => return println!("skipped: rings_that_are_not_used: {why}"),
        }
    }
}
