//! Databases.

use super::Size;
use crate::harness::{run, run_in, run_ok, shell};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// SQLite with a rollback journal and with a WAL: rows, updates, two writers and a reader, vacuum, integrity check.
pub fn sqlite(dir: &Path, size: &Size) {
    for mode in ["delete", "persist", "wal"] {
        let db = format!("{mode}.db");
        let mut script = format!(
            "PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, k INT, v TEXT);\n"
        );
        writeln!(script, "BEGIN;").expect("string");
        for i in 0..size.rows {
            let fill = "x".repeat(i % 200);
            writeln!(
                script,
                "INSERT INTO t VALUES({i},{},'row {i} {fill}');",
                (i * 7919) % 1000
            )
            .expect("string");
            if i % 500 == 499 {
                writeln!(script, "COMMIT; BEGIN;").expect("string");
            }
        }
        script += "COMMIT; CREATE INDEX tk ON t(k); UPDATE t SET v = v || ' changed' WHERE id % 3 = 0; DELETE FROM t WHERE id % 7 = 0;\n";
        // Single-row transactions are where the syncs are.
        for i in 0..(size.rows / 200).max(20) {
            writeln!(script, "INSERT INTO t(k,v) VALUES({i},'single {i}');").expect("string");
        }
        std::fs::write(dir.join("script.sql"), script).expect("write");
        shell(dir, &format!("sqlite3 -bail {db} <script.sql >out.txt"));
        let parallel = format!(
            "one() {{ for i in $(seq 30); do sqlite3 -bail -cmd '.timeout 60000' {db} \"UPDATE t SET k=k+1 WHERE id=$(($1*50+i));\"; done; }}
             one 0 & one 1 & for i in $(seq 20); do sqlite3 -cmd '.timeout 60000' {db} 'SELECT count(*), sum(k) FROM t' >/dev/null; done; wait"
        );
        shell(dir, &parallel);
        let check = run_in(
            dir,
            "sqlite3",
            &[&db, "PRAGMA integrity_check; PRAGMA foreign_key_check;"],
        );
        assert_eq!(check.trim(), "ok", "{mode}: integrity_check");
        run_in(dir, "sqlite3", &[&db, "VACUUM;"]);
        // Page layout may differ where writers raced; the content may not.
        shell(
            dir,
            &format!(
                "sqlite3 {db} .dump >{mode}.dump && rm -f {db} {db}-wal {db}-shm {db}-journal script.sql out.txt"
            ),
        );
    }
}

const DRIVER: &str = r#"
#include <leveldb/db.h>
#include <leveldb/write_batch.h>
#include <cstdio>
#include <cstdlib>
#include <string>
static void must(const leveldb::Status& s, const char* what) {
  if (!s.ok()) { std::fprintf(stderr, "%s: %s\n", what, s.ToString().c_str()); std::exit(1); }
}
static std::string key(int i) { char b[32]; std::snprintf(b, sizeof b, "key%010d", (int)((i * 2654435761u) % 1000000007u)); return b; }
int main(int argc, char** argv) {
  std::string path = argv[1];
  int rows = std::atoi(argv[2]);
  leveldb::Options o; o.create_if_missing = true; o.write_buffer_size = 256 << 10;
  leveldb::DB* db;
  must(leveldb::DB::Open(o, path, &db), "open");
  leveldb::WriteOptions plain, sync; sync.sync = true;
  for (int i = 0; i < rows; i++) must(db->Put(i % 100 == 0 ? sync : plain, key(i), std::string(100 + i % 900, 'a' + i % 26)), "put");
  for (int i = 0; i < rows; i += 3) must(db->Delete(plain, key(i)), "delete");
  leveldb::WriteBatch batch;
  for (int i = 1; i < rows; i += 5) batch.Put(key(i), "batch" + std::to_string(i));
  must(db->Write(sync, &batch), "batch");
  delete db;
  must(leveldb::DB::Open(o, path, &db), "reopen");
  leveldb::ReadOptions check; check.verify_checksums = true;
  leveldb::Iterator* it = db->NewIterator(check);
  for (it->SeekToFirst(); it->Valid(); it->Next())
    std::printf("%s %zu %c\n", it->key().ToString().c_str(), it->value().size(), it->value()[0]);
  must(it->status(), "iterate");
  delete it;
  db->CompactRange(nullptr, nullptr);
  for (int i = 0; i < rows; i++) {
    std::string v; leveldb::Status s = db->Get(check, key(i), &v);
    bool gone = i % 3 == 0 && i % 5 != 1;
    if (gone ? !s.IsNotFound() : !s.ok()) { std::fprintf(stderr, "row %d: %s\n", i, s.ToString().c_str()); return 1; }
  }
  delete db;
  return 0;
}
"#;

/// LevelDB: puts, deletes, batches, syncs, compaction, reopening.
pub fn leveldb(dir: &Path, size: &Size) {
    if !Path::new("/usr/include/leveldb/db.h").exists() {
        println!("skipped: leveldb: needs libleveldb-dev");
        return;
    }
    let work = crate::harness::WorkDir::new("leveldb-driver");
    let (source, program) = (work.path().join("driver.cc"), work.path().join("driver"));
    std::fs::write(&source, DRIVER).expect("write");
    let mut compile = Command::new("g++");
    let out = run(compile
        .args(["-O1", "-o"])
        .arg(&program)
        .arg(&source)
        .arg("-lleveldb"));
    assert!(out.code == 0, "g++: {}", out.all());
    let db = dir.join("db");
    let rows = size.rows.to_string();
    let args = [db.to_str().expect("plain path"), &rows];
    let text = run_ok(program.to_str().expect("plain path"), &args);
    std::fs::write(dir.join("listing"), text).expect("write");
    // Names and sizes of the tables depend on the timing of compactions.
    shell(dir, "rm -r db");
}
