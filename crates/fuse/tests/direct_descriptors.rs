//! Descriptors that the library keeps, which a program that knows nothing of them is not to meet. (The settings are the whole process's.)
mod common;
use ccfs_client::direct::{OpenOptions, Session, keep_descriptors_from, set_descriptor_hook};
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;

static KEPT: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

fn note(fd: i32, kept: bool) {
    let mut all = KEPT.lock().unwrap();
    let changed = if kept {
        all.insert(fd)
    } else {
        all.remove(&fd)
    };
    assert!(changed, "{fd} {kept}");
}

/// Descriptors of this process.
fn open() -> BTreeSet<i32> {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let number = |e: fs::DirEntry| e.file_name().to_str()?.parse().ok();
    all.filter_map(|e| number(e.unwrap())).collect()
}

#[test]
fn kept_descriptors_are_high_and_known() {
    if !can_mount("kept_descriptors_are_high_and_known") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    set_descriptor_hook(note);
    keep_descriptors_from(700);
    {
        let dir = fs::File::open(m.mnt()).unwrap();
        let session = Session::begin(&dir).unwrap();
        assert!(session.is_direct());
        assert_eq!(KEPT.lock().unwrap().len(), 2);
        let root = session.root().unwrap();
        let tree = root.make_dir("tree", 0o777).unwrap();
        let sub = tree.make_dir("sub", 0o777).unwrap();
        let file = sub.open("f", OpenOptions::new_file()).unwrap();
        assert_eq!(KEPT.lock().unwrap().len(), 3);
        fs::metadata(m.path("tree/sub/f")).unwrap();
        file.append(b"x").unwrap();
        sub.stat("f").unwrap();
        let known = root.open_dir("tree").unwrap();
        assert_eq!(KEPT.lock().unwrap().len(), 6);
        let (kept, open) = (KEPT.lock().unwrap().clone(), open());
        assert!(
            kept.iter().all(|fd| *fd >= 700 && open.contains(fd)),
            "{kept:?}"
        );
        assert!(
            open.iter().all(|fd| *fd < 700 || kept.contains(fd)),
            "{open:?}"
        );
        // There may be no such numbers: then they are what they are.
        keep_descriptors_from(1 << 30);
        let another = root.open_dir("tree").unwrap();
        assert!(KEPT.lock().unwrap().iter().any(|fd| *fd < 700));
        drop((another, known, file, sub, tree, root));
        assert_eq!(KEPT.lock().unwrap().len(), 2);
    }
    assert_eq!(KEPT.lock().unwrap().len(), 0);
    m.unmount();
}
