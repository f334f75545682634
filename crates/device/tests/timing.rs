//! The timed device: the data of the inner device, and about the time that the model says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ccfs_device::{AlignedBuf, Device, MemoryDevice, Params, Timed, Write, write_all};

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
    // Wide, because the machine may be busy.
    assert!(
        took < Duration::from_millis(at_least_ms * 5 + 100),
        "{took:?}"
    );
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
    assert!(
        begun.elapsed() < Duration::from_millis(25),
        "submit must not wait"
    );
    dev.wait(ticket).unwrap();
    took(begun, 30);
    let begun = Instant::now();
    dev.flush().unwrap();
    took(begun, 5);
    let begun = Instant::now();
    dev.read(4096, &mut [0; 512]).unwrap();
    took(begun, 3);
    assert_eq!(dev.counters().writes, 8);
}

#[test]
fn readers_share_the_queue() {
    let dev = device();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..10).for_each(|_| dev.read(0, &mut [0; 512]).unwrap()));
        }
    });
    // 80 reads of 3 ms in 8 slots.
    took(begun, 30);
}

#[test]
fn pauses_are_precise() {
    let dev = device();
    let best = (0..20).map(|_| {
        let begun = Instant::now();
        dev.read(0, &mut [0; 512]).unwrap();
        begun.elapsed()
    });
    let best = best.min().unwrap();
    assert!(
        best >= Duration::from_millis(3) && best < Duration::from_micros(3300),
        "{best:?}"
    );
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
