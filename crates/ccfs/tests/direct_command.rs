//! `ccfs direct`: programs are started with their calls led to the library; what they do is as ever.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod common;
use ccfs_testkit::json::compare;
use common::{Place, Ran, apart, refused, run, signal, tool};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIBRARY: &str = "libccfs_direct.so";
/// Who runs it, where the test is run by root: root's plans are kept in one place of the machine.
const USER: u32 = 65534;
/// 1 where the calls of a program come to the library: Linux gives this number to no call.
const ARE_LED: &str = "import ctypes; print(ctypes.CDLL(None).syscall(511))";

/// What every user may search.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The program and its library as a build leaves them, and a home.
struct Installed(Place);

impl Installed {
    fn new() -> Installed {
        let new = Installed(Place::new());
        fs::set_permissions(new.0.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let bin = new.0.subdir("bin");
        // Not by this process: a program that another thread starts would have them open for writing.
        tool("cp", &[env!("CARGO_BIN_EXE_ccfs"), &bin]);
        let built = std::env::current_exe().unwrap().with_file_name(LIBRARY);
        tool("cp", &[built.to_str().unwrap(), &bin]);
        for name in ["home", "tmp"] {
            let dir = new.0.subdir(name);
            if is_root() {
                std::os::unix::fs::chown(dir, Some(USER), Some(USER)).unwrap();
            }
        }
        new
    }

    fn library(&self) -> PathBuf {
        self.0.path("bin").join(LIBRARY)
    }

    /// A command line, by an ordinary user who sees no volumes of other tests: they may be stopped on purpose.
    fn user(&self, words: &[&str]) -> Command {
        let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
        let mut command = match is_root() {
            true => apart(&[], &["setpriv", &uid, &gid, "--clear-groups"]),
            false => Command::new("env"),
        };
        command
            .args(words)
            .env("PATH", PATH)
            .env("HOME", self.0.path("home"))
            .env("TMPDIR", self.0.path("tmp"))
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("LD_PRELOAD")
            .current_dir(self.0.path("home"))
            .stdin(Stdio::null());
        command
    }

    fn direct(&self, words: &[&str]) -> Command {
        let program = self.0.text("bin/ccfs");
        self.user(&[&[&program, "direct"], words].concat())
    }

    fn ran(&self, words: &[&str]) -> Ran {
        run(&mut self.direct(words))
    }

    /// What a command that succeeds says.
    fn said(&self, words: &[&str]) -> String {
        let ran = self.ran(words);
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        ran.out
    }

    /// The plan that is kept.
    fn plan(&self) -> PathBuf {
        let dir = self.0.path("home/.cache/ccfs/direct");
        let mut files = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        let plan = files.next().expect("a plan");
        assert_eq!(files.next(), None, "one plan, and nothing else");
        plan
    }
}

#[test]
fn the_command_and_its_children_have_their_calls_led() {
    let here = Installed::new();
    assert_eq!(here.said(&["--", "python3", "-c", ARE_LED]), "1\n");
    let below = format!("python3 -c '{ARE_LED}'; env python3 -c '{ARE_LED}'");
    assert_eq!(here.said(&["--", "sh", "-c", &below]), "1\n1\n");
    let lines = r#"printf '%s\n' "$LD_PRELOAD" "$CCFS_DIRECT_PLAN" "${CCFS_DIRECT_IGNORE_FSYNC-}" "${CCFS_DIRECT_REPORT-}""#;
    let shown = |options: &[&str], before: &str| {
        let words = [options, &["--", "sh", "-c", lines]].concat();
        let ran = run(here.direct(&words).env("LD_PRELOAD", before));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out.lines().map(String::from).collect::<Vec<_>>()
    };
    let library = here.library().display().to_string();
    let plan = here.plan().display().to_string();
    assert_eq!(shown(&[], ""), [&library, &plan, "", ""]);
    let full = shown(&["--ignore-fsync", "--report"], "libdl.so.2");
    let both = format!("{library}:libdl.so.2");
    // Whose sync calls are ignored.
    let user = match is_root() {
        true => USER,
        false => rustix::process::geteuid().as_raw(),
    };
    assert_eq!(full[..3], [both, plan, user.to_string()]);
    assert!(full[3].starts_with("/proc/"), "{full:?}");
    // Once is enough.
    let again = here.0.text("bin/ccfs");
    let nested = here.said(&["--", &again, "direct", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    assert_eq!(nested.trim_end(), library);
}

#[test]
fn exit_codes_are_the_commands() {
    let here = Installed::new();
    let file = here.0.text("home/file");
    fs::write(&file, "no program").unwrap();
    for report in [&[][..], &["--report"]] {
        let code = |words: &[&str]| here.ran(&[report, &["--"], words].concat()).code;
        assert_eq!(code(&["sh", "-c", "exit 7"]), 7);
        assert_eq!(code(&["no-such-program"]), 127);
        assert_eq!(code(&[&file]), 126);
    }
    let killed = ["--", "sh", "-c", "kill -TERM $$"];
    let status = here.direct(&killed).output().unwrap().status;
    assert_eq!(status.signal(), Some(15), "it is the command");
    assert_eq!(
        here.ran(&[&["--report"], &killed[..]].concat()).code,
        128 + 15
    );
    refused("no command", &here.ran(&["--report"]), 2, &["Usage"]);
    let no_report = here.ran(&["--json", "--", "true"]);
    refused("no report", &no_report, 2, &["--report"]);
}

#[test]
fn a_signal_for_the_launcher_is_for_the_command() {
    let here = Installed::new();
    let program = here.0.text("bin/ccfs");
    for (name, code) in [("TERM", 3), ("INT", 4), ("HUP", 5), ("USR1", 6)] {
        let script = "trap 'exit 3' TERM; trap 'exit 4' INT; trap 'exit 5' HUP; trap 'exit 6' USR1
            echo $PPID; while :; do sleep 0.02; done";
        // Whoever runs the tests may ignore some, and a shell does not trap those.
        let words = [&program, "direct", "--report", "--", "sh", "-c", script];
        let mut command = here.user(&[&["env", "--default-signal"], &words[..]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut launcher = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut launcher).unwrap();
        signal(launcher.trim_end().parse().unwrap(), name);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{name}");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(said.contains("made directly"), "{said}");
    }
}

#[test]
fn the_report_has_what_programs_counted() {
    let here = Installed::new();
    let quiet = here.ran(&["--report", "--", "true"]);
    assert!(
        quiet.err.contains("ccfs direct: processes: "),
        "{}",
        quiet.err
    );
    assert_eq!((quiet.code, quiet.out.as_str()), (0, ""));
    // As the library counts, with the addresses of ccfs_intercept::report.
    let counts = "
import mmap, os, struct
file = open(os.environ['CCFS_DIRECT_REPORT'], 'r+b')
words = memoryview(mmap.mmap(file.fileno(), 8192)).cast('Q')
assert struct.pack('<Q', words[0]) == b'ccfscalc' and words[1] == 2
words[2 + 257] += 5; words[2 + 512 + 1] += 2
";
    let file = here.0.text("home/report");
    let option = format!("--report={file}");
    let ran = here.ran(&[&option, "--json", "--", "python3", "-c", counts]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let text = fs::read_to_string(&file).unwrap();
    let report = compare("ccfs direct --report --json", &text);
    assert!(report["made"]["openat"].as_u64() >= Some(5), "{report}");
    assert!(report["left"]["locked"].as_u64() >= Some(2), "{report}");
    let ran = here.ran(&["--report", "--json", "--", "python3", "-c", counts]);
    let at = ran.err.find('{').expect("JSON");
    compare("ccfs direct --report --json", &ran.err[at..]);
    let ran = here.ran(&["--report", "--", "python3", "-c", counts]);
    assert!(ran.err.contains("openat"), "{}", ran.err);
    // What cannot be written is told before the command does anything.
    let lost = here.ran(&["--report=none/such", "--", "touch", "done"]);
    refused("report", &lost, 1, &["none/such"]);
    assert!(!here.0.path("home/done").exists());
}

#[test]
fn the_plan_is_kept_and_only_believed_where_it_is_ours() {
    let here = Installed::new();
    let led = || assert_eq!(here.said(&["--", "python3", "-c", ARE_LED]), "1\n");
    let which = |plan: &Path| {
        let meta = fs::metadata(plan).unwrap();
        (meta.ino(), meta.mtime(), meta.mtime_nsec())
    };
    led();
    let plan = here.plan();
    let (first, right) = (which(&plan), fs::read(&plan).unwrap());
    led();
    assert_eq!(which(&plan), first, "it was made anew");
    let damages: [(&str, &dyn Fn()); 4] = [
        ("cut", &|| tool_on(&plan, &["truncate", "-s", "100"])),
        ("other bytes", &|| {
            tool_on(
                &plan,
                &[
                    "dd",
                    "if=/dev/zero",
                    "conv=notrunc",
                    "count=1",
                    "status=none",
                    "of",
                ],
            )
        }),
        ("others may write", &|| tool_on(&plan, &["chmod", "666"])),
        ("another user's", &|| tool_on(&plan, &["chown", "61003"])),
    ];
    for (what, damage) in damages {
        if what == "another user's" && !is_root() {
            continue;
        }
        let before = which(&plan);
        damage();
        led();
        assert_ne!(which(&plan).0, before.0, "{what}: it was believed");
        assert_eq!(fs::read(&plan).unwrap(), right, "{what}");
        assert_eq!(here.plan(), plan);
    }
    // The directory is somebody else's: so is what is in it.
    let dir = plan.parent().unwrap();
    tool_on(dir, &["chmod", "777"]);
    let before = which(&plan);
    let ran = here.ran(&["--", "sh", "-c", "echo $CCFS_DIRECT_PLAN"]);
    let elsewhere = here.0.path("tmp");
    assert!(
        Path::new(ran.out.trim_end()).starts_with(&elsewhere),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("others can write"), "{}", ran.err);
    assert_eq!(which(&plan), before);
    // It is said once, since it is kept there, too.
    let ran = here.ran(&["--", "sh", "-c", "echo $CCFS_DIRECT_PLAN"]);
    assert!(
        Path::new(ran.out.trim_end()).starts_with(&elsewhere),
        "{}",
        ran.out
    );
    assert!(!ran.err.contains("others can write"), "{}", ran.err);
    tool_on(
        &elsewhere.join(format!("ccfs-direct-{}", user())),
        &["chmod", "777"],
    );
    let nowhere = here.ran(&["--", "true"]);
    refused("nowhere", &nowhere, 1, &["can be kept nowhere"]);
}

fn user() -> u32 {
    match rustix::process::geteuid().as_raw() {
        0 => USER,
        uid => uid,
    }
}

/// Runs a tool on a file; `of` takes it behind a `=`.
fn tool_on(path: &Path, words: &[&str]) {
    let path = path.to_str().unwrap();
    match words {
        [program, rest @ .., "of"] => tool(program, &[rest, &[&format!("of={path}")]].concat()),
        [program, rest @ ..] => tool(program, &[rest, &[path]].concat()),
        [] => String::new(),
    };
}

#[test]
fn the_library_lies_beside_the_program_or_where_it_is_installed() {
    let here = Installed::new();
    fs::create_dir_all(here.0.path("lib/ccfs")).unwrap();
    tool(
        "mv",
        &[here.library().to_str().unwrap(), &here.0.text("lib/ccfs")],
    );
    assert_eq!(here.said(&["--", "python3", "-c", ARE_LED]), "1\n");
    tool("rm", &["-r", &here.0.text("lib")]);
    let missing = here.ran(&["--", "touch", "done"]);
    refused(
        "no library",
        &missing,
        1,
        &[LIBRARY, "cargo build --release -p ccfs-preload"],
    );
    assert!(!here.0.path("home/done").exists());
    // The loader has no way to quote such a path.
    tool("cp", &["-r", &here.0.text("bin"), &here.0.text("my bin")]);
    fs::write(here.0.path("my bin").join(LIBRARY), "").unwrap();
    let spaced = run(&mut here.user(&[&here.0.text("my bin/ccfs"), "direct", "--", "true"]));
    refused("a space", &spaced, 1, &["LD_PRELOAD"]);
}

#[test]
fn without_a_volume_the_command_runs_all_the_same() {
    let here = Installed::new();
    let ran = here.ran(&["--", "sh", "-c", "echo \"[$CCFS_DIRECT_MOUNTS]\"; exit 3"]);
    if !is_root() {
        return println!("skipped: only root can make sure that no volume is mounted");
    }
    assert_eq!((ran.code, ran.out.as_str()), (3, "[]\n"), "{}", ran.err);
    assert_eq!(ran.err.matches("direct=on").count(), 1, "{}", ran.err);
}

#[test]
fn a_hundred_in_a_row() {
    let here = Installed::new();
    let program = here.0.text("bin/ccfs");
    let script =
        "for n in $(seq 100); do \"$1\" direct -- sh -c true 2>/dev/null || exit; done; echo done";
    let ran = run(&mut here.user(&["sh", "-c", script, "sh", &program]));
    assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}", ran.err);
}

/// Volumes that allow direct calls, and one that does not; a mount whose name has a space; a stream.
const ON_VOLUMES: &str = r#"
set -eu
cd "$PLACE"
trap 'cd /; for d in bound off "on it"; do umount -l "$PLACE/$d" 2>/dev/null || :; done' EXIT
bin/ccfs mount -o direct=on on.img "on it"
bin/ccfs direct -- bin/ccfs mount -o direct=off off.img off
# The daemon serves those whose calls are led; its own are not.
pid=$(bin/ccfs status --json off | sed -n 's/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)
if grep -q CCFS_DIRECT_PLAN "/proc/$pid/environ"; then echo "the daemon is led"; fi
mkdir "on it/sub" bound
mount --bind "on it/sub" bound
stat -c '%d %n' "$PLACE/on it" "$PLACE/bound" >expected
bin/ccfs direct -- sh -c 'printf %s "$CCFS_DIRECT_MOUNTS"' | sort -r >found
sort -r expected | diff - found
bin/ccfs direct --report=report --json -- sh -c 'echo text >"on it/f"; mv "on it/f" "on it/g"; cat "on it/g"'
bin/ccfs stream run --direct --on "on it" -- sh -c 'python3 -c "$ARE_LED"; bin/ccfs stream show "on it"; exit 5' || echo "$?"
bin/ccfs stream run --direct --sync --on "on it" -- python3 -c "$ARE_LED"
umount bound
bin/ccfs umount "on it"
bin/ccfs direct -- true 2>&1 | grep -c 'off allows this process no direct calls'
bin/ccfs umount off
"#;

#[test]
fn volumes_that_allow_it_are_named() {
    common::needs_mounts!();
    let here = Installed::new();
    let place = &here.0;
    for name in ["on.img", "off.img"] {
        place.volume(name, "64M");
    }
    for name in ["on it", "off"] {
        place.subdir(name);
    }
    let mut command = apart(&[], &["sh", "-c", ON_VOLUMES]);
    command
        .env("PLACE", place.text("").trim_end_matches('/'))
        .env("ARE_LED", ARE_LED)
        .env("CCFS_LOG_KMSG", "/dev/null")
        .env("PATH", PATH)
        .stdin(Stdio::null());
    let ran = run(&mut command);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    let [text, led, stream, code, again, warned] = lines[..] else {
        panic!("{}{}", ran.out, ran.err);
    };
    assert_eq!(
        [text, led, code, again, warned],
        ["text", "1", "5", "1", "1"]
    );
    assert!(!stream.contains("default"), "{stream}");
    let report = fs::read_to_string(place.path("report")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["mounts"].as_array().unwrap().len(), 2, "{report}");
    for image in ["on.img", "off.img"] {
        tool("e2fsck", &["-fn", &place.text(image)]);
    }
}
