//! Others look on, without direct calls, while a program writes: what it says is done they see, and nothing is lost (C14).
use super::{command, compile, source, text, volume};
use ccfs_testkit::Rng;
use ccfs_tests::harness::number;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;

fn bytes(n: usize) -> Vec<u8> {
    vec![b'a' + (n % 26) as u8; n * 37 % 3000]
}

const FILES: usize = 3000;

/// What somebody without direct calls has done in the tree.
struct Onlooker {
    tree: PathBuf,
    rng: Rng,
    looks: usize,
    /// The writer's log, and how many lines of it are ours.
    log: Option<File>,
    lines: usize,
    /// Files that are still there.
    left: Vec<usize>,
    /// The names that the open files have now.
    open: [String; 4],
}

impl Onlooker {
    /// File `n` is done; the open file `which` has so many bytes.
    fn look(&mut self, n: usize, which: usize, total: u64, context: &str) {
        let path = self.tree.join(format!("file-{n}"));
        let open = self.tree.join(&self.open[which]);
        self.looks += 1;
        match self.rng.below(7) {
            0 => {
                let size = std::fs::metadata(&path).expect(context).size();
                assert_eq!(size, bytes(n).len() as u64, "{context}");
            }
            1 => {
                let to = self.tree.join(format!("renamed-{n}"));
                std::fs::rename(&path, &to).expect(context);
                assert!(std::fs::read(&to).expect(context) == bytes(n), "{context}");
                return std::fs::remove_file(&to).expect(context);
            }
            2 => {
                std::fs::remove_file(&path).expect(context);
                return assert!(!path.exists(), "{context}");
            }
            3 => {
                let listed = std::fs::read_dir(&self.tree).expect("list");
                let name = format!("file-{n}");
                let found = listed.filter(|e| e.as_ref().expect("a name").file_name() == *name);
                assert_eq!(found.count(), 1, "{context}");
            }
            4 => {
                let log = self.log.get_or_insert_with(|| {
                    let mut how = OpenOptions::new();
                    how.append(true)
                        .open(self.tree.join("log"))
                        .expect("the log")
                });
                log.write_all(b"onlooker\n").expect("the log");
                self.lines += 1;
            }
            5 => {
                let size = std::fs::metadata(open).expect(context).size();
                assert!(size >= total, "{context}: {size}");
            }
            _ => {
                let to = format!("moved-{n}-{which}");
                std::fs::rename(open, self.tree.join(&to)).expect(context);
                self.open[which] = to;
            }
        }
        assert!(
            std::fs::read(&path).expect(context) == bytes(n),
            "{context}"
        );
        self.left.push(n);
    }

    /// Nothing is lost of what both have done.
    fn check(&self) {
        let log = std::fs::read_to_string(self.tree.join("log")).expect("the log");
        let of = |who: &str| log.lines().filter(|line| *line == who).count();
        assert_eq!((of("writer"), of("onlooker")), (FILES, self.lines));
        assert_eq!(log.len(), FILES * 7 + self.lines * 9, "bytes of the log");
        for (which, name) in self.open.iter().enumerate() {
            let all = std::fs::read(self.tree.join(name)).expect(name);
            // Each turn writes the first 100 bytes of a block, of which it has set only as many as its file has.
            let mut block = [0; 3000];
            let mut expected: [Vec<u8>; 4] = Default::default();
            for n in 0..FILES {
                let own = bytes(n);
                block[..own.len()].copy_from_slice(&own);
                expected[n % 4].extend_from_slice(&block[..100]);
            }
            assert!(all == expected[which], "{name}");
        }
        for n in &self.left {
            let got = std::fs::read(self.tree.join(format!("file-{n}"))).expect("a file");
            assert!(got == bytes(*n), "file-{n}");
        }
        let names = std::fs::read_dir(&self.tree).expect("list").count();
        assert_eq!(names, self.left.len() + 5);
    }
}

#[test]
fn what_is_reported_is_seen_by_others() {
    let Some(mut v) = volume("onlookers", 512) else {
        return;
    };
    let program = compile(&v, "watched", &[source("watched.c")]);
    let seed = number("CCFS_TEST_SEED", 23);
    let count = FILES.to_string();
    let mut writer = command(&v, true, &[text(&program), text(v.mnt()), &count]);
    writer.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("start");
    let out = BufReader::new(writer.stdout.take().expect("its output"));
    let mut onlooker = Onlooker {
        tree: v.path("tree"),
        rng: Rng::new(seed),
        looks: 0,
        log: None,
        lines: 0,
        left: Vec::new(),
        open: [0, 1, 2, 3].map(|n| format!("open-{n}")),
    };
    for line in out.lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let ["done", n, _, _, total] = words[..] else {
            panic!("seed {seed}: {line}");
        };
        let (n, total) = (n.parse().expect("a number"), total.parse().expect("a size"));
        // At times nobody looks: the writer keeps what it has.
        match n / 300 % 2 {
            0 => onlooker.look(n, n % 4, total, &format!("seed {seed}: {line}")),
            _ => onlooker.left.push(n),
        }
    }
    assert!(writer.wait().expect("its end").success());
    onlooker.log = None;
    println!("{} looks, {} lines", onlooker.looks, onlooker.lines);
    onlooker.check();
    v.remount();
    onlooker.check();
    v.finish();
}
