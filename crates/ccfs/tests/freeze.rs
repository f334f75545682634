//! `ccfs freeze`: the image of a mounted volume is copied while others work; whoever froze it dies; a signal, an unmount, the limit.
mod common;
use common::{
    Place, ccfs, ccfs_with, daemon, mount, refused, signal, tool, unmount, wait_for, wait_for_end,
    wait_until,
};
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A command that ends when the test says so, or has ended itself.
const UNTIL_GO: &str = r#"while [ -e "$BEGAN" ] && ! [ -e "$GO" ]; do sleep 0.05; done"#;

/// `ccfs freeze` in the background, with a command that says when it begins.
fn freeze(place: &Place, dir: &str, longest: &str, script: &str) -> Child {
    let (began, end) = (place.text("began"), place.text("go"));
    let _ = (fs::remove_file(&began), fs::remove_file(&end));
    let child = ccfs()
        .args(["freeze", "--for", longest, dir, "--", "sh", "-c"])
        .arg(format!("touch \"$BEGAN\"; {script}"))
        .env("BEGAN", &began)
        .env("GO", &end)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    wait_until("the command begins", || Path::new(&began).exists());
    child
}

fn go(place: &Place) {
    fs::write(place.path("go"), "").unwrap();
}

/// `kill -9` of `ccfs freeze`, and then of its command.
fn end(child: &mut Child) {
    signal(child.id(), "KILL");
    let _ = child.wait();
    let _ = Command::new("pkill")
        .args(["-KILL", "-g", &child.id().to_string()])
        .status();
}

fn code(child: &mut Child) -> i32 {
    wait_for(child).code().unwrap_or(-1)
}

/// A program that changes this file.
fn change_of(program: &str, file: &str) -> Child {
    Command::new(program).arg(file).spawn().unwrap()
}

/// A change by a process of its own, which may wait, and ends.
fn change(dir: &str) {
    let mut changes = change_of("touch", &format!("{dir}/changed"));
    assert!(wait_for(&mut changes).success());
}

/// A thread, by its directory in /proc, waits for an answer of a daemon.
fn asks(task: &str) -> bool {
    let wchan = fs::read_to_string(format!("{task}/wchan")).unwrap_or_default();
    wchan.contains("request_wait_answer") || wchan.contains("fuse")
}

/// The same, of one that waits: still after a while.
fn waiting(program: &str, file: &str) -> Child {
    let mut child = change_of(program, file);
    let task = format!("/proc/{}", child.id());
    let mut waits = || child.try_wait().unwrap().is_none();
    wait_until("it waits", || !waits() || asks(&task));
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits(), "{program} does not wait");
    child
}

#[test]
fn a_copy_made_under_load_has_everything_before_it() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    mount(&image, &dir);
    let pid = daemon(&dir);
    let (stop, done) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    let copies: Vec<(String, Vec<u64>)> = std::thread::scope(|scope| {
        for (t, done) in done.iter().enumerate() {
            let (dir, stop) = (&dir, &stop);
            scope.spawn(move || {
                for n in 0..2000u64 {
                    if stop.load(SeqCst) {
                        break;
                    }
                    fs::write(format!("{dir}/{t}-{n}"), n.to_string()).unwrap();
                    if n % 7 == 0 {
                        File::open(format!("{dir}/{t}-{n}"))
                            .unwrap()
                            .sync_all()
                            .unwrap();
                    }
                    done.store(n + 1, SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let copies = (0..3).map(|n| {
            std::thread::sleep(Duration::from_millis(150));
            let before = done.iter().map(|d| d.load(SeqCst)).collect();
            let copy = place.text(&format!("copy{n}"));
            // Twice: nothing changes in between.
            let script = format!(
                "cp --sparse=always '{image}' '{copy}' && sleep 0.2 && cmp '{image}' '{copy}'"
            );
            let ran = ccfs_with(&["freeze", "--for", "30", &dir, "--", "sh", "-c", &script]);
            assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
            (copy, before)
        });
        let copies = copies.collect();
        stop.store(true, SeqCst);
        copies
    });
    unmount(&dir);
    wait_for_end(pid);
    for (copy, before) in copies {
        mount(&copy, &dir);
        let pid = daemon(&dir);
        for (t, done) in before.iter().enumerate() {
            for n in 0..*done {
                let found = fs::read_to_string(format!("{dir}/{t}-{n}"));
                assert_eq!(found.ok(), Some(n.to_string()), "{copy}: {t}-{n}");
            }
            println!("{copy}: {done} files of program {t}");
        }
        unmount(&dir);
        wait_for_end(pid);
        tool("e2fsck", &["-fn", &copy]);
    }
}

#[test]
fn others_wait_until_it_ends_however_that_is() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    mount(&image, &dir);
    let pid = daemon(&dir);
    fs::write(format!("{dir}/f"), "text").unwrap();
    // The command ends; its exit code is the program's.
    let mut child = freeze(&place, &dir, "600", &format!("{UNTIL_GO}; exit 7"));
    let mut waits = waiting("touch", &format!("{dir}/changed"));
    go(&place);
    assert_eq!(code(&mut child), 7);
    assert!(wait_for(&mut waits).success());
    // Reads go on, another freeze is refused.
    let mut child = freeze(&place, &dir, "600", UNTIL_GO);
    assert_eq!(fs::read_to_string(format!("{dir}/f")).unwrap(), "text");
    let again = ccfs_with(&["freeze", &dir, "--", "true"]);
    refused("again", &again, 1, &["frozen already"]);
    go(&place);
    assert_eq!(code(&mut child), 0);
    // The limit: whoever waited goes on, and the command is told off.
    let mut child = freeze(&place, &dir, "1", UNTIL_GO);
    change(&dir);
    assert!(child.try_wait().unwrap().is_none(), "the limit ended it");
    go(&place);
    assert_eq!(code(&mut child), 1);
    // Who waits can be killed, and has done nothing.
    let mut child = freeze(&place, &dir, "600", UNTIL_GO);
    for (program, file) in [("touch", "never"), ("sync", "f")] {
        let mut waits = waiting(program, &format!("{dir}/{file}"));
        signal(waits.id(), "TERM");
        let ended = wait_for(&mut waits).signal();
        assert_eq!(ended, Some(libc::SIGTERM), "{program}");
    }
    end(&mut child);
    change(&dir);
    assert!(!Path::new(&format!("{dir}/never")).exists());
    // The program is killed.
    let mut child = freeze(&place, &dir, "600", UNTIL_GO);
    end(&mut child);
    change(&dir);
    // A command that is not there, and one that fails at once.
    let ran = ccfs_with(&["freeze", &dir, "--", "/none/such"]);
    assert_eq!(ran.code, 127, "{}", ran.err);
    change(&dir);
    // An end by a signal does not wait for it.
    let mut child = freeze(&place, &dir, "600", UNTIL_GO);
    let mut waits = waiting("touch", &format!("{dir}/late"));
    signal(pid, "TERM");
    wait_for(&mut waits);
    // The program keeps the mount busy until it ends.
    end(&mut child);
    // The daemon may have done so by now.
    let _ = ccfs_with(&["umount", &dir]);
    wait_for_end(pid);
    tool("e2fsck", &["-fn", &image]);
}

/// More calls wait than the daemon has room for: the end of the freeze needs no call that would have to get through.
#[test]
fn a_crowd_that_waits_goes_on() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    mount(&image, &dir);
    let crowd = 700;
    for n in 0..crowd {
        fs::create_dir(format!("{dir}/{n}")).unwrap();
    }
    let mut child = freeze(&place, &dir, "600", UNTIL_GO);
    let tasks = Mutex::new(Vec::new());
    let begun = std::thread::scope(|scope| {
        for n in 0..crowd {
            let (dir, tasks) = (&dir, &tasks);
            scope.spawn(move || {
                let task = format!("/proc/self/task/{}", rustix::thread::gettid());
                tasks.lock().unwrap().push(task);
                fs::write(format!("{dir}/{n}/f"), "text").unwrap();
            });
        }
        wait_until("all of them wait", || {
            let tasks = tasks.lock().unwrap();
            tasks.len() == crowd && tasks.iter().all(|task| asks(task))
        });
        go(&place);
        Instant::now()
    });
    let took = begun.elapsed();
    assert_eq!(code(&mut child), 0);
    assert!(took < Duration::from_secs(300), "only the limit ended it");
    unmount(&dir);
    tool("e2fsck", &["-fn", &image]);
}

#[test]
fn what_cannot_be_frozen_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let plain = ccfs_with(&["freeze", &place.text("."), "--", "true"]);
    refused("no ccfs", &plain, 1, &["not on a mounted ccfs volume"]);
    refused("usage", &ccfs_with(&["freeze", &dir]), 2, &["Usage"]);
    let long = ccfs_with(&["freeze", "--for", "0", &dir, "--", "true"]);
    refused("no time", &long, 2, &["--for"]);
    mount(&image, &dir);
    fs::write(format!("{dir}/f"), "text").unwrap();
    let user = Command::new("setpriv")
        .args(["--reuid=65534", "--clear-groups"])
        .arg(env!("CARGO_BIN_EXE_ccfs"))
        .args(["freeze", &dir, "--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&user.stderr);
    assert_eq!(user.status.code(), Some(1), "{said}");
    assert!(said.contains("only root may freeze"), "{said}");
    unmount(&dir);
    // Of a volume that is only read there is nothing to wait for.
    let ran = ccfs_with(&["mount", "-o", "ro", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = ccfs_with(&["freeze", &dir, "--", "true"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    unmount(&dir);
}
