//! Threads that stay from one pass to the next, as those of a daemon stay from one burst to the next: what was theirs and is free they use again.
use crate::{Because, Result};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

type Job = Box<dyn FnOnce() + Send>;

/// They end when it is dropped.
pub struct Crew(Vec<(Sender<Job>, JoinHandle<()>)>);

impl Crew {
    pub fn of(threads: u64) -> Result<Crew> {
        let start = |_| {
            let (to, jobs) = channel::<Job>();
            let thread = Builder::new().spawn(move || jobs.into_iter().for_each(|job| job()))?;
            Ok((to, thread))
        };
        let all = (0..threads).map(start).collect::<std::io::Result<_>>();
        all.map(Crew).because("threads")
    }

    /// Each job in a thread of its own. There are no more jobs than threads.
    pub fn begin(&self, jobs: impl Iterator<Item = impl FnOnce() + Send + 'static>) -> Result<()> {
        for (job, (to, _)) in jobs.zip(&self.0) {
            to.send(Box::new(job)).map_err(|_| "a thread has ended")?;
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (to, thread) in self.0.drain(..) {
            drop(to);
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}
