//! What planted bugs do when records are applied (`base/planted.rs`).
use crate::base::planted::{self, Bug};
use crate::base::types::{Ino, Result};
use crate::home::Home;
use crate::overlay::objects::State;

impl Home {
    /// `AbsoluteCount`: a directory gets the link count that all streams see.
    #[inline(always)]
    pub(crate) fn planted_count(&self, dir: Ino, seen: Option<&State>) -> Result<()> {
        if let (Some(st), true) = (seen, planted::is(Bug::AbsoluteCount)) {
            let mut attr = self.image.read_attr(dir)?;
            attr.nlink = st.attr.nlink;
            self.image.write_attr(dir, &attr)?;
        }
        Ok(())
    }
}
