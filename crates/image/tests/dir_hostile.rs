//! Damaged directories and attributes: errors, no panics, no endless loops.

mod dir_common;
use ccfs_device::{Device, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_image::{Image, OpenOptions};
use dir_common::{Links, Rng, Volume};
use std::sync::Arc;

/// Everything that can be asked of or done to a directory.
fn exercise(image: &Image, dir: u32) -> usize {
    let mut errors = 0;
    let mut note = |failed: bool| errors += usize::from(failed);
    let mut count = 0;
    note(
        image
            .dir_scan(dir, 0, &mut |_| {
                count += 1;
                count < 100_000
            })
            .is_err(),
    );
    note(image.dir_scan(dir, 1 << 61, &mut |_| true).is_err());
    note(image.dir_is_empty(dir).is_err());
    note(image.dir_headroom(dir, u64::MAX).is_err());
    for name in ["name-1", "name-250", "absent", ".."] {
        note(image.dir_lookup(dir, name.as_bytes()).is_err());
    }
    for i in 0..40 {
        note(
            image
                .dir_insert(dir, format!("new-{i}").as_bytes(), 12, 1)
                .is_err(),
        );
    }
    note(image.dir_remove(dir, b"name-2").is_err());
    note(image.dir_remove(dir, b"new-3").is_err());
    note(image.dir_set_parent(dir, 2).is_err());
    errors
}

/// Volume with a directory of some hundred names, its blocks' numbers, and its number.
fn prepared(kind: &[&str], names: usize) -> (Volume, Vec<u64>, u32) {
    let volume = Volume::make(16, kind);
    let dir = volume.mkdir(2, "d");
    let mut links = Links::default();
    for i in 0..names {
        let ino = links.take(&volume);
        volume
            .image
            .dir_insert(dir, format!("name-{i}").as_bytes(), ino, 1)
            .unwrap();
    }
    links.settle(&volume, 2);
    volume.check();
    let size = volume.image.read_attr(dir).unwrap().size;
    let blocks = (0..size / volume.block_size)
        .map(|l| volume.image.lookup(dir, l).unwrap().pblk.unwrap())
        .collect();
    (volume, blocks, dir)
}

fn damage(dev: &MemoryDevice, pblk: u64, size: u64, change: impl FnOnce(&mut [u8])) {
    let mut block = vec![0; size as usize];
    dev.read(pblk * size, &mut block).unwrap();
    change(&mut block);
    write_all(
        dev,
        vec![Write::new(
            pblk * size,
            ccfs_device::AlignedBuf::from_bytes(&block),
        )],
    )
    .unwrap();
}

fn open(dev: &MemoryDevice) -> Image {
    let copy: Arc<dyn Device> = Arc::new(dev.snapshot());
    let image = Image::open(copy, OpenOptions::default()).unwrap();
    image.alloc().reserve(0, 1000);
    image
}

#[test]
fn random_damage() {
    for (seed, kind) in [
        &["-b", "1024", "-O", "^metadata_csum"][..],
        &["-b", "1024", "-O", "^metadata_csum,^dir_index"],
    ]
    .iter()
    .enumerate()
    {
        let (volume, blocks, dir) = prepared(kind, 400);
        let mut rng = Rng::new(seed as u64 + 7);
        let mut errors = 0;
        for round in 0..600 {
            let dev = volume.dev.snapshot();
            for _ in 0..1 + rng.index(3) {
                // Mostly the heads of blocks, where the structure is, and mostly the root.
                let pblk = if rng.index(2) == 0 {
                    blocks[0]
                } else {
                    blocks[rng.index(blocks.len())]
                };
                let at = rng.index(if round % 3 == 0 { 1024 } else { 80 });
                let value = [0, 1, 0xff, rng.draw() as u8][rng.index(4)];
                damage(&dev, pblk, volume.block_size, |b| b[at] = value);
            }
            errors += usize::from(exercise(&open(&dev), dir) > 0);
        }
        assert!(errors > 100, "{errors}");
    }
}

#[test]
fn checksums_are_checked() {
    let (volume, blocks, dir) = prepared(&["-b", "1024"], 400);
    for pblk in &blocks {
        let dev = volume.dev.snapshot();
        damage(&dev, *pblk, volume.block_size, |b| b[9] ^= 1);
        let image = open(&dev);
        let error = image.dir_scan(dir, 0, &mut |_| true).unwrap_err();
        assert!(error.to_string().contains("checksum"), "{error}");
    }
    let bytes = volume.block_size;
    let dev = volume.dev.snapshot();
    damage(&dev, blocks[1], bytes, |b| b[1012..].fill(0));
    assert!(open(&dev).dir_scan(dir, 0, &mut |_| true).is_err());
}

/// Pairs of the index that lead back to the index, to each other, or everywhere to one leaf.
#[test]
fn loops_in_the_tree() {
    let (volume, blocks, dir) = prepared(&["-b", "1024", "-O", "^metadata_csum"], 6000);
    let word = |b: &mut [u8], at: usize, v: u32| b[at..at + 4].copy_from_slice(&v.to_le_bytes());
    let mut root = vec![0; 1024];
    volume.dev.read(blocks[0] * 1024, &mut root).unwrap();
    assert_eq!(root[30], 1, "one level of nodes");
    let node = u32::from_le_bytes(root[36..40].try_into().unwrap());
    type Change = Box<dyn Fn(&MemoryDevice)>;
    let (b0, bn) = (blocks[0], blocks[node as usize]);
    let changes: Vec<Change> = vec![
        Box::new(move |dev| damage(dev, b0, 1024, |b| word(b, 36, 0))),
        Box::new(move |dev| damage(dev, bn, 1024, |b| word(b, 12, node))),
        Box::new(move |dev| damage(dev, bn, 1024, |b| word(b, 12, 0))),
        Box::new(move |dev| {
            damage(dev, bn, 1024, |b| {
                (1..100).for_each(|i| word(b, 12 + 8 * i, 1))
            })
        }),
        Box::new(move |dev| {
            damage(dev, bn, 1024, |b| {
                (1..60).for_each(|i| word(b, 8 + 8 * i, 1))
            })
        }),
        Box::new(move |dev| {
            damage(dev, b0, 1024, |b| {
                (1..20).for_each(|i| word(b, 36 + 8 * i, node))
            })
        }),
        Box::new(move |dev| damage(dev, bn, 1024, |b| word(b, 12, 0x0fff_ffff))),
        Box::new(move |dev| damage(dev, b0, 1024, |b| b[30] = 2)),
        Box::new(move |dev| damage(dev, b0, 1024, |b| b[28] = 6)),
    ];
    for (i, change) in changes.iter().enumerate() {
        let dev = volume.dev.snapshot();
        change(&dev);
        assert!(exercise(&open(&dev), dir) > 0, "change {i}");
    }
}

#[test]
fn wrong_arguments() {
    let (volume, _, dir) = prepared(&["-b", "4096"], 3);
    let image = &volume.image;
    let long = [b'x'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &long] {
        assert!(image.dir_insert(dir, name, 12, 1).is_err(), "{name:?}");
        assert!(image.dir_remove(dir, name).is_err());
    }
    assert!(image.dir_insert(dir, b"zero", 0, 1).is_err());
    assert!(image.dir_insert(dir, b"far", u32::MAX, 1).is_err());
    assert_eq!(image.dir_lookup(dir, &long).unwrap(), None);
    let file = image.dir_lookup(dir, b"name-1").unwrap().unwrap().0;
    assert_eq!(
        image.dir_lookup(file, b"x").unwrap_err().errno(),
        libc::ENOTDIR
    );
    assert!(image.dir_init(dir, 2).is_err());
    assert!(image.dir_lookup(0, b"x").is_err() && image.dir_lookup(u32::MAX, b"x").is_err());
}
