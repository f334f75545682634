//! Directory blocks and index blocks against models, and against damage.

use ccfs_ext4::dirent::{DirFormat, decode_rec_len, encode_rec_len, record_size};
use ccfs_ext4::hash::HashVersion;
use ccfs_ext4::htree::{self, Kind, Pair, RootInfo};
use ccfs_testkit::Rng;
use std::collections::BTreeMap;

fn formats() -> Vec<DirFormat> {
    let mut out = Vec::new();
    for block_size in [1024, 4096, 65536] {
        for filetype in [false, true] {
            for csum in [false, true] {
                out.push(DirFormat {
                    block_size,
                    filetype,
                    csum,
                    inodes_count: 5000,
                });
            }
        }
    }
    out
}

fn live(format: &DirFormat, block: &[u8]) -> BTreeMap<Vec<u8>, (u32, u8)> {
    let all: Vec<_> = format.entries(block).map(Result::unwrap).collect();
    assert_eq!(all.iter().map(|e| e.rec_len).sum::<usize>(), format.end());
    all.iter()
        .filter(|e| e.ino != 0)
        .map(|e| (e.name.to_vec(), (e.ino, e.ftype)))
        .collect()
}

#[test]
fn leaf_follows_a_model() {
    for (seed, format) in formats().into_iter().enumerate() {
        let mut rng = Rng::new(seed as u64 + 1);
        let mut block = vec![0xaa; format.block_size];
        format.init_empty(&mut block);
        let mut model = BTreeMap::new();
        for step in 0..4000 {
            let len = 1 + rng.index(if step % 3 == 0 { 255 } else { 20 });
            let name: Vec<u8> = (0..len).map(|_| b'a' + rng.index(3) as u8).collect();
            let (ino, ftype) = (1 + rng.index(5000) as u32, rng.index(8) as u8);
            let stored = if format.filetype { ftype } else { 0 };
            if model.contains_key(&name) || rng.index(3) == 0 {
                assert_eq!(
                    format.remove(&mut block, &name).unwrap(),
                    model.remove(&name).is_some()
                );
            } else {
                let room = format.max_free(&block).unwrap() >= record_size(len);
                assert_eq!(
                    format.insert(&mut block, &name, ino, ftype).unwrap(),
                    room,
                    "seed {seed}"
                );
                if room {
                    model.insert(name.clone(), (ino, stored));
                    assert_eq!(format.find(&block, &name).unwrap().unwrap().ino, ino);
                } else {
                    // Full: make room again.
                    let victim = model.keys().nth(rng.index(model.len())).unwrap().clone();
                    model.remove(&victim);
                    assert!(format.remove(&mut block, &victim).unwrap());
                }
            }
            if step % 64 == 0 {
                assert_eq!(live(&format, &block), model, "seed {seed} step {step}");
                format.set_csum(&mut block, 7);
                assert!(format.csum_ok(&block, 7));
                assert_eq!(format.csum_ok(&block, 8), !format.csum);
            }
        }
    }
}

#[test]
fn whole_block_record_lengths() {
    for size in [1024, 4096, 65536] {
        for len in [12, 16, size / 2, size - 12, size] {
            assert_eq!(decode_rec_len(encode_rec_len(len, size), size), len);
        }
    }
}

#[test]
fn damaged_blocks_never_panic() {
    for (seed, format) in formats()
        .into_iter()
        .filter(|f| f.block_size < 65536)
        .enumerate()
    {
        let mut rng = Rng::new(seed as u64 + 99);
        let mut good = vec![0; format.block_size];
        format.init_dots(&mut good, 2, 2);
        for i in 0..30 {
            format
                .insert(&mut good, format!("name{i}").as_bytes(), 12, 1)
                .unwrap();
        }
        let mut errors = 0;
        for _ in 0..5000 {
            let mut block = good.clone();
            for _ in 0..1 + rng.index(4) {
                let at = rng.index(block.len().min(400));
                block[at] = rng.draw() as u8;
            }
            errors += usize::from(format.entries(&block).any(|e| e.is_err()));
            let _ = format.find(&block, b"name29");
            let _ = format.insert(&mut block.clone(), b"new", 3, 1);
            let _ = format.remove(&mut block.clone(), b"name7");
            let _ = format.max_free(&block);
            let _ = htree::root_info(&format, &block);
            let _ = htree::pairs(&format, Kind::Root, &block);
            let _ = htree::pairs(&format, Kind::Node, &block);
            htree::set_csum(&format, Kind::Node, &mut block, 1);
        }
        assert!(errors > 500, "{errors}");
    }
}

#[test]
fn index_blocks_follow_a_model() {
    for format in formats().into_iter().filter(|f| f.filetype) {
        let mut rng = Rng::new(5);
        for kind in [Kind::Root, Kind::Node] {
            let mut block = vec![0x55; format.block_size];
            let mut model = vec![Pair { hash: 0, block: 1 }];
            match kind {
                Kind::Root => {
                    let info = RootInfo {
                        version: HashVersion::Tea,
                        levels: 1,
                    };
                    htree::init_root(&format, &mut block, 12, 2, info);
                    assert_eq!(htree::root_info(&format, &block).unwrap(), info);
                    let names: Vec<_> = format
                        .entries_of_index(&block)
                        .map(|e| e.unwrap().name.to_vec())
                        .collect();
                    assert_eq!(names, [b".".to_vec(), b"..".to_vec()]);
                }
                Kind::Node => htree::init_node(&format, &mut block),
            }
            htree::set_pairs(&format, kind, &mut block, &model);
            let limit = htree::limit(&format, kind);
            while model.len() < limit {
                let hash = (rng.draw() as u32).max(2);
                let index = htree::pairs(&format, kind, &block).unwrap().search(hash);
                assert_eq!(index, model.iter().rposition(|p| p.hash <= hash).unwrap());
                let pair = Pair {
                    hash,
                    block: 1 + rng.index(1000) as u32,
                };
                htree::insert_pair(&format, kind, &mut block, index + 1, pair).unwrap();
                model.insert(index + 1, pair);
            }
            assert_eq!(htree::pairs(&format, kind, &block).unwrap().to_vec(), model);
            let more = Pair { hash: 4, block: 1 };
            assert!(htree::insert_pair(&format, kind, &mut block, 1, more).is_err());
            htree::set_csum(&format, kind, &mut block, 3);
            assert!(htree::csum_ok(&format, kind, &block, 3));
            assert_eq!(htree::csum_ok(&format, kind, &block, 4), !format.csum);
        }
    }
}
