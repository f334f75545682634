//! `make scale`: what grows without bound must not cost more. Directories, files, volumes and streams over powers of ten; mount time,
//! memory; and what an aged volume, and a file that was overwritten for long, still give.
use crate::cli::{SCALE_PARTS, ScaleArgs};
use crate::disk::DiskKind;
use crate::experiment::Measured;
use crate::guard::WorkDir;
use crate::image::{Image, Mount};
use crate::machine::Machine;
use crate::outputs::{check_document, check_files, say, warn};
use crate::report;
use crate::session::{progress, usable};
use crate::state::{Key, Record, Settings, State};
use crate::stats::Sample;
use crate::system::System;
use crate::workload::fileserver::Fileserver;
use crate::workload::randwrite::{self, Randwrite};
use crate::workload::seqwrite::{self, Seqwrite};
use crate::workload::{Scale, Worker, enter_stream};
use crate::{Because, Result, doc, run};
use ccfs_testkit::Rng;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Entries of a directory where their number is not what is measured.
const WIDTH: u64 = 1000;
/// Things that are looked up, after a mount and again, for one figure.
const LOOKUPS: u64 = 2000;
/// How long a file is overwritten whose reading counts as that of a fresh one: too short to scatter it.
const FRESH_SECONDS: f64 = 0.5;
/// How often a large file is written or read for one figure: single runs differ by a half on virtual disks.
const REPEATED: usize = 5;
/// Where the large file is that is written in order, and the one that is written at random places.
const STREAM: &str = "stream";
const DATABASE: &str = "database";
/// Files that a large volume gets.
const PROBES: u64 = 1000;
const BLOCK: u64 = 4096;
/// Space of the volume for each file: its inode (256 bytes, and as much in checksums, bitmaps and reserves) and its entry.
const BYTES_PER_FILE: u64 = 1024;
/// Room besides.
const ROOM: u64 = 2 << 30;
/// More files than any system makes in a second.
const FILES_PER_S_MAX: f64 = 250e3;
/// Tables are made by their first use: the image is a new file, of zeros.
const LAZY: [&str; 2] = ["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"];

/// Measures, prints, and writes what was asked for.
pub fn run(args: &ScaleArgs) -> Result<()> {
    check_files(&[args.json.as_deref()])?;
    check_document(args.doc.as_deref(), "scale")?;
    let systems = usable(&args.fs)?;
    if systems.is_empty() {
        return Err("nothing was measured; the lines above say why".into());
    }
    let mut state = State::at(args.state.as_deref())?;
    state.begin(&Settings::default(), Machine::look(&systems))?;
    for &system in &systems {
        let mut part = Part {
            args,
            system,
            state: &mut state,
        };
        part.all()?;
    }
    // By part, then by size: the systems beside each other.
    state.records.sort_by_key(|r| order(&r.key.workload));
    let cells = report::cells(&state.records);
    let conditions = state.machine().text();
    if let Some(file) = &args.json {
        report::write_json(&cells, file)?;
    }
    if let Some(document) = &args.doc {
        let text = format!("`make scale`. {conditions}\n\n{}", report::markdown(&cells));
        doc::insert(document, "scale", &text)?;
    }
    say(format!("{conditions}\n\n{}", report::table(&cells)))?;
    report::failures(&cells)
}

fn order(workload: &str) -> (usize, u32, String) {
    let part = SCALE_PARTS
        .iter()
        .position(|p| workload.starts_with(&format!("scale-{p}")));
    let exponent = workload
        .rsplit("1e")
        .next()
        .and_then(|e| e.parse().ok())
        .unwrap_or(0);
    (part.unwrap_or(SCALE_PARTS.len()), exponent, workload.into())
}

/// The measurements on one system.
struct Part<'a> {
    args: &'a ScaleArgs,
    system: System,
    state: &'a mut State,
}

impl Part<'_> {
    fn all(&mut self) -> Result<()> {
        for name in SCALE_PARTS {
            if !self.args.part.is_empty() && !self.args.part.iter().any(|p| p == name) {
                continue;
            }
            if self.has(name) {
                continue;
            }
            let outcome = match name {
                "directory" => self.directory(),
                "files" => self.files(),
                "volume" => self.volume(),
                "streams" => self.streams(),
                "aged" => self.aged(),
                _ => self.overwritten(),
            };
            if let Err(e) = outcome {
                warn(format!("{} {name}: FAILED: {e}", self.system.name()));
                self.add(&format!("scale-{name}/failed"), "", Err(e))?;
            }
        }
        Ok(())
    }

    /// A part is measured as a whole; its last line is written at its end.
    fn has(&self, name: &str) -> bool {
        let last = match name {
            "directory" => format!("scale-directory/1e{}", self.args.entries.ilog10()),
            "files" => format!("scale-files/1e{}", self.args.files.ilog10()),
            "volume" => format!("scale-volume/gib-1e{}", self.args.volume_gib.ilog10()),
            "streams" => format!("scale-streams/1e{}", self.args.streams.ilog10()),
            _ => format!("scale-{name}/sequential"),
        };
        let key = self.key(&last);
        self.state.has(&key)
    }

    fn key(&self, workload: &str) -> Key {
        Key {
            workload: workload.into(),
            system: self.system.name().into(),
            round: 0,
        }
    }

    fn add(&mut self, workload: &str, op: &str, outcome: Result<Measured>) -> Result<()> {
        if let Ok(measured) = &outcome {
            let values: Vec<String> = measured
                .values
                .iter()
                .map(|(name, value)| format!("{name} {value:.2}"))
                .collect();
            let shown = report::rate(measured.ops_per_s);
            progress(&format!(
                "{} {workload}: {shown}, {}",
                self.system.name(),
                values.join(", ")
            ));
        }
        let key = self.key(workload);
        // A part that is measured again, because it was interrupted, replaces what there was.
        self.state.records.retain(|r| r.key != key);
        self.state.add(Record::new(key, op.into(), outcome))
    }

    /// A new volume of `bytes` in a sparse file, and the time that mkfs took.
    fn volume_of(&self, work: &WorkDir, bytes: u64, extra: &[&str]) -> Result<(Image, f64)> {
        let image = Image::sparse(work, "scale", bytes)?;
        let begun = Instant::now();
        let ext4 = !matches!(self.system, System::Xfs | System::Btrfs);
        let mut options = if ext4 { LAZY.to_vec() } else { Vec::new() };
        options.extend(extra.iter().filter(|_| ext4));
        image.mkfs(work, self.system, &options)?;
        Ok((image, begun.elapsed().as_secs_f64()))
    }

    /// One directory that grows.
    fn directory(&mut self) -> Result<()> {
        let op = "a file created in a directory of so many";
        let path = |n: u64| PathBuf::from(format!("large/f{n:09}"));
        self.growing("directory", self.args.entries, op, &path)
    }

    /// Files in directories of a thousand.
    fn files(&mut self) -> Result<()> {
        let op = "a file created on a volume of so many";
        let path = |n: u64| {
            let leaf = n / WIDTH;
            PathBuf::from(format!("d{}/d{leaf}/f{n}", leaf / WIDTH))
        };
        self.growing("files", self.args.files, op, &path)
    }

    /// What a create costs in the last power of ten, and a lookup in all of it, right after a mount and warm. `path`: of file n, below the
    /// mount; the directory of all of a thousand is the same.
    fn growing(
        &mut self,
        part: &str,
        most: u64,
        op: &str,
        path: &dyn Fn(u64) -> PathBuf,
    ) -> Result<()> {
        let work = WorkDir::new(&self.args.dir)?;
        let inodes = (most + most / 8 + 1000).to_string();
        let bytes = ROOM + most * BYTES_PER_FILE;
        let (image, _) = self.volume_of(&work, bytes, &["-N", &inodes])?;
        let mut mount = image.mount(&work, self.system, &[])?;
        let root = mount.dir().to_path_buf();
        let path = |n| root.join(path(n));
        let mut made = 0;
        for exponent in powers(most) {
            let seconds = create(10u64.pow(exponent), &mut made, path)?;
            let figures;
            (mount, figures) = self.looked_up(&work, &image, mount, made, &path)?;
            let workload = format!("scale-{part}/1e{exponent}");
            self.add(&workload, op, Ok(seconds.on(figures)))?;
        }
        mount.end().map(drop)
    }

    /// Unmounts, mounts, and looks up random ones of `made` files twice: cold and warm.
    fn looked_up<'i>(
        &self,
        work: &WorkDir,
        image: &'i Image,
        mount: Mount<'i>,
        made: u64,
        path: &dyn Fn(u64) -> PathBuf,
    ) -> Result<(Mount<'i>, Measured)> {
        let memory = mount.memory_bytes().map(|b| b as f64);
        let unmount = mount.end()?;
        let begun = Instant::now();
        let mount = image.mount(work, self.system, &[])?;
        let mounted = begun.elapsed();
        let mut rng = Rng::new(made);
        let all: Vec<PathBuf> = (0..LOOKUPS.min(made))
            .map(|_| path(rng.below(made)))
            .collect();
        let look = || -> Result<f64> {
            let begun = Instant::now();
            for path in &all {
                path.metadata().because(path.display())?;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6 / all.len() as f64)
        };
        let cold = look()?;
        let figures = Measured::default()
            .with("cold_us", cold)
            .with("warm_us", look()?)
            .with("mount_ms", mounted.as_secs_f64() * 1e3)
            .with("unmount_s", unmount.as_secs_f64())
            .with("memory_bytes", memory);
        Ok((mount, figures))
    }

    /// Volumes in sparse files: making, mounting, a thousand files, unmounting.
    fn volume(&mut self) -> Result<()> {
        for exponent in 0..=self.args.volume_gib.ilog10() {
            let gib = 10u64.pow(exponent);
            let work = WorkDir::new(&self.args.dir)?;
            let (image, mkfs) = self.volume_of(&work, gib << 30, &[])?;
            let begun = Instant::now();
            let mount = image.mount(&work, self.system, &[])?;
            let mounted = begun.elapsed();
            let dir = mount.dir().join("probes");
            std::fs::create_dir(&dir).because(dir.display())?;
            let begun = Instant::now();
            for n in 0..PROBES {
                let path = dir.join(n.to_string());
                std::fs::write(&path, [n as u8; 64]).because(path.display())?;
            }
            run::sync(&dir)?;
            let seconds = begun.elapsed().as_secs_f64();
            let memory = mount.memory_bytes().map(|b| b as f64);
            let unmount = mount.end()?;
            let figures = Measured::new(PROBES as f64 / seconds)
                .with("us_per_op", seconds * 1e6 / PROBES as f64)
                .with("mkfs_s", mkfs)
                .with("mount_ms", mounted.as_secs_f64() * 1e3)
                .with("unmount_s", unmount.as_secs_f64())
                .with("memory_bytes", memory);
            self.add(
                &format!("scale-volume/gib-1e{exponent}"),
                "a small file written on a volume of so many GiB",
                Ok(figures),
            )?;
        }
        Ok(())
    }

    /// So many threads, on ccfs each in a stream of its own: creates, appends, and a sync now and then.
    fn streams(&mut self) -> Result<()> {
        for exponent in 0..=self.args.streams.ilog10() {
            let threads = 10u64.pow(exponent);
            let work = WorkDir::new(&self.args.dir)?;
            let files = (self.args.seconds * FILES_PER_S_MAX).ceil() as u64;
            let bytes = ROOM + files * 2 * BLOCK;
            // An inode for each block: nobody is to run out of them.
            let (image, _) = self.volume_of(&work, bytes, &["-i", "4096"])?;
            let mount = image.mount(&work, self.system, &[])?;
            let begun = Instant::now();
            let ops = many(
                mount.dir(),
                threads,
                self.system.is_ccfs(),
                self.args.seconds,
            )?;
            let seconds = begun.elapsed().as_secs_f64();
            let memory = mount.memory_bytes().map(|b| b as f64);
            let unmount = mount.end()?;
            let figures = Measured::new(ops as f64 / seconds)
                .with("us_per_op", seconds * 1e6 / ops.max(1) as f64)
                .with("memory_bytes", memory)
                .with("unmount_s", unmount.as_secs_f64());
            self.add(
                &format!("scale-streams/1e{exponent}"),
                "a file created, 4 KiB appended, every 16th synced, in so many streams (ext4: threads)",
                Ok(figures),
            )?;
        }
        Ok(())
    }

    /// Sequential throughput, writing and reading, of a volume on which a file server has worked, and of a fresh one: one right after the
    /// other, since what a virtual machine's disk gives changes within an hour.
    fn aged(&mut self) -> Result<()> {
        let scale = Scale(self.args.aged_scale);
        let work = WorkDir::new(&self.args.dir)?;
        let image = Image::new(&work, DiskKind::Real, scale.image_bytes())?;
        image.mkfs(&work, self.system, &[])?;
        let mount = image.mount(&work, self.system, &[])?;
        let home = mount.dir().join("server");
        std::fs::create_dir(&home).because(home.display())?;
        let server = Fileserver::new(scale);
        let time = Duration::from_secs_f64(self.args.age);
        run::run(&server, &home, 1, time)?;
        mount.end()?;
        let aged = self.sequential(&work, &image, scale)?;
        image.mkfs(&work, self.system, &[])?;
        let fresh = self.sequential(&work, &image, scale)?;
        let op = "1 MiB written to a new file, synced at its end";
        self.add("scale-aged/fresh", op, Ok(fresh.figures()))?;
        let share = |now: f64, then: f64| 100.0 * now / then;
        let figures = aged
            .figures()
            .with(
                "written_percent_of_fresh",
                share(aged.written, fresh.written),
            )
            .with("read_percent_of_fresh", share(aged.read, fresh.read));
        self.add("scale-aged/sequential", op, Ok(figures))
    }

    /// Writes a large file on an unmounted volume, and reads it.
    fn sequential(&self, work: &WorkDir, image: &Image, scale: Scale) -> Result<Sequential> {
        let stream = Seqwrite {
            bytes: Seqwrite::new(scale).bytes / 2,
        };
        let time = Duration::from_secs(600);
        let written = self.repeated(work, image, |root| {
            let dir = root.join(STREAM);
            if dir.exists() {
                std::fs::remove_dir_all(&dir).because(dir.display())?;
                run::sync(root)?;
            }
            std::fs::create_dir(&dir).because(dir.display())?;
            Ok(run::run(&stream, &dir, 1, time)?.ops_per_s())
        })?;
        let read = self.repeated(work, image, |root| {
            read_through(&root.join(STREAM).join(seqwrite::NAME))
        })?;
        Ok(Sequential { written, read })
    }

    /// The median of some measurements, each right after a mount.
    fn repeated(
        &self,
        work: &WorkDir,
        image: &Image,
        measure: impl Fn(&Path) -> Result<f64>,
    ) -> Result<f64> {
        let mut all = Vec::new();
        for _ in 0..REPEATED {
            let mount = image.mount(work, self.system, &[])?;
            all.push(measure(mount.dir())?);
            mount.end()?;
        }
        let sample = Sample::new(all).ok_or("nothing was measured")?;
        Ok(sample.median())
    }

    /// How fast a large file is read in order after random writes of 4 KiB for long, and after it was written in order.
    fn overwritten(&mut self) -> Result<()> {
        let scale = Scale(self.args.aged_scale);
        let work = WorkDir::new(&self.args.dir)?;
        let image = Image::new(&work, DiskKind::Real, scale.image_bytes())?;
        let age = self.args.age.max(FRESH_SECONDS);
        let (writes, read) = self.written_at_random(&work, &image, scale, age)?;
        let (few, fresh) = self.written_at_random(&work, &image, scale, FRESH_SECONDS)?;
        let op = "4 KiB written at a random place, synced every 100; then read in order";
        let figures = Measured::new(few).with("read_mib_per_s", fresh);
        self.add("scale-overwritten/fresh", op, Ok(figures))?;
        let figures = Measured::new(writes)
            .with("read_mib_per_s", read)
            .with("read_percent_of_fresh", 100.0 * read / fresh);
        self.add("scale-overwritten/sequential", op, Ok(figures))
    }

    /// Writes a file on a new volume in order, and then at random places for so long: writes a second, and MiB a second of reading it in order.
    fn written_at_random(
        &self,
        work: &WorkDir,
        image: &Image,
        scale: Scale,
        seconds: f64,
    ) -> Result<(f64, f64)> {
        image.mkfs(work, self.system, &[])?;
        let mount = image.mount(work, self.system, &[])?;
        let dir = mount.dir().join(DATABASE);
        std::fs::create_dir(&dir).because(dir.display())?;
        let database = Randwrite::new(scale);
        let time = Duration::from_secs_f64(seconds);
        let written = run::run(&database, &dir, 1, time)?;
        mount.end()?;
        let read = self.repeated(work, image, |root| {
            read_through(&root.join(DATABASE).join(randwrite::NAME))
        })?;
        Ok((written.ops_per_s(), read))
    }
}

/// How a volume writes and reads a large file, MiB a second.
struct Sequential {
    written: f64,
    read: f64,
}

impl Sequential {
    fn figures(&self) -> Measured {
        Measured::new(self.written).with("read_mib_per_s", self.read)
    }
}

/// Exponents from 3 (or the largest, if that is smaller) to that of `most`.
fn powers(most: u64) -> std::ops::RangeInclusive<u32> {
    let last = most.max(10).ilog10();
    last.min(3)..=last
}

/// Files made, and how long it took.
struct Made {
    files: u64,
    seconds: f64,
}

impl Made {
    fn on(&self, mut figures: Measured) -> Measured {
        figures.ops_per_s = self.files as f64 / self.seconds.max(1e-9);
        figures.with("us_per_op", self.seconds * 1e6 / self.files.max(1) as f64)
    }
}

/// Makes files until there are `goal`.
fn create(goal: u64, made: &mut u64, path: impl Fn(u64) -> PathBuf) -> Result<Made> {
    let (begun, first) = (Instant::now(), *made);
    while *made < goal {
        let path = path(*made);
        if made.is_multiple_of(WIDTH)
            && let Some(parent) = path.parent()
        {
            // What cannot be made fails with the file.
            let _ = std::fs::create_dir_all(parent);
        }
        File::create_new(&path).because(path.display())?;
        *made += 1;
    }
    Ok(Made {
        files: *made - first,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Operations of all threads within `seconds`.
fn many(dir: &Path, threads: u64, streams: bool, seconds: f64) -> Result<u64> {
    let time = Duration::from_secs_f64(seconds);
    let one = |index: u64| -> std::io::Result<u64> {
        if streams {
            enter_stream(dir)?;
        }
        let home = dir.join(format!("t{index}"));
        std::fs::create_dir(&home)?;
        let block = vec![index as u8; BLOCK as usize];
        let (begun, mut ops) = (Instant::now(), 0);
        // One at least, however busy the machine is.
        while ops == 0 || begun.elapsed() < time {
            let mut file = File::create_new(home.join(ops.to_string()))?;
            file.write_all(&block)?;
            if ops % 32 == 0 {
                file.sync_all()?;
            }
            ops += 2;
        }
        Ok(ops)
    };
    std::thread::scope(|scope| {
        let one = &one;
        let mut running = Vec::new();
        for index in 0..threads {
            let small = std::thread::Builder::new().stack_size(256 << 10);
            let thread = small.spawn_scoped(scope, move || one(index));
            running.push(thread.because("a thread")?);
        }
        let mut sum = 0;
        for thread in running {
            let ops = thread.join().map_err(|_| "a thread panicked")?;
            sum += ops.because("a stream")?;
        }
        Ok(sum)
    })
}

/// MiB a second of a file read from its beginning to its end.
fn read_through(path: &Path) -> Result<f64> {
    let file = File::open(path).because(path.display())?;
    let bytes = file.metadata().because(path.display())?.len();
    let mut worker = Worker::new(path, 0, 0);
    let piece = 1u64 << 20;
    let begun = Instant::now();
    for at in (0..bytes / piece * piece).step_by(piece as usize) {
        worker.read_at(&file, at, piece).because(path.display())?;
    }
    // A last byte shows that the end can be read too.
    let mut last = [0];
    if bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)
            .because(path.display())?;
    }
    Ok(bytes as f64 / 1048576.0 / begun.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_of_part_and_size() {
        let mut all = [
            "scale-streams/1e0",
            "scale-files/1e10",
            "scale-files/1e9",
            "scale-directory/1e6",
            "scale-volume/gib-1e4",
        ];
        all.sort_by_key(|w| order(w));
        let wanted = [
            "scale-directory/1e6",
            "scale-files/1e9",
            "scale-files/1e10",
            "scale-volume/gib-1e4",
            "scale-streams/1e0",
        ];
        assert_eq!(all, wanted);
        assert_eq!(powers(1_000_000), 3..=6);
        assert_eq!(powers(100), 2..=2);
    }

    #[test]
    fn streams_do_something_each() {
        let dir = tempfile::tempdir().unwrap();
        let ops = many(dir.path(), 3, false, 0.01).unwrap();
        assert!(ops >= 6);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
