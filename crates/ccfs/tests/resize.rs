//! `ccfs resize`: at rest and mounted, larger and smaller; bad input; a daemon that is killed while its volume grows.
mod common;
use common::{
    Place, ccfs, ccfs_with, daemon, filled, mount, plain_ext4, refused, signal, tool, unmount,
    wait_for_end,
};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The volume's bytes, as dumpe2fs tells them.
fn size_of(image: &str) -> u64 {
    let text = tool("dumpe2fs", &["-h", image]);
    let number = |name: &str| -> u64 {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap();
        line.split(':').nth(1).unwrap().trim().parse().unwrap()
    };
    number("Block count") * number("Block size")
}

fn file_len(image: &str) -> u64 {
    fs::metadata(image).unwrap().len()
}

fn resized(args: &[&str]) -> String {
    let ran = ccfs_with(&[&["resize"], args].concat());
    assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

fn names(image: &str) -> String {
    let ran = ccfs_with(&["ls", image]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    ran.out
}

fn lengthen(image: &str, bytes: u64) {
    let file = OpenOptions::new().write(true).open(image).unwrap();
    file.set_len(bytes).unwrap();
}

#[test]
fn larger_and_smaller_at_rest() {
    let place = Place::new();
    let image = filled(&place, "a.img");
    let before = names(&image);
    let whole = fs::metadata(&image).unwrap().blocks() * 512 >= file_len(&image);
    let said = resized(&[&image, "100M"]);
    assert!(said.contains("100 MiB, before 32 MiB"), "{said}");
    assert_eq!((size_of(&image), file_len(&image)), (100 * MIB, 100 * MIB));
    let space = fs::metadata(&image).unwrap().blocks() * 512;
    assert!(
        !whole || space >= 100 * MIB,
        "a file without holes has none"
    );
    assert!(resized(&[&image, "100M"]).contains("as before"));
    assert!(resized(&[&image]).contains("as before"));
    // To the size of the file, which can be larger than what makes a group.
    lengthen(&image, 150 * MIB + 77);
    resized(&[&image]);
    assert!(size_of(&image) > 140 * MIB);
    tool("e2fsck", &["-fn", &image]);
    assert_eq!(names(&image), before);
    resized(&[&image, "40M"]);
    assert!(size_of(&image) <= 40 * MIB && file_len(&image) == size_of(&image));
    tool("e2fsck", &["-fn", &image]);
    assert_eq!(names(&image), before);
    let ran = ccfs_with(&["resize", &image, "1M"]);
    refused("too small", &ran, 1, &["bytes are too few"]);
    assert!(size_of(&image) > 30 * MIB && file_len(&image) == size_of(&image));
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn where_there_is_no_room_for_descriptors() {
    let place = Place::new();
    let image = place.text("a.img");
    let made = [
        "mkfs",
        "-s",
        "32M",
        "--sparse",
        &image,
        "--",
        "-b",
        "1024",
        "-O",
        "^resize_inode",
    ];
    let ran = ccfs_with(&made);
    assert_eq!(ran.code, 0, "{}", ran.err);
    if common_mounts() {
        let dir = place.subdir("mnt");
        mount(&image, &dir);
        let ran = ccfs_with(&["resize", &dir, "300M"]);
        refused(
            "mounted",
            &ran,
            1,
            &["no room for more group descriptors", "can grow to"],
        );
        unmount(&dir);
    }
    let said = resized(&[&image, "300M"]);
    assert!(said.contains("resize2fs makes the room"), "{said}");
    assert!(size_of(&image) > 290 * MIB);
    tool("e2fsck", &["-fn", &image]);
}

fn common_mounts() -> bool {
    let why = ccfs_testkit::mounts::no_mounts();
    why.inspect(|why| println!("skipped: the mounted part: {why}"));
    why.is_none()
}

#[test]
fn what_cannot_be_resized_is_refused() {
    let place = Place::new();
    let absent = place.text("absent");
    refused(
        "nothing",
        &ccfs_with(&["resize", &absent, "1G"]),
        1,
        &["No such file"],
    );
    let dir = place.subdir("dir");
    refused(
        "not ours",
        &ccfs_with(&["resize", &dir, "1G"]),
        1,
        &["not on a mounted ccfs volume"],
    );
    refused("usage", &ccfs_with(&["resize"]), 2, &["Usage"]);
    let text = place.text("text");
    fs::write(&text, vec![b'x'; 100_000]).unwrap();
    refused(
        "no volume",
        &ccfs_with(&["resize", &text, "1G"]),
        1,
        &["no ext2, ext3 or ext4"],
    );
    let image = filled(&place, "a.img");
    refused(
        "no size",
        &ccfs_with(&["resize", &image, "big"]),
        2,
        &["big"],
    );
    refused(
        "too large",
        &ccfs_with(&["resize", &image, "4194304T"]),
        1,
        &["no room for more group descriptors"],
    );
    assert_eq!(file_len(&image), 32 * MIB);
    let flash = place.text("flash.img");
    let ran = ccfs_with(&["mkfs", "--flash", "-s", "64M", &flash]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    refused(
        "flash",
        &ccfs_with(&["resize", &flash, "1G"]),
        1,
        &["flash file"],
    );
    // Somebody else has it.
    let lock = ccfs_device::FileDevice::open(&image, ccfs_device::OpenMode::ReadWrite).unwrap();
    refused(
        "in use",
        &ccfs_with(&["resize", &image, "1G"]),
        1,
        &["in use"],
    );
    drop(lock);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn larger_while_it_is_mounted() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (filled(&place, "a.img"), place.subdir("mnt"));
    mount(&image, &dir);
    let total = || {
        let s = rustix::fs::statvfs(&*dir).unwrap();
        s.f_blocks * s.f_frsize
    };
    let before = total();
    fs::write(place.path("mnt/open"), vec![1; 100_000]).unwrap();
    let said = resized(&[&dir, "120M"]);
    assert!(said.contains("120 MiB, before 32 MiB"), "{said}");
    assert!(total() > before + 80 * MIB);
    // By the image's name as well; and what is new can be used.
    resized(&[&image, "200M"]);
    fs::write(place.path("mnt/large"), vec![7; 140 << 20]).unwrap();
    assert!(resized(&[&dir, "200M"]).contains("as before"));
    let ran = ccfs_with(&["resize", &dir, "64M"]);
    refused("smaller", &ran, 1, &["to make it smaller unmount it first"]);
    unmount(&dir);
    assert_eq!(size_of(&image), 200 * MIB);
    let all = plain_ext4(&place, &image);
    assert_eq!(all.len(), 42, "{all:?}");
    let ran = ccfs_with(&["mount", "-o", "ro", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    refused(
        "read-only",
        &ccfs_with(&["resize", &dir, "1G"]),
        1,
        &["read-only"],
    );
    unmount(&dir);
}

#[test]
fn a_mounted_flash_file_keeps_its_size() {
    common::needs_mounts!();
    let place = Place::new();
    let (flash, dir) = (place.text("flash.img"), place.subdir("mnt"));
    let ran = ccfs_with(&["mkfs", "--flash", "-s", "64M", &flash]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    mount(&flash, &dir);
    refused(
        "flash",
        &ccfs_with(&["resize", &dir, "100M"]),
        1,
        &["transactional flash"],
    );
    assert!(resized(&[&dir]).contains("as before"));
    unmount(&dir);
}

/// The daemon dies at some moment of growing: the volume has one of the two sizes, is sound, and grows on.
#[test]
fn killed_while_it_grows() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (filled(&place, "a.img"), place.subdir("mnt"));
    let before = names(&image);
    let (mut size, mut halfway, mut cut) = (32 * MIB, 0, 0);
    for round in 0..16u64 {
        mount(&image, &dir);
        let pid = daemon(&dir);
        fs::write(place.path("mnt/f"), vec![round as u8; 500_000]).unwrap();
        let wanted = size + 40 * MIB;
        let mut growing = ccfs()
            .args(["resize", &dir, &wanted.to_string()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(700 * (round % 16)));
        signal(pid, "KILL");
        let ended = growing.wait().unwrap();
        wait_for_end(pid);
        let _ = ccfs_with(&["umount", &dir]);
        let ran = ccfs_with(&["fsck", "-p", &image]);
        assert!(ran.code <= 1, "round {round}: {}{}", ran.out, ran.err);
        tool("e2fsck", &["-fn", &image]);
        let now = size_of(&image);
        assert!(
            now == size || now == wanted,
            "round {round}: {now} of {wanted}"
        );
        assert!(!ended.success() || now == wanted, "what was told is there");
        halfway += u64::from(now == size && file_len(&image) > size);
        cut += u64::from(now == size);
        size = now;
        assert!(names(&image).lines().count() <= before.lines().count() + 1);
    }
    println!("16 kills: {cut} before the switch, {halfway} of them with a longer file");
    resized(&[&image, &(size + 64 * MIB).to_string()]);
    tool("e2fsck", &["-fn", &image]);
}
