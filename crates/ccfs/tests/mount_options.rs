//! Options of ext4 and of mount(8): each is decided by name, on every way to a mount, and what is done is done.
mod common;
use common::{Place, ccfs_with, in_namespace, loops_of, mount, refused, run, tool, unmount};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

/// Rows of the manual's table: what becomes of options, and options of which `...` is made a value.
fn documented(decision: &str) -> Vec<String> {
    let chapter = ccfs_testkit::user_manual::chapter("Options of ext4");
    let mut found = Vec::new();
    for row in chapter.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        if cells[1] == decision {
            let options = cells[0].split('`').skip(1).step_by(2);
            found.extend(options.map(|o| match o.strip_suffix("...") {
                Some(start) => format!("{start}8"),
                None => o.to_string(),
            }));
        }
    }
    assert!(found.len() > 3, "{decision}: {found:?}");
    found
}

/// `try_it WAY OPTIONS`: says what came of it, between marks, and unmounts.
const TRY: &str = r#"
cd "$PLACE"
try_it() {
    case $1 in
        direct) "$PROGRAM" mount -o "$2" "$PLACE/a.img" "$PLACE/mnt" ;;
        helper) mount -t ccfs -o "$2" "$PLACE/a.img" "$PLACE/mnt" ;;
        fstab) echo "$PLACE/a.img $PLACE/mnt ccfs $2 0 0" >table; mount -T table "$PLACE/mnt" ;;
    esac >said 2>&1 && code=0 || code=$?
    there=no
    if [ -n "$(options "$PLACE/mnt")" ]; then there=yes; umount -i "$PLACE/mnt"; fi
    echo "@@ $1 $2 $code $there"
    cat said
}
"#;

struct Tried {
    way: String,
    options: String,
    code: i32,
    is_mounted: bool,
    said: String,
}

fn try_all(place: &Place, cases: &[(&str, String)]) -> Vec<Tried> {
    let lines: Vec<String> = cases
        .iter()
        .map(|(way, options)| format!("try_it {way} '{options}'"))
        .collect();
    let said = in_namespace(place, &format!("{TRY}\n{}", lines.join("\n")));
    let tried: Vec<Tried> = said
        .split("@@ ")
        .skip(1)
        .map(|part| {
            let (head, said) = part.split_once('\n').unwrap();
            let head: Vec<&str> = head.split(' ').collect();
            Tried {
                way: head[0].into(),
                options: head[1].into(),
                code: head[2].parse().unwrap(),
                is_mounted: head[3] == "yes",
                said: said.into(),
            }
        })
        .collect();
    assert_eq!(tried.len(), cases.len(), "{said}");
    tried
}

#[test]
fn every_option_is_decided() {
    common::needs_mounts!();
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    place.subdir("mnt");
    let ways = ["direct", "helper", "fstab"];
    let mut cases: Vec<(&str, String)> = Vec::new();
    let taken = documented("taken, changes nothing");
    for way in ways {
        let mut done = documented("done");
        done.retain(|o| !["noload", "norecovery"].contains(&o.as_str()));
        cases.push((way, done.join(",")));
        cases.push((way, "ro,noload,norecovery".into()));
        let mut always = documented("always so");
        // mount(8) looks for that device.
        always.retain(|o| way == "direct" || o != "loop=8");
        cases.push((way, always.join(",")));
        cases.push((way, taken.join(",")));
        cases.push((way, format!("{},silent", taken.join(","))));
        let refused = documented("refused");
        cases.extend(refused.into_iter().map(|option| (way, option)));
    }
    let of_mount = documented("mount(8)'s own");
    cases.extend(of_mount.into_iter().map(|option| ("direct", option)));
    let (mut mounted, mut told, mut turned_away) = (0, 0, 0);
    for t in try_all(&place, &cases) {
        let which = format!("{} {}: {}", t.way, t.options, t.said);
        let is_one = !t.options.contains(',');
        assert_eq!(t.is_mounted, !is_one, "{which}");
        assert_eq!(t.code, i32::from(is_one), "{which}");
        let notes = t.said.matches(" changes nothing: ").count();
        if is_one {
            turned_away += 1;
            let by_name = format!("option {} is ", t.options);
            assert!(t.said.contains(&by_name), "{which}");
            assert_eq!(t.said.lines().count(), 1, "{which}");
            continue;
        }
        mounted += 1;
        let is_taken = t.options.starts_with(&taken.join(",")) && !t.options.ends_with(",silent");
        assert_eq!(notes, if is_taken { taken.len() } else { 0 }, "{which}");
        assert_eq!(t.said.lines().count(), notes, "{which}");
        if is_taken {
            told += 1;
            let is_named = |option: &String| {
                let note = format!("ccfs mount: option {option} changes nothing: ");
                t.said.lines().any(|line| line.starts_with(&note))
            };
            assert!(taken.iter().all(is_named), "{which}");
        }
    }
    assert_eq!((mounted, told), (15, 3));
    assert!(turned_away > 100, "{turned_away}");
    tool("e2fsck", &["-fn", &image]);
}

/// mount(8) with -s leaves out what is refused, and nothing else.
#[test]
fn sloppy_mounts_leave_out_what_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    place.volume("a.img", "32M");
    place.subdir("mnt");
    let said = in_namespace(
        &place,
        r#"
        mount -s -t ccfs -o usrquota,frobnicate,nosuid,stripe=8 "$PLACE/a.img" "$PLACE/mnt"
        options "$PLACE/mnt"
        umount "$PLACE/mnt"
        "#,
    );
    assert!(said.contains("rw,nosuid,relatime"), "{said}");
    assert!(said.contains("option stripe=8 changes nothing"), "{said}");
    assert!(!said.contains("usrquota"), "{said}");
}

/// The options that a helper gets imply what mount(8) says they do.
#[test]
fn user_mounts_run_no_programs() {
    common::needs_mounts!();
    let place = Place::new();
    place.volume("a.img", "32M");
    place.subdir("mnt");
    let said = in_namespace(
        &place,
        r#"
        look() { options "$PLACE/mnt"; umount "$PLACE/mnt"; }
        for list in user users owner user,exec; do
            mount -t ccfs -o $list "$PLACE/a.img" "$PLACE/mnt"; look
            "$PROGRAM" mount -o $list "$PLACE/a.img" "$PLACE/mnt"; look
        done
        "#,
    );
    let lines: Vec<&str> = said.lines().collect();
    let all = "rw,nosuid,nodev,noexec,relatime";
    let some = "rw,nosuid,nodev,relatime";
    assert_eq!(lines, [all, all, all, all, some, some, some, some]);
}

fn mounted_with(image: &str, dir: &str, options: &str) {
    let ran = ccfs_with(&["mount", "-o", options, image, dir]);
    assert_eq!(ran.code, 0, "{options}: {}", ran.err);
    assert!(!ran.err.contains("option"), "{options}: {}", ran.err);
}

#[test]
fn options_do_what_they_say() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), "x").unwrap();
    symlink("f", place.path("mnt/link")).unwrap();
    fs::create_dir(place.path("mnt/d")).unwrap();
    std::os::unix::fs::chown(place.path("mnt/d"), None, Some(77)).unwrap();
    let blocks = |dir: &str| rustix::fs::statvfs(dir).unwrap().f_blocks;
    let without = blocks(&dir);
    let group_of_new = |name: &str| {
        fs::write(place.path("mnt/d").join(name), "").unwrap();
        fs::metadata(place.path("mnt/d").join(name)).unwrap().gid()
    };
    assert_eq!(group_of_new("by default"), 0);
    unmount(&dir);
    mounted_with(&image, &dir, "nosymfollow,grpid,minixdf");
    let followed = fs::read(place.path("mnt/link")).unwrap_err();
    assert_eq!(followed.raw_os_error(), Some(libc::ELOOP));
    assert!(fs::read_link(place.path("mnt/link")).is_ok());
    assert_eq!(group_of_new("of its directory"), 77);
    fs::create_dir(place.path("mnt/d/dir")).unwrap();
    let made = fs::metadata(place.path("mnt/d/dir")).unwrap();
    assert_eq!((made.gid(), made.permissions().mode() & 0o2000), (77, 0));
    assert!(blocks(&dir) > without, "minixdf");
    let remount = |options: &str| ccfs_with(&["mount", "-o", options, "none", &dir]);
    assert_eq!(remount("remount,symfollow").code, 0);
    assert_eq!(fs::read(place.path("mnt/link")).unwrap(), b"x");
    for fixed in ["remount,nogrpid", "remount,bsddf", "remount,sync"] {
        refused(fixed, &remount(fixed), 1, &["cannot be changed while"]);
    }
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

/// What returned is there after the daemon was killed, though nobody synced; without the options it is not.
#[test]
fn changes_under_sync_and_dirsync_are_durable() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    for (n, (options, survive)) in [
        ("commit=3600", [false; 3]),
        ("commit=3600,dirsync", [true, false, false]),
        ("commit=3600,sync", [true; 3]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = |what: &str| place.path(&format!("mnt/{what}{n}"));
        mounted_with(&image, &dir, options);
        fs::write(name("f"), "old").unwrap();
        tool("sync", &["-f", &dir]);
        let pid = common::daemon(&dir);
        fs::create_dir(name("d")).unwrap();
        fs::write(name("f"), "newer").unwrap();
        fs::set_permissions(name("f"), fs::Permissions::from_mode(0o600)).unwrap();
        common::signal(pid, "KILL");
        common::wait_for_end(pid);
        // It clears the dead mount and recovers.
        mount(&image, &dir);
        let mode = fs::metadata(name("f")).unwrap().permissions().mode();
        let found = [
            name("d").exists(),
            fs::read(name("f")).unwrap() == b"newer",
            mode & 0o777 == 0o600,
        ];
        assert_eq!(found, survive, "{options}");
        unmount(&dir);
        tool("e2fsck", &["-fn", &image]);
    }
}

/// Nothing is written, and what would have to be recovered is not mounted.
#[test]
fn noload_writes_nothing() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let try_it = |options: &str| ccfs_with(&["mount", "-o", options, &image, &dir]);
    let at_rest = fs::read(&image).unwrap();
    refused("rw", &try_it("noload"), 1, &["for read-only mounts"]);
    mounted_with(&image, &dir, "ro,noload");
    assert!(fs::read_dir(&dir).unwrap().count() > 0);
    unmount(&dir);
    assert!(fs::read(&image).unwrap() == at_rest);
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), "x").unwrap();
    tool("sync", &[&format!("{dir}/f")]);
    let pid = common::daemon(&dir);
    common::signal(pid, "KILL");
    common::wait_for_end(pid);
    tool("umount", &[&dir]);
    common::wait_for_no_loops(&image);
    let in_flight = fs::read(&image).unwrap();
    refused(
        "in flight",
        &try_it("ro,norecovery"),
        32,
        &["leave noload out"],
    );
    assert!(fs::read(&image).unwrap() == in_flight);
    mounted_with(&image, &dir, "ro");
    assert_eq!(fs::read(place.path("mnt/f")).unwrap(), b"x");
    unmount(&dir);
    assert!(fs::read(&image).unwrap() != in_flight, "it was recovered");
    tool("e2fsck", &["-fn", &image]);
}

/// Reads the file and the directory; which of their times of reading were long ago, and are not any more.
fn noted(place: &Place) -> [bool; 2] {
    let paths = ["mnt/f", "mnt/d"].map(|name| place.path(name));
    // A listing that the kernel has in its cache is not asked for again.
    fs::write(paths[1].join("new"), "").unwrap();
    fs::remove_file(paths[1].join("new")).unwrap();
    for path in &paths {
        tool("touch", &["-a", "-d", "2001-01-01", path.to_str().unwrap()]);
        tool("sync", &[path.to_str().unwrap()]);
    }
    let old = paths.each_ref().map(|p| fs::metadata(p).unwrap().atime());
    let from = format!("if={}", paths[0].display());
    tool(
        "dd",
        &[&from, "of=/dev/null", "iflag=direct", "status=none"],
    );
    assert_eq!(fs::read_dir(&paths[1]).unwrap().count(), 1);
    let new = paths.each_ref().map(|p| fs::metadata(p).unwrap().atime());
    [old[0] != new[0], old[1] != new[1]]
}

/// By behaviour: what the mount table shows is not asked.
#[test]
fn times_of_reading() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    fs::create_dir(place.path("mnt/d")).unwrap();
    fs::write(place.path("mnt/d/in"), "").unwrap();
    fs::write(place.path("mnt/f"), vec![1; 4096]).unwrap();
    unmount(&dir);
    for (options, expected) in [
        ("relatime", [true, true]),
        ("nodiratime", [true, false]),
        ("noatime", [false, false]),
    ] {
        mounted_with(&image, &dir, options);
        assert_eq!(noted(&place), expected, "{options}");
        unmount(&dir);
    }
    mount(&image, &dir);
    for (options, expected) in [
        ("noatime", [false, false]),
        ("relatime", [true, true]),
        ("nodiratime", [true, false]),
        ("diratime", [true, true]),
    ] {
        let ran = ccfs_with(&["mount", "-o", &format!("remount,{options}"), "none", &dir]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(noted(&place), expected, "remounted {options}");
    }
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn a_second_mount_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let other = place.subdir("other");
    mount(&image, &dir);
    let again = ccfs_with(&["mount", &image, &other]);
    refused("ccfs", &again, 32, &[&format!("already mounted on {dir}")]);
    let device = loops_of(&image);
    let device = format!("/dev/{}", device.trim_matches('"'));
    let again = ccfs_with(&["mount", &device, &other]);
    assert_eq!(again.code, 32, "{}", again.err);
    let mut kernel = Command::new("mount");
    let by_kernel = run(kernel.args(["-t", "ext4", &device, &other]));
    assert_ne!(by_kernel.code, 0);
    tool("mount", &["--bind", &dir, &other]);
    common::umount8(&other);
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}
