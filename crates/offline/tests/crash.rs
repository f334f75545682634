//! A killed process leaves an ordered prefix, whole file by whole file.
mod common;
use ccfs_offline::{Access, CopyOptions, Offline};
use common::{Place, e2fsck, names};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const JOB: &str = "CCFS_OFFLINE_CHILD";
const FILES: usize = 4000;

fn content(n: usize) -> Vec<u8> {
    vec![n as u8; 3000 + n % 7000]
}

/// Not a test of its own: what the killed process does. It tells each file that a sync covered.
#[test]
fn child() {
    let Some(image) = std::env::var_os(JOB) else {
        return;
    };
    let volume = Offline::open(&image, Access::ReadWrite).unwrap();
    let copy = std::env::var_os("CCFS_OFFLINE_TREE");
    for n in 0..FILES {
        match &copy {
            None => volume.write(format!("/f{n:05}"), &content(n)).unwrap(),
            Some(tree) => {
                let from = Path::new(tree).join(format!("f{n:05}"));
                let done = volume
                    .put(&from, "/", &CopyOptions::default(), &mut ())
                    .unwrap();
                assert_eq!(done.failed, 0);
            }
        }
        if n % 100 == 0 {
            volume.sync().unwrap();
            println!("synced {n}");
            std::io::stdout().flush().unwrap();
        }
    }
    // Never at rest: only the signal ends this.
    loop {
        std::thread::park();
    }
}

/// Kills the child when it has told `after` lines; gives the number of the last file that was synced.
fn kill_after(image: &Path, tree: Option<&Path>, after: usize) -> usize {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env(JOB, image)
        .stdout(Stdio::piped());
    if let Some(tree) = tree {
        command.env("CCFS_OFFLINE_TREE", tree);
    }
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let synced: Vec<usize> = lines
        .map(Result::unwrap)
        .filter_map(|line| line.split("synced ").nth(1)?.trim().parse().ok())
        .take(after)
        .collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(synced.len(), after, "the child ended early");
    synced[after - 1]
}

fn check_prefix(image: &Path, synced: usize) {
    let volume = Offline::open(image, Access::ReadOnly).unwrap();
    let found: Vec<String> = names(&volume, "/")
        .into_iter()
        .filter(|n| n != "lost+found")
        .collect();
    assert!(
        found.len() > synced,
        "{} files, synced through {synced}",
        found.len()
    );
    for (n, name) in found.iter().enumerate() {
        assert_eq!(
            *name,
            format!("f{n:05}"),
            "a later file without an earlier one"
        );
        assert!(
            volume.read(name).unwrap() == content(n),
            "{name} is not whole"
        );
    }
    drop(volume);
    e2fsck(image);
}

#[test]
fn a_kill_leaves_a_prefix_of_whole_files() {
    let place = Place::new();
    for (round, after) in [1, 7, 23].into_iter().enumerate() {
        let image = place.image(&format!("{round}.img"));
        let synced = kill_after(&image, None, after);
        check_prefix(&image, synced);
    }
}

#[test]
fn a_kill_in_a_copy_leaves_a_prefix_of_whole_files() {
    let place = Place::new();
    let tree = place.path("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..FILES {
        std::fs::write(tree.join(format!("f{n:05}")), content(n)).unwrap();
    }
    let image = place.image("a.img");
    let synced = kill_after(&image, Some(&tree), 12);
    check_prefix(&image, synced);
}
