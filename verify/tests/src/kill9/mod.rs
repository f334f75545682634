//! `kill -9` of the daemon at random moments under a load of several streams, recovery, and a checker that reads files only.

pub mod check;
pub mod full;
pub mod load;
pub mod op;

use crate::harness::{Fs, Volume, number, run, run_ok, sibling};
use crate::sys;
use ccfs_testkit::Rng;
use load::{Record, Settings};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What several rounds showed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub rounds: usize,
    pub started: usize,
    pub survived: usize,
    pub promises: usize,
    /// Rounds in which some stream lost something: without them the test proves little.
    pub lossy: usize,
    /// Largest resident size of a daemon, bytes.
    pub rss_max: u64,
}

fn settings(rng: &mut Rng) -> Settings {
    Settings {
        seed: rng.draw(),
        streams: 2 + rng.below(4) as usize,
        ops: 1_000_000,
        seconds: 20.0,
        sync_percent: *rng.pick(&[0, 0, 1, 3, 10]),
        shared_percent: *rng.pick(&[0, 5, 15, 40]),
        write_max: *rng.pick(&[3_000, 20_000, 120_000]),
    }
}

/// Runs `count` rounds on one volume. Panics with the seed and the round at the first broken promise.
pub fn rounds(seed: u64, count: usize) -> Summary {
    let mut rng = Rng::new(seed);
    let mut volume = Volume::unformatted(Fs::Ccfs, "kill9");
    // Half of the volumes have the smallest log that there is: it wraps and fills all the time.
    let small_log = rng.chance(50);
    if small_log {
        let blocks = *rng.pick(&["1024", "2048", "4096"]);
        volume.mke2fs(384, &["-t", "ext4", "-b", blocks, "-J", "size=4"]);
    } else {
        volume.mkfs(384);
    }
    volume.mount();
    let mut sum = Summary::default();
    let empty = space(&volume);
    volume.umount();
    for round in 0..count {
        let options = *rng.pick(&[
            "commit=1",
            "commit=5",
            "commit=5,dirty=4M",
            "commit=1,dirty=64M",
        ]);
        volume.set_options(options);
        volume.mount();
        let name = format!("round{round}");
        let context = format!("seed {seed} round {round} ({options}, small log: {small_log})");
        let mut settings = settings(&mut rng);
        if small_log {
            // Larger writes would be several operations there.
            settings.write_max = settings.write_max.min(20_000);
        }
        one_round(&mut volume, &name, settings, &mut rng, &context, &mut sum);
        volume.umount();
        volume.fsck_clean();
        volume.mount();
        run_ok(
            "rm",
            &["-rf", volume.path(&name).to_str().expect("plain path")],
        );
        wait_for_space(&volume, empty, &context);
        volume.umount();
        volume.fsck_clean();
    }
    sum
}

fn one_round(
    volume: &mut Volume,
    name: &str,
    settings: Settings,
    rng: &mut Rng,
    context: &str,
    sum: &mut Summary,
) {
    let root = volume.path(name);
    load::prepare(&root, settings.streams)
        .unwrap_or_else(|e| panic!("{context}: prepare: errno {e}"));
    if rng.chance(50) {
        run_ok("sync", &["-f", root.to_str().expect("plain path")]);
    }
    let wait = Duration::from_millis(20 + rng.size(1200)) * number("CCFS_TEST_SLOWER", 1) as u32;
    let record = {
        let child = start(volume, &root, &settings);
        std::thread::sleep(wait);
        sum.rss_max = sum
            .rss_max
            .max(volume.daemon_rss().map_or(0, |(_, peak)| peak));
        if rng.chance(20) {
            // Stopped from inside; the load sees EIO.
            let flag = rng.below(3) as u32;
            volume.shut_down(flag).expect("FS_IOC_SHUTDOWN");
            let record = finish(volume, child, context);
            volume.umount_stopped();
            record
        } else {
            volume.kill9();
            finish(volume, child, context)
        }
    };
    disturb_recovery(volume, rng, context);
    volume
        .try_mount()
        .unwrap_or_else(|e| panic!("{context}: the mount after kill -9: {e}"));
    let seen = check::look(&root);
    let outcome = check::check(&record, &seen);
    let survivors = outcome.unwrap_or_else(|e| {
        let _ = std::fs::copy(volume.outside("record"), "/var/tmp/ccfs-kill9-record.json");
        panic!("{context}, {settings:?}, killed after {wait:?}:\n{e}\n(the load's record: /var/tmp/ccfs-kill9-record.json)")
    });
    let started: usize = record.streams.iter().map(Vec::len).sum();
    sum.rounds += 1;
    sum.started += started;
    sum.survived += survivors.iter().sum::<usize>();
    sum.promises += record.promises.len();
    sum.lossy += (survivors.iter().zip(&record.completed).any(|(s, c)| s < c)) as usize;
}

/// Sometimes recovery is killed too, or done by fsck.
fn disturb_recovery(volume: &mut Volume, rng: &mut Rng, context: &str) {
    while rng.chance(30) {
        volume.mount_and_kill(Duration::from_micros(rng.size(60_000)));
    }
    if rng.chance(20) {
        recover_by_fsck(volume, context);
    }
}

fn recover_by_fsck(volume: &mut Volume, context: &str) {
    volume.clear_dead_mount();
    let out = run(Command::new(crate::harness::ccfs_program())
        .args(["fsck", "-p"])
        .arg(volume.image()));
    // Bit 1: the file system was corrected; recovery counts as that.
    assert!(
        out.code == 0 || out.code == 1,
        "{context}: ccfs fsck -p: exit {}\n{}",
        out.code,
        out.all()
    );
    volume.fsck_clean();
}

fn start(volume: &Volume, root: &Path, settings: &Settings) -> Child {
    start_load(volume, &[], root, &volume.outside("record"), settings)
}

fn finish(volume: &Volume, child: Child, context: &str) -> Record {
    let patience = Duration::from_secs(300);
    finish_load(child, &volume.outside("record"), patience, context)
}

/// What `ccfs-load` writes when it begins to work.
pub const BEGUN: &str = "begun\n";

/// Starts `ccfs-load`, and waits until it works. `kind`: the word for which load, if it is not this one.
fn start_load(
    volume: &Volume,
    kind: &[&str],
    root: &Path,
    record: &Path,
    settings: &impl Serialize,
) -> Child {
    let json = serde_json::to_string(settings).expect("settings");
    let mut command = Command::new(sibling("ccfs-load"));
    command.args(kind).arg(root).arg(record).arg(json);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("start the load");
    volume.adopt(child.id());
    // On a slow machine a program is long in starting: a crash before it works proves nothing.
    let begun = child.stdout.as_mut().expect("piped");
    let _ = begun.read(&mut [0; BEGUN.len()]);
    child
}

/// Waits for the end of a load, and reads what it did.
fn finish_load<R: DeserializeOwned>(
    mut child: Child,
    record: &Path,
    patience: Duration,
    context: &str,
) -> R {
    let end = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for the load") {
            break status;
        }
        assert!(
            Instant::now() < end,
            "{context}: the load hangs on the dead mount"
        );
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(status.success(), "{context}: the load: {status}");
    let text = std::fs::read(record).expect("the load's record");
    serde_json::from_slice(&text).expect("the load's record")
}

/// Free blocks and inodes.
fn space(volume: &Volume) -> (u64, u64) {
    let s = sys::statvfs(volume.mnt()).expect("statvfs");
    (s.bfree, s.ffree)
}

/// No space is lost: after the load's files are deleted, df is back at the start.
fn wait_for_space(volume: &Volume, want: (u64, u64), context: &str) {
    let end = Instant::now() + Duration::from_secs(120);
    run_ok("sync", &["-f", volume.mnt().to_str().expect("plain path")]);
    while space(volume) != want {
        assert!(
            Instant::now() < end,
            "{context}: C6: free {:?} of {want:?} after deleting everything",
            space(volume)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs the load to an end on any file system, without a crash, and checks that everything is there.
pub fn load_and_check(volume: &Volume, settings: &Settings) -> (Record, check::Survivors) {
    let root = volume.path("load");
    load::prepare(&root, settings.streams).expect("prepare");
    let child = start(volume, &root, settings);
    let record = finish(volume, child, "no crash");
    let survivors =
        check::check(&record, &check::look(&root)).unwrap_or_else(|e| panic!("{settings:?}: {e}"));
    for (stream, n) in survivors.iter().enumerate() {
        let all = record.streams[stream].len();
        // The checker takes the largest prefix; trailing syncs and operations without effect are part of it.
        assert_eq!(*n, all, "stream {stream}: everything is there");
    }
    (record, survivors)
}

/// C7: an operation that nobody syncs survives a crash that comes well after the commit interval.
pub fn interval_commits() {
    let mut volume = Volume::unformatted(Fs::Ccfs, "interval").options("commit=1");
    volume.mkfs(64);
    volume.mount();
    std::fs::write(volume.path("unsynced"), vec![7u8; 100_000]).expect("write");
    std::thread::sleep(Duration::from_millis(3500));
    let end = Instant::now() + Duration::from_secs(120);
    while volume.status()["dirty_bytes"] != 0 {
        assert!(Instant::now() < end, "C7: committed without a sync");
        std::thread::sleep(Duration::from_millis(50));
    }
    volume.kill9();
    volume.mount();
    let bytes = std::fs::read(volume.path("unsynced")).expect("C7: the file was committed");
    assert!(
        bytes == vec![7u8; 100_000],
        "C7: and its data ({} bytes)",
        bytes.len()
    );
    volume.finish();
}
