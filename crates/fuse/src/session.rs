//! The life of a mount: mounted, ready, served, ended.
use crate::mount::{MountConfig, MountError, Mounted};
use crate::server::init::WANTED;
use crate::server::{MountInfo, Server};
use crate::sys::SignalEvents;
use crate::transport::channel::Channel;
use crate::transport::dev::{Pool, PoolConfig};
use ccfs_engine::{Context, DEFAULT_STREAM, Volume};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// A mounted volume that is not served yet: requests wait.
pub struct Session {
    volume: Arc<Volume>,
    server: Arc<Server>,
    channel: Channel,
    mounted: Mounted,
    pool: PoolConfig,
}

/// Mounts, calls `ready`, and serves until the volume is unmounted; then it is at rest.
///
/// SIGTERM, SIGINT and SIGHUP sync and unmount. While the volume is in use that fails, which is logged, and serving goes on;
/// a second signal takes the mount out of the tree (lazy unmount) and the last user's leaving ends it.
///
/// The caller detaches itself from its terminal before any thread exists (so before `Volume::mount`), and calls
/// [`crate::prepare_process`] there. If its name (`argv[0]`) begins with '@', systemd leaves it alone at shutdown until the
/// volume is unmounted.
///
/// Errors: if mounting or `ready` fails the volume is unmounted, too.
pub fn serve<E: From<MountError>>(
    volume: Arc<Volume>,
    mountpoint: &Path,
    config: &MountConfig,
    ready: impl FnOnce(&Session) -> Result<(), E>,
) -> Result<(), E> {
    let session = Session::mount(volume.clone(), mountpoint, config).inspect_err(|_| {
        // The reason why it is not mounted is what counts.
        let _ = volume.unmount();
    })?;
    if let Err(e) = ready(&session) {
        session.abandon();
        return Err(e);
    }
    Ok(session.serve()?)
}

impl Session {
    /// Mounts and agrees with the kernel on the protocol. If it fails nothing is mounted and `volume` is as before.
    pub fn mount(
        volume: Arc<Volume>,
        mountpoint: &Path,
        config: &MountConfig,
    ) -> Result<Session, MountError> {
        let block_size = volume.statfs()?.block_size;
        let (channel, mounted) = Mounted::make(mountpoint, config, block_size)?;
        let server = channel
            .handshake(WANTED, volume.write_max())
            .map_err(|e| MountError::system("FUSE", e))
            .and_then(|agreed| {
                let info = MountInfo {
                    mountpoint: mounted.mountpoint.display().to_string(),
                    source: mounted.source.display().to_string(),
                    syncfs: mounted.fuseblk,
                    status_dir: config.status_dir,
                };
                Ok(Server::new(
                    volume.clone(),
                    agreed,
                    info,
                    config.callers.clone(),
                )?)
            });
        match server {
            Ok(server) => Ok(Session {
                volume,
                server: Arc::new(server),
                channel,
                mounted,
                pool: config.pool,
            }),
            Err(e) => {
                // Nobody serves DESTROY: without its channel the connection is dead and unmounting waits for nothing.
                drop(channel);
                let _ = mounted.detach();
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
        let (events, ended, signals, pool) = match self.start() {
            Ok(started) => started,
            Err(e) => {
                self.abandon();
                return Err(MountError::system("cannot start serving", e));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pool.wait();
                // An eventfd at 0 takes a 1.
                let _ = rustix::io::write(&ended, &1u64.to_ne_bytes());
            });
            self.control(&events, &ended, &signals);
        });
        self.server.end().map_err(MountError::Unclean)
    }

    /// As [`Session::serve`], for a process that serves several volumes and has its own signals: it unmounts by itself.
    pub fn serve_silently(self) -> Result<(), MountError> {
        match Pool::start(self.channel.clone(), self.server.clone(), self.pool) {
            Ok(pool) => pool.wait(),
            Err(e) => {
                self.abandon();
                return Err(MountError::system("cannot start serving", e));
            }
        }
        self.server.end().map_err(MountError::Unclean)
    }

    fn start(&self) -> std::io::Result<(OwnedFd, OwnedFd, SignalEvents, Arc<Pool>)> {
        let events = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let signals = SignalEvents::install(&events)?;
        let pool = Pool::start(self.channel.clone(), self.server.clone(), self.pool)?;
        Ok((events, ended, signals, pool))
    }

    /// Waits for signals until the connection ends.
    fn control(&self, events: &OwnedFd, ended: &OwnedFd, signals: &SignalEvents) {
        let mut asked = 0;
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
                return;
            }
            if rustix::io::read(events, &mut [0u8; 8]).is_ok() {
                asked += 1;
                self.leave(asked, signals.last());
            }
        }
    }

    /// A signal asked for the end, for the `asked`th time.
    fn leave(&self, asked: u32, signal: u32) {
        let dir = self.mounted.mountpoint.display();
        tracing::info!("signal {signal}: unmounting {dir}");
        let root = Context {
            stream: DEFAULT_STREAM,
            uid: 0,
            gid: 0,
            umask: 0,
            ignore_fsync: false,
            privileged: true,
        };
        if let Err(e) = self.volume.syncfs(&root) {
            tracing::error!("cannot make everything durable: {e}");
        }
        if !self.mounted.is_on_top() {
            tracing::warn!(
                "{dir} is detached or covered by another mount; serving goes on until its last user leaves"
            );
            return;
        }
        let outcome = if asked == 1 {
            self.mounted.unmount()
        } else {
            self.mounted.detach()
        };
        match outcome {
            Ok(()) if asked > 1 => tracing::info!(
                "{dir} is out of the tree; serving goes on until its last user leaves"
            ),
            Ok(()) => {}
            Err(e) if asked == 1 => {
                tracing::warn!(
                    "cannot unmount {dir}: {e}; serving goes on. A second signal takes it out of the tree"
                );
            }
            Err(e) => tracing::error!("cannot detach {dir}: {e}"),
        }
    }

    /// Ends a mount that was never served.
    fn abandon(self) {
        drop(self.channel);
        let _ = self.mounted.detach();
        if let Err(e) = self.server.end() {
            tracing::error!("unmount: {e}");
        }
    }
}
