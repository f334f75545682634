//! The life of a mount: mounted, ready, served, ended.
use crate::abi::init::OVER_IO_URING;
use crate::home::Home;
use crate::leaving::{Asked, Leaver};
use crate::mount::Mounted;
use crate::mount_config::{MountConfig, MountError};
use crate::server::init::WANTED;
use crate::server::syncfs::{self, Syncfs};
use crate::server::{DirectAllowed, MountInfo, Server};
use crate::sys::SignalEvents;
use crate::transport::channel::Channel;
use crate::transport::dev::{Pool, PoolConfig};
use crate::transport::uring::Rings;
use crate::transport::{InUse, Transport, prepare_rings};
use ccfs_engine::Volume;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A mounted volume that is not served yet: requests wait.
pub struct Session {
    volume: Arc<Volume>,
    server: Arc<Server>,
    channel: Channel,
    mounted: Mounted,
    pool: PoolConfig,
    /// With io_uring.
    rings: Option<Rings>,
    transport: Arc<InUse>,
}

/// Mounts, serves, calls `ready`, and returns when the volume is unmounted; then it is at rest.
///
/// SIGTERM, SIGINT and SIGHUP sync and unmount. While the volume is in use that fails, which is logged, and serving goes on;
/// a second signal takes the mount out of the tree (lazy unmount) and the last user's leaving ends it. SIGHUP within a second of another signal is not
/// a second one.
///
/// The caller detaches itself from its terminal before any thread exists (so before `Volume::mount`), and calls
/// [`crate::prepare_process`] and [`Home::leave`] there. If its name (`argv[0]`) begins with '@', systemd leaves it alone at shutdown until the
/// volume is unmounted.
///
/// Errors: if mounting or `ready` fails the volume is unmounted, too. What fails after `ready` was called could not have been known before.
pub fn serve<E: From<MountError>>(
    volume: Arc<Volume>,
    home: Home,
    mountpoint: &Path,
    config: &MountConfig,
    ready: impl FnOnce(&Session) -> Result<(), E>,
) -> Result<(), E> {
    let mounted = Session::mount_from(volume.clone(), home, mountpoint, config);
    let session = mounted.inspect_err(|_| {
        // The reason why it is not mounted is what counts.
        let _ = volume.unmount();
    })?;
    session.serve_and(ready)
}

impl Session {
    /// Mounts and agrees with the kernel on the protocol. If it fails nothing is mounted and `volume` is as before.
    pub fn mount(
        volume: Arc<Volume>,
        mountpoint: &Path,
        config: &MountConfig,
    ) -> Result<Session, MountError> {
        Session::mount_from(volume, Home::stay(), mountpoint, config)
    }

    fn mount_from(
        volume: Arc<Volume>,
        home: Home,
        mountpoint: &Path,
        config: &MountConfig,
    ) -> Result<Session, MountError> {
        let block_size = volume.statfs()?.block_size;
        // The kernel asks for the protocol when the mount is made, so rings have to be possible by then.
        let (mut rings, mut why) = rings(config)?;
        let (channel, mounted) = Mounted::make_from(home, mountpoint, config, block_size)?;
        let wanted = WANTED | if rings.is_some() { OVER_IO_URING } else { 0 };
        let server = channel
            .handshake(wanted, volume.write_max())
            .map_err(|e| MountError::system("FUSE", e))
            .and_then(|agreed| {
                if rings.is_some() && !agreed.has(OVER_IO_URING) {
                    rings = None;
                    why = Some("the kernel does not offer io_uring".into());
                    if config.transport == Transport::Uring {
                        return Err(no_rings(why.take().unwrap_or_default()));
                    }
                }
                let transport = match &rings {
                    Some(_) => InUse::uring(),
                    None => InUse::dev(why.clone()),
                };
                let minor = match config.old_kernel {
                    true => agreed.minor.min(syncfs::FIRST_MINOR - 1),
                    false => agreed.minor,
                };
                let mut told = Syncfs::of(mounted.fuseblk, minor);
                let mut sentinel = None;
                if told == Syncfs::OldKernel(minor) {
                    match mounted.arm(&volume) {
                        Ok(armed) => (told, sentinel) = (Syncfs::Sentinel, Some(armed)),
                        Err(e) if e.kind() == ErrorKind::ResourceBusy => {
                            told = Syncfs::NoWriter(minor);
                        }
                        Err(e) => tracing::info!("sync calls do not reach the daemon: {e}"),
                    }
                }
                let info = MountInfo {
                    mountpoint: mounted.mountpoint.display().to_string(),
                    source: mounted.source.display().to_string(),
                    device: mounted.device().to_string(),
                    syncfs: told,
                    sentinel,
                    status_dir: config.status_dir,
                    atomic_files: config.atomic_files,
                    direct: DirectAllowed {
                        on: config.direct.unwrap_or(!config.allow_other),
                        others: config.allow_other,
                        by_hand: false,
                    },
                    read_only: config.read_only,
                    synchronous: config.sync || config.dirsync,
                    transport: Arc::new(transport),
                    options: config.options.clone(),
                    messages: config.messages.clone(),
                };
                if let Some(warning) = info.syncfs.warning(&mounted.mountpoint) {
                    tracing::warn!("{warning}");
                }
                let transport = info.transport.clone();
                let callers = config.callers.clone();
                let server = Server::new(volume.clone(), agreed, info, callers)?;
                Ok((server, transport))
            });
        match server {
            Ok((server, transport)) => {
                match (transport.name(), transport.why()) {
                    (_, Some(why)) => tracing::info!("serving over /dev/fuse: {why}"),
                    ("uring", None) => tracing::info!("serving over io_uring"),
                    _ => {}
                }
                Ok(Session {
                    volume,
                    server: Arc::new(server),
                    channel,
                    mounted,
                    pool: config.pool,
                    rings,
                    transport,
                })
            }
            Err(e) => {
                drop(channel);
                mounted.discard();
                mounted.wait();
                Err(e)
            }
        }
    }

    /// The mount.
    pub fn mounted(&self) -> &Mounted {
        &self.mounted
    }

    /// Serves until the volume is unmounted, then it is at rest. See [`serve`] for signals.
    pub fn serve(self) -> Result<(), MountError> {
        self.serve_and(|_| Ok(()))
    }

    /// As [`Session::serve`]; `ready` is called as soon as requests are served. If it fails the volume is unmounted.
    fn serve_and<E: From<MountError>>(
        mut self,
        ready: impl FnOnce(&Session) -> Result<(), E>,
    ) -> Result<(), E> {
        let (events, ended, signals, pool) = match self.start() {
            Ok(started) => started,
            Err(e) => {
                self.abandon();
                return Err(MountError::system("cannot start serving", e).into());
            }
        };
        let source = self.mounted.source.display().to_string();
        let dir = self.mounted.mountpoint.display().to_string();
        let way = match self.transport.name() {
            "uring" => "io_uring",
            _ => "/dev/fuse",
        };
        tracing::info!(target: "life", "mounted {source} on {dir}, over {way}");
        let refused = ready(&self).err();
        if refused.is_some()
            && let Err(e) = self.mounted.detach().result
        {
            tracing::error!("cannot detach {}: {e}", self.mounted.mountpoint.display());
        }
        let rings = self.rings.take();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pool.wait();
                if let Some(rings) = rings {
                    rings.end();
                }
                // An eventfd at 0 takes a 1.
                let _ = rustix::io::write(&ended, &1u64.to_ne_bytes());
            });
            self.control(&events, &ended, &signals);
        });
        let at_rest = self.server.end().map_err(MountError::Unclean);
        self.mounted.wait();
        // An error is told by whoever gets it.
        if at_rest.is_ok() {
            tracing::info!(target: "life", "unmounted {source} from {dir}: it is plain ext4");
        }
        match refused {
            Some(why) => Err(why),
            None => Ok(at_rest?),
        }
    }

    /// As [`Session::serve`], for a process that serves several volumes and has its own signals: it unmounts by itself.
    pub fn serve_silently(mut self) -> Result<(), MountError> {
        match self.start_transport() {
            Ok(pool) => {
                pool.wait();
                if let Some(rings) = self.rings.take() {
                    rings.end();
                }
            }
            Err(e) => {
                self.abandon();
                return Err(MountError::system("cannot start serving", e));
            }
        }
        let at_rest = self.server.end().map_err(MountError::Unclean);
        self.mounted.wait();
        at_rest
    }

    /// The pool serves what comes over /dev/fuse: with rings FORGET and INTERRUPT, without them everything.
    fn start_transport(&mut self) -> std::io::Result<Arc<Pool>> {
        // Before the first request: it can be the one that opens a group.
        if let Err(e) = self.server.start_notifying(self.channel.clone()) {
            tracing::error!(
                "a thread could not be started: {e}; there are no atomic groups, and readers beside asynchronous direct writes may see old bytes"
            );
        }
        let pool = Pool::start(self.channel.clone(), self.server.clone(), self.pool)?;
        if let Some(rings) = &mut self.rings {
            let handler = self.server.clone();
            match rings.start(&self.channel, handler, self.pool.waiting_max) {
                Ok(()) => pool.expect_forgets(),
                Err(why) => {
                    tracing::warn!("serving over /dev/fuse, the kernel takes no rings: {why}");
                    self.transport.fall_back(why);
                }
            }
        }
        Ok(pool)
    }

    fn start(&mut self) -> std::io::Result<(OwnedFd, OwnedFd, SignalEvents, Arc<Pool>)> {
        let events = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let signals = SignalEvents::install(&events)?;
        // Before the first notification.
        self.mounted.end_if_killed();
        let pool = self.start_transport()?;
        Ok((events, ended, signals, pool))
    }

    /// Waits for signals until the connection ends.
    fn control(&self, events: &OwnedFd, ended: &OwnedFd, signals: &SignalEvents) {
        let mut asked = Asked::default();
        let leaver = Leaver::start(self.volume.clone(), self.mounted.clone());
        loop {
            let mut fds = [
                PollFd::new(events, PollFlags::IN),
                PollFd::new(ended, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => tracing::error!("poll: {e}"),
            }
            if fds[1].revents().contains(PollFlags::IN) {
                return leaver.end();
            }
            if rustix::io::read(events, &mut [0u8; 8]).is_ok()
                && let Some(times) = asked.came(signals.came(), Instant::now())
            {
                leaver.leave(times, signals.last());
            }
        }
    }

    /// Ends a mount that was never served.
    fn abandon(self) {
        drop(self.rings);
        self.server.stop_notifying();
        drop(self.channel);
        // Threads that did start may have a way to the kernel, and nobody knows how far they get.
        self.mounted.discard();
        if let Err(e) = self.server.end() {
            tracing::error!("unmount: {e}");
        }
        self.mounted.wait();
    }
}

/// The rings if they are wanted and possible, else why they are not.
fn rings(config: &MountConfig) -> Result<(Option<Rings>, Option<String>), MountError> {
    if !config.transport.wants_rings() {
        return Ok((None, None));
    }
    match prepare_rings(config.ring_queues.as_deref()) {
        Ok(rings) => Ok((Some(rings), None)),
        Err(why) if config.transport == Transport::Uring => Err(no_rings(why)),
        Err(why) => Ok((None, Some(why))),
    }
}

fn no_rings(why: String) -> MountError {
    MountError::system(
        "transport=uring (transport=auto takes /dev/fuse instead)",
        std::io::Error::other(why),
    )
}
