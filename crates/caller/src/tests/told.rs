//! With the kernel's events: exact at the fork. And what policies and rules give.
use super::*;
use std::os::unix::fs::symlink;

fn world(grouping: Grouping, rules: &str) -> World {
    World::with(CallerConfig {
        grouping,
        rules: Rules::parse(rules).unwrap(),
        forks: Forks::Auto,
    })
}

#[test]
fn a_child_is_where_its_parent_was_at_the_fork() {
    let w = World::with_events();
    w.thread(10, 10, 1, 50, "parent");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.fork(10, 20, 20);
    w.thread(20, 20, 10, now_ticks(), "child");
    w.callers.set(10, 5, 78, 0).unwrap();
    w.fork(10, 21, 21);
    w.thread(21, 21, 10, now_ticks(), "later child");
    w.fork(10, 11, 10);
    w.thread(11, 10, 1, now_ticks(), "thread");
    assert_eq!(
        (w.stream(20, 5), w.stream(21, 5), w.stream(11, 5)),
        (77, 78, 78)
    );
    // Double fork: the middle one never makes a request and is gone when its child makes one.
    w.fork(10, 30, 30);
    w.fork(30, 31, 31);
    w.tell(Event::Exit { tid: 30 });
    w.thread(31, 31, 1, now_ticks(), "daemon");
    w.end(10);
    w.tell(Event::Exit { tid: 10 });
    w.callers.shared.tidy();
    assert_eq!(w.stream(31, 5), 78);
    assert_eq!(w.callers.identity().threads, 4);
}

#[test]
fn a_known_thread_costs_no_look_at_proc() {
    let w = World::with_events();
    w.thread(10, 10, 1, 50, "a");
    w.thread(11, 11, 1, 50, "b");
    w.callers.set(10, 5, 77, 0).unwrap();
    assert_eq!(w.stream(11, 5), 1);
    let before = w.callers.identity().proc_reads;
    for _ in 0..20 {
        w.fork(1, 500, 500);
        for _ in 0..1000 {
            assert_eq!((w.stream(10, 5), w.stream(11, 5)), (77, 1));
        }
    }
    assert_eq!(w.callers.identity().proc_reads, before);
    assert!(w.callers.identity().events >= 20);
}

#[test]
fn a_reused_number_is_another_thread() {
    let w = World::with_events();
    w.thread(9, 9, 1, 50, "stranger");
    w.thread(10, 10, 1, 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    // At once, and the exit is reported only after the number was given again.
    w.fork(9, 10, 10);
    w.thread(10, 10, 9, now_ticks(), "b");
    assert_eq!(w.stream(10, 5), 1);
    w.tell(Event::Exit { tid: 10 });
    w.callers.set(10, 5, 78, 0).unwrap();
    w.callers.shared.tidy();
    assert_eq!(w.stream(10, 5), 78, "it was the earlier one that ended");
    w.callers.shared.tidy();
    assert_eq!(w.callers.identity().threads, 1);
}

#[test]
fn exec_by_another_thread_takes_the_first_ones_number() {
    let w = World::with_events();
    w.two_threads();
    w.end(11);
    w.tell(Event::Exit { tid: 10 });
    w.exec(10);
    assert_eq!(w.stream(10, 5), 78);
    // By the first one: it stays where it is.
    w.exec(10);
    assert_eq!(w.stream(10, 5), 78);
    // By one that is not known, so in no stream of its own.
    w.thread(12, 10, 1, 50, "third");
    w.tell(Event::Exit { tid: 10 });
    w.exec(10);
    assert_eq!(w.stream(10, 5), 1);
}

/// The connector may tell of siblings' ends after the exec that made room; the performance events tells before.
#[test]
fn exec_beside_siblings_that_are_dying() {
    let w = World::without_perf_events();
    w.two_threads();
    w.perf_events().ring_end(11, monotonic_ns());
    w.end(11);
    w.exec(10);
    w.tell(Event::Exit { tid: 11 });
    assert_eq!(w.stream(10, 5), 77);
    // The second one calls exec, and the end of the first is told late.
    w.thread(12, 10, 1, 50, "another second");
    w.callers.set(12, 5, 79, 0).unwrap();
    w.perf_events().ring_end(10, monotonic_ns());
    w.end(12);
    w.exec(10);
    w.tell(Event::Exit { tid: 10 });
    assert_eq!(w.stream(10, 5), 79);
}

/// The first thread's end is told with the number of the one that called exec: that was given to it meanwhile, and then to nobody.
#[test]
fn the_first_threads_end_is_told_with_the_others_number() {
    for tidy in [false, true] {
        let w = World::without_perf_events();
        for (tid, stream) in [(10, 77), (11, 78), (12, 79)] {
            w.thread(tid, 10, 1, 50, "x");
            w.callers.set(tid, 5, stream, 0).unwrap();
        }
        w.perf_events().ring_end(11, monotonic_ns());
        w.perf_events().ring_end(10, monotonic_ns());
        w.forget(11, 10);
        w.forget(12, 10);
        w.tell(Event::Exit { tid: 11 });
        w.tell(Event::Exit { tid: 12 });
        if tidy {
            w.callers.shared.tidy();
        }
        w.exec(10);
        assert_eq!(w.stream(10, 5), 79, "{tidy}");
        assert_eq!(w.callers.identity().threads, 1);
    }
}

/// What is told of the first thread's end before its exec, and of the exec without a ring, is not overlooked while events are trusted.
#[test]
fn an_exec_is_noticed_by_the_first_request_after_it() {
    for told_by_perf_events in [true, false] {
        for round in 0..20 {
            let perf_events = told_by_perf_events.then(PerfEvents::silent);
            let w = World::with_perf_events(CallerConfig::default(), perf_events);
            w.two_threads();
            match told_by_perf_events {
                true => w.perf_events().ring_end(10, monotonic_ns()),
                false => w.told.0.lock().0.push(Event::Exit { tid: 10 }),
            }
            // Who looks now sees a thread that runs: the second one has the number already.
            w.callers.shared.tidy();
            assert_eq!(w.stream(10, 5), 77, "round {round}");
            let ns = monotonic_ns();
            w.told.0.lock().0.push(Event::Exec { process: 10, ns });
            assert_eq!(w.stream(10, 5), 78, "round {round}");
            assert!(!w.tracker().is_doubted(10));
        }
    }
}

/// The end of the first thread is told after the exec that made room for it; then the new program calls exec itself.
#[test]
fn an_end_that_is_told_late_is_not_the_new_programs() {
    let w = World::without_perf_events();
    w.two_threads();
    w.perf_events().ring_end(10, monotonic_ns());
    w.exec(10);
    w.tell(Event::Exit { tid: 10 });
    assert_eq!(w.stream(10, 5), 78);
    assert!(!w.tracker().is_doubted(10));
    w.exec(10);
    assert_eq!(w.stream(10, 5), 78);
    // All at once: it calls exec, starts a child and ends.
    w.perf_events().ring_fork(20, 10, monotonic_ns() + 1);
    let ns = monotonic_ns();
    let fork = start(10, 20, ns);
    let all = [
        Event::Exec { process: 10, ns },
        fork,
        Event::Exit { tid: 10 },
    ];
    w.told.0.lock().0.extend(all);
    w.perf_events().ring_end(10, monotonic_ns() + 2);
    w.thread(20, 20, 1, now_ticks(), "child");
    w.end(10);
    sleep(Duration::from_millis(10));
    assert_eq!(w.stream(20, 5), 78);
}

/// One that runs although an end of its number was told is believed again, but not before any exec must have been told.
#[test]
fn doubts_end() {
    let w = World::without_perf_events();
    let start = monotonic_ms();
    w.thread(10, 10, 1, 50, "first");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.perf_events().ring_end(10, monotonic_ns());
    w.callers.shared.tidy();
    w.tracker().tidy_at(start + 5_000);
    assert!(w.tracker().is_doubted(10));
    w.tracker().tidy_at(monotonic_ms() + 20_000);
    assert!(!w.tracker().is_doubted(10));
    assert_eq!(w.stream(10, 5), 77);
    // An end of before is nobody's who is here.
    w.thread(20, 20, 1, now_ticks() - 5, "later");
    w.callers.set(20, 5, 77, 0).unwrap();
    w.perf_events().ring_end(20, 1);
    w.tell(Event::Exit { tid: 20 });
    w.callers.shared.tidy();
    assert!(!w.tracker().is_doubted(20));
    // The first thread of a process is seen when others of it are known already.
    w.thread(30, 30, 1, 50, "first");
    w.thread(31, 30, 1, 50, "second");
    w.callers.set(31, 5, 78, 0).unwrap();
    assert_eq!(w.stream(30, 5), 1);
    assert!(w.tracker().is_doubted(30) && !w.tracker().is_doubted(31));
}

/// An exec that the kernel could not report.
#[test]
fn a_lost_exec_is_made_up_for() {
    let w = World::without_perf_events();
    for (first, second, third) in [(10, 11, 12), (20, 21, 22)] {
        for (tid, stream) in [(first, 77), (second, 78), (third, 79)] {
            w.thread(tid, first, 1, 50, "x");
            w.callers.set(tid, 5, stream, 0).unwrap();
        }
        w.forget(third, first);
        w.perf_events().ring_end(third, monotonic_ns());
    }
    w.perf_events().ring_end(10, monotonic_ns());
    w.forget(11, 10);
    w.lose([]);
    sleep(Duration::from_millis(10));
    assert_eq!(
        (w.stream(10, 5), w.stream(20, 5), w.stream(21, 5)),
        (78, 77, 78)
    );
    assert_eq!(w.callers.identity().threads, 3);
}

/// Events were lost in the middle of an exec by another thread than the first: the first one's end rings while /proc is looked through, the
/// number is the other's already, and the exec itself is told afterwards.
#[test]
fn an_exec_is_told_after_the_loss_that_showed_it() {
    for known_before in [true, false] {
        for round in 0..3 {
            let w = World::without_perf_events();
            // The look takes a while.
            for tid in 1000..1100 {
                w.thread(tid, tid, 1, 50, "another");
            }
            w.thread(9, 9, 1, 50, "parent");
            w.callers.set(9, 5, 79, 0).unwrap();
            if known_before {
                w.thread(10, 10, 9, 50, "first");
                w.thread(11, 10, 9, 50, "second");
                w.callers.set(10, 5, 77, 0).unwrap();
                w.callers.set(11, 5, 79, 0).unwrap();
                w.forget(11, 10);
            } else {
                // It all happened meanwhile: a process of two threads, both where their parent is, of which one called exec.
                w.perf_events().ring_fork(10, 9, monotonic_ns());
                w.thread(10, 10, 9, now_ticks(), "second");
            }
            w.perf_events().ring_end(10, monotonic_ns() + 200_000);
            w.lose([]);
            w.callers.shared.tidy();
            w.exec(10);
            w.tell(Event::Exit { tid: 10 });
            w.callers.shared.tidy();
            assert_eq!(w.stream(10, 5), 79, "round {round}, {known_before}");
        }
    }
}

/// A thread in no stream of its own called exec, and that was lost. Where there is no such thread it was the first one, of a program that
/// nobody may look into.
#[test]
fn a_lost_exec_by_a_stranger() {
    let w = World::without_perf_events();
    w.thread(11, 10, 1, 50, "a stranger");
    for first in [10, 20, 30] {
        w.thread(first, first, 1, 50, "first");
        w.callers.set(first, 5, 77, 0).unwrap();
    }
    w.perf_events().ring_end(10, monotonic_ns());
    w.perf_events().ring_end(30, monotonic_ns());
    w.lose([]);
    w.callers.shared.tidy();
    let streams = [10, 20, 30].map(|tid| w.stream(tid, 5));
    assert_eq!(streams, [1, 77, 77]);
}

/// Lost forks of which the performance events told: by a thread that is not the first, by parents that have ended, by a creator that is not the parent.
#[test]
fn perf_events_tell_of_lost_forks() {
    let w = World::without_perf_events();
    w.two_threads();
    sleep(Duration::from_millis(10));
    for (child, creator) in [(12, 11), (20, 11), (21, 20), (22, 21), (30, 11)] {
        w.perf_events().ring_fork(child, creator, monotonic_ns());
    }
    w.thread(12, 10, 1, now_ticks(), "a thread of the second one's");
    w.thread(22, 22, 1, now_ticks(), "a daemon");
    w.thread(30, 30, 1, now_ticks(), "a sibling");
    w.thread(40, 40, 1, now_ticks(), "a stranger");
    w.lose([]);
    w.callers.shared.tidy();
    let streams = [12, 22, 30, 40, 10, 11].map(|tid| w.stream(tid, 5));
    assert_eq!(streams, [78, 78, 78, 1, 77, 78]);
}

/// While events are lost a fork that was told waits for the performance events, longer ago than the loss; and the list of a process's threads lacks one.
#[test]
fn a_loss_takes_nobody_away() {
    let w = World::without_perf_events();
    w.two_threads();
    w.fork(10, 20, 20);
    w.thread(20, 20, 1, now_ticks(), "child");
    sleep(Duration::from_millis(50));
    w.callers.shared.tidy();
    fs::remove_dir(w.dir.path().join("10/task/11")).unwrap();
    w.lose([]);
    w.callers.shared.tidy();
    w.perf_events().ring_fork(20, 11, monotonic_ns());
    let streams = [10, 11, 20].map(|tid| w.stream(tid, 5));
    assert_eq!(streams, [77, 78, 78]);
}

/// With CLONE_PARENT the connector names the creator's parent; the performance events names the creator.
#[test]
fn a_child_that_was_given_to_the_parent() {
    let w = World::without_perf_events();
    w.thread(9, 9, 1, 50, "parent");
    w.thread(10, 10, 9, 50, "creator");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.fork(9, 20, 20);
    // What it starts before it makes a request itself.
    w.callers.shared.tidy();
    w.perf_events().ring_fork(20, 10, monotonic_ns());
    w.perf_events()
        .ring_fork(21, 20, monotonic_ns() + 1_000_000_000);
    w.fork(20, 21, 21);
    w.thread(20, 20, 9, now_ticks(), "sibling");
    w.thread(21, 21, 20, now_ticks(), "its child");
    assert_eq!((w.stream(21, 5), w.stream(20, 5)), (77, 77));
    // One that ended before its creator was told of: it is not kept.
    w.fork(10, 22, 22);
    w.callers.shared.tidy();
    w.tell(Event::Exit { tid: 22 });
    w.callers.shared.tidy();
    sleep(Duration::from_millis(1100));
    w.callers.shared.tidy();
    w.callers.shared.tidy();
    assert!(w.callers.members(77, 9).iter().all(|(tid, _)| *tid != 22));
    // A record that is lost: the one that the connector names, and who starts something runs.
    w.fork(10, 30, 30);
    w.perf_events()
        .ring_fork(31, 30, monotonic_ns() + 1_000_000_000);
    w.fork(30, 31, 31);
    w.thread(31, 31, 30, now_ticks(), "grandchild");
    assert_eq!(w.stream(31, 5), 77);
}

#[test]
fn lost_events_are_made_up_for() {
    let w = World::with_events();
    w.thread(10, 10, 1, now_ticks() - 500, "old");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.fork(10, 20, 20);
    w.thread(20, 20, 10, now_ticks(), "told");
    assert_eq!(w.stream(20, 5), 77);
    w.thread(40, 40, 1, now_ticks(), "elsewhere");
    w.callers.set(40, 5, 79, 0).unwrap();
    sleep(Duration::from_millis(50));
    let now = now_ticks() + 3;
    // Not told: a child, its child, a thread, a stranger, and a stranger with the number of one that was known.
    w.thread(30, 30, 10, now, "child");
    w.thread(31, 31, 30, now, "grandchild");
    w.thread(11, 10, 1, now, "thread");
    w.thread(50, 50, 1, now, "stranger");
    w.thread(40, 40, 1, now, "another");
    w.end(20);
    w.lose([]);
    sleep(Duration::from_millis(10));
    let streams: Vec<u64> = [10, 30, 31, 11, 50, 40]
        .into_iter()
        .map(|tid| w.stream(tid, 5))
        .collect();
    assert_eq!(streams, [77, 77, 77, 77, 1, 1]);
    let identity = w.callers.identity();
    assert_eq!((identity.overruns, identity.rescans), (1, 1));
    assert!(w.callers.members(77, 99).iter().all(|(tid, _)| *tid != 20));
}

#[test]
fn a_stream_of_ones_own_survives_lost_events() {
    let w = World::with_events();
    w.thread(10, 10, 1, now_ticks(), "new");
    w.callers.set(10, 5, 77, 0).unwrap();
    // One instant by both clocks, however slow the machine is.
    let (ns, born) = loop {
        let (before, ns) = (now_ticks(), monotonic_ns());
        if now_ticks() == before {
            break (ns, before);
        }
    };
    w.tell(start(10, 20, ns));
    w.callers.set(10, 5, 78, 0).unwrap();
    w.thread(20, 20, 10, born, "child");
    w.lose([]);
    sleep(Duration::from_millis(10));
    assert_eq!((w.stream(10, 5), w.stream(20, 5)), (78, 77));
}

// --- policies

#[test]
fn a_session_has_a_stream() {
    let w = world(Grouping::Session, "");
    w.thread_of_session(10, 10, 1, 50, "leader", 10);
    w.thread_of_session(11, 11, 10, 50, "member", 10);
    w.thread_of_session(12, 12, 10, 50, "another user's", 10);
    w.thread_of_session(20, 20, 1, 50, "leader", 20);
    w.thread_of_session(30, 30, 1, 50, "none", 0);
    let (one, two) = (w.stream(10, 5), w.stream(20, 5));
    assert!(one > 1 && two > 1 && one != two);
    assert_eq!(
        (w.stream(11, 5), w.stream(12, 6), w.stream(30, 5)),
        (one, one, 1)
    );
    // setsid
    w.thread_of_session(11, 11, 10, 50, "member", 11);
    w.tell(Event::Session { process: 11 });
    let three = w.stream(11, 5);
    assert!(three != one && three != two && three > 1);
    // An explicit stream wins, and what it starts is in it; 0 leads back.
    w.callers.set(20, 5, 77, 0).unwrap();
    w.fork(20, 21, 21);
    w.thread_of_session(21, 21, 20, now_ticks(), "child", 20);
    assert_eq!((w.stream(20, 5), w.stream(21, 5)), (77, 77));
    assert_eq!(
        w.stream(20, 6),
        two,
        "another user is where the policy has it"
    );
    w.callers.set(20, 5, 0, 0).unwrap();
    assert_eq!((w.stream(20, 5), w.stream(21, 5)), (two, 77));
    // A later session of the same number.
    for tid in [20, 21] {
        w.end(tid);
        w.tell(Event::Exit { tid });
    }
    w.callers.shared.tidy();
    w.thread_of_session(20, 20, 1, 90, "leader", 20);
    assert_ne!(w.stream(20, 5), two);
}

fn group(w: &World, tid: u32, name: &str) {
    fs::write(
        w.dir.path().join(format!("{tid}/cgroup")),
        format!("0::{name}\n"),
    )
    .unwrap();
}

#[test]
fn control_groups_and_users_never_split_a_session() {
    let w = world(Grouping::Cgroup, "");
    for (tid, session, name) in [
        (10, 10, "/a"),
        (11, 10, "/b"),
        (20, 20, "/a"),
        (30, 30, "/b"),
    ] {
        w.thread_of_session(tid, tid, 1, 50, "x", session);
        group(&w, tid, name);
    }
    // The leader of its session speaks for 11.
    let (b, a) = (w.stream(30, 5), w.stream(11, 5));
    assert!(a != b && a > 1 && b > 1);
    assert_eq!((w.stream(10, 5), w.stream(20, 5)), (a, a));

    let w = world(Grouping::Uid, "");
    for (tid, session, uid) in [(10, 10, 5), (11, 10, 6), (20, 20, 6), (30, 30, 5)] {
        w.thread_of_session(tid, tid, 1, 50, "x", session);
        let status = w.dir.path().join(format!("{tid}/status"));
        fs::write(status, format!("Tgid:\t{tid}\nUid:\t{uid}\t{uid}\n")).unwrap();
    }
    let (six, five) = (w.stream(20, 6), w.stream(11, 6));
    assert!(six != five && six > 1 && five > 1);
    assert_eq!((w.stream(10, 5), w.stream(30, 5)), (five, five));
}

/// A session outside of the daemon's process id namespace has no number: each process speaks for itself.
#[test]
fn processes_without_a_session() {
    for forks in [Forks::Auto, Forks::Proc] {
        let world = |grouping| {
            World::with(CallerConfig {
                grouping,
                rules: Rules::default(),
                forks,
            })
        };
        let w = world(Grouping::Session);
        w.thread_of_session(10, 10, 1, 50, "x", 0);
        assert_eq!(w.stream(10, 5), 1);

        let w = world(Grouping::Cgroup);
        for (tid, name) in [(10, "/a"), (11, "/b"), (12, "/a")] {
            w.thread_of_session(tid, tid, 1, 50, "x", 0);
            group(&w, tid, name);
        }
        let (a, b) = (w.stream(10, 5), w.stream(11, 5));
        assert!(a != b && a > 1 && b > 1);
        assert_eq!(w.stream(12, 5), a);
        // A session of the group shares it.
        w.thread_of_session(20, 20, 1, 50, "x", 20);
        group(&w, 20, "/b");
        assert_eq!(w.stream(20, 5), b);

        let w = world(Grouping::Uid);
        for (tid, uid) in [(10, 5), (11, 6), (12, 5)] {
            w.thread_of_session(tid, tid, 1, 50, "x", 0);
            let status = w.dir.path().join(format!("{tid}/status"));
            fs::write(status, format!("Tgid:\t{tid}\nUid:\t{uid}\t{uid}\n")).unwrap();
        }
        let (five, six) = (w.stream(10, 5), w.stream(11, 6));
        assert!(five != six && five > 1 && six > 1);
        assert_eq!(w.stream(12, 5), five);
    }
}

#[test]
fn rules_give_streams_to_programs() {
    let w = world(
        Grouping::Shared,
        "exe=/bin/git -> own, ignore-fsync\nexe=/bin/db -> shared\nexe=/bin/no -> default",
    );
    let program = |tid: u32, exe: &str| {
        w.thread(tid, tid, 1, 50, "x");
        let link = w.dir.path().join(format!("{tid}/exe"));
        let _ = fs::remove_file(&link);
        symlink(exe, link).unwrap();
    };
    program(10, "/bin/git");
    program(20, "/bin/git");
    program(30, "/bin/db");
    program(31, "/bin/db");
    program(40, "/bin/sh");
    let (git, other) = (w.stream(10, 5), w.stream(20, 5));
    assert!(git > 1 && other > 1 && git != other);
    assert!(w.callers.caller(10, 5).ignore_fsync);
    assert!(!w.callers.caller(10, 0).ignore_fsync);
    assert_eq!((w.stream(10, 6), w.stream(40, 5)), (1, 1));
    assert!(w.stream(30, 5) > 1);
    assert_eq!(w.stream(30, 5), w.stream(31, 5));
    // At the exec, before any request: what the program starts is in its stream, whatever that is.
    program(50, "/bin/git");
    w.fork(40, 50, 50);
    w.exec(50);
    w.fork(50, 51, 51);
    program(51, "/bin/db");
    w.exec(51);
    let own = w.stream(51, 5);
    assert!(own > 1 && own != git && own != w.stream(30, 5));
    assert_eq!(w.stream(50, 5), own);
    // Who chose a stream stays there.
    w.callers.set(40, 5, 77, 0).unwrap();
    w.fork(40, 60, 60);
    program(60, "/bin/git");
    w.exec(60);
    assert_eq!(w.stream(60, 5), 77);
}

#[test]
fn threads_whose_creator_is_never_told() {
    let w = World::without_perf_events();
    w.thread(9, 9, 1, 50, "stranger");
    w.thread(10, 10, 1, 50, "first");
    w.callers.set(10, 5, 77, 0).unwrap();
    // One that runs is where its process's first one is; the number of another is given again to a stranger's child.
    w.fork(10, 11, 10);
    w.fork(10, 12, 10);
    w.thread(11, 10, 1, now_ticks(), "second");
    assert_eq!(w.stream(11, 5), 77);
    w.fork(9, 12, 12);
    w.thread(12, 12, 9, now_ticks(), "another process");
    assert_eq!(w.stream(12, 5), 1);
    // Long ago: one that runs, and one that ended.
    w.thread(13, 10, 1, now_ticks(), "third");
    for child in [13, 14] {
        w.tell(Event::Fork {
            parent: 10,
            child,
            process: 10,
            ns: 0,
        });
    }
    w.callers.shared.tidy();
    let members = w.callers.members(77, 9);
    assert_eq!(members, [(10, 10), (11, 10), (13, 10)]);
}

#[test]
fn with_a_policy_a_new_session_counts_at_once() {
    let w = world(Grouping::Session, "");
    w.thread_of_session(10, 10, 1, 50, "x", 1);
    let before = w.stream(10, 5);
    w.thread_of_session(10, 10, 1, 50, "x", 10);
    w.told.0.lock().0.push(Event::Session { process: 10 });
    assert_ne!(w.stream(10, 5), before);
}

#[test]
fn the_ended_are_not_remembered() {
    let w = World::with_events();
    w.thread(10, 10, 1, 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.thread(20, 20, 10, 50, "zombie");
    let stat = w.dir.path().join("20/stat");
    let text = fs::read_to_string(&stat).unwrap().replace(") S ", ") Z ");
    fs::write(&stat, text).unwrap();
    assert_eq!(
        w.callers.stream_of(w.user(10, 5), 20),
        Ok((DEFAULT_STREAM, 0))
    );
    assert_eq!(w.callers.identity().threads, 1);
}
