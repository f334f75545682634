//! Kernels that let nobody write to a mounted device (from Linux 6.8 on): Debian's do not, unless they are booted so.
use ccfs_tests::harness::{Fs, Volume, loops_below, run};
use ccfs_tests::kernels::host::{NOTHING_TO_RUN, script, target};
use ccfs_tests::sys;
use std::process::Command;

const PARAMETER: &str = "bdev_allow_write_mounted=0";
const TEST: &str = "volumes_are_mounted_where_a_mounted_device_takes_no_writer";
const CONTENT: &[u8] = b"as it was synced";

/// As the kernel's own mount of it would begin.
fn claim(device: &str) -> sys::R<()> {
    sys::open(device, libc::O_RDONLY | libc::O_EXCL, 0).map(drop)
}

/// Image and block device are mounted as `fuseblk`, and nobody else gets the device.
#[test]
fn volumes_are_mounted_where_a_mounted_device_takes_no_writer() {
    let parameters = std::fs::read_to_string("/proc/cmdline").expect("the kernel's parameters");
    if !parameters.split_whitespace().any(|word| word == PARAMETER) {
        println!("skipped: this kernel lets others write to a mounted device");
        return;
    }
    for is_device in [false, true] {
        let mut v = Volume::unformatted(Fs::Ccfs, "no-writers").options("commit=3600");
        if is_device {
            v = v.on_loop_device();
        }
        v.mkfs(64);
        v.mount();
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let dir = v.mnt().to_str().expect("plain path");
        let line = table.lines().find(|line| line.contains(dir));
        assert!(
            line.is_some_and(|l| l.contains(" fuseblk.ccfs /dev/loop")),
            "{table}"
        );
        let told = v.status()["mount"].clone();
        let works = told["syncfs_works"] == true;
        let reason = told["syncfs_reason"].as_str().unwrap_or("works");
        assert_ne!(works, reason.contains(PARAMETER), "{told}");
        let log = v.daemon_log();
        // Either the calls come by the kernel, or it takes a mount over a loop device for nothing more than that.
        assert_eq!(log.contains("bdev_allow_write_mounted=1"), !works, "{log}");
        let warned = log.contains("nothing keeps other programs from writing");
        assert_eq!(warned, works && is_device, "{log}");
        std::fs::write(v.path("f"), CONTENT).expect("written");
        let file = sys::open(v.path("f"), libc::O_RDONLY, 0).expect("open");
        match works {
            true => sys::syncfs(&file).expect("syncfs"),
            false => sys::fsync(&file).expect("fsync"),
        }
        drop(file);
        let claims: Vec<_> = loops_below(v.image()).iter().map(|d| claim(d)).collect();
        assert!(!claims.is_empty(), "a loop device");
        assert!(claims.iter().all(|c| *c == Err(libc::EBUSY)), "{claims:?}");
        v.kill9();
        v.mount();
        assert_eq!(std::fs::read(v.path("f")).expect("read"), CONTENT);
        v.umount();
        v.mount();
        println!(
            "a mount over {}: {reason}",
            if is_device { "a device" } else { "an image" }
        );
        v.finish();
    }
    println!("volumes were mounted");
}

/// Debian 13's kernel, 6.12.
#[test]
fn under_linux_6_12_without_writers() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a guest") {
        return;
    }
    let program = std::env::current_exe().expect("own path");
    let mut guest = Command::new(script("run.sh"));
    guest.args(["-t", "540", "-k", PARAMETER, "trixie"]);
    guest.arg(&program).args(["--exact", "--nocapture", TEST]);
    let out = run(guest.env("CARGO_TARGET_DIR", target()));
    if out.code == NOTHING_TO_RUN {
        // Nobody would miss a test that never runs.
        assert!(std::env::var_os("CI").is_none(), "{}", out.stderr);
        return println!("skipped: no guest with Linux 6.12: {}", out.stderr);
    }
    println!("{}", out.stdout);
    assert_eq!(out.code, 0, "{}", out.all());
    assert!(out.stdout.contains("volumes were mounted"), "{}", out.all());
}
