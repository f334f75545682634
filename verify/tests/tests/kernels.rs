//! docs/kernels.md has the table that `make test-kernels` makes, and no cell is left open.
use ccfs_tests::kernels::Version;
use ccfs_tests::kernels::checks::{BY_HAND, CHECKS, USUAL};
use ccfs_tests::kernels::table::{Results, known_in, rows_in};
use std::path::Path;

#[test]
fn the_document_has_the_table() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = std::fs::read_to_string(docs.join("kernels.md")).expect("the document");
    let results = Results::load(&docs.join("kernels.json")).expect("results");
    assert!(
        text.contains(&results.markdown()),
        "the table of kernels.json"
    );
    let rows = rows_in(&text);
    let (head, rows) = rows.split_first().expect("a table");
    assert_eq!(head[0], "Linux");
    let by_hand = BY_HAND.iter().map(|(version, _)| *version);
    for version in USUAL.into_iter().chain(by_hand.clone()) {
        assert!(
            head.contains(&version.to_string()),
            "no {version}: {head:?}"
        );
    }
    let newest = head.last().and_then(|v| Version::of(v)).expect("a kernel");
    assert!(USUAL.iter().all(|v| *v < newest), "the newest is {newest}");
    let titles: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let checks: Vec<&str> = CHECKS.iter().map(|check| check.title).collect();
    assert_eq!(titles, checks, "`make test-kernels` makes the table anew");
    // What was seen of every check; else why not is told below the table.
    let known = known_in(&text);
    let mut open = Vec::new();
    for (check, row) in CHECKS.iter().zip(rows) {
        assert_eq!(row.len(), head.len(), "{row:?}");
        for (version, cell) in head.iter().zip(row).skip(1) {
            assert!(!cell.is_empty(), "a blank: {row:?}");
            let is_by_hand = by_hand.clone().any(|v| v.to_string() == *version);
            let is_open = !is_by_hand && (cell == "not run" || cell == "**FAILED**");
            if is_open {
                open.push((version.clone(), check.name.to_string()));
            }
        }
    }
    open.sort();
    let mut named = known.clone();
    named.sort();
    assert_eq!(open, named, "open cells, and those that are named as known");
    let cell = |check: &str, version: &str| {
        let row = CHECKS.iter().position(|c| c.name == check);
        let column = head.iter().position(|v| v == version);
        rows[row.expect("a check")][column.expect("a kernel")].as_str()
    };
    assert_eq!(cell("refused", "5.10"), "yes");
    for version in ["6.1", "6.12"] {
        assert_eq!(cell("refused", version), "served");
        // They are promises.
        assert_eq!([cell("sync", version), cell("power", version)], ["yes"; 2]);
    }
}
