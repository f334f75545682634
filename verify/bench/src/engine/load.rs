//! What the clients of a run do. All of it follows from the sizes and the seed: each target ends with the very same files.
use super::crew::Crew;
use super::target::Target;
use crate::workload::Scale;
use crate::{Because, Result};
use ccfs_engine::StreamId;
use ccfs_testkit::Rng;
use clap::ValueEnum;
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const SMALL_BYTES: u64 = 16 << 10;
/// Mean size of the file server's files; those of the others have `SMALL_BYTES`.
const SERVED_BYTES: u64 = 128 << 10;
/// Largest write, bytes.
const WRITE_MAX: u64 = SERVED_BYTES / 2 * 3;
/// Entries of a directory where files are made or removed, and of the file server's.
const WIDTH: u64 = 100;
const SERVED_WIDTH: u64 = 20;
/// What all threads do together at scale 1. The most is 320 MiB of data: more than may wait in memory, so that commits are part of
/// the rate, and little enough for a machine with 2 GiB.
const FILES: u64 = 20_000;
const BLOCKS: u64 = 65_536;
const MIX_TURNS: u64 = 2_000;
/// Files that a mix has all the time.
const MIX_FILES: u64 = 800;
/// Size of what is overwritten, blocks.
const OVERWRITTEN: u64 = 16_384;
/// For so long threads only run before a pass.
const SPREAD: Duration = Duration::from_millis(50);
/// A thread has at least so many turns, and files or blocks to work on.
const LEAST: u64 = 10;
/// Each thread has random numbers of its own.
pub const THREADS_MAX: u64 = 64;
/// The stream that all threads share; the next numbers are those of their own.
const STREAM: u64 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Job {
    #[value(name = "create-16k")]
    Create,
    Append,
    Overwrite,
    Unlink,
    Varmail,
    Fileserver,
}

impl Job {
    pub fn name(self) -> &'static str {
        match self {
            Job::Create => "create-16k",
            Job::Append => "append",
            Job::Overwrite => "overwrite",
            Job::Unlink => "unlink",
            Job::Varmail => "varmail",
            Job::Fileserver => "fileserver",
        }
    }

    pub fn op(self) -> &'static str {
        match self {
            Job::Create => "a new file of 16 KiB",
            Job::Append => "4 KiB appended to a file",
            Job::Overwrite => "4 KiB overwritten in a file",
            Job::Unlink => "a file of 16 KiB removed",
            Job::Varmail => "an open, create, write, fsync, close or delete",
            Job::Fileserver => "an open, create, write, close, stat or delete",
        }
    }

    /// Operations of a turn.
    pub fn ops(self) -> u64 {
        match self {
            Job::Varmail => 11,
            Job::Fileserver => 8,
            _ => 1,
        }
    }
}

/// A set of files and what is done to it. One run has up to two: one for the first pass, one for the pass that is measured.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub job: Job,
    pub threads: u64,
    /// Of each thread.
    pub turns: u64,
    /// Files that each thread starts with.
    pub files: u64,
    /// Blocks of the file that each thread overwrites.
    pub blocks: u64,
    pub seed: u64,
    /// Each thread in a stream of its own.
    pub streams: bool,
    /// Which set: a part of its names.
    pub set: u64,
}

/// How long the clients took.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    pub ops: u64,
    pub elapsed: Duration,
}

/// The beginning of a pass. Threads sleep between two passes and wake up where they were, or where who wakes them is; two that share a processor would
/// do so for a good part of a short pass. So they run for a while before, and the system finds a processor for each.
struct Start {
    there: Barrier,
    is_spread: AtomicBool,
    counted: AtomicUsize,
    go: AtomicBool,
}

impl Start {
    fn of(threads: usize) -> Start {
        Start {
            there: Barrier::new(threads + 1),
            is_spread: AtomicBool::new(false),
            counted: AtomicUsize::new(0),
            go: AtomicBool::new(false),
        }
    }

    fn wait(&self) {
        self.there.wait();
        while !self.is_spread.load(Acquire) {
            std::hint::spin_loop();
        }
        // The system counts a thread's time when it is asked for it, or at a tick: what it took by now is not the pass's.
        let _ = clock_gettime(ClockId::ThreadCPUTime);
        self.counted.fetch_add(1, AcqRel);
        // Others may need the processor before it begins.
        while !self.go.load(Acquire) {
            std::thread::yield_now();
        }
    }

    fn spread(&self) {
        self.there.wait();
        std::thread::sleep(SPREAD);
    }

    /// Returns when all `threads` wait for nothing but `go`.
    fn settle(&self, threads: usize) {
        self.is_spread.store(true, Release);
        while self.counted.load(Acquire) < threads {
            std::thread::yield_now();
        }
    }
}

impl Load {
    pub fn new(job: Job, threads: u64, scale: Scale) -> Load {
        let each = |all: u64| scale.times(all, LEAST * threads) / threads;
        let (turns, files) = match job {
            Job::Create => (each(FILES), 0),
            Job::Append | Job::Overwrite => (each(BLOCKS), 1),
            Job::Unlink => (each(FILES), each(FILES)),
            Job::Varmail | Job::Fileserver => (each(MIX_TURNS), each(MIX_FILES)),
        };
        Load {
            job,
            threads,
            turns,
            files,
            blocks: each(OVERWRITTEN),
            seed: 0,
            streams: false,
            set: 0,
        }
    }

    fn width(&self) -> u64 {
        match self.job {
            Job::Create | Job::Unlink => WIDTH,
            Job::Fileserver => SERVED_WIDTH,
            _ => u64::MAX,
        }
    }

    fn dirs(&self) -> u64 {
        let made = if self.job == Job::Create {
            self.turns
        } else {
            self.files
        };
        made.div_ceil(self.width())
    }

    fn dir_name(&self, thread: u64, dir: u64) -> String {
        format!("s{}-t{thread}-d{dir:04}", self.set)
    }

    /// Sizes of the files that a thread starts with, bytes.
    fn sizes(&self, thread: u64) -> Vec<u64> {
        let mut rng = self.rng(thread, 0);
        let mut size = |_| match self.job {
            Job::Create | Job::Append => 0,
            Job::Overwrite => self.blocks * BLOCK,
            Job::Unlink => SMALL_BYTES,
            Job::Varmail => rng.around(SMALL_BYTES),
            Job::Fileserver => rng.around(SERVED_BYTES),
        };
        (0..self.files).map(&mut size).collect()
    }

    /// For one of the two purposes of a thread: sizes that it starts with, and turns.
    fn rng(&self, thread: u64, purpose: u64) -> Rng {
        Rng::part(self.seed, (self.set * THREADS_MAX + thread) * 2 + purpose)
    }

    fn stream(&self, thread: u64) -> StreamId {
        StreamId(STREAM + if self.streams { thread } else { 0 })
    }

    /// Makes the directories, and the files that the threads start with.
    pub fn prepare<T: Target>(&self, target: &T) -> io::Result<()> {
        let stream = StreamId(STREAM);
        let data = data(&mut Rng::new(self.seed));
        for thread in 0..self.threads {
            let mut dirs = Vec::new();
            for dir in 0..self.dirs() {
                dirs.push(target.make_dir(stream, &self.dir_name(thread, dir))?);
            }
            for (n, size) in (0..).zip(self.sizes(thread)) {
                let dir = &dirs[(n / self.width()) as usize];
                let file = target.create(stream, dir, &name(n))?;
                for at in (0..size).step_by(WRITE_MAX as usize) {
                    let piece = WRITE_MAX.min(size - at) as usize;
                    target.write(stream, &file, at, &data[..piece])?;
                }
            }
        }
        Ok(())
    }

    /// The threads' things. Everything that is there is looked up: the run begins with metadata in memory.
    pub fn clients<T: Target>(&self, target: &Arc<T>) -> Result<Vec<Client<T>>> {
        let all = (0..self.threads).map(|thread| Client::new(*self, target.clone(), thread));
        all.collect::<io::Result<Vec<_>>>().because("preparation")
    }

    /// The turns of all clients, each in a thread of the crew. `ready` is called when each has a processor, `begins` just before the first turn.
    pub fn pass<T: Target>(
        &self,
        crew: &Crew,
        clients: Vec<Client<T>>,
        ready: impl FnOnce() -> Result<()>,
        begins: impl FnOnce(),
    ) -> Result<Pass> {
        let start = Arc::new(Start::of(clients.len()));
        let (done, all) = mpsc::sync_channel(clients.len());
        let jobs = clients.into_iter().map(|mut client| {
            let (start, done) = (start.clone(), done.clone());
            move || {
                start.wait();
                let outcome = client.all_turns();
                // Whoever waits for it has gone where another one has failed.
                let _ = done.send((outcome, client));
            }
        });
        crew.begin(jobs)?;
        drop(done);
        start.spread();
        let told = ready();
        start.settle(self.threads as usize);
        begins();
        let began = Instant::now();
        start.go.store(true, Release);
        // The threads make their turns all the same, and nobody looks at them.
        told?;
        let (mut ops, mut clients) = (0, Vec::with_capacity(self.threads as usize));
        for _ in 0..self.threads {
            let (outcome, client) = all.recv().map_err(|_| "a thread panicked")?;
            ops += outcome.because(self.job.name())?;
            clients.push(client);
        }
        let elapsed = began.elapsed();
        Ok(Pass { ops, elapsed })
    }
}

fn data(rng: &mut Rng) -> Vec<u8> {
    let mut data = vec![0; WRITE_MAX as usize];
    rng.fill(&mut data);
    data
}

fn name(n: u64) -> String {
    format!("f{n:08}")
}

/// One thread of a run. Its turns allocate nothing: what is counted is the target's.
pub struct Client<T: Target> {
    load: Load,
    target: Arc<T>,
    stream: StreamId,
    rng: Rng,
    data: Vec<u8>,
    dirs: Vec<T::Dir>,
    /// Number and size of each file that is there.
    files: Vec<(u64, u64)>,
    /// The number of the next file.
    next: u64,
    /// The one file of who appends or overwrites, and its end.
    file: Option<T::File>,
    end: u64,
    /// The last name that was needed.
    name: String,
}

impl<T: Target> Client<T> {
    fn new(load: Load, target: Arc<T>, thread: u64) -> io::Result<Client<T>> {
        let mut rng = load.rng(thread, 1);
        let dirs = (0..load.dirs()).map(|dir| target.dir(&load.dir_name(thread, dir)));
        let dirs = dirs.collect::<io::Result<Vec<_>>>()?;
        for dir in &dirs {
            // A search for what is not there reads the whole directory.
            match target.size(dir, "no such file") {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(_) => return Err(io::Error::other("a directory has what nobody made")),
            }
        }
        let mut client = Client {
            load,
            target,
            stream: load.stream(thread),
            data: data(&mut rng),
            rng,
            dirs,
            files: (0..).zip(load.sizes(thread)).collect(),
            next: load.files,
            file: None,
            end: 0,
            name: name(0),
        };
        for at in 0..client.files.len() {
            let (n, size) = client.files[at];
            let dir = client.named(n);
            let found = client.target.size(&client.dirs[dir], &client.name)?;
            if found != size {
                let why = format!("{} has {found} bytes instead of {size}", client.name);
                return Err(io::Error::other(why));
            }
        }
        if matches!(load.job, Job::Append | Job::Overwrite) {
            client.file = Some(client.open(0)?);
        }
        // A turn of a mix, and each of who makes files, has more than there were.
        client.files.reserve(load.turns as usize);
        Ok(client)
    }

    /// Notes the name of a file in `self.name`. Gives the number of its directory.
    fn named(&mut self, n: u64) -> usize {
        self.name.clear();
        // Nothing fails that writes to a String.
        let _ = write!(self.name, "f{n:08}");
        (n / self.load.width() % self.dirs.len() as u64) as usize
    }

    /// Gives the operations done.
    fn all_turns(&mut self) -> io::Result<u64> {
        let mut ops = 0;
        for _ in 0..self.load.turns {
            ops += self.turn()?;
        }
        Ok(ops)
    }

    /// Likewise.
    fn turn(&mut self) -> io::Result<u64> {
        match self.load.job {
            Job::Create => self.create(SMALL_BYTES, false)?,
            Job::Append => {
                self.write_at(self.end)?;
                self.end += BLOCK;
            }
            Job::Overwrite => {
                let at = self.rng.below(self.load.blocks) * BLOCK;
                self.write_at(at)?;
            }
            Job::Unlink => self.remove()?,
            Job::Varmail => {
                self.remove()?;
                self.create(SMALL_BYTES, true)?;
                self.append(true)?;
                let at = self.rng.index(self.files.len());
                self.open(self.files[at].0)?;
            }
            Job::Fileserver => {
                self.create(SERVED_BYTES, false)?;
                self.append(false)?;
                self.remove()?;
                let at = self.rng.index(self.files.len());
                let dir = self.named(self.files[at].0);
                self.target.size(&self.dirs[dir], &self.name)?;
            }
        }
        Ok(self.load.job.ops())
    }

    fn open(&mut self, n: u64) -> io::Result<T::File> {
        let dir = self.named(n);
        self.target.open(&self.dirs[dir], &self.name)
    }

    /// A new file of about `mean` bytes; of mixes the size differs.
    fn create(&mut self, mean: u64, synced: bool) -> io::Result<()> {
        let n = self.next;
        self.next += 1;
        let size = match self.load.job {
            Job::Create => mean,
            _ => self.rng.around(mean),
        };
        let dir = self.named(n);
        let file = self
            .target
            .create(self.stream, &self.dirs[dir], &self.name)?;
        self.files.push((n, size));
        self.write(&file, 0, size, synced)
    }

    /// To the end of one of the files.
    fn append(&mut self, synced: bool) -> io::Result<()> {
        let at = self.rng.index(self.files.len());
        let (n, end) = self.files[at];
        let file = self.open(n)?;
        let more = self.rng.around(SMALL_BYTES);
        self.files[at].1 += more;
        self.write(&file, end, more, synced)
    }

    fn write(&self, file: &T::File, at: u64, len: u64, synced: bool) -> io::Result<()> {
        let data = &self.data[..len as usize];
        self.target.write(self.stream, file, at, data)?;
        match synced {
            true => self.target.sync(self.stream, file),
            false => Ok(()),
        }
    }

    /// One of the files, whichever.
    fn remove(&mut self) -> io::Result<()> {
        let at = self.rng.index(self.files.len());
        let (n, _) = self.files.swap_remove(at);
        let dir = self.named(n);
        self.target.remove(self.stream, &self.dirs[dir], &self.name)
    }

    /// A block of the one file.
    fn write_at(&self, at: u64) -> io::Result<()> {
        match &self.file {
            Some(file) => self.write(file, at, BLOCK, false),
            None => Err(io::Error::other("no file is open")),
        }
    }
}
