//! One run of a workload: threads, warm-up, measured time.
use crate::workload::{Worker, Workload};
use crate::{Because, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;
/// The warm-up is a tenth of the measured time, at most this.
const WARM_UP_MAX: Duration = Duration::from_millis(500);

/// What a run did.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub ops: u64,
    pub elapsed: Duration,
}

impl Outcome {
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Prepares `dir`, warms up, runs for `time`, or until all is done where a workload has an end. The time taken ends when the
/// last thread has finished what it had begun (and what [`Workload::finish`] says).
pub fn run(workload: &dyn Workload, dir: &Path, seed: u64, time: Duration) -> Result<Outcome> {
    workload.prepare(dir).because("preparation")?;
    // What was prepared is not to be written during the measurement.
    let root = std::fs::File::open(dir).because(dir.display())?;
    rustix::fs::syncfs(&root).because("syncfs")?;
    let first = if workload.warms_up() {
        WARM_UP
    } else {
        MEASURE
    };
    let (phase, ops) = (AtomicU8::new(first), AtomicU64::new(0));
    let start = Barrier::new(workload.threads() + 1);
    let error = Mutex::new(None);
    let elapsed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workload.threads())
            .map(|index| {
                let (phase, ops, start, error) = (&phase, &ops, &start, &error);
                scope.spawn(move || {
                    let mut worker = Worker::new(dir, index, seed);
                    start.wait();
                    if let Err(e) = thread(workload, &mut worker, phase, ops) {
                        phase.store(STOP, Relaxed);
                        if let Ok(mut first) = error.lock() {
                            first.get_or_insert(e);
                        }
                    }
                })
            })
            .collect();
        start.wait();
        let all_ended = || threads.iter().all(|t| t.is_finished());
        let mut began = Instant::now();
        if first == WARM_UP {
            let warm = time.mul_f64(0.1).min(WARM_UP_MAX);
            sleep_until(began + warm, &all_ended);
            // Not over a STOP by an error.
            if phase
                .compare_exchange(WARM_UP, MEASURE, Relaxed, Relaxed)
                .is_ok()
            {
                began = Instant::now();
            }
        }
        sleep_until(began + time, &all_ended);
        phase.store(STOP, Relaxed);
        for thread in threads {
            // A panic is passed on by the scope.
            let _ = thread.join();
        }
        began.elapsed()
    });
    match error.into_inner() {
        Ok(None) => {}
        Ok(Some(e)) => return Err(format!("{e}")),
        Err(_) => return Err("a thread panicked".into()),
    }
    Ok(Outcome {
        ops: ops.into_inner(),
        elapsed,
    })
}

fn sleep_until(end: Instant, done: &dyn Fn() -> bool) {
    while !done() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(1)));
    }
}

fn thread(
    workload: &dyn Workload,
    worker: &mut Worker,
    phase: &AtomicU8,
    ops: &AtomicU64,
) -> std::io::Result<()> {
    let mut counted = 0;
    loop {
        let now = phase.load(Relaxed);
        if now == STOP {
            break;
        }
        let Some(done) = workload.step(worker)? else {
            break;
        };
        if now == MEASURE {
            counted += done;
        }
    }
    workload.finish(worker)?;
    ops.fetch_add(counted, Relaxed);
    Ok(())
}
