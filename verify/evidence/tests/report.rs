//! The report of `ccfs crash explore --html`: what it says, in Chromium as in the file, with names and outputs that would like to be markup.
use ccfs_testkit::needs_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs;
use ccfs_testkit::run::{Ran, run};
use std::process::Command;

/// A file's name and a check's output that a careless page would run.
const NAME: &str = "<img src=x onerror=console.error(1)>";
const OUTPUT: &str = "</pre><script>document.title=\"owned\"</script>";

fn crash(place: &Place, args: &[&str]) -> Ran {
    run(ccfs()
        .env("TMPDIR", place.path("."))
        .arg("crash")
        .args(args))
}

/// A new file that is not synced: after its commit in the background ext4 has its name, and its data much later.
fn report(place: &Place, fs: &str, calls: bool) -> (i32, String) {
    let trace = place.text(&format!("trace-{fs}"));
    let page = place.text(&format!("{fs}.html"));
    let work = format!("echo new >'{NAME}'; \"$CCFS\" crash mark written");
    // ext4 commits after 5 s, rounded up to a whole second, and a busy machine is late.
    let mut words = vec!["record", "--fs", fs, "--size", "64M", "--linger", "8"];
    if calls {
        words.push("--calls");
    }
    words.extend(["-o", &trace, "--", "sh", "-c", &work]);
    let done = crash(place, &words);
    assert_eq!(done.code, 0, "{fs}: {}", done.err);
    let check = format!(
        "test ! -e '{NAME}' || grep -q new '{NAME}' || {{ echo 'error: {OUTPUT}'; exit 1; }}"
    );
    let images = ["--reorder", "--images", "40"];
    let mut words = vec!["explore", &trace, "--check", &check, "--html", &page];
    words.extend(images);
    let found = crash(place, &words);
    let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{e}: {}", found.err));
    (found.code, text)
}

/// The page as Chromium has it; fails on any message of its console. `None`: there is no Chromium, and this is not CI.
fn in_chromium(place: &Place, page: &str) -> Option<String> {
    let url = format!("file://{page}");
    let profile = format!("--user-data-dir={}", place.text("chromium"));
    let ran = Command::new("timeout")
        .args([
            "-k",
            "5",
            "120",
            "chromium",
            "--headless=new",
            "--no-sandbox",
        ])
        .args(["--disable-gpu", "--enable-logging=stderr", &profile])
        .args(["--dump-dom", &url])
        .env("HOME", place.path("."))
        .output()
        .unwrap();
    if matches!(ran.status.code(), Some(125..=127)) {
        assert!(std::env::var_os("CI").is_none(), "chromium is missing");
        println!("skipped: chromium is missing; install chromium");
        return None;
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(!said.contains("CONSOLE"), "{said}");
    Some(String::from_utf8(ran.stdout).unwrap())
}

/// No markup but the page's own.
fn is_tame(page: &str) {
    for bad in ["<script", "<img", "src=\"", "http://", "https://"] {
        assert_eq!(page.find(bad), None, "{bad}");
    }
    assert_eq!(
        page.matches("<details").count(),
        page.matches("</details>").count()
    );
}

#[test]
fn a_failure_is_told_from_its_calls_to_its_files() {
    needs_mounts!();
    let place = Place::new();
    let (code, page) = report(&place, "ext4", true);
    assert_eq!(code, 4);
    is_tame(&page);
    let page = in_chromium(&place, &place.text("ext4.html")).unwrap_or(page);
    let told = [
        "<h1>A crash can break it on ext4</h1>",
        "System calls stand where they began",
        "openat(\"&lt;img src=x onerror=console.error(1)&gt;\", O_WRONLY|O_CREAT",
        "mark: written",
        "flush: makes",
        "Shortest sequence",
        "<strong>power cut</strong>",
        "error: &lt;/pre&gt;&lt;script&gt;document.title=",
        "Compared with the nearest image that is consistent",
        "<code>&lt;img src=x onerror=console.error(1)&gt;</code>",
        "0 bytes, there 4; differs from byte 0: here the end, there",
        "--save image",
    ];
    for text in told {
        // Quotation marks in contents are written as such by Chromium.
        let page = page.replace("&quot;", "\"");
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(page.contains("<title>A crash can break it on ext4</title>"));
    println!("ext4: {} texts, {} bytes", told.len(), page.len());
}

#[test]
fn no_failure_is_told_too_and_calls_that_were_not_seen() {
    needs_mounts!();
    let place = Place::new();
    let (code, page) = report(&place, "ccfs", false);
    assert_eq!(code, 0, "{page}");
    is_tame(&page);
    let page = in_chromium(&place, &place.text("ccfs.html")).unwrap_or(page);
    let told = [
        "<h1>No crash broke it on ccfs</h1>",
        "recorded without them (<code>ccfs crash record --calls</code>). Its marks are.",
        "None: all images are consistent.",
    ];
    for text in told {
        assert!(page.contains(text), "{text}\n{page}");
    }
    println!("ccfs: {} texts, {} bytes", told.len(), page.len());
}
