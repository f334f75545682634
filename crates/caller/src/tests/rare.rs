//! With the kernel's events, what seldom happens: hostile names, threads that end at once, records that are missing, numbers that come again.
use super::*;
use std::os::unix::fs::symlink;

/// Threads that are named as workers of each other, and of the next one, thousands of times.
#[test]
fn names_that_lead_in_a_circle() {
    for config in [Forks::Auto, Forks::Proc] {
        let w = World::with(CallerConfig {
            forks: config,
            ..CallerConfig::default()
        });
        w.thread(10, 10, 1, 50, "a");
        w.callers.set(10, 5, 77, 0).unwrap();
        w.thread(500, 500, 1, 50, "first");
        w.thread(501, 500, 1, 50, "iou-wrk-502");
        w.thread(502, 500, 1, 50, "iou-wrk-501");
        assert_eq!((w.stream(501, 5), w.stream(502, 5)), (1, 1));
        for tid in 1000..2000 {
            w.thread(tid, 500, 1, 50, &format!("iou-wrk-{}", tid + 1));
        }
        let streams = [1000, 1001, 1999].map(|tid| w.stream(tid, 5));
        assert_eq!(streams, [1, 1, 1]);
    }
}

/// A worker is where its owner is, by way of the polling thread; but not where a later thread of the owner's number is.
#[test]
fn a_worker_whose_owners_number_is_given_again() {
    let w = World::with_events();
    w.two_threads();
    w.thread(12, 10, 1, 60, "iou-sqp-11");
    w.thread(13, 10, 1, 60, "iou-wrk-12");
    assert_eq!((w.stream(13, 5), w.stream(12, 5)), (78, 78));
    w.forget(11, 10);
    w.tell(Event::Exit { tid: 11 });
    w.callers.shared.tidy();
    w.thread(50, 50, 1, 50, "other");
    w.callers.set(50, 5, 99, 0).unwrap();
    w.fork(50, 11, 11);
    w.thread(11, 11, 50, now_ticks(), "its child");
    assert_eq!(w.stream(11, 5), 99);
    assert_eq!((w.stream(12, 5), w.stream(13, 5)), (1, 1));
}

/// What a thread has asked for may come when it has ended, until its number is another's.
#[test]
fn requests_of_a_thread_that_has_ended() {
    let w = World::with_events();
    w.thread(10, 10, 1, 50, "first");
    w.callers.set(10, 5, 77, 0).unwrap();
    for tid in [11, 12] {
        w.fork(10, tid, 10);
        w.thread(tid, 10, 1, now_ticks(), "thread");
        w.forget_in(tid, 10);
    }
    // At once, and when they have been forgotten.
    assert_eq!((w.stream(11, 5), w.callers.identity().threads), (77, 3));
    w.callers.shared.tidy();
    assert_eq!(w.callers.identity().threads, 1);
    assert_eq!((w.stream(11, 5), w.stream(12, 5)), (77, 77));
    assert_eq!(w.stream(11, 6), 1, "another user");
    w.fork(1, 12, 12);
    w.tell(Event::Exit { tid: 12 });
    assert_eq!((w.stream(11, 5), w.stream(12, 5)), (77, 1));
    w.tracker().tidy_at(monotonic_ms() + 60_000);
    assert_eq!(w.stream(11, 5), 1);
}

/// Siblings that exec kills, of whose ends the performance events' records are missing: the connector's word is enough, unless the first thread has
/// ended, too.
#[test]
fn an_exec_beside_an_end_that_did_not_ring() {
    for told in [true, false] {
        let w = World::without_perf_events();
        w.two_threads();
        w.forget(11, 10);
        if told {
            w.tell(Event::Exit { tid: 11 });
        }
        w.exec(10);
        assert_eq!(w.stream(10, 5), 77, "{told}");
    }
    // The performance events is known to have missed something: whoever is left may be who called exec.
    let w = World::without_perf_events();
    w.two_threads();
    w.perf_events().has_missed();
    w.forget(11, 10);
    w.exec(10);
    assert_eq!(w.stream(10, 5), 78);
}

/// One that got its number by exec ends, and only the connector tells; an end of that number rang before.
#[test]
fn an_end_that_did_not_ring_is_found_later() {
    let w = World::without_perf_events();
    w.two_threads();
    w.perf_events().ring_end(10, monotonic_ns());
    w.forget(11, 10);
    w.exec(10);
    assert_eq!(w.stream(10, 5), 78);
    w.end(10);
    w.tell(Event::Exit { tid: 10 });
    w.callers.shared.tidy();
    w.tracker().tidy_at(monotonic_ms() + 20_000);
    assert_eq!(w.callers.identity().threads, 0);
}

/// A doubt about an earlier thread of a number does not end the one about a later thread.
#[test]
fn each_doubt_has_its_time() {
    let w = World::without_perf_events();
    w.two_threads();
    let start = monotonic_ms();
    w.perf_events().ring_end(10, monotonic_ns());
    w.callers.shared.tidy();
    w.exec(10);
    assert_eq!(w.stream(10, 5), 78);
    assert!(!w.tracker().is_doubted(10));
    sleep(Duration::from_millis(1500));
    w.perf_events().ring_end(10, monotonic_ns());
    w.callers.shared.tidy();
    assert!(w.tracker().is_doubted(10));
    w.tracker().tidy_at(start + 10_700);
    assert!(w.tracker().is_doubted(10));
    w.tracker().tidy_at(start + 30_000);
    assert!(!w.tracker().is_doubted(10));
}

/// A fork is lost, and that of its child is told in the same batch; or it comes with the next one, when the child's creator has ended.
#[test]
fn a_child_of_one_whose_start_was_lost() {
    for next_batch in [false, true] {
        let w = World::without_perf_events();
        w.thread(10, 10, 1, 50, "a");
        w.callers.set(10, 5, 77, 0).unwrap();
        w.perf_events().ring_fork(20, 10, monotonic_ns());
        if next_batch {
            w.lose([]);
            w.callers.shared.tidy();
        }
        let ns = monotonic_ns();
        w.perf_events().ring_fork(21, 20, ns + 1);
        w.thread(21, 21, 1, now_ticks(), "daemon");
        {
            let mut told = w.told.0.lock();
            let fork = start(20, 21, ns);
            told.0.push(fork);
            told.1 = !next_batch;
        }
        sleep(Duration::from_millis(10));
        assert_eq!(w.stream(21, 5), 77, "{next_batch}");
    }
}

/// A fork is lost, and an exec after it by another thread, or only the fork: the child is where its creator was.
#[test]
fn a_lost_fork_before_an_exec() {
    for told in [false, true] {
        let w = World::without_perf_events();
        w.two_threads();
        let creator = if told { 11 } else { 10 };
        w.perf_events().ring_fork(20, creator, monotonic_ns());
        w.thread(20, 20, 1, now_ticks(), "child");
        w.perf_events().ring_end(10, monotonic_ns());
        w.forget(11, 10);
        let ns = monotonic_ns();
        w.lose(told.then_some(Event::Exec { process: 10, ns }));
        sleep(Duration::from_millis(10));
        let child = if told { 78 } else { 77 };
        assert_eq!((w.stream(20, 5), w.stream(10, 5)), (child, 78), "{told}");
    }
}

/// Without the performance events the first thread counts as who starts threads; when it has ended, those that are left.
#[test]
fn a_thread_of_a_process_whose_first_one_has_ended() {
    let w = World::with_events();
    w.thread(10, 10, 1, 50, "first");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.fork(10, 11, 10);
    w.thread(11, 10, 1, now_ticks(), "second");
    w.end(10);
    w.tell(Event::Exit { tid: 10 });
    w.callers.shared.tidy();
    w.fork(1, 12, 10);
    w.thread(12, 10, 1, now_ticks(), "third");
    assert_eq!((w.stream(12, 5), w.stream(11, 5)), (77, 77));
}

/// A session's number comes again, and its new leader has ended before anybody asks.
#[test]
fn a_later_session_of_the_same_number() {
    let w = World::with(CallerConfig {
        grouping: Grouping::Uid,
        ..CallerConfig::default()
    });
    w.thread_of_session(10, 10, 1, 50, "a", 10);
    w.thread_of_session(20, 20, 1, 50, "b", 20);
    let five = w.stream(10, 5);
    assert_eq!(w.stream(20, 5), five);
    w.end(20);
    w.tell(Event::Exit { tid: 20 });
    w.callers.shared.tidy();
    w.tell(Event::Session { process: 20 });
    w.thread_of_session(21, 21, 1, now_ticks(), "daemon", 20);
    let status = w.dir.path().join("21/status");
    fs::write(status, "Name:\td\nTgid:\t21\nPPid:\t1\nUid:\t6\t6\t6\t6\n").unwrap();
    assert_ne!(w.stream(21, 6), five);
    assert_eq!(w.stream(10, 5), five);
}

/// A rule's process whose first thread has ended: nothing is kept of that one, and the others stay together.
#[test]
fn a_rules_process_without_its_first_thread() {
    let w = World::with(CallerConfig {
        rules: Rules::parse("uid=5 -> own").unwrap(),
        ..CallerConfig::default()
    });
    w.thread(10, 10, 1, 50, "first");
    w.thread(11, 10, 1, 50, "second");
    w.thread(12, 10, 1, 50, "third");
    let stat = w.dir.path().join("10/stat");
    let zombie = fs::read_to_string(&stat).unwrap().replace(") S ", ") Z ");
    fs::write(stat, zombie).unwrap();
    let stream = w.stream(11, 5);
    assert_ne!(stream, 1);
    w.tracker().tidy_at(monotonic_ms() + 20_000);
    assert_eq!((w.stream(12, 5), w.callers.identity().threads), (stream, 2));
}

/// What a batch tells stands, although events after it were lost: a rule's program and its child, told or lost.
#[test]
fn a_rules_program_before_a_loss() {
    for (first_told, told) in [(true, true), (true, false), (false, true), (false, false)] {
        let config = CallerConfig {
            rules: Rules::parse("exe=/bin/git -> own").unwrap(),
            ..CallerConfig::default()
        };
        let w = World::with_perf_events(config, Some(PerfEvents::silent()));
        w.thread(5, 5, 1, 50, "shell");
        symlink("/bin/sh", w.dir.path().join("5/exe")).unwrap();
        assert_eq!(w.stream(5, 5), 1);
        for (tid, parent) in [(20, 5), (21, 20)] {
            w.thread(tid, tid, parent, now_ticks(), "git");
        }
        symlink("/bin/git", w.dir.path().join("20/exe")).unwrap();
        symlink("/bin/less", w.dir.path().join("21/exe")).unwrap();
        let fork = |parent, child| {
            let ns = monotonic_ns();
            w.perf_events().ring_fork(child, parent, monotonic_ns() + 1);
            start(parent, child, ns)
        };
        let first = fork(5, 20);
        let exec = Event::Exec {
            process: 20,
            ns: monotonic_ns() + 10,
        };
        sleep(Duration::from_millis(1));
        let second = fork(20, 21);
        let (first, second) = (first_told.then_some(first), told.then_some(second));
        w.lose([first, Some(exec), second].into_iter().flatten());
        sleep(Duration::from_millis(10));
        let stream = w.stream(20, 5);
        assert!(stream > 1);
        assert_eq!(w.stream(21, 5), stream, "{first_told} {told}");
        let seen = w.callers.members(stream, 9);
        assert_eq!(seen, [(20, 20), (21, 21)], "{first_told} {told}");
    }
}

/// A process whose start was lost calls exec, which is told, and starts a child, told or lost: it is where its parent was, and no rule
/// takes it out of there.
#[test]
fn an_exec_of_one_whose_start_was_lost() {
    for (rules, told) in [
        ("", true),
        ("", false),
        ("uid=5 -> own", true),
        ("uid=5 -> own", false),
    ] {
        let config = CallerConfig {
            rules: Rules::parse(rules).unwrap(),
            ..CallerConfig::default()
        };
        let w = World::with_perf_events(config, Some(PerfEvents::silent()));
        w.thread(10, 10, 1, 50, "a");
        w.callers.set(10, 5, 77, 0).unwrap();
        for (tid, parent) in [(20, 10), (21, 20)] {
            w.thread(tid, tid, parent, now_ticks(), "x");
        }
        let ns = monotonic_ns();
        w.perf_events().ring_fork(20, 10, ns);
        w.perf_events().ring_fork(21, 20, ns + 3_000);
        let exec = Event::Exec {
            process: 20,
            ns: ns + 1_000,
        };
        let fork = told.then_some(start(20, 21, ns + 2_000));
        w.lose([Some(exec), fork].into_iter().flatten());
        sleep(Duration::from_millis(10));
        let streams = [20, 21].map(|tid| w.stream(tid, 5));
        assert_eq!(streams, [77, 77], "{rules} {told}");
    }
}

/// A thread whose start was lost chooses a stream, while events are still being lost, and starts another one, which is lost, too.
#[test]
fn a_choice_between_two_losses() {
    let w = World::without_perf_events();
    w.thread(10, 10, 1, 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.perf_events().ring_fork(20, 10, monotonic_ns());
    w.thread(20, 20, 10, now_ticks(), "b");
    w.lose([]);
    w.callers.set(20, 5, 78, 0).unwrap();
    w.perf_events().ring_fork(21, 20, monotonic_ns());
    w.thread(21, 21, 20, now_ticks(), "c");
    w.lose([]);
    sleep(Duration::from_millis(10));
    assert_eq!((w.stream(21, 5), w.stream(20, 5)), (78, 78));
}

/// Of a child only the connector tells, of its child only the performance events.
#[test]
fn each_loses_another_fork() {
    let w = World::without_perf_events();
    w.thread(10, 10, 1, 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    for (tid, parent) in [(20, 10), (21, 20)] {
        w.thread(tid, tid, parent, now_ticks(), "x");
    }
    let ns = monotonic_ns();
    w.perf_events().ring_fork(21, 20, ns);
    // So long ago that its record is lost.
    w.lose([start(10, 20, ns.saturating_sub(2_000_000_000))]);
    sleep(Duration::from_millis(10));
    assert_eq!((w.stream(21, 5), w.stream(20, 5)), (77, 77));
}

/// While a ring may be silent nobody is taken for one who called exec only because no end of it rang.
#[test]
fn a_silent_ring_and_a_loss() {
    for silent in [true, false] {
        let w = World::without_perf_events();
        w.two_threads();
        if silent {
            w.perf_events().has_missed();
        }
        w.forget(11, 10);
        w.lose([]);
        sleep(Duration::from_millis(10));
        assert_eq!(w.stream(10, 5), if silent { 77 } else { 78 });
    }
}

/// After an exec by another thread than the first the new program starts a child: told, or lost.
#[test]
fn a_child_after_an_exec_before_a_loss() {
    for told in [true, false] {
        let w = World::without_perf_events();
        w.two_threads();
        w.perf_events().ring_end(10, monotonic_ns());
        w.forget(11, 10);
        let ns = monotonic_ns();
        w.perf_events().ring_fork(20, 10, ns + 2_000);
        w.thread(20, 20, 10, now_ticks(), "child");
        let exec = Event::Exec { process: 10, ns };
        let fork = told.then_some(start(10, 20, ns + 1_000));
        w.lose([Some(exec), fork].into_iter().flatten());
        sleep(Duration::from_millis(10));
        assert_eq!((w.stream(20, 5), w.stream(10, 5)), (78, 78), "{told}");
    }
}

/// Without the performance events: a first thread that runs and is in no stream of its own counts, not those that are.
#[test]
fn a_first_thread_that_is_not_known_runs() {
    let w = World::with_events();
    w.thread(10, 10, 1, 50, "first");
    w.thread(11, 10, 1, 50, "second");
    w.callers.set(11, 5, 78, 0).unwrap();
    w.fork(1, 12, 10);
    w.thread(12, 10, 1, now_ticks(), "third");
    assert_eq!(w.stream(12, 5), 1);
}

/// The number of a thread that has just ended is given again, and the end is told only now; then the new one calls exec.
#[test]
fn the_end_of_the_one_before_is_told_late() {
    let w = World::without_perf_events();
    w.thread(5, 5, 1, 50, "parent");
    w.callers.set(5, 5, 77, 0).unwrap();
    w.perf_events().ring_end(10, monotonic_ns());
    sleep(Duration::from_millis(2));
    let ns = monotonic_ns();
    w.perf_events().ring_fork(10, 5, ns + 1);
    w.thread(10, 10, 5, now_ticks(), "child");
    let fork = start(5, 10, ns);
    let exec = Event::Exec {
        process: 10,
        ns: ns + 2,
    };
    let batch = [fork, Event::Exit { tid: 10 }, exec];
    w.told.0.lock().0.extend(batch);
    sleep(Duration::from_millis(10));
    assert_eq!(w.stream(10, 5), 77);
}

/// What a loss left to be known of a number does not hold for a later thread of it.
#[test]
fn a_number_is_given_again_after_a_loss() {
    let w = World::without_perf_events();
    w.thread(10, 10, 1, 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.perf_events().ring_fork(20, 10, monotonic_ns());
    w.lose([]);
    w.callers.shared.tidy();
    for (parent, child) in [(5, 20), (20, 21)] {
        let ns = monotonic_ns();
        w.perf_events().ring_fork(child, parent, monotonic_ns() + 1);
        w.told.0.lock().0.push(start(parent, child, ns));
        sleep(Duration::from_millis(1));
    }
    w.thread(21, 21, 1, now_ticks(), "daemon");
    sleep(Duration::from_millis(10));
    assert_eq!(w.stream(21, 5), 1);
}

/// A session that was asked about before its beginning was told stays as it is.
#[test]
fn a_session_is_told_of_late() {
    let w = World::with(CallerConfig {
        grouping: Grouping::Session,
        ..CallerConfig::default()
    });
    w.thread_of_session(20, 20, 1, 50, "leader", 20);
    let stream = w.stream(20, 5);
    assert!(stream > 1);
    w.tell(Event::Session { process: 20 });
    w.thread_of_session(21, 21, 20, now_ticks(), "member", 20);
    assert_eq!((w.stream(21, 5), w.stream(20, 5)), (stream, stream));
}
