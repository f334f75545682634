//! What it costs to find out in whose stream a request runs, for threads that are known: the goal is 200 ns.
//!
//! `cargo run --release -p ccfs-caller --example cost`
use ccfs_caller::procfs::Proc;
use ccfs_caller::{CallerConfig, Callers, Engine, Forks};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;

const LOOKUPS: u32 = 2_000_000;

/// No engine: nothing is ever uncommitted.
struct Nothing;

impl Engine for Nothing {
    fn abandon(&self, _: u64) {}
    fn fresh_id(&self) -> u64 {
        1 << 32
    }
    fn is_settled(&self, _id: u64) -> bool {
        true
    }
    fn settle(&self, _ids: &[u64]) -> Result<(), ccfs_engine::Error> {
        Ok(())
    }
}

/// Of this thread, nanoseconds: what others do on a busy machine does not count.
fn processor_time() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Nanoseconds for one lookup with so many threads at once.
fn cost(callers: &Callers, threads: u32) -> f64 {
    let one = || {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let uid = rustix::process::geteuid().as_raw();
        callers.set(tid, uid, 77, 0).expect("set");
        let start = processor_time();
        for _ in 0..LOOKUPS {
            let caller = callers.caller(std::hint::black_box(tid), uid);
            assert_eq!(caller.stream.0, 77);
        }
        (processor_time() - start) / f64::from(LOOKUPS)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let costs = all.into_iter().map(|t| t.join().expect("a thread"));
        costs.sum::<f64>() / f64::from(threads)
    })
}

fn main() {
    for forks in [Forks::Auto, Forks::Proc] {
        let config = CallerConfig {
            forks,
            ..CallerConfig::default()
        };
        let callers = Callers::new(Proc::new("/proc"), config, Arc::new(Nothing));
        for threads in [1, 2, 4] {
            let ns = cost(&callers, threads);
            let mode = callers.identity().mode;
            println!("{mode:<10} {threads} threads: {ns:6.0} ns for one lookup");
        }
    }
}
