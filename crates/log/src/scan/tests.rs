//! The decision tables, by enumeration and with real blocks.

use std::collections::HashSet;
use std::sync::Arc;

use ccfs_device::{SharedBuf, Write, write_all};
use ccfs_disks::MemoryDevice;

use super::*;
use crate::frame::{fill, frames_for};
use crate::{Geometry, Log};

const BS: usize = 1024;
const NONCE: u128 = 77;

fn all_facts() -> Vec<Facts> {
    let mut all = Vec::new();
    for bits in 0..32u32 {
        for range in [Range::Below, Range::Inside, Range::Above] {
            let bit = |n: u32| bits >> n & 1 == 1;
            all.push(Facts {
                magic: bit(0),
                nonce: bit(1),
                crc: bit(2),
                sane: bit(3),
                place: bit(4),
                range,
            });
        }
    }
    all
}

#[test]
fn table_is_disjoint_and_complete() {
    let all = all_facts();
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 96);
    let mut reached = HashSet::new();
    for f in &all {
        assert_eq!(
            TABLE.iter().filter(|row| row_matches(row, f)).count(),
            1,
            "{f:?}"
        );
        // The same decision in other words: the first predicate that fails names the verdict.
        let want = match *f {
            Facts { magic: false, .. } => Verdict::Foreign,
            Facts { nonce: false, .. } => Verdict::OldEpoch,
            Facts { crc: false, .. } => Verdict::Damaged,
            Facts { sane: false, .. } => Verdict::Impossible,
            Facts { place: false, .. } => Verdict::Misplaced,
            Facts {
                range: Range::Below,
                ..
            } => Verdict::Stale,
            Facts {
                range: Range::Above,
                ..
            } => Verdict::Future,
            Facts {
                range: Range::Inside,
                ..
            } => Verdict::Live,
        };
        assert_eq!(decide(f), want, "{f:?}");
        reached.insert(want);
    }
    assert_eq!(reached.len(), TABLE.len());
}

fn group(kind: Kind, first: u64, payload_len: u64) -> Group {
    let count = frames_for(BS, 0, payload_len).unwrap() as u32;
    let id = if kind == Kind::Txn { 1000 } else { 0 };
    Group {
        first,
        count,
        kind,
        id,
        watermark: 3,
        stamp: 5,
        payload_len,
        dep_count: 0,
        flags: 0,
    }
}

fn frames(nonce: u128, group: Group) -> Vec<Vec<u8>> {
    let mut out = vec![0; group.count as usize * BS];
    let payload = vec![0xa5; group.payload_len as usize];
    fill(
        &mut [&mut out],
        BS,
        nonce.to_le_bytes(),
        group,
        &[],
        &[&payload],
    )
    .unwrap();
    out.chunks(BS).map(<[u8]>::to_vec).collect()
}

/// Checksums `block` again, so that only the changed numbers are wrong.
fn reseal(block: &mut [u8]) {
    let crc = crate::layout::crc_without(block, 4);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn blocks_get_their_verdicts() {
    let ring = Part {
        checkpoints: false,
        cycle: 40,
        area_len: 10,
        low: 100,
        high: 140,
    };
    let verdict =
        |part: &Part, block: &[u8], position| decide(&facts(block, NONCE, part, position).0);
    let txn = |first| frames(NONCE, group(Kind::Txn, first, 2000));
    assert_eq!(verdict(&ring, &[0; BS], 0), Verdict::Foreign);
    for first in 100..=137 {
        for (i, block) in txn(first).iter().enumerate() {
            let no = first + i as u64;
            assert_eq!(verdict(&ring, block, no % 40), Verdict::Live);
            assert_eq!(verdict(&ring, block, (no + 1) % 40), Verdict::Misplaced);
            let mut torn = block.clone();
            torn[600] ^= 1;
            assert_eq!(verdict(&ring, &torn, no % 40), Verdict::Damaged);
            let mut other = block.clone();
            other[8] ^= 1;
            assert_eq!(verdict(&ring, &other, no % 40), Verdict::OldEpoch);
        }
    }
    // A group across the tail or the end of the room is judged as a whole.
    for (first, want) in [
        (60, Verdict::Stale),
        (98, Verdict::Stale),
        (138, Verdict::Future),
        (140, Verdict::Future),
    ] {
        for (i, block) in txn(first).iter().enumerate() {
            assert_eq!(verdict(&ring, block, (first + i as u64) % 40), want);
        }
    }
    let checkpoint = &frames(NONCE, group(Kind::Checkpoint, 100, 50))[0];
    assert_eq!(verdict(&ring, checkpoint, 100 % 40), Verdict::Misplaced);

    let areas = Part {
        checkpoints: true,
        cycle: 20,
        area_len: 10,
        low: 30,
        high: 60,
    };
    let at = |first: u64| {
        verdict(
            &areas,
            &frames(NONCE, group(Kind::Checkpoint, first, 50))[0],
            first % 20,
        )
    };
    let (stale, live, future) = (Verdict::Stale, Verdict::Live, Verdict::Future);
    assert_eq!(
        [20, 30, 40, 50, 60].map(at),
        [stale, live, live, live, future]
    );
    assert_eq!(at(35), Verdict::Misplaced);
    assert_eq!(verdict(&areas, &txn(30)[0], 10), Verdict::Misplaced);
}

#[test]
fn every_impossible_number_is_noticed() {
    let ring = Part {
        checkpoints: false,
        cycle: 40,
        area_len: 10,
        low: 100,
        high: 140,
    };
    let good = &frames(NONCE, group(Kind::Txn, 101, 2000))[1];
    // (offset, width): number, first, count, kind, reserved, id, payload, deps, digest, reserved.
    for (at, len) in [
        (24, 8),
        (32, 8),
        (40, 4),
        (44, 2),
        (46, 2),
        (72, 8),
        (80, 4),
        (88, 4),
        (92, 4),
    ] {
        for fill in [0xff, 0x7f] {
            let mut bad = good.clone();
            bad[at..at + len].fill(fill);
            reseal(&mut bad);
            assert_eq!(
                decide(&facts(&bad, NONCE, &ring, 102 % 40).0),
                Verdict::Impossible,
                "offset {at}"
            );
        }
    }
    for (at, value) in [
        (48, 0u64),
        (48, 3),
        (48, u64::MAX),
        (56, u64::MAX),
        (56, 1000),
    ] {
        let mut bad = good.clone();
        bad[at..at + 8].copy_from_slice(&value.to_le_bytes());
        reseal(&mut bad);
        assert_eq!(
            decide(&facts(&bad, NONCE, &ring, 102 % 40).0),
            Verdict::Impossible,
            "offset {at} {value}"
        );
    }
}

/// All subsets of the frames of three neighbours, with one frame of another stamp and one of another content mixed in:
/// exactly the complete groups are found.
#[test]
fn groups_by_enumeration() {
    let a = group(Kind::Txn, 0, 2500);
    let b = Group {
        id: 1001,
        stamp: 6,
        ..group(Kind::Txn, 3, 100)
    };
    let c = Group {
        id: 1002,
        stamp: 7,
        ..group(Kind::Txn, 4, 1500)
    };
    let other_stamp = Group { stamp: 8, ..a };
    assert_eq!([a.count, b.count, c.count], [3, 1, 2]);
    let whole: Vec<Vec<u8>> = [a, b, c]
        .into_iter()
        .flat_map(|g| frames(NONCE, g))
        .collect();
    let foreign = frames(NONCE, other_stamp);
    let mut same_group = vec![0; 3 * BS];
    fill(
        &mut [&mut same_group],
        BS,
        NONCE.to_le_bytes(),
        a,
        &[],
        &[&[1; 2500]],
    )
    .unwrap();
    for choice in 0..4u32.pow(6) {
        let mut asm = Assembler::default();
        let mut states = [0; 6];
        for (i, state) in states.iter_mut().enumerate() {
            *state = choice / 4u32.pow(i as u32) % 4;
            let block = match *state {
                0 => continue,
                2 if i < 3 => &foreign[i],
                3 if i < 3 => &same_group[i * BS..(i + 1) * BS],
                _ => &whole[i],
            };
            asm.push(&Frame::claim(block).unwrap(), block).unwrap();
        }
        asm.close().unwrap();
        let mut want = Vec::new();
        if (1..=3).any(|s| states[..3] == [s; 3]) {
            want.push(1000);
        }
        want.extend((states[3] != 0).then_some(1001));
        want.extend((states[4] != 0 && states[5] != 0).then_some(1002));
        assert_eq!(
            asm.found.iter().map(|f| f.meta.id).collect::<Vec<_>>(),
            want,
            "{states:?}"
        );
        let seen: u64 = asm
            .found
            .iter()
            .map(|f| f.frames)
            .chain(asm.torn.iter().map(|t| t.seen))
            .sum();
        assert_eq!(seen, states.iter().filter(|s| **s != 0).count() as u64);
    }
}

fn log_on(dev: &Arc<MemoryDevice>, geo: &Geometry) -> Log {
    let mut sb = vec![0u8; BS];
    sb[0..4].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
    sb[7] = 4;
    let part = ccfs_device::Slice {
        buf: SharedBuf::from(AlignedBuf::from_bytes(&sb)),
        start: 0,
        len: BS,
    };
    write_all(
        &**dev,
        vec![Write {
            offset: geo.runs[0].0 * BS as u64,
            parts: vec![part],
        }],
    )
    .unwrap();
    Log::create_in(dev.clone(), geo.clone(), 1, 16).unwrap()
}

/// What only an attacker or damage can produce is refused as corrupt, not used and not a panic.
#[test]
fn refuses_what_the_log_never_writes() {
    let geo = Geometry {
        block_size: BS as u32,
        runs: vec![(5, 63)],
    };
    let nonce = |log: &Log| log.header().nonce;
    let put = |dev: &Arc<MemoryDevice>, lblk: u64, block: &[u8]| {
        let part = ccfs_device::Slice {
            buf: SharedBuf::from(AlignedBuf::from_bytes(block)),
            start: 0,
            len: BS,
        };
        write_all(
            &**dev,
            vec![Write {
                offset: (5 + lblk) * BS as u64,
                parts: vec![part],
            }],
        )
        .unwrap();
    };
    let open = |groups: &[(u64, Group)]| {
        let dev = Arc::new(MemoryDevice::new(100 * BS as u64));
        let log = log_on(&dev, &geo);
        assert_eq!((log.ring_len(), log.reserve_len()), (40, 10));
        for &(at, group) in groups {
            for (i, block) in frames(nonce(&log), group).iter().enumerate() {
                put(&dev, 3 + at + i as u64, block);
            }
        }
        Log::open(dev, geo.clone()).map(|(_, scan)| scan)
    };
    let txn = |id, first| Group {
        id,
        ..group(Kind::Txn, first, 10)
    };
    assert_eq!(
        open(&[(0, txn(5, 0)), (1, txn(6, 1))]).unwrap().txns.len(),
        2
    );
    let refused = [
        // The header that freed this room is lost.
        vec![(0, txn(5, 40))],
        // More ids than there are frames to take them.
        vec![(0, txn(81, 0))],
        // Ids that fall, an id that is there twice.
        vec![(0, txn(6, 0)), (1, txn(5, 1))],
        vec![(0, txn(5, 0)), (1, txn(5, 1))],
        // A checkpoint with a number beyond all that are given.
        vec![(40 + 10, group(Kind::Checkpoint, (1 << 30) * 10 + 10, 50))],
    ];
    for groups in refused {
        assert!(
            matches!(open(&groups), Err(Error::Corrupt(_))),
            "{groups:?}"
        );
    }
    // A frame that claims a number of the next lap at this place.
    let scan = open(&[(1, txn(5, 2))]).unwrap();
    assert_eq!((scan.txns.len(), scan.counts.misplaced), (0, 1));
    // A dependency on itself, with good checksums.
    let dev = Arc::new(MemoryDevice::new(100 * BS as u64));
    let log = log_on(&dev, &geo);
    let g = Group {
        dep_count: 1,
        ..txn(9, 0)
    };
    let mut out = vec![0; BS];
    fill(
        &mut [&mut out],
        BS,
        nonce(&log).to_le_bytes(),
        g,
        &[8],
        &[&[1; 10]],
    )
    .unwrap();
    out[FRAME_HEADER] = 9;
    reseal(&mut out);
    put(&dev, 3, &out);
    assert!(matches!(
        Log::open(dev, geo.clone()),
        Err(Error::Corrupt(_))
    ));
}
