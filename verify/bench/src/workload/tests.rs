//! Each personality runs for a moment on a plain directory and leaves what it should.
use super::*;
use crate::run::run;
use std::time::Duration;

const TINY: Scale = Scale(0.01);

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files_below(&path));
        } else {
            all.push(path);
        }
    }
    all
}

fn run_on(workload: &dyn Workload) -> (tempfile::TempDir, u64) {
    let dir = tempfile::tempdir().unwrap();
    let outcome = run(workload, dir.path(), 1, Duration::from_millis(200)).unwrap();
    assert!(outcome.ops > 0 && outcome.ops_per_s() > 0.0);
    assert!(outcome.elapsed < Duration::from_secs(60));
    (dir, outcome.ops)
}

#[test]
fn varmail_keeps_its_books() {
    let w = varmail::Varmail::new(TINY);
    let (dir, _) = run_on(&w);
    let left = files_below(dir.path());
    assert_eq!(left.len() as u64, w.files.existing());
    assert!(left.iter().all(|f| f.parent() == Some(dir.path())));
    assert!(left.iter().all(|f| f.metadata().unwrap().len() >= 8 << 10));
}

#[test]
fn randwrite_overwrites_only() {
    let w = randwrite::Randwrite::new(TINY);
    let (dir, _) = run_on(&w);
    let data = std::fs::read(dir.path().join(randwrite::NAME)).unwrap();
    assert_eq!(data.len() as u64, w.bytes);
    // What was prepared repeats every MiB; the writes bring one block of another generator.
    let mib = Worker::new(dir.path(), 0, 0).data(1 << 20).to_vec();
    let block = Worker::new(dir.path(), 0, 1).data(4096).to_vec();
    let mut written = 0;
    for (i, now) in data.chunks(4096).enumerate() {
        let at = i * 4096 % (1 << 20);
        if now != &mib[at..at + 4096] {
            assert_eq!(now, block, "block {i}");
            written += 1;
        }
    }
    assert!(written > 0);
}

#[test]
fn createfiles_makes_each_file_once() {
    let w = createfiles::Createfiles::new(TINY);
    let (dir, ops) = run_on(&w);
    let made = w.next.into_inner().min(w.files.count());
    let left = files_below(dir.path());
    assert_eq!(left.len() as u64, made);
    assert!(ops % 3 == 0 && ops <= 3 * made);
    assert!(left.iter().all(|f| f.metadata().unwrap().len() >= 8 << 10));
}

#[test]
fn seqwrite_appends_whole_mebibytes() {
    let w = seqwrite::Seqwrite::new(TINY);
    let (dir, ops) = run_on(&w);
    let len = dir.path().join(seqwrite::NAME).metadata().unwrap().len();
    assert!(len % (1 << 20) == 0 && len >= ops << 20 && len <= w.bytes);
}

#[test]
fn fileserver_keeps_its_books() {
    let w = fileserver::Fileserver::new(TINY);
    let (dir, _) = run_on(&w);
    let left = files_below(dir.path());
    assert_eq!(left.len() as u64, w.files.existing());
    assert!(left.iter().all(|f| f.metadata().unwrap().len() >= 64 << 10));
}

#[test]
fn webserver_changes_its_log_only() {
    let w = webserver::Webserver::new(TINY);
    let (dir, ops) = run_on(&w);
    assert_eq!(ops % 31, 0);
    let left = files_below(dir.path());
    assert_eq!(left.len() as u64, w.files.count() + 1);
    let log = dir.path().join(webserver::LOG).metadata().unwrap().len();
    assert!(log % (16 << 10) == 0);
}

#[test]
fn an_error_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let w = seqwrite::Seqwrite::new(TINY);
    std::fs::write(dir.path().join(seqwrite::NAME), "in the way").unwrap();
    let outcome = run(&w, dir.path(), 1, Duration::from_millis(200));
    assert!(outcome.unwrap_err().contains("exists"));
}
