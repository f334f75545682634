//! `ccfs ls`, `tree`, `cat`, `put`, `get`, `cp`, `rm`, `mkdir`: what a user types, and what programs read.
mod common;
use ccfs_testkit::json::compare;
use common::{Place, Ran, ccfs, ccfs_with, refused, run, tool, unmount};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn ok(args: &[&str]) -> String {
    let ran = ccfs_with(args);
    assert_eq!(
        (ran.code, ran.err.as_str()),
        (0, ""),
        "{args:?}: {}",
        ran.out
    );
    ran.out
}

#[test]
fn the_commands_work_together() {
    let place = Place::new();
    let image = place.volume("with:colon.img", "32M");
    let at = |path: &str| format!("{image}:{path}");
    fs::create_dir_all(place.path("src/sub")).unwrap();
    fs::write(place.path("src/sub/file"), "hello\n").unwrap();
    fs::set_permissions(
        place.path("src/sub/file"),
        fs::Permissions::from_mode(0o640),
    )
    .unwrap();
    std::os::unix::fs::symlink("sub/file", place.path("src/link")).unwrap();
    let src = place.text("src");
    ok(&["mkdir", "-p", &at("/a/b"), &at("c")]);
    ok(&[
        "put",
        "--owner",
        "3:4",
        &src,
        &place.text("src/sub/file"),
        &at("/a/b"),
    ]);
    assert_eq!(ok(&["ls", &at("a/b")]), "file\nsrc\n");
    assert_eq!(
        ok(&["cat", &at("/a/b/src/link"), &at("a/b/file")]),
        "hello\nhello\n"
    );
    let long = ok(&["ls", "-l", &at("/a/b/src")]);
    assert!(
        long.contains("link -> sub/file") && long.contains("drwxr-xr-x   2     3     4"),
        "{long}"
    );
    assert_eq!(ok(&["ls", &at("/a/b/file")]), "/a/b/file\n");
    ok(&["cp", &at("/a/b/src"), &at("/a/b/file"), &at("/c")]);
    let other = place.volume("other.img", "32M");
    ok(&["cp", &at("/c/."), &format!("{other}:/all")]);
    let tree = ok(&["tree", &other]);
    let want = "/\n  all/\n    file\n    src/\n      link\n      sub/\n        file\n  lost+found/\n4 directories, 3 files\n";
    assert_eq!(tree, want);
    ok(&["get", &format!("{other}:all"), &place.text("out")]);
    assert_eq!(
        fs::read_to_string(place.path("out/src/link")).unwrap(),
        "hello\n"
    );
    let mode = place
        .path("out/file")
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
    ok(&["rm", &at("/c/file")]);
    ok(&["rm", "-r", &at("/c"), &at("/a/")]);
    ok(&["rm", "-f", &at("/c")]);
    assert_eq!(ok(&["ls", &image]), "lost+found\n");
    tool("e2fsck", &["-fn", &image]);
    tool("e2fsck", &["-fn", &other]);
}

#[test]
fn ls_json_is_as_documented() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let odd = place.path("odd\u{1b}[31m");
    fs::write(&odd, "12345").unwrap();
    std::os::unix::fs::symlink("odd", place.path("link")).unwrap();
    ok(&["put", odd.to_str().unwrap(), &place.text("link"), &image]);
    let listed: serde_json::Value = serde_json::from_str(&ok(&["ls", "--json", &image])).unwrap();
    compare("ccfs ls --json", &ok(&["ls", "-R", "--json", &image]));
    let entries = listed["entries"].as_array().unwrap();
    let of = |name: &str| entries.iter().find(|e| e["name"] == name).unwrap();
    assert_eq!(of("link")["target"], "odd");
    assert_eq!(of("lost+found")["type"], "directory");
    let odd = of("odd\u{1b}[31m");
    assert_eq!(
        (&odd["size_bytes"], &odd["name_hex"]),
        (&5.into(), &"6f64641b5b33316d".into())
    );
    // On a terminal no name does anything.
    assert!(
        ok(&["ls", &image]).contains("odd\\x1b[31m")
            && ok(&["tree", &image]).contains("odd\\x1b[31m")
    );
}

#[test]
fn failures_are_said_with_a_code() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let at = |path: &str| format!("{image}:{path}");
    ok(&["mkdir", &at("/d")]);
    let missing = place.text("missing.img");
    for (args, code, word) in [
        (vec!["ls", &missing], 1, "No such file"),
        (vec!["ls", &at("/none")], 1, "/none: No such file"),
        (vec!["cat", &at("/d")], 1, "/d: Is a directory"),
        (vec!["cat", &at("/d"), &at("/none")], 1, "/none"),
        (vec!["rm", &at("/d")], 1, "-r removes it"),
        (vec!["rm", "-r", &image], 1, "busy"),
        (vec!["rm", "-r", &at("/d/.")], 1, "Invalid"),
        (vec!["mkdir", &at("/d")], 1, "exists"),
        (vec!["mkdir", &at("/x/y")], 1, "No such file"),
        (
            vec!["put", "/bin/sh", "/bin/ls", &at("/new")],
            1,
            "not a directory",
        ),
        (vec!["put", &missing, &image], 1, "No such file"),
        (
            vec!["put", "--owner", "root", "/bin/sh", &image],
            2,
            "no owner",
        ),
        (vec!["get", &at("/none"), "/tmp"], 1, "No such file"),
        (vec!["cp", &at("/d"), &at("/d/e")], 1, "Invalid"),
        (vec!["cp", "/etc", &image], 2, "ccfs put"),
        (vec!["ls", ":x"], 2, "names no image"),
        (vec!["put", &image], 2, "values"),
        (vec!["ls"], 2, "required"),
    ] {
        let args: Vec<&str> = args.iter().map(|a| &a[..]).collect();
        refused(&format!("{args:?}"), &ccfs_with(&args), code, &[word]);
    }
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn an_image_in_use_is_refused_by_name() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    for args in [
        ["ls", &image],
        ["mkdir", &format!("{image}:/x")],
        ["tree", &image],
    ] {
        let ran = ccfs_with(&args);
        refused(args[0], &ran, 1, &["is in use: mounted on"]);
        assert!(ran.err.contains(&dir), "{}", ran.err);
    }
    unmount(&dir);
    assert_eq!(ok(&["ls", &image]), "lost+found\n");
}

/// A lock that another program holds, without a mount: everything that would change the image is refused and changes nothing.
#[test]
fn a_locked_image_is_left_alone_also_by_mkfs() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let fifo = place.text("fifo");
    tool("mkfifo", &[&fifo]);
    // `ccfs cat` of a large file into a pipe that nobody empties holds the image open, as a reader.
    let large = place.text("large");
    fs::write(&large, vec![1u8; 4 << 20]).unwrap();
    ok(&["put", &large, &image]);
    let before = fs::read(&image).unwrap();
    let mut holder = ccfs()
        .args(["cat", &format!("{image}:/large")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0u8; 1];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut first).unwrap();
    let pid = holder.id().to_string();
    for args in [
        vec!["mkfs", "--force", &image],
        vec!["mkfs", "--force", "-s", "16M", &image],
        vec!["mkfs", "--force", "-s", "64M", &image],
        vec!["rm", &format!("{image}:/large")],
        vec!["fsck", "-p", &image],
    ] {
        let args: Vec<&str> = args.iter().map(|a| &a[..]).collect();
        let ran = ccfs_with(&args);
        refused(
            &format!("{args:?}"),
            &ran,
            if args[0] == "fsck" { 8 } else { 1 },
            &["in use"],
        );
        assert!(
            ran.err.contains(&pid) || ran.err.contains("holds a lock"),
            "{}",
            ran.err
        );
        assert!(
            fs::read(&image).unwrap() == before,
            "{args:?} changed the image"
        );
    }
    assert_eq!(
        ok(&["ls", &image]),
        "large\nlost+found\n",
        "another reader is welcome"
    );
    drop(holder.stdout.take());
    holder.wait().unwrap();
    ok(&["mkfs", "--force", "-s", "16M", &image]);
    assert_eq!(fs::metadata(&image).unwrap().len(), 16 << 20);
    // An empty file holds nothing and may grow.
    fs::write(place.path("empty.img"), "").unwrap();
    ok(&["mkfs", "-s", "16M", &place.text("empty.img")]);
    tool("e2fsck", &["-fn", &place.text("empty.img")]);
}

#[test]
fn no_root_is_needed() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to become somebody else");
        return;
    }
    let place = Place::new();
    let dir = place.subdir("home");
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    let program = place.text("ccfs");
    tool(
        "install",
        &["-m", "755", env!("CARGO_BIN_EXE_ccfs"), &program],
    );
    let nobody = |args: &[&str]| -> Ran {
        let mut command = Command::new(&program);
        run(command
            .args(args)
            .current_dir(&dir)
            .uid(65534)
            .gid(65534)
            .stdin(Stdio::null()))
    };
    let good = |args: &[&str]| {
        let ran = nobody(args);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
        ran.out
    };
    good(&["mkfs", "-s", "32M", "a.img"]);
    good(&["mkdir", "a.img:/etc"]);
    good(&["put", "--owner", "0", "/etc/passwd", "a.img:/etc"]);
    let long = good(&["ls", "-l", "a.img:/etc"]);
    assert!(long.contains("    0     0"), "{long}");
    assert!(
        good(&["ls", "-l", "a.img"]).contains("65534 65534"),
        "what a user makes is the user's"
    );
    good(&["get", "a.img:/etc", "out"]);
    assert_eq!(
        fs::read(place.path("home/out/passwd")).unwrap(),
        fs::read("/etc/passwd").unwrap()
    );
    good(&["rm", "-r", "a.img:/etc"]);
    tool("e2fsck", &["-fn", &place.text("home/a.img")]);
    // Somebody else's image.
    let other = place.volume("root.img", "32M");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    refused("ls", &nobody(&["ls", &other]), 1, &["Permission denied"]);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(good(&["ls", &other]), "lost+found\n");
    refused(
        "rm",
        &nobody(&["rm", &format!("{other}:/x")]),
        1,
        &["Permission denied"],
    );
}

/// Whenever it is killed: the files are a prefix of those to copy, and each is whole.
#[test]
fn a_killed_put_leaves_a_prefix() {
    let place = Place::new();
    let tree = place.subdir("tree");
    let content = |n: usize| vec![n as u8; 1 << 20];
    const FILES: usize = 110;
    for n in 0..FILES {
        fs::write(place.path(&format!("tree/f{n:03}")), content(n)).unwrap();
    }
    for (round, share) in [10, 45, 80].into_iter().enumerate() {
        let image = place.text(&format!("{round}.img"));
        ok(&["mkfs", "--sparse", "-s", "256M", &image]);
        let from = format!("{tree}/.");
        let mut child = ccfs().args(["put", &from, &image]).spawn().unwrap();
        // So far into the copy as this shows; a copy that has come to its end by then is a prefix as well.
        let start = Instant::now();
        let read = |pid: u32| {
            let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let line = io
                .lines()
                .find_map(|l| l.strip_prefix("rchar: ")?.parse::<u64>().ok());
            line.unwrap_or(u64::MAX)
        };
        while read(child.id()) < share << 20 && child.try_wait().unwrap().is_none() {
            assert!(
                start.elapsed() < Duration::from_secs(300),
                "the copy does not go on"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The listing recovers the image first.
        let names = ok(&["ls", &image]);
        let found: Vec<&str> = names.lines().filter(|n| *n != "lost+found").collect();
        let out = place.text(&format!("out{round}"));
        ok(&["get", &image, &out]);
        for (n, name) in found.iter().enumerate() {
            assert_eq!(*name, format!("f{n:03}"));
            assert!(
                fs::read(format!("{out}/{name}")).unwrap() == content(n),
                "{name} is not whole"
            );
        }
        tool("e2fsck", &["-fn", &image]);
    }
}

/// The host's file system has written every block of a new image's log, not only noted that it is zero: the first sync calls would
/// wait for its metadata.
#[test]
fn the_log_of_a_new_image_is_written() {
    let place = Place::new();
    let image = place.volume("a.img", "64M");
    let blocks = common::tool("debugfs", &["-R", "blocks <8>", &image]);
    let blocks: Vec<u64> = blocks
        .split_whitespace()
        .map(|block| block.parse().expect("a number"))
        .collect();
    assert!(blocks.len() >= 1024, "{} blocks", blocks.len());
    let file = fs::File::open(&image).unwrap();
    for block in blocks {
        let at = block * 4096;
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(at)).expect("a place");
        assert!(hole >= at + 4096, "block {block} of the log is not written");
    }
}

/// `ccfs get` never replaces a device, pipe or socket by a file, whoever asks (root and /dev/null), and goes through symlinks as cp(1) does.
#[test]
fn get_replaces_files_and_nothing_else() {
    let place = Place::new();
    let image = place.volume("a.img", "16M");
    fs::write(place.path("file"), b"content").unwrap();
    let inside = format!("{image}:/file");
    ok(&["put", &place.text("file"), &inside]);
    let dir = place.subdir("out");
    let at = |name: &str| format!("{dir}/{name}");
    run(std::process::Command::new("mkfifo").args([at("file"), at("pipe")]));
    std::os::unix::fs::symlink("pipe", at("to-pipe")).unwrap();
    let kind = |name: &str| fs::symlink_metadata(at(name)).unwrap().file_type();
    for to in [at("pipe"), at("to-pipe"), dir.clone()] {
        let ran = ccfs_with(&["get", &inside, &to]);
        refused(&to, &ran, 1, &["is a device, pipe or socket", "ccfs cat"]);
    }
    for name in ["file", "pipe"] {
        assert!(!kind(name).is_file(), "{name}");
    }
    let left = fs::read_dir(&dir).unwrap().count();
    assert_eq!(left, 3, "temporary files are left");
    fs::write(at("old"), b"old").unwrap();
    std::os::unix::fs::symlink("old", at("to-old")).unwrap();
    ok(&["get", &inside, &at("to-old")]);
    assert!(kind("to-old").is_symlink() && kind("old").is_file());
    assert_eq!(fs::read(at("old")).unwrap(), b"content");
}

#[test]
fn ls_shows_what_is_asked_for() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let at = |path: &str| format!("{image}:{path}");
    ok(&["mkdir", "-p", &at("/d/.hidden/below"), &at("/d/sub")]);
    fs::write(place.path("f"), vec![1; 1_572_864]).unwrap();
    ok(&[
        "put",
        "--owner",
        "1:2",
        &place.text("f"),
        &at("/d/sub/large"),
    ]);
    ok(&["put", &place.text("f"), &at("/d/.dot")]);
    assert_eq!(ok(&["ls", &at("/d")]), "sub\n");
    assert_eq!(ok(&["ls", "-a", &at("/d")]), ".\n..\n.dot\n.hidden\nsub\n");
    assert!(ok(&["ls", "-l", &at("/d/sub")]).contains(" 1572864 "));
    assert!(ok(&["ls", "-lh", &at("/d/sub")]).contains(" 1.5 MiB "));
    assert_eq!(
        ok(&["ls", "-R", &at("/d")]),
        "/d:\nsub\n\n/d/.hidden:\nbelow\n\n/d/.hidden/below:\n\n/d/sub:\nlarge\n"
    );
    let all = compare("ccfs ls --json", &ok(&["ls", "-R", "--json", &at("/d")]));
    let below = all["below"].as_array().unwrap();
    let paths: Vec<_> = below.iter().map(|d| d["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/d/.hidden", "/d/.hidden/below", "/d/sub"]);
    assert_eq!(below[2]["entries"][0]["name"], "large");
    let tree = compare("ccfs tree --json", &ok(&["tree", "--json", &at("/d")]));
    assert_eq!(
        (&tree["directories"], &tree["files"]),
        (&3.into(), &2.into())
    );
    assert_eq!(tree["entries"][0]["path"], ".dot");
    assert!(
        ccfs_with(&["ls", "--help"])
            .out
            .contains("--human-readable")
    );
}

#[test]
fn standard_input_and_output_are_files() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let at = |path: &str| format!("{image}:{path}");
    let put = |input: &[u8], args: &[&str]| {
        fs::write(place.path("input"), input).unwrap();
        let input = fs::File::open(place.path("input")).unwrap();
        run(ccfs().arg("put").args(args).stdin(input))
    };
    // More than one piece, and not a multiple of anything.
    let content: Vec<u8> = (0..3_333_333u32).map(|n| (n * 7 % 251) as u8).collect();
    for (input, owner) in [
        (&content[..], "5:6"),
        (&b""[..], "7:8"),
        (&b"short"[..], "7:8"),
    ] {
        let ran = put(input, &["--owner", owner, "-", &at("/f")]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        let got = Command::new(ccfs().get_program())
            .args(["get", &at("/f"), "-"])
            .output()
            .unwrap();
        assert!(got.status.success() && got.stdout == input);
    }
    // A file that is replaced keeps its owner.
    assert!(ok(&["ls", "-l", &at("/f")]).contains("     5     6 "));
    refused("put", &put(b"x", &["-", &image]), 2, &["is a directory"]);
    refused("get", &ccfs_with(&["get", &at("/none"), "-"]), 1, &["none"]);
    refused(
        "get",
        &ccfs_with(&["get", &at("/"), "-"]),
        1,
        &["directory"],
    );
    fs::write(place.path("-"), "by its name").unwrap();
    let ran = run(ccfs()
        .args(["put", "./-", &at("/dash")])
        .current_dir(place.text("")));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ok(&["cat", &at("/dash")]), "by its name");
    tool("e2fsck", &["-fn", &image]);
}
