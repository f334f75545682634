//! A mounted volume: its life from mount to unmount, its background threads, its health.
use crate::apply::{Applier, Home};
use crate::background::Wakeup;
use crate::barrier::Barriers;
use crate::commit::Queue;
use crate::flush::FlushGroup;
use crate::group::AbortListener;
use crate::health::{RUNNING, UNMOUNTED};
use crate::inode::{Inode, Inodes, References};
use crate::moment::MomentListener;
use crate::noted::NotedImage;
use crate::ondevice::{self, Backend};
use crate::pace::Pace;
use crate::planted::{self, Bug};
use crate::room::Room;
use crate::rounds::Rounds;
use crate::share::{ByUser, DirtyByUser};
use crate::space::{Asking, Gauge, GivenUp, Space, Turn};
use crate::status::{Counters, Status, StreamStatus};
use crate::stream::Streams;
use crate::sync::Mutex;
use crate::tails::Tails;
use crate::tune::Tuned;
use crate::types::*;
use crate::watch::{Cause, Event, Totals, Watch};
use ccfs_device::{Device, NearDevice};
use ccfs_ext4::Error;
use ccfs_image::{FastMap, Image, Run};
use ccfs_log::Log;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    pub read_only: bool,
    /// An operation's commit starts at most this long after it (C7).
    pub commit_interval: Duration,
    /// Bytes of uncommitted data before writers wait.
    pub dirty_limit: u64,
    /// What that rises to while much of the data becomes needless before it would be committed, and syncs are rare; 0: it is fixed.
    pub dirty_most: u64,
    /// What the limit never exceeds, also when it is changed later: the engine lowers it to what the device commits as one.
    pub dirty_bound: u64,
    pub noatime: bool,
    /// Clean metadata kept in memory, bytes; as much again for the last blocks of files that were written lately, and a
    /// quarter for what lies beside small files and directories that are read.
    pub cache_bytes: usize,
    /// How long an operation waits for another stream's open group that has changed the same before that group is taken back.
    pub group_wait: Duration,
    /// Longest time that a group stays open, whatever its owner asked for.
    pub group_timeout: Option<Duration>,
    /// Starts background threads (interval commit, apply, checkpoint). Tests on the simulator switch them off and call `Volume::tick`.
    pub background: bool,
    /// Without background threads: transactions that barriers close are dispatched when so many wait, or when somebody needs them.
    pub gather: usize,
    /// Much is written in pieces while others sync, and sync calls wait for each other's flush. Off: to measure what that is worth.
    pub paced: bool,
    /// Bytes that such a piece has at least. Tests make it small, so that little is much.
    pub piece_min: u64,
    /// Runs of overwritten blocks from this size on go to new blocks, smaller ones through the log, bytes. The default is what measuring
    /// recommends (docs/performance.md).
    pub remap_min: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            commit_interval: Duration::from_secs(5),
            dirty_limit: 128 << 20,
            dirty_most: 0,
            dirty_bound: u64::MAX,
            noatime: false,
            cache_bytes: 64 << 20,
            group_wait: Duration::from_secs(1),
            group_timeout: None,
            background: true,
            gather: 1,
            paced: true,
            piece_min: crate::pace::PIECE_MIN,
            remap_min: crate::place::REMAP_MIN,
        }
    }
}

/// Sizes that follow from the log.
pub(crate) struct Limits {
    /// Size of a checkpoint before apply pauses to make it, bytes.
    pub checkpoint_bytes: usize,
    /// Data blocks waiting to be brought home.
    pub home_blocks: usize,
    /// Nameless inodes that a checkpoint lists.
    pub orphans_max: usize,
    /// Uncommitted changes of directories' fields before writers wait: a checkpoint may have to name each.
    pub dir_fields_max: u64,
    /// A transaction is sealed when its records may need more, bytes.
    pub txn_log_bytes: u64,
    /// Most blocks that one operation allocates without content.
    pub prealloc_blocks: u64,
    /// Most bytes of one write operation.
    pub write_max: usize,
}

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub operations: Gauge,
    pub commits: AtomicU64,
    pub checkpoints: AtomicU64,
    pub syncs: AtomicU64,
    pub barriers: AtomicU64,
    pub ignored_syncs: Gauge,
    pub logged_bytes: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
    pub direct_bytes: AtomicU64,
    pub home_bytes: AtomicU64,
    pub avoided_bytes: Gauge,
    pub longest_stall_us: AtomicU64,
}

/// A mounted volume. All calls may come from any thread; calls that wait for durability block the calling thread.
pub struct Volume {
    pub(crate) dev: Arc<dyn Device>,
    pub(crate) image: NotedImage,
    pub(crate) backend: Backend,
    pub(crate) live: bool,
    pub(crate) options: Options,
    pub(crate) tuned: Tuned,
    pub(crate) block_size: u32,
    pub(crate) limits: Limits,
    pub(crate) inodes: Inodes,
    pub(crate) refs: Arc<References>,
    pub(crate) streams: Streams,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) flushes: FlushGroup,
    pub(crate) pace: Pace,
    pub(crate) rounds: Rounds,
    pub(crate) barriers: Barriers,
    pub(crate) applier: Mutex<Applier>,
    pub(crate) home: Home,
    pub(crate) tails: Tails,
    pub(crate) space: Space,
    /// Durable inodes without a name.
    pub(crate) orphans: Mutex<HashSet<Ino>>,
    /// Inodes whose access time waits to be logged until what is uncommitted about them is applied.
    pub(crate) unlogged_atimes: Mutex<FastMap<Ino, Arc<Inode>>>,
    /// Held by who changes a directory's parent: nobody else changes ancestry meanwhile.
    pub(crate) moves: Mutex<()>,
    /// Bytes of pages in layers.
    pub(crate) dirty: Gauge,
    /// Fields of directories that transactions not yet applied set.
    pub(crate) dir_fields: Gauge,
    /// Blocks that transactions not yet applied free.
    pub(crate) pending_free: Gauge,
    /// Inodes that they free.
    pub(crate) pending_inodes: Gauge,
    /// Inodes of groups that were taken back that the kernel still knows: their numbers are not free yet.
    pub(crate) ghosts: Mutex<HashSet<Ino>>,
    pub(crate) aborts_begun: AtomicU64,
    /// Files that are open O_ATOMIC.
    pub(crate) atomic_files: Mutex<HashSet<Ino>>,
    /// Memory of their drafts, bytes. With that of open groups it may be half of the dirty limit (`share`); past it neither may grow.
    pub(crate) drafts: ByUser,
    pub(crate) dirty_by_user: DirtyByUser,
    pub(crate) abort_listener: Mutex<Option<Arc<AbortListener>>>,
    pub(crate) moments: OnceLock<MomentListener>,
    pub(crate) reclaiming: Mutex<()>,
    pub(crate) turn: Turn,
    /// Whom to ask for files that are about to be forgotten.
    pub(crate) kernel: Mutex<Option<Arc<GivenUp>>>,
    pub(crate) asking: Asking,
    /// Calls of `forget` under way.
    pub(crate) forgetting: AtomicU32,
    /// What generation numbers of new inodes are made from.
    pub(crate) generation: u32,
    pub(crate) counters: AtomicCounters,
    pub(crate) watch: Watch,
    pub(crate) health: AtomicU8,
    pub(crate) stop_reason: Mutex<String>,
    pub(crate) room: Room,
    pub(crate) wakeup: Arc<Wakeup>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Limits {
    fn new(log: Option<&Log>, dev: &dyn Device, block_size: u32) -> Self {
        let bs = u64::from(block_size);
        if let (None, Some(device)) = (log, dev.transactions()) {
            return ondevice::limits(device);
        }
        let Some(log) = log else {
            return Limits {
                checkpoint_bytes: usize::MAX,
                home_blocks: usize::MAX,
                orphans_max: usize::MAX,
                dir_fields_max: u64::MAX,
                txn_log_bytes: u64::MAX,
                prealloc_blocks: 1 << 20,
                write_max: 1 << 20,
            };
        };
        let per_frame = log.payload_per_frame() as u64;
        let area = log.reserve_len() * per_frame;
        let ring = log.max_txn_frames() * per_frame;
        Limits {
            // What one record more can dirty must fit too.
            checkpoint_bytes: (area / 4 * 3)
                .min(area.saturating_sub(96 * (bs + 8)))
                .min(32 << 20) as usize,
            home_blocks: (area / 8 / 16).clamp(16, (32 << 20) / bs) as usize,
            orphans_max: (area / 8 / 4) as usize,
            dir_fields_max: area / 8 / 13,
            // Twice the largest operation and more: one that comes when the transaction is nearly full still fits the ring.
            txn_log_bytes: ring / 2,
            prealloc_blocks: ring / 4 / crate::record::RUN_BYTES,
            write_max: (1usize << (ring / 4).ilog2()).min(1 << 20),
        }
    }
}

impl Volume {
    /// Opens a device that holds an ext4 volume: recovers it if a crash left a log, then marks it in flight.
    ///
    /// # Errors
    /// `Refused` with the way out for volumes that ccfs does not take; `Corrupt`; device errors.
    pub fn mount(dev: Arc<dyn Device>, options: Options) -> Result<Arc<Volume>> {
        Self::recover(dev.clone())?;
        let dev: Arc<dyn Device> = Arc::new(NearDevice::over(dev, options.cache_bytes / 4));
        let read_only = options.read_only || dev.read_only();
        let options = Options {
            read_only,
            ..options
        };
        let image = Image::open(
            dev.clone(),
            ccfs_image::OpenOptions {
                read_only,
                cache_bytes: options.cache_bytes,
            },
        )?;
        if image.has_errors() {
            tracing::warn!(
                "a file system with errors ({} recorded): running ccfs fsck is recommended",
                image.recorded_errors().0
            );
        }
        let backend = if read_only {
            Backend::None
        } else {
            let backend = Backend::create(&dev, &image)?;
            image.write_in_flight(true)?;
            backend
        };
        let volume = Arc::new(Self::assemble(dev, image, backend, options, true));
        if volume.options.background && !read_only {
            volume.start_threads();
        }
        Ok(volume)
    }

    /// Recovers a crashed volume without mounting it: afterwards it is plain ext4. False: there was nothing to do.
    pub fn recover(dev: Arc<dyn Device>) -> Result<bool> {
        Ok(crate::recover::recover(&dev)?.is_some())
    }

    pub(crate) fn assemble(
        dev: Arc<dyn Device>,
        image: Image,
        backend: Backend,
        options: Options,
        live: bool,
    ) -> Volume {
        let block_size = image.geometry().block_size;
        let options = ondevice::fitting(&*dev, options);
        let pace = Pace::new(options.piece_min);
        let log = backend.log();
        let reserve = if live && backend.writes() {
            (image.geometry().blocks_count / 64).min(1024)
        } else {
            0
        };
        let limits = Limits::new(log, &*dev, block_size);
        let seed = crate::clock::now();
        let applier = Applier {
            applied_id: log.map_or(0, |l| l.next_id() - 1),
            applied_records: 0,
            dir_seqs: FastMap::default(),
            later: HashMap::new(),
            linear: HashSet::new(),
            unsettled: Vec::new(),
            rejected: HashSet::new(),
            last_checkpoint: Instant::now(),
        };
        let watermark = applier.applied_id;
        let refs = Arc::new(References::new());
        let wakeup = Arc::new(Wakeup::default());
        let image = NotedImage::new(image, wakeup.clone(), options.read_only);
        let space = Space::with_reserve(&image, reserve);
        Volume {
            dev,
            image,
            backend,
            live,
            tuned: Tuned::new(&options),
            tails: Tails::new(options.cache_bytes),
            options,
            block_size,
            limits,
            inodes: Inodes::new(refs.clone()),
            refs,
            streams: Streams::new(),
            queue: Mutex::new(Queue {
                watermark,
                ..Queue::default()
            }),
            flushes: FlushGroup::default(),
            pace,
            rounds: Rounds::default(),
            barriers: Barriers::default(),
            applier: Mutex::new(applier),
            home: Home::default(),
            space,
            orphans: Mutex::default(),
            unlogged_atimes: Mutex::default(),
            moves: Mutex::default(),
            dirty: Gauge::new(64 << 10),
            dir_fields: Gauge::new(32),
            pending_free: Gauge::default(),
            pending_inodes: Gauge::default(),
            ghosts: Mutex::default(),
            aborts_begun: AtomicU64::new(0),
            atomic_files: Mutex::default(),
            drafts: ByUser::default(),
            dirty_by_user: DirtyByUser::default(),
            abort_listener: Mutex::default(),
            moments: OnceLock::new(),
            reclaiming: Mutex::new(()),
            turn: Turn::default(),
            kernel: Mutex::default(),
            asking: Asking::default(),
            forgetting: AtomicU32::new(0),
            generation: seed.1 ^ seed.0 as u32,
            counters: AtomicCounters::default(),
            watch: Watch::default(),
            health: AtomicU8::new(RUNNING),
            stop_reason: Mutex::default(),
            room: Room::default(),
            wakeup,
            threads: Mutex::default(),
        }
    }

    /// Commits everything, frees nameless files, brings all home, leaves plain ext4, stops the background threads.
    /// A second call does nothing.
    pub fn unmount(&self) -> Result<()> {
        self.stop_threads();
        if self.health.load(Ordering::Acquire) == UNMOUNTED {
            return Ok(());
        }
        if self.options.read_only {
            self.health.store(UNMOUNTED, Ordering::Release);
            return Ok(());
        }
        self.check_running()?;
        let _hurry = self.pace.hurry();
        self.abort_all()?;
        self.close_atomic_files();
        self.commit_all(Cause::Unmount)?;
        self.drive()?;
        // All is applied now, so none has to wait any more.
        self.log_atimes();
        self.refs.clear();
        let nameless: Vec<Ino> = self.orphans.lock().iter().copied().collect();
        for ino in nameless {
            self.forget(ino, 1);
        }
        self.commit_all(Cause::Unmount)?;
        self.drive()?;
        let left = self.orphans.lock().len();
        if left > 0 {
            // Still marked as in flight: recovery frees them, or says why not.
            return Err(Error::corrupt(format!(
                "{left} files without a name cannot be freed; run ccfs fsck"
            )));
        }
        if planted::is(Bug::EarlyBit) {
            self.image.write_in_flight(false)?;
        }
        self.or_stop("arranging files and directories", || {
            self.arrange_the_rest()
        })?;
        // All is applied: this leaves the log empty.
        self.checkpoint()?;
        self.image.write_in_flight(false)?;
        self.health.store(UNMOUNTED, Ordering::Release);
        Ok(())
    }

    pub(crate) fn log(&self) -> Result<&Log> {
        self.backend.log().ok_or(Error::Errno(libc::EROFS))
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        self.inodes.get(&self.image, ino)
    }

    /// Everything should be committed, before writers have to wait.
    pub(crate) fn many_dir_fields(&self) -> bool {
        self.dir_fields.at_least(self.limits.dir_fields_max / 2)
    }

    /// After each operation: the committer is woken before writers have to wait.
    pub(crate) fn after_operation(&self) {
        if self.dirty.at_least(self.commit_threshold()) || self.many_dir_fields() {
            self.want_commit();
        }
    }

    /// Dirty bytes from which on the largest transaction is committed: while that goes on, writers fill the rest of the limit.
    pub(crate) fn commit_threshold(&self) -> u64 {
        self.dirty_limit() / 8 * 5
    }

    /// Sealed transactions, or the largest running one, should be committed soon.
    pub(crate) fn want_commit(&self) {
        self.want(|w| w.pressure = true);
    }

    // --- durability

    /// Commits and syncs from event number `from` on, at most `max`, and how many of those are lost.
    pub fn events(&self, from: u64, max: usize) -> (Vec<Event>, u64) {
        self.watch.events(from, max)
    }

    /// The number that the next event will get.
    pub fn next_event(&self) -> u64 {
        self.watch.next()
    }

    /// Commits and their latencies since the mount.
    pub fn totals(&self) -> Totals {
        self.watch.totals()
    }

    /// Makes durable what these streams did, in as few flushes as one sync takes.
    pub fn commit_streams(&self, streams: &[StreamId]) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        let last = streams.iter().filter_map(|s| self.streams.seal_stream(*s));
        // Nothing will be added to them, so there is nothing to wait for.
        self.commit(last.collect(), Cause::Interval).map(drop)
    }

    /// After transactions became durable: somebody applies them.
    pub(crate) fn durable_news(&self) -> Result<()> {
        if self.options.background {
            self.want(|w| w.apply = true);
            Ok(())
        } else {
            self.apply_ready()
        }
    }

    /// Work that background threads would do, for tests: commits what is older than `age`, applies it.
    pub fn tick(&self, age: Duration) -> Result<()> {
        self.check_running()?;
        self.abort_expired()?;
        self.log_atimes();
        let old = self.streams.seal_older(age);
        self.commit(old, Cause::Interval)?;
        self.apply_ready()
    }

    // --- the rest

    pub fn label(&self) -> Vec<u8> {
        self.image.geometry().label.clone()
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.image.geometry().uuid
    }

    /// Largest write request that is one operation (C2), bytes: 1 MiB unless the log is tiny.
    pub fn write_max(&self) -> usize {
        self.limits.write_max
    }

    /// FITRIM: discards free blocks in the byte range, pieces of at least `min_len`; returns bytes discarded. All three are rounded
    /// down to blocks, as the kernel's ext4 does. Error: EINVAL, no whole block, nothing of the volume, or longer pieces than a group.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let bs = u64::from(self.block_size);
        let (first, blocks, least) = (start / bs, len / bs, min_len / bs);
        let g = self.image.geometry();
        if first >= g.blocks_count || blocks == 0 || least > g.blocks_per_group.into() {
            return Err(Error::Errno(libc::EINVAL));
        }
        self.admit()?;
        let end = first.saturating_add(blocks);
        let discard = &mut |run: Run| Ok(self.dev.discard(run.pblk * bs, run.len * bs)?);
        let alloc = self.image.alloc();
        Ok(alloc.discard_free(first, end, least, discard)? * bs)
    }

    /// A stream with a new id.
    pub fn new_stream(&self) -> StreamId {
        self.streams.fresh_id()
    }

    /// Everything that the stream did is committed: nothing in memory knows its id any more.
    pub fn stream_is_settled(&self, stream: StreamId) -> bool {
        self.streams.is_settled(stream)
    }

    pub fn status(&self) -> Status {
        let c = &self.counters;
        let device = self.dev.counters();
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let (log_frames, log_frames_used) = self.backend.log().map_or((0, 0), |l| {
            (l.ring_len(), l.ring_len().saturating_sub(l.free_frames()))
        });
        Status {
            label: String::from_utf8_lossy(&self.label()).into_owned(),
            uuid: format_uuid(&self.uuid()),
            read_only: self.options.read_only,
            stopped: self.stop_reason.lock().clone(),
            damage: self.image.damage(),
            block_size: self.block_size,
            log_frames,
            log_frames_used,
            flash: self
                .dev
                .transactions()
                .map_or_else(Default::default, |d| d.flash_counters().into()),
            dirty_bytes: self.dirty.get(),
            dirty_limit_bytes: self.dirty_limit(),
            dirty_image_blocks: self.image.dirty_len() as u64,
            orphans: self.orphans.lock().len() as u64,
            streams: self.streams.view().iter().map(StreamStatus::of).collect(),
            counters: Counters {
                operations: c.operations.get(),
                commits: get(&c.commits),
                checkpoints: get(&c.checkpoints),
                syncs: get(&c.syncs),
                barriers: get(&c.barriers),
                ignored_syncs: c.ignored_syncs.get(),
                logged_bytes: get(&c.logged_bytes),
                checkpoint_bytes: get(&c.checkpoint_bytes),
                direct_bytes: get(&c.direct_bytes),
                home_bytes: get(&c.home_bytes),
                avoided_bytes: c.avoided_bytes.get(),
                longest_stall_us: get(&c.longest_stall_us),
                device_writes: device.writes,
                device_written_bytes: device.written_bytes,
                device_reads: device.reads,
                device_read_bytes: device.read_bytes,
                device_flushes: device.flushes,
            },
        }
    }
}

fn format_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
