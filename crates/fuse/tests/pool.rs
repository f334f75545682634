//! The pool of threads under requests that wait, with a made-up file system in place of the server.
mod common;
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use common::can_mount;
use common::gate::{Gate, mount_gate};
use rustix::mount::{UnmountFlags, unmount};
use std::path::PathBuf;
use std::sync::Arc;

struct Mount {
    dir: tempfile::TempDir,
    gate: Arc<Gate>,
    pool: Arc<Pool>,
}

impl Mount {
    fn new(config: PoolConfig) -> Mount {
        let (dir, channel, _) = mount_gate(WANTED);
        let gate = Arc::new(Gate::default());
        let pool = Pool::start(channel, gate.clone(), config).unwrap();
        Mount { dir, gate, pool }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        let what = || format!("{what}: {} threads", self.pool.threads());
        self.gate.until(what, is_so);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.gate.open();
        unmount(self.dir.path(), UnmountFlags::DETACH).unwrap();
        self.pool.wait();
    }
}

/// Far more waiting syncs than serving threads: other requests are served as if nothing were.
#[test]
fn syncs_hold_no_place() {
    if !can_mount("syncs_hold_no_place") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 2,
        threads_max: 512,
    });
    std::thread::scope(|scope| {
        for i in 0..50 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || std::fs::File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("50 syncs wait at once", || *m.gate.waiting.lock() == 50);
        for i in 0..200 {
            std::fs::metadata(m.path(&format!("other{i}"))).unwrap();
        }
        m.gate.open();
    });
}

/// More syncs than there may be threads: they queue, and all get through.
#[test]
fn the_bound_queues() {
    if !can_mount("the_bound_queues") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 2,
        threads_max: 8,
    });
    std::thread::scope(|scope| {
        for i in 0..40 {
            let path = m.path(&format!("f{i}"));
            scope.spawn(move || std::fs::File::open(path).unwrap().sync_all().unwrap());
        }
        m.until("threads wait", || *m.gate.waiting.lock() == 8);
        assert_eq!(m.pool.threads(), 8);
        m.gate.open();
    });
    assert_eq!(*m.gate.waiting.lock(), 0);
}

/// Requests that turn out to wait lose their places to others.
#[test]
fn the_watcher_replaces_threads_that_wait() {
    if !can_mount("the_watcher_replaces_threads_that_wait") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 1,
        threads_max: 512,
    });
    std::thread::scope(|scope| {
        for i in 0..10 {
            let path = m.path(&format!("slow{i}"));
            scope.spawn(move || std::fs::metadata(path).unwrap());
        }
        // Lookups in one directory go on at the same time (PARALLEL_DIROPS).
        m.until("10 lookups wait at once", || *m.gate.waiting.lock() == 10);
        std::fs::metadata(m.path("fast")).unwrap();
        m.gate.open();
    });
}
