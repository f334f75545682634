//! What a mount gets from its surroundings: the limits of the shell, and files that options name.
mod common;
use ccfs_testkit::mounts::apart;
use common::{
    Place, ccfs_with, daemon, is_mounted, run, signal, tool, unmount, wait_for, wait_for_end,
};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// `ulimit` of the shell that mounts: lifted where that is allowed, and else named at once, not when the volume meets it.
#[test]
fn limits_of_the_shell_do_not_stop_the_volume() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let program = env!("CARGO_BIN_EXE_ccfs");
    let under = |limit: &str, what: &[&str]| {
        let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, program]).args(what);
        run(shell.stdin(Stdio::null()))
    };
    let may = |limit: &str, none: &str| {
        let script = format!("ulimit {limit} && ulimit {none}");
        run(Command::new("sh").args(["-c", &script])).code == 0
    };
    let cases = [
        ("-f 64", "-f unlimited", "ulimit -f unlimited"),
        ("-n 20", "-n 100", "ulimit -n 64"),
        ("-t 10", "-t unlimited", "ulimit -t unlimited"),
        ("-v 36000", "-v 50000", "ulimit -v unlimited"),
        ("-v 300000", "-v 400000", "smaller dirty="),
    ];
    for (limit, none, help) in cases {
        let ran = under(limit, &["mount", &image, &dir]);
        if !may(limit, none) {
            assert_eq!(ran.code, 2, "{limit}: {}", ran.err);
            assert!(ran.err.contains(help), "{limit}: {}", ran.err);
            assert!(!is_mounted(&dir), "{limit}");
            continue;
        }
        assert_eq!(ran.code, 0, "{limit}: {}", ran.err);
        assert!(!ran.err.contains("plain FUSE"), "{limit}: {}", ran.err);
        let mut file = fs::File::create(place.path("mnt/file")).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        unmount(&dir);
        tool("e2fsck", &["-fn", &image]);
        let listed = tool("debugfs", &["-R", "ls -l", &image]);
        assert!(listed.contains("1048576"), "{limit}: {listed}");
    }
    // Soft limits are lifted by anybody, and one that is large enough is none.
    for limit in ["-S -f 64", "-S -n 20", "-S -v 300000", "-f 80000", "-n 64"] {
        let ran = under(limit, &["mount", &image, &dir]);
        assert_eq!(ran.code, 0, "{limit}: {}", ran.err);
        assert!(!ran.err.contains("plain FUSE"), "{limit}: {}", ran.err);
        let name = place.path("mnt").join(limit);
        fs::File::create(name).and_then(|f| f.sync_all()).unwrap();
        unmount(&dir);
    }
    // Who only reads writes no file.
    assert_eq!(under("-f 64", &["mount", "-o", "ro", &image, &dir]).code, 0);
    unmount(&dir);
}

/// What is no file cannot be the log or the rules, and is not waited for.
#[test]
fn pipes_are_no_files_of_options() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    tool("mkfifo", &[&place.text("fifo")]);
    for path in [&place.text("fifo"), "/dev/stdout"] {
        for option in ["log", "rules"] {
            if (option, path) == ("rules", "/dev/stdout") {
                continue;
            }
            let list = format!("{option}={path}");
            let mut mount = common::ccfs();
            let mut child = mount
                .args(["mount", "-o", &list, &image, &dir])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            assert_eq!(wait_for(&mut child).code(), Some(1), "{list}");
            let said = child.wait_with_output().unwrap().stderr;
            let said = String::from_utf8_lossy(&said);
            assert!(said.contains("no regular file"), "{list}: {said}");
            assert!(!is_mounted(&dir), "{list}");
        }
    }
    let ran = ccfs_with(&["mount", "-o", "log=/dev/null", &image, &dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    unmount(&dir);
}

/// Who starts a mount may have blocked signals, and a mask is inherited: the daemon takes those that end it all the same.
#[test]
fn a_daemon_takes_signals_that_were_blocked() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let block = "use POSIX; sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGTERM, SIGINT, SIGHUP)); exec @ARGV";
    for name in ["TERM", "INT", "HUP"] {
        let program = env!("CARGO_BIN_EXE_ccfs");
        let ran = run(Command::new("perl").args(["-e", block, program, "mount", &image, &dir]));
        assert_eq!(ran.code, 0, "{}", ran.err);
        let pid = daemon(&dir);
        signal(pid, name);
        wait_for_end(pid);
        assert!(!is_mounted(&dir), "{name}");
        tool("e2fsck", &["-fn", &image]);
    }
}

/// A daemon that took others for its callers would put their changes into wrong streams and groups.
#[test]
fn a_proc_of_another_namespace_is_refused() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    let program = env!("CARGO_BIN_EXE_ccfs");
    let within = |more: &[&str]| {
        let options = [&["-p", "-f"], more].concat();
        run(&mut apart(&options, &[program, "mount", &image, &dir]))
    };
    let ran = within(&[]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("mount -t proc proc /proc"), "{}", ran.err);
    assert_eq!(within(&["--mount-proc"]).code, 0);
}
