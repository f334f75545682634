//! The modelled disks agree with the papers' figures. In the model's own time: a busy machine changes nothing.
use std::path::Path;
use std::process::Command;

#[test]
fn modelled_disks_are_as_fast_as_the_papers() {
    if !rustix::process::geteuid().is_root()
        || !Path::new("/dev/fuse").exists()
        || !Path::new("/dev/loop-control").exists()
    {
        return println!("skipped: needs root, /dev/fuse and loop devices");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_ccfs-evidence"))
        .arg("calibrate")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    println!("{text}{}", String::from_utf8_lossy(&out.stderr));
    let said = String::from_utf8_lossy(&out.stderr);
    if said.contains("this kernel has no") || said.contains("is missing; install") {
        return println!("skipped: {said}");
    }
    assert!(out.status.success(), "a figure is more than 20 % off");
    assert_eq!(text.lines().count(), 5);
}
