//! Bad input: a clear error, the right exit code, and nothing lost.
mod common;
use common::{Place, Ran, ccfs_with, filled, refused, run, tool, unmount};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;

/// Every command that takes a target, with its exit code for a target that it cannot use.
fn commands(target: &str, dir: &str) -> Vec<(&'static str, i32, Ran)> {
    let fsck = |flag: &str| ccfs_with(&["fsck", flag, target]);
    vec![
        ("mkfs", 1, ccfs_with(&["mkfs", target])),
        ("mount", 32, ccfs_with(&["mount", target, dir])),
        ("fsck -n", 8, fsck("-n")),
        ("fsck -p", 8, fsck("-p")),
        ("inspect", 1, ccfs_with(&["inspect", target])),
    ]
}

#[test]
fn a_target_that_is_no_volume_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = place.subdir("mnt");
    tool("mkfifo", &[&place.text("fifo")]);
    fs::write(place.path("empty"), b"").unwrap();
    let directory = place.subdir("directory");
    let cases = [
        (place.text("missing"), ["No such file", "does not exist"]),
        (directory, ["directory", "neither"]),
        (place.text("fifo"), ["fifo", "neither"]),
        ("/dev/null".to_string(), ["character device", "neither"]),
    ];
    for (target, words) in cases {
        for (name, code, ran) in commands(&target, &dir) {
            refused(&format!("{name} {target}"), &ran, code, &words);
        }
    }
    for (name, code, ran) in commands(&place.text("empty"), &dir) {
        refused(
            &format!("{name} of an empty file"),
            &ran,
            code,
            &["empty", "too small"],
        );
    }
}

#[test]
fn a_bad_directory_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    fs::write(place.path("file"), b"x").unwrap();
    refused(
        "missing",
        &ccfs_with(&["mount", &image, &place.text("nowhere")]),
        32,
        &["No such file"],
    );
    refused(
        "a file",
        &ccfs_with(&["mount", &image, &place.text("file")]),
        32,
        &["not a directory"],
    );
    refused(
        "umount",
        &ccfs_with(&["umount", &place.subdir("plain")]),
        32,
        &["not a mount point"],
    );
    refused(
        "status",
        &ccfs_with(&["status", &place.text("plain")]),
        1,
        &["not on a mounted ccfs volume"],
    );
}

#[test]
fn garbage_and_truncated_images_are_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = place.subdir("mnt");
    let mut random = ccfs_testkit::Rng::new(1);
    let noise: Vec<u8> = (0..4 << 20).map(|_| random.draw() as u8).collect();
    fs::write(place.path("noise.img"), &noise).unwrap();
    fs::write(place.path("zero.img"), vec![0; 4 << 20]).unwrap();
    for name in ["noise.img", "zero.img"] {
        let image = place.text(name);
        refused(name, &ccfs_with(&["mount", &image, &dir]), 32, &["no ext2"]);
        refused(name, &ccfs_with(&["inspect", &image]), 1, &["no ext2"]);
        refused(
            name,
            &ccfs_with(&["fsck", "-n", &image]),
            8,
            &["super-block", "superblock"],
        );
    }
    assert_eq!(fs::read(place.path("noise.img")).unwrap(), noise);
    let image = filled(&place, "short.img");
    fs::File::options()
        .write(true)
        .open(&image)
        .unwrap()
        .set_len(9 << 20)
        .unwrap();
    let before = fs::read(&image).unwrap();
    refused(
        "short",
        &ccfs_with(&["mount", &image, &dir]),
        32,
        &["cut off"],
    );
    assert_eq!(ccfs_with(&["inspect", &image]).code, 0);
    assert_eq!(
        fs::read(&image).unwrap(),
        before,
        "a refused volume is not touched"
    );
}

/// e2fsck -n tells the sizes and calls such a file system clean; the kernel does not mount it.
#[test]
fn an_image_that_was_cut_off_is_named() {
    let place = Place::new();
    let dir = place.subdir("mnt");
    for in_flight in [false, true] {
        let image = filled(&place, &format!("{in_flight}.img"));
        if in_flight {
            common::set_feature_bit_30(&image);
        }
        let file = fs::File::options().write(true).open(&image).unwrap();
        for bytes in [30 << 20, (32 << 20) - 4096] {
            file.set_len(bytes).unwrap();
            let before = fs::read(&image).unwrap();
            let words = [format!("has 33554432 bytes, and only {bytes} are there")];
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut cases = vec![
                ("fsck -n", 4, ccfs_with(&["fsck", "-n", &image])),
                ("fsck -fn", 4, ccfs_with(&["fsck", "-fn", &image])),
                ("fsck -p", 12, ccfs_with(&["fsck", "-p", &image])),
                ("fsck -y", 12, ccfs_with(&["fsck", "-fy", &image])),
                ("release", 1, ccfs_with(&["release", &image])),
                ("release", 1, ccfs_with(&["release", "--no-check", &image])),
            ];
            if common::no_mounts().is_none() {
                cases.push(("mount", 32, ccfs_with(&["mount", &image, &dir])));
                cases.push(("mount", 32, ccfs_with(&["mount", "-oro", &image, &dir])));
            }
            for (name, code, ran) in cases {
                refused(&format!("{name} at {bytes}"), &ran, code, &words);
            }
            let json = ccfs_with(&["release", "--json", &image]);
            let release: serde_json::Value = serde_json::from_str(&json.out).unwrap();
            assert_eq!(release["plain_ext4"], false);
            assert!(fs::read(&image).unwrap() == before, "it is not touched");
        }
        file.set_len(32 << 20).unwrap();
    }
    let image = place.text("false.img");
    assert_eq!(ccfs_with(&["release", &image]).code, 0);
    assert_eq!(ccfs_with(&["fsck", "-n", &image]).code, 0);
}

#[test]
fn no_permission_is_said() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.text("ccfs");
    fs::copy(env!("CARGO_BIN_EXE_ccfs"), &program).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        run(command.args(args).uid(65534).gid(65534))
    };
    refused(
        "mount",
        &as_nobody(&["mount", &image, &dir]),
        // Without fusermount3 the way ends earlier.
        if std::path::Path::new("/usr/bin/fusermount3").exists() {
            32
        } else {
            1
        },
        &["Permission denied", "only root"],
    );
    refused(
        "inspect",
        &as_nobody(&["inspect", &image]),
        1,
        &["Permission denied"],
    );
    refused(
        "fsck",
        &as_nobody(&["fsck", "-n", &image]),
        8,
        &["Permission denied"],
    );
    refused(
        "mkfs",
        &as_nobody(&["mkfs", "--force", &image]),
        1,
        &["Permission denied"],
    );
    refused(
        "mkfs",
        &as_nobody(&["mkfs", "-s", "32M", &place.text("new")]),
        1,
        &["Permission denied"],
    );
}

#[test]
fn a_mounted_volume_is_left_alone() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir, other) = (
        place.volume("a.img", "32M"),
        place.subdir("mnt"),
        place.subdir("other"),
    );
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    fs::write(place.path("mnt/kept"), "kept").unwrap();
    refused(
        "mount again",
        &ccfs_with(&["mount", &image, &dir]),
        32,
        &["already mounted"],
    );
    refused(
        "mount elsewhere",
        &ccfs_with(&["mount", &image, &other]),
        32,
        &["already mounted"],
    );
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", "--force", &image]),
        1,
        &["is mounted"],
    );
    refused(
        "fsck",
        &ccfs_with(&["fsck", "-p", &image]),
        8,
        &["is mounted"],
    );
    refused(
        "fsck -n",
        &ccfs_with(&["fsck", "-n", &image]),
        8,
        &["in use", "is mounted"],
    );
    refused(
        "inspect",
        &ccfs_with(&["inspect", &image]),
        1,
        &["in use", "is mounted"],
    );
    // The tools of ext4 keep away by themselves.
    for (name, args) in [
        ("e2fsck", vec!["-fn", &image]),
        ("resize2fs", vec![&image, "64M"]),
        ("dumpe2fs", vec!["-h", &image]),
    ] {
        let ran = run(std::process::Command::new(name).args(args));
        assert_ne!(ran.code, 0, "{name}: {}", ran.out);
    }
    assert_eq!(fs::read_to_string(place.path("mnt/kept")).unwrap(), "kept");
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn a_volume_that_the_kernel_left_unclean_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    common::kernel_mount(&image, &dir, "loop");
    fs::write(place.path("mnt/f"), "from the kernel").unwrap();
    refused(
        "mounted by the kernel",
        &ccfs_with(&["mount", &image, &place.subdir("other")]),
        32,
        &["already mounted"],
    );
    tool("sync", &["-f", &dir]);
    let copy = place.text("copy.img");
    fs::copy(&image, &copy).unwrap();
    common::umount8(&dir);
    let before = fs::read(&copy).unwrap();
    refused(
        "unclean",
        &ccfs_with(&["mount", &copy, &dir]),
        32,
        &["e2fsck -p"],
    );
    assert_eq!(fs::read(&copy).unwrap(), before);
    assert!(
        ccfs_with(&["inspect", &copy])
            .out
            .contains("needs recovery by the kernel")
    );
    let checked = ccfs_with(&["fsck", "-p", &copy]);
    assert!(checked.code <= 1, "{} {}", checked.out, checked.err);
    assert_eq!(ccfs_with(&["mount", &copy, &dir]).code, 0);
    assert_eq!(
        fs::read_to_string(place.path("mnt/f")).unwrap(),
        "from the kernel"
    );
    unmount(&dir);
    tool("e2fsck", &["-fn", &copy]);
}

/// A loop device for a test; detached at the end.
struct Loop(String);

impl Loop {
    fn read_only(image: &str) -> Loop {
        Loop(
            tool("losetup", &["--find", "--show", "--read-only", image])
                .trim()
                .to_string(),
        )
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup")
            .args(["-d", &self.0])
            .status();
    }
}

#[test]
fn read_only_media_can_be_read() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (filled(&place, "a.img"), place.subdir("mnt"));
    let before = fs::read(&image).unwrap();
    {
        let device = Loop::read_only(&image);
        refused(
            "rw",
            &ccfs_with(&["mount", &device.0, &dir]),
            32,
            &["-o ro", "read-only", "Read-only", "Permission"],
        );
        let ran = ccfs_with(&["mount", "-o", "ro", &device.0, &dir]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(
            fs::read(place.path("mnt/d7/f7")).unwrap(),
            vec![7u8; 300_000]
        );
        let error = fs::write(place.path("mnt/new"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        unmount(&dir);
    }
    assert_eq!(
        fs::read(&image).unwrap(),
        before,
        "a read-only mount writes nothing"
    );
}

#[test]
fn a_read_only_mount_of_a_crashed_volume_recovers_it_unless_the_medium_forbids() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    fs::write(place.path("mnt/f"), "synced").unwrap();
    tool("sync", &[&place.text("mnt/f")]);
    let pid = tool("pgrep", &["-f", &format!("daemon -- {image}")]);
    tool("kill", &["-9", pid.trim()]);
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    let before = fs::read(&image).unwrap();
    {
        let device = Loop::read_only(&image);
        let ran = ccfs_with(&["mount", "-o", "ro", &device.0, &dir]);
        refused("ro medium", &ran, 32, &["must be recovered"]);
    }
    assert_eq!(fs::read(&image).unwrap(), before);
    let ran = ccfs_with(&["mount", "-o", "ro", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "synced");
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

/// A small tmpfs that runs full; unmounted at the end.
struct Tmpfs(String);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["-l", &self.0])
            .status();
    }
}

#[test]
fn a_full_host_stops_the_volume_and_loses_nothing() {
    common::needs_mounts!();
    let place = Place::new();
    let (host, dir) = (place.subdir("host"), place.subdir("mnt"));
    tool("mount", &["-t", "tmpfs", "-o", "size=24M", "tmpfs", &host]);
    let _host = Tmpfs(host.clone());
    // Fully allocated: refused at once, by the host.
    refused(
        "mkfs",
        &ccfs_with(&["mkfs", "-s", "64M", &format!("{host}/full.img")]),
        1,
        &["no room"],
    );
    let image = format!("{host}/sparse.img");
    assert_eq!(
        ccfs_with(&["mkfs", "-s", "64M", "--sparse", &image]).code,
        0
    );
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    // What a sync call answered for stays, whatever comes.
    let mut synced = Vec::new();
    for n in 0..60 {
        let path = place.path(&format!("mnt/{n}"));
        let written = fs::write(&path, vec![n as u8; 1 << 20])
            .and_then(|()| fs::File::open(&path)?.sync_all());
        match written {
            Ok(()) => synced.push(n),
            Err(_) => break,
        }
    }
    assert!(
        !synced.is_empty() && synced.len() < 60,
        "{} files fitted",
        synced.len()
    );
    let status = ccfs_with(&["status", &dir]);
    assert!(
        status.out.contains("STOPPED"),
        "{}{}",
        status.out,
        status.err
    );
    let ended = common::try_unmount(&dir);
    assert_ne!(ended.code, 0, "an unmount that could not write must say so");
    // The way out: room on the host, then recovery.
    tool("mount", &["-o", "remount,size=128M", &host]);
    let checked = ccfs_with(&["fsck", "-p", &image]);
    assert!(checked.code <= 1, "{} {}", checked.out, checked.err);
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    for n in &synced {
        let bytes = fs::read(place.path(&format!("mnt/{n}"))).unwrap();
        assert!(
            bytes == vec![*n as u8; 1 << 20],
            "file {n} is not what was synced"
        );
    }
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn a_volume_in_flight_is_only_looked_at_by_fsck_n() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    common::set_feature_bit_30(&image);
    let before = fs::read(&image).unwrap();
    let ran = ccfs_with(&["fsck", "-n", &image]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(
        ran.out.contains("in flight") && ran.out.contains("ccfs fsck -p"),
        "{}",
        ran.out
    );
    assert!(ccfs_with(&["inspect", &image]).out.contains("in flight"));
    assert_eq!(fs::read(&image).unwrap(), before);
    // Not a log of ours: there is a text, and nothing is changed.
    let ran = ccfs_with(&["fsck", "-p", &image]);
    assert_ne!(ran.code & 12, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("--discard-log"), "{}", ran.err);
    // The way out.
    let ran = ccfs_with(&["fsck", "--discard-log", "-y", &image]);
    assert!(ran.code <= 1, "{}{}", ran.out, ran.err);
    tool("e2fsck", &["-fn", &image]);
}

/// A file with any byte of data is not taken for an empty one, wherever that byte is.
#[test]
fn mkfs_overwrites_no_data() {
    let place = Place::new();
    let (path, size) = (place.path("file"), 20 << 20);
    let file = fs::File::create_new(&path).unwrap();
    let write = |at: u64, bytes: &[u8]| file.write_all_at(bytes, at).unwrap();
    let refuses = |name: &str| {
        let before = fs::read(&path).unwrap();
        for more in [&[][..], &["-s", "16M"], &["-s", "32M"], &["--sparse"]] {
            let ran = ccfs_with(&[&["mkfs"], more, &[&place.text("file")]].concat());
            refused(name, &ran, 1, &["holds data; to overwrite it: --force"]);
        }
        assert!(
            fs::read(&path).unwrap() == before,
            "{name}: it is as it was"
        );
    };
    let mut random = ccfs_testkit::Rng::new(7);
    let places = [1024, 64 << 10, size / 2 + 1, size - 1, random.draw() % size];
    for at in places {
        // Behind a hole, and behind zeros that were written.
        for zeros in [0, at.min(3 << 20)] {
            file.set_len(0).unwrap();
            file.set_len(size).unwrap();
            write(0, &vec![0; zeros as usize]);
            write(at, b"x");
            refuses(&format!("a byte at {at} behind {zeros} zeros"));
        }
    }
    // Shorter than a volume may be, and than a sector.
    for len in [4097, 700] {
        file.set_len(0).unwrap();
        write(len - 1, b"x");
        let ran = ccfs_with(&["mkfs", "-s", "16M", &place.text("file")]);
        refused(&format!("{len} bytes"), &ran, 1, &["holds data"]);
        assert_eq!(file.metadata().unwrap().len(), len);
    }
    // Nothing but zeros: a hole, allocated, written.
    for make in [
        "truncate -s 16M",
        "fallocate -l 16M",
        "head -c 16M /dev/zero >",
    ] {
        file.set_len(0).unwrap();
        tool(
            "sh",
            &["-c", &format!("{make} \"$0\""), &place.text("file")],
        );
        let ran = ccfs_with(&["mkfs", &place.text("file")]);
        assert_eq!(ran.code, 0, "{make}: {}", ran.err);
    }
}

#[test]
fn mkfs_takes_the_longest_names() {
    let place = Place::new();
    for len in [249, 250, 254, 255] {
        let image = place.text(&"n".repeat(len));
        let ran = ccfs_with(&["mkfs", "-s", "16M", &image]);
        assert_eq!(ran.code, 0, "{len}: {}", ran.err);
        tool("e2fsck", &["-fn", &image]);
    }
    let image = place.text(&"n".repeat(256));
    let ran = ccfs_with(&["mkfs", "-s", "16M", &image]);
    refused("256", &ran, 1, &["File name too long"]);
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 4);
}

/// Options for mke2fs that make no volume, or one that ccfs does not write, are no success, and leave no image.
#[test]
fn mkfs_makes_what_can_be_mounted() {
    let place = Place::new();
    let image = place.text("new.img");
    let cases: [(&[&str], &str); 6] = [
        (&["-n"], "no ext2, ext3 or ext4"),
        (&["-V"], "no ext2, ext3 or ext4"),
        (&["-E", "offset=1048576"], "no ext2, ext3 or ext4"),
        (&["-O", "inline_data"], "inline_data"),
        (&["-O", "bigalloc"], "bigalloc"),
        (&["-O", "quota"], "quota"),
    ];
    for (options, why) in cases {
        let ran = ccfs_with(&[&["mkfs", "-s", "64M", &image, "--"], options].concat());
        refused("mkfs", &ran, 1, &["ccfs cannot use", why]);
        assert!(!place.path("new.img").exists(), "{options:?}");
    }
    let ran = ccfs_with(&["mkfs", "-s", "64M", &image, "--", "-m", "0", "-I", "512"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}
