//! Promise C4: a sync call of stream B writes none of stream A's operations unless it depends on them, whatever disk blocks they share; directed
//! and random.
use ccfs_crash::config::{CONFIGS, config};
use ccfs_crash::drive::Driver;
use ccfs_crash::generate::{Action, Mix};
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::{Analysis, Cut, Op, Sync, SyncKind};
use ccfs_crash::run::{Run, Source, mount};
use ccfs_crash::script::Script;
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_device::Device;
use ccfs_disks::{Outcome, SimDevice};
use ccfs_testkit::Rng;
use std::sync::Arc;

/// Performs `before` (synced), then `text`, whose last line is a sync call of B; of A's operations exactly `survive` of those
/// after `before` are in the log then.
fn check(before: &str, text: &str, survive: u32) {
    for config in &CONFIGS[..2] {
        let setting = Setting {
            unmount: false,
            streams: 3,
            ..Setting::new(config)
        };
        let run =
            Run::record(setting, Source::Text(format!("{before}; A syncfs; {text}"))).unwrap();
        let cut = run.survivors(run.dev.events(), &Outcome::All).unwrap();
        let first = run.an.history.syncs[0].after;
        let synced = run.an.placed[..first]
            .iter()
            .filter(|p| p.stream == 0)
            .count() as u32;
        assert_eq!(
            cut[0],
            synced + survive,
            "volume {}: {before}; {text}",
            config.name
        );
    }
}

#[test]
fn one_directory_and_one_inode_table_block() {
    check(
        "A create x",
        "A create a; A write a 0 3000; B create b; B write b 0 3000; B fsync b",
        0,
    );
    check(
        "A create x",
        "A create a; A unlink x; B create b; B streamsync",
        0,
    );
}

#[test]
fn frees_and_allocations_in_one_bitmap() {
    check(
        "A create x; A write x 0 60000; B create y",
        "A truncate x 0; A create a; B write y 0 90000; B fsync y",
        0,
    );
}

#[test]
fn directories_and_counts() {
    check(
        "A mkdir d",
        "A mkdir d/a; A utimes d 5; B mkdir d/b; B fsync d/b",
        0,
    );
}

#[test]
fn growth_of_a_directory() {
    let long = "g".repeat(200);
    let fill: String = (0..40).map(|i| format!("A create d/{i}{long};")).collect();
    check(
        "A mkdir d",
        &format!("{fill} B create d/b; B create d/bb{long}; B fsync d/b"),
        0,
    );
}

#[test]
fn dependencies_take_the_prefix_and_no_more() {
    // Up to where B touched what A had changed; not what A did later.
    check(
        "A create f",
        "A create a; A write f 0 100; A create c; B write f 50 100; A create e; B fsync f",
        3,
    );
    check(
        "A mkdir d",
        "A create a; A chmod d 700; A create c; B create d/x; B fsync d/x",
        3,
    );
    check(
        "A mkdir d; A create d/x",
        "A unlink d/x; A create c; B rmdir d; B streamsync",
        2,
    );
    // A move of a directory takes along moves of those on its new path, and of no others.
    check(
        "A mkdir p; A mkdir p/q; A mkdir p/q/r; A mkdir e",
        "A create a; A rename p/q q; A create c; B rename e q/r/e; B streamsync",
        3,
    );
    check(
        "A mkdir p; A mkdir p/q; A mkdir p/q/r; A mkdir e; A mkdir e/f",
        "A create a; A rename p/q q; B rename e/f f; B exchange f p; B streamsync",
        0,
    );
}

#[test]
fn an_fsync_writes_little_while_another_stream_has_much() {
    let setting = Setting::new(&CONFIGS[7]);
    let dev = Arc::new(SimDevice::new(&image::base(setting.config).unwrap()));
    let vol = mount(dev.clone(), setting.options()).unwrap();
    let base = observe(&vol).unwrap();
    let mut driver = Driver::new(vol, None, &base, 2);
    let mut text = String::from("B create b; B write b 0 4096; A create a;");
    text.extend((0..12).map(|i| format!("A write a {} 1000000;", i * 1_000_000)));
    let mut script = Script::new(&text, FIRST_NODE);
    while let Some((stream, action)) = script.next(&driver.tree).unwrap() {
        driver.act(stream, &action).unwrap();
    }
    let before = dev.counters();
    let node = driver.tree.lookup(driver.tree.root, b"b").unwrap();
    driver
        .act(
            1,
            &Action::Fsync {
                node,
                data_only: false,
            },
        )
        .unwrap();
    let after = dev.counters();
    let written = after.written_bytes - before.written_bytes;
    assert!(written < 100 << 10, "{written} bytes");
    assert!(
        after.flushes - before.flushes <= 2,
        "{} flushes",
        after.flushes - before.flushes
    );
    driver.vol.shutdown();
}

/// What C4 allows to be on the medium after a sync call: what it covers, and of other streams what depends on that. The engine depends on all
/// that a stream has done up to the moment of the dependency (it is sealed there, docs/design/engine.md, "Transactions"), holds
/// a directory's attributes together (docs/design/weaknesses.md), and syncs a directory with its own attributes and making.
struct Allowed<'a> {
    an: &'a Analysis,
    /// What operation i takes along when it is committed.
    need: Vec<Cut>,
    /// The last operation of each stream before the one that is looked at.
    last: Vec<Option<usize>>,
    /// What is on the medium.
    there: Cut,
}

impl Allowed<'_> {
    fn is_there(&self, op: usize) -> bool {
        let placed = &self.an.placed[op];
        placed.pos < self.there[placed.stream]
    }

    fn raise(&self, cut: &mut Cut, stream: usize) {
        if let Some(last) = self.last[stream] {
            cut.iter_mut()
                .zip(&self.need[last])
                .for_each(|(a, b)| *a = (*a).max(*b));
        }
    }

    fn op(&self, op: usize) -> &Op {
        &self.an.history.ops[op].op
    }

    fn same_target(&self, a: usize, b: usize) -> bool {
        self.op(a).target() == self.op(b).target()
    }

    /// It is about extended attributes, or about the mode, which an access list is a part of.
    fn is_attribute(&self, op: usize) -> bool {
        match self.op(op) {
            Op::SetXattr { .. } | Op::RemoveXattr { .. } => true,
            Op::SetAttr { set, .. } => set.mode.is_some(),
            _ => false,
        }
    }

    fn covers(&self, call: &Sync, op: usize) -> bool {
        let SyncKind::File(node) = call.kind else {
            return self.an.covers(call, op);
        };
        let about = [self.op(op).target(), self.op(op).makes()].contains(&Some(node));
        about || self.an.covers(call, op)
    }

    fn accept(&mut self, op: usize) {
        let placed = &self.an.placed[op];
        let mut need = vec![0; self.there.len()];
        self.raise(&mut need, placed.stream);
        let attributes = (0..op).filter(|o| self.is_attribute(op) && self.same_target(*o, op));
        let attributes = attributes.filter(|o| self.is_attribute(*o));
        for dep in placed.deps.iter().copied().chain(attributes) {
            if !self.is_there(dep) {
                self.raise(&mut need, self.an.placed[dep].stream);
            }
        }
        need[placed.stream] = placed.pos + 1;
        self.need.push(need);
        self.last[placed.stream] = Some(op);
    }

    fn of(&self, call: &Sync) -> Cut {
        let mut cut = self.there.clone();
        self.raise(&mut cut, call.stream);
        for op in (0..call.after).filter(|op| self.covers(call, *op) && !self.is_there(*op)) {
            self.raise(&mut cut, self.an.placed[op].stream);
        }
        cut
    }
}

/// A random workload in which nothing but sync calls makes the engine commit: no interval, no lack of room. Gives the number of calls that
/// left something out.
fn random(seed: u64) -> Result<usize, String> {
    let mut rng = Rng::new(seed ^ 0xc4c4);
    let streams = 2 + rng.below(4) as usize;
    let setting = Setting {
        streams,
        dirty_limit: 1 << 30,
        unmount: false,
        ..Setting::new(config("64m").unwrap())
    };
    let mix = Mix {
        streams,
        own_percent: *rng.pick(&[0, 50, 90]),
        names: *rng.pick(&[3, 8, 40]),
        sync_percent: *rng.pick(&[4, 12]),
        tick_percent: 0,
        rights_percent: *rng.pick(&[0, 20]),
        write_max: 6 << 10,
        ..Mix::default()
    };
    let length = 30 + rng.below(80) as usize;
    let mut actions = Run::record(setting, Source::Random(seed, mix, length))?.actions;
    actions.retain(|a| a.1 != Action::Tick);
    let run = Run::record(setting, Source::Actions(actions))?;
    let mut allowed = Allowed {
        an: &run.an,
        need: Vec::new(),
        last: vec![None; streams],
        there: vec![0; streams],
    };
    let mut left_out = 0;
    for (call, at) in run.an.history.syncs.iter().zip(&run.synced) {
        (allowed.need.len()..call.after).for_each(|op| allowed.accept(op));
        let most = allowed.of(call);
        let seen = run.survivors(*at, &Outcome::All)?;
        if let Some(stream) = (0..streams).find(|s| seen[*s] > most[*s]) {
            let mut ops = run.an.placed.iter().zip(&run.an.history.ops);
            let extra = ops.find(|(p, _)| p.stream == stream && p.pos == most[stream]);
            let extra = extra.map(|(_, a)| a.op.to_string());
            return Err(format!(
                "seed {seed}: {call:?} may take {most:?}, there is {seen:?}, first {extra:?} of stream {stream}"
            ));
        }
        let accepted = |s: usize| allowed.last[s].map_or(0, |op| run.an.placed[op].pos + 1);
        left_out += usize::from((0..streams).any(|s| most[s] < accepted(s)));
        allowed.there = seen;
    }
    Ok(left_out)
}

/// Two directories change places: what another stream did in them is not what they replace.
#[test]
fn directories_that_change_places() {
    check(
        "A mkdir d; A mkdir e",
        "A create e/x; B exchange d e; B streamsync",
        0,
    );
}

#[test]
fn random_syncs_write_nothing_unrelated() {
    let left_out: usize = (0..350)
        .map(|seed| random(seed).unwrap_or_else(|e| panic!("{e}")))
        .sum();
    assert!(
        left_out > 100,
        "only {left_out} calls that could have written too much"
    );
}
