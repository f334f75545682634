//! Who is told of the moments at which a call gives way.
use crate::base::wait_point::{WaitPoint, WaitPointListener};
use crate::operation::Operations;

impl Operations {
    /// Who is told; the first one stays.
    pub fn listen_to_wait_points(&self, listener: WaitPointListener) {
        let _ = self.wait_points.set(listener);
    }

    pub(crate) fn at(&self, point: WaitPoint) {
        if let Some(listener) = self.wait_points.get() {
            listener(point);
        }
    }
}
