//! One run of a workload: threads, warm-up, measured time, latencies.
use crate::stats::Latencies;
use crate::workload::{Worker, Workload};
use crate::{Because, Result, sys};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const WARM_UP: u8 = 0;
const MEASURE: u8 = 1;
const STOP: u8 = 2;
/// The warm-up is a tenth of the measured time, at most this.
const WARM_UP_MAX: Duration = Duration::from_millis(500);

/// What a run did.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub ops: u64,
    pub elapsed: Duration,
    /// Of the turns, where the workload wants them.
    pub latencies: Latencies,
}

impl Outcome {
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Prepares, then measures.
pub fn run(workload: &dyn Workload, dir: &Path, seed: u64, time: Duration) -> Result<Outcome> {
    prepare(workload, dir)?;
    measure(workload, dir, seed, time, &|| ())
}

/// Makes the files that the workload starts with. They are not to be written during the measurement.
pub fn prepare(workload: &dyn Workload, dir: &Path) -> Result<()> {
    workload.prepare(dir).because("preparation")?;
    sync(dir)
}

/// Brings a file system to its disk. Also where the kernel does not forward syncfs: the unmount of a daemon does it then.
pub fn sync(dir: &Path) -> Result<()> {
    let root = std::fs::File::open(dir).because(dir.display())?;
    sys::syncfs(&root).because("syncfs")
}

/// What the threads share.
struct Shared<'a> {
    workload: &'a dyn Workload,
    phase: AtomicU8,
    sum: Mutex<(u64, Latencies)>,
    error: Mutex<Option<std::io::Error>>,
}

impl Shared<'_> {
    fn has_failed(&self) -> bool {
        self.error.lock().is_ok_and(|e| e.is_some())
    }
}

/// Warms up, tells `begins`, runs for `time`, or until all is done where a workload has an end. The time taken ends when the
/// last thread has finished what it had begun (and what [`Workload::finish`] says).
pub fn measure(
    workload: &dyn Workload,
    dir: &Path,
    seed: u64,
    time: Duration,
    begins: &dyn Fn(),
) -> Result<Outcome> {
    let first = if workload.warms_up() {
        WARM_UP
    } else {
        MEASURE
    };
    let shared = Shared {
        workload,
        phase: AtomicU8::new(first),
        sum: Mutex::default(),
        error: Mutex::new(None),
    };
    let start = Barrier::new(workload.threads() + 1);
    let elapsed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workload.threads())
            .map(|index| {
                let (shared, start) = (&shared, &start);
                scope.spawn(move || {
                    let mut worker = Worker::new(dir, index, seed);
                    let begun = shared.workload.begin(&mut worker);
                    start.wait();
                    if let Err(e) = begun.and_then(|()| thread(shared, &mut worker)) {
                        if let Ok(mut first) = shared.error.lock() {
                            first.get_or_insert(e);
                        }
                        shared.phase.store(STOP, Relaxed);
                    }
                })
            })
            .collect();
        if first == MEASURE {
            begins();
        }
        start.wait();
        let all_ended = || threads.iter().all(|t| t.is_finished());
        let mut began = Instant::now();
        if first == WARM_UP {
            let warm = time.mul_f64(0.1).min(WARM_UP_MAX);
            sleep_until(began + warm, &all_ended);
            begins();
            // Not over a STOP by an error.
            if shared
                .phase
                .compare_exchange(WARM_UP, MEASURE, Relaxed, Relaxed)
                .is_ok()
            {
                began = Instant::now();
            }
        }
        sleep_until(began + time, &all_ended);
        shared.phase.store(STOP, Relaxed);
        for thread in threads {
            // A panic is passed on by the scope.
            let _ = thread.join();
        }
        began.elapsed()
    });
    match shared.error.into_inner() {
        Ok(None) => {}
        Ok(Some(e)) => return Err(format!("{e}")),
        Err(_) => return Err("a thread panicked".into()),
    }
    let (ops, latencies) = shared.sum.into_inner().unwrap_or_default();
    Ok(Outcome {
        ops,
        elapsed,
        latencies,
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

fn thread(shared: &Shared, worker: &mut Worker) -> std::io::Result<()> {
    let workload = shared.workload;
    let (mut counted, mut latencies) = (0, Latencies::default());
    let timed = workload.timed();
    let mut turns = 0;
    loop {
        let now = shared.phase.load(Relaxed);
        // One turn counts at least, however busy the machine is: its time is in the time taken.
        if now == STOP && (turns > 0 || shared.has_failed()) {
            break;
        }
        let begun = timed.then(Instant::now);
        let Some(done) = workload.step(worker)? else {
            break;
        };
        if now != WARM_UP {
            turns += 1;
            counted += done;
            if let Some(begun) = begun {
                latencies.add(begun.elapsed());
            }
        }
    }
    workload.finish(worker)?;
    if let Ok(mut sum) = shared.sum.lock() {
        sum.0 += counted;
        sum.1.merge(&latencies);
    }
    Ok(())
}
