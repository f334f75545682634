//! The long tests: the functions of the short ones with larger sizes. `ccfs-soak --help`.
use ccfs_tests::ends;
use ccfs_tests::exercise::{engine, file, mounted, tree};
use ccfs_tests::harness::{Fs, Volume, run_ok, shell};
use ccfs_tests::kill9;
use ccfs_tests::programs::{self, Size};
use ccfs_tests::sys;
use ccfs_tests::two_users::{self, Length};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Long tests of a mounted ccfs. Needs root, /dev/fuse, loop devices and space in CCFS_TEST_DIR (/var/tmp).
#[derive(Parser)]
#[command(name = "ccfs-soak", version)]
struct Cli {
    /// Parts to run, separated by commas (all of them if empty): kill9, file, tree, engine, programs, source, crate, copies, files,
    /// ends, two-users
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// kill -9 rounds
    #[arg(long, default_value_t = 1000)]
    rounds: usize,
    /// Operations of each exerciser
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Files of the generated trees of the programs part
    #[arg(long, default_value_t = 50_000)]
    tree_files: usize,
    /// Rows of the databases
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
    /// Files of the files part
    #[arg(long, default_value_t = 1_000_000)]
    files: usize,
    /// Gigabytes of the copies part (less where the disk is smaller)
    #[arg(long, default_value_t = 20)]
    gigabytes: u64,
    /// Seconds of each attack of the two-users part
    #[arg(long, default_value_t = 60)]
    attack_seconds: u64,
    /// Attacks of the two-users part, by a part of their names (all of them if empty)
    #[arg(long, value_delimiter = ',')]
    attacks: Vec<String>,
    /// A source tree, or a tar archive of one; default: linux-source-6.1's archive, where that package is installed
    #[arg(long)]
    source: Option<PathBuf>,
    /// A cargo workspace that builds offline; default: this one
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))]
    crate_dir: PathBuf,
}

/// Name and function.
type Part = (&'static str, fn(&Cli));

/// Resident size that no run may exceed at `dirty=128M`, bytes.
const RSS_MAX: u64 = 400_000_000;
/// The option with which memory is judged: by default the limit rises while much of the data becomes needless.
const DIRTY: &str = "dirty=128M";

const PARTS: [Part; 11] = [
    ("kill9", kill9_rounds),
    ("file", file_mounted),
    ("tree", tree_mounted),
    ("engine", in_process),
    ("programs", all_programs),
    ("source", source_tree),
    ("crate", cargo_build),
    ("copies", large_copies),
    ("files", many_files),
    ("ends", namespaces_end),
    ("two-users", users_attack),
];

impl Cli {
    /// What is chosen has to exist. Error: what does not, and what there is.
    fn check(&self) -> Result<(), String> {
        for name in &self.only {
            if !PARTS.iter().any(|(part, _)| part == name) {
                let parts = PARTS.map(|(part, _)| part).join(", ");
                return Err(format!(
                    "--only {name}: there is none; the parts are {parts}"
                ));
            }
        }
        for name in &self.attacks {
            if !two_users::ALL.iter().any(|s| s.name.contains(name)) {
                let all: Vec<_> = two_users::ALL.iter().map(|s| s.name).collect();
                return Err(format!(
                    "--attacks {name}: there is none; the attacks are {}",
                    all.join(", ")
                ));
            }
        }
        let manifest = self.crate_dir.join("Cargo.toml");
        for path in self.source.iter().chain([&manifest]) {
            if !path.exists() {
                return Err(format!("{} is not there", path.display()));
            }
        }
        Ok(())
    }
}

fn main() {
    let cli = Cli::parse();
    if let Err(why) = cli.check() {
        eprintln!("ccfs-soak: {why}");
        std::process::exit(2);
    }
    if !Fs::Ccfs.ready("soak") {
        return;
    }
    for (name, part) in PARTS {
        if cli.only.is_empty() || cli.only.iter().any(|o| o == name) {
            let start = Instant::now();
            println!("{name} ...");
            part(&cli);
            println!("{name}: ok, {:.0} s", start.elapsed().as_secs_f64());
        }
    }
}

/// A mounted volume whose daemon's memory is judged.
fn judged(name: &str, mib: u64) -> Volume {
    let mut v = Volume::unformatted(Fs::Ccfs, name).options(DIRTY);
    v.mkfs(mib);
    v.mount();
    v
}

/// Reports the daemon's memory, and fails above the limit.
fn memory(v: &Volume, what: &str) {
    if let Some((now, peak)) = v.daemon_rss() {
        println!(
            "{what}: daemon {} MB resident, at most {} MB",
            now / 1_000_000,
            peak / 1_000_000
        );
        assert!(peak < RSS_MAX, "{what}: the daemon grew to {peak} bytes");
    }
}

fn kill9_rounds(cli: &Cli) {
    // Four volumes at once; each thread has its own seeds.
    let each = cli.rounds.div_ceil(4);
    std::thread::scope(|s| {
        for part in 0..4 {
            s.spawn(move || {
                let sum = kill9::rounds(cli.seed * 1_000_000 + part, each);
                println!("kill -9, part {part}: {sum:?}");
                assert!(sum.rss_max < RSS_MAX);
            });
        }
    });
}

fn namespaces_end(cli: &Cli) {
    ends::rounds(cli.seed, cli.rounds / 2);
}

fn users_attack(cli: &Cli) {
    let chosen =
        |name: &str| cli.attacks.is_empty() || cli.attacks.iter().any(|a| name.contains(a));
    let scenarios = two_users::ALL.iter().filter(|s| chosen(s.name));
    let wrong = two_users::run(scenarios, &Length::long(cli.attack_seconds));
    wrong.iter().for_each(|w| println!("not within: {w}"));
    assert!(wrong.is_empty(), "{} are not within", wrong.len());
}

fn file_mounted(cli: &Cli) {
    for (i, size_max) in [200_000, 8 << 20, 200 << 20].into_iter().enumerate() {
        let mut v = judged("soak-file", 1024);
        let run = file::Run {
            seed: cli.seed + i as u64,
            operations: cli.operations / 3,
            size_max,
            sync_every: 200,
            refresh_every: 20_000,
        };
        file::exercise(&mut mounted::File::new(&mut v, "f"), run);
        memory(&v, "file exerciser");
        v.finish();
    }
}

fn tree_mounted(cli: &Cli) {
    let mut v = judged("soak-tree", 2048);
    let target = mounted::Tree::new(v.path("tree"));
    let run = tree::Run {
        seed: cli.seed,
        threads: 16,
        streams: 4,
        operations: cli.operations,
        sync_every: 500,
    };
    let expected = tree::exercise(&target, run);
    memory(&v, "tree exerciser");
    expected.compare(target.root());
    v.remount();
    expected.compare(target.root());
    v.finish();
}

fn in_process(cli: &Cli) {
    for (i, blocks) in ["1024", "2048", "4096"].into_iter().enumerate() {
        let seed = cli.seed + i as u64;
        let m = engine::Mounted::new("soak-engine-file", 256, &["-b", blocks]);
        let mut f = engine::File::new(m);
        let run = file::Run {
            seed,
            operations: cli.operations,
            size_max: 4 << 20,
            sync_every: 300,
            refresh_every: 30_000,
        };
        file::exercise(&mut f, run);
        f.mounted.finish(|_| ());
        let mut m = engine::Mounted::new("soak-engine-tree", 512, &["-b", blocks]);
        let target = engine::EngineTree::new(&m, 4);
        let run = tree::Run {
            seed,
            threads: 16,
            streams: 4,
            operations: cli.operations,
            sync_every: 700,
        };
        let expected = tree::exercise(&target, run);
        drop(target);
        m.remount();
        m.finish(|root| expected.compare(root));
    }
}

fn all_programs(cli: &Cli) {
    let size = Size {
        files: cli.tree_files,
        rows: cli.rows,
        source: None,
    };
    for work in programs::all() {
        programs::on_both(Fs::Ccfs, &work, &size, 12 << 10);
    }
}

fn source_tree(cli: &Cli) {
    const USUAL: &str = "/usr/src/linux-source-6.1.tar.xz";
    let given = cli.source.as_deref().unwrap_or(Path::new(USUAL));
    if !given.exists() {
        println!("skipped: source: {USUAL} is not there (package linux-source-6.1)");
        return;
    }
    let unpacked = ccfs_tests::harness::WorkDir::new("soak-source");
    let source = if given.is_dir() {
        given.to_path_buf()
    } else {
        shell(unpacked.path(), &format!("tar -xf '{}'", given.display()));
        let first = std::fs::read_dir(unpacked.path())
            .expect("list")
            .flatten()
            .next()
            .expect("an entry");
        first.path()
    };
    let size = Size {
        files: 0,
        rows: 0,
        source: Some(source),
    };
    for work in programs::all()
        .into_iter()
        .filter(|w| ["tree_tools", "git"].contains(&w.name))
    {
        programs::on_both(Fs::Ccfs, &work, &size, 16 << 10);
    }
}

fn cargo_build(cli: &Cli) {
    let v = judged("soak-crate", 8 << 10);
    programs::build::cargo(v.mnt(), &cli.crate_dir);
    memory(&v, "cargo build");
    v.finish();
}

/// Free space on the disk that holds the images, bytes.
fn room() -> u64 {
    let base =
        std::env::var_os("CCFS_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    sys::statvfs(base).map_or(0, |s| s.bavail * s.frsize)
}

fn large_copies(cli: &Cli) {
    // Two copies on the volume, and some room to spare.
    let gigabytes = cli.gigabytes.min((room() >> 30) / 3).max(1);
    let v = judged("soak-copies", gigabytes * 2 * 1024 + 2048);
    let start = Instant::now();
    shell(
        v.mnt(),
        &format!(
            "head -c {gigabytes}G /dev/urandom | tee one | cksum >sum1; cp one two; cksum <two >sum2; cmp sum1 sum2; cmp one two"
        ),
    );
    println!(
        "2 x {gigabytes} GiB: {:.0} s",
        start.elapsed().as_secs_f64()
    );
    memory(&v, "copies");
    v.finish();
}

fn many_files(cli: &Cli) {
    let mut v = Volume::unformatted(Fs::Ccfs, "soak-files").options(DIRTY);
    v.mke2fs(
        cli.files as u64 * 8 / 1024 + 4096,
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-N",
            &(cli.files * 2).to_string(),
        ],
    );
    v.mount();
    let dir = v.path("many");
    sys::mkdir(&dir, 0o755).expect("mkdir");
    let start = Instant::now();
    let make = |i: usize| write_small(&dir.join(format!("name-of-file-{i:08}")), i);
    std::thread::scope(|s| {
        for part in 0..4 {
            let (make, files) = (&make, cli.files);
            s.spawn(move || (part..files).step_by(4).for_each(make));
        }
    });
    println!(
        "{} files: {:.0} s",
        cli.files,
        start.elapsed().as_secs_f64()
    );
    memory(&v, "many files");
    v.remount();
    let names = std::fs::read_dir(&dir).expect("list").count();
    assert_eq!(names, cli.files, "names after a remount");
    let start = Instant::now();
    run_ok("rm", &["-r", dir.to_str().expect("plain path")]);
    println!("removed: {:.0} s", start.elapsed().as_secs_f64());
    memory(&v, "many files removed");
    v.finish();
}

fn write_small(path: &Path, i: usize) {
    std::fs::write(path, format!("content {i}"))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
