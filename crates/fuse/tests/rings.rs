//! The transport over io_uring: parked requests, faults, ends. A made-up file system stands in place of the server.
mod common;
use ccfs_fuse::abi::init;
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::transport::uring::Rings;
use ccfs_fuse::transport::uring::ring::TRIM_EAGERLY;
use common::gate::{Gate, MIB, become_user, byte_at, mount_gate};
use common::{can_mount, on_one_processor};
use rustix::fs::minor;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
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
    let control = Control::new();
    let connection = minor(std::fs::metadata(m.dir.path()).unwrap().dev());
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
        m.until("they are all made", || control.requests(connection) >= 20);
        m.until("some syncs are parked", || *m.gate.waiting.lock() >= 4);
        scope.spawn(move || {
            on_one_processor();
            std::fs::metadata(long).unwrap();
        });
        m.until("the long request is served", || *m.gate.long.lock() == 1);
        let other = scope.spawn(move || {
            on_one_processor();
            std::fs::metadata(other).unwrap();
        });
        m.until("the queue serves others", || other.is_finished());
        let waiting = *m.gate.waiting.lock();
        m.gate.open();
        assert!(waiting < 20 + 1, "none of the syncs queue");
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

/// More syncs on one processor than may be parked: the rest waits until others are through, and all get through.
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

/// More syncs of one user than may be parked: another user's are parked beside them, and everything else is served.
#[test]
fn one_users_parked_syncs_leave_others_served() {
    let name = "one_users_parked_syncs_leave_others_served";
    let Some(m) = Mount::with_threads(name, None, 16) else {
        return;
    };
    m.started.clone().unwrap();
    std::thread::scope(|scope| {
        let sync = |name: String, uid: u32| {
            let path = m.path(&name);
            scope.spawn(move || {
                on_one_processor();
                become_user(uid);
                File::open(path).unwrap().sync_all().unwrap();
            });
        };
        (0..60).for_each(|i| sync(format!("f{i}"), 5001));
        m.until("syncs are parked", || *m.gate.waiting.lock() == 16);
        m.works();
        sync("a".into(), 5002);
        sync("b".into(), 5002);
        m.until("another user's are parked", || *m.gate.waiting.lock() == 18);
        sync("c".into(), 0);
        m.until("root's, too", || *m.gate.waiting.lock() == 19);
        m.works();
        m.gate.open();
    });
    assert_eq!(*m.gate.synced.lock(), 63);
}

/// The kernel's directory of connections (fusectl).
struct Control(tempfile::TempDir);

impl Control {
    fn new() -> Control {
        let dir = tempfile::tempdir().unwrap();
        let flags = MountFlags::empty();
        mount(c"fusectl", dir.path(), c"fusectl", flags, None).unwrap();
        Control(dir)
    }

    /// How many requests are not answered.
    fn requests(&self, connection: u32) -> usize {
        let count = self.0.path().join(format!("{connection}/waiting"));
        let count = std::fs::read_to_string(count).unwrap();
        count.trim().parse().unwrap()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        unmount(self.0.path(), UnmountFlags::DETACH).unwrap();
    }
}

/// A user's requests that are served one after the other do not come before another user's, who made his later.
#[test]
fn users_of_a_queue_take_turns() {
    let Some(m) = Mount::new("users_of_a_queue_take_turns", None) else {
        return;
    };
    m.started.clone().unwrap();
    let control = Control::new();
    let connection = minor(std::fs::metadata(m.dir.path()).unwrap().dev());
    const MANY: usize = 100;
    std::thread::scope(|scope| {
        for i in 0..MANY {
            let path = m.path(&format!("slow{i}"));
            scope.spawn(move || {
                on_one_processor();
                become_user(5001);
                std::fs::metadata(path).unwrap();
            });
        }
        m.until("they are all made", || control.requests(connection) >= MANY);
        let path = m.path("other");
        let other = scope.spawn(move || {
            on_one_processor();
            std::fs::metadata(path).unwrap();
        });
        m.until("one more", || control.requests(connection) > MANY);
        for _ in 0..MANY {
            m.gate.let_through();
            m.until("one passes", || m.gate.all_passed() || other.is_finished());
        }
        m.gate.open();
    });
    let before = m.gate.told_before("other");
    assert!(before < MANY / 2, "{before} came before it");
}

/// Syncs that wait on one processor, more than its queue had buffers: there are more by then.
#[test]
fn waiting_syncs_leave_buffers_for_others() {
    let Some(m) = Mount::new("waiting_syncs_leave_buffers_for_others", None) else {
        return;
    };
    m.started.clone().unwrap();
    std::thread::scope(|scope| {
        for i in 0..900 {
            let path = m.path(&format!("f{i}"));
            // By and by: all at once would be faster than the queue's thread.
            if i % 50 == 0 {
                m.until("they are parked", || *m.gate.waiting.lock() == i.min(512));
            }
            scope.spawn(move || {
                on_one_processor();
                become_user(5001);
                File::open(path).unwrap().sync_all().unwrap();
            });
        }
        let dir = m.dir.path();
        let other = scope.spawn(move || {
            on_one_processor();
            for i in 0..200 {
                std::fs::metadata(dir.join(format!("other{i}"))).unwrap();
            }
        });
        m.until("others are served", || other.is_finished());
        let path = m.path("g");
        scope.spawn(move || {
            on_one_processor();
            File::open(path).unwrap().sync_all().unwrap();
        });
        m.until("a sync of root's is parked", || {
            *m.gate.waiting.lock() == 513
        });
        m.gate.open();
    });
    assert_eq!(*m.gate.synced.lock(), 901);
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

/// Memory of buffers is given back beside requests that come: none of them loses what it brought.
#[test]
fn requests_keep_what_they_bring_while_memory_goes() {
    const LEN: usize = 16 << 10;
    const THREADS: usize = 8;
    const ROUNDS: usize = 2000;
    let Some(m) = Mount::new("requests_keep_what_they_bring_while_memory_goes", None) else {
        return;
    };
    TRIM_EAGERLY.store(true, Relaxed);
    let mut direct = OpenOptions::new();
    direct.read(true).write(true).custom_flags(libc::O_DIRECT);
    let done = AtomicUsize::new(0);
    let mut checked = 0;
    let mut lost = 0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (file, done) = (direct.open(m.path("f")).unwrap(), &done);
            scope.spawn(move || {
                let mut space = vec![0u8; LEN + 4096];
                let start = space.as_ptr().align_offset(4096);
                let page = &mut space[start..start + LEN];
                for round in 0..ROUNDS {
                    page.fill(1 + (round % 255) as u8);
                    let at = (thread * ROUNDS + round) * LEN;
                    file.write_all_at(page, at as u64).unwrap();
                    // Answers fill memory as well.
                    if round % 8 == 0 {
                        file.read_exact_at(page, 0).unwrap();
                    }
                }
                done.fetch_add(1, Relaxed);
            });
        }
        loop {
            let last = done.load(Relaxed) == THREADS;
            for (offset, bytes) in std::mem::take(&mut *m.gate.written.lock()) {
                let round = offset as usize / LEN % ROUNDS;
                let expected = 1 + (round % 255) as u8;
                checked += bytes.len();
                lost += usize::from(bytes.iter().any(|b| *b != expected));
            }
            if last {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    TRIM_EAGERLY.store(false, Relaxed);
    assert_eq!(checked, THREADS * ROUNDS * LEN);
    assert_eq!(lost, 0, "of {} requests", THREADS * ROUNDS);
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
