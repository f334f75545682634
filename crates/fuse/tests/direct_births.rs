//! Numbers of inodes that a session is granted, and the times that it gives to what it posts: of programs that keep the rules, and of those that do not.
mod common;
use ccfs_client::direct::layout::{
    ASKED, Entry, GRANTS_MAX, NOT_ALLOWED, RESULT, SetAttr, WOULD_WAIT, named, named_by, op, set,
    word,
};
use ccfs_client::direct::{Attr, OpenOptions};
use ccfs_fuse::FsType;
use common::direct::{PATIENCE, asked, count, new_file, session};
use common::raw::Raw;
use common::{TestMount, can_mount};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const NS: u64 = 1_000_000_000;

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos() as u64
}

fn ended(raw: &Raw) -> i32 {
    raw.memory.u32(word::ENDED).load(SeqCst) as i32
}

fn stops(raw: &Raw) -> u32 {
    raw.memory.u32(word::STOPS).load(SeqCst)
}

/// The numbers that it has by now.
fn granted(raw: &Raw) -> Vec<u32> {
    let all = (0..GRANTS_MAX).map(|slot| raw.memory.granted(slot).load(SeqCst));
    all.filter(|ino| *ino != 0).collect()
}

/// Takes one of them, as the library does.
fn take(raw: &Raw) -> u32 {
    let ino = granted(raw)[0];
    for slot in 0..GRANTS_MAX {
        let taken = raw.memory.granted(slot);
        let _ = taken.compare_exchange(ino, 0, SeqCst, SeqCst);
    }
    ino
}

/// Posts a file `f` and the handle's number, and waits until it is carried out, or the session is over: its result.
fn post(raw: &mut Raw, handle: u32, a: u64, time: u64) -> i32 {
    let entry = Entry {
        op: op::CREATE,
        h: 1,
        h2: handle,
        a,
        b: 0o640,
        time,
        ..Entry::default()
    };
    let at = raw.put(entry, &format!("f{handle}"), 128);
    raw.publish();
    let begun = Instant::now();
    while raw.memory.u64(word::HEAD).load(SeqCst) <= at && ended(raw) == 0 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    raw.memory.entry_u32(at, RESULT).load(SeqCst) as i32
}

/// The same, with a number, as if it was taken now.
fn post_named(raw: &mut Raw, handle: u32, ino: u32, time: u64) -> i32 {
    let a = named(ino, stops(raw));
    post(raw, handle, a, time)
}

/// One that has made a file, and is granted numbers by that.
fn with_grants(m: &TestMount, name: &str) -> Raw {
    let mut raw = Raw::begin_with(m, name);
    assert_eq!(granted(&raw), [0; 0], "nobody wants any");
    assert_eq!(post(&mut raw, 2, 0, 0), 0);
    wait_for(|| !granted(&raw).is_empty());
    raw
}

fn wait_for(there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

fn free_inodes(m: &TestMount) -> u64 {
    rustix::fs::statvfs(m.mnt()).unwrap().f_ffree
}

#[test]
fn a_file_has_the_number_and_the_times_that_it_was_posted_with() {
    if !can_mount("a_file_has_the_number_and_the_times_that_it_was_posted_with") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let free = free_inodes(&m);
    let mut raw = with_grants(&m, "made");
    let (ino, time) = (take(&raw), now());
    assert_eq!(post_named(&mut raw, 3, ino, time), 0);
    let stat = fs::metadata(m.path("made/f3")).unwrap();
    let at = |s: i64, ns: i64| s as u64 * NS + ns as u64;
    assert_eq!(stat.ino(), u64::from(ino));
    let times = [
        at(stat.atime(), stat.atime_nsec()),
        at(stat.mtime(), stat.mtime_nsec()),
        at(stat.ctime(), stat.ctime_nsec()),
    ];
    assert_eq!(times, [time; 3]);
    drop(raw);
    // Nothing is kept but what was made.
    wait_for(|| free_inodes(&m) == free - 3);
    m.unmount();
}

#[test]
fn numbers_are_used_once_and_come_back() {
    if !can_mount("numbers_are_used_once_and_come_back") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let free = free_inodes(&m);
    let mut raw = with_grants(&m, "made");
    let mut used = Vec::new();
    for handle in 3..400 {
        let ino = take(&raw);
        assert!(!used.contains(&ino), "{ino} again");
        used.push(ino);
        let a = named(ino, stops(&raw));
        assert_eq!(named_by(a), (ino, stops(&raw)));
        assert_eq!(post(&mut raw, handle, a, now()), 0);
        wait_for(|| !granted(&raw).is_empty());
    }
    for (n, ino) in used.iter().enumerate() {
        let path = m.path(&format!("made/f{}", n + 3));
        assert_eq!(fs::metadata(path).unwrap().ino(), u64::from(*ino));
    }
    drop(raw);
    wait_for(|| free_inodes(&m) == free - 2 - used.len() as u64);
    m.unmount();
}

#[test]
fn numbers_that_were_not_granted() {
    if !can_mount("numbers_that_were_not_granted") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let free = free_inodes(&m);
    let other = with_grants(&m, "other");
    let of_other = granted(&other)[0];
    drop(other);
    let mut dirs = 0;
    let mut attack = |name: &str, use_first: bool, flags: u16, pick: &dyn Fn(&[u32]) -> u32| {
        dirs += 1;
        let dir = format!("{name}{dirs}");
        let mut raw = with_grants(&m, &dir);
        let mine = granted(&raw);
        let mut ino = pick(&mine);
        if use_first {
            ino = mine[0];
            assert_eq!(post_named(&mut raw, 3, ino, now()), 0);
        }
        if flags == 0 {
            post_named(&mut raw, 4, ino, now());
            wait_for(|| ended(&raw) != 0);
        } else {
            let at = raw.put(
                Entry {
                    op: op::CREATE,
                    flags,
                    h: 1,
                    h2: 4,
                    a: named(ino, stops(&raw)),
                    ..Entry::default()
                },
                "f4",
                512,
            );
            raw.publish();
            wait_for(|| ended(&raw) != 0);
            assert_ne!(raw.memory.entry_u32(at, RESULT).load(SeqCst), 1);
        }
        assert_eq!(ended(&raw), libc::EINVAL, "{name}");
        let there = |n: u32| Path::exists(&m.path(&format!("{dir}/f{n}")));
        assert!(there(2) && !there(4), "{name}");
        assert_eq!(there(3), use_first, "{name}");
    };
    attack("none", false, 0, &|mine| mine.iter().max().unwrap() + 1);
    attack("reserved", false, 0, &|_| 2);
    attack("far", false, 0, &|_| u32::MAX);
    attack("other", false, 0, &|mine| match mine.contains(&of_other) {
        true => 7,
        false => of_other,
    });
    attack("twice", true, 0, &|_| 0);
    attack("asked", false, ASKED, &|mine| mine[0]);
    // Whoever breaks the rules has lost nothing that others count on.
    assert_eq!(count(&m, "failed"), 0);
    wait_for(|| free_inodes(&m) == free - 2 - 6 * 2 - 1);
    m.unmount();
}

#[test]
fn numbers_of_another_session() {
    if !can_mount("numbers_of_another_session") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    // Who has posted keeps what it was granted while another one posts.
    let first = with_grants(&m, "first");
    let theirs = granted(&first);
    let mut second = Raw::begin_with(&m, "second");
    let a = named(theirs[0], stops(&second));
    post(&mut second, 2, a, now());
    wait_for(|| ended(&second) != 0);
    assert_eq!(ended(&second), libc::EINVAL);
    assert!(!m.path("second/f2").exists());
    assert_eq!(granted(&first), theirs);
    drop((first, second));
    m.unmount();
}

#[test]
fn what_was_granted_is_taken_back_where_others_find_none() {
    if !can_mount("what_was_granted_is_taken_back_where_others_find_none") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut raw = with_grants(&m, "made");
    let (mine, before) = (granted(&raw), stops(&raw));
    fs::create_dir(m.path("many")).unwrap();
    let mut files = 0;
    let all = loop {
        match fs::File::create(m.path(&format!("many/{files}"))) {
            Ok(_) => files += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(all.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(free_inodes(&m), 0, "all of them are used");
    assert_eq!(granted(&raw), [0; 0]);
    assert_ne!(stops(&raw), before);
    // Its program may not have seen that yet: it asks again. What another one has by now stays his.
    let result = post(&mut raw, 3, named(mine[0], before), now());
    assert_eq!((result, ended(&raw)), (NOT_ALLOWED, 0));
    for n in 0..2000 {
        fs::remove_file(m.path(&format!("many/{n}"))).unwrap();
    }
    rustix::fs::syncfs(fs::File::open(m.mnt()).unwrap()).unwrap();
    // What was removed may not be free yet: its program would ask by a call, which waits.
    let begun = Instant::now();
    let asked = loop {
        match raw.ask(op::CREATE, (1, 3), (0, 0o600), b"f3") {
            WOULD_WAIT if begun.elapsed() < PATIENCE => std::thread::yield_now(),
            result => break result,
        }
    };
    assert_eq!(asked, 0);
    // And who has seen it names none of them.
    assert_eq!(ended(&raw), 0);
    let result = post_named(&mut raw, 4, mine[0], now());
    assert!(
        result == NOT_ALLOWED || ended(&raw) == libc::EINVAL,
        "{result}"
    );
    assert!(m.path("made/f3").exists() && !m.path("made/f4").exists());
    drop(raw);
    m.unmount();
}

#[test]
fn times_that_cannot_be() {
    if !can_mount("times_that_cannot_be") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let said = |begun: u64| [1, begun - 3600 * NS, begun + 3600 * NS, u64::MAX, begun];
    for n in 0..5 {
        let begun = now();
        let mut raw = with_grants(&m, &format!("made{n}"));
        let ino = granted(&raw)[0];
        let time = said(now())[n];
        assert_eq!(post_named(&mut raw, 3, ino, time), 0);
        let ended = now();
        for name in ["f3", ""] {
            let stat = fs::metadata(m.path(&format!("made{n}/{name}"))).unwrap();
            for (s, ns) in [
                (stat.ctime(), stat.ctime_nsec()),
                (stat.mtime(), stat.mtime_nsec()),
            ] {
                let at = s as u64 * NS + ns as u64;
                assert!(
                    (begun..=ended).contains(&at),
                    "{n}: {at}, {begun} to {ended}"
                );
                assert_eq!(at == time, n == 4, "{n}");
            }
        }
    }
    m.unmount();
}

/// What the library says of a new file, and of its directory later: after a crash too.
#[test]
fn what_the_library_says_of_new_files() {
    if !can_mount("what_the_library_says_of_new_files") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let begun = session(&m);
    let root = begun.root().unwrap();
    let dir = root.make_dir("made", 0o777).unwrap();
    let mut known = Vec::new();
    for n in 0..3000 {
        let name = format!("f{n}");
        let opened = dir
            .open_with(&name, OpenOptions::new_file(), &mut [])
            .unwrap();
        assert!(opened.made);
        known.extend(opened.attr.map(|attr| (name, attr)));
    }
    assert!(known.len() > 1000, "{}", known.len());
    let same = |attr: &Attr, path: &Path| {
        let stat = fs::symlink_metadata(path).unwrap();
        let now = (
            stat.ino(),
            stat.mode(),
            stat.nlink(),
            stat.uid(),
            stat.gid(),
        );
        let was = (attr.ino, attr.mode, attr.nlink.into(), attr.uid, attr.gid);
        assert_eq!(now, was, "{path:?}");
        assert_eq!((stat.size(), stat.blocks()), (attr.size, attr.blocks));
        let times = |s: i64, ns: i64| (s, ns as u32);
        assert_eq!(
            times(stat.atime(), stat.atime_nsec()),
            (attr.atime, attr.atime_ns)
        );
        assert_eq!(
            times(stat.mtime(), stat.mtime_nsec()),
            (attr.mtime, attr.mtime_ns)
        );
        assert_eq!(
            times(stat.ctime(), stat.ctime_nsec()),
            (attr.ctime, attr.ctime_ns)
        );
    };
    // As the daemon says it.
    for (name, attr) in known.iter().step_by(100) {
        let now = dir.stat(name).unwrap();
        let flags = attr.flags;
        assert_eq!(
            Attr {
                generation: 0,
                flags,
                ..now
            },
            *attr
        );
    }
    dir.sync().unwrap();
    let free = free_inodes(&m);
    common::shut_down(&fs::File::open(m.mnt()).unwrap()).unwrap();
    drop((dir, root, begun));
    m.crash();
    m.mount();
    for (name, attr) in &known {
        same(attr, &m.path(&format!("made/{name}")));
    }
    assert!(free_inodes(&m) >= free, "what was granted is free");
    // And the same numbers can be had again.
    let again = session(&m);
    let dir = again.root().unwrap().make_dir("again", 0o777).unwrap();
    let files: Vec<_> = (0..3000)
        .map(|n| new_file(&dir, &format!("f{n}")))
        .collect();
    drop((files, dir, again));
    m.unmount();
}

/// What is said of a directory that was just posted is what everybody sees later: with and without bits that its maker has no say in.
#[test]
fn directories_are_what_was_said_of_them() {
    if !can_mount("directories_are_what_was_said_of_them") {
        return;
    }
    const DIRS: usize = 600;
    let mut m = TestMount::new(FsType::Fuseblk);
    let free = free_inodes(&m);
    let session = session(&m);
    let top = session.root().unwrap().make_dir("top", 0o755).unwrap();
    let gives = top.make_dir("gives", 0o2775).unwrap();
    let of_group = SetAttr {
        mask: set::GID | set::MODE,
        gid: 77,
        mode: 0o2775,
        ..Default::default()
    };
    gives.set_attr(&of_group).unwrap();
    let mut said: Vec<(String, Attr)> = Vec::new();
    let mut at = (String::from("top"), top.clone());
    for n in 0..DIRS {
        let bits = [0o755, 0o700, 0o1777, 0o751][n % 4];
        let name = format!("d{n}");
        let (dir, attr) = at.1.make_dir_with_attr(&name, bits).unwrap();
        let path = format!("{}/{name}", at.0);
        said.push((path.clone(), attr));
        if n % 3 == 0 {
            drop(new_file(&dir, "file"));
        }
        // Every tenth begins anew, from where it can be reached.
        at = match n % 10 {
            9 => (String::from("top"), top.clone()),
            _ => (path, dir),
        };
        if n % 7 == 0 {
            let name = format!("g{n}");
            let (_, attr) = gives.make_dir_with_attr(&name, 0o750).unwrap();
            said.push((format!("top/gives/{name}"), attr));
        }
    }
    let posted = said.len();
    let counted = asked(&m);
    drop((at, gives, top, session));
    for (path, attr) in &said {
        let stat = fs::symlink_metadata(m.path(path)).unwrap();
        let is = (
            stat.ino(),
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.size(),
            stat.blocks(),
        );
        let was = (
            attr.ino,
            attr.mode,
            attr.uid,
            attr.gid,
            attr.size,
            attr.blocks,
        );
        assert_eq!(is, was, "{path}");
        let subdirs = said
            .iter()
            .filter(|(p, _)| p.rsplit_once('/').unwrap().0 == path);
        assert_eq!(
            stat.nlink() as usize,
            attr.nlink as usize + subdirs.count(),
            "{path}"
        );
        let is_gives = path.starts_with("top/gives/");
        assert_eq!(stat.gid(), if is_gives { 77 } else { 0 }, "{path}");
        assert_eq!(stat.mode() & 0o2000 != 0, is_gives, "{path}");
    }
    assert!(
        counted < posted as u64 / 2,
        "{counted} of {posted} were asked for"
    );
    let files = DIRS.div_ceil(3) as u64;
    wait_for(|| free_inodes(&m) == free - posted as u64 - files - 2);
    m.unmount();
}
