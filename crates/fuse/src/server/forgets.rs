//! Files without a name that the kernel has let go of, and whose FORGETs are under way.
//!
//! The kernel sends FORGET when it gives an inode up: at the moment at which its own ext4 frees one without a name. The message comes after a
//! moment, on a busy machine after a tenth of a second. Until then the daemon cannot tell such a file from one that somebody has open, but
//! the kernel can: a notification about an inode that it does not have is refused. It queues FORGET first and forgets the number then, so
//! after such an answer FORGET comes for sure.
use super::node_of;
use crate::transport::channel::Channel;
use ccfs_engine::{Ino, Volume};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// How long whoever needs space waits for the answer.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Where closes are requests that nobody waits for, one may be under way: the kernel is asked so often, after such a time.
const CLOSES: u32 = 10;
const CLOSE_WAIT: Duration = Duration::from_millis(2);

/// Questions that wait; with more there is no answer.
const QUESTIONS_MAX: usize = 64;

struct Question {
    inodes: Vec<Ino>,
    answer: SyncSender<Vec<Ino>>,
}

/// Asks the kernel which inodes it still has.
///
/// A thread of its own does: the kernel answers when an inode that it is giving up is gone, for which it may need the threads that serve
/// requests.
pub struct Asker(Arc<Mutex<Option<SyncSender<Question>>>>);

impl Asker {
    pub fn new() -> Asker {
        Asker(Arc::default())
    }

    /// From here on the volume knows when space is about to come. `closes`: see [`CLOSES`].
    /// `is_open`: a program has an inode open without the kernel's knowledge.
    pub fn start(
        &self,
        volume: &Volume,
        kernel: Channel,
        closes: bool,
        is_open: impl Fn(Ino) -> bool + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let (sender, receiver) = sync_channel(QUESTIONS_MAX);
        // It is not waited for: the kernel may hold it until the connection ends.
        std::thread::Builder::new()
            .name("fuse-ask".into())
            .spawn(move || serve(&kernel, &receiver, closes))?;
        *self.0.lock() = Some(sender);
        let asker = self.0.clone();
        volume.ask_kernel(Box::new(move |inodes| {
            let mut known = inodes.to_vec();
            known.retain(|ino| !is_open(*ino));
            ask(&asker, &known)
        }));
        Ok(())
    }

    /// No more questions.
    pub fn stop(&self) {
        *self.0.lock() = None;
    }
}

/// Those of `inodes` that the kernel has given up; none where it takes long to say.
fn ask(asker: &Mutex<Option<SyncSender<Question>>>, inodes: &[Ino]) -> Vec<Ino> {
    let (answer, answered) = sync_channel(1);
    let question = Question {
        inodes: inodes.to_vec(),
        answer,
    };
    let sent = asker.lock().as_ref().map(|s| s.try_send(question));
    match sent {
        Some(Ok(())) => answered.recv_timeout(ANSWER_WAIT).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn serve(kernel: &Channel, questions: &Receiver<Question>, closes: bool) {
    for Question { inodes, answer } in questions {
        let given_up = || -> Vec<Ino> {
            let all = inodes.iter().copied();
            all.filter(|&ino| !kernel.has_inode(node_of(ino))).collect()
        };
        let mut found = given_up();
        for _ in 0..if closes { CLOSES } else { 0 } {
            if !found.is_empty() {
                break;
            }
            std::thread::sleep(CLOSE_WAIT);
            found = given_up();
        }
        // Who asked may not wait any more.
        let _ = answer.try_send(found);
    }
}
