//! Random calls of one program and its children: the same results and trees with and without.
use super::{command, compile, source, text, volume};
use ccfs_tests::harness::{Volume, number, run, run_ok};
use std::path::Path;

/// What the program says, and what it leaves.
fn said(v: &Volume, program: &Path, direct: bool, seed: u64) -> Vec<String> {
    // Links may lead one floor up: nothing stays there for the next run.
    let place = v.path("place");
    std::fs::create_dir(&place).expect("a directory");
    let base = place.join("base");
    let mut all = String::new();
    // The second one works on what the first one has left, which the kernel may know or not.
    for seed in [seed, seed + (1 << 32)] {
        let words = [text(program), text(&base), &seed.to_string(), "300"];
        let ran = run(command(v, direct, &words).current_dir(&place));
        all += &format!("{}exit code {}\n", ran.all(), ran.code);
        if seed % 3 != 0 {
            std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root");
        }
    }
    let find = "find . -printf '%P %y %m %n %l\\n' | sort; find . -type f -exec cksum {} + | sort";
    let tree = run_ok("sh", &["-c", &format!("cd {} && {find}", text(&base))]);
    std::fs::remove_dir_all(&place).expect("remove");
    all += &tree;
    all.lines().map(String::from).collect()
}

#[test]
fn random_calls_do_the_same() {
    let Some(v) = volume("random", 256) else {
        return;
    };
    let program = compile(&v, "random", &[source("random_calls.c")]);
    let first = number("CCFS_TEST_SEED", 1);
    let mut all = Vec::new();
    for seed in first..first + number("CCFS_TEST_ROUNDS", 60) {
        let (plain, direct) = (
            said(&v, &program, false, seed),
            said(&v, &program, true, seed),
        );
        let differ = |i: &usize| plain.get(*i) != direct.get(*i);
        if let Some(i) = (0..plain.len().max(direct.len())).find(differ) {
            let (expected, got) = (plain.get(i), direct.get(i));
            all.push(format!(
                "seed {seed}, line {i}: {expected:?}\n      direct: {got:?}"
            ));
        }
    }
    v.finish();
    assert!(all.is_empty(), "{}", all.join("\n"));
}
