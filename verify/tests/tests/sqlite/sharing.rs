//! One database, used by programs with the extension and by SQLite's own programs at the same time, some of which are killed in the middle: locks count
//! for all of them, whichever way each of them goes, and journals of the dead are rolled back by the living.
use super::{Tools, Way, check_posted, text, tools, volume};
use ccfs_testkit::Rng;
use ccfs_tests::harness::{Volume, run_ok};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Programs at a time; the even ones have the extension.
const WORKERS: u64 = 6;

/// What one worker knows: transactions that were acknowledged, and those of which it does not know.
#[derive(Debug, Default)]
struct Known {
    acknowledged: u64,
    in_doubt: u64,
    programs: u64,
}

/// Starts programs that each do some transactions, and kills some of them.
fn work(tools: &Tools, v: &Volume, db: &Path, worker: u64, end: Instant, seed: u64) -> Known {
    let mut rng = Rng::part(seed, worker);
    let mut known = Known::default();
    let extended = worker.is_multiple_of(2);
    while Instant::now() < end {
        known.programs += 1;
        let mut command = match extended {
            true => tools.with(Way::Direct, "sqlite3"),
            false => Command::new("sqlite3"),
        };
        if extended {
            command.args(["-cmd", &format!(".load {}", text(&tools.extension))]);
            command.args(["-cmd", &format!(".open {}", text(db))]);
        } else {
            command.arg(db);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start sqlite3");
        v.adopt(child.id());
        let transactions = 1 + rng.below(59);
        let off = rng.chance(70);
        let mut script = String::from(".timeout 60000\n");
        if off {
            script += "PRAGMA synchronous=OFF;\n";
        }
        for _ in 0..transactions {
            script += &format!(
                "BEGIN IMMEDIATE; UPDATE c SET n=n+1 WHERE id={worker}; INSERT INTO log VALUES({worker}, 1); REPLACE INTO content VALUES({worker}, hex(randomblob({}))); COMMIT; SELECT 'ack';\n",
                1 + rng.below(3000)
            );
            if rng.chance(10) {
                script += "SELECT sum(n) FROM c;\n";
            }
        }
        let killed = rng.chance(30);
        let mut stdin = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let writer = std::thread::spawn(move || {
            // Who was killed reads no more.
            let _ = stdin.write_all(script.as_bytes());
        });
        let most = if killed {
            rng.below(transactions)
        } else {
            transactions
        };
        let mut acks = 0;
        for line in lines {
            acks += u64::from(line.expect("a line") == "ack");
            if killed && acks >= most {
                std::thread::sleep(Duration::from_micros(rng.below(3000)));
                child.kill().expect("kill");
            }
        }
        writer.join().expect("the script's writer");
        let status = child.wait().expect("wait");
        assert!(killed || status.success(), "worker {worker}: {status}");
        known.acknowledged += acks;
        if !status.success() {
            known.in_doubt += 1;
        } else {
            assert_eq!(
                acks, transactions,
                "worker {worker}: not all was acknowledged"
            );
        }
    }
    known
}

/// Somebody who looks at everything without any part in it.
fn look_about(dir: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        for entry in std::fs::read_dir(dir).expect("list").flatten() {
            let _ = entry.metadata();
            let _ = std::fs::read(entry.path());
        }
        std::thread::sleep(Duration::from_millis(150));
    }
}

#[test]
fn programs_of_both_kinds_share_a_database() {
    let (Some(tools), Some(v)) = (tools(), volume("on")) else {
        return;
    };
    let seconds = ccfs_tests::harness::number("CCFS_SQLITE_SECONDS", 3);
    let seed = ccfs_tests::harness::number("CCFS_SQLITE_SEED", 1);
    for mode in ["delete", "truncate", "persist", "wal"] {
        let dir = v.path(mode);
        std::fs::create_dir(&dir).expect("mkdir");
        let db = dir.join("shared.db");
        let rows: Vec<String> = (0..WORKERS).map(|w| format!("({w}, 0)")).collect();
        let sql = format!(
            "PRAGMA journal_mode={mode}; CREATE TABLE c(id INTEGER PRIMARY KEY, n); CREATE TABLE log(worker, what); CREATE TABLE content(worker INTEGER PRIMARY KEY, what); INSERT INTO c VALUES {};",
            rows.join(",")
        );
        run_ok("sqlite3", &["-bail", text(&db), &sql]);
        let stop = AtomicBool::new(false);
        let known: Vec<Known> = std::thread::scope(|s| {
            // At first nobody looks: what is held stays so.
            let end = Instant::now() + Duration::from_secs(seconds);
            let (tools, v, db, dir, stop) = (&tools, &v, &db, &dir, &stop);
            let workers: Vec<_> = (0..WORKERS)
                .map(|w| s.spawn(move || work(tools, v, db, w, end, seed)))
                .collect();
            let looker = s.spawn(move || {
                std::thread::sleep(Duration::from_secs(seconds) / 2);
                look_about(dir, stop);
            });
            let known: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
            // Also where one of them has failed: nobody else would stop him.
            stop.store(true, Ordering::SeqCst);
            looker.join().expect("looker");
            let known = known.into_iter().map(|known| known.expect("worker"));
            known.collect()
        });
        let sql = "PRAGMA integrity_check; SELECT c.n || ' ' || (SELECT count(*) FROM log WHERE worker=c.id) FROM c ORDER BY id;";
        let said = run_ok("sqlite3", &["-bail", text(&db), sql]);
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("ok"), "{mode}: {said}");
        for (worker, known) in known.iter().enumerate() {
            let line = lines.next().expect("a line for each worker");
            let (n, logged) = line.split_once(' ').expect("two numbers");
            assert_eq!(n, logged, "{mode}: worker {worker}: a transaction in part");
            let n: u64 = n.parse().expect("a number");
            let most = known.acknowledged + known.in_doubt;
            assert!(
                (known.acknowledged..=most).contains(&n),
                "{mode}: worker {worker}: {n} transactions, {known:?}"
            );
        }
        println!("{mode}: {known:?}");
    }
    check_posted(Way::Direct, &v);
    v.finish();
}

/// Programs one after the other, with and without the extension, killed and not: each finds what the last one left.
#[test]
fn programs_take_turns() {
    let (Some(tools), Some(v)) = (tools(), volume("on")) else {
        return;
    };
    let end = Instant::now() + Duration::from_secs(4);
    let db = v.path("turns.db");
    let sql = "CREATE TABLE c(id INTEGER PRIMARY KEY, n); CREATE TABLE log(worker, what); CREATE TABLE content(worker INTEGER PRIMARY KEY, what); INSERT INTO c VALUES (0, 0), (1, 0);";
    run_ok("sqlite3", &["-bail", text(&db), sql]);
    let (mut known, mut round) = ([0, 0], 0);
    // At least until both were looked at.
    while Instant::now() < end || round < 10 {
        let worker = u64::from(round % 5 == 4);
        let did = work(
            &tools,
            &v,
            &db,
            worker,
            Instant::now() + Duration::from_millis(1),
            round,
        );
        let sql = format!("SELECT n FROM c WHERE id={worker};");
        // Looked at now and then only: between others nobody but they knows the database.
        let n: u64 = match round % 3 {
            0 => run_ok("sqlite3", &[text(&db), &sql])
                .trim()
                .parse()
                .expect("a number"),
            _ => {
                known[worker as usize] += did.acknowledged;
                round += 1;
                if did.in_doubt > 0 {
                    let now = run_ok("sqlite3", &[text(&db), &sql]);
                    known[worker as usize] = now.trim().parse().expect("a number");
                }
                continue;
            }
        };
        let least = known[worker as usize] + did.acknowledged;
        assert!(
            (least..=least + did.in_doubt).contains(&n),
            "{n}, {known:?}, {did:?}"
        );
        known[worker as usize] = n;
        round += 1;
    }
    println!("{round} rounds, {known:?}");
    assert_eq!(
        run_ok("sqlite3", &[text(&db), "PRAGMA integrity_check;"]).trim(),
        "ok"
    );
    check_posted(Way::Direct, &v);
    v.finish();
}
