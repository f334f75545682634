//! The end of a process that has a store. By itself: `let_go` lets go of all that the process has.
use ccfs_device::OpenMode;
use ccfs_disks::{Fate, SimStore};
use ccfs_remote::{
    Done, Fence, Geometry, Owner, RemoteDevice, Request, Session, Settings, Store, Taken, let_go,
};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const SIZE: u64 = 1 << 20;
/// One test after the other: each lets go of all that the process has.
static ALONE: Mutex<()> = Mutex::new(());

/// A store with a lock of its own.
struct Fenced {
    store: Box<dyn Store>,
    lock: Arc<Lock>,
}

struct Lock {
    is_held: AtomicBool,
    /// Told when it begins to be given back.
    begun: mpsc::Sender<()>,
    /// How long it takes to be given back.
    takes: Duration,
}

struct FencedSession {
    session: Arc<dyn Session>,
    lock: Arc<Lock>,
}

impl Store for Fenced {
    fn connect(&self, wait: Duration, patience: Duration) -> io::Result<Arc<dyn Session>> {
        Ok(Arc::new(FencedSession {
            session: self.store.connect(wait, patience)?,
            lock: self.lock.clone(),
        }))
    }

    fn name(&self) -> &str {
        self.store.name()
    }

    fn kind(&self) -> &'static str {
        self.store.kind()
    }
}

impl Session for FencedSession {
    fn geometry(&self) -> Geometry {
        self.session.geometry()
    }

    fn start(&self, request: Request, done: Done) {
        self.session.start(request, done);
    }

    fn close(&self, told: bool) {
        self.session.close(told);
    }

    fn lock(&self) -> Option<&dyn Fence> {
        Some(&*self.lock)
    }
}

impl Fence for Lock {
    fn take(&self, _owner: &Owner, _take_over: bool) -> Result<(), Taken> {
        self.is_held.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn give_back(&self) {
        self.begun.send(()).expect("the test waits for it");
        std::thread::sleep(self.takes);
        self.is_held.store(false, Ordering::SeqCst);
    }

    fn owner(&self) -> Option<String> {
        None
    }
}

fn open(takes: Duration, patience: Duration) -> (RemoteDevice, Arc<Lock>, mpsc::Receiver<()>) {
    let (begun, hear) = mpsc::channel();
    let lock = Arc::new(Lock {
        is_held: AtomicBool::new(false),
        begun,
        takes,
    });
    let store = Fenced {
        store: SimStore::new(SIZE, 1, |_, _| Fate::Done).way(),
        lock: lock.clone(),
    };
    let settings = Settings {
        patience,
        ..Settings::default()
    };
    let device = RemoteDevice::open(Box::new(store), OpenMode::ReadWrite, settings);
    let device = device.expect("nobody has it");
    assert!(lock.is_held.load(Ordering::SeqCst));
    (device, lock, hear)
}

/// A thread drops the device, and the process ends meanwhile, and the thread with it: not before the lock is given back.
#[test]
fn the_end_waits_for_who_gives_the_store_back() {
    let _alone = ALONE.lock();
    let (device, lock, hear) = open(Duration::from_millis(300), Duration::from_secs(60));
    let dropping = std::thread::spawn(move || drop(device));
    hear.recv().expect("it is given back");
    let_go();
    assert!(
        !lock.is_held.load(Ordering::SeqCst),
        "the process ends, and the lock stays"
    );
    dropping.join().expect("it is dropped");
}

/// A store that does not answer any more keeps nobody's process.
#[test]
fn the_end_waits_for_a_store_no_longer_than_it_may_take() {
    const FOR_EVER: Duration = Duration::from_secs(3600);
    let _alone = ALONE.lock();
    let (device, lock, hear) = open(FOR_EVER, Duration::from_millis(50));
    let_go();
    hear.recv().expect("it was asked for");
    assert!(lock.is_held.load(Ordering::SeqCst));
    // Its drop would wait for the store.
    std::mem::forget(device);
}
