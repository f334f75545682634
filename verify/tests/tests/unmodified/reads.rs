//! Trees that are read in several orders, while their files change: nobody is told what was there before.
use super::cases::Looker;
use super::{command, source, text, volume};
use ccfs_tests::harness::{Volume, ccfs_program, number, run};
use std::fs;
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
fn what_is_above_a_directory_that_was_moved_is_another_one() {
    let Some(v) = volume("moved-dirs", 128) else {
        return;
    };
    let first = number("CCFS_TEST_SEED", 1);
    for seed in first..first + 6 {
        for direct in [false, true] {
            let base = v.path(&format!("base-{seed}-{direct}"));
            let said = program(&v, direct, "moves", &base, seed);
            assert_eq!(said.trim_end(), "moved");
        }
    }
    v.finish();
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

/// Looks at files by one mount, removes some by another one, and looks again.
const TWO_MOUNTS: &str = "
import os, sys
one, two = sys.argv[1:]
names = [f'f{n}' for n in range(20)]
os.chdir('/')
for name in names:
    os.stat(f'{one}/d/{name}')
for name in names[:9]:
    os.stat(f'{two}/d/{name}')
    os.unlink(f'{two}/d/{name}')
for name in names[9:]:
    os.chmod(f'{two}/d/{name}', 0o640)
    os.truncate(f'{two}/d/{name}', 5)
    os.link(f'{two}/d/{name}', f'{two}/d/{name}-again')
    os.rename(f'{two}/d/{name}-again', f'{two}/d/again')
for name in names[9:]:
    st = os.stat(f'{one}/d/{name}')
    if (st.st_mode & 0o777, st.st_size, st.st_nlink) != (0o640, 5, 1 + (name == names[-1])):
        sys.exit(f'{name}: {st}')
os.unlink(f'{two}/d/again')
there = [name for name in names if os.path.exists(f'{one}/d/{name}')]
if there != names[9:] or sorted(os.listdir(f'{one}/d')) != sorted(names[9:]):
    sys.exit(f'still there: {there}')
os.mkdir(f'{two}/d/new')
open(f'{two}/d/new/f', 'w').close()
if not os.path.exists(f'{one}/d/new/f'):
    sys.exit('not there')
";

#[test]
fn a_directory_by_two_mounts_is_one() {
    let Some(mut v) = volume("two-mounts", 64) else {
        return;
    };
    let (one, two) = (v.path("one"), v.path("two"));
    for dir in [&one.join("d"), &two] {
        fs::create_dir_all(dir).expect("mkdir");
    }
    (0..20).for_each(|n| fs::write(one.join(format!("d/f{n}")), "x").expect("write"));
    // Nobody remembers it.
    v.umount();
    v.mount();
    let script = v.outside("two.py");
    fs::write(&script, TWO_MOUNTS).expect("write");
    let run_it = format!(
        "mount --bind {one} {two} && {ccfs} direct -- /usr/bin/python3 {script} {one} {two}",
        one = text(&one),
        two = text(&two),
        ccfs = ccfs_program(),
        script = text(&script),
    );
    let out = run(&mut command(&v, false, &["sh", "-c", &run_it]));
    assert_eq!(out.code, 0, "{}", out.all());
    v.finish();
}
