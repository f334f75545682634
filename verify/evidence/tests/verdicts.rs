//! `ccfs crash run`: one command from a program to a verdict for each file system.
use ccfs_testkit::json::compare;
use ccfs_testkit::needs_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::{ccfs, ccfs_with};
use ccfs_testkit::run::{Ran, run, tool};
use serde_json::Value;

fn crash_run(place: &Place, args: &[&str]) -> Ran {
    let common = ["crash", "run", "--size", "64M", "-o"];
    run(ccfs()
        .env("TMPDIR", place.path("."))
        .current_dir(place.path("."))
        .args(common)
        .arg("out")
        .args(args))
}

/// A new file that is not synced, and a commit by somebody else: ext4 has its name, and not its data.
const CARELESS: &str = "echo '<new>' >config; echo x >other; sync other";
const CHECK: &str =
    "test ! -e config || grep -q new config || { echo 'error: <config> & is empty'; exit 1; }";

fn names(place: &Place) -> Vec<String> {
    let listed = std::fs::read_dir(place.path("out")).unwrap();
    let mut names: Vec<_> = listed
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn one_command_gives_verdicts_a_report_and_junit() {
    needs_mounts!();
    let place = Place::new();
    let args = ["--fs", "ext4,ccfs", "--linger", "0", "--images", "60"];
    let more = [
        "--check",
        CHECK,
        "--junit",
        "junit.xml",
        "--",
        "sh",
        "-c",
        CARELESS,
    ];
    let ran = crash_run(&place, &[&args[..], &more].concat());
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    for text in [
        "\next4  inconsistent: ",
        "\nccfs  consistent: ",
        "error: <config> & is empty",
        "\nreport: ",
    ] {
        let said = format!("\n{}", ran.out);
        assert!(said.contains(text), "{text}: {said}");
    }
    assert_eq!(names(&place), ["ext4.trace", "report.html"]);
    let page = std::fs::read_to_string(place.path("out/report.html")).unwrap();
    assert!(page.contains("<h1>A crash can break it on ext4</h1>"));
    // The command that is printed shows the failure again.
    let line = ran
        .out
        .lines()
        .find(|l| l.starts_with("  ccfs crash explore"));
    let program = ccfs().get_program().to_str().unwrap().to_string();
    let again = line.unwrap().replacen("ccfs", &format!("'{program}'"), 1);
    let again = run(std::process::Command::new("sh")
        .args(["-c", &again])
        .current_dir(place.path(".")));
    assert_eq!(again.code, 4, "{}{}", again.out, again.err);
    assert!(
        again
            .out
            .contains("inconsistent: error: <config> & is empty")
    );
    let counts = tool(
        "python3",
        &[
            "-c",
            "import sys, xml.etree.ElementTree as e
for s in e.parse(sys.argv[1]).getroot():
    cases = list(s)
    failed = [c for c in cases if c.find('failure') is not None]
    assert len(cases) == int(s.get('tests')) and len(failed) == int(s.get('failures'))
    text = ''.join(c.find('failure').text for c in failed)
    print(s.get('name'), bool(failed), 'error: <config> & is empty' in text)",
            &place.text("junit.xml"),
        ],
    );
    assert_eq!(counts, "ext4 True True\nccfs False False\n");
}

#[test]
fn json_is_as_documented() {
    needs_mounts!();
    let place = Place::new();
    let work = format!("echo said by the program; {CARELESS}");
    let args = [
        "--fs",
        "ccfs,ext4",
        "--linger",
        "0",
        "--images",
        "40",
        "--json",
    ];
    let more = ["--check", CHECK, "--", "sh", "-c", &work];
    let ran = crash_run(&place, &[&args[..], &more].concat());
    assert_eq!(ran.code, 4, "{}", ran.err);
    let value = compare("ccfs crash run --json", &ran.out);
    let verdicts = value["systems"].as_array().unwrap().iter();
    let verdicts: Vec<_> = verdicts
        .map(|s| (s["name"].as_str().unwrap(), s["verdict"].as_str().unwrap()))
        .collect();
    assert_eq!(verdicts, [("ccfs", "consistent"), ("ext4", "inconsistent")]);
}

#[test]
fn time_is_bounded_and_what_was_not_tried_is_told() {
    needs_mounts!();
    let place = Place::new();
    let work = "for i in 1 2 3 4 5 6 7 8 9; do echo $i >f$i; sync f$i .; done";
    let args = ["--fs", "ccfs", "--linger", "0", "--json", "--time"];
    let judge = |time: &str, check: &str, work: &str| {
        let more = [time, "--check", check, "--", "sh", "-c", work];
        let ran = crash_run(&place, &[&args[..], &more].concat());
        let value: Value =
            serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}", ran.err));
        (ran.code, value["systems"][0].clone())
    };
    let (code, slow) = judge("6", "sleep 2", work);
    assert_eq!(
        (code, &slow["verdict"]),
        (0, &"consistent".into()),
        "{slow:#}"
    );
    let tried: u64 = slow["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|k| k["total"].as_u64().unwrap())
        .sum();
    assert!(tried > 0 && slow["left"].as_u64() > Some(0), "{slow:#}");
    let (code, endless) = judge("2", "true", "echo x >f; exec sleep 1000");
    let why = endless["reason"].as_str().unwrap();
    assert_eq!((code, why), (1, "sh did not end in time"), "{endless:#}");
    let (code, whole) = judge("0", "true", work);
    assert_eq!((code, &whole["left"]), (0, &0.into()), "{whole:#}");
}

#[test]
fn what_cannot_be_judged_is_no_verdict() {
    needs_mounts!();
    let place = Place::new();
    let judge = |check: &str, work: &str| {
        let args = [
            "--fs", "ccfs", "--linger", "0", "--check", check, "--", "sh", "-c", work,
        ];
        let ran = crash_run(&place, &args);
        (ran.code, ran.out)
    };
    let (code, said) = judge("true", "exit 3");
    assert!(
        code == 1 && said.contains("failed: the program failed (exit code 3)"),
        "{said}"
    );
    let (code, said) = judge("true", "true");
    assert!(
        code == 1 && said.contains("failed: the program wrote nothing"),
        "{said}"
    );
    let (code, said) = judge("./nosuch", "echo x >f");
    assert!(
        code == 1 && said.contains("the check could be run in no image"),
        "{said}"
    );
    // A check that is wrong itself.
    let (code, said) = judge("echo no; false", "echo x >f");
    let hint =
        "ccfs: the check also fails on what the program left at its end, without a crash: no";
    assert!(code == 4 && said.contains(hint), "{said}");
    let (code, said) = judge("test -e f", "echo x >f");
    let hint = "ccfs: the check also fails on what was there before the program began";
    assert!(code == 4 && said.contains(hint), "{said}");
    assert!(names(&place).contains(&"ccfs.trace".to_string()));
}

#[test]
fn wrong_arguments_touch_nothing() {
    let place = Place::new();
    for (args, text) in [
        ("-- true", "--check"),
        ("--check true", "COMMAND"),
        ("--check true --fs nosuch -- true", "values: ext4"),
        ("--checker nosuch:x -- true", "sqlite:FILE"),
        (
            "--checker log:/x -- true",
            "from the root of the file system",
        ),
        ("--program nosuch", "sqlite-wal"),
        ("--program git --check true", "cannot be used with"),
        ("--program git -- true", "cannot be used with"),
        ("--check true --linger x -- true", "--linger"),
        ("--check true --linger=-1 -- true", "--linger"),
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let ran = crash_run(&place, &words);
        assert_eq!(ran.code, 2, "{args}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains(text), "{args}: {}", ran.err);
    }
    assert!(!place.path("out").exists());
}

/// A program that is shipped, on a system on which syncs do nothing: what is only older than answered is forgiven.
#[test]
fn shipped_programs_run_by_name() {
    needs_mounts!();
    let place = Place::new();
    let args = [
        "--program",
        "editor",
        "--fs",
        "ccfs+ignore-fsync",
        "--images",
        "40",
    ];
    let ran = crash_run(&place, &args);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(
        ran.out.starts_with("ccfs+ignore-fsync  consistent: "),
        "{}",
        ran.out
    );
}

/// On a volume after a real crash nothing is known but the files.
#[test]
fn a_check_by_hand_judges_what_it_can() {
    let place = Place::new();
    let check = |spec: &str| {
        let ran = run(ccfs()
            .current_dir(place.path("."))
            .args(["crash", "check", spec]));
        (ran.code, ran.out)
    };
    std::fs::write(place.path("log"), "a\nb\n\0\0").unwrap();
    assert_eq!(
        check("log:log"),
        (
            1,
            "error: log holds zeros: the last 2 of its 6 bytes are zeros\n".into()
        )
    );
    std::fs::write(place.path("log"), "a\nb\n").unwrap();
    assert_eq!(check("log:log"), (0, String::new()));
    let (code, said) = check("replaced:log");
    assert!(
        code == 126 && said.starts_with("cannot check: no version of log is known"),
        "{said}"
    );
    assert_eq!(ccfs_with(&["crash", "check", "nosuch:x"]).code, 2);
    let help = ccfs_with(&["crash", "check", "--help"]).out;
    for kind in ccfs_evidence::checkers::KINDS {
        assert!(
            help.contains(&format!("{}:{}", kind.name, kind.argument)),
            "{help}"
        );
    }
}
