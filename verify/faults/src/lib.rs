//! Faults: what ccfs does when a device fails, vanishes, flips bits or runs full (promises C9 and C10).
//!
//! Every case is one fault in one run, by seed. What may come of it: nothing, an error of the call, a stopped volume, detected damage.
//! A wrong tree, a panic and a hang are violations, and so is a mount afterwards that shows what no power cut would leave.
#![deny(unsafe_code)]

pub mod device;
pub mod flips;
pub mod host;
pub mod inject;
pub mod table;

use ccfs_crash::run::guarded;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The fault had no effect: not reached, or bytes that nobody uses.
    Nothing,
    /// Nobody has read it; a scrub finds it.
    Latent,
    /// A call failed, the volume goes on.
    Failed,
    /// The volume stopped; what is on the medium is a legal crash state.
    Stopped,
    /// A mount was refused or a read failed, with the reason.
    Detected,
    /// A transaction is missing of which the flip has hit the frames, and that no flush before the newest frame has covered: it counts as torn.
    Torn,
    /// Metadata without checksums: what the bit says is shown.
    Shown,
    Wrong(String),
}

/// A case that takes longer hangs. Nothing that is done in it takes seconds.
const HANG: Duration = Duration::from_secs(600);

/// Runs a case in a thread of its own: a panic and a hang are outcomes like others.
pub fn case(f: impl FnOnce() -> Result<Outcome, String> + Send + 'static) -> Outcome {
    let (send, receive) = channel();
    let thread = std::thread::Builder::new()
        .name("case".into())
        .spawn(move || {
            let _ = send.send(guarded(f));
        });
    let outcome = match receive.recv_timeout(HANG) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(text)) => Outcome::Wrong(text),
        Err(RecvTimeoutError::Disconnected) => Outcome::Wrong("the case's thread is gone".into()),
        // The thread is left behind: it hangs.
        Err(RecvTimeoutError::Timeout) => return Outcome::Wrong("it hangs".into()),
    };
    if let Ok(thread) = thread {
        let _ = thread.join();
    }
    outcome
}
