//! Requests that somebody waits for together.
use ccfs_device::{AlignedBuf, Pending};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;

/// Some requests, and what has come of them.
pub struct Batch {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    left: usize,
    result: io::Result<Option<AlignedBuf>>,
}

impl Batch {
    /// Of so many requests.
    pub fn of(requests: usize) -> Arc<Batch> {
        Arc::new(Batch {
            state: Mutex::new(State {
                left: requests,
                result: Ok(None),
            }),
            ended: Condvar::new(),
        })
    }

    /// One of them has ended. The first error counts.
    pub fn answered(&self, answer: io::Result<Option<AlignedBuf>>) {
        let mut state = self.state.lock();
        state.left -= 1;
        if state.result.is_ok() {
            state.result = answer;
        }
        if state.left == 0 {
            self.ended.notify_all();
        }
    }

    /// Waits for all of them; of a read gives its bytes.
    pub fn wait(&self) -> io::Result<Option<AlignedBuf>> {
        let mut state = self.state.lock();
        while state.left > 0 {
            self.ended.wait(&mut state);
        }
        std::mem::replace(&mut state.result, Ok(None))
    }
}

/// A batch of writes, for its ticket.
pub struct Written(pub Arc<Batch>);

impl Pending for Written {
    fn finish(self: Box<Self>) -> io::Result<()> {
        self.0.wait().map(|_| ())
    }

    fn is_ready(&self) -> bool {
        self.0.state.lock().left == 0
    }
}
