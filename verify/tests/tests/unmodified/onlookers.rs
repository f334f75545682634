//! Others look on, without direct calls, while a program writes: what it says is done they see, and nothing is lost (C14).
use super::{command, compile, source, text, volume};
use ccfs_testkit::Rng;
use ccfs_tests::harness::number;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

fn bytes(n: usize) -> Vec<u8> {
    vec![b'a' + (n % 26) as u8; n * 37 % 3000]
}

#[test]
fn what_is_reported_is_seen_by_others() {
    let Some(mut v) = volume("onlookers", 512) else {
        return;
    };
    let program = compile(&v, "watched", &[source("watched.c")]);
    let seed = number("CCFS_TEST_SEED", 23);
    let mut rng = Rng::new(seed);
    let files = number("CCFS_TEST_FILES", 3000) as usize;
    let count = files.to_string();
    let mut writer = command(&v, true, &[text(&program), text(v.mnt()), &count]);
    writer.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut writer = writer.spawn().expect("start");
    let out = BufReader::new(writer.stdout.take().expect("its output"));
    let tree = v.path("tree");
    let (mut mine, mut looks, mut left, mut names) =
        (0, 0, Vec::new(), [0, 1, 2, 3].map(|n| format!("open-{n}")));
    let mut log: Option<File> = None;
    for line in out.lines() {
        let line = line.expect("a line");
        let words: Vec<&str> = line.split(' ').collect();
        let ["done", n, len, _, total] = words[..] else {
            panic!("seed {seed}: {line}");
        };
        let number = |word: &str| word.parse::<usize>().expect("a number");
        let (n, which) = (number(n), number(n) % 4);
        let path = tree.join(format!("file-{n}"));
        let context = format!("seed {seed}: {line}");
        // At times nobody looks: the writer keeps what it has.
        if n / 300 % 2 == 1 {
            left.push(n);
            continue;
        }
        looks += 1;
        match rng.below(7) {
            0 => assert_eq!(
                std::fs::metadata(&path).expect(&context).size(),
                number(len) as u64,
                "{context}"
            ),
            1 => {
                let to = tree.join(format!("renamed-{n}"));
                std::fs::rename(&path, &to).expect(&context);
                assert!(std::fs::read(&to).expect(&context) == bytes(n), "{context}");
                std::fs::remove_file(&to).expect(&context);
                continue;
            }
            2 => {
                std::fs::remove_file(&path).expect(&context);
                assert!(!path.exists(), "{context}");
                continue;
            }
            3 => {
                let listed = std::fs::read_dir(&tree).expect("list");
                let name = format!("file-{n}");
                let found = listed.filter(|e| e.as_ref().expect("a name").file_name() == *name);
                assert_eq!(found.count(), 1, "{context}");
            }
            4 => {
                let log = log.get_or_insert_with(|| {
                    let mut how = OpenOptions::new();
                    how.append(true).open(tree.join("log")).expect("log")
                });
                log.write_all(b"onlooker\n").expect("log");
                mine += 1;
            }
            5 => {
                let size = std::fs::metadata(tree.join(&names[which]))
                    .expect(&context)
                    .size();
                assert!(size >= number(total) as u64, "{context}: {size}");
            }
            _ => {
                let to = format!("moved-{n}-{which}");
                std::fs::rename(tree.join(&names[which]), tree.join(&to)).expect(&context);
                names[which] = to;
            }
        }
        assert!(
            std::fs::read(&path).expect(&context) == bytes(n),
            "{context}"
        );
        left.push(n);
    }
    assert!(writer.wait().expect("its end").success());
    drop(log);
    println!("{looks} looks, {mine} lines in its log");
    v.remount();
    let lines = std::fs::read_to_string(tree.join("log")).expect("log");
    let of = |who: &str| lines.lines().filter(|line| *line == who).count();
    assert_eq!(
        (of("writer"), of("onlooker")),
        (files, mine),
        "lines of the log"
    );
    assert_eq!(lines.len(), files * 7 + mine * 9, "bytes of the log");
    for (which, name) in names.iter().enumerate() {
        let all = std::fs::read(tree.join(name)).expect(name);
        let turns = (which..files).step_by(4);
        let expected: Vec<u8> = turns.flat_map(|n| [b'a' + (n % 26) as u8; 100]).collect();
        // Blocks begin with what the file's own turn wrote there; short turns leave older bytes.
        assert_eq!(all.len(), expected.len(), "{name}");
    }
    for n in &left {
        let got = std::fs::read(tree.join(format!("file-{n}"))).expect("a file");
        assert!(got == bytes(*n), "file-{n}");
    }
    assert_eq!(
        std::fs::read_dir(&tree).expect("list").count(),
        left.len() + 5
    );
    v.finish();
}
