//! What is done when a connection has broken: steps 1 to 4 of the head of the module above.
use super::{Doubt, Link, State};
use crate::session::{Refusal, Request, Session};
use ccfs_device::SharedBuf;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A request that gets no answer through so many connections, each of which stood for the whole patience, is given up.
const FORGOTTEN: u32 = 3;
/// Pauses between tries to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Written again at once at most, bytes: before each the owner's claim is looked at.
const REPEAT_WINDOW: usize = 1 << 20;
/// Who asks nobody: a write that is repeated.
const NOBODY: u64 = u64::MAX;

impl Link {
    /// Makes a new connection, or gives up.
    pub(super) fn mend(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let Some(broken) = &mut state.broken else {
            return;
        };
        let (old, deadline) = (broken.old.take(), broken.since + self.patience);
        drop(state);
        if let Some(old) = old {
            old.close(false);
        }
        self.doubt_what_was_sent();
        // Connections that come and always break at the same request would do so for ever.
        if self.is_forgotten() {
            return self.die(&format!("one request has had no answer, {FORGOTTEN} times"));
        }
        let mut pause = PAUSES.0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let why = match self.connect_again(left) {
                Ok(session) => return self.go_on(session),
                Err(Refusal::Store(e)) => return self.die(&e.to_string()),
                Err(Refusal::Lost(e)) => e.to_string(),
            };
            let mut state = self.state.lock();
            if let Some(broken) = &mut state.broken {
                broken.why.clone_from(&why);
            }
            if state.stopping || state.dead.is_some() {
                return;
            }
            if Instant::now() + pause > deadline {
                drop(state);
                let seconds = self.patience.as_secs();
                return self.die(&format!(
                    "there has been no connection for {seconds} s (timeout=): {why}"
                ));
            }
            self.work.wait_for(&mut state, pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn is_forgotten(&self) -> bool {
        let state = self.state.lock();
        let others = state.flying.values();
        let others = others.filter(|one| !matches!(one.request, Request::Flush));
        let first = others.filter_map(|one| one.first_sent).min();
        first.is_some_and(|first| first.elapsed() > self.patience * FORGOTTEN)
    }

    fn doubt_what_was_sent(&self) {
        let mut state = self.state.lock();
        let until = Instant::now() + self.settle;
        let State {
            flying,
            doubts,
            held,
            probe,
            bytes,
            ..
        } = &mut *state;
        if let Some(number) = probe.take()
            && let Some(one) = flying.remove(&number)
        {
            *bytes -= one.request.held();
            if one.sent.is_none() {
                *held -= 1;
            }
        }
        for (number, one) in flying {
            if one.sent.take().is_none() {
                continue;
            }
            *held += 1;
            if let Some((start, end)) = one.request.changes() {
                doubts.push(Doubt {
                    start,
                    end,
                    number: *number,
                    until,
                });
            }
        }
    }

    /// Steps 2 and 3 of the head of this file. `Store`: in vain for ever.
    fn connect_again(&self, left: Duration) -> Result<Arc<dyn Session>, Refusal> {
        let session = self
            .store
            .connect(left, self.patience)
            .map_err(Refusal::Lost)?;
        let ready = self.make_ready(&*session, left);
        match ready {
            Ok(()) => Ok(session),
            Err(e) => {
                session.close(false);
                Err(e)
            }
        }
    }

    fn make_ready(&self, session: &dyn Session, left: Duration) -> Result<(), Refusal> {
        let deadline = Instant::now() + left;
        let left = || deadline.saturating_duration_since(Instant::now());
        let check = || match self.guard.get() {
            Some(guard) => guard.check(session, left()),
            None => Ok(()),
        };
        check()?;
        let all = self.state.lock().kept.all();
        let mut all = &all[..];
        while !all.is_empty() {
            let mut bytes = 0;
            let fits = |(_, data): &&(u64, SharedBuf)| {
                bytes += data.len();
                bytes <= REPEAT_WINDOW
            };
            let count = all.iter().take_while(fits).count().max(1);
            let (window, rest) = all.split_at(count);
            all = rest;
            check()?;
            let (send, receive) = std::sync::mpsc::channel();
            for (offset, data) in window {
                let send = send.clone();
                let request = Request::Write {
                    offset: *offset,
                    data: data.clone(),
                };
                session.start(
                    request,
                    Box::new(move |answer| {
                        let _ = send.send(answer.map(|_| ()));
                    }),
                );
            }
            for _ in window {
                let silence =
                    io::Error::new(io::ErrorKind::TimedOut, "no answer to what is repeated");
                let answer = receive.recv_timeout(left());
                if let Err(e) = answer.unwrap_or(Err(Refusal::Lost(silence))) {
                    self.doubt_what_is_repeated(window);
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn doubt_what_is_repeated(&self, window: &[(u64, SharedBuf)]) {
        let until = Instant::now() + self.settle;
        let doubt = |(offset, data): &(u64, SharedBuf)| Doubt {
            start: *offset,
            end: offset + data.len() as u64,
            number: NOBODY,
            until,
        };
        self.state.lock().doubts.extend(window.iter().map(doubt));
    }

    fn go_on(self: &Arc<Self>, session: Arc<dyn Session>) {
        let mut state = self.state.lock();
        if state.dead.is_some() {
            drop(state);
            return session.close(false);
        }
        if let Some(broken) = state.broken.take() {
            tracing::warn!(
                "{}: connected again after {:.1} s",
                self.store.name(),
                broken.since.elapsed().as_secs_f64()
            );
        }
        state.session = Some(session);
        state.last_answer = Instant::now();
        self.stats.reconnects.fetch_add(1, Relaxed);
        let to_send = self.try_all(&mut state);
        drop(state);
        self.send(to_send);
    }
}
