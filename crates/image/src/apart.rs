//! What threads on several processors change at once lies apart from what they only read, and from what others change.
use std::ops::{Deref, DerefMut};

/// On cache lines of its own (processors fetch them in pairs).
#[derive(Default)]
#[repr(align(128))]
pub struct Apart<T>(
    /// What lies there.
    pub T,
);

impl<T> Deref for Apart<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Apart<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
