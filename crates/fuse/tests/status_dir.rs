//! The directory `.ccfs`: there for who asks for it, and for nobody else.
mod common;
use ccfs_fuse::FsType;
use common::{TestMount, can_mount, change_at_rest, fsck};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs a tool that must succeed; what it printed.
fn tool(name: &str, args: &[&str], dir: &Path) -> String {
    let out = Command::new(name).args(args).current_dir(dir).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{name} {args:?}: {out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn walks_of_the_tree_never_meet_it() {
    if !can_mount("walks_of_the_tree_never_meet_it") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let mnt = m.mnt();
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"f").unwrap();
    // Known to the kernel from here on.
    assert!(m.path(".ccfs/streams").exists());
    let copy = tempfile::tempdir().unwrap();
    let target = copy.path().join("copy");
    tool("cp", &["-a", ".", target.to_str().unwrap()], &mnt);
    tool(
        "tar",
        &["-cf", copy.path().join("t.tar").to_str().unwrap(), "."],
        &mnt,
    );
    let archive = tool("tar", &["-tf", "t.tar"], copy.path());
    let found = tool("find", &["."], &mnt);
    let copied = tool("find", &["."], &target);
    let listed = tool("ls", &["-aR"], &mnt);
    for text in [&archive, &found, &copied, &listed] {
        assert!(text.contains("d") && !text.contains(".ccfs"), "{text}");
    }
    tool("diff", &["-r", mnt.to_str().unwrap(), "."], &target);
    tool("sh", &["-c", "rm -rf -- ./* ./.[!.]*"], &mnt);
    let left: Vec<_> = fs::read_dir(&mnt)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["lost+found"; 0]);
    assert!(m.path(".ccfs/streams").exists());
    m.unmount();
}

#[test]
fn an_open_file_reads_one_text() {
    if !can_mount("an_open_file_reads_one_text") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let names: Vec<_> = fs::read_dir(m.path(".ccfs"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, ["metrics", "status.json", "streams", "trace"]);
    let mut open = File::open(m.path(".ccfs/status.json")).unwrap();
    let size = open.metadata().unwrap().len();
    let mut first = vec![0; 100];
    open.read_exact(&mut first).unwrap();
    for n in 0..200 {
        fs::write(m.path(&format!("f{n}")), vec![1; 5000]).unwrap();
    }
    File::open(m.path("f0")).unwrap().sync_all().unwrap();
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).unwrap();
    let whole = [first, rest].concat();
    assert_eq!(whole.len() as u64, size);
    let old: Value = serde_json::from_slice(&whole).unwrap();
    // A second look through the same file, without what the kernel remembers.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut again = Vec::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_end(&mut again).unwrap();
    assert!(again == whole);
    assert_eq!(open.read_at(&mut [0; 10], size).unwrap(), 0);
    let new: Value =
        serde_json::from_slice(&fs::read(m.path(".ccfs/status.json")).unwrap()).unwrap();
    let operations = |v: &Value| v["counters"]["operations"].as_u64().unwrap();
    assert!(operations(&new) >= operations(&old) + 400, "{old} {new}");
    assert_eq!(new["schema"], 1);
    assert_eq!(new["mount"]["status_dir"], true);
    let trace = fs::read_to_string(m.path(".ccfs/trace")).unwrap();
    let last: Value = serde_json::from_str(trace.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["kind"], &last["call"]),
        (&"sync".into(), &"fsync".into())
    );
    let metrics = fs::read_to_string(m.path(".ccfs/metrics")).unwrap();
    assert!(metrics.contains("ccfs_syncs_total"), "{metrics}");
    let streams = fs::read_to_string(m.path(".ccfs/streams")).unwrap();
    assert!(streams.starts_with("STREAM "), "{streams}");
    drop(open);
    m.unmount();
}

#[test]
fn nothing_can_be_changed_there() {
    if !can_mount("nothing_can_be_changed_there") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let (dir, file) = (m.path(".ccfs"), m.path(".ccfs/streams"));
    fs::write(m.path("f"), b"f").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    let errno = |r: std::io::Result<()>| r.unwrap_err().raw_os_error().unwrap();
    assert_eq!(errno(fs::create_dir(&dir)), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(&dir)), libc::EPERM);
    assert_eq!(errno(fs::remove_dir_all(&dir)), libc::EPERM);
    assert_eq!(errno(fs::remove_file(&file)), libc::EPERM);
    assert_eq!(errno(fs::rename(&dir, m.path("x"))), libc::EPERM);
    assert_eq!(errno(fs::rename(m.path("d"), &dir)), libc::EPERM);
    assert_eq!(errno(fs::rename(m.path("f"), dir.join("x"))), libc::EPERM);
    assert_eq!(errno(fs::hard_link(&file, m.path("x"))), libc::EPERM);
    assert_eq!(
        errno(fs::hard_link(m.path("f"), dir.join("x"))),
        libc::EPERM
    );
    assert_eq!(errno(File::create(dir.join("x")).map(drop)), libc::EPERM);
    assert_eq!(errno(fs::create_dir(dir.join("x"))), libc::EPERM);
    let all = fs::Permissions::from_mode(0o777);
    assert_eq!(errno(fs::set_permissions(&dir, all.clone())), libc::EPERM);
    assert_eq!(errno(fs::set_permissions(&file, all)), libc::EPERM);
    // Root may open everything for writing.
    let mut open = File::options().write(true).open(&file).unwrap();
    assert_eq!(errno(open.write_all(b"x")), libc::EPERM);
    drop(open);
    assert!(fs::metadata(dir.join("nothing")).is_err());
    let info = fs::metadata(&dir).unwrap();
    assert_eq!((info.mode() & 0o7777, info.nlink()), (0o555, 2));
    let info = fs::metadata(&file).unwrap();
    assert_eq!((info.mode() & 0o7777, info.uid()), (0o400, 0));
    // Copies, and the stream calls.
    fs::copy(&file, m.path("copy")).unwrap();
    tool("cp", &["-a", ".ccfs/status.json", "copy2"], &m.mnt());
    assert!(
        fs::read_to_string(m.path("copy"))
            .unwrap()
            .starts_with("STREAM")
    );
    let stream = ccfs_client::get_stream(File::open(&dir).unwrap()).unwrap();
    assert_eq!(stream.id, ccfs_client::STREAM_DEFAULT);
    m.unmount();
}

#[test]
fn a_real_entry_wins() {
    if !can_mount("a_real_entry_wins") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    m.unmount();
    change_at_rest(&m.image(), |image| {
        let args = ["-w", "-R", "mkdir .ccfs", image.to_str().unwrap()];
        tool("debugfs", &args, Path::new("/"));
    });
    fsck(&m.image());
    m.mount();
    let listed = tool("ls", &["-A"], &m.mnt());
    assert!(listed.contains(".ccfs"), "{listed}");
    assert_eq!(fs::read_dir(m.path(".ccfs")).unwrap().count(), 0);
    fs::write(m.path(".ccfs/own"), b"own").unwrap();
    fs::remove_dir_all(m.path(".ccfs")).unwrap();
    // For as long as this mount lasts the name is like any other.
    assert!(!m.path(".ccfs").exists());
    fs::write(m.path(".ccfs"), b"a file").unwrap();
    fs::remove_file(m.path(".ccfs")).unwrap();
    m.unmount();
    m.mount();
    assert!(m.path(".ccfs/streams").exists());
    m.unmount();
}

#[test]
fn texts_held_open_are_bounded() {
    if !can_mount("texts_held_open_are_bounded") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let path = m.path(".ccfs/streams");
    let mut held = Vec::new();
    let error = loop {
        assert!(held.len() < 1000);
        match File::open(&path) {
            Ok(file) => held.push(file),
            Err(e) => break e,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
    assert!(held.len() >= 32, "{}", held.len());
    let mut text = String::new();
    held[0].read_to_string(&mut text).unwrap();
    assert!(text.starts_with("STREAM"));
    drop(held);
    // The kernel gives its references back a little later.
    let deadline = Instant::now() + Duration::from_secs(60);
    while File::open(&path).is_err() {
        assert!(
            Instant::now() < deadline,
            "texts are kept after their last close"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    m.unmount();
}
