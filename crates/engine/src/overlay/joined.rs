//! The transaction that an operation has joined, and the one that a thread is likely to join next.
//!
//! Threads of one stream join the same transaction, one operation after the other. To look it up each of them would lock the stream's shard, and count
//! one more owner and one less: cache lines that wander between the processors. So a thread keeps the last one, until it joins
//! another; one that is applied by then is a shell of two kilobytes.
use crate::base::types::StreamId;
use crate::overlay::objects::{Phase, Txn, TxnRef};
use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

/// Of one volume's streams. A process can have several volumes.
pub type StreamsId = u64;

/// Whoever drops it, at the end of his operation, has it for the next one.
pub struct Joined {
    /// There until it is dropped.
    txn: Option<TxnRef>,
    /// `None`: nobody keeps it.
    of: Option<StreamsId>,
}

thread_local! {
    static LAST: Cell<Option<(StreamsId, TxnRef)>> = const { Cell::new(None) };
}

impl Joined {
    /// One that no other operation will join by its stream.
    pub fn alone(txn: TxnRef) -> Joined {
        Joined {
            txn: Some(txn),
            of: None,
        }
    }

    pub fn of_stream(txn: TxnRef, of: StreamsId) -> Joined {
        Joined {
            txn: Some(txn),
            of: Some(of),
        }
    }

    /// What an object keeps that the operation changes.
    pub fn reference(&self) -> &TxnRef {
        self.txn.as_ref().expect("until it is dropped")
    }
}

/// The stream's running transaction, if it is the one that this thread was in last. It is kept no more. As with any that was looked up,
/// somebody may seal it at this moment.
pub fn last_of(of: StreamsId, stream: StreamId) -> Option<TxnRef> {
    let last = LAST.try_with(Cell::take).ok()?;
    let (_, txn) = last.filter(|(whose, _)| *whose == of)?;
    let is_it = txn.group.is_none() && txn.stream == stream && txn.phase() == Phase::Running;
    is_it.then_some(txn)
}

impl Deref for Joined {
    type Target = Arc<Txn>;
    fn deref(&self) -> &Arc<Txn> {
        self.reference()
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // A scheduler's threads (shuttle) are one thread of the system's.
        let keeps = !cfg!(feature = "shuttle");
        let kept = self.of.zip(self.txn.take());
        if let Some((of, txn)) = kept.filter(|(_, txn)| keeps && txn.phase() == Phase::Running) {
            // Where the thread is ending, nobody keeps it.
            let _ = LAST.try_with(|last| last.replace(Some((of, txn))));
        }
    }
}
