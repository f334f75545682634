//! What each thread of a run does with atomic groups and failure-atomic files (`threads.rs`): calls that wait, under way at once.
//!
//! The place of each call in the order of acceptance is known exactly. A group's commit has it when the group is closed; a sync that
//! publishes what is unsynced of O_ATOMIC files, when it has done so; an operation that another stream's group is in the way of, when it
//! is accepted after its wait. Up to that moment the thread has the turn, then the others go on beside it.
use crate::drive::atomic_files::AtomicFileCall;
use crate::drive::groups::{OpenGroup, stopped_or};
use crate::drive::{Driver, Ended, is_stop};
use crate::generate::Action;
use crate::oracle::*;
use crate::threads::{Shared, lock};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Numbers of what a call promises, or what is wrong with what it did.
type Promises = Result<Vec<u64>, String>;

impl Shared {
    /// An operation, which may have to wait for another stream's group.
    pub(crate) fn operate(&self, stream: usize, op: &Op) -> Result<Ended, String> {
        let request = {
            let mut driver = lock(&self.driver);
            let request = driver.request(stream, op);
            request.map(|mut request| {
                request.hold(&mut driver);
                request
            })
        };
        let Some(mut request) = request else {
            return Ok(Ended::Refused);
        };
        let result = request.perform(&self.vol);
        let mut driver = lock(&self.driver);
        if result.as_ref().is_err_and(is_stop) && self.stopped.load(Ordering::Relaxed) {
            // It waited while the volume stopped.
            return Ok(Ended::Stopped);
        }
        driver.answer(request, result)
    }

    /// The commit of the group that the stream is in: its place is the moment at which it is closed.
    pub(crate) fn commit(
        &self,
        stream: usize,
        group: OpenGroup,
        durable: bool,
    ) -> Result<Ended, String> {
        let promise = {
            let mut driver = lock(&self.driver);
            let call = driver.committing(stream, group);
            driver.promise(call)
        };
        let give = || self.token.give();
        let done = self.vol.group_commit_telling(group.id, durable, &give);
        let events = self.dev.events();
        let kept = (durable && done.is_ok()).then_some(events);
        lock(&self.driver).promise_ends(promise, kept);
        ended(done, "commit")
    }

    /// A call on files that are open O_ATOMIC, or may be when it is carried out.
    pub(crate) fn sync_files(self: &Arc<Self>, call: AtomicFileCall) -> Result<Ended, String> {
        let held = lock(&self.driver).hold(&call.nodes);
        let opens = matches!(call.action, Action::AtomicFileOpen(_));
        let promised: Arc<Mutex<Option<Promises>>> = Arc::default();
        let (shared, mine, note) = (self.clone(), call.clone(), promised.clone());
        self.token.when_placed(move || {
            let mut driver = lock(&shared.driver);
            *lock(&note) = Some(place(&mut driver, &mine, opens));
        });
        let done = call.perform(&self.vol);
        let events = self.dev.events();
        let placed = lock(&promised).take();
        // A volume that is stopped has nothing to hold.
        if done.as_ref().is_err_and(is_stop) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        if let (Some(_), _) | (_, Ok(())) = (&placed, &done) {
            self.token.retake();
            let mut driver = lock(&self.driver);
            for promise in placed.unwrap_or(Ok(Vec::new()))? {
                driver.promise_ends(promise, done.is_ok().then_some(events));
            }
            driver.release(held);
            return ended(done, "a sync of files");
        }
        let mut driver = lock(&self.driver);
        let refused = match done {
            Err(e) if !opens => driver.not_published(&call, e),
            done => {
                let refused = driver.not_opened(call.nodes[0], &done);
                refused.map(|r| r.unwrap_or(Ended::Refused))
            }
        };
        driver.release(held);
        refused
    }
}

/// A call on files has its place: the numbers of what it promises.
fn place(driver: &mut Driver, call: &AtomicFileCall, opens: bool) -> Promises {
    if opens {
        driver.opened(call);
    }
    let promises = driver.placed(call)?;
    Ok(promises.into_iter().map(|p| driver.promise(p)).collect())
}

fn ended(done: Result<(), ccfs_engine::Error>, what: &str) -> Result<Ended, String> {
    match done {
        Ok(()) => Ok(Ended::Accepted),
        Err(e) => stopped_or(e, what),
    }
}
