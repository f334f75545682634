//! FS_IOC_SHUTDOWN with each of its flags, on ccfs and on the kernel's ext4: what is there after the next mount.
use ccfs_client as client;
use ccfs_tests::harness::{
    FS_IOC_SHUTDOWN, Fs, GOING_DEFAULT, GOING_LOGFLUSH, GOING_NOLOGFLUSH, Volume,
};
use ccfs_tests::posix::ALICE;
use ccfs_tests::sys;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Barrier;

const FLAGS: [u32; 3] = [GOING_DEFAULT, GOING_LOGFLUSH, GOING_NOLOGFLUSH];
/// More than a block, so that ext4 has it to allocate.
const BYTES: usize = 5000;

/// The file systems that these tests run on: both, or the one that is asked for.
fn each(test: &str, check: impl Fn(Fs)) {
    for fs in [Fs::Ext4, Fs::Ccfs] {
        if [Fs::Ccfs, fs].contains(&Fs::under_test()) && fs.ready(test) {
            check(fs);
        }
    }
}

/// Nothing is committed but by a sync.
fn volume(fs: Fs) -> Volume {
    let mut v = Volume::unformatted(fs, "shutdown").options("commit=300");
    v.mkfs(64);
    v.mount();
    v
}

fn names(v: &Volume) -> BTreeSet<String> {
    let entries = fs::read_dir(v.mnt()).expect("a mounted volume");
    let names = entries.map(|e| e.expect("an entry").file_name());
    names
        .map(|n| n.into_string().expect("a plain name"))
        .filter(|n| n != "lost+found" && n != ".ccfs")
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

#[test]
fn what_each_flag_keeps() {
    each("what_each_flag_keeps", |fs| {
        for flag in FLAGS {
            let mut v = volume(fs);
            fs::write(v.path("synced"), "s").expect("write");
            let synced = fs::File::open(v.path("synced")).expect("open");
            synced.sync_all().expect("fsync");
            fs::write(v.path("data"), [7; BYTES]).expect("write");
            fs::create_dir(v.path("dir")).expect("mkdir");
            fs::rename(v.path("synced"), v.path("renamed")).expect("rename");
            assert_eq!(v.shut_down(flag), Ok(()), "{fs:?} {flag}");
            // It has stopped, whatever was kept.
            let later = fs::write(v.path("later"), "l").map_err(|e| e.raw_os_error());
            assert_eq!(later, Err(Some(libc::EIO)), "{fs:?} {flag}");
            let sync = synced.sync_all().map_err(|e| e.raw_os_error());
            assert_eq!(sync, Err(Some(libc::EIO)), "{fs:?} {flag}");
            assert_eq!(v.shut_down(flag), Ok(()), "{fs:?} {flag} again");
            assert_eq!(v.shut_down(9), Err(libc::EINVAL), "{fs:?} {flag}");
            drop(synced);
            v.umount_stopped();
            v.mount();
            let kept = match flag {
                GOING_NOLOGFLUSH => set(&["synced"]),
                _ => set(&["data", "dir", "renamed"]),
            };
            assert_eq!(names(&v), kept, "{fs:?} {flag}");
            // With GOING_LOGFLUSH ext4 keeps the name only: it allocates late.
            if flag == GOING_DEFAULT || flag == GOING_LOGFLUSH && fs == Fs::Ccfs {
                let data = fs::read(v.path("data")).expect("read");
                assert_eq!(data, [7; BYTES], "{fs:?} {flag}");
            }
            v.finish();
        }
    });
}

#[test]
fn what_is_refused_does_nothing() {
    each("what_is_refused_does_nothing", |fs| {
        let v = volume(fs);
        let root = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
        for flag in [3, 4, 8, 1 << 16, u32::MAX - 1, u32::MAX] {
            assert_eq!(v.shut_down(flag), Err(libc::EINVAL), "{fs:?} {flag}");
        }
        let nowhere = || sys::ioctl_nowhere(&root, FS_IOC_SHUTDOWN);
        assert_eq!(nowhere(), Err(libc::EFAULT), "{fs:?}");
        // Rights come first.
        for flag in [0, 1, 2, 3] {
            let refused = sys::as_user(ALICE, ALICE, &[], || v.shut_down(flag));
            assert_eq!(refused, Err(libc::EPERM), "{fs:?} {flag}");
        }
        let refused = sys::as_user(ALICE, ALICE, &[], nowhere);
        assert_eq!(refused, Err(libc::EPERM), "{fs:?}");
        drop(root);
        fs::write(v.path("f"), "it goes on").expect("write");
        v.finish();
    });
}

/// An open group is not kept, and where the caller's own syncs do nothing all the rest is.
#[test]
fn groups_and_streams_that_ignore_syncs() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("groups_and_streams_that_ignore_syncs") {
        return;
    }
    let mut v = volume(Fs::Ccfs);
    let step = Barrier::new(2);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let group = client::Group::begin(v.mnt(), None).expect("begin");
            fs::write(v.path("of-the-group"), "g").expect("write");
            step.wait();
            step.wait();
            // The volume has stopped.
            assert!(group.commit().is_err());
        });
        step.wait();
        let stream = client::new_stream_at(v.mnt(), client::STREAM_IGNORE_FSYNC);
        client::set_stream_at(v.mnt(), stream.expect("a stream"), None).expect("enter");
        fs::write(v.path("ignores"), "i").expect("write");
        let file = fs::File::open(v.path("ignores")).expect("open");
        file.sync_all().expect("fsync");
        assert_eq!(v.shut_down(GOING_DEFAULT), Ok(()));
        step.wait();
    });
    v.umount_stopped();
    v.mount();
    assert_eq!(names(&v), set(&["ignores"]));
    v.finish();
}
