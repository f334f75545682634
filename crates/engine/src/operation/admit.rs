//! Every change passes here first: health, back-pressure, and a freeze.
use crate::base::cause::Cause;
use crate::base::types::*;
use crate::core::back_pressure::{Key, LetIn};
use crate::operation::Operations;
use ccfs_ext4::Error;
use ccfs_image::Wait;

/// What a stream that syncs may hold while others have reached the dirty limit, bytes.
const LITTLE: u64 = 1 << 20;

impl Operations {
    /// Every change passes here first, holding no lock: the volume's health, and back-pressure of the dirty limit.
    pub(crate) fn admit(&self) -> Result<()> {
        self.admit_if(Wait::Allowed, || (0, false), || false)
            .map(drop)
    }

    /// The same for changes of somebody's. A stream that syncs what it writes fills no memory, and waits for nobody who does; a user
    /// who holds little of the limit does not wait for one who holds much (`share`).
    pub(crate) fn admit_to(&self, cx: &Context, wait: Wait) -> Result<LetIn<'_>> {
        let syncs =
            || self.pace().syncs(cx.stream) && self.streams().running_memory(cx.stream) < LITTLE;
        let exempt = || {
            if self.dir_fields_wait() {
                return false;
            }
            let (limit, all) = (self.dirty_bound(), self.dirty().get());
            all < limit / 8 * 9 && syncs() || self.has_share(cx.uid)
        };
        let key = || (cx.uid, self.pace().syncs(cx.stream));
        self.admit_if(wait, key, exempt)
    }

    /// `key` is asked for where somebody has to wait.
    fn admit_if(
        &self,
        wait: Wait,
        key: impl FnOnce() -> Key,
        exempt: impl Fn() -> bool,
    ) -> Result<LetIn<'_>> {
        self.check_alive()?;
        if self.options().read_only || self.is_stopped() {
            return Err(Error::Errno(libc::EROFS));
        }
        let at_once = LetIn::at_once();
        let frozen = self.freeze().is_on();
        if !frozen && (!self.over_limit() || self.options().background && exempt()) {
            return Ok(at_once);
        }
        wait.check()?;
        if !frozen && !self.options().background {
            self.commit_all(Cause::DirtyLimit)?;
            return self.drive().map(|()| at_once);
        }
        let let_in = self.wait_for_room(key(), exempt)?;
        self.check_running()?;
        Ok(let_in)
    }
}
