//! The commit of a volume without a log.
use crate::base::types::*;
use crate::commit::Committer;
use crate::commit::committer::{note_built, note_dispatched};
use crate::commit::place::Built;
use crate::home::apply::Applier;
use crate::overlay::objects::{Steps, Txn};
use ccfs_device::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Committer {
    /// THE COMMIT POINT of a volume without a log: what follows on the device survives only with this.
    pub(crate) fn commit_on_device(
        &self,
        members: &[Arc<Txn>],
        built: Vec<Built>,
        data: Vec<Write>,
        steps: Steps,
    ) -> Result<()> {
        let mut a = self.applier().lock();
        self.check_running()?;
        // Before the applier is anybody else's: half of these changes may be in the image by now, and would go along with another commit.
        self.or_stop("a commit", || {
            self.apply_and_write(&mut a, members, built, data, steps)
        })
    }

    fn apply_and_write(
        &self,
        a: &mut Applier,
        members: &[Arc<Txn>],
        built: Vec<Built>,
        data: Vec<Write>,
        steps: Steps,
    ) -> Result<()> {
        let id = self.next_number();
        for txn in members {
            txn.progress().id = id;
        }
        note_built(members, built, steps, 0);
        for txn in members {
            self.apply_records(a, txn)?;
        }
        self.counters().commits.fetch_add(1, Ordering::Relaxed);
        // Not for the volume's free counts: recovery counts anew.
        let images = self.image().take_dirty_but_counts();
        self.write_as_one(id, images, data)?;
        // Only now: whoever helps it to durability finds it on the device.
        self.queue().lock().enter(members);
        members[0].set_written();
        note_dispatched(members);
        Ok(())
    }
}
