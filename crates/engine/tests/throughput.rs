//! Operations a second of threads in streams of their own, on the memory device. A process of its own, so that no other test runs
//! beside it. Reported, not judged: a busy machine makes any figure. What is judged is that nothing was miscounted on the way.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{cx, flash, fsck, image, mount_on};
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// As the daemon has it: pages are allocated and freed by the thousand.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Files that each thread makes.
const ROUNDS: u64 = 50_000;
/// Each keeps the last ones, so that memory is used again and again.
const KEPT: u64 = 200;
/// Each number of threads is measured so often, by turns.
const REPEATS: usize = 3;

#[derive(Clone, Copy, Default)]
struct Figures {
    ops_per_s: f64,
    /// Processor time of an operation in the thread that calls, nanoseconds.
    cpu_ns: f64,
}

/// Processor time of this thread, nanoseconds.
fn thread_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Creates, small writes, lookups and removals in a directory of the thread's own. Returns the processor time taken, nanoseconds.
fn work(v: &Volume, thread: u64) -> u64 {
    let c = cx(100 + thread);
    let dir = v
        .mkdir(&c, ROOT_INO, format!("d{thread}").as_bytes(), 0o755)
        .unwrap()
        .ino;
    let start = thread_cpu_ns();
    for i in 0..ROUNDS {
        let name = format!("f{i}");
        let f = v.mknod(&c, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
        v.write(&c, f, 0, &[7; 1000], WriteFlags::default())
            .unwrap();
        assert_eq!(v.lookup(dir, name.as_bytes()).unwrap().ino, f);
        if i >= KEPT {
            v.unlink(&c, dir, format!("f{}", i - KEPT).as_bytes())
                .unwrap();
        }
    }
    thread_cpu_ns() - start
}

fn volume() -> (Arc<MemoryDevice>, Arc<Volume>) {
    // On flash all of it is copied there first.
    let size = if flash::chosen() { "1G" } else { "16G" };
    let dev = Arc::new(image(&["-b", "4096", "-N", "200000"], size));
    let v = mount_on(dev.clone(), Options::default()).unwrap();
    (dev, v)
}

/// `threads` threads on one volume, or on a volume each: then they share nothing but the machine.
fn throughput(threads: u64, apart: bool) -> Figures {
    let volumes: Vec<_> = (0..if apart { threads } else { 1 })
        .map(|_| volume())
        .collect();
    let barrier = Barrier::new(threads as usize + 1);
    let (start, cpu) = std::thread::scope(|s| {
        let spawn = |t: u64| {
            let (v, barrier) = (&volumes[t as usize % volumes.len()].1, &barrier);
            s.spawn(move || {
                barrier.wait();
                work(v, t)
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        barrier.wait();
        let start = Instant::now();
        let cpu = running.into_iter().map(|t| t.join().unwrap());
        (start, cpu.sum::<u64>())
    });
    let seconds = start.elapsed().as_secs_f64();
    for (dev, v) in &volumes {
        // Every operation was counted once, whatever else happened at the same time.
        let changes = 1 + ROUNDS * 2 + (ROUNDS - KEPT);
        let here = threads / volumes.len() as u64;
        assert_eq!(v.status().counters.operations, here * changes);
        v.unmount().unwrap();
        assert_eq!(v.status().dirty_bytes, 0);
        fsck(dev);
    }
    let ops = (threads * ROUNDS * 4) as f64;
    Figures {
        ops_per_s: ops / seconds,
        cpu_ns: cpu as f64 / ops,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn throughput_of_streams_is_reported() {
    const CASES: [(u64, bool); 5] = [(1, false), (2, false), (2, true), (4, false), (4, true)];
    let mut runs = [const { Vec::new() }; CASES.len()];
    for _ in 0..REPEATS {
        for (&(threads, apart), runs) in CASES.iter().zip(&mut runs) {
            runs.push(throughput(threads, apart));
        }
    }
    let of = |runs: &[Figures], f: fn(&Figures) -> f64| median(runs.iter().map(f).collect());
    let one = of(&runs[0], |f| f.ops_per_s);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("engine, memory device, {cores} cores, median of {REPEATS}:");
    for ((threads, apart), runs) in CASES.iter().zip(&runs) {
        let rate = of(runs, |f| f.ops_per_s);
        println!(
            "  {threads} threads in streams of their own, {}: {rate:.0} op/s, {:.2} times one thread; {:.0} ns of processor time per operation",
            if *apart {
                "a volume each"
            } else {
                "one volume"
            },
            rate / one,
            of(runs, |f| f.cpu_ns),
        );
        assert!(rate > 0.0);
    }
}
