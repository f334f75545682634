//! What programs of BarrierFS's evaluation (FAST 2018, sections 6.3 and 6.4) ask of a file system, one request after the other.
use super::virtual_time::{Random, Rig, per_second};
use ccfs_engine::*;

const PAGE: u64 = 4096;
/// Rows of about 100 bytes that a leaf of the table takes.
const ROWS: u64 = 35;
/// Pages of the write-ahead log at which it is brought home (SQLite's default).
const WAL_PAGES: u64 = 1000;
const JOURNAL_HEADER: u64 = 512;
const WAL_HEADER: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journal {
    /// A rollback journal whose header is overwritten when it has done its work.
    Persist,
    Wal,
}

/// What a transaction that has returned promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It survives a power cut: its last call is fdatasync.
    Durable,
    /// It survives if a later one does.
    Ordered,
}

/// SQLite's files. Each row is a transaction (synchronous=FULL).
struct Sqlite<'a> {
    rig: &'a Rig,
    promise: Promise,
    db: Ino,
    journal: Ino,
    /// Pages in the write-ahead log.
    logged: u64,
}

impl Sqlite<'_> {
    fn last(&self, file: Ino) {
        match self.promise {
            Promise::Durable => self.rig.sync(file),
            Promise::Ordered => self.rig.order(file),
        }
    }

    /// Pages that a row changes: the first, which counts changes, and its leaf; the root when a leaf is new.
    fn pages(row: u64) -> Vec<u64> {
        let leaf = 2 + row / ROWS;
        match row % ROWS {
            0 => vec![0, 1, leaf],
            _ => vec![0, leaf],
        }
    }

    fn home(&self, pages: &[u64], row: u64) {
        for page in pages {
            self.rig
                .write(self.db, page * PAGE, &[row as u8; PAGE as usize]);
        }
    }

    fn persist(&self, row: u64) {
        let (rig, pages) = (self.rig, Self::pages(row));
        rig.write(self.journal, 0, &[1; JOURNAL_HEADER as usize]);
        for i in 0..pages.len() as u64 {
            let at = JOURNAL_HEADER + i * (PAGE + 8);
            rig.write(self.journal, at, &[row as u8; PAGE as usize + 8]);
        }
        rig.order(self.journal);
        rig.write(self.journal, 0, &[2; 12]);
        rig.order(self.journal);
        self.home(&pages, row);
        rig.order(self.db);
        rig.write(self.journal, 0, &[0; 28]);
        self.last(self.journal);
    }

    fn wal(&mut self, row: u64) {
        let pages = Self::pages(row);
        for _ in &pages {
            let at = WAL_HEADER + self.logged * (PAGE + 24);
            self.rig
                .write(self.journal, at, &[row as u8; PAGE as usize + 24]);
            self.logged += 1;
        }
        self.last(self.journal);
        if self.logged >= WAL_PAGES {
            self.rig.order(self.journal);
            let first = 2 + row.saturating_sub(WAL_PAGES / 2) / ROWS;
            let home: Vec<u64> = [0, 1].into_iter().chain(first..=2 + row / ROWS).collect();
            self.home(&home, row);
            self.rig.order(self.db);
            self.rig
                .write(self.journal, 0, &[row as u8; WAL_HEADER as usize]);
            self.logged = 0;
        }
    }
}

/// Rows a second that SQLite inserts, each a transaction, until the last transfer has ended.
pub fn sqlite(rig: &Rig, journal: Journal, promise: Promise, rows: u64) -> f64 {
    let mut sqlite = Sqlite {
        rig,
        promise,
        db: rig.create("db"),
        journal: rig.create("db-journal"),
        logged: 0,
    };
    sqlite.home(&[0, 1], 0);
    let began = rig.begin();
    for row in 0..rows {
        match journal {
            Journal::Persist => sqlite.persist(row),
            Journal::Wal => sqlite.wal(row),
        }
    }
    let rate = per_second(rows, rig.drain(sqlite.db) - began);
    rig.v.unmount().unwrap();
    rate
}

/// Rounds a second of Filebench's varmail with one client, in a directory of 200 mails of 16 KiB: a mail is removed, one is written and
/// synced, one is read, appended to and synced, one is read. `rig` decides what a sync is.
pub fn varmail(rig: &Rig, rounds: u64) -> f64 {
    const MAILS: u64 = 200;
    let mail = [7; 16 << 10];
    let mut files: Vec<(String, Ino)> = Vec::new();
    let mut made = 0;
    let mut make = |files: &mut Vec<(String, Ino)>| {
        made += 1;
        let name = format!("mail-{made}");
        let file = rig.create(&name);
        rig.write(file, 0, &mail);
        files.push((name, file));
        file
    };
    for _ in 0..MAILS {
        make(&mut files);
    }
    let began = rig.begin();
    let mut random = Random(2);
    let mut last = files[0].1;
    for _ in 0..rounds {
        let gone = files.swap_remove(random.below(MAILS) as usize);
        rig.v.unlink(&rig.cx, ROOT_INO, gone.0.as_bytes()).unwrap();
        let new = make(&mut files);
        rig.order(new);
        last = files[random.below(MAILS) as usize].1;
        let size = rig.v.getattr(last).unwrap().size;
        rig.write(last, size, &mail);
        rig.order(last);
    }
    let rate = per_second(rounds, rig.drain(last) - began);
    rig.v.unmount().unwrap();
    rate
}
