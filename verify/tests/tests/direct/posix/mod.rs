//! The same calls in several ways, with the same answers and the same tree in the end: by system calls on the kernel's ext4 and through the
//! mount, and by a session, in directories that the kernel knows, that it does not know, and that it gets to know before or meanwhile.
mod cases;
mod ways;

use super::actors::{Call, Plain};
use super::volume;
use ccfs_client::direct::Session;
use ccfs_testkit::mounts::apart;
use ccfs_tests::harness::{Compare, Fs, Tree, Volume, ccfs_program, run};
use ccfs_tests::sys;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use ways::{ALL, BASE, Compared, Kind, Step, Way};

/// fusermount3 wants one who has a name.
const NOBODY: u32 = 65_534;
/// Longer than a tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(11);
/// Set for the program that makes the calls: `KIND:DIRECTORY`.
const PROGRAM: &str = "CCFS_DIRECT_PROGRAM";

/// A directory with both file systems: `plain` and `mnt`.
struct Place(PathBuf);

impl Place {
    fn plain(&self) -> PathBuf {
        self.0.join("plain")
    }
    fn mnt(&self) -> PathBuf {
        self.0.join("mnt")
    }
}

/// The program: makes the calls of its kind, and fails where a way gives another answer than ext4.
#[test]
fn program() {
    let set = std::env::var(PROGRAM).unwrap_or_default();
    let Some((kind, dir)) = set.split_once(':') else {
        return;
    };
    let place = Place(dir.into());
    let session = Session::begin(File::open(place.mnt()).expect("open the mount"));
    let session = session.expect("begin");
    if kind == "small" {
        let why = session.why_not().expect("a session in so little memory");
        assert_eq!(why.kind(), std::io::ErrorKind::Unsupported);
        return println!("@P {kind}: no session");
    }
    assert!(session.is_direct(), "no session: {:?}", session.why_not());
    let cases = match kind {
        "limited" => cases::LIMITED.to_vec(),
        "root" => [cases::CASES, cases::OF_ROOT, cases::CLOSED].concat(),
        _ => [cases::CASES, cases::CLOSED].concat(),
    };
    let mut all = Run {
        place,
        session,
        failures: Vec::new(),
        calls: 0,
    };
    for (name, text) in cases {
        let lines = lines(text);
        let want = all.step_by_step(name, &lines, &ALL);
        for at in 0..=lines.len() {
            let before = all.failures.len();
            all.looked_at_once(name, &lines, &want, at);
            // The same mistake shows again, probably.
            if all.failures.len() != before {
                break;
            }
        }
    }
    for (name, text) in cases::ACCESSED {
        all.step_by_step(name, &lines(text), &[Kind::Ext4, Kind::Held]);
    }
    if kind == "user" {
        for (name, _, text) in cases::PREPARED {
            all.step_by_step(name, &lines(text), &[Kind::Ext4, Kind::Mount, Kind::Known]);
        }
    }
    println!("@P {kind}: {} calls", all.calls);
    let failures = all.failures;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn lines(text: &str) -> Vec<&str> {
    text.split(';').map(str::trim).collect()
}

struct Run {
    place: Place,
    session: Session,
    failures: Vec<String>,
    calls: usize,
}

impl Run {
    /// Each call in all these ways, and what it has changed. Returns what ext4 said.
    fn step_by_step(&mut self, name: &str, lines: &[&str], kinds: &[Kind]) -> Vec<Step> {
        let place = |kind: Kind| match kind {
            Kind::Ext4 => name.to_string(),
            other => format!("{name}.{other:?}"),
        };
        let new = |kind: &Kind| Way::new(*kind, &self.place, &self.session, &place(*kind));
        let mut ways: Vec<Way> = kinds.iter().map(new).collect();
        let mut said = Vec::new();
        let mut wrong = BTreeSet::new();
        for (i, line) in lines.iter().enumerate() {
            std::thread::sleep(TICK);
            let mut steps = ways.iter_mut().map(|way| (way.kind, way.step(line)));
            let (_, want) = steps.next().expect("ext4");
            for (kind, got) in steps {
                self.calls += 1;
                // What comes after a difference tells nothing.
                if got != want && wrong.insert(kind) {
                    let what = differences(&got, &want);
                    let at = format!("{name}, call {i} ({line}), {kind:?}");
                    self.failures.push(format!("{at}: {what}"));
                }
            }
            said.push(want);
        }
        said
    }

    /// A session makes the calls; nobody looks but before the call `at`: at the directory, or at all that is in it, in turns.
    fn looked_at_once(&mut self, name: &str, lines: &[&str], want: &[Step], at: usize) {
        let home = format!("{name}.{at}");
        let mut way = Way::new(Kind::Held, &self.place, &self.session, &home);
        for (i, line) in lines.iter().enumerate() {
            match i == at {
                true if at.is_multiple_of(2) => drop(way.look_at_all()),
                true => way.look_at_base(),
                false => {}
            }
            self.calls += 1;
            let (got, want) = (way.call(line), &want[i].answer);
            if got != *want {
                let at = format!("{home}, call {i} ({line})");
                self.failures.push(format!("{at}: {got}, ext4: {want}"));
                return;
            }
        }
        let (got, last) = (way.look_at_all(), want.last().expect("a call"));
        // When it was changed is no matter here.
        let paths = |seen: &Compared| {
            let of = |(path, (stat, _)): (&String, &(String, _))| (path.clone(), stat.clone());
            seen.iter().map(of).collect::<BTreeMap<_, _>>()
        };
        if paths(&got) != paths(&last.seen) {
            self.failures.push(format!("{home}: {got:?} is left"));
        }
    }
}

fn differences(got: &Step, want: &Step) -> String {
    let mut out = format!("{} (ext4: {})", got.answer, want.answer);
    let paths: BTreeSet<_> = got.seen.keys().chain(want.seen.keys()).collect();
    for path in paths {
        let (got, want) = (got.seen.get(path), want.seen.get(path));
        if got != want {
            out += &format!("; {path}: {got:?} (ext4: {want:?})");
        }
    }
    out
}

/// Both file systems, and a directory where a program finds them.
struct Both {
    ccfs: Volume,
    ext4: Volume,
    place: Place,
}

impl Both {
    fn new(test: &str) -> Option<Both> {
        if !Fs::Ext4.ready(test) {
            return None;
        }
        let ccfs = volume(test, 256, "")?;
        let ext4 = Volume::new(Fs::Ext4, "direct", 64);
        let place = Place(ccfs.outside("place"));
        std::fs::create_dir(&place.0).expect("place");
        for v in [&ccfs, &ext4] {
            let open = Permissions::from_mode(0o755);
            std::fs::set_permissions(v.outside(""), open).expect("chmod");
        }
        symlink(ext4.mnt(), place.plain()).expect("symlink");
        Some(Both { ccfs, ext4, place })
    }

    /// Runs the program behind a command: `KIND` and how it comes to its user and limits.
    fn run(&self, kind: &str, command: &mut Command) {
        let start = std::time::Instant::now();
        command.env(PROGRAM, format!("{kind}:{}", self.place.0.display()));
        let out = run(command);
        assert_eq!(out.code, 0, "{}\n{}", out.all(), self.ccfs.daemon_log());
        let told = out.stdout.lines().filter_map(|l| l.split_once("@P "));
        for (_, line) in told {
            println!("{line} in {:.1} s", start.elapsed().as_secs_f64());
        }
        assert!(out.stdout.contains("@P "), "{}", out.all());
    }

    /// Contents, attributes and access lists of everything are as on ext4, and still so after a remount.
    fn finish(self) {
        let Both { ccfs, ext4, .. } = self;
        let mut compared = 0;
        for home in std::fs::read_dir(ccfs.mnt()).expect("list") {
            let home = home.expect("list").file_name();
            let home = home.to_str().expect("a plain name");
            let Some((case, _)) = home.split_once('.').filter(|_| !home.starts_with('.')) else {
                continue;
            };
            let got = Tree::read(&ccfs.path(home).join(BASE));
            let want = Tree::read(&ext4.path(case).join(BASE));
            let differences = got.differences(&want, Compare::same_work());
            assert!(
                differences.is_empty(),
                "{home}:\n{}",
                differences.join("\n")
            );
            compared += 1;
        }
        assert!(compared > 40, "{compared} trees prove nothing");
        println!("{compared} trees are as on ext4");
        ccfs.finish();
        ext4.finish();
    }
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program")
}

const ONLY: [&str; 3] = ["posix::program", "--exact", "--nocapture"];

#[test]
fn as_root() {
    let Some(both) = Both::new("direct posix::as_root") else {
        return;
    };
    symlink(both.ccfs.mnt(), both.place.mnt()).expect("symlink");
    let script = "umask 022; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(this_program()).args(ONLY);
    both.run("root", &mut command);
    both.finish();
}

/// A program that may make no large files, and gives nobody else any rights.
#[test]
fn with_limits() {
    let Some(both) = Both::new("direct posix::with_limits") else {
        return;
    };
    symlink(both.ccfs.mnt(), both.place.mnt()).expect("symlink");
    // Where there is not even room for a session's memory nobody may be killed by the signal of it.
    let small = "exec prlimit --fsize=32768 -- \"$0\" \"$@\"";
    let script = "umask 077; trap '' XFSZ; exec prlimit --fsize=8388608 -- \"$0\" \"$@\"";
    for (kind, script) in [("small", small), ("limited", script)] {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(this_program()).args(ONLY);
        both.run(kind, &mut command);
    }
    both.finish();
}

/// An ordinary user, who mounts the volume for himself.
#[test]
fn as_a_user() {
    let Some(mut both) = Both::new("direct posix::as_a_user") else {
        return;
    };
    if !is_setuid(Path::new("/usr/bin/fusermount3")) {
        println!("skipped: there is no setuid fusermount3");
        return;
    }
    sys::umask(0o022);
    for (name, text, _) in cases::PREPARED {
        prepare(&both.ext4.path(name), text);
        for kind in [Kind::Mount, Kind::Known] {
            prepare(&both.ccfs.path(&format!("{name}.{kind:?}")), text);
        }
    }
    for root in [both.ccfs.mnt(), both.ext4.mnt()] {
        chown(root, Some(NOBODY), Some(NOBODY)).expect("chown");
    }
    both.ccfs.umount();
    chown(both.ccfs.image(), Some(NOBODY), Some(NOBODY)).expect("chown");
    let mnt = both.place.mnt();
    std::fs::create_dir(&mnt).expect("mount point");
    chown(&mnt, Some(NOBODY), Some(NOBODY)).expect("chown");
    // Where they are built nobody else may go, perhaps.
    for (from, name) in [
        (Path::new(ccfs_program()), "ccfs"),
        (&this_program(), "program"),
    ] {
        std::fs::copy(from, both.place.0.join(name)).expect("copy a program");
    }
    // In a mount namespace, where everybody may open /dev/fuse.
    let script = "cd \"$0\"; mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse
        exec setpriv --reuid 65534 --regid 65534 --groups 60100 --inh-caps=-all -- sh -euc '
            umask 022; ./ccfs mount -o direct=on \"$0\" mnt; code=0
            ./program \"$@\" || code=$?
            ./ccfs umount mnt; exit $code' \"$@\"";
    let mut command = apart(&[], &["sh", "-euc", script]);
    command.arg(&both.place.0).arg(both.ccfs.image()).args(ONLY);
    command.env("KEEP", both.ext4.mnt());
    both.run("user", &mut command);
    both.ccfs.mount();
    both.finish();
}

fn is_setuid(program: &Path) -> bool {
    sys::stat(program).is_ok_and(|s| s.uid == 0 && s.mode & libc::S_ISUID != 0)
}

/// What others have made before the calls of a case.
fn prepare(home: &Path, text: &str) {
    let base = home.join(BASE);
    for dir in [home, &base] {
        sys::mkdir(dir, 0o777).expect("mkdir");
        sys::chmod(dir, 0o777).expect("chmod");
    }
    let mut root = Plain::new(&base);
    for line in lines(text) {
        let done = root.call(&Call::parse(line));
        assert!(done.is_ok(), "{line}: {done:?}");
    }
}
