//! The SQLite extension: acknowledged COMMITs survive `kill -9` of the daemon, in every journal mode, with threads, attached
//! databases and exclusive locking; with synchronous=OFF what survives is a prefix. All of it through the mount, and by direct calls.
#[path = "sqlite/sharing.rs"]
mod sharing;

use ccfs_testkit::kernel::Version;
use ccfs_tests::harness::{Fs, Volume, WorkDir, run, run_ok, sibling};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

fn text(path: &Path) -> &str {
    path.to_str().expect("plain path")
}

/// The extension and the program that commits, compiled.
struct Tools {
    extension: PathBuf,
    program: PathBuf,
    _place: WorkDir,
}

fn tools() -> Option<Tools> {
    if !Path::new("/usr/include/sqlite3ext.h").exists() {
        println!("skipped: sqlite: needs libsqlite3-dev");
        return None;
    }
    let place = WorkDir::new("sqlite-tools");
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let include = format!("-I{}", text(&top.join("crates/libccfs/include")));
    let warnings = ["-O2", "-Wall", "-Wextra", "-Werror", &include, "-o"];
    let extension = place.path().join("ccfs_vfs.so");
    let sources = std::fs::read_dir(top.join("sqlite")).expect("the extension");
    let sources = sources.map(|entry| entry.expect("an entry").path());
    let sources: Vec<PathBuf> = sources
        .filter(|p| p.extension() == Some("c".as_ref()))
        .collect();
    let files: Vec<&str> = sources.iter().map(|p| text(p)).collect();
    let shared = ["-fPIC", "-shared"];
    run_ok(
        "gcc",
        &[&shared, &warnings[..], &[text(&extension)], &files].concat(),
    );
    let program = place.path().join("commits");
    let source = top.join("examples/sqlite-commits.c");
    let files = [text(&program), text(&source), "-lsqlite3", "-lpthread"];
    run_ok("gcc", &[&warnings[..], &files].concat());
    Some(Tools {
        extension,
        program,
        _place: place,
    })
}

/// A library of this C source, to be loaded before others.
fn library(place: &WorkDir, source: &str) -> PathBuf {
    let (file, library) = (place.path().join("first.c"), place.path().join("first.so"));
    std::fs::write(&file, source).expect("write");
    let files = [text(&library), text(&file)];
    run_ok("gcc", &[&["-fPIC", "-shared", "-o"], &files[..]].concat());
    library
}

/// How databases are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Mount,
    Direct,
}

impl Tools {
    /// A program that finds the library of direct calls, or none.
    fn with(&self, way: Way, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(
            "CCFS_LIBRARY",
            match way {
                Way::Direct => sibling("libccfs.so"),
                Way::Mount => PathBuf::from("/no/such/library"),
            },
        );
        command
    }
}

/// Volumes on which databases are used in each way.
fn volumes() -> Vec<(Way, Volume)> {
    let both = [(Way::Mount, "off"), (Way::Direct, "on")];
    let made = both.map(|(way, direct)| Some((way, volume(direct)?)));
    made.into_iter().flatten().collect()
}

/// Whether calls were posted is as it should be: a test of direct calls that makes none proves nothing.
fn check_posted(way: Way, v: &Volume) {
    let posted = v.status()["direct"]["posted"].as_u64().unwrap_or(0);
    // Before it databases that somebody has looked up are used through the mount.
    if way == Way::Direct && Version::running() < Version(6, 18) {
        return;
    }
    assert_eq!(posted > 0, way == Way::Direct, "{way:?}: {posted} posted");
}

fn volume(direct: &str) -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("sqlite") {
        return None;
    }
    let options = format!("commit=600,direct={direct}");
    let mut v = Volume::unformatted(Fs::Ccfs, "sqlite").options(&options);
    v.mkfs(192);
    v.mount();
    Some(v)
}

type Acknowledged = BTreeMap<u64, u64>;

/// Takes acknowledgements in, until there are `enough` or the program has ended.
fn read(lines: &mut Lines<BufReader<ChildStdout>>, seen: &mut Acknowledged, enough: u64) {
    let mut count: u64 = seen.values().sum();
    while count < enough {
        let Some(Ok(line)) = lines.next() else { return };
        let mut words = line
            .split(' ')
            .skip(1)
            .map(|w| w.parse().expect("a number"));
        let (Some(thread), Some(row)) = (words.next(), words.next()) else {
            panic!("not an acknowledgement: {line}");
        };
        assert_eq!(seen.insert(thread, row).unwrap_or(0) + 1, row, "in order");
        count += 1;
    }
}

/// Starts the program, kills the daemon after so many COMMITs and mounts again; gives what was acknowledged.
fn crash(way: Way, v: &mut Volume, program: &mut Command, commits: u64) -> Acknowledged {
    program.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child: Child = program.spawn().expect("start the program");
    v.adopt(child.id());
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut seen = Acknowledged::new();
    read(&mut lines, &mut seen, commits);
    let count: u64 = seen.values().sum();
    assert!(count >= commits, "{program:?} ended after {count} commits");
    check_posted(way, v);
    v.kill9();
    // What it had still acknowledged when the daemon died counts as well. Threads that wait for a lock of the dead mount
    // would wait for long.
    child.kill().expect("kill");
    child.wait().expect("wait");
    read(&mut lines, &mut seen, u64::MAX);
    v.mount();
    seen
}

/// Rows of each thread in a database, through SQLite without the extension. Panics if it is damaged or has gaps.
fn look(db: &Path) -> Acknowledged {
    let sql = "PRAGMA integrity_check; SELECT thread || ' ' || count(*) || ' ' || max(row) FROM t GROUP BY thread;";
    let said = run_ok("sqlite3", &["-bail", text(db), sql]);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("ok"), "integrity_check: {said}");
    lines
        .map(|line| {
            let n: Vec<u64> = line
                .split(' ')
                .map(|w| w.parse().expect("a number"))
                .collect();
            assert_eq!(n[1], n[2], "C1: thread {} has gaps", n[0]);
            (n[0], n[1])
        })
        .collect()
}

/// One way of committing in all journal modes: `--extension`, a crash, and nothing acknowledged is missing.
fn nothing_is_lost(options: &[&str], databases: &[&str]) {
    let Some(tools) = tools() else { return };
    for (way, v) in volumes() {
        nothing_is_lost_by(way, &tools, v, options, databases);
    }
}

fn nothing_is_lost_by(
    way: Way,
    tools: &Tools,
    mut v: Volume,
    options: &[&str],
    databases: &[&str],
) {
    for (number, mode) in ["delete", "truncate", "persist", "wal", "memory"]
        .iter()
        .enumerate()
    {
        // Without a journal on disk a crash within a transaction damages the database, here as everywhere.
        if *mode == "memory" && (options.contains(&"--threads") || databases.len() > 1) {
            continue;
        }
        let dir = v.path(mode);
        std::fs::create_dir(&dir).expect("mkdir");
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("chmod");
        let mut program = tools.with(way, &tools.program);
        program
            .arg("--extension")
            .arg(&tools.extension)
            .args(["--commits", "100000000", "--journal", mode])
            .args(options)
            .arg(&dir);
        let seen = crash(way, &mut v, &mut program, 40 + 13 * number as u64);
        if *mode == "memory" {
            // All that is promised is that what was acknowledged is on the device; the pages after it may be torn apart.
            let out = run(Command::new("sqlite3").args([
                text(&dir.join("one.db")),
                "SELECT max(row) FROM t NOT INDEXED;",
            ]));
            let rows: u64 = out.stdout.trim().parse().unwrap_or(0);
            assert!(rows >= seen[&0], "C3: {mode}: {seen:?}, {}", out.all());
            continue;
        }
        let found: Vec<Acknowledged> = databases.iter().map(|db| look(&dir.join(db))).collect();
        for (thread, acknowledged) in &seen {
            let rows = found[0].get(thread).copied().unwrap_or(0);
            assert!(
                rows >= *acknowledged,
                "C3: {way:?} {mode} {options:?}: thread {thread} was told of {acknowledged} COMMITs, {rows} are there"
            );
        }
        // Attached databases change together, except in WAL mode (as SQLite documents).
        if *mode != "wal" {
            assert!(found.iter().all(|f| *f == found[0]), "{mode}: {found:?}");
        }
    }
    v.finish();
}

#[test]
fn one_connection() {
    nothing_is_lost(&[], &["one.db"]);
}

#[test]
fn a_connection_per_thread() {
    nothing_is_lost(&["--threads", "4"], &["one.db"]);
}

/// Threads in streams of their own share a connection: one begins a transaction, the next one commits it.
#[test]
fn a_connection_of_threads_in_several_streams() {
    nothing_is_lost(&["--threads", "3", "--shared", "--streams"], &["one.db"]);
}

#[test]
fn connections_of_threads_in_several_streams() {
    nothing_is_lost(&["--threads", "3", "--streams"], &["one.db"]);
}

#[test]
fn attached_databases() {
    nothing_is_lost(&["--attach"], &["one.db", "two.db"]);
}

#[test]
fn attached_databases_of_threads_in_several_streams() {
    nothing_is_lost(
        &["--attach", "--threads", "3", "--shared", "--streams"],
        &["one.db", "two.db"],
    );
}

#[test]
fn exclusive_locking() {
    nothing_is_lost(&["--exclusive"], &["one.db"]);
}

/// Within a transaction the process loses the right to the stream in which its databases were opened.
#[test]
fn a_process_that_becomes_another_user() {
    nothing_is_lost(&["--become", "1234"], &["one.db"]);
}

/// The daemon dies between a journal's end and the sync of its directory. SQLite's own VFS takes a directory that it cannot open
/// for one that needs no sync; a COMMIT must not be acknowledged so.
#[test]
fn a_daemon_that_dies_before_a_directory_is_synced() {
    const WAITS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>
int unlink(const char *name) {
    static int journals;
    int (*real)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    int result = real(name);
    char c;
    if (strstr(name, "-journal") != NULL && ++journals == 30 && write(STDOUT_FILENO, "ended\n", 6) == 6)
        while (read(STDIN_FILENO, &c, 1) > 0) {}
    return result;
}
"#;
    let Some(tools) = tools() else { return };
    let place = WorkDir::new("sqlite-waits");
    let library = library(&place, WAITS);
    for (way, mut v) in volumes() {
        let dir = v.path("waits");
        std::fs::create_dir(&dir).expect("mkdir");
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("chmod");
        let mut program = tools.with(way, &tools.program);
        program.env("LD_PRELOAD", &library);
        program.arg("--extension").arg(&tools.extension);
        program.args(["--commits", "100", "--become", "1234"]);
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.arg(&dir).spawn().expect("start the program");
        v.adopt(child.id());
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("a line"));
        let before = lines.by_ref().take_while(|line| line != "ended").count();
        assert!(before > 20, "{way:?}: {before} COMMITs");
        v.kill9();
        drop(child.stdin.take());
        let after: Vec<String> = lines.collect();
        assert_eq!(after, [""; 0], "C3: {way:?}");
        assert_eq!(child.wait().expect("wait").code(), Some(1), "{way:?}");
        v.mount();
        v.finish();
    }
}

/// The tests above can fail: without syncs COMMITs are lost. Even then the database is whole, and what is left is a prefix.
#[test]
fn off_loses_a_suffix() {
    let Some(tools) = tools() else { return };
    for (way, v) in volumes() {
        off_loses_a_suffix_by(way, &tools, v);
    }
}

fn off_loses_a_suffix_by(way: Way, tools: &Tools, mut v: Volume) {
    for mode in ["delete", "truncate", "persist", "wal"] {
        let dir = v.path(mode);
        std::fs::create_dir(&dir).expect("mkdir");
        let mut program = tools.with(way, &tools.program);
        program
            .arg("--extension")
            .arg(&tools.extension)
            .args(["--commits", "100000000", "--synchronous", "off"])
            .args(["--journal", mode])
            .arg(&dir);
        // The first commits get to the device with something else; the interval of commits is far away.
        let seen = crash(way, &mut v, &mut program, 300);
        let survived = match dir.join("one.db").metadata() {
            Ok(meta) if meta.len() > 0 => rows_or_none(&dir.join("one.db")),
            _ => 0,
        };
        assert!(
            survived < seen[&0],
            "{way:?} {mode}: {survived} of {} survived without a sync: this test proves nothing",
            seen[&0]
        );
    }
    v.finish();
}

/// Rows, 0 if the table is not yet there.
fn rows_or_none(db: &Path) -> u64 {
    let tables = run_ok("sqlite3", &[text(db), "SELECT count(*) FROM sqlite_schema"]);
    if tables.trim() == "0" {
        return 0;
    }
    look(db).get(&0).copied().unwrap_or(0)
}

/// Of the syncs of a transaction one is left.
#[test]
fn one_sync_per_commit() {
    let Some(tools) = tools() else { return };
    for (way, v) in volumes() {
        one_sync_per_commit_by(way, &tools, v);
    }
}

fn one_sync_per_commit_by(way: Way, tools: &Tools, v: Volume) {
    let syncs = |extension: bool, mode: &str| {
        let dir = v.path(&format!("{mode}-{extension}"));
        std::fs::create_dir(&dir).expect("mkdir");
        let before = v.status()["counters"]["syncs"].as_u64().expect("a counter");
        let mut program = tools.with(way, &tools.program);
        if extension {
            program.arg("--extension").arg(&tools.extension);
        }
        program
            .args(["--commits", "100", "--journal", mode])
            .arg(&dir);
        let out = run(&mut program);
        assert_eq!(out.code, 0, "{}", out.all());
        v.status()["counters"]["syncs"].as_u64().expect("a counter") - before
    };
    for mode in ["delete", "truncate", "persist"] {
        let (plain, ours) = (syncs(false, mode), syncs(true, mode));
        println!("{way:?} {mode}: {plain} syncs for 100 commits, {ours} with the extension");
        assert!(plain >= 250, "{mode}: {plain} syncs without the extension");
        assert!((100..=110).contains(&ours), "{mode}: {ours} syncs with it");
    }
    v.finish();
}

/// On other file systems nothing changes.
#[test]
fn elsewhere() {
    let Some(tools) = tools() else { return };
    let place = WorkDir::new("sqlite-elsewhere");
    for mode in ["delete", "wal"] {
        let dir = place.path().join(mode);
        std::fs::create_dir(&dir).expect("mkdir");
        let mut program = Command::new(&tools.program);
        program.arg("--extension").arg(&tools.extension);
        program.args(["--commits", "10", "--attach", "--journal", mode]);
        let out = run(program.arg(&dir));
        assert_eq!(out.code, 0, "{}", out.all());
        assert_eq!(look(&dir.join("two.db")), [(0, 10)].into());
    }
}

/// An SQLite that stores to its databases through mappings: the extension says so, and the program can go on without it.
#[test]
fn an_sqlite_that_writes_through_mappings_is_refused() {
    const USED: &str = "#include <string.h>\n\
        int sqlite3_compileoption_used(const char *name) { return strcmp(name, \"MMAP_READWRITE\") == 0; }\n";
    let Some(tools) = tools() else { return };
    let place = WorkDir::new("sqlite-mapped");
    let library = library(&place, USED);
    let mut program = Command::new(&tools.program);
    program.env("LD_PRELOAD", &library);
    program.arg("--extension").arg(&tools.extension);
    let out = run(program.args(["--commits", "1"]).arg(place.path()));
    assert_ne!(out.code, 0, "{}", out.all());
    assert!(out.all().contains("SQLITE_MMAP_READWRITE"), "{}", out.all());
}

/// Connections of one process that come and go, and files that are replaced under them: as with SQLite's own VFS.
#[test]
fn connections_come_and_go() {
    let Some(tools) = tools() else { return };
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/sqlite-connections.py");
    for (way, v) in volumes() {
        let dir = v.path("connections");
        std::fs::create_dir(&dir).expect("mkdir");
        let mut python = tools.with(way, "/usr/bin/python3");
        let out = run(python.arg(&program).arg(&tools.extension).arg(&dir));
        assert_eq!(out.code, 0, "{way:?}: {}", out.all());
        assert_eq!(out.stdout.lines().count(), 10, "{way:?}: {}", out.all());
        check_posted(way, &v);
        v.finish();
    }
}

/// A program that has closed its databases, and goes on, has no session and keeps nobody from unmounting.
#[test]
fn closed_databases_hold_nothing() {
    let Some(tools) = tools() else { return };
    for (way, v) in volumes() {
        let mut program = tools.with(way, "sqlite3");
        program.args(["-cmd", &format!(".load {}", text(&tools.extension))]);
        program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().expect("start sqlite3");
        let db = v.path("closed.db");
        let script = format!(
            ".open {}\nCREATE TABLE t(a); INSERT INTO t VALUES(1);\n.open :memory:\nSELECT 'closed';\n",
            text(&db)
        );
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(script.as_bytes()).expect("write");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let said = lines.next().expect("a line").expect("a line");
        assert_eq!(said, "closed", "{way:?}");
        check_posted(way, &v);
        let end = Instant::now() + Duration::from_secs(120);
        while v.status()["direct"]["sessions"].as_u64().unwrap_or(0) > 0 {
            assert!(Instant::now() < end, "{way:?}: a session is left");
            std::thread::sleep(Duration::from_millis(10));
        }
        v.finish();
        drop(stdin);
        assert!(child.wait().expect("wait").success(), "{way:?}");
    }
}
