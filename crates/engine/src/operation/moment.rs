//! Who is told of the moments at which a call gives way.
use crate::base::moment::{Moment, MomentListener};
use crate::operation::Operations;

impl Operations {
    /// Who is told; the first one stays.
    pub fn listen_to_moments(&self, listener: MomentListener) {
        let _ = self.moments.set(listener);
    }

    pub(crate) fn at(&self, moment: Moment) {
        if let Some(listener) = self.moments.get() {
            listener(moment);
        }
    }
}
