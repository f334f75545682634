//! What planted bugs do with transactions and layers (`base/planted.rs`).
use crate::base::planted::{self, Bug};
use crate::overlay::objects::{LayerBody, State, Txn};

/// A dependency on this transaction is left out: to a group that was waited for and has ended, or to one that is open.
#[inline(always)]
pub(crate) fn is_left_out(to: &Txn) -> bool {
    match to.is_open_group() {
        true => planted::is(Bug::GroupConflict),
        false => planted::has_waited() && to.group.is_some(),
    }
}

/// `LateCapture`: a commit takes the attributes of the moment.
#[inline(always)]
pub(crate) fn capture_late(st: &State, body: &mut LayerBody) {
    if planted::is(Bug::LateCapture) && !st.is_dir() && body.attr.is_some() {
        body.attr = Some(st.attr.clone());
    }
}

/// `WrongVersion`: bytes that layer `serial` gets at `at` of a block, of which `start..end` counts, get into the older layers as well.
#[inline(always)]
pub(crate) fn change_older(
    st: &State,
    serial: u64,
    lblk: u64,
    (at, bytes): (usize, &[u8]),
    (start, end): (usize, usize),
) {
    if !planted::is(Bug::WrongVersion) {
        return;
    }
    for older in st.layers.iter().filter(|l| l.serial != serial) {
        if let Some(page) = older.body.write().pages.get_mut(lblk) {
            page.buf.make_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            page.start = page.start.min(start as u32);
            page.end = page.end.max(end as u32);
        }
    }
}
