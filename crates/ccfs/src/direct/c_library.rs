//! The C library that programs here use, and its plan: what is changed in it so that its system calls are led elsewhere.
use super::kept::Folder;
use ccfs_command::{Context, Failure, Outcome, warn};
use ccfs_intercept::find;
use ccfs_intercept::plan::{self, Plan, VERSION};
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// As glibc calls its library.
const NAME: &str = "libc.so.6";
/// Lists what a program is linked with (ld.so(8)).
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// A program that is linked dynamically almost everywhere.
const ANY_PROGRAM: &str = "/bin/sh";
/// For root; also programs of other users read it.
const CACHE_OF_ROOT: &str = "/var/cache/ccfs/direct";

/// The file with the plan. It is kept from one command to the next; to make it takes 30 ms.
///
/// Errors: 1, there is none for this C library, or nowhere to keep it.
pub fn plan() -> Outcome<PathBuf> {
    let library = library()?;
    let code = fs::read(&library).or_fail(1, format_args!("cannot read {}", library.display()))?;
    let unfit = |why: &dyn std::fmt::Display| {
        let library = library.display();
        let text = format!("the calls of {library} cannot be led: {why}; run the command without");
        Failure::new(1, text)
    };
    let id = find::id(&code).map_err(|e| unfit(&e))?;
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{hex}.plan{VERSION}");
    let is_right = |bytes: &[u8]| Plan::read(bytes).is_some_and(|plan| plan.id() == id);
    let make = || {
        let found = find::calls(&code).map_err(|e| unfit(&e))?;
        match found.sites.is_empty() {
            true => Err(unfit(&"it makes none")),
            false => Ok(plan::write(&found.id, &found.sites)),
        }
    };
    let mut made = None;
    let mut refused = Vec::new();
    for dir in places() {
        let kept = Folder::open(&dir).and_then(|folder| Ok((folder.read(&name)?, folder)));
        let (found, folder) = match kept {
            Ok(kept) => kept,
            Err(e) => {
                refused.push((dir, e));
                continue;
            }
        };
        let path = dir.join(&name);
        if found.is_some_and(|bytes| is_right(&bytes)) {
            return Ok(path);
        }
        let bytes = match &made {
            Some(bytes) => bytes,
            None => &*made.insert(make()?),
        };
        match folder.write(&name, bytes) {
            Ok(()) => {
                if let Some((first, why)) = refused.first() {
                    let (first, dir) = (first.display(), dir.display());
                    warn!("ccfs direct: {first}: {why}: the plan of the C library is in {dir}");
                }
                return Ok(path);
            }
            Err(e) => refused.push((dir, e)),
        }
    }
    let refused = refused
        .iter()
        .map(|(dir, e)| format!("{}: {e}", dir.display()));
    let refused: Vec<String> = refused.collect();
    Err(Failure::new(
        1,
        format!(
            "the plan of the C library can be kept nowhere: {}",
            refused.join("; ")
        ),
    ))
}

/// Where plans are kept: the first one that can be used. The latter two are for those whose home cannot be written.
fn places() -> Vec<PathBuf> {
    let user = geteuid();
    let named = |variable: &str| {
        let dir = std::env::var_os(variable).map(PathBuf::from);
        dir.filter(|dir| dir.is_absolute())
    };
    let cache = match user.is_root() {
        true => Some(CACHE_OF_ROOT.into()),
        false => {
            let of_home = || named("HOME").map(|home| home.join(".cache"));
            let cache = named("XDG_CACHE_HOME").or_else(of_home);
            cache.map(|cache| cache.join("ccfs/direct"))
        }
    };
    let runtime = named("XDG_RUNTIME_DIR").map(|dir| dir.join("ccfs-direct"));
    let last = std::env::temp_dir().join(format!("ccfs-direct-{}", user.as_raw()));
    [cache, runtime, Some(last)].into_iter().flatten().collect()
}

/// Its file: what this process has loaded, or, if that is linked statically, what the loader finds for another program.
fn library() -> Outcome<PathBuf> {
    let maps = fs::read("/proc/self/maps").or_fail(1, "cannot read /proc/self/maps")?;
    let maps = String::from_utf8_lossy(&maps);
    loaded(&maps).or_else(linked).ok_or_else(|| {
        Failure::new(
            1,
            format!("there is no {NAME} here: direct calls of unmodified programs need glibc; run the command without"),
        )
    })
}

/// From /proc/PID/maps (proc(5)): the path is all from the sixth field on. After an upgrade the file is another one, as for programs
/// that start now.
fn loaded(maps: &str) -> Option<PathBuf> {
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    let mut paths = paths.map(|path| Path::new(path.trim_end_matches(" (deleted)")));
    let found = paths.find(|path| path.file_name() == Some(OsStr::new(NAME)));
    found.map(Path::to_path_buf)
}

fn linked() -> Option<PathBuf> {
    let listed = Command::new(LOADER)
        .args(["--list", ANY_PROGRAM])
        .output()
        .ok()?;
    listed_in(&String::from_utf8_lossy(&listed.stdout))
}

/// From lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0000000000)`.
fn listed_in(text: &str) -> Option<PathBuf> {
    let found = text.lines().find_map(|line| {
        let (name, rest) = line.trim().split_once(" => ")?;
        (name == NAME).then(|| rest.split(" (0x").next())?
    });
    found.map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_found_in_texts() {
        let maps = "7f00-7f01 r--p 00000000 08:01 12    /usr/lib/libcrypt.so.1\n\
                    7f02-7f03 r-xp 00026000 08:01 13    /usr/my lib/libc.so.6 (deleted)\n";
        assert_eq!(loaded(maps), Some("/usr/my lib/libc.so.6".into()));
        assert_eq!(
            loaded("7f00-7f01 r-xp 0 08:01 1 /lib/ld-musl-x86_64.so.1\n"),
            None
        );
        let list = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n";
        assert_eq!(listed_in(list), Some("/lib/libc.so.6".into()));
        assert_eq!(listed_in("not a dynamic executable\n"), None);
    }

    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    #[test]
    fn the_loader_knows_the_library_that_is_loaded() {
        let same = |path: Option<PathBuf>| path.and_then(|p| p.canonicalize().ok());
        let own = library().expect("this machine's");
        if Path::new(LOADER).exists() {
            assert_eq!(same(linked()), same(Some(own)));
        }
    }
}
