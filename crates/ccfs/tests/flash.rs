//! Transactional flash from the command line: made, mounted, killed, checked, repaired, refused.
mod common;
use ccfs_device::{AlignedBuf, Device, FileDevice, FlashDevice, OpenMode, Transactions, Write};
use common::{PATIENCE, Place, Ran, ccfs_with, refused, tool};
use std::fs;
use std::sync::Arc;
use std::time::Instant;

fn flash(place: &Place, name: &str) -> String {
    let path = place.text(name);
    let made = ccfs_with(&["mkfs", "--flash", "--sparse", "-s", "64M", &path]);
    assert_eq!(made.code, 0, "{}", made.err);
    path
}

fn status(dir: &str) -> serde_json::Value {
    let status = ccfs_with(&["status", "--json", dir]);
    serde_json::from_str(&status.out).unwrap()
}

fn ok(args: &[&str]) -> String {
    let ran = ccfs_with(args);
    assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

/// A process that another test has just begun holds this one's lock until it runs its program.
fn patient(args: &[&str]) -> Ran {
    let start = Instant::now();
    loop {
        let ran = ccfs_with(args);
        if !ran.err.contains("in use") || start.elapsed() > PATIENCE {
            return ran;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn kill(pid: u64) {
    tool("kill", &["-KILL", &pid.to_string()]);
    let start = Instant::now();
    let stat = format!("/proc/{pid}/stat");
    while fs::read_to_string(&stat).is_ok_and(|s| !s.contains(") Z ")) {
        assert!(start.elapsed() < PATIENCE, "the daemon does not end");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_volume_on_flash_lives_as_any_other() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (flash(&place, "flash.img"), place.subdir("mnt"));
    ok(&["mount", &image, &dir]);
    for n in 0..20 {
        fs::write(format!("{dir}/f{n}"), vec![n; 5000]).unwrap();
    }
    tool("sync", &["-f", &dir]);
    let seen = status(&dir);
    assert_eq!(
        (&seen["log_frames"], &seen["stopped"]),
        (&0.into(), &"".into())
    );
    let number = |key: &str| seen["flash"][key].as_u64().unwrap();
    assert!(number("pages") > 16_384 && number("commits") > 0, "{seen}");
    assert!(number("programmed_pages") > number("host_pages"), "{seen}");
    let shown = ok(&["status", &dir]);
    assert!(
        shown.contains("flash  ") && !shown.contains("frames used"),
        "{shown}"
    );
    kill(seen["mount"]["pid"].as_u64().unwrap());
    // In flight; a check that may write nothing says so, one that may brings it to rest.
    let found = ccfs_with(&["fsck", "-n", &image]);
    assert!(
        found.code == 8 || found.out.contains("in flight"),
        "{}",
        found.out
    );
    ok(&["mount", &image, &dir]);
    for n in 0..20u8 {
        assert_eq!(fs::read(format!("{dir}/f{n}")).unwrap(), vec![n; 5000]);
    }
    fs::remove_file(format!("{dir}/f3")).unwrap();
    ok(&["umount", &dir]);
    ok(&["fsck", "-n", "-f", &image]);
    let names = ok(&["ls", &image]);
    assert!(names.contains("f4") && !names.contains("f3"), "{names}");
    let own = place.text("own");
    fs::write(&own, "put").unwrap();
    ok(&["put", &own, &image]);
    assert_eq!(ok(&["cat", &format!("{image}:/own")]), "put");
    assert!(ok(&["inspect", &image]).contains("at rest"));
}

#[test]
fn what_is_no_plain_volume_is_refused_and_what_is_damaged_is_repaired() {
    let place = Place::new();
    let image = flash(&place, "flash.img");
    let again = ccfs_with(&["mkfs", "--flash", "-s", "64M", &image]);
    refused("mkfs", &again, 1, &["exists, and --flash makes a new file"]);
    let adopted = ccfs_with(&["adopt", &image]);
    assert_ne!(adopted.code, 0);
    let said = format!("{}{}", adopted.out, adopted.err);
    assert!(said.contains("it is a flash file"), "{said}");
    // A wrong count of free blocks of the first group, as e2fsck repairs it.
    {
        let file = FileDevice::open(&image, OpenMode::ReadWrite).unwrap();
        let flash = FlashDevice::open(Arc::new(file)).unwrap();
        let mut head = AlignedBuf::zeroed(4096);
        flash.read(4096, &mut head).unwrap();
        head[12] ^= 1;
        flash.write_in(1, vec![Write::new(4096, head)]).unwrap();
        flash.commit(1).unwrap();
    }
    let found = patient(&["fsck", "-n", "-f", &image]);
    assert_ne!(found.code, 0, "{}", found.out);
    let repaired = ccfs_with(&["fsck", "-y", "-f", &image]);
    assert_eq!(repaired.code, 1, "{}{}", repaired.out, repaired.err);
    ok(&["fsck", "-n", "-f", &image]);
    // Cut.
    let length = fs::metadata(&image).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.set_len(length - (1 << 20)).unwrap();
    let cut = ccfs_with(&["ls", &image]);
    refused("ls", &cut, 1, &["the flash file was cut"]);
    file.set_len(length).unwrap();
    ok(&["fsck", "-n", "-f", &image]);
}
