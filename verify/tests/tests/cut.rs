//! The cut behind the picture in README.md (`ccfs-cut`), once.
use ccfs_tests::cut;
use ccfs_tests::harness::Fs;

/// Seconds: the commit begins 5 s after the first operation.
const CUT_AFTER_S: u64 = 8;

#[test]
fn a_cut_leaves_a_prefix_on_ccfs() {
    let here = Fs::under_test() == Fs::Ccfs;
    if !here || ![Fs::Ext4, Fs::Ccfs].iter().all(|fs| fs.ready("cut")) {
        return;
    }
    let round = cut::round(CUT_AFTER_S);
    println!("{}", serde_json::to_string(&round).expect("plain values"));
    let left = &round.ccfs;
    assert!(left.is_prefix() && left.journal_lines > 0, "{left:?}");
    // The same program was cut on both. What ext4 keeps is its own affair.
    assert!(round.ext4.last_step > 0);
}
