//! A session with as many handles as there can be.
mod common;
use ccfs_client::direct::layout::HANDLES;
use ccfs_client::direct::{OpenOptions, Session};
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use std::{fs, io};

fn is_full<T>(done: io::Result<T>) -> bool {
    done.map(drop).unwrap_err().raw_os_error() == Some(libc::ENFILE)
}

#[test]
fn without_a_handle_nothing_is_made() {
    if !can_mount("without_a_handle_nothing_is_made") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let session = Session::begin(fs::File::open(m.mnt()).unwrap()).unwrap();
    assert!(session.is_direct(), "{:?}", session.why_not());
    let root = session.root().unwrap();
    let tree = root.make_dir("tree", 0o777).unwrap();
    let mut all = vec![tree.open("a", OpenOptions::new_file()).unwrap()];
    let existing = OpenOptions::reading();
    // One is the directory's, and 0 is none.
    while all.len() < HANDLES as usize - 2 {
        all.push(tree.open("a", existing).unwrap());
    }
    assert!(is_full(tree.open("a", existing)));
    assert!(is_full(tree.open_with(
        "b",
        OpenOptions::new_file(),
        &mut []
    )));
    assert!(is_full(tree.make_dir("d", 0o777)));
    // In a directory that the kernel knows.
    assert!(is_full(root.open("b", OpenOptions::new_file())));
    assert!(is_full(root.make_dir("d", 0o777)));
    let how = OpenOptions {
        exclusive: false,
        ..OpenOptions::new_file()
    };
    assert!(is_full(root.take("b", how)));
    assert!(is_full(root.take_dir("tree")));
    let names = |dir: &ccfs_client::direct::Dir| -> Vec<_> {
        let all = dir.read_dir().unwrap().into_iter();
        all.map(|e| e.name).filter(|n| n != "lost+found").collect()
    };
    assert_eq!(names(&tree), ["a"]);
    assert_eq!(names(&root), ["tree"]);
    // All else goes on, and so does the kernel.
    all[0].write_at(b"a", 0).unwrap();
    assert!(all[0].is_direct() && tree.is_direct());
    fs::write(m.path("c"), b"c").unwrap();
    drop(all.pop());
    let b = tree.open("b", OpenOptions::new_file()).unwrap();
    assert!(b.is_direct() && is_full(tree.make_dir("d", 0o777)));
    drop(b);
    drop(tree.make_dir("d", 0o777).unwrap());
    assert_eq!(fs::read_dir(m.path("tree")).unwrap().count(), 3);
    drop((all, tree, root, session));
    m.unmount();
}
