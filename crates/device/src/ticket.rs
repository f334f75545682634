//! The caller's hold on a submitted batch.

use std::io;

/// A batch that is under way.
pub trait Pending: Send {
    /// Blocks until the batch is in the device's cache and tells its outcome: the error of any write that failed.
    fn finish(self: Box<Self>) -> io::Result<()>;

    /// Has it ended, so that `finish` would not wait? Whoever finds it ended may ask for the outcome in the place of somebody else, and
    /// must not wait for the device then.
    fn is_ready(&self) -> bool;
}

struct Both(Ticket, Ticket);

impl Pending for Both {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let (first, second) = (self.0.finish(), self.1.finish());
        first.and(second)
    }

    fn is_ready(&self) -> bool {
        self.0.is_ready() && self.1.is_ready()
    }
}

/// A submitted batch. Must be waited for; dropping it waits and ignores the result.
#[must_use = "a batch is in the device's cache only after its wait"]
pub struct Ticket(Option<Kind>);

enum Kind {
    Done(io::Result<()>),
    Pending(Box<dyn Pending>),
}

impl Ticket {
    /// A ticket of a batch that has already ended.
    pub fn done(result: io::Result<()>) -> Self {
        Ticket(Some(Kind::Done(result)))
    }

    /// A ticket of a batch that is under way.
    pub fn pending(batch: Box<dyn Pending>) -> Self {
        Ticket(Some(Kind::Pending(batch)))
    }

    /// One for two batches.
    pub fn both(first: Ticket, second: Ticket) -> Self {
        Ticket::pending(Box::new(Both(first, second)))
    }

    /// False if a wait would block now.
    pub fn is_ready(&self) -> bool {
        match &self.0 {
            Some(Kind::Pending(batch)) => batch.is_ready(),
            Some(Kind::Done(_)) | None => true,
        }
    }

    /// The batch had ended when the ticket was made.
    pub(crate) fn has_ended(&self) -> bool {
        !matches!(self.0, Some(Kind::Pending(_)))
    }

    /// It had ended well by then.
    pub(crate) fn has_ended_well(&self) -> bool {
        matches!(self.0, Some(Kind::Done(Ok(()))))
    }

    /// What [`Device::wait`](crate::Device::wait) does, for every device.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        match self.0.take() {
            Some(Kind::Done(result)) => result,
            Some(Kind::Pending(batch)) => batch.finish(),
            None => Ok(()),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

const _: () = {
    const fn sendable<T: Send>() {}
    sendable::<Ticket>();
};
