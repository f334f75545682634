//! What callers' streams need of the volume and of this process.
use crate::sys;
use ccfs_caller::Engine;
use ccfs_engine::{StreamId, Volume};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// A volume as the callers' table sees it.
pub(super) struct Streams(pub Arc<Volume>);

impl Engine for Streams {
    fn fresh_id(&self) -> u64 {
        self.0.new_stream().0
    }

    fn is_settled(&self, id: u64) -> bool {
        self.0.stream_is_settled(StreamId(id))
    }

    fn settle(&self, ids: &[u64]) -> Result<(), ccfs_engine::Error> {
        let ids: Vec<_> = ids.iter().map(|id| StreamId(*id)).collect();
        self.0.commit_streams(&ids)
    }

    fn abandon(&self, id: u64) {
        // An error stops the volume where it happens.
        let _ = self.0.group_abandon(StreamId(id));
    }

    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        // The caller may be a queue's thread.
        sys::leave_idle_class();
        Builder::new().name(name.into()).spawn(move || {
            sys::use_all_processors();
            run();
        })
    }

    fn give_back_memory(&self) {
        sys::give_back_memory();
    }
}
