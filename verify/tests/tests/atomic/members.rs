//! Who is in a group, whom it keeps waiting, and how it ends without its owner.
use crate::common::{
    PATIENCE, assert_same, errno, knows_creators, on_a_thread, on_each_transport, read, root,
    until, volume, write,
};
use ccfs_client::{self as client, Cause};
use ccfs_tests::harness::{Tree, Volume, ccfs_program};
use ccfs_tests::sys;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Threads and processes that a member starts, and who enters by the handle; nobody else.
#[test]
fn members_and_others() {
    let Some(v) = volume("members_and_others", "") else {
        return;
    };
    let inside = Barrier::new(2);
    let done = Barrier::new(2);
    let handle = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            let at = root(&v);
            handle.store(client::group_begin(&at, None).expect("begin"), SeqCst);
            on_a_thread(|| write(&v, "by-thread", b"1"));
            let made = Command::new("sh")
                .args(["-c", "(echo 1 >by-grandchild) & wait"])
                .current_dir(v.mnt())
                .status();
            assert!(made.expect("sh").success());
            inside.wait();
            done.wait();
            client::group_abort(&at, 0).expect("abort");
        });
        s.spawn(|| {
            let at = root(&v);
            inside.wait();
            write(&v, "by-other", b"1");
            assert!(v.path("by-grandchild").exists(), "no isolation");
            client::group_enter(&at, handle.load(SeqCst)).expect("enter");
            write(&v, "by-entrant", b"1");
            done.wait();
        });
    });
    assert_eq!(read(&v, "by-other"), b"1");
    for name in ["by-grandchild", "by-entrant"] {
        assert_eq!(sys::lstat(v.path(name)), Err(libc::ENOENT), "{name}");
    }
    match knows_creators(&v) {
        true => assert_eq!(sys::lstat(v.path("by-thread")), Err(libc::ENOENT)),
        // Then it counts as started by the process's first thread.
        false => println!(
            "skipped: members_and_others: threads of threads: {}",
            v.status()["identity"]
        ),
    }
    v.finish();
}

/// Threads that are still in a group when it is committed go on where it was begun: none of their changes is refused.
#[test]
fn committed_under_its_members() {
    on_each_transport("committed_under_its_members", |v| {
        let stop = AtomicBool::new(false);
        for round in 0..20 {
            stop.store(false, SeqCst);
            std::thread::scope(|s| {
                s.spawn(|| {
                    let at = root(&v);
                    client::group_begin(&at, None).expect("begin");
                    let (stop, v) = (&stop, &v);
                    let working = s.spawn(move || {
                        let mut n = 0;
                        while n < 3 || !stop.load(SeqCst) {
                            write(v, &format!("{round}-{n}"), b"x");
                            n += 1;
                        }
                        n
                    });
                    client::group_commit(&at, 0, round % 2 == 0).expect("commit");
                    stop.store(true, SeqCst);
                    let made = working.join().expect("no change is refused");
                    assert!(v.path(&format!("{round}-{}", made - 1)).exists());
                });
            });
        }
        v.finish();
    });
}

/// Holds a group open that has changed `name`, in a process of its own, until that is killed.
fn holder(v: &Volume, name: &str) -> std::process::Child {
    let script = format!("echo group >{name}; echo >ready; exec sleep 600");
    let child = Command::new(ccfs_program())
        .args(["atomic", "--", "sh", "-c", &script])
        .current_dir(v.mnt())
        .stdin(Stdio::null())
        .spawn()
        .expect("ccfs atomic");
    v.adopt(child.id());
    until("the group has changed the file", || {
        v.path("ready").exists()
    });
    child
}

/// The last member's death without a commit takes the group back.
#[test]
fn death_of_the_members() {
    let Some(v) = volume("death_of_the_members", "") else {
        return;
    };
    write(&v, "kept", b"before");
    let before = Tree::read(v.mnt());
    let mut owner = holder(&v, "kept");
    let tid = owner.id() as i32;
    let member = child_of(owner.id());
    sys::kill(tid, libc::SIGKILL).expect("kill");
    owner.wait().expect("wait");
    // The command itself is still in the group.
    assert_eq!(read(&v, "kept"), b"group\n");
    sys::kill(member, libc::SIGKILL).expect("kill");
    until("the group is taken back", || !v.path("ready").exists());
    until("its bytes as well", || read(&v, "kept") == b"before");
    assert_same("after the abort", &before, &Tree::read(v.mnt()));
    v.finish();
}

/// The process that `pid` started.
fn child_of(pid: u32) -> i32 {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    let child = list.split_whitespace().next().expect("a child");
    child.parse().expect("a number")
}

/// Who changes the same gets through after a while, and the group's owner is told; who works on other files notices nothing.
#[test]
fn conflicts() {
    on_each_transport("conflicts", |v| {
        write(&v, "same", b"before");
        let begun = Barrier::new(2);
        let changed = Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                let at = root(&v);
                client::group_begin(&at, None).expect("begin");
                write(&v, "same", b"group");
                write(&v, "own", b"group");
                begun.wait();
                changed.wait();
                assert_eq!(errno(File::create(v.path("more"))), libc::ECANCELED);
                assert_eq!(errno(client::group_commit(&at, 0, false)), libc::ECANCELED);
                // It is out of the group now.
                write(&v, "after", b"1");
                assert_eq!(errno(client::group_abort(&at, 0)), libc::ENOENT);
            });
            begun.wait();
            // Other names in the same directory, other files, and their syncs.
            for n in 0..50 {
                write(&v, &format!("other-{n}"), b"1");
            }
            let other = File::open(v.path("other-7")).expect("open");
            other.sync_all().expect("fsync");
            assert_eq!(read(&v, "own"), b"group", "the group is still open");
            let file = File::options().write(true).open(v.path("same"));
            file.expect("open")
                .write_all_at(b"LEGACY", 0)
                .expect("it gets through");
            until("the group is gone", || !v.path("own").exists());
            changed.wait();
        });
        assert_eq!(read(&v, "same"), b"LEGACY");
        for n in 0..50 {
            assert_eq!(read(&v, &format!("other-{n}")), b"1");
        }
        v.finish();
    });
}

/// A conflict over a name: the directory's lock in the kernel is held meanwhile, and nobody waits for ever.
#[test]
fn conflicts_over_names() {
    on_each_transport("conflicts_over_names", |v| {
        write(&v, "old", b"old");
        write(&v, "gone", b"gone");
        let begun = Barrier::new(2);
        let refused = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let at = root(&v);
                client::group_begin(&at, None).expect("begin");
                write(&v, "temporary", b"new");
                fs::rename(v.path("temporary"), v.path("old")).expect("rename");
                fs::remove_file(v.path("gone")).expect("unlink");
                begun.wait();
                // In the same directory, whose lock a waiting rename holds: until the group is taken back.
                let end = Instant::now() + PATIENCE;
                let mut n = 0;
                while Instant::now() < end {
                    n += 1;
                    if let Err(e) = File::create(v.path(&format!("member-{n}"))) {
                        assert_eq!(e.raw_os_error(), Some(libc::ECANCELED));
                        refused.store(true, SeqCst);
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                client::group_abort(&at, 0).expect("abort");
            });
            begun.wait();
            fs::rename(v.path("old"), v.path("renamed")).expect("it gets through");
            assert_eq!(read(&v, "gone"), b"gone");
        });
        assert!(refused.load(SeqCst), "its owner was told");
        // The file that was there before the group has the new name, also where the kernel held the group's.
        until("the name leads to the old file", || {
            fs::read(v.path("renamed")).is_ok_and(|bytes| bytes == b"old")
        });
        assert_eq!(sys::lstat(v.path("old")), Err(libc::ENOENT));
        assert!(!v.path("member-1").exists());
        v.finish();
    });
}

/// A handle is worth nothing to another user, and who becomes another user is in the group no more.
#[test]
fn other_users() {
    let Some(v) = volume("other_users", "") else {
        return;
    };
    fs::create_dir(v.path("open")).expect("mkdir");
    sys::chmod(v.path("open"), 0o777).expect("chmod");
    let at = root(&v);
    let handle = on_a_thread_kept(&v, |handle| {
        sys::as_user(4321, 4321, &[], || {
            assert_eq!(errno(client::group_enter(&at, handle)), libc::EPERM);
            assert_eq!(errno(client::group_commit(&at, handle, false)), libc::EPERM);
            assert_eq!(errno(client::group_abort(&at, handle)), libc::EPERM);
            assert_eq!(errno(client::group_changes(&at, handle)), libc::EPERM);
        });
        assert_eq!(read(&v, "open/mine"), b"1", "still open");
        // Root may.
        client::group_abort(&at, handle).expect("abort");
    });
    assert_ne!(handle, 0);
    assert_eq!(sys::lstat(v.path("open/mine")), Err(libc::ENOENT));
    drop(at);
    v.finish();
}

/// User 1234 has a group open while `f` runs with its handle.
fn on_a_thread_kept(v: &Volume, f: impl FnOnce(u64)) -> u64 {
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    let handle = AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            sys::as_user(1234, 1234, &[], || {
                handle.store(client::group_begin(root(v), None).expect("begin"), SeqCst);
                write(v, "open/mine", b"1");
                begun.wait();
                done.wait();
            });
        });
        begun.wait();
        f(handle.load(SeqCst));
        done.wait();
    });
    handle.load(SeqCst)
}

/// A user cannot keep all groups for himself.
#[test]
fn groups_of_a_user() {
    let Some(v) = volume("groups_of_a_user", "") else {
        return;
    };
    let (full, done) = (Barrier::new(17), Barrier::new(17));
    std::thread::scope(|s| {
        for _ in 0..16 {
            s.spawn(|| {
                sys::as_user(1234, 1234, &[], || {
                    client::group_begin(root(&v), None).expect("begin");
                    full.wait();
                    done.wait();
                });
            });
        }
        full.wait();
        let one_more = |uid| {
            sys::as_user(uid, uid, &[], || {
                client::group_begin(root(&v), None).and_then(|h| client::group_abort(root(&v), h))
            })
        };
        assert_eq!(errno(one_more(1234)), libc::EAGAIN);
        one_more(4321).expect("another user has room");
        done.wait();
    });
    until("their deaths end them", || {
        sys::as_user(1234, 1234, &[], || {
            let begun = client::group_begin(root(&v), None);
            begun.is_ok_and(|h| client::group_abort(root(&v), h).is_ok())
        })
    });
    v.finish();
}

/// The kernel has one lock for all renames between directories, and one for the names of each directory: whoever waits for a group
/// with one of them would hold up strangers. Nobody does: the groups say that they were taken back without a wait.
#[test]
fn groups_hold_up_no_strangers() {
    const USER: u32 = 1234;
    const STRANGER: u32 = 4321;
    on_each_transport("groups_hold_up_no_strangers", |v| {
        for dir in ["users", "strangers", "sticky"] {
            fs::create_dir(v.path(dir)).expect("mkdir");
            sys::chmod(v.path(dir), 0o1777).expect("chmod");
        }
        let as_user = |uid: u32, f: &(dyn Fn() + Sync)| sys::as_user(uid, uid, &[], f);
        as_user(USER, &|| {
            for i in 0..16 {
                for dir in ["", "/a", "/a/d", "/b"] {
                    fs::create_dir(v.path(&format!("users/{i}{dir}"))).expect("mkdir");
                }
            }
        });
        as_user(STRANGER, &|| {
            for dir in ["a", "a/d", "b"] {
                fs::create_dir(v.path(&format!("strangers/{dir}"))).expect("mkdir");
            }
            write(&v, "strangers/a/f", b"x");
        });
        {
            let (v, full, done) = (&v, &Barrier::new(17), &Barrier::new(17));
            std::thread::scope(|s| {
                for i in 0..16 {
                    s.spawn(move || {
                        as_user(USER, &|| {
                            let at = root(v);
                            client::group_begin(&at, None).expect("begin");
                            let moved = ["a/d", "b/d"].map(|d| v.path(&format!("users/{i}/{d}")));
                            fs::rename(&moved[0], &moved[1]).expect("a move of its own");
                            write(v, &format!("sticky/{i}"), b"g");
                            full.wait();
                            done.wait();
                            let why = client::group_abort_and_why(&at, 0).expect("abort");
                            let cause = why.map(|why| why.cause);
                            assert_eq!(cause, Some(Cause::WaitsForNobody), "group {i}");
                        });
                    });
                }
                full.wait();
                // Others of the same user want the names of his groups, all at once.
                let want = |i| {
                    s.spawn(move || {
                        as_user(USER, &|| {
                            match i % 2 {
                                0 => drop(fs::remove_file(v.path(&format!("sticky/{i}")))),
                                _ => {
                                    let moved =
                                        ["b/d", "a/e"].map(|d| v.path(&format!("users/{i}/{d}")));
                                    drop(fs::rename(&moved[0], &moved[1]));
                                }
                            };
                        });
                    })
                };
                let wanting: Vec<_> = (0..16).map(want).collect();
                std::thread::sleep(Duration::from_millis(20));
                as_user(STRANGER, &|| {
                    for name in ["d", "f"] {
                        let moved = ["a", "b"].map(|d| v.path(&format!("strangers/{d}/{name}")));
                        fs::rename(&moved[0], &moved[1]).expect("a stranger's move");
                    }
                    write(v, "sticky/other", b"x");
                });
                for one in wanting {
                    one.join().expect("who wants a name");
                }
                done.wait();
            });
        }
        v.finish();
    });
}

/// A group that is forgotten does not stay for ever: by its owner's limit, or by the mount's.
#[test]
fn timeouts() {
    let Some(v) = volume("timeouts", ",group_timeout=1") else {
        return;
    };
    for limit in [
        None,
        Some(Duration::from_millis(300)),
        Some(Duration::from_secs(9999)),
    ] {
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, limit).expect("begin");
            write(&v, "leaked", b"1");
            until("the time is up", || !v.path("leaked").exists());
            assert_eq!(errno(File::create(v.path("more"))), libc::ECANCELED);
            client::group_abort(&at, 0).expect("it is taken back");
            write(&v, "own", b"1");
        });
    }
    v.finish();
}

/// Bytes of the counters of `transfers_under_load`.
const COUNTERS: usize = 4;

fn counter(v: &Volume, who: usize, n: usize) -> u64 {
    let text = fs::read_to_string(v.path(&format!("{who}/counter-{n}"))).expect("a counter");
    text.parse().unwrap_or_else(|_| panic!("torn: {text:?}"))
}

/// Owners that change several files at a time, in groups some of which are taken back, on their own and by others that interfere; then the
/// daemon is killed. The files of each owner are equal at all times that count.
#[test]
fn transfers_under_load() {
    on_each_transport("transfers_under_load", |mut v| {
        for who in 0..3 {
            fs::create_dir(v.path(&who.to_string())).expect("mkdir");
            for n in 0..COUNTERS {
                write(&v, &format!("{who}/counter-{n}"), b"0");
            }
        }
        let committed: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for who in 0..3 {
                let (v, committed) = (&v, &committed[who]);
                s.spawn(move || transfer(v, who, committed));
            }
            s.spawn(|| interfere(&v, &stop));
            until("enough transfers", || {
                committed.iter().all(|c| c.load(SeqCst) >= 40)
            });
            stop.store(true, SeqCst);
        });
        v.kill9();
        v.mount();
        for (who, committed) in committed.iter().enumerate() {
            let first = counter(&v, who, 0);
            for n in 1..COUNTERS {
                assert_eq!(counter(&v, who, n), first, "C11: counters of {who}");
            }
            assert!(
                first >= committed.load(SeqCst),
                "C11: a durable commit is lost"
            );
        }
        v.finish();
    });
}

/// Sets all counters to the next number, 40 times and more; every third group is aborted. Looks at them in between.
fn transfer(v: &Volume, who: usize, committed: &AtomicU64) {
    let at = root(v);
    let mut value = 0;
    let mut round = 0;
    while value < 45 {
        round += 1;
        let seen: Vec<u64> = (0..COUNTERS).map(|n| counter(v, who, n)).collect();
        assert_eq!(seen, vec![value; COUNTERS], "after {value} commits");
        client::group_begin(&at, None).expect("begin");
        let set = |n: usize| {
            let path = v.path(&format!("{who}/counter-{n}"));
            match n % 2 {
                0 => fs::write(path, (value + 1).to_string()),
                _ => {
                    let new = v.path(&format!("{who}/new-{n}"));
                    fs::write(&new, (value + 1).to_string())?;
                    fs::rename(new, path)
                }
            }
        };
        let done = (0..COUNTERS).try_for_each(set);
        let kept = match done {
            Ok(()) if round % 3 != 0 => client::group_commit(&at, 0, false),
            _ => client::group_abort(&at, 0).and(Err(std::io::ErrorKind::Other.into())),
        };
        match kept {
            Ok(()) => {
                value += 1;
                committed.store(value, SeqCst);
            }
            Err(e) => {
                let said = e.raw_os_error();
                assert!(matches!(said, None | Some(libc::ECANCELED)), "{e}");
            }
        }
    }
}

/// Changes attributes of others' files now and then, which ends groups, and works on files of its own all the time.
fn interfere(v: &Volume, stop: &AtomicBool) {
    let mut n = 0;
    while !stop.load(SeqCst) {
        n += 1;
        write(v, &format!("legacy-{}", n % 50), b"legacy");
        if n % 40 == 0 {
            let path = v.path(&format!("{}/counter-0", n / 40 % 3));
            sys::chmod(path, 0o600 + (n % 2) as u32).expect("chmod gets through");
        }
    }
}
