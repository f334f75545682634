//! After a burst the daemon is what it was before: threads that nobody needs end, and memory goes back.
use ccfs_client as client;
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::sys;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const WRITERS: usize = 300;
const CHUNK: usize = 256 << 10;
const ROUNDS: usize = 8;
const GROUPS: usize = 16;
/// What may be left: a thread of each kind that somebody's small calls need, and what `CACHE` allows for.
const THREADS_MORE: usize = 8;
const BYTES_MORE: u64 = 32 << 20;
const CACHE: &str = "cache=4M,dirty=32M";
/// Longest wait for something that has to happen.
const PATIENCE: Duration = Duration::from_secs(120);

fn threads(v: &Volume) -> usize {
    let tasks = format!("/proc/{}/task", v.daemon_pid().expect("a daemon"));
    std::fs::read_dir(tasks).expect("its threads").count()
}

fn resident(v: &Volume) -> u64 {
    v.daemon_rss().expect("its memory").0
}

/// What somebody does all the time.
fn little(v: &Volume, n: usize) {
    let path = v.path(&format!("little-{}", n % 4));
    let file = sys::open(&path, libc::O_CREAT | libc::O_RDWR, 0o644).expect("create");
    sys::pwrite(&file, &[1; 4096], 0).expect("write");
    sys::fsync(&file).expect("fsync");
    sys::unlink(&path).expect("unlink");
}

fn group(v: &Volume, name: &str) {
    let root = File::open(v.mnt()).expect("the mount");
    client::group_begin(&root, None).expect("begin a group");
    std::fs::write(v.path(name), [3; 64 << 10]).expect("write in a group");
    client::group_abort(&root, 0).expect("take a group back");
}

/// Goes on until it was `seen`.
fn burst(v: &Volume, seen: &AtomicBool) {
    std::thread::scope(|scope| {
        for i in 0..WRITERS {
            scope.spawn(move || {
                let path = v.path(&format!("written-{i}"));
                let file = sys::open(&path, libc::O_CREAT | libc::O_RDWR, 0o644).expect("create");
                let bytes = vec![i as u8; CHUNK];
                let mut rounds = 0;
                while rounds < ROUNDS || !seen.load(SeqCst) {
                    sys::pwrite(&file, &bytes, 0).expect("write");
                    rounds += 1;
                }
                sys::fsync(&file).expect("fsync");
                sys::unlink(&path).expect("unlink");
            });
        }
    });
    std::thread::scope(|scope| {
        for i in 0..GROUPS {
            scope.spawn(move || (0..4).for_each(|_| group(v, &format!("in-group-{i}"))));
        }
    });
}

#[test]
fn a_burst_leaves_neither_threads_nor_memory() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("bursts") {
        return;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, "bursts")
        .options(CACHE)
        .on_flash(false);
    v.mkfs(512);
    v.mount();
    (0..20).for_each(|n| little(&v, n));
    group(&v, "one-group");
    let before = (threads(&v), resident(&v));
    let many = before.0 + 2 * THREADS_MORE;
    let (mut most, seen) = (0, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let all = scope.spawn(|| burst(&v, &seen));
        let end = Instant::now() + PATIENCE;
        while !all.is_finished() {
            most = threads(&v).max(most);
            seen.store(most > many || Instant::now() > end, SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    assert!(most > many, "no burst: {most} threads");
    let began = Instant::now();
    for n in 0.. {
        let now = (threads(&v), resident(&v));
        if now.0 <= before.0 + THREADS_MORE && now.1 <= before.1 + BYTES_MORE {
            println!(
                "{before:?}, {most} threads, {now:?} after {:?}",
                began.elapsed()
            );
            break;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "threads and bytes: {before:?} before, {now:?} left"
        );
        little(&v, n);
        std::thread::sleep(Duration::from_millis(10));
    }
    v.finish();
}
