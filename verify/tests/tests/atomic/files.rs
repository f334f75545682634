//! Failure-atomic files through a mount (C12): what a crash, a close and the death of a process leave, and what the kernel's caches show.
use crate::common::{errno, on_a_thread, read, root, until, volume, write};
use ccfs_client as client;
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::power_cuts;
use ccfs_tests::sys::{self, Map};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};

const PAGE: usize = 4096;

fn with_atomic_files(test: &str, f: impl Fn(Volume)) {
    for transport in ["dev", "uring"] {
        let options = format!(",atomic_files=on,transport={transport}");
        if let Some(v) = volume(&format!("{test}-{transport}"), &options) {
            f(v);
        }
    }
}

fn open(v: &Volume, name: &str) -> File {
    client::open_atomic(v.path(name), true).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn map(f: &File, len: usize, writable: bool) -> Map {
    let fd = OwnedFd::from(f.try_clone().expect("dup"));
    Map::new(&fd, 0, len, writable).expect("mmap")
}

fn byte(map: &Map, at: usize) -> u8 {
    let mut byte = [0];
    map.load(at, &mut byte);
    byte[0]
}

fn crash(v: &mut Volume) {
    v.kill9();
    v.mount();
}

fn assert_is(v: &Volume, name: &str, bytes: &[u8]) {
    let seen = read(v, name);
    let short = |b: &[u8]| (b.len(), b.iter().take(8).copied().collect::<Vec<u8>>());
    assert!(
        seen == bytes,
        "{name}: {:?}, not {:?}",
        short(&seen),
        short(bytes)
    );
    let size = fs::metadata(v.path(name)).expect("stat").len();
    assert_eq!(size as usize, bytes.len(), "{name}");
}

#[test]
fn a_crash_leaves_the_last_synced_content() {
    with_atomic_files("crash_leaves_last_sync", |mut v| {
        write(&v, "f", &[1; 3 * PAGE]);
        let f = open(&v, "f");
        f.write_all_at(&[2; 2 * PAGE], 100).expect("write");
        f.set_len(2 * PAGE as u64).expect("truncate");
        assert_eq!(read(&v, "f").len(), 2 * PAGE, "everybody sees it at once");
        // Syncs of others, of everything and of the stream are none of this file.
        write(&v, "other", b"x");
        sys::syncfs(&OwnedFd::from(root(&v))).expect("syncfs");
        client::stream_sync(root(&v), 0).expect("streamsync");
        crash(&mut v);
        drop(f);
        assert_is(&v, "f", &[1; 3 * PAGE]);
        assert_is(&v, "other", b"x");
        let f = open(&v, "f");
        f.write_all_at(b"synced", 0).expect("write");
        f.sync_data().expect("fdatasync");
        f.write_all_at(b"UNSYNCED", 0).expect("write");
        crash(&mut v);
        drop(f);
        let mut expected = vec![1; 3 * PAGE];
        expected[..6].copy_from_slice(b"synced");
        assert_is(&v, "f", &expected);
        v.finish();
    });
}

#[test]
fn a_close_takes_unsynced_changes_back() {
    with_atomic_files("close_takes_back", |v| {
        write(&v, "f", &[1; 3 * PAGE]);
        let mut reader = File::open(v.path("f")).expect("open");
        let view = map(&reader, 3 * PAGE, false);
        let mut log = OpenOptions::new();
        let mut log = log.append(true).open(v.path("f")).expect("open");
        for round in 0..3u8 {
            let f = open(&v, "f");
            f.write_all_at(&[7 + round; PAGE + 1], 50).expect("write");
            assert_eq!(byte(&view, 60), 7 + round);
            if round == 0 {
                f.set_len(10).expect("truncate");
            } else {
                f.write_all_at(b"further out", 9 * PAGE as u64)
                    .expect("write");
            }
            let mtime = f.metadata().expect("stat").mtime_nsec();
            drop(f);
            until("the changes are gone", || {
                let now = fs::metadata(v.path("f")).expect("stat");
                now.len() == 3 * PAGE as u64 && now.mtime_nsec() != mtime
            });
            until("also from the page cache", || {
                read(&v, "f") == [1; 3 * PAGE]
            });
            assert_eq!((byte(&view, 60), byte(&view, 3 * PAGE - 1)), (1, 1));
        }
        // The end of file is where it was, also for who appends.
        log.write_all(b"end").expect("append");
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("read");
        assert_eq!((all.len(), &all[3 * PAGE..]), (3 * PAGE + 3, &b"end"[..]));
        drop((view, reader, log));
        v.finish();
    });
}

#[test]
fn stores_through_mappings() {
    with_atomic_files("stores_through_mappings", |mut v| {
        write(&v, "f", &[1; 4 * PAGE]);
        let f = open(&v, "f");
        let mapped = map(&f, 4 * PAGE, true);
        mapped.store(PAGE, &[2; PAGE]);
        mapped.sync().expect("msync");
        mapped.store(2 * PAGE, &[3; PAGE]);
        // A mapping is an open as well.
        drop(f);
        let mut expected = vec![1; 4 * PAGE];
        expected[PAGE..2 * PAGE].fill(2);
        assert_eq!(errno(client::open_atomic(v.path("f"), false)), libc::EBUSY);
        drop(mapped);
        until("the store is taken back", || read(&v, "f") == expected);
        let f = open(&v, "f");
        let mapped = map(&f, 4 * PAGE, true);
        mapped.store(0, &[4; 10]);
        client::syncv(&[&f]).expect("syncv");
        mapped.store(0, &[5; 10]);
        crash(&mut v);
        drop((f, mapped));
        expected[..10].fill(4);
        assert_is(&v, "f", &expected);
        v.finish();
    });
}

/// The open belongs to all who have inherited it; it ends with the last of them, however that dies.
#[test]
fn death_of_a_process() {
    with_atomic_files("death_of_a_process", |v| {
        write(&v, "f", b"synced");
        let f = open(&v, "f");
        let script = "printf 'unsynced and longer' >&0; echo >ready; exec sleep 600";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .current_dir(v.mnt())
            .stdin(Stdio::from(f.try_clone().expect("dup")))
            .spawn()
            .expect("sh");
        v.adopt(child.id());
        until("the child has written", || v.path("ready").exists());
        drop(f);
        assert_is(&v, "f", b"unsynced and longer");
        assert_eq!(errno(client::open_atomic(v.path("f"), false)), libc::EBUSY);
        sys::kill(child.id() as i32, libc::SIGKILL).expect("kill");
        child.wait().expect("wait");
        until("the changes are gone", || read(&v, "f") == b"synced");
        // It can be opened again, and what is synced stays.
        let f = open(&v, "f");
        f.write_all_at(b"SYNCED", 0).expect("write");
        f.sync_all().expect("fsync");
        drop(f);
        assert_is(&v, "f", b"SYNCED");
        v.finish();
    });
}

#[test]
fn several_files_together() {
    with_atomic_files("several_files_together", |mut v| {
        let names: Vec<String> = (0..40).map(|i| format!("f{i}")).collect();
        for round in 0..3u8 {
            let files: Vec<File> = names.iter().map(|n| open(&v, n)).collect();
            for f in &files {
                f.write_all_at(&[round; 3000], 0).expect("write");
            }
            client::syncv(&files).expect("syncv");
            for f in &files {
                f.write_all_at(&[99; 5000], 0).expect("write");
            }
            crash(&mut v);
            drop(files);
            for name in &names {
                assert_is(&v, name, &[round; 3000]);
            }
        }
        v.finish();
    });
}

/// A close and another open of the same file: the second one waits for the first one's end, and sees what was synced.
#[test]
fn closed_and_opened_again() {
    with_atomic_files("closed_and_opened_again", |v| {
        write(&v, "f", &[0; 3 * PAGE]);
        let mut refused = 0;
        for round in 1..60u8 {
            let f = open_again(&v, &mut refused);
            f.write_all_at(&[round; 2 * PAGE], 0).expect("write");
            f.sync_all().expect("fsync");
            let mapped = map(&f, 3 * PAGE, true);
            mapped.store(PAGE, &[200; PAGE]);
            f.write_all_at(&[201; PAGE], 5 * PAGE as u64)
                .expect("write");
            drop((mapped, f));
            let f = open_again(&v, &mut refused);
            let mut expected = vec![round; 2 * PAGE];
            expected.resize(3 * PAGE, 0);
            assert_is(&v, "f", &expected);
            drop(f);
        }
        assert!(refused < 60, "{refused} opens were refused");
        v.finish();
    });
}

/// Opens `f`, which has just been closed. The daemon waits a second for that, which may be too short on a machine that is very busy.
fn open_again(v: &Volume, refused: &mut u32) -> File {
    let mut file = None;
    until("it can be opened again", || {
        match client::open_atomic(v.path("f"), false) {
            Ok(f) => file = Some(f),
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EBUSY), "{e}");
                *refused += 1;
            }
        }
        file.is_some()
    });
    file.expect("it is open")
}

#[test]
fn refusals() {
    with_atomic_files("refusals", |v| {
        write(&v, "f", b"content");
        let f = open(&v, "f");
        let second = File::options().write(true).open(v.path("f")).expect("open");
        assert_eq!(errno(client::make_atomic(&second)), libc::EBUSY);
        assert_eq!(errno(client::make_atomic(&f)), libc::EBUSY);
        assert_eq!(
            errno(client::syncv(&[f.as_fd(), second.as_fd()])),
            libc::EINVAL
        );
        assert_eq!(errno(client::syncv(&[] as &[File])), libc::EINVAL);
        let many = vec![f.as_fd(); 257];
        assert_eq!(errno(client::syncv(&many)), libc::EINVAL);
        client::syncv(&many[1..]).expect("the same one often");
        // Who can only read must not decide what is taken back.
        write(&v, "g", b"x");
        let reader = File::open(v.path("g")).expect("open");
        assert_eq!(errno(client::make_atomic(&reader)), libc::EBADF);
        // What a group has changed is not built on.
        on_a_thread(|| {
            let at = root(&v);
            client::group_begin(&at, None).expect("begin");
            write(&v, "g", b"group");
            assert_eq!(errno(client::open_atomic(v.path("g"), false)), libc::EBUSY);
            client::group_abort(&at, 0).expect("abort");
        });
        assert_is(&v, "g", b"x");
        let g = open(&v, "g");
        g.write_all_at(b"y", 0).expect("write");
        // The content of plain opens joins.
        second.write_all_at(b"C", 0).expect("write");
        client::syncv(&[&f, &g]).expect("syncv");
        drop((f, g, second, reader));
        assert_is(&v, "f", b"Content");
        assert_is(&v, "g", b"y");
        v.finish();
    });
}

#[test]
fn without_the_option_nothing_is_failure_atomic() {
    let Some(v) = volume("no_atomic_files", "") else {
        return;
    };
    write(&v, "f", b"x");
    let refused = client::open_atomic(v.path("f"), false).expect_err("no such mount");
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
    assert!(refused.to_string().contains("atomic_files=on"), "{refused}");
    v.finish();
}

/// With opens and closes that cost a request everything else is as it was.
#[test]
fn ordinary_files_beside_them() {
    with_atomic_files("ordinary_files", |mut v| {
        write(&v, "f", b"a longer content");
        // O_TRUNC, O_EXCL, programs, names that are gone, files without one, status files.
        write(&v, "f", b"short");
        assert_is(&v, "f", b"short");
        let exclusive = File::options()
            .write(true)
            .create_new(true)
            .open(v.path("f"));
        assert_eq!(errno(exclusive), libc::EEXIST);
        let done = Command::new("cp")
            .arg("/bin/true")
            .arg(v.path("program"))
            .status();
        assert!(done.expect("cp").success());
        assert!(
            Command::new(v.path("program"))
                .status()
                .expect("run")
                .success()
        );
        let open = File::open(v.path("f")).expect("open");
        fs::remove_file(v.path("f")).expect("unlink");
        assert_eq!(open.metadata().expect("stat").nlink(), 0);
        drop(open);
        let unnamed = sys::open(v.mnt(), libc::O_TMPFILE | libc::O_RDWR, 0o600).expect("O_TMPFILE");
        let unnamed = File::from(unnamed);
        unnamed.write_all_at(b"data", 0).expect("write");
        client::make_atomic(&unnamed).expect("O_ATOMIC without a name");
        unnamed.write_all_at(b"DATA", 0).expect("write");
        unnamed.sync_all().expect("fsync");
        drop(unnamed);
        assert!(
            fs::read_to_string(v.path(".ccfs/status.json"))
                .expect("status")
                .contains("counters")
        );
        let list = fs::read_dir(v.mnt()).expect("list").count();
        assert!(list >= 2);
        v.remount();
        assert!(
            Command::new(v.path("program"))
                .status()
                .expect("run")
                .success()
        );
        v.finish();
    });
}

/// The daemon dies at random moments and at planted ones, under a program that writes and one that maps its files. The paper's 400 cuts:
/// CCFS_TEST_CUTS=400.
#[test]
fn power_cuts() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("power_cuts") {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse().ok());
    let cuts = number("CCFS_TEST_CUTS").unwrap_or(40);
    let sum = power_cuts::cuts(number("CCFS_TEST_SEED").unwrap_or(2015), cuts);
    println!("{sum:?}");
    assert!(sum.cuts == cuts && sum.rounds >= 2 * cuts, "{sum:?}");
}

/// Where opens are seen they are refused as ext4 refuses them.
#[test]
fn opens_of_locked_files() {
    with_atomic_files("opens_of_locked_files", |v| {
        write(&v, "f", b"first");
        let chattr = |how: &str| {
            let done = Command::new("chattr").arg(how).arg(v.path("f")).status();
            assert!(done.expect("chattr").success(), "{how}");
        };
        let opened = |flags: i32| sys::open(v.path("f"), flags, 0).map(drop);
        let all = [
            libc::O_RDONLY,
            libc::O_WRONLY,
            libc::O_RDWR,
            libc::O_WRONLY | libc::O_APPEND,
            libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC,
        ];
        let no = Err(libc::EPERM);
        chattr("+a");
        assert_eq!(all.map(opened), [Ok(()), no, no, Ok(()), no]);
        assert_eq!(errno(client::open_atomic(v.path("f"), true)), libc::EPERM);
        let log = OpenOptions::new().append(true).open(v.path("f"));
        let log = log.expect("open");
        assert_eq!(errno(client::make_atomic(log.as_fd())), libc::EPERM);
        (&log).write_all(b";second").expect("append");
        chattr("-a");
        chattr("+i");
        assert_eq!(all.map(opened), [Ok(()), no, no, no, no]);
        chattr("-i");
        assert_is(&v, "f", b"first;second");
        // One user has it open O_ATOMIC when it becomes append-only: nothing of it, nor of what comes after, goes with his close.
        let mine = open(&v, "f");
        mine.write_all_at(b"F", 0).expect("write");
        chattr("+a");
        (&log).write_all(b";third").expect("append");
        drop((mine, log));
        assert_is(&v, "f", b"First;second;third");
        chattr("-a");
        v.finish();
    });
}
