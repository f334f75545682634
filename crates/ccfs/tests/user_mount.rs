//! Mounting as an ordinary user, by way of fusermount3.
mod common;
mod home;
use common::{refused, tool};
use home::{Home, IMAGE, USER};
use std::fs;

#[test]
fn a_user_mounts_works_and_unmounts() {
    let Some(home) = Home::new() else {
        return;
    };
    let dir = home.path("mnt");
    let said = home.good(&["mount", IMAGE, "mnt"]);
    assert!(
        said.contains("plain FUSE mount") && said.contains("syncfs"),
        "warned at mount: {said}"
    );
    assert_eq!(home.fstype(&dir).as_deref(), Some("fuse.ccfs"));
    let work = home.shell("cd mnt; echo x > f; mkdir d; ln -s f s; sync f; cat s");
    assert_eq!((work.code, work.out.as_str()), (0, "x\n"), "{}", work.err);
    // Flagged in the status, for people and programs.
    assert!(home.good(&["status", "mnt"]).contains("WARNING"));
    let status: serde_json::Value =
        serde_json::from_str(&home.good(&["status", "--json", "mnt"])).unwrap();
    assert_eq!(status["mount"]["syncfs_works"], false);
    assert_eq!(status["mount"]["source"], home.path(IMAGE));
    // Without allow_other nobody else gets in, root included.
    assert_ne!(home.root(&["ls", &dir]).code, 0);
    refused(
        "second mount",
        &home.ccfs(&["mount", IMAGE, "mnt"]),
        32,
        &["already mounted"],
    );
    refused("ls", &home.ccfs(&["ls", IMAGE]), 1, &["mounted on"]);
    // In use: said, and still served.
    let busy = home.shell(&format!(
        "cd mnt; {} umount ../mnt",
        home.place.text("ccfs")
    ));
    refused("umount", &busy, 32, &["in use by"]);
    home.good(&["umount", "mnt"]);
    assert_eq!(home.fstype(&dir), None);
    tool("e2fsck", &["-fn", &home.path(IMAGE)]);
    assert!(home.good(&["ls", IMAGE]).contains("f\n"));
    // umount(8) of fuse3's own.
    home.good(&["mount", "-o", "ro", IMAGE, "mnt"]);
    assert_ne!(home.shell("echo y > mnt/f").code, 0);
    let unmounted = home.user("fusermount3", &["-u", "mnt"]);
    assert_eq!(unmounted.code, 0, "{}", unmounted.err);
}

#[test]
fn a_killed_daemon_of_a_user_is_cleared_by_the_user() {
    let Some(home) = Home::new() else {
        return;
    };
    home.good(&["mount", IMAGE, "mnt"]);
    let made = home.shell("cd mnt; echo synced > f; sync f; echo lost > g");
    assert_eq!(made.code, 0, "{}", made.err);
    let status: serde_json::Value =
        serde_json::from_str(&home.good(&["status", "--json", "mnt"])).unwrap();
    tool("kill", &["-9", &status["mount"]["pid"].to_string()]);
    let start = std::time::Instant::now();
    loop {
        // The lock of a killed process lives on for a moment.
        let again = home.ccfs(&["mount", IMAGE, "mnt"]);
        if again.code == 0 {
            break;
        }
        assert!(
            start.elapsed() < std::time::Duration::from_secs(60),
            "{}",
            again.err
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(home.shell("cat mnt/f").out, "synced\n");
    home.good(&["umount", "mnt"]);
    tool("e2fsck", &["-fn", &home.path(IMAGE)]);
}

#[test]
fn what_a_user_may_not_do_is_said() {
    let Some(home) = Home::new() else {
        return;
    };
    // allow_other only as /etc/fuse.conf has it.
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|t| t.lines().any(|l| l.trim() == "user_allow_other"));
    let other = home.ccfs(&["mount", "-o", "allow_other", IMAGE, "mnt"]);
    if allowed {
        assert_eq!(other.code, 0, "{}", other.err);
        assert_eq!(home.root(&["ls", &home.path("mnt")]).code, 0);
        home.good(&["umount", "mnt"]);
    } else {
        refused("allow_other", &other, 32, &["user_allow_other"]);
        assert!(
            home.good(&["ls", IMAGE]).contains("lost+found"),
            "at rest after a failed mount"
        );
    }
    // A directory of root's.
    let roots = home.place.subdir("roots");
    refused(
        "no right",
        &home.ccfs(&["mount", IMAGE, &roots]),
        32,
        &["write access", "Permission"],
    );
    // Without fusermount3, wherever it is installed: a mount namespace hides it.
    let program = home.place.text("ccfs");
    let user = USER.to_string();
    let script = format!(
        "for p in /usr/bin/fusermount3 /bin/fusermount3 /usr/local/bin/fusermount3; do \
         [ ! -e $p ] || mount --bind / $p 2>/dev/null || mount --bind /dev/null $p; done; \
         cd {} && exec setpriv --reuid {user} --regid {user} --clear-groups -- {program} mount '{IMAGE}' mnt",
        home.path("")
    );
    let ran = home.root(&[
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
    ]);
    refused("without fusermount3", &ran, 1, &["fuse3"]);
    // Somebody else's mount.
    let dir = home.place.subdir("mine");
    let image = home.place.volume("root.img", "32M");
    let mounted = home.root(&[&program, "mount", &image, &dir]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    let ran = home.ccfs(&["umount", &dir]);
    let unmounted = home.root(&[&program, "umount", &dir]);
    refused("somebody else's mount", &ran, 1, &["root"]);
    assert_eq!(unmounted.code, 0, "{}", unmounted.err);
}
