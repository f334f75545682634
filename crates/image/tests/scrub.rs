//! Scrub: no false alarm on any shape of volume, in steps of any size; every flipped bit under a checksum is found where it lies.
mod image_common;

use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_image::{Image, ScrubAt, ScrubStep, Visited};
use image_common::{Model, Rng, SHAPES, Volume, open};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

/// All steps of a scrub.
fn steps(image: &Image, blocks: u64) -> Vec<ScrubStep> {
    let mut out: Vec<ScrubStep> = Vec::new();
    let mut at = Some(ScrubAt::default());
    while let Some(now) = at {
        let step = image.scrub(now, blocks, LONG);
        assert!(
            step.next.is_none_or(|next| next > now),
            "{now:?} leads to {:?}",
            step.next
        );
        assert!(step.done <= step.total && out.last().is_none_or(|last| last.done <= step.done));
        at = step.next;
        out.push(step);
    }
    out
}

fn damage(image: &Image) -> Vec<String> {
    let steps = steps(image, 64);
    steps
        .into_iter()
        .flat_map(|s| s.damage)
        .map(|d| d.what)
        .collect()
}

fn filled(mib: u64, args: &[&str]) -> Volume {
    filled_by(400, mib, args)
}

/// The more operations, the more blocks of metadata.
fn filled_by(operations: usize, mib: u64, args: &[&str]) -> Volume {
    let v = Volume::make(mib, args);
    let mut m = Model::new(&v.image, 5);
    for _ in 0..20 {
        m.create();
    }
    for _ in 0..operations {
        m.step();
    }
    v.check("filled");
    v
}

#[test]
fn no_false_alarm_on_any_shape() {
    for (name, mib, args) in SHAPES {
        let v = filled(*mib, args);
        let image = open(&v.dev).unwrap();
        assert_eq!(damage(&image), Vec::<String>::new(), "{name}");
        // The volume in use, with what it has not written yet.
        assert_eq!(damage(&v.image), Vec::<String>::new(), "{name}, in use");
    }
}

#[test]
fn small_steps_see_what_large_ones_see() {
    let v = filled_by(1200, 40, &["-b", "1024"]);
    let image = open(&v.dev).unwrap();
    let all = |blocks: u64| -> BTreeSet<(u64, u32)> {
        let seen = steps(&image, blocks).into_iter().flat_map(|s| s.visited);
        seen.map(|Visited { pblk, ino, .. }| (pblk, ino)).collect()
    };
    let small = all(1);
    assert!(small.len() > 50, "{}", small.len());
    assert_eq!(small, all(u64::MAX));
}

#[test]
fn positions_that_nobody_gave_out_do_no_harm() {
    let v = filled(24, &["-b", "1024", "-N", "256"]);
    let image = open(&v.dev).unwrap();
    let mut rng = Rng::new(1);
    for _ in 0..3000 {
        let word = |rng: &mut Rng| match rng.below(4) {
            0 => rng.below(300),
            1 => rng.below(6) << 34 | rng.below(5000),
            2 => u64::MAX - rng.below(3),
            _ => rng.draw(),
        };
        let at = ScrubAt {
            phase: rng.below(5) as u32,
            item: word(&mut rng),
            part: word(&mut rng),
        };
        let step = image.scrub(at, rng.draw(), Duration::ZERO);
        assert!(
            step.damage.iter().all(|d| d.pblk == 0),
            "{at:?}: {:?}",
            step.damage
        );
    }
}

fn flip(dev: &MemoryDevice, at: u64) {
    let start = at / 512 * 512;
    let mut buf = AlignedBuf::zeroed(512);
    dev.read(start, &mut buf).unwrap();
    buf[(at - start) as usize] ^= 16;
    write_all(dev, vec![Write::new(start, buf)]).unwrap();
}

#[test]
fn flipped_bits_are_found_while_memory_holds_the_sound_block() {
    let v = filled(24, &["-b", "1024", "-N", "256"]);
    let sound = open(&v.dev).unwrap();
    let seen: BTreeSet<(u64, &str)> = steps(&sound, 64)
        .into_iter()
        .flat_map(|s| s.visited)
        .map(|b| (b.pblk, b.what))
        .collect();
    let mut kinds = BTreeSet::new();
    for (pblk, what) in seen {
        let dev = Arc::new(v.dev.snapshot());
        let image = open(&dev).unwrap();
        // Byte 8 of an inode table's block is the access time of an inode that may be free.
        if what == "inode table" {
            continue;
        }
        assert_eq!(damage(&image).len(), 0);
        flip(&dev, pblk * 1024 + 8);
        let found = damage(&image);
        assert!(!found.is_empty(), "{what} {pblk}");
        kinds.insert(what);
    }
    assert!(kinds.len() >= 5, "{kinds:?}");
}

/// The map of the journal changes on the device after the volume was opened: node of two levels, of which the inner says more
/// entries than it has room for, or lies on a level that it does not.
#[test]
fn a_damaged_map_of_the_journal_is_reported() {
    let v = Volume::make(24, &["-b", "1024", "-O", "^metadata_csum,^uninit_bg"]);
    let word = |at: u64| -> u64 {
        let mut buf = AlignedBuf::zeroed(512);
        v.dev.read(at / 512 * 512, &mut buf).unwrap();
        let at = (at % 512) as usize;
        u64::from(u32::from_le_bytes(buf[at..at + 4].try_into().unwrap()))
    };
    let put = |at: u64, bytes: &[u8]| {
        let mut buf = AlignedBuf::zeroed(512);
        v.dev.read(at / 512 * 512, &mut buf).unwrap();
        let from = (at % 512) as usize;
        buf[from..from + bytes.len()].copy_from_slice(bytes);
        write_all(&*v.dev, vec![Write::new(at / 512 * 512, buf)]).unwrap();
    };
    let header = |count: u16, max: u16, depth: u16| -> Vec<u8> {
        let halves = [ccfs_ext4::extent::MAGIC, count, max, depth, 0, 0];
        halves.iter().flat_map(|h: &u16| h.to_le_bytes()).collect()
    };
    let index = |pblk: u64| -> Vec<u8> {
        let mut entry = 0u32.to_le_bytes().to_vec();
        entry.extend((pblk as u32).to_le_bytes());
        entry.extend([0; 4]);
        entry
    };
    // The inode table of group 0, and i_block of inode 8 there.
    let map = word(2048 + 8) * 1024 + 7 * 256 + 40;
    let (inner, leaf) = (24 * 1024 - 20, 24 * 1024 - 10);
    let mut old = header(1, 84, 0);
    for at in (12..24).step_by(4) {
        old.extend((word(map + at) as u32).to_le_bytes());
    }
    put(leaf * 1024, &old);
    put(inner * 1024, &[header(1, 84, 1), index(leaf)].concat());
    put(map, &[header(1, 4, 2), index(inner)].concat());
    let image = open(&v.dev).unwrap();
    assert_eq!(damage(&image), Vec::<String>::new());
    for bad in [
        header(u16::MAX, 84, 1),
        header(1, 84, u16::MAX),
        header(1, 84, 2),
        header(0, 84, 1),
    ] {
        put(inner * 1024, &bad);
        assert!(!damage(&image).is_empty());
    }
}
