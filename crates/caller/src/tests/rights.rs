//! Programs that can do more than who chose the stream: they leave it. Those that nobody may look into, and that is all, stay.
use super::*;

impl World {
    /// The process runs a program now, with these groups (real and effective) and permitted capabilities.
    fn program(&self, process: u32, groups: [u32; 2], capabilities: u64, secure: bool) {
        let dir = self.dir.path().join(process.to_string());
        let [real, gid] = groups;
        let status = format!(
            "Name:\tx\nTgid:\t{process}\nUid:\t5\t5\t5\t5\nGid:\t{real}\t{gid}\t{gid}\t{gid}\n\
             CapPrm:\t{capabilities:x}\nCapAmb:\t0\n"
        );
        fs::write(dir.join("status"), status).unwrap();
        let words = [6, 4096, 11, 5, 23, u64::from(secure), 0, 0];
        let auxv: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        fs::write(dir.join("auxv"), auxv).unwrap();
    }

    /// As `program`, told by the connector in this instant.
    fn executes(&self, process: u32, groups: [u32; 2], capabilities: u64, secure: bool) {
        self.program(process, groups, capabilities, secure);
        let ns = monotonic_ns();
        self.told.0.lock().0.push(Event::Exec { process, ns });
    }

    /// A process of one thread in the stream 77 of the user 5.
    fn process_in_stream(&self, process: u32) {
        self.thread(process, process, 1, now_ticks() - 50, "x");
        self.program(process, [6, 6], 0, false);
        self.callers.set(process, 5, 77, 0).unwrap();
    }
}

fn all_ways() -> [World; 3] {
    let [proc, events] = both();
    [proc, events, World::without_perf_events()]
}

/// By the very first request, however soon that is.
#[test]
fn a_program_that_can_do_more_leaves() {
    for (groups, capabilities, secure) in [
        ([6, 8], 0, true),
        ([6, 6], 0x2000, true),
        // A security module says so.
        ([6, 6], 0, true),
        // What was executed securely executed this at once.
        ([8, 8], 0, false),
        ([6, 6], 0x2000, false),
    ] {
        for w in all_ways() {
            let what = format!(
                "{groups:?} {capabilities:x} {secure} {}",
                w.callers.identity().mode
            );
            w.process_in_stream(10);
            assert_eq!(w.stream(10, 5), 77);
            w.executes(10, [6, 6], 0, false);
            assert_eq!(w.stream(10, 5), 77, "an ordinary program, {what}");
            if w.callers.identity().thread_creators {
                // Here the performance events rings, too.
                w.perf_events().ring_end(10, monotonic_ns());
            }
            w.executes(10, groups, capabilities, secure);
            sleep(Duration::from_millis(10));
            assert_eq!(w.stream(10, 5), 1, "{what}");
            // It stays outside, whatever it executes then.
            w.executes(10, [6, 6], 0, false);
            sleep(Duration::from_millis(10));
            assert_eq!(w.stream(10, 5), 1, "{what}");
            // In a stream that it chooses it is itself, with its rights.
            w.program(10, groups, capabilities, secure);
            w.callers.set(10, 5, 78, 0).unwrap();
            w.executes(10, groups, capabilities, secure);
            sleep(Duration::from_millis(10));
            assert_eq!(w.stream(10, 5), 78, "{what}");
        }
    }
}

/// Without the performance events nothing but the connector tells of it.
#[test]
fn the_first_request_after_an_exec_is_outside() {
    let w = World::with_events();
    for process in 10..30 {
        w.process_in_stream(process);
        assert_eq!(w.stream(process, 5), 77);
        w.executes(process, [6, 8], 0, true);
        assert_eq!(w.stream(process, 5), 1, "{process}");
    }
}

/// Root gains nothing.
#[test]
fn root_stays_in_its_stream() {
    for w in all_ways() {
        w.thread(10, 10, 1, now_ticks() - 50, "x");
        w.callers.set(10, 0, 77, 0).unwrap();
        let root = |gid: u32, by: u64| {
            let status = format!(
                "Name:\tx\nTgid:\t10\nUid:\t0\t0\t0\t0\nGid:\t0\t{gid}\t{gid}\t{gid}\nCapPrm:\t3f\n"
            );
            let dir = w.dir.path().join("10");
            fs::write(dir.join("status"), status).unwrap();
            let words = [6, 4096, 11, by, 23, 1, 0, 0];
            let auxv: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
            fs::write(dir.join("auxv"), auxv).unwrap();
            let ns = monotonic_ns();
            let exec = Event::Exec { process: 10, ns };
            w.told.0.lock().0.push(exec);
            sleep(Duration::from_millis(10));
            w.stream(10, 0)
        };
        assert_eq!(root(8, 0), 77);
        // A user whom root became executes a program of root's.
        assert_eq!(root(0, 5), 1);
    }
}

/// An exec of a program that nobody may look into rings as an end of its thread.
#[test]
fn an_unreadable_program_stays() {
    let w = World::without_perf_events();
    w.process_in_stream(10);
    w.perf_events().ring_end(10, monotonic_ns());
    assert_eq!(w.stream(10, 5), 77, "not told yet");
    w.executes(10, [6, 6], 0, false);
    assert_eq!(w.stream(10, 5), 77);
    assert!(!w.tracker().is_doubted(10));
    // Its children are where it is, and it may end in truth.
    w.thread(20, 20, 10, now_ticks(), "child");
    let ns = monotonic_ns();
    w.perf_events().ring_fork(20, 10, ns + 1);
    w.told.0.lock().0.push(start(10, 20, ns));
    assert_eq!(w.stream(20, 5), 77);
    w.perf_events().ring_end(10, monotonic_ns());
    w.end(10);
    w.tell(Event::Exit { tid: 10 });
    w.callers.shared.tidy();
    assert_eq!(w.callers.identity().threads, 1);
}

/// Which thread it was that called exec, where the first one's end rang: that of a known thread, of one in no stream, or of the first one.
#[test]
fn an_unreadable_program_of_several_threads() {
    for known in [true, false] {
        for by_first in [true, false] {
            for listed in [true, false] {
                let w = World::without_perf_events();
                if listed {
                    w.thread(11, 10, 1, 50, "second");
                }
                w.thread(10, 10, 1, 50, "first");
                w.program(10, [6, 6], 0, false);
                w.callers.set(10, 5, 77, 0).unwrap();
                if !listed {
                    w.thread(11, 10, 1, 50, "second");
                    let ns = monotonic_ns();
                    let fork = Event::Fork {
                        parent: 1,
                        child: 11,
                        process: 10,
                        ns,
                    };
                    // By a thread that is in no stream, and has ended. The performance events rings first: who hears of a start alone looks for its parent.
                    w.perf_events().ring_fork(11, 9, ns + 1);
                    w.told.0.lock().0.push(fork);
                }
                if known {
                    w.callers.set(11, 5, 78, 0).unwrap();
                }
                w.callers.shared.tidy();
                // The other thread ends, then the first one's watching.
                let other = if by_first { 11 } else { 10 };
                w.perf_events().ring_end(other, monotonic_ns());
                w.perf_events().ring_end(10, monotonic_ns());
                w.forget(11, 10);
                w.executes(10, [6, 6], 0, false);
                w.callers.shared.tidy();
                let expected = match (by_first, known) {
                    (true, _) => 77,
                    (false, true) => 78,
                    (false, false) => 1,
                };
                let what = format!("known {known}, by the first {by_first}, listed {listed}");
                assert_eq!(w.stream(10, 5), expected, "{what}");
            }
        }
    }
}
