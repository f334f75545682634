//! The pictures of README.md are those that scripts/pictures.py makes, and show what the dated results have.
mod common;
use common::{Place, run};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PICTURES: [&str; 2] = ["crash", "rates"];
/// The results that the pictures show.
const CUT: &str = "docs/results/2026-11-27-cut";
const RATES: &str = "docs/results/2026-11-24-standard.md";

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn read(name: &str) -> String {
    fs::read_to_string(top().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn picture(name: &str) -> String {
    read(&format!("docs/pictures/{name}.svg"))
}

/// The texts of a picture, from top to bottom.
fn texts(svg: &str) -> Vec<String> {
    let elements = svg.split("<text ").skip(1);
    let inner = elements.filter_map(|e| e.split_once('>')?.1.split("</text>").next());
    inner.map(str::to_string).collect()
}

fn cut() -> Value {
    serde_json::from_str(&read(&format!("{CUT}.json"))).unwrap()
}

#[test]
fn the_script_makes_the_committed_pictures() {
    let place = Place::new();
    let script = top().join("scripts/pictures.py");
    let mut python = Command::new("python3");
    python.arg(&script).arg(place.path("")).stdin(Stdio::null());
    if Command::new("python3").arg("--version").output().is_err() {
        return println!("skipped: there is no python3");
    }
    let ran = run(&mut python);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for name in PICTURES {
        let made = fs::read_to_string(place.path(&format!("{name}.svg"))).unwrap();
        assert!(
            made == picture(name),
            "docs/pictures/{name}.svg is not what scripts/pictures.py docs/pictures makes"
        );
    }
}

/// What is needed to read them: a title and a description for screen readers, both modes, nothing from elsewhere.
#[test]
fn pictures_can_be_read_by_everybody() {
    let readme = read("README.md");
    for name in PICTURES {
        let svg = picture(name);
        for needed in [
            "<title id=\"title\">",
            "<desc id=\"description\">",
            "aria-labelledby=\"title description\"",
            "prefers-color-scheme: dark",
        ] {
            assert!(svg.contains(needed), "{name}: {needed}");
        }
        let own = svg.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http", "@import", "@font-face", "href", "<script"] {
            assert!(!own.contains(foreign), "{name}: {foreign}");
        }
        let shown = format!("](docs/pictures/{name}.svg)");
        let before = readme.split_once(&shown).expect("the README shows it").0;
        let alt = before.rsplit("![").next().unwrap();
        assert!(alt.len() > 40, "{name}: a text in place of the picture");
    }
}

/// The row of the result's page for one file system of a round; the same words as verify/tests/src/cut/report.rs.
fn row(after: &Value, name: &str, left: &Value) -> String {
    let number = |key: &str| left[key].as_u64().unwrap();
    let empty = number("done_files") - number("done_whole");
    format!(
        "| {after} | {name} | {} | {} | {} | {empty} | ",
        number("last_step"),
        number("journal_lines"),
        number("done_files")
    )
}

#[test]
fn the_crash_picture_shows_every_round_of_the_result() {
    let (result, page, svg) = (cut(), read(&format!("{CUT}.md")), picture("crash"));
    let shown = texts(&svg);
    let rounds = result["rounds"].as_array().unwrap();
    assert!(rounds.len() >= 5, "{} rounds", rounds.len());
    let mut figures = Vec::new();
    for name in ["ext4", "ccfs"] {
        for round in rounds {
            let left = &round[name];
            let row = row(&round["cut_after_s"], name, left);
            assert!(page.contains(&row), "{CUT}.md lacks {row}");
            let files = left["done_files"].as_u64().unwrap();
            let empty = files - left["done_whole"].as_u64().unwrap();
            figures.push(match empty {
                0 => format!("{files} files"),
                _ => format!("{files} files, {empty} empty"),
            });
            figures.push(format!("{} lines", left["journal_lines"]));
        }
    }
    let is_figure = |t: &&String| {
        t.ends_with(" lines") || t.contains(" files") && t.starts_with(|c: char| c.is_ascii_digit())
    };
    let in_picture: Vec<String> = shown.iter().filter(is_figure).cloned().collect();
    assert_eq!(in_picture, figures);
    for part in ["date", "machine", "kernel", "command"] {
        assert!(!result[part].as_str().unwrap().is_empty(), "{part}");
    }
    assert!(svg.contains(&format!("{CUT}.md")));
}

/// Cells of the result's tables: `to ext4` of a workload and a system.
fn to_ext4(page: &str, workload: &str, system: &str) -> String {
    let start = format!("| {workload} | {system} |");
    let row = page.lines().find(|l| l.starts_with(&start));
    let row = row.unwrap_or_else(|| panic!("{RATES} has no row {start}"));
    row.split('|').nth(5).unwrap().trim().to_string()
}

#[test]
fn the_chart_shows_the_rates_of_the_result() {
    let (page, svg) = (read(RATES), picture("rates"));
    let rows = [
        ("varmail", "ccfs"),
        ("randwrite", "ccfs"),
        ("createfiles", "ccfs"),
        ("seqwrite", "ccfs"),
        ("fileserver", "ccfs"),
        ("webserver", "ccfs"),
        ("table4/git", "ccfs"),
        ("table4/sqlite", "ccfs"),
        ("table4/leveldb", "ccfs"),
        ("table4/git", "ccfs+ignore-fsync"),
        ("table4/sqlite", "ccfs+ignore-fsync"),
        ("table4/leveldb", "ccfs+ignore-fsync"),
        ("table3/append", "ccfs"),
        ("table3/append", "ccfs+streams"),
    ];
    let rates: Vec<String> = rows.iter().map(|(w, s)| to_ext4(&page, w, s)).collect();
    let is_rate = |t: &&String| {
        t.split(' ')
            .next()
            .is_some_and(|w| w.contains('.') && w.parse::<f64>().is_ok())
    };
    let shown: Vec<String> = texts(&svg).iter().filter(is_rate).cloned().collect();
    assert_eq!(shown, rates);
    assert!(svg.contains(RATES));
}
