//! What a user sees of a mounted volume: top, trace, metrics, the status files, and who may see what.
mod common;
use common::{Place, ccfs, ccfs_with, run, tool, unmount};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Two users who are not root.
const ALICE: u32 = 61_001;
const BOB: u32 = 61_002;

/// A mounted volume into which everybody may write.
fn mounted(place: &Place, options: &str) -> String {
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    let mount = || {
        let done = ccfs_with(&["mount", "-o", options, &image, &dir]);
        assert_eq!(done.code, 0, "{}", done.err);
    };
    mount();
    for (path, mode) in [(place.text("."), 0o755), (dir.clone(), 0o1777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // Mounted afresh, that change is no uncommitted operation that others come after.
    unmount(&dir);
    mount();
    dir
}

/// The program where every user can run it, beside the mount: the build's folder may be closed to them. Installed by another
/// process: this one's threads start programs, and a file that is open for writing cannot be run.
fn reachable(dir: &str) -> Command {
    let program = Path::new(dir).parent().unwrap().join("ccfs");
    if !program.exists() {
        let to = program.to_str().unwrap();
        tool("install", &["-m", "755", env!("CARGO_BIN_EXE_ccfs"), to]);
    }
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Runs a shell script in a stream of its own, as a user.
fn in_stream(uid: u32, id: u64, dir: &str, script: &str) {
    let id = id.to_string();
    let args = [
        "stream", "run", "--id", &id, "--on", dir, "--", "sh", "-c", script,
    ];
    let ran = run(reachable(dir).args(args).uid(uid).gid(uid));
    assert_eq!(ran.code, 0, "{script}: {}", ran.err);
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends a child, whatever happens.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn top_once_shows_streams_dependencies_and_who() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    in_stream(0, 71, &dir, &format!("mkdir {dir}/d; echo a >{dir}/d/f"));
    // A process that stays.
    let args = [
        "stream", "run", "--id", "72", "--on", &dir, "--", "sh", "-c",
    ];
    let script = format!("echo b >>{dir}/d/f; echo ready; read line");
    let mut child = ccfs();
    child
        .args(args)
        .arg(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut writer = Ended(child.spawn().unwrap());
    let mut ready = String::new();
    let out = writer.0.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let shown = ccfs_with(&["top", "--once", &dir]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    let text = &shown.out;
    let of_72 = text
        .lines()
        .find(|l| l.starts_with("72 "))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(of_72.contains(&writer.0.id().to_string()), "{text}");
    assert!(
        text.contains("  after stream 71: both changed the file, d/f"),
        "{text}"
    );
    let top = json(&ccfs_with(&["top", "--json", &dir]).out);
    let streams = top["streams"].as_array().unwrap();
    let one = streams.iter().find(|s| s["id"] == 72).unwrap();
    assert_eq!(
        (
            &one["dependencies"][0]["stream"],
            &one["dependencies"][0]["file"]
        ),
        (&71.into(), &"d/f".into())
    );
    assert_eq!(one["processes"][0]["pid"], writer.0.id());
    let exe = one["processes"][0]["exe"].as_str().unwrap();
    assert!(Path::new(exe).is_absolute(), "{exe}");
    drop(writer);
    let piped = ccfs_with(&["top", &dir]);
    common::refused("top", &piped, 1, &["no terminal"]);
    unmount(&dir);
    let gone = ccfs_with(&["top", "--once", &dir]);
    common::refused("top", &gone, 1, &["not on a mounted ccfs volume"]);
}

#[test]
fn trace_tells_why_a_sync_was_slow() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    let mut child = ccfs();
    child
        .args(["stream", "trace", "--json", "--all", &dir])
        .stdout(Stdio::piped());
    let mut tracer = Ended(child.spawn().unwrap());
    let mut lines = BufReader::new(tracer.0.stdout.take().unwrap()).lines();
    in_stream(
        0,
        71,
        &dir,
        &format!("head -c 100000 /dev/zero >{dir}/shared"),
    );
    in_stream(
        0,
        72,
        &dir,
        &format!("echo b >>{dir}/shared; echo c >{dir}/own; sync -d {dir}/own"),
    );
    let mut events = Vec::new();
    loop {
        let event = json(&lines.next().unwrap().unwrap());
        let last = event["kind"] == "sync";
        events.push(event);
        if last {
            break;
        }
    }
    let commit = |stream: u64| {
        let found = events
            .iter()
            .find(|e| e["kind"] == "commit" && e["stream"] == stream);
        found.unwrap_or_else(|| panic!("{events:?}"))
    };
    let needed = commit(71);
    assert_eq!(
        (&needed["reason"], &needed["rule"]),
        (&"dependency".into(), &"file".into())
    );
    assert_eq!(
        (&needed["for_stream"], &needed["file"]),
        (&72.into(), &"shared".into())
    );
    assert!(needed["data_bytes"].as_u64().unwrap() >= 100_000);
    let own = commit(72);
    assert_eq!(
        (&own["reason"], &own["call"]),
        (&"sync".into(), &"fsync".into())
    );
    assert_eq!(own["file"], "own");
    let sync = events.last().unwrap();
    assert_eq!(
        (&sync["stream"], &sync["file"]),
        (&72.into(), &"own".into())
    );
    assert_eq!(sync["commits"], 2, "{events:#?}");
    assert!(sync["pid"].as_u64().unwrap() > 0);
    assert!(sync["latency_us"].as_u64() >= own["write_us"].as_u64());
    // For people, and the same from the file.
    let text = ccfs_with(&["stream", "trace", "--all", "-n", "3", &dir]);
    assert_eq!(text.out.lines().count(), 3, "{}", text.out);
    assert!(
        text.out
            .contains("dependency: stream 72 comes after it, rule file, shared"),
        "{}",
        text.out
    );
    let file = fs::read_to_string(place.path("mnt/.ccfs/trace")).unwrap();
    let kinds: Vec<Value> = file.lines().map(json).collect();
    assert!(
        kinds
            .iter()
            .any(|e| e["kind"] == "commit" && e["reason"] == "dependency"),
        "{file}"
    );
    drop(lines);
    drop(tracer);
    unmount(&dir);
}

/// More events than the daemon keeps: the number of lost ones is said, and what comes after them is there.
#[test]
fn trace_counts_what_it_lost() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    let at = fs::File::open(&dir).unwrap();
    let syncs = 5000u64;
    let file = fs::File::create(place.path("mnt/f")).unwrap();
    for _ in 0..syncs {
        file.sync_all().unwrap();
    }
    let found = ccfs_client::trace(&at, 0).unwrap();
    // The commit of the file's creation, and a sync for each call.
    assert_eq!(found.lost, syncs + 1 - 4096);
    let first = json(found.lines.lines().next().unwrap());
    assert_eq!(first["number"], found.lost);
    let new = ccfs_client::trace(&at, ccfs_client::abi::TRACE_NEW).unwrap();
    assert_eq!((new.lines.as_str(), new.lost, new.next), ("", 0, syncs + 1));
    drop((file, at));
    unmount(&dir);
}

/// A sample of the text format: name, labels, value.
type Sample = (String, Vec<(String, String)>, f64);

fn sample(line: &str) -> Sample {
    let (name, rest) = line.split_once('{').expect("labels");
    let (labels, value) = rest.rsplit_once("} ").expect("a value");
    let labels = labels.split(',').map(|l| {
        let (key, value) = l.split_once('=').expect("key=value");
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
        (key.to_string(), value.expect("quotation marks").to_string())
    });
    let good = |s: &str| {
        s.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    assert!(good(name), "{line}");
    let labels: Vec<_> = labels.collect();
    assert!(labels.iter().all(|(k, _)| good(k)), "{line}");
    (name.to_string(), labels, value.parse().expect("a number"))
}

/// What promtool checks: HELP and TYPE before each family, families in one piece, names with units, histograms that add up.
fn check_metrics(text: &str) -> Vec<Sample> {
    assert!(text.ends_with('\n'));
    let mut samples: Vec<Sample> = Vec::new();
    let mut families: Vec<(String, String)> = Vec::new();
    let mut helped = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a text");
            assert!(help.ends_with('.') && help.len() > 5, "{line}");
            helped = name.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, helped, "HELP comes before TYPE");
            assert!(families.iter().all(|(n, _)| n != name), "{name} twice");
            assert!(name.starts_with("ccfs_"));
            match kind {
                "counter" => assert!(name.ends_with("_total"), "{name}"),
                "histogram" => assert!(name.ends_with("_seconds"), "{name}"),
                "gauge" => assert!(!name.ends_with("_total"), "{name}"),
                other => panic!("{other}"),
            }
            families.push((name.to_string(), kind.to_string()));
        } else {
            let one = sample(line);
            let (name, kind) = families.last().expect("a family");
            let rest = one
                .0
                .strip_prefix(name.as_str())
                .unwrap_or_else(|| panic!("{line}"));
            match kind.as_str() {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&rest), "{line}"),
                _ => assert_eq!(rest, "", "{line}"),
            }
            let twin = samples.iter().any(|s| (&s.0, &s.1) == (&one.0, &one.1));
            assert!(!twin, "{line} twice");
            samples.push(one);
        }
    }
    for (name, _) in families.iter().filter(|(_, k)| k == "histogram") {
        let bucket = format!("{name}_bucket");
        let buckets: Vec<&Sample> = samples.iter().filter(|s| s.0 == bucket).collect();
        let le = |s: &Sample| s.1.iter().find(|(k, _)| k == "le").unwrap().1.clone();
        assert!(buckets.windows(2).all(|w| w[0].2 <= w[1].2), "{name} grows");
        let ends = buckets[..buckets.len() - 1]
            .iter()
            .map(|s| le(s).parse::<f64>().unwrap());
        assert!(ends.collect::<Vec<_>>().is_sorted(), "{name}");
        assert_eq!(le(buckets[buckets.len() - 1]), "+Inf");
        let count = samples
            .iter()
            .find(|s| s.0 == format!("{name}_count"))
            .unwrap();
        assert_eq!(count.2, buckets[buckets.len() - 1].2);
    }
    samples
}

fn get(mut socket: impl Read + Write, request: &str) -> (String, String) {
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_string(), body.to_string())
}

#[test]
fn metrics_are_as_prometheus_wants_them_and_documented() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    fs::write(place.path("mnt/secret-name"), b"x").unwrap();
    fs::File::open(place.path("mnt/secret-name"))
        .unwrap()
        .sync_all()
        .unwrap();
    let printed = ccfs_with(&["metrics", &dir]);
    assert_eq!(printed.code, 0, "{}", printed.err);
    let samples = check_metrics(&printed.out);
    let value = |name: &str| samples.iter().find(|s| s.0 == name).unwrap().2;
    assert_eq!(value("ccfs_syncs_total"), 1.0);
    assert_eq!(value("ccfs_sync_duration_seconds_count"), 1.0);
    assert!(value("ccfs_operations_total") >= 2.0);
    assert!(value("ccfs_dirty_limit_bytes") >= 1e6);
    let by_sync = samples
        .iter()
        .find(|s| s.0 == "ccfs_commits_total" && s.1.contains(&("reason".into(), "sync".into())));
    assert!(by_sync.unwrap().2 >= 1.0);
    for word in ["secret-name", &dir, "/"] {
        assert!(!printed.out.contains(word), "{word}: {}", printed.out);
    }
    check_metrics(&fs::read_to_string(place.path("mnt/.ccfs/metrics")).unwrap());
    let manual = ccfs_testkit::user_manual::text();
    for line in printed
        .out
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE "))
    {
        let name = line.split(' ').next().unwrap();
        assert!(
            manual.contains(&format!("`{name}`")),
            "docs/using lacks {name}"
        );
    }
    unmount(&dir);
}

#[test]
fn metrics_are_served_on_this_machine_only() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    for bad in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "localhost:0", "unix:"] {
        let refused = ccfs_with(&["metrics", "--listen", bad, &dir]);
        common::refused(bad, &refused, 2, &["127.0.0.1:PORT", "socket's path"]);
    }
    let start = |listen: &str| {
        let mut child = ccfs();
        child
            .args(["metrics", "--listen", listen, &dir])
            .stdout(Stdio::piped());
        let mut child = Ended(child.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        (child, line)
    };
    let (server, line) = start("127.0.0.1:0");
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let address = address.split('/').next().unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let (head, body) = get(TcpStream::connect(address).unwrap(), request);
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("version=0.0.4"),
        "{head}"
    );
    check_metrics(&body);
    let (head, _) = get(
        TcpStream::connect(address).unwrap(),
        "GET /etc/passwd HTTP/1.1\r\n\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let (head, _) = get(
        TcpStream::connect(address).unwrap(),
        "POST /metrics HTTP/1.1\r\n\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
    // The page is for browsers of this machine, whatever name led them here.
    let ask = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        get(TcpStream::connect(address).unwrap(), &request)
    };
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/data.json", "application/json"),
    ] {
        let (head, _) = ask(path, address);
        let policy = head.contains("Content-Security-Policy: default-src 'none'");
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains(kind) && policy,
            "{head}"
        );
        let (head, _) = ask(path, "example.org");
        assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    }
    // A client that says nothing keeps nobody waiting.
    let _silent = TcpStream::connect(address).unwrap();
    let (head, _) = get(TcpStream::connect(address).unwrap(), request);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    drop(server);
    let socket = place.text("socket");
    let listen = format!("unix:{socket}");
    let (first, _) = start(&listen);
    let taken = ccfs_with(&["metrics", "--listen", &listen, &dir]);
    common::refused("taken", &taken, 1, &["in use"]);
    drop(first);
    // Killed: its socket is left, and replaced.
    let (_second, _) = start(&listen);
    let (head, body) = get(UnixStream::connect(&socket).unwrap(), request);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    check_metrics(&body);
    fs::write(place.path("file"), b"x").unwrap();
    let file = format!("unix:{}", place.text("file"));
    common::refused(
        "file",
        &ccfs_with(&["metrics", "--listen", &file, &dir]),
        1,
        &["something else"],
    );
    // The server does not keep the volume from being unmounted, and says so afterwards.
    unmount(&dir);
    let (head, _) = get(UnixStream::connect(&socket).unwrap(), request);
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
}

#[test]
fn users_see_only_their_own_files_and_programs() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    in_stream(
        ALICE,
        81,
        &dir,
        &format!(
            "mkdir -m 700 {dir}/alices-room; umask 0; echo a >{dir}/alices-file; echo a >{dir}/alices-room/deep"
        ),
    );
    // Bob's stream comes after Alice's: he writes to her file; then Alice's second stream comes after her own.
    in_stream(
        BOB,
        82,
        &dir,
        &format!("echo b >>{dir}/alices-file; echo b >{dir}/bobs-file"),
    );
    in_stream(ALICE, 83, &dir, &format!("echo c >>{dir}/alices-room/deep"));
    let args = [
        "stream", "run", "--id", "84", "--on", &dir, "--", "sh", "-c",
    ];
    let script = format!("echo d >{dir}/alices-second; echo ready; read line");
    let mut child = reachable(&dir);
    child.args(args).arg(&script).uid(ALICE).gid(ALICE);
    child.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stays = Ended(child.spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(stays.0.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    let as_user = |uid: u32, args: &[&str]| {
        let ran = run(reachable(&dir).args(args).uid(uid).gid(uid));
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    };
    let cat = |uid: u32, name: &str| {
        let path = format!("{dir}/.ccfs/{name}");
        let ran = run(Command::new("cat").arg(path).uid(uid).gid(uid));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out
    };
    let everything = |uid: u32| {
        let mut text = as_user(uid, &["status", "--json", &dir]);
        text += &as_user(uid, &["top", "--json", &dir]);
        text += &as_user(uid, &["top", "--once", &dir]);
        for name in ["status.json", "streams", "metrics", "trace"] {
            text += &cat(uid, name);
        }
        text
    };
    for text in [everything(BOB), as_user(BOB, &["metrics", &dir])] {
        assert!(!text.contains("alices") && !text.contains("deep"), "{text}");
        assert!(
            !text.contains("/sh\"") && !text.contains("/dash\""),
            "{text}"
        );
    }
    for text in [everything(ALICE), everything(0)] {
        assert!(
            text.contains("alices-file") && text.contains("alices-room/deep"),
            "{text}"
        );
        assert!(
            text.contains(&format!("\"pid\": {}", stays.0.id())),
            "{text}"
        );
    }
    // The same for what happened.
    in_stream(ALICE, 83, &dir, &format!("sync -d {dir}/alices-room/deep"));
    let trace = |uid: u32| cat(uid, "trace");
    assert!(trace(ALICE).contains("alices-room/deep"));
    assert!(trace(0).contains("alices-room/deep"));
    let bobs = trace(BOB);
    assert!(!bobs.contains("alices") && !bobs.contains("deep"), "{bobs}");
    let last = json(bobs.lines().last().unwrap());
    assert_eq!(
        (&last["kind"], &last["stream"]),
        (&"sync".into(), &83.into())
    );
    assert!(last["pid"].is_null() && last["exe"].is_null() && last["file"].is_null());
    // A file in the hands of one user is closed to the other.
    let mode = fs::metadata(place.path("mnt/.ccfs/trace"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o400);
    drop(stays);
    unmount(&dir);
}

#[test]
fn status_files_can_be_left_out() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "status=off");
    assert!(!place.path("mnt/.ccfs").exists());
    fs::create_dir(place.path("mnt/.ccfs")).unwrap();
    let status = json(&ccfs_with(&["status", "--json", &dir]).out);
    assert_eq!(status["mount"]["status_dir"], false);
    unmount(&dir);
    assert_eq!(ccfs_with(&["mount", &place.text("a.img"), &dir]).code, 0);
    assert_eq!(fs::read_dir(place.path("mnt/.ccfs")).unwrap().count(), 0);
    unmount(&dir);
}

/// A tmux server of its own, ended with the test.
struct Tmux {
    dir: String,
}

impl Tmux {
    fn run(&self, args: &[&str]) -> common::Ran {
        let mut command = Command::new("tmux");
        command
            .args(["-u", "-L", "ccfs", "-f", "/dev/null"])
            .args(args);
        command.env("TMUX_TMPDIR", &self.dir).env_remove("TMUX");
        run(command.env("TERM", "xterm-256color").stdin(Stdio::null()))
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-t", "top"]).out
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[test]
fn top_lives_in_a_terminal() {
    common::needs_mounts!();
    let place = Place::new();
    let dir = mounted(&place, "commit=3600");
    let tmux = Tmux {
        dir: place.subdir("tmux"),
    };
    let command = format!(
        "{} top -d 0.2 {dir}; echo left with $?; read line",
        env!("CARGO_BIN_EXE_ccfs")
    );
    let started = tmux.run(&[
        "new-session",
        "-d",
        "-s",
        "top",
        "-x",
        "80",
        "-y",
        "24",
        &command,
    ]);
    assert_eq!(started.code, 0, "{}", started.err);
    let shows = |wanted: &str| {
        wait_for(wanted, || {
            let screen = tmux.screen();
            screen.contains(wanted).then_some(screen)
        })
    };
    let screen = shows("STREAM ");
    assert!(screen.lines().all(|l| l.chars().count() <= 80), "{screen}");
    shows("q quit  p pause");
    // It is live: what happens now is shown by and by.
    in_stream(0, 91, &dir, &format!("echo a >{dir}/shared"));
    in_stream(0, 92, &dir, &format!("echo b >>{dir}/shared"));
    let screen = shows("after stream 91: both changed the file, shared");
    assert!(screen.lines().any(|l| l.starts_with("92 ")), "{screen}");
    tool("sync", &["-d", &format!("{dir}/shared")]);
    wait_for("the dependency to go", || {
        (!tmux.screen().contains("after stream 91")).then_some(())
    });
    tmux.run(&["send-keys", "-t", "top", "p"]);
    shows("paused");
    tmux.run(&["resize-window", "-t", "top", "-x", "40", "-y", "10"]);
    tmux.run(&["send-keys", "-t", "top", "p"]);
    wait_for("it goes on", || {
        (!tmux.screen().contains("paused")).then_some(())
    });
    tmux.run(&["send-keys", "-t", "top", "q"]);
    shows("left with 0");
    drop(tmux);
    unmount(&dir);
}
