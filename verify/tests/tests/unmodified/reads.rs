//! Trees that are read in several orders, while their files change: nobody is told what was there before.
use super::cases::Looker;
use super::{command, source, text, volume};
use ccfs_tests::harness::{Volume, number, run};
use std::path::Path;

fn program(v: &Volume, direct: bool, what: &str, base: &Path, n: u64) -> String {
    let (program, n) = (source("reads.py"), n.to_string());
    let words = ["python3", text(&program), what, text(base), &n];
    let ran = run(&mut command(v, direct, &words));
    assert_eq!(ran.code, 0, "{what}, direct {direct}: {}", ran.all());
    ran.stdout
}

#[test]
fn trees_that_change_while_they_are_read() {
    let Some(v) = volume("reads", 256) else {
        return;
    };
    let base = v.path("base");
    let mut all = Vec::new();
    let first = number("CCFS_TEST_SEED", 1);
    for seed in first..first + number("CCFS_TEST_ROUNDS", 12) {
        let said = |direct| {
            program(&v, direct && seed % 3 == 0, "make", &base, seed);
            if seed % 2 == 0 {
                std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root");
            }
            let looker = (direct && seed % 4 == 3).then(|| Looker::at(&base));
            let said = program(&v, direct, "walk", &base, seed);
            drop(looker);
            std::fs::remove_dir_all(&base).expect("remove");
            said
        };
        let (plain, direct) = (said(false), said(true));
        assert!(plain.lines().count() > 100, "{plain}");
        let mut lines = plain.lines().zip(direct.lines());
        if let Some((plain, direct)) = lines.find(|(plain, direct)| plain != direct) {
            all.push(format!("seed {seed}: {plain}\n      direct: {direct}"));
        }
    }
    v.finish();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn threads_read_what_others_have_written() {
    let Some(v) = volume("reading-threads", 128) else {
        return;
    };
    for round in 0..3 {
        let base = v.path(&format!("base-{round}"));
        let looker = (round == 1).then(|| Looker::at(v.mnt()));
        let said = program(&v, true, "threads", &base, 4);
        drop(looker);
        assert_eq!(said.trim_end(), "reads True wrong []", "round {round}");
    }
    v.finish();
}
