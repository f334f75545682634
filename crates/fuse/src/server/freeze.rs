//! The volume stands still while a program copies its device: `ccfs freeze`.
//!
//! A thread of its own holds the freeze, so that it has an end whatever becomes of who asked for it: his thaw call, his death, the limit
//! that he gave, an unmount.
use super::ioctl::versioned;
use super::{Answer, Server};
use crate::process::Process;
use crate::wire::{Errno, Reply, Request};
use ccfs_client::abi::{FREEZE_MOST, FreezeArg};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a freeze whose caller has ended may take to end, and between two looks at it.
const END_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// The freeze that there is, or was last.
#[derive(Default)]
pub(super) struct Freezes(Mutex<Last>);

#[derive(Default)]
struct Last {
    id: u64,
    thread: Option<JoinHandle<()>>,
    /// Who froze the volume. `None`: he cannot be seen from here, so only the limit ends it.
    caller: Option<Arc<Process>>,
}

impl Last {
    fn lasts(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| !t.is_finished())
    }

    /// Its caller has ended, so it ends in a moment.
    fn ends(&self) -> bool {
        self.caller
            .as_ref()
            .is_some_and(|caller| caller.has_ended())
    }
}

impl Server {
    /// Returns when the volume stands still.
    pub(super) fn freeze(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        self.manages(request)?;
        let mut arg = versioned::<FreezeArg>(input)?;
        if arg.id != 0 || arg.reserved != 0 || !(1..=FREEZE_MOST).contains(&arg.milliseconds) {
            return Err(Errno(libc::EINVAL));
        }
        let mut last = self.freezes.0.lock();
        let began = Instant::now();
        while last.lasts() && last.ends() && began.elapsed() < END_MAX {
            std::thread::sleep(PAUSE);
        }
        if last.lasts() {
            return Err(Errno(libc::EBUSY));
        }
        let caller = Process::of(request.header.pid).map(Arc::new);
        last.caller = caller.clone();
        let longest = Duration::from_millis(arg.milliseconds);
        let (volume, (begins, begun)) = (self.volume.clone(), channel());
        let failed = begins.clone();
        let freeze = move || {
            let told = move || drop(begins.send(Ok(())));
            let has_ended = || caller.as_ref().is_some_and(|caller| caller.has_ended());
            match volume.stand_still(told, longest, has_ended) {
                Ok(()) => tracing::info!("the volume is no longer frozen"),
                Err(e) => drop(failed.send(Err(e))),
            }
        };
        let started = std::thread::Builder::new()
            .name("ccfs-freeze".into())
            .spawn(freeze);
        last.thread = Some(started.map_err(|_| Errno(libc::EAGAIN))?);
        last.id += 1;
        arg.id = last.id;
        drop(last);
        begun.recv().map_err(|_| Errno(libc::EIO))??;
        tracing::info!(
            "the volume is frozen, for {} s at most",
            longest.as_secs_f64()
        );
        reply.push(&arg);
        Ok(())
    }

    /// Error: ENOENT where that freeze has ended by itself.
    pub(super) fn thaw(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        self.manages(request)?;
        let arg = versioned::<FreezeArg>(input)?;
        if arg.reserved != 0 || arg.milliseconds != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let thread = {
            let mut last = self.freezes.0.lock();
            if last.id != arg.id || !last.lasts() {
                return Err(Errno(libc::ENOENT));
            }
            // Under the lock: the next freeze is not meant.
            self.volume.thaw();
            last.thread.take()
        };
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        reply.push(&arg);
        Ok(())
    }
}
