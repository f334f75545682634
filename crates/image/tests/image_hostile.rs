//! Damaged and hostile volumes: errors, never panics, never a change of fixed metadata's owner, never a block outside.

mod image_common;

use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_ext4::Error;
use ccfs_image::Image;
use image_common::{Model, Rng, Volume, attr, open};
use std::sync::Arc;

fn put(dev: &MemoryDevice, offset: u64, bytes: &[u8]) {
    let start = offset / 512 * 512;
    let len = (offset + bytes.len() as u64).div_ceil(512) * 512 - start;
    let mut buf = AlignedBuf::zeroed(len as usize);
    dev.read(start, &mut buf).unwrap();
    let at = (offset - start) as usize;
    buf[at..at + bytes.len()].copy_from_slice(bytes);
    write_all(dev, vec![Write::new(start, buf)]).unwrap();
}

/// Blocks of the volume that hold structure: what a fuzzer should hit.
fn structure(v: &Volume, m: &Model) -> Vec<u64> {
    let g = v.image.geometry();
    let mut out: Vec<u64> = (0..g.first_data_block + 4).collect();
    let text = String::from_utf8(image_common::run("dumpe2fs", &[v.path.to_str().unwrap()]).stdout)
        .unwrap();
    for word in text.split([' ', ',', '\n']) {
        // Block numbers of bitmaps, tables (first blocks) and descriptors.
        let first = word.split('-').next().unwrap();
        if let Ok(n) = first.parse::<u64>()
            && n < g.blocks_count
        {
            out.extend(n..(n + 6).min(g.blocks_count));
        }
    }
    for ino in m.files.keys() {
        let blocks = v.debugfs(&format!("blocks <{ino}>"));
        let numbers = blocks
            .split_whitespace()
            .filter_map(|w| w.parse::<u64>().ok());
        out.extend(numbers.filter(|n| *n < g.blocks_count).take(20));
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// Everything that the interface offers, on every inode that is there; only the absence of panics and endless loops counts.
fn use_all(image: &Image, rng: &mut Rng) {
    let inodes: Vec<u32> = (1..60)
        .chain([u32::MAX, 0, image.geometry().inodes_count])
        .collect();
    for &ino in &inodes {
        let Ok(a) = image.read_attr(ino) else {
            continue;
        };
        let _ = image.inode_in_use(ino);
        let mut at = 0;
        for _ in 0..300 {
            match image.next_data(ino, at) {
                Ok(Some(m)) if m.lblk + m.len > at => {
                    let pblk = m.pblk.unwrap();
                    assert!(
                        pblk + m.len <= image.geometry().blocks_count,
                        "outside of the volume"
                    );
                    at = m.lblk + m.len;
                }
                _ => break,
            }
        }
        let _ = image.lookup(ino, rng.draw());
        let _ = image.fast_symlink(ino);
        let _ = image.write_attr(ino, &a);
        if ccfs_ext4::inode::is_dir(a.mode) {
            let _ = image.dir_insert(ino, b"new", 13, 1);
            let _ = image.dir_remove(ino, b"file3");
        }
    }
    for _ in 0..30 {
        let ino = inodes[rng.below(inodes.len() as u64) as usize];
        match rng.below(5) {
            0 => {
                if let Ok(run) = image
                    .alloc()
                    .allocate(rng.draw(), 1 + rng.below(30), ino.into())
                {
                    let _ = image.set(ino, rng.below(5000), run.len, run.pblk, false);
                }
            }
            1 => drop(image.set(
                ino,
                rng.below(99),
                1 + rng.below(99),
                rng.below(99_999),
                rng.below(2) == 0,
            )),
            2 => drop(image.clear(ino, rng.below(99), rng.draw(), 5)),
            3 => drop(image.clear_inode(ino, 5)),
            _ => {
                if let Ok(new) = image.alloc().allocate_inode(ino, rng.below(2) == 0) {
                    let _ = image.create_inode(new, &attr(0o100644));
                }
            }
        }
    }
    let blocks = image.take_dirty();
    assert!(blocks.iter().all(|b| b.0 < image.geometry().blocks_count));
    let reserved = image.geometry().first_data_block;
    for run in image.take_freed() {
        assert!(run.pblk > reserved && run.pblk + run.len <= image.geometry().blocks_count);
        image.alloc().release(run);
    }
}

fn fuzz(args: &[&str], seeds: std::ops::Range<u64>) {
    let v = Volume::make(24, args);
    let mut m = Model::new(&v.image, 3);
    for _ in 0..25 {
        m.create();
    }
    for _ in 0..600 {
        m.step();
    }
    v.check("before");
    let targets = structure(&v, &m);
    let bs = u64::from(v.image.geometry().block_size);
    // CCFS_SEEDS multiplies the number of seeds.
    let times = std::env::var("CCFS_SEEDS")
        .ok()
        .and_then(|s| s.parse::<u64>().ok())
        .unwrap_or(1);
    for seed in seeds.start..seeds.start + (seeds.end - seeds.start) * times {
        eprintln!("seed {seed}");
        let mut rng = Rng::new(seed);
        let dev = Arc::new(v.dev.snapshot());
        for _ in 0..1 + rng.below(12) {
            let block = targets[rng.below(targets.len() as u64) as usize];
            let at = block * bs + rng.below(bs / 4) * 4;
            let value = match rng.below(5) {
                0 => rng.draw() as u32,
                1 => rng.below(m.image.geometry().blocks_count) as u32,
                2 => u32::MAX,
                3 => rng.below(300) as u32,
                _ => {
                    let mut b = [0; 4];
                    dev.read(at, &mut b).unwrap();
                    u32::from_le_bytes(b) ^ (1 << rng.below(32))
                }
            };
            put(&dev, at, &value.to_le_bytes());
        }
        if let Ok(image) = open(&dev) {
            use_all(&image, &mut rng);
        }
    }
}

#[test]
fn damage_without_checksums() {
    fuzz(
        &["-b", "1024", "-O", "^metadata_csum,^uninit_bg", "-N", "256"],
        0..250,
    );
}

#[test]
fn damage_without_checksums_and_extents() {
    fuzz(
        &["-b", "1024", "-t", "ext2", "-N", "256", "-I", "128"],
        1000..1200,
    );
}

#[test]
fn damage_with_checksums() {
    fuzz(&["-b", "1024", "-N", "256"], 2000..2100);
}

/// With checksums, a flipped bit in any structure is noticed by whoever reads it.
#[test]
fn flipped_bits_are_found_and_named() {
    let v = Volume::make(24, &["-b", "1024", "-N", "256"]);
    let mut m = Model::new(&v.image, 1);
    m.span = 20_000;
    m.create();
    for _ in 0..500 {
        m.write();
    }
    v.check("before");
    let ino = *m.files.keys().next().unwrap();
    let out = v.debugfs(&format!("imap <{ino}>"));
    let block: u64 = word_after(&out, "located at block");
    let offset = u64::from_str_radix(out.rsplit("0x").next().unwrap().trim(), 16).unwrap();
    let flip = |at: u64| {
        let dev = Arc::new(v.dev.snapshot());
        let mut b = [0; 1];
        dev.read(at, &mut b).unwrap();
        put(&dev, at, &[b[0] ^ 4]);
        open(&dev)
    };
    for at in [0x20, 0x30, 0x64, 0x7C, 0x84] {
        let e = flip(block * 1024 + offset + at)
            .unwrap()
            .read_attr(ino)
            .unwrap_err();
        assert!(
            matches!(&e, Error::Corrupt(t) if t.what.contains(&format!("inode {ino}"))),
            "{e}"
        );
    }
    let dump = v.debugfs(&format!("extents -n <{ino}>"));
    let node: u64 = dump
        .lines()
        .find(|l| l.contains(" 0/"))
        .and_then(|l| l.split_whitespace().rev().nth(1)?.parse().ok())
        .unwrap();
    for at in [2, 40, 500] {
        let image = flip(node * 1024 + at).unwrap();
        let mut at = 0;
        let e = loop {
            match image.next_data(ino, at) {
                Ok(Some(m)) => at = m.lblk + m.len,
                Ok(None) => panic!("not noticed"),
                Err(e) => break e,
            }
        };
        assert!(
            matches!(&e, Error::Corrupt(t) if t.what.contains(&node.to_string())),
            "{e}"
        );
    }
    let text = String::from_utf8(image_common::run("dumpe2fs", &[v.path.to_str().unwrap()]).stdout)
        .unwrap();
    let bitmap: u64 = word_after(&text, "Block bitmap at");
    let image = flip(bitmap * 1024 + 60).unwrap();
    let e = image.alloc().allocate(1, 1, 1).unwrap_err();
    assert!(
        matches!(&e, Error::Corrupt(t) if t.what.contains("block bitmap of group 0")),
        "{e}"
    );
    let gdt = flip(2 * 1024 + 12);
    assert!(matches!(&gdt, Err(Error::Corrupt(t)) if t.what.contains("group 0")));
}

fn word_after(text: &str, mark: &str) -> u64 {
    let rest = &text[text
        .find(mark)
        .unwrap_or_else(|| panic!("{mark} in {text}"))
        + mark.len()..];
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

/// A map that names fixed metadata gives an error; nothing of it is freed.
#[test]
fn fixed_metadata_is_never_a_files() {
    let v = Volume::make(32, &["-b", "1024"]);
    let mut m = Model::new(&v.image, 1);
    m.create();
    let ino = *m.files.keys().next().unwrap();
    let text = String::from_utf8(image_common::run("dumpe2fs", &[v.path.to_str().unwrap()]).stdout)
        .unwrap();
    let journal = v.image.journal_blocks().unwrap()[0].pblk;
    let mut fixed = vec![0, 1, 2, 8193, journal, v.image.geometry().blocks_count];
    for mark in [
        "Block bitmap at",
        "Inode bitmap at",
        "Inode table at",
        "Reserved GDT blocks at",
    ] {
        fixed.push(word_after(&text, mark));
    }
    for pblk in fixed {
        for len in [1, 5] {
            let e = v.image.set(ino, 0, len, pblk, false).unwrap_err();
            assert!(matches!(e, Error::Corrupt(_)), "{pblk}: {e}");
        }
    }
    // In use by a directory: refused as well, and nothing changes.
    let root = v.image.lookup(2, 0).unwrap().pblk.unwrap();
    assert!(v.image.set(ino, 0, 1, root, false).is_err());
    assert_eq!(v.image.take_freed(), []);
    m.compare(&v.image);
    v.check("after refusals");
}

/// Neither time nor memory without bounds for what the journal's inode says.
#[test]
fn a_journal_of_any_length_is_an_error() {
    let v = Volume::make(32, &["-b", "1024", "-t", "ext3"]);
    let blocks = v.debugfs("blocks <8>");
    let numbers: Vec<u64> = blocks
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect();
    let change = |fields: &[(&str, u64)]| {
        let path = v.temp.path().join("changed");
        v.dev.to_file(&path).unwrap();
        for (field, value) in fields {
            let command = format!("set_inode_field <8> {field} {value}");
            let ran = image_common::run("debugfs", &["-w", "-R", &command, path.to_str().unwrap()]);
            assert!(ran.status.success(), "{command}");
        }
        Arc::new(MemoryDevice::from_file(&path).unwrap())
    };
    let error = |dev: &Arc<MemoryDevice>| match open(dev) {
        Err(Error::Corrupt(met)) => met.what,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it was opened"),
    };
    assert!(error(&change(&[("size", 1 << 40)])).contains("larger than the volume"));
    // A block that names nothing but itself, taken for a map of maps.
    let own = *numbers.last().unwrap();
    let dev = change(&[("block[DIND]", own), ("size", 30 << 20)]);
    put(&dev, own * 1024, &(own as u32).to_le_bytes().repeat(256));
    let text = error(&dev);
    assert!(
        text.contains("overlap") || text.contains("journal"),
        "{text}"
    );
}
