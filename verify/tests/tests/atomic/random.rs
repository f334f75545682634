//! Groups of random changes, taken back or committed, by seed (`CCFS_TEST_SEED`): the tree is what it was, or what the group made of it, to everybody, however
//! the kernel had cached it; also after `kill -9`.
use crate::common::{PATIENCE, assert_same, is_same, on_a_thread, on_each_transport, root};
use ccfs_client as client;
use ccfs_testkit::Rng;
use ccfs_tests::harness::{Entry, Tree, Volume};
use ccfs_tests::sys::{self, Map};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 24;
const OPERATIONS: u64 = 20;
const DIRS: [&str; 4] = ["", "p/", "q/", "p/r/"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[test]
fn random_groups() {
    on_each_transport("random_groups", |mut v| {
        let chosen = std::env::var("CCFS_TEST_SEED").ok();
        let seed = chosen.map_or(7, |s| s.parse().expect("CCFS_TEST_SEED is a number"));
        fs::create_dir(v.path("legacy")).expect("mkdir");
        let mut rng = Rng::new(seed);
        for _ in 0..100 {
            step(&v, &mut rng);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            // Others on other files, all the time.
            s.spawn(|| legacy(&v, &stop));
            let _stop = Stop(&stop);
            for round in 0..ROUNDS {
                let before = tree(&v);
                group(&v, &mut Rng::part(seed, round), round, &before);
            }
        });
        on_a_thread(|| {
            let committed = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
            sys::syncfs(&committed).expect("syncfs");
        });
        let last = tree(&v);
        on_a_thread(|| {
            client::group_begin(root(&v), None).expect("begin");
            for _ in 0..OPERATIONS {
                step(&v, &mut rng);
            }
        });
        v.kill9();
        v.mount();
        assert_same("C11: after the crash", &last, &tree(&v));
        v.finish();
    });
}

/// All but what others do meanwhile.
fn tree(v: &Volume) -> Tree {
    let mut tree = Tree(Default::default());
    for top in fs::read_dir(v.mnt()).expect("readdir") {
        let name = top
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("plain");
        if name == "legacy" {
            continue;
        }
        let path = v.path(&name);
        if path.is_dir() && !path.is_symlink() {
            let below = Tree::read(&path);
            let whole = |below: &str| match below {
                "" => name.clone(),
                below => format!("{name}/{below}"),
            };
            let entries = below.0.into_iter().map(|(below, e)| {
                let first_name = whole(&e.first_name);
                (whole(&below), Entry { first_name, ..e })
            });
            tree.0.extend(entries);
        } else {
            let mut entry = Entry::read(&path);
            entry.first_name = name.clone();
            tree.0.insert(name, entry);
        }
    }
    tree.0.insert(String::new(), Entry::read(v.mnt()));
    tree
}

/// One group, and one of its ends.
fn group(v: &Volume, rng: &mut Rng, round: u64, before: &Tree) {
    let commits = round % 4 == 3;
    let wanted = (round % 6 == 2).then(|| a_file(before)).flatten();
    let in_the_way = wanted.map(|name| {
        let file = sys::open(v.path(&name), libc::O_RDONLY, 0).expect("open");
        (name, file)
    });
    let made = on_a_thread(|| {
        let at = root(v);
        client::group_begin(&at, None).expect("begin");
        for n in 0..OPERATIONS {
            step(v, rng);
            if n % 8 == 0 {
                // Caches names, attributes and pages of the middle of it.
                tree(v);
            }
        }
        if let Some((_, file)) = &in_the_way {
            // Whatever its names are now.
            sys::fchmod(file, 0o640).expect("chmod");
            return None;
        }
        if commits {
            let made = tree(v);
            client::group_commit(&at, 0, round % 8 == 3).expect("commit");
            return Some(made);
        }
        client::group_abort(&at, 0).expect("abort");
        None
    });
    if let Some((name, file)) = in_the_way {
        return interfere(v, &name, &file, before, round);
    }
    let (what, expected) = match &made {
        Some(made) => ("after the commit", made),
        None => ("after the abort", before),
    };
    assert_same(&format!("round {round} {what}"), expected, &tree(v));
}

/// A file in the volume's root that is there in any case.
fn a_file(before: &Tree) -> Option<String> {
    let regular = |e: &Entry| e.stat.kind() == libc::S_IFREG && e.stat.nlink == 1;
    let mut all = before.0.iter();
    let top = all.find(|(n, e)| !n.contains('/') && regular(e));
    top.map(|(name, _)| name.clone())
}

/// The group's thread has ended, and somebody else needs a file that the group has changed. Then all is as before, but for that one file.
fn interfere(v: &Volume, name: &str, file: &OwnedFd, before: &Tree, round: u64) {
    let old = &before.0[name];
    let mode = old.stat.perm() ^ 0o010;
    sys::fchmod(file, mode).expect("it gets through");
    let seen = sys::fstat(file).expect("fstat");
    assert_eq!(seen.perm(), mode, "round {round}");
    // Whoever was in its way does not wait until the kernel has forgotten the group: pages can be the group's for a moment, and a name that is
    // listed can be said not to be there, on which the walk panics.
    let now = || {
        let mut now = tree(v);
        if let Some(entry) = now.0.get_mut(name) {
            (entry.stat.mode, entry.stat.ctime) = (old.stat.mode, old.stat.ctime);
        }
        now
    };
    let end = Instant::now() + PATIENCE;
    let is_back = || std::thread::scope(|s| s.spawn(|| is_same(before, &now())).join());
    while Instant::now() < end && !is_back().unwrap_or(false) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_same(&format!("round {round} after a conflict"), before, &now());
}

/// Ends the other thread also when a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn legacy(v: &Volume, stop: &AtomicBool) {
    let mut n = 0u64;
    while !stop.load(SeqCst) {
        n += 1;
        let path = |k: u64| v.path(&format!("legacy/{}", k % 20));
        fs::write(path(n), vec![n as u8; 5000]).expect("write");
        let seen = fs::read(path(n)).expect("read");
        assert_eq!(
            seen,
            vec![n as u8; 5000],
            "somebody else's group has nothing to do with it"
        );
        fs::rename(path(n), path(n + 7)).expect("rename");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn place(v: &Volume, rng: &mut Rng) -> PathBuf {
    v.path(&format!("{}{}", rng.pick(&DIRS), rng.pick(&NAMES)))
}

fn dir(v: &Volume, rng: &mut Rng) -> PathBuf {
    let all = ["p", "q", "p/r", "q/r"];
    let name: &str = rng.pick::<&str>(&all);
    v.path(name)
}

/// A random change; it may fail, as names come and go.
fn step(v: &Volume, rng: &mut Rng) {
    let path = place(v, rng);
    let other = place(v, rng);
    match rng.below(18) {
        0..=2 => drop(fs::write(&path, rng.bytes(20_000))),
        3 => drop(fs::remove_file(&path)),
        4 => drop(sys::rename(&path, &other)),
        5 => drop(sys::renameat2(&path, &other, libc::RENAME_EXCHANGE)),
        6 => drop(sys::link(&path, &other)),
        7 => drop(sys::mkdir(dir(v, rng), 0o755)),
        8 => drop(sys::rmdir(dir(v, rng))),
        9 => drop(sys::rename(dir(v, rng), dir(v, rng))),
        10 => drop(sys::symlink("a", &path)),
        11 => drop(sys::chmod(&path, 0o600 + rng.below(0o100) as u32)),
        12 => drop(sys::setxattr(&path, "user.a", &rng.bytes(50), 0)),
        13 => drop(sys::truncate(&path, rng.below(30_000) as i64)),
        _ => data(&path, rng),
    }
}

fn data(path: &std::path::Path, rng: &mut Rng) {
    let Ok(file) = sys::open(path, libc::O_RDWR | libc::O_NOFOLLOW, 0) else {
        return;
    };
    let at = rng.below(30_000);
    match rng.below(4) {
        0 => drop(sys::pwrite(&file, &rng.bytes(3000), at)),
        1 => drop(sys::fallocate(
            &file,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            at as i64,
            9000,
        )),
        2 => {
            let append = sys::open(path, libc::O_WRONLY | libc::O_APPEND, 0);
            if let Ok(append) = append {
                sys::write(&append, &rng.bytes(700)).ok();
            }
        }
        _ => {
            // Who stores through a mapping is known only by the file: it is the group's from here on.
            sys::pwrite(&file, b"m", at).ok();
            let size = sys::fstat(&file).map_or(0, |s| s.size);
            if size >= 100
                && let Ok(map) = Map::new(&file, 0, size as usize, true)
            {
                map.store(rng.below(size - 50) as usize, &rng.bytes(50));
                if rng.chance(50) {
                    map.sync().ok();
                }
            }
        }
    }
}
