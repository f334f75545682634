//! Programs do the same when all their system calls are led through the library, and none is made there.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
use ccfs_intercept::{find, plan};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// All calls are looked at, whatever the library makes of them.
const ALL: &str = "CCFS_DIRECT_ALL";
const PLAN: &str = "CCFS_DIRECT_PLAN";
const MOUNTS: &str = "CCFS_DIRECT_MOUNTS";

/// As it was built with this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("the test's own path");
    own.with_file_name("libccfs_direct.so")
}

/// Programs and plans of one test, removed at its end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn compile(&self, source: &str, to: &str, flags: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/programs")
            .join(source);
        let to = self.path(to);
        let mut cc = Command::new("cc");
        cc.arg("-O2")
            .arg("-pthread")
            .arg("-Wall")
            .arg(source)
            .arg("-o")
            .arg(&to)
            .args(flags);
        let done = cc.output().expect("cc");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        to
    }

    /// A library with system calls of its own.
    fn registers(&self) -> PathBuf {
        let how = ["-shared", "-fPIC", "-mavx", "-Wl,--build-id"];
        self.compile("registers.c", "libregisters.so", &how)
    }

    /// The plan of a library.
    fn plan(&self, library: &Path) -> PathBuf {
        let found = find::calls(&std::fs::read(library).expect("read")).expect("a library");
        assert!(!found.sites.is_empty());
        let to = self.path("plan");
        std::fs::write(&to, plan::write(&found.id, &found.sites)).expect("write");
        to
    }

    fn plan_of_libc(&self) -> PathBuf {
        self.plan(&libc())
    }
}

/// The C library of this machine.
fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps.lines().find(|l| l.contains("/libc.so.6"));
    let path = line.and_then(|l| l.split_whitespace().last());
    path.expect("the C library").into()
}

fn led(command: &mut Command, plan: &Path) -> Output {
    let command = command
        .env("LD_PRELOAD", library())
        .env(PLAN, plan)
        .env(ALL, "1");
    command.output().expect("run")
}

/// What the program says, which is the same either way.
fn assert_same(what: &str, make: &dyn Fn() -> Command, plan: &Path) -> String {
    let (plain, led) = (make().output().expect("run"), led(&mut make(), plan));
    let text = |out: &Output| {
        let [stdout, stderr] =
            [&out.stdout, &out.stderr].map(|b| String::from_utf8_lossy(b).into_owned());
        (out.status.code(), stdout, stderr)
    };
    assert_eq!(text(&led), text(&plain), "{what}");
    assert!(!plain.stdout.is_empty(), "{what} says nothing");
    text(&led).1
}

/// From glibc 2.41 on cancellable calls are led where the function is called that makes them.
#[test]
fn calls_of_the_c_library_are_found() {
    let file = std::fs::read(libc()).expect("read");
    let found = find::calls(&file).expect("a library");
    let callers = found.sites.iter().filter(|s| s.kind == plan::CALLER);
    let callers = callers.count();
    let text = "GNU C Library (";
    let at = file.windows(text.len()).position(|w| w == text.as_bytes());
    let said = String::from_utf8_lossy(&file[at.expect("its version")..][..200]).into_owned();
    let version = said
        .split_once("release version 2.")
        .expect("its version")
        .1;
    let version: u32 = version
        .split('.')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let (led, left) = (found.sites.len(), &found.left);
    println!("glibc 2.{version}: {led} places are led, {callers} of them callers; left: {left:?}");
    // They end a thread.
    assert!(led > 300 && left.iter().all(|(_, number)| *number == 60));
    assert_eq!(callers > 0, version >= 41);
}

#[test]
fn a_call_keeps_what_the_kernel_keeps() {
    let place = Place::new();
    let its = place.registers();
    let dir = its
        .parent()
        .expect("a directory")
        .to_str()
        .expect("a plain path")
        .to_owned();
    let program = place.compile(
        "probe.c",
        "probe",
        &[
            &format!("-L{dir}"),
            "-lregisters",
            &format!("-Wl,-rpath,{dir}"),
        ],
    );
    let plan = place.plan(&its);
    let out = led(&mut Command::new(program), &plan);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

#[test]
fn threads_signals_and_children() {
    let place = Place::new();
    let (program, plan) = (
        place.compile("threads.c", "threads", &[]),
        place.plan_of_libc(),
    );
    let text = assert_same("threads", &|| Command::new(&program), &plan);
    assert!(
        text.matches(": right\n").count() >= 17 && !text.contains("wrong"),
        "{text}"
    );
}

/// A thread ends wherever it is cancelled on its way into a call that waits; read(2), which nothing here is about, and open(2), which is looked at.
#[test]
fn a_thread_is_cancelled_at_any_instruction() {
    let place = Place::new();
    let how = ["-fexceptions", "-Wl,-z,now"];
    let (program, plan) = (
        place.compile("cancelled.c", "cancelled", &how),
        place.plan_of_libc(),
    );
    for kind in ["read", "open"] {
        let make = || {
            let mut command = Command::new(&program);
            command.arg(kind).current_dir(place.path(""));
            // No mount, but paths are looked at then.
            command.env(MOUNTS, "9999 /nowhere");
            command
        };
        let (plain, led) = (make().output().expect("run"), led(&mut make(), &plan));
        let said = |out: &Output| {
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success(), "{kind}: {said}");
            let numbers = said.split(|c: char| !c.is_ascii_digit());
            let numbers = numbers.filter_map(|n| n.parse::<u32>().ok());
            let [steps, _, _, not_cleaned_up] = numbers.collect::<Vec<_>>()[..] else {
                panic!("{kind}: {said}");
            };
            (steps, not_cleaned_up)
        };
        let ((plain, none), (led, some)) = (said(&plain), said(&led));
        assert!(led > plain + 20, "{kind} is not led");
        // Before glibc 2.41 it can end where a stub is, of which no table tells.
        assert!(none == 0 && some <= 16, "{kind}: {some} are not cleaned up");
        println!("{kind}: {plain} and {led} instructions, {some} not cleaned up");
    }
}

#[test]
fn shells_and_tools() {
    let place = Place::new();
    let plan = place.plan_of_libc();
    let script = r#"
        set -e; cd "$(mktemp -d)"; trap 'rm -rf "$PWD"' EXIT
        for n in 1 2 3 4 5; do mkdir -p "d$n/e"; echo "$n" >"d$n/e/f"; ln -s "e/f" "d$n/l"; done
        cp -a d1 copy; mv copy moved; ln d2/e/f hard; chmod 600 hard; touch -d 2001-02-03 d3/e/f; truncate -s 1M large
        find . -type f -printf '%p %s %m %n %T@\n' | grep -v 'T@' | sed 's/ [0-9.]*$//' | sort
        tar cf - d? | tar tvf - | awk '{ print $1, $3, $6 }'
        cat d1/e/f d2/l - <<<input | tee out | sort -r | wc -c; diff d1 d2 || true; head -c 100000 /dev/zero | md5sum
        (exec 9>lock; flock 9; echo locked); echo "$(< out)"; trap 'echo signal' USR1; kill -USR1 $$; wait
        rm -r d1 moved; ls -A; stat -c '%s %h' large hard; echo nothing | (read -r a; echo "$a")
    "#;
    let shell = || {
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(script).env("LC_ALL", "C");
        shell
    };
    assert_same("a shell's tools", &shell, &plan);
}

/// A call that the C library makes inside itself is led, too, and what it is answered counts.
#[test]
fn a_program_finds_out_that_its_calls_are_led() {
    let place = Place::new();
    let plan = place.plan_of_libc();
    let asks = || {
        let mut python = Command::new("python3");
        python.args(["-c", "import ctypes; print(ctypes.CDLL(None).syscall(511))"]);
        python
    };
    let without = asks().output().expect("run");
    assert_eq!(without.stdout, b"-1\n");
    let mut quiet = asks();
    let with = quiet.env("LD_PRELOAD", library()).env(PLAN, &plan).output();
    assert_eq!(with.expect("run").stdout, b"1\n");
}

/// Another library than the plan's stays as it is; so does everything where the plan is none.
#[test]
fn a_plan_that_does_not_fit_changes_nothing() {
    let place = Place::new();
    let its = place.registers();
    let plan = place.plan(&its);
    let (torn, missing) = (place.path("torn"), place.path("missing"));
    let whole = std::fs::read(&plan).expect("read");
    std::fs::write(&torn, &whole[..whole.len() / 2]).expect("write");
    for plan in [&plan, &torn, &missing] {
        let out = led(Command::new("echo").arg("as ever"), plan);
        assert_eq!(
            (out.stdout, out.stderr),
            (b"as ever\n".to_vec(), Vec::new())
        );
    }
}
