//! Checks that are no test program's: what a kernel refuses, lacks or says.

use super::{OLDEST, Outcome, short};
use crate::harness::{
    Fs, Volume, WorkDir, ccfs_program, kernel_mount, run, run_ok, umount_patiently,
};
use crate::sys;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// A kernel that is too old: the refusal says which one is needed, and the image is plain ext4.
pub fn refused() -> Outcome {
    let place = WorkDir::new("refused");
    let (image, dir) = (place.path().join("image"), place.path().join("mnt"));
    fs::create_dir(&dir).expect("a mount point");
    let text = |path: &Path| path.to_str().expect("plain path").to_string();
    run_ok(ccfs_program(), &["mkfs", "-s", "32M", &text(&image)]);
    let out = run(Command::new(ccfs_program()).args(["mount", &text(&image), &text(&dir)]));
    assert_ne!(out.code, 0, "it mounts: {}", out.all());
    let needed = format!("Linux {OLDEST}");
    assert!(out.stderr.contains(&needed), "no {needed}: {}", out.all());
    assert_eq!(out.stderr.lines().count(), 1, "one line: {}", out.all());
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
    assert!(!table.contains(&text(&dir)), "a mount is left: {table}");
    run_ok("e2fsck", &["-fn", &text(&image)]);
    kernel_mount(&image, &dir, "rw,loop").expect("plain ext4");
    umount_patiently(&dir);
    Outcome::Ok
}

/// A volume on a block device: work, a killed daemon, recovery, and the kernel's ext4 on the same device.
pub fn block_device() -> Outcome {
    let Ok(device) = std::env::var("GUEST_DISK") else {
        return Outcome::Skipped("GUEST_DISK names no disk".into());
    };
    let mut v = Volume::over(Fs::Ccfs, "device", Path::new(&device)).options("commit=600");
    v.mkfs(64);
    v.mount();
    let file = File::create(v.path("synced")).expect("create");
    fs::write(v.path("synced"), "s").expect("write");
    file.sync_all().expect("fsync");
    drop(file);
    fs::write(v.path("lost"), "l").expect("write");
    v.kill9();
    v.mount();
    assert_eq!(fs::read(v.path("synced")).expect("it survives"), b"s");
    assert!(!v.path("lost").exists(), "nobody has synced it");
    fs::write(v.path("later"), [7; 100_000]).expect("write");
    v.finish();
    Outcome::Ok
}

/// Works, or the kernel has none.
pub fn nameless_files() -> Outcome {
    let v = Volume::new(Fs::Ccfs, "nameless", 32);
    let file = sys::open(v.mnt(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
    let outcome = match &file {
        Err(libc::EOPNOTSUPP) => Outcome::NotThere("Linux 6.1".into()),
        Err(errno) => Outcome::Failed(format!("O_TMPFILE: errno {errno}")),
        Ok(file) => {
            sys::pwrite(file, b"x", 0).expect("write");
            sys::link_fd(file, v.path("named")).expect("link");
            assert_eq!(fs::read(v.path("named")).expect("read"), b"x");
            Outcome::Ok
        }
    };
    drop(file);
    v.finish();
    outcome
}

pub fn times_of_birth() -> Outcome {
    let v = Volume::new(Fs::Ccfs, "birth", 32);
    fs::write(v.path("f"), "x").expect("write");
    let made = sys::stat(v.path("f")).expect("stat").mtime;
    sys::utimens(v.path("f"), (1, 2), (3, 4)).expect("utimens");
    let outcome = match sys::birth(v.path("f")).expect("statx") {
        None => Outcome::NotThere("Linux 6.8".into()),
        Some(birth) if (birth.0 - made.0).abs() <= 1 => Outcome::Ok,
        Some(birth) => Outcome::Failed(format!("born at {birth:?}, made at {made:?}")),
    };
    v.finish();
    outcome
}

/// What the kernel itself says of the checks before: no warning, nothing that hangs.
pub fn kernel_log() -> Outcome {
    const BAD: [&str; 9] = [
        "WARNING: ",
        "BUG: ",
        "Oops",
        "blocked for more than",
        "general protection fault",
        "rcu_preempt detected stalls",
        "segfault at",
        "traps: ",
        "Out of memory: ",
    ];
    let mut log = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/kmsg")
        .expect("the kernel's log");
    let mut found = Vec::new();
    let mut record = [0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(n) => {
                let text = String::from_utf8_lossy(&record[..n]);
                let message = text.split_once(';').map_or("", |(_, m)| m);
                if BAD.iter().any(|bad| message.contains(bad)) {
                    found.push(short(message));
                }
            }
            // Older records are gone.
            Err(e) if e.raw_os_error() == Some(libc::EPIPE) => (),
            Err(_) => break,
        }
    }
    match found.is_empty() {
        true => Outcome::Ok,
        false => Outcome::Failed(found.join("; ")),
    }
}
