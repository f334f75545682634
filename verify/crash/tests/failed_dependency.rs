//! A commit fails while a transaction that depends on it is being committed: the later one must not look as if it stood alone.
use ccfs_crash::config::CONFIGS;
use ccfs_crash::drive::Driver;
use ccfs_crash::generate::Action;
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::*;
use ccfs_crash::run::mount;
use ccfs_crash::script::Script;
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_device::{Counters, Device, Ticket, Write};
use ccfs_disks::{Outcome, Plan, SimDevice};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Lets the thread "first" learn of its failed write only when "second" has begun to write, and "second" go on only when "first" knows.
struct Gate {
    dev: Arc<SimDevice>,
    failed: AtomicBool,
    second_writes: AtomicBool,
    met: AtomicBool,
    first_knows: AtomicBool,
}

/// False: nobody came. (A panic here would leave the engine's other threads waiting.)
fn until(flag: &AtomicBool) -> bool {
    let start = Instant::now();
    while !flag.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    flag.load(Ordering::Acquire)
}

impl Device for Gate {
    fn size_bytes(&self) -> u64 {
        self.dev.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.dev.read(offset, buf)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.dev.submit(writes)
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        let done = self.dev.wait(ticket);
        match std::thread::current().name() {
            Some("first") if done.is_err() => {
                self.failed.store(true, Ordering::Release);
                self.met
                    .store(until(&self.second_writes), Ordering::Release);
            }
            Some("second") => {
                self.second_writes.store(true, Ordering::Release);
                until(&self.first_knows);
            }
            _ => {}
        }
        done
    }
    fn flush(&self) -> io::Result<()> {
        self.dev.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dev.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.dev.counters()
    }
    fn read_only(&self) -> bool {
        self.dev.read_only()
    }
}

#[test]
fn a_failed_commit_takes_its_dependents_along() {
    let setting = Setting::new(&CONFIGS[7]);
    let dev = Arc::new(SimDevice::new(&image::base(setting.config).unwrap()));
    let gate = Arc::new(Gate {
        dev: dev.clone(),
        failed: AtomicBool::new(false),
        second_writes: AtomicBool::new(false),
        met: AtomicBool::new(false),
        first_knows: AtomicBool::new(false),
    });
    let vol = mount(gate.clone(), setting.options()).unwrap();
    let base = observe(&vol).unwrap();
    let mut driver = Driver::new(vol.clone(), Some(dev.clone()), &base, 2);
    // Enough data that B's commit writes and flushes it before its frames.
    let mut text = String::from("A mkdir d; B create d/f;");
    for i in 0..48 {
        text += &format!("B write d/f {} 131072;", i * 131_072);
    }
    let mut script = Script::new(&text, FIRST_NODE);
    while let Some((stream, action)) = script.next(&driver.tree).unwrap() {
        driver.act(stream, &action).unwrap();
    }
    let sync = |stream| driver.sync_call(stream, &Action::StreamSync).unwrap();
    let (first, second) = (sync(0), sync(1));
    dev.set_plan(Plan {
        fail_writes: vec![0],
        seed: 1,
        ..Plan::default()
    });
    std::thread::scope(|scope| {
        let (vol, gate) = (&vol, &gate);
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let a = named("first").spawn_scoped(scope, move || {
            let done = first.perform(vol);
            gate.first_knows.store(true, Ordering::Release);
            done
        });
        assert!(until(&gate.failed));
        let b = named("second").spawn_scoped(scope, move || second.perform(vol));
        assert!(a.unwrap().join().unwrap().is_err());
        assert!(b.unwrap().join().unwrap().is_err());
    });
    assert!(
        gate.met.load(Ordering::Acquire),
        "the threads did not meet: {:?}",
        vol.status().counters
    );
    vol.shutdown();
    let an = Analysis::new(base, driver.history, true).unwrap();
    let crash = Crash {
        accepted: an.history.ops.len(),
        synced: 0,
    };
    let at = dev.events();
    let n = dev.unflushed(at);
    let one = (0..n).flat_map(|i| [Outcome::Only(i), Outcome::AllBut(i)]);
    for outcome in [Outcome::None, Outcome::All].into_iter().chain(one) {
        let image = Arc::new(dev.crash_image(at, &outcome));
        let vol = mount(image, setting.options()).unwrap_or_else(|e| panic!("{outcome:?}: {e}"));
        let seen = observe(&vol).unwrap_or_else(|e| panic!("{outcome:?}: {e}"));
        vol.shutdown();
        judge(&an, &crash, &seen).unwrap_or_else(|v| panic!("{outcome:?}: {v}"));
    }
}
