//! Damage that a mount meets: the super block's error fields, status, metrics and log name it, so that e2fsck checks; only e2fsck clears them.
mod common;
use common::{Place, ccfs_with, kernel_mount, tool, umount8, unmount};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// EUCLEAN, "Structure needs cleaning".
const EUCLEAN: i32 = 117;

/// A sound volume with one of each kind of structure.
fn sound(place: &Place) -> String {
    let (image, dir) = (place.volume("sound.img", "32M"), place.subdir("sound"));
    common::mount(&image, &dir);
    let at = |name: &str| place.path("sound").join(name);
    fs::create_dir(at("few")).unwrap();
    fs::write(at("few/one"), "1").unwrap();
    // A hash tree.
    fs::create_dir(at("many")).unwrap();
    for n in 0..1200 {
        fs::write(at(&format!("many/a name of some length, number {n}")), "").unwrap();
    }
    // A tree of extents.
    let holes = File::create(at("holes")).unwrap();
    for n in 0..40 {
        holes.write_all_at(&[n as u8; 4096], n * 3 * 4096).unwrap();
    }
    drop(holes);
    fs::write(at("plain"), vec![7; 10_000]).unwrap();
    fs::write(at("attributes"), "x").unwrap();
    let value = "v".repeat(900);
    tool(
        "setfattr",
        &[
            "-n",
            "user.long",
            "-v",
            &value,
            &place.text("sound/attributes"),
        ],
    );
    tool("sync", &["-f", &dir]);
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
    image
}

fn debugfs(image: &str, request: &str) -> String {
    tool("debugfs", &["-R", request, image])
}

/// The number behind `word` in what a tool said.
fn number_behind(said: &str, word: &str) -> u64 {
    let rest = said
        .split_once(word)
        .unwrap_or_else(|| panic!("no {word:?} in {said}"))
        .1;
    let digits = rest.trim_start();
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end]
        .parse()
        .unwrap_or_else(|_| panic!("no number behind {word:?} in {said}"))
}

fn block_of(image: &str, path: &str, lblk: u32) -> u64 {
    debugfs(image, &format!("bmap {path} {lblk}"))
        .trim()
        .parse()
        .unwrap()
}

fn inode_of(image: &str, path: &str) -> u64 {
    number_behind(&debugfs(image, &format!("stat {path}")), "Inode:")
}

/// What dumpe2fs says of a field; empty where it does not name it.
fn field(image: &str, name: &str) -> String {
    let said = tool("dumpe2fs", &["-h", image]);
    let line = said
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.map_or_else(String::new, |l| l.trim().to_string())
}

/// What the super block remembers, also of a volume in flight, which dumpe2fs refuses.
fn errors_in_flight(image: &str) -> (String, u64) {
    let seen = ccfs_with(&["inspect", "--json", image]);
    let seen: Value = serde_json::from_str(&seen.out).unwrap();
    let state = seen["state"].as_str().unwrap().to_string();
    (state, seen["superblock"]["error_count"].as_u64().unwrap())
}

/// A kind of structure: where one byte of it is flipped, and the call that meets it.
struct Case {
    name: &'static str,
    /// Block of the volume, and a byte in it.
    place: fn(&str) -> (u64, u64),
    /// The inode that the mark names; `None`: it is no inode's.
    owner: Option<&'static str>,
    meet: fn(&Path) -> io::Result<()>,
}

fn list(dir: &Path) -> io::Result<()> {
    fs::read_dir(dir)?.try_for_each(|entry| entry.map(drop))
}

fn read(path: &Path) -> io::Result<()> {
    File::open(path)?.read_to_end(&mut Vec::new()).map(drop)
}

const CASES: &[Case] = &[
    Case {
        name: "directory block, listed",
        place: |image| (block_of(image, "/few", 0), 40),
        owner: Some("/few"),
        meet: |dir| list(&dir.join("few")),
    },
    Case {
        name: "directory block, looked up in",
        place: |image| (block_of(image, "/few", 0), 41),
        owner: Some("/few"),
        meet: |dir| dir.join("few/one").symlink_metadata().map(drop),
    },
    Case {
        name: "root of a hash tree",
        place: |image| (block_of(image, "/many", 0), 45),
        owner: Some("/many"),
        meet: |dir| list(&dir.join("many")),
    },
    Case {
        name: "leaf of a hash tree, written to",
        place: |image| (block_of(image, "/many", 1), 30),
        owner: Some("/many"),
        meet: |dir| (0..2000).try_for_each(|n| fs::write(dir.join(format!("many/new {n}")), "")),
    },
    Case {
        name: "inode",
        place: |image| {
            let said = debugfs(image, "imap /plain");
            let offset = said.split_once("offset 0x").unwrap().1.trim();
            let offset = u64::from_str_radix(offset, 16).unwrap();
            (number_behind(&said, "located at block"), offset + 8)
        },
        owner: Some("/plain"),
        meet: |dir| dir.join("plain").symlink_metadata().map(drop),
    },
    Case {
        name: "extent block",
        place: |image| {
            (
                number_behind(&debugfs(image, "stat /holes"), "(ETB0):"),
                100,
            )
        },
        owner: Some("/holes"),
        meet: |dir| read(&dir.join("holes")),
    },
    Case {
        name: "attribute block",
        place: |image| {
            (
                number_behind(&debugfs(image, "stat /attributes"), "File ACL:"),
                300,
            )
        },
        owner: Some("/attributes"),
        meet: |dir| {
            let path = dir.join("attributes");
            rustix::fs::getxattr(path, "user.long", &mut vec![0u8; 2000])?;
            Ok(())
        },
    },
    Case {
        name: "inode bitmap",
        place: |image| {
            (
                number_behind(&tool("dumpe2fs", &[image]), "Inode bitmap at"),
                200,
            )
        },
        owner: None,
        meet: |dir| fs::write(dir.join("new"), ""),
    },
];

fn flip(image: &str, (block, byte): (u64, u64)) {
    let size: u64 = field(image, "Block size").parse().unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(image)
        .unwrap();
    let mut bytes = [0];
    file.read_exact_at(&mut bytes, block * size + byte).unwrap();
    file.write_all_at(&[bytes[0] ^ 0x10], block * size + byte)
        .unwrap();
}

/// A copy of the sound volume with a flipped byte, of which `e2fsck -p` knows nothing.
fn damaged(sound: &str, image: &str, place: (u64, u64)) {
    fs::copy(sound, image).unwrap();
    flip(image, place);
    tool("e2fsck", &["-p", image]);
}

fn status(dir: &str) -> Value {
    let ran = ccfs_with(&["status", "--json", dir]);
    serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err))
}

fn damage_lines(log: &str) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .filter(|l| l.contains("damage: "))
        .map(str::to_string)
        .collect()
}

/// `-p` finds that there is something to do; what it leaves is repaired with `-y`. Afterwards nothing is remembered.
fn repaired(case: &str, image: &str, log: &str, dir: &str) {
    let preened = ccfs_with(&["fsck", "-p", image]);
    assert_ne!(preened.code, 0, "{case}: {}", preened.out);
    if preened.code & 4 != 0 {
        let ran = ccfs_with(&["fsck", "-y", image]);
        assert_eq!(ran.code & !3, 0, "{case}: {}{}", ran.out, ran.err);
    }
    tool("e2fsck", &["-fn", image]);
    assert_eq!(field(image, "Filesystem state"), "clean", "{case}");
    assert_eq!(field(image, "FS Error count"), "", "{case}");
    let ran = ccfs_with(&["mount", "-o", &format!("log={log}"), image, dir]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{case}");
    let damage = &status(dir)["damage"];
    assert_eq!(
        (&damage["met"], &damage["error_count"]),
        (&0.into(), &0.into()),
        "{case}"
    );
    unmount(dir);
    assert_eq!(field(image, "Filesystem state"), "clean", "{case}");
}

#[test]
fn what_a_call_meets_is_remembered_until_e2fsck_has_looked() {
    common::needs_mounts!();
    let place = Place::new();
    let sound = sound(&place);
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    for case in CASES {
        let name = case.name;
        let at = (case.place)(&sound);
        let owner = case.owner.map_or(0, |path| inode_of(&sound, path));
        damaged(&sound, &image, at);
        let log = place.text("log");
        let _ = fs::remove_file(&log);
        let ran = ccfs_with(&["mount", "-o", &format!("log={log}"), &image, &dir]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        // However often it is met, it is one damage.
        for _ in 0..3 {
            let met = (case.meet)(Path::new(&dir)).expect_err(name);
            assert_eq!(met.raw_os_error(), Some(EUCLEAN), "{name}: {met}");
        }
        let now = status(&dir);
        let damage = &now["damage"];
        assert_eq!(
            (&damage["met"], &damage["error_count"]),
            (&1.into(), &1.into()),
            "{name}"
        );
        for key in ["first_error", "last_error"] {
            let error = &damage[key];
            assert_eq!(
                (&error["inode"], &error["block"]),
                (&owner.into(), &at.0.into()),
                "{name}"
            );
        }
        let text = ccfs_with(&["status", &dir]).out;
        assert!(
            text.contains("damage ") && text.contains(&format!("block {}", at.0)),
            "{text}"
        );
        let metrics = ccfs_with(&["metrics", &dir]).out;
        let sample = |metric: &str| {
            let line = metrics
                .lines()
                .find(|l| l.starts_with(&format!("{metric}{{")));
            line.and_then(|l| l.rsplit(' ').next())
                .unwrap_or("")
                .to_string()
        };
        assert_eq!(sample("ccfs_corruption_errors_total"), "1", "{name}");
        assert_eq!(sample("ccfs_super_block_errors"), "1", "{name}");
        let lines = damage_lines(&log);
        assert_eq!(lines.len(), 1, "{name}: {lines:?}");
        assert!(
            lines[0].contains(&format!("block {}", at.0)),
            "{name}: {lines:?}"
        );
        unmount(&dir);
        assert_eq!(
            field(&image, "Filesystem state"),
            "clean with errors",
            "{name}"
        );
        assert_eq!(field(&image, "FS Error count"), "1", "{name}");
        assert_eq!(
            field(&image, "First error inode #").parse().unwrap_or(0),
            owner,
            "{name}"
        );
        assert_eq!(
            field(&image, "Last error block #"),
            at.0.to_string(),
            "{name}"
        );
        assert!(
            field(&image, "First error function").starts_with("ccfs "),
            "{name}"
        );
        let seen = ccfs_with(&["inspect", "--json", &image]);
        let seen: Value = serde_json::from_str(&seen.out).unwrap();
        assert_eq!(seen["state"], "has errors", "{name}");
        assert_eq!(seen["superblock"]["first_error"]["block"], at.0, "{name}");
        // A mount warns, as the kernel does, and changes nothing of it.
        let ran = ccfs_with(&["mount", &image, &dir]);
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        assert!(
            ran.err.contains("file system with errors"),
            "{name}: {}",
            ran.err
        );
        assert_eq!(status(&dir)["damage"]["error_count"], 1, "{name}");
        unmount(&dir);
        assert_eq!(field(&image, "FS Error count"), "1", "{name}");
        repaired(name, &image, &log, &dir);
    }
}

/// A name whose inode is free is damage of the directory, as for the kernel's ext4, and no missing name.
#[test]
fn a_name_of_a_free_inode_is_damage() {
    common::needs_mounts!();
    let place = Place::new();
    let sound = sound(&place);
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    fs::copy(&sound, &image).unwrap();
    tool("debugfs", &["-w", "-R", "clri /few/one", &image]);
    tool("e2fsck", &["-p", &image]);
    common::mount(&image, &dir);
    for _ in 0..2 {
        let met = place.path("mnt/few/one").symlink_metadata().unwrap_err();
        assert_eq!(met.raw_os_error(), Some(EUCLEAN), "{met}");
    }
    let none = place.path("mnt/few/none").symlink_metadata().unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::NotFound);
    let damage = &status(&dir)["damage"];
    let owner = inode_of(&sound, "/few");
    assert_eq!(
        (&damage["met"], &damage["last_error"]["inode"]),
        (&1.into(), &owner.into())
    );
    unmount(&dir);
    repaired("free inode", &image, &place.text("log"), &dir);
}

/// The first mark does not wait for the unmount: the daemon is killed, and the recovered volume has it.
#[test]
fn the_mark_survives_a_killed_daemon() {
    common::needs_mounts!();
    let place = Place::new();
    let sound = sound(&place);
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    damaged(&sound, &image, (CASES[0].place)(&sound));
    common::mount(&image, &dir);
    let before = status(&dir)["counters"]["checkpoints"].as_u64().unwrap();
    assert!((CASES[0].meet)(Path::new(&dir)).is_err());
    let start = std::time::Instant::now();
    while status(&dir)["damage"]["recorded"] == false {
        assert!(start.elapsed() < common::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(status(&dir)["counters"]["checkpoints"].as_u64() > Some(before));
    let pid = common::daemon(&dir);
    common::signal(pid, "KILL");
    common::wait_for_end(pid);
    // Clears the dead mount.
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    assert_eq!(errors_in_flight(&image), ("in flight".into(), 1));
    repaired("killed", &image, &place.text("log"), &dir);
}

/// A block bitmap is met when a commit looks for room, which stops the volume. The mark goes home before that.
#[test]
fn damage_that_stops_the_volume_is_remembered_as_well() {
    common::needs_mounts!();
    let place = Place::new();
    let sound = sound(&place);
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    let block = number_behind(&tool("dumpe2fs", &[&sound]), "Block bitmap at");
    damaged(&sound, &image, (block, 900));
    common::mount(&image, &dir);
    let file = File::create(place.path("mnt/new")).unwrap();
    (&file).write_all(&[1; 100_000]).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    assert_ne!(status(&dir)["stopped"], "");
    assert_eq!(status(&dir)["damage"]["met"], 1);
    assert_ne!(common::try_unmount(&dir).code, 0);
    assert_eq!(errors_in_flight(&image), ("in flight".into(), 1));
    repaired("stopped", &image, &place.text("log"), &dir);
}

/// `ccfs scrub` finds what nobody has met yet; reading offline meets it, but may not write.
#[test]
fn scrub_marks_what_it_finds_and_readers_say_that_they_cannot() {
    common::needs_mounts!();
    let place = Place::new();
    let sound = sound(&place);
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    let at = (CASES[0].place)(&sound);
    damaged(&sound, &image, at);
    let listed = ccfs_with(&["ls", &format!("{image}:/few")]);
    assert_ne!(listed.code, 0, "{}", listed.out);
    assert!(
        listed.err.contains("does not remember it"),
        "{}",
        listed.err
    );
    assert_eq!(field(&image, "FS Error count"), "");
    common::mount(&image, &dir);
    assert_eq!(ccfs_with(&["scrub", &dir]).code, 4);
    assert_eq!(ccfs_with(&["scrub", &dir]).code, 4);
    assert_eq!(status(&dir)["damage"]["met"], 1);
    unmount(&dir);
    assert_eq!(field(&image, "FS Error count"), "1");
    assert_eq!(field(&image, "Last error block #"), at.0.to_string());
    repaired("scrub", &image, &place.text("log"), &dir);
    // Who writes offline remembers.
    damaged(&sound, &image, at);
    assert_ne!(ccfs_with(&["rm", &format!("{image}:/few/one")]).code, 0);
    assert_eq!(field(&image, "Filesystem state"), "clean with errors");
    // A read-only mount meets it, and says that it is not remembered.
    damaged(&sound, &image, at);
    let ran = ccfs_with(&["mount", "-o", "ro", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(list(&place.path("mnt/few")).is_err());
    let damage = &status(&dir)["damage"];
    assert_eq!(
        (&damage["met"], &damage["recorded"]),
        (&1.into(), &false.into())
    );
    unmount(&dir);
    assert_eq!(field(&image, "FS Error count"), "");
}

/// The same damage under the kernel's ext4 and under ccfs: the same state, for the same inode.
#[test]
fn the_mark_is_the_kernels() {
    common::needs_mounts!();
    let place = Place::new();
    let sound = sound(&place);
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    let at = (CASES[0].place)(&sound);
    let marks = |how: &str| {
        damaged(&sound, &image, at);
        match how {
            "kernel" => kernel_mount(&image, &dir, "loop"),
            _ => common::mount(&image, &dir),
        }
        list(&place.path("mnt/few")).expect_err(how);
        match how {
            "kernel" => umount8(&dir),
            _ => unmount(&dir),
        }
        let fields = [
            "Filesystem state",
            "First error inode #",
            "Last error inode #",
        ];
        let errors = field(&image, "FS Error count").parse::<u32>().unwrap();
        assert!(
            errors > 0 && !field(&image, "First error time").is_empty(),
            "{how}"
        );
        fields.map(|name| field(&image, name))
    };
    assert_eq!(marks("ccfs"), marks("kernel"));
}
