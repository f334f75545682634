//! Damage that an accepted operation has nothing to do with: it is applied, and recovered, all the same.
mod common;
use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_disks::{MemoryDevice, Plan, SimDevice};
use ccfs_engine::*;
use ccfs_ext4::errors::{CODE_CHECKSUM, CODE_CORRUPTED, ErrorFields};
use ccfs_image::{Image, OpenOptions};
use common::flash::{changed, device};
use common::{cx, debugfs, debugfs_says, image, mount, mount_on, quiet, recover, with_dir_index};
use std::sync::Arc;

const BLOCK: u64 = 1024;

/// The medium with one block of its volume changed.
fn patch(medium: &MemoryDevice, pblk: u64, change: impl FnOnce(&mut [u8])) -> MemoryDevice {
    let edit = |volume: &MemoryDevice| {
        let mut buf = AlignedBuf::zeroed(BLOCK as usize);
        volume.read(pblk * BLOCK, &mut buf).unwrap();
        change(&mut buf);
        write_all(volume, vec![Write::new(pblk * BLOCK, buf)]).unwrap();
        (volume.snapshot(), ())
    };
    changed(medium, edit).0
}

/// Puts `new` in the place of the first `old` from byte `from` on.
fn replace(block: &mut [u8], from: usize, old: &[u8], new: &[u8]) {
    let at = from
        + block[from..]
            .windows(old.len())
            .position(|w| w == old)
            .expect("it is there");
    block[at..at + new.len()].copy_from_slice(new);
}

/// The first number in what debugfs says.
fn number(text: &str) -> u64 {
    text.split_whitespace()
        .find_map(|w| w.parse().ok())
        .unwrap_or_else(|| panic!("{text}"))
}

fn name(i: u32) -> Vec<u8> {
    format!("{}-name-{i}", "x".repeat(30)).into_bytes()
}

/// A linear directory `/d` of three blocks, on a volume that has indexed directories by now.
fn linear(features: &str) -> (MemoryDevice, Ino) {
    let features = format!("^dir_index{features}");
    let dev = Arc::new(image(&["-b", "1024", "-O", &features], "16M"));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    (0..50).for_each(|i| {
        v.link(&c, f, d, &name(i)).unwrap();
    });
    v.syncfs(&c).unwrap();
    assert_eq!(v.getattr(d).unwrap().blocks512, 3 * BLOCK / 512);
    v.unmount().unwrap();
    (with_dir_index(&dev), d)
}

/// A change of a name in the first block of a directory that is damaged elsewhere.
fn change_and_crash(dev: MemoryDevice, d: Ino) {
    let dev = Arc::new(dev);
    let v = mount(&dev);
    let c = cx(1);
    v.unlink(&c, d, &name(1)).unwrap();
    v.syncfs(&c).unwrap();
    assert_eq!(v.status().stopped, "");
    let copy = Arc::new(dev.snapshot());
    v.unmount().unwrap();
    recover(copy.clone()).unwrap();
    for dev in [&dev, &copy] {
        let v = mount(dev);
        v.lookup(d, &name(0)).unwrap();
        let gone = v.lookup(d, &name(1)).map(|_| ());
        // Where a later block cannot be read, nobody can say that a name is not there.
        assert!(gone.is_err(), "{gone:?}");
        v.unlink(&c, d, &name(2)).unwrap();
        v.syncfs(&c).unwrap();
        v.unmount().unwrap();
    }
}

#[test]
fn a_linear_directory_with_an_impossible_name_in_a_later_block() {
    let (dev, d) = linear(",^metadata_csum");
    let (_, at) = debugfs_says(&dev, "bmap /d 2");
    let dev = patch(&dev, number(&at), |b| replace(b, 0, b"-name-", b"/"));
    change_and_crash(dev, d);
}

#[test]
fn a_linear_directory_with_a_wrong_checksum_in_a_later_block() {
    let (dev, d) = linear("");
    let (_, at) = debugfs_says(&dev, "bmap /d 2");
    let dev = patch(&dev, number(&at), |b| replace(b, 0, b"-name-", b"+"));
    change_and_crash(dev, d);
}

#[test]
fn a_linear_directory_without_its_parent() {
    let (dev, d) = linear(",^metadata_csum");
    let (_, at) = debugfs_says(&dev, "bmap /d 0");
    let dev = patch(&dev, number(&at), |b| replace(b, 20, b"..", b"zz"));
    change_and_crash(dev, d);
}

/// What recovery looks for when a checkpoint could not list all files without a name.
#[test]
fn files_without_a_name_are_found_beside_a_damaged_inode() {
    let dev = Arc::new(image(&["-b", "1024", "-N", "64"], "16M"));
    let v = mount(&dev);
    let c = cx(1);
    let make = |name: &[u8]| v.mknod(&c, ROOT_INO, name, 0o100644, 0).unwrap().ino;
    let (_, b) = (make(b"a"), make(b"b"));
    v.unmount().unwrap();
    let dev = debugfs(&dev, "sif /b links_count 0");
    let (_, place) = debugfs_says(&dev, "imap /a");
    // "located at block 6, offset 0x0b00"
    let words = place.split("located at block ").nth(1).unwrap();
    let (pblk, offset) = words.split_once(", offset 0x").unwrap();
    let offset = usize::from_str_radix(offset.trim(), 16).unwrap();
    let dev = patch(&dev, pblk.parse().unwrap(), |block| {
        block[offset + 8] ^= 1; // the access time: the checksum is wrong then
    });
    let image = Image::open(device(Arc::new(dev)), OpenOptions::default()).unwrap();
    assert_eq!(image.nameless_inodes().unwrap(), [b]);
}

/// A file that has lost its last link by the count, and has names left: nothing is freed twice.
#[test]
fn a_file_with_more_names_than_links() {
    let dev = Arc::new(image(&["-b", "1024"], "16M"));
    let v = mount(&dev);
    let f = v.mknod(&cx(1), ROOT_INO, b"a", 0o100644, 0).unwrap().ino;
    v.unmount().unwrap();
    // debugfs leaves the count as it is.
    let mut dev = dev.snapshot();
    for name in ["b", "c"] {
        dev = debugfs(&dev, &format!("ln <{f}> {name}"));
    }
    let v = mount(&Arc::new(dev));
    assert_eq!(v.lookup(ROOT_INO, b"c").unwrap().nlink, 1);
    v.unlink(&cx(1), ROOT_INO, b"a").unwrap();
    let gone = |r: Result<()>| assert_eq!(r.unwrap_err().errno(), libc::ENOENT);
    gone(v.unlink(&cx(2), ROOT_INO, b"b"));
    gone(v.rename(
        &cx(2),
        ROOT_INO,
        b"c",
        ROOT_INO,
        b"d",
        RenameFlags::default(),
    ));
    v.mknod(&cx(2), ROOT_INO, b"new", 0o100644, 0).unwrap();
    v.syncfs(&cx(2)).unwrap();
    assert_eq!(v.status().stopped, "");
    v.unmount().unwrap();
}

/// What the super block of the volume on a medium remembers: how many errors, the first and the last.
fn remembered(medium: Arc<dyn Device>) -> (u32, Option<(ErrorFields, ErrorFields)>) {
    let image = Image::open(device(medium), OpenOptions::default()).unwrap();
    assert_eq!(image.has_errors(), image.recorded_errors().0 > 0);
    image.recorded_errors()
}

/// What a call meets is in the super block: after the next commit, so after a crash, and after the unmount. A place counts once a mount.
#[test]
fn met_damage_is_remembered_in_the_super_block() {
    for features in ["", ",^metadata_csum"] {
        let (dev, d) = linear(features);
        let (dev, said) = debugfs_says(&dev, "bmap /d 1");
        let block = number(&said);
        let dev = patch(&dev, block, |b| b[4..6].copy_from_slice(&[3, 0]));
        let dev = Arc::new(dev);
        assert_eq!(remembered(dev.clone()), (0, None));
        for mounts in 1..=2 {
            let v = mount(&dev);
            let c = cx(1);
            for _ in 0..3 {
                let met = v.lookup(d, b"no such name").unwrap_err();
                assert_eq!(met.errno(), libc::EUCLEAN, "{met}");
            }
            let damage = v.status().damage;
            assert_eq!(
                (damage.met, damage.error_count, damage.recorded),
                (1, mounts, false)
            );
            let made = format!("new {mounts}");
            v.mkdir(&c, ROOT_INO, made.as_bytes(), 0o755).unwrap();
            v.syncfs(&c).unwrap();
            assert!(v.status().damage.recorded, "{features}");
            let copy = Arc::new(dev.snapshot());
            assert!(recover(copy.clone()).unwrap());
            v.unmount().unwrap();
            for (how, medium) in [("crash", &copy), ("unmount", &dev)] {
                let (count, errors) = remembered((*medium).clone());
                let (first, last) = errors.expect(how);
                assert_eq!(count, mounts, "{how}");
                for error in [&first, &last] {
                    assert_eq!((error.inode, error.block), (d, block), "{how} {features}");
                    assert!(
                        error.function.starts_with("ccfs ") && error.line > 0,
                        "{error:?}"
                    );
                }
                let wrong_checksum = features.is_empty();
                let code = if wrong_checksum {
                    CODE_CHECKSUM
                } else {
                    CODE_CORRUPTED
                };
                assert_eq!(last.code, code, "{how}");
            }
        }
    }
}

/// A device that cannot read now says nothing of what lies on it.
#[test]
fn a_read_error_is_no_damage() {
    let (dev, d) = linear("");
    let sim = Arc::new(SimDevice::new(&dev));
    let v = mount_on(sim.clone(), quiet()).unwrap();
    sim.set_plan(Plan {
        fail_reads: (0..1000).collect(),
        ..Plan::default()
    });
    assert_eq!(v.lookup(d, b"none").unwrap_err().errno(), libc::EIO);
    sim.set_plan(Plan::default());
    assert_eq!(v.lookup(d, b"none").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(
        (v.status().damage.met, v.status().damage.error_count),
        (0, 0)
    );
    v.unmount().unwrap();
    assert_eq!(remembered(Arc::new(sim.live())), (0, None));
}
