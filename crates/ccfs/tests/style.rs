//! The rules of the house that no compiler checks: layers, unsafe code, sizes, leftovers, and documents that name tests.
mod messages;
mod modules;
use ccfs_testkit::document::COLUMNS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which crates of the workspace each one may use: imports go down only (docs/ARCHITECTURE.md, "The crates").
const LAYERS: &[(&str, &[&str])] = &[
    ("device", &[]),
    ("ext4", &[]),
    ("client", &[]),
    ("remote", &["device", "ext4"]),
    ("libccfs", &["client"]),
    ("intercept", &[]),
    ("preload", &["intercept", "client"]),
    ("image", &["device", "ext4"]),
    ("log", &["device", "ext4"]),
    ("engine", &["device", "ext4", "image", "log"]),
    ("caller", &["engine", "client"]),
    ("fuse", &["device", "engine", "client", "caller"]),
    ("command", &["device"]),
    ("offline", &["device", "engine", "remote"]),
    (
        "ccfs",
        &[
            "device",
            "ext4",
            "image",
            "log",
            "engine",
            "fuse",
            "client",
            "command",
            "offline",
            "remote",
            "intercept",
        ],
    ),
    // Crash exploration of any program: `ccfs crash` becomes its program `ccfs-crash`.
    (
        "evidence",
        &[
            "device", "remote", "engine", "fuse", "command", "disks", "testkit",
        ],
    ),
    // Judges of the product; what they may look at is only how they drive it.
    ("crash", &["device", "engine", "disks", "testkit"]),
    (
        "faults",
        &["device", "image", "engine", "crash", "disks", "testkit"],
    ),
    (
        "fuzzing",
        &[
            "device", "ext4", "image", "log", "engine", "fuse", "client", "crash", "disks",
        ],
    ),
    ("testkit", &[]),
    // Disks that lose power or are as slow as others.
    ("disks", &["device", "remote"]),
    ("tests", &["device", "engine", "client", "disks", "testkit"]),
    // Its modelled disks are those of the evidence. The engine is measured by itself, too.
    (
        "bench",
        &[
            "device", "engine", "client", "fuse", "command", "evidence", "disks", "testkit",
            "remote",
        ],
    ),
];
const LINES_MAX: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_path_buf()
}

/// Where crates are: `crates` is what is shipped, `verify` what shows that it is right and fast.
const PLACES: [&str; 2] = ["crates", "verify"];

/// All files below `dir` with this extension, build results left out.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && !name.starts_with("target") && name != "mnt" {
            out.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            out.push(path);
        }
    }
    out.sort();
    out
}

fn sources() -> Vec<(PathBuf, String)> {
    PLACES
        .iter()
        .flat_map(|place| files(&root().join(place), "rs"))
        .map(|p| (p.clone(), fs::read_to_string(&p).unwrap()))
        .collect()
}

fn none_of(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Names of the workspace's crates in the `[dependencies]` of a manifest; tests may use what shows that they are right.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]" || line.trim() == "[build-dependencies]";
        } else if inside && let Some(rest) = line.strip_prefix("ccfs-") {
            out.push(rest.split(['.', ' ', '=']).next().unwrap().to_string());
        }
    }
    out
}

#[test]
fn imports_go_down_only() {
    let mut wrong = Vec::new();
    let folders = PLACES
        .iter()
        .flat_map(|place| fs::read_dir(root().join(place)).unwrap())
        .map(|entry| entry.unwrap().path());
    for folder in folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        // The fuzzer's own workspace: targets of one line each, whose bodies are the crate `fuzzing`.
        if name == "fuzz" {
            continue;
        }
        let Some((_, allowed)) = LAYERS.iter().find(|(n, _)| *n == name) else {
            wrong.push(format!("{name} has no place in LAYERS"));
            continue;
        };
        let is_shipped = folder.parent().unwrap().ends_with(PLACES[0]);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for used in dependencies(&manifest) {
            let proves = root().join(PLACES[1]).join(&used).exists();
            if !allowed.contains(&used.as_str()) || is_shipped && proves {
                wrong.push(format!("{name} may not use ccfs-{used}"));
            }
        }
    }
    none_of(wrong);
}

#[test]
fn the_oracle_knows_nothing_of_the_engine() {
    let wrong = sources()
        .into_iter()
        .filter(|(path, text)| {
            path.to_str().unwrap().contains("verify/crash/src/oracle")
                && text
                    .lines()
                    .filter(|l| !l.trim_start().starts_with("//"))
                    .any(|l| l.contains("ccfs_") || l.contains("crate::"))
        })
        .map(|(path, _)| {
            format!(
                "{} uses another crate of the workspace: the contract alone judges",
                path.display()
            )
        });
    none_of(wrong.collect());
}

/// True where the line opens unsafe code (comments apart).
fn is_unchecked(line: &str) -> bool {
    let line = line.trim_start();
    !line.starts_with("//")
        && ["{", "fn", "impl", "extern", "("].iter().any(|next| {
            line.contains(&["unsafe", next].join(" ")) || line.contains(&["unsafe", next].concat())
        })
}

#[test]
fn unsafe_code_stays_in_marked_modules() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let shown = path.display();
        let marked = text
            .lines()
            .take(15)
            .any(|l| l.trim() == "#![allow(unsafe_code)]");
        if text.lines().any(is_unchecked) && !marked {
            wrong.push(format!(
                "{shown}: unsafe code without #![allow(unsafe_code)] at the top"
            ));
        }
        if path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") {
            let denied =
                text.contains("#![deny(unsafe_code)]") || text.contains("#![forbid(unsafe_code)]");
            if !denied {
                wrong.push(format!("{shown}: lacks #![deny(unsafe_code)]"));
            }
        }
    }
    none_of(wrong);
}

/// A namespace that begins anywhere has copies of all mounts, and other tests' volumes would be in use there.
#[test]
fn mount_namespaces_of_tests_begin_in_one_place() {
    let begins = format!("Command::new({:?})", "unshare");
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        if path.ends_with("testkit/src/mounts.rs") {
            continue;
        }
        for (at, _) in text.match_indices(&begins) {
            if text[at..]
                .chars()
                .take(200)
                .collect::<String>()
                .contains("\"-m\"")
            {
                wrong.push(format!("{}: use mounts::apart", path.display()));
            }
        }
    }
    none_of(wrong);
}

#[test]
fn libraries_that_are_shipped_warn_of_missing_documentation() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let is_shipped = path.starts_with(root().join(PLACES[0])) && path.ends_with("src/lib.rs");
        seen += usize::from(is_shipped);
        if is_shipped && !text.contains("#![warn(missing_docs)]") {
            wrong.push(format!("{}: lacks #![warn(missing_docs)]", path.display()));
        }
    }
    assert!(seen > 8, "the test finds no libraries any more: {seen}");
    none_of(wrong);
}

/// Damage that the engine meets has to reach the super block: it has the image only behind a front that sees to it, and what it finds
/// corrupt itself goes the same way. The others here open the image, or read the log.
#[test]
fn the_engine_notes_all_damage_that_it_meets() {
    let openers = [
        "home/mod.rs",
        "home/noted.rs",
        "home/onlog.rs",
        "home/recover.rs",
        "volume/mount.rs",
    ];
    let readers = ["home/apply.rs", "home/checkpoint.rs", "base/record.rs"];
    let mut wrong = Vec::new();
    let mut seen = 0;
    let src = root().join("crates/engine/src");
    for path in files(&src, "rs") {
        let name = path.strip_prefix(&src).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let image = line.starts_with("use ccfs_image") && words.any(|w| w == "Image");
            let corrupt = line.contains("Error::corrupt(");
            seen += usize::from(image || corrupt);
            let may = openers.contains(&name) || corrupt && readers.contains(&name);
            if (image || corrupt) && !may {
                wrong.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    assert!(seen > 8, "the test finds nothing any more: {seen}");
    none_of(wrong);
}

#[test]
fn files_are_short_and_finished() {
    // Put together here so that this file does not find itself.
    let leftovers = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("dbg", "!("),
        concat!("#[ig", "nore"),
        concat!("/wo", "rk/"),
        concat!("gui", "de/"),
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!(
                "{}: {lines} lines, at most {LINES_MAX}",
                path.display()
            ));
        }
        for (number, line) in text.lines().enumerate() {
            for word in leftovers.iter().filter(|w| line.contains(**w)) {
                wrong.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    none_of(wrong);
}

/// Names of all test functions, and `posix/GROUP` for every group of the directed checks.
fn tests() -> BTreeSet<String> {
    let groups = fs::read_to_string(root().join("verify/tests/src/posix/mod.rs")).unwrap();
    let mut names: BTreeSet<String> = groups
        .lines()
        .filter_map(|l| l.trim().strip_prefix("(\"")?.split_once("\", "))
        .map(|(name, _)| format!("posix/{name}"))
        .collect();
    for (_, text) in sources() {
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ")
                && is_test
            {
                names.insert(rest.split(['(', '<']).next().unwrap().to_string());
                is_test = false;
            }
        }
    }
    names
}

#[test]
fn every_row_of_the_posix_table_names_a_test() {
    let text = fs::read_to_string(root().join("docs/posix.md")).unwrap();
    let tests = tests();
    let mut wrong = Vec::new();
    let mut rows = 0;
    for (number, line) in text.lines().enumerate() {
        if !line.starts_with('|') || line.starts_with("| call") || line.starts_with("|--") {
            continue;
        }
        rows += 1;
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if cells.len() != 3 || cells[1].is_empty() {
            wrong.push(format!(
                "docs/posix.md:{}: a row is `| call | what ccfs does | test |`",
                number + 1
            ));
            continue;
        }
        let named: Vec<&str> = cells[2].split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            wrong.push(format!("docs/posix.md:{}: no test", number + 1));
        }
        for name in named.iter().filter(|n| !tests.contains(**n)) {
            wrong.push(format!(
                "docs/posix.md:{}: there is no test {name}",
                number + 1
            ));
        }
    }
    assert!(rows > 60, "docs/posix.md has lost its table ({rows} rows)");
    none_of(wrong);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for path in files(&root(), "md") {
        let text = fs::read_to_string(&path).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = link.split('#').next().unwrap();
            let outside =
                file.is_empty() || file.starts_with("http:") || file.starts_with("https:");
            if !outside && !path.parent().unwrap().join(file).exists() {
                wrong.push(format!("{}: {link} leads nowhere", path.display()));
            }
        }
    }
    none_of(wrong);
}

/// Numbers of the lines that are too long; rows of tables and lines of code blocks may be.
fn wide_lines(text: &str) -> Vec<usize> {
    let mut wide = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !start.starts_with('|') && line.chars().count() > COLUMNS_MAX {
            wide.push(number + 1);
        }
    }
    wide
}

#[test]
fn lines_of_documents_are_short() {
    let long = "word ".repeat(21);
    let text = format!("{long}\n  | {long} |\n```sh\n{long}\n```\n{long}\n");
    assert_eq!(wide_lines(&text), [1, 6]);
    let root = root();
    let mut wrong = Vec::new();
    for path in files(&root, "md") {
        let name = path.strip_prefix(&root).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        wrong.extend(wide_lines(&text).into_iter().map(|line| {
            let name = name.display();
            format!("{name}:{line}: more than {COLUMNS_MAX} columns")
        }));
    }
    none_of(wrong);
}

#[test]
fn the_user_manual_names_every_feature_that_is_refused() {
    use ccfs_ext4::features::{Support, TABLE};
    let text = ccfs_testkit::user_manual::text();
    let own_text = ["needs_recovery", "orphan_present"];
    let wrong = TABLE
        .iter()
        .filter(|f| f.support != Support::Full && !text.contains(f.name))
        .filter(|f| !own_text.contains(&f.name))
        .map(|f| format!("docs/using does not name the feature {}", f.name));
    none_of(wrong.collect());
}

/// How names of our variables of the environment begin.
const VARIABLES: [&str; 3] = ["CCFS_", "GUEST_", "FUZZ_"];

/// The variable that the text begins with.
fn variable(text: &str) -> Option<&str> {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let end = text.find(|c: char| !is_part(c)).unwrap_or(text.len());
    let name = &text[..end];
    let is_ours = VARIABLES.iter().any(|start| name.starts_with(*start));
    (is_ours && !name.ends_with('_')).then_some(name)
}

/// Variables that a text reads: `$NAME` and `${NAME` of shells, and a literal that is the first argument of a call or the value of a
/// constant. What is only set for another program is not read.
fn variables_read(text: &str) -> Vec<&str> {
    let setters = ["", "env", "env_remove", "setenv", "unsetenv"];
    let mut found = Vec::new();
    for (at, sign) in text.match_indices(['$', '"']) {
        let rest = &text[at + 1..];
        if sign == "$" {
            found.extend(variable(rest.strip_prefix('{').unwrap_or(rest)));
            continue;
        }
        let Some(name) = variable(rest).filter(|n| rest[n.len()..].starts_with('"')) else {
            continue;
        };
        let before = text[..at].trim_end();
        let is_read = match before.strip_suffix('(') {
            Some(call) => {
                let called = call.rsplit(|c: char| !(c.is_alphanumeric() || c == '_'));
                !called.take(1).any(|word| setters.contains(&word))
            }
            None => before.ends_with('='),
        };
        found.extend(is_read.then_some(name));
    }
    found
}

#[test]
fn the_test_guide_has_every_variable_of_the_environment() {
    let mut paths: Vec<PathBuf> = ["rs", "sh", "py", "c", "cc"]
        .iter()
        .flat_map(|extension| files(&root(), extension))
        .collect();
    paths.extend(["Makefile", "examples/ccfs-git"].map(|name| root().join(name)));
    let mut read: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let is_comment = |l: &&str| ["//", "# "].iter().any(|c| l.trim_start().starts_with(*c));
        let code: Vec<&str> = text.lines().filter(|l| !is_comment(l)).collect();
        let code = code.join("\n");
        for name in variables_read(&code) {
            read.insert(name.to_string(), path.clone());
        }
    }
    let guide = "docs/testing.md";
    let text = fs::read_to_string(root().join(guide)).unwrap();
    let rows = text.lines().filter(|l| l.starts_with("| `"));
    let told: BTreeSet<&str> = rows
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|span| variable(span) == Some(*span))
        .collect();
    let mut wrong = Vec::new();
    for (name, path) in &read {
        if !told.contains(name.as_str()) {
            wrong.push(format!(
                "{guide} has no row for {name}, which {} reads",
                path.display()
            ));
        }
    }
    for name in told {
        if !read.contains_key(name) {
            wrong.push(format!("{guide}: nothing reads {name}"));
        }
    }
    assert!(
        read.len() > 40,
        "the test finds no variables any more: {read:?}"
    );
    none_of(wrong);
}

#[test]
fn reads_of_variables_are_told_from_the_rest() {
    // Put together here so that the test above does not find it.
    let name = ["CCFS", "SAMPLE"].join("_");
    let reads = |text: String| variables_read(&text) == [name.as_str()];
    assert!(reads(format!("env::var_os(\"{name}\")")));
    assert!(reads(format!("number(\n    \"{name}\", 1)")));
    assert!(reads(format!("const A: &str = \"{name}\";")));
    assert!(reads(["echo \"$", &name, "\""].concat()));
    assert!(reads(["${", &name, ":-1}"].concat()));
    assert!(!reads(format!("command.env(\"{name}\", \"1\")")));
    assert!(!reads(format!("[(\"{name}\", \"1\")]")));
    assert!(!reads(format!("{name}=1 cargo test")));
    assert!(!reads(format!("panic!(\"{name} is a number\")")));
}
