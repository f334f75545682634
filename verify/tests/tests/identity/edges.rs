//! The edges of identity: io_uring, lost events, containers, exec beside other threads, children that are given away.
use super::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::channel;
use std::thread::Scope;

/// How long events are lost in a test.
const LONG_ENOUGH: Duration = Duration::from_secs(4);

/// Uncommitted operations of a stream.
fn operations(p: &Place, id: u64) -> u64 {
    let status = p.v.status();
    let streams = status["streams"].as_array().expect("streams");
    let stream = streams.iter().find(|s| s["id"] == id);
    stream.map_or(0, |s| s["running_operations"].as_u64().expect("a number"))
}

/// What an io_uring does is done by threads of the kernel's; it is in the stream that the ring's thread is in at that time.
#[test]
fn io_uring_works_for_the_thread_that_owns_the_ring() {
    for options in ["commit=600", "commit=600,identity=proc"] {
        let Some(p) = Place::new("io-uring", options) else {
            return;
        };
        for (how, first) in [("async", 92), ("poll", 192)] {
            let (second, other) = (first + 1, first + 2);
            p.walk("write a write b write c");
            let seen = p.walk(&format!(
                "set {first} ring {how} a set {second} ring {how} b workers \
                 thread set {other} ring {how} c"
            ));
            if let Some(errno) = seen.get("refused") {
                println!("skipped: io_uring ({how}) is refused here: error {errno}");
                continue;
            }
            if seen["workers"] == 0 {
                println!("skipped: this kernel has no threads for io_uring ({how})");
                continue;
            }
            for id in [first, second, other] {
                assert!(operations(&p, id) > 0, "{how} {id}: {}", p.v.status());
            }
        }
        p.v.finish();
    }
}

/// A `who` that waits for lines and says lines.
struct Talk {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Talk {
    fn start(p: &Place, steps: &str) -> Talk {
        let mut command = p.command(steps);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("who");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Talk { child, out }
    }

    fn go_on(&mut self) {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin.write_all(b"\n").expect("who listens");
    }

    /// The next line's number, which must have this name.
    fn hear(&mut self, name: &str) -> u64 {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        let number = line
            .trim()
            .strip_prefix(name)
            .and_then(|l| l.strip_prefix('='));
        number
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("{line:?} is not {name}=NUMBER"))
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("wait");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is stopped, until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        run_ok("kill", &["-STOP", &pid.to_string()]);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-CONT", &self.0.to_string()])
            .status();
    }
}

/// The kernel's socket overruns while the daemon does not run: that is counted, and /proc makes up for what was lost.
#[test]
fn lost_events_are_counted_and_made_up_for() {
    let Some(p) = Place::new("overrun", "commit=600") else {
        return;
    };
    if !p.is_exact("lost_events_are_counted_and_made_up_for") {
        return p.v.finish();
    }
    let number = |name: &str| p.identity()[name].as_u64().expect("a number");
    let before = (number("overruns"), number("rescans"));
    let start = Instant::now();
    let mut rounds = 0;
    let overrun = loop {
        // Each round is right, whether events are lost or not.
        let inside = "set 77 fork show before say ready pause fork say forked pause show child fork show grandchild";
        let mut inside = Talk::start(&p, inside);
        let outside = "show before say ready pause fork say forked pause show child";
        let mut outside = Talk::start(&p, outside);
        let mut flood = Talk::start(&p, "say ready pause names 200000 forks 500 say done pause");
        assert_eq!((inside.hear("before"), outside.hear("before")), (77, 1));
        for talk in [&mut inside, &mut outside, &mut flood] {
            talk.hear("ready");
        }
        {
            let _stopped = Stopped::new(p.v.daemon_pid().expect("a daemon"));
            flood.go_on();
            flood.hear("done");
            // What these start, the kernel can tell nobody any more.
            for talk in [&mut inside, &mut outside] {
                talk.go_on();
                talk.hear("forked");
            }
        }
        inside.go_on();
        outside.go_on();
        flood.go_on();
        assert_eq!(inside.hear("child"), 77, "round {rounds}");
        assert_eq!(inside.hear("grandchild"), 77, "round {rounds}");
        assert_eq!(outside.hear("child"), 1, "round {rounds}");
        [inside, outside, flood].into_iter().for_each(Talk::end);
        rounds += 1;
        if number("overruns") > before.0 {
            break true;
        }
        if start.elapsed() > PATIENCE {
            break false;
        }
    };
    if overrun {
        assert!(number("rescans") > before.1, "{}", p.identity());
        println!("overrun in round {rounds}: {}", p.identity());
    } else {
        println!("skipped: the socket held everything in {rounds} rounds");
    }
    // And afterwards it is exact as before.
    let seen = p.walk("set 78 show a fork show b daemon show c thread exec show d");
    is_all(&seen, "a b c d", 78);
    p.v.finish();
}

/// exec ends the other threads of the process; the one that calls it keeps its stream, from the new program's first request on.
#[test]
fn exec_beside_threads_in_other_streams() {
    let Some(p) = Place::new("exec-beside", "commit=600") else {
        return;
    };
    if p.is_exact("exec_beside_threads_in_other_streams") {
        for _ in 0..20 {
            let seen = p.walk("set 77 beside 78 beside 79 exec show first fork show child");
            is_all(&seen, "first child", 77);
            let seen = p.walk("set 77 beside 78 thread set 79 exec show other fork show child");
            is_all(&seen, "other child", 79);
        }
    }
    p.v.finish();
}

/// Who starts whom while events are lost, and in which stream all that have names are then.
const LIVES: [(&str, &str, u64); 5] = [
    (
        "set 77 beside 78 beside 79 exec show a fork show b",
        "a b",
        77,
    ),
    (
        "set 77 beside 78 thread set 79 exec show a fork show b",
        "a b",
        79,
    ),
    (
        "set 77 thread set 78 thread show a fork show b daemon show c",
        "a b c",
        78,
    ),
    (
        "thread set 77 fork fork thread exec show a daemon daemon show b",
        "a b",
        77,
    ),
    (
        "set 77 fork thread set 78 sibling thread show a vfork show b",
        "a b",
        78,
    ),
];

/// Events are lost again and again while threads and processes are started, call exec and end.
#[test]
fn nobody_is_mistaken_while_events_are_lost() {
    let Some(p) = Place::new("flood", "commit=600") else {
        return;
    };
    if !p.is_exact("nobody_is_mistaken_while_events_are_lost") {
        return p.v.finish();
    }
    let rescans = || p.identity()["rescans"].as_u64().expect("a number");
    let before = rescans();
    let flood: [Talk; 2] = std::array::from_fn(|_| Talk::start(&p, "bursts 60000"));
    let start = Instant::now();
    let walker = |lives: &[(&str, &str, u64)]| {
        let mut rounds = 0;
        while start.elapsed() < LONG_ENOUGH {
            for (steps, names, id) in lives {
                let seen = p.walk(steps);
                for name in names.split(' ') {
                    let place = seen.get(name);
                    assert_eq!(place, Some(id), "{name} of {steps}, round {rounds}");
                }
            }
            rounds += 1;
        }
        rounds
    };
    let rounds = std::thread::scope(|scope| {
        // An exec by another thread than the first is what takes the most care.
        let execs = scope.spawn(|| walker(&LIVES[1..2]));
        let all = walker(&LIVES);
        (all, execs.join().expect("a walker"))
    });
    drop(flood);
    let losses = rescans() - before;
    println!("{losses} losses in {rounds:?} rounds");
    if losses == 0 {
        println!("skipped: nothing was lost in {rounds:?} rounds");
    }
    p.v.finish();
}

/// A thread that goes where it is told to (0: nowhere) and answers in which stream it is.
fn worker<'s>(scope: &'s Scope<'s, '_>, mnt: &'s Path) -> impl Fn(u64) -> u64 + Send + 's {
    let (ask, asked) = channel::<u64>();
    let (tell, told) = channel();
    scope.spawn(move || {
        for id in asked {
            let gone = match id {
                0 => Ok(()),
                id => ccfs_client::set_stream_at(mnt, id, None),
            };
            let stream = gone.and_then(|()| Ok(ccfs_client::get_stream_at(mnt)?.id));
            let _ = tell.send(stream);
        }
    });
    move |id: u64| {
        ask.send(id).expect("the worker lives");
        told.recv().expect("the worker answers").expect("a stream")
    }
}

/// The threads of a pool stay in the stream in which they were started, or which they chose.
#[test]
fn threads_of_a_pool() {
    let Some(p) = Place::new("pool", "commit=600") else {
        return;
    };
    if p.is_exact("threads_of_a_pool") {
        let place = &p;
        let mnt = place.v.mnt();
        let (first, other) = std::thread::scope(|scope| {
            let (first, second) = (worker(scope, mnt), worker(scope, mnt));
            assert_eq!((first(0), second(0)), (1, 1));
            let elsewhere = scope.spawn(move || {
                ccfs_client::set_stream_at(mnt, 77, None).expect("a stream");
                let third = worker(scope, mnt);
                let child = place.walk("show child")["child"];
                let first_seen = [third(0), child, first(0), second(78), first(0), third(0)];
                (first_seen, [first(79), second(0), third(0)])
            });
            elsewhere.join().expect("the thread")
        });
        assert_eq!(first, [77, 77, 1, 78, 1, 77]);
        assert_eq!(other, [79, 78, 77]);
    }
    p.v.finish();
}

/// Threads that are named as workers of each other, which anybody may do, are where they are, and the daemon lives.
#[test]
fn names_of_workers_in_a_circle() {
    for options in ["commit=600", "commit=600,identity=proc"] {
        let Some(p) = Place::new("circle", options) else {
            return;
        };
        p.walk("new");
        let (mnt, met) = (p.v.mnt(), std::sync::Barrier::new(2));
        let tids = std::sync::Mutex::new(Vec::new());
        let named = || {
            let link = std::fs::read_link("/proc/thread-self").expect("a thread");
            let own = link.file_name().expect("its number").to_owned();
            tids.lock().expect("a list").push(own.clone());
            met.wait();
            let all = tids.lock().expect("a list").clone();
            let other = all.iter().find(|tid| **tid != own).expect("two threads");
            let name = format!("iou-wrk-{}", other.display());
            std::fs::write("/proc/thread-self/comm", name).expect("a name");
            met.wait();
            std::fs::write(mnt.join(own), "x").expect("a file");
            ccfs_client::get_stream_at(mnt).expect("a stream").id
        };
        let streams = std::thread::scope(|scope| {
            [scope.spawn(named), scope.spawn(named)].map(|t| t.join().expect("a thread"))
        });
        assert_eq!(streams, [1, 1]);
        p.v.finish();
    }
}

/// A process that is made as a sibling inherits from who made it, not from the parent that it is given.
#[test]
fn a_child_for_the_parent() {
    let Some(p) = Place::new("sibling", "commit=600") else {
        return;
    };
    if p.is_exact("a_child_for_the_parent") {
        for _ in 0..5 {
            let seen = p.walk("fork set 77 sibling show a fork show b");
            is_all(&seen, "a b", 77);
            let seen = p.walk("fork set 77 sibling fork sibling exec show a");
            is_all(&seen, "a", 77);
        }
    }
    p.v.finish();
}

/// Uid 0 of a user namespace: it can be the machine's root, and it can be any user; it has no more rights than that user.
#[test]
fn root_of_a_container_is_an_ordinary_user() {
    let Some(p) = Place::new("container", "commit=600") else {
        return;
    };
    let probe = run(Command::new("unshare").args(["-U", "-r", "true"]));
    if probe.code != 0 {
        println!("skipped: no user namespaces here: {}", probe.all());
        return p.v.finish();
    }
    let (who, on) = (p.who.to_str().unwrap(), p.v.mnt().to_str().unwrap());
    let uid = USER.to_string();
    let as_user = ["setpriv", "--reuid", &uid, "--clear-groups"];
    // A user in a stream of its own.
    let mut other = Command::new(as_user[0]);
    other.args(&as_user[1..]).args([who, on]);
    other.args(["set", "4800", "write", "g", "say", "ready", "pause"]);
    other.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = other.spawn().expect("setpriv");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let mut other = Talk { child, out };
    other.hear("ready");

    let by = |by: &[&str], steps: &str| {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]).args([who, on]);
        run(command.args(steps.split(' ')))
    };
    let container = ["unshare", "-U", "-r"];
    let refused = by(&container, "set 4800");
    assert_eq!(refused.code, 1, "{}", refused.all());
    assert!(
        refused.stderr.contains("not permitted"),
        "{}",
        refused.all()
    );
    assert_eq!(by(&["env"], "set 4800").code, 0, "the machine's root");
    let seen = p.walk_by(&container, "show a new show b fork show c");
    is_all(&seen, "a", 1);
    assert!(seen["b"] > 1 && seen["b"] == seen["c"], "{seen:?}");
    let refused = by(&container, &format!("set {}", seen["b"]));
    assert_eq!(refused.code, 0, "its own: {}", refused.all());

    // What is shown.
    let members = |by: &[&str]| {
        let mut command = Command::new(by[0]);
        command
            .args(&by[1..])
            .args([ccfs_program(), "status", "--json", on]);
        let out = run(&mut command);
        assert_eq!(out.code, 0, "{}", out.all());
        let status: serde_json::Value = serde_json::from_str(&out.stdout).expect("JSON");
        let owners = status["stream_owners"].as_array().expect("a list").clone();
        let stream = owners.into_iter().find(|s| s["id"] == 4800);
        stream.expect("the stream")["processes"]
            .as_array()
            .map_or(0, Vec::len)
    };
    // A process that has ended is seen until its end has been told.
    let end = Instant::now() + PATIENCE;
    while members(&["env"]) != 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((members(&["env"]), members(&container)), (1, 0));
    let show = |by: &[&str]| {
        let mut command = Command::new(by[0]);
        command.args(&by[1..]);
        let pid = other.child.id().to_string();
        command.args([ccfs_program(), "stream", "show", &pid, "--on", on]);
        run(&mut command).code
    };
    assert_eq!((show(&["env"]), show(&container)), (0, 1));

    // The user's own container is the user.
    let mapped = [&as_user[..], &container].concat();
    let probe = run(Command::new(mapped[0]).args(&mapped[1..]).arg("true"));
    if probe.code == 0 {
        is_all(&p.walk_by(&mapped, "set 4800 show a"), "a", 4800);
        let root = by(&["env"], "set 4801 write h");
        assert_eq!(root.code, 0, "{}", root.all());
        let refused = by(&mapped, "set 4801");
        assert_eq!(refused.code, 1, "root's: {}", refused.all());
    } else {
        println!("skipped: users have no namespaces here: {}", probe.all());
    }
    other.go_on();
    other.end();
    p.v.finish();
}

/// A setuid program of root's, started by a user in a stream: it leaves the stream. Root who goes there by itself is in it.
#[test]
fn a_program_that_becomes_root_leaves_the_stream() {
    for options in ["commit=600", "commit=600,identity=proc"] {
        let Some(p) = Place::new("becomes-root", options) else {
            return;
        };
        let who = p.who.to_str().unwrap();
        let owned = p.v.outside("roots");
        let to = owned.to_str().unwrap();
        run_ok("install", &["-o", "0", "-m", "4755", who, to]);
        let steps =
            format!("set 4900 write f show user program {to} exec show root fork show child");
        let uid = USER.to_string();
        let seen = p.walk_by(&["setpriv", "--reuid", &uid, "--clear-groups"], &steps);
        is_all(&seen, "user", 4900);
        is_all(&seen, "root child", 1);
        is_all(&p.walk("set 4900 show a fork show b"), "a b", 4900);
        p.v.finish();
    }
}
