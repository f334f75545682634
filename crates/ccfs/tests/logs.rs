//! What the daemon says, and where: its life and each error once, to stderr, a file, the system log or the kernel's.
mod common;
use common::{PATIENCE, Place, Ran, ccfs_with, run, unmount, wait_for};
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Mounts with more words in the environment, does a little, unmounts.
fn mount_and_use(place: &Place, options: &str, environment: &[(&str, &str)]) -> Ran {
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let mut command = common::ccfs();
    command.args(["mount", "-o", options, &image, &dir]);
    command.envs(environment.iter().copied());
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    fs::write(place.path("mnt/f"), "x").unwrap();
    // Says where events come from, if anybody wants to know.
    let made = ccfs_with(&["stream", "new", &dir]);
    assert_eq!(made.code, 0, "{}", made.err);
    unmount(&dir);
    ran
}

fn fresh() -> Place {
    let place = Place::new();
    place.volume("a.img", "32M");
    place.subdir("mnt");
    place
}

/// Everything that the socket got so far.
fn received(socket: &UnixDatagram) -> Vec<String> {
    let mut out = Vec::new();
    let mut bytes = [0u8; 65536];
    while let Ok(len) = socket.recv(&mut bytes) {
        out.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
    }
    out
}

fn system_log(place: &Place) -> UnixDatagram {
    let socket = UnixDatagram::bind(place.path("log.sock")).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The log has its life; who mounts it is told nothing.
#[test]
fn a_mount_without_trouble_says_when_it_begins_and_ends() {
    common::needs_mounts!();
    let place = fresh();
    let socket = system_log(&place);
    let path = place.text("log.sock");
    let ran = mount_and_use(&place, "rw", &[("CCFS_LOG_SOCKET", &path)]);
    assert_eq!((ran.out, ran.err), (String::new(), String::new()));
    let dir = place.text("mnt");
    let life = |said: &[String]| {
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].contains(": mounted ") || said[0].contains(" mounted "),
            "{said:?}"
        );
        assert!(said[0].contains(&format!(" on {dir}, over ")), "{said:?}");
        assert!(said[1].contains("unmounted "), "{said:?}");
        assert!(
            said[1].contains(&format!(" from {dir}: it is plain ext4")),
            "{said:?}"
        );
    };
    let said = received(&socket);
    life(&said);
    assert!(said.iter().all(|l| l.starts_with("<30>ccfs[")), "{said:?}");
    let file = place.text("log");
    let ran = mount_and_use(&place, &format!("log={file}"), &[]);
    assert_eq!((ran.out, ran.err), (String::new(), String::new()));
    let text = fs::read_to_string(&file).unwrap();
    life(&text.lines().map(str::to_string).collect::<Vec<_>>());
    // Who wants less.
    let less = [("CCFS_LOG", "warn"), ("CCFS_LOG_SOCKET", path.as_str())];
    mount_and_use(&place, "rw", &less);
    assert_eq!(received(&socket), [""; 0]);
}

/// Recovery says how much it did, once, to the log and to nobody who waits.
#[test]
fn a_recovery_is_logged() {
    common::needs_mounts!();
    let place = fresh();
    let (image, dir, file) = (place.text("a.img"), place.text("mnt"), place.text("log"));
    common::mount(&image, &dir);
    fs::write(place.path("mnt/synced"), "x").unwrap();
    fs::File::open(place.path("mnt/synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    let pid = common::daemon(&dir);
    common::signal(pid, "KILL");
    common::wait_for_end(pid);
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    let ran = mount_and_use(&place, &format!("log={file}"), &[]);
    assert_eq!((ran.out, ran.err), (String::new(), String::new()));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|l| l.contains("recovered the log"))
        .collect();
    assert_eq!(lines.len(), 1, "{text}");
    let count = |behind: &str| {
        let before = lines[0].split_once(behind).expect(behind).0;
        let word = before.rsplit([' ', '(']).next().unwrap();
        word.parse::<u64>()
            .unwrap_or_else(|_| panic!("{}", lines[0]))
    };
    assert!(count(" transactions") > 0 && count(" bytes)") > 0, "{text}");
    assert!(lines[0].ends_with(" ms"), "{text}");
}

fn log_of(dir: &str) -> serde_json::Value {
    let ran = ccfs_with(&["status", "--json", dir]);
    let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    status["log"].clone()
}

/// Without a system log messages go to the kernel's, without both they are only kept; the mount says so, and `status` has the last ones.
#[test]
fn without_a_system_log_messages_go_elsewhere_and_the_last_are_kept() {
    common::needs_mounts!();
    let place = fresh();
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let (socket, kernel) = (place.text("late.sock"), place.text("kmsg"));
    let mount = |kernel: &str| {
        let mut command = common::ccfs();
        command
            .env("CCFS_LOG_SOCKET", &socket)
            .env("CCFS_LOG_KMSG", kernel);
        let ran = run(command.args(["mount", &image, &dir]));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.err
    };
    fs::write(&kernel, "").unwrap();
    let said = mount(&kernel);
    assert!(said.contains("messages go to the kernel's log"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let written = fs::read_to_string(&kernel).unwrap();
    let life = written
        .lines()
        .find(|l| l.contains("mounted "))
        .expect("the mount");
    assert!(life.starts_with("<30>ccfs["), "{written}");
    let log = log_of(&dir);
    assert_eq!(log["to"], "the kernel's log");
    let texts = |log: &serde_json::Value| {
        let messages = log["messages"].as_array().unwrap().iter();
        messages
            .map(|m| m["text"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert!(
        texts(&log).iter().any(|t| t.starts_with("mounted ")),
        "{log}"
    );
    let shown = ccfs_with(&["status", &dir]).out;
    assert!(
        shown.contains("messages  go to the kernel's log"),
        "{shown}"
    );
    assert!(shown.contains(" info: mounted "), "{shown}");
    let file = fs::read_to_string(place.path("mnt/.ccfs/status.json")).unwrap();
    assert!(file.contains("the kernel's log"), "{file}");
    // A system log that comes later gets what is said from then on.
    let late = UnixDatagram::bind(&socket).unwrap();
    late.set_nonblocking(true).unwrap();
    unmount(&dir);
    let said = received(&late);
    assert!(said.iter().any(|l| l.contains("unmounted ")), "{said:?}");
    assert!(!fs::read_to_string(&kernel).unwrap().contains("unmounted "));
    // Where one was bound and nobody listens any more, it is none.
    drop(late);
    let said = mount(&place.text("no/kmsg"));
    assert!(
        said.contains("only `ccfs status` shows the last messages"),
        "{said}"
    );
    let log = log_of(&dir);
    assert_eq!(log["to"], "nowhere else");
    assert!(
        texts(&log).iter().any(|t| t.starts_with("mounted ")),
        "{log}"
    );
    // Others than root see none: they name files.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.path(""), open).unwrap();
    let mut other = std::process::Command::new("setpriv");
    let ccfs = env!("CARGO_BIN_EXE_ccfs");
    other.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        ccfs,
        "status",
        "--json",
        &dir,
    ]);
    let ran = run(&mut other);
    if ran.code == 0 {
        let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(status["log"]["messages"], serde_json::json!([]));
        assert_eq!(status["log"]["to"], "");
    } else {
        // The program, or the work folder, cannot be reached by them.
        println!("other users: not tried: {}", ran.err);
    }
    unmount(&dir);
}

#[test]
fn who_wants_to_know_more_is_told_where_the_options_say() {
    common::needs_mounts!();
    let place = fresh();
    let socket = system_log(&place);
    let path = place.text("log.sock");
    let more = [("CCFS_LOG", "debug"), ("CCFS_LOG_SOCKET", path.as_str())];
    mount_and_use(&place, "identity=proc", &more);
    let said = received(&socket);
    let inherited = "streams are inherited by way of /proc: the mount option identity=proc";
    let lines: Vec<_> = said.iter().filter(|l| l.contains(inherited)).collect();
    assert_eq!(lines.len(), 1, "{said:?}");
    // Facility daemon, severity info, our name with a process id, one line.
    let rest = lines[0].strip_prefix("<30>ccfs[").expect("RFC 3164");
    let (pid, text) = rest.split_once("]: ").expect("a process id");
    assert!(pid.parse::<u32>().is_ok() && text == inherited, "{rest:?}");
    // To a file instead, with time and level; a second mount appends.
    let file = place.text("log");
    for mounts in 1..3 {
        mount_and_use(&place, &format!("identity=proc,log={file}"), &more);
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| l.contains(inherited)).collect();
        assert_eq!(lines.len(), mounts, "{text}");
        assert!(
            lines[0].contains(" INFO ") && lines[0].starts_with("20"),
            "{text}"
        );
    }
    assert_eq!(received(&socket), [""; 0], "it is in the file");
    // In the foreground: to stderr.
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let mut child = common::ccfs()
        .args(["mount", "-f", "-o", "identity=proc", &image, &dir])
        .envs(more)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while ccfs_with(&["stream", "new", &dir]).code != 0 {
        assert!(start.elapsed() < PATIENCE && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    unmount(&dir);
    assert!(wait_for(&mut child).success());
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let line = format!("ccfs: {inherited}");
    assert_eq!(said.lines().filter(|l| *l == line).count(), 1, "{said}");
    assert_eq!(received(&socket), [""; 0], "it is on stderr");
}

/// What keeps a volume from being mounted is said once, by the command, and not in the log as well.
#[test]
fn an_error_is_said_once() {
    common::needs_mounts!();
    let place = fresh();
    let socket = system_log(&place);
    let path = place.text("log.sock");
    fs::write(place.path("empty.img"), vec![0u8; 1 << 20]).unwrap();
    let (log, none) = (place.text("log"), place.text("no/dir/log"));
    let dir = place.text("mnt");
    let logged = format!("log={log}");
    let unlogged = format!("log={none}");
    for (options, target, word) in [
        ("rw", "empty.img", "no ext2/3/4 file system"),
        (logged.as_str(), "empty.img", "no ext2/3/4 file system"),
        (unlogged.as_str(), "a.img", "cannot open the log file"),
        ("streams=mine", "a.img", "streams=mine"),
        ("rw", "missing.img", "cannot use"),
    ] {
        for foreground in [false, true] {
            if foreground && options == unlogged {
                // It has stderr.
                continue;
            }
            let target = place.text(target);
            let mut command = common::ccfs();
            command.env("CCFS_LOG_SOCKET", &path).arg("mount");
            if foreground {
                command.arg("-f");
            }
            command.args(["-o", options, &target, &dir]);
            let ran = run(&mut command);
            assert_ne!(ran.code, 0, "{options} {target}");
            assert_eq!(
                ran.err.lines().count(),
                1,
                "{options} {target}: {}",
                ran.err
            );
            assert!(ran.err.contains(word), "{}", ran.err);
            let logged = fs::read_to_string(&log).unwrap_or_default();
            assert_eq!((logged.as_str(), ran.out.as_str()), ("", ""));
        }
    }
    assert_eq!(received(&socket), [""; 0], "the user was told");
}

/// A volume that stops says so once, however many calls fail for it.
#[test]
fn a_volume_that_stops_is_one_line_in_the_log() {
    common::needs_mounts!();
    if run(std::process::Command::new("sh").args(["-c", "command -v xfs_io"])).code != 0 {
        println!("skipped: there is no xfs_io, which shuts a volume down");
        return;
    }
    let place = fresh();
    let socket = system_log(&place);
    let (image, dir) = (place.text("a.img"), place.text("mnt"));
    let mut command = common::ccfs();
    command.env("CCFS_LOG_SOCKET", place.text("log.sock"));
    let ran = run(command.args(["mount", &image, &dir]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    fs::write(place.path("mnt/f"), "x").unwrap();
    let down = run(std::process::Command::new("xfs_io").args(["-x", "-c", "shutdown", &dir]));
    for n in 0..20 {
        let failed = fs::write(place.path(&format!("mnt/g{n}")), "x");
        assert!(failed.is_err(), "{}{}", down.out, down.err);
        assert!(
            fs::File::open(place.path("mnt/f"))
                .unwrap()
                .sync_all()
                .is_err()
        );
    }
    let said = received(&socket);
    let stops = said.iter().filter(|l| l.contains("shut down by request"));
    assert_eq!(stops.count(), 1, "{said:?}");
    assert!(said.iter().any(|l| l.contains("mounted ")), "{said:?}");
    assert!(said.len() <= 3, "{said:?}");
    let ran = common::try_unmount(&dir);
    assert_eq!(
        ran.err.lines().count(),
        usize::from(ran.code != 0),
        "{}",
        ran.err
    );
}
