//! The command line: usage, options, and what mkfs makes and refuses to overwrite.
mod common;
use common::{Place, ccfs, ccfs_with, refused, run, tool};
use std::fs;
use std::os::unix::fs::FileExt;

#[test]
fn wrong_options_are_refused() {
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let before = fs::read(&image).unwrap();
    for (options, word) in [
        ("frobnicate", "unknown option"),
        ("commit=never", "commit="),
        ("dirty=1", "dirty="),
        ("errors=panic", "errors="),
        ("remount", "no ccfs volume"),
    ] {
        refused(
            options,
            &ccfs_with(&["mount", "-o", options, &image, &dir]),
            1,
            &[word],
        );
    }
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", "-s", "many", &place.text("b.img")]),
        2,
        &["is no size"],
    );
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", "-s", "1M", &place.text("b.img")]),
        1,
        &["too small"],
    );
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", "-s", "1Q", &place.text("b.img")]),
        2,
        &["is no size"],
    );
    refused(
        "mkfs",
        &ccfs_with(&[
            "mkfs",
            "-s",
            "32M",
            "-L",
            "seventeen letters",
            &place.text("b.img"),
        ]),
        1,
        &["16"],
    );
    refused(
        "fsck",
        &ccfs_with(&["fsck", "-p", "-y", &image]),
        16,
        &["cannot be used with"],
    );
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", "-s", "32M", &place.text("b.img"), "--", "-b", "3"]),
        1,
        &["mke2fs failed"],
    );
    assert!(
        !place.path("b.img").exists(),
        "a failed mkfs leaves no file"
    );
    let left: Vec<_> = fs::read_dir(place.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        !left.iter().any(|n| n.to_str().unwrap().contains(".mkfs")),
        "{left:?}"
    );
    assert_eq!(before, fs::read(&image).unwrap(), "the volume was touched");
}

#[test]
fn mkfs_overwrites_nothing_unless_forced() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    refused("volume", &ccfs_with(&["mkfs", &image]), 1, &["ext4"]);
    assert_eq!(ccfs_with(&["mkfs", "--force", &image]).code, 0);
    let note = place.text("note.txt");
    fs::write(&note, "a letter to keep").unwrap();
    refused(
        "text",
        &ccfs_with(&["mkfs", "-s", "32M", &note]),
        1,
        &["holds data"],
    );
    assert_eq!(fs::read_to_string(&note).unwrap(), "a letter to keep");
    let table = place.text("disk.img");
    fs::File::create(&table).unwrap().set_len(64 << 20).unwrap();
    let mut sector = [0u8; 512];
    sector[446..462].copy_from_slice(&[
        0x80, 1, 1, 0, 0x83, 0xfe, 0xff, 0xff, 0, 8, 0, 0, 0, 0xf0, 1, 0,
    ]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    fs::File::options()
        .write(true)
        .open(&table)
        .unwrap()
        .write_all_at(&sector, 0)
        .unwrap();
    refused(
        "partition table",
        &ccfs_with(&["mkfs", &table]),
        1,
        &["partition table"],
    );
    // An image file made by truncate(1) holds nothing.
    let bare = place.text("bare.img");
    fs::File::create(&bare).unwrap().set_len(32 << 20).unwrap();
    assert_eq!(ccfs_with(&["mkfs", &bare]).code, 0);
    // What a killed mkfs left of a new image does not count either.
    fs::write(place.path(".new.img.mkfs"), "half a file system").unwrap();
    place.volume("new.img", "32M");
    assert!(!place.path(".new.img.mkfs").exists());
    tool("e2fsck", &["-fn", &place.text("new.img")]);
}

#[test]
fn mkfs_allocates_unless_sparse() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let full = fs::metadata(place.volume("full.img", "64M")).unwrap();
    assert_eq!(
        full.mode() & 0o777,
        0o600,
        "a volume holds the files of many users"
    );
    assert!(full.blocks() * 512 >= 64 << 20, "{} blocks", full.blocks());
    let sparse = place.text("sparse.img");
    assert_eq!(
        ccfs_with(&["mkfs", "-s", "64M", "--sparse", "-L", "hollow", &sparse]).code,
        0
    );
    assert!(fs::metadata(&sparse).unwrap().blocks() * 512 < 32 << 20);
    assert!(tool("blkid", &["-p", &sparse]).contains("LABEL=\"hollow\""));
    for feature in ["metadata_csum", "orphan_file", "has_journal", "dir_index"] {
        assert!(
            tool("dumpe2fs", &["-h", &sparse]).contains(feature),
            "{feature}"
        );
    }
}

#[test]
fn usage_errors_have_the_codes_of_each_convention() {
    for (args, code) in [
        (vec!["frob"], 2),
        (vec!["mkfs"], 2),
        (vec!["mount", "one"], 1),
        (vec!["umount"], 1),
        (vec!["fsck"], 16),
        (vec!["fsck", "-Q", "x"], 16),
    ] {
        let ran = run(ccfs().args(&args));
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    for args in [
        vec!["inspect", &image],
        vec!["inspect", "--json", &image],
        vec!["version"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = ccfs().args(&args).stdout(writer).output().unwrap();
        assert!(
            ran.status.success() && ran.stderr.is_empty(),
            "{args:?}: {ran:?}"
        );
    }
}

/// Two runs of a build that make the same image: one of them makes it, and it is what that one says.
#[test]
fn of_several_mkfs_of_one_image_one_succeeds() {
    let place = Place::new();
    let image = place.text("a.img");
    let mut successes = 0;
    for round in 0..12 {
        let _ = fs::remove_file(&image);
        match round % 4 {
            // What killed runs left.
            1 => fs::write(place.path(".a.img.mkfs"), vec![1; 1 << 20]).unwrap(),
            3 => fs::write(place.path(".a.img.mkfs"), "").unwrap(),
            // A file that is there, and empty.
            2 => fs::write(&image, "").unwrap(),
            _ => {}
        }
        let runs = ["16M", "20M", "24M"].map(|size| {
            let mut command = common::ccfs();
            command.args(["mkfs", "-s", size, &image]);
            std::thread::spawn(move || (size, run(&mut command)))
        });
        let ended = runs.map(|run| run.join().unwrap());
        let told: Vec<_> = ended.iter().map(|(_, ran)| (ran.code, &ran.err)).collect();
        let made: Vec<_> = ended.iter().filter(|(_, ran)| ran.code == 0).collect();
        // None, where a machine is so slow that all of them give up waiting for each other.
        assert!(made.len() <= 1, "{told:?}");
        for (_, ran) in &ended {
            let why = ["cannot create", "holds ", "in use"];
            let is_told = why.iter().any(|text| ran.err.contains(text));
            assert!(ran.code == 0 || is_told, "{told:?}");
        }
        if let Some((size, _)) = made.first() {
            successes += 1;
            let mib: u64 = size.trim_end_matches('M').parse().unwrap();
            assert_eq!(fs::metadata(&image).unwrap().len(), mib << 20, "{told:?}");
            tool("e2fsck", &["-fn", &image]);
            let left = fs::read_dir(place.path("")).unwrap().count();
            assert_eq!(left, 1, "{told:?}");
        }
    }
    assert!(successes > 0);
}

/// An image file that exists and is too large for its disk: that disk is no fuller after the refusal than before.
#[test]
fn mkfs_without_room_leaves_the_host_its_room() {
    common::needs_mounts!();
    let place = Place::new();
    let (disk, host) = (place.text("host.img"), place.subdir("host"));
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &disk, "60M"]);
    common::kernel_mount(&disk, &host, "loop");
    let free = || rustix::fs::statvfs(&*host).unwrap().f_bfree;
    let before = free();
    let image = format!("{host}/a.img");
    for held in [0, 500 << 20] {
        fs::File::create(&image).unwrap().set_len(held).unwrap();
        refused(
            "no room",
            &ccfs_with(&["mkfs", "-s", "500M", &image]),
            1,
            &["no room"],
        );
        assert_eq!(fs::metadata(&image).unwrap().len(), held);
        assert!(free() + 100 > before, "{} of {before} are left", free());
        assert_eq!(
            ccfs_with(&["mkfs", "-s", "32M", "--sparse", &image]).code,
            0
        );
    }
    common::umount8(&host);
}

/// Ctrl-C at a terminal goes to all of the foreground. What the command makes of it counts.
#[test]
fn an_interrupt_is_the_commands() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    let file = place.text("mnt/file");
    let script = "kill -INT $PPID; kill -QUIT $PPID; echo done >\"$0\"";
    for how in [&["atomic"][..], &["stream", "run", "--sync"]] {
        let rest = ["--on", &dir, "--", "sh", "-c", script, &file];
        let ran = ccfs_with(&[how, &rest].concat());
        assert_eq!(ran.code, 0, "{how:?}: {}", ran.err);
        assert_eq!(fs::read_to_string(&file).unwrap(), "done\n");
        fs::remove_file(&file).unwrap();
    }
    let script = "echo half >\"$0\"; kill -TERM $$";
    let ran = ccfs_with(&["atomic", "--on", &dir, "--", "sh", "-c", script, &file]);
    assert_eq!(ran.code, 128 + 15, "{}", ran.err);
    assert!(!place.path("mnt/file").exists());
    common::unmount(&dir);
}
