//! Commit: from a sealed transaction to a durable one. `committer` reads from the top.
pub(crate) mod barrier;
pub(crate) mod bundle;
pub(crate) mod committer;
pub(crate) mod place;
pub(crate) mod roots;
pub(crate) mod rounds;
pub(crate) mod whole_extents;

use crate::base::sync::Mutex;
use crate::home::Home;
use barrier::Barriers;
use rounds::Rounds;
use std::ops::Deref;

pub struct Committer {
    home: Home,
    rounds: Rounds,
    barriers: Barriers,
    /// Held by who commits everything to get space.
    reclaiming: Mutex<()>,
}

impl Deref for Committer {
    type Target = Home;
    fn deref(&self) -> &Home {
        &self.home
    }
}

impl Committer {
    pub(crate) fn new(home: Home) -> Committer {
        Committer {
            home,
            rounds: Rounds::default(),
            barriers: Barriers::default(),
            reclaiming: Mutex::new(()),
        }
    }

    pub(crate) fn rounds(&self) -> &Rounds {
        &self.rounds
    }
}
