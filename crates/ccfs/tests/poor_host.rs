//! Images and files on a host's file system that has little: FUSE without RENAME_NOREPLACE, hard links, fallocate, O_DIRECT, holes, owners.
mod common;
mod poor;

use common::{Place, ccfs_with, mount, refused, run, tool, unmount};
use poor::{Has, Host};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

const NOTHING: Has = Has {
    links: false,
    rename_flags: false,
    fallocate: false,
    direct: false,
    owners: false,
    holes: false,
};

fn all_kinds() -> [Has; 4] {
    [
        NOTHING,
        Has {
            links: true,
            ..NOTHING
        },
        Has {
            links: true,
            fallocate: true,
            direct: true,
            ..NOTHING
        },
        Has {
            links: true,
            rename_flags: true,
            fallocate: true,
            direct: true,
            owners: true,
            holes: true,
        },
    ]
}

fn host(place: &Place, has: Has) -> Host {
    Host::mount(place.path("host"), place.path("behind"), has)
}

#[test]
fn volumes_are_made_and_used_on_it() {
    common::needs_mounts!();
    for has in all_kinds() {
        let place = Place::new();
        let host = host(&place, has);
        let image = host.text("a.img");
        let made = ccfs_with(&["mkfs", "-s", "32M", &image]);
        assert_eq!((made.code, &made.err[..]), (0, ""), "{has:?}");
        let names: Vec<_> = fs::read_dir(&host.behind).unwrap().collect();
        assert_eq!(names.len(), 1, "{has:?}: {names:?}");
        let meta = fs::metadata(host.behind.join("a.img")).unwrap();
        let all = meta.blocks() * 512 >= 32 << 20;
        assert!(
            all && meta.nlink() == 1,
            "{has:?}: {} blocks",
            meta.blocks()
        );
        refused(
            "mkfs again",
            &ccfs_with(&["mkfs", "-s", "32M", &image]),
            1,
            &["holds a file system"],
        );
        let again = ccfs_with(&["mkfs", "--force", "-s", "16M", &image]);
        assert_eq!((again.code, &again.err[..]), (0, ""), "{has:?}");
        fs::write(place.path("file"), vec![7; 300_000]).unwrap();
        let image_place = format!("{image}:/file");
        let put = ccfs_with(&["put", &place.text("file"), &image]);
        assert_eq!((put.code, &put.err[..]), (0, ""), "{has:?}");
        let copied = ccfs_with(&["cp", &image_place, &format!("{image}:/copy")]);
        assert_eq!((copied.code, &copied.err[..]), (0, ""), "{has:?}");
        let adopted = ccfs_with(&["adopt", "--full", &image]);
        assert_eq!(adopted.code, 0, "{has:?}: {}", adopted.out);
        let dir = place.subdir("mnt");
        mount(&image, &dir);
        fs::copy(place.path("mnt/file"), place.path("mnt/third")).unwrap();
        fs::remove_file(place.path("mnt/copy")).unwrap();
        unmount(&dir);
        let released = ccfs_with(&["release", &image]);
        assert_eq!(released.code, 0, "{has:?}: {}", released.out);
        let checked = ccfs_with(&["fsck", "-fn", &image]);
        assert_eq!(checked.code, 0, "{has:?}: {}{}", checked.out, checked.err);
        let listed = ccfs_with(&["ls", &image]);
        assert_eq!(listed.out, "file\nlost+found\nthird\n", "{has:?}");
    }
}

/// Who is first has the name.
#[test]
fn of_several_who_make_one_image_there_one_succeeds() {
    common::needs_mounts!();
    for has in all_kinds() {
        let place = Place::new();
        let host = host(&place, has);
        let image = host.text("a.img");
        let runs: Vec<_> = std::thread::scope(|scope| {
            let run = || ccfs_with(&["mkfs", "--sparse", "-s", "16M", &image]);
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let told: Vec<_> = runs.iter().map(|ran| (ran.code, &ran.err)).collect();
        let succeeded = runs.iter().filter(|ran| ran.code == 0).count();
        assert_eq!(succeeded, 1, "{has:?}: {told:?}");
        tool("e2fsck", &["-fn", &image]);
        let names = fs::read_dir(&host.behind).unwrap().count();
        assert_eq!(names, 1, "{has:?}: {told:?}");
    }
}

/// What cannot be kept is told, and the files are there.
#[test]
fn files_are_copied_to_it_and_from_it() {
    common::needs_mounts!();
    for has in all_kinds() {
        let place = Place::new();
        let host = host(&place, has);
        let image = place.volume("a.img", "32M");
        let tree = place.subdir("tree");
        fs::write(place.path("tree/file"), vec![7; 300_000]).unwrap();
        tool("truncate", &["-s", "5M", &place.text("tree/hole")]);
        fs::hard_link(place.path("tree/file"), place.path("tree/other")).unwrap();
        std::os::unix::fs::symlink("file", place.path("tree/link")).unwrap();
        tool("chown", &["12:34", &place.text("tree/file")]);
        tool("chmod", &["4750", &place.text("tree/file")]);
        let put = ccfs_with(&["put", &tree, &image]);
        assert_eq!((put.code, &put.err[..]), (0, ""));
        let got = ccfs_with(&["get", &format!("{image}:/tree"), &host.text("")]);
        assert_eq!(got.code, 0, "{has:?}: {}", got.err);
        let compared = run(Command::new("diff").args(["-r", &tree, &host.text("tree")]));
        assert_eq!(compared.code, 0, "{has:?}: {}", compared.out);
        let file = fs::metadata(host.behind.join("tree/file")).unwrap();
        let other = fs::metadata(host.behind.join("tree/other")).unwrap();
        let link = fs::read_link(host.behind.join("tree/link")).unwrap();
        assert_eq!(link.to_str(), Some("file"));
        assert_eq!(file.ino() == other.ino(), has.links);
        assert_eq!(
            got.err.contains("is a copy of its own"),
            !has.links,
            "{}",
            got.err
        );
        // Whose it is decides what setuid means.
        assert_eq!(file.uid() == 12, has.owners);
        assert_eq!(
            got.err.contains("owner is not kept"),
            !has.owners,
            "{}",
            got.err
        );
        let mode = if has.owners { 0o4750 } else { 0o750 };
        assert_eq!(file.mode() & 0o7777, mode, "{has:?}");
        // And back.
        let put = ccfs_with(&["put", &host.text("tree"), &format!("{image}:/back")]);
        assert_eq!((put.code, &put.err[..]), (0, ""), "{has:?}");
        let cat = ccfs_with(&["cat", &format!("{image}:/back/file")]);
        assert_eq!(cat.out.len(), 300_000);
    }
}
