//! What is opened and what is refused, the feature bit, and what restoring blocks does.

mod image_common;

use ccfs_device::{Device, Write, write_all};
use ccfs_disks::MemoryDevice;
use ccfs_ext4::features::{Class, IN_FLIGHT, Support, TABLE};
use ccfs_ext4::superblock::RawSuper;
use ccfs_image::{Image, OpenOptions};
use image_common::{Model, Rng, SHAPES, Volume, fsck, home, mkfs, open, run};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

fn raw_super(dev: &MemoryDevice) -> RawSuper {
    let mut b = [0u8; 1024];
    dev.read(1024, &mut b).unwrap();
    RawSuper::read_from_bytes(&b).unwrap()
}

fn put(dev: &MemoryDevice, offset: u64, bytes: &[u8]) {
    // Whole sectors, as a device writes them.
    let start = offset / 512 * 512;
    let end = (offset + bytes.len() as u64).div_ceil(512) * 512;
    let mut buf = ccfs_device::AlignedBuf::zeroed((end - start) as usize);
    dev.read(start, &mut buf).unwrap();
    let at = (offset - start) as usize;
    buf[at..at + bytes.len()].copy_from_slice(bytes);
    write_all(dev, vec![Write::new(start, buf)]).unwrap();
}

fn change_super(dev: &MemoryDevice, f: impl FnOnce(&mut RawSuper)) {
    let mut raw = raw_super(dev);
    f(&mut raw);
    raw.seal();
    put(dev, 1024, raw.as_bytes());
}

fn refusal(dev: &Arc<MemoryDevice>) -> String {
    match open(dev) {
        Err(ccfs_ext4::Error::Refused(text)) => text,
        Err(e) => panic!("not refused but {e:?}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn every_feature_that_mke2fs_knows_is_judged_by_name() {
    // Names of the table that differ from mke2fs's, and what a feature needs to be made.
    let with: &[(&str, &[&str])] = &[
        ("bigalloc", &["-O", "bigalloc", "-C", "16384"]),
        ("sparse_super2", &["-O", "sparse_super2,^resize_inode"]),
        ("meta_bg", &["-O", "meta_bg,^resize_inode"]),
        ("uninit_bg", &["-O", "^metadata_csum,uninit_bg"]),
        ("project", &["-O", "quota,project", "-I", "256"]),
        ("journal_dev", &["-O", "journal_dev"]),
    ];
    let mut made = 0;
    for f in TABLE {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("v");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(32 << 20)
            .unwrap();
        let name = format!("^resize_inode,{}", f.name);
        let plain = [
            "-O",
            if f.name == "resize_inode" {
                f.name
            } else {
                &name
            },
        ];
        let args = with
            .iter()
            .find(|w| w.0 == f.name)
            .map_or(&plain[..], |w| w.1);
        let mut all = vec!["-q", "-F", "-t", "ext4", "-b", "4096"];
        all.extend(args);
        all.push(path.to_str().unwrap());
        if !run("mke2fs", &all).status.success() {
            continue;
        }
        let dev = Arc::new(MemoryDevice::from_file(&path).unwrap());
        let raw = raw_super(&dev);
        let word = match f.class {
            Class::Compat => raw.feature_compat.get(),
            Class::Incompat => raw.feature_incompat.get(),
            Class::RoCompat => raw.feature_ro_compat.get(),
        };
        assert!(word & f.bit != 0, "mke2fs did not set {}", f.name);
        made += 1;
        // Only on a device that counts, which this one does not.
        let has_to_count = f.name == "mmp";
        if f.support == Support::Full && !has_to_count {
            open(&dev).unwrap_or_else(|e| panic!("{}: {e}", f.name));
            continue;
        }
        let text = refusal(&dev);
        assert!(text.contains(f.name), "{}: {text}", f.name);
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        let ro = Image::open(dev, read_only);
        let may_be_read = f.support == Support::ReadOnly || has_to_count;
        assert_eq!(ro.is_ok(), may_be_read, "{}", f.name);
    }
    assert!(made >= 25, "mke2fs made only {made} features");
}

#[test]
fn states_and_unknown_bits_are_refused_with_advice() {
    let v = Volume::make(32, &["-b", "4096"]);
    let try_with = |f: &dyn Fn(&mut RawSuper)| {
        let dev = Arc::new(v.dev.snapshot());
        change_super(&dev, f);
        refusal(&dev)
    };
    let text = try_with(&|s| s.feature_incompat = (s.feature_incompat.get() | 4).into());
    assert!(
        text.contains("needs_recovery") && text.contains("e2fsck"),
        "{text}"
    );
    assert!(try_with(&|s| s.state = 2.into()).contains("e2fsck"));
    assert!(try_with(&|s| s.state = 0.into()).contains("e2fsck"));
    assert!(try_with(&|s| s.last_orphan = 12.into()).contains("orphan"));
    assert!(
        try_with(&|s| s.feature_ro_compat = (s.feature_ro_compat.get() | 0x1_0000).into())
            .contains("e2fsck")
    );
    let text = try_with(&|s| s.feature_incompat = (s.feature_incompat.get() | 0x2000_0000).into());
    assert!(text.contains("0x20000000"), "{text}");
    assert!(try_with(&|s| s.magic = 1.into()).contains("magic"));
}

#[test]
fn a_volume_without_journal_says_how_to_get_one() {
    let v = Volume::make(32, &["-b", "4096", "-O", "^has_journal"]);
    let text = v.image.journal_blocks().unwrap_err().to_string();
    assert!(text.contains("tune2fs -j"), "{text}");
    let v = Volume::make(64, &["-b", "1024"]);
    let blocks: u64 = v
        .image
        .journal_blocks()
        .unwrap()
        .iter()
        .map(|r| r.len)
        .sum();
    assert_eq!(blocks, 4096);
    let out = v.debugfs("blocks <8>");
    let listed: Vec<u64> = out.split_whitespace().map(|w| w.parse().unwrap()).collect();
    let ours = v.image.journal_blocks().unwrap();
    assert!(
        ours.iter()
            .flat_map(|r| r.pblk..r.pblk + r.len)
            .all(|b| listed.contains(&b))
    );
}

#[test]
fn the_bit_goes_on_and_off_and_leaves_no_trace() {
    for (name, mib, args) in SHAPES {
        let v = Volume::make(*mib, args);
        let before = v.dev.snapshot();
        v.image.write_in_flight(true).unwrap();
        assert!(
            v.image.in_flight() && open(&v.dev).unwrap().in_flight(),
            "{name}"
        );
        v.dev.to_file(&v.path).unwrap();
        let out = run("e2fsck", &["-fn", v.path.to_str().unwrap()]);
        assert!(
            !out.status.success(),
            "{name}: e2fsck accepts a volume in flight"
        );
        v.image.write_in_flight(false).unwrap();
        assert!(!v.image.in_flight());
        assert_eq!(v.dev.first_difference(&before), None, "{name}");
    }
}

#[test]
fn a_volume_whose_log_was_given_up_is_not_taken_for_sound() {
    for (name, mib, args) in SHAPES {
        let v = Volume::make(*mib, args);
        v.image.write_in_flight(true).unwrap();
        v.image.give_up_log().unwrap();
        assert!(!v.image.in_flight(), "{name}");
        let refused = open(&v.dev).err().unwrap().to_string();
        assert!(
            refused.contains("not cleanly unmounted"),
            "{name}: {refused}"
        );
        v.dev.to_file(&v.path).unwrap();
        // Without being told to, e2fsck looks at all of it; then it is sound.
        let out = run("e2fsck", &["-p", v.path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(said.contains("check forced"), "{name}: {said}");
        assert!(out.status.code() <= Some(1), "{name}: {said}");
        let out = run("e2fsck", &["-fn", v.path.to_str().unwrap()]);
        assert!(out.status.success(), "{name}");
    }
}

#[test]
fn torn_bits_are_decided_by_the_checksum() {
    let v = Volume::make(32, &["-b", "4096"]);
    let off = raw_super(&v.dev);
    v.image.write_in_flight(true).unwrap();
    let on = raw_super(&v.dev);
    let (off, on) = (off.as_bytes(), on.as_bytes());
    for (first, second, counts_as) in [
        (off, off, false),
        (off, on, true),
        (on, on, true),
        (on, off, true),
    ] {
        let dev = Arc::new(v.dev.snapshot());
        put(&dev, 1024, &first[..512]);
        put(&dev, 1536, &second[512..]);
        let image = open(&dev).unwrap();
        assert_eq!(image.in_flight(), counts_as);
        // From every state both values can be reached.
        for to in [true, false] {
            let dev = Arc::new(dev.snapshot());
            let image = open(&dev).unwrap();
            image.write_in_flight(to).unwrap();
            assert_eq!(raw_super(&dev).as_bytes(), if to { on } else { off });
            assert_eq!(open(&dev).unwrap().in_flight(), to);
        }
    }
    let dev = Arc::new(v.dev.snapshot());
    put(&dev, 1024 + 0x3FC, &[1, 2, 3, 4]);
    change_bit(&dev, false);
    assert!(matches!(open(&dev), Err(ccfs_ext4::Error::Corrupt(_))));
}

/// Changes the bit and not the checksum.
fn change_bit(dev: &MemoryDevice, on: bool) {
    let mut raw = raw_super(dev);
    let word = raw.feature_incompat.get() & !IN_FLIGHT;
    raw.feature_incompat = (word | if on { IN_FLIGHT } else { 0 }).into();
    put(dev, 1024, raw.as_bytes());
}

#[test]
fn a_torn_checkpoint_is_repaired_by_restoring_its_blocks() {
    let v = Volume::make(40, &["-b", "1024"]);
    v.image.write_in_flight(true).unwrap();
    let mut rng = Rng::new(5);
    let mut m = Model::new(&v.image, 9);
    for _ in 0..150 {
        m.step();
    }
    m.create();
    let blocks = v.image.take_dirty();
    // Of the checkpoint any sectors reach the medium; the log still has all of it.
    for _ in 0..20 {
        let dev = Arc::new(v.dev.snapshot());
        for (pblk, buf) in &blocks {
            for sector in 0..2 {
                if rng.below(2) == 0 {
                    put(
                        &dev,
                        pblk * 1024 + sector * 512,
                        &buf[sector as usize * 512..][..512],
                    );
                }
            }
        }
        let image = open(&dev).unwrap();
        assert!(image.in_flight());
        let _ = image.read_attr(2);
        let writes = blocks
            .iter()
            .map(|(pblk, buf)| Write::new(pblk * 1024, buf.clone()))
            .collect();
        write_all(&*dev, writes).unwrap();
        for (pblk, buf) in &blocks {
            image.restore(*pblk, buf.clone());
        }
        m.compare(&image);
        assert_eq!(image.alloc().free_inodes(), v.image.alloc().free_inodes());
        let mut go_on = Model::new(&image, 77);
        go_on.files = m.files.clone();
        go_on.write();
        home(&image, &dev);
        image.write_in_flight(false).unwrap();
        dev.to_file(&v.path).unwrap();
        fsck(&v.path, "restored");
    }
}

#[test]
fn a_suspect_super_block_is_not_blessed() {
    let v = Volume::make(32, &["-b", "4096"]);
    v.image.write_in_flight(true).unwrap();
    let mut raw = raw_super(&v.dev);
    raw.free_blocks_lo = 1000.into();
    put(&v.dev, 1024, raw.as_bytes());
    let image = open(&v.dev).unwrap();
    assert!(image.in_flight());
    assert!(image.write_in_flight(false).is_err());
}

#[test]
fn huge_sparse_volumes_open_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("v");
    // 8 TiB of 1K blocks would be a million groups; mke2fs takes long for it, so a smaller one with lazy tables.
    mkfs(
        &path,
        1 << 20,
        &[
            "-b",
            "4096",
            "-E",
            "lazy_itable_init=1,lazy_journal_init=1",
            "-J",
            "size=4",
            "-N",
            "100000",
        ],
    );
    let dev: Arc<dyn Device> =
        Arc::new(ccfs_device::FileDevice::open(&path, ccfs_device::OpenMode::ReadWrite).unwrap());
    let before = dev.counters().reads;
    let image = Image::open(dev.clone(), OpenOptions::default()).unwrap();
    let ino = image.alloc().allocate_inode(2, false).unwrap();
    image
        .create_inode(ino, &image_common::attr(0o100644))
        .unwrap();
    image.dir_insert(2, b"x", ino, 1).unwrap();
    let run = image
        .alloc()
        .allocate(image.geometry().blocks_count - 5, 1, 1)
        .unwrap();
    image.set(ino, 0, 1, run.pblk, false).unwrap();
    let mut a = image.read_attr(ino).unwrap();
    a.size = 4096;
    image.write_attr(ino, &a).unwrap();
    let reads = dev.counters().reads - before;
    assert!(reads < 60, "{reads} reads");
    let blocks = image.take_dirty();
    let writes = blocks
        .iter()
        .map(|(pblk, buf)| Write::new(pblk * 4096, buf.clone()))
        .collect();
    write_all(&*dev, writes).unwrap();
    dev.flush().unwrap();
    drop((image, dev));
    fsck(&path, "a volume of a TiB");
}

/// Without huge_file a file's blocks are counted in 32 bits of sectors, those of its map included: whatever the block size, no file may
/// become so long that they do not suffice.
#[test]
fn without_huge_file_the_count_of_sectors_bounds_files() {
    for bs in [1024u64, 4096, 16384, 32768, 65536] {
        let v = Volume::make(96, &["-b", &bs.to_string(), "-O", "^huge_file"]);
        let g = v.image.geometry();
        let limit = u64::from(u32::MAX) * 512;
        for most in [g.max_file_size_blockmap, g.max_file_size_extents] {
            assert!(most <= limit, "{most} bytes with blocks of {bs}");
        }
        // As the kernel has it, to a few per cent: a limit that forbids what fits would be wrong as well.
        let reach = (12 + bs / 4 + (bs / 4).pow(2) + (bs / 4).pow(3)).saturating_mul(bs);
        let least = limit.min(reach) / 100 * 98;
        assert!(
            g.max_file_size_blockmap >= least,
            "{} bytes with blocks of {bs}",
            g.max_file_size_blockmap
        );
    }
}
