//! Random changes of mappings and inodes on every shape of volume: the image agrees with a model and e2fsck with both.

mod image_common;

use image_common::{Model, SHAPES, Volume, open};

fn walk(name: &str, mib: u64, args: &[&str], seed: u64, rounds: usize, steps: usize) {
    let v = Volume::make(mib, args);
    let before = v.image.alloc().free_blocks();
    let mut m = Model::new(&v.image, seed);
    for _ in 0..8 {
        m.create();
    }
    for round in 0..rounds {
        for _ in 0..steps {
            m.step();
        }
        m.compare(&v.image);
        v.check(&format!("{name}, seed {seed}, round {round}"));
    }
    m.compare(&open(&v.dev).unwrap());
    // Nothing is lost: all files gone, all blocks are back except those that directories have grown by.
    let files: Vec<_> = m.files.keys().copied().collect();
    for _ in &files {
        m.delete();
    }
    m.release();
    for owner in files {
        v.image.alloc().drop_window(u64::from(owner));
    }
    let after = v.image.alloc().free_blocks();
    assert!(
        before - after <= 8,
        "{name}, seed {seed}: {} blocks are lost",
        before - after
    );
    v.check(name);
    let again = open(&v.dev).unwrap();
    assert_eq!(again.alloc().free_blocks(), after);
    assert_eq!(again.alloc().free_inodes(), v.image.alloc().free_inodes());
}

#[test]
fn every_shape() {
    for (i, (name, mib, args)) in SHAPES.iter().enumerate() {
        walk(name, *mib, args, 1000 + i as u64, 4, 250);
    }
}

#[test]
fn deep_trees() {
    // Blocks of 1K hold 84 extents: many small pieces make trees of two and three levels.
    for seed in 0..2 {
        let v = Volume::make(60, &["-b", "1024", "-N", "2000"]);
        let mut m = Model::new(&v.image, seed);
        m.span = 60_000;
        m.create();
        for _ in 0..2500 {
            m.write();
            if m.rng.below(5) == 0 {
                m.convert();
            }
        }
        let stat = v.debugfs("stat <12>");
        m.compare(&v.image);
        v.check("grown");
        for _ in 0..600 {
            m.clear(None);
            m.write();
            m.release();
        }
        m.compare(&v.image);
        v.check(&stat);
        m.compare(&open(&v.dev).unwrap());
    }
}

/// Extents in random order until the tree has three levels under its root, and back to nothing.
#[test]
fn a_tree_grows_to_depth_three_and_vanishes() {
    let v = Volume::make(60, &["-b", "1024", "-N", "2000"]);
    let mut m = Model::new(&v.image, 5);
    m.create();
    let ino = *m.files.keys().next().unwrap();
    let mut places: Vec<u64> = (0..36_000).map(|i| i * 2 + 7).collect();
    let shuffle = |rng: &mut image_common::Rng, list: &mut Vec<u64>| {
        for i in (1..list.len()).rev() {
            list.swap(i, rng.below(i as u64 + 1) as usize);
        }
    };
    shuffle(&mut m.rng, &mut places);
    for &lblk in &places {
        let run = v.image.alloc().allocate(0, 1, 1).unwrap();
        v.image.set(ino, lblk, 1, run.pblk, false).unwrap();
        m.files
            .get_mut(&ino)
            .unwrap()
            .blocks
            .insert(lblk, (run.pblk, false));
    }
    let mut a = v.image.read_attr(ino).unwrap();
    a.size = 1024 * 72_007;
    v.image.write_attr(ino, &a).unwrap();
    m.compare(&v.image);
    v.check("depth three");
    let dump = v.debugfs(&format!("extents -n <{ino}>"));
    assert!(
        dump.contains(" 3/ 3") || dump.contains(" 0/ 3"),
        "{}",
        &dump[..300]
    );
    shuffle(&mut m.rng, &mut places);
    for (i, &lblk) in places.iter().enumerate() {
        assert_eq!(v.image.clear(ino, lblk, 1, 100).unwrap(), None);
        m.files.get_mut(&ino).unwrap().blocks.remove(&lblk);
        if i % 9000 == 8999 {
            m.compare(&v.image);
            v.check("shrinking");
        }
    }
    assert_eq!(v.image.read_attr(ino).unwrap().blocks512, 0);
}

#[test]
fn sequential_files_stay_one_extent() {
    let v = Volume::make(256, &["-b", "4096"]);
    let image = &v.image;
    let owners: Vec<u32> = (0..4)
        .map(|i| {
            let ino = image.alloc().allocate_inode(2, false).unwrap();
            image
                .create_inode(ino, &image_common::attr(0o100644))
                .unwrap();
            image
                .dir_insert(2, format!("f{i}").as_bytes(), ino, 1)
                .unwrap();
            ino
        })
        .collect();
    let per_file = 4000u64;
    let mut at = vec![0u64; owners.len()];
    let mut extents = vec![0; owners.len()];
    while at.iter().any(|&a| a < per_file) {
        for (i, &ino) in owners.iter().enumerate() {
            assert!(image.alloc().reserve(4, 0));
            let goal = match at[i] {
                0 => image.alloc().goal_for(ino),
                n => image.lookup(ino, n - 1).unwrap().pblk.unwrap() + 1,
            };
            let run = image.alloc().allocate(goal, 4, u64::from(ino)).unwrap();
            image.alloc().unreserve(4 - run.len, 0);
            image.set(ino, at[i], run.len, run.pblk, false).unwrap();
            at[i] += run.len;
        }
    }
    for (i, &ino) in owners.iter().enumerate() {
        let mut a = image.read_attr(ino).unwrap();
        a.size = at[i] * 4096;
        image.write_attr(ino, &a).unwrap();
        let mut lblk = 0;
        while let Some(m) = image.next_data(ino, lblk).unwrap() {
            extents[i] += 1;
            lblk = m.lblk + m.len;
        }
        image.alloc().drop_window(u64::from(ino));
    }
    assert!(
        extents.iter().all(|&e| e <= 16),
        "four parallel appenders have {extents:?} extents"
    );
    v.check("appenders");
}

/// Blocks that are preallocated behind the end of file in many pieces: e2fsck takes no tree for damaged, whatever the file's size was on the way.
#[test]
fn preallocated_pieces_behind_the_end_of_file() {
    const BS: u64 = 1024;
    for seed in 0..4 {
        let v = Volume::make(100, &["-b", "1024", "-N", "2000"]);
        let mut m = Model::new(&v.image, seed);
        m.create();
        let ino = *m.files.keys().next().unwrap();
        // (pieces of one block each, in the order of their numbers, with holes between)
        let mut pieces = 0;
        let mut eof = 0;
        let most = [400, 2000, 8000, 36_000][seed as usize];
        for round in 0..40 {
            let (wish, to) = match m.rng.below(8) {
                0 => (0, m.rng.below(eof + 1)),
                1 => (m.rng.below(most), eof),
                2 => (0, pieces * 2 + m.rng.below(20)),
                3 => (0, eof + m.rng.below(4 * 84)),
                _ => (m.rng.below(600), eof + m.rng.below(600)),
            };
            let more = wish.min(most - pieces);
            // Fewer promised than `set` may take, never mind: the volume is never full here.
            for i in pieces..pieces + more {
                let run = v.image.alloc().allocate(0, 1, 1).unwrap();
                v.image.set(ino, i * 2, 1, run.pblk, true).unwrap();
                let blocks = &mut m.files.get_mut(&ino).unwrap().blocks;
                blocks.insert(i * 2, (run.pblk, true));
            }
            pieces += more;
            let mut attr = v.image.read_attr(ino).unwrap();
            attr.size = to * BS + m.rng.below(BS);
            let end = attr.size.div_ceil(BS);
            v.image.write_attr(ino, &attr).unwrap();
            if end < eof && m.rng.below(2) == 0 {
                // As truncate does; otherwise the size only was smaller on the way.
                assert_eq!(v.image.clear(ino, end, u64::MAX, usize::MAX).unwrap(), None);
                let blocks = &mut m.files.get_mut(&ino).unwrap().blocks;
                blocks.retain(|&b, _| b < end);
                pieces = end.div_ceil(2).min(pieces);
            }
            eof = end;
            assert!(v.image.settle_extents(ino).unwrap());
            let again = v.image.read_attr(ino).unwrap().blocks512;
            assert!(v.image.settle_extents(ino).unwrap());
            assert_eq!(v.image.read_attr(ino).unwrap().blocks512, again);
            let nodes = again / 2 - pieces;
            assert!(
                nodes <= 40 + pieces / 20,
                "{nodes} nodes for {pieces} pieces"
            );
            m.release();
            if round % 4 == 3 {
                m.compare(&v.image);
                v.check(&format!(
                    "seed {seed}, round {round}, {pieces} pieces, size {end}"
                ));
            }
        }
        m.compare(&open(&v.dev).unwrap());
    }
}
