//! Damaged volumes: errors, repairs, refusals; never a panic, never the end of the daemon.
mod common;
use common::{Place, ccfs_with, filled, refused, tool, unmount};
use std::fs;

/// Reads everything below `dir`; errors are expected, an end of the daemon is not.
fn walk(dir: &std::path::Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let mut seen = 0;
    for path in entries.flatten().map(|e| e.path()) {
        seen += 1;
        match path.symlink_metadata() {
            Ok(m) if m.is_dir() && seen < 10_000 => seen += walk(&path),
            Ok(m) if m.is_file() => drop(fs::read(&path).map(|b| b.len())),
            _ => {}
        }
    }
    seen
}

#[test]
fn flipped_bits_never_end_the_daemon() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = place.subdir("mnt");
    let image = filled(&place, "a.img");
    let good = fs::read(&image).unwrap();
    let (mut mounted, mut seen) = (0, 0);
    for seed in 1..=60u64 {
        let mut random = ccfs_testkit::Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bad = good.clone();
        // The first blocks hold the descriptors, bitmaps, inode tables and directories.
        let span = if seed % 3 == 0 { 4096 } else { 2 << 20 };
        for _ in 0..1 + random.below(200) {
            let bit = random.below(span * 8);
            bad[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        fs::write(&image, &bad).unwrap();
        let log = place.text("log");
        let ran = ccfs_with(&["mount", "-o", &format!("log={log}"), &image, &dir]);
        if ran.code == 0 {
            mounted += 1;
            seen += walk(&place.path("mnt"));
            // Writes into a damaged volume: any error but no panic.
            let _ = fs::write(place.path("mnt/new"), vec![1u8; 100_000]);
            let _ = fs::remove_file(place.path("mnt/d1/f1"));
            let ended = common::try_unmount(&dir);
            let alive = !ended.err.contains("was killed");
            assert!(
                alive,
                "seed {seed}: the daemon died: {}",
                fs::read_to_string(&log).unwrap_or_default()
            );
        } else {
            refused(
                &format!("seed {seed}"),
                &ran,
                32,
                &[
                    "corrupt",
                    "not support",
                    "no ext2",
                    "refuse",
                    "e2fsck",
                    "revision",
                    "unknown",
                ],
            );
        }
        let log = fs::read_to_string(&log).unwrap_or_default();
        assert!(!log.contains("internal error"), "seed {seed}: {log}");
        let inspected = ccfs_with(&["inspect", "--json", &image]);
        assert!(
            inspected.code <= 1 && !inspected.err.contains("panicked"),
            "seed {seed}: {}",
            inspected.err
        );
    }
    println!("{mounted} of 60 damaged volumes mounted, {seen} names read");
    assert!(mounted > 0, "the test damages every volume beyond mounting");
}

/// A volume as a crash leaves it, with synced and unsynced changes in its log.
fn crashed(place: &Place, name: &str) -> String {
    let (image, dir) = (filled(place, name), place.subdir("crashed"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    for n in 0..30 {
        let at = |name: String| place.path("crashed").join(name);
        fs::write(at(format!("d{n}/new{n}")), vec![n as u8; 3000 * n]).unwrap();
        let _ = fs::remove_file(at(format!("d{}/f{}", n / 2, n / 2)));
        if n % 5 == 0 {
            tool("sync", &["-f", &dir]);
        }
    }
    let pid = tool("pgrep", &["-f", &format!("daemon -- {image}")]);
    tool("kill", &["-9", pid.trim()]);
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    image
}

#[test]
fn flipped_bits_in_a_crashed_volume_never_end_recovery() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (crashed(&place, "a.img"), place.subdir("mnt"));
    let good = fs::read(&image).unwrap();
    let used: Vec<usize> = (0..good.len() / 512)
        .filter(|n| good[n * 512..][..512].iter().any(|b| *b != 0))
        .collect();
    let (mut recovered, mut refusals) = (0, 0);
    for seed in 1..=60u64 {
        let mut random = ccfs_testkit::Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut bad = good.clone();
        for _ in 0..1 + random.below(1 << (seed % 9)) {
            let sector = used[random.below(used.len() as u64) as usize];
            bad[sector * 512 + random.below(512) as usize] ^= 1 << random.below(8);
        }
        fs::write(&image, &bad).unwrap();
        let inspected = ccfs_with(&["inspect", &image]);
        let planned = ccfs_with(&["fsck", "-n", &image]);
        assert_eq!(
            fs::read(&image).unwrap(),
            bad,
            "seed {seed}: looking changed the volume"
        );
        let checked = ccfs_with(&["fsck", "-fy", &image]);
        for ran in [&inspected, &planned, &checked] {
            let said = format!("{}{}", ran.out, ran.err);
            assert!(!said.contains("panicked"), "seed {seed}: {said}");
        }
        if checked.code & 8 != 0 {
            refusals += 1;
            let last = ccfs_with(&["fsck", "--discard-log", "-y", &image]);
            assert!(!last.err.contains("panicked"), "seed {seed}: {}", last.err);
            continue;
        }
        recovered += 1;
        let ran = ccfs_with(&["mount", &image, &dir]);
        assert_eq!(
            ran.code, 0,
            "seed {seed}: checked, but does not mount: {}",
            ran.err
        );
        walk(&place.path("mnt"));
        unmount(&dir);
        tool("e2fsck", &["-fn", &image]);
    }
    println!("{recovered} of 60 damaged logs recovered or repaired, {refusals} refused");
    assert!(recovered > 0 && refusals > 0);
}
