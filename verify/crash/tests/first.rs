//! The first test: two streams, up to three operations each, every order of them, commits in between, all crash states.
//!
//! CCFS_CRASH_RUNS sets how many runs are drawn per situation (the default takes seconds; 0 means every single one).
use ccfs_crash::config::CONFIGS;
use ccfs_crash::coverage::Coverage;
use ccfs_crash::explore::{Effort, explore_source};
use ccfs_crash::run::Source;
use ccfs_crash::setting::Setting;
use ccfs_testkit::Rng;

/// (what is there and synced, operations of A, operations of B)
const SITUATIONS: &[(&str, &[&str], &[&str])] = &[
    // Two files in one directory: a directory block, inode table block, bitmaps in common (spots 1, 3, 5, 6).
    (
        "",
        &["create a", "write a 0 3000", "setxattr a user.x 10"],
        &["create b", "write b 0 3000"],
    ),
    // Frees beside allocations (3, 12, 13).
    (
        "A create a; A write a 0 9000",
        &["unlink a", "create c", "write c 0 5000"],
        &["create b", "write b 0 9000"],
    ),
    // Names that come and go in one directory (6, 8).
    (
        "A create a; A create b",
        &["unlink a", "create aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"],
        &["unlink b", "create c", "create d"],
    ),
    // A directory that empties and goes (9).
    (
        "A mkdir d; A create d/x",
        &["unlink d/x", "create y"],
        &["rmdir d", "create d"],
    ),
    (
        "A mkdir d",
        &["create d/x", "unlink d/x"],
        &["rmdir d", "mkdir e"],
    ),
    // Two names of one file (10).
    (
        "A create a; A write a 0 100; A link a b",
        &["unlink a", "create c"],
        &["unlink b", "create d"],
    ),
    (
        "A create a",
        &["link a b", "write a 0 700"],
        &["unlink a", "create e"],
    ),
    // One file written by both (5 of C5, 19).
    (
        "A create a; A write a 0 1500",
        &["write a 100 200", "append a 3000"],
        &["append a 700", "truncate a 500", "truncate a 9000"],
    ),
    (
        "A create a",
        &["append a 10", "append a 5000"],
        &["append a 10", "punch a 0 4096"],
    ),
    // Moves of directories (22).
    (
        "A mkdir p; A mkdir p/q",
        &["rename p/q q"],
        &["rename p q/p", "create z"],
    ),
    (
        "A mkdir p; A mkdir q; A mkdir p/x; A mkdir q/y",
        &["rename p/x q/x", "create p/f"],
        &["rename q/y p/y", "rmdir q/x"],
    ),
    // Create, write, rename over (the editor's way).
    (
        "A create f; A write f 0 2000",
        &["create t", "write t 0 4000", "rename t f"],
        &["write f 0 10", "create g"],
    ),
    // Attributes of a directory and entries in it (C5, 23).
    (
        "A mkdir d",
        &["chmod d 700", "create d/a"],
        &["create d/b", "utimes d 5000"],
    ),
    (
        "A mkdir d",
        &["utimes d 77", "setxattr d user.a 9"],
        &["chown d 3 4", "create d/x"],
    ),
    (
        "",
        &["mkdir d", "create d/a"],
        &["create d/b", "symlink s 70"],
    ),
    (
        "A create a; A create b",
        &["exchange a b", "write a 0 10"],
        &["write b 0 20", "whiteout b c"],
    ),
];

/// Interleavings of two lists, as choices of A.
fn interleavings(a: usize, b: usize) -> Vec<Vec<bool>> {
    let n = a + b;
    let choices = (0u32..1 << n).filter(|m| m.count_ones() as usize == a);
    choices
        .map(|m| (0..n).map(|i| m >> i & 1 == 1).collect())
        .collect()
}

const COMMITS: &[&str] = &[
    "",
    "",
    "A streamsync",
    "B streamsync",
    "A fsync .",
    "A tick",
    "A checkpoint",
    "A syncfs",
];

/// One run: order of the operations, and what is between them, taken from the digits of `number`. Operations that an
/// order makes impossible are left out.
fn script(situation: &(&str, &[&str], &[&str]), order: &[bool], mut number: u64) -> String {
    let (before, a, b) = situation;
    let mut text = format!("{before}; A syncfs");
    let (mut i, mut j) = (0, 0);
    for first in order {
        let (stream, op) = if *first { ("A", a[i]) } else { ("B", b[j]) };
        (i, j) = if *first { (i + 1, j) } else { (i, j + 1) };
        let commit = COMMITS[(number % COMMITS.len() as u64) as usize];
        number /= COMMITS.len() as u64;
        text += &format!("; ?{stream} {op}; {commit}");
    }
    text
}

fn situation(index: usize) {
    let runs: u64 = std::env::var("CCFS_CRASH_RUNS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(30);
    let s = &SITUATIONS[index];
    let orders = interleavings(s.1.len(), s.2.len());
    let per_order = (COMMITS.len() as u64).pow((s.1.len() + s.2.len()) as u32);
    let mut rng = Rng::new(index as u64);
    let total = if runs == 0 {
        orders.len() as u64 * per_order
    } else {
        runs
    };
    let mut coverage = Coverage::default();
    for k in 0..total {
        let at = if runs == 0 {
            k
        } else {
            rng.below(orders.len() as u64 * per_order)
        };
        let text = script(s, &orders[(at / per_order) as usize], at % per_order);
        let effort = Effort {
            subsets_max: 10,
            torn: 3,
            deep_every: 100,
            states_max: 250,
            seed: at,
            ..Effort::default()
        };
        let setting = Setting {
            streams: 2,
            ..Setting::new(&CONFIGS[(k % 2) as usize])
        };
        match explore_source(setting, Source::Text(text.clone()), &effort) {
            Ok(c) => coverage.add(&c),
            Err(e) => panic!("situation {index}, run {at}: {text}\n{e}"),
        }
    }
    println!("{coverage}");
}

macro_rules! situations {
    ($($name:ident $index:literal)*) => { $(#[test] fn $name() { situation($index); })* };
}
situations! {
    first_00 0 first_01 1 first_02 2 first_03 3 first_04 4 first_05 5 first_06 6 first_07 7 first_08 8 first_09 9
    first_10 10 first_11 11 first_12 12 first_13 13 first_14 14 first_15 15
}
