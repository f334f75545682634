//! Volumes that the kernel's ext4 filled: they must read the same here, and stay right when both write in turn.

use crate::harness::{Compare, Fs, Tree, Volume, kernel_mount, shell, umount_patiently};
use crate::programs::make_tree;
use crate::sys;
use ccfs_testkit::Rng;
use std::path::Path;

/// (name, mke2fs arguments): the shapes that mke2fs makes and that years leave behind.
pub const SHAPES: &[(&str, &[&str])] = &[
    ("default", &["-t", "ext4"]),
    ("blocks_4k", &["-t", "ext4", "-b", "4096"]),
    ("blocks_2k", &["-t", "ext4", "-b", "2048"]),
    ("blocks_1k", &["-t", "ext4", "-b", "1024"]),
    ("inodes_128", &["-t", "ext4", "-b", "4096", "-I", "128"]),
    ("inodes_512", &["-t", "ext4", "-b", "4096", "-I", "512"]),
    (
        "no_checksums",
        &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum"],
    ),
    (
        "checksum_seed",
        &["-t", "ext4", "-b", "4096", "-O", "metadata_csum_seed"],
    ),
    (
        "old_group_checksums",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    ("bits_32", &["-t", "ext4", "-b", "4096", "-O", "^64bit"]),
    (
        "no_flex_groups",
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"],
    ),
    (
        "no_index",
        &["-t", "ext4", "-b", "4096", "-O", "^dir_index"],
    ),
    (
        "orphan_file",
        &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
    ),
    ("small_groups", &["-t", "ext4", "-b", "1024", "-g", "1024"]),
    ("ext3", &["-t", "ext3", "-b", "4096"]),
    ("ext3_1k", &["-t", "ext3", "-b", "1024"]),
];

/// The kernel fills a volume of this shape, ccfs shows the same and changes it, the kernel changes it again, ccfs shows that.
pub fn both_ways(shape: &str, files: usize) {
    let (name, mke2fs) = SHAPES
        .iter()
        .find(|(n, _)| *n == shape)
        .expect("a known shape");
    let mut v = Volume::unformatted(Fs::Ccfs, name);
    v.mke2fs(400, mke2fs);
    v.kernel_wrote();
    let filled = with_kernel_writing(&v, |root| fill(root, files));
    v.mount();
    expect_same(
        &filled,
        &Tree::read(v.mnt()),
        "filled by the kernel, read by ccfs",
    );
    change(v.mnt(), 1);
    // Unmounts, e2fsck, and the kernel's view against ours.
    v.check_at_rest();
    let changed = with_kernel_writing(&v, |root| change(root, 2));
    v.mount();
    expect_same(
        &changed,
        &Tree::read(v.mnt()),
        "changed by both, read by ccfs",
    );
    change(v.mnt(), 3);
    v.finish();
}

fn expect_same(kernel: &Tree, ours: &Tree, what: &str) {
    let differences = kernel.differences(ours, Compare::everything());
    assert!(
        differences.is_empty(),
        "{what}:\n{}",
        differences.join("\n")
    );
}

/// Mounts the volume with the kernel, lets `work` change it, and returns what it shows then.
fn with_kernel_writing(v: &Volume, work: impl FnOnce(&Path)) -> Tree {
    let dir = v.outside("kernel-rw");
    std::fs::create_dir_all(&dir).expect("mount point");
    v.change_at_rest(|image| {
        kernel_mount(image, &dir, "loop,user_xattr,acl").unwrap_or_else(|e| panic!("mount: {e}"));
        work(&dir);
        let tree = Tree::read(&dir);
        umount_patiently(&dir);
        tree
    })
}

/// All kinds of inodes, deep extent trees, a large directory, holes, unwritten extents, attributes in and outside of inodes.
fn fill(root: &Path, files: usize) {
    make_tree(root, "tree", files);
    let d = root.join("odd");
    sys::mkdir(&d, 0o755).expect("mkdir");
    shell(
        &d,
        "mkfifo fifo; mknod null c 1 3; mknod far c 4095 1048575; mknod disk b 7 300
         ln -s short fast; ln -s $(printf 'l%.0s' $(seq 200)) slow; ln -s $(printf '%0.s./' $(seq 29))xx edge; ln -s $(printf '%0.s./' $(seq 30)) edge60
         touch a; setfattr -n user.small -v 1 a; setfattr -n user.large -v $(printf 'v%.0s' $(seq 700)) a
         setfacl -m u:60001:rw,g:60100:r a; mkdir withdefault; setfacl -d -m u:60001:rwx withdefault
         touch b; setfattr -n trusted.t -v 2 b; setfattr -n security.s -v 3 b
         mkdir big; cd big; seq -f 'a-rather-long-name-for-an-entry-%06g' 3000 | xargs touch; seq -f 'a-rather-long-name-for-an-entry-%06g' 1 7 3000 | xargs rm",
    );
    // Every other block: as many extents as there are blocks.
    let fd = sys::open(d.join("holes"), libc::O_CREAT | libc::O_RDWR, 0o644).expect("create");
    for i in 0..700u64 {
        sys::pwrite(&fd, &[i as u8; 3000], i * 16_384).expect("write");
    }
    sys::ftruncate(&fd, 20 << 20).expect("truncate");
    let fd = sys::open(d.join("unwritten"), libc::O_CREAT | libc::O_RDWR, 0o644).expect("create");
    // Block-mapped files cannot have unwritten extents.
    if sys::fallocate(&fd, 0, 0, 3 << 20).is_ok() {
        sys::pwrite(&fd, &[9; 10_000], 1 << 20).expect("write");
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        sys::fallocate(&fd, keep, 3 << 20, 2 << 20).expect("preallocate");
    }
    let far = sys::open(d.join("far-end"), libc::O_CREAT | libc::O_RDWR, 0o644).expect("create");
    sys::pwrite(&far, b"end", 10 << 30).expect("write far away");
    // Tree::read would read ten gigabytes of zeros.
    sys::ftruncate(&far, 100 << 20).expect("truncate");
    sys::pwrite(&far, b"end", 90 << 20).expect("write");
}

/// Random changes that touch what `fill` made, the same for the same seed.
fn change(root: &Path, seed: u64) {
    let mut rng = Rng::new(seed);
    let odd = root.join("odd");
    let holes = sys::open(odd.join("holes"), libc::O_RDWR, 0).expect("open");
    for _ in 0..60 {
        let at = rng.below(20 << 20);
        sys::pwrite(
            &holes,
            &rng.bytes(1 + rng.clone().below(40_000) as usize),
            at,
        )
        .expect("write");
        let (from, len) = (rng.below(20 << 20) as i64, 1 + rng.below(100_000) as i64);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let done = sys::fallocate(&holes, punch, from, len);
        assert!(
            done.is_ok() || done == Err(libc::EOPNOTSUPP),
            "punch: {done:?}"
        );
    }
    let unwritten = sys::open(odd.join("unwritten"), libc::O_RDWR, 0).expect("open");
    for _ in 0..20 {
        sys::pwrite(&unwritten, &rng.bytes(5000), rng.clone().below(4 << 20)).expect("write");
        rng.draw();
    }
    for i in 0..400 {
        let name = |i: u64| odd.join(format!("big/a-rather-long-name-for-an-entry-{i:06}"));
        let (a, b) = (name(rng.below(3000)), name(rng.below(6000)));
        match rng.below(4) {
            0 => drop(sys::unlink(a)),
            1 => drop(sys::rename(a, b)),
            2 => drop(sys::link(a, b)),
            _ => std::fs::write(b, format!("changed {i}")).expect("write"),
        }
    }
    shell(
        root,
        &format!(
            "find tree -name '*{seed}.txt' | sort | head -n 200 | while read f; do echo more >>$f; done
             find tree -name '*{}5.txt' | sort | head -n 100 | xargs -r rm
             find tree -mindepth 1 -type d | sort | sed -n '{seed}~9p' | tail -n 5 | while read d; do mv $d odd/moved-{seed}-$(basename $d) || true; done
             truncate -s {} odd/far-end
             setfattr -n user.round{seed} -v $(printf 'v%.0s' $(seq {}00)) odd/a || true; setfattr -x user.small odd/a || true
             mkdir odd/new{seed}; cp -a tree odd/new{seed}/copy; rm -rf odd/new{}",
            seed + 3,
            70_000_000 * seed,
            seed,
            seed.saturating_sub(1)
        ),
    );
}
