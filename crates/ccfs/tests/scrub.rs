//! `ccfs scrub`: no false alarm under a load, and damage is named by path.
mod common;
use common::{Place, ccfs_with, filled, refused, tool, unmount};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the load also when an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes, grows, syncs and removes until it is told to stop.
fn load(dir: &Path, stop: &AtomicBool) -> u64 {
    let mut rounds = 0;
    loop {
        let sub = dir.join(format!("round{}", rounds % 7));
        fs::create_dir_all(&sub).unwrap();
        for n in 0..30 {
            let path = sub.join(format!("file with a name of some length {n}"));
            fs::write(&path, vec![n as u8; 3000 * n]).unwrap();
            if n % 10 == 0 {
                File::open(&path).unwrap().sync_all().unwrap();
            }
        }
        if rounds % 3 == 2 {
            fs::remove_dir_all(&sub).unwrap();
        }
        rounds += 1;
        if stop.load(Ordering::Relaxed) {
            return rounds;
        }
    }
}

fn json(dir: &str, code: i32) -> Value {
    let ran = ccfs_with(&["scrub", "--json", "--fast", dir]);
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    assert_eq!(ran.err, "", "no progress where stderr is no terminal");
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn a_scrub_under_a_load_raises_no_false_alarm() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (filled(&place, "a.img"), place.subdir("mnt"));
    let ran = ccfs_with(&["mount", "-o", "commit=1", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let stop = AtomicBool::new(false);
    let load_dir = place.path("mnt/load");
    fs::create_dir(&load_dir).unwrap();
    let rounds = std::thread::scope(|scope| {
        let busy = scope.spawn(|| load(&load_dir, &stop));
        let _stop = Stop(&stop);
        for _ in 0..15 {
            let report = json(&dir, 0);
            assert_eq!(report["damages"], 0, "{report}");
            assert!(report["blocks"].as_u64() > Some(50), "{report}");
        }
        stop.store(true, Ordering::Relaxed);
        busy.join().unwrap()
    });
    assert!(rounds > 0);
    let ran = ccfs_with(&["scrub", "--progress", &dir]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(
        ran.out.contains("0 damaged") && ran.err.contains("100 % verified"),
        "{}{}",
        ran.out,
        ran.err
    );
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn damage_is_named_by_path_and_the_way_out_works() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (filled(&place, "a.img"), place.subdir("mnt"));
    let block: u64 = tool("debugfs", &["-R", "blocks d7", &image])
        .trim()
        .parse()
        .unwrap();
    let size: u64 = tool("dumpe2fs", &["-h", &image])
        .lines()
        .find_map(|l| l.strip_prefix("Block size:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    // The kernel and the daemon have read it: what they hold is sound.
    assert_eq!(fs::read_dir(place.path("mnt/d7")).unwrap().count(), 1);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&image)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, block * size + 40).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], block * size + 40)
        .unwrap();
    file.sync_all().unwrap();
    drop(file);
    let report = json(&dir, 4);
    assert_eq!(report["damages"], 1, "{report}");
    assert_eq!(report["damaged"][0]["block"], block, "{report}");
    assert_eq!(
        report["damaged"][0]["paths"][0],
        place.text("mnt/d7"),
        "{report}"
    );
    let ran = ccfs_with(&["scrub", &dir]);
    refused("scrub", &ran, 4, &["ccfs fsck -f -y"]);
    assert!(
        ran.out.contains(&place.text("mnt/d7")) && ran.out.contains("wrong checksum"),
        "{}",
        ran.out
    );
    unmount(&dir);
    let ran = ccfs_with(&["fsck", "-f", "-y", &image]);
    assert!(ran.code <= 1, "{}{}", ran.out, ran.err);
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    json(&dir, 0);
    unmount(&dir);
}

#[test]
fn what_cannot_be_scrubbed_is_refused() {
    let place = Place::new();
    refused(
        "nothing",
        &ccfs_with(&["scrub", &place.text("absent")]),
        8,
        &["No such file"],
    );
    refused(
        "not ours",
        &ccfs_with(&["scrub", &place.subdir("dir")]),
        8,
        &["not on a mounted ccfs volume"],
    );
    refused("usage", &ccfs_with(&["scrub", "--nosuch"]), 16, &["Usage"]);
}
