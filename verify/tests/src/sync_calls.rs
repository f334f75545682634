//! What each sync call makes durable: a crash comes right after it, and then one looks. A sync call that does nothing is seen here and
//! nowhere else.

use crate::harness::{Fs, GOING_NOLOGFLUSH, Volume, ccfs_program, run_ok};
use crate::sys;
use Reach::{All, AllByTheKernel, File, Name, Nothing};
use ccfs_testkit::run::stop;
use libc::{O_CREAT, O_DSYNC, O_RDONLY, O_RDWR, O_SYNC, O_WRONLY};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What is durable when the call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    Nothing,
    /// The file; a request comes for it on every kernel.
    File,
    /// That there is such a file.
    Name,
    /// Everything, if the kernel tells of the call.
    AllByTheKernel,
    /// Everything: the daemon is asked.
    All,
}

/// Makes the file, whose content is [`CONTENT`], with this call.
type Make = fn(&Volume, &Path);

/// Of any file system.
const CALLS: [(&str, Reach, Make); 16] = [
    ("none", Nothing, |_, path| drop(written(path))),
    ("fsync", File, |_, path| ok(sys::fsync(&written(path)))),
    ("fdatasync", File, |_, path| {
        ok(sys::fdatasync(&written(path)));
    }),
    ("fsync by another descriptor", File, |_, path| {
        drop(written(path));
        ok(sys::fsync(&ok(sys::open(path, O_RDONLY, 0))));
    }),
    ("O_SYNC", File, |_, path| {
        let file = ok(sys::open(path, O_CREAT | O_WRONLY | O_SYNC, 0o600));
        ok(sys::pwrite(&file, CONTENT, 0));
    }),
    ("O_DSYNC", File, |_, path| {
        let file = ok(sys::open(path, O_CREAT | O_WRONLY | O_DSYNC, 0o600));
        ok(sys::pwrite(&file, CONTENT, 0));
    }),
    ("RWF_SYNC", File, |_, path| {
        ok(sys::pwrite_flags(&made(path), CONTENT, 0, libc::RWF_SYNC));
    }),
    ("RWF_DSYNC", File, |_, path| {
        ok(sys::pwrite_flags(&made(path), CONTENT, 0, libc::RWF_DSYNC));
    }),
    ("msync", File, |_, path| ok(stored(path).sync())),
    ("sync FILE", File, |_, path| {
        drop(written(path));
        run_ok("sync", &[text(path)]);
    }),
    ("sync -d FILE", File, |_, path| {
        drop(written(path));
        run_ok("sync", &["-d", text(path)]);
    }),
    ("fsync of the directory", Name, |v, path| {
        drop(written(path));
        ok(sys::fsync(&root(v)));
    }),
    ("syncfs", AllByTheKernel, |v, path| {
        drop(written(path));
        ok(sys::syncfs(&root(v)));
    }),
    ("sync", AllByTheKernel, |_, path| {
        drop(written(path));
        sys::sync_all();
    }),
    ("sync -f", AllByTheKernel, |v, path| {
        drop(written(path));
        run_ok("sync", &["-f", text(v.mnt())]);
    }),
    ("syncfs of a mapping", AllByTheKernel, |v, path| {
        let map = stored(path);
        ok(sys::syncfs(&root(v)));
        drop(map);
    }),
];

/// Without a helper of mount(8) there is no way to the daemon.
const REMOUNT: (&str, Reach, Make) = ("remount,ro by mount(2)", AllByTheKernel, |v, path| {
    drop(written(path));
    ok(sys::remount_read_only(v.mnt()));
});

/// Of ccfs, made in a stream of their own where the call is about all streams.
const OWN_CALLS: [(&str, Reach, Make); 5] = [
    ("streamsync", All, |v, path| {
        drop(written(path));
        ccfs_client::stream_sync(root(v), 0).expect("streamsync");
    }),
    ("ccfs stream sync", All, |v, path| {
        drop(written(path));
        run_ok(ccfs_program(), &["stream", "sync", text(v.mnt())]);
    }),
    ("sync_volume", All, |v, path| {
        in_another_stream(v, path);
        ccfs_client::sync_volume(root(v)).expect("sync_volume");
    }),
    ("ccfs stream sync --all", All, |v, path| {
        in_another_stream(v, path);
        run_ok(ccfs_program(), &["stream", "sync", "--all", text(v.mnt())]);
    }),
    ("mount -o remount,ro", All, |v, path| {
        in_another_stream(v, path);
        let dir = text(v.mnt());
        run_ok(ccfs_program(), &["mount", "-o", "remount,ro", "none", dir]);
    }),
];

/// For what has to happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// Of every file.
pub const CONTENT: &[u8] = &[b'x'; 5000];

fn ok<T>(result: sys::R<T>) -> T {
    result.expect("the call succeeds")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

fn root(v: &Volume) -> OwnedFd {
    ok(sys::open(v.mnt(), O_RDONLY, 0))
}

fn made(path: &Path) -> OwnedFd {
    ok(sys::open(path, O_CREAT | O_RDWR, 0o600))
}

fn written(path: &Path) -> OwnedFd {
    let file = made(path);
    ok(sys::pwrite(&file, CONTENT, 0));
    file
}

/// By stores through a mapping.
fn stored(path: &Path) -> sys::Map {
    let file = made(path);
    ok(sys::ftruncate(&file, CONTENT.len() as i64));
    let map = ok(sys::Map::new(&file, 0, CONTENT.len(), true));
    map.store(0, CONTENT);
    map
}

fn in_another_stream(v: &Volume, path: &Path) {
    let script = r#"printf %5000s "" | tr ' ' x >"$0""#;
    let dir = text(v.mnt());
    let command = ["stream", "run", "--on", dir, "--", "sh", "-c", script];
    run_ok(ccfs_program(), &[&command[..], &[text(path)]].concat());
    assert_eq!(std::fs::read(path).expect("written"), CONTENT);
}

/// What a crash leaves right after each call. Panics if that is not what the call promises, or if it is and the mount or `status` warned.
/// Returns the names of the calls that made nothing durable.
pub fn what_they_make_durable(fs: Fs) -> Vec<&'static str> {
    let mut v = Volume::unformatted(fs, "sync").options("commit=3600");
    v.mkfs(64);
    v.mount();
    let forwarded = fs != Fs::Ccfs || told_whether_forwarded(&v);
    let own: &[_] = if fs == Fs::Ccfs { &OWN_CALLS } else { &[] };
    let mut lost = Vec::new();
    for (n, (name, reach, make)) in CALLS.iter().chain(own).chain([&REMOUNT]).enumerate() {
        let path = v.path(&format!("f{n}"));
        make(&v, &path);
        crash(&mut v);
        v.mount();
        let durable = match (reach, std::fs::read(&path)) {
            (Name, found) => found.is_ok(),
            (_, Ok(found)) => found == CONTENT,
            (_, Err(_)) => false,
        };
        let promised = match reach {
            Nothing => false,
            File | Name | All => true,
            AllByTheKernel => forwarded,
        };
        assert_eq!(
            durable,
            promised,
            "{name} on {}: durable, and promised; the kernel tells of syncfs: {forwarded}",
            fs.name()
        );
        if !durable && *reach != Nothing {
            lost.push(*name);
        }
    }
    v.finish();
    lost
}

/// What a crash right after a call must leave of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Promise {
    Nothing,
    Name,
    Content,
}

/// Makes each call on a mounted volume of ccfs, and tells of it when it has returned: its name, its file, and what must have become durable.
pub fn each(v: &mut Volume, mut returned: impl FnMut(&str, &str, Promise)) {
    assert!(told_whether_forwarded(v), "sync calls reach the daemon");
    for (n, (name, reach, make)) in CALLS.iter().chain(&OWN_CALLS).chain([&REMOUNT]).enumerate() {
        let file = format!("f{n}");
        make(v, &v.path(&file));
        let promise = match reach {
            Nothing => Promise::Nothing,
            Name => Promise::Name,
            File | AllByTheKernel | All => Promise::Content,
        };
        returned(name, &file, promise);
        if name.contains("remount,ro") {
            v.remount();
        }
    }
}

/// Somebody waits in a sync call for a daemon that is killed: he goes on, and is told where the call tells of errors.
pub fn a_sync_in_flight_ends() {
    let mut v = Volume::unformatted(Fs::Ccfs, "sync").options("commit=3600");
    v.mkfs(64);
    let dir = v.mnt().to_path_buf();
    let of_the_volume = ["-f", text(&dir)];
    for args in [&of_the_volume[..], &[]] {
        v.mount();
        drop(written(&v.path("f")));
        let pid = v.daemon_pid().expect("a daemon");
        // What the kernel knows then it does not ask for when the directory is opened.
        ok(sys::syncfs(&root(&v)));
        drop(written(&v.path("f")));
        std::fs::metadata(&dir).expect("the root");
        let told = v.status()["mount"].clone();
        stop(pid);
        let mut sync = Command::new("sync").args(args).spawn().expect("sync");
        let end = Instant::now() + PATIENCE;
        let mut waits = false;
        while !waits && !has_ended(&mut sync) && Instant::now() < end {
            sleep(Duration::from_millis(50));
            waits = is_in_a_sync_call(sync.id());
        }
        // Whatever comes: sync(2) of the machine waits for a daemon that is stopped.
        v.kill9();
        let log = v.daemon_log();
        assert!(waits, "sync {args:?} waits for nobody; {told}\n{log}");
        while !has_ended(&mut sync) {
            assert!(
                Instant::now() < end,
                "sync {args:?} waits for a dead daemon"
            );
            sleep(Duration::from_millis(5));
        }
        let told = !sync.wait().expect("a status").success();
        assert_eq!(told, !args.is_empty(), "sync {args:?}: an error");
        sys::sync_all();
    }
    v.mount();
    v.finish();
}

fn has_ended(process: &mut Child) -> bool {
    process.try_wait().expect("a child").is_some()
}

/// It waits there: who has a processor is `running`.
fn is_in_a_sync_call(pid: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|word| word.parse().ok());
    number == Some(libc::SYS_syncfs) || number == Some(libc::SYS_sync)
}

/// What the mount, `status`, its JSON and the status file say of syncfs; they agree.
fn told_whether_forwarded(v: &Volume) -> bool {
    let status = v.status();
    let works = status["mount"]["syncfs_works"].as_bool().expect("a word");
    let shown = run_ok(ccfs_program(), &["status", text(v.mnt())]);
    let file = std::fs::read_to_string(v.path(".ccfs/status.json")).expect("status file");
    let file: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    assert_eq!(file["mount"]["syncfs_works"], works);
    assert_eq!(shown.contains("WARNING"), !works, "{shown}");
    assert_eq!(status["mount"]["syncfs_reason"].is_null(), works);
    let log = v.daemon_log();
    assert_eq!(log.contains("syncfs(2), sync(2)"), !works, "{log}");
    for words in [&log, &shown] {
        assert!(!words.contains("plain FUSE"), "it is none: {words}");
    }
    works
}

/// The daemon is killed; ext4 is stopped without its log.
fn crash(v: &mut Volume) {
    if v.fs() == Fs::Ccfs {
        return v.kill9();
    }
    ok(v.shut_down(GOING_NOLOGFLUSH));
    v.umount_stopped();
}
