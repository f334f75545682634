//! Extended attributes against a model, e2fsck, debugfs and the kernel.

mod dir_common;
use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_image::{Image, OpenOptions};
use dir_common::{FILE_MODE, Links, Rng, Volume, with_kernel};
use std::collections::BTreeMap;
use std::sync::Arc;

type Attr = (u8, Vec<u8>, Vec<u8>);

fn sorted(mut all: Vec<Attr>) -> Vec<Attr> {
    all.sort();
    all
}

fn attr(index: u8, name: &str, value: &[u8]) -> Attr {
    (index, name.as_bytes().to_vec(), value.to_vec())
}

fn file(volume: &Volume, name: &str) -> u32 {
    let ino = volume.inode(2, FILE_MODE, 1);
    volume.image.dir_insert(2, name.as_bytes(), ino, 1).unwrap();
    ino
}

fn random_set(rng: &mut Rng, max: usize) -> Vec<Attr> {
    let mut set = BTreeMap::new();
    for _ in 0..rng.index(8) {
        let index = [1, 4, 6][rng.index(3)];
        let name = format!(
            "{}{}",
            ["n", "größe-", "a.long.name.of.an.attribute."][rng.index(3)],
            rng.index(4)
        );
        let value: Vec<u8> = (0..rng.index(max)).map(|_| rng.draw() as u8).collect();
        set.insert((index, name.into_bytes()), value);
    }
    set.into_iter()
        .map(|((index, name), value)| (index, name, value))
        .collect()
}

fn judge(image: &Image, ino: u32, want: &[Attr]) {
    assert_eq!(sorted(image.xattr_all(ino).unwrap()), sorted(want.to_vec()));
    let mut list: Vec<_> = want
        .iter()
        .map(|(i, n, v)| (*i, n.clone(), v.len()))
        .collect();
    list.sort();
    let mut got = image.xattr_list(ino).unwrap();
    got.sort();
    assert_eq!(got, list);
    for (index, name, value) in want {
        assert_eq!(
            image.xattr_get(ino, *index, name).unwrap().as_ref(),
            Some(value)
        );
    }
    assert_eq!(image.xattr_get(ino, 1, b"absent").unwrap(), None);
}

#[test]
fn random_sets_follow_a_model() {
    for (seed, kind) in [
        &["-b", "1024"][..],
        &["-b", "4096"],
        &["-b", "1024", "-I", "128", "-O", "^metadata_csum,^64bit"],
        &["-b", "4096", "-I", "1024"],
        &["-b", "2048", "-O", "^ext_attr"],
    ]
    .iter()
    .enumerate()
    {
        let mut volume = Volume::make(32, kind);
        let mut rng = Rng::new(seed as u64 + 1);
        let free = volume.image.alloc().free_blocks();
        let mut model: BTreeMap<u32, Vec<Attr>> = (0..20)
            .map(|i| (file(&volume, &format!("f{i}")), Vec::new()))
            .collect();
        for round in 0..600 {
            let ino = *model.keys().nth(rng.index(20)).unwrap();
            let set = random_set(&mut rng, [40, 300, 1500][round % 3]);
            let fits = volume.image.xattr_fits(ino, &set).unwrap();
            let done = volume.image.xattr_replace_all(ino, &set);
            match done {
                Ok(()) => {
                    assert!(fits);
                    model.insert(ino, set);
                }
                Err(error) => assert!(!fits && error.errno() == libc::ENOSPC, "{error}"),
            }
            judge(&volume.image, ino, &model[&ino]);
            if round % 200 == 199 {
                volume.check();
                volume = volume.reopen();
                for (ino, set) in &model {
                    judge(&volume.image, *ino, set);
                }
            }
        }
        for ino in model.keys() {
            volume.image.xattr_replace_all(*ino, &[]).unwrap();
            assert_eq!(volume.image.read_attr(*ino).unwrap().blocks512, 0);
        }
        for run in volume.image.take_freed() {
            volume.image.alloc().release(run);
        }
        volume.check();
        assert!(volume.image.alloc().free_blocks() + 20 >= free);
    }
}

#[test]
fn debugfs_and_kernel_read_ours() {
    for inode_size in ["128", "256"] {
        let volume = Volume::make(32, &["-b", "1024", "-I", inode_size]);
        let ino = file(&volume, "f");
        let big: Vec<u8> = (0..600).map(|i| b'a' + (i % 26) as u8).collect();
        let set = [
            attr(1, "small", b"tiny"),
            attr(1, "größe", b"x"),
            attr(1, "big", &big),
            attr(6, "demo", b"label"),
            attr(1, "empty", b""),
        ];
        volume.image.xattr_replace_all(ino, &set).unwrap();
        volume.check();
        let list = volume.debugfs("ea_list /f");
        for name in [
            "user.small (4) = \"tiny\"",
            "user.big (600)",
            "security.demo (5) = \"label\"",
            "user.empty (0)",
        ] {
            assert!(list.contains(name), "{list}");
        }
        let script = "cd $M; getfattr -d -m - --absolute-names f 2>/dev/null || python3 -c '
import os
for n in sorted(os.listxattr(\"f\")): print(n, os.getxattr(\"f\", n).decode())'";
        let Some(seen) = with_kernel(&volume.path, script) else {
            return;
        };
        let seen = String::from_utf8(seen).unwrap();
        for part in [
            "user.small",
            "tiny",
            "größe",
            "security.demo",
            "label",
            std::str::from_utf8(&big).unwrap(),
            "user.empty",
        ] {
            assert!(seen.contains(part) || part == "größe", "{seen}");
        }
    }
}

/// The kernel shares equal blocks between inodes; we leave a shared block to the others and never share anew.
#[test]
fn the_kernels_attributes_and_shared_blocks() {
    for kind in [&["-b", "1024", "-I", "128"][..], &["-b", "4096"]] {
        let script = "cd $M; python3 - <<'END'
import os
for i in range(4):
    f = f'f{i}'
    open(f, 'w').close()
    os.setxattr(f, 'user.same', b's' * 500)
    os.setxattr(f, 'user.gr\\xf6\\xdfe', b'umlaut')
    os.setxattr(f, 'trusted.t', b'')
END";
        let mut ran = false;
        let mut volume =
            Volume::make_then(32, kind, |path| ran = with_kernel(path, script).is_some());
        if !ran {
            return;
        }
        let inos: Vec<u32> = (0..4)
            .map(|i| {
                volume
                    .image
                    .dir_lookup(2, format!("f{i}").as_bytes())
                    .unwrap()
                    .unwrap()
                    .0
            })
            .collect();
        let want = [
            attr(1, "same", &[b's'; 500]),
            attr(1, "größe", b"umlaut"),
            attr(4, "t", b""),
        ];
        for ino in &inos {
            judge(&volume.image, *ino, &want);
        }
        let mut other = want.to_vec();
        other[0].2[3] = b'!';
        volume.image.xattr_replace_all(inos[0], &other).unwrap();
        volume.image.xattr_replace_all(inos[1], &[]).unwrap();
        volume.image.xattr_replace_all(inos[2], &want).unwrap();
        judge(&volume.image, inos[0], &other);
        judge(&volume.image, inos[1], &[]);
        volume.check();
        volume = volume.reopen();
        judge(&volume.image, inos[2], &want);
        judge(&volume.image, inos[3], &want);
        // The last user's block is freed with its inode.
        volume.image.xattr_replace_all(inos[3], &[]).unwrap();
        assert_eq!(volume.image.read_attr(inos[3]).unwrap().blocks512, 0);
        volume.check();
    }
}

#[test]
fn wrong_arguments_and_damage() {
    let volume = Volume::make(32, &["-b", "1024"]);
    let ino = file(&volume, "f");
    let twice = [attr(1, "a", b"1"), attr(1, "a", b"2")];
    let bad: [&[Attr]; 4] = [
        &twice,
        &[attr(0, "a", b"")],
        &[attr(1, "", b"")],
        &[attr(1, "a\0", b"")],
    ];
    for set in bad {
        assert_eq!(
            volume
                .image
                .xattr_replace_all(ino, set)
                .unwrap_err()
                .errno(),
            22
        );
    }
    let long = "x".repeat(256);
    assert_eq!(
        volume
            .image
            .xattr_replace_all(ino, &[attr(1, &long, b"")])
            .unwrap_err()
            .errno(),
        34
    );
    assert!(volume.image.xattr_get(ino + 1, 1, b"a").is_err());
    let mut links = Links::default();
    links.settle(&volume, 2);
    volume.check();
}

/// Damaged lists in inodes and blocks: an error or what can be read, and no panic. Checksums catch all of it.
#[test]
fn damaged_lists() {
    for (csum, kind) in [
        (false, &["-b", "1024", "-O", "^metadata_csum"][..]),
        (true, &["-b", "1024"]),
    ] {
        let volume = Volume::make(32, kind);
        let ino = file(&volume, "f");
        let set = [
            attr(1, "big", &[7; 500]),
            attr(6, "label", b"text"),
            attr(1, "other", &[1; 90]),
        ];
        volume.image.xattr_replace_all(ino, &set).unwrap();
        volume.check();
        let stat = volume.debugfs("stat /f");
        let block: u64 = stat
            .split("File ACL: ")
            .nth(1)
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let mut rng = Rng::new(11);
        let mut errors = 0;
        for _ in 0..400 {
            let dev = volume.dev.snapshot();
            let mut bytes = vec![0; 1024];
            dev.read(block * 1024, &mut bytes).unwrap();
            let at = if rng.index(2) == 0 {
                rng.index(80)
            } else {
                rng.index(1024)
            };
            let old = bytes[at];
            bytes[at] = [0, 1, 0xff, rng.draw() as u8][rng.index(4)];
            let changed = bytes[at] != old;
            let write = Write::new(block * 1024, AlignedBuf::from_bytes(&bytes));
            write_all(&dev, vec![write]).unwrap();
            let image = Image::open(Arc::new(dev), OpenOptions::default()).unwrap();
            image.alloc().reserve(0, 100);
            let failed = image.xattr_all(ino).is_err();
            errors += usize::from(failed);
            assert!(!csum || failed == changed);
            let _ = image.xattr_get(ino, 1, b"big");
            let _ = image.xattr_list(ino);
            let _ = image.xattr_replace_all(ino, &set[1..]);
            let _ = image.xattr_replace_all(ino, &[]);
        }
        assert!(errors > 20, "{errors}");
    }
}
