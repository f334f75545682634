//! The page that `ccfs metrics --listen` serves, in a browser.
mod common;
use common::{Place, Ran, ccfs, ccfs_with, run, unmount};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BROWSER: &str = "chromium";
/// Milliseconds of the page's own clock.
const SHOWN_FOR_MS: u32 = 6000;

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The page as it is after a while, and what the browser said.
fn page(place: &Place, url: &str) -> Ran {
    let profile = place.text("profile");
    let mut command = Command::new(BROWSER);
    command.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ]);
    command.args([
        "--enable-logging=stderr",
        "--log-level=0",
        "--window-size=1100,1400",
    ]);
    command.arg(format!("--user-data-dir={profile}"));
    command.arg(format!("--virtual-time-budget={SHOWN_FOR_MS}"));
    run(command.args(["--dump-dom", url]).stdin(Stdio::null()))
}

/// The text of an element by its id.
fn text_of<'p>(page: &'p str, id: &str) -> &'p str {
    let start = page.split(&format!("id=\"{id}\"")).nth(1);
    let start = start.unwrap_or_else(|| panic!("no {id} in {page}"));
    let inner = start.split_once('>').unwrap().1;
    inner.split("</").next().unwrap()
}

#[test]
fn the_page_shows_a_mount() {
    common::needs_mounts!();
    let found = run(Command::new("sh").args(["-c", "command -v chromium"]));
    if found.code != 0 {
        assert!(
            std::env::var_os("CI").is_none(),
            "{BROWSER} is not installed"
        );
        println!("skipped: {BROWSER} is not installed");
        return;
    }
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    let mounted = ccfs_with(&["mount", "-o", "commit=3600", &image, &dir]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    // Two streams, one of which comes after the other.
    let script =
        format!("echo 1 >{dir}/both; echo 2 >{dir}/other; sync -d {dir}/other; echo 3 >{dir}/both");
    let stream = |name: &str, script: &str| {
        let ran = ccfs_with(&[
            "stream", "run", "--name", name, "--on", &dir, "--", "sh", "-c", script,
        ]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    };
    stream("first", &script);
    stream("second", &format!("echo 4 >>{dir}/both"));
    let mut server = ccfs();
    server.args(["metrics", "--listen", "127.0.0.1:0", &dir]);
    let mut server = Ended(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    let mut said = BufReader::new(server.0.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let url = line.split_whitespace().nth(2).unwrap();

    let shown = page(&place, url);
    let errors: Vec<&str> = shown
        .err
        .lines()
        .filter(|l| l.contains("CONSOLE"))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert_eq!(text_of(&shown.out, "volume"), dir);
    assert_eq!(text_of(&shown.out, "health"), "ok");
    for wanted in [
        "operations a second",
        "<polyline",
        "<td>sync calls</td>",
        "<td>second</td>",
        "first (both changed the file)",
        "<meter",
        "<td>sync</td>",
    ] {
        assert!(
            shown.out.contains(wanted),
            "{wanted} is not in {}",
            shown.out
        );
    }

    unmount(&dir);
    let end = Instant::now() + Duration::from_secs(60);
    while common::run(Command::new("mountpoint").args(["-q", &dir])).code == 0 {
        assert!(Instant::now() < end);
    }
    let gone = page(&place, url);
    let health = text_of(&gone.out, "health");
    assert!(
        health.contains("is not on a mounted ccfs volume"),
        "{health}"
    );
}
