//! The harness itself: it mounts, compares, and sees a difference.
use ccfs_tests::harness::{Compare, Fs, Tree, Volume, shell};

#[test]
fn ext4_volume_comes_and_goes() {
    if !Fs::Ext4.ready("ext4_volume_comes_and_goes") {
        return;
    }
    let mut v = Volume::new(Fs::Ext4, "harness", 64);
    shell(
        v.mnt(),
        "mkdir d; echo a >d/a; ln d/a d/b; ln -s a d/l; mkfifo d/p; setfattr -n user.x -v 1 d/a",
    );
    let before = Tree::read(v.mnt());
    v.remount();
    let after = Tree::read(v.mnt());
    assert_eq!(
        before.differences(&after, Compare::everything()),
        Vec::<String>::new()
    );
    assert_eq!(after.0["d/b"].first_name, "d/a");
    shell(
        v.mnt(),
        "echo b >d/b; chmod 600 d/p; setfattr -x user.x d/a; rm d/l",
    );
    let found = after.differences(&Tree::read(v.mnt()), Compare::same_work());
    for what in ["d/a: content", "d/p: mode", "d/a: xattrs", "d/l: missing"] {
        assert!(
            found.iter().any(|l| l.starts_with(what)),
            "{what} not in {found:?}"
        );
    }
    v.finish();
}
