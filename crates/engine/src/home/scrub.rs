//! Scrub: verification of all metadata on the device while the volume is in use.
use crate::base::types::*;
use crate::home::Home;
use ccfs_image::{ScrubAt, ScrubStep};
use std::time::Duration;

/// A step holds the applier no longer than this (and a device's read time): commits wait for it only when they need room in the log.
const STEP_TIME: Duration = Duration::from_millis(20);
/// Blocks that a step reads at most.
const STEP_BLOCKS: u64 = 256;

impl Home {
    /// Verifies some metadata from `at` on, at most about `blocks` blocks of it and not for long; the step says where the next one
    /// begins. It changes nothing. What is newer in memory than on the device is counted, not verified.
    ///
    /// # Errors
    /// EIO after a shutdown. What is damaged or cannot be read is no error but in the step.
    pub fn scrub(&self, at: ScrubAt, blocks: u64) -> Result<ScrubStep> {
        self.check_alive()?;
        // Nothing changes the image and no checkpoint is on its way home while this is held.
        let _applier = self.applier.lock();
        let _guard = self.stop_on_panic("a scrub");
        Ok(self.image.scrub(at, blocks.min(STEP_BLOCKS), STEP_TIME))
    }
}
