//! Sessions of programs that break the rules, stop, or die: nobody else waits or sees anything of it.
mod common;
use ccfs_client::direct::layout::{
    ALIGN, ASKED, BY_CALL, Entry, HANDLES, HEAD, HEADS_MAX, MEMORY, RING_BYTES, SetAttr, cost, op,
    set, word,
};
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::{OpenOptions, Session};
use ccfs_fuse::FsType;
use ccfs_testkit::Rng;
use common::direct::PATIENCE;
use common::raw::{Raw, begin, call};
use common::{TestMount, can_mount};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

#[test]
fn memory_that_is_not_as_it_should_be() {
    if !can_mount("memory_that_is_not_as_it_should_be") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    let make = |name: &str, size: usize, seals: SealFlags| {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, size as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    };
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
    for (name, size, seals) in [
        ("ccfs-direct", MEMORY, SealFlags::SEAL | SealFlags::GROW),
        ("ccfs-direct", MEMORY, SealFlags::SHRINK | SealFlags::GROW),
        ("ccfs-direct", MEMORY - 4096, all),
        ("ccfs-direct", MEMORY + 4096, all),
        ("other", MEMORY, all),
    ] {
        assert_eq!(begin(&dir, make(name, size, seals)), Err(libc::EINVAL));
    }
    assert_eq!(begin(&dir, &dir), Err(libc::EINVAL));
    let file = File::create(m.path("file")).unwrap();
    assert_eq!(begin(&dir, &file), Err(libc::EINVAL));
    assert_eq!(
        begin(&file, make("ccfs-direct", MEMORY, all)),
        Err(libc::ENOTDIR)
    );
    assert_eq!(call(&dir, 1, 0), Err(libc::EBADF));
    let id = begin(&dir, make("ccfs-direct", MEMORY, all)).unwrap();
    assert_eq!(call(&dir, id, 0), Err(libc::EINVAL));
    assert_eq!(call(&dir, id, 7), Err(libc::EINVAL));
    assert_eq!(call(&dir, id, u64::MAX - 63), Err(libc::EINVAL));
    assert_eq!(call(&dir, id ^ 1, 0), Err(libc::EBADF));
    drop((dir, file));
    m.unmount();
}

/// What a hostile program puts into its ring: entries of any kind, half of them plausible.
fn garbage(rng: &mut Rng, thread: u32) -> (Entry, Vec<u8>) {
    let names: [&[u8]; 8] = [b"a", b"b", b"..", b".", b"a/b", b"", b"x\0y", &[b'n'; 300]];
    let attributes = SetAttr {
        mask: [rng.below(128), rng.draw()][rng.below(2) as usize] as u32,
        mode: rng.draw() as u32,
        uid: rng.draw() as u32,
        gid: rng.below(3) as u32,
        atime: rng.draw() as i64,
        mtime: rng.draw() as i64,
        atime_ns: rng.below(2_000_000_000) as u32,
        mtime_ns: rng.draw() as u32,
    };
    let bytes = match rng.below(5) {
        0 => vec![7; rng.below(5000) as usize],
        1 => attributes.as_bytes()[..[40, rng.below(41)][rng.below(2) as usize] as usize].to_vec(),
        2 => [names[rng.below(8) as usize], names[rng.below(8) as usize]].concat(),
        _ => names[rng.below(8) as usize].to_vec(),
    };
    let whole = (HEAD + bytes.len().next_multiple_of(8) + 200).next_multiple_of(ALIGN);
    let odd = |rng: &mut Rng, n: u64| match rng.below(20) {
        0 => rng.draw(),
        _ => n,
    };
    let entry = Entry {
        len: odd(rng, whole as u64) as u32,
        op: rng.below(28) as u16,
        flags: [0, ASKED, BY_CALL, ASKED | BY_CALL][rng.below(4) as usize],
        thread: odd(rng, thread.into()) as u32,
        h: [rng.below(4), rng.below(4), rng.draw(), u64::MAX][rng.below(4) as usize] as u32,
        h2: [rng.below(4), rng.below(4), rng.draw(), u64::MAX][rng.below(4) as usize] as u32,
        bytes: odd(rng, bytes.len() as u64) as u32,
        a: [0, rng.below(100_000), rng.draw()][rng.below(3) as usize],
        time: [0, odd(rng, 1_800_000_000_000_000_000)][rng.below(2) as usize],
        b: [rng.below(3), rng.below(0o10000), rng.draw()][rng.below(3) as usize],
        ..Entry::default()
    };
    (entry, bytes)
}

/// One session of a hostile program, which ends as soon as the daemon has enough of it.
fn attack(dir: &File, rng: &mut Rng, deadline: Instant) {
    let (memory, fd) = Memory::make().unwrap();
    let Ok(session) = begin(dir, &fd) else {
        return;
    };
    // The thread makes itself known, as the protocol wants it.
    let entry = Entry {
        len: 64,
        op: op::THREAD,
        flags: ASKED | BY_CALL,
        ..Entry::default()
    };
    memory.copy_in(0, 0, entry.as_bytes());
    memory.u64(word::TAIL).store(64, Ordering::SeqCst);
    let Ok(thread) = call(dir, session, 0) else {
        return;
    };
    let mut at = 64u64;
    // It makes a directory, so that there is something to hold.
    let entry = Entry {
        len: 256,
        op: op::MKDIR,
        flags: ASKED | BY_CALL,
        thread,
        h: u32::MAX,
        h2: 1,
        bytes: 8,
        b: 0o777,
        ..Entry::default()
    };
    memory.copy_in(at, 0, entry.as_bytes());
    memory.copy_in(at, HEAD, format!("{:08x}", rng.draw() as u32).as_bytes());
    memory.u64(word::TAIL).store(at + 256, Ordering::SeqCst);
    call(dir, session, at).unwrap();
    at += 256;
    while Instant::now() < deadline && memory.u32(word::ENDED).load(Ordering::SeqCst) == 0 {
        for _ in 0..rng.below(20) + 1 {
            let (entry, bytes) = garbage(rng, thread);
            let len = (HEAD + bytes.len().next_multiple_of(8) + 200).next_multiple_of(ALIGN) as u64;
            let left = RING_BYTES as u64 - at % RING_BYTES as u64;
            if len > left {
                let pad = Entry {
                    len: left as u32,
                    ..Entry::default()
                };
                memory.copy_in(at, 0, pad.as_bytes());
                at += left;
            }
            memory.copy_in(at, 0, entry.as_bytes());
            memory.copy_in(at, HEAD, &bytes);
            at += len;
        }
        let tail = match rng.below(50) {
            0 => rng.draw(),
            1 => at - 64,
            _ => at,
        };
        memory.u64(word::TAIL).store(tail, Ordering::SeqCst);
        for at in [word::HEAD, word::SPENT, word::LIMIT] {
            if rng.below(10) == 0 {
                memory.u64(at).store(rng.draw(), Ordering::SeqCst);
            }
        }
        if rng.below(4) == 0 {
            let _ = call(dir, session, rng.below(at / 64 + 1) * 64);
        }
        let end = Instant::now() + Duration::from_millis(5);
        while memory.u64(word::HEAD).load(Ordering::SeqCst) < at && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

/// Several hostile programs, each of whose memory is also changed under the daemon's eyes; others go on as if they were not there.
#[test]
fn hostile_programs() {
    if !can_mount("hostile_programs") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let seed = std::env::var("CCFS_TEST_SEED").map_or(20271, |s| s.parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(4);
    let (mnt, stop) = (m.mnt(), AtomicBool::new(false));
    let mut rounds = 0;
    std::thread::scope(|scope| {
        for attacker in 0..3u64 {
            let mnt = &mnt;
            scope.spawn(move || {
                let mut rng = Rng::new(seed + attacker);
                let dir = File::open(mnt).unwrap();
                while Instant::now() < deadline {
                    attack(&dir, &mut rng, deadline);
                }
            });
        }
        // A program that keeps the rules, and one that knows nothing of sessions.
        let session = Session::begin(File::open(&mnt).unwrap()).unwrap();
        let mine = session.root().unwrap().make_dir("mine", 0o777).unwrap();
        while Instant::now() < deadline {
            let (name, begun) = (format!("f{rounds}"), Instant::now());
            let file = mine.open(&name, OpenOptions::new_file()).unwrap();
            file.write_at(name.as_bytes(), 0).unwrap();
            fs::write(mnt.join("other"), &name).unwrap();
            assert_eq!(fs::read(mnt.join("other")).unwrap(), name.as_bytes());
            assert_eq!(
                fs::read(mnt.join("mine").join(&name)).unwrap(),
                name.as_bytes()
            );
            for entry in fs::read_dir(&mnt).unwrap() {
                let _ = entry.unwrap().metadata();
            }
            assert!(begun.elapsed() < PATIENCE, "seed {seed}");
            rounds += 1;
            // The volume is small.
            mine.remove_file(&name).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert!(rounds > 5, "{rounds} rounds, seed {seed}");
    m.unmount();
    let image = m.image();
    let fsck = Command::new("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .unwrap();
    assert!(fsck.status.success(), "seed {seed}: {fsck:?}");
}

/// What one session was promised another cannot use up: who posts more than the word `LIMIT` says is ended before that is carried out.
#[test]
fn more_than_may_be_posted() {
    if !can_mount("more_than_may_be_posted") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut raw = Raw::begin(&m);
    let memory = &raw.memory;
    let limit = memory.u64(word::LIMIT).load(Ordering::SeqCst);
    assert!(limit > 0, "it may post");
    // Twice as many files as it may post.
    let most = limit / cost(op::CREATE, 0);
    for n in 0..2 * most as u32 {
        let entry = Entry {
            op: op::CREATE,
            h: 1,
            h2: 2 + n,
            b: 0o666,
            ..Entry::default()
        };
        raw.put(entry, &format!("{n:08}"), 128);
    }
    raw.publish();
    let files = fs::read_dir(m.path("made")).unwrap().count();
    assert!(files as u64 <= most, "{files} files, at most {most}");
    let ended = raw.memory.u32(word::ENDED).load(Ordering::SeqCst);
    assert_eq!(ended as i32, libc::EINVAL);
    drop(raw);
    m.unmount();
}

/// Attributes that make no sense are refused, each by itself, and what makes sense is done after them.
#[test]
fn attributes_that_make_no_sense() {
    if !can_mount("attributes_that_make_no_sense") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut raw = Raw::begin(&m);
    assert_eq!(raw.ask(op::CREATE, (1, 2), (0, 0o666), b"f"), 0);
    let good = SetAttr {
        mask: set::MODE | set::UID | set::MTIME,
        mode: 0o600,
        uid: 5,
        ..SetAttr::default()
    };
    let mut ask = |set: SetAttr| {
        let bytes = set.as_bytes();
        let of_file = raw.ask(op::SETATTR, (2, 0), (0, 0), bytes);
        assert_eq!(raw.ask(op::SETATTR, (1, 0), (0, 0), bytes), of_file);
        of_file
    };
    let gid = SetAttr {
        mask: set::GID,
        gid: u32::MAX,
        ..good
    };
    let far = SetAttr {
        mtime: i64::MAX,
        atime: i64::MIN,
        mode: u32::MAX,
        ..good
    };
    assert_eq!((ask(good), ask(far), ask(gid)), (0, 0, libc::EINVAL));
    for mask in [128, u32::MAX, 1 << 31] {
        assert_eq!(ask(SetAttr { mask, ..good }), libc::EINVAL);
    }
    let (uid, mtime_ns) = (u32::MAX, 1_000_000_000);
    assert_eq!(ask(SetAttr { uid, ..good }), libc::EINVAL);
    assert_eq!(ask(SetAttr { mtime_ns, ..good }), libc::EINVAL);
    for len in [0, 1, 39, 41, 47] {
        let bytes = vec![0; len];
        assert_eq!(raw.ask(op::SETATTR, (2, 0), (0, 0), &bytes), libc::EINVAL);
    }
    let stat = fs::metadata(m.path("made/f")).unwrap();
    assert_eq!((stat.mode() & 0o7777, stat.uid()), (0o7777, 5));
    drop(raw);
    m.unmount();
}

/// The same of names.
#[test]
fn names_that_make_no_sense() {
    if !can_mount("names_that_make_no_sense") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut raw = Raw::begin(&m);
    assert_eq!(raw.ask(op::CREATE, (1, 2), (0, 0o666), b"f"), 0);
    assert_eq!(raw.ask(op::SYMLINK, (1, 0), (0, 1), b"lwhere"), 0);
    let long = [b"f".to_vec(), vec![b'x'; 256]].concat();
    let names: [(&[u8], u64); 9] = [
        (b"f", 0),
        (b"fa/b", 1),
        (b"f.", 1),
        (b"f..", 1),
        (b"f", 1),
        (b"fx", 3),
        (b"fx", u64::MAX),
        (b"fx\0y", 1),
        (&long, 1),
    ];
    for (bytes, first) in names {
        for op in [op::RENAME, op::LINK] {
            assert_ne!(raw.ask(op, (1, 1), (0, first), bytes), 0, "{bytes:?}");
        }
    }
    let much = vec![b's'; 5000];
    let links: [(&[u8], u64); 7] = [
        (b"lx", 0),
        (b"s", 1),
        (b"s", 2),
        (b"a/bx", 3),
        (b"sx\0y", 1),
        (b"lx", 1),
        (&much, 1),
    ];
    for (bytes, first) in links {
        assert_ne!(raw.ask(op::SYMLINK, (1, 0), (0, first), bytes), 0);
    }
    assert_eq!(raw.ask(op::RENAME, (1, 1), (2, 1), b"fg"), libc::EINVAL);
    for name in [&b"f"[..], b"none", b".", b"..", b"", b"l/", b"a/b"] {
        assert_ne!(raw.ask(op::READLINK, (1, 0), (0, 0), name), 0, "{name:?}");
    }
    // A file's handle is none of a directory, and there are no others.
    for op in [op::LINK, op::SYMLINK, op::READLINK, op::RENAME] {
        for handles in [(2, 2), (9, 1), (u32::MAX, u32::MAX)] {
            assert_ne!(raw.ask(op, handles, (0, 1), b"fg"), 0);
        }
    }
    assert_eq!(raw.ask(op::READLINK, (1, 0), (0, 0), b"l"), 0);
    assert_eq!(raw.ask(op::LINK, (1, 1), (0, 1), b"fg"), 0);
    let target = fs::read_link(m.path("made/l")).unwrap();
    assert_eq!(target.to_str(), Some("where"));
    assert_eq!(fs::read_dir(m.path("made")).unwrap().count(), 3);
    drop(raw);
    m.unmount();
}

/// Files that are asked for in advance, and posted opens, of names that are none: who posts an open that fails has ended his session.
#[test]
fn heads_that_make_no_sense() {
    if !can_mount("heads_that_make_no_sense") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut raw = Raw::begin(&m);
    assert_eq!(raw.ask(op::CREATE, (1, 2), (0, 0o666), b"f"), 0);
    let long = vec![b'x'; 256];
    let many = vec![b"f".to_vec(); HEADS_MAX + 1].join(&0);
    let names: [&[u8]; 9] = [
        b"", b".", b"..", b"a/b", b"f\0", b"\0f", b"f\0..", &long, &many,
    ];
    for bytes in names {
        assert_ne!(raw.ask(op::HEADS, (1, 0), (0, 0), bytes), 0, "{bytes:?}");
    }
    assert_eq!(raw.ask(op::TRUNCATE, (2, 0), (9000, 0), b""), 0);
    // There is no room for so much; no such name.
    assert_eq!(raw.ask(op::HEADS, (1, 0), (0, 0), b"f\0none"), 0);
    assert_eq!(raw.ask(op::HEADS, (1, 0), (u64::MAX, u64::MAX), b"none"), 0);
    // There is nothing in a file; other handles are none.
    assert_eq!(raw.ask(op::HEADS, (2, 0), (0, 0), b"f"), 0);
    for handle in [0, 9, u32::MAX] {
        assert_ne!(raw.ask(op::HEADS, (handle, 0), (0, 0), b"f"), 0, "{handle}");
    }
    drop(raw);
    let opens = [("none", 3), ("..", 3), ("f", 0), ("f", 1), ("f", HANDLES)];
    for (name, handle) in opens {
        fs::remove_dir_all(m.path("made")).unwrap();
        let mut raw = Raw::begin(&m);
        assert_eq!(raw.ask(op::CREATE, (1, 2), (0, 0o666), b"f"), 0);
        let open = Entry {
            op: op::LOOKUP,
            h: 1,
            h2: handle,
            a: 1,
            b: 1,
            ..Entry::default()
        };
        raw.put(open, name, 128);
        raw.publish();
        let begun = Instant::now();
        while raw.memory.u32(word::ENDED).load(Ordering::SeqCst) == 0 {
            assert!(begun.elapsed() < PATIENCE, "{name:?}");
            std::thread::yield_now();
        }
    }
    m.unmount();
}

/// What was accepted and cannot be done: syncs of its stream say so once, whatever their kind, and so does one of the volume; others' do not.
#[test]
fn who_syncs_is_told() {
    if !can_mount("who_syncs_is_told") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let set = |stream| ccfs_client::set_stream_at(m.mnt(), stream, None).unwrap();
    let new = || ccfs_client::new_stream_at(m.mnt(), 0).unwrap();
    let (other, home) = (new(), new());
    let written = |flags| {
        let mut how = File::options();
        let file = how.write(true).create(true).custom_flags(flags);
        std::io::Write::write(&mut file.open(m.path("file"))?, b"w").map(drop)
    };
    written(0).unwrap();
    let file = File::open(m.path("file")).unwrap();
    let ways: [(&str, &dyn Fn() -> std::io::Result<()>); 6] = [
        ("fsync", &|| file.sync_all()),
        ("fdatasync", &|| file.sync_data()),
        ("a directory's", &|| File::open(m.mnt())?.sync_all()),
        ("O_SYNC", &|| written(libc::O_SYNC)),
        ("streamsync", &|| ccfs_client::stream_sync_at(m.mnt(), 0)),
        ("another's", &|| {
            set(other);
            let synced = ccfs_client::stream_sync_at(m.mnt(), home);
            set(home);
            synced
        }),
    ];
    let syncfs = || rustix::fs::syncfs(&file);
    let is_eio =
        |done: std::io::Result<()>| done.map_err(|e| e.raw_os_error()) == Err(Some(libc::EIO));
    for (n, (way, sync)) in ways.into_iter().enumerate() {
        set(home);
        let mut raw = Raw::begin(&m);
        raw.put(
            Entry {
                op: op::UNLINK,
                h: 1,
                ..Entry::default()
            },
            "absent",
            128,
        );
        raw.publish();
        let begun = Instant::now();
        while raw.memory.u32(word::ENDED).load(Ordering::SeqCst) == 0 {
            assert!(begun.elapsed() < PATIENCE, "{way}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // What it had is gone with it, and what it has not done is told all the same.
        drop(raw);
        set(other);
        file.sync_all().unwrap();
        ccfs_client::stream_sync_at(m.mnt(), 0).unwrap();
        let of_volume = || {
            assert!(is_eio(syncfs().map_err(Into::into)), "{way}: syncfs");
            syncfs().unwrap();
        };
        let of_stream = || {
            set(home);
            assert!(is_eio(sync()), "{way}");
            sync().unwrap();
        };
        match n % 2 {
            0 => (of_volume(), of_stream()),
            _ => (of_stream(), of_volume()),
        };
        syncfs().unwrap();
        fs::remove_dir(m.path("made")).unwrap();
    }
    set(0);
    drop(file);
    m.unmount();
}

/// Not a test: the program that the next one kills. It says what it has posted.
#[test]
fn child() {
    let Ok(dir) = std::env::var("CCFS_DIRECT_CHILD") else {
        return;
    };
    let session = Session::begin(File::open(&dir).unwrap()).unwrap();
    assert!(session.is_direct(), "{:?}", session.why_not());
    let tree = session.root().unwrap().make_dir("tree", 0o777).unwrap();
    for n in 0.. {
        let file = tree.open(format!("f{n}"), OpenOptions::new_file()).unwrap();
        for part in 0..3u8 {
            file.append(&[part; 700]).unwrap();
        }
        drop(file);
        println!("posted {n}");
    }
}

/// What a program has posted is carried out, wherever it dies, and its session leaves nothing behind.
#[test]
fn programs_that_are_killed() {
    if !can_mount("programs_that_are_killed") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mut rng = Rng::new(5);
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("CCFS_DIRECT_CHILD", m.mnt())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let least = 20 + rng.below(800);
        let mut last = None;
        for line in lines.by_ref() {
            let line = line.unwrap();
            last = line
                .strip_prefix("posted ")
                .map(|n| n.parse().unwrap())
                .or(last);
            if last >= Some(least) {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            last = line
                .strip_prefix("posted ")
                .map(|n| n.parse().unwrap())
                .or(last);
        }
        let last = last.expect("it posted something");
        for n in 0..=last {
            let bytes = fs::read(m.path(&format!("tree/f{n}"))).unwrap();
            assert_eq!(bytes.len(), 2100, "round {round}: file {n} of {last}");
            assert!(
                bytes
                    .chunks(700)
                    .enumerate()
                    .all(|(at, p)| p.iter().all(|b| usize::from(*b) == at))
            );
        }
        fs::remove_dir_all(m.path("tree")).unwrap();
        let status = || {
            let text = fs::read_to_string(m.path(".ccfs/status.json")).unwrap();
            let status: serde_json::Value = serde_json::from_str(&text).unwrap();
            status["direct"].clone()
        };
        let end = Instant::now() + PATIENCE;
        while status()["sessions"] != 0 {
            assert!(Instant::now() < end, "{}", status());
            std::thread::sleep(Duration::from_millis(20));
        }
        let now = status();
        for name in ["held", "handles", "names", "promised_blocks"] {
            assert_eq!(now[name], 0, "{name}");
        }
    }
    m.unmount();
}
