//! Directories that are opened and listed by one question.
mod common;
use ccfs_client::direct::layout::{SMALL, SetAttr, set};
use ccfs_client::direct::{Dir, Listed, OpenOptions, Tell};
use ccfs_fuse::FsType;
use common::direct::{
    PATIENCE, asked, errno, gives_up, new_file, once_unused, session, small_and_others,
};
use common::{TestMount, can_mount};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Times of long ago: whatever reads it then shows in the first.
const OLD: SetAttr = SetAttr {
    mask: set::ATIME | set::MTIME,
    mode: 0,
    uid: 0,
    gid: 0,
    atime: 1000,
    mtime: 2000,
    atime_ns: 0,
    mtime_ns: 0,
};

/// Names, in order.
fn names(all: &[Listed]) -> Vec<String> {
    let name = |one: &Listed| one.entry.name.to_str().unwrap().to_string();
    let mut names: Vec<_> = all.iter().map(name).collect();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

fn read(dir: &Dir) -> Vec<String> {
    let all = dir.read_dir().unwrap();
    let name = |one: &ccfs_client::direct::DirEntry| one.name.to_str().unwrap().to_string();
    let mut names: Vec<_> = all.iter().map(name).collect();
    names.sort();
    names
}

#[test]
fn it_is_what_a_listing_says() {
    if !can_mount("it_is_what_a_listing_says") || !gives_up("it_is_what_a_listing_says") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let before = session(&m);
    let top = before.root().unwrap().make_dir("top", 0o755).unwrap();
    for (name, files) in [("empty", 0), ("small", 7), ("large", 700)] {
        let dir = top.make_dir(name, 0o755).unwrap();
        for n in 0..files {
            new_file(&dir, &format!("f{n}"))
                .write_at(&[7; 100], 0)
                .unwrap();
        }
        if files > 0 {
            dir.make_dir("d", 0o700).unwrap();
            dir.symlink("nowhere", "l").unwrap();
        }
        dir.set_attr(&OLD).unwrap();
    }
    drop(top);
    drop(before);
    let after = session(&m);
    let top = once_unused(|| after.root().unwrap().take_dir("top"));
    for name in ["empty", "small", "large"] {
        let (dir, attr, listed) = top.open_dir_listed(name, Tell::Names).unwrap();
        assert!(dir.is_direct());
        assert_eq!(attr.ino, dir.attr().unwrap().ino);
        // It is read later, and not by being found.
        assert_eq!(dir.attr().unwrap().atime, OLD.atime);
        let expected = read(&dir);
        assert!(dir.attr().unwrap().atime > OLD.mtime);
        match listed {
            Some(listed) => {
                assert_eq!(names(&listed), expected, "{name}");
                let files = listed.iter().filter(|one| one.entry.kind == libc::DT_REG);
                for file in files {
                    let attr = file.attr.unwrap();
                    assert_eq!((attr.ino, attr.size), (file.entry.ino, 100));
                }
                // All names are known.
                assert!(dir.lacks(b"new") && (name == "empty") == dir.lacks(b"f3"));
            }
            None => assert_eq!(name, "large", "there was room for it"),
        }
        // It is open already: it may be changing.
        let (again, _, listed) = top.open_dir_listed(name, Tell::Names).unwrap();
        assert!(listed.is_none());
        assert_eq!(read(&again), expected);
        let new = OpenOptions::new_file();
        dir.open("new", new).unwrap();
        assert!(!dir.lacks(b"new"));
    }
    for (name, expected) in [("none", libc::ENOENT), ("small/..", libc::EINVAL)] {
        assert_eq!(
            errno(top.open_dir_listed(name, Tell::Names)),
            expected,
            "{name}"
        );
    }
    let file = new_file(&top, "file");
    file.append(b"some").unwrap();
    file.set_attr(&OLD).unwrap();
    drop(file);
    assert_eq!(
        errno(top.open_dir_listed("file", Tell::Names)),
        libc::ENOTDIR
    );
    assert_eq!(top.stat("file").unwrap().atime, OLD.atime);
    // What others look up is theirs as well.
    let seen = fs::read_dir(m.path("top/small")).unwrap().count();
    assert_eq!(seen, 7 + 3);
    let (dir, _, listed) = top.open_dir_listed("small", Tell::Names).unwrap();
    assert!(listed.is_none() && !dir.is_direct());
    drop((dir, top, after));
    m.unmount();
}

/// What is told of small files with the names of their directory is what is asked for by itself; and to tell it is not to read it.
#[test]
fn small_files_are_told_with_their_names() {
    if !can_mount("small_files_are_told_with_their_names") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let top = session.root().unwrap().make_dir("top", 0o755).unwrap();
    let write = |dir: &Dir, name: &str, content: &[u8]| {
        let file = new_file(dir, name);
        file.append(content).unwrap();
        file.set_attr(&OLD).unwrap();
    };
    let small = top.make_dir("small", 0o755).unwrap();
    small_and_others(&small, write);
    let many = top.make_dir("many", 0o755).unwrap();
    for n in 0..40 {
        write(
            &many,
            &format!("m{n}"),
            &vec![n; SMALL / 2 + usize::from(n)],
        );
    }
    drop((small, many));
    for name in ["small", "many"] {
        for tell in [Tell::Little, Tell::Names] {
            let (_, _, listed) = top.open_dir_listed(name, tell).unwrap();
            assert_eq!(listed.is_some(), tell == Tell::Names);
            let is_told = |one: &Listed| one.content.is_some();
            assert!(!listed.into_iter().flatten().any(|one| is_told(&one)));
        }
        let (dir, _, listed) = top.open_dir_listed(name, Tell::Heads).unwrap();
        let listed = listed.unwrap();
        let told = listed.iter().filter(|one| one.content.is_some());
        let mut bytes = 0;
        for one in told.clone() {
            let content = one.content.as_ref().unwrap();
            let by_itself = dir.heads([&*one.entry.name]).unwrap().remove(0).unwrap();
            assert_eq!(
                (content, &one.attr.unwrap()),
                (&by_itself.content, &by_itself.attr)
            );
            assert_eq!(by_itself.attr.atime, OLD.atime, "nothing counts as read");
            bytes += content.len();
        }
        let all: Vec<Listed> = told.cloned().collect();
        match name {
            "small" => assert_eq!(names(&all), ["a", "empty", "most"]),
            // As many as fit into an answer.
            _ => assert!((100 << 10..128 << 10).contains(&bytes), "{bytes}"),
        }
    }
    drop((top, session));
    m.unmount();
}

/// Several directories that are asked for at once are what each is by itself; what is none of them, or is not there, is an error of its own.
#[test]
fn several_are_found_at_once() {
    if !can_mount("several_are_found_at_once") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let top = session.root().unwrap().make_dir("top", 0o755).unwrap();
    let dirs: Vec<String> = (0..9).map(|n| format!("d{n}")).collect();
    for (n, name) in dirs.iter().enumerate() {
        let dir = top.make_dir(name, 0o755).unwrap();
        for n in 0..n {
            new_file(&dir, &format!("f{n}")).append(b"some").unwrap();
        }
    }
    new_file(&top, "file").append(b"some").unwrap();
    let ask = |names: &[&str], tell| {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        top.open_dirs_listed(&names, tell)
    };
    // Where answers come late they are asked for by calls, one by one.
    let ask_for_all = |names: &[&str], tell| {
        let begun = Instant::now();
        loop {
            let found = ask(names, tell);
            if found.len() == names.len() {
                return found;
            }
            assert!(found.len() == 1 && begun.elapsed() < PATIENCE);
        }
    };
    let all: Vec<&str> = dirs.iter().map(String::as_str).collect();
    for tell in [Tell::Little, Tell::Names, Tell::Heads] {
        let found = ask_for_all(&all, tell);
        for (name, found) in dirs.iter().zip(found) {
            let (dir, attr, listed) = found.unwrap();
            assert_eq!(attr.ino, top.stat(name).unwrap().ino);
            assert_eq!(listed.is_some(), tell != Tell::Little);
            let expected = read(&dir);
            if let Some(listed) = listed {
                assert_eq!(names(&listed), expected, "{name}");
                let is_told = |one: &&Listed| one.content.as_deref() == Some(b"some");
                let told = listed.iter().filter(is_told).count();
                assert_eq!(
                    told,
                    if tell == Tell::Heads {
                        expected.len()
                    } else {
                        0
                    }
                );
            }
        }
    }
    // The first one's error is told; others that are not there are not asked for, nor what comes behind them.
    assert_eq!(
        errno(ask(&["none", "d0"], Tell::Names).remove(0)),
        libc::ENOENT
    );
    let found = ask(&["d1", "none", "d2"], Tell::Names);
    assert!(found.len() == 1 && found[0].is_ok());
    drop(found);
    let mut found = ask_for_all(&["d1", "file", "d2"], Tell::Heads);
    assert!(found[2].is_ok() && found[0].is_ok());
    assert_eq!(errno(found.remove(1)), libc::ENOTDIR);
    drop(found);
    // What the kernel has by now is opened by itself.
    assert_eq!(fs::read_dir(m.path("top")).unwrap().count(), 10);
    assert!(!top.is_direct());
    let found = ask(&["d1", "d2"], Tell::Heads);
    assert!(found.len() == 1 && !found[0].as_ref().unwrap().0.is_direct());
    drop((found, top, session));
    m.unmount();
}

/// Threads ask for much at once and post besides; the ring has no room for all of it.
#[test]
fn who_asks_for_much_waits_for_nobody_who_waits_for_him() {
    if !can_mount("who_asks_for_much_waits_for_nobody_who_waits_for_him") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let top = session.root().unwrap().make_dir("top", 0o755).unwrap();
    let all: Vec<Dir> = (0..6)
        .map(|thread| top.make_dir(format!("t{thread}"), 0o755).unwrap())
        .collect();
    for parent in &all {
        for n in 0..8 {
            let dir = parent.make_dir(format!("d{n}"), 0o755).unwrap();
            for n in 0..6 {
                new_file(&dir, &format!("f{n}"))
                    .append(&[n; SMALL])
                    .unwrap();
            }
        }
    }
    std::thread::scope(|scope| {
        for parent in &all {
            scope.spawn(move || {
                let names: Vec<String> = (0..8).map(|n| format!("d{n}")).collect();
                let all: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
                let own = parent.make_dir("own", 0o755).unwrap();
                for round in 0..100 {
                    let found = parent.open_dirs_listed(&all, Tell::Heads);
                    assert!(!found.is_empty());
                    for found in found {
                        let (_, _, listed) = found.unwrap();
                        let told = listed.into_iter().flatten().filter_map(|one| one.content);
                        told.for_each(|content| assert_eq!(content, [content[0]; SMALL]));
                    }
                    let file = new_file(&own, &format!("f{round}"));
                    file.append(&[7; 64 << 10]).unwrap();
                }
            });
        }
    });
    drop((all, top, session));
    m.unmount();
}

/// A thread opens and lists a directory, while another one makes names there by an object that comes and goes.
#[test]
fn nothing_is_missed_that_is_made_meanwhile() {
    if !can_mount("nothing_is_missed_that_is_made_meanwhile") {
        return;
    }
    const NAMES: u32 = 4000;
    const PAUSE: Duration = Duration::from_micros(30);
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = session(&m);
    let top = session.root().unwrap().make_dir("top", 0o755).unwrap();
    drop(top.make_dir("d", 0o755).unwrap());
    let (made, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let told = std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let mut told = 0;
            while !over.load(Relaxed) {
                let there = made.load(Relaxed);
                let (dir, _, listed) = top.open_dir_listed("d", Tell::Names).unwrap();
                told += u32::from(listed.is_some());
                for n in there.saturating_sub(20)..there {
                    let name = format!("f{n}");
                    assert!(!dir.lacks(name.as_bytes()), "{name} is there");
                    dir.stat(&name).unwrap();
                    if let Some(listed) = &listed {
                        assert!(listed.iter().any(|one| one.entry.name == *name), "{name}");
                    }
                }
            }
            told
        });
        for n in 0..NAMES {
            let dir = top.open_dir("d").unwrap();
            dir.open(format!("f{n}"), OpenOptions::new_file()).unwrap();
            drop(dir);
            let begun = Instant::now();
            while begun.elapsed() < PAUSE {
                std::hint::spin_loop();
            }
            made.store(n + 1, Relaxed);
        }
        over.store(true, Relaxed);
        looker.join().unwrap()
    });
    println!("{told} listings");
    drop((top, session));
    m.unmount();
}

/// Files of which the kernel knows nothing, in a directory that is taken: how many answers were waited for.
fn asked_for_births(m: &TestMount, name: &str, files: u32) -> u64 {
    let session = session(m);
    let root = session.root().unwrap();
    let dir = once_unused(|| root.take_dir(name));
    let before = asked(m);
    for n in 0..files {
        new_file(&dir, &format!("new{n}"))
            .write_at(b"x", 0)
            .unwrap();
        // A second name, which the kernel does not know either.
        dir.link(format!("new{n}"), &dir, format!("link{n}"))
            .unwrap();
        dir.remove_file(format!("new{n}")).unwrap();
    }
    session.drain().unwrap();
    asked(m) - before
}

/// What somebody else has made may be so full that there is no room: nothing is posted there that could fail.
#[test]
fn births_in_directories_of_others() {
    if !can_mount("births_in_directories_of_others") || !gives_up("births_in_directories_of_others")
    {
        return;
    }
    const FILES: u32 = 50;
    let mut m = TestMount::new(FsType::Fuseblk);
    for (name, files) in [("small", 5), ("large", 3000)] {
        fs::create_dir(m.path(name)).unwrap();
        let path = |n: u32| m.path(name).join(format!("{n:040}"));
        (0..files).for_each(|n| drop(fs::File::create(path(n)).unwrap()));
        (5..files).for_each(|n| fs::remove_file(path(n)).unwrap());
    }
    m.unmount();
    m.mount();
    let small = asked_for_births(&m, "small", FILES);
    assert!(small <= 3, "{small} questions where all is known");
    let large = asked_for_births(&m, "large", FILES);
    assert!(
        large >= u64::from(FILES),
        "{large} questions where it may be full"
    );
    let there = |name: &str| fs::read_dir(m.path(name)).unwrap().count() as u32;
    assert_eq!([there("small"), there("large")], [5 + FILES; 2]);
    m.unmount();
}
