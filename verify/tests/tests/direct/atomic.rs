//! Failure-atomic files beside direct calls: what a session writes to a file that somebody has open O_ATOMIC is content like everybody's, and is
//! there after a crash when that was synced.
use super::{session, volume};
use ccfs_client::direct::OpenOptions;
use std::os::unix::fs::FileExt;

#[test]
fn what_is_not_synced_is_taken_back() {
    for synced in [false, true] {
        let Some(mut v) = volume("direct atomic", 48, ",atomic_files=on,commit=600") else {
            return;
        };
        {
            let s = session(&v);
            let root = s.root().expect("root");
            let dir = root.make_dir("dir", 0o755).expect("make");
            let file = dir.open("file", OpenOptions::new_file()).expect("open");
            file.append(b"before").expect("append");
            // Held, until somebody opens it.
            assert!(file.is_direct());
            file.sync().expect("sync");
            let atomic = ccfs_client::open_atomic(v.path("dir/file"), false).expect("open_atomic");
            atomic.write_all_at(b"atomic", 0).expect("write");
            file.append(b"!").expect("append");
            assert!(!file.is_direct());
            let mut seen = [0; 10];
            let n = file.read_at(&mut seen, 0).expect("read");
            assert_eq!(&seen[..n], b"atomic!");
            // Of what is held a session goes on as ever.
            let other = dir.open("other", OpenOptions::new_file()).expect("open");
            other.append(b"posted").expect("append");
            if synced {
                atomic.sync_all().expect("sync");
            }
            // What another stream's sync makes durable is none of its business.
            other.sync().expect("sync");
            v.kill9();
        }
        v.mount();
        let now = std::fs::read(v.path("dir/file")).expect("read");
        let expected: &[u8] = if synced { b"atomic!" } else { b"before" };
        assert_eq!(now, expected, "synced: {synced}");
        assert_eq!(std::fs::read(v.path("dir/other")).expect("read"), b"posted");
        v.finish();
    }
}

/// A file that is taken, and its descriptor for locks, on such a mount: the kernel asks for every open there.
#[test]
fn taken_files_stay_held() {
    let Some(v) = volume("direct atomic taken", 48, ",atomic_files=on") else {
        return;
    };
    {
        let s = session(&v);
        let root = s.root().expect("root");
        let file = root.take("db", OpenOptions::new_file()).expect("take");
        let fd = std::fs::File::from(file.descriptor().expect("descriptor"));
        file.write_at(b"posted", 0).expect("write");
        assert!(file.is_direct());
        // Opened O_ATOMIC by that descriptor, it is looked at by others.
        ccfs_client::make_atomic(&fd).expect("make_atomic");
        assert!(!file.is_direct());
        fd.write_all_at(b"atomic", 0).expect("write");
        fd.sync_all().expect("sync");
        drop(fd);
        assert_eq!(std::fs::read(v.path("db")).expect("read"), b"atomic");
    }
    v.finish();
}
