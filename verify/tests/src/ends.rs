//! Mount namespaces that end, with and without their daemons: nobody hangs, and what was synced is there.
//!
//! A daemon that were in a namespace with its mount would never end once it is killed last, and sync(2) with it. So the daemon is looked at
//! before anything is killed; what is killed in the middle of a mount is for a machine that may be lost.
use crate::harness::{WorkDir, ccfs_program, run, run_ok, transport_option};
use ccfs_testkit::Rng;
use ccfs_testkit::mounts::apart;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// What becomes of the daemon and of the shell, `$$`, that keeps the namespace, after the file was synced.
const ENDS: [&str; 8] = [
    ":",
    "kill -9 $pid",
    "kill -ABRT $pid",
    "kill -SEGV $pid",
    "kill -9 $pid $$",
    "kill -9 $$ $pid",
    "kill -STOP $pid; kill -9 $pid",
    "(sleep 0.02; kill -9 $pid) & ",
];

/// Where loop devices are hidden, the mount is a plain FUSE one.
const KINDS: [&str; 2] = ["", "mount --bind /dev/null /dev/loop-control"];

/// So many namespaces that end, one after the other, beside sync(2) in a loop.
pub fn rounds(seed: u64, count: usize) {
    let work = WorkDir::new("ends");
    let mut syncing = Command::new("sh");
    syncing.args(["-c", "while sync; do sleep 0.05; done"]);
    let mut syncing = syncing.stdin(Stdio::null()).spawn().expect("start sync");
    work.adopt(syncing.id());
    let mut rng = Rng::new(seed);
    for round in 0..count {
        one(&work, &mut rng, round);
    }
    syncing.kill().expect("end sync");
    syncing.wait().expect("sync ends");
}

fn one(work: &WorkDir, rng: &mut Rng, round: usize) {
    let (image, dir) = (work.path().join("image"), work.path().join("mnt"));
    let _ = std::fs::create_dir(&dir);
    let _ = std::fs::remove_file(&image);
    let image = image.to_str().expect("plain path").to_string();
    run_ok(ccfs_program(), &["mkfs", "-s", "24M", &image]);
    let (kind, end) = (*rng.pick(&KINDS), *rng.pick(&ENDS));
    let pids = rng.chance(30);
    let mapped = match rng.chance(30) {
        true => "dd if=/dev/zero of=\"$DIR/more\" bs=64k count=64 2>/dev/null",
        false => ":",
    };
    let text = format!(
        "{kind}\n\
         \"$CCFS\" mount {} \"$IMAGE\" \"$DIR\" 2>/dev/null; echo kept >\"$DIR/f\"; sync \"$DIR/f\"; {mapped}\n\
         pid=$(pgrep -f \"^@ccfs .*-- $IMAGE\"); if grep '[.]ccfs ' /proc/$pid/mountinfo; then exit 9; fi\n\
         {end}",
        transport_option().join(" ")
    );
    let shown = format!("round {round}: {kind} {end} pids={pids} {mapped}");
    let options: &[&str] = match pids {
        true => &["-p", "-f", "--mount-proc"],
        false => &[],
    };
    let mut command = apart(options, &["sh", "-c", &text]);
    command
        .env("CCFS", ccfs_program())
        .env("IMAGE", &image)
        .env("DIR", &dir);
    let ended = run(&mut command);
    assert_ne!(
        ended.code,
        9,
        "{shown}: the daemon sees its mount\n{}",
        ended.all()
    );
    let start = Instant::now();
    while !daemons(&image).is_empty() {
        assert!(
            start.elapsed() < PATIENCE,
            "{shown}: {:?} stays",
            daemons(&image)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let checked = run(Command::new(ccfs_program()).args(["fsck", "-p", &image]));
    assert!(
        (0..=1).contains(&checked.code),
        "{shown}: {}",
        checked.all()
    );
    let kept = run_ok(ccfs_program(), &["cat", &format!("{image}:/f")]);
    assert_eq!(kept, "kept\n", "{shown}");
    run_ok("sync", &[]);
}

/// Daemons of an image that have not ended.
fn daemons(image: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_image = |path: &Path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.starts_with(b"@ccfs") && line.split(|b| *b == 0).any(|arg| arg == image.as_bytes())
    };
    let found = all.map(|e| e.path()).filter(|path| of_image(path));
    found.map(|path| path.display().to_string()).collect()
}
