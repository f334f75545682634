//! What is installed: files, completions, the service unit, and the Debian package, all in a directory of the test's own.
mod common;
use common::{Place, ccfs_with, run, tool, umount8};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn script(action: &str, prefix: &str, sbin: &str, root: &str) {
    let mut command = Command::new(top().join("scripts/install.sh"));
    command
        .args([action, env!("CARGO_BIN_EXE_ccfs")])
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

#[test]
fn what_is_installed_is_uninstalled() {
    let place = Place::new();
    let root = place.text("root");
    script("install", "/opt/ccfs", "/sbin", &root);
    script("install", "/opt/ccfs", "/sbin", &root);
    let installed = files(&root);
    for file in [
        "/opt/ccfs/bin/ccfs",
        "/sbin/mount.ccfs",
        "/sbin/mkfs.ccfs",
        "/sbin/fsck.ccfs",
        "/opt/ccfs/share/man/man8/ccfs.8",
        "/opt/ccfs/share/man/man8/ccfs-mount.8",
        "/opt/ccfs/share/man/man8/mount.ccfs.8",
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
    // The library comes from a build of its own; here only its files count.
    let built = place.subdir("built");
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
    script("uninstall", "/opt/ccfs", "/sbin", &root);
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
    script("install", &prefix, &sbin, "");
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
    script("uninstall", &prefix, &sbin, "");
}

/// What systemd does with a service of `Type=notify`, by hand.
#[test]
fn a_service_manager_is_told_when_the_volume_is_ready() {
    needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
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
    assert!(daemon.wait().unwrap().success());
}

fn deb(place: &Place, version: &str) -> String {
    let mut command = Command::new(top().join("packaging/deb.sh"));
    command.args([env!("CARGO_BIN_EXE_ccfs"), &place.text("out"), version]);
    let ran = run(command.stdin(Stdio::null()));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    ran.out.trim().to_string()
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
    needs_mounts!();
    if !have("dpkg-shlibdeps") || !have("dpkg") {
        return;
    }
    let place = Place::new();
    let (first, second) = (deb(&place, "0.1.0-1"), deb(&place, "0.1.0-2"));
    if have("lintian") {
        let ran = run(Command::new("lintian").args([
            "--allow-root",
            "--fail-on",
            "error",
            "--no-cfg",
            &first,
        ]));
        // What each release of lintian calls an error differs; crashes of lintian itself are none of ours.
        let errors = ran.out.lines().filter(|l| l.starts_with("E: ccfs"));
        assert_eq!(errors.collect::<Vec<_>>(), [""; 0], "{}", ran.err);
    }
    let root = place.subdir("root");
    for dir in [
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/triggers",
    ] {
        fs::create_dir_all(place.path("root").join(dir)).unwrap();
    }
    fs::write(place.path("root/var/lib/dpkg/status"), "").unwrap();
    dpkg(&root, &["-i", &first]);
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
    dpkg(&root, &["-i", &second]);
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
