//! What is installed: files, completions, the service unit, and the Debian package, all in a directory of the test's own.
mod common;
use common::{Place, ccfs_with, run, tool, umount8};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn script(action: &str, program: &str, prefix: &str, sbin: &str, root: &str) {
    let mut command = Command::new(top().join("scripts/install.sh"));
    command
        .args([action, program])
        .env("DESTDIR", root)
        .env("PREFIX", prefix)
        .env("SBIN", sbin);
    let ran = run(command.stdin(Stdio::null()));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

/// All files and links below `root`.
fn files(root: &str) -> Vec<String> {
    let found = tool(
        "find",
        &[
            root, "(", "-type", "f", "-o", "-type", "l", ")", "-printf", "/%P\\n",
        ],
    );
    let mut files: Vec<String> = found.lines().map(str::to_string).collect();
    files.sort();
    files
}

fn have(program: &str) -> bool {
    let found = run(Command::new("sh").args(["-c", &format!("command -v {program}")]));
    if found.code != 0 {
        println!("skipped: there is no {program}");
    }
    found.code == 0
}

/// Stands for a program that `ccfs` starts. Written by another process: one that this process wrote may count as being written still.
fn other_program(path: &str) {
    let table =
        r#"{"name": "other", "about": "", "arguments": [], "commands": [], "has_help": false}"#;
    let page = r#"mkdir -p "$2"; echo .TH >"$2/${0##*/}.8""#;
    let text = format!("#!/bin/sh\ncase $1 in table) echo '{table}' ;; man) {page} ;; esac\n");
    let script = r#"printf %s "$2" >"$1" && chmod 755 "$1""#;
    tool("sh", &["-c", script, "sh", path, &text]);
}

/// The other programs are those beside `ccfs` and in PATH: a directory above can be anybody's.
#[test]
fn a_program_of_somebody_else_is_not_started() {
    let place = Place::new();
    place.subdir("shared");
    let own = place.subdir("shared/own");
    tool("cp", &[env!("CARGO_BIN_EXE_ccfs"), &own]);
    let began = place.path("began");
    let planted = place.text("shared/ccfs-crash");
    let script = format!("#!/bin/sh\n: >'{}'\n", began.display());
    fs::write(&planted, script).unwrap();
    tool("chmod", &["755", &planted]);
    // Neither the working directory, which an empty part of PATH would mean, nor a file that nobody can run.
    let other = place.subdir("other");
    fs::write(place.path("other/ccfs-crash"), "").unwrap();
    let called = |args: &[&str]| {
        let mut ccfs = Command::new(format!("{own}/ccfs"));
        ccfs.args(args).current_dir(place.path("shared"));
        run(ccfs.env("PATH", format!(":{other}")))
    };
    let crash = called(&["crash", "--help"]);
    assert_eq!(crash.code, 127, "{}", crash.err);
    assert!(
        crash.err.contains("ccfs-crash is neither in"),
        "{}",
        crash.err
    );
    assert_eq!(called(&["completions", "bash"]).code, 0);
    assert!(!began.exists());
    // One of another version has no table: the rest is completed.
    fs::rename(&planted, format!("{own}/ccfs-crash")).unwrap();
    let bash = called(&["completions", "bash"]);
    assert_eq!(bash.code, 0, "{}", bash.err);
    assert!(bash.out.contains("mount") && began.exists(), "{}", bash.out);
    assert!(bash.err.contains("another version"), "{}", bash.err);
}

#[test]
fn what_is_installed_is_uninstalled() {
    let place = Place::new();
    let root = place.text("root");
    // The other programs come from builds of their own; here only their files count, and what the installation asks them.
    let built = place.subdir("built");
    tool("cp", &[env!("CARGO_BIN_EXE_ccfs"), &built]);
    for name in ["ccfs-bench", "ccfs-bench-work", "ccfs-crash"] {
        other_program(&format!("{built}/{name}"));
    }
    fs::write(place.path("built/libccfs_direct.so"), "").unwrap();
    let program = format!("{built}/ccfs");
    for _ in 0..2 {
        script("install", &program, "/opt/ccfs", "/sbin", &root);
    }
    let installed = files(&root);
    for file in [
        "/opt/ccfs/bin/ccfs",
        "/opt/ccfs/bin/ccfs-bench",
        "/opt/ccfs/bin/ccfs-bench-work",
        "/opt/ccfs/bin/ccfs-crash",
        "/opt/ccfs/lib/ccfs/libccfs_direct.so",
        "/opt/ccfs/share/man/man8/ccfs-bench.8",
        "/opt/ccfs/share/man/man8/ccfs-crash.8",
        "/sbin/mount.ccfs",
        "/sbin/mount.fuseblk.ccfs",
        "/sbin/umount.fuseblk.ccfs",
        "/sbin/mkfs.ccfs",
        "/sbin/fsck.ccfs",
        "/opt/ccfs/share/man/man8/ccfs.8",
        "/opt/ccfs/share/man/man8/ccfs-mount.8",
        "/opt/ccfs/share/man/man8/mount.ccfs.8",
        "/opt/ccfs/share/man/man5/ccfs.5",
        "/opt/ccfs/share/man/man7/ccfs.7",
        "/opt/ccfs/share/doc/ccfs/README.md",
        "/opt/ccfs/share/doc/ccfs/using/options.md",
        "/opt/ccfs/share/bash-completion/completions/ccfs",
        "/opt/ccfs/share/zsh/site-functions/_ccfs",
        "/opt/ccfs/share/fish/vendor_completions.d/ccfs.fish",
        "/opt/ccfs/lib/systemd/system/ccfs@.service",
    ] {
        assert!(
            installed.iter().any(|f| f == file),
            "{file} is missing: {installed:?}"
        );
    }
    let link = fs::read_link(place.path("root/sbin/mount.ccfs")).unwrap();
    assert_eq!(link, Path::new("/opt/ccfs/bin/ccfs"));
    let version = run(Command::new(place.path("root/opt/ccfs/bin/ccfs")).arg("version"));
    assert_eq!(version.code, 0);
    // So does the library.
    for file in ["libccfs.so", "libccfs.a"] {
        fs::write(place.path("built").join(file), "").unwrap();
    }
    let mut libs = Command::new(top().join("scripts/install-libs.sh"));
    libs.arg(&built)
        .env("DESTDIR", &root)
        .env("PREFIX", "/opt/ccfs");
    assert_eq!(run(&mut libs).code, 0);
    let pc = fs::read_to_string(place.path("root/opt/ccfs/lib/pkgconfig/ccfs.pc")).unwrap();
    assert!(pc.contains("/opt/ccfs") && !pc.contains('@'), "{pc}");
    fs::write(place.path("root/opt/ccfs/bin/other"), "not ours").unwrap();
    script("uninstall", &program, "/opt/ccfs", "/sbin", &root);
    assert_eq!(files(&root), ["/opt/ccfs/bin/other"]);
}

#[test]
fn completions_are_understood_by_their_shells() {
    let place = Place::new();
    let dir = place.text("made");
    assert_eq!(ccfs_with(&["completions", &dir]).code, 0);
    let bash = format!(
        "source {dir}/ccfs; COMP_WORDS=(ccfs mo); COMP_CWORD=1; _ccfs ccfs mo ccfs; echo ${{COMPREPLY[@]}}; \
         COMP_WORDS=(ccfs put --); COMP_CWORD=2; _ccfs ccfs -- put; echo ${{COMPREPLY[@]}}"
    );
    let offered = tool("bash", &["-c", &bash]);
    assert!(
        offered.starts_with("mount") && offered.contains("--owner"),
        "{offered}"
    );
    if have("zsh") {
        tool("zsh", &["-n", &format!("{dir}/_ccfs")]);
    }
    if have("fish") {
        let fish = format!("source {dir}/ccfs.fish; complete -C 'ccfs um'");
        let mut command = Command::new("fish");
        command.args(["--no-config", "-c", &fish]).env("HOME", &dir);
        let ran = run(&mut command);
        assert!(
            ran.code == 0 && ran.out.contains("umount"),
            "{}{}",
            ran.out,
            ran.err
        );
    }
}

#[test]
fn the_service_unit_is_valid() {
    if !have("systemd-analyze") {
        return;
    }
    let place = Place::new();
    let (prefix, sbin) = (place.text("usr"), place.text("sbin"));
    script("install", env!("CARGO_BIN_EXE_ccfs"), &prefix, &sbin, "");
    // An instance, as systemctl would start it.
    let unit = format!("{prefix}/lib/systemd/system/ccfs@.service");
    let instance = place.text("ccfs@work.service");
    fs::copy(&unit, &instance).unwrap();
    let ran = run(Command::new("systemd-analyze").args(["verify", "--man=no", &instance]));
    // It looks at the units that ours comes after as well, and has its own word on those.
    let ours: Vec<&str> = ran.err.lines().filter(|l| l.contains("ccfs")).collect();
    assert_eq!(ours, [""; 0], "{}", ran.out);
    if ran.code != 0 {
        println!("skipped: systemd-analyze cannot judge here: {}", ran.err);
    }
    script("uninstall", env!("CARGO_BIN_EXE_ccfs"), &prefix, &sbin, "");
}

/// What systemd does with a service of `Type=notify`, by hand.
#[test]
fn a_service_manager_is_told_when_the_volume_is_ready() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let mut daemon = common::ccfs()
        .args(["mount", "-f", "-o", "defaults", "--", &image, &dir])
        .env("NOTIFY_SOCKET", place.path("notify"))
        .spawn()
        .unwrap();
    let mut said = [0u8; 64];
    let len = socket.recv(&mut said).unwrap();
    assert_eq!(&said[..len], b"READY=1");
    fs::write(place.path("mnt/f"), "served").unwrap();
    common::unmount(&dir);
    assert!(common::wait_for(&mut daemon).success());
}

/// Builds these packages; their files.
fn deb(place: &Place, version: &str, packages: &[&str]) -> Vec<String> {
    let mut command = Command::new(top().join("packaging/deb.sh"));
    command.args([env!("CARGO_BIN_EXE_ccfs"), &place.text("out"), version]);
    command.args(packages).env("DEB_LEVEL", "0");
    let ran = run(command.stdin(Stdio::null()));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let files: Vec<String> = ran.out.lines().map(str::to_string).collect();
    assert_eq!(files.len(), packages.len(), "{files:?}");
    files
}

/// What each release of lintian calls an error differs; crashes of lintian itself are none of ours.
fn lint(packages: &[String]) {
    if !have("lintian") {
        return;
    }
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--fail-on", "error", "--no-cfg"]);
    let ran = run(command.args(packages));
    let ours = |l: &&str| l.starts_with("E: ccfs") || l.starts_with("E: libccfs");
    let errors = ran.out.lines().filter(ours);
    assert_eq!(errors.collect::<Vec<_>>(), [""; 0], "{}", ran.err);
}

/// An empty root for dpkg.
fn empty_root(place: &Place) -> String {
    let root = place.subdir("root");
    for dir in [
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/triggers",
    ] {
        fs::create_dir_all(place.path("root").join(dir)).unwrap();
    }
    fs::write(place.path("root/var/lib/dpkg/status"), "").unwrap();
    root
}

/// dpkg in a root of its own.
fn dpkg(root: &str, args: &[&str]) -> String {
    let mut command = Command::new("dpkg");
    command
        .args([
            "--root",
            root,
            "--force-depends",
            "--force-script-chrootless",
            "--no-triggers",
            "--log=/dev/null",
        ])
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("DEBIAN_FRONTEND", "noninteractive");
    let ran = run(command.stdin(Stdio::null()));
    assert_eq!(ran.code, 0, "dpkg {args:?}: {}{}", ran.out, ran.err);
    ran.out
}

#[test]
fn the_package_installs_upgrades_under_a_mount_and_goes_away() {
    common::needs_mounts!();
    if !have("dpkg-shlibdeps") || !have("dpkg") {
        return;
    }
    let place = Place::new();
    let first = deb(&place, "0.1.0-1", &["ccfs"]);
    let second = deb(&place, "0.1.0-2", &["ccfs"]);
    lint(&first);
    let root = empty_root(&place);
    dpkg(&root, &["-i", &first[0]]);
    let program = place.text("root/usr/bin/ccfs");
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let mounted = run(Command::new(&program).args(["mount", &image, &dir]));
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    let pid = || {
        let status = run(Command::new(&program).args(["status", "--json", &dir]));
        let value: serde_json::Value = serde_json::from_str(&status.out).unwrap();
        value["mount"]["pid"].as_u64().unwrap()
    };
    let before = pid();
    dpkg(&root, &["-i", &second[0]]);
    // The old daemon serves on, and the new program talks to it.
    assert_eq!(pid(), before);
    fs::write(place.path("mnt/f"), "after the upgrade").unwrap();
    let exe = fs::read_link(format!("/proc/{before}/exe")).unwrap();
    assert!(exe.to_str().unwrap().ends_with("(deleted)"), "{exe:?}");
    dpkg(&root, &["-r", "ccfs"]);
    assert!(!Path::new(&program).exists());
    assert_eq!(
        fs::read_to_string(place.path("mnt/f")).unwrap(),
        "after the upgrade"
    );
    umount8(&dir);
    tool("e2fsck", &["-fn", &image]);
    dpkg(&root, &["--purge", "ccfs"]);
    let left: Vec<String> = files(&root)
        .into_iter()
        .filter(|f| !f.starts_with("/var/lib/dpkg"))
        .collect();
    assert_eq!(left, [""; 0]);
}

/// C programs are built with nothing but what the packages installed, and do on a volume what they say.
#[test]
fn programs_are_built_with_the_librarys_packages() {
    common::needs_mounts!();
    if !["dpkg-shlibdeps", "dpkg", "cc", "pkg-config"]
        .into_iter()
        .all(have)
    {
        return;
    }
    let built = Path::new(env!("CARGO_BIN_EXE_ccfs")).with_file_name("libccfs.so");
    if !built.exists() {
        println!("skipped: the library is not built: cargo build --release -p ccfs-libccfs");
        return;
    }
    let place = Place::new();
    let packages = deb(&place, "0.1.0-1", &["libccfs1", "libccfs-dev"]);
    lint(&packages);
    let root = empty_root(&place);
    dpkg(&root, &["-i", &packages[0], &packages[1]]);
    for page in ["setstream", "getstream", "streamsync"] {
        let page = format!("{root}/usr/share/man/man3/{page}.3.gz");
        assert!(Path::new(&page).exists(), "{page}");
    }
    let lib = tool("find", &[&root, "-name", "libccfs.so.1"]);
    let lib = Path::new(lib.trim()).parent().unwrap().to_path_buf();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    for linking in ["shared", "static"] {
        let program = place.text(linking);
        let flags = match linking {
            "shared" => "$(pkg-config --cflags --libs ccfs)",
            _ => "$(pkg-config --cflags --libs --static ccfs | sed s/-lccfs/-l:libccfs.a/)",
        };
        let source = top().join("examples/ordered.c");
        let script = format!("cc -Wall -Werror -o {program} {} {flags}", source.display());
        let mut command = Command::new("sh");
        command
            .args(["-euc", &script])
            .env("PKG_CONFIG_SYSROOT_DIR", &root)
            .env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig"))
            .stdin(Stdio::null());
        let ran = run(&mut command);
        assert_eq!(ran.code, 0, "{script}: {}{}", ran.out, ran.err);
        for (dir, first) in [(dir.as_str(), "ordered\n"), (root.as_str(), "plain\n")] {
            let mut command = Command::new(&program);
            command.args([dir, "20"]).env("LD_LIBRARY_PATH", &lib);
            let ran = run(&mut command);
            assert_eq!(ran.code, 0, "{}", ran.err);
            assert_eq!(ran.out, format!("{first}synced 10\nsynced 20\n"));
        }
        for file in ["log", "state"] {
            fs::remove_file(place.path("root").join(file)).unwrap();
        }
    }
    common::unmount(&dir);
    dpkg(&root, &["--purge", "libccfs-dev", "libccfs1"]);
    let left: Vec<String> = files(&root)
        .into_iter()
        .filter(|f| !f.starts_with("/var/lib/dpkg"))
        .collect();
    assert_eq!(left, [""; 0]);
}
