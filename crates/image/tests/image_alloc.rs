//! The allocator: parallel use, reservations, full volumes, held blocks; volumes that tools have converted.

mod image_common;

use ccfs_image::Run;
use image_common::{Model, Rng, Volume, attr, mkfs, run};
use std::collections::HashSet;
use std::sync::Mutex;

#[test]
fn parallel_allocation_gives_every_block_once() {
    let v = Volume::make(64, &["-b", "1024"]);
    let alloc = v.image.alloc();
    let before = alloc.free_blocks();
    let all: Mutex<Vec<Run>> = Mutex::default();
    std::thread::scope(|s| {
        for t in 0..4u64 {
            let all = &all;
            s.spawn(move || {
                let mut rng = Rng::new(t);
                let mut mine: Vec<Run> = Vec::new();
                for i in 0..4000 {
                    let want = 1 + rng.below(30);
                    if rng.below(4) == 0 && !mine.is_empty() {
                        let n = rng.below(mine.len() as u64) as usize;
                        alloc.release(mine.swap_remove(n));
                    } else if alloc.reserve(want, 0) {
                        let r = alloc
                            .allocate(rng.below(65_000), want, t * 100 + i % 7)
                            .unwrap();
                        alloc.unreserve(want - r.len, 0);
                        mine.push(r);
                    }
                    if rng.below(500) == 0 {
                        alloc.drop_window(t * 100 + i % 7);
                    }
                }
                all.lock().unwrap().extend(mine);
            });
        }
    });
    let all = all.into_inner().unwrap();
    let mut seen = HashSet::new();
    for r in &all {
        for b in r.pblk..r.pblk + r.len {
            assert!(seen.insert(b), "block {b} was given twice");
        }
    }
    assert_eq!(alloc.free_blocks(), before - seen.len() as u64);
    for r in all {
        alloc.release(r);
    }
    assert_eq!(alloc.free_blocks(), before);
    v.check("nothing was changed");
}

#[test]
fn a_reservation_is_kept_to_the_last_block() {
    let v = Volume::make(16, &["-b", "1024"]);
    let alloc = v.image.alloc();
    let free = alloc.free_blocks();
    assert!(!alloc.reserve(free, 1));
    assert!(!alloc.reserve(u64::MAX, u64::MAX));
    assert!(alloc.reserve(free - 10, 10));
    assert!(!alloc.reserve(1, 0));
    assert_eq!(alloc.allocate_unreserved(0, 5), None);
    // Windows of many owners hold the rest; the last blocks come out of them.
    let mut got = 0;
    let mut rng = Rng::new(1);
    while got < free - 10 {
        let r = alloc
            .allocate(0, (1 + rng.below(9)).min(free - 10 - got), rng.below(20))
            .unwrap();
        got += r.len;
    }
    assert_eq!(alloc.free_blocks(), 10);
    for _ in 0..10 {
        alloc.allocate(0, 1, 99).unwrap();
    }
    assert_eq!(alloc.allocate(0, 1, 99).unwrap_err().errno(), 28);
    assert!(!alloc.reserve(1, 0));
}

/// More groups than a search looks at around its goal, all of those full, and nobody has ever had to look further: at first the search
/// over the whole volume begins in group 0, where the goal may lie as well.
#[test]
fn what_is_free_is_found_however_far_from_the_goal() {
    let v = Volume::make(
        32,
        &[
            "-b",
            "1024",
            "-g",
            "256",
            "-N",
            "2048",
            "-O",
            "^resize_inode",
        ],
    );
    let alloc = v.image.alloc();
    let geometry = v.image.geometry();
    assert!(geometry.groups > 100, "{} groups", geometry.groups);
    let full = |group: u64| Run {
        pblk: 1,
        len: group * 256,
    };
    for (near, ino) in [(64, 2), (100, 2)] {
        alloc.mark_held(full(near)).unwrap();
        for _ in 0..3 {
            let run = alloc.allocate(alloc.goal_for(ino), 1, 0).unwrap();
            assert!(run.pblk > near * 256, "{run:?}");
            alloc.drop_window(0);
        }
    }
    // Here the last search ended, and here the next one's goal lies: only what is before it is free.
    let goal = 90 * 256 + 1;
    for _ in 0..2 {
        alloc.release(Run {
            pblk: 0,
            len: u64::MAX,
        });
        alloc
            .mark_held(Run {
                pblk: 1,
                len: geometry.blocks_count - 1,
            })
            .unwrap();
        alloc.release(Run { pblk: goal, len: 8 });
        while alloc.free_blocks() > 0 {
            alloc.allocate(goal, 1, 1).unwrap();
        }
        // The group before the goal's is the farthest of all.
        alloc.release(Run {
            pblk: goal - 200,
            len: 8,
        });
        assert!(alloc.free_blocks() > 0);
        alloc.allocate(goal, 1, 2).unwrap();
        alloc.drop_window(1);
        alloc.drop_window(2);
    }
}

#[test]
fn held_blocks_and_inodes_are_not_given_out() {
    let v = Volume::make(16, &["-b", "1024", "-N", "128"]);
    let alloc = v.image.alloc();
    let free = alloc.free_blocks();
    let hole = alloc.allocate(9000, 20, 1).unwrap();
    alloc.release(hole);
    alloc.mark_held(hole).unwrap();
    alloc.mark_held(hole).unwrap();
    assert_eq!(alloc.free_blocks(), free - hole.len);
    let next = alloc.allocate(hole.pblk, 1, 2).unwrap();
    assert!(next.pblk < hole.pblk || next.pblk >= hole.pblk + hole.len);
    alloc.release(Run {
        pblk: 0,
        len: u64::MAX,
    });
    assert_eq!(
        alloc.free_blocks(),
        free,
        "a release of everything frees only what is held"
    );
    let inodes = alloc.free_inodes();
    alloc.hold_inode(15).unwrap();
    alloc.hold_inode(15).unwrap();
    let mut seen = HashSet::from([15]);
    while let Ok(ino) = alloc.allocate_inode(2, seen.len() % 2 == 0) {
        assert!(
            ino >= v.image.geometry().first_ino && seen.insert(ino),
            "{ino}"
        );
    }
    assert_eq!((alloc.free_inodes(), seen.len()), (0, inodes as usize));
    for ino in seen {
        alloc.release_inode(ino);
    }
    alloc.release_inode(2);
    alloc.release_inode(0);
    alloc.release_inode(u32::MAX);
    assert_eq!(alloc.free_inodes(), inodes);
}

/// Threads have numbers in stock while there are many, and none of these is lost or given out twice.
#[test]
fn threads_get_all_inode_numbers_and_each_once() {
    let v = Volume::make(24, &["-b", "1024", "-N", "6000"]);
    let alloc = v.image.alloc();
    let free = alloc.free_inodes() as usize;
    for round in 0..3 {
        let take = |n: u32| {
            let (mut own, mut taken) = (Vec::new(), 0);
            while let Ok(ino) = alloc.allocate_inode(2 + 1500 * (n % 3), n.is_multiple_of(2)) {
                own.push(ino);
                taken += 1;
                if taken % 5 == 0 {
                    alloc.release_inode(own.swap_remove(own.len() / 2));
                }
            }
            own
        };
        let all: Vec<u32> = std::thread::scope(|s| {
            let take = &take;
            let threads: Vec<_> = (0..6).map(|n| s.spawn(move || take(n))).collect();
            threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect()
        });
        let rest: Vec<u32> = std::iter::from_fn(|| alloc.allocate_inode(2, false).ok()).collect();
        let seen: HashSet<u32> = all.iter().chain(&rest).copied().collect();
        assert_eq!(all.len() + rest.len(), seen.len(), "twice in round {round}");
        assert_eq!((seen.len(), alloc.free_inodes()), (free, 0));
        for ino in seen {
            alloc.release_inode(ino);
        }
        assert_eq!(alloc.free_inodes() as usize, free);
    }
}

#[test]
fn nothing_freed_is_reused_before_its_release() {
    let v = Volume::make(16, &["-b", "1024"]);
    let image = &v.image;
    let ino = image.alloc().allocate_inode(2, false).unwrap();
    image.create_inode(ino, &attr(0o100644)).unwrap();
    image.dir_insert(2, b"f", ino, 1).unwrap();
    let a = image.alloc().allocate(0, 50, 1).unwrap();
    image.set(ino, 0, a.len, a.pblk, false).unwrap();
    image.clear(ino, 0, 100, usize::MAX).unwrap();
    let b = image.alloc().allocate(a.pblk, 50, 2).unwrap();
    assert!(b.pblk >= a.pblk + a.len || b.pblk + b.len <= a.pblk);
    image.alloc().release(b);
    assert_eq!(image.take_freed(), [a]);
    image.alloc().drop_window(1);
    image.alloc().drop_window(2);
    image.alloc().release(a);
    assert_eq!(image.alloc().allocate(a.pblk, a.len, 3).unwrap(), a);
    image.alloc().release(a);
    v.check("freed");
}

#[test]
fn a_volume_is_filled_to_the_brim_and_emptied() {
    let v = Volume::make(24, &["-b", "1024", "-N", "500", "-E", "lazy_itable_init=1"]);
    let mut m = Model::new(&v.image, 4);
    for _ in 0..300 {
        m.create();
    }
    for _ in 0..20_000 {
        m.write();
    }
    assert!(
        v.image.alloc().free_blocks() < 200,
        "{} blocks are free",
        v.image.alloc().free_blocks()
    );
    m.compare(&v.image);
    v.check("full");
    while !m.files.is_empty() {
        m.delete();
    }
    v.check("empty");
}

/// Where the next number in use is far behind the last one, the table between them is made real in steps, each of which leaves a sound volume.
#[test]
fn an_inode_table_is_made_real_in_steps() {
    let v = Volume::make(
        24,
        &["-b", "1024", "-N", "6000", "-E", "lazy_itable_init=1"],
    );
    let (ino, blocks) = (5500, 40);
    let mut steps = 0;
    while !v.image.approach_inode(ino, blocks).unwrap() {
        steps += 1;
        // With the bitmaps and the descriptor.
        assert!(v.image.dirty_len() < blocks as usize + 6);
        v.check("after a step");
    }
    assert!(steps > 5, "{steps} steps");
    v.image.create_inode(ino, &attr(0o100_644)).unwrap();
    assert!(v.image.dirty_len() < blocks as usize + 6);
    assert_eq!(v.image.read_attr(ino).unwrap().mode, 0o100_644);
}

/// An ext3 volume with files that was converted to ext4 has block maps beside extents.
#[test]
fn converted_volumes() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("volume");
    let tree = temp.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for i in 0..60u32 {
        std::fs::write(
            tree.join(format!("old{i}")),
            vec![i as u8; i as usize * 3000],
        )
        .unwrap();
    }
    mkfs(
        &path,
        64,
        &["-t", "ext3", "-b", "1024", "-d", tree.to_str().unwrap()],
    );
    let p = path.to_str().unwrap();
    let out = run(
        "tune2fs",
        &["-O", "extents,uninit_bg,dir_index,metadata_csum", p],
    );
    assert!(out.status.success(), "{out:?}");
    run("e2fsck", &["-fyD", p]);
    let out = run("resize2fs", &[p, "150M"]);
    assert!(out.status.success(), "{out:?}");
    let v = Volume::open(temp, path);
    let mut m = Model::new(&v.image, 8);
    m.span = 1 << 20;
    for _ in 0..10 {
        m.create();
    }
    for i in 0..60u32 {
        let (ino, _) = v
            .image
            .dir_lookup(2, format!("old{i}").as_bytes())
            .unwrap()
            .unwrap();
        let a = v.image.read_attr(ino).unwrap();
        assert_eq!(a.size, u64::from(i) * 3000);
        if i % 2 == 0 {
            continue;
        }
        // Half of them go on with us: block maps, read, remapped and cut.
        let mut at = 0;
        let mut known = image_common::File {
            name: format!("old{i}").into_bytes(),
            ..Default::default()
        };
        while let Some(d) = v.image.next_data(ino, at).unwrap() {
            known
                .blocks
                .extend((0..d.len).map(|k| (d.lblk + k, (d.pblk.unwrap() + k, false))));
            at = d.lblk + d.len;
        }
        assert_eq!(known.blocks.len() as u64, a.size.div_ceil(1024));
        m.files.insert(ino, known);
    }
    m.unwritten = false;
    for round in 0..3 {
        for _ in 0..300 {
            m.step();
        }
        m.compare(&v.image);
        v.check(&format!("converted, round {round}"));
    }
}
