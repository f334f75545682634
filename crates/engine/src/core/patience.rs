//! Waits that can be long, and who gives them up: a process that is killed while its call waits for somebody else must be able to end.
use crate::base::types::{Result, errno};
use crate::core::Core;
use std::time::{Duration, Instant};

/// Between two looks at who waits.
const LOOK: Duration = Duration::from_millis(500);

/// Told whether whoever the calling thread's call is for has gone. It must not call the volume.
pub type GivesUp = Box<dyn Fn() -> bool + Send + Sync>;

/// Of one wait.
pub(crate) struct Patience(Instant);

impl Default for Patience {
    fn default() -> Self {
        Patience(Instant::now())
    }
}

impl Patience {
    /// Now and then: EINTR where whoever waits has gone.
    pub(crate) fn check(&mut self, core: &Core) -> Result<()> {
        let Some(gives_up) = core.gives_up.get().filter(|_| self.0.elapsed() >= LOOK) else {
            return Ok(());
        };
        self.0 = Instant::now();
        match gives_up() {
            true => errno(libc::EINTR),
            false => Ok(()),
        }
    }
}

impl Core {
    /// Who is asked about calls that wait for room or for the end of a freeze, by the threads that wait; the first one stays. Where he says that
    /// whoever waits has gone the call ends with EINTR, and has done nothing.
    pub fn ask_who_waits(&self, gives_up: GivesUp) {
        let _ = self.gives_up.set(gives_up);
    }
}
