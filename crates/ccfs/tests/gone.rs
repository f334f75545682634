//! What the volume lies on is cut or taken away while it is mounted: nobody says that all is well.
mod common;
use common::{PATIENCE, Place, ccfs_with, daemon, mount, refused, signal, tool, wait_for_end};
use std::fs;

/// Bytes of the images.
const SIZE: u64 = 32 << 20;

fn cut(image: &str, bytes: u64) {
    let file = fs::File::options().write(true).open(image).unwrap();
    file.set_len(bytes).unwrap();
}

#[test]
fn umount_tells_of_an_image_that_was_cut_off() {
    common::needs_mounts!();
    for (bytes, synced) in [
        (SIZE / 2, false),
        (SIZE / 2, true),
        (SIZE - 4096, true),
        (8 << 20, false),
        (0, true),
    ] {
        let place = Place::new();
        let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
        mount(&image, &dir);
        for n in 0..40 {
            fs::write(place.path("mnt").join(format!("f{n}")), vec![n; 200_000]).unwrap();
        }
        if synced {
            tool("sync", &["-f", &dir]);
        }
        cut(&image, bytes);
        let ran = common::try_unmount(&dir);
        let words = ["is unmounted, but", "could not be brought to rest"];
        refused(&format!("cut to {bytes}"), &ran, 32, &words);
        // The way out that the message names.
        if fs::metadata(&image).unwrap().len() < SIZE && bytes > 0 {
            assert!(ran.err.contains("are there"), "{}", ran.err);
            refused(
                "mount",
                &ccfs_with(&["mount", &image, &dir]),
                32,
                &["cut off"],
            );
            cut(&image, SIZE);
            let checked = ccfs_with(&["fsck", "-fy", &image]);
            assert!(!checked.err.contains("panicked"), "{}", checked.err);
        }
    }
}

/// Who syncs learns of it at once.
#[test]
fn a_volume_whose_image_was_cut_off_stops() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    fs::write(place.path("mnt/f"), vec![1; 100_000]).unwrap();
    cut(&image, SIZE - 4096);
    let synced = fs::File::open(place.path("mnt/f")).unwrap().sync_all();
    assert_eq!(synced.unwrap_err().raw_os_error(), Some(libc::EIO));
    let status = ccfs_with(&["status", &dir]);
    assert!(
        status.out.contains("STOPPED") && status.out.contains("cut the image file"),
        "{}{}",
        status.out,
        status.err
    );
    // Longer again: what the log holds is there, and all else that was not behind the end.
    cut(&image, SIZE);
    refused(
        "umount",
        &common::try_unmount(&dir),
        32,
        &["could not be brought to rest"],
    );
    let checked = ccfs_with(&["fsck", "-p", &image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn umount_tells_of_a_host_that_is_gone() {
    common::needs_mounts!();
    let place = Place::new();
    let (outer, host) = (place.volume("host.img", "96M"), place.subdir("host"));
    mount(&outer, &host);
    let (image, dir) = (place.volume("host/a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    let bytes = vec![5; 100_000];
    fs::write(place.path("mnt/f"), &bytes).unwrap();
    tool("sync", &["-f", &dir]);
    fs::write(place.path("mnt/g"), "later").unwrap();
    let pid = daemon(&host);
    signal(pid, "KILL");
    wait_for_end(pid);
    let ran = common::try_unmount(&dir);
    refused(
        "umount",
        &ran,
        32,
        &["whether", "could not be brought to rest"],
    );
    assert!(ran.err.contains("ccfs fsck -p"), "{}", ran.err);
    // The way out.
    let start = std::time::Instant::now();
    while ccfs_with(&["mount", &outer, &host]).code != 0 {
        assert!(start.elapsed() < PATIENCE, "the host does not come back");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let checked = ccfs_with(&["fsck", "-p", &image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
    mount(&image, &dir);
    assert!(fs::read(place.path("mnt/f")).unwrap() == bytes);
    common::unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
    common::unmount(&host);
}
