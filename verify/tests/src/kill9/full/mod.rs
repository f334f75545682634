//! Volumes filled to the brim: random operations of several processes, of which many find no space or less than they want; the daemon is
//! killed, and in between stopped for copies of its image. Each of these, recovered, shows of each stream what a prefix of its
//! requests leaves (C1, C2, C9), and so does the page cache all the time.

pub mod check;
pub mod load;

use super::{check::look, finish_load, recover_by_fsck, start_load};
use crate::harness::{Fs, Volume, run_ok};
use crate::sys;
use ccfs_testkit::Rng;
use ccfs_testkit::run::stop;
use check::Unit;
use load::{Record, Returned, Settings};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// What rounds showed.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub rounds: usize,
    /// Recovered volumes and copies that were judged.
    pub states: usize,
    pub calls: usize,
    /// Writes that took less than they were given, and calls that were refused.
    pub short: usize,
    pub refused: usize,
    /// States in which some stream lost something.
    pub lossy: usize,
    /// States that a checker calls wrong for which a call is all or nothing.
    pub by_call: usize,
}

/// A volume that a seed stands for.
struct Shape {
    block: u64,
    /// The largest request, bytes (`Volume::write_max`).
    request: u64,
    /// What is left free before the load begins, bytes.
    left: u64,
}

impl Shape {
    fn new(rng: &mut Rng) -> Shape {
        let small = rng.chance(75);
        Shape {
            block: if small { 1024 } else { 4096 },
            request: if small { 128 << 10 } else { 512 << 10 },
            left: *rng.pick(&[60 << 10, 300 << 10, 1 << 20]),
        }
    }

    fn make(&self, volume: &mut Volume) {
        let (block, journal) = match self.block {
            1024 => ("1024", "size=1"),
            _ => ("4096", "size=4"),
        };
        let args = ["-t", "ext4", "-b", block, "-J", journal, "-N", "400"];
        volume.mke2fs(24, &args);
    }
}

/// One round on a volume of its own, all of it from the seed (but when what happens). An error tells of a broken promise.
pub fn round(seed: u64, sum: &mut Summary) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let shape = Shape::new(&mut rng);
    let mut volume = Volume::unformatted(Fs::Ccfs, "full").on_flash(false);
    shape.make(&mut volume);
    let options: [&str; 3] = ["dirty=1M,commit=1", "dirty=1M", "dirty=4M,commit=1"];
    volume.set_options(options[rng.below(3) as usize]);
    volume.mount();
    let streams = 2 + rng.size(1) as usize;
    for stream in 0..streams {
        load::prepare(volume.mnt(), stream).map_err(|e| format!("a directory: errno {e}"))?;
    }
    fill(&volume, shape.left);
    run_ok("sync", &["-f", volume.mnt().to_str().expect("plain path")]);
    let killed = rng.chance(85);
    let wait = Duration::from_millis(200 + rng.below(1200));
    let settings = |stream| Settings {
        seed,
        stream,
        seconds: if killed { 20.0 } else { wait.as_secs_f64() },
        write_max: [6 << 10, 30 << 10, 60 << 10, 200 << 10][(seed % 4) as usize],
        size_max: 300 << 10,
        sync_percent: [0, 1, 3][(seed / 4 % 3) as usize],
        killed,
    };
    let children: Vec<Child> = (0..streams).map(|s| start(&volume, &settings(s))).collect();
    let copies = copies(&volume, &mut rng, if killed { wait } else { wait * 3 / 4 });
    if killed {
        volume.kill9();
    }
    let context = format!(
        "seed {seed}, blocks of {}, {} streams",
        shape.block, streams
    );
    let records = finish(&volume, children, &context);
    keep(&records);
    let mut judge = |volume: &Volume, what: &str, synced: bool| {
        judge(volume, &records, &shape, synced, sum).map_err(|e| format!("{context}, {what}: {e}"))
    };
    if !killed {
        judge(&volume, "without a crash, in the page cache", true)?;
        all_there(&volume, &records, &shape)?;
        volume.umount();
        volume.fsck_clean();
        volume.mount();
        all_there(&volume, &records, &shape)
            .map_err(|e| format!("{context}, mounted again: {e}"))?;
        volume.umount();
    } else {
        save(volume.image());
        recover(&mut volume, &mut rng, &context);
        volume.mount();
        judge(&volume, "after the kill", true)?;
        volume.umount();
        volume.fsck_clean();
        volume.mount();
        judge(&volume, "after the kill, mounted again", true)?;
        volume.umount();
    }
    for copy in copies {
        let mut other = Volume::unformatted(Fs::Ccfs, "copy").on_flash(false);
        std::fs::rename(&copy, other.image()).map_err(|e| e.to_string())?;
        save(other.image());
        recover(&mut other, &mut rng, &context);
        other.mount();
        judge(&other, "a copy of the image", false)?;
        other.umount();
        other.fsck_clean();
    }
    forget();
    sum.rounds += 1;
    let steps = || records.iter().flat_map(|r| &r.steps);
    sum.calls += steps().count();
    sum.refused += steps().filter(|s| s.returned == Returned::Full).count();
    let short = |s: &&load::Step| matches!(s.returned, Returned::Done(n) if n < s.op.data_len());
    sum.short += steps().filter(short).count();
    Ok(())
}

/// A write past the page cache for which there is too little space gets ENOSPC and leaves the file as it was. (The kernel makes EIO of one
/// that comes back short, and cuts the file to its size from before; what lies below that would be changed by a call that failed.)
pub fn direct_writes() {
    let shape = Shape {
        block: 1024,
        request: 128 << 10,
        left: 40 << 10,
    };
    let mut volume = Volume::unformatted(Fs::Ccfs, "direct").on_flash(false);
    shape.make(&mut volume);
    volume.mount();
    let path = volume.path("file");
    std::fs::write(&path, [7; 1000]).expect("a file");
    fill(&volume, shape.left);
    let fd = sys::open(&path, libc::O_WRONLY | libc::O_DIRECT, 0).expect("open");
    let write = |len: usize, at| {
        let mut buf = sys::Direct::new(len);
        buf.bytes().fill(9);
        sys::pwrite(&fd, buf.bytes(), at)
    };
    assert_eq!(write(64 << 10, 0), Err(libc::ENOSPC));
    assert_eq!(write(64 << 10, 500), Err(libc::ENOSPC));
    assert_eq!(std::fs::read(&path).expect("read"), [7; 1000]);
    // What fits, and what needs no space, is as ever.
    assert_eq!(write(2000, 500), Ok(2000));
    assert_eq!(write(2500, 0), Ok(2500));
    drop(fd);
    // Through the page cache the caller is told how much went.
    let fd = sys::open(&path, libc::O_WRONLY, 0).expect("open");
    let took = sys::pwrite(&fd, &[5; 64 << 10], 4096).expect("a short write");
    assert!((1024..64 << 10).contains(&took), "{took} bytes");
    let size = sys::fstat(&fd).expect("fstat").size;
    assert_eq!(size, 4096 + took as u64);
    drop(fd);
    volume.finish();
}

/// Stores through a mapping of a file with a hole, where there is too little space: msync says so, blocks that the file has take the new bytes
/// in any case (C9), and nothing is lost where nobody was told.
pub fn mapped_stores() {
    const LEN: usize = 64 << 10;
    const HAS: usize = 16 << 10;
    let shape = Shape {
        block: 1024,
        request: 128 << 10,
        left: 20 << 10,
    };
    let mut volume = Volume::unformatted(Fs::Ccfs, "mapped").on_flash(false);
    shape.make(&mut volume);
    volume.mount();
    let path = volume.path("file");
    // Its begin, and a block of a page whose rest is a hole.
    let has = |at: usize| at < HAS || (LEN / 2..LEN / 2 + 1024).contains(&at);
    let file = std::fs::File::create(&path).expect("a file");
    file.write_all_at(&[1; HAS], 0).expect("its begin");
    file.write_all_at(&[1; 1024], LEN as u64 / 2)
        .expect("a block");
    file.set_len(LEN as u64).expect("a hole");
    fill(&volume, shape.left);
    let fd = sys::open(&path, libc::O_RDWR, 0).expect("open");
    let map = sys::Map::new(&fd, 0, LEN, true).expect("mmap");
    map.store(0, &[2; LEN]);
    assert_eq!(map.sync(), Err(libc::ENOSPC));
    drop((map, fd, file));
    volume.umount();
    volume.mount();
    let bytes = std::fs::read(&path).expect("read");
    let lost = (0..LEN).find(|at| has(*at) && bytes[*at] != 2);
    assert_eq!((bytes.len(), lost), (LEN, None));
    assert!(bytes.iter().all(|b| [0, 2].contains(b)));
    // What fits is taken, and nobody is told of an error.
    std::fs::remove_file(volume.path("ballast")).expect("give space back");
    let fd = sys::open(&path, libc::O_RDWR, 0).expect("open");
    let map = sys::Map::new(&fd, 0, LEN, true).expect("mmap");
    map.store(0, &[3; LEN]);
    assert_eq!(map.sync(), Ok(()));
    drop((map, fd));
    volume.remount();
    assert_eq!(std::fs::read(&path).expect("read"), [3; LEN]);
    volume.finish();
}

/// Takes space until so much is left.
fn fill(volume: &Volume, left: u64) {
    let file = sys::open(
        volume.path("ballast"),
        libc::O_CREAT | libc::O_WRONLY,
        0o644,
    )
    .expect("ballast");
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let mut at = 0;
    for step in [1 << 20, 64 << 10, 4 << 10] {
        while sys::fallocate(&file, keep, at, step).is_ok() {
            at += step;
        }
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | keep;
    let left = left as i64;
    sys::fallocate(&file, punch, at - left, left).expect("give some of it back");
}

fn start(volume: &Volume, settings: &Settings) -> Child {
    let record = record_of(volume, settings.stream);
    start_load(volume, &["full"], volume.mnt(), &record, settings)
}

fn record_of(volume: &Volume, stream: usize) -> PathBuf {
    volume.outside(&format!("record{stream}"))
}

/// Two minutes for all.
fn finish(volume: &Volume, children: Vec<Child>, context: &str) -> Vec<Record> {
    let end = Instant::now() + Duration::from_secs(120);
    let streams = children.into_iter().enumerate();
    let records = streams.map(|(stream, child)| {
        let patience = end.saturating_duration_since(Instant::now());
        finish_load(child, &record_of(volume, stream), patience, context)
    });
    records.collect()
}

/// Stops the daemon at random moments of that time, and copies its image: what a cut of the power could have left then, since what is on
/// its way to the file is not flushed.
fn copies(volume: &Volume, rng: &mut Rng, time: Duration) -> Vec<PathBuf> {
    let pid = volume.daemon_pid().expect("a daemon");
    let count = 1 + rng.size(2) as u32;
    let copies = (0..count).map(|n| {
        let part = time / (count + 1);
        std::thread::sleep(part.mul_f64(0.5 + rng.below(100) as f64 / 100.0));
        let copy = volume.outside(&format!("copy{n}"));
        // What a thread writes until it has stopped may come after a flush, so a copy that has begun before would be of no moment at all.
        stop(pid);
        let done = std::fs::copy(volume.image(), &copy);
        sys::kill(pid as i32, libc::SIGCONT).expect("let it go on");
        done.expect("copy the image");
        copy
    });
    copies.collect()
}

/// Sometimes recovery is killed, or done by fsck; the next mount does the rest.
fn recover(volume: &mut Volume, rng: &mut Rng, context: &str) {
    if rng.chance(25) {
        volume.mount_and_kill(Duration::from_micros(rng.size(40_000)));
    }
    if rng.chance(40) {
        recover_by_fsck(volume, context);
    }
}

/// Judges what a mount shows. `synced`: the load had ended before, so what its syncs promised is there.
fn judge(
    volume: &Volume,
    records: &[Record],
    shape: &Shape,
    synced: bool,
    sum: &mut Summary,
) -> Result<(), String> {
    let seen = look(volume.mnt());
    sum.states += 1;
    let (mut lossy, mut split) = (false, false);
    for record in records {
        if let Some(e) = &record.unexpected {
            return Err(format!("stream {}: {e}", record.settings.stream));
        }
        let own = check::own(&seen, record.settings.stream);
        let fits = check::fits(record, &own, shape.unit())?;
        let most = fits.last().map_or(0, |f| f.calls);
        let least = check::synced(record);
        if synced && most < least {
            return Err(format!("C3: {most} calls are there, {least} were synced"));
        }
        lossy |= most < record.steps.len();
        split |= check::fits(record, &own, Unit::Call).is_err();
    }
    sum.lossy += usize::from(lossy);
    sum.by_call += usize::from(split);
    Ok(())
}

impl Shape {
    fn unit(&self) -> Unit {
        Unit::Request {
            max: self.request,
            block: self.block,
        }
    }
}

/// What no seed brings back stays where a round fails: the image before its recovery, and beside it what the streams did.
fn saved() -> PathBuf {
    format!("/var/tmp/ccfs-full-{}.img", std::process::id()).into()
}

fn saved_records() -> PathBuf {
    saved().with_extension("json")
}

fn save(image: &Path) {
    std::fs::copy(image, saved()).expect("copy the image");
}

fn keep(records: &[Record]) {
    let text = serde_json::to_vec(records).expect("records");
    let _ = std::fs::write(saved_records(), text);
}

/// The round has gone well.
fn forget() {
    for file in [saved(), saved_records()] {
        let _ = std::fs::remove_file(file);
    }
}

/// Nothing is lost: the tree is what all calls leave.
fn all_there(volume: &Volume, records: &[Record], shape: &Shape) -> Result<(), String> {
    let seen = look(volume.mnt());
    for record in records {
        let own = check::own(&seen, record.settings.stream);
        let fits = check::fits(record, &own, shape.unit())?;
        if fits.last().map(|f| f.calls) != Some(record.steps.len()) {
            return Err(format!(
                "of {} calls some are missing: {:?}",
                record.steps.len(),
                fits.last()
            ));
        }
    }
    Ok(())
}

/// The load as a process: `ccfs-load full DIR RECORD SETTINGS`.
pub fn main(dir: &Path, record: &Path, settings: &str) {
    let settings = serde_json::from_str(settings).expect("settings");
    let out = load::run(dir, settings);
    let text = serde_json::to_vec(&out).expect("record");
    std::fs::write(record, text).expect("write the record");
}
