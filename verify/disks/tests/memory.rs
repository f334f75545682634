//! The in-memory device against a plain byte array.

use ccfs_device::{AlignedBuf, Device, SharedBuf, Slice, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_testkit::Rng;
use proptest::prelude::*;

const SIZE: u64 = 3 << 20;

fn pattern(len: usize, seed: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    Rng::new(seed).fill(&mut buf);
    buf
}

fn content(dev: &MemoryDevice) -> Vec<u8> {
    let mut all = vec![0xee; dev.size_bytes() as usize];
    dev.read(0, &mut all).unwrap();
    all
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        sector: u64,
        sectors: u64,
        seed: u64,
    },
    Fill {
        offset: u64,
        len: u64,
        byte: u8,
    },
    Snapshot,
}

fn step() -> impl Strategy<Value = Step> {
    let sectors = SIZE / 512;
    prop_oneof![
        5 => (0..sectors, 1u64..700, any::<u64>()).prop_map(move |(sector, count, seed)| Step::Write {
            sector,
            sectors: count.min(sectors - sector),
            seed,
        }),
        2 => (0..SIZE, 0u64..600_000, prop_oneof![Just(0u8), any::<u8>()])
            .prop_map(|(offset, len, byte)| Step::Fill { offset, len: len.min(SIZE - offset), byte }),
        2 => Just(Step::Snapshot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    /// The device is the array, and a snapshot stays what it was when it was taken.
    #[test]
    fn behaves_like_an_array(steps in proptest::collection::vec(step(), 1..25)) {
        let dev = MemoryDevice::new(SIZE);
        let mut model = vec![0u8; SIZE as usize];
        let mut snapshots = Vec::new();
        for step in steps {
            match step {
                Step::Write { sector, sectors, seed } => {
                    let buf = pattern((sectors * 512) as usize, seed);
                    let at = (sector * 512) as usize;
                    model[at..at + buf.len()].copy_from_slice(&buf);
                    write_all(&dev, vec![Write::new(sector * 512, buf)]).unwrap();
                }
                Step::Fill { offset, len, byte } => {
                    dev.fill(offset, len, byte).unwrap();
                    model[offset as usize..(offset + len) as usize].fill(byte);
                }
                Step::Snapshot => snapshots.push((dev.snapshot(), model.clone())),
            }
        }
        prop_assert!(content(&dev) == model);
        for (snapshot, model) in &snapshots {
            prop_assert!(content(snapshot) == *model);
            // The comparison agrees with the bytes.
            let first = content(snapshot).chunks(4096).zip(content(&dev).chunks(4096)).position(|(a, b)| a != b);
            prop_assert_eq!(snapshot.first_difference(&dev), first.map(|index| index as u64 * 4096));
        }
    }
}

#[test]
fn files_keep_content_and_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    // 64 GiB: only what was written may take room.
    let dev = MemoryDevice::new(64 << 30);
    for (index, offset) in [0, 5 << 20, (40 << 30) + 512, (64 << 30) - 512]
        .into_iter()
        .enumerate()
    {
        write_all(&dev, vec![Write::new(offset, pattern(512, index as u64))]).unwrap();
    }
    dev.to_file(&path).unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 64 << 30);
    assert!(std::os::unix::fs::MetadataExt::blocks(&meta) < 1024);
    let back = MemoryDevice::from_file(&path).unwrap();
    assert!(back.same_content(&dev));
    assert_eq!(back.used_bytes(), 4 * 4096);
    write_all(&back, vec![Write::new(512, pattern(512, 9))]).unwrap();
    assert_eq!(back.first_difference(&dev), Some(0));
}

#[test]
fn filling_takes_no_memory_worth_mentioning() {
    let dev = MemoryDevice::new(1 << 30);
    dev.fill(0, 1 << 30, 0xdb).unwrap();
    let mut bytes = [0; 3];
    dev.read((1 << 29) + 5, &mut bytes).unwrap();
    assert_eq!(bytes, [0xdb; 3]);
    dev.discard(0, 1 << 30).unwrap();
    assert_eq!(dev.used_bytes(), 0);
}

#[test]
fn refuses_what_lies_outside() {
    let dev = MemoryDevice::new(10_000);
    assert_eq!(dev.size_bytes(), 9728);
    let buf = SharedBuf::from(AlignedBuf::zeroed(4096));
    let part = |start, len| {
        vec![Slice {
            buf: buf.clone(),
            start,
            len,
        }]
    };
    let bad = [
        (9728 - 512, part(0, 1024)),
        (u64::MAX - 511, part(0, 512)),
        (0, part(4096, 512)),
        (0, part(usize::MAX - 511, 512)),
        (0, part(1, 512)),
        (0, part(0, 100)),
        (100, part(0, 512)),
    ];
    for (offset, parts) in bad {
        let error = write_all(&dev, vec![Write { offset, parts }]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert!(dev.read(9728, &mut [0]).is_err());
    assert!(dev.read(u64::MAX, &mut [0; 2]).is_err());
    assert!(dev.discard(9000, 1000).is_err());
    dev.read(9728, &mut []).unwrap();
    assert_eq!(dev.counters().writes, 0);
}

#[test]
fn parallel_writers_and_snapshots() {
    let dev = MemoryDevice::new(64 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let dev = &dev;
            scope.spawn(move || {
                for round in 0..2000u64 {
                    // Neighbouring blocks of all threads: segments and shards are shared.
                    let block = (round * 4 + thread) % 16384;
                    let buf = pattern(4096, block);
                    write_all(dev, vec![Write::new(block * 4096, buf)]).unwrap();
                }
            });
        }
        for _ in 0..50 {
            let snapshot = dev.snapshot();
            let mut block = [0; 4096];
            for number in (0..16384u64).step_by(97) {
                snapshot.read(number * 4096, &mut block).unwrap();
                assert!(
                    block == [0; 4096] || block == pattern(4096, number)[..],
                    "block {number} is torn"
                );
            }
        }
    });
    assert_eq!(dev.counters().writes, 8000);
    let mut block = [0; 4096];
    for number in 0..8000u64 {
        dev.read(number * 4096, &mut block).unwrap();
        assert!(block == pattern(4096, number)[..]);
    }
}
