//! The papers' tables: each program on each file system, crashed in many ways, beside the papers' figures.
use crate::explore::{self, explore};
use crate::fs::Kind;
use crate::images::Choice;
use crate::programs::{PROGRAMS, Program, Ready};
use crate::record::{self, record};
use crate::{Fail, model, report, run, sys};
use ccfs_testkit::Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// BarrierFS's crash test: workloads, and of how many files, so that a thousand crash states differ on each file system.
const CRASH_TESTS: [(&str, &str); 2] = [("rename_root_to_sub", "1400"), ("create_delete", "260")];
/// What can be measured of a program.
pub const PARTS: [&str; 3] = ["images", "models", "kills"];
/// The models that the tables show.
const MODELS: [&str; 2] = ["ext4-ordered", "ccfs"];
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
    /// Directory for the pages.
    pub html: PathBuf,
    pub jobs: usize,
    pub seed: u64,
}

impl Config {
    fn does(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|p| p == part)
    }
}

/// What was measured, by "program on file system"; kept in a file, so that it can be done piece by piece.
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
}

/// Runs what is asked for and enters it into `results`, which `save` is called with after each piece.
pub fn measure(
    config: &Config,
    results: &mut Results,
    mut save: impl FnMut(&Results) -> Result<(), Fail>,
) -> Result<(), Fail> {
    for program in PROGRAMS {
        if !config.only.is_empty() && !config.only.iter().any(|n| n == program.name) {
            continue;
        }
        let files = CRASH_TESTS.iter().find(|(name, _)| *name == program.name);
        let is_crash_test = files.is_some();
        let mut program = *program;
        program.args = files.map_or(program.args, |(_, files)| files);
        let program = &program;
        let dir = record::scratch()?;
        let ready = match program.prepare(dir.path())? {
            Ok(ready) => ready,
            Err(why) => {
                eprintln!("skipped: {}: {why}", program.name);
                continue;
            }
        };
        let kinds: &[Kind] = if is_crash_test {
            &[Kind::Ext4, Kind::Ext4Nobarrier, Kind::Ccfs]
        } else {
            &[Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Ccfs]
        };
        for kind in kinds {
            if !config.does("images") {
                break;
            }
            let count = match (is_crash_test, program.slow) {
                (true, _) => config.cases,
                (false, false) => config.images,
                (false, true) => config.images.min(SLOW_IMAGES),
            };
            eprintln!("{} on {}: {count} images", program.name, kind.name());
            let images = on(config, program, &ready, *kind, count)?;
            results
                .images
                .insert(format!("{} on {}", program.name, kind.name()), images);
            save(results)?;
        }
        if is_crash_test {
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
    kind: Kind,
    count: usize,
) -> Result<Images, Fail> {
    let dir = record::scratch()?;
    let trace = dir.path().join("trace");
    let work = ready.command("work");
    let done = record(&record::Config {
        fs: kind,
        size: 512 << 20,
        setup: Some(ready.command("setup")),
        output: trace.clone(),
        command: ["sh", "-c", &work].map(Into::into).to_vec(),
        // Long enough for the commits in the background.
        linger: Duration::from_secs(7),
        timing: None,
        ccfs: config.ccfs.clone(),
    })?;
    if done.code != 0 {
        return Err(Fail::new(format!("{}: the workload failed", program.name)));
    }
    let check = ready.command("check");
    let found = explore(&explore::Config {
        trace: trace.clone(),
        check: check.clone(),
        fs: None,
        choice: Choice {
            images: Some(count),
            reorder: true,
            seed: config.seed,
        },
        jobs: config.jobs,
        limit: LIMIT,
        progress: true,
    })?;
    let page = config
        .html
        .join(format!("{}-{}.html", program.name, kind.name()));
    std::fs::create_dir_all(&config.html)
        .and_then(|()| std::fs::write(&page, report::html(&found, &trace, &check)))
        .map_err(|e| Fail::new(format!("{}: {e}", page.display())))?;
    let (consistent, total) = found.count("");
    let shown = |d: &explore::Distinct| format!("{} ({} images)", d.failure.line, d.images);
    Ok(Images {
        consistent,
        total,
        in_order: found.count("in order"),
        torn: found.count("torn"),
        harmless_s: found.consistent_s(),
        recorded_s: found.seconds(),
        failures: found.distinct.iter().map(shown).collect(),
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
            command: ["sh", "-c", &ready.command("work")]
                .map(Into::into)
                .to_vec(),
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

/// All but BarrierFS's crash test.
fn programs() -> impl Iterator<Item = &'static Program> {
    PROGRAMS
        .iter()
        .filter(|p| CRASH_TESTS.iter().all(|(name, _)| *name != p.name))
}

/// The generated part of docs/evidence.md.
pub fn markdown(results: &Results) -> String {
    let mut out = String::new();
    model_table(&mut out, results);
    out.push_str("### Images of a crashed disk, by program (the ccfs paper's Table 2(b))\n\n");
    out.push_str("Consistent images of all; in brackets the seconds of the recording in which a crash is harmless. Images in order, reordered within what flushes allow, and torn at sectors.\n\n");
    out.push_str("| program | ext4 | xfs | btrfs | ccfs | killed, not crashed: failed checks | paper: ext4 | paper: ccfs |\n|---|---|---|---|---|---|---|---|\n");
    for program in programs() {
        let _ = write!(out, "| {} |", program.title);
        for fs in ["ext4", "xfs", "btrfs", "ccfs"] {
            let _ = write!(out, " {} |", cell(results, program.name, fs));
        }
        let killed = results.kills.get(program.name);
        let _ = write!(
            out,
            " {} |",
            killed.map_or("-".into(), |(bad, all)| format!("{bad} of {all}"))
        );
        let _ = writeln!(
            out,
            " {} |",
            match program.name {
                "git" => "84/112 (9.95 of 40 s) | 96/96 (40 of 40 s)",
                "leveldb" => "158/465 (24.31 of 30 s) | 427/427 (30 of 30 s)",
                _ => "- | -",
            }
        );
    }
    let failing: Vec<_> = results
        .images
        .iter()
        .filter(|(_, images)| !images.failures.is_empty())
        .collect();
    if !failing.is_empty() {
        out.push_str("\nWhat was found:\n\n");
        for (name, images) in failing {
            let torn = images.torn.1 - images.torn.0;
            let _ = writeln!(
                out,
                "* {name}: {}{}",
                images
                    .failures
                    .iter()
                    .take(4)
                    .map(|f| format!("`{f}`"))
                    .collect::<Vec<_>>()
                    .join("; "),
                if torn > 0 {
                    format!(" ({torn} of them torn writes)")
                } else {
                    String::new()
                }
            );
        }
    }
    out.push_str("\n### BarrierFS's crash test (its Table 2)\n\n");
    out.push_str("| workload | ext4 | ext4, nobarrier | ccfs | paper: ext4 | paper: ext4, nobarrier | paper: BarrierFS |\n|---|---|---|---|---|---|---|\n");
    for ((name, _), paper) in CRASH_TESTS.iter().zip([
        "1000 of 1000 | 547 of 1000, 453 failed | 1000 of 1000",
        "1000 of 1000 | 109 of 1000, 891 mended by fsck | 1000 of 1000",
    ]) {
        let _ = write!(out, "| {name} |");
        for fs in ["ext4", "ext4-nobarrier", "ccfs"] {
            let images = results.images.get(&format!("{name} on {fs}"));
            let _ = write!(
                out,
                " {} |",
                images.map_or("-".into(), |i| format!("{} of {}", i.consistent, i.total))
            );
        }
        let _ = writeln!(out, " {paper} |");
    }
    out
}

fn model_table(out: &mut String, results: &Results) {
    out.push_str("### Vulnerabilities by model (the ccfs paper's Table 2(a))\n\n");
    out.push_str("From system calls: places where a crash breaks the program, and in brackets those that a mere kill breaks too, on any file system.\n\n");
    out.push_str("| program | ext4 | ccfs | paper: ext4 | paper: ccfs |\n|---|---|---|---|---|\n");
    for program in programs() {
        let _ = write!(out, "| {} |", program.title);
        for name in MODELS {
            let found = results.models.get(&format!("{} on {name}", program.name));
            let shown = found.map_or("-".into(), |all| {
                let kills = all
                    .iter()
                    .filter(|v| v.starts_with("process crash"))
                    .count();
                format!("{} ({kills})", all.len() - kills)
            });
            let _ = write!(out, " {shown} |");
        }
        let _ = writeln!(
            out,
            " {} |",
            match program.name {
                "leveldb" => "1 | 0",
                "sqlite-rollback" => "0 | 0",
                "git" => "2 | 0",
                "mercurial" => "5 | 2",
                "zookeeper" => "1 | 0",
                _ => "- | -",
            }
        );
    }
    out.push('\n');
}

fn cell(results: &Results, program: &str, fs: &str) -> String {
    results
        .images
        .get(&format!("{program} on {fs}"))
        .map_or("-".into(), |i| {
            format!(
                "{}/{} ({:.2} of {:.2} s)",
                i.consistent, i.total, i.harmless_s, i.recorded_s
            )
        })
}

/// Puts `text` between this crate's markers in a document; at its end if there are none.
pub fn insert(document: &Path, text: &str) -> Result<(), Fail> {
    const BEGIN: &str = "<!-- made by `make evidence`: begin -->";
    const END: &str = "<!-- made by `make evidence`: end -->";
    let fail = |e: std::io::Error| Fail::new(format!("{}: {e}", document.display()));
    let old = match std::fs::read_to_string(document) {
        Ok(old) => old,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "# Evidence\n".into(),
        Err(e) => return Err(fail(e)),
    };
    let part = format!("{BEGIN}\n\n{}\n\n{END}", text.trim());
    let new = match (old.find(BEGIN), old.find(END)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{part}{}", &old[..from], &old[to + END.len()..])
        }
        _ => format!(
            "{}\n\n## Programs on file systems, crashed\n\n{part}\n",
            old.trim_end()
        ),
    };
    std::fs::write(document, new).map_err(fail)
}
