//! Counts by name.
use std::collections::BTreeMap;

/// Counts by name.
pub type Counts = BTreeMap<String, u64>;

pub(crate) fn count(counts: &mut Counts, name: &str, n: u64) {
    if n == 0 {
        return;
    }
    match counts.get_mut(name) {
        Some(sum) => *sum += n,
        None => {
            counts.insert(name.into(), n);
        }
    }
}
