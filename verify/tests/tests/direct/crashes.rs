//! The daemon is killed under direct calls in several streams: what is left is a prefix of each.
use super::actors::code;
use super::{session, volume};
use ccfs_client::direct::{OpenOptions, Session};
use ccfs_testkit::Rng;
use ccfs_tests::harness::{Volume, number};
use std::fs::File;
use std::sync::mpsc;
use std::time::Duration;

const STREAMS: u64 = 3;
/// For clients to learn that their daemon is dead.
const LEARNED: Duration = Duration::from_secs(120);

fn content(i: u64) -> Vec<u8> {
    i.to_le_bytes().repeat(20 + i as usize % 700)
}

/// What a stream did: steps that were accepted, steps that were synced, and the error in the end.
type Done = (u64, u64, i32);

/// Step i: make `i`, write it, append to the log, rename `i` to `d{i}`, and remove `d{i-10}`.
fn stream(mnt: &std::path::Path, session: &Session, who: u64, seed: u64) -> Done {
    let here = File::open(mnt).expect("open");
    let id = ccfs_client::new_stream(&here, 0).expect("new stream");
    ccfs_client::set_stream(&here, id, None).expect("set stream");
    drop(here);
    let mut rng = Rng::part(seed, who);
    let (mut accepted, mut synced) = (0, 0);
    let mut all = || -> std::io::Result<()> {
        let dir = session.root()?.make_dir(format!("s{who}"), 0o755)?;
        let log = dir.open("log", OpenOptions::new_file())?;
        loop {
            let i = accepted;
            let name = i.to_string();
            let file = dir.open(&name, OpenOptions::new_file())?;
            file.write_at(&content(i), 0)?;
            log.append(&i.to_le_bytes())?;
            dir.rename(&name, &dir, format!("d{i}"))?;
            if i >= 10 {
                dir.remove_file(format!("d{}", i - 10))?;
            }
            accepted = i + 1;
            if rng.below(400) == 0 {
                match rng.below(2) {
                    0 => dir.sync()?,
                    _ => log.sync()?,
                }
                synced = accepted;
            }
        }
    };
    let error = all().expect_err("it goes on for ever");
    (accepted, synced, code(error))
}

/// The stream's directory is what its first operations give; how many steps are complete.
fn judge(v: &Volume, who: u64, shown: &str) -> u64 {
    let dir = v.path(&format!("s{who}"));
    let log = std::fs::read(dir.join("log")).unwrap_or_default();
    let logged = log.len() as u64 / 8;
    let in_log: Vec<u8> = (0..logged).flat_map(u64::to_le_bytes).collect();
    assert!(log == in_log, "{shown}: the log is no sequence");
    let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| n != "log")
        .collect();
    names.sort();
    let sorted = |mut of: Vec<String>| {
        of.sort();
        of
    };
    let kept = |end: u64| (end.saturating_sub(10)..end).map(|i| format!("d{i}"));
    // The states that there can be with so many lines in the log.
    let mut states = vec![
        (sorted(kept(logged).collect()), true),
        (
            sorted(kept(logged).chain([logged.to_string()]).collect()),
            false,
        ),
    ];
    if logged > 0 {
        let last = logged - 1;
        states.push((sorted(kept(last).chain([last.to_string()]).collect()), true));
        states.push((
            sorted(kept(last).chain([format!("d{last}")]).collect()),
            true,
        ));
    }
    let state = states.iter().find(|s| s.0 == names);
    assert!(
        state.is_some(),
        "{shown}: {logged} in the log, and {names:?}"
    );
    for name in &names {
        let i: u64 = name.trim_start_matches('d').parse().expect("a number");
        let got = std::fs::read(dir.join(name)).expect("read");
        let whole = got == content(i) || (i == logged && got.is_empty());
        assert!(
            whole,
            "{shown}: {name} has {} bytes, {logged} in the log",
            got.len()
        );
    }
    logged
}

fn round(seed: u64) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let Some(mut v) = volume("direct crashes", 128, ",commit=1") else {
        return (0, 0);
    };
    let shared = rng.chance(50).then(|| session(&v));
    let (tell, told) = mpsc::channel();
    for who in 0..STREAMS {
        let session = shared.clone().unwrap_or_else(|| session(&v));
        let (tell, mnt) = (tell.clone(), v.mnt().to_path_buf());
        std::thread::spawn(move || {
            let done = stream(&mnt, &session, who, seed);
            drop(session);
            let _ = tell.send((who, done));
        });
    }
    drop(shared);
    std::thread::sleep(Duration::from_millis(20 + rng.below(1800)));
    v.kill9();
    let mut all = Vec::new();
    for _ in 0..STREAMS {
        let Ok(done) = told.recv_timeout(LEARNED) else {
            for task in std::fs::read_dir("/proc/self/task")
                .expect("tasks")
                .flatten()
            {
                let text = |n| std::fs::read_to_string(task.path().join(n)).unwrap_or_default();
                println!("{:?} {}{}", task.path(), text("comm"), text("stack"));
            }
            panic!("seed {seed}: a client hangs after the kill");
        };
        all.push(done);
    }
    v.mount();
    let (mut survived, mut lost) = (0, 0);
    for (who, (accepted, synced, error)) in all {
        let shown =
            format!("seed {seed}, stream {who}: {accepted} accepted, {synced} synced, E{error}");
        let kept = judge(&v, who, &shown);
        assert!(kept >= synced, "{shown}: only {kept} are there");
        assert!(kept <= accepted + 1, "{shown}: {kept} are there");
        survived += kept;
        lost += accepted.saturating_sub(kept);
    }
    v.finish();
    (survived, lost)
}

#[test]
fn killed_daemon_leaves_a_prefix() {
    let first = number("CCFS_TEST_SEED", 0) + 800;
    let (mut survived, mut lost) = (0, 0);
    for seed in first..first + number("CCFS_TEST_ROUNDS", 8) {
        let (s, l) = round(seed);
        (survived, lost) = (survived + s, lost + l);
    }
    println!("killed under direct calls: {survived} steps survived, {lost} lost");
}

/// What was accepted survives the death of the program, which takes no leave.
#[test]
fn killed_program_loses_nothing() {
    let Some(mut v) = volume("direct killed_program", 64, "") else {
        return;
    };
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    command.args(["torture::direct_program", "--exact", "--nocapture"]);
    command.env("CCFS_DIRECT_PROGRAM", v.mnt());
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("start");
    v.adopt(child.id());
    let mut to = child.stdin.take().expect("its input");
    let mut from = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut accepted = 0;
    for i in 0..600u64 {
        use std::io::{BufRead, Write};
        let line = match i % 2 {
            0 => format!("open 0 n{i} 0 rwce 0640"),
            _ => "write 0 0 100 5".into(),
        };
        writeln!(to, "{line}").expect("send");
        let mut got = String::new();
        while !got.contains("@R ") {
            got.clear();
            assert!(from.read_line(&mut got).expect("receive") > 0, "it died");
        }
        assert!(got.contains("@R ok"), "{line}: {got}");
        accepted = i;
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    for i in (0..=accepted).step_by(2) {
        let size = std::fs::metadata(v.path(&format!("n{i}"))).map(|m| m.len());
        assert_eq!(size.ok(), Some(100), "n{i}");
    }
    v.remount();
    assert_eq!(
        std::fs::read_dir(v.mnt())
            .expect("list")
            .flatten()
            .filter(|e| e.file_name() != "lost+found")
            .count(),
        300
    );
    v.finish();
}
