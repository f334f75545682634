//! Sync calls of one stream go together: those that come while one of them writes wait for their turn, and are carried out as one. Each
//! alone would write a transaction of its own, and wait for the same flush. Calls of different streams know nothing of each other (C4).
use crate::base::planted::{self, Bug};
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::{Ino, StreamId};
use std::collections::HashMap;
use std::sync::Arc;

/// Streams of which a call writes, each with those that go together next.
#[derive(Default)]
pub(crate) struct Rounds(Mutex<HashMap<StreamId, Option<Arc<Round>>>>);

/// Calls that go together. The first one carries them all out.
#[derive(Default)]
struct Round {
    state: Mutex<State>,
    turn: Condvar,
    over: Condvar,
}

#[derive(Default)]
struct State {
    inos: Vec<Ino>,
    /// The calls before these have been written.
    may_go: bool,
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// So many transactions had to be waited for.
    Durable(u64),
    Failed,
}

impl Round {
    fn end(&self, outcome: Outcome) {
        self.state.lock().outcome = Some(outcome);
        self.over.notify_all();
    }
}

/// What a call does.
pub(crate) enum Part<'r> {
    /// It carries out a round.
    Leads(Lead<'r>),
    /// Another one did: so many transactions were waited for.
    Durable(u64),
    /// Another one tried, and has got the error.
    Failed,
}

/// The calls that one call carries out. When it is dropped, those that have not been told otherwise have failed.
pub(crate) struct Lead<'r> {
    rounds: &'r Rounds,
    stream: StreamId,
    round: Arc<Round>,
    /// Files that are synced.
    pub inos: Vec<Ino>,
    released: bool,
}

impl Rounds {
    /// A sync of a file by somebody in `stream`. Waits for its turn, or until another call has carried it out.
    pub fn join(&self, stream: StreamId, ino: Ino) -> Part<'_> {
        let mut turns = self.0.lock();
        let Some(next) = turns.get_mut(&stream) else {
            turns.insert(stream, None);
            return Part::Leads(self.lead(stream, Arc::default(), vec![ino]));
        };
        let first = next.is_none();
        let round = next.get_or_insert_default().clone();
        // It is in the table: whoever takes it out waits for that lock.
        let mut state = round.state.lock();
        state.inos.push(ino);
        drop(turns);
        if !first {
            loop {
                match state.outcome {
                    Some(Outcome::Durable(commits)) => return Part::Durable(commits),
                    Some(Outcome::Failed) => return Part::Failed,
                    None => round.over.wait(&mut state),
                }
            }
        }
        while !state.may_go {
            round.turn.wait(&mut state);
        }
        drop(state);
        // From here on nobody joins.
        self.0.lock().insert(stream, None);
        let inos = std::mem::take(&mut round.state.lock().inos);
        Part::Leads(self.lead(stream, round, inos))
    }

    fn lead(&self, stream: StreamId, round: Arc<Round>, inos: Vec<Ino>) -> Lead<'_> {
        Lead {
            rounds: self,
            stream,
            round,
            inos,
            released: false,
        }
    }
}

impl Lead<'_> {
    /// All is written, and not yet flushed: the next calls may write.
    pub fn written(&mut self) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let mut turns = self.rounds.0.lock();
        planted::also(Bug::RoundEarly, || self.round.end(Outcome::Durable(1)));
        match turns.get(&self.stream).cloned().flatten() {
            Some(next) => {
                next.state.lock().may_go = true;
                next.turn.notify_one();
            }
            None => {
                turns.remove(&self.stream);
            }
        }
    }

    /// All is durable; so many transactions had to be waited for.
    pub fn durable(self, commits: u64) {
        self.round.end(Outcome::Durable(commits));
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.written();
        let mut state = self.round.state.lock();
        state.outcome.get_or_insert(Outcome::Failed);
        self.round.over.notify_all();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::time::Duration;

    const STREAM: StreamId = StreamId(7);

    fn lead<'r>(part: Part<'r>) -> Lead<'r> {
        match part {
            Part::Leads(lead) => lead,
            _ => panic!("it does not lead"),
        }
    }

    /// How many calls wait for the stream's next round.
    fn waiting(rounds: &Rounds) -> usize {
        let next = rounds.0.lock().get(&STREAM).cloned().flatten();
        next.map_or(0, |round| round.state.lock().inos.len())
    }

    fn wait_for(rounds: &Rounds, count: usize) {
        while waiting(rounds) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Three calls while a first one writes: one of them leads all three; how the others end is given back.
    fn three_after_one(ends: impl Fn(Lead<'_>) + Sync) -> Vec<Option<u64>> {
        let rounds = Rounds::default();
        let mut first = lead(rounds.join(STREAM, 11));
        assert_eq!(first.inos, [11]);
        let outcomes = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for ino in [12, 13, 14] {
                let (rounds, outcomes, ends) = (&rounds, &outcomes, &ends);
                scope.spawn(move || match rounds.join(STREAM, ino) {
                    Part::Leads(mut lead) => {
                        lead.inos.sort_unstable();
                        assert_eq!(lead.inos, [12, 13, 14]);
                        ends(lead);
                    }
                    Part::Durable(commits) => outcomes.lock().push(Some(commits)),
                    Part::Failed => outcomes.lock().push(None),
                });
            }
            wait_for(&rounds, 3);
            // Another stream's calls wait for nobody.
            lead(rounds.join(StreamId(8), 99)).durable(1);
            assert_eq!(waiting(&rounds), 3);
            first.written();
            first.durable(1);
        });
        assert!(rounds.0.lock().is_empty(), "nothing is left behind");
        outcomes.into_inner()
    }

    #[test]
    fn calls_that_come_while_one_writes_are_carried_out_together() {
        let outcomes = three_after_one(|mut lead| {
            lead.written();
            lead.durable(5);
        });
        assert_eq!(outcomes, [Some(5), Some(5)]);
    }

    #[test]
    fn where_the_leader_fails_the_others_are_told() {
        assert_eq!(three_after_one(|lead| drop(lead)), [None, None]);
    }
}
