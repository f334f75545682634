//! Directories that others made: the kernel, mke2fs, debugfs, old volumes; and ours in the kernel's eyes.

mod dir_common;
use dir_common::{Links, Volume, run, with_kernel};
use std::collections::BTreeSet;

fn names(volume: &Volume, dir: u32) -> BTreeSet<Vec<u8>> {
    volume.scan(dir, 0).into_keys().collect()
}

fn lines(text: &[u8]) -> BTreeSet<Vec<u8>> {
    text.split(|&c| c == b'\n')
        .filter(|l| !l.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

fn lookup(volume: &Volume, dir: u32, name: &str) -> u32 {
    volume
        .image
        .dir_lookup(dir, name.as_bytes())
        .unwrap()
        .unwrap()
        .0
}

#[test]
fn the_kernels_directories_and_ours() {
    for kind in [
        &["-b", "1024"][..],
        &["-b", "4096", "-O", "^metadata_csum"],
        &["-b", "1024", "-O", "^dir_index"],
        &["-b", "2048", "hash_alg=tea"],
        &[
            "-b",
            "1024",
            "-O",
            "^extents,^64bit,^metadata_csum",
            "-I",
            "128",
        ],
    ] {
        let mut listing = None;
        let script = "cd $M; mkdir a b; for i in $(seq 3000); do : > a/name-$i; done; seq -f a/name-%g 2 3 3000 | xargs rm
            mkdir a/größe; for i in $(seq 40); do : > b/$i; done; rm b/*; ls -U a";
        let mut volume = Volume::make_then(64, kind, |path| listing = with_kernel(path, script));
        let Some(listing) = listing else { return };
        let (a, b) = (lookup(&volume, 2, "a"), lookup(&volume, 2, "b"));
        assert_eq!(names(&volume, a), lines(&listing), "{kind:?}");
        assert!(volume.image.dir_is_empty(b).unwrap() && !volume.image.dir_is_empty(a).unwrap());
        assert_eq!(lookup(&volume, lookup(&volume, a, "größe"), ".."), a);
        let mut links = Links::default();
        for i in 0..2000 {
            let ino = links.take(&volume);
            volume
                .image
                .dir_insert(a, format!("ours-{i}").as_bytes(), ino, 1)
                .unwrap();
            assert_eq!(
                volume.image.dir_lookup(a, b"name-1").unwrap().is_some(),
                i < 1000
            );
            if i == 999 {
                let ino = lookup(&volume, a, "name-1");
                volume.image.dir_remove(a, b"name-1").unwrap();
                volume.image.dir_insert(b, b"moved", ino, 1).unwrap();
            }
        }
        links.settle(&volume, 2);
        volume.check();
        let ours = names(&volume, a);
        // The kernel finds every name by hash, and goes on with our tree.
        let script = "cd $M/a; ls -U; for i in $(seq 0 1999); do test -e ours-$i; done; seq -f ours-%g 0 1999 | xargs rm; for i in $(seq 500); do : > again-$i; done
            test -e ../b/moved; test ! -e name-1";
        let listing = with_kernel(&volume.path, script).unwrap();
        assert_eq!(ours, lines(&listing), "{kind:?}");
        volume = reload(volume);
        let left = names(&volume, a);
        assert!(left.iter().all(|n| !n.starts_with(b"ours")) && left.contains(&b"again-500"[..]));
        volume.check();
    }
}

/// Opens the volume as the file is now.
fn reload(volume: Volume) -> Volume {
    volume.reopen_from_file()
}

#[test]
fn directories_by_mke2fs() {
    let tree = tempfile::tempdir().unwrap();
    for i in 0..700 {
        std::fs::write(tree.path().join(format!("some-file-{i}")), b"").unwrap();
    }
    std::fs::create_dir_all(tree.path().join("sub/deep")).unwrap();
    for kind in ["1024", "4096"] {
        let volume = Volume::make(64, &["-b", kind, "-d", tree.path().to_str().unwrap()]);
        let mut want: BTreeSet<Vec<u8>> = (0..700)
            .map(|i| format!("some-file-{i}").into_bytes())
            .collect();
        want.extend([b"sub".to_vec(), b"lost+found".to_vec()]);
        assert_eq!(names(&volume, 2), want);
        let mut links = Links::default();
        for i in 0..300 {
            let ino = links.take(&volume);
            volume
                .image
                .dir_insert(2, format!("more-{i}").as_bytes(), ino, 1)
                .unwrap();
            want.insert(format!("more-{i}").into_bytes());
        }
        let sub = lookup(&volume, 2, "sub");
        let deep = lookup(&volume, sub, "deep");
        volume.image.dir_remove(sub, b"deep").unwrap();
        volume.image.dir_insert(2, b"deep", deep, 2).unwrap();
        volume.image.dir_set_parent(deep, 2).unwrap();
        volume.set_links(sub, 2);
        volume.set_links(2, volume.image.read_attr(2).unwrap().nlink + 1);
        want.insert(b"deep".to_vec());
        links.settle(&volume, 2);
        assert_eq!(names(&volume, 2), want);
        volume.check();
    }
}

/// Builds and adopts a tree.
fn plant(volume: &Volume, dir: u32) {
    let flush = || Ok(());
    let tree = volume.image.dir_build_tree(dir, 100, true, &flush).unwrap();
    assert!(volume.image.dir_adopt_tree(tree.expect("room")).unwrap());
    assert!(!volume.image.dir_wants_tree(dir).unwrap());
}

/// lost+found has several empty blocks and no tree; a directory of an older volume is linear.
#[test]
fn old_linear_directories_get_a_tree() {
    let tree = tempfile::tempdir().unwrap();
    for i in 0..400 {
        std::fs::write(tree.path().join(format!("some-file-{i}")), b"").unwrap();
    }
    let source = tree.path().to_str().unwrap();
    let volume = Volume::make_then(
        64,
        &["-b", "1024", "-O", "^dir_index", "-d", source],
        |path| {
            assert!(
                run("tune2fs", &["-O", "dir_index", path.to_str().unwrap()])
                    .status
                    .success()
            );
        },
    );
    let mut links = Links::default();
    let before = names(&volume, 2);
    let found = lookup(&volume, 2, "lost+found");
    for (dir, name) in [(2, "one"), (found, "two"), (found, "three"), (2, "four")] {
        if volume.image.dir_wants_tree(dir).unwrap() {
            plant(&volume, dir);
        }
        let ino = links.take(&volume);
        volume
            .image
            .dir_insert(dir, name.as_bytes(), ino, 1)
            .unwrap();
    }
    links.settle(&volume, 2);
    volume.check();
    assert!(volume.debugfs("htree_dump /").contains("Root node dump"));
    assert!(
        volume
            .debugfs("htree_dump /lost+found")
            .contains("Root node dump")
    );
    assert_eq!(names(&volume, 2).len(), before.len() + 2);
    assert_eq!(names(&volume, found).len(), 2);
}

/// The feature was taken from a volume that has trees: they are read as plain directories and lose the flag at the first change.
#[test]
fn trees_on_a_volume_without_the_feature() {
    let old = Volume::make(64, &["-b", "1024", "-O", "^metadata_csum"]);
    let dir = old.mkdir(2, "d");
    let mut links = Links::default();
    for i in 0..500 {
        let ino = links.take(&old);
        old.image
            .dir_insert(dir, format!("name-{i}").as_bytes(), ino, 1)
            .unwrap();
    }
    links.settle(&old, 2);
    old.check();
    assert!(
        run("tune2fs", &["-O", "^dir_index", old.path.to_str().unwrap()])
            .status
            .success()
    );
    let volume = reload(old);
    assert!(!volume.image.geometry().has_dir_index);
    assert_eq!(names(&volume, dir).len(), 500);
    let ino = lookup(&volume, dir, "name-3");
    for i in 0..300 {
        volume
            .image
            .dir_insert(dir, format!("new-{i}").as_bytes(), ino, 1)
            .unwrap();
    }
    volume.set_links(ino, 800);
    assert_eq!(names(&volume, dir).len(), 800);
    volume.check();
}

/// A root with another hash than the volume's default: found by its own, listed in the default's order.
#[test]
fn a_tree_with_another_hash() {
    let old = Volume::make(64, &["-b", "1024", "hash_alg=tea"]);
    let dir = old.mkdir(2, "d");
    let mut links = Links::default();
    for i in 0..500 {
        let ino = links.take(&old);
        old.image
            .dir_insert(dir, format!("name-{i}").as_bytes(), ino, 1)
            .unwrap();
    }
    links.settle(&old, 2);
    old.save();
    assert!(
        run(
            "tune2fs",
            &["-E", "hash_alg=half_md4", old.path.to_str().unwrap()]
        )
        .status
        .success()
    );
    let volume = reload(old);
    assert_eq!(names(&volume, dir).len(), 500);
    let from = volume.image.cookie_of(b"name-77");
    assert!(volume.scan(dir, from).contains_key(&b"name-77"[..]));
    let ino = lookup(&volume, dir, "name-3");
    for i in 0..300 {
        volume
            .image
            .dir_insert(dir, format!("new-{i}").as_bytes(), ino, 1)
            .unwrap();
    }
    volume.set_links(ino, 800);
    assert_eq!(names(&volume, dir).len(), 800);
    volume.check();
}

/// Without a tree it is still fast and right; with one it is what the kernel and e2fsck expect.
#[test]
fn long_linear_directories() {
    let mut old = Volume::make(64, &["-b", "1024", "-O", "^dir_index"]);
    let dir = old.mkdir(2, "d");
    let mut links = Links::default();
    for i in 0..3000 {
        let ino = links.take(&old);
        old.image
            .dir_insert(dir, format!("name-{i}").as_bytes(), ino, 1)
            .unwrap();
    }
    links.settle(&old, 2);
    old.check();
    let path = old.path.to_str().unwrap().to_owned();
    assert!(run("tune2fs", &["-O", "dir_index", &path]).status.success());
    old = reload(old);
    for i in 0..3000 {
        let ino = links.take(&old);
        old.image
            .dir_insert(dir, format!("new-{i}").as_bytes(), ino, 1)
            .unwrap();
        let gone = format!("name-{i}");
        links.give(lookup(&old, dir, &gone));
        assert!(
            old.image
                .dir_remove(dir, gone.as_bytes())
                .unwrap()
                .is_some()
        );
    }
    links.settle(&old, 2);
    assert_eq!(names(&old, dir).len(), 3000);
    old.check();
    assert_eq!(old.debugfs_ls("/d").len(), 3000);
    let before = names(&old, dir);
    plant(&old, dir);
    assert_eq!(names(&old, dir), before);
    old.check();
    assert!(old.debugfs("htree_dump /d").contains("Root node dump"));
    assert_eq!(names(&old.reopen(), dir), before);
}

/// Old volumes do not say whether bytes of names are signed in hashes. The kernel takes what `char` is on the machine, and notes it; so do we.
#[test]
fn a_volume_that_does_not_say_how_names_are_hashed_does_so_afterwards() {
    let unset = |path: &std::path::PathBuf| {
        let out = run(
            "debugfs",
            &["-w", "-R", "ssv flags 0", path.to_str().unwrap()],
        );
        assert!(out.status.success(), "{out:?}");
    };
    let mut volume = Volume::make_then(32, &["-b", "1024"], unset);
    let dir = volume.mkdir(2, "d");
    let mut links = Links::default();
    let name = |i: u32| format!("\u{e4}\u{20ac}-{i}");
    for i in 0..2000 {
        let ino = links.take(&volume);
        let name = name(i);
        let inserted = volume.image.dir_insert(dir, name.as_bytes(), ino, 1);
        inserted.unwrap();
    }
    links.settle(&volume, 2);
    volume.check();
    let unsigned = std::ffi::c_char::MIN == 0;
    let noted = match unsigned {
        true => "unsigned_directory_hash",
        false => "signed_directory_hash",
    };
    let said = volume.debugfs("show_super_stats -h");
    let flags = said
        .lines()
        .find(|line| line.starts_with("Filesystem flags:"));
    assert!(
        flags.is_some_and(|f| f.split_whitespace().any(|w| w == noted)),
        "{said}"
    );
    volume = volume.reopen();
    assert!((0..2000).all(|i| lookup(&volume, dir, &name(i)) != 0));
}
