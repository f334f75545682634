//! Real programs, each doing the same work on two file systems; then the trees are compared.

pub mod build;
pub mod database;

use crate::harness::{Compare, Fs, Tree, Volume, have, number, run_in, shell};
use crate::sys;
use ccfs_testkit::Rng;
use std::path::Path;

/// One piece of work in an empty directory: (name, programs that it needs, how the results are compared, the work).
pub struct Work {
    pub name: &'static str,
    pub needs: &'static [&'static str],
    pub compare: Compare,
    pub run: fn(dir: &Path, size: &Size),
}

/// How much.
#[derive(Clone, Debug)]
pub struct Size {
    /// Files of the trees.
    pub files: usize,
    /// Rows of the databases.
    pub rows: usize,
    /// A source tree to work on instead of a generated one.
    pub source: Option<std::path::PathBuf>,
}

impl Size {
    /// For tests; `CCFS_TEST_PERCENT` is a share of that.
    pub fn short() -> Size {
        let share = |full| full * number("CCFS_TEST_PERCENT", 100) as usize / 100;
        Size {
            files: share(5_000),
            rows: share(10_000),
            source: None,
        }
    }
}

/// All of them.
pub fn all() -> Vec<Work> {
    let same = Compare::same_work();
    vec![
        Work {
            name: "tree_tools",
            needs: &["tar", "rsync"],
            compare: same.with_mtime(),
            run: tree_tools,
        },
        Work {
            name: "rsync_everything",
            needs: &["rsync", "setfacl", "setfattr"],
            compare: same.with_mtime(),
            run: rsync_everything,
        },
        Work {
            name: "git",
            needs: &["git"],
            compare: same,
            run: git,
        },
        Work {
            name: "make",
            needs: &["make", "gcc"],
            compare: same,
            run: build::make,
        },
        Work {
            name: "sqlite",
            needs: &["sqlite3"],
            compare: same,
            run: database::sqlite,
        },
        Work {
            name: "leveldb",
            needs: &["g++"],
            compare: same,
            run: database::leveldb,
        },
    ]
}

/// Does the work on the file system under test and on the kernel's ext4, compares, and checks the volume at rest.
pub fn on_both(fs: Fs, work: &Work, size: &Size, volume_mib: u64) {
    if !fs.ready(work.name) {
        return;
    }
    if let Some(missing) = work.needs.iter().find(|p| !have(p)) {
        println!("skipped: {}: needs {missing}", work.name);
        return;
    }
    let tree = |fs: Fs| {
        let mut v = Volume::new(fs, work.name, volume_mib);
        let dir = v.path("work");
        sys::mkdir(&dir, 0o755).expect("mkdir");
        let start = std::time::Instant::now();
        (work.run)(&dir, size);
        let took = start.elapsed();
        let tree = Tree::read(&dir);
        v.remount();
        let again = Tree::read(&v.path("work"));
        let changed = tree.differences(&again, Compare::everything());
        assert!(
            changed.is_empty(),
            "{}: a remount changes the tree:\n{}",
            work.name,
            changed.join("\n")
        );
        let rss = v.daemon_rss().map_or(String::new(), |(_, peak)| {
            format!(", daemon at most {} MiB", peak >> 20)
        });
        println!(
            "{} on {}: {:.2} s{rss}",
            work.name,
            fs.name(),
            took.as_secs_f64()
        );
        v.finish();
        tree
    };
    let ours = tree(fs);
    if fs == Fs::Ext4 {
        return;
    }
    let kernel = tree(Fs::Ext4);
    let differences = ours.differences(&kernel, work.compare);
    assert!(
        differences.is_empty(),
        "{}: not as on ext4:\n{}",
        work.name,
        differences.join("\n")
    );
}

/// A tree of `files` files with fixed times, below `dir/name`: small and a few large ones, links of both kinds.
pub fn make_tree(dir: &Path, name: &str, files: usize) {
    let mut rng = Rng::new(0x7EE);
    let root = dir.join(name);
    sys::mkdir(&root, 0o755).expect("mkdir");
    let mut dirs = vec![root.clone()];
    for i in 0..files {
        if i.is_multiple_of(40) {
            let parent = rng.pick(&dirs).clone();
            let d = parent.join(format!("dir{i}"));
            sys::mkdir(&d, 0o755).expect("mkdir");
            dirs.push(d);
        }
        let path = rng.pick(&dirs).join(format!("file-{i}.txt"));
        let len = if i.is_multiple_of(500) {
            1_000_000
        } else {
            rng.size(20_000) as usize
        };
        let line = format!("line of file {i} {:x}\n", rng.draw());
        let text = line.repeat(len / line.len() + 1);
        std::fs::write(&path, text).expect("write");
        if i % 11 == 0 {
            sys::chmod(&path, *rng.pick(&[0o600, 0o755, 0o444])).expect("chmod");
        }
        if i % 53 == 0 {
            sys::link(&path, path.with_extension("hard")).expect("link");
        }
        if i % 59 == 0 {
            let link = path.with_extension("soft");
            sys::symlink(&format!("file-{i}.txt"), &link).expect("symlink");
            sys::utimens(&link, (1_400_000_000, 0), (1_400_000_000 + i as i64, 5))
                .expect("utimens");
        }
        sys::utimens(
            &path,
            (1_500_000_000 + i as i64, 1),
            (1_600_000_000 + i as i64, 123_456_789),
        )
        .expect("utimens");
    }
    for d in dirs.iter().rev() {
        sys::utimens(d, (1_500_000_000, 0), (1_500_000_001, 7)).expect("utimens");
    }
}

/// The tree to work on, at `dir/src`.
fn source(dir: &Path, size: &Size) {
    match &size.source {
        Some(path) => drop(run_in(
            dir,
            "cp",
            &["-a", path.to_str().expect("plain path"), "src"],
        )),
        None => make_tree(dir, "src", size.files),
    }
}

/// tar, cp -a, rsync, find, rm -r.
fn tree_tools(dir: &Path, size: &Size) {
    source(dir, size);
    shell(
        dir,
        "tar --sort=name -cf src.tar src && mkdir out && tar -xpf src.tar -C out",
    );
    shell(dir, "diff -r --no-dereference src out/src");
    shell(dir, "cp -a src copy && rm -r src");
    shell(
        dir,
        "rsync -aHAX out/src/ synced/ && rsync -aHAXc --delete out/src/ synced/",
    );
    shell(
        dir,
        "test -z \"$(rsync -aHAXcni --delete out/src/ synced/)\"",
    );
    shell(
        dir,
        "find copy -name '*7.txt' -delete && find out -type d -empty -delete",
    );
    shell(dir, "mv copy moved && rm -r out && rm src.tar");
    // Only what was copied with times is compared; directories that changed since get a fixed one.
    shell(dir, "find . -type d -exec touch -d @1000000000 {} +");
}

/// Everything that an inode can carry, through rsync -aHAX.
fn rsync_everything(dir: &Path, size: &Size) {
    make_tree(dir, "a", size.files / 10);
    shell(
        dir,
        "cd a
         mkfifo fifo; mknod null c 1 3; mknod loop b 7 0; ln -s nowhere dangling
         truncate -s 200M sparse; printf end >>sparse; printf x | dd of=sparse bs=1 seek=1000000 conv=notrunc status=none
         touch setuid; chmod 6755 setuid; mkdir sticky; chmod 1777 sticky; chown 1234:5678 file-1*.txt
         chown -h 77:88 dangling
         setfattr -n user.note -v 'some text' file-2*.txt; setfattr -n trusted.t -v 0x00ff sticky
         setfacl -m u:60001:rw,g:60100:r file-3*.txt; setfacl -d -m u:60001:rwx sticky; mkdir sticky/below
         find . -exec touch -h -d '2001-02-03 04:05:06.789012345' {} +",
    );
    shell(
        dir,
        "rsync -aHAXS --devices --specials a/ b/ && find b -exec touch -h -r a {} +",
    );
    shell(
        dir,
        "test -z \"$(rsync -aHAXcni a/ b/ | grep -v '^\\.d\\.\\.t')\"",
    );
    shell(dir, "test $(stat -c %b b/sparse) -lt 10000");
    shell(dir, "touch -d @1000000000 .");
}

/// init, add, commit, branch, merge, gc, clone, fsck.
fn git(dir: &Path, size: &Size) {
    source(dir, size);
    let git = |sub: &str, args: &[&str]| {
        let fixed = [
            "-c",
            "gc.auto=0",
            "-c",
            "pack.threads=1",
            "-c",
            "index.threads=1",
        ];
        run_in(&dir.join(sub), "git", &[&fixed, args].concat())
    };
    git("src", &["init", "-q", "-b", "main"]);
    // Debian's kernel tree ignores all of itself.
    git("src", &["add", "-A", "-f"]);
    git("src", &["commit", "-q", "-m", "first"]);
    git("src", &["checkout", "-q", "-b", "side"]);
    shell(
        &dir.join("src"),
        "find . -name '*3.txt' -not -path './.git/*' | sort | while read f; do echo more >>\"$f\"; done",
    );
    git("src", &["commit", "-q", "-a", "-m", "second"]);
    git("src", &["checkout", "-q", "main"]);
    shell(
        &dir.join("src"),
        "find . -name '*4.txt' -not -path './.git/*' -delete",
    );
    git(
        "src",
        &["-c", "core.fsync=all", "commit", "-q", "-a", "-m", "third"],
    );
    git("src", &["merge", "-q", "--no-edit", "side"]);
    git("src", &["gc", "-q", "--prune=now"]);
    git("src", &["fsck", "--full", "--strict"]);
    git("", &["clone", "-q", "--no-local", "src", "clone"]);
    git("clone", &["fsck", "--full"]);
    assert_eq!(
        git("clone", &["status", "--porcelain"]),
        "",
        "a clean clone"
    );
    assert_eq!(
        git("src", &["rev-parse", "HEAD"]),
        git("clone", &["rev-parse", "HEAD"])
    );
    // The index and the packs hold stat data and orders that differ from run to run, the config the path of the volume.
    shell(
        dir,
        "rm -rf src/.git/index src/.git/objects clone/.git/index clone/.git/config clone/.git/objects src/.git/ORIG_HEAD src/.git/logs clone/.git/logs",
    );
}
