//! One file under random calls, as fsx does it: each read is compared with what memory says.
use super::{session, volume};
use ccfs_client::direct::{File, OpenOptions};
use ccfs_testkit::Rng;
use ccfs_tests::harness::{Volume, number};
use ccfs_tests::sys;
use std::time::Instant;

const LONGEST: u64 = 200_000;

fn opened(v: &Volume, name: &str, how: OpenOptions) -> File {
    let root = session(v).root().expect("root");
    root.open(name, how).expect("open")
}

fn run(v: &Volume, name: &str, mixed: bool, operations: u64) {
    let seed = number("CCFS_TEST_SEED", 99);
    let mut rng = Rng::new(seed);
    let mut file = opened(v, name, OpenOptions::new_file());
    let again = OpenOptions {
        exclusive: false,
        ..OpenOptions::new_file()
    };
    let mounted = mixed.then(|| sys::open(v.path(name), libc::O_RDWR, 0).expect("open"));
    let mut model: Vec<u8> = Vec::new();
    let start = Instant::now();
    for i in 0..operations {
        let through = mounted.as_ref().filter(|_| rng.chance(50));
        let at = rng.below(LONGEST);
        let what = rng.below(10);
        let mut data = vec![0; rng.size(12_000) as usize];
        match what {
            0..=3 => {
                rng.fill(&mut data);
                let at = if what == 3 { model.len() as u64 } else { at };
                if at + data.len() as u64 > LONGEST {
                    continue;
                }
                match through {
                    Some(fd) => assert_eq!(sys::pwrite(fd, &data, at), Ok(data.len())),
                    None if what == 3 => file.append(&data).expect("append"),
                    None => file.write_at(&data, at).expect("write"),
                }
                let end = at as usize + data.len();
                if !data.is_empty() {
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&data);
                }
            }
            4 => {
                match through {
                    Some(fd) => sys::ftruncate(fd, at as i64).expect("ftruncate"),
                    None => file.truncate(at).expect("truncate"),
                }
                model.resize(at as usize, 0);
            }
            5 if mixed && rng.chance(2) => file = opened(v, name, again),
            5 => {
                let size = match through {
                    Some(fd) => sys::fstat(fd).expect("fstat").size,
                    None => file.stat().expect("stat").size,
                };
                assert_eq!(size, model.len() as u64, "seed {seed}, {name}, {i}: size");
            }
            _ => {
                let n = match through {
                    Some(fd) => sys::pread(fd, &mut data, at).expect("pread"),
                    None => file.read_at(&mut data, at).expect("read"),
                };
                let from = (at as usize).min(model.len());
                let to = (from + data.len()).min(model.len());
                let direct = through.is_none();
                assert_eq!(n, to - from, "seed {seed}, {name}, {i}: direct {direct}");
                let good = data[..n] == model[from..to];
                assert!(
                    good,
                    "seed {seed}, {name}, {i}: read {n} at {at}, direct {direct}"
                );
            }
        }
    }
    let each = operations as f64 / start.elapsed().as_secs_f64();
    println!("{name}: {operations} operations, {each:.0} a second");
    drop((file, mounted));
    assert!(
        std::fs::read(v.path(name)).expect("read") == model,
        "seed {seed}: {name}"
    );
}

#[test]
fn alone_and_with_system_calls_in_turn() {
    let Some(v) = volume("direct one_file", 64, "") else {
        return;
    };
    let operations = number("CCFS_DIRECT_OPS", 100_000);
    run(&v, "alone", false, operations);
    run(&v, "mixed", true, operations / 2);
    v.finish();
}
