//! What the tests of the program share.
#![allow(dead_code, unused_imports)] // each test file uses its part
pub use ccfs_testkit::mounts::*;
pub use ccfs_testkit::needs_mounts;
pub use ccfs_testkit::place::Place;
pub use ccfs_testkit::program::*;
pub use ccfs_testkit::run::*;
use std::process::{Command, Stdio};

/// Makes the volume look as a crash leaves it: sets the bit for "in flight" and the super block's checksum.
pub fn set_feature_bit_30(image: &str) {
    let ran = run(Command::new("debugfs").args(["-w", "-R", "feature +FEATURE_I30", image]));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Fills a volume with something to lose, by way of debugfs.
pub fn filled(place: &Place, name: &str) -> String {
    let image = place.volume(name, "32M");
    let payload = place.text("payload");
    std::fs::write(&payload, vec![7u8; 300_000]).unwrap();
    let script = place.text("script");
    let lines: String = (0..40)
        .map(|n| format!("mkdir d{n}\nwrite {payload} d{n}/f{n}\n"))
        .collect();
    std::fs::write(&script, lines).unwrap();
    tool("debugfs", &["-w", "-f", &script, &image]);
    tool("e2fsck", &["-fn", &image]);
    image
}

/// At rest: e2fsck finds nothing, and the kernel shows the same.
pub fn plain_ext4(place: &Place, image: &str) -> Vec<String> {
    tool("e2fsck", &["-fn", image]);
    let dir = place.text("kernel");
    let _ = std::fs::create_dir(&dir);
    kernel_mount(image, &dir, "loop,ro");
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != "lost+found")
        .collect();
    names.sort();
    umount8(&dir);
    names
}

/// Makes /usr/sbin a directory that holds `mount.ccfs` (under all its names) and links to everything that was there; in this namespace only.
const HELPER_IN_PLACE: &str = r#"
set -eu
mkdir "$PLACE/sbin-before" "$PLACE/sbin-now"
mount --bind /usr/sbin "$PLACE/sbin-before"
for tool in "$PLACE"/sbin-before/*; do ln -s "$tool" "$PLACE/sbin-now/"; done
for name in ccfs fuse.ccfs fuseblk.ccfs; do ln -sf "$PROGRAM" "$PLACE/sbin-now/mount.$name"; done
for name in fuse.ccfs fuseblk.ccfs; do ln -sf "$PROGRAM" "$PLACE/sbin-now/umount.$name"; done
mount --bind "$PLACE/sbin-now" /usr/sbin
trap 'umount -l "$PLACE/mnt" 2>/dev/null || :; umount -l "$PLACE/other" 2>/dev/null || :' EXIT
options() { awk -v dir="$1" '$5 == dir { print $6 }' /proc/self/mountinfo; }
"#;

/// Runs a script as root in a mount namespace of its own, in which mount(8) finds the helpers. Gives what it said.
pub fn in_namespace(place: &Place, script: &str) -> String {
    let whole = format!("{HELPER_IN_PLACE}\n{script}");
    let mut command = apart(&[], &["sh", "-c", &whole]);
    command
        .env("PLACE", place.text("").trim_end_matches('/'))
        .env("PROGRAM", env!("CARGO_BIN_EXE_ccfs"))
        .env("CCFS_LOG_KMSG", "/dev/null")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null());
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // What a mount says on a machine without a system log.
    let said = ran.out + &ran.err;
    let lines = said
        .lines()
        .filter(|l| !l.contains("there is no system log"));
    lines.map(|line| format!("{line}\n")).collect()
}
