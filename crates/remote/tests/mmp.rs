//! ext4's multiple mount protection: two writers of one volume find each other, and the kernel and e2fsck understand what ccfs leaves.
use ccfs_device::{Device, OpenError, OpenMode};
use ccfs_disks::MemoryDevice;
use ccfs_engine::{Context, DEFAULT_STREAM, Error, Ino, Options, Volume};
use ccfs_remote::{Settings, guarded};
use ccfs_testkit::mounts::{kernel_mount, no_mounts, umount8};
use ccfs_testkit::place::Place;
use ccfs_testkit::program::{ccfs_with, daemon, mount, unmount};
use ccfs_testkit::run::tool;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROOT: Ino = 2;

/// With the shortest interval: a mount waits for 11 s, as the kernel's.
fn volume(place: &Place) -> String {
    let image = place.text("image");
    let options = ["--", "-O", "mmp", "-E", "mmp_update_interval=1"];
    let args = [&["mkfs", "-s", "20M", &image][..], &options].concat();
    let made = ccfs_with(&args);
    assert_eq!(made.code, 0, "{}", made.err);
    image
}

fn make(volume: &Volume, name: &str) -> Result<(), Error> {
    let cx = Context::root(DEFAULT_STREAM);
    let made = volume.mknod(&cx, ROOT, name.as_bytes(), 0o100_644, 0)?;
    volume.fsync(&cx, made.ino, false)
}

#[test]
fn two_writers_find_each_other() {
    let place = Place::new();
    let memory = MemoryDevice::from_file(volume(&place)).unwrap();
    let memory: Arc<dyn Device> = Arc::new(memory);
    let open = |take_over| {
        let name = Path::new("memory");
        guarded(memory.clone(), name, OpenMode::ReadWrite, take_over)
    };
    // Nobody counts: what does not is refused.
    let Err(e) = Volume::mount(memory.clone(), Options::default()) else {
        panic!("mounted without counting");
    };
    assert!(e.to_string().contains("feature mmp"), "{e}");
    let begun = Instant::now();
    let first = Volume::mount(open(false).unwrap(), Options::default()).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(11));
    make(&first, "one").unwrap();
    let Err(OpenError::Busy { holder, .. }) = open(false) else {
        panic!("a second writer");
    };
    assert!(
        holder.starts_with("host ") && holder.contains("--take-over"),
        "{holder}"
    );
    make(&first, "two").unwrap();
    let second = Volume::mount(open(true).unwrap(), Options::default()).unwrap();
    for name in ["one", "two"] {
        second.lookup(ROOT, name.as_bytes()).unwrap();
    }
    make(&second, "three").unwrap();
    // The first one writes no more, and says why.
    assert!(make(&first, "late").is_err());
    let why = first.status().stopped;
    assert!(why.contains("taken the volume over"), "{why}");
    assert!(first.unmount().is_err());
    make(&second, "four").unwrap();
    second.unmount().unwrap();
}

/// The thread that counts is not where the mount is: that namespace would not end (`ccfs_fuse::Home`).
fn counted_for_by_a_daemon(place: &Place, image: &str) {
    let dir = place.subdir("ccfs");
    mount(image, &dir);
    let pid = daemon(&dir);
    let namespaces: BTreeSet<_> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|task| std::fs::read_link(task.unwrap().path().join("ns/mnt")).unwrap())
        .collect();
    unmount(&dir);
    assert_eq!(namespaces.len(), 1, "{namespaces:?}");
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    assert!(!namespaces.contains(&own));
}

#[test]
fn the_kernel_and_e2fsck_understand_it() {
    if let Some(why) = no_mounts() {
        eprintln!("skipped: {why}");
        return;
    }
    let place = Place::new();
    let image = volume(&place);
    let open = || ccfs_remote::open(Path::new(&image), OpenMode::ReadWrite, Settings::default());
    let volume = Volume::mount(open().unwrap(), Options::default()).unwrap();
    make(&volume, "one").unwrap();
    // Some counts.
    std::thread::sleep(Duration::from_secs(3));
    volume.unmount().unwrap();
    drop(volume);
    tool("e2fsck", &["-fn", &image]);
    counted_for_by_a_daemon(&place, &image);
    let said = tool("dumpe2fs", &["-h", &image]);
    assert!(said.contains("mmp"), "{said}");
    // What is left is clean: whoever comes next waits once, and not twice.
    let block = tool("debugfs", &["-R", "dump_mmp", &image]);
    assert!(block.contains("sequence: ff4d4d50"), "{block}");
    let dir = place.subdir("mnt");
    kernel_mount(&image, &dir, "loop");
    assert!(Path::new(&dir).join("one").exists());
    umount8(&dir);
    let checked = ccfs_with(&["fsck", "-fp", &image]);
    assert!(checked.code <= 1, "{}{}", checked.out, checked.err);
}
