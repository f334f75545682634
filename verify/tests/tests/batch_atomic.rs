//! SQLite without any journal: built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE it uses F2FS's calls for atomic writes, which ccfs has.
use ccfs_client as client;
use ccfs_tests::cost::{Cost, HEADINGS, On};
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::sys;
use rusqlite::Connection;
use std::fs::File;
use std::path::Path;

fn volume(test: &str, options: &str) -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(test) {
        return None;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, test).options(&format!("commit=600{options}"));
    v.mkfs(192);
    v.mount();
    Some(v)
}

/// A database with a table; durable.
fn open(path: &Path) -> Connection {
    let db = Connection::open(path).expect("open");
    let mode: String = db
        .query_row("PRAGMA journal_mode=DELETE", [], |r| r.get(0))
        .expect("journal mode");
    assert_eq!(mode, "delete");
    db.execute_batch(
        "PRAGMA synchronous=FULL; CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, fill BLOB)",
    )
    .expect("table");
    db
}

fn insert(db: &Connection, n: u64, bytes: usize) -> rusqlite::Result<usize> {
    db.execute("INSERT INTO t VALUES(?1, ?2)", (n, vec![n as u8; bytes]))
}

/// All numbers, after SQLite has found the database whole.
fn rows(db: &Connection) -> Vec<u64> {
    let whole: String = db
        .query_row("PRAGMA integrity_check", [], |r| r.get(0))
        .expect("check");
    assert_eq!(whole, "ok");
    let mut query = db.prepare("SELECT n FROM t ORDER BY n").expect("prepare");
    let rows = query.query_map([], |r| r.get(0)).expect("query");
    rows.collect::<Result<_, _>>().expect("rows")
}

fn counter(v: &Volume, name: &str) -> u64 {
    let status = v.status();
    status["counters"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {status}"))
}

#[test]
fn it_is_built_for_it() {
    let db = Connection::open_in_memory().expect("open");
    let used: bool = db
        .query_row(
            "SELECT sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')",
            [],
            |r| r.get(0),
        )
        .expect("an option");
    assert!(used, ".cargo/config.toml says so");
}

/// No journal at any time, one flush a transaction; acknowledged COMMITs survive `kill -9`, rollbacks leave nothing.
#[test]
fn no_journal() {
    let Some(mut v) = volume("batch-atomic", "") else {
        return;
    };
    let path = v.path("rows.db");
    let journal = v.path("rows.db-journal");
    let db = open(&path);
    insert(&db, 1, 100).expect("COMMIT");
    assert!(!journal.exists());
    let (names, flushes) = (made_names(&v), counter(&v, "device_flushes"));
    for n in 2..=60 {
        insert(&db, n, 3000).expect("COMMIT");
        assert!(!journal.exists(), "no journal");
    }
    assert_eq!(made_names(&v), names, "no journal was ever made");
    let flushes = counter(&v, "device_flushes") - flushes;
    println!("59 transactions, {flushes} flushes");
    assert!(
        flushes <= 2 * 59,
        "{flushes} flushes of the device for 59 transactions"
    );
    db.execute_batch("BEGIN; DELETE FROM t WHERE n % 2 = 0; ROLLBACK")
        .expect("rollback");
    // One that was never committed.
    db.execute_batch("BEGIN; INSERT INTO t VALUES(1000, 'x')")
        .expect("insert");
    v.kill9();
    drop(db);
    v.mount();
    let db = Connection::open(&path).expect("open");
    assert_eq!(rows(&db), (1..=60).collect::<Vec<_>>());
    drop(db);
    v.finish();
}

/// Requests that made names so far.
fn made_names(v: &Volume) -> u64 {
    v.status()["requests"]["MKNOD"].as_u64().unwrap_or(0)
}

/// A transaction that is larger than a group may be goes SQLite's old way.
#[test]
fn too_large_for_a_group() {
    let Some(mut v) = volume("batch-atomic-large", ",dirty=2M") else {
        return;
    };
    let db = open(&v.path("rows.db"));
    insert(&db, 1, 100).expect("COMMIT");
    db.execute_batch("BEGIN").expect("begin");
    for n in 2..100 {
        insert(&db, n, 100_000).expect("insert");
    }
    db.execute_batch("COMMIT").expect("COMMIT");
    insert(&db, 100, 100).expect("COMMIT");
    v.kill9();
    drop(db);
    v.mount();
    let db = Connection::open(v.path("rows.db")).expect("open");
    assert_eq!(rows(&db), (1..=100).collect::<Vec<_>>());
    drop(db);
    v.finish();
}

/// One transaction over two databases: a group around two COMMITs. An abort takes both back, and both connections see it.
#[test]
fn two_databases() {
    let Some(mut v) = volume("batch-atomic-two", "") else {
        return;
    };
    let at = File::open(v.mnt()).expect("open");
    std::thread::scope(|s| {
        let transfer = s.spawn(|| {
            let (a, b) = (open(&v.path("a.db")), open(&v.path("b.db")));
            let both = |n: u64| {
                insert(&a, n, 500).expect("COMMIT");
                insert(&b, n, 500).expect("COMMIT");
            };
            for n in 1..=20 {
                client::group_begin(&at, None).expect("begin");
                both(n);
                client::group_commit(&at, 0, false).expect("commit");
            }
            client::group_begin(&at, None).expect("begin");
            both(21);
            client::group_abort(&at, 0).expect("abort");
            assert_eq!((rows(&a).len(), rows(&b).len()), (20, 20));
            both(21);
            client::group_begin(&at, None).expect("begin");
            both(22);
            // The daemon dies with this one open.
        });
        transfer.join().expect("transfers");
    });
    drop(at);
    v.kill9();
    v.mount();
    for name in ["a.db", "b.db"] {
        let db = Connection::open(v.path(name)).expect("open");
        assert_eq!(rows(&db), (1..=21).collect::<Vec<_>>(), "C11: {name}");
    }
    v.finish();
}

const TRANSACTIONS: u64 = 300;

fn cost(
    way: &'static str,
    on: impl Into<On>,
    open: impl Fn(&Volume) -> Vec<Connection>,
    commit: impl Fn(&Volume, &[Connection], u64),
) -> Cost {
    let prepare = |v: &Volume| {
        let dbs = open(v);
        commit(v, &dbs, 0);
        dbs
    };
    Cost::of(way, on, TRANSACTIONS, prepare, |v, dbs| {
        (1..=TRANSACTIONS).for_each(|n| commit(v, dbs, n));
    })
}

fn one_database(v: &Volume) -> Vec<Connection> {
    vec![open(&v.path("rows.db"))]
}

fn in_wal_mode(v: &Volume) -> Vec<Connection> {
    let db = one_database(v);
    let set = db[0].query_row("PRAGMA journal_mode=WAL", [], |r| r.get::<_, String>(0));
    assert_eq!(set.as_deref(), Ok("wal"));
    db
}

/// As SQLite does it: attached databases, with a super-journal.
fn attached(v: &Volume) -> Vec<Connection> {
    let (a, b) = (v.path("a.db"), v.path("b.db"));
    drop(open(&b));
    let db = open(&a);
    let b = b.to_str().expect("plain path");
    db.execute("ATTACH ?1 AS b", [b]).expect("attach");
    vec![db]
}

fn two(v: &Volume) -> Vec<Connection> {
    vec![open(&v.path("a.db")), open(&v.path("b.db"))]
}

fn insert_into_one(_: &Volume, dbs: &[Connection], n: u64) {
    insert(&dbs[0], n, 120).expect("COMMIT");
}

fn insert_into_both_attached(_: &Volume, dbs: &[Connection], n: u64) {
    let text = format!(
        "BEGIN; INSERT INTO main.t VALUES({n}, zeroblob(120)); INSERT INTO b.t VALUES({n}, zeroblob(120)); COMMIT"
    );
    dbs[0].execute_batch(&text).expect("COMMIT");
}

fn insert_into_both_in_a_group(v: &Volume, dbs: &[Connection], n: u64) {
    let group = client::Group::begin(v.mnt(), None).expect("begin");
    for db in dbs {
        insert(db, n, 120).expect("COMMIT");
    }
    group.commit().expect("commit");
}

/// The table of docs/results/2026-11-22-atomic.md, with `--nocapture`. Asserted is only what holds on any machine: fewer pages, fewer flushes.
#[test]
fn pages_and_flushes() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("figures") || !Fs::Ext4.ready("figures") {
        return;
    }
    let one = [
        cost(
            "ext4, rollback journal",
            Fs::Ext4,
            one_database,
            insert_into_one,
        ),
        cost("ext4, WAL", Fs::Ext4, in_wal_mode, insert_into_one),
        cost(
            "ccfs, atomic writes",
            Fs::Ccfs,
            one_database,
            insert_into_one,
        ),
        cost(
            "ccfs on transactional flash, atomic writes",
            On::Flash,
            one_database,
            insert_into_one,
        ),
    ];
    let both = [
        cost(
            "ext4, two databases, super-journal",
            Fs::Ext4,
            attached,
            insert_into_both_attached,
        ),
        cost(
            "ccfs, two databases, atomic group",
            Fs::Ccfs,
            two,
            insert_into_both_in_a_group,
        ),
        cost(
            "ccfs on transactional flash, two databases, atomic group",
            On::Flash,
            two,
            insert_into_both_in_a_group,
        ),
    ];
    println!("{HEADINGS}");
    for c in one.iter().chain(&both) {
        println!("{c}");
    }
    one[2].assert_less_than(&one[0]);
    both[1].assert_less_than(&both[0]);
}

/// The calls themselves, and what they refuse.
#[test]
fn calls() {
    const START: u64 = 0xf501;
    const COMMIT: u64 = 0xf502;
    const ABORT: u64 = 0xf505;
    const GET_FEATURES: u64 = 0x8004_f50c;
    let Some(v) = volume("batch-atomic-calls", "") else {
        return;
    };
    std::thread::scope(|s| {
        s.spawn(|| {
            let file = sys::open(v.path("f"), libc::O_RDWR | libc::O_CREAT, 0o644).expect("open");
            let call = |number| sys::ioctl(&file, number, &mut []);
            let mut features = [0; 4];
            sys::ioctl(&file, GET_FEATURES, &mut features).expect("features");
            assert_eq!(features, 4u32.to_ne_bytes());
            assert_eq!(call(COMMIT), Err(libc::EINVAL));
            assert_eq!(call(ABORT), Err(libc::EINVAL));
            let dir = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
            assert_eq!(sys::ioctl(&dir, START, &mut []), Err(libc::EINVAL));
            call(START).expect("start");
            assert_eq!(call(START), Err(libc::EBUSY));
            sys::pwrite(&file, b"taken back", 0).expect("write");
            call(ABORT).expect("abort");
            assert_eq!(sys::fstat(&file).expect("stat").size, 0);
            call(START).expect("start");
            sys::pwrite(&file, b"kept", 0).expect("write");
            call(COMMIT).expect("commit");
            // In a group: its owner decides, and an abort inside is one of all.
            client::group_begin(&dir, None).expect("begin");
            call(START).expect("start");
            sys::pwrite(&file, b"gone", 0).expect("write");
            call(COMMIT).expect("commit");
            call(START).expect("start");
            call(ABORT).expect("abort");
            let refused = client::group_commit(&dir, 0, false).expect_err("it is taken back");
            assert_eq!(refused.raw_os_error(), Some(libc::ECANCELED));
            assert_eq!(std::fs::read(v.path("f")).expect("read"), b"kept");
        });
    });
    v.finish();
}
