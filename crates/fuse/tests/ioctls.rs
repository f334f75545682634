//! ioctls of other people's programs on a mounted volume.
mod common;
use ccfs_client::abi::{self, IOC_STATUS, StatusArg};
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn inode_flags() {
    if !can_mount("inode_flags") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let path = m.path("f");
    let name = path.to_str().unwrap();
    fs::write(&path, b"x").unwrap();
    let before = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    run("chattr", &["+i", name]);
    // The kernel had the old ctime in its cache.
    let after = fs::metadata(&path).unwrap();
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    assert!(run("lsattr", &[name]).contains('i'));
    assert!(
        OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut f| std::io::Write::write_all(&mut f, b"y"))
            .is_err()
    );
    assert!(fs::remove_file(&path).is_err());
    run("chattr", &["-i", name]);
    fs::write(&path, b"yy").unwrap();
    run("chattr", &["+d", m.mnt().to_str().unwrap()]);
    m.unmount();
    m.mount();
    assert!(run("lsattr", &["-d", m.mnt().to_str().unwrap()]).contains('d'));
    m.unmount();
}

#[test]
fn trim_and_label() {
    if !can_mount("trim_and_label") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("f"), vec![1; 1 << 20]).unwrap();
    run("sync", &["-f", m.path("f").to_str().unwrap()]);
    let said = run("fstrim", &["-v", m.mnt().to_str().unwrap()]);
    assert!(said.contains("bytes") || said.contains("iB"), "{said}");
    assert_eq!(fs::read(m.path("f")).unwrap(), vec![1; 1 << 20]);
    assert_eq!(
        common::label(&File::open(m.mnt()).unwrap()).unwrap(),
        b"label"
    );
    assert_eq!(
        common::unknown_ioctl(&File::open(m.mnt()).unwrap()).raw_os_error(),
        Some(libc::ENOTTY)
    );
    m.unmount();
}

/// FS_IOC_SHUTDOWN is a power cut: what was synced survives, and the volume answers EIO until it is mounted again.
#[test]
fn shutdown() {
    if !can_mount("shutdown") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("synced"), b"s").unwrap();
    File::open(m.path("synced")).unwrap().sync_all().unwrap();
    fs::write(m.path("lost"), b"l").unwrap();
    let dir = File::open(m.mnt()).unwrap();
    common::shut_down(&dir).unwrap();
    assert!(fs::write(m.path("later"), b"x").is_err());
    assert!(dir.sync_all().is_err());
    drop(dir);
    m.crash();
    m.mount();
    assert_eq!(fs::read(m.path("synced")).unwrap(), b"s");
    assert!(!m.path("later").exists());
    m.unmount();
}

/// What a call by a thread of another user gives; 0 is success.
fn as_user(uid: u32, call: impl FnOnce() -> std::io::Result<()> + Send) -> i32 {
    std::thread::scope(|scope| {
        let user = scope.spawn(move || {
            // This thread only, for good.
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid)).unwrap();
            call().map_or_else(|e| e.raw_os_error().unwrap(), |()| 0)
        });
        user.join().unwrap()
    })
}

/// The kernel checks rights for the native number of SETFLAGS only.
#[test]
fn flags_of_foreign_files_stay() {
    const SETFLAGS: [u32; 2] = [0x4004_6602, 0x4008_6602];
    const NODUMP: u8 = 0x40;
    const IMMUTABLE: u8 = 0x10;
    if !can_mount("flags_of_foreign_files_stay") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("f"), b"x").unwrap();
    let file = File::open(m.path("f")).unwrap();
    let set = |number: u32, flags: u8| {
        let mut arg = vec![0; (number >> 16 & 0x3fff) as usize];
        common::any_ioctl(&file, 0x8004_6601, &mut arg[..4])?;
        arg[0] = arg[0] & !(NODUMP | IMMUTABLE) | flags;
        common::any_ioctl(&file, number, &mut arg)
    };
    for number in SETFLAGS {
        assert_eq!(
            as_user(1234, || set(number, NODUMP)),
            libc::EPERM,
            "{number:x}"
        );
    }
    std::os::unix::fs::chown(m.path("f"), Some(1234), None).unwrap();
    for number in SETFLAGS {
        assert_eq!(as_user(1234, || set(number, NODUMP)), 0, "{number:x}");
        assert_eq!(as_user(1234, || set(number, IMMUTABLE)), libc::EPERM);
    }
    set(SETFLAGS[0], IMMUTABLE).unwrap();
    set(SETFLAGS[1], 0).unwrap();
    drop(file);
    m.unmount();
}

/// Callers of FS_IOC_GETVERSION have an int, whatever the number says.
#[test]
fn getversion_writes_four_bytes() {
    if !can_mount("getversion_writes_four_bytes") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    fs::write(m.path("f"), b"x").unwrap();
    let file = File::open(m.path("f")).unwrap();
    let mut native = [0xaa; 8];
    common::any_ioctl(&file, 0x8008_7601, &mut native).unwrap();
    assert_eq!(native[4..], [0xaa; 4]);
    let mut compat = [0xaa; 4];
    common::any_ioctl(&file, 0x8004_7601, &mut compat).unwrap();
    assert_eq!(native[..4], compat);
    drop(file);
    m.unmount();
}

#[test]
fn status_texts_belong_to_who_asked() {
    if !can_mount("status_texts_belong_to_who_asked") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    let mut arg = StatusArg::ask(0, 0);
    common::any_ioctl(&dir, IOC_STATUS, arg.as_mut_bytes()).unwrap();
    let snapshot = StatusArg::read_from_bytes(arg.as_bytes()).unwrap().snapshot;
    let again = || common::any_ioctl(&dir, IOC_STATUS, StatusArg::ask(snapshot, 0).as_mut_bytes());
    again().unwrap();
    assert_eq!(as_user(1234, again), libc::ESTALE);
    drop(dir);
    m.unmount();
}

/// Root of a container's user namespace is not root of the machine, even where it has root's number.
#[test]
fn shutdown_needs_root_of_the_machine() {
    if !can_mount("shutdown_needs_root_of_the_machine") {
        return;
    }
    let script = "import fcntl, os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY)\n\
        for number, size in ((0x8004587d, 4), (0xc0185879, 24)):\n    \
            try: fcntl.ioctl(fd, number, bytes(size))\n    \
            except PermissionError: print('refused')\n";
    let mut m = TestMount::new(FsType::Fuseblk);
    for who in [
        &["unshare", "--user", "--map-root-user"][..],
        &["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"],
    ] {
        let probe = Command::new(who[0]).args(&who[1..]).arg("true").status();
        if !probe.is_ok_and(|status| status.success()) {
            println!("skipped: {who:?} does not work here");
            continue;
        }
        let mut command = Command::new(who[0]);
        command.args(&who[1..]).args(["python3", "-c", script]);
        let out = command.arg(m.mnt()).output().unwrap();
        assert_eq!(out.stdout, b"refused\nrefused\n", "{who:?}: {out:?}");
    }
    fs::write(m.path("f"), b"it goes on").unwrap();
    m.unmount();
}

/// A call of ccfs's own.
struct Own {
    number: u32,
    /// An argument that is one.
    arg: Vec<u8>,
    /// What the call gives with it where nothing is open or grouped; 0 is success.
    gives: i32,
    /// What is no argument: (offset in the structure, bytes that stand there then).
    wrong: Vec<(usize, Vec<u8>)>,
}

fn own<T: FromZeros + IntoBytes + Immutable>(
    number: u32,
    gives: i32,
    fill: impl Fn(&mut T),
    wrong: &[(usize, &[u8])],
) -> Own {
    let mut arg = T::new_zeroed();
    fill(&mut arg);
    let mut arg = arg.as_bytes().to_vec();
    arg[..4].copy_from_slice(&abi::VERSION.to_ne_bytes());
    let wrong = wrong.iter().map(|(at, bytes)| (*at, bytes.to_vec()));
    Own {
        number,
        arg,
        gives,
        wrong: wrong.collect(),
    }
}

/// Where a field stands, and what shall stand there.
macro_rules! at {
    ($type:ident, $field:ident, $value:expr) => {
        (
            std::mem::offset_of!(abi::$type, $field),
            &$value.to_ne_bytes()[..],
        )
    };
}

fn own_calls() -> Vec<Own> {
    let parts = [
        calls_of_streams(),
        calls_of_groups(),
        calls_of_volumes_and_files(),
    ];
    parts.into_iter().flatten().collect()
}

fn calls_of_streams() -> Vec<Own> {
    use abi::*;
    let pid = std::process::id();
    vec![
        own::<StreamArg>(
            IOC_SET_STREAM,
            0,
            |a| a.flags = STREAM_KEEP_FLAGS,
            &[
                at!(StreamArg, flags, 2u32),
                at!(StreamArg, flags, 1u32 << 29),
                // The policy's stream has no flags.
                at!(StreamArg, flags, STREAM_IGNORE_FSYNC),
            ],
        ),
        own::<StreamArg>(IOC_GET_STREAM, 0, |_| {}, &[]),
        own::<StreamArg>(
            IOC_NEW_STREAM,
            0,
            |_| {},
            &[
                at!(StreamArg, flags, 2u32),
                at!(StreamArg, flags, STREAM_KEEP_FLAGS),
                at!(StreamArg, flags, STREAM_CHOSEN),
            ],
        ),
        own::<StreamArg>(
            IOC_STREAM_SYNC,
            0,
            |_| {},
            &[
                at!(StreamArg, flags, STREAM_IGNORE_FSYNC),
                at!(StreamArg, flags, STREAM_KEEP_FLAGS),
            ],
        ),
        own::<ProcessArg>(
            IOC_GET_STREAM_OF_PROCESS,
            0,
            |a| a.pid = pid,
            &[at!(ProcessArg, pid, 0u32), at!(ProcessArg, reserved, 1u32)],
        ),
    ]
}

fn calls_of_groups() -> Vec<Own> {
    use abi::*;
    vec![
        own::<GroupArg>(
            IOC_GROUP_BEGIN,
            0,
            |_| {},
            &[at!(GroupArg, flags, GROUP_ORDERED)],
        ),
        own::<TraceArg>(
            IOC_GROUP_CHANGES,
            0,
            |_| {},
            &[at!(TraceArg, reserved, 1u64 << 63)],
        ),
        own::<GroupArg>(
            IOC_GROUP_ENTER,
            libc::EBUSY,
            |a| a.handle = 7,
            &[
                at!(GroupArg, flags, 1u32),
                at!(GroupArg, timeout_ms, 1u64),
                at!(GroupArg, handle, 0u64),
            ],
        ),
        own::<GroupArg>(
            IOC_GROUP_COMMIT,
            0,
            |a| a.flags = GROUP_ORDERED,
            &[at!(GroupArg, flags, 2u32), at!(GroupArg, timeout_ms, 1u64)],
        ),
        own::<GroupArg>(
            IOC_GROUP_ABORT,
            libc::ENOENT,
            |_| {},
            &[
                at!(GroupArg, flags, GROUP_ORDERED),
                at!(GroupArg, timeout_ms, 1u64),
            ],
        ),
    ]
}

fn calls_of_volumes_and_files() -> Vec<Own> {
    use abi::*;
    vec![
        own::<StatusArg>(IOC_STATUS, 0, |_| {}, &[]),
        own::<TraceArg>(IOC_TRACE, 0, |_| {}, &[at!(TraceArg, reserved, 1u64)]),
        own::<ScrubArg>(
            IOC_SCRUB,
            0,
            |a| a.blocks = 1,
            &[at!(ScrubArg, reserved, 1u32)],
        ),
        own::<ResizeArg>(
            IOC_RESIZE,
            0,
            |_| {},
            &[
                at!(ResizeArg, length, 1u32),
                at!(ResizeArg, bytes, 4096u64),
                at!(ResizeArg, bytes, u64::MAX),
            ],
        ),
        own::<FreezeArg>(
            IOC_FREEZE,
            0,
            |a| a.milliseconds = 1,
            &[
                at!(FreezeArg, reserved, 1u32),
                at!(FreezeArg, milliseconds, 0u64),
                at!(FreezeArg, milliseconds, 3_600_001u64),
                at!(FreezeArg, id, 1u64),
            ],
        ),
        own::<FreezeArg>(
            IOC_THAW,
            libc::ENOENT,
            |_| {},
            &[
                at!(FreezeArg, reserved, 1u32),
                at!(FreezeArg, milliseconds, 1u64),
            ],
        ),
        own::<TuneArg>(
            IOC_TUNE,
            0,
            |_| {},
            &[
                at!(TuneArg, commit_seconds, 3601u32),
                at!(TuneArg, dirty_bytes, 4095u64),
                at!(TuneArg, dirty_bytes, 1u64 << 41),
                at!(TuneArg, access_times, 4u32),
                at!(TuneArg, reserved, 1u32),
            ],
        ),
        own::<BarrierArg>(
            IOC_BARRIER,
            0,
            |a| a.flags = BARRIER_DATA,
            &[at!(BarrierArg, flags, 2u32)],
        ),
        // The mount has no atomic_files=on.
        own::<AtomicArg>(
            IOC_ATOMIC,
            libc::EOPNOTSUPP,
            |a| a.flags = ATOMIC_OPEN,
            &[at!(AtomicArg, flags, 2u32), at!(AtomicArg, reserved, 1u64)],
        ),
        // Nobody has such a token.
        own::<SyncvArg>(
            IOC_SYNCV,
            libc::EINVAL,
            |a| a.count = 1,
            &[
                at!(SyncvArg, count, 0u32),
                at!(SyncvArg, count, 257u32),
                at!(SyncvArg, count, u32::MAX),
            ],
        ),
    ]
}

/// Unknown flags, reserved words that are not zero, other versions and other sizes.
#[test]
fn arguments_of_own_calls() {
    if !can_mount("arguments_of_own_calls") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let file = File::create(m.path("f")).unwrap();
    let give = |number, arg: &[u8]| {
        let mut arg = arg.to_vec();
        let result = common::any_ioctl(&file, number, &mut arg);
        result.map_or_else(|e| e.raw_os_error().unwrap(), |()| 0)
    };
    for call in own_calls() {
        let number = call.number;
        let mut wrong = call.wrong;
        for version in [0, abi::VERSION + 1, u32::MAX] {
            wrong.push((0, version.to_ne_bytes().to_vec()));
        }
        for (at, bytes) in wrong {
            let mut arg = call.arg.clone();
            arg[at..at + bytes.len()].copy_from_slice(&bytes);
            let got = give(number, &arg);
            assert_eq!(got, libc::EINVAL, "{number:x}: {bytes:?} at {at}");
        }
        for (larger, arg) in [
            (8 << 16, [&call.arg[..], &[0; 8]].concat()),
            (0u32.wrapping_sub(4 << 16), call.arg[4..].to_vec()),
        ] {
            let other = number.wrapping_add(larger);
            assert_eq!(give(other, &arg), libc::ENOTTY, "{other:x}");
        }
        // Last: it may begin or end a group.
        assert_eq!(give(number, &call.arg), call.gives, "{number:x}");
    }
    drop(file);
    m.unmount();
}
