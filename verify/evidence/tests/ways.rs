//! The tables' columns in which syncs are ignored: on ext4 an editor's save is damaged, on ccfs what is there is whole, and may be old.
use ccfs_testkit::mounts::no_mounts;
use ccfs_testkit::place::Place;
use std::process::Command;

/// The cell of a column, in the row of the editor.
fn cell(document: &str, column: &str) -> String {
    let (_, table) = document.split_once("### Images").unwrap();
    let row = |begin: &str| {
        let line = table.lines().find(|l| l.starts_with(begin)).unwrap();
        line.split(" | ").map(str::to_string).collect::<Vec<_>>()
    };
    let at = row("| program |").iter().position(|c| c == column).unwrap();
    row("| editor's save |")[at].clone()
}

/// Consistent images and all, and how many are older than what was answered for.
fn counts(cell: &str) -> (usize, usize, usize) {
    let (counts, _) = cell.split_once(" (").unwrap();
    let (of_all, older) = counts.split_once(", ").unwrap_or((counts, "0 older"));
    let (good, all) = of_all.split_once('/').unwrap();
    let number = |text: &str| text.parse().unwrap_or_else(|e| panic!("{cell}: {e}"));
    let older = older.strip_suffix(" older").unwrap();
    (number(good), number(all), number(older))
}

#[test]
fn ignored_syncs_cost_ccfs_the_newest_work_and_ext4_the_file() {
    if let Some(why) = no_mounts() {
        return println!("skipped: {why}");
    }
    let place = Place::new();
    let measure = |system: &str| {
        let options = "--only editor --parts images --images 60 --fs";
        let ran = Command::new(env!("CARGO_BIN_EXE_ccfs-evidence"))
            .arg("tables")
            .args(options.split(' '))
            .arg(system)
            .args(["--document", &place.text("evidence.md")])
            .args(["--results", &place.text("results.json")])
            .args(["--html", &place.text("html")])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{system}: {said}");
        std::fs::read_to_string(place.path("evidence.md")).unwrap()
    };
    let (good, all, older) = counts(&cell(&measure("ccfs+ignore-fsync"), "ccfs, syncs ignored"));
    println!("ccfs+ignore-fsync: {good}/{all}, {older} older");
    assert!(good == all && older > 0, "{good}/{all}, {older} older");
    if ccfs_evidence::systems::SYSTEMS
        .iter()
        .filter(|s| s.name == "ext4-eatmydata")
        .any(|s| s.missing().is_some())
    {
        return println!("skipped: ext4-eatmydata: eatmydata is not installed");
    }
    let (good, all, older) = counts(&cell(&measure("ext4-eatmydata"), "ext4, eatmydata"));
    println!("ext4-eatmydata: {good}/{all}, {older} older");
    assert!(good < all && older > 0, "{good}/{all}, {older} older");
}
