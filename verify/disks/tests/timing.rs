//! The timed device: the data of the inner device, and about the time that the model says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_disks::{MemoryDevice, Params, Timed};

fn params() -> Params {
    let text = Params::PRESETS[1].1;
    Params {
        read_command_us: 3000,
        write_command_us: 30_000,
        flush_us: 5000,
        queue_depth: 8,
        ..Params::parse(text).unwrap()
    }
}

fn device() -> Timed {
    Timed::new(Arc::new(MemoryDevice::new(1 << 20)), params())
}

fn took(begun: Instant, at_least_ms: u64) {
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(at_least_ms), "{took:?}");
}

/// What a quiet moment shows: the machine may be busy, so the best of many tries counts.
fn at_best(what: &str, limit: Duration, mut f: impl FnMut() -> Duration) {
    let end = Instant::now() + Duration::from_secs(120);
    while f() >= limit {
        assert!(Instant::now() < end, "{what}: never below {limit:?}");
    }
}

#[test]
fn calls_take_their_time() {
    let dev = device();
    let begun = Instant::now();
    let ticket = dev.submit(
        (0..8)
            .map(|index| Write::new(index * 4096, AlignedBuf::zeroed(4096)))
            .collect(),
    );
    dev.wait(ticket).unwrap();
    took(begun, 30);
    at_best("submit does not wait", Duration::from_millis(25), || {
        let begun = Instant::now();
        let ticket = dev.submit(vec![Write::new(0, AlignedBuf::zeroed(4096))]);
        let submitted = begun.elapsed();
        dev.wait(ticket).unwrap();
        submitted
    });
    let begun = Instant::now();
    dev.flush().unwrap();
    took(begun, 5);
    let begun = Instant::now();
    dev.read(4096, &mut [0; 512]).unwrap();
    took(begun, 3);
    assert!(dev.counters().writes > 8);
}

#[test]
fn readers_share_the_queue() {
    let dev = device();
    // 80 reads of 3 ms in 8 slots; one after another they take 240 ms.
    at_best("80 reads", Duration::from_millis(200), || {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10).for_each(|_| dev.read(0, &mut [0; 512]).unwrap()));
            }
        });
        took(begun, 30);
        begun.elapsed()
    });
}

#[test]
fn pauses_are_precise() {
    let dev = device();
    at_best("a pause of 3 ms", Duration::from_micros(3300), || {
        let begun = Instant::now();
        dev.read(0, &mut [0; 512]).unwrap();
        took(begun, 3);
        begun.elapsed()
    });
}

#[test]
fn data_and_errors_pass_through() {
    let dev = device();
    let buf = AlignedBuf::from_bytes(&[7; 512]);
    write_all(&dev, vec![Write::new(512, buf)]).unwrap();
    let mut got = [0; 512];
    dev.read(512, &mut got).unwrap();
    assert_eq!(got, [7; 512]);
    assert!(write_all(&dev, vec![Write::new(1 << 20, AlignedBuf::zeroed(512))]).is_err());
    assert!(dev.read(1 << 20, &mut [0]).is_err());
    dev.discard(0, 4096).unwrap();
    dev.read(512, &mut got).unwrap();
    assert_eq!(got, [0; 512]);
    assert_eq!(
        (dev.size_bytes(), dev.min_io(), dev.read_only()),
        (1 << 20, 512, false)
    );
}
