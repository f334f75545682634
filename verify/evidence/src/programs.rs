//! Programs with their workloads and checkers: scripts and drivers in the crate's `programs` directory, built into this one.
use crate::{Fail, fs};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Exit code of a check that found nothing else than that the newest work is lost that was answered for: what is there is whole and in order.
pub const LOST: i32 = 3;

/// A program under test. The shell runs `sh SCRIPT setup|work|check|damage ARGS` in the root of the file system.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub name: &'static str,
    /// What people call it.
    pub title: &'static str,
    script: &'static str,
    /// Behind the verb.
    pub args: &'static str,
    /// Programs that have to be in PATH, and files.
    needs: &'static [&'static str],
    /// Debian packages with all of that.
    pub packages: &'static [&'static str],
    /// A driver to compile: file name, command, library.
    driver: Option<(&'static str, &'static str, &'static str)>,
    /// Names of files that it maps and makes anew after a crash.
    pub mapped: &'static [&'static str],
    /// A check of it takes seconds: few images, states and kills.
    pub slow: bool,
    /// A workload of a paper, of which there are images only.
    pub crash_test: bool,
    /// Of a program that also runs otherwise: with every sync that a power cut asks for.
    pub synced: bool,
}

const fn script(name: &'static str, title: &'static str, script: &'static str) -> Program {
    Program {
        name,
        title,
        script,
        args: "",
        needs: &[],
        packages: &[],
        driver: None,
        mapped: &[],
        slow: false,
        crash_test: false,
        synced: false,
    }
}

/// All of them.
pub const PROGRAMS: &[Program] = &[
    Program {
        needs: &["git"],
        packages: &["git"],
        ..script("git", "Git", "git.sh")
    },
    Program {
        needs: &["git"],
        packages: &["git"],
        args: "synced",
        synced: true,
        ..script("git-synced", "Git, core.fsync=all", "git.sh")
    },
    Program {
        needs: &["sqlite3"],
        packages: &["sqlite3"],
        args: "delete",
        ..script("sqlite-rollback", "SQLite, rollback journal", "sqlite.sh")
    },
    Program {
        needs: &["sqlite3"],
        packages: &["sqlite3"],
        args: "extra",
        synced: true,
        ..script(
            "sqlite-synced",
            "SQLite, rollback journal, synchronous=EXTRA",
            "sqlite.sh",
        )
    },
    Program {
        needs: &["sqlite3"],
        packages: &["sqlite3"],
        args: "wal",
        mapped: &["db-shm"],
        ..script("sqlite-wal", "SQLite, WAL", "sqlite.sh")
    },
    Program {
        needs: &["g++"],
        packages: &["g++", "libleveldb-dev"],
        args: "leveldb",
        driver: Some(("leveldb", "g++", "-lleveldb")),
        ..script("leveldb", "LevelDB", "driver.sh")
    },
    Program {
        needs: &["g++"],
        packages: &["g++", "libleveldb-dev"],
        args: "leveldb synced",
        driver: Some(("leveldb", "g++", "-lleveldb")),
        synced: true,
        ..script("leveldb-synced", "LevelDB, each batch synced", "driver.sh")
    },
    Program {
        needs: &["hg"],
        packages: &["mercurial"],
        ..script("mercurial", "Mercurial", "hg.sh")
    },
    Program {
        needs: &["gcc"],
        packages: &["gcc", "libc6-dev", "liblmdb-dev"],
        args: "lmdb",
        driver: Some(("lmdb", "gcc", "-llmdb")),
        mapped: &["lock.mdb"],
        ..script("lmdb", "LMDB", "driver.sh")
    },
    Program {
        needs: &["java", "python3", "/usr/share/java/zookeeper.jar"],
        packages: &["zookeeper", "python3"],
        slow: true,
        ..script("zookeeper", "ZooKeeper", "zookeeper.sh")
    },
    script("replace", "package manager (write, rename)", "replace.sh"),
    Program {
        args: "synced",
        synced: true,
        ..script(
            "replace-synced",
            "package manager (write, sync, rename)",
            "replace.sh",
        )
    },
    script("editor", "editor's save", "editor.sh"),
    // BarrierFS's crash test. Of how many files: so that a thousand crash states differ on each file system.
    Program {
        args: "1400",
        crash_test: true,
        ..script(
            "rename_root_to_sub",
            "rename root to sub",
            "rename_root_to_sub.sh",
        )
    },
    Program {
        args: "260",
        crash_test: true,
        ..script("create_delete", "create and delete", "create_delete.sh")
    },
];

/// Every file of the directory `programs`.
const FILES: &[(&str, &str)] = &[
    ("git.sh", include_str!("../programs/git.sh")),
    ("sqlite.sh", include_str!("../programs/sqlite.sh")),
    ("driver.sh", include_str!("../programs/driver.sh")),
    ("leveldb.cc", include_str!("../programs/leveldb.cc")),
    ("lmdb.c", include_str!("../programs/lmdb.c")),
    ("hg.sh", include_str!("../programs/hg.sh")),
    ("zookeeper.sh", include_str!("../programs/zookeeper.sh")),
    ("zookeeper.py", include_str!("../programs/zookeeper.py")),
    ("replace.sh", include_str!("../programs/replace.sh")),
    ("editor.sh", include_str!("../programs/editor.sh")),
    (
        "rename_root_to_sub.sh",
        include_str!("../programs/rename_root_to_sub.sh"),
    ),
    (
        "create_delete.sh",
        include_str!("../programs/create_delete.sh"),
    ),
];

/// A program whose files lie in a directory, compiled.
#[derive(Clone, Debug)]
pub struct Ready {
    dir: PathBuf,
    program: Program,
}

impl Program {
    pub fn find(name: &str) -> Option<&'static Program> {
        PROGRAMS.iter().find(|p| p.name == name)
    }

    /// Puts the files into `dir` and compiles the driver. `Ok(Err)`: why it cannot run here.
    pub fn prepare(&self, dir: &Path) -> Result<Result<Ready, String>, Fail> {
        let missing = self.needs.iter().find(|n| {
            let found = fs::tool(n);
            let path = Path::new(found.get_program());
            !(path.is_absolute() && path.exists())
        });
        if let Some(missing) = missing {
            return Ok(Err(format!("{missing} is not installed")));
        }
        let fail = |e: std::io::Error| Fail::new(format!("{}: {e}", dir.display()));
        for (name, text) in FILES {
            std::fs::write(dir.join(name), text).map_err(fail)?;
        }
        if let Some((name, compiler, library)) = self.driver {
            let source = FILES
                .iter()
                .map(|(file, _)| *file)
                .find(|file| {
                    Path::new(file).file_stem().is_some_and(|s| s == name) && !file.ends_with(".sh")
                })
                .unwrap_or(name);
            let out = fs::tool(compiler)
                .args(["-O1", "-o", name, source, library])
                .current_dir(dir)
                .output()
                .map_err(fail)?;
            if !out.status.success() {
                let text = String::from_utf8_lossy(&out.stderr);
                let line = text.lines().next().unwrap_or("").to_string();
                return Ok(Err(format!("its driver cannot be compiled: {line}")));
            }
        }
        Ok(Ok(Ready {
            dir: dir.to_path_buf(),
            program: *self,
        }))
    }
}

impl Ready {
    /// The program's work, as a command.
    pub fn work(&self) -> Vec<OsString> {
        ["sh", "-c", &self.command("work")]
            .map(OsString::from)
            .to_vec()
    }

    /// The shell command for a verb: `setup`, `work`, `check` or `damage`.
    pub fn command(&self, verb: &str) -> String {
        let dir = crate::report::quote(&self.dir.display().to_string());
        format!(
            "DRIVERS={dir} sh {dir}/{} {verb} {}",
            self.program.script, self.program.args
        )
        .trim_end()
        .to_string()
    }
}
