//! A program of the power cuts under O_ATOMIC files: `ccfs-atomic-load DIR SEED write|map`.
use ccfs_tests::power_cuts::load::{self, Way};
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, seed, way] = &args[..] else {
        eprintln!("usage: ccfs-atomic-load DIR SEED write|map");
        std::process::exit(2);
    };
    let way = Way::of(way).expect("write or map");
    let seed = seed.parse().expect("a number");
    if load::run(Path::new(dir), seed, way).is_err() {
        // Its daemon is dead, or nobody listens any more.
        std::process::exit(3);
    }
}
