//! A volume that stands still (`while_frozen`): under load its device keeps every byte, has all that was accepted, and everybody goes on after it.
mod common;
use ccfs_device::Device;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{cx, fsck, image, mount_on, quiet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const THREADS: u64 = 6;
/// Files of a thread that are not removed yet.
const KEPT: u64 = 40;
const TURNS: u64 = 1_000_000;

fn background() -> Options {
    Options {
        background: true,
        commit_interval: Duration::from_millis(20),
        dirty_limit: 4 << 20,
        ..Options::default()
    }
}

/// Makes file `t-n`, after the one before, and some work that a freeze has to stop: overwrites, removals, sync calls, barriers.
fn turn(v: &Volume, t: u64, n: u64) -> Result<()> {
    let c = cx(2 + t / 2);
    let name = format!("{t}-{n}");
    let file = v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0)?;
    v.write(&c, file.ino, 0, &vec![t as u8; 3000], WriteFlags::default())?;
    match n % 5 {
        0 => v.fsync(&c, file.ino, false)?,
        1 if n > KEPT => v.unlink(&c, ROOT_INO, format!("{t}-{}", n - 1).as_bytes())?,
        2 => v.syncfs(&c)?,
        3 => v.barrier(&c, SyncCall::File(file.ino), 0)?,
        _ => v
            .write(&c, file.ino, 1000, &[9; 9000], WriteFlags::default())
            .map(drop)?,
    }
    v.forget(file.ino, 1);
    match n.checked_sub(KEPT) {
        // The turn behind it has removed it.
        Some(old) if old % 5 == 0 && old >= KEPT => Ok(()),
        Some(old) => v.unlink(&c, ROOT_INO, format!("{t}-{old}").as_bytes()),
        None => Ok(()),
    }
}

/// What a clone of the device has of a thread that had done `done` turns: the newest file. Those before it are there, but for what was removed.
fn newest(clone: &Volume, t: u64, done: u64) -> Option<u64> {
    let has = |n: &u64| {
        clone
            .lookup(ROOT_INO, format!("{t}-{n}").as_bytes())
            .is_ok()
    };
    let newest = (done.saturating_sub(5000)..done + 20_000).rev().find(has)?;
    // `n` with n % 5 == 0 is removed by the turn after it.
    let mut kept = (newest + 1).saturating_sub(KEPT)..newest;
    let missing = kept.find(|n| n % 5 != 0 && !has(n));
    assert_eq!(missing, None, "thread {t}, newest {newest}");
    Some(newest)
}

/// The threads end with the test, also if it fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn stands_still(dev: Arc<MemoryDevice>, mount: impl Fn(Arc<MemoryDevice>) -> Arc<Volume>) {
    let v = mount(dev.clone());
    let (stop, done) = (
        AtomicBool::new(false),
        [const { AtomicU64::new(0) }; THREADS as usize],
    );
    let all = || -> u64 { done.iter().map(|d| d.load(SeqCst)).sum() };
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (v, stop, done) = (&v, &stop, &done[t as usize]);
            scope.spawn(move || {
                for n in 0..TURNS {
                    if stop.load(SeqCst) {
                        break;
                    }
                    turn(v, t, n).unwrap();
                    // Turns whose calls have all returned.
                    done.store(n + 1, SeqCst);
                }
            });
        }
        let go_on = || {
            let (begun, end) = (all(), Instant::now() + Duration::from_secs(60));
            while all() < begun + 40 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(
                all() >= begun + 40,
                "nobody goes on: {}",
                v.status().stopped
            );
        };
        let _stop = Stop(&stop);
        for _ in 0..6 {
            go_on();
            // Not frozen, a copy of one moment is a crash state: of each stream a prefix.
            let shot = Arc::new(dev.snapshot());
            let w = mount(shot);
            for t in 0..THREADS {
                newest(&w, t, done[t as usize].load(SeqCst));
            }
            w.unmount().unwrap();
            let before: Vec<u64> = done.iter().map(|d| d.load(SeqCst)).collect();
            let clone = v
                .while_frozen(|| {
                    let (first, turns) = (dev.snapshot(), all());
                    let writes = dev.counters().writes;
                    std::thread::sleep(Duration::from_millis(250));
                    assert_eq!(dev.counters().writes, writes);
                    assert!(first.same_content(&dev.snapshot()));
                    // Only calls that had begun before may have returned.
                    assert!(all() <= turns + THREADS, "changes go on");
                    assert!(v.getattr(ROOT_INO).is_ok() && v.statfs().is_ok());
                    let again = v.while_frozen(|| unreachable!());
                    assert!(matches!(again, Err(Error::Errno(libc::EBUSY))));
                    first
                })
                .unwrap();
            let clone = Arc::new(clone);
            let w = mount(clone.clone());
            for t in 0..THREADS {
                let was = before[t as usize];
                let found = newest(&w, t, was);
                assert!(
                    was == 0 || found >= Some(was - 1),
                    "thread {t}: {was} {found:?}"
                );
            }
            w.unmount().unwrap();
        }
        go_on();
    });
    assert_eq!(v.status().stopped, "");
    v.unmount().unwrap();
}

#[test]
fn nothing_is_written_and_everything_accepted_is_there() {
    let dev = Arc::new(image(&[], "64M"));
    stands_still(dev.clone(), |dev| mount_on(dev, background()).unwrap());
    fsck(&dev);
}

/// Without background threads, and of a volume that is only read.
#[test]
fn quiet_and_read_only_volumes_stand_still_too() {
    let dev = Arc::new(image(&[], "16M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    v.mknod(&cx(2), ROOT_INO, b"f", 0o100644, 0).unwrap();
    let clone = v.while_frozen(|| Arc::new(dev.snapshot())).unwrap();
    let w = mount_on(clone, quiet()).unwrap();
    assert!(w.lookup(ROOT_INO, b"f").is_ok());
    v.mknod(&cx(2), ROOT_INO, b"g", 0o100644, 0).unwrap();
    v.unmount().unwrap();
    let options = Options {
        read_only: true,
        ..quiet()
    };
    let v = mount_on(dev, options).unwrap();
    assert_eq!(v.while_frozen(|| 7).unwrap(), 7);
}

/// A call whose caller has gone ends, and has done nothing; the others wait.
#[test]
fn who_has_gone_waits_no_longer() {
    let dev = Arc::new(image(&[], "16M"));
    let v = mount_on(dev, background()).unwrap();
    let file = v.mknod(&cx(2), ROOT_INO, b"f", 0o100644, 0).unwrap();
    let gone = Arc::new(std::sync::Mutex::new(None));
    let asked = gone.clone();
    v.ask_who_waits(Box::new(move || {
        *asked.lock().unwrap() == Some(std::thread::current().id())
    }));
    let ended = AtomicU64::new(0);
    let again = v.while_frozen(|| {
        std::thread::scope(|scope| {
            let wait = |name: &'static [u8]| {
                let (v, ended) = (&v, &ended);
                let call = move || {
                    let made = match name {
                        b"sync" => v.fsync(&cx(2), file.ino, false),
                        _ => v.mknod(&cx(2), ROOT_INO, name, 0o100644, 0).map(drop),
                    };
                    ended.fetch_add(1, SeqCst);
                    made
                };
                scope.spawn(call)
            };
            for name in [&b"never"[..], b"sync"] {
                let thread = wait(name);
                std::thread::sleep(Duration::from_millis(700));
                assert!(!thread.is_finished());
                *gone.lock().unwrap() = Some(thread.thread().id());
                let outcome = thread.join().unwrap();
                assert!(
                    matches!(outcome, Err(Error::Errno(libc::EINTR))),
                    "{outcome:?}"
                );
            }
        });
        ended.load(SeqCst)
    });
    assert_eq!(again.unwrap(), 2);
    assert!(v.lookup(ROOT_INO, b"never").is_err());
    v.mknod(&cx(2), ROOT_INO, b"later", 0o100644, 0).unwrap();
    v.unmount().unwrap();
}
