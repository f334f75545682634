//! A request that reads from the device, for as long as that takes, holds up nobody: not the others of its processor either.
mod common;
use ccfs_device::{Counters, Device, FileDevice, Ticket, Write};
use ccfs_fuse::transport::prepare_rings;
use ccfs_fuse::{FsType, Transport};
use common::{TestMount, can_mount, on_one_processor};
use parking_lot::{Condvar, Mutex};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Reads that bring these bytes are held until they are let go.
#[derive(Default)]
struct Hold {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Default)]
struct Held {
    needle: Option<Vec<u8>>,
    waiting: usize,
}

impl Hold {
    fn pass(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        let concerned = |needle: &Option<Vec<u8>>| {
            let needle = needle.as_ref().filter(|n| n.len() <= bytes.len());
            needle.is_some_and(|n| bytes.windows(n.len()).any(|w| w == n))
        };
        if !concerned(&state.needle) {
            return;
        }
        state.waiting += 1;
        self.changed.notify_all();
        let end = Instant::now() + PATIENCE;
        while concerned(&state.needle) && Instant::now() < end {
            self.changed.wait_for(&mut state, Duration::from_secs(1));
        }
        state.waiting -= 1;
    }

    fn hold(&self, needle: Option<&str>) {
        self.state.lock().needle = needle.map(|n| n.as_bytes().to_vec());
        self.changed.notify_all();
    }

    fn wait_for_one(&self) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.waiting == 0 {
            assert!(Instant::now() < end, "nobody reads it");
            self.changed.wait_for(&mut state, Duration::from_secs(1));
        }
    }
}

struct SlowDevice {
    inner: FileDevice,
    hold: Arc<Hold>,
}

impl Device for SlowDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)?;
        self.hold.pass(buf);
        Ok(())
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.inner.submit(writes)
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.inner.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn read_only(&self) -> bool {
        self.inner.read_only()
    }
    fn min_io(&self) -> u64 {
        self.inner.min_io()
    }
}

/// A call that reads from the device, and what it brings from there.
struct Case {
    needle: &'static str,
    call: fn(&Path),
}

const CASES: [Case; 5] = [
    Case {
        needle: "the bytes of a file",
        call: |mnt| {
            let mut all = Vec::new();
            File::open(mnt.join("cold/file"))
                .and_then(|mut f| f.read_to_end(&mut all))
                .unwrap();
            assert_eq!(all, page_with("the bytes of a file").repeat(16));
        },
    },
    Case {
        needle: "a block that is changed in part",
        call: |mnt| {
            let file = OpenOptions::new().write(true).open(mnt.join("cold/part"));
            file.unwrap().write_all_at(b"new", 4096 + 100).unwrap();
            let mut expected = page_with("a block that is changed in part").repeat(2);
            expected[4096 + 100..][..3].copy_from_slice(b"new");
            assert_eq!(fs::read(mnt.join("cold/part")).unwrap(), expected);
        },
    },
    Case {
        needle: "a-name-in-a-directory",
        call: |mnt| {
            let known = mnt.join("cold/names/a-name-in-a-directory");
            assert!(fs::metadata(known).unwrap().is_file());
        },
    },
    Case {
        needle: "another-name-in-a-directory",
        call: |mnt| {
            let mut names: Vec<_> = fs::read_dir(mnt.join("cold/list"))
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            names.sort();
            assert_eq!(names, ["another-name-in-a-directory", "b"]);
        },
    },
    Case {
        needle: "what-an-inode-holds",
        call: |mnt| {
            let target = fs::read_link(mnt.join("cold/link")).unwrap();
            assert_eq!(target, Path::new("what-an-inode-holds"));
        },
    },
];

fn page_with(text: &str) -> Vec<u8> {
    let mut page = vec![b'.'; 4096];
    page[..text.len()].copy_from_slice(text.as_bytes());
    page
}

/// Files that the cases read, far from each other's inodes, and those that others use meanwhile.
fn fill(mnt: &Path) {
    let apart = |name: &str| {
        fs::create_dir(mnt.join(name)).unwrap();
        // More inodes than one read brings.
        for i in 0..160 {
            fs::write(mnt.join(name).join(i.to_string()), "x").unwrap();
        }
    };
    fs::create_dir(mnt.join("cold")).unwrap();
    fs::create_dir(mnt.join("warm")).unwrap();
    fs::write(mnt.join("warm/file"), "warm").unwrap();
    apart("apart1");
    // Nothing that others need comes along with it.
    let filler = vec![b'-'; 512 << 10];
    fs::write(mnt.join("cold/before"), &filler).unwrap();
    fs::write(
        mnt.join("cold/file"),
        page_with("the bytes of a file").repeat(16),
    )
    .unwrap();
    fs::write(mnt.join("cold/behind"), &filler).unwrap();
    let part = page_with("a block that is changed in part").repeat(2);
    fs::write(mnt.join("cold/part"), part).unwrap();
    fs::create_dir(mnt.join("cold/names")).unwrap();
    fs::write(mnt.join("cold/names/a-name-in-a-directory"), "").unwrap();
    fs::create_dir(mnt.join("cold/list")).unwrap();
    for name in ["another-name-in-a-directory", "b"] {
        fs::write(mnt.join("cold/list").join(name), "").unwrap();
    }
    apart("apart2");
    symlink("what-an-inode-holds", mnt.join("cold/link")).unwrap();
    apart("apart3");
}

/// What others do: names, attributes, bytes, changes. None of it has to be read from the device once it was done.
fn work(mnt: &Path, round: usize) {
    for i in 0..20 {
        assert!(fs::metadata(mnt.join(format!("warm/none{round}-{i}"))).is_err());
    }
    let (new, newer) = (format!("warm/new{round}"), format!("warm/newer{round}"));
    fs::write(mnt.join(&new), "new").unwrap();
    fs::rename(mnt.join(&new), mnt.join(&newer)).unwrap();
    assert_eq!(fs::read(mnt.join(&newer)).unwrap(), b"new");
    fs::write(mnt.join("warm/file"), format!("round {round}")).unwrap();
    fs::remove_file(mnt.join(&newer)).unwrap();
}

fn check(transport: Transport) {
    let mut m = TestMount::new(FsType::Fuse);
    fill(&m.mnt());
    m.unmount();
    // So little that nothing is read that was not asked for.
    check_cases(&mut m, transport, 100 << 10, &CASES);
    // Together with what lies beside it.
    check_cases(&mut m, transport, 64 << 20, &CASES[..1]);
}

fn check_cases(m: &mut TestMount, transport: Transport, cache_bytes: usize, cases: &[Case]) {
    m.options.cache_bytes = cache_bytes;
    let hold = Arc::new(Hold::default());
    let held = hold.clone();
    m.mount_over(transport, move |inner| {
        Arc::new(SlowDevice { inner, hold: held })
    });
    let mnt = m.mnt();
    work(&mnt, 0);
    for (i, case) in cases.iter().enumerate() {
        hold.hold(Some(case.needle));
        std::thread::scope(|scope| {
            let (mnt, hold) = (&mnt, &hold);
            let reader = scope.spawn(move || {
                on_one_processor();
                (case.call)(mnt);
            });
            hold.wait_for_one();
            let worker = scope.spawn(move || {
                on_one_processor();
                work(mnt, i + 1);
            });
            let end = Instant::now() + PATIENCE;
            while !worker.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (done, still) = (worker.is_finished(), !reader.is_finished());
            hold.hold(None);
            assert!(done, "{}: others wait for the read", case.needle);
            assert!(still, "{}: the call has not waited", case.needle);
        });
    }
    m.unmount();
}

#[test]
fn a_read_from_the_device_holds_up_nobody_over_io_uring() {
    let test = "a_read_from_the_device_holds_up_nobody_over_io_uring";
    if !can_mount(test) {
        return;
    }
    match prepare_rings(None) {
        Ok(_) => check(Transport::Uring),
        Err(why) => println!("skipped: {test}: {why}"),
    }
}

#[test]
fn a_read_from_the_device_holds_up_nobody_over_dev() {
    if can_mount("a_read_from_the_device_holds_up_nobody_over_dev") {
        check(Transport::Dev);
    }
}
