#![allow(unsafe_code)]
use super::*;
use std::collections::HashSet;
use std::sync::atomic::AtomicUsize;

/// A block of the pool, and buffers of other lengths.
const LENGTHS: [usize; 3] = [512, pool::BLOCK, 3 * pool::BLOCK];

fn buf(len: usize, byte: u8) -> SharedBuf {
    AlignedBuf::from_bytes(&vec![byte; len]).into()
}

fn others(buf: &SharedBuf) -> u32 {
    match buf.repr() {
        // SAFETY: a block of the pool that is in use.
        Repr::Block(block) => unsafe { pool::others(block) }.load(Relaxed),
        Repr::Counted(_) => panic!("not of the pool"),
    }
}

#[test]
fn owners_have_the_same_bytes_until_one_changes_them() {
    for len in LENGTHS {
        let mut first = buf(len, 1);
        assert_eq!((first.len(), first[len - 1]), (len, 1));
        let at = first.as_ptr();
        assert_eq!(
            first.make_mut().as_ptr(),
            at,
            "the only owner needs no copy"
        );
        let second = first.clone();
        assert!(first.ptr_eq(&second) && !first.ptr_eq(&buf(len, 1)));
        first.make_mut()[0] = 2;
        assert!(!first.ptr_eq(&second));
        assert_eq!((first[0], first[1], second[0]), (2, 1, 1));
        let mut second = second;
        let at = second.as_ptr();
        assert_eq!(second.make_mut().as_ptr(), at, "the only owner again");
    }
}

#[test]
fn blocks_come_back_to_the_pool_with_their_last_owner() {
    let first = buf(pool::BLOCK, 7);
    assert_eq!(others(&first), 0);
    let all: Vec<SharedBuf> = (0..10).map(|_| first.clone()).collect();
    assert_eq!(others(&first), 10);
    drop(first);
    assert_eq!(others(&all[0]), 9);
    let block = all[0].as_ptr() as usize;
    drop(all);
    // What a thread gives back it takes again: a bounded search finds the block, and its count is 0.
    let found: Vec<SharedBuf> = (0..64).map(|n| buf(pool::BLOCK, n)).collect();
    assert!(found.iter().any(|b| b.as_ptr() as usize == block));
    assert!(found.iter().all(|b| others(b) == 0));
}

/// Waits until all of `owners` are in round `n`, so that they go on at the same moment.
fn meet(arrived: &AtomicUsize, owners: usize, n: usize) {
    arrived.fetch_add(1, AcqRel);
    for turn in 0u64.. {
        if arrived.load(Acquire) >= owners * (n + 1) {
            return;
        }
        match turn % 1000 {
            999 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

/// The last of them, whichever it is, has all to itself, and nobody else's bytes change: a block that came back twice, or too soon, would
/// be two owners' at once; one whose count is left would never come back.
#[test]
fn owners_that_end_at_once_give_a_block_back_once() {
    const ROUNDS: usize = 50_000;
    const OWNERS: usize = 2;
    let arrived = AtomicUsize::new(0);
    let (to, from): (Vec<_>, Vec<_>) = (0..OWNERS)
        .map(|_| std::sync::mpsc::sync_channel::<SharedBuf>(64))
        .unzip();
    std::thread::scope(|scope| {
        for got in from {
            let arrived = &arrived;
            scope.spawn(move || {
                for (n, mut shared) in got.into_iter().enumerate() {
                    let byte = (n % 251) as u8;
                    assert!(shared.iter().step_by(512).all(|b| *b == byte), "{n}");
                    meet(arrived, OWNERS, n);
                    // Alone it may change its bytes, else it gets a copy: no other owner sees this.
                    if n % 5 == 0 {
                        shared.make_mut().fill(255);
                    }
                }
            });
        }
        let mut seen = HashSet::new();
        for n in 0..ROUNDS {
            let shared = buf(pool::BLOCK, (n % 251) as u8);
            assert_eq!(others(&shared), 0, "what the pool gives");
            seen.insert(shared.as_ptr() as usize);
            let (last, rest) = to.split_last().unwrap();
            rest.iter().for_each(|to| to.send(shared.clone()).unwrap());
            last.send(shared).unwrap();
        }
        drop(to);
        // Far more than are on their way at once: one that does not come back is seen but once.
        assert!(seen.len() < 2000, "{} blocks", seen.len());
    });
    // Each block is in the pool once at most.
    let mut all: Vec<SharedBuf> = (0..4096).map(|_| buf(pool::BLOCK, 0)).collect();
    assert!(all.iter().all(|b| others(b) == 0));
    all.sort_by_key(|b| b.as_ptr() as usize);
    assert!(all.windows(2).all(|two| !two[0].ptr_eq(&two[1])));
}
