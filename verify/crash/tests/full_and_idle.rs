//! C9: on a full volume overwriting, removing and shrinking never lack space. C7: nobody syncs, yet work becomes durable.
use ccfs_crash::config::{CONFIGS, Config};
use ccfs_crash::drive::{Driver, Ended};
use ccfs_crash::explore::{Effort, explore};
use ccfs_crash::generate::{Action, pattern};
use ccfs_crash::image;
use ccfs_crash::observe::observe;
use ccfs_crash::oracle::*;
use ccfs_crash::run::{Run, guarded, mount};
use ccfs_crash::setting::{FIRST_NODE, Setting};
use ccfs_disks::{Outcome, SimDevice};
use ccfs_engine::{Options, Volume};
use ccfs_testkit::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STREAMS: usize = 3;

/// A volume without a free block, and the names on it.
struct Full {
    driver: Driver,
    rng: Rng,
    next_node: u64,
    writes: u64,
    /// Directory, name, inode.
    files: Vec<(NodeId, Bytes, NodeId)>,
    dirs: Vec<(Bytes, NodeId)>,
}

impl Full {
    fn act(&mut self, op: Op) -> Result<Ended, String> {
        let stream = self.rng.below(STREAMS as u64) as usize;
        self.driver.act(stream, &Action::Op(op))
    }

    fn make(&mut self, mode: u16) -> (Bytes, Make) {
        self.next_node += 1;
        let make = Make {
            node: NodeId(self.next_node),
            mode,
            uid: 0,
            gid: 0,
        };
        (format!("n{}", self.next_node).into_bytes().into(), make)
    }

    fn write(&mut self, node: NodeId, offset: u64, len: u64) -> Result<Ended, String> {
        self.writes += 1;
        let data = pattern(self.writes, offset, len as usize);
        self.act(Op::Write {
            node,
            offset,
            data,
            kill: false,
        })
    }

    /// Makes directories, some of them empty, and files, until nothing more fits.
    fn fill(&mut self) -> Result<(), String> {
        let root = self.driver.tree.root;
        for _ in 0..6 {
            let (name, make) = self.make(S_IFDIR | 0o755);
            let op = Op::Mkdir {
                parent: root,
                name: name.clone(),
                make,
            };
            if self.act(op)? == Ended::Accepted {
                self.dirs.push((name, make.node));
            }
        }
        let (mut failed, mut len) = (0, 300 << 10);
        while failed < 12 && self.files.len() < 90 {
            let half = (self.dirs.len() as u64).div_ceil(2);
            let parent = match self.rng.below(half + 1) {
                0 => root,
                n => self.dirs[n as usize - 1].1,
            };
            let (name, make) = self.make(S_IFREG | 0o644);
            let op = Op::Mknod {
                parent,
                name: name.clone(),
                make,
                rdev: 0,
            };
            if self.act(op)? != Ended::Accepted {
                failed += 1;
                continue;
            }
            self.files.push((parent, name, make.node));
            if self.write(make.node, 0, len)? != Ended::Accepted {
                (failed, len) = (failed + 1, (len / 3).max(700));
            }
        }
        // What is left, byte by byte if need be.
        while let Some((_, _, node)) = self.files.last().cloned() {
            let size = self.driver.tree.get(node).map_or(0, |n| n.size);
            if self.write(node, size, 4096)? != Ended::Accepted {
                break;
            }
        }
        Ok(())
    }

    /// Something that must not lack space.
    fn never_fails(&mut self) -> Result<(), String> {
        let pick = self.rng.below(self.files.len() as u64) as usize;
        let (parent, name, node) = self.files[pick].clone();
        let size = self.driver.tree.get(node).map_or(0, |n| n.size);
        let roll = self.rng.below(20);
        let ended = match roll {
            0 if self.files.len() > 20 => {
                self.files.swap_remove(pick);
                self.act(Op::Unlink { parent, name })?
            }
            1 | 2 => {
                let set = Set {
                    size: Some(self.rng.below(size + 1)),
                    ..Set::default()
                };
                self.act(Op::SetAttr { node, set })?
            }
            3 => {
                let empty = |d: &(Bytes, NodeId)| {
                    let node = self.driver.tree.get(d.1);
                    node.is_ok_and(|n| n.entries.is_empty())
                };
                let Some(at) = self.dirs.iter().position(empty) else {
                    return Ok(());
                };
                let (name, _) = self.dirs.swap_remove(at);
                let parent = self.driver.tree.root;
                self.act(Op::Rmdir { parent, name })?
            }
            _ if size > 0 => {
                let offset = self.rng.below(size);
                let most = if roll < 10 { 3000 } else { 200 << 10 };
                let len = 1 + self.rng.below(most).min(size - offset - 1);
                let before = self.driver.history.ops.len();
                let ended = self.write(node, offset, len)?;
                // A write is as long as it was asked for.
                match self.driver.history.ops.get(before).map(|a| &a.op) {
                    Some(Op::Write { data, .. }) if (data.len() as u64) < len.min(64 << 10) => {
                        return Err(format!("{} of {len} bytes overwritten", data.len()));
                    }
                    _ => ended,
                }
            }
            _ => return Ok(()),
        };
        match ended {
            Ended::Accepted => Ok(()),
            other => Err(format!(
                "file {node:?} of {size} bytes, roll {roll}: {other:?}"
            )),
        }
    }
}

fn full(seed: u64, config: &'static Config) -> Result<u64, String> {
    let setting = Setting {
        streams: STREAMS,
        dirty_limit: 1 << 20,
        ..Setting::new(config)
    };
    let dev = Arc::new(SimDevice::new(&image::base(config)?));
    let vol = mount(dev.clone(), setting.options())?;
    let base = observe(&vol)?;
    let mut full = Full {
        driver: Driver::new(vol, Some(dev.clone()), &base, STREAMS),
        rng: Rng::new(seed),
        next_node: FIRST_NODE,
        writes: seed << 16,
        files: Vec::new(),
        dirs: Vec::new(),
    };
    for round in 0..3 {
        full.fill()?;
        for n in 0..60 {
            full.never_fails()
                .map_err(|e| format!("round {round}, action {n}: {e}"))?;
            let sync = match full.rng.below(12) {
                0 => Action::VolumeSync,
                1 => Action::StreamSync,
                2 => Action::Tick,
                3 => Action::Checkpoint,
                _ => continue,
            };
            if full.driver.act(0, &sync)? != Ended::Accepted {
                return Err(format!("round {round}, action {n}: {sync:?} failed"));
            }
        }
    }
    let Driver {
        vol,
        tree,
        history,
        began,
        synced,
        no_space,
        ..
    } = full.driver;
    if let Some(d) = tree.difference(&observe(&vol)?, config.times) {
        return Err(d);
    }
    vol.unmount().map_err(|e| format!("unmount: {e}"))?;
    image::fsck(&dev.live())?;
    let an = Analysis::new(base, history, config.times).map_err(|(i, e)| format!("{i}: {e}"))?;
    let run = Run {
        mounted: 0,
        setting,
        dev,
        an,
        actions: Vec::new(),
        began,
        synced,
        no_space,
        aborts: 0,
        conflicts: 0,
        taken_back: 0,
        marks: Default::default(),
        replays: true,
    };
    let effort = Effort {
        states_max: 10,
        deep_every: 5,
        seed,
        ..Effort::default()
    };
    explore(&run, &effort)?;
    Ok(no_space)
}

#[test]
fn a_full_volume_can_be_overwritten_and_emptied() {
    for seed in 0..6 {
        let config = &CONFIGS[[0, 2, 1][seed as usize % 3]];
        match guarded(|| full(seed, config)) {
            Ok(no_space) => assert!(no_space > 0, "seed {seed}: the volume was never full"),
            Err(e) => panic!("seed {seed}, volume {}: {e}", config.name),
        }
    }
}

/// What a power cut now leaves at least: what was flushed.
fn flushed(dev: &SimDevice) -> Result<Tree, String> {
    let image = dev.crash_image(dev.events(), &Outcome::None);
    let options = Options {
        background: false,
        ..Options::default()
    };
    let vol = mount(Arc::new(image), options)?;
    let tree = observe(&vol);
    vol.shutdown();
    tree
}

#[test]
fn without_any_sync_work_becomes_durable() {
    // The commit interval, and how long a busy machine may take for it.
    let (interval, patience) = (Duration::from_millis(50), Duration::from_secs(60));
    let dev = Arc::new(SimDevice::new(&image::base(&CONFIGS[0]).unwrap()));
    let options = Options {
        commit_interval: interval,
        ..Options::default()
    };
    let vol = mount(dev.clone(), options).unwrap();
    let judged = guarded(|| idle(&dev, &vol, patience));
    vol.shutdown();
    if let Err(e) = judged {
        panic!("{e}");
    }
}

fn idle(dev: &Arc<SimDevice>, vol: &Arc<Volume>, patience: Duration) -> Result<(), String> {
    let base = observe(vol)?;
    let mut driver = Driver::new(vol.clone(), Some(dev.clone()), &base, STREAMS);
    let mut rng = Rng::new(7);
    for n in 0..30u64 {
        let stream = rng.below(STREAMS as u64) as usize;
        let make = Make {
            node: NodeId(FIRST_NODE + n),
            mode: S_IFREG | 0o644,
            uid: 0,
            gid: 0,
        };
        let ops = [
            Op::Mknod {
                parent: base.root,
                name: format!("f{n}").into_bytes().into(),
                make,
                rdev: 0,
            },
            Op::Write {
                node: make.node,
                offset: 0,
                data: pattern(n, 0, 1 + rng.below(9000) as usize),
                kill: false,
            },
        ];
        let start = Instant::now();
        for op in ops {
            driver.act(stream, &Action::Op(op))?;
        }
        while let Some(d) = driver.tree.difference(&flushed(dev)?, true) {
            if start.elapsed() > patience {
                return Err(format!(
                    "operation {n} is not durable after {patience:?}: {d}"
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}
