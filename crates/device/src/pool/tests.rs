//! Blocks that wander between threads, go back to the system, and are prepared.
#![allow(unsafe_code)]
use super::*;
use std::collections::HashSet;

fn all_of(pool: &Pool, magazines: usize) -> Vec<Magazine> {
    (0..magazines).map(|_| pool.get()).collect()
}

fn distinct(magazines: &[Magazine]) -> HashSet<usize> {
    let all: HashSet<usize> = magazines
        .iter()
        .flat_map(|m| m.blocks().iter().copied())
        .collect();
    assert_eq!(
        all.len(),
        magazines.len() * MAGAZINE,
        "every block has one owner"
    );
    assert!(all.iter().all(|b| b.is_multiple_of(BLOCK)));
    all
}

fn fill(blocks: &HashSet<usize>, value: u8) {
    for block in blocks {
        // SAFETY: the blocks belong to the test's own pool, and to nobody else.
        unsafe { std::ptr::write_bytes(*block as *mut u8, value, BLOCK) };
    }
}

fn byte(block: usize) -> u8 {
    // SAFETY: as above.
    unsafe { *((block + BLOCK - 1) as *const u8) }
}

#[test]
fn what_was_given_is_used_again_and_what_nobody_needs_goes_back() {
    let pool = Pool::new();
    let slab = SLAB / BLOCK / MAGAZINE;
    let taken = all_of(&pool, 3 * slab);
    let first = distinct(&taken);
    fill(&first, 7);
    taken.iter().for_each(|m| pool.put(*m));
    assert_eq!(
        pool.give_back(Duration::ZERO),
        0,
        "a moment ago all of it was in use"
    );
    // Two thirds are needed again, so a third is not.
    let taken = all_of(&pool, 2 * slab);
    assert!(
        distinct(&taken)
            .iter()
            .all(|b| first.contains(b) && byte(*b) == 7)
    );
    taken.iter().for_each(|m| pool.put(*m));
    assert_eq!(pool.give_back(Duration::from_secs(3600)), 0, "too early");
    assert_eq!(pool.give_back(Duration::ZERO), SLAB);
    assert_eq!(pool.give_back(Duration::ZERO), 2 * SLAB);
    assert_eq!(pool.give_back(Duration::ZERO), 0);
    // It is the same memory, without what was in it.
    let taken = all_of(&pool, 3 * slab);
    let again = distinct(&taken);
    assert_eq!(again, first);
    assert!(again.iter().all(|b| byte(*b) == 0));
    fill(&again, 9);
    assert!(again.iter().all(|b| byte(*b) == 9));
}

/// The kernel makes a huge page again of what one was asked for, memory that was given back included.
#[test]
fn a_slab_that_gave_memory_back_is_no_huge_page_until_all_of_it_is_free() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        eprintln!("skipped: this kernel has no huge pages");
        return;
    }
    let pool = Pool::new();
    let taken = all_of(&pool, SLAB / BLOCK / MAGAZINE);
    fill(&distinct(&taken), 7);
    let slab = taken[0].blocks()[0];
    assert_eq!(slab % SLAB, 0);
    let flags = || flags_of(slab).unwrap();
    let is = |flag: &str| flags().split(' ').any(|f| f == flag);
    assert!(is("hg") && !is("nh"), "{}", flags());
    let (kept, spare) = taken.split_first().unwrap();
    spare.iter().for_each(|m| pool.put(*m));
    let gone = || {
        pool.give_back(Duration::ZERO);
        pool.give_back(Duration::ZERO)
    };
    assert_eq!(gone(), SLAB - MAGAZINE * BLOCK);
    assert!(is("nh") && !is("hg"), "{}", flags());
    assert!(kept.blocks().iter().all(|b| byte(*b) == 7));
    pool.put(*kept);
    assert_eq!(gone(), MAGAZINE * BLOCK);
    assert!(is("hg") && !is("nh"), "{}", flags());
}

/// `VmFlags` of the mapping in which an address lies (proc_pid_smaps(5)).
fn flags_of(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        let hex = |text| usize::from_str_radix(text, 16).ok();
        if let Some((from, to)) = range.and_then(|(a, b)| Some((hex(a)?, hex(b)?))) {
            inside = (from..to).contains(&address);
        }
        if let Some(flags) = line.strip_prefix("VmFlags: ").filter(|_| inside) {
            return Some(flags.to_string());
        }
    }
    None
}

/// A page of 64 KiB has 16 blocks, and goes back when nobody has any of them.
#[test]
fn a_large_page_keeps_its_memory_while_a_block_of_it_is_in_use() {
    let pool = Pool {
        page: Some(16 * BLOCK),
        ..Pool::new()
    };
    let pages = all_of(&pool, 2);
    let all = distinct(&pages);
    fill(&all, 7);
    let mut mixed = [Magazine::EMPTY; 2];
    for (n, block) in pages.iter().flat_map(Magazine::blocks).enumerate() {
        mixed[n / 8 % 2].push(*block);
    }
    let gone = || {
        pool.give_back(Duration::ZERO);
        pool.give_back(Duration::ZERO)
    };
    pool.put(mixed[0]);
    assert_eq!(gone(), 0);
    assert!(all.iter().all(|b| byte(*b) == 7));
    pool.put(mixed[1]);
    assert_eq!(gone(), 2 * 16 * BLOCK);
    assert!(all.iter().all(|b| byte(*b) == 0));
    let again = all_of(&pool, 2);
    assert_eq!(distinct(&again), all);
}

#[test]
fn neighbours_stay_neighbours() {
    let pool = Pool::new();
    let magazine = pool.get();
    let mut back = Magazine::EMPTY;
    magazine.blocks().iter().for_each(|b| back.push(*b));
    pool.put(back);
    let again = pool.get();
    assert!(again.blocks().windows(2).all(|w| w[0] + BLOCK == w[1]));
    assert_eq!(again.blocks(), magazine.blocks());
}

#[test]
fn runs_are_joined() {
    let run = |start: usize, blocks| Run {
        start: start * BLOCK,
        blocks,
    };
    let runs = [run(9, 1), run(2, 2), run(4, 1), run(7, 1), run(8, 1)];
    assert_eq!(joined(runs.into_iter()), [run(2, 3), run(7, 3)]);
    assert_eq!(joined([].into_iter()), []);
}

/// Blocks wander between threads, and no two have the same one at once.
#[test]
fn threads_exchange_blocks() {
    let (send, receive) = std::sync::mpsc::sync_channel::<Vec<usize>>(4);
    let check = |block: usize| {
        // SAFETY: `take` gave the block, and it was not given back yet.
        let bytes = unsafe { std::slice::from_raw_parts(block as *const u8, BLOCK) };
        let want = (block / BLOCK) as u8;
        assert!(bytes[0] == want && bytes[BLOCK - 1] == want);
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let send = send.clone();
            scope.spawn(move || {
                for _ in 0..200 {
                    let blocks: Vec<usize> = (0..50)
                        .map(|_| {
                            let block = take();
                            let mark = (block.as_ptr() as usize / BLOCK) as u8;
                            // SAFETY: `take` has given the block to this thread alone.
                            unsafe { std::ptr::write_bytes(block.as_ptr(), mark, BLOCK) };
                            block.as_ptr() as usize
                        })
                        .collect();
                    blocks.iter().take(7).for_each(|b| check(*b));
                    blocks[..7]
                        .iter()
                        .for_each(|b| give(NonNull::new(*b as *mut u8).unwrap()));
                    send.send(blocks[7..].to_vec()).unwrap();
                }
            });
        }
        drop(send);
        scope.spawn(move || {
            for blocks in receive {
                blocks.iter().for_each(|b| check(*b));
                blocks
                    .iter()
                    .for_each(|b| give(NonNull::new(*b as *mut u8).unwrap()));
            }
        });
    });
}

const SLAB_MAGAZINES: usize = SLAB / BLOCK / MAGAZINE;

/// A pool with as much room, bytes, for which a thread could prepare memory.
fn prepared(room: usize) -> Pool {
    let pool = Pool::new();
    pool.shared.lock().prepares = true;
    pool.make_room(room as u64);
    while pool.prepare() {}
    pool
}

fn ready(pool: &Pool) -> usize {
    let shared = pool.shared.lock();
    shared.ready.iter().map(|m| m.blocks().len() * BLOCK).sum()
}

/// The block's page has memory behind it.
fn is_there(block: usize) -> bool {
    let page = rustix::param::page_size();
    let mut state = 0;
    // SAFETY: the range is one page of a slab, and `state` has a byte for it.
    let done = unsafe { libc::mincore((block - block % page) as *mut _, page, &raw mut state) };
    assert_eq!(done, 0);
    state & 1 == 1
}

#[test]
fn what_is_prepared_is_there_and_is_used() {
    let pool = prepared(1 << 30);
    assert_eq!(ready(&pool), 2 * SLAB);
    let first = all_of(&pool, SLAB_MAGAZINES - 1);
    assert!(!pool.prepare(), "there is more than a slab");
    let second = all_of(&pool, SLAB_MAGAZINES + 1);
    let taken: Vec<Magazine> = first.into_iter().chain(second).collect();
    let blocks = distinct(&taken);
    assert!(blocks.iter().all(|b| is_there(*b) && byte(*b) == 0));
    let slab: Vec<usize> = taken.iter().flat_map(|m| m.blocks().to_vec()).collect();
    let in_order = slab.windows(2).filter(|w| w[0] + BLOCK == w[1]).count();
    assert!(in_order >= slab.len() - 2, "neighbours follow each other");
    assert_eq!(ready(&pool), 0);
    assert!(pool.prepare() && pool.prepare() && !pool.prepare());
    assert_eq!(pool.shared.lock().in_use, 2 * SLAB / BLOCK);
    // What nobody prepared is there for whoever is faster.
    let more = all_of(&pool, 3 * SLAB_MAGAZINES);
    assert!(distinct(&more).is_disjoint(&blocks));
}

#[test]
fn what_is_prepared_is_bounded() {
    assert_eq!(ready(&prepared(0)), 0);
    assert_eq!(ready(&prepared(SLAB - BLOCK)), 0);
    assert_eq!(ready(&prepared(SLAB)), SLAB);
    assert_eq!(ready(&Pool::new()), 0, "nobody asked for it");
    let pool = prepared(1 << 30);
    for (in_use, ahead) in [(16, 2), (24, 3), (32, 4), (64, 4)] {
        let before = pool.shared.lock().in_use * BLOCK / SLAB;
        all_of(&pool, (in_use - before) * SLAB_MAGAZINES);
        while pool.prepare() {}
        assert_eq!(ready(&pool), ahead * SLAB, "{in_use} slabs in use");
    }
    // What is told anew counts from what is in use then, and what comes back makes room.
    let pool = prepared(2 * SLAB);
    let taken = all_of(&pool, 2 * SLAB_MAGAZINES);
    assert!(!pool.prepare());
    pool.make_room(SLAB as u64);
    assert!(pool.prepare() && !pool.prepare());
    all_of(&pool, SLAB_MAGAZINES);
    assert!(!pool.prepare());
    taken.iter().for_each(|m| pool.put(*m));
    assert_eq!(ready(&pool), 2 * SLAB);
}

#[test]
fn what_was_prepared_in_vain_goes_back_but_for_what_is_ready_at_rest() {
    let pool = prepared(1 << 30);
    let taken = all_of(&pool, 32 * SLAB_MAGAZINES);
    while pool.prepare() {}
    assert_eq!(ready(&pool), 4 * SLAB);
    pool.give_back(Duration::ZERO);
    assert_eq!(pool.give_back(Duration::ZERO), 0, "so much is in use");
    taken.iter().for_each(|m| pool.put(*m));
    assert!(!pool.prepare());
    assert_eq!(pool.give_back(Duration::ZERO), 4 * SLAB);
    assert_eq!(pool.give_back(Duration::ZERO), 32 * SLAB);
    assert_eq!(ready(&pool), 0, "pieces of all slabs are no slab");
    assert!(pool.prepare() && pool.prepare() && !pool.prepare());
    for _ in 0..3 {
        assert_eq!(pool.give_back(Duration::ZERO), 0);
        assert_eq!(ready(&pool), 2 * SLAB);
    }
    pool.make_room(0);
    assert_eq!(pool.give_back(Duration::ZERO), 2 * SLAB);
    assert_eq!(ready(&pool), 0);
}

/// Of slabs in which others have blocks.
#[test]
fn pieces_are_prepared() {
    let pool = Pool::new();
    let (mut kept, mut spare) = (HashSet::new(), 0);
    for (n, magazine) in all_of(&pool, 4 * SLAB_MAGAZINES).into_iter().enumerate() {
        fill(&distinct(&[magazine]), 7);
        if n % 4 == 0 {
            kept.extend(magazine.blocks().iter().copied());
        } else {
            spare += 1;
            pool.put(magazine);
        }
    }
    pool.give_back(Duration::ZERO);
    // Nothing is there of a page of which nobody has a block.
    let blocks = spare * MAGAZINE;
    assert_eq!(pool.give_back(Duration::ZERO), blocks * BLOCK);
    pool.shared.lock().prepares = true;
    pool.make_room(1 << 30);
    while pool.prepare() {}
    let had = ready(&pool);
    assert!((SLAB + BLOCK..=2 * SLAB).contains(&had));
    let again = distinct(&all_of(&pool, had / BLOCK / MAGAZINE));
    assert!(again.is_disjoint(&kept) && again.iter().all(|b| is_there(*b)));
    assert!(kept.iter().all(|b| byte(*b) == 7));
}

/// Other tests take from the same pool.
#[test]
fn a_thread_prepares() {
    keep_memory_ready().unwrap();
    give_back_memory(1 << 30);
    while ready(&POOL) < SLAB {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_kernel_tells_when_memory_is_short() {
    let text = "some avg10=12.50 avg60=0.30 avg300=0.00 total=38\nfull avg10=99.00 avg60=0.00";
    assert_eq!(ahead::waited(text), 12.5);
    assert_eq!(ahead::waited(""), 0.0);
}
