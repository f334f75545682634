//! Groups, barriers, full volumes, and threads that share a session.
use super::actors::code;
use super::{session, volume};
use ccfs_client::direct::{Dir, OpenOptions, Session};
use ccfs_testkit::Rng;
use ccfs_tests::harness::{Fs, Volume, number, sibling};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn put(dir: &Dir, name: &str, text: &[u8]) -> std::io::Result<()> {
    let how = OpenOptions {
        exclusive: false,
        ..OpenOptions::new_file()
    };
    let file = dir.open(name, how)?;
    file.truncate(0)?;
    file.write_at(text, 0)
}

fn text(v: &Volume, name: &str) -> Option<String> {
    std::fs::read_to_string(v.path(name)).ok()
}

fn get(dir: &Dir, name: &str) -> Option<String> {
    let mut out = [0; 100];
    let file = dir.open(name, OpenOptions::reading()).ok()?;
    let n = file.read_at(&mut out, 0).ok()?;
    Some(String::from_utf8_lossy(&out[..n]).into_owned())
}

#[test]
fn groups() {
    let Some(mut v) = volume("direct groups", 64, "") else {
        return;
    };
    let s = session(&v);
    let root = s.root().expect("root");
    let tree = root.make_dir("tree", 0o755).expect("make");
    put(&tree, "old", b"before").expect("put");
    put(&tree, "away", b"away").expect("put");
    for commit in [false, true] {
        let here = File::open(v.mnt()).expect("open");
        let (begun, others) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            // Another thread of the session, which was there before the group: it is in none.
            scope.spawn(|| {
                begun.wait();
                let other = root.make_dir(format!("other{commit}"), 0o755);
                let made = other.and_then(|dir| put(&dir, "free", b"free"));
                others.wait();
                made.expect("outside the group");
            });
            let member = scope.spawn(|| {
                let group =
                    ccfs_client::group_begin(&here, Some(Duration::from_secs(20))).expect("begin");
                put(&tree, "old", b"after").expect("overwrite");
                put(&tree, "new", b"new").expect("create");
                tree.rename("away", &tree, "gone").expect("rename");
                tree.make_dir("deep", 0o755).expect("make");
                assert_eq!(get(&tree, "old").as_deref(), Some("after"), "its own view");
                begun.wait();
                others.wait();
                match commit {
                    true => ccfs_client::group_commit(&here, group, false).expect("commit"),
                    false => ccfs_client::group_abort(&here, group).expect("abort"),
                }
            });
            member.join().expect("the member");
        });
        let (old, new, moved) = match commit {
            true => ("after", Some("new"), "tree/gone"),
            false => ("before", None, "tree/away"),
        };
        // The session first, then the others.
        assert_eq!(get(&tree, "old").as_deref(), Some(old), "commit {commit}");
        assert_eq!(get(&tree, "new").as_deref(), new, "commit {commit}");
        assert_eq!(tree.open_dir("deep").is_ok(), commit, "commit {commit}");
        assert_eq!(
            text(&v, "tree/old").as_deref(),
            Some(old),
            "commit {commit}"
        );
        assert_eq!(text(&v, "tree/new").as_deref(), new, "commit {commit}");
        assert_eq!(text(&v, moved).as_deref(), Some("away"), "commit {commit}");
        assert_eq!(
            text(&v, &format!("other{commit}/free")).as_deref(),
            Some("free")
        );
    }
    // The commit was durable.
    drop((tree, root, s));
    v.kill9();
    v.mount();
    assert_eq!(text(&v, "tree/old").as_deref(), Some("after"));
    assert_eq!(text(&v, "tree/gone").as_deref(), Some("away"));
    v.finish();
}

/// What comes after a barrier, in another stream too, is not there without what came before it.
#[test]
fn barriers() {
    let Some(mut v) = volume("direct barriers", 64, ",commit=600") else {
        return;
    };
    let s = session(&v);
    let root = s.root().expect("root");
    let first = root.open("first", OpenOptions::new_file()).expect("open");
    first.write_at(b"first", 0).expect("write");
    first.barrier().expect("barrier");
    let second = root.open("second", OpenOptions::new_file()).expect("open");
    second.write_at(b"second", 0).expect("write");
    second.sync().expect("sync");
    let third = root.open("third", OpenOptions::new_file()).expect("open");
    third.write_at(b"third", 0).expect("write");
    third.barrier().expect("barrier");
    put(&root, "fourth", b"fourth").expect("put");
    v.kill9();
    drop((first, second, third, root, s));
    v.mount();
    assert_eq!(text(&v, "first").as_deref(), Some("first"));
    assert_eq!(text(&v, "second").as_deref(), Some("second"));
    if text(&v, "fourth").is_some() {
        assert_eq!(text(&v, "third").as_deref(), Some("third"));
    }
    v.finish();
}

#[test]
fn full_of_data() {
    let Some(v) = volume("direct full_of_data", 24, "") else {
        return;
    };
    fill(v, 60_000);
}

#[test]
fn full_of_inodes() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("direct full_of_inodes") {
        return;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, "direct").options("direct=on");
    v.mke2fs(48, &["-t", "ext4", "-b", "4096", "-N", "4096"]);
    v.mount();
    fill(v, 10);
}

/// Fills the volume twice, with removals between; all that was accepted is there.
fn fill(mut v: Volume, len: usize) {
    let s = session(&v);
    let root = s.root().expect("root");
    let dir = root.make_dir("dir", 0o755).expect("make");
    let content = |i: usize| vec![i as u8; len];
    let mut there = BTreeMap::new();
    for turn in 0..2 {
        let mut refused = 0;
        for i in turn * 100_000.. {
            let name = format!("f{i}");
            let file = match dir.open(&name, OpenOptions::new_file()) {
                Ok(file) => file,
                Err(e) => {
                    assert_eq!(code(e), libc::ENOSPC, "create {name}");
                    refused += 1;
                    if refused > 20 { break } else { continue }
                }
            };
            match file.write_at(&content(i), 0) {
                Ok(()) => drop(there.insert(name, i)),
                Err(e) => {
                    assert_eq!(code(e), libc::ENOSPC, "write {name}");
                    // The file keeps what fitted, perhaps nothing.
                    dir.remove_file(&name).expect("remove on a full volume");
                    refused += 1;
                }
            }
            if refused > 20 {
                break;
            }
        }
        assert!(there.len() > 100, "only {} files", there.len());
        if turn == 0 {
            let half: Vec<String> = there.keys().step_by(2).cloned().collect();
            for name in half {
                dir.remove_file(&name).expect("remove");
                there.remove(&name);
            }
        }
        println!("full of files of {len} bytes: {} files", there.len());
    }
    let check = |v: &Volume| {
        assert_eq!(
            std::fs::read_dir(v.path("dir")).expect("list").count(),
            there.len()
        );
        for (name, i) in &there {
            let got = std::fs::read(v.path("dir").join(name)).expect("read");
            assert!(got == content(*i), "{name}");
        }
    };
    check(&v);
    drop((dir, root, s));
    v.remount();
    check(&v);
    v.finish();
}

/// Threads of one session make, rename and remove in the same directories, and somebody looks.
#[test]
fn threads_and_a_looker() {
    let Some(mut v) = volume("direct threads", 128, "") else {
        return;
    };
    let seed = number("CCFS_TEST_SEED", 5);
    let s = session(&v);
    let root = s.root().expect("root");
    let dirs = [0, 1, 2].map(|i| root.make_dir(format!("d{i}"), 0o755).expect("make"));
    let end = AtomicBool::new(false);
    let names: BTreeMap<String, u64> = std::thread::scope(|scope| {
        let worker = |who: u64| {
            let dirs = &dirs;
            move || {
                let mut rng = Rng::part(seed, who);
                let mut mine: Vec<(usize, String, u64)> = Vec::new();
                for i in 0..4000u64 {
                    let d = rng.index(3);
                    if mine.is_empty() || rng.chance(40) {
                        let name = format!("t{who}-{i}");
                        let file = dirs[d].open(&name, OpenOptions::new_file());
                        let file = file.unwrap_or_else(|e| panic!("seed {seed}: make {name}: {e}"));
                        let len = rng.below(3000);
                        file.write_at(&vec![7; len as usize], 0).expect("write");
                        mine.push((d, name, len));
                    } else if rng.chance(50) {
                        let at = rng.index(mine.len());
                        let (from, name, _) = mine[at].clone();
                        let new = format!("t{who}-{i}r");
                        let done = dirs[from].rename(&name, &dirs[d], &new);
                        done.unwrap_or_else(|e| panic!("seed {seed}: rename {name} {new}: {e}"));
                        (mine[at].0, mine[at].1) = (d, new);
                    } else {
                        let (from, name, _) = mine.swap_remove(rng.index(mine.len()));
                        let done = dirs[from].remove_file(&name);
                        done.unwrap_or_else(|e| panic!("seed {seed}: remove {name}: {e}"));
                    }
                }
                mine
            }
        };
        let workers: Vec<_> = (0..4).map(|who| scope.spawn(worker(who))).collect();
        scope.spawn(|| {
            while !end.load(Ordering::SeqCst) {
                // Names vanish under it; it must only not hang, and end.
                let mut ls = std::process::Command::new("ls");
                let out = ls.arg("-lR").arg(v.mnt()).output().expect("run ls");
                assert!(out.status.code().is_some_and(|c| c <= 2), "ls: {out:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let all: Vec<_> = workers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .collect();
        end.store(true, Ordering::SeqCst);
        let all = all.into_iter().flat_map(|w| w.expect("a worker"));
        all.map(|(d, name, len)| (format!("d{d}/{name}"), len))
            .collect()
    });
    let seen = |v: &Volume| {
        let mut all = BTreeMap::new();
        for d in ["d0", "d1", "d2"] {
            for entry in std::fs::read_dir(v.path(d)).expect("list").flatten() {
                let name = format!("{d}/{}", entry.file_name().to_string_lossy());
                all.insert(name, entry.metadata().expect("stat").len());
            }
        }
        all
    };
    assert!(
        seen(&v) == names,
        "seed {seed}: the mount shows other names"
    );
    let listed: usize = dirs.iter().map(|d| d.read_dir().expect("list").len()).sum();
    assert_eq!(
        listed,
        names.len(),
        "seed {seed}: the session shows other names"
    );
    drop((dirs, root, s));
    v.remount();
    assert!(seen(&v) == names, "seed {seed}: after a remount");
    v.finish();
}

/// Sequence that failed with ERANGE: the first file of a session on a volume of few inodes.
#[test]
fn first_file_among_few_inodes() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("direct first_file") {
        return;
    }
    for (mib, inodes) in [
        (48, "16384"),
        (48, "4096"),
        (48, "1024"),
        (48, "512"),
        (300, "512"),
    ] {
        let mut v = Volume::unformatted(Fs::Ccfs, "direct").options("direct=on");
        v.mke2fs(mib, &["-t", "ext4", "-b", "4096", "-N", inodes]);
        v.mount();
        let s = session(&v);
        let root = s.root().expect("root");
        let through = std::fs::write(v.path("mounted"), b"1").map_err(code);
        let dir = root.make_dir("dir", 0o755).map_err(code);
        let made = dir.and_then(|dir| put(&dir, "f0", b"1").map_err(code));
        println!("{mib} MiB, {inodes} inodes: mounted {through:?}, direct {made:?}");
        assert_eq!(
            (through, made),
            (Ok(()), Ok(())),
            "{mib} MiB, {inodes} inodes"
        );
        drop((root, s));
        v.finish();
    }
}

/// Linux's ftruncate(2) says EINVAL of a descriptor that is not open for writing; so do direct calls, held or not.
#[test]
fn truncate_of_what_is_open_for_reading() {
    let Some(v) = volume("direct truncate", 64, "") else {
        return;
    };
    let root = session(&v).root().expect("root");
    put(&root, "file", b"text").expect("put");
    let file = root.open("file", OpenOptions::reading()).expect("open");
    let held = file.truncate(1).map_err(code);
    assert!(v.path("file").exists());
    let mounted = file.truncate(1).map_err(code);
    let other = std::fs::File::open(v.path("file")).expect("open");
    let kernel = other.set_len(1).map_err(code);
    assert_eq!(
        (held, mounted),
        (kernel, kernel),
        "direct calls and the kernel's"
    );
    drop((file, other, root));
    v.finish();
}

/// Calls in a directory that was removed while it was open: ENOENT, as the kernel's.
#[test]
fn calls_in_removed_directories() {
    let Some(v) = volume("direct removed directories", 64, "") else {
        return;
    };
    let root = session(&v).root().expect("root");
    put(&root, "file", b"text").expect("put");
    let mut wrong = Vec::new();
    for by_mount in [false, true] {
        let how = |name: &str| {
            let dir = root.make_dir(name, 0o755).expect("make");
            match by_mount {
                true => std::fs::remove_dir(v.path(name)).expect("rmdir"),
                false => root.remove_dir(name).expect("remove"),
            }
            dir
        };
        let (a, b) = (how("a"), how("b"));
        let calls = [
            ("rename within", a.rename("x", &a, "y").map_err(code)),
            (
                "rename from one to another",
                a.rename("x", &b, "y").map_err(code),
            ),
            ("rename away", a.rename("x", &root, "y").map_err(code)),
            ("rename into", root.rename("file", &a, "y").map_err(code)),
            ("make_dir", a.make_dir("x", 0o755).map(drop).map_err(code)),
            (
                "create",
                a.open("x", OpenOptions::new_file()).map(drop).map_err(code),
            ),
            ("remove_file", a.remove_file("x").map_err(code)),
            ("remove_dir", a.remove_dir("x").map_err(code)),
            ("stat", a.stat("x").map(drop).map_err(code)),
            ("read_dir", a.read_dir().map(drop).map_err(code)),
        ];
        for (what, got) in calls {
            if got != Err(libc::ENOENT) {
                wrong.push((by_mount, what, got));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "(removed by the mount, call, result): {wrong:?}"
    );
    drop(root);
    v.finish();
}

/// A session made a directory; others open it and make names in it. The session sees them.
#[test]
fn names_that_others_made() {
    let Some(v) = volume("direct names of others", 64, "") else {
        return;
    };
    let root = session(&v).root().expect("root");
    let mut wrong = Vec::new();
    for way in 0..32 {
        let name = format!("dir{way}");
        let dir = root.make_dir(&name, 0o755).expect("make");
        if way & 1 != 0 {
            assert!(dir.stat("x").is_err());
        }
        if way & 2 != 0 {
            put(&dir, "mine", b"1").expect("put");
        }
        let open = (way & 4 != 0).then(|| File::open(v.path(&name)).expect("open"));
        if way & 8 != 0 {
            assert!(dir.stat("x").is_err());
        }
        let other = (way & 16 != 0).then(|| session(&v));
        match &other {
            Some(other) => {
                let theirs = other.root().and_then(|r| r.open_dir(&name)).expect("open");
                theirs
                    .open("x", OpenOptions::new_file())
                    .map(drop)
                    .expect("make");
            }
            None => std::fs::write(v.path(&name).join("x"), b"x").expect("make"),
        }
        let seen = dir.stat("x").map(drop).map_err(code);
        if seen.is_err() {
            wrong.push((way, seen));
        }
        drop(open);
    }
    assert!(wrong.is_empty(), "(way, stat): {wrong:?}");
    drop(root);
    v.finish();
}

/// What sessions are promised and do not use is there for others before they are told that there is no space, and the sessions go on.
#[test]
fn promises_are_given_back() {
    let Some(v) = volume("direct promises_are_given_back", 24, "") else {
        return;
    };
    let promised = || v.status()["direct"]["promised_blocks"].as_u64();
    let s = session(&v);
    let root = s.root().expect("root");
    let dir = root.make_dir("dir", 0o755).expect("make");
    let file = dir.open("file", OpenOptions::new_file()).expect("open");
    file.append(b"before").expect("append");
    s.drain().expect("drain");
    assert!(promised() > Some(100), "{:?}", promised());
    let mut filled = 0;
    let full = loop {
        match std::fs::write(v.path(&format!("f{filled}")), [7; 64 << 10]) {
            Ok(()) => filled += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(promised(), Some(0));
    // Nothing is left that somebody keeps for himself.
    let mut last = std::fs::File::create(v.path("last")).expect("a name");
    let _ = std::io::Write::write_all(&mut last, &[7; 4 << 20]);
    let left = ccfs_tests::sys::statvfs(v.mnt()).expect("statvfs").bavail;
    assert!(left < 64, "{left} blocks are left");
    // The session is told as others are, and goes on.
    let refused = file.append(&[1; 128 << 10]).map_err(code);
    assert_eq!(refused, Err(libc::ENOSPC));
    for n in 0..10 {
        std::fs::remove_file(v.path(&format!("f{n}"))).expect("remove");
    }
    let after = b" and after";
    file.append(after).expect("append");
    assert!(file.is_direct());
    let now = std::fs::read(v.path("dir/file")).expect("read");
    assert!(
        now.starts_with(b"before") && now.ends_with(after),
        "{} bytes",
        now.len()
    );
    drop((file, dir, root, s, last));
    v.finish();
}

/// Refusals with ENOSPC that are for want of something else than blocks and inodes take nothing back.
#[test]
fn what_lacks_no_space_takes_no_promise_back() {
    let Some(v) = volume("direct what_lacks_no_space_takes_no_promise_back", 24, "") else {
        return;
    };
    let promised = || v.status()["direct"]["promised_blocks"].as_u64();
    let s = session(&v);
    let dir = s
        .root()
        .expect("root")
        .make_dir("dir", 0o755)
        .expect("make");
    let before = promised();
    assert!(before > Some(100), "{before:?}");
    std::fs::write(v.path("file"), b"").expect("write");
    let large = ccfs_tests::sys::setxattr(v.path("file"), "user.large", &[7; 60_000], 0);
    assert_eq!(large, Err(libc::ENOSPC));
    let file = File::options().write(true).open(v.path("file"));
    let larger = ccfs_tests::sys::fallocate(&file.expect("open").into(), 0, 0, 1 << 40);
    assert_eq!(larger, Err(libc::ENOSPC));
    let top = File::open(v.mnt()).expect("open");
    let mut more = Vec::new();
    let refused = loop {
        let one = Session::begin(&top).expect("begin");
        if let Some(why) = one.why_not() {
            break why.raw_os_error();
        }
        more.push(one);
    };
    assert_eq!((refused, more.len()), (Some(libc::ENOSPC), 63));
    assert!(promised() >= before, "{:?}", promised());
    drop((more, dir, s, top));
    v.finish();
}

/// Who works has the right to post in a stream, not who has called once.
#[test]
fn an_idle_session_keeps_nobody_from_posting() {
    let Some(v) = volume("direct an_idle_session_keeps_nobody_from_posting", 24, "") else {
        return;
    };
    let posted = || v.status()["direct"]["posted"].as_u64().expect("a number");
    let s = session(&v);
    let root = s.root().expect("root");
    let mut files = 0;
    let mut work = || {
        let before = posted();
        files += 1;
        let file = root.open(format!("f{files}"), OpenOptions::new_file());
        let file = file.expect("open");
        for _ in 0..10 {
            file.append(b"more").expect("append");
        }
        s.drain().expect("drain");
        posted() - before
    };
    assert!(work() >= 10);
    let idle = session(&v);
    std::thread::scope(|scope| {
        scope
            .spawn(|| idle.drain().expect("drain"))
            .join()
            .expect("join")
    });
    let begun = std::time::Instant::now();
    while work() < 10 {
        assert!(begun.elapsed() < Duration::from_secs(120), "it only asks");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop((root, s, idle));
    v.finish();
}

/// A program that becomes another one (exec) has no session any more.
#[test]
fn a_session_ends_with_its_program() {
    const PROGRAM: &str = "import os, sys\n\
        from ccfs import direct\n\
        s = direct.Session(sys.argv[1])\n\
        f = s.root().make_dir('d').open('f', os.O_RDWR | os.O_CREAT | os.O_EXCL)\n\
        f.append(b'posted')\n\
        assert f.is_direct\n\
        os.execvp('sleep', ['sleep', '600'])\n";
    let Some(v) = volume("direct a_session_ends_with_its_program", 24, "") else {
        return;
    };
    let python = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let mut program = std::process::Command::new("/usr/bin/python3");
    program
        .env("PYTHONPATH", python)
        .env("CCFS_LIBRARY", sibling("libccfs.so"));
    let mut child = program
        .args(["-c", PROGRAM])
        .arg(v.mnt())
        .spawn()
        .expect("python3");
    v.adopt(child.id());
    let state = || {
        let direct = &v.status()["direct"];
        (
            direct["begun"].as_u64(),
            direct["sessions"].as_u64(),
            direct["held"].as_u64(),
        )
    };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while state() != (Some(1), Some(0), Some(0)) {
        assert!(std::time::Instant::now() < end, "{:?}", state());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(
        child.try_wait().expect("wait"),
        None,
        "it goes on as another program"
    );
    assert_eq!(std::fs::read(v.path("d/f")).expect("read"), b"posted");
    child.kill().expect("kill");
    child.wait().expect("wait");
    v.finish();
}
