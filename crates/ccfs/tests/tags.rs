//! `LABEL=`, `UUID=`, `PARTLABEL=` and `PARTUUID=` in place of a device, and of a directory of the volume on it.
mod common;
use common::{Place, Ran, ccfs_with, in_namespace, run, tool};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

const SECTOR: u64 = 512;
/// Of the partition, sectors.
const FIRST: u64 = 2048;
const SECTORS: u64 = (40 << 20) / SECTOR;

/// A loop device over a file, with one partition if asked for.
struct Loop {
    device: String,
    partition: String,
}

impl Loop {
    fn over(file: &str) -> Loop {
        let device = tool("losetup", &["--find", "--show", file]);
        let device = device.trim().to_string();
        let partition = format!("{device}p1");
        Loop { device, partition }
    }

    /// Told to the kernel by name: not every kernel reads tables itself.
    fn with_partition(file: &str) -> Loop {
        let made = Loop::over(file);
        let (first, sectors) = (FIRST.to_string(), SECTORS.to_string());
        tool("addpart", &[&made.device, "1", &first, &sectors]);
        made
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let quiet = |command: &mut Command| drop(command.output());
        quiet(Command::new("delpart").args([&self.device, "1"]));
        quiet(Command::new("losetup").args(["-d", &self.device]));
    }
}

/// CRC-32 as GPT has it (IEEE 802.3), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(c & 1))
        })
    })
}

/// Writes a GUID partition table with one partition to a file of 48 MiB. Gives its PARTUUID.
fn partition(path: &str, label: &str) -> String {
    const SIZE: u64 = 48 << 20;
    let last = SIZE / SECTOR - 1;
    let file = fs::File::create(path).unwrap();
    file.set_len(SIZE).unwrap();
    let number = std::process::id().to_le_bytes();
    let mut entry = [0u8; 128 * 128];
    // Linux data: 0fc63daf-8483-4772-8e79-3d69d8477de4
    let kind = [
        0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d,
        0xe4,
    ];
    entry[..16].copy_from_slice(&kind);
    entry[16..32].copy_from_slice(&[7; 16]);
    entry[16..20].copy_from_slice(&number);
    entry[32..40].copy_from_slice(&FIRST.to_le_bytes());
    entry[40..48].copy_from_slice(&(FIRST + SECTORS - 1).to_le_bytes());
    for (n, unit) in label.encode_utf16().enumerate() {
        entry[56 + 2 * n..58 + 2 * n].copy_from_slice(&unit.to_le_bytes());
    }
    let header = |own: u64, other: u64, entries: u64| {
        let mut h = [0u8; SECTOR as usize];
        h[..8].copy_from_slice(b"EFI PART");
        h[8..12].copy_from_slice(&0x1_0000u32.to_le_bytes());
        h[12..16].copy_from_slice(&92u32.to_le_bytes());
        let places = [own, other, 34, last - 33];
        for (n, place) in places.iter().enumerate() {
            h[24 + 8 * n..32 + 8 * n].copy_from_slice(&place.to_le_bytes());
        }
        h[56..72].copy_from_slice(&[9; 16]);
        h[56..60].copy_from_slice(&number);
        h[72..80].copy_from_slice(&entries.to_le_bytes());
        h[80..84].copy_from_slice(&128u32.to_le_bytes());
        h[84..88].copy_from_slice(&128u32.to_le_bytes());
        h[88..92].copy_from_slice(&crc32(&entry).to_le_bytes());
        let sum = crc32(&h[..92]);
        h[16..20].copy_from_slice(&sum.to_le_bytes());
        h
    };
    // The table for those who know none of these.
    let mut mbr = [0u8; SECTOR as usize];
    mbr[450] = 0xee;
    mbr[454..458].copy_from_slice(&1u32.to_le_bytes());
    mbr[458..462].copy_from_slice(&(last as u32).to_le_bytes());
    mbr[510..].copy_from_slice(&[0x55, 0xaa]);
    for (sector, bytes) in [
        (0, &mbr[..]),
        (1, &header(1, last, 2)[..]),
        (2, &entry[..]),
        (last - 32, &entry[..]),
        (last, &header(last, 1, last - 32)[..]),
    ] {
        file.write_all_at(bytes, sector * SECTOR).unwrap();
    }
    let number = std::process::id();
    format!("{number:08x}-0707-0707-0707-070707070707")
}

/// A name that no other test's device has.
fn unique(name: &str) -> String {
    format!("{name}{}", std::process::id())
}

/// Runs `ccfs`, which has to succeed. Gives what it said.
fn done(args: &[&str]) -> String {
    let ran = ccfs_with(args);
    assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

#[track_caller]
fn refused(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    for word in words {
        assert!(ran.err.contains(word), "\"{word}\" is not in {}", ran.err);
    }
}

#[test]
fn every_command_takes_every_tag() {
    common::needs_mounts!();
    let place = Place::new();
    let (file, dir) = (place.text("disk"), place.subdir("mnt"));
    // A label with what separates an image from a path, and with a blank.
    let (label, name) = (unique("a:b "), unique("Part /"));
    let uuid_of_part = partition(&file, &name);
    let disk = Loop::with_partition(&file);
    let part = format!("PARTLABEL={name}");
    done(&["mkfs", "-L", &label, &part]);
    let shown = tool(
        "blkid",
        &["-p", "-s", "UUID", "-o", "value", &disk.partition],
    );
    let uuid = format!("UUID={}", shown.trim().to_uppercase());
    let partuuid = format!("PARTUUID={}", uuid_of_part.to_uppercase());
    let label = format!("LABEL={label}");
    let tags = [&label, &uuid, &part, &partuuid];

    for tag in tags {
        fs::write(place.path("f"), tag).unwrap();
        done(&["put", &place.text("f"), &format!("{tag}:/f")]);
        assert_eq!(done(&["cat", &format!("{label}:/f")]), *tag);
        assert_eq!(done(&["ls", tag]), "f\nlost+found\n");
        done(&["cp", &format!("{tag}:/f"), &format!("{uuid}:/g")]);
        done(&["get", &format!("{tag}:/g"), &place.text("back")]);
        assert_eq!(&fs::read_to_string(place.path("back")).unwrap(), tag);
        done(&["mkdir", &format!("{tag}:/d")]);
        assert!(done(&["tree", tag]).contains('d'));
        done(&["rm", "-r", &format!("{tag}:/d"), &format!("{tag}:/g")]);
        assert!(done(&["inspect", tag]).contains(&disk.partition));
        assert!(done(&["adopt", tag]).contains(&disk.partition));
        assert!(done(&["release", tag]).contains(&disk.partition));
        done(&["fsck", "-fn", tag]);

        done(&["mount", tag, &dir]);
        assert!(done(&["status", tag]).contains(&disk.partition));
        done(&["scrub", tag]);
        done(&["top", "--once", tag]);
        done(&["metrics", tag]);
        done(&["stream", "show", tag]);
        done(&["stream", "sync", tag]);
        done(&["stream", "run", "--on", tag, "--", "true"]);
        done(&["atomic", "--on", tag, "--", "true"]);
        refused(
            &ccfs_with(&["mount", tag, &dir]),
            32,
            &[&disk.partition, "already mounted"],
        );
        refused(
            &ccfs_with(&["fsck", tag]),
            8,
            &[&disk.partition, "mounted on"],
        );
        done(&["umount", tag]);
        assert!(!common::is_mounted(&dir));
    }

    // As a crash leaves it.
    common::set_feature_bit_30(&disk.partition);
    refused(&ccfs_with(&["fsck", "-n", &label]), 4, &[]);
    done(&["fsck", "-p", &label]);
    tool("e2fsck", &["-fn", &disk.partition]);
}

/// As mount(8), fstab and fsck(8) give them, and where the helpers are called with a tag.
#[test]
fn helpers_take_tags() {
    common::needs_mounts!();
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    place.subdir("mnt");
    let label = unique("help");
    tool("tune2fs", &["-L", &label, &image]);
    let disk = Loop::over(&image);
    fs::write(
        place.path("fstab"),
        format!("LABEL={label} {} ccfs nofail 0 0\n", place.text("mnt")),
    )
    .unwrap();
    let script = r#"
        cd "$PLACE"
        mount -T fstab -a
        mount -T fstab -a                  # a second time there is nothing to do
        echo one >mnt/f
        umount "$PLACE/mnt"
        "$PLACE/sbin-now/mount.ccfs" LABEL=NAME "$PLACE/mnt" -o noatime
        cat mnt/f
        options "$PLACE/mnt"
        "$PROGRAM" umount LABEL=NAME
        ln -s "$PROGRAM" fsck.ccfs
        ./fsck.ccfs -p LABEL=NAME
    "#;
    let said = in_namespace(&place, &script.replace("NAME", &label));
    assert!(said.contains("one\n") && said.contains("noatime"), "{said}");
    tool("e2fsck", &["-fn", &disk.device]);
}

#[test]
fn what_no_device_has_is_said() {
    let place = Place::new();
    let label = unique("none");
    let tag = format!("LABEL={label}");
    let says = format!("has the label {label}; `blkid` shows what there is");
    for (args, code) in [
        (vec!["mount", &tag, "/"], 32),
        (vec!["umount", &tag], 32),
        (vec!["mkfs", "-s", "32M", &tag], 1),
        (vec!["fsck", &tag], 8),
        (vec!["scrub", &tag], 8),
        (vec!["inspect", &tag], 1),
        (vec!["adopt", &tag], 1),
        (vec!["release", &tag], 1),
        (vec!["status", &tag], 1),
        (vec!["top", "--once", &tag], 1),
        (vec!["ls", &format!("{tag}:/x")], 1),
        (vec!["atomic", "--on", &tag, "--", "true"], 1),
    ] {
        // Without root a mount can be refused before.
        if args[0] == "mount" && common::no_mounts().is_some() {
            continue;
        }
        let mut command = common::ccfs();
        let ran = run(command.args(&args).current_dir(place.path("")));
        refused(&ran, code, &[&says]);
    }
    assert!(!place.path(&tag).exists(), "mkfs has made a file");
    for (tag, says) in [
        ("LABEL=", "LABEL= has nothing behind it"),
        ("UUID=0-0", "has the UUID 0-0"),
        ("PARTLABEL=no such", "has the partition label no such"),
        ("PARTUUID=0-0", "has the partition UUID 0-0"),
    ] {
        refused(&ccfs_with(&["inspect", tag]), 1, &[says]);
    }
}

/// A word that begins as a tag is one; `./` before it makes a path of it.
#[test]
fn a_file_with_the_name_of_a_tag() {
    let place = Place::new();
    place.volume("LABEL=file:x", "32M");
    let at = |args: &[&str]| run(common::ccfs().args(args).current_dir(place.path("")));
    let hint = "; the file of that name is ./LABEL=file:x";
    refused(&at(&["inspect", "LABEL=file:x"]), 1, &["no device", hint]);
    refused(
        &at(&["fsck", "-n", "LABEL=file:x"]),
        8,
        &["no device", hint],
    );
    for path in ["./LABEL=file:x", &place.text("LABEL=file:x")] {
        let seen = at(&["inspect", path]);
        assert_eq!(seen.code, 0, "{}", seen.err);
        assert_eq!(at(&["ls", &format!("{path}:/")]).out, "lost+found\n");
    }
    // What is copied from or to this host is no device.
    fs::write(place.path("LABEL=f"), "host").unwrap();
    let put = at(&["put", "LABEL=f", "./LABEL=file:x:/f"]);
    assert_eq!(put.code, 0, "{}", put.err);
    let get = at(&["get", "./LABEL=file:x:/f", "UUID=f"]);
    assert_eq!(get.code, 0, "{}", get.err);
    assert_eq!(fs::read_to_string(place.path("UUID=f")).unwrap(), "host");
}

#[test]
fn several_devices_and_several_mounts() {
    common::needs_mounts!();
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let label = unique("twin");
    tool("tune2fs", &["-L", &label, &image]);
    let tag = format!("LABEL={label}");
    fs::copy(&image, place.path("b.img")).unwrap();
    let first = Loop::over(&image);
    let says = format!("{} ({tag}) is not mounted with ccfs", first.device);
    refused(&ccfs_with(&["umount", &tag]), 32, &[&says]);
    refused(&ccfs_with(&["status", &tag]), 1, &[&says]);
    {
        let second = Loop::over(&place.text("b.img"));
        let says = format!("more than one device has the label {label}: ");
        let ran = ccfs_with(&["fsck", "-n", &tag]);
        refused(&ran, 8, &[&says, &first.device, &second.device]);
    }
    // In two places: what looks at it may take either, what ends it may not.
    let (dir, bound) = (place.subdir("mnt"), place.subdir("bound"));
    done(&["mount", &tag, &dir]);
    tool("mount", &["--bind", &dir, &bound]);
    assert!(done(&["status", &tag]).contains(&first.device));
    let says = format!("the volume of {tag} is mounted on {dir} and {bound}; name the directory");
    refused(&ccfs_with(&["umount", &tag]), 32, &[&says]);
    common::umount8(&bound);
    done(&["umount", &tag]);
}

/// An image file or a device stands for the directory on which its volume is mounted; a file of a volume for that volume.
#[test]
fn image_files_and_devices_stand_for_their_mounts() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    let says = format!("{image} is not a mount point");
    refused(&ccfs_with(&["umount", &image]), 32, &[&says]);
    refused(&ccfs_with(&["status", &image]), 1, &["is not on a mounted"]);
    done(&["mount", &image, &dir]);
    assert!(done(&["status", &image]).contains(&dir));
    done(&["freeze", &image, "--", "true"]);
    // The image of another volume in this one: what is asked about is this one.
    let (inner, inner_dir) = (format!("{dir}/inner.img"), place.subdir("inner"));
    done(&["mkfs", "-s", "16M", &inner]);
    assert!(done(&["status", &inner]).contains(&dir));
    done(&["mount", &inner, &inner_dir]);
    let asked = done(&["status", &inner]);
    assert!(!asked.contains(&inner_dir), "{asked}");
    done(&["umount", &inner_dir]);
    done(&["umount", &image]);
    let disk = Loop::over(&image);
    done(&["mount", &disk.device, &dir]);
    done(&["umount", &disk.device]);
}

/// Each time all devices are asked anew: what is remembered from before may lie on another disk by now.
#[test]
fn no_cache_is_written() {
    if common::no_mounts().is_some() || run(Command::new("blkid").arg("-V")).code != 0 {
        println!("skipped: needs root, loop devices and blkid");
        return;
    }
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let _disk = Loop::over(&image);
    let cache = place.path("blkid.tab");
    let mut ccfs = common::ccfs();
    ccfs.args(["inspect", "LABEL=none"])
        .env("BLKID_FILE", &cache);
    assert_eq!(run(&mut ccfs).code, 1);
    assert!(!cache.exists());
    // That is where it would be.
    run(Command::new("blkid").env("BLKID_FILE", &cache));
    assert!(cache.exists());
}
