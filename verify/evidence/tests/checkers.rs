//! Each shipped checker, through `ccfs crash run`: it is content with a careful program, and finds the planted bug of a careless one.
use ccfs_testkit::needs_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs;
use ccfs_testkit::run::run;
use serde_json::Value;

/// A checker with two programs that do the same, one of them with a mistake.
struct Case {
    checker: &'static str,
    setup: &'static str,
    careful: &'static str,
    careless: &'static str,
    /// What the checker says of the mistake, of which one is enough.
    found: &'static [&'static str],
    /// Whether the mistake is about order alone, so that ccfs makes it none.
    order: bool,
}

/// Somebody else syncs his file: on ext4 that commits names and sizes of all, and no data.
const OTHER: &str = "echo x >other; sync other";

/// Marks, syncs of a file with its directory, and keys by [`kv.py`].
const SHELL: &str = r#"set -e
mark() { "$CCFS" crash mark "$@"; }
kv() { python3 "$KV" "$@"; }
save() { cat >"$1.tmp"; sync "$1.tmp"; mv "$1.tmp" "$1"; sync "$(dirname "$1")"; }
"#;

fn judge(place: &Place, case: &Case, fs: &str, work: &str) -> Value {
    let kv = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kv.py");
    let work = format!("{SHELL}{work}");
    let setup = format!("{SHELL}{}", case.setup);
    let words = ["crash", "run", "--fs", fs, "--checker", case.checker];
    // Whoever commits is in the program: the file system's own times are not waited for.
    let more = [
        "--linger", "0", "--images", "80", "--size", "256M", "--json",
    ];
    let ran = run(ccfs()
        .env("TMPDIR", place.path("."))
        .env("KV", kv)
        .args(words)
        .args(more)
        .args(["--setup", &setup, "-o", &place.text("out")])
        .args(["--", "sh", "-c", &work]));
    let value: Value = serde_json::from_str(&ran.out)
        .unwrap_or_else(|e| panic!("{}: {e}: {}{}", case.checker, ran.out, ran.err));
    let verdict = value["systems"][0]["verdict"].as_str().unwrap();
    let code = match verdict {
        "consistent" => 0,
        "inconsistent" => 4,
        _ => 1,
    };
    assert_eq!(ran.code, code, "{value:#}");
    value["systems"][0].clone()
}

fn content(place: &Place, case: &Case, fs: &str, work: &str) {
    let judged = judge(place, case, fs, work);
    assert_eq!(judged["verdict"], "consistent", "{fs}: {judged:#}");
    let images: u64 = judged["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind["total"].as_u64().unwrap())
        .sum();
    assert!(images >= 3, "{fs}: {judged:#}");
    println!("{} on {fs}: {images} images", case.checker);
}

fn try_case(case: &Case) {
    needs_mounts!();
    let place = Place::new();
    content(&place, case, "ext4", case.careful);
    let careless = format!("{}\n{OTHER}", case.careless);
    let judged = judge(&place, case, "ext4", &careless);
    assert_eq!(judged["verdict"], "inconsistent", "{judged:#}");
    let failures = judged["failures"].as_array().unwrap();
    let said: Vec<&str> = failures
        .iter()
        .map(|f| f["failure"].as_str().unwrap())
        .collect();
    let told = |text: &&str| said.iter().any(|line| line.contains(*text));
    assert!(case.found.iter().any(told), "{said:#?}");
    assert_eq!(judged["hint"], Value::Null, "{judged:#}");
    println!("{}: {said:#?}", case.checker);
    if case.order {
        content(&place, case, "ccfs", &careless);
    }
}

#[test]
fn sqlite() {
    try_case(&Case {
        checker: "sqlite:app.db",
        setup: "sqlite3 app.db 'CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT); CREATE INDEX i ON t(v);
            WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 400)
            INSERT INTO t SELECT x, hex(randomblob(40)) FROM n;'",
        careful: "for i in 401 402 403; do
            sqlite3 app.db \"PRAGMA synchronous=EXTRA; INSERT INTO t VALUES($i, 'new'); UPDATE t SET v = hex(randomblob(40)) WHERE id % 7 = 0;\"
            mark \"sql SELECT count(*) >= $i FROM t\"
        done",
        careless: "sqlite3 app.db \"PRAGMA synchronous=OFF; UPDATE t SET v = hex(randomblob(60));
            DELETE FROM t WHERE id % 3 = 0;\"",
        found: &["error: app.db"],
        order: true,
    });
}

#[test]
fn git() {
    let commit = "export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
        export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null\n";
    let setup =
        format!("{commit} git init -q repo; cd repo; echo 0 >f; git add f; git commit -q -m 0");
    let careful = format!(
        "{commit} cd repo; for i in 1 2 3; do echo $i >f; git -c core.fsync=all commit -q -a -m $i
        sync -f .; mark \"commit $(git rev-parse HEAD)\"; done"
    );
    let careless = format!(
        "{commit} cd repo; for i in 1 2 3; do echo $i >f; git -c core.fsync=none commit -q -a -m $i; done"
    );
    try_case(&Case {
        checker: "git:repo",
        setup: setup.leak(),
        careful: careful.leak(),
        careless: careless.leak(),
        found: &["empty", "corrupt", "git fsck"],
        order: true,
    });
}

/// Restores a database from a copy, as an installation or a script does.
fn database(checker: &'static str, kind: &str, found: &'static [&'static str]) {
    let setup = format!("kv {kind} saved 0 40; rm -f saved/LOCK");
    let careful = format!(
        "cp -r saved db.new; sync -f .; mv db.new db; sync .; mark 'key k3'; kv {kind} db 40 4"
    );
    try_case(&Case {
        checker,
        setup: setup.leak(),
        careful: careful.leak(),
        careless: "cp -r saved db.new; mv db.new db",
        found,
        order: true,
    });
}

#[test]
fn leveldb() {
    database("leveldb:db", "leveldb", &["error: db cannot be opened"]);
}

#[test]
fn rocksdb() {
    database("rocksdb:db", "rocksdb", &["error: db cannot be opened"]);
}

#[test]
fn lmdb() {
    try_case(&Case {
        checker: "lmdb:db",
        setup: "kv lmdb db 0 40",
        careful: "kv lmdb db 40 4",
        careless: "kv lmdb db 40 400 nosync",
        found: &["Bus error", "Aborted", "error: db cannot be read"],
        order: true,
    });
}

/// The head of a record is written last, and what is behind it is there before.
#[test]
fn log() {
    try_case(&Case {
        checker: "log:log",
        setup: "echo first >log",
        careful: "for i in 1 2 3; do echo \"record number $i\" >>log; sync log .; mark \"record record number $i\"; done",
        careless: "printf 'body\\n' | dd of=log bs=1 seek=16 conv=notrunc 2>/dev/null; sync log
            printf 'some head ' | dd of=log bs=1 seek=6 conv=notrunc 2>/dev/null",
        found: &["record 2 is not what was written"],
        order: false,
    });
}

#[test]
fn replaced() {
    try_case(&Case {
        checker: "replaced:config",
        setup: "seq 3000 >config",
        careful: "for i in 1 2 3; do seq $i 4000 | save config; mark --file config; done",
        careless: "seq 4000 | dd of=config conv=notrunc 2>/dev/null",
        found: &["config is none of its 2 versions: it has"],
        order: false,
    });
}

#[test]
fn queue() {
    try_case(&Case {
        checker: "queue:spool",
        setup: "mkdir spool; for i in 1 2 3; do seq $i 900 >spool/$i; done",
        careful: "for i in 4 5 6; do
            seq $i 900 | save spool/$i; mark \"in $i\"
            rm spool/$((i - 3)); sync spool; mark \"out $((i - 3))\"
        done",
        careless: "for i in 4 5 6; do seq $i 900 >spool/.$i; mv spool/.$i spool/$i; done",
        found: &["is not what was put in: it is empty"],
        order: true,
    });
}

/// Every checker has its planted bug.
#[test]
fn none_is_left_out() {
    let text = include_str!("checkers.rs");
    for kind in ccfs_evidence::checkers::KINDS {
        let test = format!("fn {}()", kind.name);
        assert!(text.contains(&test), "{} has no test", kind.name);
    }
}
