//! docs/kernels.md has the table that `make test-kernels` makes.
use ccfs_tests::kernels::checks::{BY_HAND, CHECKS};
use ccfs_tests::kernels::table::rows_in;
use std::path::Path;

/// Debian's kernels that are always to be had: what is served, and the one that is too old.
const ALWAYS: [&str; 3] = ["5.10", "6.1", "6.12"];

#[test]
fn the_document_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    let rows = rows_in(&std::fs::read_to_string(path).expect("the document"));
    let (head, rows) = rows.split_first().expect("a table");
    assert_eq!(head[0], "Linux");
    let by_hand = BY_HAND.iter().map(|(version, _)| version.to_string());
    for version in ALWAYS.map(String::from).into_iter().chain(by_hand) {
        assert!(head.contains(&version), "no {version}: {head:?}");
    }
    let titles: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let checks: Vec<&str> = CHECKS.iter().map(|check| check.title).collect();
    assert_eq!(titles, checks, "`make test-kernels` makes the table anew");
    for row in rows {
        assert_eq!(row.len(), head.len(), "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "a blank: {row:?}");
    }
    let cell = |check: &str, version: &str| {
        let row = CHECKS.iter().position(|c| c.name == check);
        let column = head.iter().position(|v| v == version);
        rows[row.expect("a check")][column.expect("a kernel")].as_str()
    };
    assert_eq!(cell("refused", "5.10"), "yes");
    for version in ["6.1", "6.12"] {
        assert_eq!(cell("refused", version), "served");
        assert_eq!(cell("sync", version), "yes");
    }
}
