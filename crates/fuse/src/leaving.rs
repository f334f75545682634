//! What signals ask for: that the volume is unmounted.
//!
//! Whoever carries that out goes by the names of directories, so a file system that does not answer can hold it. It is not the thread
//! that hears of signals and of the mount's end.
use crate::helper_process::Outcome;
use crate::mount::Mounted;
use ccfs_engine::{Context, DEFAULT_STREAM, Volume};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// SIGHUP and another one so soon after each other ask once: service managers send SIGTERM and SIGHUP.
const TOGETHER: Duration = Duration::from_secs(1);
const HUP: u32 = 1 << libc::SIGHUP;
/// How long the mount's end waits for what is still said of it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often the end was asked for.
#[derive(Default)]
pub(crate) struct Asked([Asker; 2]);

/// By anybody, or by the process that hands its signals on.
#[derive(Clone, Copy, Default)]
struct Asker {
    times: u32,
    /// The last time.
    since: Option<Instant>,
    kinds: u32,
}

impl Asked {
    /// Signals came: for each kind of sender the set of their numbers. Gives how often the end was asked for, if it was once more.
    pub(crate) fn came(&mut self, sets: [u32; 2], now: Instant) -> Option<u32> {
        let mut again = false;
        for (asker, kinds) in self.0.iter_mut().zip(sets) {
            let soon = asker.since.is_some_and(|since| now - since < TOGETHER);
            let differ = kinds & asker.kinds == 0;
            if soon && differ && (kinds == HUP || asker.kinds == HUP) {
                asker.kinds |= kinds;
            } else if kinds != 0 {
                asker.times += 1;
                (asker.since, asker.kinds) = (Some(now), kinds);
                again = true;
            }
        }
        again.then(|| self.0[0].times.max(self.0[1].times))
    }
}

/// Unmounts, one time after the other, on a thread of its own where there can be one.
pub(crate) struct Leaver {
    leaving: Leaving,
    thread: Option<Thread>,
}

struct Thread {
    ask: Sender<Ask>,
    /// Ends with it.
    end: Receiver<()>,
}

/// A signal asks for the end.
struct Ask {
    times: u32,
    signal: u32,
}

impl Leaver {
    pub(crate) fn start(volume: Arc<Volume>, mounted: Mounted) -> Leaver {
        let leaving = Leaving { volume, mounted };
        let (ask, asked) = channel::<Ask>();
        let (until_end, end) = channel();
        let there = leaving.clone();
        // Nobody joins it, for it may be held longer than the mount lives.
        let started = std::thread::Builder::new()
            .name("fuse-leave".into())
            .spawn(move || {
                let _until_end = until_end;
                for Ask { times, signal } in asked {
                    there.leave(times, signal);
                }
            });
        let thread = started.is_ok().then_some(Thread { ask, end });
        Leaver { leaving, thread }
    }

    /// A signal asks for the end, for the `times`th time (or again for the first).
    pub(crate) fn leave(&self, times: u32, signal: u32) {
        let thread = self.thread.as_ref();
        let sent = thread.map(|thread| thread.ask.send(Ask { times, signal }));
        if !matches!(sent, Some(Ok(()))) {
            self.leaving.leave(times, signal);
        }
    }

    /// The mount has ended.
    pub(crate) fn end(self) {
        if let Some(Thread { ask, end }) = self.thread {
            drop(ask);
            if end.recv_timeout(LAST_WORDS) == Err(RecvTimeoutError::Timeout) {
                tracing::debug!("an unmount is still held");
            }
        }
    }
}

#[derive(Clone)]
struct Leaving {
    volume: Arc<Volume>,
    mounted: Mounted,
}

impl Leaving {
    fn leave(&self, times: u32, signal: u32) {
        let dir = self.mounted.mountpoint.display();
        tracing::info!("signal {signal}: unmounting {dir}");
        self.volume.thaw();
        if let Err(e) = self.volume.syncfs(&Context::root(DEFAULT_STREAM)) {
            tracing::error!("cannot make everything durable: {e}");
        }
        let Outcome { result, more } = match times {
            1 => self.mounted.unmount(),
            _ => self.mounted.detach(),
        };
        let more = match more.as_str() {
            "" => more,
            _ => format!(" ({more})"),
        };
        match result {
            Ok(()) if times > 1 => tracing::info!(
                "{dir} is out of the tree{more}; serving goes on until its last user leaves"
            ),
            Ok(()) if more.is_empty() => {}
            Ok(()) => tracing::warn!(
                "{dir} is unmounted, but not all mounts of its volume{more}; serving goes on. A second signal takes them out of the tree"
            ),
            Err(e) => self.failed(&e, times, &more),
        }
    }

    fn failed(&self, e: &io::Error, times: u32, more: &str) {
        let dir = self.mounted.mountpoint.display();
        match e.raw_os_error() {
            Some(libc::ENOENT) => tracing::warn!(
                "{dir} is detached or covered by another mount{more}; serving goes on until its last user leaves"
            ),
            Some(libc::EACCES) => tracing::warn!(
                "cannot look for {dir}{more}; serving goes on. To unmount it: ccfs umount {dir}"
            ),
            Some(libc::ETIMEDOUT) => tracing::warn!(
                "the unmount of {dir} takes long: it goes on, and serving as well, until it is done"
            ),
            _ if times == 1 => tracing::warn!(
                "cannot unmount {dir}: {e}{more}; serving goes on. A second signal takes it out of the tree"
            ),
            _ => tracing::error!("cannot detach {dir}: {e}{more}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_come_together_ask_once() {
        let (hup, term, int) = (HUP, 1 << libc::SIGTERM, 1 << libc::SIGINT);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut asked = Asked::default();
        assert_eq!(asked.came([0, 0], at(0)), None);
        assert_eq!(asked.came([term, 0], at(0)), Some(1));
        assert_eq!(asked.came([hup, 0], at(5)), None, "it belongs to the first");
        assert_eq!(asked.came([0, term], at(6)), Some(1), "handed on");
        assert_eq!(asked.came([0, hup], at(7)), None);
        assert_eq!(asked.came([hup, 0], at(900)), Some(2), "the same again");
        let mut asked = Asked::default();
        assert_eq!(asked.came([term | hup, 0], at(0)), Some(1));
        assert_eq!(asked.came([term, 0], at(10)), Some(2), "the same again");
        let mut asked = Asked::default();
        assert_eq!(asked.came([term, 0], at(0)), Some(1));
        assert_eq!(asked.came([hup, 0], at(1001)), Some(2), "later");
        let mut asked = Asked::default();
        assert_eq!(asked.came([hup, 0], at(0)), Some(1));
        assert_eq!(asked.came([term, 0], at(1)), None, "the other way round");
        assert_eq!(asked.came([int, 0], at(2)), Some(2), "by somebody else");
    }
}
