//! docs/using/crash-tests.md: its commands do what it says, as printed, one after the other.
use ccfs_testkit::blocks::blocks;
use ccfs_testkit::needs_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs;
use ccfs_testkit::run::run;
use std::path::Path;
use std::process::Command;

#[test]
fn the_document_is_true() {
    needs_mounts!();
    let place = Place::new();
    let text = include_str!("../../../docs/using/crash-tests.md");
    let program = ccfs().get_program().to_owned();
    let bin = Path::new(&program).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let said: Vec<String> = blocks("docs/using/crash-tests.md", text)
        .iter()
        .filter(|block| block.language == "sh")
        .map(|block| {
            let block = &block.text;
            let ran = run(Command::new("sh")
                // This user is root already.
                .args(["-ec", &format!("sudo() {{ \"$@\"; }}\n{block}")])
                .env("PATH", &path)
                .env("TMPDIR", place.path("."))
                .current_dir(place.path(".")));
            assert_eq!(ran.code, 0, "{block}\n{}{}", ran.out, ran.err);
            println!("{}", ran.out);
            ran.out
        })
        .collect();
    let [_, _, broken, right, log, editor, model] = said.as_slice() else {
        panic!("{} commands", said.len());
    };
    assert!(broken.starts_with("ext4  inconsistent: "), "{broken}");
    for text in [
        "\nccfs  consistent: all ",
        "images: error: the index names note-",
        "\n  ccfs crash explore ccfs-crash/ext4.trace --check 'python3 ",
        "\nreport: ccfs-crash/report.html\na crash can break it\n",
    ] {
        assert!(broken.contains(text), "{text}: {broken}");
    }
    assert!(right.starts_with("ext4  consistent: all "), "{right}");
    assert!(log.starts_with("ext4  consistent: all "), "{log}");
    assert!(log.contains("\nccfs  consistent: all "), "{log}");
    assert!(editor.contains("\nccfs  consistent: all "), "{editor}");
    assert!(model.starts_with("0 vulnerabilities on ccfs: "), "{model}");
}

/// Every checker stands in the document's table.
#[test]
fn every_checker_is_told() {
    let text = include_str!("../../../docs/using/crash-tests.md");
    for kind in ccfs_evidence::checkers::KINDS {
        let name = format!("`{}:{}`", kind.name, kind.argument);
        let row = |line: &&str| line.starts_with("| ") && line.contains(&name);
        assert_eq!(text.lines().filter(row).count(), 1, "{name}");
    }
}
