//! /etc/fstab: mount -a, remount, umount, and systemd's generator; with a file of the test's own.
mod common;
use common::{Place, in_namespace, run, tool};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn fstab_mounts_remounts_and_unmounts() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let (ro_image, other) = (place.volume("b.img", "32M"), place.subdir("other"));
    let table = format!(
        "{image} {dir} ccfs noatime,nosuid,commit=30,nofail,x-systemd.automount 0 0\n{ro_image} {other} ccfs ro,nofail 0 0\n"
    );
    fs::write(place.path("fstab"), table).unwrap();
    let said = in_namespace(
        &place,
        r#"
        cd "$PLACE"
        mount -T fstab -a
        mount -T fstab -a                  # a second time there is nothing to do
        options "$PLACE/mnt"; options "$PLACE/other"
        echo one > mnt/f
        mount -T fstab -o remount,ro "$PLACE/mnt"
        options "$PLACE/mnt"
        ! sh -c 'echo two > mnt/f' 2>/dev/null
        mount -T fstab -o remount,rw "$PLACE/mnt"
        echo three > mnt/f
        options "$PLACE/mnt"
        mount -o remount,ro "$PLACE/mnt"   # as the mount table has it
        options "$PLACE/mnt"
        mount -o remount,rw "$PLACE/mnt"
        ! "$PROGRAM" mount -o remount,rw none "$PLACE/other" 2>refused
        grep -q 'opened read-only' refused
        ! "$PROGRAM" mount -o remount,rw none "$PLACE" 2>refused
        grep -q 'no ccfs volume' refused
        "$PROGRAM" mount -o remount,noexec none "$PLACE/mnt"
        options "$PLACE/mnt"
        # The daemon's own: what it can change, and what it cannot; and then nothing is changed.
        "$PROGRAM" status --json "$PLACE/mnt" | grep '"commit": "30"'
        "$PROGRAM" mount -o remount,commit=7,dirty=32M none "$PLACE/mnt"
        "$PROGRAM" status --json "$PLACE/mnt" | grep -e '"commit": "7"' -e '"dirty_limit_bytes": 33554432'
        # What the kernel refuses changes nothing of the daemon's either.
        exec 5>mnt/held
        ! "$PROGRAM" mount -o remount,ro,commit=8 none "$PLACE/mnt" 2>refused
        grep -q 'files are open for writing' refused
        exec 5>&-
        "$PROGRAM" status --json "$PLACE/mnt" | grep '"commit": "7"'
        for option in streams=session cache=1M log=/tmp/x status=off identity=proc; do
            ! "$PROGRAM" mount -o remount,ro,commit=8,$option none "$PLACE/mnt" 2>refused
            grep -q "$option.* cannot be changed while the volume is mounted\|cache=1048576 cannot be" refused
        done
        # mount(8) by itself, as the mount table has the volume.
        mount -o remount,commit=9 "$PLACE/mnt"
        "$PROGRAM" status --json "$PLACE/mnt" | grep '"commit": "9"'
        ! mount -o remount,streams=session "$PLACE/mnt" 2>refused
        grep -q 'cannot be changed while the volume is mounted' refused
        "$PROGRAM" mount -o remount,streams=shared,commit=7,status=on none "$PLACE/mnt"
        "$PROGRAM" status --json "$PLACE/mnt" | grep '"commit": "7"'
        options "$PLACE/mnt"
        umount "$PLACE/mnt"
        umount "$PLACE/other"
        e2fsck -fn a.img >e2fsck.out 2>&1
        "#,
    );
    let seen: Vec<&str> = said.lines().filter(|l| l.starts_with("r")).collect();
    assert_eq!(
        seen,
        [
            "rw,nosuid,noatime",
            "ro,relatime",
            "ro,nosuid,noatime",
            "rw,nosuid,noatime",
            "ro,nosuid,noatime",
            "rw,nosuid,noexec,noatime",
            "rw,nosuid,noexec,noatime",
        ],
        "{said}"
    );
    let words: Vec<&str> = said
        .lines()
        .filter(|l| l.contains("\"commit\"") || l.contains("dirty_limit"))
        .map(str::trim)
        .collect();
    assert_eq!(words.len(), 6, "{said}");
    let place_now = common::ccfs_with(&["cat", &format!("{image}:/f")]);
    assert_eq!(place_now.out, "three\n", "{}", place_now.err);
    tool("e2fsck", &["-fn", &ro_image]);
}

/// umount(8) asks the helper for what it has a record of, and the helper says who uses the volume.
#[test]
fn umount_by_its_helper() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let table = format!("{image} {dir} ccfs nofail,x-mark 0 2\n");
    fs::write(place.path("fstab"), table).unwrap();
    let said = in_namespace(
        &place,
        r#"
        cd "$PLACE"
        mount -T fstab mnt
        exec 5>mnt/held
        ! umount "$PLACE/mnt" 2>refused
        cat refused
        "$PLACE/sbin-now/umount.fuseblk.ccfs" "$PLACE/mnt" -r && exit 1   # files are open for writing
        exec 5>&-
        exec 5<mnt/held
        "$PLACE/sbin-now/umount.fuseblk.ccfs" "$PLACE/mnt" -r
        options "$PLACE/mnt"
        exec 5>&-
        umount "$PLACE/mnt"
        [ -z "$(options "$PLACE/mnt")" ]
        mount -T fstab mnt
        exec 5>mnt/held
        umount -l "$PLACE/mnt"
        [ -z "$(options "$PLACE/mnt")" ]
        exec 5>&-
        "#,
    );
    assert!(said.starts_with("umount: "), "{said}");
    assert!(said.contains("is in use by sh (pid "), "{said}");
    assert!(said.contains("\nro,relatime\n"), "{said}");
    common::wait_for_no_loops(&image);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn systemd_makes_a_mount_unit_of_an_entry() {
    let generator = ["/usr/lib", "/lib"]
        .map(|lib| format!("{lib}/systemd/system-generators/systemd-fstab-generator"))
        .into_iter()
        .find(|g| Path::new(g).exists());
    let Some(generator) = generator else {
        println!("skipped: there is no systemd-fstab-generator");
        return;
    };
    let place = Place::new();
    let out = place.subdir("units");
    let entry = "/var/disk.img /mnt/work ccfs noatime,nofail 0 0\n";
    fs::write(place.path("fstab"), entry).unwrap();
    let mut command = Command::new(generator);
    command
        .args([&out, &out, &out])
        .env("SYSTEMD_FSTAB", place.path("fstab"))
        .env("SYSTEMD_LOG_TARGET", "console")
        .stdin(Stdio::null());
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let unit = fs::read_to_string(place.path("units/mnt-work.mount")).unwrap();
    for line in [
        "What=/var/disk.img",
        "Where=/mnt/work",
        "Type=ccfs",
        "Options=noatime,nofail",
    ] {
        assert!(unit.contains(line), "{unit}");
    }
}
