//! What the documents and manifests promise about the project: the Rust version, and examples that run.
mod common;
use common::{Place, run, tool};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap()
}

fn number(version: &str) -> Vec<u32> {
    let mut parts: Vec<u32> = version.split('.').map(|n| n.parse().unwrap()).collect();
    parts.resize(3, 0);
    parts
}

#[test]
fn the_least_rust_version_is_stated_and_holds() {
    let manifest = read("Cargo.toml");
    let field = |name: &str| {
        let line = manifest
            .lines()
            .find_map(|l| l.strip_prefix(&format!("{name} = ")));
        line.expect("the workspace states it")
            .trim_matches('"')
            .to_string()
    };
    let least = field("rust-version");
    assert_eq!(field("edition"), "2024");
    for document in ["README.md", "docs/using/first-steps.md"] {
        assert!(
            read(document).contains(&format!("Rust {least}")),
            "{document} does not say Rust {least}"
        );
    }
    for entry in fs::read_dir(top().join("crates")).unwrap() {
        let manifest = fs::read_to_string(entry.unwrap().path().join("Cargo.toml")).unwrap();
        for line in ["rust-version.workspace = true", "edition.workspace = true"] {
            assert!(manifest.contains(line), "a crate lacks {line}:\n{manifest}");
        }
    }
    // Nothing that we depend on needs a later one.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--locked", "--format-version", "1"]);
    let ran = run(cargo.current_dir(top()).stdin(Stdio::null()));
    if ran.code != 0 {
        println!("skipped: cargo metadata without network: {}", ran.err);
        return;
    }
    let metadata: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        if let Some(needed) = package["rust_version"].as_str() {
            assert!(
                number(needed) <= number(&least),
                "{} needs Rust {needed}",
                package["name"]
            );
        }
    }
}

/// The text of all tests of the other crates.
fn tests_of_others() -> String {
    let mut text = String::new();
    for entry in fs::read_dir(top().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("ccfs") {
            continue;
        }
        for tests in [path.join("tests"), path.join("src")] {
            let files = fs::read_dir(tests).into_iter().flatten().flatten();
            for file in files.filter(|f| f.path().extension().is_some_and(|e| e == "rs")) {
                text += &fs::read_to_string(file.path()).unwrap();
            }
        }
    }
    text
}

/// Each example says whether it runs by itself (`ci: yes`); those that need more are run by the tests that name them.
#[test]
fn every_example_runs() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_ccfs");
    let elsewhere = tests_of_others();
    let mut ran_here = 0;
    for entry in fs::read_dir(top().join("examples"))
        .unwrap()
        .map(Result::unwrap)
    {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        if !text.lines().take(10).any(|l| l.contains("ci: yes")) {
            if !elsewhere.contains(name.split('.').next().unwrap()) {
                println!(
                    "examples/{name} is run by no test, and does not say `ci: yes` in its head"
                );
            }
            continue;
        }
        let mode = path.metadata().unwrap().permissions().mode();
        assert!(mode & 0o111 != 0, "examples/{name} cannot be executed");
        let mut command = Command::new(&path);
        command
            .current_dir(place.path(""))
            .env("CCFS", program)
            .stdin(Stdio::null());
        let ran = run(&mut command);
        assert_eq!(ran.code, 0, "{name}: {}{}", ran.out, ran.err);
        ran_here += 1;
    }
    assert!(ran_here > 0);
    tool("e2fsck", &["-fn", &place.text("image.img")]);
    let listed = common::ccfs_with(&["ls", "-l", &format!("{}:/usr/bin", place.text("image.img"))]);
    assert!(listed.out.contains("greet -> hello"), "{}", listed.out);
}

/// What somebody left behind (a disk image, a core) and added with the rest would be in every clone for ever.
#[test]
fn no_large_file_is_kept() {
    const MOST: u64 = 1 << 20;
    let listed = Command::new("git")
        .args(["ls-tree", "-r", "-l", "-z", "HEAD"])
        .current_dir(top())
        .output();
    // A tarball of a release has no history; there the same files are, and nothing else.
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else {
        println!("skipped: not a clone");
        return;
    };
    let text = String::from_utf8(listed.stdout).unwrap();
    let entries = text.split_terminator('\0');
    let size = |entry: &str| entry.split_whitespace().nth(3)?.parse::<u64>().ok();
    let sizes: Vec<_> = entries.map(|entry| (size(entry), entry)).collect();
    assert!(sizes.len() > 100, "{text}");
    let large = sizes.iter().filter(|(size, _)| *size > Some(MOST));
    let large: Vec<_> = large.map(|(_, entry)| *entry).collect();
    assert!(large.is_empty(), "{large:?}");
}

/// Tests that docs/design/promises.md names beside the promises are there.
#[test]
fn every_named_test_exists() {
    let design = fs::read_to_string(top().join("docs/design/promises.md")).unwrap();
    let mut sources = String::new();
    let mut dirs = vec![top().join("crates"), top().join("verify")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                sources += &fs::read_to_string(path).unwrap();
            }
        }
    }
    let rows = design.lines().filter(|l| {
        let number = l.strip_prefix("| C1").and_then(|l| l.split(' ').next());
        number.is_some_and(|n| n.contains('.'))
    });
    let mut named = 0;
    for row in rows {
        let shown = row.split('|').nth(3).unwrap();
        let names = shown.split('`').skip(1).step_by(2);
        let tests = names.filter(|n| n.chars().all(|c| c == '_' || c.is_ascii_lowercase()));
        for test in tests {
            assert!(sources.contains(&format!("fn {test}()")), "{test}: {row}");
            named += 1;
        }
    }
    assert!(named >= 40, "only {named}");
}

/// The newest version of the C library's symbols that a program is bound to.
fn needed_glibc(program: &str) -> Vec<u32> {
    let text = tool("objdump", &["-T", program]);
    let undefined = text.lines().filter(|line| line.contains("*UND*"));
    let versions = undefined.filter_map(|line| {
        let version = line.split_once("GLIBC_")?.1;
        Some(number(version.split([')', ' ']).next()?))
    });
    versions.max().expect("symbols of the C library")
}

#[test]
#[cfg(target_env = "gnu")]
fn the_least_glibc_version_is_stated_and_holds() {
    let readme = read("README.md");
    let stated = readme.split_once("glibc ").expect("a version of glibc").1;
    let stated = stated.split(' ').next().unwrap();
    assert!(read("docs/using/first-steps.md").contains(&format!("glibc {stated}")));
    let system = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !system.contains("VERSION_ID=\"12\"") || !system.contains("ID=debian") {
        println!("skipped: it is stated of what is built on Debian 12");
        return;
    }
    let needed = needed_glibc(env!("CARGO_BIN_EXE_ccfs"));
    assert!(needed <= number(stated), "ccfs needs glibc {needed:?}");
    assert!(needed.len() == 3 && needed[0] == 2, "{needed:?}");
}
