//! The papers' tables: each program on each file system, crashed in many ways, beside the papers' figures.
use crate::explore::Distinct;
use crate::page::{self, Part};
use crate::programs::{PROGRAMS, Program, Ready};
use crate::record;
use crate::systems::{CRASH_SYSTEMS, SYSTEMS, System};
use crate::{Fail, model, run, sys, verdict};
use ccfs_testkit::Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What can be measured of a program.
pub const PARTS: [&str; 3] = ["images", "models", "kills"];
/// The models that the tables show.
pub(crate) const MODELS: [&str; 2] = ["ext4-ordered", "ccfs"];
/// At most, of programs whose check takes seconds.
const SLOW_IMAGES: usize = 50;
const SLOW_STATES: usize = 200;
const SLOW_KILLS: usize = 5;
const LIMIT: Duration = Duration::from_secs(1200);

/// How much to do.
#[derive(Clone, Debug)]
pub struct Config {
    pub ccfs: PathBuf,
    /// Of each program on each file system.
    pub images: usize,
    /// Of BarrierFS's crash test.
    pub cases: usize,
    /// Kills of each program.
    pub kills: usize,
    /// Programs to do again; all if empty.
    pub only: Vec<String>,
    /// What to do with them: of `PARTS`; all if empty.
    pub parts: Vec<String>,
    /// Of images: on what; all if empty.
    pub fs: Vec<String>,
    /// Directory for the pages.
    pub html: PathBuf,
    pub jobs: usize,
    pub seed: u64,
}

impl Config {
    fn does(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|p| p == part)
    }

    fn chosen(&self) -> impl Iterator<Item = &'static Program> {
        let named = |p: &&Program| self.only.is_empty() || self.only.iter().any(|n| n == p.name);
        PROGRAMS.iter().filter(named)
    }

    /// On what images of a program are chosen.
    fn systems(&self, program: &Program) -> Vec<&'static System> {
        let all: &[System] = match program.crash_test {
            true => &CRASH_SYSTEMS,
            false => &SYSTEMS,
        };
        let named = |s: &&System| self.fs.is_empty() || self.fs.iter().any(|n| n == s.name);
        // Where syncs are ignored more of them make no difference.
        let differs = |s: &&System| !(program.synced && s.way.ignores_syncs());
        let chosen = all.iter().filter(named).filter(differs);
        chosen.filter(|_| self.does("images")).collect()
    }

    /// What is chosen has to exist. Error: what does not, and what there is.
    pub fn check(&self) -> Result<(), String> {
        for part in &self.parts {
            if !PARTS.contains(&part.as_str()) {
                return Err(format!(
                    "--parts {part}: there is none; the parts are {}",
                    PARTS.join(", ")
                ));
            }
        }
        for name in &self.fs {
            System::find(name).map_err(|why| format!("--fs {name}: {why}"))?;
        }
        for name in &self.only {
            let Some(program) = Program::find(name) else {
                let names: Vec<&str> = PROGRAMS.iter().map(|p| p.name).collect();
                return Err(format!(
                    "--only {name}: there is none; the programs are {}",
                    names.join(", ")
                ));
            };
            if program.crash_test && !self.does(PARTS[0]) {
                return Err(format!("--only {name}: of it there are only {}", PARTS[0]));
            }
            if !self.fs.is_empty() && self.systems(program).is_empty() {
                let fs = self.fs.join(",");
                return Err(format!("--fs {fs}: no images of {name} are made there"));
            }
        }
        Ok(())
    }

    /// The Debian packages that the chosen measurements need, but for what ccfs itself needs.
    pub fn packages(&self) -> BTreeSet<&'static str> {
        let mut all = BTreeSet::new();
        for program in self.chosen() {
            all.extend(program.packages);
            let real = !program.crash_test;
            for system in self.systems(program) {
                all.extend(system.packages());
            }
            if real && self.does("models") {
                all.extend(["strace", "binutils"]);
            }
        }
        all
    }
}

/// What was measured, by "program on file system".
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Results {
    pub images: BTreeMap<String, Images>,
    /// Of each program: runs after which the check failed, and all.
    pub kills: BTreeMap<String, (usize, usize)>,
    /// Vulnerabilities by model: "program on model" -> their descriptions.
    #[serde(default)]
    pub models: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Images {
    pub consistent: usize,
    pub total: usize,
    pub in_order: (usize, usize),
    pub torn: (usize, usize),
    pub harmless_s: f64,
    pub recorded_s: f64,
    pub failures: Vec<String>,
    /// Where syncs are ignored: of the consistent ones, those that lack work that was answered for.
    #[serde(default)]
    pub older: usize,
}

impl Results {
    /// Takes in what was measured later.
    pub fn extend(&mut self, later: &Results) {
        self.images.extend(later.images.clone());
        self.kills.extend(later.kills.clone());
        self.models.extend(later.models.clone());
    }
}

/// Runs what is asked for and enters it into `results`, which `save` is called with after each piece. A program that cannot run here is
/// left out, unless it was asked for by name.
pub fn measure(
    config: &Config,
    results: &mut Results,
    mut save: impl FnMut(&Results) -> Result<(), Fail>,
) -> Result<(), Fail> {
    for program in config.chosen() {
        let dir = record::scratch()?;
        let ready = match program.prepare(dir.path())? {
            Ok(ready) => ready,
            Err(why) if !config.only.is_empty() => {
                return Err(Fail::new(format!("{}: {why}", program.name)));
            }
            Err(why) => {
                eprintln!("skipped: {}: {why}", program.name);
                continue;
            }
        };
        for system in config.systems(program) {
            let count = match (program.crash_test, program.slow) {
                (true, _) => config.cases,
                (false, false) => config.images,
                (false, true) => config.images.min(SLOW_IMAGES),
            };
            eprintln!("{} on {}: {count} images", program.name, system.name);
            let images = on(config, program, &ready, system, count)?;
            results
                .images
                .insert(format!("{} on {}", program.name, system.name), images);
            save(results)?;
        }
        if program.crash_test {
            continue;
        }
        if config.does("models") {
            models(config, program, &ready, results)?;
            save(results)?;
        }
        if config.does("kills") {
            let killed = kills(config, program, &ready)?;
            results.kills.insert(program.name.to_string(), killed);
            save(results)?;
        }
    }
    Ok(())
}

fn on(
    config: &Config,
    program: &Program,
    ready: &Ready,
    system: &System,
    count: usize,
) -> Result<Images, Fail> {
    let dir = record::scratch()?;
    let trace = dir.path().join("trace");
    let check = ready.command("check");
    let found = verdict::on(
        &verdict::Config {
            setup: Some(ready.command("setup")),
            command: ready.work(),
            check: check.clone(),
            images: Some(count),
            seed: config.seed,
            jobs: config.jobs,
            limit: LIMIT,
            ..verdict::Config::new(config.ccfs.clone())
        },
        system,
        &trace,
        None,
    )
    .map_err(|e| Fail::new(format!("{}: {e}", program.name)))?;
    let part = Part::new(&found, &trace, &check)?.called(system.name);
    let file = config
        .html
        .join(format!("{}-{}.html", program.name, system.name));
    std::fs::create_dir_all(&config.html)
        .and_then(|()| std::fs::write(&file, page::html(&[part])))
        .map_err(|e| Fail::new(format!("{}: {e}", file.display())))?;
    let (consistent, total) = found.count("");
    let shown = |d: &Distinct| format!("{} ({} images)", d.failure.line, d.images);
    Ok(Images {
        consistent,
        total,
        in_order: found.count("in order"),
        torn: found.count("torn"),
        harmless_s: found.consistent_s(),
        recorded_s: found.seconds(),
        failures: found.distinct.iter().map(shown).collect(),
        older: found.forgiven,
    })
}

/// Tests the program by models (the ccfs paper's Table 2(a)).
fn models(
    config: &Config,
    program: &Program,
    ready: &Ready,
    results: &mut Results,
) -> Result<(), Fail> {
    for name in MODELS {
        eprintln!("{} by the model {name}", program.name);
        let found = model::model(&model::Config {
            model: model::Model::load(name)?,
            setup: Some(ready.command("setup")),
            check: ready.command("check"),
            command: ready.work(),
            shrink: None,
            mapped: program.mapped.iter().map(|m| m.to_string()).collect(),
            states: match program.slow {
                true => (config.images * 2).min(SLOW_STATES),
                false => config.images * 2,
            },
            jobs: config.jobs,
            limit: LIMIT,
        });
        match found {
            Ok(found) => {
                let shown = found
                    .vulnerabilities
                    .iter()
                    .map(|v| format!("{}: {} {}: {}", v.kind, v.call, v.before, v.failure))
                    .collect();
                results
                    .models
                    .insert(format!("{} on {name}", program.name), shown);
            }
            // A program that writes through mappings cannot be judged by its calls.
            Err(e) => eprintln!("{}: {e}", program.name),
        }
        sys::interrupted()?;
    }
    Ok(())
}

/// Kills the program itself, on the machine's own file system, where no order is ever lost: what fails then is its own doing.
fn kills(config: &Config, program: &Program, ready: &Ready) -> Result<(usize, usize), Fail> {
    let kills = if program.slow {
        config.kills.min(SLOW_KILLS)
    } else {
        config.kills
    };
    eprintln!("{}: {kills} kills", program.name);
    sys::adopt_orphans();
    let mut rng = Rng::new(config.seed);
    let (mut bad, mut whole_run) = (0, Duration::ZERO);
    for number in 0..=kills {
        let dir = record::scratch()?;
        let (root, scratch) = (dir.path().join("root"), dir.path());
        std::fs::create_dir(&root).map_err(|e| Fail::new(e.to_string()))?;
        let setup = run::shell(&ready.command("setup"), &root, &[], scratch, LIMIT)?;
        if !setup.ok() {
            return Err(Fail::new(format!("the setup failed: {}", setup.text)));
        }
        let begun = Instant::now();
        let mut command = Command::new("sh");
        command
            .args(["-c", &ready.command("work")])
            .current_dir(&root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = sys::tie(&mut command, true)
            .spawn()
            .map_err(|e| Fail::new(e.to_string()))?;
        // The first run is whole: it tells how long one takes.
        let limit = (number > 0).then(|| whole_run.mul_f64(rng.below(1000) as f64 / 1000.0));
        run::wait(&mut child, limit)?;
        sys::end_group(child.id());
        let _ = child.wait();
        if number == 0 {
            whole_run = begun.elapsed();
        }
        let ended = run::shell(&ready.command("check"), &root, &[], scratch, LIMIT)?;
        if !ended.ok() {
            eprintln!("{}, killed: {}", program.name, ended.text.trim());
            bad += 1;
        }
    }
    Ok((bad, kills + 1))
}
