//! Costs of single calls, printed; see them with `cargo test --release -p ccfs-image --test image_speed -- --nocapture`.

mod image_common;

use ccfs_device::{Write, write_all};
use ccfs_image::{Image, OpenOptions};
use image_common::{Rng, Volume, attr};
use std::time::Instant;

fn report(what: &str, n: u64, start: Instant) {
    println!(
        "{what:40} {:8.0} ns",
        start.elapsed().as_nanos() as f64 / n as f64
    );
}

#[test]
fn costs() {
    let v = Volume::make(1024, &["-b", "4096", "-N", "200000"]);
    let image = &Image::open(v.dev.clone(), OpenOptions::default()).unwrap();
    let inodes = costs_of_inodes(&v, image);
    costs_of_first_blocks(image, &inodes);
    costs_of_extents(image, &inodes);
    costs_of_freeing(image, &inodes);
}

/// Number of files.
const N: u64 = 20_000;

fn costs_of_inodes(v: &Volume, image: &Image) -> Vec<u32> {
    let (alloc, n) = (image.alloc(), N);
    let start = Instant::now();
    let inodes: Vec<u32> = (0..n)
        .map(|_| alloc.allocate_inode(2, false).unwrap())
        .collect();
    report("allocate_inode", n, start);
    let start = Instant::now();
    for &ino in &inodes {
        image.create_inode(ino, &attr(0o100644)).unwrap();
    }
    report("create_inode", n, start);
    let start = Instant::now();
    let blocks = image.take_dirty();
    report("take_dirty (per block)", blocks.len() as u64, start);
    let writes = blocks
        .iter()
        .map(|(pblk, buf)| Write::new(pblk * 4096, buf.clone()))
        .collect();
    write_all(&*v.dev, writes).unwrap();
    image.written(&blocks);
    drop(blocks);
    let a = attr(0o100644);
    let start = Instant::now();
    for &ino in &inodes {
        image.write_attr(ino, &a).unwrap();
    }
    report("write_attr", n, start);
    let start = Instant::now();
    for &ino in &inodes {
        assert_eq!(image.read_attr(ino).unwrap().nlink, 1);
    }
    report("read_attr", n, start);
    inodes
}

/// Of each file.
fn costs_of_first_blocks(image: &Image, inodes: &[u32]) {
    let (alloc, n) = (image.alloc(), N);
    let start = Instant::now();
    let runs: Vec<_> = inodes
        .iter()
        .map(|&i| alloc.allocate(alloc.goal_for(i), 1, i.into()).unwrap())
        .collect();
    report("allocate, first block of a file", n, start);
    let start = Instant::now();
    for (&ino, run) in inodes.iter().zip(&runs) {
        image.set(ino, 0, 1, run.pblk, false).unwrap();
    }
    report("set, first block of a file", n, start);
    for &i in inodes {
        alloc.drop_window(i.into());
    }
    let start = Instant::now();
    for &ino in inodes {
        assert!(image.lookup(ino, 0).unwrap().pblk.is_some());
    }
    report("lookup, first block of a file", n, start);
}

/// Of two files with many.
fn costs_of_extents(image: &Image, inodes: &[u32]) {
    let (alloc, n) = (image.alloc(), N);
    let ino = inodes[0];
    let mut lblk = 1;
    let start = Instant::now();
    while lblk < n {
        let run = alloc.allocate(0, 4, 1).unwrap();
        image.set(ino, lblk, run.len, run.pblk, false).unwrap();
        lblk += run.len;
    }
    report("allocate and set, appending 4 blocks", n / 4, start);
    alloc.drop_window(1);

    let ino = inodes[1];
    let mut rng = Rng::new(1);
    let mut at = Vec::new();
    let start = Instant::now();
    for _ in 0..20_000 {
        let lblk = rng.below(1 << 30);
        let run = alloc.allocate(0, 1, 2).unwrap();
        image.set(ino, lblk, 1, run.pblk, false).unwrap();
        at.push(lblk);
    }
    report("allocate and set, random places", 20_000, start);
    let start = Instant::now();
    for &lblk in &at {
        assert!(image.lookup(ino, lblk).unwrap().pblk.is_some());
    }
    report("lookup in a tree of 20000 extents", 20_000, start);
    let start = Instant::now();
    let mut from = Some(0);
    while let Some(lblk) = from {
        from = image.clear(ino, lblk, u64::MAX, 1000).unwrap();
    }
    report("clear (per extent)", 20_000, start);
}

/// Of all files but those two.
fn costs_of_freeing(image: &Image, inodes: &[u32]) {
    let (alloc, n) = (image.alloc(), N);
    let start = Instant::now();
    for &ino in &inodes[2..] {
        image.clear(ino, 0, u64::MAX, 1000).unwrap();
        image.clear_inode(ino, 5).unwrap();
    }
    report("clear and clear_inode of small files", n - 2, start);
    let start = Instant::now();
    let freed = image.take_freed();
    for run in &freed {
        alloc.release(*run);
    }
    report("release (per run)", freed.len() as u64, start);
    let start = Instant::now();
    let blocks = image.take_dirty();
    report("take_dirty (per block)", blocks.len() as u64, start);
}
