//! The pool of threads under requests that wait, with a made-up file system in place of the server.
mod common;
use ccfs_fuse::server::init::WANTED;
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use common::can_mount;
use common::gate::{Gate, become_user, mount_gate};
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
        waiting_max: 512,
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

/// More syncs of one user than may wait with a thread: they are put aside, others are served, another user's sync too, and all get through.
#[test]
fn one_users_waiting_syncs_leave_others_served() {
    if !can_mount("one_users_waiting_syncs_leave_others_served") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 2,
        waiting_max: 16,
    });
    std::thread::scope(|scope| {
        let sync = |name: String, uid: u32| {
            let path = m.path(&name);
            scope.spawn(move || {
                become_user(uid);
                std::fs::File::open(path).unwrap().sync_all().unwrap();
            });
        };
        (0..60).for_each(|i| sync(format!("f{i}"), 5001));
        m.until("threads wait", || *m.gate.waiting.lock() == 16);
        for i in 0..200 {
            std::fs::metadata(m.path(&format!("other{i}"))).unwrap();
        }
        // An eighth of the bound, and twice as much for root.
        sync("a".into(), 5002);
        sync("b".into(), 5002);
        m.until("another user's wait beside", || {
            *m.gate.waiting.lock() == 18
        });
        sync("c".into(), 0);
        m.until("root's, too", || *m.gate.waiting.lock() == 19);
        let threads = m.pool.threads();
        assert!((21..=24).contains(&threads), "{threads} threads");
        m.gate.open();
    });
    assert_eq!(*m.gate.waiting.lock(), 0);
    assert_eq!(*m.gate.synced.lock(), 63);
}

/// Requests that turn out to wait lose their places to others.
#[test]
fn the_watcher_replaces_threads_that_wait() {
    if !can_mount("the_watcher_replaces_threads_that_wait") {
        return;
    }
    let m = Mount::new(PoolConfig {
        places: 1,
        waiting_max: 512,
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
