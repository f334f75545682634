//! One run: a volume, programs with and without sessions in streams of their own and in shared ones, and what they do.
use crate::drive::{Driver, Place};
use crate::entries::is_direct;
use crate::kernel::Kernel;
use crate::session::{Session, Thread};
use ccfs_crash::counts::Counts;
use ccfs_crash::drive::Ended;
use ccfs_crash::generate::{Action, Generator};
use ccfs_crash::marks::Marks;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::*;
use ccfs_crash::run::{Run, Source, begin};
use ccfs_crash::script::Script;
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_testkit::Rng;
use std::collections::HashMap;

/// A run to make.
pub struct Plan {
    pub setting: Setting,
    pub seed: u64,
    /// Sessions' threads come to what is posted when they like, not when the script says so.
    pub by_themselves: bool,
}

/// Who is there.
struct People {
    places: Vec<Place>,
    sessions: Vec<Session>,
    /// The streams' numbers.
    streams: Vec<u64>,
}

/// What a run was and did.
pub struct Recorded {
    pub run: Run,
    /// Calls by the way that they took.
    pub ways: Counts,
}

/// Streams and sessions of threads: each stream has a program with a session, and perhaps another one with or without; one session may
/// have threads in two streams.
fn layout(rng: &mut Rng, streams: usize) -> Vec<(usize, Option<usize>)> {
    let (mut places, mut sessions) = (Vec::new(), 0);
    for stream in 0..streams {
        places.push((stream, Some(sessions)));
        sessions += 1;
        match rng.below(5) {
            0 | 1 => {
                places.push((stream, Some(sessions)));
                sessions += 1;
            }
            2 => places.push((stream, None)),
            _ => {}
        }
    }
    if streams > 1 && rng.chance(25) {
        places.push((rng.index(streams), Some(0)));
    }
    // Who comes first posts in the stream.
    rng.shuffle(&mut places);
    places
}

/// Threads of the streams, and their sessions. `None`: there can be none for this process.
fn populate(kernel: &Kernel, rng: &mut Rng, streams: usize) -> Result<Option<People>, String> {
    let mut people = People {
        places: Vec::new(),
        sessions: Vec::new(),
        streams: Vec::new(),
    };
    for (stream, session) in layout(rng, streams) {
        let thread = Thread::start()?;
        while people.streams.len() <= stream {
            people.streams.push(kernel.new_stream(thread.tid)?);
        }
        kernel.set_stream(thread.tid, people.streams[stream])?;
        people.places.push(Place {
            thread,
            stream,
            session,
        });
    }
    let number = |p: &Place| p.session.map(|s| (s, p.thread.tid));
    let mut users: Vec<(usize, u32)> = people.places.iter().filter_map(number).collect();
    for session in 0.. {
        let Some((_, tid)) = users.iter().find(|u| u.0 == session) else {
            break;
        };
        match Session::begin(kernel, *tid)? {
            Some(session) => people.sessions.push(session),
            None => return Ok(None),
        }
    }
    for (session, tid) in users.drain(..) {
        people.sessions[session].note_thread(kernel, tid)?;
    }
    Ok(Some(people))
}

/// Performs a workload. `None`: there can be no sessions here. The error says which promise was broken without any crash.
pub fn record(
    plan: &Plan,
    source: Source,
    done: &mut Vec<(usize, Action)>,
) -> Result<Option<Recorded>, String> {
    let setting = plan.setting;
    let (dev, vol) = begin(&setting)?;
    let mounted = dev.events();
    let base = observe(&vol)?;
    let kernel = Kernel::new(&vol, base.root, !plan.by_themselves)?;
    let mut rng = Rng::new(plan.seed ^ 0x6469_7265_6374);
    let Some(people) = populate(&kernel, &mut rng, setting.streams)? else {
        return Ok(None);
    };
    let mut driver = Driver {
        vol,
        dev: dev.clone(),
        kernel,
        sessions: people.sessions,
        places: people.places,
        streams: people.streams,
        seed: plan.seed,
        tree: base.clone(),
        history: History {
            streams: setting.streams,
            ..History::default()
        },
        began: Vec::new(),
        synced: Vec::new(),
        open: Vec::new(),
        ways: Counts::new(),
        met: HashMap::new(),
    };
    let worked =
        work(&mut driver, source, done).and_then(|()| end(&mut driver, &setting, &mut rng));
    // Its sessions' threads are to end in any case.
    driver.vol.shutdown();
    let _ = driver.kernel.server.end();
    worked?;
    let an = Analysis::new(base, driver.history, false)
        .map_err(|(i, e)| format!("the model refuses operation {i}: {e}"))?;
    let run = Run {
        setting: Setting {
            unmount: false,
            ..setting
        },
        dev,
        an,
        actions: done.clone(),
        mounted,
        began: driver.began,
        synced: driver.synced,
        no_space: 0,
        aborts: 0,
        conflicts: 0,
        taken_back: 0,
        marks: Marks::default(),
        // But for the order among sessions where a call concerns all of them.
        replays: !plan.by_themselves,
    };
    Ok(Some(Recorded {
        run,
        ways: driver.ways,
    }))
}

fn work(
    driver: &mut Driver,
    source: Source,
    done: &mut Vec<(usize, Action)>,
) -> Result<(), String> {
    let mut next = actions(source);
    while let Some((stream, action)) = next(driver)? {
        done.push((stream, action.clone()));
        if driver.act(stream, &action)? == Ended::NoSpace {
            driver.count("no space");
        }
    }
    Ok(())
}

/// A source's next action, on what is there by then.
type Next = Box<dyn FnMut(&Driver) -> Result<Option<(usize, Action)>, String>>;

fn actions(source: Source) -> Next {
    match source {
        Source::Text(text) => {
            let mut script = Script::new(&text, FIRST_NODE);
            Box::new(move |driver| script.next(&driver.tree))
        }
        Source::Actions(all) => {
            let mut rest = all.into_iter();
            Box::new(move |_| Ok(rest.next()))
        }
        Source::Random(seed, mix, length) => {
            let mut generator = Generator::new(seed, mix, FIRST_NODE);
            let mut left = length;
            Box::new(move |driver| {
                left = left.saturating_sub(1);
                Ok((left > 0).then(|| generated(&mut generator, driver)))
            })
        }
    }
}

/// Mostly what sessions can do. What a stream works in is put away when the kernel knows it, and something new is made, which is held.
fn generated(generator: &mut Generator, driver: &Driver) -> (usize, Action) {
    let tree = &driver.tree;
    let stream = generator.rng.index(generator.mix.streams);
    let own = Bytes::from(format!("s{stream}").into_bytes());
    let there = tree.lookup(tree.root, &own).ok();
    if there.is_some_and(|node| driver.kernel.knows(node)) && generator.rng.chance(15) {
        let mut names = (0..).map(|n| Bytes::from(format!("old{n}").into_bytes()));
        let free = names.find(|name| tree.lookup(tree.root, name).is_err());
        let op = Op::Rename {
            from: tree.root,
            name: own.clone(),
            to: tree.root,
            new_name: free.unwrap_or(own),
            kind: RenameKind::Plain,
        };
        return (stream, Action::Op(op));
    }
    // So often another one is drawn that is not of the wanted kind.
    let (wants_own, tries) = match there {
        None if generator.rng.chance(50) => (true, 60),
        _ => (false, 6),
    };
    let mut action = generator.next_of(tree, stream);
    for _ in 0..tries {
        let wanted = match &action {
            Action::Op(Op::Mkdir { name, .. }) if wants_own => *name == own,
            Action::Op(op) => !wants_own && is_direct(op),
            _ => !wants_own,
        };
        if wanted || !wants_own && generator.rng.chance(6) {
            break;
        }
        action = generator.next_of(tree, stream);
    }
    // Sessions here are root's.
    if let Action::Op(
        Op::Mknod { make, .. }
        | Op::Mkdir { make, .. }
        | Op::Symlink { make, .. }
        | Op::Tmpfile { make, .. },
    ) = &mut action
    {
        (make.uid, make.gid) = (0, 0);
    }
    (stream, action)
}

/// What is posted at the end is carried out, or is not, or is by the unmount.
fn end(driver: &mut Driver, setting: &Setting, rng: &mut Rng) -> Result<(), String> {
    let left = rng.chance(50).then(|| rng.index(driver.sessions.len()));
    for (number, session) in driver.sessions.iter_mut().enumerate() {
        if left != Some(number) {
            session.carry_out(&driver.kernel)?;
        }
    }
    if !driver.sessions.iter().any(Session::is_pending) {
        let seen = observe(&driver.vol)?;
        if let Some(d) = driver.tree.difference(&seen, false) {
            return Err(format!("at the end the tree is wrong: {d}"));
        }
    }
    if setting.unmount {
        let after = driver.history.ops.len();
        let ended = driver.kernel.server.end();
        ended.map_err(|e| format!("unmount: {e}"))?;
        driver.history.syncs.push(Sync {
            stream: 0,
            kind: SyncKind::Volume,
            after,
        });
        driver.synced.push(driver.events());
    }
    Ok(())
}
