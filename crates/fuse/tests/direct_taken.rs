//! Files that a session takes over from the kernel: others see their locks, and whatever else they do ends it.
mod common;
use ccfs_client::direct::{Dir, File, OpenOptions, Session, Tell, Used};
use ccfs_fuse::FsType;
use common::direct::{errno, gives_up, root as root_of, session};
use common::{TestMount, can_mount, change_at_rest};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, OFlags, RenameFlags, XattrFlags, copy_file_range,
    fallocate, fcntl_getfl, fcntl_setfl, flock, fsetxattr, linkat, renameat_with,
};
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const STALE: i32 = libc::ESTALE;
const BUSY: i32 = libc::EBUSY;

fn existing() -> OpenOptions {
    OpenOptions {
        exclusive: false,
        create: false,
        ..OpenOptions::new_file()
    }
}

fn descriptor(file: &File) -> fs::File {
    fs::File::from(file.descriptor().unwrap())
}

/// False: somebody else has the lock.
fn lock(file: &fs::File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

fn run(program: &str, args: &[&str]) {
    let done = std::process::Command::new(program).args(args).status();
    assert!(done.unwrap().success(), "{program} {args:?}");
}

fn size(file: &fs::File) -> u64 {
    file.metadata().unwrap().len()
}

fn read(file: &fs::File) -> Vec<u8> {
    let mut out = vec![0; 100];
    let n = file.read_at(&mut out, 0).unwrap();
    out.truncate(n);
    out
}

#[test]
fn locks_are_seen_and_the_file_stays_held() {
    if !can_mount("locks_are_seen_and_the_file_stays_held") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    assert!(!m.path("db").exists());
    let root = root_of(&m);
    let file = root.take("db", OpenOptions::new_file()).unwrap();
    let locked = descriptor(&file);
    assert!(lock(&locked));
    for n in 0..100 {
        file.write_at(&[n; 10], u64::from(n) * 10).unwrap();
        // Attributes tell the truth, and break nothing.
        assert_eq!(size(&locked), u64::from(n + 1) * 10);
    }
    assert!(file.is_direct());
    // Others get to know it, with its lock and all that was written.
    let other = fs::File::open(m.path("db")).unwrap();
    assert!(!lock(&other));
    assert_eq!(size(&other), 1000);
    assert_eq!(
        read(&other),
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| [n; 10]).concat()
    );
    assert!(!file.is_direct());
    assert_eq!(errno(file.write_at(b"x", 0)), STALE);
    assert_eq!(errno(file.append(b"x")), STALE);
    assert_eq!(errno(file.truncate(0)), STALE);
    assert_eq!(errno(file.read_at(&mut [0], 0)), STALE);
    assert_eq!(errno(file.stat()), STALE);
    assert_eq!(errno(file.sync()), STALE);
    // By its descriptor it goes on.
    locked.write_all_at(b"mount", 0).unwrap();
    assert_eq!(&read(&other)[..5], b"mount");
    drop(locked);
    assert!(lock(&other));
    drop((other, file, root));
    m.unmount();
}

/// Whatever is done by the number of a held file, and by nothing else.
#[test]
fn whatever_is_done_by_a_descriptor_breaks_the_hold() {
    if !can_mount("whatever_is_done_by_a_descriptor_breaks_the_hold") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let root = root_of(&m);
    let name = |fd: &fs::File| format!("/proc/self/fd/{}", fd.as_raw_fd());
    type Act<'a> = &'a dyn Fn(&fs::File);
    let acts: [(&str, Act<'_>); 12] = [
        ("read", &|fd| assert_eq!(read(fd), b"0123456789")),
        ("write", &|fd| fd.write_all_at(b"01", 0).unwrap()),
        ("read anew", &|fd| {
            assert_eq!(fs::read(name(fd)).unwrap(), b"0123456789");
        }),
        ("truncate", &|fd| fd.set_len(10).unwrap()),
        ("open and truncate", &|fd| {
            fs::File::create(name(fd))
                .unwrap()
                .write_all_at(b"0123456789", 0)
                .unwrap();
        }),
        ("sync", &|fd| fd.sync_all().unwrap()),
        ("chmod", &|fd| {
            fd.set_permissions(fs::Permissions::from_mode(0o640))
                .unwrap();
        }),
        ("link", &|fd| {
            let to = m.path("linked");
            linkat(CWD, name(fd), CWD, &to, AtFlags::SYMLINK_FOLLOW).unwrap();
            fs::remove_file(to).unwrap();
        }),
        ("copy into", &|fd| {
            let from = fs::File::open(m.path("source")).unwrap();
            let n = copy_file_range(&from, Some(&mut 0), fd, Some(&mut 0), 10).unwrap();
            assert_eq!(n, 10);
        }),
        ("copy from", &|fd| {
            let to = fs::File::create(m.path("target")).unwrap();
            // The kernel believes the size that it was told last.
            assert_eq!(size(fd), 10);
            let n = copy_file_range(fd, Some(&mut 0), &to, Some(&mut 0), 10).unwrap();
            assert_eq!(n, 10);
            assert_eq!(fs::read(m.path("target")).unwrap(), b"0123456789");
        }),
        ("allocate", &|fd| {
            fallocate(fd, FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
        }),
        ("attribute", &|fd| {
            fsetxattr(fd, "user.a", b"1", XattrFlags::empty()).unwrap();
        }),
    ];
    fs::write(m.path("source"), b"0123456789").unwrap();
    for (n, (what, act)) in acts.into_iter().enumerate() {
        let file = root
            .take(format!("file{n}"), OpenOptions::new_file())
            .unwrap();
        let fd = descriptor(&file);
        file.write_at(b"0123456789", 0).unwrap();
        assert!(file.is_direct(), "{what}");
        act(&fd);
        assert!(!file.is_direct(), "{what}");
        assert_eq!(errno(file.write_at(b"x", 0)), STALE, "{what}");
        assert_eq!(
            fs::read(m.path(&format!("file{n}"))).unwrap(),
            b"0123456789",
            "{what}"
        );
    }
    drop(root);
    m.unmount();
}

#[test]
fn what_the_kernel_knows_is_taken_unless_somebody_has_it_open() {
    let test = "what_the_kernel_knows_is_taken_unless_somebody_has_it_open";
    if !can_mount(test) || !gives_up(test) {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("db"), b"before").unwrap();
    assert_eq!(fs::read(m.path("db")).unwrap(), b"before");
    let root = root_of(&m);
    let user = fs::File::open(m.path("db")).unwrap();
    assert_eq!(errno(root.take("db", existing())), BUSY);
    assert_eq!(read(&user), b"before");
    drop(user);
    for round in 0..3 {
        let file = root.take("db", existing()).unwrap();
        let fd = descriptor(&file);
        file.write_at(format!("round{round}").as_bytes(), 0)
            .unwrap();
        assert!(file.is_direct());
        // A second one is the same file, with a descriptor of its own.
        let second = root.take("db", existing()).unwrap();
        let other = descriptor(&second);
        assert!(lock(&fd) && !lock(&other));
        second.append(b"!").unwrap();
        assert!(file.is_direct() && second.is_direct());
        drop((file, fd, second, other));
        let now = fs::read(m.path("db")).unwrap();
        assert_eq!(now, format!("round{round}{}", &"!!!"[..=round]).as_bytes());
    }
    let names = [
        ("none", libc::ENOENT),
        ("link", libc::ELOOP),
        ("dir", libc::EISDIR),
        (".ccfs", libc::EPERM),
    ];
    symlink("db", m.path("link")).unwrap();
    fs::create_dir(m.path("dir")).unwrap();
    for (name, error) in names {
        assert_eq!(errno(root.take(name, existing())), error, "{name}");
    }
    assert_eq!(
        errno(root.take("db", OpenOptions::new_file())),
        libc::EEXIST
    );
    // In a directory that the session holds nobody else could see a lock.
    let tree = root.make_dir("tree", 0o777).unwrap();
    assert_eq!(errno(tree.take("db", OpenOptions::new_file())), BUSY);
    drop((tree, root));
    m.unmount();
}

#[test]
fn two_sessions_do_not_hold_one_file() {
    if !can_mount("two_sessions_do_not_hold_one_file") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let (one, two) = (root_of(&m), root_of(&m));
    let file = one.take("db", OpenOptions::new_file()).unwrap();
    file.write_at(b"one", 0).unwrap();
    // Only one of them posts.
    assert_eq!(errno(two.take("db", existing())), BUSY);
    assert!(file.is_direct());
    // By one that posts elsewhere it is looked up as by anybody.
    std::thread::scope(|s| {
        s.spawn(|| {
            let stream = ccfs_client::new_stream_at(m.mnt(), 0).unwrap();
            ccfs_client::set_stream_at(m.mnt(), stream, None).unwrap();
            assert_eq!(errno(root_of(&m).take("db", existing())), BUSY);
        });
    });
    assert!(!file.is_direct());
    drop((one, two, file));
    assert_eq!(fs::read(m.path("db")).unwrap(), b"one");
    m.unmount();
}

/// Of two sessions in one stream one posts. Who does nothing displaces nobody; who begins to work does, where the other has nothing to do.
#[test]
fn the_right_to_post_is_his_who_works() {
    let test = "the_right_to_post_is_his_who_works";
    if !can_mount(test) || !gives_up(test) {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let (one, two) = (root_of(&m), root_of(&m));
    let take = |root: &Dir| {
        root.take(
            "db",
            OpenOptions {
                exclusive: false,
                ..OpenOptions::new_file()
            },
        )
    };
    for n in 0..2 {
        let file = take(&one).unwrap();
        file.append(b"1").unwrap();
        assert_eq!(errno(two.take("other", OpenOptions::new_file())), BUSY);
        drop(file);
        // Their threads look once a second.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let file = take(&one).unwrap();
        file.append(b"1").unwrap();
        assert!(file.is_direct(), "{n}");
        drop(file);
        let file = take(&two).unwrap();
        file.append(b"2").unwrap();
        assert!(file.is_direct(), "{n}");
        assert_eq!(errno(one.take("other", OpenOptions::new_file())), BUSY);
    }
    assert_eq!(fs::read(m.path("db")).unwrap(), b"112112");
    drop((one, two));
    m.unmount();
}

/// O_CREAT without O_EXCL finds the file or makes it, whoever makes and removes it meanwhile.
#[test]
fn two_open_or_make_the_same_name() {
    let test = "two_open_or_make_the_same_name";
    if !can_mount(test) {
        return;
    }
    const ROUNDS: usize = 3000;
    let mut m = TestMount::new(FsType::Fuseblk);
    let root = root_of(&m);
    let how = OpenOptions {
        exclusive: false,
        ..OpenOptions::new_file()
    };
    let path = m.path("db");
    let is = |e: &io::Error, all: &[i32]| all.contains(&e.raw_os_error().unwrap());
    let wrong = |e: &io::Error| is(e, &[libc::EEXIST, libc::ENOENT]);
    // The kernel looks again once; here somebody else can be faster each time.
    let (lost, mut lost_twice) = (|e: &io::Error| is(e, &[libc::ESTALE]), 0);
    let (mut by_mount, mut by_session) = (0, 0);
    std::thread::scope(|s| {
        let other = s.spawn(|| {
            let open = || {
                let file = fs::File::options();
                file.clone()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&path)
            };
            let _ = fs::remove_file(&path);
            let (mut wrongs, mut lost_twice) = (0, 0);
            for _ in 0..ROUNDS {
                if let Err(e) = open() {
                    wrongs += usize::from(wrong(&e));
                    lost_twice += usize::from(lost(&e));
                }
                let _ = fs::remove_file(&path);
            }
            (wrongs, lost_twice)
        });
        for n in 0..ROUNDS {
            let opened = match n % 2 {
                0 => root.open("db", how),
                _ => root.take("db", how),
            };
            by_session += usize::from(opened.is_err_and(|e| wrong(&e) || lost(&e)));
            let _ = root.remove_file("db");
        }
        (by_mount, lost_twice) = other.join().unwrap();
    });
    assert_eq!((by_mount, by_session), (0, 0));
    assert!(lost_twice < ROUNDS / 50, "{lost_twice}");
    drop(root);
    m.unmount();
}

/// A session makes a name in a directory that the kernel knows. Whoever is told that it is there, in whatever way, finds it by the kernel.
#[test]
fn who_is_told_of_a_name_finds_it() {
    let test = "who_is_told_of_a_name_finds_it";
    if !can_mount(test) {
        return;
    }
    const ROUNDS: usize = 3000;
    const PATIENCE: Duration = Duration::from_secs(300);
    let mut m = TestMount::new(FsType::Fuseblk);
    let (maker, other) = (root_of(&m), root_of(&m));
    fs::write(m.path("source"), "").unwrap();
    let wrong = Mutex::new(Vec::new());
    let is_there = |done: io::Result<()>| match done {
        Ok(()) => false,
        // What else there is to be said would be wrong.
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => true,
        Err(e) => {
            wrong.lock().unwrap().push(e.to_string());
            false
        }
    };
    let tell = |n: usize| {
        let (name, path, source) = (n.to_string(), m.path(&n.to_string()), m.path("source"));
        match n % 6 {
            // EBUSY: somebody has looked at it by now.
            0 if (n / 6).is_multiple_of(3) => match other.take(&name, OpenOptions::new_file()) {
                Err(e) if e.raw_os_error() == Some(BUSY) => false,
                taken => is_there(taken.map(drop)),
            },
            0 => is_there(other.make_dir(&name, 0o700).map(drop)),
            1 => is_there(fs::create_dir(&path)),
            2 => is_there(symlink("to", &path)),
            3 => is_there(fs::hard_link(&source, &path)),
            4 => {
                let moved = renameat_with(CWD, &source, CWD, &path, RenameFlags::NOREPLACE);
                if moved.is_ok() {
                    fs::write(&source, "").unwrap();
                }
                is_there(moved.map_err(io::Error::from))
            }
            _ => {
                let mut list = fs::read_dir(m.mnt()).unwrap();
                list.any(|entry| entry.unwrap().file_name() == *name)
            }
        }
    };
    let turn = AtomicUsize::new(0);
    let begun = Instant::now();
    let wait_for = |value| {
        while turn.load(SeqCst) != value {
            assert!(begun.elapsed() < PATIENCE, "the other one has ended");
            std::thread::yield_now();
        }
    };
    let (mut told, mut missed) = ([0; 6], [0; 6]);
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0..ROUNDS {
                wait_for(2 * n + 1);
                let made = match n / 6 % 2 {
                    0 => maker.make_dir(n.to_string(), 0o700).map(drop),
                    _ => maker.open(n.to_string(), OpenOptions::new_file()).map(drop),
                };
                if is_there(made)
                    && let Err(e) = fs::symlink_metadata(m.path(&n.to_string()))
                {
                    wrong.lock().unwrap().push(format!("{n} ({}): {e}", n % 6));
                }
                turn.store(2 * n + 2, SeqCst);
            }
        });
        for n in 0..ROUNDS {
            let path = m.path(&n.to_string());
            // The kernel knows that it is not there.
            let _ = fs::symlink_metadata(&path);
            turn.store(2 * n + 1, SeqCst);
            // At another moment each time.
            (0..n / 6 % 60).for_each(|_| std::thread::yield_now());
            if tell(n) {
                told[n % 6] += 1;
                missed[n % 6] += usize::from(fs::symlink_metadata(&path).is_err());
            }
            wait_for(2 * n + 2);
            // And once it is made by one of them nobody misses it.
            let is_listed = n % 6 != 5 || tell(n);
            if !is_listed || fs::symlink_metadata(&path).is_err() {
                wrong.lock().unwrap().push(format!("{n} is missed later"));
            }
            let _ = fs::remove_dir(&path).or_else(|_| fs::remove_file(&path));
        }
    });
    println!("told {told:?}, missed {missed:?}");
    assert_eq!(wrong.into_inner().unwrap(), [""; 0]);
    assert_eq!(missed, [0; 6], "of {told:?}");
    assert!(told.iter().all(|n| *n > 0), "{told:?}");
    drop((maker, other));
    m.unmount();
}

/// Threads go where they like: the session stays in its stream, and posts.
#[test]
fn a_session_stays_in_its_stream() {
    if !can_mount("a_session_stays_in_its_stream") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let home = ccfs_client::new_stream_at(m.mnt(), 0).unwrap();
    ccfs_client::set_stream_at(m.mnt(), home, None).unwrap();
    let dir = fs::File::open(m.mnt()).unwrap();
    let session = Session::begin_in_stream(&dir).unwrap();
    assert!(session.is_direct());
    let root = session.root().unwrap();
    let file = root.take("db", OpenOptions::new_file()).unwrap();
    ccfs_client::set_stream_at(m.mnt(), 0, None).unwrap();
    file.write_at(b"from elsewhere", 0).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let other = ccfs_client::new_stream_at(m.mnt(), 0).unwrap();
            ccfs_client::set_stream_at(m.mnt(), other, None).unwrap();
            file.append(b" and from others").unwrap();
        });
    });
    let group = ccfs_client::Group::begin(m.mnt(), None).unwrap();
    file.append(b", in a group").unwrap();
    assert!(file.is_direct());
    group.abort().unwrap();
    // None begins in a group.
    let group = ccfs_client::Group::begin(m.mnt(), None).unwrap();
    assert!(!Session::begin_in_stream(&dir).unwrap().is_direct());
    group.abort().unwrap();
    // A sync of that stream covers all of it.
    ccfs_client::stream_sync_at(m.mnt(), home).unwrap();
    common::shut_down(&dir).unwrap();
    drop((file, root, session, dir));
    m.crash();
    m.mount();
    let now = fs::read(m.path("db")).unwrap();
    assert_eq!(now, b"from elsewhere and from others, in a group");
    m.unmount();
}

#[test]
fn who_asks_more_than_he_posts_gives_the_file_up() {
    if !can_mount("who_asks_more_than_he_posts_gives_the_file_up") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let root = root_of(&m);
    let file = root.take("db", OpenOptions::new_file()).unwrap();
    let fd = descriptor(&file);
    file.write_at(b"0123456789", 0).unwrap();
    let mut out = [0; 10];
    let reads = (0..1000).take_while(|_| file.read_at(&mut out, 0).is_ok());
    let reads = reads.count();
    assert!((10..200).contains(&reads), "{reads}");
    assert_eq!(errno(file.append(b"x")), STALE);
    assert_eq!(read(&fd), b"0123456789");
    drop((file, fd, root));
    m.unmount();
}

/// What is posted to a file that is taken cannot fail: others are not taken.
#[test]
fn what_cannot_be_written_is_not_taken() {
    let test = "what_cannot_be_written_is_not_taken";
    if !can_mount(test) || !gives_up(test) {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let root = root_of(&m);
    for (name, flag) in [("immutable", 'i'), ("append", 'a'), ("synchronous", 'S')] {
        fs::write(m.path(name), b"before").unwrap();
        run(
            "chattr",
            &[&format!("+{flag}"), m.path(name).to_str().unwrap()],
        );
        assert_eq!(errno(root.take(name, existing())), BUSY, "{name}");
        run(
            "chattr",
            &[&format!("-{flag}"), m.path(name).to_str().unwrap()],
        );
        let file = root.take(name, existing()).unwrap();
        file.write_at(b"after!", 0).unwrap();
        assert_eq!(fs::read(m.path(name)).unwrap(), b"after!");
    }
    // What a group has changed may be taken back.
    fs::write(m.path("grouped"), b"before").unwrap();
    let group = ccfs_client::Group::begin(m.mnt(), None).unwrap();
    fs::write(m.path("grouped"), b"within").unwrap();
    std::thread::scope(|s| {
        s.spawn(|| assert_eq!(errno(root_of(&m).take("grouped", existing())), BUSY));
    });
    group.abort().unwrap();
    assert_eq!(fs::read(m.path("grouped")).unwrap(), b"before");
    drop(root);
    m.unmount();
}

/// Something is mounted on the file: it stays there.
#[test]
fn a_mount_point_stays_one() {
    if !can_mount("a_mount_point_stays_one") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let host = tempfile::NamedTempFile::new().unwrap();
    fs::write(host.path(), b"host").unwrap();
    fs::write(m.path("db"), b"under").unwrap();
    let db = m.path("db").to_str().unwrap().to_owned();
    run("mount", &["--bind", host.path().to_str().unwrap(), &db]);
    let root = root_of(&m);
    let taken = root.take("db", existing()).map(drop);
    let seen = fs::read(m.path("db")).unwrap();
    run("umount", &[&db]);
    assert_eq!((errno(taken), &seen[..]), (BUSY, &b"host"[..]));
    drop(root);
    m.unmount();
}

/// By a mount that is read-only nothing is taken: not even for reading, since a taken file is more than open.
#[test]
fn a_read_only_mount_gives_nothing() {
    if !can_mount("a_read_only_mount_gives_nothing") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("db"), b"content").unwrap();
    let other = tempfile::tempdir().unwrap();
    let other_path = other.path().to_str().unwrap();
    run("mount", &["--bind", m.mnt().to_str().unwrap(), other_path]);
    run("mount", &["-o", "remount,bind,ro", other_path]);
    let session = Session::begin(fs::File::open(m.mnt()).unwrap()).unwrap();
    let dir = session.dir(fs::File::open(other.path()).unwrap()).unwrap();
    let taken = [existing(), OpenOptions::reading()].map(|how| errno(dir.take("db", how)));
    drop((dir, session));
    run("umount", &[other_path]);
    assert_eq!(taken, [libc::EROFS; 2]);
    m.unmount();
}

/// Who appends by a descriptor from before the hold ended appends at the end.
#[test]
fn the_end_is_where_it_is() {
    if !can_mount("the_end_is_where_it_is") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let root = root_of(&m);
    let file = root.take("db", OpenOptions::new_file()).unwrap();
    let fd = descriptor(&file);
    file.write_at(&[1; 8192], 0).unwrap();
    fd.write_all_at(b"Q", 0).unwrap();
    let flags = fcntl_getfl(&fd).unwrap();
    fcntl_setfl(&fd, flags | OFlags::APPEND).unwrap();
    rustix::io::write(&fd, b"XYZ").unwrap();
    let now = fs::read(m.path("db")).unwrap();
    assert_eq!((now.len(), now[0], &now[8192..]), (8195, b'Q', &b"XYZ"[..]));
    assert!(now[1..8192].iter().all(|b| *b == 1));
    drop((fd, file, root));
    m.unmount();
}

/// In a damaged directory a name leads nowhere: that says nothing of the directory, nor of other names in it.
#[test]
fn a_directory_with_a_bad_name_is_there() {
    if !can_mount("a_directory_with_a_bad_name") || !gives_up("a_directory_with_a_bad_name") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), "f").unwrap();
    m.unmount();
    change_at_rest(&m.image(), |image| {
        let mut debugfs = std::process::Command::new("debugfs");
        let link = debugfs.args(["-w", "-R", "link <4000> d/bad"]).arg(image);
        assert!(link.output().unwrap().status.success());
    });
    m.mount();
    let session = session(&m);
    let root = session.root().unwrap();
    for used in [Used::Little, Used::Some, Used::Much] {
        let taken = root.take_dir_listed("d", used, Tell::Names).map(drop);
        assert_eq!(errno(taken), libc::EBUSY, "{used:?}");
    }
    assert_eq!(fs::read(m.path("d/f")).unwrap(), b"f");
    assert_eq!(errno(fs::metadata(m.path("d/bad"))), libc::EUCLEAN);
    // It is not at rest: its image is damaged still.
    drop((root, session));
}
