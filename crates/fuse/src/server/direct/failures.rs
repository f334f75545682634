//! What was accepted and could not be done: who syncs is told, since a program that posts asks for no results.
use super::session::Session;
use crate::server::Answer;
use crate::wire::Errno;
use ccfs_engine::StreamId;
use ccfs_engine::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Streams that are told apart.
const STREAMS_MAX: usize = 1024;

/// Streams in which something is not there that was accepted. Each is told once, and so is who syncs the volume.
#[derive(Default)]
pub struct Failures {
    any: AtomicBool,
    known: Mutex<Vec<Failure>>,
}

struct Failure {
    /// `None`: it may have been any.
    stream: Option<StreamId>,
    /// Who has synced has been told: the stream, and the volume.
    told_stream: bool,
    told_volume: bool,
}

impl Failures {
    /// Something of a session failed.
    pub fn note(&self, session: &Session) {
        let mut known = self.known.lock();
        let streams = session.streams();
        let many = session.has_many_streams() || known.len() + streams.len() > STREAMS_MAX;
        let failed: Vec<_> = match many {
            true => vec![None],
            false => streams.into_iter().map(Some).collect(),
        };
        known.retain(|old| !failed.contains(&old.stream));
        known.extend(failed.into_iter().map(|stream| Failure {
            stream,
            told_stream: false,
            told_volume: false,
        }));
        self.any.store(!known.is_empty(), Ordering::SeqCst);
    }

    /// After a sync of a stream; `None`: of the volume. Error: EIO, something is not there that comes before it.
    pub fn tell(&self, synced: Option<StreamId>) -> Answer {
        if !self.any.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut known = self.known.lock();
        let mut fails = false;
        known.retain_mut(|failure| {
            let told = match (synced, failure.stream) {
                (None, _) => &mut failure.told_volume,
                (Some(synced), Some(stream)) if synced != stream => return true,
                (Some(_), _) => &mut failure.told_stream,
            };
            fails |= !std::mem::replace(told, true);
            !(failure.told_stream && failure.told_volume)
        });
        self.any.store(!known.is_empty(), Ordering::SeqCst);
        match fails {
            true => Err(Errno(libc::EIO)),
            false => Ok(()),
        }
    }
}
